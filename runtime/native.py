"""The runtime's own machine code: what has to run where Python code must not.

Deleters and capsule destructors run in any thread and under a pending exception. And what goes
wrong in a Python function that compiled code calls has to reach the thread, wherever it goes wrong:
a callback of ctypes would print and drop what is raised before its first line (by a signal, or for
want of stack), and return the 0 that says that all is well. Both are a page of LLVM IR, compiled on
first use, and kept for the next process.

The engine is never disposed of: a framework may hold one of our deleters until the process ends.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from typing import final

from llvmlite.binding import ffi

from minitvm.runtime.host import host
from minitvm.runtime.object_code import LoadedCode, host_machine, native_object, provide
from minitvm.runtime.record import record

# What the glue calls in CPython: name, and the IR type of the function.
_PYTHON_API = {
    "PyCapsule_GetPointer": "ptr (ptr, ptr)",
    "PyCapsule_IsValid": "i32 (ptr, ptr)",
    "PyErr_Fetch": "void (ptr, ptr, ptr)",
    "PyErr_Restore": "void (ptr, ptr, ptr)",
    "PyGILState_Ensure": "i32 ()",
    "PyGILState_Release": "void (i32)",
    "PyLong_AsLong": "i64 (ptr)",
    "PyMem_RawFree": "void (ptr)",
    "PyObject_CallFunction": "ptr (ptr, ptr, ...)",
    "PyObject_CallFunctionObjArgs": "ptr (ptr, ...)",
    "PyObject_GetAttr": "ptr (ptr, ptr)",
    "PyObject_GetBuffer": "i32 (ptr, ptr, i32)",
    "PyObject_SetAttr": "i32 (ptr, ptr, ptr)",
    "Py_DecRef": "void (ptr)",
    "Py_IsInitialized": "i32 ()",
}
# Of the symbols, which are global to the process's LLVM.
_PREFIX = "minitvm_runtime_"
_NAME = re.compile(r"@(?!llvm\.)")  # LLVM's intrinsics keep their names

_GLUE = r"""
; ---- DLPack: names, deleters, destructors ---------------------------------------------------
; A capsule keeps the address of its name, so the names live here, as long as the process.
@name_legacy = constant [9 x i8] c"dltensor\00"
@name_versioned = constant [19 x i8] c"dltensor_versioned\00"
@name_used_legacy = constant [14 x i8] c"used_dltensor\00"
@name_used_versioned = constant [24 x i8] c"used_dltensor_versioned\00"

; Drops the owner and the block that holds the managed tensor, its shape and its strides.
define internal void @release(ptr %block, ptr %owner) {
  %initialized = call i32 @Py_IsInitialized()
  %finalized = icmp eq i32 %initialized, 0
  br i1 %finalized, label %leave, label %drop
drop:
  %type = alloca ptr
  %value = alloca ptr
  %traceback = alloca ptr
  %gil = call i32 @PyGILState_Ensure()
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %traceback)
  call void @Py_DecRef(ptr %owner)
  call void @PyMem_RawFree(ptr %block)
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b = load ptr, ptr %traceback
  call void @PyErr_Restore(ptr %t, ptr %v, ptr %b)
  call void @PyGILState_Release(i32 %gil)
  br label %leave
leave:
  ret void
}

define void @delete_legacy(ptr %managed) {
  %slot = getelementptr i8, ptr %managed, i64 48
  %owner = load ptr, ptr %slot
  call void @release(ptr %managed, ptr %owner)
  ret void
}

define void @delete_versioned(ptr %managed) {
  %slot = getelementptr i8, ptr %managed, i64 8
  %owner = load ptr, ptr %slot
  call void @release(ptr %managed, ptr %owner)
  ret void
}

; A capsule that nobody consumed still has its unused name; a consumed one is the consumer's.
define void @destroy_legacy(ptr %capsule) {
  %unused = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @name_legacy)
  %consumed = icmp eq i32 %unused, 0
  br i1 %consumed, label %leave, label %drop
drop:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @name_legacy)
  call void @delete_legacy(ptr %managed)
  br label %leave
leave:
  ret void
}

