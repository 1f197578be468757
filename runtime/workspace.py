"""Workspaces: the memory of a kernel's large intermediate results, kept for the next call.

A fresh page costs about 0.9 us at its first touch, more than computing its contents may take. So
each thread keeps the blocks that it has used and gives them out again, the smallest that fits.
Where none fits, those that are too small go back to the system, so that what is kept follows what
is used; and at most :data:`MOST_KEPT` bytes a thread are kept. They are given back when the thread
ends. A forked child goes on with the blocks of the thread that forked.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import final

from minitvm.runtime.native import NativeCode
from minitvm.runtime.record import record

MOST_KEPT = 256 * 1024 * 1024
ALIGNMENT = 64  # of a workspace, in bytes: a line of the cache
_HUGE_PAGE = 2 * 1024 * 1024

C_LIBRARY = {
    "aligned_alloc": "ptr (i64, i64)",
    "calloc": "ptr (i64, i64)",
    "free": "void (ptr)",
    "madvise": "i32 (ptr, i64, i32)",
    "pthread_getspecific": "ptr (i64)",
    "pthread_key_create": "i32 (ptr, ptr)",
    "pthread_setspecific": "i32 (i64, ptr)",
}

_TEXT = r"""
; A block: the next block that is kept, the bytes of the block, and from byte ALIGNMENT on the
; workspace.
%Block = type { ptr, i64 }
; What a thread keeps: the first block (the last one given back), and the bytes of all.
%Kept = type { ptr, i64 }
; Of 32 bits on Linux, 64 on macOS.
@key = internal global i64 0

define i32 @start() {
  %status = call i32 @pthread_key_create(ptr @key, ptr @end_of_thread)
  ret i32 %status
}

define internal void @end_of_thread(ptr %kept) {
  call void @release_smaller(ptr %kept, i64 -1)
  call void @free(ptr %kept)
  ret void
}

; What this thread keeps; null if there is no memory to note it.
define internal ptr @kept() {
  %key = load i64, ptr @key
  %known = call ptr @pthread_getspecific(i64 %key)
  %fresh = icmp eq ptr %known, null
  br i1 %fresh, label %make, label %leave
make:
  %made = call ptr @calloc(i64 1, i64 16)
  %ignored = call i32 @pthread_setspecific(i64 %key, ptr %made)
  ret ptr %made
leave:
  ret ptr %known
}

; `size` bytes, aligned to ALIGNMENT, or null. The machine's memory counts, since a system that
; hands out more than that ends the process when it is touched.
define ptr @allocate(i64 %size) {
entry:
  %possible = icmp ule i64 %size, MEMORY
  br i1 %possible, label %look, label %refuse
refuse:
  ret ptr null
look:
  %kept = call ptr @kept()
  %unknown = icmp eq ptr %kept, null
  br i1 %unknown, label %refuse, label %search
search:
  %with.head = add i64 %size, 127
  %needed = and i64 %with.head, -64
  %found = call ptr @take(ptr %kept, i64 %needed)
  %missed = icmp eq ptr %found, null
  br i1 %missed, label %miss, label %give
miss:
  call void @release_smaller(ptr %kept, i64 %needed)
  %new = call ptr @obtain(i64 %needed)
  %none = icmp eq ptr %new, null
  br i1 %none, label %refuse, label %give
give:
  %block = phi ptr [ %found, %search ], [ %new, %miss ]
  %memory = getelementptr i8, ptr %block, i64 ALIGNMENT
  ret ptr %memory
}

; The smallest kept block of at least `needed` bytes, no longer kept; null if there is none.
define internal ptr @take(ptr %kept, i64 %needed) {
entry:
  br label %next
next:
  %link = phi ptr [ %kept, %entry ], [ %block, %judge ]
  %best = phi ptr [ null, %entry ], [ %better, %judge ]
  %best.size = phi i64 [ -1, %entry ], [ %better.size, %judge ]
  %block = load ptr, ptr %link
  %over = icmp eq ptr %block, null
  br i1 %over, label %decide, label %judge
judge:
  %size.at = getelementptr %Block, ptr %block, i32 0, i32 1
  %size = load i64, ptr %size.at
  %fits = icmp uge i64 %size, %needed
  %smaller = icmp ult i64 %size, %best.size
  %good = and i1 %fits, %smaller
  %better = select i1 %good, ptr %link, ptr %best
  %better.size = select i1 %good, i64 %size, i64 %best.size
  br label %next
decide:
  %none = icmp eq ptr %best, null
  br i1 %none, label %nothing, label %unlink
nothing:
  ret ptr null
unlink:
  %taken = call ptr @unlink(ptr %kept, ptr %best)
  ret ptr %taken
}

