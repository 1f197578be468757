"""Inverts index maps: finds the iterations that read an element, in terms of the element's place.

A read ``X[e(i, r)]`` in iterations ``i, r`` gives equations ``e(i, r) == q`` for the element at q.
They are solved for as many iteration variables as possible::

    X[i, k]             i = q0, k = q1
    X[y + r]            y = q - r           for each r, where y is in its range
    X[2 * y + r]        y = q // 2 - s, r = q % 2 + 2 * s       for each s
    X[2 * y + 3 * r]    y = q // 2 - q % 2 - 3 * s, r = q % 2 + 2 * s
    X[i // 8, i % 8]    i = q0 * 8 + q1
    X[i // 2]           i = q * 2 + t       for each t in [0, 2)
    X[3 * i]            i = q // 3          where q % 3 == 0

Quotients and remainders become variables of their own, ``a == c * s + t`` with t in [0, c). An
equation with a variable of coefficient 1 is solved for it; one without, by a division.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from math import gcd
from typing import final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.runtime.dtype import DType
from minitvm.runtime.record import record
from minitvm.te.schedules.congruences import least_solution
from minitvm.te.tensor import domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterType, IterVar, PrimExpr, Range, Var, const_int
from minitvm.tir.functor import find, substitute
from minitvm.tir.indices import is_wide


@final
@record()
class Inverse:
    """The iterations that read an element.

    Attributes
    ----------
    values
        The iteration variables that are solved for, in terms of the place and of `axes`.
    axes
        The iterations that remain.
    conditions
        The conditions under which an iteration with these values exists and reads the element. No
        condition reads memory.
    """

    values: Mapping[Var, PrimExpr]
    axes: tuple[IterVar, ...]
    conditions: tuple[PrimExpr, ...]


@final
@record(eq=False)
class _Form:
    """``sum(coefficient * variable) + rest``, without variables in coefficients and rest."""

    terms: Mapping[Var, PrimExpr]
    rest: PrimExpr

    def plus(self, other: _Form, factor: PrimExpr) -> _Form:
        terms = dict(self.terms)
        for var, coefficient in other.terms.items():
            more = coefficient * factor
            total = terms[var] + more if var in terms else more
            terms[var] = total
            if const_int(total) == 0:
                del terms[var]
        return _Form(terms, self.rest + other.rest * factor)

    def expression(self) -> PrimExpr:
        total = self.rest
        for var, coefficient in self.terms.items():
            total = total + var * coefficient
        return total


@final
@record(frozen=False, eq=False)
class _System:
    """Equations ``form == 0`` of iteration variables with their ranges.

    `parts` are the variables of quotients and remainders, by the value and the divisor.
    """

    known: Analyzer
    domains: dict[Var, Range]
    equations: list[_Form] = field(default_factory=list)
    solved: dict[Var, _Form] = field(default_factory=dict)
    conditions: list[PrimExpr] = field(default_factory=list)
    parts: dict[Hashable, tuple[Var, Var]] = field(default_factory=dict)


def is_invertible(index: PrimExpr, axes: Sequence[IterVar]) -> bool:
    """Whether :func:`invert` takes an index."""
    return _read(_new_system(axes), index) is not None


def invert(
    indices: Sequence[PrimExpr], place: Sequence[PrimExpr], axes: Sequence[IterVar]
) -> Inverse:
    """The iterations of `axes` in which `indices` have the values `place`. Each index must be
    invertible, as :func:`is_invertible` tells.

    >>> from minitvm import te
    >>> y, r, q = te.reduce_axis((0, 8), "y"), te.reduce_axis((0, 3), "r"), te.var("q")
    >>> found = invert([y.var + r.var], [q], [y, r])
    >>> found.values[y.var], [axis.name for axis in found.axes]
    ((0 - q) * -1 + r * -1, ['r'])
    """
    system = _new_system(axes)
    for index, value in zip(indices, place, strict=True):
        form = _read(system, index)
        assert form is not None, f"{index} can't be inverted"
        system.equations.append(_Form(form.terms, form.rest - value))
    while _solve_one(system):
        pass
    return _inverse(system)


def _new_system(axes: Sequence[IterVar]) -> _System:
    known = Analyzer()
    for axis in axes:
        known.bind(axis.var, domain_of(axis))
    return _System(known, {axis.var: domain_of(axis) for axis in axes})


# -- Reading indices ------------------------------------------------------------------------------


def _read(system: _System, index: PrimExpr) -> _Form | None:
    """An index as a form; None where it depends on variables in another way."""
    if not _has_any(index, system.domains):
        return _Form({}, index)
    match index:
        case Var():
            return _variable(index)
        case e.Add(a, b) | e.Sub(a, b) if is_wide(index.dtype):
            x, y = _read(system, a), _read(system, b)
            sign = e.const(1 if isinstance(index, e.Add) else -1, index.dtype)
            return None if x is None or y is None else x.plus(y, sign)
        case e.Mul(a, b) if is_wide(index.dtype):
            a, b = (b, a) if _has_any(b, system.domains) else (a, b)
            x = _read(system, a)
            if x is None or _has_any(b, system.domains):
                return None
            return _number(0, index.dtype).plus(x, b)
        case e.Cast(_, value) if is_wide(index.dtype) and is_wide(value.dtype):
            return _read(system, value)
        case e.FloorDiv(a, c) | e.FloorMod(a, c) if is_wide(index.dtype):
            return _digit(system, index, a, c)
        case e.Div(a, c) | e.Mod(a, c) if is_wide(index.dtype):
            if system.known.can_prove(e.greater_equal(a, 0)):
                return _digit(system, index, a, c)
    return None


def _digit(system: _System, index: PrimExpr, a: PrimExpr, divisor: PrimExpr) -> _Form | None:
    """``a // divisor`` or ``a % divisor``, as a variable."""
    size = const_int(divisor)
    if _has_any(divisor, system.domains) or (size is not None and size <= 0):
        return None
    if size is None and not system.known.can_prove(divisor >= 1):
        return None
    key = structural_key(a), structural_key(divisor)
    if key not in system.parts:
        form = _read(system, a)
        if form is None:
            return None
        system.parts[key] = _new_digits(system, form, a.dtype, divisor)
    quotient, remainder = system.parts[key]
    return _variable(quotient if isinstance(index, e.FloorDiv | e.Div) else remainder)


