"""The one thread pool of the process, for the parallel loops of compiled code.

A *region* is a parallel loop at work: a function of compiled code, called once for each of its
tasks. One region at a time has the workers. A region that finds them taken, by another thread's
region or by the region around it, runs on its own thread, as one task. The thread that starts a
region takes part in it, and then waits for tasks that a worker has begun, never for a worker that
is late. Nobody needs the GIL. Workers keep off the CPU of the thread that wakes them, and may run
on all others that they inherited.

A region has *seats*: one for the thread that starts it, the others for the first workers that come.
The tasks are shared out among the seats beforehand, in queues. A thread takes the tasks of its own
queue one by one, and then the last ones of the others' queues: so slow threads do fewer of them,
and neighbouring tasks mostly stay on one thread.

Workers spin for a while before they sleep: waking one costs about 50 us, so they are woken only
where the work is known, or found, to take long enough. They are threads of the C
library with all signals blocked, made when the first region wants them; Python doesn't know them,
and so doesn't wait for them when it exits. A forked child finds the pool's page empty: it has no
workers, and makes its own when it needs them.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import final, overload

import llvmlite.binding as llvm

from minitvm.runtime.native import NativeCode, Once
from minitvm.runtime.native_text import native_text
from minitvm.runtime.record import record

MAX_FAILURE_VALUES = 8  # of a failed assertion, 64 bits each: the size of a failure record

TASKS = 16  # of a loop for each thread: with more, the last one doesn't end earlier

_MOST_THREADS = 1024
_WAKE = 30_000  # ns, of work from which on a sleeper is worth waking
_CONSTANTS: dict[str, object] = {
    "WAKE": _WAKE,
    "WORTH_WAKING": _WAKE // 500,  # tasks, each at least so many ns
    "SPIN": 200_000,  # ns: four times the cost of waking a sleeper
    "RECORD": MAX_FAILURE_VALUES,
    "WORKERS": _MOST_THREADS - 1,
    "THREADS": _MOST_THREADS,
    "SIZE": 2**21,  # bytes, which the pool fits
}
# By LLVM's name of the machine: the numbers of system calls, and how a loop that waits spares the
# other thread of its core.
_MACHINES = {
    "x86_64": {
        "FUTEX": "202",
        "GETTID": "186",
        "GETCPU": "309",
        "SCHED_SETAFFINITY": "203",
        "SCHED_GETAFFINITY": "204",
        "PAUSE": "call void @llvm.x86.sse2.pause()",
    },
    "aarch64": {
        "FUTEX": "98",
        "GETTID": "178",
        "GETCPU": "168",
        "SCHED_SETAFFINITY": "122",
        "SCHED_GETAFFINITY": "123",
        "PAUSE": "call void @llvm.aarch64.hint(i32 1)",
    },
}
_ELSEWHERE = dict.fromkeys(_MACHINES["x86_64"], "0") | {"PAUSE": ""}

_STATUS = ctypes.CFUNCTYPE(ctypes.c_int)

_TEXT = r"""
; ---- What the threads share ------------------------------------------------------------------
%CPUs = type [1024 x i8]  ; a bit for each; Linux can be built for 8192

%Worker = type {
  i32 number,        ; in the system
  i32 taken,         ; the CPU that was taken from it, plus one
  %CPUs cpus         ; those that it was left with
}

; The tasks of a seat that nobody has claimed. The seat's own thread takes the first of them, others
; the last.
%Queue = type {
  i64 tasks,         ; the first, and in the upper 32 bits their end
  [56 x i8] _
}

; The pool is memory that is all zeros at the start, and again in a forked child. Each line of the
; cache has what the same threads write.
%Pool = type {
  i64 ticket,        ; the generation of the region (32 bits), and its seats that nobody has taken
  [56 x i8] _,
  i32 pending,       ; seats of workers that are not finished
  i32 waiting,       ; whether somebody sleeps until they are
  [56 x i8] _,
  i32 lock,          ; of whoever has the workers
  i32 _,
  i64 workers,       ; how many there are
  i64 spent,         ; ns, by regions one after the other that woke nobody
  i64 ended,         ; when the last of them did
  [32 x i8] _,
  ptr region,
  [56 x i8] _,
  i32 sleepers,      ; how many workers sleep
  [60 x i8] _,
  i32 avoided,       ; the CPU that all workers keep off, plus one; 0: none
  [WORKERS x %Worker] worker,
  [THREADS x %Queue] queue
}

; On the stack of the thread that started it.
%Region = type {
  ptr function,
  ptr closure,
  i64 tasks,         ; how many
  i64 threads,       ; how many may have a seat
  ptr failure,       ; where the values of a failure go
  i64 first_failed,  ; the first task that failed; all ones: none
  i64 arrivals,      ; at barriers
  i32 status,
  i32 lock           ; of what a failing task writes
}

