"""Adjoints through scans: scans that run backwards in time.

The adjoint of a state at a step is that of the result there, and what the later steps hand on to
it. So it is a scan as well, from the last step to the first, over the states that the scan kept::

    H[t] = f(H[t - 1], X[t])                        t = 1, ..., n - 1
    dH[t] = (adjoint of the result at t) + f'(H[t], X[t + 1]) * dH[t + 1]

In terms of ``v = n - 1 - t``, with the step's tensors reversed as well (:func:`_reversed_step`),
each step reads the adjoint of the step before. The adjoints of the other tensors that a step reads,
such as `X`, need no scan then: they are sums over all steps (:func:`step_at_all_times`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.autodiff.stages import computed
from minitvm.te.operation import placeholder
from minitvm.te.scan import scan as te_scan
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.rewrite_operations import at_axes, map_body, reduced
from minitvm.te.tensor import ComputeOp, Operation, ScanOp, Tensor, data_axes
from minitvm.tir import expr as e
from minitvm.tir import op as language
from minitvm.tir.expr import PrimExpr, ProducerLoad, Reduce, Var, const_int
from minitvm.tir.functor import Mutator, walk_once

Adjoint: TypeAlias = Callable[[Sequence[PrimExpr]], PrimExpr]
"""The adjoint of an element of a tensor, by its indices."""
Differentiate: TypeAlias = Callable[
    [Sequence[tuple[Tensor, Adjoint]], Sequence[Tensor]], list[Tensor]
]
"""The adjoints of some tensors, by those of results."""


@final
@record()
class _Time:
    """How the tensors of a step are read along another axis of time: its extent, the step at a
    place of it, the place of a step, and the condition under which there is such a step."""

    extent: PrimExpr
    step: Callable[[PrimExpr], PrimExpr]
    place: Callable[[PrimExpr], PrimExpr]
    exists: Callable[[PrimExpr], PrimExpr]


def steps_of(scan: ScanOp) -> tuple[PrimExpr, PrimExpr]:
    """The number of steps that are given, and of all steps."""
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
    """The adjoints of a scan's results, by those that come from outside of the scan, None for one
    that has none; made by a scan in reversed time.

    Raises
    ------
    CompileError
        When a step reads states that aren't a constant number of steps older, or those of several
        steps before through another stage.
    """
    _, count = steps_of(scan)
    states = [placeholder(each.shape, each.dtype, f"{each.op.name}_grad") for each in scan.outputs]
    results, kept = _reversed_step(scan)

    def state_before(state: Tensor) -> Adjoint:
        return lambda at: state(at[0] - 1, *at[1:])

    pairs = [(u, state_before(state)) for u, state in zip(results, states, strict=True)]
    handed_on = differentiate(pairs, kept)
    _check_times(scan, handed_on, states)
    inits, updates = [], []
    for state, head, more in zip(states, heads, handed_on, strict=True):
        name, first = state.op.name, [e.const(1, count.dtype), *state.shape[1:]]
        inits.append(computed(f"{name}_last", first, _last(state, head, count)))
        updates.append(computed(f"{name}_step", state.shape, _step(more, head, count)))
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


def _step(more: Tensor, head: Adjoint | None, count: PrimExpr) -> Adjoint:
    """The adjoint at a step before, which has `more` from the steps after it."""
    if head is None:
        return lambda at: more(*at)
    return lambda at: head([count - 1 - at[0], *at[1:]]) + more(*at)


def step_at_all_times(scan: ScanOp) -> list[Tensor]:
    """The updates of all steps but the given ones, as tensors that read the scan's results."""
    given, count = steps_of(scan)
    time = _Time(
        count - given, lambda at: at + given, lambda t: t - given, lambda at: e.const(True)
    )
    reads = {
        s: (out, lambda t: t) for s, out in zip(scan.state_placeholder, scan.outputs, strict=True)
    }
    return _step_along(scan, time, reads)


def later(adjoint: Adjoint, steps: PrimExpr) -> Adjoint:
    """An adjoint at a place some steps later."""
    return lambda at: adjoint([at[0] + steps, *at[1:]])


