"""The LLVM IR of calls that return: a part of the call path's page.

``call_returning`` puts the inputs into the frame of a call, as ``call`` does; computes the extents
of the outputs from them; has the framework of the first array make the outputs; calls the packed
function; and returns the outputs. Where it meets anything unknown, and before the packed function
has run, it hands the call, untouched, to ``Returning._call_slowly``.
"""

from __future__ import annotations

import ctypes

from minitvm.runtime.results import Op

MOST_OUTPUTS = 16  # of a function whose calls take this path,
MOST_EXTENTS = 64  # their extents,
MOST_NUMBERS = 16  # and the numbers of one extent
STORE, END = len(Op), len(Op) + 1  # takes an extent from the stack; the last step


class CompiledStep(ctypes.Structure):
    """A step (:class:`minitvm.runtime.results.Step`) as compiled code has it."""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("rank", ctypes.c_int32),  # that the array has to have
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


class TorchDtype(ctypes.Structure):
    """torch's number of a dtype."""

    _fields_ = (("dtype", ctypes.c_int32), ("number", ctypes.c_int32))


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


TORCH_DTYPES = 32
_SMALL = 1 << 16  # elements of a tensor for whose memory torch hardly ever has to wait, or fails

RETURNING_WORDS = {
    "TORCH_DTYPES": TORCH_DTYPES,
    "SMALL": _SMALL,
    "EXTENTS": MOST_EXTENTS,
    "NUMBERS": MOST_NUMBERS,
    "OUTPUTS": MOST_OUTPUTS,
    "OP_END": END,
    "OP_STORE": STORE,
    **{f"OP_{op.name}": int(op) for op in Op},
}

