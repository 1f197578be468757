"""What is known about the integers of a program, and what follows from it.

Index arithmetic (:mod:`minitvm.tir.indices`) is read as the arithmetic of mathematical integers
that it is. Anything else is data and wraps: its ``+ - *`` is looked into only if what is known
shows that it can't wrap, and is opaque otherwise. So what :meth:`Prover.affine` says of an
expression is true of the machine's value, too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from minitvm.arith.atoms import Atoms, is_pure
from minitvm.arith.linear import Affine, Atom, Work, at_most, conflict, equal, less
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, Call, IntImm, PrimExpr, Range, Var, const
from minitvm.tir.functor import children, substitute
from minitvm.tir.indices import RING, is_exact_call, is_index_node, is_wide, wraps

Bound = int | float  # an integer, or an infinity
Interval = tuple[Bound, Bound]
System = list[Affine]  # all of these are at least zero
Alternatives = list[System]  # one of these systems holds

_MAX_SYSTEMS = 32
_LARGEST = 1 << 62  # beyond it, nothing checks that 64 bits suffice
_MAX_ALTERNATIVES = 64  # of one condition
_MAX_CHOICES = 8  # that one question looks at, the nearest to it
_MAX_CHECKS = 32  # of systems, for one question
_MAX_ROWS = 2400  # made for that
_MAX_TERMS = 64  # of a product of sums
_MAX_FACTORS = 16
_MOST = INT64.max()  # the greatest divisor of a form: forms become expressions of int64


@record()
class _Fact:
    """One of these systems holds; it says something about these atoms."""

    alternatives: Alternatives
    atoms: Mapping[Atom, None]


@dataclass(slots=True)
class _Known:
    """What holds at one point of a program."""

    facts: list[_Fact] = field(default_factory=list)
    intervals: dict[Atom, Interval] = field(default_factory=dict)
    definitions: dict[Atom, Alternatives] = field(default_factory=dict)
    determined: set[Atom] = field(default_factory=set)  # the variables of which all is known
    complete: bool = True  # every condition on the way here is among the facts
    # What shared expressions are read as, until more is known.
    forms: dict[PrimExpr, Affine] = field(default_factory=dict)
    conditions: dict[tuple[PrimExpr, bool], tuple[Alternatives, bool]] = field(default_factory=dict)


@dataclass(slots=True)
class Escapes:
    """The ways left to satisfy a goal. With `complete`, the systems say all that is known."""

    systems: Alternatives
    complete: bool


class Prover:
    """Facts in nested scopes, and proofs from them. It is sound and incomplete."""

    def __init__(self) -> None:
        self.atoms = Atoms()
        self._known = _Known()
        self._data: set[Var] = set()
        self._indices: dict[PrimExpr, bool] = {}  # whether expressions are index-like
        # Of systems, rows that contradict each other; with the system, so that no other atom gets
        # the address of one of its.
        self._conflicts: dict[Hashable, tuple[frozenset[Hashable] | None, System]] = {}
        self._factors: dict[Atom, tuple[Atom, ...]] = {}
        # Of ``x % c`` the atom ``x // c``, and x.
        self._remainders: dict[Atom, tuple[Atom, Affine]] = {}
        self._defined: set[Atom] = set()  # whose definitions determine them

    # -- Learning ---------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is learnt inside is forgotten at the end."""
        outside = self._known
        self._known = replace(
            outside,
            facts=list(outside.facts),
            intervals=dict(outside.intervals),
            definitions=dict(outside.definitions),
            determined=set(outside.determined),
            forms={},
            conditions={},
        )
        try:
            yield
        finally:
            self._known = outside

    @contextmanager
    def constraint(self, condition: PrimExpr) -> Iterator[None]:
        """`condition` holds inside."""
        with self.scope():
            self.assume(condition)
            yield

    def assume(self, condition: PrimExpr) -> None:
        """`condition` holds from here to the end of the scope."""
        alternatives, complete = self.alternatives(condition, True)
        self._learn(alternatives)
        self._known.complete = self._known.complete and complete

    def forget(self) -> None:
        """Something holds here that could not be said."""
        self._known.complete = False

    def bind(self, var: Var, value: Range | PrimExpr) -> None:
        """`var` lies in a range, which is then not empty, or equals an expression."""
        if isinstance(value, Range):
            self.bind_loop(var, value.min, value.extent)
            return
        self._known.determined.add(var)
        if not self.is_index_arithmetic(value):
            self._add_data(var)
        if value.dtype.is_integral and not value.dtype.is_bool and value.dtype.lanes == 1:
            form = self.affine(value)
            self._read_anew()
            self._known.intervals[var] = self.interval(form)
            self._learn([equal(self.affine(var), form)])

    def bind_data(self, var: Var) -> None:
        """`var` is a value of which nothing is known: arithmetic on it may wrap."""
        self._add_data(var)
        self.bind_unknown(var)

    def bind_unknown(self, var: Var) -> None:
        """`var` is a loop's, or a name, of which nothing is known: not even that its dtype holds
        it."""
        self._known.determined.discard(var)
        self._known.intervals[var] = _range_of_exact(var)

    def _add_data(self, var: Var) -> None:
        self._data.add(var)
        self._indices.clear()
        self._read_anew()

    def bind_size(self, size: PrimExpr) -> None:
        """`size`, a dimension, is zero or more."""
        self._learn([[self.affine(size)]])

    def bind_sizes(self, buffers: Iterable[Buffer]) -> None:
        """All dimensions of buffers are zero or more."""
        for buffer in buffers:
            for size in buffer.shape:
                self.bind_size(size)

    def bind_interval(self, var: Var, begin: PrimExpr, extent: PrimExpr) -> None:
        """The variable of a loop lies between the least and the greatest value that it may take:
        less than :meth:`bind_loop` says, in less time."""
        low = self.affine(begin)
        high = low + self.affine(extent) - 1
        self._read_anew()
        bounds = self._known.intervals[var] = (self.interval(low)[0], self.interval(high)[1])
        if (bounds[0] < -_LARGEST or bounds[1] > _LARGEST) and not (
            self.is_index_arithmetic(begin) and self.is_index_arithmetic(extent)
        ):
            self._add_data(var)  # as large as data say, so that arithmetic on it may wrap

    def bind_loop(self, var: Var, begin: PrimExpr, size: PrimExpr) -> None:
        """`var` counts through a loop, which is then not empty."""
        self.bind_interval(var, begin, size)
        self._known.determined.add(var)
        low, extent = self.affine(begin), self.affine(size)
        high = low + extent - 1
        form = self.affine(var)
        self._learn([[at_most(low, form)]])
        self._learn([[at_most(form, high)]])
        self._learn([[extent - 1]])
        # What is at least 1 has no factor 0.
        for factor in self._factors_in(size):
            if not factor.same_as(extent) and self.proves(factor):
                self._learn([[factor - 1]])

    def _factors_in(self, size: PrimExpr) -> Iterator[Affine]:
        """The factors of a product, which can't be seen any more once it is multiplied out."""
        match size:
            case e.Mul(a, b):
                yield from self._factors_in(a)
                yield from self._factors_in(b)
            case e.Cast(_, value) if self.is_index_arithmetic(value):
                yield from self._factors_in(value)
            case _:
                form = self.affine(size)
                atom = _only_atom(form)
                factors = () if atom is None else self._factors.get(atom, ())
                yield from map(Affine.of_atom, factors) if factors else (form,)

    def _read_anew(self) -> None:
        """More is known, so that more can be read of an expression."""
        self._known.forms.clear()
        self._known.conditions.clear()

    def _learn(self, alternatives: Alternatives) -> None:
        self._read_anew()
        if len(alternatives) != 1:
            self._add_fact(alternatives)
            return
        for row in alternatives[0]:
            if row.terms:
                self._add_fact([[row]])
                self._narrow_by(row)
            elif row.constant < 0:
                self._add_fact([])  # nothing gets here

    def _add_fact(self, alternatives: Alternatives) -> None:
        """A fact about ``x % 2`` is one about x, too."""
        atoms = _atoms_of(alternatives)
        pending = list(atoms)
        while pending:
            definition = self._known.definitions.get(pending.pop(), [])
            fresh = [atom for atom in _atoms_of(definition) if atom not in atoms]
            atoms.update(dict.fromkeys(fresh))
            pending += fresh
        self._known.facts.append(_Fact(alternatives, atoms))

    def _narrow_by(self, row: Affine) -> None:
        """A constraint on one atom is its interval, too."""
        if len(row.terms) != 1:
            return
        ((atom, coefficient),) = row.terms.items()
        if coefficient > 0:
            self._narrow(Affine.of_atom(atom), -(row.constant // coefficient))
        else:
            low, high = self._atom_interval(atom)
            self._known.intervals[atom] = (low, min(high, row.constant // -coefficient))

    def _narrow(self, form: Affine, at_least: int) -> None:
        (atom,) = form.terms
        low, high = self._atom_interval(atom)
        self._known.intervals[atom] = (max(low, at_least), high)

    # -- Proving ----------------------------------------------------------------------------------

    def can_prove(self, condition: PrimExpr) -> bool:
        """Whether `condition` surely holds."""
        if isinstance(condition, IntImm):
            return bool(condition.value)
        return all(self._refuted(s) for s in self.alternatives(condition, False)[0])

    def proves(self, *rows: Affine) -> bool:
        """Whether each of `rows` is surely at least zero."""
        return all(self.interval(row)[0] >= 0 or self._refuted([-row - 1]) for row in rows)

    def const_int_bound(self, expr: PrimExpr) -> Interval:
        """The least and the greatest value that `expr` may take, infinite where none is known."""
        return self.interval(self.affine(expr))

    def interval(self, form: Affine) -> Interval:
        """The bounds of `form` that follow from those of its atoms one by one."""
        low: Bound = form.constant
        high: Bound = form.constant
        for atom, coefficient in form.terms.items():
            least, greatest = self._atom_interval(atom)
            if coefficient < 0:
                least, greatest = greatest, least
            low += coefficient * least
            high += coefficient * greatest
        return low, high

    def _refuted(self, goal: System, machine: bool = False) -> bool:
        return any(self.interval(row)[1] < 0 for row in goal) or not self.is_possible(goal, machine)

    def is_possible(self, goal: System, machine: bool = False) -> bool:
        """Whether `goal` might hold."""
        return bool(_Systems(self, *self._question(goal, False, machine)[:2], most=1))

    def ways(self, goal: System) -> Escapes:
        """The systems of constraints under which `goal` might hold, with all that is known: none
        is a refutation."""
        rows, choices, complete = self._question(goal, True, False)
        found = _Systems(self, rows, choices, most=_MAX_SYSTEMS)
        return Escapes(found.systems, found.complete and complete and self._known.complete)

    def _question(
        self, goal: System, all_facts: bool, machine: bool
    ) -> tuple[System, list[Alternatives], bool]:
        """Constraints and choices between some more, and whether these are all.

        Facts that share no atom with the goal are left out unless `all_facts`; that atoms lie in
        the range of their dtype is left out unless `machine`.
        """
        rows, choices = self._relevant(goal, all_facts, machine)
        rows += self._products(rows)
        nearest = sorted(choices[: _MAX_SYSTEMS if all_facts else _MAX_CHOICES], key=len)
        return rows, nearest, len(nearest) == len(choices)

    def conflict(
        self, rows: System, keys: list[Hashable], work: Work
    ) -> frozenset[Hashable] | None:
        """The keys of some of `rows` that no integers satisfy; None where all of them may be
        satisfied. Scopes side by side ask the same of the same facts."""
        question = frozenset(keys)
        known = self._conflicts.get(question)
        if known is None:
            places = conflict(rows, work)
            known = None if places is None else frozenset(keys[place] for place in places), rows
            if work.rows >= 0:
                self._conflicts[question] = known
        return known[0]

    def _relevant(
        self, goal: System, all_facts: bool, machine: bool
    ) -> tuple[System, list[Alternatives]]:
        """The goal, and all facts and definitions that say something about its atoms."""
        rows: System = []
        choices: list[Alternatives] = []
        seen: dict[Atom, None] = {}
        pending = [] if all_facts else self._known.facts
        fresh: list[Alternatives] = [[goal]]
        if all_facts:
            fresh += [fact.alternatives for fact in self._known.facts]
        while fresh:
            added: list[Atom] = []
            for alternatives in fresh:
                if len(alternatives) == 1:
                    rows += alternatives[0]
                else:
                    choices.append(alternatives)
                for atom in _atoms_of(alternatives):
                    added += [a for a in (atom, *self._factors.get(atom, ())) if a not in seen]
                    seen.update(dict.fromkeys(added))
            fresh = []
            for atom in dict.fromkeys(added):
                rows += self._interval_rows(atom, machine)
                if atom in self._known.definitions:
                    fresh.append(self._known.definitions[atom])
            apart = [bool(f.atoms) and seen.keys().isdisjoint(f.atoms) for f in pending]
            fresh += [f.alternatives for f, alone in zip(pending, apart, strict=True) if not alone]
            pending = [f for f, alone in zip(pending, apart, strict=True) if alone]
        return rows, choices

    def _interval_rows(self, atom: Atom, machine: bool = False) -> System:
        """The bounds of an atom that no fact or definition gives; with `machine`, all of them.

        That a 32-bit size ends at 2**31 - 1 is true but says nothing about a program, and would
        show up in every condition on sizes.
        """
        low, high = self._atom_interval(atom)
        form = Affine.of_atom(atom)
        rows = []
        narrow = machine or atom.dtype.bits < 32
        if isinstance(low, int) and (narrow or low == 0):
            rows.append(form - low)
        if isinstance(high, int) and narrow:
            rows.append(-form + high)
        return rows

    def _products(self, rows: System) -> System:
        """Products of constraints: from ``x <= n - 1`` and ``y >= 0`` follows ``x*y <= n*y - y``,
        which linear elimination can't find by itself."""
        made: System = []
        pairs = {
            (x, y)
            for row in rows
            for atom in row.terms
            for x, y in _ordered_pairs(self._factors.get(atom, ()))
        }
        for x, y in sorted(pairs, key=lambda p: (self.atoms.order(p[0]), self.atoms.order(p[1]))):
            if self._atom_interval(y)[0] < 0:
                continue
            for row in rows:
                if abs(row.terms.get(x, 0)) == 1 and y not in row.terms:
                    made.append(self._product(row, Affine.of_atom(y)))
        return made

    # -- Reading expressions ----------------------------------------------------------------------

    def affine(self, expr: PrimExpr) -> Affine:
        """`expr`, an integer, as an affine form over shared atoms."""
        if isinstance(expr, IntImm):
            return Affine({}, int(expr.value))
        if isinstance(expr, Var):
            return Affine.of_atom(self.atoms.shared(expr))
        made = self._known.forms.get(expr)
        if made is None:
            made = self._known.forms[expr] = self._read(expr)
        return made

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

    def alternatives(self, condition: PrimExpr, truth: bool) -> tuple[Alternatives, bool]:
        """The systems of which one holds when `condition` is `truth`, and whether that is all
        that it says."""
        made = self._known.conditions.get((condition, truth))
        if made is None:
            made = self._alternatives(condition, truth)
            self._known.conditions[condition, truth] = made
        return made

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

    def fits(self, form: Affine, dtype: DType) -> bool:
        """Whether `dtype` surely holds the value of `form`."""
        low, high = self.interval(form)
        if low >= dtype.min() and high <= dtype.max():
            return True
        outside = (-form + (dtype.min() - 1), form - (dtype.max() + 1))
        return all(self._refuted([row], machine=True) for row in outside)

    def is_exact(self, expr: PrimExpr) -> bool:
        """Whether the ``+ - *`` at the top of `expr` surely compute what they say, unwrapped."""
        if not isinstance(expr, RING):
            return True
        if self.is_index_arithmetic(expr):
            return True
        return self.affine(expr).terms.keys() != {self.atoms.shared(expr)}

    def is_determined(self, atom: Atom) -> bool:
        """Whether the systems that hold `atom` say all about it, given its operands."""
        if isinstance(atom, Var):
            return atom in self._known.determined
        return atom in self._defined and atom in self._known.definitions

    def meaning(self, atom: Atom) -> System:
        """The constraints that define `atom`, where it has no cases."""
        definition = self._known.definitions.get(atom, [])
        return self._interval_rows(atom) + (definition[0] if len(definition) == 1 else [])

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

    def is_index_arithmetic(self, expr: PrimExpr) -> bool:
        """Whether `expr` is computed exactly, and not modulo 2**bits."""
        known = self._indices.get(expr)
        if known is None:
            known = self._indices[expr] = is_index_node(expr, self._data) and all(
                self.is_index_arithmetic(each)  # type: ignore[arg-type]  # of expressions
                for each in children(expr)
            )
        return known

    def _if_it_fits(self, form: Affine, expr: PrimExpr) -> Affine:
        low, high = self.interval(form)
        if low >= expr.dtype.min() and high <= expr.dtype.max():
            return form
        return (
            form
            if self.is_index_arithmetic(expr) or self.fits(form, expr.dtype)
            else self._opaque(expr)
        )

    def _ring(self, expr: e.Arithmetic) -> Affine:
        a, b = self.affine(expr.a), self.affine(expr.b)
        if isinstance(expr, e.Mul):
            if max(len(a.terms), 1) * max(len(b.terms), 1) > _MAX_TERMS:
                return self._opaque(expr)
            if self._factor_count(a) + self._factor_count(b) > _MAX_FACTORS:
                return self._opaque(expr)
            return self._if_it_fits(self._product(a, b), expr)
        made = a + b if isinstance(expr, e.Add) else a - b
        return self._if_it_fits(self._recombined(made), expr)

    def _recombined(self, form: Affine) -> Affine:
        """``x // c * c + x % c`` is x."""
        for atom, coefficient in form.terms.items():
            if not isinstance(atom, e.FloorMod) or not isinstance(atom.b, IntImm):
                continue
            whole = self._remainders.get(atom)
            if whole is None:
                continue
            quotient, rest = whole
            if form.terms.get(quotient) == coefficient * atom.b.value:
                parts = Affine({atom: coefficient, quotient: coefficient * int(atom.b.value)})
                return self._recombined(form - parts + rest * coefficient)
        return form

    def _factor_count(self, form: Affine) -> int:
        """Of the product in `form` that has most of them."""
        return max((len(self._factors.get(atom, (atom,))) for atom in form.terms), default=0)

    def _product(self, a: Affine, b: Affine) -> Affine:
        total = a * b.constant + Affine(b.terms) * a.constant
        for x, x_coefficient in a.terms.items():
            for y, y_coefficient in b.terms.items():
                total += Affine.of_atom(self._monomial(x, y)) * (x_coefficient * y_coefficient)
        return total

    def _monomial(self, x: Atom, y: Atom) -> Atom:
        factors = [*self._factors.get(x, (x,)), *self._factors.get(y, (y,))]
        factors.sort(key=self.atoms.order)
        key = ("product", *map(id, factors))
        atom = self.atoms.find(key)
        if atom is None:
            made = factors[0]
            for factor in factors[1:]:
                made = made * factor
            atom = self.atoms.shared(made, key)
            self._factors[atom] = tuple(factors)
        return atom

    def _quotient(self, form: Affine, divisor: int) -> Affine:
        """``form // divisor``: what divides is divided, the rest becomes an atom."""
        whole = Affine(
            {a: c // divisor for a, c in form.terms.items() if c % divisor == 0},
            form.constant // divisor,
        )
        rest = form - whole * divisor
        low, high = self.interval(rest)
        if math.isfinite(low) and math.isfinite(high) and low // divisor == high // divisor:
            return whole + int(low // divisor)
        if not rest.terms:
            return whole
        common = math.gcd(divisor, *rest.terms.values())
        if common > 1:  # (4*x + c) // 12 is (x + c // 4) // 3
            return whole + self._quotient(_shrunk(rest, common), divisor // common)
        inner = _only_atom(rest)
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
        """``form % divisor``: an atom of its own, whose bounds are then plain to see."""
        rest = Affine({a: c for a, c in form.terms.items() if c % divisor}, form.constant % divisor)
        common = math.gcd(divisor, *rest.terms.values())
        if common > 1 and rest.terms:  # (4*x + c) % 12 is (x + c // 4) % 3 * 4 + c % 4
            part = self._remainder(_shrunk(rest, common), divisor // common)
            return part * common + rest.constant % common
        parts = self._nested_remainder(_only_atom(rest), divisor)
        if parts is not None:  # x % 12 % 4 is x % 4
            return self._remainder(parts[0], divisor)
        quotient = self._quotient(rest, divisor)
        result = rest - quotient * divisor
        whole = _only_atom(quotient)
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
        """Of ``x % c``, where `divisor` divides c: x, and ``c // divisor``."""
        if not isinstance(atom, e.FloorMod) or atom not in self._remainders:
            return None
        assert isinstance(atom.b, IntImm)
        parts, rest = divmod(int(atom.b.value), divisor)
        return None if rest else (self._remainders[atom][1], parts)

    def _symbolic_division(self, expr: e.FloorDiv | e.FloorMod) -> Affine:
        """Division by something that is at least 1, where only bounds of the result are affine."""
        atom = self.atoms.shared(expr)
        result = Affine.of_atom(atom)
        if atom in self._known.definitions:
            return result
        dividend, divisor = self.affine(expr.a), self.affine(expr.b)
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
        """What the facts say that `form` is at most, and itself."""
        if len(form.terms) != 1 or form.constant or next(iter(form.terms.values())) != 1:
            return [form]
        (atom,) = form.terms
        facts = [fact.alternatives for fact in self._known.facts]
        rows = [fact[0][0] for fact in facts if len(fact) == 1 and len(fact[0]) == 1]
        return [form] + [row + form for row in rows if row.terms.get(atom) == -1]

    def _divided(self, form: Affine, divisor: Affine) -> Affine | None:
        """An upper bound of ``form // divisor`` where `divisor` is one atom, at least 1: with
        ``form = whole * divisor + r``, it is ``whole + r`` or for negative r ``whole - 1``."""
        if len(divisor.terms) != 1 or divisor.constant or next(iter(divisor.terms.values())) != 1:
            return None
        (atom,) = divisor.terms
        whole = Affine()
        for term, coefficient in form.terms.items():
            factors = dict(enumerate(self._factors.get(term, (term,))))
            matching = [place for place, factor in factors.items() if factor is atom]
            if not matching:
                return None
            del factors[matching[0]]
            part = Affine({}, 1)
            for factor in factors.values():
                part = self._product(part, Affine.of_atom(factor))
            whole += part * coefficient
        return whole + max(form.constant, -1)

    def _extremum(self, expr: e.Min | e.Max) -> Affine:
        atom = self.atoms.shared(expr)
        result = Affine.of_atom(atom)
        if atom in self._known.definitions:
            return result
        a, b = self.affine(expr.a), self.affine(expr.b)
        low, high = (a, b) if isinstance(expr, e.Min) else (b, a)
        # Either a is the answer or b, and either way which is the less is known.
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

    def _opaque(self, expr: PrimExpr) -> Affine:
        return Affine.of_atom(self.atoms.shared(expr))

    def _define(self, atom: Atom, alternatives: Alternatives) -> None:
        self._known.definitions[atom] = alternatives
        self._defined.add(atom)

    def _atom_interval(self, atom: Atom) -> Interval:
        known = self._known.intervals.get(atom)
        if known is not None:
            return known
        factors = self._factors.get(atom)
        if factors is not None:
            return _interval_product([self._atom_interval(factor) for factor in factors])
        if isinstance(atom, Var) and atom.nonnegative:
            return 0, atom.dtype.max()
        return _range_of(atom)


class _Systems:
    """The systems that are made of `rows` and an alternative of each choice, and that nothing
    contradicts: `most` of them at most.

    Of choices that have nothing to do with a contradiction the other alternatives are not looked
    at: where one leads to it, so does each. Past the cap of systems looked at, the rows that all of
    them have stand for all of them.
    """

    def __init__(
        self, prover: Prover, rows: System, choices: list[Alternatives], most: int
    ) -> None:
        self.systems: Alternatives = []
        self.complete = True
        self._checks = _MAX_CHECKS * most
        self._work = Work(_MAX_ROWS * most)
        self._prover = prover
        self._choices = choices
        self._most = most
        self._rows: System = []
        self._keys: list[Hashable] = []
        self._levels: dict[Hashable, int] = {}  # of rows, by their keys: the choices that made them
        if self._extended(rows, 0) is None and self._search(0) is None:
            self.complete = False
            self.systems = [rows]

    def __bool__(self) -> bool:
        return bool(self.systems)

    def _extended(self, rows: System, level: int) -> set[int] | None:
        """The levels that contradict each other once `rows` are added; None where none do."""
        for row in rows:
            key = (row.constant, frozenset((id(atom), c) for atom, c in row.terms.items()))
            self._rows.append(row)
            self._keys.append(key)
            self._levels.setdefault(key, level)
        self._checks -= 1
        core = self._prover.conflict(list(self._rows), self._keys, self._work)
        return None if core is None else {self._levels[key] for key in core}

    def _search(self, depth: int) -> set[int] | None:
        """The levels that leave no more systems from here on; None if the search was given up."""
        if depth == len(self._choices):
            self.systems.append(list(self._rows))
            return set(range(depth + 1))
        blamed: set[int] = set()
        level, begin = depth + 1, len(self._rows)
        for alternative in self._choices[depth]:
            if len(self.systems) == self._most and self._most == 1:
                return blamed
            if self._checks < 0 or self._work.rows < 0 or len(self.systems) > self._most:
                return None
            levels = self._extended(alternative, level)
            below = self._search(level) if levels is None else levels
            for key in self._keys[begin:]:
                if self._levels.get(key) == level:
                    del self._levels[key]
            del self._rows[begin:], self._keys[begin:]
            if below is None or level not in below:
                return below
            blamed |= below - {level}
        return blamed


def _shrunk(form: Affine, by: int) -> Affine:
    """``form // by``, where `by` divides all coefficients."""
    return Affine({atom: c // by for atom, c in form.terms.items()}, form.constant // by)


def _only_atom(form: Affine) -> Atom | None:
    """The atom that a form is, if it is one."""
    ((atom, coefficient),) = form.terms.items() if len(form.terms) == 1 else ((None, 0),)
    return atom if coefficient == 1 and form.constant == 0 else None


def _range_of(atom: Atom) -> Interval:
    exact = isinstance(atom, _EXACT) or (is_exact_call(atom) and not wraps(atom))
    if exact or not atom.dtype.is_integral:
        return _range_of_exact(atom)
    return atom.dtype.min(), atom.dtype.max()


def _range_of_exact(atom: Atom) -> Interval:
    """The values of an operator that may be exact, or of a name for it: index arithmetic of 32 bits
    may leave its dtype."""
    if not atom.dtype.is_integral:
        return -math.inf, math.inf
    dtype = INT64 if is_wide(atom.dtype) else atom.dtype
    return dtype.min(), dtype.max()


_EXACT = (e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max, e.Select, e.Let)


def _atoms_of(alternatives: Alternatives) -> dict[Atom, None]:
    return {atom: None for system in alternatives for row in system for atom in row.terms}


def _ordered_pairs(factors: tuple[Atom, ...]) -> Iterable[tuple[Atom, Atom]]:
    return ((factors[0], factors[1]), (factors[1], factors[0])) if len(factors) == 2 else ()


def _floor(bound: Bound, divisor: int) -> Bound:
    return bound // divisor if math.isfinite(bound) else bound


def _interval_product(intervals: list[Interval]) -> Interval:
    low, high = intervals[0]
    for least, greatest in intervals[1:]:
        corners = [_times(x, y) for x in (low, high) for y in (least, greatest)]
        low, high = min(corners), max(corners)
    return low, high


def _times(x: Bound, y: Bound) -> Bound:
    return x * y if x and y else 0
