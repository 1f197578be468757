"""Checks every access where it happens, even if it was proved to stay inside its buffer."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import final

from minitvm.arith.effects import calls_out
from minitvm.runtime.dtype import BOOL, INT64
from minitvm.runtime.record import record
from minitvm.runtime.threads_text import MAX_FAILURE_VALUES
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, BufferStore, Call, PrimExpr, Var
from minitvm.tir.functor import Mutator, walk_once
from minitvm.tir.intrinsics import FUNCTIONS
from minitvm.tir.stmt import PrimFunc, Stmt, with_body
from minitvm.transform.widen_indices import widened


def check_accesses(func: PrimFunc) -> PrimFunc:
    """Makes an access that leaves its buffer end the function with an ``IndexError``, even if a
    proof or a pass before this one was wrong.

    Before::

        for i in range(4):
            B[i] = A[i + k]

    After::

        for i in range(4):
            assert 0 <= i and i < 4, IndexError("f: B[{}]: expected an index inside shape (4,)", i)
            B[i] = checked(0 <= i + k and i + k < 4, "f: A[{}]: ...", A[i + k], i + k)

    A load is checked inside of its expression, and so under the same conditions as the load itself.
    Masked lanes are not checked. Memory passed to other functions is checked to lie inside of its
    buffer. An index that is read from data, or comes from a call, is evaluated once, for the check
    and the access.
    """
    return with_body(func, _CheckAccesses(func.name).stmt(func.body))


_Named = tuple[tuple[Var, PrimExpr], ...]  # names and their values, in order of evaluation


class _CheckAccesses(Mutator):
    """Rewrites each access in its place; the conditions around it stay."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self._function = function

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        return checked_load(self._function, self.descend(node))

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        return checked_store(self._function, self.descend(node))

    def visit_Allocate(self, node: s.Allocate) -> Stmt:
        """Refuses negative strides of an allocation, whose memory begins at the first element."""
        made: s.Allocate = self.descend(node)
        buffer = made.buffer
        strides = [widened(stride) for stride in buffer.strides]
        holds = [e.greater_equal(stride, 0) for stride in strides]
        message = _Message()
        message.add(f"{self._function}: {buffer.name}: expected a workspace without negative ")
        message.add("strides and elem_offset, got strides (")
        for stride in strides:
            message.add(stride, ", ")
        message.add(")")
        if buffer.elem_offset is not None:
            holds.append(e.equal(buffer.elem_offset, 0))
            message.add(" and elem_offset ", buffer.elem_offset)
        return _Check(_all(holds), message).before(made)

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op == "prefetch":  # it reads nothing, and may lie outside
            (load,) = node.args
            return Call(node.dtype, node.op, (self.descend(load),))
        made: Call = self.descend(node)
        if node.op == "tvm_access_ptr":
            return self._pointer(made)
        if node.op == "tvm_stack_make_array":
            return self._region(made)
        return made

    def _pointer(self, node: Call) -> PrimExpr:
        """Puts the check around the offset, which is evaluated before the call that takes it."""
        reference, offset, extent, mask = node.args
        assert isinstance(reference, e.BufferRef)
        low, end = _reach(reference.buffer)
        begin, count = e.cast(INT64, offset), e.cast(INT64, extent)
        pairs = ((low, begin), (begin, end), (count, end - begin))  # a count of -1: the rest
        holds = _all(e.less_equal(least, most) for least, most in pairs)
        message = _Message()
        message.add(f"{self._function}: {reference.buffer.name}: expected a pointer to elements ")
        message.add("from ", low, " to before ", end, ", got ", begin)
        if e.const_int(extent) != -1:
            message.add(" to before ", begin + count)
        check = _Check(holds, message)
        return Call(node.dtype, node.op, (reference, check.of(offset), extent, mask))

    def _region(self, node: Call) -> PrimExpr:
        reference, *numbers = node.args
        assert isinstance(reference, e.BufferRef)
        buffer = reference.buffer
        begins, extents = numbers[: buffer.ndim], numbers[buffer.ndim :]
        if not begins:
            return node
        dropped = buffer.ndim - len(extents)
        holds: list[PrimExpr] = []
        message = _Message()
        message.add(f"{self._function}: {buffer.name}[")
        for dim, (begin, size) in enumerate(zip(begins, buffer.shape, strict=True)):
            extent = extents[dim - dropped] if dim >= dropped else e.const(1, INT64)
            begin, extent = e.cast(INT64, begin), e.cast(INT64, extent)
            for least, most in ((0, begin), (0, extent), (extent, _exact(size) - begin)):
                holds.append(e.less_equal(least, most))
            message.add(", " if dim else "", begin)
            if dim >= dropped:
                message.add(":", begin + extent)
        message.add("]: expected a region inside shape ")
        message.add_shape(buffer)
        first = _Check(_all(holds), message).of(begins[0])
        return Call(node.dtype, node.op, (reference, first, *begins[1:], *extents))


