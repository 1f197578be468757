"""Schedules: how the operations of a computation are to run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.te.tensor import Operation, PlaceholderOp, Tensor


@final
class Stage:
    """One operation of a schedule."""

    __slots__ = ("op",)

    def __init__(self, op: Operation) -> None:
        self.op = op

    def __repr__(self) -> str:
        return f"stage({self.op.name})"


@final
class Schedule:
    """The operations that `outputs` need, each behind those that it reads.

    Made by :func:`create_schedule`; ``s[C]`` is the stage of a tensor or an operation.
    """

    __slots__ = ("outputs", "stage_map", "stages")

    def __init__(self, outputs: tuple[Operation, ...]) -> None:
        self.outputs = outputs
        self.stages = [Stage(op) for op in _in_order(outputs)]
        self.stage_map = {stage.op: stage for stage in self.stages}

    def __getitem__(self, key: Tensor | Operation) -> Stage:
        """The stage of a tensor or an operation.

        Raises
        ------
        CompileError
            When the schedule has no such stage.
        """
        op = key.op if isinstance(key, Tensor) else key
        if not isinstance(op, Operation) or op not in self.stage_map:
            known = ", ".join(stage.op.name for stage in self.stages)
            raise CompileError(f"schedule: expected a tensor among {known}, got {key!r}")
        return self.stage_map[op]


def create_schedule(ops: Operation | Tensor | Sequence[Operation | Tensor]) -> Schedule:
    """A schedule of what `ops` compute, on which nothing is decided yet.

    Parameters
    ----------
    ops
        One or several output operations (``C.op``), or their tensors.

    Raises
    ------
    CompileError
        When there is none, or `ops` holds something else.

    >>> from minitvm import te
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
    >>> te.create_schedule(B.op).stages
    [stage(A), stage(B)]
    """
    listed: list[Any] = list(ops) if isinstance(ops, (list, tuple)) else [ops]
    found = [each.op if isinstance(each, Tensor) else each for each in listed]
    for op in found:
        if not isinstance(op, Operation):
            raise CompileError(f"create_schedule: expected operations, got {op!r}")
    if not found:
        raise CompileError("create_schedule: expected at least one operation, got none")
    return Schedule(tuple(dict.fromkeys(found)))


def _in_order(outputs: Iterable[Operation]) -> list[Operation]:
    """Every operation that `outputs` need, after its inputs. Keeps its own stack: chains of
    thousands of operations are no problem."""
    done: dict[Operation, None] = {}
    stack: list[tuple[Operation, bool]] = [(op, False) for op in reversed(list(outputs))]
    while stack:
        op, inputs_done = stack.pop()
        if op in done:
            continue
        if inputs_done:
            done[op] = None
            continue
        stack.append((op, True))
        stack.extend((tensor.op, False) for tensor in reversed(op.input_tensors))
    return list(done)


def is_input(op: Operation) -> bool:
    """Whether the operation's tensor is given rather than computed."""
    return isinstance(op, PlaceholderOp)