@pool = internal global ptr null
@wanted = global i64 1      ; threads of a region, the one that starts it included
; Where a thread has a number of its own for its regions. Of 32 bits on Linux, 64 on macOS.
@own = internal global i64 0

define i32 @start() {
  %status = call i32 @pthread_key_create(ptr @own, ptr null)
  ret i32 %status
}

; The threads that the calling thread's regions may use; 0: as many as all others'.
define i64 @own_threads() {
  %key = load i64, ptr @own
  %held = call ptr @pthread_getspecific(i64 %key)
  %number = ptrtoint ptr %held to i64
  ret i64 %number
}

define void @set_own_threads(i64 %number) {
  %key = load i64, ptr @own
  %held = inttoptr i64 %number to ptr
  %ignored = call i32 @pthread_setspecific(i64 %key, ptr %held)
  ret void
}

; 0, or nonzero if the pages have to be emptied by other means after a fork.
define i32 @open_pool() {
  ; PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, MADV_WIPEONFORK
  %pages = call ptr @mmap(ptr null, i64 SIZE, i32 3, i32 34, i32 -1, i64 0)
  store ptr %pages, ptr @pool
  %status = call i32 @madvise(ptr %pages, i64 SIZE, i32 18)
  ret i32 %status
}

define void @forget() {
  %pool = load ptr, ptr @pool
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 SIZE, i1 false)
  ret void
}

define internal i64 @now() {
  %time = alloca { i64, i64 }
  %ignored = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Whether a wait that has polled `rounds` times since `start` had better sleep; now and then it
; looks at the clock.
define internal i1 @is_long(i64 %start, i64 %rounds) {
  PAUSE
  %low = and i64 %rounds, 15
  br icmp eq i64 %low, 15, label %look, label %short
look:
  %now = call i64 @now()
  %passed = sub i64 %now, %start
  %long = icmp ugt i64 %passed, SPIN
  ret i1 %long
short:
  ret i1 false
}

; ---- Tasks -----------------------------------------------------------------------------------
; The first or the last task of a queue, which the caller has now; -1: none is left.
define internal i64 @claim(ptr %queue, i1 %first) {
entry:
  br label %try
try:
  %tasks = load atomic i64, ptr %queue acquire, align 8
  %begin = and i64 %tasks, 4294967295
  %end = lshr i64 %tasks, 32
  br icmp eq i64 %begin, %end, label %none, label %take
take:
  %last = sub i64 %end, 1
  %step = select i1 %first, i64 1, i64 -4294967296
  %fewer = add i64 %tasks, %step
  %swap = cmpxchg ptr %queue, i64 %tasks, i64 %fewer acq_rel monotonic, align 8
  %taken = extractvalue { i64, i1 } %swap, 1
  br i1 %taken, label %leave, label %try
leave:
  %task = select i1 %first, i64 %begin, i64 %last
  ret i64 %task
none:
  ret i64 -1
}

; Runs the tasks of a seat's queue, and then what is left of the others'. Workers sleep `since` a
; time (0: nobody has to be woken): what tasks take tells whether the rest is worth waking them.
; Returns 0 if they were woken.
define internal i64 @take_part(ptr %pool, ptr %region, i64 %seat, i64 %since) {
entry:
  %threads = load %Region.threads, ptr %region
  br label %visit
visit:
  %index = phi i64 [ %seat, %entry ], [ %following, %advance ]
  %visited = phi i64 [ 0, %entry ], [ %more, %advance ]
  %asleep = phi i64 [ %since, %entry ], [ %asleep.now, %advance ]
  %done = phi i64 [ 0, %entry ], [ %done.now, %advance ]
  %queue = getelementptr %Pool.queue, ptr %pool, i64 %index
  %own = icmp eq i64 %visited, 0
  br label %next
next:
  %asleep.now = phi i64 [ %asleep, %visit ], [ 0, %run ], [ %still, %look ]
  %done.now = phi i64 [ %done, %visit ], [ %another, %run ], [ %another, %look ]
  %task = call i64 @claim(ptr %queue, i1 %own)
  br icmp eq i64 %task, -1, label %advance, label %run
run:
  call void @run_task(ptr %region, i64 %task)
  %another = add i64 %done.now, 1
  br icmp eq i64 %asleep.now, 0, label %next, label %look
look:
  %still = call i64 @wake_for_the_rest(ptr %pool, ptr %region, i64 %asleep.now, i64 %another)
  br label %next
advance:
  %more = add i64 %visited, 1
  %up = add i64 %index, 1
  %is_last = icmp eq i64 %up, %threads
  %following = select i1 %is_last, i64 0, i64 %up
  br icmp eq i64 %more, %threads, label %leave, label %visit
leave:
  ret i64 %asleep.now
}

; Wakes workers if the other tasks take long enough, as long as those `done` since the start.
define internal i64 @wake_for_the_rest(ptr %pool, ptr %region, i64 %since, i64 %done) {
  %now = call i64 @now()
  %passed = sub i64 %now, %since
  %tasks = load %Region.tasks, ptr %region
  %left = sub i64 %tasks, %done
  %rest = mul i64 %passed, %left
  %least = mul i64 %done, WAKE
  br icmp slt i64 %rest, %least, label %leave, label %wake
wake:
  call void @wake(ptr %pool, ptr %region)
  ret i64 0
leave:
  ret i64 %since
}

; A task after one that failed has nothing left to decide: the failure of the first task counts,
; which is the one that the serial loop would meet.
define internal void @run_task(ptr %region, i64 %task) {
  %record = alloca [RECORD x i64]
  %failed = load atomic %Region.first_failed, ptr %region acquire, align 8
  br icmp ugt i64 %task, %failed, label %leave, label %run
run:
  %function = load ptr, ptr %region
  %closure = load %Region.closure, ptr %region
  %tasks = load %Region.tasks, ptr %region
  %status = call i32 %function(ptr %closure, i64 %task, i64 %tasks, ptr %region, ptr %record)
  br icmp eq i32 %status, 0, label %leave, label %bad
bad:
  call void @note_failure(ptr %region, i64 %task, i32 %status, ptr %record)
  br label %leave
leave:
  ret void
}

define internal void @note_failure(ptr %region, i64 %task, i32 %status, ptr %record) {
entry:
  %lock = getelementptr %Region.lock, ptr %region
  br label %try
try:
  %swap = cmpxchg ptr %lock, i32 0, i32 1 acquire monotonic, align 4
  %locked = extractvalue { i32, i1 } %swap, 1
  br i1 %locked, label %compare, label %wait
wait:
  PAUSE
  br label %try
compare:
  %failed.at = getelementptr %Region.first_failed, ptr %region
  %failed = load i64, ptr %failed.at
  br icmp ult i64 %task, %failed, label %keep, label %leave
keep:
  %values = load %Region.failure, ptr %region
  %size = mul i64 RECORD, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %record, i64 %size, i1 false)
  store %Region.status %status, ptr %region
  store atomic i64 %task, ptr %failed.at release, align 8
  br label %leave
leave:
  store atomic i32 0, ptr %lock release, align 4
  ret void
}

