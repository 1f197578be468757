"""The LLVM IR of the call path: from CPython's vectorcall to a packed function.

``call`` turns each argument into a ``TVMValue`` and its type code on its stack, by a *route* that
the argument's exact type chooses from one table, calls the packed function, and turns the result
into a Python object. Where it meets an unknown value or type, it hands the call, untouched, to
``PackedFunc._call_slowly``. That Python code gives the same results, and all messages about
arguments that can't be converted.
"""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum

import minitvm.runtime.foreign as foreign
from minitvm.runtime.arguments_text import ARGUMENTS
from minitvm.runtime.arrangement import ASKS_FOR_VARIANT, NEEDS_VARIANT
from minitvm.runtime.cases_text import CASES, CASES_WORDS
from minitvm.runtime.glue import RUNNING_CALL
from minitvm.runtime.heap_types import HEADER
from minitvm.runtime.native_text import NAMES, PENDING, STRUCTURES, TENSORS, native_text
from minitvm.runtime.outputs_text import OUTPUTS, OUTPUTS_WORDS
from minitvm.runtime.returning_text import RETURNING, RETURNING_STRUCTURES, RETURNING_WORDS
from minitvm.runtime.torch_calls_text import TORCH_CALLS, TORCH_CALLS_WORDS
from minitvm.runtime.values import ArgTypeCode

MOST_ARGUMENTS = 24  # the most arguments of a call by this path, and the size of its frame
_MOST_STRIDES = 128
MOST_ROUTES = 32
DTYPE_NUMBERS = 1024  # the numbers of numpy's dtypes; libraries' own begin at 256


class StoredFunction(ctypes.Structure):
    """The fields of a PackedFunc that compiled code reads, in the object itself. A handle points to
    the first two."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("resource", ctypes.c_void_p),
        ("variants", ctypes.c_void_p),  # NULL, or the variants made so far, up to a NULL
        ("names", ctypes.c_void_p),  # NULL, or the tuple of the arguments' names, interned
        ("written", ctypes.c_int64),  # a bit for each argument
        ("calls_back", ctypes.c_int64),  # whether Python or foreign code may be called
    )


class Route(IntEnum):
    """The conversion of arguments of one type."""

    NUMPY = 1  # an array, read in place
    NDARRAY = 2  # ours: the DLTensor lies in the object
    EXCHANGE = 3  # an array whose type has DLPack's C exchange API
    TORCH = 4  # the same for torch, some of whose tensors must not be read in place
    BOOL = 5
    INT = 6
    FLOAT = 7
    STR = 8
    BYTES = 9
    NONE = 10
    POINTER = 11  # ctypes.c_void_p
    CONSTANT = 12  # a DType or Device: looked up in a dictionary of values
    STORED = 13  # the handle is the address of the object's storage
    ITSELF = 14  # the handle is the object


# The common part of a call by Python code and a call by C code.
CALLS = r"""
; The fields of a PackedFunc (call_path_text.StoredFunction).
%PackedFunc = type {
  ptr function, ptr resource, ptr variants, ptr names, i64 written, i64 calls_back
}

@none = global ptr null

; Begins a call for the Python functions that a packed function calls, if it calls any; `end`
; returns to the call before. False with an exception pending.
define internal i1 @begin(i1 %calls.back, ptr %outer) alwaysinline {
  store ptr null, ptr %outer
  br i1 %calls.back, label %begin, label %good
begin:
  %none = load ptr, ptr @none
  %before = call ptr @begin_call(ptr %none)
  store ptr %before, ptr %outer
  br icmp eq ptr %before, null, label %bad, label %good
good:
  ret i1 true
bad:
  ret i1 false
}

define internal void @end(ptr %outer) alwaysinline {
  %before = load ptr, ptr %outer
  br icmp ne ptr %before, null, label %end, label %leave
end:
  call void @end_call(ptr %before)
  br label %leave
leave:
  ret void
}

