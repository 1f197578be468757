"""Splits loops where guards begin or cease to hold, so that the main part needs no guards."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from math import gcd
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.guards import (
    clipped,
    cutting,
    is_symbolic,
    limits,
    quotient,
)
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.scopes import ScopedMutator, prover_of
from minitvm.arith.simplify import Simplifier
from minitvm.arith.work import code_size, statements_run
from minitvm.runtime.dtype import BOOL
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import IntImm, PrimExpr, Var
from minitvm.tir.functor import Mutator, contains, find, mentions, substitute, with_fields
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, seq, with_body
from minitvm.transform.fused_loops import by_digits, divisor_of
from minitvm.transform.loop_conditions import CONDITIONAL, Conditions, Hold, Use, Uses
from minitvm.transform.transpose_copies import ends_of_blocks

# The most statements that a function may grow to, copies in unrolled loops included. Past it guards
# stay where they are: correct, and slower.
MAX_STATEMENTS = 2048

# A guard around less than this part of a loop's work costs less than a second loop.
_LITTLE = 32
_CHOICES = 4  # that follow each other, each of which gets a main part
_MOST = 7 / 8  # of a loop's iterations
_CHOSEN = 1 / 2  # of a parallel loop's iterations; a loop inside is partitioned if fewer hold
# Without registers for masks, a store under a mask takes as long as this number of vector
# multiply-adds: 42 operations of Zen 3 (A. Fog, "Instruction tables", VMASKMOVPS), and a branch for
# each lane on NEON.
_MASKED = 32
_WRITTEN_OUT = 256  # statements at most
_FEW = 64  # values of a form beyond an end of a range of unknown size

HINT = "pragma_loop_partition_hint"


@final
@record()
class LoopPartitionOptions:
    """``tir.LoopPartition`` of classic TVM.

    `partition_const_loop` and `no_unroll_loop_with_extent_one` are accepted and change nothing:
    loops of constant extent are partitioned like others, and a loop with one iteration becomes its
    body, which is never slower. `unroll_loop_with_partition_hint_no_interval` unrolls a hinted loop
    of constant extent in which there is nothing to partition.
    """

    partition_const_loop: bool = False
    no_unroll_loop_with_extent_one: bool = False
    unroll_loop_with_partition_hint_no_interval: bool = False


def partition_loops(
    func: PrimFunc, options: LoopPartitionOptions | None = None, *, mask_registers: bool = False
) -> PrimFunc:
    """Runs the iterations in which a guard surely holds without it.

    Before::

        for io in range((n + 15) // 16):
            for ii in range(16):
                if likely(io * 16 + ii < n):
                    B[io * 16 + ii] = A[io * 16 + ii]

    After::

        for io in range(n // 16):
            for ii in range(16):
                B[io * 16 + ii] = A[io * 16 + ii]
        for io in range(n // 16, (n + 15) // 16):
            for ii in range(min(16, n - io * 16)):
                B[io * 16 + ii] = A[io * 16 + ii]

    The guards are the conditions of ifs without an else case, of ``if_then_else`` and ``Select``,
    or their negations if these hold more often; on a loop with ``pragma_loop_partition_hint`` every
    condition. Guards are linear comparisons of loop variables and sizes; all other conditions stay
    untouched. So a check beside a choice, as ``if not c: assert d``, is part of the choice by `c`.
    The condition under which a clamp, a remainder or a quotient in an index is linear
    (:mod:`minitvm.arith.piecewise`) is a guard as well.

    Each loop gets at most one main part. The head and the tail are not partitioned again, only
    clipped, so that k nested loops make k + 1 copies rather than 2**k. There are four exceptions: a
    tail of a single iteration whose number is known, so that more is constant in it; two iterations
    in which vectors have different masks, and which therefore have no main part; a tail as long as
    an eighth of the loop behind a choice or a piece of an index, where the other branch or piece
    holds; and a tail of unknown length behind a choice, where the negation holds, so that both
    cases get a main part.

    A PARALLEL loop is not split: a second region would be forked and joined, with less work than
    threads. It chooses between both copies in each iteration; so does a loop whose guard is not
    linear in its variable, as the variable of fused loops. If only the last iteration needs the
    second copy, the iteration's number replaces the variable in it, and the loops inside are
    partitioned like any others; so are the loops of a second copy in which a choice fails. A
    PARALLEL loop that was fused from two, the inner one of constant extent, is partitioned like the
    two loops, the inner one inside of the outer one.

    A loop over blocks of tiles stays whole if a guard fails in several of its blocks, or in an
    unknown number of them. The loop over tiles inside is split instead: its tail is shorter, and
    few columns of a symbolic extent, which fill no block, run without guards.

    `mask_registers`: the target holds the masks of vectors in registers, so that stores under masks
    cost no more than others.
    """
    masked = 1 if mask_registers else _MASKED
    return with_body(
        func, _Partition(func, options or LoopPartitionOptions(), masked).stmt(func.body)
    )


Bound = tuple[Affine, int]  # floor(form / divisor)


@final
@record()
class _Region:
    """The iterations of a loop in which some of its conditions surely hold.

    The conditions `held` hold from the greatest of `lows` (inclusive) to the least of `highs`
    (exclusive). The conditions `chosen` hold in an iteration in which `rows` are at least zero.
    """

    held: list[PrimExpr]
    lows: list[Bound]
    highs: list[Bound]
    chosen: list[PrimExpr]
    rows: list[Affine]
    uses: Uses


class _Partition(ScopedMutator):
    """Goes down the loops, the outermost first."""

    changes = (*CONDITIONAL, s.AttrStmt)

    def __init__(self, func: PrimFunc, options: LoopPartitionOptions, masked: int) -> None:
        super().__init__(prover_of(func))
        self._options = options
        self._forms = Conditions(self._prover, masked)
        for each in find((e.Let, s.LetStmt), func.body):
            match each:
                case s.LetStmt(value=value) if self._forms.can_name(value):
                    pass
                case e.Let(var=var) | s.LetStmt(var=var):  # unknown outside of its scope
                    self._prover.bind_data(var)
        self._budget = MAX_STATEMENTS - code_size(func.body)
        self._hinted = False
        self._is_behind_piece = False
        self._failed: Set[PrimExpr] = frozenset()  # conditions that hold in none of the iterations

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        if node.attr_key == HINT:
            self._hinted = e.const_int(node.value) != 0
            return Mutator.stmt(self, node.body)  # a hint concerns a loop without conditions, too
        return self.descend(node)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        with self._forms.naming(node.var, node.value):
            return super().visit_LetStmt(node)

    def visit_For(self, node: s.For) -> Stmt:
        hinted, self._hinted = self._hinted, False
        shorter = _clipped(self._prover, node)
        if shorter is not node:
            return self.stmt(shorter)
        region = None
        if all(map(self._prover.is_index_arithmetic, (node.min, node.extent))):
            with self.in_loop(node):
                region = self._region(node, hinted)
        divisor = None if region is None else divisor_of(self._prover, node)
        if divisor is not None:
            return by_digits(self._prover, node, divisor, self.stmt)
        made = None if region is None else self._partition(node, region)
        return self._whole(node, hinted) if made is None else made

    def _whole(self, node: s.For, hinted: bool) -> Stmt:
        unrolls = hinted and self._options.unroll_loop_with_partition_hint_no_interval
        unrolls = unrolls and e.const_int(node.extent) is not None
        kind = ForKind.UNROLLED if unrolls else node.kind
        return with_fields(node, body=self._inside(node, node.body), kind=kind)

    def _inside(self, node: s.For, body: Stmt) -> Stmt:
        with self.in_loop(node):
            return self.stmt(body)

    def _partition(self, node: s.For, region: _Region) -> Stmt | None:
        if node.kind != ForKind.PARALLEL:
            return self._split(node, region)
        return with_fields(node, body=self._choose(node, region, node.body))

    # -- Where the conditions hold --

    def _region(self, node: s.For, hinted: bool) -> _Region | None:
        """The iterations in which conditions of the loop surely hold; None where partitioning
        doesn't pay."""
        if node.kind in (ForKind.VECTORIZED, ForKind.THREAD_BINDING) or e.const_int(
            node.extent
        ) in (0, 1):
            return None
        if not contains(CONDITIONAL, node.body):
            return None
        if code_size(node.body) > self._budget:
            return None
        work = statements_run(node.body)
        found = self._forms.uses(node, hinted)
        region = _Region([], [], [], [], [], found)
        uses = _of_the_most(self._prover, node, found.conditions, self._failed)
        if node.kind == ForKind.PARALLEL:
            blocks = ends_of_blocks(node.body)
            uses = {
                each: use
                for each, use in uses.items()
                if each not in blocks or not any(is_symbolic(self._prover, row) for row in use.rows)
            }
        for condition, use in uses.items():
            if use.work * _LITTLE > work:
                self._classify(node, condition, use, region)
        # A condition that follows from the others costs nothing.
        region.chosen.extend(
            condition
            for condition, use in uses.items()
            if use.work * _LITTLE <= work and all(_follows(row, region.rows) for row in use.rows)
        )
        if node.kind == ForKind.UNROLLED and region.chosen:
            return None
        return region if region.held or region.chosen else None

    def _classify(self, node: s.For, condition: PrimExpr, use: Use, region: _Region) -> None:
        var = node.loop_var
        if any(not row.terms and row.constant < 0 for row in use.rows):
            return
        rows = [row for row in use.rows if row.terms]
        composite = [self._forms.is_composite_in(row, var) for row in rows]
        if not all(var in row.terms or mixed for row, mixed in zip(rows, composite, strict=True)):
            return  # it belongs to another loop
        mostly = not any(composite) and all(_mostly_holds(node, row) for row in rows)
        if use.in_tiles and not mostly:
            return  # the loop over tiles is split instead, since its tail is shorter
        if any(composite) or (rows and node.kind == ForKind.PARALLEL):
            share = _share(node, rows)
            is_rare = share is not None and share < _CHOSEN
            if use.in_a_loop and not is_rare:  # that loop then has no condition
                region.chosen.append(condition)
                region.rows.extend(rows)
            return
        region.held.append(condition)
        for row in rows:
            coefficient = row.terms[var]
            rest = row - Affine({var: coefficient})
            if coefficient > 0:
                _add(region.lows, (-rest + (coefficient - 1), coefficient), keep=1)
            else:
                _add(region.highs, (rest - coefficient, -coefficient), keep=-1)

    # -- Splitting --

    def _split(self, node: s.For, region: _Region) -> Stmt | None:
        """The loop's head, main part and tail; None if there is no main part."""
        end = node.min + node.extent
        first, last = self._ends(node, region, end)
        lanes = _lanes(node.body)
        masked = any(mentions(lane, *region.held) for lane in lanes)
        if _is_empty(first, last):
            return self._apart(node) if masked else None
        parts = ((node.min, first), (last, end))
        known = [e.const_int(each) for part in parts for each in part]
        if node.kind == ForKind.UNROLLED and None in known:
            return None
        sizes = [0 if _is_empty(*part) else code_size(node.body) for part in parts]
        if sum(sizes) > self._budget:
            return None
        self._budget -= sum(sizes)
        extent = e.cast(node.loop_var.dtype, last - first)
        hold = Hold(region.uses, region.held)
        main = with_fields(node, min=first, extent=extent)
        body = self._choose(main, region, hold.stmt(node.body))
        head, tail = (self._edge(node, *part, region, masked) for part in parts)
        return seq(head, with_fields(main, body=body), tail)

    def _apart(self, node: s.For) -> Stmt | None:
        """Two iterations, each by itself, where one mask fails in the first and another in the
        second; None for any other loop."""
        begin, size = e.const_int(node.min), 2 * code_size(node.body)
        if begin is None or e.const_int(node.extent) != 2 or node.kind != ForKind.SERIAL:
            return None
        if size > min(_WRITTEN_OUT, self._budget):
            return None
        self._budget -= size
        places = (e.const(begin + i, node.loop_var.dtype) for i in range(2))
        return seq(*(self._inside(node, substitute(node.body, {node.loop_var: i})) for i in places))

    def _ends(self, node: s.For, region: _Region, end: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The begin and the end of the main part: inside the loop, in this order.

        For a loop of negative extent, both are one of its own ends.
        """
        first, last = node.min, end
        for bound in region.lows:
            value = self._clamped(bound, node, end)
            first = value if first is node.min else e.maximum(first, value)
        for bound in region.highs:
            value = self._clamped(bound, node, end, above_begin=not region.lows)
            last = value if last is end else e.minimum(last, value)
        if first is node.min or last is end:
            return first, last
        return first, e.maximum(first, last)

    def _clamped(
        self, bound: Bound, node: s.For, end: PrimExpr, above_begin: bool = True
    ) -> PrimExpr:
        """A bound, moved into the range of the loop, or just below its end."""
        form, divisor = bound
        low, high = self._prover.affine(node.min), self._prover.affine(end)
        value = quotient(self._prover, form, divisor, node.loop_var.dtype)
        above_begin = above_begin or value.dtype != node.loop_var.dtype  # so that the value fits
        if above_begin and not self._prover.proves(form - low * divisor):
            value = e.maximum(value, node.min)
        if not self._prover.proves(high * divisor + (divisor - 1) - form):
            value = e.minimum(value, end)
        return e.cast(node.loop_var.dtype, value)

    def _edge(
        self, node: s.For, begin: PrimExpr, end: PrimExpr, region: _Region, masked: bool
    ) -> Stmt:
        """The iterations at an end of a loop, with their guards. `masked`: a guard holds for some
        lanes of a vector."""
        if _is_empty(begin, end):
            return seq()
        extent = e.cast(node.loop_var.dtype, end - begin)
        body, uses = node.body, region.uses
        if e.const_int(extent) == 1 and isinstance(begin, IntImm):
            return self._inside(node, substitute(body, {node.loop_var: begin}))
        # Where these fail, an iteration has as much work as the others.
        divides = {each for each in region.held if uses.conditions[each].divides}
        count, iterations = e.const_int(extent), e.const_int(node.extent)
        # An edge that is the whole loop has a main part of no iteration, though nothing tells so.
        is_long = count and iterations and iterations * (1 - _MOST) < count < iterations
        if divides and is_long:
            return self.visit_For(with_fields(node, min=begin, extent=extent))
        ending = self._ending(region, divides)
        opposites = set(uses.opposites(ending))
        if count is None and divides and not opposites and not self._is_behind_piece:
            self._is_behind_piece = True
            made = self.visit_For(with_fields(node, min=begin, extent=extent))
            self._is_behind_piece = False
            return made
        if count is None and opposites and self._failed.isdisjoint(ending | opposites):
            outside, self._failed = self._failed, self._failed | set(uses.opposites(opposites))
            made = self.visit_For(with_fields(node, min=begin, extent=extent))
            self._failed = outside
            return made
        if masked and node.kind == ForKind.SERIAL:
            count = e.const_int(Simplifier(self._prover).expr(extent)) or 0
            if 0 < count * code_size(body) <= min(_WRITTEN_OUT, self._budget):
                return self._written_out(node, begin, count)
        edge = with_fields(node, min=begin, extent=extent, body=_Clip(self._prover).stmt(body))
        return clipped(self._prover, edge, cutting(self._prover, edge))

    def _ending(self, region: _Region, held: Set[PrimExpr]) -> Set[PrimExpr]:
        """Those of some conditions of choices that end the main part: none that hold because others
        failed before, nor those that go on where others end."""
        if len(held) > _CHOICES:  # parts for each would be too many
            return held
        uses = region.uses
        ending = {each for each in held if self._failed.isdisjoint(uses.opposites({each}))}
        rows = {each: uses.conditions[each].rows for each in ending}

        def follows(one: PrimExpr, other: PrimExpr) -> bool:
            pairs = (any(self._prover.proves(a - b) for b in rows[other]) for a in rows[one])
            return one is not other and all(pairs)

        return {
            each
            for each in ending
            if not any(follows(each, other) and not follows(other, each) for other in ending)
        }

    def _opposites(self, region: _Region, rows: Sequence[Affine]) -> list[PrimExpr]:
        """The negations of chosen conditions that surely hold where the only row is negative, if
        there is as much work where the conditions fail."""
        if len(rows) != 1:
            return []
        uses = region.uses
        divides = {each for each in region.chosen if uses.conditions[each].divides}
        return [
            each
            for each in uses.opposites(divides)
            if all(_holds_below(row, rows[0]) for row in uses.conditions[each].rows)
        ]

    def _written_out(self, node: s.For, begin: PrimExpr, count: int) -> Stmt:
        """A few iterations, written out. Their masks are constants and need no registers, while a
        loop would take registers from the sums of the main part."""
        self._budget -= count * code_size(node.body)
        var = Var(node.loop_var.name, node.loop_var.dtype)
        body = Simplifier(self._prover).stmt(substitute(node.body, {node.loop_var: begin + var}))
        return with_fields(
            node,
            loop_var=var,
            min=e.const(0, var.dtype),
            extent=e.const(count, var.dtype),
            body=_Clip(self._prover).stmt(body),
            kind=ForKind.UNROLLED,
        )

    def _choose(self, node: s.For, region: _Region, body: Stmt) -> Stmt:
        """`body` without the chosen conditions where they all hold in this iteration."""
        hold = Hold(region.uses, region.chosen)
        main = self._inside(node, hold.stmt(body))
        if not region.rows:
            return main
        self._budget -= code_size(body)
        rows: list[Affine] = []
        for row in region.rows:
            if not any(row.same_as(other) for other in rows):
                rows.append(row)
        tests = [self._forms.at_least_zero(row) for row in rows]
        # The condition has a name: the fact that one of these conditions fails helps the simplifier
        # little and costs it much.
        full = Var("full", BOOL)
        last = _only_last(node, rows)
        opposites = self._opposites(region, rows)
        if opposites:
            rest = self._inside(node, Hold(region.uses, opposites).stmt(body))
        elif last is None:
            rest = _Clip(self._prover).stmt(body)
        else:
            rest = self._inside(node, substitute(body, {node.loop_var: last}))
        choice = s.IfThenElse(full, main, rest)
        return s.LetStmt(full, functools.reduce(e.And, tests), choice)


def _follows(row: Affine, rows: Sequence[Affine]) -> bool:
    """Whether a form is surely at least zero where all `rows` are."""
    differences = (row - other for other in rows)
    return any(not each.terms and each.constant >= 0 for each in differences)


def _holds_below(row: Affine, other: Affine) -> bool:
    """Whether a form is surely at least zero where another one is negative, as `8 * i - 64` is
    where `63 - 8 * i`, or `56 - 8 * i`, is."""
    total, step = row + other, gcd(*other.terms.values())
    return not total.terms and bool(step) and total.constant + step - other.constant % step >= 0


def _mostly_holds(node: s.For, row: Affine) -> bool:
    """Whether a form that is linear in the loop's variable is surely at least zero in most
    iterations."""
    share = _share(node, (row,))
    return share is not None and share >= _MOST


def _share(node: s.For, rows: Iterable[Affine]) -> float | None:
    """The part of a loop's iterations in which all `rows` are at least zero; None if it is
    unknown."""
    begin, extent = e.const_int(node.min), e.const_int(node.extent)
    if begin is None or not extent:
        return None
    first, last = begin, begin + extent
    for row in rows:
        coefficient = row.terms.get(node.loop_var, 0)
        if len(row.terms) != (coefficient != 0):
            return None
        if coefficient > 0:
            first = max(first, -(row.constant // coefficient))
        elif coefficient < 0:
            last = min(last, row.constant // -coefficient + 1)
        elif row.constant < 0:
            return 0.0
    return max(0, last - first) / extent


def _of_the_most(
    prover: Prover, node: s.For, conditions: Mapping[PrimExpr, Use], failed: Set[PrimExpr]
) -> dict[PrimExpr, Use]:
    """For each condition of a choice, the condition or its negation, whichever holds more often.
    The conditions of `failed` hold nowhere."""
    made = dict(conditions)
    for negation, use in conditions.items():
        if use.negates is None:
            continue
        holds, fails = (_share(node, each.rows) for each in (conditions[use.negates], use))
        if holds is not None and fails is not None:
            is_rare = holds < fails
        else:
            rows = conditions[use.negates].rows
            is_rare = _has_few(prover, rows) and not _has_few(prover, use.rows)
        if not failed.isdisjoint((negation, use.negates)):
            is_rare = use.negates in failed
        made.pop(use.negates if is_rare else negation, None)
    return made


def _has_few(prover: Prover, rows: Iterable[Affine]) -> bool:
    """Whether few values of forms of symbolic size are surely at least zero."""
    return any(is_symbolic(prover, row) and prover.proves(-row + _FEW) for row in rows)


def _only_last(node: s.For, rows: Sequence[Affine]) -> IntImm | None:
    """The last iteration, if it is the only one in which a row is negative; otherwise None."""
    begin, extent = e.const_int(node.min), e.const_int(node.extent)
    if begin is None or extent is None or any(set(row.terms) != {node.loop_var} for row in rows):
        return None
    last = begin + extent - 1
    coefficients = [row.terms[node.loop_var] for row in rows]
    before = [
        row.constant + factor * (last - 1) for row, factor in zip(rows, coefficients, strict=True)
    ]
    if any(factor > 0 for factor in coefficients) or min(before) < 0:
        return None
    return IntImm(node.loop_var.dtype, last)


def _clipped(prover: Prover, node: s.For) -> s.For:
    """A loop clipped to the limits that its guards set exactly, without these guards."""
    if node.kind in (ForKind.VECTORIZED, ForKind.THREAD_BINDING):
        return node
    if not (is_pure(node.min) and is_pure(node.extent)):
        return node
    exact = [limit for limit in limits(prover, node) if limit.guards]
    return clipped(prover, node, exact)


class _Clip(Mutator):
    """Clips every loop of a statement. It needs no facts about these loops, since it proves
    nothing."""

    def __init__(self, prover: Prover) -> None:
        super().__init__()
        self._prover = prover

    def visit_For(self, node: s.For) -> Stmt:
        made = _clipped(self._prover, node)
        if made.kind == ForKind.SERIAL and e.const_int(made.extent) is not None:
            made = clipped(self._prover, made, cutting(self._prover, made))
        return self.descend(made)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        return self.stmt(node.body) if node.attr_key == HINT else self.descend(node)


def _add(bounds: list[Bound], bound: Bound, keep: int) -> None:
    """Adds a bound; of two bounds that differ by a constant, it keeps the greater with a `keep` of
    1, and the lesser with -1."""
    form, divisor = bound
    for place, (other, its_divisor) in enumerate(bounds):
        difference = form - other
        if divisor == its_divisor and not difference.terms:
            if difference.constant * keep > 0:
                bounds[place] = bound
            return
    bounds.append(bound)


def _lanes(body: Stmt) -> list[Var]:
    """The variables of the vectors in a statement."""
    loops = find(s.For, body)
    return [each.loop_var for each in loops if each.kind == ForKind.VECTORIZED]


def _is_empty(begin: PrimExpr, end: PrimExpr) -> bool:
    """Whether the range is known to be empty."""
    low, high = e.const_int(begin), e.const_int(end)
    return begin is end or (low is not None and high is not None and low >= high)
