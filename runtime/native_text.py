"""The runtime's native code: the parts that its pages share, and how a page becomes LLVM IR.

Code that is made from a program is printed by one emitter (:mod:`minitvm.codegen.llvm_text`), which
knows values and their types. The runtime's own native code is the same in every process: whole
functions with an algorithm each, which a person writes and reads. These are *pages* in the language
of :mod:`minitvm.runtime.native_language`: C with the syntax of Python.

A page holds only its own code. Each shared part has one owner, here or in
:class:`minitvm.runtime.native.NativeCode`, which compiles, caches and loads pages:

- C functions, of CPython and the C library, stand in one table, with a few of LLVM's.
- Words in capitals are numbers that Python knows: ``HEADER``, ``CODE_INT``.
- Names get a prefix, since LLVM has one table of symbols for the process.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

from minitvm.runtime.code_cache import entry_key, read_entry, write_entry
from minitvm.runtime.native_language import source_of_translation, translate

PREFIX = "minitvm_runtime_"

# Functions of CPython and the C library: the name, and the IR type; before it LLVM's name for a
# function of a machine.
C_FUNCTIONS = {
    "PyBuffer_Release": "void (ptr)",
    "PyBytes_AsString": "ptr (ptr)",
    "PyBytes_AsStringAndSize": "i32 (ptr, ptr, ptr)",
    "PyCapsule_GetPointer": "ptr (ptr, ptr)",
    "PyCapsule_IsValid": "i32 (ptr, ptr)",
    "PyCapsule_New": "ptr (ptr, ptr, ptr)",
    "PyCapsule_SetName": "i32 (ptr, ptr)",
    "PyDict_GetItemWithError": "ptr (ptr, ptr)",
    "PyErr_Clear": "void ()",
    "PyErr_ExceptionMatches": "i32 (ptr)",
    "PyErr_Fetch": "void (ptr, ptr, ptr)",
    "PyErr_NoMemory": "ptr ()",
    "PyErr_NormalizeException": "void (ptr, ptr, ptr)",
    "PyErr_Occurred": "ptr ()",
    "PyErr_Restore": "void (ptr, ptr, ptr)",
    "PyFloat_AsDouble": "double (ptr)",
    "PyFloat_FromDouble": "ptr (double)",
    "PyGILState_Check": "i32 ()",
    "PyGILState_Ensure": "i32 ()",
    "PyGILState_Release": "void (i32)",
    "PyLong_AsLong": "i64 (ptr)",
    "PyLong_AsLongLong": "i64 (ptr)",
    "PyLong_AsLongLongAndOverflow": "i64 (ptr, ptr)",
    "PyLong_AsSsize_t": "i64 (ptr)",
    "PyLong_AsVoidPtr": "ptr (ptr)",
    "PyLong_FromLongLong": "ptr (i64)",
    "PyLong_FromVoidPtr": "ptr (ptr)",
    "PyMem_Free": "void (ptr)",
    "PyMem_Malloc": "ptr (i64)",
    "PyMem_RawFree": "void (ptr)",
    "PyMem_RawMalloc": "ptr (i64)",
    "PyObject_CallFunction": "ptr (ptr, ptr, ...)",
    "PyObject_CallFunctionObjArgs": "ptr (ptr, ...)",
    "PyObject_CallMethod": "ptr (ptr, ptr, ptr, ...)",
    "PyObject_Free": "void (ptr)",
    "PyObject_GetAttr": "ptr (ptr, ptr)",
    "PyObject_GetBuffer": "i32 (ptr, ptr, i32)",
    "PyObject_IsTrue": "i32 (ptr)",
    "PyObject_RichCompareBool": "i32 (ptr, ptr, i32)",
    "PyObject_SetAttr": "i32 (ptr, ptr, ptr)",
    "PyObject_Type": "ptr (ptr)",
    "PyObject_VectorcallMethod": "ptr (ptr, ptr, i64, ptr)",
    "PyTuple_GetItem": "ptr (ptr, i64)",
    "PyTuple_New": "ptr (i64)",
    "PyTuple_SetItem": "i32 (ptr, i64, ptr)",
    "PyTuple_Size": "i64 (ptr)",
    "PyType_GenericAlloc": "ptr (ptr, i64)",
    "PyUnicode_AsUTF8AndSize": "ptr (ptr, ptr)",
    "Py_DecRef": "void (ptr)",
    "Py_IncRef": "void (ptr)",
    "Py_IsInitialized": "i32 ()",
    "arm_hint": "llvm.aarch64.hint void (i32)",
    "aligned_alloc": "ptr (i64, i64)",
    "calloc": "ptr (i64, i64)",
    "clock_gettime": "i32 (i32, ptr)",
    "feclearexcept": "i32 (i32)",
    "fetestexcept": "i32 (i32)",
    "free": "void (ptr)",
    "madvise": "i32 (ptr, i64, i32)",
    "malloc": "ptr (i64)",
    "memcmp": "i32 (ptr, ptr, i64)",
    "memcpy": "llvm.memcpy.p0.p0.i64 void (ptr, ptr, i64, i1)",
    "memset": "llvm.memset.p0.i64 void (ptr, i8, i64, i1)",
    "mmap": "ptr (ptr, i64, i32, i32, i32, i64)",
    "pthread_attr_destroy": "i32 (ptr)",
    "pthread_attr_init": "i32 (ptr)",
    "pthread_attr_setdetachstate": "i32 (ptr, i32)",
    "pthread_attr_setstacksize": "i32 (ptr, i64)",
    "pthread_create": "i32 (ptr, ptr, ptr, ptr)",
    "pthread_getspecific": "ptr (i64)",
    "pthread_key_create": "i32 (ptr, ptr)",
    "pthread_setspecific": "i32 (i64, ptr)",
    "pthread_sigmask": "i32 (i32, ptr, ptr)",
    "sched_yield": "i32 ()",
    "sigfillset": "i32 (ptr)",
    "strlen": "i64 (ptr)",
    "syscall": "i64 (i64, ...)",
    "x86_ldmxcsr": "llvm.x86.sse.ldmxcsr void (ptr)",
    "x86_pause": "llvm.x86.sse2.pause void ()",
    "x86_stmxcsr": "llvm.x86.sse.stmxcsr void (ptr)",
}

STRUCTURES = """
class DLTensor:
    data: ptr
    device_type: i32
    device_id: i32
    ndim: i32
    dtype: i32
    shape: ptr[i64]
    strides: ptr[i64]
    byte_offset: i64

