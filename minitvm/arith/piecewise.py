"""Indices that are linear in parts of a loop: clamps, choices, magnitudes, remainders, quotients.

``max(j - 1, 0)`` is ``j - 1`` where ``j >= 1``, and ``(j + 5) % n`` is ``j + 5`` where
``j + 5 < n``. There, neighbours of a loop's iterations read neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import TypeAlias, final

from minitvm.arith.guards import LARGEST, NEGATIONS
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import children, contains, find, with_fields

_MOST = 4  # parts of a range in which a quotient is constant
_LEAST = 16  # values of an operand that are worth code of their own
_FEW = 64  # values of an index beyond an end of a range of unknown size


@final
@record()
class Piece:
    """A simpler `value` that a `node` of an index has where all `conditions` hold."""

    node: PrimExpr
    conditions: tuple[PrimExpr, ...]
    value: PrimExpr


def may_have_pieces(index: PrimExpr) -> bool:
    """Whether an index has nodes that are linear in parts."""
    return contains(PIECEWISE, index) or any(each.op in _CALLS for each in find(e.Call, index))


PIECEWISE = (e.Min, e.Max, e.FloorDiv, e.FloorMod, e.Select)
_CALLS = ("if_then_else", "fabs")
_Compare: TypeAlias = Callable[[PrimExpr, PrimExpr], PrimExpr]


def pieces_of(prover: Prover, index: PrimExpr, var: Var, lanes: int) -> list[Piece]:
    """The greatest pieces of the nodes of an index in which `var` occurs, an inner node before the
    nodes around it. Quotients and remainders that are known to be equal, or neighbours, in each
    group of `lanes` iterations are left out.

    >>> j = Var("j")
    >>> prover = Prover()
    >>> prover.bind_interval(j, e.const(0), e.const(100))
    >>> [piece] = pieces_of(prover, e.floormod(j + 5, 100), j, 1)
    >>> print(piece.value, "where", *piece.conditions)
    j + 5 where j + 5 < 100
    """
    reader = _Reader(prover, var, lanes)
    reader.read(index)
    return reader.found


_Read: TypeAlias = tuple[PrimExpr, tuple[PrimExpr, ...]]
"""A value of an expression, and the conditions under which the expression has it."""


def _all_of(*conditions: Iterable[PrimExpr]) -> tuple[PrimExpr, ...]:
    """All conditions, each object once."""
    return tuple(dict.fromkeys(each for some in conditions for each in some))


@final
class _Reader:
    def __init__(self, prover: Prover, var: Var, lanes: int) -> None:
        self.found: list[Piece] = []
        self._prover = prover
        self._var = var
        self._lanes = lanes
        self._read: dict[PrimExpr, _Read] = {}  # nodes may be shared
        self._varying: dict[PrimExpr, bool] = {}

    def read(self, node: PrimExpr) -> _Read:
        """The greatest piece of an expression."""
        made = self._read.get(node)
        if made is None:
            made = self._read[node] = self._read_anew(node)
        return made

    def _read_anew(self, node: PrimExpr) -> _Read:
        if not self._varies(node):
            return node, ()
        match node:
            case e.Add(a, b) | e.Sub(a, b) | e.Mul(a, b):
                (x, where_x), (y, where_y) = self.read(a), self.read(b)
                return with_fields(node, a=x, b=y), _all_of(where_x, where_y)
            case e.Min(a, b):
                return self._piece(node, self._extremum(node, a, b, e.LE))
            case e.Max(a, b):
                return self._piece(node, self._extremum(node, a, b, e.GE))
            case e.FloorDiv(a, b) | e.FloorMod(a, b):
                return self._piece(node, self._division(node, a, b))
            case e.Select(condition, a, b) | e.Call(op="if_then_else", args=(condition, a, b)):
                return self._piece(node, self._choice(node, condition, a, b))
            case e.Call(op="fabs", args=(a,)):
                x, where = self.read(a)
                return self._piece(node, (x, _all_of(where, [e.GE(x, e.const(0, x.dtype))])))
        return node, ()

    def _varies(self, node: PrimExpr) -> bool:
        made = self._varying.get(node)
        if made is None:
            made = self._varying[node] = node is self._var or any(map(self._varies, children(node)))
        return made

    def _piece(self, node: PrimExpr, read: _Read) -> _Read:
        value, conditions = read
        if value is not node:
            self.found.append(Piece(node, conditions, value))
        return read

    def _extremum(
        self,
        node: PrimExpr,
        a: PrimExpr,
        b: PrimExpr,
        compare: _Compare,
    ) -> _Read:
        """The operand that changes with the variable; the first one if both do."""
        if not self._varies(a):
            a, b = b, a
        (x, where_x), (y, where_y) = self.read(a), self.read(b)
        least, greatest = self._prover.interval(self._prover.affine(x))
        if greatest - least < _LEAST:
            return node, ()
        return x, _all_of(where_x, where_y, [compare(x, y)])

    def _choice(self, node: PrimExpr, condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> _Read:
        """The value that a comparison of two numbers chooses where they differ most."""
        if not isinstance(condition, e.LT | e.LE | e.GT | e.GE):
            return node, ()
        (x, where_x), (y, where_y) = self.read(condition.a), self.read(condition.b)
        compare: _Compare = type(condition)
        is_below = isinstance(condition, e.LT | e.LE)
        form = self._prover.affine(x) - self._prover.affine(y)
        if self._is_mostly_below(form, is_below) != is_below:
            a, compare = b, NEGATIONS[type(condition)]
        value, where = self.read(a)
        return value, _all_of(where_x, where_y, where, [compare(x, y)])

    def _is_mostly_below(self, form: Affine, is_tie: bool) -> bool:
        """Whether most values of a form are below zero; whether all are but a few, where its ends
        aren't known. If as many values are below as above, the answer is `is_tie`."""
        least, greatest = self._prover.interval(form)
        if -least > LARGEST and greatest > LARGEST:
            _, last = self._without_short_loops(form)
            return bool(self._prover.proves(-last + _FEW))
        return -least > greatest or (is_tie and -least == greatest)

    def _division(self, node: PrimExpr, a: PrimExpr, b: PrimExpr) -> _Read:
        x, where = self.read(a)
        if self._varies(b) or self._is_aligned(x, b):
            return node, ()
        times = self._usual_quotient(x, b)
        if times is None:
            return node, ()
        quotient = e.const(times, x.dtype)
        begin, end = quotient * b, (quotient + 1) * b
        value = quotient if isinstance(node, e.FloorDiv) else x - begin
        return value, _all_of(where, self._unproven(e.GE(x, begin), e.LT(x, end)))

    def _unproven(self, *conditions: PrimExpr) -> Iterator[PrimExpr]:
        return (each for each in conditions if not self._prover.can_prove(each))

    def _usual_quotient(self, x: PrimExpr, divisor: PrimExpr) -> int | None:
        """The quotient that most values of `x` have; None if it takes many, or any."""
        form, by = self._prover.affine(x), e.const_int(divisor)
        least, greatest = self._prover.interval(form)
        if by is None:
            return self._quotient_of_size(form, self._prover.affine(divisor))
        if by <= 0 or not (isfinite(least) and isfinite(greatest)):
            return None
        first, last = int(least) // by, int(greatest) // by
        if not 0 <= last - first < _MOST:  # no values where a loop has no iterations
            return None
        counts = {
            q: min(int(greatest), q * by + by - 1) - max(int(least), q * by) + 1
            for q in range(first, last + 1)
        }
        most = max(counts, key=lambda q: counts[q])
        return most if counts[most] >= _LEAST else None

    def _quotient_of_size(self, form: Affine, size: Affine) -> int | None:
        """The same for a divisor that isn't known: the quotient that all but a few values have, as
        for ``(j + 5) % n``; or one of two quotients, if all but a few values have one of them."""
        proves = self._prover.proves
        least, greatest = self._without_short_loops(form)
        first = next((form.terms.get(n, 0) for n, times in size.terms.items() if times == 1), 0)
        for q in (first, first + 1, first - 1):
            if proves(least - size * q + _FEW, size * (q + 1) - 1 - greatest + _FEW):
                return q
        for q in (first, first - 1):
            if proves(least - size * q + _FEW, size * (q + 2) - 1 - greatest + _FEW):
                return q
        return None

    def _without_short_loops(self, form: Affine) -> tuple[Affine, Affine]:
        """The least and the greatest value of a form while the variables of short loops run."""
        least = greatest = form
        for atom, times in form.terms.items():
            each = Affine.of_atom(atom) * times
            low, high = self._prover.interval(each)
            if isinstance(low, int) and isinstance(high, int) and high - low < _FEW:
                least, greatest = least - each + low, greatest - each + high
        return least, greatest

    def _is_aligned(self, x: PrimExpr, divisor: PrimExpr) -> bool:
        """Whether the iterations that run at once have the same quotient, and remainders side by
        side."""
        form, by = self._prover.affine(x), e.const_int(divisor)
        if by is None or self._lanes == 1:
            return False
        others = [c for atom, c in form.terms.items() if atom is not self._var]
        numbers = (by, form.constant, *others)
        return form.terms.get(self._var) == 1 and all(each % self._lanes == 0 for each in numbers)
