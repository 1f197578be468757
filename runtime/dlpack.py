"""DLPack 1.3: the structs of ``dlpack.h``, and capsules in both directions.

A tensor travels through this room as a :class:`TensorView`: plain Python values, checked once where
they enter.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from minitvm.runtime.device import Device, cpu
from minitvm.runtime.device_type import DeviceType
from minitvm.runtime.dtype import BOOL, DType, TypeCode
from minitvm.runtime.frameworks import is_read_only, readable
from minitvm.runtime.glue import glue
from minitvm.runtime.native import increment_reference

VERSION = (1, 3)
READ_ONLY = 1
IS_COPIED = 2
IS_SUBBYTE_TYPE_PADDED = 4
MAX_NDIM = 64  # numpy's limit, and far above anybody's need
_TOO_MANY_BYTES = 1 << 63
_CPU = DeviceType.CPU
_HOST = cpu(0)
# The widths of the elements of each code, in bits; other widths are not specified, and so refused.
_BITS: dict[int, tuple[int, ...]] = {
    TypeCode.BFLOAT: (16,),
    TypeCode.BOOL: (8,),
    **dict.fromkeys(range(TypeCode.FLOAT8_E3M4, TypeCode.FLOAT6_E2M3FN), (8,)),
    TypeCode.FLOAT6_E2M3FN: (6,),
    TypeCode.FLOAT6_E3M2FN: (6,),
    TypeCode.FLOAT4_E2M1FN: (4,),
    TypeCode.INT: (*range(1, 8), *range(8, 256, 8)),
    TypeCode.UINT: (*range(1, 8), *range(8, 256, 8)),
    TypeCode.FLOAT: tuple(range(16, 256, 8)),
    TypeCode.COMPLEX: tuple(range(32, 256, 16)),
    TypeCode.HANDLE: tuple(range(8, 256, 8)),
}


def is_host(device: Device) -> bool:
    """Whether the device is the CPU, which reads a tensor as it is."""
    return device == _HOST


class DLDevice(ctypes.Structure):
    """``DLDevice``: 8 bytes."""

    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    """``DLDataType``: 4 bytes."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """``DLTensor``: 48 bytes. The pointers are plain addresses here."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    """``DLManagedTensor``: 64 bytes, the tensor of a ``dltensor`` capsule."""

    _fields_ = (
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DLPackVersion(ctypes.Structure):
    """``DLPackVersion``: 8 bytes."""

    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class DLManagedTensorVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``: 80 bytes, the tensor of a ``dltensor_versioned`` capsule."""

    _fields_ = (
        ("version", DLPackVersion),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


class DLPackExchangeAPI(ctypes.Structure):
    """``DLPackExchangeAPI``: 56 bytes, the struct in the capsule ``__dlpack_c_exchange_api__`` of a
    type. The functions are plain addresses here."""

    _fields_ = (
        ("version", DLPackVersion),
        ("prev_api", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


def data_size(tensor: DLTensor, flags: int = 0) -> int:
    """The bytes that the elements of a compact tensor take: DLPack's ``GetDataSize``.

    Elements of fewer bits than a byte are packed. With the flag :data:`IS_SUBBYTE_TYPE_PADDED`,
    each begins a byte.

    Raises
    ------
    BufferError
        When the tensor has no such size: it has 2**63 bytes or more, or contradicts itself.

    >>> shape = (ctypes.c_int64 * 1)(5)
    >>> tensor = DLTensor(ndim=1, dtype=DLDataType(TypeCode.FLOAT4_E2M1FN, 4, 1))
    >>> tensor.shape = ctypes.addressof(shape)
    >>> data_size(tensor), data_size(tensor, IS_SUBBYTE_TYPE_PADDED)
    (3, 5)
    """
    return size_of(
        _read_shape(tensor), _read_dtype(tensor.dtype), bool(flags & IS_SUBBYTE_TYPE_PADDED)
    )


def size_of(shape: tuple[int, ...], dtype: DType, padded: bool = False) -> int:
    """The bytes of a compact array.

    Raises
    ------
    BufferError
        When the array has 2**63 bytes or more, counting empty dimensions as having one element.
    """
    bits = 8 * dtype.itemsize if padded else dtype.bits * dtype.lanes
    if (math.prod(max(extent, 1) for extent in shape) * bits + 7) // 8 >= _TOO_MANY_BYTES:
        raise BufferError(f"expected less than 2**63 bytes, got the shape {shape} of {dtype}")
    return (math.prod(shape) * bits + 7) // 8


class TensorView(NamedTuple):
    """The contents of a DLTensor: the address of the first element, shape and strides in
    elements."""

    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    read_only: bool = False
    padded: bool = False  # elements of fewer bits than a byte begin one each
    bit: int = 0  # the bit of the first byte at which a part of packed elements begins
    device: Device = _HOST

    @property
    def is_on_host(self) -> bool:
        """Whether the CPU can read the tensor."""
        return self.device.device_type == _CPU

    @property
    def element_bits(self) -> int:
        """The distance between neighbours at stride 1."""
        dtype = self.dtype
        return 8 * dtype.itemsize if self.padded else dtype.bits * dtype.lanes

    @property
    def is_packed(self) -> bool:
        """Whether elements, or their lanes, begin within a byte, so that no pointer can address
        them."""
        return self.dtype.bits % 8 != 0 and (self.dtype.lanes > 1 or not self.padded)

    @property
    def is_plain(self) -> bool:
        """Whether a DLTensor can hold the whole description."""
        return not self.padded and not self.bit

    def span(self) -> range:
        """The addresses from the first byte of an element to the last.

        >>> TensorView(100, (2, 3), (-4, 1), DType.of("int8")).span()
        range(96, 103)
        """
        if 0 in self.shape:
            return range(0)
        reach = [step * (extent - 1) for step, extent in zip(self.strides, self.shape, strict=True)]
        bits = self.element_bits
        low = self.bit + bits * sum(step for step in reach if step < 0)
        end = self.bit + bits * (sum(step for step in reach if step > 0) + 1)
        return range(self.data + low // 8, self.data + (end + 7) // 8)


def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major array without gaps.

    >>> compact_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def lead_alike(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two strides lead to the same elements. The stride of an axis of extent 1 doesn't
    count, and an empty array's strides don't either.

    >>> lead_alike((2, 1), (1, 1), (1, 99))
    True
    """
    if 0 in shape:
        return True
    return all(x == y or extent == 1 for x, y, extent in zip(a, b, shape, strict=True))


# ---- Reading -------------------------------------------------------------------------------------


def read_tensor(
    address: int,
    read_only: bool = False,
    padded: bool = False,
    accepts: Callable[[Device], bool] = is_host,
) -> TensorView:
    """The checked contents of the DLTensor at `address`; on a device that the caller `accepts`.

    Missing strides are filled in, the byte offset goes into the address, and the one-bit unsigned
    integer of old producers becomes bool.

    Raises
    ------
    BufferError
        When the tensor contradicts itself or can't be read.
    ValueError
        When it lies on another device.
    """
    tensor = DLTensor.from_address(address)
    device = Device(tensor.device.device_type, tensor.device.device_id)
    check_device(device, accepts)
    dtype = _read_dtype(tensor.dtype)
    shape = _read_shape(tensor)
    padded = padded and dtype.is_sub_byte
    nbytes = size_of(shape, dtype, padded)
    ndim = len(shape)
    if ndim and tensor.strides:
        strides = tuple((ctypes.c_int64 * ndim).from_address(tensor.strides))
    else:
        strides = compact_strides(shape)
    if not nbytes:
        return TensorView(0, shape, strides, dtype, read_only, padded, 0, device)
    if not tensor.data:
        raise BufferError(f"expected memory for the shape {shape}, got a NULL address")
    data = tensor.data + tensor.byte_offset
    view = TensorView(data, shape, strides, dtype, read_only, padded, 0, device)
    span = view.span()
    if span.start <= 0 or span.stop > _TOO_MANY_BYTES:
        raise BufferError(
            f"expected elements at addresses from 1 to 2**63, got the bytes {span.start:#x} to "
            f"{span.stop:#x}, of the shape {shape}, strides {strides} and byte offset "
            f"{tensor.byte_offset}"
        )
    return view


def _read_shape(tensor: DLTensor) -> tuple[int, ...]:
    ndim = tensor.ndim
    if not 0 <= ndim <= MAX_NDIM:
        raise BufferError(f"expected a DLTensor of 0 to {MAX_NDIM} dimensions, got ndim {ndim}")
    if ndim and not tensor.shape:
        raise BufferError(f"expected a DLTensor with a shape, got NULL and ndim {ndim}")
    shape = tuple((ctypes.c_int64 * ndim).from_address(tensor.shape)) if ndim else ()
    if min(shape, default=0) < 0:
        raise BufferError(f"expected extents of at least 0, got the shape {shape}")
    return shape


def check_device(found: Device, accepts: Callable[[Device], bool]) -> None:
    """Raise ValueError unless the device is one that the caller accepts."""
    if not accepts(found):
        raise ValueError(f"expected memory of cpu(0), got {found}: copy it to the CPU first")


def _read_dtype(raw: DLDataType) -> DType:
    code, bits, lanes = int(raw.code), int(raw.bits), int(raw.lanes)
    if (code, bits, lanes) == (TypeCode.UINT, 1, 1):
        return BOOL  # DLPack's form of bool before it had a code for it: a byte each
    dtype = DType(code, bits, lanes)
    check_dtype(dtype)
    return dtype


@lru_cache(maxsize=256)
def check_dtype(dtype: DType) -> None:
    """Raise BufferError unless the dtype is in DLPack 1.3, with a width that has a meaning."""
    widths = _BITS.get(dtype.code)
    if widths is None:
        last = max(TypeCode)
        raise BufferError(f"expected a type code of DLPack 1.3, 0 to {last}, got {dtype.code}")
    if dtype.bits not in widths:
        kind = TypeCode(dtype.code).name.lower()
        few = ", ".join(map(str, widths)) if len(widths) < 3 else "whole bytes of"
        raise BufferError(f"expected elements of {few} bits for {kind}, got {dtype.bits} bits")
    if dtype.lanes == 0:
        raise BufferError(f"expected at least one lane, got {dtype.bits} bits, 0 lanes")


def _check_exists(array: Any) -> None:
    is_deleted = getattr(array, "is_deleted", None)  # of JAX's arrays
    if is_deleted is not None and is_deleted():
        raise BufferError(
            "expected an array with data, got one of JAX that was deleted, perhaps since a call of "
            "jax.jit got it by donate_argnums: use that call's result, or don't donate the array"
        )


def request(
    array: Any,
    *,
    accepts: Callable[[Device], bool] = is_host,
    move: bool = False,
    copy: bool | None = None,
) -> tuple[Any, bool]:
    """The capsule that `array` hands out, versioned if possible, and whether the array is read-only
    even if the capsule doesn't say so.

    Raises
    ------
    ValueError
        When the array lies on a device that the caller doesn't accept, unless its library may
        `move` it to the CPU.
    BufferError
        When the array can't be exported as it is; frameworks raise further types of their own.
    """
    fixed = is_read_only(array)
    array = readable(array)
    options: dict[str, Any] = {} if copy is None else {"copy": copy}
    where = getattr(array, "__dlpack_device__", None)
    if where is not None:
        try:
            found = Device(*_device_numbers(where()))
        except TypeError:
            _check_exists(array)
            raise
        if move and copy is not False and found != _HOST:
            return array.__dlpack__(max_version=VERSION, dl_device=(_CPU, 0), **options), fixed
        check_device(found, accepts)
    try:
        return array.__dlpack__(max_version=VERSION, **options), fixed
    except TypeError:  # a producer from before the keywords
        return array.__dlpack__(), fixed


def _device_numbers(answer: object) -> tuple[int, int]:
    """A device's type and number. Paddle (3.3) has no number for the CPU."""
    numbers = answer if isinstance(answer, tuple | list) else ()
    if len(numbers) == 2 and numbers[1] is None:
        numbers = (numbers[0], 0)
    if len(numbers) != 2 or not all(hasattr(each, "__index__") for each in numbers):
        raise BufferError(
            f"expected __dlpack_device__() to be (device type, device id), got {answer!r}"
        )
    return operator.index(numbers[0]), operator.index(numbers[1])


def borrow(
    capsule: Any, read_only: bool = False, accepts: Callable[[Device], bool] = is_host
) -> TensorView:
    """The tensor of an unused capsule, which stays unused: valid as long as the capsule lives.
    It is read-only if the capsule or the caller says so."""
    managed, versioned = _open(capsule)
    return _read_managed(managed, versioned, read_only, accepts)


def lent_tensor(capsule: Any) -> tuple[DLTensor, bool]:
    """The struct in an unused capsule, which stays unused, and whether its memory is read-only.

    Only the version is checked; the caller checks the rest.
    """
    managed, versioned = _open(capsule)
    if not versioned:
        return DLManagedTensor.from_address(managed).dl_tensor, False
    return DLManagedTensorVersioned.from_address(managed).dl_tensor, bool(
        _flags(managed) & READ_ONLY
    )


class Taken(NamedTuple):
    """A tensor of another library that is ours to delete."""

    view: TensorView
    owner: object  # calls the deleter once, when it is freed
    copied: bool  # whether the memory has no other user


def consume(
    capsule: Any, read_only: bool = False, accepts: Callable[[Device], bool] = is_host
) -> Taken:
    """The tensor of an unused capsule, which is used from here on. The tensor is read-only if the
    capsule says so, or if the caller does and the memory is no copy.

    Raises
    ------
    BufferError
        When the object is no unused DLPack capsule, or its tensor can't be read.
    ValueError
        When the tensor lies on another device.
    """
    managed, versioned = _open(capsule)
    _capsule_set_name(capsule, glue().data(f"name_used_{_kind(versioned)}"))
    return adopt(managed, versioned, read_only, accepts)


def adopt(
    managed: int,
    versioned: bool,
    read_only: bool = False,
    accepts: Callable[[Device], bool] = is_host,
) -> Taken:
    """The managed tensor at an address, which is deleted even if it is refused."""
    native, kind = glue(), _kind(versioned)
    owner = _capsule_new(
        managed, native.data(f"name_used_{kind}"), native.function(f"disown_{kind}")
    )
    flags = _flags(managed) if versioned else 0
    copied = bool(flags & IS_COPIED)
    view = _read_managed(managed, versioned, read_only and not copied, accepts)
    return Taken(view, owner, copied)


def is_capsule(value: object) -> bool:
    return type(value).__name__ == "PyCapsule"


def _open(capsule: Any) -> tuple[int, bool]:
    """The address of the managed tensor, and whether it is the versioned struct."""
    if not is_capsule(capsule):
        raise BufferError(f"expected a DLPack capsule, got {type(capsule).__name__}")
    name = _capsule_get_name(capsule)
    if name in (b"used_dltensor", b"used_dltensor_versioned"):
        raise BufferError("expected an unused DLPack capsule, got one that was consumed already")
    if name not in (b"dltensor", b"dltensor_versioned"):
        shown = "no name" if name is None else repr(name.decode(errors="replace"))
        raise BufferError(
            f"expected a capsule named 'dltensor' or 'dltensor_versioned', got {shown}"
        )
    return _capsule_get_pointer(capsule, name), name == b"dltensor_versioned"


def _read_managed(
    managed: int, versioned: bool, read_only: bool, accepts: Callable[[Device], bool]
) -> TensorView:
    if not versioned:
        tensor = managed + DLManagedTensor.dl_tensor.offset
        return read_tensor(tensor, read_only, accepts=accepts)
    flags = _flags(managed)
    return read_tensor(
        managed + DLManagedTensorVersioned.dl_tensor.offset,
        read_only or bool(flags & READ_ONLY),
        bool(flags & IS_SUBBYTE_TYPE_PADDED),
        accepts,
    )


def _flags(managed: int) -> int:
    header = DLManagedTensorVersioned.from_address(managed)
    if header.version.major != VERSION[0]:
        # By the specification nothing but the deleter may be touched in another major version.
        found = f"{header.version.major}.{header.version.minor}"
        raise BufferError(f"expected a tensor of DLPack 1.x, got version {found}")
    return int(header.flags)


# ---- Writing -------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def raw_dtype(dtype: DType) -> DLDataType:
    """The struct of a dtype; shared, so not to be written to."""
    return DLDataType(dtype.code, dtype.bits, dtype.lanes)


def dtype_word(dtype: DType) -> int:
    """``DLDataType`` {u8 code, u8 bits, u16 lanes} as one little-endian word."""
    return dtype.code | dtype.bits << 8 | dtype.lanes << 16


def dtype_of_word(word: int) -> DType:
    """The dtype of a word that :func:`dtype_word` makes.

    >>> dtype_of_word(dtype_word(DType.of("int32"))) == "int32"
    True
    """
    return DType(word & 0xFF, word >> 8 & 0xFF, word >> 16)


def fill_tensor(tensor: DLTensor, view: TensorView, dims: int) -> None:
    """Write `view` into `tensor`; at `dims` is room for shape and strides, 2 * ndim int64."""
    ndim = len(view.shape)
    if ndim:
        (ctypes.c_int64 * (2 * ndim)).from_address(dims)[:] = [*view.shape, *view.strides]
    tensor.data = view.data
    tensor.device = DLDevice(view.device.device_type, view.device.device_id)
    tensor.ndim = ndim
    tensor.dtype = raw_dtype(view.dtype)
    tensor.shape = dims
    tensor.strides = dims + 8 * ndim
    tensor.byte_offset = 0


def export(view: TensorView, owner: object, *, versioned: bool, copied: bool = False) -> Any:
    """A fresh capsule of `view`; `owner` keeps the memory and lives until the consumer lets go."""
    native, kind = glue(), _kind(versioned)
    block = write_managed(view, owner, versioned=versioned, copied=copied)
    return _capsule_new(block, native.data(f"name_{kind}"), native.function(f"destroy_{kind}"))


def write_managed(view: TensorView, owner: object, *, versioned: bool, copied: bool = False) -> int:
    """The address of a new managed tensor; its deleter lets go of `owner`.

    It has the form that all consumers read correctly: no byte offset, strides always given, context
    and deleter not NULL, and a NULL address exactly if there is no element.
    """
    struct = DLManagedTensorVersioned if versioned else DLManagedTensor
    header = ctypes.sizeof(struct)
    block: int | None = _raw_malloc(header + 16 * len(view.shape))
    if not block:
        raise MemoryError
    managed = struct.from_address(block)
    if 0 in view.shape:
        view = view._replace(data=0)
    fill_tensor(managed.dl_tensor, view, block + header)
    increment_reference(owner)
    managed.manager_ctx = id(owner)
    managed.deleter = glue().function(f"delete_{_kind(versioned)}")
    if not versioned:
        return block
    managed.version = DLPackVersion(*VERSION)
    managed.flags = (
        READ_ONLY * view.read_only | IS_COPIED * copied | IS_SUBBYTE_TYPE_PADDED * view.padded
    )
    return block


def _kind(versioned: bool) -> str:
    """The glue's names for managed tensors of DLPack from 1.0 on, and before."""
    return "versioned" if versioned else "legacy"


# Private prototypes: the argtypes of `ctypes.pythonapi.X` itself belong to the whole process.
_capsule_new = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_capsule_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_raw_malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(
    ("PyMem_RawMalloc", ctypes.pythonapi)
)
