"""Copies of tensors that are read at functions of sums of axes, with a dimension for each sum.

A window with wrapped borders reads ``A[(y + k) % n]``. Its copy ``P[t] = A[t % n]`` is read at
``P[y + k]``, as the image of any convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias, final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.guarded_reads import element_of
from minitvm.te.schedules.rewrite_operations import ReadAt, SpellOut, map_body
from minitvm.te.tensor import ComputeOp, Tensor, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Var, const
from minitvm.tir.functor import Mutator, rebuild, substitute, walk_once

_Sum: TypeAlias = tuple[tuple[Var, int], ...]
"""The axes of a sum, and their factors, in the order of a stage's axes."""


@final
@record()
class _Place:
    """A sum of axes as a dimension: its bounds, and the variable that stands for it in the copy."""

    low: int
    high: int
    var: Var


def read_by_sums(
    tensor: Tensor, reader: ComputeOp, name: str, which: int | None, dtype: DType
) -> tuple[Tensor, ComputeOp]:
    """A copy, with a dtype, of the elements of a tensor that `reader` reads, with a dimension for
    each sum of axes on which an index depends; and `reader` reading the copy."""
    op = replace(reader, body=map_body(reader.body, SpellOut().expr))
    element = element_of(op, tensor, which, dtype)
    where = f"cache_access of {tensor.name}"
    sums = _Sums(where, element.axes)
    for load in _loads(element.copied, tensor):  # the tensor's dimensions first, in order
        sums.descend(load)
    copied = sums.expr(element.copied)
    places = sums.places
    _check_inside(where, copied, tensor, [*places.values()])
    extents = [const(each.high - each.low + 1) for each in places.values()]
    own = data_axes([each.var.name for each in places.values()], extents)
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
        for axis in axes:
            self._prover.bind(axis.var, domain_of(axis))
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
        """A form that consists of axes alone, in terms of a place; None for any other form."""
        if not form.terms or not self._bounds.keys() >= form.terms.keys():
            return None
        by = {var: form.terms[var] for var in self._bounds if var in form.terms}
        sign = 1 if next(iter(by.values())) > 0 else -1
        found = tuple((var, sign * factor) for var, factor in by.items())
        if found not in self.places:
            ends = [[factor * end for end in self._bounds[var]] for var, factor in found]
            low, high = sum(map(min, ends)), sum(map(max, ends))
            name = "_".join(var.name for var, _ in found)
            self.places[found] = _Place(low, high, Var(name, found[0][0].dtype))
        return self.places[found].var * sign + form.constant


def _bounds_of(where: str, axis: IterVar) -> tuple[int, int]:
    low, extent = e.const_int(domain_of(axis).min), e.const_int(domain_of(axis).extent)
    if low is None or extent is None:
        raise CompileError(
            f"{where}: expected loops of constant ranges around sums of axes, got {axis.name} of "
            f"{domain_of(axis).extent} iterations: use cache_access with sums=False"
        )
    return low, low + extent - 1


def _spelled(found: _Sum) -> PrimExpr:
    first, *others = (var if factor == 1 else var * factor for var, factor in found)
    return sum(others, start=first)


def _loads(value: PrimExpr, tensor: Tensor) -> Iterator[ProducerLoad]:
    for each in walk_once(value):
        if isinstance(each, ProducerLoad) and each.producer is tensor:
            yield each


def _check_inside(where: str, copied: PrimExpr, tensor: Tensor, places: Sequence[_Place]) -> None:
    """Refuses a copy that reads outside of its tensor at places that no values of the axes
    reach."""
    known = Analyzer()
    for place in places:
        known.bind(
            place.var,
            Range.from_min_extent(
                const(place.low, place.var.dtype),
                const(place.high - place.low + 1, place.var.dtype),
            ),
        )
    value = copied
    while isinstance(value, e.Call) and value.op == "if_then_else":
        known.assume(value.args[0])
        value = value.args[1]
    for load in _loads(copied, tensor):
        for index, extent in zip(load.indices, tensor.shape, strict=True):
            if not known.can_prove(e.logical_and(index >= 0, index < extent)):
                raise CompileError(
                    f"{where}: expected an index that stays from 0 to below {extent} for all sums "
                    f"of axes, got {index}: use cache_access with sums=False"
                )
