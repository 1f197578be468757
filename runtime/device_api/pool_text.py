"""The LLVM IR of pools of memory (:mod:`minitvm.runtime.device_api.memory_pool`)."""

from __future__ import annotations

from minitvm.runtime.device_api.cpu_pool_text import CPU_POOL
from minitvm.runtime.device_api.interface import ALIGNMENT
from minitvm.runtime.heap_types import HEADER
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.native_text import native_text

UNIT = ALIGNMENT  # bytes: the unit of addresses and sizes of the CPU's blocks
MOST_KEPT = 256 * 1024 * 1024  # unused bytes in the CPU's pool
WORKSPACE_HEAD = CACHE_LINE  # bytes in front of a workspace
NO_LIMIT = (1 << 63) - 1
_TOO_MUCH = 1 << 62  # bytes: more than any machine has
LEAST_UNIT = 16  # bytes: there are eight lists between powers of two

HUGE_PAGE = 2 * 1024 * 1024
# On the CPU, blocks up to SMALL bytes come from chunks of their own: a small block in an otherwise
# free large chunk would keep it from serving requests for the whole chunk.
_SMALL = 1024 * 1024
_SMALL_CHUNK = 4 * 1024 * 1024

_BINS = 512
# The offsets of the fields, in bytes; the head of the text describes the fields.
_BLOCK = (
    "ADDRESS", "SIZE", "BEFORE", "AFTER", "LINK", "NEXT", "BINS", "EPOCH", "REQUESTED", "HOME",
)  # fmt: skip
COUNTERS = (
    "ALLOCATED", "ASKED", "RESERVED", "MOST_ALLOCATED", "MOST_RESERVED", "CHUNKS", "OBTAINED",
    "ALLOCATIONS", "FREES",
)  # fmt: skip
POOL = ("LOCK", *COUNTERS, "LIMIT", "SPARES", "SLABS", "EVERYBODYS")
_FRONT = ("HELD", "ASKED_HELD", "RETURNED", "GIVEN", "FOLLOWING", "LISTS")
_FRONT_MOST = 1024 * 1024
_SLAB = 64  # records of blocks that are allocated at a time

_TEXT = r"""
; ---- The records ----------------------------------------------------------------------------
; A block is a part of a chunk:
;
;   chunk   +---------+--------------------+-------------+
;           | block <-BEFORE   block   AFTER-> block     |    in the order of their addresses
;           +---------+--------------------+-------------+
;
;   ADDRESS, SIZE   in bytes; the memory is never touched
;   BEFORE, AFTER   its neighbours in the chunk, or null; the only block of a chunk has none
;   BINS            the bins that hold it while it is free, or null
;   LINK, NEXT      in a list of the bins: the place that points to it, and the block after it
;   EPOCH           the time of its stream when it was freed
;   REQUESTED       the bytes for which its user asked
;   HOME            the bins from which it was taken
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
;   LOCK            1: a thread has locked it
;   ALLOCATED, ASKED, RESERVED             bytes: of blocks in use, as their users count, of chunks
;   MOST_ALLOCATED, MOST_RESERVED          the most that they have been
;   CHUNKS, OBTAINED                       the existing chunks, and all so far
;   ALLOCATIONS, FREES                     the blocks that were given out and taken back so far
;   LIMIT           of RESERVED
;   SPARES, SLABS   unused records of blocks; the pieces of memory with all records
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
; The holder is soon done, unless the system has taken its CPU away; then the CPU is yielded.
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

; Locks the pool, with at least two spare blocks, the most that any function takes. False, and not
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
  ; Makes a slab of spare blocks. Its first block links it to the other slabs.
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

; Flips the bit of a list.
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

; The next block in the bins, list after list: null is followed by the first block, and the last
; block by null.
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

; The same for the bins and their further bins.
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
; Uses `size` bytes of a block that is in no bins. The rest goes to the bins.
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

; Links two neighbours; the second may be null.
define internal void @chain(ptr %block, ptr %after) {
  call void @point(ptr %block, i64 AFTER, ptr %after)
  br icmp eq ptr %after, null, label %leave, label %back
back:
  call void @point(ptr %after, i64 BEFORE, ptr %block)
  br label %leave
leave:
  ret void
}

; A block of at least `size` bytes, or null. A larger block is split.
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

; The first block of a new, reserved chunk, with `size` of its bytes.
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

; Merges two neighbours into the first.
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

; Frees a block that is in no bins into these bins; returns the block merged with its neighbours.
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

; Frees a block in use; `epoch` is the time of the bins' stream.
define void @give_back(ptr %pool, ptr %block, ptr %bins, i64 %epoch) {
  call void @lock(ptr %pool)
  call void @count_out(ptr %pool, ptr %block)
  call void @note(ptr %block, i64 EPOCH, i64 %epoch)
  %ignored = call ptr @put(ptr %pool, ptr %block, ptr %bins)
  call void @unlock(ptr %pool)
  ret void
}

; Retires a block in use: it is neither in use nor free, and waits for work of streams.
define void @retire(ptr %pool, ptr %block) {
  call void @lock(ptr %pool)
  call void @count_out(ptr %pool, ptr %block)
  call void @unlock(ptr %pool)
  ret void
}

; Frees a retired block, or a claimed chunk, for everybody.
define void @restore(ptr %pool, ptr %block) {
  %bins = getelementptr i8, ptr %pool, i64 EVERYBODYS
  call void @lock(ptr %pool)
  %ignored = call ptr @put(ptr %pool, ptr %block, ptr %bins)
  call void @unlock(ptr %pool)
  ret void
}

; Makes the blocks that were freed in a stream's bins up to its time `epoch` free for everybody.
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
; Adds the bytes of a future chunk, or subtracts those of a dropped one; false beyond the limit.
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

; Takes a block that is a whole chunk out of the bins; null if there is none.
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

; Forgets a chunk whose only block is in no bins.
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
; A new pool, whose blocks are split if at least `least` bytes remain; null if there is no memory.
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

; New bins of a pool. A stream's bins have the common bins as further ones.
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

; Frees the records of a pool without chunks.
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

; Sets the greatest values to the present ones.
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
"""


def pool_text(memory: int = _TOO_MUCH) -> str:
    """The LLVM IR of the pools, for a machine with `memory` bytes."""
    places = {name: 8 * index for index, name in enumerate(_BLOCK)}
    places |= {name: 8 * index for index, name in enumerate(POOL)}
    places |= {name: 8 * index for index, name in enumerate(_FRONT)}
    places |= {"WORDS": 8 * _BINS, "FURTHER": 8 * (_BINS + 8), "LEAST": 8 * (_BINS + 9)}
    bins = 8 * (_BINS + 10)
    sizes = {
        "BLOCK": 8 * len(_BLOCK),
        "BINS_SIZE": bins,
        "POOL": places["EVERYBODYS"] + bins,
        "COUNTERS": 8 * len(COUNTERS),
        "FRONT_MOST": _FRONT_MOST,
        "FRONT": places["LISTS"] + 8 * (_SMALL // UNIT + 1),
        "SLAB": _SLAB,
        "SMALL": _SMALL,
        "SMALL_CHUNK": _SMALL_CHUNK,
        "HUGE": HUGE_PAGE,
        "PAGE": 4096,
        "KEPT": MOST_KEPT,
        "MEMORY": memory,
        "HEAD": WORKSPACE_HEAD,
        "HEADER": HEADER,
        "ADDRESS_HELD": HEADER + 8,
        "SIZE_HELD": HEADER + 16,
    }
    return native_text(_TEXT + CPU_POOL, places | sizes)
