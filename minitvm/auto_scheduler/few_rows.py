"""Contractions of a few rows, which take as long as reading the columns' factor once.

::

    for each part of k:                              # on all threads
        for each block of columns whose sums stay in the L1 cache:
            for a few steps of k:                    # so many rows of B, each read in its order
                for each vector of columns:
                    sums[i, j] += A[i, k] * B[k, j]  # for all i, and these k
    C[...] = all parts' sums

The sums of all parts fit half of the L2 cache, so wide rows have fewer parts. Where there are more
cores than parts, or a sum has to be in order, the cores share the columns as well, and read shorter
pieces of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    NEAR,
    Contraction,
    bytes_of,
    extent_of,
    is_uneven,
    product_of_extents,
    slides,
)
from minitvm.auto_scheduler.cost import USUAL, in_pieces, transfer_cycles, usual_bytes_of
from minitvm.auto_scheduler.loops import compute_of, factored, fused, places_of
from minitvm.auto_scheduler.tiled import cycles_of
from minitvm.auto_scheduler.tiles import ALIKE
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar

_MOST_ROWS = 8
_MOST_PLAIN_ROWS = 2
_MOST_PARTS = 8  # of the steps
_LEAST_STEPS = 64  # of a part
LEAST_VECTORS = 16  # of a block: shorter pieces of a row are slow to read
STEPS = 8  # rows of B that are read side by side: streams that the prefetcher follows


def is_streamed(contraction: Contraction, target: Target) -> bool:
    """Whether register tiles take longer, which read pieces of the lines of a large factor for the
    sake of few rows."""
    if not _is_for_few(contraction, _MOST_ROWS) or contraction.b.along(contraction.column) != 1:
        return False
    if is_uneven(contraction.op) or slides(contraction.op, contraction.b):
        return False
    size = bytes_of(contraction.b.tensor)
    if size is not None and size <= target.cache_bytes(2) // 4:
        return False
    streamed = streamed_cycles(contraction, target)
    return streamed <= ALIKE * max(cycles_of(contraction, target), _came(contraction, target))


def _came(contraction: Contraction, target: Target) -> float:
    """The cycles in which the columns' factor comes for tiles, which read pieces of its lines."""
    b, line = contraction.b.tensor, line_of(contraction)
    size, piece = usual_bytes_of(b), (extent_of(contraction.column) or USUAL) * b.dtype.itemsize
    came = transfer_cycles(size, size, target)
    return came * (in_pieces(target.level_of(size), piece, target) if len(line) > 1 else 1)


def is_left_plain(contraction: Contraction) -> bool:
    """Whether plain loops, which compute one sum after the other, are best: few rows use the
    columns' factor, and its elements lie side by side along the reduction axis."""
    across = contraction.b.along(contraction.column) != 1
    if not across or not _is_for_few(contraction, _MOST_PLAIN_ROWS):
        return False
    (k,) = contraction.op.reduce_axis
    return 0 < contraction.b.along(k) <= NEAR and contraction.a.along(k) <= NEAR


def _is_for_few(contraction: Contraction, most: int) -> bool:
    """Whether at most `most` rows use an element of `b`, and there is one reduction axis."""
    if contraction.a.reads(contraction.column) or len(contraction.op.reduce_axis) != 1:
        return False
    extents = [extent_of(axis) for axis in contraction.rows]
    return None not in extents and prod(each or 0 for each in extents) <= most


def streamed_cycles(contraction: Contraction, target: Target) -> float:
    """The cycles of a streamed contraction: the more of those of its arithmetic and of those in
    which the columns' factor comes from its cache. Of the fewer, a part in their proportion isn't
    hidden. A sum is read and written once in a few steps; elements of
    the rows' factor are read again for each product, unless all of them stay in registers."""
    op, b, cpu = contraction.op, contraction.b.tensor, target.processor
    lanes, size = target.lanes(op.output(0).dtype), usual_bytes_of(b)
    rows = prod(extent_of(axis) or 1 for axis in contraction.rows)
    steps = prod(extent_of(axis) or USUAL for axis in (*op.axis, *op.reduce_axis))
    stays = rows * STEPS <= target.vector_registers // 2  # sums need the others
    loads = 1 / rows + 1 / STEPS + (0 if stays else 1)
    came = transfer_cycles(size, size, target)
    piece = _most_columns(op, rows, target) * b.dtype.itemsize
    if piece < (product_of_extents(line_of(contraction)) or USUAL) * b.dtype.itemsize:
        came *= in_pieces(target.level_of(size), piece, target)
    computed = steps / lanes * max(1 / cpu.ports, loads / cpu.loads)
    fewer, more = sorted((computed, came))
    return more + fewer * fewer / more


def line_of(contraction: Contraction) -> list[IterVar]:
    """The axes along which a line of the columns' factor lies: the column, and those before it that
    continue the line."""
    found = [contraction.column]
    for axis in reversed(contraction.op.axis[: contraction.op.axis.index(contraction.column)]):
        before = contraction.b.along(found[0]) * (extent_of(found[0]) or 0)
        if contraction.a.reads(axis) or contraction.b.along(axis) != before or not before:
            break
        found.insert(0, axis)
    return found


