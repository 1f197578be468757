"""Affine forms over the integers, and the satisfiability of sets of affine constraints.

A constraint is an :class:`Affine` that must be at least zero. Sets of constraints are decided by
Fourier-Motzkin elimination, where every row is divided by the greatest common divisor of its
coefficients and its constant rounded down (which no integer point notices). Eliminating a
variable is exact over the integers when each pair of bounds has a "dark shadow" as large as its
real one (Pugh, "The Omega Test", Supercomputing 1991, section 2.3); otherwise the result may hold
too many points, so "no solution" is always a proof and "a solution" needs a witness.

Each row remembers the constraints that it was derived from, so that a contradiction names the
constraints that it follows from.

Work is capped: past the cap the answer is "unknown", never a wrong proof.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import gcd
from operator import add
from typing import final

from minitvm.runtime.record import record
from minitvm.tir.expr import PrimExpr

_MAX_ROWS = 300
_MAX_MOVES = 30  # from zero to a point that satisfies all constraints
_MAX_STEPS = 2000  # of the search for a witness, before it gives up
_FEW = 64  # values of a variable that are tried from either end of its range

Atom = PrimExpr  # compared by identity: the maker of forms shares equal atoms


class _Keyed:
    """The key of a form, which is made when it is first asked for."""

    __slots__ = ("_key",)
    _key: Hashable
    terms: Mapping[Atom, int]
    constant: int

    @property
    def key(self) -> Hashable:
        """A key that equal forms share, valid as long as their atoms live."""
        made: Hashable = getattr(self, "_key", None)
        if made is None:
            made = (self.constant, frozenset([(id(atom), c) for atom, c in self.terms.items()]))
            self._key = made
        return made


@final
@record(frozen=False)  # since nothing is made as often: nobody changes one
class Affine(_Keyed):
    """``constant + sum(coefficient * atom)``, exact. No coefficient is zero."""

    terms: Mapping[Atom, int] = field(default_factory=dict)
    constant: int = 0

    @staticmethod
    def of_atom(atom: Atom) -> Affine:
        """The form that is just `atom`."""
        return Affine({atom: 1})

    def __add__(self, other: Affine | int) -> Affine:
        return self._plus(other, 1)

    def __sub__(self, other: Affine | int) -> Affine:
        return self._plus(other, -1)

    def _plus(self, other: Affine | int, sign: int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + sign * other)
        if not other.terms:
            return Affine(self.terms, self.constant + sign * other.constant)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + sign * coefficient
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return Affine(terms, self.constant + sign * other.constant)

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def __neg__(self) -> Affine:
        return self * -1

    def multiples(self, divisor: int) -> Affine:
        """The terms that are multiples of `divisor`, divided by it, and the constant's quotient."""
        terms = {a: c // divisor for a, c in self.terms.items() if c % divisor == 0}
        return Affine(terms, self.constant // divisor)

    def same_as(self, other: Affine) -> bool:
        """Whether both are one form."""
        return not (difference := self - other).terms and difference.constant == 0


def equal(a: Affine, b: Affine) -> list[Affine]:
    """The constraints ``a <= b`` and ``a >= b``."""
    return [a - b, b - a]


def at_most(a: Affine, b: Affine) -> Affine:
    """The constraint ``a <= b``."""
    return b - a


def less(a: Affine, b: Affine) -> Affine:
    """The constraint ``a < b``."""
    return b - a - 1


@final
@record(frozen=False)
class Work:
    """The number of rows that may still be made to answer a question."""

    rows: int


@final
@record()
class Projection:
    """The constraints that remain when variables are eliminated.

    `exact`: an integer point satisfies `constraints` if and only if it extends to a solution of the
    original ones. Otherwise only one direction is sure: a point that extends to a solution
    satisfies `constraints`.
    """

    constraints: tuple[Affine, ...]
    exact: bool


def is_infeasible(constraints: Iterable[Affine]) -> bool:
    """Whether no integers satisfy all `constraints` (False: they may, or it is unknown).

    >>> from minitvm.tir.expr import Var
    >>> i = Affine.of_atom(Var("i"))
    >>> is_infeasible([i * 2 - 3, i * -2 + 3])
    True
    """
    return conflict(constraints) is not None


def conflict(constraints: Iterable[Affine], work: Work | None = None) -> list[int] | None:
    """The positions of some `constraints` that no integers satisfy together; None where integers
    may satisfy all, or where the answer is unknown, as past the cap of `work`.

    >>> from minitvm.tir.expr import Var
    >>> i, j = (Affine.of_atom(Var(name)) for name in "ij")
    >>> conflict([i - 3, j, i * -1 + 2])
    [0, 2]
    """
    forms = list(constraints)
    places = _bounded_on_both_sides(forms)
    apart = _contradictory_bounds(forms, places)
    if apart is not None:
        return apart
    left = [forms[place] for place in places]
    if _has_near_point(left):
        return None
    rows, columns = _table(left)
    for _ in range(len(columns) + 1):
        origin = _contradictory(rows)
        if origin:
            return [place for bit, place in enumerate(places) if origin >> bit & 1]
        column = _cheapest(rows, range(len(columns)))
        eliminated = None if column is None else _eliminate(rows, column)
        if eliminated is None:
            return None
        rows = eliminated[0]
        if work is not None:
            work.rows -= len(rows)
            if work.rows < 0:
                return None
    return None


def _bounded_on_both_sides(forms: Sequence[Affine]) -> list[int]:
    """The positions of the constraints that may contradict each other. A constraint is dropped when
    no other one bounds one of its atoms from the other side, since that atom can then satisfy it.
    This is repeated until no constraint is dropped."""
    places = list(range(len(forms)))
    while True:
        signs: dict[Atom, int] = {}
        for place in places:
            for atom, coefficient in forms[place].terms.items():
                signs[atom] = signs.get(atom, 0) | (1 if coefficient > 0 else 2)
        free = {atom for atom, found in signs.items() if found != 3}
        if not free:
            return places
        places = [place for place in places if free.isdisjoint(forms[place].terms)]


def _contradictory_bounds(forms: Sequence[Affine], places: Sequence[int]) -> list[int] | None:
    """The positions of two constraints, each on a single atom, that contradict each other: an
    elimination might come to that atom last."""
    bounds: dict[tuple[Atom, bool], tuple[int, int]] = {}  # the strictest lower and upper ones
    for place in places:
        form = forms[place]
        if len(form.terms) != 1:
            continue
        ((atom, coefficient),) = form.terms.items()
        is_lower = coefficient > 0
        least = -(form.constant // abs(coefficient))  # of the atom, or of its negation
        known = bounds.get((atom, is_lower))
        if known is None or least > known[0]:
            bounds[atom, is_lower] = least, place
            other = bounds.get((atom, not is_lower))
            if other is not None and least + other[0] > 0:
                return sorted((place, other[1]))
    return None


def _has_near_point(forms: Sequence[Affine]) -> bool:
    """Whether integers that satisfy all constraints are found in a few steps. Most satisfiable
    systems of programs have such a point, and finding it takes a tenth of the time of an
    elimination. All atoms begin at zero. An atom of a violated constraint, preferably one that it
    bounds from below, is moved until the constraint holds."""
    values = [form.constant for form in forms]  # of the forms, at the point reached
    forms_of: dict[Atom, list[tuple[int, int]]] = {}  # the forms with an atom, and its coefficients
    for i, form in enumerate(forms):
        for atom, coefficient in form.terms.items():
            forms_of.setdefault(atom, []).append((i, coefficient))
    place = 0
    for moves in range(1, _MAX_MOVES + 2):
        violated = [i for i, value in enumerate(values) if value < 0]
        if not violated or moves > _MAX_MOVES:
            return not violated
        place = next((i for i in violated if i >= place), violated[0])
        terms = forms[place].terms
        atoms = [atom for atom in terms if terms[atom] > 0] or [*terms]
        if not atoms:
            return False
        atom = atoms[moves % len(atoms)]
        distance = -(values[place] // abs(terms[atom]))
        if terms[atom] < 0:
            distance = -distance
        for i, coefficient in forms_of[atom]:
            values[i] += coefficient * distance
        place += 1
    return False


def project(constraints: Iterable[Affine], keep: Iterable[Atom]) -> Projection | None:
    """`constraints` with every atom eliminated that is not in `keep`; None past the cap.

    Contradictory constraints project to ``-1 >= 0``.
    """
    rows, columns = _table(constraints)
    kept = {id(atom) for atom in keep}
    rest = [c for c, atom in enumerate(columns) if id(atom) not in kept]
    exact = True
    while (column := _cheapest(rows, rest)) is not None:
        eliminated = _eliminate(rows, column)
        if eliminated is None:
            return None
        rows, step_exact = eliminated
        exact = exact and step_exact
    if _contradictory(rows):
        return Projection((Affine({}, -1),), True)
    return Projection(tuple(_from_row(row, columns) for row in rows), exact)


def find_witness(constraints: Iterable[Affine]) -> dict[Atom, int] | None:
    """Integers that satisfy all `constraints`; None when there are none or none was found.

    Variables are kept as close to zero as the constraints allow, which reads well in a message.
    """
    rows, columns = _table(constraints)
    stages = _stages(rows, len(columns))
    if not isinstance(stages, list):
        return None
    point = [0] * len(columns)
    budget = iter(range(_MAX_STEPS))
    if not _search(stages, len(stages) - 1, point, budget):
        return None
    return dict(zip(columns, point, strict=True))


def is_empty(constraints: Iterable[Affine]) -> bool:
    """Whether no integers satisfy all `constraints`: by :func:`is_infeasible`, or by trying all
    values where they are few.

    >>> from minitvm.tir.expr import Var
    >>> i, j = (Affine.of_atom(Var(name)) for name in "ij")
    >>> is_empty([*equal(i * 3, j * 4 + 3), j * 2 - i, i, i * -1 + 3])
    True
    """
    rows, columns = _table(constraints)
    stages = _stages(rows, len(columns))
    if not isinstance(stages, list):
        return stages
    tried = iter(range(_MAX_STEPS))
    if _search(stages, len(stages) - 1, [0] * len(columns), tried, every=True):
        return False
    return next(tried, None) is not None


def _stages(rows: list[_Row], columns: int) -> list[tuple[int, list[_Row]]] | bool:
    """Each column with the rows that bound it, in the order of elimination; True if the rows
    contradict each other, False past the cap."""
    stages: list[tuple[int, list[_Row]]] = []
    while (column := _cheapest(rows, range(columns))) is not None:
        stages.append((column, [row for row in rows if row[column]]))
        eliminated = _eliminate(rows, column)
        if eliminated is None:
            return False
        rows = eliminated[0]
    return True if _contradictory(rows) else stages


# -- Rows: the coefficients of all columns, the constant, a bit for each constraint it comes from --

_Row = tuple[int, ...]


def _table(constraints: Iterable[Affine]) -> tuple[list[_Row], list[Atom]]:
    """The constraints as rows over the atoms that occur in them."""
    forms = list(constraints)
    position: dict[Atom, int] = {}
    for form in forms:
        for atom in form.terms:
            position.setdefault(atom, len(position))
    rows: list[Sequence[int]] = []
    for form in forms:
        row = [0] * len(position)
        for atom, coefficient in form.terms.items():
            row[position[atom]] = coefficient
        rows.append([*row, form.constant, 1 << len(rows)])
    return _tightest(rows), list(position)


def _from_row(row: _Row, columns: Sequence[Atom]) -> Affine:
    return Affine({atom: c for atom, c in zip(columns, row, strict=False) if c}, row[-2])


def _tightest(rows: Iterable[Sequence[int]]) -> list[_Row]:
    """Rows divided by the common divisor of their coefficients; of parallel rows only the
    strictest, and no row without coefficients that always holds."""
    best: dict[_Row, tuple[int, int]] = {}
    for row in rows:
        coefficients, constant = tuple(row[:-2]), row[-2]
        divisor = gcd(*coefficients)
        if divisor == 0:
            if constant >= 0:
                continue
            constant = -1
        elif divisor > 1:
            coefficients = tuple([c // divisor for c in coefficients])
            constant //= divisor
        known = best.get(coefficients)
        if known is None or constant < known[0]:
            best[coefficients] = constant, row[-1]
    return [(*coefficients, *rest) for coefficients, rest in best.items()]


def _contradictory(rows: list[_Row]) -> int:
    """The constraints, as bits, of a row that nothing satisfies; 0 if there is no such row."""
    return next((row[-1] for row in rows if row[-2] < 0 and not any(row[:-2])), 0)


def _cheapest(rows: list[_Row], candidates: Container[int]) -> int | None:
    """The column that is cheapest to eliminate next: exactly if possible, then with the fewest
    pairs."""
    best, best_cost = None, (2, 0)
    for column, coefficients in enumerate(zip(*rows, strict=True)):
        count = len(coefficients) - coefficients.count(0)
        if not count or column not in candidates:
            continue
        low, high = min(coefficients), max(coefficients)
        inexact = high > 1 and low < -1
        may_be_equation = inexact and 1 in coefficients and -1 in coefficients
        if may_be_equation and _equality(rows, column) is not None:
            return column
        lowers = len([c for c in coefficients if c > 0]) if high > 0 > low else 0
        cost = (int(inexact), lowers * (count - lowers) - count)
        if cost < best_cost:
            best, best_cost = column, cost
    return best


def _equality(rows: list[_Row], column: int) -> tuple[_Row, _Row] | None:
    """Two rows that together are an equation for a column, with an integer value for any values of
    the others."""
    uppers = {row[:-1]: row for row in rows if row[column] == -1}
    if not uppers:
        return None
    for row in rows:
        if row[column] == 1:
            opposite = uppers.get(tuple([-c for c in row[:-1]]))
            if opposite is not None:
                return row, opposite
    return None


def _eliminate(rows: list[_Row], column: int) -> tuple[list[_Row], bool] | None:
    """The rows without `column`, and whether they are exact; None past the cap."""
    lowers = [row for row in rows if row[column] > 0]
    uppers = [row for row in rows if row[column] < 0]
    made: list[Sequence[int]] = [row for row in rows if not row[column]]
    equality = _equality(rows, column)
    if equality is None:
        pairs = [(low, high) for low in lowers for high in uppers]
    else:  # the equation is substituted for the column
        pairs = [(low, equality[1]) for low in lowers] + [(equality[0], high) for high in uppers]
    if len(made) + len(pairs) > _MAX_ROWS:
        return None
    exact = True
    for low, high in pairs:
        a, b = low[column], -high[column]
        if a == b == 1:  # the usual case
            row = [*map(add, low, high)]
        else:
            row = [b * x + a * y for x, y in zip(low, high, strict=True)]
        row[-1] = low[-1] | high[-1]
        if a > 1 and b > 1 and (any(row[:-2]) or row[-2] < (a - 1) * (b - 1)):
            exact = False
        made.append(row)
    return _tightest(made), exact


def _search(
    stages: list[tuple[int, list[_Row]]],
    depth: int,
    point: list[int],
    budget: Iterator[int],
    every: bool = False,
) -> bool:
    """Chooses values in the reverse order of elimination, going back when stuck. With `every`, all
    candidates must be tried: where they are too many, the budget is used up."""
    if depth < 0:
        return True
    column, rows = stages[depth]
    point[column] = 0
    low: int | None = None
    high: int | None = None
    for row in rows:
        rest = sum(map(int.__mul__, row, point)) + row[-2]
        if row[column] > 0:
            bound = -(rest // row[column])
            low = bound if low is None else max(low, bound)
        else:
            bound = rest // -row[column]
            high = bound if high is None else min(high, bound)
    if every and (low is None or high is None or high - low >= _FEW):
        for _ in budget:
            pass
        return False
    for value in _candidates(low, high):
        if next(budget, None) is None:
            return False
        point[column] = value
        if _search(stages, depth - 1, point, budget, every):
            return True
    point[column] = 0
    return False


def _candidates(low: int | None, high: int | None) -> Iterator[int]:
    """The integers in ``[low, high]``, some from the end nearest to zero, then from the other."""
    few = _FEW
    if low is not None and low >= 0:
        yield from range(low, min(low + few, high + 1 if high is not None else low + few))
        if high is not None:
            yield from range(high, max(high - few, low + few - 1), -1)
    elif high is not None and high <= 0:
        yield from range(high, max(high - few, low - 1 if low is not None else high - few), -1)
        if low is not None:
            yield from range(low, min(low + few, high - few + 1))
    else:
        for distance in range(few):
            if high is None or distance <= high:
                yield distance
            if distance and (low is None or -distance >= low):
                yield -distance
        yield from (end for end in (low, high) if end is not None and abs(end) >= few)
