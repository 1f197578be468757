"""A stage of a schedule: the place, memory and loops of one operation, and the primitives for
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import reads_tensors
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.accumulation import checked_accumulation
from minitvm.te.schedules.layout import layout_of
from minitvm.te.schedules.loop_nest import LoopNest, names_of
from minitvm.te.schedules.operation_graph import in_order, read_by_ranges, root_axes
from minitvm.te.schedules.reassociation import reassociated
from minitvm.te.schedules.rewrite_operations import (
    in_layout,
    in_steps,
    reading_layout,
    with_inlined,
)
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.schedules.trace import Trace, Traced, primitive
from minitvm.te.schedules.views import viewed_by
from minitvm.te.schedules.zero_terms import without_zero_terms
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir.buffer import checked_scope
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterType, IterVar, PrimExpr, Reduce, Var
from minitvm.tir.functor import free_vars, substitute


class Attachable(Traced):
    """Base of the objects that ``compute_at`` places: a stage, or a group of them."""

    __slots__ = ("attach_ivar", "attach_stage", "group", "schedule")
    schedule: StageGraph[Stage]

    def __init__(self, schedule: StageGraph[Stage]) -> None:
        self.schedule = schedule
        self.group: Group | None = None
        self.attach_stage: Stage | None = None
        self.attach_ivar: IterVar | None = None

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def calls(self) -> Trace:  # type: ignore[override]  # kept by the schedule
        return self.schedule.calls

    def members(self) -> list[Stage]:
        """The stages that this object stands for."""
        raise NotImplementedError

    def note_touched(self, things: Iterable[object]) -> None:
        for each in (self, *things):  # for example the stage at whose loop this one is placed
            if isinstance(each, Attachable):
                for stage in each.members():
                    stage.is_touched = True

    @primitive
    def compute_at(self, parent: Stage, scope: IterVar) -> Attachable:
        """Compute, in each iteration of a consumer's loop, just the elements that this iteration
        reads.

        Before::

            for i: B[i] = A[i] * 2
            for i: C[i] = B[i] + 1

        After ``s[B].compute_at(s[C], i)``, with memory for one element of B::

            for i:
                B[0] = A[i] * 2
                C[i] = B[0] + 1

        Parameters
        ----------
        parent : Stage
            A stage that reads this one, directly or through others.
        scope : IterVar
            One of its loops.

        Raises
        ------
        CompileError
            When `parent` does not consume this stage, `scope` is none of its loops, or this stage
            is a placeholder, or an output that no stage reads.
        """
        where = f"{self.name}: compute_at"
        if not isinstance(parent, Stage):
            raise CompileError(f"{where}: expected a stage such as s[C], got {parent!r}")
        if parent.schedule is not self.schedule:
            raise CompileError(f"{where}: expected a stage of this schedule, got another's")
        parent.leaf_index(where, scope)
        for member in self.members():
            member.check_movable("compute_at")
            if not self.schedule.consumes(parent, member):
                readers = [each.name for each in self.schedule.readers(member)]
                raise CompileError(
                    f"{where}: expected a stage that reads {member.name}, directly or through "
                    f"others, got {parent.name}, which does not: {member.name} is read by "
                    f"{', '.join(readers) or 'none'}"
                )
        self._attach(parent, scope)
        return self

    @primitive
    def compute_root(self) -> Attachable:
        """Compute the whole tensor before the stages that read it: the default."""
        self._attach(None, None)
        return self

    def _attach(self, parent: Stage | None, scope: IterVar | None) -> None:
        self.attach_stage, self.attach_ivar = parent, scope


@final
class Stage(LoopNest, Attachable):
    """One operation of a schedule; ``s[C]``.

    Attributes
    ----------
    op, all_iter_vars, leaf_iter_vars, relations, iter_var_attrs
        The operation and its loops: see :class:`LoopNest`.
    origin_op : Operation
        The operation at the beginning, before any rewrite.
    is_ahead : bool
        Whether the stage is computed before the program is called.
    is_touched : bool
        Whether a primitive was applied to the stage, or another stage is computed at its loops.
    is_named : bool
        Whether a primitive of the schedule was given the stage's tensor, or made it.
    is_view : bool
        Whether the stage shares the memory of the tensor that it copies, where it can.
    time : IterVar or None
        For a stage that is computed for each step of a scan and has no axis of time of its own, the
        scan's axis of time.
    accumulates : IterVar or None
        The data axis along which the stage is a running reduction (:meth:`accumulate`).
    scope : str
        The kind of memory: ``""`` is automatic, ``"global"``, ``"local"`` for registers.
    with_stage, with_ivar : Stage and IterVar, or None
        The stage in whose loops this one is computed beside it, and the innermost of these loops.
    """

    __slots__ = (
        "accumulates",
        "all_iter_vars",
        "inlined",
        "is_ahead",
        "is_double_buffered",
        "is_late",
        "is_named",
        "is_output",
        "is_touched",
        "is_view",
        "iter_var_attrs",
        "last_op",
        "leaf_iter_vars",
        "origin_op",
        "relations",
        "scope",
        "storage_alignments",
        "store_predicate",
        "time",
        "with_ivar",
        "with_stage",
    )

    def __init__(self, op: Operation, schedule: StageGraph[Stage], is_output: bool = False) -> None:
        super().__init__(schedule)
        self.origin_op = op
        self.is_late = False
        self.is_output = is_output
        self.is_touched = self.is_named = False
        self.inlined = False
        self.is_ahead = self.is_view = False
        self.scope = ""
        self.is_double_buffered = False
        self.storage_alignments: dict[IterVar, tuple[int, int]] = {}
        self.store_predicate: PrimExpr | None = None
        self.time: IterVar | None = None
        self.restart(op)

    @property
    def op(self) -> Operation:
        """The operation."""
        if self.is_late:
            self.schedule.catch_up(self)
        return self.last_op

    def restart(self, op: Operation) -> None:
        """Let the stage compute `op`, in unscheduled loops."""
        self.last_op = op
        self.all_iter_vars = list(root_axes(op))
        self.leaf_iter_vars = list(self.all_iter_vars)
        self.relations = []
        self.iter_var_attrs = {}
        self.accumulates: IterVar | None = None
        self.with_stage: Stage | None = None
        self.with_ivar: IterVar | None = None

    def text_in(self, trace: Trace) -> str:
        return f"s[{trace.tensor(self.origin_op.output(0))}]"

    def indices_for(self, method: str) -> int:
        if method == "transform_reduction":
            return len(root_axes(self.op)) - len(getattr(self.op, "axis", ()))
        return self.op.output(0).ndim

    def members(self) -> list[Stage]:
        return [self]

    def __repr__(self) -> str:
        return f"stage({self.name})"

    @primitive
    def compute_with(self, other: Stage, scope: IterVar) -> Stage:
        """Compute in the loops of another stage, beside it, from the outermost loop to `scope`.

        Before::

            for i:
                for k: A[i] += X[i, k]
            for i:
                for k: B[i] += X[i, k] * Y[i, k]

        After ``s[B].compute_with(s[A], k)``::

            for i:
                for k:
                    A[i] += X[i, k]
                    B[i] += X[i, k] * Y[i, k]

        So an element that both read is loaded once, or is still in a cache. The loops of both
        stages are alike down to `scope`: as many, of the same extents and kinds (Halide's
        ``compute_with``).

        Parameters
        ----------
        other : Stage
            A stage computed at the same place, which doesn't depend on this one, nor this on it.
        scope : IterVar
            One of its loops.

        Raises
        ------
        CompileError
            When `other`, or a stage that is computed with it, is no such stage; when `other` is
            computed in the loops of a third; when `scope` is none of its loops; when one of the two
            has no loops of its own. ``lower`` raises one when the places or the loops aren't alike.
        """
        where = f"{self.name}: compute_with"
        if not isinstance(other, Stage) or other.schedule is not self.schedule or other is self:
            raise CompileError(f"{where}: expected another stage of this schedule, got {other!r}")
        other.leaf_index(where, scope)
        for each in (self, other):
            each.check_movable("compute_with")
            if not isinstance(each.op, ComputeOp) or each.accumulates is not None:
                raise CompileError(
                    f"{where}: expected stages of te.compute whose elements are computed one by "
                    f"one, got {each.name}"
                )
        if other.with_stage is not None:
            raise CompileError(
                f"{where}: expected a stage in loops of its own, got {other.name}, which is "
                f"computed with {other.with_stage.name}: name that"
            )
        beside = [each for each in self.schedule.stages if each.with_stage is other]
        for each in (other, *(stage for stage in beside if stage is not self)):
            for reader, read in ((self, each), (each, self)):
                if self.schedule.consumes(reader, read):
                    raise CompileError(
                        f"{where}: expected stages that don't depend on each other, but "
                        f"{reader.name} reads {read.name}, directly or through others"
                    )
        self.with_stage, self.with_ivar = other, scope
        return self

    @primitive
    def simplify(self) -> Stage:
        """Simplify the expressions of the stage with the ranges of its axes.

        Before, for `i` and `j` below `n`::

            for i: for j: B[i, j] = A[(i * n + j) // n, min(j, n - 1)]

        After ``s[B].simplify()``::

            for i: for j: B[i, j] = A[i, j]

        Stages that are inlined become part of this one: reads of them become their values.

        Lowering simplifies as well. But after this primitive, other primitives that look at the
        reads of a stage see the simple expressions as well. An expression that doesn't get shorter
        stays as it is.

        The terms that a reduction leaves out become its condition: ``sum(select(k < j, x, 0))``,
        and a sum of `x` over `k` in ``(0, j)``, become a sum over all `k` with the condition ``k <
        j``. So the loops can be tiled; iterations without effect are clipped later. A reduction of
        one term becomes this term.

        Raises
        ------
        CompileError
            When the stage computes no expressions; when a range changes, and loops were scheduled
            already.
        """
        if not isinstance(self.op, ComputeOp):
            raise CompileError(
                f"simplify of {self.name}: expected a tensor of te.compute, got one of "
                f"{type(self.op).__name__}"
            )
        made = simplified(with_inlined(self.op, self.schedule.inlined))
        is_untouched = not self.relations and not self.iter_var_attrs
        changed = [x for x in self.op.reduce_axis if x not in made.reduce_axis]
        shares = self.with_stage or any(x.with_stage is self for x in self.schedule.stages)
        if changed and (shares or not is_untouched):
            raise CompileError(
                f"simplify of {self.name}: expected loops as they were, since the range of "
                f"{changed[0].name} changes, found loops that were scheduled: simplify first"
            )
        self.schedule.now_computes(self, made)
        if changed:
            self.restart(self.op)
        return self

    @primitive
    def omit_zeros(self) -> Stage:
        """Leave out the terms of a sum that conditions on axes make 0, of a minimum that they make
        infinite, or of a maximum that they make minus infinity.

        Before::

            for i: for j: for k: C[i, j] += if_then_else(k <= i, A[i, k], 0) * B[k, j]

        After ``s[C].omit_zeros()``::

            for i: for j: for k: if k <= i: C[i, j] += A[i, k] * B[k, j]

        So iterations without effect are clipped from loops later. The choice may be one of a stage
        that the reduction reads, also between a number and minus infinity, whose exponential is 0.
        A condition on a remainder, such as ``(i + k) % 2 == 0``, leaves half of the steps after
        ``simplify``; the element that it guards is read where its stage reads it.
        Terms of 0 times NaN or infinity, and sums of infinities, are left out as well.

        Raises
        ------
        CompileError
            When the stage isn't one sum, minimum or maximum, or no condition that compares its
            reduction axes makes its terms neutral.

        >>> from minitvm import te
        >>> A, B = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
        >>> k = te.reduce_axis((0, 8), name="k")
        >>> L = te.compute((8, 8), lambda i, k: te.if_then_else(k <= i, A[i, k], 0.0), name="L")
        >>> C = te.compute((8, 8), lambda i, j: te.sum(L[i, k] * B[k, j], axis=k), name="C")
        >>> te.create_schedule(C.op)[C].omit_zeros().op.body[0]
        sum(L[i, k] * B[k, j], axis=[k], where=k <= i)
        """
        expected = "a sum, minimum or maximum with terms that conditions on reduction axes make "
        self._rewrite("omit_zeros", without_zero_terms, f"{expected}neutral")
        return self

    @primitive
    def reassociate(self) -> Stage:
        """Multiply factors that change along the same axes first, in a reduction of the stage.

        Before::

            for i: for j: for k: C[i, j] += A[i, k] * B[k, j] * s[k]

        After ``s[C].reassociate()``::

            for i: for j: for k: C[i, j] += A[i, k] * s[k] * B[k, j]

        So ``s.hoist(C, [i, k])`` can compute ``A[i, k] * s[k]`` ahead. A factor joins the group of
        factors whose axes include its own; of several such groups, the one with the fewest values.
        Divisors count as factors. The reducer is a sum; or it is a minimum or a maximum of floats,
        and the "factors" are the terms of a sum. Results are rounded in another order.

        Raises
        ------
        CompileError
            When the stage is no such reduction of integers or of floats of 32 bits or more, or all
            factors of each group are neighbours already.

        >>> from minitvm import te
        >>> A, B, s = (te.placeholder((8,) * n, name=x) for n, x in ((2, "A"), (2, "B"), (1, "s")))
        >>> k = te.reduce_axis((0, 8), name="k")
        >>> C = te.compute((8, 8), lambda i, j: te.sum(A[i, k] * B[k, j] * s[k], axis=k), name="C")
        >>> sch = te.create_schedule(C.op)
        >>> sch[C].reassociate().op.body[0].source[0]
        A[i, k] * s[k] * B[k, j]
        """
        expected = "a contraction in which factors that change along the same axes aren't "
        self._rewrite("reassociate", reassociated, f"{expected}neighbours")
        return self

    def _rewrite(
        self, what: str, rewritten: Callable[[ComputeOp], ComputeOp | None], expected: str
    ) -> None:
        """Lets the stage compute its elements by other expressions; refused where there are
        none."""
        made = rewritten(self.op) if isinstance(self.op, ComputeOp) else None
        if made is None:
            found = self.op.body[0] if isinstance(self.op, ComputeOp) else type(self.op).__name__
            raise CompileError(f"{what} of {self.name}: expected {expected}, got {found}")
        self.schedule.now_computes(self, made)

    @primitive
    def accumulate(self, axis: IterVar) -> None:
        """Compute each element along a data axis from the element before it, to whose reduction it
        adds one term.

        Before, for ``te.sum(A[k], axis=k, where=k <= j)``::

            for j:
                C[j] = 0
                for k: if k <= j: C[j] += A[k]

        After ``s[C].accumulate(j)``::

            total = 0
            for j:
                total += A[j]
                C[j] = total

        If the terms grow from the last element to the first, so do the loops. The loops along the
        axis may be split, and the other loops may be inside of them. The innermost loop of the
        stage may be vectorized: each lane is combined with its neighbour, then with the lane two
        places before, and so on. Except for this order within a vector, floats are rounded as in a
        sum that is written out.

        Parameters
        ----------
        axis : IterVar
            A data axis of the operation.

        Raises
        ------
        CompileError
            When the stage is no reduction that gains one term from each element along `axis` to the
            next.
        """
        if not isinstance(self.op, ComputeOp) or not any(axis is own for own in self.op.axis):
            own = names_of(self.op.axis) if isinstance(self.op, ComputeOp) else "none"
            raise CompileError(
                f"{self.name}: accumulate: expected one of its data axes ({own}), got {axis!r}"
            )
        checked_accumulation(self, axis)
        self.check_predicate(f"{self.name}: accumulate")
        self.accumulates = axis

    @property
    def is_read(self) -> bool:
        """Whether any stage with loops reads the tensors, perhaps through inlined ones."""
        return any(True for _ in self.schedule.readers_with_loops(self))

    @property
    def whole_readers(self) -> list[Stage]:
        """The stages that read the tensors as a whole, and not element by element."""
        readers = self.schedule.readers(self)
        return [each for each in readers if not isinstance(each.op, ComputeOp)]

    @primitive
    def compute_inline(self) -> Stage:
        """Compute each element where it is read, without memory for the tensor: nowhere, if nothing
        reads it any more.

        Raises
        ------
        CompileError
            When this is an output, a reduction that is read, or is read by a stage that reads whole
            tensors.
        """
        self.check_movable("compute_inline")
        where = f"{self.name}: compute_inline"
        if not isinstance(self.op, ComputeOp):
            raise CompileError(
                f"{where}: expected the elements of te.compute, got {type(self.op).__name__}"
            )
        if self.op.reduce_axis and self.is_read:
            raise CompileError(
                f"{where}: expected no reduction, got one over {names_of(self.op.reduce_axis)}: "
                "use compute_at"
            )
        self._check_read_by_element(where)
        self.inlined = True
        self._attach(None, None)
        return self

    @primitive
    def compute_ahead(self) -> Stage:
        """Compute the stage once, before the program is called, from an argument that doesn't
        change, such as weights.

        Before, where ``BB = s.cache_read(B, "global", [C])`` is kept in another layout::

            def f(A, B, C):
                for: BB[...] = B[...]
                for: C[...] += A[...] * BB[...]

        After ``s[BB].compute_ahead()``, the argument has the shape, the layout and the dtype of
        this stage, and a second function computes it::

            def f(A, B, C):
                for: C[...] += A[...] * B[...]
            def f.prepack.B(B, BB):
                for: BB[...] = B[...]

        The caller computes the argument by ``minitvm.prepack(f, "B", array)``.

        Raises
        ------
        CompileError
            When the stage is an output or a placeholder, or isn't computed element by element from
            exactly one placeholder; or when another stage reads that placeholder.
        """
        self.check_movable("compute_ahead")
        self.stages_before()
        self.compute_root()
        self.is_ahead = True
        return self

    @primitive
    def compute_view(self) -> Stage:
        """Compute nothing: a stage that copies a tensor in the order of its memory, in another
        shape, shares this memory.

        Before, of a tensor `A` with rows of 4 elements::

            for i: B[i] = A[i // 4, i % 4]
            for i: C[i] = B[i] + 1

        After ``s[B].compute_view()``, where ``B[i]`` is the element of `A` with the number `i`::

            for i: C[i] = B[i] + 1

        If the stage is an argument, the tensor that it copies is computed in the argument's memory.
        Where memory can't be shared, the stage is computed: between two arguments, in a loop of
        another stage, of a tensor with strides (``binds``, ``storage_align``).

        Raises
        ------
        CompileError
            When the stage is no such copy.
        """
        if viewed_by(self.op) is None:
            raise CompileError(
                f"{self.name}: compute_view: expected a copy of a tensor in the order of its "
                "memory, in the same dtype, such as B[i] = A[i // 4, i % 4] of rows of 4 elements, "
                f"got {self.op}"
            )
        self.inlined = False
        self._attach(None, None)
        self.is_view = True
        return self

    @primitive
    def compute_root(self) -> Stage:
        """Compute the whole tensor before the stages that read it: the default."""
        self.inlined = False
        self._attach(None, None)
        return self

    def _attach(self, parent: Stage | None, scope: IterVar | None) -> None:
        super()._attach(parent, scope)
        self.is_ahead = self.is_view = False
        if parent is not None:
            self.inlined = False

    # -- Memory -----------------------------------------------------------------------------------

    @primitive
    def set_scope(self, scope: str) -> Stage:
        """Keep the elements in ``"global"`` memory, or ``"local"``: in registers.

        Raises
        ------
        CompileError
            When `scope` names no memory, or the stage is an output or a placeholder, whose memory
            is the caller's.
        """
        if scope != "":
            checked_scope(f"{self.name}: set_scope", scope)
        if self.is_output or isinstance(self.op, PlaceholderOp):
            raise CompileError(
                f"{self.name}: set_scope: expected a stage inside of the program, got "
                f"{'an output' if self.is_output else 'a placeholder'}, whose memory the caller "
                "gives: use cache_write or cache_read"
            )
        self.scope = scope
        return self

    @primitive
    def set_store_predicate(self, predicate: Any) -> None:
        """Store only where a condition on the axes holds. It may ask for the time of a step of a
        scan that has no axis of time.

        A thread axis that a loop of this stage is bound to stands for this loop. All threads of a
        reduction axis hold the result of the reduction. The condition ``tx.var.equal(0)`` lets the
        first of these threads store the result, as in classic programs.

        Raises
        ------
        CompileError
            When `predicate` is no condition, uses an axis that doesn't belong to this stage, or
            never holds.
        """
        if self.accumulates is not None:
            raise CompileError(
                f"{self.name}: set_store_predicate: expected results that are computed one by one, "
                f"found them accumulated along {self.accumulates.name}"
            )
        with e.naming(f"{self.name}: set_store_predicate"):
            condition = e.as_condition(predicate)
        threads = self._thread_values()
        if threads.keys() & {*free_vars(condition)}:
            held = Analyzer().simplify(substitute(condition, threads))
            if e.const_int(held) == 0:
                raise CompileError(
                    f"{self.name}: set_store_predicate: expected a condition that the first thread "
                    f"of a reduction axis fulfils, whose result is stored, got {condition}"
                )
            condition = held
        time = () if self.time is None else (self.time,)
        own = {axis.var for axis in (*self.all_iter_vars, *time)}
        for var in free_vars(condition):
            if var.axis and var not in own:
                raise CompileError(
                    f"{self.name}: set_store_predicate: expected a condition on the axes of "
                    f"{self.name} ({names_of(self.all_iter_vars)}), or on thread axes that they "
                    f"are bound to, found {var.name}"
                )
        self.store_predicate = condition

    def _thread_values(self) -> dict[Var, PrimExpr]:
        """The axes of threads to which loops are bound: those loops; of a reduction, the first of
        its iterations."""
        bound = [(axis, attrs.thread) for axis, attrs in self.iter_var_attrs.items()]
        return {
            thread.var: e.const(0, thread.var.dtype)
            if axis.iter_type is IterType.COMM_REDUCE
            else e.cast(thread.var.dtype, axis.var)
            for axis, thread in bound
            if thread is not None
        }

    @primitive
    def storage_align(self, axis: IterVar, factor: Any, offset: Any) -> None:
        """Pad the memory so that the distance, in elements, from one index of `axis` to the next is
        ``factor * k + offset`` for some k.

        Raises
        ------
        CompileError
            When `axis` is none of the operation's own, or `factor` is less than 1.
        """
        where = f"{self.name}: storage_align"
        if not isinstance(self.op, ComputeOp) or not any(axis is own for own in self.op.axis):
            own = names_of(self.op.axis) if isinstance(self.op, ComputeOp) else "none"
            raise CompileError(f"{where}: expected one of its data axes ({own}), got {axis!r}")
        if not isinstance(factor, int) or not isinstance(offset, int) or factor < 1:
            raise CompileError(f"{where}: expected whole numbers, got {factor!r}, {offset!r}")
        self.storage_alignments[axis] = (factor, offset)

    @primitive
    def double_buffer(self) -> None:
        """Keep two buffers, so that one is filled while the other is read.

        Raises
        ------
        CompileError
            When this is an output or a placeholder.
        """
        self.check_movable("double_buffer")
        self.is_double_buffered = True

    @primitive
    def transform_layout(self, mapping_function: Callable[..., Any]) -> list[IterVar]:
        """Keep a tensor's elements in another order.

        Before::

            for i: for j: B[i, j] = ...                           # B has shape (16, 16)

        After ``s[B].transform_layout(lambda i, j: [j // 4, i, j % 4])``, of shape (4, 16, 4)::

            for ax0: for ax1: for ax2: B[ax0, ax1, ax2] = ...

        If the tensor is an argument of the function, the caller passes an array of the new shape.
        Where the new shape has room for more elements, zeros (or the identity of a reduction) pad
        it.

        Parameters
        ----------
        mapping_function : function of the indices
            Returns the list of new indices: indices, their quotients and remainders by constants,
            and sums of them.

        Returns
        -------
        list of IterVar
            The loops over the new dimensions; an empty list for a placeholder.

        Raises
        ------
        CompileError
            When the map can't be inverted, a dimension isn't constant, or loops were transformed
            already.
        """
        where = f"{self.name}: transform_layout"
        self.check_predicate(where)
        layout = layout_of(where, self._axes_to_map(where), mapping_function, self.name)
        self._check_read_by_element(where)
        graph = self.schedule
        for reader in graph.stages:
            for axis, tensor in read_by_ranges(reader.op):
                if graph.stage_map.get(tensor.op) is self:
                    raise CompileError(
                        f"{where}: expected to be read by elements of other tensors only, but the "
                        f"range of axis {axis.name} of {reader.name} reads {self.name}: transform "
                        f"a copy, as s.cache_read({self.name}, ...) makes it"
                    )
        old, new = self.op, in_layout(self.op, layout)
        tensors = dict(zip(old.outputs, new.outputs, strict=True))
        readers = {each: reading_layout(each.op, tensors, layout) for each in graph.readers(self)}
        graph.now_computes(self, new)
        for reader, op in readers.items():
            graph.now_computes(reader, op)
        self.restart(new)
        return list(self.leaf_iter_vars[: len(layout.axis)])

    @primitive
    def transform_reduction(self, mapping_function: Callable[..., Any]) -> list[IterVar]:
        """Reduce over other axes, in another order of the steps.

        Before::

            for k in range(6): for l in range(4): C[0] += A[k, l]

        After ``s[C].transform_reduction(lambda k, l: [k * 4 + l])``::

            for k in range(24): C[0] += A[k // 4, k % 4]

        Parameters
        ----------
        mapping_function : function of the steps along the reduction axes
            Returns the list of new steps: steps, their quotients and remainders by constants, and
            sums of them.

        Returns
        -------
        list of IterVar
            The new reduction axes.

        Raises
        ------
        CompileError
            When the stage is no reduction, or one whose result depends on the order of its steps;
            when the map can't be inverted, a range doesn't begin at 0, or depends on other axes or
            on data; when loops were transformed already.
        """
        where = f"{self.name}: transform_reduction"
        self.check_as_begun(where)
        op = self.op
        first = op.body[0] if isinstance(op, ComputeOp) else None
        if not isinstance(op, ComputeOp) or not isinstance(first, Reduce):
            raise CompileError(f"{where}: expected a reduction, got {op}")
        if not is_commutative(first.combiner):
            raise CompileError(
                f"{where}: expected a reduction whose operands may change places, got the combiner "
                f"{first.combiner}"
            )
        own = {axis.var for axis in root_axes(op)}
        for axis in op.reduce_axis:
            domain = domain_of(axis)
            ends = (domain.min, domain.extent)
            is_fixed = own.isdisjoint(free_vars(domain.extent)) and not reads_tensors(*ends)
            if e.const_int(domain.min) != 0 or not is_fixed:
                raise CompileError(
                    f"{where}: expected axes that begin at 0, of the same length for all elements, "
                    f"found {axis.name} in {domain}: rebase it, or say so by a condition"
                )
        layout = layout_of(where, op.reduce_axis, mapping_function, f"{self.name}.steps")
        made = in_steps(op, layout)
        self.schedule.now_computes(self, made)
        self.restart(made)
        return list(made.reduce_axis)

    def _axes_to_map(self, where: str) -> Sequence[IterVar]:
        """The axes of the dimensions whose layout `transform_layout` may change."""
        if isinstance(self.op, PlaceholderOp):
            return data_axes([f"i{i}" for i in range(len(self.op.shape))], self.op.shape)
        if not isinstance(self.op, ComputeOp):
            raise CompileError(
                f"{where}: expected a tensor of te.compute or te.placeholder, got one of "
                f"{type(self.op).__name__}"
            )
        if self.has_new_loops:
            raise CompileError(
                f"{where}: expected a stage whose loops are as they began, got "
                f"{', '.join(each.name for each in self.leaf_iter_vars)}: transform first"
            )
        return self.op.axis

    # -- Checks -----------------------------------------------------------------------------------

    def check_movable(self, what: str) -> None:
        """Raises an error unless this stage is computed inside of the program."""
        if isinstance(self.op, PlaceholderOp):
            raise CompileError(
                f"{self.name}: {what}: expected a computed tensor, got a placeholder"
            )
        if isinstance(self.op, ScanOp) or any(
            isinstance(each.op, ScanOp) and self.op in {tensor.op for tensor in each.op.update}
            for each in self.schedule.readers(self)
        ):
            raise CompileError(
                f"{self.name}: {what}: expected a stage that can be moved, got "
                f"{'a scan' if isinstance(self.op, ScanOp) else 'the update of a scan'}, whose "
                "place is given"
            )
        is_read = what == "compute_at" and bool(self.schedule.readers(self))
        if self.is_output and not is_read and what != "compute_with":
            raise CompileError(
                f"{self.name}: {what}: expected a stage that others read, got an output, which "
                "is computed as a whole: give the cache of cache_write a place instead"
            )

    def _check_read_by_element(self, where: str) -> None:
        for reader in self.whole_readers:
            raise CompileError(
                f"{where}: expected to be read element by element, but {reader.name} reads "
                f"{self.name} as a whole"
            )

    def check_predicate(self, where: str) -> None:
        """Raises an error if a store predicate uses axes that are to be replaced."""
        if self.store_predicate is not None:
            raise CompileError(
                f"{where}: expected no store predicate, whose axes are replaced, got "
                f"{self.store_predicate}: call set_store_predicate afterwards"
            )

    def check_as_begun(self, where: str) -> None:
        """Raises an error if the stage was scheduled already."""
        if self.has_new_loops or self.iter_var_attrs or self.store_predicate is not None:
            raise CompileError(
                f"{where}: expected loops as they began, found {self.name} scheduled already: use "
                "it before other primitives"
            )

    # -- For lowering -----------------------------------------------------------------------------

    def copy(self, schedule: StageGraph[Stage]) -> Stage:
        """This stage in a copy of its schedule, without its place."""
        made = Stage(self.op, schedule, self.is_output)
        made.origin_op = self.origin_op
        made.is_touched, made.is_named = self.is_touched, self.is_named
        made.inlined, made.scope = self.inlined, self.scope
        made.is_ahead, made.is_view, made.time = self.is_ahead, self.is_view, self.time
        made.is_double_buffered = self.is_double_buffered
        made.accumulates = self.accumulates
        made.with_ivar = self.with_ivar
        made.storage_alignments = dict(self.storage_alignments)
        made.store_predicate = self.store_predicate
        made.all_iter_vars = list(self.all_iter_vars)
        made.leaf_iter_vars = list(self.leaf_iter_vars)
        made.relations = list(self.relations)
        made.iter_var_attrs = {axis: each.copy() for axis, each in self.iter_var_attrs.items()}
        return made

    def stages_before(self) -> list[Stage]:
        """The stages that ``compute_ahead`` takes out of the program: one placeholder, the stages
        that are computed from it only for this stage, and this stage, in this order.

        Raises
        ------
        CompileError
            When the stage isn't computed in this way.
        """
        where = f"{self.name}: compute_ahead"
        found = [self.schedule.stage_map[op] for op in in_order([self.op])]
        found.sort(key=lambda each: isinstance(each.op, ComputeOp))
        sources = [each.op for each in found if not isinstance(each.op, ComputeOp)]
        if len(sources) != 1 or not isinstance(sources[0], PlaceholderOp):
            listed = " and ".join(str(op) for op in sources) or "nothing"
            raise CompileError(
                f"{where}: expected to be computed from one placeholder, but it is from {listed}"
            )
        if self.op.num_outputs > 1 or self.group is not None:
            what = "several" if self.group is None else f"one of {self.group}"
            raise CompileError(f"{where}: expected a single tensor, got {what}")
        for each in found[:-1]:
            for other in (*self.schedule.readers(each), each.attach_stage or self):
                is_gone = other.inlined and not self.schedule.readers(other)
                if other not in found and not is_gone:
                    what = "computed at a loop of" if other is each.attach_stage else "read by"
                    raise CompileError(
                        f"{where}: expected {each.name} to be there for {self.name} alone, but it "
                        f"is {what} {other.name}"
                    )
        return found

    def begins_elsewhere(self, axis: IterVar) -> bool:
        """Whether a root axis may begin elsewhere than at 0."""
        placed = self.attach_stage or (self.group and self.group.attach_stage)
        if axis.iter_type == IterType.ORDERED:
            return False
        is_data = axis.iter_type == IterType.DATA_PAR
        return bool(is_data and placed) or (axis.dom is not None and e.const_int(axis.dom.min) != 0)


@final
class Group(Attachable):
    """Stages that are placed together; made by :meth:`Schedule.create_group`."""

    __slots__ = ("stages",)

    def __init__(self, schedule: StageGraph[Stage], stages: Sequence[Stage]) -> None:
        super().__init__(schedule)
        self.stages = list(stages)

    @property
    def name(self) -> str:
        return "_".join(["group", *[stage.name for stage in self.stages]])

    def text_in(self, trace: Trace) -> str:
        return trace.name_of(self)

    def members(self) -> list[Stage]:
        return list(self.stages)

    def __repr__(self) -> str:
        return f"group({', '.join(stage.name for stage in self.stages)})"