; Calls the packed function, or its first variant that takes these arrays; VARIANT if none does.
define internal i32 @run(ptr %packed, ptr %args, ptr %codes, i32 %count, ptr %ret,
                         ptr %ret_code) {
entry:
  %resource = load %PackedFunc.resource, ptr %packed
  %variants = load %PackedFunc.variants, ptr %packed
  br icmp eq ptr %variants, null, label %one, label %try
one:
  %function = load %PackedFunc.function, ptr %packed
  store i32 CODE_NULL, ptr %ret_code
  %one.status = call i32 %function(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code,
                                   ptr %resource)
  %reserved = icmp eq i32 %one.status, VARIANT
  %plain.status = select i1 %reserved, i32 -1, i32 %one.status
  ret i32 %plain.status
try:
  %at = phi ptr [ %variants, %entry ], [ %at.next, %again ]
  %variant = load ptr, ptr %at
  br icmp eq ptr %variant, null, label %leave, label %call
call:
  store i32 ASKS, ptr %ret_code
  %status = call i32 %variant(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code,
                              ptr %resource)
  br icmp eq i32 %status, VARIANT, label %again, label %leave
again:
  %at.next = getelementptr ptr, ptr %at, i64 1
  br label %try
leave:
  %final = phi i32 [ VARIANT, %try ], [ %status, %call ]
  ret i32 %final
}
"""

CALL_WORDS = {
    "ASKS": ASKS_FOR_VARIANT,
    "HEADER": HEADER,
    "VARIANT": NEEDS_VARIANT,
    **{f"CODE_{code.name}": int(code) for code in ArgTypeCode},
}

_TEXT = r"""
%Result = type { i64 value, i32 code }

; A route, as Python code writes it (call_path.Row).
%Route = type {
  ptr type,       ; whose objects take the route
  i32 route,
  i32 code,       ; the type code, of STORED, ITSELF and CONSTANT
  ptr function,   ; dltensor_from_py_object_no_sync, of EXCHANGE and TORCH
  ptr managed,    ; managed_tensor_from_py_object_no_sync, of EXCHANGE
  ptr allocate,   ; managed_tensor_allocator and managed_tensor_to_py_object_no_sync of arrays with
  ptr to_object   ; an exchange API, or null
}

; The arguments of one call, as C has them.
%Frame = type {
  [ARGUMENTS x i64] values,
  [ARGUMENTS x i32] codes,
  [ARGUMENTS x %DLTensor] tensors,  ; or a TVMByteArray each
  [STRIDES x i64] strides,
  i64 strides_used,
  i32 recording  ; 0: refuses tensors that torch records; 1: takes them, and becomes 2
}

; ---- Set by Python ---------------------------------------------------------------------------
@routes = global [ROUTES x %Route] zeroinitializer     ; up to one of no type
@dtypes = global [DTYPES x i32] zeroinitializer        ; the DLDataType of numpy's type numbers
@constants = global ptr null                           ; dict: DType or Device to its 8 bytes
@true = global ptr null
@call_slowly = global ptr null                         ; names of methods of PackedFunc
@fail = global ptr null
@take = global ptr null
@requires_grad = global ptr null                       ; names of attributes of torch's tensors
@forward_ad = global ptr null                          ; torch.autograd.forward_ad
@current_level = global ptr null                       ; the name of its attribute
@is_grad_enabled = global ptr null                     ; torch.is_grad_enabled
@is_neg = global ptr null
@is_conj = global ptr null
@torch_managed = global ptr null                       ; of torch: managed_tensor_from_py_object_...
@array_of = global ptr null                            ; PyObject* (DLManagedTensorVersioned*)
@dlpack = global ptr null                              ; the name of a method, its argument, and the
@version = global ptr null                             ; tuple of the name of that,
@keywords = global ptr null
@exception = global ptr null                           ; the classes Exception, AttributeError
@attribute_error = global ptr null
; The offsets of the TensorImpl in a torch tensor, and of the dispatch keys and the autograd state
; in the TensorImpl; 0: unknown. Then the keys of plain tensors, in and out of inference mode.
@torch_fields = global [3 x i64] zeroinitializer
@torch_plain = global [2 x i64] zeroinitializer

