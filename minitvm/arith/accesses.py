"""Gathers the accesses of a statement, and finds where two of them touch one element, or
neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.linear import Affine, equal
from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, Range, Var
from minitvm.tir.functor import Mutator, children, find, mentions, substitute, walk_once
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import BufferStore, ForKind, Stmt
from minitvm.tir.structural_equal import structural_equal


@final
@record(eq=False)
class Loop:
    """A loop, or the lanes of a vector, at one place of the program; a ``while`` has the `var`
    None.

    `bounds` is None where the range is not known. `is_ordered`: the iterations run one after the
    other.
    """

    var: Var | None
    bounds: tuple[PrimExpr, PrimExpr] | None
    is_ordered: bool = True


@final
@record(eq=False)
class Access:
    """A load or a store: the loops around it, outermost first, and the conditions on it.

    `is_known`: the indices, with names resolved, don't depend on memory that the program writes. Of
    two accesses in one iteration of all common loops, the one with the lesser `position` comes
    first.
    """

    node: BufferLoad | BufferStore
    indices: tuple[PrimExpr, ...]
    is_known: bool
    position: int
    loops: tuple[Loop, ...]
    conditions: tuple[PrimExpr, ...]

    @property
    def buffer(self) -> Buffer:
        return self.node.buffer

    @property
    def is_store(self) -> bool:
        return isinstance(self.node, BufferStore)

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


@final
@record()
class Place:
    """The surroundings of a statement: its loops; its conditions, the `firm` ones without
    ``likely`` guards; and the values of names, None where the program may change a value."""

    loops: tuple[Loop, ...] = ()
    conditions: tuple[PrimExpr, ...] = ()
    firm: tuple[PrimExpr, ...] = ()
    values: Mapping[Var, PrimExpr | None] = field(default_factory=dict)

    def inside(self, loop: Loop) -> Place:
        return replace(self, loops=(*self.loops, loop))


class Accesses:
    """Gathers the accesses below a statement that :meth:`concerns` asks for.

    `written` is the memory that the program writes: values read from it are unknown. Accesses to
    the buffers `padded` ignore ``likely`` guards.
    """

    def __init__(self, written: frozenset[Var], padded: frozenset[Buffer] = frozenset()) -> None:
        self.found: list[Access] = []
        self._written = written
        self._padded = padded
        self._position = 0

    def concerns(self, node: BufferLoad | BufferStore) -> bool:
        """Whether an access is gathered."""
        raise NotImplementedError

    def collect(self, node: Stmt, place: Place) -> None:
        """Gathers the accesses of `node`, in the order of the text."""
        match node:
            case BufferStore():
                self.store(node, node.value, place)
            case s.For(var, begin, extent, kind, body):
                self._read(place, begin, extent)
                (low, size), is_known = self.resolved((begin, extent), place)
                loop = Loop(var, (low, size) if is_known else None, kind != ForKind.PARALLEL)
                self.collect(body, place.inside(loop))
            case s.While(condition, body):
                inside = place.inside(Loop(None, None))
                self._read(inside, condition)
                self.collect(body, inside)
            case s.LetStmt(var, value, body):
                self._read(place, value)
                self.collect(body, self._binding(place, var, value))
            case s.IfThenElse(condition, then_case, else_case):
                self._read(place, condition)
                self.collect(then_case, self._under(place, condition))
                if else_case is not None:
                    self.collect(else_case, self._under(place, e.logical_not(condition)))
            case s.AttrStmt(buffer, "padded_buffer", _, body):
                outside, self._padded = self._padded, self._padded | {buffer}
                self.collect(body, place)
                self._padded = outside
            case _:
                for child in children(node):
                    if isinstance(child, PrimExpr):
                        self._read(place, child)
                    else:
                        self.collect(child, place)

    def store(self, node: BufferStore, value: PrimExpr, place: Place) -> None:
        """Notes a store, before which `value` is read."""
        self._read(place, value, *node.indices, node.predicate)
        self._note(node, place)
        self._position += 1

    def resolved(
        self, exprs: Sequence[PrimExpr], place: Place
    ) -> tuple[tuple[PrimExpr, ...], bool]:
        """Expressions with names resolved, and whether they are known: they have no unknown name,
        no read of written memory and no call."""
        mapping = {var: value for var, value in place.values.items() if value is not None}
        made: tuple[PrimExpr, ...] = tuple([substitute(each, mapping) for each in exprs])
        is_known = all(map(is_pure, made)) and not any(
            place.values.get(each, each) is None
            if isinstance(each, Var)
            else isinstance(each, BufferLoad) and each.buffer.data in self._written
            for each in walk_once(*made)
        )
        return made, is_known

    def _binding(self, place: Place, var: Var, value: PrimExpr) -> Place:
        (made,), is_known = self.resolved((value,), place)
        return replace(place, values={**place.values, var: made if is_known else None})

    def _under(self, place: Place, condition: PrimExpr) -> Place:
        (made,), is_known = self.resolved((condition,), place)
        if not is_known:
            return place
        firm = place.firm if is_likely(condition) else (*place.firm, made)
        return replace(place, conditions=(*place.conditions, made), firm=firm)

    def _read(self, place: Place, *exprs: PrimExpr | None) -> None:
        """Notes the loads of some expressions; later accesses come after all of them."""
        for load, where in self._loads(place, [each for each in exprs if each is not None]):
            self._note(load, where)
        self._position += 1

    def _loads(self, place: Place, exprs: Sequence[PrimExpr]) -> Iterator[tuple[BufferLoad, Place]]:
        """The loads in some expressions, and their surroundings."""
        seen: set[PrimExpr] = set()
        pending = [(each, place) for each in exprs]
        while pending:
            node, where = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            match node:
                case e.Let(var, value, body):
                    pending += [(value, where), (body, self._binding(where, var, value))]
                case Call(op="prefetch", args=(BufferLoad(_, indices),)):  # it reads nothing
                    pending += [(index, where) for index in indices]
                case _:
                    if isinstance(node, BufferLoad):
                        yield node, where
                    pending += [(child, where) for child in children(node)]

    def _note(self, node: BufferLoad | BufferStore, place: Place) -> None:
        if not self.concerns(node):
            return
        indices, is_known = self.resolved(node.indices, place)
        conditions = place.firm if node.buffer in self._padded else place.conditions
        where: tuple[PrimExpr, ...] | None = ()
        if node.predicate is not None:
            where, holds = self.resolved((node.predicate,), place)
            where = where if holds else None
        lanes = max((index.dtype.lanes for index in indices), default=1)
        if lanes > 1:
            lane = Var("lane")
            place = place.inside(Loop(lane, (e.const(0), e.const(lanes)), is_ordered=False))
            where = None if where is None else _in_lane(where, lane)
            in_lane = _in_lane(indices, lane)
            is_known = is_known and in_lane is not None
            indices = in_lane or indices
        conditions += where or ()
        self.found.append(Access(node, indices, is_known, self._position, place.loops, conditions))


def _in_lane(nodes: tuple[PrimExpr, ...], lane: Var) -> tuple[PrimExpr, ...] | None:
    """One lane of some vectors of integers or conditions, as scalars; None where it isn't known."""
    in_lane = _InLane(lane)
    made = tuple(map(in_lane.expr, nodes))
    return made if in_lane.is_known else None


