"""Leaves out the terms of reductions that conditions on axes make neutral: 0 in a sum, infinity in
a minimum, minus infinity in a maximum.

::

    C[i, j] = sum(if_then_else(k <= i, A[i, k], 0) * B[k, j], k)

    C[i, j] = sum(A[i, k] * B[k, j], k, where=k <= i)

A factor may be read from other stages. The weights of a softmax under a mask are an example: each
is 0 where its score is minus infinity::

    S[i, k] = if_then_else(k <= i, X[i, k], -inf)
    E[i, k] = exp(S[i, k] - M[i])
    C[i, j] = sum(E[i, k] * B[k, j], k)            # where=k <= i
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.guards import conjuncts
from minitvm.runtime.record import record
from minitvm.te.schedules.factors import number
from minitvm.te.schedules.hoist_values import is_defined
from minitvm.te.schedules.rewrite_operations import choice_of
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import Mutator, contains, substitute, walk_once
from minitvm.tir.op import all as all_of
from minitvm.tir.structural_equal import structural_equal

_INFINITY = float("inf")
_DEEPEST = 16  # stages and operations between a sum and a choice


@final
@record()
class _Zero:
    """A value is neutral where `condition` fails, since it is not `chosen` there. `by_exp`: as the
    exponential of minus infinity, unless something that isn't finite is added to this."""

    condition: PrimExpr
    chosen: PrimExpr
    by_exp: bool = False


def without_zero_terms(op: ComputeOp) -> ComputeOp | None:
    """A sum, minimum or maximum of numbers with the conditions on axes under which its terms aren't
    neutral; None where there are no such conditions.

    Terms that are 0 times NaN or infinity, or a sum of infinities, are left out, too. An
    exponential of minus infinity counts as 0 in sums that surely have other terms: where a NaN or
    an infinity is added to minus infinity, it is added to them, too.

    >>> from minitvm import te
    >>> A, B = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    >>> k = te.reduce_axis((0, 8), name="k")
    >>> L = lambda i, k: te.if_then_else(k <= i, A[i, k], 0.0)
    >>> C = te.compute((8, 8), lambda i, j: te.sum(L(i, k) * B[k, j], axis=k), name="C")
    >>> print(without_zero_terms(C.op).body[0])
    sum(A[i, k] * B[k, j], axis=[k], where=k <= i)
    """
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or len(op.body) > 1:
        return None
    neutral = _neutral(reduce)
    if neutral is None:
        return None
    zeros = (
        _zeros(reduce.source[0], _DEEPEST)
        if neutral == 0
        else _infinite(reduce.source[0], _DEEPEST, neutral)
    )
    known = [*conjuncts(reduce.condition)]
    found = list[PrimExpr]()
    for zero in zeros:
        each = zero.condition
        if any(structural_equal(each, x) for x in (*known, *found)) or not _is_of(op, each):
            continue
        has_terms = not zero.by_exp or _has_terms(op, [*known, *found, each])
        if has_terms and is_defined(op, zero.chosen):  # without elements that the condition guards
            found.append(each)
    if not found:
        return None
    source = _Chosen([*known, *found], neutral).expr(reduce.source[0])
    made = replace(reduce, source=(source,), condition=all_of(True, *known, *found))
    return replace(op, body=(made,))


def _neutral(reduce: Reduce) -> float | None:
    """The number that changes no sum, minimum or maximum; None for another reduction."""
    (result,), (identity,) = reduce.combiner.result, reduce.combiner.identity
    if not is_operator(reduce.combiner, e.Add, e.Min, e.Max):
        return None
    neutral = 0.0
    if not isinstance(result, e.Add):
        neutral = _INFINITY if isinstance(result, e.Min) else -_INFINITY
    return neutral if number(identity) == neutral else None


def _is_of(op: ComputeOp, condition: PrimExpr) -> bool:
    """Whether a condition compares a reduction axis, without remainders and data."""
    own = {axis.var for axis in op.reduce_axis}
    others = (ProducerLoad, e.Call, e.FloorDiv, e.FloorMod, e.Div, e.Mod)
    is_plain = isinstance(condition, e.Comparison) and not contains(others, condition)
    return is_plain and not own.isdisjoint(walk_once(condition))