; One seat fewer to wait for; the last one wakes the thread that waits.
define internal void @finish(ptr %pool) {
  %pending.at = getelementptr %Pool.pending, ptr %pool
  %before = atomicrmw sub ptr %pending.at, i32 1 seq_cst, align 4
  br icmp eq i32 %before, 1, label %look, label %leave
look:
  %waiting = load atomic %Pool.waiting, ptr %pool seq_cst, align 4
  br icmp eq i32 %waiting, 0, label %leave, label %wake
wake:
  %ignored = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pending.at, i32 129, i32 1)
  br label %leave
leave:
  ret void
}

; Returns 0 when every task of the region has arrived, 1 when one has failed and the caller has to
; end, too. All tasks of a region with a barrier are under way at once: there are no more of them
; than threads.
define i32 @barrier(ptr %region, i64 %tasks) {
entry:
  br icmp eq i64 %tasks, 1, label %all, label %arrive
arrive:
  %arrivals = getelementptr %Region.arrivals, ptr %region
  %before = atomicrmw add ptr %arrivals, i64 1 acq_rel, align 8
  %round = udiv i64 %before, %tasks
  %next = add i64 %round, 1
  %goal = mul i64 %next, %tasks
  %start = call i64 @now()
  br label %poll
poll:
  %rounds = phi i64 [ 0, %arrive ], [ %more, %wait ], [ %more, %yield ]
  %failed = load atomic %Region.first_failed, ptr %region acquire, align 8
  br icmp eq i64 %failed, -1, label %count, label %end
count:
  %arrived = load atomic i64, ptr %arrivals acquire, align 8
  br icmp uge i64 %arrived, %goal, label %all, label %wait
wait:
  %more = add i64 %rounds, 1
  %long = call i1 @is_long(i64 %start, i64 %rounds)
  br i1 %long, label %yield, label %poll
yield:
  %ignored = call i32 @sched_yield()
  br label %poll
all:
  ret i32 0
end:
  ret i32 1
}

; ---- Workers ---------------------------------------------------------------------------------
; How many seats were left, of which the caller has one now; 0: none.
define internal i32 @sit_down(ptr %pool) {
entry:
  br label %try
try:
  %ticket = load atomic i64, ptr %pool acquire, align 8
  %left = trunc i64 %ticket to i32
  br icmp eq i32 %left, 0, label %leave, label %take
take:
  %less = sub i64 %ticket, 1
  %swap = cmpxchg ptr %pool, i64 %ticket, i64 %less acq_rel monotonic, align 8
  %taken = extractvalue { i64, i1 } %swap, 1
  br i1 %taken, label %leave, label %try
leave:
  ret i32 %left
}

