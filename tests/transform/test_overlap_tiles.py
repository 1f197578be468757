"""Tiles at the end of an extent that overlap the tiles before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.module import Module
from minitvm.te.hybrid import allocate, float32, likely, output_tensor, vectorize
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Call, IterVar, Select, Var, const, const_int
from minitvm.tir.functor import walk_once
from minitvm.tir.interpreter import interpret
from minitvm.tir.op import are_apart
from minitvm.tir.stmt import For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt
from minitvm.transform.overlap_tiles import overlap_tiles
from minitvm.variants.in_place import with_others_apart
from tests.tir.programs import function_of, loop, store

LANES = 8
Body = Callable[[Tensor, Var], Tensor]


def tiled(body: Body, size: int = 2) -> tuple[te.Schedule, list[Tensor]]:
    """A row of ``n`` results in tiles of 8 lanes, from ``size * n`` elements."""
    n = te.var("n")
    A = te.placeholder((n * size,), name="A")
    B = body(A, n)
    s = te.create_schedule(B.op)
    assert isinstance(B.op, ComputeOp)
    _, lane = s[B].split(B.op.axis[0], factor=LANES)
    s[B].vectorize(lane)
    return s, [A, B]


def overlapped(s: te.Schedule, arguments: list[Tensor]) -> bool:
    """Whether tiles may overlap."""
    func = with_guards(s, arguments)
    return overlap_tiles(func) is not func


def with_guards(s: te.Schedule, arguments: Sequence[Tensor | Var]) -> PrimFunc:
    """The loops that a schedule stands for, before they are rewritten."""
    seen: list[PrimFunc] = []

    def keep(func: PrimFunc) -> PrimFunc:
        seen.append(func)
        return func

    with tvm.transform.PassContext(config={"tir.add_lower_pass": [(1, keep)]}):
        tvm.lower(s, arguments)
    return seen[0]


def pairs(A: Tensor, n: Var) -> Tensor:
    made: Tensor = te.compute((n,), lambda i: A[2 * i] + A[2 * i + 1], name="B")
    return made


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 15, 16, 17, 100])
def test_each_element_is_computed_for_any_size(n: int) -> None:
    s, arguments = tiled(pairs)
    assert overlapped(s, arguments)
    a, b = np.arange(2 * n, dtype="float32"), np.full(n + 1, -1, "float32")
    tvm.build(s, arguments)(a, b[:n])
    np.testing.assert_array_equal(b, [*(a[::2] + a[1::2]), -1])


def test_tiles_that_overlap_have_no_mask() -> None:
    s, arguments = tiled(pairs)
    made = overlap_tiles(with_guards(s, arguments))
    (loop,) = [each for each in walk_once(made.body) if isinstance(each, For) and _is_outer(each)]
    (ending,) = [
        each for each in walk_once(made.body) if isinstance(each, IfThenElse) and each.else_case
    ]
    assert ending.else_case is not None
    parts = (loop, ending.then_case, ending.else_case)
    assert [bool(_guards(each)) for each in parts] == [False, False, True]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 16, 100])
def test_large_tiles_are_written_once(n: int) -> None:
    """More statements than there are copies of: of five sums, whose tiles begin at a minimum."""
    size = te.var("n")
    A = te.placeholder((5, size * 2), name="A")
    B = te.compute((5, size), lambda i, j: A[i, 2 * j] + A[i, 2 * j + 1], name="B")
    s = te.create_schedule(B.op)
    i, j = B.op.axis
    outer, lane = s[B].split(j, factor=LANES)
    s[B].reorder(outer, i, lane)
    s[B].unroll(i)
    s[B].vectorize(lane)
    made = overlap_tiles(with_guards(s, [A, B]))
    begins = [each.var.name for each in walk_once(made.body) if isinstance(each, LetStmt)]
    assert begins == ["j.outer.begin"]
    a, b = np.arange(10 * n, dtype="float32").reshape(5, 2 * n), np.empty((5, n), "float32")
    tvm.build(s, [A, B])(a, b)
    np.testing.assert_array_equal(b, a[:, ::2] + a[:, 1::2])


def _is_outer(loop: For) -> bool:
    return loop.loop_var.name == "i.outer"


def _guards(part: Stmt) -> list[Call]:
    return [each for each in walk_once(part) if isinstance(each, Call) and each.op == "likely"]


def same_shape(A: Tensor, n: Var) -> Tensor:
    made: Tensor = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    return made


def bordered(A: Tensor, n: Var) -> Tensor:
    def element(i: Var) -> Any:
        return te.if_then_else(te.all(i >= 2, i < n + 2), A[i - 2], 7.0)

    made: Tensor = te.compute((n + 4,), element, name="B")
    return made


def rolled(A: Tensor, n: Var) -> Tensor:
    made: Tensor = te.compute((n,), lambda i: A[(i + 5) % n], name="B")
    return made


@pytest.mark.parametrize("n", [1, 2, 4, 5, 8, 9, 12, 13, 61, 64])
def test_choices_stay_in_the_last_tile(n: int) -> None:
    a = np.arange(n, dtype="float32")
    for body, expected in (
        (bordered, np.pad(a, 2, constant_values=7)),
        (rolled, np.roll(a, -5)),
    ):
        s, arguments = tiled(body, size=1)
        assert overlapped(s, arguments)
        b = np.full(len(expected) + 1, -1, "float32")
        tvm.build(s, arguments)(a, b[:-1])
        np.testing.assert_array_equal(b, [*expected, -1])


@pytest.mark.parametrize("n", [7, 32, 41, 100])
def test_tiles_end_with_their_block(n: int) -> None:
    size = te.var("n")
    A = te.placeholder((size,), name="A")
    B = te.compute((size,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    C = s.cache_write(B, "global")
    block, inner = s[B].split(B.op.axis[0], factor=32)
    _, lane = s[B].split(inner, factor=LANES)
    s[B].vectorize(lane)
    s[C].compute_at(s[B], block)
    a, b = np.arange(n, dtype="float32"), np.full(n, -1, "float32")
    interpret(tvm.lower(s, [A, B], name="f")["f"], a, b)
    np.testing.assert_array_equal(b, a + 1)


@pytest.mark.parametrize("n", [1, 7, 23, 24, 49, 99])
def test_blocks_behind_the_end_have_no_tiles(n: int) -> None:
    """The loop over blocks of 72 elements has three parts of 24 in every block, of which the last
    ones may be empty. Their negative number of tiles was the place of one more tile."""
    size = te.var("n")
    A = te.placeholder((size,), name="A")
    T = te.compute((size,), lambda i: A[i] * 2.0, name="T")
    B = te.compute((size,), lambda i: T[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    block, rest = s[B].split(axis_of(B), factor=72)
    part, lane = s[B].split(rest, factor=24)
    s[B].vectorize(lane)
    s[T].compute_at(s[B], s[B].fuse(block, part))
    _, lane = s[T].split(axis_of(T), factor=LANES)
    s[T].vectorize(lane)
    assert overlapped(s, [A, B])
    a, b = np.arange(n, dtype="float32"), np.full(n, 77, "float32")
    interpret(tvm.lower(s, [A, B])["main"], a, b)
    np.testing.assert_array_equal(b, a * 2 + 1)
    f = tvm.build(s, [A, B], debug="bounds")
    f(a, b)
    np.testing.assert_array_equal(b, a * 2 + 1)


@pytest.mark.parametrize("size", [LANES, 3 * LANES])
def test_tiles_behind_blocks_of_an_extent_of_another_width(size: int) -> None:
    """The blocks of columns, which int32 numbers, are fused with rows, which int64 numbers."""
    rows, columns = te.var("rows", "int64"), te.var("columns")
    A = te.placeholder((rows, columns), name="A")
    B = te.compute((rows, columns), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    assert isinstance(B.op, ComputeOp)
    row, column = B.op.axis
    block, rest = s[B].split(column, factor=48)
    _, lane = s[B].split(rest, factor=size)
    s[B].vectorize(lane)
    s[B].fuse(row, block)
    assert overlapped(s, [A, B])
    f = tvm.build(s, [A, B], debug="bounds")
    for n in (0, 1, 7, 8, 24, 25, 47, 48, 49, 100):
        a, b = np.arange(3 * n, dtype="float32").reshape(3, n), np.zeros((3, n), "float32")
        f(a, b)
        np.testing.assert_array_equal(b, a + 1)


def axis_of(tensor: Tensor) -> IterVar:
    assert isinstance(tensor.op, ComputeOp)
    return tensor.op.axis[0]


def quotients(A: Tensor, n: Var) -> Tensor:
    made: Tensor = te.compute((n,), lambda i: A[i // 3], name="B")
    return made


@pytest.mark.parametrize("n", [0, 1, 7, 8, 13])
def test_an_output_that_is_the_input_is_written_once(n: int) -> None:
    s, arguments = tiled(same_shape, size=1)
    assert overlapped(s, arguments)
    f = tvm.build(s, arguments)
    a, b = np.arange(n, dtype="float32"), np.empty(n, "float32")
    f(a, b)
    f(a, a)
    np.testing.assert_array_equal(a, np.arange(n) + 1)
    np.testing.assert_array_equal(b, a)


def test_loops_ask_whether_arrays_are_apart() -> None:
    """The interpreter computes a function whose output is the input as machine code does."""
    s, arguments = tiled(same_shape, size=1)
    a = np.arange(13, dtype="float32")
    interpret(overlap_tiles(with_guards(s, arguments)), a, a)
    np.testing.assert_array_equal(a, np.arange(13) + 1)


def test_parts_of_a_size_are_symbolic() -> None:
    """Half of a size has half the bound that its dtype gives."""
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute(((n - 3) // 2 + 1,), lambda i: A[2 * i] + A[2 * i + 2], name="B")
    s = te.create_schedule(B.op)
    _, lane = s[B].split(B.op.axis[0], factor=LANES)
    s[B].vectorize(lane)
    assert overlapped(s, [A, B])


def test_quotients_of_indices_stay_in_aligned_tiles() -> None:
    s, arguments = tiled(quotients)
    assert not overlapped(s, arguments)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 7, 8, 9, 31])
def test_quotients_move_with_tiles_that_begin_at_multiples_of_the_divisor(n: int) -> None:
    """Each element twice, in 2 n columns: all tiles begin at even places."""
    m, size = te.var("m"), te.var("n")
    A = te.placeholder((m, size), name="A")
    B = te.compute((m, 2 * size), lambda i, j: A[i, j // 2] + j % 2, name="B")
    s = te.create_schedule(B.op)
    _, lane = s[B].split(B.op.axis[1], factor=LANES)
    s[B].vectorize(lane)
    assert overlapped(s, [A, B])
    a, b = np.arange(3 * n, dtype="float32").reshape(3, n), np.full((3, 2 * n), -1, "float32")
    tvm.build(s, [A, B])(a, b)
    np.testing.assert_array_equal(b, np.repeat(a, 2, 1) + np.arange(2 * n) % 2)


def test_a_request_ahead_reads_nothing() -> None:
    """Tiles whose sums are requested ahead of their stores overlap as others do."""
    s, arguments = sums_in_tiles()
    B = arguments[-1]
    s[B].prefetch(B, s[B].leaf_iter_vars[0], 0)
    func = with_guards(s, arguments)
    assert any(isinstance(x, Call) and x.op == "prefetch" for x in walk_once(func.body))
    assert overlapped(s, arguments)


@pytest.mark.parametrize("n", range(2 * LANES + 2))
def test_the_last_tile_of_a_parallel_loop_may_have_half_of_the_columns(n: int) -> None:
    s, arguments = sums_in_tiles()
    s[arguments[-1]].parallel(s[arguments[-1]].leaf_iter_vars[0])
    made = overlap_tiles(with_guards(s, arguments), vector_bytes=16)
    loops = [each for each in walk_once(made.body) if isinstance(each, For)]
    (tiles,) = (each for each in loops if each.kind == ForKind.PARALLEL)  # one loop is left
    assert isinstance(tiles.body, IfThenElse)
    lanes = {const_int(each.extent) for each in loops if each.kind == ForKind.VECTORIZED}
    assert lanes == {LANES, LANES // 2}
    a, b = np.arange(3 * n, dtype="float32").reshape(3, n), np.full((4, n), -1, "float32")
    interpret(made, a, b)
    np.testing.assert_array_equal(b, a.sum(0) + 3 * np.arange(4)[:, None])


def test_sums_that_go_on_from_the_result_are_added_once() -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((m, n), name="A")
    k = te.reduce_axis((0, m), name="k")
    B = te.compute((n,), lambda i: te.sum(A[k, i], axis=k), name="B")
    s = te.create_schedule(B.op)
    outer, lane = s[B].split(B.op.axis[0], factor=LANES)
    s[B].reorder(k, outer, lane)
    s[B].vectorize(lane)
    a, b = np.random.default_rng(0).random((5, 13)), np.empty(13, "float32")
    tvm.build(s, [A, B])(a.astype("float32"), b)
    np.testing.assert_allclose(b, a.sum(0), rtol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("columns", [3, 15, 17, 18, 33, 34, 50, 64])
def test_windows_of_any_stride(stride: int, columns: int) -> None:
    build = _pool(stride)
    x = np.random.default_rng(columns).standard_normal((5, columns)).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))[::stride, ::stride]
    y = np.empty(windows.shape[:2], "float32")
    build(x, y)
    np.testing.assert_array_equal(y, windows.max((2, 3)))


_POOLS: dict[int, Module] = {}


def _pool(stride: int) -> Module:
    if stride not in _POOLS:
        m, n = te.var("m"), te.var("n")
        X = te.placeholder((m, n), name="X")
        u, v = te.reduce_axis((0, 3), name="u"), te.reduce_axis((0, 3), name="v")
        Y = te.compute(
            ((m - 3) // stride + 1, (n - 3) // stride + 1),
            lambda i, j: te.max(X[i * stride + u, j * stride + v], axis=[u, v]),
            name="Y",
        )
        _POOLS[stride] = tvm.build([Y], [X, Y])
    return _POOLS[stride]


@pytest.mark.parametrize(
    ("dtype", "columns"), [("uint8", 60), ("uint8", 35), ("int16", 37), ("float32", 14)]
)
def test_tiles_of_constant_extents_overlap_where_masks_take_longer(
    dtype: str, columns: int
) -> None:
    target = tvm.Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3 -num-cores=1")
    A = te.placeholder((5, columns + 1), dtype, name="A")
    B = te.compute((5, columns), lambda i, j: A[i, j] + A[i, j + 1], name="B")
    s = te.create_schedule(B.op)
    _, lane = s[B].split(B.op.axis[1], factor=target.lanes(B.dtype))
    s[B].vectorize(lane)
    assert "mask" not in str(tvm.lower(s, [A, B], vector_bytes=32))
    a = np.random.default_rng(0).integers(0, 99, (5, columns + 1)).astype(dtype)
    b = np.zeros((6, columns), dtype)
    tvm.build(s, [A, B])(a, b[:5])
    np.testing.assert_array_equal(b, [*(a[:, :-1] + a[:, 1:]), [0] * columns])


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(129,), (130,), (3, 133), (2, 3, 143)])
@pytest.mark.parametrize("num_cores", [1, 2])
def test_long_tiles_of_constant_extents_are_written_once(
    shape: tuple[int, ...], num_cores: int
) -> None:
    """Also in loops that were fused, and in parallel ones; an output that is the input has a last
    tile of its own."""
    X = te.placeholder((*shape, 12), name="X")
    k = te.reduce_axis((0, 12), name="k")
    T = te.compute(shape, lambda *i: te.sum(X(*i, k), axis=k), name="T")
    Y = te.compute(X.shape, lambda *i: X[i] / T[i[:-1]], name="Y")
    target = tvm.Target(f"llvm -mcpu=znver3 -num-cores={num_cores}")
    f = tvm.build([Y], [X, Y], target)
    loops = f.get_source("tir")
    assert ".begin = select(are_apart(Y.data, X.data), min(" in loops
    x = np.random.default_rng(0).random((*shape, 12)).astype("float32")
    y, expected = np.empty_like(x), x / x.sum(-1, keepdims=True)
    f(x, y)
    f(x, x)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_array_equal(x, y)


def test_the_first_code_has_no_tile_for_arrays_that_are_one() -> None:
    X = te.placeholder((1003, 12), name="X")
    k = te.reduce_axis((0, 12), name="k")
    T = te.compute((1003,), lambda i: te.sum(X[i, k], axis=k), name="T")
    Y = te.compute(X.shape, lambda i, j: X[i, j] / T[i], name="Y")
    func = tvm.lower(tvm.auto_schedule(Y), [X, Y])["main"]
    assert _asks_for_arrays(func)
    assert not _asks_for_arrays(with_others_apart(func))


def test_inputs_may_be_one_array() -> None:
    a, b, c = (decl_buffer((4,), "float32", name) for name in "ABC")
    value = Select(are_apart(a.data, b.data), const(1.0), const(2.0))
    f = tvm.build(function_of(a, b, c)(loop(i := Var("i"), 4, store(c, value, i))))
    x, y, z = (np.zeros(4, "float32") for _ in range(3))
    f(x, y, z)
    assert z.tolist() == [1.0] * 4
    f(x, x, z)
    assert z.tolist() == [2.0] * 4


def _asks_for_arrays(func: PrimFunc) -> bool:
    return any(isinstance(each, Call) and each.op == "are_apart" for each in walk_once(func.body))


def test_masks_in_registers_need_no_overlap() -> None:
    A = te.placeholder((5, 61), "uint8", name="A")
    B = te.compute((5, 60), lambda i, j: A[i, j] + A[i, j + 1], name="B")
    s = te.create_schedule(B.op)
    _, lane = s[B].split(B.op.axis[1], factor=32)
    s[B].vectorize(lane)
    assert "mask" in str(tvm.lower(s, [A, B], vector_bytes=64, mask_registers=True))


def test_a_form_without_blocks_keeps_its_masks() -> None:
    """The loops for calls in place are lowered for vectors of no bytes."""
    A = te.placeholder((5, 29), name="A")
    B = te.compute((5, 29), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    _, lane = s[B].split(B.op.axis[1], factor=8)
    s[B].vectorize(lane)
    assert "mask" in str(tvm.lower(s, [A, B], vector_bytes=0))


def sums_in_tiles() -> tuple[te.Schedule, list[Tensor]]:
    """Sums of columns, four times, in tiles of two vectors of four lanes, with a loop inside."""
    m, n = te.var("m"), te.var("n")
    A, k = te.placeholder((m, n), name="A"), te.reduce_axis((0, m), name="k")
    B = te.compute((4, n), lambda i, j: te.sum(A[k, j] + i, axis=k), name="B")
    s = te.create_schedule(B.op)
    sums = s.cache_write(B, "local")
    whole, part = s[B].op, s[sums].op
    assert isinstance(whole, ComputeOp) and isinstance(part, ComputeOp)
    row, column = whole.axis
    outer, lane = s[B].split(column, factor=LANES)
    s[B].reorder(outer, row, lane)
    s[sums].compute_at(s[B], outer)
    s[sums].reorder(*part.reduce_axis, *part.axis)
    for stage, (rows, lanes) in ((s[B], (row, lane)), (s[sums], part.axis)):
        stage.unroll(rows)
        stage.vectorize(lanes)
    return s, [A, B]


@pytest.mark.parametrize("n", range(2 * LANES + 2))
def test_tiles_of_half_of_the_columns_are_behind_whole_ones(n: int) -> None:
    s, arguments = sums_in_tiles()
    made = overlap_tiles(with_guards(s, arguments), vector_bytes=16, mask_registers=True)
    lanes = {
        const_int(each.extent)
        for each in walk_once(made.body)
        if isinstance(each, For) and each.kind == ForKind.VECTORIZED
    }
    assert lanes == {LANES, LANES // 2}
    a, b = np.arange(3 * n, dtype="float32").reshape(3, n), np.full((4, n), -1, "float32")
    interpret(made, a, b)
    np.testing.assert_array_equal(b, a.sum(0) + 3 * np.arange(4)[:, None])


def column_sums() -> tuple[te.Schedule, list[Tensor]]:
    """Sums of a symbolic number of columns, in tiles of 8 that registers hold."""
    m, n = te.var("m"), te.var("n")
    A, k = te.placeholder((m, n), name="A"), te.reduce_axis((0, m), name="k")
    B = te.compute((n,), lambda j: te.sum(A[k, j], axis=k), name="B")
    s = te.create_schedule(B.op)
    sums = s.cache_write(B, "local")
    whole, part = s[B].op, s[sums].op
    assert isinstance(whole, ComputeOp) and isinstance(part, ComputeOp)
    outer, lane = s[B].split(whole.axis[0], factor=LANES)
    s[sums].compute_at(s[B], outer)
    s[sums].reorder(*part.reduce_axis, *part.axis)
    s[B].vectorize(lane)
    s[sums].vectorize(part.axis[0])
    return s, [A, B]


@pytest.mark.parametrize("mask_registers", [True, False])
@pytest.mark.parametrize("n", range(2 * LANES + 2))
def test_as_few_vectors_as_the_rest_needs_are_computed(n: int, mask_registers: bool) -> None:
    s, arguments = column_sums()
    func = with_guards(s, arguments)
    made = overlap_tiles(func, vector_bytes=8, mask_registers=mask_registers)
    loops = [each for each in walk_once(made.body) if isinstance(each, For)]
    sizes = [const_int(each.extent) for each in loops if each.kind == ForKind.VECTORIZED]
    # Of the pairs of columns, all but the last one are whole: in the sums, and in the result.
    assert [sizes.count(each) for each in (2, 4, 6, 8)] == [15, 3, 3, 3]
    a, b = np.arange(3 * n, dtype="float32").reshape(3, n), np.full(n + 1, -1, "float32")
    interpret(made, a, b[:n])
    np.testing.assert_array_equal(b, [*a.sum(0), -1])


@pytest.mark.parametrize("n", [0, 1, 7, 23, 24, 49, 99])
def test_sums_in_blocks_behind_the_end_have_no_rest(n: int) -> None:
    m, size = te.var("m"), te.var("n")
    A, k = te.placeholder((m, size), name="A"), te.reduce_axis((0, m), name="k")
    T = te.compute((size,), lambda j: te.sum(A[k, j], axis=k), name="T")
    B = te.compute((size,), lambda j: T[j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    block, rest = s[B].split(axis_of(B), factor=72)
    part, lane = s[B].split(rest, factor=24)
    s[B].vectorize(lane)
    sums = s.cache_write(T, "local")
    s[T].compute_inline()
    s[sums].compute_at(s[B], s[B].fuse(block, part))
    op = s[sums].op
    assert isinstance(op, ComputeOp)
    outer, lane = s[sums].split(op.axis[0], factor=LANES)
    s[sums].reorder(outer, *op.reduce_axis, lane)
    s[sums].vectorize(lane)
    made = overlap_tiles(with_guards(s, [A, B]), vector_bytes=8, mask_registers=True)
    a, b = np.arange(3.0 * n, dtype="float32").reshape(3, n), np.full(n, 77, "float32")
    interpret(made, a, b)
    np.testing.assert_array_equal(b, a.sum(0) + 1)
    f = tvm.build(s, [A, B], debug="bounds")
    f(a, b)
    np.testing.assert_array_equal(b, a.sum(0) + 1)


def test_a_tile_of_two_vectors_has_no_copy_for_each_rest() -> None:
    s, arguments = column_sums()
    made = overlap_tiles(with_guards(s, arguments), vector_bytes=16, mask_registers=True)
    loops = [each for each in walk_once(made.body) if isinstance(each, For)]
    lanes = {const_int(each.extent) for each in loops if each.kind == ForKind.VECTORIZED}
    assert lanes <= {LANES, LANES // 2}


def test_a_tile_that_reads_one_vector_ends_under_a_mask_where_masks_are_registers() -> None:
    m, n = te.var("m"), te.var("n")
    x, y = te.placeholder((m,), name="x"), te.placeholder((n,), name="y")
    one = te.compute((m, n), lambda i, j: x[i] * y[j], name="Z")
    X = te.placeholder((m, n), name="X")
    two = te.compute((m, n), lambda i, j: X[i, j] * y[j], name="Z")
    for Z, is_masked in ((one, True), (two, False)):
        s = te.create_schedule(Z.op)
        _, lane = s[Z].split(Z.op.axis[1], factor=16)
        s[Z].vectorize(lane)
        args = [X, x, y, Z]
        text = str(tvm.lower(s, args, vector_bytes=64, mask_registers=True))
        assert ("ramp(int64(n) - 16, 1, 16)" not in text) == is_masked
        assert "ramp(int64(n) - 16, 1, 16)" in str(tvm.lower(s, args))
        f = tvm.build(s, args, auto_schedule=False)
        for columns in (0, 1, 15, 16, 17, 40):
            given = [np.random.default_rng(0).random(each) for each in ((3, columns), 3, columns)]
            a, b, c = (each.astype("float32") for each in given)
            got = np.full((3, columns), 77, "float32")
            f(a, b, c, got)
            np.testing.assert_array_equal(got, b[:, None] * c if is_masked else a * c)


def periodic(A: Tensor, n: Var) -> Tensor:
    """Numbers that depend on the lane, where the tiles begin at multiples of the period."""
    made: Tensor = te.compute((n,), lambda i: A[i] + A[2 * n - 1 - i] * (7 - i % LANES), name="B")
    return made


@pytest.mark.parametrize("n", [1, 7, 8, 9, 21])
def test_lanes_by_themselves_stay_in_aligned_tiles(n: int) -> None:
    s, arguments = tiled(periodic)
    a, b, i = np.arange(2 * n, dtype="float32"), np.empty(n, "float32"), np.arange(n)
    interpret(overlap_tiles(with_guards(s, arguments)), a, b)
    np.testing.assert_array_equal(b, a[i] + a[::-1][i] * (7 - i % LANES))


@pytest.mark.parametrize("factors", [(13, 8), (8, 5), (20, 8), (16, 8)])
def test_tiles_of_other_tiles(factors: tuple[int, int]) -> None:
    """If the inner tiles don't divide the outer one, its lanes aren't the places of the tile."""
    n = te.var("n")
    A = te.placeholder((2 * n,), "uint8", name="A")
    B = pairs(A, n)
    s = te.create_schedule(B.op)
    assert isinstance(B.op, ComputeOp)
    _, inner = s[B].split(B.op.axis[0], factor=factors[0])
    _, lane = s[B].split(inner, factor=factors[1])
    s[B].vectorize(lane)
    func = with_guards(s, [A, B])
    made = overlap_tiles(func)
    assert (made is not func) == (factors == (16, 8))
    for size in (1, 3, 13, 14, 38, 46):
        a, b = np.arange(2 * size, dtype="uint8"), np.empty(size, "uint8")
        interpret(made, a, b)
        np.testing.assert_array_equal(b, a[::2] + a[1::2])


def test_constant_extents_of_tiles_of_other_tiles() -> None:
    A = te.placeholder((39,), "uint8", name="A")
    B = te.compute((38,), lambda i: A[i] + A[i + 1], name="B")
    s = te.create_schedule(B.op)
    _, inner = s[B].split(B.op.axis[0], nparts=3)
    _, lane = s[B].split(inner, factor=8)
    s[B].vectorize(lane)
    func = tvm.lower(s, [A, B], name="f", vector_bytes=16)["f"]
    a, b = np.arange(39, dtype="uint8"), np.empty(38, "uint8")
    interpret(func, a, b)
    np.testing.assert_array_equal(b, a[1:] + a[:-1])


@te.hybrid.script
def every_other(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor(((n + 15) // 16 * 16,), a.dtype)
    for v in range((n + 15) // 16):
        for k in vectorize(8):
            if likely(v * 16 + 2 * k < n):
                b[v * 16 + 2 * k] = a[v * 16 + 2 * k] + a[0]
    for i in range(c.shape[0]):
        c[i] = float32(1)
    return b, c


@te.hybrid.script
def beyond_the_extent(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor(((n + 15) // 16 * 16,), a.dtype)
    for v in range((n + 15) // 16):
        for k in vectorize(16):
            c[v * 16 + k] = float32(3)
            if likely(v * 16 + k < n):
                b[v * 16 + k] = a[v * 16 + k] + a[n - 1 - v * 16 - k]
    return b, c


@te.hybrid.script
def by_lanes(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor(((n + 15) // 16 * 16,), a.dtype)
    for v in range((n + 15) // 16):
        for k in vectorize(16):
            if likely(v * 16 + k < n):
                b[v * 16 + k] = a[v * 16 + k] + float32(k)
                c[v * 16 + 15 - k] = a[v * 16 + k]
    return b, c


@te.hybrid.script
def by_tiles(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor(((n + 15) // 16 * 16,), a.dtype)
    for v in range((n + 15) // 16):
        t = allocate((16,), a.dtype)
        for k in vectorize(16):
            if v * 16 + k < n:
                t[15 - k] = a[v * 16 + k]
        for k in vectorize(16):
            if v * 16 + k < n:
                b[v * 16 + k] = t[k] + a[v * 16 + k]
    for i in range(c.shape[0]):
        c[i] = float32(2)
    return b, c


@te.hybrid.script
def by_two_rules(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor(((n + 7) // 8 * 8 + 74,), a.dtype)
    for v in range((n + 7) // 8):
        for k in vectorize(8):
            if likely(v * 8 + k < n):
                c[v * 8 + k] = a[v * 8 + k] * a[n - 1 - (v * 8 + k)]
        for k in vectorize(8):
            if likely(v * 8 + k < n):
                c[(n + 7) // 8 * 8 + 9 - (v * 8 + k)] = a[v * 8 + k]
    for i in range(n):
        b[i] = a[i]
    return b, c


@te.hybrid.script
def by_other_loops(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor((n + 4,), a.dtype)
    for v in range((n + 15) // 16):
        for r in range(4):
            for k in vectorize(16):
                if likely(v * 16 + k < n):
                    c[v * 16 + k + r] = a[v * 16 + k] + a[n - 1 - (v * 16 + k)] * float32(r)
    for i in range(n):
        b[i] = a[i]
    return b, c


@te.hybrid.script
def by_reversed_tiles(n: Any, a: Any) -> Any:
    b, c = output_tensor((n,), a.dtype), output_tensor((n,), a.dtype)
    for v in range((n + 15) // 16):
        t = allocate((16,), a.dtype)
        for k in vectorize(16):
            if likely(v * 16 + k < n):
                t[k] = a[v * 16 + k]
        for k in vectorize(16):
            if likely(v * 16 + k < n):
                b[v * 16 + k] = t[15 - k]
        for k in vectorize(16):
            if likely(v * 16 + k < n):
                c[v * 16 + k] = t[k] + a[n - 1 - (v * 16 + k)]
    return b, c


@pytest.mark.parametrize(
    "function",
    [
        by_reversed_tiles,
        by_two_rules,
        by_other_loops,
        every_other,
        beyond_the_extent,
        by_lanes,
        by_tiles,
    ],
)
def test_tiles_by_hand(function: Any) -> None:
    """Tiles that store something else where they begin elsewhere, or not everything."""
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B, C = function(n, A)
    func = with_guards(te.create_schedule(B.op), [n, A, B, C])
    for size in (5, 16, 17, 33, 45):
        a = np.arange(size, dtype="float32")
        expected = function(size, a)
        found = [np.full(each.shape, 77, "float32") for each in expected]
        interpret(overlap_tiles(func), size, a, *found)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 21])
def test_columns_in_two_loops_have_no_half_tiles(n: int) -> None:
    m, size = te.var("m"), te.var("n")
    A, k = te.placeholder((m, size), name="A"), te.reduce_axis((0, m), name="k")
    B = te.compute((size,), lambda i: te.sum(A[k, i], axis=k), name="B")
    s = te.create_schedule(B.op)
    sums = s.cache_write(B, "local")
    assert isinstance(B.op, ComputeOp) and isinstance(sums.op, ComputeOp)
    outer, inner = s[B].split(B.op.axis[0], factor=2 * LANES)
    _, lane = s[B].split(inner, factor=LANES)
    s[sums].compute_at(s[B], outer)
    middle, own = s[sums].split(sums.op.axis[0], factor=LANES)
    s[sums].reorder(*sums.op.reduce_axis, middle, own)
    s[B].vectorize(lane)
    s[sums].vectorize(own)
    made = overlap_tiles(with_guards(s, [A, B]), vector_bytes=16)
    a, b = np.arange(3 * n, dtype="float32").reshape(3, n), np.full(n, -1, "float32")
    interpret(made, a, b)
    np.testing.assert_array_equal(b, a.sum(0))
