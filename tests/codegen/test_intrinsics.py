"""Every intrinsic on every dtype that it accepts: compiled code against its definition."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import pytest

from minitvm import te
from minitvm.runtime.dtype import FLOAT16, FLOAT32, FLOAT64, INT32, DType
from minitvm.tir import expr, scalars
from minitvm.tir.scalars import INTRINSICS, Scalar
from tests.codegen.kernels import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Elementwise,
    array_of,
    largest,
    pairs,
    same,
    telling_values,
)

# Results that no rounding touches, or exactly one.
EXACT_UNARY = ("sqrt", "floor", "ceil", "trunc", "round", "nearbyint", "fabs", "isnan", "isinf",
               "isfinite")  # fmt: skip
EXACT_BINARY = ("fmod", "copysign", "nextafter")
# With fp="strict" the C library's functions: glibc's manual, "Errors in Math Functions", has none
# of these above 2 ULP on x86-64 and aarch64; `exp10` is `pow`, also within 2. Otherwise some are
# our own; of every 257th float32 argument they are 1.6 ULP off at most, `tanh` 2.4.
LIBM_UNARY = ("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
              "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
              "erf")  # fmt: skip
LIBM_BINARY = ("atan2", "hypot", "power")
# Of several roundings: the root (0.5 ULP, halved or doubled by the quotient) and the quotient
# (0.5); an exponential (2, of at most half of the sum), its sum (0.5) and the quotient (0.5),
# where an ULP of the sum may be two of the quotient.
COMPOSED = {"rsqrt": 2.0, "sigmoid": 4.0}
BOUNDS = {**COMPOSED, "tanh": 3.0}
INTEGER_UNARY = ("popcount", "clz", "bitwise_not", "fabs")
INTEGER_BINARY = ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right", "power")
ON_FLOATS_ONLY = {"ldexp", *EXACT_UNARY, *EXACT_BINARY, *LIBM_UNARY, *LIBM_BINARY, *COMPOSED}


Columns = tuple[Sequence[Scalar], ...]
Results = dict[str, list[Scalar]]


def test_none_is_left_out() -> None:
    assert {*ON_FLOATS_ONLY, *INTEGER_UNARY, *INTEGER_BINARY} == set(INTRINSICS)


def function(name: str) -> Callable[..., Any]:
    """What a user calls for an intrinsic."""
    made: Callable[..., Any] = getattr(te, {"fabs": "abs"}.get(name, name), None) or getattr(
        expr, name
    )
    return made


@lru_cache(maxsize=1)
def results(
    names: tuple[str, ...], dtypes: tuple[DType, ...], columns: Columns, fp: str = "strict"
) -> Results:
    """What a kernel of all of some functions makes of the columns of arguments: the same columns
    for the same results, as a NaN is no other NaN."""
    kernel = Elementwise([function(name) for name in names], dtypes, fp=fp)
    found = kernel(*[array_of(d, c) for d, c in zip(dtypes, columns, strict=True)])
    return dict(zip(names, found, strict=True))


def check_exact(name: str, dtype: DType, columns: Columns, found: list[Scalar]) -> None:
    for *args, value in zip(*columns, found, strict=True):
        expected = INTRINSICS[name](dtype, *args)
        assert same(value, expected), f"{name}{tuple(args)} of {dtype}: {value}, not {expected}"


@lru_cache
def where_rounding_tells(dtype: DType) -> Columns:
    values = telling_values(dtype)
    values += [v + d for v in (2.0**10, 2.0**22) for d in (0.5, 1.5, -0.5) if dtype.bits >= 32]
    values += [0.5 - 2.0**-25, 2.0**52 + 1.0, -0.49999999999999994] if dtype.bits == 64 else []
    return (tuple(values),)


@lru_cache
def pairs_that_tell(dtype: DType) -> Columns:
    return pairs(telling_values(dtype), telling_values(dtype))


@pytest.mark.parametrize("name", EXACT_UNARY)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exact_functions_of_one_float(name: str, dtype: DType) -> None:
    columns = where_rounding_tells(dtype)
    check_exact(name, dtype, columns, results(EXACT_UNARY, (dtype,), columns)[name])


@pytest.mark.parametrize("name", EXACT_BINARY)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exact_functions_of_two_floats(name: str, dtype: DType) -> None:
    columns = pairs_that_tell(dtype)
    check_exact(name, dtype, columns, results(EXACT_BINARY, (dtype, dtype), columns)[name])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ldexp(dtype: DType) -> None:
    exponents: list[Scalar] = [0, 1, -1, -2, 10, -24, -25, -126, -149, -150, 127, -1074, 2000]
    exponents += [INT32.min(), INT32.max()]
    x, n = pairs(telling_values(dtype), exponents)
    (found,) = Elementwise([te.ldexp], [dtype, INT32])(array_of(dtype, x), array_of(INT32, n))
    check_exact("ldexp", dtype, (x, n), found)


# -- Within bounds --------------------------------------------------------------------------------

_ORACLES: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: mpmath.power(2, x),
    "exp10": lambda x: mpmath.power(10, x),
    "log2": lambda x: mpmath.log(x, 2),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
}


@lru_cache(maxsize=1 << 15)
def exactly(name: str, args: tuple[float, ...], defined: float) -> Any:
    """What a function is, to 200 bits; `defined` where it has no value or isn't mathematical."""
    if not all(map(math.isfinite, args)) or (name == "power" and not args[0]):
        return mpmath.mpf(defined)
    oracle = _ORACLES.get(name) or getattr(mpmath, name)
    return oracle(*map(mpmath.mpf, args))


