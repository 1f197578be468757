"""Divisors of the digits of fused loops."""

from __future__ import annotations

from minitvm.arith.fused_loop import symbolic_divisor
from minitvm.runtime.dtype import INT64
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import PrimExpr, Var

m, n, x = (Var(name, INT64) for name in "mnx")
X, T = decl_buffer((m, n), "float32", "X"), decl_buffer((n, m), "float32", "T")


def digits(divisor: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    return e.FloorDiv(x, divisor), e.FloorMod(x, divisor)


def test_a_digit_of_a_joined_index_counts_where_it_stands_alone() -> None:
    """The store goes through all elements in order; the transposed read needs both digits."""
    i, j = digits(n)
    assert symbolic_divisor(x, s.BufferStore(X, X[i, j], (i, j))) is None
    assert symbolic_divisor(x, s.BufferStore(X, T[j, i], (i, j))) is n


def test_a_division_for_each_block_takes_little() -> None:
    blocks = e.floordiv(n + 63, 64)
    i, j = digits(blocks)
    assert symbolic_divisor(x, s.BufferStore(X, T[j * 64, i], (i, j * 64))) is None
    for halves in (e.floordiv(n, 2), e.floordiv(n + 1, 2)):  # rows of some size
        i, j = digits(halves)
        assert symbolic_divisor(x, s.BufferStore(X, T[j * 2, i], (i, j))) is not None
