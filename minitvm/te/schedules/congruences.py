"""Rewrites reductions with a condition on a remainder: their axes run over just these terms.

The condition is solved for a reduction axis, whose coefficient has an inverse modulo the divisor::

    sum(x[k], k in (0, n), where=(i - k) % 2 == 0)
    sum(x[2 * j + i % 2], j in (0, (n + 1) // 2), where=2 * j + i % 2 < n)
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.guards import conjuncts
from minitvm.arith.linear import Affine
from minitvm.runtime.record import record
from minitvm.te.tensor import domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Range, Reduce, Var, const, const_int
from minitvm.tir.functor import Mutator, mentions, substitute
from minitvm.tir.op import all as all_of


def without_congruences(reduce: Reduce, known: Analyzer) -> Reduce:
    """A reduction without conditions on remainders of its axes; `known` are the ranges of all axes,
    and learns the ranges of new axes."""
    for condition in [*conjuncts(reduce.condition)]:
        found = _congruence_of(condition, reduce, known)
        if found is not None:
            reduce = _solved(reduce, found, known)
    return reduce


def least_solution(by: int, value: PrimExpr, divisor: int) -> PrimExpr:
    """The least `k` from 0 on with ``by * k % divisor == value % divisor``; `by` and `divisor` are
    coprime.

    >>> least_solution(3, Var("i"), 4)
    i % 4 * 3 % 4
    """
    remainder = e.floormod(value if by > 0 else value * -1, divisor)
    inverse = pow(abs(by), -1, divisor)
    return remainder if inverse == 1 else e.floormod(remainder * inverse, divisor)


@final
@record()
class _Congruence:
    """``(by * axis + rest) % divisor == remainder``, a condition of a reduction."""

    condition: PrimExpr
    axis: IterVar
    by: int
    rest: Affine
    divisor: int
    remainder: int


def _congruence_of(condition: PrimExpr, reduce: Reduce, known: Analyzer) -> _Congruence | None:
    """A condition that can be solved for an axis, the longest one."""
    if not isinstance(condition, e.EQ) or not isinstance(condition.a, e.FloorMod):
        return None
    divisor, remainder = const_int(condition.a.b), const_int(condition.b)
    if divisor is None or remainder is None or not 0 <= remainder < divisor:
        return None
    form = known.affine(condition.a.a)
    for axis in sorted(reduce.axis, key=lambda each: -(const_int(domain_of(each).extent) or 0)):
        by = form.terms.get(axis.var, 0)
        rest = Affine(
            {atom: c for atom, c in form.terms.items() if atom is not axis.var}, form.constant
        )
        if gcd(by, divisor) == 1 and not any(mentions(axis.var, atom) for atom in rest.terms):
            return _Congruence(condition, axis, by, rest, divisor, remainder)
    return None


def _solved(reduce: Reduce, found: _Congruence, known: Analyzer) -> Reduce:
    """The reduction over the terms for which the condition holds."""
    dom, dtype, divisor = domain_of(found.axis), found.axis.var.dtype, found.divisor
    var = Var(found.axis.var.name, dtype, axis=True)
    extent = known.simplify(e.floordiv(dom.extent + (divisor - 1), divisor))
    step = IterVar(Range(const(0, extent.dtype), extent), var, found.axis.iter_type)
    known.bind(var, domain_of(step))
    wanted = known.expression(-found.rest + found.remainder, dtype) - dom.min * found.by
    place = known.simplify(var * divisor + least_solution(found.by, wanted, divisor))
    changed = replace(
        reduce,
        axis=tuple(step if each is found.axis else each for each in reduce.axis),
        condition=all_of(
            True, *(x for x in conjuncts(reduce.condition) if x is not found.condition)
        ),
    )
    if abs(found.by) == 1:
        whole = known.simplify((var - e.floordiv(wanted * found.by, divisor)) * found.by)
        changed = cast(Reduce, _Quotients(found, known, whole).expr(changed))
    made = cast(Reduce, substitute(changed, {found.axis.var: place + dom.min}))
    inside = known.simplify(place < dom.extent)
    return replace(made, condition=e.logical_and(made.condition, inside))


class _Quotients(Mutator):
    """Replaces the quotient of the place in a congruence, ``(i - k) // 2``, by its value."""

    def __init__(self, found: _Congruence, known: Analyzer, whole: PrimExpr) -> None:
        super().__init__()
        self._form = found.rest + Affine({found.axis.var: found.by})
        self._divisor = found.divisor
        self._known = known
        self._whole = whole

    def visit_FloorDiv(self, node: e.FloorDiv) -> PrimExpr:
        same = const_int(node.b) == self._divisor and self._known.affine(node.a).same_as(self._form)
        return e.cast(node.dtype, self._whole) if same else self.descend(node)
