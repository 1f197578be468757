"""The native code of calls that choose among returning functions: a part of the call path's page.

``call_cases`` finds the value of each parameter of a call; takes the first *case* of a table that
fits them; and runs its returning function, as ``call_returning`` does. Where no case fits, or
anything is unknown, it hands the call, untouched, to ``_call_slowly``, as ``call`` does.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

from minitvm.runtime.native_text import fields_of


class Op(IntEnum):
    """The conditions on an extent."""

    END = 0  # there are no more
    IS = 1  # it equals a number
    IS_NOT = 2
    IS_THAT = 3  # it equals another extent of the call
    IS_NOT_THAT = 4


# Types whose equal values no program can tell apart.
COMPARED_TYPES = (int, str, bytes, bool)

CASES_WORDS = {
    "COMPARED": len(COMPARED_TYPES) + 1,
    **{f"CHECK_{op.name}": int(op) for op in Op},
}

CASES = """
# A chooser, its table of cases (cases_text).
class Chooser:
    table: ptr  # the object; NULL: Python code makes all calls
    names: ptr  # the tuple of the parameters' names, interned
    defaults: ptr[ptr]  # an object for each parameter, or NULL
    parameters: i64  # how many,
    positional: i64  # and how many of them may be given by position

class Table:
    cases: ptr[Case]
    count: i64

class Case:
    returning: ptr[Returning]  # the fields of the Returning
    parameters: ptr[Parameter]
    checks: ptr[Check]
    like: i64  # the position of the first array, or -1
    operator: ptr  # whose method takes calls that torch records, or NULL

class Parameter:
    type: ptr  # exactly
    constant: ptr  # the value, of one that isn't passed on; or NULL
    ndim: i32  # of an array; -1: a number
    dtype: i32
    place: i64  # among the inputs

class Check:
    op: i32
    position: i32  # of the parameter
    dim: i32
    other: i32  # the position of the other extent's parameter
    value: i64  # the number, or the other extent's dim

out_name: ptr  # "out"
record_name: ptr  # "record"
float_type: ptr
# The types whose equal values are interchangeable, apart from tuples and floats; up to null.
compared_types: array[ptr, COMPARED]

# ---- Values that a case is for ---------------------------------------------------------------
# Whether two values of one type are the same. A value of an unknown type is the same only as
# itself.
def same_value(a: ptr, b: ptr) -> i1:
    if a == b:
        return True
    type = type_of(a)
    if type_of(b) != type:
        return False
    if type == float_type:  # by their bits: 0.0 and -0.0 differ
        return bits(PyFloat_AsDouble(a)) == bits(PyFloat_AsDouble(b))
    if type == tuple_type:
        size = PyTuple_Size(a)
        if PyTuple_Size(b) != size:
            return False
        for i in range(size):
            if not same_value(PyTuple_GetItem(a, i), PyTuple_GetItem(b, i)):
                return False
        return True
    known = at(compared_types)
    while known[0]:
        if known[0] == type:
            return PyObject_RichCompareBool(a, b, 2) == 1
        known += 1
    return False

# ---- Binding ---------------------------------------------------------------------------------
# Puts the value of each parameter into `bound`, and that of `out` into `out`. False: an argument
# is missing, or isn't a parameter's.
def bind_defaults(
    chooser: ptr[Chooser], args: ptr[ptr], positional: i64, keywords: ptr, bound: ptr[ptr],
    out: ptr[ptr],
) -> i1:
    count = chooser.parameters
    for i in range(count):
        bound[i] = (args if i < positional else chooser.defaults)[i]
    if keywords:
        for k in range(PyTuple_Size(keywords)):
            name = PyTuple_GetItem(keywords, k)
            place = out
            if name != out_name:
                j = positional
                while j < count and PyTuple_GetItem(chooser.names, j) != name:
                    j += 1
                if j == count:
                    return False
                place = bound + j
            place[0] = args[positional + k]
    for i in range(positional, count):
        if not bound[i]:
            return False
    return True

# ---- Choosing --------------------------------------------------------------------------------
# Whether the arguments have the types of a case, and are the constants that it is for.
def has_types(parameters: ptr[Parameter], arguments: ptr[ptr], count: i64) -> i1:
    for i in range(count):
        parameter = parameters[i]
        if type_of(arguments[i]) != parameter.type:
            return False
        if parameter.constant and not same_value(parameter.constant, arguments[i]):
            return False
    return True

# Whether an argument in the frame is the array, or the number, that a case is for.
@inline
def has_kind(parameter: ptr[Parameter], frame: ptr[Frame], i: i64) -> i1:
    if parameter.ndim < 0:
        return True
    tensor = ptr[DLTensor](frame.values[i])
    is_here = tensor.device_type == 1
    return (tensor.ndim == parameter.ndim) & (tensor.dtype == parameter.dtype) & is_here

@inline
def extent(frame: ptr[Frame], position: i32, dim: i64) -> i64:
    return ptr[DLTensor](frame.values[position]).shape[dim]

# Whether the extents of the arrays in the frame fulfil a case's conditions.
def has_extents(checks: ptr[Check], frame: ptr[Frame]) -> i1:
    check = checks
    while check.op != CHECK_END:
        wanted = check.value
        if check.op >= CHECK_IS_THAT:
            wanted = extent(frame, check.other, check.value)
        # IS and IS_THAT are odd
        if (extent(frame, check.position, i64(check.dim)) == wanted) != i1(check.op):
            return False
        check += 1
    return True

