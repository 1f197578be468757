"""The one loop nest of register tiles, and its parts; small functions that write loops.

A writer of a contraction chooses the places of its rows and columns, a tile and blocks, and calls
:func:`write_tiles` for the loops and :func:`write_sums` for the sums of a tile::

    for tasks: batches, blocks of columns, blocks of rows   # in parallel
        for blocks of the sum
            for strips of rows
                for tiles of rows
                    for tiles of columns
                        for rows of a tile
                            for columns of a tile
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar, final

from minitvm.auto_scheduler.contraction import (
    Contraction,
    bytes_at_once,
    extent_of,
    is_extremum,
    is_uneven,
    product_of_extents,
    spread_of,
    steps_of,
)
from minitvm.auto_scheduler.cost import Blocks, Nest, Tile, Unit
from minitvm.auto_scheduler.terms import Terms, is_long, terms_of
from minitvm.auto_scheduler.tiles import vectors
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.runtime.threads import TASKS
from minitvm.target import Target
from minitvm.te.schedules.mirrored_results import block_of_half
from minitvm.te.schedules.relation import Fuse, Split
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar
from minitvm.tir.functor import walk_once

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
class Tiles:
    """The loops over tasks; the loops of a task, over strips and tiles; and the axes of a tile: its
    rows, if it has any, and its columns."""

    tasks: list[IterVar]
    loops: list[IterVar]
    row: IterVar | None
    column: IterVar

    @property
    def strip(self) -> IterVar:
        """The outermost loop over rows: over strips, or else over tiles."""
        return self.loops[-3:][0]


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
    target: Target,
    *packed: DType,
    places: Places | None = None,
    unit: Unit | None = None,
    terms: Terms | None = None,
    pads: bool = False,
) -> Nest:
    """The model's view of a contraction whose factors are packed as these dtypes, by default as
    their own."""
    op, a = contraction.op, contraction.a
    places = places or places_of(contraction)
    packed = packed or (a.tensor.dtype, contraction.b.tensor.dtype)
    itemsize, steps = a.tensor.dtype.itemsize, steps_of(op, a)
    unit = unit or vectors(op.output(0).dtype, target)
    block = block_of_half(reduce_of(op).condition, op.axis)
    return Nest(
        tuple(extent_of(axis) for axis in contraction.rows),
        extent_of(contraction.column),
        tuple(extent_of(axis) for axis in steps),
        tuple(extent_of(op.axis[i]) for i in places.others),
        op.output(0).dtype,
        max(dtype.itemsize for dtype in packed),
        a.along(contraction.rows[-1]) * itemsize if contraction.rows else 0,
        a.bytes_along(steps),
        contraction.b.bytes_along(steps),
        unit,
        terms or terms_of(contraction, target),
        bytes_at_once(op, a, contraction.b),
        bytes_at_once(op, contraction.b, a),
        spread_of(op, contraction.b, [op.axis[i] for i in places.others]),
        pads_rows=pads,
        pads_columns=pads,
        is_packed=pads,
        block=block if block is not None and block % unit.columns == 0 else None,
    )


def write_tiles(
    stage: Stage,
    places: Places,
    tile: Tile,
    blocks: Blocks,
    steps: IterVar | None,
    axes: Sequence[IterVar] = (),
) -> Tiles:
    """The loops over tasks, over blocks of the sum and over tiles. `axes`: the loops of the stage
    over the axes of the sums, if these aren't its axes."""
    tasks, rows, column = write_blocks(stage, places, blocks, axes)
    around, inner = stage.split(column, factor=tile.columns)
    tiles, inside = [around], [inner]
    if rows:
        *before, row = rows
        if blocks.strip is not None:
            strips, row = stage.split(row, factor=blocks.strip)
            before.append(strips)
        around, tile_row = stage.split(row, factor=tile.rows)
        inside.insert(0, tile_row)
        # A tile of rows stays in L1 while all columns are read from L2. Along all other axes of
        # rows it may read the same elements, through windows.
        is_first = before and places.rows[-1] < max(places.rows) and blocks.strip is None
        if blocks.by_panel:
            tiles = [*before, *tiles, around]
        else:
            tiles = [around, *before, *tiles] if is_first else [*before, around, *tiles]
    summed = [] if steps is None else [steps]
    stage.reorder(*tasks, *summed, *tiles, *inside)
    return Tiles(tasks, tiles, inside[0] if rows else None, inner)


def run_in_vectors(stage: Stage, tiles: Tiles, unroll_rows: bool = True) -> None:
    """Computes a tile of a stage row after row, unrolled, in vectors."""
    if tiles.row is not None and unroll_rows:
        stage.unroll(tiles.row)
    stage.vectorize(tiles.column)


