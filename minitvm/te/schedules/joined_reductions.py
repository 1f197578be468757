"""Reductions over the same axes become one reduction that has all of their results.

::

    A[i] = sum(f(i, k) * x[k], k)
    B[i] = max(f(i, k), k)

    A.joined[i] = sum(f(i, k) * x[k], k), max(f(i, k), k)      # f once
    A[i] = A.joined.v0[i]
    B[i] = A.joined.v1[i]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.rewrite_operations import becoming, cloned, each_result, places_of
from minitvm.te.tensor import ComputeOp, Operation, domain_of
from minitvm.tir.expr import CommReducer, IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import find, substitute
from minitvm.tir.structural_equal import structural_equal


def joined(ops: Sequence[Operation]) -> tuple[ComputeOp, list[ComputeOp]]:
    """An operation of all results of some reductions, and for each reduction the operation that
    copies its result.

    Raises
    ------
    CompileError
        When the operations aren't reductions of one result over the same axes.
    """
    found = [*dict.fromkeys(each for each in ops if isinstance(each, ComputeOp))]
    if len(found) < max(2, len(ops)) or not all(can_be_joined(a, b) for a, b in pairwise(found)):
        raise CompileError(
            f"join of {', '.join(each.name for each in ops)}: expected two or more reductions with "
            "one result each, over axes of the same constant ranges and under the same conditions"
        )
    first = found[0]
    own = [cloned(axis, axis.name) for axis in first.axis]
    reduces = [_at(each, [*own, *first.reduce_axis]) for each in found]
    parts = [_renamed(each.combiner, i) for i, each in enumerate(reduces)]
    combiner = CommReducer(
        tuple(var for each in parts for var in each.lhs),
        tuple(var for each in parts for var in each.rhs),
        tuple(value for each in parts for value in each.result),
        tuple(value for each in parts for value in each.identity),
    )
    source = tuple(each.source[0] for each in reduces)
    reduce = Reduce(combiner, source, first.reduce_axis, reduces[0].condition, 0)
    name = f"{first.name}.joined"
    made = replace(first, name=name, axis=tuple(own), body=each_result(reduce))
    copies = [
        replace(op, reduce_axis=(), body=(ProducerLoad(made.output(i), places_of(op.axis)),))
        for i, op in enumerate(found)
    ]
    return made, copies


def can_be_joined(op: ComputeOp, other: ComputeOp) -> bool:
    """Whether two operations are reductions of one result over the same axes, under the same
    condition."""
    if not (_is_plain(op) and _is_plain(other)):
        return False
    mine, its = ([*x.axis, *x.reduce_axis] for x in (op, other))
    counts = (len(op.axis), len(op.reduce_axis)), (len(other.axis), len(other.reduce_axis))
    if counts[0] != counts[1]:
        return False
    for a, b in zip(mine, its, strict=True):
        dom, same = domain_of(a), domain_of(b)
        if a.var.dtype != b.var.dtype or not structural_equal(dom.min, same.min):
            return False
        if not structural_equal(dom.extent, same.extent):
            return False
    condition = _at(other, mine).condition
    return structural_equal(_at(op, mine).condition, condition)


def _is_plain(op: ComputeOp) -> bool:
    """Whether an operation is a reduction of one result, over ranges that don't change."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or len(op.body) > 1 or reduce.init:
        return False
    axes = {axis.var for axis in (*op.axis, *op.reduce_axis)}
    ranges = (domain_of(axis) for axis in op.reduce_axis)
    ends = [end for dom in ranges for end in (dom.min, dom.extent)]
    return axes.isdisjoint(find(Var, *ends)) and not [*find(ProducerLoad, *ends)]


def _at(op: ComputeOp, axes: Sequence[IterVar]) -> Reduce:
    """The reduction of an operation, in terms of other axes."""
    reduce = op.body[0]
    assert isinstance(reduce, Reduce)
    values = becoming([*op.axis, *op.reduce_axis], axes)
    source: tuple[PrimExpr, ...] = tuple(substitute(each, values) for each in reduce.source)
    condition = substitute(reduce.condition, values)
    return Reduce(reduce.combiner, source, reduce.axis, condition, 0)


def _renamed(combiner: CommReducer, number: int) -> CommReducer:
    """A combiner with variables of its own."""
    lhs, rhs = (
        tuple(Var(f"{each.name}{number}", each.dtype) for each in vars)
        for vars in (combiner.lhs, combiner.rhs)
    )
    values: dict[Var, PrimExpr] = dict(
        zip((*combiner.lhs, *combiner.rhs), (*lhs, *rhs), strict=True)
    )
    result = tuple(substitute(each, values) for each in combiner.result)
    return CommReducer(lhs, rhs, result, combiner.identity)
