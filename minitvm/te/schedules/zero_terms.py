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

A condition on a remainder, as in an image with zeros between its elements, leaves out most terms.
Then the factor is computed where it is read, under its other conditions::

    D[y] = if_then_else(y >= 1 and y % 2 == 0, X[y // 2], 0)
    C[i] = sum(D[i + r] * W[r], r)

    C[i] = sum(if_then_else(i + r >= 1, X[(i + r) // 2], 0) * W[r], r, where=(i + r) % 2 == 0)
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
from minitvm.te.schedules.simplify_operations import named_result
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import Mutator, contains, substitute, walk_once
from minitvm.tir.op import all as all_of
from minitvm.tir.op import if_then_else
from minitvm.tir.structural_equal import structural_equal

_INFINITY = float("inf")
_DEEPEST = 16  # stages and operations between a sum and a choice


@final
@record()
class _Zero:
    """A value is neutral where `condition` fails, since it is not `chosen` there. `by_exp`: as the
    exponential of minus infinity, unless something that isn't finite is added to this. `under`: the
    conditions that stay where the value is computed."""

    condition: PrimExpr
    chosen: PrimExpr
    by_exp: bool = False
    under: tuple[PrimExpr, ...] = ()


def without_zero_terms(op: ComputeOp) -> ComputeOp | None:
    """A sum, minimum or maximum of numbers with the conditions on axes under which its terms aren't
    neutral, or else those that name the result of each term; None where there are no such
    conditions.

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
    spread = _with_choices(reduce.source[0])
    made = None if spread is reduce.source[0] else _without(op, reduce, spread)
    if made is not None and any(_is_congruence_of(op, x) for x in conjuncts(made.condition)):
        return replace(op, body=(made,))
    made = _without(op, reduce, reduce.source[0])
    return None if made is None else replace(op, body=(made,))


def _without(op: ComputeOp, reduce: Reduce, source: PrimExpr) -> Reduce | None:
    """The reduction of a source, with its terms, without the terms that are neutral."""
    neutral = _neutral(reduce)
    if neutral is None:
        return None
    zeros = _zeros(source, _DEEPEST) if neutral == 0 else _infinite(source, _DEEPEST, neutral)
    known = [*conjuncts(reduce.condition)]
    found, naming = list[PrimExpr](), list[PrimExpr]()
    for zero in zeros:
        each = zero.condition
        if _is_any(each, (*known, *found, *naming)):
            continue
        is_of_axes = _is_of(op, each) or _is_congruence_of(op, each)
        if not is_of_axes and named_result(op, each) is None:
            continue
        has_terms = not zero.by_exp or _has_terms(op, [*known, *found, each])
        if has_terms and is_defined(op, zero.chosen, zero.under):
            # Without elements that the condition guards.
            (found if is_of_axes else naming).append(each)
    found = found or naming
    if not found:
        return None
    kept = _Chosen([*known, *found], neutral).expr(source)
    return replace(reduce, source=(kept,), condition=all_of(True, *known, *found))


def without_spread_factors(value: PrimExpr) -> tuple[PrimExpr, list[PrimExpr]]:
    """A product without the conditions of factors that are 0 except at some remainders of a place,
    as elements with zeros between them; and these conditions. Where one fails, the product is 0.

    >>> from minitvm import te
    >>> X, i = te.placeholder((8,), name="X"), te.var("i")
    >>> without_spread_factors(te.if_then_else(i % 2 == 0, X[i // 2], 0.0) * 3.0)
    (X[i // 2] * 3.0, [i % 2 == 0])
    """
    match value:
        case e.Mul(a, b):
            (x, first), (y, second) = without_spread_factors(a), without_spread_factors(b)
            return (e.Mul(x, y), [*first, *second]) if first or second else (value, [])
        case e.Cast(dtype, inner) if inner.dtype.is_float:
            x, found = without_spread_factors(inner)
            return (e.Cast(dtype, x), found) if found else (value, [])
    conditions, element = _moved(value)
    return (element, conditions) if any(map(_is_congruence, conditions)) else (value, [])


def _with_choices(value: PrimExpr) -> PrimExpr:
    """A product in which a factor that other stages move, with zeros between its elements, is a
    choice between an element and 0."""
    match value:
        case e.Mul(a, b):
            x, y = _with_choices(a), _with_choices(b)
            return value if x is a and y is b else e.Mul(x, y)
        case e.Div(a, b):
            x = _with_choices(a)
            return value if x is a else e.Div(x, b)
        case e.Cast(dtype, inner):
            x = _with_choices(inner)
            return value if x is inner else e.Cast(dtype, x)
    conditions, element = _moved(value)
    if not isinstance(value, ProducerLoad) or not any(map(_is_congruence, conditions)):
        return value
    chosen: PrimExpr = if_then_else(all_of(True, *conditions), element, e.const(0, value.dtype))
    return chosen


def _moved(value: PrimExpr) -> tuple[list[PrimExpr], PrimExpr]:
    """The conditions under which a value is an element that stages only move, or is chosen where it
    is read; it is 0 elsewhere. And the element."""
    conditions = list[PrimExpr]()
    while True:
        inner = _definition(value) if isinstance(value, ProducerLoad) else value
        condition, chosen, other = (None if inner is None else choice_of(inner)) or (None,) * 3
        if condition is None or chosen is None or other is None:
            if not isinstance(inner, ProducerLoad) or inner is value:
                return conditions, value
            value = inner
            continue
        if number(other) != 0 or contains(ProducerLoad, condition):
            return conditions, value
        if not isinstance(chosen, ProducerLoad):
            return conditions, value
        conditions += conjuncts(condition)
        value = chosen


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


def _is_congruence_of(op: ComputeOp, condition: PrimExpr) -> bool:
    """Whether a condition is on a remainder of a place that changes along a reduction axis."""
    own = {axis.var for axis in op.reduce_axis}
    return _is_congruence(condition) and not own.isdisjoint(walk_once(condition))


def _is_congruence(condition: PrimExpr) -> bool:
    match condition:
        case e.EQ(e.FloorMod(place, e.IntImm()), e.IntImm()):
            return not contains((ProducerLoad, e.Call), place)
    return False


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
    condition, chosen, other = _in_order(value, nothing) or (None, None, None)
    if condition is None or chosen is None or other is None or number(other) != nothing:
        return
    conditions = [*conjuncts(condition)]
    kept = tuple(each for each in conditions if not _is_congruence(each))
    for each in conditions:
        yield _Zero(each, chosen, under=kept if _is_congruence(each) else ())
    yield from _choices(chosen, nothing)


def _in_order(value: PrimExpr, nothing: float) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """The condition and the two values of a choice, `nothing` the second one where it is either."""
    choice = choice_of(value)
    if choice is None or number(choice[1]) != nothing or not isinstance(choice[0], e.Comparison):
        return choice
    condition, other, chosen = choice
    return Analyzer().simplify(e.logical_not(condition)), chosen, other


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
    hold. Conditions on remainders vanish alone."""

    def __init__(self, held: Iterable[PrimExpr], neutral: float) -> None:
        super().__init__()
        self._held, self._neutral = [*held], neutral
        self._spread = [each for each in self._held if _is_congruence(each)]
        self._around = (e.Mul, e.Div, e.Cast) if neutral == 0 else (e.Add, e.Sub)

    def expr(self, node: PrimExpr) -> PrimExpr:
        if self._neutral == 0 and not self._spread and (made := self._known(node)) is not None:
            return made
        choice = _in_order(node, self._neutral)
        if choice is None or number(choice[2]) != self._neutral:
            return super().expr(node) if isinstance(node, self._around) else node
        conditions = [*conjuncts(choice[0])]
        if all(_is_any(each, self._held) for each in conditions):
            return self.expr(choice[1])
        left = [each for each in conditions if not _is_any(each, self._spread)]
        if len(left) == len(conditions):
            return node
        return if_then_else(all_of(True, *left), choice[1], choice[2]) if left else choice[1]

    def _known(self, node: PrimExpr) -> PrimExpr | None:
        """A factor that says whether conditions hold, which all do, as 1, and a product with it as
        the other factor; None for any other value. The factor may be an element of a stage."""
        match node:
            case e.Mul(a, b):
                x, y = self.expr(a), self.expr(b)
                if number(x) == 1 and x is not a:
                    return y
                return x if number(y) == 1 and y is not b else None
            case e.Cast(dtype, value) if value.dtype.is_bool:
                is_held = all(_is_any(each, self._held) for each in conjuncts(value))
                return e.const(1, dtype) if is_held else None
            case ProducerLoad():
                inner = _definition(node)
                made = None if inner is None else self._known(inner)
                return made if made is not None and number(made) is not None else None
        return None


def _is_any(condition: PrimExpr, others: Iterable[PrimExpr]) -> bool:
    return any(structural_equal(condition, each) for each in others)
