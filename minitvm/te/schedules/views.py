"""Stages that copy a tensor in the order of its memory: views of it, in another shape."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.arith.analyzer import Analyzer
from minitvm.te.tensor import ComputeOp, Operation, Tensor, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, ProducerLoad


def viewed_by(op: Operation) -> Tensor | None:
    """The tensor whose elements an operation copies in the order in which both lie in memory; None
    for another operation.

    >>> from minitvm import te
    >>> A = te.placeholder((6, 4), name="A")
    >>> viewed_by(te.compute((24,), lambda i: A[i // 4, i % 4], name="B").op)
    Tensor(shape=[6, 4], op.name=A)
    >>> viewed_by(te.compute((4, 6), lambda i, j: A[j, i], name="C").op)
    """
    if (
        not isinstance(op, ComputeOp)
        or len(op.body) != 1
        or not isinstance(op.body[0], ProducerLoad)
    ):
        return None
    load = op.body[0]
    tensor = tensor_of(load)
    analyzer = Analyzer()
    for axis in op.axis:
        analyzer.bind(axis.var, domain_of(axis))
    mine = place_in_memory([axis.var for axis in op.axis], op.output(0).shape)
    its = place_in_memory(load.indices, tensor.shape)
    sizes = (_product(op.output(0).shape), _product(tensor.shape))
    same = all(analyzer.can_prove_equal(*pair) for pair in ((mine, its), sizes))
    return tensor if same and op.output(0).dtype == tensor.dtype else None


def place_in_memory(indices: Sequence[PrimExpr], shape: Sequence[PrimExpr | int]) -> PrimExpr:
    """The place of an element in compact memory."""
    place: PrimExpr = e.const(0)
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    return place


def _product(shape: Sequence[PrimExpr]) -> PrimExpr:
    size: PrimExpr = e.const(1)
    for extent in shape:
        size = size * extent
    return size
