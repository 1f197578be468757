"""Named tensors in one file: ``save_params`` and ``load_params``.

There are two containers. *safetensors* (https://github.com/huggingface/safetensors), written by its
own package, can be read by other frameworks. Classic TVM's parameter dictionary needs no package;
all its integers are little-endian::

    uint64  0xF7E58D4F05049CB7           the container
    uint64  0
    uint64  number of names,  then each: uint64 length, its UTF-8 bytes
    uint64  number of arrays, then each:
        uint64  0xDD5E40F096B4A13F       an array
        uint64  0
        int32   device type, int32 device id     1, 0: the CPU
        int32   ndim
        uint8   code, uint8 bits, uint16 lanes   DLPack's DLDataType
        int64   extents, ndim of them
        int64   number of bytes, then these, row-major

Source: TVM 0.8, ``src/runtime/file_utils.cc`` and ``include/tvm/runtime/ndarray.h``.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from minitvm.runtime.dlpack import MAX_NDIM
from minitvm.runtime.dtype import BOOL, DType, TypeCode
from minitvm.runtime.ndarray import NDArray, array, empty

_CONTAINER = 0xF7E58D4F05049CB7
_ARRAY = 0xDD5E40F096B4A13F
_SAFETENSORS = ".safetensors"


def save_param_dict(params: Mapping[str, Any]) -> bytearray:
    """Named arrays in classic TVM's container; other frameworks' arrays are copied into NDArrays.

    Raises
    ------
    TypeError
        When a name isn't a string, or a value isn't an array.

    >>> content = save_param_dict({"w": np.arange(3, dtype="float32")})
    >>> load_param_dict(content)["w"].numpy()
    array([0., 1., 2.], dtype=float32)
    """
    names = [_encoded(name) for name in params]
    made = bytearray(struct.pack("<QQQ", _CONTAINER, 0, len(names)))
    for name in names:
        made += struct.pack("<Q", len(name)) + name
    made += struct.pack("<Q", len(names))
    for value in params.values():
        _append(made, array(value))
    return made


def load_param_dict(content: bytes | bytearray | memoryview) -> dict[str, NDArray]:
    """The arrays of a container that :func:`save_param_dict`, or classic TVM, has made.

    Raises
    ------
    ValueError
        When `content` is something else, is cut off, or contradicts itself.
    """
    source = _Reader(bytes(content))
    source.expect("<Q", _CONTAINER, "a parameter dictionary")
    source.numbers("<Q")
    names = [source.text() for _ in range(source.count(8))]
    if len(set(names)) != len(names):
        raise ValueError("load_params: expected names that differ, got one twice")
    count = source.count(36)
    if count != len(names):
        raise ValueError(f"load_params: expected {len(names)} arrays, one a name, got {count}")
    made = {name: _read(source) for name in names}
    if source.left:
        raise ValueError(f"load_params: expected the end, got {source.left} bytes more")
    return made


def save_params(path: str | os.PathLike[str], params: Mapping[str, Any]) -> None:
    """Write named arrays to a file: safetensors if `path` ends in ``.safetensors``, otherwise
    classic TVM's container.

    Raises
    ------
    TypeError
        When a name isn't a string, a value no array, or a dtype unknown to safetensors.
    ImportError
        When the format is safetensors and its package isn't installed.
    OSError
        When the file can't be written.
    """
    if os.fspath(path).endswith(_SAFETENSORS):
        content = _save_safetensors(params)
    else:
        content = bytes(save_param_dict(params))
    with open(path, "wb") as file:
        file.write(content)


def load_params(path: str | os.PathLike[str]) -> dict[str, NDArray]:
    """The named arrays of a file, whose format follows from its name, as in :func:`save_params`.

    Raises
    ------
    ValueError
        When the file is malformed.
    ImportError
        When the format is safetensors and its package isn't installed.
    OSError
        When the file can't be read.
    """
    with open(path, "rb") as file:
        content = file.read()
    if os.fspath(path).endswith(_SAFETENSORS):
        return _load_safetensors(content)
    return load_param_dict(content)


# -- Classic TVM's container --


def _encoded(name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"save_params: expected names that are strings, got {name!r}")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise TypeError(f"save_params: expected a name in Unicode, got {name!r}") from None


def _append(made: bytearray, value: NDArray) -> None:
    dtype = value.dtype
    made += struct.pack("<QQiii", _ARRAY, 0, 1, 0, value.ndim)
    made += struct.pack("<BBH", dtype.code, dtype.bits, dtype.lanes)
    made += struct.pack(f"<{value.ndim}q", *value.shape)
    content = np.asarray(value.view(_bytes_of(dtype))).tobytes()
    made += struct.pack("<q", len(content)) + content


def _bytes_of(dtype: DType) -> DType:
    """The type of an element's bytes, which numpy has for every size."""
    return DType(TypeCode.UINT, 8, dtype.itemsize)


