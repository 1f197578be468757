"""Parameters that lie column-major, of a program that was lowered as if they were row-major arrays
with their dimensions in reverse order (:mod:`minitvm.variants.row_major`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from minitvm.tir.expr import Buffer, BufferLoad, BufferStore, Call, PrimExpr, StringImm
from minitvm.tir.functor import Mutator, rebuild, replace_buffers, walk_once
from minitvm.tir.stmt import AssertStmt, PrimFunc, Stmt, with_buffers

_Access = TypeVar("_Access", BufferLoad, BufferStore)


def reversed_buffer(buffer: Buffer) -> Buffer:
    """The row-major buffer, of the same memory, that a column-major one is in reverse order."""
    return replace(buffer, shape=buffer.shape[::-1], strides=(), layout="")


def in_column_major(func: PrimFunc, declared: Mapping[Buffer, Buffer]) -> PrimFunc:
    """`func` with its parameters as they were declared, given by what :func:`reversed_buffer` made
    of them.

    Before::

        def f(X: float32[m, n]): ... X[j, i] ...

    After::

        def f(X: float32[n, m] strides=[1, n]): ... X[i, j] ...
    """
    body = replace_buffers(_Reverse(declared).stmt(func.body), declared)
    return with_buffers(func, body, declared)


def shows_indices(func: PrimFunc, names: Collection[str]) -> bool:
    """Whether a message of the function shows indices of a tensor of some names, in the order in
    which nobody wrote them."""
    messages = []
    for node in walk_once(func.body):
        match node:
            case AssertStmt(message=message):
                messages.append(message)
            case Call(op="checked", args=(_, StringImm(message), *_)):
                messages.append(message)
    return any(f"{name}[" in message for name in names for message in messages)


class _Reverse(Mutator):
    def __init__(self, declared: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._declared = declared

    def _reversed(self, node: _Access) -> _Access:
        made = self.descend(node)
        if made.buffer not in self._declared:
            return made
        return rebuild(made, {"buffer": self._declared[made.buffer], "indices": made.indices[::-1]})

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        return self._reversed(node)

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        return self._reversed(node)
