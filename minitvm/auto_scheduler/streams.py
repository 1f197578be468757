"""Reductions that wait for memory: a factor is read once, row after row; and reductions by groups.

A strategy for contractions of a few rows with a large factor, and for sums of columns, which are
contractions without rows. It is compared with register tiles (:func:`is_streamed`), which read
pieces of the rows. The sums stay in the L1 cache::

    for each part of k:                              # on all threads
        for each block of columns whose sums stay in the L1 cache:
            for a few steps of k:                    # so many rows of B, each read in its order
                for each vector of columns:
                    sums[i, j] += A[i, k] * B[k, j]  # for all i, and these k, written out
    C[...] = all parts' sums

The sums of all parts fit half of the L2 cache, so wide rows have fewer parts. Where there are more
cores than parts, or a sum has to be in order, the cores share the columns as well, and read shorter
pieces of each row. A symbolic number of rows is a loop inside that over columns.

In a reduction by groups, data name the one result to which each term belongs. Sums by key,
histograms and counts are reductions whose condition equates an index read from memory with an axis
of the results: ``sum(x[p, e], axis=p, where=key[p] == c)``. Each term is computed once, for its own
group, in the order of the terms::

    for each part of p:                  # on all threads
        for p in the part:
            c = key[p]                   # see the pass enter_once
            if c is a group:
                for each vector of e:
                    sums[c, e] += x[p, e]
    S[c, e] = the sums of all parts

Where the lanes of a vector are the groups, comparing each term with all groups costs as little, and
the results stay in registers. So it does for two groups.
"""

from __future__ import annotations

from math import prod

from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    are_pieces,
    bytes_of,
    extent_of,
    is_in_order,
    is_near_along,
    is_uneven,
    lanes_of,
    line_of,
    long_axes,
    part_of_long_sum,
    plain_axes_of,
    product_of_extents,
    slides,
)
from minitvm.auto_scheduler.cost import in_pieces, transfer_cycles, usual_bytes_of, usual_size
from minitvm.auto_scheduler.loops import Places, cached, compute_of, factored, fused, write_loops
from minitvm.auto_scheduler.reductions import (
    STEPS,
    parts_of_rows,
    results_in_cache,
    split_in_parts,
)
from minitvm.auto_scheduler.some_sizes import USUAL, has_near_tensors, may_vary
from minitvm.auto_scheduler.tiled import cycles_of
from minitvm.auto_scheduler.tiles import ALIKE
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.simplify_operations import named_result
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar, PrimExpr, Reduce
from minitvm.tir.functor import mentions, walk_once

MOST_ROWS = 8
_MOST_PLAIN_ROWS = 2
_LEAST_VECTORS = 16  # of a block: shorter pieces of a row are slow to read


def is_streamed(contraction: Contraction, target: Target) -> bool:
    """Whether streaming takes fewer cycles than register tiles, which would read a large factor in
    pieces of lines for only a few rows."""
    few = _is_of_one_axis_for_few(contraction, MOST_ROWS)
    if not few or contraction.b.along(contraction.column) != 1:
        return False
    if is_uneven(contraction.op) or slides(contraction.op, contraction.b):
        return False
    size = bytes_of(contraction.b.tensor)
    if size is not None and size <= target.cache_bytes(2) // 4:
        return False
    streamed = streamed_cycles(contraction, target)
    # Tiles read pieces of its lines.
    came = _came(contraction, extent_of(contraction.column) or USUAL, target)
    return streamed <= ALIKE * max(cycles_of(contraction, target), came)


def _came(contraction: Contraction, piece: int, target: Target) -> float:
    """The cycles in which the columns' factor comes, `piece` elements of a line at a time."""
    b, line = contraction.b.tensor, product_of_extents(line_of_columns(contraction)) or USUAL
    size = usual_bytes_of(b)
    came = transfer_cycles(size, size, target)
    if piece < line:
        came *= in_pieces(target.level_of(size), piece * b.dtype.itemsize, target)
    return came


