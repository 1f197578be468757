"""Elementwise stages without memory of their own: they are computed where they are read.

A stage is inlined if only elementwise stages read it, in order; or if it is so cheap that reading
its elements takes longer than computing them once for each of its readers, sums among them::

    c[i, j] = x[i, j] - mean[i]
    v[i] = sum(c[i, j] * c[i, j], j)
    dw[j] = sum(c[i, j] * dy[i, j], i)

Sums along rows and along columns have no row in common in which `c` could be computed. In memory,
it would be written, and read in place of `x`. A stage of more arithmetic is inlined, too, if only
reductions read it, which compute each element once::

    e[i, j] = (x[i, j] - mean[i]) * x[i, j] * w[j]
    s[j] = sum(e[i, j], i)

A stage that only moves elements becomes part of its readers first. A stage that is read by such a
stage becomes part of it. So loops are chosen for the reads of the elements that are moved::

    t[j, i] = x[i, j]
    m[j] = max(t[j, i], i)               # max(x[i, j], i), along the lines of x
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from minitvm.arith.effects import is_lazy
from minitvm.arith.work import value_operations
from minitvm.auto_scheduler.contraction import (
    FAR,
    NEAR,
    all_loads,
    contraction_of,
    distances_of,
    extent_of,
    is_uneven,
    long_axes,
    only_moves,
    rows_in_common,
    running_axis,
)
from minitvm.auto_scheduler.loops import compute_of
from minitvm.auto_scheduler.sums import is_elementwise, reads_in_order
from minitvm.auto_scheduler.terms import is_long
from minitvm.auto_scheduler.ways import is_plain_reduction
from minitvm.runtime.host import CACHE_LINE
from minitvm.te.schedules.guarded_reads import choices_in, reads_of
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation, Tensor, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.depth import nesting
from minitvm.tir.expr import PrimExpr, ProducerLoad, Var
from minitvm.tir.functor import contains, find, mentions, walk_once
from minitvm.tir.intrinsics import INTRINSICS

_MOST_CHOICES = 64  # lazy ones in the loops of a stage
_MOST_OPERATIONS = 2  # for an element of a cheap stage: they take no longer than a load and a store
_QUICK = (e.Add, e.Mul, e.Min, e.Max)  # operators of reductions, which vectors combine at once
_MOST_AGAIN = 16  # operations that several reductions do again, in place of stores and loads
MOST_LEVELS = 500  # of nested expressions, with those of inlined stages: what walks them recurses
_MOST_IN_CHAIN = 8  # of operations, in a chain of cheap stages: each reader computes all of them


def can_be_inlined(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether a stage should be computed where it is read, in loops that the user didn't
    schedule."""
    if not is_elementwise(stage.op) or _multiplies_choices(s, stage):
        return False
    casts = contains(e.Cast, *compute_of(stage).body)
    is_cheap = _is_cheap(s, stage) or _is_reduced_once(s, stage)
    return all(
        isinstance(each.op, ComputeOp)
        and (
            reads_in_order(each, stage)
            or (
                is_cheap
                and _reads_once_at_most(each, stage)
                and not (casts and contraction_of(each.op))
            )
        )
        and not _is_by_hand(s, each, by_hand)
        for each in s.readers(stage)
    )


def levels_of(s: Schedule, stage: Stage, inlined: Mapping[Stage, int]) -> int:
    """The levels of the nested expressions of an elementwise stage with those that it computes,
    given the levels of `inlined` stages."""
    read = (s[tensor] for tensor in stage.op.input_tensors)
    return max(map(nesting, compute_of(stage).body)) + max(
        (inlined.get(each, 0) for each in read), default=0
    )


def _multiplies_choices(s: Schedule, stage: Stage) -> bool:
    """Whether the stages that would compute a stage would have too many lazy choices. What several
    branches read is computed in each of them, so in a chain of such stages the number of choices
    may double with each stage."""
    if not any(map(is_lazy, walk_once(*compute_of(stage).body))):
        return False
    choices: dict[Operation, int] = {}  # of the stages computed elsewhere, behind those they read
    for each in s.stages:
        if isinstance(each.op, ComputeOp) and (each is stage or each.inlined):
            choices[each.op] = _choices(each.op, choices)
    return any(
        isinstance(each.op, ComputeOp) and _choices(each.op, choices) > _MOST_CHOICES
        for each in s.readers_with_loops(stage)
    )