RETURNING = r"""
; What a Returning stores, its outputs and its steps (returning_text).
%Returning = type {
  ptr function, ptr names, ptr names_and_out, i64 inputs, i64 outputs, i64 first, ptr places,
  ptr made, ptr steps
}
%Output = type { i64 position, i32 ndim, i32 dtype, ptr descr }
%Step = type { i32 op, i32 position, i32 rank, i32 dim, i64 value }

%TorchDtype = type { i32 dtype, i32 number }

; Outputs on the way: numpy's arrays, or managed tensors, of which arrays are made at the end.
%Outputs = type {
  [OUTPUTS x ptr] objects,
  [OUTPUTS x ptr] managed,
  [EXTENTS x i64] extents,
  ptr to_object                   ; null: numpy's arrays
}

@new_array = global ptr null      ; numpy's PyArray_NewFromDescr, or null
@array_type = global ptr null     ; np.ndarray
@tuple_type = global ptr null
; torch's functions of foreign.TorchAllocator, or null, and its numbers of dtypes up to a zero.
@torch_empty = global ptr null
@torch_data = global ptr null
@torch_release = global ptr null
@torch_wrap = global ptr null
@torch_dtypes = global [TORCH_DTYPES x %TorchDtype] zeroinitializer

; ---- Extents ---------------------------------------------------------------------------------
; All extents of the outputs, from the arguments in the frame. False where an argument is of another
; kind or rank, an extent is negative, or int64 doesn't hold a number on the way.
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
divide:  ; by what is no positive number: left to Python code
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

; ---- Outputs ---------------------------------------------------------------------------------
; Ignores what an allocator says: Python code will try again, and say it better.
define internal void @ignore_error(ptr %context, ptr %kind, ptr %message) {
  ret void
}

; A new compact tensor of torch, which is also described in %tensor; null where torch is to be asked
; in the way of DLPack: big ones, for whose memory torch may have something to say.
define internal ptr @new_by_torch(i32 %dtype, i32 %ndim, ptr %extents, ptr %tensor) {
entry:
  %strides = alloca [EXTENTS x i64]
  %handle.at = alloca ptr
  %empty = load ptr, ptr @torch_empty
  br icmp eq ptr %empty, null, label %none, label %look
look:
  %row = phi ptr [ @torch_dtypes, %entry ], [ %row.next, %differs ]
  %known = load %TorchDtype.dtype, ptr %row
  %row.next = getelementptr %TorchDtype, ptr %row, i64 1
  br icmp eq i32 %known, %dtype, label %found, label %differs
differs:
  br icmp eq i32 %known, 0, label %none, label %look
found:
  %number = load %TorchDtype.number, ptr %row
  %count = zext i32 %ndim to i64
  br label %next
next:
  %d = phi i64 [ %count, %found ], [ %d.below, %fits ]
  %stride = phi i64 [ 1, %found ], [ %product, %fits ]
  br icmp eq i64 %d, 0, label %make, label %dim
dim:
  %d.below = sub i64 %d, 1
  %stride.at = getelementptr i64, ptr %strides, i64 %d.below
  store i64 %stride, ptr %stride.at
  %extent.at = getelementptr i64, ptr %extents, i64 %d.below
  %extent = load i64, ptr %extent.at
  %least = call i64 @llvm.smax.i64(i64 %extent, i64 1)
  %pair = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %stride, i64 %least)
  %product = extractvalue { i64, i1 } %pair, 0
  %over = extractvalue { i64, i1 } %pair, 1
  %big = icmp ugt i64 %product, SMALL
  %beyond = or i1 %over, %big
  br i1 %beyond, label %none, label %fits
fits:
  br label %next
make:
  %status = call i32 %empty(i64 %count, ptr %extents, ptr %strides, i32 %number, i32 0, i32 -1,
                            ptr %handle.at)
  br icmp eq i32 %status, 0, label %made, label %none
made:
  %handle = load ptr, ptr %handle.at
  %data = load ptr, ptr @torch_data
  %data.status = call i32 %data(ptr %handle, ptr %tensor)
  %wrap = load ptr, ptr @torch_wrap
  %object = call ptr %wrap(ptr %handle)
  %release = load ptr, ptr @torch_release
  %release.status = call i32 %release(ptr %handle)
  br icmp eq ptr %object, null, label %failed, label %describe
failed:
  call void @forgive(ptr @exception)
  br label %none
describe:
  store %DLTensor.device_type 1, ptr %tensor
  store %DLTensor.device_id 0, ptr %tensor
  store %DLTensor.ndim %ndim, ptr %tensor
  store %DLTensor.dtype %dtype, ptr %tensor
  store %DLTensor.shape %extents, ptr %tensor
  store %DLTensor.strides null, ptr %tensor
  store %DLTensor.byte_offset 0, ptr %tensor
  ret ptr %object
none:
  ret ptr null
}

; Makes the outputs, by the framework whose route the first array took, and puts them into the
; frame. False: not by this path; those that are made are in %made.
define internal i1 @make_outputs(ptr %returning, ptr %row, ptr %made, ptr %frame,
                                i1 %is.foreign) {
entry:
  %prototype = alloca %DLTensor
  %count = load %Returning.outputs, ptr %returning
  %outputs = load %Returning.made, ptr %returning
  %to.object.at = getelementptr %Outputs.to_object, ptr %made
  %extents.first = getelementptr %Outputs.extents, ptr %made
  store ptr null, ptr %to.object.at
  br icmp eq ptr %row, null, label %by.numpy, label %route
route:
  %kind = load %Route.route, ptr %row
  br icmp eq i32 %kind, ROUTE_NUMPY, label %by.numpy, label %by.exchange
by.numpy:
  %new.array = load ptr, ptr @new_array
  br icmp eq ptr %new.array, null, label %bad, label %next
by.exchange:
  %allocate = load %Route.allocate, ptr %row
  %to.object = load %Route.to_object, ptr %row
  store ptr %to.object, ptr %to.object.at
  store ptr null, ptr %prototype
  store %DLTensor.device_type 1, ptr %prototype
  store %DLTensor.device_id 0, ptr %prototype
  store %DLTensor.strides null, ptr %prototype
  store %DLTensor.byte_offset 0, ptr %prototype
  %can = icmp ne ptr %allocate, null
  %turns = icmp ne ptr %to.object, null
  %able = and i1 %can, %turns
  br i1 %able, label %next, label %bad

next:
  %i = phi i64 [ 0, %by.numpy ], [ 0, %by.exchange ], [ %i.next, %known ]
  %extents = phi ptr [ %extents.first, %by.numpy ], [ %extents.first, %by.exchange ],
                     [ %extents.next, %known ]
  %with.numpy = phi ptr [ %new.array, %by.numpy ], [ null, %by.exchange ], [ %with.numpy, %known ]
  %with.exchange = phi ptr [ null, %by.numpy ], [ %allocate, %by.exchange ],
                           [ %with.exchange, %known ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %count, label %good, label %one
one:
  %output = getelementptr %Output, ptr %outputs, i64 %i
  %position = load %Output.position, ptr %output
  %ndim = load %Output.ndim, ptr %output
  %ndim.wide = zext i32 %ndim to i64
  %extents.next = getelementptr i64, ptr %extents, i64 %ndim.wide
  br icmp ne ptr %with.numpy, null, label %describe, label %ask

describe:
  %descr = load %Output.descr, ptr %output
  br icmp eq ptr %descr, null, label %bad, label %new
new:
  call void @Py_IncRef(ptr %descr)  ; numpy takes it
  %type = load ptr, ptr @array_type
  %array = call ptr %with.numpy(ptr %type, ptr %descr, i32 %ndim, ptr %extents, ptr null, ptr null,
                                i32 0, ptr null)
  %array.at = getelementptr %Outputs.objects, ptr %made, i64 %i
  store ptr %array, ptr %array.at
  br icmp eq ptr %array, null, label %failed, label %read
failed:
  call void @forgive(ptr @exception)
  br label %bad
read:
  %own = getelementptr %Frame.tensors, ptr %frame, i64 %position
  %is.read = call i1 @read_numpy(ptr %array, ptr %own, ptr %frame, i1 true, i1 %is.foreign)
  br i1 %is.read, label %known, label %bad

ask:
  %dtype = load %Output.dtype, ptr %output
  %its.route = load %Route.route, ptr %row
  br icmp eq i32 %its.route, ROUTE_TORCH, label %by.torch, label %by.dlpack
by.torch:
  %torch.own = getelementptr %Frame.tensors, ptr %frame, i64 %position
  %torch.object = call ptr @new_by_torch(i32 %dtype, i32 %ndim, ptr %extents, ptr %torch.own)
  %torch.at = getelementptr %Outputs.objects, ptr %made, i64 %i
  store ptr %torch.object, ptr %torch.at
  br icmp eq ptr %torch.object, null, label %by.dlpack, label %known
by.dlpack:
  store %DLTensor.ndim %ndim, ptr %prototype
  store %DLTensor.dtype %dtype, ptr %prototype
  store %DLTensor.shape %extents, ptr %prototype
  %managed.at = getelementptr %Outputs.managed, ptr %made, i64 %i
  %status = call i32 %with.exchange(ptr %prototype, ptr %managed.at, ptr null, ptr @ignore_error)
  br icmp eq i32 %status, 0, label %given, label %bad
given:
  %managed = load ptr, ptr %managed.at
  br icmp eq ptr %managed, null, label %bad, label %look
look:
  %its = getelementptr %Managed.dl_tensor, ptr %managed
  br label %known

known:
  %tensor = phi ptr [ %own, %read ], [ %its, %look ], [ %torch.own, %by.torch ]
  %value.at = getelementptr %Frame.values, ptr %frame, i64 %position
  %code.at = getelementptr %Frame.codes, ptr %frame, i64 %position
  store ptr %tensor, ptr %value.at
  store i32 CODE_DLTENSOR_HANDLE, ptr %code.at
  br label %next
good:
  ret i1 true
bad:
  ret i1 false
}

; Ends the outputs that nobody gets, whether an exception is pending or not.
define internal void @drop_outputs(ptr %made, i64 %count) {
entry:
  %pending = alloca %Pending
  call void @set_aside(ptr %pending)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %dropped ]
  br icmp eq i64 %i, %count, label %leave, label %one
one:
  %i.next = add i64 %i, 1
  %object.at = getelementptr %Outputs.objects, ptr %made, i64 %i
  %object = load ptr, ptr %object.at
  br icmp eq ptr %object, null, label %tensor, label %release
release:
  call void @Py_DecRef(ptr %object)
  br label %tensor
tensor:
  %managed.at = getelementptr %Outputs.managed, ptr %made, i64 %i
  %managed = load ptr, ptr %managed.at
  br icmp eq ptr %managed, null, label %dropped, label %deleter
deleter:
  %deleter.function = load %Managed.deleter, ptr %managed
  br icmp eq ptr %deleter.function, null, label %dropped, label %delete
delete:
  call void %deleter.function(ptr %managed)
  br label %dropped
dropped:
  br label %next
leave:
  call void @bring_back(ptr %pending)
  ret void
}

; Has managed tensors become arrays of their framework. False with an exception pending, or none.
define internal i1 @finish_outputs(ptr %made, i64 %count) {
entry:
  %to.object = load %Outputs.to_object, ptr %made
  br icmp eq ptr %to.object, null, label %good, label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ], [ %i.next, %turn ]
  br icmp eq i64 %i, %count, label %good, label %one
one:
  %i.next = add i64 %i, 1
  %managed.at = getelementptr %Outputs.managed, ptr %made, i64 %i
  %object.at = getelementptr %Outputs.objects, ptr %made, i64 %i
  %managed = load ptr, ptr %managed.at
  br icmp eq ptr %managed, null, label %next, label %turn
turn:
  store ptr null, ptr %managed.at  ; which the function owns, even if it fails
  %status = call i32 %to.object(ptr %managed, ptr %object.at)
  br icmp eq i32 %status, 0, label %next, label %bad
good:
  ret i1 true
bad:
  store ptr null, ptr %object.at
  ret i1 false
}

; The only object of some, or a tuple of all, which takes them; null with an exception pending.
define internal ptr @only_or_tuple(ptr %objects, i64 %count) {
entry:
  br icmp eq i64 %count, 1, label %only, label %several
only:
  %object = load ptr, ptr %objects
  ret ptr %object
several:
  %tuple = call ptr @PyTuple_New(i64 %count)
  br icmp eq ptr %tuple, null, label %leave, label %next
next:
  %i = phi i64 [ 0, %several ], [ %i.next, %one ]
  br icmp eq i64 %i, %count, label %leave, label %one
one:
  %i.next = add i64 %i, 1
  %each.at = getelementptr ptr, ptr %objects, i64 %i
  %each = load ptr, ptr %each.at
  %status = call i32 @PyTuple_SetItem(ptr %tuple, i64 %i, ptr %each)
  store ptr null, ptr %each.at
  br label %next
leave:
  ret ptr %tuple
}

; Puts the outputs that the caller gives into the frame. False: not by this path.
define internal i1 @take_outputs(ptr %returning, ptr %out, ptr %frame, i64 %written,
                                i1 %is.foreign) {
entry:
  %count = load %Returning.outputs, ptr %returning
  %outputs = load %Returning.made, ptr %returning
  %type.at = getelementptr i8, ptr %out, i64 TYPE
  %type = load ptr, ptr %type.at
  %tuple.type = load ptr, ptr @tuple_type
  %is.tuple = icmp eq ptr %type, %tuple.type
  br i1 %is.tuple, label %size, label %single
size:
  %items = call i64 @PyTuple_Size(ptr %out)
  br icmp eq i64 %items, %count, label %next, label %bad
single:
  br icmp eq i64 %count, 1, label %next, label %bad
next:
  %i = phi i64 [ 0, %size ], [ 0, %single ], [ %i.next, %encode ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %count, label %good, label %one
one:
  br i1 %is.tuple, label %item, label %whole
item:
  %item.object = call ptr @PyTuple_GetItem(ptr %out, i64 %i)
  br label %given
whole:
  br label %given
given:
  %object = phi ptr [ %item.object, %item ], [ %out, %whole ]
  %none = load ptr, ptr @none
  br icmp eq ptr %object, %none, label %bad, label %encode
encode:
  %output = getelementptr %Output, ptr %outputs, i64 %i
  %position = load %Output.position, ptr %output
  %known = call i1 @encode(ptr %object, i64 %position, ptr %frame, i64 %written, i1 %is.foreign)
  br i1 %known, label %next, label %bad
good:
  ret i1 true
bad:
  ret i1 false
}

; What a call returns that was given its outputs: a new reference to the only one, or to the tuple.
define internal ptr @given_back(ptr %out, i64 %count) {
entry:
  %type.at = getelementptr i8, ptr %out, i64 TYPE
  %type = load ptr, ptr %type.at
  %tuple.type = load ptr, ptr @tuple_type
  %is.tuple = icmp eq ptr %type, %tuple.type
  %one = icmp eq i64 %count, 1
  %inside = and i1 %is.tuple, %one
  br i1 %inside, label %item, label %leave
item:
  %object = call ptr @PyTuple_GetItem(ptr %out, i64 0)
  br label %leave
leave:
  %result = phi ptr [ %out, %entry ], [ %object, %item ]
  call void @Py_IncRef(ptr %result)
  ret ptr %result
}

; ---- Calls that return -----------------------------------------------------------------------
; The end of a call whose inputs are in the frame: the outputs, made like those of the library of
; %like (null: of numpy), or %out. Null with an exception pending, or, before anything is written,
; with none: left to Python code.
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
  store %Frame.strides_used 0, ptr %frame
  store %Frame.recording 0, ptr %frame
  %packed = getelementptr i8, ptr %function, i64 HEADER
  %written = load %PackedFunc.written, ptr %packed
  %foreign = load %PackedFunc.calls_back, ptr %packed
  %is.foreign = icmp ne i64 %foreign, 0
  %places = load %Returning.places, ptr %returning
  br label %encode.next
encode.next:
  %i = phi i64 [ 0, %encode ], [ %i.next, %encode.one ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %n, label %encoded, label %encode.one
encode.one:
  %argument.at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument.at
  %place.at = getelementptr i64, ptr %places, i64 %i
  %place = load i64, ptr %place.at
  %known = call i1 @encode(ptr %argument, i64 %place, ptr %frame, i64 %written, i1 %is.foreign)
  br i1 %known, label %encode.next, label %slow
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
  %pending = call ptr @PyErr_Occurred()
  br icmp ne ptr %pending, null, label %raise, label %hand
raise:
  ret ptr null
hand:
  %handed = call ptr @hand_over(ptr %self, ptr %args, i64 %positional, ptr %keywords)
  ret ptr %handed
}
"""
