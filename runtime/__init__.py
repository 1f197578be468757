"""Values, arrays, devices and calls: the floor of the house."""

from minitvm.runtime.conversion import convert
from minitvm.runtime.device import Device, cpu, device, ext_dev
from minitvm.runtime.device_api.interface import DeviceInterface
from minitvm.runtime.device_api.registry import (
    launches,
    register_device,
    unregister_device,
)
from minitvm.runtime.device_api.streams import Event, Stream
from minitvm.runtime.device_type import DeviceType
from minitvm.runtime.dtype import DType
from minitvm.runtime.dtype import DType as DataType
from minitvm.runtime.dtype import TypeCode as DataTypeCode
from minitvm.runtime.errors import (
    CompileError,
    DeviceError,
    DeviceMemoryError,
    InternalError,
    KernelError,
    LayoutError,
    TVMError,
    UnsupportedByDevice,
)
from minitvm.runtime.evaluator import BenchmarkResult
from minitvm.runtime.interchange import from_dlpack
from minitvm.runtime.module import Module
from minitvm.runtime.ndarray import NDArray, array, empty
from minitvm.runtime.packed_func import Function, PackedFunc, convert_to_packed
from minitvm.runtime.registry import (
    get_global_func,
    list_global_func_names,
    register_func,
    remove_global_func,
)
from minitvm.runtime.threads import num_threads, set_num_threads
from minitvm.runtime.values import (
    TVM_CRT_MAX_ARGS,
    ArgTypeCode,
    TVMArgs,
    TVMByteArray,
    TVMValue,
)


def enabled(target: str) -> bool:
    """Whether code for a kind of target can be made and run here.

    >>> enabled("llvm"), enabled("cuda")
    (True, False)
    """
    kind = target.split(" ")[0]
    return kind in ("llvm", "cpu") or launches(kind)


__all__ = [
    "TVM_CRT_MAX_ARGS",
    "ArgTypeCode",
    "BenchmarkResult",
    "CompileError",
    "DType",
    "DataType",
    "DataTypeCode",
    "Device",
    "DeviceError",
    "DeviceInterface",
    "DeviceMemoryError",
    "DeviceType",
    "Event",
    "Function",
    "InternalError",
    "KernelError",
    "LayoutError",
    "Module",
    "NDArray",
    "PackedFunc",
    "Stream",
    "TVMArgs",
    "TVMByteArray",
    "TVMError",
    "TVMValue",
    "UnsupportedByDevice",
    "array",
    "convert",
    "convert_to_packed",
    "cpu",
    "device",
    "empty",
    "enabled",
    "ext_dev",
    "from_dlpack",
    "get_global_func",
    "list_global_func_names",
    "num_threads",
    "register_device",
    "register_func",
    "remove_global_func",
    "set_num_threads",
    "unregister_device",
]
