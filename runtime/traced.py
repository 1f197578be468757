"""Calls in programs that torch traces: they become operators of torch that write their outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minitvm.runtime.bridges import bridge
from minitvm.runtime.frameworks import is_a


def is_read_by_torch() -> bool:
    """Whether torch.compile is tracing the caller's Python code instead of running it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


def is_watched_by_torch() -> bool:
    """Whether torch notes the operators that run in this thread, so that a call must be one of
    them: ``make_fx`` and other modes of dispatch do, and ``torch.jit.trace``."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
        or torch._ops._len_torch_dispatch_stack_pre_dispatch()
    )


def is_without_data(values: Sequence[Any]) -> bool:
    """Whether a call must become an operator of torch: an argument is a tensor by which torch
    traces its operations, and all arrays are torch's, since its operators take no others; or all
    tensors have only a shape."""
    arrays = [value for value in values if not isinstance(value, bool | int | float)]
    if not all(is_a(value, "torch", "Tensor") for value in arrays):
        return False
    is_recorded = any(
        is_a(value, "torch._subclasses.fake_tensor", "FakeTensor")
        or is_a(value, "torch._subclasses.functional_tensor", "FunctionalTensor")
        for value in arrays
    )
    return is_recorded or (bool(arrays) and all(value.device.type == "meta" for value in arrays))


def _operator_name(address: int) -> str:
    return str(bridge("traced_operator")(address))


def _returning_name(address: int) -> str:
    return str(bridge("returning_operator")(address))


# As torch.compiler.assume_constant_result, without an import of torch: torch.compile calls the
# function while it traces a program, and keeps the result, with a guard for the address.
for _each in (_operator_name, _returning_name):
    _each._dynamo_marked_constant = True  # type: ignore[attr-defined]  # an attribute of torch


def call_traced(function: Any, args: tuple[Any, ...]) -> None:
    """A call of a compiled function by its operator."""
    operators = sys.modules["torch"].ops.minitvm
    getattr(operators, _operator_name(id(function))).default(*args)


def call_returning_traced(function: Any, values: Iterable[Any]) -> Any:
    """A call of a compiled function that returns its outputs, by its operator."""
    operators = sys.modules["torch"].ops.minitvm
    return getattr(operators, _returning_name(id(function))).default(*values)


def outside_of_programs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that torch.compile calls between two graphs without tracing it."""
    made: Callable[..., Any] = sys.modules["torch"].compiler.disable(function)
    return made
