"""The offsets of fields that we read in place in other libraries' objects, checked before use.

No published interface has these offsets. Each is compared with the library's own answers about test
objects. Where they differ, the compiled call path leaves the library's objects to Python code.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from minitvm.runtime.heap_types import HEADER

# Fields of numpy's PyArrayObject, and, the last two, of the PyArray_Descr that its `descr` points
# to (ndarraytypes.h), in bytes from the object's address.
NUMPY_FIELDS = {
    "data": HEADER,
    "ndim": HEADER + 8,
    "shape": HEADER + 16,
    "strides": HEADER + 24,
    "descr": HEADER + 40,
    "flags": HEADER + 48,
    "byteorder": HEADER + 10,
    "type_num": HEADER + 12,
}

_TORCH_WORDS = 24  # of a TensorImpl, which has 208 bytes in torch 2.0 to 2.13


def type_offset() -> int | None:
    """The offset of an object's type, or None."""
    objects: tuple[object, ...] = (object(), 1.5, "text", b"bytes", [], {})
    found = [
        at for at in range(0, HEADER, 8) if all(_word(id(o) + at) == id(type(o)) for o in objects)
    ]
    return found[0] if len(found) == 1 else None


def numpy_is_as_expected() -> bool:
    """Whether arrays have their fields where :data:`NUMPY_FIELDS` says."""
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    fixed = np.zeros(3, np.int16)
    fixed.flags.writeable = False
    arrays = (base, base[:, ::-2, 1:], base.T, base[0, 0, 0:0], np.array(1.0), fixed,
              np.zeros(2, ">i4"), np.zeros((1, 5), np.complex128)[:, 1:])  # fmt: skip
    if np.ndarray.__basicsize__ < NUMPY_FIELDS["flags"] + 4:
        return False
    with Memory() as memory:
        return all(_is_as_expected(array, memory) for array in arrays)


def _is_as_expected(array: np.ndarray[Any, Any], memory: Memory) -> bool:
    at = {name: id(array) + offset for name, offset in NUMPY_FIELDS.items()}
    ndim = ctypes.c_int32.from_address(at["ndim"]).value
    if (ndim, _word(at["descr"])) != (array.ndim, id(array.dtype)):
        return False
    dims = tuple(memory.integers(_word(at[name]), ndim) for name in ("shape", "strides"))
    flags = ctypes.c_int32.from_address(at["flags"]).value
    order = ctypes.c_char.from_address(id(array.dtype) + NUMPY_FIELDS["byteorder"]).value
    number = ctypes.c_int32.from_address(id(array.dtype) + NUMPY_FIELDS["type_num"]).value
    return (_word(at["data"]), dims, flags, order.decode("latin1"), number) == (
        array.ctypes.data,
        (array.shape, array.strides),
        array.flags.num,
        array.dtype.byteorder,
        array.dtype.num,
    )


class Memory:
    """Reads memory that may not be mapped, by letting the kernel copy it through a pipe."""

    def __enter__(self) -> Memory:
        self._out, self._in = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)

    def integers(self, address: int, count: int) -> tuple[int, ...] | None:
        """`count` int64 at an address, or None."""
        if count and _write(self._in, address, 8 * count) != 8 * count:
            return None
        return struct.unpack(f"{count}q", os.read(self._out, 8 * count) if count else b"")


# numpy's C API is a table of addresses with a published order, which never changes
# (__multiarray_api.h): the number of the ABI's version, two types, PyArray_NewFromDescr.
_ABI_VERSION, _ARRAY_TYPE, _DTYPE_TYPE, _NEW_FROM_DESCR = 0, 2, 3, 94
_ABI_VERSIONS = (0x01000009, 0x02000000)


def numpy_new_array() -> int:
    """The address of numpy's ``PyObject* PyArray_NewFromDescr(PyTypeObject*, PyArray_Descr*, int,
    npy_intp*, npy_intp*, void*, int, PyObject*)``; 0 if the table of its C API isn't the known
    one."""
    capsules = (
        getattr(sys.modules.get(f"numpy.{core}._multiarray_umath"), "_ARRAY_API", None)
        for core in ("_core", "core")
    )
    capsule = next((each for each in capsules if type(each).__name__ == "PyCapsule"), None)
    if capsule is None:
        return 0
    table = (ctypes.c_void_p * (_NEW_FROM_DESCR + 1)).from_address(_pointer(capsule, None))
    if (table[_ARRAY_TYPE], table[_DTYPE_TYPE]) != (id(np.ndarray), id(np.dtype)):
        return 0
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[_ABI_VERSION] or 0)()
    return (table[_NEW_FROM_DESCR] or 0) if version in _ABI_VERSIONS else 0


class TorchFields(NamedTuple):
    """The fields of a torch tensor: the offset of the TensorImpl in the Python object, and of the
    set of dispatch keys and the autograd state in the TensorImpl; and the sets of plain tensors,
    made in and out of inference mode."""

    tensor: int
    keys: int
    autograd: int
    plain: int
    inference: int


def torch_fields(torch: Any) -> TorchFields | None:
    """The offsets of the fields that torch's exchange API leaves out, found by means of tensors
    with known values; None where an offset is in doubt."""
    try:
        # The process may be in any mode at its first call.
        modes = torch.utils._python_dispatch._disable_current_modes
        with modes(), torch.inference_mode(False), torch.enable_grad():
            return _torch_fields(torch)
    except (AttributeError, TypeError, RuntimeError):
        return None  # a version of torch without these functions


