"""Rules and bounds at the values where they cease to hold."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from minitvm.arith.analyzer import Analyzer
from minitvm.tir import expr as e
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import PrimExpr, Range, Var, const
from minitvm.tir.functor import substitute
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore
from tests.tir.programs import function

i, r, n, y = (Var(name) for name in "irny")


def value_of(value: PrimExpr, inputs: Any, loaded: Any, dtype: str) -> float:
    """A value that reads `inputs`, as the interpreter computes it."""
    out = decl_buffer((1,), dtype, "out")
    body = BufferStore(out, value, (const(0),))
    func = function("f", inputs, out, body=body)
    result = np.zeros(1, dtype)
    interpret(func, loaded, result)
    return float(result[0])


INTEGERS = {
    "quotient of a quotient": lambda x: x // 65536 // 65536,
    "beyond the dtype": lambda x: x // 46341 // 46341,
    "within the dtype": lambda x: x // 46340 // 46340,
    "remainder of a remainder": lambda x: x % 65536 % 256,
    "sum that wraps": lambda x: (x + 1) // 2,
    "product that wraps": lambda x: x * 2 // 2,
    "comparison that wraps": lambda x: (x + 1 > x).astype("int32"),
    "sum of products": lambda x: (x * 8 + 8) // 56,
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_that_may_be_anything(name: str, dtype: str) -> None:
    X = decl_buffer((1,), dtype, "X")
    value = INTEGERS[name](X[0])
    simple = Analyzer().simplify(value)
    low, high = X.dtype.min(), X.dtype.max()
    near = [low, 0, 2**16, 2**31 - 1, -(2**31), 2**32, high, 46340**2, 46341**2, -65536]
    for number in {each + step for each in near for step in (-1, 0, 1)}:
        if low <= number <= high:
            loaded = np.array([number], dtype)
            assert value_of(simple, X, loaded, "int32" if value.dtype.bits == 32 else dtype) == (
                value_of(value, X, loaded, "int32" if value.dtype.bits == 32 else dtype)
            )


@pytest.mark.covering(2)
@pytest.mark.parametrize("outer", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("middle", ["float16", "bfloat16", "float32", "int16", "int64"])
@pytest.mark.parametrize("inner", ["float16", "float32", "int16", "int32"])
def test_a_cast_keeps_the_rounding_of_the_one_inside(inner: str, middle: str, outer: str) -> None:
    X = decl_buffer((1,), inner, "X")
    value = X[0].astype(middle).astype(outer).astype("float64")
    simple = Analyzer().simplify(value)
    numbers = [0, 1, -1, 255, 257, 2049, 4097, 32767, -32768, 1 + 2**-7, 1 + 2**-8, 1 + 2**-10]
    numbers += [] if inner == "int16" else [2**24 + 1, 2**30 + 1] if inner == "int32" else [1000.5]
    for number in numbers:
        loaded = np.array([number]).astype(inner)
        expected = value_of(value, X, loaded, "float64")
        assert value_of(simple, X, loaded, "float64") == expected


@pytest.mark.parametrize("extent", [7, 8, 9, 16])
@pytest.mark.parametrize("begin", [-1, 0])
def test_what_stays_below_a_common_divisor(extent: int, begin: int) -> None:
    """``(8*i + r) // 56`` is ``i // 7`` where r is 0 to 7, and only there."""
    for value in ((i * 8 + r) // 56, (i * 8 + r) % 56, (i * 8 + r) // 8, (i * 8 + r) % 8):
        analyzer = Analyzer()
        analyzer.bind(i, Range(0, 20))
        analyzer.bind(r, Range.from_min_extent(const(begin), const(extent)))
        simple = analyzer.simplify(value)
        for a, b in product(range(20), range(begin, begin + extent)):
            at = {i: const(a), r: const(b)}
            found, expected = (Analyzer().simplify(substitute(x, at)) for x in (simple, value))
            assert e.const_int(found) == e.const_int(expected)


@pytest.mark.parametrize("least", [-2, -1, 0, 1])
def test_a_quotient_and_a_product_of_what_may_be_negative(least: int) -> None:
    analyzer = Analyzer()
    analyzer.bind(n, Range.from_min_extent(const(1), const(9)))
    analyzer.bind(y, Range.from_min_extent(const(least), const(8)))
    analyzer.bind(i, Range(0, n))
    proofs = {
        "quotient": y // n >= 0,
        "remainder": y % n >= 0,
        "product": i * y <= n * y - y,
        "product of sums": i * y >= 0,
    }
    points = [(a, b, c) for a in range(1, 10) for b in range(least, least + 8) for c in range(a)]
    for condition in proofs.values():
        truth = all(
            e.const_int(Analyzer().simplify(substitute(condition, {n: a, y: b, i: c})))
            for a, b, c in points
        )
        assert truth or not analyzer.can_prove(condition)
    assert analyzer.can_prove(proofs["remainder"])
    assert analyzer.can_prove(proofs["product"]) == (least >= 0)
    assert analyzer.can_prove(proofs["quotient"]) == (least >= 0)
