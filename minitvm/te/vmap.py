"""``vmap``: turns a program for one element of a batch into the program for the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.te.autodiff.scatter import Scatter, scatter_of, scattered
from minitvm.te.operation import compute, placeholder
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.rewrite_operations import ReadOthers, map_body
from minitvm.te.tensor import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    data_axes,
    domain_of,
)
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var, described
from minitvm.tir.functor import free_vars, substitute, walk_once

_Indices = tuple[PrimExpr, ...]


def vmap(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor | Var], extent: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Adds one dimension in front of each input, of each stage that needs one of them, and of each
    output::

        C[i] = sum(A[i, k] * B[k])    ->    C[b, i] = sum(A[b, i, k] * B[b, k])

    Other placeholders, and stages that need none of the inputs, are shared by the elements of the
    batch. A batched scan has the new dimension behind its time axis.

    Parameters
    ----------
    outputs
        Tensors that ``compute`` or ``scan`` makes, or adjoints of tensors that are gathered.
    inputs
        The placeholders that get the dimension, and the numbers that differ from element to
        element: a ``te.var`` becomes a placeholder of shape ``(extent,)``.
    extent
        The extent of the dimension: a number or a variable.

    Returns
    -------
    list of Tensor, list of Tensor
        The outputs and the inputs of the new program.

    Raises
    ------
    CompileError
        When an ``extern`` or ``hybrid`` stage needs an input, the extent of an axis depends on one,
        or an output is a placeholder or comes from ``extern``.

    >>> from minitvm import te
    >>> X = te.placeholder((4,), name="X")
    >>> (y,), (x,) = vmap([te.compute((4,), lambda i: X[i] + 1.0, name="Y")], [X], te.var("n"))
    >>> y, x
    (Tensor(shape=[n, 4], op.name=Y), Tensor(shape=[n, 4], op.name=X))
    """
    _check_members("outputs", outputs, Tensor)
    _check_members("inputs", inputs, Tensor | Var)
    order = in_order([each.op for each in outputs])
    batch = _Batch(order, inputs, placeholder((extent,), name="extent").shape[0])
    for op in order:
        batch.add(op)
    for each in outputs:
        if not isinstance(each.op, ComputeOp | ScanOp) and scatter_of(each.op) is None:
            raise CompileError(
                f"vmap: {each.name}: expected an output of te.compute or te.scan, got one of "
                f"{type(each.op).__name__}"
            )
    return [batch.in_front(each) for each in outputs], batch.inputs


def _check_members(what: str, given: object, kind: Any) -> None:
    members = given if isinstance(given, tuple | list) else [None]
    if not members or not all(isinstance(each, kind) for each in members):
        raise CompileError(f"vmap: {what}: expected a list of tensors, got {described(given)}")


