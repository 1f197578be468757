"""Running reductions, as prefix sums: each result reduces one term more than its neighbour.

Results along the last axis are computed in lanes, each from the lanes before it; so a row is read
once, in order. Along any other axis, the running results of neighbours along the last axis lie in
vectors in the L1 cache::

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
from minitvm.auto_scheduler.contraction import extent_of, product_of_extents
from minitvm.auto_scheduler.loops import compute_of, fused
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
    choose(s, "strategy", "each result along {axis} goes on from the one before", stage=op.name,
           axis=axis.var.name)  # fmt: skip
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
    lanes = min(target.lanes(body.dtype) for body in op.body)
    width = sum(body.dtype.itemsize for body in op.body)
    extent = product_of_extents(line)
    most = max(lanes, target.cache_bytes(1) // 2 // width // lanes * lanes)
    others = prod(extent_of(each) or target.num_cores for each in tasks)
    if alone and extent is not None and others < target.num_cores:
        share = -(-extent * max(1, others) // target.num_cores)
        least = target.cache_bytes(1) // target.l1_ways // width  # shorter pieces are slow to read
        most = min(most, max(-(-share // lanes) * lanes, least))
    if extent is not None:
        lanes = max(1, min(lanes, extent))
    block, column = stage.split(fused(stage, line), factor=most)
    column, lane = stage.split(column, factor=lanes)
    stage.reorder(*tasks, block, axis, column, lane)
    stage.vectorize(lane)
    return block
