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
from minitvm.tir.functor import find

_Bounds = list[list[PrimExpr | None]]
_SWAPPED = {e.GT: e.LT, e.GE: e.LE}


def detect_clip_bound(expr: Any, var_list: Sequence[Any]) -> list[PrimExpr | None]:
    """The bounds that a condition sets to variables: for each variable its least value, then its
    greatest value, None where the condition sets no such bound. The list is empty if a part of the
    condition isn't a comparison that is linear in one of the variables.

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
    """The comparisons that all hold where `condition` is `truth`; parts that aren't comparisons
    stay as they are."""
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
        # A maximum is below a bound where each operand is, and so on.
        for low in (a.a, a.b) if isinstance(a, e.Max) else (a,):
            for high in (b.a, b.b) if isinstance(b, e.Min) else (b,):
                yield kind(low, high)
    else:
        yield condition if truth else e.Not(condition)


def _clip(part: PrimExpr, variables: Sequence[PrimExpr], bounds: _Bounds) -> bool:
    """Notes the bound that a comparison sets to the one variable in it; False where it sets
    none."""
    if not isinstance(part, e.LT | e.LE | e.EQ) or not part.a.dtype.is_integral:
        return False
    inside = set(find(Var, part))
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
