"""Schedules: the stages of a program, their places and loops, and the primitives that change
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.accumulation import normalize_loops
from minitvm.te.schedules.batches import Batch, PartOfBatch, batch_along, part_of_batch
from minitvm.te.schedules.graph_primitives import GraphPrimitives, listed
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.relation import Fuse, Rebase, Split, sources_of
from minitvm.te.schedules.stage import Group, Stage
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.schedules.trace import Trace, primitive
from minitvm.te.tensor import Operation, PlaceholderOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, described
from minitvm.tir.functor import walk_once
from minitvm.tir.provenance import Choice

# The nodes of a condition on extents.
_OF_EXTENTS = (
    e.Var, e.IntImm, e.Cast, e.Add, e.Sub, e.Mul, e.FloorDiv, e.FloorMod, e.Min, e.Max,
    e.EQ, e.NE, e.LT, e.LE, e.GT, e.GE, e.And, e.Or, e.Not,
)  # fmt: skip


@final
@record()
class Parts:
    """How a batch is computed in parts (:meth:`Schedule.compute_in_parts`): the batch, the number
    of its elements in a part, the trace of a part's schedule, and whether the batch is the last
    dimension of a part's tensors."""

    batch: Batch
    factor: int
    trace: str
    in_lanes: bool

    def program(self, outputs: Sequence[Operation]) -> PartOfBatch:
        """The program of a part."""
        extent = e.const(self.factor, self.batch.extent.dtype)
        return part_of_batch(outputs, self.batch, extent, in_lanes=self.in_lanes)


