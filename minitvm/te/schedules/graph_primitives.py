"""The primitives that change the graph of a schedule's stages: caches, factors, inlining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.distribute_sums import distributed
from minitvm.te.schedules.found_blocks import found_in_blocks, place_found
from minitvm.te.schedules.guarded_reads import dtype_read
from minitvm.te.schedules.hoist_values import hoisted
from minitvm.te.schedules.joined_reductions import joined
from minitvm.te.schedules.mirrored_results import mirrored
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.padding import check_padding, is_offset, padded, without_offset
from minitvm.te.schedules.rewrite_operations import (
    copy_of,
    factored,
    read_by_axes,
    read_by_rows,
    reading,
    written_through,
)
from minitvm.te.schedules.scans import (
    drop_time,
    find_scans,
    is_of_step,
    moved_reduction,
    reduction_of_scan,
    stages_of_step,
)
from minitvm.te.schedules.stage import Group, Stage
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.schedules.trace import Traced, primitive
from minitvm.te.schedules.unstack_places import unstacked
from minitvm.te.schedules.window_reads import read_by_sums
from minitvm.te.tensor import ComputeOp, Operation, ScanOp, Tensor
from minitvm.tir.buffer import checked_scope
from minitvm.tir.expr import IterVar

_Op = TypeVar("_Op", bound=Operation)


class GraphPrimitives(StageGraph[Stage], Traced):
    """The part of a schedule that changes its graph of stages: it adds and drops stages, and lets
    stages compute other operations.

    Attributes
    ----------
    groups
        The groups of stages that are placed together.
    """

    __slots__ = ("groups",)
    groups: list[Group]

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
            is_other = isinstance(op, Operation) and any(
                op.name == each.name for each in self.stages
            )
            hint = f": another tensor is named {op.name} here" if is_other else ""
            raise CompileError(f"schedule: expected a tensor among {known}, got {key!r}{hint}")
        return self.stage_map[op]

    @primitive
    def cache_read(self, tensor: Tensor, scope: str, readers: Any, dtype: Any = None) -> Tensor:
        """Let `readers` read a copy of a tensor.

        Before::

            for i: C[i] = A[i] + 1

        After ``AA = s.cache_read(A, "local", [C])``::

            for ax0: A.local[ax0] = A[ax0]
            for i: C[i] = A.local[i] + 1

        With `dtype`, the copy has the elements cast to it, in place of the readers. Before::

            for i: C[i] = float32(A[i]) + 1

        After ``AA = s.cache_read(A, "global", [C], dtype="float32")``::

            for ax0: A.global[ax0] = float32(A[ax0])
            for i: C[i] = A.global[i] + 1

        Parameters
        ----------
        tensor : Tensor
            The tensor to copy.
        scope : str
            The kind of the copy's memory: ``"global"``, or ``"local"`` for registers.
        readers : Tensor or Operation, or a list of them
            The operations that shall read the copy.
        dtype : str or DType, optional
            The dtype of the copy, to which the readers cast each element; by default that of
            `tensor`.

        Returns
        -------
        Tensor
            The copy, a stage of its own.

        Raises
        ------
        CompileError
            When a reader does not read `tensor`, or uses an element without a cast to `dtype`.
        """
        stage = self._stage("cache_read", tensor)
        source = self.now(tensor)
        stages = [self[each] for each in listed(readers)]
        wide = source.dtype if dtype is None else DType.of(dtype)
        if not stages:
            raise CompileError(f"cache_read of {source.name}: expected readers, got none")
        for reader in stages:
            if source not in reader.op.input_tensors:
                known = ", ".join(each.name for each in self.readers(stage)) or "none"
                raise CompileError(
                    f"cache_read of {source.name}: expected stages that read it ({known}), got "
                    f"{reader.name}"
                )
            used = dtype_read(reader.op, source)
            if wide not in (source.dtype, used):
                raise CompileError(
                    f"cache_read of {source.name}: expected readers that cast each element to "
                    f"{wide}, got {reader.name}, which uses it as {used}"
                )
        copy = copy_of(source, f"{source.name}.{checked_scope('cache_read', scope)}", wide)
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
        dtype: Any = None,
    ) -> Tensor:
        """Let a stage read a copy of a tensor that has an element of its own for each iteration of
        the stage.

        Before::

            for y: for k: C[y] += A[y * 2 + k] * W[k]

        After ``AA = s.cache_access(A, "global", C)``::

            for y: for k: A.global[y, k] = A[y * 2 + k]
            for y: for k: C[y] += A.global[y, k] * W[k]

        The dimensions of the copy are the axes on which the indices depend, data axes first. An
        element that several iterations read is copied several times: so windows become the rows of
        a matrix. Where guards keep a read inside of `tensor`, the copy has the same guards and is
        zero elsewhere; the axes of the guards are dimensions, too. A stage in a scan computes its
        elements at some time steps; the copy has no others.

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
            Whether the dimensions of the copy are sums of axes that begin at constants.
        dtype : str or DType, optional
            The dtype of the copy, to which the reader casts the element; by default that of
            `tensor`.

        Returns
        -------
        Tensor
            The copy, a stage of its own.

        Raises
        ------
        CompileError
            When `reader` does not read `tensor`, or reads several of its elements in an iteration
            and `which` is not given; when a dimension of the copy would be longer for some indices
            than for others; when an axis begins at no constant although `sums` is given, or a sum
            that `reader` doesn't reach might leave `tensor`; when `reader` uses the element without
            a cast to `dtype`.
        """
        _, source, stage, op = self._read_by("cache_access", tensor, reader)
        name = f"{source.name}.{checked_scope('cache_access', scope)}"
        read_by = read_by_sums if sums else read_by_axes
        wide = source.dtype if dtype is None else DType.of(dtype)
        copy, changed = read_by(source, self._in_its_steps(stage, op), name, which, wide)
        made = self._insert(self.stages.index(stage), copy.op, scope, stage)
        self.now_computes(stage, replace(changed, axis=op.axis))
        return made.op.output(0)

    @primitive
    def repeat_rows(self, tensor: Tensor, reader: Any, times: int) -> Tensor:
        """Let a stage read a copy of a tensor that has each row several times.

        Before::

            for i: for j: C[i, j] = A[i, j] * w[j]

        After ``WW = s.repeat_rows(w, C, 16)``::

            for r in range(16): for j: w.repeated[r, j] = w[j]
            for i: for j: C[i, j] = A[i, j] * w.repeated[i % 16, j]

        So 16 rows of C can be computed as one line, which reads a line of each tensor. A row of
        `tensor` is its last dimension; the copies are the dimension before it.

        Parameters
        ----------
        tensor : Tensor
            The tensor whose rows are copied.
        reader : Tensor or Operation
            The operation that shall read the copies, each in turn along its last data axis but one.
        times : int
            The number of copies of each row.

        Returns
        -------
        Tensor
            The copies, a stage of its own.

        Raises
        ------
        CompileError
            When `reader` does not read `tensor`, or has one data axis or none; when `tensor` has no
            dimension; or when `times` is less than 1.
        """
        where, source, stage, op = self._read_by("repeat_rows", tensor, reader)
        if not source.ndim or len(op.axis) < 2:
            raise CompileError(
                f"{where}: expected a tensor with rows, and a reader with two axes or more, got "
                f"{source.ndim} dimensions and {len(op.axis)} axes of {stage.name}"
            )
        if not isinstance(times, int) or times < 1:
            raise CompileError(f"{where}: expected 1 copy or more of each row, got {times!r}")
        copy, changed = read_by_rows(source, op, times)
        made = self._insert(self.stages.index(stage), copy.op, "", stage)
        self.now_computes(stage, changed)
        return made.op.output(0)

    def _read_by(
        self, primitive: str, tensor: Tensor, reader: Any
    ) -> tuple[str, Tensor, Stage, ComputeOp]:
        """How errors of a primitive begin, the tensor that is read now, and the stage that reads
        its elements, with its operation."""
        self._stage(primitive, tensor)
        source, stage = self.now(tensor), self[reader]
        where = f"{primitive} of {source.name}"
        if source not in stage.op.input_tensors or not isinstance(stage.op, ComputeOp):
            raise CompileError(
                f"{where}: expected a stage that reads its elements, got {stage.name}"
            )
        stage.check_predicate(where)
        return where, source, stage, stage.op

    def _in_its_steps(self, stage: Stage, op: ComputeOp) -> ComputeOp:
        """The operation of a stage, with the range of the time steps at which it is computed."""
        if stage.time is not None or not any(isinstance(each.op, ScanOp) for each in self.stages):
            return op
        times = find_scans(self).times.get(stage)
        if times is None:
            return op
        return replace(op, axis=(replace(op.axis[0], dom=times), *op.axis[1:]))

    @primitive
    def cache_write(self, tensor: Any, scope: str) -> Any:
        """Compute into a cache, and copy from it.

        Before::

            for i: C[i] = A[i] + 1

        After ``CC = s.cache_write(C, "local")``::

            for i.c: C.local[i.c] = A[i.c] + 1
            for i: C[i] = C.local[i]

        If the loops of ``s[C]`` were split or reordered before, these loops are the dimensions of
        the cache.

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
        tensors = listed(tensor)
        if not tensors:
            raise CompileError("cache_write: expected a tensor, got none")
        stage, op = self._computed("cache_write", tensors[0])
        where = f"cache_write of {stage.name}"
        stage.check_predicate(where)
        given = [each.value_index for each in tensors if self._stage("cache_write", each) is stage]
        if sorted(given) != list(range(op.num_outputs)) or len(given) != len(tensors):
            names = ", ".join(each.name for each in op.outputs)
            raise CompileError(
                f"{where}: expected all outputs of one operation ({names}), got "
                f"{', '.join(str(getattr(each, 'name', each)) for each in tensors)}"
            )
        cache, copy = written_through(
            op, stage.relations, stage.leaf_iter_vars, checked_scope("cache_write", scope)
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
        commutative, but a component is the reduction axis itself, the partial results are combined
        in the order of that component: among equal elements, the same one as before is found.

        Parameters
        ----------
        tensor : Tensor
            The result of a reduction; if it has several results, any of them.
        axis : IterVar
            A loop over a reduction axis.
        factor_axis : int
            The position of the new dimension in the partial results; from the end if negative.

        Returns
        -------
        Tensor, or list of Tensor
            The partial results, a stage of their own.

        Raises
        ------
        CompileError
            When `tensor` is no reduction, `axis` is no loop over a reduction axis, or `factor_axis`
            is out of range.
        """
        stage, op = self._reduction("rfactor", tensor)
        where = f"rfactor of {stage.name}"
        stage.leaf_index(where, axis)
        reduced = stage.reduce_leaves()
        if axis not in reduced:
            names = ", ".join(each.name for each in stage.leaf_iter_vars if each in reduced)
            raise CompileError(
                f"{where}: expected a loop over a reduce axis ({names}), got {axis.name}"
            )
        ndim = len(op.axis)
        if not isinstance(factor_axis, int) or not -ndim - 1 <= factor_axis <= ndim:
            raise CompileError(
                f"{where}: expected factor_axis in [{-ndim - 1}, {ndim}], got {factor_axis!r}"
            )
        stage.check_predicate(where)
        place = factor_axis if factor_axis >= 0 else factor_axis + ndim + 1
        partial, final_op = factored(op, stage.relations, stage.leaf_iter_vars, axis, place)
        self._replace(stage, final_op, partial, "")
        return partial.output(0) if partial.num_outputs == 1 else list(partial.outputs)

    @primitive
    def find_block(self, tensor: Tensor, size: int) -> list[Tensor]:
        """Find the block of steps that holds the result of an argmax, and then the place in it.

        Before::

            for k in range(256): A[0] = argmax(A[0], (k, X[k]))

        After ``values, block = s.find_block(A, 64)``::

            for ko in range(4): for ki in range(64): A.best[ko] = max(A.best[ko], X[ko * 64 + ki])
            for ko in range(4): A.block[0] = argmax(A.block[0], (ko, A.best[ko]))
            for ki in range(64): k = A.block[0] * 64 + ki; A[0] = argmax(A[0], (k, X[k]))

        The reducer chooses one of two tuples. One component is the reduction axis itself, and the
        others alone decide. The last block ends with the last step, and may overlap the block
        before. NaN has no order: where NaN is compared, it is not defined which block is found. The
        loops of ``s[A]`` begin anew.

        Parameters
        ----------
        tensor : Tensor
            Any of the results of such a reduction, of a constant number of steps.
        size : int
            The steps of a block.

        Returns
        -------
        list of Tensor
            The chosen values of each block, one tensor for each component except the place; and the
            number of the block that holds the result.

        Raises
        ------
        CompileError
            When `tensor` is no such reduction, there are fewer steps than `size`, or the stage was
            scheduled already.

        >>> from minitvm import te
        >>> first = te.comm_reducer(
        ...     lambda a, b: tuple(te.if_then_else(a[1] >= b[1], x, y) for x, y in zip(a, b)),
        ...     lambda k, x: (te.const(-1, k), te.min_value(x)), name="argmax")
        >>> X, k = te.placeholder((9, 100), name="X"), te.reduce_axis((0, 100), name="k")
        >>> A, best = te.compute((9,), lambda i: first((k.var, X[i, k]), axis=k), name="A")
        >>> te.create_schedule(A.op).find_block(A, 30)
        [Tensor(shape=[9, 4], op.name=A.best), Tensor(shape=[9], op.name=A.block)]
        """
        stage, op = self._reduction("find_block", tensor)
        stage.check_as_begun(f"find_block of {stage.name}")
        values, block, rest = found_in_blocks(op, size)
        self._insert(self.stages.index(stage), values, "", stage)
        self._replace(stage, rest, block, "")
        return [*values.outputs, block.output(place_found(op) or 0)]

    @primitive
    def factor_out(self, tensor: Tensor, axes: Sequence[IterVar]) -> Tensor:
        """Take the factors that some reduction axes don't change out of the sum over these axes.
        The sum becomes a stage of its own.

        Before::

            for i: for j: C[0] += x[i] * A[i, j] * x[j]

        After ``CS = s.factor_out(C, [j])``::

            for i: for j: C.sums[i] += A[i, j] * x[j]
            for i: C[0] += C.sums[i] * x[i]

        The reducer is a sum, and the factors are those of a product; or it is a minimum or a
        maximum of floats, and the factors are the terms of a sum. Products are rounded in another
        order then, and infinite terms of both signs may give an infinity in place of NaN.
        Conditions of the reduction that read data, and don't change along the axes, move out of
        the inner sums as well; they move out of any reduction. Where the inner sums depend on a
        data axis and a reduction axis by their sum alone, they have one axis for both, and there
        need not be a factor: ``max(X[i + r, j + q])`` over r is the same for all j and q of one
        sum. The loops of ``s[C]`` begin anew.

        Parameters
        ----------
        tensor : Tensor
            The result of a reduction: where there are factors to be taken out, of integers or of
            floats of 32 bits or more.
        axes : list of IterVar
            The reduction axes of ``s[C].op`` over which the inner sums run.

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
        stage, op = self._reduction("factor_out", tensor)
        stage.check_as_begun(f"factor_out of {stage.name}")
        partial, rest = distributed(op, listed(axes))
        self._replace(stage, rest, partial, "")
        return partial.output(0)

    @primitive
    def hoist(self, tensor: Tensor, axes: Sequence[IterVar]) -> Tensor:
        """Compute the part of an expression that changes only along some axes first, as a stage of
        its own.

        Before::

            for i: for j: for k: C[i, j] += exp(A[i, k]) * B[k, j]

        After ``CE = s.hoist(C, [i, k])``::

            for i: for k: C.exp[i, k] = exp(A[i, k])
            for i: for j: for k: C[i, j] += C.exp[i, k] * B[k, j]

        Of several such parts, it takes the one with the most operations. A part that is a function
        of one element of a tensor is computed for all elements of this tensor. Where nothing is
        computed along these axes, a tensor that is read along them, and elsewhere along others, is
        copied: a product of a tensor with itself then has two factors. The loops of ``s[C]`` begin
        anew.

        Parameters
        ----------
        tensor : Tensor
            The result of ``te.compute``; of several results, any of them.
        axes : list of IterVar
            The data and reduction axes of ``s[C].op`` along which the part changes.

        Returns
        -------
        Tensor
            The values of the part.

        Raises
        ------
        CompileError
            When no part changes along just these `axes`, when the part might read an element that
            its tensors don't have, or the stage was scheduled already.

        >>> from minitvm import te
        >>> X, w = te.placeholder((9, 4), name="X"), te.placeholder((4,), name="w")
        >>> Y = te.compute((9, 4), lambda i, j: X[i, j] * te.exp(w[j]), name="Y")
        >>> te.create_schedule(Y.op).hoist(Y, [Y.op.axis[1]])
        Tensor(shape=[4], op.name=Y.exp)
        """
        stage, op = self._computed("hoist", tensor)
        stage.check_as_begun(f"hoist of {stage.name}")
        part, rest = hoisted(op, listed(axes))
        self._replace(stage, rest, part, "")
        return part.output(0)

    @primitive
    def join(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute reductions over the same axes by one stage, which has all of their results.

        Before::

            for i: for k: A[i] += f(i, k) * x[k]
            for i: for k: B[i] += f(i, k)

        After ``A_sum, B_sum = s.join([A, B])``::

            for i: for k: A.joined.v0[i] += f(i, k) * x[k]; A.joined.v1[i] += f(i, k)
            for i: A[i] = A.joined.v0[i]
            for i: B[i] = A.joined.v1[i]

        So a term that several of them need is computed once. The loops of all stages begin anew.

        Parameters
        ----------
        tensors : list of Tensor
            Two or more results of reductions, each of one result.

        Returns
        -------
        list of Tensor
            The results of the new stage, in the order of `tensors`.

        Raises
        ------
        CompileError
            When axes or conditions differ, when one of the reductions reads a tensor that is
            computed after the first of them, or a stage was scheduled already.

        >>> from minitvm import te
        >>> X, k = te.placeholder((9, 4), name="X"), te.reduce_axis((0, 4), name="k")
        >>> A = te.compute((9,), lambda i: te.sum(te.exp(X[i, k]), axis=k), name="A")
        >>> B = te.compute((9,), lambda i: te.max(te.exp(X[i, k]), axis=k), name="B")
        >>> te.create_schedule([A.op, B.op]).join([A, B])
        [Tensor(shape=[9], op.name=A.joined), Tensor(shape=[9], op.name=A.joined)]
        """
        stages = [self._reduction("join", tensor)[0] for tensor in listed(tensors)]
        where = f"join of {', '.join(each.name for each in stages)}"
        for each in stages:
            each.check_as_begun(where)
        made, copies = joined([each.op for each in stages])
        place = min(map(self.stages.index, stages))
        late = [self[x].name for x in made.input_tensors if self.stages.index(self[x]) >= place]
        if late or any(each.time is not None for each in stages):
            raise CompileError(
                f"{where}: expected reductions outside of scans that read nothing which is "
                f"computed after the first of them, got {', '.join(late) or 'the step of a scan'}"
            )
        self._insert(place, made, "", stages[0])
        for stage, copy in zip(stages, copies, strict=True):
            self.now_computes(stage, copy)
            stage.restart(copy)
            stage.storage_alignments = {}
        return [*made.outputs]

    @primitive
    def unstack(self, tensor: Tensor, axis: IterVar) -> list[Tensor]:
        """Compute the elements at each place along a short axis by a stage of its own.

        Before::

            for i: for c in range(2): for k: C[i, c] += if_then_else(c == 0, A[i, k], B[i, k])

        After ``C0, C1 = s.unstack(C, c)``::

            for i: for k: C.0[i] += A[i, k]
            for i: for k: C.1[i] += B[i, k]
            for i: for c in range(2): C[i, c] = if_then_else(c == 0, C.0[i], C.1[i])

        Conditions on the axis, and indices along it, are constants in each of these stages. The
        loops of ``s[C]`` begin anew.

        Parameters
        ----------
        tensor : Tensor
            The result of ``te.compute``; of several results, any of them.
        axis : IterVar
            A data axis of ``s[C].op`` of constant extent, 16 at most.

        Returns
        -------
        list of Tensor
            The elements at each place; of several results, the first one's.

        Raises
        ------
        CompileError
            When `axis` is no such axis, or is the time of a scan, or the stage was scheduled
            already.

        >>> from minitvm import te
        >>> A, k = te.placeholder((9, 4), name="A"), te.reduce_axis((0, 4), name="k")
        >>> sign = lambda c: te.if_then_else(c == 0, 1.0, -1.0)
        >>> C = te.compute((9, 2), lambda i, c: te.max(sign(c) * A[i, k], axis=k), name="C")
        >>> te.create_schedule(C.op).unstack(C, C.op.axis[1])
        [Tensor(shape=[9], op.name=C.0), Tensor(shape=[9], op.name=C.1)]
        """
        stage, op = self._computed("unstack", tensor)
        where = f"unstack of {stage.name}"
        stage.check_as_begun(where)
        scan = find_scans(self).inside.get(stage)
        if scan is not None and axis in op.axis[:1]:
            raise CompileError(
                f"{where}: expected another axis than {axis.name}, the time of {scan.name}, whose "
                f"steps are computed one after the other"
            )
        (*before, last), rest = unstacked(op, axis)
        for part in before:
            self._insert(self.stages.index(stage), part, "", stage)
        self._replace(stage, rest, last, "")
        return [part.output(0) for part in (*before, last)]

    @primitive
    def mirror(self, tensor: Tensor, axes: Sequence[IterVar], block: int) -> Tensor:
        """Compute half of a result that is the same with two axes exchanged, and mirror it.

        Before::

            for i: for j: for k: C[i, j] += A[i, k] * A[j, k]

        After ``H = s.mirror(C, [i, j], 48)``::

            for i: for j: for k: if j // 48 >= i // 48: C.half[i, j] += A[i, k] * A[j, k]
            for i: for j: C[i, j] = C.half[i, j] if j // 48 >= i // 48 else C.half[j, i]

        Tiles that divide the blocks are computed as a whole, or not at all. The loops of ``s[C]``
        begin anew.

        Parameters
        ----------
        tensor : Tensor
            The result of a reduction.
        axes : list of IterVar
            Two data axes of ``s[C].op``, of the same constant extent. Where they are exchanged, the
            terms are the same, but for the order of the operands of sums and products, and the sign
            of a squared difference.
        block : int
            The size of the square blocks that are computed as a whole.

        Returns
        -------
        Tensor
            The computed half, ``C.half``.

        Raises
        ------
        CompileError
            When other results follow if the axes are exchanged, or the stage was scheduled already.

        >>> from minitvm import te
        >>> A, k = te.placeholder((9, 4), name="A"), te.reduce_axis((0, 4), name="k")
        >>> C = te.compute((9, 9), lambda i, j: te.sum(A[i, k] * A[j, k], axis=k), name="C")
        >>> te.create_schedule(C.op).mirror(C, C.op.axis, 4)
        Tensor(shape=[9, 9], op.name=C.half)
        """
        stage, op = self._reduction("mirror", tensor)
        stage.check_as_begun(f"mirror of {stage.name}")
        half, rest = mirrored(op, listed(axes), block)
        self._replace(stage, rest, half, "")
        return half.output(0)

    @primitive
    def pad_einsum(
        self, tensor: Tensor, padding: Sequence[int], dtypes: Sequence[Any] = (None, None)
    ) -> list[Tensor]:
        """Round up the loops of a sum of products, and let it read copies padded with zeros.

        Before::

            for i in range(7): for k in range(5): C[i] += A[i, k] * B[k]

        After ``s.pad_einsum(C, [4, 4])``, where C is no output::

            for ax0 in range(8): for ax1 in range(8): A.pad[ax0, ax1] = A[ax0, ax1] or 0
            for ax0 in range(8): B.pad[ax0] = B[ax0] or 0
            for i in range(8): for k in range(8): C[i] += A.pad[i, k] * B.pad[k]

        so that any split by 4 leaves no remainder, as ``tensorize`` needs it. The terms added to a
        sum are zero, and nothing reads the sums of the padding.

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
        op, wanted = check_padding(where, stage.op, padding, dtypes)
        if stage.is_output or stage.has_new_loops:
            raise CompileError(
                f"{where}: expected a stage that is no output, whose loops are as they began: "
                "cache_write it first"
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

        So their loops can be split, fused, reordered and run in parallel like the loops of any
        other stage. A stage keeps its axis of time if other steps of it are read as well, or if its
        loops were scheduled already.

        Parameters
        ----------
        scan : Tensor
            A result of ``te.scan``.
        stages : list of Tensor, optional
            The stages; by default all stages that can drop their axis of time.

        Raises
        ------
        CompileError
            When `scan` is no result of a scan; when a stage that is given must keep its axis.
        """
        stage, _ = self._scan("drop_time", scan)
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
        update is no longer a stage.

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
        stage, op = self._scan("reduce_scan", scan)
        where = f"reduce_scan of {stage.name}"
        made = reduction_of_scan(self, stage)
        update = self[op.update[0]]
        if made is None:
            raise CompileError(
                f"{where}: expected an update that combines the state one step before and a term, "
                f"such as state[t - 1, i] + X[t, i], got {update.op}"
            )
        for each in (stage, update):
            each.check_as_begun(where)
        self._recompute(stage, made)

    @primitive
    def reverse_compute_inline(self, tensor: Tensor) -> None:
        """Compute a reduction in the stage that only moves its elements.

        Before::

            for i: for j: R[i, j] = sum of X[i, j, k] over k
            for j: for i: O[j, i] = R[i, j]

        After ``s.reverse_compute_inline(O)``::

            for j: for i: O[j, i] = sum of X[i, j, k] over k

        Parameters
        ----------
        tensor : Tensor
            The tensor whose elements are moved elements of a reduction. Nothing else reads the
            reduction.

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
            each.check_as_begun(where)
        self._recompute(stage, made)

    # -- Arguments --------------------------------------------------------------------------------

    def _stage(self, what: str, tensor: Any) -> Stage:
        if not isinstance(tensor, Tensor):
            raise CompileError(f"{what}: expected a tensor, got {tensor!r}")
        return self[tensor]

    def _computed(self, what: str, tensor: Any) -> tuple[Stage, ComputeOp]:
        """The stage of a tensor of ``te.compute``, and its operation."""
        return self._made_by(ComputeOp, "a tensor of te.compute", what, tensor)

    def _reduction(self, what: str, tensor: Any) -> tuple[Stage, ComputeOp]:
        stage = self._stage(what, tensor)
        if not isinstance(stage.op, ComputeOp) or not stage.op.reduce_axis:
            raise CompileError(
                f"{what} of {stage.name}: expected a reduction, got {stage.name}, which has none"
            )
        return stage, stage.op

    def _scan(self, what: str, tensor: Any) -> tuple[Stage, ScanOp]:
        return self._made_by(ScanOp, "a result of te.scan", what, tensor)

    def _made_by(self, kind: type[_Op], expected: str, what: str, tensor: Any) -> tuple[Stage, _Op]:
        """The stage of a tensor, and its operation, which is of a kind."""
        stage = self._stage(what, tensor)
        if not isinstance(stage.op, kind):
            raise CompileError(
                f"{what} of {stage.name}: expected {expected}, got one of {type(stage.op).__name__}"
            )
        return stage, stage.op

    # -- Stages -----------------------------------------------------------------------------------

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


def listed(given: Any) -> list[Any]:
    """An argument as a list: it is a list, a tuple, or a single object."""
    return list(given) if isinstance(given, (list, tuple)) else [given]
