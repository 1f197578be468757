"""Nontemporal stores: outputs that are too large for the caches are stored past them.

A store through the caches reads its line first, and evicts another line. A large output is not in
the caches any more when it is read, so this wastes a third or a half of the memory's bandwidth.
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
    """Lets an elementwise output that no stage reads bypass the caches, from half the size of the
    last cache on, which it fills together with an input of its size. `in_blocks`: the stage is
    computed in blocks of lines. Then only known sizes qualify: rows of a symbolic size rarely begin
    with a cache line, and a second form of the blocks takes long to compile."""
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
    """Whether successive rows that are read don't follow each other in memory. Such reads wait for
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
