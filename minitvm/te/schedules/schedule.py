"""Schedules: how the operations of a computation are to run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast, final

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.accumulation import normalize_loops
from minitvm.te.schedules.distribute_sums import distributed
from minitvm.te.schedules.hoist_values import hoisted
from minitvm.te.schedules.operation_graph import in_order, multiplied_reads
from minitvm.te.schedules.relation import Fuse, Rebase, Split, sources_of
from minitvm.te.schedules.rewrite_operations import (
    copy_of,
    factored,
    is_offset,
    padded,
    read_by_axes,
    reading,
    without_offset,
    written_through,
)
from minitvm.te.schedules.scans import (
    drop_time,
    is_of_step,
    moved_reduction,
    reduction_of_scan,
    stages_of_step,
)
from minitvm.te.schedules.stage import Group, Stage
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.schedules.trace import Trace, Traced, primitive
from minitvm.te.schedules.window_reads import read_by_sums
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar
from minitvm.tir.provenance import Choice


@final
class Schedule(StageGraph[Stage], Traced):
    """The stages of the operations that `outputs` need, each behind the stages that it reads.

    Made by :func:`create_schedule`; ``s[C]`` is the stage of a tensor or an operation.
    """

    __slots__ = ("choices", "chosen", "groups", "is_warned_of")

    def __init__(self, outputs: tuple[Operation, ...]) -> None:
        super().__init__(outputs)
        self.stages = [Stage(op, self, op in outputs) for op in in_order(outputs)]
        self.stage_map = {stage.op: stage for stage in self.stages}
        self.calls = Trace(outputs, self.now, self.stage_of)
        self.enter_all()
        self.groups: list[Group] = []
        # The reasons that auto_schedule noted, and the lines of the trace that they explain: not
        # those of primitives applied by hand before, or later.
        self.choices: list[Choice] = []
        self.chosen = range(0)
        self.is_warned_of = False  # whether build said that much of it is left plain

    def __getitem__(self, key: Tensor | Operation) -> Stage:
        """The stage of a tensor or an operation.

        Raises
        ------
        CompileError
            When the schedule has no such stage.
        """
        op = key.op if isinstance(key, Tensor) else key
        if not isinstance(op, Operation) or op not in self.stage_map:
            known = ", ".join(stage.name for stage in self.stages)
            raise CompileError(f"schedule: expected a tensor among {known}, got {key!r}")
        return self.stage_map[op]

    def text_in(self, trace: Trace) -> str:
        return "s"

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

    # -- Changing the graph -----------------------------------------------------------------------

    @primitive
    def cache_read(self, tensor: Tensor, scope: str, readers: Any) -> Tensor:
        """Let `readers` read a copy of a tensor.

        Before::

            for i: C[i] = A[i] + 1

        After ``AA = s.cache_read(A, "local", [C])``::

            for ax0: A.local[ax0] = A[ax0]
            for i: C[i] = A.local[i] + 1

        Parameters
        ----------
        tensor : Tensor
            The tensor to copy.
        scope : str
            The kind of the copy's memory: ``"global"``, or ``"local"`` for registers.
        readers : Tensor or Operation, or a list of them
            The operations that shall read the copy.

        Returns
        -------
        Tensor
            The copy, a stage of its own.

        Raises
        ------
        CompileError
            When a reader does not read `tensor`.
        """
        stage = self._stage("cache_read", tensor)
        source = self.now(tensor)
        listed = list(readers) if isinstance(readers, (list, tuple)) else [readers]
        stages = [self[each] for each in listed]
        if not stages:
            raise CompileError(f"cache_read of {source.name}: expected readers, got none")
        for reader in stages:
            if source not in reader.op.input_tensors:
                known = ", ".join(each.name for each in self.readers(stage)) or "none"
                raise CompileError(
                    f"cache_read of {source.name}: expected stages that read it ({known}), got "
                    f"{reader.name}"
                )
        copy = copy_of(source, f"{source.name}.{self._scope('cache_read', scope)}")
        made = self._insert(self.stages.index(stage) + 1, copy.op, scope, stage)
        for reader in stages:
            self.now_computes(reader, reading(reader.op, {source: copy}))
        return made.op.output(0)

    @primitive
    def cache_access(
        self,
        tensor: Tensor,
        scope: str,
        reader: Any,
        which: int | None = None,
        sums: bool = False,
    ) -> Tensor:
        """Let a stage read a copy of a tensor in which each of its iterations has its own element.

        Before::

            for y: for k: C[y] += A[y * 2 + k] * W[k]

        After ``AA = s.cache_access(A, "global", C)``::

            for y: for k: A.global[y, k] = A[y * 2 + k]
            for y: for k: C[y] += A.global[y, k] * W[k]

        The dimensions of the copy are the axes on which the indices depend, data axes first. An
        element that several iterations read is copied several times: so windows become the rows of
        a matrix. Where guards keep a read inside of `tensor`, the copy has the same guards and is
        zero elsewhere; the axes of the guards are dimensions, too.

        With ``sums=True``, the dimensions are the sums of axes on which the indices and the guards
        depend, and an element is copied once for each sum. Before::

            for y: for k: C[y] += A[(y + k) % 8] * W[k]

        After ``AA = s.cache_access(A, "global", C, sums=True)``::

            for y_k: A.global[y_k] = A[y_k % 8]
            for y: for k: C[y] += A.global[y + k] * W[k]

        Parameters
        ----------
        tensor : Tensor
            The tensor to copy.
        scope : str
            The kind of the copy's memory: ``"global"``, or ``"local"`` for registers.
        reader : Tensor or Operation
            The operation that shall read the copy.
        which : int, optional
            The number of the element, in the order in which the expression has them, if the reader
            reads several in an iteration: 1 is ``A[j, k]`` in ``A[i, k] * A[j, k]``.
        sums : bool
            Whether the dimensions of the copy are sums of axes, of constant ranges.

        Returns
        -------
        Tensor
            The copy, a stage of its own.

        Raises
        ------
        CompileError
            When `reader` does not read `tensor`, or reads several of its elements in an iteration
            and `which` is not given; when a dimension of the copy would be longer for some indices
            than for others, or isn't constant though it is one of sums.
        """
        self._stage("cache_access", tensor)
        source, stage = self.now(tensor), self[reader]
        where = f"cache_access of {source.name}"
        if source not in stage.op.input_tensors or not isinstance(stage.op, ComputeOp):
            raise CompileError(
                f"{where}: expected a stage that reads its elements, got {stage.name}"
            )
        stage.check_predicate(where)
        name = f"{source.name}.{self._scope('cache_access', scope)}"
        read_by = read_by_sums if sums else read_by_axes
        copy, changed = read_by(source, stage.op, name, which)
        made = self._insert(self.stages.index(stage), copy.op, scope, stage)
        self.now_computes(stage, changed)
        return made.op.output(0)

    @primitive
    def cache_write(self, tensor: Any, scope: str) -> Any:
        """Compute into a cache, and copy from it.

        Before::

            for i: C[i] = A[i] + 1

        After ``CC = s.cache_write(C, "local")``::

            for i.c: C.local[i.c] = A[i.c] + 1
            for i: C[i] = C.local[i]

        Where the loops of ``s[C]`` were split or reordered before, they are the dimensions of the
        cache.

        Parameters
        ----------
        tensor : Tensor, or a list of them
            The outputs of one operation, all of them.
        scope : str
            The kind of the cache's memory: ``"global"``, or ``"local"`` for registers.

        Returns
        -------
        Tensor, or list of Tensor as `tensor` is
            The cache, which a stage of its own computes.

        Raises
        ------
        CompileError
            When a tensor is not computed, or only some outputs of an operation are given.
        """
        tensors = list(tensor) if isinstance(tensor, (list, tuple)) else [tensor]
        if not tensors:
            raise CompileError("cache_write: expected a tensor, got none")
        stage = self._stage("cache_write", tensors[0])
        where = f"cache_write of {stage.name}"
        stage.check_predicate(where)
        if not isinstance(stage.op, ComputeOp):
            raise CompileError(
                f"{where}: expected a tensor of te.compute, got one of {type(stage.op).__name__}"
            )
        given = [each.value_index for each in tensors if self._stage("cache_write", each) is stage]
        if sorted(given) != list(range(stage.op.num_outputs)) or len(given) != len(tensors):
            names = ", ".join(each.name for each in stage.op.outputs)
            raise CompileError(
                f"{where}: expected all outputs of one operation ({names}), got "
                f"{', '.join(str(getattr(each, 'name', each)) for each in tensors)}"
            )
        cache, copy = written_through(
            stage.op, stage.relations, stage.leaf_iter_vars, self._scope("cache_write", scope)
        )
        self._replace(stage, copy, cache, scope)
        made = [cache.output(each.value_index) for each in tensors]
        return made if isinstance(tensor, (list, tuple)) else made[0]

    @primitive
    def rfactor(self, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Any:
        """Split a reduction in two: partial results along one of its loops, and their reduction.

        Before::

            for k: B[0] += A[k]

        After ``ko, ki = s[B].split(k, 4); BF = s.rfactor(B, ki)``::

            for ki: for ko: B.rf[ki] += A[ko * 4 + ki]
            for ki.v: B[0] += B.rf[ki.v]

        The loops of ``s[B]`` begin anew. Where a reducer chooses one of two tuples and isn't
        commutative, but a component is the reduce axis itself, the partial results are combined in
        the order of that component: of equal elements the same one is found.

        Parameters
        ----------
        tensor : Tensor
            The result of a reduction; if it has several results, any of them.
        axis : IterVar
            A loop over a reduce axis.
        factor_axis : int
            The position of the new dimension in the partial results; from the end if negative.

        Returns
        -------
        Tensor, or list of Tensor
            The partial results, a stage of their own.

        Raises
        ------
        CompileError
            When `tensor` is no reduction, `axis` is no loop over a reduce axis, or `factor_axis` is
            out of range.
        """
        stage = self._stage("rfactor", tensor)
        where = f"rfactor of {stage.name}"
        if not isinstance(stage.op, ComputeOp) or not stage.op.reduce_axis:
            raise CompileError(f"{where}: expected a reduction, got {stage.name}, which has none")
        stage.leaf_index(where, axis)
        reduced = stage.reduce_leaves()
        if axis not in reduced:
            names = ", ".join(each.name for each in stage.leaf_iter_vars if each in reduced)
            raise CompileError(
                f"{where}: expected a loop over a reduce axis ({names}), got {axis.name}"
            )
        ndim = len(stage.op.axis)
        if not isinstance(factor_axis, int) or not -ndim - 1 <= factor_axis <= ndim:
            raise CompileError(
                f"{where}: expected factor_axis in [{-ndim - 1}, {ndim}], got {factor_axis!r}"
            )
        stage.check_predicate(where)
        place = factor_axis if factor_axis >= 0 else factor_axis + ndim + 1
        partial, final_op = factored(stage.op, stage.relations, stage.leaf_iter_vars, axis, place)
        self._replace(stage, final_op, partial, "")
        return partial.output(0) if partial.num_outputs == 1 else list(partial.outputs)

    @primitive
    def factor_out(self, tensor: Tensor, axes: Sequence[IterVar]) -> Tensor:
        """Take what some reduce axes don't change out of their sum, which is a stage of its own.

        Before::

            for i: for j: C[0] += x[i] * A[i, j] * x[j]

        After ``CS = s.factor_out(C, [j])``::

            for i: for j: C.sums[i] += A[i, j] * x[j]
            for i: C[0] += C.sums[i] * x[i]

        The reducer is a sum, and the factors are those of a product; or it is a minimum or a
        maximum of floats, and the factors are the terms of a sum. Products are rounded in another
        order then, and infinite terms of both signs may give an infinity in place of NaN. The loops
        of ``s[C]`` begin anew.

        Parameters
        ----------
        tensor : Tensor
            The result of a reduction, of integers or of floats of 32 bits or more.
        axes : list of IterVar
            Reduce axes of ``s[C].op``: those of the inner sums.

        Returns
        -------
        Tensor
            The inner sums.

        Raises
        ------
        CompileError
            When `tensor` is no such reduction, `axes` change all factors, an inner sum of floats
            may have no terms, or the stage was scheduled already.

        >>> from minitvm import te
        >>> A, x = te.placeholder((8, 8), name="A"), te.placeholder((8,), name="x")
        >>> i, j = te.reduce_axis((0, 8), name="i"), te.reduce_axis((0, 8), name="j")
        >>> C = te.compute((1,), lambda _: te.sum(x[i] * A[i, j] * x[j], axis=[i, j]), name="C")
        >>> te.create_schedule(C.op).factor_out(C, [j]).shape
        (8,)
        """
        stage = self._stage("factor_out", tensor)
        where = f"factor_out of {stage.name}"
        if not isinstance(stage.op, ComputeOp) or not stage.op.reduce_axis:
            raise CompileError(f"{where}: expected a reduction, got {stage.name}, which has none")
        stage.check_predicate(where)
        if stage.has_new_loops or stage.iter_var_attrs:
            raise CompileError(f"{where}: expected loops as they began: use it before other loops")
        partial, rest = distributed(stage.op, _listed(axes))
        self._replace(stage, rest, partial, "")
        return partial.output(0)

    @primitive
    def hoist(self, tensor: Tensor, axes: Sequence[IterVar]) -> Tensor:
        """Compute what changes along some axes alone first, as a stage of its own.

        Before::

            for i: for j: for k: C[i, j] += exp(A[i, k]) * B[k, j]

        After ``CE = s.hoist(C, [i, k])``::

            for i: for k: C.exp[i, k] = exp(A[i, k])
            for i: for j: for k: C[i, j] += C.exp[i, k] * B[k, j]

        It is the part with the most operations. A part that is a function of one element of a
        tensor is computed for all elements of it. The loops of ``s[C]`` begin anew.

        Parameters
        ----------
        tensor : Tensor
            The result of ``te.compute``; of several results, any of them.
        axes : list of IterVar
            Some axes and reduce axes of ``s[C].op``: those that the part changes along.

        Returns
        -------
        Tensor
            The values of the part.

        Raises
        ------
        CompileError
            When no part of floats changes along `axes` and no other axis, when it might read an
            element that its tensors don't have, or the stage was scheduled already.

        >>> from minitvm import te
        >>> X, w = te.placeholder((9, 4), name="X"), te.placeholder((4,), name="w")
        >>> Y = te.compute((9, 4), lambda i, j: X[i, j] * te.exp(w[j]), name="Y")
        >>> te.create_schedule(Y.op).hoist(Y, [Y.op.axis[1]])
        Tensor(shape=[4], op.name=Y.exp)
        """
        stage = self._stage("hoist", tensor)
        where = f"hoist of {stage.name}"
        if not isinstance(stage.op, ComputeOp):
            raise CompileError(f"{where}: expected a stage of te.compute, got {stage.name}")
        stage.check_predicate(where)
        if stage.has_new_loops or stage.iter_var_attrs:
            raise CompileError(f"{where}: expected loops as they began: use it before other loops")
        part, rest = hoisted(stage.op, _listed(axes))
        self._replace(stage, rest, part, "")
        return part.output(0)

    @primitive
    def pad_einsum(
        self, tensor: Tensor, padding: Sequence[int], dtypes: Sequence[Any] = (None, None)
    ) -> list[Tensor]:
        """Round the loops of a sum of products up, and let it read copies that zeros pad.

        Before::

            for i in range(7): for k in range(5): C[i] += A[i, k] * B[k]

        After ``s.pad_einsum(C, [4, 4])``, where C is no output::

            for ax0 in range(8): for ax1 in range(8): A.pad[ax0, ax1] = A[ax0, ax1] or 0
            for ax0 in range(8): B.pad[ax0] = B[ax0] or 0
            for i in range(8): for k in range(8): C[i] += A.pad[i, k] * B.pad[k]

        so that any split by 4 comes out even, as ``tensorize`` needs it. The terms added to a sum
        are zero, and nothing reads the sums of the padding.

        Parameters
        ----------
        tensor : Tensor
            A sum of products of two elements (or of casts of them), each at indices that are axes.
            It mustn't be an output: ``cache_write`` first.
        padding : sequence of int
            For each axis, the data axes first, a divisor of its padded extent.
        dtypes : pair of dtypes or None
            The dtypes of the copies of the two factors; None keeps a tensor's own. Either a dtype
            that holds all values of the factor; or, if sums have 16 bits or more, ``uint8`` for one
            int8 factor, which is then kept with 128 added. The readers of the sum subtract the
            excess, which is computed once for all elements that read the same elements of the other
            factor.

        Returns
        -------
        list of Tensor
            The padded sum; for each of the two factors the tensor that is read now, a copy (a stage
            of its own) or the original where no copy was needed; and the excess, if a factor is
            kept with 128 added.

        Raises
        ------
        CompileError
            When `tensor` is no such sum, its loops were changed, or a dtype can't hold all values.
        """
        stage = self._stage("pad_einsum", tensor)
        where = f"pad_einsum of {stage.name}"
        op, loads = stage.op, multiplied_reads(stage.op)
        if not isinstance(op, ComputeOp) or not loads:
            raise CompileError(
                f"{where}: expected a sum of products of two elements at indices that are axes, "
                f"got {op}"
            )
        if stage.is_output or stage.has_new_loops:
            raise CompileError(
                f"{where}: expected a stage that is no output, whose loops are as they began: "
                "cache_write it first"
            )
        axes = (*op.axis, *op.reduce_axis)
        extents = [e.const_int(domain_of(axis).extent) for axis in axes]
        if len(padding) != len(axes) or any(each < 1 for each in padding):
            raise CompileError(
                f"{where}: expected a multiple for each of {len(axes)} axes, 1 for those that stay "
                f"as they are, got {list(padding)}"
            )
        for axis, extent, multiple in zip(axes, extents, padding, strict=True):
            is_padded = multiple > 1 and (extent is None or extent % multiple > 0)
            summed = axis in op.reduce_axis and is_padded
            if summed and not all(any(x is axis.var for x in load.indices) for load in loads):
                raise CompileError(
                    f"{where}: expected both factors to depend on {axis.name}, which is padded"
                )
        if loads[0].producer is loads[1].producer:
            raise CompileError(
                f"{where}: expected two tensors, got {loads[0].producer.name} twice: cache_read it "
                "for one of the factors"
            )
        wanted = {}
        for load, dtype in zip(loads, dtypes, strict=True):
            source, wide = cast(Tensor, load.producer), DType.of(dtype or load.dtype)
            wanted[source] = wide
            offset = is_offset(source.dtype, wide) and op.body[0].dtype.bits > 8
            if not offset and not _holds(wide, source.dtype):
                raise CompileError(
                    f"{where}: expected a dtype that holds all values of {source.name}, which are "
                    f"{source.dtype}, got {wide}"
                )
        new, copies = padded(op, padding, wanted)
        for source, copy in copies.items():
            beside = self[source]
            self._insert(self.stages.index(beside) + 1, copy.op, "", beside)
        offsets = [copy for source, copy in copies.items() if is_offset(source.dtype, copy.dtype)]
        if not offsets:
            self.now_computes(stage, new)
            stage.restart(stage.op)
            return [stage.op.output(0), *stage.op.input_tensors]
        total, excess, difference = without_offset(new, offsets[0])
        for made, scope in ((excess, ""), (total, stage.scope)):
            self._insert(self.stages.index(stage), made, scope, stage)
        self.now_computes(stage, difference)
        stage.restart(stage.op)
        stage.set_scope("")
        stage.compute_inline()
        return [total.output(0), *total.input_tensors, excess.output(0)]

    @primitive
    def drop_time(self, scan: Tensor, stages: Sequence[Tensor] | None = None) -> None:
        """Compute the stages inside of a scan for one step, without axes of time.

        Before, in each step of a scan ``R``::

            for t in range(R.idx, R.idx + 1):
                for i: C[t, i] = R[t - 1, i] * 2
            for t in range(R.idx, R.idx + 1):
                for i: R[t, i] = C[t, i] + X[t, i]

        After ``s.drop_time(R)``::

            for i: C[i] = R[R.idx - 1, i] * 2
            for i: R[R.idx, i] = C[i] + X[R.idx, i]

        So their loops are split, fused, reordered and run in parallel as those of any other stage.
        A stage keeps its axis of time if other steps of it are read, too, or its loops were
        scheduled already.

        Parameters
        ----------
        scan : Tensor
            A result of ``te.scan``.
        stages : list of Tensor, optional
            The stages; all that can, unless given.

        Raises
        ------
        CompileError
            When `scan` is no result of a scan; when a stage that is given must keep its axis.
        """
        stage = self._stage("drop_time", scan)
        if not isinstance(stage.op, ScanOp):
            raise CompileError(
                f"drop_time of {stage.name}: expected a result of te.scan, got one of "
                f"{type(stage.op).__name__}"
            )
        able = stages_of_step(self, stage)
        chosen = able if stages is None else [self[each] for each in stages]
        for each in chosen:
            if each not in able:
                raise CompileError(
                    f"drop_time of {stage.name}: expected stages that are computed for each step "
                    f"itself, with loops as they began, got {each.name}"
                )
        drop_time(self, stage, chosen)

    @primitive
    def reduce_scan(self, scan: Tensor) -> None:
        """Compute a scan as a reduction: each element from all terms so far.

        Before::

            for t in range(1, m): R[t] = R[t - 1] + X[t]

        After ``s.reduce_scan(R)``, where the first element is ``X[0]``::

            for t in range(m):
                R[t] = 0
                for k in range(m): if k <= t: R[t] = R[t] + X[k]

        so that the stage can be scheduled as a reduction, above all by ``accumulate``. The scan's
        update is no stage any more.

        Parameters
        ----------
        scan : Tensor
            The result of a ``te.scan`` of one state, whose update is a sum, product, minimum or
            maximum of the state one step before, at the same place, and a term that doesn't depend
            on the state.

        Raises
        ------
        CompileError
            When `scan` is no result of such a scan, or its update was scheduled already.
        """
        stage = self._stage("reduce_scan", scan)
        where = f"reduce_scan of {stage.name}"
        if not isinstance(stage.op, ScanOp):
            raise CompileError(
                f"{where}: expected a result of te.scan, got one of {type(stage.op).__name__}"
            )
        made = reduction_of_scan(self, stage)
        update = self[stage.op.update[0]]
        if made is None:
            raise CompileError(
                f"{where}: expected an update that combines the state one step before and a term, "
                f"such as state[t - 1, i] + X[t, i], got {update.op}"
            )
        for each in (stage, update):
            if each.has_new_loops or each.iter_var_attrs:
                raise CompileError(
                    f"{where}: expected loops as they began, found {each.name} scheduled already"
                )
        self._recompute(stage, made)

    @primitive
    def reverse_compute_inline(self, tensor: Tensor) -> None:
        """Compute a reduction where a stage stores it that only moves its elements.

        Before::

            for i: for j: R[i, j] = sum of X[i, j, k] over k
            for j: for i: O[j, i] = R[i, j]

        After ``s.reverse_compute_inline(O)``::

            for j: for i: O[j, i] = sum of X[i, j, k] over k

        Parameters
        ----------
        tensor : Tensor
            The tensor whose elements are those of a reduction that nothing else reads.

        Raises
        ------
        CompileError
            When `tensor` is no such tensor, or one of the two stages was scheduled already.
        """
        stage = self._stage("reverse_compute_inline", tensor)
        where = f"reverse_compute_inline of {stage.name}"
        made = moved_reduction(self, stage)
        if made is None:
            raise CompileError(
                f"{where}: expected a tensor whose elements are those of a reduction that nothing "
                f"else reads, got {stage.op}"
            )
        source = self[stage.op.input_tensors[0]]
        for each in (stage, source):
            if each.has_new_loops or each.iter_var_attrs or each.store_predicate is not None:
                raise CompileError(
                    f"{where}: expected loops as they began, found {each.name} scheduled already"
                )
        self._recompute(stage, made)

    def _recompute(self, stage: Stage, op: ComputeOp) -> None:
        """Lets a stage compute an operation, and drops the stages that nothing needs any more."""
        self.now_computes(stage, op)
        stage.restart(stage.op)
        needed = {self.stage_map[each] for each in in_order(self.outputs)}
        self.stages = [each for each in self.stages if each in needed]
        self.stage_map = {op: each for op, each in self.stage_map.items() if each in needed}
        for group in self.groups:
            group.stages[:] = [each for each in group.stages if each in needed]
        self.enter_all()

    @primitive
    def create_group(self, outputs: Any, inputs: Any, include_inputs: bool = False) -> Group:
        """The stages between some tensors, to be placed together.

        Parameters
        ----------
        outputs, inputs : Tensor or Operation, or a list of them
            Where the group ends, and where it begins.
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
        ends, begins = ([self[each] for each in _listed(given)] for given in (outputs, inputs))
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
                raise CompileError(f"create_group: {stage.name} is in {stage.group} already")
        group = Group(self, inside)
        for stage in inside:
            stage.group = group
        self.groups.append(group)
        return group

    def _stage(self, what: str, tensor: Any) -> Stage:
        if not isinstance(tensor, Tensor):
            raise CompileError(f"{what}: expected a tensor, got {tensor!r}")
        return self[tensor]

    def _scope(self, what: str, scope: Any) -> str:
        if not isinstance(scope, str) or not scope:
            raise CompileError(f'{what}: expected a scope such as "local", got {scope!r}')
        return scope

    def _insert(self, place: int, op: Operation, scope: str, beside: Stage) -> Stage:
        stage = Stage(op, self)
        stage.scope = scope
        if beside.time is not None and is_of_step(self, op, beside.time):
            stage.time = beside.time
        stage.group = beside.group
        if stage.group is not None:
            stage.group.stages.append(stage)
            stage.is_touched = stage.group.attach_stage is not None
        self.stages.insert(place, stage)
        self.enter(stage)
        return stage

    def _replace(self, stage: Stage, op: ComputeOp, before: ComputeOp, scope: str) -> None:
        """Let `stage` compute `op`, which reads a new stage that computes `before`."""
        self._insert(self.stages.index(stage), before, scope, stage)
        self.now_computes(stage, op)
        stage.restart(op)
        stage.storage_alignments = {}

    # -- For lowering -----------------------------------------------------------------------------

    def normalize(self) -> Schedule:
        """A copy in which every loop begins at 0 and every ``compute_at`` names an existing loop:
        where its loop was split since, the inner one; where it was fused, the fused one.

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
        """A schedule with the stages of ``compute_ahead`` as arguments; and for each of these
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
        """A copy of some of the stages, among them all that they read."""
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
        made.is_warned_of = self.is_warned_of
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
    """The loop that stands where `axis` was."""
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


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


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
    found = [each.op if isinstance(each, Tensor) else each for each in _listed(ops)]
    for op in found:
        if not isinstance(op, Operation):
            raise CompileError(f"create_schedule: expected operations, got {op!r}")
    if not found:
        raise CompileError("create_schedule: expected at least one operation, got none")
    return Schedule(tuple(dict.fromkeys(found)))


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether each value of `narrow` is a value of `wide`."""
    if wide.is_float and narrow.is_float:
        same = wide.is_bfloat16 == narrow.is_bfloat16
        return wide.bits > narrow.bits or (wide.bits == narrow.bits and same)
    if not (wide.is_integral and narrow.is_integral):
        return wide == narrow
    return int(wide.min()) <= int(narrow.min()) and int(wide.max()) >= int(narrow.max())


def is_input(op: Operation) -> bool:
    """Whether the operation's tensor is given from outside rather than computed."""
    return isinstance(op, PlaceholderOp)
