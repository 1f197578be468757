"""Padding is computed where that reads nothing that isn't there."""

from __future__ import annotations

import pytest

from minitvm import tir
from minitvm.expr import PrimExpr, Var, const
from minitvm.passes.compute_padding import compute_padding
from minitvm.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    PrimFunc,
    Stmt,
)  # fmt: skip
from minitvm.verify import verify

i, j, n = Var("i"), Var("j"), Var("n")
A = tir.decl_buffer((n,), name="A")
P = tir.decl_buffer((32,), name="P")
S = tir.decl_buffer((32,), name="S")


def padded(value: PrimExpr) -> PrimFunc:
    """S[j] = value for j < n and i < n, in loops over 32."""
    store: Stmt = BufferStore(S, value, (j,))
    for guard in (j < n, i < n):
        store = IfThenElse(tir.likely(guard), store)
    inner = For(
        j, const(0), const(32), ForKind.SERIAL, AttrStmt(S, "padded_buffer", const(1), store)
    )
    outer = For(i, const(0), const(32), ForKind.SERIAL, inner)
    return PrimFunc((A.data, P.data), Allocate(S, outer), {A.data: A, P.data: P}, "f")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (P[j], ()),
        (P[j] + P[i], ()),
        (A[j], ("j < n",)),
        (A[i], ("i < n",)),
        (A[i] + A[j], ("i < n", "j < n")),
        (P[j + 1], ("i < n", "j < n")),
    ],
)
def test_what_is_kept(value: PrimExpr, kept: tuple[str, ...]) -> None:
    made = compute_padding(padded(value))
    verify(made)
    found = tuple(guard for guard in ("i < n", "j < n") if f"likely({guard})" in str(made))
    assert found == kept
