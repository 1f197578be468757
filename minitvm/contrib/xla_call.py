"""Built functions as custom calls of XLA: one handler of its typed FFI, which calls all of them.

XLA calls ``XLA_FFI_Error* handler(XLA_FFI_CallFrame*)`` with the buffers and the attributes of an
operation. The layouts are those of ``xla/ffi/api/c_api.h`` (OpenXLA, API version 0.3; jaxlib ships
the header). The handler is machine code, needs no GIL, and copies nothing: it describes each buffer
as a ``DLTensor`` and calls :attr:`PackedFunc.c_function`.

::

    %y = custom_call @minitvm_call(%x) {function = "twice", key = 0x5be5...}
                                                              |
      handler:  callees, by key  ->  { call, resource, last_error, what each argument is }

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
from minitvm.runtime.native_text import STRUCTURES, TENSORS, native_text
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

_TEXT = r"""
; ---- xla/ffi/api/c_api.h -----------------------------------------------------------------------
%Extension = type { i64 struct_size, i32 kind, ptr next }
%MetadataExtension = type { %Extension base, ptr metadata }
%Version = type { i64 struct_size, ptr extension, i32 major, i32 minor }
%Metadata = type { i64 struct_size, %Version version, i32 traits }
%Operands = type { i64 struct_size, ptr extension, i64 count, ptr types, ptr items }
%Attributes = type { i64 struct_size, ptr extension, i64 count, ptr types, ptr names, ptr items }
%Frame = type {
  i64 struct_size, ptr extension, ptr api, ptr context, i32 stage, %Operands args, %Operands rets,
  %Attributes attributes
}
%Span = type { ptr text, i64 length }
%Scalar = type { i32 dtype, ptr value }
%Buffer = type { i64 struct_size, ptr extension, i32 dtype, ptr data, i64 rank, ptr dims }
%Api = type {
  i64 struct_size, ptr extension, %Version version, ptr internal, ptr create_error
}
%ErrorArguments = type { i64 struct_size, ptr extension, ptr message, i32 code }

; ---- Callees -----------------------------------------------------------------------------------
; A function, and the descriptions of its arguments (xla_call._Callee, _Argument).
%Callee = type {
  i64 key, ptr next, ptr call, ptr resource, ptr last_error, i64 count, ptr arguments, i64 inputs,
  i64 outputs
}
%Argument = type { i32 kind, i32 operand, i32 rank, i32 dtype, i64 size }

@callees = internal global [BUCKETS x ptr] zeroinitializer  ; lists, by the keys' low bits

@unknown = internal constant [50 x i8] c"minitvm: expected jax_op() of this function first\00"
@other_frame = internal constant [49 x i8] c"minitvm: expected operands and a key of jax_op()\00"

define internal ptr @bucket_of(i64 %key) alwaysinline {
  %low = and i64 %key, LAST_BUCKET
  %bucket = getelementptr ptr, ptr @callees, i64 %low
  ret ptr %bucket
}

; Adds a callee, which lives as long as the process. The caller holds the GIL.
define void @add_callee(ptr %callee) {
  %key = load %Callee.key, ptr %callee
  %bucket = call ptr @bucket_of(i64 %key)
  %first = load ptr, ptr %bucket
  store %Callee.next %first, ptr %callee
  store atomic ptr %callee, ptr %bucket release, align 8
  ret void
}

define internal ptr @callee_of(i64 %key) {
entry:
  %bucket = call ptr @bucket_of(i64 %key)
  %first = load atomic ptr, ptr %bucket acquire, align 8
  br label %look
look:
  %at = phi ptr [ %first, %entry ], [ %next, %other ]
  br icmp eq ptr %at, null, label %leave, label %compare
compare:
  %found = load %Callee.key, ptr %at
  br icmp eq i64 %found, %key, label %leave, label %other
other:
  %next = load %Callee.next, ptr %at
  br label %look
leave:
  ret ptr %at
}

