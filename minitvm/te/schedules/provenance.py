"""The provenance of a function: the records of :mod:`minitvm.tir.provenance`, from a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

from minitvm.arith.accesses import step_of
from minitvm.arith.work import named_operations, value_operations
from minitvm.te.schedules.operation_graph import in_order, multiplied_reads
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, domain_of
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import Add, IterVar, Mul, PrimExpr, ProducerLoad, Reduce, Var, const
from minitvm.tir.functor import children, free_vars, substitute, walk_leaves_first
from minitvm.tir.provenance import Kind, Origin, StageWork, Work

_Extents = tuple[PrimExpr, ...]
_Counts = Counter[tuple[Kind, frozenset[Var]]]
_Needs = dict[int, frozenset[Var]]


def origin_of(schedule: Schedule) -> Origin:
    """The origin of the loops of a schedule."""
    unread = {each.origin_op for each in schedule.stages if each.inlined and not each.is_read}
    stages = stage_works(schedule.calls.outputs, unread)
    if schedule.is_as_chosen:
        how = (
            "by hand, the rest by auto_schedule"
            if schedule.chosen.start > 1
            else "by auto_schedule"
        )
        versions = [(condition, tuple(each.choices)) for condition, each in schedule.versions]
        return Origin(stages, how, tuple(schedule.choices), tuple(versions))
    return Origin(stages, "by hand" if schedule.is_touched else "not", ())


def stage_works(
    outputs: Iterable[Operation], unread: Container[Operation] = ()
) -> tuple[StageWork, ...]:
    """The work of all stages that `outputs` need; none for those of `unread`, which a schedule
    computes nowhere.

    >>> from minitvm import te
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 16), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> (stage,) = stage_works([C.op])
    >>> [(each.kind, each.number, each.extents) for each in stage.work]
    [(('float32',), 2, (8, 16, 4))]
    """
    computed = (op for op in in_order(outputs) if not isinstance(op, PlaceholderOp))
    return tuple(_stage_work(op, is_computed=op not in unread) for op in computed)


def _stage_work(op: Operation, *, is_computed: bool) -> StageWork:
    if isinstance(op, ComputeOp) and not is_computed:
        return StageWork(op.name, _extents(op.axis), _extents(op.reduce_axis), ())
    if isinstance(op, ComputeOp):
        needs = _needs(_sources(op), op)
        work, named = _works(_counts(op, needs), op), _works(_named(op, needs), op)
        return StageWork(op.name, _extents(op.axis), _extents(op.reduce_axis), work, named)
    # The steps of a scan are stages of their own; the body of an extern operation is loops.
    return StageWork(op.name, op.output(0).shape, (), None if isinstance(op, ExternOp) else ())


def _extents(axes: Iterable[IterVar]) -> _Extents:
    return tuple(domain_of(axis).extent for axis in axes)


def _works(counts: _Counts, op: ComputeOp) -> tuple[Work, ...]:
    """Counted operations as work, with the extents of the axes on which they depend."""
    return tuple(
        Work(kind, number, _repeats([axis for axis in _axes(op) if axis.var in needed]))
        for (kind, needed), number in counts.items()
    )


def _axes(op: ComputeOp) -> tuple[IterVar, ...]:
    return (*op.axis, *op.reduce_axis)


def _sources(op: ComputeOp) -> tuple[PrimExpr, ...]:
    """The values that a stage computes: its elements, and the terms of reductions before they are
    combined."""
    first = op.body[0]
    return (*first.source, first.condition) if isinstance(first, Reduce) else op.body


def _counts(op: ComputeOp, needs: _Needs) -> _Counts:
    """The arithmetic operations of a stage, by their kind and by the axes on which they depend."""
    counts: _Counts = Counter()
    narrow = _narrow(op)
    body = op.body
    if isinstance(body[0], Reduce):
        everywhere = frozenset(axis.var for axis in _axes(op))
        for kind, node in value_operations(*body[0].combiner.result):
            counts[narrow or kind, everywhere] += node.dtype.lanes
        body = body[0].source
    for kind, node in value_operations(*body):
        counts[narrow or kind, needs[id(node)]] += node.dtype.lanes
    return counts


def _named(op: ComputeOp, needs: _Needs) -> _Counts:
    """The operations of a stage on values, by name and by the axes on which they depend. A sum of
    products multiplies and adds at once."""
    counts: _Counts = Counter()
    body, reduce = _sources(op), op.body[0]
    if isinstance(reduce, Reduce):
        everywhere = frozenset(axis.var for axis in _axes(op))
        combiner, first = reduce.combiner, reduce.source[0]
        is_sum = len(combiner.result) == 1 and is_operator(combiner, Add)
        if is_sum and isinstance(first, Mul):
            counts["multiply-adds", everywhere] += first.dtype.lanes
            body = (first.a, first.b, reduce.condition)
        else:
            operands = frozenset((*combiner.lhs, *combiner.rhs))
            for name, node in named_operations(*combiner.result, values=operands):
                counts[name, everywhere] += node.dtype.lanes
    for name, node in named_operations(*body):
        if not isinstance(node, ProducerLoad):
            counts[name, needs[id(node)]] += node.dtype.lanes
    return counts


def _needs(roots: Iterable[PrimExpr], op: ComputeOp) -> _Needs:
    """For each node the axes on which its value depends, and the axes on which the ranges of these
    depend."""
    own = [axis.var for axis in _axes(op)]
    axes: dict[Var, frozenset[Var]] = {}
    for axis in _axes(op):  # an axis before the axes whose ranges depend on it
        range_ = domain_of(axis)
        used = {*free_vars(range_.min), *free_vars(range_.extent)}
        axes[axis.var] = frozenset({axis.var}).union(*(axes[var] for var in own if var in used))
    made: dict[int, frozenset[Var]] = {}
    for node in walk_leaves_first(*roots):
        if isinstance(node, Var):
            made[id(node)] = axes.get(node, frozenset())
        else:
            made[id(node)] = frozenset().union(*(made[id(child)] for child in children(node)))
    return made


def _repeats(axes: Sequence[IterVar]) -> _Extents:
    """Extents whose product is the number of iterations of some axes together.

    A range that grows linearly along another axis, as ``i + 1`` does, counts with the mean of its
    first and last length. For a range whose length is read from data, a name stands for the sum of
    the lengths.
    """
    extents = {axis.var: domain_of(axis).extent for axis in axes}
    made: list[PrimExpr] = []
    for var in reversed(extents):
        extent = extents[var]
        around = [each for each in free_vars(extent) if each in extents and each is not var]
        if not around:
            made.append(extent)
            continue
        outer = around[-1]
        size, begin = extents[outer], domain_of(next(x for x in axes if x.var is outer)).min
        is_even = not any(isinstance(each, ProducerLoad) for each in walk_leaves_first(extent))
        if is_even and len(around) == 1 and step_of(extent, outer) is not None:
            ends = (begin, begin + size - 1)
            first, last = (substitute(extent, {outer: each}) for each in ends)
            made.append(size * (first + last) // 2)
        else:
            made.append(Var(f"sum over {', '.join(x.name for x in around)} of {extent}"))
        for each in around:
            extents[each] = const(1, each.dtype)
    return tuple(reversed(made))


def _narrow(op: ComputeOp) -> tuple[str, ...] | None:
    """The dtypes of products of two narrow elements that are summed in a wide one."""
    dtypes = [str(load.dtype) for load in multiplied_reads(op)]
    total = str(op.body[0].dtype)
    return (*dtypes, total) if dtypes and {*dtypes} != {total} else None
