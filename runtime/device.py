"""Device: where an array's memory lives, in DLPack's terms (type, id)."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, final

from minitvm.runtime.record import record

if TYPE_CHECKING:
    from minitvm.runtime.device_api.allocator import AllocatorStats
    from minitvm.runtime.device_api.interface import DeviceInterface
    from minitvm.runtime.device_api.managed import ManagedDevice
    from minitvm.runtime.device_api.streams import Event, Stream


class DeviceType(IntEnum):
    """``DLDeviceType`` of DLPack 1.3 (dlpack.h)."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    OPENCL = 4
    VULKAN = 7
    METAL = 8
    VPI = 9
    ROCM = 10
    ROCM_HOST = 11
    EXT_DEV = 12
    CUDA_MANAGED = 13
    ONEAPI = 14
    WEBGPU = 15
    HEXAGON = 16
    MAIA = 17
    TRN = 18


DEVICE_TYPES: dict[str, int] = {kind.name.lower(): int(kind) for kind in DeviceType}
"""The numbers of all kinds of devices by their names, those that were registered among them."""
_ALIASES = {"llvm": "cpu", "c": "cpu", "gpu": "cuda", "nvptx": "cuda", "cl": "opencl"}
_FIRST_OWN = 256  # of registered kinds: far from DLPack's, which grow one by one
_MOST = 2**31  # of a number of DLPack


@final
@record()
class Device:
    """A DLPack device: ``device_type`` (1 is the CPU) and ``device_id``.

    >>> cpu(0)
    cpu(0)
    """

    device_type: int
    device_id: int = 0

    @property
    def name(self) -> str:
        found = (name for name, number in DEVICE_TYPES.items() if number == self.device_type)
        return next(found, f"device_type_{self.device_type}")

    @property
    def exist(self) -> bool:
        """Whether there is such a device in this process: its memory can be used."""
        return bool(_managed_devices().exists(self))

    @property
    def interface(self) -> DeviceInterface:
        """What was registered for this kind of device; of ``ext_dev``, the simulated device, which
        fails when it is told to.

        >>> ext_dev(0).interface.provides("launch")
        True
        """
        return self._managed.driver.interface

    @property
    def properties(self) -> dict[str, object]:
        """What the device says of itself, by names of its maker's.

        Raises
        ------
        ValueError
            When there is no such device; as in all that follows.
        """
        return self._managed.properties()

    def sync(self, stream: Stream | None = None) -> None:
        """Wait until the device has done all that it was asked for, or what is on a stream.

        Raises
        ------
        DeviceError
            For what failed there since the last time; of a kernel, of the type that it raised, too.
        """
        self._managed.synchronize(stream)

    def create_stream(self) -> Stream:
        """A new stream of this device: an order of copies and kernels, beside other streams."""
        return self._managed.create_stream()

    def create_event(self) -> Event:
        """A new event of this device: a place in a stream that others can wait for."""
        return self._managed.create_event()

    def memory_stats(self) -> AllocatorStats:
        """What is allocated, cached and free, in bytes: see docs/device_memory.md."""
        return self._managed.memory_stats()

    def empty_cache(self) -> None:
        """Give memory that no array uses back to the device."""
        self._managed.allocator.empty_cache()

    def set_memory_limit(self, limit: int | None) -> None:
        """The most bytes that arrays may take on this device; None for as many as it has."""
        self._managed.allocator.set_limit(limit)

    @property
    def _managed(self) -> ManagedDevice:
        found: ManagedDevice = _managed_devices().managed(self)
        return found

    def __str__(self) -> str:
        return f"{self.name}({self.device_id})"

    __repr__ = __str__


def _managed_devices() -> Any:
    """The room of the devices that are there, which knows Device, and so stands above."""
    from minitvm.runtime.device_api import registry

    return registry


def device(name: str | int, device_id: int = 0) -> Device:
    """The device of a name (or DLPack number) and an id.

    Raises
    ------
    ValueError
        When there is no such kind of device.

    >>> device("cuda", 1)
    cuda(1)
    """
    if not isinstance(name, str):
        return Device(operator.index(name), operator.index(device_id))
    kind = name.split()[0] if name.strip() else name
    kind = _ALIASES.get(kind, kind)
    if kind not in DEVICE_TYPES:
        raise ValueError(f"expected a device among {', '.join(DEVICE_TYPES)}, got {name!r}")
    return Device(DEVICE_TYPES[kind], operator.index(device_id))


def cpu(device_id: int = 0) -> Device:
    """The CPU."""
    return Device(DEVICE_TYPES["cpu"], device_id)


def ext_dev(device_id: int = 0) -> Device:
    """The simulated device, whose memory is apart from the CPU's: see docs/devices.md."""
    return Device(DEVICE_TYPES["ext_dev"], device_id)


def name_device_type(name: str, number: int | None = None) -> int:
    """Gives a kind of device a name and a number of DLPack, by default one of its own.

    Raises
    ------
    ValueError
        When the name is none, or either is taken.
    """
    if not name.isidentifier():
        raise ValueError(f"expected a name such as 'npu', got {name!r}")
    if name in DEVICE_TYPES or name in _ALIASES:
        raise ValueError(f"expected a name for a new kind of device, got {name!r}, which there is")
    taken = set(DEVICE_TYPES.values())
    if number is None:
        number = max(_FIRST_OWN, max(taken) + 1)
    number = operator.index(number)
    if not 0 < number < _MOST or number in taken:
        raise ValueError(
            f"{name}: expected a number of a device from 1 to {_MOST - 1} that is free, got "
            f"{number}"
        )
    DEVICE_TYPES[name] = number
    return number
