"""Adjoints added up in place: loops over the reads, where data choose the element.

The time is that of the reads and of one pass over the result::

    Y[i, j] = X[t[i], j]        for i, j: dX[t[i], j] += dY[i, j]

Indices are checked like the indices of reads. Threads share an axis that is itself an index, as the
axis of a batch is, unless it is the last one. Only one thread adds to an element, in the order of
the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import cast, final

from minitvm.arith.effects import reads_tensors
from minitvm.runtime.record import record
from minitvm.te.operation import extern
from minitvm.te.schedules.rewrite_operations import ReadOthers
from minitvm.te.tensor import ExternOp, Operation, Tensor, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir import ir_builder
from minitvm.tir.expr import Buffer, BufferLoad, IterVar, PrimExpr, ProducerLoad, Range, Var
from minitvm.tir.functor import Mutator, mentions, substitute, walk_once
from minitvm.tir.stmt import Stmt


@final
@record()
class Scatter:
    """Loops that add values to the elements of a tensor.

    Attributes
    ----------
    loops
        The iterations.
    indices, value
        The element to which an iteration adds, and the value that it adds.
    conditions
        The conditions under which it adds, each evaluated only where the ones before it hold.
    inputs
        The tensors that the loops, indices, values and conditions read.
    """

    loops: tuple[IterVar, ...]
    indices: tuple[PrimExpr, ...]
    value: PrimExpr
    conditions: tuple[PrimExpr, ...]
    inputs: tuple[Tensor, ...]

    def expressions(self) -> list[PrimExpr]:
        """All expressions in the loops, and those of their ranges."""
        domains = [domain_of(axis) for axis in self.loops]
        bounds = [bound for dom in domains for bound in (dom.min, dom.extent)]
        return [*bounds, *self.indices, self.value, *self.conditions]

    def reading(self, others: Sequence[Tensor]) -> Scatter:
        """The same loops, which read `others` in place of the inputs."""
        if self.inputs == tuple(others):
            return self
        now = ReadOthers(dict(zip(self.inputs, others, strict=True))).expr
        return Scatter(
            tuple(_with_range(axis, now) for axis in self.loops),
            tuple(map(now, self.indices)),
            now(self.value),
            tuple(map(now, self.conditions)),
            tuple(others),
        )


def scattered(
    name: str,
    shape: Sequence[PrimExpr],
    loops: Sequence[IterVar],
    indices: Sequence[PrimExpr],
    value: PrimExpr,
    conditions: Sequence[PrimExpr],
) -> Tensor:
    """The tensor of the sums, for each element, of the values of the iterations that have its
    indices and fulfil the conditions, each evaluated only where those before it hold."""
    ranges = [bound for axis in loops for bound in (domain_of(axis).min, domain_of(axis).extent)]
    nodes = walk_once(*indices, value, *conditions, *ranges)
    reads = [each for each in nodes if isinstance(each, ProducerLoad)]
    inputs = [cast(Tensor, each) for each in dict.fromkeys(each.producer for each in reads)]
    shared = _shared(loops, indices)

    def body(ins: list[Buffer], outs: list[Buffer]) -> Stmt:
        read = _Reads(dict(zip(inputs, ins, strict=True))).expr
        ib = ir_builder.create()
        out = ib.buffer_ptr(outs[0])
        with ExitStack() as zeroing:
            kinds = ["parallel", *["serial"] * len(shape)]
            pairs = zip(shape, kinds, strict=False)
            place = [zeroing.enter_context(ib.for_range(0, n, kind=kind)) for n, kind in pairs]
            out[tuple(place)] = e.const(0, value.dtype)
        with ExitStack() as adding:
            here = _loops(ib, adding, loops, shared, read)
            for condition in conditions:
                adding.enter_context(ib.if_scope(read(substitute(condition, here))))
            to = tuple(read(substitute(index, here)) for index in indices)
            out[to] = out[to] + read(substitute(value, here))
        return ib.get()

    scatter = Scatter(tuple(loops), tuple(indices), value, tuple(conditions), tuple(inputs))
    made = extern(
        tuple(shape), inputs, body, name=name, dtype=value.dtype, attrs={_SCATTER: scatter}
    )
    return cast(Tensor, made)


def scatter_of(operation: Operation) -> Scatter | None:
    """The loops of an operation of :func:`scattered`, on the tensors that it reads now; None for
    any other operation."""
    if not isinstance(operation, ExternOp):
        return None
    found = operation.attrs.get(_SCATTER)
    return found.reading(operation.inputs) if isinstance(found, Scatter) else None


def _with_range(axis: IterVar, now: Callable[[PrimExpr], PrimExpr]) -> IterVar:
    dom = domain_of(axis)
    return replace(axis, dom=Range(now(dom.min), now(dom.extent)))


_SCATTER = "gradient.scatter"


def _shared(loops: Sequence[IterVar], indices: Sequence[PrimExpr]) -> IterVar | None:
    """A loop whose iterations add to different elements, so that threads share them: not the
    innermost one, whose parts would be short lines."""
    return next((axis for axis in loops[:-1] if _is_apart(axis, loops, indices)), None)


def _is_apart(axis: IterVar, loops: Sequence[IterVar], indices: Sequence[PrimExpr]) -> bool:
    dom = domain_of(axis)
    others = [each.var for each in loops if each is not axis]
    depends = any(mentions(var, dom.min, dom.extent) for var in others)
    is_read = reads_tensors(dom.min, dom.extent)
    return any(index is axis.var for index in indices) and not depends and not is_read


def _loops(
    ib: ir_builder.IRBuilder,
    stack: ExitStack,
    loops: Sequence[IterVar],
    shared: IterVar | None,
    read: Callable[[PrimExpr], PrimExpr],
) -> dict[Var, PrimExpr]:
    """Opens the loops, the `shared` one outside of all; returns the values of their variables."""
    here: dict[Var, PrimExpr] = {}
    for axis in sorted(loops, key=lambda each: each is not shared):
        dom = domain_of(axis)
        low, extent = (read(substitute(x, here)) for x in (dom.min, dom.extent))
        kind = "parallel" if axis is shared else "serial"
        loop = ib.for_range(low, low + extent, name=axis.name, dtype=axis.var.dtype, kind=kind)
        here[axis.var] = stack.enter_context(loop)
    return here


class _Reads(Mutator):
    """Rewrites reads of tensors as reads of their buffers."""

    def __init__(self, buffers: dict[Tensor, Buffer]) -> None:
        super().__init__()
        self._buffers = buffers

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        buffer = self._buffers[tensor_of(node)]
        return BufferLoad(buffer, tuple(map(self.expr, node.indices)))
