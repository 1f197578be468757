"""The statements of each stage at one point of its axes, before any loop is placed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from minitvm.arith.guards import conjuncts
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.rewrite_operations import InlineReads, SpellOut
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, ExternOp, ScanOp, Tensor, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferLoad, IterVar, PrimExpr, Range, Reduce, Var
from minitvm.tir.functor import Mutator, Node, find, replace_buffers, substitute, walk, walk_once
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import (
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    seq,
)
from minitvm.transform.pass_context import PassContext
from minitvm.transform.remove_assertions import without_assertions


@final
@record()
class StageBody:
    """A stage at one point of its axes.

    Attributes
    ----------
    update
        The statement at each point of all axes.
    init
        For a reduction, the statement that stores the initial values at each point of the data
        axes, before `update`.
    reduced_where
        The conditions on the reduction axes that guard `update` and depend on loops alone.
    """

    update: Stmt
    init: Stmt | None = None
    reduced_where: tuple[PrimExpr, ...] = ()


class ReadBuffers(InlineReads):
    """Replaces reads of tensors by reads of their buffers, and of inlined tensors by values."""

    def __init__(self, schedule: Schedule, buffers: Mapping[Tensor, Buffer]) -> None:
        super().__init__(schedule.inlined)
        self._schedule, self._buffers = schedule, buffers

    def read(self, tensor: Tensor, indices: tuple[PrimExpr, ...]) -> PrimExpr:
        # The range of an axis may refer to the original tensor, before any rewrite.
        buffer = self._buffers[self._schedule.now(tensor)]
        stage = self._schedule.stage_map.get(tensor.op)
        return BufferLoad(buffer, indices if stage is None else at_step(stage, buffer, indices))


def body_of(
    stage: Stage,
    read: ReadBuffers,
    buffers: Mapping[Tensor, Buffer],
    condition: PrimExpr | None = None,
) -> StageBody:
    """The statements of a stage on `buffers`; `read` rewrites its reads. `condition` replaces the
    condition of the reduction on its steps.

    Raises
    ------
    CompileError
        When an extern operation stores to one of its inputs.
    """
    match stage.op:
        case ComputeOp() as op:
            return _compute_body(stage, op, read, buffers, condition)
        case ExternOp() as op:
            return StageBody(_extern_body(op, buffers))
        case ScanOp() as op:
            return StageBody(_copied_inits(op, buffers))
    raise e.unknown_node(stage.op, "stage_bodies")


def _extern_body(op: ExternOp, buffers: Mapping[Tensor, Buffer]) -> Stmt:
    """The statement of an extern operation, on the actual buffers."""
    for node in walk_once(op.body):
        if isinstance(node, BufferStore) and node.buffer in op.input_placeholders:
            raise CompileError(
                f"{op.name}: expected stores to the outputs only, found one to input "
                f"{node.buffer.name}"
            )
    places = (*op.input_placeholders, *op.output_placeholders)
    tensors = (*op.inputs, *op.outputs)
    real = {place: buffers[tensor] for place, tensor in zip(places, tensors, strict=True)}
    asserts = PassContext.current().config.program_assertions
    return replace_buffers(op.body if asserts else without_assertions(op.body), real)


def _compute_body(
    stage: Stage,
    op: ComputeOp,
    read: ReadBuffers,
    buffers: Mapping[Tensor, Buffer],
    condition: PrimExpr | None,
) -> StageBody:
    outputs = tuple(buffers[tensor] for tensor in op.outputs)
    indices = at_step(stage, outputs[0], tuple(axis.var for axis in op.axis))
    first = op.body[0]
    if isinstance(first, Reduce):
        made = _reduction(
            first, outputs, indices, read, first.condition if condition is None else condition
        )
    else:
        values = [read.expr(value) for value in op.body]
        made = StageBody(store_all(outputs, values, indices))
    if stage.store_predicate is None:
        return made
    predicate = read.expr(stage.store_predicate)
    return StageBody(IfThenElse(predicate, made.update), made.init, made.reduced_where)


def at_step(stage: Stage, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    """The indices of an element of a stage in its buffer: the buffer of an update holds all
    steps."""
    if stage.time is None or len(buffer.shape) == len(indices):
        return indices
    return (stage.time.var, *indices)


def _reduction(
    reduce: Reduce,
    outputs: tuple[Buffer, ...],
    indices: tuple[PrimExpr, ...],
    read: ReadBuffers,
    condition: PrimExpr,
) -> StageBody:
    """The initial values, and the statement that combines a source into them."""
    combiner = reduce.combiner
    start = [read.expr(value) for value in reduce.init or combiner.identity]
    bound: list[tuple[Var, PrimExpr]] = []
    combined = tuple(read.expr(result) for result in combiner.result)
    mapping: dict[Var, PrimExpr] = {}

    def bind(var: Var, value: PrimExpr, by_name: bool) -> None:
        if by_name:
            bound.append((Var(var.name, var.dtype), value))
            value = bound[-1][0]
        mapping[var] = value

    # A choice may leave out a partial result. It is read all the same, by a name outside of the
    # choice, since reads of partial results have no guards.
    has_choice = any(map(_is_choice, walk_once(*combined)))
    for var, buffer in zip(combiner.lhs, outputs, strict=True):
        bind(var, BufferLoad(buffer, indices), has_choice)
    for var, source in zip(combiner.rhs, reduce.source, strict=True):
        # A source is computed once.
        bind(var, read.expr(source), has_choice or _uses(combined, var) > 1)
    results = [substitute(result, mapping) for result in combined]
    update = store_all(outputs, results, indices)
    for name, value in reversed(bound):
        update = LetStmt(name, value, update)
    guards: list[PrimExpr] = []
    conditions: list[PrimExpr] = []
    for each in conjuncts(read.expr(condition)):
        is_guard = is_likely(each) and not reads_of(each)
        (guards if is_guard else conditions).append(each)
    for condition in reversed(conditions):
        if not isinstance(condition, e.IntImm):
            update = IfThenElse(condition, update)
        elif not condition.value:
            update = seq()
    return StageBody(update, store_all(outputs, start, indices), tuple(guards))


def reads_of(*nodes: Stmt | PrimExpr) -> list[BufferLoad]:
    """Every read in some statements or expressions, with names replaced by their values."""
    spelling = SpellOut()
    made: list[Node] = [
        spelling.expr(node) if isinstance(node, PrimExpr) else spelling.stmt(node) for node in nodes
    ]
    return [*find(BufferLoad, *made, *spelling.values)]


def _is_choice(node: object) -> bool:
    return isinstance(node, e.Call) and node.op == "if_then_else"


def _uses(results: tuple[PrimExpr, ...], var: Var) -> int:
    return sum(node is var for result in results for node in walk(result))


def store_all(
    outputs: tuple[Buffer, ...], values: list[PrimExpr], indices: tuple[PrimExpr, ...]
) -> Stmt:
    """One store for each output; several values are all computed before the first is stored."""
    if len(outputs) == 1:
        return BufferStore(outputs[0], values[0], indices)
    names = [Var(f"{buffer.name}.value", buffer.dtype) for buffer in outputs]
    stores = (
        BufferStore(buffer, name, indices) for buffer, name in zip(outputs, names, strict=True)
    )
    body = seq(*stores)
    for name, value in zip(reversed(names), reversed(values), strict=True):
        body = LetStmt(name, value, body)
    return body


# -- Plain loops ----------------------------------------------------------------------------------

_INIT, _UPDATE = "init", "update"


def plain_nest(
    stage: Stage,
    body: StageBody,
    read: ReadBuffers,
    domain: Callable[[IterVar], Range],
    times: Range | None = None,
) -> Stmt:
    """The stage in serial loops over its root axes with their ranges, `domain`, its two parts
    marked for :func:`marked_parts`. `times` is the range of time in a scan."""
    if not isinstance(stage.op, ComputeOp):
        return body.update
    update = body.update
    for condition in reversed(body.reduced_where):
        update = IfThenElse(condition, update)
    inner = loops(stage.op.reduce_axis, _marked(_UPDATE, update), read.expr, domain)
    if body.init is not None:
        inner = seq(_marked(_INIT, body.init), inner)
    if times is None:
        return loops(stage.op.axis, inner, read.expr)
    if stage.time is None:
        inner = loops(stage.op.axis[1:], inner, read.expr)
        time = stage.op.axis[0].var
    else:
        inner = loops(stage.op.axis, inner, read.expr)
        time = stage.time.var
    return For(
        time, e.cast(time.dtype, times.min), e.cast(time.dtype, times.extent), ForKind.SERIAL, inner
    )


def loops(
    axes: tuple[IterVar, ...],
    body: Stmt,
    made: Callable[[PrimExpr], PrimExpr],
    domain: Callable[[IterVar], Range] = domain_of,
) -> Stmt:
    """`body` in a serial loop for each axis, the first outermost."""
    for axis in reversed(axes):
        dtype, range_ = axis.var.dtype, domain(axis)
        begin, extent = made(range_.min), made(range_.extent)
        body = For(axis.var, e.cast(dtype, begin), e.cast(dtype, extent), ForKind.SERIAL, body)
    return body


def _marked(part: str, body: Stmt) -> Stmt:
    return AttrStmt(None, part, e.const(1), body)


def without_marks(nest: Stmt) -> Stmt:
    """A plain nest without the marks around its parts."""
    return _Unmark().stmt(nest)


def _copied_inits(op: ScanOp, buffers: Mapping[Tensor, Buffer]) -> Stmt:
    """The first parts of a scan, copied where they aren't computed in place."""
    copies = []
    for tensor, init in zip(op.outputs, op.init, strict=True):
        source, target = buffers[init], buffers[tensor]
        if source is target:
            continue
        axes = data_axes([f"{init.name}.i{i}" for i in range(init.ndim)], init.shape)
        at = tuple(axis.var for axis in axes)
        copies.append(loops(axes, BufferStore(target, BufferLoad(source, at), at), lambda x: x))
    return seq(*copies)


class _Unmark(Mutator):
    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.node is None and node.attr_key in (_INIT, _UPDATE):
            return self.stmt(node.body)
        return self.descend(node)


def marked_parts(nest: Stmt) -> dict[str, Stmt]:
    """The marked parts of a plain nest, with the checks that were put around their statements."""
    return {
        node.attr_key: node.body
        for node in walk_once(nest)
        if isinstance(node, AttrStmt) and node.node is None and node.attr_key in (_INIT, _UPDATE)
    }
