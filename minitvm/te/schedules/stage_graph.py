"""The stages of a schedule as a graph: their operations and their readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from minitvm.te.schedules.rewrite_operations import reading
from minitvm.te.schedules.trace import Trace
from minitvm.te.tensor import Operation, Tensor


class Computing(Protocol):
    """A node of the graph, with the operation that it computes."""

    op: Operation


S = TypeVar("S", bound=Computing)


class StageGraph(Generic[S]):
    """The stages that `outputs` need, each behind those that it reads.

    Attributes
    ----------
    outputs : tuple of Operation
        The results of the program.
    stages : list
        The stages, each behind those that it reads.
    stage_map : dict
        The stage of an operation, and of the operation that it computed before a rewrite.
    calls : Trace
        The primitives that were applied.
    """

    __slots__ = ("calls", "outputs", "stage_map", "stages")
    outputs: tuple[Operation, ...]
    stages: list[S]
    stage_map: dict[Operation, S]
    calls: Trace

    def now(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for `tensor` after ``cache_write`` and the like."""
        stage = self.stage_map.get(tensor.op)
        return tensor if stage is None else stage.op.output(tensor.value_index)

    def readers(self, stage: S) -> list[S]:
        """The stages that read a stage's tensors."""
        # The range of an axis reads a tensor as it was at first.
        return [
            each
            for each in self.stages
            if any(self.stage_map.get(tensor.op) is stage for tensor in each.op.input_tensors)
        ]

    def consumes(self, reader: S, stage: S) -> bool:
        """Whether `reader` reads `stage`, directly or through others."""
        found = {stage}
        for each in self.stages:  # a stage stands before its readers
            if any(self.stage_map.get(tensor.op) in found for tensor in each.op.input_tensors):
                found.add(each)
        return reader is not stage and reader in found

    def rewrite(self, change: Callable[[S], Operation]) -> None:
        """Let each stage compute the operation that `change` returns, and its readers read that
        operation."""
        later: dict[Tensor, Tensor] = {}
        for stage in self.stages:
            old = stage.op
            new = reading(change(stage), later)
            if new is not old:
                self.now_computes(stage, new)
                later.update(zip(old.outputs, new.outputs, strict=True))

    def now_computes(self, stage: S, op: Operation) -> None:
        """Let a stage compute `op`."""
        self.outputs = tuple(op if each is stage.op else each for each in self.outputs)
        self.stage_map[op] = stage
        stage.op = op
