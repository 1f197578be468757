"""Hoists values: parts that are the same in many iterations become operations of their own.

::

    C[i, j] = sum(exp(A[i, k]) * B[k, j], k)       # exp for each i, j and k

    C.exp[i, k] = exp(A[i, k])                     # for each i and k
    C[i, j] = sum(C.exp[i, k] * B[k, j], k)

Values are the same, to the last bit. A part that is a function of one element of a tensor, as here,
is computed for the tensor's elements; any other one for all values of the axes that it changes
along, at which it may read no element that the tensors don't have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.rewrite_operations import is_fixed, map_body
from minitvm.te.tensor import ComputeOp, Tensor, data_axes, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import (
    Mutator,
    children,
    contains,
    find,
    mentions,
    substitute,
    walk_once,
)
from minitvm.tir.intrinsics import IMPURE_CALLS, INTRINSICS
from minitvm.tir.structural_equal import structural_equal

_DIVISION = 8.0  # operations for which a division of floats counts
_LOOKUP = 8.0  # operations for which an element counts that data choose
_CHECKED = 1.0  # operations for which an element counts whose row data choose: that row must exist
_INTEGER_DIVISIONS = (e.FloorDiv, e.FloorMod, e.Div, e.Mod)  # not by a 0


@final
@record()
class Part:
    """A part of the values of a computation.

    Attributes
    ----------
    value
        The part.
    axes
        The axes along which the part changes: some of the computation's axes, not all.
    element
        The only element that the part reads, if the part is a function of this element; otherwise
        None.
    where
        The condition under which the computation has any iterations, if the part may be evaluated
        in no other case, since data choose elements; otherwise None.
    """

    value: PrimExpr
    axes: tuple[IterVar, ...]
    element: ProducerLoad | None
    where: PrimExpr | None = None

    @property
    def shape(self) -> tuple[PrimExpr, ...]:
        """The dimensions of the tensor that holds its values."""
        if self.element is not None:
            return tensor_of(self.element).shape
        return tuple(domain_of(axis).extent for axis in self.dimensions)

    @property
    def dimensions(self) -> list[IterVar]:
        """The axes of the part, in the order of the indices of the element that has most of
        them."""
        reads = [each.indices for each in find(ProducerLoad, self.value)]
        used = [{*walk_once(*indices)} for indices in reads]
        counts = [sum(axis.var in each for axis in self.axes) for each in used]
        widest = reads[counts.index(max(counts))] if reads else ()
        return sorted(
            self.axes,
            key=lambda axis: next(
                (i for i, index in enumerate(widest) if axis.var in {*walk_once(index)}), -1
            ),
        )

    @property
    def operations(self) -> float:
        """The number of operations for one value, without those of indices that lie in order."""
        return sum(map(operations_of, _computed(self.value)))

    def operation(self, name: str) -> ComputeOp:
        """The operation that computes its values."""
        shape = self.shape
        suffix = self.value.op if isinstance(self.value, Call) else "part"
        if self.element is not None:
            axis = data_axes([f"i{i}" for i in range(len(shape))], shape)
            element = ProducerLoad(self.element.producer, tuple(each.var for each in axis))
            value = _Replaced(self.element, element).expr(self.value)
        else:
            axis = data_axes([each.name for each in self.dimensions], shape)
            pairs = zip(self.dimensions, axis, strict=True)
            value = substitute(
                self.value, {old.var: domain_of(old).min + new.var for old, new in pairs}
            )
        if self.where is not None:
            zero = e.const(0, value.dtype)
            value = e.intrinsic("if_then_else", value.dtype, self.where, value, zero)
        return ComputeOp(f"{name}.{suffix}", "", {}, axis, (), (value,))

    @property
    def place(self) -> tuple[PrimExpr, ...]:
        """The indices of the part's value in that tensor."""
        if self.element is not None:
            return self.element.indices
        return tuple(axis.var - domain_of(axis).min for axis in self.dimensions)


