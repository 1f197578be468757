"""DeviceInterface: the functions of a device, which the author of a new kind of device writes.

The functions are those of PaddlePaddle's custom devices (``phi/backends/device_ext.h``) under the
same names. Here a result is returned and a failure raised. `launch` is ours: that interface has no
kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

ALIGNMENT = 256  # bytes; the alignment of our memory, enough for every vector unit and framework

Device: TypeAlias = Any
"""A :class:`minitvm.runtime.Device`, which asks interfaces, and so stands above them. An interface
declares the types that it names."""
Handle: TypeAlias = Any
"""A device's name for a stream or an event: any object of its own, an address for plugins in C."""

_F = TypeVar("_F", bound=Callable[..., Any])


class Status(IntEnum):
    """``C_Status`` of the C interface."""

    SUCCESS = 0
    WARNING = 1
    FAILED = 2
    ERROR = 3
    INTERNAL_ERROR = 4


class MemoryStats(NamedTuple):
    """The memory of a device, in bytes."""

    total: int
    free: int


class Kernel(Protocol):
    """Compiled code that a device launches."""

    name: str

    def __call__(self, address_of: Callable[[int, int], int]) -> None:
        """Run the kernel, on the thread that calls. ``address_of(address, size)`` maps an address
        of bytes of the device to their address for the CPU."""


def optional(function: _F) -> _F:
    """Marks a function that a device may lack."""
    function.is_optional = True  # type: ignore[attr-defined]  # a function has room for marks
    return function


