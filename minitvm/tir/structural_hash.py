"""A hash of programs under which equal ones (:mod:`minitvm.tir.structural_equal`) agree."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from minitvm.tir import nodes as n
from minitvm.tir.node import PrimExpr, Stmt, WholeTensor
from minitvm.tir.nodes import Buffer, Var
from minitvm.tir.structural_equal import BINDERS, COMPARED_ATTRIBUTES

_Entity = Var | Buffer


def structural_hash(node: Any, map_free_vars: bool = False) -> int:
    """A number of 64 bits, the same for equal expressions, statements, functions and modules.

    Names of variables don't count. A free variable counts as itself, so that the hash of an
    expression with free variables means something in this process only; with `map_free_vars` it
    counts as its place. The hash of a program without free variables is the same everywhere.

    >>> from minitvm.tir.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> structural_hash(i + 1) == structural_hash(i + 1) != structural_hash(j + 1)
    True
    >>> structural_hash(i + 1, map_free_vars=True) == structural_hash(j + 1, map_free_vars=True)
    True
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in _Reading(map_free_vars).parts(node):
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


class _Reading:
    """Reads a program in one order, and numbers the variables and buffers that it binds."""

    def __init__(self, map_free_vars: bool) -> None:
        self._map_free_vars = map_free_vars
        self._numbers: dict[_Entity, int] = {}
        self._count = 0

    def parts(self, root: Any) -> Iterator[bytes]:
        """The bytes of a program, which equal programs share. A generator on the stack stands for
        what follows in time: numbers are given as the binders are met."""
        stack: list[Iterator[Any]] = [iter((root,))]
        while stack:
            value = next(stack[-1], self)
            if value is self:
                stack.pop()
            elif isinstance(value, bytes):
                yield value
            else:
                stack.append(self._read(value))

    def _read(self, value: Any) -> Iterator[Any]:
        yield _tag(type(value).__name__)
        if isinstance(value, Var):
            yield from self._entity(value, self._bound_var(value))
        elif isinstance(value, Buffer):
            yield from self._entity(value, self._bound_buffer(value))
        elif isinstance(value, float):
            yield _tag("nan" if value != value else value.hex())
        elif isinstance(value, tuple | list):
            yield struct.pack("<q", len(value))
            yield from value
        elif isinstance(value, n.PrimFunc):
            yield from self._function(value)
        elif isinstance(value, n.IRModule):
            yield from self._mapping(value.functions)
        elif isinstance(value, PrimExpr | Stmt | n.CommReducer | n.Range | n.IterVar):
            yield from self._node(value)
        elif isinstance(value, dict):
            yield from self._mapping(value)
        elif isinstance(value, WholeTensor):
            yield struct.pack("<q", id(value))
        elif isinstance(value, frozenset):
            yield struct.pack("<q", len(value))  # of buffers that are bound, or of pairs
        else:
            yield _tag(repr(value))

    def _entity(self, value: _Entity, bound: Iterator[Any]) -> Iterator[Any]:
        if value in self._numbers:
            yield struct.pack("<q", self._numbers[value])
        elif self._map_free_vars:
            yield from bound
        else:
            yield struct.pack("<q", id(value))

    def _number(self, value: _Entity) -> None:
        self._numbers[value] = self._count
        self._count += 1

    def _bound_var(self, var: Var) -> Iterator[Any]:
        self._number(var)
        yield _tag(str(var.dtype))

    def _bound_buffer(self, buffer: Buffer) -> Iterator[Any]:
        """As the comparison binds a buffer: everything but its names."""
        yield from self._bound(buffer.data)
        for each in fields(Buffer):
            if each.name not in ("data", "name"):
                yield getattr(buffer, each.name)
        self._number(buffer)

    def _bound(self, value: Any) -> Iterator[Any]:
        if isinstance(value, tuple):
            yield struct.pack("<q", len(value))
            for each in value:
                yield from self._bound(each)
        elif isinstance(value, Buffer):
            yield from self._bound_buffer(value)
        elif isinstance(value, n.IterVar):
            yield value.dom
            yield from self._bound_var(value.var)
        else:
            yield from self._bound_var(value)

    def _node(self, node: Any) -> Iterator[Any]:
        """The fields, in the order in which the comparison takes them."""
        names = [each.name for each in fields(node)]
        binder = BINDERS.get(type(node), ())
        inside = [name for name in names if name == "body"] if binder else []
        outside = [name for name in names if name not in (*inside, *binder)]
        if inside or not binder:
            yield from self._fields(node, outside)
        for name in binder:
            yield from self._bound(getattr(node, name))
        yield from self._fields(node, inside if inside or not binder else outside)

    def _fields(self, node: Any, names: Iterable[str]) -> Iterator[Any]:
        for name in names:
            yield getattr(node, name)

    def _mapping(self, mapping: Any) -> Iterator[Any]:
        for key in sorted(mapping, key=str):
            yield _tag(str(key))
            yield mapping[key]

    def _function(self, func: n.PrimFunc) -> Iterator[Any]:
        yield from self._bound(func.params)
        buffers = [func.buffer_map.get(param) for param in func.params]
        for buffer in buffers:
            if buffer is None:
                yield _tag("scalar")
                continue
            for dim in (*buffer.shape, *buffer.strides):
                if isinstance(dim, Var) and dim not in self._numbers:
                    yield from self._bound_var(dim)
            yield from self._bound_buffer(buffer)
        yield func.body
        yield from self._fields(func.attrs, COMPARED_ATTRIBUTES)


def _tag(text: str) -> bytes:
    """The bytes of a text, which no other text begins with."""
    made = text.encode("utf-8", "surrogatepass")
    return struct.pack("<q", len(made)) + made
