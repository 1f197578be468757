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

_PAGE = """
describe: ptr  # set by Python: the text of an exception, as bytes

# ---- The error of each thread ------------------------------------------------------------------
key: internal[i64]

@export
def open_errors() -> i32:
    return pthread_key_create(at(key), free)

@export
def last_error() -> ptr:
    text = pthread_getspecific(key)
    return text if text else ""

def set_error(text: ptr):
    size = strlen(text) + 1
    copy = malloc(size)
    if copy:
        memcpy(copy, text, size)
        old = pthread_getspecific(key)
        pthread_setspecific(key, copy)
        free(old)

# ---- Calls -------------------------------------------------------------------------------------
# Whether the pointers that a packed function takes on trust are there. With another count than the
# function's own, which it says itself, nothing is read.
def is_sound(packed: ptr[PackedFunc], args: ptr[ptr[DLTensor]], codes: ptr[i32], count: i32) -> i1:
    if packed.names and PyTuple_Size(packed.names) != i64(count):
        return True
    if count <= 0:
        return count == 0
    if not args or not codes:
        return False
    for i in range(i64(count)):
        if codes[i] == CODE_DLTENSOR_HANDLE or codes[i] == CODE_NDARRAY_HANDLE:
            if args[i] and args[i].ndim and not args[i].shape:
                return False
    return True

# The packed function, or the first variant of it that takes these arrays, without the GIL:
# FAILED_HOLDING with an exception pending and the GIL held, its state in `ret`; or another status,
# of a call that has to be made with the GIL.
def run_without_gil(
    packed: ptr[PackedFunc], args: ptr, codes: ptr, count: i32, ret: ptr, ret_code: ptr[i32]
) -> i32:
    variant = packed.variants
    if variant and is_sound(packed, args, codes, count):
        while variant[0]:
            ret_code[0] = ASKS_WITHOUT_GIL
            status = call(i32, variant[0], args, codes, count, ret, ret_code, packed.resource)
            if status != VARIANT:
                return status
            variant += 1
    return VARIANT

# The packed function, or the variant of it that takes these arrays: 0, or something else with or
# without an exception pending.
def attempt(
    self: ptr, packed: ptr[PackedFunc], args: ptr, codes: ptr, count: i32, value: ptr,
    code: ptr[i32],
) -> i32:
    if is_sound(packed, args, codes, count):
        status = run(packed, args, codes, count, value, code)
        if status != VARIANT:
            return status
    found = PyObject_CallMethod(self, "_resolve", "nni", args, codes, count)
    if not found:
        return -1
    chosen = PyLong_AsVoidPtr(found)
    Py_DecRef(found)
    code[0] = CODE_NULL
    return call(i32, chosen, args, codes, count, value, code, packed.resource)

# As `attempt`, as a call of its own to the callbacks below it. A result that is a pointer would
# have no owner.
def run_alone(self: ptr, args: ptr, codes: ptr, count: i32, value: ptr, code: ptr[i32]) -> i32:
    packed = ptr[PackedFunc](self + HEADER)
    outer = alloca(ptr)
    if not begin(packed.calls_back != 0, outer):
        return -1
    status = attempt(self, packed, args, codes, count, value, code)
    end(outer)
    if status == 0:
        if u32(code[0]) <= CODE_DEVICE:
            return 0
        PyObject_CallMethod(self, "_refuse_result", "i", code[0])
    elif not PyErr_Occurred():
        PyObject_CallMethod(self, "_fail", "i", status)
    return -1

# The pending exception becomes the thread's text.
def keep_error():
    pending = alloca(Pending)
    set_aside(pending)
    PyErr_NormalizeException(pending, at(pending.value), at(pending.traceback))
    text = PyObject_CallFunctionObjArgs(describe, pending.value, None)
    Py_DecRef(pending.type)
    Py_DecRef(pending.value)
    Py_DecRef(pending.traceback)
    if text:
        set_error(PyBytes_AsString(text))
        Py_DecRef(text)
    else:
        PyErr_Clear()
        set_error("minitvm: an error without a text")

# The packed signature, with the PackedFunc as the resource. A function that never calls back runs
# without the GIL in a thread that doesn't have it.
@export
def call_from_c(
    args: ptr, codes: ptr, count: i32, ret: ptr[i64], ret_code: ptr[i32], self: ptr
) -> i32:
    if not Py_IsInitialized():
        set_error("minitvm: expected Python to run, it has ended")
        return -1
    packed = ptr[PackedFunc](self + HEADER)
    value = alloca(i64)
    code = alloca(i32)
    value[0] = 0
    code[0] = CODE_NULL
    status: i32 = VARIANT
    spares_gil = packed.calls_back == 0 and PyGILState_Check() == 0
    if spares_gil:
        status = run_without_gil(packed, args, codes, count, value, code)
        if status == HOLDING:
            state = i32(value[0])
            keep_error()
            PyGILState_Release(state)
            status = -1
        elif status != 0:
            status = VARIANT
        value[0] = 0
        if status:
            code[0] = CODE_NULL
    if status == VARIANT:
        gil = PyGILState_Ensure()
        if spares_gil:  # nothing was written; an error that was set is set again
            PyErr_Clear()
        pending = alloca(Pending)
        set_aside(pending)
        Py_IncRef(self)
        status = run_alone(self, args, codes, count, value, code)
        if status:
            keep_error()
            value[0] = 0
            code[0] = CODE_NULL
        Py_DecRef(self)
        bring_back(pending)
        PyGILState_Release(gil)
    if ret:
        ret[0] = value[0]
    if ret_code:
        ret_code[0] = code[0]
    return status
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
    return native_text(STRUCTURES + PENDING + RUNNING_CALL + CALLS + _PAGE, _WORDS)


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
