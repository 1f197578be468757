"""Replaces a part of a computation by the statement of a tensor intrinsic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.runtime.dtype import HANDLE
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.tensor import ComputeOp, Tensor, domain_of, tensor_of
from minitvm.te.tensor_intrin import TensorIntrin
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferLoad, Call, IterVar, PrimExpr, Range, Reduce, Var
from minitvm.tir.functor import (
    CHILDREN,
    Substitution,
    children,
    contains,
    find,
    free_vars,
    substitute,
    walk_once,
)
from minitvm.tir.stmt import BufferStore, Stmt
from minitvm.tir.structural_equal import structural_equal

# -- Matching -------------------------------------------------------------------------------------


@final
@record(eq=False)
class Region:
    """A part of a tensor: from `begins` on, `extents` elements along each dimension."""

    source: Tensor | Buffer
    begins: tuple[PrimExpr, ...]
    extents: tuple[PrimExpr, ...]


@final
@record(eq=False)
class Match:
    """The regions that stand for an intrinsic's buffers, and the values that stand for its
    scalars."""

    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    scalars: Mapping[Var, PrimExpr]


def match_computation(
    intrin: TensorIntrin, op: ComputeOp, domain: Mapping[IterVar, Range], stage: str, axis: str
) -> Match:
    """The regions of the operands of `intrin` in the part of `op` that the intrinsic replaces.

    Parameters
    ----------
    intrin : TensorIntrin
        The intrinsic.
    op : ComputeOp
        The computation of the stage.
    domain : mapping of IterVar to Range
        For each data axis and reduction axis of `op`, its range inside of the part that is
        replaced: a begin in terms of the loops outside, and a constant extent.
    stage, axis : str
        Their names, for messages.

    Before, of ``C[i, j] = sum(B[j, k] * A[i, k])`` and ``z[i] = sum(w[i, k] * x[k])``, with
    `domain` ``{i: (x, 1), j: (yo * 16, 16), k: (0, 64)}``::

        C[x, yo * 16 + i] = sum(B[yo * 16 + i, k] * A[x, k])

    After::

        w = B[yo * 16 : +16, 0 : +64], x = A[x : +1, 0 : +64], z = C[x : +1, yo * 16 : +16]

    Raises
    ------
    CompileError
        When the part and `intrin` compute different things. The message shows both.
    """
    return _Matching(intrin, op, domain, f"{stage}: tensorize of {axis} by {intrin.name}").run()


class _Difference(Exception):
    """The first difference of two expressions: the stage's part, the intrinsic's part, and the
    reason."""

    def __init__(self, found: PrimExpr, expected: PrimExpr, how: str) -> None:
        super().__init__(how)
        self.found = found
        self.expected = expected
        self.how = how


class _Matching:
    """One attempt to match, with the operands found so far."""

    def __init__(
        self, intrin: TensorIntrin, op: ComputeOp, domain: Mapping[IterVar, Range], where: str
    ) -> None:
        self._intrin = intrin
        self._op = op
        self._domain = domain
        self._where = where
        self._starts = dict[Var, PrimExpr]()
        self._begins: dict[Tensor, tuple[Any, tuple[PrimExpr, ...]]] = {}
        self._dims: dict[Tensor, tuple[int, ...]] = {}
        self._scalars: dict[Var, PrimExpr] = {}
        self._prover = Prover()
        for each in (*intrin.op.axis, *intrin.op.reduce_axis):
            self._prover.bind(each.var, domain_of(each))
            self._starts[each.var] = domain_of(each).min
        self._simplifier = Simplifier(self._prover)

    def run(self) -> Match:
        intrin, op = self._intrin.op, self._op
        mapping = self._aligned("axis", op.axis, intrin.axis)
        mapping |= self._aligned("reduce axis", op.reduce_axis, intrin.reduce_axis)
        if len(op.body) != len(intrin.body):
            raise CompileError(
                f"{self._where}: expected {len(intrin.body)} outputs, found {len(op.body)}"
            )
        for found, expected in zip(op.body, intrin.body, strict=True):
            self._match_body(substitute(found, mapping), expected)
        begins = tuple(self._simple(self._domain[axis].min) for axis in op.axis)
        extents = tuple(self._simple(self._domain[axis].extent) for axis in op.axis)
        return Match(
            inputs=tuple(self._region(tensor) for tensor in self._intrin.inputs),
            outputs=tuple(Region(tensor, begins, extents) for tensor in op.outputs),
            scalars=self._scalars,
        )

    def _simple(self, value: PrimExpr) -> PrimExpr:
        return self._simplifier.expr(value)

    def _aligned(
        self, what: str, axes: Sequence[IterVar], wanted: Sequence[IterVar]
    ) -> dict[Var, PrimExpr]:
        """Each axis of the stage in terms of the intrinsic's axes, matched from the last one
        backwards; the stage's further axes must have extent 1."""
        extra = len(axes) - len(wanted)
        if extra < 0:
            raise CompileError(
                f"{self._where}: expected a {what} for each of the intrinsic's ({_named(wanted)}), "
                f"found {_named(axes)}"
            )
        made: dict[Var, PrimExpr] = {}
        for position, axis in enumerate(axes):
            dom = self._domain[axis]
            target = wanted[position - extra] if position >= extra else None
            needed = e.const(1) if target is None else domain_of(target).extent
            self._match_extent(dom.extent, needed)
            needed = substitute(needed, self._scalars)
            if not self._prover.can_prove(e.equal(dom.extent, needed)):
                like = "" if target is None else f", as {target.name} of the intrinsic does"
                raise CompileError(
                    f"{self._where}: expected {what} {axis.name} to run over {needed} inside"
                    f"{like}, found {self._simple(dom.extent)}: split it, and tensorize the loop "
                    "around exactly the computation of the intrinsic"
                )
            begin = e.cast(axis.var.dtype, dom.min)
            made[axis.var] = begin
            if target is not None:
                start = domain_of(target).min
                if self._scalars:  # an axis of another dtype has the values of this range, too
                    self._prover.bind(target.var, Range(start, needed))
                made[axis.var] = begin + e.cast(axis.var.dtype, target.var - start)
        return made

    def _match_extent(self, found: PrimExpr, expected: PrimExpr) -> None:
        """Lets a scalar of the intrinsic stand for the number of parts of an axis, if the
        intrinsic's axis is a multiple of the scalar."""
        form = self._prover.affine(expected)
        match [*form.terms.items()]:
            case [(Var() as scalar, size)] if scalar in self._intrin.scalar_params:
                parts = self._simple(e.cast(scalar.dtype, e.floordiv(found, size)))
                self._scalars.setdefault(scalar, parts)

    def _match_body(self, found: PrimExpr, expected: PrimExpr) -> None:
        try:
            if isinstance(found, Reduce) and isinstance(expected, Reduce):
                self._match_reduction(found, expected)
            else:
                self._match(found, expected)
        except _Difference as difference:
            raise CompileError(self._message(found, expected, difference)) from None

    def _match_reduction(self, found: Reduce, expected: Reduce) -> None:
        if not structural_equal(found.combiner, expected.combiner):
            raise _Difference(found, expected, "another reducer")
        if found.init or expected.init:
            raise _Difference(found, expected, "a reduction with init")
        if found.value_index != expected.value_index or len(found.source) != len(expected.source):
            raise _Difference(found, expected, "another result of the reducer")
        self._match(found.condition, expected.condition)
        for source, wanted in zip(found.source, expected.source, strict=True):
            self._match(source, wanted)

    def _match(self, found: PrimExpr, expected: PrimExpr) -> None:
        if isinstance(expected, Var) and expected in self._intrin.scalar_params:
            self._match_scalar(found, expected)
        elif isinstance(expected, e.ProducerLoad):
            self._match_load(found, expected)
        elif _is_index(found) and _is_index(expected):
            if not self._prover.can_prove(e.equal(found, expected)):
                raise _Difference(found, expected, "another value")
        else:
            self._match_node(found, expected)

    def _match_node(self, found: PrimExpr, expected: PrimExpr) -> None:
        if type(found) is not type(expected):
            raise _Difference(found, expected, "another operation")
        if found.dtype != expected.dtype:
            raise _Difference(found, expected, f"{found.dtype} where {expected.dtype} is expected")
        if not CHILDREN[type(expected)]:
            if not structural_equal(found, expected):
                raise _Difference(found, expected, "another value")
            return
        if isinstance(expected, Call) and cast(Call, found).op != expected.op:
            raise _Difference(found, expected, "another function")
        mine, wanted = children(found), children(expected)
        if len(mine) != len(wanted):
            raise _Difference(found, expected, "another number of operands")
        if isinstance(expected, _COMMUTATIVE):
            self._match_either_way(mine, wanted)
        else:
            self._match_all(mine, wanted)

    def _match_all(self, found: Sequence[Any], expected: Sequence[Any]) -> None:
        for mine, wanted in zip(found, expected, strict=True):
            self._match(mine, wanted)

    def _match_either_way(self, found: Sequence[Any], expected: Sequence[Any]) -> None:
        begins, scalars = dict(self._begins), dict(self._scalars)
        try:
            self._match_all(found, expected)
        except _Difference as first:
            self._begins, self._scalars = begins, scalars
            try:
                self._match_all(found[::-1], expected)
            except _Difference:
                raise first from None

    def _match_scalar(self, found: PrimExpr, expected: Var) -> None:
        if found.dtype != expected.dtype:
            raise _Difference(found, expected, f"{found.dtype} where {expected.dtype} is expected")
        if any(v in self._starts for v in free_vars(found)) or _loads(found):
            raise _Difference(found, expected, "a scalar that is not the same throughout")
        known = self._scalars.setdefault(expected, found)
        if not structural_equal(known, found):
            raise _Difference(found, expected, f"a scalar that was {known} before")

    def _match_load(self, found: PrimExpr, expected: e.ProducerLoad) -> None:
        if not isinstance(found, e.ProducerLoad | BufferLoad):
            raise _Difference(found, expected, "no read of memory")
        tensor = tensor_of(expected)
        if found.dtype != expected.dtype:
            raise _Difference(found, expected, f"{found.dtype} where {expected.dtype} is expected")
        extra = len(found.indices) - tensor.ndim
        if extra < 0:
            raise _Difference(found, expected, f"rank {len(found.indices)}, not {tensor.ndim}")
        dims = self._dims_of(found, tensor.ndim)
        begins: tuple[PrimExpr, ...] = ()
        for dim, index in enumerate(found.indices):
            offset = expected.indices[dims.index(dim)] if dim in dims else e.const(0)
            begin = self._begin(e.subtract(index, offset))
            if begin is None:
                raise _Difference(found, expected, "indices that move in another way")
            begins = (*begins, begin)
        source = found.producer if isinstance(found, e.ProducerLoad) else found.buffer
        known = self._begins.setdefault(tensor, (source, begins))
        self._dims.setdefault(tensor, dims)
        if known[0] is not source and known[0] != source:
            raise _Difference(found, expected, f"{tensor.name} was {known[0].name} before")
        for mine, theirs in zip(begins, known[1], strict=True):
            if not self._prover.can_prove(e.equal(mine, theirs)):
                raise _Difference(found, expected, f"{tensor.name} began elsewhere before")

    def _dims_of(self, found: e.ProducerLoad | BufferLoad, ndim: int) -> tuple[int, ...]:
        """The dimensions of a read that are the intrinsic's: those whose indices move with its axes
        if there are as many, or else the last ones."""
        moving = tuple(
            dim
            for dim, index in enumerate(found.indices)
            if any(var in self._starts for var in free_vars(index))
        )
        return moving if len(moving) == ndim else tuple(range(len(found.indices)))[-ndim:]

    def _begin(self, distance: PrimExpr) -> PrimExpr | None:
        """The distance of a read from the intrinsic's read; None if the distance depends on the
        axes."""
        begin = self._simple(distance)
        if not any(var in self._starts for var in free_vars(begin)):
            return begin
        # Where indices have several dtypes, casts keep equal terms from cancelling.
        start = self._simple(substitute(begin, self._starts))
        return start if self._prover.can_prove(e.equal(begin, start)) else None

    def _region(self, tensor: Tensor) -> Region:
        """The region that the intrinsic reads as `tensor`: as large as `tensor`, since the
        intrinsic may read every element."""
        self._check_coverage(tensor)
        source, begins = self._begins[tensor]
        shape = [self._simple(substitute(each, self._scalars)) for each in tensor.shape]
        extents: list[PrimExpr] = [e.const(1)] * len(begins)
        for dim, extent in zip(self._dims[tensor], shape, strict=True):
            extents[dim] = extent
        return Region(source, begins, tuple(extents))

    def _check_coverage(self, tensor: Tensor) -> None:
        loads = [load for load in _loads(*self._intrin.op.body) if load.producer == tensor]
        for dim, extent in enumerate(tensor.shape):
            bounds = [self._prover.const_int_bound(load.indices[dim]) for load in loads]
            low = min(begin for begin, _ in bounds)
            high = max(end for _, end in bounds)
            size = e.const_int(extent)
            if low != 0 or (size is not None and high + 1 != size):
                raise CompileError(
                    f"{self._where}: expected the intrinsic to read all of {tensor.name}, found "
                    f"that it reads {low} to {high} of {extent} along dimension {dim}: give the "
                    "placeholder the shape that is read"
                )

    def _message(self, found: PrimExpr, expected: PrimExpr, difference: _Difference) -> str:
        lines = [f"{self._where}: expected the intrinsic's computation, found {difference.how}:"]
        for label, whole, part in (
            ("stage:     ", found, difference.found),
            ("intrinsic: ", expected, difference.expected),
        ):
            text = str(whole)
            lines.append(f"    {label}{text}")
            position = text.find(str(part))
            if part is not whole and position >= 0:
                lines.append(" " * (4 + len(label) + position) + "^" * len(str(part)))
        return "\n".join(lines)