class _InLane(Mutator):
    def __init__(self, lane: Var) -> None:
        super().__init__()
        self._lane = lane
        self.is_known = True

    def expr(self, node: PrimExpr) -> PrimExpr:
        if node.dtype.lanes == 1:
            return node
        if not isinstance(node, _LANE_BY_LANE):
            self.is_known = False
            return Var("unknown", node.dtype.element)
        return super().expr(node)

    def visit_Ramp(self, node: e.Ramp) -> PrimExpr:
        return node.base + node.stride * e.cast(node.base.dtype, self._lane)

    def visit_Broadcast(self, node: e.Broadcast) -> PrimExpr:
        return node.value

    def visit_Cast(self, node: e.Cast) -> PrimExpr:
        return e.Cast(node.dtype.element, self.expr(node.value))


_LANE_BY_LANE = (e.Ramp, e.Broadcast, e.Cast, e.Select, e.BinaryOp, e.Not)


# -- Neighbours ------------------------------------------------------------------------------------


def neighbours(buffer: Buffer, indices: Sequence[PrimExpr], var: Var) -> int | None:
    """The dimension in which a step of `var` leads to the neighbouring element, if only this
    dimension depends on `var`."""
    places = [i for i, index in enumerate(indices) if mentions(var, index)]
    if len(places) != 1:
        return None
    (place,) = places
    step = e.const_int(buffer.strides[place]) if buffer.strides else int(place == len(indices) - 1)
    return place if step == 1 and step_of(indices[place], var) == 1 else None


def step_of(index: PrimExpr, var: Var) -> int | None:
    """The change of `index` in a step of `var`, if it is constant."""
    terms = dict(Prover().affine(index).terms)
    step = terms.pop(var, 0)
    return None if mentions(var, *terms) else int(step)


