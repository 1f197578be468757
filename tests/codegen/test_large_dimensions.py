"""Dimensions near the limits of 32 and 64 bits: what is computed, and what is refused, before
anything is touched. Memory that is as large is mapped and hardly written, or one byte repeated."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import CompileError, te, tir
from minitvm.runtime.dlpack import DLTensor
from minitvm.tir.interpreter import interpret
from tests.tir.programs import function

from .large_dimensions import as_expr, mapped, repeated

n, m, k = te.var("n"), te.var("m"), te.var("k")
A = te.placeholder((n,), "int8", name="A")
M = te.placeholder((m,), "int8", name="M")


def build(output: Any, params: list[Any], **options: Any) -> Any:
    schedule = te.create_schedule(output.op)
    return tvm.build(schedule, params, name="f", auto_schedule=False, **options)


# -- Sizes of arguments and workspaces ------------------------------------------------------------


def test_an_input_of_more_than_int32_is_taken() -> None:
    Y = te.placeholder((n * 4,), "int8", name="Y")
    B = te.compute((2,), lambda i: Y[i * (n * 4 - 1)], name="B")
    f = build(B, [A, Y, B])
    size = 2**29 + 2
    y, b = mapped(4 * size), np.zeros(2, "int8")
    y[0], y[-1] = 3, 5
    f(repeated(size), y, b)
    assert b.tolist() == [3, 5]


@pytest.mark.parametrize("given", [8, 2**32, 2**32 + 9])
def test_an_output_of_other_than_its_size_is_refused(given: int) -> None:
    B = te.compute((n * 4,), lambda i: A[i // 4], name="B")
    f = build(B, [A, B])
    expected = rf"expected shape\[0\] == 4294967304 \(n \* 4\), got {given}"
    with pytest.raises(ValueError, match=expected):
        f(repeated(2**30 + 2), mapped(given))


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "int64", "uint64"])
def test_sizes_of_other_dtypes(dtype: str) -> None:
    """They wrap neither where they are narrower than int32 nor where they are unsigned."""
    size = te.var("size", dtype)
    value = min(te.const(0, dtype).dtype.max(), 2**30 + 2)
    S = te.placeholder((size,), "int8", name="S")
    Y = te.placeholder((size * 4 - 1,), "int8", name="Y")
    B = te.compute((2,), lambda i: Y[i * (size.astype("int64") * 4 - 2)], name="B")
    f = build(B, [S, Y, B])
    y, b = mapped(4 * value - 1), np.zeros(2, "int8")
    y[0], y[-1] = 3, 5
    f(repeated(value), y, b)
    assert b.tolist() == [3, 5]
    with pytest.raises(ValueError, match=r"expected shape\[0\] =="):
        f(repeated(value), mapped(7), b)


def test_a_product_of_sizes_that_is_one_modulo_32_bits() -> None:
    Y = te.placeholder((n * m,), "int8", name="Y")
    B = te.compute((2,), lambda i: Y[i * (n * m - 1)] + A[0] + M[0], name="B")
    f = build(B, [A, M, Y, B])
    with pytest.raises(ValueError, match=r"expected shape\[0\] == 4294967297 \(n \* m\), got 1"):
        f(repeated(641), repeated(6700417), repeated(1), np.zeros(2, "int8"))


@pytest.mark.parametrize("more", ["n * 64", "n * m", "(n + 15) // 16 * 1024", "n * 1000 - m"])
def test_a_workspace_beyond_memory(more: str) -> None:
    size = eval(more, {"n": n, "m": m})
    P = te.compute((size,), lambda i: A[te.min(i, n - 1)], name="P")
    B = te.compute((1,), lambda i: P[size - 1] + M[0] + P[0], name="B")
    f = build(B, [A, M, B])
    sizes = {"n": 2**31 - 1, "m": 2**31 - 1 if "* m" in more else 3}
    expected = rf"P: expected {eval(more, sizes)} bytes of memory, found no block that large"
    with pytest.raises(MemoryError, match=expected):
        f(repeated(sizes["n"]), repeated(sizes["m"]), np.zeros(1, "int8"))


def test_a_workspace_of_more_than_int32() -> None:
    """Of which little is touched; on a machine with less memory it is refused."""

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        space, out = ib.allocate("int8", (n * 4,), "space"), ib.buffer_ptr(outs[0])
        with ib.for_range(0, 2, name="i") as i:
            space[i * (n * 4 - 1)] = (i + 3).astype("int8")
        out[0] = space[0] * te.const(10, "int8") + space[n * 4 - 1]
        return ib.get()

    E = te.extern((1,), [A], body, dtype="int8", name="E")
    found = np.zeros(1, "int8")
    try:
        build(E, [A, E])(repeated(2**29 + 2), found)
    except MemoryError as error:
        assert "space: expected 2147483656 bytes" in str(error)
    else:
        assert found[0] == 34


def test_a_negative_dimension_is_refused() -> None:
    B = te.compute((n - 5,), lambda i: A[i], name="B")
    with pytest.raises(ValueError, match=r"expected shape\[0\] == -2 \(n - 5\), got 0"):
        build(B, [A, B])(repeated(3), np.zeros(0, "int8"))


def test_bytes_beyond_64_bits_are_refused() -> None:
    """Of an array with more elements than one can have, which only a wrong DLTensor is."""
    X = te.placeholder((n, m), "float64", name="X")
    B = te.compute((1,), lambda i: X[0, 0], name="B")
    f = build(B, [X, B])
    array = tvm.nd.array(np.zeros((1, 1)))
    shape = (ctypes.c_int64 * 2).from_address(DLTensor.from_address(array.handle).shape)
    shape[0] = shape[1] = 2**31 - 1
    with pytest.raises(ValueError, match=r"argument 0 'X': expected an array of less than 2\*\*63"):
        f(array, np.zeros(1))
    shape[0] = shape[1] = 1


def test_constants_are_dimensions_too() -> None:
    """Those of a shape are int32 where they fit, and so is what is computed from them."""
    whole = te.placeholder((2**30 + 2,), "int8", name="W")
    Y = te.placeholder((whole.shape[0] * 4,), "int8", name="Y")
    B = te.compute((2,), lambda i: Y[i * (Y.shape[0] - 1)] + whole[0], name="B")
    assert str(Y.shape[0]) == str(2**32 + 8)
    y, b = mapped(2**32 + 8), np.zeros(2, "int8")
    y[0], y[-1] = 3, 5
    build(B, [whole, Y, B])(repeated(2**30 + 2), y, b)
    assert b.tolist() == [3, 5]
    with pytest.raises(CompileError, match="constant of dtype int64"):
        te.placeholder((Y.shape[0] * 2**31,), "int8")


def test_shifted_constants_are_exact_as_shifted_sizes_are() -> None:
    for large in (te.const(2**30), n):
        made = [
            te.compute((1,), lambda i, x=large: te.if_then_else((x << 2) < 5, 1, 0), name="B"),
            te.compute((1,), lambda i, x=large: ((x << 2) >> 1).astype("int64"), name="C"),
            te.compute((1,), lambda i, x=large: x << 2, name="D"),
        ]
        found = [np.zeros(1, each.dtype) for each in made]
        tvm.build(made, [A, *made])(repeated(2**30), *found)
        assert [each[0] for each in found] == [0, 2**31, 0]
    assert str(te.placeholder(((te.const(2**30) << 2) - 5,), "int8").shape[0]) == str(2**32 - 5)


# -- Indices and conditions -----------------------------------------------------------------------


@pytest.mark.parametrize("debug", [None, "bounds"])
@pytest.mark.parametrize("size", [2**29 - 1, 2**29, 2**29 + 2, 2**30 + 2, 2**31 - 1])
def test_conditions_of_sizes_are_exact(size: int, debug: str | None) -> None:
    """Proofs lean on them: without a check, the element is read just where it is there."""
    T = te.placeholder((10,), "int8", name="T")
    conditions = (n * 4 < 10, te.all(n * 4 < 10, n * 4 >= 0), te.min(n * 4, 2**31 - 1) < 10)
    for condition in conditions:
        element = te.if_then_else(condition, T[n * 4], te.const(1, "int8"))
        B = te.compute((1,), lambda i, element=element: element, name="B")
        found = np.zeros(1, "int8")
        build(B, [A, T, B], debug=debug)(repeated(size), np.zeros(10, "int8"), found)
        assert found[0] == 1


def test_an_index_from_data_wraps_as_data_do() -> None:
    """In its check as in the access."""
    T = te.placeholder((10,), "int8", name="T")
    P = te.placeholder((n,), "int32", name="P")
    B = te.compute((n,), lambda i: T[P[i] * 4], name="B")
    f, b = build(B, [T, P, B]), np.zeros(2, "int8")
    f(np.arange(10, dtype="int8"), np.array([2**30, 2**30 + 1], "int32"), b)
    assert b.tolist() == [0, 4]
    with pytest.raises(IndexError, match=r"must stay in \[0, 10\), got -4"):
        f(np.arange(10, dtype="int8"), np.array([2**30 - 1, 0], "int32"), b)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_least_integer_divided_by_minus_one_wraps_wherever_it_stands(
    dtype: str, lanes: int
) -> None:
    least = te.const(0, dtype).dtype.min()
    P, Q = (te.placeholder((4,), dtype, name=name) for name in "PQ")
    T = te.placeholder((3,), "int8", name="T")
    quotients = (lambda i: te.truncdiv(P[i], Q[i]), lambda i: te.floordiv(P[i], Q[i]))
    made = [
        te.compute((4,), lambda i, at=at, use=use: use(at(i)), name=f"B{k}{j}")
        for k, at in enumerate(quotients)
        for j, use in enumerate(
            (
                lambda x: te.if_then_else(x < 5, 1, 0),
                lambda x: x.astype("int64"),
                lambda x: te.min(x, te.const(3, dtype)),
                lambda x: te.truncdiv(x, te.const(2, dtype)),
                lambda x: T[te.floormod(x, te.const(3, dtype))],
            )
        )
    ]
    p, q = np.array([least, least, 7, 6], dtype), np.array([-1, 1, 0, -1], dtype)
    values = np.array([least, least, 0, -6], "int64")
    half = np.array([least // 2, least // 2, 0, -3])
    expected = [values < 5, values, values, half, values % 3] * 2
    schedule = te.create_schedule([each.op for each in made])
    for each in made if lanes > 1 else ():
        _, inner = schedule[each].split(each.op.axis[0], factor=lanes)
        schedule[each].vectorize(inner)
    found = [np.zeros(4, each.dtype) for each in made]
    params = [P, Q, T, *made]
    tvm.build(schedule, params, auto_schedule=False)(p, q, np.arange(3, dtype="int8"), *found)
    for got, wanted in zip(found, expected, strict=True):
        assert got.tolist() == wanted.astype(got.dtype).tolist()
    for simple_mode in (True, False):
        found = [np.zeros(4, each.dtype) for each in made]
        lowered = tvm.lower(schedule, params, simple_mode=simple_mode)["main"]
        interpret(lowered, p, q, np.arange(3, dtype="int8"), *found)
        for got, wanted in zip(found, expected, strict=True):
            assert got.tolist() == wanted.astype(got.dtype).tolist()


def test_shifted_data_wrap_in_indices_and_beside_sizes() -> None:
    T = te.placeholder((3,), "int8", name="T")
    P = te.placeholder((4,), "int32", name="P")
    made = [
        te.compute((4,), lambda i: T[te.floormod(P[i] << 1, 3)], name="B"),
        te.compute((4,), lambda i: te.min(P[i] << 1, n * 4).astype("int64"), name="C"),
    ]
    p = np.array([2**30 + 7, 2**31 - 1, 7, -(2**31)], "int32")
    found = [np.zeros(4, each.dtype) for each in made]
    schedule = te.create_schedule([each.op for each in made])
    f = tvm.build(schedule, [A, T, P, *made], auto_schedule=False)
    f(repeated(2**30 + 3), np.arange(3, dtype="int8"), p, *found)
    assert found[0].tolist() == ((p << 1) % 3).tolist()
    assert found[1].tolist() == (p << 1).tolist()


def test_data_that_cancel_leave_a_sum_that_wraps() -> None:
    """Without the data it would be index arithmetic, which is exact."""
    P = te.placeholder((4,), "int32", name="P")
    made = [
        te.compute((4,), lambda i: te.if_then_else(P[i] - P[i] + n * 4 < 5, 1, 0), name="B"),
        te.compute((4,), lambda i: te.min(P[i] + n * 4 - P[i], 7), name="C"),
        te.compute((4,), lambda i: te.min(te.if_then_else(P[i] < P[i], i, n) * 4, 7), name="D"),
        te.compute((4,), lambda i: te.min(n * 4, 7), name="E"),
    ]
    found = [np.zeros(4, "int32") for _ in made]
    schedule = te.create_schedule([each.op for each in made])
    f = tvm.build(schedule, [A, P, *made], auto_schedule=False)
    f(repeated(2**30 + 1), np.arange(4, dtype="int32"), *found)
    assert [each.tolist() for each in found] == [[1] * 4, [4] * 4, [4] * 4, [7] * 4]


def test_a_name_for_an_index_is_exact() -> None:
    Y = te.placeholder((n * 4,), "int8", name="Y")

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        y, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        last = ib.let("last", n * 4 - 1)
        out[0] = y[last].astype("int32")
        out[1] = last
        out[2] = last // 2
        return ib.get()

    E = te.extern((3,), [Y, A], body, dtype="int32", name="E")
    y, found = mapped(2**32 + 8), np.zeros(3, "int32")
    y[-1] = 5
    build(E, [A, Y, E])(mapped(2**30 + 2), y, found)
    assert found.tolist() == [5, 7, -(2**31) + 3]  # 2**32 + 7, and half of it, modulo 2**32


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("n * 4", 8),
        ("n * 4 // 4", 2**30 + 2),
        ("(n * 4 + 3) % 7", (2**32 + 11) % 7),
        ("te.min(n * 4, 5)", 5),
        ("te.if_then_else(n * 4 < 0, 1, 2)", 2),
        ("(n * 4).astype('int64')", 2**32 + 8),
        ("(n * 4).astype('float32').astype('int32')", 8),
        ("(n * 4) >> 1", -(2**31) + 4),
        ("te.max(n * 4, 0) // te.max(n, 1)", 4),
    ],
)
def test_values_are_exact_modulo_their_dtype(expression: str, value: int) -> None:
    """In the loops as they are written, as they are lowered, and in the machine."""
    made = as_expr(eval(expression, {"n": n, "te": te}))
    B = te.compute((1,), lambda i: made, name="B")
    schedule = te.create_schedule(B.op)
    found = np.zeros(1, B.dtype)
    build(B, [A, B])(repeated(2**30 + 2), found)
    assert found[0] == value
    for simple_mode in (True, False):
        found[0] = -1
        lowered = tvm.lower(schedule, [A, B], simple_mode=simple_mode)["main"]
        interpret(lowered, repeated(2**30 + 2), found)
        assert found[0] == value


def test_pointers_and_regions_reach_beyond_int32() -> None:
    """What C and packed functions get is at the exact place."""
    Y = te.placeholder((n * 4,), "int8", name="Y")

    def body(ins: Any, outs: Any) -> Any:
        ib = tir.ir_builder.create()
        target = outs[0].access_ptr("w", offset=0)
        source = ins[0].access_ptr("r", offset=n * 4 - 2)
        ib.emit(tir.call_extern("handle", "memcpy", target, source, te.const(2, "int64")))
        return ib.get()

    E = te.extern((2,), [Y, A], body, dtype="int8", name="E")
    y, found = mapped(2**32 + 8), np.zeros(2, "int8")
    y[-2:] = 3, 5
    build(E, [A, Y, E])(mapped(2**30 + 2), y, found)
    assert found.tolist() == [3, 5]


def test_a_loop_is_clipped_in_the_wider_type() -> None:
    """A guard of 64 bits around a loop of 32."""
    wide = te.var("wide", "int64")
    a = tir.decl_buffer((64, 2), "int8", "out")
    b = tir.ir_builder.create()
    target = b.buffer_ptr(a)
    with b.for_range(0, 1, name="o"), b.for_range(0, 64, name="p") as p:  # noqa: SIM117
        with b.for_range(0, 32, name="q") as q, b.if_scope(tir.likely(p * 32 + q < wide)):
            target[p, 0] = te.const(1, "int8")
    w = tir.decl_buffer((wide,), "int8", "W")
    func = function("f", w, a, body=b.get())
    found = np.zeros((64, 2), "int8")
    tvm.build(func)(repeated(2**37 + 40), found)
    assert found[:, 0].sum() == 64


# -- Beyond 64 bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2**61 - 1, 2**62, 2**62 + 2])
def test_sizes_with_which_64_bits_do_not_suffice(size: int) -> None:
    wide = te.var("n", "int64")
    W = te.placeholder((wide,), "int8", name="W")
    Y = te.placeholder((wide * 4,), "int8", name="Y")
    B = te.compute((1,), lambda i: Y[i] + W[0], name="B")
    f = build(B, [W, Y, B])
    with pytest.raises(ValueError, match=r"expected (sizes with which|shape\[0\] ==)"):
        f(repeated(size), repeated(size * 4 % 2**64), np.zeros(1, "int8"))


def test_a_loop_over_a_product_beyond_64_bits() -> None:
    """2**64 rounds are not none."""
    K = te.placeholder((k,), "int8", name="K")
    r = te.reduce_axis((0, n * m * k * 4), "r")
    B = te.compute((1,), lambda i: te.sum((r.var % 2).astype("int8") + M[0], axis=r), name="B")
    f = build(B, [A, M, K, B])
    expected = "expected sizes with which indices stay below 2\\*\\*62, got n = 1073741824, m = "
    with pytest.raises(ValueError, match=expected):
        f(repeated(2**30), repeated(2**30), repeated(4), np.zeros(1, "int8"))
    found = np.zeros(1, "int8")
    f(repeated(3), repeated(2), repeated(2), found)
    assert found[0] == 24


@pytest.mark.parametrize("data_first", [True, False])
def test_data_in_an_index_limit_no_size(data_first: bool) -> None:
    """Arithmetic on data wraps, whatever it is combined with."""
    wide = te.var("n", "int64")
    table = te.placeholder((wide,), "int8", name="table")
    data = te.placeholder((4,), "int64", name="data")

    def place(i: Any) -> Any:
        return data[i] * wide if data_first else wide * data[i]

    B = te.compute((4,), lambda i: table[te.floormod(place(i), wide)], name="B")
    f = build(B, [table, data, B])
    found = np.zeros(4, "int8")
    f(np.arange(5, dtype="int8") + 7, np.array([0, 1, -3, 2**40], "int64"), found)
    assert found.tolist() == [7] * 4


def test_what_fits_anyway_is_not_limited() -> None:
    """A call pays for nothing where int32 sizes can't get near 64 bits."""
    B = te.compute((n, m), lambda i, j: A[i] + M[j], name="B")
    schedule = te.create_schedule(B.op)
    schedule[B].fuse(*B.op.axis)
    assert "2**62" not in str(tvm.lower(schedule, [A, M, B]))


# -- Programs that are drawn ----------------------------------------------------------------------


def check_programs(seed: int, count: int) -> None:
    """In a process of its own, whose crash is seen."""
    command = [sys.executable, "-m", "tests.codegen.large_dimensions", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-8:])


def test_drawn_programs_agree_with_integers() -> None:
    check_programs(0, 30)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(1000, 11000, 500))
def test_more_drawn_programs_agree_with_integers(seed: int) -> None:
    check_programs(seed, 500)


def test_conditions_on_data_are_data() -> None:
    """What is made of them wraps, and limits no size."""
    X = te.placeholder((3,), "int64", name="X")
    large = te.const(2**62, "int64")
    Y = te.compute((3,), lambda i: ((X[i] > 0).astype("int64") * large + large) // 3, name="Y")
    y = np.empty(3, "int64")
    tvm.build([Y], [X, Y])(np.array([-1, 0, 1]), y)
    assert y.tolist() == [2**62 // 3, 2**62 // 3, -(2**63) // 3]
