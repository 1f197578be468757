"""The forms of a contraction: which one takes the fewest cycles.

Each form has a model of its own: lanes of sums, sums one by one, streams, convolutions, tiles. What
a contraction takes as it is written is that of the form that it gets; :mod:`layouts` compares it
with other orders of its axes.

The output channels are the columns of tiles where they fill vectors, or where this takes fewer
cycles. Otherwise the channels are the rows, and the columns are places in the image, whose windows
are copied into panels. Where each channel has weights of its own (depthwise), only the elements in
overlaps of windows are used again. :mod:`minitvm.auto_scheduler.image_tiles` writes all three
forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf

from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.contraction import (
    NEAR,
    Contraction,
    Factor,
    bytes_at_once,
    extent_of,
    factors_of,
    long_axes,
    reduce_of,
    steps_of,
)
from minitvm.auto_scheduler.cost import (
    Blocks,
    Nest,
    Tile,
    copy_cycles,
    copy_cycles_apart,
    cost,
    cycles_of_evicted_rows,
    transfer_cycles,
    usual_bytes_of,
    usual_size,
)
from minitvm.auto_scheduler.instructions import cycles_by_instruction
from minitvm.auto_scheduler.lanes import best_in_lanes
from minitvm.auto_scheduler.streams import is_left_plain, is_streamed, streamed_cycles
from minitvm.auto_scheduler.terms import MULTIPLY_ADD, SEPARATE, is_fused, share_of_terms
from minitvm.auto_scheduler.tiled import cycles_of
from minitvm.auto_scheduler.tiles import ALIKE, best_tile, vectors
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import element_of, reads_of
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Var
from minitvm.tir.functor import walk_once

# -- Convolutions --


_SURE = 1.1  # times the cycles: one long axis of columns has the simpler loops


def is_convolution(contraction: Contraction, target: Target) -> bool:
    """Whether the sums have constant sizes, and the columns' factor is read through windows or has
    columns of several dimensions side by side. An image with symbolic sizes must be read without
    panels: by channels that fill vectors, or depthwise."""
    columns, reduced = columns_of(contraction), contraction.op.reduce_axis
    loads = reads_of(contraction.op, contraction.b.tensor)
    if (
        None in map(extent_of, reduced)
        or not (reduced and columns and len(loads) == 1)
        or (None in map(extent_of, columns) and not _is_read_as_it_lies(contraction, target))
    ):
        return _is_depthwise_by_channels(contraction)
    windows = any(not isinstance(index, Var) for index in loads[0].indices)
    if not windows and len(columns) == 1:
        return False
    factors = (contraction.a, contraction.b)
    if not all(is_copied_by_its_axes(contraction, each) for each in factors):
        return False
    return not _is_better_by_tiles(contraction, target, is_image=windows)


def _is_better_by_tiles(contraction: Contraction, target: Target, *, is_image: bool) -> bool:
    """Whether a contraction with several axes of columns takes fewer cycles with the last one as
    the columns, and another product for each of the others. An image is read as it lies then."""
    if row_of(contraction) is None or None in map(extent_of, contraction.op.axis):
        return False
    if is_image and contraction.b.along(contraction.column) != 1:
        return False
    return cycles_of(contraction, target) * _SURE < cycles_of_convolution(contraction, target)


def _is_read_as_it_lies(contraction: Contraction, target: Target) -> bool:
    """Whether tiles read an image without panels of windows, which need constant sizes."""
    if any(groups_of(contraction)):
        return False
    row = row_of(contraction)
    if row is None:
        return True
    is_wide = (extent_of(row) or 0) >= target.lanes(contraction.op.output(0).dtype)
    return is_wide and channel_of(contraction, target) is not None


def is_copied_by_its_axes(contraction: Contraction, factor: Factor) -> bool:
    """Whether an iteration reads one element of a factor, and a copy of these elements depends only
    on the axes in their indices, not on further axes in guards."""
    op, tensor = contraction.op, factor.tensor
    return len(reads_of(op, tensor)) == 1 and all(map(factor.reads, element_of(op, tensor).axes))


def _is_depthwise_by_channels(contraction: Contraction) -> bool:
    """Whether both factors read the columns, and one factor is the same along other axes."""
    return (
        contraction.a.reads(contraction.column)
        and reused_axis(contraction) is not None
        and bool(contraction.op.reduce_axis)
        and None not in map(extent_of, contraction.op.reduce_axis)
    )


def channel_of(contraction: Contraction, target: Target) -> int | None:
    """The axis of the output channels if they are to be columns; None otherwise. They are columns
    where they are neighbours, or where that takes fewer cycles than panels of windows do."""
    row = row_of(contraction)
    if row is None:
        return None
    axes, reduced = contraction.op.axis, contraction.op.reduce_axis
    columns = columns_of(contraction)
    if not columns:
        return None
    if len(columns) == 1 and not _is_read_through_windows(contraction):
        return len(axes) - 1
    channels, neighbours = extent_of(row), extent_of(columns[-1])
    if channels is None or all(extent_of(axis) == 1 for axis in columns):
        return None
    others = (each for each in contraction.factors if each.tensor is not contraction.a.tensor)
    if any(each.reads(row) and any(map(each.reads, reduced)) for each in others):
        return None  # the image's factor has weights of its own
    if neighbours is None:
        return axes.index(row)
    as_columns, as_rows = _cycles_of_forms(contraction, row, target)
    return axes.index(row) if as_columns < as_rows else None


def cycles_of_convolution(contraction: Contraction, target: Target) -> float:
    """The cycles of a convolution in the better form, if its channels may be rows as well as
    columns."""
    row = row_of(contraction)
    return inf if row is None else min(_cycles_of_forms(contraction, row, target))


def _cycles_of_forms(contraction: Contraction, row: IterVar, target: Target) -> tuple[float, float]:
    """The cycles of a convolution whose output channels `row` are the columns of tiles, and of one
    whose channels are the rows."""
    op, weights, image = contraction.op, contraction.a, contraction.b
    images = [axis for axis in op.axis if axis is not row and image.reads(axis)]
    width, channels = usual_size(columns_of(contraction)), usual_size([row])
    _, as_columns = best_tile_of(op, image, weights, images, channels, target, turned=True)
    _, as_rows = best_tile_of(op, weights, image, [row], width, target, turned=False)
    as_rows *= usual_size(images) // width
    rows = usual_size(axis for axis in contraction.rows if axis is not row)
    return rows * as_columns * share_of_terms(op, weights), rows * as_rows


def _is_read_through_windows(contraction: Contraction) -> bool:
    """Whether the columns' factor is read at sums of a column and a reduction axis, or at every
    second column."""
    reduced = {axis.var for axis in contraction.op.reduce_axis}
    column = contraction.column.var
    for load in reads_of(contraction.op, contraction.b.tensor):
        for index in load.indices:
            terms = Prover().affine(index).terms
            if column in terms and (terms[column] != 1 or not reduced.isdisjoint(terms)):
                return True
    return False


def sums_over_images(contraction: Contraction) -> bool:
    """Whether the columns' factor is read at the sum of a data axis and a longer reduction axis:
    the result is as large as a window, and sums over images."""
    axes = {axis.var: extent_of(axis) for axis in contraction.op.axis}
    reduced = {axis.var: extent_of(axis) for axis in contraction.op.reduce_axis}
    for index in contraction.b.load.indices:
        terms = Prover().affine(index).terms
        places = [axes[each] or 0 for each in terms if isinstance(each, Var) and each in axes]
        steps = [reduced[each] or 0 for each in terms if isinstance(each, Var) and each in reduced]
        if places and steps and max(places) < max(steps):
            return True
    return False


def columns_of(contraction: Contraction) -> list[IterVar]:
    """The last axes, as long as only the columns' factor reads them."""
    found: list[IterVar] = []
    for axis in reversed(contraction.op.axis):
        if contraction.a.reads(axis) or not contraction.b.reads(axis):
            break
        found.insert(0, axis)
    return found


