"""Kernels without the GIL: when it is released, and that whatever happens then comes back right."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from minitvm import (
    CompileError,
    KernelError,
    build,
    num_threads,
    register_func,
    remove_global_func,
    te,
    tir,
)
from minitvm.runtime.errors import LayoutError
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Var
from minitvm.tir.stmt import AssertStmt, PrimFunc
from tests.tir.programs import built

n, fd = Var("n"), Var("fd")
X, Y = decl_buffer((n,), "float32", "X"), decl_buffer((n,), "float32", "Y")
HELD = decl_buffer((1,), "int32", "held")
# `PyGILState_Check` by a name that doesn't tell that it is a function of Python.
PROBE = """
declare i32 @PyGILState_Check()
define i32 @probe() {
  %held = call i32 @PyGILState_Check()
  ret i32 %held
}
"""


@pytest.fixture(autouse=True)
def no_deadlock() -> Iterator[None]:
    """A thread that waits for what happens in another ends the process if that never happens."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def callback() -> Iterator[Callable[[Callable[..., Any]], str]]:
    """Registers a function, under a name that it returns, for the time of a test."""
    names: list[str] = []

    def register(function: Callable[..., Any]) -> str:
        names.append(f"minitvm.test.gil.{len(names)}")
        register_func(names[-1], function)
        return names[-1]

    yield register
    for name in names:
        remove_global_func(name)


def probing(extent: Any) -> PrimFunc:
    """Writes whether the GIL is held; beside some work."""

    def probe(ib: Any, held: Any, y: Any) -> None:
        ib.scope_attr(None, "pragma_import_llvm", PROBE)
        held[0] = tir.call_extern("int32", "probe")
        with ib.for_range(0, extent) as i:
            y[i] = y[i] * 2.0 + 1.0

    return built(probe, HELD, Y)


def is_held(kernel: Any, size: int) -> bool:
    held, y = np.full(1, -1, "int32"), np.zeros(size, "float32")
    kernel(held, y)
    assert (y == 1).all()
    return bool(held[0])


# -- Whether it is released -----------------------------------------------------------------------

LARGE = 2_000_000  # iterations of `probing`, above the limit


