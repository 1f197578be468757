"""Arrays, under the names of classic ``tvm.nd``."""

from minitvm.runtime.device import Device, cpu, device, ext_dev
from minitvm.runtime.interchange import from_dlpack
from minitvm.runtime.ndarray import NDArray, array, empty

__all__ = ["Device", "NDArray", "array", "cpu", "device", "empty", "ext_dev", "from_dlpack"]