def is_left_plain(contraction: Contraction) -> bool:
    """Whether plain loops, which compute one sum after the other, are best: few rows use the
    columns' factor, and its elements lie side by side along the reduction axis, or along all of
    them."""
    if _sums_own_lines(contraction):
        return True
    a, b, op = contraction.a, contraction.b, contraction.op
    across = b.along(contraction.column) != 1
    if not across or not is_for_few(contraction, _MOST_PLAIN_ROWS):
        return False
    *outer, k = op.reduce_axis
    if outer and (is_uneven(op) or len(line_of(op, op.reduce_axis, [b.load])) <= len(outer)):
        return False
    return b.reads(k) and all(is_near_along(op, each.load, k) for each in (a, b))


def _sums_own_lines(contraction: Contraction) -> bool:
    """Whether each result sums elements of the columns' factor that no other result reads, in lines
    of memory along reduction axes: tiles would use no element again, and read the columns of a
    vector far apart."""
    op, b = contraction.op, contraction.b
    if not op.reduce_axis or is_uneven(op):
        return False
    reduced = sorted(op.reduce_axis, key=b.along, reverse=True)
    k, size = reduced[-1], product_of_extents(line_of(op, reduced, [b.load]))
    results = long_axes(op.axis)  # of which none reads a line of another
    if b.along(k) != 1 or size is None or size * b.tensor.dtype.itemsize < CACHE_LINE:
        return False
    return (
        b.along(contraction.column) >= size
        and all(
            each.reads(axis) for each in contraction.factors if each.reads(k) for axis in results
        )
        and _reads_once(contraction, b)
        and all(is_near_along(op, each.load, k) for each in contraction.factors)
    )


def _reads_once(contraction: Contraction, factor: Factor) -> bool:
    """Whether each element of a factor is read in one iteration alone."""
    below = 0
    axes = [*contraction.op.axis, *contraction.op.reduce_axis]
    for axis in sorted(axes, key=factor.along):
        extent = extent_of(axis)
        if extent == 1:
            continue
        if factor.along(axis) <= below or extent is None:
            return False
        below += factor.along(axis) * (extent - 1)
    return True


def is_plain_reduction(contraction: Contraction) -> bool:
    """Whether a contraction is best scheduled as any other reduction: it is left plain; or a single
    row uses the columns' factor, whose neighbours lie along the last axis."""
    op, b = contraction.op, contraction.b
    if b.along(contraction.column) != 1 or not _is_of_one_axis_for_few(contraction, 1):
        return is_left_plain(contraction)
    is_in_columns = contraction.column is op.axis[-1] and not is_uneven(op)
    is_known = bytes_of(b.tensor) is not None or has_near_tensors()
    is_once = is_known and plain_axes_of(contraction, b) is not None
    return is_in_columns and is_once and len(line_of_columns(contraction)) == 1


def is_along_lines(contraction: Contraction, target: Target) -> bool:
    """Whether the columns fill half a vector at most, and lie in one line of the columns' factor
    with those of the axes before, or a few pieces apart, while the other factors don't change along
    the results: as the few channels of an image do whose places are weighted."""
    op, column = contraction.op, contraction.column
    width, lanes = extent_of(column), target.lanes(op.output(0).dtype)
    if column is not op.axis[-1] or width is None or not 1 < width <= lanes // 2:
        return False
    if any(map(contraction.a.reads, op.axis)) or contraction.b.along(column) != 1:
        return False
    line = product_of_extents(line_of_columns(contraction))
    return line is None or line >= lanes or are_pieces(op)


def _is_of_one_axis_for_few(contraction: Contraction, most: int) -> bool:
    return len(contraction.op.reduce_axis) == 1 and is_for_few(contraction, most)


def is_for_few(contraction: Contraction, most: int) -> bool:
    """Whether at most `most` rows use an element of `b`."""
    if contraction.a.reads(contraction.column):
        return False
    extents = [extent_of(axis) for axis in contraction.rows]
    return None not in extents and prod(each or 0 for each in extents) <= most


