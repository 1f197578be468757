"""Whether a program may have an output in the place of an input, and the variant that has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast, final

from minitvm.arith.atoms import is_pure
from minitvm.arith.linear import Affine, less
from minitvm.arith.prover import Prover
from minitvm.arith.same_element import same_element
from minitvm.arith.written_buffers import written_parameters
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, Call, PrimExpr, Range, Var
from minitvm.tir.functor import Mutator, children, replace_buffers, substitute, walk_once
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt
from minitvm.tir.structural_equal import structural_equal

# The attribute of a function for arrays that are the same: (output position, input position) pairs.
IN_PLACE = "in_place"


def run_in_place(func: PrimFunc, pairs: frozenset[tuple[int, int]]) -> PrimFunc:
    """`func` for outputs that are the same arrays as inputs: positions of parameters, for which
    :func:`can_run_in_place` holds. What the input's name stood for has the output's.

    Before::

        def f(X: float32[n], Y: float32[n]):
            for i in range(n):
                Y[i] = X[i] * 2.0

    After::

        def f(X: float32[n], Y: float32[n]):  # attribute in_place = {(1, 0)}
            for i in range(n):
                Y[i] = Y[i] * 2.0
    """
    same = {_parameter(func, before): _parameter(func, output) for output, before in pairs}
    body = cast(Stmt, replace_buffers(func.body, same))
    return PrimFunc(func.params, body, func.buffer_map, func.name, {**func.attrs, IN_PLACE: pairs})


def can_run_in_place(func: PrimFunc, output: int, before: int) -> bool:
    """Whether lowered loop IR does the same when the parameter at position `output`, which it
    writes, is the same array as the one at `before`, which it reads.

    It does if no element is stored before all that read it have read it, in every order in which
    the program may run. For a store and a load that are not both in some loop, the text tells the
    order. In loops around both, an earlier round of the outermost that differs has the store
    first, whatever stands where in the text; then the two must not be at one element. That is
    proved, or the answer is no.
    """
    source, target = _parameter(func, before), _parameter(func, output)
    if not _are_alike(func, source, target) or _escape(func, source, target):
        return False
    accesses = _Accesses(source, target)
    accesses.collect(func.body, _Place())
    order = _Order(target)
    return not any(
        order.may_precede(store, load) for load in accesses.loads for store in accesses.stores
    )


def _parameter(func: PrimFunc, position: int) -> Buffer:
    return func.buffer_map[func.params[position]]


def _are_alike(func: PrimFunc, source: Buffer, target: Buffer) -> bool:
    """Whether the parameters are an input and an output that one array can be."""
    written = written_parameters(func)
    return (
        target in written
        and source not in written
        and source.dtype == target.dtype
        and len(source.shape) == len(target.shape)
        and all(map(structural_equal, source.shape, target.shape))
        and not source.auto_broadcast
        and not target.auto_broadcast
    )


def _escape(func: PrimFunc, source: Buffer, target: Buffer) -> bool:
    """Whether the memory is reached by more than loads and stores of the buffer in a known order:
    as an argument of a call, under another name, or in a region of several parallel loops."""
    memory = {source.data: source, target.data: target}
    for node in walk_once(func.body):
        match node:
            case BufferRef(buffer) if buffer.data in memory:
                return True
            case BufferLoad(buffer) | BufferStore(buffer) if buffer.data in memory:
                if memory[buffer.data] is not buffer:
                    return True
                if buffer is source and isinstance(node, BufferStore):
                    return True
            case Var() if node in memory:
                return True
            case s.AttrStmt(attr_key="pragma_parallel_launch_point"):
                return True
    return False


# -- Which accesses there are, and in what order ---------------------------------------------------


@final
@record(eq=False)
class _Loop:
    """A loop, or the lanes of a vector, at one place of the program; with `var` None a ``while``.

    `bounds` is None where they are not known. `is_ordered`: its rounds run one after the other.
    """

    var: Var | None
    bounds: tuple[PrimExpr, PrimExpr] | None
    is_ordered: bool = True


@final
@record(eq=False)
class _Access:
    """A load or a store: the loops around it, outermost first, and the conditions on it.

    `indices` is None where they depend on data. Of two accesses in one round of all common loops
    that with the lesser `position` comes first.
    """

    indices: tuple[PrimExpr, ...] | None
    position: int
    loops: tuple[_Loop, ...]
    conditions: tuple[PrimExpr, ...]


@final
@record()
class _Place:
    """What is around a statement. The value of a let is None where it depends on data."""

    loops: tuple[_Loop, ...] = ()
    conditions: tuple[PrimExpr, ...] = ()
    values: Mapping[Var, PrimExpr | None] = field(default_factory=dict)

    def known(self, expr: PrimExpr | None) -> PrimExpr | None:
        """An expression of loop variables and parameters alone; None where there is none."""
        if expr is None:
            return None
        lets = {var: value for var, value in self.values.items() if value is not None}
        made: PrimExpr = substitute(expr, lets)
        for each in walk_once(made):
            if isinstance(each, BufferLoad) or (isinstance(each, Var) and each in self.values):
                return None
        return made if is_pure(made) else None

    def inside(self, loop: _Loop) -> _Place:
        return replace(self, loops=(*self.loops, loop))

    def under(self, condition: PrimExpr) -> _Place:
        known = self.known(condition)
        if known is None:
            return self
        return replace(self, conditions=(*self.conditions, known))

    def binding(self, var: Var, value: PrimExpr) -> _Place:
        return replace(self, values={**self.values, var: self.known(value)})


class _Accesses:
    """The loads of one buffer and the stores of another."""

    def __init__(self, source: Buffer, target: Buffer) -> None:
        self.loads: list[_Access] = []
        self.stores: list[_Access] = []
        self._source = source
        self._target = target
        self._position = 0

    def collect(self, node: Stmt, place: _Place) -> None:
        match node:
            case BufferStore(buffer, value, indices, predicate):
                self._read(place, value, *indices, predicate)
                if buffer is self._target:
                    self.stores.append(self._access(indices, predicate, place))
                    self._position += 1
            case s.For(var, begin, extent, kind, body):
                self._read(place, begin, extent)
                low, size = place.known(begin), place.known(extent)
                bounds = None if low is None or size is None else (low, size)
                loop = _Loop(var, bounds, kind != ForKind.PARALLEL)
                self.collect(body, place.inside(loop))
            case s.While(condition, body):
                inside = place.inside(_Loop(None, None))
                self._read(inside, condition)
                self.collect(body, inside)
            case s.LetStmt(var, value, body):
                self._read(place, value)
                self.collect(body, place.binding(var, value))
            case s.IfThenElse(condition, then_case, else_case):
                self._read(place, condition)
                self.collect(then_case, place.under(condition))
                if else_case is not None:
                    self.collect(else_case, place.under(e.logical_not(condition)))
            case _:
                for child in children(node):
                    if isinstance(child, PrimExpr):
                        self._read(place, child)
                    else:
                        self.collect(child, place)

    def _read(self, place: _Place, *exprs: PrimExpr | None) -> None:
        """Notes what expressions load, all before what follows."""
        for load, where in _loads(place, [each for each in exprs if each is not None]):
            if load.buffer is self._source:
                self.loads.append(self._access(load.indices, load.predicate, where))
        self._position += 1

    def _access(
        self, indices: Sequence[PrimExpr], predicate: PrimExpr | None, place: _Place
    ) -> _Access:
        known = [place.known(index) for index in indices]
        where = None if predicate is None else place.known(predicate)
        lanes = max((index.dtype.lanes for index in indices), default=1)
        if lanes > 1:
            lane = Var("lane")
            bounds = (e.const(0), e.const(lanes))
            place = place.inside(_Loop(lane, bounds, is_ordered=False))
            known = [_in_lane(index, lane) for index in known]
            where = _in_lane(where, lane)
        conditions = place.conditions if where is None else (*place.conditions, where)
        complete = tuple(index for index in known if index is not None)
        found = complete if len(complete) == len(indices) else None
        return _Access(found, self._position, place.loops, conditions)


def _loads(place: _Place, exprs: Sequence[PrimExpr]) -> Iterator[tuple[BufferLoad, _Place]]:
    """The loads below some expressions, and what is around them."""
    seen: set[PrimExpr] = set()
    pending = [(each, place) for each in exprs]
    while pending:
        node, where = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        match node:
            case e.Let(var, value, body):
                pending += [(value, where), (body, where.binding(var, value))]
            case Call(op="prefetch", args=(BufferLoad(_, indices),)):  # which reads nothing
                pending += [(index, where) for index in indices]
            case _:
                if isinstance(node, BufferLoad):
                    yield node, where
                pending += [(child, where) for child in children(node)]  # type: ignore[misc]


def _in_lane(node: PrimExpr | None, lane: Var) -> PrimExpr | None:
    """What a vector of integers or conditions is in one lane; None where that is not known."""
    in_lane = _InLane(lane)
    made = None if node is None else in_lane.expr(node)
    return made if in_lane.is_known else None


class _InLane(Mutator):
    def __init__(self, lane: Var) -> None:
        super().__init__()
        self.is_known = True
        self._lane = lane

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


# -- Which of them may meet ------------------------------------------------------------------------


class _Order:
    """What may come before what, at one element of `buffer`."""

    def __init__(self, buffer: Buffer) -> None:
        self._prover = Prover()
        for extent in buffer.shape:  # an access stays inside, so there is an inside
            self._prover.assume(e.greater_equal(extent, 1))

    def may_precede(self, store: _Access, load: _Access) -> bool:
        """Whether `store` may be done at an element before `load` is."""
        common = 0
        for ours, theirs in zip(store.loops, load.loops, strict=False):
            if ours is not theirs:
                break
            common += 1
        for depth in range(common):  # the outermost loop in whose rounds they differ
            if self._may_meet(store, load, depth, differ=True):
                return True
        return store.position < load.position and self._may_meet(store, load, common, differ=False)

    def _may_meet(self, store: _Access, load: _Access, depth: int, *, differ: bool) -> bool:
        """Whether both may be at one element in the same rounds of the first `depth` common loops
        and, if they `differ`, in different ones of the next, where that of `store` comes first."""
        with self._prover.scope():
            outside = self._bind(load.loops[:depth], {})
            ours = self._instance(store, depth, outside)
            theirs = self._instance(load, depth, outside)
            goal: list[Affine] = []
            if store.indices is not None and load.indices is not None:
                xs = [substitute(x, ours) for x in store.indices]
                ys = [substitute(y, theirs) for y in load.indices]
                goal = same_element(self._prover, xs, ys)
            loop = load.loops[depth] if differ else None
            if loop is None or loop.var is None:
                return self._is_possible(goal)
            a, b = (self._prover.affine(each[loop.var]) for each in (ours, theirs))
            if self._is_possible([*goal, less(a, b)]):
                return True
            return not loop.is_ordered and self._is_possible([*goal, less(b, a)])

    def _is_possible(self, goal: list[Affine]) -> bool:
        return self._prover.is_possible(goal)

    def _instance(self, access: _Access, depth: int, outside: Mapping[Var, Var]) -> dict[Var, Var]:
        """Variables for one round of the loops around an access, of which the first `depth` have
        theirs, and what is known of them."""
        made = self._bind(access.loops[depth:], outside)
        for condition in access.conditions:
            self._prover.assume(substitute(condition, made))
        return made

    def _bind(self, loops: Sequence[_Loop], outside: Mapping[Var, Var]) -> dict[Var, Var]:
        made = dict(outside)
        for loop in loops:
            if loop.var is None:
                continue
            var = Var(loop.var.name, loop.var.dtype)
            if loop.bounds is not None:
                begin, extent = (substitute(bound, made) for bound in loop.bounds)
                self._prover.bind(var, Range.from_min_extent(begin, extent))
            made[loop.var] = var
        return made
