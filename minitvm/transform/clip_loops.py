"""Loops without the iterations in which they do nothing."""

from __future__ import annotations

import functools
from typing import cast, final

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_stable, loads
from minitvm.arith.linear import Affine
from minitvm.arith.prover import Prover
from minitvm.arith.work import statements_run
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import Call, PrimExpr, Var, const
from minitvm.tir.functor import Mutator, free_vars
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body


def clip_loops(func: PrimFunc) -> PrimFunc:
    """A loop ends where all that it does is behind ``likely`` guards that fail from there on.

    Before, where blocks of 5 panels of 32 columns are computed::

        for p in range(5):
            for j in vectorized(32):
                if likely(block * 160 + p * 32 + j < n):
                    C[block * 160 + p * 32 + j] = 0.0

    After::

        for p in range(min(5, (n - block * 160 - 1) // 32 + 1)):
            for j in vectorized(32):
                if likely(block * 160 + p * 32 + j < n):
                    C[block * 160 + p * 32 + j] = 0.0

    Loops of constant extents between others are clipped: those that a split by a constant leaves;
    by guards of what their bodies don't change. Where the guard is that of the loop's own variable,
    it goes. Loops in which little is done keep their extents: :func:`partition_loops` makes a main
    part of theirs, in which these are known.
    """
    return with_body(func, _ClipLoops(func).stmt(func.body))


_MANY = 32  # statements run inside of a loop, beside which it costs little to count it


@final
@record()
class _Need:
    """A form that is at least zero wherever a statement does anything; and the guards that say just
    that, none where it is less than they say."""

    form: Affine
    guards: tuple[PrimExpr, ...]


class _ClipLoops(Mutator):
    def __init__(self, func: PrimFunc) -> None:
        super().__init__()
        self._prover = Prover()
        self._depth = 0
        self._needed: dict[Stmt, list[_Need]] = {}
        self._prover.bind_sizes(func.buffer_map.values())

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: s.For) -> Stmt:
        clipped = self._clip(node) if self._depth else node
        self._depth += 1
        with self._prover.scope():
            if is_stable(clipped.min, clipped.body) and is_stable(clipped.extent, clipped.body):
                self._prover.bind_loop(clipped.loop_var, clipped.min, clipped.extent)
            made = self.descend(clipped)
        self._depth -= 1
        return made  # type: ignore[no-any-return]  # a For again

    def _clip(self, node: s.For) -> s.For:
        extent = e.const_int(node.extent)
        if node.kind != ForKind.SERIAL or e.const_int(node.min) != 0 or extent is None:
            return node
        if statements_run(node.body) < _MANY:
            return node
        var, ends, dropped = node.loop_var, list[PrimExpr](), list[PrimExpr]()
        for need in self._needs(node.body):
            coefficient = need.form.terms.get(var, 0)
            rest = _rest(need.form, var)
            if coefficient >= 0 or not rest.terms or var in _variables(rest):
                continue
            if not all(is_stable(atom, node.body) for atom in rest.terms):
                continue
            if not self._prover.proves(rest + coefficient * (extent - 1)):
                ends.append(self._end(rest, -coefficient, var))
                dropped += need.guards
        if not ends:
            return node
        size = functools.reduce(_less, ends, node.extent)
        body = _Without(frozenset(dropped)).stmt(node.body)
        return s.For(var, node.min, size, node.kind, body, node.annotations)

    def _end(self, rest: Affine, divisor: int, var: Var) -> PrimExpr:
        """The first value of a loop's variable for which ``rest - divisor * var`` is negative."""
        dtype = max((var.dtype, *(atom.dtype for atom in rest.terms)), key=lambda each: each.bits)
        return e.floordiv(self._prover.expression(rest + divisor, dtype), const(divisor, dtype))

    # -- What has to hold --

    def _needs(self, node: Stmt) -> list[_Need]:
        """What has to hold for `node` to do anything, of variables that are bound outside."""
        made = self._needed.get(node)
        if made is None:
            made = self._needed[node] = self._find_needs(node)
        return made

    def _find_needs(self, node: Stmt) -> list[_Need]:
        match node:
            case s.For() if is_pure(node.min) and is_pure(node.extent):
                found = self._outside(node)
                runs = (e.const_int(node.extent) or 0) > 0
                return found if runs else _everywhere(found)
            case s.LetStmt() if is_pure(node.value):
                return [x for x in self._needs(node.body) if node.var not in _variables(x.form)]
            case s.IfThenElse(condition, else_case=None) if is_likely(condition):
                if not is_pure(condition):  # which does something where the rest fails
                    return []
                found = _everywhere(self._needs(node.then_case))
                form = self._form(condition)
                return found if form is None else [*found, _Need(form, (condition,))]
            case s.SeqStmt() if node.seq:
                return functools.reduce(_common, map(self._needs, node.seq))
            case s.AttrStmt() | s.Allocate():
                return self._needs(node.body)
        return []

    def _outside(self, loop: s.For) -> list[_Need]:
        """What the body of a loop needs, in the iteration that needs least."""
        var, found = loop.loop_var, list[_Need]()
        begin, extent = self._prover.affine(loop.min), self._prover.affine(loop.extent)
        for need in self._needs(loop.body):
            coefficient = need.form.terms.get(var, 0)
            rest = _rest(need.form, var)
            if var in _variables(rest):
                continue
            if not coefficient:
                found.append(need)
                continue
            least = begin + extent - 1 if coefficient > 0 else begin
            found.append(_Need(rest + least * coefficient, ()))
        return found

    def _form(self, condition: PrimExpr) -> Affine | None:
        (inside,) = cast(Call, condition).args
        if not isinstance(inside, e.LT):
            return None
        return self._prover.affine(inside.b) - self._prover.affine(inside.a) - 1


def _less(extent: PrimExpr, end: PrimExpr) -> PrimExpr:
    """The lesser of an extent and an end, in the dtype of the extent, which holds it."""
    if end.dtype == extent.dtype:
        return e.minimum(extent, end)
    inside = e.minimum(e.cast(end.dtype, extent), e.maximum(end, const(0, end.dtype)))
    return e.cast(extent.dtype, inside)


def _common(a: list[_Need], b: list[_Need]) -> list[_Need]:
    """What is in both, with the guards of both, if both have some."""
    return [
        _Need(x.form, x.guards + y.guards if x.guards and y.guards else ())
        for x in a
        for y in b
        if x.form.same_as(y.form)
    ]


def _everywhere(needs: list[_Need]) -> list[_Need]:
    """Those that may be asked where the statement isn't reached."""
    return [need for need in needs if not loads(*need.form.terms)]


def _rest(form: Affine, var: Var) -> Affine:
    return Affine(
        {atom: each for atom, each in form.terms.items() if atom is not var}, form.constant
    )


def _variables(form: Affine) -> set[Var]:
    return set[Var]().union(*(free_vars(atom) for atom in form.terms))


class _Without(Mutator):
    """Removes guards."""

    def __init__(self, guards: frozenset[PrimExpr]) -> None:
        super().__init__()
        self._guards = guards

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        if node.condition in self._guards:
            return self.stmt(node.then_case)
        return self.descend(node)  # type: ignore[no-any-return]  # an IfThenElse again
