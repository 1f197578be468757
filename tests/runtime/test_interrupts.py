"""Callbacks that end before their first line, between two lines or after their last: by a signal,
by an exception that another thread sets, or for want of stack. A call either gives the right
result, and has run each callback, or raises what was raised: nothing is lost on the way."""

from __future__ import annotations

import ctypes
import functools
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime import PackedFunc

COUNT = 12  # callbacks in a call


class Interrupted(BaseException):
    """What the signal raises."""


class Counted:
    """The callback, and how often it has run."""

    def __init__(self) -> None:
        self.calls = 0

    def next(self, i: int) -> int:
        self.calls += 1
        return COUNT - 1 - i


counted = Counted()


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    tvm.register_func("interrupts.next", counted.next, override=True)
    tvm.register_func("interrupts.gather", lambda i: inner(i), override=True)
    yield
    tvm.remove_global_func("interrupts.next")
    tvm.remove_global_func("interrupts.gather")


@functools.cache
def gather(name: str = "interrupts.next", kind: str = "serial") -> Any:
    """``f(A, B)``: ``B[i] = A[callback(i)]``."""
    a = te.placeholder((COUNT,), "int32", name="A")

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, COUNT, name="i", kind=kind) as i:
            target[i] = source[tvm.call_packed(name, i)]
        return ib.get()

    b = te.extern((COUNT,), [a], body, dtype="int32", name="B")
    return tvm.build(te.create_schedule(b.op), [a, b], name="gather")


SOURCE = np.arange(100, 100 + COUNT, dtype="int32")
REVERSED = SOURCE[::-1].copy()
READ_ONLY = SOURCE.copy()
READ_ONLY.flags.writeable = False


def inner(i: int) -> int:
    """A callback that calls the compiled function itself."""
    out = np.full(COUNT, -1, "int32")
    gather()(SOURCE, out)
    np.testing.assert_array_equal(out, REVERSED)
    return COUNT - 1 - i


def check_gather(source: Any, name: str = "interrupts.next", kind: str = "serial") -> None:
    before, out = counted.calls, np.full(COUNT, -1, "int32")
    gather(name, kind)(source, out)
    assert list(out) == list(REVERSED)
    assert counted.calls - before == (COUNT if name == "interrupts.next" else COUNT * COUNT)


PACKED = PackedFunc(counted.next)


def check_packed() -> None:
    before = counted.calls
    assert [PACKED(i) for i in range(3)] == [COUNT - 1, COUNT - 2, COUNT - 3]
    assert counted.calls == before + 3


@functools.cache
def copy_columns() -> Any:
    """A function whose check of two arrays that interleave asks Python."""
    n = te.var("n")
    a = te.placeholder((n, n), "int32", name="A")
    b = te.compute((n, n), lambda i, j: a[i, j] + 1, name="B")
    return tvm.build(te.create_schedule(b.op), [a, b], name="columns")


def check_apart() -> None:
    memory = np.zeros((4, 8), "int32")
    copy_columns()(memory[:, :4], memory[:, 4:])
    assert memory[:, 4:].sum() == 16


def check_overlapping() -> None:
    memory = np.zeros((4, 8), "int32")
    with pytest.raises(ValueError, match="expected an output that shares no memory"):
        copy_columns()(memory[:, :4], memory[:, 3:7])
    assert not memory.any()


def check_values() -> None:
    """A dtype goes by a dictionary, which asks Python whether it is the same."""
    keep = PackedFunc(lambda x: x)
    assert keep(tvm.runtime.DType.of("float32x4")) == tvm.runtime.DType.of("float32x4")


def check_evaluator() -> None:
    before, out = counted.calls, np.full(COUNT, -1, "int32")
    gather().time_evaluator(number=4)(SOURCE, out)
    assert list(out) == list(REVERSED)
    assert counted.calls == before + 5 * COUNT


