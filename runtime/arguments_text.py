"""The LLVM IR that reads the arguments of calls: a part of the call path's page.

``encode`` turns an object into a ``TVMValue`` and its type code in the frame of a call, by the
route that its exact type takes; ``bind`` puts arguments into the order of names.
"""

from __future__ import annotations

ARGUMENTS = r"""
; ---- Arguments -------------------------------------------------------------------------------
; The row of the route for an object's type, or null.
define internal ptr @route_of(ptr %object) alwaysinline {
entry:
  %type.at = getelementptr i8, ptr %object, i64 TYPE
  %type = load ptr, ptr %type.at
  br label %look
look:
  %row = phi ptr [ @routes, %entry ], [ %row.next, %other ]
  %row.type = load %Route.type, ptr %row
  br icmp eq ptr %row.type, %type, label %leave, label %other
other:
  %row.next = getelementptr %Route, ptr %row, i64 1
  br icmp eq ptr %row.type, null, label %none, label %look
leave:
  ret ptr %row
none:
  ret ptr null
}

; Puts argument number %i into the frame. False: Python code must convert it; an error is set only
; if it has nothing to do with the argument, such as the exception of a signal.
define internal i1 @encode(ptr %object, i64 %i, ptr %frame, i64 %written,
                          i1 %is.foreign) {
entry:
  %overflow = alloca i32
  %length = alloca i64
  %view = alloca [10 x i64]  ; a Py_buffer
  %value.at = getelementptr %Frame.values, ptr %frame, i64 %i
  %code.at = getelementptr %Frame.codes, ptr %frame, i64 %i
  %tensor = getelementptr %Frame.tensors, ptr %frame, i64 %i
  %shifted = lshr i64 %written, %i
  %is.output = trunc i64 %shifted to i1
  ; A callback may write its arguments, unless Python code tells it not to.
  %is.written = or i1 %is.output, %is.foreign
  %row = call ptr @route_of(ptr %object)
  br icmp eq ptr %row, null, label %unknown, label %route
route:
  %kind = load %Route.route, ptr %row
  switch i32 %kind, label %unknown [
    i32 ROUTE_NUMPY, label %numpy
    i32 ROUTE_NDARRAY, label %ndarray
    i32 ROUTE_EXCHANGE, label %exchange
    i32 ROUTE_TORCH, label %torch
    i32 ROUTE_BOOL, label %bool
    i32 ROUTE_INT, label %int
    i32 ROUTE_FLOAT, label %float
    i32 ROUTE_STR, label %str
    i32 ROUTE_BYTES, label %bytes
    i32 ROUTE_NONE, label %none
    i32 ROUTE_POINTER, label %pointer
    i32 ROUTE_CONSTANT, label %constant
    i32 ROUTE_STORED, label %stored
    i32 ROUTE_ITSELF, label %itself
  ]

numpy:
  %numpy.read = call i1 @read_numpy(ptr %object, ptr %tensor, ptr %frame, i1 %is.written,
                                     i1 %is.foreign)
  br i1 %numpy.read, label %is.tensor, label %unknown
exchange:
  %exchange.read = call i1 @read_exchange(ptr %row, ptr %object, ptr %tensor, i1 %is.written)
  br i1 %exchange.read, label %is.tensor, label %unknown
torch:
  %recording = getelementptr %Frame.recording, ptr %frame
  %plain = call i1 @is_plain(ptr %object, i1 %is.written, ptr %recording)
  br i1 %plain, label %exchange, label %unknown
is.tensor:
  %tensor.value = ptrtoint ptr %tensor to i64
  br label %known

ndarray:
  %array = getelementptr i8, ptr %object, i64 HEADER
  %state = load %NDArray.state, ptr %array
  %lent.bit = and i64 %state, 2
  %lent = icmp ne i64 %lent.bit, 0
  %read.only = trunc i64 %state to i1
  %misused = and i1 %read.only, %is.written
  %refused = or i1 %lent, %misused
  %array.value = ptrtoint ptr %array to i64
  br i1 %refused, label %unknown, label %known

bool:
  %true = load ptr, ptr @true
  %is.true = icmp eq ptr %object, %true
  %bool.value = zext i1 %is.true to i64
  br label %known
int:
  %int.value = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  %over = load i32, ptr %overflow
  br icmp eq i32 %over, 0, label %known, label %unknown
float:
  %float.read = call double @PyFloat_AsDouble(ptr %object)
  %float.value = bitcast double %float.read to i64
  br label %known
str:
  %text = call ptr @PyUnicode_AsUTF8AndSize(ptr %object, ptr %length)
  br icmp eq ptr %text, null, label %no.text, label %str.read
no.text:
  call void @PyErr_Clear()
  br label %unknown
str.read:
  %text.length = load i64, ptr %length
  %before.zero = call i64 @strlen(ptr %text)
  %whole = icmp eq i64 %text.length, %before.zero
  %str.value = ptrtoint ptr %text to i64
  br i1 %whole, label %known, label %unknown
bytes:
  %size.at = getelementptr i8, ptr %tensor, i64 8
  %bytes.ignored = call i32 @PyBytes_AsStringAndSize(ptr %object, ptr %tensor, ptr %size.at)
  %bytes.value = ptrtoint ptr %tensor to i64
  br label %known
none:
  br label %known
pointer:
  %view.status = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 0)
  br icmp ne i32 %view.status, 0, label %unknown, label %pointer.read
pointer.read:
  %content = load ptr, ptr %view
  %pointer.value = load i64, ptr %content
  call void @PyBuffer_Release(ptr %view)
  br label %known
constant:
  %constants = load ptr, ptr @constants
  %number = call ptr @PyDict_GetItemWithError(ptr %constants, ptr %object)
  br icmp eq ptr %number, null, label %unknown, label %constant.read
constant.read:
  %constant.value = call i64 @PyLong_AsLongLong(ptr %number)
  br label %given
stored:
  %storage = getelementptr i8, ptr %object, i64 HEADER
  %stored.value = ptrtoint ptr %storage to i64
  br label %given
itself:
  %itself.value = ptrtoint ptr %object to i64
  br label %given
given:
  %given.value = phi i64 [ %constant.value, %constant.read ], [ %stored.value, %stored ],
                         [ %itself.value, %itself ]
  %given.code = load %Route.code, ptr %row
  br label %known

known:
  %value = phi i64 [ %tensor.value, %is.tensor ], [ %array.value, %ndarray ],
                   [ %bool.value, %bool ], [ %int.value, %int ], [ %float.value, %float ],
                   [ %str.value, %str.read ], [ %bytes.value, %bytes ], [ 0, %none ],
                   [ %pointer.value, %pointer.read ], [ %given.value, %given ]
  %code = phi i32 [ CODE_DLTENSOR_HANDLE, %is.tensor ], [ CODE_NDARRAY_HANDLE, %ndarray ],
                  [ CODE_INT, %bool ], [ CODE_INT, %int ], [ CODE_FLOAT, %float ],
                  [ CODE_STR, %str.read ], [ CODE_BYTES, %bytes ], [ CODE_NULL, %none ],
                  [ CODE_HANDLE, %pointer.read ], [ %given.code, %given ]
  store i64 %value, ptr %value.at
  store i32 %code, ptr %code.at
  ret i1 true
unknown:
  ret i1 false
}

; A numpy array as a DLTensor. For our own code a compact array has no strides, which means just
; that; other code is better given some.
define internal i1 @read_numpy(ptr %array, ptr %tensor, ptr %frame, i1 %is.written,
                               i1 %is.foreign) {
  %descr.at = getelementptr i8, ptr %array, i64 NUMPY_DESCR
  %descr = load ptr, ptr %descr.at
  %number.at = getelementptr i8, ptr %descr, i64 NUMPY_TYPE_NUM
  %number = load i32, ptr %number.at
  %order.at = getelementptr i8, ptr %descr, i64 NUMPY_BYTEORDER
  %order = load i8, ptr %order.at
  %flags.at = getelementptr i8, ptr %array, i64 NUMPY_FLAGS
  %flags = load i32, ptr %flags.at
  %foreign = icmp eq i8 %order, FOREIGN_ORDER
  %beyond = icmp uge i32 %number, DTYPES
  %writeable.bit = and i32 %flags, 1024
  %read.only = icmp eq i32 %writeable.bit, 0
  %misused = and i1 %read.only, %is.written
  %strange = or i1 %foreign, %beyond
  %refused = or i1 %strange, %misused
  br i1 %refused, label %unknown, label %typed
typed:
  %index = zext i32 %number to i64
  %dtype.at = getelementptr i32, ptr @dtypes, i64 %index
  %dtype = load i32, ptr %dtype.at
  br icmp ne i32 %dtype, 0, label %fill, label %unknown
fill:
  %data.at = getelementptr i8, ptr %array, i64 NUMPY_DATA
  %data = load ptr, ptr %data.at
  %ndim.at = getelementptr i8, ptr %array, i64 NUMPY_NDIM
  %ndim = load i32, ptr %ndim.at
  %shape.at = getelementptr i8, ptr %array, i64 NUMPY_SHAPE
  %shape = load ptr, ptr %shape.at
  store ptr %data, ptr %tensor
  call void @describe(ptr %tensor, i32 %ndim, i32 %dtype, ptr %shape)
  %compact = trunc i32 %flags to i1
  %brief = xor i1 %is.foreign, true
  %without = and i1 %compact, %brief
  br i1 %without, label %leave, label %strided
strided:
  %strides.at = getelementptr i8, ptr %array, i64 NUMPY_STRIDES
  %strides = load ptr, ptr %strides.at
  %used.at = getelementptr %Frame.strides_used, ptr %frame
  %used = load i64, ptr %used.at
  %count = zext i32 %ndim to i64
  %total = add i64 %used, %count
  br icmp ugt i64 %total, STRIDES, label %unknown, label %room
room:
  store i64 %total, ptr %used.at
  %own = getelementptr %Frame.strides, ptr %frame, i64 %used
  store %DLTensor.strides %own, ptr %tensor
  %bits = lshr i32 %dtype, 8
  %width = and i32 %bits, 255
  %width.log = call i32 @llvm.cttz.i32(i32 %width, i1 true)
  %shift = sub i32 %width.log, 3
  %shift.wide = zext i32 %shift to i64
  %one.more = shl i64 1, %shift.wide
  %mask = sub i64 %one.more, 1
  br label %next
next:
  %dim = phi i64 [ 0, %room ], [ %dim.next, %whole ]
  br icmp eq i64 %dim, %count, label %leave, label %step
step:
  %bytes.at = getelementptr i64, ptr %strides, i64 %dim
  %bytes = load i64, ptr %bytes.at
  %rest = and i64 %bytes, %mask
  br icmp eq i64 %rest, 0, label %whole, label %unknown
whole:
  %elements = ashr exact i64 %bytes, %shift.wide
  %own.at = getelementptr i64, ptr %own, i64 %dim
  store i64 %elements, ptr %own.at
  %dim.next = add i64 %dim, 1
  br label %next
leave:
  ret i1 true
unknown:
  ret i1 false
}

; An array as its library describes it. An array that the function writes is taken only if the
; library, asked by the full protocol, doesn't call it read-only. Errors of the library are cleared;
; other errors stay.
define internal i1 @read_exchange(ptr %row, ptr %object, ptr %tensor, i1 %is.written) {
entry:
  %managed = alloca ptr
  %asked = load %Route.managed, ptr %row
  %tells = icmp ne ptr %asked, null
  %ask = and i1 %is.written, %tells
  br i1 %ask, label %flags, label %read
flags:
  store ptr null, ptr %managed
  %asked.status = call i32 %asked(ptr %object, ptr %managed)
  br icmp ne i32 %asked.status, 0, label %error, label %told
told:
  %its = load ptr, ptr %managed
  br icmp eq ptr %its, null, label %refuse, label %look
look:
  %its.flags = load %Managed.flags, ptr %its
  %deleter = load %Managed.deleter, ptr %its
  br icmp eq ptr %deleter, null, label %judge, label %delete
delete:
  call void %deleter(ptr %its)
  br label %judge
judge:
  %read.only = trunc i64 %its.flags to i1
  br i1 %read.only, label %refuse, label %read
read:
  %function = load %Route.function, ptr %row
  %status = call i32 %function(ptr %object, ptr %tensor)
  br icmp ne i32 %status, 0, label %error, label %check
check:
  %ndim = load %DLTensor.ndim, ptr %tensor
  %scalar = icmp eq i32 %ndim, 0
  %shape = load %DLTensor.shape, ptr %tensor
  %has.shape = icmp ne ptr %shape, null
  %good = or i1 %scalar, %has.shape
  ret i1 %good
error:
  call void @forgive(ptr @exception)
  br label %refuse
refuse:
  ret i1 false
}

; The managed tensor in the capsule that an array's `__dlpack__` returns; the capsule is consumed.
; Null for any other answer.
define internal ptr @consume(ptr %object) {
  %args = alloca [2 x ptr]
  store ptr %object, ptr %args
  %version.at = getelementptr ptr, ptr %args, i64 1
  %version = load ptr, ptr @version
  store ptr %version, ptr %version.at
  %method = load ptr, ptr @dlpack
  %keywords = load ptr, ptr @keywords
  %capsule = call ptr @PyObject_VectorcallMethod(ptr %method, ptr %args, i64 1, ptr %keywords)
  br icmp eq ptr %capsule, null, label %error, label %check
check:
  %valid = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @name_versioned)
  br icmp eq i32 %valid, 0, label %drop, label %use
use:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @name_versioned)
  %ignored = call i32 @PyCapsule_SetName(ptr %capsule, ptr @name_used_versioned)
  call void @Py_DecRef(ptr %capsule)
  ret ptr %managed
drop:
  call void @Py_DecRef(ptr %capsule)
  ret ptr null
error:
  call void @forgive(ptr @exception)
  ret ptr null
}

; PyObject* import(NULL, PyObject*): an NDArray of the memory of an array whose exchange API
; describes it completely; None where it doesn't, and for other objects.
define ptr @import(ptr %ignored, ptr %object) {
entry:
  %managed = alloca ptr
  store ptr null, ptr %managed
  %row = call ptr @route_of(ptr %object)
  br icmp eq ptr %row, null, label %unknown, label %route
route:
  %kind = load %Route.route, ptr %row
  switch i32 %kind, label %unknown [
    i32 ROUTE_EXCHANGE, label %exchange
    i32 ROUTE_TORCH, label %torch
    i32 ROUTE_NUMPY, label %numpy
  ]
numpy:
  %from.numpy = call ptr @consume(ptr %object)
  br icmp eq ptr %from.numpy, null, label %odd, label %make
torch:
  %plain = call i1 @is_plain(ptr %object, i1 true, ptr null)
  br i1 %plain, label %torch.known, label %odd
odd:
  %pending = call ptr @PyErr_Occurred()
  br icmp ne ptr %pending, null, label %fail, label %unknown
torch.known:
  %torch.function = load ptr, ptr @torch_managed
  br label %ask
exchange:
  %its.function = load %Route.managed, ptr %row
  br label %ask
ask:
  %function = phi ptr [ %torch.function, %torch.known ], [ %its.function, %exchange ]
  br icmp eq ptr %function, null, label %unknown, label %call
call:
  %status = call i32 %function(ptr %object, ptr %managed)
  br icmp ne i32 %status, 0, label %error, label %take
error:
  call void @forgive(ptr @exception)
  br label %odd
take:
  %given = load ptr, ptr %managed
  br icmp eq ptr %given, null, label %unknown, label %make
make:
  %its = phi ptr [ %from.numpy, %numpy ], [ %given, %take ]
  %array.of = load ptr, ptr @array_of
  %made = call ptr %array.of(ptr %its)
  ret ptr %made
unknown:
  %none = load ptr, ptr @none
  call void @Py_IncRef(ptr %none)
  ret ptr %none
fail:
  ret ptr null
}

; Clears the pending error, if it belongs to a class.
define internal void @forgive(ptr %class.at) {
  %class = load ptr, ptr %class.at
  %matches = call i32 @PyErr_ExceptionMatches(ptr %class)
  br icmp eq i32 %matches, 0, label %leave, label %clear
clear:
  call void @PyErr_Clear()
  br label %leave
leave:
  ret void
}

; Whether a torch tensor's memory holds its values, and nothing has to be recorded for gradients:
; it has no tangent, and doesn't require grad. A tensor that requires grad is accepted if it is only
; read and grad mode is off, or if the call accepts recorded tensors. The exchange API doesn't
; tell this: it exports tensors that are lazily negated or conjugated as if they weren't.
define internal i1 @is_plain(ptr %object, i1 %is.written, ptr %recording) {
  %tensor.field = load i64, ptr @torch_fields
  br icmp ne i64 %tensor.field, 0, label %read, label %ask
read:
  %impl.at = getelementptr i8, ptr %object, i64 %tensor.field
  %impl = load ptr, ptr %impl.at
  %keys.field.at = getelementptr i64, ptr @torch_fields, i64 1
  %keys.field = load i64, ptr %keys.field.at
  %keys.at = getelementptr i8, ptr %impl, i64 %keys.field
  %keys = load i64, ptr %keys.at
  %plain = load i64, ptr @torch_plain
  %inference.at = getelementptr i64, ptr @torch_plain, i64 1
  %inference = load i64, ptr %inference.at
  %is.plain = icmp eq i64 %keys, %plain
  %is.inference = icmp eq i64 %keys, %inference
  %usual = or i1 %is.plain, %is.inference
  br i1 %usual, label %gradient, label %no
gradient:
  %autograd.field.at = getelementptr i64, ptr @torch_fields, i64 2
  %autograd.field = load i64, ptr %autograd.field.at
  %autograd.at = getelementptr i8, ptr %impl, i64 %autograd.field
  %autograd = load ptr, ptr %autograd.at
  br icmp eq ptr %autograd, null, label %yes, label %last
ask:
  %negated = call i1 @has(ptr %object, ptr @is_neg, i1 true)
  br i1 %negated, label %no, label %ask.conj
ask.conj:
  %conjugated = call i1 @has(ptr %object, ptr @is_conj, i1 true)
  br i1 %conjugated, label %no, label %last
last:
  %dual = call i1 @may_be_dual()
  br i1 %dual, label %no, label %ask.gradient
ask.gradient:
  %recorded = call i1 @has(ptr %object, ptr @requires_grad, i1 false)
  br i1 %recorded, label %ask.mode, label %yes
ask.mode:
  br i1 %is.written, label %no, label %mode
mode:
  %mode.function = load ptr, ptr @is_grad_enabled
  %mode.object = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %mode.function, ptr null)
  %enabled = call i1 @is_true(ptr %mode.object)
  br i1 %enabled, label %record, label %yes
record:
  %taken = load i32, ptr %recording
  br icmp eq i32 %taken, 0, label %no, label %note
note:
  store i32 2, ptr %recording
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether there may be dual tensors: a level of forward-mode AD is open, or this isn't known.
define internal i1 @may_be_dual() {
  %module = load ptr, ptr @forward_ad
  %name = load ptr, ptr @current_level
  %level = call ptr @PyObject_GetAttr(ptr %module, ptr %name)
  br icmp eq ptr %level, null, label %error, label %read
read:
  %number = call i64 @PyLong_AsLongLong(ptr %level)
  call void @Py_DecRef(ptr %level)
  %open = icmp sge i64 %number, 0
  ret i1 %open
error:
  call void @forgive(ptr @attribute_error)
  ret i1 true
}

; Whether an attribute, or the result of a method without arguments, is true or can't be got.
define internal i1 @has(ptr %object, ptr %name.at, i1 %is.method) {
entry:
  %name = load ptr, ptr %name.at
  br i1 %is.method, label %method, label %attribute
method:
  %self = alloca ptr
  store ptr %object, ptr %self
  %returned = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %self, i64 1, ptr null)
  br label %judge
attribute:
  %got = call ptr @PyObject_GetAttr(ptr %object, ptr %name)
  br label %judge
judge:
  %value = phi ptr [ %returned, %method ], [ %got, %attribute ]
  %yes = call i1 @is_true(ptr %value)
  ret i1 %yes
}

; Whether an object is true or null; releases it.
define internal i1 @is_true(ptr %value) {
  br icmp eq ptr %value, null, label %error, label %test
test:
  %truth = call i32 @PyObject_IsTrue(ptr %value)
  call void @Py_DecRef(ptr %value)
  br icmp slt i32 %truth, 0, label %error, label %clear
clear:
  %yes = icmp ne i32 %truth, 0
  ret i1 %yes
error:
  call void @forgive(ptr @attribute_error)
  ret i1 true
}

; Puts all arguments by position into %bound; returns their number, or -1 if the names aren't
; those of the missing arguments.
define internal i64 @bind(ptr %names, ptr %args, i64 %count, ptr %keywords, ptr %bound) {
entry:
  br icmp eq ptr %names, null, label %refuse, label %sizes
sizes:
  %expected = call i64 @PyTuple_Size(ptr %names)
  %named = call i64 @PyTuple_Size(ptr %keywords)
  %given = add i64 %count, %named
  %complete = icmp eq i64 %expected, %given
  %few = icmp ule i64 %expected, ARGUMENTS
  %usual = and i1 %complete, %few
  br i1 %usual, label %copy, label %refuse
copy:
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %bound, ptr %args, i64 %bytes, i1 false)
  br label %next
next:
  %k = phi i64 [ 0, %copy ], [ %k.next, %place ]
  br icmp eq i64 %k, %named, label %leave, label %look
look:
  %keyword = call ptr @PyTuple_GetItem(ptr %keywords, i64 %k)
  br label %compare
compare:
  %j = phi i64 [ %count, %look ], [ %j.next, %differs ]
  br icmp eq i64 %j, %expected, label %refuse, label %compare.one
compare.one:
  %name = call ptr @PyTuple_GetItem(ptr %names, i64 %j)
  br icmp eq ptr %name, %keyword, label %place, label %differs
differs:
  %j.next = add i64 %j, 1
  br label %compare
place:
  %from = add i64 %count, %k
  %from.at = getelementptr ptr, ptr %args, i64 %from
  %argument = load ptr, ptr %from.at
  %to.at = getelementptr ptr, ptr %bound, i64 %j
  store ptr %argument, ptr %to.at
  %k.next = add i64 %k, 1
  br label %next
leave:
  ret i64 %given
refuse:
  ret i64 -1
}
"""
