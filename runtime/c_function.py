"""Functions for C code: an entry that needs no GIL, leaves no exception, and takes any arguments.

A packed function is called with the GIL held and leaves a Python exception where it fails. C code
that knows nothing of Python calls :data:`CFunction.call` instead, declared in
``minitvm/c_runtime_api.h``: it checks the pointers, finds the variant for the arrays, and turns an
exception into the text of ``last_error``. A thread that has the GIL keeps it. Any other thread
takes it where Python is needed: for callbacks, to compile a variant, and for an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, final

from minitvm.runtime.arrangement import ASKS_FOR_VARIANT, FAILED_HOLDING, IS_WITHOUT_GIL
from minitvm.runtime.call_path_text import CALL_WORDS, CALLS
from minitvm.runtime.glue import RUNNING_CALL
from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import PENDING, STRUCTURES, native_text

_TEXT = r"""
; ---- Set by Python ---------------------------------------------------------------------------
@describe = global ptr null    ; the text of an exception, as bytes

; ---- The error of each thread ------------------------------------------------------------------
@key = internal global i64 0
@empty = internal constant [1 x i8] zeroinitializer
@after_the_end = internal constant [46 x i8] c"minitvm: expected Python to run, it has ended\00"
@nameless = internal constant [33 x i8] c"minitvm: an error without a text\00"

define i32 @open_errors() {
  %status = call i32 @pthread_key_create(ptr @key, ptr @free)
  ret i32 %status
}

define ptr @last_error() {
  %key = load i64, ptr @key
  %text = call ptr @pthread_getspecific(i64 %key)
  %none = icmp eq ptr %text, null
  %found = select i1 %none, ptr @empty, ptr %text
  ret ptr %found
}

define internal void @set_error(ptr %text) {
  %length = call i64 @strlen(ptr %text)
  %size = add i64 %length, 1
  %copy = call ptr @malloc(i64 %size)
  br icmp eq ptr %copy, null, label %leave, label %keep
keep:
  call void @llvm.memcpy.p0.p0.i64(ptr %copy, ptr %text, i64 %size, i1 false)
  %key = load i64, ptr @key
  %old = call ptr @pthread_getspecific(i64 %key)
  %status = call i32 @pthread_setspecific(i64 %key, ptr %copy)
  call void @free(ptr %old)
  br label %leave
leave:
  ret void
}

; ---- Calls -------------------------------------------------------------------------------------
@of_resolve = internal constant [9 x i8] c"_resolve\00"
@of_fail = internal constant [6 x i8] c"_fail\00"
@of_result = internal constant [15 x i8] c"_refuse_result\00"
@of_arguments = internal constant [4 x i8] c"nni\00"
@of_number = internal constant [2 x i8] c"i\00"

; Whether the pointers that a packed function takes on trust are there. With another count than the
; function's own, which it says itself, nothing is read.
define internal i1 @is_sound(ptr %packed, ptr %args, ptr %codes, i32 %count) {
entry:
  %n = sext i32 %count to i64
  %names = load %PackedFunc.names, ptr %packed
  br icmp ne ptr %names, null, label %compare, label %look
compare:
  %expected = call i64 @PyTuple_Size(ptr %names)
  br icmp ne i64 %expected, %n, label %sound, label %look
look:
  br icmp sgt i32 %count, 0, label %tables, label %no.arguments
no.arguments:
  %none = icmp eq i32 %count, 0
  ret i1 %none
tables:
  %no.args = icmp eq ptr %args, null
  %no.codes = icmp eq ptr %codes, null
  %no.tables = or i1 %no.args, %no.codes
  br i1 %no.tables, label %unsound, label %next
next:
  %i = phi i64 [ 0, %tables ], [ %i.next, %fine ]
  %code.at = getelementptr i32, ptr %codes, i64 %i
  %code = load i32, ptr %code.at
  switch i32 %code, label %fine [ i32 CODE_DLTENSOR_HANDLE, label %array
                                  i32 CODE_NDARRAY_HANDLE, label %array ]
array:
  %tensor.at = getelementptr ptr, ptr %args, i64 %i
  %tensor = load ptr, ptr %tensor.at
  br icmp eq ptr %tensor, null, label %fine, label %dims
dims:
  %ndim = load %DLTensor.ndim, ptr %tensor
  %shape = load %DLTensor.shape, ptr %tensor
  %scalar = icmp eq i32 %ndim, 0
  %shaped = icmp ne ptr %shape, null
  %there = or i1 %scalar, %shaped
  br i1 %there, label %fine, label %unsound
fine:
  %i.next = add i64 %i, 1
  br icmp eq i64 %i.next, %n, label %sound, label %next
sound:
  ret i1 true
unsound:
  ret i1 false
}

