"""A buffer is filled one iteration ahead, and holds what it held before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te, tir
from minitvm.error import TVMError
from minitvm.runtime.dtype import FLOAT32
from minitvm.tir.expr import Buffer, PrimExpr, Var, as_expr, const
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    Stmt,
    seq,
)
from minitvm.transform.inject_double_buffer import SCOPE, DoubleBufferOptions, inject_double_buffer
from tests.tir.programs import function_of, loop

n = te.var("n")
i, j, k = (Var(name) for name in "ijk")
A, B = tir.decl_buffer((n, 4), name="A"), tir.decl_buffer((n, 4), name="B")
T, U = tir.decl_buffer((4,), name="T"), tir.decl_buffer((4,), name="U")


func = function_of(A, B)


def ahead(buffer: Any, value: PrimExpr) -> Stmt:
    return AttrStmt(buffer, SCOPE, const(1), loop(j, 4, BufferStore(buffer, value, (j,))))


def use(value: PrimExpr) -> Stmt:
    return loop(j, 4, BufferStore(B, value, (i, j)))


def rows(body: Stmt, begin: Any = 0, extent: Any = n, kind: ForKind = ForKind.SERIAL) -> Stmt:
    return For(i, as_expr(begin), as_expr(extent), kind, body)


SIMPLE = rows(Allocate(T, seq(ahead(T, A[i, j]), use(T[j] + 1.0))))


def test_text(golden: Callable[[str], None]) -> None:
    golden(str(inject_double_buffer(func(SIMPLE))))


def test_the_loop_split(golden: Callable[[str], None]) -> None:
    """Which half is used is known once the inner loop is written out."""
    with tvm.transform.PassContext(config={"tir.InjectDoubleBuffer": {"split_loop": 2}}):
        golden(str(tvm.lower(func(rows(SIMPLE.body, 0, 6)), simple_mode=True)["f"]))  # type: ignore[attr-defined]  # a For


@settings(deadline=None)
@given(st.integers(0, 5), st.sampled_from([0, 1, 2, 4]), st.integers(0, 2), st.booleans())
def test_the_same_values(size: int, split: int, begin: int, outside: bool) -> None:
    """Two buffers, allocated in the loop or around it."""
    body = seq(ahead(T, A[i, j]), ahead(U, A[i, 3 - j]), use(T[j] * 2.0 + U[j]))
    if outside:
        before = Allocate(T, Allocate(U, rows(body, begin, n - begin)))
    else:
        before = rows(Allocate(T, Allocate(U, body)), begin, n - begin)  # type: ignore[assignment]  # a For
    made = inject_double_buffer(func(before), DoubleBufferOptions(split))
    a = np.random.default_rng(0).random((size, 4), np.float32)
    expected, found, compiled = (np.zeros_like(a) for _ in range(3))
    interpret(func(before), a, expected)
    interpret(made, a, found)
    np.testing.assert_array_equal(found, expected)
    if size == 5:
        tvm.build(made)(a, compiled)
        np.testing.assert_array_equal(compiled, expected)


@pytest.mark.parametrize("outside", [True, False])
def test_a_buffer_of_another_kind_beside_it(outside: bool) -> None:
    """Inside or outside of the one that is doubled."""
    plain = loop(j, 4, BufferStore(U, A[i, j] * 3.0, (j,)))
    body = seq(ahead(T, A[i, j] * 2.0), plain, use(T[j] + U[j]))
    first, second = (U, T) if outside else (T, U)
    made = func(rows(Allocate(first, Allocate(second, body))))
    a, found = np.random.default_rng(0).random((5, 4), "float32"), np.zeros((5, 4), "float32")
    tvm.build(made)(a, found)
    np.testing.assert_allclose(found, a * 5, rtol=1e-6)


def test_without_a_loop_there_is_nothing_to_run_ahead_of() -> None:
    body = Allocate(T, seq(ahead(T, const(1.0)), loop(j, 4, BufferStore(B, T[j], (const(0), j)))))
    a, b = np.zeros((2, 1, 4), np.float32)
    interpret(inject_double_buffer(func(body)), a, b)
    np.testing.assert_array_equal(b, 1.0)


SAME_AS_B = Buffer(B.data, B.shape, FLOAT32, "other")
SAME_AS_T = Buffer(T.data, T.shape, FLOAT32, "other")
CALL = Evaluate(tir.call_packed("f", T))
WRITES_B = AttrStmt(T, SCOPE, const(1), use(A[i, j]))


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (seq(ahead(T, A[i, j]), use(T[j])), ForKind.PARALLEL, "expected a serial loop, found para"),
        (seq(ahead(T, B[i, j]), use(T[j])), ForKind.SERIAL, "found both to use B"),
        (seq(ahead(T, A[i, j]), CALL), ForKind.SERIAL, "found the whole buffer passed to a call"),
        (seq(WRITES_B, use(T[j])), ForKind.SERIAL, "found both to use B"),
        (seq(ahead(T, SAME_AS_B[i, j]), use(T[j])), ForKind.SERIAL, "found both to use "),
        (seq(ahead(T, A[i, j]), use(SAME_AS_T[j])), ForKind.SERIAL, "under the name other"),
    ],
)
def test_errors(body: Stmt, kind: ForKind, message: str) -> None:
    with pytest.raises(TVMError, match=rf"double_buffer of T in loop i: .*{message}"):
        inject_double_buffer(func(rows(Allocate(T, body), kind=kind)))


LOW = AttrStmt(T, SCOPE, const(1), loop(j, 3, BufferStore(T, A[i, j], (j,))))
SAME = AttrStmt(T, SCOPE, const(1), loop(j, 4, BufferStore(T, A[i, j], (const(0),))))
SUM = ahead(T, T[j] + A[i, j])


@pytest.mark.parametrize("fill", [LOW, SAME, SUM])
def test_a_buffer_around_the_loop_is_filled_as_a_whole(fill: Stmt) -> None:
    """Each half would keep what every second iteration leaves."""
    with pytest.raises(TVMError, match="double_buffer of T in loop i: expected plain loops that"):
        inject_double_buffer(func(Allocate(T, rows(seq(fill, use(T[j]))))))


def test_sums_fill_a_buffer_around_the_loop() -> None:
    zero = loop(j, 4, BufferStore(T, const(0.0), (j,)))
    total = loop(k, 2, loop(j, 4, BufferStore(T, T[j] + A[i, j], (j,))))
    fill = AttrStmt(T, SCOPE, const(1), seq(zero, total))
    before = func(Allocate(T, rows(seq(fill, use(T[j])))))
    a, b = np.ones((5, 4), np.float32), np.zeros((5, 4), np.float32)
    interpret(inject_double_buffer(before), a, b)
    np.testing.assert_array_equal(b, 2.0)


def test_a_buffer_that_is_read_after_its_loop() -> None:
    last = loop(j, 4, BufferStore(B, T[j], (const(0), j)))
    with pytest.raises(TVMError, match="double_buffer of T: expected accesses in its loop"):
        inject_double_buffer(func(Allocate(T, seq(rows(seq(ahead(T, A[i, j]), use(T[j]))), last))))


def test_split_by_an_odd_number() -> None:
    with pytest.raises(TVMError, match="split_loop: expected 0, 1 or an even number, got 3"):
        inject_double_buffer(func(SIMPLE), DoubleBufferOptions(3))
