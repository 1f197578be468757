"""The facts at one point of a program: constraints on atoms, their ranges, their definitions.

An atom is a term whose parts arithmetic doesn't examine. A fact is a choice between systems of
constraints. A constraint is an affine form that is at least zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, final

from minitvm.arith.atoms import Atoms
from minitvm.arith.effects import Effects
from minitvm.arith.linear import Affine, Atom
from minitvm.runtime.dtype import INT64
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import children
from minitvm.tir.indices import is_exact_call, is_index_node, is_wide, wraps

Bound = int | float  # an integer, or an infinity
Interval = tuple[Bound, Bound]
System = list[Affine]  # all forms are at least zero
Alternatives = list[System]  # one of these systems holds


@record()
class _Fact:
    """One of the systems holds. `atoms` are the atoms that they concern, directly or through
    definitions."""

    alternatives: Alternatives
    atoms: Mapping[Atom, None]


@record(frozen=False)
class _Known:
    """The facts at one point of a program."""

    facts: list[_Fact] = field(default_factory=list)
    intervals: dict[Atom, Interval] = field(default_factory=dict)
    definitions: dict[Atom, Alternatives] = field(default_factory=dict)
    determined: set[Atom] = field(default_factory=set)  # variables whose facts are complete
    complete: bool = True  # every condition on the way here is among the facts
    # The forms of shared expressions, until another fact is learnt.
    forms: dict[PrimExpr, Affine] = field(default_factory=dict)
    conditions: dict[tuple[PrimExpr, bool], tuple[Alternatives, bool]] = field(default_factory=dict)
    # Whether systems of constraints are possible, until another fact is learnt. Each is kept with
    # its answer, so that no new atom gets the address of one of its atoms.
    answers: dict[Hashable, tuple[bool, System]] = field(default_factory=dict)

    def copied(self) -> _Known:
        """The same facts, to which others are added."""
        return _Known(
            self.facts.copy(),
            self.intervals.copy(),
            self.definitions.copy(),
            self.determined.copy(),
            self.complete,
        )


class Facts:
    """Facts in nested scopes. Those of a scope are learnt when the first question in it is asked:
    many passes ask nothing in most scopes."""

    _known: _Known  # missing while there are scopes without questions

    def __init__(self) -> None:
        self._unasked: list[_Scope] = []  # such scopes, the outermost first
        self.atoms = Atoms()
        self.effects = Effects()
        self._known = _Known()
        self._data: set[Var] = set()
        self._indices: dict[PrimExpr, bool] = {}  # whether expressions are index-like
        # The forms of polynomials of variables, which don't depend on other facts.
        self._always: dict[PrimExpr, Affine] = {}
        self._factors: dict[Atom, tuple[Atom, ...]] = {}
        self._defined: set[Atom] = set()  # atoms whose definitions determine them
        self._rows_of: dict[tuple[Atom, Bound, Bound, bool], System] = {}

    def scope(self, learn: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """A scope: the facts that are learnt inside are forgotten at its end. `learn` learns those
        that hold from its begin on."""
        return _Scope(self, learn)

    def __getattr__(self, name: str) -> Any:
        """The facts of scopes in which nothing has been asked yet."""
        if name != "_known":
            raise AttributeError(name=name, obj=self)
        self._learn_scopes()
        return self._known

    def _learn_scopes(self) -> None:
        """Learns the facts of the scopes in which nothing has been asked yet."""
        scopes, self._unasked = self._unasked, []
        known = scopes[0].outside
        assert known is not None
        for scope in scopes:
            scope.outside = known
            known = self._known = known.copied()
            if scope.learn is not None:
                scope.learn()

    def forget(self) -> None:
        """Notes that the facts are incomplete: a condition here has no systems."""
        self._known.complete = False

    def is_determined(self, atom: Atom) -> bool:
        """Whether the systems determine the value of `atom`, given its operands."""
        if isinstance(atom, Var):
            return atom in self._known.determined
        return atom in self._defined and atom in self._known.definitions

    def meaning(self, atom: Atom) -> System:
        """The constraints that define `atom`, unless its definition has cases."""
        definition = self._known.definitions.get(atom, [])
        return self._interval_rows(atom) + (definition[0] if len(definition) == 1 else [])

    def is_index_arithmetic(self, expr: PrimExpr) -> bool:
        """Whether `expr` is computed exactly, not modulo 2**bits."""
        if self._unasked:  # variables of their loops may be data
            self._learn_scopes()
        known = self._indices.get(expr)
        if known is None:
            known = self._indices[expr] = is_index_node(expr, self._data) and all(
                self.is_index_arithmetic(each) for each in children(expr)
            )
        return known

    # -- Learning ---------------------------------------------------------------------------------

    def _add_data(self, var: Var) -> None:
        self._data.add(var)
        self._indices.clear()
        self._always.clear()
        self._read_anew()

    def _read_anew(self) -> None:
        """Forgets the forms of expressions, and the answers about them: with a new fact, both may
        be more precise."""
        self._known.forms.clear()
        self._known.conditions.clear()
        self._known.answers.clear()

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
                self._add_fact([])  # the program never reaches this point

    def _learn_range(self, form: Affine, low: int, high: int) -> None:
        """Learns that a variable, as a form, lies between numbers, and nothing else is known of it:
        what :meth:`_learn` finds for two rows, in a fraction of the time."""
        (var,) = form.terms
        self._read_anew()
        self._known.intervals[var] = low, high
        rows = (form - low, Affine({var: -1}, high))
        self._known.facts += [_Fact([[row]], {var: None}) for row in rows]

    def _add_fact(self, alternatives: Alternatives) -> None:
        """Adds a fact. It concerns the operands of its atoms, too: a fact about ``x % 2`` concerns
        x."""
        atoms = atoms_of(alternatives)
        pending = list(atoms)
        while pending:
            definition = self._known.definitions.get(pending.pop(), [])
            fresh = [atom for atom in atoms_of(definition) if atom not in atoms]
            atoms.update(dict.fromkeys(fresh))
            pending += fresh
        self._known.facts.append(_Fact(alternatives, atoms))

    def _narrow_by(self, row: Affine) -> None:
        """Narrows an atom's interval by a constraint on that atom alone."""
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

    def _define(self, atom: Atom, alternatives: Alternatives) -> None:
        self._known.definitions[atom] = alternatives
        self._defined.add(atom)

    # -- Ranges -----------------------------------------------------------------------------------

    def interval(self, form: Affine) -> Interval:
        """The bounds of `form` that follow from the bounds of its atoms, taken one by one."""
        low: Bound = form.constant
        high: Bound = form.constant
        for atom, coefficient in form.terms.items():
            least, greatest = self._atom_interval(atom)
            if coefficient < 0:
                least, greatest = greatest, least
            low += coefficient * least
            high += coefficient * greatest
        return low, high

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

    def _interval_rows(self, atom: Atom, machine: bool = False) -> System:
        """The bounds of an atom that no fact or definition implies; with `machine`, the bounds of
        its dtype as well.

        The bound 2**31 - 1 of a 32-bit size holds, but isn't a property of the program: it would
        appear in every condition on sizes.
        """
        low, high = self._atom_interval(atom)
        narrow = machine or atom.dtype.bits < 32
        key = (atom, low, high, narrow)
        rows = self._rows_of.get(key)
        if rows is None:
            rows = self._rows_of[key] = []
            if isinstance(low, int) and (narrow or low == 0):
                rows.append(Affine({atom: 1}, -low))
            if isinstance(high, int) and narrow:
                rows.append(Affine({atom: -1}, high))
        return rows

    # -- Products ---------------------------------------------------------------------------------

    def _factor_count(self, form: Affine) -> int:
        """The number of factors of the longest product in `form`."""
        return max((len(self._factors.get(atom, (atom,))) for atom in form.terms), default=0)

    def product(self, a: Affine, b: Affine) -> Affine:
        """The product of two forms."""
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


