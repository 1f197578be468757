"""Loops without the iterations in which they do nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import minitvm as tvm
from minitvm import te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.dtype import INT32
from minitvm.tir.expr import Call, Var, const, const_int
from minitvm.tir.functor import free_vars, substitute, walk_once
from minitvm.tir.stmt import (
    Allocate,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    PrimFunc,
    Stmt,
    seq,
)
from minitvm.transform.clip_loops import clip_loops
from tests.tir.programs import function, likely, loop
from tests.transform.loop_nests import Nest, guarded_panels, loop_nests, same_effect


def clipped(s: te.Schedule, arguments: list[te.Tensor]) -> PrimFunc:
    """What `clip_loops` makes of the loops that a schedule stands for."""
    found: list[PrimFunc] = []

    def keep(func: PrimFunc) -> PrimFunc:
        found.append(clip_loops(func))
        return func

    with tvm.transform.PassContext(config={"tir.add_lower_pass": [(0, keep)]}):
        tvm.lower(s, arguments, name="f")
    return found[0]


def iterations(func: PrimFunc, name: str, **values: int) -> int:
    """How often the loop of a variable runs, where others have these values."""
    (extent,) = (
        node.extent
        for node in walk_once(func.body)
        if isinstance(node, For) and node.loop_var.name == name
    )
    known = {var: const(values[var.name]) for var in free_vars(extent)}
    found = const_int(Analyzer().simplify(substitute(extent, known)))
    assert found is not None
    return found


def blocked(n: int, block: int, width: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """A row in blocks of panels of vectors."""
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    outer, inner = s[B].split(B.op.axis[0], factor=block)
    _, lane = s[B].split(inner, factor=width)
    s[B].vectorize(lane)
    s[B].parallel(outer)
    return s, [A, B]


def test_panels_that_lie_beyond_the_end_are_not_computed() -> None:
    made = clipped(*blocked(900, 160, 32))
    panels = [iterations(made, "i.inner.outer", **{"i.outer": block}) for block in range(6)]
    assert panels == [5, 5, 5, 5, 5, 4]  # the last has 100 elements
    assert "if likely(" in str(made)  # of the last panel that is


def rows(n: int, width: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """Rows of 40 elements, in blocks."""
    A = te.placeholder((n, 40), name="A")
    B = te.compute((n, 40), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    s[B].split(B.op.axis[0], factor=width)
    return s, [A, B]


def test_a_guard_of_the_loops_own_variable_goes() -> None:
    made = clipped(*rows(10, 4))
    assert [iterations(made, "i.inner", **{"i.outer": k}) for k in range(3)] == [4, 4, 2]
    assert "likely" not in str(made)


def test_loops_in_which_little_is_done_stay() -> None:
    A = te.placeholder((10,), name="A")
    B = te.compute((10,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    s[B].split(B.op.axis[0], factor=4)
    made = clipped(s, [A, B])
    assert iterations(made, "i.inner") == 4 and "likely" in str(made)


def test_long_loops_in_which_little_is_done_end_with_a_symbolic_extent() -> None:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    _, inner = s[B].split(B.op.axis[0], factor=1024)
    s[B].vectorize(s[B].split(inner, factor=8)[1])
    made = clipped(s, [A, B])
    found = [iterations(made, "i.inner.outer", n=20, **{"i.outer": 0})]
    assert found == [3]


def test_loops_that_end_with_their_block_stay() -> None:
    assert iterations(clipped(*blocked(960, 160, 32)), "i.inner.outer") == 5


def test_what_also_does_something_else_stays() -> None:
    n, io, ii = te.var("n"), Var("io"), Var("ii")
    A, B = tir.decl_buffer((n,), name="A"), tir.decl_buffer((16,), name="B")
    guarded = IfThenElse(likely(io * 16 + ii < n), BufferStore(A, const(0.0), (io * 16 + ii,)))
    body = seq(guarded, BufferStore(B, const(1.0), (ii,)))
    params = {A.data: A, B.data: B}
    nest = loop(io, (n + 15) // 16, loop(ii, 16, body))
    func = PrimFunc(tuple(params), nest, params, "f")
    assert clip_loops(func) is func


@settings(deadline=None)
@given(loop_nests())
def test_nothing_changes_but_the_ends(nest: Nest) -> None:
    same_effect(nest, clip_loops(nest.func))


@settings(deadline=None)
@given(guarded_panels())
def test_panels_of_any_direction(nest: Nest) -> None:
    same_effect(nest, clip_loops(nest.func))


@pytest.mark.wide
@settings(deadline=None, max_examples=3000)
@given(guarded_panels())
def test_panels_of_any_direction_at_length(nest: Nest) -> None:
    same_effect(nest, clip_loops(nest.func))


def test_the_last_round_of_a_loop_that_counts_down_may_still_run() -> None:
    """``i`` ends where its guard fails for the last ``j``, which is the least element."""
    n, o, i, j = te.var("n"), Var("o"), Var("i"), Var("j")
    A = tir.decl_buffer((n,), name="A")
    guarded = IfThenElse(
        likely(i * 32 + 31 - j < n), BufferStore(A, const(1.0), (i * 32 + 31 - j,))
    )
    nest = loop(o, 2, loop(i, 8, loop(j, 32, guarded)))
    made = clip_loops(function("f", A, body=nest))
    counts = [iterations(made, "i", n=size) for size in (1, 31, 32, 33, 64, 255, 256, 1000)]
    assert counts == [1, 1, 1, 2, 2, 8, 8, 8]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 159, 160, 161, 192, 193, 900])
def test_results(n: int) -> None:
    s, arguments = blocked(n, 160, 32)
    f = tvm.build(s, arguments, name="f")
    a = np.arange(n, dtype="float32")
    b = np.full(n + 8, -1, "float32")
    f(a, b[:n])
    np.testing.assert_array_equal(b[:n], a + 1)
    np.testing.assert_array_equal(b[n:], -1)


def test_sizes_of_the_caller() -> None:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    _, inner = s[B].split(B.op.axis[0], factor=160)
    _, lane = s[B].split(inner, factor=32)
    s[B].vectorize(lane)
    made = clipped(s, [A, B])
    assert iterations(made, "i.inner.outer", n=500, **{"i.outer": 3}) == 1
    assert iterations(made, "i.inner.outer", n=500, **{"i.outer": 2}) == 5
    f = tvm.build(s, [A, B], name="f")
    for size in range(0, 500, 7):
        a = np.arange(size, dtype="float32")
        b = np.empty_like(a)
        f(a, b)
        np.testing.assert_array_equal(b, a + 1)


def test_a_loop_around_all_stays_wherever_it_stands() -> None:
    """Its guard is split off by loop partitioning."""
    n, i, j, k = te.var("n"), te.var("i"), te.var("j"), te.var("k")
    A = tir.decl_buffer((n, 640), name="A")

    def row(var: Var) -> Stmt:
        return loop(k, 640, BufferStore(A, const(1.0), (var, k)))

    nests = [loop(var, 64, IfThenElse(likely(var < n), row(var))) for var in (i, j)]
    func = function("f", A, body=seq(*nests))
    assert str(clip_loops(func)) == str(func)
    inside = function("f", A, body=loop(te.var("o"), 2, nests[0]))
    assert str(clip_loops(inside)) != str(inside)


def _panels(before: Stmt, buffer: tir.Buffer, panel: Var, lane: Var) -> For:
    """Six panels of 8 lanes, each with a statement before its guarded store."""
    at = panel * 8 + lane
    guarded = IfThenElse(likely(at < buffer.shape[0]), BufferStore(buffer, const(1.0), (at,)))
    return loop(panel, 6, seq(before, loop(lane, 40, guarded)))


def test_a_prefetch_keeps_no_iteration() -> None:
    n, o, panel, lane = te.var("n"), te.var("o"), te.var("panel"), te.var("lane")
    A = tir.decl_buffer((n,), name="A")
    fetch = Evaluate(Call(INT32, "prefetch", (A[panel * 8],)))
    func = function("f", A, body=loop(o, 2, _panels(fetch, A, panel, lane)))
    assert iterations(clip_loops(func), "panel", n=17) == 3


def test_memory_of_an_iteration_keeps_none() -> None:
    """What it is filled with is read in this iteration alone."""
    n, o, panel, lane, k = (te.var(name) for name in ("n", "o", "panel", "lane", "k"))
    A, S, T = (tir.decl_buffer((n if name == "A" else 8,), name=name) for name in "AST")
    own = _panels(loop(k, 8, BufferStore(S, const(0.0), (k,))), A, panel, lane)
    inside = For(panel, own.min, own.extent, own.kind, Allocate(S, own.body))
    assert iterations(clip_loops(function("f", A, body=loop(o, 2, inside))), "panel", n=17) == 3
    seen = _panels(loop(k, 8, BufferStore(T, const(0.0), (k,))), A, panel, lane)
    assert iterations(clip_loops(function("f", A, T, body=loop(o, 2, seen))), "panel", n=17) == 6


def test_memory_of_an_iteration_under_a_guard_of_its_own_keeps_none() -> None:
    """As the sums of a tile whose last rows are padding."""
    n, o, panel, lane = (te.var(name) for name in ("n", "o", "panel", "lane"))
    A, S = tir.decl_buffer((n,), name="A"), tir.decl_buffer((8,), name="S")
    padded = likely(panel * 8 < (n + 5) // 6 * 6)
    fill = IfThenElse(padded, BufferStore(S, const(0.0), (const(0),)))
    own = _panels(fill, A, panel, lane)
    inside = For(panel, own.min, own.extent, own.kind, Allocate(S, own.body))
    assert iterations(clip_loops(function("f", A, body=loop(o, 2, inside))), "panel", n=17) == 3


def test_the_end_of_a_block_keeps_no_tile_although_the_end_of_all_is_known() -> None:
    """As of a block of 40 rows of 64, in strips of 4 tiles: sums are computed up to the last row of
    all, but copied up to that of the block."""
    o, strip, tile, lane = (te.var(name) for name in ("o", "strip", "tile", "lane"))
    A, S = tir.decl_buffer((64,), name="A"), tir.decl_buffer((8,), name="S")
    row = strip * 32 + tile * 8 + lane
    padded = likely(o * 40 + strip * 32 + tile * 8 < 64)
    fill = IfThenElse(padded, BufferStore(S, const(0.0), (const(0),)))
    copy = IfThenElse(likely(o * 40 + row < 64), BufferStore(A, const(1.0), (o * 40 + row,)))
    body = seq(loop(te.var("k"), 40, fill), loop(lane, 8, IfThenElse(likely(row < 40), copy)))
    inside = loop(strip, 2, loop(tile, 4, Allocate(S, body)))
    made = clip_loops(function("f", A, body=loop(o, 2, inside)))
    tiles = [iterations(made, "tile", o=i, strip=j) for i in range(2) for j in range(2)]
    assert [max(0, each) for each in tiles] == [4, 1, 3, 0]


def test_a_parallel_loop_inside_of_another_is_clipped() -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    B = te.compute((n, m), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    i, j = B.op.axis
    outer, inner = s[B].split(i, factor=256)
    tiles, rows = s[B].split(inner, factor=8)
    columns, lane = s[B].split(j, factor=64)
    s[B].reorder(outer, tiles, columns, rows, lane)
    s[B].parallel(tiles)
    (extent,) = (
        str(node.extent)
        for node in walk_once(clipped(s, [A, B]).body)
        if isinstance(node, For) and node.loop_var is tiles.var
    )
    assert extent == "min(32, (n - i.outer * 256 + 7) // 8)"
