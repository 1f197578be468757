"""Stages that read the same elements in the same loops are computed together, in one pass.

::

    for i: for k: A[i] += x[i, k]                 for i:
    for i: for k: B[i] += x[i, k] * y[i, k]           for k:
                                                          A[i] += x[i, k]
                                                          B[i] += x[i, k] * y[i, k]

So is a stage whose only reader has the same loops and reads each element where it stores its own::

    for i: m[i] = 0.9 * M[i] + 0.1 * G[i]         for i:
    for i: P[i] = p[i] - m[i]                         m[i] = 0.9 * M[i] + 0.1 * G[i]
                                                      P[i] = p[i] - m[i]

Loops are the same if they come from axes of the same extents by the same splits and fusions. That
is asked after loops were chosen for each stage by itself, and each stage keeps them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import TypeAlias, final

from minitvm.arith.atoms import structural_key
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import all_loads, long_axes
from minitvm.auto_scheduler.loops import compute_of
from minitvm.auto_scheduler.rows import computes_all, readers_of
from minitvm.auto_scheduler.some_sizes import may_vary
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.te.schedules.relation import Fuse, Rebase, Split
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir.expr import IterVar, Var
from minitvm.tir.functor import substitute
from minitvm.tir.stmt import ForKind

_MOST = 4  # reductions in the same loops: results of more don't stay in registers
_AT_RUN_TIME = (ForKind.SERIAL, ForKind.PARALLEL)
_Key: TypeAlias = tuple[Hashable, ...]


def write_shared_loops(s: Schedule, stages: Collection[Stage]) -> bool | None:
    """Lets stages share the loops of their readers, or of others that read the same; None where
    none does."""
    inside = _write_in_readers(s, stages)
    found: list[list[_Loops]] = []
    for stage in s.stages:
        loops = _loops_of(s, stage) if stage in stages and stage not in inside else None
        if loops is None:
            continue
        group = next((each for each in found if _fits(s, loops, each, found)), None)
        if group is None:
            found.append([loops])
            continue
        first = group[0]
        choose(stage, "place", "computed in the loops of {first}, which reads the same",
               first=first.stage)  # fmt: skip
        stage.compute_with(first.stage, first.scope)
        group.append(loops)
    return bool(inside) or any(len(each) > 1 for each in found) or None


def _write_in_readers(s: Schedule, stages: Collection[Stage]) -> set[Stage]:
    """Computes elementwise stages in the loops of their only reader; returns them."""
    found = {each: loops for each in stages if (loops := _loops_of(s, each)) is not None}
    made: set[Stage] = set()
    for stage, loops in found.items():
        op = compute_of(stage)
        readers = () if op.reduce_axis else tuple(readers_of(s, stage))
        theirs = found.get(readers[0]) if len(readers) == 1 else None
        if theirs is None or theirs.key != loops.key or len(long_axes(op.axis)) != 1:
            continue  # elements of several rows are no range of loops
        reader = theirs.stage
        if not computes_all(s, stage, compute_of(reader).axis):
            continue
        choose(stage, "place", "computed in the loops of {reader}, which reads it element by "
               "element", reader=reader)  # fmt: skip
        stage.compute_at(reader, theirs.scope)
        made.add(stage)
    return made


@final
@record()
class _Loops:
    """The loops of a reduction.

    Attributes
    ----------
    stage
        Its stage.
    key
        What is equal for loops that are the same.
    scope
        The innermost that is a loop at run time.
    reads
        The elements that are read in an iteration, in terms of the places of the axes.
    """

    stage: Stage
    key: _Key
    scope: IterVar
    reads: frozenset[Hashable]


def _fits(
    s: Schedule, loops: _Loops, group: Sequence[_Loops], groups: Sequence[Sequence[_Loops]]
) -> bool:
    """Whether a reduction may be computed with others, and shares a read with the first of them."""
    first = group[0]
    if loops.key != first.key or len(group) >= _MOST or first.reads.isdisjoint(loops.reads):
        return False
    mine = {each.stage for each in group} | {loops.stage}
    place = loops.stage.attach_stage, loops.stage.attach_ivar
    here = {
        each.stage: [x.stage for x in other]
        for other in groups
        if other is not group and (other[0].stage.attach_stage, other[0].stage.attach_ivar) == place
        for each in other
    }
    # None reads another, nor is another stage, with those that share its loops, computed between.
    return s.consumed_by(mine, lambda stage: here.get(stage, ())).isdisjoint(mine)


def _loops_of(s: Schedule, stage: Stage) -> _Loops | None:
    """The loops of a reduction that may be shared; None for any other stage."""
    op = stage.op
    if not isinstance(op, ComputeOp) or stage.inlined:
        return None
    if stage.accumulates is not None or stage.time is not None or stage.store_predicate is not None:
        return None
    if stage.with_stage is not None or any(each.with_stage is stage for each in s.stages):
        return None
    is_part = not op.reduce_axis and stage.attach_stage is not None
    if is_part and any(map(may_vary, op.axis)):
        return None  # the extents of the part that a reader needs are computed for each stage
    keys = _keys_of(stage, op)
    if keys is None:
        return None
    attrs = [stage.attrs_of(leaf) for leaf in stage.leaf_iter_vars]
    if any(each.intrin or each.thread or each.pragmas or each.prefetches for each in attrs):
        return None
    pairs = zip(stage.leaf_iter_vars, attrs, strict=True)
    shared = [leaf for leaf, _ in takewhile(lambda pair: pair[1].kind in _AT_RUN_TIME, pairs)]
    if not shared:
        return None
    loops = tuple(
        (keys[leaf], each.kind) for leaf, each in zip(stage.leaf_iter_vars, attrs, strict=True)
    )
    # The variables of places for those of the axes.
    axes = [axis.var for axis in (*op.axis, *op.reduce_axis)]
    places = {var: place_of(i, var.dtype) for i, var in enumerate(axes)}
    loads = all_loads(with_inlined(op, s.inlined))
    reads = frozenset(structural_key(substitute(each, places)) for each in loads)
    return _Loops(stage, (stage.attach_stage, stage.attach_ivar, loops), shared[-1], reads)


def _keys_of(stage: Stage, op: ComputeOp) -> Mapping[IterVar, _Key] | None:
    """A key for each axis and each loop, of where it comes from; None where that isn't known."""
    keys: dict[IterVar, _Key] = {}
    for place, axis in enumerate((*op.axis, *op.reduce_axis)):
        dom = domain_of(axis)
        is_data = place < len(op.axis)
        keys[axis] = place, is_data, structural_key(dom.min), structural_key(dom.extent)
    for relation in stage.relations:
        match relation:
            case Split(parent, outer, inner, factor, nparts):
                key = "split", keys[parent], structural_key(factor), structural_key(nparts)
                keys[outer], keys[inner] = ("outer", *key), ("inner", *key)
            case Fuse(outer, inner, fused):
                keys[fused] = "fuse", keys[outer], keys[inner]
            case Rebase(parent, rebased):
                keys[rebased] = keys[parent]
            case _:
                return None
    return keys


@cache
def place_of(number: int, dtype: DType) -> Var:
    """The variable that stands for the axis at a place in all operations."""
    return Var(f"axis{number}", dtype)
