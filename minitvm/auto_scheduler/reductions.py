"""The loops of reductions, in each of the ways of :mod:`ways`; running reductions.

Results in registers, for each block of columns of each row, on all threads::

    for r, q in the window:
        for x in the block, in vectors:
            largest[x] = max(largest[x], X[y + r, x + q])
    for x in the block, in vectors:
        Y[y, x] = largest[x]

Results in the L1 cache: a large factor is read once, row after row, a few of them side by side. The
sums of all parts fit half of the L2 cache, so wide rows have fewer parts. Where there are more
cores than parts, or a sum has to be in order, the cores share the columns as well, and read shorter
pieces of each row. A symbolic number of rows is a loop inside that over columns::

    for each part of k:                              # on all threads
        for each block of columns whose sums stay in the L1 cache:
            for a few steps of k:                    # so many rows of B, each read in its order
                for each vector of columns:
                    sums[i, j] += A[i, k] * B[k, j]  # for all i, and these k, written out
    C[...] = all parts' sums

By groups, each term is computed once, for the one group that data name, in the order of the terms.
Sums by key, histograms and counts are such reductions::

    for each part of p:                  # on all threads
        for p in the part:
            c = key[p]                   # see the pass enter_once
            if c is a group:
                for each vector of e:
                    sums[c, e] += x[p, e]
    S[c, e] = the sums of all parts

Each result of a running reduction, such as a prefix sum, reduces one term more than its neighbour.
If the results lie along the last axis, those in the lanes of a vector are computed from those in
the lanes before. If they lie along another axis y, the totals of a block of x stay in L1::

    for all other axes, and blocks of x, on all threads
        for y
            for x of the block, in vectors
                total[x] += A[y, x]
                C[y, x] = total[x]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm, prod

from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    bytes_of_results,
    contraction_of,
    divisors_along,
    extent_of,
    factors_of,
    is_extremum,
    is_in_order,
    is_multiple,
    is_rounded,
    is_uneven,
    lanes_of,
    last_line,
    part_of_long_sum,
    product_of_extents,
    running_axis,
)
from minitvm.auto_scheduler.lines import request_gathered, vectors_at_once
from minitvm.auto_scheduler.loops import (
    Places,
    cached,
    calls_in,
    compute_of,
    extent_in,
    factored,
    factored_in_lanes,
    fused,
    innermost,
    write_loops,
    write_sums,
)
from minitvm.auto_scheduler.some_sizes import USUAL, USUAL_STEPS, may_vary
from minitvm.auto_scheduler.terms import step_operations
from minitvm.auto_scheduler.ways import (
    LONG_PIECE,
    MOST_UNROLLED,
    STEPS,
    columns_in_line,
    groups_of,
    is_grouped,
    is_window,
    longest_axis,
    parts_of_rows,
    results_at_once,
    results_in_cache,
    runs_in_columns,
    vectors_under_way,
)
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.runtime.threads import TASKS
from minitvm.target import Target
from minitvm.te.schedules.found_blocks import place_found
from minitvm.te.schedules.hoist_values import is_lookup
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import can_exchange_terms, is_commutative, is_operator
from minitvm.tir.expr import IterVar
from minitvm.tir.functor import walk_once

_MOST_WRITTEN = 128  # steps of neighbouring results
_BYTES_OF_STEPS = 32  # of a vector that LLVM makes of the steps of a short loop
_STEPS_OF_VECTOR = 4  # at least
_ENDS = 16  # cycles at the ends of a loop
_WORTH = 0.75  # of the cycles, from which on stages of their own are worth it
_LEAST_VECTORS = 16  # of a block: shorter pieces of a row are slow to read


# -- Results in registers --


def write_in_registers(
    s: Schedule,
    stages: Sequence[Stage],
    last: Stage,
    inside: int,
    target: Target,
    *,
    in_order: bool,
) -> list[IterVar]:
    """Computes a few vectors of results in registers, from which `last` stores them: the only one
    of the `stages`, or an elementwise reader of all of them. A long sum that needn't be `in_order`
    is a sum of partial sums. Returns the loops of `last` from the axis `inside` on."""
    ops = [*map(compute_of, stages)]
    columns = min(results_at_once(op, target) for op in ops)
    if len(ops) > 1:  # share the registers
        vectors = min(vectors_under_way(op, target) for op in ops) >> (len(ops) - 1).bit_length()
        columns = min(columns, max(1, vectors) * min(lanes_of(op, target) for op in ops))
    for stage in stages:
        choose(stage, "tile", "{columns} neighbouring results at a time, in registers",
               columns=columns)  # fmt: skip
    # Axes that are shorter than a vector together form one axis of the registers.
    is_wide = all((extent_of(op.axis[-1]) or 1) >= columns for op in ops)
    line = 1 if is_wide else min(len(ops[0].axis) - inside, *map(columns_in_line, ops))
    made = [_results_for(s, stage, last, line, columns) for stage in stages]
    outer, block, column = _split_line(last, line, columns)
    last.vectorize(column)
    for op, results in zip(ops, made, strict=True):
        slides = is_window(op, columns)
        part = None if in_order else part_of_long_sum(op)
        _write_results(s, results, (last, block), target, columns, slides=slides, part=part)
    return [*outer[inside:], block]


def _results_for(s: Schedule, stage: Stage, last: Stage, line: int, columns: int) -> Stage:
    """The stage of a reduction's results in registers, which `last` reads."""
    if line > 1:
        _split_line(stage, line, columns)
    if last is not stage and line == 1:
        return stage.set_scope("local")
    results = cached(s, stage, "local")
    if last is not stage:
        stage.compute_inline()
    return results