@final
class Schedule(GraphPrimitives):
    """The stages of the operations that `outputs` need, each behind the stages that it reads.

    Made by :func:`create_schedule`; ``s[C]`` is the stage of a tensor or an operation.
    """

    __slots__ = ("choices", "chosen", "is_warned_of", "parts", "versions")

    def __init__(self, outputs: tuple[Operation, ...]) -> None:
        super().__init__(outputs)
        self.stages = [Stage(op, self, op in outputs) for op in in_order(outputs)]
        self.stage_map = {stage.op: stage for stage in self.stages}
        self.calls = Trace(outputs, self.now, self.stage_of)
        self.enter_all()
        self.groups = []
        # The reasons that auto_schedule noted, and the lines of the trace that they explain,
        # without the lines of primitives applied by hand before or later.
        self.choices: list[Choice] = []
        self.chosen = range(0)
        self.is_warned_of = False  # whether build warned of stages left as plain loops
        # Schedules for calls in which a condition holds: the first one that holds counts.
        self.versions: list[tuple[PrimExpr, Schedule]] = []
        self.parts: Parts | None = None

    def text_in(self, trace: Trace) -> str:
        if trace is self.calls:
            return "s"
        listed = ", ".join(map(trace.operation, self.calls.outputs))
        return f'te.replay("""\n{self.trace()}\n""", [{listed}])'

    def note_touched(self, things: Iterable[object]) -> None:
        for each in things:
            op = each.op if isinstance(each, Tensor) else each
            if isinstance(op, Operation) and op in self.stage_map:
                self.stage_map[op].is_named = True

    def trace(self) -> str:
        """The Python calls that made this schedule, a line each.

        The text needs ``te``, ``tir`` and the output tensors under their names, and makes ``s``:
        :func:`minitvm.te.schedules.replay` runs it.

        >>> from minitvm import te
        >>> A = te.placeholder((64,), name="A")
        >>> B = te.compute((64,), lambda i: A[i] * 2.0, name="B")
        >>> s = te.create_schedule(B.op)
        >>> outer, inner = s[B].split(B.op.axis[0], factor=8)
        >>> s[B].vectorize(inner)
        >>> print(s.trace())
        s = te.create_schedule([B.op])
        i = B.op.axis[0]
        i_outer, i_inner = s[B].split(i, factor=8)
        s[B].vectorize(i_inner)
        """
        return "\n".join(self.calls.lines)

    # -- Questions --------------------------------------------------------------------------------

    @property
    def is_touched(self) -> bool:
        """Whether a primitive was applied."""
        return len(self.calls.lines) > 1

    @property
    def is_as_chosen(self) -> bool:
        """Whether `choices` explain the schedule as it is now."""
        return self.chosen.stop == len(self.calls.lines)

    def copy(self) -> Schedule:
        """A schedule of the same program, scheduled so far in the same way: with stages of its own,
        and the same operations and axes."""
        return self._copy(self.stages, self.outputs)

    # -- Versions ---------------------------------------------------------------------------------

    @primitive
    def specialize(self, condition: PrimExpr | bool, version: Schedule) -> None:
        """Let another schedule compute the program in calls in which a condition holds.

        Before::

            for i: for j: C[i, j] = ...

        After ``s.specialize(m <= 4, few)``::

            if m <= 4: ...  # the loops of few
            else: for i: for j: C[i, j] = ...

        Of several conditions that hold, the first one counts. In a version for ``m == 1``, the
        extent m is the constant 1.

        Parameters
        ----------
        condition : PrimExpr or bool
            A condition on the symbolic extents of the program; ``True`` for all calls.
        version : Schedule
            A schedule of the same outputs, without versions of its own.

        Raises
        ------
        CompileError
            When `condition` is no condition on extents, or `version` is no such schedule.
        """
        condition = e.const(condition) if isinstance(condition, bool) else condition
        if not isinstance(condition, PrimExpr) or not condition.dtype.is_bool:
            raise CompileError(
                f"specialize: expected a condition such as n <= 8, got {described(condition)}"
            )
        if any(not isinstance(each, _OF_EXTENTS) for each in walk_once(condition)):
            raise CompileError(f"specialize: expected a condition on extents, got {condition}")
        if self.parts is not None:
            raise CompileError("specialize: expected a schedule that computes no batch in parts")
        if not isinstance(version, Schedule):
            raise CompileError(f"specialize: expected a schedule, got {described(version)}")
        if (found := self._not_a_version(version)) is not None:
            raise CompileError(
                "specialize: expected another schedule of the same outputs, without versions, got "
                f"{found}"
            )
        self.versions.append((condition, version))

    @primitive
    def compute_in_parts(
        self, dimension: int, factor: int, part: str, in_lanes: bool = False
    ) -> None:
        """Compute a batch in parts, each by a schedule of its own, on all threads.

        Before, where no element depends on elements at other ``b``::

            for t: for b: H[t, b] = ...

        After ``s.compute_in_parts(1, 16, part)``, ``part`` being the trace of a schedule of the
        same program with a batch of 16::

            for p in parallel(n // 16):
                for t: for b in range(p * 16, p * 16 + 16): H[t, b] = ...
            for t: for b in range(n // 16 * 16, n): H[t, b] = ...

        The rest, and batches of less than a part, have the loops of this schedule.

        Parameters
        ----------
        dimension : int
            The dimension of the first output that is the batch.
        factor : int
            The number of elements in a part.
        part : str
            The trace of a schedule of a part.
        in_lanes : bool
            Whether the batch is the last dimension of all tensors of a part but its inputs and
            outputs, which are copied then.

        Raises
        ------
        CompileError
            When elements depend on each other along the dimension, there are no parts of this size,
            or the schedule has versions.
        """
        where = "compute_in_parts"
        outputs = self.calls.outputs
        is_number = isinstance(dimension, int) and 0 <= dimension < outputs[0].output(0).ndim
        batch = batch_along(outputs, dimension) if is_number else None
        if batch is None:
            raise CompileError(
                f"{where}: expected a dimension of {outputs[0].name} along which no element "
                f"depends on others, got {described(dimension)}"
            )
        extent = e.const_int(batch.extent)
        if not isinstance(factor, int) or not 0 < factor <= (extent or factor):
            raise CompileError(
                f"{where}: expected the number of elements in a part, at most {batch.extent}, got "
                f"{described(factor)}"
            )
        if not isinstance(part, str):
            raise CompileError(f"{where}: expected the trace of a schedule, got {described(part)}")
        if self.versions or self.parts is not None:
            raise CompileError(f"{where}: expected a schedule without versions and parts")
        self.parts = Parts(batch, factor, part, bool(in_lanes))

    def take_back_version(self) -> tuple[PrimExpr, Schedule]:
        """Undoes the last ``specialize``, which must be the last primitive of the schedule: returns
        its condition and its version."""
        assert ".specialize(" in self.calls.lines[-1]
        self.calls.lines.pop()
        return self.versions.pop()

    def _not_a_version(self, other: Schedule) -> str | None:
        """What another schedule is, and the remedy, if it can't be a version of this one."""
        if other is self:
            return "this one: schedule a copy()"
        mine, its = ([op.name for op in each.calls.outputs] for each in (self, other))
        if mine != its:
            return f"one of {', '.join(its)} in place of {', '.join(mine)}"
        if other.calls.outputs != self.calls.outputs:
            return f"one of another {', '.join(its)}: make it for the same operations"
        if other.parts is not None:
            return "one that computes a batch in parts"
        if other.versions:
            listed = ", ".join(str(each) for each, _ in other.versions)
            return f"one with versions ({listed}): give them to this schedule"
        return None

    # -- Groups ---------------------------------------------------------------------------------

    @primitive
    def create_group(self, outputs: Any, inputs: Any, include_inputs: bool = False) -> Group:
        """The stages between some tensors, to be placed together.

        Parameters
        ----------
        outputs, inputs : Tensor or Operation, or a list of them
            The last and the first tensors of the group.
        include_inputs : bool
            Whether `inputs` are in the group.

        Returns
        -------
        Group
            ``group.compute_at(s[C], axis)`` places all its stages that have no place of their own.

        Raises
        ------
        CompileError
            When no stage is between `outputs` and `inputs`, or a stage is in another group.
        """
        if not isinstance(include_inputs, bool):
            raise CompileError(
                "create_group: include_inputs: expected True or False, got "
                f"{described(include_inputs)}"
            )
        ends, begins = ([self[each] for each in listed(given)] for given in (outputs, inputs))
        inside: list[Stage] = []
        pending = list(ends)
        while pending:
            stage = pending.pop()
            if stage in inside or (stage in begins and not include_inputs):
                continue
            if isinstance(stage.op, PlaceholderOp):
                continue
            inside.append(stage)
            if stage not in begins:
                pending += [self.stage_map[each.op] for each in stage.op.input_tensors]
        if not inside:
            raise CompileError("create_group: expected stages between inputs and outputs, got none")
        inside.sort(key=self.stages.index)
        for stage in inside:
            if stage.group is not None:
                raise CompileError(
                    "create_group: expected stages without a group, got "
                    f"{stage.name} of {stage.group}"
                )
        group = Group(self, inside)
        for stage in inside:
            stage.group = group
        self.groups.append(group)
        return group

    # -- For lowering -----------------------------------------------------------------------------

    def normalize(self) -> Schedule:
        """A copy in which every loop begins at 0 and every ``compute_at`` names an existing loop:
        the inner loop if the named loop was split since, the fused loop if it was fused.

        >>> from minitvm import te
        >>> B = te.compute((8,), lambda i: i, name="B")
        >>> te.create_schedule(B.op).normalize()[B].relations
        []
        """
        made = self.copy()
        for stage in made.stages:
            if stage.accumulates is not None:
                normalize_loops(stage, stage.accumulates)
            for axis in list(stage.leaf_iter_vars):
                if axis.dom is not None and stage.begins_elsewhere(axis):
                    stage.rebase(axis)
        for each in [*made.stages, *made.groups]:
            if each.attach_stage is not None and each.attach_ivar is not None:
                each.attach_ivar = _loop_now(each.attach_stage, each.attach_ivar)
        for stage in made.stages:
            if stage.with_stage is not None and stage.with_ivar is not None:
                stage.with_ivar = _loop_now(stage.with_stage, stage.with_ivar)
        return made

    def without_ahead(self) -> tuple[Schedule, dict[Tensor, Schedule]]:
        """A schedule in which the stages of ``compute_ahead`` are arguments; and for each of these
        arguments, the schedule that computes it."""
        if not any(stage.is_ahead for stage in self.stages):
            return self, {}
        made, parts = self.copy(), {}
        for stage in [each for each in made.stages if each.is_ahead]:
            before = stage.stages_before()
            parts[before[0].op.output(0)] = made._copy(before, (stage.op,))
            made._replace_by_argument(before)
        return made, parts

    def _replace_by_argument(self, before: Sequence[Stage]) -> None:
        """Let the last of some stages be an argument in place of the first one."""
        source, stage = before[0], before[-1]
        tensor = stage.op.output(0)
        given = PlaceholderOp(source.name, tensor.shape, tensor.dtype)
        self.now_computes(stage, given)
        stage.restart(given)
        self.stages = [each for each in self.stages if each is stage or each not in before]
        for op, each in self.stage_map.items():
            if each in before:
                self.stage_map[op] = stage
        self.enter_all()

    def _copy(self, kept: Sequence[Stage], outputs: tuple[Operation, ...]) -> Schedule:
        """A copy of some stages, which must include all stages that they read."""
        made: Schedule = object.__new__(Schedule)
        StageGraph.__init__(made, outputs)
        stages = {stage: stage.copy(made) for stage in kept}
        made.stages = list(stages.values())
        made.stage_map = {op: stages[each] for op, each in self.stage_map.items() if each in stages}
        groups = {
            group: Group(made, [stages[each] for each in group.stages])
            for group in self.groups
            if all(each in stages for each in group.stages)
        }
        made.groups = list(groups.values())
        made.calls = self.calls.copy(made.now, made.stage_of, groups)
        made.enter_all()
        made.choices, made.chosen = [*self.choices], self.chosen
        made.is_warned_of, made.versions = self.is_warned_of, [*self.versions]
        made.parts = self.parts
        pairs: list[tuple[Any, Any]] = [*stages.items(), *groups.items()]
        for old, new in pairs:
            new.attach_ivar = old.attach_ivar
            new.attach_stage = stages.get(old.attach_stage)
            new.group = groups.get(old.group)
        for before, stage in stages.items():
            stage.is_output = stage.op in outputs
            stage.with_stage = stages.get(before.with_stage) if before.with_stage else None
        return made


