"""The LLVM IR of calls that choose among returning functions: a part of the call path's page.

``call_cases`` finds the value of each parameter of a call; takes the first *case* of a table that
fits them; and runs its returning function, as ``call_returning`` does. Where no case fits, or
anything is unknown, it hands the call, untouched, to ``_call_slowly``, as ``call`` does.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum


class Op(IntEnum):
    """The conditions on an extent."""

    END = 0  # there are no more
    IS = 1  # it equals a number
    IS_NOT = 2
    IS_THAT = 3  # it equals another extent of the call
    IS_NOT_THAT = 4


class CompiledCheck(ctypes.Structure):
    """A check of an extent."""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("position", ctypes.c_int32),  # of the parameter
        ("dim", ctypes.c_int32),
        ("other", ctypes.c_int32),  # the position of the other extent's parameter
        ("value", ctypes.c_int64),  # the number, or the other extent's dim
    )


class CompiledParameter(ctypes.Structure):
    """The argument that a case accepts for a parameter."""

    _fields_ = (
        ("type", ctypes.c_void_p),  # exactly
        ("constant", ctypes.c_void_p),  # the value, of one that isn't passed on; or NULL
        ("ndim", ctypes.c_int32),  # of an array; -1: a number
        ("dtype", ctypes.c_int32),
        ("place", ctypes.c_int64),  # among the inputs
    )


class CompiledCase(ctypes.Structure):
    """A returning function, and the arguments that it is for."""

    _fields_ = (
        ("returning", ctypes.c_void_p),  # the fields of the Returning
        ("parameters", ctypes.c_void_p),
        ("checks", ctypes.c_void_p),
        ("like", ctypes.c_int64),  # the position of the first array, or -1
        ("operator", ctypes.c_void_p),  # whose method takes calls that torch records, or NULL
    )


class StoredTable(ctypes.Structure):
    """The fields of a table of cases, in the object itself."""

    _fields_ = (("cases", ctypes.c_void_p), ("count", ctypes.c_int64))


class StoredChooser(ctypes.Structure):
    """The fields of an object whose calls choose, in the object itself."""

    _fields_ = (
        ("table", ctypes.c_void_p),  # the object; NULL: Python code makes all calls
        ("names", ctypes.c_void_p),  # the tuple of the parameters' names, interned
        ("defaults", ctypes.c_void_p),  # an object for each parameter, or NULL
        ("parameters", ctypes.c_int64),  # how many,
        ("positional", ctypes.c_int64),  # and how many of them may be given by position
    )


# Types whose equal values no program can tell apart.
COMPARED_TYPES = (int, str, bytes, bool)

CASES_WORDS = {
    "COMPARED": len(COMPARED_TYPES) + 1,
    **{f"CHECK_{op.name}": int(op) for op in Op},
}

CASES = r"""
; A chooser, its table of cases (cases_text).
%Chooser = type { ptr table, ptr names, ptr defaults, i64 parameters, i64 positional }
%Table = type { ptr cases, i64 count }
%Case = type { ptr returning, ptr parameters, ptr checks, i64 like, ptr operator }
%Parameter = type { ptr type, ptr constant, i32 ndim, i32 dtype, i64 place }
%Check = type { i32 op, i32 position, i32 dim, i32 other, i64 value }

@out_name = global ptr null       ; "out"
@record_name = global ptr null     ; "record"
@float_type = global ptr null
; The types whose equal values are interchangeable, apart from tuples and floats; up to null.
@compared_types = global [COMPARED x ptr] zeroinitializer