def _new_digits(system: _System, form: _Form, dtype: DType, divisor: PrimExpr) -> tuple[Var, Var]:
    quotient, remainder = Var("quotient", dtype, axis=True), Var("remainder", dtype, axis=True)
    low, high = _ends(system, form)
    begin, end = e.floordiv(low, divisor), e.floordiv(high, divisor) + 1
    _add_variable(system, quotient, Range(begin, end))
    _add_variable(system, remainder, Range(e.const(0, dtype), divisor))
    parts = _Form({quotient: divisor, remainder: e.const(1, dtype)}, e.const(0, dtype))
    system.equations.append(form.plus(parts, e.const(-1, dtype)))
    return quotient, remainder


def _add_variable(system: _System, var: Var, dom: Range) -> None:
    system.domains[var] = dom
    system.known.bind(var, dom)


def _variable(var: Var) -> _Form:
    return _Form({var: e.const(1, var.dtype)}, e.const(0, var.dtype))


def _number(value: int, dtype: DType) -> _Form:
    return _Form({}, e.const(value, dtype))


def _ends(system: _System, form: _Form) -> tuple[PrimExpr, PrimExpr]:
    """The least and the greatest value of a form whose coefficients have a known sign; coefficients
    of an unknown sign are taken as non-negative."""
    low = high = form.rest
    for var, coefficient in form.terms.items():
        dom = system.domains[var]
        first, last = dom.min * coefficient, (dom.min + dom.extent - 1) * coefficient
        size = const_int(coefficient)
        if size is not None and size < 0:
            first, last = last, first
        low, high = low + first, high + last
    return low, high


