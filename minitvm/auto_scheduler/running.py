"""Running reductions, such as prefix sums.

Each result of a running reduction reduces one term more than its neighbour. If the results lie
along the last axis, the results in the lanes of a vector are computed from those in the lanes
before, and a row is read once, in order. If they lie along another axis y, vectors lie along the
last axis x, and the totals of a block of x stay in the L1 cache::

    for all other axes, and blocks of x, on all threads
        for y
            for x of the block, in vectors
                total[x] += A[y, x]
                C[y, x] = total[x]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    bytes_of_results,
    extent_of,
    product_of_extents,
)
from minitvm.auto_scheduler.loops import compute_of, fused, write_loops
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.target import Target
from minitvm.te.schedules.accumulation import accumulation_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Reduce


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