; ---- Values that a case is for ---------------------------------------------------------------
; Whether two values of one type are the same. A value of an unknown type is the same only as
; itself.
define internal i1 @same_value(ptr %a, ptr %b) {
entry:
  br icmp eq ptr %a, %b, label %yes, label %types
types:
  %a.type.at = getelementptr i8, ptr %a, i64 TYPE
  %type = load ptr, ptr %a.type.at
  %b.type.at = getelementptr i8, ptr %b, i64 TYPE
  %b.type = load ptr, ptr %b.type.at
  br icmp eq ptr %type, %b.type, label %which, label %no
which:
  %float.type = load ptr, ptr @float_type
  br icmp eq ptr %type, %float.type, label %float, label %no.float
no.float:
  %tuple.type = load ptr, ptr @tuple_type
  br icmp eq ptr %type, %tuple.type, label %tuple, label %look
float:  ; by their bits: 0.0 and -0.0 differ
  %a.float = call double @PyFloat_AsDouble(ptr %a)
  %b.float = call double @PyFloat_AsDouble(ptr %b)
  %a.bits = bitcast double %a.float to i64
  %b.bits = bitcast double %b.float to i64
  %same.bits = icmp eq i64 %a.bits, %b.bits
  ret i1 %same.bits
tuple:
  %size = call i64 @PyTuple_Size(ptr %a)
  %b.size = call i64 @PyTuple_Size(ptr %b)
  br icmp eq i64 %size, %b.size, label %item, label %no
item:
  %i = phi i64 [ 0, %tuple ], [ %i.next, %item.same ]
  br icmp eq i64 %i, %size, label %yes, label %item.one
item.one:
  %a.item = call ptr @PyTuple_GetItem(ptr %a, i64 %i)
  %b.item = call ptr @PyTuple_GetItem(ptr %b, i64 %i)
  %same.item = call i1 @same_value(ptr %a.item, ptr %b.item)
  br i1 %same.item, label %item.same, label %no
item.same:
  %i.next = add i64 %i, 1
  br label %item
look:
  %at = phi ptr [ @compared_types, %no.float ], [ %at.next, %unlike ]
  %known = load ptr, ptr %at
  %at.next = getelementptr ptr, ptr %at, i64 1
  br icmp eq ptr %known, null, label %no, label %like
like:
  br icmp eq ptr %known, %type, label %compare, label %unlike
unlike:
  br label %look
compare:
  %equal = call i32 @PyObject_RichCompareBool(ptr %a, ptr %b, i32 2)
  %same = icmp eq i32 %equal, 1
  ret i1 %same
yes:
  ret i1 true
no:
  ret i1 false
}

; ---- Binding ---------------------------------------------------------------------------------
; Puts the value of each parameter into %bound, and that of `out` into %out.at. False: an argument
; is missing, or isn't a parameter's.
define internal i1 @bind_defaults(ptr %chooser, ptr %args, i64 %positional, ptr %keywords,
                                  ptr %bound, ptr %out.at) {
entry:
  %count = load %Chooser.parameters, ptr %chooser
  %names = load %Chooser.names, ptr %chooser
  %defaults = load %Chooser.defaults, ptr %chooser
  br label %copy
copy:
  %i = phi i64 [ 0, %entry ], [ %i.next, %copy.one ]
  br icmp eq i64 %i, %count, label %named, label %copy.one
copy.one:
  %i.next = add i64 %i, 1
  %is.given = icmp ult i64 %i, %positional
  %from = select i1 %is.given, ptr %args, ptr %defaults
  %from.at = getelementptr ptr, ptr %from, i64 %i
  %value = load ptr, ptr %from.at
  %to.at = getelementptr ptr, ptr %bound, i64 %i
  store ptr %value, ptr %to.at
  br label %copy
named:
  br icmp eq ptr %keywords, null, label %check, label %size
size:
  %given = call i64 @PyTuple_Size(ptr %keywords)
  br label %keyword
keyword:
  %k = phi i64 [ 0, %size ], [ %k.next, %place ]
  br icmp eq i64 %k, %given, label %check, label %keyword.one
keyword.one:
  %name = call ptr @PyTuple_GetItem(ptr %keywords, i64 %k)
  %k.at = add i64 %positional, %k
  %k.next = add i64 %k, 1
  %argument.at = getelementptr ptr, ptr %args, i64 %k.at
  %argument = load ptr, ptr %argument.at
  %out.name = load ptr, ptr @out_name
  br icmp eq ptr %name, %out.name, label %place, label %compare
compare:
  %j = phi i64 [ %positional, %keyword.one ], [ %j.next, %differs ]
  br icmp eq i64 %j, %count, label %bad, label %compare.one
compare.one:
  %its.name = call ptr @PyTuple_GetItem(ptr %names, i64 %j)
  %j.at = getelementptr ptr, ptr %bound, i64 %j
  br icmp eq ptr %its.name, %name, label %place, label %differs
differs:
  %j.next = add i64 %j, 1
  br label %compare
place:
  %place.at = phi ptr [ %out.at, %keyword.one ], [ %j.at, %compare.one ]
  store ptr %argument, ptr %place.at
  br label %keyword
check:
  %c = phi i64 [ %positional, %named ], [ %positional, %keyword ], [ %c.next, %check.one ]
  br icmp eq i64 %c, %count, label %good, label %check.one
check.one:
  %c.next = add i64 %c, 1
  %c.at = getelementptr ptr, ptr %bound, i64 %c
  %found = load ptr, ptr %c.at
  br icmp eq ptr %found, null, label %bad, label %check
good:
  ret i1 true
bad:
  ret i1 false
}

