"""The bounds that a condition sets to variables: classic ``tvm.arith.detect_clip_bound``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minitvm.arith.guards import NEGATIONS
from minitvm.arith.intervals import detect_linear_equation, variables_of
from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.tir import expr as e
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import PrimExpr, Var, const_int
from minitvm.tir.functor import walk_once

_Bounds = list[list[PrimExpr | None]]
_SWAPPED = {e.GT: e.LT, e.GE: e.LE}


def detect_clip_bound(expr: Any, var_list: Sequence[Any]) -> list[PrimExpr | None]:
    """The least and the greatest value of each variable where a condition holds: for each its least
    value, then its greatest one, None where the condition sets none. An empty list where a part of
    the condition doesn't compare an expression that is linear in one of the variables.

    >>> a, b = Var("a"), Var("b")
    >>> detect_clip_bound(e.logical_and(a < b * 6, a - 1 > 0), [a])
    [2, b * 6 - 1]
    >>> detect_clip_bound(a < b, [a, b])
    []
    """
    variables = variables_of("detect_clip_bound", var_list)
    condition = e.as_condition(expr)
    bounds: _Bounds = [[None, None] for _ in variables]
    with deep_expressions("detect_clip_bound", condition):
        if not all(_clip(each, variables, bounds) for each in _parts(condition, True)):
            return []
        simple = Simplifier(Prover()).expr
        return [None if each is None else simple(each) for pair in bounds for each in pair]


def _parts(condition: PrimExpr, truth: bool) -> Iterator[PrimExpr]:
    """The comparisons that all hold where `condition` is `truth`; anything else as it is."""
    both = e.And if truth else e.Or
    if isinstance(condition, e.Not):
        yield from _parts(condition.a, not truth)
    elif isinstance(condition, both):
        yield from _parts(condition.a, truth)
        yield from _parts(condition.b, truth)
    elif isinstance(condition, (e.LT, e.LE, e.GT, e.GE)):
        kind: Any = type(condition) if truth else NEGATIONS[type(condition)]
        a, b = condition.a, condition.b
        if kind in _SWAPPED:
            kind, a, b = _SWAPPED[kind], b, a
        # The greater of some is below a bound where each is, and so on.
        for low in (a.a, a.b) if isinstance(a, e.Max) else (a,):
            for high in (b.a, b.b) if isinstance(b, e.Min) else (b,):
                yield kind(low, high)
    else:
        yield condition if truth else e.Not(condition)


def _clip(part: PrimExpr, variables: Sequence[PrimExpr], bounds: _Bounds) -> bool:
    """Notes what a comparison says of the one variable in it; false where it says nothing."""
    if not isinstance(part, e.LT | e.LE | e.EQ) or not part.a.dtype.is_integral:
        return False
    inside = {node for node in walk_once(part) if isinstance(node, Var)}
    found = [position for position, var in enumerate(variables) if var in inside]
    if len(found) != 1:
        return False
    (position,) = found
    # coefficient * variable + rest <= 0
    form = detect_linear_equation(e.subtract(part.a, part.b), [variables[position]])
    coefficient = const_int(form[0]) if form else None
    if not coefficient:
        return False
    rest = form[1] + 1 if isinstance(part, e.LT) else form[1]
    least, greatest = bounds[position]
    if isinstance(part, e.EQ) and abs(coefficient) != 1:
        return False
    if coefficient < 0 or isinstance(part, e.EQ):
        value = _ceil_quotient(rest if coefficient < 0 else -rest, abs(coefficient))
        least = value if least is None else e.maximum(least, value)
    if coefficient > 0 or isinstance(part, e.EQ):
        value = e.floordiv(-rest if coefficient > 0 else rest, abs(coefficient))
        greatest = value if greatest is None else e.minimum(greatest, value)
    bounds[position] = [least, greatest]
    return True


def _ceil_quotient(value: PrimExpr, divisor: int) -> PrimExpr:
    return value if divisor == 1 else e.floordiv(value + (divisor - 1), divisor)
