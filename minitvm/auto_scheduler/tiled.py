"""Contractions by tiles of sums that stay in registers, of panels of one factor.

::

    for each tile of rows:
        for each tile of columns:                    # the other way round where B is not packed
            sums[rows, columns] = 0                  # "local": vector registers
            for k:
                sums[i, j] += A[i, k] * panels[j // columns, k, j % columns]
            C[...] = sums
"""

from __future__ import annotations

from math import prod
from typing import Any

from minitvm import expr as e
from minitvm.auto_scheduler.contraction import Contraction, bytes_of, extent_of, loads_of
from minitvm.auto_scheduler.sums import sums_in_registers
from minitvm.auto_scheduler.tiles import Tile, tile_of
from minitvm.expr import IterVar, Var
from minitvm.functor import walk_once
from minitvm.scalars import INTRINSICS
from minitvm.target import Target
from minitvm.te.dataflow import factors_of
from minitvm.te.schedule import Schedule
from minitvm.te.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor

# Row tiles from which on packing the columns' factor pays: each reads all of it.
_LEAST_REUSE = 4
# Intrinsics of an instruction or a few.
_SHORT = {"sqrt", "rsqrt", "fabs", "floor", "ceil", "trunc", "round", "nearbyint", "copysign",
          "isnan", "isinf", "isfinite"}  # fmt: skip
_SIDE_BY_SIDE = 4  # panels that are filled from one row: memory is read in longer pieces
_UNPACKED = 1 << 18  # bytes of a factor that is fast to read as it lies


def write_tiled(
    s: Schedule,
    contraction: Contraction,
    last: Tensor,
    target: Target,
    inline_columns: bool,
    ahead: Tensor | None,
) -> None:
    """Writes the schedule of a contraction, and of the stage of `last`, which takes its sums (the
    contraction's own tensor, or that of an elementwise stage). `inline_columns`: the columns'
    factor is computed element by element, for this alone, so it may be computed on the way into
    panels. `ahead`: an argument that is brought into panels before the call: that factor, or what
    it is computed from."""
    op = contraction.op
    row = contraction.rows[-1] if contraction.rows else None
    places = (None if row is None else op.axis.index(row), len(op.axis) - 1)
    tile = _tile(contraction, row, last, target, padded=ahead is not None)
    packs = row is not None and _packs(contraction, row, tile, inline_columns, ahead)

    stage = s[last]
    in_memory = last.op is not op and _calls_functions(s, stage)
    sums = sums_in_registers(s, contraction, op.output(0) if in_memory else last)
    if row is not None and _widens(contraction):
        sums = _write_widened(s, contraction, sums, target)
    in_panels = packs or ahead is not None
    block = _row_tiles_in_cache(contraction, tile, target) if in_panels else None
    if not packs and block is not None and block * tile.rows < 2 * tile.columns:
        block = None  # so few rows at a time read the panels more often than panels read all rows
    innermost = _write_tiles(stage, places, tile, block, not packs, not in_memory)
    if in_memory:
        _write_copy(s[op.output(0)], stage, innermost, places)
    _write_sums(s[sums], stage, innermost, places)
    if ahead is not None:
        reader = sums if ahead is contraction.b.tensor else contraction.b.tensor
        _write_panels(s, contraction, ahead, reader, tile).compute_ahead()
    if packs:
        _write_panels(s, contraction, contraction.b.tensor, sums, tile)
    if inline_columns and in_panels:
        s[contraction.b.tensor].compute_inline()


def _widens(contraction: Contraction) -> bool:
    """Whether the rows' factor is of 16-bit floats, whose conversion one by one in the innermost
    loop would take longer than the products."""
    a, dtype = contraction.a.tensor, contraction.op.output(0).dtype
    is_narrow = a.dtype.is_float and a.dtype.bits == 16 and dtype == "float32"
    return is_narrow and bool(factors_of(contraction.op)) and a is not contraction.b.tensor


