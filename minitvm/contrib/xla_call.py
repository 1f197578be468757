"""Built functions as custom calls of XLA: one handler of its typed FFI, which calls all of them.

XLA calls ``XLA_FFI_Error* handler(XLA_FFI_CallFrame*)`` with the buffers and the attributes of an
operation. The layouts are those of ``xla/ffi/api/c_api.h`` (OpenXLA, API version 0.3; jaxlib ships
the header). The handler is machine code, needs no GIL, and copies nothing: it describes each buffer
as a ``DLTensor`` and calls :attr:`PackedFunc.c_function`.

::

    %y = custom_call @minitvm_call(%x) {function = "twice", key = 0x5be5...}
                                                              |
      handler: callees, by key -> { call, resource, last_error, kinds of arguments }

The key is a digest of the function's machine code, so that a program which XLA has cached on disk
finds the function in another process, and never finds another function.

A buffer may have more dimensions in front than the function's argument (``jax.vmap``): the handler
then calls the function for each element of these, and an operand whose extent is 1 there is the
same for all.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from typing import ClassVar, final

import numpy as np

from minitvm.contrib.built import Built
from minitvm.runtime.c_function import CFunction
from minitvm.runtime.dlpack import dtype_word
from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import STRUCTURES, TENSORS, fields_of, native_text
from minitvm.runtime.values import ArgTypeCode
from minitvm.tir.expr import Var

TARGET = "minitvm_call"
"""The name of the handler among XLA's custom calls."""

_BUCKETS = 1024  # of the table of callees
_INPUT, _OUTPUT, _INTEGER, _FLOAT = range(4)  # the kinds of arguments
_WORDS = {
    "INPUT": _INPUT,
    "OUTPUT": _OUTPUT,
    "INTEGER": _INTEGER,
    "LAST_BUCKET": _BUCKETS - 1,
    "BUCKETS": _BUCKETS,
    "CODE_ARRAY": int(ArgTypeCode.DLTENSOR_HANDLE),
    "CODE_INT": int(ArgTypeCode.INT),
    "CODE_FLOAT": int(ArgTypeCode.FLOAT),
    # c_api.h
    "METADATA": 1,
    "EXECUTE": 3,
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "FAILED_PRECONDITION": 9,
    "ATTRIBUTE_SCALAR": 3,
    "TYPE_INT": 4,
    "TYPE_LONG": 5,
    "TYPE_UINT": 8,
    "TYPE_FLOAT": 11,
    "NEWEST_MINOR": 3,
}

