"""The native code of the outputs of calls that return: a part of the call path's page.

The outputs are made by the framework of the first array among the inputs, or given by the caller.
The structures of outputs are those of :mod:`minitvm.runtime.returning_text`.
"""

from __future__ import annotations

import ctypes

from minitvm.runtime.native_text import fields_of

TORCH_DTYPES = 32
_SMALL = 1 << 16  # elements of a tensor whose allocation by torch hardly ever waits or fails


OUTPUTS_WORDS = {"SMALL": _SMALL, "TORCH_DTYPES": TORCH_DTYPES}

OUTPUTS = """
class TorchDtype:
    dtype: i32
    number: i32

# Outputs under construction: numpy's arrays, or managed tensors, which become arrays at the end.
class Outputs:
    objects: array[ptr, OUTPUTS]
    managed: array[ptr[Managed], OUTPUTS]
    extents: array[i64, EXTENTS]
    to_object: ptr  # null: numpy's arrays

new_array: ptr  # numpy's PyArray_NewFromDescr, or null
array_type: ptr  # np.ndarray
tuple_type: ptr
refusals: ptr  # the tuple of the classes of errors about arguments
# torch's functions of foreign.TorchAllocator, or null; and torch's numbers of dtypes, up to a
# zero.
torch_empty: ptr
torch_data: ptr
torch_release: ptr
torch_wrap: ptr
torch_dtypes: array[TorchDtype, TORCH_DTYPES]

# ---- Making ---------------------------------------------------------------------------------
# Ignores an allocator's error: Python code will try again, and raise a better one.
def ignore_error(context: ptr, kind: ptr, message: ptr):
    return

# A new array of numpy, which is also described in `tensor`; null where there is none.
def new_by_numpy(
    output: ptr[Output], extents: ptr[i64], tensor: ptr[DLTensor], frame: ptr[Frame],
    is_foreign: i1, out: ptr[ptr],
) -> i1:
    if not output.descr:
        return False
    Py_IncRef(output.descr)  # numpy takes it
    out[0] = call(
        ptr, new_array, array_type, output.descr, output.ndim, extents, None, None, i32(0), None
    )
    if not out[0]:
        forgive(exception)
        return False
    return read_numpy(out[0], tensor, frame, True, is_foreign)

# A new compact tensor of torch, which is also described in `tensor`. Null for tensors that must be
# made through DLPack: large ones, whose allocation may wait or fail.
def new_by_torch(output: ptr[Output], extents: ptr[i64], tensor: ptr[DLTensor]) -> ptr:
    if not torch_empty:
        return None
    row = at(torch_dtypes)
    while row.dtype != output.dtype:
        if row.dtype == 0:
            return None
        row += 1
    count = i64(u32(output.ndim))
    strides = alloca(array[i64, EXTENTS])
    stride = 1
    d = count
    while d:
        d -= 1
        strides[d] = stride
        stride, over = mul_overflow(stride, max(extents[d], 1))
        if over or u64(stride) > SMALL:
            return None
    handle = alloca(ptr)
    if call(i32, torch_empty, count, extents, strides, row.number, i32(0), i32(-1), handle):
        return None
    call(i32, torch_data, handle[0], tensor)
    object = call(ptr, torch_wrap, handle[0])
    call(i32, torch_release, handle[0])
    if not object:
        forgive(exception)
        return None
    describe(tensor, output.ndim, output.dtype, extents)
    return object

# A new managed tensor of a library, or null.
def new_by_exchange(output: ptr[Output], extents: ptr[i64], allocate: ptr) -> ptr[Managed]:
    prototype = alloca(DLTensor)
    prototype.data = None
    describe(prototype, output.ndim, output.dtype, extents)
    managed = alloca(ptr[Managed])
    managed[0] = None
    status = call(i32, allocate, prototype, managed, None, ignore_error)
    return None if status else managed[0]

# Makes the outputs in the framework of the first array's route, and puts them into the frame.
# False: Python code must make the call; outputs that were made are in `made`.
def make_outputs(
    returning: ptr[Returning], row: ptr[Route], made: ptr[Outputs], frame: ptr[Frame],
    is_foreign: i1,
) -> i1:
    by_numpy = not row or row.route == ROUTE_NUMPY
    made.to_object = None if by_numpy else row.to_object
    if by_numpy:
        if not new_array:
            return False
    elif not row.allocate or not row.to_object:
        return False
    extents = at(made.extents)
    for i in range(returning.outputs):
        output = returning.made[i]
        position = output.position
        tensor = frame.tensors[position]
        if by_numpy:
            if not new_by_numpy(output, extents, tensor, frame, is_foreign, at(made.objects[i])):
                return False
        else:
            if row.route == ROUTE_TORCH:
                made.objects[i] = new_by_torch(output, extents, tensor)
            if not made.objects[i]:
                managed = new_by_exchange(output, extents, row.allocate)
                made.managed[i] = managed
                if not managed:
                    return False
                tensor = at(managed.dl_tensor)
        frame.values[position] = i64(tensor)
        frame.codes[position] = CODE_DLTENSOR_HANDLE
        extents += output.ndim
    return True

# Releases the outputs of a call that failed; a pending exception stays.
def drop_outputs(made: ptr[Outputs], count: i64):
    pending = alloca(Pending)
    set_aside(pending)
    for i in range(count):
        if made.objects[i]:
            Py_DecRef(made.objects[i])
        managed = made.managed[i]
        if managed and managed.deleter:
            call(void, managed.deleter, managed)
    bring_back(pending)

# Turns managed tensors into arrays of their framework. False with or without an exception
# pending.
def finish_outputs(made: ptr[Outputs], count: i64) -> i1:
    if made.to_object:
        for i in range(count):
            managed = made.managed[i]
            if managed:
                made.managed[i] = None  # the function takes it, even if it fails
                if call(i32, made.to_object, managed, at(made.objects[i])):
                    made.objects[i] = None
                    return False
    return True

# The only object, or a tuple that takes all objects; null with an exception pending.
def only_or_tuple(objects: ptr[ptr], count: i64) -> ptr:
    if count == 1:
        return objects[0]
    tuple = PyTuple_New(count)
    if tuple:
        for i in range(count):
            PyTuple_SetItem(tuple, i, objects[i])
            objects[i] = None
    return tuple

# Puts the outputs that the caller gives into the frame. False: Python code must make the call.
def take_outputs(
    returning: ptr[Returning], out: ptr, frame: ptr[Frame], written: i64, is_foreign: i1
) -> i1:
    count = returning.outputs
    is_tuple = type_of(out) == tuple_type
    if (PyTuple_Size(out) if is_tuple else 1) != count:
        return False
    for i in range(count):
        object = PyTuple_GetItem(out, i) if is_tuple else out
        if object == none:
            return False
        if not encode(object, returning.made[i].position, frame, written, is_foreign):
            return False
    return True

# The result of a call with given outputs: a new reference to the only one, or to the tuple.
def given_back(out: ptr, count: i64) -> ptr:
    result = out
    if count == 1 and type_of(out) == tuple_type:
        result = PyTuple_GetItem(out, 0)
    Py_IncRef(result)
    return result
"""


class TorchDtype(ctypes.Structure):
    """torch's number of a dtype."""

    _fields_ = fields_of(OUTPUTS, "TorchDtype")
