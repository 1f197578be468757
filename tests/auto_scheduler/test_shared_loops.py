"""Reductions that read the same elements share loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor

Value = Callable[..., Any]
TARGET = "llvm -mcpu=haswell -num-cores=2"


def _sums(name: str, shape: tuple[Any, ...], over: tuple[int, ...], value: Value) -> Tensor:
    """The sums of a value over some of its axes."""
    axes = {d: te.reduce_axis((0, shape[d]), name=f"k{d}") for d in over}
    kept = [d for d in range(len(shape)) if d not in over]

    def element(*place: Any) -> Any:
        at = {**axes, **dict(zip(kept, place, strict=True))}
        return te.sum(value(*(at[d] for d in range(len(shape)))), axis=[*axes.values()])

    made: Tensor = te.compute(tuple(shape[d] for d in kept), element, name=name)
    return made


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((33, 1023), (1,)),
    ((4100, 77), (0,)),
    ((7, 5, 33), (0, 2)),
    ((3, 4, 700), (1, 2)),
    ((50001,), (0,)),
]


@pytest.mark.parametrize(("shape", "over"), CASES)
def test_sums_over_one_domain_are_computed_in_one_pass(
    shape: tuple[int, ...], over: tuple[int, ...]
) -> None:
    X, Y = te.placeholder(shape, name="X"), te.placeholder(shape, name="Y")
    A = _sums("A", shape, over, lambda *at: X[at] * Y[at])
    B = _sums("B", shape, over, lambda *at: Y[at])
    s = auto_schedule([A, B], TARGET)
    assert "compute_with(" in s.trace()
    assert te.replay(s.trace(), [A.op, B.op]).trace() == s.trace()
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
    a, b = (np.empty([shape[d] for d in range(len(shape)) if d not in over], "f") for _ in "ab")
    tvm.build([A, B], [X, Y, A, B])(x, y, a, b)
    np.testing.assert_allclose(a, (x.astype("d") * y).sum(over), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(b, y.astype("d").sum(over), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(33, 70), (2, 3), (40, 1000)])
def test_sums_of_columns_in_registers_keep_loops_of_their_own(shape: tuple[int, int]) -> None:
    X, Y = te.placeholder(shape, name="X"), te.placeholder(shape, name="Y")
    A = _sums("A", shape, (0,), lambda *at: X[at] * Y[at])
    B = _sums("B", shape, (0,), lambda *at: Y[at])
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
    a, b = np.empty((2, shape[1]), "float32")
    tvm.build([A, B], [X, Y, A, B])(x, y, a, b)
    np.testing.assert_allclose(a, (x * y).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b, y.sum(0), rtol=1e-4, atol=1e-4)


def test_sums_that_read_nothing_in_common_keep_loops_of_their_own() -> None:
    X, Y = te.placeholder((33, 70), name="X"), te.placeholder((33, 70), name="Y")
    A = _sums("A", (33, 70), (1,), lambda *at: X[at])
    B = _sums("B", (33, 70), (1,), lambda *at: Y[at])
    C = _sums("C", (33, 70), (1,), lambda i, j: X[32 - i, j])
    assert "compute_with(" not in auto_schedule([A, B, C], TARGET).trace()


def test_a_sum_that_waits_for_another_has_its_own_loops() -> None:
    X = te.placeholder((33, 70), name="X")
    A = _sums("A", (33, 70), (1,), lambda *at: X[at])
    V = _sums("V", (33, 70), (1,), lambda i, j: (X[i, j] - A[i]) * (X[i, j] - A[i]))
    assert "compute_with(" not in auto_schedule(V, TARGET).trace()


def test_two_pairs_that_would_wait_for_each_other_dont_share_both() -> None:
    shape = (33, 70)
    X, Y = te.placeholder(shape, name="X"), te.placeholder(shape, name="Y")
    A1 = _sums("A1", shape, (1,), lambda *at: X[at])
    B1 = _sums("B1", shape, (1,), lambda i, j: Y[i, j] * A1[i])
    B2 = _sums("B2", shape, (1,), lambda *at: Y[at])
    A2 = _sums("A2", shape, (1,), lambda i, j: X[i, j] * B2[i])
    s = auto_schedule([B1, A2], TARGET)
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
    b1, a2 = np.empty((2, 33), "float32")
    tvm.build(s, [X, Y, B1, A2])(x, y, b1, a2)
    np.testing.assert_allclose(b1, (y * x.sum(1)[:, None]).sum(1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(a2, (x * y.sum(1)[:, None]).sum(1), rtol=1e-3, atol=1e-3)


def test_two_pairs_of_whole_sums_that_would_wait_for_each_other() -> None:
    X, Y = te.placeholder((50, 70), name="X"), te.placeholder((50, 70), name="Y")
    A1 = _sums("A1", (50, 70), (0, 1), lambda *at: X[at])
    B1 = _sums("B1", (50, 70), (0, 1), lambda *at: Y[at] * A1())
    B2 = _sums("B2", (50, 70), (0, 1), lambda *at: Y[at])
    A2 = _sums("A2", (50, 70), (0, 1), lambda *at: X[at] * B2())
    s = auto_schedule([B1, A2], TARGET)
    assert s.trace().count("compute_with(") == 1
    tvm.lower(s, [X, Y, B1, A2])  # which has an order


def test_stages_by_hand_are_left_as_they_are() -> None:
    X = te.placeholder((33, 70), name="X")
    A = _sums("A", (33, 70), (1,), lambda *at: X[at])
    B = _sums("B", (33, 70), (1,), lambda i, j: X[i, j] * 2.0)
    s = te.create_schedule([A.op, B.op])
    s[A].compute_root()
    assert "compute_with(" not in auto_schedule(s, TARGET).trace()


# -- Elementwise stages --


def _moments(shape: tuple[int, ...], shift: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs and the results of an optimizer's step."""
    P, G, M, V = given = [te.placeholder(shape, name=name) for name in "PGMV"]
    m = te.compute(shape, lambda *at: 0.9 * M[at] + 0.1 * G[at], name="m")
    v = te.compute(shape, lambda *at: 0.99 * V[at] + 0.01 * G[at] * G[at], name="v")

    def step(*at: Any) -> Any:
        place = (*at[:-1], (at[-1] + shift) % shape[-1]) if shift else at
        return P[at] - m[place] / (te.sqrt(v[at]) + 1e-3)

    return given, [te.compute(shape, step, name="q"), m, v]