; The packed function, or the first variant of it that takes these arrays, without the GIL:
; FAILED_HOLDING with an exception pending and the GIL held, its state in %ret; or another status,
; of a call that has to be made with the GIL.
define internal i32 @run_without_gil(ptr %packed, ptr %args, ptr %codes, i32 %count, ptr %ret,
                                     ptr %ret_code) {
entry:
  %resource = load %PackedFunc.resource, ptr %packed
  %variants = load %PackedFunc.variants, ptr %packed
  br icmp eq ptr %variants, null, label %leave, label %check
check:
  %sound = call i1 @is_sound(ptr %packed, ptr %args, ptr %codes, i32 %count)
  br i1 %sound, label %try, label %leave
try:
  %at = phi ptr [ %variants, %check ], [ %at.next, %again ]
  %variant = load ptr, ptr %at
  br icmp eq ptr %variant, null, label %leave, label %call
call:
  store i32 ASKS_WITHOUT_GIL, ptr %ret_code
  %status = call i32 %variant(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code,
                              ptr %resource)
  br icmp eq i32 %status, VARIANT, label %again, label %leave
again:
  %at.next = getelementptr ptr, ptr %at, i64 1
  br label %try
leave:
  %final = phi i32 [ VARIANT, %entry ], [ VARIANT, %check ], [ VARIANT, %try ], [ %status, %call ]
  ret i32 %final
}

; Whether a function runs without the GIL: in a thread that doesn't have it, if it never calls back.
define internal i1 @spares_gil(ptr %packed) {
  %calls_back = load %PackedFunc.calls_back, ptr %packed
  %held = call i32 @PyGILState_Check()
  %alone = icmp eq i64 %calls_back, 0
  %free = icmp eq i32 %held, 0
  %both = and i1 %alone, %free
  ret i1 %both
}

; The packed function, or the variant of it that takes these arrays: 0, or something else with or
; without an exception pending.
define internal i32 @attempt(ptr %self, ptr %packed, ptr %args, ptr %codes, i32 %count, ptr %value,
                             ptr %code) {
entry:
  %sound = call i1 @is_sound(ptr %packed, ptr %args, ptr %codes, i32 %count)
  br i1 %sound, label %run, label %resolve
run:
  %status = call i32 @run(ptr %packed, ptr %args, ptr %codes, i32 %count, ptr %value, ptr %code)
  br icmp eq i32 %status, VARIANT, label %resolve, label %leave
resolve:
  %found = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(ptr %self, ptr @of_resolve,
      ptr @of_arguments, ptr %args, ptr %codes, i32 %count)
  br icmp eq ptr %found, null, label %leave, label %read
read:
  %chosen = call ptr @PyLong_AsVoidPtr(ptr %found)
  call void @Py_DecRef(ptr %found)
  store i32 CODE_NULL, ptr %code
  %resource = load %PackedFunc.resource, ptr %packed
  %chosen.status = call i32 %chosen(ptr %args, ptr %codes, i32 %count, ptr %value, ptr %code,
                                    ptr %resource)
  br label %leave
leave:
  %final = phi i32 [ %status, %run ], [ -1, %resolve ], [ %chosen.status, %read ]
  ret i32 %final
}

; As `attempt`, as a call of its own to the callbacks below it. A result that is a pointer would
; have no owner.
define internal i32 @run_alone(ptr %self, ptr %args, ptr %codes, i32 %count, ptr %value,
                               ptr %code) {
entry:
  %outer = alloca ptr
  %packed = getelementptr i8, ptr %self, i64 HEADER
  %foreign = load %PackedFunc.calls_back, ptr %packed
  %is.foreign = icmp ne i64 %foreign, 0
  %begun = call i1 @begin(i1 %is.foreign, ptr %outer)
  br i1 %begun, label %go, label %fail
go:
  %status = call i32 @attempt(ptr %self, ptr %packed, ptr %args, ptr %codes, i32 %count,
                              ptr %value, ptr %code)
  call void @end(ptr %outer)
  br icmp eq i32 %status, 0, label %result, label %failed
result:
  %kind = load i32, ptr %code
  br icmp ule i32 %kind, CODE_DEVICE, label %leave, label %refuse
refuse:
  %refused = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(ptr %self, ptr @of_result,
      ptr @of_number, i32 %kind)
  br label %fail
failed:
  %pending = call ptr @PyErr_Occurred()
  br icmp eq ptr %pending, null, label %explain, label %fail
explain:
  %explained = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(ptr %self, ptr @of_fail,
      ptr @of_number, i32 %status)
  br label %fail
fail:
  ret i32 -1
leave:
  ret i32 0
}

; The pending exception becomes the thread's text.
define internal void @keep_error() {
  %pending = alloca %Pending
  call void @set_aside(ptr %pending)
  %value.at = getelementptr %Pending.value, ptr %pending
  %traceback.at = getelementptr %Pending.traceback, ptr %pending
  call void @PyErr_NormalizeException(ptr %pending, ptr %value.at, ptr %traceback.at)
  %describe = load ptr, ptr @describe
  %error = load ptr, ptr %value.at
  %text = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %describe, ptr %error, ptr null)
  %type = load %Pending.type, ptr %pending
  call void @Py_DecRef(ptr %type)
  call void @Py_DecRef(ptr %error)
  %traceback = load ptr, ptr %traceback.at
  call void @Py_DecRef(ptr %traceback)
  br icmp eq ptr %text, null, label %unknown, label %known
