"""Reducers: sum, prod, min, max and those of the user."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e

A = te.placeholder((4, 3), name="A")
k = te.reduce_axis((0, 3), "k")
r = te.reduce_axis((0, 4), "r")


def argmax_of(dtype: str = "float32") -> Any:
    def combine(x: Any, y: Any) -> Any:
        larger = x[1] >= y[1]
        return tir.Select(larger, x[0], y[0]), tir.Select(larger, x[1], y[1])

    def identity(index: Any, value: Any) -> Any:
        return te.const(-1, index), te.min_value(value)

    return te.comm_reducer(combine, identity, name="argmax")


@pytest.mark.parametrize(
    ("reducer", "dtype", "identity", "node"),
    [
        (te.sum, "float32", 0, e.Add),
        (te.sum, "int8", 0, e.Add),
        (te.prod, "float64", 1, e.Mul),
        (te.min, "float16", math.inf, e.Min),
        (te.max, "bfloat16", -math.inf, e.Max),
        (te.min, "int8", 127, e.Min),
        (te.max, "int8", -128, e.Max),
        (te.max, "uint8", 0, e.Max),
    ],
)
def test_the_four_reducers(reducer: Any, dtype: str, identity: float, node: type) -> None:
    T = te.placeholder((4, 3), dtype, "T")
    made = reducer(T[0, k], axis=k)
    assert isinstance(made, e.Reduce) and made.dtype == dtype and made.axis == (k,)
    assert made.combiner.identity[0].value == identity  # type: ignore[attr-defined]  # a constant
    assert made.combiner.identity[0].dtype == dtype
    assert type(made.combiner.result[0]) is node
    assert e.const_int(made.condition) == 1 and made.init == ()


def test_several_axes_a_condition_and_a_beginning() -> None:
    made = te.sum(A[r, k], [r, k], where=r > k, init=1)
    assert made.axis == (r, k) and isinstance(made.condition, e.GT)
    assert made.init[0].dtype == "float32"
    B = te.placeholder((4,), name="B")
    C = te.compute((4,), lambda i: te.sum(A[i, k], axis=k, init=B[i]), name="C")
    assert C.op.input_tensors == (A, B)
    positional = te.sum(A[r, k], r, r < 2)
    assert isinstance(positional.condition, e.LT)


def test_values_fold() -> None:
    x, y = te.var("x"), te.var("y")
    assert isinstance(te.max(x, y), e.Max) and isinstance(te.min(x, 0), e.Min)
    assert isinstance(te.max(x, y, 3), e.Max)
    assert isinstance(te.sum(x, y), e.Add) and e.const_int(te.prod(2, 3, 4)) == 24


def test_tuples() -> None:
    made = argmax_of()((k, A[0, k]), axis=k)
    first, second = made
    assert (first.dtype, second.dtype) == ("int32", "float32")
    assert first.combiner is second.combiner and first.source is second.source
    assert [v.name for v in first.combiner.lhs] == ["x_0", "x_1"]
    index, value = te.compute((4,), lambda i: argmax_of()((k, A[i, k]), axis=k), name="C")
    assert isinstance(index.op, te.ComputeOp) and index.op.reduce_axis == (k,)
    assert index.op is value.op and index.op.input_tensors == (A,)


def test_a_reducer_of_the_users() -> None:
    mysum = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="mysum")
    made = mysum(A[0, k], axis=k)
    assert [made.combiner.lhs[0].name, made.combiner.rhs[0].name] == ["x", "y"]
    assert mysum.__name__ == "mysum"


data = te.compute((4,), lambda i: i).axis[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"axis": 0}, "sum: expected axes made by te.reduce_axis, got 0: write k = te.reduce"),
        ({"axis": data}, "sum: expected axes made by te.reduce_axis, got axis i"),
        ({"axis": data.var}, "sum: expected axes made by te.reduce_axis, got axis i"),
        ({"axis": []}, "sum: expected reduce axes, each once, got"),
        ({"axis": [k, k]}, "sum: expected reduce axes, each once, got"),
        ({"axis": k, "init": (1, 2)}, "sum: expected 1 values of init, got 2"),
        (
            {"axis": k, "init": te.var("n")},
            "sum: init: expected a value of float32, got one of int32",
        ),
        (
            {},
            r"sum: expected axis=, or several values to combine, got one: write k = te.reduce_axis",
        ),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        te.sum(A[0, k], **arguments)


def test_a_sum_of_bools_asks_for_a_cast() -> None:
    with pytest.raises(CompileError, match="got two bools: cast them, or use te"):
        te.sum(A[0, k] > 0, axis=k)


def test_wrong_reducers() -> None:
    def reduced(fcombine: Any, fidentity: Any) -> Any:
        return te.comm_reducer(fcombine, fidentity)(A[0, k], axis=k)

    with pytest.raises(CompileError, match="expected fcombine of two values, got one of 1"):
        reduced(lambda x: x, lambda t: te.const(0, t))
    with pytest.raises(CompileError, match="fcombine to return 1 values, got 2"):
        reduced(lambda x, y: (x, y), lambda t: te.const(0, t))
    with pytest.raises(CompileError, match="fcombine: expected a value of float32, got one of boo"):
        reduced(lambda x, y: x < y, lambda t: te.const(0, t))
    with pytest.raises(CompileError, match="fidentity: expected a value of float32, got one of in"):
        reduced(lambda x, y: x + y, lambda t: te.const(0, "int32"))


@pytest.mark.parametrize(
    "write",
    [
        lambda A, k, j: te.sum(te.if_then_else(k == j, A[k, j], 0.0), axis=[k, j]),
        lambda A, k, j: te.sum(A[k, j], axis=[k, j], where=j == k),
        lambda A, k, j: te.sum(A[k, j] - A[k, j] * (k != j), axis=[k, j]),
        lambda A, k, j: te.sum(A[k, j], axis=[k, j], where=te.all(k == j, k + j >= 0)),
        lambda A, k, j: te.sum(A[k, j] * (k == j).astype("float32"), axis=[k, j]),
        lambda A, k, j: te.sum(A[k, j], axis=[k, j], where=~(k != j)),
    ],
)
def test_axes_are_compared_by_their_values(write: Any) -> None:
    A = te.placeholder((3, 4), name="A")
    k, j = te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 4), name="j")
    trace = te.compute((1,), lambda i: write(A, k, j), name="trace")
    a, found = np.arange(12, dtype="float32").reshape(3, 4), np.empty(1, "float32")
    tvm.build([trace], [A, trace])(a, found)
    assert found[0] == 0 + 5 + 10


def test_an_axis_is_found_among_others() -> None:
    k, j = te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 3), name="j")
    assert [bool(each) for each in (k == k, k == j, k != j, k != k)] == [True, False, True, False]
    assert k in [j, k] and k not in [j, j] and [j, k].index(k) == 1
    assert repr(k == j) == "k == j" and repr(k != j) == "k != j"
