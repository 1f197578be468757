"""Joins the indices of fused loops: ``x // n`` and ``x % n``, in neighbouring dimensions, are the
index x in elements of the second dimension, if that has extent n.

Such a pair may be simplified until nothing shows that it is one: ``(8*o + l) // 2`` becomes
``4*o + l // 2``. So :func:`digits` computes the index x, and writes it as a pair again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.runtime.dtype import INT64, DType
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr
from minitvm.tir.functor import contains
from minitvm.tir.structural_equal import structural_equal

Indices: TypeAlias = tuple[PrimExpr, ...]


def joined(buffer: Buffer, indices: Indices) -> list[tuple[PrimExpr, int]]:
    """The indices of an access to a buffer without gaps, each with the dimension whose stride
    applies. A loop fused from several dimensions gives a single index for them.

    Before, for a buffer of shape (n, m)::

        [(x // m, 0), (x % m, 1)]

    After::

        [(x, 1)]

    In a column-major buffer the first dimension is the innermost. Dimensions of one element are
    left out beside others.
    """
    apart = [(index, dim) for dim, index in enumerate(indices)]
    if buffer.layout == "left":
        apart.reverse()
    elif buffer.strides or buffer.auto_broadcast:
        return apart
    apart = [
        (index, dim)
        for index, dim in apart
        if e.const_int(buffer.shape[dim]) != 1 or index.dtype.lanes > 1
    ] or apart
    if not contains(e.FloorMod, *indices):
        return apart
    made = apart[-1:]
    below: PrimExpr | None = None  # the number of elements below dimension made[0][1]
    for (index, dim), (_, inside) in zip(apart[-2::-1], apart[:0:-1], strict=True):
        low, position = made[0]
        extent = buffer.shape[inside] if below is None else below
        whole = _join(index, low, extent)
        if whole is None:
            made.insert(0, (index, dim))
            below = None
        else:
            made[0] = whole, position
            below = extent * buffer.shape[dim]
    return made


def _join(high: PrimExpr, low: PrimExpr, extent: PrimExpr) -> PrimExpr | None:
    """``high * extent + low`` where that is simpler."""
    if isinstance(low, e.Ramp):  # lanes with a common `high`
        first = _join(high, low.base, extent)
        return None if first is None else e.Ramp(first, low.stride, low.dtype.lanes)
    if not isinstance(low, e.FloorMod) or not _is_same(low.b, extent):
        return None
    match high:
        case e.FloorDiv(e.FloorDiv(a, b), c) if structural_equal(a, low.a):
            return low.a if _is_same(_product(b, c, a.dtype), extent) else None
        case e.FloorDiv(a, b) if _is_same(b, extent) and structural_equal(a, low.a):
            return low.a
        case e.FloorMod(e.FloorDiv(a, b), c) if _is_same(b, extent) and structural_equal(a, low.a):
            return e.FloorMod(a, _product(b, c, a.dtype))
        case e.Add(a, b):
            whole = _join(b, low, extent)
            return (
                _moved(_join(a, low, extent), b, extent)
                if whole is None
                else _moved(whole, a, extent)
            )
    return None


def _moved(index: PrimExpr | None, steps: PrimExpr, extent: PrimExpr) -> PrimExpr | None:
    """``index + steps * extent``: the place in a window of several columns."""
    if isinstance(index, e.Ramp) and isinstance(steps, e.Broadcast):
        moved = _moved(index.base, steps.value, extent)
        return None if moved is None else e.Ramp(moved, index.stride, index.lanes)
    if index is None or index.dtype.lanes > 1:
        return None
    return index + e.cast(index.dtype, steps) * e.cast(index.dtype, _bare(extent))


def _product(a: PrimExpr, b: PrimExpr, dtype: DType) -> PrimExpr:
    made = e.cast(dtype.element, _bare(a)) * e.cast(dtype.element, _bare(b))
    return made if dtype.lanes == 1 else e.Broadcast(made, dtype.lanes)


def _is_same(divisor: PrimExpr, extent: PrimExpr) -> bool:
    """Whether both are one number, in any width and number of lanes."""
    divisor, extent = _bare(divisor), _bare(extent)
    x, y = e.const_int(divisor), e.const_int(extent)
    if x is not None or y is not None:
        return x == y
    if isinstance(divisor, e.Mul) and isinstance(extent, e.Mul):
        return any(
            _is_same(divisor.a, a) and _is_same(divisor.b, b)
            for a, b in ((extent.a, extent.b), (extent.b, extent.a))
        )
    if structural_equal(divisor, extent):
        return True
    if divisor.dtype.lanes > 1 or not (divisor.dtype.is_int and extent.dtype.is_int):
        return False
    prover = Prover()
    return prover.affine(divisor).same_as(prover.affine(extent))


def _bare(value: PrimExpr) -> PrimExpr:
    while isinstance(value, e.Cast | e.Broadcast):
        value = value.value
    return value


# -- Digits ----------------------------------------------------------------------------------------

_DIGITS = (e.FloorDiv, e.FloorMod)


def has_digits(node: PrimExpr) -> bool:
    """Whether there is a quotient or a remainder in `node`."""
    return contains(_DIGITS, node)


def digits(simplifier: Simplifier, buffer: Buffer, indices: Indices) -> Indices:
    """The indices of an access inside of a buffer without gaps, rewritten: if the indices of
    neighbouring dimensions join to one index without quotients and remainders, they become the
    digits of that index.

    Before, for a buffer of shape (100, 2)::

        (4*o + l // 2, l % 2)

    After::

        ((8*o + l) // 2, (8*o + l) % 2)

    `simplifier` knows the facts with which the indices were simplified.
    """
    turn = -1 if buffer.layout == "left" else 1
    made, shape = list(indices[::turn]), buffer.shape[::turn]
    end = len(made)
    while end:
        end = _rewrite(simplifier, shape, made, end)
    whole = tuple(made[::turn])
    return whole if len(joined(buffer, whole)) < len(joined(buffer, indices)) else indices


def _rewrite(simplifier: Simplifier, shape: Indices, indices: list[PrimExpr], end: int) -> int:
    """Rewrites the indices of some dimensions before `end`; returns the first of them."""
    prover = simplifier.prover
    total, stride = Affine(), Affine({}, 1)
    found = False
    for dim in range(end - 1, -1, -1):
        index = indices[dim]
        found = found or has_digits(index)
        if not found or not index.dtype.is_int or index.dtype.lanes > 1:
            break
        total += prover.product(
            without_remainders(prover, prover.affine(index), simplifier.expr), stride
        )
        if dim < end - 1 and not any(map(has_digits, total.terms)):
            dtype = max((each.dtype for each in indices[dim:end]), key=lambda each: each.bits)
            if max(map(abs, (total.constant, *total.terms.values()))) > dtype.max():
                dtype = INT64
            number = prover.expression(total, dtype)
            indices[dim:end] = _digits_of(number, shape[dim:end])
            return dim
        stride = prover.product(stride, prover.affine(shape[dim]))
    return end - 1


def _digits_of(number: PrimExpr, shape: Indices) -> list[PrimExpr]:
    """The digits of a number, in dimensions of some extents."""
    made: list[PrimExpr] = []
    below: PrimExpr | None = None
    for extent in reversed([e.cast(number.dtype, extent) for extent in shape]):
        part = number if below is None else e.floordiv(number, below)
        made.insert(0, e.floormod(part, extent))
        below = extent if below is None else below * extent
    made[0] = part  # the first digit has no end
    return made


def without_remainders(
    prover: Prover, form: Affine, simplify: Callable[[PrimExpr], PrimExpr] = lambda node: node
) -> Affine:
    """`form` with ``x - x // n * n`` in the place of ``x % n``; the quotient is simplified."""
    while True:
        atom = next((each for each in form.terms if isinstance(each, e.FloorMod)), None)
        if atom is None:
            return form
        whole = prover.affine(simplify(e.FloorDiv(atom.a, atom.b)))
        spelled = prover.affine(atom.a) - prover.product(whole, prover.affine(atom.b))
        form += (spelled - Affine.of_atom(atom)) * form.terms[atom]
