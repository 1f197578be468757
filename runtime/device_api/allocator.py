"""Allocator: the memory of a device, asked for in chunks and given out in blocks.

The choice of blocks is in :mod:`minitvm.runtime.device_api.memory_pool`. This module decides when
to ask a device for memory, and for how much. It also decides when a freed block that work of
streams may still use is free for others.
"""

from __future__ import annotations

import math
import operator
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, final

from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import Handle, MemoryStats
from minitvm.runtime.device_api.memory_pool import CPUPool, Pool, memory_of_machine
from minitvm.runtime.device_api.pool_text import LEAST_UNIT, NO_LIMIT, UNIT
from minitvm.runtime.device_type import BareDevice, DeviceType
from minitvm.runtime.errors import DeviceError, DeviceMemoryError

LIMIT_VARIABLE = "MINITVM_DEVICE_MEMORY_LIMIT"
# The chunks of a device that doesn't say how large they should be: each is twice the last one.
_FIRST_CHUNK = 4 * 1024 * 1024
_LAST_CHUNK = 64 * 1024 * 1024


class Block(Protocol):
    """Memory in use, until `free` is called, or the last reference to it goes."""

    @property
    def address(self) -> int:
        """The address of the first byte; 0, if it has no bytes."""

    @property
    def size(self) -> int:
        """The bytes that were asked for."""

    def free(self) -> None:
        """Gives the memory back; a second call does nothing."""

    @property
    def stream(self) -> Hashable | None:
        """The stream that the block was allocated for; None: for all uses."""

    def is_recorded(self, stream: Hashable | None) -> bool:
        """Whether a stream is known to use the block."""

    def record_stream(self, stream: Hashable | None) -> None:
        """Work of that stream uses it, too: once it is free, nobody gets it before that is done."""


class AllocatorStats(NamedTuple):
    """The memory that an allocator has given out and keeps, in bytes unless stated otherwise.

    `allocated` are the bytes of blocks in use, for which users asked for `requested` bytes;
    `reserved` are the bytes of chunks, and `cached` their unused part. `blocks` and `chunks` count
    the existing ones, `allocations` and `device_allocations` all that were made so far.
    `fragmentation` is the share of `cached` outside of the largest free block.
    """

    allocated: int
    requested: int
    reserved: int
    cached: int
    peak_allocated: int
    peak_reserved: int
    blocks: int
    chunks: int
    allocations: int
    device_allocations: int
    largest_free: int
    fragmentation: float


class _Managed:
    """A pool with a limit and statistics."""

    device: BareDevice

    @property
    def _pool(self) -> Pool:
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """The limit on the bytes that are requested from the device; None without a limit."""
        limit = self._pool.limit
        return None if limit == NO_LIMIT else limit

    def set_limit(self, limit: int | None) -> None:
        """Limits the bytes that are requested from the device; None: no limit. Blocks in use stay;
        unused memory beyond the limit goes back to the device.

        Raises
        ------
        ValueError
            For a negative limit.
        """
        if limit is not None:
            limit = operator.index(limit)
            if limit < 0:
                raise ValueError(
                    f"{self.device}: expected a limit of at least 0 bytes, or None for none, got "
                    f"{limit}"
                )
        self._pool.limit = NO_LIMIT if limit is None else min(limit, NO_LIMIT)
        if limit is not None and self._pool.counters().reserved > limit:
            self.empty_cache()

    def empty_cache(self) -> None:
        """Returns all chunks without a block in use to the device."""
        raise NotImplementedError

    def reset_peak(self) -> None:
        """Sets the greatest values to the present ones."""
        self._pool.reset_most()

    def stats(self) -> AllocatorStats:
        """The figures of the memory that has been given out, and of the memory that is kept."""
        found = self._pool.counters()
        cached = found.reserved - found.allocated
        largest = max(map(self._pool.largest, self._all_bins()))
        return AllocatorStats(
            allocated=found.allocated,
            requested=found.requested,
            reserved=found.reserved,
            cached=cached,
            peak_allocated=found.most_allocated,
            peak_reserved=found.most_reserved,
            blocks=found.allocations - found.frees,
            chunks=found.chunks,
            allocations=found.allocations,
            device_allocations=found.chunks_so_far,
            largest_free=largest,
            fragmentation=1 - largest / cached if cached else 0.0,
        )

    def _all_bins(self) -> list[int]:
        return [self._pool.everybodys]

    def _refusal(self, size: int, why: str, memory: MemoryStats | None) -> DeviceMemoryError:
        s = self.stats()
        limit = "no limit" if self.limit is None else f"a limit of {self.limit}"
        has = f"; the device has {memory.total}, {memory.free} free" if memory is not None else ""
        return DeviceMemoryError(
            f"{self.device}: expected {size} bytes of memory, {why}: allocated {s.allocated}, "
            f"cached {s.cached} (largest free block {s.largest_free}, fragmentation "
            f"{s.fragmentation:.0%}), peak {s.peak_allocated}, reserved {s.reserved}, {limit}"
            f"{has}: free arrays, or raise the limit"
        )


