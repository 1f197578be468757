"""The C structures of PaddlePaddle's custom devices, and the signatures of their functions.

The layouts were read from ``paddle/phi/backends/device_ext.h`` of PaddlePaddle 3.0.0 and 3.3.1. All
say that they are version 0.1.1, and are told apart by the size of the table. The layout of 2.6.2 is
known by its sizes, and begins as the others do.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_void_p
from typing import Any, NamedTuple

MINIMUM_VERSION = (0, 1, 1)


class CDevice(ctypes.Structure):
    """``C_Device_st``: a ``C_Device`` is a pointer to one."""

    _fields_ = (("id", c_int),)


# ---- The table of functions, a word for each member; a number of reserved ones after a colon -----

_COMMON = """
    initialize finalize init_device set_device get_device deinit_device
    create_stream destroy_stream query_stream stream_add_callback
    create_event record_event destroy_event query_event
    synchronize_device synchronize_stream synchronize_event stream_wait_event
    reserved_dev_api:8
    device_memory_allocate device_memory_deallocate device_memory_set
    host_memory_allocate host_memory_deallocate
    unified_memory_allocate unified_memory_deallocate
    memory_copy_h2d memory_copy_d2h memory_copy_d2d memory_copy_p2p
    async_memory_copy_h2d async_memory_copy_d2h async_memory_copy_d2d async_memory_copy_p2p
    reserved_mem_api:8
    get_device_count get_device_list device_memory_stats
    device_min_chunk_size device_max_chunk_size device_max_alloc_size
    device_extra_padding_size device_init_alloc_size device_realloc_size
"""
_COLLECTIVES_AND_PROFILER = """
    reserved_info_api:8
    xccl_get_comm_name xccl_get_unique_id_size xccl_get_unique_id xccl_comm_init_rank
    xccl_destroy_comm xccl_all_reduce xccl_broadcast xccl_reduce xccl_all_gather
    xccl_reduce_scatter xccl_group_start xccl_group_end xccl_send xccl_recv xccl_all_to_all
    reserved_ccl_api:8
    profiler_initialize profiler_finalize profiler_prepare_tracing
    profiler_start_tracing profiler_stop_tracing profiler_collect_trace_data
    reserved_profiler_api:8
