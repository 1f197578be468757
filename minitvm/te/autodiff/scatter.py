"""Adjoints added up in place: loops over the reads, where data choose the element.

The time is that of the reads and of one pass over the result::

    Y[i, j] = X[t[i], j]        for i, j: dX[t[i], j] += dY[i, j]

Indices are checked as those of reads are. One thread adds, in the order of the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

from minitvm.te.operation import extern
from minitvm.te.tensor import Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir import ir_builder
from minitvm.tir.expr import Buffer, BufferLoad, IterVar, PrimExpr, ProducerLoad, Var
from minitvm.tir.functor import Mutator, substitute, walk_once
from minitvm.tir.stmt import Stmt


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

    def body(ins: list[Buffer], outs: list[Buffer]) -> Stmt:
        read = _Reads(dict(zip(inputs, ins, strict=True))).expr
        ib = ir_builder.create()
        out = ib.buffer_ptr(outs[0])
        with ExitStack() as zeroing:
            extents = [zeroing.enter_context(ib.for_range(0, extent)) for extent in shape]
            out[tuple(extents)] = e.const(0, value.dtype)
        with ExitStack() as adding:
            here: dict[Var, PrimExpr] = {}
            for axis in loops:
                dom = domain_of(axis)
                low, extent = (read(substitute(x, here)) for x in (dom.min, dom.extent))
                here[axis.var] = adding.enter_context(
                    ib.for_range(low, low + extent, name=axis.name, dtype=axis.var.dtype)
                )
            for condition in conditions:
                adding.enter_context(ib.if_scope(read(substitute(condition, here))))
            place = tuple(read(substitute(index, here)) for index in indices)
            out[place] = out[place] + read(substitute(value, here))
        return ib.get()

    made = extern(tuple(shape), inputs, body, name=name, dtype=value.dtype)
    return cast(Tensor, made)


class _Reads(Mutator):
    """Reads of tensors as those of their buffers."""

    def __init__(self, buffers: dict[Tensor, Buffer]) -> None:
        super().__init__()
        self._buffers = buffers

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        buffer = self._buffers[cast(Tensor, node.producer)]
        return BufferLoad(buffer, tuple(map(self.expr, node.indices)))
