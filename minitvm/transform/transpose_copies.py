"""Transposes in vector registers, block by block, in loops that copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from typing import final

from minitvm.arith.accesses import neighbours, step_of
from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_stable
from minitvm.arith.fused_index import joined
from minitvm.runtime.dtype import UINT16, DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var
from minitvm.tir.functor import Mutator, mentions, substitute, walk_once
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, with_body

# Rows and columns of a block, by the bytes of an element. So many vectors are in registers at once;
# the smallest targets have 16 registers, and a vector is 16 or 32 bytes long.
_BLOCK = {1: 16, 2: 8, 4: 8, 8: 4}
_LEAST = 4  # a smaller block saves nothing
_PART = 128  # bits within which an instruction takes lanes of two vectors in turn


def transpose_copies(func: PrimFunc) -> PrimFunc:
    """Finds a vectorized loop that reads elements far apart, inside of a serial loop that steps to
    their neighbours; reads the neighbours as vectors, and transposes the vectors in registers.

    Before::

        for k in range(n):
            for j in vectorized(32):
                P[k, j] = B[j, k]

    After, of float64, in blocks of 4 x 4, two for each cache line::

        if n >= 8:
            for k_block in range((n + 7) // 8):
                k_begin = min(k_block * 8, n - 8)
                for j_block in range(8):
                    j_begin = j_block * 4
                    for k_part in range(2):
                        row = B[j_begin, ramp(k_begin + k_part * 4, 1, 4)]
                        row_1 = B[j_begin + 1, ramp(k_begin + k_part * 4, 1, 4)]
                        ...
                        lanes = vector_shuffle(row, row_1, 0, 4, 2, 6)
                        ...
                        P[k_begin + k_part * 4, ramp(j_begin, 1, 4)] = lanes_4
                        ...
        else:
            ...  # as before

    The last block ends where the loop does, so it may copy elements of the block before it again.
    A row may go on from one dimension to the next, as in ``B[j, k // m, k % m]``. The value may be
    cast, and may be chosen by ``if_then_else`` under a condition that is the same along the row, as
    at the end of a padded layout. The two loops must be directly inside each other, around a single
    store.
    """
    if not any(isinstance(each, s.For) and _copy_of(each) for each in walk_once(func.body)):
        return func
    return with_body(func, _Loops().stmt(func.body))


class _Loops(Mutator):
    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: s.For) -> Stmt:
        copy = _copy_of(node)
        return self.descend(node) if copy is None else _by_blocks(copy)


# -- Which loops -----------------------------------------------------------------------------------


@final
@record(eq=False)
class _Copy:
    """``for k: for j in vectorized: store``: a row lies along k and is stored along j."""

    along: s.For
    across: s.For
    store: BufferStore
    size: int  # of a block, in both directions


def _copy_of(along: s.For) -> _Copy | None:
    """A loop as a transposing copy; None for any other loop."""
    across = along.body
    if along.kind != ForKind.SERIAL or not isinstance(across, s.For):
        return None
    store = across.body
    if isinstance(store, s.AttrStmt) and store.attr_key == "padded_buffer":
        store = store.body
    if across.kind != ForKind.VECTORIZED or not isinstance(store, BufferStore):
        return None
    k, j = along.loop_var, across.loop_var
    place = neighbours(store.buffer, store.indices, j)
    if store.predicate is not None or place is None or mentions(k, store.indices[place]):
        return None
    if not _is_row(store.value, k) or not _is_scattered(store.value, j):
        return None
    # Stores may come in another order, and be done twice: nothing that is evaluated sees them.
    evaluated = (along.min, along.extent, store.value, *store.indices)
    if not all(is_pure(each) and is_stable(each, store) for each in evaluated):
        return None
    size = _block_size(store.value.dtype, along, across)
    return None if size is None else _Copy(along, across, store, size)


def _block_size(dtype: DType, along: s.For, across: s.For) -> int | None:
    """The size of the blocks, no larger than the loops' known extents; None if it is too small to
    pay, or there is no form for the dtype."""
    lanes, begin, steps = (e.const_int(each) for each in (across.extent, across.min, along.extent))
    if lanes is None or begin is None or dtype.is_bool or dtype.lanes != 1:
        return None
    size = _BLOCK[dtype.itemsize]
    while size > min(lanes, size if steps is None else steps):
        size //= 2
    return size if size >= _LEAST else None


def _is_row(value: PrimExpr, k: Var) -> bool:
    """Whether `value` for successive `k` is read as a vector of neighbours."""
    match value:
        case e.IntImm() | e.FloatImm():
            return True
        case e.Cast(value=inner):
            return not inner.dtype.is_bool and _is_row(inner, k)
        case Call(op="if_then_else", args=(condition, a, b)):
            return not mentions(k, condition) and _is_row(a, k) and _is_row(b, k)
        case BufferLoad(buffer, indices, None):
            return _is_line(buffer, indices, k)
    return False


def _is_line(buffer: Buffer, indices: Sequence[PrimExpr], var: Var) -> bool:
    """Whether a step of `var` is a step to the neighbour in memory, from one dimension on to the
    next included."""
    found = [(i, dim) for i, dim in joined(buffer, tuple(indices)) if mentions(var, i)]
    if len(found) != 1 or buffer.dtype.lanes != 1:
        return False
    ((index, dim),) = found
    inside = [e.const_int(extent) or 0 for extent in buffer.shape[dim + 1 :]]
    stride = e.const_int(buffer.strides[dim]) if buffer.strides else prod(inside)
    return stride == 1 and step_of(index, var) == 1


def _is_scattered(value: PrimExpr, j: Var) -> bool:
    """Whether elements for successive `j` are neither the same nor neighbours."""
    loads = [each for each in walk_once(value) if isinstance(each, BufferLoad)]
    return any(
        mentions(j, *load.indices) and not _is_near(load.buffer, load.indices, j) for load in loads
    )


def _is_near(buffer: Buffer, indices: Sequence[PrimExpr], j: Var) -> bool:
    """Whether a step of `j` is one to a neighbour, forwards or backwards."""
    return neighbours(buffer, indices, j) is not None or (
        step_of(indices[-1], j) == -1 and not mentions(j, *indices[:-1])
    )


# -- Blocks ----------------------------------------------------------------------------------------

_Begin = tuple[Var, PrimExpr]  # the variable of a loop, and its value where a block begins


def _by_blocks(copy: _Copy) -> Stmt:
    along, across, size = copy.along, copy.across, copy.size
    steps, lanes = e.const_int(along.extent), e.const_int(across.extent)
    assert lanes is not None
    # A cache line of each row at once, so that it need not stay in the cache.
    parts = max(1, CACHE_LINE // (size * copy.store.buffer.dtype.itemsize))
    if steps is not None:
        parts = min(parts, steps // size)

    def columns(k: PrimExpr) -> Stmt:
        return _blocks(across, size, lambda j: part(k, j))

    def part(k: PrimExpr, j: PrimExpr) -> Stmt:
        dtype = along.loop_var.dtype
        return _loop(
            f"{along.loop_var.name}_part",
            e.const(parts, dtype),
            lambda number: _block(copy, k + number * size, j),
        )

    made = _blocks(along, parts * size, columns)
    if steps is not None:
        return made
    return s.IfThenElse(along.extent >= parts * size, made, along)


def _blocks(loop: s.For, size: int, body: Callable[[PrimExpr], Stmt]) -> Stmt:
    """A loop over blocks of `size` iterations of `loop`. `body` gets the begin of a block; the last
    block ends where `loop` does."""
    name, dtype, steps = loop.loop_var.name, loop.loop_var.dtype, e.const_int(loop.extent)

    def block(number: PrimExpr) -> Stmt:
        begin = number * size
        if steps is None or (steps % size and steps > size):
            begin = e.minimum(begin, loop.extent - size)
        begin = loop.min + begin
        if isinstance(begin, Var | e.IntImm):
            return body(begin)
        var = Var(f"{name}_begin", dtype)
        return s.LetStmt(var, begin, body(var))

    return _loop(f"{name}_block", (loop.extent + (size - 1)) // size, block)


def _loop(name: str, extent: PrimExpr, body: Callable[[PrimExpr], Stmt]) -> Stmt:
    if e.const_int(extent) == 1:
        return body(e.const(0, extent.dtype))
    var = Var(name, extent.dtype)
    return s.For(var, e.const(0, extent.dtype), extent, ForKind.SERIAL, body(var))


def _block(copy: _Copy, k: PrimExpr, j: PrimExpr) -> Stmt:
    """One block, from registers to registers: it begins at `k` and `j`."""
    along, across = copy.along.loop_var, copy.across.loop_var
    store, size = copy.store, copy.size
    network = _Network()
    rows: list[PrimExpr] = [
        network.named("row", _shuffled_as(row))
        for row in _rows(store.value, (along, k), (across, j), size)
    ]
    places = _vectors_at(store.buffer, store.indices, (across, j), (along, k), size)
    stores = [
        BufferStore(store.buffer, _stored_as(column, store), place)
        for place, column in zip(places, _transposed(rows, network), strict=True)
    ]
    body: Stmt = s.seq(*stores)
    for var, value in reversed(network.values):
        body = s.LetStmt(var, value, body)
    return body


def _rows(value: PrimExpr, along: _Begin, across: _Begin, size: int) -> list[PrimExpr]:
    """`value` as vectors over the first variable, for as many values of the second."""
    wide = value.dtype.with_lanes(size)
    match value:
        case e.IntImm() | e.FloatImm():
            return [e.Broadcast(value, size)] * size
        case e.Cast(value=inner):
            return [e.Cast(wide, row) for row in _rows(inner, along, across, size)]
        case Call(op="if_then_else", args=(condition, *values)):
            conditions = _moved(condition, across, size)
            branches = [_rows(each, along, across, size) for each in values]
            return [Call(wide, value.op, args) for args in zip(conditions, *branches, strict=True)]
        case BufferLoad(buffer, indices):
            places = _vectors_at(buffer, indices, along, across, size)
            return [BufferLoad(buffer, place) for place in places]
    raise e.unknown_node(value, "a transposing copy")


def _vectors_at(
    buffer: Buffer, indices: Sequence[PrimExpr], along: _Begin, across: _Begin, size: int
) -> list[tuple[PrimExpr, ...]]:
    """The indices of neighbours along the first variable, for as many values of the second."""
    moved = [
        [_in_lanes(each, along, size) for each in _moved(index, across, size)] for index in indices
    ]
    return list(zip(*moved, strict=True))


def _in_lanes(index: PrimExpr, along: _Begin, size: int) -> PrimExpr:
    """`index` for the first `size` values of a variable: neighbours, or quotients and remainders
    of neighbours."""
    var, begin = along
    if not mentions(var, index):
        return index
    if step_of(index, var) == 1:
        return e.Ramp(substitute(index, {var: begin}), e.const(1, index.dtype), size)
    assert isinstance(index, e.FloorDiv | e.FloorMod)
    return type(index)(_in_lanes(index.a, along, size), e.Broadcast(index.b, size))


def _moved(node: PrimExpr, place: _Begin, size: int) -> list[PrimExpr]:
    """`node` for the first `size` values of a variable; where possible as one index plus constants,
    so that the address is computed once."""
    var, begin = place
    if not mentions(var, node):
        return [node] * size
    step = step_of(node, var) if node.dtype.is_int else None
    if step is None:
        return [substitute(node, {var: begin + i}) for i in range(size)]
    first = substitute(node, {var: begin})
    return [first + i * step for i in range(size)]


def _shuffled_as(row: PrimExpr) -> PrimExpr:
    """A row in the dtype of its shuffles: floats of 16 bits as integers with the same bits."""
    if not row.dtype.is_float or row.dtype.bits != 16:
        return row
    bits = UINT16.with_lanes(row.dtype.lanes)
    if isinstance(row, Call) and row.op == "if_then_else":
        condition, *values = row.args
        return Call(bits, row.op, (condition, *map(_shuffled_as, values)))
    return Call(bits, "reinterpret", (row,))


def _stored_as(column: PrimExpr, store: BufferStore) -> PrimExpr:
    wanted = store.buffer.dtype.with_lanes(column.dtype.lanes)
    return column if column.dtype == wanted else Call(wanted, "reinterpret", (column,))


@final
@record(frozen=False)
class _Network:
    """Vectors that are each computed once, in order."""

    values: list[tuple[Var, PrimExpr]] = field(default_factory=list)

    def named(self, name: str, value: PrimExpr) -> Var:
        """The variable that stands for `value`."""
        self.values.append((Var(name, value.dtype), value))
        return self.values[-1][0]

    def shuffled(self, a: PrimExpr, b: PrimExpr, lanes: Sequence[PrimExpr]) -> Var:
        return self.named("lanes", Call(a.dtype, "vector_shuffle", (a, b, *lanes)))


def _transposed(rows: list[PrimExpr], network: _Network) -> list[PrimExpr]:
    """The columns of a square of as many rows as lanes.

    There are two stages; a step takes one instruction a vector. Within the parts of vectors, the
    lanes of two rows half a part apart are taken in turn, until lane i of a part comes from row i::

        a0 a1 a2 a3    c0 c1 c2 c3    ->    a0 c0 a1 c1    a2 c2 a3 c3

    Then whole parts: the even and the odd ones of two vectors, until they stand in rows, too::

        A0 A1 A2 A3    B0 B1 B2 B3    ->    A0 A2 B0 B2    A1 A3 B1 B3
    """
    size = len(rows)
    part = min(size, _PART // rows[0].dtype.bits)
    numbers = [e.const(lane) for lane in range(2 * size)]
    low, high = (
        [
            numbers[lane]
            for first in range(half, size, part)
            for i in range(first, first + part // 2)
            for lane in (i, size + i)
        ]
        for half in (0, part // 2)
    )
    for _ in range(part.bit_length() - 1):
        rows = [
            network.shuffled(rows[i], rows[i + part // 2], lanes)
            for first in range(0, size, part)
            for i in range(first, first + part // 2)
            for lanes in (low, high)
        ]
    even, odd = (
        [
            numbers[i]
            for first in range(begin, 2 * size, 2 * part)
            for i in range(first, first + part)
        ]
        for begin in (0, part)
    )
    for _ in range((size // part).bit_length() - 1):
        rows = [
            network.shuffled(rows[first + i], rows[first + part + i], lanes)
            for lanes in (even, odd)
            for first in range(0, size, 2 * part)
            for i in range(part)
        ]
    return rows