def limit_of_environment() -> int | None:
    """The limit in ``MINITVM_DEVICE_MEMORY_LIMIT``: bytes, or a number with K, M or G, of 1024,
    1024**2 and 1024**3.

    Raises
    ------
    ValueError
        For anything else.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"([0-9]+)\s*([KMG]?)", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise ValueError(
            f"{LIMIT_VARIABLE}: expected a number of bytes, as 4000000, 512M or 2G, got {text!r}"
        )
    return min(int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()], NO_LIMIT)


# ---- Devices -------------------------------------------------------------------------------------


@final
class _Stream:
    """The blocks that were freed on a stream, and the events after which other uses may have them.

    `epoch` counts the freed blocks; `marked` is the epoch of the last event.
    """

    __slots__ = ("bins", "epoch", "events", "handle", "is_over", "marked")

    def __init__(self, handle: Handle, bins: int) -> None:
        self.handle = handle
        self.bins = bins
        self.epoch = 0
        self.marked = 0
        self.events: deque[tuple[int, Handle]] = deque()
        self.is_over = False


@final
class _Retired:
    """A released block that work of streams may still use, or an allocation of its own that goes
    back to the device. `owing` are streams on which no event could be recorded so far."""

    __slots__ = ("block", "events", "is_chunk", "owing")

    def __init__(self, block: int, owing: list[_Stream], is_chunk: bool) -> None:
        self.block = block
        self.owing = owing
        self.events: list[Handle] = []
        self.is_chunk = is_chunk


@final
class DeviceBlock:
    """A :class:`Block` of a device's memory."""

    __slots__ = ("_allocated_for", "_allocator", "_block", "_is_chunk", "_streams", "address",
                 "size")  # fmt: skip

    def __init__(
        self,
        allocator: Allocator,
        block: int,
        size: int,
        streams: tuple[_Stream, ...],
        is_chunk: bool,
    ) -> None:
        self._allocator = allocator
        self._block = block
        self._streams = streams
        self._allocated_for = streams[0] if streams else None
        self._is_chunk = is_chunk
        self.address = Pool.address(block) if block else 0
        self.size = size

    def free(self) -> None:
        """Gives the memory back; a second call does nothing."""
        block, self._block, self.address = self._block, 0, 0
        if block:
            self._allocator._free(block, self._streams, self._is_chunk)

    @property
    def stream(self) -> Hashable | None:
        """The stream that the block was allocated for, as long as the stream lives; None: for all
        uses."""
        made_for = self._allocated_for
        return None if made_for is None or made_for.is_over else made_for.handle

    def is_recorded(self, stream: Hashable | None) -> bool:
        """Whether that stream is known to use it."""
        return any(each.handle == stream and not each.is_over for each in self._streams)

    def record_stream(self, stream: Hashable | None) -> None:
        """Work of that stream uses it, too: once it is free, nobody gets it before that is done."""
        if self._block and stream is not None:
            used = self._allocator._stream(stream)
            if used is not None and used not in self._streams:
                self._streams = (*self._streams, used)

    def __del__(self) -> None:
        if self._block:
            self._allocator._collect(self._block, self._streams, self._is_chunk)

    def __repr__(self) -> str:
        return f"<{self.size} bytes of {self._allocator.device} at {self.address:#x}>"


