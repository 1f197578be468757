"""The loops of one reduction that is no contraction, and the cycles of reductions.

The decision is the axis of the vectors: the lanes are neighbours along the last data axis, or along
a reduction axis. It follows from the distances of the reads in memory along each axis.
:mod:`rows` asks for the loops; :mod:`strategies` and :mod:`layouts` ask for the cycles. Along the
data axis a few vectors of results stay in registers::

    for each block of columns of each row, on all threads:
        for r, q in the window:
            for x in the block, in vectors:
                largest[x] = max(largest[x], X[y + r, x + q])
        for x in the block, in vectors:
            Y[y, x] = largest[x]

Where each step of the reduction would read a short piece of a far row, the results stay in the L1
cache instead, and rows are read whole, a few of them side by side::

    for each part of the rows, on all threads:
        for a few rows of the part:
            for x in vectors:
                sums[part, x] += X[row, x]              # for these rows
    Y[x] = the sums of all parts

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

from collections.abc import Container, Iterable, Sequence
from math import lcm, prod

from minitvm.arith.atoms import structural_key
from minitvm.arith.work import value_operations
from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    FAR,
    NEAR,
    Factor,
    are_pieces,
    bare_vars,
    bytes_of_results,
    contraction_of,
    divisors_along,
    extent_of,
    factors_in_indices,
    factors_of,
    is_extremum,
    is_in_order,
    is_multiple,
    is_rounded,
    is_uneven,
    lanes_of,
    last_line,
    line_of,
    long_axes,
    part_of_long_sum,
    product_of_extents,
    running_axis,
    slides,
    uneven_axes,
)
from minitvm.auto_scheduler.cost import transfer_cycles, usual_bytes_of, usual_size
from minitvm.auto_scheduler.lines import gathered, request_gathered
from minitvm.auto_scheduler.loops import (
    cached,
    compute_of,
    extent_in,
    factored,
    factored_in_lanes,
    fused,
    innermost,
    write_loops,
    write_sums,
)
from minitvm.auto_scheduler.some_sizes import USUAL_STEPS, is_far
from minitvm.auto_scheduler.terms import CAST
from minitvm.runtime.dtype import UINT8
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.runtime.threads import TASKS
from minitvm.target import Target
from minitvm.te.schedules.found_blocks import place_found
from minitvm.te.schedules.hoist_values import is_lookup
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import can_exchange_terms, is_commutative, is_operator
from minitvm.tir.expr import IterVar, Reduce, Var
from minitvm.tir.functor import walk_once

_APART = 2  # vectors of elements that lie apart, under way
_VECTORS = 8  # of results that are computed together, where there may be few
_MASKED = 4  # bytes of an element, for which any target masks lanes at once
_LONG = 32  # steps, after which a tile for each rest pays (:mod:`overlap_tiles`)
_MOST_UNROLLED = 16  # steps: more take long to compile
_MOST_WRITTEN = 128  # steps of neighbouring results
_BYTES_OF_STEPS = 32  # of a vector that LLVM makes of the steps of a short loop
_STEPS_OF_VECTOR = 4  # at least
_CHOSEN = 3  # instructions in the time of one element of a vector that data choose
_LOADS_APART = 2  # loads in the time of one element of a vector whose elements lie apart
_VECTORS_OF_PIECES = 3  # of bytes: loops over more lanes aren't unrolled
_ROWS_OF_LANE = 4  # sums of a lane
_CYCLES_OF_LANE = 2  # cycles of a shuffle and an addition
_ENDS = 16  # cycles at the ends of a loop
_WORTH = 0.75  # of the cycles, from which on stages of their own are worth it
_MOST_PARTS = 8  # of the steps
_LEAST_STEPS = 64  # of a part
STEPS = 8  # rows that are read side by side: streams that the prefetcher follows
LONG_PIECE = 1024  # elements, beside which it costs little to combine the lanes of a vector


# -- Lanes --


def runs_in_columns(op: ComputeOp, target: Target) -> bool:
    """Whether the lanes of a reduction's vectors are neighbours along the last data axis."""
    if running_axis(op) is not None or not op.axis or op.axis[-1] in uneven_axes(op):
        return False
    reads = factors_of(op)
    reads += factors_in_indices(op, *(each.load for each in reads))
    lanes = lanes_of(op, target)
    across = _cost(op.axis[-1], product_of_extents(op.axis[-_line_of(op) :]), reads, lanes)
    # At the end of an axis, the lanes are combined.
    terms = prod(extent_of(axis) or FAR for axis in op.reduce_axis)
    combining = 2 * (lanes.bit_length() - 1) / max(1, terms)
    along = [_cost(k, extent_of(k), reads, lanes) + combining for k in op.reduce_axis]
    return across < min([1.0 + len(reads), *along])  # or one by one


