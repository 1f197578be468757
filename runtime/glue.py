"""The glue: machine code for places where Python code must not run.

Deleters and capsule destructors run in any thread and under a pending exception. An exception in a
Python function that compiled code calls must reach the calling thread, wherever it is raised. A
callback of ctypes would print and drop an exception that is raised before its first line (by a
signal, or for want of stack), and return 0, the status of success.
"""

from __future__ import annotations

from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import NAMES, PENDING, STRUCTURES, native_text

DELETERS = (
    NAMES
    + PENDING
    + r"""
; Drops the owner and the block that holds the managed tensor, its shape and its strides.
define internal void @release(ptr %block, ptr %owner) {
  %pending = alloca %Pending
  %initialized = call i32 @Py_IsInitialized()
  br icmp eq i32 %initialized, 0, label %leave, label %drop
drop:
  %gil = call i32 @PyGILState_Ensure()
  call void @set_aside(ptr %pending)
  call void @Py_DecRef(ptr %owner)
  call void @PyMem_RawFree(ptr %block)
  call void @bring_back(ptr %pending)
  call void @PyGILState_Release(i32 %gil)
  br label %leave
leave:
  ret void
}

define void @delete_versioned(ptr %managed) {
  %owner = load %Managed.manager_ctx, ptr %managed
  call void @release(ptr %managed, ptr %owner)
  ret void
}

; A capsule that nobody consumed still has its unused name; a consumed one belongs to the
; consumer.
define internal void @destroy(ptr %capsule, ptr %name, ptr %delete) alwaysinline {
  %unused = call i32 @PyCapsule_IsValid(ptr %capsule, ptr %name)
  br icmp eq i32 %unused, 0, label %leave, label %drop
drop:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr %name)
  call void %delete(ptr %managed)
  br label %leave
leave:
  ret void
}

define void @destroy_versioned(ptr %capsule) {
  call void @destroy(ptr %capsule, ptr @name_versioned, ptr @delete_versioned)
  ret void
}

; The destructor of a capsule of ours that owns the managed tensor of another library.
define internal ptr @owned(ptr %capsule, ptr %name, ptr %pending) alwaysinline {
  call void @set_aside(ptr %pending)
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr %name)
  ret ptr %managed
}

; Calls the deleter of such a tensor, if there is one.
define internal void @disown(ptr %managed, ptr %deleter, ptr %pending) alwaysinline {
  br icmp eq ptr %deleter, null, label %leave, label %delete
delete:
  call void %deleter(ptr %managed)
  br label %leave
leave:
  call void @bring_back(ptr %pending)
  ret void
}

define void @disown_versioned(ptr %capsule) {
  %pending = alloca %Pending
  %managed = call ptr @owned(ptr %capsule, ptr @name_used_versioned, ptr %pending)
  %deleter = load %Managed.deleter, ptr %managed
  call void @disown(ptr %managed, ptr %deleter, ptr %pending)
  ret void
}
"""
)

RUNNING_CALL = """
; The place of the running call: an attribute of a threading.local.
@thread = global ptr null
@running = global ptr null     ; a name

; Makes %call the running call of this thread; returns a new reference to the call before, or null
; with an exception pending. Neither this nor `end_call` runs Python code, which a signal could
; interrupt.
define internal ptr @begin_call(ptr %call) noinline {
  %thread = load ptr, ptr @thread
  %name = load ptr, ptr @running
  %outer = call ptr @PyObject_GetAttr(ptr %thread, ptr %name)
  br icmp eq ptr %outer, null, label %fail, label %set
set:
  %status = call i32 @PyObject_SetAttr(ptr %thread, ptr %name, ptr %call)
  br icmp ne i32 %status, 0, label %drop, label %leave
drop:
  call void @Py_DecRef(ptr %outer)
  br label %fail
fail:
  ret ptr null
leave:
  ret ptr %outer
}

; Restores the call that `begin_call` returned; a pending error stays.
define internal void @end_call(ptr %outer) noinline {
  %pending = alloca %Pending
  call void @set_aside(ptr %pending)
  %thread = load ptr, ptr @thread
  %name = load ptr, ptr @running
  %status = call i32 @PyObject_SetAttr(ptr %thread, ptr %name, ptr %outer)
  call void @Py_DecRef(ptr %outer)
  call void @bring_back(ptr %pending)
  ret void
}
"""

