"""The kinds of devices, by name and by DLPack's number; and BareDevice, a kind with an index."""

from __future__ import annotations

import operator
from enum import IntEnum

from minitvm.runtime.record import record


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
ALIASES = {"llvm": "cpu", "c": "cpu", "gpu": "cuda", "nvptx": "cuda", "cl": "opencl"}
_FIRST_OWN = 256  # of registered kinds: far from DLPack's, which grow one by one
_MOST = 2**31  # of a number of DLPack


@record()
class BareDevice:
    """A device's type (1 is the CPU) and id, for code that implements devices. The methods of
    users' devices are in :class:`minitvm.runtime.device.Device`.

    >>> BareDevice(1)
    cpu(0)
    """

    device_type: int
    device_id: int = 0

    @property
    def name(self) -> str:
        found = (name for name, number in DEVICE_TYPES.items() if number == self.device_type)
        return next(found, f"device_type_{self.device_type}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BareDevice):
            return NotImplemented
        return (self.device_type, self.device_id) == (other.device_type, other.device_id)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __str__(self) -> str:
        return f"{self.name}({self.device_id})"

    __repr__ = __str__


def name_device_type(name: str, number: int | None = None) -> int:
    """Gives a kind of device a name and a number of DLPack, by default one of its own.

    Raises
    ------
    ValueError
        When the name is malformed, or name or number is taken.
    """
    if not name.isidentifier():
        raise ValueError(f"expected a name such as 'npu', got {name!r}")
    if name in DEVICE_TYPES or name in ALIASES:
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
