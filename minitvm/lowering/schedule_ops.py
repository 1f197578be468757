"""Makes the loop nests of a schedule: the statements of each stage, in its loops, at its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.guards import same_throughout
from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.lowering.accumulation import (
    Onto,
    Totals,
    combined,
    each_lane,
    in_lanes,
    totals_of,
)
from minitvm.lowering.infer_bounds import (
    BoundInference,
    Bounds,
    Inferred,
    Loop,
    axis_spans,
)
from minitvm.lowering.stage_bodies import (
    ReadBuffers,
    StageBody,
    at_step,
    body_of,
    marked_parts,
    plain_nest,
    reads_of,
    store_all,
    without_marks,
)
from minitvm.lowering.stage_memory import StageMemory
from minitvm.lowering.tensorize import Tensorized, match_computation, tensorize
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.accumulation import Accumulation, checked_accumulation
from minitvm.te.schedules.loop_nest import LoopAttrs
from minitvm.te.schedules.operation_graph import root_axes
from minitvm.te.schedules.relation import Split, leaves_below, values_of
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.scans import find_scans
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.shared_loops import in_shared_loops
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor, domain_of, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, IterVar, PrimExpr, Range, Var, const
from minitvm.tir.functor import contains, substitute, walk_once
from minitvm.tir.op import likely
from minitvm.tir.stmt import (
    INDEPENDENT,
    VIEW,
    Allocate,
    AssertStmt,
    AttrStmt,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from minitvm.transform.check_bounds import check_statements
from minitvm.transform.inject_prefetch import SCOPE, SHARES

_NOTHING = seq()


def schedule_ops(schedule: Schedule, buffers: Mapping[Tensor, Buffer], func: PrimFunc) -> PrimFunc:
    """`func` with the loops of a schedule as its body.

    `buffers` gives the memory of the tensors that are arguments; the others are allocated around
    the loops that write and read them.

    Before::

        C = te.compute((n,), lambda i: te.sum(A[i, k], axis=k))
        s[C].split(C.op.axis[0], factor=4)

    After::

        for i.outer in range(ceildiv(n, 4)):
            for i.inner in range(4):
                if likely(i.outer * 4 + i.inner < n):
                    C[i.outer * 4 + i.inner] = 0.0
                for k in range(m):
                    if likely(i.outer * 4 + i.inner < n):
                        C[i.outer * 4 + i.inner] = C[...] + A[i.outer * 4 + i.inner, k]

    :func:`check_bounds` proves, or makes the program check, that no access of the plain loops
    leaves its tensor. The scheduled loops compute the same elements; guards leave out all others.

    Raises
    ------
    CompileError
        When a tensor that is read is neither computed nor an argument, an access leaves its
        tensor, or a stage is placed where not all of its readers are.
    """
    return _Lowering(schedule.normalize(), buffers, func).run()


def inferred_ranges(
    schedule: Schedule, buffers: Mapping[Tensor, Buffer], func: PrimFunc
) -> dict[IterVar, Range]:
    """The range of every axis of every stage that is computed; see :func:`schedule_ops`."""
    lowering = _Lowering(schedule.normalize(), buffers, func)
    lowering.prepare()
    return lowering.ranges()


class _Lowering:
    def __init__(
        self, schedule: Schedule, buffers: Mapping[Tensor, Buffer], func: PrimFunc
    ) -> None:
        self._schedule = schedule
        self._func = func
        self._stages = [
            each
            for each in schedule.stages
            if not isinstance(each.op, PlaceholderOp) and not each.inlined
        ]
        self._bodies: dict[Stage, StageBody] = {}
        self._plain: dict[Stage, Stmt] = {}
        self._inferred = Inferred()
        self._at: dict[Loop | None, list[Stage]] = {}  # the stages of each place, in order
        self._scans = find_scans(schedule)
        self._arguments = buffers
        self._grown: dict[Stage, Accumulation] = {
            stage: checked_accumulation(stage, stage.accumulates)
            for stage in self._stages
            if stage.accumulates is not None
        }
        self.knows_layout = False  # whether an intrinsic was given the layout of arguments

    def prepare(self) -> Callable[[Stmt], Stmt]:
        """Checks the accesses of the plain loops, and infers the bounds of the scheduled ones.
        Returns the function that adds the checks at entry to a body."""
        self.memory = StageMemory(self._schedule, self._arguments, self._scans)
        plain = self.memory.plain
        self._check_arguments()
        self.reader = reader = ReadBuffers(self._schedule, plain)
        for stage in self._stages:
            grown = self._grown.get(stage)
            condition = None if grown is None else grown.condition
            self._bodies[stage] = body_of(stage, reader, plain, condition)
            times, domain = self._scans.times.get(stage), partial(self._domain, stage)
            self._plain[stage] = plain_nest(stage, self._bodies[stage], reader, domain, times)
        checked, at_entry = check_statements(self._func, self._plain.values())
        for stage, nest in zip(self._stages, checked, strict=True):
            self._learn_checks(stage, nest)
        self._infer(reader.expr)
        return at_entry

    def ranges(self) -> dict[IterVar, Range]:
        """The inferred ranges of all axes."""
        found: dict[IterVar, Range] = {}
        for bounds in self._inferred.bounds.values():
            found.update(bounds.ranges)
        return found

    def run(self) -> PrimFunc:
        at_entry = self.prepare()
        body = self._with_arguments_computed(self.placed(None, _NOTHING))
        body = at_entry(self._with_factors_checked(body))
        func = self._func
        knows_layout = self.knows_layout or self.memory.shares_arguments
        attrs = replace(func.attrs, knows_layout=knows_layout)
        return PrimFunc(func.params, body, func.buffer_map, func.name, attrs)

    def _domain(self, stage: Stage, axis: IterVar) -> Range:
        """The range of a root axis. The reduction axis of a running total has one step: the term
        that an element adds."""
        grown = self._grown.get(stage)
        if grown is None or axis is not grown.step:
            return domain_of(axis)
        return Range.from_min_extent(grown.term, const(1, axis.var.dtype))

    def _check_arguments(self) -> None:
        """Checks that every argument made by a stage is computed, in the caller's memory."""
        for stage in self._schedule.stages:
            if isinstance(stage.op, PlaceholderOp) or not self.memory.is_argument(stage):
                continue
            advice = f"leave {stage.name} out of the arguments"
            if stage.inlined:
                readers = ", ".join(each.name for each in self._schedule.readers(stage))
                raise CompileError(
                    f"{self._func.name}: argument {stage.name}: expected a stage that is computed, "
                    f"found it inlined into {readers}: compute it at the root, or {advice}"
                )
            if stage.is_double_buffered:
                raise CompileError(
                    f"{self._func.name}: argument {stage.name}: expected memory of the program's "
                    f"own to keep twice, found it double-buffered: {advice}"
                )

    def _with_arguments_computed(self, body: Stmt) -> Stmt:
        """`body` behind assertions for each argument that has elements: the loops around its stage
        must have iterations."""
        for stage, extents in self._inferred.wanted.items():
            place = self._inferred.places[stage]
            shape = stage.op.output(0).shape
            empty = [e.less(size, 1) for size in shape if e.const_int(size) is None]
            for extent in map(Analyzer().simplify, extents):
                message = (
                    f"{self._func.name}: {stage.name}: computed at loop {place[1].name} of "
                    f"{place[0].name}: expected {extent} >= 1, since argument {stage.name} isn't "
                    "computed otherwise, got {}"
                )
                held: PrimExpr = e.greater_equal(extent, 1)
                for each in empty:
                    held = e.logical_or(each, held)
                body = AssertStmt(held, message, body, (extent,), "ValueError")
        return body

    def _with_factors_checked(self, body: Stmt) -> Stmt:
        """`body` behind the assertions that symbolic factors of splits are at least 1."""
        for stage in self._stages:
            for relation in stage.relations:
                if not isinstance(relation, Split):
                    continue
                for name, part in (("factor", relation.factor), ("nparts", relation.nparts)):
                    if part is None or e.const_int(part) is not None:
                        continue
                    message = (
                        f"{self._func.name}: split of {relation.parent.name} of {stage.name}: "
                        f"expected a {name} of 1 or more, got {part} = {{}}"
                    )
                    held = e.greater_equal(part, 1)
                    body = AssertStmt(held, message, body, (part,), "ValueError")
        return body

    def _learn_checks(self, stage: Stage, nest: Stmt) -> None:
        """Keeps the checks that became a part of a stage's body."""
        self._plain[stage] = nest
        body = self._bodies[stage]
        parts = marked_parts(nest)
        if not parts:
            self._bodies[stage] = StageBody(nest)
            return
        init = None if body.init is None else parts["init"]
        self._bodies[stage] = StageBody(parts["update"], init, body.reduced_where)

    # -- Bounds -----------------------------------------------------------------------------------

    def _infer(self, read: Callable[[PrimExpr], PrimExpr]) -> None:
        reads = {
            stage: reads_of(
                body.update,
                *([] if body.init is None else [body.init]),
                *[
                    read(bound)
                    for domain in map(partial(self._domain, stage), root_axes(stage.op))
                    for bound in (domain.min, domain.extent)
                ],
            )
            for stage, body in self._bodies.items()
        }
        makes = {
            self.memory.plain[tensor]: stage
            for stage in self._stages
            for tensor in stage.op.outputs
            if tensor not in self.memory.shared
        }
        readers: dict[Stage, list[Stage]] = {stage: [] for stage in self._stages}
        for stage, loads in reads.items():
            loaded = {makes[load.buffer] for load in loads if load.buffer in makes}
            loaded.discard(self._scans.inside.get(stage, stage))  # a state doesn't read itself
            if not isinstance(stage.op, ComputeOp):
                loaded.update(
                    self._schedule.stage_map[each.op]
                    for each in stage.op.input_tensors
                    if not isinstance(each.op, PlaceholderOp)
                )
            for made in loaded - {stage}:
                readers[made].append(stage)
        self._inferred = BoundInference(
            self._schedule,
            reads,
            readers.__getitem__,
            lambda load, stage: makes.get(load.buffer) is stage,
            self.memory.is_internal,
            self.memory.is_argument,
            self._scans,
            read,
            self._domain,
        ).run()
        for stage in self._stages:
            self._at.setdefault(self._inferred.places.get(stage), []).append(stage)
        for stage in self._stages:
            self.memory.fit(stage, self._inferred.bounds[stage])

    # -- Places -----------------------------------------------------------------------------------

    def runs_around(self, stage: Stage, leaf: IterVar, loop: IterVar) -> bool:
        """Whether a loop around a loop of a stage has several iterations."""
        place: Loop | None = stage, leaf
        while place is not None and not any(
            loop is each and each is not leaf for each in _down_to(*place)
        ):
            place = self._inferred.places.get(place[0])
        if place is None:
            raise CompileError(
                f"{stage.name}: prefetch: expected a loop around {leaf.name} of {stage.name}, "
                f"found that {loop.name} is none: reorder, or compute {stage.name} inside of it"
            )
        return not isinstance(self._inferred.bounds[place[0]].values[loop], e.IntImm)

    def placed(self, place: Loop | None, body: Stmt) -> Stmt:
        """The stages of a place, then `body`, inside of the allocations for these stages."""
        here = self._at.get(place, [])
        first: dict[Buffer, Stage] = {}
        for stage in here:
            for tensor in stage.op.outputs if stage not in self.memory.views else ():
                if not self.memory.is_given(tensor):
                    first.setdefault(self.memory.real(tensor), stage)
        for together in reversed(in_shared_loops(self._schedule, here)):
            loops = self._nest(together[0]) if len(together) == 1 else self._shared_nest(together)
            body = seq(loops, body)
            for stage in reversed(together):
                for buffer, owner in first.items():
                    # The memory of an update is around its scan.
                    if owner is stage and stage not in self._scans.updates:
                        body = Allocate(buffer, body)
                for tensor in stage.op.outputs:
                    owner_of_memory = self.memory.owner_of(tensor)
                    if owner_of_memory is not None:
                        owned = e.BufferRef(self.memory.real(owner_of_memory))
                        body = AttrStmt(self.memory.plain[tensor], VIEW, owned, body)
                for var, value in reversed(self._inferred.bounds[stage].names):
                    body = LetStmt(var, self._named(place, self.memory.moved(value, {})), body)
        return body

    def _shared_nest(self, together: Sequence[Stage]) -> Stmt:
        """The loops of a stage, and of those that are computed with it."""
        for each in together:
            if each.accumulates is not None or each.is_double_buffered:
                raise CompileError(
                    f"{each.name}: compute_with: expected stages whose elements are computed one "
                    "by one, into memory that is kept once: accumulate or double_buffer alone"
                )
        first, *others = [_Nest(self, each, self._inferred.bounds[each]) for each in together]
        scopes = [each.with_ivar for each in together[1:]]
        depths = [first.depth_of(cast(IterVar, scope)) for scope in scopes]
        for nest, depth in zip(others, depths, strict=True):
            nest.check_depth(first, depth)
        return _Shared(first, [*zip(others, depths, strict=True)]).make()

    def _named(self, place: Loop | None, value: PrimExpr) -> PrimExpr:
        """The value of a name for a bound, at the place where the bound is computed."""
        if place is None or not reads_of(value):
            return value
        stage, leaf = place
        nest = _Nest(self, stage, self._inferred.bounds[stage])
        return nest.where_inside(value, stage.leaf_iter_vars.index(leaf) + 1)

    # -- Loops ------------------------------------------------------------------------------------

    def body_of(self, stage: Stage) -> StageBody:
        """The statements of a stage, with its checks."""
        return self._bodies[stage]

    def store(self, stage: Stage, op: ComputeOp, results: list[PrimExpr]) -> Stmt:
        """The store of an element of each output of a stage, at its axes."""
        outputs = tuple(self.memory.plain[tensor] for tensor in op.outputs)
        axes = tuple(axis.var for axis in op.axis)
        return store_all(outputs, results, at_step(stage, outputs[0], axes))

    def check_outside(
        self, stage: Stage, read: Stmt | PrimExpr, inside: Sequence[IterVar], what: str
    ) -> None:
        """Checks that the init of a reduction, or a range, reads only tensors computed before the
        loops."""
        buffers = {load.buffer for load in reads_of(read)}
        for guest, (parent, axis) in self._inferred.places.items() if buffers else ():
            made = any(self.memory.plain[tensor] in buffers for tensor in guest.op.outputs)
            if parent is stage and axis in inside and made:
                raise CompileError(
                    f"{guest.name}: computed at loop {axis.name} of {stage.name}, which is inside "
                    f"of {what} {guest.name}: compute it further out"
                )

    def inlined(self, op: ComputeOp) -> ComputeOp:
        """An operation like `op` that reads no inlined operation."""
        return with_inlined(op, self._schedule.inlined)

    def _nest(self, stage: Stage) -> Stmt:
        """The loops of a stage."""
        if stage in self.memory.views:
            return _NOTHING
        if isinstance(stage.op, ScanOp):
            return self._scan(stage, stage.op.scan_axis)
        if not isinstance(stage.op, ComputeOp):
            return self.memory.move({}).stmt(self._bodies[stage].update)
        if stage.accumulates is not None:
            return _Accumulating(self, stage, self._inferred.bounds[stage]).make()
        if not _is_scheduled(stage) and not self._has_placed(stage):
            return self.memory.move({}).stmt(without_marks(self._plain[stage]))
        made = _Nest(self, stage, self._inferred.bounds[stage]).make()
        return (
            AttrStmt(self.memory.real(stage.op.output(0)), "double_buffer_scope", const(1), made)
            if stage.is_double_buffered
            else made
        )

    def _scan(self, stage: Stage, axis: IterVar) -> Stmt:
        """The copies of the first parts, and the loop over time with the stages placed in it."""
        range_ = self._inferred.bounds[stage].ranges[axis]
        attrs = stage.attrs_of(axis)
        low, extent = self.memory.moved(range_.min, {}), self.memory.moved(range_.extent, {})
        steps = For(axis.var, low, extent, attrs.kind, self.placed((stage, axis), _NOTHING))
        return seq(self._bodies[stage].update, steps)

    def _has_placed(self, stage: Stage) -> bool:
        return any(place[0] is stage for place in self._inferred.places.values()) or (
            stage in self._inferred.places
        )


