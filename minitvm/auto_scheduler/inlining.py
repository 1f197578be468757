"""Elementwise stages without memory of their own: they are computed where they are read.

A stage is inlined if only elementwise stages read it, in order; or if it is so cheap that reading
its elements takes longer than computing them once for each of its readers, sums among them::

    c[i, j] = x[i, j] - mean[i]
    v[i] = sum(c[i, j] * c[i, j], j)
    dw[j] = sum(c[i, j] * dy[i, j], i)

Sums along rows and along columns have no row in common in which `c` could be computed. In memory,
it would be written, and read in place of `x`.
"""

from __future__ import annotations

import operator
from collections.abc import Container

from minitvm.auto_scheduler.contraction import all_loads, extent_of
from minitvm.auto_scheduler.loops import compute_of
from minitvm.auto_scheduler.running import running_axis
from minitvm.auto_scheduler.sums import is_elementwise, reads_in_order
from minitvm.auto_scheduler.terms import is_long
from minitvm.te.schedules.guarded_reads import reads_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, ProducerLoad, Var
from minitvm.tir.functor import contains, mentions, walk_once

_MOST_OPERATIONS = 2  # for an element of a cheap stage: they take no longer than a load and a store


def can_be_inlined(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether a stage should be computed where it is read, in loops that the user didn't
    schedule."""
    if not is_elementwise(stage.op):
        return False
    is_cheap = _is_cheap(compute_of(stage))
    return all(
        isinstance(each.op, ComputeOp)
        and (reads_in_order(each, stage) or (is_cheap and _reads_each_once(each, stage)))
        and not _is_by_hand(s, each, by_hand)
        for each in s.readers(stage)
    )


def calls_functions(s: Schedule, stage: Stage) -> bool:
    """Whether a stage, or a stage inlined in it, calls functions such as exp, whose code is
    long."""
    op = compute_of(stage)
    inlined = (s[tensor] for tensor in op.input_tensors if s[tensor].inlined)
    return any(map(is_long, walk_once(*op.body))) or any(calls_functions(s, x) for x in inlined)


def _reads_each_once(reader: Stage, stage: Stage) -> bool:
    """Whether each element of a stage is read in one iteration of its reader alone."""
    op = compute_of(reader)
    if running_axis(op) is not None or reader.time is not None:
        return False
    places = [each.indices for each in reads_of(op, stage.op.output(0))]
    used = set(places[0])
    axes = (*op.axis, *op.reduce_axis)
    return (
        all(all(map(operator.is_, place, places[0])) for place in places)
        and len(used) == len(places[0])
        and used <= {axis.var for axis in axes}
        and all(axis.var in used or extent_of(axis) == 1 for axis in axes)
    )


def _is_cheap(op: ComputeOp) -> bool:
    """Whether an element takes a read and little arithmetic. A value that doesn't change along the
    last axis, such as the mean of a row, is computed once for a row and doesn't count."""
    if not op.axis or op.body[0].dtype.bits < 32 or not op.body[0].dtype.is_float:
        return False
    axes = [axis.var for axis in op.axis]
    along = [each for each in walk_once(*op.body) if _changes(each, axes[-1])]
    reads = [each for each in along if isinstance(each, ProducerLoad)]
    if len(reads) != 1 or len(reads[0].indices) != len(axes):
        return False
    if not all(map(operator.is_, reads[0].indices, axes)):
        return False
    operations = [each for each in along if each is not reads[0] and not isinstance(each, Var)]
    return (
        len(operations) <= _MOST_OPERATIONS
        and all(isinstance(each, e.Add | e.Sub | e.Mul) for each in operations)
        and not contains(e.Call, *op.body)
        and len({each.dtype for each in all_loads(op)} | {op.body[0].dtype}) == 1
    )


def _changes(node: object, var: Var) -> bool:
    return isinstance(node, PrimExpr) and mentions(var, node)


def _is_by_hand(s: Schedule, stage: Stage, by_hand: Container[Stage]) -> bool:
    """Whether a user scheduled the loops in which a stage is computed."""
    if stage.inlined:
        return any(_is_by_hand(s, each, by_hand) for each in s.readers(stage))
    return stage in by_hand