define internal ptr @worker(ptr %self) {
entry:
  %pool = load ptr, ptr @pool
  %thread = call i64 (i64, ...) @syscall(i64 GETTID)
  %number = trunc i64 %thread to i32
  store atomic i32 %number, ptr %self release, align 4
  br label %awake
awake:
  %start = call i64 @now()
  br label %poll
poll:
  %rounds = phi i64 [ 0, %awake ], [ %more, %idle ]
  %left = call i32 @sit_down(ptr %pool)
  br icmp eq i32 %left, 0, label %idle, label %run
run:
  %region = load %Pool.region, ptr %pool
  %threads = load %Region.threads, ptr %region
  %wide = zext i32 %left to i64
  %seat = sub i64 %threads, %wide
  %ignored = call i64 @take_part(ptr %pool, ptr %region, i64 %seat, i64 0)
  call void @finish(ptr %pool)
  br label %awake
idle:
  %more = add i64 %rounds, 1
  %long = call i1 @is_long(i64 %start, i64 %rounds)
  br i1 %long, label %rest, label %poll
rest:
  call void @sleep(ptr %pool)
  br label %awake
}

; Until the generation changes. Whoever publishes a region writes the ticket and then reads the
; number of sleepers; here it is the other way round, so that one of the two sees the other.
define internal void @sleep(ptr %pool) {
  %sleepers = getelementptr %Pool.sleepers, ptr %pool
  %before = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  %ticket = load atomic i64, ptr %pool seq_cst, align 8
  %left = trunc i64 %ticket to i32
  br icmp eq i32 %left, 0, label %wait, label %leave
wait:
  %high = lshr i64 %ticket, 32
  %generation = trunc i64 %high to i32
  %generation.at = getelementptr i8, ptr %pool, i64 4
  %ignored = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %generation.at, i32 128,
                                          i32 %generation, ptr null, ptr null, i32 0)
  br label %leave
leave:
  %after = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  ret void
}

; Makes workers until there are `count`. Where the system refuses, no more than there are is wanted
; from then on. Called by whoever has the lock.
define internal void @hire(ptr %pool, i64 %count) {
entry:
  %thread = alloca i64
  %attributes = alloca [16 x i64]
  %all = alloca [16 x i64]
  %old = alloca [16 x i64]
  %workers.at = getelementptr %Pool.workers, ptr %pool
  %r1 = call i32 @pthread_attr_init(ptr %attributes)
  %r2 = call i32 @pthread_attr_setdetachstate(ptr %attributes, i32 1)
  %r3 = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 8388608)
  %r4 = call i32 @sigfillset(ptr %all)
  %r5 = call i32 @pthread_sigmask(i32 0, ptr %all, ptr %old)
  store %Pool.avoided 0, ptr %pool
  br label %next
next:
  %workers = load i64, ptr %workers.at
  br icmp sge i64 %workers, %count, label %leave, label %create
create:
  %worker = getelementptr %Pool.worker, ptr %pool, i64 %workers
  %status = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @worker, ptr %worker)
  %more = add i64 %workers, 1
  br icmp ne i32 %status, 0, label %settle, label %created
created:
  store i64 %more, ptr %workers.at
  br label %next
settle:
  %wanted = load atomic i64, ptr @wanted monotonic, align 8
  %fewer = call i64 @llvm.smin.i64(i64 %wanted, i64 %more)
  store atomic i64 %fewer, ptr @wanted monotonic, align 8
  %own = call i64 @own_threads()
  %few = call i64 @llvm.smin.i64(i64 %own, i64 %more)
  call void @set_own_threads(i64 %few)
  br label %leave
leave:
  %r6 = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  %r7 = call i32 @pthread_attr_destroy(ptr %attributes)
  ret void
}

; Takes the CPU that the caller is on out of those that the workers may run on, and gives back the
; one that was taken out before. A kernel may wake a worker where the caller is, though other CPUs
; are idle, and there it doesn't run before the caller has done all tasks itself. Called by whoever
; has the lock.
define internal void @keep_off(ptr %pool) {
  %cpu.at = alloca i32
  store i32 0, ptr %cpu.at
  %r1 = call i64 (i64, ...) @syscall(i64 GETCPU, ptr %cpu.at, ptr null, ptr null)
  %cpu = load i32, ptr %cpu.at
  %new = add i32 %cpu, 1
  call void @avoid(ptr %pool, i32 %new)
  ret void
}

