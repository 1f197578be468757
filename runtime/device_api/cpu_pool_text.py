"""The native code of the CPU's pool: a part of the pools' page.

Each thread keeps some free blocks at hand, its *front*; the rest comes from the pool, and its
chunks from the C library. Workspaces of kernels and the objects of Python that hold a block are
made here, too.
"""

from __future__ import annotations

CPU_POOL = r"""
# ---- The CPU --------------------------------------------------------------------------------
cpu: internal[ptr[Pool]]  # its common bins hold large blocks
small: internal[ptr[Bins]]  # of small blocks
key: internal[i64]  # of a thread's front; of 32 bits on Linux, 64 on macOS
fronts: internal[ptr[Front]]  # all of them, by `following`

# The free blocks that a thread keeps at hand, so that small blocks need no lock. A front takes a
# further block while it holds less than FRONT_MOST bytes. To the pool these blocks are in use. The
# front counts the corrections to the pool's counters.
class Front:
    held: u64  # the bytes at hand,
    asked_held: u64  # and what users asked for
    returned: u64  # the blocks that came,
    given: u64  # and that were given out
    following: ptr[Front]  # or null
    lists: array[ptr[Block], FRONT_LISTS]  # the blocks, by their multiples of 256 bytes

def front() -> ptr[Front]:
    known = ptr[Front](pthread_getspecific(key))
    return known if known else new_front()

@noinline
def new_front() -> ptr[Front]:
    global fronts
    front = ptr[Front](calloc(1, sizeof(Front)))
    if front:
        lock(cpu)
        front.following = fronts
        fronts = front
        unlock(cpu)
        pthread_setspecific(key, front)
    return front

# A front gets, or loses, a block of `size` bytes, for which a user asked for `requested`.
@inline
def hold(front: ptr[Front], size: u64, requested: u64):
    front.held += size
    front.asked_held += requested

# Empties this thread's front if it is full: it didn't have the wanted block.
def change_front():
    its = front()
    if its and its.held >= FRONT_MOST:
        empty_front(its)

# Gives the blocks of a front to the pool.
@noinline
def empty_front(front: ptr[Front]):
    for index in range(FRONT_LISTS):
        block = front.lists[index]
        while block:
            front.lists[index] = block.next
            hold(front, -block.size, -block.requested)
            front.returned -= 1
            give_back(cpu, block, small, 0)
            block = front.lists[index]

# Called when a thread ends. The counts of its front go to the pool.
def end_front(front: ptr[Front]):
    empty_front(front)
    lock(cpu)
    add_front(at(cpu.counters), front)
    link = at(fronts)
    while link[0] != front:
        link = at(link[0].following)
    link[0] = front.following
    unlock(cpu)
    free(front)

# Adds the counts of a front to counters of a pool.
def add_front(counters: ptr[Counters], front: ptr[Front]):
    counters.allocated -= front.held
    counters.asked -= front.asked_held
    counters.allocations += front.given
    counters.frees += front.returned

# Corrects copied counters of the CPU's pool by the fronts.
@export
def add_fronts(counters: ptr[Counters]):
    lock(cpu)
    front = fronts
    while front:
        add_front(counters, front)
        front = front.following
    unlock(cpu)

@export
def start(pool: ptr[Pool], small_bins: ptr[Bins]) -> i32:
    global cpu, small
    cpu = pool
    small = small_bins
    return pthread_key_create(at(key), end_front)

# A block of the CPU's memory, or null. The machine's memory is the limit, since a system that
# hands out more ends the process when the memory is touched.
@export
def take_here(requested: u64) -> ptr[Block]:
    if requested > MEMORY:
        return None
    size = (requested + 255) & -256
    if size <= SMALL:
        its = front()
        if its:
            block = its.lists[size >> 8]
            if block:
                its.lists[size >> 8] = block.next
                block.requested = requested
                hold(its, -size, -requested)
                its.given += 1
                return block
    return take_from_pool(size, requested)

@noinline
def take_from_pool(size: u64, requested: u64) -> ptr[Block]:
    large = at(cpu.everybodys)
    is_small = size <= SMALL
    bins = small if is_small else large
    if is_small:
        change_front()
    block = take(cpu, size, requested, bins)
    if block:
        return block
    if not is_small:
        # The free blocks are too small: the kept memory must adapt to the requests.
        release(cpu, large)
    block = grow(cpu, SMALL_CHUNK if is_small else size, size, requested, bins)
    if block:
        return block
    release(cpu, large)
    release(cpu, small)
    block = grow(cpu, size, size, requested, bins)
    if block:
        return block
    return take(cpu, size, requested, large)

# A number of bytes rounded up to whole pages: from 2 MiB on, huge pages.
def whole_pages(size: u64) -> u64:
    page = u64(HUGE if size >= HUGE else PAGE)
    return (size + page - 1) & -page

# Whole pages from the C library, or null; huge pages if wanted and available (14 is
# MADV_HUGEPAGE).
def obtain(bytes: u64, huge: i1) -> ptr:
    large = bytes >= HUGE
    memory = aligned_alloc(HUGE if large else PAGE, bytes)
    if huge and large and memory:
        madvise(memory, bytes, 14)
    return memory

# Memory outside of all pools, which `free` takes back.
@export
def obtain_alone(size: u64) -> ptr:
    return obtain(whole_pages(size), True)

@export
def free_alone(memory: ptr):
    free(memory)

# The first block of a new chunk of the CPU's memory.
@noinline
def grow(
    pool: ptr[Pool], wish: u64, size: u64, requested: u64, bins: ptr[Bins]
) -> ptr[Block]:
    bytes = whole_pages(wish)
    if not reserve(pool, i64(bytes)):
        return None
    memory = obtain(bytes, size > SMALL)
    if memory:
        block = add(pool, memory, bytes, size, requested, bins)
        if block:
            return block
        free(memory)
    reserve(pool, -i64(bytes))
    return None

# Gives free chunks to the C library.
@noinline
def release(pool: ptr[Pool], bins: ptr[Bins]):
    block = claim_chunk(pool, bins)
    while block:
        memory = block.address
        drop(pool, block)
        free(memory)
        block = claim_chunk(pool, bins)

@export
def release_here():
    its = front()
    if its:
        empty_front(its)
    release(cpu, small)
    release(cpu, at(cpu.everybodys))

# Takes back a block of `take_here`. If very much is free, a chunk goes to the C library together
# with its last block.
@export
def give_back_here(block: ptr[Block]):
    if block.home == small:
        its = front()
        if its and its.held < FRONT_MOST:
            list = at(its.lists[block.size >> 8])
            block.next = list[0]
            list[0] = block
            hold(its, block.size, block.requested)
            its.returned += 1
            return
    give_pool_back(block)

@noinline
def give_pool_back(block: ptr[Block]):
    lock(cpu)
    count_out(cpu, block)
    merged = put(cpu, block, block.home)
    unused = i64(cpu.counters.reserved - cpu.counters.allocated)
    if unused > KEPT and is_chunk(merged):
        memory = merged.address
        unlink(merged)
        count_gone(cpu, merged)
        unlock(cpu)
        free(memory)
    else:
        unlock(cpu)

# A fork waits until no thread has locked the pool: the child would have the lock without the
# thread. All other pools are used with the GIL alone.
@export
def before_fork():
    lock(cpu)

@export
def after_fork():
    unlock(cpu)

# ---- Workspaces -----------------------------------------------------------------------------
# In front of a workspace lies the address of its block.
@export
def allocate_workspace(size: u64) -> ptr:
    block = take_here(add_saturating(size, HEAD))
    if not block:
        return None
    store(block, block.address)
    return block.address + HEAD

@export
def give_back_workspace(memory: ptr):
    if memory:
        give_back_here(load(ptr, memory - HEAD))

# ---- Objects of Python that hold a block ----------------------------------------------------
# Set by Python: the type, the function that raises, and None.
type: ptr
refuse: ptr
none: ptr

# Behind the head of an object.
class Held:
    block: ptr[Block]
    address: ptr  # of the block
    size: i64  # the bytes that were asked for

@export
def make_object(self: ptr, number: ptr) -> ptr:
    size = PyLong_AsSsize_t(number)
    block = take_here(u64(size)) if size > 0 else None
    if size < 0 or (size > 0 and not block):
        if PyErr_Occurred():
            return None
        return PyObject_CallFunctionObjArgs(refuse, number, None)
    object = PyType_GenericAlloc(type, 0)
    if not object:
        let_go(block)
        return None
    held = ptr[Held](object + HEADER)
    held.block = block
    held.size = size
    if block:
        held.address = block.address
    return object

def let_go(block: ptr[Block]):
    if block:
        give_back_here(block)

@export
def end_object(object: ptr):
    let_go(ptr[Held](object + HEADER).block)
    its_type = type
    PyObject_Free(object)
    Py_DecRef(its_type)

@export
def free_object(object: ptr, _: ptr, count: i64, keywords: ptr) -> ptr:
    held = ptr[Held](object + HEADER)
    block = held.block
    held.block = None
    held.address = None
    let_go(block)
    Py_IncRef(none)
    return none
"""