unknown:
  call void @PyErr_Clear()
  call void @set_error(ptr @nameless)
  ret void
known:
  %characters = call ptr @PyBytes_AsString(ptr %text)
  call void @set_error(ptr %characters)
  call void @Py_DecRef(ptr %text)
  ret void
}

; The packed signature, with the PackedFunc as the resource.
define i32 @call_from_c(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code, ptr %self) {
entry:
  %value = alloca i64
  %code = alloca i32
  %pending = alloca %Pending
  store i64 0, ptr %value
  store i32 CODE_NULL, ptr %code
  %initialized = call i32 @Py_IsInitialized()
  br icmp eq i32 %initialized, 0, label %gone, label %look
gone:
  call void @set_error(ptr @after_the_end)
  ret i32 -1
look:
  %packed = getelementptr i8, ptr %self, i64 HEADER
  %spares = call i1 @spares_gil(ptr %packed)
  br i1 %spares, label %run, label %take
run:
  %free.status = call i32 @run_without_gil(ptr %packed, ptr %args, ptr %codes, i32 %count,
                                           ptr %value, ptr %code)
  switch i32 %free.status, label %again [ i32 0, label %give.results  i32 HOLDING, label %holding ]
give.results:
  store i64 0, ptr %value
  br label %returns
holding:
  %state = load i32, ptr %value
  call void @keep_error()
  store i64 0, ptr %value
  store i32 CODE_NULL, ptr %code
  call void @PyGILState_Release(i32 %state)
  br label %returns
again:  ; nothing was written; an error that was set is set again
  %gil.again = call i32 @PyGILState_Ensure()
  call void @PyErr_Clear()
  store i64 0, ptr %value
  store i32 CODE_NULL, ptr %code
  br label %with.gil
take:
  %gil.taken = call i32 @PyGILState_Ensure()
  br label %with.gil
with.gil:
  %gil = phi i32 [ %gil.again, %again ], [ %gil.taken, %take ]
  call void @set_aside(ptr %pending)
  call void @Py_IncRef(ptr %self)
  %status = call i32 @run_alone(ptr %self, ptr %args, ptr %codes, i32 %count, ptr %value, ptr %code)
  br icmp ne i32 %status, 0, label %fail, label %leave
fail:
  call void @keep_error()
  store i64 0, ptr %value
  store i32 CODE_NULL, ptr %code
  br label %leave
leave:
  call void @Py_DecRef(ptr %self)
  call void @bring_back(ptr %pending)
  call void @PyGILState_Release(i32 %gil)
  br label %returns
returns:
  %result = phi i32 [ %status, %leave ], [ 0, %give.results ], [ -1, %holding ]
  br icmp eq ptr %ret, null, label %give.code, label %give.value
give.value:
  %v = load i64, ptr %value
  store i64 %v, ptr %ret
  br label %give.code
give.code:
  br icmp eq ptr %ret_code, null, label %return, label %give
give:
  %c = load i32, ptr %code
  store i32 %c, ptr %ret_code
  br label %return
return:
  ret i32 %result
}
"""

_WORDS = {
    **CALL_WORDS,
    "ASKS_WITHOUT_GIL": ASKS_FOR_VARIANT | IS_WITHOUT_GIL,
    "HOLDING": FAILED_HOLDING,
}


@final
class CFunction(ctypes.Structure):
    """``MiniTVMFunction`` of the header: a function as C calls it.

    It keeps the function alive, and has to live as long as C uses it. Give C its address:
    ``ctypes.byref(f.c_function)``.

    >>> from minitvm.runtime import PackedFunc
    >>> twice = PackedFunc(lambda x: 2 * x).c_function
    >>> bool(twice.call and twice.resource and twice.last_error)
    True
    """

    _fields_ = (
        ("call", ctypes.c_void_p),
        ("resource", ctypes.c_void_p),
        ("last_error", ctypes.c_void_p),
    )

    def __init__(self, function: Any, place_of_running_call: Mapping[str, object]) -> None:
        """`function` is a PackedFunc; the place is as for ``CallPath.keep_running_call``."""
        code = _code()
        code.set_objects(**place_of_running_call)
        super().__init__(code.function("call_from_c"), id(function), code.function("last_error"))
        self.function = function


def c_function_text() -> str:
    """The LLVM IR of calls by C code."""
    return native_text(STRUCTURES + PENDING + RUNNING_CALL + CALLS + _TEXT, _WORDS)


@Once
def _code() -> NativeCode:
    code = NativeCode(c_function_text())
    code.set_objects(describe=_describe, none=None)
    if ctypes.PYFUNCTYPE(ctypes.c_int)(code.function("open_errors"))():
        raise MemoryError("c_function: expected a key for the errors of threads, got none")
    return code


def _describe(error: BaseException) -> bytes:
    """The text of an exception that ``last_error`` gives to C."""
    text = f"{type(error).__name__}: {error}".replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace")
