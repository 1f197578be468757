"""Whole programs: shapes, stages, reductions, loops, calls and layouts, compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from minitvm import (
    CompileError,
    KernelError,
    build,
    lower,
    register_func,
    remove_global_func,
    te,
    tir,
)
from minitvm.tir import interpreter, ir_builder
from minitvm.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
    seq,
)
from tests.memory.mapped import given_back
from tests.tir.programs import function

n, m = te.var("n"), te.var("m")


def both(outputs: list[Any], args: list[Any], *arrays: Any, **packed: Callable[..., Any]) -> None:
    """Compiled and interpreted on the same arrays, the outputs last: they agree to the bit, and
    `arrays` hold the result."""
    (function,) = lower(outputs, args).functions.values()
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
    interpreter.interpret(function, *copies, packed=packed)
    build(outputs, args, fp="strict")(*arrays)
    for a, b in zip(arrays, copies, strict=True):
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


# -- Shapes ---------------------------------------------------------------------------------------

SHAPES = [(), (1,), (7,), (0,), (3, 5), (0, 4), (4, 0), (1, 1), (2, 3, 4), (2, 0, 4), (3, 1, 2, 5),
          (2, 3, 0, 1)]  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_computes_of_every_rank(shape: tuple[int, ...], symbolic: bool) -> None:
    dims = tuple(te.var(f"n{i}") for i in range(len(shape))) if symbolic else shape
    A = te.placeholder(dims, name="A")
    B = te.compute(dims, lambda *i: A[i] * 2.0 + sum(i, te.const(0)), name="B")
    a, b = f32(*shape), np.zeros(shape, "float32")
    both([B], [A, B], a, b)
    index = sum(np.indices(shape)) if shape else 0
    np.testing.assert_allclose(b, a * 2 + index, rtol=1e-6)


def test_tuples() -> None:
    A = te.placeholder((n,), name="A")
    P, Q = te.compute((n,), lambda i: (A[i] + 1.0, te.floor(A[i]).astype("int32")), name="P")
    a, p, q = f32(9), np.zeros(9, "float32"), np.zeros(9, "int32")
    both([P, Q], [A, P, Q], a, p, q)
    np.testing.assert_array_equal(q, np.floor(a))


def test_half_of_a_tuple() -> None:
    A = te.placeholder((n,), name="A")
    P, Q = te.compute((n,), lambda i: (A[i] + 1.0, A[i] - 1.0), name="P")
    a, q = f32(9), np.zeros(9, "float32")
    both([P, Q], [A, Q], a, q)
    np.testing.assert_array_equal(q, a - 1)


# -- Reductions -----------------------------------------------------------------------------------

NUMPY: dict[str, Any] = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float64"])
@pytest.mark.parametrize("name", NUMPY)
def test_reductions(name: str, dtype: str) -> None:
    A = te.placeholder((n, m), dtype=dtype, name="A")
    k = te.reduce_axis((0, m), "k")
    B = te.compute((n,), lambda i: getattr(te, name)(A[i, k], axis=k), name="B")
    (function,) = lower([B], [A, B]).functions.values()
    kernel = build(function, fp="strict")
    for size in (0, 1, 6):
        a = np.random.default_rng(1).integers(1, 9, (3, size)).astype(dtype)
        b, expected = np.zeros(3, dtype), np.zeros(3, dtype)
        kernel(a, b)
        interpreter.interpret(function, a, expected)
        np.testing.assert_array_equal(b, expected)
        if size:
            named = {"dtype": dtype} if name in ("sum", "prod") else {}
            np.testing.assert_array_equal(b, NUMPY[name](a, axis=1, **named))


def test_reduction_of_everything_with_where_and_init() -> None:
    A = te.placeholder((n, m), dtype="int64", name="A")
    i, j = te.reduce_axis((0, n), "i"), te.reduce_axis((0, m), "j")
    S = te.compute((), lambda: te.sum(A[i, j], axis=[i, j], where=A[i, j] > 2, init=100), name="S")
    a, s = np.arange(20).reshape(4, 5), np.zeros((), "int64")
    both([S], [A, S], a, s)
    assert s == 100 + a[a > 2].sum()


def test_argmax() -> None:
    argmax = te.comm_reducer(
        lambda x, y: (
            tir.Select(x[1] >= y[1], x[0], y[0]),
            tir.Select(x[1] >= y[1], x[1], y[1]),
        ),
        lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
        name="argmax",
    )
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    I, V = te.compute((n,), lambda i: argmax((k.var, A[i, k]), axis=k), name="M")  # noqa: E741
    a, where, value = f32(5, 33), np.zeros(5, "int32"), np.zeros(5, "float32")
    both([I, V], [A, I, V], a, where, value)
    np.testing.assert_array_equal(where, a.argmax(axis=1))
    np.testing.assert_array_equal(value, a.max(axis=1))


# -- Stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 10, 4096, 4097, 20000])
@pytest.mark.parametrize("symbolic", [False, True])
def test_chains_of_stages(size: int, symbolic: bool) -> None:
    """Constant memory up to 16 KiB on the stack, any other on the heap."""
    extent = n if symbolic else size
    A = te.placeholder((extent,), name="A")
    last = A
    for step in range(3):
        before = last
        last = te.compute((extent,), lambda i, t=before: t[i] + 1.0, name=f"T{step}")
    a, b = f32(size), np.zeros(size, "float32")
    build([last], [A, last])(a, b)
    np.testing.assert_array_equal(b, a + 1 + 1 + 1)


def test_softmax() -> None:
    A = te.placeholder((n, m), name="A")
    k, j = te.reduce_axis((0, m), "k"), te.reduce_axis((0, m), "j")
    M = te.compute((n,), lambda i: te.max(A[i, k], axis=k), name="M")
    E = te.compute((n, m), lambda i, q: te.exp(A[i, q] - M[i]), name="E")
    S = te.compute((n,), lambda i: te.sum(E[i, j], axis=j), name="S")
    B = te.compute((n, m), lambda i, q: E[i, q] / S[i], name="B")
    a, b = f32(4, 50), np.zeros((4, 50), "float32")
    build([B], [A, B])(a, b)
    e = np.exp(a.astype("float64") - a.max(axis=1, keepdims=True))
    np.testing.assert_allclose(b, e / e.sum(axis=1, keepdims=True), rtol=60 * 2.0**-24)


def test_floor_division_and_remainder_of_floats() -> None:
    A, B = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    Q = te.compute((n,), lambda i: A[i] // B[i], name="Q")
    R = te.compute((n,), lambda i: A[i] % B[i], name="R")
    special = np.array([7.5, -7.5, 0.25, -0.0, 3.0, -3.0], "float32")
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = np.mod(a, b)
    q, r = np.zeros_like(a), np.zeros_like(a)
    both([Q, R], [A, B, Q, R], a.copy(), b.copy(), q, r)
    np.testing.assert_array_equal(r, expected)


# -- Layouts --------------------------------------------------------------------------------------


def layouts(rows: int, columns: int) -> dict[str, Any]:
    base = f32(2 * rows + 3, 2 * columns + 3)
    return {
        "compact": base[:rows, :columns].copy(),
        "rows": base[1 : 1 + rows, :columns],
        "columns": base[:rows, 1 : 1 + 2 * columns : 2],
        "transposed": base[:columns, :rows].T,
        "backwards": base[:rows, :columns][::-1, ::-1],
        "mixed": base[2 : 2 + 2 * rows : 2, :columns][:, ::-1],
        "repeated row": np.broadcast_to(base[0, :columns], (rows, columns)),
        "repeated column": np.broadcast_to(base[:rows, :1], (rows, columns)),
        "one number": np.broadcast_to(base[0, 0], (rows, columns)),
    }


@pytest.fixture(scope="module")
def scaled() -> Any:
    A, B = te.placeholder((n, m), name="A"), te.placeholder((n, m), name="B")
    C = te.compute((n, m), lambda i, j: A[i, j] * 2.0 - B[i, j], name="C")
    return build([C], [A, B, C], name="scaled")


@pytest.mark.parametrize("shape", [(4, 6), (1, 5), (5, 1), (0, 3), (3, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("layout", layouts(1, 1))
def test_layouts(scaled: Any, layout: str, shape: tuple[int, int]) -> None:
    a, b = layouts(*shape)[layout], f32(*shape)
    expected = a * np.float32(2) - b
    for c in layouts(*shape).values():
        out = c.copy(order="K") if c.flags.writeable else None
        if out is None:
            continue
        memory = np.zeros((3 * shape[0] + 1, 3 * shape[1] + 1), "float32")
        for view in (
            out,
            memory[: shape[0], : shape[1]],
            memory.T[: 2 * shape[1] : 2].T[: shape[0]],
        ):
            if view.shape != shape:
                continue
            view[...] = 0
            scaled(a, b, view)
            np.testing.assert_array_equal(view, expected)
    memory = np.zeros((2 * shape[0] + 1, 3 * shape[1] + 1), "float32")
    view = memory[1::2, 1::3][: shape[0], : shape[1]][::-1]
    scaled(a, b, view)
    np.testing.assert_array_equal(view, expected)
    view[...] = 0
    assert not memory.any()  # nothing else was written


def test_more_elements_than_int32_counts() -> None:
    """Of memory that is a row of four bytes, repeated."""
    N = te.var("N", "int64")
    A = te.placeholder((N, 1 << 16), dtype="int8", name="A")
    B = te.compute((2,), lambda i: te.if_then_else(N > 40000, A[N - 1 - i, 65535 - i], 0), name="B")
    a = np.zeros((2, 1 << 16), "int8")
    a[0, 65535], a[0, 65534] = 5, 6
    b = np.zeros(2, B.dtype.to_numpy())
    build([B], [A, B])(np.broadcast_to(a[0], (40001, 1 << 16)), b)
    assert b.tolist() == [5, 6]


def test_offsets_beyond_int32() -> None:
    """A row stride of 2**31 elements of which only what is touched has memory."""
    A = te.placeholder((n, m), dtype="int8", name="A")
    B = te.compute((n, m), lambda i, j: A[i, j], name="B")
    memory = np.zeros((1 << 31) + 3, "int8")
    memory[-3:] = 1, 2, 3
    a = np.lib.stride_tricks.as_strided(memory, (2, 3), (1 << 31, 1))
    b = np.zeros((2, 3), "int8")
    build([B], [A, B])(a, b)
    assert b.tolist() == [[0, 0, 0], [1, 2, 3]]


# -- Loops by hand --------------------------------------------------------------------------------


def test_extern_with_loops_and_conditions() -> None:
    """The lengths of Collatz's sequences, and a scratch buffer that turns them around."""

    def body(ins: Any, outs: Any) -> Any:
        ib = ir_builder.create()
        X, Y = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        size = ins[0].shape[0]
        T = ib.allocate("int64", (size,), name="T")
        with ib.for_range(0, size, name="i") as i:
            value = ib.allocate("int64", (1,), name="value")
            value[0] = X[i]
            T[i] = 0
            with ib.while_loop(value[0] > 1):
                with ib.if_scope(value[0] % 2 == 0):
                    value[0] = value[0] // 2
                with ib.else_scope():
                    value[0] = value[0] * 3 + 1
                T[i] = T[i] + 1
        with ib.for_range(0, size, name="i") as i:
            Y[i] = T[size - 1 - i]
        return ib.get()

    X = te.placeholder((n,), dtype="int64", name="X")
    Y = te.extern((n,), [X], body, dtype="int64", name="Y")
    x, y = np.array([1, 2, 27, 97, 871]), np.zeros(5, "int64")
    both([Y], [X, Y], x, y)
    assert y.tolist() == [178, 118, 111, 1, 0]


