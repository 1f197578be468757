"""Splits products by the variables of their factors, to take common factors out of sums.

::

    sum(dy[i, k] * w[k] * (rsqrt(v[i]) / n), k)    ->    sum(dy[i, k] * w[k], k) * (rsqrt(v[i]) / n)

The remaining expression is a product or a sum of the usual forms, and has fewer operations. The
same holds for the terms ``a + b`` of a minimum or a maximum, whose "factors" are the terms of the
additions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from minitvm.tir import expr as e
from minitvm.tir.expr import FloatImm, IntImm, PrimExpr, Var
from minitvm.tir.functor import walk_once

Times: TypeAlias = type[e.Mul] | type[e.Add]
"""The operator over which a reducer is distributive: the product for sums."""


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
    if isinstance(node, times):
        (a_in, a_out), (b_in, b_out) = (_divided(x, variables, times) for x in (node.a, node.b))
        return _both(a_in, b_in, times), _both(a_out, b_out, times)
    if times is e.Mul and isinstance(node, e.Div) and node.dtype.is_float:
        a, b = node.a, node.b
        a_in, a_out = _divided(a, variables, times)
        if not variables.isdisjoint(walk_once(b)):
            return (e.const(1, a.dtype) if a_in is None else a_in) / b, a_out
        return a_in, (e.const(1, a.dtype) if a_out is None else a_out) / b
    return node, None


def _both(a: PrimExpr | None, b: PrimExpr | None, times: Times) -> PrimExpr | None:
    if a is None or b is None:
        return b if a is None else a
    return product(a, b) if times is e.Mul else e.add(a, b)


def factors_in(value: PrimExpr, times: Times = e.Mul) -> Iterator[PrimExpr]:
    """The factors and the divisors that :func:`divided` tells apart."""
    is_quotient = times is e.Mul and isinstance(value, e.Div) and value.dtype.is_float
    if isinstance(value, times) or is_quotient:
        assert isinstance(value, e.Mul | e.Add | e.Div)
        yield from factors_in(value.a, times)
        yield from [value.b] if is_quotient else factors_in(value.b, times)
    else:
        yield value


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
