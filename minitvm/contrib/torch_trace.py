"""Plain calls of built functions in programs that torch traces: operators that write outputs."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

from minitvm.contrib.imported import imported
from minitvm.contrib.results import Results, results_of
from minitvm.contrib.torch_library import schema_type, parameter
from minitvm.runtime.packed_func import Function

_functions: dict[str, Function] = {}
_library = None


def traced_name(address: int) -> str:
    function = ctypes.cast(address, ctypes.py_object).value
    print("register", function)
    torch = imported("torch", "torch_op")
    results = results_of(function)
    name = function.name
    if name in _functions: return name
    global _library
    _functions[name]=function
    _library = torch.library.Library("minitvm","FRAGMENT")
    kinds=[]
    for at in range(len(results.params)):
        k=schema_type(results,at)
        if at in results.outputs: k=f"Tensor(a{at}!)"
        kinds.append(f"{k} {parameter(results,at)}")
    _library.define(f"{name}({', '.join(kinds)}) -> ()")
    _library.impl(name, function.__call__, "CPU")
    torch.library.register_fake(f"minitvm::{name}", lambda *a: None, lib=_library)
    return name
