"""Sums in adjoints that follow from known sums: these are read, and not computed again.

The adjoint of the mean in a norm adds up that of the deviations ``c[i, j] = x[i, j] - mean[i]``::

    t[i] = sum(g[i, j] * r[i] + 2 * v[i] * c[i, j], j)           mean[i] = s[i] / n
         = r[i] * sum(g[i, j], j) + 2 * v[i] * sum(c[i, j], j)   s[i] = sum(x[i, j], j)

What doesn't change along the summed axes is taken out of each sum. The sum of the deviations is
``s[i] - n * mean[i]``, which is 0; that of `g` may be the adjoint of a bias. So `t` doesn't read
`c`, and doesn't wait for `v`.

A sum is rewritten where it is a multiple of one other sum: a difference of two large sums would be
less exact than a sum of small differences. The sums of the program and those of earlier adjoints
are known.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import cast, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.runtime.record import record
from minitvm.te.autodiff.functions import number, zeros_like
from minitvm.te.autodiff.known_values import forward_and_backward
from minitvm.te.autodiff.products import Product, Products, factor_of, sum_of
from minitvm.te.autodiff.stages import new_data_axes, new_reduce_axes, place_in, stage
from minitvm.te.schedules.rewrite_operations import reading, rewritten
from minitvm.te.tensor import ComputeOp, Operation, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir import reducer
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var, const_int
from minitvm.tir.functor import children, find, substitute, walk_once

_MOST_TERMS = 16  # of a sum: each may be looked for among all sums
_EQUAL = 1e-6  # the relative difference of numbers that cancel: ``1 / n`` may be a float32


def reading_sums(adjoints: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The adjoints of a program, reading its sums and each other's where they need the same.

    Parameters
    ----------
    adjoints
        The adjoints of the program's inputs.
    results
        The program's outputs.

    >>> from minitvm import te
    >>> X, v = te.placeholder((4, 8), name="X"), te.placeholder((4,), name="v")
    >>> j, k = te.reduce_axis((0, 8), "j"), te.reduce_axis((0, 8), "k")
    >>> S = te.compute((4,), lambda i: te.sum(X[i, j], axis=j), name="S")
    >>> D = te.compute((4,), lambda i: te.sum(X[i, k] * v[i] * 3.0, axis=k), name="D")
    >>> reading_sums([D], [S])[0].op.body[0]
    v[i] * S[i] * 3.0
    """
    forward, backward = forward_and_backward(adjoints, results)
    known, program = _Known(), {*forward}
    for op in forward:
        known.learn(op)

    def rewrite(op: Operation, now: Mapping[Tensor, Tensor]) -> Operation:
        made = _without_zeros(reading(op, now))
        if (plain := _plain_sum_of(made)) is not None:
            made = _rewritten(plain, known, program) or made
        known.learn(made)
        return made

    return rewritten(adjoints, backward if forward else (), rewrite)


def _without_zeros(op: Operation) -> Operation:
    """An operation without the terms that have a tensor of zeros as a factor."""
    if not isinstance(op, ComputeOp) or len(op.body) > 1 or not isinstance(op.body[0], e.Add):
        return op
    zeros = {each for each in op.input_tensors if _is_zero(each)}
    return replace(op, body=(_nonzero(op.body[0], zeros),)) if zeros else op


def _is_zero(tensor: Tensor) -> bool:
    return isinstance(tensor.op, ComputeOp) and number(tensor.op.body[tensor.value_index]) == 0


def _nonzero(node: PrimExpr, zeros: Container[object]) -> PrimExpr:
    match node:
        case e.Add(a, b):
            kept = [x for x in (_nonzero(a, zeros), _nonzero(b, zeros)) if number(x) != 0]
            return zeros_like(node) if not kept else kept[0] + kept[1] if kept[1:] else kept[0]
        case e.Mul(a, b):
            is_zero = any(number(_nonzero(x, zeros)) == 0 for x in (a, b))
            return zeros_like(node) if is_zero else node
        case ProducerLoad() if node.producer in zeros:
            return zeros_like(node)
    return node


