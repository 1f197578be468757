"""minitvm turns a tensor expression into a native function that any array library can call.

>>> import numpy as np
>>> import minitvm as tvm
>>> n = tvm.var("n")
>>> X = tvm.placeholder((n,), name="X")
>>> Y = tvm.compute((n,), lambda i: tvm.exp(X[i]) + 1.0, name="Y")
>>> f = tvm.build(tvm.create_schedule(Y.op), [X, Y], name="f")
>>> y = np.empty(3, "float32")
>>> f(np.zeros(3, "float32"), y)
>>> y
array([2., 2., 2.], dtype=float32)
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitvm import contrib, error, ir, nd, runtime, target, te, tir, transform
from minitvm.auto_scheduler import auto_schedule
from minitvm.driver.build import build
from minitvm.driver.prepack import prepack
from minitvm.ir import IRModule
from minitvm.lowering.lower import lower
from minitvm.runtime import (
    CompileError,
    DataType,
    DataTypeCode,
    Device,
    DeviceError,
    DeviceInterface,
    DeviceMemoryError,
    Event,
    InternalError,
    KernelError,
    NDArray,
    Stream,
    TVMArgs,
    TVMError,
    TVMValue,
    UnsupportedByDevice,
    cpu,
    device,
    ext_dev,
    from_dlpack,
    get_global_func,
    list_global_func_names,
    num_threads,
    register_device,
    register_func,
    remove_global_func,
    set_num_threads,
    unregister_device,
)
from minitvm.runtime.conversion import set_meaning
from minitvm.runtime.version import VERSION
from minitvm.target import Target
from minitvm.te import *  # noqa: F403  # the classic face: tvm.compute is te.compute
from minitvm.te import __all__ as _te_names
from minitvm.tir import Select, call_extern, call_llvm_intrin, call_packed
from minitvm.tir.op import convert

if TYPE_CHECKING:
    from minitvm.explanation.explain import explain as explain
    from minitvm.runtime.device_api.plugin import load_device_plugin as load_device_plugin

_ON_DEMAND = {
    "explain": "minitvm.explanation.explain",
    "load_device_plugin": "minitvm.runtime.device_api.plugin",
}

# Modules that have moved are importable where they were, too.
_FORMER = {
    "minitvm.tir": "buffer expr functor indices interpreter ir_builder op printer scalars stmt "
    "structural_equal verify te.reducer",
    "minitvm.transform": "pass_config pass_context",
    "minitvm.driver": "codegen.build codegen.prepack",
    "minitvm.te.schedules": "te.schedule te.stage",
}
for _room, _names in _FORMER.items():
    for _former in _names.split():
        _now = f"{_room}.{_former.split('.')[-1]}"
        sys.modules[f"minitvm.{_former}"] = importlib.import_module(_now)


def __getattr__(name: str) -> Any:
    """What few programs need is imported when it is asked for."""
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(_ON_DEMAND[name]), name)
    if f"minitvm.{name}" in sys.modules:
        return sys.modules[f"minitvm.{name}"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


set_meaning(convert)


def get_include() -> str:
    """The folder for a C compiler's ``-I``, where ``minitvm/c_runtime_api.h`` is.

    >>> (Path(get_include()) / "minitvm" / "c_runtime_api.h").is_file()
    True
    """
    return str(Path(__file__).parent / "include")


__version__ = VERSION
__all__ = [
    *_te_names,
    "CompileError",
    "DataType",
    "DataTypeCode",
    "Device",
    "DeviceError",
    "DeviceInterface",
    "DeviceMemoryError",
    "Event",
    "IRModule",
    "InternalError",
    "KernelError",
    "NDArray",
    "Select",
    "Stream",
    "TVMArgs",
    "TVMError",
    "TVMValue",
    "Target",
    "UnsupportedByDevice",
    "auto_schedule",
    "build",
    "call_extern",
    "call_llvm_intrin",
    "call_packed",
    "contrib",
    "convert",
    "cpu",
    "device",
    "error",
    "explain",
    "ext_dev",
    "from_dlpack",
    "get_global_func",
    "get_include",
    "ir",
    "list_global_func_names",
    "load_device_plugin",
    "lower",
    "nd",
    "num_threads",
    "prepack",
    "register_device",
    "register_func",
    "remove_global_func",
    "runtime",
    "set_num_threads",
    "target",
    "te",
    "tir",
    "transform",
    "unregister_device",
]