class DeviceInterface(ABC):
    """The functions of a device: derive from it, and give the instance to :func:`register_device`.

    Two functions are required. A device has an optional function if the class overrides it.
    :class:`minitvm.runtime.device_api.driver.Driver`, by which all other code calls a device,
    stands in for missing ones. Addresses and sizes are integers, of bytes. A function may be called
    from any thread, and reports a failure by an exception; one without a result may return a status
    of the C interface instead (0 or None is success). No function is called with 0 bytes.

    >>> import ctypes
    >>> class Plain(DeviceInterface):  # memory of the host
    ...     def device_memory_allocate(self, device, size):
    ...         return ctypes.pythonapi.PyMem_RawMalloc(size)
    ...     def device_memory_deallocate(self, device, address, size):
    ...         ctypes.pythonapi.PyMem_RawFree(address)
    >>> Plain().provides("device_memory_allocate"), Plain().provides("memory_copy_h2d")
    (True, False)
    """

    def provides(self, name: str) -> bool:
        """Whether the device has an optional function itself."""
        return getattr(type(self), name) is not getattr(DeviceInterface, name)

    # ---- Memory of the device --------------------------------------------------------------------

    @abstractmethod
    def device_memory_allocate(self, device: Device, size: int) -> int:
        """The address of `size` new bytes; 0, or MemoryError, where there are none."""

    @abstractmethod
    def device_memory_deallocate(self, device: Device, address: int, size: int) -> int | None:
        """Take back memory that `device_memory_allocate` gave for that size."""

    @optional
    def device_memory_set(self, device: Device, address: int, value: int, size: int) -> int | None:
        """Write a byte's value to `size` bytes of the device."""
        raise NotImplementedError

    @optional
    def device_memory_stats(self, device: Device) -> MemoryStats:
        """The device's total and free memory."""
        raise NotImplementedError

    # ---- Memory of the host ----------------------------------------------------------------------

    @optional
    def host_memory_allocate(self, device: Device, size: int) -> int:
        """The address of `size` bytes of the host that are pinned for copies."""
        raise NotImplementedError

    @optional
    def host_memory_deallocate(self, device: Device, address: int, size: int) -> int | None:
        """Take back memory that `host_memory_allocate` gave."""
        raise NotImplementedError

    @optional
    def unified_memory_allocate(self, device: Device, size: int) -> int:
        """The address of `size` bytes that host and device both read and write."""
        raise NotImplementedError

    @optional
    def unified_memory_deallocate(self, device: Device, address: int, size: int) -> int | None:
        """Take back memory that `unified_memory_allocate` gave."""
        raise NotImplementedError

    # ---- Copies: done when they return -----------------------------------------------------------

    @optional
    def memory_copy_h2d(self, device: Device, target: int, source: int, size: int) -> int | None:
        """Copy bytes of the host to the device."""
        raise NotImplementedError

    @optional
    def memory_copy_d2h(self, device: Device, target: int, source: int, size: int) -> int | None:
        """Copy bytes of the device to the host."""
        raise NotImplementedError

    @optional
    def memory_copy_d2d(self, device: Device, target: int, source: int, size: int) -> int | None:
        """Copy bytes within a device."""
        raise NotImplementedError

    @optional
    def memory_copy_p2p(
        self, target_device: Device, source_device: Device, target: int, source: int, size: int
    ) -> int | None:
        """Copy bytes to another device of the same type."""
        raise NotImplementedError

    # ---- Copies on a stream: in its order, done when it has come so far --------------------------

    @optional
    def async_memory_copy_h2d(
        self, device: Device, stream: Handle, target: int, source: int, size: int
    ) -> int | None:
        """`memory_copy_h2d` on a stream."""
        raise NotImplementedError

    @optional
    def async_memory_copy_d2h(
        self, device: Device, stream: Handle, target: int, source: int, size: int
    ) -> int | None:
        """`memory_copy_d2h` on a stream."""
        raise NotImplementedError

    @optional
    def async_memory_copy_d2d(
        self, device: Device, stream: Handle, target: int, source: int, size: int
    ) -> int | None:
        """`memory_copy_d2d` on a stream."""
        raise NotImplementedError

    @optional
    def async_memory_copy_p2p(
        self,
        target_device: Device,
        source_device: Device,
        stream: Handle,
        target: int,
        source: int,
        size: int,
    ) -> int | None:
        """`memory_copy_p2p` on a stream of the target's device."""
        raise NotImplementedError

    # ---- Sizes that the allocator goes by --------------------------------------------------------

    @optional
    def device_min_chunk_size(self, device: Device) -> int:
        """The unit of allocations: their sizes are rounded up to a multiple of it."""
        raise NotImplementedError

    @optional
    def device_max_chunk_size(self, device: Device) -> int:
        """The largest request that is served from a chunk; a larger one is an allocation of its
        own."""
        raise NotImplementedError

    @optional
    def device_max_alloc_size(self, device: Device) -> int:
        """The largest request that `device_memory_allocate` takes."""
        raise NotImplementedError

    @optional
    def device_extra_padding_size(self, device: Device) -> int:
        """The number of additional bytes that each allocation must have at its end."""
        raise NotImplementedError

    @optional
    def device_init_alloc_size(self, device: Device) -> int:
        """The size of the allocator's first chunk."""
        raise NotImplementedError

    @optional
    def device_realloc_size(self, device: Device) -> int:
        """The size of the allocator's further chunks."""
        raise NotImplementedError

    # ---- Devices ---------------------------------------------------------------------------------

    @optional
    def initialize(self) -> int | None:
        """Called once, before anything else."""
        raise NotImplementedError

    @optional
    def finalize(self) -> int | None:
        """Called once, after everything else."""
        raise NotImplementedError

    @optional
    def init_device(self, device: Device) -> int | None:
        """Called once for each device, before it is used."""
        raise NotImplementedError

    @optional
    def deinit_device(self, device: Device) -> int | None:
        """Called once for each device, after it has been used."""
        raise NotImplementedError

    @optional
    def set_device(self, device: Device) -> int | None:
        """Makes a device current in the calling thread."""
        raise NotImplementedError

    @optional
    def get_device(self) -> int:
        """The id of the current device of the calling thread."""
        raise NotImplementedError

    @optional
    def get_device_count(self) -> int:
        """The number of devices of the type."""
        raise NotImplementedError

    @optional
    def get_device_list(self) -> Sequence[int]:
        """The ids of the devices."""
        raise NotImplementedError

    @optional
    def get_device_properties(self, device: Device) -> Mapping[str, object]:
        """The known properties of a device, under its maker's names."""
        raise NotImplementedError

    @optional
    def get_compute_capability(self) -> int:
        """The version of the instructions."""
        raise NotImplementedError

    @optional
    def get_runtime_version(self) -> int:
        """The version of the maker's library."""
        raise NotImplementedError

    @optional
    def get_driver_version(self) -> int:
        """The version of the maker's driver."""
        raise NotImplementedError

    @optional
    def synchronize_device(self, device: Device) -> int | None:
        """Wait until all streams of a device are done; a failure on them is raised."""
        raise NotImplementedError

    # ---- Streams and events ----------------------------------------------------------------------

    @optional
    def create_stream(self, device: Device) -> Handle:
        """A new stream: an order of operations, beside other streams."""
        raise NotImplementedError

    @optional
    def destroy_stream(self, device: Device, stream: Handle) -> int | None:
        """Take a stream back, when it is done."""
        raise NotImplementedError

    @optional
    def query_stream(self, device: Device, stream: Handle) -> bool:
        """Whether a stream is done."""
        raise NotImplementedError

    @optional
    def synchronize_stream(self, device: Device, stream: Handle) -> int | None:
        """Wait until a stream is done; a failure on it is raised."""
        raise NotImplementedError

    @optional
    def stream_add_callback(
        self, device: Device, stream: Handle, callback: Callable[[], None]
    ) -> int | None:
        """Call a function when the stream has done all earlier operations."""
        raise NotImplementedError

    @optional
    def stream_wait_event(self, device: Device, stream: Handle, event: Handle) -> int | None:
        """Let a stream wait until an event has happened."""
        raise NotImplementedError

    @optional
    def create_event(self, device: Device) -> Handle:
        """A new event: a place in a stream."""
        raise NotImplementedError

    @optional
    def record_event(self, device: Device, stream: Handle, event: Handle) -> int | None:
        """Set the event's place to the present end of a stream."""
        raise NotImplementedError

    @optional
    def destroy_event(self, device: Device, event: Handle) -> int | None:
        """Take an event back."""
        raise NotImplementedError

    @optional
    def query_event(self, device: Device, event: Handle) -> bool:
        """Whether an event has happened."""
        raise NotImplementedError

    @optional
    def synchronize_event(self, device: Device, event: Handle) -> int | None:
        """Wait until an event has happened; a failure before it is raised."""
        raise NotImplementedError

    # ---- Kernels ---------------------------------------------------------------------------------

    @optional
    def launch(self, device: Device, stream: Handle, kernel: Kernel) -> int | None:
        """Run code that was compiled for the CPU on a stream, with the device's memory."""
        raise NotImplementedError


OPTIONAL = tuple(
    name for name, each in vars(DeviceInterface).items() if getattr(each, "is_optional", False)
)
REQUIRED = ("device_memory_allocate", "device_memory_deallocate")
