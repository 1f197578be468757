"""Calls that JAX traces, as operations of JAX: with gradients, by the derivative of a build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minitvm.operators.derivative import Derivative
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import Function


def jax_operation(module: Module, derivative: Derivative) -> Callable[..., Any]:
    """The operation of JAX of a build. It returns the outputs, and has gradients."""
    made = derivative.bridges.get("jax")
    if made is None:
        has_gradient = derivative.inputs and derivative.outputs
        made = _operation(module, _rule(derivative) if has_gradient else None)
        derivative.bridges["jax"] = made
    return made


def _operation(module: Module, backward: Callable[..., Any] | None = None) -> Callable[..., Any]:
    function = module.entry_func
    assert isinstance(function, Function)
    made: Callable[..., Any] = function.jax_op(backward=backward)
    return made


def _rule(derivative: Derivative) -> Callable[..., Any]:
    """What JAX calls for gradients. It asks for those of all inputs."""
    wanted = derivative.inputs

    def gradients(inputs: Sequence[Any], outputs: Any, heads: Any) -> tuple[Any, ...]:
        run = derivative.bridges.get(("jax", wanted))
        if run is None:
            run = jax_operation(derivative.function(wanted), derivative.again(wanted))
            derivative.bridges["jax", wanted] = run
        given = heads if isinstance(heads, tuple | list) else (heads,)
        kept = outputs if isinstance(outputs, tuple | list) else (outputs,)
        kept = kept if derivative.reads_outputs else ()
        made = run(*inputs, *kept, *(given[i] for i in derivative.outputs))
        found = dict(zip(wanted, made if isinstance(made, tuple | list) else (made,), strict=True))
        return tuple(found.get(i) for i in range(len(inputs)))

    return gradients
