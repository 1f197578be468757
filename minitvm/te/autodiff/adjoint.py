"""The adjoint of a tensor from the adjoints of its elements at each read.

A read ``X[e(z)]`` in iterations z has an adjoint there. The adjoint of ``X[q]`` is the sum over all
iterations with ``e(z) == q``. The index map is turned around
(:mod:`minitvm.te.autodiff.inversion`); the sum is over the iterations that remain, and often over
none::

    C[i, j] = sum(A[i, k] * B[k, j], k)     dA[q0, q1] = sum(dC[q0, j] * B[q1, j], j)
    Y[i] = exp(X[i])                        dX[q] = dY[q] * exp(X[q])

Where data choose the element, as in ``X[t[i], j]``, the adjoints are added up in place
(:mod:`minitvm.te.autodiff.scatter`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import is_lazy
from minitvm.arith.guards import conjuncts
from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.te.autodiff import functions
from minitvm.te.autodiff.functions import wide
from minitvm.te.autodiff.inversion import Inverse, invert, is_invertible
from minitvm.te.autodiff.padding import padded, stays_inside
from minitvm.te.autodiff.scatter import scattered
from minitvm.te.autodiff.stages import computed, guarded, new_data_axes, reads, stage
from minitvm.te.schedules.factors import common_factor
from minitvm.te.schedules.zero_terms import without_spread_factors
from minitvm.te.tensor import Tensor, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir import op, reducer
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Var, const_int
from minitvm.tir.functor import find, substitute


@final
@record()
class Share:
    """The share that the reads of one element in a stage add to a tensor's adjoint.

    Attributes
    ----------
    indices
        The element's indices in an iteration of `axes`.
    value
        Its adjoint there.
    axes
        The iterations.
    conditions
        The conditions under which the element is read. Each may be evaluated only where the ones
        before it hold.
    leading
        The variables of the dimensions that the adjoint has before the tensor's own.
    """

    indices: tuple[PrimExpr, ...]
    value: PrimExpr
    axes: tuple[IterVar, ...]
    conditions: tuple[PrimExpr, ...]
    leading: tuple[Var, ...]


def adjoint_of(tensor: Tensor, leading: Sequence[PrimExpr], shares: Sequence[Share]) -> Tensor:
    """The adjoint of a tensor: the sum of shares, at least one. `leading` are the extents of its
    first dimensions."""
    shape, name = (*leading, *tensor.shape), f"{tensor.op.name}_grad"
    several = len(shares) > 1
    parts = [_part(f"{name}_part" if several else name, tensor, shape, each) for each in shares]
    if not several and isinstance(parts[0], Tensor) and parts[0].dtype is tensor.dtype:
        return parts[0]
    axis = data_axes([f"i{i}" for i in range(len(shape))], shape)
    place = [each.var for each in axis]
    values = [part(*place) if isinstance(part, Tensor) else part.at(place) for part in parts]
    total = e.cast(tensor.dtype, _total(values))
    alias = _alias(total, place, shape)
    return stage(name, axis, total) if alias is None else alias


def _total(values: Sequence[PrimExpr]) -> PrimExpr:
    """The sum of values. Values that are 0 unless a condition holds are added up under this
    condition, and values under the opposite condition in its other branch: the halves of a line
    become loops of their own::

        (x if j < h else 0) + (y if j >= h else 0)  ->  x if j < h else y

    Equal values under opposite conditions have none.
    """
    free: list[PrimExpr] = []
    under: dict[object, tuple[PrimExpr, list[PrimExpr]]] = {}
    for value in values:
        condition, inside = _unless_zero(value)
        if condition is None:
            free.append(value)
        else:
            under.setdefault(structural_key(condition), (condition, []))[1].append(inside)
    parts = _in_turn([(condition, _total(insides)) for condition, insides in under.values()])
    if parts is not None:
        return functools.reduce(operator.add, [*free, parts])
    while under:
        condition, insides = under.pop(next(iter(under)))
        opposite = structural_key(Analyzer().simplify(e.logical_not(condition)))
        _, others = under.pop(opposite, (None, []))
        inside = _total(insides)
        otherwise = _total(others) if others else functions.zeros_like(inside)
        is_same = structural_key(inside) == structural_key(otherwise)
        chosen = op.if_then_else(condition, *e.promote(inside, otherwise))
        free.append(inside if is_same else chosen)
    return functools.reduce(operator.add, free)


def _in_turn(parts: Sequence[tuple[PrimExpr, PrimExpr]]) -> PrimExpr | None:
    """The sum of three values or more that are 0 unless a condition holds, and of which at most one
    isn't: the parts of a line, of which each is a copy. None for any other values."""
    if len(parts) < 3 or any(reads(condition) for condition, _ in parts):
        return None
    for condition, _ in parts:
        here = Prover()
        here.assume(condition)
        others = (other for other, _ in parts if other is not condition)
        if not all(here.can_prove(e.logical_not(other)) for other in others):
            return None
    elsewhere = Prover()
    for condition, _ in parts[1:]:
        elsewhere.assume(e.logical_not(condition))
    last, rest = parts[0]
    if not elsewhere.can_prove(last):
        rest = op.if_then_else(last, *e.promote(rest, functions.zeros_like(rest)))
    for condition, value in parts[1:]:
        rest = op.if_then_else(condition, *e.promote(value, rest))
    return rest


