"""Copies of tensors that are read at functions of sums of axes, with a dimension for each sum.

A window with wrapped borders reads ``A[(y + k) % n]``. Its copy ``P[t] = A[t % n]`` is read at
``P[y + k]``, as the image of any convolution.

Where `n` is symbolic and zero, the reader has no iterations, but the copy may have elements. They
are zero, so that none is read from an empty tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TypeAlias, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.guarded_reads import element_of
from minitvm.te.schedules.rewrite_operations import (
    ReadAt,
    SpellOut,
    check_fixed,
    is_fixed,
    map_body,
)
from minitvm.te.tensor import ComputeOp, Tensor, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir.arithmetic import maximum
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Var, const
from minitvm.tir.functor import Mutator, mentions, rebuild, substitute, walk_once

_Sum: TypeAlias = tuple[tuple[Var, int], ...]
"""The axes of a sum, and their factors, in the order of a stage's axes."""


@final
@record()
class _Place:
    """A sum of axes as a dimension: its least value, the number of its values, and the variable
    that stands for it in the copy."""

    low: PrimExpr
    extent: PrimExpr
    var: Var


def read_by_sums(
    tensor: Tensor, reader: ComputeOp, name: str, which: int | None, dtype: DType
) -> tuple[Tensor, ComputeOp]:
    """A copy, with a dtype, of the elements of a tensor that `reader` reads, with a dimension for
    each sum of axes on which an index depends; and `reader` reading the copy."""
    op = replace(reader, body=map_body(reader.body, SpellOut().expr))
    element = element_of(op, tensor, which, dtype)
    where = f"cache_access of {tensor.name}"
    for axis in element.axes:
        check_fixed(where, op, axis, "use cache_read")
    sums = _Sums(where, element.axes)
    for load in _loads(element.copied, tensor):  # the tensor's dimensions first, in order
        sums.descend(load)
    changed = sums.expr(element.copied)
    places = sums.places
    copied = _inside(where, changed, tensor, places, op)
    names = [each.var.name for each in places.values()]
    own = data_axes(names, [each.extent for each in places.values()])
    begin = {
        place.var: axis.var + place.low for place, axis in zip(places.values(), own, strict=True)
    }
    copy = ComputeOp(name, "", {}, own, (), (substitute(copied, begin),)).output(0)
    at = tuple(_spelled(each) - place.low for each, place in places.items())
    read = ReadAt(element.value, ProducerLoad(copy, at))
    return copy, replace(op, body=map_body(op.body, read.expr))


class _Sums(Mutator):
    """Replaces the largest sums of axes by the variables of places."""

    def __init__(self, where: str, axes: Sequence[IterVar]) -> None:
        super().__init__()
        self._bounds = {axis.var: _bounds_of(where, axis) for axis in axes}
        self._prover = Prover()
        self._sizes = Analyzer()
        for axis in axes:
            self._prover.bind(axis.var, domain_of(axis))
            self._sizes.bind_size(domain_of(axis).extent)
        self.places: dict[_Sum, _Place] = {}

    def expr(self, node: PrimExpr) -> PrimExpr:
        if isinstance(node, e.Comparison) and node.a.dtype.is_int and node.a.dtype.lanes == 1:
            difference = self._replaced(self._prover.affine(node.a) - self._prover.affine(node.b))
            if difference is not None:
                return rebuild(node, {"a": difference, "b": const(0, difference.dtype)})
        if node.dtype.is_int and node.dtype.lanes == 1:
            made = self._replaced(self._prover.affine(node))
            if made is not None:
                return e.cast(node.dtype, made)
        return super().expr(node)

    def _replaced(self, form: Affine) -> PrimExpr | None:
        """A form of axes, and of terms that are the same for all iterations, by a place; None for
        any other form."""
        by = {var: form.terms[var] for var in self._bounds if var in form.terms}
        others = [(atom, factor) for atom, factor in form.terms.items() if atom not in by]
        if not by or any(self._may_change(atom) for atom, _ in others):
            return None
        sign = 1 if next(iter(by.values())) > 0 else -1
        found = tuple((var, sign * factor) for var, factor in by.items())
        if found not in self.places:
            self.places[found] = self._place(found)
        place = self.places[found].var * sign + form.constant
        return sum((atom * factor for atom, factor in others), start=place)

    def _may_change(self, atom: PrimExpr) -> bool:
        return reads_tensors(atom) or any(mentions(var, atom) for var in self._bounds)

    def _place(self, found: _Sum) -> _Place:
        zero = const(0, found[0][0].dtype)
        low = high = zero
        for var, factor in found:
            ends = [end * factor for end in self._bounds[var]]
            low, high = low + ends[int(factor < 0)], high + ends[int(factor > 0)]
        extent = self._sizes.simplify(high - low + 1)
        if not self._sizes.can_prove(extent >= 0):
            extent = maximum(extent, zero)
        name = "_".join(var.name for var, _ in found)
        return _Place(self._sizes.simplify(low), extent, Var(name, zero.dtype))


