"""Calls that JAX traces, as operations of JAX: with gradients, by the derivative of a build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from minitvm.contrib.jax_derivative import Derivative as Rules
from minitvm.contrib.jax_derivative import Recording
from minitvm.operators.derivative import Derivative, Differentiated, Recorded
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function


def jax_operation(module: Module, derivative: Derivative) -> Callable[..., Any]:
    """The operation of JAX of a build. It returns the outputs, and has gradients and tangents."""
    made = derivative.bridges.get("jax")
    if made is None:
        has_gradient = derivative.inputs and derivative.outputs
        made = _operation(module, _rules(module, derivative) if has_gradient else None)
        derivative.bridges["jax"] = made
    return made


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