def without_digits(indices: Sequence[PrimExpr], shape: Sequence[PrimExpr | int]) -> list[PrimExpr]:
    """The indices of an element in compact memory. In neighbouring dimensions that digits of one
    place index, the last one is at this place, which may lie beyond its end, and the others are at
    0.

    >>> v = Var("v", "int32")
    >>> print(*without_digits([v // 8 + 0, v % 8], [4, 8]))
    0 v
    """
    made, last = [*indices], len(indices) - 1
    while last > 0:
        first, place = last, made[last]
        stride: PrimExpr | int = 1
        for at in range(last - 1, -1, -1) if isinstance(place, e.FloorMod) else ():
            stride = shape[at + 1] * stride
            place = indices[at] * stride + place
            form = Prover().affine(place)
            if {*find(Var, indices[at])}.isdisjoint(find(Var, indices[last])):
                break
            if all(isinstance(each, Var) for each in form.terms):
                first, dtype = at, place.dtype
                terms = [each * e.const(n, dtype) for each, n in form.terms.items()]
                made[last] = sum(terms, e.const(form.constant, dtype))
        made[first:last] = [e.const(0, place.dtype)] * (last - first)
        last = first - 1
    return made


# -- Accesses to one element -----------------------------------------------------------------------

Round = Mapping[Var, Var]
"""For the variables of some loops, variables that stand for their values in one round."""


def one_round(
    prover: Prover, loops: Sequence[Loop], conditions: Sequence[PrimExpr], outside: Round
) -> Round:
    """One iteration of some loops, within the iteration `outside`, in which some conditions
    hold."""
    made = dict(outside)
    for loop in loops:
        if loop.var is None:
            continue
        var = Var(loop.var.name, loop.var.dtype)
        if loop.bounds is not None:
            begin, extent = (substitute(bound, made) for bound in loop.bounds)
            prover.bind(var, Range.from_min_extent(begin, extent))
        made[loop.var] = var
    for condition in conditions:
        prover.assume(substitute(condition, made))
    return made


def meeting(prover: Prover, a: Access, ours: Round, b: Access, theirs: Round) -> list[Affine]:
    """The constraints under which two accesses to one buffer are at one element."""
    for extent in a.buffer.shape:  # accesses stay inside, so no dimension is empty
        prover.assume(e.greater_equal(extent, 1))
    xs = [substitute(x, ours) for x in a.indices]
    return _same_element(prover, xs, [substitute(y, theirs) for y in b.indices])


def _same_element(prover: Prover, xs: Sequence[PrimExpr], ys: Sequence[PrimExpr]) -> list[Affine]:
    """The constraints under which two indices of one buffer are equal in every dimension.

    Two pairs that are the quotient and the remainder of one number give the equality of the number
    as well, as the indices of fused loops need it.
    """
    pairs = list(zip(xs, ys, strict=True))
    for x, y in pairs:  # also the pairs that are added on the way
        if (
            isinstance(x, e.FloorDiv)
            and isinstance(y, e.FloorDiv)
            and structural_equal(x.b, y.b)
            and any(_is_remainder(prover, x, p) and _is_remainder(prover, y, q) for p, q in pairs)
        ):
            pairs.append((x.a, y.a))
    for x, y in [*pairs]:
        if isinstance(x, e.FloorMod) and isinstance(y, e.FloorMod) and structural_equal(x.b, y.b):
            # The place in memory, of which these are digits: one index of several fused loops.
            outer = ((u, v) for u, v in pairs if _has_quotient(u, x) and _has_quotient(v, y))
            pairs += [(u * x.b + x, v * y.b + y) for u, v in islice(outer, 1)]
    return [row for x, y in pairs for row in equal(prover.affine(x), prover.affine(y))]


def _has_quotient(index: PrimExpr, remainder: e.FloorMod) -> bool:
    """Whether an index adds the quotient that belongs to a remainder to something else."""
    return isinstance(index, e.Add) and any(
        isinstance(each, e.FloorDiv)
        and structural_equal(each.a, remainder.a)
        and structural_equal(each.b, remainder.b)
        for each in (index.a, index.b)
    )


def _is_remainder(prover: Prover, quotient: e.FloorDiv, other: PrimExpr) -> bool:
    """Whether `other` is the remainder of the same number by the same divisor."""
    return (
        isinstance(other, e.FloorMod)
        and structural_equal(quotient.a, other.a)
        and structural_equal(quotient.b, other.b)
        and prover.proves(prover.affine(quotient.b) - 1)
    )