; Takes out the CPU of whose number plus one we know; 0: none.
define internal void @avoid(ptr %pool, i32 %new) {
entry:
  %avoided.at = getelementptr %Pool.avoided, ptr %pool
  %avoided = load i32, ptr %avoided.at
  br icmp eq i32 %new, %avoided, label %leave, label %look
look:
  %workers = load %Pool.workers, ptr %pool
  br label %next
next:
  %index = phi i64 [ 0, %look ], [ %more, %moved ]
  %all = phi i1 [ true, %look ], [ %still, %moved ]
  %worker = getelementptr %Pool.worker, ptr %pool, i64 %index
  %number = load atomic i32, ptr %worker acquire, align 4
  %begun = icmp ne i32 %number, 0
  %still = and i1 %all, %begun
  br i1 %begun, label %move, label %moved
move:
  call void @move(ptr %worker, i32 %number, i32 %new)
  br label %moved
moved:
  %more = add i64 %index, 1
  br icmp eq i64 %more, %workers, label %note, label %next
note:
  %kept = select i1 %still, i32 %new, i32 0
  store i32 %kept, ptr %avoided.at
  br label %leave
leave:
  ret void
}

; Takes a CPU from a worker, if others are left. What was taken before goes back, unless somebody
; else has decided on the worker's CPUs since.
define internal void @move(ptr %worker, i32 %number, i32 %new) {
  %cpus = alloca %CPUs, align 8
  call void @llvm.memset.p0.i64(ptr %cpus, i8 0, i64 1024, i1 false)
  %r1 = call i64 (i64, ...) @syscall(i64 SCHED_GETAFFINITY, i32 %number, i64 1024, ptr %cpus)
  %left = getelementptr %Worker.cpus, ptr %worker
  %has = load <256 x i32>, ptr %cpus, align 4
  %had = load <256 x i32>, ptr %left, align 4
  %differ = icmp ne <256 x i32> %has, %had
  %decided = call i1 @llvm.vector.reduce.or.v256i1(<256 x i1> %differ)
  %taken.at = getelementptr %Worker.taken, ptr %worker
  %before = load i32, ptr %taken.at
  %taken = select i1 %decided, i32 0, i32 %before
  %old.at = call ptr @byte_of(ptr %cpus, i32 %taken)
  %old.bit = call i8 @bit_of(i32 %taken)
  %old = load i8, ptr %old.at
  %more = or i8 %old, %old.bit
  store i8 %more, ptr %old.at
  %at = call ptr @byte_of(ptr %cpus, i32 %new)
  %bit = call i8 @bit_of(i32 %new)
  %byte = load i8, ptr %at
  %found = and i8 %byte, %bit
  %fewer = xor i8 %byte, %found
  store i8 %fewer, ptr %at
  %rest = load <256 x i32>, ptr %cpus, align 4
  %united = call i32 @llvm.vector.reduce.or.v256i32(<256 x i32> %rest)
  br icmp eq i32 %united, 0, label %leave, label %set
set:
  %r2 = call i64 (i64, ...) @syscall(i64 SCHED_SETAFFINITY, i32 %number, i64 1024, ptr %cpus)
  call void @llvm.memcpy.p0.p0.i64(ptr %left, ptr %cpus, i64 1024, i1 false)
  %missed = icmp eq i8 %found, 0
  %noted = select i1 %missed, i32 0, i32 %new
  store i32 %noted, ptr %taken.at
  br label %leave
leave:
  ret void
}

; Where a set has a CPU, of whose number plus one we know; of none, any place, and no bit.
define internal ptr @byte_of(ptr %cpus, i32 %next) {
  %cpu = call i32 @llvm.usub.sat.i32(i32 %next, i32 1)
  %byte = lshr i32 %cpu, 3
  %at = getelementptr i8, ptr %cpus, i32 %byte
  ret ptr %at
}

define internal i8 @bit_of(i32 %next) {
  %some = icmp ne i32 %next, 0
  %one = zext i1 %some to i8
  %cpu = sub i32 %next, 1
  %low = and i32 %cpu, 7
  %place = trunc i32 %low to i8
  %bit = shl i8 %one, %place
  ret i8 %bit
}