def _has_any(expr: PrimExpr, variables: Mapping[Var, object]) -> bool:
    return any(each in variables for each in find(Var, expr))


# -- Solving --------------------------------------------------------------------------------------


def _solve_one(system: _System) -> bool:
    """Makes one step towards the solution; False where no equation is left."""
    for place, equation in enumerate(system.equations):
        if not equation.terms:
            system.conditions.append(e.equal(system.equations.pop(place).rest, 0))
            return True
    # First equations with one variable, then windows, last equations that need a division.
    for step in (_alone, _phase, _unit, _division):
        for place in range(len(system.equations)):
            if step(system, place):
                return True
    return False


def _alone(system: _System, place: int) -> bool:
    """``x + rest == 0``."""
    return len(system.equations[place].terms) == 1 and _unit(system, place)


def _unit(system: _System, place: int) -> bool:
    """Solves for the variable of coefficient 1 or -1 with the longest range."""
    equation = system.equations[place]
    units = _units_of(equation)
    if not units:
        return False
    var = max(units, key=lambda each: _length(system, each))
    sign = e.const(-units[var], var.dtype)
    others = _Form({v: by for v, by in equation.terms.items() if v is not var}, equation.rest)
    del system.equations[place]
    _replace(system, var, _number(0, var.dtype).plus(others, sign))
    return True


def _units_of(equation: _Form) -> dict[Var, int]:
    """The variables of coefficient 1 or -1."""
    sizes = {var: const_int(by) for var, by in equation.terms.items()}
    return {var: by for var, by in sizes.items() if by in (1, -1)}


def _length(system: _System, var: Var) -> tuple[bool, int]:
    """The extent of a variable's range, for comparisons; an unknown extent counts as long."""
    extent = const_int(system.domains[var].extent)
    return extent is None, extent or 0


def _replace(system: _System, var: Var, value: _Form) -> None:
    """Solves for a variable: its value replaces it everywhere."""

    def without(form: _Form) -> _Form:
        if var not in form.terms:
            return form
        others = {each: by for each, by in form.terms.items() if each is not var}
        return _Form(others, form.rest).plus(value, form.terms[var])

    system.equations[:] = map(without, system.equations)
    for each, form in system.solved.items():
        system.solved[each] = without(form)
    system.solved[var] = value


def _phase(system: _System, place: int) -> bool:
    """In ``c * y + d * r == m`` with a short range of r, and an inverse b of d modulo c:
    ``r = c * s + b * m % c``, ``y = (m - d * (b * m % c)) // c - d * s``, where for d = 1 the
    quotient is ``m // c``."""
    equation = system.equations[place]
    found = _short_window(system, equation)
    if found is None:
        return False
    window, by, period = found
    dtype, dom = window.dtype, system.domains[window]
    size = e.const(period, dtype)
    value = (equation.rest + dom.min * by) * -1
    step = Var(f"{window.name}.step", dtype, axis=True)
    steps = e.floordiv(dom.extent + (period - 1), size)
    _add_variable(system, step, Range(e.const(0, dtype), steps))
    if by == -1:
        value, by, equation = value * -1, 1, _number(0, dtype).plus(equation, e.const(-1, dtype))
    remainder, quotient = e.floormod(value, size), e.floordiv(value, size)
    if by != 1:
        chosen = least_solution(by, value, period)
        quotient, remainder = quotient + e.floordiv(remainder - chosen * by, size), chosen
    _replace(system, window, _Form({step: size}, dom.min + remainder))
    terms = {v: e.floordiv(c, size) for v, c in equation.terms.items() if v is not window}
    system.equations[place] = _Form({**terms, step: e.const(by, dtype)}, quotient * -1)
    return True


