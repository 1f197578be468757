"""Outputs that are too large for the caches, and so are stored past them.

A store through the caches reads the line first, and another line must go. A large output is not in
the caches when someone reads it, so this costs a third or a half of the memory's speed for nothing.
"""

from __future__ import annotations

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import all_loads, bytes_of, distances_of, extent_of
from minitvm.auto_scheduler.loops import compute_of
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.expr import ProducerLoad
from minitvm.tir.functor import walk_once


def store_past_caches(s: Schedule, stage: Stage, target: Target, *, in_blocks: bool) -> None:
    """Lets an elementwise output that no stage reads bypass the caches, from the size on at which
    it and as large an input fill the last of them. Of `in_blocks` of lines, only known sizes: rows
    of others rarely begin with lines, and a second form of the blocks takes long to compile."""
    op = compute_of(stage)
    if op.reduce_axis or len(op.outputs) != 1 or not stage.is_output or s.readers(stage):
        return
    least = target.cache_bytes(3) // 2
    size = bytes_of(op.output(0))
    is_small = in_blocks if size is None else size < least
    if not op.axis or is_small or _reads_far_apart(op):
        return
    if size is not None:
        choose(s, "stores", "past the caches: {size} bytes don't stay in them", stage=stage.name,
               size=size)  # fmt: skip
    stage.pragma(stage.leaf_iter_vars[0], "nontemporal", least)


def _reads_far_apart(op: ComputeOp) -> bool:
    """Whether rows are read of which the next one isn't the next in memory. Such reads wait for
    memory, and stores past the caches would wait behind them."""
    axes = {axis.var: axis for axis in op.axis}
    for load in all_loads(op):
        if any(isinstance(each, ProducerLoad) for each in walk_once(*load.indices)):
            return True
        assert isinstance(load.producer, Tensor)
        near = LINES_AT_ONCE * CACHE_LINE // load.producer.dtype.itemsize
        distances = distances_of(load, axes)
        for outer, inner in zip(op.axis, op.axis[1:], strict=False):
            row, extent = distances.get(outer.var, 0), extent_of(inner)
            if extent is not None and row - extent * distances.get(inner.var, row) > near:
                return True
    return False
