"""Finds tensors that a program reads without effect on its outputs: shifts that cancel.

The maximum of a softmax keeps its exponentials small. Any other number gives the same result::

    e[i, j] = exp(x[i, j] - top[i])     top[i] + d:   e is multiplied by exp(-d)
    s[i]    = sum(e[i, j], j)                         so is s
    y[i, j] = e[i, j] / s[i]                          y stays

So the adjoint of `top` is 0. The effect of a shift is followed from stage to stage: a value grows
by a multiple of the shift, is multiplied by the exponential of a multiple, or stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, isclose, log
from typing import cast, final

from minitvm.runtime.record import record
from minitvm.te.autodiff.functions import number
from minitvm.te.tensor import ComputeOp, Operation, Tensor, domain_of, tensor_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import Call, PrimExpr, ProducerLoad, Reduce, Var, const_int
from minitvm.tir.functor import find, substitute, walk_once
from minitvm.tir.structural_equal import structural_equal

_EXPONENTIALS = {"exp": 1.0, "exp2": log(2.0), "exp10": log(10.0)}
_LOGARITHMS = {"log": 1.0, "log2": log(2.0), "log10": log(10.0)}


@final
@record()
class _Change:
    """The change of a value when each element ``T[p]`` grows by ``d[p]``.

    Attributes
    ----------
    added
        The value grows by this multiple of ``d[place]``.
    scaled
        The value is multiplied by the exponential of this multiple of ``d[place]``.
    place
        The indices of the element.
    """

    added: float
    scaled: float
    place: tuple[PrimExpr, ...]


_STAYS = _Change(0.0, 0.0, ())


class _Unknown(Exception):
    """Raised where the change isn't known."""


def cancels(tensor: Tensor, results: Collection[Tensor], order: Sequence[Operation]) -> bool:
    """Whether no result changes where each element of a tensor grows by a number of its own.

    Parameters
    ----------
    results
        The outputs of a program.
    order
        The program's operations, each after those that it reads.
    """
    axes = cast(ComputeOp, tensor.op).axis
    place = tuple(
        e.const(0, axis.var.dtype) if const_int(domain_of(axis).extent) == 1 else axis.var
        for axis in axes
    )
    changes = {tensor: _Change(1.0, 0.0, place)}
    try:
        for op in order:
            if op is not tensor.op and any(each in changes for each in op.input_tensors):
                _follow(op, changes)
    except _Unknown:
        return False
    return changes.keys().isdisjoint(results)


def _follow(op: Operation, changes: dict[Tensor, _Change]) -> None:
    """Adds the tensors of an operation, if they change."""
    if not isinstance(op, ComputeOp):
        raise _Unknown
    first = op.body[0]
    bounds = [domain_of(axis) for axis in (*op.axis, *op.reduce_axis)]
    step = _Step(changes)
    if any(map(step.reads, [end for dom in bounds for end in (dom.min, dom.extent)])):
        raise _Unknown
    if isinstance(first, Reduce):
        found = [_reduced(first, step)]
    else:
        found = list(map(step.change, op.body))
    own = {axis.var for axis in op.axis}
    for tensor, change in zip(op.outputs, found, strict=True):
        if change.added or change.scaled:
            if not set(find(Var, *change.place)) <= own:
                raise _Unknown  # such as a sum over elements that change differently
            changes[tensor] = change


def _reduced(reduce: Reduce, step: _Step) -> _Change:
    if len(reduce.source) > 1 or reduce.init or step.reads(reduce.condition):
        raise _Unknown
    found = step.change(reduce.source[0])
    keeps = (e.Max, e.Min) if found.added else (e.Add, e.Max, e.Min)
    if found == _STAYS or is_operator(reduce.combiner, *keeps):
        return found
    raise _Unknown