def _loop_now(stage: Stage, axis: IterVar) -> IterVar:
    """The loop that has replaced `axis`."""
    for relation in stage.relations:
        if any(source is axis for source in sources_of(relation)):
            match relation:
                case Split(inner=inner):
                    axis = inner
                case Fuse(fused=fused):
                    axis = fused
                case Rebase(rebased=rebased):
                    axis = rebased
    return axis


def create_schedule(ops: Operation | Tensor | Sequence[Operation | Tensor]) -> Schedule:
    """A schedule of some output operations and all that they need, without any primitive applied.

    Parameters
    ----------
    ops
        One or several output operations (``C.op``), or their tensors.

    Raises
    ------
    CompileError
        When `ops` is empty, or holds something else.

    >>> from minitvm import te
    >>> A = te.placeholder((4,), name="A")
    >>> B = te.compute((4,), lambda i: A[i] * 2.0, name="B")
    >>> te.create_schedule(B.op).stages
    [stage(A), stage(B)]
    """
    found = [each.op if isinstance(each, Tensor) else each for each in listed(ops)]
    for op in found:
        if not isinstance(op, Operation):
            raise CompileError(f"create_schedule: expected operations, got {op!r}")
    if not found:
        raise CompileError("create_schedule: expected at least one operation, got none")
    return Schedule(tuple(dict.fromkeys(found)))


def is_input(op: Operation) -> bool:
    """Whether the operation's tensor is given from outside rather than computed."""
    return isinstance(op, PlaceholderOp)
