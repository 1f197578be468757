"""DLPack's C exchange API, in both directions: tensors at the speed of C, without capsules.

The API of a type is a :class:`DLPackExchangeAPI` in a capsule, its attribute
``__dlpack_c_exchange_api__``. Ours is a page of LLVM IR: other libraries call it without a lock of
Python's, or with an exception pending. It leaves rare cases to Python functions.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from minitvm.runtime.device_api.interface import ALIGNMENT
from minitvm.runtime.dlpack import (
    IS_COPIED,
    MAX_NDIM,
    READ_ONLY,
    VERSION,
    DLManagedTensorVersioned,
    DLPackExchangeAPI,
    DLPackVersion,
    dtype_word,
)
from minitvm.runtime.dtype import DType, TypeCode
from minitvm.runtime.frameworks import forgets_gradients, is_read_only, readable
from minitvm.runtime.glue import DELETERS
from minitvm.runtime.heap_types import HEADER, method
from minitvm.runtime.native import NativeCode, increment_reference
from minitvm.runtime.native_text import STRUCTURES, native_text

_ATTRIBUTE = "__dlpack_c_exchange_api__"
_NAME = b"dlpack_exchange_api"
_SIGNATURE = "($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)"
_MOST_VERSIONS = 16  # the most older versions that an API links

# ---- Of other libraries --------------------------------------------------------------------------


class Functions(NamedTuple):
    """The addresses of ``int dltensor_from_py_object_no_sync(PyObject*, DLTensor*)``, 0 without,
    and ``int managed_tensor_from_py_object_no_sync(PyObject*, DLManagedTensorVersioned**)``; and of
    the functions that make new arrays: ``managed_tensor_allocator`` and
    ``managed_tensor_to_py_object_no_sync``, 0 without."""

    tensor: int
    managed: int
    allocate: int = 0
    to_object: int = 0


def functions_of(kind: type) -> Functions | None:
    """The functions for instances of a type, by its exchange API. None without an API, if a
    subclass on the way has a ``__dlpack__`` of its own, or if ``__dlpack__`` checks more than the
    API."""
    if kind not in _known:
        _known[kind] = _find(kind)
    return _known[kind]


_known: weakref.WeakKeyDictionary[type, Functions | None] = weakref.WeakKeyDictionary()


def _find(kind: type) -> Functions | None:
    if forgets_gradients(kind):
        return None
    for each in kind.__mro__:
        if _ATTRIBUTE in vars(each):
            return _read(getattr(kind, _ATTRIBUTE))
        if "__dlpack__" in vars(each):
            return None
    return None


def _read(capsule: object) -> Functions | None:
    if type(capsule).__name__ != "PyCapsule" or not _is_valid(capsule, _NAME):
        return None
    address: int | None = _pointer(capsule, _NAME)
    for _ in range(_MOST_VERSIONS):
        if not address:
            return None
        # In all versions the version comes first, and then the address of an older API.
        api = DLPackExchangeAPI.from_address(address)
        if api.version.major == VERSION[0]:
            managed = api.managed_tensor_from_py_object_no_sync
            if not managed:
                return None
            return Functions(
                api.dltensor_from_py_object_no_sync or 0,
                managed,
                api.managed_tensor_allocator or 0,
                api.managed_tensor_to_py_object_no_sync or 0,
            )
        address = api.prev_api
    return None


def request(array: Any) -> tuple[int, bool]:
    """The address of the managed tensor, ours to delete, that the exchange API of an array gives,
    and whether the array is read-only even if the tensor doesn't say so. 0 without an API.

    Raises
    ------
    BufferError
        When the array can't be exported; libraries raise errors of their own, too.
    """
    functions = functions_of(type(array))
    if functions is None:
        return 0, False
    fixed = is_read_only(array)
    array = readable(array)
    found = ctypes.c_void_p()
    status = _managed_from_object(functions.managed)(array, ctypes.byref(found))
    if status or not found.value:
        kind = type(array).__name__
        raise BufferError(f"expected the exchange API of {kind} to give a tensor, got {status}")
    return found.value, fixed


_managed_from_object = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)

# ---- Ours ----------------------------------------------------------------------------------------

_PAGE = """
name = "dlpack_exchange_api"
no_memory = "NDArray: no memory for the tensor"
kind: ptr  # set by Python: the type NDArray,
export: ptr  # the functions for rare cases,
adopt: ptr
lend: ptr
dlpack_slowly: ptr  # the name of a method
none: ptr
tuple: ptr  # the type
max_version: ptr  # the names of an argument, and of the attribute for the owner
owner: ptr
dtypes: array[i32, USUAL_DTYPES]  # the usual ones, up to one that is 0

