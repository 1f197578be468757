"""Splits products by the variables of their factors, to take common factors out of sums.

::

    sum(dy[i, k] * w[k] * (rsqrt(v[i]) / n), k)    ->    sum(dy[i, k] * w[k], k) * (rsqrt(v[i]) / n)

The remaining expression is a product or a sum of the usual forms, and has fewer operations. The
same holds for the terms ``a + b`` and ``a - b`` of a minimum or a maximum, whose "factors" are the
terms that are added and subtracted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from minitvm.tir import expr as e
from minitvm.tir.expr import FloatImm, IntImm, PrimExpr, Var
from minitvm.tir.functor import walk_once

Times: TypeAlias = type[e.Mul] | type[e.Add]
"""The operator over which a reducer is distributive: the product for sums."""
Factor: TypeAlias = tuple[PrimExpr, bool]
"""A factor, or a divisor (True); a term that is added, or one that is subtracted."""


def common_factor(value: PrimExpr, variables: Collection[Var]) -> tuple[PrimExpr, PrimExpr]:
    """The part of a product that depends on some variables, and its other factors; 1 if there are
    none, or if there is no such part.

    >>> x, y = Var("x", "float32"), Var("y", "float32")
    >>> common_factor(x * y / 4.0, [x])
    (x, y / 4.0)
    """
    inside, outside = divided(value, variables)
    one = e.const(1, value.dtype)
    if inside is None or outside is None:
        return value, one
    return inside, outside


def divided(
    value: PrimExpr, variables: Collection[Var], times: Times = e.Mul
) -> tuple[PrimExpr | None, PrimExpr | None]:
    """The two parts of a product, or of another operation `times`: the part that depends on some
    variables, and the other part. None for a part without factors.

    >>> x, y = Var("x", "float32"), Var("y", "float32")
    >>> divided(x + y + 4.0, [x], e.Add)
    (x, y + 4.0)
    """
    return _divided(value, set(variables), times)


def _divided(
    node: PrimExpr, variables: set[Var], times: Times
) -> tuple[PrimExpr | None, PrimExpr | None]:
    if variables.isdisjoint(walk_once(node)):
        return None, node
    operands = operands_of(node, times)
    if operands is None:
        return node, None
    a, b, is_inverse = operands
    (a_in, a_out), (b_in, b_out) = (_divided(x, variables, times) for x in (a, b))
    return _both(a_in, b_in, times, is_inverse), _both(a_out, b_out, times, is_inverse)


def _both(
    a: PrimExpr | None, b: PrimExpr | None, times: Times, is_inverse: bool
) -> PrimExpr | None:
    if b is None:
        return a
    if times is e.Mul:
        if is_inverse:
            return (e.const(1, b.dtype) if a is None else a) / b
        return b if a is None else product(a, b)
    if a is None:
        return -b if is_inverse else b
    return e.subtract(a, b) if is_inverse else e.add(a, b)


def operands_of(node: PrimExpr, times: Times) -> tuple[PrimExpr, PrimExpr, bool] | None:
    """The operands of a product or a quotient, and whether it is a quotient; or those of a sum or a
    difference. None for any other expression."""
    inverse = e.Div if times is e.Mul else e.Sub
    if isinstance(node, times) or (isinstance(node, inverse) and node.dtype.is_float):
        assert isinstance(node, e.Arithmetic)
        return node.a, node.b, isinstance(node, inverse)
    return None


def factors_in(node: PrimExpr, times: Times, inverted: bool = False) -> Iterator[Factor]:
    """The factors that :func:`divided` tells apart."""
    operands = operands_of(node, times)
    if operands is None:
        yield node, inverted
    else:
        a, b, is_inverse = operands
        yield from factors_in(a, times, inverted)
        yield from factors_in(b, times, inverted != is_inverse)


def product(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """``a * b``; a factor 1 vanishes."""
    if number(a) == 1:
        return e.cast(e.promoted(a.dtype, b.dtype), b)
    if number(b) == 1:
        return e.cast(e.promoted(a.dtype, b.dtype), a)
    if number(a) == -1:
        return -b
    return -a if number(b) == -1 else e.multiply(a, b)


def number(x: PrimExpr) -> float | None:
    """The value of a constant."""
    return x.value if isinstance(x, IntImm | FloatImm) else None
