"""Padding is computed where that reads nothing that isn't there."""

from __future__ import annotations

import pytest

from minitvm import tir
from minitvm.tir.expr import PrimExpr, Var, const
from minitvm.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    PrimFunc,
    Stmt,
    seq,
)  # fmt: skip
from minitvm.tir.verify import verify
from minitvm.transform.compute_padding import compute_padding
from tests.tir.programs import function

i, j, n = Var("i"), Var("j"), Var("n")
A = tir.decl_buffer((n,), name="A")
P = tir.decl_buffer((32,), name="P")
S = tir.decl_buffer((32,), name="S")


def padded(value: PrimExpr, kind: ForKind = ForKind.UNROLLED) -> PrimFunc:
    """S[j] = value for j < n and i < n, in loops over 32, that over i of a kind."""
    store: Stmt = BufferStore(S, value, (j,))
    for guard in (j < n, i < n):
        store = IfThenElse(tir.likely(guard), store)
    inner = For(
        j, const(0), const(32), ForKind.VECTORIZED, AttrStmt(S, "padded_buffer", const(1), store)
    )
    outer = For(i, const(0), const(32), kind, inner)
    return function("f", A, P, body=Allocate(S, outer))


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (P[j], ()),
        (P[j] + P[i], ()),
        (A[j], ("j < n",)),
        (A[i], ("j < n",)),  # without which there might be no last element
        (A[i] + A[j], ("j < n",)),
        (P[j + 1], ("i < n", "j < n")),
    ],
)
def test_what_is_kept(value: PrimExpr, kept: tuple[str, ...]) -> None:
    made = compute_padding(padded(value))
    verify(made)
    found = tuple(guard for guard in ("i < n", "j < n") if f"likely({guard})" in str(made))
    assert found == kept


def test_the_last_element_is_read_where_one_is_not_there() -> None:
    assert "S[j] = A[min(i, n - 1)]" in str(compute_padding(padded(A[i])))


def test_a_loop_that_may_become_vectors_reads_as_before() -> None:
    assert "min(" not in str(compute_padding(padded(A[i], ForKind.SERIAL)))


def test_what_a_choice_reads_is_read_where_it_is_chosen() -> None:
    value = tir.if_then_else(j < n, A[j], const(0.0))
    assert "likely" not in str(compute_padding(padded(value)))
    assert "likely(j < n)" in str(compute_padding(padded(tir.if_then_else(j > 0, A[j], A[0]))))


def test_rows_beyond_the_end_are_computed_from_a_factor_that_is_itself_left_out() -> None:
    """What other rows read as well has been written; what this row alone reads may not."""
    T = tir.decl_buffer((32,), name="T")
    fill = IfThenElse(tir.likely(j < n), BufferStore(T, const(1.0), (j,)))
    first = For(j, const(0), const(32), ForKind.SERIAL, fill)
    for value, kept in ((T[j], False), (T[i], True)):
        rows = padded(value).body
        assert isinstance(rows, Allocate)
        body = Allocate(T, Allocate(S, seq(first, rows.body)))
        assert ("likely(i < n)" in str(compute_padding(function("f", A, P, body=body)))) == kept


def test_lanes_are_not_clamped() -> None:
    """A minimum in each lane would read one element at a time."""
    made = str(compute_padding(padded(A[i + j])))
    assert "min(" not in made and "likely(i < n)" in made


def test_a_guard_at_the_end_of_a_line_keeps_lanes_neighbours() -> None:
    """Behind the end, a quotient and a remainder would go on with the next line."""
    lines = tir.decl_buffer((2, 40), name="lines")
    for size, is_kept in ((24, True), (32, False)):
        value = lines[j // size, j % size]
        store = IfThenElse(tir.likely(j < 24), BufferStore(S, value, (j,)))
        body = For(
            j, const(0), const(32), ForKind.VECTORIZED,
            AttrStmt(S, "padded_buffer", const(1), store),
        )  # fmt: skip
        made = compute_padding(function("f", lines, body=Allocate(S, body)))
        assert ("likely(j < 24)" in str(made)) == is_kept
