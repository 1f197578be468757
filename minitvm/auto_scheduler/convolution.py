"""Convolutions: contractions that read the columns' factor through windows.

Where the output channels fill vectors, they are the columns: :mod:`channels`. Otherwise they are
the rows of a matrix product of the weights and a matrix of windows. This matrix is never stored as
a whole: each tile has a panel of it::

    for each tile of columns (neighbours in the flattened image):
        panel[k, j] = data[window k of column j]     # left out where windows are single elements
        for each tile of rows:
            sums[rows, columns] = 0                  # "local": vector registers
            for k:
                sums[i, j] += weights[i, k] * panel[k, j]
            C[...] = sums

Where each channel has weights of its own (depthwise), only overlaps of windows are used again, and
a tile reads the image itself, without panels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd, inf, prod
from typing import Any

from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.accumulators import sums_in_registers
from minitvm.auto_scheduler.channels import best_tile_of, flat, vectorize, write_channels
from minitvm.auto_scheduler.choice import choose, choose_tile
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    contraction_of,
    extent_of,
    loads_of,
)
from minitvm.auto_scheduler.cost import Tile
from minitvm.auto_scheduler.lanes_of_steps import fills_lanes_with_steps, write_lanes_of_steps
from minitvm.auto_scheduler.loops import compute_of, fused
from minitvm.auto_scheduler.terms import share_of_terms
from minitvm.auto_scheduler.tiles import balanced, vectors
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import element_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Reduce, Var
from minitvm.tir.functor import mentions, walk_once

_TASKS = 4  # images or tiles of columns from which on they are what threads share
_COPIES = 9  # elements of a window that are written out: a window of 3 x 3
_STATEMENTS = 80  # multiply-adds of a tile that are written out: some 2000 instructions


def is_convolution(contraction: Contraction, target: Target) -> bool:
    """Whether the sums have constant sizes, and the columns' factor is read through windows or has
    columns of several dimensions side by side. Those of an image with symbolic sizes are read as
    they lie: by channels that fill vectors, or depthwise."""
    columns = _columns(contraction)
    tensor = contraction.b.tensor
    reduced = contraction.op.reduce_axis
    if None in map(extent_of, reduced) or not reduced:
        return _is_depthwise_by_channels(contraction)
    if None in map(extent_of, columns) and not _is_read_as_it_lies(contraction, target):
        return _is_depthwise_by_channels(contraction)
    loads = loads_of(contraction.op, tensor)
    if not columns or len(loads) != 1:
        return _is_depthwise_by_channels(contraction)
    windows = any(not isinstance(index, Var) for index in loads[0].indices)
    if not windows and len(columns) == 1:
        return False
    factors = (contraction.a, contraction.b)
    return all(_is_copied_by_its_axes(contraction, each) for each in factors)


def _is_read_as_it_lies(contraction: Contraction, target: Target) -> bool:
    """Whether tiles read an image without panels of windows, which need constant sizes."""
    if any(_groups(contraction)):
        return False
    row = _rows(contraction)
    if row is None:
        return True
    is_wide = (extent_of(row) or 0) >= target.lanes(contraction.op.output(0).dtype)
    return is_wide and _channel(contraction, target) is not None


def _is_copied_by_its_axes(contraction: Contraction, factor: Factor) -> bool:
    """Whether an iteration reads one element of a factor, and a copy of these elements depends only
    on the axes of their indices, not on further axes of guards."""
    op, tensor = contraction.op, factor.tensor
    return len(loads_of(op, tensor)) == 1 and all(map(factor.reads, element_of(op, tensor).axes))


def _is_depthwise_by_channels(contraction: Contraction) -> bool:
    """Whether both factors read the columns, and one factor is the same along other axes."""
    return (
        contraction.a.reads(contraction.column)
        and _reused(contraction) is not None
        and bool(contraction.op.reduce_axis)
        and None not in map(extent_of, (contraction.column, *contraction.op.reduce_axis))
    )


def write_convolution(
    s: Schedule,
    contraction: Contraction,
    last: Tensor,
    target: Target,
    kept: Collection[Stage],
    *,
    in_order: bool,
) -> list[Stage]:
    """Writes the schedule of a convolution and of `last`, the stage that reads its sums; returns
    the scheduled stages. The tensors of `kept` are arguments, and stay where they are. `in_order`:
    sums are not computed in parts."""
    if not in_order and fills_lanes_with_steps(contraction, target):
        done, at = write_lanes_of_steps(s, contraction, target)
        image = s[contraction.b.tensor]
        if _is_own(image, kept) and _pads_by_channel(s, contraction, image):
            image.compute_at(s[contraction.op], at)
            _write_image(image, target)
            done.append(image)
        return done
    takes_sums = last.op is contraction.op
    sums = sums_in_registers(s, contraction, last)
    groups = _split_groups(s, sums)
    found = contraction_of(s[sums].op)
    assert found is not None
    channel = _channel(found, target)
    image = s[(found.a if channel == len(found.op.axis) - 1 else found.b).tensor]
    is_own = _is_own(image, kept)
    if channel is not None:
        axes = _grouped(s[last], groups)
        done = write_channels(s, sums, last, axes, channel, takes_sums, target)
    elif _rows(found) is not None:
        done = _write_product(s, found, sums, last, groups, target)
    else:
        done = _write_depthwise(s, found, sums, last, groups, target)
        if is_own and _pads_by_channel(s, found, image):
            image.compute_at(s[last], s[last].leaf_iter_vars[0])
    if is_own and isinstance(image.op, ComputeOp) and not image.op.reduce_axis:
        _write_image(image, target)
        done.append(image)
    return done


def _is_own(image: Stage, kept: Collection[Stage]) -> bool:
    """Whether an image is computed, and may be computed anywhere."""
    return isinstance(image.op, ComputeOp) and not image.inlined and image not in kept


def _channel(contraction: Contraction, target: Target) -> int | None:
    """The axis of the output channels if they are to be columns; None otherwise. They are columns
    where they are neighbours, or where that takes fewer cycles than panels of windows do."""
    row = _rows(contraction)
    if row is None:
        return None
    axes, reduced = contraction.op.axis, contraction.op.reduce_axis
    columns = _columns(contraction)
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
    """The cycles of a convolution in the better form, if its channels may be rows and columns."""
    row = _rows(contraction)
    return inf if row is None else min(_cycles_of_forms(contraction, row, target))


def _cycles_of_forms(contraction: Contraction, row: IterVar, target: Target) -> tuple[float, float]:
    """The cycles of a convolution whose output channels `row` are the columns of tiles, and of one
    whose channels are the rows."""
    op, weights, image = contraction.op, contraction.a, contraction.b
    images = [axis for axis in op.axis if axis is not row and image.reads(axis)]
    width = prod(extent_of(axis) or 1 for axis in _columns(contraction))
    channels = extent_of(row) or 1
    _, as_columns = best_tile_of(op, image, weights, images, channels, target, turned=True)
    _, as_rows = best_tile_of(op, weights, image, [row], width, target, turned=False)
    as_rows *= prod(extent_of(axis) or 1 for axis in images) // width
    return as_columns * share_of_terms(op, weights), as_rows


def _is_read_through_windows(contraction: Contraction) -> bool:
    """Whether the columns' factor is read at sums of a column and a reduction axis, or at every
    second column."""
    reduced = {axis.var for axis in contraction.op.reduce_axis}
    column = contraction.column.var
    for load in loads_of(contraction.op, contraction.b.tensor):
        for index in load.indices:
            terms = Prover().affine(index).terms
            if column in terms and (terms[column] != 1 or not reduced.isdisjoint(terms)):
                return True
    return False


def sums_over_images(contraction: Contraction) -> bool:
    """Whether the columns' factor is read through windows along which the result lies: at the sum
    of an axis and a longer reduction axis."""
    axes = {axis.var: extent_of(axis) for axis in contraction.op.axis}
    reduced = {axis.var: extent_of(axis) for axis in contraction.op.reduce_axis}
    for index in contraction.b.load.indices:
        terms = Prover().affine(index).terms
        places = [axes[each] or 0 for each in terms if isinstance(each, Var) and each in axes]
        steps = [reduced[each] or 0 for each in terms if isinstance(each, Var) and each in reduced]
        if places and steps and max(places) < max(steps):
            return True
    return False


def _pads_by_channel(s: Schedule, contraction: Contraction, image: Stage) -> bool:
    """Whether each channel of the image is read by only one output channel: then the image is
    padded where it is read."""
    outer = contraction.op.axis[:-2]
    return (
        len(s.readers(image)) == 1
        and not contraction.a.reads(contraction.column)
        and bool(outer)
        and all(contraction.b.reads(axis) for axis in outer if extent_of(axis) != 1)
    )


def _write_image(image: Stage, target: Target) -> None:
    """Pads an image: rows in vectors, channels in parallel."""
    *outer, column = compute_of(image).axis
    lanes = target.lanes(image.op.output(0).dtype)
    extent = extent_of(column)
    if extent is None or extent > lanes:
        _, column = image.split(column, factor=lanes)
    image.vectorize(column)
    if image.attach_stage is None and outer:
        image.parallel(image.fuse(*outer[:2]) if len(outer) > 2 else outer[0])


def _columns(contraction: Contraction) -> list[IterVar]:
    """The last axes, as many as only the columns' factor reads."""
    found: list[IterVar] = []
    for axis in reversed(contraction.op.axis):
        if contraction.a.reads(axis) or not contraction.b.reads(axis):
            break
        found.insert(0, axis)
    return found


