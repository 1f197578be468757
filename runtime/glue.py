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
    + """
# Drops the owner and the block that holds the managed tensor, its shape and its strides.
def release(block: ptr, owner: ptr):
    if Py_IsInitialized():
        pending = alloca(Pending)
        gil = PyGILState_Ensure()
        set_aside(pending)
        Py_DecRef(owner)
        PyMem_RawFree(block)
        bring_back(pending)
        PyGILState_Release(gil)

@export
def delete_versioned(managed: ptr[Managed]):
    release(managed, managed.manager_ctx)

# A capsule that nobody consumed still has its unused name; a consumed one belongs to the
# consumer.
@inline
def destroy(capsule: ptr, name: ptr, delete: ptr):
    if PyCapsule_IsValid(capsule, name):
        call(void, delete, PyCapsule_GetPointer(capsule, name))

@export
def destroy_versioned(capsule: ptr):
    destroy(capsule, name_versioned, delete_versioned)

# Calls the deleter of a tensor of another library, whose capsule is ours, if it has one.
@inline
def disown(managed: ptr, deleter: ptr, pending: ptr[Pending]):
    if deleter:
        call(void, deleter, managed)
    bring_back(pending)

@export
def disown_versioned(capsule: ptr):
    pending = alloca(Pending)
    set_aside(pending)
    managed = ptr[Managed](PyCapsule_GetPointer(capsule, name_used_versioned))
    disown(managed, managed.deleter, pending)
"""
)

RUNNING_CALL = """
# The place of the running call: an attribute of a threading.local.
thread: ptr
running: ptr  # a name

# Makes `call` the running call of this thread; returns a new reference to the call before, or null
# with an exception pending. Neither this nor `end_call` runs Python code, which a signal could
# interrupt.
@noinline
def begin_call(call: ptr) -> ptr:
    outer = PyObject_GetAttr(thread, running)
    if outer and PyObject_SetAttr(thread, running, call):
        Py_DecRef(outer)
        return None
    return outer

# Restores the call that `begin_call` returned; a pending error stays.
@noinline
def end_call(outer: ptr):
    pending = alloca(Pending)
    set_aside(pending)
    PyObject_SetAttr(thread, running, outer)
    Py_DecRef(outer)
    bring_back(pending)
"""

_PAGE = (
    STRUCTURES
    + DELETERS
    + RUNNING_CALL
    + """
# ---- DLPack before 1.0 --------------------------------------------------------------------------
@export
def delete_legacy(managed: ptr[LegacyManaged]):
    release(managed, managed.manager_ctx)

@export
def destroy_legacy(capsule: ptr):
    destroy(capsule, name_legacy, delete_legacy)

@export
def disown_legacy(capsule: ptr):
    pending = alloca(Pending)
    set_aside(pending)
    managed = ptr[LegacyManaged](PyCapsule_GetPointer(capsule, name_used_legacy))
    disown(managed, managed.deleter, pending)

# ---- Calls from compiled code into Python ---------------------------------------------------
# Set by Python: the functions that do the work, and the class Loan.
answer: ptr
answer_global: ptr
share_elements: ptr
loan: ptr
over: ptr  # a name
true: ptr

# Calls a Python function that answers a packed call: entry(first, loan, args, codes, count, ret,
# ret_code). 0 if it has returned, -1 with its exception pending if not: any exception that is
# raised, at any point, comes out of this call. The lent arrays end with it.
def enter(
    entry: ptr, format: ptr, first: ptr, args: ptr, codes: ptr, count: i32, ret: ptr, ret_code: ptr
) -> i32:
    status: i32 = -1
    gil = PyGILState_Ensure()
    lent = PyObject_CallFunctionObjArgs(loan, None)
    if lent:
        result = PyObject_CallFunction(
            entry, format, first, lent, args, codes, count, ret, ret_code
        )
        pending = alloca(Pending)
        set_aside(pending)
        PyObject_SetAttr(lent, over, true)
        bring_back(pending)
        Py_DecRef(lent)
        if result:
            Py_DecRef(result)
            status = 0
    PyGILState_Release(gil)
    return status

# Calls the Python function that is the resource.
@export
def call_python(args: ptr, codes: ptr, count: i32, ret: ptr, ret_code: ptr, resource: ptr) -> i32:
    return enter(answer, "OOnninn", resource, args, codes, count, ret, ret_code)

# Calls the function that is registered under a name.
@export
def call_global(name: ptr, args: ptr, codes: ptr, count: i32, ret: ptr, ret_code: ptr) -> i32:
    return enter(answer_global, "sOnninn", name, args, codes, count, ret, ret_code)

# Whether two tensors share an element: 1 or 0, or -1 with an exception pending.
@export
def share_memory(a: ptr, b: ptr) -> i32:
    answer = PyObject_CallFunction(share_elements, "nn", a, b)
    if not answer:
        return -1
    number = PyLong_AsLong(answer)
    Py_DecRef(answer)
    return i32(number)

# ---- Buffers --------------------------------------------------------------------------------
# Shows the memory of an NDArray by the buffer protocol; the Python function returns a numpy
# array.
show: ptr

@export
def get_buffer(object: ptr, view: ptr, flags: i32) -> i32:
    store(None, view + 8)  # the object of a Py_buffer: NULL, unless all went well
    array = PyObject_CallFunctionObjArgs(show, object, None)
    if not array:
        return -1
    status = PyObject_GetBuffer(array, view, flags)
    Py_DecRef(array)
    return status

# function(), while `call` is the running call.
@export
def call_within(call: ptr, function: ptr) -> ptr:
    outer = begin_call(call)
    if not outer:
        return None
    result = PyObject_CallFunctionObjArgs(function, None)
    end_call(outer)
    return result

# ---- Timing ---------------------------------------------------------------------------------
# Calls a packed function `number` (at least 1) times; stops at the first nonzero status.
@export
def repeat(
    function: ptr, number: i64, args: ptr, codes: ptr, count: i32, ret: ptr, ret_code: ptr,
    resource: ptr,
) -> i32:
    status: i32 = 0
    for _ in range(number):
        status = call(i32, function, args, codes, count, ret, ret_code, resource)
        if status:
            break
    return status
"""
)


def glue_text() -> str:
    """The LLVM IR of the glue.

    >>> "define i32 @minitvm_runtime_repeat" in glue_text()
    True
    """
    return native_text(_PAGE)


@Once
def glue() -> NativeCode:
    """The glue, compiled on the first call."""
    return NativeCode(glue_text())
