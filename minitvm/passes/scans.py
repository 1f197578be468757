"""Which stages run inside of which scan, and at which time steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast, final

from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.expr import ProducerLoad, Range
from minitvm.functor import walk_once
from minitvm.runtime.errors import CompileError
from minitvm.te.schedule import Schedule
from minitvm.te.stage import Stage
from minitvm.te.tensor import ComputeOp, ScanOp, Tensor


@final
@dataclass(slots=True)
class Scans:
    """The scans of a schedule.

    Attributes
    ----------
    updates, inits
        The scan of each stage that computes its further or its first parts. An init that is an
        argument, or is read by others, is copied instead.
    inside
        The scan of each stage that is computed anew at every time step: those between a state and
        an update, and the updates.
    times
        The time steps at which each of these is computed.
    """

    updates: dict[Stage, Stage] = field(default_factory=dict)
    inits: dict[Stage, Stage] = field(default_factory=dict)
    inside: dict[Stage, Stage] = field(default_factory=dict)
    times: dict[Stage, Range] = field(default_factory=dict)


def find_scans(schedule: Schedule) -> Scans:
    """The scans of a normalised schedule.

    Raises
    ------
    CompileError
        When an update reads its state at a time that is not before its own, or is read by others.
    """
    found = Scans()
    for scan in schedule.stages:
        if isinstance(scan.op, ScanOp):
            _find(schedule, scan, scan.op, found)
    return found


def _find(schedule: Schedule, scan: Stage, op: ScanOp, found: Scans) -> None:
    updates = list(dict.fromkeys(schedule.stage_map[tensor.op] for tensor in op.update))
    for stage in updates:
        if any(reader is not scan for reader in schedule.readers(stage)) or stage.is_output:
            raise CompileError(
                f"{scan.name}: expected its update {stage.name} to be read by the scan only: read "
                f"{scan.name} instead"
            )
        found.updates[stage] = scan
    for stage in dict.fromkeys(schedule.stage_map[tensor.op] for tensor in op.init):
        alone = schedule.readers(stage) == [scan] and not stage.is_output
        once = len(set(op.init)) == len(op.init)
        if isinstance(stage.op, ComputeOp) and alone and once:
            found.inits[stage] = scan
    states = set(op.state_placeholder)
    depends: set[Stage] = set()
    for stage in schedule.stages:
        reads = stage.op.input_tensors
        if stage is not scan and any(
            each in states or schedule.stage_map[each.op] in depends for each in reads
        ):
            depends.add(stage)
    needed: set[Stage] = set(updates)
    for stage in reversed(schedule.stages):
        if stage in needed:
            needed.update(schedule.stage_map[each.op] for each in stage.op.input_tensors)
    for stage in schedule.stages:
        if stage in updates or (stage in depends and stage in needed):
            found.inside[stage] = scan
    outside = [each for each in depends - set(found.inside) if not isinstance(each.op, ScanOp)]
    for stage in outside:
        if any(each in states for each in stage.op.input_tensors):
            raise CompileError(
                f"{stage.name}: expected the state of {scan.name} to be read by its update only: "
                f"read {scan.name} instead"
            )
    _find_times(schedule, scan, op, found)


def _find_times(schedule: Schedule, scan: Stage, op: ScanOp, found: Scans) -> None:
    """At which steps each stage inside is computed: where its readers, consumers first, read it."""
    axis = op.scan_axis
    assert axis.dom is not None
    prover = Prover()
    prover.bind(axis.var, axis.dom)
    now = prover.affine(axis.var)
    # The steps at which a stage is read while the scan is at one step.
    read_at = {stage: Span(now, now) for stage, of in found.updates.items() if of is scan}
    for stage in reversed(schedule.stages):
        if found.inside.get(stage) is not scan:
            continue
        compute = stage.op
        if not isinstance(compute, ComputeOp) or not compute.axis:
            raise CompileError(
                f"{stage.name}: expected a tensor of te.compute whose first dimension is time, "
                f"since it reads the state of {scan.name}"
            )
        found.times[stage] = _steps(prover, op, read_at[stage])
        spans = Spans(prover)
        spans.let(compute.axis[0].var, read_at[stage])
        for load in walk_once(*compute.body):
            if not isinstance(load, ProducerLoad):
                continue
            tensor = cast(Tensor, load.producer)
            producer = schedule.stage_map[tensor.op]
            is_state = tensor in op.state_placeholder
            if not is_state and found.inside.get(producer) is not scan:
                continue
            span = spans.of(load.indices[0])
            if span is None or (is_state and not prover.proves(now - span.high - 1)):
                what = "before that which is computed" if is_state else "that is known"
                raise CompileError(
                    f"{stage.name}: expected to read {tensor.name} at a time step {what}, such as "
                    f"{tensor.name}[{compute.axis[0].name} - 1, ...], got time "
                    f"{load.indices[0]}"
                )
            if not is_state:
                old = read_at.get(producer)
                read_at[producer] = span if old is None else spans.union(old, span)


def _steps(prover: Prover, op: ScanOp, read_at: Span) -> Range:
    """All steps at which something is read that is read at `read_at` while the scan runs."""
    dom = op.scan_axis.dom
    assert dom is not None
    first = prover.affine(dom.min)
    everything = Spans(prover)
    everything.let(op.scan_axis.var, Span(first, first + prover.affine(dom.extent) - 1))
    dtype = op.scan_axis.var.dtype
    low = everything.of(prover.expression(read_at.low, dtype))
    high = everything.of(prover.expression(read_at.high, dtype))
    assert low is not None
    assert high is not None
    return Range.from_min_extent(
        prover.expression(low.low, dtype), prover.expression(high.high - low.low + 1, dtype)
    )
