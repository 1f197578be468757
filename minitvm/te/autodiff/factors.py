"""Factors that all terms of a sum have in common.

::

    sum(dy[i, k] * w[k] * (rsqrt(v[i]) / n), k)    ->    sum(dy[i, k] * w[k], k) * (rsqrt(v[i]) / n)

What is left is a product or a sum of the usual forms, and has fewer operations.
"""

from __future__ import annotations

from collections.abc import Collection

from minitvm.te.autodiff.functions import product
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import walk_once


def common_factor(value: PrimExpr, variables: Collection[Var]) -> tuple[PrimExpr, PrimExpr]:
    """The part of a product that depends on some variables, and its other factors; 1 if there are
    none, or if there is no such part.

    >>> x, y = Var("x", "float32"), Var("y", "float32")
    >>> common_factor(x * y / 4.0, [x])
    (x, y / 4.0)
    """
    inside, outside = _divided(value, set(variables))
    one = e.const(1, value.dtype)
    if inside is None or outside is None:
        return value, one
    return inside, outside


def _divided(node: PrimExpr, variables: set[Var]) -> tuple[PrimExpr | None, PrimExpr | None]:
    """The two parts of a product; None for the number 1."""
    if variables.isdisjoint(walk_once(node)):
        return None, node
    match node:
        case e.Mul(a, b):
            (a_in, a_out), (b_in, b_out) = _divided(a, variables), _divided(b, variables)
            return _times(a_in, b_in), _times(a_out, b_out)
        case e.Div(a, b) if node.dtype.is_float:
            (a_in, a_out), b_depends = (
                _divided(a, variables),
                not variables.isdisjoint(walk_once(b)),
            )
            if b_depends:
                return (e.const(1, a.dtype) if a_in is None else a_in) / b, a_out
            return a_in, (e.const(1, a.dtype) if a_out is None else a_out) / b
    return node, None


def _times(a: PrimExpr | None, b: PrimExpr | None) -> PrimExpr | None:
    if a is None or b is None:
        return b if a is None else a
    return product(a, b)
