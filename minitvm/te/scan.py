"""Scans: tensors along a time axis, where each part is computed from the parts before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minitvm.arith.prover import Prover
from minitvm.runtime.errors import CompileError
from minitvm.te.tag import scoped_tag
from minitvm.te.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterType, IterVar, PrimExpr, Range, Var


def scan(
    init: Any,
    update: Any,
    state_placeholder: Any,
    inputs: Tensor | Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """A tensor whose part at each time step is computed from the parts before it.

    Parameters
    ----------
    init : Tensor, or a list of them, of shape (steps given, ...)
        The first parts.
    update : Tensor, or a list of them, of shape (steps in all, ...)
        The part at each further step, in terms of `state_placeholder` at earlier steps, and of the
        other updates at the same step.
    state_placeholder : Tensor, or a list of them, of shape (steps in all, ...)
        Placeholders that stand for the result so far.
    inputs : Tensor, or a list of them
        Further tensors that the update reads; not needed, since the update shows them.
    name, tag, attrs
        For messages, programs and schedules.

    Returns
    -------
    Tensor, or list of Tensor
        The result, of the shape of `state_placeholder`; its time axis is ``.op.scan_axis``.

    Raises
    ------
    CompileError
        When the numbers, shapes or dtypes don't agree, or a state is no placeholder.

    >>> from minitvm import te
    >>> m, n = te.var("m"), te.var("n")
    >>> X = te.placeholder((m, n), name="X")
    >>> state = te.placeholder((m, n), name="state")
    >>> first = te.compute((1, n), lambda _, i: X[0, i], name="first")
    >>> step = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="step")
    >>> scan(first, step, state, inputs=[X], name="cumsum")
    Tensor(shape=[m, n], op.name=cumsum)
    """
    inits, updates, states = (
        _tensors(name, what, given)
        for what, given in (
            ("init", init),
            ("update", update),
            ("state_placeholder", state_placeholder),
        )
    )
    if not len(inits) == len(updates) == len(states) or not states:
        raise CompileError(
            f"{name}: expected as many init as update as state_placeholder, at least one, got "
            f"{len(inits)}, {len(updates)}, {len(states)}"
        )
    for first, step, state in zip(inits, updates, states, strict=True):
        _check_state(name, first, step, state)
    begin, end = inits[0].shape[0], updates[0].shape[0]
    dom = Range(begin, end)
    axis = IterVar(dom, Var(f"{name}.idx", dom.extent.dtype, axis=True), IterType.ORDERED)
    op = ScanOp(
        name,
        scoped_tag(name, tag),
        dict(attrs or {}),
        axis,
        tuple(inits),
        tuple(updates),
        tuple(states),
        tuple(_tensors(name, "inputs", [] if inputs is None else inputs)),
    )
    return op.output(0) if len(op.outputs) == 1 else list(op.outputs)


def _tensors(name: str, what: str, given: Any) -> list[Tensor]:
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in listed:
        if not isinstance(each, Tensor):
            raise CompileError(f"{name}: {what}: expected tensors, got {each!r}")
    return listed


def _check_state(name: str, first: Tensor, step: Tensor, state: Tensor) -> None:
    if not isinstance(state.op, PlaceholderOp):
        raise CompileError(
            f"{name}: state_placeholder: expected a te.placeholder that stands for the result, got "
            f"{state.name}, which is computed"
        )
    if not isinstance(step.op, ComputeOp):
        raise CompileError(
            f"{name}: update: expected a tensor of te.compute, whose first axis is time, got "
            f"{step.name} of {type(step.op).__name__}"
        )
    if not (first.dtype == step.dtype == state.dtype):
        raise CompileError(
            f"{name}: expected one dtype, got init of {first.dtype}, update of {step.dtype}, "
            f"state_placeholder of {state.dtype}"
        )
    if not _same(step.shape, state.shape):
        raise CompileError(
            f"{name}: expected update of the shape of its state {_text(state.shape)}, got "
            f"{_text(step.shape)}"
        )
    if not state.shape or not _same(first.shape[1:], state.shape[1:]) or not first.shape:
        raise CompileError(
            f"{name}: expected init of the shape of its state {_text(state.shape)}, but for the "
            f"first dimension, time, got {_text(first.shape)}"
        )


def _same(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> bool:
    return len(a) == len(b) and all(
        x is y or Prover().can_prove(e.equal(x, y)) for x, y in zip(a, b, strict=True)
    )


def _text(shape: Sequence[PrimExpr]) -> str:
    return f"({', '.join(map(str, shape))})"
