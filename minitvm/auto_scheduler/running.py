"""Running reductions, such as prefix sums; and scans.

Each result of a running reduction reduces one term more than its neighbour. If the results lie
along the last axis, the results in the lanes of a vector are computed from those in the lanes
before, and a row is read once, in order. If they lie along another axis y, vectors lie along the
last axis x, and the totals of a block of x stay in the L1 cache::

    for all other axes, and blocks of x, on all threads
        for y
            for x of the block, in vectors
                total[x] += A[y, x]
                C[y, x] = total[x]

A scan that combines its state with one term in each step is a running reduction, and is computed in
the memory of its results. In any other scan, the stages of a step are scheduled like those of a
program that computes one step. ::

    for t:
        for tiles of rows and columns, on all threads
            P = the tile of H[t - 1] by W
            H[t] = tanh(P + X[t])
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial
from math import prod

from minitvm.auto_scheduler.attempts import Attempt, Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    bytes_of_results,
    distances_of,
    extent_of,
    product_of_extents,
)
from minitvm.auto_scheduler.loops import compute_of, fused, lie_in_order, write_loops
from minitvm.auto_scheduler.packing import write_whole_copy
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.target import Target
from minitvm.te.schedules.accumulation import accumulation_of
from minitvm.te.schedules.guarded_reads import reads_of
from minitvm.te.schedules.scans import (
    find_scans,
    moved_reduction,
    reduction_of_scan,
    stages_of_step,
)
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, ScanOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, ProducerLoad, Reduce, Var
from minitvm.tir.functor import mentions

# -- Running reductions --


def running_axis(op: ComputeOp, *, in_order: bool = False) -> IterVar | None:
    """The data axis along which a reduction gains one term from each element to the next; None if
    there is none. `in_order`: the new term must come behind all others."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or isinstance(reduce.condition, e.IntImm):
        return None
    found = (accumulation_of(op, axis) for axis in op.axis)
    return next((each.axis for each in found if each and (each.in_order or not in_order)), None)


def lanes_of(op: ComputeOp, target: Target) -> int:
    """The number of lanes of a vector of the widest of a stage's results."""
    return min(target.lanes(body.dtype) for body in op.body)


def results_in_cache(op: ComputeOp, target: Target, rows: int = 1) -> int:
    """The number of neighbouring results of some rows, in whole vectors, that fit half of the L1
    cache."""
    lanes = lanes_of(op, target)
    return max(lanes, target.cache_bytes(1) // 2 // (rows * bytes_of_results(op)) // lanes * lanes)


def write_running(
    s: Schedule,
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
        _write_lanes(stage, axis)
    if alone and tasks:
        stage.parallel(fused(stage, tasks))


def _write_lanes(stage: Stage, axis: IterVar) -> None:
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


# -- Scans --


def write_running_scans(attempt: Attempt, kept: Container[Stage]) -> None:
    """Turns scans that are running reductions into such. Stages of `kept` stay as they are."""
    s = attempt.schedule
    for scan in _scans(s):
        attempt.follow("running reduction", scan, partial(_write_reduction, s, scan, kept))


def _scans(s: Schedule) -> list[Stage]:
    return [stage for stage in s.stages if isinstance(stage.op, ScanOp)]


def _write_reduction(s: Schedule, scan: Stage, kept: Container[Stage]) -> bool | None:
    op = scan.op
    assert isinstance(op, ScanOp)
    if scan.is_touched or any(s[part] in kept for part in (*op.update, *op.init)):
        return None
    if reduction_of_scan(s, scan) is None:
        return None
    choose(scan, "strategy", "a running reduction of the terms of all steps")
    s.reduce_scan(op.output(0))
    for reader in s.readers(scan) if scan not in kept else ():
        moved = None if reader.is_touched else moved_reduction(s, reader)
        if moved is not None and running_axis(moved) is not None:
            s.reverse_compute_inline(reader.op.output(0))
    return True


def write_steps(attempt: Attempt, program: Program, stages: Iterable[Stage]) -> list[Stage]:
    """Lets the stages inside of scans be computed for one step. Returns those of `stages` that can
    be scheduled then."""
    s = attempt.schedule
    for scan in _scans(s):
        attempt.follow("steps", scan, partial(_write_step, program, scan))
    inside = find_scans(s).inside
    read = {s[tensor] for stage in inside for tensor in stage.op.input_tensors}
    program.whole.update(read - inside.keys())
    return [stage for stage in stages if stage not in inside or stage.time is not None]


def _write_step(program: Program, scan: Stage) -> bool | None:
    s = program.schedule
    stages = [stage for stage in stages_of_step(s, scan) if stage not in program.by_hand]
    if not stages:
        return None
    choose(scan, "strategy", "the stages of a step run in loops of their own")
    for stage in stages:
        for tensor in stage.op.input_tensors:
            _write_transposed(s, stage, tensor, program.target)
    s.drop_time(scan.op.output(0), [stage.op.output(0) for stage in stages])
    return True


def _write_transposed(s: Schedule, stage: Stage, tensor: Tensor, target: Target) -> None:
    """Transposes a tensor whose neighbours along time lie side by side in memory while neighbours
    along the last axis lie apart. Without this, each step would read one element of each cache
    line."""
    op = compute_of(stage)
    if op.reduce_axis or len(op.axis) < 2 or extent_of(op.axis[-1]) == 1:
        return
    time, last = op.axis[0], op.axis[-1]
    for i, load in enumerate(reads := reads_of(op, tensor)):
        distance = distances_of(load, op)
        if 0 < distance.get(time.var, 0) < distance.get(last.var, 0):
            is_plain = len(reads) == 1 and all(isinstance(each, Var) for each in load.indices)
            order = None if is_plain else _order_along(reads, time, last)
            if order == sorted(order or ()):  # the distance isn't known, but lines are read
                continue
            if order is not None:  # not all steps of the axis run: all elements may not exist
                copy = s[s.cache_read(tensor, "global", [stage.op])]
                lie_in_order(copy, order)
            else:
                copy = s[s.cache_access(tensor, "global", stage.op, i if len(reads) > 1 else None)]
            choose(copy, "packing", "transposed, so that each step reads lines of it")
            write_whole_copy(s, copy, target)
            _write_transposed(s, stage, tensor, target)
            return


def _order_along(reads: Sequence[ProducerLoad], time: IterVar, last: IterVar) -> list[int] | None:
    """The dimensions of a tensor, that along time first and that along the last axis last; None if
    not all reads go along one dimension for each of both."""
    dimensions = [
        [[i for i, index in enumerate(load.indices) if mentions(axis.var, index)] for load in reads]
        for axis in (time, last)
    ]
    (first, *_), (end, *_) = dimensions
    if any(
        each != own for own, along in zip((first, end), dimensions, strict=True) for each in along
    ):
        return None
    if len(first) != 1 or len(end) != 1 or first == end:
        return None
    return sorted(range(len(reads[0].indices)), key=lambda i: (i in end) - (i in first))
