"""The conditions in a loop's body, as affine forms of the variables of the loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import field
from math import isfinite, prod
from typing import final

from minitvm.arith.effects import loads
from minitvm.arith.guards import LARGEST, NEGATIONS, Without, conjuncts, form_of, widest
from minitvm.arith.linear import Affine, Atom
from minitvm.arith.piecewise import PIECEWISE, Piece, may_have_pieces, pieces_of
from minitvm.arith.prover import Prover
from minitvm.arith.work import iterations, statements_run
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import BufferLoad, Call, PrimExpr, Var, const
from minitvm.tir.functor import (
    Mutator,
    children,
    contains,
    find,
    free_vars,
    substitute,
    with_fields,
)
from minitvm.tir.stmt import ForKind, Stmt


@final
@record(frozen=False)
class Use:
    """The uses of a condition in the body of a loop. The condition holds at all of these uses if
    the `rows` are at least zero; these are forms over variables from outside of the loops in that
    body."""

    rows: list[Affine] = field(default_factory=list)
    negates: PrimExpr | None = None  # the condition of a choice that fails if this one holds
    divides: bool = False  # there is work where it holds and where it fails
    in_a_loop: bool = False  # in one that is more than a vector, if there is one
    in_tiles: bool = False  # it holds for some tiles of a loop in that body, and not for others
    work: int = 0  # the work under it


@final
@record()
class Uses:
    """The conditions in the body of a loop: comparisons, each with its uses. The `pieces` belong to
    indices in the innermost loops; the conditions of the pieces are among the comparisons."""

    conditions: dict[PrimExpr, Use] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)

    def opposites(self, conditions: Set[PrimExpr]) -> Iterator[PrimExpr]:
        """The negations of conditions."""
        for each, use in self.conditions.items():
            if use.negates in conditions:
                yield each
            elif each in conditions and use.negates is not None:
                yield use.negates


NEVER = Affine({}, -1)
# A statement without such nodes has neither conditions nor indices in pieces.
CONDITIONAL = (s.IfThenElse, Call, *PIECEWISE)


class Conditions:
    """Conditions as affine forms, and as expressions again. A statement under a mask counts as
    `masked` statements."""

    def __init__(self, prover: Prover, masked: int = 1) -> None:
        self._prover = prover
        self._masked = masked
        self._variables: dict[PrimExpr, frozenset[Var]] = {}
        self._choices: dict[PrimExpr, list[PrimExpr]] = {}
        self._negations: dict[PrimExpr, PrimExpr | None] = {}
        self._indices: dict[PrimExpr, list[PrimExpr]] = {}
        self._names: dict[Var, PrimExpr] = {}
        self._has_loops = False  # the loop whose conditions are read has some that are no vectors

    def can_name(self, value: PrimExpr) -> bool:
        """Whether the value of a name can replace the name."""
        is_number = value.dtype.is_int and not loads(value)
        return is_number and self._prover.is_index_arithmetic(value)

    @contextmanager
    def naming(self, var: Var, value: PrimExpr) -> Iterator[None]:
        """The scope of a name. In conditions and ranges, the name is replaced by its value."""
        value = self._unnamed(value)
        if not self.can_name(value):
            self._prover.bind_data(var)
            yield
            return
        self._names[var] = value
        yield
        del self._names[var]

    def _unnamed(self, node: PrimExpr) -> PrimExpr:
        """An expression with names replaced by their values."""
        if self._names.keys().isdisjoint(self.variables(node)):
            return node
        return substitute(node, self._names)

    # -- Reading --

    def uses(self, loop: s.For, every: bool) -> Uses:
        """The conditions in the body of a loop; with `every`, also the conditions of plain ifs."""
        found = Uses()
        self._has_loops = any(map(_is_longer, find(s.For, loop.body)))
        self._gather(loop.body, (), loop, every, found)
        return found

    def _gather(
        self, node: Stmt, inner: tuple[s.For, ...], loop: s.For, every: bool, found: Uses
    ) -> None:
        if not contains(CONDITIONAL, node):
            return
        values = [child for child in children(node) if isinstance(child, PrimExpr)]
        if isinstance(node, s.IfThenElse) and (every or node.else_case is None):
            for condition in conjuncts(node.condition):
                if isinstance(condition, e.Not) and self._negation(condition.a) is not None:
                    self._add_both(found, condition.a, node, inner)
                else:
                    self._add(found, condition, node, inner)
        for condition in (each for value in values for each in self.choices(value)):
            self._add_both(found, condition, node, inner).divides = True
        if isinstance(node, s.BufferStore):
            innermost = inner[-1] if inner else loop
            for piece in self._pieces(node, values, innermost):
                found.pieces.append(piece)
                for condition in piece.conditions:
                    self._add(found, condition, node, inner).divides = True
        if isinstance(node, s.For):
            begin, extent = self._unnamed(node.min), self._unnamed(node.extent)
            node = with_fields(node, min=begin, extent=extent)
            with self._prover.scope():
                self._prover.bind_interval(node.loop_var, node.min, node.extent)
                self._gather(node.body, (*inner, node), loop, every, found)
        elif isinstance(node, s.LetStmt):
            with self.naming(node.var, node.value):
                self._gather(node.body, inner, loop, every, found)
        else:
            for child in children(node):
                if isinstance(child, Stmt):
                    self._gather(child, inner, loop, every, found)

    def _add(self, found: Uses, condition: PrimExpr, node: Stmt, inner: tuple[s.For, ...]) -> Use:
        use = found.conditions.setdefault(condition, Use())
        use.in_a_loop |= any(_is_longer(each) for each in inner) or (
            bool(inner) and not self._has_loops
        )
        use.in_tiles = use.in_tiles or self._is_in_tiles(condition, inner)
        work = statements_run(node) * prod(map(iterations, inner))
        use.work += work * (self._masked if self._is_mask(condition, inner) else 1)
        use.rows.append(self._least(self.form(condition), inner))
        return use

    def _add_both(
        self, found: Uses, condition: PrimExpr, node: Stmt, inner: tuple[s.For, ...]
    ) -> Use:
        """Adds a condition, and the comparison that holds where it fails."""
        use, negation = self._add(found, condition, node, inner), self._negation(condition)
        if negation is not None:
            self._add(found, negation, node, inner).negates = condition
        return use

    def _is_mask(self, condition: PrimExpr, inner: Sequence[s.For]) -> bool:
        """Whether a condition differs from lane to lane of a vector."""
        return any(
            each.kind == ForKind.VECTORIZED and each.loop_var in self.variables(condition)
            for each in inner
        )

    def _negation(self, condition: PrimExpr) -> PrimExpr | None:
        """The comparison that holds where another one fails."""
        if condition not in self._negations:
            made = None
            if isinstance(condition, e.Comparison) and type(condition) in NEGATIONS:
                made = NEGATIONS[type(condition)](condition.a, condition.b)
            self._negations[condition] = made
        return self._negations[condition]

    def _pieces(
        self, store: s.BufferStore, values: Iterable[PrimExpr], loop: s.For
    ) -> Iterator[Piece]:
        """The pieces of a statement's indices in a loop that is run in vectors, or may be."""
        if loop.kind not in (ForKind.VECTORIZED, ForKind.SERIAL):
            return
        lanes = (e.const_int(loop.extent) or 1) if loop.kind == ForKind.VECTORIZED else 1
        indices = [index for value in values for index in self._piecewise(value)]
        for index in (*filter(may_have_pieces, store.indices), *indices):
            yield from pieces_of(self._prover, index, loop.loop_var, lanes)

    def _piecewise(self, node: PrimExpr) -> list[PrimExpr]:
        """The indices in an expression that may have pieces."""
        made = self._indices.get(node)
        if made is None:
            loads = find(BufferLoad, node)
            indices = (index for load in loads for index in load.indices)
            made = self._indices[node] = [each for each in indices if may_have_pieces(each)]
        return made

    def _is_in_tiles(self, condition: PrimExpr, inner: Iterable[s.For]) -> bool:
        used = self.variables(self._unnamed(condition))
        loops = [each for each in inner if each.loop_var in used]
        return len(loops) > 1 and loops[0].kind == ForKind.SERIAL

    def choices(self, node: PrimExpr) -> list[PrimExpr]:
        """The comparisons of the choices in an expression."""
        made = self._choices.get(node)
        if made is None:
            made = self._choices[node] = []
            for each in find((e.Select, Call), node):
                if isinstance(each, e.Select):
                    made += conjuncts(each.condition)
                elif each.op == "if_then_else":
                    made += conjuncts(each.args[0])
        return made

    def form(self, condition: PrimExpr) -> Affine:
        """The form that is at least zero where `condition`, a comparison, holds."""
        condition = self._unnamed(condition)
        if not self._prover.is_index_arithmetic(condition):
            return NEVER
        return form_of(self._prover, condition) or NEVER

    def _least(self, form: Affine, inner: Sequence[s.For]) -> Affine:
        """A lower bound of `form`, over variables from outside of the loops `inner`."""
        for loop in reversed(inner):
            var = loop.loop_var
            for atom in self._composites(form, var):
                coefficient = form.terms[atom]
                bound = self._prover.interval(Affine({atom: 1}))[coefficient < 0]
                if not isfinite(bound) or abs(bound) > LARGEST:
                    return NEVER
                form = form - Affine({atom: coefficient}) + coefficient * int(bound)
            coefficient = form.terms.get(var, 0)
            if coefficient:
                if not all(map(self._prover.is_index_arithmetic, (loop.min, loop.extent))):
                    return NEVER
                end = self._prover.affine(loop.min)
                if coefficient < 0:
                    end = end + self._prover.affine(loop.extent) - 1
                form = form - Affine({var: coefficient}) + end * coefficient
        return form

    def _composites(self, form: Affine, var: Var) -> list[Atom]:
        return [a for a in form.terms if a is not var and var in self.variables(a)]

    def is_composite_in(self, form: Affine, var: Var) -> bool:
        """Whether `var` occurs inside an atom of `form`, so that the form is not linear in it."""
        return bool(self._composites(form, var))

    def variables(self, node: PrimExpr) -> frozenset[Var]:
        """The variables in an expression."""
        made = self._variables.get(node)
        if made is None:
            made = self._variables[node] = frozenset(free_vars(node))
        return made

    # -- Writing --

    def at_least_zero(self, form: Affine) -> PrimExpr:
        """The condition ``form >= 0``."""
        dtype = widest(form, next(iter(form.terms)).dtype)
        more = Affine({a: c for a, c in form.terms.items() if c > 0}, max(form.constant + 1, 0))
        less = Affine({a: -c for a, c in form.terms.items() if c < 0}, max(-form.constant - 1, 0))
        return e.LT(self._prover.expression(less, dtype), self._prover.expression(more, dtype))