def _rows(contraction: Contraction) -> IterVar | None:
    """The axis along which a tile has rows: it has several elements, and only `a` reads it."""
    found = [axis for axis in contraction.rows if extent_of(axis) != 1]
    return found[-1] if found else None


def _groups(contraction: Contraction) -> list[int | None]:
    """For each axis the size of its groups; None for an axis without groups."""
    op, sizes = contraction.op, dict[Var, int]()
    if extent_of(contraction.column) == 1:  # split, the sums would read 0 in its place
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


def _split_groups(s: Schedule, sums: Tensor) -> list[int | None]:
    """Splits an axis of channels read at ``channel // size`` into groups and the channels of a
    group; returns the size of the groups for each previous axis. An axis has groups if both factors
    read it, and its extent is a multiple of the size."""
    contraction = contraction_of(s[sums].op)
    assert contraction is not None
    groups = _groups(contraction)

    def layout(*indices: Any) -> list[Any]:
        made: list[Any] = []
        for index, size in zip(indices, groups, strict=True):
            made += [index] if size is None else [index // size, index % size]
        return made

    if any(groups):
        s[sums].transform_layout(layout)
    return groups


def _grouped(stage: Stage, groups: Sequence[int | None]) -> list[IterVar]:
    """The loops of the stage that reads the sums, split into groups as those of the sums."""
    made: list[IterVar] = []
    for axis, size in zip(compute_of(stage).axis, groups, strict=True):
        made += [axis] if size is None else stage.split(axis, factor=size)
    return made


# -- Products -------------------------------------------------------------------------------------


def _write_product(
    s: Schedule,
    contraction: Contraction,
    sums: Tensor,
    last: Tensor,
    groups: Sequence[int | None],
    target: Target,
) -> list[Stage]:
    columns, row = _columns(contraction), _rows(contraction)
    assert row is not None
    sizes = [extent_of(axis) or 1 for axis in columns]
    width = prod(sizes)
    first = len(contraction.op.axis) - len(columns)
    place = contraction.op.axis.index(row)
    lanes = target.lanes(last.dtype)
    tile, _ = best_tile_of(
        contraction.op, contraction.a, contraction.b, [row], width, target, turned=False
    )
    choose_tile(s, contraction, tile, vectors(last.dtype, target), target, width=width)
    panels = None
    if width % tile.columns or not _is_flat(contraction, columns):
        choose(s, "packing", "the windows of {b} are copied into panels of "
               "{columns} columns", b=contraction.b.tensor.name, columns=tile.columns)  # fmt: skip
        panels = s[s.cache_access(contraction.b.tensor, "global", s[sums].op)]
    s[sums].transform_layout(lambda *indices: [*indices[:first], flat(indices[first:], sizes)])

    stage = s[last]
    axes = _grouped(stage, groups)
    column_outer, column = stage.split(fused(stage, axes[first:]), factor=tile.columns)
    row_outer, row_inner = stage.split(axes[place], factor=tile.rows)
    # Loops that read other windows are outside; of those that read other weights panels are free.
    around = [i for i, axis in enumerate(contraction.op.axis[:first]) if contraction.b.reads(axis)]
    outer = [axes[i] for i in around]
    others = [axes[i] for i in range(first) if i not in (*around, place)]
    stage.reorder(*outer, column_outer, *others, row_outer, row_inner, column)
    stage.unroll(row_inner)
    vectorize(stage, column, min(width, tile.columns), lanes)
    _write_sums(s[sums], place, min(width, tile.columns), lanes)
    s[sums].compute_at(stage, row_outer)

    sizes_around = [extent_of(contraction.op.axis[i]) for i in around]
    images = prod(extent or _TASKS for extent in sizes_around)
    many = max(images, -(-width // tile.columns)) >= _TASKS
    if images >= _TASKS:
        stage.parallel(fused(stage, outer))
    else:
        stage.parallel(column_outer if many else fused(stage, [*others, row_outer]))
    if panels is None:
        return [stage, s[sums]]
    is_flat = _is_flat(contraction, columns)
    step = tile.columns if is_flat else _step(columns, width, tile, lanes)
    loops = _flatten(panels, contraction, sizes, tile.columns)
    _write_panels(panels, loops, step, shared=not many, is_whole=_is_whole(contraction.op))
    if many:
        panels.compute_at(stage, column_outer)
    elif images > 1:
        several = [loop for loop, extent in zip(outer, sizes_around, strict=True) if extent != 1]
        panels.compute_at(stage, several[-1])
    return [stage, s[sums], panels]


def _write_sums(inner: Stage, place: int, width: int, lanes: int) -> None:
    """The sums of a tile: one loop over all reduction axes outside, a tile inside."""
    own = compute_of(inner).axis
    k = fused(inner, compute_of(inner).reduce_axis)
    rest = [axis for i, axis in enumerate(own[:-1]) if i != place]
    inner.reorder(*rest, k, own[place], own[-1])
    inner.unroll(own[place])
    vectorize(inner, own[-1], width, lanes)


def _is_flat(contraction: Contraction, columns: Sequence[IterVar]) -> bool:
    """Whether the columns' factor lies in memory as the columns do, in order."""
    (load,) = loads_of(contraction.op, contraction.b.tensor)
    distance = 1
    for axis in reversed(columns):
        plain = any(index is axis.var for index in load.indices)
        if contraction.b.along(axis) != distance or not (plain or len(columns) == 1):
            return False
        distance *= extent_of(axis) or 1
    return True


def _flatten(
    panels: Stage, contraction: Contraction, sizes: Sequence[int], columns: int
) -> tuple[list[IterVar], list[IterVar]]:
    """Copies the windows into panels, each with the columns of a tile for all reduction axes;
    returns the loops over panels, and the loops inside of a panel."""
    count = len(sizes)
    # The copy has the axes of data that the factor reads, the columns last, and then those summed.
    data = [axis for axis in contraction.op.axis if contraction.b.reads(axis)]
    first = len(data) - count
    panels.transform_layout(
        lambda *i: [*i[:first], flat(i[first : first + count], sizes), *i[first + count :]]
    )
    loops = panels.transform_layout(
        lambda *i: [*i[:first], i[first] // columns, *i[first + 1 :], i[first] % columns]
    )
    return loops[: first + 1], loops[first + 1 :]


def _step(columns: Sequence[IterVar], width: int, tile: Tile, lanes: int) -> int:
    """The number of columns of a tile that are surely neighbours in a row of the image."""
    row = extent_of(columns[-1]) or 1
    return min(row, lanes) if tile.columns >= width else gcd(row, tile.columns)


def _is_whole(op: ComputeOp) -> bool:
    """Whether the loops over terms run from end to end, not clipped by a condition."""
    reduce = op.body[0]
    assert isinstance(reduce, Reduce)
    return not any(mentions(axis.var, reduce.condition) for axis in op.reduce_axis)


def _write_panels(
    panels: Stage,
    loops: tuple[list[IterVar], list[IterVar]],
    step: int,
    *,
    shared: bool,
    is_whole: bool,
) -> None:
    """Copies windows, a few neighbours at a time. `is_whole`: no terms are left out."""
    outer, (*reduced, column) = loops
    column_outer, column_inner = panels.split(column, factor=step)
    if shared:
        panels.reorder(*reduced[:1], *outer, column_outer, *reduced[1:], column_inner)
        panels.parallel(panels.leaf_iter_vars[0])
    else:
        panels.reorder(*outer, column_outer, *reduced, column_inner)
    if is_whole and prod(extent_of(axis) or 1 for axis in reduced[1:]) <= _COPIES:
        for axis in reduced[1:]:
            panels.unroll(axis)
    if step > 1:
        panels.vectorize(column_inner)


# -- Depthwise ------------------------------------------------------------------------------------


def _reused(contraction: Contraction) -> IterVar | None:
    """The last axis, other than the columns, along which one of the factors stays the same."""
    a, b = contraction.a, contraction.b
    for axis in reversed(contraction.op.axis[:-1]):
        if extent_of(axis) != 1 and a.reads(axis) != b.reads(axis):
            return axis
    return None


def _write_depthwise(
    s: Schedule,
    contraction: Contraction,
    sums: Tensor,
    last: Tensor,
    groups: Sequence[int | None],
    target: Target,
) -> list[Stage]:
    stage, inner = s[last], s[sums]
    assert isinstance(inner.op, ComputeOp)
    lanes = target.lanes(last.dtype)
    width = extent_of(contraction.column) or 2 * lanes
    row = _reused(contraction)
    reduced = inner.op.reduce_axis
    window = prod(extent_of(axis) or 1 for axis in reduced)
    vectors = min(-(-width // lanes), 2)
    few = min(_STATEMENTS // window, target.vector_registers // 2)
    most = max(1, max(few, target.multiply_adds_under_way) // vectors)
    height = None if row is None else extent_of(row)
    rows = most if height is None else balanced(height, most)
    choose(s, "tile", "each channel by itself, from the image: {rows} x {columns} "
           "sums of {window} products, written out up to {most} of a column", rows=rows,
           columns=vectors * lanes, window=window, most=_STATEMENTS)  # fmt: skip

    axes = _grouped(stage, groups)
    column_outer, column = stage.split(axes[-1], factor=vectors * lanes)
    outer = axes[:-1]
    tiles, inside = [column_outer], [column]
    if row is not None:
        place = contraction.op.axis.index(row)
        outer = [axis for axis in outer if axis is not axes[place]]
        row_outer, row_inner = stage.split(axes[place], factor=rows)
        stage.unroll(row_inner)
        tiles, inside = [row_outer, column_outer], [row_inner, column]
    stage.reorder(*outer, *tiles, *inside)
    vectorize(stage, column, min(width, vectors * lanes), lanes)
    inner.compute_at(stage, tiles[-1])
    here = [] if row is None else [inner.op.axis[contraction.op.axis.index(row)]]
    own = [axis for axis in inner.op.axis[:-1] if axis not in here]
    inner.reorder(*own, *reduced, *here, inner.op.axis[-1])
    for axis in (*_written_out(reduced, rows), *here):
        inner.unroll(axis)
    vectorize(inner, inner.op.axis[-1], min(width, vectors * lanes), lanes)
    stage.parallel(fused(stage, outer or tiles[:1]))
    return [stage, inner]


def _written_out(reduced: Sequence[IterVar], rows: int) -> list[IterVar]:
    """The innermost axes of a window whose products for so many rows are written out."""
    found: list[IterVar] = []
    for axis in reversed(reduced):
        rows *= extent_of(axis) or 1
        if rows > _STATEMENTS:
            break
        found.insert(0, axis)
    return found
