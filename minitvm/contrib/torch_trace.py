"""Plain calls of built functions in programs that torch traces: operators that write outputs.

``f(x, y)`` in a program that torch.compile or torch.export reads becomes an operator below
``torch.ops.minitvm`` by itself. The name holds a digest of the program, so that it means the same
in every process, as torch's caches of compiled programs expect.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

from minitvm.contrib.imported import imported
from minitvm.contrib.torch_library import parameter, schema_type
from minitvm.contrib.torch_op import register_torch_op
from minitvm.runtime.packed_func import Function
from minitvm.runtime.results import Results
from minitvm.tir.expr import Buffer

# The operators and their functions live as long as torch knows them: to the end of the process.
_functions: dict[str, Function] = {}
_libraries: list[Any] = []


def traced_operator(address: int) -> str:
    """The name of the operator of the function at an address, below ``torch.ops.minitvm``."""
    return _named(address, "", _define)


def returning_operator(address: int) -> str:
    """As :func:`traced_operator`, the operator that returns the function's outputs."""
    return _named(address, "_returning", _define_returning)


def _named(address: int, kind: str, define: Callable[[str, Function], None]) -> str:
    function: Function = ctypes.cast(address, ctypes.py_object).value
    name = _name(function) + kind
    while name in _functions and _functions[name] is not function:
        name += "_"  # another function of the same text, perhaps built with other options
    if name not in _functions:
        define(name, function)
        _functions[name] = function
    return name


def _define_returning(name: str, function: Function) -> None:
    register_torch_op(function, f"minitvm::{name}")


def _name(function: Function) -> str:
    text = str(_lowered(function))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    own = "".join(each if each.isascii() and each.isalnum() else "_" for each in function.name)
    return f"{own}_{digest}" if own[:1].isalpha() else f"f{own}_{digest}"


def _lowered(function: Function) -> Any:
    program: Any = function.program
    return program.lowered[function.name]


def _define(name: str, function: Function) -> None:
    torch = imported("torch", "torch.compile")
    func = _lowered(function)
    params = func.arguments
    arguments = Results(
        function.name,
        function.arg_names,
        tuple(each.dtype for each in params),
        tuple(each.ndim if isinstance(each, Buffer) else -1 for each in params),
        tuple(range(len(params))),
        (),
    )
    kinds = [
        f"{_kind(arguments, at, function.written)} {parameter(arguments, at)}"
        for at in range(len(params))
    ]
    library = torch.library.Library("minitvm", "FRAGMENT")
    library.define(f"{name}({', '.join(kinds)}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(torch.ops.minitvm, name).default
    library.impl(name, _kernel(torch, function), "CPU")
    library.impl(name, _autograd_kernel(torch, function, overload), "Autograd")
    torch.library.register_fake(f"minitvm::{name}", lambda *args: None, lib=library)
    _libraries.append(library)


def _kind(arguments: Results, at: int, written: frozenset[int]) -> str:
    kind = schema_type(arguments, at)
    return f"Tensor(a{at}!)" if at in written else kind


def _kernel(torch: Any, function: Function) -> Callable[..., None]:
    written = sorted(function.written)

    def run(*args: Any) -> None:
        function(*args)
        for at in written:
            torch.autograd.graph.increment_version(args[at])

    return run


def _autograd_kernel(torch: Any, function: Function, overload: Any) -> Callable[..., None]:
    """Refuses tensors that require grad, as a call that isn't traced does."""

    def check(*args: Any) -> None:
        if torch.is_grad_enabled():
            for at, value in enumerate(args):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise BufferError(
                        f"{function.name}: argument {at} '{function.arg_names[at]}': expected a "
                        "tensor that doesn't require grad, got one that does: pass x.detach(), or "
                        "make an operator with a gradient, f.torch_op(name, backward)"
                    )
        with torch._C._AutoDispatchBelowAutograd():
            overload(*args)

    return check
