"""The LLVM IR of calls that bypass torch's dispatcher: a part of the call path's page.

``call_operator`` asks torch's state of the running thread whether anything watches the operators
that run; runs the returning function of the operator, as ``call_returning`` does; and has the
operator record the call where autograd wants its gradient. In all other cases it hands the call,
untouched, to ``_call_slowly``, as ``call`` does.
"""

from __future__ import annotations

import ctypes

MOST_WATCHERS = 15


class StoredOperator(ctypes.Structure):
    """The fields of an operator that compiled code reads, in the object itself."""

    _fields_ = (("returning", ctypes.c_void_p),)  # the Returning; NULL: Python code makes all calls


TORCH_CALLS_WORDS = {"WATCHERS": MOST_WATCHERS + 1}

TORCH_CALLS = r"""
; The fields of an operator (torch_calls_text).
%Operator = type { ptr returning, ptr unused }

; torch's functions of torch_state.TorchState, or null; the dispatch keys that watchers include,
; up to a zero; and the key that is excluded where autocast casts nothing.
@torch_includes = global ptr null
@torch_excludes = global ptr null
@torch_function_modes = global ptr null
@torch_observed = global ptr null
@torch_watchers = global [WATCHERS x i32] zeroinitializer
@torch_autocast = global i32 0
@record_unwatched = global ptr null  ; the name of a method

; Whether something in this thread watches torch's operators on CPU tensors, or this isn't known.
define internal i1 @torch_is_watched() {
entry:
  %includes = load ptr, ptr @torch_includes
  br icmp eq ptr %includes, null, label %yes, label %next
next:
  %at = phi ptr [ @torch_watchers, %entry ], [ %at.next, %one ]
  %key = load i32, ptr %at
  %at.next = getelementptr i32, ptr %at, i64 1
  br icmp eq i32 %key, 0, label %casts, label %one
one:
  %included = call zeroext i1 %includes(i32 %key)
  br i1 %included, label %yes, label %next
casts:
  %excludes = load ptr, ptr @torch_excludes
  %autocast = load i32, ptr @torch_autocast
  %casts.nothing = call zeroext i1 %excludes(i32 %autocast)
  br i1 %casts.nothing, label %modes, label %yes
modes:
  %function.modes = load ptr, ptr @torch_function_modes
  %depth = call i64 %function.modes()
  br icmp eq i64 %depth, 0, label %observers, label %yes
observers:
  %observed = load ptr, ptr @torch_observed
  %is.observed = call zeroext i1 %observed()
  ret i1 %is.observed
yes:
  ret i1 true
}

; Whether all arguments are of an exact type that torch's operators take: tensors and numbers.
define internal i1 @are_torchs(ptr %args, i64 %n) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ], [ %i.next, %look ], [ %i.next, %look ],
               [ %i.next, %look ]
  %i.next = add i64 %i, 1
  br icmp eq i64 %i, %n, label %yes, label %one
one:
  %argument.at = getelementptr ptr, ptr %args, i64 %i
  %argument = load ptr, ptr %argument.at
  %row = call ptr @route_of(ptr %argument)
  br icmp eq ptr %row, null, label %no, label %look
look:
  %kind = load %Route.route, ptr %row
  switch i32 %kind, label %no [
    i32 ROUTE_TORCH, label %next
    i32 ROUTE_BOOL, label %next
    i32 ROUTE_INT, label %next
    i32 ROUTE_FLOAT, label %next
  ]
yes:
  ret i1 true
no:
  ret i1 false
}

; self.record_unwatched(*args)
define internal ptr @call_record(ptr %self, ptr %args, i64 %count) noinline {
entry:
  %given = alloca [MORE x ptr]
  store ptr %self, ptr %given
  %rest = getelementptr ptr, ptr %given, i64 1
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %args, i64 %bytes, i1 false)
  %all = add i64 %count, 1
  %name = load ptr, ptr @record_unwatched
  %returned = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %given, i64 %all, ptr null)
  ret ptr %returned
}

; PyObject* call_operator(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords)
define ptr @call_operator(ptr %self, ptr %args, i64 %flagged, ptr %keywords) {
entry:
  %frame = alloca %Frame
  %operator = getelementptr i8, ptr %self, i64 HEADER
  %n = and i64 %flagged, 9223372036854775807
  %object = load %Operator.returning, ptr %operator
  %no.object = icmp eq ptr %object, null
  %has.names = icmp ne ptr %keywords, null
  %unusual = or i1 %no.object, %has.names
  br i1 %unusual, label %slow, label %count
count:
  %returning = getelementptr i8, ptr %object, i64 HEADER
  %function = load %Returning.function, ptr %returning
  %expected = load %Returning.inputs, ptr %returning
  %first = load %Returning.first, ptr %returning
  %is.native = icmp ne ptr %function, null
  %are.all = icmp eq i64 %n, %expected
  %has.array = icmp sge i64 %first, 0
  %complete = and i1 %are.all, %has.array
  %usual = and i1 %complete, %is.native
  br i1 %usual, label %watch, label %slow
watch:
  %watched = call i1 @torch_is_watched()
  br i1 %watched, label %slow, label %look
look:
  %fit = call i1 @are_torchs(ptr %args, i64 %n)
  br i1 %fit, label %encode, label %slow

encode:
  %packed = getelementptr i8, ptr %function, i64 HEADER
  %places = load %Returning.places, ptr %returning
  %known = call i1 @encode_all(ptr %args, i64 %n, ptr %places, ptr %packed, i32 1, ptr %frame)
  br i1 %known, label %encoded, label %slow
encoded:
  %recording = load %Frame.recording, ptr %frame
  br icmp eq i32 %recording, 2, label %record, label %run
record:
  %recorded = call ptr @call_record(ptr %self, ptr %args, i64 %n)
  ret ptr %recorded
run:
  %like.at = getelementptr ptr, ptr %args, i64 %first
  %like = load ptr, ptr %like.at
  %returned = call ptr @returned(ptr %returning, ptr %frame, ptr %like, ptr null)
  br icmp eq ptr %returned, null, label %slow, label %return
return:
  ret ptr %returned

slow:
  %handed = call ptr @hand_over(ptr %self, ptr %args, i64 %n, ptr %keywords)
  ret ptr %handed
}
"""
