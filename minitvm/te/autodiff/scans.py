"""Adjoints of scans: scans that run backwards in time.

The adjoint of a state at a step is the sum of the result's adjoint at this step and of the adjoints
that the later steps hand on. So the adjoint is a scan as well, from the last step to the first,
over the states that the forward scan kept::

    H[t] = f(H[t - 1], X[t])                        t = 1, ..., n - 1
    dH[t] = (adjoint of the result at t) + f'(H[t], X[t + 1]) * dH[t + 1]

Steps are reversed first: `w` counts them from the last one (:func:`_reversed_step`). The reversed
step is differentiated as any program is, and the stages of its adjoint become the stages of the new
scan (:func:`_stages_of_scan`). The adjoints of the other tensors that a step reads, such as `X`,
need no scan then: they are sums over all steps (:func:`step_at_all_times`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, final

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.autodiff.stages import computed
from minitvm.te.operation import placeholder
from minitvm.te.scan import scan as te_scan
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.rewrite_operations import at_axes, map_body, reduced
from minitvm.te.tensor import ComputeOp, Operation, ScanOp, Tensor, data_axes, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, ProducerLoad, Reduce, Var, const_int
from minitvm.tir.functor import Mutator, find

Adjoint: TypeAlias = Callable[[Sequence[PrimExpr]], PrimExpr]
"""The adjoint of an element of a tensor, by its indices."""
Differentiate: TypeAlias = Callable[
    [Sequence[tuple[Tensor, Adjoint]], Sequence[Tensor]], list[Tensor]
]
"""The adjoints of some tensors, by those of results."""
_Place: TypeAlias = Callable[[PrimExpr], PrimExpr]
_Reads: TypeAlias = Mapping[Tensor, tuple[Tensor, _Place]]
"""For tensors of a step those that are read in their place, and where, by the index of time."""


@final
@record()
class _Time:
    """Another axis of time along which the tensors of a step are read: its extent, the step at each
    place of it, and the place of each step."""

    extent: PrimExpr
    step: Callable[[PrimExpr], PrimExpr]
    place: Callable[[PrimExpr], PrimExpr]


def steps_of(scan: ScanOp) -> tuple[PrimExpr, PrimExpr]:
    """The number of given steps, and the number of all steps."""
    return scan.init[0].shape[0], scan.update[0].shape[0]


def operations_of_step(scan: ScanOp) -> list[ComputeOp]:
    """The operations of a step, in order: those that depend on the state, and the updates.

    Raises
    ------
    CompileError
        When one of them isn't made by te.compute.
    """
    depends: set[Operation] = {each.op for each in scan.state_placeholder}
    found: list[ComputeOp] = []
    for op in in_order([each.op for each in scan.update]):
        is_inside = any(each.op in depends for each in op.input_tensors)
        if not is_inside and op not in {each.op for each in scan.update}:
            continue
        if not isinstance(op, ComputeOp):
            raise CompileError(
                f"gradient: {scan.name}: expected steps of te.compute, found {op.name} of "
                f"{type(op).__name__}, which has no derivative here"
            )
        depends.add(op)
        found.append(op)
    return found


def adjoints_of_scan(
    scan: ScanOp, heads: Sequence[Adjoint | None], differentiate: Differentiate
) -> list[Adjoint]:
    """The adjoints of a scan's results, computed by a scan in reversed time. `heads` are the
    adjoints that come from outside of the scan, None for a result without one.

    Raises
    ------
    CompileError
        When a step reads states that aren't a constant number of steps older, or reads the states
        of several earlier steps through another stage.
    """
    _check_ages(scan)
    _, count = steps_of(scan)
    states = [placeholder(each.shape, each.dtype, f"{each.op.name}_grad") for each in scan.outputs]
    results, kept = _reversed_step(scan)
    pairs = [(result, _at(state)) for result, state in zip(results, states, strict=True)]
    handed_on = _stages_of_scan(scan, differentiate(pairs, kept), states)
    inits, updates = [], []
    for state, head, more in zip(states, heads, handed_on, strict=True):
        name, first = state.op.name, [e.const(1, count.dtype), *state.shape[1:]]
        inits.append(computed(f"{name}_last", first, _last(state, head, count)))
        updates.append(computed(f"{name}_step", state.shape, _step(state, more, head, count)))
    made = te_scan(inits, updates, states, name=f"{scan.name}_grad")
    listed = made if isinstance(made, list) else [made]

    def forwards(tensor: Tensor) -> Adjoint:
        return lambda at: tensor(count - 1 - at[0], *at[1:])

    return [forwards(each) for each in listed]


def _last(state: Tensor, head: Adjoint | None, count: PrimExpr) -> Adjoint:
    """The adjoint at the last step."""
    if head is None:
        return lambda at: e.const(0, state.dtype)
    return lambda at: head([count - 1, *at[1:]])


def _step(state: Tensor, more: Tensor | None, head: Adjoint | None, count: PrimExpr) -> Adjoint:
    """The adjoint at an earlier step, to which the later steps add `more`."""

    def element(at: Sequence[PrimExpr]) -> PrimExpr:
        parts = [] if head is None else [head([count - 1 - at[0], *at[1:]])]
        parts += [] if more is None else [more(*at)]
        return sum(parts[1:], parts[0]) if parts else e.const(0, state.dtype)

    return element


def step_at_all_times(scan: ScanOp) -> list[Tensor]:
    """The updates of all steps except the given ones, as tensors that read the scan's results."""
    given, count = steps_of(scan)
    time = _Time(count - given, lambda at: at + given, lambda t: t - given)
    reads = {
        s: (out, lambda t: t) for s, out in zip(scan.state_placeholder, scan.outputs, strict=True)
    }
    return _step_along(scan, time, reads)


