"""Spans: bounds of expressions while some variables run over ranges and the others are fixed.

A span is a pair of affine forms over the fixed variables, the least and the greatest value. Equal
terms cancel, so that ``(i*16 + j) - i*16`` has the span of j, and most spans have a constant
extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.linear import Affine, Atom
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, PrimExpr, Range, Var
from minitvm.tir.functor import walk_once


@final
@record()
class Span:
    """The integers from `low` to `high`, both included."""

    low: Affine
    high: Affine

    @property
    def is_point(self) -> bool:
        return self.low.same_as(self.high)

    @property
    def extent(self) -> Affine:
        return self.high - self.low + 1


class Spans:
    """The known spans of some variables; all other variables are fixed."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._of: dict[Var, Span | None] = {}

    def let(self, var: Var, span: Span | None) -> None:
        """Sets the span of `var`, which takes all of its values; None: nothing is known of its
        values."""
        self._of[var] = span

    def of(self, expr: PrimExpr) -> Span | None:
        """The span of an integer expression; None when nothing is known.

        >>> from minitvm.tir.expr import Var
        >>> i, j = Var("i"), Var("j")
        >>> spans = Spans(Prover())
        >>> spans.let(j, Span(Affine(), Affine({}, 15)))
        >>> spans.of(i * 16 + j + 1).extent.constant
        16
        """
        return self._of_form(self._prover.affine(expr))

    def where(self, expr: PrimExpr, span: Span, forms: Iterable[Affine]) -> Span:
        """The part of an expression's span in which some forms are at least zero.

        >>> from minitvm.tir.expr import Var
        >>> i, k = Var("i"), Var("k")
        >>> spans = Spans(Prover())
        >>> spans.let(k, Span(Affine(), Affine({}, 99)))
        >>> spans.where(k, spans.of(k), [Prover().affine(i - k)]).high.terms
        {min(99, int64(i)): 1}
        """
        value = self._prover.affine(expr)
        for form in forms:
            shared = [form.terms.get(atom, 0) * value.terms[atom] for atom in value.terms]
            above = self._of_form(value + form) if min(shared, default=0) < 0 else None
            below = self._of_form(value - form) if max(shared, default=0) > 0 else None
            if above is not None:
                span = Span(span.low, self._least(span.high, above.high))
            if below is not None:
                span = Span(self._greatest(span.low, below.low), span.high)
        return span

    def of_range(self, range_: Range) -> Span | None:
        """All values in a range; None when nothing is known of its ends."""
        low, extent = self.of(range_.min), self.of(range_.extent)
        return None if low is None or extent is None else Span(low.low, low.high + extent.high - 1)

    def point(self, expr: PrimExpr) -> Span:
        """The span of an expression without running variables."""
        form = self._prover.affine(expr)
        return Span(form, form)

    def expression(self, form: Affine, dtype: DType) -> PrimExpr:
        """A form as an expression."""
        return self._prover.expression(form, dtype)

    def union(self, a: Span, b: Span) -> Span:
        """The least span that holds both."""
        return Span(self._least(a.low, b.low), self._greatest(a.high, b.high))

    def _of_form(self, form: Affine) -> Span | None:
        low = high = Affine({}, form.constant)
        for atom, coefficient in form.terms.items():
            span = self._of_atom(atom)
            if span is None:
                return None
            ends = (span.low * coefficient, span.high * coefficient)
            low, high = low + ends[coefficient < 0], high + ends[coefficient >= 0]
        return Span(low, high)

    def _of_atom(self, atom: Atom) -> Span | None:
        if isinstance(atom, Var) and atom in self._of:
            return self._of[atom]
        if not is_pure(atom):
            return None
        if not any(isinstance(each, Var) and each in self._of for each in walk_once(atom)):
            form = self._prover.affine(atom)
            return Span(form, form)
        match atom:
            case e.FloorDiv(a, b):
                return self._quotient(a, b)
            case e.FloorMod(a, b):
                return self._remainder(a, b)
            case e.Min(a, b) | e.Max(a, b):
                return self._extremum(atom, a, b)
            case e.Mul(a, b):
                return self._product(a, b)
            case e.Select(_, a, b) | Call(op="if_then_else", args=(_, a, b)):
                return self._either(a, b)
        return None

    def _quotient(self, a: PrimExpr, b: PrimExpr) -> Span | None:
        span = self.of(a)
        if span is None or not self._is_positive(b):
            return None
        return Span(self._divide(span.low, b), self._divide(span.high, b))

    def _remainder(self, a: PrimExpr, b: PrimExpr) -> Span | None:
        if not self._is_positive(b):
            return None
        span = self.of(a)
        if span is not None and span.is_point and e.const_int(b) is None:
            dividend = self._expression(span.low)
            return self.point(e.floormod(*e.promote(dividend, b)))
        if span is not None:
            low, high = self._divide(span.low, b), self._divide(span.high, b)
            if low.same_as(high):
                whole = self._times(low, b)
                return Span(span.low - whole, span.high - whole)
        return Span(Affine(), self._prover.affine(b) - 1)

    def _extremum(self, node: PrimExpr, a: PrimExpr, b: PrimExpr) -> Span | None:
        x, y = self.of(a), self.of(b)
        if x is None or y is None:
            return None
        pick = self._least if isinstance(node, e.Min) else self._greatest
        return Span(pick(x.low, y.low), pick(x.high, y.high))

    def _product(self, a: PrimExpr, b: PrimExpr) -> Span | None:
        x, y = self.of(a), self.of(b)
        if x is None or y is None:
            return None
        if not x.is_point:
            x, y = y, x
        factor = self._expression(x.low)
        if not x.is_point or not self._prover.proves(x.low):
            return None
        return Span(self._times(y.low, factor), self._times(y.high, factor))

    def _either(self, a: PrimExpr, b: PrimExpr) -> Span | None:
        x, y = self.of(a), self.of(b)
        return None if x is None or y is None else self.union(x, y)

    def _is_positive(self, divisor: PrimExpr) -> bool:
        span = self.of(divisor)
        return span is not None and span.is_point and self._prover.proves(span.low - 1)

    def _divide(self, form: Affine, divisor: PrimExpr) -> Affine:
        return self._prover.affine(e.floordiv(*e.promote(self._expression(form), divisor)))

    def _times(self, form: Affine, factor: PrimExpr) -> Affine:
        return self._prover.affine(self._expression(form) * factor)

    def _least(self, a: Affine, b: Affine) -> Affine:
        if self._prover.proves(b - a):
            return a
        if self._prover.proves(a - b):
            return b
        return self._prover.affine(e.minimum(self._expression(a), self._expression(b)))

    def _greatest(self, a: Affine, b: Affine) -> Affine:
        if self._prover.proves(a - b):
            return a
        if self._prover.proves(b - a):
            return b
        return self._prover.affine(e.maximum(self._expression(a), self._expression(b)))

    def _expression(self, form: Affine) -> PrimExpr:
        dtypes = [atom.dtype for atom in form.terms if atom.dtype.is_int]
        dtype = max(dtypes, key=lambda each: each.bits, default=INT64)
        return self._prover.expression(form, dtype)
