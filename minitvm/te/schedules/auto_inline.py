"""Inlines the stages that cost little to compute where they are read, under classic names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import ProducerLoad, Var
from minitvm.tir.functor import walk_once


def AutoInlineElemWise(sch: Schedule) -> None:
    """Inlines the stages whose elements read the same element of other tensors.

    A stage is inlined only if no primitive was applied to it, it is no output and no reduction, and
    it is read element by element.
    """
    _inline(sch, "AutoInlineElemWise", lambda op: _reads_in_order(op, exactly=True))


def AutoInlineBroadcast(sch: Schedule) -> None:
    """Inlines, like :func:`AutoInlineElemWise`, also the stages that leave out axes: ``a[j]`` at
    ``[i, j]``."""
    _inline(sch, "AutoInlineBroadcast", lambda op: _reads_in_order(op, exactly=False))


def AutoInlineInjective(sch: Schedule) -> None:
    """Inlines, like :func:`AutoInlineElemWise`, all stages without a reduction.

    >>> from minitvm import te
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[3 - i] + 1.0, name="B")
    >>> C = te.compute((4,), lambda i: B[i] * 2.0, name="C")
    >>> s = te.create_schedule(C.op)
    >>> AutoInlineInjective(s)
    >>> s[B].inlined
    True
    """
    _inline(sch, "AutoInlineInjective", lambda op: True)


def _inline(sch: Any, name: str, wanted: Callable[[ComputeOp], bool]) -> None:
    if not isinstance(sch, Schedule):
        raise CompileError(f"{name}: expected a schedule, got {sch!r}")
    for stage in sch.stages:
        op = stage.op
        if isinstance(op, ComputeOp) and not op.reduce_axis and _is_free(stage) and wanted(op):
            stage.compute_inline()


def _is_free(stage: Stage) -> bool:
    """Whether a stage may be inlined, and no primitive was applied to it."""
    readers = stage.schedule.readers(stage)
    decided = stage.is_touched or stage.is_named or stage.is_output
    return not decided and bool(readers) and all(isinstance(each.op, ComputeOp) for each in readers)


def _reads_in_order(op: ComputeOp, *, exactly: bool) -> bool:
    """Whether each read is at the axes in their order: all of them, or some."""
    place = {axis.var: position for position, axis in enumerate(op.axis)}
    for load in walk_once(*op.body):
        if not isinstance(load, ProducerLoad):
            continue
        places = [place.get(i, -1) if isinstance(i, Var) else -1 for i in load.indices]
        if -1 in places or places != sorted(set(places)):
            return False
        if exactly and len(places) != len(place):
            return False
    return True
