"""The meaning of scalars, against numpy, ml_dtypes and exact fractions."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitvm.runtime.dtype import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT64,
    DType,
)
from minitvm.tir import scalars
from minitvm.tir.intrinsics import INTRINSICS

NUMPY: dict[DType, Any] = {
    FLOAT16: np.float16,
    BFLOAT16: ml_dtypes.bfloat16,
    FLOAT32: np.float32,
    FLOAT64: np.float64,
}
NARROW = [FLOAT16, BFLOAT16, FLOAT32]
DIGITS = {FLOAT16: 11, BFLOAT16: 8, FLOAT32: 24, FLOAT64: 53}
SMALLEST_EXPONENT = {FLOAT16: -24, BFLOAT16: -133, FLOAT32: -149, FLOAT64: -1074}
LARGEST_EXPONENT = {FLOAT16: 15, BFLOAT16: 127, FLOAT32: 127, FLOAT64: 1023}
INTEGERS = [DType.of(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]

FLOATS = st.integers(0, 2**64 - 1).map(lambda bits: scalars.from_bits(FLOAT64, bits))


def bits(value: float) -> int:
    """What tells apart the floats that ``==`` doesn't; all NaN are one."""
    return scalars.to_bits(FLOAT64, math.nan if math.isnan(value) else value)


def exactly_rounded(dtype: DType, value: Fraction) -> float:
    """`value` rounded to nearest, ties to even, by the definition."""
    if value == 0:
        return 0.0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    spacing = Fraction(2) ** max(exponent - DIGITS[dtype] + 1, SMALLEST_EXPONENT[dtype])
    rounded = round(value / spacing) * spacing
    if abs(rounded) >= Fraction(2) ** (LARGEST_EXPONENT[dtype] + 1):
        return math.inf if value > 0 else -math.inf
    return float(rounded)


def all_ties(dtype: DType, seed: int) -> list[float]:
    """Floats halfway between two neighbours of a type, and those next to them, at all exponents."""
    random = np.random.default_rng(seed)
    sign = 1 << (dtype.bits - 1)
    beyond = scalars.to_bits(dtype, math.inf)
    patterns = range(beyond) if dtype.bits == 16 else random.integers(0, beyond, 4000).tolist()
    found = []
    for pattern in [*patterns, 0, 1, beyond - 1]:
        here = scalars.from_bits(dtype, pattern)
        above = scalars.from_bits(dtype, pattern + 1)
        greatest_spacing = math.ldexp(1.0, LARGEST_EXPONENT[dtype] - DIGITS[dtype] + 1)
        tie = here + (above - here if pattern + 1 < beyond else greatest_spacing) / 2
        found += [tie, math.nextafter(tie, 0.0), math.nextafter(tie, math.inf), -tie]
        found.append(scalars.from_bits(dtype, pattern | sign))
    return found


def as_numpy(dtype: DType, values: list[float]) -> list[float]:
    with np.errstate(all="ignore"):
        return [float(x) for x in np.array(values, np.float64).astype(NUMPY[dtype])]


# -- Rounding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_rounding_of_ties_against_numpy(dtype: DType) -> None:
    values = all_ties(dtype, 1)
    found = [scalars.round_float(dtype, v) for v in values]
    assert [*map(bits, found)] == [*map(bits, as_numpy(dtype, values))]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rounding_of_ties_against_fractions(dtype: DType) -> None:
    for value in all_ties(dtype, 2)[:: 1 if dtype.bits == 32 else 16]:
        expected = exactly_rounded(dtype, Fraction(value))
        assert scalars.round_float(dtype, value) == expected, value.hex()


@given(FLOATS)
def test_rounding_of_any_float(value: float) -> None:
    for dtype in (FLOAT16, FLOAT32):
        assert bits(scalars.round_float(dtype, value)) == bits(as_numpy(dtype, [value])[0])
    if math.isfinite(value):
        expected = exactly_rounded(BFLOAT16, Fraction(value))
        assert scalars.round_to_bfloat16(value) == expected
    assert math.copysign(1, scalars.round_to_bfloat16(value)) == math.copysign(1, value)


