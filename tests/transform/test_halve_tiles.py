"""Half of a tile for the columns behind the whole tiles of a symbolic extent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import te
from minitvm.tir.expr import const_int
from minitvm.tir.functor import find
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import For, ForKind, IfThenElse, PrimFunc, Stmt
from minitvm.transform.clip_loops import clip_loops
from minitvm.transform.halve_tiles import halve_tiles
from tests.transform.test_overlap_tiles import with_guards

COLUMNS = 16


def product(
    columns: int = COLUMNS,
    n: Any = None,
    *,
    tiles: int = 0,
    packs: bool = True,
    requests: bool = False,
) -> PrimFunc:
    """The loops of a product whose tiles of columns read panels, or the factor as it lies; in
    blocks of a number of tiles. `requests`: the next step is prefetched."""
    k, n = te.var("k"), te.var("n") if n is None else n
    A, B = te.placeholder((5, k), name="A"), te.placeholder((k, n), name="B")
    at = te.reduce_axis((0, k), name="k")
    C = te.compute((5, n), lambda i, j: te.sum(A[i, at] * B[at, j], axis=at), name="C")
    s = te.create_schedule(C.op)
    sums = s.cache_write(C, "local")
    j = C.op.axis[1]
    blocks = [] if not tiles else [s[C].split(j, factor=tiles * columns)]
    jo, ji = s[C].split(blocks[0][1] if blocks else j, factor=columns)
    s[C].reorder(*[each[0] for each in blocks], jo, C.op.axis[0], ji)
    s[C].unroll(C.op.axis[0])
    s[C].vectorize(ji)
    s[sums].compute_at(s[C], jo)
    row, column = sums.op.axis
    s[sums].reorder(sums.op.reduce_axis[0], row, column)
    s[sums].unroll(row)
    s[sums].vectorize(column)
    if requests:
        s[sums].prefetch(B, sums.op.reduce_axis[0], 1)
    if packs:
        panels = s.cache_read(B, "global", [sums])
        s[panels].transform_layout(lambda i0, i1: [i1 // columns, i0, i1 % columns])
    return with_guards(s, [A, B, C])


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 40, 41])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_each_column_is_computed_for_any_size(n: int, k: int) -> None:
    func = halve_tiles(product(requests=True), vector_bytes=32)
    rng = np.random.default_rng(n)
    a, b = rng.integers(-9, 9, (5, k)), rng.integers(-9, 9, (k, n))
    c = np.full((5, n), -1, "float32")
    interpret(func, a.astype("float32"), b.astype("float32"), c)
    np.testing.assert_array_equal(c, a @ b)


def test_half_of_the_columns_have_half_of_a_tile() -> None:
    made = halve_tiles(product(), vector_bytes=32)
    (chosen,) = [each for each in find(IfThenElse, made.body) if each.else_case]
    assert str(chosen.condition) == f"j.outer * {COLUMNS} + {COLUMNS // 2} < n"
    assert chosen.else_case is not None
    assert lanes(chosen.then_case) == {COLUMNS} and lanes(chosen.else_case) == {COLUMNS // 2}


def lanes(tile: Stmt) -> set[int | None]:
    vectors = [each for each in find(For, tile) if each.kind == ForKind.VECTORIZED]
    return {const_int(each.extent) for each in vectors}


def test_few_tiles_of_a_block_are_halved() -> None:
    made = halve_tiles(clip_loops(product(tiles=4)), vector_bytes=32)
    assert [each for each in find(IfThenElse, made.body) if each.else_case]


@pytest.mark.parametrize(
    "unchanged",
    [
        lambda: product(8),  # one vector
        lambda: product(15),  # no half
        lambda: product(n=41),  # the number of columns is known
        lambda: clip_loops(product(tiles=8)),  # one of many tiles
        lambda: product(packs=False),  # the last tile may overlap the one before
    ],
    ids=["vector", "odd", "known", "many", "as it lies"],
)
def test_other_tiles_stay(unchanged: Callable[[], PrimFunc]) -> None:
    func = unchanged()
    assert halve_tiles(func, vector_bytes=32) is func
