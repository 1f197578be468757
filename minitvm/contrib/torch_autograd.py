"""The autograd kernel of an operator: torch's own, except where there is nothing to record.

torch's kernel is Python code that finds out late that there is nothing to record, and dispatches
again below autograd. If nothing watches the running operators and no argument requires grad, the
built function itself is called instead, as in calls that bypass the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from minitvm.runtime.torch_calls import PastDispatcher


def register_autograd(
    torch: Any,
    library: Any,
    name: str,
    backward: Callable[..., Any],
    setup_context: Callable[..., None],
    compute: Callable[..., Any],
    recorded: Callable[..., Any] | None,
) -> None:
    """Registers the gradient of an operator, given by its name in torch. `compute` is the function
    that computes the operator for plain tensors. `recorded` takes the calls that are recorded, if
    such calls keep further tensors."""
    own, kernels = name.partition("::")[2], _Kernels()
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=kernels)
    for key, kernel, options in kernels.found:
        quick = _Unrecorded(torch, compute) if options == {"with_keyset": True} else None
        if recorded is not None:
            kernel = _recording(torch, recorded, kernel)
        library.impl(own, kernel if quick is None else _either(quick, kernel), key, **options)


@final
class _Kernels:
    """Stands for a library of torch, and takes the kernels that torch registers."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def impl(self, name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
        self.found.append((key, kernel, options))


@final
class _Unrecorded(PastDispatcher):
    """Computes calls on plain tensors that need no recording; returns NotImplemented for all
    others."""

    __slots__ = ("_compute",)

    def __init__(self, torch: Any, compute: Callable[..., Any]) -> None:
        self._compute = compute  # kept alive as long as this object
        self._let_pass(torch, compute)

    def __call__(self, *args: Any) -> Any:
        return NotImplemented

    def _call_slowly(self, *args: Any) -> Any:
        return NotImplemented

    def record_unwatched(self, *args: Any) -> Any:
        return NotImplemented


def _recording(
    torch: Any, recorded: Callable[..., Any], kernel: Callable[..., Any]
) -> Callable[..., Any]:
    def choose(keys: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return recorded(*args)
        return kernel(keys, *args)

    return choose


def _either(quick: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    def choose(keys: Any, *args: Any) -> Any:
        made = quick(*args)
        return kernel(keys, *args) if made is NotImplemented else made

    return choose
