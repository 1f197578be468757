"""The loop of a ufunc, which numpy calls: it describes the operands as ``DLTensor`` and calls a
built function.

numpy gives ``void loop(char** args, npy_intp* dimensions, npy_intp* steps, void* data)`` the number
of elements of the batch and the extents of the core dimensions, the distance of two elements of
each operand, and the strides of the core dimensions, in bytes (numpy, "Universal functions (ufunc)
API", ``PyUFuncGenericFunction``). ::

    all operands compact                       one call for the batch
    strides, and a small core                  one call, of the variant for strides
    compact cores of 256 elements or more      a call for each element
    a result that the next element reads       a call for each element (reduce, accumulate)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from typing import Any, final

import numpy as np

from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.errors import RAISABLE, InternalError, KernelError
from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import STRUCTURES, native_text
from minitvm.runtime.values import ArgTypeCode
from minitvm.tir.expr import Buffer
from minitvm.ufuncs.signature import Signature

_LARGE_CORE = 256  # elements, of all operands: a call for each then costs little beside its work
_WORDS = {"CODE_ARRAY": int(ArgTypeCode.DLTENSOR_HANDLE), "LARGE_CORE": _LARGE_CORE}

_TEXT = r"""
; What the loop calls, and its operands in numpy's order (loop._Loop, loop._Operand).
%Loop = type {
  ptr call, ptr resource, ptr last_error, i64 count, ptr operands, i64 batched, i64 words
}
%Operand = type {
  i64 position, i64 rank, i32 dtype, i32 output, i64 size, ptr dims, i64 first_step
}

@fail = global ptr null  ; sets the exception of a text
@of_text = internal constant [2 x i8] c"y\00"
@uneven = internal constant [75 x i8] c"ValueError: expected strides that are multiples of the \
element's size\00"

define internal void @raise(ptr %text) {
  %gil = call i32 @PyGILState_Ensure()
  %pending = call ptr @PyErr_Occurred()
  br icmp eq ptr %pending, null, label %set, label %leave
set:
  %fail = load ptr, ptr @fail
  %done = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %fail, ptr @of_text, ptr %text)
  br label %leave
leave:
  call void @PyGILState_Release(i32 %gil)
  ret void
}

; The elements of an operand's core; 0 in %compact where they don't lie side by side.
define internal i64 @core_of(ptr %operand, ptr %dimensions, ptr %steps, ptr %compact) {
entry:
  %rank = load %Operand.rank, ptr %operand
  %size = load %Operand.size, ptr %operand
  %dims = load %Operand.dims, ptr %operand
  %first = load %Operand.first_step, ptr %operand
  br label %next
next:
  %d = phi i64 [ %rank, %entry ], [ %d.next, %go ]
  %elements = phi i64 [ 1, %entry ], [ %elements.next, %go ]
  br icmp eq i64 %d, 0, label %leave, label %look
look:
  %d.next = sub i64 %d, 1
  %dim.at = getelementptr i64, ptr %dims, i64 %d.next
  %dim = load i64, ptr %dim.at
  %extent.at = getelementptr i64, ptr %dimensions, i64 %dim
  %extent = load i64, ptr %extent.at
  %number = add i64 %first, %d.next
  %step.at = getelementptr i64, ptr %steps, i64 %number
  %step = load i64, ptr %step.at
  %wanted = mul i64 %elements, %size
  %right = icmp eq i64 %step, %wanted
  %one = icmp sle i64 %extent, 1
  %fits = or i1 %right, %one
  %elements.next = mul i64 %elements, %extent
  br i1 %fits, label %go, label %spread
spread:
  store i64 0, ptr %compact
  br label %go
go:
  br label %next
leave:
  ret i64 %elements
}

; Describes the operands and calls, for %n elements from the addresses %args on.
define internal i32 @call_for(ptr %loop, ptr %args, ptr %dimensions, ptr %steps, i64 %n,
                              ptr %tensors, ptr %values, ptr %codes, ptr %words) {
entry:
  %count = load %Loop.count, ptr %loop
  %operands = load %Loop.operands, ptr %loop
  %batched = load %Loop.batched, ptr %loop
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %described ]
  %free = phi ptr [ %words, %entry ], [ %free.next, %described ]
  br icmp eq i64 %i, %count, label %call, label %describe