; ---- Regions ---------------------------------------------------------------------------------
; Calls ``int function(closure, task, tasks, region, failure)`` for each task, of which there are at
; most `limit`, and at most `each` for a thread; the work is `worth` so many. Returns 0, or the
; status of the first task that returned another one, what it wrote to `failure` being there.
define i32 @parallel_for(ptr %function, ptr %closure, i64 %limit, i64 %worth, i64 %each,
                         ptr %failure) {
entry:
  %region = alloca %Region
  %most = call i64 @llvm.smin.i64(i64 %limit, i64 %worth)
  br icmp slt i64 %most, 2, label %inline, label %ask
ask:
  %common = load atomic i64, ptr @wanted monotonic, align 8
  %own = call i64 @own_threads()
  %unlimited = icmp eq i64 %own, 0
  %wanted = select i1 %unlimited, i64 %common, i64 %own
  %useful = call i64 @llvm.smin.i64(i64 %most, i64 %wanted)
  br icmp slt i64 %useful, 2, label %inline, label %try
try:
  %pool = load ptr, ptr @pool
  %lock = getelementptr %Pool.lock, ptr %pool
  %swap = cmpxchg ptr %lock, i32 0, i32 1 acquire monotonic, align 4
  %locked = extractvalue { i32, i1 } %swap, 1
  br i1 %locked, label %count, label %inline
count:
  %workers.at = getelementptr %Pool.workers, ptr %pool
  %present = load i64, ptr %workers.at
  %needed = sub i64 %useful, 1
  br icmp slt i64 %present, %needed, label %hire, label %size
hire:
  %want = sub i64 %wanted, 1
  call void @hire(ptr %pool, i64 %want)
  br label %size
size:
  %workers = load i64, ptr %workers.at
  %all = add i64 %workers, 1
  %threads = call i64 @llvm.smin.i64(i64 %useful, i64 %all)
  br icmp slt i64 %threads, 2, label %unlock, label %publish
unlock:
  store atomic i32 0, ptr %lock release, align 4
  br label %inline
inline:
  %result = call i32 %function(ptr %closure, i64 0, i64 1, ptr null, ptr %failure)
  ret i32 %result
publish:
  %full = mul i64 %threads, %each
  %paid = call i64 @llvm.smin.i64(i64 %worth, i64 %full)
  %odd = urem i64 %paid, %threads
  %even = sub i64 %paid, %odd  ; as many for each thread
  %tasks = call i64 @llvm.smin.i64(i64 %limit, i64 %even)
  store %Region { ptr null, ptr null, i64 0, i64 0, ptr null, i64 -1, i64 0, i32 0, i32 0 },
        ptr %region
  store ptr %function, ptr %region
  store %Region.closure %closure, ptr %region
  store %Region.tasks %tasks, ptr %region
  store %Region.threads %threads, ptr %region
  store %Region.failure %failure, ptr %region
  call void @share_out(ptr %pool, i64 %tasks, i64 %threads)
  store %Pool.region %region, ptr %pool
  %others = sub i64 %threads, 1
  %pending = trunc i64 %others to i32
  %pending.at = getelementptr %Pool.pending, ptr %pool
  store atomic i32 %pending, ptr %pending.at monotonic, align 4
  %ticket = load atomic i64, ptr %pool monotonic, align 8
  %generation = add i64 %ticket, 4294967296
  %new = or i64 %generation, %others
  store atomic i64 %new, ptr %pool seq_cst, align 8
  %sleepers = load atomic %Pool.sleepers, ptr %pool seq_cst, align 4
  br icmp eq i32 %sleepers, 0, label %begin, label %call
call:
  %together = icmp eq i64 %each, 1
  %asleep = call i64 @wake_if_worth(ptr %pool, ptr %region, i64 %worth, i1 %together)
  br label %begin
begin:
  %since = phi i64 [ 0, %publish ], [ %asleep, %call ]
  %still = call i64 @take_part(ptr %pool, ptr %region, i64 0, i64 %since)
  br icmp eq i64 %still, 0, label %close, label %note
note:
  call void @note_alone(ptr %pool, i64 %still)
  br label %close
close:
  %last = atomicrmw and ptr %pool, i64 -4294967296 acq_rel, align 8
  %left = trunc i64 %last to i32
  %before = atomicrmw sub ptr %pending.at, i32 %left seq_cst, align 4
  br icmp eq i32 %before, %left, label %end, label %wait
wait:
  call void @await(ptr %pool)
  br label %end
end:
  store atomic i32 0, ptr %lock release, align 4
  %status = load %Region.status, ptr %region
  ret i32 %status
}

; Gives each seat its part of the tasks: neighbours, which are the same in each region of as many,
; so that a thread finds in its caches what it left there.
define internal void @share_out(ptr %pool, i64 %tasks, i64 %threads) {
entry:
  %least = udiv i64 %tasks, %threads
  %rest = urem i64 %tasks, %threads
  br label %next
next:
  %seat = phi i64 [ 0, %entry ], [ %following, %next ]
  %begin = phi i64 [ 0, %entry ], [ %end, %next ]
  %is_longer = icmp ult i64 %seat, %rest
  %longer = zext i1 %is_longer to i64
  %share = add i64 %least, %longer
  %end = add i64 %begin, %share
  %high = shl i64 %end, 32
  %both = or i64 %high, %begin
  %queue = getelementptr %Pool.queue, ptr %pool, i64 %seat
  store atomic i64 %both, ptr %queue monotonic, align 8
  %following = add i64 %seat, 1
  br icmp eq i64 %following, %threads, label %leave, label %next
leave:
  ret void
}

