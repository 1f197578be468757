"""Proves properties of a reducer's combination: that it is commutative, chooses an operand, or is
an operator on its operands.

The result of a combination depends on which operand is greater, component by component. For every
order of the components the combination is brought into a normal form, in which equal expressions
look equal. NaN has no order, and is left out.

Some combinations are commutative for the operands that occur, and not for all: that of the means
and counts of two parts isn't where a count is between 0 and 1. These are tried instead, exactly,
on combinations of a few terms of small numbers, among which many are equal, and of numbers near
those that the combination names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import reduce as folded
from itertools import product
from operator import add, and_, eq, ge, gt, le, lt, mul, ne, or_, sub
from typing import TYPE_CHECKING, TypeAlias

from minitvm.tir import expr as e
from minitvm.tir.expr import CommReducer, PrimExpr, Reduce, Var
from minitvm.tir.functor import children, find

if TYPE_CHECKING:
    from fractions import Fraction

_Form: TypeAlias = Hashable
_LESS, _EQUAL, _GREATER = -1, 0, 1
# The signs of `a - b` for which a comparison holds, or the first operand is taken.
_HOLDS: Mapping[type, tuple[int, ...]] = {
    e.LT: (_LESS,), e.LE: (_LESS, _EQUAL), e.EQ: (_EQUAL,),
    e.NE: (_LESS, _GREATER), e.GE: (_EQUAL, _GREATER), e.GT: (_GREATER,),
    e.Min: (_LESS, _EQUAL), e.Max: (_EQUAL, _GREATER),
}  # fmt: skip
_Number: TypeAlias = "int | Fraction"
_TRIALS = 60
_FEW = range(-2, 4)  # numbers of a trial
_EXACT: Mapping[type, Callable[[_Number, _Number], _Number]] = {
    e.Add: add, e.Sub: sub, e.Mul: mul, e.Min: min, e.Max: max, e.LT: lt, e.LE: le, e.GT: gt,
    e.GE: ge, e.EQ: eq, e.NE: ne, e.And: and_, e.Or: or_,
}  # fmt: skip
_SYMMETRIC = (e.Add, e.Mul, e.Min, e.Max, e.And, e.Or, e.EQ, e.NE)


def is_commutative(combiner: CommReducer) -> bool:
    """Whether the operands of a combination can be exchanged.

    >>> from minitvm import te
    >>> A, k = te.placeholder((4,), name="A"), te.reduce_axis((0, 4), name="k")
    >>> second = te.comm_reducer(lambda a, b: b, lambda dtype: te.const(0, dtype), name="second")
    >>> [is_commutative(f(A[k], axis=k).combiner) for f in (te.sum, te.max, second)]
    [True, True, False]
    """
    return all(
        _forms(combiner, order, False) == _forms(combiner, order, True)
        for order in product((_LESS, _EQUAL, _GREATER), repeat=len(combiner.lhs))
    )


def can_exchange_terms(reduce: Reduce) -> bool:
    """Whether the terms of a reduction may be combined in any order: its combination is proved to
    be commutative, or is so, and associative, in all trials. Trials are for numbers that arithmetic
    and choices make of the operands; other functions are not tried.

    >>> from minitvm import te
    >>> A, k = te.placeholder((4,), name="A"), te.reduce_axis((0, 4), name="k")
    >>> means = te.comm_reducer(
    ...     lambda a, b: (a[0] + b[0], a[1] + (b[1] - a[1]) * b[0] / te.max(a[0] + b[0], 1.0)),
    ...     lambda n, m: (te.const(0, n), te.const(0, m)), name="means")
    >>> can_exchange_terms(means((te.const(1.0), A[k]), axis=k)[0])
    True
    """
    return is_commutative(reduce.combiner) or _passes_trials(reduce)


def is_operator(combiner: CommReducer, *nodes: type[e.BinaryOp]) -> bool:
    """Whether each result is an operator, of one of the classes `nodes`, on both of its operands.

    >>> from minitvm import te
    >>> A, k = te.placeholder((4,), name="A"), te.reduce_axis((0, 4), name="k")
    >>> far = te.comm_reducer(lambda a, b: abs(a) + abs(b), lambda dtype: te.const(0, dtype))
    >>> [is_operator(f(A[k], axis=k).combiner, e.Add) for f in (te.sum, te.max, far)]
    [True, False, False]
    """
    return all(
        isinstance(result, nodes) and {result.a, result.b} == {a, b}
        for result, a, b in zip(combiner.result, combiner.lhs, combiner.rhs, strict=True)
    )


def is_choice(combiner: CommReducer) -> bool:
    """Whether a combination is always one of its operands, with all its components."""
    sides = [tuple((name, i) for i in range(len(combiner.lhs))) for name in "ab"]
    for order in product((_LESS, _EQUAL, _GREATER), repeat=len(combiner.lhs)):
        made = _forms(combiner, order, False)
        named = [[_named(order, each) for each in side] for side in sides]
        if list(made) not in named:
            return False
    return True


def plain_extremum(combiner: CommReducer) -> CommReducer:
    """A combination that chooses the lesser or the greater of two integers, as `Min` or `Max`; any
    other combination unchanged.

    >>> from minitvm import te
    >>> A, k = te.placeholder((4,), "int8", name="A"), te.reduce_axis((0, 4), name="k")
    >>> larger = te.comm_reducer(lambda a, b: te.if_then_else(a < b, b, a), te.min_value)
    >>> plain_extremum(larger(A[k], axis=k).combiner).result
    (max(a, b),)
    """
    if len(combiner.result) > 1 or not combiner.result[0].dtype.is_integral:
        return combiner
    for operator in (e.Min, e.Max):
        made = replace(combiner, result=(operator(*combiner.lhs, *combiner.rhs),))
        orders = product((_LESS, _EQUAL, _GREATER))
        if all(_forms(made, each, False) == _forms(combiner, each, False) for each in orders):
            return made
    return combiner


def _passes_trials(reduce: Reduce) -> bool:
    from random import Random  # slow to load, and rarely needed

    combiner, random = reduce.combiner, Random(0)

    def combined(a: tuple[_Number, ...], b: tuple[_Number, ...]) -> tuple[_Number, ...]:
        values = dict(zip((*combiner.lhs, *combiner.rhs), (*a, *b), strict=True))
        return tuple(_value(each, values) for each in combiner.result)

    def term() -> tuple[_Number, ...]:
        return tuple(
            _value(each, {}) if isinstance(each, e.IntImm | e.FloatImm)
            else random.choice(range(2) if each.dtype.is_bool else numbers)
            for each in reduce.source
        )  # fmt: skip

    try:
        named = {int(_value(each, {})) for each in find((e.IntImm, e.FloatImm), *combiner.result)}
        numbers = [*_FEW, *(number + step for number in sorted(named) for step in range(-2, 3))]
        nothing = tuple(_value(each, {}) for each in combiner.identity)
        for _ in range(_TRIALS):
            a, b, c = (
                folded(combined, [term() for _ in range(random.randint(1, 3))]) for _ in range(3)
            )
            if combined(a, b) != combined(b, a) or combined(a, nothing) != a:
                return False
            if combined(combined(a, b), c) != combined(a, combined(b, c)):
                return False
        if combined(nothing, nothing) != nothing:
            return False
    except (_UntriedError, ZeroDivisionError, OverflowError, ValueError):  # or no finite number
        return False
    return True


class _UntriedError(Exception):
    """An expression of another function than those of trials."""


def _value(node: PrimExpr, values: Mapping[Var, _Number]) -> _Number:
    """The exact value of an expression."""
    from fractions import Fraction  # slow to load, and rarely needed

    if isinstance(node, Var) and node in values:
        return values[node]
    if isinstance(node, e.IntImm | e.FloatImm):
        return Fraction(node.value) if node.dtype.is_float else int(node.value)
    match node, [*children(node)]:
        case ((e.Select() | e.Call(op="if_then_else")), [condition, a, b]):
            return _value(a if _value(condition, values) else b, values)
        case e.Not(), [a]:
            return not _value(a, values)
        case e.Cast(), [a] if node.dtype.is_float:
            return Fraction(_value(a, values))
        case e.Div(), [a, b] if node.dtype.is_float:
            return Fraction(_value(a, values)) / Fraction(_value(b, values))
        case _, [a, b] if type(node) in _EXACT:
            return _EXACT[type(node)](_value(a, values), _value(b, values))
    raise _UntriedError


def _named(order: tuple[int, ...], component: tuple[str, int]) -> _Form:
    """A component of an operand; if both operands have the same value there, the component of the
    first."""
    name, i = component
    return ("a", i) if order[i] == _EQUAL else (name, i)


def _forms(combiner: CommReducer, order: tuple[int, ...], exchanged: bool) -> tuple[_Form, ...]:
    """The forms of the results for one order of the components: `order` tells for each component
    whether the first operand is less, equal or greater. `exchanged`: the operands are exchanged."""
    first, second = ("b", "a") if exchanged else ("a", "b")
    names = {var: (first, i) for i, var in enumerate(combiner.lhs)}
    names |= {var: (second, i) for i, var in enumerate(combiner.rhs)}
    return tuple(_form(each, names, order) for each in combiner.result)


def _form(node: PrimExpr, names: Mapping[Var, tuple[str, int]], order: tuple[int, ...]) -> _Form:
    if isinstance(node, Var):
        return _named(order, names[node]) if node in names else id(node)
    if isinstance(node, (e.IntImm, e.FloatImm)):
        return type(node).__name__, str(node.dtype), str(node.value)
    parts = [_form(each, names, order) for each in children(node)]
    match node, parts:
        case ((e.LT() | e.LE() | e.GT() | e.GE() | e.EQ() | e.NE() | e.Min() | e.Max()), [a, b]):
            sign = _sign(a, b, order)
            if sign is not None:
                holds = sign in _HOLDS[type(node)]
                return (a if holds else b) if isinstance(node, (e.Min, e.Max)) else holds
        case ((e.And() | e.Or()), [a, b]):
            decides = isinstance(node, e.Or)
            if a is decides or b is decides:
                return decides
            if isinstance(a, bool) or isinstance(b, bool):
                return b if isinstance(a, bool) else a
        case e.Not(), [bool() as condition]:
            return not condition
        case ((e.Select() | e.Call(op="if_then_else")), [bool() as condition, a, b]):
            return a if condition else b
    if isinstance(node, _SYMMETRIC):
        parts.sort(key=repr)
    name = getattr(node, "op", None) or id(getattr(node, "producer", None))
    return type(node).__name__, name, str(node.dtype), *parts


def _sign(a: _Form, b: _Form, order: tuple[int, ...]) -> int | None:
    """The order of two operands' components of one index; None for any other pair."""
    if a == b and a in {(side, i) for side in "ab" for i in range(len(order))}:
        return _EQUAL
    for i, sign in enumerate(order):
        if (a, b) == (("a", i), ("b", i)):
            return sign
        if (a, b) == (("b", i), ("a", i)):
            return -sign
    return None
