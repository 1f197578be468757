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

from collections.abc import Container, Mapping, Sequence
from typing import final

from minitvm.auto_scheduler.contraction import all_loads, extent_of, has_choices
from minitvm.auto_scheduler.cost import usual_bytes_of, usual_size
from minitvm.auto_scheduler.loops import compute_of
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar

_MOST_IDLE = 1.25  # the time of threads that wait for the last rows, of the time of none that do


@final
@record()
class InnerRows:
    """The rows of a stage along one of its axes, and the stages that are computed for each row, in
    an order in which each comes before its readers."""

    axis: IterVar
    inside: Sequence[Stage]


def inner_rows(
    s: Schedule, root: Stage, free: Sequence[Stage], given: Container[Stage], target: Target
) -> InnerRows | None:
    """The rows of a stage that take turns, each with stages of `free`, which stand in front of it;
    None where no rows should. The caller gets the results of outputs and of stages of `given`."""
    op = compute_of(root)
    if op.reduce_axis or len(op.outputs) > 1 or not any(map(_is_of_rows, free)):
        return None
    reads = _Reads(s, given)
    for axis in op.axis[1:-1]:
        inside = reads.inside(root, axis, free)
        if _pays(reads, root, axis, inside, target):
            return InnerRows(axis, inside)
    return None


def _is_of_rows(stage: Stage) -> bool:
    """Whether a stage is a reduction with one result for each row."""
    op = compute_of(stage)
    return len(op.axis) == 1 and bool(op.reduce_axis)


@final
class _Reads:
    """What the stages of a schedule read, directly or through inlined stages."""

    def __init__(self, s: Schedule, given: Container[Stage]) -> None:
        self._given = given
        self._all = [x for x in s.stages if isinstance(x.op, ComputeOp) and not x.inlined]
        self.plain = {each: with_inlined(compute_of(each), s.inlined) for each in self._all}

    def inside(self, root: Stage, axis: IterVar, free: Sequence[Stage]) -> Sequence[Stage]:
        """The stages of `free`, given in order, that are read in one row of a stage alone."""
        rows = {root: axis}
        for stage in reversed(free):
            op = compute_of(stage)
            if len(op.axis) == 1 and self._is_in_row(stage, rows):
                rows[stage] = op.axis[0]
        return [*rows][:0:-1]

    def _is_in_row(self, stage: Stage, rows: Mapping[Stage, IterVar]) -> bool:
        (axis,), outputs = compute_of(stage).axis, stage.op.outputs
        readers = [x for x in self._all if not set(outputs).isdisjoint(self.plain[x].input_tensors)]
        is_result = stage.is_output or stage in self._given
        return bool(readers) and all(
            each in rows
            and extent_of(axis) is not None
            and extent_of(axis) == extent_of(rows[each])
            and all(
                load.indices == (rows[each].var,)
                for load in all_loads(self.plain[each])
                if load.producer in outputs
            )
            and not (is_result and has_choices(self.plain[each]))
            for each in readers
        )


def _pays(
    reads: _Reads, root: Stage, axis: IterVar, inside: Sequence[Stage], target: Target
) -> bool:
    """Whether reductions inside read tensors that the root reads, too, which are larger than the L2
    cache, and a row of them isn't."""
    rows = usual_size([axis])
    rounds = -(-rows // target.num_cores)
    if rounds * target.num_cores > _MOST_IDLE * rows:
        return False
    reduced = {x for each in inside for x in reads.plain[each].input_tensors if _is_of_rows(each)}
    size = sum(map(usual_bytes_of, reduced.intersection(reads.plain[root].input_tensors)))
    return size > target.cache_bytes(2) >= 2 * size // rows
