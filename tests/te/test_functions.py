"""The functions of op.py: their dtypes, their values on constants and what they refuse."""

from __future__ import annotations

import builtins
import math
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir import op
from minitvm.tir.intrinsics import INTRINSICS, Domain

OF_FLOATS = [each for each in INTRINSICS.values() if each.domain is Domain.FLOATS]
UNARY = [each.name for each in OF_FLOATS if each.arity == 1]
BINARY = [each.name for each in OF_FLOATS if each.arity == 2 and each.second is None]
ROUNDING = [each.name for each in INTRINSICS.values() if each.domain is Domain.ROUNDED]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def call(made: Any) -> e.Call:
    assert isinstance(made, e.Call)
    return made


def value(made: Any) -> Any:
    assert isinstance(made, (e.IntImm, e.FloatImm))
    return made.value


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_a_float(name: str) -> None:
    function = getattr(te, name)
    for dtype in FLOATS:
        made = call(function(te.var("x", dtype)))
        assert (made.op, str(made.dtype), len(made.args)) == (name, dtype, 1)
    with pytest.raises(
        CompileError, match=f"{name}: expected a floating-point argument, got int32"
    ):
        function(te.var("n"))
    folded = value(function(te.const(1.0, "float32")))
    wanted = INTRINSICS[name].meaning(DType.of("float32"), 1.0)
    assert folded == wanted or (math.isnan(folded) and math.isnan(wanted))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_floats(name: str) -> None:
    function = getattr(tir, name)
    made = call(function(te.var("x", "float32"), te.var("y", "float64")))
    assert (made.op, str(made.dtype)) == (name, "float64")
    assert call(function(te.var("x", "float16"), 2)).dtype == "float16"
    with pytest.raises(
        CompileError, match=f"{name}: expected a floating-point argument, got int32"
    ):
        function(te.var("n"), 2)
    assert value(function(2.5, 1.0)) == INTRINSICS[name].meaning(DType.of("float32"), 2.5, 1.0)


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_leaves_integers_alone(name: str) -> None:
    n = te.var("n")
    assert getattr(te, name)(n) is n
    assert call(getattr(te, name)(te.var("x", "float64"))).dtype == "float64"


@pytest.mark.parametrize("name", [*ROUNDING, "isnan", "isinf", "isfinite"])
def test_rounding_and_tests_refuse_what_is_no_number(name: str) -> None:
    with pytest.raises(CompileError, match=f"{name}: expected a floating-point.*got handle: cast"):
        getattr(te, name)("x")


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_number_refuses_two(name: str) -> None:
    x = te.var("x", "float32")
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        getattr(te, name)(x, x)


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_numbers_refuses_three(name: str) -> None:
    x = te.var("x", "float32")
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        getattr(te, name)(x, x, x)


def test_an_instruction_is_named_by_a_text() -> None:
    P = te.placeholder((4,), dtype="int32", name="P")
    for function, more in ((te.dot_product, (4,)), (te.matrix_product, (1, 1, 1))):
        with pytest.raises(CompileError, match=r"expected an instruction among .*, got P\[0\]"):
            function(P[0], *more)


def test_halves() -> None:
    assert [value(te.round(x)) for x in (0.5, -2.5)] == [1.0, -3.0]
    assert [value(te.nearbyint(x)) for x in (0.5, 1.5)] == [0.0, 2.0]


def test_tests_of_floats() -> None:
    for name, of_integer in (("isnan", False), ("isinf", False), ("isfinite", True)):
        function = getattr(te, name)
        assert call(function(te.var("x", "float16"))).dtype == "bool"
        assert value(function(te.var("n"))) is of_integer
    assert value(te.isnan(math.nan)) is True and value(te.isinf(-math.inf)) is True


def test_abs_and_power() -> None:
    assert call(te.abs(te.var("n", "int8"))).op == "fabs"
    u = te.var("u", "uint8")
    assert te.abs(u) is u and value(te.abs(-3)) == 3
    x = te.var("x", "float32")
    assert call(te.power(x, 2.5)).dtype == "float32"
    assert [str(te.power(x, n)) for n in (2, 3.0)] == ["x * x", "x * x * x"]
    assert value(te.pow(2, 5)) == 32