; Wakes workers where the tasks need each other, where the work is enough at any speed, and where
; the caller has spent as much time alone, in regions that came so fast that woken workers would
; have stayed awake. Returns 0, or the time since which the caller goes on alone.
define internal i64 @wake_if_worth(ptr %pool, ptr %region, i64 %worth, i1 %together) {
  %enough = icmp sge i64 %worth, WORTH_WAKING
  %at_once = or i1 %together, %enough
  br i1 %at_once, label %wake, label %look
look:
  %now = call i64 @now()
  %ended = load %Pool.ended, ptr %pool
  %pause = sub i64 %now, %ended
  %recent = icmp ult i64 %pause, SPIN
  %before = load %Pool.spent, ptr %pool
  %spent = select i1 %recent, i64 %before, i64 0
  store %Pool.spent %spent, ptr %pool
  br icmp sge i64 %spent, WAKE, label %wake, label %leave
wake:
  call void @wake(ptr %pool, ptr %region)
  ret i64 0
leave:
  ret i64 %now
}

define internal void @note_alone(ptr %pool, i64 %since) {
  %now = call i64 @now()
  %passed = sub i64 %now, %since
  %before = load %Pool.spent, ptr %pool
  %spent = add i64 %before, %passed
  store %Pool.spent %spent, ptr %pool
  store %Pool.ended %now, ptr %pool
  ret void
}

define internal void @wake(ptr %pool, ptr %region) {
  store %Pool.spent 0, ptr %pool
  call void @keep_off(ptr %pool)
  %generation.at = getelementptr i8, ptr %pool, i64 4
  %threads = load %Region.threads, ptr %region
  %others = sub i64 %threads, 1
  %number = trunc i64 %others to i32
  %ignored = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %generation.at, i32 129, i32 %number)
  ret void
}

; Until no worker has a seat. Before the caller sleeps, workers may run where it did: one may have
; to share its own CPU with another library's thread, which spins there.
define internal void @await(ptr %pool) {
entry:
  %pending.at = getelementptr %Pool.pending, ptr %pool
  %waiting.at = getelementptr %Pool.waiting, ptr %pool
  %first = load atomic i32, ptr %pending.at acquire, align 4
  br icmp eq i32 %first, 0, label %leave, label %begin
begin:
  %start = call i64 @now()
  br label %poll
poll:
  %rounds = phi i64 [ 0, %begin ], [ %more, %next ]
  %pending = load atomic i32, ptr %pending.at acquire, align 4
  br icmp eq i32 %pending, 0, label %leave, label %next
next:
  %more = add i64 %rounds, 1
  %long = call i1 @is_long(i64 %start, i64 %rounds)
  br i1 %long, label %rest, label %poll
rest:
  call void @avoid(ptr %pool, i32 0)
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  br label %check
check:
  %seen = load atomic i32, ptr %pending.at seq_cst, align 4
  br icmp eq i32 %seen, 0, label %stop, label %sleep
sleep:
  %ignored = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pending.at, i32 128, i32 %seen,
                                          ptr null, ptr null, i32 0)
  br label %check
stop:
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  br label %leave
leave:
  ret void
}
"""


@final
@record()
class _Pool:
    """The machine code of the pool, started."""

    parallel_for: int
    barrier: int
    wanted: ctypes.c_int64
    own_threads: Callable[[], int]
    set_own_threads: Callable[[int], None]


# Without a lock, which a fork could leave locked: of two racing threads the first one's entry is
# everybody's.
_asked: dict[str, int] = {}


@overload
def num_threads() -> int: ...
@overload
def num_threads(number: int) -> AbstractContextManager[None]: ...
def num_threads(number: int | None = None) -> int | AbstractContextManager[None]:
    """The number of threads that a parallel loop may use, the calling one included; or a ``with``
    block in which the loops that this thread starts use `number`.

    The number is that of the innermost such block; else of :func:`set_num_threads`; else of
    ``MINITVM_NUM_THREADS`` when the pool was first asked for; else the CPUs that the process may
    run on, by its affinity mask and its cgroup's quota.

    Raises
    ------
    ValueError
        When `number` is less than 1, or ``MINITVM_NUM_THREADS`` is not a number of threads.

    >>> with num_threads(1):
    ...     num_threads()
    1
    """
    if number is not None:
        return _in_this_thread(_checked("num_threads", number))
    if _pool.is_made:
        pool = _pool()
        return pool.own_threads() or int(pool.wanted.value)
    if "threads" not in _asked:
        _asked.setdefault("threads", _threads_at_start())
    return _asked["threads"]


@contextmanager
def _in_this_thread(number: int) -> Iterator[None]:
    pool = _pool()
    before = pool.own_threads()
    pool.set_own_threads(number)
    try:
        yield
    finally:
        pool.set_own_threads(before)


def set_num_threads(number: int) -> None:
    """Parallel loops that begin from now on use `number` threads, the calling one included.

    That holds for all threads of the process, but not in a block ``with num_threads(...)``.

    Raises
    ------
    ValueError
        When `number` is less than 1.
    """
    number = _checked("set_num_threads", number)
    _asked["threads"] = number
    if _pool.is_made:
        _pool().wanted.value = number


def _checked(function: str, number: int) -> int:
    """A requested number of threads, at most the useful one."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{function}: expected a number of threads, got {type(number).__name__}")
    if number < 1:
        raise ValueError(f"{function}: expected at least 1 thread, got {number}")
    return min(number, _most_threads())