@lru_cache
def spacing(dtype: DType) -> tuple[int, int, Any]:
    """The digits of a type, its least exponent, and the first value beyond the greatest."""
    digits, least = {FLOAT16: (11, -14), FLOAT32: (24, -126), FLOAT64: (53, -1022)}.get(
        dtype, (8, -126)
    )
    top = math.frexp(largest(dtype))[1] - digits
    return digits, least, mpmath.mpf(largest(dtype)) + mpmath.ldexp(1, top)


def ulps(dtype: DType, found: float, exact: Any) -> float:
    """The distance, in units of the last place of `exact`; beyond the greatest finite value the
    spacing goes on, and infinity is the first value there."""
    digits, least, end = spacing(dtype)
    exact = max(min(exact, end), -end)
    value = mpmath.mpf(found) if math.isfinite(found) else mpmath.sign(found) * end
    exponent = max(int(mpmath.frexp(exact)[1]) - 1, least) if exact else least
    return float(mpmath.ldexp(abs(value - exact), digits - 1 - exponent))


def check_within(
    bound: float, name: str, dtype: DType, columns: Columns, found: list[Scalar]
) -> None:
    """Of 16-bit types the bound is that of float32, in which they compute, after rounding."""
    if dtype.bits == 16:
        bound = 0.5 + bound * 2.0**-13
    with mpmath.workprec(200):
        for *args, value in zip(*columns, found, strict=True):
            assert isinstance(value, float)
            defined = INTRINSICS[name](FLOAT64, *args)
            assert isinstance(defined, float)
            if not math.isfinite(defined):
                assert same(value, defined), f"{name}{tuple(args)} of {dtype}: {value}"
                continue
            exact = exactly(name, tuple(map(float, args)), defined)
            error = ulps(dtype, value, exact)
            assert error <= bound, f"{name}{tuple(args)} of {dtype}: {value}, {error:.2f} ULP off"


def ordinary(dtype: DType) -> list[Scalar]:
    """Numbers as programs have them."""
    made = [s * 1.37**e for e in range(-30, 31) for s in (1, -1)]
    return [scalars.round_float(dtype, v) for v in made]


def where_functions_turn(dtype: DType) -> list[Scalar]:
    """Arguments at which a result over- or underflows, becomes subnormal, or is computed in another
    way, with their neighbours."""
    made = [-87.0, -89.5, -100.0, 88.0, 709.0, -740.0]
    made += [88.722839, -87.336544, -103.27893, -103.97208, 709.782712893384, -708.3964185322641]
    made += [-744.4400719213812, -745.1332191019411, 127.99999, 128.0, -126.0, -149.0, -150.0]
    made += [1024.0, -1022.0, -1074.0, -1075.0, 38.53184, -44.853, 308.25471555991674, -323.306]
    made += [0.34657359, 0.70710678, 1.41421356, 0.78539816, 1.57079633, 3.14159265, 6.28318531]
    made += [0.9, 1.0, 4.0, 6.0, 9.01, 9.1, 19.06, 19.1, 2.0**17, 2.0**28, 1e10, 1e22, 1e300]
    near = [v * (1 + d) for v in made for d in (-(2.0**-22), 0.0, 2.0**-22)]
    return [scalars.round_float(dtype, s * v) for v in near for s in (1.0, -1.0)]


def random_values(dtype: DType) -> list[Scalar]:
    """Of all magnitudes, and about 0 and 1."""
    generator = random.Random(0)
    made = [generator.uniform(-4.0, 4.0) for _ in range(100)]
    made += [generator.uniform(0.5, 2.0) for _ in range(100)]
    bits = [generator.getrandbits(dtype.bits) for _ in range(200)]
    return [scalars.round_float(dtype, v) for v in made] + [
        scalars.from_bits(dtype, b) for b in bits
    ]