@pytest.mark.parametrize("shape", [(1,), (5,), (16,), (1003,), (1, 40), (40, 1), (3, 5, 7)])
@pytest.mark.parametrize("shift", [0, 3])
def test_a_result_is_computed_in_the_loops_of_its_only_reader(
    shape: tuple[int, ...], shift: int
) -> None:
    given, results = _moments(shape, shift)
    s = auto_schedule([each.op for each in results], TARGET)
    if shape == (1003,):
        assert ("s[m].compute_at(s[q]" in s.trace()) == (not shift)
        assert "s[v].compute_at(s[q]" in s.trace()
    p, g, m, v = np.random.default_rng(0).random((4, *shape), dtype="float32")
    found = np.empty((3, *shape), "float32")
    tvm.build(results, [*given, *results])(p, g, m, v, *found)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    expected = p - np.roll(m, -shift, axis=-1) / (np.sqrt(v) + 1e-3), m, v
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_result_that_is_also_read_elsewhere_has_its_own_loops() -> None:
    _, (q, m, v) = _moments((1003,))
    r = te.compute((1003,), lambda i: m[1002 - i] * 2.0, name="r")
    s = auto_schedule([each.op for each in (q, r, m, v)], TARGET)
    assert "s[m].compute_at(" not in s.trace() and "s[v].compute_at(s[q]" in s.trace()


def test_results_over_the_inputs() -> None:
    given, results = _moments((1003,))
    p, g, m, v = np.random.default_rng(0).random((4, 1003), dtype="float32")
    expected = np.empty((3, 1003), "float32")
    f = tvm.build(results, [*given, *results])
    f(p, g, m, v, *expected)
    f(p, g, m, v, p, m, v)  # each result takes the memory of an input
    np.testing.assert_array_equal([p, m, v], expected)


@pytest.mark.parametrize("shape", [(1,), (3,), (16,), (1003,), (1, 40), (40, 1), (3, 5, 7)])
def test_elementwise_results_that_read_the_same_share_loops(shape: tuple[int, ...]) -> None:
    A, B, C, D = given = [te.placeholder(shape, name=name) for name in "ABCD"]
    real = te.compute(shape, lambda *at: A[at] * C[at] - B[at] * D[at], name="real")
    imaginary = te.compute(shape, lambda *at: A[at] * D[at] + B[at] * C[at], name="imaginary")
    s = auto_schedule([real.op, imaginary.op], TARGET)
    assert "s[imaginary].compute_with(s[real]" in s.trace() or shape == (3,)
    assert te.replay(s.trace(), [real.op, imaginary.op]).trace() == s.trace()
    a, b, c, d = np.random.default_rng(0).random((4, *shape), dtype="float32")
    found = np.empty((2, *shape), "float32")
    tvm.build([real, imaginary], [*given, real, imaginary])(a, b, c, d, *found)
    np.testing.assert_allclose(found, [a * c - b * d, a * d + b * c], rtol=1e-5, atol=1e-6)