def hoisted(op: ComputeOp, axes: Sequence[IterVar]) -> tuple[ComputeOp, ComputeOp]:
    """The operation of the dearest part of `op` that changes along `axes`, and the rest, which
    reads it.

    Raises
    ------
    CompileError
        When the operation has no such part.
    """
    if not axes:
        raise CompileError(
            f"hoist of {op.name}: expected one or more axes along which the part changes, got none"
        )
    part = next((each for each in parts_of(op) if {*each.axes} == {*axes}), None)
    part = part or _own_read(op, axes)
    if part is None:
        names = ", ".join(str(getattr(each, "name", each)) for each in axes)
        raise CompileError(
            f"hoist of {op.name}: expected a computed value that changes along {names} and no "
            f"other axis, and reads no element outside of its tensors, found none in {op.body[0]}"
        )
    made = part.operation(op.name)
    reading = _Replaced(part.value, ProducerLoad(made.output(0), part.place))
    return made, replace(op, body=map_body(op.body, reading.expr))


def _own_read(op: ComputeOp, axes: Sequence[IterVar]) -> Part | None:
    """A read along just some axes of a tensor that an operation reads elsewhere as well: its copy
    is a tensor of its own."""
    reads = [each for each in find(ProducerLoad, *op.body) if isinstance(each.producer, Tensor)]
    for read in reads:
        used = [axis for axis in (*op.axis, *op.reduce_axis) if mentions(axis.var, *read.indices)]
        shared = any(
            each.producer is read.producer and not structural_equal(each, read) for each in reads
        )
        if {*used} == {*axes} and shared and is_defined(op, read):
            return Part(read, tuple(used), None)
    return None


def parts_of(op: ComputeOp) -> list[Part]:
    """The parts of an operation's values that change along some of its axes, and not along all: for
    each set of axes, the dearest part.

    >>> from minitvm import te
    >>> A, B = te.placeholder((4, 8), name="A"), te.placeholder((8, 3), name="B")
    >>> k = te.reduce_axis((0, 8), name="k")
    >>> C = te.compute((4, 3), lambda i, j: te.sum(te.exp(A[i, k]) * B[k, j], axis=k), name="C")
    >>> [(part.value, part.operations) for part in parts_of(C.op)]
    [(exp(A[i, k]), 16.0)]
    """
    first = op.body[0]
    values = op.body
    if isinstance(first, Reduce):
        values = (*first.source, *compared(first.condition))
    found: dict[tuple[IterVar, ...], Part] = {}
    for part in _Parts(op).of(values):
        known = found.get(part.axes)
        # A function of one element has at most as many values as the part that contains it.
        if known is None or _rank(part) > _rank(known):
            found[part.axes] = part
    return [*found.values()]


def compared(condition: PrimExpr) -> Iterator[PrimExpr]:
    """The values of data that a condition requires to be equal to others, as the keys of groups."""
    equalities = [each for each in conjuncts(condition) if isinstance(each, e.EQ)]
    return (side for each in equalities for side in (each.a, each.b) if reads_tensors(side))


def _rank(part: Part) -> tuple[bool, float]:
    return part.element is not None, part.operations


@final
@record()
class _Summary:
    """The properties of an expression that decide whether it may be hoisted.

    Attributes
    ----------
    axes
        The axes along which it changes, as bits.
    is_pure
        Whether it may be evaluated where the program doesn't evaluate it.
    element
        The only element that it reads, and whose function it is; None if it reads none.
    is_of_more
        Whether it reads several elements, or an axis outside of the indices of elements.
    """

    axes: int
    is_pure: bool
    element: ProducerLoad | None
    is_of_more: bool


