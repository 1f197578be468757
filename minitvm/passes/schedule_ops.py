"""From a schedule to loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from minitvm import expr as e
from minitvm.expr import Buffer, BufferLoad, IterVar, PrimExpr, Reduce, Var
from minitvm.functor import Mutator, replace_buffers, substitute, walk
from minitvm.runtime.dtype import HANDLE
from minitvm.runtime.errors import CompileError
from minitvm.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    seq,
)
from minitvm.te.schedule import Schedule
from minitvm.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor


def schedule_ops(schedule: Schedule, buffers: Mapping[Tensor, Buffer]) -> Stmt:
    """The loops that a schedule stands for.

    `buffers` gives the memory of the tensors that are arguments; the others are allocated around
    the loops that make and use them.

    Before::

        C = te.compute((n,), lambda i: te.sum(A[i, k], axis=k))

    After::

        for i in range(n):
            C[i] = 0.0
            for k in range(m):
                C[i] = C[i] + A[i, k]

    Raises
    ------
    CompileError
        When a tensor that is read is neither computed nor an argument.
    """
    known = dict(buffers)
    local: list[list[Buffer]] = []
    bodies: list[Stmt] = []
    for stage in schedule.stages:
        made = [_allocated(tensor) for tensor in stage.op.outputs if tensor not in known]
        if isinstance(stage.op, PlaceholderOp):
            if made:
                raise CompileError(
                    f"{stage.op.name}: expected every placeholder that is read to be an argument, "
                    "found it missing: add it to the list of arguments"
                )
            continue
        missing = [tensor for tensor in stage.op.outputs if tensor not in known]
        known.update(zip(missing, made, strict=True))
        local.append(made)
        bodies.append(_stage_body(stage.op, known))
    result: Stmt = seq()
    for made, body in zip(reversed(local), reversed(bodies), strict=True):
        result = seq(body, result)
        for buffer in made:
            result = Allocate(buffer, result)
    return result


def _allocated(tensor: Tensor) -> Buffer:
    """New memory for a tensor that is no argument."""
    return Buffer(Var(tensor.name, HANDLE), tensor.shape, tensor.dtype, tensor.name)


def _stage_body(op: Operation, buffers: Mapping[Tensor, Buffer]) -> Stmt:
    match op:
        case ComputeOp():
            return _compute_body(op, buffers)
        case ExternOp():
            return _extern_body(op, buffers)
    raise e.unknown_node(op, "schedule_ops")


def _extern_body(op: ExternOp, buffers: Mapping[Tensor, Buffer]) -> Stmt:
    """The operation's own statement, on the real buffers."""
    for node in walk(op.body):
        if isinstance(node, BufferStore) and node.buffer in op.input_placeholders:
            raise CompileError(
                f"{op.name}: expected stores to the outputs only, found one to input "
                f"{node.buffer.name}"
            )
    places = (*op.input_placeholders, *op.output_placeholders)
    tensors = (*op.inputs, *op.outputs)
    real = {place: buffers[tensor] for place, tensor in zip(places, tensors, strict=True)}
    return cast(Stmt, replace_buffers(op.body, real))


class _ReadBuffers(Mutator):
    """Reads of tensors become reads of their buffers."""

    def __init__(self, buffers: Mapping[Tensor, Buffer]) -> None:
        super().__init__()
        self._buffers = buffers

    def visit_ProducerLoad(self, node: e.ProducerLoad) -> PrimExpr:
        indices = tuple(self.expr(i) for i in node.indices)
        return BufferLoad(self._buffers[cast(Tensor, node.producer)], indices)


def _compute_body(op: ComputeOp, buffers: Mapping[Tensor, Buffer]) -> Stmt:
    read = _ReadBuffers(buffers)
    outputs = tuple(buffers[tensor] for tensor in op.outputs)
    indices = tuple(axis.var for axis in op.axis)
    first = op.body[0]
    if isinstance(first, Reduce):
        inner = _reduction(first, outputs, indices, read)
    else:
        inner = _store_all(outputs, [read.expr(value) for value in op.body], indices)
    return _loops(op.axis, inner, read)


def _reduction(
    reduce: Reduce, outputs: tuple[Buffer, ...], indices: tuple[Var, ...], read: _ReadBuffers
) -> Stmt:
    """The initial values, and the loops that combine the sources into them."""
    combiner = reduce.combiner
    start = [read.expr(value) for value in reduce.init or combiner.identity]
    mapping: dict[Var, PrimExpr] = {
        var: BufferLoad(buffer, indices) for var, buffer in zip(combiner.lhs, outputs, strict=True)
    }
    bound: list[tuple[Var, PrimExpr]] = []
    for var, source in zip(combiner.rhs, reduce.source, strict=True):
        value = read.expr(source)
        if _uses(combiner.result, var) > 1:  # a source is computed once
            name = Var(var.name, var.dtype)
            bound.append((name, value))
            value = name
        mapping[var] = value
    results = [cast(PrimExpr, substitute(result, mapping)) for result in combiner.result]
    update = _store_all(outputs, results, indices)
    for name, value in reversed(bound):
        update = LetStmt(name, value, update)
    condition = read.expr(reduce.condition)
    if not isinstance(condition, e.IntImm):
        update = IfThenElse(condition, update)
    elif not condition.value:
        update = seq()
    return seq(_store_all(outputs, start, indices), _loops(reduce.axis, update, read))


def _uses(results: tuple[PrimExpr, ...], var: Var) -> int:
    return sum(node is var for result in results for node in walk(result))


def _store_all(
    outputs: tuple[Buffer, ...], values: list[PrimExpr], indices: tuple[Var, ...]
) -> Stmt:
    """One store for each output; several values are all computed before the first is stored."""
    if len(outputs) == 1:
        return BufferStore(outputs[0], values[0], indices)
    names = [Var(f"{buffer.name}.value", buffer.dtype) for buffer in outputs]
    stores = (
        BufferStore(buffer, name, indices) for buffer, name in zip(outputs, names, strict=True)
    )
    body = seq(*stores)
    for name, value in zip(reversed(names), reversed(values), strict=True):
        body = LetStmt(name, value, body)
    return body


def _loops(axes: tuple[IterVar, ...], body: Stmt, read: _ReadBuffers) -> Stmt:
    """`body` in a serial loop for each axis, the first outermost."""
    for axis in reversed(axes):
        assert axis.dom is not None  # every operation checks that its axes have ranges
        dtype = axis.var.dtype
        begin, extent = read.expr(axis.dom.min), read.expr(axis.dom.extent)
        body = For(axis.var, e.cast(dtype, begin), e.cast(dtype, extent), ForKind.SERIAL, body)
    return body
