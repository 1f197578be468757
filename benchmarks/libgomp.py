"""Parallel regions of GCC's OpenMP library, which torch and many others use, without any work."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from minitvm.runtime.native import NativeCode
from minitvm.runtime.native_text import native_text

_REGIONS = r"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
define internal void @nothing(ptr %data) {
  ret void
}

; Enters `number` regions, at least one, of two threads.
define void @regions(i64 %number) {
entry:
  br label %next
next:
  %left = phi i64 [ %number, %entry ], [ %rest, %next ]
  call void @GOMP_parallel(ptr @nothing, ptr null, i32 2, i32 0)
  %rest = sub i64 %left, 1
  %more = icmp sgt i64 %rest, 0
  br i1 %more, label %next, label %leave
leave:
  ret void
}
"""


def regions() -> tuple[Callable[[int], None] | None, str]:
    """What enters a number of empty regions of two threads, and why there is nothing that does."""
    try:
        library = ctypes.CDLL("libgomp.so.1")  # torch's own copy, where that is loaded
    except OSError as error:
        return None, f"not found ({error})"
    code = NativeCode(native_text(_REGIONS), library)
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.function("regions")), ""
