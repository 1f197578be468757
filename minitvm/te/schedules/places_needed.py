"""The elements of each step of a scan that its later steps, or the readers of its last one, read.

The steps of a scan may read neighbours, as those of a tree of prices do, of which only the root is
read in the end::

    V[t, i] = (V[t - 1, i] + V[t - 1, i + 1]) / 2       # read: V[n, 0]

Step t then needs the places up to ``n - t`` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from math import inf

from minitvm.arith.prover import Prover
from minitvm.te.schedules.scans import find_scans
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.tensor import ComputeOp, ScanOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, const_int
from minitvm.tir.functor import find

_WORTH = 0.125  # of the elements: those not needed, from which on a condition pays


def places_needed(schedule: StageGraph[Stage], scan: Stage) -> PrimExpr | None:
    """The condition on time and on the axes of a scan's update under which an element is needed;
    None where nearly all of them are, or where it isn't known. The update has no axis of time."""
    op = scan.op
    assert isinstance(op, ScanOp)
    update = schedule.stage_map[op.update[0].op]
    step, count = update.op, const_int(domain_of(op.scan_axis).extent)
    if not isinstance(step, ComputeOp) or step.reduce_axis or update.time is None or not count:
        return None
    if len(op.outputs) > 1 or [*find_scans(schedule).inside] != [update]:
        return None
    known = Prover()
    for axis in (op.scan_axis, *step.axis):
        known.bind(axis.var, domain_of(axis))
    last = _last_reads(schedule, scan, op)
    states = [each for each in find(ProducerLoad, *step.body)
              if each.producer in op.state_placeholder]  # fmt: skip
    if last is None or not states:
        return None
    begin, end = op.scan_axis.var, domain_of(op.scan_axis).min + count - 1
    conditions = list[PrimExpr]()
    for place, axis in enumerate(step.axis, 1):
        low, high = (bound(known, axis, (each.indices[place] for each in states))
                     for bound in (_most_before, _most_behind))  # fmt: skip
        extent = const_int(domain_of(axis).extent) or 0
        first, final = last[place - 1]
        if _unneeded(high, extent - 1 - final, count) > _WORTH * extent * count:
            conditions.append(axis.var <= int(final) + (end - begin) * int(high))
        if _unneeded(low, first, count) > _WORTH * extent * count:
            conditions.append(axis.var >= int(first) - (end - begin) * int(low))
    return reduce(e.logical_and, conditions) if conditions else None


def _unneeded(grows: float, room: float, count: int) -> float:
    """The elements along an axis that `count` steps don't need, of `room` that are not needed at
    the last step, if each step before needs `grows` more. None of an unknown extent."""
    if grows == inf or room <= 0 or room == inf:
        return 0
    steps = min(count, room / grows) if grows else count
    return steps * room - grows * steps * steps / 2


def _last_reads(
    schedule: StageGraph[Stage], scan: Stage, op: ScanOp
) -> list[tuple[float, float]] | None:
    """Between which places along each axis the last step of a scan is read, as far as that is
    known; None if other steps are read, too, or all results are the caller's."""
    if scan.is_output:
        return None
    last = domain_of(op.scan_axis).min + domain_of(op.scan_axis).extent - 1
    found: list[tuple[float, float]] = [(inf, -inf)] * (len(op.outputs[0].shape) - 1)
    for reader in schedule.readers(scan):
        if not isinstance(reader.op, ComputeOp):
            return None
        known = Prover()
        for axis in (*reader.op.axis, *reader.op.reduce_axis):
            known.bind(axis.var, domain_of(axis))
        for load in find(ProducerLoad, *reader.op.body):
            if load.producer not in op.outputs:
                continue
            time, *places = load.indices
            if not known.can_prove(time.equal(last)):
                return None
            ranges = [known.interval(known.affine(each)) for each in places]
            found = [(min(a, low), max(b, high))
                     for (a, b), (low, high) in zip(found, ranges, strict=True)]  # fmt: skip
    return found


def _most_behind(known: Prover, axis: IterVar, indices: Iterable[PrimExpr]) -> float:
    """How far behind its own place an element reads the step before, at most."""
    return max(0.0, *(_distance(known, axis, index, 1) for index in indices))


def _most_before(known: Prover, axis: IterVar, indices: Iterable[PrimExpr]) -> float:
    """How far before its own place an element reads the step before, at most."""
    return max(0.0, *(_distance(known, axis, index, -1) for index in indices))


def _distance(known: Prover, axis: IterVar, index: PrimExpr, sign: int) -> float:
    """The greatest difference between an index and an axis, times `sign`. One side of a minimum
    limits it from above, one of a maximum from below."""
    if isinstance(index, e.Min | e.Max):
        sides = [_distance(known, axis, each, sign) for each in (index.a, index.b)]
        return min(sides) if isinstance(index, e.Min) == (sign > 0) else max(sides)
    form = (known.affine(index) - known.affine(axis.var)) * sign
    return known.interval(form)[1]
