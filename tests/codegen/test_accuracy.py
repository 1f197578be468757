"""The errors of elementary functions in ULP, on dense samples, and on every float32.

``pytest -m wide tests/codegen/test_accuracy.py -k every_float32`` takes one to two minutes for each
function. The exact values are numpy's in a wider type (benchmarks/accuracy.py);
test_intrinsics.py holds fewer arguments against mpmath.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks import accuracy
from minitvm import build, te
from minitvm.codegen.elementary import ELEMENTARY
from minitvm.runtime.module import Module
from minitvm.tir.intrinsics import INTRINSICS
from tests.codegen.kernels import Array

UNARY = [name for name in ELEMENTARY if INTRINSICS[name].arity == 1]
BINARY = [name for name in ELEMENTARY if INTRINSICS[name].arity == 2 and name != "ldexp"]
EVEN = ("cos", "cosh")
ODD = ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf")
CHUNK = 1 << 13  # which numpy works on in the caches


@cache
def kernel(name: str, dtype: str) -> Module:
    """A function of each element of arrays."""
    known, n = INTRINSICS[name], te.var("n")
    inputs = [te.placeholder((n,), dtype, name=f"x{i}") for i in range(known.arity)]
    function = getattr(te, known.language_name)
    y = te.compute((n,), lambda i: function(*(x[i] for x in inputs)), name="y")
    return build(y, [*inputs, y])


def results(name: str, *args: Array) -> Array:
    y = np.empty_like(args[0])
    kernel(name, args[0].dtype.name)(*args, y)
    return y


def check(name: str, args: tuple[Array, ...], found: Array) -> None:
    """Holds results to the bound of the table, and to the signs of zeros."""
    exact = accuracy.exactly(name, *args)
    errors = accuracy.errors(found, exact)
    worst = int(errors.argmax())
    shown = ", ".join(repr(each[worst]) for each in args)
    bound = INTRINSICS[name].ulps
    assert errors[worst] <= bound, f"{name}({shown}): {found[worst]}, {errors[worst]:.2f} ULP off"
    zeros = (found == 0) & (exact == 0)
    assert (np.signbit(found) == np.signbit(exact))[zeros].all()


def sample(dtype: str, count: int) -> Array:
    """Numbers of all magnitudes, about 0, about 1, at multiples of pi / 4, at the ends."""
    generator = np.random.default_rng(count)
    bits = generator.integers(0, 2 ** (32 if dtype == "float32" else 64), count, dtype=np.uint64)
    parts: list[Any] = [
        bits.astype("uint32" if dtype == "float32" else "uint64").view(dtype),
        *(generator.uniform(-most, most, count) for most in (1, 4, 100, 800)),
        generator.uniform(0.5, 2, count),
        1 + generator.uniform(-1, 1, count) * 2.0 ** generator.uniform(-50, 0, count),
        generator.integers(-(2**26), 2**26, count) * (np.pi / 4),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1, -1, 2, -2, 3, 5e-324, 1e-40, -1e-310],
        [np.finfo(dtype).max, -np.finfo(dtype).max, np.finfo(dtype).tiny],
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([np.asarray(part).astype(dtype) for part in parts])


def pairs(name: str, dtype: str, count: int) -> tuple[Array, Array]:
    """Arguments of all kinds with each other, those at the ends each with each; for powers also
    such that the result is a number."""
    x = sample(dtype, count)
    y = np.random.default_rng(1).permutation(x)
    ends = np.meshgrid(x[-18:], x[-18:])
    base = np.exp(np.random.default_rng(2).uniform(-5, 5, count))
    near = np.random.default_rng(3).uniform(-745, 710, count) / np.log(base)
    more = (base, near) if name == "power" else (base, base * 1.1)
    with np.errstate(over="ignore"):
        return tuple(  # type: ignore[return-value]
            np.concatenate([z, end.ravel(), other.astype(dtype)])
            for z, end, other in zip((x, y), ends, more, strict=True)
        )


def has_wider(dtype: str) -> bool:
    return accuracy.wide(dtype) is not None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_error_is_a_distance_in_ulp(dtype: str) -> None:
    if not has_wider(dtype):
        pytest.skip("numpy's longdouble is float64")
    info, wide = np.finfo(dtype), accuracy.wide(dtype)
    least, most = info.smallest_subnormal, info.max
    one = wide(1)
    cases = [
        (1, one, 0), (1, one + info.eps / 4, 0.25), (1, one - info.eps / 4, 0.5),
        (2, one, 1 / info.eps),
        (0, wide(0), 0), (-0.0, wide(least) / 4, 0.25), (least, wide(0), 1), (np.nan, one, np.inf),
        (np.inf, wide(most), 1), (most, wide(np.inf), 0.5), (np.inf, wide(np.inf), 0),
        (np.nan, wide(np.nan), 0), (1, wide(np.nan), np.inf),
    ]  # fmt: skip
    found, exact, expected = zip(*cases, strict=True)
    errors = accuracy.errors(np.array(found, dtype), np.array(exact, wide))
    assert errors.tolist() == list(expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_errors_of_a_sample(name: str, dtype: str) -> None:
    if not has_wider(dtype):
        pytest.skip("numpy's longdouble is float64")
    count = 50 if (name, dtype) == ("erf", "float64") else 5000
    args = pairs(name, dtype, count) if name in BINARY else (sample(dtype, count),)
    check(name, args, results(name, *args))


@pytest.mark.wide
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_errors_of_many_float64(name: str) -> None:
    count = 2000 if name == "erf" else 1_000_000
    args = pairs(name, "float64", count) if name in BINARY else (sample("float64", count),)
    check(name, args, results(name, *args))


@pytest.mark.wide
@pytest.mark.parametrize("name", UNARY)
def test_every_float32(name: str) -> None:
    """Of even and odd functions the negative numbers are held against the positive ones."""
    half = np.arange(1 << 31, (1 << 31) + CHUNK, dtype=np.uint32) - np.uint32(1 << 31)
    worst = 0.0
    for start in range(0, 1 << 31, CHUNK):
        x = (half + np.uint32(start)).view("float32")
        y, opposite = results(name, x), results(name, -x)
        exact = accuracy.exactly(name, x)
        worst = max(worst, float(accuracy.errors(y, exact).max()))
        if name in EVEN or name in ODD:
            mirrored = -y if name in ODD else y
            assert np.array_equal(opposite, mirrored, equal_nan=True)
        else:
            exact = accuracy.exactly(name, -x)
            worst = max(worst, float(accuracy.errors(opposite, exact).max()))
    print(f"{name}: {worst:.3f} ULP")
    assert worst <= INTRINSICS[name].ulps
