"""The native code that reads the arguments of calls: a part of the call path's page.

``encode`` turns an object into a ``TVMValue`` and its type code in the frame of a call, by the
route that its exact type takes; ``bind`` puts arguments into the order of names.
"""

from __future__ import annotations

ARGUMENTS = """
# ---- Arguments -------------------------------------------------------------------------------
@inline
def type_of(object: ptr) -> ptr:
    return load(ptr, object + TYPE)

# The row of the route for an object's type, or null. The row that was found last is tried early.
@inline
def route_of(object: ptr) -> ptr[Route]:
    type = type_of(object)
    row = at(routes)
    if row.type != type:
        row = found_route[0]
        if not row or row.type != type:
            row = search_route(type)
    return row

@noinline
def search_route(type: ptr) -> ptr[Route]:
    row = at(routes)
    while row.type != type:
        if not row.type:
            return None
        row += 1
    found_route[0] = row
    return row

# Puts argument number `i` into the frame; returns TORCHS for a tensor of torch, and 1 for another
# value. 0: Python code must convert it; an error is set only
# if it has nothing to do with the argument, such as the exception of a signal.
def encode(object: ptr, i: i64, frame: ptr[Frame], written: i64, is_foreign: i1) -> i32:
    # A callback may write its arguments, unless Python code tells it not to.
    is_written = i1(u64(written) >> u64(i)) | is_foreign
    tensor = frame.tensors[i]
    row = route_of(object)
    if not row:
        return 0
    value = i64(tensor)
    kind: i32 = 1
    code: i32 = CODE_DLTENSOR_HANDLE
    match row.route:
        case ROUTE_NUMPY:
            if not read_numpy(object, tensor, frame, is_written, is_foreign):
                return 0
        case ROUTE_EXCHANGE | ROUTE_TORCH:
            if row.route == ROUTE_TORCH:
                if not is_plain(object, is_written, at(frame.recording)):
                    return 0
                kind = TORCHS
            if not read_exchange(row, object, tensor, is_written):
                return 0
        case ROUTE_NDARRAY:
            array = ptr[NDArray](object + HEADER)
            if array.state & 2 or (i1(array.state) and is_written):
                return 0
            value = i64(array)
            code = CODE_NDARRAY_HANDLE
        case ROUTE_BOOL:
            value = i64(object == true)
            code = CODE_INT
        case ROUTE_INT:
            overflow = alloca(i32)
            value = PyLong_AsLongLongAndOverflow(object, overflow)
            code = CODE_INT
            if overflow[0]:
                return 0
        case ROUTE_FLOAT:
            value = bits(PyFloat_AsDouble(object))
            code = CODE_FLOAT
        case ROUTE_STR:
            length = alloca(i64)
            text = PyUnicode_AsUTF8AndSize(object, length)
            if not text:
                PyErr_Clear()
                return 0
            if length[0] != strlen(text):
                return 0
            value = i64(text)
            code = CODE_STR
        case ROUTE_BYTES:
            PyBytes_AsStringAndSize(object, tensor, ptr(tensor) + 8)
            code = CODE_BYTES
        case ROUTE_NONE:
            value = 0
            code = CODE_NULL
        case ROUTE_POINTER:
            view = alloca(array[ptr, 10])  # a Py_buffer
            if PyObject_GetBuffer(object, view, 0):
                return 0
            value = load(i64, view[0])
            code = CODE_HANDLE
            PyBuffer_Release(view)
        case ROUTE_CONSTANT:
            number = PyDict_GetItemWithError(constants, object)
            if not number:
                return 0
            value = PyLong_AsLongLong(number)
            code = row.code
        case ROUTE_STORED:
            value = i64(object + HEADER)
            code = row.code
        case ROUTE_ITSELF:
            value = i64(object)
            code = row.code
        case _:
            return 0
    frame.values[i] = value
    frame.codes[i] = code
    return kind

# A numpy array as a DLTensor. For our own code a compact array has no strides, which means just
# that; other code is better given some.
def read_numpy(
    array: ptr, tensor: ptr[DLTensor], frame: ptr[Frame], is_written: i1, is_foreign: i1
) -> i1:
    descr = load(ptr, array + NUMPY_DESCR)
    number = load(u32, descr + NUMPY_TYPE_NUM)
    flags = load(i32, array + NUMPY_FLAGS)
    is_read_only = flags & 1024 == 0
    is_swapped = load(i8, descr + NUMPY_BYTEORDER) == FOREIGN_ORDER
    if is_swapped | (number >= DTYPES) | (is_read_only & is_written):
        return False
    dtype = u32(dtypes[number])
    if dtype == 0:
        return False
    ndim = load(i32, array + NUMPY_NDIM)
    tensor.data = load(ptr, array + NUMPY_DATA)
    describe(tensor, ndim, i32(dtype), load(ptr, array + NUMPY_SHAPE))
    if i1(flags) and not is_foreign:  # compact
        return True
    strides = load(ptr[i64], array + NUMPY_STRIDES)
    used = frame.strides_used
    count = i64(u32(ndim))
    if u64(used + count) > STRIDES:
        return False
    frame.strides_used = used + count
    own = at(frame.strides[used])
    tensor.strides = own
    shift = i64(cttz(dtype >> 8 & 255) - 3)
    mask = (1 << shift) - 1
    for dim in range(count):
        if strides[dim] & mask:
            return False
        own[dim] = strides[dim] >> shift
    return True

# An array as its library describes it. An array that the function writes is taken only if the
# library, asked by the full protocol, doesn't call it read-only. Errors of the library are cleared;
# other errors stay.
def read_exchange(row: ptr[Route], object: ptr, tensor: ptr[DLTensor], is_written: i1) -> i1:
    if is_written and row.managed:
        managed = alloca(ptr[Managed])
        managed[0] = None
        if call(i32, row.managed, object, managed):
            forgive(exception)
            return False
        its = managed[0]
        if not its:
            return False
        flags = its.flags
        if its.deleter:
            call(void, its.deleter, its)
        if i1(flags):  # read-only
            return False
    if call(i32, row.function, object, tensor):
        forgive(exception)
        return False
    return tensor.ndim == 0 or tensor.shape

# The managed tensor in the capsule that an array's `__dlpack__` returns; the capsule is consumed.
# Null for any other answer.
def consume(object: ptr) -> ptr:
    args = alloca(array[ptr, 2])
    args[0] = object
    args[1] = version
    managed = ptr(None)
    capsule = PyObject_VectorcallMethod(dlpack, args, 1, keywords)
    if not capsule:
        forgive(exception)
        return None
    if PyCapsule_IsValid(capsule, name_versioned):
        managed = PyCapsule_GetPointer(capsule, name_versioned)
        PyCapsule_SetName(capsule, name_used_versioned)
    Py_DecRef(capsule)
    return managed

# PyObject* import_array(NULL, PyObject*): an NDArray of the memory of an array whose exchange API
# describes it completely; None where it doesn't, and for other objects.
@export
def import_array(_: ptr, object: ptr) -> ptr:
    managed = ptr(None)
    row = route_of(object)
    if row:
        match row.route:
            case ROUTE_NUMPY:
                managed = consume(object)
            case ROUTE_EXCHANGE:
                managed = asked(row.managed, object)
            case ROUTE_TORCH:
                if is_plain(object, True, None):
                    managed = asked(torch_managed, object)
    if managed:
        return call(ptr, array_of, managed)
    if PyErr_Occurred():
        return None
    Py_IncRef(none)
    return none

# The managed tensor that an exchange API's function gives, or null.
def asked(function: ptr, object: ptr) -> ptr:
    managed = alloca(ptr)
    managed[0] = None
    if function and call(i32, function, object, managed):
        forgive(exception)
        return None
    return managed[0]

# Clears the pending error, if it belongs to a class.
def forgive(kind: ptr):
    if PyErr_ExceptionMatches(kind):
        PyErr_Clear()

# Whether a torch tensor's memory holds its values, and nothing has to be recorded for gradients:
# it has no tangent, and doesn't require grad. A tensor that requires grad is accepted if it is only
# read and grad mode is off, or if the call accepts recorded tensors. The exchange API doesn't
# tell this: it exports tensors that are lazily negated or conjugated as if they weren't.
def is_plain(object: ptr, is_written: i1, recording: ptr[i32]) -> i1:
    if torch_fields[0]:
        impl = load(ptr, object + torch_fields[0])
        keys = load(i64, impl + torch_fields[1])
        if keys != torch_plain[0] and keys != torch_plain[1]:
            return False
        if not load(ptr, impl + torch_fields[2]):
            return True
    elif has(object, is_neg, True) or has(object, is_conj, True):
        return False
    if may_be_dual():
        return False
    if not has(object, requires_grad, False):
        return True
    if is_written:
        return False
    if is_true(PyObject_CallFunctionObjArgs(is_grad_enabled, None)):
        if recording[0] == 0:
            return False
        recording[0] = 2
    return True

# Whether there may be dual tensors: a level of forward-mode AD is open, or this isn't known.
def may_be_dual() -> i1:
    level = PyObject_GetAttr(forward_ad, current_level)
    if not level:
        forgive(attribute_error)
        return True
    number = PyLong_AsLongLong(level)
    Py_DecRef(level)
    return number >= 0

# Whether an attribute, or the result of a method without arguments, is true or can't be got.
def has(object: ptr, name: ptr, is_method: i1) -> i1:
    if not is_method:
        return is_true(PyObject_GetAttr(object, name))
    self = alloca(ptr)
    self[0] = object
    return is_true(PyObject_VectorcallMethod(name, self, 1, None))

# Whether an object is true or null; releases it.
def is_true(value: ptr) -> i1:
    truth: i32 = -1
    if value:
        truth = PyObject_IsTrue(value)
        Py_DecRef(value)
    if truth < 0:
        forgive(attribute_error)
    return truth != 0

# Puts all arguments by position into `bound`; returns their number, or -1 if the names aren't
# those of the missing arguments.
def bind(names: ptr, args: ptr[ptr], count: i64, keywords: ptr, bound: ptr[ptr]) -> i64:
    if not names:
        return -1
    expected = PyTuple_Size(names)
    named = PyTuple_Size(keywords)
    if expected != count + named or u64(expected) > ARGUMENTS:
        return -1
    memcpy(bound, args, 8 * count)
    for k in range(named):
        j = count
        while PyTuple_GetItem(names, j) != PyTuple_GetItem(keywords, k):
            j += 1
            if j == expected:
                return -1
        bound[j] = args[count + k]
    return expected
"""
