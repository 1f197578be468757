"""Pools: memory in chunks, given out in blocks, by compiled code that needs no GIL.

A pool gives out the smallest free block that fits, splits off its rest, and merges a block that
comes back with its free neighbours. It never touches the memory itself, which may be a device's;
its notes lie in memory of its own. Its owner provides the chunks: for devices,
:mod:`minitvm.runtime.device_api.allocator`. The pool of the CPU gets them from the C library by
itself, since compiled kernels take their workspaces from it.

Free blocks lie in *bins*, by size. A pool has bins for everybody, and further ones for each stream:
a block that was freed on a stream serves that stream at once, and everybody when it is *settled*.

A pool is locked for some ten instructions at a time, and nothing is called meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple, final

from minitvm.runtime.device_api.interface import ALIGNMENT, MemoryStats
from minitvm.runtime.heap_types import HEADER, function, holder, method
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import native_text

UNIT = ALIGNMENT  # bytes: the unit of addresses and sizes of the CPU's blocks
MOST_KEPT = 256 * 1024 * 1024  # unused bytes in the CPU's pool
WORKSPACE_HEAD = CACHE_LINE  # bytes in front of a workspace
NO_LIMIT = (1 << 63) - 1
_TOO_MUCH = 1 << 62  # bytes: more than any machine has
LEAST_UNIT = 16  # bytes: there are eight bins between powers of two

_HUGE_PAGE = 2 * 1024 * 1024
# On the CPU, blocks up to SMALL bytes come from chunks for such ones alone: one of them in a large
# chunk that is otherwise free would keep it from requests for the whole chunk.
_SMALL = 1024 * 1024
_SMALL_CHUNK = 4 * 1024 * 1024

_BINS = 512
# The offsets of the fields, in bytes; the head of the text describes the fields.
_BLOCK = (
    "ADDRESS", "SIZE", "BEFORE", "AFTER", "LINK", "NEXT", "BINS", "EPOCH", "REQUESTED", "HOME",
)  # fmt: skip
_COUNTERS = (
    "ALLOCATED", "ASKED", "RESERVED", "MOST_ALLOCATED", "MOST_RESERVED", "CHUNKS", "OBTAINED",
    "ALLOCATIONS", "FREES",
)  # fmt: skip
_POOL = ("LOCK", *_COUNTERS, "LIMIT", "SPARES", "SLABS", "EVERYBODYS")
_FRONT = ("HELD", "ASKED_HELD", "RETURNED", "GIVEN", "FOLLOWING", "LISTS")
_FRONT_MOST = 1024 * 1024
_SLAB = 64  # blocks that are made at a time

_TEXT = r"""
; ---- What is noted --------------------------------------------------------------------------
; A block is a part of a chunk:
;
;   chunk   +---------+--------------------+-------------+
;           | block <-BEFORE   block   AFTER-> block     |    in the order of their addresses
;           +---------+--------------------+-------------+
;
;   ADDRESS, SIZE   in bytes; the memory is never touched
;   BEFORE, AFTER   its neighbours in the chunk, or null; a chunk with one block has none
;   BINS            where it is free, or null
;   LINK, NEXT      in a list of the bins: the place that points to it, and the block after it
;   EPOCH           the time of its stream when it was freed
;   REQUESTED       the bytes that its user asked for
;   HOME            the bins that it was taken from
;
; Bins are free blocks by size:
;
;   512 lists       eight for each power of two: ... 512, 576, 640 ... 960, 1024, 1152 ...
;   WORDS           eight words of bits, one for each list that isn't empty
;   FURTHER         bins whose blocks may be taken here as well, or null
;   LEAST           the bytes from which on a rest is split off
;
; A pool:
;
;   LOCK            1: somebody is at it
;   ALLOCATED, ASKED, RESERVED             bytes: of blocks in use, as their users count, of chunks
;   MOST_ALLOCATED, MOST_RESERVED          the most that they have been
;   CHUNKS, OBTAINED                       the chunks that there are, and were so far
;   ALLOCATIONS, FREES                     the blocks that were given out and taken back so far
;   LIMIT           of RESERVED
;   SPARES, SLABS   blocks that stand for nothing, the pieces of memory that all blocks lie in
;   EVERYBODYS      bins