def _write_results(
    s: Schedule,
    results: Stage,
    at: tuple[Stage, IterVar],
    target: Target,
    columns: int,
    *,
    slides: bool,
    part: int | None,
) -> None:
    """Computes a few vectors of results at the loop of a reader, of a sum in parts of some
    terms."""
    op = compute_of(results)
    write_sums(results, at, op.axis[-1:], op.reduce_axis)
    if slides:
        # If a window is unrolled, LLVM sees how large integers get, and computes them in narrow
        # lanes.
        for k in innermost(op.reduce_axis, MOST_UNROLLED) or op.reduce_axis[-1:]:
            results.unroll(k)
        return
    if part:
        results = _write_sums_of_parts(s, results, part)
    request_gathered(results, compute_of(results).reduce_axis[-1], columns, target)


def _write_sums_of_parts(s: Schedule, results: Stage, part: int) -> Stage:
    """Computes each part of a sum in registers of its own; returns the stage of the parts."""
    choose(results, "blocks", "in parts of {terms} terms, whose sums are added up", terms=part)
    outer, _ = results.split(compute_of(results).reduce_axis[-1], factor=part)
    sums = factored(s, results, outer, 0).set_scope("local")
    made, whole = compute_of(sums), compute_of(results)
    write_loops(results, whole.reduce_axis, whole.axis[-1])
    write_sums(sums, (results, whole.reduce_axis[-1]), made.axis[-1:], made.reduce_axis)
    return sums


def _split_line(stage: Stage, line: int, columns: int) -> tuple[list[IterVar], IterVar, IterVar]:
    """Splits the last axes, fused into one; returns the other loops, the loop over blocks, and the
    columns of a block."""
    axes = compute_of(stage).axis
    block, column = stage.split(fused(stage, axes[-line:]), factor=columns)
    return [*axes[:-line]], block, column


def in_parts(s: Schedule, stage: Stage, target: Target, *, in_order: bool) -> Stage:
    """The stage to schedule. For a long reduction whose few results are computed in registers, this
    is a stage of partial results, which threads share; otherwise it is `stage` itself."""
    op = compute_of(stage)
    results, terms = product_of_extents(op.axis), product_of_extents([*op.axis, *op.reduce_axis])
    if in_order or is_uneven(op) or results is None or terms is None:
        return stage
    parts, is_long = parts_of_rows(op, target), terms >= 2 * target.task_operations
    if not is_long or parts == 1 or results >= parts * results_at_once(op, target):
        return stage
    choose(stage, "blocks", "in {parts} parts of the steps", parts=parts)
    return split_in_parts(s, stage, parts, lanes_of(op, target))


