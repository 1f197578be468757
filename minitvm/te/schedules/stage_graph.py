"""The stages of a schedule as a graph: their operations and their readers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from threading import RLock
from typing import Generic, Protocol, TypeVar, final

from minitvm.te.schedules.rewrite_operations import reading
from minitvm.te.schedules.trace import Trace
from minitvm.te.tensor import ComputeOp, Operation, Tensor


class Computing(Protocol):
    """A node of the graph, with the operation that it computes.

    Attributes
    ----------
    op
        The operation, which reads the tensors that other stages compute now.
    last_op, is_late
        The operation when it was last asked for, and whether it may read tensors that other stages
        computed before. Only the graph writes these two.
    inlined
        Whether the operation is computed where it is read.
    """

    last_op: Operation
    is_late: bool
    inlined: bool

    @property
    def op(self) -> Operation: ...


S = TypeVar("S", bound=Computing)


@final
class _Lock:
    """A lock of a graph, which the thread that holds it may take again; a copy is another lock."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = RLock()

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()

    def __reduce__(self) -> tuple[type[_Lock], tuple[()]]:
        return _Lock, ()


class StageGraph(Generic[S]):
    """The stages that `outputs` need, each behind those that it reads.

    If an operation changes, all operations that read it, directly or through others, are made anew.
    They are made on demand: so changing a chain of stages one after the other makes only as many
    operations as there are stages.

    Attributes
    ----------
    stages : list
        The stages, each behind those that it reads.
    stage_map : dict
        The stage of each operation, also for operations that the stage computed before a change.
    calls : Trace
        The primitives that were applied.
    """

    __slots__ = ("_lock", "_outputs", "_readers", "_reads", "calls", "stage_map", "stages")
    stages: list[S]
    stage_map: dict[Operation, S]
    calls: Trace

    def __init__(self, outputs: tuple[Operation, ...]) -> None:
        self._outputs = outputs
        self._lock = _Lock()  # two threads may build from one schedule
        # For each tensor that a stage reads or has read, the stage that computes it; and whether
        # the reader will read the tensor that this stage computes next.
        self._reads: dict[S, dict[Tensor, tuple[S, bool]]] = {}
        self._readers: dict[S, dict[S, None]] = {}

    @property
    def outputs(self) -> tuple[Operation, ...]:
        """The results of the program."""
        return tuple(self.stage_map[op].op for op in self._outputs)

    def stage_of(self, op: Operation) -> S | None:
        """The stage that computes an operation, or computed it before a change."""
        return self.stage_map.get(op)

    def now(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for `tensor` after ``cache_write`` and the like."""
        stage = self.stage_map.get(tensor.op)
        return tensor if stage is None else stage.op.output(tensor.value_index)

    def inlined(self, tensor: Tensor) -> ComputeOp | None:
        """The operation that computes the elements of a tensor where they are read; None for a
        tensor that is computed elsewhere."""
        stage = self.stage_map.get(tensor.op)
        if stage is None or not stage.inlined or not isinstance(stage.op, ComputeOp):
            return None
        return stage.op

    def readers(self, stage: S) -> list[S]:
        """The stages that read a stage's tensors."""
        # The range of an axis may refer to the original tensor, before any rewrite.
        found = self._readers.get(stage, {})
        return [*found] if len(found) < 2 else sorted(found, key=self.stages.index)

    def readers_with_loops(self, stage: S) -> Iterator[S]:
        """The stages with loops of their own that read a stage, directly or through inlined ones;
        each once."""
        seen = {stage}
        pending = [stage]
        while pending:
            new = [each for each in self.readers(pending.pop()) if each not in seen]
            seen.update(new)
            yield from (each for each in new if not each.inlined)
            pending += (each for each in new if each.inlined)

    def inlined_in(self, stage: S) -> Iterator[S]:
        """The stages that are inlined in a stage, directly or through others; each once."""
        seen = {stage}
        pending = [stage]
        while pending:
            read = [self.stage_map[tensor.op] for tensor in pending.pop().op.input_tensors]
            new = {each: None for each in read if each.inlined and each not in seen}
            seen.update(new)
            yield from new
            pending += new

    def consumes(self, reader: S, stage: S) -> bool:
        """Whether `reader` reads `stage`, directly or through others."""
        found = {stage}
        pending = [stage]
        while pending and reader not in found:
            new = [each for each in self._readers.get(pending.pop(), ()) if each not in found]
            found.update(new)
            pending += new
        return reader is not stage and reader in found

    def consumed_by(
        self, stages: Iterable[S], together: Callable[[S], Iterable[S]] = lambda stage: ()
    ) -> set[S]:
        """The stages that some stages read, directly or through others. `together`: the stages that
        are computed together with a stage, so that whoever reads it waits for their inputs, too."""
        found, pending = set[S](), [*stages]
        while pending:
            for source, _ in self._reads[pending.pop()].values():
                new = [x for x in (source, *together(source)) if x not in found]
                found.update(new)
                pending += new
        return found

    def now_computes(self, stage: S, op: Operation) -> None:
        """Let a stage compute `op`, and its readers read that operation."""
        with self._lock:
            if op is stage.last_op and not stage.is_late:
                return
            reads = self._reads[stage].items()
            known = {tensor for tensor, (_, follows) in reads if follows}
            stage.last_op = op
            self.enter(stage, known)
            pending = [stage]
            while pending:
                for reader in self._readers.get(pending.pop(), ()):
                    if not reader.is_late:
                        reader.is_late = True
                        pending.append(reader)

    def enter(self, stage: S, known: Container[Tensor] = ()) -> None:
        """Notes the tensors that a stage computes and reads. If it reads tensors that other stages
        computed before a change, only those in `known` count as the tensors of today."""
        self.stage_map[stage.last_op] = stage
        for before, _ in self._reads.get(stage, {}).values():
            self._readers[before].pop(stage, None)
        self._reads[stage] = reads = {}
        stage.is_late = False
        for tensor in stage.last_op.input_tensors:
            source = self.stage_map.get(tensor.op)
            if source is None:
                continue
            is_current = source.last_op is tensor.op
            reads[tensor] = source, is_current or tensor in known
            self._readers.setdefault(source, {})[stage] = None
            stage.is_late |= source.is_late or (not is_current and tensor in known)
        self.calls.note(stage.last_op)

    def enter_all(self) -> None:
        """Notes anew the tensors that all stages compute and read."""
        for stage in self.stages:
            self.catch_up(stage)
        self._reads, self._readers = {}, {}
        for stage in self.stages:
            self.enter(stage)

    def catch_up(self, stage: S) -> None:
        """Let a stage, and the stages that it reads, read the tensors that other stages compute
        now."""
        with self._lock:
            pending = [stage] if stage.is_late else []
            while pending:
                each = pending[-1]
                reads = self._reads[each].items()
                late = [source for _, (source, _) in reads if source.is_late]
                if late:
                    pending += late
                    continue
                pending.pop()
                if each.is_late:  # not brought up to date meanwhile, as the input of another stage
                    others = {
                        tensor: source.last_op.output(tensor.value_index)
                        for tensor, (source, follows) in reads
                        if follows
                    }
                    each.last_op = reading(each.last_op, others)
                    self.enter(each)
