"""Stages with lazy choices that several branches read: they aren't computed in each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor

N = 37


def _branches(before: Tensor, X: Tensor, step: int) -> Any:
    """A stage of which two branches of one stage read each element."""
    return te.compute(
        (N,),
        lambda i: (
            te.if_then_else(X[i] > 0.1 * step, before[i], 0.0)
            + te.if_then_else(X[i] < 0.2 * step, before[i] * 0.5, 1.0)
        ),
        name=f"s{step}",
    )


def _branches_in_numpy(before: Any, x: Any, step: int) -> Any:
    return np.where(x > 0.1 * step, before, 0) + np.where(x < 0.2 * step, before * 0.5, 1)


def _built(depth: int) -> tuple[Any, str]:
    X = Y = te.placeholder((N,), name="X")
    for step in range(depth):
        Y = _branches(Y, X, step)
    f = tvm.build(te.create_schedule(Y.op), [X, Y], name="chain")
    return f, f.get_source("tir")


def _choices(text: str) -> int:
    return text.count("select(") + text.count("if_then_else(")


@pytest.mark.parametrize("depth", [3, 16])
def test_chains(depth: int) -> None:
    f, _ = _built(depth)
    x, y = np.linspace(-1, 2, N, dtype="float32"), np.empty(N, "float32")
    f(x, y)
    wanted = x
    for step in range(depth):
        wanted = _branches_in_numpy(wanted, x, step)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_the_number_of_choices_grows_like_the_program() -> None:
    short, twice = (_choices(_built(depth)[1]) for depth in (10, 20))
    assert twice < 3 * short


def test_a_few_choices_are_computed_where_they_are_read() -> None:
    _, text = _built(3)
    assert text.count("for ") <= 2 and "allocate" not in text


def test_many_sums_that_read_one_chain() -> None:
    """Each stage of the chain is read by the next one, and by the sum of all: as in gradients."""
    X, count = te.placeholder((N,), name="X"), 24
    chain = [X]
    for step in range(count):
        before = chain[-1]
        chain.append(
            te.compute(
                (N,),
                lambda i: te.if_then_else(X[i] > 0.05 * step, before[i] * 2.0, 0.0),  # noqa: B023
                name=f"c{step}",
            )
        )
    total = te.compute(
        (N,),
        lambda i: sum(
            (te.if_then_else(X[i] < 0.1 * k, each[i], 0.0) for k, each in enumerate(chain[1:])),
            X[i],
        ),
        name="total",
    )
    f = tvm.build(te.create_schedule(total.op), [X, total], name="sums")
    x, y = np.linspace(-1, 2, N, dtype="float32"), np.empty(N, "float32")
    f(x, y)
    wanted, value = x.copy(), x
    for step in range(count):
        value = np.where(x > 0.05 * step, value * 2, 0)
        wanted += np.where(x < 0.1 * step, value, 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    assert _choices(f.get_source("tir")) < 10 * count  # two copies of the loop
