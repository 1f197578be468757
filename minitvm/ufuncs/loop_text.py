"""The loop of a ufunc as machine code: it chooses a kernel, describes the operands as ``DLTensor``
and calls.

numpy gives ``void loop(char** args, npy_intp* dimensions, npy_intp* steps, void* data)`` the number
of elements of the batch and the extents of the core dimensions, the distance between successive
elements of each operand, and the strides of the core dimensions, in bytes (numpy, "Universal
functions (ufunc) API", ``PyUFuncGenericFunction``). ::

    all operands compact                       one call for the batch
    strides, and a small core                  one call, of the variant for strides
    compact cores of 256 elements or more      a call for each element
    a chain (reduce, accumulate, at)           one call, of a kernel for chains
    another result that is read at once        a call for each element

A kernel is identified by its form (the inputs that all elements share, or the kind of the chain)
and by the extents of the core dimensions. If a kernel is missing, the loop asks Python for it, with
the GIL. Where the work doesn't justify a kernel of its own, the kernel for all extents is used.
"""

from __future__ import annotations

from minitvm.runtime.arrangement import (
    ASKS_FOR_VARIANT,
    FAILED_HOLDING,
    IS_WITHOUT_GIL,
    NEEDS_VARIANT,
)
from minitvm.runtime.native_text import STRUCTURES, TENSORS, native_text
from minitvm.runtime.values import ArgTypeCode
from minitvm.ufuncs.chains_text import CHAINS

MOST_KERNELS = 32  # of a loop
LARGE_EXTENT = 64  # a core dimension beyond it may be a variable in a kernel of several extents
ANY, EVERY = -1, -2  # stands for such an extent; stands for any extent
REDUCE, ACCUMULATE, UPDATE = -1, -2, -3  # the forms of chains; others are sets of inputs, as bits

_LARGE_CORE = 256  # elements of all operands: a call for each core then costs little
_FEW = (
    256  # elements, for which the variant in place of the kernel for all costs more than it saves
)
_SHORT_CHAIN = 1024  # elements
_LEAST_WORK = 256  # elements of all operands of a batch, from which on a kernel is chosen
_WORDS = {
    "ACCUMULATE": ACCUMULATE,
    "ANY": ANY,
    "ASKS": ASKS_FOR_VARIANT,
    "CODE_ARRAY": int(ArgTypeCode.DLTENSOR_HANDLE),
    "EVERY": EVERY,
    "FEW": _FEW,
    "HOLDING": FAILED_HOLDING,
    "LARGE_CORE": _LARGE_CORE,
    "LARGE_EXTENT": LARGE_EXTENT,
    "LEAST_WORK": _LEAST_WORK,
    "MOST_KERNELS": MOST_KERNELS,
    "REDUCE": REDUCE,
    "SHORT": _SHORT_CHAIN,
    "UPDATE": UPDATE,
    "VARIANT": NEEDS_VARIANT,
    "WITHOUT_GIL": ASKS_FOR_VARIANT | IS_WITHOUT_GIL,
}

