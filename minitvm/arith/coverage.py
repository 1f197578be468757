"""Proves that reads of a tensor together reach each of its elements.

While its axes run, a read at ``[i * 2 + k, j]`` reaches a box: along each dimension a comb, with
teeth at ``i * 2`` that are as wide as the extent of k. A comb whose teeth touch is an interval.
Boxes side by side are joined; in the end one box must hold the tensor. ``i // 4`` and ``i % 4``, in
reads of a reshaped tensor, count as two axes, the digits of i.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import INT64
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Range, Var
from minitvm.tir.functor import children, walk_once


@final
@record()
class Read:
    """A read at `indices`, in terms of axes that run over `ranges`."""

    indices: tuple[PrimExpr, ...]
    ranges: Mapping[Var, Range]


@final
@record()
class _Comb:
    """The integers ``begin + step * t + w`` for ``t < teeth`` and ``w < width``."""

    begin: Affine
    width: Affine
    step: Affine
    teeth: Affine


_Box = tuple[_Comb, ...]


class Coverage:
    """Proofs of coverage from facts about sizes.

    Attributes
    ----------
    prover
        Knows the sizes.
    wanted
        Extents of axes that the proofs assume to be at least 1, without being able to prove it.
    """

    def __init__(self, prover: Prover) -> None:
        self.prover = prover
        self.wanted: list[PrimExpr] = []

    def is_nonempty(self, extent: PrimExpr) -> bool:
        """Whether `extent` is at least 1, or is `wanted` to be."""
        form = self.prover.affine(extent)
        if self.prover.proves(form - 1):
            return True
        known = form.terms and all(
            not (isinstance(node, Var) and node.axis) and not isinstance(node, e.BufferLoad)
            for node in walk_once(extent)
        )
        if not known or not is_pure(extent):
            return False
        self.wanted.append(extent)
        self.prover.assume(e.greater_equal(extent, 1))
        return True

    def reach_all(self, domain: Sequence[Range], reads: Sequence[Read]) -> bool:
        """Whether `reads` surely reach each element of `domain`."""
        whole = [self._interval(range_) for range_ in domain]
        found = [self._box(read) for read in reads]
        boxes = [self._clipped(box, whole) for box in found if box is not None]
        while not any(self._is_all_of(box, whole) for box in boxes):
            joined = self._one_joined(boxes, whole)
            if joined is None:
                return False
            boxes = joined
        return True

    # -- Boxes ------------------------------------------------------------------------------------

    def _interval(self, range_: Range) -> _Comb:
        begin, extent = self.prover.affine(range_.min), self.prover.affine(range_.extent)
        return _Comb(begin, extent, Affine(), Affine({}, 1))

    def _is_all_of(self, box: _Box, whole: Sequence[_Comb]) -> bool:
        return all(
            _is_one(comb.teeth)
            and self.prover.proves(
                all_.begin - comb.begin, comb.begin + comb.width - all_.begin - all_.width
            )
            for comb, all_ in zip(box, whole, strict=True)
        )

    def _clipped(self, box: _Box, whole: Sequence[_Comb]) -> _Box:
        return tuple(map(self._clip, box, whole))

    def _clip(self, comb: _Comb, whole: _Comb) -> _Comb:
        """An interval cut to the domain, if the two surely overlap."""
        if not _is_one(comb.teeth):
            return comb
        begin, end = comb.begin, comb.begin + comb.width
        last = whole.begin + whole.width
        if not self.prover.proves(last - begin - 1, end - whole.begin - 1):
            return comb
        if self.prover.proves(whole.begin - begin):
            begin = whole.begin
        if self.prover.proves(end - last):
            end = last
        return replace(comb, begin=begin, width=end - begin)

    def _one_joined(self, boxes: Sequence[_Box], whole: Sequence[_Comb]) -> list[_Box] | None:
        """`boxes` with two that touch or overlap joined to one; None if there are none."""
        for one, other in permutations(boxes, 2):
            apart = [
                i for i, pair in enumerate(zip(one, other, strict=True)) if not self._same(*pair)
            ]
            if len(apart) > 1:
                continue
            rest = [each for each in boxes if each is not one and each is not other]
            if not apart:
                return [*rest, one]
            joined = self._joined(one[apart[0]], other[apart[0]])
            if joined is not None:
                made = (*one[: apart[0]], joined, *one[apart[0] + 1 :])
                return [*rest, self._clipped(made, whole)]
        return None

    def _same(self, a: _Comb, b: _Comb) -> bool:
        return self._same_form(a.begin, b.begin) and self._alike(a, b)

    def _alike(self, a: _Comb, b: _Comb) -> bool:
        return all(map(self._same_form, (a.width, a.step, a.teeth), (b.width, b.step, b.teeth)))

    def _same_form(self, a: Affine, b: Affine) -> bool:
        return a.same_as(b) or self.prover.proves(a - b, b - a)

    def _joined(self, low: _Comb, high: _Comb) -> _Comb | None:
        """The union of two combs, where `high` begins in `low` or right behind it, tooth by
        tooth."""
        if not self._same_form(low.step, high.step) or not self._same_form(low.teeth, high.teeth):
            return None
        offset = high.begin - low.begin
        if not self.prover.proves(offset, low.width - offset):
            return None
        if self.prover.proves(low.width - offset - high.width):
            return low
        if not self.prover.proves(offset + high.width - low.width):
            return None
        return self._closed(replace(low, width=offset + high.width))

    def _closed(self, comb: _Comb) -> _Comb:
        """A comb whose teeth touch as an interval."""
        if _is_one(comb.teeth) or not self.prover.proves(comb.width - comb.step):
            return comb
        width = comb.width + self.times(comb.step, comb.teeth - 1)
        return _Comb(comb.begin, width, Affine(), Affine({}, 1))

    # -- Indices ----------------------------------------------------------------------------------

    def _box(self, read: Read) -> _Box | None:
        """The box that a read reaches; None where it is unknown, or may be empty."""
        indices = _Indices(self, read)
        combs = []
        for index in read.indices:
            comb = indices.comb(index)
            if comb is None:
                return None
            combs.append(comb)
        return tuple(combs)

    def times(self, a: Affine, b: Affine) -> Affine:
        """The product of two forms."""
        for x, y in ((a, b), (b, a)):
            if not y.terms:
                return x * y.constant
        expression = self.prover.expression
        return self.prover.affine(expression(a, INT64) * expression(b, INT64))


class _Indices:
    """The indices of one read. Only one index uses each axis, or each digit of an axis: so the read
    reaches every element of the box that the indices' combs span."""

    def __init__(self, coverage: Coverage, read: Read) -> None:
        self._coverage = coverage
        self._prover = coverage.prover
        self._running = set(read.ranges)
        # The ranges of the axes that no index has used yet, and of their digits as the indices
        # contain them.
        self._left: dict[int, Range] = {}
        uses: dict[Var, list[_Digit]] = {}
        for digit in self._digits(read.indices):
            uses.setdefault(digit.axis, []).append(digit)
        for axis, digits in uses.items():
            self._left.update(self._taken_apart(read.ranges[axis], digits))

    def comb(self, index: PrimExpr) -> _Comb | None:
        """The values that an index takes; None where they are unknown."""
        terms: list[tuple[Affine, Affine, Affine]] = []
        base = self._gather(index, Affine({}, 1), terms)
        if base is None:
            return None
        width = Affine({}, 1)
        waiting: list[tuple[Affine, Affine]] = []
        for factor, low, count in terms:
            ends = self._coverage.times(factor, low), self._coverage.times(factor, low + count - 1)
            if self._prover.proves(factor - 1):
                base, step = base + ends[0], factor
            elif self._prover.proves(-factor - 1):
                base, step = base + ends[1], -factor
            else:
                return None
            waiting.append((step, count))
        while waiting:
            near = [each for each in waiting if self._prover.proves(width - each[0])]
            if not near:
                break
            waiting = [each for each in waiting if each is not near[0]]
            step, count = near[0]
            width = width + self._coverage.times(step, count - 1)
        if len(waiting) > 1:
            return None
        step, teeth = waiting[0] if waiting else (Affine(), Affine({}, 1))
        return _Comb(base, width, step, teeth)

    def _gather(
        self, index: PrimExpr, factor: Affine, terms: list[tuple[Affine, Affine, Affine]]
    ) -> Affine | None:
        """Adds the parts of an index that depend on axes to `terms`, as factor, least value and
        count; returns the sum of the other parts."""
        times = self._coverage.times
        if id(index) not in self._left:
            if self._stands_still(index):
                return times(factor, self._prover.affine(index))
            match index:
                case e.Add(a, b) | e.Sub(a, b):
                    sign = -1 if isinstance(index, e.Sub) else 1
                    first = self._gather(a, factor, terms)
                    second = self._gather(b, factor * sign, terms)
                    return None if first is None or second is None else first + second
                case e.Mul(a, b) if self._stands_still(b):
                    return self._gather(a, times(factor, self._prover.affine(b)), terms)
                case e.Mul(a, b) if self._stands_still(a):
                    return self._gather(b, times(factor, self._prover.affine(a)), terms)
                case e.Cast(dtype, value) if dtype.is_int and value.dtype.is_int:
                    return self._gather(value, factor, terms)
        interval = self._interval(index)
        if interval is None:
            return None
        terms.append((factor, *interval))
        return Affine()

    def _interval(self, index: PrimExpr) -> tuple[Affine, Affine] | None:
        """The least value and the number of values of a part of an index that takes every value
        between its bounds."""
        range_ = self._left.pop(id(index), None)
        if range_ is not None:
            if not self._coverage.is_nonempty(range_.extent):
                return None
            return self._prover.affine(range_.min), self._prover.affine(range_.extent)
        match index:
            case e.FloorDiv(a, b) | e.FloorMod(a, b) | e.Min(a, b) | e.Max(a, b):
                pass
            case _:
                return None
        if not self._stands_still(b):
            if isinstance(index, e.FloorDiv | e.FloorMod) or not self._stands_still(a):
                return None
            a, b = b, a
        comb = self.comb(a)
        if comb is None or not _is_one(comb.teeth):
            return None
        low, high, by = comb.begin, comb.begin + comb.width - 1, self._prover.affine(b)
        match index:
            case e.FloorDiv():
                if not self._prover.proves(by - 1):
                    return None
                low, high = (self._at(e.floordiv, each, b) for each in (low, high))
            case e.FloorMod():
                if not self._prover.proves(by - 1, comb.width - by):
                    return None
                low, high = Affine(), by - 1
            case e.Min():
                low, high = (self._at(e.minimum, each, b) for each in (low, high))
            case e.Max():
                low, high = (self._at(e.maximum, each, b) for each in (low, high))
        return low, high - low + 1

    def _at(self, function: object, form: Affine, other: PrimExpr) -> Affine:
        assert callable(function)
        value = self._prover.expression(form, INT64)
        return self._prover.affine(function(*e.promote(value, other)))

    def _stands_still(self, expr: PrimExpr) -> bool:
        if not is_pure(expr):
            return False
        return not any(node in self._running for node in walk_once(expr))

    # -- Digits -----------------------------------------------------------------------------------

    def _digits(self, indices: Sequence[PrimExpr]) -> Iterator[_Digit]:
        """The largest digits of axes in some indices; a digit that occurs twice is there twice."""
        waiting = list(indices)
        while waiting:
            index = waiting.pop()
            digit = self._digit(index)
            if digit is not None:
                yield digit
            elif not self._stands_still(index):
                waiting += children(index)

    def _digit(self, expr: PrimExpr) -> _Digit | None:
        match expr:
            case Var() if expr in self._running:
                return _Digit(expr, expr, Affine({}, 1), None)
            case e.FloorDiv(a, b) | e.FloorMod(a, b) if self._stands_still(b):
                whole, by = self._digit(a), self._prover.affine(b)
                if whole is None or whole.extent is not None or not self._prover.proves(by - 1):
                    return None
                if isinstance(expr, e.FloorMod):
                    return replace(whole, node=expr, extent=by)
                return replace(whole, node=expr, low=self._coverage.times(whole.low, by))
            case e.Cast(dtype, value) if dtype.is_int and value.dtype.is_int:
                whole = self._digit(value)
                return None if whole is None else replace(whole, node=expr)
        return None

    def _taken_apart(self, range_: Range, digits: Sequence[_Digit]) -> dict[int, Range]:
        """The range of each digit of an axis, if the digits are independent; else nothing."""
        if len(digits) == 1:
            return {id(digits[0].axis): range_}
        if self._prover.affine(range_.min).terms or e.const_int(range_.min) != 0:
            return {}
        size, reached = self._prover.affine(range_.extent), Affine({}, 1)
        waiting, made = list(digits), dict[int, Range]()
        expression = self._prover.expression
        while waiting:
            following = [each for each in waiting if each.low.same_as(reached)]
            if not following:
                return {}
            digit = following[0]
            waiting = [each for each in waiting if each is not digit]
            extent = digit.extent
            if extent is None:
                if waiting:
                    return {}
                divided = e.floordiv(expression(size, INT64), expression(reached, INT64))
                made[id(digit.node)] = Range(0, divided)
                return made
            made[id(digit.node)] = Range(0, expression(extent, INT64))
            reached = self._coverage.times(reached, extent)
        return made if self._prover.proves(size - reached) else {}


@final
@record()
class _Digit:
    """``axis // low % extent``, without an `extent` ``axis // low``, as an index contains it."""

    node: PrimExpr
    axis: Var
    low: Affine
    extent: Affine | None


def _is_one(teeth: Affine) -> bool:
    return not teeth.terms and teeth.constant == 1