def _torch_fields(torch: Any) -> TorchFields | None:
    cpu = {"device": "cpu"}  # regardless of the current default
    plain = torch.zeros(3, 4, **cpu)
    with torch.inference_mode():
        inference = torch.zeros(3, **cpu)
    without = [plain, torch.zeros(2, dtype=torch.int64, **cpu), plain.clone()]
    leaf = torch.zeros(2, 2, dtype=torch.float32, requires_grad=True, **cpu)
    recorded = [leaf, leaf * 2]
    odd = [torch._neg_view(plain), torch.zeros(3, dtype=torch.complex64, **cpu).conj(),
           torch.zeros(3, device="meta"), plain.to_sparse()]  # fmt: skip
    tensors = [*without, inference, *recorded, *odd]

    size = torch.Tensor.__basicsize__ // 8
    at_tensor = _only(
        8 * i
        for i in range(HEADER // 8, size)
        if all(_word(id(t) + 8 * i) == t._cdata for t in tensors)
    )

    def keys(tensor: Any) -> int:
        return int(torch._C._dispatch_keys(tensor).raw_repr()) % (1 << 64)

    fields = range(0, 8 * _TORCH_WORDS, 8)
    at_keys = _only(at for at in fields if all(_word(t._cdata + at) == keys(t) for t in tensors))
    at_autograd = _only(
        at
        for at in fields
        if all(_word(t._cdata + at) == 0 for t in without)
        and all(_word(t._cdata + at) != 0 for t in recorded)
    )
    usual = (keys(plain), keys(inference))
    if None in (at_tensor, at_keys, at_autograd) or any(keys(t) in usual for t in odd):
        return None
    return TorchFields(at_tensor or 0, at_keys or 0, at_autograd or 0, *usual)


class TorchAllocator(NamedTuple):
    """Addresses of torch's own functions, which make a tensor in half of the time of DLPack's
    functions: of its stable C interface (``torch/csrc/inductor/aoti_torch/c/shim.h``), and the
    function that makes the Python object (``THPVariable_Wrap(const at::TensorBase&)``)."""

    empty: int  # int aoti_torch_empty_strided(ndim, sizes, strides, dtype, device, index, **handle)
    data: int  # int aoti_torch_get_data_ptr(handle, void**)
    release: int  # int aoti_torch_delete_tensor_object(handle)
    wrap: int  # PyObject* (handle)
    dtypes: Mapping[str, int]  # torch's numbers of dtypes


_TORCH_FUNCTIONS = (
    "aoti_torch_empty_strided",
    "aoti_torch_get_data_ptr",
    "aoti_torch_delete_tensor_object",
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
)
_TORCH_DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def torch_allocator(torch: Any) -> TorchAllocator | None:
    """The functions, if they have made a correct test tensor; None if torch lacks one."""
    try:
        library = ctypes.PyDLL(torch._C.__file__)  # and the libraries that it needs
        empty, data, release, wrap = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for name in _TORCH_FUNCTIONS
        )
        dtypes = {
            name: int(getattr(library, f"aoti_torch_dtype_{name}")())
            for name in _TORCH_DTYPES
            if hasattr(library, f"aoti_torch_dtype_{name}")
        }
        found = TorchAllocator(empty, data, release, wrap, dtypes)
        return found if _makes_tensors(torch, found) else None
    except (AttributeError, OSError, TypeError):
        return None


def _makes_tensors(torch: Any, functions: TorchAllocator) -> bool:
    """Whether the functions make a tensor that has, according to torch, the requested
    properties."""
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    kinds = (ctypes.c_int64, pointer, pointer, *[ctypes.c_int32] * 3, pointer)
    sizes, strides = (number * 2)(2, 3), (number * 2)(3, 1)
    handle, data = pointer(), pointer()
    if ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)(functions.empty)(
        2, ctypes.addressof(sizes), ctypes.addressof(strides), functions.dtypes["float64"], 0, -1,
        ctypes.addressof(handle),
    ):  # fmt: skip
        return False
    one = ctypes.PYFUNCTYPE(ctypes.c_int, pointer, pointer)(functions.data)
    status = one(handle, ctypes.addressof(data))
    made = ctypes.PYFUNCTYPE(ctypes.py_object, pointer)(functions.wrap)(handle)
    status |= ctypes.PYFUNCTYPE(ctypes.c_int, pointer)(functions.release)(handle)
    if status or type(made) is not torch.Tensor or made.dtype != torch.float64:
        return False
    its = (tuple(made.shape), made.stride(), made.data_ptr(), str(made.device))
    other = torch.empty(2)
    is_owned = sys.getrefcount(made) == sys.getrefcount(other)
    wanted = ((2, 3), (3, 1), data.value, "cpu")
    return is_owned and its == wanted and not made.requires_grad and made.is_leaf


def _only(found: Iterable[int]) -> int | None:
    """The only element, None if there are none or several."""
    values = list(found)
    return values[0] if len(values) == 1 else None


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


# Private prototypes: the argtypes of an attribute of a library belong to the whole process.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(
    ("write", ctypes.CDLL(None))
)
