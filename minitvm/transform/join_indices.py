"""Joins the indices of fused loops, so that the address of an access is one index."""

from __future__ import annotations

from typing import Any

from minitvm.arith.fused_index import digits, has_digits
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.simplify import Simplifier
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr
from minitvm.tir.functor import Mutator, contains, rebuild
from minitvm.tir.stmt import PrimFunc, with_body


def join_indices(func: PrimFunc) -> PrimFunc:
    """Rewrites the indices of an access, if they are the digits of one number, as digits of that
    number.

    Before, for tensors of shape (100, 2)::

        for o in range(25):
            for l in vectorized(8):
                B[o * 4 + l // 2, l % 2] = A[o * 4 + l // 2, l % 2]

    After::

        for o in range(25):
            for l in vectorized(8):
                B[(o * 8 + l) // 2, (o * 8 + l) % 2] = A[(o * 8 + l) // 2, (o * 8 + l) % 2]

    In a compact tensor both digits together are the address ``o * 8 + l``, so that the lanes are
    neighbours. The simplifier takes such digits apart, so this pass runs after it.
    """
    if not contains((e.FloorDiv, e.FloorMod), func.body):
        return func
    return with_body(func, _Join(prover_of(func)).stmt(func.body))


class _Join(ScopedMutator):
    def expr(self, node: PrimExpr) -> PrimExpr:
        return Mutator.expr(self, node)

    def _access(self, node: Any) -> Any:
        made = self.descend(node)
        buffer = made.buffer
        if buffer.strides or buffer.auto_broadcast or not any(map(has_digits, made.indices)):
            return made
        return rebuild(made, {"indices": digits(Simplifier(self._prover), buffer, made.indices)})

    visit_BufferLoad = visit_BufferStore = _access