def _is_longer(loop: s.For) -> bool:
    """Whether a loop is more than a vector."""
    return loop.kind != ForKind.VECTORIZED


@final
class Hold(Without):
    """Removes conditions that hold, also from choices in expressions, and replaces nodes of indices
    by their pieces."""

    def __init__(self, uses: Uses, held: Iterable[PrimExpr]) -> None:
        super().__init__(held)
        self._failed = {uses.conditions[each].negates for each in self._held} - {None}
        self._values = {
            each.node: each.value for each in uses.pieces if self._held.issuperset(each.conditions)
        }

    def expr(self, node: PrimExpr) -> PrimExpr:
        if node in self._values:
            return self._values[node]
        may_change = self._values or contains((e.Select, Call), node)
        return Mutator.expr(self, node) if may_change else node

    def condition(self, node: PrimExpr) -> PrimExpr:
        return const(False) if node in self._failed else super().condition(node)

    def visit_Select(self, node: e.Select) -> PrimExpr:
        made = self._choice(node.condition, node.true_value, node.false_value)
        if isinstance(made, PrimExpr):
            return made
        condition, a, b = made
        return with_fields(node, condition=condition, true_value=a, false_value=b)

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op != "if_then_else":
            return with_fields(node, args=tuple(map(self.expr, node.args)))
        made = self._choice(*node.args)
        return made if isinstance(made, PrimExpr) else with_fields(node, args=made)

    def _choice(
        self, condition: PrimExpr, a: PrimExpr, b: PrimExpr
    ) -> PrimExpr | tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The value that is chosen, or the parts of the choice."""
        condition = self.condition(condition)
        known = e.const_int(condition)
        if known is not None:
            return self.expr(a if known else b)
        return condition, self.expr(a), self.expr(b)
