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

_TEXT = r"""
; A loop, its kernels, and their operands (kernels.LoopFields, KernelFields, OperandFields).
%Loop = type {
  ptr base, i64 kernels, i64 may_ask, i64 may_chain, i64 inputs, i64 names, i64 count, i64 words,
  [MOST_KERNELS x ptr] table
}
%Kernel = type {
  i64 form, i64 is_chain, ptr extents, ptr call, ptr resource, ptr last_error, i64 count,
  ptr operands, ptr packed, ptr plain
}
; The first fields of a PackedFunc (call_path_text.StoredFunction).
%Packed = type { ptr function, ptr resource, ptr variants }
%Operand = type {
  i64 position, i64 source, i64 rank, i64 batched, i32 dtype, i32 output, i64 size, ptr dims,
  i64 first_step
}

@fail = global ptr null  ; sets the exception of a text
@ask = global ptr null   ; makes a kernel
@of_numbers = internal constant [4 x i8] c"nnn\00"
@of_text = internal constant [2 x i8] c"y\00"
@uneven = internal constant [75 x i8] c"ValueError: expected strides that are multiples of the \
element's size\00"

define internal void @raise(ptr %text) {
  %gil = call i32 @PyGILState_Ensure()
  %pending = call ptr @PyErr_Occurred()
  br icmp eq ptr %pending, null, label %set, label %leave
set:
  %fail = load ptr, ptr @fail
  %done = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %fail, ptr @of_text, ptr %text)
  br label %leave
leave:
  call void @PyGILState_Release(i32 %gil)
  ret void
}

; The number of elements of an operand's core; %compact becomes 0 if they don't lie side by side.
define internal i64 @core_of(ptr %operand, ptr %dimensions, ptr %steps, ptr %compact) {
entry:
  %rank = load %Operand.rank, ptr %operand
  %size = load %Operand.size, ptr %operand
  %dims = load %Operand.dims, ptr %operand
  %first = load %Operand.first_step, ptr %operand
  br label %next
next:
  %d = phi i64 [ %rank, %entry ], [ %d.next, %go ]
  %elements = phi i64 [ 1, %entry ], [ %elements.next, %go ]
  br icmp eq i64 %d, 0, label %leave, label %look
look:
  %d.next = sub i64 %d, 1
  %dim.at = getelementptr i64, ptr %dims, i64 %d.next
  %dim = load i64, ptr %dim.at
  %extent.at = getelementptr i64, ptr %dimensions, i64 %dim
  %extent = load i64, ptr %extent.at
  %number = add i64 %first, %d.next
  %step.at = getelementptr i64, ptr %steps, i64 %number
  %step = load i64, ptr %step.at
  %wanted = mul i64 %elements, %size
  %right = icmp eq i64 %step, %wanted
  %one = icmp sle i64 %extent, 1
  %fits = or i1 %right, %one
  %elements.next = mul i64 %elements, %extent
  br i1 %fits, label %go, label %spread
spread:
  store i64 0, ptr %compact
  br label %go
go:
  br label %next
leave:
  ret i64 %elements
}

; Calls the variant of a packed function that takes some arrays, without the precautions for calls
; by arbitrary C code. Returns 0; -1 with an exception pending; or VARIANT, if the precautions are
; needed and nothing was written. If the caller holds the GIL, long kernels release it.
define internal i32 @call_variant(ptr %packed, ptr %values, ptr %codes, i32 %count) {
entry:
  %ret = alloca i64
  %code = alloca i32
  %variants = load %Packed.variants, ptr %packed
  %resource = load %Packed.resource, ptr %packed
  br icmp eq ptr %variants, null, label %other, label %look
look:
  %held = call i32 @PyGILState_Check()
  %holds = icmp ne i32 %held, 0
  %asks = select i1 %holds, i32 ASKS, i32 WITHOUT_GIL
  br label %next
next:
  %at = phi ptr [ %variants, %look ], [ %at.next, %one ]
  %variant = load ptr, ptr %at
  %at.next = getelementptr ptr, ptr %at, i64 1
  br icmp eq ptr %variant, null, label %other, label %one
one:
  store i32 %asks, ptr %code
  %status = call i32 %variant(ptr %values, ptr %codes, i32 %count, ptr %ret, ptr %code,
                              ptr %resource)
  switch i32 %status, label %failed [ i32 0, label %good i32 VARIANT, label %next ]
good:
  ret i32 0
failed:
  br icmp eq i32 %status, HOLDING, label %release, label %judge
release:  ; the variant has taken the GIL to raise
  %state = load i32, ptr %ret
  call void @PyGILState_Release(i32 %state)
  ret i32 -1
judge:
  %gil = call i32 @PyGILState_Ensure()
  br i1 %holds, label %pending, label %clear
pending:
  %error = call ptr @PyErr_Occurred()
  br icmp eq ptr %error, null, label %clear, label %raised
clear:  ; nothing was written; an error that was set is set again
  call void @PyErr_Clear()
  call void @PyGILState_Release(i32 %gil)
  br label %other
raised:
  call void @PyGILState_Release(i32 %gil)
  ret i32 -1
other:
  ret i32 VARIANT
}

; Describes the operands for %n elements, from the addresses %args on, and calls.
define internal i32 @call_for(ptr %kernel, ptr %args, ptr %dimensions, ptr %steps, i64 %n,
                              ptr %tensors, ptr %values, ptr %codes, ptr %words) {
entry:
  %count = load %Kernel.count, ptr %kernel
  %operands = load %Kernel.operands, ptr %kernel
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %described ]
  %free = phi ptr [ %words, %entry ], [ %free.next, %described ]
  br icmp eq i64 %i, %count, label %call, label %describe
describe:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %position = load %Operand.position, ptr %operand
  %source = load %Operand.source, ptr %operand
  %batched = load %Operand.batched, ptr %operand
  %rank = load %Operand.rank, ptr %operand
  %dtype = load %Operand.dtype, ptr %operand
  %size = load %Operand.size, ptr %operand
  %dims = load %Operand.dims, ptr %operand
  %first = load %Operand.first_step, ptr %operand
  ; The sizes of numpy's numbers are powers of two.
  %shift = call i64 @llvm.cttz.i64(i64 %size, i1 true)
  %mask = sub i64 %size, 1
  %whole = add i64 %rank, %batched
  %strides = getelementptr i64, ptr %free, i64 %whole
  %free.next = getelementptr i64, ptr %strides, i64 %whole
  %tensor = getelementptr %DLTensor, ptr %tensors, i64 %i
  %address.at = getelementptr ptr, ptr %args, i64 %source
  %address = load ptr, ptr %address.at
  %narrow = trunc i64 %whole to i32
  store %DLTensor.data %address, ptr %tensor
  call void @describe(ptr %tensor, i32 %narrow, i32 %dtype, ptr %free)
  store %DLTensor.strides %strides, ptr %tensor
  %value.at = getelementptr ptr, ptr %values, i64 %position
  store ptr %tensor, ptr %value.at
  %code.at = getelementptr i32, ptr %codes, i64 %position
  store i32 CODE_ARRAY, ptr %code.at
  br icmp eq i64 %batched, 0, label %cores, label %outer
outer:
  store i64 %n, ptr %free
  %outer.at = getelementptr i64, ptr %steps, i64 %source
  %outer.step = load i64, ptr %outer.at
  %outer.stride = ashr i64 %outer.step, %shift
  store i64 %outer.stride, ptr %strides
  %outer.rest = and i64 %outer.step, %mask
  br icmp eq i64 %outer.rest, 0, label %cores, label %bad
cores:
  br label %core
core:
  %d = phi i64 [ 0, %cores ], [ %d.next, %even ]
  br icmp eq i64 %d, %rank, label %described, label %one
one:
  %d.next = add i64 %d, 1
  %dim.at = getelementptr i64, ptr %dims, i64 %d
  %dim = load i64, ptr %dim.at
  %extent.at = getelementptr i64, ptr %dimensions, i64 %dim
  %extent = load i64, ptr %extent.at
  %number = add i64 %first, %d
  %step.at = getelementptr i64, ptr %steps, i64 %number
  %step = load i64, ptr %step.at
  %stride = ashr i64 %step, %shift
  %rest = and i64 %step, %mask
  %place = add i64 %d, %batched
  %shape.at = getelementptr i64, ptr %free, i64 %place
  store i64 %extent, ptr %shape.at
  %stride.at = getelementptr i64, ptr %strides, i64 %place
  store i64 %stride, ptr %stride.at
  br icmp eq i64 %rest, 0, label %even, label %bad
even:
  br label %core
described:
  br label %next
call:
  %narrow.count = trunc i64 %count to i32
  %packed = load %Kernel.packed, ptr %kernel
  br icmp eq ptr %packed, null, label %by.c, label %here
here:
  %done = call i32 @call_variant(ptr %packed, ptr %values, ptr %codes, i32 %narrow.count)
  switch i32 %done, label %by.c [ i32 0, label %good i32 -1, label %raised ]
raised:
  ret i32 -1
by.c:
  %function = load %Kernel.call, ptr %kernel
  %resource = load %Kernel.resource, ptr %kernel
  %status = call i32 %function(ptr %values, ptr %codes, i32 %narrow.count, ptr null, ptr null,
                               ptr %resource)
  br icmp eq i32 %status, 0, label %good, label %failed
good:
  ret i32 0
failed:
  %last_error = load %Kernel.last_error, ptr %kernel
  %text = call ptr %last_error()
  call void @raise(ptr %text)
  ret i32 -1
bad:
  call void @raise(ptr @uneven)
  ret i32 -1
}

; The inputs that are the same for all elements, a bit for each; 0 if they all are.
define internal i64 @form_of_shares(ptr %loop, ptr %steps) {
entry:
  %inputs = load %Loop.inputs, ptr %loop
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ]
  %form = phi i64 [ 0, %entry ], [ %form.next, %look ]
  br icmp eq i64 %i, %inputs, label %leave, label %look
look:
  %i.next = add i64 %i, 1
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %step = load i64, ptr %step.at
  %stays = icmp eq i64 %step, 0
  %bit = zext i1 %stays to i64
  %shifted = shl i64 %bit, %i
  %form.next = or i64 %form, %shifted
  br label %next
leave:
  %bits = shl i64 1, %inputs
  %every = sub i64 %bits, 1
  %all = icmp eq i64 %form, %every
  %some = select i1 %all, i64 0, i64 %form
  ret i64 %some
}

; The elements of the cores of all operands.
define internal i64 @cores_of(ptr %base, ptr %dimensions, ptr %steps, ptr %compact) {
entry:
  %count = load %Kernel.count, ptr %base
  %operands = load %Kernel.operands, ptr %base
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %look ]
  br icmp eq i64 %i, %count, label %leave, label %look
look:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %elements = call i64 @core_of(ptr %operand, ptr %dimensions, ptr %steps, ptr %compact)
  %sum.next = add i64 %sum, %elements
  br label %next
leave:
  ret i64 %sum
}

; Adds a kernel to the table, which has room for it. The caller holds the GIL.
define void @add_kernel(ptr %loop, ptr %kernel) {
  %kernels = getelementptr %Loop.kernels, ptr %loop
  %table = getelementptr %Loop.table, ptr %loop
  %count = load i64, ptr %kernels
  %place = getelementptr ptr, ptr %table, i64 %count
  store ptr %kernel, ptr %place
  %more = add i64 %count, 1
  store atomic i64 %more, ptr %kernels release, align 8
  ret void
}

; Whether a kernel was made for some extents of the core dimensions.
define internal i1 @serves(ptr %kernel, i64 %count, ptr %extents) {
entry:
  %wanted = load %Kernel.extents, ptr %kernel
  br label %next
next:
  %d = phi i64 [ 0, %entry ], [ %d.next, %same ]
  br icmp eq i64 %d, %count, label %yes, label %look
look:
  %d.next = add i64 %d, 1
  %wanted.at = getelementptr i64, ptr %wanted, i64 %d
  %extent.at = getelementptr i64, ptr %extents, i64 %d
  %own = load i64, ptr %wanted.at
  %extent = load i64, ptr %extent.at
  %equal = icmp eq i64 %own, %extent
  %any = icmp eq i64 %own, ANY
  %large = icmp sgt i64 %extent, LARGE_EXTENT
  %either = and i1 %any, %large
  %every = icmp eq i64 %own, EVERY
  %one = or i1 %equal, %every
  %fits = or i1 %one, %either
  br i1 %fits, label %same, label %no
same:
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; The kernel of a form for the extents of the core dimensions: an existing one, one that Python
; makes, or the kernel for all extents. Null after an exception.
define internal ptr @kernel_for(ptr %loop, i64 %form, ptr %dimensions) {
entry:
  %kernels = getelementptr %Loop.kernels, ptr %loop
  %count = load atomic i64, ptr %kernels acquire, align 8
  %names = load %Loop.names, ptr %loop
  %table = getelementptr %Loop.table, ptr %loop
  %extents = getelementptr i64, ptr %dimensions, i64 1
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %look ], [ %k.next, %compare ]
  br icmp eq i64 %k, %count, label %missing, label %look
look:
  %k.next = add i64 %k, 1
  %kernel.at = getelementptr ptr, ptr %table, i64 %k
  %kernel = load ptr, ptr %kernel.at
  %own = load %Kernel.form, ptr %kernel
  br icmp eq i64 %own, %form, label %compare, label %next
compare:
  %serves = call i1 @serves(ptr %kernel, i64 %names, ptr %extents)
  br i1 %serves, label %found, label %next
found:
  ret ptr %kernel
missing:
  %may = load %Loop.may_ask, ptr %loop
  br icmp eq i64 %may, 0, label %base, label %make
base:
  %for.all = load %Loop.base, ptr %loop
  ret ptr %for.all
make:
  %gil = call i32 @PyGILState_Ensure()
  %ask = load ptr, ptr @ask
  %answer = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %ask, ptr @of_numbers, ptr %loop,
                                                            i64 %form, ptr %extents)
  br icmp eq ptr %answer, null, label %leave, label %read
read:
  %made = call ptr @PyLong_AsVoidPtr(ptr %answer)
  call void @Py_DecRef(ptr %answer)
  br label %leave
leave:
  %result = phi ptr [ null, %make ], [ %made, %read ]
  call void @PyGILState_Release(i32 %gil)
  ret ptr %result
}

; The kernel for a batch; null after an exception.
define internal ptr @kernel_of_batch(ptr %loop, ptr %dimensions, ptr %steps, i64 %n) {
entry:
  %compact = alloca i64
  %base = load %Loop.base, ptr %loop
  %several = icmp ne i64 %n, 1
  %shares = call i64 @form_of_shares(ptr %loop, ptr %steps)
  %form = select i1 %several, i64 %shares, i64 0
  %names = load %Loop.names, ptr %loop
  %either = or i64 %form, %names
  br icmp eq i64 %either, 0, label %for.all, label %measure
measure:
  %elements = call i64 @cores_of(ptr %base, ptr %dimensions, ptr %steps, ptr %compact)
  %work = mul i64 %elements, %n
  br icmp slt i64 %work, LEAST_WORK, label %for.all, label %choose
choose:
  %kernel = call ptr @kernel_for(ptr %loop, i64 %form, ptr %dimensions)
  ret ptr %kernel
for.all:
  ret ptr %base
}

; Whether the elements of the batch get a call each.
define internal i1 @is_split(ptr %kernel, ptr %dimensions, ptr %steps, i64 %n) {
entry:
  %compact.at = alloca i64
  store i64 1, ptr %compact.at
  %count = load %Kernel.count, ptr %kernel
  %operands = load %Kernel.operands, ptr %kernel
  br icmp eq i64 %n, 1, label %no, label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %add ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %add ]
  %close = phi i1 [ true, %entry ], [ %close.next, %add ]
  br icmp eq i64 %i, %count, label %decide, label %look
look:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %batched = load %Operand.batched, ptr %operand
  %output = load %Operand.output, ptr %operand
  %shared = icmp eq i64 %batched, 0
  %is_output = icmp ne i32 %output, 0
  %one = and i1 %shared, %is_output
  br i1 %one, label %yes, label %add
add:
  %elements = call i64 @core_of(ptr %operand, ptr %dimensions, ptr %steps, ptr %compact.at)
  %sum.next = add i64 %sum, %elements
  %size = load %Operand.size, ptr %operand
  %bytes = mul i64 %elements, %size
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %step = load i64, ptr %step.at
  %beside = icmp eq i64 %step, %bytes
  %fits = or i1 %beside, %shared
  %close.next = and i1 %close, %fits
  br label %next
decide:
  %compact = load i64, ptr %compact.at
  %cores = icmp ne i64 %compact, 0
  %apart = xor i1 %close, true
  %large = icmp sge i64 %sum, LARGE_CORE
  %some = and i1 %cores, %apart
  %split = and i1 %some, %large
  ret i1 %split
yes:
  ret i1 true
no:
  ret i1 false
}

define internal void @run_loop(ptr %args, ptr %dimensions, ptr %steps, ptr %loop) {
entry:
  %n = load i64, ptr %dimensions
  %count = load %Loop.count, ptr %loop
  %size = load %Loop.words, ptr %loop
  %base = load %Loop.base, ptr %loop
  br icmp sgt i64 %n, 0, label %begin, label %leave
begin:
  %tensors = alloca %DLTensor, i64 %count
  %values = alloca ptr, i64 %count
  %codes = alloca i32, i64 %count
  %words = alloca i64, i64 %size
  %now = alloca ptr, i64 %count
  %form = call i64 @form_of_chain(ptr %loop, ptr %args, ptr %steps, i64 %n)
  br icmp eq i64 %form, 0, label %one.or.more, label %chain
chain:
  %chain.kernel = call ptr @kernel_for(ptr %loop, i64 %form, ptr %dimensions)
  br icmp eq ptr %chain.kernel, null, label %leave, label %chosen
chosen:
  %is_chain = load %Kernel.is_chain, ptr %chain.kernel
  br icmp eq i64 %is_chain, 0, label %one.or.more, label %short
short:
  %done = call i1 @run_short_chain(ptr %chain.kernel, ptr %args, ptr %steps, i64 %n, ptr %values)
  br i1 %done, label %leave, label %whole
one.or.more:
  br icmp eq i64 %n, 1, label %batch, label %order
order:
  %serial = call i1 @is_serial(ptr %base, ptr %args, ptr %steps, i64 %n)
  br i1 %serial, label %each, label %batch
batch:
  %batch.kernel = call ptr @kernel_of_batch(ptr %loop, ptr %dimensions, ptr %steps, i64 %n)
  br icmp eq ptr %batch.kernel, null, label %leave, label %measure
measure:
  %split = call i1 @is_split(ptr %batch.kernel, ptr %dimensions, ptr %steps, i64 %n)
  br i1 %split, label %each, label %whole
whole:
  %kernel = phi ptr [ %chain.kernel, %short ], [ %batch.kernel, %measure ]
  %whole.status = call i32 @call_for(ptr %kernel, ptr %args, ptr %dimensions, ptr %steps, i64 %n,
      ptr %tensors, ptr %values, ptr %codes, ptr %words)
  ret void
each:
  %own = phi ptr [ %base, %order ], [ %batch.kernel, %measure ]
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %now, ptr %args, i64 %bytes, i1 false)
  br label %again
again:
  %k = phi i64 [ 0, %each ], [ %k.next, %moved ]
  br icmp eq i64 %k, %n, label %leave, label %one
one:
  %k.next = add i64 %k, 1
  %status = call i32 @call_for(ptr %own, ptr %now, ptr %dimensions, ptr %steps, i64 1,
      ptr %tensors, ptr %values, ptr %codes, ptr %words)
  br icmp eq i32 %status, 0, label %move, label %leave
move:
  %i = phi i64 [ 0, %one ], [ %i.next, %shift ]
  br icmp eq i64 %i, %count, label %moved, label %shift
shift:
  %i.next = add i64 %i, 1
  %at = getelementptr ptr, ptr %now, i64 %i
  %address = load ptr, ptr %at
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %step = load i64, ptr %step.at
  %after = getelementptr i8, ptr %address, i64 %step
  store ptr %after, ptr %at
  br label %move
moved:
  br label %again
leave:
  ret void
}

; The loop that numpy calls. Lanes of a vector that stand for no element compute as well, and
; divide zero by zero. So no floating-point exceptions are reported, since many would be theirs.
define void @ufunc_loop(ptr %args, ptr %dimensions, ptr %steps, ptr %loop) {
  call void @run_loop(ptr %args, ptr %dimensions, ptr %steps, ptr %loop)
  call void @forget_exceptions()
  ret void
}
"""
# The flags in SSE's register, which all of our arithmetic uses. C's functions also read the
# register of the x87 unit, which takes as long as a short loop.
_FORGET_X86 = r"""
define internal void @forget_exceptions() {
entry:
  %register = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %register)
  %word = load i32, ptr %register
  %flags = and i32 %word, 29  ; all but the inexact and denormal results
  br icmp eq i32 %flags, 0, label %leave, label %clear
clear:
  %cleared = and i32 %word, -30
  store i32 %cleared, ptr %register
  call void @llvm.x86.sse.ldmxcsr(ptr %register)
  br label %leave
leave:
  ret void
}
"""
_FORGET = r"""
define internal void @forget_exceptions() {
entry:
  %flags = call i32 @fetestexcept(i32 15)
  br icmp eq i32 %flags, 0, label %leave, label %clear
clear:
  %done = call i32 @feclearexcept(i32 %flags)
  br label %leave
leave:
  ret void
}
"""
_UNEVEN = "ValueError: expected strides that are multiples of the element's size"


def ufunc_loop_text(machine: str) -> str:
    """The LLVM IR of the loop for a machine, by the name that LLVM gives it."""
    text = "".join(_TEXT.split("\\\n")).replace("[75 x i8]", f"[{len(_UNEVEN) + 1} x i8]")
    forget = _FORGET_X86 if machine == "x86_64" else _FORGET
    return native_text(STRUCTURES + TENSORS + text + CHAINS + forget, _WORDS)
