"""Contractions by register tiles, which read panels of the columns' factor.

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

A small factor isn't packed: the tiles read the tensor itself. If an argument is packed ahead of the
call, the loops are the same, without the line that packs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any, final

from minitvm.auto_scheduler.choice import choose, choose_blocks, choose_tile
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    contraction_of,
    distances_of,
    elements_of,
    extent_of,
    is_uneven,
    order_of_steps,
    product_of_extents,
)
from minitvm.auto_scheduler.cost import (
    Blocks,
    Nest,
    Tile,
    comes_from,
    copy_cycles,
    copy_cycles_apart,
    cost,
    kept_level,
    packing_cycles,
    steps_ahead,
    transfer_cycles,
    usual_bytes_of,
    usual_product,
    usual_size,
    waiting_for_panels,
)
from minitvm.auto_scheduler.loops import (
    EVEN,
    Part,
    Places,
    Tiles,
    calls_in,
    compute_of,
    extent_in,
    factored,
    fused,
    nest_of,
    places_of,
    places_of_part,
    run_in_vectors,
    run_parallel,
    split_steps,
    sums_in_registers,
    write_blocks,
    write_sums,
    write_tiles,
)
from minitvm.auto_scheduler.packing import (
    beside,
    cast_to,
    copied_axes,
    copied_by_axes,
    place_copy,
    write_cast,
    write_copy,
    write_panels,
)
from minitvm.auto_scheduler.some_sizes import may_vary
from minitvm.auto_scheduler.sums import Sums
from minitvm.auto_scheduler.tiles import (
    ALIKE,
    best_by_panel,
    best_tile,
    blocks_in_place,
    blocks_of,
    on_one_core,
    strip_of,
    thrashes,
    with_sums_kept,
)
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import reads_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.expr import IterVar, Var
from minitvm.tir.functor import find, mentions

_SURE = 1.05  # times the cycles, where the time in which a factor comes decides: memories differ


def write_tiled(
    group: Sequence[Sums], part: Part | None = None
) -> tuple[IterVar | None, list[tuple[Contraction, Factor, Stage]]]:
    """Writes the schedule of a contraction, and of the stage that reads its sums (the contraction
    itself, or an epilogue); or of several contractions that one epilogue reads, whose sums are
    computed in the same tiles. `part`: the part of the stage that is computed at a time. Returns
    the loop over parts, and the panels, which the caller places then."""
    group = [*map(_with_rows_cast, group)]
    first = group[0]
    s, target, last = first.schedule, first.target, first.last.op.output(0)
    places = places_of(first.contraction)
    if part is not None:
        places = places_of_part(places, part) or places
    nest = _nest_of(group, places)
    in_place, tile = best_tile(nest, target), best_tile(_packed(nest), target)
    packs = [_packs(each, places, tile) for each in group]
    in_panels = any(packs) or any(each.ahead is not None for each in group)
    if not in_panels:
        tile = in_place
    seen = _packed(nest) if in_panels else nest
    by_panel = _by_panel(group, seen, tile) if part is None else None
    if by_panel is not None:
        tile, blocks = by_panel[0], [by_panel[1]]
    else:
        blocks = [
            _blocks(each, nest, tile, in_panels, whole=each.in_order or len(group) > 1)
            for each in group
        ]
    if part is not None:
        strip = strip_of(nest, tile, nest.depth, target)
        blocks = [Blocks(part.rows, strip=strip if x.shares_rows else x.strip) for x in blocks]
    for each, mine in zip(group, blocks, strict=True):
        choose_tile(each.stage, each.contraction, tile, nest.unit, target)
        choose_blocks(each.stage, each.contraction, mine, in_panels)
    copies = [_copies(*each) for each in zip(group, packs, blocks, strict=True)]
    common = max(blocks, key=lambda each: each.strip or 0)
    if common.depth is not None:
        made = [_write_deep(first, last, places, tile, common)]
    else:
        made = _write_whole(group, last, places, tile, common, in_panels or part is not None)
    panels = list[tuple[Contraction, Factor, Stage]]()
    for each, there, copied, mine in zip(group, made, copies, blocks, strict=True):
        panels += _write_factors(each, there, copied, tile, mine, is_placed=part is None)
        if in_panels and each.inline_columns:
            s[each.contraction.b.tensor].compute_inline()
        if mine.by_panel:
            _request_panel(each, there, places, nest, tile, in_panels=in_panels)
        else:
            _request_ahead(each, there, places, seen, tile, mine)
    return made[0].panels, panels


def _with_rows_cast(sums: Sums) -> Sums:
    """A contraction that reads the rows' factor from a copy of the whole tensor, with its elements
    cast, if strips of rows can't be copied, and elements are read several times: in windows."""
    contraction, s = sums.contraction, sums.schedule
    a, op, elements = contraction.a, contraction.op, elements_of(contraction.a.tensor)
    reads = product_of_extents(axis for axis in (*op.axis, *op.reduce_axis) if a.reads(axis))
    is_again = elements is not None and reads is not None and elements < reads
    if not (a.is_cast and contraction.rows and is_again) or _casts_rows(contraction):
        return sums
    if sums.stage.time is not None:
        return sums
    stage = sums.stage
    write_cast(s, op, a, sums.target)
    found = contraction_of(stage.op, contraction.column)
    assert found is not None
    return replace(sums, contraction=replace(found, row=contraction.row))


