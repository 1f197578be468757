"""The LLVM IR of calls that return: a part of the call path's page.

``call_returning`` puts the inputs into the frame of a call, as ``call`` does; computes the extents
of the outputs from them; has the framework of the first array make the outputs; calls the packed
function; and returns the outputs. Where it meets anything unknown, and before the packed function
has run, it hands the call, untouched, to ``Returning._call_slowly``.
"""

from __future__ import annotations

import ctypes

from minitvm.runtime.results import Op

MOST_OUTPUTS = 16  # the most outputs of a function on this path,
MOST_EXTENTS = 64  # their extents,
MOST_NUMBERS = 16  # and the numbers of one extent
STORE, END = len(Op), len(Op) + 1  # pops an extent from the stack; the end of the steps


class CompiledStep(ctypes.Structure):
    """A step (:class:`minitvm.runtime.results.Step`) as compiled code has it."""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("rank", ctypes.c_int32),  # the rank that the array must have
        ("dim", ctypes.c_int32),
        ("value", ctypes.c_int64),
    )


class CompiledOutput(ctypes.Structure):
    """An output as compiled code makes it."""

    _fields_ = (
        ("position", ctypes.c_int64),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),  # the DLDataType
        ("descr", ctypes.c_void_p),  # numpy's dtype; NULL: left to Python code
    )


class StoredReturning(ctypes.Structure):
    """The fields of a Returning that compiled code reads, in the object itself."""

    _fields_ = (
        ("function", ctypes.c_void_p),  # the PackedFunc; NULL: Python code makes all calls
        ("names", ctypes.c_void_p),  # the tuple of the inputs' names, interned
        ("names_and_out", ctypes.c_void_p),  # the same and "out"
        ("inputs", ctypes.c_int64),  # how many
        ("outputs", ctypes.c_int64),
        ("first", ctypes.c_int64),  # the number of the first array among the inputs, or -1
        ("places", ctypes.c_void_p),  # the positions of the inputs
        ("made", ctypes.c_void_p),  # the outputs,
        ("steps", ctypes.c_void_p),  # and the steps to all their extents
    )


RETURNING_WORDS = {
    "EXTENTS": MOST_EXTENTS,
    "NUMBERS": MOST_NUMBERS,
    "OUTPUTS": MOST_OUTPUTS,
    "OP_END": END,
    "OP_STORE": STORE,
    **{f"OP_{op.name}": int(op) for op in Op},
}

RETURNING_STRUCTURES = r"""
; The fields of a Returning, of its outputs and of its steps (returning_text).
%Returning = type {
  ptr function, ptr names, ptr names_and_out, i64 inputs, i64 outputs, i64 first, ptr places,
  ptr made, ptr steps
}
%Output = type { i64 position, i32 ndim, i32 dtype, ptr descr }
%Step = type { i32 op, i32 position, i32 rank, i32 dim, i64 value }
"""

