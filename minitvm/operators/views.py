"""Gradients that are views of the gradients of outputs, as those of a concatenation are its slices.

The gradient of an input to which an operator only moves elements has no elements of its own. As a
view, it costs neither memory nor time, however large it is::

    Y[i, j] = A[i, j] if j < 5 else B[i, j - 5]       dA = dY[:, :5]      dB = dY[:, 5:]
    Y[i] = sum(A[i, k], k)                            dA[i, k] = dY[i]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, final

from minitvm.arith.prover import Prover
from minitvm.runtime.record import record
from minitvm.te.schedules.views import viewed_by
from minitvm.te.tensor import ComputeOp, Tensor, domain_of
from minitvm.tir.expr import PrimExpr, ProducerLoad, Var, const_int
from minitvm.tir.structural_equal import structural_equal


@final
@record()
class View:
    """A view of an array.

    Attributes
    ----------
    place
        The array's place among others.
    index
        The index that takes the elements; None for a view in another shape.
    order
        For each axis of the view, the dimension that the index leaves, or None: along the axis, the
        elements are repeated.
    shape
        The extents of the view; -1 for one that the index leaves.
    """

    place: int
    index: tuple[slice | int, ...] | None
    order: tuple[int | None, ...]
    shape: tuple[int, ...]

    def taker(self) -> Callable[[Sequence[Any]], Any]:
        """The function that takes the view of one of some arrays, tensors of torch."""
        place, index, shape = self.place, self.index, self.shape
        if index is None:
            return lambda arrays: arrays[place].reshape(shape)
        order = [each for each in self.order if each is not None]
        if order == sorted(order) and len(order) == len(self.order):
            is_whole = all(each == slice(None) for each in index)
            return itemgetter(place) if is_whole else lambda arrays: arrays[place][index]
        wide = tuple(None if each is None else slice(None) for each in self.order)
        return lambda arrays: arrays[place][index].permute(order)[wide].expand(shape)


def view_of(tensor: Tensor, arrays: Sequence[Tensor]) -> View | None:
    """A tensor as a view of one of some arrays; None for a tensor that isn't a view of them.

    >>> from minitvm import te
    >>> A = te.placeholder((4, 8), name="A")
    >>> view_of(te.compute((8, 3), lambda i, j: A[j + 1, i]), [A])
    View(place=0, index=(slice(1, 4, 1), slice(None, None, None)), order=(1, 0), shape=(-1, -1))
    """
    op = tensor.op
    if not isinstance(op, ComputeOp) or len(op.body) > 1:
        return None
    (load,) = op.body
    if not isinstance(load, ProducerLoad) or load.producer not in arrays:
        return None
    array = load.producer
    place = [each is array for each in arrays].index(True)
    found = _slices(op, load)
    if found is not None:
        index, order = found
        pairs = zip(tensor.shape, order, strict=True)
        repeated = (const_int(extent) if at is None else -1 for extent, at in pairs)
        shape = [each for each in repeated if each is not None]
        return View(place, index, order, tuple(shape)) if len(shape) == tensor.ndim else None
    shape = [x for x in map(const_int, tensor.shape) if x is not None]
    is_reshaped = viewed_by(op) is array and len(shape) == tensor.ndim
    return View(place, None, (), tuple(shape)) if is_reshaped else None


def _slices(
    op: ComputeOp, load: ProducerLoad
) -> tuple[tuple[slice | int, ...], tuple[int | None, ...]] | None:
    """The slices that an operation takes of an array, and the dimension that is left for each of
    its axes; None for an index that isn't one of a slice."""
    known, axes = Prover(), {axis.var: axis for axis in op.axis}
    index: list[slice | int] = []
    dimension: dict[Var, int] = {}
    for each, extent in zip(load.indices, load.producer.shape, strict=True):
        form = known.affine(each)
        if not form.terms:
            index.append(form.constant)
            continue
        (var, step), *more = form.terms.items()
        if more or step < 1 or not isinstance(var, Var) or var not in axes or var in dimension:
            return None
        dimension[var] = len(dimension)
        part = _slice(domain_of(axes[var]).extent, form.constant, step, extent)
        if part is None:
            return None
        index.append(part)
    return tuple(index), tuple(dimension.get(axis.var) for axis in op.axis)


def _slice(count: PrimExpr, begin: int, step: int, extent: PrimExpr) -> slice | None:
    """`count` elements of a dimension; None where the end isn't known."""
    if begin == 0 and step == 1 and structural_equal(count, extent):
        return slice(None)
    size = const_int(count)
    return None if size is None else slice(begin, begin + step * size, step)
