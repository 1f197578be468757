"""Calls that JAX traces, as operations of JAX: with gradients, by the derivative of a build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minitvm.contrib.jax_derivative import Derivative as Rules
from minitvm.operators.derivative import Derivative
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function


def jax_operation(module: Module, derivative: Derivative) -> Callable[..., Any]:
    """The operation of JAX of a build. It returns the outputs, and has gradients and tangents."""
    made = derivative.bridges.get("jax")
    if made is None:
        has_gradient = derivative.inputs and derivative.outputs
        made = _operation(module, _rules(derivative) if has_gradient else None)
        derivative.bridges["jax"] = made
    return made


def _operation(module: Module, rules: Rules | None) -> Callable[..., Any]:
    function = module.entry_func
    assert isinstance(function, Function)
    made: Callable[..., Any] = function.jax_op(backward=rules)
    return made


def _rules(derivative: Derivative) -> Rules:
    """What JAX calls for gradients and tangents."""

    def backward(
        inputs: Sequence[Any], outputs: Any, heads: Any, wanted: tuple[int, ...]
    ) -> tuple[Any, ...]:
        _refuse_numbers(derivative, wanted)
        given = _several(heads)
        run = jax_operation(*derivative.backward_of(wanted))
        made = run(*inputs, *_several(outputs), *(given[i] for i in derivative.outputs))
        found = dict(zip(wanted, _several(made), strict=True))
        return tuple(found.get(i) for i in range(len(inputs)))

    def pushforward(
        inputs: Sequence[Any], outputs: Any, tangents: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        moved = tuple(tangents)
        _refuse_numbers(derivative, moved)
        run = jax_operation(*derivative.pushforward_of(moved))
        made = run(*inputs, *_several(outputs), *tangents.values())
        return dict(zip(derivative.outputs, _several(made), strict=True))

    return Rules(backward, pushforward, derivative.reads_outputs)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _refuse_numbers(derivative: Derivative, places: Sequence[int]) -> None:
    """Only arrays have gradients."""
    for place in places:
        if place not in derivative.inputs:
            name = derivative.input_name(place)
            raise TypeError(
                f"{derivative.name}: argument '{name}': expected a number that isn't "
                "differentiated, got one whose gradient is asked for: make it an array, "
                f"{name}: ''"
            )