; The block that the pointer at `link` leads to, no longer kept.
define internal ptr @unlink(ptr %kept, ptr %link) {
  %block = load ptr, ptr %link
  %after = load ptr, ptr %block
  store ptr %after, ptr %link
  %size.at = getelementptr %Block, ptr %block, i32 0, i32 1
  %size = load i64, ptr %size.at
  %total.at = getelementptr %Kept, ptr %kept, i32 0, i32 1
  %total = load i64, ptr %total.at
  %less = sub i64 %total, %size
  store i64 %less, ptr %total.at
  ret ptr %block
}

; Gives the kept blocks of less than `size` bytes back to the system.
define internal void @release_smaller(ptr %kept, i64 %size) {
entry:
  br label %next
next:
  %link = phi ptr [ %kept, %entry ], [ %link, %release ], [ %block, %keep ]
  %block = load ptr, ptr %link
  %over = icmp eq ptr %block, null
  br i1 %over, label %leave, label %judge
judge:
  %its.size.at = getelementptr %Block, ptr %block, i32 0, i32 1
  %its.size = load i64, ptr %its.size.at
  %smaller = icmp ult i64 %its.size, %size
  br i1 %smaller, label %release, label %keep
release:
  %taken = call ptr @unlink(ptr %kept, ptr %link)
  call void @free(ptr %taken)
  br label %next
keep:
  br label %next
leave:
  ret void
}

; A new block of `size` bytes; from 2 MiB on of huge pages (14 is MADV_HUGEPAGE), if there are.
define internal ptr @obtain(i64 %size) {
  %large = icmp uge i64 %size, HUGE
  br i1 %large, label %huge, label %small
small:
  %block = call ptr @aligned_alloc(i64 ALIGNMENT, i64 %size)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %leave, label %note
huge:
  %padded = add i64 %size, HUGE
  %less = sub i64 %padded, 1
  %rounded = and i64 %less, -HUGE
  %pages = call ptr @aligned_alloc(i64 HUGE, i64 %rounded)
  %refused = icmp eq ptr %pages, null
  br i1 %refused, label %leave, label %advise
advise:
  %ignored = call i32 @madvise(ptr %pages, i64 %rounded, i32 14)
  br label %note
note:
  %made = phi ptr [ %block, %small ], [ %pages, %advise ]
  %bytes = phi i64 [ %size, %small ], [ %rounded, %advise ]
  %size.at = getelementptr %Block, ptr %made, i32 0, i32 1
  store i64 %bytes, ptr %size.at
  ret ptr %made
leave:
  ret ptr null
}

; Takes back what `allocate` gave this thread, or null.
define void @give_back(ptr %memory) {
  %nothing = icmp eq ptr %memory, null
  br i1 %nothing, label %leave, label %look
look:
  %block = getelementptr i8, ptr %memory, i64 -ALIGNMENT
  %kept = call ptr @kept()
  %size.at = getelementptr %Block, ptr %block, i32 0, i32 1
  %size = load i64, ptr %size.at
  %total.at = getelementptr %Kept, ptr %kept, i32 0, i32 1
  %total = load i64, ptr %total.at
  %more = add i64 %total, %size
  %much = icmp ugt i64 %more, MOST
  br i1 %much, label %release, label %keep
release:
  call void @free(ptr %block)
  br label %leave
keep:
  %first = load ptr, ptr %kept
  store ptr %first, ptr %block
  store ptr %block, ptr %kept
  store i64 %more, ptr %total.at
  br label %leave
leave:
  ret void
}
"""


@final
@record()
class Workspaces:
    """The addresses of the functions that give and take workspaces.

    ``void* allocate(int64_t size)`` gives memory aligned to :data:`ALIGNMENT`, or NULL;
    ``void give_back(void*)`` takes it, in the same thread.
    """

    allocate: int
    give_back: int


_workspaces: dict[str, Workspaces] = {}


def workspaces() -> Workspaces:
    """The workspaces of this process, whose code is compiled on the first call.

    >>> workspaces().allocate != 0
    True
    """
    if "workspaces" not in _workspaces:
        # Without a lock, which a fork could leave locked: the first one is everybody's.
        _workspaces.setdefault("workspaces", _start())
    return _workspaces["workspaces"]


def workspace_text() -> str:
    """The LLVM IR of the workspaces."""
    values = {"ALIGNMENT": ALIGNMENT, "MOST": MOST_KEPT, "HUGE": _HUGE_PAGE, "MEMORY": _memory()}
    return re.sub(r"\b[A-Z]+\b", lambda name: str(values.get(name[0], name[0])), _TEXT)


def _memory() -> int:
    """The bytes of this machine's memory; where the system doesn't tell, more than there can be."""
    if not hasattr(os, "sysconf"):
        return 1 << 62
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _start() -> Workspaces:
    code = NativeCode(workspace_text(), C_LIBRARY, ctypes.CDLL(None))
    if ctypes.CFUNCTYPE(ctypes.c_int)(code.function("start"))() != 0:
        raise MemoryError("workspaces: expected a key for data of a thread, found none left")
    return Workspaces(code.function("allocate"), code.function("give_back"))
