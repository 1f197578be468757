"""Stages that a schedule by hand leaves as plain loops, although another order is much faster."""

from __future__ import annotations

from minitvm.auto_scheduler.contraction import (
    all_loads,
    contraction_of,
    distances_of,
    usual_iterations,
)
from minitvm.auto_scheduler.ways import is_plain_reduction
from minitvm.auto_scheduler.write import stages_to_write
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp

_LEAST_STEPS = 1 << 20  # of plain loops: about a millisecond
_LEAST_THREADS = 4  # that alone make a stage much faster
_LEAST_STEPS_FOR_THREADS = 1 << 24


def left_plain(s: Schedule, target: Target) -> list[Stage]:
    """The stages without primitives, of a schedule by hand, that run for a millisecond or more and
    would be much faster if they were scheduled.

    >>> from minitvm import te
    >>> A, B = te.placeholder((256, 256), name="A"), te.placeholder((256, 256), name="B")
    >>> k = te.reduce_axis((0, 256), name="k")
    >>> C = te.compute(A.shape, lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> D = te.compute(A.shape, lambda i, j: C[i, j] + 1.0, name="D")
    >>> s = te.create_schedule(D.op)
    >>> s[D].parallel(D.op.axis[0])
    >>> left_plain(s, Target("llvm"))
    [stage(C)]
    """
    if not s.is_touched or s.chosen:
        return []
    return [stage for stage in stages_to_write(s) if _is_slow(stage, target)]


def _is_slow(stage: Stage, target: Target) -> bool:
    op = stage.op
    assert isinstance(op, ComputeOp)
    axes = [*op.axis, *op.reduce_axis, *([] if stage.time is None else [stage.time])]
    steps = usual_iterations(axes)
    if steps < _LEAST_STEPS:
        return False
    shares = target.num_cores >= _LEAST_THREADS and steps >= _LEAST_STEPS_FOR_THREADS
    return shares or _waits_for_memory(op)


def _waits_for_memory(op: ComputeOp) -> bool:
    """Whether a plain reduction waits for memory: it reads elements again and again, or far
    apart."""
    if not op.reduce_axis:
        return False
    contraction = contraction_of(op)
    if contraction is not None and not is_plain_reduction(contraction):
        return True
    distances = (distances_of(load, op) for load in all_loads(op))
    return any(each is None or each.get(op.reduce_axis[-1].var, 0) > 1 for each in distances)
