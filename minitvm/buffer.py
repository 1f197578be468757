"""How buffers are declared, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from minitvm.expr import Buffer, PrimExpr, Var, as_expr, as_index, cast, const, const_int
from minitvm.indices import as_dimension
from minitvm.runtime.dtype import HANDLE, INT32, INT64, DType, DTypeLike
from minitvm.runtime.errors import CompileError


def decl_buffer(
    shape: Any,
    dtype: DTypeLike | None = None,
    name: str = "buffer",
    data: Var | None = None,
    strides: Sequence[Any] | None = None,
    elem_offset: Any = None,
    scope: str = "",
    data_alignment: int = -1,
    offset_factor: int = 0,
    buffer_type: str = "",
) -> Buffer:
    """A region of memory seen as a tensor.

    Parameters
    ----------
    shape : int or expression, or a tuple of them
        Its dimensions, in elements.
    dtype : dtype
        Of an element; ``float32`` unless given.
    name : str
        How it prints.
    data : Var of dtype handle
        Where it begins; a variable of its own unless given.
    strides : sequence of int or expression
        Elements from one index of a dimension to the next; compact, row-major unless given.
    elem_offset : int or expression
        Elements from `data` to the first; a variable of its own when only `offset_factor` is given.
    scope : str
        ``"global"`` unless given.
    data_alignment : int
        Bytes to which `data` is aligned, a power of two; the element's own unless positive.
    offset_factor : int
        `elem_offset` is a multiple of it.
    buffer_type : ``""`` or ``"auto_broadcast"``
        Whether a dimension of extent 1 stands for any extent.

    Raises
    ------
    CompileError
        When `strides` are not as many as the dimensions, a dimension is no integer, an alignment is
        no power of two, or `elem_offset` is no multiple of `offset_factor`.

    >>> decl_buffer((4, 3), name="A")
    Buffer(A: float32[4, 3])
    """
    extents = _integers(name, "shape", shape)
    steps = () if strides is None else _integers(name, "strides", strides)
    if steps and len(steps) != len(extents):
        raise CompileError(f"{name}: expected {len(extents)} strides, got {len(steps)}")
    if buffer_type not in ("", "default", "auto_broadcast"):
        raise CompileError(
            f"{name}: expected buffer_type '' or 'auto_broadcast', got {buffer_type!r}"
        )
    if data_alignment > 0 and data_alignment & (data_alignment - 1):
        raise CompileError(f"{name}: expected data_alignment a power of 2, got {data_alignment}")
    if offset_factor < 0:
        raise CompileError(f"{name}: expected no negative offset_factor, got {offset_factor}")
    known = const_int(elem_offset)
    if known is not None and offset_factor and known % offset_factor:
        raise CompileError(
            f"{name}: expected elem_offset a multiple of offset_factor {offset_factor}, got {known}"
        )
    if elem_offset is None and offset_factor:
        elem_offset = Var(f"{name}_elem_offset", extents[0].dtype if extents else INT32)
    return Buffer(
        data=Var(name, HANDLE) if data is None else data,
        shape=extents,
        dtype=DType.of("float32" if dtype is None else dtype),
        name=name,
        strides=steps,
        elem_offset=None if elem_offset is None else as_index(elem_offset),
        scope=scope or "global",
        data_alignment=max(data_alignment, 0),
        offset_factor=offset_factor,
        auto_broadcast=buffer_type == "auto_broadcast",
    )


def _integers(name: str, what: str, values: Any) -> tuple[PrimExpr, ...]:
    members = values if isinstance(values, (tuple, list)) else (values,)
    made = tuple([as_dimension(as_expr(each)) for each in members])
    for i, each in enumerate(made):
        if not each.dtype.is_integral or each.dtype.is_bool:
            raise CompileError(f"{name}: {what}[{i}]: expected an integer, got {each.dtype}")
    return made


def with_layout(buffer: Buffer, shape: Sequence[PrimExpr], strides: Sequence[PrimExpr]) -> Buffer:
    """`buffer` of another shape and other strides, in the same memory."""
    return Buffer(
        buffer.data, tuple(shape), buffer.dtype, buffer.name, tuple(strides), buffer.elem_offset,
        buffer.scope, buffer.data_alignment, buffer.offset_factor, buffer.auto_broadcast,
    )  # fmt: skip


def size_factors(buffer: Buffer) -> tuple[PrimExpr, ...]:
    """What the number of elements that a buffer reaches over is the product of."""
    if not buffer.strides:
        return buffer.shape
    last: PrimExpr = const(0, INT64)
    for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
        last = last + (cast(INT64, extent) - 1) * cast(INT64, stride)
    return (last + 1,)


def constant_bytes(buffer: Buffer) -> int | None:
    """The bytes that a buffer reaches over, where its layout is constant."""
    factors = [const_int(factor) for factor in size_factors(buffer)]
    known = [factor for factor in factors if factor is not None]
    return None if len(known) < len(factors) else prod(known) * buffer.dtype.itemsize
