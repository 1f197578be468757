"""Addresses of torch's own functions that tell whether anything watches its operators in a thread.

torch's own headers call the same functions (``c10/core/impl/LocalDispatchKeySet.h``,
``ATen/PythonTorchFunctionTLS.h``, ``ATen/record_function.h``). Their answers are compared with
those of torch's Python interface before they are used.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

# The keys that are included in a thread where something watches its operators: modes of Python code
# (fake tensors, make_fx, functionalisation), torch.export's, transforms (vmap, grad), jit.trace.
_WATCHERS = (
    "Python",
    "PythonTLSSnapshot",
    "PythonDispatcher",
    "PreDispatch",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "Functionalize",
    "Tracer",
)
_AUTOCAST = "AutocastCPU"  # excluded where autocast is off

_FUNCTIONS = (
    "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE",
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "_ZN2at12hasCallbacksEv",
)


class TorchState(NamedTuple):
    """Addresses of torch's functions about the running thread; and torch's numbers of dispatch
    keys."""

    includes: int  # bool tls_is_dispatch_key_included(DispatchKey)
    excludes: int  # bool tls_is_dispatch_key_excluded(DispatchKey)
    function_modes: int  # int64_t PythonTorchFunctionTLS::stack_len()
    observed: int  # bool hasCallbacks(), of profilers
    watchers: tuple[int, ...]
    autocast: int


def torch_state(torch: Any) -> TorchState | None:
    """The functions, if their results agree with torch's Python interface; None if they don't, or
    if a version of torch lacks one."""
    try:
        library = ctypes.PyDLL(torch._C.__file__)  # and the libraries that it needs
        includes, excludes, function_modes, observed = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS
        )
        keys = [torch._C._dispatch_key_parse(name) for name in (*_WATCHERS, _AUTOCAST)]
        *watchers, autocast = map(int, keys)
        found = TorchState(includes, excludes, function_modes, observed, tuple(watchers), autocast)
        return found if _tells(torch, found, keys) else None
    except (AttributeError, OSError, TypeError, RuntimeError):
        return None


def _tells(torch: Any, state: TorchState, keys: list[Any]) -> bool:
    """Whether the functions agree with torch's Python interface about each key, included, excluded
    and left alone; about modes; and about profilers."""
    core = torch._C
    asks = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_uint16)
    includes, excludes = asks(state.includes), asks(state.excludes)
    number = ctypes.PYFUNCTYPE(ctypes.c_int64)(state.function_modes)
    ctypes.PYFUNCTYPE(ctypes.c_bool)(state.observed)()

    def agree() -> bool:
        return all(
            includes(int(key)) == core._dispatch_tls_is_dispatch_key_included(key)
            and excludes(int(key)) == core._dispatch_tls_is_dispatch_key_excluded(key)
            for key in keys
        )

    for key in keys:
        with core._IncludeDispatchKeyGuard(key):
            if not (includes(int(key)) and agree()):
                return False
        with core._ExcludeDispatchKeyGuard(core.DispatchKeySet(key)):
            if not (excludes(int(key)) and agree()):
                return False
    return agree() and bool(number() == core._len_torch_function_stack())