@final
class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise ValueError(f"load_params: expected {size} bytes more, got {self.left}")
        self._at += size
        return self._content[self._at - size : self._at]

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def expect(self, layout: str, wanted: int, what: str) -> None:
        (found,) = self.numbers(layout)
        if found != wanted:
            raise ValueError(f"load_params: expected {what} ({wanted:#x}), got {found:#x}")

    def count(self, size: int) -> int:
        """The number of parts that follow, of at least `size` bytes each."""
        (count,) = self.numbers("<Q")
        if count * size > self.left:
            raise ValueError(f"load_params: expected {count} parts, got {self.left} bytes")
        return count

    def text(self) -> str:
        (size,) = self.numbers("<Q")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"load_params: expected a name in UTF-8, got {error}") from None


def _read(source: _Reader) -> NDArray:
    source.expect("<Q", _ARRAY, "an array")
    source.numbers("<Q")
    _device_type, _device_id, ndim = source.numbers("<iii")  # where it was; it is on the CPU now
    code, bits, lanes = source.numbers("<BBH")
    if not 0 <= ndim <= MAX_NDIM:
        raise ValueError(f"load_params: expected 0 to {MAX_NDIM} dimensions, got {ndim}")
    if (code, bits, lanes) == (TypeCode.UINT, 1, 1):  # classic TVM's form of bool
        code, bits = BOOL.code, BOOL.bits
    if bits == 0 or bits % 8 or lanes == 0 or code >= _CODES:
        raise ValueError(
            f"load_params: expected a dtype of whole bytes, got code {code}, {bits} bits, "
            f"{lanes} lanes"
        )
    shape = source.numbers(f"<{ndim}q")
    (size,) = source.numbers("<q")
    dtype = DType(code, bits, lanes)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"load_params: expected the bytes of {shape} of {dtype}, got {size}")
    return _array_of(source.take(size), shape, dtype)


def _array_of(content: bytes, shape: tuple[int, ...], dtype: DType) -> NDArray:
    made = empty(shape, dtype)
    target = np.asarray(made.view(_bytes_of(dtype)))
    target.reshape(-1)[:] = np.frombuffer(content, np.uint8)
    return made


_CODES = 15  # DLPack's types of whole bytes: up to float8_e8m0fnu


# -- safetensors --

# Its names of dtypes, and ours.
_SAFE_NAMES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


def _safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            'params: expected the package safetensors: pip install "minitvm[safetensors]"'
        ) from None
    return safetensors


def _save_safetensors(params: Mapping[str, Any]) -> bytes:
    package = _safetensors()
    arrays = {name: array(value) for name, value in params.items()}
    specs = {}
    for name, value in arrays.items():
        _encoded(name)
        if value.dtype not in _SAFE_NAMES.values():
            raise TypeError(f"save_params: {name}: safetensors has no dtype {value.dtype}")
        specs[name] = package.TensorSpec(
            dtype=str(value.dtype),
            shape=list(value.shape),
            data_ptr=value.data,
            data_len=value.nbytes,
        )
    return package.serialize(specs)  # type: ignore[no-any-return]  # bytes


def _load_safetensors(content: bytes) -> dict[str, NDArray]:
    package = _safetensors()
    try:
        found = package.deserialize(content)
    except package.SafetensorError as error:
        raise ValueError(f"load_params: expected safetensors, got {error}") from None
    made = {}
    for name, tensor in found:
        dtype = _SAFE_NAMES.get(tensor["dtype"])
        if dtype is None:
            raise ValueError(f"load_params: {name}: no dtype for {tensor['dtype']}")
        made[name] = _array_of(bytes(tensor["data"]), tuple(tensor["shape"]), DType.of(dtype))
    return made