_PAGE = r"""
# ---- xla/ffi/api/c_api.h -----------------------------------------------------------------------
class Extension:
    struct_size: i64
    kind: i32
    next: ptr[Extension]

class MetadataExtension:
    base: Extension
    metadata: ptr[Metadata]

class Version:
    struct_size: i64
    extension: ptr
    major: i32
    minor: i32

class Metadata:
    struct_size: i64
    version: Version
    traits: i32

class Operands:
    struct_size: i64
    extension: ptr
    count: i64
    types: ptr
    items: ptr[ptr[Buffer]]

class Attributes:
    struct_size: i64
    extension: ptr
    count: i64
    types: ptr[i32]
    names: ptr[ptr[Span]]
    items: ptr[ptr[Scalar]]

class Frame:
    struct_size: i64
    extension: ptr[Extension]
    api: ptr[Api]
    context: ptr
    stage: i32
    args: Operands
    rets: Operands
    attributes: Attributes

class Span:
    text: ptr
    length: i64

class Scalar:
    dtype: i32
    value: ptr

class Buffer:
    struct_size: i64
    extension: ptr
    dtype: i32
    data: ptr
    rank: i64
    dims: ptr[i64]

class Api:
    struct_size: i64
    extension: ptr
    version: Version
    internal_api: ptr
    create_error: ptr

class ErrorArguments:
    struct_size: i64
    extension: ptr
    message: ptr
    code: i32

# ---- Callees -----------------------------------------------------------------------------------
# A function, and the descriptions of its arguments (xla_call._Callee, _Argument).
class Callee:
    key: i64
    next: ptr[Callee]
    call: ptr
    resource: ptr
    last_error: ptr
    count: i64
    arguments: ptr[Argument]
    inputs: i64
    outputs: i64

class Argument:
    kind: i32
    operand: i32
    rank: i32
    dtype: i32
    size: i64

callees: internal[array[ptr[Callee], BUCKETS]]  # lists, by the keys' low bits

# Adds a callee, which lives as long as the process. The caller holds the GIL.
@export
def add_callee(callee: ptr[Callee]):
    bucket = callee.key & LAST_BUCKET
    callee.next = callees[bucket]
    store_release(callee, callees[bucket])

def callee_of(key: i64) -> ptr[Callee]:
    callee = load_acquire(callees[key & LAST_BUCKET])
    while callee and callee.key != key:
        callee = callee.next
    return callee

# ---- The frame ---------------------------------------------------------------------------------
def error(frame: ptr[Frame], message: ptr, code: i32) -> ptr:
    arguments = alloca(ErrorArguments)
    arguments.struct_size = 28
    arguments.extension = None
    arguments.message = message
    arguments.code = code
    return call(ptr, frame.api.create_error, arguments)

# Tells XLA, which asks before it runs anything, the API version for which the handler was
# written. The fields used here are the same in all versions 0.x.
def tell_version(frame: ptr[Frame], metadata: ptr[Metadata]):
    metadata.version.major = 0
    metadata.version.minor = min(frame.api.version.minor, NEWEST_MINOR)
    metadata.traits = 0

# The place of the key among the attributes, or null.
def key_in(attributes: ptr[Attributes]) -> ptr:
    for i in range(attributes.count):
        name = attributes.names[i]
        if name.length == 3 and memcmp(name.text, "key", 3) == 0:
            item = attributes.items[i]
            is_key = attributes.types[i] == ATTRIBUTE_SCALAR and item.dtype == TYPE_LONG
            return item.value if is_key else None
    return None

# ---- Calls -------------------------------------------------------------------------------------
# The product of some extents.
def product(dims: ptr[i64], count: i64) -> i64:
    all = 1
    for i in range(count):
        all *= dims[i]
    return all

# The number of an operand's batch element for the outputs' batch element number `n`.
def place_in(own: ptr[i64], full: ptr[i64], rank: i64, n: i64) -> i64:
    left = u64(n)
    step = 1
    place = 0
    d = rank
    while d:
        d -= 1
        extent = u64(full[d])
        place += (0 if own[d] == 1 else i64(left % extent)) * step
        left //= extent
        step *= own[d]
    return place

# The buffer of an argument.
def buffer_of(frame: ptr[Frame], argument: ptr[Argument]) -> ptr[Buffer]:
    operands = at(frame.rets) if argument.kind == OUTPUT else at(frame.args)
    return operands.items[argument.operand]

# Number `n` of a buffer as a value of a packed call.
def read_number(data: ptr, n: i64, dtype: i32, to: ptr):
    match dtype:
        case TYPE_INT:
            store(i64(ptr[i32](data)[n]), to)
        case TYPE_UINT:
            store(i64(ptr[u32](data)[n]), to)
        case TYPE_FLOAT:
            store(double(ptr[float](data)[n]), to)
        case _:
            store(ptr[i64](data)[n], to)

# Whether all operands are there, each with the same number of batch dimensions in front.
def fits(frame: ptr[Frame], callee: ptr[Callee], front: i64) -> i1:
    for i in range(callee.count):
        argument = callee.arguments[i]
        if buffer_of(frame, argument).rank != i64(argument.rank) + front:
            return False
    return True

# Sets the fields that don't change between the calls for the batch elements.
def describe_operands(
    frame: ptr[Frame], callee: ptr[Callee], front: i64, tensors: ptr[DLTensor], values: ptr[ptr],
    codes: ptr[i32],
):
    for i in range(callee.count):
        argument = callee.arguments[i]
        if u32(argument.kind) <= OUTPUT:
            shape = buffer_of(frame, argument).dims + front
            describe(tensors[i], argument.rank, argument.dtype, shape)
            values[i] = tensors[i]
            codes[i] = CODE_ARRAY
        else:
            codes[i] = CODE_INT if argument.kind == INTEGER else CODE_FLOAT

# The addresses and the numbers of call `n`.
def move_operands(
    frame: ptr[Frame], callee: ptr[Callee], front: i64, full: ptr[i64], n: i64,
    tensors: ptr[DLTensor], values: ptr[ptr],
):
    for i in range(callee.count):
        argument = callee.arguments[i]
        buffer = buffer_of(frame, argument)
        place = place_in(buffer.dims, full, front, n)
        if u32(argument.kind) <= OUTPUT:
            elements = product(buffer.dims + front, i64(argument.rank))
            tensors[i].data = buffer.data + place * elements * argument.size
        else:
            read_number(buffer.data, place, buffer.dtype, at(values[i]))

def run_callee(frame: ptr[Frame], callee: ptr[Callee]) -> ptr:
    count = callee.count
    if frame.args.count == callee.inputs and frame.rets.count == callee.outputs:
        # Every output has all batch dimensions, so those of any output count.
        output = callee.arguments
        while output.kind != OUTPUT:  # there is one
            output += 1
        result = buffer_of(frame, output)
        front = result.rank - i64(output.rank)
        if front >= 0 and fits(frame, callee, front):
            tensors = alloca(DLTensor, count)
            values = alloca(ptr, count)
            codes = alloca(i32, count)
            describe_operands(frame, callee, front, tensors, values, codes)
            for n in range(product(result.dims, front)):
                move_operands(frame, callee, front, result.dims, n, tensors, values)
                if call(i32, callee.call, values, codes, i32(count), None, None, callee.resource):
                    return error(frame, call(ptr, callee.last_error), FAILED_PRECONDITION)
            return None
    return error(frame, "minitvm: expected operands and a key of jax_op()", INVALID_ARGUMENT)

# XLA_FFI_Error* handler(XLA_FFI_CallFrame*)
@export
def handle(frame: ptr[Frame]) -> ptr:
    extension = frame.extension
    while extension:
        if extension.kind == METADATA:
            tell_version(frame, ptr[MetadataExtension](extension).metadata)
            return None
        extension = extension.next
    if frame.stage != EXECUTE:
        return None
    key = key_in(at(frame.attributes))
    if not key:
        return error(frame, "minitvm: expected operands and a key of jax_op()", NOT_FOUND)
    callee = callee_of(load(i64, key, 1))
    if not callee:
        return error(frame, "minitvm: expected jax_op() of this function first", NOT_FOUND)
    return run_callee(frame, callee)
"""