def _bounds_of(where: str, axis: IterVar) -> tuple[PrimExpr, PrimExpr]:
    low, extent = domain_of(axis).min, domain_of(axis).extent
    if e.const_int(low) is None:
        raise CompileError(
            f"{where}: expected loops that begin at constants around sums of axes, got {axis.name} "
            f"from {low}: use cache_access with sums=False"
        )
    return low, low + extent - 1


def _spelled(found: _Sum) -> PrimExpr:
    first, *others = (var if factor == 1 else var * factor for var, factor in found)
    return sum(others, start=first)


def _loads(value: PrimExpr, tensor: Tensor) -> Iterator[ProducerLoad]:
    for each in walk_once(value):
        if isinstance(each, ProducerLoad) and each.producer is tensor:
            yield each


def _inside(
    where: str,
    copied: PrimExpr,
    tensor: Tensor,
    places: Mapping[_Sum, _Place],
    op: ComputeOp,
) -> PrimExpr:
    """The value of a copy that reads no element outside of its tensor unless the reader does, nor
    any where the reader has no iterations."""
    known = Analyzer()
    for place in places.values():
        known.bind(place.var, Range.from_min_extent(place.low, place.extent))
    outside = _outside(copied, tensor, known)
    axes = [
        axis for axis in (*op.axis, *op.reduce_axis) if e.const_int(domain_of(axis).extent) is None
    ]
    some = [domain_of(axis).extent > 0 for axis in axes if is_fixed(op, axis)]
    if outside and some:
        for each in some:
            known.assume(each)
        outside = _outside(copied, tensor, known)
        holds, zero = reduce(e.logical_and, some), const(0, copied.dtype)
        copied = e.intrinsic("if_then_else", copied.dtype, holds, copied, zero)
    if outside and not (axes and len(some) == len(axes) and _are_all_reached(places)):
        index, extent = outside[0]
        raise CompileError(
            f"{where}: expected an index that stays from 0 to below {extent} for all sums "
            f"of axes, got {index}: use cache_access with sums=False"
        )
    return copied


def _are_all_reached(sums: Iterable[_Sum]) -> bool:
    """Whether sums take all combinations of values between their least and greatest ones."""
    terms = list(chain.from_iterable(sums))
    is_apart = len({var for var, _ in terms}) == len(terms)
    return is_apart and all(abs(factor) == 1 for _, factor in terms)


def _outside(copied: PrimExpr, tensor: Tensor, known: Analyzer) -> list[tuple[PrimExpr, PrimExpr]]:
    """The indices that may leave a tensor at some places, each with the extent."""
    with known.scope():
        value = copied
        while is_lazy(value):
            known.assume(value.args[0])
            value = value.args[1]
        return [
            (index, extent)
            for load in _loads(copied, tensor)
            for index, extent in zip(load.indices, tensor.shape, strict=True)
            if not known.can_prove(e.logical_and(index >= 0, index < extent))
        ]
