"""Joins the indices of fused loops: ``x // n`` and ``x % n``, in neighbouring dimensions, are the
index x in elements of the second dimension, if that has extent n."""

from __future__ import annotations

from minitvm.runtime.dtype import DType
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, PrimExpr
from minitvm.tir.structural_equal import structural_equal


def joined(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> list[tuple[PrimExpr, int]]:
    """The indices of an access to a buffer without gaps, each with the dimension whose stride
    applies. A loop fused from several dimensions gives a single index for them.

    Before, of a buffer of shape (n, m)::

        [(x // m, 0), (x % m, 1)]

    After::

        [(x, 1)]

    Of a column-major buffer the first dimension is the innermost.
    """
    apart = [(index, dim) for dim, index in enumerate(indices)]
    if buffer.layout == "left":
        apart.reverse()
    elif buffer.strides or buffer.auto_broadcast:
        return apart
    made = apart[-1:]
    below: PrimExpr | None = None  # how many elements of dimension made[0][1] there are below
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
    if not isinstance(low, e.FloorMod) or not _is_same(low.b, extent):
        return None
    match high:
        case e.FloorDiv(e.FloorDiv(a, b), c) if structural_equal(a, low.a):
            return low.a if _is_same(_product(b, c, a.dtype), extent) else None
        case e.FloorDiv(a, b) if _is_same(b, extent) and structural_equal(a, low.a):
            return low.a
        case e.FloorMod(e.FloorDiv(a, b), c) if _is_same(b, extent) and structural_equal(a, low.a):
            return e.FloorMod(a, _product(b, c, a.dtype))
    return None


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
    return structural_equal(divisor, extent)


def _bare(value: PrimExpr) -> PrimExpr:
    while isinstance(value, e.Cast | e.Broadcast):
        value = value.value
    return value
