"""Numbers of Python's and numpy's, and axes, in the place of expressions; and what Python would do
with an expression as if it were a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm.ir import structural_equal
from minitvm.runtime.errors import CompileError

te: Any = tvm.te
tir: Any = tvm.tir  # whose fields' types don't say what stands for an expression

n, m, x = te.var("n"), te.var("m"), te.var("x", "float32")
wide, byte, p = te.var("wide", "int64"), te.var("byte", "uint8"), te.var("p", "bool")
k = te.reduce_axis((0, np.int64(4)), "k")
b = tir.decl_buffer((8,), name="b")
A = te.placeholder((n, 4), name="A")
OPERATORS = [tir.Add, tir.Sub, tir.Mul, tir.Div, tir.Mod, tir.FloorDiv, tir.FloorMod, tir.Min,
             tir.Max, tir.EQ, tir.NE, tir.LT, tir.LE, tir.GT, tir.GE]  # fmt: skip


# -- In the place of expressions ------------------------------------------------------------------


@pytest.mark.parametrize("node", OPERATORS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_a_literal_takes_the_dtype_of_the_other_operand(node: Any, dtype: str) -> None:
    v = te.var("v", dtype)
    for four in (4, np.int64(4), np.uint8(4)):
        for made in (node(v, four), node(four, v)):
            assert made.a.dtype == made.b.dtype == dtype
    with pytest.raises(CompileError, match=rf"{node.__name__}: constant of dtype {dtype}: "):
        node(v, 2**70)
    with pytest.raises(CompileError, match=rf"{node.__name__}: expected a value of {dtype}, got b"):
        node(True, v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_literals_next_to_floats(dtype: str) -> None:
    v = te.var("v", dtype)
    for number in (4, 0.1, np.int8(4)):
        assert tir.Add(v, number).b.dtype == dtype
    assert tir.EQ(v, np.float16(0.5)).b.value == 0.5
    if dtype != "float64":
        with pytest.raises(CompileError, match=f"expected a value of {dtype}, got float64 0.1"):
            tir.Add(v, np.float64(0.1))
        with pytest.raises(CompileError, match=f"constant of dtype {dtype}: .*te.infinity"):
            tir.Add(v, 1e300)
    assert tir.Add(v, math.inf).b.value == math.inf


def test_a_float_next_to_an_integer_converts_that() -> None:
    for made in (tir.EQ(n, 0.5), tir.EQ(0.5, k), tir.Add(1, 2.5)):
        assert made.a.dtype == made.b.dtype == "float32"


MADE: list[tuple[Any, str]] = [
    (tir.EQ(n, 4), "n == 4"),
    (tir.EQ(k, n), "k == n"),
    (tir.Ramp(0, 1, 4), "ramp(0, 1, 4)"),
    (tir.Ramp(k, np.int64(1), np.int64(4)), "ramp(k, 1, 4)"),
    (tir.Broadcast(k, 4), "broadcast(k, 4)"),
    (tir.BufferLoad(b, [0]), "b[0]"),
    (tir.BufferLoad(b, k), "b[k]"),
    (tir.BufferStore(b, 1, [k]), "b[k] = 1.0"),
    (b.vstore(0, np.int64(1)), "b[0] = 1.0"),
    (b.vload(k), "b[k]"),
    (tir.Select(True, n, m), "select(True, n, m)"),
    (tir.Select(p, k, 0.0), "select(p, float32(k), 0.0)"),
    (tir.Select(np.bool_(True), x, 0), "select(True, x, 0.0)"),
    (tir.And(True, p), "True and p"),
    (tir.Not(False), "not False"),
    (tir.Cast("float32", k), "float32(k)"),
    (tir.Let(n, 4, k), "let n = 4 in k"),
    (tir.Call("float32", "exp", [x]), "exp(x)"),
    (tir.Evaluate(0), "0"),
    (tir.For(n, 0, 4, 0, tir.Evaluate(k)), "for n in range(4):\n    k"),
    (tir.LetStmt(wide, 4, tir.Evaluate(0)), "wide = 4\n0"),
    (tir.SeqStmt([tir.Evaluate(0), tir.Evaluate(1)]), "0\n1"),
    (tir.call_packed("f", k, np.int32(1), True), 'call_packed("f", k, 1, True)'),
    (te.if_then_else(True, k, 0.5), "float32(k)"),
    (te.reduce_axis((0, np.int64(4)), "k"), "iter_var(k, range(min=0, ext=4))"),
    (np.float32(2) * x, "2.0 * x"),
    (np.float32(2) * A[0, k], "2.0 * A[0, k]"),
    (np.array(2.0, "float32") * x, "2.0 * x"),
    (x * np.array(2.0, "float32"), "x * 2.0"),
    (np.int64(1) < wide, "1 < wide"),
    (np.float32(2) ** x, "power(2.0, x)"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "text"), MADE, ids=[text for _, text in MADE])
def test_numbers_and_axes_are_taken(made: Any, text: str) -> None:
    assert str(made) == text
    if isinstance(made, (tir.PrimExpr, tir.Stmt)):
        assert structural_equal(made, made)


def test_declarations_take_numbers() -> None:
    made = tir.decl_buffer((np.int64(4), k), strides=[k, np.int32(1)], elem_offset=np.int64(8),
                           data_alignment=np.int64(64), offset_factor=np.int32(4))  # fmt: skip
    assert str(made.strides) == "(k, 1)" and made.data_alignment == 64
    assert te.placeholder((np.int64(4), n)).shape[0].dtype == "int32"
    ib = tir.ir_builder.create()
    with ib.for_range(np.int64(0), k) as i, ib.if_scope(True):
        ib.buffer_ptr(b)[i] = np.float32(1)
    assert "for i in range(k):" in str(ib.get())
    for ptr in (b.access_ptr("r", offset=k), b.access_ptr("rw", offset=np.int64(1))):
        assert ptr.dtype == "handle"


# -- Where Python wants a number ------------------------------------------------------------------


class Exchanged:
    """An array of another library."""

    shape = (3,)

    def __dlpack__(self) -> Any:
        raise AssertionError("expressions take no arrays")


ADVICE: list[tuple[Callable[[], Any], str]] = [
    (lambda: np.exp(x), "np.exp computes numbers, and Var x has none .*: write te.exp"),
    (lambda: np.arctan2(x, 1.0), "write te.atan2"),
    (lambda: np.maximum(x, 0.0), "write te.max"),
    (lambda: np.exp(A), "np.exp computes numbers, and Tensor.* has none .*: write te.exp"),
    (lambda: np.add.reduce([x, x], out=x), "np.add computes numbers"),
    (lambda: np.array(A), "has no elements while a program is written: build a function"),
    (lambda: np.arange(3.0) * x, r"got an array of shape \(3,\): pass it as a te.placeholder"),
    (lambda: x * np.arange(3.0), r"multiply: .* an array of shape \(3,\): pass it as a te.placeh"),
    (lambda: np.arange(3.0) * A, r"got an array of shape \(3,\): pass it as a te.placeholder"),
    (lambda: x * Exchanged(), r"multiply: .* an array of shape \(3,\): pass it as a te.placeh"),
    (lambda: A @ A, r"A: .* has no `@`: write the sum"),
    (lambda: math.sqrt(x), r"for math.sqrt\(x\): te.sqrt\(x\)"),
    (lambda: math.floor(x), r"write te.floor\(x\)"),
    (lambda: math.ceil(A[0, 0]), r"write te.ceil\(x\)"),
    (lambda: math.trunc(x), r"write te.trunc\(x\)"),
    (lambda: round(x), r"write te.nearbyint\(x\), halves to even, or te.round"),
    (lambda: int(n), r'write x.astype\("int32"\)'),
    (lambda: float(k), r'write x.astype\("float32"\)'),
    (lambda: float(A), r'write x.astype\("float32"\)'),
    (lambda: complex(x), "there are no complex numbers"),
    (lambda: list(range(n)), "for `for i in range"),
    (lambda: list(x), "has no members: loop with an axis"),
    (lambda: max(x, 1.0), r"for max\(a, b\), min\(a, b\): te.max, te.min"),
    (lambda: 1 if x else 2, "for `if` write te.if_then_else"),
    (lambda: x < 1 and x > 0, "for `and`, `or`, `not`: te.all, te.any, tir.Not"),
    (lambda: 0 < x < 1, r"for `a < b < c`: te.all\(a < b, b < c\)"),
    (lambda: not (x > 0), r"^x > 0.0 has no truth value"),
    (lambda: not n, "has no truth value while a program is written"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "text"), ADVICE, ids=[text[:40] for _, text in ADVICE])
def test_what_to_write_instead(use: Callable[[], Any], text: str) -> None:
    with pytest.raises((TypeError, CompileError), match=text):
        use()


def test_constants_are_numbers() -> None:
    assert math.sqrt(te.const(4.0)) == 2.0 and int(te.const(2.5)) == 2
    assert round(te.const(2.5)) == 2 and math.floor(te.const(-2.5)) == -3
    assert list(range(te.const(2))) == [0, 1]


def test_dimensions_are_compared_by_identity() -> None:
    B = te.placeholder((n, m), name="B")
    assert A.shape[0] == B.shape[0]
    assert bool(A.shape[0] != B.shape[0]) is False
    assert n * 2 + 1 == n * 2 + 1 and n * 2 != n * 3 and n // m != m // n
    assert n.astype("int64") == n.astype("int64") and n.astype("int64") != wide
    assert (1 if n == 1 else 2) == 2 and A.shape[1] == 4
    assert n in (m, n) and n not in (m, 4)
    shared: Any = n
    for _ in range(100):
        shared = shared + shared
    assert shared == shared and shared != n


@pytest.mark.parametrize(
    "comparison", [k.var == 0, A[0, 0] == 0.0, x == 1.0, n < m, tir.EQ(p, True), k.var * n == n]
)
def test_other_comparisons_have_no_truth_value(comparison: Any) -> None:
    with pytest.raises(CompileError, match="no truth value while a program is written"):
        bool(comparison)


# -- Constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "least"),
    [
        ("float16", 65520.0),
        ("bfloat16", (2 - 2.0**-8) * 2.0**127),
        ("float32", (2 - 2.0**-24) * 2.0**127),
    ],
)
def test_a_constant_beyond_its_dtype(dtype: str, least: float) -> None:
    below = math.nextafter(least, 0.0)
    assert math.isfinite(te.const(below, dtype).value)
    for number in (least, -least, 1e300):
        with pytest.raises(CompileError, match=f"const: constant of dtype {dtype}: .* te.infinity"):
            te.const(number, dtype)
    for special in (math.inf, -math.inf, math.nan):
        value = te.const(special, dtype).value
        assert value == special or (math.isnan(value) and math.isnan(special))
    with pytest.raises(CompileError, match="expected a number that a float can hold"):
        te.const(10**5000, dtype)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (300, "int8", "from -128 to 127, got 300"),
        (-1, "uint64", "from 0 to 18446744073709551615"),
        (2, "bool", "from 0 to 1, got 2"),
        (0.5, "int32", "expected an integer, got 0.5"),
        (math.nan, "int32", "expected an integer, got nan"),
        (math.inf, "uint8", "expected an integer, got inf"),
        ("1", "int32", "expected a number, got str '1'"),
        (np.complex64(1), "float32", "expected a number, got complex64"),
        (1, "handle", "expected a numeric dtype, got handle"),
        (1, "complex64", "expected a dtype of the language"),
        (1, "float32x0", "expected 1 to 65535 lanes"),
    ],
)
def test_wrong_constants(value: Any, dtype: str, text: str) -> None:
    with pytest.raises(CompileError, match=f"const: .*{text}"):
        te.const(value, dtype)


def test_a_constant_that_python_does_not_print() -> None:
    with pytest.raises(CompileError, match=r"const: .*, got one of 16610 bits"):
        te.const(10**5000, "int64")