def type_of(object: ptr) -> ptr:
    its = PyObject_Type(object)
    Py_DecRef(its)
    return its

# The fields of an NDArray, if its DLTensor describes it completely, apart from being read-only;
# null for other NDArrays, and for other objects.
def plain(object: ptr) -> ptr[NDArray]:
    array = ptr[NDArray](object + HEADER)
    return array if type_of(object) == kind and u64(array.state) <= READ_ONLY else None

# The address that a Python function returns for an object, or null with an exception pending.
@noinline
def ask(function: ptr, object: ptr) -> ptr:
    answer = PyObject_CallFunctionObjArgs(function, object, None)
    if not answer:
        return None
    address = PyLong_AsVoidPtr(answer)
    Py_DecRef(answer)
    return address

# int managed_tensor_from_py_object_no_sync(PyObject*, DLManagedTensorVersioned**)
@export
def managed_from_object(object: ptr, out: ptr[ptr]) -> i32:
    out[0] = None
    array = plain(object)
    if not array:
        out[0] = ask(export, object)
        return 0 if out[0] else -1
    tensor = at(array.tensor)
    ndim = i64(u32(tensor.ndim))
    managed = ptr[Managed](PyMem_RawMalloc(16 * ndim + sizeof(Managed)))
    if not managed:
        PyErr_NoMemory()
        return -1
    shape = ptr[i64](managed + 1)
    memcpy(shape, tensor.shape, 8 * ndim)
    memcpy(shape + ndim, tensor.strides, 8 * ndim)
    begin_managed(managed, tensor, object, delete_versioned, array.state, ndim)
    Py_IncRef(object)
    out[0] = managed
    return 0

# Fills in the fields; shape and strides lie behind the struct.
def begin_managed(
    managed: ptr[Managed], tensor: ptr, context: ptr, deleter: ptr, flags: i64, ndim: i64
):
    managed.version = VERSION_WORD
    managed.manager_ctx = context
    managed.deleter = deleter
    managed.flags = flags
    memcpy(at(managed.dl_tensor), tensor, sizeof(DLTensor))
    managed.dl_tensor.shape = managed + 1
    managed.dl_tensor.strides = ptr[i64](managed + 1) + ndim

# int managed_tensor_to_py_object_no_sync(DLManagedTensorVersioned*, PyObject**): takes over the
# tensor, even if it fails.
@export
def managed_to_object(managed: ptr[Managed], out: ptr[ptr]) -> i32:
    out[0] = None
    gil = PyGILState_Ensure()
    object = array_of(managed)
    out[0] = object
    PyGILState_Release(gil)
    return 0 if object else -1

# PyObject* array_of(DLManagedTensorVersioned*): an NDArray that owns the tensor. Usual tensors
# that are surely valid are handled here, all others by Python code.
@export
def array_of(managed: ptr[Managed]) -> ptr:
    if is_usual(managed):
        capsule = PyCapsule_New(managed, name_used_versioned, disown_versioned)
        if capsule:
            object = PyType_GenericAlloc(kind, 0)
            if object:
                array = ptr[NDArray](object + HEADER)
                memcpy(array, at(managed.dl_tensor), sizeof(DLTensor))
                array.tensor.data += array.tensor.byte_offset
                array.tensor.byte_offset = 0
                array.state = managed.flags & READ_ONLY
                if PyObject_SetAttr(object, owner, capsule):
                    Py_DecRef(object)
                    object = None
            Py_DecRef(capsule)
            return object
        PyErr_Clear()
    address = PyLong_FromVoidPtr(managed)
    if not address:
        return None
    made = PyObject_CallFunctionObjArgs(adopt, address, None)
    Py_DecRef(address)
    return made

# Whether a managed tensor is usual: DLPack 1.x, with elements, of a usual dtype, on the CPU, with
# few axes, strides of at least 0, and far from all limits of addresses.
def is_usual(managed: ptr[Managed]) -> i1:
    if load(i32, managed) != MAJOR or u64(managed.flags) > KNOWN_FLAGS:
        return False
    tensor = at(managed.dl_tensor)
    address = u64(tensor.data)
    if (
        not is_here(tensor) or u32(tensor.ndim) > 8 or not tensor.shape or not tensor.strides
        or address == 0 or address >= 1 << 56 or u64(tensor.byte_offset) >= 1 << 56
    ):
        return False
    known = at(dtypes)
    while known[0] != tensor.dtype:
        if known[0] == 0:
            return False
        known += 1
    size = u64(1)
    for axis in range(tensor.ndim):
        extent = u64(tensor.shape[axis])
        stride = u64(tensor.strides[axis])
        if extent - 1 >= 1 << 40 or stride >= 1 << 40:
            return False
        reach, is_far = mul_overflow(extent - 1, stride)
        size, is_large = mul_overflow(size, extent)
        if is_far or is_large or reach >= 1 << 50 or size >= 1 << 50:
            return False
    return True

