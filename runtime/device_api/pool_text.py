"""The native code of pools of memory (:mod:`minitvm.runtime.device_api.memory_pool`)."""

from __future__ import annotations

from minitvm.runtime.device_api.cpu_pool_text import CPU_POOL
from minitvm.runtime.device_api.interface import ALIGNMENT
from minitvm.runtime.heap_types import HEADER
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.native_text import fields_of, native_text

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
_FRONT_MOST = 1024 * 1024
_SLAB = 64  # records of blocks that are allocated at a time

_PAGE = r"""
# A part of a chunk:
#
#   chunk   +---------+--------------------+-------------+
#           | block <-before   block   after-> block     |    in the order of their addresses
#           +---------+--------------------+-------------+
class Block:
    address: ptr  # the memory is never touched
    size: u64  # bytes
    before: ptr[Block]  # its neighbours in the chunk, or null;
    after: ptr[Block]  # the only block of a chunk has none
    link: ptr[ptr[Block]]  # in a list of the bins: the place that points to it,
    next: ptr[Block]  # and the block after it
    bins: ptr[Bins]  # that hold it while it is free, or null
    epoch: u64  # the time of its stream when it was freed
    requested: u64  # the bytes for which its user asked
    home: ptr[Bins]  # from which it was taken

# Free blocks by size.
class Bins:
    lists: array[ptr[Block], BINS]  # eight for each power of two: 512, 576, 640 ... 960, 1024 ...
    words: array[u64, 8]  # a bit for each list, set if it isn't empty
    further: ptr[Bins]  # whose blocks may be taken here as well, or null
    least: u64  # the bytes from which on a rest is split off

class Counters:
    allocated: u64  # bytes of blocks in use,
    asked: u64  # and as their users count
    reserved: u64  # bytes of chunks
    most_allocated: u64
    most_reserved: u64
    chunks: u64  # the existing ones,
    obtained: u64  # and all so far
    allocations: u64  # the blocks that were given out and taken back so far
    frees: u64

class Pool:
    lock: i32  # 1: a thread has locked it
    _: i32
    counters: Counters
    limit: u64  # of the reserved bytes
    spares: ptr[Block]  # unused records of blocks
    slabs: ptr[Block]  # the pieces of memory with all records
    everybodys: Bins

# ---- The lock -------------------------------------------------------------------------------
# The holder is soon done, unless the system has taken its CPU away; then the CPU is yielded.
@inline
def lock(pool: ptr[Pool]):
    if not exchanges(pool.lock, 0, 1, acquire):
        wait_for_lock(pool)

@noinline
def wait_for_lock(pool: ptr[Pool]):
    tries = 0
    while True:
        if load_monotonic(pool.lock) == 0:
            if exchanges(pool.lock, 0, 1, acquire):
                return
        else:
            tries += 1
            if tries > 200:
                sched_yield()
                tries = 0

@inline
def unlock(pool: ptr[Pool]):
    store_release(0, pool.lock)

# Locks the pool, with at least two spare blocks, the most that any function takes. False, and not
# locked, if there is no memory for them.
@inline
def lock_with_spares(pool: ptr[Pool]) -> i1:
    lock(pool)
    if pool.spares and pool.spares.next:
        return True
    return make_spares(pool)

# Makes a slab of spare blocks. Its first block links it to the other slabs.
@noinline
def make_spares(pool: ptr[Pool]) -> i1:
    unlock(pool)
    slab = ptr[Block](calloc(SLAB, sizeof(Block)))
    if not slab:
        return False
    lock(pool)
    slab.next = pool.slabs
    pool.slabs = slab
    for index in range(1, SLAB):
        spare(pool, slab[index])
    return True

def spare(pool: ptr[Pool], block: ptr[Block]):
    block.next = pool.spares
    pool.spares = block

def spared(pool: ptr[Pool]) -> ptr[Block]:
    block = pool.spares
    pool.spares = block.next
    return block

# ---- Bins -----------------------------------------------------------------------------------
# The list for a size: the power of two, and the three digits after its leading one.
def bin_of(size: u64) -> u64:
    zeros = ctlz(size)
    digits = size >> (60 - zeros)  # 8 to 15
    return ((63 - zeros) << 3) + digits - 8

# Flips the bit of a list.
def turn(bins: ptr[Bins], bin: u64):
    bins.words[bin >> 6] ^= u64(1) << (bin & 63)

def link(bins: ptr[Bins], block: ptr[Block]):
    bin = bin_of(block.size)
    first = bins.lists[bin]
    bins.lists[bin] = block
    block.bins = bins
    block.link = at(bins.lists[bin])
    block.next = first
    if first:
        first.link = at(block.next)
    else:
        turn(bins, bin)

def unlink(block: ptr[Block]):
    bins = block.bins
    block.link[0] = block.next
    block.bins = None
    if block.next:
        block.next.link = block.link
    else:
        bin = bin_of(block.size)
        if not bins.lists[bin]:
            turn(bins, bin)

# The first list from number `bin` on that isn't empty, or BINS.
def next_bin(bins: ptr[Bins], bin: u64) -> u64:
    mask = u64(-1) << (bin & 63)
    for word in range(bin >> 6, 8):
        left = bins.words[word] & mask
        if left:
            return (word << 6) + cttz(left)
        mask = -1
    return BINS

# The next block in the bins, list after list: null is followed by the first block, and the last
# block by null.
def following(bins: ptr[Bins], block: ptr[Block]) -> ptr[Block]:
    start = u64(0)
    if block:
        if block.next:
            return block.next
        start = bin_of(block.size) + 1
    bin = next_bin(bins, start)
    return None if bin == BINS else bins.lists[bin]

# The smallest block of a list that has `size` bytes, or null.
def smallest(bins: ptr[Bins], bin: u64, size: u64) -> ptr[Block]:
    best = ptr[Block](None)
    best_size = u64(-1)
    block = bins.lists[bin]
    while block:
        if block.size == size:
            return block
        if block.size > size and block.size < best_size:
            best = block
            best_size = block.size
        block = block.next
    return best

# The smallest free block of at least `size` bytes in the bins, or null.
def find(bins: ptr[Bins], size: u64) -> ptr[Block]:
    bin = bin_of(size)
    near = smallest(bins, bin, size)
    if near:
        return near
    larger = next_bin(bins, bin + 1)
    return None if larger == BINS else smallest(bins, larger, 0)

# The same for the bins and their further bins.
def find_anywhere(bins: ptr[Bins], size: u64) -> ptr[Block]:
    own = find(bins, size)
    if bins.further:
        other = find(bins.further, size)
        if other and (not own or other.size < own.size):
            return other
    return own

# ---- Blocks ---------------------------------------------------------------------------------
# Uses `size` bytes of a block that is in no bins. The rest goes to the bins.
@inline
def use(pool: ptr[Pool], block: ptr[Block], size: u64, requested: u64, bins: ptr[Bins]):
    left = block.size - size
    if left >= bins.least:
        rest = spared(pool)
        rest.address = block.address + size
        rest.size = left
        rest.epoch = block.epoch
        block.size = size
        after = block.after
        chain(block, rest)
        chain(rest, after)
        link(bins, rest)
    block.requested = requested
    block.home = bins
    counters = at(pool.counters)
    counters.allocated += block.size
    counters.most_allocated = max(counters.allocated, counters.most_allocated)
    counters.asked += requested
    counters.allocations += 1

# Links two neighbours; the second may be null.
def chain(block: ptr[Block], after: ptr[Block]):
    block.after = after
    if after:
        after.before = block

# A block of at least `size` bytes, or null. A larger block is split.
@export
@inline
def take(pool: ptr[Pool], size: u64, requested: u64, bins: ptr[Bins]) -> ptr[Block]:
    if not lock_with_spares(pool):
        return None
    block = find_anywhere(bins, size)
    if block:
        its_bins = block.bins
        unlink(block)
        use(pool, block, size, requested, its_bins)
    unlock(pool)
    return block

# The first block of a new, reserved chunk, with `size` of its bytes.
@export
def add(
    pool: ptr[Pool], address: ptr, whole: u64, size: u64, requested: u64, bins: ptr[Bins]
) -> ptr[Block]:
    if not lock_with_spares(pool):
        return None
    block = spared(pool)
    block.address = address
    block.size = whole
    block.before = None
    block.after = None
    block.bins = None
    block.epoch = 0
    counters = at(pool.counters)
    counters.most_reserved = max(counters.reserved, counters.most_reserved)
    counters.chunks += 1
    counters.obtained += 1
    use(pool, block, size, requested, bins)
    unlock(pool)
    return block

def count_out(pool: ptr[Pool], block: ptr[Block]):
    pool.counters.allocated -= block.size
    pool.counters.asked -= block.requested
    pool.counters.frees += 1

# Merges two neighbours into the first.
def merge(pool: ptr[Pool], block: ptr[Block], after: ptr[Block]):
    block.size += after.size
    block.epoch = max(block.epoch, after.epoch)
    chain(block, after.after)
    spare(pool, after)

# Frees a block that is in no bins into these bins; returns the block merged with its neighbours.
@inline
def put(pool: ptr[Pool], block: ptr[Block], bins: ptr[Bins]) -> ptr[Block]:
    merged = block
    after = block.after
    if lies_in(after, bins):
        unlink(after)
        merge(pool, block, after)
    before = block.before
    if lies_in(before, bins):
        unlink(before)
        merge(pool, before, block)
        merged = before
    link(bins, merged)
    return merged

def lies_in(block: ptr[Block], bins: ptr[Bins]) -> i1:
    return block and block.bins == bins

# Frees a block in use; `epoch` is the time of the bins' stream.
@export
def give_back(pool: ptr[Pool], block: ptr[Block], bins: ptr[Bins], epoch: u64):
    lock(pool)
    count_out(pool, block)
    block.epoch = epoch
    put(pool, block, bins)
    unlock(pool)

# Retires a block in use: it is neither in use nor free, and waits for work of streams.
@export
def retire(pool: ptr[Pool], block: ptr[Block]):
    lock(pool)
    count_out(pool, block)
    unlock(pool)

# Frees a retired block, or a claimed chunk, for everybody.
@export
def restore(pool: ptr[Pool], block: ptr[Block]):
    lock(pool)
    put(pool, block, at(pool.everybodys))
    unlock(pool)

# Makes the blocks that were freed in a stream's bins up to its time `epoch` free for everybody.
@export
def settle(pool: ptr[Pool], bins: ptr[Bins], epoch: u64):
    lock(pool)
    block = following(bins, None)
    while block:
        after = following(bins, block)
        if block.epoch <= epoch:
            unlink(block)
            put(pool, block, at(pool.everybodys))
        block = after
    unlock(pool)

# ---- Chunks ---------------------------------------------------------------------------------
# Adds the bytes of a future chunk, or subtracts those of a dropped one; false beyond the limit.
@export
def reserve(pool: ptr[Pool], size: i64) -> i1:
    lock(pool)
    more = pool.counters.reserved + u64(size)
    much = size > 0 and more > pool.limit
    if not much:
        pool.counters.reserved = more
    unlock(pool)
    return not much

# Takes a block that is a whole chunk out of the bins; null if there is none.
@export
def claim_chunk(pool: ptr[Pool], bins: ptr[Bins]) -> ptr[Block]:
    lock(pool)
    block = following(bins, None)
    while block and not is_chunk(block):
        block = following(bins, block)
    if block:
        unlink(block)
    unlock(pool)
    return block

def is_chunk(block: ptr[Block]) -> i1:
    return not block.before and not block.after

# Forgets a chunk whose only block is in no bins.
@export
def drop(pool: ptr[Pool], block: ptr[Block]):
    lock(pool)
    count_gone(pool, block)
    unlock(pool)

def count_gone(pool: ptr[Pool], block: ptr[Block]):
    pool.counters.reserved -= block.size
    pool.counters.chunks -= 1
    spare(pool, block)

# ---- Pools ----------------------------------------------------------------------------------
# A new pool, whose blocks are split if at least `least` bytes remain; null if there is no memory.
@export
def new_pool(least: u64, limit: u64) -> ptr[Pool]:
    pool = ptr[Pool](calloc(1, sizeof(Pool)))
    if pool:
        pool.limit = limit
        pool.everybodys.least = least
    return pool

# New bins of a pool. A stream's bins have the common bins as further ones.
@export
def new_bins(least: u64, further: ptr[Bins]) -> ptr[Bins]:
    bins = ptr[Bins](calloc(1, sizeof(Bins)))
    if bins:
        bins.least = least
        bins.further = further
    return bins

# Frees the records of a pool without chunks.
@export
def delete_pool(pool: ptr[Pool]):
    slab = pool.slabs
    while slab:
        following = slab.next
        free(slab)
        slab = following
    free(pool)

@export
def delete_bins(bins: ptr[Bins]):
    free(bins)

# Copies the counters.
@export
def read(pool: ptr[Pool], counters: ptr[Counters]):
    lock(pool)
    memcpy(counters, at(pool.counters), sizeof(Counters))
    unlock(pool)

# Sets the greatest values to the present ones.
@export
def reset_most(pool: ptr[Pool]):
    lock(pool)
    pool.counters.most_allocated = pool.counters.allocated
    pool.counters.most_reserved = pool.counters.reserved
    unlock(pool)

@export
def set_limit(pool: ptr[Pool], limit: u64):
    lock(pool)
    pool.limit = limit
    unlock(pool)

# The bytes of the largest block of the bins.
@export
def largest(pool: ptr[Pool], bins: ptr[Bins]) -> u64:
    most = u64(0)
    lock(pool)
    block = following(bins, None)
    while block:
        most = max(block.size, most)
        block = following(bins, block)
    unlock(pool)
    return most
"""

COUNTERS = len(fields_of(_PAGE, "Counters"))
# The places of fields of Pool, in words of 64 bits.
LIMIT = 1 + COUNTERS
EVERYBODYS = LIMIT + 3


def pool_text(memory: int = _TOO_MUCH) -> str:
    """The LLVM IR of the pools, for a machine with `memory` bytes."""
    words = {
        "BINS": _BINS,
        "SLAB": _SLAB,
        "FRONT_MOST": _FRONT_MOST,
        "FRONT_LISTS": _SMALL // UNIT + 1,
        "SMALL": _SMALL,
        "SMALL_CHUNK": _SMALL_CHUNK,
        "HUGE": HUGE_PAGE,
        "PAGE": 4096,
        "KEPT": MOST_KEPT,
        "MEMORY": memory,
        "HEAD": WORKSPACE_HEAD,
        "HEADER": HEADER,
    }
    return native_text(_PAGE + CPU_POOL, words)
