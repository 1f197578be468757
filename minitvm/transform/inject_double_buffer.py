"""Double buffering: fills a buffer for the next iteration while this one uses its other half."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_stable, written_buffers
from minitvm.runtime.dtype import BOOL
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, Call, PrimExpr, Var, const
from minitvm.tir.functor import Mutator, find, rebuild, substitute, walk_once
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, seq, with_body
from minitvm.tir.structural_equal import structural_equal

SCOPE = "double_buffer_scope"


@final
@record()
class DoubleBufferOptions:
    """``tir.InjectDoubleBuffer`` of classic TVM: `split_loop`, 1 or even, is the number of
    iterations that are written out one after the other, so that the half that a statement uses is
    known when code is generated. 0 leaves the loop as it is."""

    split_loop: int = 0


def inject_double_buffer(func: PrimFunc, options: DoubleBufferOptions | None = None) -> PrimFunc:
    """A buffer under ``double_buffer_scope`` gets two halves. The half for the next iteration of
    the loop around it is filled before the half of this iteration is used.

    Before::

        for i in range(n):
            T = allocate(float32[4])
            # attr T.double_buffer_scope = 1
            for j in range(4):
                T[j] = A[i, j]
            for j in range(4):
                B[i, j] = T[j] + 1.0

    After::

        T = allocate(float32[2, 4])
        if likely(0 < n):
            for j in range(4):
                T[0, j] = A[0, j]
        for i in range(n):
            if likely(i + 1 < n):
                for j in range(4):
                    T[(i + 1) % 2, j] = A[i + 1, j]
            for j in range(4):
                B[i, j] = T[i % 2, j] + 1.0

    Raises
    ------
    CompileError
        When the loop is parallel or vectorised, or when filling the buffer reads or changes other
        memory that the loop writes, since it can't run ahead then. When values of an earlier
        iteration, or of another part of the program, are read from the buffer: a buffer allocated
        around the loop must be filled as a whole, and accessed in the loop only.
    """
    options = options or DoubleBufferOptions()
    if options.split_loop != 1 and options.split_loop % 2:
        raise CompileError(
            f"tir.InjectDoubleBuffer: split_loop: expected 0, 1 or an even number, got "
            f"{options.split_loop}"
        )
    return with_body(func, _DoubleBuffer(options.split_loop).stmt(func.body))


class _DoubleBuffer(Mutator):
    """Rewrites loops from the inside out: an attribute belongs to the innermost loop around it."""

    def __init__(self, split: int) -> None:
        super().__init__()
        self._split = split
        self._halves: dict[Buffer, Buffer] = {}

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        made: s.Allocate = self.descend(node)
        buffer = made.buffer
        if buffer in self._halves:  # its loop is further inside
            if any(getattr(each, "buffer", None) is buffer for each in walk_once(made.body)):
                raise CompileError(
                    f"double_buffer of {buffer.name}: expected accesses in its loop, found one "
                    "outside of it: copy the elements that are read there into another buffer"
                )
            return s.Allocate(self._halves[buffer], made.body)
        return made

    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        ahead: list[s.AttrStmt] = []
        body = _without_scopes(made.body, ahead)
        if not ahead:
            return made
        names = [
            (Var(f"{made.loop_var.name}_{what}", value.dtype), value)
            for what, value in (("begin", made.min), ("extent", made.extent))
            if not is_stable(value, made.body)  # the begin is read once, before the first iteration
        ]
        named = {value: name for name, value in names}
        made = rebuild(
            made,
            {"min": named.get(made.min, made.min), "extent": named.get(made.extent, made.extent)},
        )
        before: list[Stmt] = []
        moved: list[Buffer] = []
        for producer in ahead:
            body, first = self._run_ahead(made, body, producer)
            before.append(first)
        body = _without_allocations(body, {p.node for p in ahead}, moved)
        result = seq(*before, self._loop(made, body))
        for buffer in reversed(moved):
            result = s.Allocate(self._halves[buffer], result)
        for name, value in reversed(names):
            result = s.LetStmt(name, value, result)
        return result

    def _run_ahead(self, node: s.For, body: Stmt, producer: s.AttrStmt) -> tuple[Stmt, Stmt]:
        """The body that fills the buffer for the next iteration, and the statement that fills it
        for the first."""
        buffer, fill = producer.node, producer.body
        _check(node, body, producer)
        halves = self._halves[buffer] = _two_halves(buffer)
        var = node.loop_var
        upcoming = var + const(1, var.dtype)

        def half(of: PrimExpr) -> PrimExpr:
            return e.floormod(of - node.min, const(2, var.dtype))

        first = _Index(buffer, halves, const(0, var.dtype)).stmt(fill)
        first = substitute(first, {var: node.min})
        following = _Index(buffer, halves, half(var)).stmt(fill)
        following = substitute(following, {var: upcoming})
        used = _Index(buffer, halves, half(var), fill, _guarded(
            upcoming < node.min + node.extent, following
        )).stmt(body)  # fmt: skip
        return used, _guarded(const(0, var.dtype) < node.extent, first)

    def _loop(self, node: s.For, body: Stmt) -> Stmt:
        """The loop, split into `split_loop` iterations at a time if the option is given."""
        count = self._split
        if count < 2:
            return s.For(node.loop_var, node.min, node.extent, node.kind, body, node.annotations)
        var, dtype = node.loop_var, node.loop_var.dtype
        outer, inner = Var(f"{var.name}.outer", dtype), Var(f"{var.name}.inner", dtype)
        place = outer * const(count, dtype) + inner
        body = substitute(body, {var: node.min + place})
        body = _guarded(place < node.extent, body)
        body = s.For(inner, const(0, dtype), const(count, dtype), ForKind.UNROLLED, body)
        rounds = e.floordiv(node.extent + const(count - 1, dtype), const(count, dtype))
        return s.For(outer, const(0, dtype), rounds, node.kind, body, node.annotations)


def _without_scopes(node: Stmt, found: list[s.AttrStmt]) -> Stmt:
    """`node` with the scopes replaced by their bodies, except for scopes inside of loops."""
    match node:
        case s.AttrStmt() if node.attr_key == SCOPE:
            found.append(node)
            return node.body
        case s.SeqStmt():
            return s.SeqStmt(tuple([_without_scopes(each, found) for each in node.seq]))
        case s.Allocate():
            return s.Allocate(node.buffer, _without_scopes(node.body, found))
        case s.AttrStmt():
            return s.AttrStmt(
                node.node, node.attr_key, node.value, _without_scopes(node.body, found)
            )
    return node


def _without_allocations(node: Stmt, buffers: set[Buffer], found: list[Buffer]) -> Stmt:
    match node:
        case s.Allocate() if node.buffer in buffers:
            found.append(node.buffer)
            return _without_allocations(node.body, buffers, found)
        case s.Allocate():
            return s.Allocate(node.buffer, _without_allocations(node.body, buffers, found))
        case s.SeqStmt():
            members = [_without_allocations(each, buffers, found) for each in node.seq]
            return s.SeqStmt(tuple(members))
        case s.AttrStmt():
            body = _without_allocations(node.body, buffers, found)
            return s.AttrStmt(node.node, node.attr_key, node.value, body)
    return node


def _guarded(condition: PrimExpr, body: Stmt) -> Stmt:
    return s.IfThenElse(Call(BOOL, "likely", (condition,)), body)


def _two_halves(buffer: Buffer) -> Buffer:
    two = const(2, buffer.shape[0].dtype) if buffer.shape else const(2)
    strides = buffer.strides
    if strides:
        strides = (buffer.shape[0] * strides[0], *strides)
    return Buffer(
        buffer.data, (two, *buffer.shape), buffer.dtype, buffer.name, strides, buffer.elem_offset,
        buffer.scope, buffer.data_alignment, buffer.offset_factor, buffer.auto_broadcast,
    )  # fmt: skip


class _Index(Mutator):
    """Turns accesses of a buffer into accesses of one of its halves, and replaces one statement."""

    def __init__(
        self,
        buffer: Buffer,
        halves: Buffer,
        half: PrimExpr,
        old: Stmt | None = None,
        made: Stmt | None = None,
    ) -> None:
        super().__init__()
        self._buffer, self._halves, self._half = buffer, halves, half
        self._old, self._new = old, made

    def stmt(self, node: Stmt) -> Stmt:
        if node is self._old and self._new is not None:
            return self._new
        return super().stmt(node)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        made: s.AttrStmt = self.descend(node)
        if made.node is not self._buffer:
            return made
        return s.AttrStmt(self._halves, made.attr_key, made.value, made.body)

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        made: BufferLoad = self.descend(node)
        if made.buffer is not self._buffer:
            return made
        return BufferLoad(self._halves, (self._half, *made.indices))

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        made: BufferStore = self.descend(node)
        if made.buffer is not self._buffer:
            return made
        return BufferStore(self._halves, made.value, (self._half, *made.indices))


def _check(node: s.For, body: Stmt, producer: s.AttrStmt) -> None:
    """Checks that filling the buffer early and the rest of the loop don't depend on each other."""
    buffer, fill = producer.node, producer.body
    where = f"double_buffer of {buffer.name} in loop {node.loop_var.name}"
    if node.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
        raise CompileError(
            f"{where}: expected a serial loop, found {node.kind.name.lower()}: its iterations have "
            "no order in which one could run ahead"
        )
    for each in walk_once(body):
        if not isinstance(each, BufferLoad | BufferStore | BufferRef):
            continue
        if each.buffer.data is buffer.data and (
            each.buffer is not buffer or isinstance(each, BufferRef)
        ):
            raise CompileError(
                f"{where}: expected accesses of its elements by its own name, found the whole "
                f"buffer passed to a call or its memory under the name {each.buffer.name}"
            )
    is_fresh = any(
        isinstance(each, s.Allocate) and each.buffer is buffer for each in walk_once(body)
    )
    if not is_fresh and not _is_filled(fill, buffer):
        raise CompileError(
            f"{where}: expected plain loops that fill all of it first, since it is allocated "
            "around the loop and would keep elements of an earlier iteration: allocate it in "
            "the loop"
        )
    inside = {each.buffer.data for each in find(s.Allocate, fill)}
    rest = _Drop(fill).stmt(body)
    filled, changed = _memory(written_buffers(fill)) - inside, _memory(written_buffers(rest))
    read = _memory(each.buffer for each in find(BufferLoad, fill))
    used = _memory(each.buffer for each in find(BufferLoad, rest))
    clash = (read & changed) | ((filled - {buffer.data}) & (used | changed))
    if clash or not is_pure(fill):
        names = ", ".join(sorted(each.name for each in clash)) or "a call with effects"
        raise CompileError(
            f"{where}: expected it to be filled independently of the rest of the loop, found both "
            f"to use {names}"
        )


def _memory(buffers: Iterable[Buffer]) -> set[Var]:
    return {each.data for each in buffers}


def _is_filled(node: Stmt, buffer: Buffer) -> bool:
    """Whether a statement begins with loops that store to each element of `buffer` without loading
    any."""
    while isinstance(node, s.SeqStmt) and node.seq:
        node = node.seq[0]
    extents: dict[Var, PrimExpr] = {}
    while isinstance(node, s.For) and e.const_int(node.min) == 0:
        extents[node.loop_var] = node.extent
        node = node.body
    if not isinstance(node, BufferStore) or node.buffer is not buffer or node.predicate is not None:
        return False
    if any(isinstance(each, BufferLoad) and each.buffer is buffer for each in walk_once(node)):
        return False
    counted = [index for index in node.indices if isinstance(index, Var) and index in extents]
    return len(set(counted)) == buffer.ndim and all(
        structural_equal(extents[index], extent)
        for index, extent in zip(counted, buffer.shape, strict=True)
    )


class _Drop(Mutator):
    def __init__(self, dropped: Stmt) -> None:
        super().__init__()
        self._dropped = dropped

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def stmt(self, node: Stmt) -> Stmt:
        return seq() if node is self._dropped else super().stmt(node)
