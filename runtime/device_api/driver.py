"""Driver: a kind of device, complete with substitutes for the functions that its interface lacks.

All users of a device call its driver. Other functions of the device stand in for a missing one;
where they can't, the call raises an error that names the device and the function::

    asynchronous copy      synchronise the stream, then the synchronous copy
    synchronous copy       the asynchronous one on a stream of its own, synchronised
    d2d                    d2h and h2d
    p2p                    d2h and h2d
    device_memory_set      a buffer of the host and h2d
    streams                one order, in which everything is done when its function returns
    record_event           synchronise the stream: the event has happened
    stream_wait_event      wait for the event here
    synchronize_stream     record an event and wait for it; else the device; else ask until done
    synchronize_event      ask until it has happened; else the device
    synchronize_device     each of its streams
    query_*                wait for it: then it is done
    stream_add_callback    synchronise the stream, then call
    min chunk              1
    extra padding          0
    max chunk              max alloc
    max alloc              free memory; None if nobody knows
    init and realloc size  max alloc, if the device says it itself; else None
    device count and list  each other's; one device of id 0
    get_device             the last argument of set_device, in this thread
"""

from __future__ import annotations

import ctypes
import operator
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from minitvm.runtime.device_api.interface import (
    DeviceInterface,
    Handle,
    Kernel,
    MemoryStats,
    Status,
)
from minitvm.runtime.device_type import BareDevice
from minitvm.runtime.errors import (
    DeviceError,
    DeviceMemoryError,
    UnsupportedByDevice,
    device_failure,
)

_PIECE = 1 << 22  # bytes at a time that go through a buffer of the host
_PATIENCE = 0.0001  # seconds between two queries
_MOST_IDS = 1 << 16
_MOST_BYTES = 1 << 63
_NOTHING: Handle = None  # the stream, or event, of a device without streams or events


def _index(value: object) -> int | None:
    """An integer of any integer type; None for other values, such as True."""
    is_number = hasattr(type(value), "__index__") and not isinstance(value, bool)
    return operator.index(value) if is_number else None  # type: ignore[arg-type]  # mypy: object


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current: dict[str, int] = {}  # the device that each driver was set to last