; ---- Calls -----------------------------------------------------------------------------------
; Puts the arguments of a call into a new frame, each at its place (null: in their order). False:
; an argument is of an unknown kind. %recording: see `is_plain`.
define internal i1 @encode_all(ptr %arguments, i64 %n, ptr %places, ptr %packed, i32 %recording,
                               ptr %frame) alwaysinline {
entry:
  store %Frame.strides_used 0, ptr %frame
  store %Frame.recording %recording, ptr %frame
  %written = load %PackedFunc.written, ptr %packed
  %foreign = load %PackedFunc.calls_back, ptr %packed
  %is.foreign = icmp ne i64 %foreign, 0
  %in.order = icmp eq ptr %places, null
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %encode ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %n, label %good, label %one
one:
  %argument.at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument.at
  br i1 %in.order, label %encode, label %look
look:
  %place.at = getelementptr i64, ptr %places, i64 %i
  %its.place = load i64, ptr %place.at
  br label %encode
encode:
  %place = phi i64 [ %i, %one ], [ %its.place, %look ]
  %known = call i1 @encode(ptr %argument, i64 %place, ptr %frame, i64 %written, i1 %is.foreign)
  br i1 %known, label %next, label %bad
good:
  ret i1 true
bad:
  ret i1 false
}

; PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
define ptr @call(ptr %self, ptr %args, i64 %flagged, ptr %keywords) {
entry:
  %frame = alloca %Frame
  %bound = alloca [ARGUMENTS x ptr]
  %result = alloca %Result
  %outer = alloca ptr
  %packed = getelementptr i8, ptr %self, i64 HEADER
  %positional = and i64 %flagged, 9223372036854775807
  br icmp eq ptr %keywords, null, label %count, label %bind
bind:
  %names = load %PackedFunc.names, ptr %packed
  %all = call i64 @bind(ptr %names, ptr %args, i64 %positional, ptr %keywords, ptr %bound)
  br label %count
count:
  %n = phi i64 [ %positional, %entry ], [ %all, %bind ]
  %arguments = phi ptr [ %args, %entry ], [ %bound, %bind ]
  br icmp ugt i64 %n, ARGUMENTS, label %slow, label %encode
encode:
  %encoded = call i1 @encode_all(ptr %arguments, i64 %n, ptr null, ptr %packed, i32 0, ptr %frame)
  br i1 %encoded, label %run, label %slow

run:
  %foreign = load %PackedFunc.calls_back, ptr %packed
  %is.foreign = icmp ne i64 %foreign, 0
  %short = trunc i64 %n to i32
  %codes = getelementptr %Frame.codes, ptr %frame
  %code = getelementptr %Result.code, ptr %result
  %begun = call i1 @begin(i1 %is.foreign, ptr %outer)
  br i1 %begun, label %ready, label %raise
ready:
  %status = call i32 @run(ptr %packed, ptr %frame, ptr %codes, i32 %short, ptr %result, ptr %code)
  switch i32 %status, label %failed [ i32 0, label %take i32 VARIANT, label %end ]
take:
  %taken = call ptr @take_result(ptr %self, ptr %arguments, i32 %short, ptr %result)
  br label %end
failed:
  call void @explain(ptr %self, i32 %status)
  br label %end
end:
  %returned = phi ptr [ %taken, %take ], [ null, %failed ], [ null, %ready ]
  call void @end(ptr %outer)
  br icmp eq i32 %status, VARIANT, label %slow, label %return
return:
  ret ptr %returned
raise:
  ret ptr null

slow:
  %handed = call ptr @hand_over(ptr %self, ptr %args, i64 %positional, ptr %keywords)
  ret ptr %handed
}

; The result of a call that returned 0, as a Python object.
define internal ptr @take_result(ptr %self, ptr %arguments, i32 %n, ptr %result) {
  %code = load %Result.code, ptr %result
  switch i32 %code, label %other [
    i32 CODE_NULL, label %none
    i32 CODE_INT, label %int
    i32 CODE_FLOAT, label %float
  ]
none:
  %none.object = load ptr, ptr @none
  call void @Py_IncRef(ptr %none.object)
  ret ptr %none.object
int:
  %integer = load i64, ptr %result
  %integer.object = call ptr @PyLong_FromLongLong(i64 %integer)
  ret ptr %integer.object
float:
  %number = load double, ptr %result
  %number.object = call ptr @PyFloat_FromDouble(double %number)
  ret ptr %number.object
other:
  %count = zext i32 %n to i64
  %room = add i64 %count, 2
  %method.args = alloca ptr, i64 %room
  store ptr %self, ptr %method.args
  %address = ptrtoint ptr %result to i64
  %address.object = call ptr @PyLong_FromLongLong(i64 %address)
  br icmp eq ptr %address.object, null, label %raise, label %ask
ask:
  %address.at = getelementptr ptr, ptr %method.args, i64 1
  store ptr %address.object, ptr %address.at
  %rest.at = getelementptr ptr, ptr %method.args, i64 2
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest.at, ptr %arguments, i64 %bytes, i1 false)
  %name = load ptr, ptr @take
  %taken = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %method.args, i64 %room, ptr null)
  call void @Py_DecRef(ptr %address.object)
  ret ptr %taken