def _request_ahead(
    sums: Sums, made: _Made, places: Places, nest: Nest, tile: Tile, blocks: Blocks
) -> None:
    """Requests the columns' factor, or panels of it, some steps before they are computed."""
    s, target, stage = sums.schedule, sums.target, sums.schedule[made.sums]
    level = comes_from(nest, tile, target, blocks)
    steps = steps_ahead(nest, tile, blocks, level, target)
    if not steps:
        return
    op, (*_, column) = compute_of(stage), places.of(stage)
    text = "{b} is prefetched {steps} steps ahead: it comes from {where}"
    where = "the L2 cache" if level == 2 else "beyond the L2 cache"
    for b in _along_columns(s, op, column):
        if _slides_through(op, b, column, tile.columns):
            continue
        choose(sums.stage, "prefetch", text, b=b, steps=steps, where=where)
        stage.prefetch(b, made.step, steps)


def _along_columns(s: Schedule, op: ComputeOp, column: IterVar) -> list[Tensor]:
    """The tensors in memory that each step of an operation reads along its columns, at places of
    its own."""
    steps = {axis.var for axis in op.reduce_axis}
    return [
        each
        for each in op.input_tensors
        if not s[each].inlined
        and any(
            mentions(column.var, *load.indices) and not steps.isdisjoint(find(Var, *load.indices))
            for load in reads_of(op, each)
        )
    ]


def _slides_through(op: ComputeOp, tensor: Tensor, column: IterVar, columns: int) -> bool:
    """Whether each step reads a tensor at a window of the columns that overlaps the next step's, as
    an autocorrelation does: its lines come in their order, and each is needed in several steps."""
    k = op.reduce_axis[-1].var
    distances = [distances_of(load, op) for load in reads_of(op, tensor)]
    across = [each for each in distances if column.var in each]
    return all(0 < each.get(k, 0) < columns * each[column.var] for each in across)


