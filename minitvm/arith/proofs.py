"""Proofs by contradiction: a goal holds if the facts contradict its negation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from operator import add, mul, sub

from minitvm.arith.facts import Alternatives, Facts, System, atoms_of
from minitvm.arith.linear import Affine, Atom, Work, conflict
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import IntImm, PrimExpr

_MAX_SYSTEMS = 32  # systems with which a question is answered
_MAX_CHOICES = 8  # choices that one question looks at, the nearest first
_MAX_CHECKS = 32  # checks of systems for one question
_MAX_ROWS = 2400  # rows made for these checks
_FEWEST_CHOICES = 2  # from which on numbers are tried first
_TRIALS = 16
_EXTREMA = (e.Min, e.Max)
_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    e.Add: add, e.Sub: sub, e.Mul: mul, e.Min: min, e.Max: max,
}  # fmt: skip


@record(frozen=False)
class Escapes:
    """The remaining ways to satisfy a goal. With `complete`, the systems contain all facts."""

    systems: Alternatives
    complete: bool


class Proofs(Facts):
    """Questions about constraints."""

    def __init__(self) -> None:
        super().__init__()
        # For each system, its rows that contradict each other. The system is kept with them, so
        # that no new atom gets the address of one of its atoms.
        self._conflicts: dict[Hashable, tuple[frozenset[Hashable] | None, System]] = {}

    def proves(self, *rows: Affine) -> bool:
        """Whether each of `rows` is surely at least zero."""
        return all(self.interval(row)[0] >= 0 or self._refuted([-row - 1]) for row in rows)

    def fits(self, form: Affine, dtype: DType) -> bool:
        """Whether `dtype` surely holds the value of `form`."""
        low, high = self.interval(form)
        if low >= dtype.min() and high <= dtype.max():
            return True
        outside = (-form + (dtype.min() - 1), form - (dtype.max() + 1))
        return all(self._refuted([row], machine=True) for row in outside)

    def is_possible(self, goal: System, machine: bool = False) -> bool:
        """Whether `goal` might hold."""
        rows, choices, _ = self._question(goal, False, machine)
        if len(choices) >= _FEWEST_CHOICES and self._holds_somewhere(rows, choices):
            return True
        return bool(_Systems(self, rows, choices, most=1))

    def ways(self, goal: System) -> Escapes:
        """The systems of constraints under which `goal` might hold, all facts included; without any
        system, the goal is refuted."""
        rows, choices, complete = self._question(goal, True, False)
        found = _Systems(self, rows, choices, most=_MAX_SYSTEMS)
        return Escapes(found.systems, found.complete and complete and self._known.complete)

    def _refuted(self, goal: System, machine: bool = False) -> bool:
        if any(self.interval(row)[1] < 0 for row in goal):
            return True
        # The number of definitions tells whether an atom got one since.
        question = (machine, len(self._known.definitions), *[row.key for row in goal])
        known = self._known.answers.get(question)
        if known is None:
            known = self._known.answers[question] = (self.is_possible(goal, machine), goal)
        return not known[0]

    def _question(
        self, goal: System, all_facts: bool, machine: bool
    ) -> tuple[System, list[Alternatives], bool]:
        """Constraints, choices between further systems, and whether both together are all facts.

        Facts that share no atom with the goal are left out unless `all_facts`; the ranges of
        dtypes are left out unless `machine`.
        """
        rows, choices = self._relevant(goal, all_facts, machine)
        rows += self._products(rows)
        nearest = sorted(choices[: _MAX_SYSTEMS if all_facts else _MAX_CHOICES], key=len)
        return rows, nearest, len(nearest) == len(choices)

    def conflict(
        self, rows: System, keys: list[Hashable], work: Work
    ) -> frozenset[Hashable] | None:
        """The keys of some `rows` that no integers satisfy together; None where integers may
        satisfy all. Answers are kept, since neighbouring scopes ask the same question."""
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
        """The goal, and all facts and definitions that concern its atoms."""
        rows: System = []
        choices: list[Alternatives] = []
        seen: set[Atom] = set()
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
                for atom in atoms_of(alternatives):
                    for each in (atom, *self._factors.get(atom, ())):
                        if each not in seen:
                            seen.add(each)
                            added.append(each)
            fresh = []
            for atom in added:
                rows += self._interval_rows(atom, machine)
                if atom in self._known.definitions:
                    fresh.append(self._known.definitions[atom])
            apart = [bool(f.atoms) and seen.isdisjoint(f.atoms) for f in pending]
            fresh += [f.alternatives for f, alone in zip(pending, apart, strict=True) if not alone]
            pending = [f for f, alone in zip(pending, apart, strict=True) if alone]
        return rows, choices

    def _holds_somewhere(self, rows: System, choices: list[Alternatives]) -> bool:
        """Whether a few numbers, tried for all elements that minima and maxima are taken of,
        satisfy all constraints: much cheaper than a search, and few questions about data have
        another answer."""
        atoms = atoms_of([rows, *(system for each in choices for system in each)])
        known = self._known
        if any(
            atom in known.determined or (atom in known.definitions and type(atom) not in _EXTREMA)
            for atom in atoms
        ):
            return False
        shared: dict[PrimExpr, Atom] = {}
        for trial in range(_TRIALS):
            number = partial(self._number, trial, shared, {})

            def holds(system: System, number: Callable[[Atom], int] = number) -> bool:
                return all(
                    row.constant + sum(c * number(atom) for atom, c in row.terms.items()) >= 0
                    for row in system
                )

            if holds(rows) and all(any(map(holds, each)) for each in choices):
                return True
        return False

    def _number(
        self, trial: int, shared: dict[PrimExpr, Atom], values: dict[Atom, int], node: PrimExpr
    ) -> int:
        """The value of an expression in a trial. `shared` are the atoms of the elements in it,
        `values` those of its parts."""
        if isinstance(node, IntImm):
            return int(node.value)
        known = values.get(node)
        if known is not None:
            return known
        operator = _OPERATORS.get(type(node))
        if operator is not None and isinstance(node, e.BinaryOp):
            a, b = (self._number(trial, shared, values, each) for each in (node.a, node.b))
            known = operator(a, b)
        elif (atom := shared.get(node)) is None:
            atom = shared[node] = self.atoms.shared(node)
            known = self._number(trial, shared, values, atom)
        elif atom is not node:
            known = self._number(trial, shared, values, atom)
        else:
            low, high = self._atom_interval(atom)
            drawn = (len(values) * 40503 + trial * 27146 + 9973) ** 2 >> 9 & 7
            known = int(max(low, min(high, drawn)))
        values[node] = known
        return known

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
                    made.append(self.product(row, Affine.of_atom(y)))
        return made


class _Systems:
    """The systems of `rows` and one alternative of each choice that are not contradictory: at most
    `most` of them.

    Where a choice takes no part in a contradiction, its other alternatives are skipped, since each
    would lead to the same contradiction. Past the cap, the rows common to all systems stand for all
    of them.
    """

    def __init__(self, facts: Proofs, rows: System, choices: list[Alternatives], most: int) -> None:
        self.systems: Alternatives = []
        self.complete = True
        self._checks = _MAX_CHECKS * most
        self._work = Work(_MAX_ROWS * most)
        self._facts = facts
        self._choices = choices
        self._most = most
        self._rows: System = []
        self._keys: list[Hashable] = []
        self._levels: dict[Hashable, int] = {}  # from the key of a row to the choice that added it
        if self._extended(rows, 0) is None and self._search(0) is None:
            self.complete = False
            self.systems = [rows]

    def __bool__(self) -> bool:
        return bool(self.systems)

    def _extended(self, rows: System, level: int) -> set[int] | None:
        """The levels that contradict each other once `rows` are added; None where none do."""
        for row in rows:
            self._rows.append(row)
            self._keys.append(row.key)
            self._levels.setdefault(row.key, level)
        self._checks -= 1
        core = self._facts.conflict(list(self._rows), self._keys, self._work)
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


def _ordered_pairs(factors: tuple[Atom, ...]) -> Iterable[tuple[Atom, Atom]]:
    return ((factors[0], factors[1]), (factors[1], factors[0])) if len(factors) == 2 else ()
