"""The LLVM IR of the thread pool (:mod:`minitvm.runtime.threads`)."""

from __future__ import annotations

from minitvm.runtime.native_text import native_text

MAX_FAILURE_VALUES = 8  # values of a failed assertion, 64 bits each: the size of a failure record

MOST_THREADS = 1024
_WAKE = 30_000  # ns of work, from which on waking a sleeper pays
_CONSTANTS: dict[str, object] = {
    "WAKE": _WAKE,
    "WORTH_WAKING": _WAKE // 500,  # tasks; each takes at least 500 ns
    "SPIN": 200_000,  # ns: four times the cost of waking a sleeper
    "RECORD": MAX_FAILURE_VALUES,
    "WORKERS": MOST_THREADS - 1,
    "THREADS": MOST_THREADS,
    "SIZE": 2**21,  # bytes, which the pool fits
}
# By LLVM's name of the machine: the numbers of system calls, and the instruction by which a waiting
# loop spares the other thread of its core.
MACHINES = {
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
_ELSEWHERE = dict.fromkeys(MACHINES["x86_64"], "0") | {"PAUSE": ""}

_TEXT = r"""
; ---- Shared by the threads -------------------------------------------------------------------
%CPUs = type [1024 x i8]  ; a bit for each; Linux can be built for 8192

%Worker = type {
  i32 number,        ; in the system
  i32 taken,         ; the CPU that was taken from its set, plus one
  %CPUs cpus         ; the CPUs that it has left
}

; The tasks of a seat that nobody has claimed. The seat's own thread takes the first of them, others
; the last.
%Queue = type {
  i64 tasks,         ; the first, and in the upper 32 bits their end
  [56 x i8] _
}

; The pool is memory that is all zeros at the start, and again in a forked child. Fields that the
; same threads write share a cache line.
%Pool = type {
  i64 ticket,        ; the generation of the region (32 bits), and its number of free seats
  [56 x i8] _,
  i32 pending,       ; workers' seats that aren't finished
  i32 waiting,       ; whether a thread sleeps until they are
  [56 x i8] _,
  i32 lock,          ; held by the region that has the workers
  i32 _,
  i64 workers,       ; the number of workers
  i64 spent,         ; ns that successive regions without waking took
  i64 ended,         ; when the last of them did
  [32 x i8] _,
  ptr region,
  [56 x i8] _,
  i32 sleepers,      ; the number of sleeping workers
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
  i64 threads,       ; the most threads that may have a seat
  ptr failure,       ; where the values of a failure go
  i64 first_failed,  ; the first task that failed; all ones: none
  i64 arrivals,      ; at barriers
  i32 status,
  i32 lock           ; guards the failure that a task writes
}

@pool = internal global ptr null
@wanted = global i64 1      ; threads of a region, the one that starts it included
; The key of a thread's own number of threads for its regions. 32 bits on Linux, 64 on macOS.
@own = internal global i64 0

define i32 @start() {
  %status = call i32 @pthread_key_create(ptr @own, ptr null)
  ret i32 %status
}

; The number of threads for the calling thread's regions; 0: the process's number.
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

; 0; nonzero if the pages must be cleared by other means after a fork.
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

; Whether a wait that has polled `rounds` times since `start` should sleep; now and then it looks
; at the clock.
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
; Takes the first or the last task of a queue; -1: none is left.
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

; Runs the tasks of a seat's queue, and then the remaining tasks of the other queues. Workers
; sleep `since` a time (0: nobody has to be woken); the duration of the tasks decides whether waking
; them pays for the rest. Returns 0 if they were woken.
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

; Wakes workers if the remaining tasks take long enough, estimated from those `done` since the
; start.
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

; A task behind a failed one is skipped: the failure of the first task counts, which is the
; failure that the serial loop would meet.
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

; Finishes a seat; the last one wakes the waiting thread.
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

; Returns 0 when every task of the region has arrived, 1 when a task has failed and the caller
; must end as well. All tasks of a region with a barrier run at the same time: there are no more of
; them than threads.
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
; Takes a seat; returns the number of seats that were free before, 0 if there was none.
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

; Waits until the generation changes. The thread that publishes a region writes the ticket and
; then reads the number of sleepers. Here the order is reversed, so that one of the two sees the
; other.
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

; Makes workers until there are `count`. If the system refuses, the number of wanted workers is
; reduced to the existing ones. The caller holds the lock.
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

; Removes the caller's CPU from the workers' sets, and restores the CPU that was removed before. A
; kernel may wake a worker on the caller's CPU although other CPUs are idle; there it wouldn't run
; before the caller has done all tasks itself. The caller holds the lock.
define internal void @keep_off(ptr %pool) {
  %cpu.at = alloca i32
  store i32 0, ptr %cpu.at
  %r1 = call i64 (i64, ...) @syscall(i64 GETCPU, ptr %cpu.at, ptr null, ptr null)
  %cpu = load i32, ptr %cpu.at
  %new = add i32 %cpu, 1
  call void @avoid(ptr %pool, i32 %new)
  ret void
}

; Removes the CPU whose number plus one is given; 0: none.
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

; Removes a CPU from a worker's set, if others are left. The CPU removed before is restored,
; unless other code has changed the worker's set since.
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

; The byte and the bit of a CPU in a set, given its number plus one; for 0 any byte, and no bit.
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
; Calls ``int function(closure, task, tasks, region, failure)`` for each task. The number of tasks
; is at most `limit`, at most `each` for every thread, and at most `worth`, which the work
; justifies. Returns 0, or the first task's status that isn't 0; the values that this task wrote are
; then in `failure`.
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
  %even = sub i64 %paid, %odd  ; the same number for each thread
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

; Gives each seat its part of the tasks: neighbouring tasks, the same ones in every region of that
; size, so that a thread finds its data in its caches.
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

; Wakes workers if the tasks wait for each other, if the work surely suffices, or if the caller
; has spent enough time alone in regions that followed each other so fast that woken workers would
; have stayed awake. Returns 0, or the time at which the caller begins alone.
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

; Waits until no worker has a seat. Before the caller sleeps, workers may run on its CPU: a worker
; may have to share its own CPU with another library's spinning thread.
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


def pool_text(machine: str) -> str:
    """The LLVM IR of the pool for a machine, by the name that LLVM gives it."""
    return native_text(_TEXT, _CONSTANTS | MACHINES.get(machine, _ELSEWHERE))