def write_loops(
    stage: Stage,
    loops: Sequence[IterVar],
    lane: IterVar | None = None,
    *,
    tasks: Sequence[IterVar] = (),
    unrolled: Sequence[IterVar] = (),
    vectors: tuple[int, int] = (0, 1),
) -> None:
    """Runs a stage in some loops, from outside to inside: those over `tasks`, which are fused and
    run in parallel; `loops`; those that are written out; and that over the lanes of vectors.
    `vectors`: the extent of this one and the lanes, where vectors needn't divide it."""
    stage.reorder(*tasks, *loops, *unrolled, *(() if lane is None else (lane,)))
    for axis in unrolled:
        stage.unroll(axis)
    if lane is not None:
        in_vectors(stage, lane, *vectors)
    if tasks:
        stage.parallel(fused(stage, tasks))


def in_vectors(stage: Stage, axis: IterVar, extent: int, lanes: int) -> None:
    """Runs a loop in vectors of `lanes`. The last vector is masked, so that no vector has the odd
    length of a remainder."""
    if extent % lanes and extent > lanes:
        outer, axis = stage.split(axis, factor=lanes)
        stage.unroll(outer)
    stage.vectorize(axis)


def write_blocks(
    stage: Stage, places: Places, blocks: Blocks, axes: Sequence[IterVar] = ()
) -> tuple[list[IterVar], list[IterVar], IterVar]:
    """Writes the loops over tasks; returns them, and the rows and the column of a task. `axes`: as
    for :func:`write_tiles`."""
    inside, tasks, column = places.among(axes or compute_of(stage).axis)
    if blocks.columns is not None:
        outer, column = stage.split(column, factor=blocks.columns)
        tasks.append(outer)
    if blocks.rows is not None:
        outer, inside[0] = stage.split(inside[0], factor=blocks.rows)
        tasks.append(outer)
    return tasks, inside, column


