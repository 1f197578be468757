"""The native code of the call path: from CPython's vectorcall to a packed function.

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
from minitvm.runtime.native_text import NAMES, PENDING, STRUCTURES, TENSORS, fields_of, native_text
from minitvm.runtime.outputs_text import OUTPUTS, OUTPUTS_WORDS
from minitvm.runtime.returning_text import RETURNING, RETURNING_STRUCTURES, RETURNING_WORDS
from minitvm.runtime.torch_calls_text import TORCH_CALLS, TORCH_STATE
from minitvm.runtime.values import ArgTypeCode

MOST_ARGUMENTS = 24  # the most arguments of a call by this path, and the size of its frame
_MOST_STRIDES = 128
MOST_ROUTES = 32
DTYPE_NUMBERS = 1024  # the numbers of numpy's dtypes; libraries' own begin at 256


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
CALLS = """
# The fields of a PackedFunc (call_path_text.StoredFunction).
class PackedFunc:
    function: ptr
    resource: ptr
    variants: ptr[ptr]  # NULL, or the variants made so far, up to a NULL
    names: ptr  # NULL, or the tuple of the arguments' names, interned
    written: i64  # a bit for each argument
    calls_back: i64  # whether Python or foreign code may be called

none: ptr

# Begins a call for the Python functions that a packed function calls, if it calls any; `end`
# returns to the call before. False with an exception pending.
@inline
def begin(calls_back: i1, outer: ptr[ptr]) -> i1:
    outer[0] = begin_call(none) if calls_back else None
    return not calls_back or outer[0]

@inline
def end(outer: ptr[ptr]):
    if outer[0]:
        end_call(outer[0])

# Calls the packed function, or its first variant that takes these arrays; VARIANT if none does.
def run(
    packed: ptr[PackedFunc], args: ptr, codes: ptr, count: i32, ret: ptr, ret_code: ptr[i32]
) -> i32:
    variant = packed.variants
    if not variant:
        ret_code[0] = CODE_NULL
        status = call(i32, packed.function, args, codes, count, ret, ret_code, packed.resource)
        return -1 if status == VARIANT else status
    resource = packed.resource
    while variant[0]:
        ret_code[0] = ASKS
        status = call(i32, variant[0], args, codes, count, ret, ret_code, resource)
        if status != VARIANT:
            return status
        variant += 1
    return VARIANT
"""


class StoredFunction(ctypes.Structure):
    """The fields of a PackedFunc that compiled code reads, in the object itself. A handle points to
    the first two."""

    _fields_ = fields_of(CALLS, "PackedFunc")


CALL_WORDS = {
    "ASKS": ASKS_FOR_VARIANT,
    "HEADER": HEADER,
    "VARIANT": NEEDS_VARIANT,
    **{f"CODE_{code.name}": int(code) for code in ArgTypeCode},
}

CALL_PATH = """
class Result:
    value: i64
    code: i32

# A route, as Python code writes it (call_path.Row).
class Route:
    type: ptr  # whose objects take the route
    route: i32
    code: i32  # the type code, of STORED, ITSELF and CONSTANT
    function: ptr  # dltensor_from_py_object_no_sync, of EXCHANGE and TORCH
    managed: ptr  # managed_tensor_from_py_object_no_sync, of EXCHANGE
    # Of arrays with an exchange API, or null: managed_tensor_allocator and
    # managed_tensor_to_py_object_no_sync.
    allocate: ptr
    to_object: ptr

# The arguments of one call, as C has them.
class Frame:
    values: array[i64, ARGUMENTS]
    codes: array[i32, ARGUMENTS]
    tensors: array[DLTensor, ARGUMENTS]  # or a TVMByteArray each
    strides: array[i64, STRIDES]
    strides_used: i64
    recording: i32  # 0: refuses tensors that torch records; 1: takes them, and becomes 2

# ---- Set by Python ---------------------------------------------------------------------------
routes: array[Route, ROUTES]  # up to one of no type
found_route: array[ptr[Route], 1]  # the last row that was searched for, or null
dtypes: array[i32, DTYPES]  # the DLDataType of numpy's type numbers
constants: ptr  # dict: DType or Device to its 8 bytes
true: ptr
call_slowly: ptr  # names of methods of PackedFunc
fail: ptr
take: ptr
requires_grad: ptr  # names of attributes of torch's tensors
forward_ad: ptr  # torch.autograd.forward_ad
current_level: ptr  # the name of its attribute
is_grad_enabled: ptr  # torch.is_grad_enabled
is_neg: ptr
is_conj: ptr
torch_managed: ptr  # of torch: managed_tensor_from_py_object_no_sync
array_of: ptr  # PyObject* (DLManagedTensorVersioned*)
dlpack: ptr  # the name of a method, its argument, and the tuple of the name of that
version: ptr
keywords: ptr
exception: ptr  # the classes Exception, AttributeError
attribute_error: ptr
# The offsets of the TensorImpl in a torch tensor, and of the dispatch keys and the autograd state
# in the TensorImpl; 0: unknown. Then the keys of plain tensors, in and out of inference mode.
torch_fields: array[i64, 3]
torch_plain: array[i64, 2]

