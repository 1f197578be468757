"""ExtDev: a whole device without any hardware, to develop and to test with.

It is strict where hardware may be lenient, so that a mistake shows where it is made. Its memory is
apart from the host's. Its streams run at any time. Tests can order failures.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

from minitvm.runtime.device_api.ext_faults import ON_STREAMS, Error, Fate, Fault, Faults, injected
from minitvm.runtime.device_api.ext_memory import (
    MOST_DEVICES,
    PINNED,
    UNIFIED,
    Memory,
    Place,
    Where,
    integer,
)
from minitvm.runtime.device_api.ext_streams import (
    Failure,
    Operation,
    Point,
    Stream,
    Worker,
    raise_failures,
    refuse_on_worker,
)
from minitvm.runtime.device_api.interface import DeviceInterface, Handle, Kernel, MemoryStats
from minitvm.runtime.device_type import BareDevice
from minitvm.runtime.errors import DeviceError

_FIRST_HANDLE = 16  # 0, 1 and 2 are default streams by DLPack's protocol
_DEFAULT: tuple[Handle, ...] = (None, 0)
_COMPUTE_CAPABILITY = 1
_VERSION = 100


class Sizes(NamedTuple):
    """The sizes by which an allocator decides, in bytes; none exceeds the device's memory."""

    min_chunk: int = 256
    max_chunk: int = 32 << 20
    extra_padding: int = 0
    init_alloc: int = 8 << 20
    realloc: int = 8 << 20


class Usage(NamedTuple):
    """Counts of resources that weren't taken back: allocations and bytes of the devices; bytes of
    pinned and of unified memory; streams and events; threads of streams."""

    allocations: int = 0
    bytes: int = 0
    pinned: int = 0
    unified: int = 0
    streams: int = 0
    events: int = 0
    threads: int = 0


@final
class _Event:
    """An event, and the place of its last recording."""

    def __init__(self, device: BareDevice) -> None:
        self.device = device
        self.point: Point | None = None


class _Call(NamedTuple):
    """A call of a function: the words that begin its errors, and its fate."""

    where: Where
    fate: Fate

    def fail(self) -> None:
        """Raise the injected error of this call, if any."""
        if self.fate.error is not None and not self.fate.is_on_stream:
            raise injected(self.fate.error, f"{self.where}: injected failure")


