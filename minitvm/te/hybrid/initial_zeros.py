"""Fills the arrays of a hybrid program with initial zeros, only where these can be read."""

from __future__ import annotations

from collections.abc import Mapping

from minitvm.arith.atoms import structural_key
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, PrimExpr, Var
from minitvm.tir.functor import Node, find, walk_once, with_fields
from minitvm.tir.stmt import BufferStore, For, ForKind, Stmt

# For each dimension the variable of the loop that covers the whole dimension; None for an extent of
# 1.
_Element = tuple[Var | None, ...]
_Loops = Mapping[Var, For]


def begin_with_zeros(buffer: Buffer, body: Stmt, is_output: bool) -> Stmt:
    """`body`, behind loops that fill `buffer` with zeros if the program or its caller could read
    them.

    The zeros can't be read if every element is stored to before it is read. The caller reads all
    elements of an output; of allocated memory, only the reads in `body` count.

    Before::

        for i in range(4):
            B[i] = B[i] + A[i]

    After::

        for i in range(4):
            B[i] = 0.0
            B[i] = B[i] + A[i]
    """
    if not is_output and not _reads(buffer, body):
        return body
    if _first_stores(body, buffer, {}) is not None:
        return body
    return _filled(buffer, body, ())


def _filled(buffer: Buffer, body: Stmt, place: tuple[Var, ...]) -> Stmt:
    """`body`, in which the part of `buffer` at `place` is filled with zeros before it is touched:
    in the loop over its first dimension, if each iteration touches one element of this alone. The
    part is then in the cache, and the threads share the work."""
    match body:
        case For() if _is_one_each(buffer, body, len(place)):
            return with_fields(body, body=_filled(buffer, body.body, (*place, body.loop_var)))
        case s.SeqStmt():
            first = next((i for i, each in enumerate(body.seq) if _touches(each, buffer)), 0)
            filled = _filled(buffer, body.seq[first], place)
            return s.seq(*body.seq[:first], filled, *body.seq[first + 1 :])
    return s.seq(_fill(buffer, place), body)


def _is_one_each(buffer: Buffer, loop: For, dim: int) -> bool:
    """Whether each iteration of a loop over a dimension touches only the elements there."""
    return (
        dim < len(buffer.shape)
        and loop.kind in (ForKind.SERIAL, ForKind.PARALLEL)
        and _runs_over(loop, buffer.shape[dim])
        and not _touches(loop.min, buffer)
        and not _touches(loop.extent, buffer)
        and not any(each.buffer is buffer for each in find(e.BufferRef, loop.body))
        and all(
            each.indices[dim] is loop.loop_var
            for each in find((BufferLoad, BufferStore), loop.body)
            if each.buffer is buffer
        )
    )


def _fill(buffer: Buffer, place: tuple[Var, ...]) -> Stmt:
    """Fills the part of a buffer at `place`, the first indices."""
    extents = buffer.shape[len(place) :]
    axes = [Var(f"z{i}", extent.dtype) for i, extent in enumerate(extents)]
    body: Stmt = BufferStore(buffer, e.const(0, buffer.dtype), (*place, *axes))
    for axis, extent in zip(reversed(axes), reversed(extents), strict=True):
        body = For(axis, e.const(0, axis.dtype), extent, ForKind.SERIAL, body)
    return body


def _touches(node: Node, buffer: Buffer) -> bool:
    return any(
        isinstance(each, BufferLoad | BufferStore | e.BufferRef) and each.buffer is buffer
        for each in walk_once(node)
    )


def _reads(buffer: Buffer, *nodes: Node) -> list[BufferLoad]:
    return [each for each in find(BufferLoad, *nodes) if each.buffer is buffer]


def _first_stores(node: Stmt, buffer: Buffer, loops: _Loops) -> _Element | None:
    """The element to which `node`, inside of `loops`, stores before it reads any element, provided
    that the loops together store to every element. None where this isn't certain."""
    match node:
        case BufferStore():
            return _stored_element(node, buffer, loops)
        case For():
            if _may_be_empty(node, buffer) or _reads(buffer, node.min, node.extent):
                return None
            return _first_stores(node.body, buffer, {**loops, node.loop_var: node})
        case s.SeqStmt():
            return _first_of(node, buffer, loops)
        case s.IfThenElse(else_case=Stmt() as else_case):
            if _reads(buffer, node.condition):
                return None
            first = _first_stores(node.then_case, buffer, loops)
            other = _first_stores(else_case, buffer, loops)
            return first if _are_same(first, other) else None
        case s.LetStmt():
            if not _reads(buffer, node.value):
                return _first_stores(node.body, buffer, loops)
        case s.AssertStmt():
            if not _reads(buffer, node.condition, *node.values):
                return _first_stores(node.body, buffer, loops)
        case s.Allocate():
            return _first_stores(node.body, buffer, loops)
    return None


def _are_same(a: _Element | None, b: _Element | None) -> bool:
    return a is not None and b is not None and all(x is y for x, y in zip(a, b, strict=True))


def _first_of(node: s.SeqStmt, buffer: Buffer, loops: _Loops) -> _Element | None:
    """:func:`_first_stores` of several statements. The statements behind the first store may read
    only the elements stored."""
    statements = [each for each in node.seq if _touches(each, buffer)]
    if not statements:
        return None
    element = _first_stores(statements[0], buffer, loops)
    if element is None:
        return None
    for later in statements[1:]:
        for load in _reads(buffer, later):
            if any(v in loops and v is not i for v, i in zip(element, load.indices, strict=True)):
                return None
    return element


def _may_be_empty(loop: For, buffer: Buffer) -> bool:
    """Whether a loop may have no iterations although `buffer` has elements."""
    extent = e.const_int(loop.extent)
    return (extent is None or extent < 1) and not any(
        _is_same(loop.extent, d) for d in buffer.shape
    )


def _stored_element(store: BufferStore, buffer: Buffer, loops: _Loops) -> _Element | None:
    if store.buffer is not buffer or _reads(buffer, store):
        return None
    made: list[Var | None] = []
    for index, extent in zip(store.indices, buffer.shape, strict=True):
        if e.const_int(index) == 0 and e.const_int(extent) == 1:
            made.append(None)
            continue
        loop = loops.get(index) if isinstance(index, Var) else None
        if loop is None or any(v is index for v in made) or not _runs_over(loop, extent):
            return None
        made.append(loop.loop_var)
    return tuple(made)


def _runs_over(loop: For, extent: PrimExpr) -> bool:
    return e.const_int(loop.min) == 0 and _is_same(loop.extent, extent)


def _is_same(a: PrimExpr, b: PrimExpr) -> bool:
    return structural_key(a) == structural_key(b)
