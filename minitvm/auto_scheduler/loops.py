"""The loops of tiles: of tasks, blocks of the sum, strips of rows, tiles.

::

    for tasks: batches, blocks of columns, blocks of rows   # in parallel
        for blocks of the sum
            for strips of rows
                for tiles of rows
                    for tiles of columns
                        for rows of a tile
                            for columns of a tile
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, TypeAlias, TypeVar, final

from minitvm.auto_scheduler.contraction import (
    Contraction,
    bytes_at_once,
    extent_of,
    product_of_extents,
)
from minitvm.auto_scheduler.cost import Blocks, Nest, Tile, Unit
from minitvm.auto_scheduler.terms import Terms, terms_of
from minitvm.auto_scheduler.tiles import vectors
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.runtime.threads import TASKS
from minitvm.target import Target
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar

Place: TypeAlias = tuple[Stage, IterVar] | Literal["ahead"] | None
"""The place of a copy: a loop of a stage; ahead of the call; or, as a whole, before the loops."""

_T = TypeVar("_T")
EVEN = 4  # tasks of a core, from which on one more makes little difference


@final
@record()
class Places:
    """The positions of the axes of rows, and of the axes that are neither rows nor the column.
    Tiles have several rows along the last axis of rows."""

    rows: tuple[int, ...]
    others: tuple[int, ...]
    column: int

    def of(self, stage: Stage) -> tuple[list[IterVar], list[IterVar], IterVar]:
        """The axes of rows, the other axes and the column of a stage."""
        return self.among(compute_of(stage).axis)

    def among(self, axes: Sequence[_T]) -> tuple[list[_T], list[_T], _T]:
        """Divides a sequence with one entry for each axis in the same way."""
        # A new axis may be first.
        axes = axes[-len(self.rows) - len(self.others) - 1 :]
        return [axes[i] for i in self.rows], [axes[i] for i in self.others], axes[self.column]


@final
@record()
class Part:
    """The part of a stage that is computed at a time, together with the stages that it reads: one
    step of the axes before `axis`, and `rows` of that axis (None: all)."""

    axis: int
    rows: int | None


@final
@record()
class Loop:
    """A loop and the number of its iterations; None if the extent is symbolic."""

    axis: IterVar
    extent: int | None


@final
@record()
class Tiles:
    """The loops over tasks; the loops of a task, over strips and tiles; and the axes of a tile: its
    rows, if it has any, and its columns."""

    tasks: list[Loop]
    loops: list[Loop]
    row: IterVar | None
    column: IterVar

    @property
    def strip(self) -> IterVar:
        """The outermost loop over rows: over strips, or else over tiles."""
        return self.loops[-3:][0].axis


def places_of(contraction: Contraction) -> Places:
    """The places of a contraction."""
    axes = contraction.op.axis
    rows = tuple(axes.index(axis) for axis in contraction.rows)
    column = axes.index(contraction.column)
    others = (i for i in range(len(axes)) if i not in (*rows, column))
    return Places(rows, tuple(others), column)


def places_of_part(places: Places, part: Part) -> Places | None:
    """The places of a contraction that is computed in parts; None where the axes of a part are not
    its rows and its column."""
    rows = tuple(range(part.axis, len(places.rows) + len(places.others)))
    if not rows or places.column <= rows[-1] or not {*rows} <= {*places.rows}:
        return None
    return Places(rows, tuple(range(part.axis)), places.column)


def nest_of(
    contraction: Contraction,
    places: Places,
    target: Target,
    *packed: DType,
    unit: Unit | None = None,
    terms: Terms | None = None,
    pads: bool = False,
) -> Nest:
    """The model's view of a contraction whose factors are packed as these dtypes."""
    op, a = contraction.op, contraction.a
    itemsize = a.tensor.dtype.itemsize
    return Nest(
        tuple(extent_of(axis) for axis in contraction.rows),
        extent_of(contraction.column),
        tuple(extent_of(axis) for axis in op.reduce_axis),
        tuple(extent_of(op.axis[i]) for i in places.others),
        op.output(0).dtype,
        max(dtype.itemsize for dtype in packed),
        a.along(contraction.rows[-1]) * itemsize if contraction.rows else 0,
        a.bytes_along(op.reduce_axis),
        contraction.b.bytes_along(op.reduce_axis),
        unit or vectors(op.output(0).dtype, target),
        terms or terms_of(contraction, target),
        bytes_at_once(op, a, contraction.b),
        pads_rows=pads,
        pads_columns=pads,
        is_packed=pads,
    )


