"""Copies that transpose: what becomes of them, of which, and that they copy the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import build, lower, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.dtype import BOOL, DType
from minitvm.tir import expr as e
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import BufferLoad, Call, PrimExpr, Select, Var, const
from minitvm.tir.functor import walk_once
from minitvm.tir.interpreter import interpret
from minitvm.tir.op import likely
from minitvm.tir.stmt import BufferStore, For, ForKind, IfThenElse, PrimFunc, Stmt, seq
from minitvm.tir.structural_equal import structural_equal
from minitvm.tir.verify import verify
from minitvm.transform.transpose_copies import transpose_copies
from minitvm.transform.vectorize_loops import vectorize_loops
from tests.codegen.kernels import DTYPES, array_of, numpy_dtype, telling_values, values_of
from tests.codegen.test_dtypes import TARGETS
from tests.tir.programs import function_of, lazily, loop, store

N = Var("n")
i, j, k, o = (Var(name) for name in "ijko")
B, C, P = (decl_buffer((64, 64), "float64", name) for name in "BCP")
FLAT = decl_buffer((4096,), "float64", name="F")
PLACES = decl_buffer((64,), "int32", name="I")
DEEP = decl_buffer((64, 7, 3, 3), "float64", name="D")
COLUMN = decl_buffer((64, 64, 1), "float64", name="L")
ONE = const(1.0, "float64")
PAIRS, THREES, FOURS = (decl_buffer((64, n), "float64", name=f"I{n}") for n in (2, 3, 4))
TENSORS = (B, C, P, FLAT, PLACES, DEEP, COLUMN, PAIRS, THREES, FOURS)


func = function_of(N, *TENSORS)


def nest(body: Stmt, lanes: Any = 8, steps: Any = 16, kind: ForKind = ForKind.SERIAL) -> Stmt:
    """Rows are read along k; the lanes of what is stored are along j."""
    return loop(k, steps, loop(j, lanes, body, ForKind.VECTORIZED), kind)


# -- What becomes of them --------------------------------------------------------------------------


def test_a_block(golden: Callable[[str], None]) -> None:
    golden(str(transpose_copies(func(nest(store(P, B[j, k], k, j), lanes=4, steps=4))).body))


def test_loops_around_a_block() -> None:
    made = transpose_copies(func(nest(store(P, B[j + 3, k], k, j), lanes=10, steps=N)))
    lines = [each for each in str(made.body).splitlines() if "vector_shuffle" not in each]
    assert lines[:7] == [
        "if n >= 4:",
        "    for k_block in range((n + 3) // 4):",
        "        k_begin = min(k_block * 4, n - 4)",
        "        for j_block in range(3):",
        "            j_begin = min(j_block * 4, 6)",
        "            row = B[j_begin + 3, ramp(k_begin, 1, 2)]",
        "            row_1 = B[j_begin + 3 + 1, ramp(k_begin, 1, 2)]",
    ]
    assert lines[-4:] == [
        "else:",
        "    for k in range(n):",
        "        for j in range(10):",
        "            P[k, j] = B[j + 3, k]",
    ]


@pytest.mark.parametrize(
    ("dtype", "vector_bytes", "row", "column", "count"),
    [
        ("float64", 32, 2, 4, 4),  # four blocks for two lines of the result
        ("float32", 32, 4, 8, 4),
        ("float32", 16, 4, 4, 8),
        ("float64", 64, 2, 8, 2),
        ("float32", 64, 4, 16, 2),
        ("int16", 32, 8, 16, 4),
        ("uint8", 32, 16, 32, 2),  # all 64 columns
    ],
)
def test_blocks_store_whole_lines(
    dtype: str, vector_bytes: int, row: int, column: int, count: int
) -> None:
    source, target = (decl_buffer((256, 256), dtype, name) for name in "GH")
    lanes = 64 if dtype == "uint8" else 256
    body = nest(BufferStore(target, source[j, k], (k, j)), lanes=lanes, steps=256)
    both = {each.data: each for each in (source, target)}
    made = str(transpose_copies(PrimFunc(tuple(both), body, both, "f"), vector_bytes))
    assert f"row = G[j_begin, ramp(k_begin, 1, {row})]" in made
    assert f"H[k_begin, ramp(j_begin, 1, {column})] = " in made
    assert f"for j_block in range({count}):" in made


def test_loops_that_are_written_out_have_blocks_that_are() -> None:
    body = nest(store(P, B[j, k], k, j), lanes=16, steps=8, kind=ForKind.UNROLLED)
    made = transpose_copies(func(body)).body
    loops = [each for each in walk_once(made) if isinstance(each, For)]
    assert "vector_shuffle" in str(made)
    assert loops
    assert all(each.kind == ForKind.UNROLLED for each in loops)
    unknown = loop(j, 16, IfThenElse(likely(j < N), COPY), ForKind.VECTORIZED)
    given_func = func(loop(k, 8, unknown, ForKind.UNROLLED))
    assert transpose_copies(given_func).body is given_func.body


def test_the_last_lines_have_fewer_blocks() -> None:
    made = str(transpose_copies(func(nest(COPY, lanes=33, steps=4))).body)
    assert "for j_lines in range(3):" in made
    assert "for j_block in range(min(4, 9 - j_lines * 4)):" in made
    assert "j_begin = min((j_lines * 4 + j_block) * 4, 29)" in made
    part = e.minimum(const(16, N.dtype), N - o * 16)
    made = str(transpose_copies(func(loop(o, (N + 15) // 16, nest(COPY, 4, part)))).body)
    assert re.search(r"for k_block\w* in range\(\(min\(16, n - o \* 16\) \+ 3\) // 4\):", made)


def test_a_row_is_read_as_a_whole_or_not_at_all() -> None:
    body = store(P, lazily(o * 8 + j < 20, B[o * 8 + j, k], 0.0), k, o * 8 + j)
    made = str(transpose_copies(func(loop(o, 3, nest(body)))))
    assert (
        "row_1 = if_then_else(o * 8 + (j_begin + 1) < 20, "
        "B[o * 8 + j_begin + 1, ramp(k_begin, 1, 2)], broadcast(0.0, 2))" in made
    )


def test_functions_are_computed_in_the_lanes_of_the_result() -> None:
    """These are more than those of a row. Rows are combined first where that saves a transpose."""
    for value, row in (
        (te.exp(B[j, k]), "row = B["),
        (te.exp(B[j, k] * C[j, k]) * (B[j, k] * C[j, k]), "ramp(k_begin, 1, 2)] * C[j_begin"),
    ):
        made = str(transpose_copies(func(nest(store(P, value, k, j)))))
        assert row in made
        assert "= exp(vector_extract(lanes" in made


def test_16_bit_floats_are_shuffled_as_bits() -> None:
    source, target = (decl_buffer((64, 64), "float16", name) for name in "GH")
    body = nest(BufferStore(target, source[j, k], (k, j)))
    both = {each.data: each for each in (source, target)}
    made = str(transpose_copies(PrimFunc(tuple(both), body, both, "f")))
    assert 'row = reinterpret("uint16x8", G[0, ramp(k_begin, 1, 8)])' in made
    assert 'H[k_begin, ramp(0, 1, 8)] = reinterpret("float16x8", lanes_16)' in made


COPY = store(P, B[j, k], k, j)
KEPT: dict[str, Stmt] = {
    "one buffer": nest(store(P, P[j, k], k, j)),
    "a plain copy": nest(store(P, B[k, j], k, j)),
    "backwards": nest(store(P, B[k, 9 - j], k, j)),
    "the same in all lanes": nest(store(P, B[3, k], k, j)),
    "steps far apart": nest(store(P, B[j, k * 2], k, j)),
    "a place that depends on both": nest(store(P, B[j, k], 0, j + k)),
    "lanes stored far apart": nest(store(P, B[j, k], j, k)),
    "along a diagonal": nest(store(P, B[j, k], j, j)),
    "a guard of each element": nest(IfThenElse(j < k, COPY)),
    "a likely guard of each element": nest(IfThenElse(likely(j < k), COPY)),
    "two stores": nest(seq(COPY, store(C, 0.0, k, j))),
    "a condition read from data": nest(store(P, lazily(PLACES[k] < 9, B[j, k], 0.0), k, j)),
    "an element that is written": nest(store(P, B[j, k] + P[k, j], k, j)),
    "an index that a name holds": nest(
        store(P, e.Let(o, j + 1, B[o, k]), k, j)
    ),
    "a row with holes": nest(store(P, DEEP[j, 0, k // 4, k % 4], k, j), steps=10),
    "few lanes": nest(COPY, lanes=3),
    "few steps": nest(COPY, steps=3),
    "lanes not known": nest(COPY, lanes=N),
    "a loop between": loop(k, 8, loop(i, 2, loop(j, 8, COPY, ForKind.VECTORIZED))),
    "parallel": nest(COPY, kind=ForKind.PARALLEL),
    "no vectors": loop(k, 16, loop(j, 8, COPY)),
    "an extent that is written": nest(store(PLACES, FLAT[j * 64 + k].astype("int32"), j),
                                      steps=PLACES[0]),
    "a place that is checked": nest(
        store(P, B[Call(PLACES.dtype, "checked", (j < N, e.StringImm("no"), j)), k], k, j)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept_as_it_is(name: str) -> None:
    given_func = func(KEPT[name])
    assert transpose_copies(given_func) is given_func


MORE: dict[str, Stmt] = {
    "flat": nest(store(P, FLAT[j * 64 + k + 5], k, j)),
    "rows through three dimensions": nest(
        store(P, DEEP[j, k // 9, k // 3 % 3, k % 3], k, j), lanes=10, steps=N
    ),
    "rows through two": nest(store(P, DEEP[j, 2, k // 3, k % 3], k, j), lanes=9, steps=9),
    "rows of a last dimension of one": nest(store(P, COLUMN[j, k, 0], k, j)),
    "rows that data choose": nest(store(P, B[PLACES[j], k], k, j)),
    "stored where data say": nest(store(P, B[j, k], PLACES[k], j + 7)),
    "stored in one place": nest(store(P, B[j, k], k // 5, j), steps=19),
    "rows backwards": nest(store(P, B[20 - j, k + 1], k, j), lanes=9, steps=11),
    "a loop that begins later": For(
        k, const(5), N - 5, ForKind.SERIAL,
        For(j, const(2), const(8), ForKind.VECTORIZED, COPY),
    ),
    "cast twice": nest(store(P, B[j, k].astype("float32").astype("float64"), k, j)),
    "arithmetic": nest(store(P, B[j, k] * 2.0 - B[3, k], k, j)),
    "functions": nest(store(P, e.maximum(te.sqrt(te.abs(B[j, k])), B[j + 1, k]), k, j)),
    "another tensor as it lies": nest(store(P, B[j, k] + C[k, j] * B[j, k], k, j)),
    "another tensor from across": nest(store(P, (B[j, k] + C[j, k]) * C[k, j], k, j), steps=N),
    "numbers of lanes and steps": nest(
        store(P, B[j, k] + (j * k).astype("float64") + C[k, j], k, j), lanes=11, steps=13
    ),
    "a choice by value": nest(store(P, Select(B[j, k] > 0.0, B[j, k], C[k, j]), k, j)),
    "a guard of the lanes": nest(IfThenElse(j + 3 < N, store(P, B[j, k], k, j))),
    "a guard behind the lanes": nest(
        IfThenElse(Call(BOOL, "likely", (j < N,)), store(P, B[j, k] + C[k, j], k, j)), lanes=21
    ),
    "a guard of few lanes": nest(IfThenElse(j < 5, store(P, B[j + 59, k], k, j)), lanes=16),
    "a condition of every element": nest(
        store(P, lazily(j + k * 2 < 20, B[j, k], C[k, j]), k, j), lanes=16, steps=20
    ),
    "conditions in each other": nest(
        store(
            P,
            lazily(e.And(j > 0, k > 2), lazily(j < 60, B[j - 1, k - 3], ONE) + C[k, j], ONE), k, j
        ),
        lanes=16, steps=20,
    ),
    "two in turn": nest(store(PAIRS, B[j, k + 3], k, j), lanes=2, steps=19),
    "three in turn": nest(
        store(THREES, B[j * 2 + 1, k] * 2.0 + B[j, 3], k + 1, j), lanes=3, steps=N
    ),
    "four in turn": nest(store(FOURS, B[j, k], k, j), lanes=4, steps=33),
    "integers": nest(store(PLACES, FLAT[j * 64 + k].astype("int32"), j)),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_other_forms(name: str) -> None:
    """Each is transposed by blocks, and does what the loops do."""
    plain = func(MORE[name])
    made = transpose_copies(plain)
    assert not structural_equal(made, plain)
    verify(made)
    numbers = np.random.default_rng(0)
    start: list[Any] = [numbers.integers(-99, 99, (64, 64)).astype("float64") for _ in range(3)]
    start += [numbers.integers(-99, 99, 4096).astype("float64")]
    start += [numbers.integers(0, 64, 64).astype("int32")]
    start += [numbers.integers(-99, 99, (64, 7, 3, 3)).astype("float64")]
    start += [numbers.integers(-99, 99, (64, 64, 1)).astype("float64")]
    start += [np.zeros((64, n)) for n in (2, 3, 4)]
    kernel = build(plain)
    runs: list[Callable[..., Any]] = [lambda *args: interpret(made, *args), kernel]
    for size in (0, 4, 30):
        expected = [each.copy() for each in start]
        interpret(plain, size, *expected)
        for run in runs:
            found = [each.copy() for each in start]
            run(size, *found)
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_array_equal(x, y)


# -- That they copy the same bits ------------------------------------------------------------------


def packing(dtype: DType, lanes: int, rows: Any, steps: Any, to: DType | None = None) -> PrimFunc:
    """Rows in panels of as many, transposed: what is missing in the last one is 0."""
    source = decl_buffer((rows, steps), dtype, "S")
    panels = decl_buffer(((rows + (lanes - 1)) // lanes, steps, lanes), to or dtype, "T")
    at = o * lanes + j
    value: PrimExpr = BufferLoad(source, (at, k))
    value = lazily(at < rows, value if to is None else e.cast(to, value), const(0, to or dtype))
    body = BufferStore(panels, value, (o, k, j))
    inner = loop(k, steps, loop(j, lanes, body, ForKind.VECTORIZED))
    outer = loop(o, panels.shape[0], inner)
    both = {source.data: source, panels.data: panels}
    return PrimFunc(tuple(both), outer, both, "pack")


def packed(given_rows: Any, lanes: int) -> Any:
    rows, steps = given_rows.shape
    panels = -(-rows // lanes)
    made = np.zeros((panels * lanes, steps), given_rows.dtype)
    made[:rows] = given_rows
    return np.ascontiguousarray(made.reshape(panels, lanes, steps).transpose(0, 2, 1))


def random_bits(dtype: DType, shape: tuple[int, int]) -> Any:
    """Numbers of all kinds; of floats NaN of any payload, signalling too."""
    width = dtype.itemsize
    found = np.random.default_rng(0).integers(0, 256, (*shape, width), dtype="uint8")
    if dtype.is_float:
        found[..., -1] |= 0x7F  # every other one is NaN or infinite
    return found.reshape(shape[0], shape[1] * width).view(numpy_dtype(dtype))


BY_WIDTH = {each.itemsize: each for each in DTYPES if each != BOOL}


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        *((TARGETS[0], each) for each in DTYPES if each != BOOL),
        *((target, each) for target in TARGETS[1:] for each in BY_WIDTH.values()),
    ],
    ids=str,
)
def test_bits(dtype: DType, target: str) -> None:
    kernel = build(packing(dtype, 16, Var("rows"), Var("steps")), target=target)
    for rows, steps in ((32, 64), (37, 67), (5, 71), (16, 3), (0, 16), (16, 0), (32, 1)):
        given_rows = random_bits(dtype, (rows, steps))
        expected = packed(given_rows, 16)
        found = np.zeros_like(expected)
        kernel(given_rows, found)
        assert found.tobytes() == expected.tobytes(), (rows, steps)


sizes = st.integers(0, 70)
types = st.sampled_from([each for each in DTYPES if each != BOOL])


@settings(max_examples=40, deadline=None)
@given(types, st.sampled_from((None, *DTYPES)), st.integers(4, 40), sizes, sizes, st.data())
def test_programs(
    dtype: DType, to: DType | None, lanes: int, rows: int, steps: int, data: st.DataObject
) -> None:
    """Sizes known when building; casts to another type."""
    plain = packing(dtype, lanes, const(rows), const(steps), to)
    vectors = vectorize_loops(transpose_copies(plain))
    verify(vectors)
    telling = telling_values(dtype)
    values = (telling * (rows * steps // len(telling) + 1))[: rows * steps]
    given_rows = array_of(dtype, values).reshape(rows, steps)
    shape = packed(given_rows, lanes).shape
    kernel = build(plain, target=data.draw(st.sampled_from(TARGETS)))
    runs: list[Callable[..., Any]] = [lambda *args: interpret(plain, *args), kernel]
    runs.append(lambda *args: interpret(vectors, *args))
    results = []
    for run in runs:
        found = np.ones(shape, numpy_dtype(to or dtype))
        run(given_rows, found)
        results.append(list(map(str, values_of(to or dtype, found))))
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_with_every_access_checked() -> None:
    kernel = build(packing(DType.of("float32"), 8, const(20), Var("steps")), debug="bounds")
    given_rows = random_bits(DType.of("float32"), (20, 33))
    expected = packed(given_rows, 8)
    found = np.zeros_like(expected)
    kernel(given_rows, found)
    assert found.tobytes() == expected.tobytes()


def test_a_layout_other_than_declared() -> None:
    """Where an array's rows are not compact, the same blocks are read element by element."""
    kernel = build(packing(DType.of("float32"), 8, const(20), const(33)))
    given_rows = random_bits(DType.of("float32"), (33, 20)).T
    expected = packed(given_rows, 8)
    found = np.zeros_like(expected)
    kernel(given_rows, found)
    assert found.tobytes() == expected.tobytes()


