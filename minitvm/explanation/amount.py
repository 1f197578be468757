"""Amounts: numbers where the sizes are known, the text of an expression where one is symbolic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from minitvm.arith.analyzer import Analyzer
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import substitute

_WIDENED = re.compile(r"\bint64\((\w+)\)")  # the width of the arithmetic doesn't matter here

Amount = int | str
Sizes = Mapping[Var, int]


def value_of(node: PrimExpr, sizes: Sizes) -> Amount:
    """The value of an expression.

    >>> n = Var("n")
    >>> value_of((n + 3) // 4, {}), value_of((n + 3) // 4, {n: 5})
    ('(n + 3) // 4', 2)
    """
    known = {var: e.const(size, var.dtype) for var, size in sizes.items()}
    found = Analyzer().simplify(substitute(node, known))
    if isinstance(found, (e.IntImm, e.FloatImm)):
        return int(found.value)
    return _WIDENED.sub(r"\1", str(found))


def total(terms: Iterable[tuple[int, Iterable[PrimExpr]]], sizes: Sizes) -> Amount:
    """The sum of products of a number and extents.

    >>> n = Var("n")
    >>> total([(4, (n, n + 1)), (4, (n, n + 1)), (2, (e.const(8),))], {})
    '8 * n * (n + 1) + 16'
    >>> total([(2, (e.const(8), e.const(4)))], {})
    64
    """
    sums: dict[tuple[str, ...], int] = {}
    for number, extents in terms:
        values = [value_of(extent, sizes) for extent in extents]
        symbols = tuple(each for each in values if isinstance(each, str))
        number *= prod(each for each in values if isinstance(each, int))
        sums[symbols] = sums.get(symbols, 0) + number
    return sum_of(_product(number, symbols) for symbols, number in sums.items())


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """The sum of amounts.

    >>> sum_of([1, "n", 2, "4 * m"]), sum_of([1, 2])
    ('n + 4 * m + 3', 3)
    """
    terms = list(amounts)
    number = sum(each for each in terms if isinstance(each, int))
    symbols = [each for each in terms if isinstance(each, str)]
    return " + ".join([*symbols, str(number)] if number else symbols) if symbols else number


def _product(number: int, symbols: Iterable[str]) -> Amount:
    factors = [each if each.isidentifier() else f"({each})" for each in symbols]
    if not factors or not number:
        return number
    return " * ".join(factors if number == 1 else [str(number), *factors])