def write_tiles(
    stage: Stage,
    places: Places,
    tile: Tile,
    blocks: Blocks,
    steps: IterVar | None,
    axes: Sequence[Loop] | None = None,
) -> Tiles:
    """The loops over tasks, over blocks of the sum and over tiles. `axes`: the loops of the stage
    over the axes of the sums, if these aren't its axes."""
    tasks, rows, column = write_blocks(stage, places, blocks, axes)
    outer, inner = stage.split(column.axis, factor=tile.columns)
    tiles, tile_row = [Loop(outer, _trip_count(column.extent, tile.columns))], None
    if rows:
        *before, row = rows
        if blocks.strip is not None:
            strips, inside_strip = stage.split(row.axis, factor=blocks.strip)
            before.append(Loop(strips, _trip_count(row.extent, blocks.strip)))
            row = Loop(inside_strip, blocks.strip)
        row_outer, tile_row = stage.split(row.axis, factor=tile.rows)
        around = Loop(row_outer, _trip_count(row.extent, tile.rows))
        # A tile of rows stays in L1 while all columns are read from L2. Along all other axes of
        # rows it may read the same elements, through windows.
        is_first = before and places.rows[-1] < max(places.rows) and blocks.strip is None
        tiles = [around, *before, *tiles] if is_first else [*before, around, *tiles]
    summed = [] if steps is None else [steps]
    inside = [inner] if tile_row is None else [tile_row, inner]
    loops = [each.axis for each in tasks], [each.axis for each in tiles]
    stage.reorder(*loops[0], *summed, *loops[1], *inside)
    return Tiles(tasks, tiles, tile_row, inner)


def run_in_vectors(stage: Stage, tiles: Tiles, unroll_rows: bool = True) -> None:
    """Computes a tile of a stage row after row, unrolled, in vectors."""
    if tiles.row is not None and unroll_rows:
        stage.unroll(tiles.row)
    stage.vectorize(tiles.column)


def in_vectors(stage: Stage, axis: IterVar, extent: int, lanes: int) -> None:
    """Runs a loop in vectors of `lanes`. The last vector is masked, so that no vector has the odd
    length of a remainder."""
    if extent % lanes and extent > lanes:
        outer, axis = stage.split(axis, factor=lanes)
        stage.unroll(outer)
    stage.vectorize(axis)


def write_blocks(
    stage: Stage, places: Places, blocks: Blocks, axes: Sequence[Loop] | None = None
) -> tuple[list[Loop], list[Loop], Loop]:
    """Writes the loops over tasks; returns them, and the rows and the column of a task. `axes`: as
    for :func:`write_tiles`."""
    axes = axes or [Loop(axis, extent_of(axis)) for axis in compute_of(stage).axis]
    inside, tasks, column = places.among(axes)
    if blocks.columns is not None:
        outer, inner = stage.split(column.axis, factor=blocks.columns)
        tasks.append(Loop(outer, _trip_count(column.extent, blocks.columns)))
        column = Loop(inner, blocks.columns)
    if blocks.rows is not None:
        outer, inner = stage.split(inside[0].axis, factor=blocks.rows)
        tasks.append(Loop(outer, _trip_count(inside[0].extent, blocks.rows)))
        inside[0] = Loop(inner, blocks.rows)
    return tasks, inside, column


