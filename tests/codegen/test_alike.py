"""Parts of a program that do the same with other buffers: one function of the LLVM text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.codegen.alike import nests_alike
from minitvm.tir.stmt import For


def _chain(
    count: int, shape: tuple[Any, ...], dtype: str = "float32", scale: float = 2.0
) -> tuple[te.Schedule, list[te.Tensor]]:
    """Stages ``T = T * scale + 1``, one after the other, each with memory of its own."""
    made = [te.placeholder(shape, dtype, name="X")]
    for i in range(count):
        before = made[-1]
        made.append(te.compute(shape, lambda *at, t=before: t(*at) * scale + 1.0, name=f"T{i}"))
    s = te.create_schedule(made[-1].op)
    for tensor in made[1:-1]:
        s[tensor].compute_root()
    return s, made


def _functions(module: tvm.Module, prefix: str) -> int:
    text = module.get_source("ll")
    return sum(line.startswith("define internal") and prefix in line for line in text.split("\n"))


def _expected(x: Any, count: int) -> Any:
    for _ in range(count):
        x = x * 2 + 1
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(7,), (5, 33), (3, 1, 4)])
def test_nests_that_do_the_same_are_one_function(shape: tuple[int, ...], dtype: str) -> None:
    """But for the first and the last, whose buffers are arguments: of the same alignment, these may
    be the same function, too."""
    s, tensors = _chain(9, shape, dtype)
    f = tvm.build(s, [tensors[0], tensors[-1]], name="f")
    assert 1 <= _functions(f, "@nest.") <= 3
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    y = np.empty_like(x)
    f(x, y)
    np.testing.assert_array_equal(y, _expected(x, 9))


@pytest.mark.parametrize("size", [0, 1, 17])
def test_nests_of_a_symbolic_size(size: int) -> None:
    s, tensors = _chain(6, (te.var("n"), 3))
    f = tvm.build(s, [tensors[0], tensors[-1]], name="f")
    assert 1 <= _functions(f, "@nest.") <= 3
    x = np.arange(size * 3, dtype="float32").reshape(size, 3)
    y = np.empty_like(x)
    f(x, y)
    np.testing.assert_array_equal(y, _expected(x, 6))
    z = np.empty((size, 6), "float32")[:, ::2]  # another variant of the code
    f(x, z)
    np.testing.assert_array_equal(z, _expected(x, 6))
    f(x, x)
    np.testing.assert_array_equal(x, y)


def test_nests_with_other_numbers_are_other_functions() -> None:
    """The same nodes, but each stage multiplies by a number of its own."""
    x = te.placeholder((6,), name="X")
    made = [x]
    for i in range(6):
        made.append(te.compute((6,), lambda j, t=made[-1], i=i: t[j] * (i + 1.5), name=f"T{i}"))
    s = te.create_schedule(made[-1].op)
    for tensor in made[1:-1]:
        s[tensor].compute_root()
    f = tvm.build(s, [x, made[-1]])
    data, out = np.arange(6, dtype="float32"), np.empty(6, "float32")
    f(data, out)
    factors = np.prod([i + 1.5 for i in range(6)])
    np.testing.assert_allclose(out, data * factors, rtol=1e-6)


def test_few_nests_stay_where_they_are() -> None:
    s, tensors = _chain(3, (8,))
    assert _functions(tvm.build(s, [tensors[0], tensors[-1]]), "@nest.") == 0


def test_a_failure_within_a_nest_is_reported_as_its_own() -> None:
    """The nests differ by the assertion that fails: each says which tensor was read outside."""
    index = te.placeholder((4,), "int32", name="index")
    made = [te.placeholder((5,), name="X")]
    for i in range(5):
        before = made[-1]
        made.append(te.compute((5,), lambda j, t=before: t[index[j % 4] + j // 5], name=f"T{i}"))
    s = te.create_schedule(made[-1].op)
    for tensor in made[1:-1]:
        s[tensor].compute_root()
    f = tvm.build(s, [made[0], index, made[-1]], name="f")
    x, y = np.arange(5, dtype="float32"), np.empty(5, "float32")
    at = np.array([1, 0, 2, 4], "int32")
    f(x, at, y)
    expected = x
    for _ in range(5):
        expected = expected[at[np.arange(5) % 4]]
    np.testing.assert_array_equal(y, expected)
    with pytest.raises(IndexError, match="X"):
        f(x, np.array([1, 0, 9, 4], "int32"), y)


def test_parallel_nests_that_do_the_same_are_one_function() -> None:
    """Products of a chain, on threads: the axes have other names in each."""
    x = te.placeholder((64, 64), name="X")
    made, weights = [x], []
    for i in range(4):
        w = te.placeholder((64, 64), name=f"W{i}")
        k = te.reduce_axis((0, 64), name=f"k{i}")
        weights.append(w)
        made.append(
            te.compute(
                (64, 64),
                lambda a, b, t=made[-1], w=w, k=k: te.sum(t[a, k] * w[k, b], axis=k),
                name=f"T{i}",
            )
        )
    f = tvm.build(made[-1:], [x, *weights, made[-1]], target="llvm -num-cores=2")
    bodies = _functions(f, ".body(")
    assert bodies < 4
    data = np.random.default_rng(0).standard_normal((5, 64, 64)).astype("float32") / 8
    out = np.empty((64, 64), "float32")
    f(*data, out)
    expected = np.linalg.multi_dot(data.astype("float64"))
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_loops_are_found_through_what_stands_around_them() -> None:
    """Allocations of the heap, one within the other, and no loop within another."""
    s, tensors = _chain(6, (300, 300))
    func = tvm.lower(s, [tensors[0], tensors[-1]], name="f")["f"]
    found = nests_alike(func.body)
    assert len(found) == 6
    assert all(isinstance(each, For) for each in found)