def split_in_parts(
    s: Schedule, stage: Stage, parts: int, lanes: int, axes: Sequence[IterVar] = ()
) -> Stage:
    """Combines the results of parts of a reduction's steps along its longest axis, in vectors along
    the last of its `axes` in this order; returns the stage that computes them."""
    *others, column = axes or compute_of(stage).axis
    part, _ = stage.split(longest_axis(compute_of(stage)), nparts=parts)
    made = factored(s, stage, part)
    column, lane = stage.split(column, factor=lanes)
    write_loops(stage, compute_of(stage).reduce_axis, lane, tasks=[*others, column])
    return made


# -- Results in the L1 cache --


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


# -- Results along the reduction --


def write_along(s: Schedule, stage: Stage, target: Target, *, in_order: bool, alone: bool) -> None:
    """Computes one result after the other, along lines of memory. The results of a stage that is
    `alone` run in parallel; long ones are cut into parts, the same for any number of threads."""
    op = compute_of(stage)
    axis = running_axis(op, in_order=in_order)
    if axis is not None:
        line = last_line(op, op.axis[op.axis.index(axis) + 1 :])
        write_running(stage, axis, line, target, in_order=in_order, alone=alone)
        return
    reduced = _reduced(stage, in_order)
    partial: list[Stage] = []
    if not in_order:
        reduced = _in_digits(op, stage, reduced)
        parts: Stage | None = None
        is_nest = len(reduced) > 1
        if alone and not is_uneven(op) and can_exchange_terms(reduce_of(op)):
            parts = _write_parts(s, stage, reduced, target)
        if parts is not None:
            stage = parts
            reduced = [*compute_of(parts).reduce_axis]
            reduced = _reduced(parts, in_order) if is_nest else reduced
        is_slow = is_extremum(op) or (is_nest and _is_in_pieces(stage, reduced))
        is_folded = _folds(op) and isinstance(reduce_of(op).condition, e.IntImm)
        is_slow = not is_folded or (is_slow and not _has_partner(s, op))
        # In a plain loop, LLVM computes several vectors of functions side by side, which takes more
        # registers than there are, or vectors of half the width.
        takes_lanes = is_slow or calls_in(s, stage) > 0
        if parts is not None and is_rounded(op) and len(reduced) > 1 and not is_slow:
            blocks = factored(s, stage, reduced[0], 0).set_scope("local")
            reduced = _reduced(blocks, in_order)
            partial = [blocks]
            if takes_lanes:
                for each in _write_lanes(s, blocks, reduced[-1], target):
                    each.compute_at(blocks, compute_of(blocks).axis[-1])
        elif takes_lanes:
            partial = _write_lanes(s, stage, reduced[-1], target)
        if not takes_lanes:
            _unroll_digits(op, (partial or [stage])[0])
    axes = compute_of(stage).axis
    if alone and axes:
        is_plain = not partial and compute_of(stage) is op
        row = fused(stage, _write_out(op, stage, target) if is_plain else axes)
        stage.parallel(row)
    for each in partial if axes else ():
        each.compute_at(stage, row if alone else axes[-1])


def _in_digits(op: ComputeOp, stage: Stage, reduced: Sequence[IterVar]) -> list[IterVar]:
    """The reduction loops with the innermost one divided by the least number of steps, of too many
    to unroll, that have one quotient. Elements that data choose are loaded one by one in any
    case."""
    *outer, k = reduced
    if k.dom is None:  # of fused loops
        return [*reduced]
    sizes = divisors_along(op.reduce_axis, *op.body)
    size = min((n for n in sizes if n > MOST_UNROLLED), default=0)
    extent = extent_of(k)
    is_long = size and (extent is None or extent > size) and is_multiple(op, k, size)
    is_even = is_long and not any(n % size and size % n for n in sizes)
    if not is_even or any(is_lookup(each.load) for each in factors_of(op)):
        return [*reduced]
    return [*outer, *stage.split(k, factor=size)]