def _reversed_step(scan: ScanOp) -> tuple[list[Tensor], list[Tensor]]:
    """The updates as tensors of reversed time, at `v` that of step ``n - v``, and the tensors of
    states that they read, at `v` that of step ``n - 1 - v``."""
    given, count = steps_of(scan)
    oldest = max(_ages(scan), default=1)

    def exists(at: PrimExpr) -> PrimExpr:
        early = [] if const_int(given) == 1 else [at <= count - given]
        found: PrimExpr = language.all(True, *early, *([at >= 1] if oldest > 1 else []))
        return found

    time = _Time(count, lambda at: count - at, lambda t: count - t, exists)

    def backwards(out: Tensor) -> Tensor:
        return computed(
            f"{out.op.name}_reversed", out.shape, lambda at: out(count - 1 - at[0], *at[1:])
        )

    kept = [backwards(each) for each in scan.outputs]
    reads = {
        state: (each, lambda t: count - 1 - t)
        for state, each in zip(scan.state_placeholder, kept, strict=True)
    }
    return _step_along(scan, time, reads), kept


_Reads: TypeAlias = Mapping[Tensor, tuple[Tensor, Callable[[PrimExpr], PrimExpr]]]


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
    exists = time.exists(axis.var)
    if const_int(exists) != 1:
        body = map_body(body, lambda each: _where(exists, each))
    known = Analyzer()
    body = map_body(body, known.simplify)
    return replace(op, axis=(axis, *others), reduce_axis=reduced(body), body=body)


def _where(condition: PrimExpr, value: PrimExpr) -> PrimExpr:
    if isinstance(value, Reduce):
        return replace(value, condition=e.logical_and(condition, value.condition))
    zero = e.const(0, value.dtype)
    return e.intrinsic("if_then_else", value.dtype, condition, value, zero)


class _ReadAlong(Mutator):
    """Reads of a step's tensors as those along another axis of time."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self._reads = reads

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        time, *others = map(self.expr, node.indices)
        found = self._reads.get(cast(Tensor, node.producer))
        if found is None:
            return ProducerLoad(node.producer, (time, *others))
        tensor, place = found
        return ProducerLoad(tensor, (place(time), *others))


# -- What is refused ------------------------------------------------------------------------------


def _ages(scan: ScanOp) -> list[int]:
    """How many steps older than the step the states are that it reads."""
    ages: list[int] = []
    for op in operations_of_step(scan):
        for load in _loads(op):
            if load.producer in scan.state_placeholder:
                age = _difference(op.axis[0].var, load.indices[0])
                if age is None:
                    raise CompileError(
                        f"gradient: {scan.name}: expected {op.name} to read states that are a "
                        f"constant number of steps older than its own step, found {load}: this "
                        "has no derivative here"
                    )
                ages.append(age)
    return ages


def _check_times(scan: ScanOp, results: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    """Raises an error unless each operation of a reversed step reads older states alone, and the
    other tensors of its own step."""
    inside: set[Operation] = {each.op for each in states}
    for op in in_order([each.op for each in results]):
        if op in inside or not any(each.op in inside for each in op.input_tensors):
            continue
        is_computed = isinstance(op, ComputeOp)
        loads = _loads(op) if isinstance(op, ComputeOp) else []
        for load in loads:
            tensor = cast(Tensor, load.producer)
            assert isinstance(op, ComputeOp)
            if tensor.op in inside:
                age = _difference(op.axis[0].var, load.indices[0])
                is_computed &= age is not None and (age > 0 if tensor in states else age == 0)
        if not is_computed:
            raise CompileError(
                f"gradient: {scan.name}: expected each step to read states through stages of the "
                "step after, at places that don't depend on data, found a step whose adjoint "
                f"{op.name} isn't computed from the step before alone: this has no derivative here"
            )
        inside.add(op)


def _loads(op: ComputeOp) -> list[ProducerLoad]:
    return [each for each in walk_once(*op.body) if isinstance(each, ProducerLoad)]


def _difference(time: Var, index: PrimExpr) -> int | None:
    """How many steps an index is before a step."""
    known = Analyzer()
    found = known.affine(time) - known.affine(index)
    return None if found.terms else found.constant