"""
_END = "blas_axpby reserved_other_api:7"
_TABLES = {
    "2.6": f"{_COMMON} unknown:55",
    "3.0": f"""{_COMMON}
    get_compute_capability get_runtime_version get_driver_version
    {_COLLECTIVES_AND_PROFILER} {_END}""",
    "3.3": f"""{_COMMON}
    get_compute_capability get_device_properties get_runtime_version get_driver_version
    get_multi_process get_max_threads_per_mp get_max_threads_per_block get_max_grid_dim_size
    is_float16_supported is_bfloat16_supported is_dnn_supported
    init_eigen_device destroy_eigen_device
    {_COLLECTIVES_AND_PROFILER}
    init_blas_handle blas_set_math_mode init_blaslt_handle
    destroy_blas_handle destroy_blaslt_handle
    cuda_stream_begin_capture cuda_stream_end_captrue cuda_graph_launch cuda_graph_destroy
    cuda_graph_exec_destroy cuda_graph_instantiate cuda_graph_get_nodes cuda_stream_capture_info
    get_parameter_setter_for_exec_graph cuda_graph_debug_dot_print
    cuda_thread_exchange_stream_capthure_mode {_END}""",
}


def _offsets(members: str) -> dict[str, int]:
    """The offset of each member from the beginning of the table, and the table's ``sizeof``; all
    members have one size."""
    found, at = {}, 0
    for member in f"size {members}".split():
        name, _, count = member.partition(":")
        found[name] = at
        at += ctypes.sizeof(c_void_p) * int(count or 1)
    return found | {"sizeof": at}


class CustomRuntimeVersion(ctypes.Structure):
    _fields_ = (("major", c_size_t), ("minor", c_size_t), ("patch", c_size_t))


class CustomRuntimeParams(ctypes.Structure):
    """The parameters of ``InitPlugin``. The structure of 2.6.2 lacks ``pir_default_passes``."""

    _fields_ = (
        ("size", c_size_t),
        ("interface", c_void_p),
        ("version", CustomRuntimeVersion),
        ("device_type", c_char_p),
        ("sub_device_type", c_char_p),
        ("pir_default_passes", c_void_p),
        ("reserved", c_char * 32),
    )


# ---- Functions that are called, and the types of their arguments ---------------------------------
#
# Two functions are missing here: get_device_properties, which fills in a C++ class of PaddlePaddle,
# and stream_add_callback, whose user_data some libraries take for a std::function of PaddlePaddle,
# which they call and delete.

_DEVICE, _HANDLE, _POINTER = POINTER(CDevice), c_void_p, c_void_p
_SIZE, _SIZES, _FLAG = c_size_t, POINTER(c_size_t), POINTER(c_bool)
_COPY = (_POINTER, _POINTER, _SIZE)
_ALLOCATE = (_DEVICE, POINTER(c_void_p), _SIZE)
_DEALLOCATE = (_DEVICE, _POINTER, _SIZE)
_NEW_HANDLE = (_DEVICE, POINTER(c_void_p))
_OF_HANDLE = (_DEVICE, _HANDLE)
_OF_STREAM_AND_EVENT = (_DEVICE, _HANDLE, _HANDLE)
_SIZE_OF_DEVICE = (_DEVICE, _SIZES)
_FLAG_OF_DEVICE = (_DEVICE, _FLAG)

_COMMON_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "initialize": (),
    "finalize": (),
    "init_device": (_DEVICE,),
    "set_device": (_DEVICE,),
    "get_device": (_DEVICE,),
    "deinit_device": (_DEVICE,),
    "create_stream": _NEW_HANDLE,
    "destroy_stream": _OF_HANDLE,
    "query_stream": _OF_HANDLE,
    "create_event": _NEW_HANDLE,
    "record_event": _OF_STREAM_AND_EVENT,
    "destroy_event": _OF_HANDLE,
    "query_event": _OF_HANDLE,
    "synchronize_device": (_DEVICE,),
    "synchronize_stream": _OF_HANDLE,
    "synchronize_event": _OF_HANDLE,
    "stream_wait_event": _OF_STREAM_AND_EVENT,
    "device_memory_allocate": _ALLOCATE,
    "device_memory_deallocate": _DEALLOCATE,
    "device_memory_set": (_DEVICE, _POINTER, c_ubyte, _SIZE),
    "host_memory_allocate": _ALLOCATE,
    "host_memory_deallocate": _DEALLOCATE,
    "unified_memory_allocate": _ALLOCATE,
    "unified_memory_deallocate": _DEALLOCATE,
    "memory_copy_h2d": (_DEVICE, *_COPY),
    "memory_copy_d2h": (_DEVICE, *_COPY),
    "memory_copy_d2d": (_DEVICE, *_COPY),
    "memory_copy_p2p": (_DEVICE, _DEVICE, *_COPY),
    "async_memory_copy_h2d": (_DEVICE, _HANDLE, *_COPY),
    "async_memory_copy_d2h": (_DEVICE, _HANDLE, *_COPY),
    "async_memory_copy_d2d": (_DEVICE, _HANDLE, *_COPY),
    "async_memory_copy_p2p": (_DEVICE, _DEVICE, _HANDLE, *_COPY),
    "get_device_count": (_SIZES,),
    "get_device_list": (_SIZES,),
    "device_memory_stats": (_DEVICE, _SIZES, _SIZES),
    "device_min_chunk_size": _SIZE_OF_DEVICE,
    "device_max_chunk_size": _SIZE_OF_DEVICE,
    "device_max_alloc_size": _SIZE_OF_DEVICE,
    "device_extra_padding_size": _SIZE_OF_DEVICE,
    "device_init_alloc_size": _SIZE_OF_DEVICE,
    "device_realloc_size": _SIZE_OF_DEVICE,
}
_VERSIONS = ("get_compute_capability", "get_runtime_version", "get_driver_version")
SIZE_PROPERTIES = ("get_multi_process", "get_max_threads_per_mp", "get_max_threads_per_block")
FLAG_PROPERTIES = ("is_float16_supported", "is_bfloat16_supported")
_OWN_FUNCTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "2.6": {},
    "3.0": dict.fromkeys(_VERSIONS, (_SIZES,)),
    "3.3": dict.fromkeys((*_VERSIONS, *SIZE_PROPERTIES), _SIZE_OF_DEVICE)
    | dict.fromkeys(FLAG_PROPERTIES, _FLAG_OF_DEVICE),
}
REQUIRED = (
    "set_device",
    "get_device",
    "create_event",
    "record_event",
    "destroy_event",
    "synchronize_event",
    "device_memory_allocate",
    "device_memory_deallocate",
    "get_device_count",
    "get_device_list",
)


class ABI(NamedTuple):
    """One layout of the table."""

    name: str
    offsets: dict[str, int]
    params_size: int
    functions: dict[str, tuple[Any, ...]]
    """The functions that are called, with the types of their arguments."""

    @property
    def table_size(self) -> int:
        return self.offsets["sizeof"]


ABIS = tuple(
    ABI(
        name,
        _offsets(members),
        88 if name == "2.6" else ctypes.sizeof(CustomRuntimeParams),
        _COMMON_FUNCTIONS | _OWN_FUNCTIONS[name],
    )
    for name, members in reversed(_TABLES.items())
)
"""The known layouts, the newest first."""

COMMON_ABI = ABIS[-1]
"""The oldest layout: every layout has its known members."""
