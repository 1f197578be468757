"""Contractions by register tiles, which read panels of one factor.

::

    for each block of columns, and of rows:          # on all threads
        for each block of k:                         # if there are more steps than L1 holds
            panels = B[block of k, block of columns] # stays in L2
            for each tile of rows:
                for each tile of columns:
                    sums[rows, columns] = 0          # "local": vector registers
                    for k:
                        sums[i, j] += A[i, k] * panels[j // columns, k, j % columns]
                    C[...] += sums

A small factor is not packed: the tiles read it as it lies. For an argument that is packed ahead of
the call, the loops are the same, without the line that packs.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, final

from minitvm.auto_scheduler.accumulators import split_steps, sums_in_registers
from minitvm.auto_scheduler.choice import choose, choose_blocks, choose_tile
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    extent_of,
    is_uneven,
)
from minitvm.auto_scheduler.cost import Blocks, Nest, Tile, copy_cycles, cost, packing_cycles
from minitvm.auto_scheduler.loops import (
    EVEN,
    Part,
    Places,
    compute_of,
    nest_of,
    place_copy,
    places_of,
    places_of_part,
    run_in_vectors,
    run_parallel,
    write_blocks,
    write_copy,
    write_tiles,
)
from minitvm.auto_scheduler.tiles import (
    best_tile,
    blocks_of,
    panels_together,
    strip_of,
    thrashes,
)
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import is_lazy, reads_of
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Var
from minitvm.tir.functor import walk_once
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.structural_equal import structural_equal


def write_tiled(
    s: Schedule,
    contraction: Contraction,
    last: Tensor,
    target: Target,
    *,
    inline_columns: bool,
    in_order: bool,
    ahead: Tensor | None,
    part: Part | None = None,
) -> tuple[IterVar | None, list[tuple[Factor, Stage]]]:
    """Writes the schedule of a contraction, and of `last`, the stage that reads its sums (the
    contraction itself, or an epilogue). `inline_columns`: the columns' factor is computed
    elementwise, for this stage alone, so it may be computed while it is packed. `in_order`: sums
    are not computed in parts. `ahead`: an argument that is packed before the call, the columns'
    factor or the tensor from which it is computed. `part`: what is computed at a time; the loop
    over parts is returned, and the panels, which the caller places."""
    op = contraction.op
    places = places_of(contraction)
    if part is not None:
        places = places_of_part(places, part) or places
    wide = op.output(0).dtype if _widens(contraction) else contraction.a.tensor.dtype
    nest = nest_of(contraction, places, target, wide, contraction.b.tensor.dtype)
    in_place, tile = best_tile(nest, target), best_tile(replace(nest, is_packed=True), target)
    packs = _packs(s, contraction, nest, (in_place, tile), inline_columns, ahead, target)
    in_panels = packs or ahead is not None
    if not in_panels:
        tile = in_place
    choose_tile(s, contraction, tile, nest.unit, target)
    is_fused = last.op is not op
    blocks = _blocks(contraction, nest, tile, in_panels, is_fused, in_order, target)
    if part is not None:
        rows = strip_of(nest, tile, nest.depth, target) if blocks.shares_rows else blocks.strip
        blocks = Blocks(part.rows, strip=rows)
    choose_blocks(s, contraction, blocks)
    b = contraction.b
    packed = _beside(contraction, b, contraction.column) if packs else []
    if (blocks.strip is not None or blocks.shares_rows) and not _widens(contraction):
        packed += _beside(contraction, contraction.a, contraction.rows[-1])
    copies = [_copied_by_axes(s, contraction, factor) for factor in packed]
    if blocks.depth is None:
        shares = in_panels or part is not None
        made = _write_whole(s, contraction, last, places, tile, blocks, shares, target)
    else:
        made = _write_deep(s, contraction, last, places, tile, blocks, target)
    if ahead is not None:
        reader = made.sums if ahead is b.tensor else b.tensor
        panels = s[s.cache_read(ahead, "global", [reader])]
        _write_panels(panels, contraction, b, tile.columns, target)
        place_copy(panels, "ahead")
    if made.widened is not None:
        write_copy(s[made.widened], target)
        s[made.widened].compute_at(made.stage, made.strips)
    made_panels = list[tuple[Factor, Stage]]()
    for factor, copy in zip(packed, copies, strict=True):
        if copy is None:
            copy = s.cache_read(factor.tensor, "global", [made.sums])
        panels = s[copy]
        if factor.reads(contraction.column):
            _write_panels(panels, contraction, factor, tile.columns, target)
            made_panels.append((factor, panels))
            if part is None:
                place_copy(panels, None if made.panels is None else (made.stage, made.panels))
        else:
            _write_panels(panels, contraction, factor, tile.rows, target)
            place_copy(panels, None if blocks.shares_rows else (made.stage, made.strips))
    if in_panels and inline_columns:
        s[b.tensor].compute_inline()
    return made.panels, made_panels


@final
@record()
class _Made:
    """The written stage of the sums, and the stage in whose loops they are computed. The columns'
    factor is packed in the loop `panels` (None: before all loops). A copy of the rows' factor is
    made in the loop `strips`. `widened` is that copy if the sums read it already."""

    sums: Tensor
    stage: Stage
    panels: IterVar | None
    strips: IterVar
    widened: Tensor | None


def _write_whole(
    s: Schedule,
    contraction: Contraction,
    last: Tensor,
    places: Places,
    tile: Tile,
    blocks: Blocks,
    in_panels: bool,
    target: Target,
) -> _Made:
    """Keeps the sums in registers over all steps."""
    op, stage, copy = contraction.op, s[last], None
    in_memory = last.op is not op and _calls_functions(s, stage)
    sums = sums_in_registers(s, contraction, op.output(0) if in_memory else last)
    if _widens(contraction):
        sums, copy = _widened(s, contraction, sums)
    tiles = write_tiles(stage, places, tile, blocks, None)
    run_in_vectors(stage, tiles, unroll_rows=not in_memory)
    if in_panels and tiles.tasks:
        *_, task = run_parallel(stage, tiles.tasks, target)
        loops = [each.axis for each in tiles.loops]
    else:
        task, loops = None, run_parallel(stage, [*tiles.tasks, *tiles.loops], target, EVEN)
    if in_memory:
        _write_copy(s[op.output(0)], stage, loops[-1], places)
    _write_sums(s[sums], stage, loops[-1], places, target)
    return _Made(sums, stage, task, loops[-3:][0], copy)


def _write_deep(
    s: Schedule,
    contraction: Contraction,
    last: Tensor,
    places: Places,
    tile: Tile,
    blocks: Blocks,
    target: Target,
) -> _Made:
    """Keeps the sums in registers for a block of steps, and adds the blocks up in memory: in the
    output, or in a block of it from which the epilogue takes the sums."""
    total, copy = contraction.op.output(0), None
    if _widens(contraction):
        if last is total:
            total = s.cache_write(total, "global")
        total, copy = _widened(s, contraction, total)
    stage = s[total]
    steps, _ = stage.split(compute_of(stage).reduce_axis[0], factor=blocks.depth)
    made = s.rfactor(total, steps)
    sums = made[0] if isinstance(made, list) else made
    s[sums].set_scope("local")
    (steps,) = compute_of(stage).reduce_axis
    outside = blocks
    if s[last] is not stage:
        tasks, rows, column = write_blocks(s[last], places, blocks)
        outer, inner = s[last].split(column.axis, factor=tile.columns)
        s[last].reorder(*(each.axis for each in (*tasks, *rows)), outer, inner)
        s[last].vectorize(inner)
        for task in run_parallel(s[last], tasks, target)[-1:]:
            stage.compute_at(s[last], task)
        outside = replace(blocks, rows=None, columns=None)
    tiles = write_tiles(stage, places, tile, outside, steps)
    run_in_vectors(stage, tiles)
    if s[last] is stage:
        run_parallel(stage, tiles.tasks, target)
    _write_sums(s[sums], stage, tiles.loops[-1].axis, places, target)
    return _Made(sums, stage, steps, tiles.strip, copy)


def _widens(contraction: Contraction) -> bool:
    """Whether the rows' factor has 16-bit floats. To convert them one by one in the innermost loop
    would take longer than the products."""
    a, dtype = contraction.a.tensor, contraction.op.output(0).dtype
    is_narrow = a.dtype.is_float and a.dtype.bits == 16 and dtype == "float32"
    is_plain = bool(contraction.rows and multiplied_reads(contraction.op))
    return is_narrow and is_plain and a is not contraction.b.tensor


def _widened(s: Schedule, contraction: Contraction, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The sums, reading the rows' factor from a float32 copy; and that copy."""
    op, a = contraction.op, contraction.a.tensor
    dtypes = ["float32" if each.producer is a else None for each in multiplied_reads(op)]
    made, *factors = s.pad_einsum(sums, [1] * (len(op.axis) + len(op.reduce_axis)), dtypes)
    (copy,) = [factor for factor, dtype in zip(factors, dtypes, strict=True) if dtype]
    return made, copy


