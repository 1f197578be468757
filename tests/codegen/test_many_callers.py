"""Kernels called by many threads and processes at once, beside forks and other libraries' threads.

What is asserted are results: every call is checked, whichever thread made it, and when.
"""

from __future__ import annotations

import concurrent.futures
import faulthandler
import gc
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import build, register_func, remove_global_func, te, tir
from minitvm.codegen import machine_code
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Var
from minitvm.tir.stmt import PrimFunc
from tests.forks import assert_in_child
from tests.processes import run_python
from tests.tir.programs import built

n, fd = Var("n"), Var("fd")
X, Y = decl_buffer((n,), "float32", "X"), decl_buffer((n,), "float32", "Y")
CALLERS = 16
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Of the pool; and who waits for ever ends the process."""
    faulthandler.dump_traceback_later(200, exit=True)
    before = minitvm.num_threads()
    minitvm.set_num_threads(3)
    yield
    minitvm.set_num_threads(before)
    faulthandler.cancel_dump_traceback_later()


def staged() -> PrimFunc:
    """``y = 2 x + 1``, by way of a workspace, in two parallel loops."""

    def write(ib: Any, x: Any, y: Any) -> None:
        between = ib.allocate("float32", (n,), "between")
        with ib.for_range(0, n, kind="parallel") as i:
            between[i] = x[i] * 2.0
        with ib.for_range(0, n, kind="parallel") as i:
            y[i] = between[n - 1 - i]
        with ib.for_range(0, n, kind="parallel") as i:
            between[i] = y[n - 1 - i] + 1.0
        with ib.for_range(0, n, kind="parallel") as i:
            y[i] = between[i]

    return built(write, X, Y)


def is_right(kernel: Any, size: int, seed: int = 0, step: int = 1) -> bool:
    """Whether a kernel of :func:`staged` is right on new arrays."""
    x = np.random.default_rng(seed).random(size * abs(step), dtype="float32")[::step]
    y = np.zeros(size * abs(step), "float32")
    kernel(x, y[::step])
    return bool((y[::step] == x * 2 + 1).all() and np.count_nonzero(y) == size)


def at_once(*functions: Callable[[], None]) -> None:
    """All of them, each in a thread of its own; what one raises comes out."""
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        start.wait()
        function()

    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        for each in [pool.submit(run, function) for function in functions]:
            each.result()


# -- Threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [True, False, None])
def test_thousands_of_calls(asked: bool | None) -> None:
    """Regions, inline ones where the workers are taken, and workspaces of many sizes."""
    kernel = build(staged(), release_gil=asked)

    def caller(number: int) -> Callable[[], None]:
        def call() -> None:
            for turn in range(400):
                size = 1 + (turn * 37 + number * 1009) % 5000 + 20_000 * (turn % 10 == 0)
                assert is_right(kernel, size, turn)

        return call

    at_once(*map(caller, range(CALLERS)))


def test_the_first_strided_calls_come_at_once() -> None:
    """The variant is compiled while others call, with arrays of either kind."""
    for _ in range(2):
        kernel = build(staged(), release_gil=True)
        steps = iter([1, 2, 3, -1, 2])

        def call(kernel: Any = kernel, steps: Iterator[int] = steps) -> None:
            step = next(steps)
            for seed in range(20):
                assert is_right(kernel, 3000, seed, step)

        at_once(*[call] * 5)
        assert next(steps, None) is None


def adding(size: int, number: int) -> Any:
    A = te.placeholder((size,), name="A")
    B = te.compute((size,), lambda i: A[i] + float(number), name="B")
    return build(te.create_schedule(B.op), [A, B])


def test_builds_at_once() -> None:
    def caller(number: int) -> Callable[[], None]:
        def call() -> None:
            for size in range(5):
                b = np.zeros(size + 1, "float32")
                adding(size + 1, number)(np.ones(size + 1, "float32"), b)
                assert (b == 1 + number).all()

        return call

    at_once(*map(caller, range(CALLERS // 2)))


def test_a_number_of_threads_each() -> None:
    """Blocks of ``with num_threads(n)`` in many threads don't meet."""
    kernel = build(staged(), release_gil=True)

    def caller(number: int) -> Callable[[], None]:
        def call() -> None:
            for turn in range(200):
                with minitvm.num_threads(1 + number % 4):
                    assert is_right(kernel, 50_000, turn)
                    assert minitvm.num_threads() == 1 + number % 4
                assert minitvm.num_threads() == 3

        return call

    at_once(*map(caller, range(8)))


def test_the_number_changes_while_others_call() -> None:
    kernel, stop = build(staged(), release_gil=True), threading.Event()

    def call() -> None:
        for turn in range(300):
            assert is_right(kernel, 50_000, turn)
        stop.set()

    def change() -> None:
        while not stop.is_set():
            for number in (1, 4, 2, 6):
                minitvm.set_num_threads(number)

    at_once(call, change)


# -- Callbacks ------------------------------------------------------------------------------------


@pytest.fixture
def calling() -> Iterator[Callable[..., Any]]:
    """Makes a kernel ``y = 2 x + 1`` with a callback between its two parallel loops."""
    names: list[str] = []

    def make(callback: Callable[[], object], **options: Any) -> Any:
        names.append(f"minitvm.test.many_callers.{len(names)}")
        register_func(names[-1], callback)

        def write(ib: Any, x: Any, y: Any) -> None:
            with ib.for_range(0, n, kind="parallel") as i:
                y[i] = x[i] * 2.0
            ib.emit(tir.call_packed(names[-1]))
            with ib.for_range(0, n, kind="parallel") as i:
                y[i] = y[i] + 1.0

        return build(built(write, X, Y), **options)

    yield make
    for name in names:
        remove_global_func(name)


