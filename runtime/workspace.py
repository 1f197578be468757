"""Workspaces: the memory of a kernel's large intermediate results.

They come out of the CPU's pool, which keeps memory that is given back: a fresh page costs about 0.9
us at its first touch, more than computing its contents may take. A thread needs no GIL for one.
"""

from __future__ import annotations

from typing import final

from minitvm.runtime.device_api.allocator import cpu_allocator
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record

ALIGNMENT = CACHE_LINE  # the alignment of a workspace


@final
@record()
class Workspaces:
    """The addresses of the functions that allocate and free workspaces.

    ``void* allocate(int64_t size)`` returns memory aligned to :data:`ALIGNMENT`, or NULL; ``void
    give_back(void*)`` frees it, in any thread.
    """

    allocate: int
    give_back: int


def workspaces() -> Workspaces:
    """The workspaces of this process, whose code is compiled on the first call.

    >>> workspaces().allocate != 0
    True
    """
    return Workspaces(*cpu_allocator().workspace_functions())