def run_parallel(
    stage: Stage, loops: Sequence[IterVar], target: Target, each: int = TASKS
) -> list[IterVar]:
    """Runs the outermost of some loops on all cores. As many loops are fused as make `each` tasks
    for every core, or an equal number; of loops with symbolic extents all but the innermost, since
    the places of a fused loop are quotients. Returns the new loops. On one core, they stay."""
    axes = [*loops]
    if target.num_cores == 1:
        return axes
    extents = [extent_in(stage, loop) for loop in loops]
    count, number, cores = 1, 0, target.num_cores
    most = max(1, len(loops) - 1) if None in extents else len(loops)
    while number < most and (number == 0 or (count % cores and count // cores < each)):
        count *= extents[number] or 1
        number += 1
    if number:
        axes[:number] = [fused(stage, axes[:number])]
        stage.parallel(axes[0])
    return axes


def in_tasks(
    stage: Stage, lines: Sequence[IterVar], vectors: IterVar, target: Target
) -> list[IterVar]:
    """The loops over tasks of an elementwise stage: over `lines`, and over blocks of the vectors of
    a line where there are too few lines."""
    extents, count = [extent_of(axis) for axis in lines], extent_in(stage, vectors)
    if all(extent == 1 for extent in extents):
        return [*lines, vectors]
    if None in extents or count is None:
        return [*lines]
    number = max(1, prod(each or 0 for each in extents))
    wanted = -(-target.num_cores * TASKS // number)
    elements = product_of_extents(compute_of(stage).axis) or 0
    elements //= max(1, number * count)
    least = target.task_bytes // max(1, elements * stage.op.output(0).dtype.itemsize)
    block = max(least, -(-count // wanted))
    if block >= count:
        return [*lines]
    blocks, _ = stage.split(vectors, factor=block)
    return [*lines, blocks]


def run_outermost(stage: Stage, tiles: Tiles) -> tuple[Stage, IterVar] | None:
    """Runs the outermost loop with several iterations in parallel. Returns the place where each
    task packs its panels.

    Loops are not fused: a tensor intrinsic must begin where a panel begins, and the prover would
    not see that through the quotients and remainders of a fused index."""
    loops = [*tiles.tasks, *tiles.loops]
    stage.parallel(next((loop for loop in loops if extent_in(stage, loop) != 1), loops[0]))
    return (stage, tiles.tasks[-1]) if tiles.tasks else None


# -- The sums of a tile --


def sums_in_registers(s: Schedule, contraction: Contraction, last: Tensor) -> Tensor:
    """The stage that keeps a contraction's sums in registers: the contraction itself, if `last` is
    an epilogue; otherwise a new stage, from which the contraction's tensor is copied."""
    if last.op is contraction.op:
        return cached(s, s[last], "local").op.output(0)
    sums = contraction.op.output(0)
    s[sums].set_scope("local")
    return sums


def split_steps(
    stage: Stage, order: Sequence[int], target: Target
) -> tuple[list[IterVar], list[IterVar]]:
    """The loops over the steps of a reduction, whose axes run in this order; and inside of them a
    loop over steps that are combined at once, where this is cheaper. Two minima or maxima of floats
    share one test for NaN. Under a mask their result is another register; two pairs bring it back
    to the first."""
    op = compute_of(stage)
    *before, k = (op.reduce_axis[i] for i in order)
    if not is_extremum(op) or len(op.body) > 1 or is_uneven(op) or target.keeps_nan:
        return [*before, k], []
    step, together = stage.split(k, factor=4 if target.has_mask_registers else 2)
    return [*before, step], [together]


def write_sums(
    inner: Stage,
    at: tuple[Stage, IterVar],
    tile: Sequence[IterVar],
    steps: Sequence[IterVar],
    together: Sequence[IterVar] = (),
    vectors: tuple[int, int] = (0, 1),
) -> None:
    """Computes the sums of a tile at a loop of the stage that reads them. From outside to inside,
    the loops are those over `steps`, those over `together`, which are unrolled, and those of the
    `tile`, whose last axis is vectorised. `vectors`: as for :func:`write_loops`."""
    *rows, column = tile
    inner.compute_at(*at)
    rest = [axis for axis in compute_of(inner).axis if axis not in tile]
    write_loops(inner, [*rest, *steps], column, unrolled=[*rows, *together], vectors=vectors)


def innermost(axes: Sequence[IterVar], most: int) -> list[IterVar]:
    """The innermost axes that have at most `most` iterations together."""
    found, count = list[IterVar](), 1
    for axis in reversed(axes):
        count *= extent_of(axis) or most + 1
        if count > most:
            break
        found.insert(0, axis)
    return found


# -- Stages --


def cached(s: Schedule, stage: Stage, scope: str) -> Stage:
    """Lets a stage of its own compute the results of a stage, which copies them."""
    outputs = compute_of(stage).outputs
    made = s.cache_write(outputs[0] if len(outputs) == 1 else list(outputs), scope)
    return s[made[0] if isinstance(made, list) else made]


def factored(s: Schedule, stage: Stage, loop: IterVar, *place: int) -> Stage:
    """Lets a stage of its own compute the partial results along a loop of a reduction, which are a
    dimension at a `place`, by default the first, and are combined by the stage."""
    made = s.rfactor(compute_of(stage).outputs[0], loop, *place)
    return s[made[0] if isinstance(made, list) else made]


def factored_in_lanes(
    s: Schedule, stage: Stage, loop: IterVar, lanes: int, group: int = 1
) -> Stage:
    """Lets a stage of its own compute partial results in registers: one for each of `lanes`
    neighbouring steps, or groups of them, along a loop of a reduction, the last dimension."""
    _, lane = stage.split(loop, factor=lanes * group)
    if group > 1:
        lane, _ = stage.split(lane, factor=group)
    return factored(s, stage, lane, len(compute_of(stage).axis)).set_scope("local")


def extent_in(stage: Stage, loop: IterVar) -> int | None:
    """The number of iterations of a loop of a stage, None if it is symbolic."""
    if loop.dom is not None:
        return extent_of(loop)
    for relation in stage.relations:
        match relation:
            case Split(parent, outer, inner, factor) if loop in (outer, inner) and factor:
                size, extent = e.const_int(factor), extent_in(stage, parent)
                if loop is inner or size is None or extent is None:
                    return size if loop is inner else None
                return -(-extent // size)
            case Fuse(outer, inner, made) if made is loop:
                extents = extent_in(stage, outer), extent_in(stage, inner)
                return None if None in extents else prod(each or 0 for each in extents)
    return None


def lie_along(stage: Stage, place: int) -> list[IterVar]:
    """Makes the axis at a place the last one in memory; returns the loops."""
    places = [*range(stage.op.output(0).ndim)]
    return lie_in_order(stage, [*places[:place], *places[place + 1 :], place])


def divided(sizes: Sequence[int | None]) -> Callable[..., list[Any]]:
    """The map of indices to those of a layout that divides dimensions. `sizes`: the elements of a
    part of each dimension; None or 0 for a dimension that stays whole."""

    def layout(*indices: Any) -> list[Any]:
        pairs = zip(indices, sizes, strict=True)
        return [part for i, n in pairs for part in ((i // n, i % n) if n else (i,))]

    return layout


def lie_in_order(stage: Stage, places: Sequence[int]) -> list[IterVar]:
    """Makes the axes at these places, in this order, the dimensions; returns the loops."""
    return stage.transform_layout(lambda *indices: [indices[place] for place in places])


def compute_of(stage: Stage) -> ComputeOp:
    assert isinstance(stage.op, ComputeOp)
    return stage.op


def calls_in(s: Schedule, stage: Stage) -> int:
    """The calls of functions such as exp, whose code is long, in a stage and those inlined in
    it."""
    ops = map(compute_of, (stage, *s.inlined_in(stage)))
    return sum(is_long(node) for op in ops for node in walk_once(*op.body))


def fused(stage: Stage, loops: Sequence[IterVar]) -> IterVar:
    """Some loops, fused into one."""
    return stage.fuse(*loops) if len(loops) > 1 else loops[0]