# The first case that the arguments fit; they are then in the frame, by the parameters' positions.
# Null if there is none.
def choose(
    table: ptr[Table], arguments: ptr[ptr], count: i64, frame: ptr[Frame]
) -> ptr[Case]:
    encoded = 0
    for i in range(table.count):
        each = table.cases[i]
        parameters = each.parameters
        fits = has_types(parameters, arguments, count)
        if fits:
            for j in range(count):
                if not parameters[j].constant:
                    if not encoded & (1 << j):
                        if not encode(arguments[j], j, frame, 0, False):
                            return None
                        encoded |= 1 << j
                    if not has_kind(parameters[j], frame, j):
                        fits = False
                        break
        if fits and has_extents(each.checks, frame):
            return each
    return None

# Moves the arguments in the frame from the parameters' positions to their places among the inputs,
# which lie before them.
def close_up(parameters: ptr[Parameter], count: i64, frame: ptr[Frame]):
    for i in range(count):
        place = parameters[i].place
        if place != i and not parameters[i].constant:
            frame.codes[place] = frame.codes[i]
            if frame.values[i] == i64(frame.tensors[i]):
                memcpy(frame.tensors[place], frame.tensors[i], sizeof(DLTensor))
                frame.values[place] = i64(frame.tensors[place])
            else:
                frame.values[place] = frame.values[i]

# operator.record(the arguments that a case passes on)
@noinline
def call_recorded(
    operator: ptr, parameters: ptr[Parameter], arguments: ptr[ptr], count: i64
) -> ptr:
    given = alloca(array[ptr, MORE])
    given[0] = operator
    n = 1
    for i in range(count):
        if not parameters[i].constant:
            given[n] = arguments[i]
            n += 1
    return PyObject_VectorcallMethod(record_name, given, n, None)

# Whether outputs that the caller gives are of the type of the first array.
def are_like(out: ptr, like: ptr) -> i1:
    if not like:
        return False
    type = type_of(like)
    if type_of(out) == type:
        return True
    if type_of(out) != tuple_type:
        return False
    for i in range(PyTuple_Size(out)):
        if type_of(PyTuple_GetItem(out, i)) != type:
            return False
    return True

# ---- Calls that choose -----------------------------------------------------------------------
# PyObject* call_cases(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
@export
def call_cases(self: ptr, args: ptr[ptr], flagged: i64, keywords: ptr) -> ptr:
    frame = alloca(Frame)
    bound = alloca(array[ptr, ARGUMENTS])
    out = alloca(ptr)
    chooser = ptr[Chooser](self + HEADER)
    positional = flagged & 0x7FFFFFFFFFFFFFFF
    object = chooser.table
    if object and u64(positional) <= u64(chooser.positional):
        out[0] = None
        arguments = args
        is_bound = True
        if positional != chooser.parameters or keywords:
            arguments = bound
            is_bound = bind_defaults(chooser, args, positional, keywords, bound, out)
        if is_bound:
            # Another thread, or code of an argument's library, may replace the table; the call
            # keeps this one.
            Py_IncRef(object)
            given = None if out[0] == none else out[0]
            table = ptr[Table](object + HEADER)
            made = call_case(table, arguments, chooser.parameters, given, frame)
            Py_DecRef(object)
            if made:
                return made
    return hand_over(self, args, positional, keywords)

# Whether an argument is a tensor of torch, and the call must be an operator of torch.
@inline
def is_noted(argument: ptr) -> i1:
    row = route_of(argument)
    return row and row.route == ROUTE_TORCH and torch_notes()

# The result of the case that the arguments fit, or null as for `returned`.
@inline
def call_case(
    table: ptr[Table], arguments: ptr[ptr], count: i64, out: ptr, frame: ptr[Frame]
) -> ptr:
    frame.strides_used = 0
    frame.recording = 1
    chosen = choose(table, arguments, count, frame)
    if not chosen:
        return None
    if chosen.like >= 0 and is_noted(arguments[chosen.like]):
        return None
    if frame.recording == 2:
        if not chosen.operator or out:
            return None
        return call_recorded(chosen.operator, chosen.parameters, arguments, count)
    if chosen.returning.inputs != count:
        close_up(chosen.parameters, count, frame)
    like = arguments[chosen.like] if chosen.like >= 0 else None
    if out and not are_like(out, like):
        return None
    return returned(chosen.returning, frame, like, out)
"""


class CompiledCheck(ctypes.Structure):
    """A check of an extent."""

    _fields_ = fields_of(CASES, "Check")


class CompiledParameter(ctypes.Structure):
    """The argument that a case accepts for a parameter."""

    _fields_ = fields_of(CASES, "Parameter")


class CompiledCase(ctypes.Structure):
    """A returning function, and the arguments that it is for."""

    _fields_ = fields_of(CASES, "Case")


class StoredTable(ctypes.Structure):
    """The fields of a table of cases, in the object itself."""

    _fields_ = fields_of(CASES, "Table")


class StoredChooser(ctypes.Structure):
    """The fields of an object whose calls choose, in the object itself."""

    _fields_ = fields_of(CASES, "Chooser")
