"""Minima and maxima of floats: NaN if an operand is NaN, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest

from minitvm import build, te, tir
from minitvm.runtime.host import host
from minitvm.target import Target
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, const

TARGETS = [
    name
    for name in ("llvm", "llvm -mcpu=x86-64", "llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512")
    if not Target(name).missing_on_host
]
EXTREMA: dict[str, tuple[Any, Callable[..., Any]]] = {
    "min": (e.Min, np.minimum),
    "max": (e.Max, np.maximum),
}
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5]


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXTREMA)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [2, 3])
def test_every_combination(target: str, name: str, dtype: str, count: int) -> None:
    kind, exact = EXTREMA[name]
    given = np.array([*product(SPECIAL, repeat=count)], dtype).T.copy()
    x = te.placeholder(given.shape, dtype, name="X")
    output = te.compute(
        given.shape[1:], lambda i: reduce(kind, [x[r, i] for r in range(count)]), name="Y"
    )
    found = np.empty(given.shape[1], dtype)
    build([output], [x, output], target)(given, found)
    np.testing.assert_array_equal(found, reduce(exact, given))


@pytest.mark.covering(2)
@pytest.mark.parametrize("name", EXTREMA)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("bound", [0.0, float("nan")])
def test_constants(name: str, order: tuple[int, ...], bound: float) -> None:
    kind, exact = EXTREMA[name]
    given = np.array([*product(SPECIAL, repeat=2)], "float32").T.copy()
    x = te.placeholder(given.shape, name="X")

    def value(i: Any) -> PrimExpr:
        operands = [x[0, i], x[1, i], const(bound, "float32")]
        made: PrimExpr = reduce(kind, [operands[place] for place in order])
        return made

    output = te.compute(given.shape[1:], value, name="Y")
    found = np.empty(given.shape[1], "float32")
    build([output], [x, output])(given, found)
    np.testing.assert_array_equal(found, exact(exact(*given), np.float32(bound)))


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_that_are_combined_at_once(target: str, name: str, steps: int) -> None:
    """NaN in each step, for each of the steps of an unrolled loop."""
    x, k = te.placeholder((40, 3 * steps), name="X"), te.reduce_axis((0, 3 * steps), "k")
    output = te.compute((40,), lambda i: getattr(te, name)(x[i, k], axis=k), name="Y")
    schedule = te.create_schedule(output.op)
    local = schedule.cache_write(output, "local")
    outer, inner = schedule[output].split(output.op.axis[0], factor=8)
    schedule[output].vectorize(inner)
    schedule[local].compute_at(schedule[output], outer)
    step, together = schedule[local].split(local.op.reduce_axis[0], factor=steps)
    schedule[local].reorder(step, together, local.op.axis[0])
    schedule[local].unroll(together)
    schedule[local].vectorize(local.op.axis[0])
    kernel = build(schedule, [x, output], target)
    given = np.random.default_rng(0).standard_normal((40, 3 * steps)).astype("float32")
    for row in range(3 * steps):
        given[row, row] = np.nan
    found = np.empty(40, "float32")
    kernel(given, found)
    np.testing.assert_array_equal(found, getattr(given, name)(axis=1))


def test_steps_that_read_what_they_write() -> None:
    """They stay one after the other: each step reads what the one before it wrote."""
    y, k = tir.decl_buffer((16,), name="Y"), te.var("k")
    here = e.Ramp(const(0), const(1), 8)
    there = e.Ramp(const(1), const(1), 8)
    value = e.Min(e.BufferLoad(y, (here,)), e.BufferLoad(y, (there,)) - e.Broadcast(k * 1.0, 8))
    store = s.BufferStore(y, value, (here,))
    loop = s.For(k, const(0), const(4), s.ForKind.UNROLLED, store)
    kernel: Any = build(tir.PrimFunc((y.data,), loop, {y.data: y}, "f"))
    found = np.random.default_rng(0).standard_normal(16).astype("float32")
    expected = found.copy()
    for step in range(4):
        expected[:8] = np.minimum(expected[:8], expected[1:9] - step)
    kernel(found)
    np.testing.assert_allclose(found, expected)


def test_steps_for_other_lanes() -> None:
    """Each step is for as many lanes as its number says."""
    x, y, k = tir.decl_buffer((4,), name="X"), tir.decl_buffer((8,), name="Y"), te.var("k")
    lanes = e.Ramp(const(0), const(1), 8)
    value = e.Min(e.BufferLoad(y, (lanes,)), e.Broadcast(e.BufferLoad(x, (k,)), 8))
    store = s.BufferStore(y, value, (lanes,), e.LT(lanes, e.Broadcast(k, 8)))
    loop = s.For(k, const(0), const(4), s.ForKind.UNROLLED, store)
    kernel: Any = build(tir.PrimFunc((x.data, y.data), loop, {x.data: x, y.data: y}, "f"))
    found = np.zeros(8, "float32")
    kernel(np.array([-1, -2, -3, -4], "float32"), found)
    assert found.tolist() == [-4, -4, -4, 0, 0, 0, 0, 0]


@pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="instructions of x86")
def test_the_innermost_loop_of_a_minimum_of_sums() -> None:
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), "k")
    output = te.compute((64, 64), lambda i, j: te.min(a[i, k] + b[k, j], axis=k), name="C")
    text = build([output], [a, b, output], "llvm -mcpu=haswell").get_source("asm")
    assert "vblendvps" not in text
    assert 0 < text.count("vcmpunordps") < text.count("vminps")
    text = build([output], [a, b, output], "llvm -mcpu=skylake-avx512").get_source("asm")
    assert text.count("{%k") == text.count("vcmpordps") == text.count("vminps") / 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_choices_of_choices_are_no_maxima_of_maxima(dtype: str, scheduled: bool) -> None:
    """A choice that passes NaN on, and one that doesn't, are two."""
    X, zero = te.placeholder((20,), dtype, name="X"), te.const(0, dtype)
    kept = [
        lambda x: te.max(x, zero),
        lambda x: tir.Select(x < zero, zero, x),
        lambda x: te.if_then_else(x < zero, zero, x),
    ]
    dropped = [
        lambda x: tir.Select(x > zero, x, zero),
        lambda x: te.if_then_else(x > zero, x, zero),
    ]
    made = [
        te.compute((20,), lambda i, f=f, g=g: g(f(X[i])), name="Y") for f in kept for g in dropped
    ]
    schedule = te.create_schedule([each.op for each in made])
    x = np.array([np.nan, -1, 0.5, 2] * 5, dtype)
    found = [np.full(20, 7, dtype) for _ in made]
    build(schedule, [X, *made], auto_schedule=scheduled)(x, *found)
    for each in found:
        np.testing.assert_array_equal(each, np.maximum(np.nan_to_num(x), 0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_choices_of_what_another_statement_chose_are_no_maxima(dtype: str, lanes: int) -> None:
    """LLVM sees through the memory between both."""
    X, zero = te.placeholder((20,), dtype, name="X"), te.const(0, dtype)
    kept = [lambda x: te.max(x, zero), lambda x: tir.Select(x < zero, zero, x)]
    dropped = [
        lambda x: tir.Select(x > zero, x, zero),
        lambda x: tir.Select(tir.Not(x > zero), zero, x),
        lambda x: te.if_then_else(x > zero, x, zero),
    ]
    made = []
    for f, g in product(kept, dropped):
        T = te.compute((20,), lambda i, f=f: f(X[i]), name="T")
        made.append((T, te.compute((20,), lambda i, g=g, T=T: g(T[i]), name="Y")))
    schedule = te.create_schedule([Y.op for _, Y in made])
    for T, Y in made:
        outer, inner = schedule[Y].split(Y.op.axis[0], factor=lanes)
        schedule[T].compute_at(schedule[Y], outer)
        if lanes > 1:
            schedule[T].vectorize(T.op.axis[0])
            schedule[Y].vectorize(inner)
    x = np.array([np.nan, -1, 0.5, 2] * 5, dtype)
    found = [np.full(20, 7, dtype) for _ in made]
    build(schedule, [X, *(Y for _, Y in made)], auto_schedule=False)(x, *found)
    for each in found:
        np.testing.assert_array_equal(each, np.maximum(np.nan_to_num(x), 0))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_maximum_that_is_nan_is_cast_to_zero(dtype: str, source: str) -> None:
    X = te.placeholder((21,), source, name="X")
    Y = te.compute((21,), lambda i: te.max(X[i], te.const(0, source)).astype(dtype), name="Y")
    Z = te.compute(
        (21,), lambda i: tir.Select(X[i] < 0, te.const(0, source), X[i]).astype(dtype), name="Z"
    )
    x = np.array([np.nan, -1, 5] * 7, source)
    y, z = np.full(21, 7, dtype), np.full(21, 7, dtype)
    build([Y, Z], [X, Y, Z])(x, y, z)
    assert y.tolist() == z.tolist() == [0, 0, 5] * 7
