"""A strategy for convolutions: contractions whose tiles read an image through windows.

The decision is which axes are the columns of tiles: the output channels where they fill vectors, or
where this takes fewer cycles; the places of the image otherwise. Both have the loops of
:func:`minitvm.auto_scheduler.loops.write_tiles`. With the output channels as columns, each row of a
tile reads the image at a constant distance from the first row, for any stride, dilation and size.
So the image is read as it lies, without a copy::

    for each tile of channels:
        panel[k, j] = weights[j, k]                  # left out where channels are neighbours
        for each row of the image, for each tile of it:
            sums[rows, columns] = 0                  # "local": vector registers
            for k:
                sums[i, j] += image[window k of i] * panel[k, j]
            C[..., j, i] = sums[i, j]                # transposed, where channels aren't neighbours

With the channels as rows, the columns are places in the flattened image. The matrix of their
windows is never stored as a whole: each tile has a panel of it::

    for each tile of columns:
        panel[k, j] = data[window k of column j]     # left out where windows are single elements
        for each tile of rows:
            sums[rows, columns] = 0
            for k:
                sums[i, j] += weights[i, k] * panel[k, j]
            C[...] = sums

Where each channel has weights of its own (depthwise), only overlaps of windows are used again, and
a tile reads the image itself, without panels.

Threads share the tiles of columns, groups and images; where these are too few, the rows of each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import final

from minitvm.arith.accesses import step_of, without_digits
from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.choice import choose, choose_form, choose_tile
from minitvm.auto_scheduler.contraction import (
    NEAR,
    Contraction,
    Factor,
    contraction_of,
    extent_of,
    long_axes,
    order_of_steps,
    product_of_extents,
    reused_axis,
)
from minitvm.auto_scheduler.cost import (
    Blocks,
    Nest,
    Tile,
    copy_cycles,
    copy_cycles_apart,
    cost,
    cycles_of_evicted_rows,
    kept_level,
    steps_in,
    usual_bytes_of,
    usual_size,
)
from minitvm.auto_scheduler.lanes import fills_lanes_with_steps, write_lanes_of_steps
from minitvm.auto_scheduler.loops import (
    Places,
    Tiles,
    compute_of,
    divided,
    extent_in,
    fused,
    in_vectors,
    innermost,
    lie_along,
    nest_of,
    sums_in_registers,
    write_loops,
    write_sums,
    write_tiles,
)
from minitvm.auto_scheduler.packing import cast_to, in_panels, write_cast, write_image, write_panels
from minitvm.auto_scheduler.some_sizes import USUAL, has_sizes, may_vary
from minitvm.auto_scheduler.sums import Sums
from minitvm.auto_scheduler.terms import MULTIPLY_ADD, SEPARATE, is_fused
from minitvm.auto_scheduler.tiled import cycles_of
from minitvm.auto_scheduler.tiles import balanced, best_tile, in_columns_of_tiles, vectors
from minitvm.auto_scheduler.ways import Way, cycles_of_way, cycles_without_rows
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import element_of, reads_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import place_in_memory
from minitvm.te.tensor import ComputeOp, Tensor, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Var
from minitvm.tir.functor import mentions, walk_once

_ROWS_OF_HALO = 2  # of a strip that is padded, for each one that its neighbour pads again
_TASKS = 2  # of a core: where there are fewer, threads share each
_COPIES = 9  # elements of a window that are written out: a window of 3 x 3
_STATEMENTS = 80  # multiply-adds of a tile that are written out: some 2000 instructions
SURE = 1.1  # times the cycles: one long axis of columns has the simpler loops


# -- Which axes are columns --


def is_convolution(contraction: Contraction, target: Target) -> bool:
    """Whether the sums have constant sizes, and the columns' factor is read through windows or has
    columns of several dimensions side by side. An image with symbolic sizes must be read without
    panels: by channels that fill vectors, or depthwise."""
    columns, reduced = columns_of(contraction), contraction.op.reduce_axis
    loads = reads_of(contraction.op, contraction.b.tensor)
    if (
        None in map(extent_of, reduced)
        or not (reduced and columns and len(loads) == 1)
        or (any(map(may_vary, columns)) and not _is_read_as_it_lies(contraction, target))
    ):
        return _is_depthwise_by_channels(contraction)
    indices = without_digits(loads[0].indices, loads[0].producer.shape)
    windows = any(not isinstance(index, Var | e.IntImm) for index in indices)
    is_line = has_sizes() and any(map(may_vary, columns))  # a version is written for long lines
    if not windows and (len(columns) == 1 or is_line):
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
    return cycles_of(contraction, target) * SURE < cycles_of_convolution(contraction, target)


def _is_read_as_it_lies(contraction: Contraction, target: Target) -> bool:
    """Whether tiles read an image without panels of windows, which need constant sizes."""
    if any(group_sizes(contraction)):
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
    """The cycles of a convolution: in the better form, if its channels may be rows as well as
    columns."""
    row = row_of(contraction)
    if row is None:
        if fills_lanes_with_steps(contraction, target):
            way = Way(contraction.op.reduce_axis[-1])
            return cycles_of_way(way, contraction.op, contraction.factors, target)
        return cycles_without_rows(contraction, target)
    return min(_cycles_of_forms(contraction, row, target))


def _cycles_of_forms(contraction: Contraction, row: IterVar, target: Target) -> tuple[float, float]:
    """The cycles of a convolution whose output channels `row` are the columns of tiles, and of one
    whose channels are the rows."""
    op, weights, image = contraction.op, contraction.a, contraction.b
    images = [axis for axis in op.axis if axis is not row and image.reads(axis)]
    width, channels = usual_size(columns_of(contraction)), usual_size([row])
    turned = replace(contraction, a=image, b=weights, column=row)
    _, as_columns = _Form(turned, images, channels, target, turned=True).best_tile()
    _, as_rows = _Form(contraction, [row], width, target).best_tile()
    as_rows *= usual_size(images) // width
    rows = usual_size(axis for axis in contraction.rows if axis is not row)
    return rows * as_columns, rows * as_rows


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


def group_sizes(contraction: Contraction) -> list[int | None]:
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


def neighbours_of(row: int, width: int, tile: Tile, lanes: int) -> int:
    """The number of columns of a tile that are surely neighbours in a row of an image."""
    return min(row, lanes) if tile.columns >= width else gcd(row, tile.columns)


@final
@record()
class _Form:
    """A convolution as a product by tiles. A panel of `width` columns of the columns' factor is
    read for all `rows`, the rows' factor once for each panel; a tile has rows along the last axis
    of `rows`. A tile at the edge computes all its columns. `turned`: sums are transposed on their
    way to memory."""

    contraction: Contraction
    rows: Sequence[IterVar]
    width: int
    target: Target
    turned: bool = False

    @property
    def nest(self) -> Nest:
        """The form as the model sees it, its columns in panels."""
        contraction, target, a = self.contraction, self.target, self.contraction.a
        lanes = target.lanes(contraction.op.output(0).dtype)
        fused = is_fused(reduce_of(contraction.op), target)
        terms = MULTIPLY_ADD if fused else SEPARATE
        return replace(
            nest_of(contraction, target, a.copied, terms=terms),
            rows=tuple(map(extent_of, self.rows)),
            columns=-(-self.width // lanes) * lanes,
            others=(),
            row_bytes=a.along(self.rows[-1]) * a.copied.itemsize,
            b_bytes=None,
            pads_columns=True,
            is_packed=True,
            transposes=self.turned,
        )

    def best_tile(self) -> tuple[Tile, float]:
        """The tile that takes the fewest cycles, and their number."""
        nest, target, column = self.nest, self.target, self.contraction.op.axis[-1]
        tile = best_tile(nest, target, in_columns_of_tiles)
        lanes, row = target.lanes(nest.dtype), extent_of(column) or 1
        several = neighbours_of(row, self.width, tile, lanes) > 1
        are_lines = several and self.contraction.b.along(column) <= NEAR
        elements = nest.depth * self.width
        in_lines = self.turned or are_lines
        copied = copy_cycles(elements * nest.itemsize) if in_lines else copy_cycles_apart(elements)
        evicted = cycles_of_evicted_rows(nest, tile, target)
        return tile, cost(nest, tile, Blocks(columns=tile.columns), target) + copied + evicted

    def pays_to_pack(self, tile: Tile) -> bool:
        """Whether tiles read columns that lie side by side faster from panels, the copy counted."""
        nest, blocks = self.nest, Blocks()
        copied = copy_cycles(nest.depth * self.width * nest.itemsize)
        as_they_lie = cost(replace(nest, is_packed=False), tile, blocks, self.target)
        return cost(nest, tile, blocks, self.target) + copied < as_they_lie


# -- Loops --


def write_convolution(given: Sums, _: bool) -> list[Stage]:
    """Writes the schedule of a convolution and of the stage that reads its sums; returns the
    scheduled stages."""
    s, contraction, target, kept = given.schedule, given.contraction, given.target, given.kept
    choose_form(s, contraction, "convolution")
    if not given.in_order and fills_lanes_with_steps(contraction, target):
        done, at = write_lanes_of_steps(s, contraction, target)
        image = s[contraction.b.tensor]
        if _is_own(image, kept) and _pads_by_channel(s, contraction, image):
            image.compute_at(s[contraction.op], at)
            write_image(image, target)
            done.append(image)
        return done
    last, takes_sums = given.last, given.last is given.stage
    sums = sums_in_registers(s, contraction, last.op.output(0))
    axes = _split_groups(s, sums, last)
    found = _contraction_of(s, sums)
    channel = channel_of(found, target)
    image = s[(found.a if channel == len(axes) - 1 else found.b).tensor]
    writer = _Writer(s, sums, last, target, given.in_order)
    is_own = _is_own(image, kept)
    if channel is not None or (row_of(found) is not None and columns_of(found)):
        done = writer.write(axes, channel, takes_sums)
    else:
        pads = is_own and _pads_by_channel(s, found, image)
        strip = _strip_of(s, found, image, target) if is_own else None
        at = writer.write_depthwise(found, axes, strip, pads=pads)
        done = [last, s[sums]]
        if pads or strip is not None:
            image.compute_at(last, at)
    if is_own and not compute_of(image).reduce_axis:
        write_image(image, target)
        done.append(image)
    return done


def _contraction_of(s: Schedule, sums: Tensor) -> Contraction:
    """The sums as a contraction, whose tiles have rows along a long axis, if there is one."""
    found = contraction_of(s[sums].op)
    assert found is not None
    return replace(found, row=row_of(found))


@final
@record()
class _Strip:
    """Rows of an image that are padded at a time: so many that `halo`, the rows of the next strip
    that a window reaches, is the lesser part. A row of the result is `step` rows further on."""

    halo: int
    step: int

    @property
    def least(self) -> int:
        """The fewest rows of the result in a strip."""
        return max(1, -(-_ROWS_OF_HALO * self.halo // self.step))

    def height(self, tile: int) -> int:
        """The rows of the result in a strip of whole tiles, each with so many rows."""
        return -(-self.least // tile) * tile


def _strip_of(s: Schedule, contraction: Contraction, image: Stage, target: Target) -> _Strip | None:
    """The strips in which an image that one stage reads is padded, row by row; None for an image
    that stays in the L1 cache, that several results read at a place, or whose other dimensions are
    read through windows, too."""
    op, b, row = contraction.op, contraction.b, reused_axis(contraction)
    (load, *more), extents = reads_of(op, b.tensor), [*map(e.const_int, b.tensor.shape)]
    outer = [axis for axis in long_axes(op.axis[:-1]) if axis is not row]
    if more or row is None or len(extents) < 2 or None in extents or len(s.readers(image)) > 1:
        return None
    at = [i for i, index in enumerate(load.indices) if mentions(row.var, index)]
    step = step_of(load.indices[at[0]], row.var) if len(at) == 1 else None
    if step is None or step < 1 or at[0] != len(extents) - 2 or extent_of(row) is None:
        return None
    if not _are_channels(contraction, outer):
        return None
    *_, height, width = (each or 0 for each in extents)
    strip = _Strip(max(0, height - step * (extent_of(row) or 0)), step)
    size = width * b.tensor.dtype.itemsize
    is_large = height * size > target.cache_bytes(1)
    rows = strip.height(target.vector_registers) * step + strip.halo
    return strip if is_large and rows * size <= target.cache_bytes(2) // 2 else None


@final
@record()
class _Writer:
    """Writes the tiles of a convolution: `sums`, in registers, and `stage`, which reads them.
    `in_order`: steps are summed in the order of the program."""

    s: Schedule
    sums: Tensor
    stage: Stage
    target: Target
    in_order: bool

    def write(self, axes: Sequence[IterVar], channel: int | None, takes_sums: bool) -> list[Stage]:
        """Writes tiles whose columns are the output channels, at the position `channel` of `axes`,
        or else the places in the flattened image; returns the scheduled stages. `axes` are the
        loops of the stage that reads the sums, one for each axis of the sums. `takes_sums`: that
        stage only copies the sums."""
        s, target = self.s, self.target
        turned = channel not in (None, len(axes) - 1)
        copies = list[Stage]()
        if channel is not None:
            copies = _turn(s, self.sums, channel, takes_sums) if turned else []
            axes = [*axes[:channel], *axes[channel + 1 :], axes[channel]]
        made, a = [*copies], _contraction_of(s, self.sums).a
        if a.is_cast:  # in vectors, and once for all tiles
            made.append(write_cast(s, self.sums, a, target))
        found = _contraction_of(s, self.sums)
        columns = columns_of(found) if channel is None else [found.column]
        sizes = [extent_of(axis) or target.lanes(self.sums.dtype) for axis in columns]
        width = prod(sizes)
        first = len(axes) - len(columns)
        rows = [axis for axis in found.op.axis[:first] if not found.b.reads(axis)]
        rows.sort(key=lambda axis: axis is found.rows[-1])
        form = _Form(found, rows, width, target, turned)
        tile, _ = form.best_tile()
        choose_tile(s, found, tile, vectors(self.stage.op.output(0).dtype, target), target,
                    width=width)  # fmt: skip
        if channel is not None:
            text = "channels are the columns of tiles, neighbours in the image their rows"
            choose(s, "strategy", text + ", transposed on their way out" * turned)
        panel = self._panel_of(form, columns, tile)
        steps = self._steps(found)
        if channel is None:
            _flatten(s[self.sums], first, sizes)
            axes = [*axes[:first], fused(self.stage, axes[first:])]
            if self._order(found) != [*range(len(steps))]:
                s[self.sums].reorder(*steps)
            steps = [fused(s[self.sums], steps)]
        panels = 1 if channel is None else _panels_of_task(found, tile, target)
        tiles = self._write_tiles(form, axes, first, tile, steps, turned=turned, panels=panels)
        if channel is not None:
            self._request_image(found, tile)
        for each in copies:
            each.compute_at(self.stage, tiles.loops[-1])
        _write_copies(copies, found.op.axis.index(found.rows[-1]), channel or 0)
        at, shared = self._run_tasks(tiles, is_apart=panel is not None)
        if panel is not None:
            if channel is None:
                _write_windows(panel, found, sizes, tile, self._order(found), target, shared=shared)
            else:
                write_panels(panel, found, found.b, tile.columns, target, self._order(found))
            panel.compute_at(self.stage, at)
            made.append(panel)
        return [self.stage, s[self.sums], *made]

    def write_depthwise(
        self, found: Contraction, axes: Sequence[IterVar], strip: _Strip | None, *, pads: bool
    ) -> IterVar:
        """Writes tiles for channels with weights of their own; returns the loop over channels, or
        over strips of rows. `pads`: the image is padded there."""
        s, target = self.s, self.target
        lanes = target.lanes(found.op.output(0).dtype)
        width = extent_of(found.column) or 2 * lanes
        row = reused_axis(found)
        reduced = compute_of(s[self.sums]).reduce_axis
        window = prod(extent_of(axis) or 1 for axis in reduced)
        few = min(_STATEMENTS // window, target.vector_registers // 2)
        most = max(few, target.multiply_adds_under_way)
        height = 1 if row is None else extent_of(row)
        # So many vectors side by side that none of them waits for the step before.
        count = min(-(-width // lanes), 2 if height is None else max(2, most // height))
        most = max(1, most // count)
        tile = Tile(most if height is None else balanced(height, most), count * lanes)
        choose(s, "tile", "each channel by itself, from the image: {rows} x {columns} sums of "
               "{window} products, written out up to {most} of a column", rows=tile.rows,
               columns=tile.columns, window=window, most=_STATEMENTS)  # fmt: skip
        form = _Form(found, [] if row is None else [row], width, target)
        height = None if strip is None else strip.height(tile.rows)
        tiles = self._write_tiles(form, axes, len(axes) - 1, tile, reduced, panels=0, strip=height)
        for axis in innermost(reduced, _STATEMENTS // tile.rows):
            s[self.sums].unroll(axis)
        at, _ = self._run_tasks(tiles, is_apart=pads and strip is None)
        is_inside = strip is not None and tiles.strip in self.stage.leaf_iter_vars
        return tiles.strip if is_inside else at

    def _run_tasks(self, tiles: Tiles, *, is_apart: bool) -> tuple[IterVar, bool]:
        """Runs tasks in parallel: the outermost loop over tasks that has enough for all threads, or
        all such loops; where they are too few, the rows of each, in one loop with the tasks unless
        another stage `is_apart` in each task. Returns the loop over tasks, and whether threads
        share a task. Tiles of a row stay a loop of their own, as long as there are other rows:
        their number may be symbolic."""
        stage, tasks, least = self.stage, tiles.tasks, _TASKS * self.target.num_cores
        rows = tiles.loops[:-2] or tiles.loops[:-1] or tiles.loops
        sizes = {each: extent_in(stage, each) or USUAL for each in (*tasks, *rows)}
        count, more = (prod(map(sizes.__getitem__, loops)) for loops in (tasks, rows))
        enough = next((each for each in tasks if sizes[each] >= least), None)
        if enough is not None:
            stage.parallel(enough)
            return tasks[-1], False
        if tasks and count >= min(least, more):
            stage.parallel(task := fused(stage, tasks))
            return task, False
        is_within = is_apart and bool(tasks)
        row = fused(stage, rows if is_within else [*tasks, *rows])
        stage.parallel(row)
        return (tasks[-1] if is_within else row), is_within

    def _panel_of(self, form: _Form, columns: Sequence[IterVar], tile: Tile) -> Stage | None:
        """The copy of the columns' factor that lies in panels; None where tiles read it as it lies
        as fast."""
        s, b = self.s, form.contraction.b
        is_whole = form.width <= tile.columns or form.width % tile.columns == 0
        is_read_well = is_whole and _is_flat(form.contraction, columns) and not b.is_cast
        if is_read_well and not form.pays_to_pack(tile):
            return None
        what = "{b} is" if len(columns) == 1 else "the windows of {b} are"
        choose(s, "packing", what + " copied into panels of {columns} columns",
               b=b.tensor, columns=tile.columns)  # fmt: skip
        dtype = cast_to(b.copied, b.tensor)
        return s[s.cache_access(b.tensor, "global", s[self.sums].op, **dtype)]

    def _write_tiles(
        self,
        form: _Form,
        axes: Sequence[IterVar],
        first: int,
        tile: Tile,
        steps: Sequence[IterVar],
        *,
        turned: bool = False,
        panels: int,
        strip: int | None = None,
    ) -> Tiles:
        """The loops of the stage that reads the sums: its `axes`, one for each axis of the sums, of
        which the one at `first` has the columns, divided into tiles; and in a tile the sums, over
        these `steps`. A task computes `panels`, each as wide as a tile (0: all); a loop over strips
        of so many rows is around the tiles of a `strip`. `turned`: sums are stored transposed."""
        own = form.contraction.op.axis
        rows = tuple(own.index(axis) for axis in form.rows)
        places = Places(rows, tuple(i for i in range(first) if i not in rows), first)
        vectors = min(form.width, tile.columns), self.target.lanes(self.sums.dtype)
        blocks = Blocks(columns=tile.columns * panels if panels else None, strip=strip)
        tiles = write_tiles(self.stage, places, tile, blocks, None, axes)
        if turned:
            assert tiles.row is not None
            self.stage.reorder(tiles.column, tiles.row)
            self.stage.vectorize(tiles.row)
        else:
            if tiles.row is not None:
                self.stage.unroll(tiles.row)
            in_vectors(self.stage, tiles.column, *vectors)
        inner = self.s[self.sums]
        at, axes = (self.stage, tiles.loops[-1]), compute_of(inner).axis
        write_sums(inner, at, [*(axes[i] for i in rows[-1:]), axes[first]], steps, vectors=vectors)
        return tiles

    def _steps(self, found: Contraction) -> list[IterVar]:
        """The loops of the sums over steps, outermost first."""
        reduced = compute_of(self.s[self.sums]).reduce_axis
        return [reduced[i] for i in self._order(found)]

    def _order(self, found: Contraction) -> list[int]:
        return order_of_steps(found, in_order=self.in_order)

    def _request_image(self, found: Contraction, tile: Tile) -> None:
        """Requests the elements of the image that a tile reads some steps later, where each step of
        the sum reads other lines."""
        inner, image, target = self.s[self.sums], found.a.tensor, self.target
        steps = long_axes(found.op.reduce_axis)
        cycles = target.processor.l2_latency
        if not cycles or not steps or self.s[image].inlined:
            return
        if found.a.along(steps[-1]) * image.dtype.itemsize >= CACHE_LINE:
            ahead = steps_in(cycles, tile, vectors(self.sums.dtype, target))
            choose(self.stage, "prefetch", "{a} is prefetched {steps} steps ahead: each reads "
                   "lines of its own", a=image, steps=ahead)  # fmt: skip
            inner.prefetch(image, steps[-1], ahead)


def _is_own(image: Stage, kept: Collection[Stage]) -> bool:
    """Whether an image is computed by a stage that may be placed anywhere."""
    return isinstance(image.op, ComputeOp) and not image.inlined and image not in kept


def _pads_by_channel(s: Schedule, contraction: Contraction, image: Stage) -> bool:
    """Whether only one output channel reads each channel of the image. Then the image is padded
    where it is read."""
    outer = contraction.op.axis[:-2]
    return (
        len(s.readers(image)) == 1
        and not contraction.a.reads(contraction.column)
        and bool(outer)
        and _are_channels(contraction, outer)
    )


def _are_channels(contraction: Contraction, axes: Sequence[IterVar]) -> bool:
    """Whether each place along axes has a part of the image of its own: none is read through a
    window."""
    (load, *_) = reads_of(contraction.op, contraction.b.tensor)
    steps = [axis.var for axis in contraction.op.reduce_axis]
    plain = [index for index in load.indices if not any(mentions(k, index) for k in steps)]
    return all(any(mentions(axis.var, each) for each in plain) for axis in long_axes(axes))


def _split_groups(s: Schedule, sums: Tensor, stage: Stage) -> list[IterVar]:
    """Splits an axis of channels read at ``channel // size`` into groups and the channels of a
    group; returns the loops of the stage that reads the sums, split in the same way. An axis has
    groups if both factors read it, and its extent is a multiple of the size."""
    contraction = contraction_of(s[sums].op)
    assert contraction is not None
    groups = group_sizes(contraction)
    if any(groups):
        s[sums].transform_layout(divided(groups))
    made: list[IterVar] = []
    for axis, size in zip(compute_of(stage).axis, groups, strict=True):
        made += [axis] if size is None else stage.split(axis, factor=size)
    return made


def _turn(s: Schedule, sums: Tensor, channel: int, takes_sums: bool) -> list[Stage]:
    """Makes the channels the last axis of the sums. The sums go through memory and are read
    transposed: by a stage that only copies them, or by an inserted copy, which an epilogue
    reads."""
    tile = _copied(s, sums)
    copies = [tile] if takes_sums else [tile, _copied(s, tile)]
    for each in (sums, tile):
        lie_along(s[each], channel)
    return [s[each] for each in copies]


def _copied(s: Schedule, tensor: Tensor) -> Tensor:
    """A copy of a tensor, for all its readers."""
    return s.cache_read(tensor, "global", [reader.op for reader in s.readers(s[tensor])])


def _write_copies(copies: Sequence[Stage], place: int, channel: int) -> None:
    """Stores a tile of sums, and reads it transposed."""
    for tile in copies[:1]:
        axes = compute_of(tile).axis
        tile.unroll(axes[place])
        tile.vectorize(axes[-1])
    for across in copies[1:]:
        rest = list(compute_of(across).axis)
        column = rest.pop(channel)
        row = rest.pop(place)
        write_loops(across, [*rest, column], row)


def _panels_of_task(found: Contraction, tile: Tile, target: Target) -> int:
    """The number of panels of weights that a task reads. A quarter of the L2 cache holds them,
    so that an image from beyond L2 comes once for all of them."""
    if kept_level(usual_bytes_of(found.a.tensor), target) <= 2:
        return 1
    itemsize = found.b.tensor.dtype.itemsize
    size = tile.columns * itemsize * (product_of_extents(found.op.reduce_axis) or USUAL)
    panels = -(-(extent_of(found.column) or USUAL) // tile.columns)
    return balanced(panels, max(1, target.cache_bytes(2) // 4 // size))


def _is_flat(contraction: Contraction, columns: Sequence[IterVar]) -> bool:
    """Whether the columns' factor lies in memory as the columns do, in order."""
    (load,) = reads_of(contraction.op, contraction.b.tensor)
    distance = 1
    for axis in reversed(columns):
        plain = any(index is axis.var for index in load.indices)
        if contraction.b.along(axis) != distance or not (plain or len(columns) == 1):
            return False
        distance *= extent_of(axis) or 1
    return True


