"""Addresses of torch's own functions that tell whether anything watches its operators in a thread.

torch's own headers call the same functions (``c10/core/impl/LocalDispatchKeySet.h``,
``ATen/PythonTorchFunctionTLS.h``, ``ATen/record_function.h``). Their answers are compared with
those of torch's Python interface before they are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

from minitvm.runtime.foreign import Memory
from minitvm.runtime.traced import NOTERS

# The keys that are included in a thread where something watches its operators: all that note them,
# and transforms (vmap, grad, functionalisation).
_WATCHERS = (
    *NOTERS,
    "PythonTLSSnapshot",
    "PythonDispatcher",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "Functionalize",
)
_AUTOCAST = "AutocastCPU"  # excluded where autocast is off

_FUNCTIONS = (
    "_ZN3c104impl23IncludeDispatchKeyGuardC1ENS_14DispatchKeySetE",
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "_ZN2at12hasCallbacksEv",
)


class TorchState(NamedTuple):
    """Addresses of torch's functions about the running thread, and words of torch's sets of
    dispatch keys.

    The guard of the empty set changes nothing; its first word is the address of the thread's own
    two sets, of the keys that are included and excluded.
    """

    guard: int  # void IncludeDispatchKeyGuard(IncludeDispatchKeyGuard* this, DispatchKeySet)
    function_modes: int  # int64_t PythonTorchFunctionTLS::stack_len()
    observed: int  # bool hasCallbacks(), of profilers
    noters: int
    watchers: int  # and noters
    autocast: int


def torch_state(torch: Any) -> TorchState | None:
    """The functions, if their results agree with torch's Python interface; None if they don't, or
    if a version of torch lacks one."""
    try:
        library = ctypes.PyDLL(torch._C.__file__)  # and the libraries that it needs
        guard, function_modes, observed = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS
        )
        keys = [torch._C._dispatch_key_parse(name) for name in (*_WATCHERS, _AUTOCAST)]
        words = [int(torch._C.DispatchKeySet(key).raw_repr()) % (1 << 64) for key in keys]
        noters, watchers = sum(words[: len(NOTERS)]), sum(words[:-1])
        found = TorchState(guard, function_modes, observed, noters, watchers, words[-1])
        return found if _tells(torch, found, dict(zip(keys, words, strict=True))) else None
    except (AttributeError, OSError, TypeError, RuntimeError):
        return None


def _tells(torch: Any, state: TorchState, words: Mapping[Any, int]) -> bool:
    """Whether the functions agree with torch's Python interface about each key, included, excluded
    and left alone; about modes; and about profilers."""
    core = torch._C
    number = ctypes.c_uint64
    guard = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, number)(state.guard)

    def sets() -> tuple[int, ...] | None:
        made = (number * 8)()
        guard(ctypes.addressof(made), 0)
        with Memory() as memory:
            return memory.integers(made[0], 2) if made[0] else None

    def agree() -> bool:
        # A set is stored as its difference from the usual one; autocast is usually excluded.
        found = sets()
        return found is not None and all(
            bool(found[0] & word) == core._dispatch_tls_is_dispatch_key_included(key)
            and bool(found[1] & word)
            == (core._dispatch_tls_is_dispatch_key_excluded(key) != (word == state.autocast))
            for key, word in words.items()
        )

    for key in words:
        with core._IncludeDispatchKeyGuard(key):
            if not agree():
                return False
        with core._ExcludeDispatchKeyGuard(core.DispatchKeySet(key)):
            if not agree():
                return False
    if not agree():
        return False
    ctypes.PYFUNCTYPE(ctypes.c_bool)(state.observed)()
    modes = ctypes.PYFUNCTYPE(ctypes.c_int64)(state.function_modes)()
    return bool(modes == core._len_torch_function_stack())