# Whether a tensor is on cpu(0).
def is_here(tensor: ptr[DLTensor]) -> i1:
    return tensor.device_type == 1 and tensor.device_id == 0

# ---- __dlpack__ ------------------------------------------------------------------------------
# PyObject* dlpack(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords): a
# capsule, if a max_version of 1.0 or more is the only argument.
@export
def dlpack(self: ptr, args: ptr[ptr], count: i64, keywords: ptr) -> ptr:
    if count or not keywords or not wants_capsule(args, keywords):
        return ask_slowly(self, args, count, keywords)
    managed = alloca(ptr)
    if managed_from_object(self, managed):
        return None
    capsule = PyCapsule_New(managed[0], name_versioned, destroy_versioned)
    if not capsule:
        delete_versioned(managed[0])
    return capsule

# Whether a max_version of 1.0 or more is the only argument that isn't None.
def wants_capsule(args: ptr[ptr], keywords: ptr) -> i1:
    version = ptr(None)
    for i in range(PyTuple_Size(keywords)):
        if PyTuple_GetItem(keywords, i) == max_version:
            version = args[i]
        elif args[i] != none:
            return False
    if not version or type_of(version) != tuple or PyTuple_Size(version) != 2:
        return False
    if (
        PyLong_AsLong(PyTuple_GetItem(version, 0)) >= MAJOR
        and PyLong_AsLong(PyTuple_GetItem(version, 1)) >= 0
    ):
        return True
    PyErr_Clear()
    return False

def ask_slowly(self: ptr, args: ptr[ptr], count: i64, keywords: ptr) -> ptr:
    given = count + (PyTuple_Size(keywords) if keywords else 0)
    all = alloca(ptr, given + 1)
    all[0] = self
    memcpy(all + 1, args, 8 * given)
    return PyObject_VectorcallMethod(dlpack_slowly, all, count + 1, keywords)

# int dltensor_from_py_object_no_sync(PyObject*, DLTensor*)
@export
def tensor_from_object(object: ptr, out: ptr[DLTensor]) -> i32:
    tensor = ptr[DLTensor](plain(object))
    if not tensor:
        tensor = ask(lend, object)
    if not tensor:
        return -1
    memcpy(out, tensor, sizeof(DLTensor))
    return 0

# int current_work_stream(DLDeviceType, int32_t, void**)
@export
def current_stream(type: i32, id: i32, out: ptr[ptr]) -> i32:
    out[0] = None
    return 0

# int managed_tensor_allocator(DLTensor*, DLManagedTensorVersioned**, void*, void (*)(void*, const
# char*, const char*)): allocates one block, with the data at its end. It doesn't need the GIL.
@export
def allocate(prototype: ptr[DLTensor], out: ptr[ptr], context: ptr, set_error: ptr) -> i32:
    out[0] = None
    message = allocated(prototype, out)
    if not message:
        return 0
    error = "MemoryError" if message == no_memory else "BufferError"
    call(void, set_error, context, error, message)
    return -1

# Null, or the message of an error.
def allocated(prototype: ptr[DLTensor], out: ptr[ptr]) -> ptr:
    if not is_here(prototype):
        return "NDArray: expected a prototype in memory of cpu(0), got another device"
    ndim = i64(u32(prototype.ndim))
    shape = prototype.shape
    if ndim > MAX_NDIM or (ndim and not shape):
        return "NDArray: expected 0 to MAX_NDIM dimensions, of extents of at least 0"
    dtype = u32(prototype.dtype)
    bits = i64(8 if dtype == OLD_BOOL else (dtype >> 8 & 255) * (dtype >> 16))
    if bits == 0 or dtype & 255 > MAX_CODE:
        return "NDArray: expected a dtype of DLPack NEWEST_VERSION of at least a bit"
    is_empty = False
    for axis in range(ndim):
        if shape[axis] < 0:
            return "NDArray: expected 0 to MAX_NDIM dimensions, of extents of at least 0"
        is_empty |= shape[axis] == 0
        bits, is_large = mul_overflow(bits, max(shape[axis], 1))
        if is_large:
            return "NDArray: expected a tensor of less than 2**60 bytes"
    bytes = 0 if is_empty else i64(u64(bits + 7) >> 3)
    managed = ptr[Managed](PyMem_RawMalloc(16 * ndim + ROOM + bytes))
    if not managed:
        return no_memory
    begin_managed(managed, prototype, managed, PyMem_RawFree, 0, ndim)
    dims = ptr[i64](managed + 1)
    memcpy(dims, shape, 8 * ndim)
    strides = dims + ndim
    data = (i64(strides + ndim) + ALIGNMENT - 1) & -ALIGNMENT
    managed.dl_tensor.data = None if is_empty else ptr(data)
    managed.dl_tensor.byte_offset = 0
    distance = 1
    axis = ndim
    while axis:
        axis -= 1
        strides[axis] = distance
        distance *= max(dims[axis], 1)
    out[0] = managed
    return None