def _write_widened(s: Schedule, contraction: Contraction, sums: Tensor, target: Target) -> Tensor:
    """Lets the sums read the rows' factor from a float32 copy."""
    op, a = contraction.op, contraction.a.tensor
    dtypes = ["float32" if each.producer is a else None for each in factors_of(op)]
    made, *factors = s.pad_einsum(sums, [1] * (len(op.axis) + len(op.reduce_axis)), dtypes)
    (copy,) = [factor for factor, dtype in zip(factors, dtypes, strict=True) if dtype]
    write_copy(s[copy], target)
    return made


def write_copy(stage: Stage, target: Target) -> None:
    """A copy that is padded or widened, in vectors."""
    assert isinstance(stage.op, ComputeOp)
    lanes = target.lanes(stage.op.output(0).dtype)
    _, inner = stage.split(stage.op.axis[-1], factor=lanes)
    stage.vectorize(inner)
    if stage.op.output(0).ndim > 1:
        stage.parallel(stage.op.axis[0])


def _write_tiles(
    stage: Stage,
    places: tuple[int | None, int],
    tile: Tile,
    block: int | None,
    columns_outside: bool,
    unroll_rows: bool,
) -> IterVar:
    """The loops over tiles, and what is done with a tile; the innermost of the former."""
    assert isinstance(stage.op, ComputeOp)
    row, column = places
    axes = stage.op.axis
    outer = [axis for i, axis in enumerate(axes) if i not in places]
    column_outer, column_inner = stage.split(axes[column], factor=tile.columns)
    inner = [column_inner]
    tiles = [column_outer]
    if row is not None:
        row_outer, row_inner = stage.split(axes[row], factor=tile.rows)
        if unroll_rows:
            stage.unroll(row_inner)
        inner.insert(0, row_inner)
        if block is not None:
            blocks, row_outer = stage.split(row_outer, factor=block)
            tiles = [blocks, column_outer, row_outer]
        else:
            tiles.insert(1 if columns_outside else 0, row_outer)
    stage.reorder(*outer, *tiles, *inner)
    stage.vectorize(column_inner)
    stage.parallel((*outer, *tiles[-2:])[0])  # inside of a block, of which there may be few
    return tiles[-1]


def _calls_functions(s: Schedule, stage: Stage) -> bool:
    """Whether a stage, or what is inlined in it, calls functions such as exp. They are long: to
    write them out for every register of sums would take LLVM seconds."""
    assert isinstance(stage.op, ComputeOp)
    calls = [n for body in stage.op.body for n in walk_once(body) if isinstance(n, e.Call)]
    if any(each.op in INTRINSICS and each.op not in _SHORT for each in calls):
        return True
    inlined = (s[tensor] for tensor in stage.op.input_tensors if s[tensor].inlined)
    return any(_calls_functions(s, each) for each in inlined)


def _write_copy(copy: Stage, stage: Stage, at: IterVar, places: tuple[int | None, int]) -> None:
    """Brings a tile of sums from registers to memory, where a loop can take row after row."""
    copy.compute_at(stage, at)
    assert isinstance(copy.op, ComputeOp)
    row, column = places
    if row is not None:
        copy.unroll(copy.op.axis[row])
    copy.vectorize(copy.op.axis[column])


def _write_sums(inner: Stage, stage: Stage, at: IterVar, places: tuple[int | None, int]) -> None:
    """The sums of a tile: the loops over what is summed outside, a tile inside."""
    inner.compute_at(stage, at)
    assert isinstance(inner.op, ComputeOp)
    axes = inner.op.axis
    row, column = places
    rest = [axis for i, axis in enumerate(axes) if i not in places]
    rows = [] if row is None else [axes[row]]
    inner.reorder(*rest, *inner.op.reduce_axis, *rows, axes[column])
    for axis in rows:
        inner.unroll(axis)
    inner.vectorize(axes[column])