def _calls_functions(s: Schedule, stage: Stage) -> bool:
    """Whether a stage, or a stage inlined in it, calls functions such as exp. Their code is long:
    written out for every register of sums it would take LLVM seconds."""
    op = compute_of(stage)
    calls = [n for body in op.body for n in walk_once(body) if isinstance(n, e.Call)]
    if any(each.op in INTRINSICS and INTRINSICS[each.op].is_long for each in calls):
        return True
    inlined = (s[tensor] for tensor in op.input_tensors if s[tensor].inlined)
    return any(_calls_functions(s, each) for each in inlined)


def _write_copy(copy: Stage, stage: Stage, at: IterVar, places: Places) -> None:
    """Copies a tile of sums from registers to memory, where a loop can take row after row."""
    copy.compute_at(stage, at)
    rows, _, column = places.of(copy)
    for axis in rows[-1:]:
        copy.unroll(axis)
    copy.vectorize(column)


def _write_sums(inner: Stage, stage: Stage, at: IterVar, places: Places, target: Target) -> None:
    """The sums of a tile: the reduction loops outside, a tile inside."""
    inner.compute_at(stage, at)
    rows, _, column = places.of(inner)
    rest = [axis for axis in compute_of(inner).axis if axis not in (*rows[-1:], column)]
    steps, together = split_steps(inner, target)
    inner.reorder(*rest, *steps, *rows[-1:], *together, column)
    for axis in (*rows[-1:], *together):
        inner.unroll(axis)
    inner.vectorize(column)


