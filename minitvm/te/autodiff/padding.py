"""Pads adjoints that are read through windows with zeros.

The adjoint of an image in a convolution is a convolution as well, in which windows reach over the
edges. With zeros there it needs no conditions, and is scheduled as any convolution of a padded
image::

    sum(dY[q - k] * W[k], k, where=k <= q and q - k < n)
    sum(P[q - k + 2] * W[k], k)          of  P[p] = dY[p - 2] where p is from 2 to n + 1, else 0

The zeros are multiplied as any element: with infinite factors they give NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from minitvm.arith.analyzer import Analyzer
from minitvm.te.autodiff.stages import computed, guarded
from minitvm.te.tensor import Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, const_int
from minitvm.tir.functor import find, mentions

_MOST = 2.25  # times the elements of the tensor: the zeros around it take part in the products


def padded(
    value: PrimExpr,
    conditions: Sequence[PrimExpr],
    axes: Sequence[IterVar],
    reduced: Sequence[IterVar],
) -> tuple[PrimExpr, list[PrimExpr]]:
    """A term of a sum that reads a padded tensor, and the conditions that it still needs; the given
    term and conditions where padding isn't possible, or doesn't pay.

    Parameters
    ----------
    value
        The term.
    conditions
        The conditions under which the term is added. They read no memory.
    axes, reduced
        The sum's data axes and its reduction axes.
    """
    for load in _factors(value):
        found = _padding(load, axes, reduced)
        if found is None:
            continue
        inside, low, shape = found
        known = _known(axes, reduced)
        for each in inside:
            known.assume(each)
        left = [each for each in conditions if not known.can_prove(each)]
        others = [*find(ProducerLoad, value)]
        if len(left) == len(conditions) or not all(
            each is load or stays_inside(each, left, axes, reduced) for each in others
        ):
            continue
        return _with(value, load, _around(load, low, shape)), left
    return value, [*conditions]


def _factors(value: PrimExpr) -> Iterator[ProducerLoad]:
    """The reads that are factors of a term."""
    match value:
        case e.Mul(a, b):
            yield from _factors(a)
            yield from _factors(b)
        case e.Cast(_, inner):
            yield from _factors(inner)
        case ProducerLoad():
            yield value


def _with(value: PrimExpr, load: ProducerLoad, read: PrimExpr) -> PrimExpr:
    """A term in which `read` stands in place of the factor `load`."""
    match value:
        case e.Mul(a, b):
            return e.Mul(_with(a, load, read), _with(b, load, read))
        case e.Cast(dtype, inner):
            return e.Cast(dtype, _with(inner, load, read))
    return read if value is load else value


def _padding(
    load: ProducerLoad, axes: Sequence[IterVar], reduced: Sequence[IterVar]
) -> tuple[list[PrimExpr], list[int], list[int]] | None:
    """For a read through windows: the conditions that keep it inside of its tensor, and for each
    dimension the place of the first element in the padded tensor, and the padded extent. None for a
    read that needs no padding: its elements aren't used again, or it stays inside."""
    known = _known(axes, reduced)
    several = [axis for axis in axes if const_int(domain_of(axis).extent) != 1]
    if all(mentions(axis.var, *load.indices) for axis in several):
        return None
    inside, first, shape = list[PrimExpr](), list[int](), list[int]()
    extents = [const_int(extent) for extent in load.producer.shape]
    for index, extent in zip(load.indices, extents, strict=True):
        low, high = known.const_int_bound(index)
        if extent is None or (low >= 0 and high < extent):
            first.append(0)
            shape.append(-1 if extent is None else extent)
            continue
        if not isinstance(low, int) or not isinstance(high, int):
            return None
        inside += [index >= 0, index < extent]
        first.append(max(0, -low))
        shape.append(first[-1] + max(extent, high + 1))
    if not inside or None in extents:
        return None
    return (
        (inside, first, shape)
        if prod(shape) <= prod(each or 0 for each in extents) * _MOST + 64
        else None
    )


def _around(load: ProducerLoad, first: Sequence[int], shape: Sequence[int]) -> PrimExpr:
    """The read from a padded tensor."""
    tensor = load.producer
    assert isinstance(tensor, Tensor)

    def element(place: Sequence[PrimExpr]) -> PrimExpr:
        conditions: list[PrimExpr] = []
        indices: list[PrimExpr] = []
        for index, low, extent, wide in zip(place, first, tensor.shape, shape, strict=True):
            conditions += [index >= low] if low else []
            conditions += [index < low + extent] if const_int(extent + low) != wide else []
            indices.append(index - low if low else index)
        return guarded(conditions, tensor(*indices))

    made = computed(f"{tensor.op.name}_padded", [e.const(each) for each in shape], element)
    return made(*(i + low if low else i for i, low in zip(load.indices, first, strict=True)))


def _known(axes: Sequence[IterVar], reduced: Sequence[IterVar]) -> Analyzer:
    known = Analyzer()
    for axis in (*axes, *reduced):
        known.bind(axis.var, domain_of(axis))
    return known


def stays_inside(
    load: ProducerLoad,
    conditions: Sequence[PrimExpr],
    axes: Sequence[IterVar],
    reduced: Sequence[IterVar],
) -> bool:
    """Whether a read stays inside of its tensor wherever some conditions hold."""
    known = _known(axes, reduced)
    for each in conditions:
        known.assume(each)
    pairs = zip(load.indices, load.producer.shape, strict=True)
    return all(known.can_prove(e.logical_and(i >= 0, i < n)) for i, n in pairs)