def streamed_cycles(contraction: Contraction, target: Target) -> float:
    """The cycles of a streamed contraction. Its arithmetic and the transfer of the columns' factor
    overlap: the longer of both counts, and a part of the shorter one, the larger the nearer they
    are. A sum is read and written once in a few steps. Elements of the rows' factor are read again
    for each product, unless all of them stay in registers."""
    op, cpu, lanes = contraction.op, target.processor, target.lanes(contraction.op.output(0).dtype)
    rows = prod(extent_of(axis) or 1 for axis in contraction.rows)
    steps = usual_size((*op.axis, *op.reduce_axis))
    stays = rows * STEPS <= target.vector_registers // 2  # sums need the others
    loads = 1 / rows + 1 / STEPS + (0 if stays else 1)
    came = _came(contraction, results_in_cache(op, target, rows), target)
    computed = steps / lanes * max(1 / cpu.ports, loads / cpu.loads)
    fewer, more = sorted((computed, came))
    return more + fewer * fewer / more


def line_of_columns(contraction: Contraction) -> list[IterVar]:
    """The axes along which a line of the columns' factor lies: the column, and those before it that
    continue the line."""
    axes = contraction.op.axis[: contraction.op.axis.index(contraction.column) + 1]
    outside = [*filter(contraction.a.reads, axes)]
    return line_of(contraction.op, axes, [contraction.b.load], outside)