; ---- The frame ---------------------------------------------------------------------------------
define internal ptr @error(ptr %frame, ptr %message, i32 %code) {
  %arguments = alloca %ErrorArguments
  store %ErrorArguments.struct_size 28, ptr %arguments
  store %ErrorArguments.extension null, ptr %arguments
  store %ErrorArguments.message %message, ptr %arguments
  store %ErrorArguments.code %code, ptr %arguments
  %api = load %Frame.api, ptr %frame
  %create = load %Api.create_error, ptr %api
  %made = call ptr %create(ptr %arguments)
  ret ptr %made
}

; Tells XLA, which asks before it runs anything, the API version for which the handler was
; written. The fields used here are the same in all versions 0.x.
define internal ptr @tell_version(ptr %frame, ptr %extension) {
  %metadata = load %MetadataExtension.metadata, ptr %extension
  %version = getelementptr %Metadata.version, ptr %metadata
  %api = load %Frame.api, ptr %frame
  %theirs = getelementptr %Api.version, ptr %api
  %minor = load %Version.minor, ptr %theirs
  %newest = call i32 @llvm.smin.i32(i32 %minor, i32 NEWEST_MINOR)
  store %Version.major 0, ptr %version
  store %Version.minor %newest, ptr %version
  store %Metadata.traits 0, ptr %metadata
  ret ptr null
}

; The callee that the attribute "key" names, or null; and whether there is such an attribute.
define internal ptr @callee_in(ptr %frame, ptr %is_there) {
entry:
  store i1 false, ptr %is_there
  %attributes = getelementptr %Frame.attributes, ptr %frame
  %count = load %Attributes.count, ptr %attributes
  %types = load %Attributes.types, ptr %attributes
  %names = load %Attributes.names, ptr %attributes
  %items = load %Attributes.items, ptr %attributes
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %other ]
  br icmp eq i64 %i, %count, label %none, label %look
look:
  %i.next = add i64 %i, 1
  %name.at = getelementptr ptr, ptr %names, i64 %i
  %name = load ptr, ptr %name.at
  %length = load %Span.length, ptr %name
  br icmp eq i64 %length, 3, label %compare, label %other
compare:
  %text = load %Span.text, ptr %name
  %differs = call i32 @memcmp(ptr %text, ptr @key_name, i64 3)
  br icmp eq i32 %differs, 0, label %check, label %other
other:
  br label %next
check:
  %type.at = getelementptr i32, ptr %types, i64 %i
  %type = load i32, ptr %type.at
  br icmp eq i32 %type, ATTRIBUTE_SCALAR, label %read, label %none
read:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  %item = load ptr, ptr %item.at
  %dtype = load %Scalar.dtype, ptr %item
  br icmp eq i32 %dtype, TYPE_LONG, label %find, label %none
find:
  store i1 true, ptr %is_there
  %value = load %Scalar.value, ptr %item
  %key = load i64, ptr %value, align 1
  %found = call ptr @callee_of(i64 %key)
  ret ptr %found
none:
  ret ptr null
}
@key_name = internal constant [3 x i8] c"key"

; ---- Calls -------------------------------------------------------------------------------------
; The product of some extents.
define internal i64 @product(ptr %dims, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %more ]
  %sum = phi i64 [ 1, %entry ], [ %sum.next, %more ]
  br icmp eq i64 %i, %count, label %leave, label %more
more:
  %at = getelementptr i64, ptr %dims, i64 %i
  %extent = load i64, ptr %at
  %sum.next = mul i64 %sum, %extent
  %i.next = add i64 %i, 1
  br label %next
leave:
  ret i64 %sum
}

