"""Parallel regions of GCC's OpenMP library, which torch and many others use, without any work."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from minitvm.runtime.native import NativeCode
from minitvm.runtime.native_text import native_text

_REGIONS = """
def GOMP_parallel(function: ptr, data: ptr, threads: i32, flags: i32): ...

def nothing(data: ptr):
    return

# Enters `number` regions of two threads.
@export
def regions(number: i64):
    for _ in range(number):
        GOMP_parallel(nothing, None, 2, 0)
"""


def regions() -> tuple[Callable[[int], None] | None, str]:
    """What enters a number of empty regions of two threads, and why there is nothing that does."""
    try:
        library = ctypes.CDLL("libgomp.so.1")  # torch's own copy, where that is loaded
    except OSError as error:
        return None, f"not found ({error})"
    code = NativeCode(native_text(_REGIONS), library)
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.function("regions")), ""
