"""Stages that depend on places otherwise than by sums of axes: other stages make them plain.

Along a short axis, conditions may choose between terms. The real and imaginary parts of a complex
product are sums of different elements. In one loop over both, each step asks which of them it
computes, and the elements that both need are read twice::

    C[i, j, c] = sum(if_then_else(c == 0, f(i, j, k), g(i, j, k)), k)

    C.0[i, j] = sum(f(i, j, k), k)      # a product of matrices, in the same tiles as
    C.1[i, j] = sum(g(i, j, k), k)
    C[i, j, c] = if_then_else(c == 0, C.0[i, j], C.1[i, j])

Along a long axis, terms may depend on the remainder of the place. The gradient of a convolution
with a stride, and a transposed convolution, sum over other weights at even places than at odd ones.
In one loop over all places, the weights change from lane to lane. Each phase alone is a dense sum::

    Y[i] = sum(D[i // 2 + k] * W[i % 2 + 2 * k], k, where=i % 2 + 2 * k < 3)

    for r in (0, 1):                                   # a loop around all others
        for q:
            P[r, q] = sum(D[q + k] * W[r + 2 * k], k, where=r + 2 * k < 3)
    for i:
        Y[i] = P[i % 2, i // 2]

The loops over k are clipped for each phase. Where no tile of sums would use an element again, as in
the gradient of the maxima of windows, the phases along the last axis alone are computed, row by
row, and each row of them is interleaved at once.

Places may be numbers of several digits, as the pixels of an image in one row, or the elements of a
product of Kronecker. Each vector then divides, and gathers its elements. With an axis for each
digit, neighbours are read, and the result is a view of that::

    Y[p] = X[p // 33 + 1, p % 33 + 2]

    T[i, j] = X[i + 1, j + 2]                          # Y in two dimensions, in Y's memory

A reduction may read a tensor at a function of a sum of axes, as ``X[(y + k) % n]``. Neighbours in
the result then don't read neighbours of the tensor. They do in a copy that has one element for each
value of the sum::

    P[t] = X[t % n]                                  # n + 2 elements
    Y[y] = sum(P[y + k] * W[k], k)                   # of 3

Where the index is any other function of the axes, as ``X[(k * j) % n]`` for the sums of a Fourier
transform, a copy holds the elements in the order of the steps, if many rows read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import Any

from minitvm.arith.accesses import step_of
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    FAR,
    NEAR,
    all_loads,
    contraction_of,
    distances_of,
    divides,
    extent_of,
    factors_of,
    is_uneven,
    long_axes,
    usual_extent,
    usual_iterations,
)
from minitvm.auto_scheduler.loops import cached, compute_of, divided
from minitvm.runtime.errors import CompileError
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import choices_in, element_of, reads_of
from minitvm.te.schedules.hoist_values import operations_of, outside_of_loads
from minitvm.te.schedules.rewrite_operations import with_inlined
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import place_in_memory
from minitvm.te.schedules.window_reads import read_by_sums
from minitvm.te.tensor import ComputeOp, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var
from minitvm.tir.functor import contains, find, mentions, substitute, walk_once

_MOST_SUMS = 4  # places of a reduction that are computed by stages of their own
_MOST_PLACES = 16  # of an elementwise stage
_GATHERED = 4  # the bytes of the narrowest numbers that processors gather
_LEAST_IN_VAIN = 8.0  # operations in whose time results are stored by places, and interleaved
_FOR_EACH_PLACE = 2.0  # of these, for each of many places
_FEWEST = 4  # places of a phase, from which on phases are worth the copy that interleaves them


# -- Places --


def write_unstacked(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets other stages compute the places along an axis; returns them. None where all places sum
    alike terms, or where one loop over all of them computes little in vain."""
    op = compute_of(stage)
    axis = next((each for each in op.axis if _has_own_terms(op, each)), None)
    if axis is None or stage.time is not None:
        return None
    least = max(_LEAST_IN_VAIN, _FOR_EACH_PLACE * (extent_of(axis) or 1))
    if not op.reduce_axis and _computed_in_vain(op, axis) < least:
        return None
    s = program.schedule
    choose(stage, "places", "each place along {axis} has other terms, and is computed by itself",
           axis=axis)  # fmt: skip
    return [s[each] for each in s.unstack(op.output(0), axis)]


