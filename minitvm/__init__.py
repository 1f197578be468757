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

import importlib as _importlib
import sys as _sys
import typing as _typing
from pathlib import Path as _Path

from minitvm import arith as arith
from minitvm import error as error
from minitvm import ir as ir
from minitvm import nd as nd
from minitvm import runtime as runtime
from minitvm import target as target
from minitvm import te as te
from minitvm import tir as tir
from minitvm import transform as transform
from minitvm.auto_scheduler import auto_schedule as auto_schedule
from minitvm.driver.build import build as build
from minitvm.driver.prepack import prepack as prepack
from minitvm.ir import IRModule as IRModule
from minitvm.lowering.lower import lower as lower
from minitvm.runtime import CompileError as CompileError
from minitvm.runtime import DataType as DataType
from minitvm.runtime import DataTypeCode as DataTypeCode
from minitvm.runtime import Device as Device
from minitvm.runtime import DeviceError as DeviceError
from minitvm.runtime import DeviceInterface as DeviceInterface
from minitvm.runtime import DeviceMemoryError as DeviceMemoryError
from minitvm.runtime import Event as Event
from minitvm.runtime import InternalError as InternalError
from minitvm.runtime import KernelError as KernelError
from minitvm.runtime import NDArray as NDArray
from minitvm.runtime import PerformanceWarning as PerformanceWarning
from minitvm.runtime import Stream as Stream
from minitvm.runtime import TVMArgs as TVMArgs
from minitvm.runtime import TVMError as TVMError
from minitvm.runtime import TVMValue as TVMValue
from minitvm.runtime import UnsupportedByDevice as UnsupportedByDevice
from minitvm.runtime import cpu as cpu
from minitvm.runtime import device as device
from minitvm.runtime import ext_dev as ext_dev
from minitvm.runtime import from_dlpack as from_dlpack
from minitvm.runtime import get_global_func as get_global_func
from minitvm.runtime import list_global_func_names as list_global_func_names
from minitvm.runtime import num_threads as num_threads
from minitvm.runtime import register_device as register_device
from minitvm.runtime import register_func as register_func
from minitvm.runtime import remove_global_func as remove_global_func
from minitvm.runtime import set_num_threads as set_num_threads
from minitvm.runtime import unregister_device as unregister_device
from minitvm.runtime.bridges import set_bridges as _set_bridges
from minitvm.runtime.conversion import set_meaning as _set_meaning
from minitvm.runtime.faces import explain_absent as _explain_absent
from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.runtime.faces import on_demand as _on_demand
from minitvm.runtime.registry import set_origins as _set_origins
from minitvm.runtime.version import VERSION as _VERSION
from minitvm.target import Target as Target
from minitvm.te import *  # noqa: F403  # the classic face: tvm.compute is te.compute
from minitvm.tir import Select as Select
from minitvm.tir import call_extern as call_extern
from minitvm.tir import call_llvm_intrin as call_llvm_intrin
from minitvm.tir import call_packed as call_packed
from minitvm.tir.op import convert as convert

if _typing.TYPE_CHECKING:
    from minitvm import contrib as contrib
    from minitvm import testing as testing
    from minitvm.explanation.explain import explain as explain
    from minitvm.operators.jit import jit as jit
    from minitvm.operators.operator import Operator as Operator
    from minitvm.runtime.device_api.plugin import load_device_plugin as load_device_plugin
    from minitvm.ufuncs.gufunc import gufunc as gufunc
    from minitvm.ufuncs.gufunc import ufunc as ufunc

_ON_DEMAND = {
    "Operator": "minitvm.operators.operator",
    "gufunc": "minitvm.ufuncs.gufunc",
    "ufunc": "minitvm.ufuncs.gufunc",
    "contrib": "minitvm.contrib",
    "testing": "minitvm.testing",
    "explain": "minitvm.explanation.explain",
    "jit": "minitvm.operators.jit",
    "load_device_plugin": "minitvm.runtime.device_api.plugin",
}

# Modules that have moved can still be imported under their former names.
_FORMER = {
    "minitvm.tir": "buffer expr functor indices ir_builder op printer scalars stmt "
    "structural_equal verify te.reducer",
    "minitvm.transform": "pass_config pass_context",
    "minitvm.driver": "codegen.build codegen.prepack",
    "minitvm.te.schedules": "te.stage",
}
# Modules of classic TVM whose contents are in other rooms here.
_CLASSIC = {
    "te.schedule": "lowering.classic",
    "tir.transform": "transform.classic",
    "ir.transform": "transform",
}

for _room, _names in _FORMER.items():
    for _former in _names.split():
        _face, _, _name = f"minitvm.{_former}".rpartition(".")
        _module = _importlib.import_module(f"{_room}.{_name}")
        _sys.modules[f"{_face}.{_name}"] = _module
        setattr(_importlib.import_module(_face), _name, _module)
for _former, _name in _CLASSIC.items():
    _face, _, _place = f"minitvm.{_former}".rpartition(".")
    _module = _importlib.import_module(f"minitvm.{_name}")
    _sys.modules[f"minitvm.{_former}"] = _module
    setattr(_importlib.import_module(_face), _place, _module)
# Names of classic modules that are made in other rooms here.
for _face, _name, _place in (
    ("te", "create_prim_func", "lowering.prim_func"),
    ("tir", "IndexMap", "te.index_map"),
):
    _module = _importlib.import_module(f"minitvm.{_place}")
    setattr(_importlib.import_module(f"minitvm.{_face}"), _name, getattr(_module, _name))


