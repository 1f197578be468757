"""The allocator on a simulated device: each rule, and random sequences against a model."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from minitvm.runtime.device import Device
from minitvm.runtime.device_api.allocator import (
    Allocator,
    AllocatorStats,
    Block,
    CPUAllocator,
    DeviceBlock,
    cpu_allocator,
    limit_of_environment,
)
from minitvm.runtime.device_api.cpu import HostMemory
from minitvm.runtime.device_api.driver import Driver
from minitvm.runtime.device_api.interface import MemoryStats
from minitvm.runtime.device_api.memory_pool import memory_of_machine
from minitvm.runtime.device_api.pool_text import pool_text
from minitvm.runtime.device_type import BareDevice
from minitvm.runtime.errors import DeviceError, DeviceMemoryError
from minitvm.runtime.workspace import workspaces
from tests.forks import assert_in_child
from tests.runtime.simulated_memory import SimulatedMemory, allocator_of

DEVICE = Device(12, 3)
KB, MB = 1 << 10, 1 << 20


def made(total: int = 1 << 40, *, has_streams: bool = True, **sizes: int) -> Made:
    driver = SimulatedMemory(total, sizes, has_streams)
    return driver, allocator_of(driver, DEVICE)


Made = tuple[SimulatedMemory, Allocator]


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITVM_DEVICE_MEMORY_LIMIT", raising=False)


# ---- Sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "least", "padding", "expected"),
    [
        (12, 512, 0, 512),
        (512, 512, 0, 512),
        (516, 512, 0, 1024),
        (400_000, 512, 0, 400_384),
        (484, 512, 32, 1024),
        (480, 512, 32, 512),
        (1, 16, 0, 16),
        (17, 16, 0, 32),
        (1, 1, 0, 256),  # nothing is wanted: what DLPack likes
        (257, 8, 0, 512),
        (1, 3, 0, 768),
        (1000, 1000, 1, 2000),
    ],
)
def test_a_request_is_rounded_up(size: int, least: int, padding: int, expected: int) -> None:
    _, allocator = made(min_chunk=least, padding=padding)
    block = allocator.allocate(size)
    assert (block.size, allocator.stats().allocated) == (size, expected)
    assert allocator.stats().requested == size
    del block
    assert (allocator.stats().allocated, allocator.stats().requested) == (0, 0)


def test_no_bytes_are_never_asked_for() -> None:
    driver, allocator = made()
    block = allocator.allocate(0, "stream")
    block.record_stream("other")
    assert (block.address, block.size) == (0, 0)
    block.free()
    del block
    assert not driver.calls
    assert allocator.stats().allocations == 0


def test_a_negative_size_is_refused() -> None:
    _, allocator = made()
    with pytest.raises(ValueError, match=r"ext_dev\(3\): expected a size of at least 0 bytes, got"):
        allocator.allocate(-1)


def test_the_first_chunk_and_further_ones() -> None:
    driver, allocator = made(min_chunk=512, init=8 * KB, realloc=2 * KB)
    held = [allocator.allocate(4 * KB) for _ in range(2)]
    assert driver.obtained == [8 * KB]
    held.append(allocator.allocate(KB))
    held.append(allocator.allocate(KB))
    held.append(allocator.allocate(512))
    assert driver.obtained == [8 * KB, 2 * KB, 2 * KB]
    held.append(allocator.allocate(5 * KB))  # never smaller than what is wanted
    assert driver.obtained[3:] == [5 * KB]


def test_no_chunk_is_larger_than_the_device_gives_at_once() -> None:
    driver, allocator = made(min_chunk=512, init=8 * MB, realloc=8 * MB, max_alloc=MB + 100)
    held = [allocator.allocate(MB - 512), allocator.allocate(MB - 512)]
    assert driver.obtained == [MB, MB]
    with pytest.raises(DeviceMemoryError, match=f"the device gives {MB + 100} at once"):
        allocator.allocate(MB + 101)
    assert len(held) == 2 and driver.calls["device_memory_allocate"] == 2


def test_chunks_of_a_device_that_does_not_say_grow() -> None:
    driver, allocator = made()
    held = [allocator.allocate(MB) for _ in range(400)]
    assert driver.obtained[:5] == [4 * MB, 8 * MB, 16 * MB, 32 * MB, 64 * MB]
    assert max(driver.obtained) == 64 * MB
    assert len(held) == 400


def test_above_the_largest_size_for_chunks_memory_is_the_device_s_own() -> None:
    driver, allocator = made(min_chunk=512, max_chunk=4 * KB, init=64 * KB)
    block = allocator.allocate(4 * KB + 1)
    assert driver.obtained == [4 * KB + 512]
    assert allocator.stats().chunks == 1
    block.free()
    assert not driver.chunks
    inside = allocator.allocate(4 * KB)
    assert driver.obtained[1:] == [64 * KB]
    inside.free()
    assert len(driver.chunks) == 1  # kept


def test_memory_of_its_own_goes_back_after_its_stream_s_work() -> None:
    driver, allocator = made(min_chunk=512, max_chunk=4 * KB)
    block = allocator.allocate(8 * KB, "s")
    driver.submit("s")
    block.free()
    assert driver.used == 8 * KB
    assert allocator.stats().allocated == 0
    allocator.empty_cache()
    assert driver.used == 8 * KB
    driver.finish("s")
    allocator.empty_cache()
    assert driver.used == 0


# ---- Which block ---------------------------------------------------------------------------------


def chunk_of(allocator: Allocator, *sizes: int) -> list[Block]:
    """Blocks side by side."""
    blocks = [allocator.allocate(size) for size in sizes]
    for a, b in itertools.pairwise(blocks):
        assert b.address == a.address + -(-a.size // 512) * 512
    return blocks


def test_the_smallest_that_fits_is_given() -> None:
    _, allocator = made(min_chunk=512, init=MB)
    sizes = [8 * KB, 512, 3 * KB, 512, 5 * KB, 512, 3 * KB + 512, 512]
    blocks = chunk_of(allocator, *sizes)
    addresses = [each.address for each in blocks]
    for index in (4, 0, 6, 2):
        blocks[index].free()
    assert [allocator.allocate(size).address for size in (3 * KB,)] == [addresses[2]]
    held = [allocator.allocate(size) for size in (2 * KB + 513, 3 * KB, 4 * KB + 1, 8 * KB)]
    assert [each.address for each in held] == [addresses[index] for index in (2, 6, 4, 0)]


@pytest.mark.parametrize("order", [(0, 2, 4), (4, 2, 0), (2, 0, 4)])
def test_the_smallest_of_sizes_that_are_close_is_given(order: tuple[int, ...]) -> None:
    _, allocator = made(min_chunk=512, init=MB)
    blocks = chunk_of(allocator, 8 * KB + 512, 512, 8 * KB, 512, 9 * KB - 512, 512)
    smallest = blocks[2].address
    for index in order:
        blocks[index].free()
    assert allocator.allocate(7 * KB + 512).address == smallest


@pytest.mark.parametrize("of_stream", [2 * KB, 4 * KB])
def test_the_smaller_of_a_stream_s_blocks_and_everybody_s_is_given(of_stream: int) -> None:
    driver, allocator = made(min_chunk=512, init=16 * KB)
    pending, between = allocator.allocate(of_stream, "s"), allocator.allocate(512)
    free, last = allocator.allocate(3 * KB), allocator.allocate(16 * KB - 512 - of_stream - 3 * KB)
    expected = min((of_stream, pending.address), (3 * KB, free.address))[1]
    driver.submit("s")
    pending.free()
    free.free()
    assert allocator.allocate(2 * KB, "s").address == expected
    assert between.address and last.address


def test_what_is_too_much_is_split_off_and_merged_again() -> None:
    driver, allocator = made(min_chunk=512, init=8 * KB, realloc=KB)
    blocks = chunk_of(allocator, KB, 2 * KB, 5 * KB)
    start = blocks[0].address
    for order in itertools.permutations(range(3)):
        for index in order:
            blocks[index].free()
        stats = allocator.stats()
        assert (stats.largest_free, stats.fragmentation) == (8 * KB, 0)
        whole = allocator.allocate(8 * KB)
        assert whole.address == start
        whole.free()
        blocks = chunk_of(allocator, KB, 2 * KB, 5 * KB)
    assert len(driver.obtained) == 1


def test_chunks_are_never_merged_with_each_other() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    driver.next_address = 1 << 20
    a = allocator.allocate(4 * KB)
    driver.next_address = a.address + 4 * KB
    b = allocator.allocate(4 * KB)
    assert b.address == a.address + 4 * KB
    a.free()
    b.free()
    assert allocator.stats().largest_free == 4 * KB
    allocator.empty_cache()
    assert not driver.chunks


# ---- Giving back ---------------------------------------------------------------------------------


def test_a_block_is_given_back_once() -> None:
    _, allocator = made()
    block, other = allocator.allocate(100), allocator.allocate(100)
    block.free()
    block.free()
    assert (block.address, block.size) == (0, 100)
    assert allocator.stats().blocks == 1
    del block
    assert allocator.stats().blocks == 1
    del other
    assert allocator.stats().blocks == 0


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("size", [100, 10_000])
def test_a_forgotten_block_is_given_back(size: int, stream: str | None) -> None:
    driver, allocator = made(max_chunk=1000)
    blocks: list[object] = [allocator.allocate(size, stream)]
    blocks.append(blocks)  # only the garbage collector can tell
    del blocks
    gc.collect()
    assert allocator.stats().blocks == 0
    allocator.close()
    assert not driver.chunks


def test_a_device_that_fails_while_a_block_is_forgotten() -> None:
    driver, allocator = made()
    block = allocator.allocate(100, "s")
    driver.fail_after(0)
    del block
    driver.finish("s")
    allocator.close()
    assert not driver.chunks and not driver.failing


# ---- Streams -------------------------------------------------------------------------------------


def test_a_stream_reuses_at_once_what_was_freed_on_it() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB)
    block = allocator.allocate(4 * KB, "s")
    address = block.address
    driver.submit("s")
    block.free()
    again = [allocator.allocate(KB, "s") for _ in range(4)]
    assert [each.address - address for each in again] == [0, KB, 2 * KB, 3 * KB]


@pytest.mark.parametrize("elsewhere", [None, "t"])
def test_others_get_it_after_the_stream_s_event(elsewhere: str | None) -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    block = allocator.allocate(4 * KB, "s")
    address = block.address
    driver.submit("s")
    block.free()
    other = allocator.allocate(4 * KB, elsewhere)
    assert other.address != address
    driver.submit("s")  # which came later, and need not be waited for
    driver.stream("s").done = 1
    third = allocator.allocate(4 * KB, elsewhere)
    assert third.address == address
    assert driver.calls["synchronize_event"] == 0


def test_the_rest_of_a_chunk_is_everybody_s() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    first = allocator.allocate(KB, "s")
    second = allocator.allocate(3 * KB, "t")
    assert second.address == first.address + KB
    assert not driver.calls["query_event"]


def test_what_was_freed_in_between_is_apart() -> None:
    """Of two neighbours one is done: merged they would not be, or only for their stream."""
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    a, b = allocator.allocate(2 * KB, "s"), allocator.allocate(2 * KB, "s")
    start = a.address
    driver.submit("s")
    a.free()
    driver.submit("s")
    driver.stream("s").done = 1
    first = allocator.allocate(3 * KB)  # settles `a`
    assert not start <= first.address < start + 4 * KB
    b.free()
    second = allocator.allocate(2 * KB)
    assert second.address == start
    second.free()
    third = allocator.allocate(4 * KB, "t")
    assert not start <= third.address < start + 4 * KB
    driver.finish("s")
    fourth = allocator.allocate(4 * KB, "t")
    assert fourth.address == start


def test_a_merged_block_waits_for_both() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    a, b = allocator.allocate(2 * KB, "s"), allocator.allocate(2 * KB, "s")
    start = a.address
    for block in (a, b):
        driver.submit("s")
        block.free()
    driver.stream("s").done = 1
    other = allocator.allocate(2 * KB)
    assert other.address >= start + 4 * KB
    whole = allocator.allocate(4 * KB, "s")
    assert whole.address == start


def test_waiting_for_streams_comes_before_giving_up() -> None:
    driver, allocator = made(4 * KB, min_chunk=512, init=4 * KB)
    block = allocator.allocate(4 * KB, "s")
    driver.submit("s")
    block.free()
    assert allocator.allocate(2 * KB, "t").size == 2 * KB
    assert driver.calls["synchronize_event"] == 1


def test_a_stream_that_a_block_was_used_on() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    block = allocator.allocate(4 * KB, "s")
    address = block.address
    block.record_stream("t")
    block.record_stream("t")
    block.record_stream("s")
    block.record_stream(None)
    driver.submit("t")
    block.free()
    assert driver.calls["record_event"] == 2
    assert allocator.stats().allocated == 0
    for stream in ("s", "t", "u", None):
        assert allocator.allocate(4 * KB, stream).address != address, stream
    driver.finish("t")
    held = [allocator.allocate(4 * KB, "u") for _ in range(8)]
    assert address in [each.address for each in held]


def test_a_block_for_no_stream_that_was_used_on_one() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    block = allocator.allocate(4 * KB)
    address = block.address
    block.record_stream("s")
    driver.submit("s")
    block.free()
    other = allocator.allocate(4 * KB)
    assert other.address != address
    assert allocator.allocate(4 * KB, "s").address == address


def test_without_streams_everything_is_free_at_once() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, max_chunk=4 * KB, has_streams=False)
    block = allocator.allocate(4 * KB, "s")
    address = block.address
    block.record_stream("t")
    block.free()
    assert allocator.allocate(4 * KB, "u").address == address
    allocator.allocate(8 * KB, "s").free()
    assert driver.used == 4 * KB
    assert set(driver.calls) == {"device_memory_allocate", "device_memory_deallocate"}


def test_events_are_used_again() -> None:
    driver, allocator = made()
    for _ in range(100):
        allocator.allocate(100, "s").free()
    assert driver.calls["record_event"] == 100
    assert driver.calls["create_event"] < 20


def test_a_stream_that_goes() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    freed, held = allocator.allocate(4 * KB, 7), allocator.allocate(4 * KB, 7)
    addresses = {freed.address, held.address}
    driver.submit(7)
    freed.free()
    allocator.release_stream(7)
    allocator.release_stream(8)  # of which it knows nothing
    assert driver.stream(7).done == 1
    calls = driver.calls["record_event"]
    held.free()
    assert driver.calls["record_event"] == calls
    # A new stream of that number is another one.
    again = [allocator.allocate(4 * KB, 7) for _ in range(2)]
    assert {each.address for each in again} == addresses


def test_a_new_stream_of_an_old_one_s_number() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    block = allocator.allocate(4 * KB, 7)
    address = block.address
    assert isinstance(block, DeviceBlock)
    assert block.is_recorded(7)
    allocator.release_stream(7)
    assert not block.is_recorded(7)
    block.record_stream(7)
    assert block.is_recorded(7)
    driver.submit(7)
    block.free()
    assert allocator.allocate(4 * KB).address != address


def test_a_stream_that_is_forgotten_while_the_allocator_is_at_work() -> None:
    """By the collector of garbage, within a call of the device: it is destroyed later."""
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    for name in "st":
        allocator.allocate(4 * KB, name).free()
    destroyed: list[str] = []
    query = driver.query_event
    during: list[int] = []

    def query_and_collect(device: BareDevice, event: int) -> bool:
        if not during:
            during.append(event)
            for name in "st":
                allocator.release_stream(name, partial(destroyed.append, name))
            assert not destroyed
        return query(device, event)

    driver.query_event = query_and_collect  # type: ignore[method-assign]
    held = [allocator.allocate(4 * KB) for _ in range(3)]
    assert (len(held), destroyed) == (3, ["s", "t"])


@pytest.mark.parametrize("retired", [False, True])
def test_garbage_that_uses_the_allocator_while_it_is_at_work(retired: bool) -> None:
    """As a finalizer may, within a call of the device."""
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    blocks = [allocator.allocate(4 * KB, "s") for _ in range(3)]
    driver.submit("s")
    for block in blocks:
        if retired:
            block.record_stream("t")
        block.free()
    driver.finish("s")
    query = driver.query_event
    held: list[Block] = []

    def query_and_collect(device: BareDevice, event: int) -> bool:
        driver.query_event = query  # type: ignore[method-assign]
        held.append(allocator.allocate(4 * KB, "u"))
        allocator.allocate(4 * KB, "u").free()
        allocator.empty_cache()
        return query(device, event)

    driver.query_event = query_and_collect  # type: ignore[method-assign]
    held.append(allocator.allocate(4 * KB))
    assert len(held) == len({each.address for each in held}) == 2
    assert allocator.stats().blocks == 2
    held.clear()
    allocator.close()
    assert not driver.chunks


def test_a_stream_that_fails_when_it_is_waited_for() -> None:
    driver, allocator = made()
    allocator.allocate(100, "s").free()
    destroyed: list[str] = []
    driver.fail_after(0)
    with pytest.raises(DeviceError, match="simulated: query_event failed"):
        allocator.release_stream("s", lambda: destroyed.append("s"))
    assert not destroyed
    allocator.empty_cache()
    assert destroyed == ["s"]
    assert not driver.chunks


def test_a_stream_that_goes_while_a_retired_block_waits_for_it() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    block = allocator.allocate(4 * KB, "s")
    address = block.address
    block.record_stream("t")
    driver.submit("s")
    driver.submit("t")
    driver.fail_after(1)
    with pytest.raises(DeviceError, match="simulated: record_event failed"):
        block.free()
    allocator.release_stream("s")
    allocator.release_stream("t")
    assert not address <= allocator.allocate(4 * KB).address < address + 4 * KB
    driver.finish("s")
    driver.finish("t")
    allocator.empty_cache()
    assert not driver.chunks


# ---- Exhaustion ----------------------------------------------------------------------------------


def test_where_a_chunk_is_too_much_the_request_alone_is_asked_for() -> None:
    driver, allocator = made(10 * KB, min_chunk=512, init=64 * KB)
    block = allocator.allocate(3 * KB)
    assert driver.obtained == [3 * KB]
    assert block.size == 3 * KB


def test_a_smaller_chunk_comes_before_the_cache_goes() -> None:
    driver, allocator = made(10 * KB, min_chunk=512, init=4 * KB, realloc=8 * KB)
    allocator.allocate(4 * KB).free()
    block = allocator.allocate(5 * KB)
    assert (driver.used, block.size) == (9 * KB, 5 * KB)


def test_the_cache_goes_before_giving_up() -> None:
    driver, allocator = made(8 * KB, min_chunk=512, init=4 * KB, realloc=4 * KB)
    a, b = allocator.allocate(4 * KB), allocator.allocate(4 * KB)
    a.free()
    b.free()
    large = allocator.allocate(8 * KB)
    assert driver.chunks == {large.address: 8 * KB}


def test_the_message_says_what_there_is() -> None:
    driver, allocator = made(8 * KB, min_chunk=512, init=KB, realloc=KB)
    held = [allocator.allocate(KB) for _ in range(6)]
    held[1].free()
    held[2].free()
    small = allocator.allocate(512)
    expected = (
        "ext_dev(3): expected 5000 bytes of memory, found none: allocated 4608, cached 512 "
        "(largest free block 512, fragmentation 0%), peak 6144, reserved 5120, no limit; the "
        "device has 8192, 3072 free: free arrays, or raise the limit"
    )
    with pytest.raises(DeviceMemoryError) as caught:
        allocator.allocate(5000)
    assert str(caught.value) == expected
    driver.tells = False
    allocator.set_limit(6 * KB)
    with pytest.raises(MemoryError, match="reserved 5120, a limit of 6144: free arrays"):
        allocator.allocate(5000)
    assert small.address and allocator.stats().allocated == 4608


def test_the_memory_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(**names: int) -> MemoryStats | None:
        monkeypatch.setattr(os, "sysconf_names", names)
        return memory_of_machine()

    total, free = memory_of_machine() or (0, 0)
    assert total >= free > 0
    assert known(SC_PHYS_PAGES=1) == (total, total)  # of which a system doesn't say what is free
    assert known() is None
    assert "MEMORY" not in pool_text() and str(1 << 62) in pool_text()
    with pytest.raises(DeviceError, match="the system doesn't tell how much memory there is"):
        Driver("cpu", 1, HostMemory()).device_memory_stats(Device(1))


def test_a_device_that_cannot_say_how_much_it_has() -> None:
    driver, allocator = made(0)

    def fail(device: BareDevice) -> MemoryStats | None:
        raise DeviceError("no such function")

    driver.device_memory_stats = fail  # type: ignore[method-assign]
    with pytest.raises(DeviceMemoryError, match="no limit: free arrays"):
        allocator.allocate(1)


# ---- Limits, statistics, the cache ---------------------------------------------------------------


def test_a_limit_by_call() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    allocator.set_limit(6 * KB)
    assert allocator.limit == 6 * KB
    held = [allocator.allocate(4 * KB), allocator.allocate(2 * KB)]
    assert driver.obtained == [4 * KB, 2 * KB]
    with pytest.raises(DeviceMemoryError, match="a limit of 6144"):
        allocator.allocate(1)
    assert driver.calls["device_memory_allocate"] == 2
    allocator.set_limit(None)
    held.append(allocator.allocate(1))
    held[0].free()
    held[1].free()
    allocator.set_limit(5 * KB)  # what nobody uses goes
    assert driver.used == 4 * KB
    with pytest.raises(ValueError, match=r"ext_dev\(3\): expected a limit of at least 0 bytes"):
        allocator.set_limit(-1)
    assert allocator.limit == 5 * KB


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", None),
        ("0", 0),
        ("4000", 4000),
        ("3K", 3 * KB),
        (" 5 m ", 5 * MB),
        ("2G", 2 << 30),
    ],
)
def test_a_limit_by_environment(
    text: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITVM_DEVICE_MEMORY_LIMIT", text)
    assert limit_of_environment() == limit
    assert made()[1].limit == limit


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "2T", "G", "1 2", "٣"])
def test_a_limit_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_DEVICE_MEMORY_LIMIT", text)
    with pytest.raises(ValueError, match="MINITVM_DEVICE_MEMORY_LIMIT: expected a number of bytes"):
        made()


def test_statistics() -> None:
    _, allocator = made(min_chunk=512, init=8 * KB, realloc=2 * KB)
    assert set(allocator.stats()) == {0}
    blocks = chunk_of(allocator, 1000, 600, 3000)
    assert allocator.stats()._asdict() == {
        "allocated": 1024 + 1024 + 3072,
        "requested": 4600,
        "reserved": 8 * KB,
        "cached": 3 * KB,
        "peak_allocated": 5 * KB,
        "peak_reserved": 8 * KB,
        "blocks": 3,
        "chunks": 1,
        "allocations": 3,
        "device_allocations": 1,
        "largest_free": 3 * KB,
        "fragmentation": 0,
    }
    blocks[0].free()
    assert allocator.stats().fragmentation == 0.25
    allocator.reset_peak()
    assert allocator.stats().peak_allocated == 4 * KB
    del blocks
    allocator.empty_cache()
    stats = allocator.stats()
    assert (stats.reserved, stats.cached, stats.chunks, stats.blocks) == (0, 0, 0, 0)
    assert (stats.peak_reserved, stats.device_allocations, stats.allocations) == (8 * KB, 1, 3)
    allocator.reset_peak()
    assert allocator.stats().peak_reserved == 0


def test_emptying_the_cache_leaves_what_is_used() -> None:
    driver, allocator = made(min_chunk=512, init=4 * KB, realloc=4 * KB)
    blocks = [allocator.allocate(4 * KB) for _ in range(3)]
    part = [allocator.allocate(KB), allocator.allocate(KB)]
    blocks[1].free()
    part[0].free()
    allocator.empty_cache()
    assert driver.used == 12 * KB
    allocator.close()
    assert driver.used == 12 * KB
    del blocks, part
    allocator.close()
    assert not driver.used


# ---- Failures ------------------------------------------------------------------------------------


def scenario(driver: SimulatedMemory, allocator: Allocator) -> Iterator[Callable[[], object]]:
    """Steps that make every kind of call."""
    blocks: dict[str, Block] = {}

    def take(name: str, size: int, stream: str | None = None) -> Callable[[], object]:
        return lambda: blocks.__setitem__(name, allocator.allocate(size, stream))

    def drop(name: str) -> Callable[[], object]:
        return lambda: blocks[name].free()

    yield take("a", 4 * KB, "s")
    yield take("b", KB, "s")
    yield take("c", 16 * KB, "s")  # of its own
    yield take("d", KB)
    blocks["b"].record_stream("t")
    for stream in ("s", "t"):
        driver.submit(stream)
    yield drop("a")
    yield drop("b")
    yield drop("c")
    yield drop("d")
    yield take("e", 2 * KB, "t")
    yield take("f", 24 * KB, "t")  # which needs everything
    yield drop("f")
    yield drop("e")
    yield allocator.empty_cache
    driver.finish("s")
    driver.finish("t")
    yield allocator.empty_cache
    yield allocator.close


def test_each_call_of_the_device_in_turn_fails() -> None:
    number = 0
    while True:
        driver, allocator = made(
            28 * KB, min_chunk=512, init=4 * KB, realloc=4 * KB, max_chunk=8 * KB
        )
        driver.fail_after(number)
        failed = []
        for step in scenario(driver, allocator):
            try:
                step()
            except DeviceError as error:
                failed.append(str(error))
                assert "simulated" in failed[-1]
                before = allocator.stats()
                assert allocator.stats() == before
                step()  # goes well now; to free twice does nothing
        assert len(failed) == (not driver.failing)
        assert not driver.chunks, number
        assert not any(driver.events.values()), number
        assert allocator.stats().reserved == allocator.stats().allocated == 0
        if driver.failing:
            break
        number += 1
    expected = {
        "device_memory_allocate", "device_memory_deallocate", "create_event", "record_event",
        "query_event", "synchronize_event", "destroy_event",
    }  # fmt: skip
    assert set(driver.calls) == expected
    assert number > 25


# ---- The CPU -------------------------------------------------------------------------------------


@pytest.fixture
def here() -> Iterator[CPUAllocator]:
    found = cpu_allocator()
    found.empty_cache()
    yield found
    found.set_limit(None)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000, MB, MB + 1, 2 * MB - 1, 2 * MB, 9 * MB])
def test_blocks_of_the_cpu(here: CPUAllocator, size: int) -> None:
    before = here.stats()
    block = here.allocate(size)
    assert block.size == size and block.address % 256 == 0
    ctypes.memset(block.address, 1, size)
    now = here.stats()
    # A whole chunk is given out where the rest would be of no use.
    assert size <= now.allocated - before.allocated < size + (256 if size <= MB else 2 * MB)
    assert now.requested - before.requested == size
    assert (now.blocks - before.blocks, now.allocations - before.allocations) == (1, 1)
    address = block.address
    block.record_stream("s")
    block.free()
    block.free()
    assert (block.address, block.size) == (0, size)
    assert here.stats().allocated == before.allocated
    assert here.stats().requested == before.requested
    again = here.allocate(size)
    assert again.address == address
    del again
    assert here.stats().blocks == before.blocks


def test_a_block_at_hand_serves_other_sizes(here: CPUAllocator) -> None:
    before = here.stats()
    for size in (200, 100, 250, 1):
        block = here.allocate(size)
        assert here.stats().requested - before.requested == size
        block.free()
        assert here.stats().requested == before.requested


def test_large_blocks_begin_with_a_huge_page(here: CPUAllocator) -> None:
    assert here.allocate(300 * MB).address % (2 * MB) == 0


def test_no_bytes_of_the_cpu(here: CPUAllocator) -> None:
    before = here.stats()
    block = here.allocate(0)
    assert (block.address, block.size) == (0, 0)
    block.free()
    del block
    assert here.stats() == before


def test_what_the_cpu_does_not_give(here: CPUAllocator) -> None:
    before = here.stats()
    with pytest.raises(ValueError, match=r"cpu\(0\): expected a size of at least 0 bytes, got -3"):
        here.allocate(-3)
    with pytest.raises(TypeError):
        here.allocate(1.5)  # type: ignore[arg-type]
    for size in (1 << 50, sys.maxsize):
        with pytest.raises(DeviceMemoryError, match=rf"cpu\(0\): expected {size} bytes of memory"):
            here.allocate(size)
    with pytest.raises(OverflowError):
        here.allocate(1 << 64)
    with pytest.raises(TypeError, match="cannot create"):
        type(here.allocate(1))()
    assert here.stats()[:2] == before[:2]


def test_the_limit_goes_for_arrays_and_workspaces(here: CPUAllocator) -> None:
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(workspaces().allocate)
    give_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(workspaces().give_back)
    before = here.stats()
    here.set_limit(before.reserved + 8 * MB)
    block = here.allocate(4 * MB)
    assert allocate(8 * MB) is None
    with pytest.raises(DeviceMemoryError, match=rf"a limit of {before.reserved + 8 * MB}"):
        here.allocate(8 * MB)
    workspace = allocate(3 * MB)
    assert workspace
    assert here.stats().requested - before.requested == 7 * MB + 64
    block.free()
    give_back(workspace)
    workspace = allocate(6 * MB)  # for which the others went
    assert workspace
    give_back(workspace)


def test_a_limit_that_allows_no_chunk_for_small_blocks(here: CPUAllocator) -> None:
    whole = here.allocate(12 * MB)
    start = whole.address
    whole.free()
    parts = [here.allocate(6 * MB), here.allocate(6 * MB)]
    assert [each.address for each in parts] == [start, start + 6 * MB]
    here.set_limit(here.stats().reserved)
    blocks = []
    with pytest.raises(DeviceMemoryError, match="a limit of"):
        while True:
            blocks.append(here.allocate(50_000))
    parts[1].free()
    reserved = here.stats().reserved
    small = [here.allocate(50_000) for _ in range(60)]  # of what is for large ones
    assert all(start + 6 * MB <= each.address < start + 12 * MB for each in small)
    assert here.stats().reserved == reserved
    del small
    parts[0].free()
    here.set_limit(None)
    assert here.allocate(12 * MB).address == start  # whole again


def test_small_blocks_leave_large_chunks_whole(here: CPUAllocator) -> None:
    large = here.allocate(50 * MB)
    address = large.address
    large.free()
    small = [here.allocate(200_000) for _ in range(100)]
    assert here.allocate(50 * MB).address == address
    assert not any(address <= each.address < address + 50 * MB for each in small)


def test_what_a_thread_has_at_hand_is_free(here: CPUAllocator) -> None:
    """Blocks that one thread takes and another frees, of sizes that are never wanted again."""
    before = here.stats()
    blocks = [here.allocate(100 + 300 * index) for index in range(1000)]
    at_hand: list[AllocatorStats] = []

    def free() -> None:
        while blocks:
            blocks.pop()
        at_hand.append(here.stats())

    thread = threading.Thread(target=free)
    thread.start()
    thread.join()
    for now in (*at_hand, here.stats()):
        assert (now.allocated, now.requested, now.blocks) == (
            before.allocated, before.requested, before.blocks
        )  # fmt: skip
        assert now.allocations - before.allocations == 1000


def test_emptying_the_cpu_s_cache(here: CPUAllocator) -> None:
    reserved = here.stats().reserved
    for size in (100, 100_000, 100 * MB):
        here.allocate(size).free()
    assert here.stats().reserved >= reserved + 100 * MB
    here.empty_cache()
    assert here.stats().reserved <= reserved
    here.reset_peak()
    assert here.stats().peak_reserved == here.stats().reserved


def test_a_forked_child_has_blocks_of_its_own(here: CPUAllocator) -> None:
    held = here.allocate(5 * MB)

    def check() -> bool:
        mine = [here.allocate(size) for size in (100, 100_000, 5 * MB)]
        for each in mine:
            ctypes.memset(each.address, 1, each.size)
        return all(each.address != held.address for each in mine)

    assert_in_child(check)
    driver, allocator = made()
    allocator._lock.acquire()  # as another thread would have it, that the child lacks
    assert_in_child(lambda: allocator.allocate(100).size == 100)
    allocator._lock.release()
    assert not driver.calls


def test_a_fork_while_threads_are_at_the_pool() -> None:
    """The child finds nobody in the pool, and what it notes whole."""
    allocate, give_back = workspaces().allocate, workspaces().give_back
    take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(allocate)
    back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(give_back)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            back(take(2 * MB))  # without the GIL

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for _ in range(20):
            assert_in_child(lambda: cpu_allocator().allocate(3 * MB).size == 3 * MB)
    finally:
        over.set()
        for each in threads:
            each.join()