@final
class ExtDev(DeviceInterface):
    """A simulated device, of several ids: every function of the interface, and faults to order.

    *Memory.* An address of a device has no meaning for the host or for another device, and the
    reverse; every range has to lie in one live allocation. An address is never given a second time.
    Memory that an operation on a stream uses can't be taken back before the operation is over.

    *Streams.* Each has a thread. A failure on a stream is raised by the next wait: for the stream,
    for an event behind the failure, or for the device. Operations put behind the failure are not
    run; operations put on the stream after it was raised are. Functions that copy at once wait for
    the default stream (0 or None) of the device first, and raise its failures. ``destroy_stream``
    waits until the stream is done, and raises a failure that no wait, for another stream either,
    has raised. Kernels and callbacks may put operations on streams, but not wait. If they destroy a
    stream, a wait for the device raises the stream's failures. An event that was never recorded
    counts as happened. In a forked child pending operations don't run; waiting for them is an
    error. When the interpreter ends, pending operations are dropped.

    *Faults.* See :meth:`inject`.

    Parameters
    ----------
    devices
        The number of devices.
    capacity
        The bytes of each; memory of the host stands in for them as they are written.
    sizes
        The sizes that their allocators go by.

    >>> ext, device = ExtDev(capacity=1 << 20), BareDevice(12, 1)
    >>> address = ext.device_memory_allocate(device, 256)
    >>> ext.device_memory_stats(device)
    MemoryStats(total=1048576, free=1048320)
    >>> ext.memory_copy_h2d(BareDevice(12, 0), address, id(ext), 16)
    Traceback (most recent call last):
        ...
    minitvm.runtime.errors.DeviceError: ext_dev(0): memory_copy_h2d: target: expected 16 bytes of \
ext_dev(0), got 0x4081000000010000, byte 0 of 256 of an allocation (ext_dev(1))
    """

    def __init__(
        self,
        devices: int = 2,
        capacity: int = 1 << 30,
        sizes: Sizes = Sizes(),  # noqa: B008
    ) -> None:
        if not 0 < devices <= MOST_DEVICES or capacity <= 0:
            raise ValueError(
                f"ExtDev: expected 1 to {MOST_DEVICES} devices of a capacity above 0, got "
                f"{devices} of {capacity}"
            )
        self._count = devices
        self._sizes = Sizes(*(min(each, capacity) for each in sizes))
        self._memory = Memory(devices, capacity)
        self._faults = Faults()
        self._current = threading.local()
        self._handles = itertools.count(_FIRST_HANDLE)
        self._last_handle = 0
        self._lock = threading.RLock()
        self._defaults: dict[int, Stream] = {}
        self._streams: dict[int, Stream] = {}
        self._orphans: list[Stream] = []  # destroyed by a worker, which can't wait for them
        self._events: dict[int, _Event] = {}
        weakref.finalize(self, _retire_all, self._defaults, self._streams).atexit = False
        _all.add(self)

    # ---- For tests -------------------------------------------------------------------------------

    def inject(
        self,
        function: str | None = None,
        *,
        after: int = 0,
        count: int | None = 1,
        error: Error | None = None,
        delay: float = 0.0,
        on_stream: bool = False,
    ) -> Fault:
        """Let calls fail, or take long, until the fault is removed.

        Functions that take a resource back do so before they fail.

        Parameters
        ----------
        function
            The name of a function of the interface; None is every one.
        after
            The number of calls that succeed before.
        count
            The number of calls that then fail; None is all of them.
        error
            An exception or its class; by default DeviceError, or DeviceMemoryError of an
            allocation; none, if there is a delay.
        delay
            Seconds that a call, or the operation that it puts on a stream, takes longer.
        on_stream
            Whether the operation that the call puts on a stream fails in place of the call.

        Returns
        -------
        Fault
            With ``remove()``; as a context manager, it is removed at its end.

        >>> ext, device = ExtDev(), BareDevice(12)
        >>> with ext.inject("device_memory_allocate", after=1) as fault:
        ...     first = ext.device_memory_allocate(device, 8)
        ...     second = ext.device_memory_allocate(device, 8)
        Traceback (most recent call last):
            ...
        minitvm.runtime.errors.DeviceMemoryError: ext_dev(0): device_memory_allocate: injected \
failure
        >>> fault.calls, fault.hits
        (2, 1)
        """
        with self._lock:
            return self._faults.add(function, after, count, error, delay, on_stream)

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each function."""
        with self._lock:
            return Counter(self._faults.calls)

    @contextlib.contextmanager
    def record(self) -> Iterator[list[str]]:
        """A context manager: the names of the functions that are called in its block, in order."""
        with self._faults.record() as calls:
            yield calls

    def usage(self) -> Usage:
        """The resources that weren't taken back."""
        with self._lock:
            found = tuple(self._memory.allocations())
            host = (PINNED, UNIFIED)
            return Usage(
                sum(each.kind not in host for each in found),
                sum(each.size for each in found if each.kind not in host),
                sum(each.size for each in found if each.kind == PINNED),
                sum(each.size for each in found if each.kind == UNIFIED),
                len(self._streams),
                len(self._events),
                sum(each.is_working for each in self._streams_of()),
            )

    # ---- Every call ------------------------------------------------------------------------------

    def _enter(self, function: str, device: BareDevice | None = None) -> _Call:
        """Count a call, and apply its fate; a call that takes something back fails at its end."""
        where = Where(device, function)
        with self._lock:
            fate = self._faults.meet(function)
        call = _Call(where, fate)
        if function not in _TAKING_BACK:
            call.fail()
        if fate.seconds and function not in ON_STREAMS:
            time.sleep(fate.seconds)
        if device is not None and not 0 <= device.device_id < self._count:
            raise DeviceError(
                f"{where}: expected a device of an id from 0 to {self._count - 1}, got {device}"
            )
        return call

    # ---- Memory ----------------------------------------------------------------------------------

    def device_memory_allocate(self, device: BareDevice, size: int) -> int:
        call = self._enter("device_memory_allocate", device)
        with self._lock:
            return self._memory.allocate(call.where, device, size)

    def device_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        call = self._enter("device_memory_deallocate", device)
        with self._lock:
            self._memory.deallocate(call.where, device, address, size)
        call.fail()

    def device_memory_set(self, device: BareDevice, address: int, value: int, size: int) -> None:
        call = self._enter("device_memory_set", device)
        value = integer(call.where, "a byte's value", value)
        if not 0 <= value < 256:
            raise DeviceError(f"{call.where}: expected a byte's value, got {value}")
        with self._lock:
            place = self._memory.on_device(call.where, device, address, size)
            fill = Operation("device_memory_set", lambda: _set(place.address, value, size))
            fill.use(place.allocation)
        self._run_now(call, (device,), fill)

    def device_memory_stats(self, device: BareDevice) -> MemoryStats:
        self._enter("device_memory_stats", device)
        with self._lock:
            capacity = self._memory.capacity
            return MemoryStats(capacity, capacity - self._memory.used(device))

    def host_memory_allocate(self, device: BareDevice, size: int) -> int:
        return self._allocate_host("host_memory_allocate", device, PINNED, size)

    def host_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        self._deallocate_host("host_memory_deallocate", device, PINNED, address, size)

    def unified_memory_allocate(self, device: BareDevice, size: int) -> int:
        return self._allocate_host("unified_memory_allocate", device, UNIFIED, size)

    def unified_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        self._deallocate_host("unified_memory_deallocate", device, UNIFIED, address, size)

    def _allocate_host(self, function: str, device: BareDevice, kind: str, size: int) -> int:
        call = self._enter(function, device)
        with self._lock:
            return self._memory.allocate_host(call.where, kind, size)

    def _deallocate_host(
        self, function: str, device: BareDevice, kind: str, address: int, size: int
    ) -> None:
        call = self._enter(function, device)
        with self._lock:
            self._memory.deallocate_host(call.where, kind, address, size)
        call.fail()

    # ---- Copies ----------------------------------------------------------------------------------

    def memory_copy_h2d(self, device: BareDevice, target: int, source: int, size: int) -> None:
        self._copy("memory_copy_h2d", (device, target), (None, source), size)

    def memory_copy_d2h(self, device: BareDevice, target: int, source: int, size: int) -> None:
        self._copy("memory_copy_d2h", (None, target), (device, source), size)

    def memory_copy_d2d(self, device: BareDevice, target: int, source: int, size: int) -> None:
        self._copy("memory_copy_d2d", (device, target), (device, source), size)

    def memory_copy_p2p(
        self,
        target_device: BareDevice,
        source_device: BareDevice,
        target: int,
        source: int,
        size: int,
    ) -> None:
        self._copy("memory_copy_p2p", (target_device, target), (source_device, source), size)

    def async_memory_copy_h2d(
        self, device: BareDevice, stream: Handle, target: int, source: int, size: int
    ) -> None:
        self._copy("async_memory_copy_h2d", (device, target), (None, source), size, [stream])

    def async_memory_copy_d2h(
        self, device: BareDevice, stream: Handle, target: int, source: int, size: int
    ) -> None:
        self._copy("async_memory_copy_d2h", (None, target), (device, source), size, [stream])

    def async_memory_copy_d2d(
        self, device: BareDevice, stream: Handle, target: int, source: int, size: int
    ) -> None:
        self._copy("async_memory_copy_d2d", (device, target), (device, source), size, [stream])

    def async_memory_copy_p2p(
        self,
        target_device: BareDevice,
        source_device: BareDevice,
        stream: Handle,
        target: int,
        source: int,
        size: int,
    ) -> None:
        ends = (target_device, target), (source_device, source)
        self._copy("async_memory_copy_p2p", *ends, size, [stream])

    def _copy(
        self,
        name: str,
        target: tuple[BareDevice | None, int],
        source: tuple[BareDevice | None, int],
        size: int,
        stream: Sequence[Handle] = (),
    ) -> None:
        """A copy between two ends, each an address of a device or of the host (None): on a stream,
        or at once."""
        devices = [device for device, _ in (target, source) if device is not None]
        call = self._enter(name, devices[0])
        if name.endswith("p2p"):
            self._check_peer(call, *devices)
        with self._lock:
            to = self._place(call.where._replace(part="target"), *target, size)
            start = self._place(call.where._replace(part="source"), *source, size)
            copy = Operation(name, lambda: _move(to.address, start.address, size), is_copy=True)
            copy.use(to.allocation)
            copy.use(start.allocation)
        if stream:
            self._put(call, devices[0], stream[0], copy)
        else:
            self._run_now(call, tuple(dict.fromkeys(devices)), copy)

    def _check_peer(self, call: _Call, target: BareDevice, source: BareDevice) -> None:
        if not 0 <= source.device_id < self._count or source.device_type != target.device_type:
            raise DeviceError(
                f"{call.where}: expected a source of {target.name}, of an id from 0 to "
                f"{self._count - 1}, got {source}"
            )

    def _place(self, where: object, device: BareDevice | None, address: int, size: int) -> Place:
        if device is None:
            return self._memory.on_host(where, address, size)
        return self._memory.on_device(where, device, address, size)

    def _run_now(self, call: _Call, devices: Iterable[BareDevice], operation: Operation) -> None:
        """Run an operation here, when the default streams of some devices are done."""
        try:
            refuse_on_worker(call.where)
            defaults = [self._default(each) for each in devices]
            if not all(each.is_clear for each in defaults):
                self._wait(defaults)
            operation.action()
        finally:
            with self._lock:
                operation.release()

    def _put(self, call: _Call, device: BareDevice, handle: Handle, operation: Operation) -> None:
        """Put an operation on a stream, with the fate that the call gives it."""
        action, fate = operation.action, call.fate
        try:
            with self._lock:
                stream = self._stream(call.where, device, handle)
                if fate.seconds or fate.error is not None:
                    operation.action = lambda: _meet(fate, stream, action)
                stream.put(operation)
        except BaseException:
            with self._lock:
                operation.release()
            raise

    # ---- Sizes that the allocator goes by --------------------------------------------------------

    def device_min_chunk_size(self, device: BareDevice) -> int:
        self._enter("device_min_chunk_size", device)
        return self._sizes.min_chunk

    def device_max_chunk_size(self, device: BareDevice) -> int:
        self._enter("device_max_chunk_size", device)
        return self._sizes.max_chunk

    def device_max_alloc_size(self, device: BareDevice) -> int:
        self._enter("device_max_alloc_size", device)
        return self._memory.capacity

    def device_extra_padding_size(self, device: BareDevice) -> int:
        self._enter("device_extra_padding_size", device)
        return self._sizes.extra_padding

    def device_init_alloc_size(self, device: BareDevice) -> int:
        self._enter("device_init_alloc_size", device)
        return self._sizes.init_alloc

    def device_realloc_size(self, device: BareDevice) -> int:
        self._enter("device_realloc_size", device)
        return self._sizes.realloc

    # ---- Devices ---------------------------------------------------------------------------------

    def initialize(self) -> None:
        self._enter("initialize")

    def finalize(self) -> None:
        """Wait for all streams, and end their threads; memory stays until it is deallocated."""
        call = self._enter("finalize")
        refuse_on_worker(call.where)
        self._rest(self._streams_of())
        call.fail()

    def init_device(self, device: BareDevice) -> None:
        self._enter("init_device", device)

    def deinit_device(self, device: BareDevice) -> None:
        """Wait for the streams of a device, and end their threads."""
        call = self._enter("deinit_device", device)
        refuse_on_worker(call.where)
        self._rest(self._streams_of(device))
        call.fail()

    def set_device(self, device: BareDevice) -> None:
        self._enter("set_device", device)
        self._current.id = device.device_id

    def get_device(self) -> int:
        self._enter("get_device")
        current: int = getattr(self._current, "id", 0)
        return current

    def get_device_count(self) -> int:
        self._enter("get_device_count")
        return self._count

    def get_device_list(self) -> Sequence[int]:
        self._enter("get_device_list")
        return range(self._count)

    def get_device_properties(self, device: BareDevice) -> Mapping[str, object]:
        self._enter("get_device_properties", device)
        return {
            "name": "simulated device",
            "total_memory": self._memory.capacity,
            "is_simulated": True,
        }

    def get_compute_capability(self) -> int:
        self._enter("get_compute_capability")
        return _COMPUTE_CAPABILITY

    def get_runtime_version(self) -> int:
        self._enter("get_runtime_version")
        return _VERSION

    def get_driver_version(self) -> int:
        self._enter("get_driver_version")
        return _VERSION

    def synchronize_device(self, device: BareDevice) -> None:
        call = self._enter("synchronize_device", device)
        refuse_on_worker(call.where)
        streams = self._streams_of(device)
        for each in streams:
            if each in self._orphans:
                _end(each)
        self._wait(streams)

    # ---- Streams ---------------------------------------------------------------------------------

    def create_stream(self, device: BareDevice) -> int:
        self._enter("create_stream", device)
        with self._lock:
            handle = self._new_handle()
            self._streams[handle] = Stream(self._lock, device, handle)
        return handle

    def destroy_stream(self, device: BareDevice, stream: Handle) -> None:
        call = self._enter("destroy_stream", device)
        with self._lock:
            found = self._stream(call.where, device, stream)
            if stream in _DEFAULT:
                raise DeviceError(f"{call.where}: expected a stream that was created, got {stream}")
            del self._streams[found.handle]
            found.close()
            if isinstance(threading.current_thread(), Worker):
                self._orphans.append(found)
        if found not in self._orphans:
            _end(found)
            with self._lock:
                untold = [each for each in found.tell(found.queued) if not each.is_told]
            raise_failures(untold)
        call.fail()

    def query_stream(self, device: BareDevice, stream: Handle) -> bool:
        call = self._enter("query_stream", device)
        with self._lock:
            found = self._stream(call.where, device, stream)
            return found.finished == found.queued

    def synchronize_stream(self, device: BareDevice, stream: Handle) -> None:
        call = self._enter("synchronize_stream", device)
        refuse_on_worker(call.where)
        with self._lock:
            found = self._stream(call.where, device, stream)
        self._wait([found])

    def stream_add_callback(
        self, device: BareDevice, stream: Handle, callback: Callable[[], None]
    ) -> None:
        call = self._enter("stream_add_callback", device)
        name = getattr(callback, "__qualname__", type(callback).__name__)
        self._put(call, device, stream, Operation(f"callback {name!r}", callback))

    def stream_wait_event(self, device: BareDevice, stream: Handle, event: Handle) -> None:
        call = self._enter("stream_wait_event", device)
        with self._lock:
            waiting = self._stream(call.where, device, stream)
            point = self._event(call.where, event).point
            if point is not None and point.stream is not waiting:
                wait = Operation("stream_wait_event", lambda: waiting.wait_for(point))
            else:
                wait = Operation("stream_wait_event", _nothing)
            self._put(call, device, stream, wait)

    def _default(self, device: BareDevice) -> Stream:
        with self._lock:
            found = self._defaults.get(device.device_id)
            if found is None:
                found = self._defaults[device.device_id] = Stream(self._lock, device, 0)
            return found

    def _stream(self, where: object, device: BareDevice, handle: Handle) -> Stream:
        if handle in _DEFAULT:
            return self._default(device)
        found = self._streams.get(handle) if isinstance(handle, int) else None
        if found is None or found.device.device_id != device.device_id:
            got = "" if found is None else f", a stream of {found.device}"
            raise DeviceError(
                f"{where}: expected a stream of {device}, got {handle!r}"
                f"{got or self._was(handle, self._events, 'an event')}"
            )
        return found

    def _was(self, handle: Handle, others: Mapping[int, object], kind: str) -> str:
        """The description of a handle that is no stream or event, for messages."""
        if not isinstance(handle, int) or not _FIRST_HANDLE <= handle <= self._last_handle:
            return ", which was never given"
        return f", {kind}" if handle in others else ", which was destroyed"

    def _new_handle(self) -> int:
        self._last_handle = next(self._handles)
        return self._last_handle

    def _streams_of(self, device: BareDevice | None = None) -> list[Stream]:
        """The streams of a device, or of all."""
        with self._lock:
            found = [*self._defaults.values(), *self._streams.values(), *self._orphans]
        return [
            each for each in found if device is None or each.device.device_id == device.device_id
        ]

    def _wait(self, streams: Sequence[Stream]) -> None:
        """Wait until streams have done all operations put on them by now, and raise failures."""
        failures: list[Failure] = []
        with self._lock:
            numbers = [each.queued for each in streams]
            for stream, number in zip(streams, numbers, strict=True):
                stream.wait(number)
            for stream, number in zip(streams, numbers, strict=True):
                failures += stream.tell(number)
            self._orphans = [each for each in self._orphans if each.is_working or each.untold]
        raise_failures(failures)

    def _rest(self, streams: Sequence[Stream]) -> None:
        """Wait for streams, and end their threads."""
        for stream in streams:
            _end(stream)
        self._wait(streams)

    # ---- Events ----------------------------------------------------------------------------------

    def create_event(self, device: BareDevice) -> int:
        self._enter("create_event", device)
        with self._lock:
            handle = self._new_handle()
            self._events[handle] = _Event(device)
        return handle

    def destroy_event(self, device: BareDevice, event: Handle) -> None:
        call = self._enter("destroy_event", device)
        with self._lock:
            self._event(call.where, event, device)
            del self._events[event]
        call.fail()

    def record_event(self, device: BareDevice, stream: Handle, event: Handle) -> None:
        call = self._enter("record_event", device)
        with self._lock:
            found = self._event(call.where, event, device)
            recorded = self._stream(call.where, device, stream)
            point = Point(recorded)
            recorded.put(point)
            found.point = point

    def query_event(self, device: BareDevice, event: Handle) -> bool:
        call = self._enter("query_event", device)
        with self._lock:
            point = self._event(call.where, event, device).point
            return point is None or point.is_done

    def synchronize_event(self, device: BareDevice, event: Handle) -> None:
        call = self._enter("synchronize_event", device)
        refuse_on_worker(call.where)
        with self._lock:
            point = self._event(call.where, event, device).point
            if point is None:
                return
            point.stream.wait(point.number)
            failures = point.stream.tell_of(point)
        raise_failures(failures)

    def _event(self, where: object, handle: Handle, device: BareDevice | None = None) -> _Event:
        """An event, of a device or of any."""
        found = self._events.get(handle) if isinstance(handle, int) else None
        if found is None:
            was = self._was(handle, self._streams, "a stream")
            raise DeviceError(f"{where}: expected an event, got {handle!r}{was}")
        if device is not None and found.device.device_id != device.device_id:
            raise DeviceError(
                f"{where}: expected an event of {device}, got {handle}, an event of {found.device}"
            )
        return found

    # ---- Kernels ---------------------------------------------------------------------------------

    def launch(self, device: BareDevice, stream: Handle, kernel: Kernel) -> None:
        call = self._enter("launch", device)
        operation = Operation(f"kernel {kernel.name!r}", lambda: kernel(address_of))

        def address_of(address: int, size: int) -> int:
            where = call.where._replace(part=operation.name)
            with self._lock:
                if operation.is_over:
                    raise DeviceError(f"{where}: expected a running kernel, got one that has ended")
                place = self._memory.on_device(where, device, address, size)
                operation.use(place.allocation)
            return place.address

        self._put(call, device, stream, operation)

    # ---- Other processes, and the end of this ----------------------------------------------------

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork_in_parent(self) -> None:
        self._lock.release()

    def _after_fork_in_child(self) -> list[Callable[[], None]]:
        """Forgets pending work in a forked child; returns it. Objects that it keeps may end streams
        of any device, so they have to stay until each stream knows that it has no thread."""
        self._lock = threading.RLock()
        dropped = []
        reason = "it was pending when the process was forked, and isn't done in the child"
        for stream in self._streams_of():
            dropped += stream.drop(reason)
            stream.renew(self._lock)
        for allocation in self._memory.allocations():
            allocation.users.clear()
        return dropped

    def _stop(self) -> None:
        """Drop pending operations, and wait for running copies."""
        with self._lock:
            for stream in [each for each in self._streams_of() if each.stop()]:
                stream.wait(stream.queued)


