"""Classic ``tvm.te.schedule``: schedules, and the steps of their lowering one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitvm.lowering.lower import function_shell
from minitvm.lowering.schedule_ops import inferred_ranges, schedule_ops
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.auto_inline import AutoInlineBroadcast as AutoInlineBroadcast
from minitvm.te.schedules.auto_inline import AutoInlineElemWise as AutoInlineElemWise
from minitvm.te.schedules.auto_inline import AutoInlineInjective as AutoInlineInjective
from minitvm.te.schedules.schedule import Schedule as Schedule
from minitvm.te.schedules.schedule import create_schedule as create_schedule
from minitvm.te.schedules.stage import Stage as Stage
from minitvm.te.tensor import PlaceholderOp, Tensor
from minitvm.tir.expr import IterVar as IterVar
from minitvm.tir.expr import Range
from minitvm.tir.stmt import Stmt


def InferBound(sch: Schedule) -> dict[IterVar, Range]:
    """The range of every axis of a schedule, by axis.

    All placeholders and outputs count as arguments.

    >>> from minitvm import te
    >>> A = te.placeholder((10,), name="A")
    >>> B = te.compute((10,), lambda i: A[i] + 1.0, name="B")
    >>> s = te.create_schedule(B.op)
    >>> outer, inner = s[B].split(B.op.axis[0], factor=4)
    >>> InferBound(s)[outer]
    range(min=0, ext=3)
    """
    schedule = _checked("InferBound", sch)
    shell, buffers = function_shell(schedule, _arguments(schedule), "main", {})
    return inferred_ranges(schedule, buffers, shell)


def ScheduleOps(
    sch: Schedule, bounds: Mapping[IterVar, Range] | None = None, debug_keep: bool = False
) -> Stmt:
    """The loops of a schedule, before any pass: a statement in which placeholders and outputs are
    buffers that nothing allocates.

    `bounds` and `debug_keep` are there for classic programs, and ignored: the bounds are inferred
    here again, and loops with one iteration are kept until ``tir.transform.Simplify``.
    """
    schedule = _checked("ScheduleOps", sch)
    shell, buffers = function_shell(schedule, _arguments(schedule), "main", {})
    return schedule_ops(schedule, buffers, shell).body


def _checked(name: str, sch: Any) -> Schedule:
    if not isinstance(sch, Schedule):
        raise CompileError(f"{name}: expected a schedule, got {sch!r}")
    return sch


def _arguments(schedule: Schedule) -> list[Tensor]:
    """All placeholders that a caller passes, and all outputs."""
    inputs = [stage.op for stage in schedule.stages if isinstance(stage.op, PlaceholderOp)]
    return [tensor for op in (*inputs, *schedule.outputs) for tensor in op.outputs]