def test_bfloat16_against_ml_dtypes() -> None:
    """On float32 values: from float64, ml_dtypes rounds twice."""
    random = np.random.default_rng(3)
    values = random.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    with np.errstate(all="ignore"):
        given_values = np.concatenate([values, ties])
        expected = given_values.astype(ml_dtypes.bfloat16).astype(np.float64).tolist()
        found = [scalars.round_to_bfloat16(v) for v in given_values.astype(np.float64).tolist()]
    assert [*map(bits, found)] == [*map(bits, expected)]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_bit_patterns_of_16_bits(dtype: DType) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    expected = patterns.view(NUMPY[dtype])
    for pattern, value in zip(patterns.tolist(), expected.tolist(), strict=True):
        found = scalars.from_bits(dtype, pattern)
        assert bits(found) == bits(float(value))
        assert math.isnan(found) or scalars.to_bits(dtype, found) == pattern


# -- Casts ----------------------------------------------------------------------------------------


@given(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 64).map(lambda n: 2**n - 1))
def test_integer_to_float_is_rounded_once(value: int) -> None:
    for dtype in NUMPY:
        assert scalars.cast(dtype, value) == exactly_rounded(dtype, Fraction(value))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_integers_around_ties(dtype: DType) -> None:
    digits = DIGITS[dtype]
    for shift in range(2, 64 - digits):
        tie = ((1 << digits) + 1 << shift) + (1 << (shift - 1))
        for value in (tie - 1, tie, tie + 1, -tie):
            assert scalars.cast(dtype, value) == exactly_rounded(dtype, Fraction(value))


@given(FLOATS, st.sampled_from(INTEGERS))
def test_float_to_integer_saturates(value: float, dtype: DType) -> None:
    found = scalars.cast(dtype, value)
    if math.isnan(value):
        assert found == 0
    elif dtype.min() <= value <= dtype.max():
        assert found == math.trunc(value)
    else:
        assert found == (dtype.max() if value > 0 else dtype.min()) or math.trunc(value) == found


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_float_to_integer_at_the_limits(dtype: DType) -> None:
    low, high = dtype.min(), dtype.max()
    assert scalars.cast(dtype, math.inf) == scalars.cast(dtype, 2.0**64) == high
    assert scalars.cast(dtype, -math.inf) == scalars.cast(dtype, -(2.0**64)) == low
    assert scalars.cast(dtype, float(high + 1)) == high
    assert scalars.cast(dtype, -0.99) == 0
    assert scalars.cast(dtype, math.nan) == 0


@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from(INTEGERS))
def test_integer_to_integer_wraps(value: int, dtype: DType) -> None:
    found = scalars.cast(dtype, value)
    assert dtype.min() <= found <= dtype.max()
    assert (found - value) % 2**dtype.bits == 0


def test_bools() -> None:
    assert [scalars.cast(BOOL, x) for x in (0, 2, -0.0, 0.5, math.nan)] == [
        False, True, False, True, True,
    ]  # fmt: skip
    assert scalars.cast(FLOAT32, True) == 1.0
    assert scalars.wrap(BOOL, 2) is True


# -- Arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(data=st.data())
def test_integer_arithmetic_wraps_as_numpy_does(dtype: DType, data: st.DataObject) -> None:
    numbers = st.integers(dtype.min(), dtype.max()) | st.sampled_from([dtype.min(), dtype.max(), 0])
    a, b = data.draw(numbers), data.draw(numbers)
    x, y = (np.array([v], dtype.to_numpy()) for v in (a, b))
    for name, function in INTEGER_OPERATORS.items():
        with np.errstate(all="ignore"):
            expected = function(x, y)[0]
        assert scalars.binary(name, dtype, a, b) == int(expected), name


INTEGER_OPERATORS: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Mod": np.fmod,
    "Min": np.minimum,
    "Max": np.maximum,
}