@pytest.mark.parametrize("kind", ["serial", "unroll"])
def test_loops_from_elsewhere_than_zero(kind: str) -> None:
    def body(ins: Any, outs: Any) -> Any:
        ib = ir_builder.create()
        Y = ib.buffer_ptr(outs[0])
        with ib.for_range(0, 8, name="i") as i:
            Y[i] = 0
        with ib.for_range(3, 6, name="i", kind=kind) as i:
            Y[i] = i * i
        with ib.for_range(5, 5, name="i", kind=kind) as i:
            Y[i] = -1
        return ib.get()

    Y = te.extern((8,), [], body, dtype="int32", name="Y")
    y = np.zeros(8, "int32")
    both([Y], [Y], y)
    assert y.tolist() == [0, 0, 0, 9, 16, 25, 0, 0]


def test_if_then_else_is_lazy() -> None:
    A = te.placeholder((n,), name="A")
    B = te.compute(
        (n + 2,), lambda i: te.if_then_else(te.all(i >= 1, i <= n), A[i - 1], 0.0), name="B"
    )
    a, b = f32(5), np.ones(7, "float32")
    both([B], [A, B], a, b)
    np.testing.assert_array_equal(b, np.pad(a, 1))


# -- Values that are used again --------------------------------------------------------------------

