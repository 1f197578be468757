"""Random sequences of what an allocator can be asked for, against a model."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from minitvm.runtime.device import Device
from minitvm.runtime.device_api.allocator import Block, cpu_allocator
from minitvm.runtime.errors import DeviceError, DeviceMemoryError
from tests.runtime.simulated_memory import SimulatedMemory, allocator_of

DEVICE = Device(12, 0)
STREAMS = (None, "s", "t", "u")
Sizes = dict[str, int]


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINITVM_DEVICE_MEMORY_LIMIT", raising=False)


@dataclass
class Live:
    """A block in use: `low` to `high` in the device's memory, with what it was rounded up to."""

    block: Block
    number: int
    low: int
    high: int
    streams: set[str]


@dataclass
class Pending:
    """Memory that a stream works on until it is done with `position`."""

    low: int
    high: int
    stream: str
    position: int


class Model:
    """An allocator on a simulated device, and what has to be true of them."""

    def __init__(self, total: int, sizes: Sizes, has_streams: bool) -> None:
        self.driver = SimulatedMemory(total, sizes, has_streams)
        self.allocator = allocator_of(self.driver, DEVICE)
        least = sizes.get("min_chunk", 1)
        self.unit = least if least >= 16 else 256
        self.live: list[Live] = []
        self.pending: list[Pending] = []
        self.contents: dict[int, int] = {}  # of each unit of the device's memory: a block's number
        self.limit: int | None = None
        self.allocations = 0
        self.peak_allocated = 0
        self.peak_reserved = 0

    # ---- What is done ----------------------------------------------------------------------------

    def allocate(self, size: int, stream: str | None) -> None:
        """Expects a block that nobody has, or an error for a reason."""
        obtained = len(self.driver.obtained)
        try:
            block = self.allocator.allocate(size, stream)
        except DeviceMemoryError as error:
            self._check_refusal(self._rounded(size), str(error))
            return
        except DeviceError as error:
            assert "simulated" in str(error)
            return
        finally:
            self._note_peak(obtained)
        assert block.size == size
        if size == 0:
            assert block.address == 0
            return
        self.allocations += 1
        high = block.address + self._rounded(size)
        self._check_place(block.address, high, stream)
        known = {stream} if stream is not None and self.driver.has_streams else set()
        self.live.append(Live(block, self.allocations, block.address, high, known))
        self.write(-1)
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def write(self, index: int) -> None:
        """Fills a block with its number, on its streams."""
        if self.live:
            live = self.live[index % len(self.live)]
            for unit in range(live.low, live.high, self.unit):
                self.contents[unit] = live.number
            for stream in live.streams:
                self.driver.submit(stream)

    def use(self, index: int, stream: str | None) -> None:
        """A block is used on another stream, too."""
        if self.live:
            live = self.live[index % len(self.live)]
            live.block.record_stream(stream)
            if stream is not None and self.driver.has_streams:
                live.streams.add(stream)
                self.driver.submit(stream)

    def free(self, index: int, forget: bool) -> None:
        """Gives a block back, which has what was written."""
        if not self.live:
            return
        live = self.live.pop(index % len(self.live))
        found = {self.contents[unit] for unit in range(live.low, live.high, self.unit)}
        assert found == {live.number}
        for stream in live.streams:
            position = self.driver.stream(stream).given
            self.pending.append(Pending(live.low, live.high, stream, position))
        if not forget:
            self._try(live.block.free)
        del live

    def advance(self, stream: str, steps: int) -> None:
        """A stream does some of its work."""
        found = self.driver.stream(stream)
        found.done = min(found.given, found.done + steps)

    def fail(self, calls: int) -> None:
        self.driver.fail_after(calls)

    def empty_cache(self) -> None:
        self._try(self.allocator.empty_cache)

    def set_limit(self, limit: int | None) -> None:
        self._try(lambda: self.allocator.set_limit(limit))
        self.limit = self.allocator.limit
        assert self.limit == limit

    def release_stream(self, stream: str) -> None:
        destroyed: list[str] = []

        def destroy() -> None:
            self.driver.finish(stream)  # which waits until it is done
            destroyed.append(stream)

        self._try(lambda: self.allocator.release_stream(stream, destroy))
        while not destroyed:
            self._try(self.allocator.empty_cache)  # nobody uses the stream any more
        for live in self.live:
            live.streams.discard(stream)

    def reset_peak(self) -> None:
        self.allocator.reset_peak()
        self.peak_allocated, self.peak_reserved = self.allocated, self.driver.used

    def end(self) -> None:
        """All is given back."""
        self.driver.failing.clear()
        self.allocator.set_limit(None)
        while self.live:
            self.free(0, len(self.live) % 2 == 0)
        self.check()
        self.allocator.close()
        assert not self.driver.chunks
        assert not any(self.driver.events.values())
        stats = self.allocator.stats()
        assert (stats.allocated, stats.reserved, stats.chunks, stats.blocks) == (0, 0, 0, 0)

    # ---- What has to be true ---------------------------------------------------------------------

    @property
    def allocated(self) -> int:
        return sum(each.high - each.low for each in self.live)

    def check(self) -> None:
        """The statistics are exact."""
        stats = self.allocator.stats()
        used = self.driver.used
        assert stats.allocated == self.allocated
        assert stats.requested == sum(each.block.size for each in self.live)
        assert stats.blocks == len(self.live)
        assert stats.reserved == used
        assert stats.chunks == len(self.driver.chunks)
        assert stats.cached == used - self.allocated
        assert stats.allocations == self.allocations
        assert stats.device_allocations == len(self.driver.obtained)
        assert stats.peak_allocated == self.peak_allocated
        assert stats.peak_reserved == self.peak_reserved
        largest = max(self.gaps(), default=0)
        if self.driver.has_streams or self.allocator._retired:
            # What waits for a stream, or for a device that failed to take it back, isn't free.
            assert stats.largest_free <= largest
        else:
            assert stats.largest_free == largest
        lost = 1 - stats.largest_free / stats.cached if stats.cached else 0
        assert stats.fragmentation == lost

    def gaps(self) -> list[int]:
        """The sizes of what lies in chunks between blocks in use."""
        blocks = sorted((each.low, each.high) for each in self.live)
        found = []
        for start, size in self.driver.chunks.items():
            at = start
            for low, high in blocks:
                if start <= low < start + size:
                    found.append(low - at)
                    at = high
            found.append(start + size - at)
        return found

    def _rounded(self, size: int) -> int:
        padded = size + self.driver.sizes.get("padding", 0)
        return -(-padded // self.unit) * self.unit

    def _note_peak(self, obtained: int) -> None:
        """After chunks were asked for, of which the last one counts: the cache went before."""
        if len(self.driver.obtained) > obtained:
            self.peak_reserved = max(self.peak_reserved, self.driver.used)
            assert self.limit is None or self.driver.used <= self.limit

    def _check_place(self, low: int, high: int, stream: str | None) -> None:
        """Memory of the device, that no block has, and no other stream works on."""
        chunks = self.driver.chunks.items()
        assert any(at <= low and high <= at + size for at, size in chunks)
        assert all(each.high <= low or high <= each.low for each in self.live)
        streams = self.driver.streams
        self.pending = [p for p in self.pending if streams[p.stream].done < p.position]
        for each in self.pending:
            assert each.stream == stream or each.high <= low or high <= each.low

    def _check_refusal(self, needed: int, message: str) -> None:
        """Nothing could have been done: streams have been waited for, and the cache is empty."""
        assert message.startswith("ext_dev(0): expected ")
        sizes = self.driver.sizes
        if needed > sizes.get("max_alloc", needed):
            return
        most = min(self.driver.total, self.driver.total if self.limit is None else self.limit)
        assert self.driver.used + needed > most
        if needed <= sizes.get("max_chunk", needed):
            assert max(self.gaps(), default=0) < needed

    def _try(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except DeviceError as error:
            assert "simulated" in str(error)
            return False
        return True


DEVICES = st.fixed_dictionaries(
    {},
    optional={
        "min_chunk": st.sampled_from([1, 16, 512, 1000]),
        "max_chunk": st.integers(1000, 20_000),
        "max_alloc": st.integers(5000, 100_000),
        "padding": st.sampled_from([0, 1, 32]),
        "init": st.integers(1, 50_000),
        "realloc": st.integers(1, 50_000),
    },
)
REQUESTS = st.one_of(st.integers(0, 3000), st.integers(0, 30_000))
NUMBERS = st.integers(0, 1000)


class Allocations(RuleBasedStateMachine):
    """Hypothesis' choice of steps."""

    @initialize(
        total=st.integers(1000, 200_000), sizes=DEVICES, has_streams=st.sampled_from([True, False])
    )
    def begin(self, total: int, sizes: Sizes, has_streams: bool) -> None:
        self.model = Model(total, sizes, has_streams)

    @rule(size=REQUESTS, stream=st.sampled_from(STREAMS))
    def allocate(self, size: int, stream: str | None) -> None:
        self.model.allocate(size, stream)

    @rule(sizes=st.lists(REQUESTS, max_size=8), stream=st.sampled_from(STREAMS))
    def allocate_some(self, sizes: list[int], stream: str | None) -> None:
        for size in sizes:
            self.model.allocate(size, stream)

    @precondition(lambda self: self.model.live)
    @rule(index=NUMBERS, forget=st.booleans())
    def free(self, index: int, forget: bool) -> None:
        self.model.free(index, forget)

    @precondition(lambda self: self.model.live)
    @rule(index=NUMBERS)
    def write(self, index: int) -> None:
        self.model.write(index)

    @precondition(lambda self: self.model.live)
    @rule(index=NUMBERS, stream=st.sampled_from(STREAMS))
    def use(self, index: int, stream: str | None) -> None:
        self.model.use(index, stream)

    @rule(stream=st.sampled_from(STREAMS[1:]), steps=st.integers(1, 20))
    def advance(self, stream: str, steps: int) -> None:
        self.model.advance(stream, steps)

    @rule(calls=st.integers(0, 5))
    def fail(self, calls: int) -> None:
        self.model.fail(calls)

    @rule()
    def empty_cache(self) -> None:
        self.model.empty_cache()

    @rule(limit=st.none() | st.integers(0, 200_000))
    def set_limit(self, limit: int | None) -> None:
        self.model.set_limit(limit)

    @rule(stream=st.sampled_from(STREAMS[1:]))
    def release_stream(self, stream: str) -> None:
        self.model.release_stream(stream)

    @rule()
    def reset_peak(self) -> None:
        self.model.reset_peak()

    @invariant()
    def check(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.end()


TestAllocations: Any = Allocations.TestCase
TestAllocations.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def check_operations(operations: int, seed: int) -> None:
    """Many steps on one device, which fills and empties now and then."""
    draw = random.Random(seed)
    sizes = {"min_chunk": 512, "max_chunk": 30_000, "init": 100_000, "realloc": 50_000}
    model = Model(1_000_000, {**sizes, "padding": draw.choice([0, 32])}, True)
    for step in range(operations):
        filling = (step // 500) % 2
        kind = draw.choices(
            ("allocate", "free", "use", "advance", "write", "fail", "empty", "limit", "stream"),
            (50 if filling else 30, 30 if filling else 50, 3, 20, 5, 1, 0.3, 0.3, 0.1),
        )[0]
        if kind == "allocate":
            most = draw.choice([600, 3000, 40_000])
            model.allocate(draw.randint(0, most), draw.choice(STREAMS))
        elif kind == "free":
            model.free(draw.randrange(1000), draw.random() < 0.5)
        elif kind == "use":
            model.use(draw.randrange(1000), draw.choice(STREAMS))
        elif kind == "advance":
            model.advance(draw.choice(STREAMS[1:]) or "", draw.randint(1, 30))
        elif kind == "write":
            model.write(draw.randrange(1000))
        elif kind == "fail":
            model.fail(draw.randint(0, 5))
        elif kind == "empty":
            model.empty_cache()
        elif kind == "limit":
            model.set_limit(draw.choice([None, None, 300_000, 800_000]))
        else:
            model.release_stream(draw.choice(STREAMS[1:]) or "")
        if step % 10 == 0:
            model.check()
    model.end()


def test_two_thousand_operations() -> None:
    check_operations(2000, 0)


@pytest.mark.wide
def test_a_hundred_thousand_operations() -> None:
    for seed in range(4):
        check_operations(25_000, seed)
    check_operations(100_000, 4)


# ---- Threads -------------------------------------------------------------------------------------


def at_once(work: Callable[[int, Callable[[], bool]], None], seconds: float) -> None:
    """`work` on eight threads, told its number, until it is told that time is up."""
    end = time.monotonic() + seconds
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number, lambda: time.monotonic() < end and not failed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(seconds + 60)
    assert not any(each.is_alive() for each in threads)
    if failed:
        raise failed[0]


def check_on_a_device(seconds: float) -> None:
    sizes = {"min_chunk": 512, "max_chunk": 30_000, "init": 100_000, "realloc": 50_000}
    driver = SimulatedMemory(600_000, sizes)
    allocator = allocator_of(driver, DEVICE)
    owners: dict[int, int] = {}  # of each unit

    def work(number: int, goes_on: Callable[[], bool]) -> None:
        draw = random.Random(number)
        held: list[Block] = []

        def units(block: Block) -> range:
            return range(block.address, block.address + block.size, 512)

        def free_one() -> None:
            block = held.pop(draw.randrange(len(held)))
            for unit in units(block):
                assert owners.pop(unit) == number
            block.free()

        while goes_on():
            if draw.random() < 0.5 and len(held) < 10:
                try:
                    stream = draw.choice((None, f"s{number}", "s"))
                    block = allocator.allocate(draw.choice((100, 5000, 40_000)), stream)
                except DeviceMemoryError:
                    while held:
                        free_one()
                    continue
                for unit in units(block):
                    assert owners.setdefault(unit, number) == number
                held.append(block)
            elif held:
                free_one()
            elif draw.random() < 0.01:
                allocator.empty_cache()
            driver.submit("s")

        while held:
            free_one()

    at_once(work, seconds)
    allocator.close()
    assert not driver.chunks
    stats = allocator.stats()
    assert (stats.allocated, stats.requested, stats.blocks, stats.reserved) == (0, 0, 0, 0)


def check_on_the_cpu(seconds: float) -> None:
    """Blocks that are filled, and that other threads look at and free."""
    allocator = cpu_allocator()
    before = allocator.stats()
    passed: list[tuple[Block, int]] = []
    marks = itertools.count(1)

    def check(block: Block, mark: int) -> None:
        expected = bytes((mark % 256,)) * block.size
        assert ctypes.string_at(block.address, block.size) == expected

    def work(number: int, goes_on: Callable[[], bool]) -> None:
        draw = random.Random(number)
        while goes_on():
            block = allocator.allocate(draw.choice((100, 3000, 70_000, 3_000_000)))
            mark = next(marks)
            ctypes.memset(block.address, mark % 256, block.size)
            passed.append((block, mark))
            if len(passed) > 30:
                try:
                    check(*passed.pop(draw.randrange(10)))
                except IndexError:
                    continue
            if draw.random() < 0.01:
                allocator.empty_cache()

    at_once(work, seconds)
    while passed:
        check(*passed.pop())
    now = allocator.stats()
    for name in ("allocated", "requested", "blocks"):
        assert getattr(now, name) == getattr(before, name)


@pytest.mark.parametrize("check", [check_on_a_device, check_on_the_cpu])
def test_eight_threads(check: Callable[[float], None]) -> None:
    check(0.7)


@pytest.mark.wide
@pytest.mark.parametrize("check", [check_on_a_device, check_on_the_cpu])
def test_eight_threads_for_a_minute(check: Callable[[float], None]) -> None:
    check(60)
