"""Values, arrays, devices and calls: the floor of the house."""

from minitvm.runtime.conversion import convert as convert
from minitvm.runtime.device import Device as Device
from minitvm.runtime.device import cpu as cpu
from minitvm.runtime.device import device as device
from minitvm.runtime.device import ext_dev as ext_dev
from minitvm.runtime.device_api.interface import DeviceInterface as DeviceInterface
from minitvm.runtime.device_api.registry import launches as _launches
from minitvm.runtime.device_api.registry import register_device as register_device
from minitvm.runtime.device_api.registry import unregister_device as unregister_device
from minitvm.runtime.device_api.streams import Event as Event
from minitvm.runtime.device_api.streams import Stream as Stream
from minitvm.runtime.device_type import DeviceType as DeviceType
from minitvm.runtime.dtype import DType as DType
from minitvm.runtime.dtype import TypeCode as _TypeCode
from minitvm.runtime.errors import CompileError as CompileError
from minitvm.runtime.errors import DeviceError as DeviceError
from minitvm.runtime.errors import DeviceMemoryError as DeviceMemoryError
from minitvm.runtime.errors import InternalError as InternalError
from minitvm.runtime.errors import KernelError as KernelError
from minitvm.runtime.errors import LayoutError as LayoutError
from minitvm.runtime.errors import PerformanceWarning as PerformanceWarning
from minitvm.runtime.errors import TVMError as TVMError
from minitvm.runtime.errors import UnsupportedByDevice as UnsupportedByDevice
from minitvm.runtime.evaluator import BenchmarkResult as BenchmarkResult
from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.runtime.faces import on_demand as _on_demand
from minitvm.runtime.interchange import from_dlpack as from_dlpack
from minitvm.runtime.module import Module as Module
from minitvm.runtime.module import load_module as load_module
from minitvm.runtime.ndarray import NDArray as NDArray
from minitvm.runtime.ndarray import array as array
from minitvm.runtime.ndarray import empty as empty
from minitvm.runtime.packed_func import Function as Function
from minitvm.runtime.packed_func import PackedFunc as PackedFunc
from minitvm.runtime.packed_func import convert_to_packed as convert_to_packed
from minitvm.runtime.registry import get_global_func as get_global_func
from minitvm.runtime.registry import list_global_func_names as list_global_func_names
from minitvm.runtime.registry import register_func as register_func
from minitvm.runtime.registry import remove_global_func as remove_global_func
from minitvm.runtime.threads import num_threads as num_threads
from minitvm.runtime.threads import set_num_threads as set_num_threads
from minitvm.runtime.values import TVM_CRT_MAX_ARGS as TVM_CRT_MAX_ARGS
from minitvm.runtime.values import ArgTypeCode as ArgTypeCode
from minitvm.runtime.values import TVMArgs as TVMArgs
from minitvm.runtime.values import TVMByteArray as TVMByteArray
from minitvm.runtime.values import TVMValue as TVMValue

DataType = DType
DataTypeCode = _TypeCode


def enabled(target: str) -> bool:
    """Whether code for a kind of target can be made and run here.

    >>> enabled("llvm"), enabled("cuda")
    (True, False)
    """
    kind = target.split(" ")[0]
    return kind in ("llvm", "cpu") or _launches(kind)


_ON_DEMAND = {
    "load_param_dict": "minitvm.runtime.params",
    "save_param_dict": "minitvm.runtime.params",
}
__getattr__ = _on_demand(__name__, _ON_DEMAND)
_hand_on(__name__, *_ON_DEMAND)