def rows_of(op: ComputeOp, target: Target) -> int:
    """The number of leading axes along which a stage can be computed row by row: results that are
    computed together, or are computed from each other, stay in one row."""
    axis = running_axis(op)
    if axis is not None:
        return op.axis.index(axis)
    if not op.reduce_axis or not runs_in_columns(op, target):
        return len(op.axis)
    is_wide = (extent_of(op.axis[-1]) or FAR) >= lanes_of(op, target)
    return len(op.axis) - (1 if is_wide else _line_of(op))


def _line_of(op: ComputeOp) -> int:
    """The number of last data axes that together run along one line of memory in every read. No
    range of a sum depends on the outer ones, and no condition or value on any, since the digits of
    their common index are dear. In a window of several columns, too, only the steps of a reduction
    leave the line."""
    if op.axis[-1].var in bare_vars(*op.body):
        return 1
    # The guard of a last part, which rfactor makes, leaves the main part alone.
    bare = bare_vars(*(reduce_of(op).source if op.reduce_axis else op.body))
    outside = [*uneven_axes(op), *(axis for axis in op.axis if axis.var in bare)]
    found = len(line_of(op, op.axis, [each.load for each in factors_of(op)], outside))
    return 2 if found == 1 and are_pieces(op) else found


def _cost(axis: IterVar, extent: int | None, reads: Sequence[Factor], lanes: int) -> float:
    """The instructions for a term of a reduction whose lanes are neighbours along an axis: loads
    and shuffles, and one to combine it. A lane that data choose takes the time of three."""
    used = lanes if extent is None else max(1, min(lanes, extent))
    most = (_CHOSEN if is_lookup(each.load) else 2 for each in reads)
    loads = (
        max(1, min(2 * each.along(axis) - 1, n * used)) for each, n in zip(reads, most, strict=True)
    )
    return (1 + sum(loads)) / used


# -- Cycles --


def cycles_of_reduction(op: ComputeOp, target: Target) -> float:
    """The cycles of a reduction that uses no element again: in vectors of neighbouring results, if
    these read neighbouring terms, or of neighbouring steps."""
    factors, column = factors_of(op), long_axes(op.axis)[-1:]
    is_across = not column or any(each.along(column[0]) not in (0, 1) for each in factors)
    return cycles_along(op.reduce_axis[-1] if is_across else column[0], op, factors, target)