class _Argument(ctypes.Structure):
    _fields_ = fields_of(_PAGE, "Argument")


class _Callee(ctypes.Structure):
    _fields_ = fields_of(_PAGE, "Callee")


def xla_call_text() -> str:
    """The LLVM IR of the handler."""
    return native_text(STRUCTURES + TENSORS + _PAGE, _WORDS)


@Once
def _code() -> NativeCode:
    return NativeCode(xla_call_text())


def handler() -> int:
    """The address of the handler, ``XLA_FFI_Error* (XLA_FFI_CallFrame*)``."""
    return _code().function("handle")


@final
class XlaCallee:
    """A built function as the handler calls it.

    It lives as long as the process, with the function and its code: a program that XLA has compiled
    may run at any time, and tells nobody when it is freed. One function has one callee.

    Attributes
    ----------
    key
        The value of the attribute ``key``, an ``int64``.
    """

    _made: ClassVar[dict[int, XlaCallee]] = {}

    def __init__(self, results: Built, key: int) -> None:
        self.key = key
        self._entry: CFunction = results.function.c_function
        self._arguments = (_Argument * len(results.params))()
        for place, fields in enumerate(_arguments(results)):
            self._arguments[place] = _Argument(*fields)
        self._callee = _Callee(
            key=key,
            call=self._entry.call,
            resource=self._entry.resource,
            last_error=self._entry.last_error,
            count=len(results.params),
            arguments=ctypes.addressof(self._arguments),
            inputs=len(results.inputs),
            outputs=len(results.outputs),
        )

    @classmethod
    def of(cls, results: Built) -> XlaCallee:
        """The callee of a function."""
        key = _key(results)
        found = cls._made.get(key)
        if found is None:
            found = cls._made.setdefault(key, cls(results, key))
            _ADD(_code().function("add_callee"))(ctypes.addressof(found._callee))
        return found


_ADD = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _key(results: Built) -> int:
    """A digest of the machine code and the name: an unpickled function has the same."""
    digest = hashlib.blake2b(results.function.program.object_code, digest_size=8)
    digest.update(results.name.encode())
    return int(np.frombuffer(digest.digest(), "int64")[0])


def _arguments(results: Built) -> Iterator[tuple[int, ...]]:
    """The descriptions of the arguments that the handler reads (_Argument)."""
    operands = {position: i for i, position in enumerate(results.inputs)}
    operands |= {position: i for i, position in enumerate(results.outputs)}
    for position, param in enumerate(results.params):
        dtype, operand = param.dtype, operands[position]
        if isinstance(param, Var):
            kind = _FLOAT if dtype.is_float else _INTEGER
            yield kind, operand, 0, 0, 0
        else:
            kind = _OUTPUT if position in results.outputs else _INPUT
            yield kind, operand, param.ndim, dtype_word(dtype), dtype.bits // 8