@final
class _Batch:
    """The stages of a program with the dimension of a batch, made one after the other.

    The dimension is the first one, but for the stages of a scan, whose first one is time.
    """

    def __init__(
        self, order: Sequence[Operation], inputs: Sequence[Tensor | Var], extent: PrimExpr
    ) -> None:
        self._extent = extent
        self._tensors: dict[Tensor, Tensor] = {}  # with the dimension, at _place
        self._numbers: dict[Var, Tensor] = {}
        self.inputs: list[Tensor] = []
        for each in inputs:
            self.inputs.append(self._input(each))
        self._needing = _needing(order, inputs)
        self._in_scans = _in_scans(order, self._needing)
        self._name_states(order)

    def add(self, op: Operation) -> None:
        """Makes the stage for an operation whose inputs are made, if it needs any."""
        if op not in self._needing or isinstance(op, PlaceholderOp):
            return
        match op:
            case ComputeOp():
                made: Operation = self._computed(op)
            case ScanOp():
                made = self._scanned(op)
            case _ if (sums := scatter_of(op)) is not None and op not in self._in_scans:
                made = self._scattered(op.outputs[0], sums)
            case _:
                raise CompileError(
                    f"vmap: {op.name}: expected stages of te.compute and te.scan, got "
                    f"{type(op).__name__}: write the dimension of the batch yourself"
                )
        self._tensors |= dict(zip(op.outputs, made.outputs, strict=True))

    def in_front(self, tensor: Tensor) -> Tensor:
        """A tensor of the program with the dimension in front."""
        if tensor in self._tensors and not self._place(tensor):
            return self._tensors[tensor]
        return self._copied(tensor, 0)

    def _input(self, given: Tensor | Var) -> Tensor:
        if isinstance(given, Var):
            made = placeholder((self._extent,), given.dtype, given.name)
            self._numbers[given] = made
            return made
        if not isinstance(given.op, PlaceholderOp):
            raise CompileError(f"vmap: {given.name}: expected a placeholder, got a stage")
        made = placeholder((self._extent, *given.shape), given.dtype, given.op.name)
        self._tensors[given] = made
        return made

    def _name_states(self, order: Sequence[Operation]) -> None:
        """Placeholders for the states of the scans that need an input."""
        for op in order:
            if isinstance(op, ScanOp) and op in self._needing:
                for state in op.state_placeholder:
                    shape = (state.shape[0], self._extent, *state.shape[1:])
                    self._tensors[state] = placeholder(shape, state.dtype, state.op.name)

    def _place(self, tensor: Tensor) -> int:
        """The position of the batch dimension: in the stages of a scan it comes behind time."""
        return int(tensor.op in self._in_scans)

    def _axis(self) -> IterVar:
        (axis,) = data_axes(["b"], [self._extent])
        return axis

    def _reading(self, axis: IterVar) -> ReadOthers:
        """The rewriter that lets an expression read the batch element at an axis."""

        def place(tensor: Tensor, indices: _Indices) -> _Indices:
            at = self._place(tensor)
            return (*indices[:at], axis.var, *indices[at:])

        return ReadOthers(self._tensors, place)

    def _computed(self, op: ComputeOp) -> ComputeOp:
        self._check_extents(op)
        axis, place = self._axis(), int(op in self._in_scans)
        reading = self._reading(axis)
        numbers = {number: made(axis.var) for number, made in self._numbers.items()}
        ranges = {each: _with_range(each, reading, numbers) for each in op.reduce_axis}
        body = map_body(op.body, lambda each: reading.expr(substitute(each, numbers)))
        body = map_body(body, lambda each: _with_axes(each, ranges))
        return replace(
            op,
            axis=(*op.axis[:place], axis, *op.axis[place:]),
            reduce_axis=tuple(ranges[each] for each in op.reduce_axis),
            body=body,
        )

    def _scattered(self, tensor: Tensor, sums: Scatter) -> Operation:
        axis = self._axis()
        reading = self._reading(axis)
        numbers = {number: made(axis.var) for number, made in self._numbers.items()}

        def now(node: PrimExpr) -> PrimExpr:
            return reading.expr(substitute(node, numbers))

        loops = (axis, *(_with_range(each, reading, numbers) for each in sums.loops))
        indices = (axis.var, *map(now, sums.indices))
        shape, conditions = (self._extent, *tensor.shape), [*map(now, sums.conditions)]
        return scattered(tensor.op.name, shape, loops, indices, now(sums.value), conditions).op

    def _check_extents(self, op: ComputeOp) -> None:
        """Refuses extents that depend on inputs: all elements of a batch have one shape."""
        for axis in op.axis:
            dom = domain_of(axis)
            for node in walk_once(dom.min, dom.extent):
                source: object = node.producer if isinstance(node, ProducerLoad) else node
                if source in self._tensors or source in self._numbers:
                    raise CompileError(
                        f"vmap: {op.name}: expected elements of one shape, found that the range of "
                        f"axis {axis.var.name} depends on {described(source)}"
                    )

    def _scanned(self, op: ScanOp) -> ScanOp:
        return replace(
            op,
            init=tuple(self._copied(each, 1) for each in op.init),
            update=tuple(self._tensors[each] for each in op.update),
            state_placeholder=tuple(self._tensors[each] for each in op.state_placeholder),
            inputs=tuple(self._tensors.get(each, each) for each in op.inputs),
        )

    def _copied(self, tensor: Tensor, place: int) -> Tensor:
        """A copy with the dimension at a place, also of a tensor that is the same for all
        elements."""
        axis = self._axis()
        names = [f"i{d}" for d in range(tensor.ndim)]
        own = data_axes(names, tensor.shape)
        read = self._reading(axis).expr(tensor(*(each.var for each in own)))
        shape = (*tensor.shape[:place], self._extent, *tensor.shape[place:])
        variables = [each.var for each in (*own[:place], axis, *own[place:])]

        def element(*indices: Any) -> PrimExpr:
            return substitute(read, dict(zip(variables, indices, strict=True)))

        made: Tensor = compute(shape, element, f"{tensor.op.name}_batch")
        return made


