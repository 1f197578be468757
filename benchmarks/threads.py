"""What a parallel loop costs and gains on two threads, and what calling from several gains."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import minitvm
from benchmarks import callers, libgomp, peers
from benchmarks.measure import OURS, Row, Settings, Timer, calls, interleaved, kernel, on_threads
from minitvm import runtime, te, tir
from minitvm.runtime.module import Module
from minitvm.tir import ir_builder
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Var

_ONE = "one thread"
_SERIAL = "serial loop"
_ASLEEP = 0.002  # seconds without a region, after which the workers sleep
_ALL_ASLEEP = 0.02  # those of libgomp, too
_SHARED_BY_TORCH = 32_769  # elements: at::internal::GRAIN_SIZE and one more


def rows(settings: Settings) -> Iterator[Row]:
    """The latency of a region, the speed-up of loops, and what callers do to each other."""
    yield from _regions(settings)
    yield from _loops(settings)
    yield from _beside_others(settings)
    yield from callers.rows(settings)


# ---- Regions and loops ---------------------------------------------------------------------------


def _regions(settings: Settings) -> Iterator[Row]:
    """A region without work, its workers awake and asleep, on one thread, and torch's."""
    empty, nothing = _built(_almost_nothing, "parallel"), np.zeros(2, "float32")
    gomp, reason = libgomp.regions()
    missing = {"libgomp": reason} if gomp is None else {}
    awake = {OURS: on_threads(2, kernel(empty, nothing))}
    asleep = {OURS: on_threads(2, _after_a_rest(empty, nothing))}
    if gomp is not None:
        awake["libgomp"] = _seconds_of(gomp)
        asleep["libgomp"] = _after_a_rest(gomp, 1)
    what = (
        "two threads, a loop of two iterations that call abs; libgomp: a region that does nothing"
    )
    yield Row(
        "region, workers awake", what, interleaved(_rested(awake), settings), missing, None, 2
    )
    what += "; each call from Python after 2 ms of rest"
    yield Row("region, workers asleep", what, interleaved(asleep, settings), missing, None, 2)
    yield Row(
        "region, on one thread",
        "the same loop runs where it is",
        interleaved({OURS: on_threads(1, kernel(empty, nothing))}, settings),
    )
    if (torch := peers.peer("torch")) is not None:
        yield from _least_of_torch(torch, settings)


def _least_of_torch(torch: Any, settings: Settings) -> Iterator[Row]:
    """torch has no region that can be entered alone: of its cheapest operation the smallest size
    that two threads share, beside the same on one."""
    ours = _built(_ones, "parallel", "int8")
    mine, its = np.zeros(_SHARED_BY_TORCH, "int8"), torch.zeros(_SHARED_BY_TORCH, dtype=torch.int8)
    for threads in (2, 1):
        contenders = {
            OURS: on_threads(threads, calls(ours, mine)),
            "torch": peers.torch_on_threads(threads, calls(its.fill_, 1)),
        }
        yield Row(
            f"fill of 32 KiB + 1, threads: {threads}",
            "calls from Python; the smallest that torch shares among two threads; minitvm keeps it "
            "on one",
            interleaved(_rested(contenders), settings),
            threads=threads,
        )


def _loops(settings: Settings) -> Iterator[Row]:
    for name, write, size in (
        ("exp of 100,000 elements", _exponentials, 100_000),
        ("exp of 10,000 elements", _exponentials, 10_000),
        ("polynomial of 100,000 elements", _polynomial, 100_000),
    ):
        parallel, serial = _built(write, "parallel"), _built(write, "serial")
        y = np.random.default_rng(0).random(size, dtype=np.float32)
        contenders = {
            OURS: on_threads(2, kernel(parallel, y)),
            _ONE: on_threads(1, kernel(parallel, y)),
            _SERIAL: kernel(serial, y),
        }
        what = "y[i] = f(y[i]) in float32, minitvm on two threads"
        yield Row(name, what, interleaved(contenders, settings), threads=2)


