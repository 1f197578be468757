"""The memory of a simulated device: addresses of its own, which mean nothing to the host."""

from __future__ import annotations

import bisect
import operator
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, final

import numpy as np

from minitvm.runtime.device_api.interface import ALIGNMENT
from minitvm.runtime.device_type import BareDevice
from minitvm.runtime.errors import DeviceError, DeviceMemoryError

# An address of a device has bits 62 and 55, the device's id in bits 48 to 54, and 48 for bytes:
#
#    62 |      | 55 | 54 ... 48 | 47 ... 0
#     1 | 0... |  1 | device id |  byte
#
# Such an address is not canonical on x86-64. On AArch64, which looks at bit 55 and may ignore the
# bits above, it is an address of the kernel. So the host can't touch it. No address is given twice.
_MARK = 1 << 62 | 1 << 55
_ID_BITS = 7
_BYTE_BITS = 48
_SPAN = 1 << _BYTE_BITS
_END = _MARK + (_SPAN << _ID_BITS)
MOST_DEVICES = 1 << _ID_BITS
_GAP = 1 << 16  # between allocations, so that one byte too many never reaches the next one
_MOST_FREED = 1024  # deallocated allocations that errors can still name


class Where(NamedTuple):
    """The call that an error is about, as the words that begin its message."""

    device: BareDevice | None
    function: str
    part: str = ""

    def __str__(self) -> str:
        whose = "ext_dev" if self.device is None else f"{self.device}"
        return ": ".join(filter(None, (whose, self.function, self.part)))


def check_size(where: object, size: int) -> None:
    """Raise an error unless `size` is a number of bytes, and not 0."""
    if not isinstance(size, int) or size <= 0:
        raise DeviceError(f"{where}: expected a positive number of bytes, got {size!r}")