def _short_window(system: _System, equation: _Form) -> tuple[Var, int, int] | None:
    """The one variable whose coefficient is coprime to the greatest common divisor of the other
    coefficients; its coefficient; and that divisor. There is one only if the range of the variable
    is no longer than the divisor, or than the range of another variable."""
    sizes = {var: const_int(by) for var, by in equation.terms.items()}
    for window, by in sizes.items():
        others = [abs(size or 0) for var, size in sizes.items() if var is not window]
        period = gcd(*others)
        if by is None or None in sizes.values() or period < 2 or gcd(by, period) != 1:
            continue
        mine = _length(system, window)
        if mine <= (False, period) or any(
            _length(system, var) >= mine for var in sizes if var is not window
        ):
            return window, by, period
    return None


def _division(system: _System, place: int) -> bool:
    """Solves for the variable of the longest range by a division, for each value of the other
    variables. The condition that the division leaves no remainder is added."""
    equation = system.equations[place]
    var = max(equation.terms, key=lambda each: _length(system, each))
    for other in [each for each in equation.terms if each is not var]:
        _replace(system, other, _Form({}, other))
    equation = system.equations[place]
    by, divisor = equation.terms[var], const_int(equation.terms[var])
    if divisor is None and not system.known.can_prove(by >= 1):
        _replace(system, var, _Form({}, var))
        return True
    del system.equations[place]
    value = equation.rest * -1
    if divisor is not None and divisor < 0:
        value, by = equation.rest, e.const(-divisor, var.dtype)
    system.conditions.append(e.equal(e.floormod(value, by), 0))
    _replace(system, var, _Form({}, e.floordiv(value, by)))
    return True


# -- The solution ---------------------------------------------------------------------------------


def _inverse(system: _System) -> Inverse:
    """The solution. Variables without a value are axes, and so are variables that are their own
    values."""
    values: dict[Var, PrimExpr] = {}
    axes: list[IterVar] = []
    solved = {v: form.expression() for v, form in system.solved.items()}
    solved = {v: value for v, value in solved.items() if value is not v}
    while (var := _in_its_own_range(system, solved)) is not None:
        system.conditions.append(e.equal(var, solved.pop(var)))
    for var, dom in system.domains.items():
        if var in solved:
            continue
        if const_int(dom.extent) == 1:
            values[var] = dom.min
            continue
        axis = IterVar(dom, Var(var.name, var.dtype, axis=True), IterType.COMM_REDUCE)
        axes.append(axis)
        values[var] = axis.var
    kept = dict(values)
    for var, value in solved.items():
        if var not in kept:
            values[var] = substitute(value, kept)
    conditions = [substitute(each, values) for each in system.conditions]
    for var in solved:
        if var not in kept:
            dom = system.domains[var]
            low, extent = substitute(dom.min, values), substitute(dom.extent, values)
            conditions += [values[var] >= low, values[var] < low + extent]
    for place, axis in enumerate(axes):
        dom = domain_of(axis)
        low, extent = substitute(dom.min, values), substitute(dom.extent, values)
        axes[place] = IterVar(Range.from_min_extent(low, extent), axis.var, axis.iter_type)
    return Inverse(values, tuple(axes), tuple(conditions))


def _in_its_own_range(system: _System, solved: Mapping[Var, PrimExpr]) -> Var | None:
    """A variable that is solved for by one whose range depends on it: of ``X[k + i]`` with k in
    [0, i], ``i = q - k`` would put k into the range of k. It stays an iteration."""

    def needs(var: Var) -> list[Var]:
        dom = system.domains[var]
        values = [solved[var]] if var in solved else [dom.min, dom.extent]
        variables = find(Var, *values)
        return [each for each in variables if each in system.domains]

    for var in solved:
        seen: set[Var] = set()
        left = needs(var)
        while left:
            each = left.pop()
            if each is var:
                return var
            if each not in seen:
                seen.add(each)
                left += needs(each)
    return None
