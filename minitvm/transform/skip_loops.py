"""Skips long loops that have no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minitvm.arith.guards import gates, under
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.work import statements_run
from minitvm.tir import stmt as s
from minitvm.tir.expr import Var
from minitvm.tir.functor import contains
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body

_Scope = TypeVar("_Scope", s.For, s.LetStmt)

_LONG = 256  # statements run: a condition beside them costs nothing


def skip_loops(func: PrimFunc) -> PrimFunc:
    """Puts a long loop under the condition that at least one of its iterations has an effect.

    Before, for tiles of 6 rows and 16 columns of a triangle::

        for k in range(512):
            for r in unrolled(6):
                for c in vectorized(16):
                    if j * 16 + c <= i * 6 + r:
                        C[r, c] = C[r, c] + A[i * 6 + r, k] * B[k, j * 16 + c]

    After::

        if j * 16 <= i * 6 + 5:
            for k in range(512):
                ...

    Only loops between other loops are skipped. A condition that doesn't change in the loop has
    moved out of it already (:mod:`minitvm.transform.hoist_conditions`). The loops were partitioned
    before: the main part, where no condition is left, needs no test.
    """
    return with_body(func, _SkipLoops(prover_of(func)).stmt(func.body))


class _SkipLoops(ScopedMutator):
    changes = (s.IfThenElse,)
    _outer = frozenset[Var]()  # the variables of the loops around, and names for values in them

    def visit_For(self, node: s.For) -> Stmt:
        if node.kind == ForKind.SERIAL and self._outer and statements_run(node) >= _LONG:
            found = gates(self._prover, node, self._outer)
            if found:
                return under(found, node)
        if not contains(s.For, node.body):
            return node
        return self._around(node.loop_var, super().visit_For, node)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        return self._around(node.var, super().visit_LetStmt, node)

    def _around(self, var: Var, visit: Callable[[_Scope], Stmt], node: _Scope) -> Stmt:
        outer = self._outer
        self._outer = outer | {var}
        made = visit(node)
        self._outer = outer
        return made
