"""Expressions of floats as products: a number times powers of factors.

::

    2 * x[i] / (y[i] * x[i])    ->    2 * y[i]^-1
    a / s - b / s               ->    s^-1 * (a - b)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import final

from minitvm.arith.atoms import structural_key
from minitvm.runtime.record import record
from minitvm.te.autodiff.functions import number
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr


@final
@record()
class Product:
    """A number times powers of factors, each under the key of its structure.

    Attributes
    ----------
    number
        The number.
    powers
        The factors, none of them a number, with their powers, none of them 0.
    """

    number: float
    powers: Mapping[Hashable, tuple[PrimExpr, int]]

    def times(self, other: Product, sign: int = 1) -> Product:
        """This product times a power, 1 or -1, of another one."""
        powers = dict(self.powers)
        for key, (factor, power) in other.powers.items():
            total = powers.pop(key, (factor, 0))[1] + sign * power
            if total:
                powers[key] = factor, total
        by = other.number if sign > 0 else 1.0 / other.number
        return Product(self.number * by, powers)

    def divides(self, other: Product) -> bool:
        """Whether the other product has all factors of this one."""
        return all(
            0 < abs(power) <= abs(theirs) and (power > 0) is (theirs > 0)
            for key, (_, power) in self.powers.items()
            for theirs in (other.powers.get(key, (None, 0))[1],)
        )

    def value(self, like: PrimExpr) -> PrimExpr:
        """The product as an expression of the dtype of `like`."""
        factors = [x for x, power in self.powers.values() for _ in range(power)]
        divisors = [x for x, power in self.powers.values() for _ in range(-power)]
        if self.number != 1 or not factors:
            factors.append(e.const(self.number, like.dtype))
        made = functools.reduce(operator.mul, factors)
        return made / functools.reduce(operator.mul, divisors) if divisors else made


@final
class Products:
    """Expressions as products. Each node is examined once, however many nodes share it."""

    def __init__(self) -> None:
        self._made: dict[PrimExpr, Product] = {}

    def of(self, node: PrimExpr) -> Product:
        """An expression of floats as a product. Of a sum, the factors that all terms have in common
        are factors, and the rest is one."""
        made = self._made.get(node)
        if made is None:
            made = self._made[node] = self._of(node)
        return made

    def _of(self, node: PrimExpr) -> Product:
        value = number(node)
        if value is not None:
            return Product(float(value), {}) if value else factor_of(node)
        if isinstance(node, e.Mul):
            return self.of(node.a).times(self.of(node.b))
        if isinstance(node, e.Div):
            return self.of(node.a).times(self.of(node.b), -1)
        if isinstance(node, e.Add | e.Sub):
            terms = self.terms(node)
            common = _common(terms)
            if common.powers:
                rest = sum_of([each.times(common, -1) for each in terms], node)
                return common.times(factor_of(rest))
        return factor_of(node)

    def terms(self, node: PrimExpr) -> list[Product]:
        """The terms of a sum. A sum that several nodes share is written out at one of them."""
        made: list[Product] = []
        seen: set[PrimExpr] = set()
        left = [(node, 1.0)]
        while left:
            each, sign = left.pop()
            if isinstance(each, e.Add | e.Sub) and each not in seen:
                seen.add(each)
                left += [(each.b, sign if isinstance(each, e.Add) else -sign), (each.a, sign)]
            else:
                term = factor_of(each) if each in seen else self.of(each)
                made.append(Product(sign, {}).times(term))
        return made


def factor_of(node: PrimExpr) -> Product:
    return Product(1.0, {structural_key(node): (node, 1)})


def _common(terms: Sequence[Product]) -> Product:
    """The factors that all terms have."""
    first, *others = terms
    powers: dict[Hashable, tuple[PrimExpr, int]] = {}
    for key, (factor, power) in first.powers.items():
        all_powers = [power, *(each.powers.get(key, (factor, 0))[1] for each in others)]
        least = min(all_powers) if power > 0 else max(all_powers)
        if least * power > 0:
            powers[key] = factor, least
    return Product(1.0, powers)


def sum_of(terms: Sequence[Product], like: PrimExpr) -> PrimExpr:
    """The sum of terms; those with a minus are subtracted."""
    total: PrimExpr | None = None
    for each in sorted(terms, key=lambda term: term.number < 0):
        if total is not None and each.number < 0:
            total = total - replace(each, number=-each.number).value(like)
        else:
            total = each.value(like) if total is None else total + each.value(like)
    assert total is not None
    return total