_TEXT = (
    STRUCTURES
    + DELETERS
    + RUNNING_CALL
    + r"""
; ---- DLPack before 1.0 --------------------------------------------------------------------------
define void @delete_legacy(ptr %managed) {
  %owner = load %LegacyManaged.manager_ctx, ptr %managed
  call void @release(ptr %managed, ptr %owner)
  ret void
}

define void @destroy_legacy(ptr %capsule) {
  call void @destroy(ptr %capsule, ptr @name_legacy, ptr @delete_legacy)
  ret void
}

define void @disown_legacy(ptr %capsule) {
  %pending = alloca %Pending
  %managed = call ptr @owned(ptr %capsule, ptr @name_used_legacy, ptr %pending)
  %deleter = load %LegacyManaged.deleter, ptr %managed
  call void @disown(ptr %managed, ptr %deleter, ptr %pending)
  ret void
}

; ---- Calls from compiled code into Python ---------------------------------------------------
; Set by Python: the functions that do the work, and the class Loan.
@answer = global ptr null
@answer_global = global ptr null
@share_elements = global ptr null
@loan = global ptr null
@over = global ptr null        ; a name
@true = global ptr null

@of_object = internal constant [8 x i8] c"OOnninn\00"
@of_name = internal constant [8 x i8] c"sOnninn\00"
@of_addresses = internal constant [3 x i8] c"nn\00"

; Calls a Python function that answers a packed call: entry(first, loan, args, codes, count, ret,
; ret_code). 0 if it has returned, -1 with its exception pending if not: any exception that is
; raised, at any point, comes out of this call. The lent arrays end with it.
define internal i32 @enter(ptr %entry, ptr %format, ptr %first, ptr %args, ptr %codes, i32 %count,
                           ptr %ret, ptr %ret_code) {
  %pending = alloca %Pending
  %gil = call i32 @PyGILState_Ensure()
  %class = load ptr, ptr @loan
  %lent = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %class, ptr null)
  br icmp eq ptr %lent, null, label %leave, label %call
call:
  %result = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %entry, ptr %format, ptr %first,
      ptr %lent, ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code)
  call void @set_aside(ptr %pending)
  %over = load ptr, ptr @over
  %true = load ptr, ptr @true
  %ended = call i32 @PyObject_SetAttr(ptr %lent, ptr %over, ptr %true)
  call void @bring_back(ptr %pending)
  call void @Py_DecRef(ptr %lent)
  br icmp eq ptr %result, null, label %leave, label %succeed
succeed:
  call void @Py_DecRef(ptr %result)
  br label %leave
leave:
  %status = phi i32 [ -1, %0 ], [ -1, %call ], [ 0, %succeed ]
  call void @PyGILState_Release(i32 %gil)
  ret i32 %status
}

; Calls the Python function that is the resource.
define i32 @call_python(ptr %args, ptr %codes, i32 %count, ptr %ret, ptr %ret_code,
                        ptr %resource) {
  %entry = load ptr, ptr @answer
  %status = call i32 @enter(ptr %entry, ptr @of_object, ptr %resource, ptr %args, ptr %codes,
                            i32 %count, ptr %ret, ptr %ret_code)
  ret i32 %status
}

; Calls the function that is registered under a name.
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
  br icmp eq ptr %answer, null, label %fail, label %read
read:
  %number = call i64 @PyLong_AsLong(ptr %answer)
  call void @Py_DecRef(ptr %answer)
  %short = trunc i64 %number to i32
  ret i32 %short
fail:
  ret i32 -1
}

; ---- Buffers --------------------------------------------------------------------------------
; Shows the memory of an NDArray by the buffer protocol; the Python function returns a numpy
; array.
@show = global ptr null

define i32 @get_buffer(ptr %object, ptr %view, i32 %flags) {
  %object.at = getelementptr i8, ptr %view, i64 8  ; of a Py_buffer: NULL, unless all went well
  store ptr null, ptr %object.at
  %function = load ptr, ptr @show
  %array = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %object, ptr null)
  br icmp eq ptr %array, null, label %fail, label %get
get:
  %status = call i32 @PyObject_GetBuffer(ptr %array, ptr %view, i32 %flags)
  call void @Py_DecRef(ptr %array)
  ret i32 %status
fail:
  ret i32 -1
}

; function(), while %call is the running call.
define ptr @call_within(ptr %call, ptr %function) {
  %outer = call ptr @begin_call(ptr %call)
  br icmp eq ptr %outer, null, label %leave, label %go
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
)


def glue_text() -> str:
    """The LLVM IR of the glue.

    >>> "define i32 @minitvm_runtime_repeat" in glue_text()
    True
    """
    return native_text(_TEXT)


@Once
def glue() -> NativeCode:
    """The glue, compiled on the first call."""
    return NativeCode(glue_text())
