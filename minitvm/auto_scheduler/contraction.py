"""Contractions: sums of products, recognised by their expression.

``C[d...] = sum over r... of f(A[...]) * g(B[...])``, where indices are affine in the axes: matrix
products in any layout, batched or not, matrix-vector products, convolutions. A schedule depends on
the axes that each factor reads, and on the strides along them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import final

from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.tensor import ComputeOp, Operation, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import walk_once

FAR = 1 << 20  # a distance that is not known when building: elements in different lines


@final
@record()
class Factor:
    """One factor of the products: the tensor that it reads, and for each axis the stride, in
    elements, of its reads along this axis (0: the same element; :data:`FAR`: not known). Of several
    tensors, the one with the most axes counts."""

    tensor: Tensor
    distance: Mapping[Var, int]

    def reads(self, axis: IterVar) -> bool:
        """Whether the factor's value depends on an axis."""
        return axis.var in self.distance

    def along(self, axis: IterVar) -> int:
        """The distance of neighbours along an axis, in elements."""
        return self.distance.get(axis.var, 0)


@final
@record()
class Contraction:
    """A stage that sums products of two factors.

    The last axis is the *column*: neighbours along it are neighbours in the result, vectors lie
    along it, and `b` is the factor that reads it. (Of sums along one axis, it is the last axis with
    more than one element, as for a matrix-vector product that is written as a matrix.) The axes
    that `a` alone reads are *rows*: along them, elements of `b` are used again.
    """

    op: ComputeOp
    a: Factor
    b: Factor

    @property
    def column(self) -> IterVar:
        return _column_of(self.op)

    @property
    def rows(self) -> tuple[IterVar, ...]:
        """The axes that `a` reads and `b` doesn't; none if `a` reads the column too."""
        if self.a.reads(self.column):
            return ()
        return tuple(x for x in self.op.axis if self.a.reads(x) and not self.b.reads(x))


def _column_of(op: ComputeOp) -> IterVar:
    """The last axis; of sums along one axis, the last one that has more than one element."""
    if len(op.reduce_axis) != 1:
        return op.axis[-1]
    several = (axis for axis in reversed(op.axis) if extent_of(axis) != 1)
    return next(several, op.axis[-1])


def extent_of(axis: IterVar) -> int | None:
    """The extent of an axis, None if it is symbolic."""
    assert axis.dom is not None
    return e.const_int(axis.dom.extent)


def all_loads(op: ComputeOp) -> Iterator[ProducerLoad]:
    """The reads of tensors in a stage."""
    return (each for body in op.body for each in walk_once(body) if isinstance(each, ProducerLoad))


def loads_of(op: ComputeOp, tensor: Tensor) -> list[ProducerLoad]:
    """The reads of a tensor in a stage."""
    return [each for each in all_loads(op) if each.producer is tensor]


def bytes_of(tensor: Tensor) -> int | None:
    """The size of a tensor, None if it is symbolic."""
    shape = [e.const_int(extent) for extent in tensor.shape]
    return None if None in shape else prod(each or 0 for each in shape) * tensor.dtype.itemsize


def contraction_of(op: Operation) -> Contraction | None:
    """A stage as a contraction; None if it is none. A sum of products is none if no element of a
    factor is used for several sums: ``sum(X[i, k] * X[i, k])``.

    >>> from minitvm import te
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 16), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> found = contraction_of(C.op)
    >>> i, j = C.op.axis
    >>> [(f.tensor.name, f.along(i), f.along(j), f.along(k)) for f in (found.a, found.b)]
    [('A', 4, 0, 1), ('B', 0, 1, 16)]
    """
    if not isinstance(op, ComputeOp) or len(op.body) != 1:
        return None
    body = op.body[0]
    if not isinstance(body, Reduce) or not _is_sum(body) or body.init:
        return None
    source = _without_casts(body.source[0])
    if not isinstance(source, e.Mul):
        return None
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    if 0 in map(extent_of, axes.values()):
        return None  # nothing is multiplied
    a, b = _factor(source.a, axes), _factor(source.b, axes)
    if a is None or b is None or all(a.reads(axis) and b.reads(axis) for axis in op.axis):
        return None  # no element of either factor is used again
    column = _column_of(op)
    if not b.reads(column):
        a, b = b, a
    made = Contraction(op, a, b)
    # The sums of a tile run side by side.
    is_even = {column, *made.rows[-1:]}.isdisjoint(uneven_axes(op))
    return made if b.reads(column) and is_even else None