def test_ldexp() -> None:
    made = call(te.ldexp(te.var("x", "float32"), te.var("n", "int8")))
    assert made.dtype == "float32" and made.args[1].dtype == "int32"
    assert value(te.ldexp(1.5, 2)) == 6.0
    with pytest.raises(CompileError, match="ldexp: expected an integer exponent, got float32"):
        te.ldexp(1.0, 2.0)
    with pytest.raises(CompileError, match="ldexp: expected a floating-point argument, got int32"):
        te.ldexp(1, 2)


def test_bits() -> None:
    assert call(te.popcount(te.var("u", "uint8"))).dtype == "uint8"
    assert call(te.clz(te.var("u", "int64"))).dtype == "int32"
    assert value(te.popcount(7)) == 3 and value(te.clz(1)) == 31
    with pytest.raises(CompileError, match="popcount: expected an integer, got float32"):
        te.popcount(1.0)
    with pytest.raises(CompileError, match="clz: expected an integer, got bool"):
        te.clz(te.var("b", "bool"))
    with pytest.raises(CompileError, match="shift_left: expected a shift from 0 to 31 for int32"):
        tir.shift_left(te.var("n"), 32)
    with pytest.raises(CompileError, match="bitwise_and: expected integers, got float32"):
        tir.bitwise_and(te.var("x", "float32"), 1)


def test_choice() -> None:
    n, x = te.var("n"), te.var("x", "float32")
    made = call(te.if_then_else(n != 0, n, x))
    assert (made.op, str(made.dtype)) == ("if_then_else", "float32")
    assert te.if_then_else(True, n, n + 1) is n
    assert value(te.if_then_else(te.const(0) > 1, 1, 2)) == 2


def test_logic() -> None:
    a, b, c = (te.var(name, "bool") for name in "abc")
    assert isinstance(te.all(a, b, c), e.And) and isinstance(te.any(a, b, c), e.Or)
    assert te.all(a) is a and te.any(a, False) is a and value(te.any(a, True)) is True
    for function, name in ((te.all, "all"), (te.any, "any")):
        with pytest.raises(
            CompileError, match=f"{name}: expected at least one condition, got none"
        ):
            function()
    assert call(te.likely(a)).dtype == "bool" and value(te.likely(True)) is True


def test_division() -> None:
    n = te.var("n")
    assert isinstance(te.div(n, 2), e.Div) and value(te.div(-7, 2)) == -3
    assert isinstance(te.div(te.var("x", "float32"), 2), e.Div)
    assert isinstance(te.indexdiv(n, 2), e.FloorDiv) and isinstance(te.indexmod(n, 2), e.FloorMod)
    assert value(te.ceildiv(7, 2)) == 4 and value(te.ceildiv(8, 2)) == 4
    with pytest.raises(CompileError, match="truncdiv: expected integers, got float32 and int32"):
        te.truncdiv(te.var("x", "float32"), 2)


@pytest.mark.parametrize(
    ("dtype", "least", "greatest"),
    [
        ("int8", -128, 127), ("uint16", 0, 65535), ("int64", -(2**63), 2**63 - 1),
        ("bool", 0, 1), ("float16", -65504.0, 65504.0),
        ("float32", -(2.0**128 - 2.0**104), 2.0**128 - 2.0**104),
        ("bfloat16", -(2.0**128 - 2.0**120), 2.0**128 - 2.0**120),
    ],
)  # fmt: skip
def test_limits(dtype: str, least: float, greatest: float) -> None:
    assert value(te.min_value(dtype)) == least and value(te.max_value(dtype)) == greatest
    assert te.min_value(dtype).dtype == dtype


def test_infinity() -> None:
    assert value(te.infinity("bfloat16")) == math.inf
    with pytest.raises(CompileError, match="infinity: expected a floating-point dtype, got int32"):
        te.infinity("int32")
    with pytest.raises(CompileError, match="max_value: expected the dtype of a number, got handle"):
        te.max_value("handle")


def test_reinterpret() -> None:
    x = te.var("x", "float32")
    assert call(te.reinterpret("int32", x)).dtype == "int32" and te.reinterpret("float32", x) is x
    with pytest.raises(CompileError, match="reinterpret: expected types of one width, got float32"):
        te.reinterpret("int64", x)


