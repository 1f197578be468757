"""Random expressions and reductions: compiled code does what the interpreter does."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minitvm import build, lower, te
from minitvm.runtime.dtype import FLOAT32, FLOAT64, DType
from minitvm.runtime.module import Module
from minitvm.tir import interpreter
from tests.codegen.kernels import (
    DTYPES,
    Elementwise,
    array_of,
    equal,
    numpy_dtype,
    values_of,
)
from tests.codegen.strategies import elements, expressions, shapes

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_expression(data: st.DataObject) -> None:
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3))
    wanted = data.draw(st.sampled_from(DTYPES))
    trees = data.draw(st.lists(expressions(wanted, tuple(dtypes)), min_size=1, max_size=3))
    length = data.draw(st.sampled_from([0, 1, 3, 17]))
    columns = [data.draw(st.lists(elements(d), min_size=length, max_size=length)) for d in dtypes]
    arrays = [array_of(d, c) for d, c in zip(dtypes, columns, strict=True)]
    kernel = Elementwise([tree.made for tree in trees], dtypes)
    compiled, interpreted = kernel(*arrays), kernel.interpreted(*arrays)
    for tree, found, expected in zip(trees, compiled, interpreted, strict=True):
        agree = equal if tree.loses_sign_of_zero else _same
        for row, a, b in zip(zip(*columns, strict=True), found, expected, strict=True):
            assert agree(a, b), f"{tree.text} at {row}: compiled {a}, interpreted {b}"


def _same(a: Any, b: Any) -> bool:
    return equal(a, b) and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b)
                            or math.isnan(a))  # fmt: skip


@few
@given(st.data())
def test_expressions(data: st.DataObject) -> None:
    check_expression(data)


@pytest.mark.wide
@many
@given(st.data())
def test_expressions_widely(data: st.DataObject) -> None:
    check_expression(data)


# -- Reductions -----------------------------------------------------------------------------------

REDUCERS: dict[str, Any] = {"sum": te.sum, "min": te.min, "max": te.max, "prod": te.prod}


def check_reduction(data: st.DataObject) -> None:
    """Over the last axes of an array of random shape; exact since ``fp="strict"`` keeps the order,
    and -0.0 cannot become 0.0 but in min and max."""
    dtype = data.draw(st.sampled_from([d for d in DTYPES if not d.is_bool]))
    shape = data.draw(shapes(max_size=4))
    kept = data.draw(st.integers(0, len(shape) - 1))
    name = data.draw(st.sampled_from(sorted(REDUCERS)))
    only_odd, from_one = data.draw(st.booleans()), data.draw(st.booleans())
    count = math.prod(shape)
    values = data.draw(st.lists(elements(dtype), min_size=count, max_size=count))
    A = te.placeholder(shape, dtype=dtype, name="A")
    axes = [te.reduce_axis((0, extent), f"k{i}") for i, extent in enumerate(shape[kept:])]
    named: dict[str, Any] = {"where": axes[0].var % 2 == 1} if only_odd else {}
    if from_one:
        named["init"] = te.const(1, dtype)
    B = te.compute(
        shape[:kept], lambda *i: REDUCERS[name](A[i + tuple(axes)], axis=axes, **named), name="B"
    )
    a = array_of(dtype, values).reshape(shape)
    found = np.zeros(shape[:kept], numpy_dtype(dtype))
    expected = found.copy()
    build([B], [A, B], fp="strict")(a, found)
    (function,) = lower([B], [A, B]).functions.values()
    interpreter.interpret(function, a, expected)
    for x, y in zip(values_of(dtype, found), values_of(dtype, expected), strict=True):
        assert equal(x, y), f"{name} of {values}: compiled {x}, interpreted {y}"


@few
@given(st.data())
def test_reductions(data: st.DataObject) -> None:
    check_reduction(data)


@pytest.mark.wide
@many
@given(st.data())
def test_reductions_widely(data: st.DataObject) -> None:
    check_reduction(data)


# -- Sums of products, reordered ------------------------------------------------------------------


@settings(few, max_examples=10)
@given(
    st.tuples(*[st.integers(1, 40)] * 3),
    st.sampled_from([FLOAT32, FLOAT64]),
    st.integers(0, 2**32 - 1),
)
def test_products_of_matrices(shape: tuple[int, int, int], dtype: DType, seed: int) -> None:
    """In any order, with or without fused multiply-add, the error of a sum of n products is at most
    ``n u / (1 - n u)`` of the sum of their magnitudes (Higham, "Accuracy and Stability of Numerical
    Algorithms", section 3.1)."""
    rows, depth, columns = shape
    random = np.random.default_rng(seed)
    a = random.standard_normal((rows, depth)).astype(dtype.to_numpy())
    b = random.standard_normal((depth, columns)).astype(dtype.to_numpy())
    found = np.empty((rows, columns), dtype.to_numpy())
    _product(dtype)(a, b, found)
    wide = np.longdouble
    exact, magnitude = a.astype(wide) @ b, np.abs(a).astype(wide) @ np.abs(b)
    unit = depth * 2.0 ** -(24 if dtype == FLOAT32 else 53)
    assert (np.abs(found - exact) <= unit / (1 - unit) * magnitude * (1 + 2.0**-40)).all()


@lru_cache
def _product(dtype: DType) -> Module:
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    A = te.placeholder((n, k), dtype=dtype, name="A")
    B = te.placeholder((k, m), dtype=dtype, name="B")
    j = te.reduce_axis((0, k), "j")
    C = te.compute((n, m), lambda p, q: te.sum(A[p, j] * B[j, q], axis=j), name="C")
    return build([C], [A, B, C])