describe:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %position = load %Operand.position, ptr %operand
  %rank = load %Operand.rank, ptr %operand
  %dtype = load %Operand.dtype, ptr %operand
  %size = load %Operand.size, ptr %operand
  %dims = load %Operand.dims, ptr %operand
  %first = load %Operand.first_step, ptr %operand
  %whole = add i64 %rank, %batched
  %strides = getelementptr i64, ptr %free, i64 %whole
  %free.next = getelementptr i64, ptr %strides, i64 %whole
  %tensor = getelementptr %DLTensor, ptr %tensors, i64 %i
  %address.at = getelementptr ptr, ptr %args, i64 %i
  %address = load ptr, ptr %address.at
  %narrow = trunc i64 %whole to i32
  store %DLTensor.data %address, ptr %tensor
  store %DLTensor.device_type 1, ptr %tensor
  store %DLTensor.device_id 0, ptr %tensor
  store %DLTensor.ndim %narrow, ptr %tensor
  store %DLTensor.dtype %dtype, ptr %tensor
  store %DLTensor.shape %free, ptr %tensor
  store %DLTensor.strides %strides, ptr %tensor
  store %DLTensor.byte_offset 0, ptr %tensor
  %value.at = getelementptr ptr, ptr %values, i64 %position
  store ptr %tensor, ptr %value.at
  %code.at = getelementptr i32, ptr %codes, i64 %position
  store i32 CODE_ARRAY, ptr %code.at
  br icmp eq i64 %batched, 0, label %cores, label %outer
outer:
  store i64 %n, ptr %free
  %outer.at = getelementptr i64, ptr %steps, i64 %i
  %outer.step = load i64, ptr %outer.at
  %outer.stride = sdiv i64 %outer.step, %size
  store i64 %outer.stride, ptr %strides
  %outer.rest = srem i64 %outer.step, %size
  br icmp eq i64 %outer.rest, 0, label %cores, label %bad
cores:
  br label %core
core:
  %d = phi i64 [ 0, %cores ], [ %d.next, %even ]
  br icmp eq i64 %d, %rank, label %described, label %one
one:
  %d.next = add i64 %d, 1
  %dim.at = getelementptr i64, ptr %dims, i64 %d
  %dim = load i64, ptr %dim.at
  %extent.at = getelementptr i64, ptr %dimensions, i64 %dim
  %extent = load i64, ptr %extent.at
  %number = add i64 %first, %d
  %step.at = getelementptr i64, ptr %steps, i64 %number
  %step = load i64, ptr %step.at
  %stride = sdiv i64 %step, %size
  %rest = srem i64 %step, %size
  %place = add i64 %d, %batched
  %shape.at = getelementptr i64, ptr %free, i64 %place
  store i64 %extent, ptr %shape.at
  %stride.at = getelementptr i64, ptr %strides, i64 %place
  store i64 %stride, ptr %stride.at
  br icmp eq i64 %rest, 0, label %even, label %bad
even:
  br label %core
described:
  br label %next
call:
  %function = load %Loop.call, ptr %loop
  %resource = load %Loop.resource, ptr %loop
  %narrow.count = trunc i64 %count to i32
  %status = call i32 %function(ptr %values, ptr %codes, i32 %narrow.count, ptr null, ptr null,
                               ptr %resource)
  br icmp eq i32 %status, 0, label %good, label %failed
good:
  ret i32 0
failed:
  %last_error = load %Loop.last_error, ptr %loop
  %text = call ptr %last_error()
  call void @raise(ptr %text)
  ret i32 -1
bad:
  call void @raise(ptr @uneven)
  ret i32 -1
}

; Whether an element of a result is read, or written again, by the next call.
define internal i1 @is_serial(ptr %loop, ptr %args, ptr %steps) {
entry:
  %count = load %Loop.count, ptr %loop
  %operands = load %Loop.operands, ptr %loop
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %other ]
  br icmp eq i64 %i, %count, label %no, label %look
look:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %output = load %Operand.output, ptr %operand
  br icmp eq i32 %output, 0, label %other, label %step
step:
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %far = load i64, ptr %step.at
  %address.at = getelementptr i64, ptr %args, i64 %i
  %address = load i64, ptr %address.at
  br icmp eq i64 %far, 0, label %yes, label %inputs
inputs:
  %j = phi i64 [ 0, %step ], [ %j.next, %compare ]
  br icmp eq i64 %j, %i, label %other, label %compare
compare:
  %j.next = add i64 %j, 1
  %from.at = getelementptr i64, ptr %args, i64 %j
  %from = load i64, ptr %from.at
  %distance = sub i64 %address, %from
  br icmp eq i64 %distance, %far, label %yes, label %inputs
other:
  br label %next