def _request_panel(
    sums: Sums, made: _Made, places: Places, nest: Nest, tile: Tile, *, in_panels: bool
) -> None:
    """Requests the next panel, or the elements that are packed into it, while all tiles of rows
    read this one: in each iteration of a loop over a part of the steps, one row of them. A factor
    that isn't `in_panels` has no copy; the next columns of its rows in memory are requested."""
    stage = sums.schedule[made.sums]
    op, (*_, column) = compute_of(stage), places.of(stage)
    rows, tensors = nest.depth, _along_columns(sums.schedule, op, column)
    if sums.ahead is None:
        read = sums.contraction.b
        tensors = [read.tensor]
        rows = nest.depth if read.along(sums.contraction.column) == 1 else tile.columns
    depth = extent_in(stage, made.step)
    assert depth is not None
    wanted = max(1, -(-nest.height // tile.rows) * depth // min(rows, depth))
    part = max(each for each in range(1, depth + 1) if depth % each == 0 and each <= wanted)
    outer, _ = stage.split(made.step, factor=part)
    for tensor in tensors:
        what = "panel of {b} is" if in_panels else "{columns} columns of {b} are"
        text = f"the next {what} prefetched while all tiles of rows read those before"
        choose(sums.stage, "prefetch", text, b=tensor, columns=tile.columns)
        stage.prefetch(tensor, outer, 1, of=made.panels)


def _request_sums(stage: Stage, tensor: Tensor, tiles: Tiles) -> None:
    """Requests the memory of a tile's sums before they are computed."""
    inside = next((each for each in reversed(tiles.loops) if extent_in(stage, each) != 1), None)
    if inside is not None:
        stage.prefetch(tensor, inside, 0)


def _nest_of(group: Sequence[Sums], places: Places) -> Nest:
    """Contractions as the model of tiles sees them: several in the same tiles are as one whose
    steps are those of all."""
    nests = [_nest_of_one(each, places) for each in group]
    if len(nests) == 1:
        return nests[0]
    depth = None if any(None in each.steps for each in nests) else sum(n.depth for n in nests)
    sizes = [each.a_bytes for each in nests]
    return replace(
        nests[0],
        steps=(depth,),
        itemsize=max(each.itemsize for each in nests),
        row_bytes=max(each.row_bytes for each in nests),
        step_bytes=max(each.step_bytes for each in nests),
        a_bytes=None if None in sizes else sum(size or 0 for size in sizes),
    )


def _nest_of_one(sums: Sums, places: Places) -> Nest:
    contraction = sums.contraction
    a, b = contraction.a, contraction.b
    dtype = a.copied if _casts_rows(contraction) else a.tensor.dtype
    return nest_of(contraction, sums.target, dtype, b.tensor.dtype, places=places)


def _packed(nest: Nest) -> Nest:
    """The nest with the columns' factor in panels, whose elements are cast when they are packed."""
    return replace(nest, is_packed=True, terms=replace(nest.terms, casts=0.0))


def are_alike(sums: Sums, other: Sums) -> bool:
    """Whether two contractions with one epilogue can be computed in the same tiles."""
    mine, its = sums.contraction, other.contraction
    if (places := places_of(mine)) != places_of(its):
        return False
    nest, others = (_nest_of_one(each, places) for each in (sums, other))
    return (nest.dtype, nest.unit, nest.terms) == (others.dtype, others.unit, others.terms)


def pays_together(group: Sequence[Sums]) -> bool:
    """Whether contractions take less time in the same tiles. Only the sums of one stay in registers
    otherwise; those of the others are written to memory, and read again. All steps of all of them
    are summed at once."""
    target, places = group[0].target, places_of(group[0].contraction)
    nest = _packed(_nest_of(group, places))
    tile = best_tile(nest, target)
    if blocks_of(nest, tile, target).depth is not None:
        return False
    alone = 0.0
    for each in group:
        mine = _packed(_nest_of_one(each, places))
        alone += cost(mine, best_tile(mine, target), Blocks(), target)
    for each in group[1:]:
        size = usual_bytes_of(each.contraction.op.output(0))
        alone += transfer_cycles(2 * size, 2 * size, target)
    return cost(nest, tile, Blocks(), target) * ALIKE <= alone


def _copies(sums: Sums, packs: bool, blocks: Blocks) -> list[tuple[Factor, Tensor | None]]:
    """The factors that are copied: into panels, and in strips of rows. With each its copy, if the
    contraction reads it already."""
    contraction = sums.contraction
    found = beside(contraction, contraction.b, contraction.column) if packs else []
    if blocks.strip is not None or blocks.shares_rows:
        rows = beside(contraction, contraction.a, contraction.rows[-1])
        found += [each for each in rows if each.is_cast or not _casts_rows(contraction)]
    s = sums.schedule
    return [(each, copied_by_axes(s, contraction, each, each.copied)) for each in found]


def _write_factors(
    sums: Sums,
    made: _Made,
    copies: Sequence[tuple[Factor, Tensor | None]],
    tile: Tile,
    blocks: Blocks,
    *,
    is_placed: bool,
) -> Iterator[tuple[Contraction, Factor, Stage]]:
    """Writes the copies of factors, and returns the panels, which are placed if `is_placed`."""
    s, contraction, target = sums.schedule, sums.contraction, sums.target
    b = contraction.b
    if sums.ahead is not None:
        reader = made.sums if sums.ahead is b.tensor else b.tensor
        panels = s[s.cache_read(sums.ahead, "global", [reader])]
        write_panels(panels, contraction, b, tile.columns, target)
        place_copy(panels, "ahead")
    for factor, tensor in copies:
        if tensor is None:
            dtype = cast_to(factor.copied, factor.tensor)
            tensor = s.cache_read(factor.tensor, "global", [made.sums], **dtype)
        copy = s[tensor]
        if factor.reads(contraction.column):
            write_panels(copy, contraction, factor, tile.columns, target)
            if is_placed:
                place_copy(copy, None if made.panels is None else (made.stage, made.panels))
            yield contraction, factor, copy
        else:
            if factor.is_cast:
                write_copy(copy, target)
            else:
                write_panels(copy, contraction, factor, tile.rows, target)
            place_copy(copy, None if blocks.shares_rows else (made.stage, made.strips))


@final
@record()
class _Made:
    """The written stage of the sums, their innermost loop over steps, and the stage in whose loops
    they are computed. The columns' factor is packed in the loop `panels` (None: before all loops).
    A copy of the rows' factor is made in the loop `strips`."""

    sums: Tensor
    step: IterVar
    stage: Stage
    panels: IterVar | None
    strips: IterVar


def _write_whole(
    group: Sequence[Sums], last: Tensor, places: Places, tile: Tile, blocks: Blocks, in_panels: bool
) -> list[_Made]:
    """Keeps the sums in registers over all steps: those of the last contraction until the epilogue
    has read them, and those of the others until the next one begins."""
    s, target = group[0].schedule, group[0].target
    stage = s[last]
    # Written out for every register of sums, functions would take LLVM seconds.
    calls = last.op is not group[0].contraction.op and calls_in(s, stage)
    in_memory = [calls or each is not group[-1] for each in group]
    found = [
        sums_in_registers(s, each.contraction, each.contraction.op.output(0) if copied else last)
        for each, copied in zip(group, in_memory, strict=True)
    ]
    tiles = write_tiles(stage, places, tile, blocks, None)
    if kept_level(usual_bytes_of(last), target) > 2:
        _request_sums(stage, last, tiles)
    run_in_vectors(stage, tiles, unroll_rows=not calls)
    if in_panels and tiles.tasks:
        *_, task = run_parallel(stage, tiles.tasks, target)
        loops = tiles.loops
    else:
        task, loops = None, run_parallel(stage, [*tiles.tasks, *tiles.loops], target, EVEN)
    made = list[_Made]()
    for each, copied, sums in zip(group, in_memory, found, strict=True):
        if copied:
            _write_copy(s[each.contraction.op.output(0)], stage, loops[-1], places)
        order = order_of_steps(each.contraction, in_order=each.in_order)
        step = _write_sums(s[sums], stage, loops[-1], places, order, target)
        panels = loops[-2] if blocks.by_panel else task
        made.append(_Made(sums, step, stage, panels, loops[-3:][0]))
    return made


def _write_deep(sums: Sums, last: Tensor, places: Places, tile: Tile, blocks: Blocks) -> _Made:
    """Keeps the sums in registers for a block of steps, and adds the blocks up in memory: in the
    output, or in a block of it from which the epilogue takes the sums."""
    s, contraction, target = sums.schedule, sums.contraction, sums.target
    total = contraction.op.output(0)
    stage, order = s[total], order_of_steps(contraction, in_order=sums.in_order)
    reduced = [compute_of(stage).reduce_axis[i] for i in order]
    steps, inner = stage.split(reduced[blocks.cut], factor=blocks.depth)
    if blocks.cut:
        stage.reorder(*reduced[: blocks.cut], steps, inner, *reduced[blocks.cut + 1 :])
    steps = fused(stage, [*reduced[: blocks.cut], steps])
    part = factored(s, stage, steps).set_scope("local")
    (steps,) = compute_of(stage).reduce_axis
    outside = blocks
    if s[last] is not stage:
        tasks, rows, column = write_blocks(s[last], places, blocks)
        outer, inner = s[last].split(column, factor=tile.columns)
        s[last].reorder(*tasks, *rows, outer, inner)
        s[last].vectorize(inner)
        for task in run_parallel(s[last], tasks, target)[-1:]:
            stage.compute_at(s[last], task)
        outside = replace(blocks, rows=None, columns=None)
    tiles = write_tiles(stage, places, tile, outside, steps)
    _request_sums(stage, total, tiles)
    run_in_vectors(stage, tiles)
    if s[last] is stage:
        run_parallel(stage, tiles.tasks, target)
    inside = order[blocks.cut + 1 :]
    order = [0, *(1 + sorted(inside).index(i) for i in inside)]
    step = _write_sums(part, stage, tiles.loops[-1], places, order, target)
    panels = tiles.loops[-2] if blocks.by_panel else steps
    return _Made(part.op.output(0), step, stage, panels, tiles.strip)


def _casts_rows(contraction: Contraction) -> bool:
    """Whether the sums read a copy of the rows' factor, with its elements cast. To cast them one by
    one in the innermost loop would take longer than the products."""
    a = contraction.a
    return a.is_cast and bool(contraction.rows) and copied_axes(contraction, a) is not None


def _write_copy(copy: Stage, stage: Stage, at: IterVar, places: Places) -> None:
    """Copies a tile of sums from registers to memory, where a loop can take row after row."""
    copy.compute_at(stage, at)
    rows, _, column = places.of(copy)
    for axis in rows[-1:]:
        copy.unroll(axis)
    copy.vectorize(column)


def _write_sums(
    inner: Stage, stage: Stage, at: IterVar, places: Places, order: Sequence[int], target: Target
) -> IterVar:
    """The sums of a tile: the reduction loops, in this order, outside, a tile inside. Returns the
    innermost of the loops over steps."""
    rows, _, column = places.of(inner)
    steps, together = split_steps(inner, order, target)
    write_sums(inner, (stage, at), [*rows[-1:], column], steps, together)
    return steps[-1]


# -- The model --


def _blocks(sums: Sums, nest: Nest, tile: Tile, in_panels: bool, *, whole: bool) -> Blocks:
    """The blocks of a contraction, whose steps are all summed at once if `whole`."""
    contraction, target = sums.contraction, sums.target
    casts = _casts_rows(contraction)
    is_plain = copied_axes(contraction, contraction.a) is not None
    if in_panels:
        made = blocks_of(nest, tile, target, copied=casts, whole=whole)
        made = made if is_plain else replace(made, strip=None, shares_rows=False)
    else:
        steps = prod(each or 1 for each in nest.steps)
        copies = casts or bool(contraction.rows and is_plain and thrashes(nest, steps, target))
        made = blocks_in_place(nest, tile, target, copied=copies, whole=whole)
        made = replace(made, strip=strip_of(nest, tile, steps, target)) if copies else made
    in_memory = sums.last is not sums.stage
    packs = in_panels and sums.ahead is None
    return with_sums_kept(nest, tile, made, target, packs=packs) if in_memory else made


def _by_panel(group: Sequence[Sums], nest: Nest, tile: Tile) -> tuple[Tile, Blocks] | None:
    """The tile and the blocks of a contraction whose tiles of rows all read one panel before the
    next, if that takes fewer cycles than blocks of several panels by another tile."""
    target = group[0].target
    if len(group) > 1 or group[0].in_order or _casts_rows(group[0].contraction):
        return None
    packs = group[0].ahead is None
    found = best_by_panel(nest, target, packs=packs)
    if found is None or found[0] * _SURE >= _cycles_in_blocks(nest, tile, target, packs=packs):
        return None
    return found[1:]


def _cycles_in_blocks(
    nest: Nest, tile: Tile, target: Target, *, whole: bool = False, packs: bool = True
) -> float:
    """The cycles of a nest in blocks of several panels, and of the copy, if it is packed in the
    call (`packs`). `whole`: all steps are summed at once."""
    if not nest.is_packed:
        blocks = blocks_in_place(nest, tile, target, whole=whole)
        in_pieces = comes_from(nest, tile, target) > 2 and blocks.depth is None
        return cost(nest, tile, blocks, target) * (_SURE if in_pieces else 1)
    size = usual_product(nest.others) * nest.depth * nest.width * nest.itemsize
    moved = packing_cycles(nest, target) if packs else waiting_for_panels(size, target)
    return cost(nest, tile, Blocks(), target) + moved


def cycles_ahead(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction whose columns' factor is packed into panels ahead of the call."""
    contraction = with_best_row(contraction, target)
    nest = _packed(nest_of(contraction, target))
    return _fewest_cycles(nest, target, packs=False)


def _fewest_cycles(nest: Nest, target: Target, *, whole: bool = False, packs: bool = True) -> float:
    """The cycles of a nest in its best tile, in blocks of several panels or panel by panel. The
    arguments are those of :func:`_cycles_in_blocks`."""
    in_blocks = _cycles_in_blocks(nest, best_tile(nest, target), target, whole=whole, packs=packs)
    by_panel = None if whole else best_by_panel(nest, target, packs=packs)
    return min(in_blocks, inf if by_panel is None else by_panel[0] * _SURE)


def _packs(sums: Sums, places: Places, tile: Tile) -> bool:
    """Whether a call packs the columns' factor into panels as wide as a tile."""
    contraction, target, ahead = sums.contraction, sums.target, sums.ahead
    note = partial(choose, sums.stage, "packing")
    b = contraction.b
    rows = extent_of(contraction.rows[-1]) if contraction.rows else 0
    least = target.vector_registers * 3 // 2  # rows for which packing an epilogue's factor pays
    if ahead is not None:
        text = "{ahead} is packed into panels of {columns} columns ahead of the call"
        note(text, ahead=ahead, columns=tile.columns)
    if ahead is b.tensor:
        return False
    figures: dict[str, Any] = {}
    if not contraction.rows:
        packs, why = False, "no rows use it again"
    elif copied_axes(contraction, b) is None:
        packs, why = False, "it is not read by plain axes, each element once"
    elif ahead is not None and (rows is None or rows < least):
        packs, why = False, "fewer than {least} rows use it, or their number is symbolic"
    elif sums.inline_columns:
        packs, why = True, "it is computed on the way"
    elif b.along(contraction.column) != 1:
        packs, why = True, "neighbours along the columns lie apart"
    else:
        nest = _nest_of_one(sums, places)
        unpacked, in_panels = _cycles_of_ways(nest, target, whole=sums.in_order)
        figures = {"unpacked": round(unpacked), "in_panels": round(in_panels)}
        packs, why = True, "{in_panels} cycles with the copy, {unpacked} without"
        if in_panels >= unpacked:
            packs, why = False, "{unpacked} cycles without a copy, {in_panels} with one"
    how = "{b} is packed into panels of {columns} columns: " if packs else "{b} is not packed: "
    note(how + why, b=b.tensor, columns=tile.columns, least=least, **figures)
    return packs


def _cycles_of_ways(nest: Nest, target: Target, *, whole: bool = False) -> tuple[float, float]:
    """The cycles of a nest with the columns' factor unpacked, and with panels of it, in tiles for
    each, on one core. `whole`: all steps are summed at once."""
    cycles = partial(_fewest_cycles, target=on_one_core(target), whole=whole)
    return cycles(nest), cycles(_packed(nest))


def with_best_row(contraction: Contraction, target: Target) -> Contraction:
    """A contraction whose tiles have rows along the axis along which they take the fewest cycles;
    of axes that are alike, along the last one. Where the last one is short, such as that of a
    window, another axis may fill the registers. An axis whose extent may vary, as that of the
    images of a batch, may be short itself: its rows are chosen if the last axis has fewer than a
    tile."""
    if len(contraction.rows) < 2 or is_uneven(contraction.op):
        return contraction
    cycles, last = dict[IterVar, float](), contraction.rows[-1]
    for row in contraction.rows:
        each = replace(contraction, row=row)
        nest = _packed(nest_of(each, target))
        tile = best_tile(nest, target)
        if row is last or not may_vary(row) or usual_size([last]) < tile.rows:
            cycles[row] = cost(nest, tile, Blocks(), target)
    best = min(cycles, key=lambda row: cycles[row])
    is_better = cycles[best] * ALIKE < cycles[last]
    return replace(contraction, row=best) if is_better else contraction


def cycles_of(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction of two factors by the better of both ways, with the copies that
    it makes of factors in another layout."""
    contraction = with_best_row(contraction, target)
    nest = nest_of(contraction, target)
    unpacked, in_panels = _cycles_of_ways(nest, target)
    size = usual_product(nest.others) * nest.depth * nest.itemsize
    copied = size * usual_product(nest.rows) if thrashes(nest, nest.depth, target) else 0
    b, op = contraction.b, contraction.op
    if b.along(contraction.column) == 1:
        is_packed = copied_axes(contraction, b) is not None
        return (min(unpacked, in_panels) if is_packed else unpacked) + copy_cycles(copied)
    if all(b.along(k) != 1 for k in op.reduce_axis):  # elements are copied one by one
        in_panels += copy_cycles_apart(usual_size(filter(b.reads, (*op.axis, *op.reduce_axis))))
    return in_panels + copy_cycles(copied)