# -- That it is used -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(sizes, sizes, st.integers(4, 40), st.booleans(), st.booleans())
def test_a_scheduled_transposition(
    rows: int, columns: int, factor: int, is_symbolic: bool, casts: bool
) -> None:
    shape = (Var("m"), Var("n")) if is_symbolic else (rows, columns)
    S = te.placeholder(shape, "float32", name="S")
    to = "float64" if casts else "float32"
    T = te.compute(shape[::-1], lambda k, j: S[j, k].astype(to), name="T")
    s = te.create_schedule(T.op)
    step, lane = T.op.axis
    outer, inner = s[T].split(lane, factor=factor)
    s[T].reorder(outer, step, inner)
    s[T].vectorize(inner)
    if is_symbolic:
        assert "vector_shuffle" in str(lower(s, [S, T]))
    given_rows = np.random.default_rng(0).random((rows, columns)).astype("float32")
    found = np.empty((columns, rows), to)
    build(s, [S, T])(given_rows, found)
    np.testing.assert_array_equal(found, given_rows.T)


@pytest.mark.covering(1)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["plain", "batched"])
@pytest.mark.parametrize("first", ["N", "T"])
def test_a_transposed_factor(first: str, batch: tuple[int, ...]) -> None:
    """A factor that lies along the sum is brought into panels by vectors."""
    rows, columns, steps = 90, 75, 40
    left = (rows, steps) if first == "N" else (steps, rows)
    A = te.placeholder((*batch, *left), name="A")
    X = te.placeholder((*batch, columns, steps), name="X")
    r = te.reduce_axis((0, steps), name="r")

    def element(*place: Any) -> Any:
        *b, row, column = place
        at = (row, r) if first == "N" else (r, row)
        return te.sum(A(*b, *at) * X(*b, column, r), axis=r)

    Y = te.compute((*batch, rows, columns), element, name="Y")
    s = auto_schedule(Y)
    assert "vector_shuffle" in str(lower(s, [A, X, Y]))
    numbers = np.random.default_rng(0)
    a = numbers.integers(-9, 9, (*batch, *left)).astype("float32")
    x = numbers.integers(-9, 9, (*batch, columns, steps)).astype("float32")
    y = np.empty((*batch, rows, columns), "float32")
    build(s, [A, X, Y])(a, x, y)
    straight = a if first == "N" else np.swapaxes(a, -1, -2)
    np.testing.assert_array_equal(y, straight @ np.swapaxes(x, -1, -2))


@pytest.mark.parametrize("shape", [(64, 32), (128, 64), (65, 127), (130, 33), (63, 31), (0, 5)])
def test_whole_parts_of_symbolic_loops_have_constant_extents(shape: tuple[int, int]) -> None:
    """Their blocks need no minima, as those of constant loops."""
    m, n = Var("m"), Var("n")
    S = te.placeholder((m, n), "float32", name="S")
    T = te.compute((n, m), lambda k, j: S[j, k], name="T")
    s = te.create_schedule(T.op)
    step, lane = T.op.axis
    steps, step = s[T].split(step, factor=32)
    lanes, lane = s[T].split(lane, factor=64)
    s[T].reorder(steps, lanes, step, lane)
    s[T].vectorize(lane)
    s[T].parallel(s[T].fuse(steps, lanes))
    loops = str(lower(s, [S, T]))
    whole = loops[loops.index("== 32") : loops.index("else:")]
    assert "== 64" in whole and "min(" not in whole.split(":", 1)[1]
    given_rows = np.random.default_rng(0).random(shape).astype("float32")
    found = np.empty(shape[::-1], "float32")
    build(s, [S, T])(given_rows, found)
    np.testing.assert_array_equal(found, given_rows.T)
