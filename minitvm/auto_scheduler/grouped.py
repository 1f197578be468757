"""Reductions by groups: data name the one result to which each term belongs.

Sums by key, histograms and counts are reductions whose condition equates an index read from memory
with an axis of the results: ``sum(x[p, e], axis=p, where=key[p] == c)``. Each term is computed
once, for its own group, in the order of the terms::

    for each part of p:                  # on all threads
        for p in the part:
            c = key[p]                   # see the pass enter_once
            if c is a group:
                for each vector of e:
                    sums[c, e] += x[p, e]
    S[c, e] = the sums of all parts

Where the lanes of a vector are the groups, comparing each term with all groups costs as little, and
the results stay in registers. So it does for two groups.
"""

from __future__ import annotations

from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import extent_of, is_uneven, product_of_extents
from minitvm.auto_scheduler.few_rows import parts_of_rows, split_in_parts
from minitvm.auto_scheduler.loops import compute_of, write_loops
from minitvm.auto_scheduler.reductions import is_in_order
from minitvm.auto_scheduler.running import lanes_of
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Reduce
from minitvm.tir.functor import mentions

_FEW = 2  # groups with which each term may be compared


def group_of(op: ComputeOp) -> tuple[IterVar, PrimExpr] | None:
    """The axis of the groups of a reduction, and the index that names a term's group."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or is_uneven(op):
        return None
    first = next(conjuncts(reduce.condition))
    if not isinstance(first, e.EQ):
        return None
    for own, key in ((first.a, first.b), (first.b, first.a)):
        var = own.value if isinstance(own, e.Cast) else own
        axis = next((each for each in op.axis if each.var is var), None)
        if axis is None or mentions(axis.var, key):
            continue
        is_read = reads_tensors(key)
        if is_read and any(mentions(each.var, key) for each in op.reduce_axis):
            return axis, key
    return None


def write_grouped(s: Schedule, stage: Stage, target: Target, *, strict: bool) -> bool | None:
    """Schedules a reduction by groups; None for any other, or one of few groups."""
    op = compute_of(stage)
    found = group_of(op)
    if found is None:
        return None
    group, key = found
    groups, lanes = extent_of(group), lanes_of(op, target)
    others = product_of_extents([axis for axis in op.axis if axis is not group])
    is_compared = group is op.axis[-1] or others == 1
    if groups is None or groups <= (lanes if is_compared else _FEW):
        return None  # groups of a symbolic number keep their loop
    choose(s, "strategy", "each term is computed for its own one of {groups} groups, which data "
           "name", stage=stage.name, groups=groups)  # fmt: skip
    place = op.axis.index(group)
    outside = [i for i, axis in enumerate(op.axis) if mentions(axis.var, key)]
    work = product_of_extents([*op.reduce_axis, *(a for a in op.axis if a is not group)])
    parts = 1 if is_in_order(op, strict) else parts_of_rows(op, target)
    is_long = work is not None and work >= 2 * target.task_operations
    tasks: list[IterVar] = []
    if parts > 1 and is_long and not outside:
        choose(s, "blocks", "in {parts} parts of the steps", stage=op.name, parts=parts)
        stage = split_in_parts(s, stage, parts, lanes)
        tasks = [compute_of(stage).axis[0]]
    made = compute_of(stage)
    axes = made.axis[len(tasks) :]
    tasks += [axes[i] for i in outside]
    inside = [axis for i, axis in enumerate(axes) if i not in outside and i != place]
    lane = None
    if inside:
        inside[-1], lane = stage.split(inside[-1], factor=lanes)
    write_loops(stage, [*made.reduce_axis, axes[place], *inside], lane, tasks=tasks)
    return True
