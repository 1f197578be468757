"""TVMValue and TVMArgs: the values that cross the packed C ABI, and plain conversions both ways.

:mod:`minitvm.runtime.packed_func` adds callables and objects of classes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitvm.runtime.device import Device
from minitvm.runtime.dlpack import DLDataType, DLDevice, raw_dtype
from minitvm.runtime.dtype import DType
from minitvm.runtime.ndarray import NDArray, as_ndarray

TVM_CRT_MAX_ARGS = 10


class ArgTypeCode(IntEnum):
    """The type code beside each TVMValue (classic ``tvm._ffi.runtime_ctypes.ArgTypeCode``).

    >>> ArgTypeCode.TVM_TYPE is ArgTypeCode.DATA_TYPE
    True
    """

    INT = 0
    UINT = 1
    FLOAT = 2
    HANDLE = 3
    NULL = 4
    DATA_TYPE = 5
    DEVICE = 6
    DLTENSOR_HANDLE = 7
    OBJECT_HANDLE = 8
    MODULE_HANDLE = 9
    PACKED_FUNC_HANDLE = 10
    STR = 11
    BYTES = 12
    NDARRAY_HANDLE = 13
    # Classic spellings.
    TVM_TYPE = 5
    DLDEVICE = 6
    TVM_CONTEXT = 6


class TVMValue(ctypes.Union):
    """``TVMValue``: 8 bytes, whose meaning is given by the type code beside it."""

    _fields_ = (
        ("v_int64", ctypes.c_int64),
        ("v_float64", ctypes.c_double),
        ("v_handle", ctypes.c_void_p),
        ("v_str", ctypes.c_char_p),
        ("v_type", DLDataType),
        ("v_device", DLDevice),
    )


class TVMArgs(ctypes.Structure):
    """``TVMArgs`` of the C runtime: 128 bytes, room for ten arguments."""

    _fields_ = (
        ("values", TVMValue * TVM_CRT_MAX_ARGS),
        ("tcodes", ctypes.c_int * TVM_CRT_MAX_ARGS),
        ("values_count", ctypes.c_uint32),
    )


class TVMByteArray(ctypes.Structure):
    """``TVMByteArray``: 16 bytes, bytes that may hold zeros."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class HandleObject:
    """Base of the classes whose instances cross under a type code of their own."""

    __slots__ = ()
    _type_code: ClassVar[ArgTypeCode]
    # The entry of the compiled call path for instances of exactly this class.
    _native_entry: ClassVar[str]

    @property
    def handle(self) -> int:
        """The handle that compiled code gets."""
        return id(self)


class Encoded(NamedTuple):
    """A converted value: its type code, the field of TVMValue, the content of the field, and the
    object to keep alive."""

    code: ArgTypeCode
    field: str
    raw: Any
    keep: object = None
    read_only: bool = False


# ---- Python to C ---------------------------------------------------------------------------------


def encode(value: Any) -> Encoded | None:
    """`value` as a TVMValue, arrays of other libraries in place; None when it is neither plain
    data nor an array.

    Raises
    ------
    OverflowError
        For an integer that int64 doesn't hold.
    ValueError
        For a string with a zero character, which C would cut short, and unusable arrays.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    view = as_ndarray(value)
    if view is None:
        return encode_plain(value)
    return Encoded(ArgTypeCode.DLTENSOR_HANDLE, "v_handle", view.handle, view, view.read_only)


def encode_plain(value: Any) -> Encoded | None:
    """As :func:`encode`, but NDArray is the only array."""
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value)
    return None


def _encode_int(value: Any) -> Encoded:
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"expected an integer that int64 holds, got {number}")
    return Encoded(ArgTypeCode.INT, "v_int64", number)


def _encode_float(value: Any) -> Encoded:
    return Encoded(ArgTypeCode.FLOAT, "v_float64", float(value))


def number_as(dtype: DType, value: Any) -> int | float:
    """A callback's result, where compiled code reads it as a number.

    Raises
    ------
    TypeError
        When it is no number.
    ValueError
        When `dtype` doesn't hold the number: it is too large, or has a fraction.

    >>> number_as(DType.of("int32"), 2.0)
    2
    >>> number_as(DType.of("int32"), 1 << 31)
    Traceback (most recent call last):
    ...
    ValueError: expected a number that int32 holds, got 2147483648
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, int | float):
        raise TypeError(f"expected a number of dtype {dtype}, got {type(value).__name__}")
    if dtype.is_float:
        return float(plain)
    if isinstance(plain, float) and not plain.is_integer():
        raise ValueError(f"expected a number that {dtype} holds, got {plain}")
    if not dtype.min() <= plain <= dtype.max():
        raise ValueError(f"expected a number that {dtype} holds, got {int(plain)}")
    return int(plain)


