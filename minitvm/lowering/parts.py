"""Makes the loops of a batch that is computed in parts: those of a part, and of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from minitvm.lowering.schedule_ops import schedule_ops
from minitvm.runtime.dtype import HANDLE
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.batches import PartOfBatch, part_of_batch
from minitvm.te.schedules.replay import replay
from minitvm.te.schedules.schedule import Parts, Schedule
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferRef, PrimExpr, Var
from minitvm.tir.functor import Mutator, rebuild, walk_once
from minitvm.tir.stmt import AttrStmt, For, ForKind, LetStmt, PrimFunc, Stmt, seq


def loops_in_parts(
    schedule: Schedule, parts: Parts, memory: Mapping[Tensor, Buffer], func: PrimFunc
) -> PrimFunc:
    """`func` with the loops of a batch in parts as its body; `memory` gives the buffers of its
    tensors.

    After, for parts of 16 elements of a batch of n::

        for part in parallel(n // 16):
            ...  # the loops of a part, whose element b is b + part * 16 of the batch
        ...  # the loops of n % 16 elements

    Raises
    ------
    CompileError
        When the loops of a part access arguments in another way than by their elements.
    """
    batch, outputs = parts.batch, schedule.calls.outputs
    dtype = batch.extent.dtype
    factor = e.const(parts.factor, dtype)
    number = Var("part", dtype, axis=True)
    count = e.floordiv(batch.extent, factor)
    made, part = _OnePart(parts, memory, func), parts.program(outputs)
    body = made.loops(replay(parts.trace, part.outputs), part, number * factor, is_task=True)
    whole = For(number, e.const(0, dtype), count, ForKind.PARALLEL, body)
    left = e.floormod(batch.extent, factor)
    if e.const_int(left) == 0:
        return replace(func, body=whole)
    size = left if isinstance(left, e.IntImm) else Var("left", dtype)
    rest = part_of_batch(outputs, batch, size)
    own = "\n".join(x for x in schedule.calls.lines if ".compute_in_parts(" not in x)
    body = made.loops(replay(own, rest.outputs), rest, count * factor, is_task=False)
    if isinstance(size, Var):
        body = LetStmt(size, left, body)
    return replace(func, body=seq(whole, body))


@final
@record()
class _OnePart:
    """What the loops of all parts have in common."""

    parts: Parts
    memory: Mapping[Tensor, Buffer]
    func: PrimFunc

    def loops(
        self, schedule: Schedule, part: PartOfBatch, begin: PrimExpr, *, is_task: bool
    ) -> Stmt:
        """The loops of a part that begins at an element of the batch."""
        own: dict[Buffer, Buffer] = {}
        places: dict[Buffer, tuple[Buffer, int]] = {}
        kept: dict[Tensor, Buffer] = {}
        for tensor, buffer in self.memory.items():
            now, place = part.now.get(tensor, tensor), self.parts.batch.places.get(tensor)
            own[buffer] = buffer
            if place is not None:
                data = Var(buffer.name, HANDLE)
                own[buffer] = Buffer(data, now.shape, buffer.dtype, buffer.name)
                places[own[buffer]] = buffer, place
            kept[schedule.now(now)] = own[buffer]
        func = schedule_ops(schedule, kept, _with_buffers(self.func, own))
        name = self.func.name
        if func.attrs.knows_layout:
            raise CompileError(
                f"{name}: compute_in_parts: expected no intrinsic that is given the layout of an "
                "argument, whose parts lie apart: leave out its tensorize"
            )
        moved = _AtPart(places, begin, is_task=is_task).stmt(func.body)
        for node in walk_once(moved):
            held = node.node if isinstance(node, AttrStmt) else None
            held = node.buffer if isinstance(node, BufferRef) else held
            if held in places:
                raise CompileError(
                    f"{name}: compute_in_parts: expected loops that access arguments by elements, "
                    f"got {node}"
                )
        return moved


def _with_buffers(func: PrimFunc, others: Mapping[Buffer, Buffer]) -> PrimFunc:
    """A function of other buffers."""
    variables = {old.data: new.data for old, new in others.items()}
    params = tuple(variables.get(each, each) for each in func.params)
    buffers = {variables.get(var, var): others.get(b, b) for var, b in func.buffer_map.items()}
    outputs = frozenset(others.get(each, each) for each in func.attrs.outputs or ())
    return replace(
        func,
        params=params,
        buffer_map=buffers,
        attrs=replace(func.attrs, outputs=outputs),
    )


class _AtPart(Mutator):
    """Moves accesses of a part's buffers to those of the batch."""

    def __init__(
        self, places: Mapping[Buffer, tuple[Buffer, int]], begin: PrimExpr, *, is_task: bool
    ) -> None:
        super().__init__()
        self._places = places
        self._begin = begin
        self._is_task = is_task  # whose loops one thread runs

    def visit_For(self, node: For) -> Stmt:
        made = self.descend(node)
        is_shared = self._is_task and made.kind == ForKind.PARALLEL
        return replace(made, kind=ForKind.SERIAL) if is_shared else made

    def _access(self, node: Any) -> Any:
        made = self.descend(node)
        if made.buffer not in self._places:
            return made
        buffer, place = self._places[made.buffer]
        index = made.indices[place]
        index = index + e.cast(index.dtype, self._begin)
        indices = (*made.indices[:place], index, *made.indices[place + 1 :])
        return rebuild(made, {"buffer": buffer, "indices": indices})

    visit_BufferLoad = visit_BufferStore = _access