def _needing(order: Sequence[Operation], inputs: Iterable[Tensor | Var]) -> set[Operation]:
    """The operations that need an input; for a scan that needs one, also all its stages."""
    given = list(inputs)
    numbers = {each for each in given if isinstance(each, Var)}
    found: set[Operation] = {each.op for each in given if isinstance(each, Tensor)}
    count = -1
    while count != len(found):  # an update is found after its scan
        count = len(found)
        for op in order:
            if any(each.op in found for each in op.input_tensors) or _reads(op, numbers):
                found.add(op)
            if isinstance(op, ScanOp) and op in found:
                found |= {each.op for each in (*op.state_placeholder, *op.update)}
    return found


def _reads(op: Operation, numbers: set[Var]) -> bool:
    """Whether an operation computes with some numbers."""
    if not numbers:
        return False
    match op:
        case PlaceholderOp(shape=shape):
            used = [var for extent in shape for var in free_vars(extent) if var in numbers]
            if used:
                raise CompileError(
                    f"vmap: {op.name}: expected elements of one shape, found that the shape "
                    f"depends on {used[0]}, a number of the batch"
                )
            return False
        case ComputeOp():
            domains = [domain_of(axis) for axis in (*op.axis, *op.reduce_axis)]
            bounds = [bound for dom in domains for bound in (dom.min, dom.extent)]
            return any(each in numbers for each in walk_once(*op.body, *bounds))
    sums = scatter_of(op)
    return sums is not None and any(each in numbers for each in walk_once(*sums.expressions()))


def _in_scans(order: Sequence[Operation], needing: set[Operation]) -> set[Operation]:
    """The scans that depend on the batch, and the stages of their steps."""
    scans = [op for op in order if isinstance(op, ScanOp) and op in needing]
    found: set[Operation] = set(scans)
    for scan in scans:
        found |= {each.op for each in (*scan.state_placeholder, *scan.update)}
    for op in order:
        if any(each.op in found and not isinstance(each.op, ScanOp) for each in op.input_tensors):
            found.add(op)
    return found


def _with_range(axis: IterVar, reading: ReadOthers, numbers: dict[Var, PrimExpr]) -> IterVar:
    """An axis with the range that it has for an element of the batch."""
    dom = domain_of(axis)
    low, extent = (reading.expr(substitute(each, numbers)) for each in (dom.min, dom.extent))
    if low is dom.min and extent is dom.extent:
        return axis
    return replace(axis, dom=Range.from_min_extent(low, extent))


def _with_axes(body: PrimExpr, axes: dict[IterVar, IterVar]) -> PrimExpr:
    """A reduction over other axes; any other expression as it is."""
    if not isinstance(body, Reduce):
        return body
    return replace(body, axis=tuple(axes[each] for each in body.axis))
