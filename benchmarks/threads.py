"""What a parallel loop costs, and what it gains: two threads against one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import minitvm
from benchmarks.measure import OURS, Row, Settings, Timer, interleaved, kernel, on_threads
from minitvm import ir_builder, runtime, te, tir
from minitvm.buffer import decl_buffer
from minitvm.expr import Var
from minitvm.runtime.module import Module

_ONE = "one thread"
_SERIAL = "serial loop"
_ASLEEP = 0.002  # seconds without a region, after which the workers sleep


def rows(settings: Settings) -> Iterator[Row]:
    """The latency of a region, its workers awake and asleep, and the speed-up of loops."""
    empty, nothing = _built(_almost_nothing, "parallel"), np.zeros(2, "float32")
    what = "a loop of two iterations that call abs; one thread runs it where it is"
    contenders = {
        OURS: on_threads(2, kernel(empty, nothing)),
        _ONE: on_threads(1, kernel(empty, nothing)),
    }
    yield Row("region, workers awake", what, interleaved(contenders, settings), threads=2)
    contenders = {OURS: on_threads(2, _after_a_rest(empty, nothing)),
                  _ONE: on_threads(1, _after_a_rest(empty, nothing))}  # fmt: skip
    what += "; each call from Python after 2 ms of rest"
    yield Row("region, workers asleep", what, interleaved(contenders, settings), threads=2)
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


def _built(write: Callable[[Any, Any], None], kind: str) -> Module:
    """A function of one array, which `write` reads and writes at an index."""
    n, handle = Var("n"), Var("y", runtime.DType.of("handle"))
    buffer = decl_buffer((n,), "float32", "Y")
    builder = ir_builder.create()
    y = builder.buffer_ptr(buffer)
    with builder.for_range(0, n, kind=kind) as i:
        write(y, i)
    return minitvm.build(tir.PrimFunc((handle,), builder.get(), {handle: buffer}, "f"))


def _almost_nothing(y: Any, i: Any) -> None:
    y[i] = tir.call_extern("int32", "abs", i).astype("float32")


def _exponentials(y: Any, i: Any) -> None:
    y[i] = te.exp(-y[i])


def _polynomial(y: Any, i: Any) -> None:
    value = y[i]
    for coefficient in range(16):
        value = value * y[i] + (1.0 / (1 + coefficient))
    y[i] = value * te.const(0.25, "float32")


def _after_a_rest(function: Module, *args: Any) -> Timer:
    """Times calls of which each finds the workers asleep."""

    def timer(number: int) -> float:
        seconds = 0.0
        for _ in range(number):
            time.sleep(_ASLEEP)
            start = time.perf_counter()
            function(*args)
            seconds += time.perf_counter() - start
        return seconds

    return timer