@pytest.mark.parametrize(
    ("asked", "held_small", "held_large"),
    [(None, True, False), (True, False, False), (False, True, True)],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_when_it_is_released(
    asked: bool | None, held_small: bool, held_large: bool, symbolic: bool
) -> None:
    for size, held in ((3, held_small), (LARGE, held_large)):
        kernel = build(probing(n if symbolic else size), release_gil=asked)
        assert is_held(kernel, size) == held


def test_sizes_decide_at_the_call() -> None:
    kernel = build(probing(n))
    assert [is_held(kernel, size) for size in (LARGE, 0, LARGE, 1)] == [False, True, False, True]


def test_what_is_never_released_has_no_code_for_it() -> None:
    small = build(probing(3))
    assert "PyEval" not in small.get_source("ll")
    assert "PyEval_SaveThread" in build(probing(LARGE)).get_source("ll")


def test_strided_variants_release_it_too() -> None:
    kernel = build(probing(n))
    y, held = np.zeros(2 * LARGE, "float32"), np.full(1, -1, "int32")
    kernel(held, y[::2])
    assert held[0] == 0
    assert y[::2].all()
    assert not y[1::2].any()


def test_callbacks_keep_it_unless_asked(callback: Any) -> None:
    """Each callback would wait for the GIL; whoever wants that says so."""
    name = callback(lambda: 0)

    def write(ib: Any, held: Any, y: Any) -> None:
        ib.scope_attr(None, "pragma_import_llvm", PROBE)
        ib.emit(tir.call_packed(name))
        held[0] = tir.call_extern("int32", "probe")
        with ib.for_range(0, n) as i:
            y[i] = 1.0

    func = built(write, HELD, Y)
    assert is_held(build(func), 5_000_000)
    assert not is_held(build(func, release_gil=True), 3)


def test_functions_of_python_keep_it() -> None:
    def write(ib: Any, held: Any, y: Any) -> None:
        held[0] = tir.call_extern("int32", "PyGILState_Check")
        with ib.for_range(0, n) as i:
            y[i] = 1.0

    func = built(write, HELD, Y)
    assert is_held(build(func), 5_000_000)
    assert is_held(build(func, release_gil=False), 5)
    with pytest.raises(
        CompileError,
        match=r"^write: release_gil=True: expected no call of Python's C API, which needs the GIL, "
        r"got a call of 'PyGILState_Check': leave release_gil out$",
    ):
        build(func, release_gil=True)


@pytest.mark.parametrize("asked", [1, 0, "yes"])
def test_what_may_be_asked(asked: Any) -> None:
    text = rf"^build: expected release_gil to be True, False or None, got {asked!r}$"
    with pytest.raises(CompileError, match=text):
        build(probing(3), release_gil=asked)


# -- Other threads run ----------------------------------------------------------------------------


def reading() -> PrimFunc:
    """Reads 4 bytes of a pipe, as long as that takes, and doubles the number in them."""

    def read(ib: Any, y: Any) -> None:
        size = te.const(4, "int64")
        ib.emit(tir.call_extern("int64", "read", fd, number.access_ptr("w"), size))
        y[0] = y[0] * 2

    number = decl_buffer((1,), "int32", "number")
    func = built(read, number)
    return PrimFunc((fd, *func.params), func.body, func.buffer_map, "read")


def test_another_thread_runs_meanwhile() -> None:
    """What the kernel waits for comes from a thread of Python that needs the GIL."""
    kernel, found = build(reading(), release_gil=True), np.zeros(1, "int32")
    reader, writer = os.pipe()
    about_to_call = threading.Event()

    def answer() -> None:
        about_to_call.wait()
        os.write(writer, np.int32(21).tobytes())

    thread = threading.Thread(target=answer)
    thread.start()
    about_to_call.set()
    kernel(reader, found)
    thread.join()
    assert found[0] == 42


def test_many_kernels_are_at_work_at_once() -> None:
    """Each waits for what the next has done: all must be there before the first can end."""
    kernel, count = build(reading(), release_gil=True), 8
    pipes = [os.pipe() for _ in range(count)]
    found = np.zeros((count, 1), "int32")

    def call(i: int) -> None:
        kernel(pipes[i][0], found[i])
        if i:
            os.write(pipes[i - 1][1], found[i].tobytes())

    callers = [threading.Thread(target=call, args=(i,)) for i in range(count)]
    for each in callers:
        each.start()
    os.write(pipes[-1][1], np.int32(1).tobytes())
    for each in callers:
        each.join()
    assert found[:, 0].tolist() == [2 ** (count - i) for i in range(count)]


def test_arrays_live_while_a_kernel_runs() -> None:
    """Nobody but the call has the array that the kernel is about to write."""
    kernel, found = build(reading(), release_gil=True), np.zeros(1, "int32")
    reader, writer = os.pipe()
    gone = threading.Event()
    weakref.finalize(found, gone.set)
    arrays = [found]
    del found

    def call() -> None:
        kernel(reader, arrays.pop())

    thread = threading.Thread(target=call)
    thread.start()
    while arrays:
        time.sleep(0.001)
    gc.collect()
    assert not gone.is_set()
    os.write(writer, np.int32(21).tobytes())
    thread.join()
    assert gone.is_set()


# -- What goes wrong without the GIL --------------------------------------------------------------


@pytest.mark.parametrize("kind", [KernelError, IndexError, MemoryError, ValueError])
@pytest.mark.parametrize("parallel", ["serial", "parallel"])
def test_assertions(kind: type[Exception], parallel: str) -> None:
    def write(ib: Any, x: Any, y: Any) -> None:
        with ib.for_range(0, n, kind=parallel) as i:
            ib.emit(lambda b: AssertStmt(x[i] >= 0.0, "x[{}] < 0", b, (i,), kind.__name__))
            y[i] = x[i] * 2.0

    kernel = build(built(write, X, Y), release_gil=True)
    x = np.ones(100_000, "float32")
    y = np.empty_like(x)
    kernel(x, y)
    x[[70_000, 90_000]] = -1.0
    for _ in range(10):
        with pytest.raises(kind, match=r"x\[70000\] < 0"):
            kernel(x, y)
    x[:] = 3.0
    kernel(x, y)
    assert (y == 6.0).all()


def test_wrong_arguments() -> None:
    kernel = build(probing(n), release_gil=True)
    held, y = np.zeros(1, "int32"), np.zeros(3, "float32")
    for args, kind, text in (
        ((held,), TypeError, "expected 2 arguments"),
        ((y, y), TypeError, "expected dtype int32"),
        ((np.zeros(2, "int32"), y), ValueError, "expected shape"),
        ((held, held.view("float32")), ValueError, "shares no memory"),
    ):
        with pytest.raises(kind, match=text):
            kernel(*args)
    assert not is_held(kernel, 3)


class Oops(Exception):
    pass


def calling(name: str) -> PrimFunc:
    def call(ib: Any, y: Any) -> None:
        scratch = ib.allocate("float32", (100_000,), "scratch")
        scratch[0] = 1.0
        with ib.for_range(0, n) as i:
            ib.emit(tir.call_packed(name, i))
            y[i] = scratch[0]

    return built(call, Y)


@pytest.mark.parametrize(
    "error", [Oops("mine"), KernelError("k"), LayoutError("l"), KeyboardInterrupt()], ids=repr
)
def test_exceptions_of_callbacks(callback: Any, error: BaseException) -> None:
    """The very object comes out, with its traceback; its thread may go on."""

    def fail(i: int) -> None:
        if i == 2:
            raise error

    kernel = build(calling(callback(fail)), release_gil=True)
    for _ in range(3):
        y = np.zeros(4, "float32")
        with pytest.raises(type(error)) as caught:
            kernel(y)
        assert caught.value is error
        assert caught.traceback[-1].name == "fail"
        assert y.tolist() == [1, 1, 0, 0]


def test_callbacks_of_many_threads(callback: Any) -> None:
    """Each exception reaches the thread whose callback raised it."""
    mine = threading.local()

    def note(i: int) -> None:
        mine.seen.append(i)
        if i == mine.last:
            raise mine.error

    kernel, wrong = build(calling(callback(note)), release_gil=True), []

    def caller(number: int) -> None:
        for last in range(50):
            mine.seen, mine.last, mine.error = [], last % 7, Oops(number, last)
            y = np.zeros(7, "float32")
            try:
                kernel(y)
            except Oops as error:
                if error is mine.error and mine.seen == list(range(last % 7 + 1)):
                    continue
            wrong.append((number, last))

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


def test_kernels_in_callbacks_of_kernels(callback: Any) -> None:
    """Three deep, with and without the GIL by turns; the innermost one raises at last."""
    probe = build(probing(n), release_gil=True)
    depths: list[int] = []

    def descend(i: int) -> None:
        depths.append(len(depths))
        if len(depths) == len(kernels):
            assert not is_held(probe, 3)
            raise Oops("at the bottom")
        kernels[len(depths)](np.zeros(2, "float32"))

    func = calling(callback(descend))
    kernels = [build(func, release_gil=asked) for asked in (True, False, True, True)]
    for _ in range(3):
        depths.clear()
        with pytest.raises(Oops, match="at the bottom"):
            kernels[0](np.zeros(2, "float32"))
        assert depths == [0, 1, 2, 3]


# -- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, though the process was started with it ignored, as
    shells start what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("asked", [True, False])
def test_an_interrupt_waits_for_the_kernel(threads: int, asked: bool) -> None:
    """The signal comes while the kernel runs: it ends first, and another call goes well."""
    pid, number = Var("pid"), Var("signal")

    def interrupted(ib: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel") as i:
            with ib.if_scope(tir.all(i == n // 2, number > 0)):
                ib.emit(tir.call_extern("int32", "kill", pid, number))
            y[i] = y[i] * 2.0 + 1.0

    func = built(interrupted, Y)
    func = PrimFunc((pid, number, *func.params), func.body, func.buffer_map, "interrupted")
    kernel, y = build(func, release_gil=asked), np.zeros(100_000, "float32")
    with num_threads(threads):
        for _ in range(5):
            y[:] = 0
            with pytest.raises(KeyboardInterrupt):
                kernel(os.getpid(), signal.SIGINT, y)
                time.sleep(60)
            assert (y == 1).all()
            kernel(os.getpid(), 0, y)
            assert (y == 3).all()