"""

_USUAL = tuple(
    DType.of(name)
    for name in (
        "float32", "float64", "int32", "int64", "uint8", "int8", "bool", "float16", "bfloat16",
        "int16", "uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn",
        "float8_e5m2",
    )
)  # fmt: skip


def exchange_text() -> str:
    """The LLVM IR of our exchange API."""
    words = {
        "ALIGNMENT": ALIGNMENT,
        "HEADER": HEADER,
        "KNOWN_FLAGS": READ_ONLY | IS_COPIED,
        "MAJOR": VERSION[0],
        "MAX_CODE": int(max(TypeCode)),
        "MAX_NDIM": MAX_NDIM,
        "NEWEST_VERSION": f"{VERSION[0]}.{VERSION[1]}",
        "OLD_BOOL": dtype_word(DType(TypeCode.UINT, 1)),
        "READ_ONLY": READ_ONLY,
        "ROOM": ctypes.sizeof(DLManagedTensorVersioned) + ALIGNMENT,
        "USUAL_DTYPES": len(_USUAL) + 1,
        "VERSION_WORD": VERSION[0] | VERSION[1] << 32,
    }
    return native_text(STRUCTURES + DELETERS + _PAGE, words)


class Rare(NamedTuple):
    """The Python functions for the cases that compiled code leaves to them."""

    export: Callable[[Any], int]  # the address of a new managed tensor of an array
    adopt: Callable[[int], object]  # an array that owns the managed tensor at an address
    lend: Callable[[Any], int]  # the address of an array's ``DLTensor``


class Exchange:
    """The exchange API of a type, as a class attribute that makes the API when it is first read.

    Then the capsule takes its place, and compiled code the place of ``__dlpack__``. That code calls
    the Python method ``_dlpack_slowly`` in rare cases.
    """

    def __init__(self, rare: Callable[[], Rare]) -> None:
        self._rare = rare

    def __get__(self, instance: object, kind: type) -> object:
        return loaded(kind, self._rare()).capsule


class Loaded(NamedTuple):
    """The compiled code of an exchange API."""

    capsule: object
    array_of: int  # the address of ``PyObject* array_of(DLManagedTensorVersioned*)``


_loaded: dict[type, Loaded] = {}


def loaded(kind: type, rare: Rare) -> Loaded:
    """The compiled code of a type's API, made once."""
    if kind not in _loaded:
        # Without a lock, which a fork could leave locked: if two threads make one, both use the
        # first.
        _loaded.setdefault(kind, _load(kind, rare))
    return _loaded[kind]


def _load(kind: type, rare: Rare) -> Loaded:
    code = NativeCode(exchange_text())
    code.set_objects(
        kind=kind,
        **rare._asdict(),
        none=None,
        tuple=tuple,
        dlpack_slowly=sys.intern("_dlpack_slowly"),
        max_version=sys.intern("max_version"),
        owner=sys.intern("_owner"),
    )
    usual = (ctypes.c_int32 * len(_USUAL)).from_address(code.data("dtypes"))
    usual[:] = [dtype_word(dtype) for dtype in _USUAL]
    api = DLPackExchangeAPI(
        version=DLPackVersion(*VERSION),
        managed_tensor_allocator=code.function("allocate"),
        managed_tensor_from_py_object_no_sync=code.function("managed_from_object"),
        managed_tensor_to_py_object_no_sync=code.function("managed_to_object"),
        dltensor_from_py_object_no_sync=code.function("tensor_from_object"),
        current_work_stream=code.function("current_stream"),
    )
    increment_reference(api)
    capsule = _capsule_new(ctypes.addressof(api), code.data("name"), None)
    setattr(kind, _ATTRIBUTE, capsule)
    compiled: Any = kind
    text = f"__dlpack__{_SIGNATURE}\n--\n\n{compiled._dlpack_slowly.__doc__}"
    compiled.__dlpack__ = method(kind, "__dlpack__", code.function("dlpack"), text)
    return Loaded(capsule, code.function("array_of"))


# Private prototypes: the argtypes of `ctypes.pythonapi.X` itself belong to the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_new = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