def is_uneven(op: ComputeOp) -> bool:
    """Whether the length of a stage's sums depends on other axes, or on data."""
    return bool(uneven_axes(op) or read_by_ranges(op))


def uneven_axes(op: ComputeOp) -> set[IterVar]:
    """The axes on which the ranges of sums depend."""
    used = {each for each in walk_once(*_ends(op)) if isinstance(each, Var)}
    return {axis for axis in (*op.axis, *op.reduce_axis) if axis.var in used}


def _ends(op: ComputeOp) -> Iterator[PrimExpr]:
    for axis in op.reduce_axis:
        assert axis.dom is not None
        yield from (axis.dom.min, axis.dom.extent)


def _is_sum(reduce: Reduce) -> bool:
    combiner = reduce.combiner
    if len(combiner.result) != 1:
        return False
    result = combiner.result[0]
    pair = {combiner.lhs[0], combiner.rhs[0]}
    return isinstance(result, e.Add) and {result.a, result.b} == pair


def _without_casts(node: PrimExpr) -> PrimExpr:
    while isinstance(node, e.Cast):
        node = node.value
    return node


def _factor(node: PrimExpr, axes: Mapping[Var, IterVar]) -> Factor | None:
    """A factor and its strides; None if an index isn't affine in the axes."""
    found: list[Factor] = []
    for load in walk_once(node):
        if not isinstance(load, ProducerLoad) or not isinstance(load.producer, Tensor):
            continue
        distance = distances_of(load, axes)
        if distance is None:
            return None
        found.append(Factor(load.producer, distance))
    return max(found, key=lambda each: len(each.distance), default=None)


def distances_of(load: ProducerLoad, axes: Mapping[Var, IterVar]) -> dict[Var, int] | None:
    """The distance in memory, in elements, of neighbouring reads along each axis; None if an index
    isn't affine in the axes."""
    assert isinstance(load.producer, Tensor)
    distance: dict[Var, int] = {}
    step: int | None = 1
    for index, extent in reversed(list(zip(load.indices, load.producer.shape, strict=True))):
        coefficients = _affine(index, axes)
        if coefficients is None:
            return None
        for var, coefficient in coefficients.items():
            if coefficient:
                more = FAR if step is None else min(abs(coefficient) * step, FAR)
                distance[var] = distance.get(var, 0) + more
        known = e.const_int(extent)
        step = None if step is None or known is None else step * known
    return distance


def _affine(node: PrimExpr, axes: Mapping[Var, IterVar]) -> dict[Var, int] | None:
    """The coefficients of the axes in an index; None if the index is not affine in them."""
    match node:
        case Var():
            return {node: 1} if node in axes else {}
        case e.Cast():
            return _affine(node.value, axes)
        case e.Add() | e.Sub():
            sign = 1 if isinstance(node, e.Add) else -1
            return _sum(_affine(node.a, axes), _affine(node.b, axes), sign)
        case e.Mul():
            return _scaled(node.a, node.b, axes) or _scaled(node.b, node.a, axes)
        case e.FloorDiv() | e.FloorMod():
            return _coefficients_in_quotient(node, axes)
    return None if any(each in axes for each in _variables(node)) else {}


def _coefficients_in_quotient(node: PrimExpr, axes: Mapping[Var, IterVar]) -> dict[Var, int]:
    """The coefficients of the axes in a quotient or remainder, such as the group of a channel; 1
    for an axis inside of an atom."""
    prover = Prover()
    for axis in axes.values():
        if axis.dom is not None:
            prover.bind(axis.var, axis.dom)
    found: dict[Var, int] = {}
    for atom, coefficient in prover.affine(node).terms.items():
        for var in _variables(atom):
            if var in axes:
                found[var] = coefficient if atom is var else 1
    return found


def _sum(a: dict[Var, int] | None, b: dict[Var, int] | None, sign: int) -> dict[Var, int] | None:
    if a is None or b is None:
        return None
    return {var: a.get(var, 0) + sign * b.get(var, 0) for var in (*a, *b)}


def _scaled(value: PrimExpr, by: PrimExpr, axes: Mapping[Var, IterVar]) -> dict[Var, int] | None:
    """The coefficients of ``value * by`` where `by` doesn't depend on the axes."""
    if any(each in axes for each in _variables(by)):
        return None
    coefficients = _affine(value, axes)
    factor = e.const_int(by)
    if coefficients is None or not coefficients:
        return coefficients
    return {var: FAR if factor is None else each * factor for var, each in coefficients.items()}


def _variables(node: PrimExpr) -> Iterator[Var]:
    return (each for each in walk_once(node) if isinstance(each, Var))
