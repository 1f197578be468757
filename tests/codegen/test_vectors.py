"""Vectors of any width: predicated accesses and folds, on CPUs that have them and that don't."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

from minitvm import CompileError, build, te
from minitvm.runtime.dtype import FLOAT16, FLOAT32, INT8, DType
from minitvm.tir import expr as e
from minitvm.tir import scalars
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import BufferLoad, Call, PrimExpr, Ramp, Var, const
from minitvm.tir.interpreter import interpret
from minitvm.tir.intrinsics import INTRINSICS, VECTOR_FOLDS, Domain, Intrinsic
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt
from minitvm.transform import PassContext
from tests.codegen.kernels import (
    DTYPES,
    FLOATS,
    array_of,
    equal,
    numpy_dtype,
    same,
    telling_values,
    values_of,
)
from tests.codegen.test_dtypes import ON_TARGETS, TARGETS, operators
from tests.tir.programs import function

LANES = (2, 3, 5, 8, 16, 17, 32, 33)
SIZE = 170

# Indices of some lanes: neighbours, backwards, apart, any; and all at one place.
INDICES: dict[str, Callable[[int], PrimExpr]] = {
    "unit": lambda lanes: Ramp(const(1), const(1), lanes),
    "reversed": lambda lanes: Ramp(const(lanes + 2), const(-1), lanes),
    "two apart": lambda lanes: Ramp(const(1), const(2), lanes),
    "three apart": lambda lanes: Ramp(const(2), const(3), lanes),
    "four apart": lambda lanes: Ramp(const(0), const(4), lanes),
    "five apart backwards": lambda lanes: Ramp(const(5 * lanes - 5), const(-5), lanes),
    "any": lambda lanes: e.FloorMod(
        e.Mul(Ramp(const(0), const(7), lanes), Ramp(const(0), const(1), lanes)),
        e.Broadcast(const(SIZE), lanes),
    ),
    "one place": lambda lanes: e.Broadcast(const(3), lanes),
}


def copies(dtype: DType, lanes: int, predicated: bool) -> PrimFunc:
    """Row r of Y is written through the r-th index, from X through each: B says where."""
    x = decl_buffer((SIZE,), dtype, "X")
    y = decl_buffer((len(INDICES) * 2, SIZE), dtype, "Y")
    b = decl_buffer((SIZE,), "bool", "B")
    mask = BufferLoad(b, (INDICES["unit"](lanes),)) if predicated else None
    stores: list[Stmt] = []
    for row, make in enumerate(INDICES.values()):
        index, unit = make(lanes), INDICES["unit"](lanes)
        stores.append(BufferStore(y, BufferLoad(x, (unit,)), (const(2 * row), index), mask))
        read = BufferLoad(x, (index,), mask)
        stores.append(BufferStore(y, read, (const(2 * row + 1), unit)))
    return function("f", x, y, b, body=s.SeqStmt(tuple(stores)))


@pytest.mark.parametrize(("dtype", "target"), ON_TARGETS)
def test_accesses(dtype: DType, target: str) -> None:
    """All widths of float32, some of int8; of other types 3 and 16: in turn on each machine."""
    place = TARGETS.index(target)
    widths = {FLOAT32: LANES[place :: len(TARGETS)], INT8: (5, 16, 33)[place % 2 :: 2]}
    turn = (place + DTYPES.index(dtype)) % 2
    check_accesses(dtype, target, widths.get(dtype, (3, 16)[turn : turn + 1]))


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accesses_of_all_widths(dtype: DType, target: str) -> None:
    check_accesses(dtype, target, LANES)


def check_accesses(dtype: DType, target: str, widths: tuple[int, ...]) -> None:
    values = (telling_values(dtype) * SIZE)[:SIZE]
    x = array_of(dtype, values)
    where = np.random.default_rng(0).random(SIZE) < 0.5
    for lanes in widths:
        for predicated in (True, False):
            made = copies(dtype, lanes, predicated)
            kernel = build(made, target=target)
            masks = (where, np.zeros(SIZE, bool), np.ones(SIZE, bool))
            for mask in masks if predicated else masks[:1]:  # which nothing reads
                found = np.zeros((len(INDICES) * 2, SIZE), numpy_dtype(dtype))
                expected = found.copy()
                kernel(x, found, mask)
                interpret(made, x, expected, mask)
                pairs = zip(values_of(dtype, found), values_of(dtype, expected), strict=True)
                assert all(same(p, q) for p, q in pairs), f"{dtype}x{lanes}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [FLOAT32, INT8, FLOAT16], ids=str)
def test_the_first_lanes(dtype: DType, target: str) -> None:
    """Of any width, from none to all and beyond."""
    count, x, y = Var("count"), decl_buffer((34,), dtype, "X"), decl_buffer((34,), dtype, "Y")
    values = (telling_values(dtype) * 34)[:34]
    for lanes in LANES:
        where = e.LT(Ramp(const(0), const(1), lanes), e.Broadcast(count, lanes))
        index = INDICES["unit"](lanes)
        store = BufferStore(y, BufferLoad(x, (index,), where), (index,), where)
        kernel = build(function("f", x, y, count, body=store), target=target)
        for number in range(-2, lanes + 2):
            found = np.zeros(34, numpy_dtype(dtype))
            kernel(array_of(dtype, values), found, number)
            expected: list[Any] = [0] * 34
            last = min(max(number, 0), lanes) + 1
            expected[1:last] = values_of(dtype, array_of(dtype, values))[1:last]
            pairs = zip(values_of(dtype, found), expected, strict=True)
            assert all(same(p, q) for p, q in pairs), f"{dtype}x{lanes}: {number}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_element(dtype: DType) -> None:
    """A scalar predicate: nothing is touched where it does not hold."""
    x, y = decl_buffer((Var("n"),), dtype, "X"), decl_buffer((2,), dtype, "Y")
    b = decl_buffer((2,), "bool", "B")
    first = (const(0),)
    both = [BufferStore(y, BufferLoad(x, first, b[k]), (const(k),), b[k]) for k in range(2)]
    nothing = BufferStore(y, BufferLoad(x, first, b[0]), (const(1),), e.Not(b[1]))
    body = s.SeqStmt((*both, nothing))
    kernel = build(function("f", x, y, b, body=body))
    one = scalars.cast(dtype, 1)
    y_found = array_of(dtype, [one, one])
    kernel(array_of(dtype, []), y_found, np.array([False, False]))
    assert values_of(dtype, y_found) == [one, scalars.cast(dtype, 0)]
    kernel(array_of(dtype, [one]), y_found, np.array([True, True]))
    assert values_of(dtype, y_found) == [one, one]


@pytest.mark.parametrize("disabled", [[], ["simplify"]], ids=str)
def test_constant_predicates_leave_no_trace(disabled: list[str]) -> None:
    x, y = decl_buffer((64,), name="X"), decl_buffer((64,), name="Y")
    index = Ramp(const(0), const(1), 16)
    always, never = (e.Broadcast(const(value), 16) for value in (True, False))
    body = s.SeqStmt(
        (
            BufferStore(y, BufferLoad(x, (index,), always), (index,), always),
            BufferStore(y, BufferLoad(x, (index,), never), (Ramp(const(16), const(1), 16),)),
            BufferStore(y, BufferLoad(x, (index,)), (Ramp(const(32), const(1), 16),), never),
        )
    )
    with PassContext(disabled_pass=disabled):
        kernel = build(function("f", x, y, body=body))
    assert "masked" not in kernel.get_source("ll")
    found = np.ones(64, np.float32)
    kernel(np.arange(64, dtype=np.float32), found)
    assert found.tolist() == [*range(16), *[0] * 16, *[1] * 32]


# -- Folds ----------------------------------------------------------------------------------------


def folds(dtype: DType) -> list[str]:
    if dtype.is_bool:
        return [name for name in VECTOR_FOLDS if name[-3:] not in ("add", "mul")]
    bitwise = ("and", "_or", "xor")
    return [n for n in VECTOR_FOLDS if not dtype.is_float or n[-3:] not in bitwise]


@pytest.mark.parametrize(("dtype", "target"), ON_TARGETS)
def test_folds(dtype: DType, target: str) -> None:
    """With ``fp="strict"`` in the order of the lanes."""
    names = folds(dtype)
    x, y = decl_buffer((SIZE,), dtype, "X"), decl_buffer((len(names), len(LANES)), dtype, "Y")
    body: list[Stmt] = []
    for row, name in enumerate(names):
        for column, lanes in enumerate(LANES):
            vector = BufferLoad(x, (INDICES["unit"](lanes),))
            total = Call(dtype, name, (x[0], vector))
            body.append(BufferStore(y, total, (const(row), const(column))))
    made = function("f", x, y, body=s.SeqStmt(tuple(body)))
    kernel = build(made, target=target, fp="strict")
    telling = telling_values(dtype)
    finite = [v for v in telling if not isinstance(v, float) or math.isfinite(v)]
    for source in (telling, finite, finite[:4]):
        picked = np.random.default_rng(len(source)).integers(0, len(source), SIZE)
        array = array_of(dtype, [source[n] for n in picked])
        found = np.zeros((len(names), len(LANES)), numpy_dtype(dtype))
        expected = found.copy()
        kernel(array, found)
        interpret(made, array, expected)
        pairs = zip(values_of(dtype, found), values_of(dtype, expected), strict=True)
        assert all(equal(p, q) for p, q in pairs)


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_fast_sums_may_be_reordered(dtype: DType) -> None:
    x, y = decl_buffer((SIZE,), dtype, "X"), decl_buffer((1,), dtype, "Y")
    total = Call(dtype, "vector_reduce_add", (y[0], BufferLoad(x, (INDICES["unit"](32),))))
    made = function("f", x, y, body=BufferStore(y, total, (const(0),)))
    array = np.random.default_rng(0).random(SIZE).astype(dtype.to_numpy())
    found = np.ones(1, dtype.to_numpy())
    build(made)(array, found)
    np.testing.assert_allclose(found[0], 1 + array[1:33].sum(), rtol=1e-5)
    assert "reassoc" in build(made).get_source("ll")
    assert "reassoc" not in build(made, fp="strict").get_source("ll")


def test_a_lane() -> None:
    x, y, n = decl_buffer((8,), "float16", "X"), decl_buffer((1,), "float16", "Y"), Var("n")
    lane = Call(FLOAT16, "vector_extract", (BufferLoad(x, (Ramp(const(0), const(1), 8),)), n))
    body = BufferStore(y, lane, (const(0),))
    kernel = build(function("f", n, x, y, body=body))
    found = np.zeros(1, np.float16)
    for k in range(8):
        kernel(k, np.arange(8).astype(np.float16), found)
        assert found[0] == k


# -- Bounds ---------------------------------------------------------------------------------------

X, Y = decl_buffer((8,), name="X"), decl_buffer((16,), name="Y")
MASKS = decl_buffer((16,), "bool", "B")
ALL = Ramp(const(0), const(1), 16)


def test_lanes_that_are_off_cannot_leave_the_tensor() -> None:
    mask = e.LT(ALL, e.Broadcast(const(8), 16))
    kernel = build(function("f", X, Y, body=BufferStore(Y, BufferLoad(X, (ALL,), mask), (ALL,))))
    found = np.ones(16, np.float32)
    kernel(np.arange(8, dtype=np.float32), found)
    assert found.tolist() == [*range(8), *[0] * 8]


def test_lanes_that_are_off_are_zero_beside_a_single_element() -> None:
    mask = e.LT(ALL, e.Broadcast(const(1), 16))
    place = e.FloorDiv(ALL, e.Broadcast(const(3), 16))
    kernel = build(function("f", X, Y, body=BufferStore(Y, BufferLoad(X, (place,), mask), (ALL,))))
    found = np.ones(16, np.float32)
    kernel(np.arange(5, 13, dtype=np.float32), found)
    assert found.tolist() == [5, *[0] * 15]


def test_a_lane_in_the_middle_may_leave_it() -> None:
    middle = e.EQ(ALL, e.Broadcast(const(9), 16))
    made = function("f", X, Y, body=BufferStore(Y, BufferLoad(X, (ALL,), middle), (ALL,)))
    with pytest.raises(CompileError, match=r"X\[.*\]: index 0 must stay in \[0, 8\), got 9"):
        build(made)


def test_lanes_by_data_are_checked_where_they_are_on() -> None:
    mask = BufferLoad(MASKS, (ALL,))
    made = function(
        "f", X, Y, MASKS, body=BufferStore(Y, BufferLoad(X, (ALL,), mask), (ALL,), mask)
    )
    kernel: Any = build(made)
    x, y, masks = np.arange(8, dtype=np.float32), np.ones(16, np.float32), np.zeros(16, bool)
    masks[:7] = True
    kernel(x, y, masks)
    assert y.tolist() == [*range(7), *[1] * 9]
    masks[12] = True
    with pytest.raises(IndexError, match=r"must stay in \[0, 8\), got 12"):
        kernel(x, y, masks)


@pytest.mark.parametrize("place", [-3, 10, 52])
def test_narrow_neighbours_under_a_mask_are_read_at_once(place: int) -> None:
    """Without registers for masks, each lane would take a branch. At the ends of the tensor, lanes
    that are off lie outside."""
    narrow, found = decl_buffer((64,), "int8", "N"), decl_buffer((16,), "int8", "R")
    read = BufferLoad(narrow, (Ramp(const(place), const(1), 16),), BufferLoad(MASKS, (ALL,)))
    made = function("f", narrow, MASKS, found, body=BufferStore(found, read, (ALL,)))
    kernel: Any = build(made, target="llvm -mcpu=haswell")
    assert "masked.load.v16i8" not in kernel.get_source("ll")
    numbers, masks = np.arange(1, 65, dtype=np.int8), np.zeros(16, bool)
    inside = range(max(0, -place), min(16, 64 - place))
    masks[inside[::2]] = True
    got = np.full(16, 77, np.int8)
    kernel(numbers, masks, got)
    assert got.tolist() == [numbers[place + i] if masks[i] else 0 for i in range(16)]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "float64"])
@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_lanes_from_a_few_rows_are_picked_from_vectors(rows: int, dtype: str) -> None:
    """The rows lie far apart, and the last one ends where the tensor ends."""
    planes = te.placeholder((rows, 40, 6), dtype, name="P")
    mixed = te.compute((40, 16), lambda i, j: planes[j % rows, i, j // rows % 6], name="M")
    s = te.create_schedule(mixed.op)
    s[mixed].vectorize(mixed.op.axis[1])
    kernel: Any = build(s, [planes, mixed])
    values = (
        np.random.default_rng(rows)
        .integers(-9, 9, (rows, 40, 6))
        .astype(numpy_dtype(DType.of(dtype)))
    )
    found = np.zeros((40, 16), values.dtype)
    kernel(values, found)
    lanes = np.arange(16)
    np.testing.assert_array_equal(found, values[lanes % rows, :, lanes // rows % 6].T)
    gathers = kernel.get_source("ll").count("masked.gather")
    assert bool(gathers) == (rows > 4)


# -- Operators and functions ----------------------------------------------------------------------


def every_operation(dtype: DType) -> list[Callable[[PrimExpr, PrimExpr], PrimExpr]]:
    """Casts to every dtype, operators and intrinsics on two values of a type."""
    taken = [known for known in INTRINSICS.values() if _takes(known, dtype)]
    return [
        *[partial(_cast, each) for each in DTYPES],
        *operators(dtype).values(),
        *[partial(_called, known) for known in taken],
    ]


def _cast(dtype: DType, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    return e.Cast(dtype, x)


def _takes(known: Intrinsic, dtype: DType) -> bool:
    if dtype.is_bool:
        return known.domain is Domain.BITS
    return known.problem(dtype) is None


def _called(known: Intrinsic, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    second = e.cast(known.second_of(x.dtype), y)
    return Call(known.result_of(x.dtype), known.name, (x, second)[: known.arity])


@lru_cache(maxsize=1)
def operations(dtype: DType) -> tuple[PrimFunc, dict[DType, e.Buffer], Any]:
    """All operations on 19 lanes, the outputs by dtype, and a kernel that does them on scalars."""
    x, y, v = decl_buffer((19,), dtype, "X"), decl_buffer((19,), dtype, "Y"), Var("v")
    values = [operation(x[v], y[v]) for operation in every_operation(dtype)]
    rows = Counter(value.dtype for value in values)
    outs = {each: decl_buffer((count, 19), each, f"Z_{each}") for each, count in rows.items()}
    stores: list[Stmt] = []
    for value in values:
        rows[value.dtype] -= 1
        stores.append(BufferStore(outs[value.dtype], value, (const(rows[value.dtype]), v)))
    body = s.For(v, const(0), const(19), ForKind.VECTORIZED, s.SeqStmt(tuple(stores)))
    made = function("f", x, y, *outs.values(), body=body)
    with PassContext(disabled_pass=["vectorize_loops"]):
        return made, outs, build(made, fp="strict")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_on_vectors(dtype: DType, target: str) -> None:
    """What they give is what they give on scalars, which is tested elsewhere."""
    made, outs, scalar_kernel = operations(dtype)
    kernel = build(made, target=target, fp="strict")
    random, telling = np.random.default_rng(0), telling_values(dtype)
    for _ in range(5):
        picked = random.integers(0, len(telling), (2, 19))
        a, b = (array_of(dtype, [telling[n] for n in row]) for row in picked)
        found = [
            np.zeros([e.const_int(n) or 0 for n in z.shape], numpy_dtype(z.dtype))
            for z in outs.values()
        ]
        expected = [each.copy() for each in found]
        kernel(a, b, *found)
        scalar_kernel(a, b, *expected)
        for each, p, q in zip(outs, found, expected, strict=True):
            pairs = zip(values_of(each, p), values_of(each, q), strict=True)
            assert all(equal(m, n) for m, n in pairs), f"{each} of {dtype}"


@pytest.mark.parametrize(("dtype", "packed"), [("float32", "vcmpltps"), ("int32", "vpcmpgtd")])
def test_comparisons_of_single_numbers_choose_between_vectors_without_branches(
    dtype: str, packed: str
) -> None:
    """The condition is the same in all lanes, and data decide it: a branch would be a guess."""
    A, B, M = (te.placeholder((64, 64), dtype, name=name) for name in "ABM")
    k = te.reduce_axis((0, 64), name="k")
    zero = te.const(0, dtype)
    C = te.compute(
        (64, 64),
        lambda i, j: te.sum(te.if_then_else(M[i, k] > zero, A[i, k] * B[k, j], zero), axis=k),
        name="C",
    )
    assembly = build(C, [A, B, M, C], "llvm -mcpu=haswell").get_source("asm")
    assert re.search(rf"{packed}[^\n]*ymm", assembly)
    assert not re.search(r"u?comis[sd]", assembly)


@pytest.mark.parametrize("wide", ["int32", "int64", "float32"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_narrow_lanes_that_are_shifted_are_widened(dtype: str, wide: str) -> None:
    """Each lane by a number of its own, which may lie beyond the width."""
    values = np.array([[-128, -7, -1, 0, 1, 77, 127, 255]], "int64").astype(dtype)
    amounts = range(0, 40, 3) if dtype.startswith("u") else range(-3, 40, 3)
    X = te.placeholder(values.shape, dtype, name="X")
    N = te.placeholder((len(amounts),), dtype, name="N")
    Y = te.compute((8, len(amounts)), lambda i, j: (X[0, i] >> N[j]).astype(wide), name="Y")
    schedule = te.create_schedule(Y.op)
    schedule[Y].vectorize(Y.op.axis[1])
    found = np.empty((8, len(amounts)), wide)
    f = build(schedule, [X, N, Y])
    assert re.search(r"shr <\d+ x i32>", f.get_source("ll"))
    f(values, np.array(amounts, dtype), found)
    bits = np.iinfo(dtype).bits
    exact = [[int(x) >> n if 0 <= n < bits else -int(x < 0) for n in amounts] for x in values[0]]
    np.testing.assert_array_equal(found, np.array(exact, wide))


@pytest.mark.covering(2)
@pytest.mark.parametrize("size", [16, 64, 62, 80])
@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("layout", ["compact", "strided"])
def test_partners_in_a_row_are_picked_from_whole_vectors(
    size: int, shift: int, layout: str
) -> None:
    """Rotations of pairs that lie side by side read each pair from the vector that holds it."""
    X, W = te.placeholder((5, size), name="X"), te.placeholder((5, size // 2), name="W")

    def value(i: Any, j: Any) -> Any:
        other = te.if_then_else(j % 2 == 0, -X[i, j // 2 * 2 + 1], X[i, j // 2 * 2])
        return X[i, j] + other * W[i, j // 2]

    Y = te.compute((5, size - 2 * shift), lambda i, j: value(i, j + 2 * shift), name="Y")
    f = build([Y], [X, W, Y])
    if shift == 0 and size % 16 == 0:
        made = build([Y], [X, W, Y], target="llvm -mcpu=znver4").get_source("ll")
        assert 1 <= made.count("load <8 x float>, ptr") <= 2  # of W
    rng = np.random.default_rng(0)
    step = 2 if layout == "strided" else 1
    x = rng.standard_normal((5 * step, size)).astype("float32")[::step]
    w = rng.standard_normal((5, size // 2)).astype("float32")
    pairs = x.reshape(5, -1, 2)
    turned = np.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(5, size)
    expected = (x + turned * w.repeat(2, 1))[:, 2 * shift :]
    y = np.empty((5, size - 2 * shift), "float32")
    f(x, w, y)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
