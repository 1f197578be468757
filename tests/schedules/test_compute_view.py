"""``compute_view``: copies in the order of memory that need no loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler.loops import compute_of
from minitvm.tir.interpreter import interpret

ROWS = np.arange(24, dtype="float32").reshape(6, 4)


def reshaped() -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    """Rows, read as one line, computed with, and returned in another shape."""
    A = te.placeholder((6, 4), name="A")
    B = te.compute((24,), lambda i: A[i // 4, i % 4], name="B")
    C = te.compute((24,), lambda i: B[23 - i] + B[i], name="C")
    D = te.compute((4, 6), lambda i, j: C[i * 6 + j], name="D")
    return A, B, C, D


def expected(rows: Any) -> Any:
    line = rows.reshape(-1)
    return (line[::-1] + line).reshape(4, 6)


def views(B: te.Tensor, D: te.Tensor) -> te.Schedule:
    s = te.create_schedule(D.op)
    s[B].compute_view()
    s[D].compute_view()
    return s


def test_views_of_arguments_have_no_loops() -> None:
    A, B, _, D = reshaped()
    text = str(tvm.lower(views(B, D), [A, D], simple_mode=True))
    assert "B[i] = " not in text and "D[" not in text and "allocate" not in text
    assert 'with attr(C, "view_of", D):' in text
    f, out = tvm.build(views(B, D), [A, D]), np.empty((4, 6), "float32")
    f(ROWS, out)
    np.testing.assert_array_equal(out, expected(ROWS))


def test_arguments_with_strides() -> None:
    A, B, _, D = reshaped()
    f = tvm.build(views(B, D), [A, D])
    apart, out = np.zeros((6, 8), "float32"), np.zeros((4, 12), "float32")
    apart[:, ::2] = ROWS
    f(apart[:, ::2], out[:, ::2])
    np.testing.assert_array_equal(out[:, ::2], expected(ROWS))
    np.testing.assert_array_equal(out[:, 1::2], np.zeros((4, 6)))


def test_an_output_that_is_the_input() -> None:
    """The program reads elements after it has written others of the same memory."""
    A, B, _, D = reshaped()
    f, both = tvm.build(views(B, D), [A, D]), ROWS.copy()
    with pytest.raises(ValueError, match="shares no memory with argument 0 'A'"):
        f(both, both.reshape(4, 6))
    np.testing.assert_array_equal(both, ROWS)


def test_lowered_programs_are_built_and_interpreted() -> None:
    A, B, _, D = reshaped()
    lowered, out = tvm.lower(views(B, D), [A, D]), np.empty((4, 6), "float32")
    tvm.build(lowered)(ROWS, out)
    np.testing.assert_array_equal(out, expected(ROWS))
    out[...] = 0
    interpret(lowered["main"], ROWS, out)
    np.testing.assert_array_equal(out, expected(ROWS))
    apart = np.zeros((6, 8), "float32")[:, ::2]
    with pytest.raises(ValueError, match="A: expected a compact array, whose memory B has"):
        interpret(lowered["main"], apart, out)


def test_views_of_memory_of_the_program() -> None:
    """The memory lives as long as its view is read."""
    A = te.placeholder((6, 4), name="A")
    B = te.compute((6, 4), lambda i, j: A[i, j] * 2, name="B")
    C = te.compute((24,), lambda i: B[i // 4, i % 4], name="C")
    D = te.compute((24,), lambda i: A[i // 4, i % 4] + C[23 - i], name="D")
    E = te.compute((24,), lambda i: D[23 - i] * C[i], name="E")
    s = te.create_schedule(E.op)
    s[C].compute_view()
    f, out = tvm.build(s, [A, E]), np.empty(24, "float32")
    f(ROWS, out)
    line = ROWS.reshape(-1)
    np.testing.assert_array_equal(out, (line[::-1] + 2 * line) * 2 * line)


def test_symbolic_extents() -> None:
    n = te.var("n")
    A = te.placeholder((n, 4), name="A")
    B = te.compute((n * 4,), lambda i: A[i // 4, i % 4], name="B")
    C = te.compute((n * 4,), lambda i: B[i] + 1, name="C")
    s = te.create_schedule(C.op)
    s[B].compute_view()
    f = tvm.build(s, [A, C])
    for rows in (0, 1, 7):
        a, out = np.ones((rows, 4), "float32"), np.zeros(rows * 4, "float32")
        f(a, out)
        np.testing.assert_array_equal(out, a.reshape(-1) + 1)


def guest(s: te.Schedule, B: te.Tensor, C: te.Tensor, D: te.Tensor) -> object:
    return s[C].compute_at(s[D], compute_of(s[D]).axis[0])


def predicate(s: te.Schedule, B: te.Tensor, C: te.Tensor, D: te.Tensor) -> object:
    return s[B].set_store_predicate(compute_of(s[B]).axis[0] >= 0)


def alignment(s: te.Schedule, B: te.Tensor, C: te.Tensor, D: te.Tensor) -> object:
    return s[C].storage_align(compute_of(s[C]).axis[0], 16, 0)


def layout(s: te.Schedule, B: te.Tensor, C: te.Tensor, D: te.Tensor) -> object:
    return s[B].transform_layout(lambda i: [i % 4, i // 4])


def place(s: te.Schedule, B: te.Tensor, C: te.Tensor, D: te.Tensor) -> object:
    return s[B].compute_at(s[C], compute_of(s[C]).axis[0])


@pytest.mark.parametrize("change", [guest, predicate, alignment, layout, place])
def test_what_keeps_memory_from_being_shared(change: Callable[..., Any]) -> None:
    A, B, C, D = reshaped()
    s = views(B, D)
    change(s, B, C, D)
    f, out = tvm.build(s, [A, D]), np.empty((4, 6), "float32")
    f(ROWS, out)
    np.testing.assert_array_equal(out, expected(ROWS))


def test_two_arguments() -> None:
    A = te.placeholder((6, 4), name="A")
    B = te.compute((24,), lambda i: A[i // 4, i % 4], name="B")
    s = te.create_schedule(B.op)
    s[B].compute_view()
    f, out = tvm.build(s, [A, B]), np.empty(24, "float32")
    f(ROWS, out)
    np.testing.assert_array_equal(out, ROWS.reshape(-1))


def test_errors() -> None:
    A = te.placeholder((6, 4), name="A")
    for body in (
        lambda i, j: A[j, i],
        lambda i, j: A[i, j] + 1,
        lambda i, j: A[i, j].astype("float64"),
    ):
        B = te.compute((4, 4), body, name="B")
        s = te.create_schedule(B.op)
        with pytest.raises(
            tvm.CompileError, match="B: compute_view: expected a copy of a tensor in the order"
        ):
            s[B].compute_view()
    s = te.create_schedule(B.op)
    with pytest.raises(tvm.CompileError, match="A: compute_view: expected a copy of a tensor"):
        s[A].compute_view()
