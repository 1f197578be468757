"""Buffers keep the steps that are read later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import PrimFunc
from minitvm.transform.fold_storage import fold_storage

Step = Callable[..., Any]
STEPS, WIDTH = 12, 7


def lowered(step: Step, result: Step, *, first: int = 1, steps: Any = STEPS) -> PrimFunc:
    """A scan of X, whose result a stage reads; lowered without the pass."""
    X = te.placeholder((first, WIDTH), name="X")
    state = te.placeholder((steps, WIDTH), name="state")
    begin = te.compute((first, WIDTH), lambda t, i: X[t, i], name="begin")
    update = te.compute((steps, WIDTH), lambda t, i: step(state, t, i), name="update")
    R = te.scan(begin, update, state, name="R")
    Y = te.compute((WIDTH,), lambda i: result(R, i), name="Y")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minitvm.lowering.lower.fold_storage", lambda func: func)
        made = tvm.lower(te.create_schedule(Y.op), [X, Y], simple_mode=True)["main"]
    assert isinstance(made, PrimFunc)
    return made


def last(R: Tensor, i: Any) -> Any:
    return R[STEPS - 1, i]


def backwards(state: Tensor, t: Any, i: Any) -> Any:
    return state[t - 1, WIDTH - 1 - i] * 0.5 + 1.0


def older(state: Tensor, t: Any, i: Any) -> Any:
    return state[t - 1, WIDTH - 1 - i] + state[t - 3, i] * 0.5


@pytest.mark.parametrize(
    ("step", "result", "first", "kept"),
    [
        (backwards, last, 1, 2),
        (older, last, 3, 4),
        (backwards, last, 5, 5),  # all first steps are stored before any other
        (older, lambda R, i: R[STEPS - 1, i] + R[STEPS - 4, i], 3, 4),
        (backwards, lambda R, i: R[STEPS - 1, i] + R[STEPS - 3, i], 1, None),  # no longer kept
        (backwards, lambda R, i: R[i, i], 1, None),
        (lambda state, t, i: state[t // 2, i] + 1.0, last, 1, None),  # at growing distances
        (backwards, last, STEPS - 1, None),
    ],
)
def test_as_many_steps_as_are_read(step: Step, result: Step, first: int, kept: int | None) -> None:
    func = lowered(step, result, first=first)
    made = fold_storage(func)
    shape = f"R = allocate(float32[{STEPS if kept is None else kept}, {WIDTH}])"
    assert shape in str(made)
    x = np.random.default_rng(0).standard_normal((first, WIDTH)).astype("float32")
    found, expected = np.empty((2, WIDTH), "float32")
    interpret(made, x, found)
    interpret(func, x, expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_an_unknown_number_of_steps(steps: int) -> None:
    n = te.var("n")
    X = te.placeholder((n, WIDTH), name="X")
    state = te.placeholder((n, WIDTH), name="state")
    begin = te.compute((1, WIDTH), lambda t, i: X[t, i], name="begin")
    update = te.compute(
        (n, WIDTH), lambda t, i: state[t - 1, i] * X[t, WIDTH - 1 - i], name="update"
    )
    R = te.scan(begin, update, state, name="R")
    Y = te.compute((WIDTH,), lambda i: R[n - 1, i], name="Y")
    assert "R = allocate(float32[2, 7])" in str(tvm.lower(te.create_schedule(Y.op), [X, Y]))
    x = np.random.default_rng(0).standard_normal((steps, WIDTH)).astype("float32")
    y = np.empty(WIDTH, "float32")
    tvm.build(te.create_schedule(Y.op), [X, Y])(x, y)
    expected = x[0]
    for t in range(1, steps):
        expected = expected * x[t, ::-1]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_results_that_the_caller_gets_are_kept() -> None:
    X = te.placeholder((1, WIDTH), name="X")
    state = te.placeholder((STEPS, WIDTH), name="state")
    begin = te.compute((1, WIDTH), lambda t, i: X[t, i], name="begin")
    update = te.compute((STEPS, WIDTH), lambda t, i: backwards(state, t, i), name="update")
    R = te.scan(begin, update, state, name="R")
    Y = te.compute((WIDTH,), lambda i: R[STEPS - 1, i], name="Y")
    s = te.create_schedule([R.op, Y.op])
    assert "% 2" not in str(tvm.lower(s, [X, R, Y]))


def test_several_states_that_read_each_other() -> None:
    X = te.placeholder((WIDTH,), name="X")
    a, b = (te.placeholder((STEPS, WIDTH), name=name) for name in "ab")
    begin = [
        te.compute((1, WIDTH), lambda t, i, c=c: X[i] + c, name=f"i{c:.0f}") for c in (0.0, 1.0)
    ]
    p = te.compute((STEPS, WIDTH), lambda t, i: a[t - 1, i] + b[t - 1, WIDTH - 1 - i], name="p")
    q = te.compute((STEPS, WIDTH), lambda t, i: a[t - 1, i] * 0.25 - b[t - 1, i], name="q")
    R = te.scan(begin, [p, q], [a, b], name="R")
    Y = te.compute((WIDTH,), lambda i: R[0][STEPS - 1, i] + R[1][STEPS - 1, i], name="Y")
    text = str(tvm.lower(te.create_schedule(Y.op), [X, Y]))
    assert text.count("allocate(float32[2, 7])") == 2
    x = np.random.default_rng(0).standard_normal(WIDTH).astype("float32")
    y = np.empty(WIDTH, "float32")
    tvm.build([Y], [X, Y])(x, y)
    u, v = x.astype("d"), x.astype("d") + 1
    for _ in range(1, STEPS):
        u, v = u + v[::-1], u * 0.25 - v
    np.testing.assert_allclose(y, u + v, rtol=1e-4, atol=1e-3)
