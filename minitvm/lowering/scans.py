"""The stages that run inside of each scan, and their time steps."""

from __future__ import annotations

from dataclasses import field
from typing import cast, final

from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, ScanOp, Tensor, domain_of
from minitvm.tir.expr import Let, ProducerLoad, Range
from minitvm.tir.functor import walk_once


@final
@record(frozen=False)
class Scans:
    """The scans of a schedule.

    Attributes
    ----------
    updates, inits
        For each stage that computes the further or the first parts of a scan, that scan. An init
        that is an argument, or that other stages read, is copied instead.
    inside
        For each stage that is computed anew at every time step, its scan: the stages between a
        state and an update, and the updates.
    read_at
        The time steps at which each of these is read during one step of its scan, in terms of the
        scan's axis. No others are computed: the state may not be written there yet.
    times
        All time steps at which each of these is computed.
    """

    updates: dict[Stage, Stage] = field(default_factory=dict)
    inits: dict[Stage, Stage] = field(default_factory=dict)
    inside: dict[Stage, Stage] = field(default_factory=dict)
    read_at: dict[Stage, Range] = field(default_factory=dict)
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
    for stage, of in found.inside.items():
        if of is scan and stage not in updates:
            _check_inside(schedule, scan, stage, outside)
    _find_times(schedule, scan, op, found)


def _check_inside(schedule: Schedule, scan: Stage, stage: Stage, outside: list[Stage]) -> None:
    """Checks that only the update reads a stage between state and update, and that it is no
    output."""
    readers = [each.name for each in schedule.readers(stage) if each in outside]
    if stage.is_output or readers:
        use = f"read by {readers[0]}" if readers else "an output"
        raise CompileError(
            f"{stage.name}: expected a tensor between the state of {scan.name} and its update to "
            f"be read by the update only, found it {use}, too: compute it anew from {scan.name}"
        )


def _find_times(schedule: Schedule, scan: Stage, op: ScanOp, found: Scans) -> None:
    """Finds the steps at which each stage inside is computed: the steps at which its readers read
    it.
    Consumers come first."""
    axis = op.scan_axis
    prover = Prover()
    prover.bind(axis.var, domain_of(axis))
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
        found.read_at[stage] = _range(prover, op, read_at[stage])
        found.times[stage] = _range(prover, op, _always(prover, op, read_at[stage]))
        spans = _spans_of_axes(prover, compute, read_at[stage])
        for load in walk_once(*compute.body):
            if not isinstance(load, ProducerLoad):
                continue
            tensor = cast(Tensor, load.producer)
            producer = schedule.stage_map[tensor.op]
            is_state = tensor in op.state_placeholder
            if not is_state and found.inside.get(producer) is not scan:
                continue
            span = spans.of(load.indices[0])
            if span is None or not (
                prover.proves(now - span.high - 1) if is_state else _is_fixed(span, compute)
            ):
                what = "before the one that is computed" if is_state else "that is known"
                raise CompileError(
                    f"{stage.name}: expected to read {tensor.name} at a time step {what}, such as "
                    f"{tensor.name}[{compute.axis[0].name} - 1, ...], got time "
                    f"{load.indices[0]}"
                )
            if not is_state:
                old = read_at.get(producer)
                read_at[producer] = span if old is None else spans.union(old, span)


def _spans_of_axes(prover: Prover, compute: ComputeOp, steps: Span) -> Spans:
    """The spans of an operation's axes, where the first axis is time and runs over `steps`."""
    spans = Spans(prover)
    spans.let(compute.axis[0].var, steps)
    for axis in (*compute.axis[1:], *compute.reduce_axis):
        spans.let(axis.var, spans.of_range(domain_of(axis)))
    return spans


def _is_fixed(span: Span, compute: ComputeOp) -> bool:
    """Whether a span depends on no axis, name or read of an operation's own body."""
    own = {axis.var for axis in (*compute.axis, *compute.reduce_axis)}
    own.update(node.var for node in walk_once(*compute.body) if isinstance(node, Let))
    parts = walk_once(*span.low.terms, *span.high.terms)
    return not any(isinstance(node, ProducerLoad) or node in own for node in parts)


def _always(prover: Prover, op: ScanOp, read_at: Span) -> Span:
    """The union of the steps `read_at` over all steps of the scan."""
    everything = Spans(prover)
    whole = everything.of_range(domain_of(op.scan_axis))
    assert whole is not None
    everything.let(op.scan_axis.var, whole)
    dtype = op.scan_axis.var.dtype
    low = everything.of(prover.expression(read_at.low, dtype))
    high = everything.of(prover.expression(read_at.high, dtype))
    assert low is not None
    assert high is not None
    return Span(low.low, high.high)


def _range(prover: Prover, op: ScanOp, steps: Span) -> Range:
    dtype = op.scan_axis.var.dtype
    return Range.from_min_extent(
        prover.expression(steps.low, dtype), prover.expression(steps.extent, dtype)
    )
