"""Rows in pieces that begin elsewhere in each row: values against numpy; which rows they are, with
mask registers and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te

Element = Callable[[Any, Any, Any], Any]


def _choice(condition: Any, value: Any) -> Any:
    return te.if_then_else(condition, value, te.const(0, value.dtype))


TARGETS = ("llvm", "llvm -mcpu=haswell -num-cores=2")  # the second one has no mask registers
PROGRAMS: dict[str, tuple[str, Element, Element, bool]] = {
    "below the diagonal": (
        "uint8", lambda X, i, j: _choice(j <= i, X[i, j]), lambda x, i, j: x * (j <= i), True,
    ),
    "a band": (
        "float16",
        lambda X, i, j: _choice(te.all(j <= i + 3, j >= i - 2), X[i, j]),
        lambda x, i, j: x * ((j <= i + 3) & (j >= i - 2)),
        True,
    ),
    "in reverse": (
        "float32",
        lambda X, i, j: _choice(j <= i, X[i, i - j]),
        lambda x, i, j: np.where(j <= i, x[i, np.maximum(i - j, 0)], 0),
        True,
    ),
    "floats are loaded under masks": (
        "float32", lambda X, i, j: _choice(j <= i, X[i, j]), lambda x, i, j: x * (j <= i), False,
    ),
    "the same pieces in each row": (
        "uint8", lambda X, i, j: _choice(j < 9, X[i, j]), lambda x, i, j: x * (j < 9), False,
    ),
    "functions": (
        "float16", lambda X, i, j: _choice(j <= i, te.exp(X[i, j])),
        lambda x, i, j: np.exp(x) * (j <= i), False,
    ),
}  # fmt: skip


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, is_symbolic: bool, target: str) -> None:
    dtype, element, of_numpy, is_in_pieces = PROGRAMS[name]
    if is_symbolic and name == "in reverse":
        return  # its proof needs sizes
    shape = (te.var("m"), te.var("n")) if is_symbolic else (70, 70)
    X = te.placeholder(shape, dtype, name="X")
    Y = te.compute(X.shape, lambda i, j: element(X, i, j), name="Y")
    schedule = tvm.auto_schedule(Y, target)
    has_masks = tvm.Target(target).has_mask_registers
    noted = any("in pieces" in each.text for each in schedule.choices)
    assert noted == (is_in_pieces and not has_masks)
    f = tvm.build(schedule, [X, Y], target)
    for m, n in ((70, 70), (3, 1), (20, 20), (1, 40), (0, 5)) if is_symbolic else ((70, 70),):
        columns = max(m, n)  # what is read in reverse is there
        x = np.random.default_rng(0).integers(0, 3, (m, columns)).astype(dtype)
        y = np.full(x.shape, 7, dtype)
        f(x, y)
        i, j = np.ogrid[:m, :columns]
        np.testing.assert_allclose(y, of_numpy(x, i, j).astype(dtype), rtol=1e-2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (30, 41), (64, 64), (0, 3)])
def test_antidiagonals_of_a_scan(m: int, n: int, target: str) -> None:
    """The length of the longest common subsequence."""
    a, b = te.placeholder((m,), "uint8", name="a"), te.placeholder((n,), "uint8", name="b")
    state = te.placeholder((m + n + 2, m + 1), "int32", name="state")
    first = te.compute((2, m + 1), lambda t, i: te.const(0, "int32"), name="first")

    def cell(t: Any, i: Any) -> Any:
        same = state[t - 2, i - 1] + 1
        other = te.max(state[t - 1, i - 1], state[t - 1, i])
        inside = te.all(i >= 1, t - i >= 1, t - i <= n)
        zero = te.const(0, "int32")
        return te.if_then_else(inside, te.if_then_else(a[i - 1] == b[t - i - 1], same, other), zero)

    step = te.compute((m + n + 2, m + 1), cell, name="step")
    lengths = te.scan(first, step, state, inputs=[a, b], name="lengths")
    last = te.compute((), lambda: lengths[m + n, m], name="last")
    rng = np.random.default_rng(m)
    x, y = rng.integers(0, 3, m).astype("uint8"), rng.integers(0, 3, n).astype("uint8")
    expected = np.zeros((m + 1, n + 1), int)
    for i in range(m):
        for j in range(n):
            expected[i + 1, j + 1] = (
                expected[i, j] + 1 if x[i] == y[j] else max(expected[i, j + 1], expected[i + 1, j])
            )
    found = np.empty((), "int32")
    schedule = tvm.auto_schedule(last, target)
    assert any("in pieces" in each.text for each in schedule.choices) == (m > 0)
    tvm.build(schedule, [a, b, last], target)(x, y, found)
    assert found == expected[m, n]