def text_for_c(value: str) -> bytes:
    """The bytes of a string for C, without the zero at the end.

    Raises
    ------
    ValueError
        When it contains a zero, which would end it early, or half of a surrogate pair, which UTF-8
        can't encode.

    >>> text_for_c("a\\ud800")
    Traceback (most recent call last):
    ...
    ValueError: expected text that UTF-8 can encode, got 'a\\ud800', which holds a lone surrogate
    """
    if "\0" in value:
        raise ValueError(f"expected a string without a zero character, got {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"expected text that UTF-8 can encode, got {value!r}, which holds a lone surrogate"
        ) from None


def _encode_str(value: str) -> Encoded:
    text = text_for_c(value)
    return Encoded(ArgTypeCode.STR, "v_str", text, text)


def _encode_bytes(value: bytes | bytearray) -> Encoded:
    content = bytes(value)
    address = ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value
    array = TVMByteArray(address, len(content))
    return Encoded(ArgTypeCode.BYTES, "v_handle", ctypes.addressof(array), (array, content))


def _encode_none(_: None) -> Encoded:
    return Encoded(ArgTypeCode.NULL, "v_handle", None)


def _encode_handle(value: ctypes.c_void_p) -> Encoded:
    return Encoded(ArgTypeCode.HANDLE, "v_handle", value.value)


def _encode_dtype(value: DType) -> Encoded:
    return Encoded(ArgTypeCode.DATA_TYPE, "v_type", raw_dtype(value))


def _encode_device(value: Device) -> Encoded:
    raw = DLDevice(value.device_type, value.device_id)
    return Encoded(ArgTypeCode.DEVICE, "v_device", raw)


def _encode_ndarray(value: NDArray) -> Encoded:
    if value.needs_packing:
        raise ValueError(
            f"expected packed {value.dtype} from the beginning of a byte, got padded elements or "
            "a part: pass tvm.nd.array(x)"
        )
    return Encoded(ArgTypeCode.NDARRAY_HANDLE, "v_handle", value.handle, value, value.read_only)


_ENCODERS: dict[type, Callable[[Any], Encoded]] = {
    NDArray: _encode_ndarray,
    bool: _encode_int,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
    type(None): _encode_none,
    ctypes.c_void_p: _encode_handle,
    DType: _encode_dtype,
    Device: _encode_device,
    np.bool_: _encode_int,
    np.integer: _encode_int,
    np.floating: _encode_float,
}


# ---- C to Python ---------------------------------------------------------------------------------


def decode(value: TVMValue, code: int) -> Any:
    """The plain Python value of a TVMValue.

    Raises
    ------
    KeyError
        When the code belongs to an array or object, or is unknown.

    >>> decode(TVMValue(v_int64=3), ArgTypeCode.INT)
    3
    """
    return _DECODERS[code](value)


def is_plain(code: int) -> bool:
    """Whether :func:`decode` knows the code."""
    return code in _DECODERS


def _decode_bytes(value: TVMValue) -> bytes:
    array = TVMByteArray.from_address(value.v_handle)
    if array.size and not array.data:
        raise ValueError(f"expected {array.size} bytes, got a null pointer")
    return ctypes.string_at(array.data, array.size) if array.size else b""


def _decode_dtype(value: TVMValue) -> DType:
    raw = value.v_type
    return DType(raw.code, raw.bits, raw.lanes)


_DECODERS: dict[int, Callable[[TVMValue], Any]] = {
    ArgTypeCode.INT: lambda value: value.v_int64,
    ArgTypeCode.UINT: lambda value: value.v_int64 % (1 << 64),
    ArgTypeCode.FLOAT: lambda value: value.v_float64,
    ArgTypeCode.HANDLE: lambda value: ctypes.c_void_p(value.v_handle),
    ArgTypeCode.NULL: lambda value: None,
    ArgTypeCode.DATA_TYPE: _decode_dtype,
    ArgTypeCode.DEVICE: lambda value: Device(value.v_device.device_type, value.v_device.device_id),
    ArgTypeCode.STR: lambda value: value.v_str.decode(),
    ArgTypeCode.BYTES: _decode_bytes,
}