# -- Sums -----------------------------------------------------------------------------------------


@final
@record()
class _Sum:
    """A stage that adds up one value over all places of a box.

    Attributes
    ----------
    op
        The stage.
    value
        What it adds up.
    axes
        The axes of the sum.
    """

    op: ComputeOp
    value: PrimExpr
    axes: tuple[IterVar, ...]

    def parts(self, product: Product) -> tuple[Product, Product]:
        """The factors of a product that change along the axes of the sum, and the others."""
        own = {axis.var for axis in self.axes}
        powers = product.powers.items()
        inside = {k: each for k, each in powers if not own.isdisjoint(walk_once(each[0]))}
        outside = {k: each for k, each in powers if k not in inside}
        return Product(1.0, inside), Product(product.number, outside)


def _plain_sum_of(op: Operation) -> _Sum | None:
    """A stage as a sum without conditions, of floats that are exact enough to be added otherwise;
    None for any other."""
    if not isinstance(op, ComputeOp) or len(op.body) > 1:
        return None
    reduce = op.body[0]
    if not isinstance(reduce, Reduce):
        return None
    if not is_operator(reduce.combiner, e.Add) or reduce.init or const_int(reduce.condition) != 1:
        return None
    if not reduce.dtype.is_float or reduce.dtype.bits < 32 or reduce.dtype.lanes > 1:
        return None
    ends = [end for axis in reduce.axis for end in (domain_of(axis).min, domain_of(axis).extent)]
    own = {axis.var for axis in (*op.axis, *reduce.axis)}
    if any(each in own or isinstance(each, ProducerLoad) for each in walk_once(*ends)):
        return None
    return _Sum(op, reduce.source[0], reduce.axis)


def _rewritten(total: _Sum, known: _Known, forward: Collection[Operation]) -> ComputeOp | None:
    """A sum as a multiple of another sum, or of a known one; None if it is no such multiple, or if
    this saves nothing."""
    parts = _Terms(total, known, forward).of_sum()
    if len(parts) > _MOST_TERMS:
        return None
    sums: dict[Hashable, Product] = {}
    fresh: dict[Hashable, Var] = {}
    terms: list[tuple[Hashable, Product]] = []
    for inside, outside in parts:
        key = _key(inside)
        if key not in sums:
            found = known.find(total, inside)
            if found is None:
                fresh[key] = Var("sum", total.value.dtype)
            sums[key] = factor_of(fresh[key]) if found is None else found
        terms.append((key, outside.times(sums[key])))
    kept = _without_cancelling(terms)
    used = {key for key, _ in kept}
    if len(used) > 1 or (len(parts) == 1 and fresh):
        return None
    like = total.value
    value = sum_of(_like_terms([each for _, each in kept]), like) if kept else zeros_like(like)
    for key in used & fresh.keys():
        inside = next(each for each, _ in parts if _key(each) == key)
        value = substitute(value, {fresh[key]: _summed(total, inside.value(like))})
    return replace(total.op, reduce_axis=(), body=(value,))


def _summed(total: _Sum, value: PrimExpr) -> PrimExpr:
    """The element of a new stage that adds up `value` over the axes of a sum."""
    used = set(walk_once(value))
    data, renamed = new_data_axes([axis for axis in total.op.axis if axis.var in used])
    reduced, renamed = new_reduce_axes(total.axes, renamed)
    source = substitute(value, renamed)
    made = stage(f"{total.op.name}_sum", data, reducer.sum(source, axis=list(reduced)))
    return made(*place_in([axis for axis in total.op.axis if axis.var in used]))