; The number of an operand's batch element for the outputs' batch element number %n.
define internal i64 @place_in(ptr %own, ptr %full, i64 %rank, i64 %n) {
entry:
  br label %next
next:
  %d = phi i64 [ %rank, %entry ], [ %d.next, %more ]
  %left = phi i64 [ %n, %entry ], [ %left.next, %more ]
  %step = phi i64 [ 1, %entry ], [ %step.next, %more ]
  %place = phi i64 [ 0, %entry ], [ %place.next, %more ]
  br icmp eq i64 %d, 0, label %leave, label %more
more:
  %d.next = sub i64 %d, 1
  %full.at = getelementptr i64, ptr %full, i64 %d.next
  %extent = load i64, ptr %full.at
  %own.at = getelementptr i64, ptr %own, i64 %d.next
  %own.extent = load i64, ptr %own.at
  %number = urem i64 %left, %extent
  %left.next = udiv i64 %left, %extent
  %same = icmp eq i64 %own.extent, 1
  %index = select i1 %same, i64 0, i64 %number
  %moved = mul i64 %index, %step
  %place.next = add i64 %place, %moved
  %step.next = mul i64 %step, %own.extent
  br label %next
leave:
  ret i64 %place
}

; The buffer of an argument.
define internal ptr @buffer_of(ptr %frame, ptr %argument) {
  %kind = load %Argument.kind, ptr %argument
  %operand = load %Argument.operand, ptr %argument
  %args = getelementptr %Frame.args, ptr %frame
  %rets = getelementptr %Frame.rets, ptr %frame
  %is_output = icmp eq i32 %kind, OUTPUT
  %operands = select i1 %is_output, ptr %rets, ptr %args
  %items = load %Operands.items, ptr %operands
  %place = getelementptr ptr, ptr %items, i32 %operand
  %buffer = load ptr, ptr %place
  ret ptr %buffer
}

; Number %n of a buffer as a value of a packed call.
define internal void @read_number(ptr %data, i64 %n, i32 %dtype, ptr %to) {
  switch i32 %dtype, label %word [ i32 TYPE_INT, label %int  i32 TYPE_UINT, label %uint
                                   i32 TYPE_FLOAT, label %float ]
int:
  %int.at = getelementptr i32, ptr %data, i64 %n
  %i = load i32, ptr %int.at
  %i.wide = sext i32 %i to i64
  store i64 %i.wide, ptr %to
  ret void
uint:
  %uint.at = getelementptr i32, ptr %data, i64 %n
  %u = load i32, ptr %uint.at
  %u.wide = zext i32 %u to i64
  store i64 %u.wide, ptr %to
  ret void
float:
  %float.at = getelementptr float, ptr %data, i64 %n
  %f = load float, ptr %float.at
  %f.wide = fpext float %f to double
  store double %f.wide, ptr %to
  ret void
word:
  %word.at = getelementptr i64, ptr %data, i64 %n
  %w = load i64, ptr %word.at
  store i64 %w, ptr %to
  ret void
}

; Whether all operands are there, each with the same number of batch dimensions in front.
define internal i1 @fits(ptr %frame, ptr %callee, i64 %front) {
entry:
  %count = load %Callee.count, ptr %callee
  %arguments = load %Callee.arguments, ptr %callee
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ]
  br icmp eq i64 %i, %count, label %good, label %look
look:
  %i.next = add i64 %i, 1
  %argument = getelementptr %Argument, ptr %arguments, i64 %i
  %buffer = call ptr @buffer_of(ptr %frame, ptr %argument)
  %rank = load %Buffer.rank, ptr %buffer
  %own = load %Argument.rank, ptr %argument
  %own.wide = sext i32 %own to i64
  %whole = add i64 %own.wide, %front
  br icmp eq i64 %rank, %whole, label %next, label %bad
good:
  ret i1 true
bad:
  ret i1 false
}

; Sets the fields that don't change between the calls for the batch elements.
define internal void @describe_operands(ptr %frame, ptr %callee, i64 %front, ptr %tensors,
                                        ptr %values, ptr %codes) {
entry:
  %count = load %Callee.count, ptr %callee
  %arguments = load %Callee.arguments, ptr %callee
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %done ]
  br icmp eq i64 %i, %count, label %leave, label %look