@final
class _Step:
    """The expressions of a stage."""

    def __init__(self, changes: Mapping[Tensor, _Change]) -> None:
        self._changes = changes
        self._known: dict[PrimExpr, _Change] = {}

    def reads(self, node: PrimExpr) -> bool:
        """Whether an expression reads anything that changes."""
        return any(
            isinstance(each, ProducerLoad) and each.producer in self._changes
            for each in walk_once(node)
        )

    def change(self, node: PrimExpr) -> _Change:
        if node not in self._known:
            self._known[node] = self._find(node) if self.reads(node) else _STAYS
        return self._known[node]

    def _find(self, node: PrimExpr) -> _Change:
        match node:
            case ProducerLoad():
                return self._loaded(node)
            case e.Add(a, b):
                return self._sum(a, b, 1.0)
            case e.Sub(a, b):
                return self._sum(a, b, -1.0)
            case e.Mul(a, b):
                return self._product(a, b, 1.0)
            case e.Div(a, b):
                return self._product(a, b, -1.0)
            case e.Max(a, b) | e.Min(a, b):
                return self._same(a, b)
            case e.Select(condition, a, b) | Call(op="if_then_else", args=(condition, a, b)):
                if not self.reads(condition):
                    return self._same(a, b)
            case e.Cast(_, value) if node.dtype.is_float:
                return self.change(value)
            case Call(op=name, args=(x,)) if name in _EXPONENTIALS or name in _LOGARITHMS:
                return self._function(name, self.change(x))
        raise _Unknown

    def _loaded(self, load: ProducerLoad) -> _Change:
        if any(map(self.reads, load.indices)):
            raise _Unknown
        op = cast(ComputeOp, tensor_of(load).op)
        at = dict(zip((axis.var for axis in op.axis), load.indices, strict=True))
        change = self._changes[tensor_of(load)]
        return replace(change, place=tuple(substitute(each, at) for each in change.place))

    def _sum(self, x: PrimExpr, y: PrimExpr, sign: float) -> _Change:
        a, b = self.change(x), self.change(y)
        if a.scaled or b.scaled:
            return self._same(x, y)
        return _made(a.added + sign * b.added, 0.0, a, b)

    def _product(self, x: PrimExpr, y: PrimExpr, sign: float) -> _Change:
        a, b = self.change(x), self.change(y)
        if not a.added and not b.added:
            return _made(0.0, a.scaled + sign * b.scaled, a, b)
        for mine, factor in ((a, number(y)), (b, number(x) if sign > 0 else None)):
            if mine.added and factor:
                return replace(mine, added=mine.added * factor**sign)
        raise _Unknown

    def _same(self, x: PrimExpr, y: PrimExpr) -> _Change:
        """The change of one of two values, or of the sum of values that are multiplied."""
        a, b = self.change(x), self.change(y)
        for mine, other, constant in ((a, b, number(y)), (b, a, number(x))):
            # 0 times anything is 0, and minus infinity grows by nothing.
            if other == _STAYS and constant == (0.0 if mine.scaled else -inf):
                return mine
        if not isclose(a.added, b.added) or not isclose(a.scaled, b.scaled):
            raise _Unknown
        return _made(a.added, a.scaled, a, b)

    def _function(self, name: str, x: _Change) -> _Change:
        if name in _EXPONENTIALS and not x.scaled:
            return replace(x, added=0.0, scaled=x.added * _EXPONENTIALS[name])
        if name in _LOGARITHMS and not x.added:
            return replace(x, added=x.scaled / _LOGARITHMS[name], scaled=0.0)
        raise _Unknown


def _made(added: float, scaled: float, a: _Change, b: _Change) -> _Change:
    """A change that combines the changes `a` and `b`. If both change, they must depend on the same
    element."""
    if _STAYS not in (a, b) and not structural_equal(a.place, b.place):
        raise _Unknown
    if isclose(added, 0.0, abs_tol=1e-12) and isclose(scaled, 0.0, abs_tol=1e-12):
        return _STAYS
    return _Change(added, scaled, (b if a == _STAYS else a).place)
