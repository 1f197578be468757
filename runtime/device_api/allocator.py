"""Allocator: the memory of a device, straight from it."""

from __future__ import annotations

from typing import NamedTuple, final

from minitvm.runtime.device import Device
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import Handle


class Statistics(NamedTuple):
    """Bytes."""

    allocated: int


@final
class Block:
    """Memory of a device, given back when this ends."""

    __slots__ = ("_allocator", "address", "size", "stream")

    def __init__(self, allocator: Allocator, address: int, size: int, stream: Handle) -> None:
        self._allocator, self.address, self.size, self.stream = allocator, address, size, stream

    def record_stream(self, stream: Handle) -> None:
        """Used there, too."""

    def __del__(self) -> None:
        self._allocator.driver.device_memory_deallocate(
            self._allocator.device, self.address, self.size
        )
        self._allocator.allocated -= self.size


@final
class Allocator:
    """The memory of a device."""

    def __init__(self, driver: Driver, device: Device) -> None:
        self.driver, self.device, self.allocated = driver, device, 0

    def allocate(self, size: int, stream: Handle = None) -> Block:
        address = self.driver.device_memory_allocate(self.device, size)
        self.allocated += size
        return Block(self, address, size, stream)

    def empty_cache(self) -> None:
        """Nothing."""

    def set_limit(self, limit: int | None) -> None:
        """Nothing."""

    def stats(self) -> Statistics:
        return Statistics(self.allocated)
