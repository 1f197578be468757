"""The provenance of a function: the records of :mod:`minitvm.tir.provenance`, from a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

from minitvm.arith.work import value_operations
from minitvm.te.schedules.operation_graph import factors_of, in_order
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, domain_of
from minitvm.tir.expr import IterVar, PrimExpr, Reduce, Var
from minitvm.tir.functor import children, walk_leaves_first
from minitvm.tir.provenance import Kind, Origin, StageWork, Work

_Extents = tuple[PrimExpr, ...]


def origin_of(schedule: Schedule) -> Origin:
    """The origin of the loops of a schedule."""
    stages = stage_works(schedule.calls.outputs)
    if schedule.is_as_chosen:
        how = (
            "by hand, the rest by auto_schedule"
            if schedule.chosen.start > 1
            else "by auto_schedule"
        )
        return Origin(stages, how, tuple(schedule.choices))
    return Origin(stages, "by hand" if schedule.is_touched else "not", ())


def stage_works(outputs: Iterable[Operation]) -> tuple[StageWork, ...]:
    """The work of all stages that `outputs` need.

    >>> from minitvm import te
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 16), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> (stage,) = stage_works([C.op])
    >>> [(each.kind, each.number, each.extents) for each in stage.work]
    [(('float32',), 2, (8, 16, 4))]
    """
    computed = (op for op in in_order(outputs) if not isinstance(op, PlaceholderOp))
    return tuple(map(_stage_work, computed))


def _stage_work(op: Operation) -> StageWork:
    if isinstance(op, ComputeOp):
        work = tuple(_work(op))
        return StageWork(op.name, _extents(op.axis), _extents(op.reduce_axis), work)
    # The steps of a scan are stages of their own; the body of an extern operation is loops.
    return StageWork(op.name, op.output(0).shape, (), None if isinstance(op, ExternOp) else ())


def _extents(axes: Iterable[IterVar]) -> _Extents:
    return tuple(domain_of(axis).extent for axis in axes)


def _work(op: ComputeOp) -> Iterator[Work]:
    """The arithmetic operations of a stage, grouped by their kind and by the axes on which they
    depend."""
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    counts: Counter[tuple[Kind, frozenset[Var]]] = Counter()
    narrow = _narrow(op)
    body = op.body
    if isinstance(body[0], Reduce):
        everywhere = frozenset(axes)
        for kind, node in value_operations(*body[0].combiner.result):
            counts[narrow or kind, everywhere] += node.dtype.lanes
        body = body[0].source
    needs = _needs(body, axes)
    for kind, node in value_operations(*body):
        counts[narrow or kind, needs[id(node)]] += node.dtype.lanes
    for (kind, needed), number in counts.items():
        yield Work(kind, number, _extents(axes[var] for var in axes if var in needed))


def _needs(roots: Iterable[PrimExpr], axes: Container[Var]) -> dict[int, frozenset[Var]]:
    """The axes that the value of each node depends on."""
    made: dict[int, frozenset[Var]] = {}
    for node in walk_leaves_first(*roots):
        if isinstance(node, Var):
            made[id(node)] = frozenset({node}) if node in axes else frozenset()
        else:
            made[id(node)] = frozenset().union(*(made[id(child)] for child in children(node)))
    return made


def _narrow(op: ComputeOp) -> tuple[str, ...] | None:
    """The dtypes of products of two narrow elements that are summed in a wide one."""
    dtypes = [str(load.dtype) for load in factors_of(op)]
    total = str(op.body[0].dtype)
    return (*dtypes, total) if dtypes and {*dtypes} != {total} else None