@final
class _Shared:
    """The loops of one stage, and of others in these loops, each down to a depth."""

    def __init__(self, first: _Nest, others: Sequence[tuple[_Nest, int]]) -> None:
        self._first = first
        self._others = others

    def make(self) -> Stmt:
        return self._loops(0)

    def _loops(self, position: int) -> Stmt:
        """The loops from a position on: the first stage's, and those that others share with it."""
        sharing = [nest for nest, depth in self._others if depth > position]
        if not sharing:
            return self._first.loops(position)
        nests = [self._first, *sharing]
        ending = [nest for nest, depth in self._others if depth == position + 1]
        body = seq(self._loops(position + 1), *(each.loops(position + 1) for each in ending))
        for each in reversed(nests):
            body = each.placed(position, body)
        for each in sharing:
            body = self._first.beside(position, each, body)
        return seq(*(each.init(position) for each in nests), self._first.loop(position, body))


def _down_to(stage: Stage, loop: IterVar) -> Iterator[IterVar]:
    """The loops of a stage from the outermost one to `loop`."""
    for each in stage.leaf_iter_vars:
        yield each
        if each is loop:
            return


@final
@record()
class _Iteration:
    """The iteration in which a statement stands: the values of the axes, in terms of the loop
    variables. Some of these variables were renamed."""

    values: Mapping[IterVar, PrimExpr]
    renamed: Mapping[Var, Var] = field(default_factory=dict)