@final
class _Terms:
    """The terms of a sum, each as the factors that change along its axes, and the others."""

    def __init__(self, total: _Sum, known: _Known, forward: Collection[Operation]) -> None:
        self._sum = total
        self._known = known
        self._forward = forward
        self._products = Products()

    def of_sum(self) -> list[tuple[Product, Product]]:
        """The terms of the sum; of more than are of use, some."""
        return self._some(self._products.of(self._sum.value))

    def _some(self, product: Product) -> list[tuple[Product, Product]]:
        return [*islice(self._of(product), _MOST_TERMS + 1)]

    def _of(self, product: Product) -> Iterator[tuple[Product, Product]]:
        inside, outside = self._sum.parts(product)
        ((factor, power), *more) = inside.powers.values() or [(e.const(1, "float32"), 0)]
        if power == 1 and not more:
            if isinstance(factor, e.Add | e.Sub):
                for each in self._products.terms(factor):
                    yield from self._of(outside.times(each))
                return
            body = _element(factor)
            if body is not None:
                found = self._some(outside.times(self._products.of(body)))
                # An adjoint is a part of those that read it. A value of the program is one to read.
                if cast(Tensor, cast(ProducerLoad, factor).producer).op not in self._forward or all(
                    self._known.find(self._sum, each) is not None for each, _ in found
                ):
                    yield from found
                    return
        yield inside, outside


def _element(node: PrimExpr) -> PrimExpr | None:
    """What an elementwise stage computes for the element that is read; None for another node."""
    if not isinstance(node, ProducerLoad) or not isinstance(node.producer, Tensor):
        return None
    op = node.producer.op
    if not isinstance(op, ComputeOp) or len(op.body) > 1 or isinstance(op.body[0], Reduce):
        return None
    axes = (axis.var for axis in op.axis)
    return substitute(op.body[0], dict(zip(axes, node.indices, strict=True)))


def _without_cancelling(
    terms: Sequence[tuple[Hashable, Product]],
) -> list[tuple[Hashable, Product]]:
    """The terms, each with a key of its sum, without those that are 0 together, when factors are
    written out that are quotients of sums, such as a mean."""
    groups: dict[Hashable, list[tuple[float, tuple[Hashable, Product]]]] = {}
    written: dict[Hashable, Product] = {}
    for key, each in terms:
        whole = _written_out(each, written)
        groups.setdefault(_key(whole), []).append((whole.number, (key, each)))
    made: list[tuple[Hashable, Product]] = []
    for group in groups.values():
        numbers = [number for number, _ in group]
        if abs(sum(numbers)) > _EQUAL * sum(map(abs, numbers)):
            made += [each for _, each in group]
    return made


def _like_terms(terms: Sequence[Product]) -> list[Product]:
    """Terms with the same factors as one."""
    made: dict[Hashable, Product] = {}
    for each in terms:
        key = _key(each)
        before = made.get(key)
        made[key] = each if before is None else replace(each, number=each.number + before.number)
    return [*made.values()]


def _key(product: Product) -> Hashable:
    return frozenset((key, power) for key, (_, power) in product.powers.items())


def _written_out(product: Product, known: dict[Hashable, Product]) -> Product:
    """A product with the elements that elementwise stages compute as products of their factors.
    `known` are the factors written out before, by their keys."""
    made = Product(product.number, {})
    for key, (factor, power) in product.powers.items():
        if key not in known:
            body = _element(factor)
            whole = None if body is None else _written_out(Products().of(body), known)
            if whole is None or not whole.number:
                whole = Product(1.0, {key: (factor, 1)})
            known[key] = whole
        for _ in range(abs(power)):
            made = made.times(known[key], 1 if power > 0 else -1)
    return made


# -- Known sums -----------------------------------------------------------------------------------