def _choices(op: ComputeOp, known: Mapping[Operation, int]) -> int:
    """The lazy choices in a stage, with those of the stages that it computes."""
    nodes = [*walk_once(*op.body)]
    read = [each.producer for each in nodes if isinstance(each, ProducerLoad)]
    inside = [known.get(each.op, 0) for each in read if isinstance(each, Tensor)]
    return sum(map(is_lazy, nodes)) + sum(inside)


def becomes_part(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether a stage should become part of the stages that read it, before these are scheduled:
    the stage or its reader only moves elements, and each element is read once at most. What several
    stages read stays, unless rows stay rows."""
    op, readers = stage.op, s.readers(stage)
    if not is_elementwise(op) or not op.axis or not readers:
        return False
    moves = only_moves(op)
    if len(readers) > 1 and not (moves and _keeps_lines(op)):
        return False
    return all(
        isinstance(each.op, ComputeOp)
        and not _is_by_hand(s, each, by_hand)
        and (moves or _is_moved(op, each.op))
        and _reads_once_at_most(each, stage)
        and not is_uneven(each.op)
        and not (each.op.reduce_axis and _chooses_in_pieces(op))
        and _stays_linear(each.op, op)
        and stays_a_reduction(each, lambda tensor: op if tensor.op is op else None)
        for each in readers
    )


def stays_a_reduction(stage: Stage, inlined: Callable[[Tensor], ComputeOp | None]) -> bool:
    """Whether a stage with the values of `inlined` tensors is no contraction with tiles of its own,
    or was one before."""
    before = contraction_of(stage.op)
    after = contraction_of(with_inlined(compute_of(stage), inlined))
    return before is not None or after is None or is_plain_reduction(after)


def _is_moved(op: ComputeOp, reader: ComputeOp) -> bool:
    """Whether a reader only moves the elements of a stage. Long functions are for whole lines."""
    if not only_moves(reader):
        return False
    return _keeps_lines(reader) or not any(map(is_long, walk_once(*op.body)))


def _keeps_lines(op: ComputeOp) -> bool:
    """Whether neighbours along the last axis lie near each other where they are read."""
    distances = [distances_of(each, op) for each in all_loads(op)]
    return all(x.get(axis.var, 0) <= NEAR for axis in long_axes(op.axis)[-1:] for x in distances)


def _reads_once_at_most(reader: Stage, stage: Stage) -> bool:
    """Whether a reader computes with each element of a stage once at most: it reads one element in
    each iteration, and each of its axes decides about the place along one axis of the stage."""
    op = compute_of(reader)
    if running_axis(op) is not None or reader.time is not None:
        return False
    loads = reads_of(op, stage.op.output(0))
    if len(loads) != 1:  # or read by ranges alone
        return False
    axes = {axis.var for axis in long_axes((*op.axis, *op.reduce_axis))}
    used = [{*find(Var, index)} & axes for index in loads[0].indices]
    is_once = set[Var]().union(*used) == axes and all(len(each) <= 1 for each in used)
    return is_once and not contains(ProducerLoad, *loads[0].indices)


def _stays_linear(reader: ComputeOp, op: ComputeOp) -> bool:
    """Whether a reader that computes a stage itself would read the inputs of the stage at linear
    functions of axes. For a reduction, places in memory that are linear functions suffice."""
    made = with_inlined(reader, lambda tensor: op if tensor.op is op else None)
    loads = [each for each in all_loads(made) if each.producer in op.input_tensors]
    indices = [index for each in loads for index in each.indices]
    if not any(isinstance(each, e.FloorDiv | e.FloorMod) for each in walk_once(*indices)):
        return True
    return bool(reader.reduce_axis) and all(
        FAR not in distances_of(each, made).values() for each in loads
    )


def _chooses_in_pieces(op: ComputeOp) -> bool:
    """Whether a choice between elements changes within a few neighbours."""
    last = long_axes(op.axis)[-1:]
    return any(
        (extent_of(axis) or FAR) < CACHE_LINE and _changes(condition, axis.var)
        for axis in last
        for condition, *_ in choices_in(*op.body)
    )


def _is_cheap(s: Schedule, stage: Stage) -> bool:
    """Whether an element takes a read and little arithmetic, together with that of the cheap stages
    that are inlined in it."""
    op, together = compute_of(stage), 0
    while True:
        found = _cheap_operations(op)
        if found is None or found[1] > _MOST_OPERATIONS:
            return op is not stage.op
        together += found[1]
        if together > _MOST_IN_CHAIN:
            return False
        inlined = s.inlined(found[0])
        if inlined is None:
            return True
        op = inlined


def _cheap_operations(op: ComputeOp) -> tuple[Tensor, int] | None:
    """The only tensor that changes along the last axis, and the number of its operations, if they
    are simple ones. A value that doesn't change, such as the mean of a row, is computed once for a
    row and doesn't count."""
    if not op.axis or op.body[0].dtype.bits < 32 or not op.body[0].dtype.is_float:
        return None
    last = (long_axes(op.axis) or op.axis)[-1].var
    along = [each for each in walk_once(*op.body) if _changes(each, last)]
    reads = [each for each in along if isinstance(each, ProducerLoad)]
    if len(reads) != 1 or len(reads[0].indices) != len(op.axis):
        return None
    if rows_in_common(reads[0], op) != len(op.axis):
        return None
    operations = [each for each in along if each is not reads[0] and not isinstance(each, Var)]
    are_simple = all(isinstance(each, e.Add | e.Sub | e.Mul | e.Cast) for each in operations)
    if not are_simple or contains(e.Call, *op.body) or not isinstance(reads[0].producer, Tensor):
        return None
    return reads[0].producer, len(operations)


def _changes(node: object, var: Var) -> bool:
    return isinstance(node, PrimExpr) and mentions(var, node)


def _is_reduced_once(s: Schedule, stage: Stage) -> bool:
    """Whether only reductions read a stage, which compute each of its elements once: in less time
    than a copy in memory takes, which would be stored and read.

    The stage reads elements at its own indices, so that loops are as good for it. Long functions
    take as long in a line of their own where each line is reduced, and are computed once."""
    op, readers = compute_of(stage), s.readers(stage)
    if not all(isinstance(each.op, ComputeOp) and each.op.reduce_axis for each in readers):
        return False
    nodes = [*walk_once(*op.body)]
    are_long = any(map(is_long, nodes))
    calls = any(isinstance(each, e.Call) and each.op in INTRINSICS for each in nodes)
    is_dear = are_long or any(isinstance(each, e.Div) for each in nodes)
    operations = sum(1 for _ in value_operations(*op.body))
    if len(readers) > 1 and (is_dear or operations * len(readers) > _MOST_AGAIN):
        return False
    return _reads_in_place(op) and all(
        is_operator(reduce_of(reduction).combiner, *_QUICK)
        # LLVM makes no vectors of what a function's value is compared with.
        and not (calls and reduction.body[0].dtype != op.body[0].dtype)
        and contraction_of(reduction) is None
        and _reads_once_at_most(each, stage)
        and not (are_long and _reduces_lines(reduction, op))
        and stays_a_reduction(each, lambda tensor: op if tensor.op is op else None)
        for each, reduction in ((each, compute_of(each)) for each in readers)
    )


def _reads_in_place(op: ComputeOp) -> bool:
    """Whether an operation reads all tensors at its axes, in order, or at constants."""
    places = {axis.var: place for place, axis in enumerate(op.axis)}
    for load in all_loads(op):
        indices = [each for each in load.indices if not isinstance(each, e.Constant)]
        found = [places[each] for each in indices if isinstance(each, Var) and each in places]
        if len(found) < len(indices) or sorted({*found}) != found:
            return False
    return True


def _reduces_lines(reader: ComputeOp, op: ComputeOp) -> bool:
    """Whether a reduction has a result for each line of an operation that it reads."""
    loads = reads_of(reader, op.output(0))
    axes = [axis.var for axis in long_axes(reader.reduce_axis)]
    is_along = any(mentions(var, each.indices[-1]) for each in loads for var in axes)
    return is_along and bool(long_axes(reader.axis))


def _is_by_hand(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether a user scheduled the loops in which a stage is computed."""
    stages = s.readers_with_loops(stage) if stage.inlined else (stage,)
    return any(each in by_hand for each in stages)