class _Sizes(NamedTuple):
    """A device's figures on its memory; None: unknown."""

    unit: int
    padding: int
    most_in_chunk: int | None
    most_at_once: int | None
    first_chunk: int | None
    next_chunk: int | None


@final
class Allocator(_Managed):
    """The memory of one device.

    A request is rounded up to the device's granularity, and served from a chunk; above the device's
    largest size for chunks it is an allocation of its own. The smallest free block that fits is
    given out, and its rest split off; a block that comes back is merged with its free neighbours.
    All functions may be called from any thread.

    Parameters
    ----------
    driver
        The device's functions.
    device
        Which device.

    Raises
    ------
    ValueError
        When the limit in the environment isn't a number.
    """

    def __init__(self, driver: Driver, device: BareDevice) -> None:
        self._driver = driver
        self._known: _Sizes | None = None
        self._grown = 0  # the number of chunks made so far
        self._streams: dict[Hashable, _Stream] = {}
        self._retired: list[_Retired] = []
        self._events: list[Handle] = []  # for which nobody waits
        # Blocks that were freed, and streams that ended, while the lock was taken. The same thread
        # may hold it, if its garbage is collected meanwhile.
        self._freed: deque[tuple[int, tuple[_Stream, ...], bool]] = deque()
        self._ending: deque[tuple[Hashable, Callable[[], object] | None]] = deque()
        self._lock = threading.RLock()
        self._is_settling = False
        self.device = device
        self._blocks = Pool(self._sizes().unit, limit_of_environment())
        _allocators.add(self)

    @property
    def _pool(self) -> Pool:
        return self._blocks

    # ---- Giving out ------------------------------------------------------------------------------

    def allocate(self, size: int, stream: Hashable | None = None) -> Block:
        """Memory of at least `size` bytes, for work of a stream, or for all uses.

        Raises
        ------
        DeviceMemoryError
            When the device has no such memory, or the limit doesn't allow it.
        DeviceError
            When the device fails.
        ValueError
            For a negative size.
        """
        size = operator.index(size)
        if size < 0:
            raise ValueError(f"{self.device}: expected a size of at least 0 bytes, got {size}")
        used = self._stream(stream) if stream is not None else None
        streams = () if used is None else (used,)
        if size == 0:
            return DeviceBlock(self, 0, 0, streams, False)
        sizes = self._sizes()
        needed = _rounded(size + sizes.padding, sizes.unit)
        is_chunk = sizes.most_in_chunk is not None and needed > sizes.most_in_chunk
        bins = self._pool.everybodys if used is None else used.bins
        block = 0 if is_chunk else self._pool.take(needed, size, bins)
        if not block:
            with self._lock:
                block = self._miss(needed, size, bins, is_chunk)
            self.tidy()
        return DeviceBlock(self, block, size, streams, is_chunk)

    def _miss(self, needed: int, size: int, bins: int, is_chunk: bool) -> int:
        """A block for a request that no free block serves: by waiting for one, or from the device;
        the cheapest way is tried first."""
        pool, sizes = self._pool, self._sizes()
        if sizes.most_at_once is not None and needed > sizes.most_at_once:
            why = f"{needed} with padding, and the device gives {sizes.most_at_once} at once"
            raise self._refusal(size, why, self._memory())
        if is_chunk:
            wishes = [needed]
        else:
            self._settle()
            if block := pool.take(needed, size, bins):
                return block
            wishes = [self._wish(needed), needed]
        for whole in dict.fromkeys(wishes):
            if block := self._obtain(whole, needed, size):
                self._grown += not is_chunk
                return block
        for wait in (False, True):
            self._settle(wait)
            if not is_chunk and (block := pool.take(needed, size, bins)):
                return block
            self._release_idle()
            if block := self._obtain(needed, needed, size):
                return block
        raise self._refusal(size, "found none", self._memory())

    def _obtain(self, whole: int, needed: int, size: int) -> int:
        """Gets a chunk from the device and returns its first block; the rest is free for every
        stream. 0 if the device or the limit refuses the chunk."""
        pool = self._pool
        if not pool.reserve(whole):
            return 0
        try:
            address = self._driver.device_memory_allocate(self.device, whole)
        except MemoryError:
            pool.cancel(whole)
            return 0
        except BaseException:
            pool.cancel(whole)
            raise
        block = pool.add(address, whole, needed, size, pool.everybodys)
        if not block:
            pool.cancel(whole)
            self._driver.device_memory_deallocate(self.device, address, whole)
            raise MemoryError(f"{self.device}: expected some kilobytes of the host, found none")
        return block

    def _wish(self, needed: int) -> int:
        """The bytes of the next chunk, which must hold at least `needed` bytes."""
        sizes = self._sizes()
        stated = sizes.next_chunk if self._grown else sizes.first_chunk
        wish = min(_FIRST_CHUNK << self._grown, _LAST_CHUNK) if stated is None else stated
        if sizes.most_at_once is not None:
            wish = min(wish, sizes.most_at_once)
        return max(wish // sizes.unit * sizes.unit, needed)

    def _sizes(self) -> _Sizes:
        if self._known is None:
            driver, device = self._driver, self.device
            least = driver.device_min_chunk_size(device) or 1
            self._known = _Sizes(
                # If the device requires no alignment, it is the alignment of the CPU's arrays.
                unit=least if least >= LEAST_UNIT else math.lcm(least, UNIT),
                padding=driver.device_extra_padding_size(device) or 0,
                most_in_chunk=driver.device_max_chunk_size(device),
                most_at_once=driver.device_max_alloc_size(device),
                first_chunk=driver.device_init_alloc_size(device),
                next_chunk=driver.device_realloc_size(device),
            )
        return self._known

    def _memory(self) -> MemoryStats | None:
        """The device's report on its memory, for a message."""
        try:
            return self._driver.device_memory_stats(self.device)
        except DeviceError:
            return None

    # ---- Taking back -----------------------------------------------------------------------------

    def _free(self, block: int, streams: tuple[_Stream, ...], is_chunk: bool) -> None:
        """Frees a block that isn't in use any more. This never waits, since it may run while
        garbage is collected."""
        if streams or is_chunk:
            self._freed.append((block, streams, is_chunk))
            self.tidy()
        else:
            self._pool.give_back(block, self._pool.everybodys)

    def _collect(self, block: int, streams: tuple[_Stream, ...], is_chunk: bool) -> None:
        """Frees a block whose last reference has gone. If the device fails at a step, the step is
        tried again when memory is needed."""
        with suppress(DeviceError):
            self._free(block, streams, is_chunk)

    def tidy(self) -> None:
        """Does the work that another thread left to the next holder of the lock."""
        while (self._freed or self._ending) and self._lock.acquire(blocking=False):
            try:
                if self._is_settling:
                    return
                self._is_settling = True
                try:
                    self._release_freed()
                    self._end_streams()
                finally:
                    self._is_settling = False
            finally:
                self._lock.release()

    def _release_freed(self) -> None:
        while self._freed:
            block, used, is_chunk = self._freed.popleft()
            streams = [each for each in used if not each.is_over]
            if is_chunk or len(streams) > 1:
                self._pool.retire(block)
                retired = _Retired(block, streams, is_chunk)
                self._retired.append(retired)
                self._finish(retired)
            elif streams:
                (stream,) = streams
                stream.epoch += 1
                self._pool.give_back(block, stream.bins, stream.epoch)
                self._mark(stream)
            else:
                self._pool.give_back(block, self._pool.everybodys)

    def _finish(self, retired: _Retired, wait: bool = False) -> None:
        """Frees a retired block, if all its streams are done with it."""
        while retired.owing:
            stream = retired.owing[-1]
            if not stream.is_over:
                retired.events.append(self._record(stream))
            retired.owing.pop()
        while retired.events:
            if not self._has_happened(retired.events[-1], wait):
                return
            self._events.append(retired.events.pop())
        if retired.is_chunk:
            self._deallocate(retired.block)
            self._pool.drop(retired.block)
        else:
            self._pool.restore(retired.block)
        self._retired.remove(retired)

    # ---- Streams ---------------------------------------------------------------------------------

    def release_stream(self, stream: Hashable, destroy: Callable[[], object] | None = None) -> None:
        """Waits for the work on a stream's freed blocks, and calls `destroy`: nothing is recorded
        on the stream afterwards. Blocks that were allocated for it are free for everybody once
        freed. If another thread holds the allocator, that thread does this."""
        self._ending.append((stream, destroy))
        self.tidy()

    def _end_streams(self) -> None:
        while self._ending:
            stream, destroy = self._ending[0]
            found = self._streams.get(stream)
            if found is not None:
                for retired in list(self._retired):
                    self._finish(retired)
                self._settle_stream(found, wait=True)
                found.is_over = True
                del self._streams[stream]
                self._pool.delete_bins(found.bins)
            self._ending.popleft()
            if destroy is not None:
                destroy()

    def _stream(self, stream: Hashable) -> _Stream | None:
        """The record of a stream; None where work is done at once."""
        known = self._streams.get(stream)
        if known is not None or not self._driver.has_streams:
            return known
        with self._lock:
            if stream not in self._streams:
                bins = self._pool.new_bins(self._sizes().unit, self._pool.everybodys)
                self._streams[stream] = _Stream(stream, bins)
            return self._streams[stream]

    def _record(self, stream: _Stream) -> Handle:
        """A new event at the present end of a stream."""
        event = self._events.pop() if self._events else self._driver.create_event(self.device)
        try:
            self._driver.record_event(self.device, stream.handle, event)
        except BaseException:
            self._events.append(event)
            raise
        return event

    def _has_happened(self, event: Handle, wait: bool) -> bool:
        # An event behind a failure has happened as well; waiting for it raises the failure.
        happened = bool(self._driver.query_event(self.device, event))
        if wait and not happened:
            self._driver.synchronize_event(self.device, event)
            return True
        return happened

    def _mark(self, stream: _Stream) -> None:
        """Records an event behind the blocks freed on a stream so far."""
        epoch = stream.epoch
        stream.events.append((epoch, self._record(stream)))
        stream.marked = epoch
        if len(stream.events) > _MANY_EVENTS:
            self._settle_stream(stream)

    def _settle(self, wait: bool = False) -> None:
        """Frees for everybody the blocks that were freed on streams and aren't used there any more;
        after a `wait`, all of them."""
        if self._is_settling:  # this thread is settling already, and its garbage is being collected
            return
        self._is_settling = True
        try:
            self._release_freed()
            self._end_streams()
            for stream in list(self._streams.values()):
                self._settle_stream(stream, wait)
            for retired in list(self._retired):
                self._finish(retired, wait)
        finally:
            self._is_settling = False

    def _settle_stream(self, stream: _Stream, wait: bool = False) -> None:
        if stream.marked < stream.epoch:
            self._mark(stream)
        settled = 0
        try:
            while stream.events and self._has_happened(stream.events[0][1], wait):
                settled, event = stream.events.popleft()
                self._events.append(event)
        finally:
            if settled:
                self._pool.settle(stream.bins, settled)

    # ---- The cache -------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Returns all chunks without a block in use to the device. Blocks that streams may still
        use are left alone."""
        with self._lock:
            self._settle()
            self._release_idle()
        self.tidy()

    def close(self) -> None:
        """Waits for the streams, and gives unused chunks and events back to the device."""
        with self._lock:
            self._settle(wait=True)
            self._release_idle()
            while self._events:
                self._driver.destroy_event(self.device, self._events[-1])
                self._events.pop()
        self.tidy()

    def _release_idle(self) -> None:
        while chunk := self._pool.claim_chunk():
            try:
                self._deallocate(chunk)
            except BaseException:
                self._pool.restore(chunk)
                raise
            self._pool.drop(chunk)

    def _deallocate(self, block: int) -> None:
        address, size = self._pool.address(block), self._pool.size(block)
        self._driver.device_memory_deallocate(self.device, address, size)

    def stats(self) -> AllocatorStats:
        """The figures of the memory that has been given out, and of the memory that is kept."""
        self.tidy()
        return super().stats()

    def _all_bins(self) -> list[int]:
        return [self._pool.everybodys, *(each.bins for each in list(self._streams.values()))]

    def _after_fork(self) -> None:
        """In the child, which lacks the thread that had the lock."""
        self._lock = threading.RLock()
        self._is_settling = False


_MANY_EVENTS = 16  # events of a stream, from which on the first one is tested


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


_allocators: weakref.WeakSet[Allocator] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_allocators):
        each._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- The CPU -------------------------------------------------------------------------------------


@final
class CPUAllocator(_Managed):
    """The memory of the CPU: of arrays, and of the workspaces of compiled kernels."""

    def __init__(self) -> None:
        self.device = BareDevice(DeviceType.CPU)
        self._started: list[CPUPool] = []
        self._allocate: Callable[[int], Any] = self._start_and_allocate

    @property
    def _pool(self) -> CPUPool:
        if not self._started:
            with _starting:
                if not self._started:
                    pool = CPUPool(self._refuse, limit_of_environment())
                    pool.block_type.record_stream = _record_nothing
                    self._allocate = pool.allocate
                    self._started.append(pool)
        return self._started[0]

    def _start_and_allocate(self, size: int) -> Any:
        return self._pool.allocate(size)

    def allocate(self, size: int, stream: Hashable | None = None) -> Block:
        """Memory of at least `size` bytes, at an address that 256 divides.

        Raises
        ------
        DeviceMemoryError
            When there is no such memory, or the limit doesn't allow it.
        ValueError
            For a negative size.
        """
        block: Block = self._allocate(size)
        return block

    def empty_cache(self) -> None:
        """Returns all chunks without a block in use to the system."""
        self._pool.release()

    def workspace_functions(self) -> tuple[int, int]:
        """The addresses of ``void* allocate(int64_t size)``, which gives NULL where there is no
        memory, and ``void give_back(void*)``. They need no GIL."""
        return self._pool.allocate_workspace, self._pool.give_back_workspace

    def _all_bins(self) -> list[int]:
        return [self._pool.everybodys, self._pool.small]

    def _refuse(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"{self.device}: expected a size of at least 0 bytes, got {size}")
        raise self._refusal(size, "found none", memory_of_machine())


def _record_nothing(block: object, stream: Hashable | None) -> None:
    """Does nothing: the CPU has no streams."""


_starting = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_starting.acquire,
        after_in_parent=_starting.release,
        after_in_child=_starting.release,
    )
_cpu = CPUAllocator()


def cpu_allocator() -> CPUAllocator:
    """The allocator of this process's memory, whose code is compiled at its first use.

    >>> block = cpu_allocator().allocate(1000)
    >>> block.size, block.address % 256
    (1000, 0)
    """
    return _cpu