define internal i64 @number(ptr %of, i64 %field) alwaysinline {
  %at = getelementptr i8, ptr %of, i64 %field
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @pointer(ptr %of, i64 %field) alwaysinline {
  %at = getelementptr i8, ptr %of, i64 %field
  %value = load ptr, ptr %at
  ret ptr %value
}

define internal void @note(ptr %of, i64 %field, i64 %value) alwaysinline {
  %at = getelementptr i8, ptr %of, i64 %field
  store i64 %value, ptr %at
  ret void
}

define internal void @point(ptr %of, i64 %field, ptr %value) alwaysinline {
  %at = getelementptr i8, ptr %of, i64 %field
  store ptr %value, ptr %at
  ret void
}

define internal i64 @count(ptr %pool, i64 %field, i64 %more) alwaysinline {
  %before = call i64 @number(ptr %pool, i64 %field)
  %now = add i64 %before, %more
  call void @note(ptr %pool, i64 %field, i64 %now)
  ret i64 %now
}

; As `count`, and at `most` the greatest value so far.
define internal void @count_most(ptr %pool, i64 %field, i64 %more, i64 %most) alwaysinline {
  %now = call i64 @count(ptr %pool, i64 %field, i64 %more)
  %before = call i64 @number(ptr %pool, i64 %most)
  %greatest = call i64 @llvm.umax.i64(i64 %now, i64 %before)
  call void @note(ptr %pool, i64 %most, i64 %greatest)
  ret void
}

; ---- The lock -------------------------------------------------------------------------------
; Whoever has it is soon done; unless the system has taken the CPU away, which is yielded then.
define internal void @lock(ptr %pool) alwaysinline {
  %swap = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic, align 4
  %locked = extractvalue { i32, i1 } %swap, 1
  br i1 %locked, label %leave, label %wait
wait:
  call void @wait_for_lock(ptr %pool)
  br label %leave
leave:
  ret void
}

define internal void @wait_for_lock(ptr %pool) noinline {
entry:
  br label %look
look:
  %tries = phi i64 [ 0, %entry ], [ %more, %wait ], [ 0, %yield ], [ %tries, %try ]
  %held = load atomic i32, ptr %pool monotonic, align 4
  br icmp eq i32 %held, 0, label %try, label %wait
try:
  %swap = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic, align 4
  %locked = extractvalue { i32, i1 } %swap, 1
  br i1 %locked, label %leave, label %look
wait:
  %more = add i64 %tries, 1
  br icmp ugt i64 %more, 200, label %yield, label %look
yield:
  %ignored = call i32 @sched_yield()
  br label %look
leave:
  ret void
}

define internal void @unlock(ptr %pool) alwaysinline {
  store atomic i32 0, ptr %pool release, align 4
  ret void
}

; Locks the pool when it has two spare blocks, what any function takes at most. False, and not
; locked, if there is no memory for them.
define internal i1 @lock_with_spares(ptr %pool) alwaysinline {
  call void @lock(ptr %pool)
  %first = call ptr @pointer(ptr %pool, i64 SPARES)
  br icmp eq ptr %first, null, label %make, label %look
look:
  %second = call ptr @pointer(ptr %first, i64 NEXT)
  br icmp eq ptr %second, null, label %make, label %good
make:
  %made = call i1 @make_spares(ptr %pool)
  ret i1 %made
good:
  ret i1 true
}

define internal i1 @make_spares(ptr %pool) noinline {
entry:
  call void @unlock(ptr %pool)
  %slab = call ptr @calloc(i64 SLAB, i64 BLOCK)
  br icmp eq ptr %slab, null, label %bad, label %enter
enter:
  call void @lock(ptr %pool)
  ; Its first block is the link to the other slabs.
  %slabs = call ptr @pointer(ptr %pool, i64 SLABS)
  call void @point(ptr %slab, i64 NEXT, ptr %slabs)
  call void @point(ptr %pool, i64 SLABS, ptr %slab)
  br label %next
next:
  %index = phi i64 [ 1, %enter ], [ %following, %next ]
  %offset = mul i64 %index, BLOCK
  %block = getelementptr i8, ptr %slab, i64 %offset
  call void @spare(ptr %pool, ptr %block)
  %following = add i64 %index, 1
  br icmp eq i64 %following, SLAB, label %good, label %next
good:
  ret i1 true
bad:
  ret i1 false
}

define internal void @spare(ptr %pool, ptr %block) {
  %first = call ptr @pointer(ptr %pool, i64 SPARES)
  call void @point(ptr %block, i64 NEXT, ptr %first)
  call void @point(ptr %pool, i64 SPARES, ptr %block)
  ret void
}

define internal ptr @spared(ptr %pool) {
  %block = call ptr @pointer(ptr %pool, i64 SPARES)
  %next = call ptr @pointer(ptr %block, i64 NEXT)
  call void @point(ptr %pool, i64 SPARES, ptr %next)
  ret ptr %block
}

; ---- Bins -----------------------------------------------------------------------------------
; The list for a size: the power of two, and the three digits after its leading one.
define internal i64 @bin_of(i64 %size) {
  %zeros = call i64 @llvm.ctlz.i64(i64 %size, i1 true)
  %power = sub i64 63, %zeros
  %shift = sub i64 60, %zeros
  %digits = lshr i64 %size, %shift  ; 8 to 15
  %eights = shl i64 %power, 3
  %sum = add i64 %eights, %digits
  %bin = sub i64 %sum, 8
  ret i64 %bin
}

; Turns the bit of a list over.
define internal void @turn(ptr %bins, i64 %bin) {
  %word = lshr i64 %bin, 6
  %offset = shl i64 %word, 3
  %at = add i64 %offset, WORDS
  %bits = call i64 @number(ptr %bins, i64 %at)
  %shift = and i64 %bin, 63
  %bit = shl i64 1, %shift
  %turned = xor i64 %bits, %bit
  call void @note(ptr %bins, i64 %at, i64 %turned)
  ret void
}

define internal void @link(ptr %bins, ptr %block) {
  %size = call i64 @number(ptr %block, i64 SIZE)
  %bin = call i64 @bin_of(i64 %size)
  %list = getelementptr ptr, ptr %bins, i64 %bin
  %first = load ptr, ptr %list
  store ptr %block, ptr %list
  call void @point(ptr %block, i64 BINS, ptr %bins)
  call void @point(ptr %block, i64 LINK, ptr %list)
  call void @point(ptr %block, i64 NEXT, ptr %first)
  br icmp eq ptr %first, null, label %mark, label %behind
mark:
  call void @turn(ptr %bins, i64 %bin)
  ret void
behind:
  %link = getelementptr i8, ptr %block, i64 NEXT
  call void @point(ptr %first, i64 LINK, ptr %link)
  ret void
}

define internal void @unlink(ptr %block) {
  %link = call ptr @pointer(ptr %block, i64 LINK)
  %next = call ptr @pointer(ptr %block, i64 NEXT)
  %bins = call ptr @pointer(ptr %block, i64 BINS)
  store ptr %next, ptr %link
  call void @point(ptr %block, i64 BINS, ptr null)
  br icmp eq ptr %next, null, label %look, label %behind
look:
  %size = call i64 @number(ptr %block, i64 SIZE)
  %bin = call i64 @bin_of(i64 %size)
  %list = getelementptr ptr, ptr %bins, i64 %bin
  %first = load ptr, ptr %list
  br icmp eq ptr %first, null, label %mark, label %leave
mark:
  call void @turn(ptr %bins, i64 %bin)
  br label %leave
behind:
  call void @point(ptr %next, i64 LINK, ptr %link)
  br label %leave
leave:
  ret void
}

; The first list from number `bin` on that isn't empty, or 512.
define internal i64 @next_bin(ptr %bins, i64 %bin) {
entry:
  %first = lshr i64 %bin, 6
  %shift = and i64 %bin, 63
  %upper = shl i64 -1, %shift
  br label %look
look:
  %word = phi i64 [ %first, %entry ], [ %following, %on ]
  %mask = phi i64 [ %upper, %entry ], [ -1, %on ]
  br icmp eq i64 %word, 8, label %none, label %read
read:
  %offset = shl i64 %word, 3
  %at = add i64 %offset, WORDS
  %bits = call i64 @number(ptr %bins, i64 %at)
  %left = and i64 %bits, %mask
  br icmp eq i64 %left, 0, label %on, label %found
on:
  %following = add i64 %word, 1
  br label %look
found:
  %low = call i64 @llvm.cttz.i64(i64 %left, i1 true)
  %base = shl i64 %word, 6
  %number = add i64 %base, %low
  ret i64 %number
none:
  ret i64 512
}

; The block after another in the bins, list after list; after null the first of all, and null after
; the last.
define internal ptr @following(ptr %bins, ptr %block) {
entry:
  br icmp eq ptr %block, null, label %list, label %look
look:
  %next = call ptr @pointer(ptr %block, i64 NEXT)
  br icmp eq ptr %next, null, label %further, label %found
further:
  %size = call i64 @number(ptr %block, i64 SIZE)
  %its.bin = call i64 @bin_of(i64 %size)
  %behind = add i64 %its.bin, 1
  br label %list
list:
  %from = phi i64 [ 0, %entry ], [ %behind, %further ]
  %bin = call i64 @next_bin(ptr %bins, i64 %from)
  br icmp eq i64 %bin, 512, label %found, label %head
head:
  %head.at = getelementptr ptr, ptr %bins, i64 %bin
  %first = load ptr, ptr %head.at
  br label %found
found:
  %after = phi ptr [ %next, %look ], [ null, %list ], [ %first, %head ]
  ret ptr %after
}

; The smallest block of a list that has `size` bytes, or null.
define internal ptr @smallest(ptr %bins, i64 %bin, i64 %size) {
entry:
  %list = getelementptr ptr, ptr %bins, i64 %bin
  %first = load ptr, ptr %list
  br label %look
look:
  %block = phi ptr [ %first, %entry ], [ %next, %judge ]
  %best = phi ptr [ null, %entry ], [ %better, %judge ]
  %best.size = phi i64 [ -1, %entry ], [ %better.size, %judge ]
  br icmp eq ptr %block, null, label %leave, label %judge
judge:
  %its.size = call i64 @number(ptr %block, i64 SIZE)
  %next = call ptr @pointer(ptr %block, i64 NEXT)
  %fits = icmp uge i64 %its.size, %size
  %smaller = icmp ult i64 %its.size, %best.size
  %good = and i1 %fits, %smaller
  %better = select i1 %good, ptr %block, ptr %best
  %better.size = select i1 %good, i64 %its.size, i64 %best.size
  br icmp eq i64 %its.size, %size, label %leave, label %look
leave:
  %found = phi ptr [ %best, %look ], [ %block, %judge ]
  ret ptr %found
}

; The smallest free block of at least `size` bytes in the bins, or null.
define internal ptr @find(ptr %bins, i64 %size) {
  %bin = call i64 @bin_of(i64 %size)
  %near = call ptr @smallest(ptr %bins, i64 %bin, i64 %size)
  br icmp eq ptr %near, null, label %above, label %good
good:
  ret ptr %near
above:
  %from = add i64 %bin, 1
  %larger = call i64 @next_bin(ptr %bins, i64 %from)
  br icmp eq i64 %larger, 512, label %bad, label %look
look:
  %far = call ptr @smallest(ptr %bins, i64 %larger, i64 0)
  ret ptr %far
bad:
  ret ptr null
}

; Of the bins and those further ones that serve as well.
define internal ptr @find_anywhere(ptr %bins, i64 %size) {
  %own = call ptr @find(ptr %bins, i64 %size)
  %further = call ptr @pointer(ptr %bins, i64 FURTHER)
  br icmp eq ptr %further, null, label %first, label %both
both:
  %other = call ptr @find(ptr %further, i64 %size)
  br icmp eq ptr %other, null, label %first, label %compare
compare:
  br icmp eq ptr %own, null, label %second, label %sizes
sizes:
  %own.size = call i64 @number(ptr %own, i64 SIZE)
  %other.size = call i64 @number(ptr %other, i64 SIZE)
  br icmp ult i64 %other.size, %own.size, label %second, label %first
first:
  ret ptr %own
second:
  ret ptr %other
}

; ---- Blocks ---------------------------------------------------------------------------------
; Makes a block that is in no bins one of `size` bytes in use. The rest goes to the bins.
define internal void @use(ptr %pool, ptr %block, i64 %size, i64 %requested,
                          ptr %bins) alwaysinline {
  %whole = call i64 @number(ptr %block, i64 SIZE)
  %left = sub i64 %whole, %size
  %least = call i64 @number(ptr %bins, i64 LEAST)
  br icmp uge i64 %left, %least, label %split, label %enter
split:
  %rest = call ptr @spared(ptr %pool)
  %address = call ptr @pointer(ptr %block, i64 ADDRESS)
  %middle = getelementptr i8, ptr %address, i64 %size
  %after = call ptr @pointer(ptr %block, i64 AFTER)
  %epoch = call i64 @number(ptr %block, i64 EPOCH)
  call void @point(ptr %rest, i64 ADDRESS, ptr %middle)
  call void @note(ptr %rest, i64 SIZE, i64 %left)
  call void @note(ptr %rest, i64 EPOCH, i64 %epoch)
  call void @note(ptr %block, i64 SIZE, i64 %size)
  call void @chain(ptr %block, ptr %rest)
  call void @chain(ptr %rest, ptr %after)
  call void @link(ptr %bins, ptr %rest)
  br label %enter
enter:
  %taken = call i64 @number(ptr %block, i64 SIZE)
  call void @note(ptr %block, i64 REQUESTED, i64 %requested)
  call void @point(ptr %block, i64 HOME, ptr %bins)
  call void @count_most(ptr %pool, i64 ALLOCATED, i64 %taken, i64 MOST_ALLOCATED)
  %1 = call i64 @count(ptr %pool, i64 ASKED, i64 %requested)
  %2 = call i64 @count(ptr %pool, i64 ALLOCATIONS, i64 1)
  ret void
}

; Two neighbours; the second may be null.
define internal void @chain(ptr %block, ptr %after) {
  call void @point(ptr %block, i64 AFTER, ptr %after)
  br icmp eq ptr %after, null, label %leave, label %back
back:
  call void @point(ptr %after, i64 BEFORE, ptr %block)
  br label %leave
leave:
  ret void
}

; A block of at least `size` bytes, or null. Splits what is larger.
define ptr @take(ptr %pool, i64 %size, i64 %requested, ptr %bins) alwaysinline {
  %locked = call i1 @lock_with_spares(ptr %pool)
  br i1 %locked, label %look, label %bad
look:
  %block = call ptr @find_anywhere(ptr %bins, i64 %size)
  br icmp eq ptr %block, null, label %miss, label %found
found:
  %its.bins = call ptr @pointer(ptr %block, i64 BINS)
  call void @unlink(ptr %block)
  call void @use(ptr %pool, ptr %block, i64 %size, i64 %requested, ptr %its.bins)
  call void @unlock(ptr %pool)
  ret ptr %block
miss:
  call void @unlock(ptr %pool)
  br label %bad
bad:
  ret ptr null
}

; The first block of a new chunk, of `size` of its bytes; the chunk has been reserved.
define ptr @add(ptr %pool, ptr %address, i64 %whole, i64 %size, i64 %requested, ptr %bins) {
  %locked = call i1 @lock_with_spares(ptr %pool)
  br i1 %locked, label %make, label %bad
make:
  %block = call ptr @spared(ptr %pool)
  call void @point(ptr %block, i64 ADDRESS, ptr %address)
  call void @note(ptr %block, i64 SIZE, i64 %whole)
  call void @point(ptr %block, i64 BEFORE, ptr null)
  call void @point(ptr %block, i64 AFTER, ptr null)
  call void @point(ptr %block, i64 BINS, ptr null)
  call void @note(ptr %block, i64 EPOCH, i64 0)
  call void @count_most(ptr %pool, i64 RESERVED, i64 0, i64 MOST_RESERVED)
  %1 = call i64 @count(ptr %pool, i64 CHUNKS, i64 1)
  %2 = call i64 @count(ptr %pool, i64 OBTAINED, i64 1)
  call void @use(ptr %pool, ptr %block, i64 %size, i64 %requested, ptr %bins)
  call void @unlock(ptr %pool)
  ret ptr %block
bad:
  ret ptr null
}

define internal void @count_out(ptr %pool, ptr %block) {
  %size = call i64 @number(ptr %block, i64 SIZE)
  %requested = call i64 @number(ptr %block, i64 REQUESTED)
  %less = sub i64 0, %size
  %fewer = sub i64 0, %requested
  %1 = call i64 @count(ptr %pool, i64 ALLOCATED, i64 %less)
  %2 = call i64 @count(ptr %pool, i64 ASKED, i64 %fewer)
  %3 = call i64 @count(ptr %pool, i64 FREES, i64 1)
  ret void
}

; Two neighbours become the first of them.
define internal void @merge(ptr %pool, ptr %block, ptr %after) {
  %size = call i64 @number(ptr %block, i64 SIZE)
  %more = call i64 @number(ptr %after, i64 SIZE)
  %whole = add i64 %size, %more
  call void @note(ptr %block, i64 SIZE, i64 %whole)
  %epoch = call i64 @number(ptr %block, i64 EPOCH)
  %other = call i64 @number(ptr %after, i64 EPOCH)
  %later = call i64 @llvm.umax.i64(i64 %epoch, i64 %other)
  call void @note(ptr %block, i64 EPOCH, i64 %later)
  %next = call ptr @pointer(ptr %after, i64 AFTER)
  call void @chain(ptr %block, ptr %next)
  call void @spare(ptr %pool, ptr %after)
  ret void
}

; A block that is in no bins is free in these; returns it with what it has been merged with.
define internal ptr @put(ptr %pool, ptr %block, ptr %bins) alwaysinline {
  %after = call ptr @pointer(ptr %block, i64 AFTER)
  %joins.after = call i1 @lies_in(ptr %after, ptr %bins)
  br i1 %joins.after, label %append, label %look
append:
  call void @unlink(ptr %after)
  call void @merge(ptr %pool, ptr %block, ptr %after)
  br label %look
look:
  %before = call ptr @pointer(ptr %block, i64 BEFORE)
  %joins.before = call i1 @lies_in(ptr %before, ptr %bins)
  br i1 %joins.before, label %prepend, label %enter
prepend:
  call void @unlink(ptr %before)
  call void @merge(ptr %pool, ptr %before, ptr %block)
  br label %enter
enter:
  %merged = phi ptr [ %block, %look ], [ %before, %prepend ]
  call void @link(ptr %bins, ptr %merged)
  ret ptr %merged
}

define internal i1 @lies_in(ptr %block, ptr %bins) {
  br icmp eq ptr %block, null, label %no, label %look
look:
  %its.bins = call ptr @pointer(ptr %block, i64 BINS)
  %same = icmp eq ptr %its.bins, %bins
  ret i1 %same
no:
  ret i1 false
}

; A block in use is free; `epoch` is the time of the bins' stream.
define void @give_back(ptr %pool, ptr %block, ptr %bins, i64 %epoch) {
  call void @lock(ptr %pool)
  call void @count_out(ptr %pool, ptr %block)
  call void @note(ptr %block, i64 EPOCH, i64 %epoch)
  %ignored = call ptr @put(ptr %pool, ptr %block, ptr %bins)
  call void @unlock(ptr %pool)
  ret void
}

; A block in use is no longer, but not free either: it waits for something.
define void @retire(ptr %pool, ptr %block) {
  call void @lock(ptr %pool)
  call void @count_out(ptr %pool, ptr %block)
  call void @unlock(ptr %pool)
  ret void
}

; A block that is neither in use nor free is free for everybody.
define void @restore(ptr %pool, ptr %block) {
  %bins = getelementptr i8, ptr %pool, i64 EVERYBODYS
  call void @lock(ptr %pool)
  %ignored = call ptr @put(ptr %pool, ptr %block, ptr %bins)
  call void @unlock(ptr %pool)
  ret void
}

; What was freed in a stream's bins up to its time `epoch` is free for everybody.
define void @settle(ptr %pool, ptr %bins, i64 %epoch) {
entry:
  %everybodys = getelementptr i8, ptr %pool, i64 EVERYBODYS
  call void @lock(ptr %pool)
  %first = call ptr @following(ptr %bins, ptr null)
  br label %next
next:
  %block = phi ptr [ %first, %entry ], [ %after, %judge ], [ %after, %move ]
  br icmp eq ptr %block, null, label %leave, label %judge
judge:
  %after = call ptr @following(ptr %bins, ptr %block)
  %freed = call i64 @number(ptr %block, i64 EPOCH)
  br icmp ule i64 %freed, %epoch, label %move, label %next
move:
  call void @unlink(ptr %block)
  %ignored = call ptr @put(ptr %pool, ptr %block, ptr %everybodys)
  br label %next
leave:
  call void @unlock(ptr %pool)
  ret void
}

; ---- Chunks ---------------------------------------------------------------------------------
; Counts the bytes of a chunk that is to come, or that is gone; false beyond the limit.
define i1 @reserve(ptr %pool, i64 %size) {
  call void @lock(ptr %pool)
  %reserved = call i64 @number(ptr %pool, i64 RESERVED)
  %more = add i64 %reserved, %size
  %limit = call i64 @number(ptr %pool, i64 LIMIT)
  %far = icmp ugt i64 %more, %limit
  %grows = icmp sgt i64 %size, 0
  %much = and i1 %far, %grows
  br i1 %much, label %leave, label %enter
enter:
  call void @note(ptr %pool, i64 RESERVED, i64 %more)
  br label %leave
leave:
  call void @unlock(ptr %pool)
  %good = xor i1 %much, true
  ret i1 %good
}

; A block of the bins that is a whole chunk, no longer free; null if there is none.
define ptr @claim_chunk(ptr %pool, ptr %bins) {
entry:
  call void @lock(ptr %pool)
  br label %next
next:
  %before = phi ptr [ null, %entry ], [ %block, %judge ]
  %block = call ptr @following(ptr %bins, ptr %before)
  br icmp eq ptr %block, null, label %leave, label %judge
judge:
  %whole = call i1 @is_chunk(ptr %block)
  br i1 %whole, label %take, label %next
take:
  call void @unlink(ptr %block)
  br label %leave
leave:
  call void @unlock(ptr %pool)
  ret ptr %block
}

define internal i1 @is_chunk(ptr %block) {
  %before = call ptr @pointer(ptr %block, i64 BEFORE)
  %after = call ptr @pointer(ptr %block, i64 AFTER)
  %first = icmp eq ptr %before, null
  %last = icmp eq ptr %after, null
  %both = and i1 %first, %last
  ret i1 %both
}

; A chunk, whose only block is in no bins, is gone.
define void @drop(ptr %pool, ptr %block) {
  call void @lock(ptr %pool)
  call void @count_gone(ptr %pool, ptr %block)
  call void @unlock(ptr %pool)
  ret void
}

define internal void @count_gone(ptr %pool, ptr %block) {
  %size = call i64 @number(ptr %block, i64 SIZE)
  %less = sub i64 0, %size
  %1 = call i64 @count(ptr %pool, i64 RESERVED, i64 %less)
  %2 = call i64 @count(ptr %pool, i64 CHUNKS, i64 -1)
  call void @spare(ptr %pool, ptr %block)
  ret void
}

; ---- Pools ----------------------------------------------------------------------------------
; A pool, whose blocks are split where `least` bytes are left; null if there is no memory.
define ptr @new_pool(i64 %least, i64 %limit) {
  %pool = call ptr @calloc(i64 1, i64 POOL)
  br icmp eq ptr %pool, null, label %leave, label %fill
fill:
  call void @note(ptr %pool, i64 LIMIT, i64 %limit)
  %bins = getelementptr i8, ptr %pool, i64 EVERYBODYS
  call void @note(ptr %bins, i64 LEAST, i64 %least)
  br label %leave
leave:
  ret ptr %pool
}

; Bins of a pool. Those of a stream have everybody's as further ones.
define ptr @new_bins(i64 %least, ptr %further) {
  %bins = call ptr @calloc(i64 1, i64 BINS_SIZE)
  br icmp eq ptr %bins, null, label %leave, label %fill
fill:
  call void @note(ptr %bins, i64 LEAST, i64 %least)
  call void @point(ptr %bins, i64 FURTHER, ptr %further)
  br label %leave
leave:
  ret ptr %bins
}

; What is noted of a pool that has no chunks.
define void @delete_pool(ptr %pool) {
entry:
  %first = call ptr @pointer(ptr %pool, i64 SLABS)
  br label %next
next:
  %slab = phi ptr [ %first, %entry ], [ %following, %release ]
  br icmp eq ptr %slab, null, label %leave, label %release
release:
  %following = call ptr @pointer(ptr %slab, i64 NEXT)
  call void @free(ptr %slab)
  br label %next
leave:
  call void @free(ptr %pool)
  ret void
}

define void @delete_bins(ptr %bins) {
  call void @free(ptr %bins)
  ret void
}

; Copies the counters.
define void @read(ptr %pool, ptr %counters) {
  %from = getelementptr i8, ptr %pool, i64 ALLOCATED
  call void @lock(ptr %pool)
  call void @llvm.memcpy.p0.p0.i64(ptr %counters, ptr %from, i64 COUNTERS, i1 false)
  call void @unlock(ptr %pool)
  ret void
}

; The most so far is what is now.
define void @reset_most(ptr %pool) {
  call void @lock(ptr %pool)
  %allocated = call i64 @number(ptr %pool, i64 ALLOCATED)
  call void @note(ptr %pool, i64 MOST_ALLOCATED, i64 %allocated)
  %reserved = call i64 @number(ptr %pool, i64 RESERVED)
  call void @note(ptr %pool, i64 MOST_RESERVED, i64 %reserved)
  call void @unlock(ptr %pool)
  ret void
}

define void @set_limit(ptr %pool, i64 %limit) {
  call void @lock(ptr %pool)
  call void @note(ptr %pool, i64 LIMIT, i64 %limit)
  call void @unlock(ptr %pool)
  ret void
}

; The bytes of the largest block of the bins.
define i64 @largest(ptr %pool, ptr %bins) {
entry:
  call void @lock(ptr %pool)
  br label %next
next:
  %before = phi ptr [ null, %entry ], [ %block, %judge ]
  %most = phi i64 [ 0, %entry ], [ %more, %judge ]
  %block = call ptr @following(ptr %bins, ptr %before)
  br icmp eq ptr %block, null, label %leave, label %judge
judge:
  %size = call i64 @number(ptr %block, i64 SIZE)
  %more = call i64 @llvm.umax.i64(i64 %size, i64 %most)
  br label %next
leave:
  call void @unlock(ptr %pool)
  ret i64 %most
}

; ---- The CPU --------------------------------------------------------------------------------
@cpu = internal global ptr null    ; the pool; everybody's bins are for large blocks
@small = internal global ptr null  ; the bins of small ones

@key = internal global i64 0       ; of a thread's front; of 32 bits on Linux, 64 on macOS
@fronts = internal global ptr null ; all of them, by FOLLOWING

; A front is what a thread keeps at hand, so that small blocks need no lock. It takes another one
; while it holds less than FRONT_MOST bytes. For the pool these blocks are in use. What that has
; counted too much is counted here, and what it doesn't know of:
;
;   HELD, ASKED_HELD   the bytes at hand, and what users asked for
;   RETURNED, GIVEN    the blocks that came, and that were given out
;   FOLLOWING          another front, or null
;   LISTS              the blocks, a list for each multiple of 256
define internal ptr @front() {
  %key = load i64, ptr @key
  %known = call ptr @pthread_getspecific(i64 %key)
  br icmp eq ptr %known, null, label %make, label %leave
make:
  %made = call ptr @new_front()
  ret ptr %made
leave:
  ret ptr %known
}

define internal ptr @new_front() noinline {
  %front = call ptr @calloc(i64 1, i64 FRONT)
  br icmp eq ptr %front, null, label %leave, label %enter
enter:
  %pool = load ptr, ptr @cpu
  call void @lock(ptr %pool)
  %first = load ptr, ptr @fronts
  call void @point(ptr %front, i64 FOLLOWING, ptr %first)
  store ptr %front, ptr @fronts
  call void @unlock(ptr %pool)
  %key = load i64, ptr @key
  %ignored = call i32 @pthread_setspecific(i64 %key, ptr %front)
  br label %leave
leave:
  ret ptr %front
}

; A front gets `size` bytes, of which somebody asked for `requested`; or loses them.
define internal void @hold(ptr %front, i64 %size, i64 %requested) alwaysinline {
  %1 = call i64 @count(ptr %front, i64 HELD, i64 %size)
  %2 = call i64 @count(ptr %front, i64 ASKED_HELD, i64 %requested)
  ret void
}

define internal void @lose(ptr %front, i64 %size, i64 %requested) alwaysinline {
  %less = sub i64 0, %size
  %fewer = sub i64 0, %requested
  call void @hold(ptr %front, i64 %less, i64 %fewer)
  ret void
}

; This thread's front, if it is full, is emptied: it had not what was wanted.
define internal void @change_front() {
  %front = call ptr @front()
  br icmp eq ptr %front, null, label %leave, label %look
look:
  %held = call i64 @number(ptr %front, i64 HELD)
  br icmp uge i64 %held, FRONT_MOST, label %empty, label %leave
empty:
  call void @empty_front(ptr %front)
  br label %leave
leave:
  ret void
}

; Gives the pool what a front holds.
define internal void @empty_front(ptr %front) noinline {
entry:
  %pool = load ptr, ptr @cpu
  %bins = load ptr, ptr @small
  br label %next
next:
  %offset = phi i64 [ LISTS, %entry ], [ %offset, %give ], [ %following, %on ]
  %list = getelementptr i8, ptr %front, i64 %offset
  %block = load ptr, ptr %list
  br icmp eq ptr %block, null, label %on, label %give
give:
  %rest = call ptr @pointer(ptr %block, i64 NEXT)
  store ptr %rest, ptr %list
  %size = call i64 @number(ptr %block, i64 SIZE)
  %requested = call i64 @number(ptr %block, i64 REQUESTED)
  call void @lose(ptr %front, i64 %size, i64 %requested)
  %fewer = call i64 @count(ptr %front, i64 RETURNED, i64 -1)
  call void @give_back(ptr %pool, ptr %block, ptr %bins, i64 0)
  br label %next
on:
  %following = add i64 %offset, 8
  br icmp eq i64 %following, FRONT, label %leave, label %next
leave:
  ret void
}

; Of a thread that ends. What its front has counted is the pool's.
define internal void @end_front(ptr %front) {
entry:
  call void @empty_front(ptr %front)
  %pool = load ptr, ptr @cpu
  %after = call ptr @pointer(ptr %front, i64 FOLLOWING)
  %counters = getelementptr i8, ptr %pool, i64 ALLOCATED
  call void @lock(ptr %pool)
  call void @add_front(ptr %counters, ptr %front)
  br label %next
next:
  %link = phi ptr [ @fronts, %entry ], [ %further, %on ]
  %each = load ptr, ptr %link
  br icmp eq ptr %each, %front, label %leave, label %on
on:
  %further = getelementptr i8, ptr %each, i64 FOLLOWING
  br label %next
leave:
  store ptr %after, ptr %link
  call void @unlock(ptr %pool)
  call void @free(ptr %front)
  ret void
}

; Adds what a front counts to counters of a pool.
define internal void @add_front(ptr %counters, ptr %front) {
  %pool = getelementptr i8, ptr %counters, i64 -ALLOCATED  ; as if it were one
  %held = call i64 @number(ptr %front, i64 HELD)
  %less = sub i64 0, %held
  %1 = call i64 @count(ptr %pool, i64 ALLOCATED, i64 %less)
  %asked = call i64 @number(ptr %front, i64 ASKED_HELD)
  %less.asked = sub i64 0, %asked
  %2 = call i64 @count(ptr %pool, i64 ASKED, i64 %less.asked)
  %given = call i64 @number(ptr %front, i64 GIVEN)
  %3 = call i64 @count(ptr %pool, i64 ALLOCATIONS, i64 %given)
  %returned = call i64 @number(ptr %front, i64 RETURNED)
  %4 = call i64 @count(ptr %pool, i64 FREES, i64 %returned)
  ret void
}

; Of the CPU's pool, whose counters have been copied.
define void @add_fronts(ptr %counters) {
entry:
  %pool = load ptr, ptr @cpu
  call void @lock(ptr %pool)
  %first = load ptr, ptr @fronts
  br label %next
next:
  %front = phi ptr [ %first, %entry ], [ %following, %add ]
  br icmp eq ptr %front, null, label %leave, label %add
add:
  call void @add_front(ptr %counters, ptr %front)
  %following = call ptr @pointer(ptr %front, i64 FOLLOWING)
  br label %next
leave:
  call void @unlock(ptr %pool)
  ret void
}

define i32 @start(ptr %pool, ptr %small) {
  store ptr %pool, ptr @cpu
  store ptr %small, ptr @small
  %status = call i32 @pthread_key_create(ptr @key, ptr @end_front)
  ret i32 %status
}

; A block of the CPU's memory, or null. The machine's memory counts, since a system that hands out
; more than that ends the process when it is touched.
define ptr @take_here(i64 %requested) {
  br icmp ule i64 %requested, MEMORY, label %round, label %bad
round:
  %more = add i64 %requested, 255
  %size = and i64 %more, -256
  br icmp ule i64 %size, SMALL, label %quick, label %look
quick:
  %front = call ptr @front()
  br icmp eq ptr %front, null, label %look, label %at.hand
at.hand:
  %place = lshr i64 %size, 5
  %list = getelementptr i8, ptr %front, i64 %place
  %list.at = getelementptr i8, ptr %list, i64 LISTS
  %kept = load ptr, ptr %list.at
  br icmp eq ptr %kept, null, label %look, label %pop
pop:
  %rest = call ptr @pointer(ptr %kept, i64 NEXT)
  store ptr %rest, ptr %list.at
  call void @note(ptr %kept, i64 REQUESTED, i64 %requested)
  call void @lose(ptr %front, i64 %size, i64 %requested)
  %given = call i64 @count(ptr %front, i64 GIVEN, i64 1)
  ret ptr %kept
look:
  %block = tail call ptr @take_from_pool(i64 %size, i64 %requested)
  ret ptr %block
bad:
  ret ptr null
}

define internal ptr @take_from_pool(i64 %size, i64 %requested) noinline {
  %pool = load ptr, ptr @cpu
  %small.bins = load ptr, ptr @small
  %large.bins = getelementptr i8, ptr %pool, i64 EVERYBODYS
  %small = icmp ule i64 %size, SMALL
  br i1 %small, label %change, label %search
change:
  call void @change_front()
  br label %search
search:
  %bins = select i1 %small, ptr %small.bins, ptr %large.bins
  %block = call ptr @take(ptr %pool, i64 %size, i64 %requested, ptr %bins)
  br icmp eq ptr %block, null, label %miss, label %good
good:
  ret ptr %block
miss:
  br i1 %small, label %grow, label %shed
shed:
  ; What is free is too small: what is kept has to follow what is used.
  call void @release(ptr %pool, ptr %large.bins)
  br label %grow
grow:
  %wish = select i1 %small, i64 SMALL_CHUNK, i64 %size
  %first = call ptr @grow(ptr %pool, i64 %wish, i64 %size, i64 %requested, ptr %bins)
  br icmp eq ptr %first, null, label %again, label %grown
grown:
  ret ptr %first
again:
  call void @release(ptr %pool, ptr %large.bins)
  call void @release(ptr %pool, ptr %small.bins)
  %second = call ptr @grow(ptr %pool, i64 %size, i64 %size, i64 %requested, ptr %bins)
  br icmp eq ptr %second, null, label %last, label %at.last
at.last:
  ret ptr %second
last:
  %third = call ptr @take(ptr %pool, i64 %size, i64 %requested, ptr %large.bins)
  ret ptr %third
}

; The bytes of the pages in which so many lie: from 2 MiB on, huge ones.
define internal i64 @whole_pages(i64 %size) {
  %large = icmp uge i64 %size, HUGE
  %page = select i1 %large, i64 HUGE, i64 PAGE
  %most = sub i64 %page, 1
  %padded = add i64 %size, %most
  %mask = sub i64 0, %page
  %bytes = and i64 %padded, %mask
  ret i64 %bytes
}

; Whole pages of the C library's, or null; huge ones, if wanted, if there are (14 is MADV_HUGEPAGE).
define internal ptr @obtain(i64 %bytes, i1 %huge) {
  %large = icmp uge i64 %bytes, HUGE
  %page = select i1 %large, i64 HUGE, i64 PAGE
  %memory = call ptr @aligned_alloc(i64 %page, i64 %bytes)
  %there = icmp ne ptr %memory, null
  %wanted = and i1 %huge, %large
  %advised = and i1 %wanted, %there
  br i1 %advised, label %advise, label %leave
advise:
  %ignored = call i32 @madvise(ptr %memory, i64 %bytes, i32 14)
  br label %leave
leave:
  ret ptr %memory
}

; Memory outside of all pools, which `free` takes back.
define ptr @obtain_alone(i64 %size) {
  %bytes = call i64 @whole_pages(i64 %size)
  %memory = call ptr @obtain(i64 %bytes, i1 true)
  ret ptr %memory
}

define void @free_alone(ptr %memory) {
  call void @free(ptr %memory)
  ret void
}

; The first block of a new chunk of the CPU's.
define internal ptr @grow(ptr %pool, i64 %wish, i64 %size, i64 %requested, ptr %bins) noinline {
  %bytes = call i64 @whole_pages(i64 %wish)
  %less = sub i64 0, %bytes
  %allowed = call i1 @reserve(ptr %pool, i64 %bytes)
  br i1 %allowed, label %obtain, label %bad
obtain:
  %whole = icmp ugt i64 %size, SMALL
  %memory = call ptr @obtain(i64 %bytes, i1 %whole)
  br icmp eq ptr %memory, null, label %undo, label %enter
enter:
  %block = call ptr @add(ptr %pool, ptr %memory, i64 %bytes, i64 %size, i64 %requested, ptr %bins)
  br icmp eq ptr %block, null, label %release, label %good
good:
  ret ptr %block
release:
  call void @free(ptr %memory)
  br label %undo
undo:
  %1 = call i1 @reserve(ptr %pool, i64 %less)
  br label %bad
bad:
  ret ptr null
}

; Gives the chunks that are free to the C library.
define internal void @release(ptr %pool, ptr %bins) noinline {
entry:
  br label %next
next:
  %block = call ptr @claim_chunk(ptr %pool, ptr %bins)
  br icmp eq ptr %block, null, label %leave, label %free
free:
  %memory = call ptr @pointer(ptr %block, i64 ADDRESS)
  call void @drop(ptr %pool, ptr %block)
  call void @free(ptr %memory)
  br label %next
leave:
  ret void
}

define void @release_here() {
  %front = call ptr @front()
  br icmp eq ptr %front, null, label %chunks, label %at.hand
at.hand:
  call void @empty_front(ptr %front)
  br label %chunks
chunks:
  %pool = load ptr, ptr @cpu
  %small = load ptr, ptr @small
  %large = getelementptr i8, ptr %pool, i64 EVERYBODYS
  call void @release(ptr %pool, ptr %small)
  call void @release(ptr %pool, ptr %large)
  ret void
}

; Takes back what `take_here` gave. If very much is free, a chunk goes to the C library with its
; last block.
define void @give_back_here(ptr %block) {
  %home = call ptr @pointer(ptr %block, i64 HOME)
  %small = load ptr, ptr @small
  br icmp eq ptr %home, %small, label %quick, label %give
quick:
  %front = call ptr @front()
  br icmp eq ptr %front, null, label %give, label %at.hand
at.hand:
  %held = call i64 @number(ptr %front, i64 HELD)
  br icmp uge i64 %held, FRONT_MOST, label %give, label %push
push:
  %size = call i64 @number(ptr %block, i64 SIZE)
  %place = lshr i64 %size, 5
  %list = getelementptr i8, ptr %front, i64 %place
  %list.at = getelementptr i8, ptr %list, i64 LISTS
  %first = load ptr, ptr %list.at
  call void @point(ptr %block, i64 NEXT, ptr %first)
  store ptr %block, ptr %list.at
  %its.requested = call i64 @number(ptr %block, i64 REQUESTED)
  call void @hold(ptr %front, i64 %size, i64 %its.requested)
  %returned = call i64 @count(ptr %front, i64 RETURNED, i64 1)
  ret void
give:
  tail call void @give_pool_back(ptr %block)
  ret void
}

define internal void @give_pool_back(ptr %block) noinline {
  %pool = load ptr, ptr @cpu
  %bins = call ptr @pointer(ptr %block, i64 HOME)
  call void @lock(ptr %pool)
  call void @count_out(ptr %pool, ptr %block)
  %merged = call ptr @put(ptr %pool, ptr %block, ptr %bins)
  %reserved = call i64 @number(ptr %pool, i64 RESERVED)
  %allocated = call i64 @number(ptr %pool, i64 ALLOCATED)
  %free = sub i64 %reserved, %allocated
  br icmp sgt i64 %free, KEPT, label %look, label %leave
look:
  %whole = call i1 @is_chunk(ptr %merged)
  br i1 %whole, label %release, label %leave
leave:
  call void @unlock(ptr %pool)
  ret void
release:
  %memory = call ptr @pointer(ptr %merged, i64 ADDRESS)
  call void @unlink(ptr %merged)
  call void @count_gone(ptr %pool, ptr %merged)
  call void @unlock(ptr %pool)
  call void @free(ptr %memory)
  ret void
}

; A fork waits until nobody is at the pool: the child would have neither the thread nor its lock.
; All other pools are used with the GIL alone.
define void @before_fork() {
  %pool = load ptr, ptr @cpu
  call void @lock(ptr %pool)
  ret void
}

define void @after_fork() {
  %pool = load ptr, ptr @cpu
  call void @unlock(ptr %pool)
  ret void
}

; ---- Workspaces -----------------------------------------------------------------------------
; In front of a workspace lies the address of its block.
define ptr @allocate_workspace(i64 %size) {
  %whole = call i64 @llvm.uadd.sat.i64(i64 %size, i64 HEAD)
  %block = call ptr @take_here(i64 %whole)
  br icmp eq ptr %block, null, label %leave, label %give
give:
  %memory = call ptr @pointer(ptr %block, i64 ADDRESS)
  store ptr %block, ptr %memory
  %behind = getelementptr i8, ptr %memory, i64 HEAD
  ret ptr %behind
leave:
  ret ptr null
}

define void @give_back_workspace(ptr %memory) {
  br icmp eq ptr %memory, null, label %leave, label %give
give:
  %head = getelementptr i8, ptr %memory, i64 -HEAD
  %block = load ptr, ptr %head
  call void @give_back_here(ptr %block)
  br label %leave
leave:
  ret void
}

; ---- Objects of Python that hold a block ----------------------------------------------------
; Behind the head of an object: its block, the address of that, and the bytes that were asked for.
; What Python fills in: the type, the function that raises, and None.
@type = global ptr null
@refuse = global ptr null
@none = global ptr null

define ptr @make_object(ptr %self, ptr %number) {
  %size = call i64 @PyLong_AsSsize_t(ptr %number)
  br icmp sgt i64 %size, 0, label %take, label %other
take:
  %block = call ptr @take_here(i64 %size)
  br icmp eq ptr %block, null, label %refuse, label %make
other:
  br icmp eq i64 %size, 0, label %make, label %refuse
make:
  %held = phi ptr [ %block, %take ], [ null, %other ]
  %type = load ptr, ptr @type
  %object = call ptr @PyType_GenericAlloc(ptr %type, i64 0)
  br icmp eq ptr %object, null, label %undo, label %fill
fill:
  call void @point(ptr %object, i64 HEADER, ptr %held)
  call void @note(ptr %object, i64 SIZE_HELD, i64 %size)
  br icmp eq ptr %held, null, label %leave, label %point
point:
  %address = call ptr @pointer(ptr %held, i64 ADDRESS)
  call void @point(ptr %object, i64 ADDRESS_HELD, ptr %address)
  br label %leave
leave:
  ret ptr %object
undo:
  call void @let_go(ptr %held)
  ret ptr null
refuse:
  %error = call ptr @PyErr_Occurred()
  br icmp ne ptr %error, null, label %bad, label %raise
raise:
  %function = load ptr, ptr @refuse
  %nothing = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %number, ptr null)
  ret ptr %nothing
bad:
  ret ptr null
}

