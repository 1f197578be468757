"""Lets allocations share memory, and moves them out of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import loads
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import constant_bytes
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, PrimExpr, Var
from minitvm.tir.functor import Mutator, find, replace_buffers, walk_once
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, seq, with_body
from minitvm.tir.structural_equal import structural_equal

# Up to this number of bytes, code generation keeps an allocation on the stack, where it costs
# nothing.
STACK_BYTES = 16 * 1024


def reuse_storage(func: PrimFunc) -> PrimFunc:
    """Lets buffers whose live ranges don't overlap share one allocation, and allocates large
    buffers of constant size once around serial loops instead of in each iteration.

    Before::

        T = allocate(float32[n])
        U = allocate(float32[n])
        V = allocate(float32[n])
        for i in range(n):
            T[i] = A[i] + 1.0
        for i in range(n):
            U[i] = T[n - 1 - i]
        for i in range(n):
            V[i] = U[n - 1 - i]
        for i in range(n):
            B[i] = V[i]

    After::

        T = allocate(float32[n])
        U = allocate(float32[n])
        for i in range(n):
            T[i] = A[i] + 1.0
        for i in range(n):
            U[i] = T[n - 1 - i]
        for i in range(n):
            T[i] = U[n - 1 - i]
        for i in range(n):
            B[i] = T[i]

    A buffer takes the memory of an earlier buffer with the same dtype and scope, and with the same
    shape except that its own constant first dimension may be smaller. The last use of the earlier
    buffer comes before the first use of the later one, in the order in which the statements of one
    level run. It may also be the same statement, if that computes each element only from the same
    element of the earlier buffer. Both are allocated inside the same loops, so that iterations of a
    parallel loop keep their own memory.
    """
    body = _OneAllocationEach().stmt(_HoistAllocations().stmt(func.body))
    return with_body(func, _Reuse().stmt(body))


class _OneAllocationEach(Mutator):
    """Gives each copy of a loop's body buffers of its own, since the allocation of one copy may
    move around another copy."""

    def __init__(self) -> None:
        super().__init__()
        self._met: set[Buffer] = set()

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        buffer = node.buffer
        if buffer in self._met:
            own = replace(buffer, data=Var(buffer.data.name, buffer.data.dtype))
            node = s.Allocate(own, replace_buffers(node.body, {buffer: own}))
        self._met.add(node.buffer)
        return self.descend(node)


# -- Out of loops ---------------------------------------------------------------------------------


class _HoistAllocations(Mutator):
    """Moves allocations up, out of the outermost of some nested serial loops."""

    def __init__(self) -> None:
        super().__init__()
        self._in_serial_loop = False
        self._moving: dict[Buffer, None] = {}

    def visit_For(self, node: s.For) -> Stmt:
        outside, moving = self._in_serial_loop, self._moving
        through = node.kind == ForKind.SERIAL or (outside and node.kind == ForKind.UNROLLED)
        self._in_serial_loop, self._moving = through, {}
        made: Stmt = self.descend(node)
        found, self._in_serial_loop, self._moving = self._moving, outside, moving
        if through and outside:
            self._moving.update(found)
            return made
        return _allocated(found, made)

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        size = constant_bytes(node.buffer)
        if not self._in_serial_loop or size is None or size <= STACK_BYTES:
            return self.descend(node)
        self._moving[node.buffer] = None  # copies of a loop's body share the buffer
        return self.stmt(node.body)


def _allocated(buffers: Sequence[Buffer] | dict[Buffer, None], body: Stmt) -> Stmt:
    for buffer in reversed(list(buffers)):
        body = s.Allocate(buffer, body)
    return body


# -- Shared ---------------------------------------------------------------------------------------


class _Reuse(Mutator):
    """Shares memory level by level, the innermost first. A level consists of the statements and
    allocations inside of the same loops; it is processed once, at its outermost allocation."""

    def __init__(self) -> None:
        super().__init__()
        self._in_level = False

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def stmt(self, node: Stmt) -> Stmt:
        outside = self._in_level
        self._in_level = outside and isinstance(node, s.Allocate | s.SeqStmt)
        made = super().stmt(node)
        self._in_level = outside
        return made

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        is_outermost, self._in_level = not self._in_level, True
        made: s.Allocate = self.descend(node)
        if not is_outermost:
            return made
        buffers: list[Buffer] = []
        members: list[Stmt] = []
        _flatten(made, buffers, members)
        replaced = _sharing(buffers, members)
        if not replaced:
            return made
        body: Stmt = replace_buffers(seq(*members), replaced)
        return _allocated([each for each in buffers if each not in replaced], body)


def _flatten(node: Stmt, buffers: list[Buffer], members: list[Stmt]) -> None:
    """The allocations of a level, and its statements in the order in which they run."""
    match node:
        case s.Allocate():
            buffers.append(node.buffer)
            _flatten(node.body, buffers, members)
        case s.SeqStmt():
            for each in node.seq:
                _flatten(each, buffers, members)
        case _:
            members.append(node)


def _sharing(buffers: list[Buffer], members: list[Stmt]) -> dict[Buffer, Buffer]:
    """For each buffer that needs no memory of its own, the one whose memory it takes."""
    if len(buffers) < 2:
        return {}
    uses: dict[Buffer, list[int]] = {buffer: [] for buffer in buffers}
    owners = {buffer.data: buffer for buffer in buffers}
    whole: set[Buffer] = set()  # buffers passed to calls, which see the shape, or with views
    for place, member in enumerate(members):
        for each in find((BufferLoad, BufferStore, BufferRef), member):
            owner = owners.get(each.buffer.data)
            if owner is not None:
                uses[owner].append(place)
                if isinstance(each, BufferRef) or each.buffer is not owner:
                    whole.add(owner)
    order = [each for each in buffers if uses[each] and each not in whole and not each.strides]
    order.sort(key=lambda each: min(uses[each]))
    replaced: dict[Buffer, Buffer] = {}
    ends: dict[Buffer, tuple[int, Buffer]] = {}  # by memory: its buffer and that one's last use
    for buffer in order:
        first, last = min(uses[buffer]), max(uses[buffer])
        for owner, (end, tenant) in ends.items():
            if not _fits(buffer, owner):
                continue
            if end < first or (end == first and _in_place(members[first], tenant, buffer)):
                replaced[buffer] = owner
                ends[owner] = (last, buffer)
                break
        else:
            ends[buffer] = (last, buffer)
    return replaced


def _fits(buffer: Buffer, owner: Buffer) -> bool:
    """Whether `owner` has a place at the indices of every element of `buffer`."""
    if buffer.dtype != owner.dtype or buffer.scope != owner.scope or buffer.ndim != owner.ndim:
        return False
    if buffer.data_alignment > owner.data_alignment or buffer.elem_offset is not None:
        return False
    if not buffer.ndim or owner.elem_offset is not None:
        return owner.elem_offset is None
    if not all(map(structural_equal, buffer.shape[1:], owner.shape[1:])):
        return False
    mine, theirs = e.const_int(buffer.shape[0]), e.const_int(owner.shape[0])
    if mine is not None and theirs is not None:
        return mine <= theirs
    return structural_equal(buffer.shape[0], owner.shape[0])


def _in_place(member: Stmt, dying: Buffer, born: Buffer) -> bool:
    """Whether `member` stores each element of `born` once, and for this reads `dying` only at the
    same indices. `member` must be loops around one store, in which each index is the variable of
    one loop."""
    counters: list[Var] = []
    while isinstance(member, s.For):
        if loads(member.min, member.extent):
            return False
        counters.append(member.loop_var)
        member = member.body
    if not isinstance(member, BufferStore) or member.buffer is not born:
        return False
    if member.predicate is not None:  # a predicate may read other elements
        return False
    if not all(any(index is var for index in member.indices) for var in counters):
        return False
    if not is_pure(member.value):
        return False
    return all(
        each.buffer is not born
        and (each.buffer is not dying or _same_place(each.indices, member.indices))
        for each in walk_once(member.value, *member.indices)
        if isinstance(each, BufferLoad)
    )


def _same_place(a: tuple[PrimExpr, ...], b: tuple[PrimExpr, ...]) -> bool:
    return all(x is y or structural_equal(x, y) for x, y in zip(a, b, strict=True))