@given(st.integers(-128, 127), st.integers(-128, 127))
def test_truncated_division(a: int, b: int) -> None:
    quotient, remainder = (scalars.binary(name, INT8, a, b) for name in ("Div", "Mod"))
    if b == 0:
        assert (quotient, remainder) == (0, 0)
    else:
        assert quotient == scalars.wrap(INT8, math.trunc(Fraction(a, b)))
        assert remainder == math.fmod(a, b)


def test_division_where_c_has_no_answer() -> None:
    for name in ("Div", "Mod", "FloorDiv", "FloorMod"):
        assert scalars.binary(name, INT32, 7, 0) == 0
    for name in ("Div", "FloorDiv"):
        assert scalars.binary(name, INT32, INT32.min(), -1) == INT32.min()
    for name in ("Mod", "FloorMod"):
        assert scalars.binary(name, INT32, INT32.min(), -1) == 0


SPECIAL = [0.0, -0.0, 1.0, -1.5, 3.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64], ids=str)
def test_float_arithmetic_is_numpys(dtype: DType) -> None:
    tiny, huge = sys.float_info.min, sys.float_info.max
    values = [scalars.round_float(dtype, v) for v in (*SPECIAL, tiny, -tiny, huge, 1e-7, 65504.0)]
    kind = NUMPY[dtype]
    operators: dict[str, Any] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
    }  # fmt: skip
    for name, function in operators.items():
        for a in values:
            for b in values:
                with np.errstate(all="ignore"):
                    expected = float(function(kind(a), kind(b)))
                assert bits(scalars.binary(name, dtype, a, b)) == bits(expected), (name, a, b)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(st.integers(), st.integers())
def test_narrow_arithmetic_is_rounded_once(dtype: DType, p: int, q: int) -> None:
    a, b = (scalars.from_bits(dtype, n % (1 << dtype.bits)) for n in (p, q))
    if not (math.isfinite(a) and math.isfinite(b)):
        return
    x, y = Fraction(a), Fraction(b)
    assert scalars.binary("Add", dtype, a, b) == exactly_rounded(dtype, x + y)
    assert scalars.binary("Mul", dtype, a, b) == exactly_rounded(dtype, x * y)
    if y:
        assert scalars.binary("Div", dtype, a, b) == exactly_rounded(dtype, x / y)


def test_minimum_and_maximum_keep_nan() -> None:
    for name in ("Min", "Max"):
        for pair in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.inf)):
            assert math.isnan(scalars.binary(name, FLOAT32, *pair))
    assert scalars.binary("Min", FLOAT32, -1.0, math.inf) == -1.0
    assert scalars.binary("Max", FLOAT32, -1.0, math.inf) == math.inf


def test_comparison() -> None:
    assert scalars.binary("LT", FLOAT32, -0.0, 0.0) is False
    for name in ("EQ", "LT", "LE", "GT", "GE"):
        assert scalars.binary(name, FLOAT32, math.nan, math.nan) is False
    assert scalars.binary("NE", FLOAT32, math.nan, math.nan) is True