# -- Accesses -------------------------------------------------------------------------------------


def checked_load(function: str, node: BufferLoad) -> PrimExpr:
    """A load that is checked where it is done."""
    predicate = node.predicate
    if predicate is not None and predicate.dtype.lanes == 1:  # if false, nothing else is evaluated
        read = checked_load(function, BufferLoad(node.buffer, node.indices))
        return Call(node.dtype, "if_then_else", (predicate, read, e.const(0, node.dtype)))
    indices, where, named = _named_places(node)
    check = _access_check(function, node.buffer, indices, where)
    made = check.of(BufferLoad(node.buffer, indices, where) if named else node)
    for var, value in reversed([*named, *check.named]):
        made = e.Let(var, value, made)
    return made


def checked_store(function: str, node: BufferStore) -> Stmt:
    """A store that is checked where it is done."""
    where = node.predicate
    if where is not None and where.dtype.lanes == 1:  # the value is evaluated all the same
        value = Var("value", node.value.dtype)
        stored = checked_store(function, BufferStore(node.buffer, value, node.indices))
        return s.LetStmt(value, node.value, s.IfThenElse(where, stored))
    (stored_value,), named = _named("value", (node.value,), may_read=not calls_out(*node.indices))
    indices, where, named_places = _named_places(node)
    named = (*named, *named_places)
    check = _access_check(function, node.buffer, indices, where)
    made = check.before(BufferStore(node.buffer, stored_value, indices, where) if named else node)
    for var, bound in reversed([*named, *check.named]):
        made = s.LetStmt(var, bound, made)
    return made


def _access_check(
    function: str, buffer: Buffer, indices: tuple[PrimExpr, ...], predicate: PrimExpr | None
) -> _Check:
    """The check that all indices are inside, in the lanes that `predicate` leaves on."""
    inside = _all(_is_inside(buffer, dim, index) for dim, index in enumerate(indices))
    named: list[tuple[Var, PrimExpr]] = []
    lanes = inside.dtype.lanes
    if lanes > 1:
        if predicate is not None:
            inside = e.logical_or(e.logical_not(predicate), inside)
        lane = Var("lane", INT64)
        named.append((lane, _first_false(inside)))
        inside = e.equal(lane, lanes)
        last = e.minimum(lane, lanes - 1)
        indices = tuple([_lane(index, last) for index in indices])
    message = _Message()
    message.add(f"{function}: {buffer.name}[")
    for dim, index in enumerate(indices):
        message.add(", " if dim else "", index)
    message.add("]: expected an index inside shape ")
    message.add_shape(buffer)
    return _Check(inside, message, tuple(named))


def _is_inside(buffer: Buffer, dim: int, index: PrimExpr) -> PrimExpr:
    extent = _exact(buffer.shape[dim])
    inside = e.logical_and(e.greater_equal(index, 0), e.less(index, extent))
    return e.logical_or(e.equal(extent, 1), inside) if buffer.auto_broadcast else inside


def _all(conditions: Iterable[PrimExpr]) -> PrimExpr:
    made = list(conditions)
    return functools.reduce(e.logical_and, made) if made else e.const(True, BOOL)


def _first_false(condition: PrimExpr) -> PrimExpr:
    """The first lane in which a condition doesn't hold; the number of lanes if it holds in all."""
    lanes = condition.dtype.lanes
    numbers = e.Ramp(e.const(0, INT64), e.const(1, INT64), lanes)
    count = e.const(lanes, INT64)
    chosen = e.Select(condition, e.Broadcast(count, lanes), numbers)
    return Call(INT64, "vector_reduce_min", (count, chosen))