RETURNING = r"""
; ---- Extents ---------------------------------------------------------------------------------
; Computes all extents of the outputs, from the arguments in the frame. False if an argument has
; another kind or rank, an extent is negative, or an intermediate number exceeds int64.
define internal i1 @find_extents(ptr %returning, ptr %frame, ptr %extents) {
entry:
  %stack = alloca [NUMBERS x i64]
  %steps = load %Returning.steps, ptr %returning
  br label %next
next:
  %step = phi ptr [ %steps, %entry ], [ %step.next, %push ], [ %step.next, %store ]
  %depth = phi i64 [ 0, %entry ], [ %depth.next, %push ], [ %below, %store ]
  %out = phi ptr [ %extents, %entry ], [ %out, %push ], [ %out.next, %store ]
  %step.next = getelementptr %Step, ptr %step, i64 1
  %op = load %Step.op, ptr %step
  %below = sub i64 %depth, 1
  %deeper = add i64 %depth, 1
  %top.at = getelementptr i64, ptr %stack, i64 %below
  switch i32 %op, label %arithmetic [
    i32 OP_CONSTANT, label %constant
    i32 OP_EXTENT, label %extent
    i32 OP_SCALAR, label %scalar
    i32 OP_STORE, label %take
    i32 OP_END, label %good
  ]

constant:
  %constant.value = load %Step.value, ptr %step
  br label %push
extent:
  %array.position = load %Step.position, ptr %step
  %array.index = zext i32 %array.position to i64
  %tensor.at = getelementptr %Frame.values, ptr %frame, i64 %array.index
  %code.at = getelementptr %Frame.codes, ptr %frame, i64 %array.index
  %tensor.code = load i32, ptr %code.at
  %is.tensor = icmp eq i32 %tensor.code, CODE_DLTENSOR_HANDLE
  %is.array = icmp eq i32 %tensor.code, CODE_NDARRAY_HANDLE
  %readable = or i1 %is.tensor, %is.array
  br i1 %readable, label %rank, label %bad
rank:
  %tensor = load ptr, ptr %tensor.at
  %ndim = load %DLTensor.ndim, ptr %tensor
  %expected = load %Step.rank, ptr %step
  br icmp eq i32 %ndim, %expected, label %dim, label %bad
dim:
  %shape = load %DLTensor.shape, ptr %tensor
  %number = load %Step.dim, ptr %step
  %number.wide = zext i32 %number to i64
  %extent.at = getelementptr i64, ptr %shape, i64 %number.wide
  %extent.value = load i64, ptr %extent.at
  br label %push
scalar:
  %scalar.position = load %Step.position, ptr %step
  %scalar.index = zext i32 %scalar.position to i64
  %scalar.code.at = getelementptr %Frame.codes, ptr %frame, i64 %scalar.index
  %scalar.code = load i32, ptr %scalar.code.at
  br icmp eq i32 %scalar.code, CODE_INT, label %scalar.read, label %bad
scalar.read:
  %scalar.at = getelementptr %Frame.values, ptr %frame, i64 %scalar.index
  %scalar.value = load i64, ptr %scalar.at
  br label %push
push:
  %value = phi i64 [ %constant.value, %constant ], [ %extent.value, %dim ],
                   [ %scalar.value, %scalar.read ], [ %computed, %computed.fits ]
  %depth.next = phi i64 [ %deeper, %constant ], [ %deeper, %dim ], [ %deeper, %scalar.read ],
                        [ %below, %computed.fits ]
  %place = sub i64 %depth.next, 1
  %place.at = getelementptr i64, ptr %stack, i64 %place
  store i64 %value, ptr %place.at
  br label %next
take:
  %made = load i64, ptr %top.at
  br icmp slt i64 %made, 0, label %bad, label %store
store:
  store i64 %made, ptr %out
  %out.next = getelementptr i64, ptr %out, i64 1
  br label %next

arithmetic:
  %left.place = sub i64 %depth, 2
  %left.at = getelementptr i64, ptr %stack, i64 %left.place
  %left = load i64, ptr %left.at
  %right = load i64, ptr %top.at
  %more = call { i64, i1 } @llvm.sadd.with.overflow.i64(i64 %left, i64 %right)
  %less = call { i64, i1 } @llvm.ssub.with.overflow.i64(i64 %left, i64 %right)
  %product = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %left, i64 %right)
  %larger = call i64 @llvm.smax.i64(i64 %left, i64 %right)
  %smaller = call i64 @llvm.smin.i64(i64 %left, i64 %right)
  switch i32 %op, label %divide [
    i32 OP_ADD, label %add
    i32 OP_SUBTRACT, label %subtract
    i32 OP_MULTIPLY, label %multiply
    i32 OP_MAX, label %maximum
    i32 OP_MIN, label %minimum
  ]
add:
  br label %checked
subtract:
  br label %checked
multiply:
  br label %checked
checked:
  %pair = phi { i64, i1 } [ %more, %add ], [ %less, %subtract ], [ %product, %multiply ]
  %pair.value = extractvalue { i64, i1 } %pair, 0
  %over = extractvalue { i64, i1 } %pair, 1
  br i1 %over, label %bad, label %computed.fits
maximum:
  br label %computed.fits
minimum:
  br label %computed.fits
divide:  ; a divisor that isn't positive is left to Python code
  br icmp slt i64 %right, 1, label %bad, label %floor
floor:
  %toward.zero = sdiv i64 %left, %right
  %rest = srem i64 %left, %right
  %is.below = icmp slt i64 %rest, 0
  %one.less = sub i64 %toward.zero, 1
  %rest.more = add i64 %rest, %right
  %floored = select i1 %is.below, i64 %one.less, i64 %toward.zero
  %modulo = select i1 %is.below, i64 %rest.more, i64 %rest
  %is.quotient = icmp eq i32 %op, OP_FLOOR_DIVIDE
  %divided = select i1 %is.quotient, i64 %floored, i64 %modulo
  br label %computed.fits
computed.fits:
  %computed = phi i64 [ %pair.value, %checked ], [ %larger, %maximum ], [ %smaller, %minimum ],
                      [ %divided, %floor ]
  br label %push

good:
  ret i1 true
bad:
  ret i1 false
}

; ---- Calls that return -----------------------------------------------------------------------
; Completes a call whose inputs are in the frame; returns the outputs, which are made in the
; library of %like (null: numpy), or %out. Null with an exception pending; or without one, if
; nothing was written yet and Python code must make the call.
define internal ptr @returned(ptr %returning, ptr %frame, ptr %like, ptr %out) {
entry:
  %result = alloca %Result
  %outer = alloca ptr
  %made = alloca %Outputs
  %function = load %Returning.function, ptr %returning
  %inputs = load %Returning.inputs, ptr %returning
  %outputs = load %Returning.outputs, ptr %returning
  %packed = getelementptr i8, ptr %function, i64 HEADER
  %written = load %PackedFunc.written, ptr %packed
  %foreign = load %PackedFunc.calls_back, ptr %packed
  %is.foreign = icmp ne i64 %foreign, 0
  %pointers = mul i64 %outputs, 8
  %managed = getelementptr %Outputs.managed, ptr %made
  call void @llvm.memset.p0.i64(ptr %made, i8 0, i64 %pointers, i1 false)
  call void @llvm.memset.p0.i64(ptr %managed, i8 0, i64 %pointers, i1 false)
  br icmp eq ptr %out, null, label %make, label %take
take:
  %taken = call i1 @take_outputs(ptr %returning, ptr %out, ptr %frame, i64 %written,
                                 i1 %is.foreign)
  br i1 %taken, label %run, label %leave

make:
  %extents = getelementptr %Outputs.extents, ptr %made
  %sized = call i1 @find_extents(ptr %returning, ptr %frame, ptr %extents)
  br i1 %sized, label %look, label %leave
look:
  br icmp eq ptr %like, null, label %allocate, label %find
find:
  %row.found = call ptr @route_of(ptr %like)
  br icmp eq ptr %row.found, null, label %leave, label %allocate
allocate:
  %row = phi ptr [ null, %look ], [ %row.found, %find ]
  %allocated = call i1 @make_outputs(ptr %returning, ptr %row, ptr %made, ptr %frame,
                                     i1 %is.foreign)
  br i1 %allocated, label %run, label %drop

run:
  %all = add i64 %inputs, %outputs
  %short = trunc i64 %all to i32
  %codes = getelementptr %Frame.codes, ptr %frame
  %code = getelementptr %Result.code, ptr %result
  %begun = call i1 @begin(i1 %is.foreign, ptr %outer)
  br i1 %begun, label %ready, label %drop
ready:
  %status = call i32 @run(ptr %packed, ptr %frame, ptr %codes, i32 %short, ptr %result, ptr %code)
  switch i32 %status, label %failed [ i32 0, label %done i32 VARIANT, label %other ]
failed:
  call void @explain(ptr %function, i32 %status)
  call void @end(ptr %outer)
  br label %drop
other:
  call void @end(ptr %outer)
  br label %drop
done:
  call void @end(ptr %outer)
  br icmp eq ptr %out, null, label %finish, label %return.out
return.out:
  %given = call ptr @given_back(ptr %out, i64 %outputs)
  ret ptr %given
finish:
  %finished = call i1 @finish_outputs(ptr %made, i64 %outputs)
  br i1 %finished, label %collect, label %unfinished
unfinished:
  call void @explain(ptr %function, i32 -1)
  br label %drop
collect:
  %returned = call ptr @only_or_tuple(ptr %made, i64 %outputs)
  br icmp eq ptr %returned, null, label %drop, label %return
return:
  ret ptr %returned

drop:
  call void @drop_outputs(ptr %made, i64 %outputs)
  br label %leave
leave:
  ret ptr null
}

; PyObject* call_returning(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
define ptr @call_returning(ptr %self, ptr %args, i64 %flagged, ptr %keywords) {
entry:
  %frame = alloca %Frame
  %bound = alloca [ARGUMENTS x ptr]
  %returning = getelementptr i8, ptr %self, i64 HEADER
  %positional = and i64 %flagged, 9223372036854775807
  %function = load %Returning.function, ptr %returning
  %expected = load %Returning.inputs, ptr %returning
  br icmp eq ptr %function, null, label %slow, label %names
names:
  br icmp eq ptr %keywords, null, label %count, label %bind
bind:
  %named = call i64 @PyTuple_Size(ptr %keywords)
  %total = add i64 %positional, %named
  %exact = icmp eq i64 %total, %expected
  %its.names = load %Returning.names, ptr %returning
  %all.names = load %Returning.names_and_out, ptr %returning
  %which = select i1 %exact, ptr %its.names, ptr %all.names
  %found = call i64 @bind(ptr %which, ptr %args, i64 %positional, ptr %keywords, ptr %bound)
  br icmp slt i64 %found, 0, label %slow, label %bound.all
bound.all:
  %out.at = getelementptr ptr, ptr %bound, i64 %expected
  br i1 %exact, label %count, label %find.out
find.out:
  %out.found = load ptr, ptr %out.at
  %none = load ptr, ptr @none
  %no.out = icmp eq ptr %out.found, %none
  %out.given = select i1 %no.out, ptr null, ptr %out.found
  br label %count
count:
  %n = phi i64 [ %positional, %names ], [ %found, %bound.all ], [ %expected, %find.out ]
  %arguments = phi ptr [ %args, %names ], [ %bound, %bound.all ], [ %bound, %find.out ]
  %out = phi ptr [ null, %names ], [ null, %bound.all ], [ %out.given, %find.out ]
  br icmp eq i64 %n, %expected, label %encode, label %slow

encode:
  %packed = getelementptr i8, ptr %function, i64 HEADER
  %places = load %Returning.places, ptr %returning
  %known = call i1 @encode_all(ptr %arguments, i64 %n, ptr %places, ptr %packed, i32 0, ptr %frame)
  br i1 %known, label %encoded, label %slow
encoded:
  %first = load %Returning.first, ptr %returning
  br icmp slt i64 %first, 0, label %finish, label %look
look:
  %like.at = getelementptr ptr, ptr %arguments, i64 %first
  %like.object = load ptr, ptr %like.at
  br label %finish
finish:
  %like = phi ptr [ null, %encoded ], [ %like.object, %look ]
  %returned = call ptr @returned(ptr %returning, ptr %frame, ptr %like, ptr %out)
  br icmp eq ptr %returned, null, label %slow, label %return
return:
  ret ptr %returned

slow:
  %handed = call ptr @hand_over(ptr %self, ptr %args, i64 %positional, ptr %keywords)
  ret ptr %handed
}
"""