# Parts of TVM that don't exist here, each with its replacement.
_GRAPHS = "minitvm compiles operators; graphs of them stay with the framework that calls them"
_TUNING = "an untouched schedule is scheduled by build: see docs/auto_schedule.md"
_GPU = "there are no kernels for GPUs; device('cuda', 0) names one for arrays"
_BLOCKS = "loops have no blocks here: read func.body, which tir.stmt_functor walks"
_SOLVERS = "tvm.arith.Analyzer proves and simplifies; te.schedule.InferBound infers ranges"
_ABSENT = {
    "minitvm": {
        **dict.fromkeys(("autotvm", "meta_schedule"), _TUNING),
        **dict.fromkeys(("relay", "relax", "parser"), _GRAPHS),
        "rpc": "programs run in this process; a function can be pickled and sent",
        "micro": "there are no targets without an operating system",
        "topi": "there is no operator library yet: write the operator with te.compute",
        "script": "write loops with tir.ir_builder or te.hybrid.script",
        **dict.fromkeys(("cuda", "gpu", "opencl", "cl", "metal", "vulkan", "rocm"), _GPU),
        "context": "write tvm.device(name, id)",
        "autodiff": "te.gradient differentiates a program: see docs/gradients.md",
        "register_object": "classes of Python need no registration",
        "register_extension": "arrays are taken by DLPack: see docs/calling.md",
        "support": "get_include() says where the header is, and __version__ the version",
        "instrument": "write a pass of one's own with tir.transform.prim_func_pass",
    },
    "minitvm.te": {
        "extern_primfunc": "write the loops with te.extern and tir.ir_builder",
        "AXIS_SEPARATOR": "buffers keep their shapes down to code generation: leave it out",
        "SpecializedCondition": "write te.if_then_else, or build a function for each case",
    },
    "minitvm.target": {
        **dict.fromkeys(("cuda", "rocm", "mali", "bifrost", "intel_graphics"), _GPU),
        **dict.fromkeys(("arm_cpu", "riscv_cpu"), 'write Target("llvm -mtriple=...")'),
    },
    "minitvm.tir": {
        "Schedule": "schedule with te.create_schedule",
        **dict.fromkeys(("Block", "BlockRealize", "MatchBufferRegion", "BufferRegion"), _BLOCKS),
        **dict.fromkeys(("Load", "Store"), "read and write buffers: BufferLoad, BufferStore"),
        **dict.fromkeys(
            ("ProducerStore", "ProducerRealize", "BufferRealize", "Prefetch"),
            "lowered loops have BufferStore, Allocate and AttrStmt in their place",
        ),
        "SizeVar": "te.size_var makes one",
        "Any": "te.var is an unknown size",
        "TensorIntrin": "te.decl_tensor_intrin makes one, and tensorize uses it",
        **dict.fromkeys(
            ("Layout", "BijectiveLayout", "layout", "bijective_layout"),
            "write the map of indices as a function: tir.IndexMap.from_func",
        ),
        "ret": "a function writes its outputs",
        "call_cpacked": "write tir.call_packed or tir.call_extern",
    },
    "minitvm.arith": {
        "IntSet": "IntervalSet is one, and Analyzer().int_set finds those of expressions",
        "deduce_bound": "detect_clip_bound finds the bounds that a condition sets",
        **dict.fromkeys(
            ("solve_linear_equations", "solve_linear_inequalities", "IntConstraints",
             "estimate_region_lower_bound", "estimate_region_strict_bound",
             "estimate_region_upper_bound", "PresburgerSet"), _SOLVERS),
        **dict.fromkeys(
            ("detect_iter_map", "normalize_iter_map_to_expr", "iter_map_simplify",
             "subspace_divide", "inverse_affine_iter_map"),
            "tir.IndexMap maps indices and inverts such maps"),
    },
    "minitvm.ir": {
        **dict.fromkeys(("Array", "Map"), "lists, tuples and dicts of Python take their place"),
        "make_node": "call the class of the node",
        **dict.fromkeys(("Span", "SourceName"), "nodes have no place in a source"),
    },
    "minitvm.runtime": {
        **dict.fromkeys(("String", "ShapeTuple"), "str and tuple of Python take its place"),
        **dict.fromkeys(("Object", "ObjectGeneric"), "nodes are plain objects of Python"),
        "system_lib": "load a file by load_module",
        **dict.fromkeys(("cuda", "gpu", "opencl", "cl", "metal", "vulkan", "rocm"), _GPU),
        **dict.fromkeys(("executor", "vm"), _GRAPHS),
    },
}  # fmt: skip
_find = _on_demand(__name__, _ON_DEMAND)


def __getattr__(name: str) -> _typing.Any:  # for type checkers, which don't see the assignment
    return _find(name)


for _face, _reasons in _ABSENT.items():
    _explain_absent(_face, _reasons)


_set_meaning(convert)
_set_bridges(
    {
        "export_library": "minitvm.driver.library",
        "function_gufunc": "minitvm.ufuncs.gufunc",
        "jax_op": "minitvm.contrib.jax_op",
        "load_module": "minitvm.driver.library",
        "register_torch_op": "minitvm.contrib.torch_op",
        "returning_operator": "minitvm.contrib.torch_trace",
        "traced_operator": "minitvm.contrib.torch_trace",
    }
)
_set_origins({"tvm.contrib.cblas.matmul": "minitvm.contrib.cblas"})


def get_include() -> str:
    """The folder for a C compiler's ``-I``, where ``minitvm/c_runtime_api.h`` is.

    >>> (_Path(get_include()) / "minitvm" / "c_runtime_api.h").is_file()
    True
    """
    return str(_Path(__file__).parent / "include")


__version__ = _VERSION
_MODULES = ("arith", "error", "ir", "nd", "runtime", "target", "te", "tir", "transform")
_hand_on(__name__, *_MODULES, *_ON_DEMAND)
