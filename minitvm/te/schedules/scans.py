"""The stages that run inside of each scan, and their time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.guards import conjuncts, form_of
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.regions import Span, Spans
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.operation_graph import read_by_ranges, root_axes
from minitvm.te.schedules.rewrite_operations import at_axes, reading, reading_elsewhere, reduced
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.stage_graph import StageGraph
from minitvm.te.tensor import ComputeOp, Operation, ScanOp, Tensor, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir import reducer
from minitvm.tir.expr import IterType, IterVar, Let, PrimExpr, ProducerLoad, Range, Reduce, Var
from minitvm.tir.functor import find, mentions, substitute, walk_once
from minitvm.tir.structural_equal import structural_equal


@final
@record(frozen=False)
class Scans:
    """The scans of a schedule.

    Attributes
    ----------
    updates, inits
        For each stage that computes the further or the first parts of a scan, that scan. An init
        that is an argument, or that other stages read, isn't listed here: it is copied.
    inside
        For each stage that is computed anew at every time step, its scan: the stages between a
        state and an update, and the updates.
    read_at
        For each stage of `inside`, the time steps at which it is read during one step of its scan,
        in terms of the scan's axis. Only these are computed, since the state may not be written yet
        at other steps. None for a stage without an axis of time, which is computed for the current
        step.
    times
        For each stage of `inside`, all time steps at which it is computed; for a stage without an
        axis of time, the steps of the scan.
    """

    updates: dict[Stage, Stage] = field(default_factory=dict)
    inits: dict[Stage, Stage] = field(default_factory=dict)
    inside: dict[Stage, Stage] = field(default_factory=dict)
    read_at: dict[Stage, Range | None] = field(default_factory=dict)
    times: dict[Stage, Range] = field(default_factory=dict)


def find_scans(schedule: StageGraph[Stage]) -> Scans:
    """The scans of a schedule.

    Raises
    ------
    CompileError
        When an update reads its state at a time that isn't before its own, or another stage reads
        the update.
    """
    found = Scans()
    for scan in schedule.stages:
        if isinstance(scan.op, ScanOp):
            _find(schedule, scan, scan.op, found)
    return found


def _find(schedule: StageGraph[Stage], scan: Stage, op: ScanOp, found: Scans) -> None:
    updates = list(dict.fromkeys(schedule.stage_map[tensor.op] for tensor in op.update))
    found.updates.update(dict.fromkeys(updates, scan))
    for stage in dict.fromkeys(schedule.stage_map[tensor.op] for tensor in op.init):
        alone = schedule.readers(stage) == [scan] and not stage.is_output
        once = len(set(op.init)) == len(op.init)
        if isinstance(stage.op, ComputeOp) and alone and once:
            found.inits[stage] = scan
    states = set(op.state_placeholder)
    depends: set[Stage] = set()
    for stage in schedule.stages:
        reads = stage.op.input_tensors
        if stage is not scan and (
            stage.time is op.scan_axis
            or any(each in states or schedule.stage_map[each.op] in depends for each in reads)
        ):
            depends.add(stage)
    # An update that was simplified may have left stages of the step that nothing reads any more.
    unread = (each for each in depends if not each.is_output and not schedule.readers(each))
    needed: set[Stage] = {*updates, *unread}
    for stage in reversed(schedule.stages):
        if stage in needed:
            needed.update(schedule.stage_map[each.op] for each in stage.op.input_tensors)
    for stage in schedule.stages:
        if stage in updates or (stage in depends and stage in needed):
            found.inside[stage] = scan
    for stage in updates:
        readers = [each for each in schedule.readers(stage) if each is not scan]
        if any(found.inside.get(each) is not scan for each in readers) or stage.is_output:
            raise CompileError(
                f"{scan.name}: expected its update {stage.name} to be read by the scan and its "
                f"other updates only: read {scan.name} instead"
            )
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


def _check_inside(
    schedule: StageGraph[Stage], scan: Stage, stage: Stage, outside: list[Stage]
) -> None:
    """Checks that only the update reads a stage between state and update, and that it is no
    output."""
    readers = [each.name for each in schedule.readers(stage) if each in outside]
    if stage.is_output or readers:
        use = f"read by {readers[0]}" if readers else "an output"
        raise CompileError(
            f"{stage.name}: expected a tensor between the state of {scan.name} and its update to "
            f"be read by the update only, found it {use}, too: compute it anew from {scan.name}"
        )


def _find_times(schedule: StageGraph[Stage], scan: Stage, op: ScanOp, found: Scans) -> None:
    """Finds the steps at which each stage inside is computed: the steps at which its readers read
    it.
    Consumers come first."""
    axis = op.scan_axis
    prover = Prover()
    prover.bind(axis.var, domain_of(axis))
    now = prover.affine(axis.var)
    at_once = Span(now, now)
    # The steps at which a stage is read while the scan is at one step.
    read_at = {stage: at_once for stage, of in found.updates.items() if of is scan}
    for stage in reversed(schedule.stages):
        if found.inside.get(stage) is not scan:
            continue
        compute = stage.op
        is_step = stage.time is not None
        if not isinstance(compute, ComputeOp) or not (compute.axis or is_step):
            raise CompileError(
                f"{stage.name}: expected a tensor of te.compute whose first dimension is time, "
                f"since it reads the state of {scan.name}"
            )
        steps = None if is_step else read_at.get(stage, at_once)
        found.read_at[stage] = None if steps is None else _range(prover, op, steps)
        found.times[stage] = _range(prover, op, _always(prover, op, steps or at_once))
        spans = _spans_of_axes(prover, compute, steps)
        guarded, forms = _under_condition(prover, compute)
        for load in walk_once(*compute.body):
            if not isinstance(load, ProducerLoad):
                continue
            tensor = tensor_of(load)
            producer = schedule.stage_map[tensor.op]
            is_state = tensor in op.state_placeholder
            has_steps = found.inside.get(producer) is scan and producer.time is None
            if not is_state and not has_steps:
                continue
            span = spans.of(load.indices[0])
            if span is not None and load in guarded:
                span = spans.where(load.indices[0], span, forms)
            if span is None or not (
                prover.proves(now - span.high - 1) if is_state else _is_fixed(span, compute)
            ):
                what = "before the one that is computed" if is_state else "that is known"
                raise CompileError(
                    f"{stage.name}: expected to read {tensor.name} at a time step {what}, such as "
                    f"{tensor.name}[{compute.axis[0].name} - 1, ...], got time "
                    f"{load.indices[0]}"
                )
            if producer in found.updates and not _is_now(prover, span, steps or at_once):
                raise CompileError(
                    f"{stage.name}: expected to read the update {tensor.name} at the time step "
                    f"that is computed, {tensor.name}[{compute.axis[0].name}, ...], got time "
                    f"{load.indices[0]}: read the state for earlier ones"
                )
            if not is_state:
                old = read_at.get(producer)
                read_at[producer] = span if old is None else spans.union(old, span)


def _spans_of_axes(prover: Prover, compute: ComputeOp, steps: Span | None) -> Spans:
    """The spans of an operation's axes. Where there are `steps`, the first axis runs over them."""
    spans = Spans(prover)
    for i, axis in enumerate((*compute.axis, *compute.reduce_axis)):
        # Ranges of sums may end at the step.
        spans.let(axis.var, spans.of_range(domain_of(axis)) if i or steps is None else steps)
    return spans


