"""Programs whose column-major tensors are row-major ones with their dimensions in reverse order,
which is the same memory: who chooses loops by strides then sees them as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import cast

from minitvm.te.schedules.operation_graph import in_order, read_by_ranges
from minitvm.te.schedules.rewrite_operations import ReadOthers, map_body, reading
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor
from minitvm.tir.expr import PrimExpr, ProducerLoad
from minitvm.tir.functor import walk_once


def in_row_major(
    outputs: Iterable[Operation], column_major: Collection[Tensor]
) -> tuple[list[Operation], dict[Tensor, Tensor], frozenset[Tensor]]:
    """`outputs` computed with those of the tensors `column_major` in reverse order of dimensions
    that allow it; the tensor that each tensor became, where it is another; and the tensors that
    were reversed.

    Before, of column-major X and Y::

        Y[i, j] = X[i, j] * 2.0

    After::

        Y[j, i] = X[j, i] * 2.0

    >>> from minitvm import te
    >>> X = te.placeholder((4, 3), name="X")
    >>> Y = te.compute((4, 3), lambda i, j: X[i, j] * 2.0, name="Y")
    >>> (op,), now, _ = in_row_major([Y.op], [X, Y])
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
    """The tensors all of whose accesses are elements of expressions, at indices that don't come
    from data, which are looked at when they are there, and named in messages."""
    if any(isinstance(op, ScanOp) or read_by_ranges(op) for op in ops):
        return frozenset()
    found = {each for each in column_major if each.ndim > 1 and each.op in ops}
    for op in ops:
        if isinstance(op, ComputeOp):
            found -= {
                cast(Tensor, load.producer)
                for load in walk_once(*op.body)
                if isinstance(load, ProducerLoad)
                and any(isinstance(node, ProducerLoad) for node in walk_once(*load.indices))
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
