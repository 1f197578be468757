"""The native code of calls that bypass torch's dispatcher: a part of the call path's page.

``call_operator`` asks torch's state of the running thread whether anything watches the operators
that run; runs the returning function of the operator, as ``call_returning`` does; and has the
operator record the call where autograd wants its gradient. In all other cases it hands the call,
untouched, to ``_call_slowly``, as ``call`` does.
"""

from __future__ import annotations

import ctypes

from minitvm.runtime.native_text import fields_of

MOST_WATCHERS = 15


TORCH_CALLS_WORDS = {"WATCHERS": MOST_WATCHERS + 1}

TORCH_CALLS = """
# The fields of an operator (torch_calls_text).
class Operator:
    returning: ptr  # the Returning; NULL: Python code makes all calls

# torch's functions of torch_state.TorchState, or null; the dispatch keys that watchers include,
# up to a zero; and the key that is excluded where autocast casts nothing.
torch_includes: ptr
torch_excludes: ptr
torch_function_modes: ptr
torch_observed: ptr
torch_watchers: array[i32, WATCHERS]
torch_autocast: i32
record_unwatched: ptr  # the name of a method

# Whether something in this thread watches torch's operators on CPU tensors, or this isn't known.
def torch_is_watched() -> i1:
    if not torch_includes:
        return True
    key = at(torch_watchers)
    while key[0]:
        if call(boolean, torch_includes, key[0]):
            return True
        key += 1
    if not call(boolean, torch_excludes, torch_autocast):
        return True
    return call(i64, torch_function_modes) != 0 or call(boolean, torch_observed)

# Whether all arguments are of an exact type that torch's operators take: tensors and numbers.
def are_torchs(args: ptr[ptr], n: i64) -> i1:
    for i in range(n):
        row = route_of(args[i])
        if not row:
            return False
        match row.route:
            case ROUTE_TORCH | ROUTE_BOOL | ROUTE_INT | ROUTE_FLOAT:
                continue
        return False
    return True

# self.record_unwatched(*args)
@noinline
def call_record(self: ptr, args: ptr, count: i64) -> ptr:
    given = alloca(array[ptr, MORE])
    given[0] = self
    memcpy(given + 1, args, 8 * count)
    return PyObject_VectorcallMethod(record_unwatched, given, count + 1, None)

# PyObject* call_operator(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
@export
def call_operator(self: ptr, args: ptr[ptr], flagged: i64, keywords: ptr) -> ptr:
    frame = alloca(Frame)
    n = flagged & 0x7FFFFFFFFFFFFFFF
    object = ptr[Operator](self + HEADER).returning
    if object and not keywords:
        returning = ptr[Returning](object + HEADER)
        function = returning.function
        is_usual = (n == returning.inputs) & (returning.first >= 0) & (function != None)
        if is_usual and not torch_is_watched() and are_torchs(args, n):
            packed = ptr[PackedFunc](function + HEADER)
            if encode_all(args, n, returning.places, packed, 1, frame):
                if frame.recording == 2:
                    return call_record(self, args, n)
                made = returned(returning, frame, args[returning.first], None)
                if made:
                    return made
    return hand_over(self, args, n, keywords)
"""


class StoredOperator(ctypes.Structure):
    """The fields of an operator that compiled code reads, in the object itself."""

    _fields_ = fields_of(TORCH_CALLS, "Operator")