def _under_condition(prover: Prover, compute: ComputeOp) -> tuple[set[PrimExpr], list[Affine]]:
    """The terms of a reduction, read only where its condition holds, and the condition's forms,
    which are at least zero there."""
    reduce = compute.body[0]
    if not isinstance(reduce, Reduce):
        return set(), []
    forms = [form_of(prover, each) for each in conjuncts(reduce.condition)]
    terms = {*walk_once(*reduce.source)} - {*walk_once(reduce.condition)}
    return terms, [form for form in forms if form is not None]


def _is_now(prover: Prover, span: Span, steps: Span) -> bool:
    """Whether `span` is the single step of `steps`."""
    return all(
        prover.proves(a - b, b - a) for a in (span.low, span.high) for b in (steps.low, steps.high)
    )


def _is_fixed(span: Span, compute: ComputeOp) -> bool:
    """Whether a span depends on no axis, name or read of an operation's own body."""
    own = {axis.var for axis in (*compute.axis, *compute.reduce_axis)}
    own.update(node.var for node in find(Let, *compute.body))
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


# -- Steps without an axis of time ----------------------------------------------------------------


def stages_of_step(schedule: StageGraph[Stage], scan: Stage) -> list[Stage]:
    """The stages inside of a scan that are computed only for the current step, and whose loops
    weren't scheduled."""
    found = find_scans(schedule)
    taken = {each.attach_ivar for stage in schedule.stages for each in (stage, stage.group) if each}
    ranged = {
        schedule.stage_map.get(tensor.op)
        for stage in schedule.stages
        for _, tensor in read_by_ranges(stage.op)
    }
    made = []
    for stage, of in found.inside.items():
        steps = found.read_at[stage]
        if of is not scan or steps is None or stage in ranged or stage.store_predicate is not None:
            continue
        (time, *_) = root_axes(stage.op)
        is_now = e.const_int(steps.extent) == 1 and steps.min is scan_axis_of(scan).var
        is_as_begun = not stage.has_new_loops and not stage.iter_var_attrs
        if is_now and is_as_begun and time not in taken:
            made.append(stage)
    return made