# -- The model --


def _blocks(
    contraction: Contraction,
    nest: Nest,
    tile: Tile,
    in_panels: bool,
    is_fused: bool,
    in_order: bool,
    target: Target,
) -> Blocks:
    widens = _widens(contraction)
    is_plain = widens or _axes_of(contraction, contraction.a) is not None
    if in_panels:
        in_memory = is_fused or widens
        made = blocks_of(nest, tile, target, copied=widens, in_memory=in_memory, whole=in_order)
        return made if is_plain else replace(made, strip=None, shares_rows=False)
    steps = prod(each or 1 for each in nest.steps)
    copies = widens or (contraction.rows and is_plain and thrashes(nest, steps, target))
    return Blocks(strip=strip_of(nest, tile, steps, target) if copies else None)


def _packs(
    s: Schedule,
    contraction: Contraction,
    nest: Nest,
    tiles: tuple[Tile, Tile],
    inline_columns: bool,
    ahead: Tensor | None,
    target: Target,
) -> bool:
    """Whether a call packs the columns' factor into panels as wide as a tile. `tiles`: that for the
    factor as it lies, and that for panels."""
    b, (in_place, tile) = contraction.b, tiles
    rows = extent_of(contraction.rows[-1]) if contraction.rows else 0
    least = target.vector_registers * 3 // 2  # rows for which packing an epilogue's factor pays
    if ahead is not None:
        text = "{ahead} is packed into panels of {columns} columns ahead of the call"
        choose(s, "packing", text, ahead=ahead.name, columns=tile.columns)
    if ahead is b.tensor:
        return False
    figures: dict[str, Any] = {}
    if not contraction.rows:
        packs, why = False, "no rows use it again"
    elif _axes_of(contraction, b) is None:
        packs, why = False, "it is not read by plain axes, each element once"
    elif ahead is not None and (rows is None or rows < least):
        packs, why = False, "fewer than {least} rows use it, or their number is symbolic"
    elif inline_columns:
        packs, why = True, "it is computed on the way"
    elif b.along(contraction.column) != 1:
        packs, why = True, "neighbours along the columns lie apart"
    else:
        as_it_lies, in_panels = _cycles_of_ways(nest, in_place, tile, target)
        figures = {"as_it_lies": round(as_it_lies), "in_panels": round(in_panels)}
        packs, why = True, "{in_panels} cycles with the copy, {as_it_lies} as it lies"
        if in_panels >= as_it_lies:
            packs, why = False, "{as_it_lies} cycles as it lies, {in_panels} with the copy"
    how = "{b} is packed into panels of {columns} columns: " if packs else "{b} is not packed: "
    choose(s, "packing", how + why, b=b.tensor.name, columns=tile.columns, least=least, **figures)
    return packs


def _cycles_of_ways(nest: Nest, in_place: Tile, tile: Tile, target: Target) -> tuple[float, float]:
    """The cycles of a nest with the columns' factor as it lies, and with panels of it, in tiles for
    each."""
    in_panels = cost(replace(nest, is_packed=True), tile, Blocks(), target)
    return cost(nest, in_place, Blocks(), target), in_panels + packing_cycles(nest, target)