# -- Intrinsics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_nextafter(dtype: DType) -> None:
    kind = NUMPY[dtype]
    top = scalars.from_bits(dtype, scalars.to_bits(dtype, math.inf) - 1)
    least = scalars.from_bits(dtype, 1)
    values = [*SPECIAL, top, -top, least, -least]
    for x in values:
        for y in values:
            with np.errstate(all="ignore"):  # of equals C gives y, and numpy's float16 x
                expected = y if x == y else float(np.nextafter(kind(x), kind(y)))
            found = INTRINSICS["nextafter"].meaning(dtype, x, y)
            assert bits(float(found)) == bits(expected), (x, y)


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_ldexp(dtype: DType) -> None:
    for x in (1.0, -1.5, scalars.from_bits(dtype, 1), scalars.from_bits(dtype, 3)):
        for n in (-2000, -1080, -151, -150, -149, -26, -25, -2, 0, 1, 10, 127, 2000, 2**31 - 1):
            exact = Fraction(x) * Fraction(2) ** min(n, 4000)
            expected = exactly_rounded(dtype, exact)
            assert INTRINSICS["ldexp"].meaning(dtype, x, n) == expected, (x, n)
    for x in (0.0, -0.0, math.inf, math.nan):
        assert bits(float(INTRINSICS["ldexp"].meaning(dtype, x, 3))) == bits(x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(data=st.data())
def test_bits_of_integers(dtype: DType, data: st.DataObject) -> None:
    numbers = st.integers(dtype.min(), dtype.max())
    a, b = data.draw(numbers), data.draw(numbers)
    mask = (1 << dtype.bits) - 1
    pattern = format(a & mask, f"0{dtype.bits}b")
    assert INTRINSICS["popcount"].meaning(dtype, a) == pattern.count("1")
    assert INTRINSICS["clz"].meaning(dtype, a) == len(pattern) - len(pattern.lstrip("0"))
    assert INTRINSICS["bitwise_and"].meaning(dtype, a, b) == a & b
    assert INTRINSICS["bitwise_or"].meaning(dtype, a, b) == a | b
    assert INTRINSICS["bitwise_xor"].meaning(dtype, a, b) == a ^ b
    assert int(INTRINSICS["bitwise_not"].meaning(dtype, a)) & mask == ~a & mask


def test_shifts() -> None:
    left, right = INTRINSICS["shift_left"].meaning, INTRINSICS["shift_right"].meaning
    assert [left(INT8, 3, n) for n in (-1, 0, 1, 6, 7, 8, 9)] == [0, 3, 6, -64, -128, 0, 0]
    assert [right(INT8, -100, n) for n in (-1, 0, 1, 7, 8)] == [-1, -100, -50, -1, -1]
    assert [right(UINT8, 200, n) for n in (-1, 0, 1, 7, 8)] == [0, 200, 100, 1, 0]
    assert left(INT64, 1, 63) == INT64.min()
    assert left(UINT64, 1, 63) == 2**63


def test_power_of_integers() -> None:
    power = INTRINSICS["power"].meaning
    assert [power(INT32, x, 31) for x in (2, -2)] == [INT32.min(), INT32.min()]
    assert power(INT32, 3, 31) == (3**31 + 2**31) % 2**32 - 2**31
    assert [power(INT32, x, -3) for x in (0, 1, -1, 2)] == [0, 1, -1, 0]
    assert [power(INT32, x, 0) for x in (0, 5)] == [1, 1]


ROUNDING: dict[str, Any] = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "nearbyint": np.rint, "fabs": np.abs,
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDING)
@given(value=FLOATS | st.floats(-10, 10) | st.sampled_from([0.5, -0.5, 2.5, -0.0, 2.0**52 + 1]))
def test_rounding_to_integers(name: str, value: float) -> None:
    found = INTRINSICS[name].meaning(FLOAT64, value)
    assert bits(float(found)) == bits(float(ROUNDING[name](np.float64(value))))


def test_round_half_away() -> None:
    values = [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999999999999994, 4503599627370497.5, -0.0, math.inf]
    expected = [1.0, -1.0, 2.0, 3.0, -3.0, 0.0, 4503599627370498.0, -0.0, math.inf]
    assert [INTRINSICS["round"].meaning(FLOAT64, v) for v in values] == expected


def test_power_of_floats_where_python_raises() -> None:
    power, inf = INTRINSICS["power"].meaning, math.inf
    assert [power(FLOAT64, -inf, 0.5), power(FLOAT64, -0.0, 0.5)] == [inf, 0.0]
    assert [power(FLOAT64, x, y) for x, y in ((0.0, -1.0), (-0.0, -1.0), (-0.0, -2.0))] == [
        inf, -inf, inf,
    ]  # fmt: skip
    assert [power(FLOAT64, x, y) for x, y in ((1e200, 2.0), (-1e200, 3.0), (-1e200, 2.0))] == [
        inf, -inf, inf,
    ]  # fmt: skip
    assert math.isnan(power(FLOAT64, -8.0, 1 / 3))
    assert math.copysign(1.0, power(FLOAT64, -0.0, 0.5)) == 1.0
