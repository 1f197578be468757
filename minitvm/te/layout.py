"""Index maps: the layouts that ``Stage.transform_layout`` takes, and their inverses.

Each new index is a sum of digits, each digit a part ``axis // low % extent`` of one old axis. From
that an old axis is found again digit by digit; a map that leaves no way back is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from minitvm import expr as e
from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.expr import IterVar, PrimExpr, Range, Var, const, const_int
from minitvm.runtime.errors import CompileError


@final
@dataclass(frozen=True, slots=True)
class IndexMap:
    """A layout of a tensor: where each element is kept.

    Attributes
    ----------
    axis
        The new dimensions.
    forward
        The new indices, in terms of the old ones (variables of `old`).
    backward
        The old indices, in terms of the variables of `axis`.
    inside
        The conditions on the new indices under which there is such an element: none where the
        layout has no padding.
    """

    old: tuple[Var, ...]
    axis: tuple[IterVar, ...]
    forward: tuple[PrimExpr, ...]
    backward: tuple[PrimExpr, ...]
    inside: tuple[PrimExpr, ...]


@final
@dataclass(frozen=True, slots=True)
class _Digit:
    """``axis // low % extent``."""

    axis: Var
    low: int
    extent: int


def index_map(name: str, axes: Sequence[IterVar], mapping: Callable[..., Any]) -> IndexMap:
    """The layout that a function of the indices describes.

    Raises
    ------
    CompileError
        When it takes another number of indices, an extent is no constant, or no inverse is found.
    """
    old = tuple(Var(axis.name, axis.var.dtype, axis=True) for axis in axes)
    try:
        inspect.signature(mapping).bind(*old)
    except (TypeError, ValueError) as error:
        raise CompileError(
            f"{name}: transform_layout: expected a function of {len(old)} indices: {error}"
        ) from None
    result = mapping(*old)
    members = result if isinstance(result, (list, tuple)) else [result]
    try:
        forward = tuple(e.as_index(each) for each in members)
    except TypeError as error:
        raise CompileError(
            f"{name}: transform_layout: expected the function to return indices: {error}"
        ) from None
    extents = dict(zip(old, [_extent(name, axis) for axis in axes], strict=True))
    spans = Spans(Prover())
    for var, extent in extents.items():
        spans.let(var, Span(spans.point(const(0)).low, spans.point(const(extent - 1)).low))
    new, digits = [], []
    for i, each in enumerate(forward):
        size = _size(name, spans, each)
        var = Var(f"{name}.ax{i}", each.dtype, axis=True)
        new.append(IterVar(Range(0, const(size, each.dtype)), var))
        digits.append(_digits(name, each, extents))
    backward, inside = _inverse(name, old, extents, new, digits)
    return IndexMap(old, tuple(new), forward, tuple(backward), tuple(inside))


def _extent(name: str, axis: IterVar) -> int:
    extent = None if axis.dom is None else const_int(axis.dom.extent)
    if extent is None or extent < 1:
        raise CompileError(
            f"{name}: transform_layout: expected constant dimensions, got {axis.dom} of {axis.name}"
        )
    return extent


def _size(name: str, spans: Spans, index: PrimExpr) -> int:
    span = spans.of(index)
    if span is None or span.high.terms or span.low.terms or span.low.constant < 0:
        raise _no_inverse(name, index)
    return span.high.constant + 1


def _digits(name: str, index: PrimExpr, extents: Mapping[Var, int]) -> list[tuple[int, _Digit]]:
    """The digits of a new index with their weights, the heaviest first; each is less than the
    weight of the one before."""
    form = Prover().affine(index)
    found = [(weight, _digit(name, atom, extents)) for atom, weight in form.terms.items()]
    found.sort(key=lambda each: -each[0])
    reached = 1
    for weight, digit in reversed(found):
        if weight < reached or weight % reached:
            raise _no_inverse(name, index)
        reached = weight * digit.extent
    if form.constant:
        raise _no_inverse(name, index)
    return found


def _digit(name: str, part: PrimExpr, extents: Mapping[Var, int]) -> _Digit:
    match part:
        case Var() if part in extents:
            return _Digit(part, 1, extents[part])
        case e.FloorDiv(a, e.IntImm(value=c)) if c > 0:
            whole = _digit(name, a, extents)
            return _Digit(whole.axis, whole.low * int(c), -(-whole.extent // int(c)))
        case e.FloorMod(a, e.IntImm(value=c)) if c > 0:
            whole = _digit(name, a, extents)
            return _Digit(whole.axis, whole.low, min(whole.extent, int(c)))
    raise _no_inverse(name, part)


def _inverse(
    name: str,
    old: Sequence[Var],
    extents: Mapping[Var, int],
    new: Sequence[IterVar],
    digits: Sequence[Sequence[tuple[int, _Digit]]],
) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """The old indices in terms of the new ones, and where they are inside of the tensor."""
    values: dict[_Digit, PrimExpr] = {}
    for axis, parts in zip(new, digits, strict=True):
        above = None
        for weight, digit in parts:
            value = axis.var if above is None else e.floormod(axis.var, above)
            values[digit] = value if weight == 1 else e.floordiv(value, weight)
            above = weight
    backward, inside = [], []
    for var in old:
        # A digit of one value says nothing.
        mine = sorted((d for d in values if d.axis is var and d.extent > 1), key=lambda d: d.low)
        total: PrimExpr = const(0, var.dtype)
        reached = 1
        for digit in mine:
            if digit.low != reached:
                raise _no_inverse(name, var)
            total = total + e.cast(var.dtype, values[digit]) * digit.low
            reached = digit.low * digit.extent
        if reached < extents[var]:
            raise _no_inverse(name, var)
        backward.append(total)
        if reached > extents[var]:
            inside.append(e.less(total, const(extents[var], var.dtype)))
    return backward, inside


def _no_inverse(name: str, what: PrimExpr) -> CompileError:
    return CompileError(
        f"{name}: transform_layout: expected a map that can be inverted, of indices, their "
        f"quotients and remainders by constants, and sums of them such as i * 4 + j % 4, found no "
        f"way back for {what}"
    )
