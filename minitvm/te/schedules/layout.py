"""Layouts: the maps of indices that ``Stage.transform_layout`` takes, and their inverses.

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
class Layout:
    """A layout of a tensor: the place in memory of each element.

    Attributes
    ----------
    axis
        The new dimensions.
    forward
        The new indices, in terms of the old ones (variables of `old`).
    backward
        The old indices, in terms of the variables of `axis`.
    inside
        The conditions under which new indices name an element rather than padding. A layout without
        padding has no conditions.
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


def layout_of(
    where: str, axes: Sequence[IterVar], mapping: Callable[..., Any], name: str = ""
) -> Layout:
    """The layout of a map that is given as a function of the indices. Messages begin with `where`;
    the new axes have the names ``name.ax0``...

    Raises
    ------
    CompileError
        When the function takes another number of indices, or no inverse is found.
    """
    old = tuple(Var(axis.name, axis.var.dtype, axis=True) for axis in axes)
    forward = indices_of(where, mapping, old)
    extents = dict(zip(old, map(_extent, axes), strict=True))
    new, digits = [], []
    for i, each in enumerate(forward):
        digits.append(_digits(where, each, extents))
        var = Var(f"{name}.ax{i}" if name else f"ax{i}", each.dtype, axis=True)
        size = e.cast(each.dtype, _size(digits[-1], extents))
        new.append(IterVar(Range(const(0, each.dtype), size), var))
    backward, inside = _inverse(where, old, extents, new, digits)
    return Layout(old, tuple(new), forward, tuple(backward), tuple(inside))


def indices_of(
    where: str, mapping: Callable[..., Any], indices: Sequence[Var]
) -> tuple[PrimExpr, ...]:
    """The indices that a function of indices returns, as a list or the only one."""
    result = of_indices(where, mapping, indices)
    members = result if isinstance(result, (list, tuple)) else [result]
    with e.naming(f"{where}: expected the function to return indices"):
        return tuple(e.as_index(each) for each in members)


def of_indices(where: str, mapping: Callable[..., Any], indices: Sequence[Var]) -> Any:
    """The result of a function for indices. Parameters behind ``*i`` get the last ones, as in
    classic TVM: ``lambda *i, n: [*i, n // 4, n % 4]``.

    Raises
    ------
    CompileError
        When the function takes another number of indices.
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
    """The extent of a new index: one more than its largest value; 0 where a digit has none."""
    if digits and digits[0][1].extent is None:  # the other digits are less than its weight
        weight, first = digits[0]
        return _quotient(extents[first.axis], first.low) * weight
    if any(digit.extent == 0 for _, digit in digits):
        return const(0)
    return const(1 + sum(weight * ((d.extent or 1) - 1) for weight, d in digits))


def _quotient(extent: int | PrimExpr, by: int) -> PrimExpr:
    """The quotient, rounded up."""
    return e.as_expr(extent) if by == 1 else e.floordiv(extent + (by - 1), by)


def _digits(
    where: str, index: PrimExpr, extents: Mapping[Var, int | PrimExpr]
) -> list[tuple[int, _Digit]]:
    """The digits of a new index with their weights, the heaviest first; each is less than the
    weight of the one before."""
    form = Prover().affine(index)
    found = [(weight, _digit(where, atom, extents)) for atom, weight in form.terms.items()]
    found.sort(key=lambda each: -each[0])
    below = 1
    reached: int | None = 1
    for weight, digit in reversed(found):
        # Each weight is a multiple of the weight below it, so that the remainder by the lower one
        # contains nothing of this digit.
        if reached is None or weight < reached or weight % below:
            raise _no_inverse(where, index)
        below = weight
        reached = None if digit.extent is None else weight * digit.extent
    if form.constant:
        raise _no_inverse(where, index)
    return found


def _digit(where: str, part: PrimExpr, extents: Mapping[Var, int | PrimExpr]) -> _Digit:
    match part:
        case Var() if part in extents:
            extent = extents[part]
            return _Digit(part, 1, extent if isinstance(extent, int) else None)
        case e.FloorDiv(a, e.IntImm(value=c)) if c > 0:
            whole, by = _digit(where, a, extents), int(c)
            rest = None if whole.extent is None else -(-whole.extent // by)
            return _Digit(whole.axis, whole.low * by, rest)
        case e.FloorMod(a, e.IntImm(value=c)) if c > 0:
            whole, by = _digit(where, a, extents), int(c)
            return _Digit(whole.axis, whole.low, min(whole.extent or by, by))
    raise _no_inverse(where, part)


def _inverse(
    where: str,
    old: Sequence[Var],
    extents: Mapping[Var, int | PrimExpr],
    new: Sequence[IterVar],
    digits: Sequence[Sequence[tuple[int, _Digit]]],
) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """The old indices in terms of the new ones, and the conditions that keep them inside of the
    tensor."""
    values: dict[_Digit, PrimExpr] = {}
    backward, inside = [], []
    for axis, parts in zip(new, digits, strict=True):
        above = None
        for weight, digit in parts:
            value = axis.var if above is None else e.floormod(axis.var, above)
            values[digit] = value if weight == 1 else e.floordiv(value, weight)
            # There may be gaps between the digits: i * 8 + j with a j below 4.
            if above is not None and digit.extent is not None and weight * digit.extent < above:
                inside.append(e.less(values[digit], const(digit.extent, axis.var.dtype)))
            above = weight
        if above is not None and above > 1:
            rest = e.floormod(axis.var, above)
            inside.append(e.equal(rest, const(0, axis.var.dtype)))
    for var in old:
        extent = extents[var]
        # A digit with one value needs no condition.
        mine = sorted((d for d in values if d.axis is var and d.extent != 1), key=lambda d: d.low)
        total: PrimExpr = const(0, var.dtype)
        reached: int | None = 1  # None: all
        for digit in mine:
            if digit.low != reached:
                raise _no_inverse(where, var)
            total = total + e.cast(var.dtype, values[digit]) * digit.low
            reached = None if digit.extent is None else digit.low * digit.extent
        if reached is not None and (not isinstance(extent, int) or reached < extent):
            raise _no_inverse(where, var)
        backward.append(total)
        is_even = reached == extent if reached is not None else _divides(mine[-1].low, extent)
        if not is_even:
            inside.append(e.less(total, e.cast(var.dtype, e.as_expr(extent))))
    return backward, inside


def _divides(size: int, extent: int | PrimExpr) -> bool:
    """Whether an extent is surely a multiple of a size."""
    rest = Prover().affine(e.as_expr(extent))
    return all(each % size == 0 for each in (*rest.terms.values(), rest.constant))


def _no_inverse(where: str, what: PrimExpr) -> CompileError:
    return CompileError(
        f"{where}: expected a map that can be inverted, of indices, their "
        f"quotients and remainders by constants, and sums of them such as i * 4 + j % 4, found no "
        f"way back for {what}"
    )