def _unless_zero(value: PrimExpr) -> tuple[PrimExpr | None, PrimExpr]:
    """The condition without which a value is 0, and the value under the condition."""
    if is_lazy(value):
        condition, inside, otherwise = value.args
        if functions.number(otherwise) == 0:
            return Analyzer().simplify(condition), inside
    return None, value


def zeros(tensor: Tensor, leading: Sequence[PrimExpr]) -> Tensor:
    """The adjoint of a tensor that has no share in the outputs."""
    zero = e.const(0, tensor.dtype)
    return computed(f"{tensor.op.name}_grad", (*leading, *tensor.shape), lambda place: zero)


def _alias(value: PrimExpr, place: Sequence[Var], shape: Sequence[PrimExpr]) -> Tensor | None:
    """The tensor that a stage with these elements would copy; None if it would compute."""
    if not isinstance(value, ProducerLoad) or len(value.indices) != len(place):
        return None
    producer = value.producer
    same = all(map(lambda a, b: a is b, value.indices, place))
    extents = zip(producer.shape, shape, strict=True)
    is_whole = same and all(Analyzer().can_prove(e.equal(*each)) for each in extents)
    return producer if is_whole and isinstance(producer, Tensor) else None


@final
@record()
class _Element:
    """An expression of a place."""

    value: PrimExpr
    place: tuple[Var, ...]

    def at(self, place: Sequence[Var]) -> PrimExpr:
        return substitute(self.value, dict(zip(self.place, place, strict=True)))


def _part(name: str, tensor: Tensor, shape: Sequence[PrimExpr], share: Share) -> Tensor | _Element:
    """The sum of a share for each element of the tensor."""
    chosen = _chosen_by_data(share)
    if chosen.dims or chosen.axes:
        return _scattered(name, shape, share, chosen)
    axis = data_axes([f"i{i}" for i in range(len(shape))], shape)
    return _summed(name, share, axis, [each.var for each in axis])


def _summed(
    name: str,
    share: Share,
    axis: tuple[IterVar, ...],
    place: Sequence[PrimExpr],
) -> Tensor | _Element:
    """The sum of a share over all iterations that read the element at `place`, in terms of the
    variables of `axis`."""
    share, inverse, values = _solved(share, axis, place)
    known = _ranges(share, axis, inverse.axes)
    conditions = _simplified(known, inverse.conditions)
    value = substitute(share.value, values)
    if inverse.axes and not any(map(reads, share.conditions)):
        value, conditions = padded(known.simplify(value), conditions, axis, inverse.axes)
    for each in conditions:
        known.assume(each)
    for each in share.conditions:
        guard = known.simplify(substitute(each, values))
        if const_int(guard) != 1:
            conditions.append(guard)
            known.assume(guard)
    value = known.simplify(value)
    own = tuple(each.var for each in axis)
    if not inverse.axes:
        return _Element(guarded(conditions, value), own)
    factor = e.const(1, value.dtype)
    is_whole = not conditions and wide(value.dtype) is value.dtype
    if is_whole and _hold_without_terms(share, axis, inverse, values):
        # A factor may be infinite in terms that are left out, so it stays inside of the sum.
        value, factor = common_factor(value, [each.var for each in inverse.axes])
    pure = [each for each in conditions if not reads(each)]
    source = guarded([each for each in conditions if reads(each)], _widened(value))
    outside, inside = _divided(pure, source, axis, inverse.axes)
    kept, values, at = _at_remainders(outside, axis)
    known = _ranges(share, kept, inverse.axes)
    source, where = (
        known.simplify(substitute(each, values)) for each in (source, op.all(True, *inside))
    )
    made = stage(name, kept, reducer.sum(source, axis=list(inverse.axes), where=where))
    if functions.number(factor) != 1:
        return _Element(functions.product(made(*own), factor), own)
    return _Element(guarded(outside, made(*at)), own) if outside else made


