"""Contractions of narrow numbers by matrix-product instructions.

As :mod:`dot_products`, but an intrinsic computes a block of sums over all of k, in tile registers
or in vectors of two rows and columns. Where all blocks are whole they are stored to C itself::

    for each block of columns:
        panels = B[:, block of columns]
        for each tile of rows:
            for each tile of columns:
                sums = matrix_product(A[rows, :], panels[j // columns, :, :])
                C[...] = sums
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf
from typing import Any, cast

from minitvm.auto_scheduler.choice import choose, choose_blocks
from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.auto_scheduler.dot_products import LEAST_ROWS, even_blocks, padding_of, write_panels
from minitvm.auto_scheduler.loops import (
    Place,
    compute_of,
    geometry_of,
    make_copy,
    places_of,
    run_outermost,
    write_tiles,
)
from minitvm.auto_scheduler.tiles import Tile, balanced
from minitvm.runtime.dtype import DType
from minitvm.target import Target
from minitvm.te.intrinsics.instruction import find_instruction
from minitvm.te.intrinsics.matrix_product import MATRIX_PRODUCTS, MatrixProduct, matrix_product
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import IterVar, ProducerLoad, Var


def matrix_product_for(contraction: Contraction, target: Target) -> MatrixProduct | None:
    """The instruction for a contraction, or None: where the target has none, or most of the
    products would be padding.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((32, 64), "uint8"), te.placeholder((64, 32), "int8")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((32, 32), lambda i, j: te.sum(
    ...     A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k))
    >>> sapphirerapids = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")
    >>> matrix_product_for(contraction_of(C.op), sapphirerapids).name
    'tdpbusd'
    """
    op = contraction.op
    a, b = contraction.a, contraction.b
    if not multiplied_reads(op) or len(op.reduce_axis) != 1 or a.tensor is b.tensor:
        return None
    (k,) = op.reduce_axis
    if not (a.reads(k) and b.reads(k)) or contraction.rows[-1:] != op.axis[-2:-1]:
        return None
    dtypes = (str(a.tensor.dtype), str(b.tensor.dtype), str(op.output(0).dtype))
    found = find_instruction(MATRIX_PRODUCTS, *dtypes, target.features)
    if found is None or any(extent_of(axis) is None for axis in (*op.axis, k)):
        return None
    tile, (rows, columns, depth) = _tile(contraction, found), _sizes(contraction)
    if tile is None or rows < LEAST_ROWS:
        return None
    computed = (
        _rounded_up(rows, tile.rows)
        * _rounded_up(_rounded_up(columns, tile.columns), found.columns)
        * _rounded_up(depth, found.depth)
    )
    return found if rows * columns * depth >= found.share * computed else None


def write_matrix(
    s: Schedule,
    contraction: Contraction,
    last: Tensor,
    by: MatrixProduct,
    target: Target,
    ahead: bool,
) -> None:
    """Writes the schedule of a contraction by an instruction, and of `last`, the stage that reads
    its sums. `ahead`: the columns' factor is an argument that is packed before the call."""
    op, (_, _, steps) = contraction.op, _sizes(contraction)
    tile, depth = _tile(contraction, by), _rounded_up(steps, by.depth)
    assert tile is not None
    places = places_of(contraction)
    geometry = geometry_of(contraction, places, target, DType.of(by.a), DType.of(by.b))
    blocks = even_blocks(geometry, tile, target)
    padding = padding_of(contraction, tile, blocks, by.depth)
    extents = map(extent_of, (*op.axis, *op.reduce_axis))
    is_even = not any(cast(int, n) % each for n, each in zip(extents, padding, strict=True))

    choose(s, "tile", "blocks of {rows} x {columns} sums by {by}, over all steps at once",
           rows=tile.rows, columns=tile.columns, by=by.name)  # fmt: skip
    choose_blocks(s, contraction, replace(blocks, strip=None))

    known = {stage.op for stage in s.stages}
    if last.op is op and is_even:
        sums, loads = last, multiplied_reads(op)
        factors = [cast(Tensor, load.producer) for load in loads]
    else:
        inner = s.cache_write(last, "global") if last.op is op else op.output(0)
        loads = multiplied_reads(s[inner].op)
        sums, *factors = s.pad_einsum(inner, padding)
    stage = s[last]
    tiles = write_tiles(stage, places, tile, blocks, None)
    task = run_outermost(stage, tiles)
    for load, factor in zip(loads, factors, strict=True):
        at: Place
        if load.producer is contraction.b.tensor:
            at = "ahead" if ahead else task
            place = len(op.axis) - 1
            in_order = write_panels(s, [sums], factor, load, place, tile.columns, by.group, at)
        else:
            at = stage, tiles.strip
            in_order = _write_rows(s, sums, factor, load, at)
        if factor.op not in known:
            make_copy(s[factor], in_order, at, target)
    intrinsic = matrix_product(by.name, tile.rows, tile.columns, depth)
    if s[sums] is stage:
        assert tiles.row is not None
        stage.tensorize(tiles.row, intrinsic)
        return
    stage.vectorize(tiles.column)
    s[sums].compute_at(stage, tiles.loops[-1].axis)
    s[sums].tensorize(compute_of(s[sums]).axis[-2], intrinsic)


def _sizes(contraction: Contraction) -> tuple[int, int, int]:
    axes = (*contraction.op.axis[-2:], *contraction.op.reduce_axis)
    rows, columns, depth = (cast(int, extent_of(axis)) for axis in axes)
    return rows, columns, depth


def _tile(contraction: Contraction, by: MatrixProduct) -> Tile | None:
    """The tile that takes the least time. All tiles have one size: the padding of the last one is
    computed as well. A step loads registers of rows and registers of columns, and multiplies every
    pair. None if not even one register of each fits."""
    rows, columns, _ = _sizes(contraction)
    best, least = None, (inf, inf)
    for r, c in product(range(1, by.registers), repeat=2):
        tile = Tile(r * by.rows, c * by.columns)
        if not by.exact:
            tile = Tile(balanced(rows, tile.rows), min(columns, tile.columns))
        is_panel = tile.columns % _PANEL == 0 or tile.columns == columns < by.columns
        fits = r * c + r + c <= by.registers and tile.rows <= rows and tile.columns <= columns
        if not fits or not is_panel:
            continue
        tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
        cost = tiles * max(r * c, r + c, by.under_way), tiles * (r + c)
        if cost < least:
            best, least = tile, cost
    return best


_PANEL = 8  # columns that are copied into a panel as one vector


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _write_rows(
    s: Schedule, sums: Tensor, factor: Tensor, load: ProducerLoad, at: tuple[Stage, IterVar]
) -> bool:
    """Lets the rows' factor be read row after row, each row along the reduction axis. Returns
    whether the factor lies in memory in this order."""
    op = compute_of(s[sums])
    dimension = {cast(Var, index): i for i, index in enumerate(load.indices)}
    i, k = dimension[op.axis[-2].var], dimension[op.reduce_axis[0].var]
    if (i, k) == (factor.ndim - 2, factor.ndim - 1):
        return True

    def layout(*indices: Any) -> list[Any]:
        first = [index for place, index in enumerate(indices) if place not in (i, k)]
        return [*first, indices[i], indices[k]]

    rows = s[s.cache_read(factor, "global", [sums])]
    *first, row, step = rows.transform_layout(layout)
    steps, together = rows.split(step, factor=_TOGETHER)
    rows.reorder(*first, steps, row, together)  # so that squares are transposed in registers
    rows.vectorize(together)
    rows.compute_at(*at)
    return False


_TOGETHER = 16  # steps of the sum that are brought together at once