@final
class Driver:
    """A kind of device, complete.

    The functions are those of :class:`DeviceInterface`. Each may raise DeviceError, which names
    device and function; or UnsupportedByDevice, if no other function can stand in for it.
    """

    def __init__(self, name: str, device_type: int, interface: DeviceInterface) -> None:
        self.name = name
        self.device_type = device_type
        self.interface = interface
        self._streams: dict[int, list[Handle]] = {}  # the live streams of each device
        self._waiting: list[object] = []  # threads that wait for all streams in place of the device
        self._leaving: list[tuple[BareDevice, Handle]] = []  # to destroy when no thread waits
        self._thread = _Thread()

    def provides(self, name: str) -> bool:
        """Whether the device has a function itself."""
        return self.interface.provides(name)

    @property
    def has_streams(self) -> bool:
        """Whether work may be done after its function has returned."""
        return self.provides("create_stream")

    def __repr__(self) -> str:
        return f"<Driver {self.name}: {type(self.interface).__name__}>"

    # ---- Calls -----------------------------------------------------------------------------------

    def _ask(self, name: str, device: BareDevice | None, *args: Any) -> Any:
        """The result of a function that the device has."""
        if name not in ("set_device", "init_device"):
            self._set_current(device)
        try:
            function = getattr(self.interface, name)
            return function(*args) if device is None else function(device, *args)
        except DeviceError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, MemoryError):
                said = str(error) or "no memory"
            raise device_failure(error, self._say(device, name, said)) from error

    def _do(self, name: str, device: BareDevice | None, *args: Any) -> None:
        """Call a function without a result, which may return a status."""
        status = self._ask(name, device, *args)
        if status is None:
            return
        number = _index(status)
        if number is None:
            raise DeviceError(self._say(device, name, f"expected None or a status, got {status!r}"))
        known = f" ({Status(number).name})" if number in list(Status) else ""
        said = self._say(device, name, f"failed with status {number}{known}")
        if number == Status.WARNING:
            warnings.warn(said, RuntimeWarning, stacklevel=3)
        elif number != Status.SUCCESS:
            raise DeviceError(said)

    def _number(self, name: str, device: BareDevice | None, *args: Any) -> int:
        """The size, count or address that a function returns."""
        found = self._ask(name, device, *args)
        number = _index(found)
        if number is None or not 0 <= number < _MOST_BYTES:
            raise DeviceError(
                self._say(device, name, f"expected an integer from 0 to 2**63 - 1, got {found!r}")
            )
        return number

    def _answer(self, name: str, device: BareDevice, *args: Any) -> bool:
        found = self._ask(name, device, *args)
        if not isinstance(found, int | np.bool_):
            raise DeviceError(self._say(device, name, f"expected True or False, got {found!r}"))
        return bool(found)

    def _say(self, device: BareDevice | None, name: str, text: str) -> str:
        return f"{self.name if device is None else device}: {name}: {text}"

    def _lacks(
        self, name: str, device: BareDevice | None, instead: str = ""
    ) -> UnsupportedByDevice:
        return UnsupportedByDevice(
            self._say(
                device, name, f"expected a device with this function{instead}, got one without"
            )
        )

    def _set_current(self, device: BareDevice | None) -> None:
        if device is None or not self.provides("set_device"):
            return
        current = self._thread.current
        if current.get(self.name) != device.device_id:
            current.pop(self.name, None)
            self.set_device(device)

    def _take_back(self, name: str, device: BareDevice, *args: Any) -> None:
        """Call a function that takes a resource back, even if the device couldn't be made current.
        That failure is raised afterwards."""
        failure: DeviceError | None = None
        try:
            self._set_current(device)
        except DeviceError as error:
            failure = error
        try:
            self._do(name, device, *args)
            if failure is not None:
                raise failure
        finally:
            failure = None  # it refers to this frame

    # ---- Devices ---------------------------------------------------------------------------------

    def initialize(self) -> None:
        if self.provides("initialize"):
            self._do("initialize", None)

    def finalize(self) -> None:
        if self.provides("finalize"):
            self._do("finalize", None)

    def init_device(self, device: BareDevice) -> None:
        if self.provides("init_device"):
            self._do("init_device", device)

    def deinit_device(self, device: BareDevice) -> None:
        if self.provides("deinit_device"):
            self._do("deinit_device", device)

    def set_device(self, device: BareDevice) -> None:
        if self.provides("set_device"):
            self._do("set_device", device)
        self._thread.current[self.name] = device.device_id

    def get_device(self) -> int:
        if self.provides("get_device"):
            return self._number("get_device", None)
        return self._thread.current.get(self.name, self.get_device_list()[0])

    def get_device_count(self) -> int:
        if self.provides("get_device_count"):
            return self._number("get_device_count", None)
        return len(self.get_device_list()) if self.provides("get_device_list") else 1

    def get_device_list(self) -> Sequence[int]:
        if not self.provides("get_device_list"):
            return range(min(self.get_device_count(), _MOST_IDS))
        found = self._ask("get_device_list", None)
        try:
            ids = [operator.index(each) for each in found]
        except TypeError:
            ids = [-1]
        if min(ids, default=0) < 0 or len(set(ids)) != len(ids):
            raise DeviceError(
                self._say(None, "get_device_list", f"expected ids, each once, got {found!r}")
            )
        return ids

    def get_device_properties(self, device: BareDevice) -> Mapping[str, object]:
        known: dict[str, object] = {}
        for name in ("get_compute_capability", "get_runtime_version", "get_driver_version"):
            if self.provides(name):
                known[name.removeprefix("get_")] = self._number(name, None)
        if self.provides("get_device_properties"):
            known.update(self._ask("get_device_properties", device))
        return known

    def get_compute_capability(self) -> int:
        return self._version("get_compute_capability")

    def get_runtime_version(self) -> int:
        return self._version("get_runtime_version")

    def get_driver_version(self) -> int:
        return self._version("get_driver_version")

    def _version(self, name: str) -> int:
        if not self.provides(name):
            raise self._lacks(name, None)
        return self._number(name, None)

    # ---- Memory ----------------------------------------------------------------------------------

    def device_memory_allocate(self, device: BareDevice, size: int) -> int:
        return self._allocate("device_memory_allocate", device, size)

    def device_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        self._take_back("device_memory_deallocate", device, address, size)

    def host_memory_allocate(self, device: BareDevice, size: int) -> int:
        return self._allocate("host_memory_allocate", device, size)

    def host_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        if not self.provides("host_memory_deallocate"):
            raise self._lacks("host_memory_deallocate", device)
        self._take_back("host_memory_deallocate", device, address, size)

    def unified_memory_allocate(self, device: BareDevice, size: int) -> int:
        return self._allocate("unified_memory_allocate", device, size)

    def unified_memory_deallocate(self, device: BareDevice, address: int, size: int) -> None:
        if not self.provides("unified_memory_deallocate"):
            raise self._lacks("unified_memory_deallocate", device)
        self._take_back("unified_memory_deallocate", device, address, size)

    def _allocate(self, name: str, device: BareDevice, size: int) -> int:
        if not self.provides(name):
            raise self._lacks(name, device)
        found = self._ask(name, device, size)
        address = 0 if found is None else _index(found)
        if address == 0:
            raise DeviceMemoryError(self._say(device, name, f"no memory for {size} bytes"))
        if address is None or not 0 < address < _MOST_BYTES:
            raise DeviceError(self._say(device, name, f"expected an address, got {found!r}"))
        return address

    def device_memory_set(self, device: BareDevice, address: int, value: int, size: int) -> None:
        if not size:
            return
        if self.provides("device_memory_set"):
            self._do("device_memory_set", device, address, value, size)
            return
        piece = ctypes.create_string_buffer(bytes([value]) * min(size, _PIECE), min(size, _PIECE))
        for start in range(0, size, _PIECE):
            count = min(_PIECE, size - start)
            self.memory_copy_h2d(device, address + start, ctypes.addressof(piece), count)

    def device_memory_stats(self, device: BareDevice) -> MemoryStats | None:
        """The device's total and free memory; None if the device doesn't say."""
        if not self.provides("device_memory_stats"):
            return None
        found = self._ask("device_memory_stats", device)
        try:
            total, free = (operator.index(each) for each in found)
        except (TypeError, ValueError):
            total, free = -1, -1
        if min(total, free) < 0:
            raise DeviceError(
                self._say(device, "device_memory_stats", f"expected (total, free), got {found!r}")
            )
        return MemoryStats(total, free)

    # ---- Sizes -----------------------------------------------------------------------------------

    def device_min_chunk_size(self, device: BareDevice) -> int:
        found = self._size("device_min_chunk_size", device)
        return 1 if found is None else max(1, found)

    def device_extra_padding_size(self, device: BareDevice) -> int:
        return self._size("device_extra_padding_size", device) or 0

    def device_max_chunk_size(self, device: BareDevice) -> int | None:
        found = self._size("device_max_chunk_size", device)
        return self.device_max_alloc_size(device) if found is None else found

    def device_max_alloc_size(self, device: BareDevice) -> int | None:
        found = self._size("device_max_alloc_size", device)
        if found is not None:
            return found
        stats = self.device_memory_stats(device)
        return None if stats is None else stats.free

    def device_init_alloc_size(self, device: BareDevice) -> int | None:
        found = self._size("device_init_alloc_size", device)
        return self._size("device_max_alloc_size", device) if found is None else found

    def device_realloc_size(self, device: BareDevice) -> int | None:
        found = self._size("device_realloc_size", device)
        return self._size("device_max_alloc_size", device) if found is None else found

    def _size(self, name: str, device: BareDevice) -> int | None:
        return self._number(name, device) if self.provides(name) else None

    # ---- Copies ----------------------------------------------------------------------------------

    def memory_copy_h2d(self, device: BareDevice, target: int, source: int, size: int) -> None:
        self._copy("memory_copy_h2d", (device,), target, source, size)

    def memory_copy_d2h(self, device: BareDevice, target: int, source: int, size: int) -> None:
        self._copy("memory_copy_d2h", (device,), target, source, size)

    def memory_copy_d2d(self, device: BareDevice, target: int, source: int, size: int) -> None:
        self._copy("memory_copy_d2d", (device,), target, source, size)

    def memory_copy_p2p(
        self,
        target_device: BareDevice,
        source_device: BareDevice,
        target: int,
        source: int,
        size: int,
    ) -> None:
        self._copy("memory_copy_p2p", (target_device, source_device), target, source, size)

    def async_memory_copy_h2d(
        self, device: BareDevice, stream: Handle, target: int, source: int, size: int
    ) -> None:
        self._copy_on(stream, "memory_copy_h2d", (device,), target, source, size)

    def async_memory_copy_d2h(
        self, device: BareDevice, stream: Handle, target: int, source: int, size: int
    ) -> None:
        self._copy_on(stream, "memory_copy_d2h", (device,), target, source, size)

    def async_memory_copy_d2d(
        self, device: BareDevice, stream: Handle, target: int, source: int, size: int
    ) -> None:
        self._copy_on(stream, "memory_copy_d2d", (device,), target, source, size)

    def async_memory_copy_p2p(
        self,
        target_device: BareDevice,
        source_device: BareDevice,
        stream: Handle,
        target: int,
        source: int,
        size: int,
    ) -> None:
        devices = (target_device, source_device)
        self._copy_on(stream, "memory_copy_p2p", devices, target, source, size)

    def _copy(
        self, name: str, devices: tuple[BareDevice, ...], target: int, source: int, size: int
    ) -> None:
        if not size:
            return
        device = devices[0]
        if self.provides(name):
            self._do(name, *devices, target, source, size)
        elif self.provides(f"async_{name}") and self.has_streams:
            stream = self.create_stream(device)
            try:
                self._do(f"async_{name}", *devices, stream, target, source, size)
                self.synchronize_stream(device, stream)
            finally:
                self.destroy_stream(device, stream)
        elif name in ("memory_copy_d2d", "memory_copy_p2p"):
            copy_through_host(self, device, self, devices[-1], target, source, size)
        else:
            raise self._lacks(name, device, f" or async_{name}")

    def _copy_on(
        self,
        stream: Handle,
        name: str,
        devices: tuple[BareDevice, ...],
        target: int,
        source: int,
        size: int,
    ) -> None:
        if not size:
            return
        if self.has_streams and self.provides(f"async_{name}"):
            self._do(f"async_{name}", *devices, stream, target, source, size)
        else:
            self.synchronize_stream(devices[0], stream)
            self._copy(name, devices, target, source, size)

    # ---- Streams ---------------------------------------------------------------------------------

    def create_stream(self, device: BareDevice) -> Handle:
        if not self.has_streams:
            return _NOTHING
        stream = self._ask("create_stream", device)
        self._streams.setdefault(device.device_id, []).append(stream)
        return stream

    def destroy_stream(self, device: BareDevice, stream: Handle) -> None:
        if not self.has_streams:
            return
        streams = self._streams.get(device.device_id, [])
        if stream in streams:
            streams.remove(stream)
        if self.provides("destroy_stream"):
            self._leaving.append((device, stream))
            self._destroy_leaving()

    def _destroy_leaving(self) -> None:
        # Without a lock, which a fork could leave locked: a thread that begins to wait for streams
        # now doesn't wait for a leaving one.
        while self._leaving and not self._waiting:
            try:
                device, stream = self._leaving.pop()
            except IndexError:
                return  # another thread's
            self._take_back("destroy_stream", device, stream)

    def query_stream(self, device: BareDevice, stream: Handle) -> bool:
        if self.has_streams and self.provides("query_stream"):
            return self._answer("query_stream", device, stream)
        self.synchronize_stream(device, stream)
        return True

    def synchronize_stream(self, device: BareDevice, stream: Handle) -> None:
        if not self.has_streams:
            return
        if self.provides("synchronize_stream"):
            self._do("synchronize_stream", device, stream)
        elif self._has_events:
            event = self.create_event(device)
            try:
                self._do("record_event", device, stream, event)
                self.synchronize_event(device, event)
            finally:
                self.destroy_event(device, event)
        elif self.provides("synchronize_device"):
            self._do("synchronize_device", device)
        elif self.provides("query_stream"):
            self._wait(lambda: self._answer("query_stream", device, stream))
        else:
            raise self._lacks("synchronize_stream", device)

    def synchronize_device(self, device: BareDevice) -> None:
        if self.provides("synchronize_device"):
            self._do("synchronize_device", device)
            return
        me = object()
        self._waiting.append(me)
        try:
            for stream in tuple(self._streams.get(device.device_id, ())):
                self.synchronize_stream(device, stream)
        finally:
            self._waiting.remove(me)
            self._destroy_leaving()

    def stream_add_callback(
        self, device: BareDevice, stream: Handle, callback: Callable[[], None]
    ) -> None:
        if self.has_streams and self.provides("stream_add_callback"):
            self._do("stream_add_callback", device, stream, callback)
        else:
            self.synchronize_stream(device, stream)
            callback()

    # ---- Events ----------------------------------------------------------------------------------

    @property
    def _has_events(self) -> bool:
        """Whether events can be recorded, and waited for."""
        known = ("create_event", "record_event")
        waits = ("synchronize_event", "query_event")
        return (
            self.has_streams and all(map(self.provides, known)) and any(map(self.provides, waits))
        )

    def create_event(self, device: BareDevice) -> Handle:
        return self._ask("create_event", device) if self._has_events else _NOTHING

    def destroy_event(self, device: BareDevice, event: Handle) -> None:
        if self._has_events and self.provides("destroy_event"):
            self._take_back("destroy_event", device, event)

    def record_event(self, device: BareDevice, stream: Handle, event: Handle) -> None:
        if self._has_events:
            self._do("record_event", device, stream, event)
        else:
            self.synchronize_stream(device, stream)

    def query_event(self, device: BareDevice, event: Handle) -> bool:
        if self._has_events and self.provides("query_event"):
            return self._answer("query_event", device, event)
        self.synchronize_event(device, event)
        return True

    def synchronize_event(self, device: BareDevice, event: Handle) -> None:
        if not self._has_events:
            return
        if self.provides("synchronize_event"):
            self._do("synchronize_event", device, event)
        else:
            self._wait(lambda: self._answer("query_event", device, event))

    def stream_wait_event(
        self, device: BareDevice, stream: Handle, event: Handle, event_device: BareDevice
    ) -> None:
        """Let a stream wait for an event, which may belong to another device of the kind."""
        if self._has_events and self.provides("stream_wait_event"):
            self._do("stream_wait_event", device, stream, event)
        else:
            self.synchronize_event(event_device, event)

    @staticmethod
    def _wait(is_done: Callable[[], bool]) -> None:
        while not is_done():
            time.sleep(_PATIENCE)

    # ---- Kernels ---------------------------------------------------------------------------------

    def launch(self, device: BareDevice, stream: Handle, kernel: Kernel) -> None:
        if not self.provides("launch"):
            raise self._lacks("launch", device)
        self._do("launch", device, stream, kernel)


def copy_through_host(
    to_driver: Driver,
    to: BareDevice,
    start_driver: Driver,
    start: BareDevice,
    target: int,
    source: int,
    size: int,
) -> None:
    """Copy bytes from one device to another, of any kinds, by way of a buffer of the host."""
    # Within a device the ranges may overlap: then all bytes are copied at once.
    apart = to != start or abs(target - source) >= size
    step = min(size, _PIECE) if apart else size
    buffer = ctypes.create_string_buffer(step)
    at = ctypes.addressof(buffer)
    for offset in range(0, size, step):
        count = min(step, size - offset)
        start_driver.memory_copy_d2h(start, at, source + offset, count)
        to_driver.memory_copy_h2d(to, target + offset, at, count)
