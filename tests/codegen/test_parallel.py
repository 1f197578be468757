"""Parallel loops and workspaces, compiled: what the interpreter says, whatever threads do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import (
    KernelError,
    auto_schedule,
    build,
    lower,
    register_func,
    remove_global_func,
    runtime,
    te,
    tir,
)
from minitvm.arith import work
from minitvm.codegen.parallel import (
    BARRIER_WHEN_FINISH,
    LAUNCH_POINT,
    PARALLEL_FOR,
    STRIDE_PATTERN,
    divided,
)
from minitvm.runtime.dtype import BOOL, FLOAT64, DType
from minitvm.target import Target
from minitvm.tir import interpreter
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Var
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import AssertStmt, For, PrimFunc
from tests.memory.mapped import given_back
from tests.tir.programs import built, function

n, m = Var("n"), Var("m")
X, Y = decl_buffer((n,), "float32", "X"), decl_buffer((n,), "float32", "Y")
SIZES = [0, 1, 2, 3, 4, 5, 7, 31, 100]


@pytest.fixture(autouse=True, params=[1, 3], ids=["alone", "three"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Every loop is worth threads here, even those of one iteration."""
    is_worth(monkeypatch, 1e-6)
    before = runtime.num_threads()
    number: int = request.param
    runtime.set_num_threads(number)
    yield number
    runtime.set_num_threads(before)


def is_worth(monkeypatch: pytest.MonkeyPatch, operations: float) -> None:
    """A task is worth its overhead from so many operations on."""
    monkeypatch.setattr(Target, "task_operations", operations)


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def both(func: PrimFunc, *arrays: Any, kernel: Any = None, calls: int = 1) -> None:
    """Compiled and interpreted on the same arrays: they agree to the bit, in every call."""
    expected = _copied(arrays)
    interpreter.interpret(lower(func)[func.name], *expected)
    kernel = kernel or build(func, fp="strict")
    for mine in [arrays, *(_copied(arrays) for _ in range(calls - 1))]:
        kernel(*mine)
        for a, b in zip(mine, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def _copied(arrays: tuple[Any, ...]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]


def regions(kernel: Any) -> int:
    """How many regions a kernel starts."""
    return len(re.findall(f"call i32 @{PARALLEL_FOR}", kernel.get_source("ll")))


# -- Results --------------------------------------------------------------------------------------


def scaled(ib: Any, x: Any, y: Any) -> None:
    with ib.for_range(0, n, kind="parallel") as i:
        y[i] = x[i] * 2.0 + i.astype("float32")


def test_one_loop() -> None:
    func = built(scaled, X, Y)
    kernel = build(func, fp="strict")
    assert regions(kernel) == 1
    for size in SIZES:
        both(func, f32(size), f32(size), kernel=kernel)


@pytest.mark.parametrize("extent", [0, 1, 2, 3, 10])
def test_constant_extents(extent: int) -> None:
    def write(ib: Any, y: Any) -> None:
        with ib.for_range(0, extent, kind="parallel") as i:
            y[i] = i * 3

    both(built(write, decl_buffer((10,), "int32", "Y")), np.zeros(10, "int32"))


@cache
def between(dtype: str) -> tuple[PrimFunc, Any]:
    """A loop between two arguments, and its kernel."""
    low, high = Var("low", DType.of(dtype)), Var("high", DType.of(dtype))

    def write(ib: Any, y: Any) -> None:
        with ib.for_range(low, high, kind="parallel", dtype=dtype) as i:
            y[i.astype("int64")] = i.astype("int64") + 1

    func = built(write, decl_buffer((10,), "int64", "Y"))
    (handle,) = func.params
    func = PrimFunc((low, high, handle), func.body, func.buffer_map, "write")
    return func, build(func, fp="strict")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16"])
@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 9), (3, 10), (7, 5), (10, 10), (9, 10)])
def test_bounds_of_every_kind(begin: int, end: int, dtype: str) -> None:
    """Bounds from arguments; a negative extent runs nothing."""
    if dtype == "uint8" and end < begin:
        return  # its extent is large, not negative
    func, kernel = between(dtype)
    both(func, begin, end, np.zeros(10, "int64"), kernel=kernel)


