"""The LLVM IR of the CPU's pool: a part of the pools' page.

Each thread keeps some free blocks at hand, its *front*; the rest comes from the pool, and its
chunks from the C library. Workspaces of kernels and the objects of Python that hold a block are
made here, too.
"""

from __future__ import annotations

CPU_POOL = r"""
; ---- The CPU --------------------------------------------------------------------------------
@cpu = internal global ptr null    ; the pool; its common bins hold large blocks
@small = internal global ptr null  ; the bins of small blocks

@key = internal global i64 0       ; of a thread's front; of 32 bits on Linux, 64 on macOS
@fronts = internal global ptr null ; all of them, by FOLLOWING

; A front holds the free blocks that a thread keeps at hand, so that small blocks need no lock. It
; takes a further block while it holds less than FRONT_MOST bytes. To the pool these blocks are in
; use. The front counts the corrections to the pool's counters:
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

; A front gets, or loses, a block of `size` bytes, for which a user asked for `requested`.
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

; Empties this thread's front if it is full: it didn't have the wanted block.
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

; Gives the blocks of a front to the pool.
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

; Called when a thread ends. The counts of its front go to the pool.
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

; Adds the counts of a front to counters of a pool.
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

; Corrects copied counters of the CPU's pool by the fronts.
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

; A block of the CPU's memory, or null. The machine's memory is the limit, since a system that
; hands out more ends the process when the memory is touched.
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
  ; The free blocks are too small: the kept memory must adapt to the requests.
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

; A number of bytes rounded up to whole pages: from 2 MiB on, huge pages.
define internal i64 @whole_pages(i64 %size) {
  %large = icmp uge i64 %size, HUGE
  %page = select i1 %large, i64 HUGE, i64 PAGE
  %most = sub i64 %page, 1
  %padded = add i64 %size, %most
  %mask = sub i64 0, %page
  %bytes = and i64 %padded, %mask
  ret i64 %bytes
}

; Whole pages from the C library, or null; huge pages if wanted and available (14 is
; MADV_HUGEPAGE).
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

; The first block of a new chunk of the CPU's memory.
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

; Gives free chunks to the C library.
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

; Takes back a block of `take_here`. If very much is free, a chunk goes to the C library together
; with its last block.
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

; A fork waits until no thread has locked the pool: the child would have the lock without the
; thread. All other pools are used with the GIL alone.
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
; Set by Python: the type, the function that raises, and None.
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
