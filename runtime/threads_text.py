"""The native code of the thread pool (:mod:`minitvm.runtime.threads`)."""

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
    "CPU_WORDS": 128,  # of a set of CPUs: Linux can be built for 8192
    "FUTEX_WAIT": 128,  # by threads of this process
    "FUTEX_WAKE": 129,
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
        "PAUSE": "x86_pause()",
    },
    "aarch64": {
        "FUTEX": "98",
        "GETTID": "178",
        "GETCPU": "168",
        "SCHED_SETAFFINITY": "122",
        "SCHED_GETAFFINITY": "123",
        "PAUSE": "arm_hint(1)",
    },
}
_ELSEWHERE = dict.fromkeys(MACHINES["x86_64"], "0") | {"PAUSE": "None"}

_PAGE = r"""
# ---- Shared by the threads -------------------------------------------------------------------
class Worker:
    number: i32  # in the system
    taken: i32  # the CPU that was taken from its set, plus one
    cpus: array[u64, CPU_WORDS]  # the CPUs that it has left, a bit for each

# The tasks of a seat that nobody has claimed. The seat's own thread takes the first of them, others
# the last.
class Queue:
    tasks: u64  # the first, and in the upper 32 bits their end
    _: array[i8, 56]

# The pool is memory that is all zeros at the start, and again in a forked child. Fields that the
# same threads write share a cache line.
class Pool:
    ticket: u64  # the generation of the region (32 bits), and its number of free seats
    _1: array[i8, 56]
    pending: i32  # workers' seats that aren't finished
    waiting: i32  # whether a thread sleeps until they are
    _2: array[i8, 56]
    lock: i32  # held by the region that has the workers
    _3: i32
    workers: i64  # the number of workers
    spent: i64  # ns that successive regions without waking took
    ended: i64  # when the last of them did
    _4: array[i8, 32]
    region: ptr[Region]
    _5: array[i8, 56]
    sleepers: i32  # the number of sleeping workers
    _6: array[i8, 60]
    avoided: i32  # the CPU that all workers keep off, plus one; 0: none
    worker: array[Worker, WORKERS]
    queue: array[Queue, THREADS]

# On the stack of the thread that started it.
class Region:
    function: ptr
    closure: ptr
    tasks: i64  # how many
    threads: i64  # the most threads that may have a seat
    failure: ptr  # where the values of a failure go
    first_failed: u64  # the first task that failed; all ones: none
    arrivals: u64  # at barriers
    status: i32
    lock: i32  # guards the failure that a task writes

pool: internal[ptr[Pool]]
wanted: i64 = 1  # threads of a region, the one that starts it included
# The key of a thread's own number of threads for its regions. 32 bits on Linux, 64 on macOS.
own: internal[i64]

@export
def start() -> i32:
    return pthread_key_create(at(own), None)

# The number of threads for the calling thread's regions; 0: the process's number.
@export
def own_threads() -> i64:
    return i64(pthread_getspecific(own))

@export
def set_own_threads(number: i64):
    pthread_setspecific(own, ptr(number))

# 0; nonzero if the pages must be cleared by other means after a fork.
@export
def open_pool() -> i32:
    global pool
    # PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, MADV_WIPEONFORK
    pool = mmap(None, SIZE, 3, 34, -1, 0)
    return madvise(pool, SIZE, 18)

@export
def forget():
    memset(pool, 0, SIZE)

def now() -> i64:
    time = alloca(array[i64, 2])
    clock_gettime(1, time)
    return time[0] * 1000000000 + time[1]

# Whether a wait that has polled `rounds` times since `start` should sleep; now and then it looks
# at the clock.
def is_long(start: i64, rounds: i64) -> i1:
    PAUSE
    return rounds & 15 == 15 and now() - start > SPIN

# ---- Tasks -----------------------------------------------------------------------------------
# Takes the first or the last task of a queue; -1: none is left.
def claim(queue: ptr[Queue], first: i1) -> i64:
    while True:
        tasks = load_acquire(queue.tasks)
        begin = tasks & 0xFFFFFFFF
        end = tasks >> 32
        if begin == end:
            return -1
        if exchanges(queue.tasks, tasks, tasks + u64(1 if first else -0x100000000), acq_rel):
            return i64(begin if first else end - 1)

# Runs the tasks of a seat's queue, and then the remaining tasks of the other queues. Workers
# sleep `since` a time (0: nobody has to be woken); the duration of the tasks decides whether waking
# them pays for the rest. Returns 0 if they were woken.
def take_part(pool: ptr[Pool], region: ptr[Region], seat: i64, since: i64) -> i64:
    threads = region.threads
    asleep = since
    done = 0
    index = seat
    for visited in range(threads):
        task = claim(pool.queue[index], visited == 0)
        while task != -1:
            run_task(region, task)
            done += 1
            if asleep:
                asleep = wake_for_the_rest(pool, region, asleep, done)
            task = claim(pool.queue[index], visited == 0)
        index += 1
        if index == threads:
            index = 0
    return asleep

# Wakes workers if the remaining tasks take long enough, estimated from those `done` since the
# start.
def wake_for_the_rest(pool: ptr[Pool], region: ptr[Region], since: i64, done: i64) -> i64:
    if (now() - since) * (region.tasks - done) < done * WAKE:
        return since
    wake(pool, region)
    return 0

# A task behind a failed one is skipped: the failure of the first task counts, which is the
# failure that the serial loop would meet.
def run_task(region: ptr[Region], task: i64):
    if u64(task) > load_acquire(region.first_failed):
        return
    record = alloca(array[i64, RECORD])
    status = call(i32, region.function, region.closure, task, region.tasks, region, record)
    if status:
        note_failure(region, task, status, record)

def note_failure(region: ptr[Region], task: i64, status: i32, record: ptr):
    while not exchanges(region.lock, 0, 1, acquire):
        PAUSE
    if u64(task) < region.first_failed:
        memcpy(region.failure, record, 8 * RECORD)
        region.status = status
        store_release(u64(task), region.first_failed)
    store_release(0, region.lock)

# Finishes a seat; the last one wakes the waiting thread.
def finish(pool: ptr[Pool]):
    if fetch_sub(pool.pending, 1, seq_cst) == 1 and load_seq_cst(pool.waiting):
        syscall(FUTEX, at(pool.pending), FUTEX_WAKE, 1)

# Returns 0 when every task of the region has arrived, 1 when a task has failed and the caller
# must end as well. All tasks of a region with a barrier run at the same time: there are no more of
# them than threads.
@export
def barrier(region: ptr[Region], tasks: u64) -> i32:
    if tasks == 1:
        return 0
    before = fetch_add(region.arrivals, 1, acq_rel)
    goal = (before // tasks + 1) * tasks
    start = now()
    rounds = 0
    while load_acquire(region.first_failed) == -1:
        if load_acquire(region.arrivals) >= goal:
            return 0
        if is_long(start, rounds):
            sched_yield()
        rounds += 1
    return 1

# ---- Workers ---------------------------------------------------------------------------------
# Takes a seat; returns the number of seats that were free before, 0 if there was none.
def sit_down(pool: ptr[Pool]) -> u32:
    while True:
        ticket = load_acquire(pool.ticket)
        left = u32(ticket)
        if left == 0 or exchanges(pool.ticket, ticket, ticket - 1, acq_rel):
            return left

def worker(self: ptr[Worker]) -> ptr:
    its = pool
    store_release(i32(syscall(GETTID)), self.number)
    while True:
        start = now()
        rounds = 0
        left = sit_down(its)
        while left == 0:
            if is_long(start, rounds):
                sleep(its)
                start = now()
                rounds = 0
            else:
                rounds += 1
            left = sit_down(its)
        region = its.region
        take_part(its, region, region.threads - i64(left), 0)
        finish(its)

# Waits until the generation changes. The thread that publishes a region writes the ticket and
# then reads the number of sleepers. Here the order is reversed, so that one of the two sees the
# other.
def sleep(pool: ptr[Pool]):
    fetch_add(pool.sleepers, 1, seq_cst)
    ticket = load_seq_cst(pool.ticket)
    if u32(ticket) == 0:
        syscall(FUTEX, generation(pool), FUTEX_WAIT, u32(ticket >> 32), None, None, 0)
    fetch_sub(pool.sleepers, 1, seq_cst)

# The address of the upper half of the ticket.
def generation(pool: ptr[Pool]) -> ptr:
    return ptr(pool) + 4

# Makes workers until there are `count`. If the system refuses, the number of wanted workers is
# reduced to the existing ones. The caller holds the lock.
def hire(pool: ptr[Pool], count: i64):
    thread = alloca(i64)
    attributes = alloca(array[i64, 16])
    all = alloca(array[i64, 16])
    old = alloca(array[i64, 16])
    pthread_attr_init(attributes)
    pthread_attr_setdetachstate(attributes, 1)
    pthread_attr_setstacksize(attributes, 8388608)
    sigfillset(all)
    pthread_sigmask(0, all, old)
    pool.avoided = 0
    while pool.workers < count:
        if pthread_create(thread, attributes, worker, pool.worker[pool.workers]):
            most = pool.workers + 1
            store_monotonic(min(load_monotonic(wanted), most), wanted)
            set_own_threads(min(own_threads(), most))
            break
        pool.workers += 1
    pthread_sigmask(2, old, None)
    pthread_attr_destroy(attributes)

# Removes the caller's CPU from the workers' sets, and restores the CPU that was removed before. A
# kernel may wake a worker on the caller's CPU although other CPUs are idle; there it wouldn't run
# before the caller has done all tasks itself. The caller holds the lock.
def keep_off(pool: ptr[Pool]):
    cpu = alloca(i32)
    cpu[0] = 0
    syscall(GETCPU, cpu, None, None)
    avoid(pool, cpu[0] + 1)

# Removes the CPU whose number plus one is given; 0: none.
def avoid(pool: ptr[Pool], new: i32):
    if new == pool.avoided:
        return
    all = True
    for index in range(pool.workers):
        worker = pool.worker[index]
        number = load_acquire(worker.number)
        if number:
            move(worker, number, new)
        else:
            all = False
    pool.avoided = new if all else 0

# Removes a CPU from a worker's set, if others are left. The CPU removed before is restored,
# unless other code has changed the worker's set since.
def move(worker: ptr[Worker], number: i32, new: i32):
    cpus = alloca(array[u64, CPU_WORDS])
    size = 8 * CPU_WORDS
    memset(cpus, 0, size)
    syscall(SCHED_GETAFFINITY, number, size, cpus)
    changes = u64(0)
    for index in range(CPU_WORDS):
        changes |= cpus[index] ^ worker.cpus[index]
    old = 0 if changes else worker.taken
    cpus[word_of(old)] |= bit_of(old)
    found = cpus[word_of(new)] & bit_of(new)
    cpus[word_of(new)] ^= found
    left = u64(0)
    for index in range(CPU_WORDS):
        left |= cpus[index]
    if left:
        syscall(SCHED_SETAFFINITY, number, size, cpus)
        memcpy(at(worker.cpus), cpus, size)
        worker.taken = new if found else 0

# The word and the bit of a CPU in a set, given its number plus one; for 0 any word, and no bit.
def word_of(next: i32) -> u32:
    return sub_saturating(u32(next), 1) >> 6

def bit_of(next: i32) -> u64:
    return u64(next != 0) << (u64(next - 1) & 63)

# ---- Regions ---------------------------------------------------------------------------------
# Calls ``int function(closure, task, tasks, region, failure)`` for each task. The number of tasks
# is at most `limit`, at most `each` for every thread, and at most `worth`, which the work
# justifies. Returns 0, or the first task's status that isn't 0; the values that this task wrote are
# then in `failure`.
@export
def parallel_for(
    function: ptr, closure: ptr, limit: i64, worth: i64, each: i64, failure: ptr
) -> i32:
    most = min(limit, worth)
    if most >= 2:
        its = own_threads()
        useful = min(most, its if its else load_monotonic(wanted))
        if useful >= 2 and exchanges(pool.lock, 0, 1, acquire):
            threads = gather(pool, useful, its if its else load_monotonic(wanted))
            if threads >= 2:
                region = alloca(Region)
                region.function = function
                region.closure = closure
                region.threads = threads
                region.failure = failure
                return run_region(pool, region, limit, worth, each)
            store_release(0, pool.lock)
    return call(i32, function, closure, 0, 1, None, failure)

# The number of threads, at most the useful ones, that there are; workers are made up to the wanted
# number.
def gather(pool: ptr[Pool], useful: i64, threads: i64) -> i64:
    if pool.workers < useful - 1:
        hire(pool, threads - 1)
    return min(useful, pool.workers + 1)

# The caller holds the lock, which is opened.
@inline
def run_region(
    pool: ptr[Pool], region: ptr[Region], limit: i64, worth: i64, each: i64
) -> i32:
    threads = region.threads
    paid = min(worth, threads * each)
    even = paid - i64(u64(paid) % u64(threads))  # the same number for each thread
    region.tasks = min(limit, even)
    region.first_failed = -1
    region.arrivals = 0
    region.status = 0
    region.lock = 0
    share_out(pool, u64(region.tasks), u64(threads))
    pool.region = region
    store_monotonic(i32(threads - 1), pool.pending)
    generation = load_monotonic(pool.ticket) + 0x100000000
    store_seq_cst(generation | u64(threads - 1), pool.ticket)
    since = 0
    if load_seq_cst(pool.sleepers):
        since = wake_if_worth(pool, region, worth, each == 1)
    since = take_part(pool, region, 0, since)
    if since:
        note_alone(pool, since)
    left = i32(fetch_and(pool.ticket, -0x100000000, acq_rel))
    if fetch_sub(pool.pending, left, seq_cst) != left:
        await_workers(pool)
    store_release(0, pool.lock)
    return region.status

# Gives each seat its part of the tasks: neighbouring tasks, the same ones in every region of that
# size, so that a thread finds its data in its caches.
def share_out(pool: ptr[Pool], tasks: u64, threads: u64):
    begin = u64(0)
    for seat in range(threads):
        end = begin + tasks // threads + u64(seat < tasks % threads)
        store_monotonic(end << 32 | begin, pool.queue[seat].tasks)
        begin = end

# Wakes workers if the tasks wait for each other, if the work surely suffices, or if the caller
# has spent enough time alone in regions that followed each other so fast that woken workers would
# have stayed awake. Returns 0, or the time at which the caller begins alone.
def wake_if_worth(pool: ptr[Pool], region: ptr[Region], worth: i64, together: i1) -> i64:
    if not together and worth < WORTH_WAKING:
        since = now()
        if u64(since - pool.ended) >= SPIN:
            pool.spent = 0
        if pool.spent < WAKE:
            return since
    wake(pool, region)
    return 0

def note_alone(pool: ptr[Pool], since: i64):
    end = now()
    pool.spent += end - since
    pool.ended = end

def wake(pool: ptr[Pool], region: ptr[Region]):
    pool.spent = 0
    keep_off(pool)
    syscall(FUTEX, generation(pool), FUTEX_WAKE, i32(region.threads - 1))

# Waits until no worker has a seat. Before the caller sleeps, workers may run on its CPU: a worker
# may have to share its own CPU with another library's spinning thread.
def await_workers(pool: ptr[Pool]):
    if load_acquire(pool.pending) == 0:
        return
    start = now()
    rounds = 0
    while load_acquire(pool.pending):
        if is_long(start, rounds):
            avoid(pool, 0)
            store_seq_cst(1, pool.waiting)
            seen = load_seq_cst(pool.pending)
            while seen:
                syscall(FUTEX, at(pool.pending), FUTEX_WAIT, seen, None, None, 0)
                seen = load_seq_cst(pool.pending)
            store_monotonic(0, pool.waiting)
            return
        rounds += 1
"""


def pool_text(machine: str) -> str:
    """The LLVM IR of the pool for a machine, by the name that LLVM gives it."""
    return native_text(_PAGE, _CONSTANTS | MACHINES.get(machine, _ELSEWHERE))