_Solution: TypeAlias = tuple[Share, Inverse, dict[Var, PrimExpr]]


def _solved(share: Share, axis: Sequence[IterVar], place: Sequence[PrimExpr]) -> _Solution:
    """A share, the iterations that read the element at `place`, and the values of the variables of
    the share there. Conditions that are equations are solved as well, and factors with zeros
    between their elements give such conditions, unless more iterations remain than otherwise."""
    plain = _solved_with((), share, axis, place)
    value, conditions = without_spread_factors(share.value)
    spread = replace(share, value=value, conditions=(*share.conditions, *conditions))
    equations = _equations(spread)
    if not equations:
        return plain
    made = _solved_with(equations, spread, axis, place)
    left = [substitute(each, plain[2]) for each in spread.conditions]
    return made if _steps(made[1].axes) <= _steps(plain[1].axes, left) else plain


def _solved_with(
    equations: Sequence[PrimExpr],
    share: Share,
    axis: Sequence[IterVar],
    place: Sequence[PrimExpr],
) -> _Solution:
    """As :func:`_solved`, where some differences are 0."""
    leading = dict(zip(share.leading, place, strict=False))
    equal = [substitute(each, leading) for each in equations]
    wanted = (*place[len(leading) :], *(e.const(0, each.dtype) for each in equal))
    inverse = invert((*share.indices, *equal), wanted, share.axes)
    known = _ranges(share, axis, inverse.axes)
    values = {var: known.simplify(value) for var, value in inverse.values.items()} | leading
    guards = [known.simplify(substitute(each, values)) for each in share.conditions]
    axes = tuple(_shortened(each, guards) for each in inverse.axes)
    single = {x.var: domain_of(x).min for x in axes if const_int(domain_of(x).extent) == 1}
    if single:
        axes = tuple(each for each in axes if each.var not in single)
        values = {var: substitute(value, single) for var, value in values.items()}
        conditions = tuple(substitute(each, single) for each in inverse.conditions)
        inverse = replace(inverse, conditions=conditions)
    return share, replace(inverse, axes=axes), values


def _steps(axes: Sequence[IterVar], conditions: Sequence[PrimExpr] = ()) -> tuple[int, float]:
    """The number of axes of unknown extent, and the iterations of the others, as many of them as
    conditions on remainders leave."""
    extents = [const_int(domain_of(each).extent) for each in axes]
    steps = float(prod(extent for extent in extents if extent is not None))
    own = {each.var for each in axes}
    for each in (part for condition in conditions for part in conjuncts(condition)):
        if isinstance(each, e.EQ) and isinstance(each.a, e.FloorMod) and own & _variables(each):
            steps /= const_int(each.a.b) or 1
    return extents.count(None), steps


def _equations(share: Share) -> list[PrimExpr]:
    """The differences that are 0 where a share's conditions hold."""
    pairs = (
        each.a - each.b
        for condition in share.conditions
        for each in conjuncts(condition)
        if isinstance(each, e.EQ) and each.a.dtype.is_int and not reads(each)
    )
    return [each for each in pairs if is_invertible(each, share.axes)]