_COMMUTATIVE = (e.Add, e.Mul, e.Min, e.Max, e.And, e.Or, e.EQ, e.NE)


def _named(axes: Sequence[IterVar]) -> str:
    return ", ".join(axis.name for axis in axes) or "none"


def _is_index(value: PrimExpr) -> bool:
    """Whether a value consists of axes and sizes alone."""
    return (
        value.dtype.is_integral
        and not value.dtype.is_bool
        and not contains((Call, Reduce), value)
        and not _loads(value)
    )


def _loads(*values: PrimExpr) -> list[Any]:
    return [*find((e.ProducerLoad, BufferLoad), *values)]


# -- Binding buffers ------------------------------------------------------------------------------


@final
@record(eq=False)
class View:
    """A region of a buffer, which stands for a buffer of an intrinsic."""

    buffer: Buffer
    begins: tuple[PrimExpr, ...]
    extents: tuple[PrimExpr, ...]


def bind_buffer(
    place: Buffer, view: View, where: str, scalars: Mapping[Var, PrimExpr] | None = None
) -> dict[Var, PrimExpr]:
    """The values of the variables in the layout of an intrinsic's buffer, when it is a region of
    an actual buffer, and those of the intrinsic's `scalars`.

    Variables that are the dimensions, strides or the offset of `place` get the region's values. The
    region must have all other properties that `place` declares. Dimensions of extent 1 that `place`
    doesn't have are dropped.

    Raises
    ------
    CompileError
        When the dtype, shape, strides, offset, scope or alignment don't fit. The text begins with
        `where`.

    >>> from minitvm.tir.buffer import decl_buffer
    >>> ldw, actual = Var("ldw"), decl_buffer((8, 64), name="B")
    >>> place = decl_buffer((4, 16), name="W", strides=[ldw, 1])
    >>> view = View(actual, (e.const(4), e.const(0)), (e.const(4), e.const(16)))
    >>> bind_buffer(place, view, "C")[ldw]
    64
    """
    text = f"{where}: buffer {place.name} as {_region_text(view)}"
    return _Binding(place, view, text, scalars or {}).run()