class _Nest:
    """The loops of one stage that computes elements."""

    def __init__(self, lowering: _Lowering, stage: Stage, bounds: Bounds) -> None:
        self._lowering = lowering
        self._memory = lowering.memory
        self._stage = stage
        self._bounds = bounds
        self._here = _Iteration(bounds.values)
        self._body = lowering.body_of(stage)
        self._op = cast(ComputeOp, stage.op)
        self._leaves = stage.leaf_iter_vars
        self._reduced = stage.reduce_leaves()
        reduces = [i for i, leaf in enumerate(self._leaves) if leaf in self._reduced]
        self._init_at = reduces[0] if reduces else len(self._leaves)

    def make(self) -> Stmt:
        return self.loops(0)

    def loops(self, position: int) -> Stmt:
        """The loops from a position on."""
        return seq(self.init(position), self._loops_from(position))

    def init(self, position: int) -> Stmt:
        """The stores of initial values, if they come before the loop at a position."""
        is_here = position == self._init_at and self._body.init is not None
        return self._initial() if is_here else _NOTHING

    def placed(self, position: int, body: Stmt) -> Stmt:
        """The stages at the loop of a position, then `body`."""
        return self._lowering.placed((self._stage, self._leaves[position]), body)

    def loop(self, position: int, body: Stmt) -> Stmt:
        """The loop at a position around `body`."""
        leaf = self._leaves[position]
        return self._loop(leaf, self._stage.attrs_of(leaf), self._here, body)

    def depth_of(self, scope: IterVar) -> int:
        """The number of loops down to one of them."""
        if not any(scope is leaf for leaf in self._leaves):
            raise CompileError(
                f"{self._stage.name}: compute_with: expected a loop of {self._stage.name}, found "
                f"{scope.name}, which a later primitive took away: call compute_with afterwards"
            )
        return self._leaves.index(scope) + 1

    def check_depth(self, first: _Nest, depth: int) -> None:
        """Checks that this nest has as many loops as it shares with the first one."""
        if depth > len(self._leaves):
            raise CompileError(
                f"{self._where_with(first)} down to {first._leaves[depth - 1].name}, found fewer"
            )

    def beside(self, position: int, other: _Nest, body: Stmt) -> Stmt:
        """`body`, which is in another nest's loop at a position, in the one of this nest."""
        mine, theirs = self._leaves[position], other._leaves[position]
        kinds = [self._kind(mine), other._kind(theirs)]
        if kinds[0] != kinds[1]:
            raise CompileError(
                f"{other._where_with(self)}, found {theirs.name} {kinds[1]} and {mine.name} "
                f"{kinds[0]}"
            )
        ranges = self._bounds.ranges[mine], other._bounds.ranges[theirs]
        extents = [
            self._memory.moved(each.extent, nest._bounds.values)
            for each, nest in zip(ranges, (self, other), strict=True)
        ]
        if not Analyzer().can_prove(e.equal(*extents)):
            raise CompileError(
                f"{other._where_with(self)}, found {theirs.name} with {extents[1]} iterations and "
                f"{mine.name} with {extents[0]}"
            )
        return substitute(body, {theirs.var: e.cast(theirs.var.dtype, mine.var)})

    def _kind(self, leaf: IterVar) -> str:
        attrs = self._stage.attrs_of(leaf)
        if attrs.intrin is not None:
            return "tensorized"
        return attrs.kind.name.lower() if attrs.thread is None else attrs.thread.thread_tag

    def _where_with(self, first: _Nest) -> str:
        return (
            f"{self._stage.name}: compute_with {first._stage.name}: expected loops like its loops"
        )

    def _loops_from(self, position: int) -> Stmt:
        if position == len(self._leaves):
            return self._guarded(self._body.update, self._here, with_reduction=True)
        leaf = self._leaves[position]
        if self._stage.attrs_of(leaf).intrin is not None:
            return self._tensorized(position)
        return self.loop(position, self.placed(position, self.loops(position + 1)))

    def _initial(self) -> Stmt:
        """The stores of initial values, in loops of their own over the data axes."""
        assert self._body.init is not None
        self._lowering.check_outside(
            self._stage,
            self._body.init,
            self._leaves[self._init_at :],
            "the reduction that begins from",
        )
        inside = [leaf for leaf in self._leaves[self._init_at :] if leaf not in self._reduced]
        own = {leaf: Var(f"{leaf.name}.init", leaf.var.dtype, axis=True) for leaf in inside}
        loops = {
            leaf: self._bounds.values[leaf] if leaf not in own or self._is_once(leaf) else own[leaf]
            for leaf in self._leaves
            if leaf not in self._reduced
        }
        values = values_of(self._stage.relations, self._bounds.ranges, loops)
        at = _Iteration(values, {leaf.var: var for leaf, var in own.items()})
        replaced = [
            i
            for i, leaf in enumerate(self._leaves)
            if self._stage.attrs_of(leaf).intrin is not None
        ]
        if replaced:
            if replaced[0] <= self._init_at:
                return _NOTHING  # the intrinsic stores the initial values
            body = self._reset(replaced[0], values)
            inside = [leaf for leaf in inside if self._leaves.index(leaf) < replaced[0]]
        else:
            body = self._guarded(self._body.init, at, with_reduction=False)
        for leaf in reversed(inside):
            attrs = replace(self._stage.attrs_of(leaf), prefetches=[])  # only the sums read
            body = self._loop(leaf, attrs, at, body)
        return body

    # -- Tensor intrinsics ------------------------------------------------------------------------

    def _tensorized(self, position: int) -> Stmt:
        """The intrinsic that replaces the loops from a position on."""
        made = self._intrinsic(position, self._bounds.values)
        outside = [leaf for leaf in self._leaves[:position] if leaf in self._reduced]
        if not outside:
            return self._outer_guarded(position, made.body, self._bounds.values)
        if made.reduce_update is None:
            raise CompileError(
                f"{self._where(position)}: expected an intrinsic with an update, since the "
                f"reduction over {outside[0].name} is outside of it: return (body, reset, update) "
                "from its fcompute"
            )
        return self._outer_guarded(position, made.reduce_update, self._bounds.values)

    def _reset(self, position: int, values: Mapping[IterVar, PrimExpr]) -> Stmt:
        made = self._intrinsic(position, values)
        if made.reduce_init is None:
            raise CompileError(
                f"{self._where(position)}: expected an intrinsic with a reset, since a reduction "
                "is outside of it: return (body, reset, update) from its fcompute"
            )
        return self._outer_guarded(position, made.reduce_init, values)

    def _intrinsic(self, position: int, values: Mapping[IterVar, PrimExpr]) -> Tensorized:
        leaf = self._leaves[position]
        intrin = self._stage.attrs_of(leaf).intrin
        assert intrin is not None
        inside = self._leaves[position:]
        for each in inside:
            if self._lowering.placed((self._stage, each), _NOTHING) is not _NOTHING:
                raise CompileError(
                    f"{self._where(position)}: expected no stage computed inside of it, found one "
                    f"at loop {each.name}"
                )
        if contains(AssertStmt, self._body.update):
            raise CompileError(
                f"{self._where(position)}: expected accesses that are inside of their tensors for "
                "all sizes, found one that is checked while the program runs"
            )
        domain = self._domain(position, inside, values)
        op = self._lowering.inlined(self._op)
        match = match_computation(intrin, op, domain, self._stage.name, leaf.name)
        views = self._memory.in_memory(match, self._op.outputs)
        made = tensorize(intrin, views, match.scalars, self._stage.name, leaf.name)
        self._lowering.knows_layout |= made.knows_layout
        return made

    def _domain(
        self, position: int, inside: list[IterVar], values: Mapping[IterVar, PrimExpr]
    ) -> dict[IterVar, Range]:
        """The range of each root axis inside of the intrinsic."""
        spans = Spans(Prover())
        leaves: dict[IterVar, tuple[Span | None, bool]] = {}
        for leaf in self._leaves:
            if leaf in inside:
                extent = spans.point(self._bounds.ranges[leaf].extent).low
                every = Span(spans.point(const(0)).low, extent - 1)
                spans.let(leaf.var, every)
                leaves[leaf] = every, True
            else:
                value = values.get(leaf, self._bounds.values[leaf])
                leaves[leaf] = spans.point(value), False
        found = axis_spans(self._stage, self._bounds, spans, leaves)
        domain = {}
        for axis in (*self._op.axis, *self._op.reduce_axis):
            dtype, span = axis.var.dtype, found[axis]
            if span is None:
                raise CompileError(
                    f"{self._where(position)}: expected axes whose ends are known before their "
                    f"loops, found {axis.name} in {self._bounds.ranges[axis]}: tensorize "
                    "a loop inside of those that this range depends on"
                )
            domain[axis] = Range.from_min_extent(
                spans.expression(span.low, dtype), spans.expression(span.extent, dtype)
            )
        return domain

    def _outer_guarded(self, position: int, body: Stmt, values: Mapping[IterVar, PrimExpr]) -> Stmt:
        """`body` under the guards; each of them must hold in all iterations of the loops inside of
        `body`, or in none."""
        inside = {leaf.var: self._bounds.ranges[leaf] for leaf in self._leaves[position:]}
        for guards in self._bounds.guards.values():
            for given in guards:
                guard = same_throughout(given, inside)
                if guard is None:
                    raise CompileError(
                        f"{self._where(position)}: expected loops that come out even, found the "
                        f"remainder {given}: split by a divisor, or pad the tensor"
                    )
                body = IfThenElse(likely(self._condition(guard, _Iteration(values))), body)
        return body

    def _where(self, position: int) -> str:
        return f"{self._stage.name}: tensorize of {self._leaves[position].name}"

    def _is_once(self, leaf: IterVar) -> bool:
        return isinstance(self._bounds.values[leaf], e.IntImm)

    def _loop(self, leaf: IterVar, attrs: LoopAttrs, at: _Iteration, body: Stmt) -> Stmt:
        if self._is_once(leaf):  # no later iteration
            attrs = replace(attrs, prefetches=[])
        if any(name == "debug_skip_region" for name, _ in attrs.pragmas):
            body = seq()
        if not self._is_once(leaf) or attrs.kind == ForKind.THREAD_BINDING:
            range_ = self._bounds.ranges[leaf]
            low = self._bound(range_.min, leaf, at.values)
            extent = self._bound(range_.extent, leaf, at.values)
            var = at.renamed.get(leaf.var, leaf.var)
            notes: dict[str, Any] = {}
            if attrs.thread is not None:
                notes["thread"] = attrs.thread.thread_tag
            if attrs.kind == ForKind.VECTORIZED and leaf not in self._reduced:
                notes[INDEPENDENT] = True
            body = For(var, low, extent, attrs.kind, body, notes)
        return self._annotated(leaf, attrs, body)

    def _annotated(self, leaf: IterVar, attrs: LoopAttrs, loop: Stmt) -> Stmt:
        for tensor, offset, of in attrs.prefetches:
            buffer = self._memory.real(tensor)
            if of is None:
                loop = AttrStmt(buffer, SCOPE, offset, loop)
            elif self._lowering.runs_around(self._stage, leaf, of):
                loop = AttrStmt(buffer, SHARES, of.var + e.cast(of.var.dtype, offset), loop)
        for name, value in attrs.pragmas:
            loop = AttrStmt(leaf, f"pragma_{name}", value, loop)
        return loop

    def _bound(
        self, bound: PrimExpr, leaf: IterVar, values: Mapping[IterVar, PrimExpr]
    ) -> PrimExpr:
        """A bound of a loop; it may depend on loops further out only."""
        made = e.cast(leaf.var.dtype, self._memory.moved(bound, values))
        place = self._leaves.index(leaf)
        around = self._leaves[:place]
        if not isinstance(bound, e.IntImm | Var):
            self._lowering.check_outside(
                self._stage, bound, self._leaves[place:], f"loop {leaf.name}, whose range reads"
            )
        inside = {each.var for each in self._leaves if each not in around}
        for node in walk_once(made):
            if isinstance(node, Var) and node in inside:
                raise CompileError(
                    f"{self._stage.name}: loop {leaf.name}: expected its range to depend on loops "
                    f"around it only, found {node.name} in {made}: reorder them"
                )
        return self.where_inside(made, place) if reads_of(made) else made

    def where_inside(self, bound: PrimExpr, position: int) -> PrimExpr:
        """A bound that is read from tensors, or 0 where the loops before `position` are beyond the
        domain and the elements read may not exist."""
        inside = {leaf.var for leaf in self._leaves[position:]}
        for guards in reversed(self._bounds.guards.values()):  # those of reductions may read, too
            for guard in guards:
                held = self._condition(guard, self._here)
                if inside.isdisjoint(walk_once(held)):
                    zero = const(0, bound.dtype)
                    bound = e.intrinsic("if_then_else", bound.dtype, held, bound, zero)
        return bound

    def _guarded(self, body: Stmt, at: _Iteration, *, with_reduction: bool) -> Stmt:
        """`body` in an iteration, under all guards."""
        made = self._inside(self._memory.move(at.values).stmt(body), self._op.axis, at)
        return self._at_steps(made, at) if with_reduction else made

    def _inside(self, made: Stmt, axes: Iterable[IterVar], at: _Iteration) -> Stmt:
        """A statement under the guards of some data axes."""
        guarded = self._under_guards(made, axes, at)
        if guarded is not made and self._bounds.is_padded:
            for tensor in self._op.outputs:
                guarded = AttrStmt(self._memory.real(tensor), "padded_buffer", const(1), guarded)
        return guarded

    def _at_steps(self, made: Stmt, at: _Iteration) -> Stmt:
        """A statement under the guards and conditions of a reduction."""
        made = self._under_guards(made, self._op.reduce_axis, at)
        move = self._memory.move(at.values)
        for condition in reversed(self._body.reduced_where):
            made = IfThenElse(move.expr(condition), made)
        return made

    def _under_guards(self, made: Stmt, axes: Iterable[IterVar], at: _Iteration) -> Stmt:
        guards = [guard for axis in axes for guard in self._bounds.guards[axis]]
        for guard in reversed(guards):
            made = IfThenElse(likely(self._condition(guard, at)), made)
        return made

    def _condition(self, guard: PrimExpr, at: _Iteration) -> PrimExpr:
        made = self._memory.moved(guard, at.values)
        return substitute(made, at.renamed) if at.renamed else made


