"""Pools: memory in chunks, given out in blocks, by compiled code that needs no GIL.

A pool gives out the smallest free block that fits, splits off its rest, and merges a block that
comes back with its free neighbours. It never touches the memory itself, which may be a device's;
its notes lie in memory of its own. Its owner provides the chunks: for devices,
:mod:`minitvm.runtime.device_api.allocator`. The pool of the CPU gets them from the C library by
itself, since compiled kernels take their workspaces from it.

Free blocks lie in *bins*, by size. A pool has bins for everybody, and further ones for each stream:
a block that was freed on a stream is free for that stream at once, and for everybody when it is
*settled*.

A pool is locked for some ten instructions at a time; no other code is called meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple, final

from minitvm.runtime.device_api.interface import MemoryStats
from minitvm.runtime.device_api.pool_text import (
    COUNTERS,
    EVERYBODYS,
    HUGE_PAGE,
    LIMIT,
    NO_LIMIT,
    UNIT,
    pool_text,
)
from minitvm.runtime.heap_types import HEADER, function, holder, method
from minitvm.runtime.native import NativeCode, Once


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


def memory_of_machine() -> MemoryStats | None:
    """The memory of this machine, if the system tells it. If it only tells the total, all of it
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
    machine = memory_of_machine()
    return NativeCode(pool_text() if machine is None else pool_text(machine.total))


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
        The least bytes of a rest that is split off a block; all sizes are multiples of it.
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
        self.everybodys: int = self._pool + 8 * EVERYBODYS

    def __del__(self) -> None:
        if self._pool and not self.counters().reserved:
            _call("delete_pool", self._pool)

    def new_bins(self, least: int, further: int = 0) -> int:
        """New bins, from which the blocks of the `further` bins can be taken as well."""
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
        """Reserves the bytes of a future chunk; False if they exceed the limit."""
        return bool(_call("reserve", self._pool, size))

    def cancel(self, size: int) -> None:
        """Cancels the reservation of a chunk that the owner couldn't get."""
        _call("reserve", self._pool, -size)

    def add(self, address: int, whole: int, size: int, requested: int, bins: int) -> int:
        """The first block of a chunk that was reserved; the rest is free in the bins."""
        return _call("add", self._pool, address, whole, size, requested, bins) or 0

    def give_back(self, block: int, bins: int, epoch: int = 0) -> None:
        """Frees a block in use into bins; `epoch` is the time of the bins' stream."""
        _call("give_back", self._pool, block, bins, epoch)

    def settle(self, bins: int, epoch: int) -> None:
        """Makes the blocks that were freed in bins up to a time free for everybody."""
        _call("settle", self._pool, bins, epoch)

    def retire(self, block: int) -> None:
        """Marks a block as not in use any more, but not free yet."""
        _call("retire", self._pool, block)

    def restore(self, block: int) -> None:
        """Frees a retired block, or a claimed chunk, for everybody."""
        _call("restore", self._pool, block)

    def claim_chunk(self) -> int:
        """Takes a chunk that is completely free, for every stream, out of the pool's free
        blocks."""
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
        found = (ctypes.c_int64 * COUNTERS)()
        _call("read", self._pool, ctypes.addressof(found))
        return Counters(*found)

    def reset_most(self) -> None:
        """Sets the greatest values to the present ones."""
        _call("reset_most", self._pool)

    @property
    def limit(self) -> int:
        """The most that may be reserved, or :data:`NO_LIMIT`."""
        return ctypes.c_int64.from_address(self._pool + 8 * LIMIT).value

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
        """`refuse` raises the error for a size that can't be allocated."""
        super().__init__(HUGE_PAGE, limit)
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
        found = (ctypes.c_int64 * COUNTERS)()
        _call("read", self._pool, ctypes.addressof(found))
        _call("add_fronts", ctypes.addressof(found))
        return Counters(*found)

    def release(self) -> None:
        """Returns unused memory to the C library."""
        _call("release_here")


def _at_fork(code: NativeCode) -> None:
    """Prevents a fork while a kernel's thread has locked the pool. The hooks are the C library's:
    between Python's own hooks and the fork, other threads might get the GIL and wait for the
    pool."""
    library = ctypes.CDLL(None)
    before, after = code.function("before_fork"), code.function("after_fork")
    for name in ("pthread_atfork", "__register_atfork"):  # glibc exports only the second
        register = getattr(library, name, None)
        if register is not None:
            register(*map(ctypes.c_void_p, (before, after, after, None)))
            return