@lru_cache
def many_values(dtype: DType) -> Columns:
    values = [*telling_values(dtype), *ordinary(dtype), *where_functions_turn(dtype)]
    return (tuple(values + random_values(dtype)),)


@lru_cache
def many_pairs(dtype: DType) -> Columns:
    column = [*telling_values(dtype)[:24], *ordinary(dtype)[::12], *random_values(dtype)[::40]]
    return pairs(column, column)


@pytest.mark.parametrize("name", [*LIBM_UNARY, *COMPOSED])
@pytest.mark.parametrize("fp", ["strict", "fast"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_approximate_functions_of_one_float(name: str, fp: str, dtype: DType) -> None:
    columns = many_values(dtype)
    found = results((*LIBM_UNARY, *COMPOSED), (dtype,), columns, fp)[name]
    check_within(BOUNDS.get(name, 2.0), name, dtype, columns, found)


@pytest.mark.parametrize("name", LIBM_BINARY)
@pytest.mark.parametrize("fp", ["strict", "fast"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_approximate_functions_of_two_floats(name: str, fp: str, dtype: DType) -> None:
    columns = many_pairs(dtype)
    found = results(LIBM_BINARY, (dtype, dtype), columns, fp)[name]
    check_within(2.0, name, dtype, columns, found)


# -- Integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_functions_of_integers(dtype: DType) -> None:
    values = telling_values(dtype)
    unary = Elementwise([function(name) for name in INTEGER_UNARY], [dtype])
    for name, found in zip(INTEGER_UNARY, unary(array_of(dtype, values)), strict=True):
        check_exact(name, dtype, (values,), found)
    shifts = [s for s in (-1, 0, 1, dtype.bits - 1, dtype.bits, dtype.bits + 1, 100, dtype.max())
              if dtype.min() <= s <= dtype.max()]  # fmt: skip
    x, y = pairs(values, [*values, *shifts])
    binary = Elementwise([function(name) for name in INTEGER_BINARY], [dtype, dtype])
    results = binary(array_of(dtype, x), array_of(dtype, y))
    for name, found in zip(INTEGER_BINARY, results, strict=True):
        check_exact(name, dtype, (x, y), found)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_constant_shifts(dtype: DType) -> None:
    values = telling_values(dtype)
    constants = (0, 1, dtype.bits - 1)
    functions = [lambda x, s=s: x << te.const(s, dtype) for s in constants]
    functions += [lambda x, s=s: x >> te.const(s, dtype) for s in constants]
    results = Elementwise(functions, [dtype])(array_of(dtype, values))
    named = [(name, s) for name in ("shift_left", "shift_right") for s in constants]
    for (name, s), found in zip(named, results, strict=True):
        check_exact(name, dtype, (values, [s] * len(values)), found)


def test_bools() -> None:
    a, b = pairs([False, True], [False, True])
    names = ("bitwise_and", "bitwise_or", "bitwise_xor")
    bool_ = DTYPES[0]
    kernel = Elementwise([function(name) for name in names], [bool_, bool_])
    for name, found in zip(names, kernel(array_of(bool_, a), array_of(bool_, b)), strict=True):
        check_exact(name, bool_, (a, b), found)
    (found,) = Elementwise([expr.bitwise_not], [bool_])(array_of(bool_, a))
    assert found == [not each for each in a]


@pytest.mark.parametrize("name", sorted({"floor", "ceil", "trunc", "round", "nearbyint"}))
def test_rounding_leaves_integers_alone(name: str) -> None:
    def called(x: Any) -> Any:
        return expr.Call(INT32, name, (x,))

    values: list[Scalar] = [INT32.min(), -1, 0, 5]
    kernel = Elementwise([called, function(name)], [INT32])
    assert kernel(array_of(INT32, values)) == [values, values]


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_tests_of_integers(name: str) -> None:
    def called(x: Any) -> Any:
        return expr.Call(DTYPES[0], name, (x,))

    (found,) = Elementwise([called], [INT32])(array_of(INT32, [1, -2]))
    assert found == [name == "isfinite"] * 2


@pytest.mark.parametrize("name", sorted(ON_FLOATS_ONLY - {"fabs", "isnan", "isinf", "isfinite",
    "power", "floor", "ceil", "trunc", "round", "nearbyint"}))  # fmt: skip
def test_functions_of_floats_refuse_integers(name: str) -> None:
    x = te.var("x", "int32")
    takes_two = name in (*EXACT_BINARY, *LIBM_BINARY, "ldexp")
    with pytest.raises(ValueError, match=f"{name}: expected a floating-point argument, got int32"):
        function(name)(*[x] * (1 + takes_two))
