"""A device that is all bookkeeping: its memory, its streams, and what goes wrong on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, cast

from minitvm.runtime.device_api.allocator import Allocator
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import MemoryStats
from minitvm.runtime.device_type import BareDevice
from minitvm.runtime.errors import DeviceError, DeviceMemoryError

BASE = 1 << 40  # no address of the host's


@dataclass
class SimulatedStream:
    """How much was given to it, and how much of that it has done."""

    given: int = 0
    done: int = 0


@dataclass
class SimulatedMemory:
    """A driver as an allocator wants it. `sizes` has what the device says of sizes; streams are
    made by their first use, and advance when they are told to, or waited for."""

    total: int = 1 << 40
    sizes: dict[str, int] = field(default_factory=dict)
    has_streams: bool = True
    tells: bool = True  # how much memory there is

    def __post_init__(self) -> None:
        self.chunks: dict[int, int] = {}
        self.obtained: list[int] = []  # the sizes of all chunks so far
        self.next_address = BASE
        self.streams: dict[Hashable, SimulatedStream] = {}
        self.events: dict[int, tuple[SimulatedStream, int] | None] = {}
        self.calls: Counter[str] = Counter()
        self.call_number = 0
        self.failing: set[int] = set()  # numbers of calls

    # ---- What tests do ---------------------------------------------------------------------------

    @property
    def used(self) -> int:
        return sum(self.chunks.values())

    def stream(self, handle: Hashable) -> SimulatedStream:
        return self.streams.setdefault(handle, SimulatedStream())

    def submit(self, handle: Hashable) -> None:
        """More work for a stream."""
        self.stream(handle).given += 1

    def finish(self, handle: Hashable) -> None:
        """The stream is done with all its work."""
        self.stream(handle).done = self.stream(handle).given

    def fail_after(self, calls: int) -> None:
        """The call after that many more fails."""
        self.failing.add(self.call_number + calls)

    # ---- What an allocator calls -----------------------------------------------------------------

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        number, self.call_number = self.call_number, self.call_number + 1
        if number in self.failing:
            self.failing.discard(number)
            raise DeviceError(f"simulated: {name} failed")

    def device_memory_allocate(self, device: BareDevice, size: int) -> int:
        self._called("device_memory_allocate")
        assert size > 0
        if self.used + size > self.total:
            raise DeviceMemoryError(f"{device}: no {size} bytes")
        address = self.next_address
        # A gap keeps a chunk from being anybody's neighbour; addresses are as odd as allowed.
        self.next_address += -(-size // 4096) * 4096 + 4096
        self.chunks[address] = size
        self.obtained.append(size)
        return address

    def device_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        self._called("device_memory_deallocate")
        assert self.chunks[address] == size
        del self.chunks[address]

    def device_memory_stats(self, device: BareDevice) -> MemoryStats | None:
        return MemoryStats(self.total, self.total - self.used) if self.tells else None

    def device_min_chunk_size(self, device: BareDevice) -> int:
        return self.sizes.get("min_chunk", 1)

    def device_max_chunk_size(self, device: BareDevice) -> int | None:
        return self.sizes.get("max_chunk")

    def device_max_alloc_size(self, device: BareDevice) -> int | None:
        return self.sizes.get("max_alloc")

    def device_extra_padding_size(self, device: BareDevice) -> int:
        return self.sizes.get("padding", 0)

    def device_init_alloc_size(self, device: BareDevice) -> int | None:
        return self.sizes.get("init")

    def device_realloc_size(self, device: BareDevice) -> int | None:
        return self.sizes.get("realloc")

    def create_event(self, device: BareDevice) -> int:
        self._called("create_event")
        event = len(self.events) + 1
        self.events[event] = None
        return event

    def record_event(self, device: BareDevice, stream: Any, event: int) -> None:
        self._called("record_event")
        assert event in self.events
        found = self.stream(stream)
        self.events[event] = (found, found.given)

    def query_event(self, device: BareDevice, event: int) -> bool:
        self._called("query_event")
        place = self.events[event]
        assert place is not None
        return place[0].done >= place[1]

    def synchronize_event(self, device: BareDevice, event: int) -> None:
        self._called("synchronize_event")
        place = self.events[event]
        assert place is not None
        place[0].done = max(place[0].done, place[1])

    def destroy_event(self, device: BareDevice, event: int) -> None:
        self._called("destroy_event")
        self.events[event] = None


def allocator_of(memory: SimulatedMemory, device: BareDevice) -> Allocator:
    """An allocator of the memory, which has the functions of a driver that an allocator calls."""
    return Allocator(cast(Driver, memory), device)
