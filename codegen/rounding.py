"""Rounding to whole numbers by arithmetic, for targets that have no instruction for it (x86-64
before SSE 4.1), where LLVM calls the C library."""

from __future__ import annotations

from minitvm.codegen.coefficients import format_of
from minitvm.codegen.lanes import Lanes


def nearest_whole(a: Lanes) -> Lanes:
    """The nearest whole number, halves to even, to a magnitude below the format's whole numbers."""
    limit = 2.0 ** format_of(a).digits
    return (a + limit) - limit


def _even(x: Lanes) -> Lanes:
    return nearest_whole(abs(x)).with_sign_of(x)


def _floor(x: Lanes) -> Lanes:
    near = _even(x)
    return x.where(near > x, near - 1.0, near)


def _ceil(x: Lanes) -> Lanes:
    near = _even(x)
    return x.where(near < x, near + 1.0, near)


def _trunc(x: Lanes) -> Lanes:
    return _floor(abs(x))


def _round(x: Lanes) -> Lanes:
    a = abs(x)
    down = _floor(a)
    return a.where((a - down).compare("oge", 0.5), down + 1.0, down)


# The roundings by the names of LLVM's intrinsics.
_ROUNDED = {"floor": _floor, "ceil": _ceil, "trunc": _trunc, "round": _round, "roundeven": _even}


def rounded(name: str, x: Lanes) -> Lanes:
    """The result of LLVM's intrinsic of that name."""
    made = _ROUNDED[name](x).with_sign_of(x)
    return x.where(abs(x) < 2.0 ** format_of(x).digits, made, x)