def _region_text(view: View) -> str:
    parts = zip(view.begins, view.extents, strict=True)
    return f"{view.buffer.name}[{', '.join(f'{begin}: +{extent}' for begin, extent in parts)}]"


def region_strides(buffer: Buffer) -> tuple[PrimExpr, ...]:
    """The strides of a buffer, in elements."""
    if buffer.strides or not buffer.shape:
        return buffer.strides
    made = [e.const(1, buffer.shape[-1].dtype)]
    for extent in reversed(buffer.shape[1:]):
        made.append(made[-1] * extent)
    return tuple(_simple(stride) for stride in reversed(made))


def kept_dims(view: View, place: Buffer) -> list[int]:
    """The dimensions of a region that are those of an intrinsic's buffer, the last first found; too
    few of them where the region has fewer.

    >>> from minitvm.tir.buffer import decl_buffer
    >>> actual = decl_buffer((8, 12, 64), name="B")
    >>> view = View(actual, (e.const(4), e.const(0), e.const(0)), tuple(map(e.const, (4, 1, 16))))
    >>> kept_dims(view, decl_buffer((4, 16), name="W"))
    [0, 2]
    """
    wanted, kept = [*place.shape], list[int]()
    for dim in reversed(range(len(view.extents))):
        has_others = dim + 1 > len(wanted)
        if not wanted:
            break
        is_dropped = has_others and e.const_int(view.extents[dim]) == 1
        if is_dropped and e.const_int(wanted[-1]) not in (1, None):
            continue
        kept.insert(0, dim)
        wanted.pop()
    return kept


