"""Running totals: the statements of a stage that computes each element from the one before.

Each element adds its term to the running total, and takes its value::

    total = 0
    for j:
        total = total + A[j]
        C[j] = total

In vectors, each lane combines its term with the terms of the lanes before it, first of one lane,
then of two, then of four; and then with the running total::

    for j.outer:
        lanes[0:4] = A[j.outer * 4 : j.outer * 4 + 4]
        lanes = [0, lanes[0], lanes[1], lanes[2]] + lanes
        lanes = [0, 0, lanes[0], lanes[1]] + lanes
        C[j.outer * 4 : j.outer * 4 + 4] = total + lanes
        total = total + lanes[3]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from minitvm.lowering.stage_bodies import store_all
from minitvm.runtime.dtype import HANDLE
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import Buffer, BufferLoad, Call, CommReducer, PrimExpr, Ramp, Var, const
from minitvm.tir.functor import Mutator, rebuild, substitute
from minitvm.tir.stmt import INDEPENDENT, Allocate, BufferStore, For, ForKind, Stmt, seq

Read: TypeAlias = Callable[[PrimExpr], PrimExpr]
"""Turns an expression of an operation into one of the loops that compute it."""


@final
@record()
class Totals:
    """The running totals of a reduction: a buffer for each of its results, and the indices of one
    element's totals in these buffers."""

    buffers: tuple[Buffer, ...]
    indices: tuple[PrimExpr, ...]

    def load(self) -> list[PrimExpr]:
        return [BufferLoad(buffer, self.indices) for buffer in self.buffers]

    def store(self, values: list[PrimExpr]) -> Stmt:
        return store_all(self.buffers, values, self.indices)

    def at(self, *indices: PrimExpr) -> Totals:
        """The totals of another element."""
        return Totals(self.buffers, indices)

    def within(self, body: Stmt) -> Stmt:
        """`body` inside of the allocations."""
        for buffer in self.buffers:
            body = Allocate(buffer, body)
        return body


def totals_of(
    outputs: Sequence[Buffer], shape: tuple[PrimExpr, ...], name: str, scope: str = "global"
) -> tuple[Buffer, ...]:
    """Memory for values of some buffers' dtypes."""
    names = [f"{buffer.name}.{name}" for buffer in outputs]
    return tuple(
        Buffer(Var(name, HANDLE), shape, buffer.dtype, name, scope=scope)
        for name, buffer in zip(names, outputs, strict=True)
    )


class Onto(Mutator):
    """Rewrites a statement so that it combines its term with running totals in place of a stage's
    elements."""

    def __init__(self, outputs: Sequence[Buffer], totals: Totals) -> None:
        super().__init__()
        self._buffers: Mapping[Buffer, Buffer] = dict(zip(outputs, totals.buffers, strict=True))
        self._indices = totals.indices

    def _access(self, node: Any) -> Any:
        made = self.descend(node)
        buffer = self._buffers.get(made.buffer)
        if buffer is None:
            return made
        return rebuild(made, {"buffer": buffer, "indices": self._indices})

    visit_BufferLoad = visit_BufferStore = _access


def combined(
    combiner: CommReducer, a: Sequence[PrimExpr], b: Sequence[PrimExpr], read: Read
) -> list[PrimExpr]:
    """The combination of two tuples of values, the earlier one first."""
    pairs = [*zip(combiner.lhs, a, strict=True), *zip(combiner.rhs, b, strict=True)]
    return [substitute(read(result), dict(pairs)) for result in combiner.result]


def in_lanes(
    combiner: CommReducer,
    lanes: Totals,
    width: int,
    terms: Stmt,
    read: Read,
) -> Stmt:
    """Combines the term of each lane with the terms of the lanes before it. The statement `terms`
    combines, at the index of each lane in `lanes`, its term with the identity that stands there."""
    (lane,) = lanes.indices
    assert isinstance(lane, Var)
    identity = [read(each) for each in _neutral(combiner)]
    made = [each_lane(lane, width, lanes.store(identity)), each_lane(lane, width, terms)]
    before = Totals(totals_of(lanes.buffers, (const(width),), "before", "local"), (lane,))
    distance = 1
    while distance < width:
        for source, target, begin in zip(lanes.buffers, before.buffers, identity, strict=True):
            made.append(_moved(source, target, begin, width, distance))
        both = combined(combiner, before.load(), lanes.load(), read)
        made.append(each_lane(lane, width, lanes.store(both)))
        distance *= 2
    return before.within(seq(*made))


def _neutral(combiner: CommReducer) -> Sequence[PrimExpr]:
    """The identity that keeps the sign of a zero, too."""
    if not is_operator(combiner, e.Add):
        return combiner.identity
    dtypes = [each.dtype for each in combiner.identity]
    return [const(-0.0 if dtype.is_float else 0, dtype) for dtype in dtypes]


def each_lane(lane: Var, width: int, body: Stmt) -> Stmt:
    """`body` for each lane, in a vector."""
    own = Var(lane.name, lane.dtype, axis=True)
    begin, extent = const(0, lane.dtype), const(width, lane.dtype)
    body = substitute(body, {lane: own})
    return For(own, begin, extent, ForKind.VECTORIZED, body, {INDEPENDENT: True})


def _moved(source: Buffer, target: Buffer, begin: PrimExpr, width: int, distance: int) -> Stmt:
    """The values of all lanes, shifted by `distance` lanes; the first lanes get the value
    `begin`."""
    every = Ramp(const(0), const(1), width)
    chosen = [const(max(i - distance, -1) % (width + 1)) for i in range(width)]
    args = (BufferLoad(source, (every,)), e.Broadcast(begin, width), *chosen)
    value = Call(source.dtype.with_lanes(width), "vector_shuffle", args)
    return BufferStore(target, value, (every,))