; ---- Choosing --------------------------------------------------------------------------------
; Whether the arguments have the types of a case, and are the constants that it is for.
define internal i1 @has_types(ptr %parameters, ptr %arguments, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %same ]
  br icmp eq i64 %i, %count, label %good, label %one
one:
  %i.next = add i64 %i, 1
  %parameter = getelementptr %Parameter, ptr %parameters, i64 %i
  %argument.at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument.at
  %type.at = getelementptr i8, ptr %argument, i64 TYPE
  %type = load ptr, ptr %type.at
  %wanted = load %Parameter.type, ptr %parameter
  br icmp eq ptr %type, %wanted, label %typed, label %bad
typed:
  %constant = load %Parameter.constant, ptr %parameter
  br icmp eq ptr %constant, null, label %same, label %compare
compare:
  %equal = call i1 @same_value(ptr %constant, ptr %argument)
  br i1 %equal, label %same, label %bad
same:
  br label %next
good:
  ret i1 true
bad:
  ret i1 false
}

; Whether an argument in the frame is the array, or the number, that a case is for.
define internal i1 @has_kind(ptr %parameter, ptr %frame, i64 %i) alwaysinline {
  %ndim = load %Parameter.ndim, ptr %parameter
  br icmp slt i32 %ndim, 0, label %good, label %array
array:
  %value.at = getelementptr %Frame.values, ptr %frame, i64 %i
  %tensor = load ptr, ptr %value.at
  %its.ndim = load %DLTensor.ndim, ptr %tensor
  %its.dtype = load %DLTensor.dtype, ptr %tensor
  %its.device = load %DLTensor.device_type, ptr %tensor
  %dtype = load %Parameter.dtype, ptr %parameter
  %same.ndim = icmp eq i32 %its.ndim, %ndim
  %same.dtype = icmp eq i32 %its.dtype, %dtype
  %same.device = icmp eq i32 %its.device, 1
  %alike = and i1 %same.ndim, %same.dtype
  %same = and i1 %alike, %same.device
  ret i1 %same
good:
  ret i1 true
}

define internal i64 @extent(ptr %frame, i32 %position, i64 %dim) alwaysinline {
  %index = zext i32 %position to i64
  %value.at = getelementptr %Frame.values, ptr %frame, i64 %index
  %tensor = load ptr, ptr %value.at
  %shape = load %DLTensor.shape, ptr %tensor
  %extent.at = getelementptr i64, ptr %shape, i64 %dim
  %extent = load i64, ptr %extent.at
  ret i64 %extent
}

