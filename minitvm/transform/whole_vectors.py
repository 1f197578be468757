"""Pads buffers in registers to whole vectors, if their number of lanes is no power of two."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import BufferLoad, PrimExpr, Var
from minitvm.tir.functor import Mutator, replace_buffers, with_fields
from minitvm.tir.op import likely
from minitvm.tir.stmt import ForKind, Stmt


def in_whole_vectors(node: s.Allocate, masked_bytes: int) -> s.Allocate | None:
    """An allocation of registers, of a number of lanes that is no power of two, with as many lanes
    as a whole vector has; None for any other allocation.

    Before::

        C.local = allocate(float32[4, 9], "local")
        for j in vectorized(9):
            C.local[i, j] = C.local[i, j] + a * B[k, j]

    After::

        C.local = allocate(float32[4, 16], "local")
        for j in vectorized(16):
            if likely(j < 9):
                C.local[i, j] = C.local[i, j] + a * B[k, j]

    All accesses must be those of lanes, ``[..., j]``, in loops over all of them. Where masks cost
    nothing, one such vector takes no longer than the narrowest of the vectors that would make up
    nine lanes. Other buffers have no such lanes, padded ones either, so accesses to them are
    masked. `masked_bytes` are the bytes of a vector, on a target with mask registers; otherwise 0.
    """
    buffer = node.buffer
    if not buffer.shape or buffer.scope != "local":
        return None
    if buffer.strides or buffer.elem_offset is not None:
        return None
    *outer, last = buffer.shape
    lanes = e.const_int(last) or 0
    width = whole_width(lanes, masked_bytes // buffer.dtype.itemsize)
    if width is None or lanes <= 2:
        return None
    try:
        body = _Widened(buffer, lanes, width).stmt(node.body)
    except _OtherAccess:
        return None
    data = Var(buffer.data.name, buffer.data.dtype)
    padded = replace(buffer, data=data, shape=(*outer, e.const(width, last.dtype)))
    return s.Allocate(padded, replace_buffers(body, {buffer: padded}))


def whole_width(lanes: int, most: int) -> int | None:
    """The lanes of a whole vector, of at most `most`, for a number of lanes that is no power of
    two; None for any other number."""
    width = 1 << max(0, lanes - 1).bit_length()
    return width if lanes < width <= most else None


class _OtherAccess(Exception):
    """Raised where an access isn't that of a lane."""


@final
class _Widened(Mutator):
    """Widens the loops over the lanes of a buffer, and checks that all accesses are in them."""

    def __init__(self, buffer: e.Buffer, lanes: int, width: int) -> None:
        super().__init__()
        self._buffer = buffer
        self._lanes = lanes
        self._width = width
        self._lane: Var | None = None  # of the vectorized loop around
        self._is_used = False  # in that loop
        self._is_padded = False  # whether an attribute around it lets another buffer have padding

    def visit_For(self, node: s.For) -> Stmt:
        if node.kind != ForKind.VECTORIZED or self._lane is not None:
            return self.descend(node)
        self._lane, self._is_used = node.loop_var, False
        made: s.For = self.descend(node)
        self._lane = None
        if not self._is_used:
            return made
        if (e.const_int(node.min), e.const_int(node.extent)) != (0, self._lanes):
            raise _OtherAccess
        if self._is_padded:
            raise _OtherAccess
        inner = _WithoutPadding(self._buffer).stmt(made.body)
        body = s.IfThenElse(likely(e.less(node.loop_var, node.extent)), inner)
        return with_fields(made, extent=e.const(self._width, node.extent.dtype), body=body)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        outside = self._is_padded
        if self._lane is None and node.attr_key == "padded_buffer":
            self._is_padded = outside or node.node is not self._buffer
        made = self.descend(node)
        self._is_padded = outside
        return made

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        self._check(node)
        return self.descend(node)

    def visit_BufferStore(self, node: s.BufferStore) -> Stmt:
        self._check(node)
        return self.descend(node)

    def visit_Var(self, node: Var) -> PrimExpr:
        if node is self._buffer.data:
            raise _OtherAccess
        return node

    def _check(self, node: BufferLoad | s.BufferStore) -> None:
        if node.buffer is not self._buffer:
            return
        if self._lane is None or node.indices[-1] is not self._lane or node.predicate is not None:
            raise _OtherAccess
        self._is_used = True


@final
class _WithoutPadding(Mutator):
    """Removes the attributes by which accesses to other buffers ignore guards."""

    def __init__(self, buffer: e.Buffer) -> None:
        super().__init__()
        self._buffer = buffer

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        if node.attr_key == "padded_buffer" and node.node is not self._buffer:
            return self.stmt(node.body)
        return self.descend(node)
