"""Reads expressions: integers as affine forms, conditions as systems of constraints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minitvm.arith.atoms import is_pure
from minitvm.arith.facts import Alternatives, Bound
from minitvm.arith.linear import Affine, Atom, at_most, equal, less
from minitvm.arith.proofs import Proofs
from minitvm.runtime.dtype import INT64, DType
from minitvm.tir import expr as e
from minitvm.tir.expr import Call, IntImm, PrimExpr, Var, const
from minitvm.tir.functor import consists_of, substitute
from minitvm.tir.indices import RING, wraps

_MAX_SYSTEMS = 32  # for the conjunction of two conditions
_MAX_ALTERNATIVES = 64  # of one condition
_MAX_TERMS = 64  # of a product of sums
_MAX_FACTORS = 16
_POLYNOMIAL = (Var, IntImm, *RING)
_MOST = INT64.max()  # the greatest divisor of a form: forms become expressions of int64


class Forms(Proofs):
    """Expressions as forms, conditions as systems, and forms as expressions again."""

    def __init__(self) -> None:
        super().__init__()
        # From the atom ``x % c`` to the atom ``x // c`` and x; c may be symbolic.
        self._remainders: dict[Atom, tuple[Atom, Affine]] = {}

    def affine(self, expr: PrimExpr) -> Affine:
        """`expr`, an integer, as an affine form over shared atoms."""
        if self._unasked:
            self._learn_scopes()
        if isinstance(expr, IntImm):
            return Affine({}, int(expr.value))
        made = self._always.get(expr)
        if made is None:
            made = self._known.forms.get(expr)
        if made is None:
            is_variable = isinstance(expr, Var)
            made = self._opaque(expr) if is_variable else self._read(expr)
            forms = self._known.forms
            if is_variable or (consists_of(_POLYNOMIAL, expr) and self.is_index_arithmetic(expr)):
                forms = self._always
            forms[expr] = made
        return made

    def alternatives(self, condition: PrimExpr, truth: bool) -> tuple[Alternatives, bool]:
        """Alternative systems of inequalities: at least one of them holds when `condition` is
        `truth`. Also whether the converse is true."""
        made = self._known.conditions.get((condition, truth))
        if made is None:
            made = self._alternatives(condition, truth)
            self._known.conditions[condition, truth] = made
        return made

    def is_exact(self, expr: PrimExpr) -> bool:
        """Whether the operator at the top of `expr` surely doesn't wrap."""
        if not wraps(expr) or self.is_index_arithmetic(expr):
            return True
        if isinstance(expr, e.Div | e.FloorDiv):
            least, _ = self.interval(self.affine(expr.a))
            return least > expr.dtype.min() or self.proves(self.affine(expr.b) - 1)
        return self.affine(expr).terms.keys() != {self.atoms.shared(expr)}

    def expression(self, form: Affine, dtype: DType) -> PrimExpr:
        """The expression of a form, computed in `dtype`."""
        total: PrimExpr | None = None
        for atom, coefficient in sorted(form.terms.items(), key=lambda t: t[1] < 0):
            term = e.cast(dtype, atom)
            if total is None:
                total = term * const(coefficient, dtype)
            elif coefficient > 0:
                total = total + term * const(coefficient, dtype)
            else:
                total = total - term * const(-coefficient, dtype)
        if total is None:
            return const(form.constant, dtype)
        if form.constant < 0:
            return total - const(-form.constant, dtype)
        return total + const(form.constant, dtype)

    def _read(self, expr: PrimExpr) -> Affine:
        if expr.dtype.lanes > 1:
            return self._opaque(expr)
        match expr:
            case e.Add() | e.Sub() | e.Mul():
                return self._ring(expr)
            case e.FloorDiv(a, IntImm(value=c)) if 0 < c <= _MOST:
                return self._quotient(self.affine(a), int(c))
            case e.FloorMod(a, IntImm(value=c)) if 0 < c <= _MOST:
                return self._remainder(self.affine(a), int(c))
            case e.Div(a, IntImm(value=c)) if 0 < c <= _MOST and self.proves(self.affine(a)):
                return self._quotient(self.affine(a), int(c))
            case e.Mod(a, IntImm(value=c)) if 0 < c <= _MOST and self.proves(self.affine(a)):
                return self.affine(e.FloorMod(a, expr.b))
            case e.FloorDiv() | e.FloorMod():
                return self._symbolic_division(expr)
            case e.Min() | e.Max():
                return self._extremum(expr)
            case e.Select(condition, a, b):
                return self._choice(expr, condition, a, b)
            case Call(op="if_then_else", args=(condition, a, b)):
                return self._choice(expr, condition, a, b)
            case Call(op="shift_left", args=(a, IntImm(value=c))) if 0 <= c < expr.dtype.bits:
                return self._if_it_fits(self.affine(a) * (1 << c), expr)
            case Call(op="shift_right", args=(a, IntImm(value=c))) if (
                0 <= c < expr.dtype.bits and 1 << c <= _MOST
            ):
                return self._quotient(self.affine(a), 1 << c)
            case Call(op="bitwise_and", args=(a, IntImm(value=c))) if (
                0 < c < _MOST and c & (c + 1) == 0
            ):
                return self._remainder(self.affine(a), int(c) + 1)
            case e.Cast(dtype, a) if a.dtype.is_integral and dtype.is_integral:
                return self._cast(expr, a)
            case e.Let(var, value, body) if is_pure(value):
                return self.affine(substitute(body, {var: value}))
        return self._opaque(expr)

    def _opaque(self, expr: PrimExpr) -> Affine:
        return Affine.of_atom(self.atoms.shared(expr))

    def _if_it_fits(self, form: Affine, expr: PrimExpr) -> Affine:
        low, high = self.interval(form)
        if low >= expr.dtype.min() and high <= expr.dtype.max():
            return form
        return (
            form
            if self.is_index_arithmetic(expr) or self.fits(form, expr.dtype)
            else self._opaque(expr)
        )

    # -- Conditions -------------------------------------------------------------------------------

    def _alternatives(self, condition: PrimExpr, truth: bool) -> tuple[Alternatives, bool]:
        match condition:
            case IntImm(value=value):
                return ([[]] if bool(value) is truth else []), True
            case e.Not(a):
                return self.alternatives(a, not truth)
            case Call(op="likely", args=(a,)):
                return self.alternatives(a, truth)
            case e.Let(var, value, body) if is_pure(value):
                return self.alternatives(substitute(body, {var: value}), truth)
            case e.And(a, b) | e.Or(a, b):
                left, left_complete = self.alternatives(a, truth)
                right, right_complete = self.alternatives(b, truth)
                complete = left_complete and right_complete
                if isinstance(condition, e.And) is not truth:
                    both = left + right
                    return (both, complete) if len(both) <= _MAX_ALTERNATIVES else ([[]], False)
                if len(left) * len(right) > _MAX_SYSTEMS:
                    return left, False
                return [x + y for x in left for y in right], complete
            case e.Comparison(a=a) if a.dtype.is_integral and not a.dtype.is_bool:
                if a.dtype.lanes == 1:
                    return self._comparison(condition, truth), True
        return [[]], False

    def _comparison(self, condition: e.Comparison, truth: bool) -> Alternatives:
        a, b = self.affine(condition.a), self.affine(condition.b)
        match condition, truth:
            case (e.LT(), True) | (e.GE(), False):
                return [[less(a, b)]]
            case (e.LE(), True) | (e.GT(), False):
                return [[at_most(a, b)]]
            case (e.GT(), True) | (e.LE(), False):
                return [[less(b, a)]]
            case (e.GE(), True) | (e.LT(), False):
                return [[at_most(b, a)]]
            case (e.EQ(), True) | (e.NE(), False):
                return [equal(a, b)]
        return [[less(a, b)], [less(b, a)]]

    # -- Sums and products ------------------------------------------------------------------------

    def _ring(self, expr: e.Arithmetic) -> Affine:
        a, b = self.affine(expr.a), self.affine(expr.b)
        if isinstance(expr, e.Mul):
            if max(len(a.terms), 1) * max(len(b.terms), 1) > _MAX_TERMS:
                return self._opaque(expr)
            if self._factor_count(a) + self._factor_count(b) > _MAX_FACTORS:
                return self._opaque(expr)
            return self._if_it_fits(self.product(a, b), expr)
        made = a + b if isinstance(expr, e.Add) else a - b
        return self._if_it_fits(self._recombined(made), expr)

    def _recombined(self, form: Affine) -> Affine:
        """``x // c * c + x % c`` is x, where c is 1 or more."""
        for atom, coefficient in form.terms.items():
            if not isinstance(atom, e.FloorMod) or atom not in self._remainders:
                continue
            if not isinstance(atom.b, IntImm) and not self.proves(self.affine(atom.b) - 1):
                continue
            quotient, dividend = self._remainders[atom]
            below = self.product(Affine.of_atom(quotient), self.affine(atom.b)) * coefficient
            if all(form.terms.get(term) == each for term, each in below.terms.items()):
                rest = form - below - Affine.of_atom(atom) * coefficient
                return self._recombined(rest + dividend * coefficient)
        return form

    # -- Quotients and remainders -----------------------------------------------------------------

    def _quotient(self, form: Affine, divisor: int) -> Affine:
        """``form // divisor``: terms that are multiples of it are divided, the rest is an atom."""
        whole = form.multiples(divisor)
        rest = form - whole * divisor
        low, high = self.interval(rest)
        if math.isfinite(low) and math.isfinite(high) and low // divisor == high // divisor:
            return whole + int(low // divisor)
        if not rest.terms:
            return whole
        common = math.gcd(divisor, *rest.terms.values())
        if common > 1:  # (4*x + c) // 12 is (x + c // 4) // 3
            return whole + self._quotient(rest.multiples(common), divisor // common)
        inner = only_atom(rest)
        if isinstance(inner, e.FloorDiv) and isinstance(inner.b, IntImm):  # x // 4 // 3 is x // 12
            both = int(inner.b.value) * divisor
            if both <= _MOST:
                return whole + self._quotient(self.affine(inner.a), both)
        parts = self._nested_remainder(inner, divisor)
        if parts is not None:  # x % 12 // 4 is x // 4 % 3
            return whole + self._remainder(self._quotient(parts[0], divisor), parts[1])
        key = (
            "quotient",
            divisor,
            rest.constant,
            frozenset((id(a), c) for a, c in rest.terms.items()),
        )
        atom = self.atoms.find(key)
        if atom is None:
            dtype = max((a.dtype for a in rest.terms), key=lambda d: d.bits)
            numbers = (divisor, *rest.terms.values())
            if not dtype.is_int or not all(abs(c) <= dtype.max() for c in numbers):
                dtype = INT64  # differences need a sign
            made = e.FloorDiv(self.expression(rest, dtype), const(divisor, dtype))
            atom = self.atoms.shared(made, key)
        if atom not in self._known.definitions:
            remainder = rest - Affine.of_atom(atom) * divisor
            self._define(atom, [[remainder, -remainder + (divisor - 1)]])
            self._known.intervals[atom] = (_floor(low, divisor), _floor(high, divisor))
        return whole + Affine.of_atom(atom)

    def _remainder(self, form: Affine, divisor: int) -> Affine:
        """``form % divisor``, as an atom with known bounds."""
        rest = Affine({a: c for a, c in form.terms.items() if c % divisor}, form.constant % divisor)
        common = math.gcd(divisor, *rest.terms.values())
        if common > 1 and rest.terms:  # (4*x + c) % 12 is (x + c // 4) % 3 * 4 + c % 4
            part = self._remainder(rest.multiples(common), divisor // common)
            return part * common + rest.constant % common
        parts = self._nested_remainder(only_atom(rest), divisor)
        if parts is not None:  # x % 12 % 4 is x % 4
            return self._remainder(parts[0], divisor)
        quotient = self._quotient(rest, divisor)
        result = rest - quotient * divisor
        whole = only_atom(quotient)
        if not isinstance(whole, e.FloorDiv):
            return result
        made = e.FloorMod(self.expression(rest, whole.dtype), const(divisor, whole.dtype))
        atom = self.atoms.shared(made, ("remainder", id(whole), divisor))
        remainder = Affine.of_atom(atom)
        self._remainders[atom] = whole, rest
        if atom not in self._known.definitions:
            self._define(atom, [equal(remainder, result)])
            self._known.intervals[atom] = (0, divisor - 1)
        return remainder

    def _nested_remainder(self, atom: Atom | None, divisor: int) -> tuple[Affine, int] | None:
        """For an atom ``x % c`` where `divisor` divides c: x, and ``c // divisor``."""
        if not isinstance(atom, e.FloorMod) or atom not in self._remainders:
            return None
        if not isinstance(atom.b, IntImm):
            return None
        parts, rest = divmod(int(atom.b.value), divisor)
        return None if rest else (self._remainders[atom][1], parts)

    def _symbolic_division(self, expr: e.FloorDiv | e.FloorMod) -> Affine:
        """Division by a symbolic divisor that is at least 1: an atom with affine bounds."""
        atom = self.atoms.shared(expr)
        result = Affine.of_atom(atom)
        if atom in self._known.definitions:
            return result
        dividend, divisor = self.affine(expr.a), self.affine(expr.b)
        if isinstance(expr, e.FloorMod):
            quotient = only_atom(self.affine(e.FloorDiv(expr.a, expr.b)))
            if quotient is not None:
                self._remainders[atom] = quotient, dividend
        if not self.proves(divisor - 1):
            return self._opaque(expr)
        if isinstance(expr, e.FloorMod):
            self._known.definitions[atom] = [[result, divisor - result - 1]]
            self._known.intervals[atom] = (0, self.interval(divisor)[1] - 1)
            return result
        rows = [result, dividend - result] if self.proves(dividend) else []
        bounds = [self._divided(bound, divisor) for bound in self._upper_bounds(dividend)]
        rows += [bound - result for bound in bounds if bound is not None]
        self._known.definitions[atom] = [rows]
        least, greatest = self.interval(dividend)
        self._known.intervals[atom] = (min(least, 0), max(greatest, -1))
        return result

    def _upper_bounds(self, form: Affine) -> list[Affine]:
        """`form`, and its upper bounds that follow from the facts and from its atom's
        definition."""
        atom = only_atom(form)
        facts = [fact.alternatives for fact in self._known.facts]
        rows = [fact[0][0] for fact in facts if len(fact) == 1 and len(fact[0]) == 1]
        if atom is None:  # the place in a tile, for example, which a guard limits
            terms = form.terms.items()
            ends = (x for x in rows if terms and all(x.terms.get(a) == -c for a, c in terms))
            greatest = self._without_minimum(self._greatest(form, rows))
            return [form, *greatest, *(row + form for row in ends)]
        meaning = self.meaning(atom)
        bounds = [form] + [row + form for row in rows + meaning if row.terms.get(atom) == -1]
        for row in meaning:
            coefficient = -row.terms.get(atom, 0)
            if coefficient > 1:  # x // 8, for example: 8 times this is at most x
                above = self._upper_bounds(row + form * coefficient)
                bounds += [x.multiples(coefficient) for x in above if _divides(coefficient, x)]
        return bounds

    def _greatest(self, form: Affine, rows: Sequence[Affine]) -> Affine:
        """A form with the greatest value of each variable, as far as a row of the facts or its
        interval has it."""
        made = Affine({}, form.constant)
        for atom, coefficient in form.terms.items():
            term, (_, high) = Affine.of_atom(atom), self._atom_interval(atom)
            row = next((each for each in rows if each.terms.get(atom) == -1), None)
            if coefficient > 0 and row is not None:
                term += row
            elif coefficient > 0 and math.isfinite(high) and not isinstance(atom, e.Min):
                term = Affine({}, int(high))
            made += term * coefficient
        return made

    def _without_minimum(self, form: Affine) -> list[Affine]:
        """The upper bounds of a form with either side of its first minimum in place of that."""
        for atom, coefficient in form.terms.items():
            if isinstance(atom, e.Min) and coefficient > 0:
                rest = form - Affine.of_atom(atom) * coefficient
                return [rest + self.affine(side) * coefficient for side in (atom.a, atom.b)]
        return [form]

    def _divided(self, form: Affine, divisor: Affine) -> Affine | None:
        """An upper bound of ``form // divisor`` where `divisor` is at least 1: with
        ``form = whole * divisor + r``, it is ``whole + r`` or for negative r ``whole - 1``."""
        if not divisor.terms:
            return None
        lead = max(divisor.terms, key=lambda atom: len(self._factors.get(atom, (atom,))))
        whole, rest = Affine(), form
        for _ in range(_MAX_FACTORS):
            if not rest.terms:
                return whole + max(rest.constant, -1)
            parts = (self._over(rest, term, lead, divisor.terms[lead]) for term in rest.terms)
            part = next((each for each in parts if each is not None), None)
            if part is None:
                return None
            whole, rest = whole + part, rest - self.product(part, divisor)
        return None

    def _over(self, form: Affine, term: Atom, lead: Atom, by: int) -> Affine | None:
        """The quotient of a form's `term` by ``lead * by``; None where the division leaves a
        remainder."""
        factors = list(self._factors.get(term, (term,)))
        for each in self._factors.get(lead, (lead,)):
            place = next((i for i, factor in enumerate(factors) if factor is each), None)
            if place is None:
                return None
            del factors[place]
        if form.terms[term] % by:
            return None
        part = Affine({}, form.terms[term] // by)
        for factor in factors:
            part = self.product(part, Affine.of_atom(factor))
        return part

    # -- Cases ------------------------------------------------------------------------------------

    def _extremum(self, expr: e.Min | e.Max) -> Affine:
        atom = self.atoms.shared(expr)
        result = Affine.of_atom(atom)
        if atom in self._known.definitions:
            return result
        a, b = self.affine(expr.a), self.affine(expr.b)
        low, high = (a, b) if isinstance(expr, e.Min) else (b, a)
        # Either a or b is the minimum; in each case it is known which one is less.
        self._define(
            atom,
            [[*equal(result, a), at_most(low, high)], [*equal(result, b), at_most(high, low)]],
        )
        (a_low, a_high), (b_low, b_high) = self.interval(a), self.interval(b)
        pick = min if isinstance(expr, e.Min) else max
        self._known.intervals[atom] = (pick(a_low, b_low), pick(a_high, b_high))
        return result

    def _choice(self, expr: PrimExpr, condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> Affine:
        atom = self.atoms.shared(expr)
        result = Affine.of_atom(atom)
        if atom in self._known.definitions:
            return result
        holds, complete = self.alternatives(condition, True)
        fails, _ = self.alternatives(condition, False)
        first, second = self.affine(a), self.affine(b)
        ways = [system + equal(result, first) for system in holds]
        ways += [system + equal(result, second) for system in fails]
        self._known.definitions[atom] = ways
        if complete:
            self._defined.add(atom)
        (a_low, a_high), (b_low, b_high) = self.interval(first), self.interval(second)
        self._known.intervals[atom] = (min(a_low, b_low), max(a_high, b_high))
        return result

    def _cast(self, expr: PrimExpr, value: PrimExpr) -> Affine:
        if value.dtype.is_bool or expr.dtype.is_bool:
            return self._opaque(expr)
        form = self.affine(value)
        return form if self.fits(form, expr.dtype) else self._opaque(expr)


def _divides(divisor: int, form: Affine) -> bool:
    """Whether `divisor` divides all coefficients."""
    return not any(c % divisor for c in form.terms.values())


def only_atom(form: Affine) -> Atom | None:
    """The atom of a form that is just one atom; None for any other form."""
    ((atom, coefficient),) = form.terms.items() if len(form.terms) == 1 else ((None, 0),)
    return atom if coefficient == 1 and form.constant == 0 else None


def _floor(bound: Bound, divisor: int) -> Bound:
    return bound // divisor if math.isfinite(bound) else bound
