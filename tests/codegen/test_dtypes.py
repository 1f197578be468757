"""Arithmetic, comparison and conversion between all dtypes, exactly as `scalars` defines them, on
this machine and on CPUs that lack what it has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from minitvm import CompileError, Target, build, nd, te, tir
from minitvm.runtime.dtype import BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64, DType
from minitvm.runtime.host import host
from minitvm.tir import expr, scalars
from minitvm.tir.scalars import Scalar
from tests.codegen.kernels import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Elementwise,
    array_of,
    equal,
    pairs,
    same,
    telling_values,
    values_of,
)


def runs_here(target: str) -> bool:
    return host().triple.startswith("x86_64") and not Target(target).missing_on_host


# The host; no conversion of float16 and SSE2 alone; AVX2 with it.
TARGETS = ["llvm", *filter(runs_here, ("llvm -mcpu=x86-64", "llvm -mcpu=haswell"))]
# Each dtype on each: an ordinary run leaves out the last, which is there for floats, for others.
ON_TARGETS = [
    pytest.param(
        dtype,
        target,
        id=f"{dtype}-{target}",
        marks=[pytest.mark.wide] if dtype not in FLOATS and target in TARGETS[2:] else [],
    )
    for dtype in DTYPES
    for target in TARGETS
]


@pytest.mark.parametrize(("source", "target"), ON_TARGETS)
def test_casts(source: DType, target: str) -> None:
    values = telling_values(source)
    functions = [lambda x, d=d: x.astype(d) for d in DTYPES]
    kernel = Elementwise(functions, [source], target=target)
    for wanted, found in zip(DTYPES, kernel(array_of(source, values)), strict=True):
        for value, result in zip(values, found, strict=True):
            expected = scalars.cast(wanted, value)
            assert same(result, expected), f"{value} of {source} to {wanted}: {result}, {expected}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_every_16_bit_float_is_read_and_written(dtype: DType, target: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    array = bits.view(array_of(dtype, [0.0]).dtype)
    kernel = Elementwise([lambda x: x.astype("float32"), lambda x: x + 0.0], [dtype], target=target)
    wide, back = kernel(array)
    values = values_of(dtype, array)
    assert all(map(same, wide, values))
    # x + 0.0 goes through a register and a rounding, and changes -0.0 only.
    assert all(map(equal, back, values))


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("wanted", FLOATS[:2], ids=str)
def test_float32_to_16_bits_widely(wanted: DType, target: str) -> None:
    """Every upper half of a float32 with the lower halves at which rounding turns."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    kernel = Elementwise([lambda x: x.astype(wanted)], [FLOAT32], target=target)
    for low in (0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        array = (high | low).astype(np.uint32).view(np.float32)
        (found,) = kernel(array)
        for value, result in zip(array.tolist(), found, strict=True):
            assert same(result, scalars.cast(wanted, value)), value


# -- Operators ------------------------------------------------------------------------------------

COMPARE = {"EQ": expr.equal, "NE": expr.not_equal, "LT": expr.less, "LE": expr.less_equal,
           "GT": expr.greater, "GE": expr.greater_equal}  # fmt: skip
RING: dict[str, Any] = {"Add": expr.add, "Sub": expr.subtract, "Mul": expr.multiply}
EXTREMA: dict[str, Any] = {"Min": expr.minimum, "Max": expr.maximum}
DIVISION: dict[str, Any] = {
    "Div": expr.truncdiv, "Mod": expr.truncmod, "FloorDiv": expr.floordiv,
    "FloorMod": expr.floormod,
}  # fmt: skip


def operators(dtype: DType) -> dict[str, Callable[[Any, Any], Any]]:
    """The operators on two values of a type, by their nodes."""
    if dtype.is_bool:
        return {**COMPARE, **EXTREMA, "And": te.all, "Or": te.any}
    division = {"Div": expr.divide} if dtype.is_float else DIVISION
    return {**COMPARE, **RING, **EXTREMA, **division}


def check_operators(a: DType, b: DType, named: dict[str, Any], target: str) -> None:
    common = expr.promoted(a, b)
    x, y = pairs(telling_values(a), telling_values(b))
    kernel = Elementwise(list(named.values()), [a, b], target=target)
    for name, found in zip(named, kernel(array_of(a, x), array_of(b, y)), strict=True):
        agree = equal if name in EXTREMA else same
        for p, q, result in zip(x, y, found, strict=True):
            p, q = scalars.cast(common, p), scalars.cast(common, q)
            expected = scalars.binary(name, common, p, q)
            assert agree(result, expected), f"{name}({p}, {q}) of {common}: {result}, {expected}"


@pytest.mark.parametrize(("dtype", "target"), ON_TARGETS)
def test_operators_on_one_dtype(dtype: DType, target: str) -> None:
    check_operators(dtype, dtype, operators(dtype), target)


def common_dtypes() -> list[tuple[DType, DType]]:
    two_kinds = {FLOATS[0], FLOATS[1]}
    return [(a, b) for a in DTYPES for b in DTYPES if a != b and {a, b} != two_kinds]


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_operators_on_two_dtypes(first: DType) -> None:
    """An addition and a comparison of each pair: the operands are converted first."""
    seconds = [b for a, b in common_dtypes() if a == first]
    functions = [lambda x, *ys, i=i: x + ys[i] for i in range(len(seconds))]
    functions += [lambda x, *ys, i=i: x < ys[i] for i in range(len(seconds))]
    x, y = pairs(telling_values(first), range(40))
    columns = [[v[int(i) % len(v)] for i in y] for v in map(telling_values, seconds)]
    kernel = Elementwise(functions, [first, *seconds])
    arrays = [array_of(b, column) for b, column in zip(seconds, columns, strict=True)]
    results = kernel(array_of(first, x), *arrays)
    for i, (second, column) in enumerate(zip(seconds, columns, strict=True)):
        common = expr.promoted(first, second)
        for name, found in (("Add", results[i]), ("LT", results[len(seconds) + i])):
            for p, q, result in zip(x, column, found, strict=True):
                p, q = scalars.cast(common, p), scalars.cast(common, q)
                expected = scalars.binary(name, common, p, q)
                assert same(result, expected), f"{name}({p}, {q}), {first} and {second}: {result}"


@pytest.mark.wide
@pytest.mark.parametrize(("a", "b"), common_dtypes(), ids=lambda d: str(d))
def test_all_operators_on_two_dtypes(a: DType, b: DType) -> None:
    check_operators(a, b, operators(expr.promoted(a, b)), "llvm")


def test_what_has_no_common_dtype() -> None:
    x, y = te.var("x", "float16"), te.var("y", "bfloat16")
    with pytest.raises(CompileError, match="float16 and bfloat16 have no common type: cast one"):
        x + y
    with pytest.raises(CompileError, match="expected numbers, got two bools: cast them"):
        te.var("p", "bool") + te.var("q", "bool")


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_by_constants(dtype: DType) -> None:
    divisors = [d for d in (0, 1, 2, 3, 7, -1, -2, dtype.min(), dtype.max())
                if dtype.min() <= d <= dtype.max()]  # fmt: skip
    values = telling_values(dtype)
    named = [(name, d) for name in DIVISION for d in divisors]
    functions = [lambda x, n=n, d=d: DIVISION[n](x, te.const(d, dtype)) for n, d in named]
    results = Elementwise(functions, [dtype])(array_of(dtype, values))
    for (name, d), found in zip(named, results, strict=True):
        expected = [scalars.binary(name, dtype, v, d) for v in values]
        assert found == expected, f"{name} by {d} of {dtype}"


def test_logic_and_choice() -> None:
    p, q = pairs([False, True], [False, True])
    functions: list[Callable[..., Any]] = [
        lambda a, b: te.all(a, b),
        lambda a, b: te.any(a, b),
        lambda a, b: tir.Not(a),
        lambda a, b: tir.Select(a, b, tir.Not(b)),
        lambda a, b: te.if_then_else(a, b, tir.Not(b)),
        lambda a, b: te.if_then_else(te.likely(a), 1, 2),
    ]
    found = Elementwise(functions, [BOOL, BOOL])(array_of(BOOL, p), array_of(BOOL, q))
    assert found == [
        [a and b for a, b in zip(p, q, strict=True)],
        [a or b for a, b in zip(p, q, strict=True)],
        [not a for a in p],
        [a == b for a, b in zip(p, q, strict=True)],
        [a == b for a, b in zip(p, q, strict=True)],
        [1 if a else 2 for a in p],
    ]


@pytest.mark.parametrize("byte", [0, 1, 2, 128, 255])
def test_any_byte_that_is_not_zero_is_true(byte: int) -> None:
    array = np.array([byte], np.uint8).view(np.bool_)
    functions = [lambda x: x.astype("int32"), tir.Not, lambda x: te.all(x, x)]
    found = Elementwise(functions, [BOOL])(array)
    assert found == [[int(byte != 0)], [byte == 0], [byte != 0]]


def _within(dtype: DType, limits: tuple[float, float], x: Any) -> Any:
    low, high = (te.const(min(max(each, -6e4), 6e4), dtype) for each in limits)
    return te.max(te.min(x, high), low)


@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_limited_floats_as_integers(dtype: DType, target: str) -> None:
    """Within the limits, beyond those of the integers, and of rounded values."""
    low, high = (float(each) for each in (DType.of(target).min(), DType.of(target).max()))
    functions: list[Callable[[Any], Any]] = []
    for limits in [(low, high), (low + 0.5, high - 0.5), (2 * low - 1, 2 * high), (-3.5, 4.5)]:
        f = partial(_within, dtype, limits)
        functions += [
            lambda x, f=f: f(x).astype(target),  # type: ignore[misc]  # a default
            lambda x, f=f: te.nearbyint(f(x)).astype(target),  # type: ignore[misc]  # a default
            lambda x, f=f: f(te.floor(x)).astype(target),  # type: ignore[misc]  # a default
        ]
    kernel = Elementwise(functions, [dtype])
    array = array_of(dtype, telling_values(dtype))
    assert kernel(array) == kernel.interpreted(array)


REINTERPRETED = [(FLOAT32, INT32), (FLOAT16, DType.of("uint16")), (FLOATS[1], DType.of("int16")),
                 (FLOATS[3], INT64), (FLOATS[0], FLOATS[1])]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), REINTERPRETED, ids=str)
