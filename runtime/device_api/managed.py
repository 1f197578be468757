"""ManagedDevice: one device, with its memory and its streams."""

from __future__ import annotations

import weakref
from functools import partial
from typing import final

from minitvm.runtime.device_api.allocator import (
    Allocator,
    AllocatorStats,
    Block,
    CPUAllocator,
    DeviceBlock,
    cpu_allocator,
)
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import Device, Handle
from minitvm.runtime.device_api.streams import Event, Stream, innermost_stream, stream_of
from minitvm.runtime.device_type import BareDevice, DeviceType
from minitvm.runtime.errors import DeviceError


@final
class ManagedDevice:
    """The memory and the streams that the arrays and kernels of one device share."""

    def __init__(self, driver: Driver, device: BareDevice) -> None:
        self.driver = driver
        self.device: Device = device
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self._default: list[Stream] = []
        self._allocators: list[Allocator | CPUAllocator] = []

    @property
    def allocator(self) -> Allocator | CPUAllocator:
        """The allocator of the device's memory, made when it is first asked for."""
        if not self._allocators:
            on_host = self.device.device_type == DeviceType.CPU
            made = cpu_allocator() if on_host else Allocator(self.driver, self.device)
            self._allocators.append(made)  # if two threads make one, both use the first
        return self._allocators[0]

    def create_stream(self) -> Stream:
        stream = Stream(self.driver, self.device, self._end_stream)
        self._streams[id(stream)] = stream
        return stream

    def _end_stream(self, handle: Handle) -> None:
        destroy = partial(self.driver.destroy_stream, self.device, handle)
        if not self._allocators or not isinstance(self.allocator, Allocator):
            destroy()
            return
        try:
            self.allocator.release_stream(handle, destroy)
        except DeviceError:  # a failure on the stream, which has now been reported
            self.allocator.tidy()
            raise

    def create_event(self) -> Event:
        return Event(self.driver, self.device)

    @property
    def current_stream(self) -> Stream:
        """The stream on which kernels of this thread run: the stream of the ``with stream:``
        around, or one that the device has for all threads."""
        found = innermost_stream(self.device)
        if found is not None:
            return found
        if not self._default:
            self._default.append(self.create_stream())  # of two at once, the first is used
        return self._default[0]

    def allocate(self, size: int) -> Block:
        """New memory; with a ``with stream:`` around, to be used on that stream first."""
        stream = innermost_stream(self.device)
        return self.allocator.allocate(size, None if stream is None else stream.handle)

    def use_on(self, block: DeviceBlock, stream: Stream) -> None:
        """Notes that a stream of the device is about to use a block."""
        if block.is_recorded(stream.handle):
            return
        if block.stream is not None:  # whose other work may have used these bytes
            event = self.create_event()
            event.record_handle(block.stream)
            stream.wait(event)
        block.record_stream(stream.handle)

    def synchronize(self, stream: Stream | None = None) -> None:
        """Wait until all work of the device, or the work on a stream, is done."""
        if stream is not None:
            stream_of(self.device, stream, "sync").synchronize()
            return
        if not self.driver.has_streams and not self.driver.provides("synchronize_device"):
            return
        streams = [each for found in self._streams.valuerefs() if (each := found()) is not None]
        kept = [(each, each.kept) for each in streams]
        try:
            self.driver.synchronize_device(self.device)
        except BaseException:
            for each in streams:
                each.forget_done()
            raise
        for each, objects in kept:
            each.forget(objects)

    def properties(self) -> dict[str, object]:
        return dict(self.driver.get_device_properties(self.device))

    def memory_stats(self) -> AllocatorStats:
        return self.allocator.stats()

    @property
    def used_bytes(self) -> int:
        """The bytes of live arrays on the device."""
        return self.allocator.stats().allocated if self._allocators else 0

    def close(self) -> None:
        """Give the device's resources back; the device isn't used any longer."""
        self._default.clear()
        if self._allocators and isinstance(self.allocator, Allocator):
            self.allocator.close()
        self.driver.deinit_device(self.device)