def row_of(contraction: Contraction) -> IterVar | None:
    """The axis along which a tile has rows: it has several elements, and only `a` reads it."""
    found = long_axes(contraction.rows)
    return found[-1] if found else None


def groups_of(contraction: Contraction) -> list[int | None]:
    """For each axis the size of its groups; None for an axis without groups."""
    op, sizes = contraction.op, dict[Var, int]()
    if extent_of(contraction.column) == 1:  # if it were split, the sums would read 0 in its place
        return [None] * len(op.axis)
    for each in walk_once(op.body[0]):
        if isinstance(each, e.FloorDiv) and isinstance(each.a, Var):
            size = e.const_int(each.b)
            if size is not None and size > 1:
                sizes[each.a] = size
    groups: list[int | None] = []
    for axis in op.axis:
        size, extent = sizes.get(axis.var), extent_of(axis)
        in_both = contraction.a.reads(axis) and contraction.b.reads(axis)
        whole = size is not None and extent is not None and extent % size == 0
        groups.append(size if in_both and whole else None)
    return groups


def reused_axis(contraction: Contraction) -> IterVar | None:
    """The last axis, other than the columns, along which one of the factors stays the same."""
    a, b = contraction.a, contraction.b
    for axis in reversed(contraction.op.axis[:-1]):
        if extent_of(axis) != 1 and a.reads(axis) != b.reads(axis):
            return axis
    return None


