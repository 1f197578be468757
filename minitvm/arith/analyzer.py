"""The analyzer of classic TVM, the public face of this package."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import gcd, inf
from typing import Any, NamedTuple

from minitvm.arith.facts import Bound
from minitvm.arith.intervals import IntervalSet, interval_of
from minitvm.arith.prover import Prover
from minitvm.arith.simplify import Simplifier
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.depth import deep_expressions
from minitvm.tir.expr import PrimExpr, Range, Var, as_expr, described


class ConstIntBound(NamedTuple):
    """The least and the greatest value of an integer expression, both included; an infinity stands
    for an unknown bound."""

    min_value: Bound
    max_value: Bound

    @property
    def NEG_INF(self) -> float:
        """The bound that stands for an unknown least value."""
        return -inf

    @property
    def POS_INF(self) -> float:
        """The bound that stands for an unknown greatest value."""
        return inf


class ModularSet(NamedTuple):
    """The integers ``coeff * x + base``; with a `coeff` of 0 the one number `base`."""

    coeff: int
    base: int


class Analyzer(Prover):
    """Learns ranges and conditions, and simplifies and proves with them (classic
    ``tvm.arith.Analyzer``).

    >>> from minitvm.tir.expr import Range, Var
    >>> analyzer = Analyzer()
    >>> i = Var("i")
    >>> analyzer.bind(i, Range(0, 4))
    >>> analyzer.can_prove(i < 4), analyzer.const_int_bound(i * 2 + 1).max_value
    (True, 7)
    >>> analyzer.simplify((i + 8) // 4).value
    2
    """

    def __init__(self) -> None:
        super().__init__()
        self._moduli: dict[Var, ModularSet] = {}

    def simplify(self, expr: Any, steps: int = 2) -> PrimExpr:
        """A simpler expression of the same value where the known facts hold. `steps` is there for
        classic programs, and ignored: one step simplifies all."""
        value = as_expr(expr)
        with deep_expressions("Analyzer.simplify", value):
            return Simplifier(self).expr(value)

    def rewrite_simplify(self, expr: Any) -> PrimExpr:
        """As :meth:`simplify`."""
        return self.simplify(expr)

    def canonical_simplify(self, expr: Any) -> PrimExpr:
        """As :meth:`simplify`."""
        return self.simplify(expr)

    def can_prove(self, condition: Any) -> bool:
        """Whether `condition` surely holds."""
        value = as_expr(condition)
        with deep_expressions("Analyzer.can_prove", value):
            return super().can_prove(value)

    def can_prove_equal(self, lhs: Any, rhs: Any) -> bool:
        """Whether two integer expressions surely have one value."""
        return self.can_prove(e.equal(as_expr(lhs), as_expr(rhs)))

    def bind(self, var: Any, value: Any) -> None:
        """From now on `var` equals an expression, or lies in a range, which is then not empty."""
        variable = as_expr(var)
        if not isinstance(variable, Var):
            raise CompileError(f"Analyzer.bind: expected a variable, got {described(var)}")
        super().bind(variable, value if isinstance(value, Range) else as_expr(value))
        if not isinstance(value, Range):
            self._moduli[variable] = self.modular_set(value)

    def constraint_scope(self, constraint: Any) -> AbstractContextManager[None]:
        """A ``with`` block in which a condition holds."""
        return self.constraint(as_expr(constraint))

    def const_int_bound(self, expr: Any) -> ConstIntBound:
        """The least and the greatest value that `expr` may take, infinite where none is known."""
        value = as_expr(expr)
        with deep_expressions("Analyzer.const_int_bound", value):
            return ConstIntBound(*super().const_int_bound(value))

    def update(self, var: Var, info: ConstIntBound | ModularSet, override: bool = False) -> None:
        """Notes a bound, or the remainder, of a variable. With `override`, the remainder replaces
        the remainder known before; bounds always add to the known ones."""
        if isinstance(info, ModularSet):
            known = self._moduli.get(var)
            if known is not None and known != info and not override:
                raise CompileError(
                    f"Analyzer.update: {var.name}: expected {known}, as known before, got {info}: "
                    "say override=True"
                )
            self._moduli[var] = info
        elif isinstance(info, ConstIntBound):
            for bound, compare in zip(info, (e.greater_equal, e.less_equal), strict=True):
                if isinstance(bound, int):
                    self.assume(compare(var, bound))
        else:
            raise CompileError(
                f"Analyzer.update: {var.name}: expected a ConstIntBound or a ModularSet, got "
                f"{described(info)}"
            )

    def int_set(self, expr: Any, dom_map: Any = None) -> IntervalSet:
        """The values of an expression while some variables run over sets or ranges, and the others
        are fixed.

        >>> from minitvm.tir.expr import Range, Var
        >>> i, j = Var("i"), Var("j")
        >>> found = Analyzer().int_set(i * 16 + j, {j: Range(0, 16)})
        >>> found.min_value, found.max_value
        (i * 16, i * 16 + 15)
        """
        value = as_expr(expr)
        with deep_expressions("Analyzer.int_set", value):
            return interval_of(self, value, {} if dom_map is None else dom_map)

    def modular_set(self, expr: Any) -> ModularSet:
        """The known remainders of an integer expression.

        >>> from minitvm.tir.expr import Var
        >>> Analyzer().modular_set(Var("i") * 8 + 3)
        ModularSet(coeff=8, base=3)
        """
        value = as_expr(expr)
        with deep_expressions("Analyzer.modular_set", value):
            return self._remainder_of(value, {})

    def _remainder_of(self, expr: PrimExpr, found: dict[PrimExpr, ModularSet]) -> ModularSet:
        """The remainders of an expression; `found` keeps the remainders of its parts."""
        if expr not in found:
            found[expr] = self._read_remainder(expr, lambda part: self._remainder_of(part, found))
        return found[expr]

    def _read_remainder(
        self, expr: PrimExpr, remainder_of: Callable[[PrimExpr], ModularSet]
    ) -> ModularSet:
        known = e.const_int(expr)
        if known is not None:
            return ModularSet(0, known)
        match expr:
            case Var():
                return self._moduli.get(expr, ModularSet(1, 0))
            case e.Cast(_, value) if value.dtype.is_integral:
                made = remainder_of(value)
            case e.Add(a, b) | e.Sub(a, b):
                x, y = remainder_of(a), remainder_of(b)
                sign = 1 if isinstance(expr, e.Add) else -1
                made = _modular(gcd(x.coeff, y.coeff), x.base + sign * y.base)
            case e.Mul(a, b):
                x, y = remainder_of(a), remainder_of(b)
                coeff = gcd(x.coeff * y.coeff, x.coeff * y.base, x.base * y.coeff)
                made = _modular(coeff, x.base * y.base)
            case e.FloorMod(a, b) if divisor := e.const_int(b):
                x = remainder_of(a)
                made = _modular(gcd(x.coeff, divisor), x.base)
            case e.FloorDiv(a, b) | e.Div(a, b) if divisor := e.const_int(b):
                x = remainder_of(a)
                exact = not x.coeff % divisor and not x.base % divisor
                made = _modular(x.coeff // divisor, x.base // divisor) if exact else _ANY
            case e.Min(a, b) | e.Max(a, b) | e.Select(_, a, b):
                x, y = remainder_of(a), remainder_of(b)
                made = _modular(gcd(x.coeff, y.coeff, x.base - y.base), x.base)
            case _:
                return _ANY
        # Where arithmetic may wrap modulo a power of 2, only such remainders are known.
        if self.is_exact(expr):
            return made
        return _modular(gcd(made.coeff, 1 << expr.dtype.bits), made.base)


_ANY = ModularSet(1, 0)


def _modular(coeff: int, base: int) -> ModularSet:
    coeff = abs(coeff)
    return ModularSet(coeff, base % coeff if coeff else base)
