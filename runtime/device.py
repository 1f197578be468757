"""Device: where an array's memory lives, in DLPack's terms (type, id)."""

from __future__ import annotations

from enum import IntEnum
from typing import final

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
_NAMES = {number: name for name, number in DEVICE_TYPES.items()}
_ALIASES = {"llvm": "cpu", "c": "cpu", "gpu": "cuda", "nvptx": "cuda", "cl": "opencl"}


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
    def exist(self) -> bool:
        """Whether this process can compute there."""
        return self.device_type == DEVICE_TYPES["cpu"] and self.device_id == 0

    @property
    def name(self) -> str:
        return _NAMES.get(self.device_type, f"device_type_{self.device_type}")

    def __str__(self) -> str:
        return f"{self.name}({self.device_id})"

    __repr__ = __str__


def device(name: str | int, device_id: int = 0) -> Device:
    """The device of a name (or DLPack number) and an id.

    Raises
    ------
    ValueError
        When there is no such kind of device.

    >>> device("cuda", 1)
    cuda(1)
    """
    if isinstance(name, int):
        return Device(name, device_id)
    kind = name.split()[0] if name.strip() else name
    kind = _ALIASES.get(kind, kind)
    if kind not in DEVICE_TYPES:
        raise ValueError(f"expected a device among {', '.join(DEVICE_TYPES)}, got {name!r}")
    return Device(DEVICE_TYPES[kind], device_id)


def cpu(device_id: int = 0) -> Device:
    """The CPU."""
    return Device(DEVICE_TYPES["cpu"], device_id)