def later(adjoint: Adjoint, steps: PrimExpr) -> Adjoint:
    """An adjoint at a place `steps` later."""
    return lambda at: adjoint([at[0] + steps, *at[1:]])


def _at(tensor: Tensor) -> Adjoint:
    return lambda at: tensor(*at)


def _reversed_step(scan: ScanOp) -> tuple[list[Tensor], list[Tensor]]:
    """The updates as tensors of reversed time, which have the update of step ``n - 1 - w`` at `w`;
    and the tensors of states that they read, which have the state of step ``n - 2 - w`` at `w`."""
    given, count = steps_of(scan)
    time = _Time(count - given, lambda at: count - 1 - at, lambda t: count - 1 - t)

    def backwards(out: Tensor) -> Tensor:
        shape = [count - 1, *out.shape[1:]]
        return computed(
            f"{out.op.name}_reversed", shape, lambda at: out(count - 2 - at[0], *at[1:])
        )

    kept = [backwards(each) for each in scan.outputs]
    reads = {
        state: (each, lambda t: count - 2 - t)
        for state, each in zip(scan.state_placeholder, kept, strict=True)
    }
    return _step_along(scan, time, reads), kept


def _stages_of_scan(
    scan: ScanOp, handed_on: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor | None]:
    """The adjoints that a step hands on, with all stages that depend on the reversed scan's states.
    At step v they have the values of ``w = v - 1``. None for a state that no step reads.
    """
    given, count = steps_of(scan)
    before, after = (
        _Time(count, lambda v: v - 1, lambda w: w + 1),
        dict[Tensor, tuple[Tensor, _Place]](),
    )
    inside: set[Operation] = {each.op for each in states}
    for op in in_order([each.op for each in handed_on]):
        if op in inside or not any(each.op in inside for each in op.input_tensors):
            continue
        _check_times(scan, op, states, inside)
        inside.add(op)
        assert isinstance(op, ComputeOp)
        made = _along(op, before, after)
        if const_int(given) != 1 and op.outputs[0] not in handed_on:
            exists = made.axis[0].var <= domain_of(op.axis[0]).extent
            body = map_body(made.body, partial(_where, exists))
            made = replace(made, body=body, reduce_axis=reduced(body))
        after.update(
            {old: (new, before.place) for old, new in zip(op.outputs, made.outputs, strict=True)}
        )
    return [after[each][0] if each in after else None for each in handed_on]


def _step_along(scan: ScanOp, time: _Time, states: _Reads) -> list[Tensor]:
    """The updates along another axis of time, which read other tensors in place of the states."""
    reads = dict(states)
    for op in operations_of_step(scan):
        made = _along(op, time, reads)
        reads.update(
            {old: (new, time.place) for old, new in zip(op.outputs, made.outputs, strict=True)}
        )
    return [reads[each][0] for each in scan.update]


def _along(op: ComputeOp, time: _Time, reads: _Reads) -> ComputeOp:
    own, *others = op.axis
    (axis,) = data_axes([own.name], [time.extent])
    step = e.cast(own.var.dtype, time.step(axis.var))
    body = map_body(at_axes(op, {own.var: step}), _ReadAlong(reads).expr)
    known = Analyzer()
    body = map_body(body, known.simplify)
    return replace(op, axis=(axis, *others), reduce_axis=reduced(body), body=body)


def _where(condition: PrimExpr, value: PrimExpr) -> PrimExpr:
    if isinstance(value, Reduce):
        return replace(value, condition=e.logical_and(condition, value.condition))
    zero = e.const(0, value.dtype)
    return e.intrinsic("if_then_else", value.dtype, condition, value, zero)


class _ReadAlong(Mutator):
    """Rewrites reads of a step's tensors as reads along another axis of time."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self._reads = reads

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        indices = tuple(map(self.expr, node.indices))
        found = self._reads.get(tensor_of(node))
        if found is None:
            return ProducerLoad(node.producer, indices)
        (tensor, place), (time, *others) = found, indices
        return ProducerLoad(tensor, (place(time), *others))


# -- Refused scans ---------------------------------------------------------------------------------


def _check_ages(scan: ScanOp) -> None:
    """Raises an error unless each step reads states of a constant number of steps before."""
    for op in operations_of_step(scan):
        for load in _loads(op):
            is_state = load.producer in scan.state_placeholder
            if is_state and _difference(op.axis[0].var, load.indices[0]) is None:
                raise CompileError(
                    f"gradient: {scan.name}: expected {op.name} to read states that are a constant "
                    f"number of steps older than its own step, found {load}: this has no "
                    "derivative here"
                )


def _check_times(
    scan: ScanOp, op: Operation, states: Sequence[Tensor], inside: Container[Operation]
) -> None:
    """Raises an error unless an operation of a reversed step reads the other tensors of the step at
    its own time."""
    is_computed = isinstance(op, ComputeOp)
    for load in _loads(op) if isinstance(op, ComputeOp) else []:
        assert isinstance(op, ComputeOp)
        tensor = tensor_of(load)
        if tensor.op in inside:
            age = _difference(op.axis[0].var, load.indices[0])
            is_computed &= age is not None and (age >= 0 if tensor in states else age == 0)
    if not is_computed:
        raise CompileError(
            f"gradient: {scan.name}: expected only the update to read states older than the step "
            "before, and steps that data don't choose; found a step whose adjoint "
            f"{op.name} needs other steps, which has no derivative here"
        )


def _loads(op: ComputeOp) -> list[ProducerLoad]:
    return [*find(ProducerLoad, *op.body)]


def _difference(time: Var, index: PrimExpr) -> int | None:
    """The number of steps by which an index lies before the current step."""
    known = Analyzer()
    found = known.affine(time) - known.affine(index)
    return None if found.terms else found.constant