def cycles_of(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction of two factors by the better of both ways, with the copies that
    it makes of factors in another layout."""
    a, b = contraction.a.tensor.dtype, contraction.b.tensor.dtype
    nest = nest_of(contraction, places_of(contraction), target, a, b)
    tiles = best_tile(nest, target), best_tile(replace(nest, is_packed=True), target)
    as_it_lies, in_panels = _cycles_of_ways(nest, *tiles, target)
    across = nest.outer * nest.depth * nest.itemsize
    copied = across * nest.height if thrashes(nest, nest.depth, target) else 0
    if contraction.b.along(contraction.column) == 1:
        return min(as_it_lies, in_panels) + copy_cycles(copied)
    beside = in_panels - packing_cycles(nest, target)
    return beside + copy_cycles(copied + across * nest.width)


def _axes_of(contraction: Contraction, factor: Factor) -> list[IterVar] | None:
    """The axes of the dimensions of a copy of a factor: those of its tensor's dimensions, or else
    those on which its elements depend, data axes first. None where a copy may have more elements
    than the tensor, elements are chosen by a condition, or ranges differ."""
    plain = _plain_axes_of(contraction, factor)
    if plain is not None:
        return plain
    op = contraction.op
    chosen = any(isinstance(each, e.Call) and is_lazy(each) for each in walk_once(op.body[0]))
    if chosen or is_uneven(op):
        return None
    axes = [axis for axis in (*op.axis, *op.reduce_axis) if factor.reads(axis)]
    used = [{axis for axis in axes if axis.var in {*walk_once(i)}} for i in factor.load.indices]
    once = all(len(each) <= 1 for each in used) and sum(map(len, used)) == len(axes)
    return axes if once and {*axes} == set().union(*used) else None


def _plain_axes_of(contraction: Contraction, factor: Factor) -> list[IterVar] | None:
    """The axis that indexes each dimension of a factor; None if a dimension is indexed otherwise,
    or the tensor is read at several places."""
    op, tensor = contraction.op, factor.tensor
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    if sum(each.tensor is tensor for each in contraction.factors) != 1:
        return None
    found = [axes.get(index) for index in factor.load.indices if isinstance(index, Var)]
    known = [axis for axis in found if axis is not None]
    return known if len(known) == tensor.ndim else None


def _beside(contraction: Contraction, factor: Factor, axis: IterVar) -> list[Factor]:
    """The factors that are packed together: `factor`, and those that read one of its axes, `axis`,
    in the same way."""
    return [
        each
        for each in contraction.factors
        if each is factor
        or (
            each.reads(axis)
            and any(map(each.reads, contraction.op.reduce_axis))
            and all(factor.reads(other) or not each.reads(other) for other in contraction.op.axis)
            and _axes_of(contraction, each) is not None
        )
    ]


def can_be_packed(contraction: Contraction) -> bool:
    """Whether the columns' factor can be packed into panels that a row of tiles reads."""
    return bool(contraction.rows) and _plain_axes_of(contraction, contraction.b) is not None


def _copied_by_axes(s: Schedule, contraction: Contraction, factor: Factor) -> Tensor | None:
    """A copy of a factor whose dimensions are axes, which the contraction reads in its place; None
    where the tensor itself has such dimensions."""
    if _plain_axes_of(contraction, factor) is not None:
        return None
    stage = s[contraction.op]
    reads = reads_of(compute_of(stage), factor.tensor)
    which = [structural_equal(each, factor.load) for each in reads].index(True)
    return s.cache_access(factor.tensor, "global", stage.op, which)


def _write_panels(
    panels: Stage, contraction: Contraction, factor: Factor, width: int, target: Target
) -> None:
    """Lets a copy of a factor lie in panels, ``panels[..., i // width, k..., i % width]``."""
    axes = _axes_of(contraction, factor)
    assert axes is not None
    column = contraction.column
    place = axes.index(column if factor.reads(column) else contraction.rows[-1])
    reduced = [i for i, each in enumerate(axes) if each in contraction.op.reduce_axis]
    first = [i for i in range(len(axes)) if i not in reduced and i != place]

    def layout(*indices: Any) -> list[Any]:
        outer, inner = indices[place] // width, indices[place] % width
        return [*(indices[i] for i in first), outer, *(indices[i] for i in reduced), inner]

    loops = panels.transform_layout(layout)
    if first[-1:] != [len(axes) - 1]:  # elements are neighbours along the axis or along a sum
        panels.vectorize(loops[-1])
    if place == len(axes) - 1:  # row after row is read, for a few panels
        several, each = panels.split(loops[len(first)], factor=panels_together(target))
        panels.reorder(*loops[: len(first)], several, *loops[len(first) + 1 : -1], each, loops[-1])