define void @destroy_versioned(ptr %capsule) {
  %unused = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @name_versioned)
  %consumed = icmp eq i32 %unused, 0
  br i1 %consumed, label %leave, label %drop
drop:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @name_versioned)
  call void @delete_versioned(ptr %managed)
  br label %leave
leave:
  ret void
}

; The destructor of our own capsules, which own a managed tensor of another library: calls its
; deleter, at byte %at, if there is one.
define internal void @delete_foreign(ptr %capsule, ptr %name, i64 %at) {
  %type = alloca ptr
  %value = alloca ptr
  %traceback = alloca ptr
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %traceback)
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr %name)
  %deleter.at = getelementptr i8, ptr %managed, i64 %at
  %deleter = load ptr, ptr %deleter.at
  %none = icmp eq ptr %deleter, null
  br i1 %none, label %leave, label %delete
delete:
  call void %deleter(ptr %managed)
  br label %leave
leave:
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b = load ptr, ptr %traceback
  call void @PyErr_Restore(ptr %t, ptr %v, ptr %b)
  ret void
}

define void @disown_legacy(ptr %capsule) {
  call void @delete_foreign(ptr %capsule, ptr @name_used_legacy, i64 56)
  ret void
}

define void @disown_versioned(ptr %capsule) {
  call void @delete_foreign(ptr %capsule, ptr @name_used_versioned, i64 16)
  ret void
}

; ---- Calls from compiled code into Python ---------------------------------------------------
; What Python fills in: the functions that do the work, the class Loan, and the place of the running
; call: an attribute of a threading.local.
@answer = global ptr null
@answer_global = global ptr null
@share_elements = global ptr null
@loan = global ptr null
@over = global ptr null        ; a name
@true = global ptr null
@thread = global ptr null
@running = global ptr null     ; a name

@of_object = internal constant [8 x i8] c"OOnninn\00"
@of_name = internal constant [8 x i8] c"sOnninn\00"
@of_addresses = internal constant [3 x i8] c"nn\00"

; Calls a Python function that answers a packed call: entry(first, loan, args, codes, count, ret,
; ret_code). 0 if it has returned, -1 with its exception pending if not: whatever is raised, and
; wherever, is what this call of Python's own fails with. The arrays that were lent end with it.
define internal i32 @enter(ptr %entry, ptr %format, ptr %first, ptr %args, ptr %codes, i32 %count,
                           ptr %ret, ptr %ret_code) {
  %type = alloca ptr
  %value = alloca ptr
  %traceback = alloca ptr
  %gil = call i32 @PyGILState_Ensure()
  %class = load ptr, ptr @loan
  %lent = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %class, ptr null)
  %no.loan = icmp eq ptr %lent, null
  br i1 %no.loan, label %leave, label %call
call:
  %result = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %entry, ptr %format, ptr %first,
      ptr %lent, ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code)
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %traceback)
  %over = load ptr, ptr @over
  %true = load ptr, ptr @true
  %ended = call i32 @PyObject_SetAttr(ptr %lent, ptr %over, ptr %true)
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b = load ptr, ptr %traceback
  call void @PyErr_Restore(ptr %t, ptr %v, ptr %b)
  call void @Py_DecRef(ptr %lent)
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %leave, label %succeed
succeed:
  call void @Py_DecRef(ptr %result)
  br label %leave
leave:
  %status = phi i32 [ -1, %0 ], [ -1, %call ], [ 0, %succeed ]
  call void @PyGILState_Release(i32 %gil)
  ret i32 %status
}

; The Python function that is the resource.
define i32 @call_python(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code,
                        ptr %resource) {
  %entry = load ptr, ptr @answer
  %status = call i32 @enter(ptr %entry, ptr @of_object, ptr %resource, ptr %args, ptr %codes,
                            i32 %count, ptr %ret, ptr %ret_code)
  ret i32 %status
}

; The function that is registered under a name.
define i32 @call_global(ptr %name, ptr %args, ptr %codes, i32 %count, ptr %ret,
                        ptr %ret_code) {
  %entry = load ptr, ptr @answer_global
  %status = call i32 @enter(ptr %entry, ptr @of_name, ptr %name, ptr %args, ptr %codes,
                            i32 %count, ptr %ret, ptr %ret_code)
  ret i32 %status
}

