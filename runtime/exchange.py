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

_TEXT = r"""
@name = constant [20 x i8] c"dlpack_exchange_api\00"
@kind = global ptr null        ; set by Python: the type NDArray,
@export = global ptr null      ; the functions for rare cases,
@adopt = global ptr null
@lend = global ptr null
@dlpack_slowly = global ptr null  ; the name of a method
@none = global ptr null
@tuple = global ptr null       ; the type
@max_version = global ptr null ; the names of an argument, and of the attribute for the owner,
@owner = global ptr null
@dtypes = global [USUAL_DTYPES x i32] zeroinitializer  ; the usual ones, up to one that is 0

TEXTS
; The fields of an NDArray, if its %DLTensor describes it completely, apart from being read-only;
; null for other NDArrays, and for other objects.
define internal ptr @plain(ptr %object) {
  %type = call ptr @PyObject_Type(ptr %object)
  call void @Py_DecRef(ptr %type)
  %kind = load ptr, ptr @kind
  br icmp eq ptr %type, %kind, label %look, label %other
look:
  %array = getelementptr i8, ptr %object, i64 HEADER
  %state = load %NDArray.state, ptr %array
  br icmp ugt i64 %state, READ_ONLY, label %other, label %leave
leave:
  ret ptr %array
other:
  ret ptr null
}

; The address that a Python function returns for an object, or null with an exception pending.
define internal ptr @ask(ptr %function.at, ptr %object) noinline {
  %function = load ptr, ptr %function.at
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %object, ptr null)
  br icmp eq ptr %answer, null, label %fail, label %read
read:
  %address = call ptr @PyLong_AsVoidPtr(ptr %answer)
  call void @Py_DecRef(ptr %answer)
  ret ptr %address
fail:
  ret ptr null
}

; int managed_tensor_from_py_object_no_sync(PyObject*, DLManagedTensorVersioned**)
define i32 @managed_from_object(ptr %object, ptr %out) {
  store ptr null, ptr %out
  %tensor = call ptr @plain(ptr %object)
  br icmp eq ptr %tensor, null, label %slow, label %make
make:
  %state = load %NDArray.state, ptr %tensor
  %ndim = load %DLTensor.ndim, ptr %tensor
  %dims = zext i32 %ndim to i64
  %dims.bytes = mul i64 %dims, 16
  %bytes = add i64 %dims.bytes, MANAGED_SIZE
  %managed = call ptr @PyMem_RawMalloc(i64 %bytes)
  br icmp eq ptr %managed, null, label %no.memory, label %fill
fill:
  %shape = load %DLTensor.shape, ptr %tensor
  %strides = load %DLTensor.strides, ptr %tensor
  %half = mul i64 %dims, 8
  %its.shape = getelementptr i8, ptr %managed, i64 MANAGED_SIZE
  %its.strides = getelementptr i64, ptr %its.shape, i64 %dims
  call void @llvm.memcpy.p0.p0.i64(ptr %its.shape, ptr %shape, i64 %half, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %its.strides, ptr %strides, i64 %half, i1 false)
  %its.tensor = getelementptr %Managed.dl_tensor, ptr %managed
  call void @llvm.memcpy.p0.p0.i64(ptr %its.tensor, ptr %tensor, i64 48, i1 false)
  call void @begin_managed(ptr %managed, ptr %object, ptr @delete_versioned, i64 %state, i64 %dims)
  call void @Py_IncRef(ptr %object)
  store ptr %managed, ptr %out
  ret i32 0
slow:
  %made = call ptr @ask(ptr @export, ptr %object)
  store ptr %made, ptr %out
  %failed = icmp eq ptr %made, null
  %status = select i1 %failed, i32 -1, i32 0
  ret i32 %status
no.memory:
  %never = call ptr @PyErr_NoMemory()
  ret i32 -1
}

; Fills in the fields besides the tensor; shape and strides lie behind the struct.
define internal void @begin_managed(ptr %managed, ptr %context, ptr %deleter, i64 %flags,
                                    i64 %ndim) {
  store i64 VERSION_WORD, ptr %managed
  store %Managed.manager_ctx %context, ptr %managed
  store %Managed.deleter %deleter, ptr %managed
  store %Managed.flags %flags, ptr %managed
  %shape = getelementptr i8, ptr %managed, i64 MANAGED_SIZE
  %strides = getelementptr i64, ptr %shape, i64 %ndim
  %shape.at = getelementptr %Managed.dl_tensor, ptr %managed, i32 5
  store ptr %shape, ptr %shape.at
  %strides.at = getelementptr %Managed.dl_tensor, ptr %managed, i32 6
  store ptr %strides, ptr %strides.at
  ret void
}

; int managed_tensor_to_py_object_no_sync(DLManagedTensorVersioned*, PyObject**): takes over the
; tensor, even if it fails.
define i32 @managed_to_object(ptr %managed, ptr %out) {
  store ptr null, ptr %out
  %gil = call i32 @PyGILState_Ensure()
  %object = call ptr @array_of(ptr %managed)
  store ptr %object, ptr %out
  call void @PyGILState_Release(i32 %gil)
  %failed = icmp eq ptr %object, null
  %status = select i1 %failed, i32 -1, i32 0
  ret i32 %status
}

; PyObject* array_of(DLManagedTensorVersioned*): an NDArray that owns the tensor. Usual tensors
; that are surely valid are handled here, all others by Python code.
define ptr @array_of(ptr %managed) {
entry:
  %usual = call i1 @is_usual(ptr %managed)
  br i1 %usual, label %own, label %slow
own:
  %capsule = call ptr @PyCapsule_New(ptr %managed, ptr @name_used_versioned,
                                     ptr @disown_versioned)
  br icmp eq ptr %capsule, null, label %forget, label %make
forget:
  call void @PyErr_Clear()
  br label %slow
make:
  %kind = load ptr, ptr @kind
  %array = call ptr @PyType_GenericAlloc(ptr %kind, i64 0)
  br icmp eq ptr %array, null, label %fail, label %fill
fill:
  %tensor = getelementptr i8, ptr %array, i64 HEADER
  %given = getelementptr %Managed.dl_tensor, ptr %managed
  call void @llvm.memcpy.p0.p0.i64(ptr %tensor, ptr %given, i64 48, i1 false)
  %data = load i64, ptr %tensor
  %offset.at = getelementptr %DLTensor.byte_offset, ptr %tensor
  %offset = load i64, ptr %offset.at
  %first = add i64 %data, %offset
  store i64 %first, ptr %tensor
  store i64 0, ptr %offset.at
  %flags = load %Managed.flags, ptr %managed
  %state = and i64 %flags, READ_ONLY
  store %NDArray.state %state, ptr %tensor
  %owner = load ptr, ptr @owner
  %status = call i32 @PyObject_SetAttr(ptr %array, ptr %owner, ptr %capsule)
  call void @Py_DecRef(ptr %capsule)
  br icmp ne i32 %status, 0, label %drop, label %leave
leave:
  ret ptr %array
drop:
  call void @Py_DecRef(ptr %array)
  ret ptr null
fail:
  call void @Py_DecRef(ptr %capsule)
  ret ptr null

slow:
  %address = call ptr @PyLong_FromVoidPtr(ptr %managed)
  br icmp eq ptr %address, null, label %none, label %ask
ask:
  %function = load ptr, ptr @adopt
  %made = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %address, ptr null)
  call void @Py_DecRef(ptr %address)
  ret ptr %made
none:
  ret ptr null
}

; Whether a managed tensor is usual: DLPack 1.x, with elements, of a usual dtype, on the CPU, with
; few axes, strides of at least 0, and far from all limits of addresses.
define internal i1 @is_usual(ptr %managed) {
entry:
  %major = load i32, ptr %managed
  %flags = load %Managed.flags, ptr %managed
  %same = icmp eq i32 %major, MAJOR
  %plain = icmp ule i64 %flags, KNOWN_FLAGS
  %ours = and i1 %same, %plain
  br i1 %ours, label %read, label %no
read:
  %tensor = getelementptr %Managed.dl_tensor, ptr %managed
  %data = load i64, ptr %tensor
  %device.at = getelementptr %DLTensor.device_type, ptr %tensor
  %device = load i64, ptr %device.at
  %ndim = load %DLTensor.ndim, ptr %tensor
  %dtype = load %DLTensor.dtype, ptr %tensor
  %shape = load %DLTensor.shape, ptr %tensor
  %strides = load %DLTensor.strides, ptr %tensor
  %offset = load %DLTensor.byte_offset, ptr %tensor
  %here = icmp eq i64 %device, 1  ; type 1, id 0
  %few = icmp ule i32 %ndim, 8
  %shaped = icmp ne ptr %shape, null
  %strided = icmp ne ptr %strides, null
  %there = icmp ne i64 %data, 0
  %low = icmp ult i64 %data, 72057594037927936    ; 2**56
  %near = icmp ult i64 %offset, 72057594037927936
  %a = and i1 %here, %few
  %b = and i1 %shaped, %strided
  %c = and i1 %low, %near
  %d = and i1 %a, %b
  %e = and i1 %c, %there
  %good = and i1 %d, %e
  br i1 %good, label %find, label %no
find:
  %at = phi ptr [ @dtypes, %read ], [ %at.next, %other ]
  %known = load i32, ptr %at
  br icmp eq i32 %known, %dtype, label %sizes, label %other
other:
  %at.next = getelementptr i32, ptr %at, i64 1
  br icmp eq i32 %known, 0, label %no, label %find
sizes:
  %count = zext i32 %ndim to i64
  br label %next
next:
  %axis = phi i64 [ 0, %sizes ], [ %axis.next, %fits ]
  %size = phi i64 [ 1, %sizes ], [ %size.next, %fits ]
  br icmp eq i64 %axis, %count, label %yes, label %one
one:
  %extent.at = getelementptr i64, ptr %shape, i64 %axis
  %extent = load i64, ptr %extent.at
  %stride.at = getelementptr i64, ptr %strides, i64 %axis
  %stride = load i64, ptr %stride.at
  %axis.next = add i64 %axis, 1
  %less = sub i64 %extent, 1
  %some = icmp ult i64 %less, 1099511627776       ; an extent of 1 to 2**40
  %short = icmp ult i64 %stride, 1099511627776
  %small = and i1 %some, %short
  br i1 %small, label %reach, label %no
reach:
  %far = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %less, i64 %stride)
  %size.far = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %size, i64 %extent)
  %reach.value = extractvalue { i64, i1 } %far, 0
  %reach.over = extractvalue { i64, i1 } %far, 1
  %size.next = extractvalue { i64, i1 } %size.far, 0
  %size.over = extractvalue { i64, i1 } %size.far, 1
  %reach.fits = icmp ult i64 %reach.value, 1125899906842624  ; 2**50
  %size.fits = icmp ult i64 %size.next, 1125899906842624
  %both.over = or i1 %reach.over, %size.over
  %both.fit = and i1 %reach.fits, %size.fits
  %within = xor i1 %both.over, true
  %right = and i1 %both.fit, %within
  br i1 %right, label %fits, label %no
fits:
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; ---- __dlpack__ ------------------------------------------------------------------------------
; PyObject* dlpack(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords): a
; capsule, if a max_version of 1.0 or more is the only argument.
define ptr @dlpack(ptr %self, ptr %args, i64 %count, ptr %keywords) {
entry:
  %out = alloca ptr
  %without = icmp eq ptr %keywords, null
  %positional = icmp ne i64 %count, 0
  %other = or i1 %without, %positional
  br i1 %other, label %slow, label %look
look:
  %named = call i64 @PyTuple_Size(ptr %keywords)
  %wanted = load ptr, ptr @max_version
  %none = load ptr, ptr @none
  br label %next
next:
  %i = phi i64 [ 0, %look ], [ %i.next, %take ], [ %i.next, %ignore ]
  %version = phi ptr [ null, %look ], [ %argument, %take ], [ %version, %ignore ]
  br icmp eq i64 %i, %named, label %judge, label %one
one:
  %i.next = add i64 %i, 1
  %argument.at = getelementptr ptr, ptr %args, i64 %i
  %argument = load ptr, ptr %argument.at
  %name = call ptr @PyTuple_GetItem(ptr %keywords, i64 %i)
  br icmp eq ptr %name, %wanted, label %take, label %rest
take:
  br label %next
rest:
  br icmp eq ptr %argument, %none, label %ignore, label %slow
ignore:
  br label %next
judge:
  br icmp eq ptr %version, null, label %slow, label %type
type:
  %type.found = call ptr @PyObject_Type(ptr %version)
  call void @Py_DecRef(ptr %type.found)
  %tuple = load ptr, ptr @tuple
  br icmp eq ptr %type.found, %tuple, label %size, label %slow
size:
  %parts = call i64 @PyTuple_Size(ptr %version)
  br icmp eq i64 %parts, 2, label %major, label %slow
major:
  %major.object = call ptr @PyTuple_GetItem(ptr %version, i64 0)
  %major.value = call i64 @PyLong_AsLong(ptr %major.object)
  %minor.object = call ptr @PyTuple_GetItem(ptr %version, i64 1)
  br icmp slt i64 %major.value, MAJOR, label %forget, label %minor
minor:
  %minor.value = call i64 @PyLong_AsLong(ptr %minor.object)
  br icmp slt i64 %minor.value, 0, label %forget, label %make
make:
  %status = call i32 @managed_from_object(ptr %self, ptr %out)
  br icmp ne i32 %status, 0, label %fail, label %wrap
wrap:
  %managed = load ptr, ptr %out
  %capsule = call ptr @PyCapsule_New(ptr %managed, ptr @name_versioned, ptr @destroy_versioned)
  br icmp eq ptr %capsule, null, label %delete, label %leave
delete:
  call void @delete_versioned(ptr %managed)
  ret ptr null
leave:
  ret ptr %capsule
fail:
  ret ptr null

forget:
  call void @PyErr_Clear()
  br label %slow
slow:
  %names = phi i64 [ 0, %entry ], [ %named, %rest ], [ %named, %judge ], [ %named, %type ],
                   [ %named, %size ], [ %named, %forget ]
  %returned = call ptr @ask_slowly(ptr %self, ptr %args, i64 %count, i64 %names, ptr %keywords)
  ret ptr %returned
}

define internal ptr @ask_slowly(ptr %self, ptr %args, i64 %count, i64 %named, ptr %keywords) {
  %given = add i64 %count, %named
  %room = add i64 %given, 1
  %all = alloca ptr, i64 %room
  store ptr %self, ptr %all
  %rest = getelementptr ptr, ptr %all, i64 1
  %bytes = mul i64 %given, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %args, i64 %bytes, i1 false)
  %name = load ptr, ptr @dlpack_slowly
  %positional = add i64 %count, 1
  %returned = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %all, i64 %positional,
                                                  ptr %keywords)
  ret ptr %returned
}

; int dltensor_from_py_object_no_sync(PyObject*, DLTensor*)
define i32 @tensor_from_object(ptr %object, ptr %out) {
  %tensor = call ptr @plain(ptr %object)
  br icmp eq ptr %tensor, null, label %slow, label %copy
slow:
  %lent = call ptr @ask(ptr @lend, ptr %object)
  br icmp eq ptr %lent, null, label %fail, label %copy
copy:
  %from = phi ptr [ %tensor, %0 ], [ %lent, %slow ]
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %from, i64 48, i1 false)
  ret i32 0
fail:
  ret i32 -1
}

; int current_work_stream(DLDeviceType, int32_t, void**)
define i32 @current_stream(i32 %type, i32 %id, ptr %out) {
  store ptr null, ptr %out
  ret i32 0
}

; int managed_tensor_allocator(DLTensor*, DLManagedTensorVersioned**, void*, void (*)(void*, const
; char*, const char*)): allocates one block, with the data at its end. It doesn't need the GIL.
define i32 @allocate(ptr %prototype, ptr %out, ptr %context, ptr %set.error) {
entry:
  store ptr null, ptr %out
  %device.at = getelementptr %DLTensor.device_type, ptr %prototype
  %device = load i64, ptr %device.at
  %elsewhere = icmp ne i64 %device, 1  ; type 1, id 0
  br i1 %elsewhere, label %refuse.device, label %look
look:
  %ndim = load %DLTensor.ndim, ptr %prototype
  %strange = icmp ugt i32 %ndim, MAX_NDIM
  %shape = load %DLTensor.shape, ptr %prototype
  %shapeless = icmp eq ptr %shape, null
  %scalar = icmp eq i32 %ndim, 0
  %vector = xor i1 %scalar, true
  %missing = and i1 %shapeless, %vector
  %bad.shape = or i1 %strange, %missing
  br i1 %bad.shape, label %refuse.shape, label %typed
typed:
  %dtype = load %DLTensor.dtype, ptr %prototype
  %code = and i32 %dtype, 255
  %bits.shifted = lshr i32 %dtype, 8
  %bits = and i32 %bits.shifted, 255
  %lanes = lshr i32 %dtype, 16
  %width = mul i32 %bits, %lanes
  %old.bool = icmp eq i32 %dtype, OLD_BOOL
  %step = select i1 %old.bool, i32 8, i32 %width
  %step.wide = zext i32 %step to i64
  %nothing = icmp eq i32 %step, 0
  %unknown = icmp ugt i32 %code, MAX_CODE
  %bad.dtype = or i1 %nothing, %unknown
  br i1 %bad.dtype, label %refuse.dtype, label %sizes
sizes:
  %count = zext i32 %ndim to i64
  %dims.bytes = mul i64 %count, 16
  br label %next
next:
  %axis = phi i64 [ 0, %sizes ], [ %axis.next, %fits ]
  %all.bits = phi i64 [ %step.wide, %sizes ], [ %all.bits.next, %fits ]
  %is.empty = phi i1 [ false, %sizes ], [ %is.empty.next, %fits ]
  br icmp eq i64 %axis, %count, label %room, label %one
one:
  %extent.at = getelementptr i64, ptr %shape, i64 %axis
  %extent = load i64, ptr %extent.at
  br icmp slt i64 %extent, 0, label %refuse.shape, label %grow
grow:
  %zero = icmp eq i64 %extent, 0
  %is.empty.next = or i1 %is.empty, %zero
  %factor = select i1 %zero, i64 1, i64 %extent
  %product = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %all.bits, i64 %factor)
  %all.bits.next = extractvalue { i64, i1 } %product, 0
  %overflow = extractvalue { i64, i1 } %product, 1
  %axis.next = add i64 %axis, 1
  br i1 %overflow, label %refuse.size, label %fits
fits:
  br label %next
room:
  %rounded = add i64 %all.bits, 7
  %full = lshr i64 %rounded, 3
  %bytes = select i1 %is.empty, i64 0, i64 %full
  %head = add i64 %dims.bytes, ROOM
  %total = add i64 %head, %bytes
  %managed = call ptr @PyMem_RawMalloc(i64 %total)
  br icmp eq ptr %managed, null, label %refuse.memory, label %fill
fill:
  %its.tensor = getelementptr %Managed.dl_tensor, ptr %managed
  call void @llvm.memcpy.p0.p0.i64(ptr %its.tensor, ptr %prototype, i64 48, i1 false)
  call void @begin_managed(ptr %managed, ptr %managed, ptr @free_block, i64 0, i64 %count)
  %dims = getelementptr i8, ptr %managed, i64 MANAGED_SIZE
  %dims.half = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %dims, ptr %shape, i64 %dims.half, i1 false)
  %strides = getelementptr i64, ptr %dims, i64 %count
  %after = getelementptr i8, ptr %dims, i64 %dims.bytes
  %after.number = ptrtoint ptr %after to i64
  %beyond = add i64 %after.number, ALIGNMENT_MASK
  %low = and i64 %beyond, ALIGNMENT_MASK
  %aligned = sub i64 %beyond, %low
  %data.number = select i1 %is.empty, i64 0, i64 %aligned
  store i64 %data.number, ptr %its.tensor
  %offset.at = getelementptr %Managed.dl_tensor, ptr %managed, i32 7
  store i64 0, ptr %offset.at
  br label %stride
stride:
  %left = phi i64 [ %count, %fill ], [ %this, %set ]
  %distance = phi i64 [ 1, %fill ], [ %distance.next, %set ]
  br icmp eq i64 %left, 0, label %leave, label %set
set:
  %this = sub i64 %left, 1
  %this.at = getelementptr i64, ptr %strides, i64 %this
  store i64 %distance, ptr %this.at
  %that.at = getelementptr i64, ptr %dims, i64 %this
  %that = load i64, ptr %that.at
  %that.zero = icmp eq i64 %that, 0
  %that.factor = select i1 %that.zero, i64 1, i64 %that
  %distance.next = mul i64 %distance, %that.factor
  br label %stride
leave:
  store ptr %managed, ptr %out
  ret i32 0
refuse.device:
  br label %refuse
refuse.shape:
  br label %refuse
refuse.dtype:
  br label %refuse
refuse.size:
  br label %refuse
refuse.memory:
  br label %refuse
refuse:
  %error = phi ptr [ @buffer_error, %refuse.device ], [ @buffer_error, %refuse.shape ],
                   [ @buffer_error, %refuse.dtype ], [ @buffer_error, %refuse.size ],
                   [ @memory_error, %refuse.memory ]
  %message = phi ptr [ @no_device, %refuse.device ], [ @no_shape, %refuse.shape ],
                     [ @no_dtype, %refuse.dtype ], [ @no_size, %refuse.size ],
                     [ @no_memory, %refuse.memory ]
  call void %set.error(ptr %context, ptr %error, ptr %message)
  ret i32 -1
}

define internal void @free_block(ptr %managed) {
  call void @PyMem_RawFree(ptr %managed)
  ret void
}
"""

