"""Amounts: numbers where the sizes are known, the text of an expression where the call decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from minitvm import expr as e
from minitvm.arith.analyzer import Analyzer
from minitvm.expr import PrimExpr, Var
from minitvm.functor import substitute

_WIDENED = re.compile(r"\bint64\((\w+)\)")  # how wide the arithmetic is doesn't matter here

Amount = int | str
Sizes = Mapping[Var, int]


def value_of(node: PrimExpr, sizes: Sizes) -> Amount:
    """What an expression comes to.

    >>> n = Var("n")
    >>> value_of((n + 3) // 4, {}), value_of((n + 3) // 4, {n: 5})
    ('(n + 3) // 4', 2)
    """
    known = {var: e.const(size, var.dtype) for var, size in sizes.items()}
    found = Analyzer().simplify(substitute(node, known))
    if isinstance(found, (e.IntImm, e.FloatImm)):
        return int(found.value)
    return _WIDENED.sub(r"\1", str(found))


def product_of(number: int, extents: Iterable[PrimExpr], sizes: Sizes) -> Amount:
    """`number` times all extents.

    >>> product_of(2, (e.const(8), Var("n"), Var("n") + 1), {})
    '16 * n * (n + 1)'
    """
    values = [value_of(extent, sizes) for extent in extents]
    number *= prod(value for value in values if isinstance(value, int))
    symbols = [value for value in values if isinstance(value, str)]
    if not symbols or not number:
        return number
    factors = [each if each.isidentifier() else f"({each})" for each in symbols]
    return " * ".join(factors if number == 1 else [str(number), *factors])


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """The sum of amounts.

    >>> sum_of([1, "n", 2, "n * 4"]), sum_of([1, 2])
    ('n + n * 4 + 3', 3)
    """
    terms = list(amounts)
    number = sum(each for each in terms if isinstance(each, int))
    symbols = [each for each in terms if isinstance(each, str)]
    return " + ".join([*symbols, str(number)] if number else symbols) if symbols else number
