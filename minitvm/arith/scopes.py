"""Scopes: the facts on the way down a program, in a loop, behind a name, under a condition.

A fact about memory is learnt only in a body that doesn't write that memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, final

from minitvm.arith.prover import Prover
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, contains, with_fields
from minitvm.tir.stmt import PrimFunc, Stmt


def prover_of(func: PrimFunc) -> Prover:
    """A prover with the facts at the begin of a function: no dimension is negative, and the
    conditions of the function hold in all calls."""
    prover = Prover()
    prover.bind_sizes(func.buffer_map.values())
    for each in func.attrs.holds:
        prover.assume(each)
    return prover


def in_loop(prover: Prover, loop: s.For) -> AbstractContextManager[None]:
    """The scope of a loop's iteration."""

    def learn() -> None:
        effects = prover.effects
        if effects.is_stable(loop.min, loop.body) and effects.is_stable(loop.extent, loop.body):
            prover.bind_loop(loop.loop_var, loop.min, loop.extent)
        else:
            prover.bind_unknown(loop.loop_var)
            prover.forget()

    return prover.scope(learn)


@contextmanager
def binding(prover: Prover, var: Var, value: PrimExpr, body: PrimExpr | Stmt) -> Iterator[None]:
    """The scope of `body`, where `var` is a name for the value of `value` before it."""
    with prover.scope():
        if prover.effects.is_stable(value, body):
            prover.bind(var, value)
        else:
            prover.bind_data(var)
        yield


@contextmanager
def assuming(prover: Prover, condition: PrimExpr, body: PrimExpr | Stmt) -> Iterator[None]:
    """The scope of `body`, before which `condition` held."""
    with prover.scope():
        if prover.effects.is_stable(condition, body):
            prover.assume(condition)
        else:
            prover.forget()
        yield


class ScopedMutator(Mutator):
    """Rebuilds statements from the outside in, with a prover that knows the facts at each.

    A subclass that overrides ``visit_For`` or the like, and visits the children, opens the same
    scope: `in_loop`, `binding`, `assuming`. Expressions stay as they are unless a subclass has an
    :meth:`expr`. A subclass that changes nothing in statements without nodes of some classes names
    these classes in `changes`: such statements aren't visited.
    """

    changes: ClassVar[tuple[type, ...]] = ()

    def __init__(self, prover: Prover) -> None:
        super().__init__()
        self._prover = prover

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def stmt(self, node: Stmt) -> Stmt:
        may_change = not self.changes or contains(self.changes, node)
        return super().stmt(node) if may_change else node

    def in_loop(self, loop: s.For) -> AbstractContextManager[None]:
        """See :func:`in_loop`."""
        return _Apart(self, in_loop(self._prover, loop))

    def binding(
        self, var: Var, value: PrimExpr, body: PrimExpr | Stmt
    ) -> AbstractContextManager[None]:
        """See :func:`binding`."""
        return _Apart(self, binding(self._prover, var, value, body))

    def assuming(self, condition: PrimExpr, body: PrimExpr | Stmt) -> AbstractContextManager[None]:
        """See :func:`assuming`."""
        return _Apart(self, assuming(self._prover, condition, body))

    def under(self, condition: PrimExpr, body: Stmt) -> Stmt:
        """`body` rewritten in the scope of `condition`, which held before it."""
        with self.assuming(condition, body):
            return self.stmt(body)

    def visit_For(self, node: s.For) -> Stmt:
        begin, extent = self.expr(node.min), self.expr(node.extent)
        with self.in_loop(node):
            body = self.stmt(node.body)
        return with_fields(node, min=begin, extent=extent, body=body)

    def visit_LetStmt(self, node: s.LetStmt) -> Stmt:
        value = self.expr(node.value)
        with self.binding(node.var, node.value, node.body):
            return with_fields(node, value=value, body=self.stmt(node.body))

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        condition = self.expr(node.condition)
        then_case, else_case = self.under(node.condition, node.then_case), node.else_case
        if else_case is not None:
            else_case = self.under(e.logical_not(node.condition), else_case)
        return with_fields(node, condition=condition, then_case=then_case, else_case=else_case)

    def visit_While(self, node: s.While) -> Stmt:
        condition = self.expr(node.condition)
        return with_fields(node, condition=condition, body=self.under(node.condition, node.body))

    def visit_AssertStmt(self, node: s.AssertStmt) -> Stmt:
        condition, values = self.expr(node.condition), tuple(map(self.expr, node.values))
        body = self.under(node.condition, node.body)
        return with_fields(node, condition=condition, body=body, values=values)


@final
class _Apart:
    """A scope in which an expression may be rewritten in another way than outside of it."""

    __slots__ = ("_mutator", "_outside", "_scope")

    def __init__(self, mutator: ScopedMutator, scope: AbstractContextManager[None]) -> None:
        self._mutator = mutator
        self._scope = scope

    def __enter__(self) -> None:
        self._outside, self._mutator._made = self._mutator._made, {}
        self._scope.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._mutator._made = self._outside
        self._scope.__exit__(*exception)
