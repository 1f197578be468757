"""Sums by phases: each remainder of a place, on which the terms depend, has a loop nest of its own.

The gradient of a convolution with a stride, and a transposed convolution, sum over other weights at
even places than at odd ones. In one loop over all places, the weights change from lane to lane.
Each phase alone is a dense sum::

    Y[i] = sum(D[i // 2 + k] * W[i % 2 + 2 * k], k, where=i % 2 + 2 * k < 3)

    for r in (0, 1):                                   # a loop around all others
        for q:
            P[r, q] = sum(D[q + k] * W[r + 2 * k], k, where=r + 2 * k < 3)
    for i:
        Y[i] = P[i % 2, i // 2]

The loops over k are clipped for each phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import extent_of, factors_of
from minitvm.auto_scheduler.loops import cached, compute_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, Reduce
from minitvm.tir.functor import walk_once

_FEWEST = 4  # places of a phase, from which on phases are worth the copy that interleaves them


def write_phases(s: Schedule, stage: Stage) -> list[Stage] | None:
    """Lets another stage compute the elements of each phase; returns it. None for a stage whose
    terms don't depend on remainders of its places."""
    op = compute_of(stage)
    periods = _periods(op)
    if not any(periods):
        return None
    choose(s, "phases", "computed for each remainder of {axes}, and interleaved", stage=stage.name,
           axes=" and ".join(f"{axis.name} % {period}" for axis, period
                             in zip(op.axis, periods, strict=True) if period))  # fmt: skip
    phases = cached(s, stage, "global")

    def layout(*indices: Any) -> list[Any]:
        pairs = list(zip(indices, periods, strict=True))
        remainders = [index % period for index, period in pairs if period]
        return remainders + [index // period if period else index for index, period in pairs]

    phases.transform_layout(layout)
    phases.simplify()
    return [phases]


def _periods(op: ComputeOp) -> Sequence[int]:
    """For each axis, the number of phases of its sums; 0 for an axis without phases."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or reduce.init:
        return ()
    return [_period(op, reduce, axis) for axis in op.axis]


def _period(op: ComputeOp, reduce: Reduce, axis: IterVar) -> int:
    extent = extent_of(axis)
    places = [*_places_of(axis, *reduce.source, reduce.condition)]
    divisors = {e.const_int(each.b) for each in places}
    period = divisors.pop() if len(divisors) == 1 else None
    if period is None or period < 2 or extent is None or extent < period * _FEWEST:
        return 0
    return period if _chooses_terms(op, reduce, axis) else 0


def _chooses_terms(op: ComputeOp, reduce: Reduce, axis: IterVar) -> bool:
    """Whether the remainder chooses terms: a condition depends on it, or a read whose element is
    the same for all quotients."""
    kinds = [{*map(type, _places_of(axis, *x.load.indices))} for x in factors_of(op)]
    others = {*map(type, _places_of(axis, reduce.condition))}
    return e.FloorMod in others or {e.FloorMod} in kinds


def _places_of(axis: IterVar, *nodes: PrimExpr) -> Iterator[e.FloorDiv | e.FloorMod]:
    """The quotients and remainders of places along an axis in expressions."""
    for node in walk_once(*nodes):
        if isinstance(node, e.FloorDiv | e.FloorMod) and _is_place(node.a, axis):
            yield node


def _is_place(node: PrimExpr, axis: IterVar) -> bool:
    """Whether an expression is an axis plus a constant."""
    terms = Prover().affine(node).terms
    return len(terms) == 1 and terms.get(axis.var) == 1
