"""Clips loops: leaves out the iterations in which the guards of all their statements fail."""

from __future__ import annotations

from minitvm.arith.guards import clipped, cutting, is_symbolic
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.work import statements_run
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.functor import contains
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body


def clip_loops(func: PrimFunc) -> PrimFunc:
    """Leaves out the iterations at the ends of a loop in which guards of all its statements fail.

    Before, for blocks of 5 panels with 32 columns each::

        for p in range(5):
            for j in vectorized(32):
                if likely(block * 160 + p * 32 + j < n):
                    C[block * 160 + p * 32 + j] = 0.0

    After::

        for p in range(min(5, (n - block * 160 - 1) // 32 + 1)):
            for j in vectorized(32):
                if likely(block * 160 + p * 32 + j < n):
                    C[block * 160 + p * 32 + j] = 0.0

    Only loops of constant extent that lie between other loops are clipped, such as the middle loops
    that splits by constants leave. The guards must be stable in the loop. A guard on the loop's own
    variable alone is removed. Serial loops with little work keep their extents:
    :func:`partition_loops` makes a main part in which these are constants. Long ones end with a
    symbolic extent, which may be a small part of them.
    """
    return with_body(func, _ClipLoops(prover_of(func)).stmt(func.body))


_CLIPPED = (ForKind.SERIAL, ForKind.PARALLEL)
_MANY = 32  # statements run in an iteration, or iterations: the loop's counter costs little


class _ClipLoops(ScopedMutator):
    changes = (s.IfThenElse,)
    _depth = 0

    def visit_For(self, node: s.For) -> Stmt:
        if self._depth:
            node = self._clip(node)
        if not contains(s.For, node.body):
            return node
        self._depth += 1
        made = super().visit_For(node)
        self._depth -= 1
        return made

    def _clip(self, node: s.For) -> s.For:
        extent = e.const_int(node.extent)
        if node.kind not in _CLIPPED or e.const_int(node.min) != 0 or extent is None:
            return node
        if node.kind is ForKind.PARALLEL or statements_run(node.body) >= _MANY:
            return clipped(self._prover, node, cutting(self._prover, node))
        if extent < _MANY:
            return node
        found = cutting(self._prover, node)
        return clipped(
            self._prover, node, [each for each in found if is_symbolic(self._prover, each.rest)]
        )