def cycles_along(
    axis: IterVar,
    op: ComputeOp,
    factors: Sequence[Factor],
    target: Target,
    row: IterVar | None = None,
) -> float:
    """The cycles of a reduction in vectors of neighbours along an axis: of results, or of steps,
    whose lanes are added at the end; short ones side by side. Each factor is read from the cache
    that holds it; one that doesn't change along `row`, for a few results at once."""
    cpu, lanes, width = target.processor, target.lanes(op.output(0).dtype), usual_size([axis])
    is_step = axis in op.reduce_axis
    vectors = width / lanes if is_step and width < lanes else -(-width // lanes)
    results, terms = usual_size(op.axis), usual_size([*op.axis, *op.reduce_axis])
    several = min(_ROWS_OF_LANE, 1 if row is None else usual_size([row]))
    loads = came = casts = 0.0
    for each in factors:
        apart, again = each.along(axis), 1 if row is None or each.reads(row) else several
        loads += (_LOADS_APART * lanes if apart > NEAR else max(1, apart)) / again
        casts += CAST / again if each.is_cast and apart else 0.0
        lines = lanes * min(apart * each.tensor.dtype.itemsize, CACHE_LINE)
        came += transfer_cycles(lines, usual_bytes_of(each.tensor), target) / again
    added = results * min(width, lanes) / lanes * lanes.bit_length() * _CYCLES_OF_LANE
    step = max(1 / cpu.ports, loads / cpu.loads, came) + casts / cpu.ports
    read = terms / width * vectors * step
    return read + (added if is_step else 0)


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


def step_operations(reduce: Reduce, components: Iterable[int]) -> int:
    """The operations that compute some components of a step's terms, and combine them."""
    chosen = [*components]
    combined = walk_once(*(reduce.combiner.result[i] for i in chosen))
    combines = sum(not isinstance(x, Var | e.IntImm | e.FloatImm) for x in combined)
    return term_operations(reduce, chosen) + combines


def term_operations(reduce: Reduce, components: Iterable[int]) -> int:
    """The operations that compute some components of a step's terms; LLVM computes equal ones
    once."""
    computed = value_operations(*(reduce.source[i] for i in components))
    return len({structural_key(node) for _, node in computed})


# -- Results in registers --


def results_at_once(op: ComputeOp, target: Target) -> int:
    """The number of neighbouring results that are computed together: enough vectors to hide the
    latency of one. Of rows that data choose, it is a whole row, if registers hold it."""
    lanes = lanes_of(op, target)
    columns = lanes * _vectors_under_way(op, target)
    extent = product_of_extents(op.axis[-_line_of(op) :])
    if extent is not None and len(op.body) == 1 and gathered(op, target):
        most = target.vector_registers * 3 // 4
        columns = lanes * (most if extent <= most * lanes else target.vector_registers // 2)
    if any(each.along(op.axis[-1]) > NEAR for each in factors_of(op)):
        columns = min(columns, _APART * lanes)  # elements are loaded one by one
    if extent is None:
        # A tile of the rest has as many vectors as it needs; without that, few results fall to a
        # masked tile. A window has so few terms that the processor begins the next tile meanwhile.
        is_masked = target.has_mask_registers or op.output(0).dtype.itemsize >= _MASKED
        has_rests = is_masked and (product_of_extents(op.reduce_axis) or _LONG) >= _LONG
        vectors = 2 if _is_window(op, columns) else _VECTORS if has_rests else _VECTORS // 2
        columns = min(columns, lanes_of(op, target) * vectors)
    if _line_of(op) > 1 and are_pieces(op):
        size, most = extent_of(op.axis[-1]) or 1, _VECTORS_OF_PIECES * target.lanes(UINT8)
        columns = size << max(0, (min(columns, most) // size).bit_length() - 1)
    return columns if extent is None else max(1, min(columns, extent))


def _vectors_under_way(op: ComputeOp, target: Target) -> int:
    """The number of vectors that are computed together, for each of a reduction's results: a power
    of two."""
    most = min(target.multiply_adds_under_way, target.vector_registers * 3 // 4)
    return 1 << (max(1, most // len(op.body)).bit_length() - 1)


def write_in_registers(
    s: Schedule, stage: Stage, last: Stage, inside: int, target: Target, *, in_order: bool
) -> list[IterVar]:
    """Computes a few vectors of results in registers, from which `last` stores them: the stage
    itself, or an elementwise reader. A long sum that needn't be `in_order` is a sum of partial
    sums. Returns the loops of `last` from the axis `inside` on."""
    op = compute_of(stage)
    columns = results_at_once(op, target)
    choose(stage, "tile", "{columns} neighbouring results at a time, in registers", columns=columns)
    # Axes that are shorter than a vector together form one axis of the registers.
    is_wide = (extent_of(op.axis[-1]) or 1) >= columns
    line = 1 if is_wide else min(_line_of(op), len(op.axis) - inside)
    if line > 1:
        _split_line(stage, line, columns)
    is_kept = last is not stage and line == 1
    results = stage.set_scope("local") if is_kept else cached(s, stage, "local")
    if last is not stage and not is_kept:
        stage.compute_inline()
    outer, block, column = _split_line(last, line, columns)
    last.vectorize(column)
    made = compute_of(results)
    write_sums(results, (last, block), made.axis[-1:], made.reduce_axis)
    if _is_window(op, columns):
        # If a window is unrolled, LLVM sees how large integers get, and computes them in narrow
        # lanes.
        for k in innermost(made.reduce_axis, _MOST_UNROLLED) or made.reduce_axis[-1:]:
            results.unroll(k)
        return [*outer[inside:], block]
    if not in_order and (part := part_of_long_sum(op)):
        results = _write_sums_of_parts(s, results, part)
    request_gathered(results, compute_of(results).reduce_axis[-1], columns, target)
    return [*outer[inside:], block]


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


def _is_window(op: ComputeOp, columns: int) -> bool:
    """Whether several of the columns read the same element, at different steps along the last
    reduction axis."""
    column, k = op.axis[-1], op.reduce_axis[-1]
    extent = extent_of(k)
    if extent is None or extent > _MOST_UNROLLED:
        return False
    return any(0 < each.along(k) < each.along(column) * columns for each in factors_of(op))


# -- Results in the L1 cache --


def streamed(op: ComputeOp, target: Target) -> list[Tensor]:
    """The tensors whose rows a reduction reads whole: registers would hold the results of a short
    piece of each row, and the rows come from beyond the L2 cache."""
    if is_uneven(op):
        return []
    columns, extent = results_at_once(op, target), extent_of(op.axis[-1])
    if extent is not None and extent <= columns:
        return []
    return [
        each.tensor
        for each in factors_of(op)
        if each.along(op.axis[-1]) == 1
        and _reads_rows(op, each, extent or columns)
        and is_far(each.tensor, target)
        and not slides(op, each)
    ]


def _reads_rows(op: ComputeOp, factor: Factor, columns: int) -> bool:
    """Whether a step reads another row of a tensor than the step before."""
    apart = factor.along(op.reduce_axis[-1])
    # Rows of symbolic size lie as far apart as rows that data choose.
    is_plain = {*factor.load.indices} <= {axis.var for axis in (*op.axis, *op.reduce_axis)}
    return apart >= columns and (apart < FAR or is_plain)


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


def rows_summed(
    op: ComputeOp, row: IterVar, read: Container[Tensor], target: Target, *, strict: bool
) -> bool:
    """Whether a reduction adds up the rows of matrices, in parts, and those of `read` among them
    are too large for the L2 cache. A loop over rows, as long as the axis `row`, may add them up."""
    if len(op.axis) != 1 or len(op.reduce_axis) != 1 or is_in_order(op, strict):
        return False
    (column,), (k,) = op.axis, op.reduce_axis
    steps, results = extent_of(k), extent_of(column)
    if steps is None or results is None or steps != extent_of(row) or is_uneven(op):
        return False
    is_even = results % lanes_of(op, target) == 0 and steps % parts_of_rows(op, target) == 0
    if not is_even or parts_of_rows(op, target) == 1 or not runs_in_columns(op, target):
        return False
    shared = {
        each.tensor
        for each in factors_of(op)
        if [*map(id, each.load.indices)] == [id(k.var), id(column.var)] and each.tensor in read
    }
    size = sum(map(usual_bytes_of, shared))
    few = results * bytes_of_results(op) <= target.cache_bytes(1) // 4
    return few and size > target.cache_bytes(2) // 2


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


def longest_axis(op: ComputeOp) -> IterVar:
    """The reduction axis of the most steps, the outermost of several."""
    return max(op.reduce_axis, key=lambda k: extent_of(k) or 0)


def parts_of_rows(op: ComputeOp, target: Target) -> int:
    """The number of parts of a reduction's steps whose results fit half of the L2 cache. It doesn't
    depend on the number of cores, and so the bits of the result don't either. A few parts less are
    better than a remainder."""
    results, steps = product_of_extents(op.axis), extent_of(longest_axis(op))
    if results is None or steps is None:
        return 1
    size = max(1, results * bytes_of_results(op))
    most = max(1, min(_MOST_PARTS, steps // _LEAST_STEPS, target.cache_bytes(2) // 2 // size))
    counts = range(most, most // 2, -1)
    return min(counts, key=lambda parts: (steps % parts > 0, steps // parts % STEPS > 0))


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
        if not _is_vectorized(op) or (is_slow and not _has_partner(s, op)):
            partial = _write_lanes(s, stage, reduced[-1], target)
        else:
            if parts is not None and is_rounded(op) and len(reduced) > 1:
                partial = [factored(s, stage, reduced[0], 0).set_scope("local")]
                _reduced(partial[0], in_order)
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
    size = min((n for n in sizes if n > _MOST_UNROLLED), default=0)
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
    if 1 < period <= _MOST_UNROLLED and is_multiple(compute_of(stage), k, period):
        _, digit = stage.split(k, factor=period)
        stage.unroll(digit)


def _write_out(op: ComputeOp, stage: Stage, target: Target) -> Sequence[IterVar]:
    """Unrolls the steps of a reduction, and a few neighbouring results, where LLVM's vectors of
    steps leave a remainder, and can't be masked: LLVM then makes vectors across results. Returns
    the other data axes. Steps whose elements data choose are unrolled alone: these are read one by
    one, sooner than a vector of them is gathered."""
    steps, lanes = product_of_extents(op.reduce_axis), _BYTES_OF_STEPS // op.body[0].dtype.itemsize
    is_short = bool(steps) and (steps or 0) <= _MOST_UNROLLED and not is_uneven(op)
    if is_short and any(is_lookup(each.load) for each in factors_of(op)):
        for loop in stage.leaf_iter_vars:
            if loop not in op.axis:
                stage.unroll(loop)
        return op.axis
    most = _STEPS_OF_VECTOR if target.has_mask_registers else _MOST_UNROLLED
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


def _is_vectorized(op: ComputeOp) -> bool:
    """Whether LLVM makes vectors of partial results from a plain loop."""
    return _folds(op) and isinstance(reduce_of(op).condition, e.IntImm)


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
    width = lanes * _vectors_under_way(op, target)
    extent = USUAL_STEPS if (n := extent_in(stage, k)) is None else max(0, n)
    if extent < 2 * lanes:
        return []
    # A vector costs a step at the end.
    most = min(extent, (product_of_extents(op.reduce_axis) or extent) // _STEPS_OF_VECTOR)
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


# -- Running reductions --


def results_in_cache(op: ComputeOp, target: Target, rows: int = 1) -> int:
    """The number of neighbouring results of some rows, in whole vectors, that fit half of the L1
    cache."""
    lanes = lanes_of(op, target)
    return max(lanes, target.cache_bytes(1) // 2 // (rows * bytes_of_results(op)) // lanes * lanes)


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
