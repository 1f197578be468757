"""Calls in programs that torch traces, which become operators of torch that write their outputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from minitvm.runtime.bridges import bridge
from minitvm.runtime.frameworks import is_a


def is_read_by_torch() -> bool:
    """Whether torch.compile is reading the caller's Python code in place of running it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


def is_without_data(values: Sequence[Any]) -> bool:
    """Whether one of some arguments is a tensor by which torch records what happens to it, and all
    of them are torch's, which alone its operators take."""
    is_recorded = any(
        is_a(value, "torch._subclasses.fake_tensor", "FakeTensor")
        or is_a(value, "torch._subclasses.functional_tensor", "FunctionalTensor")
        for value in values
    )
    return is_recorded and all(
        isinstance(value, bool | int | float) or is_a(value, "torch", "Tensor") for value in values
    )


def _operator_name(address: int) -> str:
    return str(bridge("traced_operator")(address))


# What torch.compiler.assume_constant_result does, without an import of torch: torch.compile calls
# the function while it reads a program, and keeps the result, with a guard for the address.
_operator_name._dynamo_marked_constant = True  # type: ignore[attr-defined]  # an attribute of torch


def call_traced(function: Any, args: tuple[Any, ...]) -> None:
    """A call of a compiled function by its operator."""
    operators = sys.modules["torch"].ops.minitvm
    getattr(operators, _operator_name(id(function))).default(*args)
