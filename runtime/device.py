"""Device: where an array's memory lives, in DLPack's terms (type, id)."""

from __future__ import annotations

import operator
from typing import Any, final

from minitvm.runtime.device_api import registry
from minitvm.runtime.device_api.allocator import AllocatorStats
from minitvm.runtime.device_api.interface import DeviceInterface
from minitvm.runtime.device_api.managed import ManagedDevice
from minitvm.runtime.device_api.streams import Event, Stream
from minitvm.runtime.device_type import ALIASES, DEVICE_TYPES, BareDevice


@final
class Device(BareDevice):
    """A DLPack device: ``device_type`` (1 is the CPU) and ``device_id``.

    >>> cpu(0)
    cpu(0)
    """

    __slots__ = ()

    @property
    def exist(self) -> bool:
        """Whether the device exists in this process, so that its memory can be used."""
        return registry.exists(self)

    @property
    def interface(self) -> DeviceInterface:
        """The interface that was registered for this kind of device; for ``ext_dev`` the simulated
        device, which fails when it is told to.

        >>> ext_dev(0).interface.provides("launch")
        True
        """
        return self._managed.driver.interface

    @property
    def properties(self) -> dict[str, object]:
        """The device's description of itself, under its maker's names.

        Raises
        ------
        ValueError
            When there is no such device, as for all following methods.
        """
        return self._managed.properties()

    def sync(self, stream: Stream | None = None) -> None:
        """Wait until the device has done all requested work, or the work on a stream.

        Raises
        ------
        DeviceError
            For a failure there since the last wait; for a kernel's failure it also has the type
            that the kernel raised.
        """
        self._managed.synchronize(stream)

    def create_stream(self) -> Stream:
        """A new stream of this device: an order of copies and kernels, beside other streams."""
        return self._managed.create_stream()

    def create_event(self) -> Event:
        """A new event of this device: a place in a stream that others can wait for."""
        return self._managed.create_event()

    def memory_stats(self) -> AllocatorStats:
        """The allocated, cached and free memory, in bytes: see docs/device_memory.md."""
        return self._managed.memory_stats()

    def empty_cache(self) -> None:
        """Give memory that no array uses back to the device."""
        self._managed.allocator.empty_cache()

    def set_memory_limit(self, limit: int | None) -> None:
        """Limits the bytes that arrays may take on this device; None for no limit."""
        self._managed.allocator.set_limit(limit)

    @property
    def _managed(self) -> ManagedDevice:
        return registry.managed(self)


def device(name: str | int, device_id: int = 0) -> Device:
    """The device of a name (or DLPack number) and an id.

    Raises
    ------
    ValueError, TypeError
        When there is no such kind of device, or an argument is of another type.

    >>> device("cuda", 1)
    cuda(1)
    """
    if not isinstance(name, str):
        return Device(_index("name or number of a kind of device", name), _index("id", device_id))
    kind = name.split()[0] if name.strip() else name
    kind = ALIASES.get(kind, kind)
    if kind not in DEVICE_TYPES:
        raise ValueError(f"device: expected a device among {', '.join(DEVICE_TYPES)}, got {name!r}")
    return Device(DEVICE_TYPES[kind], _index("id", device_id))


def _index(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"device: expected the {what}, got {kind}") from None


def cpu(device_id: int = 0) -> Device:
    """The CPU."""
    return Device(DEVICE_TYPES["cpu"], device_id)


def ext_dev(device_id: int = 0) -> Device:
    """The simulated device, whose memory is apart from the CPU's: see docs/devices.md."""
    return Device(DEVICE_TYPES["ext_dev"], device_id)