def _zeros(value: PrimExpr, depth: int) -> Iterator[_Zero]:
    """Conditions on a value. Where one of them fails, the value is 0."""
    if not depth:
        return
    match value:
        case e.Mul():
            yield from _zeros(value.a, depth - 1)
            yield from _zeros(value.b, depth - 1)
        case e.Div():
            yield from _zeros(value.a, depth - 1)
        case e.Cast() if not value.value.dtype.is_bool:
            yield from _zeros(value.value, depth - 1)
        case e.Cast():
            yield from (_Zero(each, value) for each in conjuncts(value.value))
        case e.Call(op="exp" | "exp2"):
            exponents = _infinite(value.args[0], depth - 1, -_INFINITY)
            yield from (replace(each, by_exp=True) for each in exponents)
        case ProducerLoad():
            inner = _definition(value)
            if inner is not None:
                yield from _zeros(inner, depth - 1)
        case _:
            yield from _choices(value, 0.0)


def _infinite(value: PrimExpr, depth: int, infinity: float) -> Iterator[_Zero]:
    """Conditions on a value. Where one of them fails, the value is an infinity."""
    if not depth:
        return
    match value:
        case e.Add() | e.Sub():
            yield from _infinite(value.a, depth - 1, infinity)
            if isinstance(value, e.Add):
                yield from _infinite(value.b, depth - 1, infinity)
        case e.Mul() | e.Div():
            sides = (value.a, value.b), (value.b, value.a)
            for side, other in sides[: 1 if isinstance(value, e.Div) else 2]:
                if isinstance(other, e.FloatImm) and other.value > 0:
                    yield from _infinite(side, depth - 1, infinity)
        case e.Cast() if value.value.dtype.is_float:
            yield from _infinite(value.value, depth - 1, infinity)
        case ProducerLoad():
            inner = _definition(value)
            if inner is not None:
                yield from _infinite(inner, depth - 1, infinity)
        case _:
            yield from _choices(value, infinity)


def _choices(value: PrimExpr, nothing: float) -> Iterator[_Zero]:
    """Conditions of a choice. Where one of them fails, the choice is `nothing`."""
    condition, chosen, other = choice_of(value) or (None, None, None)
    if condition is None or chosen is None or other is None:
        return
    if number(other) == nothing:
        yield from (_Zero(each, chosen) for each in conjuncts(condition))
        yield from _choices(chosen, nothing)
    elif number(chosen) == nothing and isinstance(condition, e.Comparison):
        yield _Zero(Analyzer().simplify(e.logical_not(condition)), other)
        yield from _choices(other, nothing)


def _definition(load: ProducerLoad) -> PrimExpr | None:
    """The expression of an element that another stage computes without a reduction."""
    op = getattr(load.producer, "op", None)
    if not isinstance(op, ComputeOp) or len(op.body) > 1 or isinstance(op.body[0], Reduce):
        return None
    at = zip(op.axis, load.indices, strict=True)
    return substitute(op.body[0], {axis.var: index for axis, index in at})


def _has_terms(op: ComputeOp, conditions: Iterable[PrimExpr]) -> bool:
    """Whether each sum has a term: at the first or the last step, or where a step has the number of
    its result along an axis."""
    known = Analyzer()
    for axis in op.axis:
        known.bind(axis.var, domain_of(axis))
    listed = [*conditions]

    def ends(axis: IterVar) -> tuple[PrimExpr, PrimExpr]:
        dom = domain_of(axis)
        return dom.min, dom.min + dom.extent - 1

    def holds(places: dict[Var, PrimExpr]) -> bool:
        within = [
            part
            for axis in op.reduce_axis
            for part in (places[axis.var] >= ends(axis)[0], places[axis.var] <= ends(axis)[1])
        ]
        return all(known.can_prove(each) for each in within) and all(
            known.can_prove(substitute(each, places)) for each in listed
        )

    first = {axis.var: ends(axis)[0] for axis in op.reduce_axis}
    last = {axis.var: ends(axis)[1] for axis in op.reduce_axis}
    same = [
        {**first, step.var: result.var}
        for step in op.reduce_axis
        for result in op.axis
        if step.var.dtype == result.var.dtype
    ]
    return any(holds(places) for places in (first, last, *same))


@final
class _Chosen(Mutator):
    """Replaces choices between a value and a neutral one by the value, where their conditions
    hold."""

    def __init__(self, held: Iterable[PrimExpr], neutral: float) -> None:
        super().__init__()
        self._held, self._neutral = [*held], neutral
        self._around = (e.Mul, e.Div, e.Cast) if neutral == 0 else (e.Add, e.Sub)

    def expr(self, node: PrimExpr) -> PrimExpr:
        choice = choice_of(node)
        if choice is not None and number(choice[2]) == self._neutral and self._all_hold(choice[0]):
            return self.expr(choice[1])
        return super().expr(node) if isinstance(node, self._around) else node

    def _all_hold(self, condition: PrimExpr) -> bool:
        return all(any(structural_equal(x, y) for y in self._held) for x in conjuncts(condition))