; Whether two tensors share an element: 1 or 0, or -1 with an exception pending.
define i32 @share_memory(ptr %a, ptr %b) {
  %function = load ptr, ptr @share_elements
  %answer = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %function, ptr @of_addresses,
                                                            ptr %a, ptr %b)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %fail, label %read
read:
  %number = call i64 @PyLong_AsLong(ptr %answer)
  call void @Py_DecRef(ptr %answer)
  %short = trunc i64 %number to i32
  ret i32 %short
fail:
  ret i32 -1
}

; ---- Buffers --------------------------------------------------------------------------------
; What shows the memory of an NDArray by the buffer protocol: the function gives a numpy array.
@show = global ptr null

define i32 @get_buffer(ptr %object, ptr %view, i32 %flags) {
  %object.at = getelementptr i8, ptr %view, i64 8  ; of a Py_buffer: NULL, unless all went well
  store ptr null, ptr %object.at
  %function = load ptr, ptr @show
  %array = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %object, ptr null)
  %failed = icmp eq ptr %array, null
  br i1 %failed, label %fail, label %get
get:
  %status = call i32 @PyObject_GetBuffer(ptr %array, ptr %view, i32 %flags)
  call void @Py_DecRef(ptr %array)
  ret i32 %status
fail:
  ret i32 -1
}

; ---- The running call -----------------------------------------------------------------------
; Makes %call the running call of this thread; returns the one before, a new reference, or null
; with an exception pending. Neither this nor `end_call` runs Python code, which a signal could end.
define ptr @begin_call(ptr %call) {
  %thread = load ptr, ptr @thread
  %name = load ptr, ptr @running
  %outer = call ptr @PyObject_GetAttr(ptr %thread, ptr %name)
  %unknown = icmp eq ptr %outer, null
  br i1 %unknown, label %fail, label %set
set:
  %status = call i32 @PyObject_SetAttr(ptr %thread, ptr %name, ptr %call)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %drop, label %leave
drop:
  call void @Py_DecRef(ptr %outer)
  br label %fail
fail:
  ret ptr null
leave:
  ret ptr %outer
}

; Goes back to what `begin_call` returned, whatever error is pending.
define void @end_call(ptr %outer) {
  %type = alloca ptr
  %value = alloca ptr
  %traceback = alloca ptr
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %traceback)
  %thread = load ptr, ptr @thread
  %name = load ptr, ptr @running
  %status = call i32 @PyObject_SetAttr(ptr %thread, ptr %name, ptr %outer)
  call void @Py_DecRef(ptr %outer)
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b = load ptr, ptr %traceback
  call void @PyErr_Restore(ptr %t, ptr %v, ptr %b)
  ret void
}

; function(), while %call is the running call.
define ptr @call_within(ptr %call, ptr %function) {
  %outer = call ptr @begin_call(ptr %call)
  %failed = icmp eq ptr %outer, null
  br i1 %failed, label %leave, label %go
go:
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr null)
  call void @end_call(ptr %outer)
  br label %leave
leave:
  %returned = phi ptr [ null, %0 ], [ %result, %go ]
  ret ptr %returned
}

