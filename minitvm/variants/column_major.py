"""Turns column-major arguments into row-major ones of the same memory, with dimensions reversed.

The auto-scheduler, which chooses loops by strides, then sees the strides in memory. The chosen
loops are given the declared arguments again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, final

from minitvm.arith.effects import reads_tensors
from minitvm.runtime.record import record
from minitvm.te.schedules.operation_graph import in_order, read_by_ranges
from minitvm.te.schedules.rewrite_operations import ReadOthers, map_body, reading
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor, tensor_of
from minitvm.tir.expr import (
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    PrimExpr,
    ProducerLoad,
    StringImm,
)
from minitvm.tir.functor import Mutator, rebuild, replace_buffers, walk_once
from minitvm.tir.stmt import AssertStmt, PrimFunc, Stmt, with_buffers

_Access = TypeVar("_Access", BufferLoad, BufferStore)


@final
@record(eq=False)
class RowMajor:
    """A program in which arguments that are declared column-major have become row-major ones with
    dimensions in reverse order, so that auto_schedule sees the strides in memory. `declared` maps
    each buffer to its declaration."""

    outputs: Sequence[Operation]
    args: Sequence[Any]
    binds: Mapping[Tensor, Buffer]
    declared: Mapping[Buffer, Buffer]
    names: frozenset[str]  # of the tensors that are in reverse order


def in_row_major(
    outputs: Sequence[Any], args: Sequence[Any], binds: Mapping[Tensor, Buffer]
) -> RowMajor | None:
    """The program with row-major arguments; None where nothing changes."""
    given = {each for each in args if isinstance(each, Tensor | Buffer)}
    left = [
        tensor
        for tensor, buffer in binds.items()
        if buffer.layout == "left" and (tensor in given or buffer in given)
    ]
    if not left:
        return None
    ops = [each.op if isinstance(each, Tensor) else each for each in outputs]
    kept = {*(each for each in args if isinstance(each, Tensor)), *binds}
    if all(tensor in left for tensor in kept if tensor.ndim > 1):  # and the tensors between them
        left += [t for op in in_order(ops) for t in op.outputs if t not in kept]
    ops, now, turned = with_reversed(ops, left)
    if not turned:
        return None
    buffers = {
        buffer: replace(buffer, shape=buffer.shape[::-1], strides=(), layout="")
        for tensor, buffer in binds.items()
        if tensor in turned
    }
    return RowMajor(
        ops,
        [now.get(arg, arg) if isinstance(arg, Tensor) else buffers.get(arg, arg) for arg in args],
        {now.get(t, t): buffers[b] if t in turned else b for t, b in binds.items()},
        {buffer: each for each, buffer in buffers.items()},
        frozenset(tensor.name for tensor in turned),
    )


def with_reversed(
    outputs: Iterable[Operation], column_major: Collection[Tensor]
) -> tuple[list[Operation], dict[Tensor, Tensor], frozenset[Tensor]]:
    """`outputs` computed with reversed dimensions of the tensors `column_major`, as far as
    possible; a mapping from each tensor that changed to its new one; and the tensors that were
    reversed.

    Before, with column-major X and Y::

        Y[i, j] = X[i, j] * 2.0

    After::

        Y[j, i] = X[j, i] * 2.0

    >>> from minitvm import te
    >>> X = te.placeholder((4, 3), name="X")
    >>> Y = te.compute((4, 3), lambda i, j: X[i, j] * 2.0, name="Y")
    >>> (op,), now, _ = with_reversed([Y.op], [X, Y])
    >>> op.body, op.axis[0].var.name, now[X].shape
    ((X[j, i] * 2.0,), 'j', (3, 4))
    """
    outputs = list(outputs)
    ops = in_order(outputs)
    turned = _reversible(ops, column_major)
    now: dict[Tensor, Tensor] = {}
    made: dict[Operation, Operation] = {}
    for op in ops:
        made[op] = _rewritten(op, now, turned)
        if made[op] is not op:
            now.update(zip(op.outputs, made[op].outputs, strict=True))
    return [made[op] for op in outputs], now, turned


def _reversible(ops: Collection[Operation], column_major: Collection[Tensor]) -> frozenset[Tensor]:
    """The tensors whose dimensions may be reversed: only expressions access them, at indices that
    aren't read from data. Such an index is checked at run time, and messages name it."""
    if any(isinstance(op, ScanOp) or read_by_ranges(op) for op in ops):
        return frozenset()
    found = {each for each in column_major if each.ndim > 1 and each.op in ops}
    for op in ops:
        if isinstance(op, ComputeOp):
            found -= {
                tensor_of(load)
                for load in walk_once(*op.body)
                if isinstance(load, ProducerLoad) and reads_tensors(*load.indices)
            }
        else:
            found -= set(op.input_tensors)
        if not isinstance(op, ComputeOp | PlaceholderOp) or not found.issuperset(op.outputs):
            found -= set(op.outputs)
    return frozenset(found)


def _rewritten(
    op: Operation, now: Mapping[Tensor, Tensor], turned: Collection[Tensor]
) -> Operation:
    is_turned = bool(op.outputs) and op.outputs[0] in turned
    if isinstance(op, PlaceholderOp):
        return replace(op, shape=op.shape[::-1]) if is_turned else op
    if not isinstance(op, ComputeOp):
        return reading(op, now)
    if not is_turned and not any(tensor in now for tensor in op.input_tensors):
        return op

    def place(tensor: Tensor, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        return indices[::-1] if tensor in turned else indices

    axis = op.axis[::-1] if is_turned else op.axis
    return replace(op, axis=axis, body=map_body(op.body, ReadOthers(now, place).expr))


def in_column_major(func: PrimFunc, declared: Mapping[Buffer, Buffer]) -> PrimFunc:
    """`func` with its parameters as they were declared; accesses of the row-major ones are
    rewritten.

    Before::

        def f(X: float32[m, n]): ... X[j, i] ...

    After::

        def f(X: float32[n, m] strides=[1, n]): ... X[i, j] ...
    """
    body = replace_buffers(_Reverse(declared).stmt(func.body), declared)
    return with_buffers(func, body, declared)


def shows_indices(func: PrimFunc, names: Collection[str]) -> bool:
    """Whether a message of the function shows indices of a tensor among `names`, which would be in
    reverse order."""
    messages = []
    for node in walk_once(func.body):
        match node:
            case AssertStmt(message=message):
                messages.append(message)
            case Call(op="checked", args=(_, StringImm(message), *_)):
                messages.append(message)
    return any(f"{name}[" in message for name in names for message in messages)


class _Reverse(Mutator):
    def __init__(self, declared: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._declared = declared

    def _reversed(self, node: _Access) -> _Access:
        made = self.descend(node)
        if made.buffer not in self._declared:
            return made
        return rebuild(made, {"buffer": self._declared[made.buffer], "indices": made.indices[::-1]})

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        return self._reversed(node)

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        return self._reversed(node)
