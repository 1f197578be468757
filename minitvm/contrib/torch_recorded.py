"""Calls that autograd records, which may keep further tensors for the gradients.

A recorded call may run a function of its own, which also returns intermediate tensors of the
computation (:class:`minitvm.contrib.torch_library.Recording`). The intermediate tensors aren't
results, and have no gradients. So gradients that are themselves differentiated
(``create_graph=True``) are computed from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minitvm.contrib.torch_library import Gradients, Recording, is_differentiable, kept
from minitvm.runtime.results import Results

_Run = Callable[..., Any]


def recorded_calls(
    torch: Any,
    name: str,
    results: Results,
    gradients: Gradients,
    plain: _Run,
    chosen: Callable[[Recording], _Run],
) -> Any:
    """A ``torch.autograd.Function`` of an operator.

    Parameters
    ----------
    plain
        Runs the operator where only inputs and outputs are kept.
    chosen
        Tells which recording runs otherwise.
    """
    differentiate, keep = gradients.registered(results)
    heads = [i for i, at in enumerate(results.outputs) if is_differentiable(results, at)]
    is_scalar = [results.is_scalar(at) for at in results.inputs]

    def forward(ctx: Any, *args: Any) -> Any:
        found = None if gradients.recording is None else gradients.recording(ctx.needs_input_grad)
        ctx.recording = found
        if found is None:
            made = plain(*args)
            keep(ctx, args, made)
            return made
        returned = chosen(found)(*args)
        every = returned if isinstance(returned, tuple) else (returned,)
        tensors = (x for x, number in zip(args, is_scalar, strict=True) if not number)
        ctx.save_for_backward(*tensors, *(every[place] for place in found.kept))
        ctx.numbers = {i: args[i] for i, number in enumerate(is_scalar) if number}
        return results.returned(every[: found.outputs])

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found: Recording | None = ctx.recording
        if found is None:
            made: tuple[Any, ...] = differentiate(ctx, *grads)
            return made
        values, more = _parted(kept(ctx), len(is_scalar))
        given = [grads[i].contiguous() for i in heads]
        if torch.is_grad_enabled():
            return gradients.function(values, given, ctx.needs_input_grad)
        return found.function(values, more, given)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


def _parted(values: Sequence[Any], count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    return values[:count], values[count:]
