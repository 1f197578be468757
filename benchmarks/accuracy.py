"""The errors of elementary functions, in ULP: against numpy in a wider type.

float32 is held against float64, whose functions are exact enough by far; float64 against
``longdouble``, where that has more digits, as on x86-64. The error function, which numpy lacks, is
the C library's for float32 and mpmath's for float64.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minitvm import build, te

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def _sigmoid(x: Array) -> Array:
    power = np.exp(-np.abs(x))
    made: Array = np.where(x < 0, power, 1) / (1 + power)
    return made


@cache
def _erf_of_library() -> Any:
    """The C library's error function of float64, which strict floating point calls."""
    x = te.placeholder((te.var("n"),), "float64", name="x")
    y = te.compute(x.shape, lambda i: te.erf(x[i]), name="y")
    return build(y, [x, y], fp="strict")


def _erf(x: Array) -> Array:
    if x.dtype == np.float64:
        made: Array = np.empty_like(x)
        _erf_of_library()(x, made)
        return made
    mpmath = importlib.import_module("mpmath")
    with mpmath.workprec(100):
        found = [mpmath.erf(mpmath.mpf(float(each))) for each in x]
        high = [float(each) for each in found]
        low = [float(each - h) for each, h in zip(found, high, strict=True)]
    made = np.array(high, x.dtype) + np.array(low, x.dtype)
    return np.copysign(made, x, out=made)


def _power(x: Array, y: Array) -> Array:
    return np.float_power(x, y, dtype=x.dtype)


# In the type of the arguments, by the names of intrinsics.
EXACT: dict[str, Function] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: _power(np.full_like(x, 10), x),
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "fmod": np.fmod,
    "power": _power,
}


def wide(dtype: str) -> Any:
    """The type that results of `dtype` are held against; None where there is none."""
    if dtype != "float64":
        return np.float64
    return np.longdouble if np.finfo(np.longdouble).nmant > 60 else None


def exactly(name: str, *args: Array) -> Array:
    """What a function is, in the wider type of its arguments' type."""
    with np.errstate(all="ignore"):
        found: Array = EXACT[name](*(each.astype(wide(each.dtype.name)) for each in args))
    return found


def errors(found: Array, exact: Array) -> Array:
    """The distance of each from the exact value, in ULP of the type there; infinite where one is
    NaN and the other isn't. Beyond the greatest finite number the spacing goes on, and infinity is
    the first number there."""
    info = np.finfo(found.dtype)
    end = np.ldexp(exact.dtype.type(1), info.maxexp)
    with np.errstate(all="ignore"):
        bounded = np.clip(exact, -end, end)
        distance = np.clip(found, -end, end, dtype=exact.dtype) - bounded
        made: Array = np.abs(distance, out=distance)
        made /= _spacing(bounded, info)
    if np.isnan(made.sum()):
        made[np.isnan(found) & np.isnan(exact)] = 0
        made[np.isnan(made)] = np.inf
    return made


def _spacing(exact: Array, info: Any) -> Array:
    """An ULP of a narrower type at each number."""
    if exact.dtype == np.float64:  # by its bits, as there may be 2**32 of them
        bits = exact.view(np.int64) & (0x7FF << 52)
        np.maximum(bits, (info.minexp + 1023) << 52, out=bits)
        bits -= info.nmant << 52
        return bits.view(np.float64)
    exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
    exponent[exact == 0] = info.minexp
    made: Array = np.ldexp(exact.dtype.type(1), exponent - info.nmant)
    return made