def region_offset(view: View) -> PrimExpr:
    """The offset of a region, in elements, from the first element of its buffer."""
    total: PrimExpr = e.const(0)
    for begin, stride in zip(view.begins, region_strides(view.buffer), strict=True):
        total = total + begin * stride
    return _simple(total)


def _simple(value: PrimExpr) -> PrimExpr:
    return Simplifier(Prover()).expr(value)


class _Binding:
    """The values bound so far for one buffer."""

    def __init__(
        self, place: Buffer, view: View, where: str, scalars: Mapping[Var, PrimExpr]
    ) -> None:
        self._place = place
        self._view = view
        self._kept = kept_dims(view, place)
        self._where = where
        self._values = dict(scalars)

    def run(self) -> dict[Var, PrimExpr]:
        place, actual = self._place, self._view.buffer
        if place.dtype != actual.dtype:
            raise self._error("dtype", str(place.dtype), str(actual.dtype))
        if place.scope not in ("global", actual.scope):
            raise self._error("scope", repr(place.scope), repr(actual.scope))
        self._bind_shape()
        self._bind_strides()
        self._bind_offset()
        alignment = max(actual.data_alignment, actual.dtype.element.itemsize)
        if place.data_alignment > 0 and alignment % place.data_alignment:
            raise self._error(
                "data aligned", f"to {place.data_alignment} bytes", f"{alignment}",
                f"declare {actual.name} with data_alignment={place.data_alignment}, in binds= of "
                "build",
            )  # fmt: skip
        self._values[place.data] = actual.data
        return self._values

    def _error(self, what: str, expected: str, found: str, advice: str = "") -> CompileError:
        text = f"{self._where}: expected {what} {expected}, found {found}"
        return CompileError(f"{text}: {advice}" if advice else text)

    def _bind(self, wanted: PrimExpr, value: PrimExpr) -> bool:
        """Whether `wanted` is, or may be bound to, `value`."""
        if isinstance(wanted, Var) and wanted not in self._values:
            self._values[wanted] = e.cast(wanted.dtype, value)
            return True
        known = substitute(wanted, self._values)
        return Prover().can_prove(e.equal(known, value))

    def _bind_shape(self) -> None:
        extents, place = self._view.extents, self._place
        if len(extents) < place.ndim:
            raise self._error("rank", str(place.ndim), str(len(extents)))
        for dim, extent in enumerate(extents):
            if dim not in self._kept and e.const_int(extent) != 1:
                raise self._error(
                    f"extent 1 along dimension {dim}, which {place.name} has not", "", str(extent)
                )
        for dim, (wanted, kept) in enumerate(zip(place.shape, self._kept, strict=True)):
            if not self._bind(wanted, extents[kept]):
                raise self._error(f"shape[{dim}] ==", str(wanted), str(extents[kept]))

    def _bind_strides(self) -> None:
        place = self._place
        strides = [region_strides(self._view.buffer)[dim] for dim in self._kept]
        extents = [self._view.extents[dim] for dim in self._kept]
        names = ", ".join([f'te.var("s{i}")' for i in range(place.ndim - 1)] + ["1"])
        advice = f"declare the intrinsic's buffer with strides=[{names}]"
        needed: PrimExpr = e.const(1)
        for dim in reversed(range(place.ndim)):
            wanted = place.strides[dim] if place.strides else needed
            needed = needed * extents[dim]
            stands_still = e.const_int(extents[dim]) == 1 and not isinstance(wanted, Var)
            if not stands_still and not self._bind(wanted, strides[dim]):
                layout = "" if place.strides else " (compact memory)"
                expected = f"{_simple(wanted)}{layout}"
                raise self._error(f"strides[{dim}] ==", expected, str(strides[dim]), advice)

    def _bind_offset(self) -> None:
        place, view = self._place, self._view
        if place.elem_offset is None:
            return  # any offset fits, since every access is moved into the region
        offset = region_offset(view)
        if view.buffer.elem_offset is not None:
            offset = _simple(offset + view.buffer.elem_offset)
        if not self._bind(place.elem_offset, offset):
            raise self._error(
                "elem_offset ==", str(place.elem_offset), str(offset),
                f'declare {place.name} with elem_offset=te.var("offset")',
            )  # fmt: skip
        factor = place.offset_factor
        if factor > 1 and not Prover().can_prove(e.equal(e.floormod(offset, factor), 0)):
            raise self._error(
                "an elem_offset that is a multiple of", str(factor), str(offset),
                "split by a multiple of it, or declare a lesser offset_factor",
            )  # fmt: skip


