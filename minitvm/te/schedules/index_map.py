"""Index maps: the layouts that ``Stage.transform_layout`` takes, and their inverses.

Each new index is a sum of digits, each digit a part ``axis // low % extent`` of one old axis. The
inverse reassembles each old axis from its digits; a map without an inverse is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from minitvm.arith.prover import Prover
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.tensor import domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Range, Var, const, const_int


@final
@record()
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
        The conditions under which new indices name an element and not padding; none where the
        layout has no padding.
    """

    old: tuple[Var, ...]
    axis: tuple[IterVar, ...]
    forward: tuple[PrimExpr, ...]
    backward: tuple[PrimExpr, ...]
    inside: tuple[PrimExpr, ...]


@final
@record()
class _Digit:
    """``axis // low % extent``; without an `extent`, ``axis // low`` of an axis with a symbolic
    extent."""

    axis: Var
    low: int
    extent: int | None


def index_map(name: str, axes: Sequence[IterVar], mapping: Callable[..., Any]) -> IndexMap:
    """The layout that a function of the indices describes.

    Raises
    ------
    CompileError
        When the function takes another number of indices, or no inverse is found.
    """
    old = tuple(Var(axis.name, axis.var.dtype, axis=True) for axis in axes)
    result = of_indices(f"{name}: transform_layout", mapping, old)
    members = result if isinstance(result, (list, tuple)) else [result]
    with e.naming(f"{name}: transform_layout: expected the function to return indices"):
        forward = tuple(e.as_index(each) for each in members)
    extents = dict(zip(old, map(_extent, axes), strict=True))
    new, digits = [], []
    for i, each in enumerate(forward):
        digits.append(_digits(name, each, extents))
        var = Var(f"{name}.ax{i}", each.dtype, axis=True)
        size = e.cast(each.dtype, _size(digits[-1], extents))
        new.append(IterVar(Range(const(0, each.dtype), size), var))
    backward, inside = _inverse(name, old, extents, new, digits)
    return IndexMap(old, tuple(new), forward, tuple(backward), tuple(inside))


def of_indices(where: str, mapping: Callable[..., Any], indices: Sequence[Var]) -> Any:
    """The result of a function for indices. Parameters behind ``*i`` get the last ones, as in
    classic TVM: ``lambda *i, n: [*i, n // 4, n % 4]``.

    Raises
    ------
    CompileError
        When it takes another number of indices.
    """
    try:
        signature = inspect.signature(mapping)
        last = [
            each.name
            for each in signature.parameters.values()
            if each.kind is each.KEYWORD_ONLY and each.default is each.empty
        ]
        first, rest = indices[: len(indices) - len(last)], indices[len(indices) - len(last) :]
        bound = signature.bind(*first, **dict(zip(last, rest, strict=False)))
    except (TypeError, ValueError) as error:
        raise CompileError(
            f"{where}: expected a function of {len(indices)} indices: {error}"
        ) from None
    return mapping(*bound.args, **bound.kwargs)


def _extent(axis: IterVar) -> int | PrimExpr:
    """The extent of an axis, as a number if it is known."""
    extent = domain_of(axis).extent
    known = const_int(extent)
    return extent if known is None else known


def _size(digits: Sequence[tuple[int, _Digit]], extents: Mapping[Var, int | PrimExpr]) -> PrimExpr:
    """The extent of a new index: one more than its largest value."""
    if digits and digits[0][1].extent is None:  # the others are less than its weight
        weight, first = digits[0]
        return _quotient(extents[first.axis], first.low) * weight
    return const(1 + sum(weight * ((d.extent or 1) - 1) for weight, d in digits))


def _quotient(extent: int | PrimExpr, by: int) -> PrimExpr:
    """The quotient, rounded up."""
    return e.as_expr(extent) if by == 1 else e.floordiv(extent + (by - 1), by)


def _digits(
    name: str, index: PrimExpr, extents: Mapping[Var, int | PrimExpr]
) -> list[tuple[int, _Digit]]:
    """The digits of a new index with their weights, the heaviest first; each is less than the
    weight of the one before."""
    form = Prover().affine(index)
    found = [(weight, _digit(name, atom, extents)) for atom, weight in form.terms.items()]
    found.sort(key=lambda each: -each[0])
    reached: int | None = 1
    for weight, digit in reversed(found):
        if reached is None or weight < reached or weight % reached:
            raise _no_inverse(name, index)
        reached = None if digit.extent is None else weight * digit.extent
    if form.constant:
        raise _no_inverse(name, index)
    return found


def _digit(name: str, part: PrimExpr, extents: Mapping[Var, int | PrimExpr]) -> _Digit:
    match part:
        case Var() if part in extents:
            extent = extents[part]
            return _Digit(part, 1, extent if isinstance(extent, int) else None)
        case e.FloorDiv(a, e.IntImm(value=c)) if c > 0:
            whole, by = _digit(name, a, extents), int(c)
            rest = None if whole.extent is None else -(-whole.extent // by)
            return _Digit(whole.axis, whole.low * by, rest)
        case e.FloorMod(a, e.IntImm(value=c)) if c > 0:
            whole, by = _digit(name, a, extents), int(c)
            return _Digit(whole.axis, whole.low, min(whole.extent or by, by))
    raise _no_inverse(name, part)


def _inverse(
    name: str,
    old: Sequence[Var],
    extents: Mapping[Var, int | PrimExpr],
    new: Sequence[IterVar],
    digits: Sequence[Sequence[tuple[int, _Digit]]],
) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """The old indices in terms of the new ones, and the conditions that keep them inside of the
    tensor."""
    values: dict[_Digit, PrimExpr] = {}
    for axis, parts in zip(new, digits, strict=True):
        above = None
        for weight, digit in parts:
            value = axis.var if above is None else e.floormod(axis.var, above)
            values[digit] = value if weight == 1 else e.floordiv(value, weight)
            above = weight
    backward, inside = [], []
    for var in old:
        extent = extents[var]
        # A digit of one value says nothing.
        mine = sorted((d for d in values if d.axis is var and d.extent != 1), key=lambda d: d.low)
        total: PrimExpr = const(0, var.dtype)
        reached: int | None = 1  # None: all
        for digit in mine:
            if digit.low != reached:
                raise _no_inverse(name, var)
            total = total + e.cast(var.dtype, values[digit]) * digit.low
            reached = None if digit.extent is None else digit.low * digit.extent
        if reached is not None and (not isinstance(extent, int) or reached < extent):
            raise _no_inverse(name, var)
        backward.append(total)
        is_padded = mine[-1].low > 1 if reached is None else reached > extent
        if is_padded:
            inside.append(e.less(total, e.cast(var.dtype, e.as_expr(extent))))
    return backward, inside


def _no_inverse(name: str, what: PrimExpr) -> CompileError:
    return CompileError(
        f"{name}: transform_layout: expected a map that can be inverted, of indices, their "
        f"quotients and remainders by constants, and sums of them such as i * 4 + j % 4, found no "
        f"way back for {what}"
    )
