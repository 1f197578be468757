"""Calls that JAX traces, as operations of JAX: with gradients, by the derivative of a build."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, final

from minitvm.contrib.jax_derivative import Derivative as Rules
from minitvm.contrib.jax_derivative import Recording
from minitvm.operators.derivative import Derivative, Differentiated, Recorded
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function
from minitvm.tir.expr import Call
from minitvm.tir.functor import contains, find
from minitvm.tir.intrinsics import IMPURE_CALLS
from minitvm.tir.stmt import AssertStmt


def jax_operation(module: Module, derivative: Derivative) -> Callable[..., Any]:
    """The operation of JAX of a build. It returns the outputs, and has gradients and tangents."""
    made = derivative.bridges.get("jax")
    if made is None:
        has_gradient = derivative.inputs and derivative.outputs
        made = _operation(module, _rules(module, derivative) if has_gradient else None)
        derivative.bridges["jax"] = made
    return made


_REPEATED = 32  # the calls that take about as long as XLA's compilation of one
_REFUSALS = (TypeError, ValueError, OverflowError, RuntimeError)


@final
class RepeatedCalls:
    """Calls with arrays of JAX outside of its programs. XLA makes a call in a fifth of the time
    that Python code takes, but compiles for each shape. So it makes the calls that are repeated."""

    def __init__(self) -> None:
        self._counts: dict[object, int] = {}
        self._operations: dict[object, Callable[..., Any] | None] = {}

    def run(
        self, key: object, module: Module, derivative: Derivative, inputs: Sequence[Any]
    ) -> Any:
        """The result of a call with a known key; None for a call that is left to Python code: one
        that is rare, that JAX has no arrays for, or that may fail, since errors of XLA's calls
        may come later."""
        jax: Any = sys.modules.get("jax")
        if jax is None or not any(isinstance(each, jax.Array) for each in inputs):
            return None
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == _REPEATED:
            is_left = jax.default_backend() != "cpu" or _may_fail(module)
            self._operations[key] = None if is_left else jax_operation(module, derivative)
        operation = self._operations.get(key)
        try:
            return operation and operation(*inputs)
        except _REFUSALS:  # Python code finds the reason
            self._counts[key], self._operations[key] = 0, None
            return None


def _may_fail(module: Module) -> bool:
    function = module.entry_func
    assert isinstance(function, Function)
    program: Any = function.program
    body = program.lowered[function.name].body
    called = {each.op for each in find(Call, body)}
    return contains(AssertStmt, body) or not called.isdisjoint(IMPURE_CALLS)


def _operation(module: Module, rules: Rules | None) -> Callable[..., Any]:
    function = module.entry_func
    assert isinstance(function, Function)
    made: Callable[..., Any] = function.jax_op(backward=rules)
    return made


def _rules(module: Module, derivative: Derivative) -> Rules:
    """The rules that JAX calls for gradients and tangents."""

    @cache
    def recording(moving: tuple[int, ...]) -> Recording | None:
        found = derivative.recorded_of(moving) if set(moving) <= set(derivative.inputs) else None
        if found is None:
            return None
        run = jax_operation(*(found.forward or (module, derivative)))
        return Recording(run, found.outputs, found.kept, _rules_from_kept(derivative, found))

    backward = _backward(derivative, derivative.backward_of)
    pushforward = _pushforward(derivative, derivative.pushforward_of)
    keeping = recording if derivative.keeps else None
    return Rules(backward, pushforward, derivative.reads_outputs, keeping)


def _rules_from_kept(derivative: Derivative, found: Recorded) -> Rules:
    backward = _backward(derivative, lambda wanted: found.backward())
    return Rules(backward, _pushforward(derivative, lambda moved: found.pushforward()))


_Find = Callable[[tuple[int, ...]], Differentiated]


def _backward(derivative: Derivative, find: _Find) -> Callable[..., tuple[Any, ...]]:
    def backward(
        inputs: Sequence[Any], more: Any, heads: Any, wanted: tuple[int, ...]
    ) -> tuple[Any, ...]:
        _refuse_numbers(derivative, wanted)
        given = _several(heads)
        run = jax_operation(*find(wanted))
        made = run(*inputs, *_several(more), *(given[i] for i in derivative.outputs))
        found = dict(zip(wanted, _several(made), strict=True))
        return tuple(found.get(i) for i in range(len(inputs)))

    return backward


def _pushforward(derivative: Derivative, find: _Find) -> Callable[..., Mapping[int, Any]]:
    def pushforward(
        inputs: Sequence[Any], more: Any, tangents: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        moved = tuple(tangents)
        _refuse_numbers(derivative, moved)
        run = jax_operation(*find(moved))
        made = run(*inputs, *_several(more), *tangents.values())
        return dict(zip(derivative.outputs, _several(made), strict=True))

    return pushforward


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _refuse_numbers(derivative: Derivative, places: Sequence[int]) -> None:
    """Refuses the gradient of a number: only arrays have gradients."""
    for place in places:
        if place not in derivative.inputs:
            name = derivative.input_name(place)
            raise TypeError(
                f"{derivative.name}: argument '{name}': expected a number that isn't "
                "differentiated, got one whose gradient is asked for: make it an array, "
                f"{name}: ''"
            )