define internal void @let_go(ptr %block) {
  br icmp eq ptr %block, null, label %leave, label %give
give:
  call void @give_back_here(ptr %block)
  br label %leave
leave:
  ret void
}

define void @end_object(ptr %object) {
  %block = call ptr @pointer(ptr %object, i64 HEADER)
  call void @let_go(ptr %block)
  %type = load ptr, ptr @type
  call void @PyObject_Free(ptr %object)
  call void @Py_DecRef(ptr %type)
  ret void
}

define ptr @free_object(ptr %object, ptr %none, i64 %count, ptr %keywords) {
  %block = call ptr @pointer(ptr %object, i64 HEADER)
  call void @point(ptr %object, i64 HEADER, ptr null)
  call void @point(ptr %object, i64 ADDRESS_HELD, ptr null)
  call void @let_go(ptr %block)
  %result = load ptr, ptr @none
  call void @Py_IncRef(ptr %result)
  ret ptr %result
}
"""


class Counters(NamedTuple):
    """The counts of a pool: bytes, blocks and chunks."""

    allocated: int
    requested: int
    reserved: int
    most_allocated: int
    most_reserved: int
    chunks: int
    chunks_so_far: int
    allocations: int
    frees: int


_P, _N = ctypes.c_void_p, ctypes.c_int64
# Functions of pools: the result's type, and the arguments'. All are called with the GIL.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "new_pool": (_P, _N, _N),
    "new_bins": (_P, _N, _P),
    "delete_pool": (None, _P),
    "delete_bins": (None, _P),
    "take": (_P, _P, _N, _N, _P),
    "add": (_P, _P, _P, _N, _N, _N, _P),
    "give_back": (None, _P, _P, _P, _N),
    "retire": (None, _P, _P),
    "restore": (None, _P, _P),
    "settle": (None, _P, _P, _N),
    "reserve": (ctypes.c_bool, _P, _N),
    "claim_chunk": (_P, _P, _P),
    "drop": (None, _P, _P),
    "read": (None, _P, _P),
    "reset_most": (None, _P),
    "set_limit": (None, _P, _N),
    "largest": (_N, _P, _P),
    "release_here": (None,),
    "start": (ctypes.c_int, _P, _P),
    "add_fronts": (None, _P),
    "obtain_alone": (_P, _N),
    "free_alone": (None, _P),
}
_functions: dict[str, Callable[..., Any]] = {}


def pool_text() -> str:
    """The LLVM IR of the pools."""
    machine = memory_of_machine()
    places = {name: 8 * index for index, name in enumerate(_BLOCK)}
    places |= {name: 8 * index for index, name in enumerate(_POOL)}
    places |= {name: 8 * index for index, name in enumerate(_FRONT)}
    places |= {"WORDS": 8 * _BINS, "FURTHER": 8 * (_BINS + 8), "LEAST": 8 * (_BINS + 9)}
    bins = 8 * (_BINS + 10)
    sizes = {
        "BLOCK": 8 * len(_BLOCK),
        "BINS_SIZE": bins,
        "POOL": places["EVERYBODYS"] + bins,
        "COUNTERS": 8 * len(_COUNTERS),
        "FRONT_MOST": _FRONT_MOST,
        "FRONT": places["LISTS"] + 8 * (_SMALL // UNIT + 1),
        "SLAB": _SLAB,
        "SMALL": _SMALL,
        "SMALL_CHUNK": _SMALL_CHUNK,
        "HUGE": _HUGE_PAGE,
        "PAGE": 4096,
        "KEPT": MOST_KEPT,
        "MEMORY": _TOO_MUCH if machine is None else machine.total,
        "HEAD": WORKSPACE_HEAD,
        "HEADER": HEADER,
        "ADDRESS_HELD": HEADER + 8,
        "SIZE_HELD": HEADER + 16,
    }
    return native_text(_TEXT, places | sizes)


def memory_of_machine() -> MemoryStats | None:
    """The memory of this machine, where the system tells. If it only tells the total, all of it
    counts as free."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    known = "SC_AVPHYS_PAGES" in os.sysconf_names
    return MemoryStats(total, os.sysconf("SC_AVPHYS_PAGES") * page if known else total)


