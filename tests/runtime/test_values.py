"""The structs and codes of the packed ABI are those of classic TVM."""

from __future__ import annotations

import ctypes

from minitvm.runtime import ArgTypeCode, TVMArgs, TVMByteArray, TVMValue
from minitvm.runtime.values import TVM_CRT_MAX_ARGS


def test_layouts() -> None:
    assert ctypes.sizeof(TVMValue) == 8
    assert ctypes.sizeof(TVMByteArray) == 16
    assert ctypes.sizeof(TVMArgs) == 128
    assert TVM_CRT_MAX_ARGS == 10
    assert (TVMArgs.values.offset, TVMArgs.tcodes.offset, TVMArgs.values_count.offset) == (
        0, 80, 120,
    )  # fmt: skip
    assert {name for name, *_ in TVMValue._fields_} == {
        "v_int64", "v_float64", "v_handle", "v_str", "v_type", "v_device",
    }  # fmt: skip


def test_type_codes() -> None:
    assert [code.name for code in sorted(ArgTypeCode)] == [
        "INT", "UINT", "FLOAT", "HANDLE", "NULL", "DATA_TYPE", "DEVICE", "DLTENSOR_HANDLE",
        "OBJECT_HANDLE", "MODULE_HANDLE", "PACKED_FUNC_HANDLE", "STR", "BYTES", "NDARRAY_HANDLE",
    ]  # fmt: skip
    assert ArgTypeCode["TVM_TYPE"] is ArgTypeCode.DATA_TYPE
    assert ArgTypeCode["DLDEVICE"] is ArgTypeCode.DEVICE