@final
@record()
class _Stage:
    """A sum that a stage computes: of `inside`, times `outside`. `anchor` is a read in it whose
    indices tell all axes of the stage and of its sum."""

    sum: _Sum
    inside: Product
    outside: Product
    anchor: ProducerLoad

    def at(self, load: ProducerLoad, wanted: _Sum, inside: Product) -> Product | None:
        """The sum of `inside` over the axes of `wanted` as a multiple of an element of this stage,
        where `load` is read as the anchor is; None if it is none."""
        axes = {axis.var for axis in (*self.sum.op.axis, *self.sum.axes)}
        place = dict[Var, PrimExpr]()
        if not all(
            _unified(mine, theirs, axes, place)
            for mine, theirs in zip(self.anchor.indices, load.indices, strict=True)
        ):
            return None
        pairs = {place[axis.var]: axis for axis in self.sum.axes}
        if pairs.keys() != {axis.var for axis in wanted.axes}:
            return None
        known = Analyzer()
        for axis in wanted.axes:
            mine, theirs = domain_of(axis), domain_of(pairs[axis.var])
            if not known.can_prove(e.equal(mine.min, theirs.min)) or not known.can_prove(
                e.equal(mine.extent, theirs.extent)
            ):
                return None
        for axis in wanted.op.axis:
            known.bind(axis.var, domain_of(axis))
        for axis in self.sum.op.axis:  # an element beyond the stage may be a sum, too
            index, domain = place[axis.var], domain_of(axis)
            if not known.can_prove(e.greater_equal(index, domain.min)) or not known.can_prove(
                e.less(index, domain.min + domain.extent)
            ):
                return None
        here = _substituted(self.inside, place)
        if here.powers.keys() != inside.powers.keys() or any(
            power != inside.powers[key][1] for key, (_, power) in here.powers.items()
        ):
            return None
        element = self.sum.op.output(0)(*(place[axis.var] for axis in self.sum.op.axis))
        return factor_of(element).times(_substituted(self.outside, place), -1)


def _unified(
    mine: PrimExpr, theirs: PrimExpr, axes: Collection[Var], place: dict[Var, PrimExpr]
) -> bool:
    """Whether an index is another one for some values of `axes`, which are added to `place`: that
    of ``i * 8 + k`` by its form, and any axis by itself."""
    if isinstance(mine, Var) and mine in axes:
        return structural_key(place.setdefault(mine, theirs)) == structural_key(theirs)
    if set(axes).isdisjoint(walk_once(mine)):
        return structural_key(mine) == structural_key(theirs)
    if type(mine) is not type(theirs):
        return False
    pairs = zip(children(mine), children(theirs), strict=True)
    return all(_unified(a, b, axes, place) for a, b in pairs)


def _substituted(product: Product, values: Mapping[Var, PrimExpr]) -> Product:
    made = Product(product.number, {})
    for factor, power in product.powers.values():
        here = substitute(factor, values)
        made = made.times(Product(1.0, {structural_key(here): (here, power)}))
    return made


@final
class _Known:
    """The sums that stages compute, by the tensors that they read."""

    def __init__(self) -> None:
        self._by_tensor: dict[object, list[_Stage]] = {}
        self._learned: set[Operation] = set()

    def learn(self, op: Operation) -> None:
        """Adds the sums that an operation computes, and those that it reads."""
        for each in (op, *(tensor.op for tensor in op.input_tensors)):
            if each not in self._learned:
                self._learned.add(each)
                found = _plain_sum_of(each)
                if found is not None:
                    self._learn(found)

    def _learn(self, found: _Sum) -> None:
        inside, outside = found.parts(Products().of(found.value))
        axes = {axis.var for axis in (*found.op.axis, *found.axes)}
        for load in _loads(inside):
            if axes <= set(find(Var, *load.indices)) and outside.number:
                stage = _Stage(found, inside, outside, load)
                self._by_tensor.setdefault(load.producer, []).append(stage)
                return

    def find(self, wanted: _Sum, inside: Product) -> Product | None:
        """The sum of `inside` over the axes of `wanted` by an element of a stage; None if no stage
        computes it."""
        if not inside.powers:
            return _count(wanted)
        for load in _loads(inside):
            for each in self._by_tensor.get(load.producer, ()):
                found = each.at(load, wanted, inside)
                if found is not None:
                    return found
        return None


def _loads(product: Product) -> Iterable[ProducerLoad]:
    factors = [factor for factor, _ in product.powers.values()]
    return find(ProducerLoad, *factors)


def _count(total: _Sum) -> Product:
    """The number of terms."""
    made = Product(1.0, {})
    for axis in total.axes:
        made = made.times(Products().of(e.cast(total.value.dtype, domain_of(axis).extent)))
    return made
