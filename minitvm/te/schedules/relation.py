"""The relations between the axes of a stage: splits, fusions, and loops moved to begin at 0.

A stage begins with the axes of its operation, its roots. Each relation replaces some axes by
others; the axes that none replaces are the loops, the leaves. Ranges flow down from the roots,
:func:`ranges_of`; the values of the roots, in terms of the loops, flow up, :func:`values_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Range, const, const_int
from minitvm.tir.op import ceildiv


@final
@record(eq=False)
class Split:
    """``parent = outer * extent(inner) + inner``, given the extent of `inner` (`factor`) or the
    extent of `outer` (`nparts`)."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: PrimExpr | None
    nparts: PrimExpr | None


@final
@record(eq=False)
class Fuse:
    """``fused = outer * extent(inner) + inner``."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@final
@record(eq=False)
class Rebase:
    """``parent = begin(parent) + rebased``, so that the loop begins at 0; where it `is_reversed`,
    ``parent = end(parent) - 1 - rebased``."""

    parent: IterVar
    rebased: IterVar
    is_reversed: bool = False


@final
@record(eq=False)
class Singleton:
    """A loop `iter` with one iteration, which ``fuse()`` without axes makes."""

    iter: IterVar


Relation = Split | Fuse | Rebase | Singleton


def sources_of(relation: Relation) -> tuple[IterVar, ...]:
    """The axes that a relation replaces."""
    match relation:
        case Split(parent) | Rebase(parent):
            return (parent,)
        case Fuse(outer, inner):
            return outer, inner
        case Singleton():
            return ()


def results_of(relation: Relation) -> tuple[IterVar, ...]:
    """The axes that replace the sources of a relation."""
    match relation:
        case Split(_, outer, inner):
            return outer, inner
        case Fuse(fused=axis) | Rebase(rebased=axis) | Singleton(axis):
            return (axis,)


def ranges_of(
    relations: Sequence[Relation], roots: Mapping[IterVar, Range]
) -> dict[IterVar, Range]:
    """The range of every axis, given the ranges of the roots. All axes except the roots begin at 0.

    A split whose factor exceeds its parent's extent has one part, as long as the parent.
    """
    ranges = dict(roots)
    for relation in relations:
        match relation:
            case Split(parent, outer, inner, factor, nparts):
                extent = ranges[parent].extent
                outer_extent, inner_extent = split_extents(extent, factor, nparts)
                ranges[outer] = Range(0, e.cast(outer.var.dtype, outer_extent))
                ranges[inner] = Range(0, e.cast(inner.var.dtype, inner_extent))
            case Fuse(outer, inner, fused):
                extent = ranges[outer].extent * ranges[inner].extent
                ranges[fused] = Range(0, e.cast(fused.var.dtype, extent))
            case Rebase(parent, rebased):
                ranges[rebased] = Range(0, ranges[parent].extent)
            case Singleton(iter):
                ranges[iter] = Range(0, 1)
    return ranges


def split_extents(
    extent: PrimExpr, factor: PrimExpr | None, nparts: PrimExpr | None
) -> tuple[PrimExpr, PrimExpr]:
    """The extents of the outer and the inner part of a split."""
    if factor is not None:
        return _count(extent, factor), _at_most(factor, extent)
    assert nparts is not None
    return _at_most(nparts, extent), _count(extent, nparts)


def _at_most(wanted: PrimExpr, extent: PrimExpr) -> PrimExpr:
    """`wanted`; or the extent, if it is known to be smaller and not zero."""
    whole, part = const_int(extent), const_int(wanted)
    if whole is None or part is None or whole >= part:
        return wanted
    return const(max(whole, 1), wanted.dtype)


def _count(extent: PrimExpr, part: PrimExpr) -> PrimExpr:
    whole, size = const_int(extent), const_int(part)
    if whole is not None and size is not None:
        return const(-(-whole // size), extent.dtype)
    return extent if size == 1 else ceildiv(extent, part)


def values_of(
    relations: Sequence[Relation],
    ranges: Mapping[IterVar, Range],
    leaves: Mapping[IterVar, PrimExpr],
) -> dict[IterVar, PrimExpr]:
    """The value of every axis in terms of `leaves`, the values of the loops."""
    values = dict(leaves)
    for relation in reversed(relations):
        match relation:
            case Split(parent, outer, inner):
                if outer in values and inner in values:
                    whole = values[outer] * ranges[inner].extent + values[inner]
                    values[parent] = _from(ranges[parent], whole, parent)
            case Fuse(outer, inner, fused):
                if fused in values:
                    extent = ranges[inner].extent
                    high, low = _unfused(values[fused], extent, ranges[outer].extent)
                    values[outer] = _from(ranges[outer], high, outer)
                    values[inner] = _from(ranges[inner], low, inner)
            case Rebase(parent, rebased, is_reversed):
                if rebased in values:
                    offset = values[rebased]
                    if is_reversed:
                        offset = ranges[parent].extent - 1 - offset
                    values[parent] = _from(ranges[parent], offset, parent)
            case Singleton():
                pass
    return values


def loops_from(
    relations: Sequence[Relation],
    ranges: Mapping[IterVar, Range],
    roots: Mapping[IterVar, PrimExpr],
) -> dict[IterVar, PrimExpr]:
    """The value of every axis in terms of `roots`, the values of the roots: the inverse of
    :func:`values_of`."""
    values = dict(roots)

    def offset(axis: IterVar) -> PrimExpr:
        return values[axis] - ranges[axis].min

    for relation in relations:
        match relation:
            case Split(parent, outer, inner):
                extent = ranges[inner].extent
                values[outer] = e.floordiv(offset(parent), extent)
                values[inner] = e.floormod(offset(parent), extent)
            case Fuse(outer, inner, fused):
                values[fused] = offset(outer) * ranges[inner].extent + offset(inner)
            case Rebase(parent, rebased, is_reversed):
                moved = offset(parent)
                values[rebased] = ranges[parent].extent - 1 - moved if is_reversed else moved
            case Singleton(iter):
                values[iter] = const(0, iter.var.dtype)
    return values


@final
@record(eq=False)
class Guard:
    """The guard of a split that leaves a remainder: the condition that keeps the loops inside of
    its parent, `axis`."""

    axis: IterVar
    condition: PrimExpr


def guards_of(
    relations: Iterable[Relation],
    ranges: Mapping[IterVar, Range],
    values: Mapping[IterVar, PrimExpr],
    prover: Prover | None = None,
) -> list[Guard]:
    """The guards of the splits that leave a remainder, in terms of the loops. `prover` knows the
    ranges of the loops around."""
    prover = prover or Prover()
    guards = []
    for relation in relations:
        if not isinstance(relation, Split) or relation.parent not in values:
            continue
        extent, inner = ranges[relation.parent].extent, ranges[relation.inner].extent
        whole = ranges[relation.outer].extent * inner
        if not _is_equal(whole, extent, prover):
            reached = values[relation.outer] * inner + values[relation.inner]
            guards.append(Guard(relation.parent, e.less(reached, extent)))
    return guards


def _is_equal(a: PrimExpr, b: PrimExpr, prover: Prover) -> bool:
    x, y = const_int(a), const_int(b)
    if x is not None and y is not None:
        return x == y
    return prover.can_prove(e.equal(*e.promote(a, b)))


def _from(dom: Range, offset: PrimExpr, axis: IterVar) -> PrimExpr:
    return e.cast(axis.var.dtype, dom.min + offset)


def _unfused(
    fused: PrimExpr, extent: PrimExpr, outer_extent: PrimExpr
) -> tuple[PrimExpr, PrimExpr]:
    if const_int(extent) == 1:
        return fused, const(0, fused.dtype)
    if const_int(outer_extent) == 1:
        return const(0, fused.dtype), fused
    return e.floordiv(fused, extent), e.floormod(fused, extent)


def with_source(relation: Relation, old: IterVar, new: IterVar) -> Relation:
    """A relation in which `new` replaces a source `old`."""
    match relation:
        case Split(parent) | Rebase(parent) if parent is old:
            return replace(relation, parent=new)
        case Fuse(outer, inner) if old in (outer, inner):
            return replace(
                relation,
                outer=new if outer is old else outer,
                inner=new if inner is old else inner,
            )
    return relation


def leaves_below(relations: Iterable[Relation], axes: Iterable[IterVar]) -> set[IterVar]:
    """`axes`, and every axis that comes from one of them in any number of steps."""
    below = set(axes)
    for relation in relations:
        if any(source in below for source in sources_of(relation)):
            below.update(results_of(relation))
    return below


def roots_above(relations: Sequence[Relation], axes: Iterable[IterVar]) -> set[IterVar]:
    """`axes`, and every axis from which one of them comes in any number of steps."""
    above = set(axes)
    for relation in reversed(relations):
        if any(result in above for result in results_of(relation)):
            above.update(sources_of(relation))
    return above