def obtain(size: int) -> int:
    """The address of `size` new bytes of the CPU, outside of all pools; 0 where there are none."""
    return _call("obtain_alone", size) or 0


def give_up(address: int) -> None:
    """Takes back memory that :func:`obtain` gave."""
    _call("free_alone", address)


@Once
def _code() -> NativeCode:
    """The machine code of the pools, compiled on the first call."""
    return NativeCode(pool_text())


def _call(name: str, *arguments: int) -> Any:
    function = _functions.get(name)
    if function is None:
        function = ctypes.PYFUNCTYPE(*_FUNCTIONS[name])(_code().function(name))
        _functions[name] = function
    return function(*arguments)


class Pool:
    """A pool of memory that its owner gets in chunks. Blocks and bins are numbers; 0 is none.

    Parameters
    ----------
    least
        The bytes from which on the rest of a block is split off; all sizes are multiples of it.
    limit
        The most that may be reserved, in bytes.

    >>> pool = Pool(256)
    >>> pool.reserve(4096)
    True
    >>> block = pool.add(0x10000, 4096, 512, 500, pool.everybodys)
    >>> hex(pool.address(block)), pool.size(block)
    ('0x10000', 512)
    >>> pool.take(8192, 8192, pool.everybodys)
    0
    >>> hex(pool.address(pool.take(256, 100, pool.everybodys)))
    '0x10200'
    >>> pool.counters().allocated
    768
    """

    __slots__ = ("_pool", "everybodys")

    def __init__(self, least: int, limit: int | None = None) -> None:
        self._pool = 0
        self._pool = _made(_call("new_pool", least, NO_LIMIT if limit is None else limit))
        self.everybodys: int = self._pool + 8 * _POOL.index("EVERYBODYS")

    def __del__(self) -> None:
        if self._pool and not self.counters().reserved:
            _call("delete_pool", self._pool)

    def new_bins(self, least: int, further: int = 0) -> int:
        """New bins; they also give out the blocks of the `further` bins."""
        return _made(_call("new_bins", least, further))

    def delete_bins(self, bins: int) -> None:
        """Deletes empty bins."""
        _call("delete_bins", bins)

    @staticmethod
    def address(block: int) -> int:
        """The address of a block's first byte."""
        return ctypes.c_int64.from_address(block).value

    @staticmethod
    def size(block: int) -> int:
        """The bytes of a block."""
        return ctypes.c_int64.from_address(block + 8).value

    def take(self, size: int, requested: int, bins: int) -> int:
        """The smallest block of at least `size` bytes, for a request of `requested` bytes."""
        return _call("take", self._pool, size, requested, bins) or 0

    def reserve(self, size: int) -> bool:
        """Counts the bytes of a chunk that is to come; False if they are beyond the limit."""
        return bool(_call("reserve", self._pool, size))

    def cancel(self, size: int) -> None:
        """Takes back the reservation of a chunk that doesn't come."""
        _call("reserve", self._pool, -size)

    def add(self, address: int, whole: int, size: int, requested: int, bins: int) -> int:
        """The first block of a chunk that was reserved; the rest is free in the bins."""
        return _call("add", self._pool, address, whole, size, requested, bins) or 0

    def give_back(self, block: int, bins: int, epoch: int = 0) -> None:
        """Frees a block in use into the bins, since a time of their stream."""
        _call("give_back", self._pool, block, bins, epoch)

    def settle(self, bins: int, epoch: int) -> None:
        """Makes the blocks that were freed in bins until a time free for everybody."""
        _call("settle", self._pool, bins, epoch)

    def retire(self, block: int) -> None:
        """Marks a block as not in use any more, but not free yet."""
        _call("retire", self._pool, block)

    def restore(self, block: int) -> None:
        """Frees a retired block, or a claimed chunk, for everybody."""
        _call("restore", self._pool, block)

    def claim_chunk(self) -> int:
        """Takes a chunk that is wholly free, for every stream, out of the free ones."""
        return _call("claim_chunk", self._pool, self.everybodys) or 0

    def drop(self, chunk: int) -> None:
        """Forgets a claimed chunk, or a retired block that is one: its memory has gone back to the
        owner."""
        _call("drop", self._pool, chunk)

    def largest(self, bins: int) -> int:
        """The bytes of the largest free block in bins."""
        return int(_call("largest", self._pool, bins))

    def counters(self) -> Counters:
        """The counts so far."""
        found = (ctypes.c_int64 * len(_COUNTERS))()
        _call("read", self._pool, ctypes.addressof(found))
        return Counters(*found)

    def reset_most(self) -> None:
        """Sets the greatest values to the present ones."""
        _call("reset_most", self._pool)

    @property
    def limit(self) -> int:
        """The most that may be reserved, or :data:`NO_LIMIT`."""
        return ctypes.c_int64.from_address(self._pool + 8 * _POOL.index("LIMIT")).value

    @limit.setter
    def limit(self, limit: int) -> None:
        _call("set_limit", self._pool, limit)