def _row_tiles_in_cache(contraction: Contraction, tile: Tile, target: Target) -> int | None:
    """How many tiles of rows read so much that it fits half of the L2 cache; None if all do, or
    hardly any. Nor where the call decides how many rows there are: in a block that isn't full,
    every tile would have to look for the last row."""
    steps = [extent_of(axis) for axis in contraction.op.reduce_axis]
    itemsize = contraction.a.tensor.dtype.itemsize
    row_bytes = prod(each or 1024 for each in steps) * itemsize
    tiles = target.cache_bytes(2) // 2 // (row_bytes * tile.rows)
    rows = extent_of(contraction.rows[-1])
    if rows is None or tiles < 2 or rows <= tiles * tile.rows:
        return None
    return int(tiles)


def _tile(
    contraction: Contraction, row: IterVar | None, last: Tensor, target: Target, padded: bool
) -> Tile:
    columns = extent_of(contraction.column)
    if row is None:
        return tile_of(1, columns, contraction.op.output(0).dtype, target, 0)
    distance = contraction.a.along(row) * contraction.a.tensor.dtype.itemsize
    dtype = contraction.op.output(0).dtype
    return tile_of(extent_of(row), columns, dtype, target, distance, padded)


def _packs(
    contraction: Contraction,
    row: IterVar,
    tile: Tile,
    inline_columns: bool,
    ahead: Tensor | None,
) -> bool:
    """Whether a call first brings the columns' factor into panels as wide as a tile."""
    b, rows = contraction.b, extent_of(row)
    if _axes_of(contraction) is None or b.tensor is ahead:
        return False
    is_reused = rows is None or rows >= _LEAST_REUSE * tile.rows
    if ahead is not None:  # of what it is computed from there are panels, which tiles can read too
        return rows is not None and is_reused
    if inline_columns or b.along(contraction.column) != 1:
        return True
    size = bytes_of(b.tensor)
    return is_reused and (size is None or size > _UNPACKED)


def can_be_packed(contraction: Contraction) -> bool:
    """Whether there are panels of the columns' factor, which a row of tiles reads."""
    return bool(contraction.rows) and _axes_of(contraction) is not None


def _axes_of(contraction: Contraction) -> list[IterVar] | None:
    """The axis by which each dimension of the columns' factor is indexed; None if one is indexed
    otherwise, or elements are read in several places."""
    op, tensor = contraction.op, contraction.b.tensor
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    loads = loads_of(op, tensor)
    if len(loads) != 1:
        return None
    found = [axes.get(index) for index in loads[0].indices if isinstance(index, Var)]
    known = [axis for axis in found if axis is not None]
    return known if len(known) == tensor.ndim else None


def _write_panels(
    s: Schedule, contraction: Contraction, tensor: Tensor, reader: Tensor, tile: Tile
) -> Stage:
    """Lets `reader` read a tensor, indexed as the columns' factor is, from panels:
    ``panels[..., j // columns, k..., j % columns]``."""
    axes = _axes_of(contraction)
    assert axes is not None
    place = axes.index(contraction.column)
    reduced = [i for i, axis in enumerate(axes) if axis in contraction.op.reduce_axis]
    first = [i for i in range(len(axes)) if i not in reduced and i != place]

    def layout(*indices: Any) -> list[Any]:
        outer, inner = indices[place] // tile.columns, indices[place] % tile.columns
        return [*(indices[i] for i in first), outer, *(indices[i] for i in reduced), inner]

    panels = s[s.cache_read(tensor, "global", [reader])]
    loops = panels.transform_layout(layout)
    if first[-1:] != [len(axes) - 1]:  # elements are neighbours along a column or along a sum
        panels.vectorize(loops[-1])
    if place == len(axes) - 1:
        at = len(first)
        loops[at : at + 1] = panels.split(loops[at], factor=_SIDE_BY_SIDE)
        panels.reorder(loops[at], *loops[at + 2 : -1], loops[at + 1], loops[-1])
    panels.parallel(loops[0])
    return panels