look:
  %i.next = add i64 %i, 1
  %argument = getelementptr %Argument, ptr %arguments, i64 %i
  %kind = load %Argument.kind, ptr %argument
  %code.at = getelementptr i32, ptr %codes, i64 %i
  br icmp ule i32 %kind, OUTPUT, label %array, label %number
array:
  %buffer = call ptr @buffer_of(ptr %frame, ptr %argument)
  %dims = load %Buffer.dims, ptr %buffer
  %shape = getelementptr i64, ptr %dims, i64 %front
  %rank = load %Argument.rank, ptr %argument
  %dtype = load %Argument.dtype, ptr %argument
  %tensor = getelementptr %DLTensor, ptr %tensors, i64 %i
  call void @describe(ptr %tensor, i32 %rank, i32 %dtype, ptr %shape)
  %value.at = getelementptr i64, ptr %values, i64 %i
  store ptr %tensor, ptr %value.at
  store i32 CODE_ARRAY, ptr %code.at
  br label %done
number:
  %is_int = icmp eq i32 %kind, INTEGER
  %code = select i1 %is_int, i32 CODE_INT, i32 CODE_FLOAT
  store i32 %code, ptr %code.at
  br label %done
done:
  br label %next
leave:
  ret void
}

; The addresses and the numbers of call %n.
define internal void @move_operands(ptr %frame, ptr %callee, i64 %front, ptr %full, i64 %n,
                                    ptr %tensors, ptr %values) {
entry:
  %count = load %Callee.count, ptr %callee
  %arguments = load %Callee.arguments, ptr %callee
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %done ]
  br icmp eq i64 %i, %count, label %leave, label %look
look:
  %i.next = add i64 %i, 1
  %argument = getelementptr %Argument, ptr %arguments, i64 %i
  %buffer = call ptr @buffer_of(ptr %frame, ptr %argument)
  %data = load %Buffer.data, ptr %buffer
  %dims = load %Buffer.dims, ptr %buffer
  %shape = getelementptr i64, ptr %dims, i64 %front
  %rank = load %Argument.rank, ptr %argument
  %rank.wide = sext i32 %rank to i64
  %elements = call i64 @product(ptr %shape, i64 %rank.wide)
  %place = call i64 @place_in(ptr %dims, ptr %full, i64 %front, i64 %n)
  %before = mul i64 %place, %elements
  %kind = load %Argument.kind, ptr %argument
  br icmp ule i32 %kind, OUTPUT, label %array, label %number
array:
  %size = load %Argument.size, ptr %argument
  %offset = mul i64 %before, %size
  %first = getelementptr i8, ptr %data, i64 %offset
  %tensor = getelementptr %DLTensor, ptr %tensors, i64 %i
  store %DLTensor.data %first, ptr %tensor
  br label %done
number:
  %dtype = load %Buffer.dtype, ptr %buffer
  %value.at = getelementptr i64, ptr %values, i64 %i
  call void @read_number(ptr %data, i64 %place, i32 %dtype, ptr %value.at)
  br label %done
done:
  br label %next
leave:
  ret void
}