def _made(address: int | None) -> int:
    if not address:
        raise MemoryError("a pool of memory: expected some kilobytes for its notes, found none")
    return address


@final
class CPUPool(Pool):
    """The pool of the CPU's memory, which also gives compiled kernels their workspaces.

    `allocate` gives the memory of an array as an object with `address`, `size` and `free`. The
    memory is given back with the object's last reference; 0 bytes have the address 0.
    """

    __slots__ = ("allocate", "allocate_workspace", "block_type", "give_back_workspace", "small")

    def __init__(self, refuse: Callable[[int], object], limit: int | None = None) -> None:
        """`refuse` raises an error for a size that can't be had."""
        super().__init__(_HUGE_PAGE, limit)
        code = _code()
        self.small = self.new_bins(UNIT)
        if _call("start", self._pool, self.small) != 0:
            raise MemoryError(
                "the CPU's memory: expected a key for data of a thread, found none left"
            )
        _at_fork(code)
        self.allocate_workspace = code.function("allocate_workspace")
        self.give_back_workspace = code.function("give_back_workspace")
        self.block_type = holder(
            "minitvm.runtime.device_api.memory_pool.CPUBlock",
            24,
            code.function("end_object"),
            {"address": HEADER + 8, "size": HEADER + 16},
        )
        free = method(self.block_type, "free", code.function("free_object"), "Give it back.")
        self.block_type.free = free
        code.set_objects(type=self.block_type, refuse=refuse, none=None)
        self.allocate: Callable[[int], Any] = function("allocate", code.function("make_object"))

    def counters(self) -> Counters:
        """The counts so far. Memory that threads keep at hand counts as free, except in the
        greatest values."""
        found = (ctypes.c_int64 * len(_COUNTERS))()
        _call("read", self._pool, ctypes.addressof(found))
        _call("add_fronts", ctypes.addressof(found))
        return Counters(*found)

    def release(self) -> None:
        """Returns unused memory to the C library."""
        _call("release_here")


def _at_fork(code: NativeCode) -> None:
    """No fork while a kernel's thread has locked the pool. By the C library, since between hooks of
    Python's and the fork other threads might get the GIL, and wait for the pool with it."""
    library = ctypes.CDLL(None)
    before, after = code.function("before_fork"), code.function("after_fork")
    for name in ("pthread_atfork", "__register_atfork"):  # glibc exports the second alone
        register = getattr(library, name, None)
        if register is not None:
            register(*map(ctypes.c_void_p, (before, after, after, None)))
            return
