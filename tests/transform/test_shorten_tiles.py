"""Short tiles for the rows behind the whole tiles of a symbolic extent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.hybrid import likely, output_tensor, unroll
from minitvm.tir.expr import const_int
from minitvm.tir.functor import find
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import For, ForKind, IfThenElse, PrimFunc, Stmt
from minitvm.transform.shorten_tiles import shorten_tiles
from tests.transform.test_overlap_tiles import with_guards

ROWS = 10


def product(rows: int, kind: str = "unroll", m: Any = None) -> PrimFunc:
    """The loops of a product in tiles of `rows` rows and eight columns, before they are rewritten;
    the rows are loops of a kind."""
    k = te.var("k")
    m = te.var("n") if m is None else m
    A, B = te.placeholder((m, k), name="A"), te.placeholder((k, 8), name="B")
    at = te.reduce_axis((0, k), name="k")
    C = te.compute((m, 8), lambda i, j: te.sum(A[i, at] * B[at, j], axis=at), name="C")
    s = te.create_schedule(C.op)
    sums = s.cache_write(C, "local")
    io, ii = s[C].split(C.op.axis[0], factor=rows)
    s[C].vectorize(C.op.axis[1])
    getattr(s[C], kind)(ii)
    s[sums].compute_at(s[C], io)
    row, column = sums.op.axis
    s[sums].reorder(sums.op.reduce_axis[0], row, column)
    getattr(s[sums], kind)(row)
    s[sums].vectorize(column)
    return with_guards(s, [A, B, C])


@pytest.mark.parametrize("n", [0, 1, 4, 5, 9, 10, 11, 14, 19, 20, 29])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_each_row_is_computed_for_any_size(n: int, k: int) -> None:
    func = shorten_tiles(product(ROWS))
    rng = np.random.default_rng(n)
    a, b = rng.integers(-9, 9, (n, k)), rng.integers(-9, 9, (k, 8))
    c = np.full((n, 8), -1, "float32")
    interpret(func, a.astype("float32"), b.astype("float32"), c)
    np.testing.assert_array_equal(c, a @ b)


def test_rows_that_are_left_are_computed_four_at_a_time() -> None:
    made = shorten_tiles(product(ROWS))
    (chosen,) = [each for each in find(IfThenElse, made.body) if each.else_case]
    assert str(chosen.condition) == f"i.outer * {ROWS} + 8 < n and {ROWS - 1} < n"
    assert chosen.else_case is not None
    assert rows(chosen.then_case) == {ROWS} and rows(chosen.else_case) == {4}
    assert find(IfThenElse, chosen.else_case) and not [*find(IfThenElse, chosen.then_case)]


def test_as_many_rows_as_a_tile_has_are_a_whole_tile() -> None:
    made = shorten_tiles(product(8))
    (chosen,) = [each for each in find(IfThenElse, made.body) if each.else_case]
    assert str(chosen.condition) == "i.outer * 8 + 7 < n and 7 < n"


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 38, 70])
def test_requests_for_columns_make_them_no_rows(n: int) -> None:
    """The lines of a vector tile that are requested ahead are a loop that is written out, as rows
    are, but the columns that are left would be computed four at a time."""
    m, columns = te.var("m"), te.var("n")
    A, B = te.placeholder((8, m), name="A"), te.placeholder((m, columns), name="B")
    k = te.reduce_axis((0, m), name="k")
    C = te.compute((8, columns), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    sums = s.cache_write(C, "local")
    outer, lane = s[C].split(C.op.axis[1], factor=32)
    s[C].reorder(outer, C.op.axis[0], lane)
    s[sums].compute_at(s[C], outer)
    row, column = sums.op.axis
    s[sums].reorder(sums.op.reduce_axis[0], row, column)
    for stage, (rows_, lanes) in ((s[C], (C.op.axis[0], lane)), (s[sums], (row, column))):
        stage.unroll(rows_)
        stage.vectorize(lanes)
    s[sums].prefetch(B, sums.op.reduce_axis[0], 8)
    func = with_guards(s, [A, B, C])
    assert any(each.kind == ForKind.UNROLLED and const_int(each.extent) == 2
               for each in find(For, func.body))  # fmt: skip
    assert shorten_tiles(func) is func
    a, b = np.arange(24, dtype="float32").reshape(8, 3), np.ones((3, n), "float32")
    c = np.full((8, n), -1, "float32")
    tvm.build(s, [A, B, C])(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def rows(tile: Stmt) -> set[int | None]:
    unrolled = [each for each in find(For, tile) if each.kind == ForKind.UNROLLED]
    return {const_int(each.extent) for each in unrolled}


@pytest.mark.parametrize(
    "unchanged",
    [
        lambda: product(7),  # hardly longer than a short one
        lambda: product(ROWS, "parallel"),  # not unrolled
        lambda: product(ROWS, m=25),  # the number of rows is known
    ],
    ids=["short", "not unrolled", "known"],
)
def test_other_tiles_stay(unchanged: Callable[[], PrimFunc]) -> None:
    func = unchanged()
    assert shorten_tiles(func) is func


def test_rows_in_two_loops_stay_in_whole_tiles() -> None:
    """Loops over parts of the rows can't be shortened."""
    m, k = te.var("n"), te.var("k")
    A = te.placeholder((m, k), name="A")
    at = te.reduce_axis((0, k), name="k")
    C = te.compute((m,), lambda i: te.sum(A[i, at], axis=at), name="C")
    s = te.create_schedule(C.op)
    io, ii = s[C].split(C.op.axis[0], factor=16)
    middle, inner = s[C].split(ii, factor=8)
    s[C].reorder(io, at, middle, inner)
    s[C].unroll(inner)
    func = with_guards(s, [A, C])
    assert shorten_tiles(func) is func


@te.hybrid.script
def added(n: Any, m: Any, a: Any) -> Any:
    b = output_tensor((n,), a.dtype)
    for v in range((n + 15) // 16):
        for _ in range(m):
            for q in range(2):
                for p in unroll(8):
                    if likely(v * 16 + q * 8 + p < n):
                        b[v * 16 + q * 8 + p] += a[v * 16 + q * 8 + p]
    return b


def test_rows_by_hand_are_added_once() -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n,), name="A")
    B = added(n, m, A)
    func = shorten_tiles(with_guards(te.create_schedule(B.op), [n, m, A, B]))
    for size in (9, 16, 21):
        a, b = np.arange(size, dtype="float32"), np.empty(size, "float32")
        interpret(func, size, 3, a, b)
        np.testing.assert_array_equal(b, 3 * a)