# ---- Calls -----------------------------------------------------------------------------------
# Puts the arguments of a call into a new frame, each at its place (null: in their order). False:
# an argument is of an unknown kind, or the call is noted. `recording`: see `is_plain`.
@inline
def encode_all(
    arguments: ptr[ptr], n: i64, places: ptr[i64], packed: ptr[PackedFunc], recording: i32,
    frame: ptr[Frame],
) -> i1:
    frame.strides_used = 0
    frame.recording = recording
    written = packed.written
    is_foreign = packed.calls_back != 0
    kinds: i32 = 0
    for i in range(n):
        place = places[i] if places else i
        kind = encode(arguments[i], place, frame, written, is_foreign)
        if not kind:
            return False
        kinds |= kind
    return kinds < TORCHS or not torch_notes()

# PyObject* call_packed(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
@export
def call_packed(self: ptr, args: ptr[ptr], flagged: i64, keywords: ptr) -> ptr:
    frame = alloca(Frame)
    bound = alloca(array[ptr, ARGUMENTS])
    packed = ptr[PackedFunc](self + HEADER)
    positional = flagged & 0x7FFFFFFFFFFFFFFF
    n = positional
    arguments = args
    if keywords:
        n = bind(packed.names, args, positional, keywords, bound)
        arguments = bound
    if u64(n) <= ARGUMENTS and encode_all(arguments, n, None, packed, 0, frame):
        result = alloca(Result)
        outer = alloca(ptr)
        if not begin(packed.calls_back != 0, outer):
            return None
        returned = ptr(None)
        codes = at(frame.codes)
        status = run(packed, at(frame.values), codes, i32(n), result, at(result.code))
        if status == 0:
            returned = take_result(self, arguments, n, result)
        elif status != VARIANT:
            explain(self, status)
        end(outer)
        if status != VARIANT:
            return returned
    return hand_over(self, args, positional, keywords)

# The result of a call that returned 0, as a Python object.
def take_result(self: ptr, arguments: ptr[ptr], count: i64, result: ptr[Result]) -> ptr:
    match result.code:
        case CODE_NULL:
            Py_IncRef(none)
            return none
        case CODE_INT:
            return PyLong_FromLongLong(result.value)
        case CODE_FLOAT:
            return PyFloat_FromDouble(load(double, at(result.value)))
    given = alloca(ptr, count + 2)
    address = PyLong_FromLongLong(i64(result))
    if not address:
        return None
    given[0] = self
    given[1] = address
    memcpy(given + 2, arguments, 8 * count)
    taken = PyObject_VectorcallMethod(take, given, count + 2, None)
    Py_DecRef(address)
    return taken

# Sets the error of a function that failed, unless it has set one.
def explain(self: ptr, status: i32):
    if not PyErr_Occurred():
        given = alloca(array[ptr, 2])
        number = PyLong_FromLongLong(i64(status))
        if number:
            given[0] = self
            given[1] = number
            PyObject_VectorcallMethod(fail, given, 2, None)
            Py_DecRef(number)

# self._call_slowly(*args, **keywords); null where an error is pending already
@noinline
def hand_over(self: ptr, args: ptr[ptr], positional: i64, keywords: ptr) -> ptr:
    if PyErr_Occurred():
        return None
    count = positional + (PyTuple_Size(keywords) if keywords else 0)
    given = ptr[ptr](PyMem_Malloc(8 * (count + 1)))
    if not given:
        PyErr_NoMemory()
        return None
    given[0] = self
    memcpy(given + 1, args, 8 * count)
    returned = PyObject_VectorcallMethod(call_slowly, given, positional + 1, keywords)
    PyMem_Free(given)
    return returned

# The field of a Module: the PackedFunc that a call of the module calls.
@export
def call_entry(self: ptr, args: ptr[ptr], flagged: i64, keywords: ptr) -> ptr:
    return call_packed(load(ptr, self + HEADER), args, flagged, keywords)
"""


def call_path_text(type_offset: int) -> str:
    """The LLVM IR of the call path, where an object's type lies `type_offset` bytes in."""
    words = {
        **CALL_WORDS,
        **RETURNING_WORDS,
        **OUTPUTS_WORDS,
        **CASES_WORDS,
        "ARGUMENTS": MOST_ARGUMENTS,
        "MORE": MOST_ARGUMENTS + 1,
        "DTYPES": DTYPE_NUMBERS,
        "FOREIGN_ORDER": ord(">" if sys.byteorder == "little" else "<"),
        "ROUTES": MOST_ROUTES,
        "STRIDES": _MOST_STRIDES,
        "TORCHS": 2,
        "TYPE": type_offset,
        **{f"ROUTE_{route.name}": int(route) for route in Route},
        **{f"NUMPY_{field.upper()}": at for field, at in foreign.NUMPY_FIELDS.items()},
    }
    shared = STRUCTURES + TENSORS + NAMES + PENDING + RUNNING_CALL + CALLS
    returning = RETURNING_STRUCTURES + OUTPUTS + RETURNING + TORCH_CALLS + CASES
    return native_text(shared + TORCH_STATE + CALL_PATH + ARGUMENTS + returning, words)