def scan_axis_of(scan: Stage) -> IterVar:
    """The axis of time of a scan."""
    assert isinstance(scan.op, ScanOp)
    return scan.op.scan_axis


def drop_time(schedule: StageGraph[Stage], scan: Stage, stages: Sequence[Stage]) -> None:
    """Lets `stages`, which are computed for each step of a scan, have no axis of time."""
    time = scan_axis_of(scan)
    others: dict[Tensor, Tensor] = {}
    steps: dict[Tensor, Tensor] = {}
    changed: dict[Stage, Operation] = {}
    for stage in schedule.stages:
        old = stage.op
        new = reading(old, others)
        if isinstance(new, ComputeOp):
            new = reading_elsewhere(new, steps, lambda _, indices: indices[1:])
        else:
            new = reading(new, steps)
        if stage in stages:
            new = _at_step(cast(ComputeOp, new), time)
        if new is not old:
            changed[stage] = new
            made = steps if stage in stages else others
            made.update(zip(old.outputs, new.outputs, strict=True))
    for stage, op in changed.items():
        schedule.now_computes(stage, op)
    for stage in stages:
        stage.restart(stage.op)
        stage.time = time


def is_of_step(schedule: StageGraph[Stage], op: Operation, time: IterVar) -> bool:
    """Whether an operation without an axis of time depends on the step of a scan."""
    if any(schedule.stage_map[tensor.op].time is time for tensor in op.input_tensors):
        return True
    return isinstance(op, ComputeOp) and any(mentions(time.var, each) for each in op.body)


def _at_step(op: ComputeOp, time: IterVar) -> ComputeOp:
    (own, *axis) = op.axis
    body = at_axes(op, {own.var: e.cast(own.var.dtype, time.var)})
    return replace(op, axis=tuple(axis), reduce_axis=reduced(body), body=body)


# -- Scans that are reductions --------------------------------------------------------------------

# The combinations that are known to be associative, and their reducers.
_REDUCERS: dict[type, Callable[..., PrimExpr]] = {
    e.Add: reducer.sum,
    e.Mul: reducer.prod,
    e.Min: reducer.min,
    e.Max: reducer.max,
}