no:
  ret i1 false
yes:
  ret i1 true
}

; Whether the elements of the batch get a call each.
define internal i1 @is_split(ptr %loop, ptr %args, ptr %dimensions, ptr %steps, i64 %n) {
entry:
  %compact.at = alloca i64
  store i64 1, ptr %compact.at
  %batched = load %Loop.batched, ptr %loop
  br icmp eq i64 %batched, 0, label %yes, label %several
several:
  br icmp eq i64 %n, 1, label %no, label %order
order:
  %serial = call i1 @is_serial(ptr %loop, ptr %args, ptr %steps)
  br i1 %serial, label %yes, label %measure
measure:
  %count = load %Loop.count, ptr %loop
  %operands = load %Loop.operands, ptr %loop
  br label %next
next:
  %i = phi i64 [ 0, %measure ], [ %i.next, %look ]
  %sum = phi i64 [ 0, %measure ], [ %sum.next, %look ]
  %close = phi i1 [ true, %measure ], [ %close.next, %look ]
  br icmp eq i64 %i, %count, label %decide, label %look
look:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %elements = call i64 @core_of(ptr %operand, ptr %dimensions, ptr %steps, ptr %compact.at)
  %sum.next = add i64 %sum, %elements
  %size = load %Operand.size, ptr %operand
  %bytes = mul i64 %elements, %size
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %step = load i64, ptr %step.at
  %beside = icmp eq i64 %step, %bytes
  %close.next = and i1 %close, %beside
  br label %next
decide:
  %compact = load i64, ptr %compact.at
  %cores = icmp ne i64 %compact, 0
  %apart = xor i1 %close, true
  %large = icmp sge i64 %sum, LARGE_CORE
  %some = and i1 %cores, %apart
  %split = and i1 %some, %large
  ret i1 %split
yes:
  ret i1 true
no:
  ret i1 false
}

define void @ufunc_loop(ptr %args, ptr %dimensions, ptr %steps, ptr %loop) {
entry:
  %n = load i64, ptr %dimensions
  %count = load %Loop.count, ptr %loop
  %size = load %Loop.words, ptr %loop
  br icmp sgt i64 %n, 0, label %begin, label %leave
begin:
  %tensors = alloca %DLTensor, i64 %count
  %values = alloca ptr, i64 %count
  %codes = alloca i32, i64 %count
  %words = alloca i64, i64 %size
  %now = alloca ptr, i64 %count
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %now, ptr %args, i64 %bytes, i1 false)
  %split = call i1 @is_split(ptr %loop, ptr %args, ptr %dimensions, ptr %steps, i64 %n)
  br i1 %split, label %each, label %whole
whole:
  %whole.status = call i32 @call_for(ptr %loop, ptr %now, ptr %dimensions, ptr %steps, i64 %n,
      ptr %tensors, ptr %values, ptr %codes, ptr %words)
  ret void
each:
  %k = phi i64 [ 0, %begin ], [ %k.next, %moved ]
  br icmp eq i64 %k, %n, label %leave, label %one
one:
  %k.next = add i64 %k, 1
  %status = call i32 @call_for(ptr %loop, ptr %now, ptr %dimensions, ptr %steps, i64 1,
      ptr %tensors, ptr %values, ptr %codes, ptr %words)
  br icmp eq i32 %status, 0, label %move, label %leave
move:
  %i = phi i64 [ 0, %one ], [ %i.next, %shift ]
  br icmp eq i64 %i, %count, label %moved, label %shift
shift:
  %i.next = add i64 %i, 1
  %at = getelementptr ptr, ptr %now, i64 %i
  %address = load ptr, ptr %at
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %step = load i64, ptr %step.at
  %after = getelementptr i8, ptr %address, i64 %step
  store ptr %after, ptr %at
  br label %move
moved:
  br label %each