@final
class _Scope:
    """See :meth:`Facts.scope`. Scopes are many: a generator would take twice the time."""

    __slots__ = ("_facts", "learn", "outside")

    def __init__(self, facts: Facts, learn: Callable[[], None] | None) -> None:
        self._facts = facts
        self.learn = learn
        self.outside: _Known | None = None  # the facts outside, unless nothing was asked there

    def __enter__(self) -> None:
        self.outside = vars(self._facts).pop("_known", None)
        self._facts._unasked.append(self)

    def __exit__(self, *exception: object) -> None:
        unasked = self._facts._unasked
        if unasked and unasked[-1] is self:
            unasked.pop()
        if self.outside is not None:
            self._facts._known = self.outside


def _range_of(atom: Atom) -> Interval:
    exact = isinstance(atom, _EXACT) or (is_exact_call(atom) and not wraps(atom))
    if exact or not atom.dtype.is_integral:
        return range_of_exact(atom)
    return atom.dtype.min(), atom.dtype.max()


def range_of_exact(atom: Atom) -> Interval:
    """The range of an operator that may be exact, or of a name for its value. Index arithmetic of
    32 bits may leave its dtype."""
    if not atom.dtype.is_integral:
        return -math.inf, math.inf
    dtype = INT64 if is_wide(atom.dtype) else atom.dtype
    return dtype.min(), dtype.max()


_EXACT = (e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max, e.Select, e.Let)


def atoms_of(alternatives: Alternatives) -> dict[Atom, None]:
    return {atom: None for system in alternatives for row in system for atom in row.terms}


def _interval_product(intervals: list[Interval]) -> Interval:
    low, high = intervals[0]
    for least, greatest in intervals[1:]:
        corners = [_times(x, y) for x in (low, high) for y in (least, greatest)]
        low, high = min(corners), max(corners)
    return low, high


def _times(x: Bound, y: Bound) -> Bound:
    return x * y if x and y else 0