; Whether the extents of the arrays in the frame fulfil a case's conditions.
define internal i1 @has_extents(ptr %checks, ptr %frame) {
entry:
  br label %next
next:
  %check = phi ptr [ %checks, %entry ], [ %check.next, %judge ]
  %check.next = getelementptr %Check, ptr %check, i64 1
  %op = load %Check.op, ptr %check
  br icmp eq i32 %op, CHECK_END, label %good, label %read
read:
  %position = load %Check.position, ptr %check
  %dim = load %Check.dim, ptr %check
  %dim.wide = zext i32 %dim to i64
  %extent = call i64 @extent(ptr %frame, i32 %position, i64 %dim.wide)
  %value = load %Check.value, ptr %check
  br icmp slt i32 %op, CHECK_IS_THAT, label %judge, label %that
that:
  %other = load %Check.other, ptr %check
  %other.extent = call i64 @extent(ptr %frame, i32 %other, i64 %value)
  br label %judge
judge:
  %wanted = phi i64 [ %value, %read ], [ %other.extent, %that ]
  %same = icmp eq i64 %extent, %wanted
  %odd = trunc i32 %op to i1  ; IS and IS_THAT are odd
  %fits = icmp eq i1 %same, %odd
  br i1 %fits, label %next, label %bad
good:
  ret i1 true
bad:
  ret i1 false
}

; The first case that the arguments fit; they are then in the frame, by the parameters' positions.
; Null if there is none.
define internal ptr @choose(ptr %table, ptr %arguments, i64 %count, ptr %frame) {
entry:
  %cases = load %Table.cases, ptr %table
  %total = load %Table.count, ptr %table
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %other ]
  %encoded = phi i64 [ 0, %entry ], [ %encoded.other, %other ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %total, label %none, label %one
one:
  %case = getelementptr %Case, ptr %cases, i64 %i
  %parameters = load %Case.parameters, ptr %case
  %typed = call i1 @has_types(ptr %parameters, ptr %arguments, i64 %count)
  br i1 %typed, label %argument, label %other
argument:
  %j = phi i64 [ 0, %one ], [ %j.next, %argument.next ]
  %encoded.j = phi i64 [ %encoded, %one ], [ %encoded.next, %argument.next ]
  %j.next = add i64 %j, 1
  br icmp eq i64 %j, %count, label %extents, label %argument.one
argument.one:
  %parameter = getelementptr %Parameter, ptr %parameters, i64 %j
  %constant = load %Parameter.constant, ptr %parameter
  br icmp eq ptr %constant, null, label %passed, label %argument.next
passed:
  %bit = shl i64 1, %j
  %seen = and i64 %encoded.j, %bit
  %with = or i64 %encoded.j, %bit
  br icmp eq i64 %seen, 0, label %encode, label %kind
encode:
  %object.at = getelementptr ptr, ptr %arguments, i64 %j
  %object = load ptr, ptr %object.at
  %known = call i1 @encode(ptr %object, i64 %j, ptr %frame, i64 0, i1 false)
  br i1 %known, label %kind, label %none
kind:
  %fits = call i1 @has_kind(ptr %parameter, ptr %frame, i64 %j)
  br i1 %fits, label %argument.next, label %other
argument.next:
  %encoded.next = phi i64 [ %encoded.j, %argument.one ], [ %with, %kind ]
  br label %argument
extents:
  %checks = load %Case.checks, ptr %case
  %sized = call i1 @has_extents(ptr %checks, ptr %frame)
  br i1 %sized, label %leave, label %other
other:
  %encoded.other = phi i64 [ %encoded, %one ], [ %with, %kind ], [ %encoded.j, %extents ]
  br label %next
leave:
  ret ptr %case
none:
  ret ptr null
}

