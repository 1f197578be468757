"""The CPU as a device: all its memory is the host's, and everything is done at once."""

from __future__ import annotations

import ctypes
import os
from typing import final

from minitvm.runtime.device_api.interface import ALIGNMENT, DeviceInterface, Kernel, MemoryStats
from minitvm.runtime.device_type import BareDevice

_HUGE_PAGE = 1 << 21
_MADV_HUGEPAGE = 14

_library = ctypes.CDLL(None)
_aligned_alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(
    ("aligned_alloc", _library)
)
_free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", _library))
_madvise = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
    ("madvise", _library)
)


@final
class HostMemory(DeviceInterface):
    """The memory of the CPU. Pinned and unified memory are the same."""

    def device_memory_allocate(self, device: BareDevice, size: int) -> int:
        alignment = _HUGE_PAGE if size >= _HUGE_PAGE else ALIGNMENT
        rounded = -(-size // alignment) * alignment
        found: int | None = _aligned_alloc(alignment, rounded)
        if found and alignment == _HUGE_PAGE:
            _madvise(found, rounded, _MADV_HUGEPAGE)
        return found or 0

    def device_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        _free(address)

    host_memory_allocate = unified_memory_allocate = device_memory_allocate
    host_memory_deallocate = unified_memory_deallocate = device_memory_deallocate

    def device_memory_set(self, device: BareDevice, address: int, value: int, size: int) -> None:
        ctypes.memset(address, value, size)

    def device_memory_stats(self, device: BareDevice) -> MemoryStats:
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
        try:
            return MemoryStats(total, os.sysconf("SC_AVPHYS_PAGES") * page)
        except ValueError:  # a system that doesn't say
            return MemoryStats(total, total)

    def memory_copy_h2d(self, device: BareDevice, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    memory_copy_d2h = memory_copy_d2d = memory_copy_h2d

    def device_min_chunk_size(self, device: BareDevice) -> int:
        return ALIGNMENT

    def device_max_chunk_size(self, device: BareDevice) -> int:
        return 1 << 28

    def device_init_alloc_size(self, device: BareDevice) -> int:
        return _HUGE_PAGE

    def device_realloc_size(self, device: BareDevice) -> int:
        return 1 << 25

    def get_device_count(self) -> int:
        return 1

    def launch(self, device: BareDevice, stream: object, kernel: Kernel) -> None:
        kernel(lambda address, size: address)
