"""The analyzer of classic TVM, the public face of this package."""

from __future__ import annotations

from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.tir.expr import PrimExpr


class Analyzer(Prover):
    """Learns ranges and conditions, and simplifies and proves with them (classic
    ``tvm.arith.Analyzer``).

    >>> from minitvm.tir.expr import Range, Var
    >>> analyzer = Analyzer()
    >>> i = Var("i")
    >>> analyzer.bind(i, Range(0, 4))
    >>> analyzer.can_prove(i < 4), analyzer.const_int_bound(i * 2 + 1)
    (True, (1, 7))
    >>> analyzer.simplify((i + 8) // 4).value
    2
    """

    def simplify(self, expr: PrimExpr) -> PrimExpr:
        """A simpler expression of the same value where the known facts hold."""
        return Simplifier(self).expr(expr)