def write_streamed(
    s: Schedule,
    stage: Stage,
    target: Target,
    places: Places | None = None,
    line: int = 1,
    *,
    in_order: bool,
) -> None:
    """Writes the schedule of a reduction whose rows lie at `places`; by default it has none. The
    column and the axes before it, `line` together, are a line of memory. `in_order`: the steps are
    not divided into parts."""
    op = compute_of(stage)
    last = len(op.axis) - 1
    places = places or Places((), tuple(range(last)), last)
    rows, others, column = places.of(stage)
    outside = len(others) - line + 1
    lanes, number = lanes_of(op, target), prod(extent_of(axis) or 1 for axis in rows)
    parts = 1 if in_order else parts_of_rows(op, target)
    tasks = parts * prod(extent_of(axis) or target.num_cores for axis in others[:outside])
    columns = product_of_extents([*others[outside:], column])
    block = results_in_cache(op, target, number)
    if target.num_cores > tasks:
        share = -(-(columns or USUAL) * tasks // target.num_cores)
        block = min(block, max(-(-share // lanes), _LEAST_VECTORS) * lanes)
    is_even = columns is not None and columns % lanes == 0
    is_cheap = number == 1 or is_even or target.has_mask_registers
    steps = extent_of(op.reduce_axis[-1]) if number > 1 else None
    together = _steps(None if steps is None else -(-steps // parts), is_cheap)
    choose(stage, "strategy", "rows are read whole, {steps} at a time; {block} columns of results "
           "stay in the L1 cache, of {parts} parts of the steps", steps=together, block=block,
           parts=parts)  # fmt: skip
    if parts > 1:
        stage = split_in_parts(s, stage, parts, lanes, (*others, *rows, column))
        rows, others, column = places.of(stage)
    shared = [*others[:outside], *compute_of(stage).axis[: parts > 1]]
    is_fixed = not any(map(may_be_others, rows))
    sums = _sums_apart(s, stage, column, in_order=in_order) if line == 1 and is_fixed else None
    reduced = compute_of(stage).reduce_axis
    outer, vector = stage.split(fused(stage, [*others[outside:], column]), factor=block)
    vector, lane = stage.split(vector, factor=lanes)
    whole = [*shared, outer]
    if sums is not None:
        write_loops(stage, [*reduced, *rows, vector], lane, tasks=whole)
        sums.compute_at(stage, (*reduced, stage.leaf_iter_vars[0])[0])
        rows, others, column = places.of(sums)
        vector, lane = sums.split(column, factor=lanes)
        stage, whole = sums, []
    *before, k = compute_of(stage).reduce_axis
    step, inner = stage.split(k, factor=together)
    looped = [*filter(may_be_others, rows)]
    loops = [*before, step, vector, *looped]
    unrolled = [*(axis for axis in rows if axis not in looped), inner]
    if sums is not None:
        loops = [*others, *loops]
    write_loops(stage, loops, lane, tasks=whole, unrolled=unrolled)


def _sums_apart(s: Schedule, stage: Stage, column: IterVar, *, in_order: bool) -> Stage | None:
    """Lets the sums of a block be in memory of their own, if their number or that of the steps is
    symbolic. A last vector of unknown length is masked, and its sums would be stored and read under
    the mask in each step; their own memory is padded. Of many steps, the sums of parts are added,
    so that rounding loses less."""
    k = compute_of(stage).reduce_axis[-1]
    part = None if in_order or extent_of(k) is not None else part_of_long_sum(compute_of(stage))
    if part is not None:
        outer, _ = stage.split(k, factor=part)
        return factored(s, stage, outer, 0)
    return cached(s, stage, "global") if extent_of(column) is None else None


def may_be_others(row: IterVar) -> bool:
    """Whether other calls may have more or fewer rows along an axis. Those aren't written out."""
    return may_vary(row) and extent_of(row) != 1


def _steps(extent: int | None, is_cheap: bool) -> int:
    """The number of rows of B that are read side by side: a divisor of `extent`, if one is near
    enough. `is_cheap`: a remainder costs little, since no vector of columns needs a mask that the
    processor must compute."""
    sizes = range(STEPS, STEPS // 2 - 1, -1)
    even = next((each for each in sizes if extent is not None and extent % each == 0), None)
    return even or (STEPS if is_cheap or extent is None else 1)


# -- By groups --


_FEW = 2  # groups with which each term may be compared


def groups_of(op: ComputeOp) -> dict[IterVar, PrimExpr]:
    """The axes of the groups of a reduction, each with the index that names a term's group."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or is_uneven(op):
        return {}
    found = dict[IterVar, PrimExpr]()
    for each in conjuncts(reduce.condition):
        named = named_result(op, each)
        if named is None or named[0] in found or not _is_of_terms(op, named[1]):
            break
        found |= [named]
    is_apart = not any(mentions(axis.var, key) for axis in found for key in found.values())
    return found if is_apart else {}


def _is_of_terms(op: ComputeOp, key: PrimExpr) -> bool:
    """Whether a value is read from memory, and changes with the terms of a reduction."""
    return reads_tensors(key) and any(mentions(each.var, key) for each in op.reduce_axis)


def is_grouped(op: ComputeOp, target: Target) -> bool:
    """Whether data name the only group of each term, and there are so many groups that it isn't
    compared with all of them."""
    found = groups_of(op)
    groups = product_of_extents([*found])
    others = product_of_extents([axis for axis in op.axis if axis not in found])
    is_compared = (bool(found) and [*found][-1] is op.axis[-1]) or others == 1
    # Groups of a symbolic number keep their loop.
    return bool(found) and (groups or 0) > (lanes_of(op, target) if is_compared else _FEW)


def write_grouped(program: Program, stage: Stage) -> bool | None:
    """Schedules a reduction by groups; None for any other, or one of few groups."""
    s, target, op = program.schedule, program.target, compute_of(stage)
    if stage.inlined or stage.time is not None or not is_grouped(op, target):
        return None
    found, lanes = groups_of(op), lanes_of(op, target)
    program.whole.update(s[tensor] for tensor in op.input_tensors)
    choose(stage, "strategy", "each term is computed for its own one of {groups} groups, which "
           "data name", groups=product_of_extents([*found]))  # fmt: skip
    places = [op.axis.index(group) for group in found]
    used = {*walk_once(*found.values())}
    outside = [i for i, axis in enumerate(op.axis) if axis.var in used]
    work = product_of_extents([*op.reduce_axis, *(a for a in op.axis if a not in found)])
    parts = 1 if is_in_order(op, program.strict) else parts_of_rows(op, target)
    is_long = work is not None and work >= 2 * target.task_operations
    tasks: list[IterVar] = []
    if parts > 1 and is_long and not outside:
        choose(stage, "blocks", "in {parts} parts of the steps", parts=parts)
        stage = split_in_parts(s, stage, parts, lanes)
        tasks = [compute_of(stage).axis[0]]
    made = compute_of(stage)
    axes = made.axis[len(tasks) :]
    tasks += [axes[i] for i in outside]
    inside = [axis for i, axis in enumerate(axes) if i not in outside and i not in places]
    lane = None
    if inside:
        inside[-1], lane = stage.split(inside[-1], factor=lanes)
    loops = [*made.reduce_axis, *(axes[i] for i in places), *inside]
    write_loops(stage, loops, lane, tasks=tasks)
    return True