ROUTES: dict[str, Callable[[], None]] = {
    "compiled path": lambda: check_gather(SOURCE),
    "python path": lambda: check_gather(READ_ONLY),
    "parallel": lambda: check_gather(SOURCE, kind="parallel"),
    "nested": lambda: check_gather(SOURCE, "interrupts.gather"),
    "packed function": check_packed,
    "arrays apart": check_apart,
    "arrays that overlap": check_overlapping,
    "values": check_values,
    "evaluator": check_evaluator,
}


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """What is raised while garbage is collected is printed and dropped, and finalizers of other
    tests' objects may not survive it."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    yield
    if collects:
        gc.enable()


class Alarm:
    """Counts the signals whose handler has raised."""

    raised = 0

    def __call__(self, *_: object) -> None:
        self.raised += 1
        raise Interrupted


def interrupt_at_random(check: Callable[[], None], times: int, seed: int) -> int:
    """Has signals end `check` so many times, at random moments; how many came out."""
    alarm, seen, draw = Alarm(), 0, random.Random(seed)
    check()
    began = time.perf_counter()
    check()
    longest = 1.5 * (time.perf_counter() - began)
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        while alarm.raised < times:
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, longest))
                check()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                seen += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == alarm.raised
    return seen


@pytest.mark.parametrize("route", ROUTES)
def test_a_signal_is_never_lost(route: str) -> None:
    times = 10 if route == "nested" else 60
    assert interrupt_at_random(ROUTES[route], times, seed=1) == times


@pytest.mark.wide
@pytest.mark.parametrize("route", ROUTES)
def test_thousands_of_signals_are_never_lost(route: str) -> None:
    assert interrupt_at_random(ROUTES[route], 5000, seed=2) == 5000


@pytest.mark.parametrize("route", ["compiled path", "python path", "nested", "packed function"])
def test_what_another_thread_raises_is_never_lost(route: str) -> None:
    """Python raises it before the next instruction, in whatever thread it was meant for."""
    found: list[BaseException | str] = []
    asked, seen, wanted = 0, 0, 30
    at_work, stop = threading.Event(), threading.Event()

    def work() -> None:
        nonlocal seen
        while not stop.is_set():
            try:
                at_work.set()
                while not stop.is_set():
                    ROUTES[route]()
            except Interrupted:
                seen += 1
            except BaseException as error:
                found.append(error)
                return

    thread = threading.Thread(target=work)
    thread.start()
    draw = random.Random(3)
    set_exception = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
        ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
    )
    try:
        while asked < wanted and thread.is_alive():
            assert at_work.wait(10)
            at_work.clear()
            time.sleep(draw.uniform(0, 1e-3))
            asked += set_exception(thread.ident or 0, Interrupted)
            until = time.monotonic() + 30
            while seen < asked and thread.is_alive() and time.monotonic() < until:
                time.sleep(0)
            assert seen == asked or not thread.is_alive(), "an exception was lost"
    finally:
        stop.set()
        thread.join()
    assert not found
    assert seen == asked == wanted


def call_at_depth(depth: int, check: Callable[[], None]) -> None:
    if depth:
        call_at_depth(depth - 1, check)
    else:
        check()


def frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.mark.parametrize("route", ROUTES)
def test_a_stack_that_ends_anywhere_gives_no_wrong_result(route: str) -> None:
    check = ROUTES[route]
    check()
    limit, room = sys.getrecursionlimit(), 130
    outcomes = set()
    sys.setrecursionlimit(frames() + room + 5)
    try:
        for depth in range(0, room, 3 if route == "nested" else 1):
            try:
                call_at_depth(depth, check)
                outcomes.add("right")
            except RecursionError:
                outcomes.add("refused")
    finally:
        sys.setrecursionlimit(limit)
    assert outcomes == {"right", "refused"}


def test_a_loan_ends_whatever_ends_the_callback() -> None:
    """A lent array that is kept is refused, though the callback was ended in its first or last
    instruction: the memory may be gone."""
    kept: list[Any] = []
    keep = PackedFunc(kept.append)

    def check() -> None:
        keep(SOURCE)

    for seed in range(4, 9):  # on a busy machine few calls get as far as the callback
        interrupt_at_random(check, 150, seed)
        if len(kept) > 10:
            break
    assert len(kept) > 10
    for lent in kept:
        with pytest.raises(ValueError, match="lent to a callback for one call, which has returned"):
            lent.numpy()


def test_results_of_an_outer_call_outlive_an_inner_one_that_is_interrupted() -> None:
    """Compiled code holds addresses of what callbacks returned; the inner call, whatever ends it,
    leaves them to the outer one."""
    text = "x" * 100

    def check() -> None:
        returned: list[Any] = []

        def make() -> str:
            return text + str(len(returned))

        def end(first: str) -> None:
            returned.append(first)

        first = PackedFunc(make)
        for _ in range(3):
            PackedFunc(lambda: end(first()))()
        assert returned == [text + str(i) for i in range(3)]

    interrupt_at_random(check, 50, seed=5)
