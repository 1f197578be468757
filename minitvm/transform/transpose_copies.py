"""Computes loops that read across a tensor in blocks, and transposes the blocks in vector
registers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial, reduce
from math import prod
from typing import final

from minitvm.arith.accesses import neighbours, step_of
from minitvm.arith.atoms import is_pure, structural_key
from minitvm.arith.effects import is_lazy, is_stable, loads
from minitvm.arith.fused_index import joined
from minitvm.arith.guards import clipped, conjuncts, limits
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import UINT16, DType
from minitvm.runtime.host import CACHE_LINE, LINES_AT_ONCE
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Var
from minitvm.tir.functor import (
    Mutator,
    children,
    find,
    mentions,
    rebuild,
    substitute,
    walk_once,
    with_fields,
)
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.op import is_likely
from minitvm.tir.shuffles import Shuffles
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt, with_body

VECTOR_BYTES = 32
"""A vector register of a common target."""
_REGISTERS = 16  # every target has at least these
_LEAST = 4  # a smaller block saves nothing
_FEW = 6  # the rows that are mixed into one vector, at most
_MORE = 7  # of registers wider than common ones: eight rows are a block
_PICKED = (2, 3)  # columns of symbolic extent that are picked or mixed
_UNKNOWN = 1 << 30  # iterations: there may be as many
_PART = 16  # the bytes within which an instruction interleaves the lanes of two vectors


def transpose_copies(func: PrimFunc, vector_bytes: int = VECTOR_BYTES) -> PrimFunc:
    """Finds a vectorized loop that reads elements far apart, inside of a serial loop that steps to
    their neighbours; reads the neighbours as vectors, and transposes the vectors in registers.

    Before::

        for k in range(n):
            for j in vectorized(32):
                P[k, j] = B[j, k]

    After, of float64, in blocks of 4 x 4, four for two cache lines of P::

        if n >= 4:
            for j_lines in range(2):
                for k_block in range((n + 3) // 4):
                    k_begin = min(k_block * 4, n - 4)
                    for j_block in range(4):
                        j_begin = (j_lines * 4 + j_block) * 4
                        row = B[j_begin, ramp(k_begin, 1, 2)]
                        row_1 = B[j_begin + 1, ramp(k_begin, 1, 2)]
                        ...
                        lanes = vector_shuffle(row, row_2, 0, 1, 2, 3)
                        lanes_1 = vector_shuffle(row_1, row_3, 0, 1, 2, 3)
                        lanes_2 = vector_shuffle(lanes, lanes_1, 0, 4, 2, 6)
                        ...
                        P[k_begin, ramp(j_begin, 1, 4)] = lanes_2
                        ...
        else:
            ...  # as before, one by one

    So whole cache lines are stored, and the rows that belong to a few lines are read to their ends.
    The last block ends where the loop does, so it may compute elements of the block before it
    again. A row may continue from one dimension into the next, as in ``B[j, k // m, k % m]``. A
    part of the value that makes one row of several, or of wider elements, is computed before it is
    transposed. All else is computed from the transposed lanes, as in
    ``P[k, j] = B[j, k] + C[k, j]``::

        for lane in vectorized(4):
            P[k_begin, j_begin + lane] = vector_extract(lanes_2, lane) + C[k_begin, j_begin + lane]
            ...

    Two to seven rows whose columns are stored one behind the other, as in a ``P[k, j]`` with so
    few columns, are mixed into one vector::

        P[ramp(k_begin * 2, 1, 32) // 2, ramp(k_begin * 2, 1, 32) % 2] = vector_shuffle(
            B[0, ramp(k_begin, 1, 16)], B[1, ramp(k_begin, 1, 16)], 0, 16, 1, 17, ...
        )

    Loops of symbolic extents get several forms: the blocks, blocks of 4 x 4, two or three rows that
    are mixed, two or three columns that are picked from the vectors in which they lie, and the
    original loops. At a call, the first form that fits runs.

    One of the two loops must be directly inside the other, around a single store, which may be
    under conditions on the lanes. A stored vector has `vector_bytes`; with 0 nothing changes.
    """
    if not vector_bytes:
        return func
    if not any(_nest_of(each, 0) for each in find(s.For, func.body)):
        return func
    return with_body(func, _Loops(vector_bytes).stmt(func.body))


class _Loops(Mutator):
    def __init__(self, vector_bytes: int) -> None:
        super().__init__()
        self._vector_bytes = vector_bytes

    def visit_For(self, node: s.For) -> Stmt:
        nest = _nest_of(node, self._vector_bytes)
        return self.descend(node) if nest is None else _by_blocks(nest)


# -- Which loops -----------------------------------------------------------------------------------


@final
@record(eq=False)
class _Turned:
    """A part of the value that is computed along the rows and then transposed. `places` are the
    equal subterms of the value for which it stands. Elements may be read only where `conditions`
    hold."""

    places: tuple[PrimExpr, ...]
    conditions: tuple[PrimExpr, ...]

    @property
    def value(self) -> PrimExpr:
        return self.places[0]


@final
@record(eq=False)
class _Nest:
    """``for k: for j in vectorized: store``: a row lies along k and is stored along j.

    `across` has no guards. `body` is the store with the statements around it in the loop of j. A
    block has `height` steps of k and `width` steps of j. If rows are `mixed`, the block has all
    their columns, and no width.
    """

    along: s.For
    across: s.For
    body: Stmt
    store: BufferStore
    turned: tuple[_Turned, ...]
    height: int
    width: int | None
    vector_bytes: int

    @property
    def is_copy(self) -> bool:
        """Whether the transposed value is stored as it is, without conditions."""
        (first, *_), store = self.turned, self.store
        return first.value is store.value and not first.conditions and self.body is store

    def computed_along(self) -> _Nest | None:
        """The nest with the whole value computed along the rows; None where that can't be, or is
        wider than the elements that are read, and for a store under conditions."""
        value = self.store.value
        across = _Across(self.along.loop_var, self.across.loop_var)
        narrow = across.bytes_read(value)
        if self.body is not self.store or not narrow or value.dtype.itemsize > narrow:
            return None
        return replace(self, turned=(_Turned((value,), ()),))


def _nest_of(along: s.For, vector_bytes: int) -> _Nest | None:
    """A loop as a nest to go through by blocks; None for any other loop."""
    across = along.body
    if along.kind not in (ForKind.SERIAL, ForKind.UNROLLED) or not isinstance(across, s.For):
        return None
    if across.kind != ForKind.VECTORIZED:
        return None
    lanes = e.const_int(across.extent)
    if lanes is None or e.const_int(across.min) is None:
        return None
    across = _without_guards(across)
    if along.kind == ForKind.UNROLLED and e.const_int(across.extent) is None:
        return None  # so many blocks can't be written out
    lanes = min(lanes, e.const_int(across.extent) or lanes)
    store, conditions = _store_in(across.body)
    k, j = along.loop_var, across.loop_var
    if store is None or mentions(k, across.min, across.extent, *conditions):
        return None
    place = _place_in_line(store.buffer, store.indices, j)
    if store.predicate is not None or place is None or mentions(k, place):
        return None
    # Stores may run in another order, and twice, since no expression here reads them.
    evaluated = (along.min, along.extent, store.value, *store.indices, *conditions)
    if not all(is_pure(each) and is_stable(each, store) for each in evaluated):
        return None
    turned = _Across(k, j).parts(store.value, conditions)
    bits = [dtype for each in turned for dtype in (each.value.dtype, store.buffer.dtype)]
    if not turned or any(each.is_bool or each.lanes != 1 for each in bits):
        return None
    made = _Nest(along, across, across.body, store, turned, 0, 0, vector_bytes)
    is_known = None not in map(e.const_int, (across.extent, store.buffer.shape[-1]))
    mixed = _mixed_nest(made, lanes) if is_known else None
    size = _block_size(turned, along, lanes, vector_bytes)
    return mixed or (None if size is None else replace(made, height=size[0], width=size[1]))


def ends_of_blocks(body: Stmt) -> Set[PrimExpr]:
    """The conditions that only end the vectorized loops of nests that are gone through by blocks:
    a loop of blocks ends where they do, and needs no main part without them."""
    found: set[PrimExpr] = set()
    for along in find(s.For, body):
        if _nest_of(along, VECTOR_BYTES) is not None:
            assert isinstance(along.body, s.For)
            across, inner = along.body.loop_var, along.body.body
            while isinstance(inner, s.IfThenElse):
                found |= {each for each in conjuncts(inner.condition) if mentions(across, each)}
                inner = inner.then_case
    return found


def _store_in(body: Stmt) -> tuple[BufferStore | None, tuple[PrimExpr, ...]]:
    """The only store of a loop's body, and the conditions on it."""
    match body:
        case BufferStore():
            return body, ()
        case s.AttrStmt(_, "padded_buffer", _, inner):
            return _store_in(inner)
        case s.IfThenElse(condition, inner, None):
            store, conditions = _store_in(inner)
            return store, (condition.args[0] if is_likely(condition) else condition, *conditions)
    return None, ()


def _without_guards(across: s.For) -> s.For:
    """A vectorized loop that ends where guards exclude all further lanes."""
    prover = Prover()
    ends = [each for each in limits(prover, across) if each.factor < 0 and each.guards]
    return clipped(prover, across, ends)


def _block_size(
    turned: Sequence[_Turned], along: s.For, lanes: int, vector_bytes: int
) -> tuple[int, int] | None:
    """The height and the width of the blocks, no larger than the loops' known extents; None if it
    is too small to pay."""
    steps = e.const_int(along.extent)
    itemsize = max(each.value.dtype.itemsize for each in turned)
    height = _power_of_two(lanes, _PART // itemsize, *([] if steps is None else [steps]))
    width = _power_of_two(lanes, vector_bytes // itemsize)
    return None if min(height, width) < _LEAST else (height, width)


def _power_of_two(extent: int, wanted: int, *extents: int) -> int:
    """The greatest power of two up to all extents and up to `wanted`, which counts as a least block
    if it is smaller; 0 for an empty extent."""
    most = min(extent, max(wanted, _LEAST), *extents)
    return 1 << (most.bit_length() - 1) if most > 0 else 0


def _mixed_nest(nest: _Nest, rows: int) -> _Nest | None:
    """The nest with the elements of a few rows mixed into one vector; None where they aren't stored
    interleaved. A symbolic extent across is that number of rows."""
    store, along, across = nest.store, nest.along, nest.across
    k, j = along.loop_var, across.loop_var
    few = _FEW if nest.vector_bytes <= VECTOR_BYTES else _MORE
    whole = nest.computed_along() if 1 < rows <= few else None
    if whole is None or not _is_whole(store, across, rows):
        return None
    outer, row = _row_of(store)
    if step_of(row, k) != 1 or mentions(k, *outer) or mentions(j, *outer, row):
        return None
    size = _mixed_size(nest, along, rows)
    if size is None:
        return None
    counted = with_fields(across, extent=e.const(rows, across.extent.dtype))
    return replace(whole, across=counted, height=size, width=None)


def _is_whole(access: BufferLoad | BufferStore, loop: s.For, count: int) -> bool:
    """Whether a loop of `count` iterations goes along the whole of a last dimension, or may do so
    where that is symbolic, and the next row follows in memory."""
    buffer, places = access.buffer, joined(access.buffer, access.indices)
    last, dimension = places[-1]
    known = {e.const_int(loop.extent), e.const_int(buffer.shape[dimension])}
    if not known <= {count, None} or e.const_int(loop.min) != 0:
        return False
    if buffer.strides or buffer.layout == "left" or buffer.auto_broadcast:
        return False
    is_first = last is loop.loop_var or (None in known and step_of(last, loop.loop_var) == 1)
    return is_first and len(places) > 1


def _mixed_size(nest: _Nest, loop: s.For, rows: int) -> int | None:
    """The number of elements of each of a few rows that fill the registers; None where the loop
    along the rows is too short."""
    itemsize, steps = nest.store.value.dtype.itemsize, e.const_int(loop.extent)
    size = _LEAST
    most = CACHE_LINE // itemsize if steps is None else min(CACHE_LINE // itemsize, steps)
    while 2 * size <= most and 2 * (2 * size) * rows * itemsize <= _REGISTERS * nest.vector_bytes:
        size *= 2
    return size if size <= most else None


def _row_of(access: BufferLoad | BufferStore) -> tuple[tuple[PrimExpr, ...], PrimExpr]:
    """The index of an access in all but the last dimension, in as many dimensions as are joined,
    and the indices of the dimensions before these."""
    *before, (row, _), _ = joined(access.buffer, access.indices)
    return access.indices[: before[-1][1] + 1 if before else 0], row


class _Across:
    """Finds the parts of a value that read rows along `k`, whose neighbours along `j` lie apart."""

    def __init__(self, k: Var, j: Var) -> None:
        self._k, self._j = k, j
        self._rows: dict[PrimExpr, bool] = {}

    def parts(self, value: PrimExpr, conditions: tuple[PrimExpr, ...]) -> tuple[_Turned, ...]:
        """The largest parts that are best computed along the rows, equal ones once."""
        found: dict[Hashable, _Turned] = {}
        for place, under in self._parts(value, conditions):
            key = structural_key((place, *under))
            known = found.get(key)
            places = (place,) if known is None else (*known.places, place)
            found[key] = _Turned(places, under)
        return self._shared(value, conditions, list(found.values()))

    def bytes_read(self, value: PrimExpr) -> int:
        """The bytes of the elements that a value computed along a row reads; 0 for other values."""
        read = {structural_key(load): load.dtype.itemsize for load in self._loads(value)}
        return sum(read.values()) if self._is_row(value) else 0

    def _shared(
        self, value: PrimExpr, conditions: tuple[PrimExpr, ...], found: Sequence[_Turned]
    ) -> tuple[_Turned, ...]:
        """The parts. A part that is computed in any case also serves for equal parts under further
        conditions."""
        always = {
            structural_key(each.value): each for each in found if each.conditions == conditions
        }
        classes = {type(each.value) for each in always.values()}
        equal: dict[Hashable, list[PrimExpr]] = {}
        for node in walk_once(value):
            if isinstance(node, PrimExpr) and type(node) in classes and self._is_row(node):
                equal.setdefault(structural_key(node), []).append(node)
        return tuple(
            _Turned(tuple(equal[key]), conditions) if always.get(key) is each else each
            for each in found
            if (key := structural_key(each.value)) not in always or always[key] is each
        )

    def _parts(
        self, node: PrimExpr, conditions: tuple[PrimExpr, ...]
    ) -> Iterator[tuple[PrimExpr, tuple[PrimExpr, ...]]]:
        """The largest parts; but what takes no fewer transposed vectors is left to the lanes of
        the result, which are more than those of a row."""
        is_row = self._is_row(node)
        if is_row and next(self._loads(node), None) is None:
            return
        is_load = isinstance(node, BufferLoad)
        can_be_part = is_row and (is_load or not mentions(self._k, *conditions))
        if can_be_part and (is_load or is_lazy(node)):
            yield node, conditions
            return
        inner = [*self._parts_inside(node, conditions)]
        parts = {structural_key(part): part.dtype.itemsize for part, _ in inner}
        if can_be_part and sum(parts.values()) > node.dtype.itemsize:
            inner = [(node, conditions)]
        yield from inner

    def _parts_inside(
        self, node: PrimExpr, conditions: tuple[PrimExpr, ...]
    ) -> Iterator[tuple[PrimExpr, tuple[PrimExpr, ...]]]:
        match node:
            case e.And() | e.Or() | e.Let() | BufferLoad():  # these may leave operands unevaluated
                return
            case Call(op="if_then_else", args=(condition, a, b)):
                yield from self._parts(condition, conditions)
                if self._is_condition(condition):
                    yield from self._parts(a, (*conditions, condition))
                    yield from self._parts(b, (*conditions, e.Not(condition)))
            case _:
                for child in children(node):
                    if isinstance(child, PrimExpr):
                        yield from self._parts(child, conditions)

    def _loads(self, node: PrimExpr) -> Iterator[BufferLoad]:
        """The reads of rows whose neighbours along `j` are neither the same nor near."""
        for each in walk_once(node):
            if (
                isinstance(each, BufferLoad)
                and mentions(self._k, *each.indices)
                and mentions(self._j, *each.indices)
                and not _is_near(each.buffer, each.indices, self._j)
            ):
                yield each

    def _is_row(self, node: PrimExpr) -> bool:
        """Whether `node` for successive `k` is a vector computed from vectors of neighbours."""
        found = self._rows.get(node)
        if found is None:
            found = self._rows[node] = self._computes_row(node)
        return found

    def _computes_row(self, node: PrimExpr) -> bool:
        if not mentions(self._k, node):
            return True
        match node:
            case e.Cast(value=inner):
                return not inner.dtype.is_bool and self._is_row(inner)
            case e.Arithmetic():
                return self._is_row(node.a) and self._is_row(node.b)
            case Call(op="if_then_else", args=(condition, a, b)):
                is_same = not mentions(self._k, condition)
                return is_same and self._is_row(a) and self._is_row(b)
            case Call() if node.op in INTRINSICS:
                return all(map(self._is_row, node.args))
            case BufferLoad(buffer, indices, None):
                return _is_line(buffer, indices, self._k)
        return False

    def _is_condition(self, node: PrimExpr) -> bool:
        """Whether `node` for successive `k` is a vector of conditions."""
        if not mentions(self._k, node):
            return True
        match node:
            case e.And() | e.Or():
                return self._is_condition(node.a) and self._is_condition(node.b)
            case e.Not(inner):
                return self._is_condition(inner)
            case e.Comparison(a, b):
                return a.dtype.is_int and all(
                    not loads(side) and step_of(side, self._k) is not None for side in (a, b)
                )
        return False


def _is_line(buffer: Buffer, indices: Sequence[PrimExpr], var: Var) -> bool:
    """Whether a step of `var` leads to the neighbouring element in memory, possibly across
    dimensions."""
    return _place_in_line(buffer, indices, var) is not None


def _place_in_line(buffer: Buffer, indices: Sequence[PrimExpr], var: Var) -> PrimExpr | None:
    """The position in the line of memory along which a step of `var` leads to the neighbour."""
    found = [(i, dim) for i, dim in joined(buffer, tuple(indices)) if mentions(var, i)]
    if len(found) != 1 or buffer.dtype.lanes != 1:
        return None
    ((index, dim),) = found
    inside = [e.const_int(extent) or 0 for extent in buffer.shape[dim + 1 :]]
    stride = e.const_int(buffer.strides[dim]) if buffer.strides else prod(inside)
    return index if stride == 1 and step_of(index, var) == 1 else None


def _is_near(buffer: Buffer, indices: Sequence[PrimExpr], j: Var) -> bool:
    """Whether a step of `j` leads to a neighbouring element, forwards or backwards."""
    return neighbours(buffer, indices, j) is not None or (
        step_of(indices[-1], j) == -1 and not mentions(j, *indices[:-1])
    )


# -- Blocks ----------------------------------------------------------------------------------------

_Begin = tuple[Var, PrimExpr]  # the variable of a loop, and its value where a block begins


def _by_blocks(nest: _Nest) -> Stmt:
    along, across = nest.along, nest.across
    if nest.width is None:
        made = _blocks(along, nest.height, partial(_mixed_block, nest))
    else:
        made = _by_lines(nest, nest.width)
        whole = _whole(nest)
        if whole is not None:
            fits = _are_whole(along, across)
            made = s.IfThenElse(fits, _by_lines(whole, nest.width), made)
    enough = _enough((along, nest.height), (across, nest.width))
    if not enough:
        return made
    few = rebuild(across, {"kind": ForKind.SERIAL, "annotations": {s.FEW: True}})
    rest: Stmt = rebuild(along, {"body": few})
    for condition, narrow in reversed([*_narrow(nest)]):
        rest = s.IfThenElse(condition, narrow, rest)
    return s.IfThenElse(reduce(e.logical_and, enough), made, rest)


def _whole(nest: _Nest) -> _Nest | None:
    """A nest whose loops have their most iterations, as most parts of split loops of symbolic
    extents have; None for loops of constant or of unknown extent."""
    known = [_most(loop.extent) for loop in (nest.along, nest.across)]
    if max(known) >= _UNKNOWN or not _enough((nest.along, 1), (nest.across, 1)):
        return None
    along, across = (
        with_fields(loop, extent=e.const(n, loop.extent.dtype))
        for loop, n in zip((nest.along, nest.across), known, strict=True)
    )
    return replace(nest, along=along, across=across)


def _are_whole(*loops: s.For) -> PrimExpr:
    """The condition under which loops have their most iterations."""
    symbolic = [each.extent for each in loops if e.const_int(each.extent) is None]
    return reduce(e.logical_and, (e.equal(each, _most(each)) for each in symbolic))


def _enough(*loops: tuple[s.For, int | None]) -> list[PrimExpr]:
    """The conditions under which loops have at least some numbers of iterations."""
    return [loop.extent >= n for loop, n in loops if n and e.const_int(loop.extent) is None]


def _narrow(nest: _Nest) -> Iterator[tuple[PrimExpr, Stmt]]:
    """Faster forms of a nest of symbolic extents with few columns or rows, each with the condition
    under which it can be used. Blocks as wide as they are high are for all others."""
    along, across = nest.along, nest.across
    if nest.width is None:
        return
    enough = _enough((along, _LEAST), (across, _LEAST))
    is_wide = nest.width > _LEAST and e.const_int(across.extent) is None
    if is_wide and nest.height == _LEAST:
        yield reduce(e.logical_and, enough), _by_lines(nest, _LEAST)
    for count in _PICKED:
        mixed = None if e.const_int(across.extent) else _mixed_nest(nest, count)
        if mixed is not None:
            few = _are(count, across.extent, nest.store.buffer.shape[-1])
            fits = [*few, *_enough((along, mixed.height))]
            made = _blocks(along, mixed.height, partial(_mixed_block, mixed))
            yield reduce(e.logical_and, fits), made
    for count in _PICKED:
        size = _mixed_size(nest, across, count)
        if size and e.const_int(along.extent) is None and _can_pick(nest, count):
            load = nest.store.value
            assert isinstance(load, BufferLoad)
            few = _are(count, along.extent, load.buffer.shape[-1])
            fits = [*few, *_enough((across, size))]
            serial = rebuild(across, {"kind": ForKind.SERIAL})
            made = _blocks(serial, size, partial(_picked_block, nest, count, size))
            yield reduce(e.logical_and, fits), made


def _are(count: int, *extents: PrimExpr) -> list[PrimExpr]:
    """The conditions under which extents are a number."""
    return [e.equal(each, count) for each in extents if e.const_int(each) is None]


def _can_pick(nest: _Nest, count: int) -> bool:
    """Whether `count` columns lie one behind the other in the tensor that is read, row after row
    along the vectors that are stored."""
    load, k, j = nest.store.value, nest.along.loop_var, nest.across.loop_var
    if not isinstance(load, BufferLoad) or not nest.is_copy:
        return False
    if not _is_whole(load, nest.along, count):
        return False
    outer, row = _row_of(load)
    return step_of(row, j) == 1 and not mentions(j, *outer) and not mentions(k, *outer, row)


def _by_lines(nest: _Nest, width: int) -> Stmt:
    """The blocks, in the order of the result's lines that a CPU fetches together, and then along
    rows."""
    across = nest.across
    name, dtype = across.loop_var.name, across.loop_var.dtype
    blocks = _count(across, width)
    line = LINES_AT_ONCE * CACHE_LINE // nest.store.buffer.dtype.itemsize
    most = max(1, min(line // width, -(-_most_steps(across.extent) // width)))

    def lines(number: PrimExpr) -> Stmt:
        first = number * most
        here: PrimExpr = e.const(most, dtype)
        if most > 1 and (e.const_int(blocks) or 1) % most:
            here = e.minimum(here, blocks - first)
        return _blocks(
            nest.along,
            nest.height,
            lambda k: _loop(
                f"{name}_block",
                here,
                lambda block: _from(
                    across, width, first + block, lambda j: _block(nest, width, k, j)
                ),
                nest.along.kind,
            ),
        )

    return _loop(f"{name}_lines", (blocks + (most - 1)) // most, lines, nest.along.kind)


def _most_steps(extent: PrimExpr) -> int:
    """The greatest trip count of a loop. The last part of a split loop of symbolic extent is
    shorter than the others."""
    most = _most(extent)
    return most - 1 if e.const_int(extent) is None else most


def _most(extent: PrimExpr) -> int:
    """The greatest value of an extent."""
    known = e.const_int(extent)
    most = Prover().const_int_bound(extent)[1] if known is None else known
    return int(min(most, _UNKNOWN))


def _blocks(loop: s.For, size: int, body: Callable[[PrimExpr], Stmt]) -> Stmt:
    """A loop over blocks of `size` iterations of `loop`; `body` gets the begin of a block."""
    name = f"{loop.loop_var.name}_block"
    return _loop(
        name, _count(loop, size), lambda number: _from(loop, size, number, body), loop.kind
    )


def _count(loop: s.For, size: int) -> PrimExpr:
    return (loop.extent + (size - 1)) // size


def _from(loop: s.For, size: int, number: PrimExpr, body: Callable[[PrimExpr], Stmt]) -> Stmt:
    """`body` for the begin of the block with a number; the last block ends where `loop` ends."""
    steps = e.const_int(loop.extent)
    begin = number * size
    if steps is None or (steps % size and steps > size):
        begin = e.minimum(begin, loop.extent - size)
    begin = loop.min + begin
    if isinstance(begin, Var | e.IntImm):
        return body(begin)
    var = Var(f"{loop.loop_var.name}_begin", loop.loop_var.dtype)
    return s.LetStmt(var, begin, body(var))


def _loop(name: str, extent: PrimExpr, body: Callable[[PrimExpr], Stmt], kind: ForKind) -> Stmt:
    """A loop, serial or written out as that over rows was."""
    if e.const_int(extent) == 1:
        return body(e.const(0, extent.dtype))
    var = Var(name, extent.dtype)
    return s.For(var, e.const(0, extent.dtype), extent, kind, body(var))


def _block(nest: _Nest, width: int, k: PrimExpr, j: PrimExpr) -> Stmt:
    """One block, from registers to registers: it begins at `k` and `j`."""
    across = nest.across.loop_var, j
    shuffles = Shuffles()
    columns = []
    for part in nest.turned:
        dtype = part.value.dtype
        steps = min(nest.height, _PART // dtype.itemsize)
        found: list[PrimExpr] = []
        for first in range(0, nest.height, steps):
            along = nest.along.loop_var, k + first
            rows: list[PrimExpr] = [
                shuffles.named("row", _shuffled_as(row))
                for row in _rows_under(part, along, across, width, steps)
            ]
            found += shuffles.transposed(rows)
        columns.append([_as(each, dtype.with_lanes(width)) for each in found])
    if nest.turned[0].value is nest.store.value and nest.body is nest.store:
        store = nest.store
        along = nest.along.loop_var, k
        places = _vectors_at(store.buffer, store.indices, across, along, nest.height, width)
        return shuffles.around(
            s.seq(
                *[
                    BufferStore(store.buffer, column, place)
                    for place, column in zip(places, columns[0], strict=True)
                ]
            )
        )
    return shuffles.around(_lane_by_lane(nest, width, columns, shuffles, k, j))


def _lane_by_lane(
    nest: _Nest,
    width: int,
    columns: Sequence[Sequence[PrimExpr]],
    shuffles: Shuffles,
    k: PrimExpr,
    j: PrimExpr,
) -> Stmt:
    """The stores of a block as a vectorized loop, in which transposed vectors replace the parts
    that were transposed."""
    across = nest.across.loop_var
    lane = Var("lane", across.dtype)
    stores = []
    for step, parts in enumerate(zip(*columns, strict=True)):
        mapping: dict[PrimExpr, PrimExpr] = {}
        for part, column in zip(nest.turned, parts, strict=True):
            vector = column if isinstance(column, Var) else shuffles.named("column", column)
            value = Call(part.value.dtype, "vector_extract", (vector, lane))
            mapping |= dict.fromkeys(part.places, value)
        store = _Placed(mapping).stmt(nest.store)
        stores.append(substitute(store, {nest.along.loop_var: k + step, across: j + lane}))
    body = substitute(_Stores(s.seq(*stores)).stmt(nest.body), {across: j + lane})
    begin, size = e.const(0, lane.dtype), e.const(width, lane.dtype)
    notes = {s.INDEPENDENT: True}
    return s.For(lane, begin, size, ForKind.VECTORIZED, body, notes)


class _Placed(Mutator):
    """Replaces expressions."""

    def __init__(self, mapping: Mapping[PrimExpr, PrimExpr]) -> None:
        super().__init__()
        self._mapping = mapping

    def expr(self, node: PrimExpr) -> PrimExpr:
        made = self._mapping.get(node)
        return super().expr(node) if made is None else made


class _Stores(Mutator):
    """Replaces a store by a statement."""

    def __init__(self, made: Stmt) -> None:
        super().__init__()
        self._stores = made

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        return self._stores


def _mixed_block(nest: _Nest, k: PrimExpr) -> Stmt:
    """A block of mixed rows: their elements from `k` on, stored interleaved."""
    store, size, across = nest.store, nest.height, nest.across
    along = nest.along.loop_var, k
    lanes = e.const_int(across.extent)
    assert lanes is not None
    shuffles = Shuffles()
    rows = _rows_under(nest.turned[0], along, (across.loop_var, across.min), lanes, size)
    named: list[PrimExpr] = [shuffles.named("row", _shuffled_as(row)) for row in rows]
    (place,) = _in_turn(store, along, lanes, [lanes * size])
    value = _as(_mixed(named, shuffles), store.buffer.dtype.with_lanes(lanes * size))
    return shuffles.around(BufferStore(store.buffer, value, place))


def _in_turn(
    access: BufferLoad | BufferStore, row: _Begin, columns: int, sizes: Sequence[int]
) -> list[tuple[PrimExpr, ...]]:
    """The indices of vectors of some sizes, one behind the other, from a row of an access on: its
    rows have some number of columns."""
    outer, index = _row_of(access)
    begin = substitute(index, {row[0]: row[1]}) * columns
    found, shape = [], access.buffer.shape[len(outer) + 1 :]
    for place, size in enumerate(sizes):
        first = begin + sum(sizes[:place])
        rest: PrimExpr = e.Ramp(first, e.const(1, begin.dtype), size)
        inner: tuple[PrimExpr, ...] = ()
        for extent in reversed(shape):
            if e.const_int(extent) == 1:
                inner = (e.const(0, begin.dtype), *inner)
                continue
            count = e.Broadcast(e.cast(begin.dtype, extent), size)
            inner = (e.FloorMod(rest, count), *inner)
            rest = e.FloorDiv(rest, count)
        found.append((*outer, rest, *inner))
    return found


def _picked_block(nest: _Nest, columns: int, size: int, j: PrimExpr) -> Stmt:
    """A block of `size` rows with a few columns each, which are picked from the vectors in which
    they lie."""
    load, across = nest.store.value, (nest.across.loop_var, j)
    assert isinstance(load, BufferLoad)
    shuffles = Shuffles()
    rows: list[PrimExpr] = [
        shuffles.named("row", _shuffled_as(BufferLoad(load.buffer, place)))
        for place in _in_turn(load, across, columns, [size] * columns)
    ]
    both = list(range(2 * size))
    halves = rows[0], rows[1]
    if columns > 2:
        halves = shuffles.shuffled(*halves, both), shuffles.shuffled(rows[2], rows[-1], both)
    along, store = (nest.along.loop_var, nest.along.min), nest.store
    places = _vectors_at(store.buffer, store.indices, across, along, columns, size)
    dtype = store.buffer.dtype.with_lanes(size)
    stores = [
        BufferStore(
            store.buffer,
            _as(shuffles.shuffled(*halves, range(column, columns * size, columns)), dtype),
            place,
        )
        for column, place in enumerate(places)
    ]
    return shuffles.around(s.seq(*stores))


def _mixed(rows: Sequence[PrimExpr], shuffles: Shuffles) -> PrimExpr:
    """The first elements of all rows, the second ones, and so on. Of many rows, the even ones and
    the odd ones are mixed first."""
    count, size = len(rows), rows[0].dtype.lanes
    order = [row * size + lane for lane in range(size) for row in range(count)]
    if count == 2:
        return shuffles.shuffled(rows[0], rows[1], order)
    if count <= 4:
        both = list(range(2 * size))
        halves = (
            shuffles.shuffled(rows[0], rows[1], both),
            shuffles.shuffled(rows[2], rows[-1], both),
        )
        return shuffles.shuffled(*halves, order)
    half = (count + 1) // 2
    even, odd = _mixed(rows[::2], shuffles), _mixed([*rows[1::2], rows[-1]][:half], shuffles)
    order = [
        row % 2 * half * size + lane * half + row // 2
        for lane in range(size)
        for row in range(count)
    ]
    return shuffles.shuffled(even, odd, order)


def _rows_under(
    part: _Turned, along: _Begin, across: _Begin, count: int, size: int | None = None
) -> list[PrimExpr]:
    """A part of the value as vectors: `size` lanes along the first variable, `count` vectors along
    the second. Nothing is read where the part's conditions don't hold."""
    size = size or count
    rows = _rows(part.value, along, across, count, size)
    if not mentions(along[0], *part.conditions):
        for condition in reversed(part.conditions):
            nothing = e.Broadcast(e.const(0, part.value.dtype), size)
            rows = [
                Call(row.dtype, "if_then_else", (holds, row, nothing))
                for holds, row in zip(_moved(condition, across, count), rows, strict=True)
            ]
        return rows
    condition = reduce(e.And, part.conditions)
    masks = [_conditions(each, along, size) for each in _moved(condition, across, count)]
    return [with_fields(row, predicate=mask) for row, mask in zip(rows, masks, strict=True)]


def _rows(value: PrimExpr, along: _Begin, across: _Begin, count: int, size: int) -> list[PrimExpr]:
    """`value` as `count` vectors along the second variable, with lanes along the first."""
    if not mentions(along[0], value):
        return [e.Broadcast(each, size) for each in _moved(value, across, count)]
    wide = value.dtype.with_lanes(size)
    inner = partial(_rows, along=along, across=across, count=count, size=size)
    match value:
        case e.Cast():
            return [e.Cast(wide, row) for row in inner(value.value)]
        case e.Arithmetic():
            pairs = zip(inner(value.a), inner(value.b), strict=True)
            return [rebuild(value, {"a": a, "b": b}) for a, b in pairs]
        case Call(op="if_then_else", args=(condition, a, b)):
            choices = zip(_moved(condition, across, count), inner(a), inner(b), strict=True)
            return [Call(wide, value.op, args) for args in choices]
        case Call():
            return [
                Call(wide, value.op, args) for args in zip(*map(inner, value.args), strict=True)
            ]
        case BufferLoad(buffer, indices):
            places = _vectors_at(buffer, indices, along, across, count, size)
            return [BufferLoad(buffer, place) for place in places]
    raise e.unknown_node(value, "a transposing copy")


def _conditions(node: PrimExpr, along: _Begin, size: int) -> PrimExpr:
    """A condition for the first `size` values of a variable."""
    if not mentions(along[0], node):
        return e.Broadcast(node, size)
    if isinstance(node, e.Not):
        return e.Not(_conditions(node.a, along, size))
    assert isinstance(node, e.BinaryOp)
    inner = _conditions if isinstance(node, e.Logic) else _progression
    return rebuild(node, {"a": inner(node.a, along, size), "b": inner(node.b, along, size)})


def _progression(node: PrimExpr, along: _Begin, size: int) -> PrimExpr:
    """An integer that is affine in a variable, as a vector for the variable's first `size`
    values."""
    var, begin = along
    if not mentions(var, node):
        return e.Broadcast(node, size)
    step = step_of(node, var)
    assert step is not None
    return e.Ramp(substitute(node, {var: begin}), e.const(step, node.dtype), size)


def _vectors_at(
    buffer: Buffer,
    indices: Sequence[PrimExpr],
    along: _Begin,
    across: _Begin,
    count: int,
    size: int | None = None,
) -> list[tuple[PrimExpr, ...]]:
    """The indices of `size` neighbours along the first variable, for `count` values of the
    second."""
    moved = [
        [_in_lanes(each, along, size or count) for each in _moved(index, across, count)]
        for index in indices
    ]
    return list(zip(*moved, strict=True))


def _in_lanes(index: PrimExpr, along: _Begin, size: int) -> PrimExpr:
    """`index` for the first `size` values of a variable: neighbours, or quotients and remainders of
    neighbours, plus an offset."""
    var, begin = along
    if not mentions(var, index):
        return index
    if step_of(index, var) == 1:
        return e.Ramp(substitute(index, {var: begin}), e.const(1, index.dtype), size)
    assert isinstance(index, e.FloorDiv | e.FloorMod | e.Add)
    a, b = _in_lanes(index.a, along, size), _in_lanes(index.b, along, size)
    return rebuild(index, {"a": _lanes_of(a, size), "b": _lanes_of(b, size)})


def _lanes_of(value: PrimExpr, size: int) -> PrimExpr:
    """A vector of `size` lanes; a scalar is broadcast."""
    return e.Broadcast(value, size) if value.dtype.lanes == 1 else value


def _moved(node: PrimExpr, place: _Begin, size: int) -> list[PrimExpr]:
    """`node` for the first `size` values of a variable; where possible the result is one index plus
    constants, so that the address is computed once."""
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


def _as(column: PrimExpr, dtype: DType) -> PrimExpr:
    """A column in the dtype of the value."""
    return column if column.dtype == dtype else Call(dtype, "reinterpret", (column,))