def _shortened(axis: IterVar, conditions: Sequence[PrimExpr]) -> IterVar:
    """An axis whose range is cut to the places where conditions on it alone hold."""
    begin, extent = const_int(domain_of(axis).min), const_int(domain_of(axis).extent)
    if begin is None or extent is None:
        return axis
    end = begin + extent
    for each in (part for condition in conditions for part in conjuncts(condition)):
        if isinstance(each, e.NE) and each.a is axis.var:
            begin += const_int(each.b) == begin
            end -= const_int(each.b) == end - 1
        if not isinstance(each, e.GE | e.GT | e.LE | e.LT):
            continue
        small, large = (each.b, each.a) if isinstance(each, e.GE | e.GT) else (each.a, each.b)
        form = Prover().affine(large - small)
        by, rest = form.terms.get(axis.var, 0), form.constant - isinstance(each, e.GT | e.LT)
        if len(form.terms) == 1 and by > 0:  # by * axis + rest >= 0
            begin = max(begin, -(rest // by))
        elif len(form.terms) == 1 and by < 0:
            end = min(end, rest // -by + 1)
    if (begin, end) == (const_int(domain_of(axis).min), begin + extent):
        return axis
    size = e.const(max(0, end - begin), axis.var.dtype)
    dom = Range.from_min_extent(e.const(begin, axis.var.dtype), size)
    return IterVar(dom, axis.var, axis.iter_type)


def _hold_without_terms(
    share: Share, axis: tuple[IterVar, ...], inverse: Inverse, values: Mapping[Var, PrimExpr]
) -> bool:
    """Whether the conditions on whole sums hold also where a sum has no terms, and no variable of
    the sum has a value from which they follow."""
    variables = {each.var for each in inverse.axes}
    tested = [*inverse.conditions, *(substitute(each, values) for each in share.conditions)]
    outside = [each for each in tested if not _variables(each) & variables]
    return not _simplified(_ranges(share, axis, ()), outside)


def _at_remainders(
    conditions: Sequence[PrimExpr], axis: Sequence[IterVar]
) -> tuple[tuple[IterVar, ...], dict[Var, PrimExpr], list[PrimExpr]]:
    """The axes of a stage that holds only the elements that conditions such as ``i % 3 == 0``
    leave; the values of `axis` there; and the place in the stage of an element that is left."""
    kept, values = list(axis), dict[Var, PrimExpr]()
    at: list[PrimExpr] = [each.var for each in axis]
    for place, each in enumerate(axis):
        for condition in conditions:
            found = _remainder_of(condition, each.var)
            if found is None or each.var in values:
                continue
            first, period = found
            extent = e.floordiv(domain_of(each).extent + (period - 1 - first), period)
            (kept[place],) = data_axes([each.name], [Analyzer().simplify(extent)])
            values[each.var] = kept[place].var * period + first
            at[place] = e.floordiv(each.var - first, period)
    return tuple(kept), values, at


def _remainder_of(condition: PrimExpr, var: Var) -> tuple[int, int] | None:
    """The first place that a condition on the remainder of a place leaves, and the distance to the
    next; None for any other condition."""
    match condition:
        case e.EQ(e.FloorMod(place, divisor), remainder):
            form = Prover().affine(place - remainder)
            period = const_int(divisor)
            if period is not None and period > 0 and dict(form.terms) == {var: 1}:
                return -form.constant % period, period
    return None


def _divided(
    conditions: Sequence[PrimExpr],
    source: PrimExpr,
    axis: Sequence[IterVar],
    reduced: Sequence[IterVar],
) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """The conditions of a sum that can be tested once for all of its terms, and the other
    conditions.

    If a condition leaves out whole sums, such as those beyond a diagonal, the remaining sums are
    products without conditions, provided that their factors can be read without them::

        sum(dC[i, k] * B[j, k], k, where=j <= i)  ->  sum(dC[i, k] * B[j, k], k) if j <= i else 0
    """
    variables = {each.var for each in reduced}
    outside = [each for each in conditions if not _variables(each) & variables]
    inside = [each for each in conditions if _variables(each) & variables]
    loads = [*find(ProducerLoad, source)]
    if all(stays_inside(each, inside, axis, reduced) for each in loads):
        return outside, inside
    return [], [*conditions]


def _ranges(share: Share, axis: Sequence[IterVar], remaining: Sequence[IterVar]) -> Analyzer:
    """The facts about the variables of a sum."""
    known = Analyzer()
    loads = find(ProducerLoad, share.value)
    shapes = [each.producer.shape for each in loads]
    for extent in (each for shape in shapes for each in shape):
        known.bind_size(extent)
    for each in (*axis, *remaining):
        known.bind(each.var, domain_of(each))
    return known


def _simplified(known: Analyzer, conditions: Sequence[PrimExpr]) -> list[PrimExpr]:
    """The conditions that aren't known to hold."""
    simple = [known.simplify(each) for each in conditions]
    return [each for each in simple if const_int(each) != 1]


def _widened(value: PrimExpr) -> PrimExpr:
    """A value of 16 bits, converted to ``float32`` for summation; the conversion is applied to its
    factors."""
    widest = wide(value.dtype)
    if widest is value.dtype:
        return value
    if isinstance(value, e.Mul):
        return e.cast(widest, value.a) * e.cast(widest, value.b)
    return e.cast(widest, value)


# -- Elements chosen by data ----------------------------------------------------------------------


@final
@record()
class _Chosen:
    """The dimensions of a tensor in which data choose the element, and the iterations on which
    these depend."""

    dims: tuple[int, ...]
    axes: tuple[IterVar, ...]


def _chosen_by_data(share: Share) -> _Chosen:
    own = {axis.var for axis in share.axes}
    variables = {var for axis in share.axes for var in _data_range(axis, own)}
    dims: set[int] = set()
    while fresh := {
        i
        for i, index in enumerate(share.indices)
        if i not in dims and (_variables(index) & variables or not is_invertible(index, share.axes))
    }:
        dims |= fresh
        variables |= _variables(*(share.indices[i] for i in fresh), *share.conditions) & own
    return _Chosen(tuple(sorted(dims)), tuple(axis for axis in share.axes if axis.var in variables))


def _data_range(axis: IterVar, own: set[Var]) -> set[Var]:
    """An axis whose range depends on data, and the other axes on which the range depends."""
    dom = domain_of(axis)
    if not reads(dom.min) and not reads(dom.extent):
        return set()
    return {axis.var} | _in_range(axis) & own


def _in_range(axis: IterVar) -> set[Var]:
    dom = domain_of(axis)
    return _variables(dom.min, dom.extent)


def _variables(*nodes: PrimExpr) -> set[Var]:
    return set(find(Var, *nodes))


def _scattered(name: str, shape: Sequence[PrimExpr], share: Share, chosen: _Chosen) -> Tensor:
    """See :mod:`minitvm.te.autodiff.scatter`. What the chosen place doesn't depend on is added up
    before, unless the ranges of the axes depend on data, or on each other."""
    own = {axis.var for axis in share.axes}
    is_uneven = any(_in_range(axis) & own for axis in chosen.axes)
    if is_uneven or any(_data_range(axis, set()) for axis in share.axes):
        names = [each.name for each in share.leading]
        leading = data_axes(names, shape[: len(names)])
        renamed = dict(zip(share.leading, (each.var for each in leading), strict=True))
        value = _widened(substitute(share.value, renamed))
        indices = (*(each.var for each in leading), *share.indices)
        conditions = [substitute(each, renamed) for each in share.conditions]
        return scattered(name, shape, (*leading, *share.axes), indices, value, conditions)
    first = len(share.leading)
    outside, values = new_data_axes(chosen.axes)
    inside = data_axes([f"i{i}" for i in range(len(shape))], shape)
    kept = [i for i in range(len(share.indices)) if i not in chosen.dims]
    free = (*inside[:first], *(inside[first + i] for i in kept))
    axis = (*outside, *free)
    place: list[PrimExpr] = [each.var for each in inside[:first]]
    place += [inside[first + i].var for i in kept] + [values[each.var] for each in chosen.axes]
    indices = (*(share.indices[i] for i in kept), *(each.var for each in chosen.axes))
    part = _summed(f"{name}_terms", replace(share, indices=indices, conditions=()), axis, place)
    value = part(*axis) if isinstance(part, Tensor) else part.value
    to = [
        inside[first + i].var if i in kept else substitute(index, values)
        for i, index in enumerate(share.indices)
    ]
    values.update(zip(share.leading, (each.var for each in inside[:first]), strict=True))
    conditions = [substitute(each, values) for each in share.conditions]
    return scattered(
        name,
        shape,
        axis,
        (*(each.var for each in inside[:first]), *to),
        _widened(value),
        [each for each in conditions if const_int(each) != 1],
    )