_TAKING_BACK = frozenset(
    (
        "device_memory_deallocate",
        "host_memory_deallocate",
        "unified_memory_deallocate",
        "destroy_stream",
        "destroy_event",
        "deinit_device",
        "finalize",
    )
)


def _nothing() -> None:
    """The operation of a stream that waits for its own past."""


def _move(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


def _set(target: int, value: int, size: int) -> None:
    ctypes.memset(target, value, size)


def _meet(fate: Fate, stream: Stream, action: Callable[[], None]) -> None:
    """Run an operation on a stream with its fate: a delay, an error or the action."""
    if fate.seconds:
        stream.rest(fate.seconds)
    if fate.error is not None:
        raise injected(fate.error, "injected failure")
    action()


def _end(stream: Stream) -> None:
    """Wait until a stream is done, and its thread gone."""
    with stream.lock:
        worker = stream.retire()
        stream.outlive(worker)
    if worker is not None:
        worker.join()


def _retire_all(*tables: dict[int, Stream]) -> None:
    """End the threads of a device without users."""
    for stream in [each for table in tables for each in table.values()]:
        with stream.lock:
            stream.retire()


_all: weakref.WeakSet[ExtDev] = weakref.WeakSet()
_forking: list[ExtDev] = []


def _before_fork() -> None:
    _forking.extend(_all)
    for each in _forking:
        each._before_fork()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop()._after_fork_in_parent()


def _after_fork_in_child() -> None:
    dropped = []
    while _forking:
        dropped += _forking.pop()._after_fork_in_child()
    dropped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


@atexit.register
def _stop_all() -> None:
    for each in tuple(_all):
        each._stop()