def test_reinterpret(a: DType, b: DType) -> None:
    values = [v for v in telling_values(a) if v == v]  # a NaN's bits may change on the way
    kernel = Elementwise([lambda x: te.reinterpret(b, x)], [a])
    array = array_of(a, values)
    assert kernel(array) == kernel.interpreted(array)
    back = Elementwise([lambda x: te.reinterpret(a, te.reinterpret(b, x))], [a])
    assert all(map(same, back(array)[0], values))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalar_parameters(dtype: DType) -> None:
    x, n = te.var("x", dtype), te.var("n")
    A = te.placeholder((n,), dtype=dtype, name="A")
    B = te.compute((n,), lambda i: expr.maximum(A[i], x), name="B")
    f = build([B], [x, A, B], fp="strict")
    for value in telling_values(dtype):
        if isinstance(value, int) and value >= 1 << 63:
            continue  # beyond what the packed ABI holds
        a: list[Scalar] = [scalars.cast(dtype, 0)]
        b = array_of(dtype, a)
        f(value, array_of(dtype, a), b)
        expected = scalars.binary("Max", dtype, a[0], value)
        assert equal(values_of(dtype, b)[0], expected)


def test_bfloat16_of_our_own_arrays() -> None:
    n = te.var("n")
    A = te.placeholder((n,), dtype="bfloat16", name="A")
    B = te.compute((n,), lambda i: A[i] * te.const(3, "bfloat16"), name="B")
    a = nd.array([1.0, 1.0078125, -2.5], dtype="bfloat16")
    b = nd.empty((3,), "bfloat16")
    build([B], [A, B])(a, b)
    assert b.numpy().tolist() == [3.0, 3.03125, -7.5]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants(dtype: DType) -> None:
    """As operands in the code, not from memory."""
    values = telling_values(dtype)
    functions = [lambda x, v=v: te.const(v, dtype) + x.astype(dtype) for v in values]
    if dtype.is_bool:
        functions = [lambda x, v=v: te.any(te.const(v, dtype), x > 0) for v in values]
    found = Elementwise(functions, [INT8])(array_of(INT8, [0]))
    zero = scalars.cast(dtype, 0)
    for value, (result,) in zip(values, found, strict=True):
        expected = value if dtype.is_bool else scalars.binary("Add", dtype, value, zero)
        assert same(result, expected), f"{value} of {dtype}: {result}"