# -- Statements -----------------------------------------------------------------------------------


def on_views(stmt: Stmt, views: Mapping[Buffer, View], values: Mapping[Var, PrimExpr]) -> Stmt:
    """A statement of an intrinsic on actual memory: its buffers are replaced by regions of actual
    buffers, and its variables by their values.

    Before, with ``W = B[yo * 16: +16, 0: +64]``::

        Z[i] = Z[i] + W[i, k] * X[k]
        gemv(access_ptr(W), ldw)

    After::

        C[x, yo * 16 + i] = C[x, yo * 16 + i] + B[yo * 16 + i, k] * A[x, k]
        gemv(access_ptr(B, offset=yo * 1024), 64)

    A buffer passed to a packed function becomes ``tvm_stack_make_array``: its region.
    """
    return _OnViews(views, values).stmt(stmt)


class _OnViews(Substitution):
    def __init__(self, views: Mapping[Buffer, View], values: Mapping[Var, PrimExpr]) -> None:
        super().__init__(values)
        self._views = views

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        view = self._views.get(node.buffer)
        indices = tuple(map(self.expr, node.indices))
        if view is None:
            return BufferLoad(node.buffer, indices)
        return BufferLoad(view.buffer, _moved_indices(view, node.buffer, indices))

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        view = self._views.get(node.buffer)
        indices, value = tuple(map(self.expr, node.indices)), self.expr(node.value)
        if view is None:
            return BufferStore(node.buffer, value, indices)
        return BufferStore(view.buffer, value, _moved_indices(view, node.buffer, indices))

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op == "tvm_access_ptr":
            return self._access_ptr(cast(e.BufferRef, node.args[0]).buffer, *node.args[1:])
        whole = self._region if node.op == "call_packed" else self._access_ptr
        args = [
            whole(arg.buffer)
            if isinstance(arg, e.BufferRef) and arg.buffer in self._views
            else self.expr(arg)
            for arg in node.args
        ]
        return Call(node.dtype, node.op, tuple(args))

    def _access_ptr(self, buffer: Buffer, *given: PrimExpr) -> PrimExpr:
        """The address of an element of a buffer: the first one unless an offset is `given`."""
        offset, extent, mask = map(self.expr, given or _WHOLE)
        view = self._views.get(buffer)
        if view is not None:
            buffer, offset = view.buffer, _simple(region_offset(view) + offset)
        return Call(HANDLE, "tvm_access_ptr", (e.BufferRef(buffer), offset, extent, mask))

    def _region(self, buffer: Buffer) -> PrimExpr:
        view = self._views[buffer]
        kept = kept_dims(view, buffer)
        if kept != [*range(len(view.extents))][len(view.extents) - buffer.ndim :]:
            raise CompileError(
                f"{buffer.name}: expected the last dimensions of {_region_text(view)} for a packed "
                "function: give the function's buffer a dimension for each of them"
            )
        extents = tuple(view.extents[dim] for dim in kept)
        args = (e.BufferRef(view.buffer), *view.begins, *extents)
        return Call(HANDLE, "tvm_stack_make_array", args)


