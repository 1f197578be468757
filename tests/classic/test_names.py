"""Classic names: clipped bounds, modules that change, dtypes, packed functions found by name."""

# Programs pass lists where constructors convert.
# mypy: disable-error-code="arg-type,attr-defined,operator,no-untyped-call"

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
import minitvm.testing
from minitvm import te, tir

A = te.placeholder((8,), name="A")
B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
C = te.compute((8,), lambda i: B[i] * 2.0, name="C")
a, b, c = te.var("a"), te.var("b"), te.var("c")


# -- Bounds that conditions set -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "variables", "expected"),
    [
        (tir.all(a * 1 < b * 6, a - 1 > 0), [a], [2, b * 6 - 1]),
        (tir.all(a * 1 < b * 6, a - 1 > 0), [a, b], None),
        (tir.all(a + 10 * c <= 20, b - 1 > 0), [a, b], [None, 20 - 10 * c, 2, None]),
        (tir.all(tir.Not(a * 1 > b * 6), a - 1 > 0), [a], [2, b * 6]),
        (tir.all(tir.Min(a, b) > 3, a - 10 < 0), [a, b], [4, 9, 4, None]),
        (tir.all(b == 3, a == 4), [a, b], [4, 4, 3, 3]),
        (tir.Not(tir.any(tir.Max(a, b) > 3, a < -2)), [a, b], [-2, 3, None, 3]),
        (tir.all(a * 3 < 20, a * -3 < 20), [a], [-6, 6]),
        (tir.all(a * 3 <= -7, a * 3 >= -11), [a], [-3, -3]),
        (c - a == b, [a], [c - b, c - b]),
        (tir.any(a < 3, a > 9), [a], None),
        (a * a < 3, [a], None),
        (a * 2 == 4, [a], None),
        (a != 4, [a], None),
        (b < 4, [a], None),
    ],
)
def test_bounds_that_a_condition_sets(condition: Any, variables: Any, expected: Any) -> None:
    found = tvm.arith.detect_clip_bound(condition, variables)
    assert len(found) == len(expected or ())
    for value, wanted in zip(found, expected or (), strict=True):
        assert (value is None) == (wanted is None)
        if wanted is not None:
            tvm.testing.assert_prim_expr_equal(value, wanted)


@pytest.mark.parametrize("factor", [-3, -1, 1, 2, 5])
def test_bounds_are_the_exact_ones(factor: int) -> None:
    for rest in range(-7, 8):
        for compare in (lambda x: x < 0, lambda x: x >= 0, lambda x: x > 0, lambda x: x <= 0):
            found = tvm.arith.detect_clip_bound(compare(a * factor + rest), [a])
            low, high = (None if each is None else int(each) for each in found)
            held = [x for x in range(-20, 21) if compare(x * factor + rest)]
            assert held == list(
                range(-20 if low is None else low, 21 if high is None else high + 1)
            )


@pytest.mark.parametrize(
    ("condition", "variables", "words"),
    [
        (a < 3, ["a"], r"detect_clip_bound: expected a list of integer variables, got list \['a"),
        (a < 3, [te.var("x", "float32")], "expected a list of integer variables, got list"),
        (a < 3, a, "expected a list of integer variables, got Var a"),
        (a < 3, None, "expected a list of integer variables, got NoneType None"),
        ("a < 3", [a], "expected"),
        (None, [a], "expected"),
    ],
)
def test_bounds_of_nothing(condition: Any, variables: Any, words: str) -> None:
    with pytest.raises((tvm.CompileError, TypeError), match=words):
        tvm.arith.detect_clip_bound(condition, variables)


# -- Modules and functions ------------------------------------------------------------------------