class _Accumulating(_Nest):
    """The loops of a stage that computes running totals along an axis. The stage becomes a
    reduction along this axis into totals; each element is stored when the total has reached it."""

    def __init__(self, lowering: _Lowering, stage: Stage, bounds: Bounds) -> None:
        super().__init__(lowering, stage, bounds)
        assert stage.accumulates is not None
        self._along = leaves_below(stage.relations, [stage.accumulates])
        self._reduced = {*self._reduced, *self._along}
        self._init_at = min(i for i, leaf in enumerate(self._leaves) if leaf in self._along)
        self._kept = [leaf for leaf in self._leaves[self._init_at :] if leaf not in self._reduced]
        outputs = [lowering.memory.real(tensor) for tensor in self._op.outputs]
        extents = [(leaf, bounds.ranges[leaf].extent) for leaf in self._kept]
        shape = tuple(self._bound(extent, leaf, bounds.values) for leaf, extent in extents)
        self._outputs = outputs
        self._buffers = totals_of(outputs, shape or (const(1),), "total")

    def loops(self, position: int) -> Stmt:
        made = super().loops(position)
        return self._totals(self._here).within(made) if position == self._init_at else made

    def _loops_from(self, position: int) -> Stmt:
        leaf = self._leaves[position] if position < len(self._leaves) else None
        if leaf in self._along and leaf is not None:
            extent = e.const_int(self._bounds.ranges[leaf].extent)
            is_vector = self._stage.attrs_of(leaf).kind == ForKind.VECTORIZED
            has_guests = self._lowering.placed((self._stage, leaf), _NOTHING) is not _NOTHING
            if is_vector and extent is not None and extent > 1 and not has_guests:
                return self._in_lanes(leaf, extent)
        return super()._loops_from(position)

    def _totals(self, at: _Iteration) -> Totals:
        """The totals of the element of an iteration."""
        loops = [self._bounds.values[leaf] for leaf in self._kept] or [const(0)]
        return Totals(self._buffers, tuple(substitute(each, at.renamed) for each in loops))

    def _guarded(self, body: Stmt, at: _Iteration, *, with_reduction: bool) -> Stmt:
        totals = self._totals(at)
        made = Onto(self._outputs, totals).stmt(self._memory.move(at.values).stmt(body))
        if not with_reduction:
            others = [axis for axis in self._op.axis if axis is not self._stage.accumulates]
            return self._inside(made, others, at)
        made = seq(self._at_steps(made, at), self._stored(totals.load()))
        return self._inside(made, self._op.axis, at)

    def _inside(self, made: Stmt, axes: Iterable[IterVar], at: _Iteration) -> Stmt:
        guarded = super()._inside(made, axes, at)
        if guarded is not made:  # the totals' memory covers all iterations
            for buffer in self._buffers:
                guarded = AttrStmt(buffer, "padded_buffer", const(1), guarded)
        return guarded

    def _stored(self, results: list[PrimExpr]) -> Stmt:
        """Stores an element of each output."""
        return self._memory.move(self._bounds.values).stmt(
            self._lowering.store(self._stage, self._op, results)
        )

    def _in_lanes(self, leaf: IterVar, width: int) -> Stmt:
        """The elements of a vector."""
        combiner = reduce_of(self._op).combiner
        move = self._memory.move(self._bounds.values)

        def read(value: PrimExpr) -> PrimExpr:
            return move.expr(self._lowering.reader.expr(value))

        lanes = Totals(totals_of(self._outputs, (const(width),), "lanes", "local"), (leaf.var,))
        terms = Onto(self._outputs, lanes).stmt(move.stmt(self._body.update))
        terms = self._inside(self._at_steps(terms, self._here), self._op.axis, self._here)
        totals = self._totals(self._here)
        results = self._stored(combined(combiner, totals.load(), lanes.load(), read))
        last = lanes.at(const(width - 1)).load()
        made = seq(
            in_lanes(combiner, lanes, width, terms, read),
            each_lane(leaf.var, width, self._inside(results, self._op.axis, self._here)),
            totals.store(combined(combiner, totals.load(), last, read)),
        )
        return self._annotated(leaf, self._stage.attrs_of(leaf), lanes.within(made))

    def _loop(self, leaf: IterVar, attrs: LoopAttrs, at: _Iteration, body: Stmt) -> Stmt:
        made = super()._loop(leaf, attrs, at, body)
        if leaf in self._along and isinstance(made, For) and made.kind == ForKind.VECTORIZED:
            return replace(made, kind=ForKind.SERIAL)  # lanes depend on each other
        return made


def _is_scheduled(stage: Stage) -> bool:
    """Whether a primitive was applied to the loops of a stage."""
    return bool(stage.iter_var_attrs) or stage.has_new_loops
