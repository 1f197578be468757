"""Simplifies operations: rewrites them to compute the same elements by simpler expressions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import cast

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.arith.linear import Affine
from minitvm.te.schedules.congruences import without_congruences
from minitvm.te.schedules.operation_graph import root_axes
from minitvm.te.schedules.rewrite_operations import choice_of, map_body, reduced
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import (
    IterVar,
    PrimExpr,
    ProducerLoad,
    Range,
    Reduce,
    Var,
    const,
    const_int,
)
from minitvm.tir.functor import (
    Mutator,
    Node,
    children,
    contains,
    find,
    free_vars,
    mentions,
    substitute,
    walk,
    walk_once,
)
from minitvm.tir.op import all as all_of
from minitvm.tir.structural_equal import structural_equal


def simplified(op: ComputeOp) -> ComputeOp:
    """An operation that computes the same elements by simpler expressions; `op` itself where no
    expression gets simpler.

    Expressions are simplified with the ranges of the axes. If a reduction leaves out terms, by a
    range that depends on other axes or by choosing its identity, the criterion becomes its
    condition. Terms that a condition on a remainder leaves out have no iterations
    (:mod:`minitvm.te.schedules.congruences`). A reduction of one term is no reduction. Shifts and
    masks of places become quotients, remainders and products.

    >>> from minitvm import te
    >>> n = te.var("n")
    >>> A = te.placeholder((n, 8), name="A")
    >>> B = te.compute((n, 8), lambda i, j: A[(i * 8 + j) // 8, te.min(j, 7)], name="B")
    >>> str(simplified(B.op).body[0])
    'A[i, j]'
    """
    if any(e.const_int(domain_of(axis).extent) == 0 for axis in op.axis):
        return op  # of no element anything can be proved
    whole, op = op, _without_single_term(_with_quotients(op))
    own = {axis.var for axis in root_axes(op)}
    ends = [end for dom in map(domain_of, op.reduce_axis) for end in (dom.min, dom.extent)]
    is_plain = own.isdisjoint(walk_once(*ends)) and all(map(_is_plain, walk_once(*op.body)))
    if op is whole and is_plain:
        return op
    known, outside = _ranges(op, root_axes(op)), _ranges(op, op.axis)
    simplify = partial(_simplified, known=known, outside=outside)
    made = map_body(map_body(op.body, simplify), _UncastIndices(known).expr)
    body = made if _is_simpler(made, op.body) else op.body
    first = body[0]
    if isinstance(first, Reduce):
        placed = _by_place(op, first, known, outside)
        guarded = _choosing_nothing(op, _over_rectangles(op, placed, outside))
        dense = without_congruences(guarded, known)
        if dense is not guarded:
            body = map_body(map_body(body, lambda each: dense), simplify)
        elif guarded is not first:
            body = map_body(body, lambda each: guarded)
    return op if body is op.body else replace(op, body=body, reduce_axis=reduced(body))


def _with_quotients(op: ComputeOp) -> ComputeOp:
    """An operation without shifts and masks of places; `op` itself if it has none."""
    calls = find(e.Call, *op.body)
    if not any(each.op in _OF_BITS and each.dtype.is_int for each in calls):
        return op
    body = map_body(op.body, _Quotients().expr)
    is_same = all(made is value for made, value in zip(body, op.body, strict=True))
    return op if is_same else replace(op, body=body, reduce_axis=reduced(body))


_OF_BITS = ("shift_left", "shift_right", "bitwise_and", "bitwise_xor")


class _Quotients(Mutator):
    """Writes shifts and masks of places as quotients, remainders and products, which all rules for
    indices know. Of negative numbers, too, they are the same."""

    def visit_Call(self, node: e.Call) -> PrimExpr:
        made = self.descend(node)
        if not isinstance(made, e.Call) or made.op not in _OF_BITS or not made.dtype.is_int:
            return made
        a, number = made.args[0], const_int(made.args[1])
        most = made.dtype.bits - 2
        if number is None or number < 0 or reads_tensors(a) or made.dtype.lanes > 1:
            return made
        if made.op.startswith("shift"):
            if number > most:
                return made
            power = const(1 << number, made.dtype)
            return a * power if made.op == "shift_left" else e.floordiv(a, power)
        if made.op == "bitwise_and" and number & (number + 1) == 0 and number < 1 << most:
            return e.floormod(a, const(number + 1, made.dtype))
        if number.bit_count() != 1 or number >= 1 << most:
            return made
        bit = e.floormod(e.floordiv(a, const(number, made.dtype)), const(2, made.dtype))
        return bit * number if made.op == "bitwise_and" else a + number - bit * (2 * number)


def _simplified(value: PrimExpr, known: Analyzer, outside: Analyzer) -> PrimExpr:
    """An expression, simplified with the facts about the axes. A reduction may have no iterations,
    so that the facts about its axes don't hold for its identity and its initial value."""
    made = known.simplify(value)
    if not isinstance(value, Reduce) or not isinstance(made, Reduce):
        return made
    identity = tuple(map(outside.simplify, value.combiner.identity))
    init = tuple(map(outside.simplify, value.init))
    return replace(made, combiner=replace(made.combiner, identity=identity), init=init)


def _without_single_term(op: ComputeOp) -> ComputeOp:
    """A reduction of one term as this term, combined with the reduction's initial value; another
    reduction without its axes of one step."""
    first, domains = op.body[0], [*map(domain_of, op.reduce_axis)]
    if not isinstance(first, Reduce) or len(op.body) > 1 or const_int(first.condition) != 1:
        return op
    if any(const_int(each.extent) != 1 for each in domains):
        return _without_single_steps(op, first)
    combiner = first.combiner
    begin = first.init or combiner.identity
    values = dict(zip((*combiner.lhs, *combiner.rhs), (*begin, *first.source), strict=True))
    body = substitute(combiner.result[0], values)
    at = {axis.var: each.min for axis, each in zip(op.reduce_axis, domains, strict=True)}
    return replace(op, body=(substitute(body, at),), reduce_axis=())


def _without_single_steps(op: ComputeOp, reduce: Reduce) -> ComputeOp:
    """A reduction without the axes of one step, on which no other range depends."""
    single = {
        axis.var: domain_of(axis).min
        for axis in reduce.axis
        if const_int(domain_of(axis).extent) == 1
    }
    several = tuple(axis for axis in reduce.axis if axis.var not in single)
    ends = [end for dom in map(domain_of, several) for end in (dom.min, dom.extent)]
    if not single or not single.keys().isdisjoint(walk_once(*ends)):
        return op
    source = tuple(substitute(each, single) for each in reduce.source)
    return replace(op, body=(replace(reduce, source=source, axis=several),), reduce_axis=several)


# The nodes of sums and products, in which nothing depends on ranges.
_PLAIN = (Var, e.IntImm, e.FloatImm, e.Add, e.Sub, e.Mul, Reduce)


def _is_simpler(made: Sequence[PrimExpr], body: Sequence[PrimExpr]) -> bool:
    """Whether an expression is shorter than another, or its elements depend on fewer axes."""
    pairs = [(sum(1 for _ in walk_once(*each)), _variables_used(each)) for each in (made, body)]
    return any(a < b for a, b in zip(*pairs, strict=True))


def _variables_used(body: Sequence[PrimExpr]) -> int:
    """The number of variables in each index, and in each remainder, all together."""
    loads = [*find(ProducerLoad, *body)]
    parts = [index for load in loads for index in load.indices]
    parts += [*find(e.FloorMod, *body)]
    return sum(len(free_vars(each)) for each in parts)


def _is_plain(node: Node) -> bool:
    """Whether `node` itself is simple for any ranges."""
    if not isinstance(node, ProducerLoad):
        return isinstance(node, _PLAIN)
    return all(map(_reads_once, node.indices))


def _reads_once(index: PrimExpr) -> bool:
    """Whether each variable occurs in an index once, and a number at most once."""
    leaves = [each for each in walk(index) if isinstance(each, Var | e.IntImm)]
    variables = [each for each in leaves if isinstance(each, Var)]
    return len(variables) == len({*variables}) and len(leaves) <= len(variables) + 1


def _ranges(op: ComputeOp, axes: Iterable[IterVar]) -> Analyzer:
    """The facts that hold where some axes of an operation have values."""
    known = Analyzer()
    for tensor in (*op.outputs, *op.input_tensors):
        for extent in tensor.shape:
            known.bind_size(extent)
    for axis in axes:
        known.bind(axis.var, domain_of(axis))
    return known


def _choosing_nothing(op: ComputeOp, reduce: Reduce) -> Reduce:
    """``sum(select(c, x, 0))`` as ``sum(x, where=c)``, if the condition c depends on axes alone, is
    the same for all terms of a result, says where these begin or end, or compares an element with
    the place of the result."""
    choices = [_choice_of(each) for each in reduce.source]
    if None in choices:
        return reduce
    conditions, values, others = zip(*filter(None, choices), strict=True)
    if (
        all(structural_equal(each, conditions[0]) for each in conditions)
        and all(map(structural_equal, others, reduce.combiner.identity))
        and (_is_of_terms_or_results(reduce, conditions[0]) or _names_result(op, conditions[0]))
    ):
        condition = e.logical_and(reduce.condition, conditions[0])
        return replace(reduce, source=values, condition=condition)
    return reduce


def _is_of_terms_or_results(reduce: Reduce, condition: PrimExpr) -> bool:
    """Whether each part of a condition is one on axes alone, the same for all terms, or says by
    data where the terms of a result begin or end."""
    own = {axis.var for axis in reduce.axis}
    return all(
        _is_of_axes(each) or own.isdisjoint(walk_once(each)) or _is_end_of_terms(own, each)
        for each in conjuncts(condition)
    )


def _is_end_of_terms(own: Set[Var], condition: PrimExpr) -> bool:
    """Whether a condition bounds the places of terms by data of a result, as in ``k < length[i]``.
    `own`: the variables of the terms."""
    if not isinstance(condition, e.LT | e.LE | e.GT | e.GE):
        return False
    sides = (condition.a, condition.b), (condition.b, condition.a)
    return any(
        place.dtype.is_int and _is_of_axes(place) and own.isdisjoint(walk_once(data))
        for place, data in sides
    )


def _is_of_axes(condition: PrimExpr) -> bool:
    return not contains((ProducerLoad, e.Call), condition)


def _names_result(op: ComputeOp, condition: PrimExpr) -> bool:
    """Whether a condition begins with ``key[k] == c``, for an axis c of the results, and its other
    parts are such equalities, too, or conditions on axes."""
    first, *others = conjuncts(condition)
    return named_result(op, first) is not None and all(
        _is_of_axes(each) or named_result(op, each) is not None for each in others
    )


def named_result(op: ComputeOp, condition: PrimExpr) -> tuple[IterVar, PrimExpr] | None:
    """The axis of the results and the value of data that a condition ``key[k] == c`` equates."""
    if not isinstance(condition, e.EQ):
        return None
    for own, key in ((condition.a, condition.b), (condition.b, condition.a)):
        var = own.value if isinstance(own, e.Cast) else own
        axis = next((each for each in op.axis if each.var is var), None)
        if axis is not None and not _is_of_axes(key) and not mentions(axis.var, key):
            return axis, key
    return None


def _choice_of(node: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """The condition and the two values of a choice; a number that says whether a condition holds is
    one between 1 and 0."""
    if isinstance(node, e.Cast) and node.value.dtype.is_bool:
        return node.value, const(1, node.dtype), const(0, node.dtype)
    return choice_of(node)


def _by_place(op: ComputeOp, reduce: Reduce, known: Analyzer, outside: Analyzer) -> Reduce:
    """``sum over k in (0, n - j) of X[j + k]`` as ``sum over p in (j, n) of X[p]``: terms that are
    counted from an element on are counted by their places."""
    for axis in reduce.axis:
        dom = domain_of(axis)
        offset = _offset_of(op, reduce, axis, known)
        if offset is None:
            continue
        begin = outside.affine(dom.min) + offset
        end = begin + outside.affine(dom.extent)
        if {each.var for each in op.axis}.isdisjoint(end.terms):  # the end is fixed
            dtype = axis.var.dtype
            low = known.expression(begin, dtype)
            extent = known.expression(end - begin, dtype)
            place = Var(axis.var.name, dtype)
            made = replace(axis, var=place, dom=Range.from_min_extent(low, extent))
            moved = place - known.expression(offset, dtype)
            rest = replace(reduce, axis=tuple(made if a is axis else a for a in reduce.axis))
            known.bind(place, _hull(domain_of(made), _domains(op), known) or domain_of(made))
            return cast(Reduce, map_body((substitute(rest, {axis.var: moved}),), known.simplify)[0])
    return reduce


def _domains(op: ComputeOp) -> dict[Var, Range]:
    return {axis.var: domain_of(axis) for axis in op.axis}


def _offset_of(op: ComputeOp, reduce: Reduce, axis: IterVar, known: Analyzer) -> Affine | None:
    """The expression of data axes that is added to a reduction axis wherever this axis indexes a
    tensor. The data axes occur nowhere else except in the axis's length. None if there is no such
    expression."""
    own = {each.var for each in op.axis}
    loads = [*find(ProducerLoad, *reduce.source)]
    indices = [i for load in loads for i in load.indices if mentions(axis.var, i)]
    forms = [known.affine(index) for index in indices]
    offsets = [Affine({a: c for a, c in form.terms.items() if a in own}) for form in forms]
    (first, *others) = offsets or [Affine({})]
    if not first.terms or not all(first.same_as(each) for each in others):
        return None
    if any(form.terms.get(axis.var) != 1 for form in forms):
        return None
    outside = _parts_outside({id(index) for index in indices}, reduce.source)
    moved = [axis.var, *(each.var for each in op.axis if each.var in first.terms)]
    is_elsewhere = any(mentions(var, reduce.condition, *outside) for var in moved)
    return None if is_elsewhere else first


def _parts_outside(nodes: Container[int], roots: Sequence[PrimExpr]) -> list[PrimExpr]:
    """The largest parts of expressions that contain none of some nodes, given by their `id`."""
    found = list[PrimExpr]()
    for root in roots:
        if id(root) not in nodes:
            is_around = any(id(each) in nodes for each in walk_once(root))
            found += _parts_outside(nodes, children(root)) if is_around else [root]
    return found


def _over_rectangles(op: ComputeOp, reduce: Reduce, known: Analyzer) -> Reduce:
    """``sum over k in (0, i + 1)`` as ``sum over k in (0, n), where=k < i + 1``, and a range that
    begins elsewhere for each `i` as one that begins at 0."""
    axes, conditions, begins = list[IterVar](), list[PrimExpr](), dict[Var, PrimExpr]()
    outside = {axis.var: domain_of(axis) for axis in op.axis}
    for axis in reduce.axis:
        dom = domain_of(axis)
        begin, extent = substitute(dom.min, begins), substitute(dom.extent, begins)
        dom = Range.from_min_extent(begin, known.simplify(extent))
        if not outside.keys().isdisjoint(free_vars(dom.extent)):
            wide = _hull(dom, outside, known)
            if wide is None:
                return reduce
            ends = [axis.var < dom.min + dom.extent]
            if not known.affine(wide.min).same_as(known.affine(dom.min)):
                ends.append(axis.var >= dom.min)
            conditions += ends
            axis = replace(axis, dom=wide)
        elif not outside.keys().isdisjoint(free_vars(dom.min)):
            var = Var(axis.var.name, axis.var.dtype)
            begins[axis.var] = var + dom.min
            axis = replace(axis, var=var, dom=Range(const(0, dom.extent.dtype), dom.extent))
            known.bind(var, domain_of(axis))
        axes.append(axis)
        outside[axis.var] = domain_of(axis)
    if not conditions and not begins:
        return reduce
    made = replace(
        reduce,
        axis=tuple(axes),
        condition=e.logical_and(reduce.condition, all_of(True, *conditions)),
    )
    return cast(Reduce, substitute(made, begins)) if begins else made


def _hull(dom: Range, outside: Mapping[Var, Range], known: Analyzer) -> Range | None:
    """A range that contains the ranges of an axis for all values of the axes `outside`; None where
    an end isn't linear in these."""
    low = _extreme(known.affine(dom.min), outside, known, -1)
    end = _extreme(known.affine(dom.min + dom.extent), outside, known, 1)
    if low is None or end is None:
        return None
    dtype = dom.extent.dtype
    begin = known.expression(low, dtype)
    return Range.from_min_extent(begin, known.expression(end - low, dtype))


def _extreme(
    form: Affine, outside: Mapping[Var, Range], known: Analyzer, sign: int
) -> Affine | None:
    """The greatest value of a form (by a `sign` of -1, the least)."""
    total = Affine({}, form.constant)
    for atom, coefficient in form.terms.items():
        if isinstance(atom, Var) and atom in outside:
            dom = outside[atom]
            ends = known.affine(dom.min), known.affine(dom.min + dom.extent - 1)
            total = total + ends[coefficient * sign > 0] * coefficient
        elif outside.keys().isdisjoint(free_vars(atom)):
            total = total + Affine({atom: coefficient})
        else:
            return None
    return total


class _UncastIndices(Mutator):
    """Removes casts of indices that don't change their value."""

    def __init__(self, known: Analyzer) -> None:
        super().__init__()
        self._known = known

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        return ProducerLoad(node.producer, tuple(self._uncast(self.expr(i)) for i in node.indices))

    def _uncast(self, index: PrimExpr) -> PrimExpr:
        value, form = index, self._known.affine(index)
        while isinstance(value, e.Cast) and value.value.dtype.is_int:
            value = value.value
        return value if self._known.affine(value).same_as(form) else index
