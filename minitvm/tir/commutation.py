"""Proves properties of a reducer's combination: that it is commutative, chooses an operand, or is
an operator on its operands.

The result of a combination depends on which operand is greater, component by component. For every
order of the components the combination is brought into a normal form, in which equal expressions
look equal. NaN has no order, and is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import product
from typing import TypeAlias

from minitvm.tir import expr as e
from minitvm.tir.expr import CommReducer, PrimExpr, Var
from minitvm.tir.functor import children

_Form: TypeAlias = Hashable
_LESS, _EQUAL, _GREATER = -1, 0, 1
# The signs of `a - b` for which a comparison holds, or the first operand is taken.
_HOLDS: Mapping[type, tuple[int, ...]] = {
    e.LT: (_LESS,), e.LE: (_LESS, _EQUAL), e.EQ: (_EQUAL,),
    e.NE: (_LESS, _GREATER), e.GE: (_EQUAL, _GREATER), e.GT: (_GREATER,),
    e.Min: (_LESS, _EQUAL), e.Max: (_EQUAL, _GREATER),
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