LOOP = r"""
# A loop, its kernels, and their operands (kernels.LoopFields, KernelFields, OperandFields).
class Loop:
    base: ptr[Kernel]
    kernels: i64
    may_ask: i64
    may_chain: i64
    inputs: i64
    names: i64
    count: i64
    words: i64
    table: array[ptr[Kernel], MOST_KERNELS]

class Kernel:
    form: i64
    is_chain: i64
    extents: ptr[i64]
    call: ptr
    resource: ptr
    last_error: ptr
    count: i64
    operands: ptr[Operand]
    packed: ptr[Packed]  # the function's fields, if it never calls back
    plain: ptr  # int (void** addresses, int64_t* sizes), or NULL

# The first fields of a PackedFunc (call_path_text.StoredFunction).
class Packed:
    function: ptr
    resource: ptr
    variants: ptr[ptr]

class Operand:
    position: i64
    source: i64
    rank: i64
    batched: i64
    dtype: i32
    output: i32
    size: i64
    dims: ptr[i64]
    first_step: i64

fail: ptr  # sets the exception of a text
ask: ptr  # makes a kernel

def raise_text(text: ptr):
    gil = PyGILState_Ensure()
    if not PyErr_Occurred():
        PyObject_CallFunction(fail, "y", text)
    PyGILState_Release(gil)

# The number of elements of an operand's core; `compact` becomes false if they don't lie side by
# side.
def core_of(operand: ptr[Operand], dimensions: ptr[i64], steps: ptr[i64], compact: ptr[i1]) -> i64:
    elements = 1
    d = operand.rank
    while d:
        d -= 1
        extent = dimensions[operand.dims[d]]
        if steps[operand.first_step + d] != elements * operand.size and extent > 1:
            compact[0] = False
        elements *= extent
    return elements

# Calls the variant of a packed function that takes some arrays, without the precautions for calls
# by arbitrary C code. Returns 0; -1 with an exception pending; or VARIANT, if the precautions are
# needed and nothing was written. If the caller holds the GIL, long kernels release it.
def call_variant(packed: ptr[Packed], values: ptr, codes: ptr, count: i32) -> i32:
    variant = packed.variants
    if not variant:
        return VARIANT
    ret = alloca(i64)
    code = alloca(i32)
    holds = PyGILState_Check() != 0
    status: i32 = VARIANT
    while status == VARIANT:
        if not variant[0]:
            return VARIANT
        code[0] = ASKS if holds else WITHOUT_GIL
        status = call(i32, variant[0], values, codes, count, ret, code, packed.resource)
        variant += 1
    if status == 0:
        return 0
    if status == HOLDING:  # the variant has taken the GIL to raise
        PyGILState_Release(load(i32, ret))
        return -1
    gil = PyGILState_Ensure()
    raised = holds and PyErr_Occurred()
    if not raised:  # nothing was written; an error that was set is set again
        PyErr_Clear()
    PyGILState_Release(gil)
    return -1 if raised else VARIANT

# Describes the operands for `n` elements, from the addresses `args` on, and calls.
def call_for(
    kernel: ptr[Kernel], args: ptr[ptr], dimensions: ptr[i64], steps: ptr[i64], n: i64,
    tensors: ptr[DLTensor], values: ptr[ptr], codes: ptr[i32], words: ptr[i64],
) -> i32:
    free = words
    for i in range(kernel.count):
        operand = kernel.operands[i]
        # The sizes of numpy's numbers are powers of two.
        shift = cttz(operand.size)
        mask = operand.size - 1
        batched = operand.batched
        whole = operand.rank + batched
        strides = free + whole
        tensor = tensors[i]
        tensor.data = args[operand.source]
        describe(tensor, i32(whole), operand.dtype, free)
        tensor.strides = strides
        values[operand.position] = tensor
        codes[operand.position] = CODE_ARRAY
        if batched:
            step = steps[operand.source]
            free[0] = n
            strides[0] = step >> shift
            if step & mask:
                raise_text("ValueError: expected strides that are multiples of the element's size")
                return -1
        for d in range(operand.rank):
            step = steps[operand.first_step + d]
            free[d + batched] = dimensions[operand.dims[d]]
            strides[d + batched] = step >> shift
            if step & mask:
                raise_text("ValueError: expected strides that are multiples of the element's size")
                return -1
        free = strides + whole
    count = i32(kernel.count)
    if kernel.packed:
        done = call_variant(kernel.packed, values, codes, count)
        if done != VARIANT:
            return done
    if call(i32, kernel.call, values, codes, count, None, None, kernel.resource):
        raise_text(call(ptr, kernel.last_error))
        return -1
    return 0

# The inputs that are the same for all elements, a bit for each; 0 if they all are.
def form_of_shares(loop: ptr[Loop], steps: ptr[i64]) -> i64:
    form = 0
    for i in range(loop.inputs):
        form |= i64(steps[i] == 0) << i
    return 0 if form == (1 << loop.inputs) - 1 else form

# The elements of the cores of all operands.
def cores_of(base: ptr[Kernel], dimensions: ptr[i64], steps: ptr[i64], compact: ptr[i1]) -> i64:
    sum = 0
    for i in range(base.count):
        sum += core_of(base.operands[i], dimensions, steps, compact)
    return sum

# Adds a kernel to the table, which has room for it. The caller holds the GIL.
@export
def add_kernel(loop: ptr[Loop], kernel: ptr[Kernel]):
    count = loop.kernels
    loop.table[count] = kernel
    store_release(count + 1, loop.kernels)

# Whether a kernel was made for some extents of the core dimensions.
def serves(kernel: ptr[Kernel], count: i64, extents: ptr[i64]) -> i1:
    for d in range(count):
        own = kernel.extents[d]
        if not (
            own == extents[d] or own == EVERY or (own == ANY and extents[d] > LARGE_EXTENT)
        ):
            return False
    return True

# The kernel of a form for the extents of the core dimensions: an existing one, one that Python
# makes, or the kernel for all extents. Null after an exception.
def kernel_for(loop: ptr[Loop], form: i64, dimensions: ptr[i64]) -> ptr[Kernel]:
    extents = dimensions + 1
    for k in range(load_acquire(loop.kernels)):
        kernel = loop.table[k]
        if kernel.form == form and serves(kernel, loop.names, extents):
            return kernel
    if not loop.may_ask:
        return loop.base
    gil = PyGILState_Ensure()
    made = ptr[Kernel](None)
    answer = PyObject_CallFunction(ask, "nnn", loop, form, extents)
    if answer:
        made = PyLong_AsVoidPtr(answer)
        Py_DecRef(answer)
    PyGILState_Release(gil)
    return made

# The kernel for a batch; null after an exception.
def kernel_of_batch(
    loop: ptr[Loop], dimensions: ptr[i64], steps: ptr[i64], n: i64
) -> ptr[Kernel]:
    form = form_of_shares(loop, steps) if n != 1 else 0
    if form | loop.names:
        compact = alloca(i1)
        if cores_of(loop.base, dimensions, steps, compact) * n >= LEAST_WORK:
            return kernel_for(loop, form, dimensions)
    return loop.base

# Whether the elements of the batch get a call each.
def is_split(kernel: ptr[Kernel], dimensions: ptr[i64], steps: ptr[i64], n: i64) -> i1:
    if n == 1:
        return False
    compact = alloca(i1)
    compact[0] = True
    sum = 0
    close = True
    for i in range(kernel.count):
        operand = kernel.operands[i]
        if operand.output and not operand.batched:
            return True
        elements = core_of(operand, dimensions, steps, compact)
        sum += elements
        if operand.batched and steps[i] != elements * operand.size:
            close = False
    return compact[0] and not close and sum >= LARGE_CORE

def run_loop(args: ptr[ptr], dimensions: ptr[i64], steps: ptr[i64], loop: ptr[Loop]):
    n = dimensions[0]
    if n <= 0:
        return
    count = loop.count
    tensors = alloca(DLTensor, count)
    values = alloca(ptr, count)
    codes = alloca(i32, count)
    words = alloca(i64, loop.words)
    form = form_of_chain(loop, args, steps, n)
    if form:
        chain = kernel_for(loop, form, dimensions)
        if not chain:
            return
        if chain.is_chain:
            if not run_short_chain(chain, args, steps, n, values):
                call_for(chain, args, dimensions, steps, n, tensors, values, codes, words)
            return
    kernel = loop.base
    if n == 1 or not is_serial(kernel, args, steps, n):
        kernel = kernel_of_batch(loop, dimensions, steps, n)
        if not kernel:
            return
        if not is_split(kernel, dimensions, steps, n):
            call_for(kernel, args, dimensions, steps, n, tensors, values, codes, words)
            return
    now = alloca(ptr, count)
    memcpy(now, args, 8 * count)
    for _ in range(n):
        if call_for(kernel, now, dimensions, steps, 1, tensors, values, codes, words):
            return
        for i in range(count):
            now[i] += steps[i]

# The loop that numpy calls. Lanes of a vector that stand for no element compute as well, and
# divide zero by zero. So no floating-point exceptions are reported, since many would be theirs.
@export
def ufunc_loop(args: ptr, dimensions: ptr, steps: ptr, loop: ptr):
    run_loop(args, dimensions, steps, loop)
    forget_exceptions()
"""
# The flags in SSE's register, which all of our arithmetic uses. C's functions also read the
# register of the x87 unit, which takes as long as a short loop.
_FORGET_X86 = """
def forget_exceptions():
    register = alloca(i32)
    x86_stmxcsr(register)
    if register[0] & 29:  # all but the inexact and denormal results
        register[0] &= -30
        x86_ldmxcsr(register)
"""
_FORGET = """
def forget_exceptions():
    flags = fetestexcept(15)
    if flags:
        feclearexcept(flags)
"""


def ufunc_loop_text(machine: str) -> str:
    """The LLVM IR of the loop for a machine, by the name that LLVM gives it."""
    forget = _FORGET_X86 if machine == "x86_64" else _FORGET
    return native_text(STRUCTURES + TENSORS + LOOP + CHAINS + forget, _WORDS)