_WHOLE = (e.const(0), e.const(-1), e.const(Buffer.READ | Buffer.WRITE))


def _moved_indices(
    view: View, place: Buffer, indices: tuple[PrimExpr, ...]
) -> tuple[PrimExpr, ...]:
    made = [*view.begins]
    for dim, index in zip(kept_dims(view, place), indices, strict=True):
        made[dim] = _plus(index, view.begins[dim])
    return tuple(made)


def _plus(index: PrimExpr, begin: PrimExpr) -> PrimExpr:
    if isinstance(index, e.Ramp):
        base = e.add(index.base, begin)
        return e.Ramp(base, e.cast(base.dtype, index.stride), index.lanes)
    return e.add(index, begin)


# -- All of it ------------------------------------------------------------------------------------


@final
@record(eq=False)
class Tensorized:
    """The statements of an intrinsic on actual memory, and whether they contain the layout of the
    memory. Statements that do are valid for compact parameters only."""

    body: Stmt
    reduce_init: Stmt | None
    reduce_update: Stmt | None
    knows_layout: bool


def tensorize(
    intrin: TensorIntrin,
    regions: Sequence[View],
    scalars: Mapping[Var, PrimExpr],
    stage: str,
    axis: str,
) -> Tensorized:
    """The statements of `intrin` on regions of memory, one for each of its buffers, and with the
    values of its scalars.

    Raises
    ------
    CompileError
        When a buffer of the intrinsic can't stand for its region: see :func:`bind_buffer`.
    """
    where = f"{stage}: tensorize of {axis} by {intrin.name}"
    values = dict(scalars)
    views = dict(zip(intrin.buffers, regions, strict=True))
    for place, region in views.items():
        for var, value in bind_buffer(place, region, where, scalars).items():
            known = values.setdefault(var, value)
            if known is not value and not Prover().can_prove(e.equal(known, value)):
                raise CompileError(
                    f"{where}: variable {var.name} of the intrinsic's buffers: expected one value, "
                    f"found {known} and {value}: give each buffer variables of its own"
                )
    parts = [
        None if part is None else on_views(part, views, values)
        for part in (intrin.body, intrin.reduce_init, intrin.reduce_update)
    ]
    layout = {v for p in intrin.buffers for v in (*p.strides, p.elem_offset) if isinstance(v, Var)}
    given = [part for part in (intrin.body, intrin.reduce_init, intrin.reduce_update) if part]
    knows_layout = any(
        node in layout if isinstance(node, Var) else _takes_address(node)
        for node in walk_once(*given)
    )
    return Tensorized(cast(Stmt, parts[0]), parts[1], parts[2], knows_layout)


def _takes_address(node: Any) -> bool:
    return isinstance(node, Call) and (
        node.op == "tvm_access_ptr"
        or (node.op != "call_packed" and any(isinstance(a, e.BufferRef) for a in node.args))
    )
