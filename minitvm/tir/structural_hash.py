"""A hash of programs that is the same for structurally equal ones
(:mod:`minitvm.tir.structural_equal`)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.tir import nodes as n
from minitvm.tir.node import PrimExpr, Stmt, WholeTensor
from minitvm.tir.nodes import Buffer, Var
from minitvm.tir.structural_equal import BINDERS, COMPARED_ATTRIBUTES

_Entity = Var | Buffer


def structural_hash(node: Any, map_free_vars: bool = False) -> int:
    """A number of 64 bits, the same for equal expressions, statements, functions and modules.

    Names of variables don't count. A free variable counts as itself, so that the hash of an
    expression with free variables is valid in this process only; with `map_free_vars` it counts as
    its place. The hash of a program without free variables is the same everywhere.

    >>> from minitvm.tir.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> structural_hash(i + 1) == structural_hash(i + 1) != structural_hash(j + 1)
    True
    >>> structural_hash(i + 1, map_free_vars=True) == structural_hash(j + 1, map_free_vars=True)
    True
    """
    return int.from_bytes(_Reading(map_free_vars).digest(node)[:8], "little")


class _Frame:
    """A value that is being read: its remaining parts, the digest of the parts before, the number
    of variables bound around it, and the number of free variables met before it."""

    __slots__ = ("depth", "digest", "met", "node", "parts")

    def __init__(self, node: Any, parts: Iterator[Any], depth: int, met: int) -> None:
        self.node, self.parts, self.depth, self.met = node, parts, depth, met
        self.digest = hashlib.blake2b(digest_size=16)


class _Reading:
    """Reads a program in a fixed order, and numbers the variables and buffers that it binds.

    A bound variable's number is the count of variables bound around it. So a subexpression has the
    same digest everywhere at one depth, and the digest of a shared one is kept.
    """

    def __init__(self, map_free_vars: bool) -> None:
        self._map_free_vars = map_free_vars
        self._numbers: dict[_Entity, int] = {}
        self._depth = 0
        self._free_count = 0  # the number of free variables numbered so far
        # The digests of expressions, by identity and depth; forgotten when a variable's number
        # changes. The program being read keeps the expressions alive.
        self._known: dict[tuple[int, int], bytes] = {}
        self._met_free: set[_Entity] = set()

    def digest(self, root: Any) -> bytes:
        """The digest of a program, which equal programs share. The stack holds generators, so that
        variables are numbered in the order in which their binders are met."""
        stack = [self._frame(root)]
        while True:
            frame = stack[-1]
            value = next(frame.parts, self)
            if value is self:
                made = frame.digest.digest()
                self._leave(frame, made)
                stack.pop()
                if not stack:
                    return made
                stack[-1].digest.update(made)
            elif isinstance(value, bytes):
                frame.digest.update(value)
            elif (known := self._known.get((id(value), self._depth))) is not None:
                frame.digest.update(known)
            elif isinstance(value, list) and any(each.node is value for each in stack):
                raise CompileError("structural_hash: expected a program, got a list within itself")
            else:
                stack.append(self._frame(value))

    def _frame(self, value: Any) -> _Frame:
        return _Frame(value, self._read(value), self._depth, self._free_count)

    def _leave(self, frame: _Frame, digest: bytes) -> None:
        """Ends the scopes of the variables that a node binds, and keeps its digest. A digest that
        includes the first occurrence of a free variable isn't kept, since it differs from later
        ones."""
        if not isinstance(frame.node, PrimExpr | Stmt | n.PrimFunc | n.CommReducer):
            return
        self._depth = frame.depth
        if isinstance(frame.node, PrimExpr) and frame.met == self._free_count:
            self._known[id(frame.node), frame.depth] = digest

    def _read(self, value: Any) -> Iterator[Any]:
        yield _tag(type(value).__name__)
        if isinstance(value, Var):
            yield from self._entity(value, self._bound_var(value, is_free=True))
        elif isinstance(value, Buffer):
            yield from self._entity(value, self._bound_buffer(value, is_free=True))
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
            yield struct.pack("<q", len(value))  # bound buffers, or pairs
        else:
            yield _tag(repr(value))

    def _entity(self, value: _Entity, bound: Iterator[Any]) -> Iterator[Any]:
        if value in self._numbers:
            yield struct.pack("<q", self._numbers[value])
        elif self._map_free_vars:
            yield from bound
        else:
            self._met_free.add(value)
            yield struct.pack("<q", id(value))

    def _number(self, value: _Entity, is_free: bool) -> None:
        if is_free:
            self._free_count += 1
            self._numbers[value] = -self._free_count
            return
        if self._numbers.get(value, self._depth) != self._depth or value in self._met_free:
            self._known.clear()
        self._numbers[value] = self._depth
        self._depth += 1

    def _bound_var(self, var: Var, is_free: bool = False) -> Iterator[Any]:
        self._number(var, is_free)
        yield _tag(str(var.dtype))

    def _bound_buffer(self, buffer: Buffer, is_free: bool = False) -> Iterator[Any]:
        """The properties of a bound buffer that the comparison takes: everything except its
        names."""
        yield from self._bound_var(buffer.data, is_free)
        for each in fields(Buffer):
            if each.name not in ("data", "name"):
                yield getattr(buffer, each.name)
        self._number(buffer, is_free)

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
    """The bytes of a text, in a form that is no prefix of another text's."""
    made = text.encode("utf-8", "surrogatepass")
    return struct.pack("<q", len(made)) + made
