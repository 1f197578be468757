"""Loops split where their guards begin or cease to hold."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import final

from minitvm.arith.atoms import is_pure, structural_key
from minitvm.arith.linear import Affine, Atom
from minitvm.arith.prover import Prover
from minitvm.arith.work import code_size, iterations, statements_run
from minitvm.runtime.dtype import BOOL, INT64, DType
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Call, IntImm, PrimExpr, Var, const
from minitvm.tir.functor import Mutator, children, free_vars, substitute, walk_once
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, seq, with_body

# Statements that a function may grow to, those of unrolled loops counted as often as they stand in
# the machine code. Past it guards stay where they are: right, and slower.
MAX_STATEMENTS = 2048

# A guard that is asked in less than this part of a loop's work costs less than a second loop.
_LITTLE = 32
_MOST = 7 / 8  # of a loop's iterations

# A greater bound is one of a dtype, and says nothing about the program.
_LARGEST = 1 << 30

HINT = "pragma_loop_partition_hint"


@final
@record()
class LoopPartitionOptions:
    """``tir.LoopPartition`` of classic TVM.

    `partition_const_loop` and `no_unroll_loop_with_extent_one` are accepted and change nothing:
    loops of constant extent are partitioned as others are, and a loop that runs once becomes its
    body, which is never slower. `unroll_loop_with_partition_hint_no_interval` unrolls a hinted loop
    of constant extent in which there is nothing to partition.
    """

    partition_const_loop: bool = False
    no_unroll_loop_with_extent_one: bool = False
    unroll_loop_with_partition_hint_no_interval: bool = False


def partition_loops(func: PrimFunc, options: LoopPartitionOptions | None = None) -> PrimFunc:
    """The iterations in which a guard surely holds run without it.

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

    The guards are ``likely`` conditions and those of ``if_then_else`` and ``Select``; on a loop
    with ``pragma_loop_partition_hint`` every condition. They are linear comparisons of loop
    variables and sizes; all others stay untouched.

    Each loop gets at most one main part: what is left over at its ends is not partitioned again,
    only clipped, so that k nested loops make k + 1 copies rather than 2**k; but for a single
    iteration whose number is known, in which more is constant. A PARALLEL loop is not
    split, since two regions would be forked and joined, the second with less work than threads: it
    chooses between both copies in each iteration, as does a loop whose guard is no linear function
    of its variable (that of fused loops). Where only the last iteration is left for the second
    copy, its number stands there, and the loops inside are partitioned as any others.

    A loop over blocks of tiles stays whole if a guard fails in several of its blocks: the loop over
    tiles inside is split, of which fewer are left over.
    """
    return with_body(func, _Partition(func, options or LoopPartitionOptions()).stmt(func.body))


Bound = tuple[Affine, int]  # floor(form / divisor)


@final
@record()
class _Region:
    """Where some conditions of a loop surely hold.

    `held`: these hold from the greatest of `lows` (inclusive) to the least of `highs` (exclusive).
    `chosen`: these hold in an iteration in which `rows` are at least zero.
    """

    held: list[PrimExpr]
    lows: list[Bound]
    highs: list[Bound]
    chosen: list[PrimExpr]
    rows: list[Affine]


class _Partition(Mutator):
    """Goes down the loops, the outermost first."""

    def __init__(self, func: PrimFunc, options: LoopPartitionOptions) -> None:
        super().__init__()
        self._options = options
        self._prover = Prover()
        self._prover.bind_sizes(func.buffer_map.values())
        self._forms = _Forms(self._prover, func.body)
        self._budget = MAX_STATEMENTS - code_size(func.body)
        self._hinted = False

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        if node.attr_key == HINT:
            self._hinted = e.const_int(node.value) != 0
            return self.stmt(node.body)
        return self.descend(node)  # type: ignore[no-any-return]  # an AttrStmt again

    def visit_For(self, node: s.For) -> Stmt:
        hinted, self._hinted = self._hinted, False
        clipped = self._forms.clip(node)
        if clipped is not node:
            return self.stmt(clipped)
        with self._prover.scope():
            region = self._region(node, hinted) if self._forms.bind(node) else None
        made = None if region is None else self._partition(node, region)
        return self._whole(node, hinted) if made is None else made

    def _whole(self, node: s.For, hinted: bool) -> Stmt:
        body = self._inside(node, node.body)
        unrolls = hinted and self._options.unroll_loop_with_partition_hint_no_interval
        unrolls = unrolls and e.const_int(node.extent) is not None
        return _loop(node, node.min, node.extent, body, ForKind.UNROLLED if unrolls else node.kind)

    def _inside(self, node: s.For, body: Stmt) -> Stmt:
        with self._prover.scope():
            self._forms.bind(node)
            return self.stmt(body)

    def _partition(self, node: s.For, region: _Region) -> Stmt | None:
        if node.kind != ForKind.PARALLEL:
            return self._split(node, region)
        return _loop(node, node.min, node.extent, self._choose(node, region, node.body))

    # -- Where the conditions hold --

    def _region(self, node: s.For, hinted: bool) -> _Region | None:
        """Where conditions of the loop surely hold; None where partitioning does not pay."""
        if node.kind in (ForKind.VECTORIZED, ForKind.THREAD_BINDING) or e.const_int(
            node.extent
        ) in (0, 1):
            return None
        if code_size(node.body) > self._budget:
            return None
        region = _Region([], [], [], [], [])
        work = statements_run(node.body)
        uses = self._forms.uses(node.body, hinted)
        for condition, use in uses.items():
            if use.work * _LITTLE > work:
                self._classify(node, condition, use, region)
        # What holds with the others, too, costs nothing more.
        region.chosen.extend(
            condition
            for condition, use in uses.items()
            if use.work * _LITTLE <= work and all(_follows(row, region.rows) for row in use.rows)
        )
        if node.kind == ForKind.UNROLLED and region.chosen:
            return None
        return region if region.held or region.chosen else None

    def _classify(self, node: s.For, condition: PrimExpr, use: _Use, region: _Region) -> None:
        var = node.loop_var
        if any(not row.terms and row.constant < 0 for row in use.rows):
            return
        rows = [row for row in use.rows if row.terms]
        composite = [self._forms.is_composite_in(row, var) for row in rows]
        if not all(var in row.terms or mixed for row, mixed in zip(rows, composite, strict=True)):
            return  # it belongs to another loop
        mostly = not any(composite) and all(_mostly_holds(node, row) for row in rows)
        if use.in_tiles and not mostly:
            return  # the loop over tiles is split: less is left over there
        if any(composite) or (rows and node.kind == ForKind.PARALLEL):
            if use.in_a_loop:  # which is then free of the condition
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
        if _is_empty(first, last):
            return None
        parts = ((node.min, first), (last, end))
        known = [e.const_int(each) for part in parts for each in part]
        if node.kind == ForKind.UNROLLED and None in known:
            return None
        sizes = [0 if _is_empty(*part) else code_size(node.body) for part in parts]
        if sum(sizes) > self._budget:
            return None
        self._budget -= sum(sizes)
        extent = e.cast(node.loop_var.dtype, last - first)
        body = self._choose(node, region, _Hold(self._forms, region.held).stmt(node.body))
        head, tail = (self._edge(node, *part) for part in parts)
        return seq(head, _loop(node, first, extent, body), tail)

    def _ends(self, node: s.For, region: _Region, end: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where the main part begins and ends: inside the loop, in this order.

        Of a loop of negative extent, both are one of its own ends.
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
        value = self._forms.quotient(bound, node.loop_var.dtype)
        above_begin = above_begin or value.dtype != node.loop_var.dtype  # so that it fits
        if above_begin and not self._prover.proves(form - low * divisor):
            value = e.maximum(value, node.min)
        if not self._prover.proves(high * divisor + (divisor - 1) - form):
            value = e.minimum(value, end)
        return e.cast(node.loop_var.dtype, value)

    def _edge(self, node: s.For, begin: PrimExpr, end: PrimExpr) -> Stmt:
        """The iterations at an end of a loop, with their guards."""
        if _is_empty(begin, end):
            return seq()
        extent = e.cast(node.loop_var.dtype, end - begin)
        body = node.body
        if e.const_int(extent) == 1 and isinstance(begin, IntImm):
            return self._inside(node, substitute(body, {node.loop_var: begin}))
        return _loop(node, begin, extent, _Clip(self._forms).stmt(body))

    def _choose(self, node: s.For, region: _Region, body: Stmt) -> Stmt:
        """`body` without the chosen conditions where they all hold in this iteration."""
        main = self._inside(node, _Hold(self._forms, region.chosen).stmt(body))
        if not region.rows:
            return main
        self._budget -= code_size(body)
        rows: list[Affine] = []
        for row in region.rows:
            if not any(row.same_as(other) for other in rows):
                rows.append(row)
        tests = [self._forms.at_least_zero(row) for row in rows]
        # By a name: that "one of these fails" tells the simplifier little, and costs it much.
        full = Var("full", BOOL)
        last = _only_last(node, rows)
        if last is None:
            rest = _Clip(self._forms).stmt(body)
        else:
            rest = self._inside(node, substitute(body, {node.loop_var: last}))
        choice = s.IfThenElse(full, main, rest)
        return s.LetStmt(full, functools.reduce(e.And, tests), choice)


def _follows(row: Affine, rows: Sequence[Affine]) -> bool:
    """Whether a form is at least zero where `rows` are."""
    differences = (row - other for other in rows)
    return any(not each.terms and each.constant >= 0 for each in differences)


def _mostly_holds(node: s.For, row: Affine) -> bool:
    """Whether a form, which is linear in the loop's variable, is at least zero in most iterations,
    as far as that is known."""
    begin, extent = e.const_int(node.min), e.const_int(node.extent)
    if begin is None or extent is None or set(row.terms) != {node.loop_var}:
        return True
    coefficient = row.terms[node.loop_var]
    ends = (row.constant + coefficient * each for each in (begin, begin + extent - 1))
    holds = extent - sum(max(0, -(end // abs(coefficient))) for end in ends)
    return holds >= extent * _MOST


def _only_last(node: s.For, rows: Sequence[Affine]) -> IntImm | None:
    """The last iteration, where it is the only one in which a row is negative."""
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


@final
@dataclass(slots=True)
class _Use:
    """What says that a condition holds wherever it stands in the body of a loop: `rows`, over
    what is known outside the loops in that body, are all at least zero."""

    rows: list[Affine] = field(default_factory=list)
    in_a_loop: bool = False
    in_tiles: bool = False  # of which a loop in that body has some, that hold it or do not
    work: int = 0  # what is done where it is asked


_Comparisons = dict[Hashable, list[PrimExpr]]  # by what they say
_NEVER = Affine({}, -1)
# By class, the factors of both sides and the constant of what is then at least zero.
_SIGNS: dict[type, tuple[int, int, int]] = {
    e.LT: (-1, 1, -1),
    e.LE: (-1, 1, 0),
    e.GT: (1, -1, -1),
    e.GE: (1, -1, 0),
}


class _Forms:
    """Conditions as affine forms, and as expressions again."""

    def __init__(self, prover: Prover, body: Stmt) -> None:
        self._prover = prover
        self._data = {each.var for each in walk_once(body) if isinstance(each, e.Let | s.LetStmt)}
        self._index_like: dict[PrimExpr, bool] = {}
        self._variables: dict[PrimExpr, frozenset[Var]] = {}
        self._choices: dict[PrimExpr, list[PrimExpr]] = {}
        self._commons: dict[Stmt, _Comparisons] = {}

    # -- Reading --

    def bind(self, node: s.For) -> bool:
        """Learns the range of a loop, if it is made of sizes and loop variables."""
        if not (self._is_index(node.min) and self._is_index(node.extent)):
            return False
        self._prover.bind_loop(node.loop_var, node.min, node.extent)
        return True

    def uses(self, body: Stmt, every: bool) -> dict[PrimExpr, _Use]:
        """The comparisons that are conditions in `body`; with `every`, of plain ifs, too."""
        found: dict[PrimExpr, _Use] = {}
        self._gather(body, (), every, found)
        return found

    def _gather(
        self, node: Stmt, inner: tuple[s.For, ...], every: bool, found: dict[PrimExpr, _Use]
    ) -> None:
        conditions: list[PrimExpr] = []
        if isinstance(node, s.IfThenElse) and (every or is_likely(node.condition)):
            conditions += _comparisons(node.condition)
        statements: list[Stmt] = []
        for child in children(node):
            if isinstance(child, PrimExpr):
                conditions += self.choices(child)
            else:
                statements.append(child)
        for condition in conditions:
            use = found.setdefault(condition, _Use())
            use.in_a_loop = use.in_a_loop or bool(inner)
            use.in_tiles = use.in_tiles or self._is_in_tiles(condition, inner)
            use.work += statements_run(node) * prod(iterations(loop) for loop in inner)
            use.rows.append(self._least(self.form(condition), inner))
        if not isinstance(node, s.For):
            for each in statements:
                self._gather(each, inner, every, found)
            return
        with self._prover.scope():
            if self._is_index(node.min) and self._is_index(node.extent):
                self._prover.bind_interval(node.loop_var, node.min, node.extent)
            self._gather(node.body, (*inner, node), every, found)

    def _is_in_tiles(self, condition: PrimExpr, inner: Sequence[s.For]) -> bool:
        loops = [each for each in inner if each.loop_var in self.variables(condition)]
        return len(loops) > 1 and loops[0].kind == ForKind.SERIAL

    def choices(self, node: PrimExpr) -> list[PrimExpr]:
        """The comparisons of the choices in an expression."""
        made = self._choices.get(node)
        if made is None:
            made = self._choices[node] = []
            for each in walk_once(node):
                if isinstance(each, e.Select):
                    made += _comparisons(each.condition)
                elif isinstance(each, Call) and each.op == "if_then_else":
                    made += _comparisons(each.args[0])
        return made

    def form(self, condition: PrimExpr) -> Affine:
        """What is at least zero where `condition`, a comparison, holds."""
        if not isinstance(condition, e.Comparison) or type(condition) not in _SIGNS:
            return _NEVER
        if not (self._is_index(condition.a) and self._is_index(condition.b)):
            return _NEVER
        of_a, of_b, constant = _SIGNS[type(condition)]
        a, b = self._prover.affine(condition.a), self._prover.affine(condition.b)
        return a * of_a + b * of_b + constant

    def _is_index(self, node: PrimExpr) -> bool:
        """Whether `node` is made of loop variables, sizes and numbers alone."""
        known = self._index_like.get(node)
        if known is None:
            known = self._index_like[node] = all(
                isinstance(each, _INDEX_NODES)
                and each.dtype.is_int
                and each.dtype.bits >= 32
                and each.dtype.lanes == 1
                and each not in self._data
                for each in walk_once(node)
            )
        return known

    def _least(self, form: Affine, inner: Sequence[s.For]) -> Affine:
        """A form over what is known outside the loops `inner` that `form` is never less than."""
        for loop in reversed(inner):
            var = loop.loop_var
            for atom in self._composites(form, var):
                coefficient = form.terms[atom]
                bound = self._prover.interval(Affine({atom: 1}))[coefficient < 0]
                if not isfinite(bound) or abs(bound) > _LARGEST:
                    return _NEVER
                form = form - Affine({atom: coefficient}) + coefficient * int(bound)
            coefficient = form.terms.get(var, 0)
            if coefficient:
                if not (self._is_index(loop.min) and self._is_index(loop.extent)):
                    return _NEVER
                end = self._prover.affine(loop.min)
                if coefficient < 0:
                    end = end + self._prover.affine(loop.extent) - 1
                form = form - Affine({var: coefficient}) + end * coefficient
        return form

    def _composites(self, form: Affine, var: Var) -> list[Atom]:
        return [a for a in form.terms if a is not var and var in self.variables(a)]

    def is_composite_in(self, form: Affine, var: Var) -> bool:
        """Whether `var` is in `form` in a way that is not linear."""
        return bool(self._composites(form, var))

    def variables(self, node: PrimExpr) -> frozenset[Var]:
        """The variables in an expression."""
        made = self._variables.get(node)
        if made is None:
            made = self._variables[node] = frozenset(free_vars(node))
        return made

    # -- Writing --

    def quotient(self, bound: Bound, dtype: DType) -> PrimExpr:
        """A bound as an expression, in `dtype` or a wider one."""
        form, divisor = bound
        dtype = _widest(form, dtype)
        return e.floordiv(self._prover.expression(form, dtype), const(divisor, dtype))

    def at_least_zero(self, form: Affine) -> PrimExpr:
        """The condition ``form >= 0``."""
        dtype = _widest(form, next(iter(form.terms)).dtype)
        more = Affine({a: c for a, c in form.terms.items() if c > 0}, max(form.constant + 1, 0))
        less = Affine({a: -c for a, c in form.terms.items() if c < 0}, max(-form.constant - 1, 0))
        return e.LT(self._prover.expression(less, dtype), self._prover.expression(more, dtype))

    # -- Clipping --

    def clip(self, node: s.For) -> s.For:
        """The loop without the iterations in which it does nothing: those in which a ``likely``
        guard around all of its body fails.

        Before::

            for i in range(16):
                if likely(io * 16 + i < n):
                    B[io * 16 + i] = 0.0

        After::

            for i in range(min(16, n - io * 16)):
                B[io * 16 + i] = 0.0
        """
        if node.kind in (ForKind.VECTORIZED, ForKind.THREAD_BINDING):
            return node
        if not (self._is_index(node.min) and self._is_index(node.extent)):
            return node
        begin, end = node.min, node.min + node.extent
        var, dropped = node.loop_var, []
        for conditions in self._common(node.body).values():
            form = self.form(conditions[0])
            coefficient = form.terms.get(var, 0)
            if not coefficient or self.is_composite_in(form, var):
                continue
            rest = form - Affine({var: coefficient})
            dropped += conditions
            if coefficient > 0:
                low = self.quotient((-rest + (coefficient - 1), coefficient), var.dtype)
                begin = self._into(e.maximum(begin, low), begin, end, var.dtype)
            else:
                high = self.quotient((rest - coefficient, -coefficient), var.dtype)
                end = self._into(e.minimum(end, high), begin, end, var.dtype)
        if not dropped:
            return node
        if node.kind == ForKind.UNROLLED and None in (e.const_int(begin), e.const_int(end)):
            return node
        return _loop(node, begin, end - begin, _Hold(self, dropped).stmt(node.body))

    def _into(self, value: PrimExpr, begin: PrimExpr, end: PrimExpr, dtype: DType) -> PrimExpr:
        """`value` as a `dtype`, which may be narrower than it."""
        if value.dtype == dtype:
            return value
        return e.cast(dtype, e.minimum(e.maximum(value, begin), end))

    def _common(self, node: Stmt) -> _Comparisons:
        made = self._commons.get(node)
        if made is None:
            made = self._commons[node] = self._find_common(node)
        return made

    def _find_common(self, node: Stmt) -> _Comparisons:
        """The comparisons without which `node` does nothing, equal ones together, of variables
        that are bound outside."""
        match node:
            case s.For():
                if not (is_pure(node.min) and is_pure(node.extent)):
                    return {}
                return self._outside(node.loop_var, self._common(node.body))
            case s.LetStmt() if is_pure(node.value):
                return self._outside(node.var, self._common(node.body))
            case s.IfThenElse(else_case=None) if is_pure(node.condition):
                found = dict(self._common(node.then_case))
                if is_likely(node.condition):
                    for each in _comparisons(node.condition):
                        key = structural_key(each)
                        found[key] = [*found.get(key, ()), each]
                return found
            case s.SeqStmt() if node.seq:
                first, *others = map(self._common, node.seq)
                for other in others:
                    first = {key: first[key] + other[key] for key in first if key in other}
                return first
            case s.AttrStmt() | s.Allocate():
                return self._common(node.body)
        return {}

    def _outside(self, var: Var, found: _Comparisons) -> _Comparisons:
        return {key: each for key, each in found.items() if var not in self.variables(each[0])}


class _Clip(Mutator):
    """Clips every loop of a statement."""

    def __init__(self, forms: _Forms) -> None:
        super().__init__()
        self._forms = forms

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: s.For) -> Stmt:
        return self.descend(self._forms.clip(node))  # type: ignore[no-any-return]  # a For again

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        return self.stmt(node.body) if node.attr_key == HINT else self.descend(node)


class _Hold(Mutator):
    """Removes conditions that hold."""

    def __init__(self, forms: _Forms, held: Iterable[PrimExpr]) -> None:
        super().__init__()
        self._forms = forms
        self._held = frozenset(held)

    def stmt(self, node: Stmt) -> Stmt:
        return super().stmt(node) if self._held else node

    def expr(self, node: PrimExpr) -> PrimExpr:
        return super().expr(node) if self._forms.choices(node) else node

    def _condition(self, node: PrimExpr) -> PrimExpr:
        """`node` where what is held is true."""
        if node in self._held:
            return const(True)
        if isinstance(node, e.And):
            a, b = self._condition(node.a), self._condition(node.b)
            return node if a is node.a and b is node.b else e.logical_and(a, b)
        if is_likely(node):
            (inside,) = node.args
            made = self._condition(inside)
            if made is inside or isinstance(made, IntImm):
                return node if made is inside else made
            return Call(node.dtype, "likely", (made,))
        return self.expr(node)

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        condition = self._condition(node.condition)
        if isinstance(condition, IntImm) and condition.value:
            return self.stmt(node.then_case)
        then_case = self.stmt(node.then_case)
        else_case = None if node.else_case is None else self.stmt(node.else_case)
        made = (condition, then_case, else_case)
        old = (node.condition, node.then_case, node.else_case)
        return node if all(x is y for x, y in zip(made, old, strict=True)) else s.IfThenElse(*made)

    def visit_Select(self, node: e.Select) -> PrimExpr:
        condition = self._condition(node.condition)
        if isinstance(condition, IntImm) and condition.value:
            return self.expr(node.true_value)
        true_value, false_value = self.expr(node.true_value), self.expr(node.false_value)
        made = (condition, true_value, false_value)
        old = (node.condition, node.true_value, node.false_value)
        return node if all(x is y for x, y in zip(made, old, strict=True)) else e.Select(*made)

    def visit_Call(self, node: Call) -> PrimExpr:
        args = node.args
        made: tuple[PrimExpr, ...]
        if node.op == "if_then_else":
            condition = self._condition(args[0])
            if isinstance(condition, IntImm) and condition.value:
                return self.expr(args[1])
            made = (condition, self.expr(args[1]), self.expr(args[2]))
        else:
            made = tuple(map(self.expr, args))
        same = all(x is y for x, y in zip(made, args, strict=True))
        return node if same else Call(node.dtype, node.op, made)


# What a condition on loop variables is made of.
_INDEX_NODES = (
    Var, IntImm, e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max, e.Cast,
)  # fmt: skip


def _comparisons(condition: PrimExpr) -> list[PrimExpr]:
    """The conditions that hold where `condition` does, and only together."""
    if is_likely(condition):
        return _comparisons(condition.args[0])
    if isinstance(condition, e.And):
        return _comparisons(condition.a) + _comparisons(condition.b)
    return [condition]


def _loop(
    node: s.For, begin: PrimExpr, extent: PrimExpr, body: Stmt, kind: ForKind | None = None
) -> s.For:
    """`node` with another range, body and kind; itself if they are the same."""
    kind = node.kind if kind is None else kind
    made = (begin, extent, kind, body)
    if all(
        x is y for x, y in zip(made, (node.min, node.extent, node.kind, node.body), strict=True)
    ):
        return node
    return s.For(node.loop_var, *made, node.annotations)


def _add(bounds: list[Bound], bound: Bound, keep: int) -> None:
    """Adds a bound; of two that differ by a number, the greater is kept for 1, the less for -1."""
    form, divisor = bound
    for place, (other, its_divisor) in enumerate(bounds):
        difference = form - other
        if divisor == its_divisor and not difference.terms:
            if difference.constant * keep > 0:
                bounds[place] = bound
            return
    bounds.append(bound)


def _is_empty(begin: PrimExpr, end: PrimExpr) -> bool:
    """Whether the range is known to be empty."""
    low, high = e.const_int(begin), e.const_int(end)
    return begin is end or (low is not None and high is not None and low >= high)


def _widest(form: Affine, dtype: DType) -> DType:
    """A type for the arithmetic of `form`, no narrower than `dtype`."""
    if max(map(abs, (form.constant, *form.terms.values()))) > _LARGEST:
        return INT64
    return max((dtype, *(atom.dtype for atom in form.terms)), key=lambda each: each.bits)
