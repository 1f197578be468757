"""The native code of calls that bypass torch's dispatcher: a part of the call path's page.

``call_operator`` asks torch's state of the running thread whether anything watches the operators
that run; runs the returning function of the operator, as ``call_returning`` does; and has the
operator record the call where autograd wants its gradient. In all other cases it hands the call,
untouched, to ``_call_slowly``, as ``call`` does.
"""

from __future__ import annotations

import ctypes

from minitvm.runtime.native_text import fields_of

TORCH_STATE = """
# torch's functions and sets of dispatch keys of torch_state.TorchState; the guard is null where
# they aren't known.
torch_guard: ptr
torch_function_modes: ptr
torch_observed: ptr
torch_noters: i64
torch_watchers: i64
torch_autocast: i64

# The set of dispatch keys that this thread includes, and the one that it excludes.
@inline
def torch_sets() -> ptr[i64]:
    guard = alloca(array[ptr, 8])
    call(void, torch_guard, guard, 0)
    return guard[0]

# Some dispatch keys, apart from those that this thread doesn't include, or excludes.
@inline
def torch_included(keys: i64) -> i64:
    its = torch_sets()
    return keys & its[0] & (its[1] ^ -1)

# Whether torch notes the operators that run in this thread, so that a call must be one of them; or
# this isn't known.
@inline
def torch_notes() -> i1:
    return not torch_guard or torch_included(torch_noters) != 0

# Whether something in this thread watches torch's operators on CPU tensors, or this isn't known.
def torch_is_watched() -> i1:
    if not torch_guard or torch_included(torch_watchers) != 0:
        return True
    # A set is stored as its difference from the usual one; autocast is usually excluded.
    if torch_sets()[1] & torch_autocast:
        return True
    return call(i64, torch_function_modes) != 0 or call(boolean, torch_observed)
"""

TORCH_CALLS = """
# The fields of an operator (torch_calls_text).
class Operator:
    returning: ptr  # the Returning; NULL: Python code makes all calls

record_unwatched: ptr  # the name of a method

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