def _most_columns(op: ComputeOp, rows: int, target: Target) -> int:
    """The number of columns whose sums stay in the L1 cache: whole vectors."""
    dtype = op.output(0).dtype
    lanes = target.lanes(dtype)
    return max(1, target.cache_bytes(1) // 2 // (rows * dtype.itemsize * lanes)) * lanes


def write_streamed(
    s: Schedule, contraction: Contraction, target: Target, *, in_order: bool
) -> None:
    """Writes the schedule. `in_order`: sums are not computed in parts."""
    op, total = contraction.op, contraction.op.output(0)
    places, line = places_of(contraction), len(line_of(contraction))
    lanes = target.lanes(total.dtype)
    rows = prod(extent_of(axis) or 1 for axis in contraction.rows)
    outside = [op.axis[i] for i in places.others[: len(places.others) - line + 1]]
    others = prod(extent_of(axis) or target.num_cores for axis in outside)
    (k,) = op.reduce_axis
    steps, columns = extent_of(k), product_of_extents(line_of(contraction))
    size, parts = bytes_of(total), 1
    if not in_order and steps is not None and size is not None:
        parts = parts_of_sum(steps, target.cache_bytes(2) // 2 // max(1, size))
    vectors = _most_columns(op, rows, target) // lanes
    if target.num_cores > others * parts:
        share = (columns or USUAL) * others * parts // (lanes * target.num_cores)
        vectors = min(vectors, max(share, LEAST_VECTORS))
    is_even = rows == 1 or (columns is not None and columns % lanes == 0)
    is_cheap = is_even or target.has_mask_registers
    together = _steps(None if steps is None else -(-steps // parts), is_cheap)
    choose(s, "strategy", "{b} is read once, {steps} rows of it at a time: {rows} rows alone use "
           "it, {most} at most; {block} columns of sums stay in the L1 cache, of {parts} parts of "
           "the steps", b=contraction.b.tensor.name, steps=together, rows=rows, most=_MOST_ROWS,
           block=vectors * lanes, parts=parts)  # fmt: skip
    stage, tasks = s[total], list[IterVar]()
    if parts > 1:
        row_axes, other_axes, column = places.of(stage)
        stage = split_in_parts(s, stage, parts, lanes, (*other_axes, *row_axes, column))
        tasks.append(compute_of(stage).axis[0])
    row_axes, other_axes, column = places.of(stage)
    tasks = [*other_axes[: len(outside)], *tasks]
    column = fused(stage, [*other_axes[len(outside) :], column])
    write_lines(stage, tasks, row_axes, column, (vectors * lanes, lanes), together)


def write_lines(
    stage: Stage,
    tasks: Sequence[IterVar],
    rows: Sequence[IterVar],
    column: IterVar,
    block: tuple[int, int],
    together: int,
) -> None:
    """Reads lines of memory along `column` whole, `together` at a time, for all `rows`, on all
    threads; `block`: the columns whose results stay in the L1 cache, and the lanes of a vector."""
    columns, lanes = block
    outer, column = stage.split(column, factor=columns)
    column, lane = stage.split(column, factor=lanes)
    *before, k = compute_of(stage).reduce_axis
    step, inner = stage.split(k, factor=together)
    tasks = [*tasks, outer]
    stage.reorder(*tasks, *before, step, column, *rows, inner, lane)
    for axis in (*rows, inner):
        stage.unroll(axis)
    stage.vectorize(lane)
    stage.parallel(fused(stage, tasks))


def split_in_parts(
    s: Schedule, stage: Stage, parts: int, lanes: int, axes: Sequence[IterVar] = ()
) -> Stage:
    """Combines the results of parts of a reduction's steps along its longest axis, in vectors along
    the last of its `axes` in this order; returns the stage that computes them."""
    *others, column = axes or compute_of(stage).axis
    part, _ = stage.split(longest_axis(compute_of(stage)), nparts=parts)
    made = factored(s, stage, part)
    column, lane = stage.split(column, factor=lanes)
    stage.reorder(*others, column, *compute_of(stage).reduce_axis, lane)
    stage.vectorize(lane)
    stage.parallel(fused(stage, [*others, column]))
    return made


def longest_axis(op: ComputeOp) -> IterVar:
    """The reduction axis of the most steps, the outermost of several."""
    return max(op.reduce_axis, key=lambda k: extent_of(k) or 0)


def parts_of_sum(steps: int, most: int) -> int:
    """The number of parts of a sum, at most `most`. It doesn't depend on the number of cores, and
    so the bits of the result don't either. A few parts less are better than a remainder."""
    most = max(1, min(_MOST_PARTS, steps // _LEAST_STEPS, most))
    counts = range(most, most // 2, -1)
    return min(counts, key=lambda parts: (steps % parts > 0, steps // parts % STEPS > 0))


def _steps(extent: int | None, is_cheap: bool) -> int:
    """The number of rows of B that are read side by side: a divisor, if one is near enough. A
    remainder costs little if `is_cheap`: unless the columns have a remainder as well, which takes
    masks that the processor must compute."""
    sizes = range(STEPS, STEPS // 2 - 1, -1)
    even = next((each for each in sizes if extent is not None and extent % each == 0), None)
    return even or (STEPS if is_cheap or extent is None else 1)
