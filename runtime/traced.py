"""Calls in programs that torch traces: they become operators of torch that write their outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minitvm.runtime.bridges import bridge
from minitvm.runtime.frameworks import is_a, is_differentiated

# The dispatch keys that a thread includes where torch notes the operators that run in it: modes of
# Python code (make_fx, fake tensors, TorchDispatchMode), torch.jit.trace, and torch.export's modes.
NOTERS = ("Python", "Tracer", "PreDispatch")


def is_read_by_torch() -> bool:
    """Whether torch.compile is tracing the caller's Python code instead of running it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


def is_watched_by_torch() -> bool:
    """Whether torch notes the operators that run in this thread, so that a call must be one of
    them: ``make_fx`` and other modes of dispatch do, and ``torch.jit.trace``. In the kernel of an
    operator that is noted, torch has left the mode, or excluded its key."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    core = torch._C
    keys = map(core._dispatch_key_parse, NOTERS)
    return any(
        core._dispatch_tls_is_dispatch_key_included(key)
        and not core._dispatch_tls_is_dispatch_key_excluded(key)
        for key in keys
    )


def is_operator(name: str, values: Sequence[Any]) -> bool:
    """Whether a call of a function must become an operator of torch. A call with tensors that are
    differentiated doesn't, since the operator has no derivative: the function refuses them.

    Raises
    ------
    TypeError
        When torch notes its operators, and there are other arrays beside torch's: an operator of
        torch takes none.
    """
    if is_without_data(values):
        return True
    arrays = [value for value in values if not isinstance(value, _NUMBERS)]
    others = [value for value in arrays if not is_a(value, "torch", "Tensor")]
    if len(others) == len(arrays) or not is_watched_by_torch():
        return False
    if others:
        raise TypeError(
            f"{name}: expected tensors of torch alone, since torch notes the operators that run "
            f"(make_fx, torch.jit.trace, a mode), got {type(others[0]).__name__} beside them: pass "
            "torch.from_numpy(x)"
        )
    return not any(map(is_differentiated, arrays))


def numbers_of_python(values: Iterable[Any]) -> tuple[Any, ...]:
    """Some arguments, in which Python's numbers replace numpy's: torch's graphs hold no others."""
    return tuple(value.item() if isinstance(value, np.generic) else value for value in values)


_NUMBERS = (bool, int, float, np.generic)


def is_without_data(values: Sequence[Any]) -> bool:
    """Whether a call must become an operator of torch since a tensor lacks data: an argument is a
    tensor by which torch traces its operations, and all arrays are torch's, since its operators
    take no others; or all tensors have only a shape."""
    arrays = [value for value in values if not isinstance(value, _NUMBERS)]
    if not all(is_a(value, "torch", "Tensor") or _is_proxy(value) for value in arrays):
        return False
    return any(map(_is_traced, arrays)) or (
        bool(arrays) and all(value.device.type == "meta" for value in arrays)
    )


def _is_proxy(value: object) -> bool:
    return is_a(value, "torch.fx.proxy", "Proxy")  # of symbolic_trace


def _is_traced(value: object) -> bool:
    return (
        _is_proxy(value)
        or is_a(value, "torch._subclasses.fake_tensor", "FakeTensor")
        or is_a(value, "torch._subclasses.functional_tensor", "FunctionalTensor")
        or bool(sys.modules["torch"]._is_functional_tensor(value))
    )


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