leave:
  ret void
}
"""
_UNEVEN = "ValueError: expected strides that are multiples of the element's size"


class _Operand(ctypes.Structure):
    _fields_ = (
        ("position", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("dtype", ctypes.c_uint32),
        ("output", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("dims", ctypes.c_void_p),
        ("first_step", ctypes.c_int64),
    )


class _Loop(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("resource", ctypes.c_void_p),
        ("last_error", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("operands", ctypes.c_void_p),
        ("batched", ctypes.c_int64),
        ("words", ctypes.c_int64),
    )


def ufunc_loop_text() -> str:
    """The LLVM IR of the loop."""
    text = "".join(_TEXT.split("\\\n")).replace("[75 x i8]", f"[{len(_UNEVEN) + 1} x i8]")
    return native_text(STRUCTURES + text, _WORDS)


@Once
def _code() -> NativeCode:
    code = NativeCode(ufunc_loop_text())
    code.set_objects(fail=_fail)
    return code


def _fail(text: bytes) -> None:
    """Raises the exception that a text of ``last_error`` describes."""
    kind, _, message = text.decode("utf-8", "replace").partition(": ")
    raise RAISABLE.get(kind, KernelError)(message)


@final
class Loop:
    """A built function as the loop of a ufunc for one combination of dtypes.

    Parameters
    ----------
    function
        The function, whose arguments have the core dimensions, with one for the batch in front if
        `batched`.
    positions
        Its arguments in numpy's order, the inputs first.
    """

    def __init__(
        self,
        function: Any,
        signature: Signature,
        buffers: Sequence[Buffer],
        positions: Sequence[int],
        batched: bool,
    ) -> None:
        self._entry = function.c_function
        self.dtypes = [buffer.dtype.to_numpy() for buffer in buffers]
        numbers = {name: i for i, name in enumerate(signature.names, 1)}  # 0 is the batch
        self._dims = [
            (ctypes.c_int64 * len(names))(*map(numbers.__getitem__, names))
            for names in signature.operands
        ]
        ranks = [len(names) for names in signature.operands]
        self._operands = (_Operand * len(buffers))()
        for i, (buffer, position, rank) in enumerate(zip(buffers, positions, ranks, strict=True)):
            self._operands[i] = _Operand(
                position,
                rank,
                dtype_word(buffer.dtype),
                i >= len(signature.inputs),
                buffer.dtype.itemsize,
                ctypes.addressof(self._dims[i]),
                len(buffers) + sum(ranks[:i]),
            )
        self.data = _Loop(
            self._entry.call,
            self._entry.resource,
            self._entry.last_error,
            len(buffers),
            ctypes.addressof(self._operands),
            batched,
            2 * sum(rank + 1 for rank in ranks),
        )


# numpy/__ufunc_api.h: PyUFunc_FromFuncAndDataAndSignature is entry 31 of the table in the capsule
# _UFUNC_API, in all versions of numpy that have the capsule.
_FROM_FUNC_AND_DATA_AND_SIGNATURE = 31
_IDENTITIES = {None: -1, 0: 0, 1: 1, -1: 2}
# What numpy's ufuncs point to. A ufunc may live as long as the process, and says to nobody when it
# is freed.
_kept: list[object] = []


def make_ufunc(
    name: str, doc: str, signature: Signature, loops: Sequence[Loop], identity: int | None
) -> np.ufunc:
    """A ufunc of numpy with one loop for each combination of dtypes; it lives, with its code, to
    the end of the process."""
    if identity not in _IDENTITIES:
        raise ValueError(f"{name}: expected an identity among 0, 1, -1 and None, got {identity!r}")
    count = len(loops)
    functions = (ctypes.c_void_p * count)(*[_code().function("ufunc_loop")] * count)
    data = (ctypes.c_void_p * count)(*[ctypes.addressof(loop.data) for loop in loops])
    types = bytes(dtype.num for loop in loops for dtype in loop.dtypes)
    texts = [name.encode(), doc.encode(), signature.text.encode()]
    _kept.append((functions, data, types, texts, loops))
    plain = not signature.names
    made: np.ufunc = _from_func()(
        ctypes.addressof(functions),
        ctypes.addressof(data),
        types,
        count,
        len(signature.inputs),
        len(signature.outputs),
        _IDENTITIES[identity],
        texts[0],
        texts[1],
        0,
        None if plain else texts[2],
    )
    return made


@Once
def _from_func() -> Any:
    """``PyUFunc_FromFuncAndDataAndSignature``."""
    multiarray = import_module("numpy._core._multiarray_umath")

    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = get(("PyCapsule_GetPointer", ctypes.pythonapi))(multiarray._UFUNC_API, None)
    if not table:
        raise InternalError("gufunc: expected numpy's table of the C API of ufuncs, got none")
    entries = (ctypes.c_void_p * (_FROM_FUNC_AND_DATA_AND_SIGNATURE + 1)).from_address(table)
    address = entries[_FROM_FUNC_AND_DATA_AND_SIGNATURE] or 0
    integers = [ctypes.c_int] * 4
    pointers = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
    texts = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p]
    return ctypes.PYFUNCTYPE(ctypes.py_object, *pointers, *integers, *texts)(address)
