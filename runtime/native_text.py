"""The LLVM assembly of the runtime: the parts that its pages share, and how a page becomes LLVM IR.

Code that is made from a program is printed by one emitter (:mod:`minitvm.codegen.llvm_text`), which
knows values and their types. The runtime's own native code is the same in every process: whole
functions with an algorithm each, which a person writes and reads. These are *pages* of LLVM
assembly with comments. An emitter would double their lines and hide their control flow. Its
guarantees come from LLVM's parser and verifier here, on the whole text, in a test of every page.

A page holds only its own code. Each shared part has one owner, here or in
:class:`minitvm.runtime.native.NativeCode`, which compiles, caches and loads pages:

- C functions, of CPython and the C library, stand in one table; a page that calls one has it
  declared.
- Words in capitals are numbers that Python knows: ``HEADER``, ``CODE_INT``.
- A structure names its fields where it is declared, and ``%Struct.field`` in the place of a type is
  that field of the structure at the pointer::

      %ndim = load %DLTensor.ndim, ptr %tensor
      store %DLTensor.ndim %ndim, ptr %tensor
      %dims = getelementptr %DLTensor.shape, ptr %tensor

- Comparing and branching is one line::

      br icmp eq ptr %found, null, label %none, label %look

- Names get a prefix, since LLVM has one table of symbols for the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIX = "minitvm_runtime_"

# Functions of CPython and the C library: the name, and the IR type.
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
    "aligned_alloc": "ptr (i64, i64)",
    "calloc": "ptr (i64, i64)",
    "clock_gettime": "i32 (i32, ptr)",
    "feclearexcept": "i32 (i32)",
    "fetestexcept": "i32 (i32)",
    "free": "void (ptr)",
    "madvise": "i32 (ptr, i64, i32)",
    "malloc": "ptr (i64)",
    "memcmp": "i32 (ptr, ptr, i64)",
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
}

STRUCTURES = """
%DLTensor = type {
  ptr data, i32 device_type, i32 device_id, i32 ndim, i32 dtype, ptr shape, ptr strides,
  i64 byte_offset
}
; DLManagedTensorVersioned, and DLManagedTensor
%Managed = type { i64 version, ptr manager_ctx, ptr deleter, i64 flags, %DLTensor dl_tensor }
%LegacyManaged = type { %DLTensor dl_tensor, ptr manager_ctx, ptr deleter }
; The flags of an NDArray: 1 if it is read-only, 2 if Python code has to look at it, 4 if empty.
%NDArray = type { %DLTensor tensor, i64 state }
%Pending = type { ptr type, ptr value, ptr traceback }  ; an exception
"""

TENSORS = """
; Describes a compact array of the CPU, except for the address of its elements.
define internal void @describe(ptr %tensor, i32 %ndim, i32 %dtype, ptr %shape) alwaysinline {
  store %DLTensor.device_type 1, ptr %tensor
  store %DLTensor.device_id 0, ptr %tensor
  store %DLTensor.ndim %ndim, ptr %tensor
  store %DLTensor.dtype %dtype, ptr %tensor
  store %DLTensor.shape %shape, ptr %tensor
  store %DLTensor.strides null, ptr %tensor
  store %DLTensor.byte_offset 0, ptr %tensor
  ret void
}
"""

# A capsule keeps the address of its name, so the names live in pages, as long as the process.
NAMES = r"""
@name_legacy = constant [9 x i8] c"dltensor\00"
@name_versioned = constant [19 x i8] c"dltensor_versioned\00"
@name_used_legacy = constant [14 x i8] c"used_dltensor\00"
@name_used_versioned = constant [24 x i8] c"used_dltensor_versioned\00"
"""

PENDING = """
; Sets the pending exception aside, if there is one; and makes it pending again.
define internal void @set_aside(ptr %pending) alwaysinline {
  %value = getelementptr %Pending.value, ptr %pending
  %traceback = getelementptr %Pending.traceback, ptr %pending
  call void @PyErr_Fetch(ptr %pending, ptr %value, ptr %traceback)
  ret void
}

define internal void @bring_back(ptr %pending) alwaysinline {
  %type = load %Pending.type, ptr %pending
  %value = load %Pending.value, ptr %pending
  %traceback = load %Pending.traceback, ptr %pending
  call void @PyErr_Restore(ptr %type, ptr %value, ptr %traceback)
  ret void
}
"""

_WORD = re.compile(r"\b[A-Z][A-Z_]+\b")
_STRUCTURE = re.compile(r"^%([A-Z]\w*) = type \{(.*?)\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(
    r"^  (?:(%[\w.]+) = )?(load|store|getelementptr)( atomic)? %(\w+)\.(\w+)( [^,\n]+)?, "
    r"ptr ([%@][\w.]+)",
    re.MULTILINE,
)
_BRANCH = re.compile(r"^  br (icmp .*?), label (.*)", re.MULTILINE)
_COMMENT = re.compile(r";.*")
_NAME = re.compile(r"@(?!llvm\.)(\w)")  # LLVM's intrinsics keep their names
_USED = re.compile(r"@(\w+)")
_DEFINED = re.compile(r"^define [^@]*@(\w+)", re.MULTILINE)


def native_text(text: str, words: Mapping[str, object] | None = None) -> str:
    """A page as text for LLVM.

    >>> print(native_text('''
    ... %Pair = type { i32 first, i64 second }
    ... define i64 @second(ptr %pair) {
    ...   %found = load %Pair.second, ptr %pair
    ...   ret i64 %found
    ... }
    ... '''))
    <BLANKLINE>
    %Pair = type { i32, i64 }
    define i64 @minitvm_runtime_second(ptr %pair) {
      %place.0 = getelementptr %Pair, ptr %pair, i32 0, i32 1
      %found = load i64, ptr %place.0
      ret i64 %found
    }
    <BLANKLINE>
    """
    known = words or {}
    text = _WORD.sub(lambda word: str(known.get(word[0], word[0])), text)
    structures: dict[str, dict[str, tuple[int, str]]] = {}

    def declare(structure: re.Match[str]) -> str:
        fields = [each.rsplit(None, 1) for each in _COMMENT.sub("", structure[2]).split(",")]
        structures[structure[1]] = {
            name: (index, kind.strip()) for index, (kind, name) in enumerate(fields)
        }
        kinds = ", ".join(kind.strip() for kind, _ in fields)
        return f"%{structure[1]} = type {{ {kinds} }}"

    places = conditions = 0

    def access(found: re.Match[str]) -> str:
        nonlocal places
        result, action, atomic, structure, field, value, pointer = found.groups("")
        index, kind = structures[structure][field]
        place = f"getelementptr %{structure}, ptr {pointer}, i32 0, i32 {index}"
        if action == "getelementptr":
            return f"  {result} = {place}"
        at = f"%place.{places}"
        places += 1
        start = f"{result} = load" if action == "load" else "store"
        return f"  {at} = {place}\n  {start}{atomic} {kind}{value}, ptr {at}"

    def branch(found: re.Match[str]) -> str:
        nonlocal conditions
        name = f"%condition.{conditions}"
        conditions += 1
        return f"  {name} = {found[1]}\n  br i1 {name}, label {found[2]}"

    text = _BRANCH.sub(branch, _FIELD.sub(access, _STRUCTURE.sub(declare, text)))
    called = sorted(C_FUNCTIONS.keys() & set(_USED.findall(text)) - set(_DEFINED.findall(text)))
    declared = "".join(
        f"declare {C_FUNCTIONS[name].replace(' (', f' @{name}(', 1)}\n" for name in called
    )
    return _NAME.sub(rf"@{PREFIX}\1", text + declared)