@pytest.mark.parametrize("asked", [True, False])
def test_callers_in_callbacks(calling: Any, asked: bool) -> None:
    inner = build(staged(), release_gil=True)
    results: list[bool] = []
    kernel = calling(lambda: results.append(is_right(inner, 60_000)), release_gil=asked)

    def call() -> None:
        for turn in range(50):
            assert is_right(kernel, 60_000, turn)

    at_once(*[call] * 8)
    assert results == [True] * 400


@pytest.mark.parametrize("asked", [True, False])
def test_fork_in_a_callback(calling: Any, asked: bool) -> None:
    """Parent and child both return to the kernel and go on, the child with workers of its own."""
    children: list[int] = []
    kernel = calling(lambda: children.append(os.fork()), release_gil=asked)
    for _ in range(3):
        result = is_right(kernel, 100_000) and is_right(build(staged()), 100_000)
        if children[-1] == 0:
            os._exit(0 if result else 1)
        assert result
        assert os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1]) == 0


# -- Processes ------------------------------------------------------------------------------------


def test_fork_while_another_thread_is_in_a_region() -> None:
    """Its first iteration waits, without the GIL, for what comes through a pipe."""
    size, number = te.const(4, "int64"), decl_buffer((1,), "int32", "number")

    def wait(ib: Any, y: Any, number_: Any) -> None:
        with ib.for_range(0, n, kind="parallel") as i:
            with ib.if_scope(i == 0):
                ib.emit(tir.call_extern("int64", "read", fd, number.access_ptr("w"), size))
            y[i] = i.astype("float32")

    func = built(wait, Y, number)
    func = PrimFunc((fd, *func.params), func.body, func.buffer_map, "wait")
    waiting, kernel = build(func, release_gil=True), build(staged(), release_gil=True)
    (reader, writer), found = os.pipe(), np.zeros(1, "int32")
    y = np.zeros(100_000, "float32")
    thread = threading.Thread(target=waiting, args=(reader, y, found))
    thread.start()
    while not y[-1]:
        pass  # another task of the region has ended: it is at work
    for _ in range(5):
        assert_in_child(
            lambda: all(is_right(kernel, size, step=1 + size % 2) for size in (7, 100_000))
        )
        assert is_right(kernel, 100_000)
    os.write(writer, np.int32(7).tobytes())
    thread.join()
    assert found[0] == 7
    np.testing.assert_array_equal(y, np.arange(100_000))


def test_fork_while_another_thread_compiles() -> None:
    """LLVM has one lock, which must not be closed in the child."""
    stop = threading.Event()

    def compile() -> None:
        while not stop.is_set():
            build(staged())

    thread = threading.Thread(target=compile)
    thread.start()
    try:
        for _ in range(4):
            assert_in_child(lambda: is_right(build(staged()), 100_000))
    finally:
        stop.set()
        thread.join()


_inherited: list[Any] = []


def _work(seed: int) -> bool:
    """What a worker process does: with a kernel of its own, and one from before the fork."""
    kernels = [build(staged()), *_inherited]
    return all(is_right(kernel, 100_000, seed, step) for kernel in kernels for step in (1, 2))


@pytest.fixture
def inherited() -> Iterator[None]:
    kernel = build(staged())
    assert is_right(kernel, 100_000)
    _inherited.append(kernel)
    yield
    _inherited.clear()


@pytest.mark.usefixtures("inherited")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing(method: str) -> None:
    count = 1 if method == "spawn" else 2  # each imports everything
    with multiprocessing.get_context(method).Pool(count) as pool:
        assert pool.map_async(_work, range(3)).get(120) == [True] * 3


@pytest.mark.usefixtures("inherited")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_of_concurrent_futures(method: str) -> None:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        assert list(executor.map(_work, range(3), timeout=120)) == [True] * 3


# -- Beside other libraries -----------------------------------------------------------------------


def test_beside_the_threads_of_torch() -> None:
    """By turns in one thread, and at once in several; torch's OpenMP has workers of its own."""
    torch = pytest.importorskip("torch")
    kernel = build(staged(), release_gil=True)
    a = torch.rand((300, 300))
    square = a @ a

    def both() -> None:
        for turn in range(10):
            x = torch.rand(60_000)
            y = torch.zeros(60_000)
            kernel(x, y)
            assert torch.equal(y, x * 2 + 1)
            assert torch.allclose(a @ a, square)
            assert is_right(kernel, 60_000, turn)

    both()
    at_once(both, both)


# -- The end of the interpreter -------------------------------------------------------------------

_START = """
from tests.codegen.test_many_callers import *
minitvm.set_num_threads(3)
kernel = build(staged(), release_gil=True)
assert is_right(kernel, 100_000)
def forever():
    while True:
        assert is_right(kernel, 100_000)
"""


@pytest.mark.parametrize(
    "then",
    [
        "",
        "import time; time.sleep(0.3)",
        "raise SystemExit(0)",
        "import atexit; atexit.register(lambda: print(is_right(kernel, 100_000)))",
        "threading.Thread(target=lambda: [is_right(kernel, 100_000) for _ in range(100)]).start()",
        "for _ in range(4): threading.Thread(target=forever, daemon=True).start()\n"
        "is_right(kernel, 100_000)",
    ],
    ids=["spinning", "asleep", "exit", "atexit", "thread", "daemons"],
)
def test_the_interpreter_exits(then: str) -> None:
    done = run_python(_START + then)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout in ("", "True\n")


def test_messages_of_two_threads_at_once_live_on() -> None:
    """LLVM knows the functions of whichever of them came first."""
    made = [weakref.ref(machine_code._messages.__wrapped__()) for _ in range(2)]
    gc.collect()
    assert all(each() is not None for each in made)
