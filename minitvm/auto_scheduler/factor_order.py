"""The order of the sums over a product of several factors.

::

    D[i, j] = sum(A[i, k] * B[k, l] * C[l, j], (k, l))       # n^4 steps

    D.sums[i, l] = sum(A[i, k] * B[k, l], k)                 # n^3 steps, twice
    D[i, j] = sum(D.sums[i, l] * C[l, j], l)

Axes are summed over one group after the other. The remaining sums depend on the set of the axes
that are done, not on their order. So the search is exact: the best way from each set is found once
(dynamic programming, as for the order of a chain of products).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from math import prod
from typing import TypeAlias, final

from minitvm.arith.guards import conjuncts
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import elements_of, extent_of
from minitvm.auto_scheduler.loops import compute_of
from minitvm.runtime.errors import CompileError
from minitvm.target import Target
from minitvm.te.schedules.distribute_sums import distributed, has_terms, times_of
from minitvm.te.schedules.factors import factors_in
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar, PrimExpr, Reduce
from minitvm.tir.functor import walk_once

_MOST = 10  # reduction axes of a search
_TOGETHER = 6  # reduction axes up to which groups of several axes are tried: 3^6 pairs of sets
_SIZE = 128  # taken for an axis of symbolic extent
_GAIN = 1.25  # the factor in cycles from which on another stage pays

_Axes: TypeAlias = frozenset[IterVar]
_Groups: TypeAlias = tuple[_Axes, ...]


def write_factor_order(
    s: Schedule, stage: Stage, target: Target, strict: bool
) -> list[Stage] | None:
    """Lets other stages compute inner sums of a stage, in the order that takes the fewest cycles;
    returns them. None for a stage that is best as it is, or whose sums have an order (`strict`)."""
    if strict or stage.time is not None:
        return None
    groups = _groups_of(compute_of(stage), target)
    made = list[Stage]()
    for group in groups:
        names = ", ".join(axis.name for axis in group)
        text = "the sums over {axes} are done first, of the factors that change along them: that "
        text += "takes fewer operations"
        choose(s, "factors", text, stage=stage.name, axes=names)
        made.append(s[s.factor_out(compute_of(stage).output(0), group)])
    return made or None


def _groups_of(op: ComputeOp, target: Target) -> list[list[IterVar]]:
    """The axes of the sums that are done first, group after group."""
    if not 0 < len(op.reduce_axis) <= _MOST or 0 in map(extent_of, (*op.axis, *op.reduce_axis)):
        return []
    times, reduce = times_of(op), op.body[0]
    if times is None or not isinstance(reduce, Reduce):
        return []
    factors = [_axes_of(op, each) for each in factors_in(reduce.source[0], times)]
    if len(factors) < 2:
        return []
    conditions = [_axes_of(op, each) for each in conjuncts(reduce.condition)]
    search = _Search(op, target, [each for each in conditions if each])
    _, groups = search.best(frozenset(op.reduce_axis), [each for each in factors if each])
    listed = [[axis for axis in op.reduce_axis if axis in group] for group in groups]
    try:
        for group in listed:
            _, op = distributed(op, group)
    except CompileError:  # results would be others
        return []
    return listed


def _axes_of(op: ComputeOp, node: PrimExpr) -> _Axes:
    used = {*walk_once(node)}
    return frozenset(axis for axis in (*op.axis, *op.reduce_axis) if axis.var in used)


@final
class _Search:
    """The search for the best order of the sums of an operation."""

    def __init__(self, op: ComputeOp, target: Target, conditions: Sequence[_Axes]) -> None:
        self._op, self._data = op, frozenset(op.axis)
        self._conditions = conditions
        self._target = target
        self._dtype = op.body[0].dtype
        self._found: dict[_Axes, tuple[float, _Groups]] = {}
        tensors = [*op.outputs, *op.input_tensors]
        sizes = [
            _SIZE**each.ndim if (known := elements_of(each)) is None else known for each in tensors
        ]
        # The sums kept between two steps are no larger than the largest tensor of the program.
        self._largest = max(*sizes, target.cache_bytes(2) // self._dtype.itemsize)

    def best(self, left: _Axes, factors: Sequence[_Axes]) -> tuple[float, _Groups]:
        """The cycles of the sums over the axes `left`, and the groups in which these are done."""
        if left not in self._found:
            self._found[left] = self._search(left, factors)
        return self._found[left]

    def _search(self, left: _Axes, factors: Sequence[_Axes]) -> tuple[float, _Groups]:
        if not left:
            return self._cycles(self._data, factors), ()
        best = self._cycles(self._data | left, factors), _Groups()
        for group in self._next(left):
            inside = [each for each in factors if each & group]
            outside = [each for each in factors if not each & group]
            if not inside or not outside or not has_terms(self._op, group):
                continue
            kept = self._kept(group, inside)
            if _size(kept) > self._largest or (group == left and not _is_used_again(inside, kept)):
                continue
            rest, groups = self.best(left - group, [*outside, kept])
            here = self._cycles(kept | group, inside)
            # The sums of a tile pass to the stage that reads them in registers.
            moved = 0.0 if group == left else self._moving(kept)
            if (here + moved + rest) * _GAIN < best[0]:
                best = here + moved + rest, (group, *groups)
        return best

    def _next(self, left: _Axes) -> Iterator[_Axes]:
        """The axes that may be done next, the smallest groups first."""
        axes, most = [axis for axis in self._op.reduce_axis if axis in left], len(left)
        sizes = range(1, most + 1) if len(self._op.reduce_axis) <= _TOGETHER else {1, most}
        return (frozenset(group) for size in sizes for group in combinations(axes, size))

    def _kept(self, group: _Axes, inside: Sequence[_Axes]) -> _Axes:
        conditions = [each for each in self._conditions if each & group]
        return frozenset(chain(*inside, *conditions)) - group

    def _cycles(self, axes: _Axes, factors: Sequence[_Axes]) -> float:
        """The cycles of the products of some factors, and of their sum: while the factors come from
        the caches that hold them, or no less than the arithmetic."""
        arithmetic = _size(axes) * max(1, len(factors) - 1) / self._target.lanes(self._dtype)
        sizes = [_size(each) * self._dtype.itemsize for each in factors]
        levels = zip(sizes, map(self._target.level_of, sizes), strict=True)
        far = [size / self._target.bytes_per_cycle(level) for size, level in levels if level > 1]
        return max(arithmetic, sum(far))

    def _moving(self, kept: _Axes) -> float:
        """The cycles in which kept sums are stored and read again."""
        size = _size(kept) * self._dtype.itemsize
        level = max(2, self._target.level_of(size))
        return 2.0 * size / self._target.bytes_per_cycle(level)


def _is_used_again(inside: Sequence[_Axes], kept: _Axes) -> bool:
    """Whether elements of factors are used for several sums, which then stay in registers."""
    return any(kept - each for each in inside)


def _size(axes: Iterable[IterVar]) -> int:
    return prod(_SIZE if (extent := extent_of(axis)) is None else extent for axis in axes)