X, Y = tir.decl_buffer((4,), name="X"), tir.decl_buffer((4,), name="Y")
_i, _v = te.var("i"), te.var("v", "float32")
_first = X[0] * 2.0  # one node, wherever it stands


def _for(kind: ForKind, body: Stmt) -> Stmt:
    return For(_i, te.const(0), te.const(4), kind, body)


def _put(buffer: Any, place: Any, value: Any) -> Stmt:
    return BufferStore(buffer, value, (te.const(place) if isinstance(place, int) else place,))


AGAIN: dict[str, Stmt] = {
    "after a store": seq(_put(Y, 0, _first), _put(X, 0, _first), _put(Y, 1, _first)),
    "after a store in an unrolled loop": seq(
        _put(Y, 0, _first),
        _for(ForKind.UNROLLED, seq(_put(X, _i, X[_i] + 1.0), _put(Y, _i, _first + X[_i]))),
    ),
    "in a loop that writes it": seq(
        _put(Y, 0, _first), _for(ForKind.SERIAL, seq(_put(Y, _i, _first), _put(X, 0, _first)))
    ),
    "in a loop that ends when it changes": seq(
        _put(Y, 0, _first),
        While(_first < 100.0, _put(X, 0, _first)),
        _put(Y, 1, _first),
    ),
    "after a store under a condition": seq(
        _put(Y, 0, _first), IfThenElse(_first < 9.0, _put(X, 0, _first)), _put(Y, 1, _first)
    ),
    "of a name that changes": _for(
        ForKind.UNROLLED, LetStmt(_v, X[_i] + 1.0, _put(Y, _i, _v * _v + _first))
    ),
    "of a buffer allocated again": _for(
        ForKind.UNROLLED,
        Allocate(Z := tir.decl_buffer((2,), name="Z"),
                 seq(_put(Z, 0, X[_i] + 1.0), _put(Z, 1, Z[0] * 2.0), _put(Y, _i, Z[0] + Z[1]))),
    ),
    "at constant places around a variable one": _for(
        ForKind.SERIAL, _put(Y, (_i * 3 + 1) % 4, X[(3 - _i) * 1 + 0] - X[_i * -1 + 3])
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", AGAIN.values(), ids=AGAIN.keys())
def test_values_used_again(body: Stmt) -> None:
    """Code that shares what was computed sees each change of it."""
    func = function("f", X, Y, body=body)
    x, y = np.array([1.0, 2.0, 3.0, 4.0], "float32"), np.zeros(4, "float32")
    expected = x.copy(), y.copy()
    interpreter.interpret(func, *expected)
    build(func, fp="strict")(x, y)
    np.testing.assert_array_equal(x, expected[0])
    np.testing.assert_array_equal(y, expected[1])


@pytest.mark.parametrize("extent", [1, 4, 5])
@pytest.mark.parametrize("kind", list(ForKind)[:4])
def test_loops_of_all_kinds_begin_anywhere(kind: ForKind, extent: int) -> None:
    begin, y = te.var("begin"), tir.decl_buffer((9,), "int32", name="y")
    body = For(_i, begin, te.const(extent), kind, BufferStore(y, y[_i] * 10 + _i, (_i,)))
    func = function("f", begin, y, body=body)
    kernel = build(func)
    for first in range(5):
        found, expected = np.ones(9, "int32"), np.ones(9, "int32")
        interpreter.interpret(func, first, expected)
        kernel(first, found)
        assert found.tolist() == expected.tolist()
        assert (found != 1).sum() == extent


def test_a_function_is_called_as_often_as_it_stands(registered: Any) -> None:
    numbers = iter(range(9))
    call = tir.call_packed(registered(lambda: next(numbers)))
    y = tir.decl_buffer((4,), "int32", name="y")
    body = seq(_for(ForKind.UNROLLED, _put(y, _i, call)), _put(y, 0, call))
    result = np.zeros(4, "int32")
    build(function("f", y, body=body))(result)
    assert result.tolist() == [4, 1, 2, 3]


# -- Calls out of the program ---------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[Callable[[Callable[..., Any]], str]]:
    names: list[str] = []

    def register(function: Callable[..., Any]) -> str:
        names.append(f"minitvm.test.programs.{len(names)}")
        register_func(names[-1], function)
        return names[-1]

    yield register
    for name in names:
        remove_global_func(name)


def test_call_packed(registered: Any) -> None:
    seen: list[Any] = []

    def record(*args: Any) -> int:
        whole, *rest = args
        seen.append((whole.shape, whole.dtype, whole.numpy().copy(), *rest))
        return 7

    name = registered(record)
    A = te.placeholder((n, 3), name="A")
    B = te.extern(
        (2,), [A], lambda ins, outs: _store(
            outs[0], tir.call_packed(name, ins[0], 3, -1.5, "text", te.const(True), n)
        ), dtype="int32", name="B",
    )  # fmt: skip
    a, b = f32(2, 3), np.zeros(2, "int32")
    f = build([B], [A, B])
    for array in (a, f32(4, 6)[::2, ::-2]):
        f(array, b)
        shape, dtype, content, *rest = seen.pop()
        assert (shape, dtype, rest) == ((2, 3), "float32", [3, -1.5, "text", 1, 2])
        np.testing.assert_array_equal(content, array)
        assert b.tolist() == [7, 8]


def _store(out: Any, value: Any) -> Any:
    ib = ir_builder.create()
    given = ib.let("given", value)
    ib.buffer_ptr(out)[0] = given
    ib.buffer_ptr(out)[1] = given + 1
    return ib.get()


SCHEDULED: dict[str, Callable[[te.Schedule, Any, Any], object]] = {
    "plain": lambda s, T, B: s[T].compute_inline(),
    "computed where it is read": lambda s, T, B: s[T].compute_at(s[B], B.op.axis[0]),
    "vectorized": lambda s, T, B: s[B].vectorize(B.op.axis[0]),
    "unrolled": lambda s, T, B: s[B].unroll(B.op.axis[0]),
}


@pytest.mark.parametrize("schedule", SCHEDULED)
@pytest.mark.parametrize("named", [False, True])
def test_an_index_that_a_function_returns(registered: Any, schedule: str, named: bool) -> None:
    """It is asked for once an element, and what it returns then is checked."""
    calls: list[int] = []

    def count_up(i: int) -> int:
        calls.append(i)
        return len(calls) - 1

    name = registered(count_up)
    A = te.placeholder((4,), name="A")
    T = te.compute((4,), lambda i: A[i] * 2.0, name="T")

    def read(i: Any) -> Any:
        x = te.var("x")
        index = tir.call_packed(name, i)
        return tir.Let(x, index, T[x]) if named else T[index]

    B = te.compute((6,), read, name="B")
    s = te.create_schedule(B.op)
    SCHEDULED[schedule](s, T, B)
    f = build(s, [A, B], name="f")
    b = np.full(6, -1, "float32")
    tensor = "A" if schedule == "plain" else "T"
    with pytest.raises(IndexError, match=rf"^f: {tensor}\[4\]: expected an index inside shape"):
        f(np.arange(4, dtype="float32"), b)
    assert calls == [0, 1, 2, 3, 4]
    assert b.tolist() == [0, 2, 4, 6, -1, -1]


class Oops(Exception):
    pass


@pytest.mark.parametrize("error", [ValueError("bad 3%s"), Oops("mine", 1), KernelError("k"),
                                   KeyboardInterrupt()], ids=repr)  # fmt: skip
def test_exceptions_cross(registered: Any, error: BaseException) -> None:
    """As the same object; memory on the heap is given back, and nothing after it runs."""

    def fail(i: int) -> None:
        if i == 2:
            raise error

    name = registered(fail)

    def body(ins: Any, outs: Any) -> Any:
        ib = ir_builder.create()
        T, Y = ib.allocate("float32", (1 << 24,), name="T"), ib.buffer_ptr(outs[0])
        T[0] = 1.0
        with ib.for_range(0, 4, name="i") as i:
            ib.emit(tir.call_packed(name, i))
            Y[i] = T[0]
        return ib.get()

    Y = te.extern((4,), [], body, dtype="float32", name="Y")
    f = build([Y], [Y])
    with given_back(1 << 28):
        for _ in range(30):  # of 64 MiB
            y = np.zeros(4, "float32")
            with pytest.raises(type(error)) as caught:
                f(y)
            assert caught.value is error
            assert y.tolist() == [1, 1, 0, 0]


def test_an_unknown_packed_function() -> None:
    B = te.compute((1,), lambda i: tir.call_packed("minitvm.test.unknown"), name="B")
    with pytest.raises(ValueError, match=r"minitvm\.test\.unknown"):
        build([B], [B])(np.zeros(1, "int32"))


def test_call_extern() -> None:
    A = te.placeholder((n,), dtype="float64", name="A")
    B = te.compute(
        (n,), lambda i: tir.call_extern("float64", "fdim", A[i], te.const(6.0, "float64")), name="B"
    )
    a, b = np.array([8.0, -27.0]), np.zeros(2)
    both([B], [A, B], a, b)
    assert b.tolist() == [2.0, 0.0]


def test_call_llvm_intrin() -> None:
    A = te.placeholder((n,), name="A")
    B = te.compute(
        (n,),
        lambda i: tir.call_llvm_intrin("float32", "llvm.fma", A[i], A[i], te.const(1.0)),
        name="B",
    )
    C = te.compute((n,), lambda i: tir.call_llvm_intrin("int32", "llvm.bswap", i), name="C")
    a, b, c = f32(5), np.zeros(5, "float32"), np.zeros(5, "int32")
    build([B, C], [A, B, C], fp="strict")(a, b, c)
    np.testing.assert_array_equal(b, (a.astype("float64") ** 2 + 1).astype("float32"))
    assert c.tolist() == [i << 24 for i in range(5)]


@pytest.mark.parametrize(
    ("dtype", "name", "args", "reason"),
    [
        ("float32", "llvm.expp", ("x",), r"takes \(float\) .* unknown intrinsic 'llvm.expp'"),
        ("float32", "llvm.x86.sse.sqt", ("x",), "unknown intrinsic 'llvm.x86.sse.sqt'"),
        ("float32", "llvm.sqrt", ("x", "x"), r"takes \(float, float\) .* invalid intrinsic"),
        ("int32", "llvm.sqrt", ("i",), r"takes \(i32\) and returns i32: .* invalid"),
        ("int32", "llvm.sqrt", ("x",), r"takes \(float\) and returns i32"),
        ("int32", "llvm.ctlz", ("i", "p"), "immarg operand has non-immediate parameter"),
        ("int32", "llvm.ctpop", (), "invalid intrinsic signature"),
        ("int32", "llvm.hexagon.A2.abs", ("i",), "expected an intrinsic for .*, got one for h"),
        ("int32", "llvm.x86.tilezero.internal", ("i",), "expected (a target|an intrinsic)"),
    ],
)  # fmt: skip
def test_intrinsics_that_llvm_does_not_have(
    dtype: str, name: str, args: tuple[str, ...], reason: str
) -> None:
    A = te.placeholder((4,), name="A")

    def element(i: Any) -> Any:
        values = {"x": A[i], "i": i, "p": i > 1}
        return tir.call_llvm_pure_intrin(dtype, name, *[values[each] for each in args])

    B = te.compute((4,), element, name="B")
    with pytest.raises(CompileError, match=f"{name}: .*{reason}"):
        build([B], [A, B])


LANES = tir.decl_buffer((16,), name="A")


@pytest.mark.parametrize(
    ("name", "lanes", "more", "cpu", "reason"),
    [
        ("llvm.x86.avx.rsqrt.ps.256", 8, (), "x86-64", "expected a target that has its instr"),
        ("llvm.x86.avx512.max.ps.512", 16, (0, 4), "haswell", r"or another -mcpu .* \(LLVM says: "),
        ("llvm.x86.avx512.max.ps.512", 16, (0, 4), "skylake-avx512", None),
        ("llvm.x86.sse.rsqrt.ps", 4, (), "x86-64", None),
        ("llvm.coro.promise", 0, (), "x86-64", "takes .* invalid intrinsic signature"),
    ],
)
def test_intrinsics_that_a_target_does_not_have(
    name: str, lanes: int, more: tuple[int, ...], cpu: str, reason: str | None
) -> None:
    """LLVM would end the process."""
    place = tir.Ramp(te.const(0), te.const(1), lanes) if lanes else te.const(0)
    load = tir.BufferLoad(LANES, (place,))
    args = [load, *([load, te.const(more[1])] if more else [])]
    body = tir.BufferStore(LANES, tir.call_llvm_pure_intrin(load.dtype, name, *args), (place,))
    func = function("f", LANES, body=body)
    target = f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}"
    if reason is None:
        assert build(func, target=target).get_source("asm")
        return
    with pytest.raises(CompileError, match=f"{name}: .*{reason}"):
        build(func, target=target)


def test_assertions_of_the_program() -> None:
    x = te.var("x")
    body = tir.AssertStmt(x < 5, "x {} of 100%", tir.Evaluate(te.const(0)), (x,))
    f = build(function("f", x, body=body))
    f(4)
    with pytest.raises(KernelError, match=r"^x 5 of 100%$"):
        f(5)


def test_scalars_and_sizes_as_parameters() -> None:
    x, count = te.var("x", "float32"), te.var("count")
    B = te.compute((count,), lambda i: x * i.astype("float32"), name="B")
    b = np.zeros(4, "float32")
    both([B], [x, count, B], 1.5, 4, b)
    assert b.tolist() == [0.0, 1.5, 3.0, 4.5]
    assert math.isfinite(float(b.sum()))
