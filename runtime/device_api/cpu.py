"""The CPU as a device: all its memory is the host's, and everything is done at once."""

from __future__ import annotations

import ctypes
from typing import final

from minitvm.runtime.device_api.interface import DeviceInterface, Kernel, MemoryStats
from minitvm.runtime.device_api.memory_pool import give_up, memory_of_machine, obtain
from minitvm.runtime.device_type import BareDevice


@final
class HostMemory(DeviceInterface):
    """The memory of the CPU. Pinned and unified memory are the same."""

    def device_memory_allocate(self, device: BareDevice, size: int) -> int:
        return obtain(size)

    def device_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        give_up(address)

    host_memory_allocate = unified_memory_allocate = device_memory_allocate
    host_memory_deallocate = unified_memory_deallocate = device_memory_deallocate

    def device_memory_set(self, device: BareDevice, address: int, value: int, size: int) -> None:
        ctypes.memset(address, value, size)

    def device_memory_stats(self, device: BareDevice) -> MemoryStats:
        found = memory_of_machine()
        if found is None:
            raise OSError("the system doesn't tell how much memory there is")
        return found

    def memory_copy_h2d(self, device: BareDevice, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    memory_copy_d2h = memory_copy_d2d = memory_copy_h2d

    def get_device_count(self) -> int:
        return 1

    def launch(self, device: BareDevice, stream: object, kernel: Kernel) -> None:
        kernel(lambda address, size: address)