def _has_own_terms(op: ComputeOp, axis: IterVar) -> bool:
    """Whether conditions on a short axis alone choose between terms that don't lie along it, or
    between values of neighbours of an elementwise stage."""
    reduce, extent = op.body[0], extent_of(axis)
    most = _MOST_SUMS if op.reduce_axis else _most_places(op)
    if len(op.body) > 1 or len(op.axis) < 2 or extent is None or not 1 < extent <= most:
        return False
    terms = reduce.source if isinstance(reduce, Reduce) else (reduce,)
    if (isinstance(reduce, Reduce) and reduce.init) or not (op.reduce_axis or axis is op.axis[-1]):
        return False
    chosen = _chosen_along(axis, *terms)
    indices = (index for each in find(ProducerLoad, *terms) for index in each.indices)
    steps = [step_of(index, axis.var) for index in indices]
    is_reversed = bool(op.reduce_axis) and any(step is None or step < 0 for step in steps)
    return bool(chosen) and (
        is_reversed or any(loads and not mentions(axis.var, *loads) for loads in chosen)
    )


def _most_places(op: ComputeOp) -> int:
    """The most places along an axis of an elementwise stage that are computed by stages of their
    own. Elements that lie further apart than a few are gathered, which narrow ones can't be."""
    loads = (load.dtype.itemsize for load in all_loads(op))
    narrowest = min([each.dtype.itemsize for each in op.body] + [*loads])
    return _MOST_PLACES if narrowest >= _GATHERED else NEAR


def _chosen_along(axis: IterVar, *terms: PrimExpr) -> list[list[ProducerLoad]]:
    """The elements read in the values between which each condition on an axis alone chooses."""
    return [
        [*find(ProducerLoad, *values)]
        for condition, *values in choices_in(*terms)
        if {*find((Var, ProducerLoad), condition)} == {axis.var}
    ]


def _computed_in_vain(op: ComputeOp, axis: IterVar) -> float:
    """The operations for a result that one loop over all places along an axis computes for other
    places only. The stages of all places share a loop, which computes each value once. None
    are counted where another short axis chooses terms, too: there would be more stages than share
    a loop."""
    (value,) = op.body
    size, count = value.dtype.itemsize, extent_of(axis) or 1
    others = [x for x in op.axis if x is not axis and (extent_of(x) or FAR) <= _MOST_PLACES]
    if any(_chosen_along(each, value) for each in others):
        return 0.0
    nodes = (each for each in outside_of_loads(value) if isinstance(each, PrimExpr))
    operations = sum(operations_of(each) * each.dtype.itemsize for each in nodes)
    return operations / size * (1 - 1 / count)


# -- Phases --