def integer(where: object, what: str, value: object) -> int:
    """An address, or a byte's value, as an integer."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the question is whether it is one
    except TypeError:
        raise DeviceError(
            f"{where}: expected an integer as {what}, got {type(value).__name__}"
        ) from None


class Bytes(NamedTuple):
    """Bytes that were deallocated."""

    address: int
    size: int
    kind: str


@final
class Allocation:
    """Bytes of a device, or bytes of the host that the device knows.

    `address` is their name to callers, `place` their address for the CPU; `users` are the names of
    the operations that need them.
    """

    __slots__ = ("_memory", "address", "kind", "place", "size", "users")

    def __init__(self, address: int | None, size: int, kind: str) -> None:
        self._memory = np.empty(size + ALIGNMENT, np.uint8)
        self.place = -(-self._memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.address = self.place if address is None else address
        self.size = size
        self.kind = kind
        self.users: list[str] = []

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self.size


@final
class _Table:
    """Allocations by address.

    An object that the garbage collector finds may take its allocation back at any time, also while
    the same thread is in here: each step leaves the table consistent.
    """

    def __init__(self) -> None:
        self.live: dict[int, Allocation] = {}
        self.freed: deque[Bytes] = deque(maxlen=_MOST_FREED)
        self._starts: list[int] = []  # sorted

    def add(self, allocation: Allocation) -> None:
        self.live[allocation.address] = allocation
        bisect.insort(self._starts, allocation.address)

    def remove(self, allocation: Allocation) -> None:
        del self.live[allocation.address]
        self._starts.remove(allocation.address)
        self.freed.append(Bytes(allocation.address, allocation.size, allocation.kind))

    def find(self, address: int) -> Allocation | None:
        """The allocation with a byte of that address."""
        index = bisect.bisect_right(self._starts, address)
        found = self.live.get(self._starts[index - 1]) if index else None
        return found if found is not None and found.holds(address) else None

    def end_before(self, address: int) -> Allocation | None:
        """The allocation that ends closest before an address."""
        index = bisect.bisect_right(self._starts, address)
        return self.live.get(self._starts[index - 1]) if index else None

    def find_freed(self, address: int) -> Bytes | None:
        """The latest deallocated allocation with a byte at that address."""
        matching = (
            each for each in reversed(self.freed) if 0 <= address - each.address < each.size
        )
        return next(matching, None)

    @property
    def used(self) -> int:
        return sum(each.size for each in tuple(self.live.values()))


class Place(NamedTuple):
    """The address of bytes for the CPU, and the allocation to which they belong, if any."""

    address: int
    allocation: Allocation | None


@final
class Memory:
    """The memory of all devices, and the host's memory that they know of. The caller holds the
    lock."""

    def __init__(self, devices: int, capacity: int) -> None:
        self.capacity = capacity
        self._devices = tuple(_Table() for _ in range(devices))
        self._next = [_MARK + (each << _BYTE_BITS) + _GAP for each in range(devices)]
        self._host = _Table()

    def used(self, device: BareDevice) -> int:
        """The number of allocated bytes of a device."""
        return self._devices[device.device_id].used

    def allocations(self) -> Iterator[Allocation]:
        """The live allocations of the devices and of the host."""
        for table in (*self._devices, self._host):
            yield from tuple(table.live.values())

    # ---- Allocate and deallocate -----------------------------------------------------------------

    def allocate(self, where: object, device: BareDevice, size: int) -> int:
        """The address of new bytes of a device."""
        check_size(where, size)
        used = self.used(device)
        if size > self.capacity - used:
            raise DeviceMemoryError(
                f"{where}: expected at most the {self.capacity - used} bytes that are free, got "
                f"{size}: {used} of {self.capacity} bytes are allocated"
            )
        address = self._next[device.device_id]
        step = -(-size // _GAP) * _GAP + _GAP
        if (address + step - _MARK) >> _BYTE_BITS != device.device_id:
            raise DeviceMemoryError(f"{where}: all of the device's addresses were given once")
        allocation = _new(where, address, size, f"{device}")
        self._next[device.device_id] = address + step
        self._devices[device.device_id].add(allocation)
        return address

    def allocate_host(self, where: object, kind: str, size: int) -> int:
        """The address of new bytes of the host, of a kind: pinned or unified."""
        check_size(where, size)
        allocation = _new(where, None, size, kind)
        self._host.add(allocation)
        return allocation.address

    def deallocate(self, where: object, device: BareDevice, address: int, size: int) -> None:
        """Take back bytes of a device."""
        self._take_back(where, self._devices[device.device_id], f"{device}", address, size)

    def deallocate_host(self, where: object, kind: str, address: int, size: int) -> None:
        """Take back bytes of the host."""
        self._take_back(where, self._host, kind, address, size)

    def _take_back(self, where: object, table: _Table, kind: str, address: int, size: int) -> None:
        address = integer(where, "the address", address)
        found = table.live.get(address)
        if found is None or found.kind != kind:
            raise DeviceError(
                f"{where}: expected the address of an allocation ({kind}), got "
                f"{self._described(address)}"
            )
        if size != found.size:
            raise DeviceError(
                f"{where}: expected {found.size} bytes, which were allocated at {address:#x}, got "
                f"{size!r}"
            )
        if found.users:
            raise DeviceError(
                f"{where}: expected bytes that nothing uses, got {self._described(address)}, which "
                f"{found.users[0]} uses: wait for it first"
            )
        table.remove(found)

    # ---- What addresses mean ---------------------------------------------------------------------

    def on_device(self, where: object, device: BareDevice, address: int, size: int) -> Place:
        """Bytes at an address of a device, or of unified memory."""
        check_size(where, size)
        address = integer(where, "an address", address)
        found = self._devices[device.device_id].find(address)
        if found is None:
            found = self._host.find(address)
            if found is not None and found.kind != UNIFIED:
                found = None
        return self._within(where, f"of {device}", found, address, size)

    def on_host(self, where: object, address: int, size: int) -> Place:
        """Bytes at an address of the host."""
        check_size(where, size)
        address = integer(where, "an address", address)
        found = self._host.find(address)
        if found is not None:
            return self._within(where, "of the host", found, address, size)
        if not 0 < address < address + size <= 1 << 64 or (
            address < _END and address + size > _MARK
        ):
            raise DeviceError(
                f"{where}: expected {size} bytes of the host, got {self._described(address)}"
            )
        return Place(address, None)

    def _within(
        self, where: object, whose: str, found: Allocation | None, address: int, size: int
    ) -> Place:
        if found is None:
            raise DeviceError(
                f"{where}: expected {size} bytes {whose}, got {self._described(address)}"
            )
        start = address - found.address
        if size > found.size - start:
            raise DeviceError(
                f"{where}: expected {size} bytes {whose}, got {self._described(address)}: "
                f"{size - (found.size - start)} beyond its end"
            )
        return Place(found.place + start, found)

    def _described(self, address: int) -> str:
        """The description of an address, for messages."""
        name = f"{address:#x}"
        if address == 0:
            return "a null pointer"
        if not 0 < address < 1 << 64:
            return f"{name}, no address"
        is_device = _MARK <= address < _END
        device = (address - _MARK) >> _BYTE_BITS
        if is_device and device >= len(self._devices):
            return f"{name}, an address of device {device}, which is not there"
        table = self._devices[device] if is_device else self._host
        found = table.find(address)
        if found is not None:
            part = f"byte {address - found.address} of {found.size}"
            return f"{name}, {part} of an allocation ({found.kind})"
        freed = table.find_freed(address)
        if freed is not None:
            part = f"byte {address - freed.address} of {freed.size}"
            return f"{name}, {part} of an allocation ({freed.kind}) that was deallocated"
        if is_device:
            before = table.end_before(address)
            beyond = _GAP if before is None else address - before.address - before.size
            if before is not None and beyond < _GAP:
                return f"{name}, {beyond} beyond the end of an allocation ({before.kind})"
            return f"{name}, an address of device {device} that is in no allocation"
        return f"{name}, an address of the host"


PINNED = "pinned memory of the host"
UNIFIED = "unified memory"


def _new(where: object, address: int | None, size: int, kind: str) -> Allocation:
    try:
        return Allocation(address, size, kind)
    except (MemoryError, ValueError) as error:
        raise DeviceMemoryError(
            f"{where}: the host, which stands in for the device, has no memory for {size} bytes"
        ) from error
