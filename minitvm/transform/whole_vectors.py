"""Pads registers of an odd number of lanes, so that they are whole vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, final

from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import BufferLoad, PrimExpr, Var
from minitvm.tir.functor import Mutator, with_fields
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
    nothing, one such vector takes the time of the least of those which make up nine lanes.
    `masked_bytes` are those of a vector of a target with registers for masks, otherwise 0.
    """
    buffer = node.buffer
    lanes = e.const_int(buffer.shape[-1]) if buffer.shape else None
    if lanes is None or buffer.scope != "local" or buffer.strides or buffer.elem_offset is not None:
        return None
    width = 1 << max(0, lanes - 1).bit_length()
    if not 2 < lanes < width <= masked_bytes // buffer.dtype.itemsize:
        return None
    whole = e.const(width, buffer.shape[-1].dtype)
    padded = replace(
        buffer,
        data=Var(buffer.data.name, buffer.data.dtype),
        shape=(*buffer.shape[:-1], whole),
    )
    widened = _Widened(buffer, padded, lanes)
    try:
        return s.Allocate(padded, widened.stmt(node.body))
    except _OtherAccess:
        return None


_Access = TypeVar("_Access", BufferLoad, s.BufferStore)


class _OtherAccess(Exception):
    """Raised where an access isn't that of a lane."""


@final
class _Widened(Mutator):
    """Replaces a buffer by a `padded` one, in loops over whole vectors."""

    def __init__(self, buffer: e.Buffer, padded: e.Buffer, lanes: int) -> None:
        super().__init__()
        self._buffer = buffer
        self._padded = padded
        self._lanes = lanes
        self._lane: Var | None = None  # of the vectorized loop around
        self._is_used = False  # in that loop

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
        body = s.IfThenElse(likely(e.less(node.loop_var, node.extent)), made.body)
        width = e.cast(node.extent.dtype, self._padded.shape[-1])
        return with_fields(made, extent=width, body=body)

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        made: BufferLoad = self.descend(node)
        return self._of_padded(made)

    def visit_BufferStore(self, node: s.BufferStore) -> Stmt:
        made: s.BufferStore = self.descend(node)
        return self._of_padded(made)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        made: s.AttrStmt = self.descend(node)
        if made.node is not self._buffer:
            return made
        return s.AttrStmt(self._padded, made.attr_key, made.value, made.body)

    def visit_Var(self, node: Var) -> PrimExpr:
        if node is self._buffer.data:
            raise _OtherAccess
        return node

    def _of_padded(self, made: _Access) -> _Access:
        if made.buffer is not self._buffer:
            return made
        if self._lane is None or made.indices[-1] is not self._lane or made.predicate is not None:
            raise _OtherAccess
        self._is_used = True
        return with_fields(made, buffer=self._padded)