def _unroll_digits(op: ComputeOp, stage: Stage) -> None:
    """Unrolls as many steps as quotients and remainders need to repeat themselves, so that LLVM
    vectorises over steps that are alike. `stage` computes the reduction `op`, or its parts."""
    k = stage.leaf_iter_vars[-1]
    if k.dom is None:  # of fused loops
        return
    period = lcm(*divisors_along(op.reduce_axis, *op.body))
    if 1 < period <= MOST_UNROLLED and is_multiple(compute_of(stage), k, period):
        _, digit = stage.split(k, factor=period)
        stage.unroll(digit)


def _write_out(op: ComputeOp, stage: Stage, target: Target) -> Sequence[IterVar]:
    """Unrolls the steps of a reduction, and a few neighbouring results, where LLVM's vectors of
    steps leave a remainder, and can't be masked: LLVM then makes vectors across results. Returns
    the other data axes. Steps whose elements data choose are unrolled alone: these are read one by
    one, sooner than a vector of them is gathered."""
    steps, lanes = product_of_extents(op.reduce_axis), _BYTES_OF_STEPS // op.body[0].dtype.itemsize
    is_short = bool(steps) and (steps or 0) <= MOST_UNROLLED and not is_uneven(op)
    if is_short and any(is_lookup(each.load) for each in factors_of(op)):
        for loop in stage.leaf_iter_vars:
            if loop not in op.axis:
                stage.unroll(loop)
        return op.axis
    most = _STEPS_OF_VECTOR if target.has_mask_registers else MOST_UNROLLED
    if not steps or steps > most or is_uneven(op):
        return op.axis
    results = innermost(op.axis[1:], _MOST_WRITTEN // steps)
    if (extent_of(op.reduce_axis[-1]) or 0) % lanes == 0 or product_of_extents(results) == 1:
        return op.axis
    for loop in (*results, *(each for each in stage.leaf_iter_vars if each not in op.axis)):
        stage.unroll(loop)
    return op.axis[: len(op.axis) - len(results)]


def _reduced(stage: Stage, in_order: bool) -> list[IterVar]:
    """The reduction loops, those of the largest distances outermost if the order is free. Loops
    along one line of memory are fused."""
    op, axes = compute_of(stage), [*compute_of(stage).reduce_axis]
    if len(axes) > 1 and not in_order and can_exchange_terms(reduce_of(op)):
        reads = factors_of(op)
        axes.sort(key=lambda k: -max([0, *(each.along(k) for each in reads)]))
        if axes != [*op.reduce_axis]:
            stage.reorder(*axes)
    line = last_line(op, axes)
    return [*axes[: -len(line)], fused(stage, line)]


def _folds(op: ComputeOp) -> bool:
    """Whether LLVM combines the lanes of a vector to a result. 16-bit floats are rounded after each
    step."""
    combiner = reduce_of(op).combiner
    (dtype, *more) = (each.dtype for each in combiner.result)
    if more or (dtype.is_float and dtype.bits == 16):
        return False
    return is_operator(combiner, e.Add, e.Mul, e.Min, e.Max)


def _write_parts(
    s: Schedule, stage: Stage, reduced: Sequence[IterVar], target: Target
) -> Stage | None:
    """Cuts a long reduction into parts that fit L2 and are worth a task, enough for all threads,
    and each part into blocks. Returns the stage of the parts. None if one part is enough."""
    op = compute_of(stage)
    terms = target.cache_bytes(2) // max(body.dtype.itemsize for body in op.body)
    least = min(terms, target.task_operations)
    axis, *inside = reduced
    block = prod(extent_in(stage, loop) or 1 for loop in inside)
    total = block * (extent_in(stage, axis) or 1)
    if total < 2 * least:
        return None
    if not inside:
        block = 1 << (terms.bit_length() // 2)
        axis, _ = stage.split(axis, factor=block)
    steps = max(1, min(terms, max(least, -(-total // TASKS))) // block)
    choose(stage, "blocks", "in parts of {terms} terms, which fit the L2 cache",
           terms=steps * block)  # fmt: skip
    part, _ = stage.split(axis, factor=steps)
    return factored(s, stage, part)


def _is_in_pieces(stage: Stage, reduced: Sequence[IterVar]) -> bool:
    """Whether the innermost loop of a reduction goes along short pieces of memory, at whose ends
    LLVM would combine the lanes each time."""
    *outer, piece = (extent_in(stage, loop) for loop in reduced)
    is_long = piece is None or piece > LONG_PIECE
    return not (is_long or is_uneven(compute_of(stage))) and any(n != 1 for n in outer)


def _has_partner(s: Schedule, op: ComputeOp) -> bool:
    """Whether another reduction reads the same elements, and may share the loops."""
    mine = [extent_of(axis) for axis in (*op.axis, *op.reduce_axis)]
    return any(
        other is not op
        and isinstance(other, ComputeOp)
        and bool(other.reduce_axis)
        and mine == [extent_of(axis) for axis in (*other.axis, *other.reduce_axis)]
        and not {*other.input_tensors}.isdisjoint(op.input_tensors)
        for other in (each.op for each in s.stages)
    )


def _write_lanes(s: Schedule, stage: Stage, k: IterVar, target: Target) -> list[Stage]:
    """Combines the steps in the lanes of a few vectors, and these lanes to one result: by folds of
    vectors, or by halves. Returns the stages of the vectors; none if there are too few steps."""
    op = compute_of(stage)
    lanes = lanes_of(op, target)
    extent = USUAL_STEPS if (n := extent_in(stage, k)) is None else max(0, n)
    terms = product_of_extents(op.reduce_axis) or extent
    # The lanes hold sums of several pieces, behind whose ends a masked vector computes nothing.
    is_whole = not is_uneven(op) and isinstance(reduce_of(op).condition, e.IntImm)
    is_nest = is_whole and extent < terms >= 2 * lanes
    if is_nest and target.has_mask_registers and extent >= _STEPS_OF_VECTOR:
        lanes = min(lanes, 1 << (extent - 1).bit_length())
    elif extent < (lanes if is_nest else 2 * lanes):
        return []
    if calls := calls_in(s, stage):
        width = lanes * vectors_at_once(extent, lanes, calls)
    else:
        width = lanes * vectors_under_way(op, target)
    # A vector costs a step at the end.
    most = min(extent, terms // _STEPS_OF_VECTOR)
    width = min(width, max(lanes, 1 << (most.bit_length() - 1)))
    choose(stage, "tile", "{width} partial results at a time, in lanes", width=width)
    vectors = factored_in_lanes(s, stage, k, width)
    *others, lane = compute_of(vectors).axis
    vector, lane = vectors.split(lane, factor=lanes)
    along, *around = compute_of(vectors).reduce_axis
    write_loops(vectors, [*others, *around, along], lane, unrolled=[vector])
    made = [vectors]
    if not is_commutative(reduce_of(compute_of(stage)).combiner):
        return made
    if _folds(op):
        stage.vectorize(compute_of(stage).reduce_axis[0])
        return made
    halves = lanes if width > lanes else lanes // 2
    while halves > 1:
        total = factored_in_lanes(s, stage, compute_of(stage).reduce_axis[0], halves)
        *others, lane = compute_of(total).axis
        (vector,) = compute_of(total).reduce_axis
        write_loops(total, others, lane, unrolled=[vector])
        made.insert(0, total)
        halves //= 2
    return made


# -- Places that are found in blocks --


def write_found_blocks(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets a reduction along lines that finds a place, as an argmax does, find its block first, if
    that takes fewer cycles; returns the stages of the blocks. The values of all blocks have more
    lanes than the places, and fewer operations."""
    s, target, op = program.schedule, program.target, compute_of(stage)
    place = place_found(op) if stage.time is None else None
    if place is None or is_in_order(op, program.strict) or runs_in_columns(op, target):
        return None
    (k,), reduce = op.reduce_axis, reduce_of(op)
    steps = extent_of(k)
    if steps is None or contraction_of(op) is not None or is_uneven(op):
        return None
    loads = len(factors_of(op))
    others = [i for i in range(len(op.body)) if i != place]
    both = (loads + step_operations(reduce, range(len(op.body)))) / lanes_of(op, target)
    lanes = min(target.lanes(op.body[i].dtype) for i in others)
    alone = (loads + step_operations(reduce, others)) / lanes
    combining = _ENDS + 2 * len(others) * lanes.bit_length()

    def cycles(size: int) -> float:
        return steps * alone + -(-steps // size) * combining + size * both

    sizes = [1 << n for n in range(lanes.bit_length(), (steps // 2).bit_length())]
    size = min(sizes, key=cycles, default=steps)
    if cycles(size) > _WORTH * steps * both:
        return None
    choose(stage, "blocks", "the block of {size} steps that holds the result is found first",
           size=size)  # fmt: skip
    best, *_, block = s.find_block(op.output(0), size)
    return [s[best], s[block]]


# -- By groups --


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


# -- Running reductions --


def write_running(
    stage: Stage,
    axis: IterVar,
    line: Sequence[IterVar],
    target: Target,
    *,
    in_order: bool,
    alone: bool,
) -> None:
    """Writes a running reduction along an axis. `line`: the last axes behind it, which are one line
    of memory. `in_order`: terms are combined one after the other. A stage that is `alone` runs in
    parallel."""
    op = compute_of(stage)
    choose(stage, "strategy", "each result along {axis} goes on from the one before", axis=axis)
    stage.accumulate(axis)
    tasks = [each for each in op.axis if each is not axis and each not in line]
    if line:
        tasks.append(_write_totals(stage, axis, tasks, line, target, alone=alone))
    elif not in_order and len(op.reduce_axis) == 1:
        _write_running_lanes(stage, axis)
    if alone and tasks:
        stage.parallel(fused(stage, tasks))


def _write_running_lanes(stage: Stage, axis: IterVar) -> None:
    """Combines in lanes the terms of the cache lines that are fetched together."""
    width = LINES_AT_ONCE * CACHE_LINE // max(b.dtype.itemsize for b in compute_of(stage).body)
    extent = extent_of(axis)
    if extent is not None:
        width = min(width, 1 << max(0, extent.bit_length() - 1))
    if width > 1:
        _, lane = stage.split(axis, factor=width)
        stage.vectorize(lane)


def _write_totals(
    stage: Stage,
    axis: IterVar,
    tasks: Sequence[IterVar],
    line: Sequence[IterVar],
    target: Target,
    *,
    alone: bool,
) -> IterVar:
    """Keeps a block of running results in the L1 cache. Returns the loop over blocks."""
    op = compute_of(stage)
    lanes, most = lanes_of(op, target), results_in_cache(op, target)
    extent = product_of_extents(line)
    others = prod(extent_of(each) or target.num_cores for each in tasks)
    if alone and extent is not None and others < target.num_cores:
        share = -(-extent * max(1, others) // target.num_cores)
        # Shorter pieces are slow to read.
        least = target.cache_bytes(1) // target.l1_ways // bytes_of_results(op)
        most = min(most, max(-(-share // lanes) * lanes, least))
    if extent is not None:
        lanes = max(1, min(lanes, extent))
    block, column = stage.split(fused(stage, line), factor=most)
    column, lane = stage.split(column, factor=lanes)
    write_loops(stage, [*tasks, block, axis, column], lane)
    return block