; Moves the arguments in the frame from the parameters' positions to their places among the inputs,
; which lie before them.
define internal void @close_up(ptr %parameters, i64 %count, ptr %frame) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ], [ %i.next, %move ], [ %i.next, %tensor ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %count, label %leave, label %one
one:
  %parameter = getelementptr %Parameter, ptr %parameters, i64 %i
  %place = load %Parameter.place, ptr %parameter
  %stays = icmp eq i64 %place, %i
  %constant = load %Parameter.constant, ptr %parameter
  %is.constant = icmp ne ptr %constant, null
  %skipped = or i1 %stays, %is.constant
  br i1 %skipped, label %next, label %move
move:
  %value.at = getelementptr %Frame.values, ptr %frame, i64 %i
  %value = load ptr, ptr %value.at
  %value.to = getelementptr %Frame.values, ptr %frame, i64 %place
  %code.at = getelementptr %Frame.codes, ptr %frame, i64 %i
  %code = load i32, ptr %code.at
  %code.to = getelementptr %Frame.codes, ptr %frame, i64 %place
  %tensor.at = getelementptr %Frame.tensors, ptr %frame, i64 %i
  %tensor.to = getelementptr %Frame.tensors, ptr %frame, i64 %place
  store ptr %value, ptr %value.to
  store i32 %code, ptr %code.to
  br icmp eq ptr %value, %tensor.at, label %tensor, label %next
tensor:
  %whole = load %DLTensor, ptr %tensor.at
  store %DLTensor %whole, ptr %tensor.to
  store ptr %tensor.to, ptr %value.to
  br label %next
leave:
  ret void
}

; operator.record(the arguments that a case passes on)
define internal ptr @call_recorded(ptr %operator, ptr %parameters, ptr %arguments, i64 %count) {
entry:
  %given = alloca [MORE x ptr]
  store ptr %operator, ptr %given
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ], [ %i.next, %copy ]
  %n = phi i64 [ 1, %entry ], [ %n, %one ], [ %n.next, %copy ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %count, label %leave, label %one
one:
  %parameter = getelementptr %Parameter, ptr %parameters, i64 %i
  %constant = load %Parameter.constant, ptr %parameter
  br icmp eq ptr %constant, null, label %copy, label %next
copy:
  %from = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %from
  %to = getelementptr ptr, ptr %given, i64 %n
  store ptr %argument, ptr %to
  %n.next = add i64 %n, 1
  br label %next
leave:
  %name = load ptr, ptr @record_name
  %returned = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %given, i64 %n, ptr null)
  ret ptr %returned
}

