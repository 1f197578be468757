"""The LLVM IR of the outputs of calls that return: a part of the call path's page.

The outputs are made by the framework of the first array among the inputs, or given by the caller.
The structures of outputs are those of :mod:`minitvm.runtime.returning_text`.
"""

from __future__ import annotations

import ctypes

TORCH_DTYPES = 32
_SMALL = 1 << 16  # elements of a tensor whose allocation by torch hardly ever waits or fails


class TorchDtype(ctypes.Structure):
    """torch's number of a dtype."""

    _fields_ = (("dtype", ctypes.c_int32), ("number", ctypes.c_int32))


OUTPUTS_WORDS = {"SMALL": _SMALL, "TORCH_DTYPES": TORCH_DTYPES}

OUTPUTS = r"""
%TorchDtype = type { i32 dtype, i32 number }

; Outputs under construction: numpy's arrays, or managed tensors, which become arrays at the end.
%Outputs = type {
  [OUTPUTS x ptr] objects,
  [OUTPUTS x ptr] managed,
  [EXTENTS x i64] extents,
  ptr to_object                   ; null: numpy's arrays
}

@new_array = global ptr null      ; numpy's PyArray_NewFromDescr, or null
@array_type = global ptr null     ; np.ndarray
@tuple_type = global ptr null
; torch's functions of foreign.TorchAllocator, or null; and torch's numbers of dtypes, up to a
; zero.
@torch_empty = global ptr null
@torch_data = global ptr null
@torch_release = global ptr null
@torch_wrap = global ptr null
@torch_dtypes = global [TORCH_DTYPES x %TorchDtype] zeroinitializer

; ---- Making ---------------------------------------------------------------------------------
; Ignores an allocator's error: Python code will try again, and raise a better one.
define internal void @ignore_error(ptr %context, ptr %kind, ptr %message) {
  ret void
}

; A new compact tensor of torch, which is also described in %tensor. Null for tensors that must be
; made through DLPack: large ones, whose allocation may wait or fail.
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
  call void @describe(ptr %tensor, i32 %ndim, i32 %dtype, ptr %extents)
  ret ptr %object
none:
  ret ptr null
}

; Makes the outputs in the framework of the first array's route, and puts them into the frame.
; False: Python code must make the call; outputs that were made are in %made.
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

; Releases the outputs of a call that failed; a pending exception stays.
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

; Turns managed tensors into arrays of their framework. False with or without an exception
; pending.
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
  store ptr null, ptr %managed.at  ; the function takes it, even if it fails
  %status = call i32 %to.object(ptr %managed, ptr %object.at)
  br icmp eq i32 %status, 0, label %next, label %bad
good:
  ret i1 true
bad:
  store ptr null, ptr %object.at
  ret i1 false
}

; The only object, or a tuple that takes all objects; null with an exception pending.
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

; Puts the outputs that the caller gives into the frame. False: Python code must make the call.
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

; The result of a call with given outputs: a new reference to the only one, or to the tuple.
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
"""