@final
class _Parts:
    """The parts of an operation's values."""

    def __init__(self, op: ComputeOp) -> None:
        self._axes = (*op.axis, *op.reduce_axis)
        self._bits = {axis.var: 1 << i for i, axis in enumerate(self._axes)}
        self._summaries: dict[PrimExpr, _Summary] = {}
        self._known = Analyzer()
        for tensor in (*op.outputs, *op.input_tensors):
            for extent in tensor.shape:
                self._known.bind_size(extent)
        for axis in self._axes:
            self._known.bind(axis.var, domain_of(axis))
        # Whether the program itself reads all elements, for all values of the axes, as far as there
        # are any. Those that data choose, or whose existence a symbolic extent decides, may be
        # read only then.
        self._reads_all = reads_everywhere(op, alike=True)

    def of(self, values: Iterable[PrimExpr]) -> Iterator[Part]:
        """The parts of some values, each before the parts inside of it. Inside of a part, only
        functions of single elements are parts. A cast around a part stays where it is, and so do
        comparisons and indices."""
        waiting = [(each, False) for each in values]
        for each, _ in waiting:
            self._summarize(each)
        seen = set[PrimExpr]()
        while waiting:
            value, inside = waiting.pop()
            if value in seen or isinstance(value, Reduce):
                continue
            if isinstance(value, ProducerLoad) and not reads_tensors(*value.indices):
                continue
            seen.add(value)
            found = self._summaries[value]
            part = self._part(value, found, inside)
            if part is not None:
                yield part
            if part is None or part.element is None:
                is_of_some = found.axes != (1 << len(self._axes)) - 1
                is_number = value.dtype.is_float and not isinstance(value, e.Cast | ProducerLoad)
                within = inside or (is_of_some and is_number)
                waiting += [(each, within) for each in reversed(children(value))]

    def _part(self, value: PrimExpr, found: _Summary, inside: bool) -> Part | None:
        is_number = value.dtype.is_float or (value.dtype.bits > 1 and found.element is not None)
        is_load = isinstance(value, ProducerLoad)
        is_computed = isinstance(value, e.Arithmetic | Call | e.Select | ProducerLoad) and is_number
        is_some = 0 < found.axes < (1 << len(self._axes)) - 1
        if not (is_computed and is_some and found.is_pure):
            return None
        axes = tuple(axis for axis in self._axes if self._bits[axis.var] & found.axes)
        if found.element is not None and not found.is_of_more and not is_load:
            return Part(value, axes, found.element)
        if inside or not (self._are_data_free(axes) and (self._reads_all or self._exist(value))):
            return None
        others = [axis for axis in self._axes if axis not in axes]
        return Part(value, axes, None, self._where(others, value))

    def _where(self, others: Sequence[IterVar], value: PrimExpr) -> PrimExpr | None:
        """The condition under which other axes have values, if elements may not exist elsewhere."""
        if self._exist(value):
            return None
        extents = [domain_of(axis).extent for axis in others]
        conditions = [each > 0 for each in extents if (e.const_int(each) or 0) <= 0]
        return reduce(e.logical_and, conditions) if conditions else None

    def _summarize(self, root: PrimExpr) -> None:
        """Computes the summary of an expression and of all its subexpressions, without recursion,
        since a body may be deep."""
        waiting = [root]
        while waiting:
            node = waiting[-1]
            unknown = [each for each in children(node) if each not in self._summaries]
            if unknown:
                waiting += unknown
            else:
                waiting.pop()
                if node not in self._summaries:
                    self._summaries[node] = self._summary(node)

    def _summary(self, node: PrimExpr) -> _Summary:
        each = [self._summaries[child] for child in children(node)]
        axes = self._bits.get(node, 0) if isinstance(node, Var) else 0
        for known in each:
            axes |= known.axes
        is_pure = _is_pure(node) and all(known.is_pure for known in each)
        if isinstance(node, ProducerLoad):
            return _Summary(axes, is_pure, node, False)
        elements = [known.element for known in each if known.element is not None]
        first = elements[0] if elements else None
        is_of_more = (isinstance(node, Var) and axes != 0) or any(
            known.is_of_more for known in each
        )
        is_of_more = is_of_more or not all(structural_equal(first, x) for x in elements[1:])
        return _Summary(axes, is_pure, first, is_of_more)

    def _are_data_free(self, axes: Sequence[IterVar]) -> bool:
        """Whether the ranges of some axes depend neither on data nor on other axes."""
        ends = [end for axis in axes for end in (domain_of(axis).min, domain_of(axis).extent)]
        return not any(isinstance(x, ProducerLoad) or x in self._bits for x in walk_once(*ends))

    def _exist(self, value: PrimExpr) -> bool:
        """Whether all elements that are read surely exist, for all values of the axes."""
        return all(map(self._exists, find(ProducerLoad, value)))

    def _exists(self, load: ProducerLoad) -> bool:
        """Whether an element surely exists for all values of the axes."""
        pairs = zip(load.indices, load.producer.shape, strict=True)
        return all(
            self._known.can_prove(index >= 0) and self._known.can_prove(index < extent)
            for index, extent in pairs
        )