# DLManagedTensorVersioned
class Managed:
    version: i64
    manager_ctx: ptr
    deleter: ptr
    flags: i64
    dl_tensor: DLTensor

# DLManagedTensor
class LegacyManaged:
    dl_tensor: DLTensor
    manager_ctx: ptr
    deleter: ptr

class NDArray:
    tensor: DLTensor
    state: i64  # flags: 1 if it is read-only, 2 if Python code has to look at it, 4 if empty

class Pending:  # an exception
    type: ptr
    value: ptr
    traceback: ptr
"""

TENSORS = """
# Describes a compact array of the CPU, except for the address of its elements.
@inline
def describe(tensor: ptr[DLTensor], ndim: i32, dtype: i32, shape: ptr[i64]):
    tensor.device_type = 1
    tensor.device_id = 0
    tensor.ndim = ndim
    tensor.dtype = dtype
    tensor.shape = shape
    tensor.strides = None
    tensor.byte_offset = 0
"""

# A capsule keeps the address of its name, so the names live in pages, as long as the process.
NAMES = """
name_legacy = "dltensor"
name_versioned = "dltensor_versioned"
name_used_legacy = "used_dltensor"
name_used_versioned = "used_dltensor_versioned"
"""

PENDING = """
# Sets the pending exception aside, if there is one; and makes it pending again.
@inline
def set_aside(pending: ptr[Pending]):
    PyErr_Fetch(pending, at(pending.value), at(pending.traceback))

@inline
def bring_back(pending: ptr[Pending]):
    PyErr_Restore(pending.type, pending.value, pending.traceback)
"""

_WORD = re.compile(r"\b[A-Z][A-Z_]+\b")
_FIELD = re.compile(r"    (\w+): (\w+)(?:\[(\w+).*, (\w+)\])?")
_CTYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "ptr": ctypes.c_void_p,
}
_NAME = re.compile(r"@(?!llvm\.)(\w)")  # LLVM's intrinsics keep their names


def fields_of(
    page: str, structure: str, words: Mapping[str, int] | None = None
) -> list[tuple[str, Any]]:
    """The fields of a page's structure, as ctypes has them.

    >>> page = '''
    ... class Pair:
    ...     first: i32
    ...     rest: array[ptr[Pair], MOST]
    ... '''
    >>> [name for name, kind in fields_of(page, "Pair", {"MOST": 3})]
    ['first', 'rest']
    """
    body = page.partition(f"\nclass {structure}:\n")[2]
    made = []
    for line in body.splitlines():
        if not line.startswith("    "):
            break
        field = _FIELD.match(line)
        if field is not None:
            name, kind, element, count = field.groups()
            many = _CTYPES[element] * (words or {})[count] if element else _CTYPES[kind]
            made.append((name, many))
    return made


def native_text(page: str, words: Mapping[str, object] | None = None) -> str:
    """A page as text for LLVM.

    >>> print(native_text('''
    ... @export
    ... def half() -> i32:
    ...     return ANSWER // 2
    ... ''', {"ANSWER": 84}))
    define i32 @minitvm_runtime_half() {
      ret i32 42
    }
    <BLANKLINE>
    """
    known = words or {}
    page = _WORD.sub(lambda word: str(known.get(word[0], word[0])), page)
    key = entry_key("native text", page, source_of_translation())
    kept = read_entry(key)
    if kept is None:  # translating the largest page takes 30 ms
        kept = _NAME.sub(rf"@{PREFIX}\1", translate(page, C_FUNCTIONS)).encode()
        write_entry(key, kept)
    return kept.decode()