def reduction_of_scan(schedule: StageGraph[Stage], scan: Stage) -> ComputeOp | None:
    """A scan as a reduction of all terms so far, if each step combines the state before with one
    term; None for any other scan.

    >>> from minitvm import te
    >>> from minitvm.te.schedules.schedule import create_schedule
    >>> X, state = te.placeholder((4, 3), name="X"), te.placeholder((4, 3), name="state")
    >>> first = te.compute((1, 3), lambda t, i: X[t, i], name="first")
    >>> step = te.compute((4, 3), lambda t, i: state[t - 1, i] * X[t, i], name="step")
    >>> s = create_schedule(te.scan(first, step, state, name="R").op)
    >>> str(reduction_of_scan(s, s.stages[-1]).body[0])
    'prod(X[t.k, i], axis=[t.k], where=t.k <= t)'
    """
    op = scan.op
    assert isinstance(op, ScanOp)

    def is_state(node: object) -> bool:
        return isinstance(node, ProducerLoad) and node.producer in op.state_placeholder

    update = schedule.stage_map[op.update[0].op]
    step = update.op
    if len(op.outputs) > 1 or [*find_scans(schedule).inside] != [update]:
        return None
    if e.const_int(op.init[0].shape[0]) != 1 or not isinstance(step, ComputeOp):
        return None
    (body, *more) = step.body
    found = _REDUCERS.get(type(body))
    if found is None or more or not isinstance(body, e.BinaryOp) or update.time is not None:
        return None
    sides = [is_state(each) and _is_before(step, each) for each in (body.a, body.b)]
    if sum(sides) != 1 or update.store_predicate is not None:
        return None
    term = body.a if sides[1] else body.b
    if any(is_state(each) for each in walk_once(term)):
        return None
    (time, *others) = step.axis
    begin = _first_of(schedule, op, others)
    k = Var(f"{time.name}.k", time.var.dtype, axis=True)
    known = Analyzer()
    same = substitute(term, {time.var: e.const(0, time.var.dtype)})
    is_first = structural_equal(known.simplify(same), known.simplify(begin))
    steps = Range(0, domain_of(time).extent) if is_first else Range(1, domain_of(time).extent)
    axis = IterVar(steps, k, IterType.COMM_REDUCE)
    init = None if is_first else begin
    if is_first and isinstance(body, e.Add) and body.dtype.is_float:
        init = e.const(-0.0, body.dtype)  # adding it changes nothing, not even a negative zero
    reduce = found(substitute(term, {time.var: k}), axis=axis, where=k <= time.var, init=init)
    return ComputeOp(op.name, op.tag, op.attrs, step.axis, (axis,), (reduce,))


def _is_before(step: ComputeOp, value: PrimExpr) -> bool:
    """Whether a read is at the place of the element being computed, one time step before."""
    assert isinstance(value, ProducerLoad)
    (time, *others) = step.axis
    known = Prover()
    before = known.affine(value.indices[0]) - known.affine(time.var) + 1
    return before.same_as(Affine()) and all(
        index is axis.var for index, axis in zip(value.indices[1:], others, strict=True)
    )


def _first_of(schedule: StageGraph[Stage], op: ScanOp, others: Sequence[IterVar]) -> PrimExpr:
    """The element at the first time step."""
    (init,) = op.init
    at: list[PrimExpr] = [e.const(0, init.shape[0].dtype), *(axis.var for axis in others)]
    first = schedule.stage_map[init.op].op
    if not isinstance(first, ComputeOp) or first.reduce_axis or len(first.body) > 1:
        return ProducerLoad(init, tuple(at))
    pairs = zip(first.axis, at, strict=True)
    return substitute(first.body[0], {axis.var: e.cast(axis.var.dtype, i) for axis, i in pairs})


def moved_reduction(schedule: StageGraph[Stage], stage: Stage) -> ComputeOp | None:
    """The operation of a stage that only moves the elements of a reduction, as that reduction; None
    for any other stage, or if other stages read the reduction as well."""
    op = stage.op
    if (
        not isinstance(op, ComputeOp)
        or len(op.body) > 1
        or not isinstance(op.body[0], ProducerLoad)
    ):
        return None
    load = op.body[0]
    source = schedule.stage_map[tensor_of(load).op]
    made = source.op
    if not isinstance(made, ComputeOp) or not made.reduce_axis or len(made.body) > 1:
        return None
    if source.is_output or schedule.readers(source) != [stage] or read_by_ranges(op):
        return None
    pairs = zip(made.axis, load.indices, strict=True)
    body = at_axes(made, {axis.var: e.cast(axis.var.dtype, index) for axis, index in pairs})
    return replace(op, reduce_axis=reduced(body), body=body)