def _flatten(stage: Stage, first: int, sizes: Sequence[int]) -> None:
    """Lets the dimensions of these `sizes`, from `first` on, be one dimension of a stage."""
    last = first + len(sizes)
    stage.transform_layout(
        lambda *i: [*i[:first], place_in_memory(i[first:last], sizes), *i[last:]]
    )


def _write_windows(
    panels: Stage,
    contraction: Contraction,
    sizes: Sequence[int],
    tile: Tile,
    order: Sequence[int],
    target: Target,
    *,
    shared: bool,
) -> None:
    """Copies windows into panels, each with the columns of a tile for all reduction axes, in this
    order, a few neighbours at a time. `sizes`: the extents of the columns. `shared`: threads share
    the work."""
    op, b, width = contraction.op, contraction.b, prod(sizes)
    columns = op.axis[-len(sizes) :]
    first = sum(map(b.reads, op.axis)) - len(sizes)
    _flatten(panels, first, sizes)
    read = [i for i, k in enumerate(op.reduce_axis) if b.reads(k)]
    steps = [first + 1 + read.index(i) for i in order if i in read]
    loops = in_panels(panels, tile.columns, range(first), first, steps)
    outer, (*reduced, column) = loops[: first + 1], loops[first + 1 :]
    lanes, step = target.lanes(op.output(0).dtype), tile.columns
    if not _is_flat(contraction, columns):
        step = neighbours_of(sizes[-1], width, tile, lanes)
    column, lane = panels.split(column, factor=step)
    whole, rest = reduced[:1], reduced[1:]
    panels.reorder(*whole * shared, *outer, column, *whole * (not shared), *rest, lane)
    if shared:
        panels.parallel(panels.leaf_iter_vars[0])
    # Lines along a step are transposed into panels, in blocks that aren't written out.
    along = [op.reduce_axis[i] for i in order[1:]]
    across = b.along(columns[-1]) > NEAR and any(b.along(axis) == 1 for axis in along)
    condition = reduce_of(op).condition
    is_whole = not (across or any(mentions(k.var, condition) for k in op.reduce_axis))
    if is_whole and prod(extent_of(axis) or 1 for axis in rest) <= _COPIES:
        for axis in rest:
            panels.unroll(axis)
    if step > 1:
        panels.vectorize(lane)