def neighbours_of(row: int, width: int, tile: Tile, lanes: int) -> int:
    """The number of columns of a tile that are surely neighbours in a row of an image."""
    return min(row, lanes) if tile.columns >= width else gcd(row, tile.columns)


def best_tile_of(
    op: ComputeOp,
    a: Factor,
    b: Factor,
    rows: Sequence[IterVar],
    width: int,
    target: Target,
    *,
    turned: bool,
) -> tuple[Tile, float]:
    """The tile of a convolution that takes the fewest cycles, and their number. A panel of `width`
    columns of the factor `b` is read for all `rows`; the rows of tiles lie along the last of these
    axes. The factor `a` is read once for each panel. A tile at the edge computes all its columns.
    `turned`: sums are transposed on their way to memory."""
    dtype, itemsize = op.output(0).dtype, a.copied.itemsize
    lanes, steps = target.lanes(dtype), steps_of(op, a)
    nest = Nest(
        tuple(extent_of(axis) for axis in rows),
        -(-width // lanes) * lanes,
        tuple(extent_of(axis) for axis in steps),
        (),
        dtype,
        itemsize,
        a.along(rows[-1]) * itemsize,
        a.bytes_along(steps),
        b.bytes_along(steps),
        vectors(dtype, target),
        MULTIPLY_ADD if is_fused(reduce_of(op), target) else SEPARATE,
        a_bytes=bytes_at_once(op, a, b),
        pads_columns=True,
        is_packed=True,
        transposes=turned,
    )
    tile = best_tile(nest, target, lambda tile: Blocks(columns=tile.columns))
    row = extent_of(op.axis[-1]) or 1
    if turned or (b.along(op.axis[-1]) <= NEAR and neighbours_of(row, width, tile, lanes) > 1):
        copied = copy_cycles(nest.depth * width * itemsize)
    else:
        copied = copy_cycles_apart(nest.depth * width)
    evicted = cycles_of_evicted_rows(nest, tile, target)
    return tile, cost(nest, tile, Blocks(columns=tile.columns), target) + copied + evicted


# -- The forms --


_APART = 2  # loads in the time of one element of a vector whose elements lie apart
_ROWS = 4  # sums of a lane
_LANES = 2  # cycles of a shuffle and an addition


def tile_in_lanes(contraction: Contraction, target: Target) -> Tile | None:
    """The tile of a contraction by lanes of sums, if that takes fewer cycles than other forms.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((16, 4096), name="A"), te.placeholder((16, 4096), name="B")
    >>> k = te.reduce_axis((0, 4096), name="k")
    >>> C = te.compute((16, 16), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    >>> znver3 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    >>> tile_in_lanes(contraction_of(C.op), znver3)
    Tile(rows=6, columns=2)
    """
    found = best_in_lanes(contraction, target)
    if found is None:
        return None
    tile, cycles = found
    return tile if cycles * ALIKE < _cycles_of_others(contraction, target) else None


def cycles_of_strategy(contraction: Contraction, target: Target, *, in_order: bool) -> float:
    """The cycles of a contraction by the strategy that it gets."""
    in_lanes = None if in_order else best_in_lanes(contraction, target)
    others = _cycles_of_others(contraction, target, in_order=in_order)
    return min(inf if in_lanes is None else in_lanes[1], others)


def _cycles_of_others(contraction: Contraction, target: Target, *, in_order: bool = False) -> float:
    is_exact = not contraction.op.output(0).dtype.is_float
    if is_exact or not in_order:
        cycles = cycles_by_instruction(contraction, target)
        if cycles is not None:
            return cycles
    if is_left_plain(contraction):
        return _cycles_one_by_one(contraction.op, contraction.factors, target)
    if is_streamed(contraction, target):
        return streamed_cycles(contraction, target)
    if not contraction.rows or is_convolution(contraction, target):
        if row_of(contraction) is not None:
            return cycles_of_convolution(contraction, target)
        return _cycles_in_lanes(contraction, target)
    return cycles_of(contraction, target)


def _cycles_one_by_one(op: ComputeOp, factors: Sequence[Factor], target: Target) -> float:
    """The cycles of sums one by one, in vectors along the steps. Their lanes are added at the end;
    short ones side by side."""
    cpu = target.processor
    lanes = target.lanes(op.output(0).dtype)
    results, steps = usual_size(op.axis), usual_size(op.reduce_axis)
    each = steps / lanes if steps < lanes else -(-steps // lanes)
    apart = [factor.along(op.reduce_axis[-1]) for factor in factors]
    loads = each * sum(_APART * lanes if n > NEAR else max(1, n) for n in apart)
    added = min(steps, lanes) / lanes * lanes.bit_length() * _LANES
    return results * (loads / cpu.loads + added) + _moved(factors, target)


def _cycles_in_lanes(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction both of whose factors change from lane to lane, or that has no
    rows. A few sums of a lane use an element again; the others read it from its cache."""
    op, cpu, column = contraction.op, target.processor, contraction.column
    dtype = op.output(0).dtype
    lanes, width = target.lanes(dtype), usual_size([column])
    vectors = usual_size(op.axis) // width * -(-width // lanes) * usual_size(op.reduce_axis)
    row = reused_axis(contraction)
    several = min(_ROWS, 1 if row is None else usual_size([row]))
    loads, came = 0.0, 0.0
    for each in contraction.factors:
        apart = each.along(column)
        again = several if row is not None and not each.reads(row) else 1
        loads += (_APART * lanes if apart > NEAR else max(1, apart)) / again
        lines = lanes * min(apart * dtype.itemsize, CACHE_LINE)
        came += transfer_cycles(lines, usual_bytes_of(each.tensor), target) / again
    return vectors * max(1 / cpu.ports, loads / cpu.loads, came)


def cycles_of_reduction(op: ComputeOp, target: Target) -> float:
    """The cycles of a reduction that uses no element again: in vectors of neighbouring results, if
    these read neighbouring terms, or of neighbouring steps."""
    factors, lanes = factors_of(op), target.lanes(op.output(0).dtype)
    column = long_axes(op.axis)[-1:]
    if not column or any(each.along(column[0]) not in (0, 1) for each in factors):
        return _cycles_one_by_one(op, factors, target)
    width = usual_size(column)
    vectors = usual_size([*op.axis, *op.reduce_axis]) / width * -(-width // lanes)
    return vectors * len(factors) / target.processor.loads + _moved(factors, target)


def _moved(factors: Sequence[Factor], target: Target) -> float:
    """The cycles in which factors come once from the caches that hold them."""
    sizes = [usual_bytes_of(each.tensor) for each in factors]
    return sum(transfer_cycles(size, size, target) for size in sizes)