LARGE: dict[str, Callable[[Any, Callable[[int], Any]], Any]] = {
    "shift": lambda x, c: (x >> c(63)) % c(7),
    "division": lambda x, c: (x // c(2**63 - 1)) % c(7),
    "remainder": lambda x, c: (x % c(2**63 - 1)) // c(7),
    "mask": lambda x, c: (x & c(2**63 - 1)) % c(7),
    "masked quotient": lambda x, c: (x & c(2**63 - 1)) // c(7),
    "quotients of quotients": lambda x, c: x // c(2**40) // c(2**40),
    "shifted quotient": lambda x, c: (x >> c(40)) // c(2**40),
    "product": lambda x, c: (x % c(2)) * c(2**62) // c(3),
}
LARGER: dict[str, Callable[[Any, Callable[[int], Any]], Any]] = {  # than int64 holds
    "division": lambda x, c: (x // c(2**63)) % c(7),
    "remainder": lambda x, c: (x % c(2**63)) // c(3),
    "remainder of a remainder": lambda x, c: (x % c(2**64 - 1)) % c(2**63),
    "mask": lambda x, c: (x & c(2**64 - 1)) % c(7),
    "product": lambda x, c: (x % c(2)) * c(2**63) // c(3),
    "sum": lambda x, c: te.max(x, c(2**63)) // c(3) + x % c(3),
}


@pytest.mark.parametrize(
    ("dtype", "form"),
    [*product(["int64", "uint64"], LARGE.values()), *product(["uint64"], LARGER.values())],
    ids=[f"{t}-{x}" for t in ("int64", "uint64") for x in LARGE] + [f"uint64-{x}+" for x in LARGER],
)
def test_divisors_as_large_as_the_type(dtype: str, form: Callable[..., Any]) -> None:
    limits = np.iinfo(dtype)
    x = np.array([0, 5, 2**62 + 77, 2**63 - 1, limits.min, limits.max], dtype)
    X = te.placeholder((6,), dtype, name="X")
    Y = te.compute((6,), lambda i: form(X[i], lambda value: te.const(value, dtype)), name="Y")
    y = np.empty(6, dtype)
    build([Y], [X, Y])(x, y)
    if "max" in str(Y.op.body[0]):
        expected = np.maximum(x, np.uint64(2**63)) // np.uint64(3) + x % np.uint64(3)
    else:
        with np.errstate(over="ignore"):
            expected = form(x, lambda value: np.array(value, dtype))
    assert y.tolist() == expected.tolist()


@pytest.mark.parametrize(("narrow", "wide"), [("uint32", "uint64"), ("int16", "int32")])
@pytest.mark.parametrize("factor", [None, 0xD2511F53])
def test_both_halves_of_a_widened_product(narrow: str, wide: str, factor: int | None) -> None:
    """The low half is a product of narrow lanes: none are picked from the wide product."""
    n, bits = 45, np.dtype(narrow).itemsize * 8
    shift = te.const(bits, wide)
    known = None if factor is None else int(np.array(factor, "uint64").astype(narrow))
    X, Y = (te.placeholder((n,), narrow, name=name) for name in "XY")

    def product_at(i: Any) -> Any:
        other = Y[i] if known is None else te.const(known, narrow)
        return X[i].astype(wide) * other.astype(wide)

    high = te.compute((n,), lambda i: (product_at(i) >> shift).astype(narrow), name="high")
    low = te.compute((n,), lambda i: product_at(i).astype(narrow), name="low")
    both = te.compute((n,), lambda i: high[i] ^ low[i], name="both")
    limits = np.iinfo(narrow)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(limits.min, limits.max, n, narrow, endpoint=True) for _ in "xy")
    x[:2] = limits.min, limits.max
    found, target = np.empty(n, narrow), "llvm -mcpu=haswell"
    build([both], [X, Y, both])(x, y, found)
    exact = x.astype(wide) * (y.astype(wide) if known is None else np.array(known, wide))
    expected = (exact >> np.array(bits, wide)).astype(narrow) ^ exact.astype(narrow)
    assert found.tolist() == expected.tolist()
    text = build([both], [X, Y, both], target, name="f").get_source("ll")
    lanes = f"<{256 // bits} x i{bits}>"
    assert f"mul {lanes}" in text
    assert text.count(f"to {lanes}") == text.count(f"mul {lanes}")  # of the high half alone