def _trip_count(extent: int | None, factor: int) -> int | None:
    return None if extent is None else -(-extent // factor)


def run_parallel(
    stage: Stage, loops: Sequence[Loop], target: Target, each: int = TASKS
) -> list[IterVar]:
    """Runs the outermost of some loops on all cores. As many loops are fused as make `each` tasks
    for every core, or an equal number; of loops with symbolic extents all but the innermost, since
    the places of a fused loop are quotients. Returns the new loops. On one core, they stay."""
    axes = [loop.axis for loop in loops]
    if target.num_cores == 1:
        return axes
    count, number, cores = 1, 0, target.num_cores
    is_known = all(loop.extent is not None for loop in loops)
    most = len(loops) if is_known else max(1, len(loops) - 1)
    while number < most and (number == 0 or (count % cores and count // cores < each)):
        count *= loops[number].extent or 1
        number += 1
    if number:
        axes[:number] = [fused(stage, axes[:number])]
        stage.parallel(axes[0])
    return axes


def in_tasks(
    stage: Stage, lines: Sequence[IterVar], vectors: Loop, target: Target
) -> list[IterVar]:
    """The loops over tasks of an elementwise stage: over `lines`, and over blocks of the vectors of
    a line where there are too few lines."""
    extents = [extent_of(axis) for axis in lines]
    if all(extent == 1 for extent in extents):
        return [*lines, vectors.axis]
    if None in extents or vectors.extent is None:
        return [*lines]
    number = max(1, prod(each or 0 for each in extents))
    wanted = -(-target.num_cores * TASKS // number)
    elements = product_of_extents(compute_of(stage).axis) or 0
    elements //= max(1, number * vectors.extent)
    least = target.task_bytes // max(1, elements * stage.op.output(0).dtype.itemsize)
    block = max(least, -(-vectors.extent // wanted))
    if block >= vectors.extent:
        return [*lines]
    blocks, _ = stage.split(vectors.axis, factor=block)
    return [*lines, blocks]


def shared(stage: Stage, axes: Sequence[IterVar], target: Target) -> IterVar:
    """Fuses some loops into one that runs on all cores; on one core, the loops stay as they are.
    Returns the innermost loop."""
    if target.num_cores == 1:
        return axes[-1]
    loop = fused(stage, axes)
    stage.parallel(loop)
    return loop


def run_outermost(stage: Stage, tiles: Tiles) -> Place:
    """Runs the outermost loop with several iterations in parallel. Returns the place where each
    task packs its panels.

    Loops are not fused: a tensor intrinsic must begin where a panel begins, and the prover would
    not see that through the quotients and remainders of a fused index."""
    loops = [*tiles.tasks, *tiles.loops]
    outermost = next((loop for loop in loops if loop.extent != 1), loops[0])
    stage.parallel(outermost.axis)
    return (stage, tiles.tasks[-1].axis) if tiles.tasks else None


def write_copy(stage: Stage, target: Target) -> None:
    """Writes a padded or widened copy, in vectors."""
    lanes = target.lanes(stage.op.output(0).dtype)
    _, inner = stage.split(compute_of(stage).axis[-1], factor=lanes)
    stage.vectorize(inner)


def make_copy(stage: Stage, in_order: bool, at: Place, target: Target) -> None:
    """Writes a padded copy. If it is read `in_order`, it is made in vectors, at the place of its
    reader, or before a reader that is made ahead; otherwise it is inlined."""
    if not in_order:
        stage.compute_inline()
        return
    write_copy(stage, target)
    place_copy(stage, None if at == "ahead" else at)


def place_copy(stage: Stage, at: Place) -> None:
    """Makes a copy at a place; in parallel where the place is outside of all loops, or inside of a
    scan on whose steps the copy doesn't depend."""
    if isinstance(at, tuple) and at[0].time is stage.time:
        stage.compute_at(*at)
        return
    if stage.op.output(0).ndim > 1:
        stage.parallel(stage.leaf_iter_vars[0])
    if at == "ahead":
        stage.compute_ahead()


def fused(stage: Stage, loops: Sequence[IterVar]) -> IterVar:
    """Some loops, fused into one."""
    return stage.fuse(*loops) if len(loops) > 1 else loops[0]


def compute_of(stage: Stage) -> ComputeOp:
    assert isinstance(stage.op, ComputeOp)
    return stage.op