; Whether outputs that the caller gives are of the type of the first array.
define internal i1 @are_like(ptr %out, ptr %like) {
entry:
  br icmp eq ptr %like, null, label %bad, label %look
look:
  %type.at = getelementptr i8, ptr %like, i64 TYPE
  %type = load ptr, ptr %type.at
  %out.type.at = getelementptr i8, ptr %out, i64 TYPE
  %out.type = load ptr, ptr %out.type.at
  %tuple.type = load ptr, ptr @tuple_type
  br icmp eq ptr %out.type, %type, label %good, label %several
several:
  br icmp eq ptr %out.type, %tuple.type, label %size, label %bad
size:
  %count = call i64 @PyTuple_Size(ptr %out)
  br label %next
next:
  %i = phi i64 [ 0, %size ], [ %i.next, %one ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %count, label %good, label %one
one:
  %each = call ptr @PyTuple_GetItem(ptr %out, i64 %i)
  %each.type.at = getelementptr i8, ptr %each, i64 TYPE
  %each.type = load ptr, ptr %each.type.at
  br icmp eq ptr %each.type, %type, label %next, label %bad
good:
  ret i1 true
bad:
  ret i1 false
}

; ---- Calls that choose -----------------------------------------------------------------------
; PyObject* call_cases(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
define ptr @call_cases(ptr %self, ptr %args, i64 %flagged, ptr %keywords) {
entry:
  %frame = alloca %Frame
  %bound = alloca [ARGUMENTS x ptr]
  %out.at = alloca ptr
  store ptr null, ptr %out.at
  %chooser = getelementptr i8, ptr %self, i64 HEADER
  %positional = and i64 %flagged, 9223372036854775807
  %object = load %Chooser.table, ptr %chooser
  br icmp eq ptr %object, null, label %slow, label %count
count:
  %count.all = load %Chooser.parameters, ptr %chooser
  %most = load %Chooser.positional, ptr %chooser
  %whole = icmp eq i64 %positional, %count.all
  %unnamed = icmp eq ptr %keywords, null
  %as.given = and i1 %whole, %unnamed
  br icmp ugt i64 %positional, %most, label %slow, label %fits
fits:
  br i1 %as.given, label %start, label %bind
bind:
  %is.bound = call i1 @bind_defaults(ptr %chooser, ptr %args, i64 %positional, ptr %keywords,
                                     ptr %bound, ptr %out.at)
  br i1 %is.bound, label %start, label %slow

start:
  %arguments = phi ptr [ %args, %fits ], [ %bound, %bind ]
  ; Another thread, or code of an argument's library, may replace the table; the call keeps this
  ; one.
  call void @Py_IncRef(ptr %object)
  %table = getelementptr i8, ptr %object, i64 HEADER
  store %Frame.strides_used 0, ptr %frame
  store %Frame.recording 1, ptr %frame
  %case = call ptr @choose(ptr %table, ptr %arguments, i64 %count.all, ptr %frame)
  br icmp eq ptr %case, null, label %leave, label %chosen
chosen:
  %parameters = load %Case.parameters, ptr %case
  %out.found = load ptr, ptr %out.at
  %none = load ptr, ptr @none
  %no.out = icmp eq ptr %out.found, %none
  %out = select i1 %no.out, ptr null, ptr %out.found
  %recording = load %Frame.recording, ptr %frame
  br icmp eq i32 %recording, 2, label %record, label %call
record:
  %operator = load %Case.operator, ptr %case
  %is.new = icmp eq ptr %operator, null
  %has.out = icmp ne ptr %out, null
  %not.here = or i1 %is.new, %has.out
  br i1 %not.here, label %leave, label %recorded
recorded:
  %made.recorded = call ptr @call_recorded(ptr %operator, ptr %parameters, ptr %arguments,
                                           i64 %count.all)
  br label %leave

call:
  %returning = load %Case.returning, ptr %case
  %inputs = load %Returning.inputs, ptr %returning
  br icmp eq i64 %inputs, %count.all, label %look, label %close
close:
  call void @close_up(ptr %parameters, i64 %count.all, ptr %frame)
  br label %look
look:
  %first = load %Case.like, ptr %case
  br icmp slt i64 %first, 0, label %outputs, label %like
like:
  %like.at = getelementptr ptr, ptr %arguments, i64 %first
  %like.object = load ptr, ptr %like.at
  br label %outputs
outputs:
  %like.found = phi ptr [ null, %look ], [ %like.object, %like ]
  br icmp eq ptr %out, null, label %run, label %alike
alike:
  %are.like = call i1 @are_like(ptr %out, ptr %like.found)
  br i1 %are.like, label %run, label %leave
run:
  %made = call ptr @returned(ptr %returning, ptr %frame, ptr %like.found, ptr %out)
  br label %leave

leave:
  %returned = phi ptr [ null, %start ], [ null, %record ], [ %made.recorded, %recorded ],
                      [ null, %alike ], [ %made, %run ]
  call void @Py_DecRef(ptr %object)
  br icmp eq ptr %returned, null, label %slow, label %return
return:
  ret ptr %returned
slow:
  %handed = call ptr @hand_over(ptr %self, ptr %args, i64 %positional, ptr %keywords)
  ret ptr %handed
}
"""
