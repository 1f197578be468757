"""Buffers: their declaration, the accesses to their elements, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from minitvm.runtime.dtype import FLOAT32, HANDLE, INT32, INT64, DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.runtime.mdspan import LayoutPolicy
from minitvm.tir.conversion import (
    as_dtype,
    as_index,
    as_name,
    as_size,
    as_tuple,
    const,
    const_int,
    constant,
    valued,
)
from minitvm.tir.described import described, naming
from minitvm.tir.elementwise import named
from minitvm.tir.indices import as_dimension
from minitvm.tir.node import PrimExpr
from minitvm.tir.nodes import Buffer, BufferLoad, BufferRef, BufferStore, Call, Ramp, Var
from minitvm.tir.promotion import cast

SCOPES = ("global", "local", "shared", "warp", "wmma", "texture")
"""The memories that a scope may name, perhaps with a tag, as ``"local.acc_buffer"`` does."""


def checked_scope(where: str, scope: Any) -> str:
    """A scope, if it names a memory that programs may have; raises CompileError otherwise."""
    if isinstance(scope, str) and scope.partition(".")[0] in SCOPES:
        return scope
    raise CompileError(
        f'{where}: expected a scope, "global", "local" (registers), "shared" or '
        f'"warp", perhaps with a tag, as in "local.acc", got {described(scope)}'
    )


@named
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
    layout: LayoutPolicy | str | None = None,
) -> Buffer:
    """A region of memory seen as a tensor.

    Parameters
    ----------
    shape : int or expression, or a tuple of them
        Its dimensions, in elements.
    dtype : dtype
        The dtype of an element; ``float32`` unless given.
    name : str
        The name in printed programs.
    data : Var of dtype handle
        The address of its memory; a variable of its own unless given.
    strides : sequence of int or expression
        Elements from one index of a dimension to the next; compact, row-major unless given.
    elem_offset : int or expression
        Elements from `data` to the first; a variable of its own when only `offset_factor` is given.
    scope : str
        ``"global"`` unless given.
    data_alignment : int
        Bytes to which `data` is aligned, a power of two; the element's own unless positive.
    offset_factor : int
        A number that divides `elem_offset`.
    buffer_type : ``""`` or ``"auto_broadcast"``
        Whether a dimension of extent 1 stands for any extent.
    layout : ``"right"``, ``"left"``, ``"stride"`` or ``"stride_relaxed"``
        The layout of the array that is passed for it, in place of `strides`, by the layouts of
        mdspan: row-major, column-major, any strides of at least 1, any strides. An argument of
        another layout is refused; see docs/interop.md.

    Raises
    ------
    CompileError
        When `strides` are not as many as the dimensions, a dimension is no integer, an alignment is
        no power of two, `elem_offset` is no multiple of `offset_factor`, or a `layout` is unknown
        or comes beside `strides`.

    >>> decl_buffer((4, 3), name="A")
    Buffer(A: float32[4, 3])
    >>> decl_buffer((4, 3), name="A", layout="left").strides
    (1, 4)
    """
    where = as_name(name)
    extents = _integers(where, "shape", shape)
    steps = () if strides is None else _integers(where, "strides", strides)
    for i, extent in enumerate(extents):
        known = const_int(extent)
        if known is not None and known < 0:
            raise CompileError(f"{where}: shape[{i}]: expected no negative extent, got {known}")
    if steps and len(steps) != len(extents):
        raise CompileError(f"{where}: expected {len(extents)} strides, got {len(steps)}")
    if buffer_type not in ("", "default", "auto_broadcast"):
        raise CompileError(
            f"{where}: expected buffer_type '' or 'auto_broadcast', got {described(buffer_type)}"
        )
    declared = _layout_of(where, layout)
    if declared:
        if strides is not None or buffer_type == "auto_broadcast":
            other = "buffer_type" if strides is None else "strides"
            raise CompileError(f"{where}: expected a layout or {other}, got both")
        steps = _strides_of(where, declared, extents)
    alignment = _integer(where, "data_alignment", data_alignment)
    if alignment > 0 and alignment & (alignment - 1):
        raise CompileError(f"{where}: expected data_alignment a power of 2, got {alignment}")
    factor = _integer(where, "offset_factor", offset_factor)
    if factor < 0:
        raise CompileError(f"{where}: expected no negative offset_factor, got {factor}")
    offset = None if elem_offset is None else _integers(where, "elem_offset", elem_offset)[0]
    known = const_int(offset)
    if known is not None and factor and known % factor:
        raise CompileError(
            f"{where}: expected elem_offset a multiple of offset_factor {factor}, got {known}"
        )
    if offset is None and factor:
        offset = Var(f"{where}_elem_offset", extents[0].dtype if extents else INT32)
    with naming(where):
        element = as_dtype(dtype, FLOAT32)
        pointer = Var(where, HANDLE) if data is None else data
        if not isinstance(pointer, Var) or not pointer.dtype.is_handle:
            raise CompileError(
                f"expected data to be a variable of dtype handle, got {described(data)}"
            )
        return Buffer(
            data=pointer,
            shape=extents,
            dtype=element,
            name=where,
            strides=steps,
            elem_offset=offset,
            scope=checked_scope("scope", scope or "global"),
            data_alignment=max(alignment, 0),
            offset_factor=factor,
            auto_broadcast=buffer_type == "auto_broadcast",
            layout=declared,
        )


_LAYOUTS = {policy.value.removeprefix("layout_"): policy for policy in LayoutPolicy}


def _layout_of(where: str, layout: LayoutPolicy | str | None) -> str:
    """The name of a layout, without the ``layout_`` of C++."""
    if layout is None:
        return ""
    name = layout.value if isinstance(layout, LayoutPolicy) else layout
    short = name.removeprefix("layout_") if isinstance(name, str) else ""
    if short not in _LAYOUTS:
        names = ", ".join(map(repr, _LAYOUTS))
        raise CompileError(f"{where}: expected a layout among {names}, got {described(layout)}")
    return short


def _strides_of(where: str, layout: str, extents: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    if layout == "right":
        return ()  # the default strides
    if layout != "left":
        return tuple(Var(f"{where}_s{dim}", INT64) for dim in range(len(extents)))
    step: PrimExpr = const(1, extents[0].dtype if extents else INT32)
    steps = []
    for extent in extents:
        steps.append(step)
        step = extent if const_int(step) == 1 else step * extent
    return tuple(steps)


def _integers(where: str, what: str, values: Any) -> tuple[PrimExpr, ...]:
    made = []
    for i, value in enumerate(as_tuple(values)):
        with naming(f"{where}: {what}[{i}]"):
            made.append(as_dimension(as_size(value)))
    return tuple(made)


def _integer(where: str, what: str, value: Any) -> int:
    """A number in a layout, if it is constant."""
    known = None if isinstance(value, bool) else const_int(value)
    if isinstance(value, np.integer):
        known = int(value)
    if known is None or abs(known) >> 31:
        raise CompileError(
            f"{where}: expected {what} to be an integer of 32 bits, got {described(value)}"
        )
    return known


# -- Access: the methods of Buffer ----------------------------------------------------------------


def load(buffer: Buffer, begin: Any, dtype: DTypeLike | None = None) -> PrimExpr:
    """See :meth:`minitvm.tir.nodes.Buffer.vload`."""
    with naming(buffer.name):
        lanes = 1 if dtype is None else _lanes_of(buffer, as_dtype(dtype))
        return BufferLoad(buffer, _vector_indices(begin, lanes))


def store(buffer: Buffer, begin: Any, value: Any) -> BufferStore:
    """See :meth:`minitvm.tir.nodes.Buffer.vstore`."""
    with naming(buffer.name):
        expr = valued(buffer.dtype, value)
        return BufferStore(buffer, expr, _vector_indices(begin, _lanes_of(buffer, expr.dtype)))


def _lanes_of(buffer: Buffer, wanted: DType) -> int:
    """The number of elements that a value of a dtype spans."""
    if wanted.element != buffer.dtype.element or wanted.lanes % buffer.dtype.lanes:
        raise CompileError(f"expected a value of {buffer.dtype}, got {wanted}")
    return wanted.lanes // buffer.dtype.lanes


def _vector_indices(begin: Any, lanes: int) -> tuple[PrimExpr, ...]:
    """Index expressions, the last one as a ramp of `lanes` neighbours."""
    begin = begin if isinstance(begin, (tuple, list)) else (begin,)
    indices = tuple(as_index(i) for i in begin)
    if lanes == 1 or not indices:
        return indices
    last = indices[-1]
    return (*indices[:-1], Ramp(last, constant(1, last.dtype), lanes))


def access_ptr(buffer: Buffer, access_mask: str | int, offset: Any, extent: Any) -> Call:
    """See :meth:`minitvm.tir.nodes.Buffer.access_ptr`."""
    masks = {"r": Buffer.READ, "w": Buffer.WRITE, "rw": Buffer.READ | Buffer.WRITE}
    masks["wr"] = masks["rw"]
    mask = masks.get(access_mask, access_mask) if isinstance(access_mask, str) else access_mask
    if type(mask) is not int or mask not in masks.values():
        raise CompileError(
            f"{buffer.name}: expected access_mask 'r', 'w' or 'rw', got {described(access_mask)}"
        )
    with naming(buffer.name):
        count = constant(-1) if extent is None else as_size(extent)
        args = (BufferRef(buffer), as_size(offset), count, constant(mask))
    return Call(HANDLE, "tvm_access_ptr", args)


# -- Layout and size ------------------------------------------------------------------------------


def with_layout(buffer: Buffer, shape: Sequence[PrimExpr], strides: Sequence[PrimExpr]) -> Buffer:
    """`buffer` of another shape and other strides, in the same memory."""
    return Buffer(
        buffer.data, tuple(shape), buffer.dtype, buffer.name, tuple(strides), buffer.elem_offset,
        buffer.scope, buffer.data_alignment, buffer.offset_factor, buffer.auto_broadcast,
        buffer.layout,
    )  # fmt: skip


def size_factors(buffer: Buffer) -> tuple[PrimExpr, ...]:
    """The factors of the number of elements that a buffer spans."""
    if not buffer.strides:
        return buffer.shape
    last: PrimExpr = const(0, INT64)
    for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
        last = last + (cast(INT64, extent) - 1) * cast(INT64, stride)
    return (last + 1,)


def constant_bytes(buffer: Buffer) -> int | None:
    """The bytes that a buffer spans, where its layout is constant."""
    factors = [const_int(factor) for factor in size_factors(buffer)]
    known = [factor for factor in factors if factor is not None]
    return None if len(known) < len(factors) else prod(known) * buffer.dtype.itemsize
