"""Tells which calls of an operator of torch need only its result, or its result and its gradient.

torch's dispatcher takes microseconds to find that a call is neither traced nor recorded, batched,
profiled or cast. Here torch's own flags answer the same questions in some hundred nanoseconds;
where a version of torch lacks one of them, every call goes through the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

# Each function returns 0, False or None where nothing watches the running operators.
_WATCHERS = (
    "_C._len_torch_dispatch_stack",  # fake tensors, make_fx, logging, functionalisation
    "_C._len_torch_function_stack",  # set_default_device, TorchFunctionMode
    "_C._functorch.peek_interpreter_stack",  # vmap, grad, jvp
    "_C._get_tracing_state",  # torch.jit.trace
    "_C._is_any_autocast_enabled",
    "_C._autograd._profiler_enabled",
)


class Call(Enum):
    """The results that a call of an operator needs."""

    PLAIN = 1  # only its result
    RECORDED = 2  # its result, and later its gradient
    WATCHED = 3  # the call goes to torch's dispatcher


def watched_calls(torch: Any) -> Callable[[], bool]:
    """A function that tells whether something watches the running operators."""
    try:
        watchers = [attrgetter(name)(torch) for name in _WATCHERS]
    except AttributeError:
        return lambda: True
    dispatching, calling, transforming, tracing, casting, profiling = watchers
    has_tangents = forward_mode(torch)
    is_compiling = torch.compiler.is_dynamo_compiling

    def is_watched() -> bool:
        if is_compiling():  # asked first: torch.compile traces no further
            return True
        return bool(
            dispatching()
            or calling()
            or transforming()
            or tracing()
            or casting()
            or profiling()
            or has_tangents()
        )

    return is_watched


def kinds_of_calls(torch: Any) -> Callable[[Sequence[Any]], Call]:
    """A function that tells the kind of a call from its arguments."""
    any_requires_grad = getattr(torch._C, "_any_requires_grad", None)
    if any_requires_grad is None:
        return lambda args: Call.WATCHED
    is_watched, is_grad_enabled = watched_calls(torch), torch.is_grad_enabled
    kinds = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool})

    def kind_of(args: Sequence[Any]) -> Call:
        if is_watched():
            return Call.WATCHED
        for value in args:
            if type(value) not in kinds:
                return Call.WATCHED
        recorded = is_grad_enabled() and any_requires_grad(*args)
        return Call.RECORDED if recorded else Call.PLAIN

    return kind_of


def transformed_calls(torch: Any) -> Callable[[], bool]:
    """A function that tells whether a transform of ``torch.func`` runs, and runs eagerly, or a
    level of forward-mode differentiation is open. A transform that takes mutations out
    (``functionalize``) doesn't count, since it has nothing to do with gradients."""
    try:
        transforming = torch._C._functorch.peek_interpreter_stack
        functionalizing = torch._C._functorch.TransformType.Functionalize
    except AttributeError:
        return lambda: False
    is_compiling, has_tangents = torch.compiler.is_dynamo_compiling, forward_mode(torch)

    def is_transformed() -> bool:
        if is_compiling():
            return False
        found = transforming()
        return has_tangents() if found is None else bool(found.key() != functionalizing)

    return is_transformed


def forward_mode(torch: Any) -> Callable[[], bool]:
    """A function that tells whether tensors may have tangents: a level of forward-mode
    differentiation is open, or this version of torch doesn't tell."""
    levels = torch.autograd.forward_ad
    return lambda: getattr(levels, "_current_level", 0) >= 0
