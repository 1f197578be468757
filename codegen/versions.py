"""Loops in two versions, for a condition that holds in all of their iterations or in none.

A loop over rows of symbolic length chooses in each row how the row ends: with a vector that
overlaps the one before, or under a mask; past the caches or through them. The choice is the same in
every row, so it is made once, before the loop::

    for i in range(m):                          if n >= 16:
        for j in range(n // 16): ...                for i in range(m):
        if n >= 16:                                     for j in range(n // 16): ...
            ...                             ->          ...
        else:                                   else:
            ...                                     for i in range(m):
                                                        for j in range(n // 16): ...
                                                        ...
"""

from __future__ import annotations

from typing import final

from minitvm.arith.atoms import is_pure, structural_key
from minitvm.arith.effects import loads
from minitvm.arith.work import code_size
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, free_vars, walk_once, with_fields
from minitvm.tir.stmt import Stmt
from minitvm.transform.stream_stores import ALIGNMENT

_MOST = 24  # statements of a loop of which there are several versions


@final
@record(eq=False)
class Versions:
    """A loop in which `choice` decides in each iteration, a condition or an attribute whose body is
    emitted in two ways; the loop where it holds, and where it doesn't."""

    choice: s.IfThenElse | s.AttrStmt
    holds: s.For
    fails: s.For


def versions_of(loop: s.For) -> Versions | None:
    """Both versions of a loop; None for a loop without such a choice, or with much code."""
    choice = _choice_in(loop) if code_size(loop.body) <= _MOST else None
    if choice is None:
        return None
    holds, fails = (
        with_fields(loop, body=_Chosen(choice, is_met).stmt(loop.body)) for is_met in (True, False)
    )
    return Versions(choice, holds, fails)


def _choice_in(loop: s.For) -> s.IfThenElse | s.AttrStmt | None:
    nodes = [*walk_once(loop.body)]
    bound = {loop.loop_var}
    bound |= {each.loop_var for each in nodes if isinstance(each, s.For)}
    bound |= {each.var for each in nodes if isinstance(each, s.LetStmt | e.Let)}
    choices = [
        each
        for each in nodes
        if isinstance(each, s.AttrStmt | s.IfThenElse) and _is_same_in_all(each, bound)
    ]
    # Stores past the caches are for rows of which few choices matter.
    return next((each for each in choices if isinstance(each, s.AttrStmt)), next(iter(choices), None))


def _is_same_in_all(choice: s.IfThenElse | s.AttrStmt, bound: set[Var]) -> bool:
    """Whether a choice is the same in all iterations of a loop, which binds some variables."""
    if isinstance(choice, s.AttrStmt):
        return choice.attr_key in ALIGNMENT and bound.isdisjoint(free_vars(choice.value))
    if choice.else_case is None or not is_pure(choice.condition) or loads(choice.condition):
        return False
    return bound.isdisjoint(free_vars(choice.condition))


@final
class _Chosen(Mutator):
    """Replaces equal choices by what is chosen where they are met, or aren't."""

    def __init__(self, choice: s.IfThenElse | s.AttrStmt, is_met: bool) -> None:
        super().__init__()
        self._key = _key_of(choice)
        self._is_met = is_met

    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        if _key_of(node) != self._key:
            return self.descend(node)
        case = node.then_case if self._is_met else node.else_case
        return s.seq() if case is None else self.stmt(case)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        return self.stmt(node.body) if _key_of(node) == self._key else self.descend(node)


def _key_of(choice: s.IfThenElse | s.AttrStmt) -> object:
    if isinstance(choice, s.AttrStmt):
        return choice.node, choice.attr_key, structural_key(choice.value)
    return structural_key(choice.condition)
