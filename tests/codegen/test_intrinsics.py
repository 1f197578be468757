"""Every intrinsic on every dtype that it accepts: compiled code against its definition."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath
import pytest

from minitvm import te, tir
from minitvm.codegen.elementary import ELEMENTARY
from minitvm.codegen.expression import expression_emitter
from minitvm.codegen.llvm_text import FunctionText, ModuleText
from minitvm.codegen.options import CodegenOptions
from minitvm.runtime.dtype import FLOAT16, FLOAT32, FLOAT64, INT32, DType
from minitvm.target import Target
from minitvm.tir import expr, scalars
from minitvm.tir.intrinsics import INTRINSICS, Domain, Intrinsic
from minitvm.tir.scalars import Scalar
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

_OF_FLOATS = [each for each in INTRINSICS.values() if each.problem(FLOAT32) is None]
_OF_INTEGERS = [
    each
    for each in INTRINSICS.values()
    if each.problem(INT32) is None and each.domain not in (Domain.ROUNDED, Domain.TESTED)
]


def _of(domain: Domain) -> list[str]:
    return [each.name for each in INTRINSICS.values() if each.domain is domain]


def _names(known: Iterable[Intrinsic], arity: int) -> tuple[str, ...]:
    return tuple(each.name for each in known if each.arity == arity and each.second is None)


# Results that no rounding touches, or exactly one.
_EXACT = [each for each in _OF_FLOATS if each.ulps <= 0.5]
EXACT_UNARY, EXACT_BINARY = _names(_EXACT, 1), _names(_EXACT, 2)
_APPROXIMATE = [each for each in _OF_FLOATS if each.ulps > 0.5]
APPROXIMATE_UNARY, APPROXIMATE_BINARY = _names(_APPROXIMATE, 1), _names(_APPROXIMATE, 2)
INTEGER_UNARY, INTEGER_BINARY = _names(_OF_INTEGERS, 1), _names(_OF_INTEGERS, 2)


Columns = tuple[Sequence[Scalar], ...]
Results = dict[str, list[Scalar]]


def test_none_is_left_out() -> None:
    tested = (*EXACT_UNARY, *EXACT_BINARY, *APPROXIMATE_UNARY, *APPROXIMATE_BINARY)
    assert {"ldexp", *tested, *INTEGER_UNARY, *INTEGER_BINARY} == set(INTRINSICS)


def test_the_tables_of_code_generation_have_the_entries_that_name_them() -> None:
    emitter = expression_emitter(
        FunctionText(ModuleText("m", "", ""), "f", "void", []), CodegenOptions(Target("llvm"))
    )
    assert set(emitter.math.own) == {each.name for each in _OF_FLOATS if each.composed}
    assert set(ELEMENTARY) == {"rsqrt", *(each.name for each in _OF_FLOATS if each.libm)}
    assert set(emitter.integers.own) == {each.name for each in _OF_INTEGERS}
    assert all(each.composed or each.llvm or each.libm for each in _OF_FLOATS)


def test_the_page_on_numerics_states_each_error() -> None:
    page = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    stated: dict[str, tuple[float, ...]] = {}
    for functions, *errors in re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)[1:]:
        ulps = [re.search(r"(\d+) ULP", error) for error in errors]
        bounds = tuple(
            float(found[1]) if found else {"exact": 0.0, "correctly rounded": 0.5}[error]
            for found, error in zip(ulps, errors, strict=True)
        )
        for name in re.findall(r"`(\w+)`", functions):
            assert stated.setdefault(name, bounds) is bounds, f"{name} is stated twice"
    assert stated == {
        each.language_name: (bound(each.name, "fast"), bound(each.name, "strict"))
        for each in _OF_FLOATS
    }


def function(name: str) -> Callable[..., Any]:
    """What a user calls for an intrinsic."""
    made: Callable[..., Any] = getattr(tir, INTRINSICS[name].language_name)
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
        expected = INTRINSICS[name].meaning(dtype, *args)
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
            defined = INTRINSICS[name].meaning(FLOAT64, *args)
            assert isinstance(defined, float)
            if not math.isfinite(defined):
                assert same(value, defined), f"{name}{tuple(args)} of {dtype}: {value}"
                continue
            exact = exactly(name, tuple(map(float, args)), defined)
            if value == scalars.round_float(dtype, float(exact)):
                continue  # within little more than half an ULP
            error = ulps(dtype, value, exact)
            assert error <= bound, f"{name}{tuple(args)} of {dtype}: {value}, {error:.2f} ULP off"


def bound(name: str, fp: str) -> float:
    known = INTRINSICS[name]
    strict = fp == "strict" and known.strict_ulps is not None
    return known.strict_ulps if strict else known.ulps  # type: ignore[return-value]


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
    values += random_values(dtype)
    return (tuple({scalars.to_bits(dtype, float(value)): value for value in values}.values()),)


@lru_cache
def many_pairs(dtype: DType) -> Columns:
    column = [*telling_values(dtype)[:24], *ordinary(dtype)[::12], *random_values(dtype)[::40]]
    return pairs(column, column)


@pytest.mark.parametrize("name", APPROXIMATE_UNARY)
@pytest.mark.parametrize("fp", ["strict", "fast"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_approximate_functions_of_one_float(name: str, fp: str, dtype: DType) -> None:
    columns = many_values(dtype)
    found = results(APPROXIMATE_UNARY, (dtype,), columns, fp)[name]
    check_within(bound(name, fp), name, dtype, columns, found)


@pytest.mark.parametrize("name", APPROXIMATE_BINARY)
@pytest.mark.parametrize("fp", ["strict", "fast"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_approximate_functions_of_two_floats(name: str, fp: str, dtype: DType) -> None:
    columns = many_pairs(dtype)
    found = results(APPROXIMATE_BINARY, (dtype, dtype), columns, fp)[name]
    check_within(bound(name, fp), name, dtype, columns, found)


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


@pytest.mark.parametrize("name", _of(Domain.ROUNDED))
def test_rounding_leaves_integers_alone(name: str) -> None:
    def called(x: Any) -> Any:
        return expr.Call(INT32, name, (x,))

    values: list[Scalar] = [INT32.min(), -1, 0, 5]
    kernel = Elementwise([called, function(name)], [INT32])
    assert kernel(array_of(INT32, values)) == [values, values]


@pytest.mark.parametrize("name", _of(Domain.TESTED))
def test_tests_of_integers(name: str) -> None:
    def called(x: Any) -> Any:
        return expr.Call(DTYPES[0], name, (x,))

    (found,) = Elementwise([called], [INT32])(array_of(INT32, [1, -2]))
    assert found == [name == "isfinite"] * 2


@pytest.mark.parametrize("name", _of(Domain.FLOATS))
def test_functions_of_floats_refuse_integers(name: str) -> None:
    x = te.var("x", "int32")
    with pytest.raises(ValueError, match=f"{name}: expected a floating-point argument, got int32"):
        function(name)(*[x] * INTRINSICS[name].arity)
