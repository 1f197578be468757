"""Derivatives of built functions as operations of JAX, in forward and in reverse mode.

::

    tangents of inputs  --  push  ->  tangents of outputs        jvp, jacfwd, hessian
    gradients of inputs  <-  pull  --  gradients of outputs      vjp, grad, jacrev
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from minitvm.contrib.built import Built
from minitvm.contrib.imported import imported
from minitvm.contrib.jax_linear import linear_call
from minitvm.runtime.record import record


@final
@record(eq=False)
class Recording:
    """A run of an operation that keeps arrays for its derivative.

    Attributes
    ----------
    run
        The operation. Behind its outputs it may return further arrays.
    outputs
        The number of outputs.
    kept
        The places of the arrays to be kept among the values that `run` returns.
    derivative
        The derivative, whose functions take these arrays in place of the outputs.
    """

    run: Callable[..., Any]
    outputs: int
    kept: tuple[int, ...]
    derivative: Derivative


@final
@record()
class Derivative:
    """The derivative of an operation.

    Attributes
    ----------
    backward
        ``backward(inputs, outputs, gradients, wanted)`` returns the gradient of each input, None
        for one that has none. `wanted` are the places of the inputs whose gradients are asked for.
    pushforward
        ``pushforward(inputs, outputs, tangents)`` returns the tangents of the outputs from the
        tangents of inputs, both by places. By default it is the transpose of `backward`.
    reads_outputs
        Whether these functions read `outputs`; otherwise they get none.
    recording
        ``recording(moving)`` tells how the operation runs where the inputs at some places have
        tangents; None where it runs as without them.
    """

    backward: Callable[..., Any]
    pushforward: Callable[..., Mapping[int, Any]] | None = None
    reads_outputs: bool = True
    recording: Callable[[tuple[int, ...]], Recording | None] | None = None


def differentiable(
    results: Built, run: Callable[..., Any], static: Sequence[int], derivative: Derivative | None
) -> Callable[..., Any]:
    """The operation `run` with a derivative; if that isn't known, with an error for callers who ask
    for it.

    Parameters
    ----------
    results
        The function.
    run
        The operation.
    static
        The places of the inputs that JAX doesn't see.
    derivative
        The derivative; None where it isn't known.
    """
    jax = imported("jax", "jax_op")
    made: Any = jax.custom_jvp(run, nondiff_argnums=tuple(static))
    floats = _floats(results)

    def rule(*args: Any) -> tuple[Any, Any]:
        *sizes, primals, tangents = args
        inputs, moved = list(primals), list(tangents)
        for place, size in zip(static, sizes, strict=True):
            inputs.insert(place, size)
            moved.insert(place, None)
        moving = {i: each for i, each in enumerate(moved) if _moves(jax, each)}
        if not moving or not floats:
            returned = made(*inputs)
            still = returned if isinstance(returned, tuple) else (returned,)
            return returned, results.returned([_zero(jax, each) for each in still])
        if derivative is None:
            raise TypeError(
                f"{results.name}: expected a backward to differentiate the operation, got "
                "none: jax_op(backward=...)"
            )
        outputs, now, kept = _recorded(made, derivative, inputs, tuple(moving))
        hidden = tuple(zip(static, sizes, strict=True))
        linear = _Derivative(results, now, hidden, tuple(moving))
        residuals = [each for i, each in enumerate(inputs) if i not in static]
        like = [outputs[i] for i in floats]
        pushed = {i: _zero(jax, each) for i, each in enumerate(outputs)}
        made_of = linear_call(linear, [*residuals, *kept], list(moving.values()), like)
        pushed.update(zip(floats, made_of, strict=True))
        return results.returned(outputs), results.returned(list(pushed.values()))

    made.defjvp(rule, symbolic_zeros=True)
    operation: Callable[..., Any] = made
    return operation


def _recorded(
    run: Callable[..., Any], derivative: Derivative, inputs: Sequence[Any], moving: tuple[int, ...]
) -> tuple[Sequence[Any], Derivative, Sequence[Any]]:
    """The outputs of the operation `run`, whose tangents a second derivative may need as well; its
    derivative; and the arrays that the derivative takes behind the inputs."""
    found = None if derivative.recording is None else derivative.recording(moving)
    returned = run(*inputs) if found is None else found.run(*inputs)
    every = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if found is None:
        return every, derivative, every if derivative.reads_outputs else ()
    return every[: found.outputs], found.derivative, [every[place] for place in found.kept]


def _moves(jax: Any, tangent: Any) -> bool:
    if tangent is None or isinstance(tangent, jax.custom_derivatives.SymbolicZero):
        return False
    return bool(tangent.dtype != jax.dtypes.float0)


def _zero(jax: Any, value: Any) -> Any:
    """The zero tangent of a value."""
    if _is_floating(jax, value):
        return jax.numpy.zeros_like(value)
    return np.zeros(value.shape, jax.dtypes.float0)


@final
@record()
class _Derivative:
    """The derivative of an operation at some inputs, a linear map: from the tangents of the inputs
    that have some to the tangents of the floating-point outputs.

    Attributes
    ----------
    results, derivative
        The function and its derivative.
    hidden
        The places and values of the inputs that JAX doesn't see.
    moving
        The places of the inputs that have tangents.
    """

    results: Built
    derivative: Derivative
    hidden: tuple[tuple[int, Any], ...]
    moving: tuple[int, ...]

    def push(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        if self.derivative.pushforward is None:
            return self._transposed(residuals, tangents)
        inputs, outputs = self._arguments(residuals)
        moving = dict(zip(self.moving, tangents, strict=True))
        found = self.derivative.pushforward(inputs, outputs, moving)
        return [found[place] for place in _floats(self.results)]

    def pull(self, residuals: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
        jax = imported("jax", "jax_op")
        results = self.results
        inputs, outputs = self._arguments(residuals)
        given = dict(zip(_floats(results), gradients, strict=True))
        heads = [
            given[place] if place in given else np.zeros(shape, jax.dtypes.float0)
            for place, shape in enumerate(results.shapes(inputs))
        ]
        made = self.derivative.backward(inputs, outputs, results.returned(heads), self.moving)
        found = _checked(jax, results, inputs, made)
        return [
            jax.numpy.zeros_like(inputs[place]) if found[place] is None else found[place]
            for place in self.moving
        ]

    def _transposed(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        """The tangents of the outputs, as gradients of the values that `pull` computes."""
        jax = imported("jax", "jax_op")
        results = self.results
        shapes = results.shapes(self._arguments(residuals)[0])
        heads = [
            jax.numpy.zeros(shapes[place], str(results.dtype(results.outputs[place])))
            for place in _floats(results)
        ]
        _, transpose = jax.vjp(lambda *heads: tuple(self.pull(residuals, heads)), *heads)
        made: Sequence[Any] = transpose(tuple(tangents))
        return made

    def _arguments(self, residuals: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """The inputs, and behind them the arrays that the derivative reads: the outputs of the
        operation, or the arrays that it kept."""
        count = len(self.results.inputs) - len(self.hidden)
        inputs, more = list(residuals[:count]), list(residuals[count:])
        for place, value in self.hidden:
            inputs.insert(place, value)
        return tuple(inputs), self.results.returned(more) if more else ()


def _floats(results: Built) -> list[int]:
    """The places of the floating-point outputs, which have tangents."""
    return [place for place, at in enumerate(results.outputs) if results.dtype(at).is_float]


def _checked(jax: Any, results: Built, inputs: Sequence[Any], found: Any) -> Sequence[Any]:
    """Checks the result of `backward`: a gradient or None for each input."""
    given = found if isinstance(found, tuple | list) else (found,)
    if len(given) != len(results.inputs):
        names = ", ".join(results.names[position] for position in results.inputs)
        raise TypeError(
            f"{results.name}: backward: expected {len(results.inputs)} gradients ({names}), got "
            f"{len(given)}"
        )
    return [
        _gradient(jax, argument(results, position), value, gradient)
        for position, value, gradient in zip(results.inputs, inputs, given, strict=True)
    ]


def _gradient(jax: Any, where: str, value: Any, gradient: Any) -> Any:
    if gradient is None or not _is_floating(jax, value):
        return None
    gradient = jax.numpy.asarray(gradient)
    if gradient.shape != value.shape or gradient.dtype != value.dtype:
        raise TypeError(
            f"{where}: expected a gradient of shape {value.shape} and dtype {value.dtype}, got "
            f"shape {gradient.shape} and dtype {gradient.dtype}"
        )
    return gradient


def _is_floating(jax: Any, value: Any) -> bool:
    return hasattr(value, "dtype") and bool(jax.numpy.issubdtype(value.dtype, np.floating))


def argument(results: Built, position: int) -> str:
    """The text for an argument in messages."""
    return f"{results.name}: argument {position} '{results.names[position]}'"