def _beside_others(settings: Settings) -> Iterator[Row]:
    """A loop whose workers sleep, or share their cores with others that keep these busy."""
    exponentials = _built(_exponentials, "parallel")
    random = np.random.default_rng(0)
    small, large = random.random(10_000, np.float32), random.random(1_000_000, np.float32)
    threads = {OURS: 2, _ONE: 1}

    def on_both(timer: Timer) -> dict[str, Timer]:
        return {name: on_threads(number, timer) for name, number in threads.items()}

    yield Row(
        "exp of 10,000 elements, workers asleep",
        "each call from Python after 2 ms of rest",
        interleaved(on_both(_after_a_rest(exponentials, small)), settings),
        threads=2,
    )
    yield Row(
        "exp of 1,000,000 beside a process",
        "calls from Python; another process computes all the time",
        interleaved(on_both(_beside_a_process(calls(exponentials, large))), settings),
        threads=2,
    )
    if (torch := peers.peer("torch")) is None:
        return
    values = torch.zeros(large.size)

    def others() -> None:
        torch.exp(values, out=values)

    contenders = on_both(_after(others, exponentials, large))
    contenders["torch"] = _after(others, others)
    yield Row(
        "exp of 1,000,000 after torch's",
        "each call from Python after a parallel region of torch, whose threads spin for a while",
        interleaved(
            {name: peers.torch_on_threads(2, each) for name, each in contenders.items()}, settings
        ),
        threads=2,
    )


def _beside_a_process(timer: Timer) -> Timer:
    """Times beside a process that computes."""

    def timed(number: int) -> float:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                return timer(number)
            finally:
                other.kill()

    return timed


def _built(write: Callable[[Any, Any], None], kind: str, dtype: str = "float32") -> Module:
    """A function of one array, which `write` reads and writes at an index."""
    n, handle = Var("n"), Var("y", runtime.DType.of("handle"))
    buffer = decl_buffer((n,), dtype, "Y")
    builder = ir_builder.create()
    y = builder.buffer_ptr(buffer)
    with builder.for_range(0, n, kind=kind) as i:
        write(y, i)
    return minitvm.build(tir.PrimFunc((handle,), builder.get(), {handle: buffer}, "f"))


def _almost_nothing(y: Any, i: Any) -> None:
    y[i] = tir.call_extern("int32", "abs", i).astype("float32")


def _ones(y: Any, i: Any) -> None:
    y[i] = te.const(1, "int8")


def _exponentials(y: Any, i: Any) -> None:
    y[i] = te.exp(-y[i])


def _polynomial(y: Any, i: Any) -> None:
    value = y[i]
    for coefficient in range(16):
        value = value * y[i] + (1.0 / (1 + coefficient))
    y[i] = value * te.const(0.25, "float32")


def _seconds_of(repeated: Callable[[int], None]) -> Timer:
    """Times what repeats itself."""

    def timer(number: int) -> float:
        start = time.perf_counter()
        repeated(number)
        return time.perf_counter() - start

    return timer


def _after_a_rest(function: Callable[..., object], *args: Any) -> Timer:
    """Times calls of which each finds the workers asleep."""
    return _after(partial(time.sleep, _ASLEEP), function, *args)


def _after(before: Callable[[], object], function: Callable[..., object], *args: Any) -> Timer:
    """Times calls, without what comes before each."""

    def timer(number: int) -> float:
        seconds = 0.0
        for _ in range(number):
            before()
            start = time.perf_counter()
            function(*args)
            seconds += time.perf_counter() - start
        return seconds

    return timer


def _rested(contenders: Mapping[str, Timer]) -> dict[str, Timer]:
    """The contenders, each begun when the workers of the one before sleep: there are two cores."""

    def rested(timer: Timer) -> Timer:
        def run(number: int) -> float:
            time.sleep(_ALL_ASLEEP)
            return timer(number)

        return run

    return {name: rested(timer) for name, timer in contenders.items()}