_MESSAGES = {
    "buffer_error": "BufferError",
    "memory_error": "MemoryError",
    "no_device": "NDArray: expected a prototype in memory of cpu(0), got another device",
    "no_dtype": f"NDArray: expected a dtype of DLPack {VERSION[0]}.{VERSION[1]} of at least a bit",
    "no_memory": "NDArray: no memory for the tensor",
    "no_shape": f"NDArray: expected 0 to {MAX_NDIM} dimensions, of extents of at least 0",
    "no_size": "NDArray: expected a tensor of less than 2**60 bytes",
}


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
    texts = (
        f'@{name} = internal constant [{len(text) + 1} x i8] c"{text}\\00"'
        for name, text in _MESSAGES.items()
    )
    words = {
        "ALIGNMENT_MASK": ALIGNMENT - 1,
        "HEADER": HEADER,
        "KNOWN_FLAGS": READ_ONLY | IS_COPIED,
        "MAJOR": VERSION[0],
        "MANAGED_SIZE": ctypes.sizeof(DLManagedTensorVersioned),
        "MAX_CODE": int(max(TypeCode)),
        "MAX_NDIM": MAX_NDIM,
        "OLD_BOOL": dtype_word(DType(TypeCode.UINT, 1)),
        "READ_ONLY": READ_ONLY,
        "ROOM": ctypes.sizeof(DLManagedTensorVersioned) + ALIGNMENT,
        "TEXTS": "\n".join(texts),
        "USUAL_DTYPES": len(_USUAL) + 1,
        "VERSION_WORD": VERSION[0] | VERSION[1] << 32,
    }
    return native_text(STRUCTURES + DELETERS + _TEXT, words)


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