def test_calls_out_of_the_program() -> None:
    buffer = tir.decl_buffer((4,), name="B")
    packed = tir.call_packed("f", buffer, 1, 2.5, "text")
    assert packed.dtype == "int32" and packed.op == "call_packed"
    kinds = [type(arg).__name__ for arg in packed.args]
    assert kinds == ["StringImm", "BufferRef", "IntImm", "FloatImm", "StringImm"]
    extern = tir.call_extern("float64", "cos", te.var("x", "float64"))
    assert (extern.op, str(extern.dtype)) == ("call_extern", "float64")
    assert tir.call_pure_extern("int32", "f").op == "call_extern"


def test_llvm_intrinsics() -> None:
    x = te.var("x", "float32")
    for function in (tir.call_llvm_intrin, tir.call_llvm_pure_intrin):
        classic = function("float32", "llvm.sqrt", tir.const(1, "uint"), x)
        plain = function("float32", "llvm.sqrt", x)
        assert classic.op == plain.op == function.__name__
        assert classic.args[1] is x and plain.args[1] is x and len(classic.args) == 2
        with pytest.raises(CompileError, match=r"expected a name that starts with .* got int 12"):
            function("float32", 12, x)  # type: ignore[arg-type]  # the mistake that is tested


def test_intrinsics_by_name() -> None:
    x = te.var("x", "float32")
    for name in ("tir.exp", "exp"):
        assert call(tir.call_intrin("float32", name, x)).op == "exp"
    assert call(tir.call_intrin("float32", "tir.abs", x)).op == "fabs"
    assert call(tir.call_intrin("bool", "tir.likely", x > 0)).op == "likely"
    with pytest.raises(CompileError, match=r"got 'tir.sqr': did you mean sqrt"):
        tir.call_intrin("float32", "tir.sqr", x)
    with pytest.raises(
        CompileError, match=r"the name of an intrinsic, got 'zzz': one of your own begins with"
    ):
        tir.call_intrin("float32", "zzz", x)


@pytest.mark.parametrize("name", INTRINSICS)
def test_a_call_by_name_takes_the_dtypes_of_its_entry(name: str) -> None:
    known = INTRINSICS[name]
    for dtype in map(DType.of, (*FLOATS, "int8", "uint64", "bool", "float32x4", "int32x4")):
        args = [te.var("x", dtype), te.var("y", known.second_of(dtype))][: known.arity]
        if known.problem(dtype) is None:
            made = call(tir.call_intrin(known.result_of(dtype), name, *args))
            assert (made.op, made.args) == (name, tuple(args))
            continue
        with pytest.raises(CompileError, match=rf"call_intrin: {name}: expected .*, got {dtype}"):
            tir.call_intrin(known.result_of(dtype), name, *args)


def test_isnullptr() -> None:
    assert tir.isnullptr(te.var("p", "handle")).dtype == "bool"
    with pytest.raises(CompileError, match="isnullptr: expected a handle, got int32"):
        tir.isnullptr(te.var("n"))


def test_convert() -> None:
    made = op.convert([1, 2.5, True, "text", (te.var("n"),), None])
    assert [type(each).__name__ for each in made] == [
        "IntImm", "FloatImm", "IntImm", "StringImm", "tuple", "NoneType",
    ]  # fmt: skip
    assert [str(each.dtype) for each in made[:3]] == ["int32", "float32", "bool"]
    A = te.placeholder((4,))
    assert tvm.runtime.convert(A) is A and tvm.runtime.convert(3).dtype == "int32"
    assert op.convert(A) is A and value(op.convert({"x": 1})["x"]) == 1
    with pytest.raises(CompileError, match="convert: expected an expression or a number, got obj"):
        op.convert(object())


def test_every_intrinsic_has_a_function() -> None:
    """`tir` lists it; so do `te`, and `te.hybrid` where Python has no name for it."""
    for known in INTRINSICS.values():
        name = known.language_name
        function = getattr(tir, name)
        assert name in vars(tir)["__all__"] and function.__name__ == name
        if not known.operator:
            assert name in vars(te)["__all__"]
            assert name in vars(te.hybrid)["__all__"] or hasattr(builtins, name)
        if not known.operator and known.domain is not Domain.NUMBERS:
            assert function.__doc__ == known.doc