def _lane(index: PrimExpr, lane: PrimExpr) -> PrimExpr:
    if index.dtype.lanes == 1:
        return index
    return Call(index.dtype.element, "vector_extract", (index, lane))


def _reach(buffer: Buffer) -> tuple[PrimExpr, PrimExpr]:
    """The memory of a buffer, in elements from its first one: begin and end. With a negative stride
    the begin is negative."""
    low, end = e.const(0, INT64), e.const(1, INT64)
    extents = [_exact(extent) for extent in buffer.shape]
    if not buffer.strides:
        for extent in extents:
            end = end * extent
        return low, end
    for extent, stride in zip(extents, buffer.strides, strict=True):
        last = e.maximum(extent - 1, 0) * _exact(stride)
        low, end = low + e.minimum(last, 0), end + e.maximum(last, 0)
    return low, end


def _exact(dimension: PrimExpr) -> PrimExpr:
    """A dimension or a stride in 64 bits."""
    return e.cast(INT64, widened(dimension))


# -- Checks and their messages --------------------------------------------------------------------


class _Message:
    """A message of texts and of values that are filled in when it is raised. Values beyond the
    number that a failure can hold are shown by name."""

    def __init__(self) -> None:
        self.text = ""
        self.values: list[PrimExpr] = []

    def add(self, *parts: str | PrimExpr) -> None:
        for part in parts:
            if isinstance(part, str | e.IntImm) or len(self.values) == MAX_FAILURE_VALUES:
                self.text += str(part).replace("{}", "{ }")
            else:
                self.text += "{}"
                self.values.append(part)

    def add_shape(self, buffer: Buffer) -> None:
        for dim, extent in enumerate(buffer.shape):
            shown = extent if isinstance(extent, Var) else _exact(extent)
            self.add(", " if dim else "(", shown)
        self.add(",)" if buffer.ndim == 1 else ")")


@final
@record()
class _Check:
    """A condition, and the message of its failure; `named` are the values of variables in it."""

    holds: PrimExpr
    message: _Message
    named: _Named = ()

    @property
    def _is_certain(self) -> bool:
        return isinstance(self.holds, e.IntImm) and bool(self.holds.value)

    def of(self, value: PrimExpr) -> PrimExpr:
        """`value`, evaluated after the check."""
        if self._is_certain:
            return value
        text = e.StringImm(self.message.text)
        return Call(value.dtype, "checked", (self.holds, text, value, *self.message.values))

    def before(self, body: Stmt) -> Stmt:
        if self._is_certain:
            return body
        text, values = self.message.text, tuple(self.message.values)
        return s.AssertStmt(self.holds, text, body, values, "IndexError")


# -- Values that are evaluated once ---------------------------------------------------------------


def _named_places(
    node: BufferLoad | BufferStore,
) -> tuple[tuple[PrimExpr, ...], PrimExpr | None, _Named]:
    """The indices and the predicate of an access, and the values of the variables in them."""
    indices, named = _named("index", node.indices)
    if node.predicate is None:
        return indices, None, named
    (where,), also = _named("where", (node.predicate,))
    return indices, where, (*named, *also)


def _named(
    name: str, values: Sequence[PrimExpr], *, may_read: bool = False
) -> tuple[tuple[PrimExpr, ...], _Named]:
    """`values`, with a name in place of each value that might differ when it is evaluated again;
    and the values of these names. `may_read`: loads may be repeated, since nothing writes memory in
    between."""
    named: list[tuple[Var, PrimExpr]] = []
    made: list[PrimExpr] = []
    for value in values:
        if is_repeatable(value, may_read=may_read):
            made.append(value)
        else:
            named.append((Var(name, value.dtype), value))
            made.append(named[-1][0])
    return tuple(made), tuple(named)


def is_repeatable(value: PrimExpr, *, may_read: bool = False) -> bool:
    """Whether a value surely stays the same when it is evaluated again, even after writes to
    memory (unless `may_read`)."""
    for each in walk_once(value):
        if isinstance(each, BufferLoad) and not may_read:
            return False
        if isinstance(each, Call) and each.op not in FUNCTIONS and each.op != "checked":
            return False
    return True
