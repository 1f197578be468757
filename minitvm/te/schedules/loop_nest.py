"""The loops that compute one operation, and the primitives that transform them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.relation import (
    Fuse,
    Rebase,
    Relation,
    Singleton,
    Split,
    leaves_below,
    results_of,
    sources_of,
    with_source,
)
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.schedules.trace import Traced, primitive
from minitvm.te.tensor import ComputeOp, Operation, ScanOp, Tensor
from minitvm.te.tensor_intrin import TensorIntrin
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import IterType, IterVar, PrimExpr, Reduce, Var
from minitvm.tir.functor import free_vars
from minitvm.tir.stmt import ForKind

PRAGMAS = (
    "auto_unroll_max_step",
    "debug_skip_region",
    "import_llvm",
    "loop_partition_hint",
    "nontemporal",
    "parallel_barrier_when_finish",
    "parallel_launch_point",
    "parallel_stride_pattern",
    "unroll_explicit",
)
_KIND_NAMES = {
    ForKind.VECTORIZED: "vectorized",
    ForKind.UNROLLED: "unrolled",
    ForKind.PARALLEL: "parallel",
    ForKind.THREAD_BINDING: "bound to a thread axis",
}
# The combinations by which the lanes of a vector can be reduced.
_LANE_REDUCERS = (e.Add, e.Mul, e.Min, e.Max, e.And, e.Or)


@final
@record(frozen=False)
class LoopAttrs:
    """The attributes of one loop: its kind, pragmas, prefetches and intrinsic."""

    kind: ForKind = ForKind.SERIAL
    thread: IterVar | None = None
    intrin: TensorIntrin | None = None
    pragmas: list[tuple[str, PrimExpr]] = field(default_factory=list)
    prefetches: list[tuple[Tensor, PrimExpr, IterVar | None]] = field(default_factory=list)

    def copy(self) -> LoopAttrs:
        return replace(self, pragmas=[*self.pragmas], prefetches=[*self.prefetches])


class LoopNest(Traced):
    """The loops of one operation, one half of a stage: the relations from axes to loops, and the
    attributes of each loop.

    Attributes
    ----------
    op : Operation
        The computation; ``cache_read``, ``cache_write`` and ``rfactor`` change it.
    all_iter_vars, leaf_iter_vars : list of IterVar
        Every axis so far, and the axes that are loops now, the outermost first.
    relations : list
        The splits, fusions and the like, from the axes of the operation to the loops.
    iter_var_attrs : dict
        The attributes of each loop: serial, vectorized, parallel and the like.
    """

    __slots__ = ()
    schedule: StageGraph[Any]  # its nodes are stages: loop nests that have a place
    all_iter_vars: list[IterVar]
    leaf_iter_vars: list[IterVar]
    relations: list[Relation]
    iter_var_attrs: dict[IterVar, LoopAttrs]

    @property
    def op(self) -> Operation:
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def has_new_loops(self) -> bool:
        """Whether the loops differ from the operation's axes, or from their order."""
        return bool(self.relations) or self.leaf_iter_vars != self.all_iter_vars

    def attrs_of(self, axis: IterVar) -> LoopAttrs:
        """The attributes of a loop."""
        return self.iter_var_attrs.get(axis) or LoopAttrs()

    def reduce_leaves(self) -> set[IterVar]:
        """The loops that come from reduction axes."""
        roots = self.op.reduce_axis if isinstance(self.op, ComputeOp) else ()
        return leaves_below(self.relations, roots)

    def rebase(self, axis: IterVar) -> None:
        """Let the loop of a root axis begin at 0."""
        made = derived_axis(axis, axis.name)
        self.relations.append(Rebase(axis, made))
        self.all_iter_vars.append(made)
        self.leaf_iter_vars[self.leaf_iter_vars.index(axis)] = made
        if axis in self.iter_var_attrs:
            self.iter_var_attrs[made] = self.iter_var_attrs.pop(axis)

    def reverse(self, axis: IterVar) -> None:
        """Let the loops of a root axis run from its end to its begin."""
        made = derived_axis(axis, axis.name)
        below = [with_source(relation, axis, made) for relation in self.relations]
        self.relations[:] = [Rebase(axis, made, is_reversed=True), *below]
        self.all_iter_vars.append(made)
        if axis in self.leaf_iter_vars:
            self.leaf_iter_vars[self.leaf_iter_vars.index(axis)] = made
        if axis in self.iter_var_attrs:
            self.iter_var_attrs[made] = self.iter_var_attrs.pop(axis)

    # -- Transforming loops -----------------------------------------------------------------------

    @primitive
    def split(
        self,
        parent: IterVar,
        factor: Any = None,
        nparts: Any = None,
        inner_to_outer: bool | None = None,
    ) -> tuple[IterVar, IterVar]:
        """Replace a loop by two, the inner of `factor` iterations or the outer of `nparts`.

        Before::

            for i in range(n): C[i] = ...

        After ``s[C].split(i, factor=4)``::

            for i.outer in range(ceildiv(n, 4)):
                for i.inner in range(4):
                    if i.outer * 4 + i.inner < n: C[i.outer * 4 + i.inner] = ...

        The condition is left out where 4 divides n.

        Parameters
        ----------
        parent : IterVar
            A loop of this stage.
        factor, nparts : int or expression, at least 1
            The number of inner, or of outer iterations. Exactly one of them is given.
        inner_to_outer : ignored
            Classic.

        Returns
        -------
        (IterVar, IterVar)
            The outer and the inner loop.

        Raises
        ------
        CompileError
            When `parent` is none of the loops, or was vectorized, unrolled or the like already;
            when not exactly one of `factor` and `nparts` is given, or it is not positive.
        """
        place = self._plain_leaf("split", parent)
        if (factor is None) == (nparts is None):
            raise CompileError(
                f"{self.name}: split of {parent.name}: expected either factor or nparts, got "
                f"{'both' if factor is not None else 'neither'}"
            )
        given = {"factor": factor, "nparts": nparts}
        parts = {key: self._part(parent, key, value) for key, value in given.items()}
        outer, inner = (derived_axis(parent, f"{parent.name}.{end}") for end in ("outer", "inner"))
        self.relations.append(Split(parent, outer, inner, **parts))
        self.all_iter_vars += [outer, inner]
        self.leaf_iter_vars[place : place + 1] = [outer, inner]
        return outer, inner

    def _part(self, parent: IterVar, key: str, value: Any) -> PrimExpr | None:
        if value is None:
            return None
        where = f"{self.name}: split of {parent.name}: {key}"
        with e.naming(where):
            made = e.as_index(value)
        known, most = e.const_int(made), 2 ** (parent.var.dtype.bits - 1) - 1
        if known is not None and known < 1:
            raise CompileError(f"{where}: expected 1 or more, got {known}")
        if known is not None and known > most:
            raise CompileError(
                f"{where}: expected {most} at most, which {parent.name} can count, got {known}"
            )
        for var in free_vars(made):
            if var.axis:
                raise CompileError(f"{where}: expected no loop variable in it, got {var.name}")
        return made

    @primitive
    def fuse(self, *args: Any) -> IterVar:
        """Replace neighbouring loops by one over all their iterations.

        Before::

            for i in range(n):
                for j in range(m): C[i, j] = ...

        After ``s[C].fuse(i, j)``::

            for i.j.fused in range(n * m): C[i.j.fused // m, i.j.fused % m] = ...

        Parameters
        ----------
        args : IterVar, each
            Loops of this stage, each directly inside of the one before. None makes a loop that
            runs once, outside of all others.

        Raises
        ------
        CompileError
            When an argument is none of the loops, they aren't neighbours, or data and reduction
            axes are mixed.
        """
        axes = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else [*args]
        if not axes:
            if isinstance(self.op, ScanOp):
                raise CompileError(
                    f"{self.name}: fuse: expected a loop whose iterations may be regrouped, got "
                    "a scan"
                )
            made = IterVar(None, Var("singleton", axis=True))
            self.relations.append(Singleton(made))
            self.all_iter_vars.append(made)
            self.leaf_iter_vars.insert(0, made)
            return made
        places = [self._plain_leaf("fuse", axis) for axis in axes]
        if places != list(range(places[0], places[0] + len(places))):
            raise CompileError(
                f"{self.name}: fuse: expected loops each directly inside of the one before, got "
                f"{names_of(axes)} where the loops are {names_of(self.leaf_iter_vars)}: "
                "reorder first"
            )
        if len({axis.iter_type for axis in axes}) > 1:
            raise CompileError(
                f"{self.name}: fuse: expected either data axes or reduce axes, got both: "
                f"{names_of(axes)}"
            )
        fused: IterVar = axes[0]
        for inner in axes[1:]:
            fused = self._fuse_two(fused, inner)
        return fused

    def _fuse_two(self, outer: IterVar, inner: IterVar) -> IterVar:
        place = self.leaf_iter_vars.index(outer)
        fused = derived_axis(outer, f"{outer.name}.{inner.name}.fused", inner)
        self.relations.append(Fuse(outer, inner, fused))
        self.all_iter_vars.append(fused)
        self.leaf_iter_vars[place : place + 2] = [fused]
        return fused

    @primitive
    def reorder(self, *args: IterVar) -> None:
        """Put loops in the given order, outermost first. They take the positions that these loops
        had before; all other loops stay where they are.

        Raises
        ------
        CompileError
            When an argument is none of the loops, or is given twice.
        """
        where = f"{self.name}: reorder"
        places = [self.leaf_index(where, axis) for axis in args]
        repeated = [axis.name for i, axis in enumerate(args) if places[i] in places[:i]]
        if repeated:
            raise CompileError(f"{where}: expected each loop once, got {repeated[0]} again")
        for place, axis in zip(sorted(places), args, strict=True):
            self.leaf_iter_vars[place] = axis

    @primitive
    def tile(
        self, x_parent: IterVar, y_parent: IterVar, x_factor: Any, y_factor: Any
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Split two loops and put the two outer ones outside: ``for x.outer: for y.outer: for
        x.inner: for y.inner``, which are returned in this order.

        Raises
        ------
        CompileError
            As :meth:`split` and :meth:`reorder`.
        """
        if x_parent is y_parent:
            raise CompileError(f"{self.name}: tile: expected two loops, got {x_parent.name} twice")
        self._plain_leaf("tile", x_parent)
        self._plain_leaf("tile", y_parent)
        for axis, factor in ((x_parent, x_factor), (y_parent, y_factor)):
            if factor is None:
                raise CompileError(
                    f"{self.name}: tile: expected a factor for {axis.name}, got None"
                )
            self._part(axis, "factor", factor)
        x_outer, x_inner = self.split(x_parent, x_factor)
        y_outer, y_inner = self.split(y_parent, y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    # -- How loops run ----------------------------------------------------------------------------

    @primitive
    def vectorize(self, var: IterVar) -> None:
        """Run the iterations of a loop as lanes of vectors. The extent of the loop must be a
        constant.

        A reduction axis becomes a reduction over lanes, for sums, products, minima and maxima.

        Raises
        ------
        CompileError
            When `var` is none of the loops, or a reduction over it can't be split among lanes.
        """
        where = f"{self.name}: vectorize"
        self.leaf_index(where, var)
        if var.iter_type == IterType.COMM_REDUCE and not self._reduces_lanes():
            raise CompileError(
                f"{where}: expected a loop over data, or a sum, product, minimum or maximum, got "
                f"the reduction over {var.name}, which lanes can't share: use rfactor, and "
                "vectorize the new axis"
            )
        self._check_unordered(where, var)
        self._edit_attrs(var).kind = ForKind.VECTORIZED

    def _reduces_lanes(self) -> bool:
        assert isinstance(self.op, ComputeOp)
        (first, *more) = self.op.body
        return (
            isinstance(first, Reduce) and not more and is_operator(first.combiner, *_LANE_REDUCERS)
        )

    @primitive
    def unroll(self, var: IterVar) -> None:
        """Write out the iterations of a loop one after the other. Its extent must be a constant.

        Raises
        ------
        CompileError
            When `var` is none of the loops.
        """
        self.leaf_index(f"{self.name}: unroll", var)
        self._edit_attrs(var).kind = ForKind.UNROLLED

    @primitive
    def parallel(self, var: IterVar) -> None:
        """Share the iterations of a loop among threads.

        Raises
        ------
        CompileError
            When `var` is none of the loops, or a reduction axis: threads would race.
        """
        where = f"{self.name}: parallel"
        self.leaf_index(where, var)
        if var.iter_type == IterType.COMM_REDUCE:
            raise CompileError(
                f"{where}: expected a loop over data, got the reduction over {var.name}, whose "
                "result all threads would write: use rfactor, and run the new axis in parallel"
            )
        self._check_unordered(where, var)
        self._edit_attrs(var).kind = ForKind.PARALLEL

    def _check_unordered(self, where: str, var: IterVar) -> None:
        if var.iter_type == IterType.ORDERED:
            raise CompileError(
                f"{where}: expected a loop whose iterations are independent, got the scan over "
                f"{var.name}: use the axes of its update"
            )

    @primitive
    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> None:
        """Run the iterations of a loop on an axis of a device's threads. A CPU has no such axes:
        building for a CPU is an error then.

        Raises
        ------
        CompileError
            When `ivar` is none of the loops, or `thread_ivar` no thread axis.
        """
        self.leaf_index(f"{self.name}: bind", ivar)
        if not isinstance(thread_ivar, IterVar) or not thread_ivar.thread_tag:
            raise CompileError(
                f"{self.name}: bind: expected an axis of te.thread_axis, got {thread_ivar!r}"
            )
        attrs = self._edit_attrs(ivar)
        attrs.kind, attrs.thread = ForKind.THREAD_BINDING, thread_ivar

    @primitive
    def pragma(self, var: IterVar, pragma_type: str, pragma_value: Any = None) -> None:
        """Annotate a loop for the passes.

        ``auto_unroll_max_step`` (steps), ``unroll_explicit``: how the loops inside are unrolled.
        ``parallel_launch_point``, ``parallel_barrier_when_finish``, ``parallel_stride_pattern``:
        how threads share loops. ``loop_partition_hint``: take conditions out of this loop.
        ``nontemporal`` (bytes): vectors of an output that has as many bytes or more, and is not
        read again, are stored past the caches.
        ``debug_skip_region``: leave the body out, to time the rest. ``import_llvm``: LLVM IR text
        to link in.

        Raises
        ------
        CompileError
            When `var` is none of the loops, or there is no such pragma.
        """
        self.leaf_index(f"{self.name}: pragma", var)
        if pragma_type not in PRAGMAS:
            raise CompileError(
                f"{self.name}: pragma: expected one of {', '.join(PRAGMAS)}, got {pragma_type!r}"
            )
        with e.naming(f"{self.name}: pragma {pragma_type}"):
            value = e.as_expr(1 if pragma_value is None else pragma_value)
        self._edit_attrs(var).pragmas.append((pragma_type, value))

    @primitive
    def prefetch(
        self, tensor: Tensor, var: IterVar, offset: Any, of: IterVar | None = None
    ) -> None:
        """In each iteration of a loop, prefetch the elements of a tensor that the iteration
        `offset` later reads; or writes, if this stage computes the tensor. Of several reads, those
        that go along a line of memory in the loop are left to the processor.

        With `of`, a loop around `var`: of this stage, or one at which this stage is computed,
        directly or within another one. The elements that the iteration `offset` later of that loop
        reads are prefetched, an equal share in each iteration of `var`. Behind the last iteration
        of `of` follows the first one of the next iteration of the loop around::

            before                          after s[P].prefetch(B, k, 1, of=j)
            for j in range(4):              for j in range(4):
                for i in range(8):              for i in range(8):
                    for k in range(16):             for k in range(16):
                                                        prefetch(B[j + 1, share i * 16 + k])
                        P[...] += ...                   P[...] += ...

        Raises
        ------
        CompileError
            When `var` is none of the loops, or this stage neither reads nor computes `tensor`
            (with `of`, another stage inside of that loop may read it). Lowering the schedule checks
            that `of` is around `var`.
        """
        where = f"{self.name}: prefetch"
        self.leaf_index(where, var)
        used = {self.schedule.now(each) for each in (*self.op.input_tensors, *self.op.outputs)}
        if not isinstance(tensor, Tensor) or (of is None and self.schedule.now(tensor) not in used):
            raise CompileError(
                f"{where}: expected a tensor that {self.name} reads or computes, got {tensor!r}"
            )
        if of is not None and not isinstance(of, IterVar):
            raise CompileError(f"{where}: of: expected a loop around {self.name}, got {of!r}")
        with e.naming(f"{where}: offset"):
            distance = e.as_index(offset)
        self._edit_attrs(var).prefetches.append((tensor, distance, of))

    @primitive
    def tensorize(self, var: IterVar, tensor_intrin: TensorIntrin) -> None:
        """Replace a loop and all loops inside of it by an intrinsic. Lowering the schedule checks
        that the intrinsic computes the same.

        Raises
        ------
        CompileError
            When `var` is none of the loops, or `tensor_intrin` is no intrinsic.
        """
        self.leaf_index(f"{self.name}: tensorize", var)
        if not isinstance(tensor_intrin, TensorIntrin):
            raise CompileError(
                f"{self.name}: tensorize: expected an intrinsic made by te.decl_tensor_intrin, got "
                f"{tensor_intrin!r}"
            )
        self._edit_attrs(var).intrin = tensor_intrin

    def _edit_attrs(self, var: IterVar) -> LoopAttrs:
        return self.iter_var_attrs.setdefault(var, LoopAttrs())

    # -- Checks -----------------------------------------------------------------------------------

    def leaf_index(self, where: str, axis: Any) -> int:
        """The position of a loop among the loops.

        Raises
        ------
        CompileError
            When `axis` is none of the loops.
        """
        for i, leaf in enumerate(self.leaf_iter_vars):
            if leaf is axis:
                return i
        if isinstance(axis, list | tuple):
            got = f"{axis!r}: pass the loops one by one, as in `*loops`"
        elif not isinstance(axis, IterVar):
            got = repr(axis)
        else:
            got = f"axis {axis.name}{self._fate(axis)}"
        raise CompileError(
            f"{where}: expected one of the loops of {self.name} "
            f"({names_of(self.leaf_iter_vars) or 'it has none'}), got {got}"
        )

    def _fate(self, axis: IterVar) -> str:
        """The primitive that replaced an axis that is no longer a loop, for messages."""
        for relation in self.relations:
            if any(source is axis for source in sources_of(relation)):
                verb = {Split: "split into", Fuse: "fused into"}.get(type(relation), "now")
                return f", which was {verb} {names_of(results_of(relation))}"
        for stage in self.schedule.stages:
            if any(own is axis for own in stage.all_iter_vars):
                return f", which is one of {stage.name}"
        return ""

    def _plain_leaf(self, what: str, axis: Any) -> int:
        """The position of a loop to which no ``vectorize``, ``unroll`` or the like was applied."""
        place = self.leaf_index(f"{self.name}: {what}", axis)
        if axis.iter_type == IterType.ORDERED:
            raise CompileError(
                f"{self.name}: {what}: expected a loop whose iterations may be regrouped, got the "
                f"scan over {axis.name}"
            )
        attrs = self.attrs_of(axis)
        if attrs.kind != ForKind.SERIAL or attrs.intrin is not None:
            how = "tensorized" if attrs.intrin is not None else _KIND_NAMES[attrs.kind]
            raise CompileError(
                f"{self.name}: {what}: axis {axis.name} is {how} already: {what} first"
            )
        return place


def derived_axis(source: IterVar, name: str, other: IterVar | None = None) -> IterVar:
    """The axis of a new loop that comes from one axis, or from two."""
    dtypes = [source.var.dtype] + ([] if other is None else [other.var.dtype])
    widest = max(dtypes, key=lambda dtype: dtype.bits)
    return IterVar(None, Var(name, widest, axis=True), source.iter_type)


def names_of(axes: Iterable[IterVar]) -> str:
    """Axes as errors list them."""
    return ", ".join(str(getattr(axis, "name", axis)) for axis in axes)
