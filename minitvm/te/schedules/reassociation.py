"""Reassociates products: factors that change along the same axes are multiplied first.

::

    C[i, j] = sum(A[i, k] * B[k, j] * s[k], k)         # a product with s for each i, j and k

    C[i, j] = sum(A[i, k] * s[k] * B[k, j], k)         # A[i, k] * s[k] changes along i and k alone

The terms of the sums of which a minimum or a maximum is taken are treated alike. Results are
rounded in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce as fold
from math import prod
from typing import TypeAlias

from minitvm.arith.work import USUAL_TRIPS
from minitvm.te.schedules.distribute_sums import times_of
from minitvm.te.schedules.factors import Factor, Times, factors_in, operands_of
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Reduce
from minitvm.tir.functor import walk_once

_Axes: TypeAlias = frozenset[IterVar]
_Groups: TypeAlias = dict[_Axes, list[Factor]]


def reassociated(op: ComputeOp) -> ComputeOp | None:
    """A contraction whose factors are multiplied in another order: first those that change along
    the same reduction and data axes, and with them those that change along fewer. Of several groups
    that a factor may join, the one of the fewest values gets it. None for any other operation, and
    where no two factors of a group stand apart.

    >>> from minitvm import te
    >>> A, B, s = (te.placeholder((8,) * n, name=x) for n, x in ((2, "A"), (2, "B"), (1, "s")))
    >>> k = te.reduce_axis((0, 8), name="k")
    >>> C = te.compute((8, 8), lambda i, j: te.sum(A[i, k] * B[k, j] / s[k], axis=k), name="C")
    >>> reassociated(C.op).body[0].source[0]
    A[i, k] / s[k] * B[k, j]
    """
    reduce, times = op.body[0], times_of(op)
    if times is None or not isinstance(reduce, Reduce):
        return None
    source = reduce.source[0]
    groups = _groups(op, factors_in(source, times))
    if sum(not axes.isdisjoint(op.reduce_axis) for axes in groups) < 2:
        return None
    together = {frozenset(map(id, each)) for each in _parts(source, times)}
    if all(frozenset(id(node) for node, _ in group) in together for group in groups.values()):
        return None
    return replace(op, body=(replace(reduce, source=(_value(groups, times),)),))


def _groups(op: ComputeOp, factors: Iterable[Factor]) -> _Groups:
    """Factors by the axes along which they change."""
    groups = _Groups()
    for node, inverted in factors:
        used = {*walk_once(node)}
        axes = frozenset(axis for axis in (*op.axis, *op.reduce_axis) if axis.var in used)
        groups.setdefault(axes, []).append((node, inverted))
    for axes in sorted(groups, key=len):
        if not axes.isdisjoint(op.reduce_axis):
            wider = min((each for each in groups if axes < each), key=_size, default=None)
            if wider is not None:
                groups[wider] += groups.pop(axes)
    return groups


def _size(axes: _Axes) -> int:
    extents = (e.const_int(domain_of(axis).extent) for axis in axes)
    return prod(USUAL_TRIPS if extent is None else extent for extent in extents)


def _parts(node: PrimExpr, times: Times) -> Iterator[list[PrimExpr]]:
    """The factors of each product in a product, the whole one first."""
    operands = operands_of(node, times)
    yield [each for each, _ in factors_in(node, times)]
    for each in operands[:2] if operands is not None else ():
        yield from _parts(each, times)


def _value(groups: _Groups, times: Times) -> PrimExpr:
    """The product of the groups, each multiplied first; divisors that have no factor beside them
    divide the rest."""
    parts = [(_product(group, times), _is_divisor(group)) for group in groups.values()]
    return _product(parts, times)


def _is_divisor(group: Iterable[Factor]) -> bool:
    return all(inverted for _, inverted in group)


def _product(factors: Iterable[Factor], times: Times) -> PrimExpr:
    """The product of some factors, divided by the divisors; of divisors alone, their product."""
    ordered = sorted(factors, key=lambda each: each[1])
    first, is_divisor = ordered[0]
    combine, invert = (e.multiply, e.divide) if times is e.Mul else (e.add, e.subtract)
    return fold(
        lambda value, each: (invert if each[1] and not is_divisor else combine)(value, each[0]),
        ordered[1:],
        first,
    )
