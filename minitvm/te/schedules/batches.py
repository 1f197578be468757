"""Batches: programs whose elements along one dimension don't depend on each other.

Along such a dimension a program can be computed in parts, each as a program of its own, of a
smaller extent::

    for t: for b: H[t, b] = H[t - 1, b] * a + X[t, b]

    for part: for t: for b in part: H[t, b] = H[t - 1, b] * a + X[t, b]
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, final

from minitvm.runtime.record import record
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.rewrite_operations import ReadOthers, map_ranges, reduced
from minitvm.te.tensor import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    data_axes,
    domain_of,
    tensor_of,
)
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, const_int
from minitvm.tir.functor import children
from minitvm.tir.structural_equal import structural_equal

_Indices: TypeAlias = tuple[PrimExpr, ...]


@final
@record()
class Batch:
    """A dimension along which all of a program is apart: its extent, and its position in each
    tensor that has it. The other tensors are the same for all elements."""

    extent: PrimExpr
    places: Mapping[Tensor, int]


def batch_along(outputs: Sequence[Operation], dimension: int) -> Batch | None:
    """The batch of a program along a dimension of its first output; None where its elements depend
    on each other along it.

    >>> from minitvm import te
    >>> X, state = te.placeholder((8, 5), name="X"), te.placeholder((8, 5), name="state")
    >>> first = te.compute((1, 5), lambda t, b: X[t, b], name="first")
    >>> step = te.compute((8, 5), lambda t, b: state[t - 1, b] * X[t, b], name="step")
    >>> R = te.scan(first, step, state, name="R")
    >>> batch_along([R.op], 0) is None, batch_along([R.op], 1).places[X]
    (True, 1)
    """
    first, *others = (op.output(0) for op in outputs)
    if dimension >= first.ndim:
        return None
    search = _Search(outputs, first.shape[dimension])
    if not search.lies(first, dimension):
        return None
    # States that no output needs are computed, too.
    more = (each for op in reversed(in_order(outputs)) for each in op.outputs)
    for each in (*others, *more):
        if each not in search.places and not any(
            search.lies(each, place) for place in (*range(each.ndim), None)
        ):
            return None
    found = search.places
    if any(found.get(each) is None for op in outputs for each in op.outputs):
        return None
    return Batch(search.extent, {each: at for each, at in found.items() if at is not None})


class _Depends(Exception):
    """Elements depend on each other along a dimension."""


class _Search:
    """The positions of a dimension of some extent in the tensors of a program; None for tensors
    without it."""

    def __init__(self, outputs: Sequence[Operation], extent: PrimExpr) -> None:
        self.extent = extent
        self.places: dict[Tensor, int | None] = {}
        # For each part of a scan, the other parts that have the same position.
        self._alike: dict[Tensor, tuple[Tensor, ...]] = {}
        for op in in_order(outputs):
            if not isinstance(op, ScanOp):
                continue
            for parts in zip(op.outputs, op.update, op.init, op.state_placeholder, strict=True):
                for part in parts:
                    self._alike[part] = (*self._alike.get(part, ()), *parts)

    def lies(self, tensor: Tensor, place: int | None) -> bool:
        """Whether a tensor has the dimension at a position; notes the positions in all tensors that
        it is computed from, if so."""
        before = dict(self.places)
        try:
            self._put([(tensor, place)])
        except _Depends:
            self.places = before
            return False
        return True

    def _put(self, waiting: list[tuple[Tensor, int | None]]) -> None:
        while waiting:
            tensor, place = waiting.pop()
            if tensor in self.places:
                if self.places[tensor] != place:
                    raise _Depends
                continue
            if place is not None and not _are_equal(tensor.shape[place], self.extent):
                raise _Depends
            self.places[tensor] = place
            waiting += ((each, place) for each in self._alike.get(tensor, ()))
            match tensor.op:
                case ComputeOp() as op:
                    waiting += ((each, place) for each in op.outputs)
                    axis = None if place is None else op.axis[place]
                    waiting += _reads(op, axis)
                case PlaceholderOp() | ScanOp():
                    pass
                case op if place is None:
                    waiting += ((each, None) for each in op.input_tensors)
                case _:
                    raise _Depends


def _are_equal(a: PrimExpr, b: PrimExpr) -> bool:
    known = const_int(a)
    return known == const_int(b) if known is not None else structural_equal(a, b)


def _reads(op: ComputeOp, axis: IterVar | None) -> list[tuple[Tensor, int | None]]:
    """The tensors that an operation reads, and the position of its axis among the indices of each.
    The axis may be used as an index alone."""
    found: list[tuple[Tensor, int | None]] = []
    if axis is not None and const_int(domain_of(axis).min) != 0:
        raise _Depends
    ranges = [domain_of(each) for each in (*op.axis, *op.reduce_axis) if each is not axis]
    waiting: list[PrimExpr] = [*op.body, *(x for dom in ranges for x in (dom.min, dom.extent))]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        if axis is not None and node is axis.var:
            raise _Depends
        seen.add(id(node))
        if isinstance(node, ProducerLoad):
            at = [i for i, x in enumerate(node.indices) if axis is not None and x is axis.var]
            if len(at) > 1:
                raise _Depends
            found.append((tensor_of(node), at[0] if at else None))
            waiting += (x for i, x in enumerate(node.indices) if i not in at)
        elif isinstance(node, e.Var):
            continue
        else:
            waiting += children(node)
    return found


# -- Programs of parts ----------------------------------------------------------------------------


@final
@record()
class PartOfBatch:
    """The program of a part of a batch.

    Attributes
    ----------
    outputs
        Its outputs.
    now
        Its tensors, in place of those of the whole program.
    copies
        Its copies of inputs and results in another order of dimensions.
    """

    outputs: list[Operation]
    now: Mapping[Tensor, Tensor]
    copies: list[Tensor]


def part_of_batch(
    outputs: Sequence[Operation], batch: Batch, extent: PrimExpr, *, in_lanes: bool = False
) -> PartOfBatch:
    """The program that computes `extent` elements of a batch. `in_lanes`: the batch is the last
    dimension of all tensors but inputs and outputs, which are copied."""
    return _Part(outputs, batch, extent, in_lanes).made()


class _Part:
    def __init__(
        self, outputs: Sequence[Operation], batch: Batch, extent: PrimExpr, in_lanes: bool
    ) -> None:
        self._order = in_order(outputs)
        self._outputs = outputs
        self._places = batch.places
        self._extent = e.cast(batch.extent.dtype, extent)
        self._read: dict[Tensor, Tensor] = {}
        scans = [op for op in self._order if isinstance(op, ScanOp)]
        self._states = {each.op for op in scans for each in op.state_placeholder}
        self._moved: Container[Tensor] = self._to_move() if in_lanes else ()
        self._copies: list[Tensor] = []

    def made(self) -> PartOfBatch:
        now: dict[Tensor, Tensor] = {}
        for op in self._order:
            made = self._part(op)
            for old, new in zip(op.outputs, made.outputs, strict=True):
                self._read[old] = now[old] = new
                if old in self._moved and isinstance(op, PlaceholderOp) and op not in self._states:
                    self._read[old] = self._copied(new, old, to_lanes=True)
        ends: list[Operation] = []
        for op in self._outputs:
            for each in op.outputs if op.output(0) in self._moved else ():
                now[each] = self._copied(now[each], each, to_lanes=False)
            ends += dict.fromkeys(now[each].op for each in op.outputs)
        return PartOfBatch(ends, now, self._copies)

    def _to_move(self) -> set[Tensor]:
        """The tensors whose batch isn't their last dimension, but for outputs that can be computed
        in place."""
        stays = {op for op in self._outputs if isinstance(op, ComputeOp)}
        read = {each.op for op in self._order for each in op.input_tensors}
        return {
            each
            for each, place in self._places.items()
            if place < each.ndim - 1 and (each.op not in stays or each.op in read)
        }

    def _in_order(self, tensor: Tensor, values: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        """The indices or extents of a tensor in the order of its dimensions in the part."""
        if tensor not in self._moved:
            return values
        place = self._places[tensor]
        return (*values[:place], *values[place + 1 :], values[place])

    def _shape(self, tensor: Tensor) -> tuple[PrimExpr, ...]:
        place = self._places[tensor]
        return (*tensor.shape[:place], self._extent, *tensor.shape[place + 1 :])

    def _part(self, op: Operation) -> Operation:
        place = self._places.get(op.output(0))
        match op:
            case PlaceholderOp() if place is not None:
                shape = self._shape(op.output(0))
                if op in self._states:
                    shape = self._in_order(op.output(0), shape)
                return replace(op, shape=shape)
            case ComputeOp():
                return self._computed(op, place)
            case ScanOp():
                now = self._read
                for each in op.state_placeholder:
                    now.setdefault(each, self._part(each.op).output(0))  # one that no step reads
                init, update, state, inputs = (
                    tuple(now.get(each, each) for each in tensors)
                    for tensors in (op.init, op.update, op.state_placeholder, op.inputs)
                )
                return replace(op, init=init, update=update, state_placeholder=state, inputs=inputs)
        return op

    def _computed(self, op: ComputeOp, place: int | None) -> ComputeOp:
        if place is None and all(self._read[x] is x for x in op.input_tensors):
            return op
        read = ReadOthers(self._read, self._in_order).expr
        body = map_ranges(op.body, read, read)
        axes = [*op.axis]
        if place is not None:
            own = axes[place]
            axes[place] = IterVar(Range(0, self._extent), own.var, own.iter_type)
            if op.output(0) in self._moved:
                axes.append(axes.pop(place))
        return replace(op, axis=tuple(axes), reduce_axis=reduced(body), body=body)

    def _copied(self, tensor: Tensor, whole: Tensor, *, to_lanes: bool) -> Tensor:
        """A copy of a tensor of the part, with the batch last, or where it is in the whole
        program."""
        place = self._places[whole]
        own = data_axes([f"i{d}" for d in range(whole.ndim)], self._shape(whole))
        last = (*own[:place], *own[place + 1 :], own[place])
        axes, read = (last, own) if to_lanes else (own, last)
        body = ProducerLoad(tensor, tuple(axis.var for axis in read))
        name = f"{whole.op.name}.lanes" if to_lanes else whole.op.name
        made = ComputeOp(name, "", {}, axes, (), (body,)).output(0)
        self._copies.append(made)
        return made
