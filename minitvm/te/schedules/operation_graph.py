"""The operations of a program as a graph: their order, their axes, and their reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from minitvm.te.tensor import (
    ComputeOp,
    ExternOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    domain_of,
    tensor_of,
)
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import IterVar, ProducerLoad, Reduce
from minitvm.tir.functor import walk_once


def in_order(outputs: Iterable[Operation]) -> list[Operation]:
    """Every operation that `outputs` need, each after its inputs. Chains of thousands of operations
    are possible, since no recursion follows them."""
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


def root_axes(op: Operation) -> tuple[IterVar, ...]:
    """The axes of an operation from which its loops begin."""
    match op:
        case ComputeOp():
            return op.axis + op.reduce_axis
        case ScanOp():
            return (op.scan_axis,)
        case PlaceholderOp() | ExternOp():
            return ()
    raise e.unknown_node(op, "a schedule")


def read_by_ranges(op: Operation) -> list[tuple[IterVar, Tensor]]:
    """The axes whose ranges depend on elements of tensors, each with the tensors that its range
    reads."""
    return [
        (axis, tensor_of(node))
        for axis in root_axes(op)
        for node in walk_once(domain_of(axis).min, domain_of(axis).extent)
        if isinstance(node, ProducerLoad)
    ]


def multiplied_reads(op: Operation) -> list[ProducerLoad]:
    """The two reads of a sum of products of two elements, each read at indices that are axes or
    constants. Empty if `op` is another computation."""
    first = op.body[0] if isinstance(op, ComputeOp) else None
    if not isinstance(first, Reduce) or first.init:
        return []
    source, always = first.source[0], e.const_int(first.condition) == 1
    if not is_operator(first.combiner, e.Add) or not isinstance(source, e.Mul) or not always:
        return []
    known = {axis.var for axis in (*cast(ComputeOp, op).axis, *first.axis)}
    loads = [each.value if isinstance(each, e.Cast) else each for each in (source.a, source.b)]
    if not all(
        isinstance(load, ProducerLoad)
        and all(index in known or e.const_int(index) is not None for index in load.indices)
        for load in loads
    ):
        return []
    return [cast(ProducerLoad, load) for load in loads]