def parallel_for_address() -> int:
    """``int parallel_for(function, void* closure, int64_t limit, int64_t worth, int64_t each,
    int64_t* failure)``.

    Calls ``int function(void* closure, int64_t task, int64_t tasks, void* region, int64_t*
    failure)`` for each `task` from 0 to `tasks` - 1. There are at most `limit` tasks, as many as
    the work is `worth`, and `each` for a thread; there may be one. With an `each` of 1 all run at
    the same time. Returns 0 or the status of the first task whose status isn't 0; the values that
    this task wrote to its `failure`, of :data:`MAX_FAILURE_VALUES` values, are then in `failure`.
    """
    return _pool().parallel_for


def barrier_address() -> int:
    """``int barrier(void* region, int64_t tasks)``: 0 when each task of a region has called it;
    otherwise a task has failed, and the caller has to end."""
    return _pool().barrier


def pool_text(machine: str) -> str:
    """The LLVM IR of the pool for a machine, by the name that LLVM gives it."""
    return native_text(_TEXT, _CONSTANTS | _MACHINES.get(machine, _ELSEWHERE))


@Once
def _pool() -> _Pool:
    threads = num_threads()  # first: it may refuse
    code = NativeCode(pool_text(_machine()))
    wanted = ctypes.c_int64.from_address(code.data("wanted"))
    if _STATUS(code.function("start"))() != 0:
        raise MemoryError("threads: expected a key for data of a thread, found none left")
    if _most_threads() > 1 and _STATUS(code.function("open_pool"))() != 0:  # before Linux 4.14
        os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(code.function("forget")))
    wanted.value = threads
    return _Pool(
        code.function("parallel_for"),
        code.function("barrier"),
        wanted,
        ctypes.PYFUNCTYPE(ctypes.c_int64)(code.function("own_threads")),
        ctypes.PYFUNCTYPE(None, ctypes.c_int64)(code.function("set_own_threads")),
    )


def _most_threads() -> int:
    """The most threads of use; 1, the caller, on machines where we don't know how to wait."""
    known = sys.platform == "linux" and _machine() in _MACHINES
    return _MOST_THREADS if known else 1


def _machine() -> str:
    return str(llvm.get_process_triple()).split("-")[0]


def _threads_at_start() -> int:
    text = os.environ.get("MINITVM_NUM_THREADS")
    if text is None:
        return min(available_cpus(), _most_threads())
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(
            f"MINITVM_NUM_THREADS: expected a number of threads, at least 1, got {text!r}: set "
            "one, as in MINITVM_NUM_THREADS=4, or unset it for all CPUs of the process"
        )
    return min(int(text), _most_threads())


@lru_cache(maxsize=1)
def available_cpus() -> int:
    """The number of CPUs of the affinity mask, or the smaller number that the cgroup's quota
    allows; read once, when first asked for."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def _cgroup_quota(membership: Path, mounted: Path) -> float | None:
    """The number of CPUs that the process's cgroup and the cgroups around it allow, None without a
    limit.

    Parameters
    ----------
    membership
        ``/proc/self/cgroup``: lines ``number:controllers:path``, of version 2 with no controllers.
    mounted
        ``/sys/fs/cgroup``.
    """
    found: list[float] = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            found += _quotas(mounted, controllers, folder)
    return min(found, default=None)


def _quotas(mounted: Path, controllers: str, group: Path) -> list[float]:
    """The limits of a group itself, each a quota divided by a period; "max" and -1 are no limit."""
    if controllers:
        folders = (mounted / controllers / group, mounted / "cpu" / group)
        pairs = [
            (_read(f / "cpu.cfs_quota_us") + " " + _read(f / "cpu.cfs_period_us")).split()
            for f in folders
        ]
    else:
        pairs = [_read(mounted / group / "cpu.max").split()]
    return [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and all(number.isdecimal() for number in pair)
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