; ---- Timing ---------------------------------------------------------------------------------
; Calls a packed function `number` (at least 1) times; stops at the first nonzero status.
define i32 @repeat(ptr %function, i64 %number, ptr %args, ptr %codes, i32 %count, ptr %ret,
                   ptr %ret_code, ptr %resource) {
entry:
  br label %loop
loop:
  %left = phi i64 [ %number, %entry ], [ %next, %loop ]
  %status = call i32 %function(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code,
                               ptr %resource)
  %next = sub i64 %left, 1
  %failed = icmp ne i32 %status, 0
  %finished = icmp sle i64 %next, 0
  %stop = or i1 %failed, %finished
  br i1 %stop, label %leave, label %loop
leave:
  ret i32 %status
}
"""


@record()
class Glue:
    """The addresses of the compiled glue; each field is the function or constant of its name."""

    name_legacy: int
    name_versioned: int
    name_used_legacy: int
    name_used_versioned: int
    delete_legacy: int
    delete_versioned: int
    destroy_legacy: int
    destroy_versioned: int
    disown_legacy: int
    disown_versioned: int
    answer: int
    answer_global: int
    share_elements: int
    loan: int
    over: int
    true: int
    thread: int
    running: int
    call_python: int
    call_global: int
    share_memory: int
    show: int
    get_buffer: int
    begin_call: int
    end_call: int
    call_within: int
    repeat: int


# The fields that are what Python fills in.
_POINTERS = (
    "answer", "answer_global", "share_elements", "loan", "over", "show", "true", "thread", "running"
)  # fmt: skip

_loaded: dict[str, Glue] = {}


def glue() -> Glue:
    """The runtime's machine code, compiled on the first call.

    >>> glue().call_python != 0
    True
    """
    if "glue" in _loaded:
        return _loaded["glue"]
    # Without a lock, which a fork could leave locked: of two racing threads the first one's glue
    # is everybody's.
    return _loaded.setdefault("glue", _load())


def glue_text() -> str:
    """The LLVM IR of the glue.

    >>> "define i32 @minitvm_runtime_repeat" in glue_text()
    True
    """
    return native_text(_GLUE, _PYTHON_API)


def _load() -> Glue:
    code = NativeCode(_GLUE, _PYTHON_API, ctypes.pythonapi)
    return Glue(
        **{
            field: code.data(field) if _is_data(field) else code.function(field)
            for field in Glue.__dataclass_fields__
        }
    )


def _is_data(field: str) -> bool:
    return field.startswith("name_") or field in _POINTERS


def point(field: str, value: object) -> None:
    """Gives the glue a Python object, for as long as the process lives."""
    assert field in _POINTERS
    slot = ctypes.c_void_p.from_address(getattr(glue(), field))
    if slot.value != id(value):
        increment_reference(value)
        slot.value = id(value)


def native_text(text: str, needs: Mapping[str, str]) -> str:
    """`text` as LLVM gets it: what it needs declared, and all names prefixed."""
    declared = "".join(
        f"declare {kind.replace(' (', f' @{name}(', 1)}\n" for name, kind in needs.items()
    )
    return _NAME.sub(f"@{_PREFIX}", text + declared)


@final
class NativeCode:
    """A page of LLVM IR as machine code that lives as long as the process.

    Parameters
    ----------
    text
        The IR; names without a prefix. It is optimised, and cached for the next process: no address
        may stand in it.
    needs
        The C functions that it calls, and the IR type of each: ``"void (ptr)"``.
    library
        Where these are.
    """

    def __init__(self, text: str, needs: Mapping[str, str], library: ctypes.CDLL) -> None:
        def find(symbol: str) -> int:
            return ctypes.addressof(ctypes.c_char.in_dll(library, symbol.removeprefix(_PREFIX)))

        for name in needs:  # all: what an object needs is known of ELF files alone
            provide(_PREFIX + name, find)
        layout = host_machine().target_data
        target = f'target datalayout = "{layout}"\ntarget triple = "{host().triple}"\n'
        object_code = native_object(target + native_text(text, needs))
        self._code = LoadedCode(object_code, find)
        # Immortal: not even the end of the interpreter disposes of it.
        increment_reference(self._code)

    def function(self, name: str) -> int:
        """The address of a function."""
        return self._code.address(_PREFIX + name)

    def data(self, name: str) -> int:
        """The address of a global variable."""
        return self._code.data(_PREFIX + name)


# One thread at a time is in LLVM, by a lock of llvmlite. A fork waits until that one has left: the
# child would have neither the thread nor a way to open the lock.
_in_llvm = getattr(ffi.lib, "_lock", None)
if _in_llvm is not None and hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_in_llvm.__enter__,
        after_in_parent=_in_llvm.__exit__,
        after_in_child=_in_llvm.__exit__,
    )

# Private prototypes: the argtypes of `ctypes.pythonapi.X` itself belong to the whole process.
increment_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