define internal ptr @run_callee(ptr %frame, ptr %callee) {
entry:
  %count = load %Callee.count, ptr %callee
  %call = load %Callee.call, ptr %callee
  %resource = load %Callee.resource, ptr %callee
  %narrow = trunc i64 %count to i32
  %args = getelementptr %Frame.args, ptr %frame
  %rets = getelementptr %Frame.rets, ptr %frame
  %given = load %Operands.count, ptr %args
  %inputs = load %Callee.inputs, ptr %callee
  br icmp eq i64 %given, %inputs, label %look, label %bad
look:
  %asked = load %Operands.count, ptr %rets
  %outputs = load %Callee.outputs, ptr %callee
  br icmp eq i64 %asked, %outputs, label %measure, label %bad
measure:
  ; Every output has all batch dimensions, so those of the last argument, an output, count.
  %arguments = load %Callee.arguments, ptr %callee
  %first = call ptr @first_output(ptr %arguments)
  %result = call ptr @buffer_of(ptr %frame, ptr %first)
  %rank = load %Buffer.rank, ptr %result
  %own = load %Argument.rank, ptr %first
  %own.wide = sext i32 %own to i64
  %front = sub i64 %rank, %own.wide
  br icmp sge i64 %front, 0, label %check, label %bad
check:
  %fits = call i1 @fits(ptr %frame, ptr %callee, i64 %front)
  br i1 %fits, label %prepare, label %bad
prepare:
  %full = load %Buffer.dims, ptr %result
  %calls = call i64 @product(ptr %full, i64 %front)
  %tensors = alloca %DLTensor, i64 %count
  %values = alloca i64, i64 %count
  %codes = alloca i32, i64 %count
  call void @describe_operands(ptr %frame, ptr %callee, i64 %front, ptr %tensors, ptr %values,
                               ptr %codes)
  br label %next
next:
  %n = phi i64 [ 0, %prepare ], [ %n.next, %one ]
  br icmp eq i64 %n, %calls, label %good, label %one
one:
  %n.next = add i64 %n, 1
  call void @move_operands(ptr %frame, ptr %callee, i64 %front, ptr %full, i64 %n, ptr %tensors,
                           ptr %values)
  %status = call i32 %call(ptr %values, ptr %codes, i32 %narrow, ptr null, ptr null, ptr %resource)
  br icmp eq i32 %status, 0, label %next, label %failed
good:
  ret ptr null
failed:
  %last_error = load %Callee.last_error, ptr %callee
  %text = call ptr %last_error()
  %error = call ptr @error(ptr %frame, ptr %text, i32 FAILED_PRECONDITION)
  ret ptr %error
bad:
  %refused = call ptr @error(ptr %frame, ptr @other_frame, i32 INVALID_ARGUMENT)
  ret ptr %refused
}

; The first argument that is an output: there is one.
define internal ptr @first_output(ptr %arguments) {
entry:
  br label %next
next:
  %at = phi ptr [ %arguments, %entry ], [ %after, %next ]
  %kind = load %Argument.kind, ptr %at
  %after = getelementptr %Argument, ptr %at, i64 1
  br icmp eq i32 %kind, OUTPUT, label %leave, label %next
leave:
  ret ptr %at
}

; XLA_FFI_Error* handler(XLA_FFI_CallFrame*)
define ptr @handle(ptr %frame) {
entry:
  %is_there = alloca i1
  %first = load %Frame.extension, ptr %frame
  br label %extensions
extensions:
  %extension = phi ptr [ %first, %entry ], [ %following, %other ]
  br icmp eq ptr %extension, null, label %stages, label %look
look:
  %kind = load %Extension.kind, ptr %extension
  br icmp eq i32 %kind, METADATA, label %metadata, label %other
other:
  %following = load %Extension.next, ptr %extension
  br label %extensions
metadata:
  %told = call ptr @tell_version(ptr %frame, ptr %extension)
  ret ptr %told
stages:
  %stage = load %Frame.stage, ptr %frame
  br icmp eq i32 %stage, EXECUTE, label %execute, label %nothing
nothing:
  ret ptr null
execute:
  %callee = call ptr @callee_in(ptr %frame, ptr %is_there)
  br icmp eq ptr %callee, null, label %missing, label %run
run:
  %done = call ptr @run_callee(ptr %frame, ptr %callee)
  ret ptr %done
missing:
  %there = load i1, ptr %is_there
  %message = select i1 %there, ptr @unknown, ptr @other_frame
  %error = call ptr @error(ptr %frame, ptr %message, i32 NOT_FOUND)
  ret ptr %error
}
"""


class _Argument(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("operand", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("size", ctypes.c_int64),
    )


class _Callee(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_int64),
        ("next", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
        ("resource", ctypes.c_void_p),
        ("last_error", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("arguments", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


def xla_call_text() -> str:
    """The LLVM IR of the handler."""
    return native_text(STRUCTURES + TENSORS + _TEXT, _WORDS)


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
