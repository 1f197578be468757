"""Versions of a schedule: which loops serve which calls, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.errors import CompileError

n = te.var("n")
X = te.placeholder((n, 3), name="X")
Y = te.compute((n, 3), lambda i, j: X[i, j] + 1, name="Y")


def versions() -> tuple[te.Schedule, te.Schedule]:
    s, other = te.create_schedule(Y.op), te.create_schedule(Y.op)
    _, inner = other[Y].split(Y.op.axis[0], factor=8)
    other[Y].unroll(inner)
    return s, other


def loops(s: te.Schedule) -> str:
    return str(tvm.lower(s, [X, Y], simple_mode=True))


def check(s: te.Schedule) -> None:
    f = tvm.build(s, [X, Y], auto_schedule=False)
    for size in (0, 1, 2, 7, 8, 16, 17):
        x, y = np.random.default_rng(0).random((size, 3), "float32"), np.empty((size, 3), "float32")
        f(x, y)
        np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize(
    "condition",
    [n <= 8, n == 1, te.all(n % 8 == 0, n >= 8), te.any(n < 4, n > 9), True],
    ids=str,
)
def test_the_versions_compute_the_same(condition: Any) -> None:
    s, other = versions()
    s.specialize(condition, other)
    check(s)
    assert te.replay(s.trace(), Y).trace() == s.trace()
    assert loops(te.replay(s.trace(), Y)) == loops(s)
    assert loops(s.copy()) == loops(s)


def test_the_first_condition_that_holds_counts() -> None:
    s, other = versions()
    s.specialize(n == 1, te.create_schedule(Y.op))
    s.specialize(n <= 8, other)
    outermost = [line for line in loops(s).splitlines() if line.startswith(("    if", "    el"))]
    assert [line.strip() for line in outermost] == ["if n == 1:", "elif n <= 8:", "else:"]
    check(s)


def test_an_extent_that_is_known_is_a_constant() -> None:
    s, other = versions()
    s.specialize(n == 1, other)
    assert "Y[0, j] = X[0, j] + 1.0" in loops(s)


def test_a_multiple_has_no_tail() -> None:
    s, other = versions()
    s.specialize(n % 8 == 0, other)
    version = loops(s).split("else:")[0]
    assert "for i.outer in range(n // 8):" in version
    assert "likely" not in version


@pytest.mark.parametrize("condition", [n >= 8, te.all(n >= 9, n < 90)], ids=str)
def test_a_version_has_no_code_for_sizes_that_it_never_sees(condition: Any) -> None:
    s, other = create(), in_vectors()
    fits = "if n > 7 and are_apart(Y.data, X.data):"
    assert fits in loops(other)
    s.specialize(condition, other)
    assert "if are_apart(Y.data, X.data):" in loops(s) and fits not in loops(s)
    check(s)


def test_versions_know_that_the_conditions_before_fail() -> None:
    s = in_vectors()
    s.specialize(te.any(n < 8, te.all(n < 20, n % 3 == 0)), create())
    assert "if are_apart(Y.data, X.data):" in loops(s)
    check(s)


def create() -> te.Schedule:
    return te.create_schedule(Y.op)


def in_vectors() -> te.Schedule:
    """Vectors, the last of which overlaps the one before if there is one."""
    s = te.create_schedule(Y.op)
    i, j = Y.op.axis
    outer, inner = s[Y].split(i, factor=8)
    s[Y].reorder(outer, j, inner)
    s[Y].unroll(j)
    s[Y].vectorize(inner)
    return s


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (n + 1, r"specialize: expected a condition such as n <= 8, got Add n \+ 1"),
        ("n", r"specialize: expected a condition such as n <= 8, got str 'n'"),
        (X[0, 0] > 1.0, r"specialize: expected a condition on extents, got X\[0, 0\]"),
    ],
)
def test_wrong_conditions(condition: Any, text: str) -> None:
    s, other = versions()
    with pytest.raises(CompileError, match=text):
        s.specialize(condition, other)
    assert not s.versions


def test_wrong_versions() -> None:
    s, other = versions()
    with pytest.raises(CompileError, match="specialize: expected a schedule, got int 8"):
        s.specialize(n <= 8, 8)  # type: ignore[arg-type]  # the mistake
    elsewhere = te.create_schedule(te.compute((n,), lambda i: i, name="Z").op)
    alike = te.create_schedule(te.compute((n,), lambda i: i, name="Y").op)
    nested, _ = versions()
    nested.specialize(n <= 8, other)
    for each, found in (
        (s, r"this one: schedule a copy\(\)"),
        (elsewhere, "one of Z in place of Y"),
        (alike, "one of another Y: make it for the same operations"),
        (nested, r"one with versions \(n <= 8\): give them to this schedule"),
    ):
        text = f"another schedule of the same outputs, without versions, got {found}$"
        with pytest.raises(CompileError, match=text):
            s.specialize(n <= 8, each)


def test_versions_and_stages_computed_ahead() -> None:
    W = te.placeholder((8,), name="W")
    Z = te.compute((n,), lambda i: W[i % 8] + 1, name="Z")
    s = te.create_schedule(Z.op)
    copy = s.cache_read(W, "global", [Z])
    s[copy].compute_ahead()
    s.specialize(n <= 8, te.create_schedule(Z.op))
    with pytest.raises(CompileError, match="specialize: expected no stage that is computed ahead"):
        tvm.lower(s, [W, Z])
