"""Contractions of small numbers by matrix-product instructions.

As :mod:`dotted`, but what is computed at once is a block of sums over all of k, in tile registers
or in vectors of two rows and columns; where all blocks are whole it is stored to C itself::

    for each block of rows that fits the L2 cache:   # only where neither factor does
        for each tile of columns:
            for each tile of rows:
                sums = matrix_product(A[rows, :], panels[j // columns, :, :])
                C[...] = sums
"""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any, cast

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.auto_scheduler.dotted import LEAST_ROWS, write_panels
from minitvm.auto_scheduler.loops import Place, compute_of, make_copy
from minitvm.auto_scheduler.tiles import Tile, balanced
from minitvm.expr import ProducerLoad, Var
from minitvm.target import Target
from minitvm.te.dataflow import factors_of
from minitvm.te.matrix_product import MatrixProduct, find_matrix_product, matrix_product
from minitvm.te.schedule import Schedule
from minitvm.te.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.te.tensor_intrin import TensorIntrin


def matrix_product_for(contraction: Contraction, target: Target) -> MatrixProduct | None:
    """The instruction that a contraction is computed by, or None: where the target has none, or
    most of what it would compute were padding.

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
    if not factors_of(op) or len(op.reduce_axis) != 1 or a.tensor is b.tensor:
        return None
    (k,) = op.reduce_axis
    if not (a.reads(k) and b.reads(k)) or contraction.rows[-1:] != op.axis[-2:-1]:
        return None
    dtypes = (str(a.tensor.dtype), str(b.tensor.dtype), str(op.output(0).dtype))
    found = find_matrix_product(*dtypes, target.features)
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
    """Writes the schedule of a contraction by an instruction, and of the stage of `last`, which
    takes its sums. `ahead`: the columns' factor is an argument that is packed before the call."""
    op, sizes = contraction.op, _sizes(contraction)
    tile = _tile(contraction, by)
    assert tile is not None
    depth = _rounded_up(sizes[2], by.depth)
    block = _row_tiles_in_cache(contraction, tile, depth, target)
    multiples = (tile.rows * (block or 1), tile.columns, by.depth)
    is_even = not any(size % each for size, each in zip(sizes, multiples, strict=True))

    choose(s, "tile", "blocks of {rows} x {columns} sums by {by}, over all steps at once",
           rows=tile.rows, columns=tile.columns, by=by.name)  # fmt: skip

    known = {stage.op for stage in s.stages}
    if last.op is op and is_even:
        sums, loads = last, factors_of(op)
        factors = [cast(Tensor, load.producer) for load in loads]
    else:
        inner = s.cache_write(last, "global") if last.op is op else op.output(0)
        loads = factors_of(s[inner].op)
        sums, *factors = s.pad_einsum(inner, [*[1] * (len(op.axis) - 2), *multiples])
    for load, factor in zip(loads, factors, strict=True):
        at: Place = None
        if load.producer is contraction.b.tensor:
            place, at = len(op.axis) - 1, "ahead" if ahead else None
            in_order = write_panels(s, [sums], factor, load, place, tile.columns, by.group, at)
        else:
            in_order = _write_rows(s, sums, factor, load)
        if factor.op not in known:
            make_copy(s[factor], in_order, at, target)
    intrinsic = matrix_product(by.name, tile.rows, tile.columns, depth)
    _write_tiles(s[last], s[sums], tile, intrinsic, block)


def _sizes(contraction: Contraction) -> tuple[int, int, int]:
    axes = (*contraction.op.axis[-2:], *contraction.op.reduce_axis)
    rows, columns, depth = (cast(int, extent_of(axis)) for axis in axes)
    return rows, columns, depth


def _tile(contraction: Contraction, by: MatrixProduct) -> Tile | None:
    """The tile that takes the least time, all of one size: what pads the last one is computed as
    well. A step loads a register for each of the rows and columns, and multiplies each of the
    former with each of the latter. None where there is not even one of each."""
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


_PANEL = 8  # columns that are brought into a panel as one vector


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _row_tiles_in_cache(
    contraction: Contraction, tile: Tile, depth: int, target: Target
) -> int | None:
    """How many tiles of rows make a block: what they read fills a quarter to a half of the L2
    cache, whichever pads least. None where half of it holds all columns, or all rows."""
    rows, columns, _ = _sizes(contraction)
    half = target.cache_bytes(2) // 2
    itemsize = contraction.a.tensor.dtype.itemsize
    tiles, most = -(-rows // tile.rows), max(1, half // (tile.rows * depth * itemsize))
    if columns * depth * itemsize <= half or tiles <= most:
        return None
    return min(range(-(-most // 2), most + 1), key=lambda block: (-tiles % block, -block))


def _write_rows(s: Schedule, sums: Tensor, factor: Tensor, load: ProducerLoad) -> bool:
    """Lets the rows' factor be read row after row, each from its first step of the sum to its
    last. Whether it lies so."""
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
    rows.parallel((*first, steps)[0])
    return False


_TOGETHER = 16  # steps of the sum that are brought together at once


def _write_tiles(
    stage: Stage, inner: Stage, tile: Tile, intrinsic: TensorIntrin, block: int | None
) -> None:
    """The loops over tiles of a stage, whose sums are its own, or those of `inner`."""
    *outer, row, column = compute_of(stage).axis
    row_tiles, row_inner = stage.split(row, factor=tile.rows)
    column_tiles, column_inner = stage.split(column, factor=tile.columns)
    is_one_row = extent_of(row) == tile.rows
    tiles = [column_tiles, row_tiles] if is_one_row else [row_tiles, column_tiles]
    if block is not None:
        blocks, row_tiles = stage.split(row_tiles, factor=block)
        tiles = [blocks, column_tiles, row_tiles]
    stage.reorder(*outer, *tiles, row_inner, column_inner, *compute_of(stage).reduce_axis)
    stage.parallel((*outer, *tiles)[0])
    if inner is stage:
        stage.tensorize(row_inner, intrinsic)
        return
    stage.vectorize(column_inner)
    inner.compute_at(stage, tiles[-1])
    inner.tensorize(compute_of(inner).axis[-2], intrinsic)