def write_phases(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets another stage compute the elements of each phase; returns it. None for a stage whose
    terms don't depend on remainders of its places."""
    op, reduce = compute_of(stage), compute_of(stage).body[0]
    if not isinstance(reduce, Reduce) or reduce.init:
        return None
    periods = [_period(op, reduce, axis) for axis in op.axis]
    # No tile uses an element again: the phases of a row are interleaved while they are in the
    # cache. Along other axes, the phase is the same for a row.
    by_rows = contraction_of(op) is None
    if by_rows:
        periods = [0] * (len(periods) - 1) + periods[-1:]
    if not any(periods):
        return None
    s = program.schedule
    choose(stage, "phases", "computed for each remainder of {axes}, and interleaved",
           axes=" and ".join(f"{axis.name} % {period}" for axis, period
           in zip(op.axis, periods, strict=True) if period))  # fmt: skip
    phases = cached(s, stage, "global")

    def layout(*indices: Any) -> list[Any]:
        pairs = list(zip(indices, periods, strict=True))
        remainders = [index % period for index, period in pairs if period]
        quotients = [index // period if period else index for index, period in pairs]
        rows = quotients[:-1] if by_rows else []
        return [*rows, *remainders, *quotients[len(rows) :]]

    phases.transform_layout(layout)
    phases.simplify()
    return [phases]


def _period(op: ComputeOp, reduce: Reduce, axis: IterVar) -> int:
    """The number of phases along an axis; 0 if it has none. Its remainder chooses terms: a
    condition depends on it, or a read whose element is the same for all quotients; and a phase sums
    several of them."""
    extent = extent_of(axis)
    places = [*_scaled_places_of(axis, *reduce.source, reduce.condition)]
    periods = {n and n // gcd(n, by) for each, by in places for n in [e.const_int(each.b)]}
    period = periods.pop() if len(periods) == 1 else None
    if period is None or period < 2 or extent is None or extent < period * _FEWEST:
        return 0
    reads = factors_of(op)
    parts = [reduce.condition, *(index for each in reads for index in each.load.indices)]
    terms = [each.var for each in long_axes(op.reduce_axis)]
    if not any(mentions(axis.var, x) and any(mentions(k, x) for k in terms) for x in parts):
        return 0

    def kinds_in(*nodes: PrimExpr) -> set[type]:
        return {type(each) for each, _ in _scaled_places_of(axis, *nodes)}

    kinds = [kinds_in(*each.load.indices) for each in reads]
    others = kinds_in(reduce.condition)
    return period if e.FloorMod in others or {e.FloorMod} in kinds else 0


def _places_of(axis: IterVar, *nodes: PrimExpr) -> Iterator[e.FloorDiv | e.FloorMod]:
    """The quotients and remainders of places along an axis in expressions."""
    return (node for node, by in _scaled_places_of(axis, *nodes) if by == 1)


def _divisors_of(axis: IterVar, *nodes: PrimExpr) -> set[int]:
    """The numbers by which places along an axis are divided; 0 for one that is not known."""
    return {e.const_int(each.b) or 0 for each in _places_of(axis, *nodes)}


def _size_of_digit(axis: IterVar, *nodes: PrimExpr) -> int:
    """The least number by which places along an axis are divided, if it divides all the others and
    the extent; 0 where there is none."""
    extent, sizes = extent_of(axis), _divisors_of(axis, *nodes)
    size = min((n for n in sizes if 1 < n < (FAR if extent is None else extent)), default=0)
    is_digit = size and not any(n % size for n in sizes) and divides(size, axis)
    return size if is_digit else 0


def _scaled_places_of(
    axis: IterVar, *nodes: PrimExpr
) -> Iterator[tuple[e.FloorDiv | e.FloorMod, int]]:
    """The quotients and remainders of multiples of places along an axis, each with the multiple."""
    for node in walk_once(*nodes):
        if isinstance(node, e.FloorDiv | e.FloorMod):
            terms = Prover().affine(node.a).terms
            if len(terms) == 1 and axis.var in terms:  # the axis and a constant
                yield node, terms[axis.var]


# -- Digits --


def write_digits(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets another stage have an axis for each digit of places, and the result be a view of it;
    returns the new stage. None for a contraction, and for a stage whose vectors lie within the
    digits."""
    s, target, op = program.schedule, program.target, compute_of(stage)
    is_read = not stage.is_output or s.readers(stage) or stage.time is not None
    if is_read or len(op.outputs) > 1 or contraction_of(op) is not None:
        return None
    whole = with_inlined(op, s.inlined)
    digits, planes = _digits_of(whole, target), _planes_of(whole, target)
    if digits is None and planes is None:
        return None
    made = cached(s, stage, "global")
    stage.compute_view()
    if planes is not None:
        choose(stage, "digits", "neighbours along {axis} lie in several planes, which are mixed",
               axis=op.axis[-1])  # fmt: skip
        made.transform_layout(divided(planes))
        made.simplify()
        return [made]
    while digits is not None:
        (axis, size) = digits
        axes = compute_of(made).axis
        choose(stage, "digits", "the places along {axis} have an axis for each {size} of them, "
               "along which neighbours are read", axis=axes[axis], size=size)  # fmt: skip
        made.transform_layout(divided([size if i == axis else 0 for i in range(len(axes))]))
        made.simplify()
        digits = _digits_of(with_inlined(compute_of(made), s.inlined), target)
    return [made]


def _planes_of(op: ComputeOp, target: Target) -> list[int] | None:
    """For each axis the number of planes that it goes through in turn, 0 for one; None if there are
    no such axes, or if neighbours along the last axis are read as neighbours. Vectors of a few
    planes of known size are shuffled as they lie, where registers are wide."""
    loads = [*all_loads(op)]
    terms = [term for load in loads for term in _terms_of(load)]
    is_known = not any(None in map(e.const_int, load.producer.shape) for load in loads)
    least = NEAR if is_known and target.vector_bits > 128 else 1

    def planes(axis: IterVar) -> int:
        sizes = _divisors_of(axis, *op.body)
        size = sizes.pop() if len(sizes) == 1 else 0
        are_apart = any(
            isinstance(atom, e.FloorMod) and mentions(axis.var, atom) and abs(by) > NEAR
            for atom, by in terms
        )
        is_long = size > least and (extent_of(axis) or FAR) > size
        return size if are_apart and is_long and divides(size, axis) else 0

    if not op.axis or op.reduce_axis or not contains(e.FloorMod, *op.body):
        return None
    last = op.axis[-1].var
    known = (load for load in loads if None not in map(e.const_int, load.producer.shape))
    is_apart = any(distances_of(load, op).get(last, 0) > NEAR for load in known)
    found = [*map(planes, op.axis)]
    return found if found[-1] or (is_apart and any(found)) else None


def _terms_of(load: ProducerLoad) -> Iterator[tuple[PrimExpr, int]]:
    """The terms of the place of an element in memory, each with its distance; elements in different
    rows of unknown length lie far apart."""
    shape = load.producer.shape
    if None not in map(e.const_int, shape):
        yield from Prover().affine(place_in_memory(load.indices, shape)).terms.items()
        return
    row = 1
    for index, extent in zip(reversed(load.indices), reversed(shape), strict=True):
        for atom, by in Prover().affine(index).terms.items():
            yield atom, by * row
        row = min(FAR, row * (e.const_int(extent) or FAR))


def _digits_of(op: ComputeOp, target: Target) -> tuple[int, int] | None:
    """The axis along which the lanes of a vector may have different quotients, and the divisor of
    these quotients; None if there is none. No digits are needed if each vector lies within one
    quotient, or if the divisor is so small that the quotients repeat themselves within a few
    vectors."""
    lanes, below = target.lanes(op.body[0].dtype), 1
    for i in range(len(op.axis) - 1, -1, -1):
        if below >= lanes:
            return None
        size = _size_of_digit(op.axis[i], *op.body)
        if size > lanes and size * below % lanes:
            return i, size
        extent = extent_of(op.axis[i])
        if extent is None:
            return None
        below *= extent
    return None


def write_digits_of_rows(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets another stage compute a reduction with an axis for each digit of its places, if rows
    that share elements then have an axis of their own. The result becomes a view of that stage,
    which is returned. None for any other stage."""
    op = compute_of(stage)
    if not isinstance(op.body[0], Reduce) or len(op.body) > 1 or stage.time is not None:
        return None
    if not contains((e.FloorDiv, e.FloorMod), *op.body) or is_uneven(op) or op.body[0].init:
        return None
    found = contraction_of(op)
    if found is not None and any(extent_of(axis) != 1 for axis in found.rows):
        return None
    sizes = [_digit_of_rows(op, axis) for axis in op.axis]
    if not any(sizes):
        return None
    names = " and ".join(x.var.name for x, n in zip(op.axis, sizes, strict=True) if n)
    s = program.schedule
    choose(stage, "digits", "the places along {axes} have an axis for each digit: rows share "
           "elements", axes=names)  # fmt: skip
    made = cached(s, stage, "global")
    made.transform_layout(divided(sizes))
    made.simplify()
    stage.compute_view()
    return [made]


def _digit_of_rows(op: ComputeOp, axis: IterVar) -> int:
    """The number by which places along an axis are divided, if a factor is read at the quotient
    alone, so that neighbours share its elements, or at the remainder alone. 0 if there is no such
    number, if the elements that are read at one quotient overlap those at the next, or if nothing
    but a part of an index is a quotient, as the first channel of a group is."""
    extent, places = extent_of(axis) or 0, [*_places_of(axis, *op.body)]
    period = max(_divisors_of(axis, *op.body), default=0)
    indices = {index for each in factors_of(op) for index in each.load.indices}
    is_told = any(isinstance(each, e.FloorMod) or each in indices for each in places)
    if not (is_told and 1 < period < extent) or extent % period:
        return 0
    quotient, remainder = (Var(name, axis.var.dtype) for name in ("quotient", "remainder"))
    analyzer, at = Analyzer(), {axis.var: quotient * period + remainder}
    for each in (*op.axis, *op.reduce_axis):
        analyzer.bind(each.var, domain_of(each))
    analyzer.bind(quotient, Range(0, extent // period))
    analyzer.bind(remainder, Range(0, period))
    shares = False
    for factor in factors_of(op):
        found = [analyzer.simplify(substitute(index, at)) for index in factor.load.indices]
        shares |= mentions(quotient, *found) != mentions(remainder, *found)
        for terms in (Prover().affine(index).terms for index in found):
            steps = ((abs(terms.get(k.var, 0)), extent_of(k) or FAR) for k in op.reduce_axis)
            if 0 < abs(terms.get(quotient, 0)) <= sum(step * (n - 1) for step, n in steps):
                return 0
    return period if shares else 0


def write_digits_of_steps(program: Program, stage: Stage) -> bool | None:
    """Lets a reduction have an axis for each digit of its steps, along which neighbours are read;
    None for any other stage."""
    target, op, found = program.target, compute_of(stage), False
    while (digits := _digits_of_steps(op, target)) is not None and stage.time is None:
        axis, size = digits
        choose(stage, "digits", "the steps along {axis} have an axis for each {size} of them, "
               "along which neighbours are read", axis=op.reduce_axis[axis], size=size)  # fmt: skip
        sizes = [size if i == axis else 0 for i in range(len(op.reduce_axis))]
        stage.transform_reduction(divided(sizes))
        stage.simplify()
        op, found = compute_of(stage), True
    return found or None


def _digits_of_steps(op: ComputeOp, target: Target) -> tuple[int, int] | None:
    """The reduction axis whose steps are divided in the indices of an operation, and the divisor. A
    vector has fewer lanes, so that vectors lie within a digit."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or len(op.body) > 1 or is_uneven(op):
        return None
    for i, axis in enumerate(op.reduce_axis):
        size = _size_of_digit(axis, *reduce.source, reduce.condition)
        if size > target.lanes(reduce.dtype):
            return i, size
    return None


# -- Borders --


_MOST_COPIED = 2.25  # times the elements of the tensor, and a few more, in a copy
_READ = 8  # reads of each element for which a copy in the order of the steps pays


def write_windows(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets a reduction read copies of tensors with their borders; returns the copies. None for a
    stage that reads no such windows."""
    s, op = program.schedule, compute_of(stage)
    if not isinstance(op.body[0], Reduce) or is_uneven(op):
        return None
    made = list[Stage]()
    for tensor in op.input_tensors:
        loads = reads_of(op, tensor)
        is_table = len(loads) == 1 and _is_table(op, tensor, loads[0])
        if len(loads) != 1 or not (is_table or _has_borders(op, tensor, loads[0])):
            continue
        how = "in the order of the steps" if is_table else "with its borders"
        choose(stage, "packing", f"{{tensor}} is copied {how}", tensor=tensor)
        made.append(s[s.cache_access(tensor, "global", stage.op, None, not is_table)])
    return made or None


def _has_borders(op: ComputeOp, tensor: Tensor, load: ProducerLoad) -> bool:
    """Whether an iteration reads one element of a tensor, at a function of a sum of data and
    reduction axes, or under a choice that depends on such a sum; and whether in a copy with one
    element for each sum several iterations read an element, and the copy isn't much larger than the
    tensor."""
    is_odd = any(_is_of_sum(op, index) for index in load.indices)
    if is_odd and _are_odd_rows(op, load):
        return False
    if not is_odd and not any(map(is_lazy, walk_once(*op.body))):
        return False
    try:
        value = element_of(op, tensor).value
        is_chosen = any(_is_of_both(op, condition) for condition, *_ in choices_in(value))
        if not is_odd and not is_chosen:
            return False
        copy, _ = read_by_sums(tensor, op, tensor.name, None, tensor.dtype)
    except CompileError:  # neither the index nor the choice is a function of sums alone
        return False
    size, copied = (prod(map(usual_extent, each.shape)) for each in (tensor, copy))
    return copied <= min(size * _MOST_COPIED + 64, usual_iterations(_axes_in(op, load)) // 2)


def _are_odd_rows(op: ComputeOp, load: ProducerLoad) -> bool:
    """Whether an element is read by one row of a window alone, and only its row is a function of a
    sum: vectors of neighbours are read where they lie, and a copy takes longer than it saves."""
    *_, index = load.indices
    is_neighbour = bool(op.axis) and step_of(index, op.axis[-1].var) == 1
    reads = [axis for axis in long_axes(op.axis) if not mentions(axis.var, *load.indices)]
    outside = len([*choices_in(*op.body)]) > len([*choices_in(*load.indices)])
    return is_neighbour and not reads and not outside


def _is_table(op: ComputeOp, tensor: Tensor, load: ProducerLoad) -> bool:
    """Whether an iteration reads one element of a tensor, at a function of data and reduction axes
    that is no function of their sums; and whether other axes read each element again and again."""
    if not any(_is_of_sum(op, index) for index in load.indices):
        return False
    if reads_tensors(*load.indices) or any(map(is_lazy, walk_once(*op.body))):
        return False
    axes = _axes_in(op, load)
    if usual_iterations(axes) * _READ > usual_iterations((*op.axis, *op.reduce_axis)):
        return False
    try:
        copy, _ = read_by_sums(tensor, op, tensor.name, None, tensor.dtype)
    except CompileError:
        return True
    return len(copy.shape) == len(axes)  # no dimension of the copy stands for a sum of several axes


def _axes_in(op: ComputeOp, load: ProducerLoad) -> list[IterVar]:
    """The axes on which the place of an element depends."""
    return [axis for axis in (*op.axis, *op.reduce_axis) if mentions(axis.var, *load.indices)]


def _is_of_sum(op: ComputeOp, index: PrimExpr) -> bool:
    """Whether an index depends on data and reduction axes, but isn't just their sum."""
    terms = Prover().affine(index).terms
    return any(not isinstance(atom, Var) and _is_of_both(op, atom) for atom in terms)


def _is_of_both(op: ComputeOp, node: PrimExpr) -> bool:
    """Whether an expression depends on data and reduction axes."""
    return all(any(mentions(axis.var, node) for axis in axes) for axes in (op.axis, op.reduce_axis))