def reads_everywhere(op: ComputeOp, *, alike: bool = False) -> bool:
    """Whether an operation evaluates all of its expression for all values of its axes. `alike`: or
    else, by a choice, an element at the same place of another tensor of the same shape."""
    first = op.body[0]
    choices = filter(is_lazy, walk_once(*op.body))
    return (
        all(alike and _reads_alike(each) for each in choices)
        and (not isinstance(first, Reduce) or e.const_int(first.condition) == 1)
        and all(is_fixed(op, axis) for axis in (*op.axis, *op.reduce_axis))
    )


def _reads_alike(node: object) -> bool:
    """Whether both values of a choice, on which data have no influence, read the same places."""
    if not (isinstance(node, Call) and node.op == "if_then_else") or reads_tensors(node.args[0]):
        return False
    first, second = (
        {
            (structural_key(index), structural_key(extent), place)
            for load in find(ProducerLoad, value)
            for place, (index, extent) in enumerate(
                zip(load.indices, load.producer.shape, strict=True)
            )
        }
        for value in node.args[1:]
    )
    return first == second


def is_defined(op: ComputeOp, value: PrimExpr, under: Iterable[PrimExpr] = ()) -> bool:
    """Whether an expression may be evaluated at all places of an operation's axes, or at those
    where some conditions hold: all elements that it reads exist, and it is pure."""
    parts = _Parts(op)
    for condition in under:
        parts._known.assume(condition)
    parts._summarize(value)
    is_pure = parts._summaries[value].is_pure
    return is_pure and parts._are_data_free((*op.axis, *op.reduce_axis)) and parts._exist(value)


def outside_of_loads(*roots: PrimExpr) -> Iterator[object]:
    """The nodes of expressions, except those inside of the indices of loads."""
    waiting: list[object] = [*roots]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) not in seen and isinstance(node, PrimExpr):
            seen.add(id(node))
            yield node
            if not isinstance(node, ProducerLoad):
                waiting += children(node)


def _is_pure(node: object) -> bool:
    """Whether a node may be evaluated where the program doesn't evaluate it."""
    if isinstance(node, Call):
        return node.op not in IMPURE_CALLS
    if isinstance(node, _INTEGER_DIVISIONS) and node.dtype.is_integral:
        return e.const_int(node.b) not in (None, 0)
    return not isinstance(node, Reduce)


def _computed(value: PrimExpr) -> Iterator[PrimExpr]:
    """The nodes of a value that compute with floats or with elements, except those in indices."""
    return (
        each
        for each in outside_of_loads(value)
        if isinstance(each, PrimExpr) and (each.dtype.is_float or contains(ProducerLoad, each))
    )


def is_lookup(node: PrimExpr) -> bool:
    """Whether data choose each element that is read, and not only its row."""
    return isinstance(node, ProducerLoad) and reads_tensors(*node.indices[-1:])


def operations_of(node: PrimExpr) -> float:
    """The operations for which a node counts by itself."""
    if isinstance(node, ProducerLoad) and reads_tensors(*node.indices):
        return _LOOKUP if is_lookup(node) else _CHECKED
    if isinstance(node, Call):
        return INTRINSICS[node.op].cost if node.op in INTRINSICS else 1.0
    if isinstance(node, e.Div):
        return _DIVISION
    return 1.0 if isinstance(node, e.Arithmetic | e.Select | e.Cast) else 0.0


@final
class _Replaced(Mutator):
    """Replaces an expression in values by another one; conditions of reductions stay as they are,
    but for values that are `compared`."""

    def __init__(self, old: PrimExpr, new: PrimExpr) -> None:
        super().__init__()
        self._old, self._new = old, new

    def expr(self, node: PrimExpr) -> PrimExpr:
        if type(node) is type(self._old) and structural_equal(node, self._old):
            return self._new
        return super().expr(node)

    def visit_Reduce(self, node: Reduce) -> PrimExpr:
        source, conditions = tuple(map(self.expr, node.source)), [*conjuncts(node.condition)]
        if not any(isinstance(each, e.EQ) for each in conditions):
            return replace(node, source=source)
        made = [self._in_equality(each) if isinstance(each, e.EQ) else each for each in conditions]
        return replace(node, source=source, condition=reduce(e.logical_and, made))

    def _in_equality(self, node: e.EQ) -> PrimExpr:
        return replace(node, a=self.expr(node.a), b=self.expr(node.b))

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        """An index that data choose stays equal to what a condition says of it."""
        return self.descend(node) if reads_tensors(*node.indices) else node
