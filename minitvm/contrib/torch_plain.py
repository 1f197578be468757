"""Which calls of an operator of torch want nothing but its result.

torch's dispatcher takes microseconds to find that a call is neither traced nor recorded, batched,
profiled or cast. The same is asked here in some hundred nanoseconds, of torch's own flags; where a
version of torch lacks one of them, every call goes through the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

# Each is 0, False or None where nothing watches the operators that run.
_WATCHERS = (
    "_C._len_torch_dispatch_stack",  # fake tensors, make_fx, logging, functionalisation
    "_C._len_torch_function_stack",  # set_default_device, TorchFunctionMode
    "_C._functorch.peek_interpreter_stack",  # vmap, grad, jvp
    "_C._get_tracing_state",  # torch.jit.trace
    "_C._is_any_autocast_enabled",
    "_C._autograd._profiler_enabled",
)


def plain_calls(torch: Any) -> Callable[[Sequence[Any]], bool]:
    """A function that tells of the arguments of a call whether it wants nothing but the result."""
    try:
        watchers = [attrgetter(name)(torch) for name in _WATCHERS]
        any_requires_grad = torch._C._any_requires_grad
    except AttributeError:
        return lambda args: False
    dispatching, calling, transforming, tracing, casting, profiling = watchers
    is_compiling, is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
    kinds = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool})

    def is_plain(args: Sequence[Any]) -> bool:
        if is_compiling():  # asked first: torch.compile reads no further
            return False
        if dispatching() or calling() or transforming() or tracing() or casting() or profiling():
            return False
        for value in args:
            if type(value) not in kinds:
                return False
        return not (is_grad_enabled() and any_requires_grad(*args))

    return is_plain


def transformed_calls(torch: Any) -> Callable[[], bool]:
    """A function that tells whether a transform of ``torch.func`` runs, and runs eagerly."""
    try:
        transforming = torch._C._functorch.peek_interpreter_stack
    except AttributeError:
        return lambda: False
    is_compiling = torch.compiler.is_dynamo_compiling
    return lambda: not is_compiling() and transforming() is not None