raise:
  ret ptr null
}

; Sets the error of a function that failed, unless it has set one.
define internal void @explain(ptr %self, i32 %status) {
entry:
  %method.args = alloca [2 x ptr]
  %pending = call ptr @PyErr_Occurred()
  br icmp eq ptr %pending, null, label %name, label %leave
name:
  %wide = sext i32 %status to i64
  %number = call ptr @PyLong_FromLongLong(i64 %wide)
  br icmp eq ptr %number, null, label %leave, label %ask
ask:
  store ptr %self, ptr %method.args
  %number.at = getelementptr ptr, ptr %method.args, i64 1
  store ptr %number, ptr %number.at
  %fail = load ptr, ptr @fail
  %never = call ptr @PyObject_VectorcallMethod(ptr %fail, ptr %method.args, i64 2, ptr null)
  call void @Py_DecRef(ptr %number)
  br label %leave
leave:
  ret void
}

; self._call_slowly(*args, **keywords); null where an error is pending already
define internal ptr @hand_over(ptr %self, ptr %args, i64 %positional, ptr %keywords) noinline {
entry:
  %pending = call ptr @PyErr_Occurred()
  br icmp ne ptr %pending, null, label %raise, label %look
raise:
  ret ptr null
look:
  br icmp eq ptr %keywords, null, label %copy, label %named
named:
  %names = call i64 @PyTuple_Size(ptr %keywords)
  br label %copy
copy:
  %count.named = phi i64 [ 0, %look ], [ %names, %named ]
  %count = add i64 %positional, %count.named
  %room = add i64 %count, 1
  %bytes = mul i64 %room, 8
  %method.args = call ptr @PyMem_Malloc(i64 %bytes)
  br icmp eq ptr %method.args, null, label %fail, label %hand
hand:
  store ptr %self, ptr %method.args
  %rest.at = getelementptr ptr, ptr %method.args, i64 1
  %bytes.given = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest.at, ptr %args, i64 %bytes.given, i1 false)
  %name = load ptr, ptr @call_slowly
  %method.positional = add i64 %positional, 1
  %returned = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %method.args,
                                                  i64 %method.positional, ptr %keywords)
  call void @PyMem_Free(ptr %method.args)
  ret ptr %returned
fail:
  %never = call ptr @PyErr_NoMemory()
  ret ptr null
}

; The field of a Module: the PackedFunc that a call of the module calls.
define ptr @call_entry(ptr %self, ptr %args, i64 %flagged, ptr %keywords) {
  %entry.at = getelementptr i8, ptr %self, i64 HEADER
  %entry = load ptr, ptr %entry.at
  %returned = call ptr @call(ptr %entry, ptr %args, i64 %flagged, ptr %keywords)
  ret ptr %returned
}
"""


def call_path_text(type_offset: int) -> str:
    """The LLVM IR of the call path, where an object's type lies `type_offset` bytes in."""
    words = {
        **CALL_WORDS,
        **RETURNING_WORDS,
        **OUTPUTS_WORDS,
        **CASES_WORDS,
        **TORCH_CALLS_WORDS,
        "ARGUMENTS": MOST_ARGUMENTS,
        "MORE": MOST_ARGUMENTS + 1,
        "DTYPES": DTYPE_NUMBERS,
        "FOREIGN_ORDER": ord(">" if sys.byteorder == "little" else "<"),
        "ROUTES": MOST_ROUTES,
        "STRIDES": _MOST_STRIDES,
        "TYPE": type_offset,
        **{f"ROUTE_{route.name}": int(route) for route in Route},
        **{f"NUMPY_{field.upper()}": at for field, at in foreign.NUMPY_FIELDS.items()},
    }
    shared = STRUCTURES + TENSORS + NAMES + PENDING + RUNNING_CALL + CALLS
    returning = RETURNING_STRUCTURES + OUTPUTS + RETURNING + CASES + TORCH_CALLS
    return native_text(shared + _TEXT + ARGUMENTS + returning, words)
