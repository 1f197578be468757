"""Rows along an axis that isn't the first, as the channels of a batch of images.

A norm over all images reads, with each element of a channel, reductions of the same channel. Where
all rows together exceed the L2 cache, the rows take turns, so that each comes from memory once::

    for each c, on all threads:
        for n: for y, z: total += X[n, c, y, z]
        mean = total / N
        for n: for y, z in vectors: Y[n, c, y, z] = X[n, c, y, z] - mean

The stages inside have one result for each row, and are read in this row alone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache
from typing import final

from minitvm.arith.effects import is_lazy
from minitvm.auto_scheduler.contraction import all_loads, extent_of
from minitvm.auto_scheduler.cost import usual_bytes_of, usual_size
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar, Select
from minitvm.tir.functor import walk_once


@final
@record()
class InnerRows:
    """The rows of a stage along one of its axes, and the stages that are computed for each row, in
    an order in which each comes before its readers."""

    axis: IterVar
    inside: Sequence[Stage]


def inner_rows(
    s: Schedule, root: Stage, before: Sequence[Stage], whole: Container[Stage], target: Target
) -> InnerRows | None:
    """The rows of a stage that take turns, each with stages of `before` that aren't `whole`; None
    where no rows should."""
    op = root.op
    if not isinstance(op, ComputeOp) or op.reduce_axis or len(op.outputs) > 1:
        return None
    reads = _Reads(s)
    for axis in op.axis[1:-1]:
        free = [each for each in before if each not in whole]
        inside = reads.inside(root, axis, free)
        if _pays(reads, root, axis, inside, target):
            return InnerRows(axis, inside)
    return None


@final
class _Reads:
    """What the stages of a schedule read, directly or through inlined stages."""

    def __init__(self, s: Schedule) -> None:
        self._schedule = s
        self.plain = cache(lambda stage: with_inlined(stage.op, s.inlined))
        self._all = [x for x in s.stages if isinstance(x.op, ComputeOp) and not x.inlined]

    def inside(self, root: Stage, axis: IterVar, free: Sequence[Stage]) -> Sequence[Stage]:
        """The stages of `free`, given in order, that are read in one row of a stage alone."""
        rows = {root: axis}
        for stage in reversed(free):
            op = stage.op
            if isinstance(op, ComputeOp) and len(op.axis) == 1 and self._is_in_row(stage, rows):
                rows[stage] = op.axis[0]
        return [*rows][:0:-1]

    def _is_in_row(self, stage: Stage, rows: dict[Stage, IterVar]) -> bool:
        op = stage.op
        assert isinstance(op, ComputeOp)
        readers = [x for x in self._all if not {*op.outputs}.isdisjoint(self._tensors(x))]
        if not readers or any(each not in rows for each in readers):
            return False
        (axis,) = op.axis
        return all(
            extent_of(axis) == extent_of(rows[each]) is not None and self._reads_row(each, stage, rows)
            for each in readers
        )

    def _reads_row(self, reader: Stage, stage: Stage, rows: dict[Stage, IterVar]) -> bool:
        plain = self.plain(reader)
        loads = [each for each in all_loads(plain) if each.producer in stage.op.outputs]
        is_lazy_anywhere = any(isinstance(x, Select) or is_lazy(x) for x in walk_once(*plain.body))
        return not is_lazy_anywhere and all(each.indices == (rows[reader].var,) for each in loads)

    def _tensors(self, stage: Stage) -> set[object]:
        return {each.producer for each in all_loads(self.plain(stage))}


def _pays(
    reads: _Reads, root: Stage, axis: IterVar, inside: Sequence[Stage], target: Target
) -> bool:
    """Whether reductions inside read tensors that the root reads, too: larger than the L2 cache,
    which a row isn't."""
    number = usual_size([axis])
    if number < 4 * target.num_cores:
        return False  # so that threads have about as much to do
    mine = {*reads.plain(root).input_tensors}
    reduced = [each for each in inside if reads.plain(each).reduce_axis]
    shared = mine.intersection(*(reads.plain(each).input_tensors for each in reduced[:1]))
    for each in reduced:
        shared |= mine.intersection(reads.plain(each).input_tensors)
    size = sum(map(usual_bytes_of, shared))
    cache_bytes = target.cache_bytes(2)
    return bool(reduced) and size > cache_bytes >= 2 * size // number
