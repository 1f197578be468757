"""The native code of calls that return: a part of the call path's page.

``call_returning`` puts the inputs into the frame of a call, as ``call`` does; computes the extents
of the outputs from them; has the framework of the first array make the outputs; calls the packed
function; and returns the outputs. Where it meets anything unknown, and before the packed function
has run, it hands the call, untouched, to ``Returning._call_slowly``.
"""

from __future__ import annotations

import ctypes

from minitvm.runtime.native_text import fields_of
from minitvm.runtime.results import Op

MOST_OUTPUTS = 16  # the most outputs of a function on this path,
MOST_EXTENTS = 64  # their extents,
MOST_NUMBERS = 16  # and the numbers of one extent
STORE, END = len(Op), len(Op) + 1  # pops an extent from the stack; the end of the steps


RETURNING_WORDS = {
    "EXTENTS": MOST_EXTENTS,
    "NUMBERS": MOST_NUMBERS,
    "OUTPUTS": MOST_OUTPUTS,
    "OP_END": END,
    "OP_STORE": STORE,
    **{f"OP_{op.name}": int(op) for op in Op},
}

RETURNING_STRUCTURES = """
# The fields of a Returning, of its outputs and of its steps (returning_text).
class Returning:
    function: ptr  # the PackedFunc; NULL: Python code makes all calls
    names: ptr  # the tuple of the inputs' names, interned
    names_and_out: ptr  # the same and "out"
    inputs: i64  # how many
    outputs: i64
    first: i64  # the number of the first array among the inputs, or -1
    places: ptr[i64]  # the positions of the inputs
    made: ptr[Output]  # the outputs,
    steps: ptr[Step]  # and the steps to all their extents

class Output:
    position: i64
    ndim: i32
    dtype: i32  # the DLDataType
    descr: ptr  # numpy's dtype; NULL: left to Python code

class Step:
    op: i32
    position: i32
    rank: i32  # the rank that the array must have
    dim: i32
    value: i64
"""

RETURNING = """
# ---- Extents ---------------------------------------------------------------------------------
# Computes all extents of the outputs, from the arguments in the frame. False if an argument has
# another kind or rank, an extent is negative, or an intermediate number exceeds int64.
def find_extents(returning: ptr[Returning], frame: ptr[Frame], extents: ptr[i64]) -> i1:
    top = alloca(array[i64, NUMBERS])  # of the stack: behind its last number
    out = extents
    step = returning.steps
    while step.op != OP_END:
        match step.op:
            case OP_CONSTANT:
                top[0] = step.value
                top += 1
            case OP_EXTENT:
                code = frame.codes[step.position]
                if code != CODE_DLTENSOR_HANDLE and code != CODE_NDARRAY_HANDLE:
                    return False
                tensor = ptr[DLTensor](frame.values[step.position])
                if tensor.ndim != step.rank:
                    return False
                top[0] = tensor.shape[step.dim]
                top += 1
            case OP_SCALAR:
                if frame.codes[step.position] != CODE_INT:
                    return False
                top[0] = frame.values[step.position]
                top += 1
            case OP_STORE:
                top -= 1
                if top[0] < 0:
                    return False
                out[0] = top[0]
                out += 1
            case _:
                top -= 1
                if not compute(step.op, top[-1], top[0], top - 1):
                    return False
        step += 1
    return True

# A step of arithmetic on int64; false where the result exceeds it.
def compute(op: i32, left: i64, right: i64, result: ptr[i64]) -> i1:
    value = 0
    over = False
    match op:
        case OP_ADD:
            value, over = add_overflow(left, right)
        case OP_SUBTRACT:
            value, over = sub_overflow(left, right)
        case OP_MULTIPLY:
            value, over = mul_overflow(left, right)
        case OP_MAX:
            value = max(left, right)
        case OP_MIN:
            value = min(left, right)
        case _:
            if right < 1:  # left to Python code
                return False
            value = left % right
            is_below = value < 0
            if op == OP_FLOOR_DIVIDE:
                value = left // right - i64(is_below)
            elif is_below:
                value += right
    result[0] = value
    return not over

# ---- Calls that return -----------------------------------------------------------------------
# Completes a call whose inputs are in the frame; returns the outputs, which are made in the
# library of `like` (null: numpy), or `out`. Null with an exception pending; or without one, if
# nothing was written yet and Python code must make the call.
def returned(returning: ptr[Returning], frame: ptr[Frame], like: ptr, out: ptr) -> ptr:
    made = alloca(Outputs)
    function = returning.function
    outputs = returning.outputs
    packed = ptr[PackedFunc](function + HEADER)
    is_foreign = packed.calls_back != 0
    memset(at(made.objects), 0, 8 * outputs)
    memset(at(made.managed), 0, 8 * outputs)
    is_ready = True
    if out:
        is_ready = take_outputs(returning, out, frame, packed.written, is_foreign)
    else:
        if not find_extents(returning, frame, at(made.extents)):
            return None
        row = ptr[Route](None)
        if like:
            row = route_of(like)
            if not row:
                return None
        is_ready = make_outputs(returning, row, made, frame, is_foreign)
    outer = alloca(ptr)
    if is_ready and begin(is_foreign, outer):
        result = alloca(Result)
        count = i32(returning.inputs + outputs)
        values = at(frame.values)
        status = run(packed, values, at(frame.codes), count, result, at(result.code))
        if status != 0 and status != VARIANT:
            explain(function, status)
        end(outer)
        if status == 0:
            if out:
                return given_back(out, outputs)
            if finish_outputs(made, outputs):
                all = only_or_tuple(at(made.objects), outputs)
                if all:
                    return all
            else:
                explain(function, -1)
    drop_outputs(made, outputs)
    if out and not is_foreign:
        forgive(refusals)  # nothing was written: Python code makes the call, and names the output
    return None

# PyObject* call_returning(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
@export
def call_returning(self: ptr, args: ptr[ptr], flagged: i64, keywords: ptr) -> ptr:
    frame = alloca(Frame)
    bound = alloca(array[ptr, ARGUMENTS])
    returning = ptr[Returning](self + HEADER)
    positional = flagged & 0x7FFFFFFFFFFFFFFF
    if returning.function:
        n = positional
        arguments = args
        out = ptr(None)
        expected = returning.inputs
        if keywords:
            is_exact = positional + PyTuple_Size(keywords) == expected
            names = returning.names if is_exact else returning.names_and_out
            n = bind(names, args, positional, keywords, bound)
            arguments = bound
            if n == expected + 1:
                n = expected
                out = None if bound[n] == none else bound[n]
        if n == expected:
            packed = ptr[PackedFunc](returning.function + HEADER)
            if encode_all(arguments, n, returning.places, packed, 0, frame):
                like = arguments[returning.first] if returning.first >= 0 else None
                made = returned(returning, frame, like, out)
                if made:
                    return made
    return hand_over(self, args, positional, keywords)
"""


class CompiledStep(ctypes.Structure):
    """A step (:class:`minitvm.runtime.results.Step`) as compiled code has it."""

    _fields_ = fields_of(RETURNING_STRUCTURES, "Step")


class CompiledOutput(ctypes.Structure):
    """An output as compiled code makes it."""

    _fields_ = fields_of(RETURNING_STRUCTURES, "Output")


class StoredReturning(ctypes.Structure):
    """The fields of a Returning that compiled code reads, in the object itself."""

    _fields_ = fields_of(RETURNING_STRUCTURES, "Returning")
