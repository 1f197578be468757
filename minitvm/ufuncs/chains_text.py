"""The LLVM IR of chains, a part of the page of a ufunc's loop.

A chain is a loop whose elements depend on each other: ``reduce``, ``accumulate``, ``at``.
"""

from __future__ import annotations

CHAINS = r"""
; Whether the bytes from the first to the last element of x lie apart from the bytes of y. %x.span
; is the distance from the first element to the last.
define internal i1 @are_apart(i64 %x, i64 %x.span, i64 %x.size, i64 %y, i64 %y.span, i64 %y.size) {
  %x.down = call i64 @llvm.smin.i64(i64 %x.span, i64 0)
  %x.up = call i64 @llvm.smax.i64(i64 %x.span, i64 0)
  %y.down = call i64 @llvm.smin.i64(i64 %y.span, i64 0)
  %y.up = call i64 @llvm.smax.i64(i64 %y.span, i64 0)
  %x.low = add i64 %x, %x.down
  %x.most = add i64 %x, %x.up
  %x.high = add i64 %x.most, %x.size
  %y.low = add i64 %y, %y.down
  %y.most = add i64 %y, %y.up
  %y.high = add i64 %y.most, %y.size
  %below = icmp ule i64 %x.high, %y.low
  %above = icmp ule i64 %y.high, %x.low
  %apart = or i1 %below, %above
  ret i1 %apart
}

; Whether an element of a result is written again, or an input is read at its place: before the
; write (accumulate) or after it, since numpy allows operands to overlap that are read ahead of the
; result.
define internal i1 @is_serial(ptr %base, ptr %args, ptr %steps, i64 %n) {
entry:
  %count = load %Kernel.count, ptr %base
  %operands = load %Kernel.operands, ptr %base
  %last = sub i64 %n, 1
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %other ]
  br icmp eq i64 %i, %count, label %no, label %look
look:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %output = load %Operand.output, ptr %operand
  br icmp eq i32 %output, 0, label %other, label %step
step:
  %size = load %Operand.size, ptr %operand
  %step.at = getelementptr i64, ptr %steps, i64 %i
  %far = load i64, ptr %step.at
  %span = mul i64 %far, %last
  %address.at = getelementptr i64, ptr %args, i64 %i
  %address = load i64, ptr %address.at
  br icmp eq i64 %far, 0, label %yes, label %inputs
inputs:
  %j = phi i64 [ 0, %step ], [ %j.next, %fine ]
  br icmp eq i64 %j, %i, label %other, label %compare
compare:
  %j.next = add i64 %j, 1
  %from.operand = getelementptr %Operand, ptr %operands, i64 %j
  %from.size = load %Operand.size, ptr %from.operand
  %from.rank = load %Operand.rank, ptr %from.operand
  %from.at = getelementptr i64, ptr %args, i64 %j
  %from = load i64, ptr %from.at
  %from.step.at = getelementptr i64, ptr %steps, i64 %j
  %from.step = load i64, ptr %from.step.at
  %from.span = mul i64 %from.step, %last
  %distance = sub i64 %address, %from
  br icmp eq i64 %distance, %far, label %yes, label %number
number:
  br icmp eq i64 %from.rank, 0, label %ranges, label %fine
ranges:
  %apart = call i1 @are_apart(i64 %from, i64 %from.span, i64 %from.size, i64 %address, i64 %span,
                              i64 %size)
  br i1 %apart, label %fine, label %beside
beside:
  ; With equal steps, the operands are the same, or interleave.
  %even = icmp eq i64 %from.step, %far
  %off = srem i64 %distance, %far
  %same = icmp eq i64 %distance, 0
  %between = icmp ne i64 %off, 0
  %harmless = or i1 %same, %between
  %good = and i1 %even, %harmless
  br i1 %good, label %fine, label %yes
fine:
  br label %inputs
other:
  br label %next
no:
  ret i1 false
yes:
  ret i1 true
}

; REDUCE, ACCUMULATE or UPDATE where the calls are such a chain, with x apart from it; else 0:
;     reduce         r, x[i] -> r
;     accumulate     y[i - 1], x[i] -> y[i]
;     update         y[i], x[i] -> y[i], of few elements
define internal i64 @form_of_chain(ptr %loop, ptr %args, ptr %steps, i64 %n) {
entry:
  %may = load %Loop.may_chain, ptr %loop
  br icmp eq i64 %may, 0, label %none, label %look
look:
  %y.at = getelementptr i64, ptr %args, i64 2
  %y.step.at = getelementptr i64, ptr %steps, i64 2
  %before = load i64, ptr %args
  %before.step = load i64, ptr %steps
  %y = load i64, ptr %y.at
  %y.step = load i64, ptr %y.step.at
  %far = sub i64 %y, %before
  %same = icmp eq i64 %far, 0
  %after = icmp eq i64 %far, %y.step
  %near = or i1 %same, %after
  %even = icmp eq i64 %before.step, %y.step
  %is = and i1 %even, %near
  br i1 %is, label %measure, label %none
measure:
  %base = load %Loop.base, ptr %loop
  %operands = load %Kernel.operands, ptr %base
  %x.at = getelementptr i64, ptr %args, i64 1
  %x.step.at = getelementptr i64, ptr %steps, i64 1
  %x = load i64, ptr %x.at
  %x.step = load i64, ptr %x.step.at
  %x.operand = getelementptr %Operand, ptr %operands, i64 1
  %y.operand = getelementptr %Operand, ptr %operands, i64 2
  %x.size = load %Operand.size, ptr %x.operand
  %y.size = load %Operand.size, ptr %y.operand
  %last = sub i64 %n, 1
  %x.span = mul i64 %x.step, %last
  %y.rest = mul i64 %y.step, %last
  %y.span = add i64 %y.rest, %far
  %apart = call i1 @are_apart(i64 %x, i64 %x.span, i64 %x.size, i64 %before, i64 %y.span,
                              i64 %y.size)
  br i1 %apart, label %found, label %none
found:
  %kept = select i1 %same, i64 UPDATE, i64 ACCUMULATE
  %stays = icmp eq i64 %y.step, 0
  %several = icmp ne i64 %n, 1
  %reduces = and i1 %stays, %several
  %form = select i1 %reduces, i64 REDUCE, i64 %kept
  %updates = icmp eq i64 %form, UPDATE
  %many = icmp sgt i64 %n, FEW
  %better = and i1 %updates, %many
  br i1 %better, label %none, label %is.chain
is.chain:
  ret i64 %form
none:
  ret i64 0
}

; A chain that takes less time than the checks of its arrays. Their results are known here, since
; numpy aligns the elements of its numbers. False: nothing was done, and the kernel must be called
; with the checks.
define internal i1 @run_short_chain(ptr %kernel, ptr %args, ptr %steps, i64 %n, ptr %addresses) {
entry:
  %sizes = alloca i64
  %plain = load %Kernel.plain, ptr %kernel
  %count = load %Kernel.count, ptr %kernel
  %operands = load %Kernel.operands, ptr %kernel
  %several = icmp ne i64 %n, 1
  %long = icmp sgt i64 %n, SHORT
  %none = icmp eq ptr %plain, null
  %other = or i1 %long, %none
  br i1 %other, label %no, label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %placed ]
  br icmp eq i64 %i, %count, label %call, label %one
one:
  %i.next = add i64 %i, 1
  %operand = getelementptr %Operand, ptr %operands, i64 %i
  %source = load %Operand.source, ptr %operand
  %position = load %Operand.position, ptr %operand
  %batched = load %Operand.batched, ptr %operand
  %size = load %Operand.size, ptr %operand
  %step.at = getelementptr i64, ptr %steps, i64 %source
  %step = load i64, ptr %step.at
  %spread = icmp ne i64 %step, %size
  %is.vector = icmp ne i64 %batched, 0
  %matters = and i1 %several, %is.vector
  %is.spread = and i1 %spread, %matters
  br i1 %is.spread, label %no, label %align
align:
  %address.at = getelementptr i64, ptr %args, i64 %source
  %address = load i64, ptr %address.at
  %mask = sub i64 %size, 1
  %off = and i64 %address, %mask
  br icmp eq i64 %off, 0, label %placed, label %no
placed:
  %place = getelementptr i64, ptr %addresses, i64 %position
  store i64 %address, ptr %place
  br label %next
call:
  store i64 %n, ptr %sizes
  %status = call i32 %plain(ptr %addresses, ptr %sizes)
  ret i1 true
no:
  ret i1 false
}
"""