def test_modules_take_functions() -> None:
    module = tvm.lower(te.create_schedule(B.op), [A, B], name="plus")
    other = tvm.lower(te.create_schedule(C.op), [A, C], name="twice")
    module.update_func(module.get_global_var("plus"), other["twice"])
    x, y = np.arange(8, dtype="float32"), np.empty(8, "float32")
    tvm.build(module)["plus"](x, y)
    np.testing.assert_array_equal(y, (x + 1) * 2)
    made = tvm.IRModule()
    made["again"] = other["twice"]
    made.update(other)
    assert [each.name_hint for each in made.get_global_vars()] == ["again", "twice"]
    built = tvm.build(made)
    for name in ("again", "twice"):
        built[name](x, y * 0)
        assert built[name].name == name
    assert other["twice"].name == "twice"
    with pytest.raises(tvm.CompileError, match="update_func: f: expected a PrimFunc, got 3"):
        made.update_func("f", 3)
    with pytest.raises(tvm.CompileError, match="update_func: expected a function's name, got 3"):
        made.update_func(3, other["twice"])
    with pytest.raises(tvm.CompileError, match=r"IRModule\.update: expected a module, got 3"):
        made.update(3)


def test_a_built_module_keeps_its_functions() -> None:
    module = tvm.lower(te.create_schedule(B.op), [A, B], name="plus")
    built = tvm.build(module)
    module["plus"] = tvm.lower(te.create_schedule(C.op), [A, C], name="plus")["plus"]
    assert "A[i] + 1.0" in built.get_source("tir")
    x, wide = np.arange(8, dtype="float32"), np.zeros(16, "float32")
    built(x, wide[::2])  # a variant, compiled now
    np.testing.assert_array_equal(wide[::2], x + 1)


def test_build_of_a_target_and_its_module() -> None:
    module = tvm.lower(te.create_schedule(B.op), [A, B], name="plus")
    x, y = np.arange(8, dtype="float32"), np.empty(8, "float32")
    for target in ("llvm", tvm.target.Target("llvm")):
        tvm.build({target: module})(x, y)
        np.testing.assert_array_equal(y, x + 1)
    with pytest.raises(tvm.CompileError, match="expected a mapping of one target, got 2"):
        tvm.build({"llvm": module, "ext_dev": module})
    with pytest.raises(tvm.CompileError, match="expected a mapping of one target, got 0"):
        tvm.build({})
    with pytest.raises(tvm.CompileError, match="in the mapping alone, got target='llvm' as well"):
        tvm.build({"llvm": module}, target="llvm")


def test_functions_return_nothing() -> None:
    assert str(tir.PrimFunc([], tir.Evaluate(0), ret_type=None)) == "def main():\n    0"
    with pytest.raises(tvm.CompileError, match=r"main: ret_type: expected None, .*, got 'int32'"):
        tir.PrimFunc([], tir.Evaluate(0), ret_type="int32")


def test_lower_shows_an_argument_whose_stage_was_inlined() -> None:
    s = te.create_schedule(C.op)
    s[B].compute_inline()
    module = tvm.lower(s, [A, B, C], simple_mode=True)
    assert "C[i] = (A[i] + 1.0) * 2.0" in str(module)
    assert "def main(A: float32[8], B: float32[8], C: float32[8])" in str(module)
    with pytest.raises(tvm.CompileError, match="argument B: expected a stage that is computed"):
        tvm.build(s, [A, B, C])


# -- Names ----------------------------------------------------------------------------------------


def test_dtypes_by_their_names() -> None:
    made = tvm.DataType("float32x4")
    assert (made.type_code, made.bits, made.lanes) == (tvm.DataTypeCode.FLOAT, 32, 4)
    assert made is tvm.runtime.DType.of("float32x4")
    assert tvm.DataType(tvm.DataType("int8")) == "int8"
    assert tvm.DataType("handle").is_handle
    with pytest.raises(TypeError, match="expected the name of a dtype such as 'float32'"):
        tvm.DataType("float33x")
    with pytest.raises(TypeError, match="DType: expected a name such as 'float32x4', or a code"):
        tvm.DataType(3)
    with pytest.raises(TypeError, match="DType: expected a name"):
        tvm.DataType("float32", 4)


def test_packed_functions_of_contrib_are_found_by_name() -> None:
    text = (
        "import sys, numpy as np, minitvm as tvm\n"
        "f = tvm.get_global_func('tvm.contrib.cblas.matmul')\n"
        "x, z = np.eye(2, dtype='float32'), np.empty((2, 2), 'float32')\n"
        "f(x, x, z, False, False)\n"
        "print(z.sum(), tvm.contrib.utils.tempdir().listdir())"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.0", "[]"]