CONDITIONS: list[tuple[Callable[[Any, Any], Any], bool]] = [
    (lambda i, y: i < n - 3, True),
    (lambda i, y: i * 2 + 1 < n, True),
    (lambda i, y: te.all(i < n - 3, i * 3 < m), True),
    (lambda i, y: i < -2, True),
    (lambda i, y: i < 99, True),
    (lambda i, y: i > 3, False),  # it begins to hold
    (lambda i, y: i % 3 < 2, False),
    (lambda i, y: y[i] < 2, False),  # data
    (lambda i, y: i < y[0], False),  # which the loop may change
]


@pytest.mark.parametrize("has_rest", [True, False])
@pytest.mark.parametrize(("condition", "is_once"), CONDITIONS)
def test_a_choice_that_changes_once(
    condition: Callable[[Any, Any], Any], is_once: bool, has_rest: bool
) -> None:
    """It is two loops, of each task and where one thread runs alone."""

    def write(ib: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel", dtype="int64") as i:
            with ib.if_scope(condition(i, y)):
                y[i] = y[i] + i.astype("int32")
            if has_rest:
                with ib.else_scope():
                    y[i] = y[i] * 3

    Z = decl_buffer((n,), "int32", "Z")
    func = built(write, Z)
    func = PrimFunc((*func.params, m), func.body, func.buffer_map, "write")
    (loop,) = (each for each in walk_once(func.body) if isinstance(each, For))
    assert len(divided(loop, loop.min, loop.min + loop.extent)) == 1 + is_once
    kernel = build(func)
    for size in SIZES:
        both(func, np.arange(size, dtype="int32") % 7, 5, kernel=kernel)


@pytest.mark.parametrize("inner", [-3, 1, 2, 7])
@pytest.mark.parametrize("middle", [-2, 1, 3])
def test_digits_of_a_fused_loop(inner: int, middle: int) -> None:
    """Quotients and remainders by sizes, of any sign."""
    a, b = Var("a"), Var("b")
    buffer = decl_buffer((31, 3), "int32", "Y")

    def write(ib: Any, y: Any) -> None:
        with ib.for_range(0, 31, kind="parallel") as x:
            y[x, 0] = tir.floordiv(tir.floordiv(x, a), b)
            y[x, 1] = tir.floormod(tir.floordiv(x, a), b)
            y[x, 2] = tir.floormod(x, a)

    func = built(write, buffer)
    (handle,) = func.params
    func = PrimFunc((a, b, handle), func.body, func.buffer_map, "write")
    both(func, inner, middle, np.zeros((31, 3), "int32"))


def test_bounds_are_read_before_the_region() -> None:
    """The loop writes what its extent was read from."""
    sizes, out = decl_buffer((4,), "int32", "S"), decl_buffer((4,), "int32", "Y")

    def write(ib: Any, s: Any, y: Any) -> None:
        with ib.for_range(0, s[0], kind="parallel") as i:
            s[i] = 0
            y[i] = 1

    both(built(write, sizes, out), np.array([4, 9, 9, 9], "int32"), np.zeros(4, "int32"))


def test_what_a_task_needs_of_outside() -> None:
    """Scalars, lets, shapes, strides, buffers allocated outside and inside."""
    A = decl_buffer((n, m), "float32", "A", strides=[Var("s0"), Var("s1")])
    B = decl_buffer((n, m), "float64", "B")
    scale, shift, flag = Var("scale", FLOAT64), Var("shift"), Var("flag", BOOL)

    def write(ib: Any, a: Any, b: Any) -> None:
        half = ib.let("half", shift.astype("float64") / 2.0)
        lanes = ib.let("lanes", te.const(1.5, "float32").astype("float32x4"))
        row = ib.allocate("float64", (m,), "row")
        with ib.for_range(0, m, kind="parallel") as j:
            row[j] = j.astype("float64") * scale
        with ib.for_range(0, n, kind="parallel", dtype="int64") as i:
            own = ib.allocate("float32", (4,), "own")
            own[tir.Ramp(te.const(0), te.const(1), 4)] = lanes
            work_area = ib.allocate("float64", (m + i,), "work_area")
            with ib.for_range(0, m) as j:
                work_area[j] = a[i, j].astype("float64") + half + own[2].astype("float64")
            with ib.for_range(0, m) as j:
                b[i, j] = tir.Select(flag, work_area[m - 1 - j] + row[j], row[j])

    func = built(write, A, B)
    func = PrimFunc((scale, shift, flag, *func.params), func.body, func.buffer_map, "write")
    kernel = build(func, fp="strict")
    assert regions(kernel) == 2
    for rows, columns in [(0, 3), (1, 1), (5, 3), (2, 40), (7, 1)]:
        a = f32(columns, 2 * rows).T[::2]
        both(func, 0.25, 3, True, a, np.zeros((rows, columns)), kernel=kernel)
        both(func, 0.25, -3, False, a, np.zeros((rows, columns)), kernel=kernel)


def test_loops_in_loops() -> None:
    """A parallel loop in one is serial; one in a serial loop is a region a time; unrolled, each is
    one of its own."""
    A = decl_buffer((6, n, 5), "int32", "A")

    def write(ib: Any, a: Any) -> None:
        with (
            ib.for_range(0, 2, kind="unroll") as i,
            ib.for_range(0, 3) as j,
            ib.for_range(0, n, kind="parallel") as k,
            ib.for_range(0, 5, kind="parallel") as h,
        ):
            a[i * 3 + j, k, h] = i * 1000 + j * 100 + k * 10 + h

    func = built(write, A)
    kernel = build(func)
    assert regions(kernel) == 2
    for size in SIZES:
        both(func, np.zeros((6, size, 5), "int32"), kernel=kernel)


def test_a_body_that_is_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unrolled around: each copy has its own variables and buffers; one runs as a single task."""
    is_worth(monkeypatch, 50.0)

    def write(ib: Any, a: Any) -> None:
        with ib.for_range(0, 2, kind="unroll", dtype="int64") as step:
            rows = step * 99 + 1
            with ib.for_range(0, rows, kind="parallel", dtype="int64") as i:
                own = ib.allocate("int32", (i + 3,), "own")
                third = ib.let("third", i * 3)
                own[i] = third.astype("int32")
                a[i] = a[i] + own[i]

    func = built(write, decl_buffer((100,), "int32", "A"))
    kernel = build(func)
    assert regions(kernel) == 1  # the copy of one iteration is a call
    both(func, np.arange(100, dtype="int32"), kernel=kernel)


def test_a_buffer_of_a_task_is_its_own_and_in_registers() -> None:
    A = decl_buffer((n, 64), "float32", "A")

    def write(ib: Any, a: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel") as i:
            total = ib.allocate("float32", (1,), "total")
            total[0] = 0.0
            with ib.for_range(0, 64) as k:
                total[0] = total[0] + a[i, k]
            y[i] = total[0]

    func = built(write, A, Y)
    kernel = build(func, fp="strict")
    (task,) = re.findall(r"define .*@parallel\.1\.body\(([^}]*)", kernel.get_source("ll"))
    assert "fadd" in task
    assert "alloca" not in task
    for size in SIZES:
        both(func, f32(size, 64), f32(size), kernel=kernel)


def test_another_machine() -> None:
    kernel = build(built(exchange, X, Y), target="llvm -mtriple=aarch64-linux-gnu")
    assembly = kernel.get_source("asm")
    assert f"{PARALLEL_FOR}\n" in assembly
    assert "minitvm_barrier\n" in assembly


KINDS = ("serial", "parallel", "unroll")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_nests_of_loops(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    extents = data.draw(st.tuples(*[st.integers(0, 5) for _ in kinds]))
    symbolic = [kind != "unroll" and data.draw(st.booleans()) for kind in kinds]
    strided = [data.draw(st.booleans()) for _ in kinds]
    dims = [
        Var(f"n{i}") if s else x for i, (x, s) in enumerate(zip(extents, symbolic, strict=True))
    ]

    def write(ib: Any, a: Any) -> None:
        with ExitStack() as stack:
            indices = []
            for kind, dim, is_strided in zip(kinds, dims, strided, strict=True):
                if is_strided:
                    ib.scope_attr(None, STRIDE_PATTERN, 1)
                indices.append(stack.enter_context(ib.for_range(0, dim, kind=kind)))
            a[tuple(indices)] = a[tuple(indices)] * 3 + sum(indices, te.const(1))

    values = np.arange(int(np.prod(extents)), dtype="int32").reshape(extents)
    runtime.set_num_threads(data.draw(st.integers(1, 4)))
    both(built(write, decl_buffer(dims, "int32", "A")), values)


# -- Pragmas --------------------------------------------------------------------------------------


def exchange(ib: Any, x: Any, y: Any) -> None:
    """Each loop reads what all threads wrote in the one before."""
    ib.scope_attr(None, LAUNCH_POINT, 1)
    with ib.for_range(0, 5, "step"):
        for source, sink, strided in ((x, y, True), (y, x, False)):
            pragmas = [STRIDE_PATTERN] if strided else []
            with (
                _pragmas(ib, *pragmas, BARRIER_WHEN_FINISH),
                ib.for_range(0, n, kind="parallel") as i,
            ):
                sink[i] = source[n - 1 - i] + source[i]


def _pragmas(ib: Any, *keys: str) -> Any:
    """A block with the pragmas around what is in it, the last one outermost."""

    def wrapped(body: Any) -> Any:
        for key in keys:
            body = tir.AttrStmt(None, key, te.const(1), body)
        return body

    return ib._block(wrapped)


def write_thread_ids(ib: Any, out: Any, *pragmas: str) -> None:
    """Each iteration notes its thread; the barrier makes all threads take part."""
    with (
        _pragmas(ib, *pragmas, BARRIER_WHEN_FINISH, LAUNCH_POINT),
        ib.for_range(0, n, kind="parallel") as i,
    ):
        out[i] = tir.call_extern("uint64", "pthread_self")


IDS = decl_buffer((n,), "uint64", "ids")


def test_launch_point_and_barriers() -> None:
    func = built(exchange, X, Y)
    kernel = build(func, fp="strict")
    assert regions(kernel) == 1
    assert "@minitvm_barrier(" in kernel.get_source("ll")
    for size in SIZES:
        both(func, f32(size), f32(size), kernel=kernel, calls=20)


def test_barriers_have_all_threads_at_once(threads: int) -> None:
    """Each thread of a region with a barrier has neighbouring iterations."""
    kernel, found = build(built(write_thread_ids, IDS)), np.zeros(64, "uint64")
    for _ in range(50):
        kernel(found)
        assert len(set(found.tolist())) == threads
        assert np.count_nonzero(np.diff(found.astype("int64"))) == threads - 1


def test_stride_pattern(threads: int) -> None:
    func = built(lambda ib, out: write_thread_ids(ib, out, STRIDE_PATTERN), IDS)
    kernel, found = build(func), np.zeros(64, "uint64")
    kernel(found)
    assert len(set(found.tolist())) == threads
    np.testing.assert_array_equal(found, np.resize(found[:threads], 64))


def test_a_launch_point_that_no_task_may_share() -> None:
    """What stands beside the parallel loops writes memory, and so happens once."""

    def write(ib: Any, x: Any, y: Any) -> None:
        ib.scope_attr(None, LAUNCH_POINT, 1)
        with ib.for_range(0, n, "step") as step:
            x[step] = x[step] + 1.0
            with ib.for_range(0, n, kind="parallel") as i:
                y[i] = y[i] + x[step]

    func = built(write, X, Y)
    kernel = build(func, fp="strict")
    assert regions(kernel) == 1
    for size in SIZES:
        both(func, f32(size), f32(size), kernel=kernel)


# -- Failures -------------------------------------------------------------------------------------


def checked(ib: Any, x: Any, y: Any, kind: str = "KernelError") -> None:
    with ib.for_range(0, n, kind="parallel") as i:
        scratch = ib.allocate("float32", (n + 5000,), "scratch")
        holds = x[i] >= 0.0
        message = f"x[{{}}] of {{}} is negative ({kind})"
        ib.emit(lambda body: AssertStmt(holds, message, body, (i, n), kind))
        scratch[i] = x[i]
        y[i] = scratch[i] + 1.0


@pytest.mark.parametrize(
    "kind", ["KernelError", "IndexError", "ValueError", "MemoryError", "InternalError"]
)
def test_the_failure_is_the_one_of_the_serial_loop(kind: str) -> None:
    func = built(lambda ib, x, y: checked(ib, x, y, kind), X, Y)
    func = PrimFunc(func.params, func.body, func.buffer_map, "checked")
    kernel = build(func, fp="strict")
    expected = getattr(runtime, kind, None) or getattr(__import__("builtins"), kind)
    for bad in ([99], [0], [40, 70], [2, 1, 90], list(range(100)), [66, 34]):
        x, y = np.abs(f32(100)), np.zeros(100, "float32")
        x[bad] = -1.0
        for _ in range(20):
            with pytest.raises(expected, match=rf"x\[{min(bad)}\] of 100 is negative"):
                kernel(x, y)
    both(func, np.abs(f32(100)), f32(100), kernel=kernel)


def test_memory_that_is_not_there() -> None:
    def write(ib: Any, x: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel", dtype="int64") as i:
            much = ib.allocate("float32", (x[i].astype("int64") * 2**40,), "much")
            much[i] = x[i]
            y[i] = much[i]

    kernel = build(built(write, X, Y))
    with pytest.raises(MemoryError, match=f"much: expected {2**62} bytes of memory, found no"):
        kernel(np.full(5, 2.0**20, "float32"), np.zeros(5, "float32"))


def test_a_failure_ends_a_region_with_barriers() -> None:
    """The others, who wait for the task that failed, end, too."""

    def write(ib: Any, x: Any, y: Any) -> None:
        ib.scope_attr(None, LAUNCH_POINT, 1)
        with (
            ib.for_range(0, 3, "step"),
            _pragmas(ib, BARRIER_WHEN_FINISH),
            ib.for_range(0, n, kind="parallel") as i,
        ):
            y[i] = x[i]
            ib.emit(lambda body: AssertStmt(x[i] >= 0.0, "at {}", body, (i,)))

    kernel = build(built(write, X, Y))
    for bad in (0, 50, 99):
        x = np.abs(f32(100))
        x[bad] = -1.0
        for _ in range(20):
            with pytest.raises(KernelError, match=f"^write: at {bad}$|^at {bad}$"):
                kernel(x, np.zeros(100, "float32"))


def test_after_a_failure_the_kernel_goes_on() -> None:
    """What comes after the region isn't done, and the next call is as good as any."""

    def write(ib: Any, x: Any, y: Any) -> None:
        outer = ib.allocate("float32", (n + 5000,), "outer")
        with ib.for_range(0, n, kind="parallel") as i:
            outer[i] = x[i]
            ib.emit(lambda body: AssertStmt(x[i] >= 0.0, "bad", body))
        with ib.for_range(0, n) as i:
            y[i] = outer[i]

    func = built(write, X, Y)
    kernel = build(func, fp="strict")
    for size in (9, 1 << 22):
        x, y = np.full(size, -1.0, "float32"), np.zeros(size, "float32")
        with given_back(1 << 27):
            for _ in range(30):  # of 16 MiB
                with pytest.raises(KernelError, match="bad"):
                    kernel(x, y)
        assert not y.any()
    both(func, np.abs(f32(9)), np.zeros(9, "float32"), kernel=kernel)


# -- Calls ----------------------------------------------------------------------------------------


def test_a_loop_that_calls_python_is_serial() -> None:
    seen: list[int] = []
    failure = LookupError("mine")

    def note(i: int) -> int:
        if i == 7:
            raise failure
        seen.append(i)
        return i * i

    def write(ib: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel") as i:
            y[i] = tir.call_packed("minitvm.test.note", i).astype("float32")
        with ib.for_range(0, n, kind="parallel") as i:
            y[i] = y[i] + 0.5

    register_func("minitvm.test.note", note)
    try:
        kernel, y = build(built(write, Y)), np.zeros(7, "float32")
        assert regions(kernel) == 1
        kernel(y)
        assert seen == list(range(7))
        np.testing.assert_array_equal(y, np.arange(7) ** 2 + 0.5)
        with pytest.raises(LookupError) as caught:
            kernel(np.zeros(9, "float32"))
        assert caught.value is failure
    finally:
        remove_global_func("minitvm.test.note")


def test_c_functions_are_called_by_all_threads() -> None:
    def write(ib: Any, x: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel") as i:
            y[i] = tir.call_extern("float32", "fabsf", x[i])

    func = built(write, X, Y)
    kernel = build(func)
    assert regions(kernel) == 1
    both(func, f32(50), f32(50), kernel=kernel)


def test_functions_of_python_are_not() -> None:
    def write(ib: Any, y: Any) -> None:
        with ib.for_range(0, n, kind="parallel") as i:
            y[i] = tir.call_extern("int32", "PyGILState_Check").astype("float32")

    kernel, y = build(built(write, Y)), np.zeros(9, "float32")
    assert regions(kernel) == 0
    kernel(y)
    assert (y == 1).all()


# -- Callers at the same time ---------------------------------------------------------------------


@pytest.mark.parametrize("write", [scaled, exchange], ids=["loop", "barriers"])
def test_callers_at_the_same_time(write: Callable[..., None]) -> None:
    func = built(write, X, Y)
    kernel = build(func, fp="strict", release_gil=True)
    wrong: list[Any] = []

    def caller(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(97 + seed).astype("float32")
        y = np.zeros_like(x)
        expected = [x.copy(), y.copy()]
        interpreter.interpret(lower(func)[func.name], *expected)
        start = x.copy()
        for _ in range(300):
            x[...], y[...] = start, 0
            kernel(x, y)
            if not np.array_equal(x, expected[0]) or not np.array_equal(y, expected[1]):
                wrong.append((seed, x, y))

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(60)
        assert not each.is_alive()
    assert not wrong


def test_many_small_regions() -> None:
    func = built(scaled, X, Y)
    kernel = build(func, fp="strict")
    x, y = f32(5), np.zeros(5, "float32")
    kernel(x, y)
    expected = y.copy()
    kernel.time_evaluator(number=20_000)(x, y)
    np.testing.assert_array_equal(y, expected)


# -- Whether threads pay --------------------------------------------------------------------------


def test_little_work_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    is_worth(monkeypatch, 25_000.0)

    def write(ib: Any, y: Any, extent: int) -> None:
        with ib.for_range(0, extent, kind="parallel") as i:
            y[i] = 1.0

    for extent, expected in ((100, 0), (1_000_000, 1)):
        buffer = decl_buffer((extent,), "float32", "Y")
        func = built(lambda ib, y, extent=extent: write(ib, y, extent), buffer)
        assert regions(build(PrimFunc(func.params, func.body, func.buffer_map, "f"))) == expected


def test_little_work_is_seen_at_the_call(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Below the limit the calling thread does everything."""
    is_worth(monkeypatch, 32_000.0)
    monkeypatch.setattr(work, "_C_FUNCTION", 1.0)
    kernel = build(built(write_thread_ids, IDS))
    for size, expected in ((100, 1), (10_000, threads)):
        found = np.zeros(size, "uint64")
        kernel(found)
        assert len(set(found.tolist())) == expected


def estimate(write: Callable[..., None], buffer: Buffer, value: int) -> float:
    """The work of a program where `n` is `value`."""
    node = work.estimated_work(built(write, buffer).body)
    out = decl_buffer((), "float64", "out")
    outer = function("value", out)
    body, result = tir.BufferStore(out, node, ()), np.zeros((), "float64")
    interpreter.interpret(
        PrimFunc((n, *outer.params), body, outer.buffer_map, "value"), value, result
    )
    return float(result)


def test_work_of_a_triangle_is_that_of_its_middle() -> None:
    def triangle(ib: Any, a: Any) -> None:
        with ib.for_range(0, n) as i, ib.for_range(0, i) as j:
            a[i, j] = a[i, j] + 1.0

    square = decl_buffer((n, n), "float32", "A")
    assert estimate(triangle, square, 100) == 100 * 50 * 3.0


def test_work_of_a_loop_around_one_of_another_length() -> None:
    """What was found in one iteration of the outermost loop isn't kept for the next."""

    def write(ib: Any, a: Any) -> None:
        with ib.for_range(0, 3) as i, ib.for_range(0, 5), ib.for_range(0, i + 1) as k:
            a[k] = te.const(1.0)

    line = decl_buffer((8,), "float32", "A")
    assert estimate(write, line, 0) == 5 * (1 + 2 + 3)


def test_work_that_is_known_is_not_counted_again() -> None:
    def write(ib: Any, a: Any) -> None:
        with ib.for_range(0, n), ib.for_range(0, 5), ib.for_range(0, 7) as k:
            a[k] = a[k] + 1.0

    loops, known = built(write, decl_buffer((8,), "float32", "A")).body, work.KnownWork()
    first = work.estimated_work(loops, known)
    assert {5 * 7 * 3.0, 7 * 3.0, 3.0} <= {*known.values()}
    known.update(dict.fromkeys(known, 1.0))
    assert str(first) == "float64(n) * float64(105.0)"
    assert str(work.estimated_work(loops, known)) == "float64(n) * float64(1.0)"


def test_work_of_a_loop_that_is_over_in_the_middle() -> None:
    """It isn't less than none."""

    def clipped(ib: Any, a: Any) -> None:
        with ib.for_range(0, n) as i, ib.for_range(0, 8 - i * 2) as j:
            a[j] = te.const(1.0)
        with ib.for_range(0, n) as i:
            a[i] = te.const(1.0)

    assert estimate(clipped, decl_buffer((n,), "float32", "A"), 6) == 6 * 2 + 6
    assert estimate(clipped, decl_buffer((n,), "float32", "A"), 100) == 100


def test_work_spares_what_registers_hold() -> None:
    """And what a vector's instruction does beside: products that are added, repeated values."""

    def sums(ib: Any, a: Any) -> None:
        with ib.for_range(0, n) as i:
            lane = tir.Ramp(i * 4, te.const(1), 4)  # 1
            held = ib.allocate("float32", (4,), "held", scope="local")
            held[tir.Ramp(te.const(0), te.const(1), 4)] = (
                held[tir.Ramp(te.const(0), te.const(1), 4)]
                + a[lane] * tir.Broadcast(a[i], 4)  # 4 + 1 + 4
            )

    assert estimate(sums, decl_buffer((n,), "float32", "A"), 7) == 7 * 10.0


def test_work_is_the_same_each_time() -> None:
    """It is part of the program's text, which the cache of compiled code is asked for."""
    A, B = te.placeholder((4, 2048), name="A"), te.placeholder((2048, 4096), name="B")
    k = te.reduce_axis((0, 2048), "k")
    C = te.compute((4, 4096), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    lowered = lower(auto_schedule(C, "llvm -mtriple=aarch64-linux-gnu"), [A, B, C])["main"]
    kept: list[Any] = []  # so that other objects have other addresses
    for size in range(30):
        kept.append([object() for _ in range(size * 7)])
        kept.append(str(work.estimated_work(lowered.body)))
    assert len({each for each in kept if isinstance(each, str)}) == 1


def test_work_that_data_decides() -> None:
    def rows(ib: Any, a: Any) -> None:
        with ib.for_range(0, n) as i, ib.for_range(0, a[i]) as j:
            a[j] = te.const(1)

    assert estimate(rows, decl_buffer((n,), "int32", "A"), 100) == 100 * 16 * 1.0


def test_work_of_every_statement() -> None:
    def write(ib: Any, a: Any) -> None:
        with ib.for_range(0, n) as i:
            twice = ib.let("twice", i * 2)  # 1
            scratch = ib.allocate("float32", (4,), "scratch")
            with ib.if_scope(i < 5):  # 1
                scratch[0] = te.exp(a[twice])  # 1 + 1 + 16
            with ib.else_scope():
                scratch[0] = 0.0  # less
            ib.emit(lambda body: AssertStmt(i < 9, "", body))  # 1
            with ib.while_loop(a[i] > 0.0):  # 16 * 2
                a[i] = scratch[0]  # 16 * 2
            ib.emit(tir.call_extern("int32", "abs", i))

    monkey = work._C_FUNCTION
    assert estimate(write, decl_buffer((n,), "float32", "A"), 7) == 7 * (85.0 + monkey)


# -- Workspaces -----------------------------------------------------------------------------------


def staged(ib: Any, x: Any, y: Any) -> None:
    outer = ib.allocate("float32", (n,), "outer")
    with ib.for_range(0, n, kind="parallel") as i:
        outer[i] = x[i] * 2.0
    with ib.for_range(0, 3, kind="parallel") as part:
        inner = ib.allocate("float32", (n,), "inner")
        with ib.for_range(0, n) as i:
            inner[i] = outer[i] + part.astype("float32")
        with ib.for_range(0, tir.floordiv(n - part + 2, 3)) as i:
            y[i * 3 + part] = inner[i * 3 + part]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


@pytest.mark.parametrize("size", [10_000, 700_000])
def test_workspaces_are_reused(size: int) -> None:
    func = built(staged, X, Y)
    kernel = build(func, fp="strict")
    both(func, f32(100), np.zeros(100, "float32"), kernel=kernel)
    x, y = f32(size), np.zeros(size, "float32")
    evaluate = kernel.time_evaluator(number=20)
    evaluate(x, y)
    before = resident_bytes()
    for _ in range(15):
        evaluate(x, y)
    assert resident_bytes() - before < 3 * x.nbytes + 2**22
    np.testing.assert_array_equal(y, x * 2 + (np.arange(size) % 3).astype("float32"))


def _raise(*_: object) -> None:
    raise LookupError("of the callback")


def _fails_in(ib: Any, where: str, i: Any, value: Any) -> None:
    if where == "assertion":
        ib.emit(lambda body: AssertStmt(value >= 0.0, "bad", body))
    elif where == "callback":
        ib.emit(tir.call_packed("parallel.raise", i))
    else:
        much = ib.allocate("float32", (tir.const(2**60, "int64"),), "much")
        much[i] = value


@pytest.mark.parametrize("where", ["assertion", "callback", "memory"])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_workspaces_are_given_back_when_a_call_fails(kind: str, where: str) -> None:
    """What is allocated around the loop, and in it: the system has to give no more."""

    def write(ib: Any, x: Any, y: Any) -> None:
        outer = ib.allocate("float32", (n * 2,), "outer")
        outer[0] = x[0]
        with ib.for_range(0, 4, kind=kind) as part:
            inner = ib.allocate("float32", (n,), "inner")
            inner[part] = outer[0]
            _fails_in(ib, where, part, inner[part])
            y[part] = inner[part]
        y[0] = outer[0]

    expected = {"assertion": KernelError, "callback": LookupError, "memory": MemoryError}[where]
    register_func("parallel.raise", _raise, override=True)
    try:
        kernel = build(built(write, X, Y), fp="strict")
        x = np.full(2_000_000, -1.0, "float32")
        y = np.zeros_like(x)

        def fail(times: int) -> None:
            for _ in range(times):
                with pytest.raises(expected):
                    kernel(x, y)

        fail(10)
        before = mapped_bytes()
        fail(60)
        assert mapped_bytes() - before < 2**28  # 60 of the smaller ones are twice as much
    finally:
        remove_global_func("parallel.raise")


def test_sizes_that_change() -> None:
    func = built(staged, X, Y)
    kernel = build(func, fp="strict")
    for size in (0, 1, 5000, 17, 600_000, 3, 550_000, 0, 5001):
        x, y = f32(size), np.zeros(size, "float32")
        kernel(x, y)
        np.testing.assert_array_equal(y, x * 2 + (np.arange(size) % 3).astype("float32"))


def test_a_buffer_of_negative_extent_is_empty() -> None:
    size = Var("size")

    def write(ib: Any, y: Any) -> None:
        ib.allocate("float32", (size, size - 1), "nothing")
        y[0] = 1.0

    func = built(write, decl_buffer((1,), "float32", "Y"))
    func = PrimFunc((size, *func.params), func.body, func.buffer_map, "write")
    both(func, -5, np.zeros(1, "float32"))


def test_a_single_task_is_called_without_the_runtime() -> None:
    A = te.placeholder((te.var("n"),), name="A")
    B = te.compute(A.shape, lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    s[B].parallel(B.op.axis[0])
    text = build(s, [A, B], name="f").get_source("ll")
    (caller,) = (
        each for each in text.split("\ndefine ")[1:] if f"call i32 @{PARALLEL_FOR}" in each
    )
    assert "fadd" in caller or "@parallel.1.body(" in caller
