"""Rows along an axis that isn't the first take turns, where all of them exceed the L2 cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor

HASWELL = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell -num-cores=2"
RELU, AS_IT_IS = (lambda y: te.max(y, 0.0)), (lambda y: y)


def _norm(x: Tensor, last: Any = AS_IT_IS) -> tuple[Tensor, Tensor, Tensor]:
    """A batch norm without weights: the result, the sums, and the sums of squared deviations."""
    n, c, *more = x.shape
    sizes = (n, *more)
    count = int(np.prod([int(each) for each in sizes]))
    k, j = ([te.reduce_axis((0, each)) for each in sizes] for _ in range(2))
    s = te.compute((c,), lambda q: te.sum(x(k[0], q, *k[1:]), axis=k), name="s")
    m = te.compute((c,), lambda q: s[q] / count, name="m")

    def deviation(i: Any, q: Any, *more: Any) -> Any:
        return x(i, q, *more) - m[q]

    v = te.compute(
        (c,),
        lambda q: te.sum(deviation(j[0], q, *j[1:]) * deviation(j[0], q, *j[1:]), axis=j),
        name="v",
    )
    y = te.compute(
        x.shape, lambda *i: last(deviation(*i) * te.rsqrt(v[i[1]] / count + 1e-5)), name="Y"
    )
    return y, s, v


def _expected(x: Any) -> Any:
    axes = (0, *range(2, x.ndim))
    m, v = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - m) / np.sqrt(v + 1e-5)


def _take_turns(schedule: Any) -> bool:
    return any(each.text.startswith("the rows along") for each in schedule.choices)


@pytest.mark.parametrize(
    "shape", [(8, 16, 30, 30), (9, 17, 31, 29), (5, 16, 4001), (3, 17, 5, 7, 301)]
)
@pytest.mark.parametrize("last", [AS_IT_IS, RELU])
@pytest.mark.parametrize("with_sums", [False, True])
def test_a_norm_over_all_images(shape: tuple[int, ...], last: Any, with_sums: bool) -> None:
    X = te.placeholder(shape, name="X")
    Y, S, V = _norm(X, last)
    results = [Y, S, V] if with_sums else [Y]
    schedule = tvm.auto_schedule([each.op for each in results], HASWELL)
    assert _take_turns(schedule)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    found = [np.empty(shape, "float32"), *(np.empty(shape[1], "float32") for _ in results[1:])]
    tvm.build(schedule, [X, *results])(x, *found)
    wanted = _expected(x.astype("float64"))
    wanted = np.maximum(wanted, 0) if last is RELU else wanted
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)
    if with_sums:
        axes = (0, *range(2, x.ndim))
        np.testing.assert_allclose(found[1], x.sum(axes, dtype="float64"), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((8, 16, 10, 10), "all rows stay in the L2 cache"),
        ((2, 2, 200, 200), "a row exceeds the cache"),
        ((900, 200), "the rows lie along the last axis"),
    ],
)
def test_rows_that_do_not_take_turns(shape: tuple[int, ...], why: str) -> None:
    X = te.placeholder(shape, name="X")
    Y, *_ = _norm(X)
    schedule = tvm.auto_schedule([Y.op], HASWELL)
    assert not _take_turns(schedule), why
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    y = np.empty(shape, "float32")
    tvm.build(schedule, [X, Y])(x, y)
    np.testing.assert_allclose(y, _expected(x.astype("float64")), rtol=1e-4, atol=1e-5)


def test_the_gradients_of_a_batch_norm_take_turns_too() -> None:
    shape = (8, 16, 30, 30)
    X = te.placeholder(shape, name="X")
    w, b = te.placeholder((16,), name="w"), te.placeholder((16,), name="b")
    N, _, _ = _norm(X)
    Y = te.compute(shape, lambda i, q, *j: N(i, q, *j) * w[q] + b[q], name="Z")
    dY = te.placeholder(shape, name="dY")
    gradients = te.gradient(Y, [X, w, b], dY)
    schedule = tvm.auto_schedule([each.op for each in gradients], HASWELL)
    assert _take_turns(schedule)
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype("float32") for _ in range(2))
    ws = [rng.standard_normal(16).astype("float32") for _ in range(2)]
    found = [np.empty_like(each) for each in (x, *ws)]
    tvm.build(schedule, [X, w, b, dY, *gradients])(x, *ws, dy, *found)
    given = [torch.from_numpy(each).double().requires_grad_() for each in (x, *ws)]
    y = torch.nn.functional.batch_norm(given[0], None, None, given[1], given[2], True)
    wanted = torch.autograd.grad(y, given, torch.from_numpy(dy).double())
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-3, atol=2e-3)
