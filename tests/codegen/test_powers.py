"""Powers whose exponents are numbers, against C99's ``pow`` in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import minitvm as tvm
from minitvm import te

Array = npt.NDArray[Any]
EXPONENTS = [0, 1, -1, -2, 4, 5, 6, -7, 16, 31, -32, 0.5, -0.5, 1.5, -2.5, 31.5, 0.75, 33]


def _bases(dtype: str) -> Array:
    """Moderate ones, ones of all magnitudes, and special ones; of both signs."""
    info, rng = np.finfo(dtype), np.random.default_rng(0)
    moderate = np.exp(rng.uniform(-3, 3, 500))
    wide = np.ldexp(rng.uniform(1, 2, 500), rng.integers(info.minexp, info.maxexp, 500))
    special = np.array([0, np.inf, 1, 2, 3, info.max, info.tiny, info.smallest_subnormal])
    made = np.concatenate([moderate, wide, special])
    return np.concatenate([made, -made, [np.nan]]).astype(dtype)


def _powers(x: Array, exponent: float, vectorized: bool) -> Array:
    X = te.placeholder(x.shape, str(x.dtype), name="X")
    Y = te.compute(x.shape, lambda i: te.power(X[i], te.const(exponent, x.dtype)), name="Y")
    s = te.create_schedule(Y.op)
    if vectorized:
        s[Y].vectorize(s[Y].split(Y.op.axis[0], factor=8)[1])
    y = np.empty_like(x)
    tvm.build(s, [X, Y], auto_schedule=False)(x, y)
    return y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_by_numbers(exponent: float, dtype: str) -> None:
    x = _bases(dtype)
    found = _powers(x, exponent, vectorized=True)
    np.testing.assert_array_equal(found, _powers(x, exponent, vectorized=False))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), np.longdouble(exponent))
        if exponent == 0.5:  # C99 has no square root of -inf
            exact = np.where(np.isneginf(x), np.longdouble(np.inf), exact)
        rounded = exact.astype(dtype)
        is_finite = np.isfinite(rounded)
        np.testing.assert_array_equal(found[~is_finite], rounded[~is_finite])
        errors = np.abs(found[is_finite] - exact[is_finite]) / np.spacing(abs(rounded[is_finite]))
    is_least = abs(rounded[is_finite]) < 4 * np.finfo(dtype).tiny
    assert errors[~is_least].max(initial=0) <= 1
    assert errors[is_least].max(initial=0) <= 1.5
    np.testing.assert_array_equal(np.signbit(found[is_finite]), np.signbit(rounded[is_finite]))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64"])
def test_powers_of_integers(dtype: str) -> None:
    x = np.arange(-20, 20).astype(dtype)
    for exponent in (0, 1, 2, 4, 7, 16, 31):
        found = _powers(x, exponent, vectorized=True)
        np.testing.assert_array_equal(found, np.power(x, np.array(exponent, dtype)))


def test_powers_of_16_bits() -> None:
    x = np.array([0.5, 2, -3, 0, 65504], "float16")
    for exponent in (4, -1, -2, 0.5):
        with np.errstate(all="ignore"):
            exact = np.power(x.astype("float32"), np.float32(exponent)).astype("float16")
        np.testing.assert_array_equal(_powers(x, exponent, vectorized=False), exact)
