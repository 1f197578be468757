"""The dtype of an operator's result, and its value on constants."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitvm import te, tir
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir import scalars
from minitvm.tir.indices import exact_value, is_wide

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64",
]  # fmt: skip
# Row and column in the order of DTYPES; b, i8, u8, h (float16), B (bfloat16), f, d; `-`: none.
_TABLE = """
b   i8  i16 i32 i64 u8  u16 u32 u64 h B f d
i8  i8  i16 i32 i64 u8  u16 u32 u64 h B f d
i16 i16 i16 i32 i64 i16 u16 u32 u64 h B f d
i32 i32 i32 i32 i64 i32 i32 u32 u64 h B f d
i64 i64 i64 i64 i64 i64 i64 i64 u64 h B f d
u8  u8  i16 i32 i64 u8  u16 u32 u64 h B f d
u16 u16 u16 i32 i64 u16 u16 u32 u64 h B f d
u32 u32 u32 u32 i64 u32 u32 u32 u64 h B f d
u64 u64 u64 u64 u64 u64 u64 u64 u64 h B f d
h   h   h   h   h   h   h   h   h   h - f d
B   B   B   B   B   B   B   B   B   - B f d
f   f   f   f   f   f   f   f   f   f f f d
d   d   d   d   d   d   d   d   d   d d d d
"""
_ROWS = [line.split() for line in _TABLE.strip().split("\n")]
_LONG = dict(zip(_ROWS[0], DTYPES, strict=True))  # bool yields to any: its row lists all
PROMOTED = {
    (left, right): cell
    for left, row in zip(DTYPES, _ROWS, strict=True)
    for right, cell in zip(DTYPES, row, strict=True)
}


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_every_pair_of_dtypes(left: str, right: str) -> None:
    a, b = te.var("a", left), te.var("b", right)
    cell = PROMOTED[left, right]
    if cell == "-":
        with pytest.raises(CompileError, match="have no common type: cast one of them"):
            a * b
    elif left == right == "bool":
        with pytest.raises(CompileError, match="got two bools: cast them"):
            a * b
    else:
        assert (a * b).dtype == _LONG[cell]
        assert (a < b).dtype == "bool"
        assert te.if_then_else(a == b, a, b).dtype == _LONG[cell]


def test_vectors_promote_with_scalars_and_lanes_must_agree() -> None:
    x = te.var("x", "int32x4")
    assert (x + te.var("s", "float32")).dtype == "float32x4"
    with pytest.raises(CompileError, match="expected equal lanes, got int32x4 and int32x2"):
        x + te.var("y", "int32x2")


def test_python_numbers_take_the_dtype_of_the_other_side() -> None:
    assert (te.var("x", "float64") * 0.1).dtype == "float64"
    assert (te.var("x", "float16") * 2).dtype == "float16"
    product = te.var("x", "float64") * 0.1
    assert isinstance(product, e.Mul) and isinstance(product.b, e.FloatImm)
    assert product.b.value == 0.1


def test_division_of_integers_is_refused() -> None:
    with pytest.raises(CompileError, match="ambiguous: use floordiv or truncdiv"):
        te.var("n") / 2


INTEGERS = [t for t in DTYPES if "int" in t]
FOLDED = [
    ("Add", te.add), ("Sub", te.subtract), ("Mul", te.multiply), ("Div", te.truncdiv),
    ("Mod", te.truncmod), ("FloorDiv", te.floordiv), ("FloorMod", te.floormod),
    ("Min", te.min), ("Max", te.max),
]  # fmt: skip


@given(st.data())
def test_integer_constants_fold_as_scalars_do(data: st.DataObject) -> None:
    dtype = DType.of(data.draw(st.sampled_from(INTEGERS)))
    values = st.integers(dtype.min(), dtype.max()) | st.sampled_from([0, 1, dtype.min()])
    a, b = data.draw(values), data.draw(values)
    name, function = data.draw(st.sampled_from(FOLDED))
    made = function(te.const(a, dtype), te.const(b, dtype))
    exact = scalars.INT_BINARY[name](a, b)
    if is_wide(dtype) and not dtype.min() <= exact <= dtype.max():
        assert exact_value(made) == exact and made.dtype == dtype  # what a dimension would be
        return
    assert isinstance(made, e.IntImm) and made.dtype == dtype
    assert made.value == scalars.binary(name, dtype, a, b)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_negated_integers_wrap(dtype: str) -> None:
    of = DType.of(dtype)
    for value in (0, 1, of.min(), of.max()):
        made = -te.const(value, dtype)
        assert made.dtype == dtype
        if is_wide(of) and -value > of.max():
            assert exact_value(made) == -value  # what a dimension would be
        else:
            assert isinstance(made, e.IntImm)
            assert made.value == scalars.binary("Sub", of, 0, value)
    assert (-te.var("x", dtype)).dtype == dtype


@given(st.floats(width=32), st.floats(width=32))
def test_float_constants_fold_as_scalars_do(a: float, b: float) -> None:
    x, y = te.const(a, "float32"), te.const(b, "float32")
    for name, function in (("Add", te.add), ("Mul", te.multiply), ("Div", te.div)):
        made = function(x, y)
        wanted = scalars.binary(name, x.dtype, a, b)
        assert isinstance(made, e.FloatImm)
        assert made.value == wanted or (math.isnan(made.value) and math.isnan(wanted))


def test_identities_keep_nan_and_signed_zero() -> None:
    x = te.var("x", "float32")
    assert isinstance(x + 0, e.Add) and isinstance(x * 0, e.Mul)
    n = te.var("n")
    assert (n + 0) is n and (n * 1) is n and (0 + n) is n
    assert e.const_int(n * 0) == 0


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(CompileError, match="no truth value while a program is written"):
        bool(te.var("n") < 3)


def test_comparisons_of_integers_of_two_signs() -> None:
    made = tir.LT(te.var("a", "int8"), te.var("b", "int8"))
    assert made.dtype == "bool"
    with pytest.raises(CompileError, match="LT: expected operands of one dtype, got int8 and int"):
        tir.LT(te.var("a", "int8"), te.var("b"))


def test_casts_of_swapped_and_other_arguments() -> None:
    x = te.var("x")
    tensor = te.placeholder((4,), name="A")
    for wrong, shown in ((x, "Var x"), (tensor, "ProducerLoad A.i0."), (x + 1, "Add x \\+ 1")):
        words = f"cast: expected a dtype and then a value, got {shown} first: write cast\\('int8'"
        with pytest.raises(CompileError, match=words):
            te.cast(wrong, "int8")
        with pytest.raises(CompileError, match=r"var: expected .* dtype"):
            te.var("y", wrong)
    with pytest.raises(CompileError, match=r"cast: expected a dtype of the language.* got Var x"):
        te.cast(x, x)
