"""Loops in two versions, for a condition that holds in all of their iterations or in none.

A loop over rows of symbolic length chooses in each row how the row ends: with a vector that
overlaps the one before, or under a mask; past the caches or through them. The choice is the same in
every row, so it is made once, before the loop. So is the choice of vectors or one copy where a row
is copied (:mod:`minitvm.codegen.row_copies`)::

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
from minitvm.codegen.row_copies import LONG, as_whole, bytes_of_copy, is_decided
from minitvm.runtime.dtype import INT64
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, contains, find, free_vars, with_fields
from minitvm.tir.stmt import Stmt
from minitvm.transform.stream_stores import ALIGNMENT

MOST = 32  # statements of all versions of a loop


Choice = s.IfThenElse | s.AttrStmt | s.For
"""A condition, an attribute whose body is emitted in two ways, or a loop that may be one copy."""


@final
@record(eq=False)
class Versions:
    """A loop in which `choice` decides in each iteration, a condition or an attribute; the loop
    where it holds, and where it doesn't."""

    choice: PrimExpr | s.AttrStmt
    holds: s.For
    fails: s.For


def versions_of(loop: s.For, most: int = MOST) -> Versions | None:
    """Both versions of a loop; None for a loop without such a choice, and where they would have
    more than `most` statements."""
    may_choose = contains(_ORDER, loop.body) and 2 * code_size(loop.body) <= most
    choice = _choice_in(loop) if may_choose else None
    if choice is None:
        return None
    holds, fails = (
        with_fields(loop, body=_Chosen(choice, is_met).stmt(loop.body)) for is_met in (True, False)
    )
    condition: PrimExpr | s.AttrStmt
    match choice:
        case s.AttrStmt():
            condition = choice
        case s.IfThenElse():
            condition = choice.condition
        case s.For():
            condition = e.cast(INT64, choice.extent) * (bytes_of_copy(choice) or 0) >= LONG
    return Versions(condition, holds, fails)


def _choice_in(loop: s.For) -> Choice | None:
    bound = {loop.loop_var, *(each.loop_var for each in find(s.For, loop.body))}
    bound |= {each.var for each in find((s.LetStmt, e.Let), loop.body)}
    choices = [each for each in find(_ORDER, loop.body) if _is_same_in_all(each, bound)]
    # Where stores go past the caches, rows are long, and other choices matter little.
    return min(choices, key=lambda each: _ORDER.index(type(each)), default=None)


_ORDER = (s.AttrStmt, s.IfThenElse, s.For)


def _is_same_in_all(choice: Choice, bound: set[Var]) -> bool:
    """Whether there is a choice, and it is the same in all iterations of a loop, which binds some
    variables."""
    match choice:
        case s.AttrStmt(_, key, value, _):
            return key in ALIGNMENT and bound.isdisjoint(free_vars(value))
        case s.IfThenElse(condition, _, other):
            is_plain = other is not None and is_pure(condition) and not loads(condition)
            return is_plain and bound.isdisjoint(free_vars(condition))
        case s.For():
            is_copy = not is_decided(choice) and bytes_of_copy(choice) is not None
            is_plain = is_pure(choice.extent) and not loads(choice.extent)
            return is_copy and is_plain and bound.isdisjoint(free_vars(choice.extent))


@final
class _Chosen(Mutator):
    """Replaces each choice that equals a given one by the branch that is taken for one outcome."""

    def __init__(self, choice: Choice, is_met: bool) -> None:
        super().__init__()
        self._key = _key_of(choice)
        self._is_met = is_met

    def visit_IfThenElse(self, node: s.IfThenElse) -> Stmt:
        if _key_of(node) != self._key:
            return self.descend(node)
        case = node.then_case if self._is_met else node.else_case
        return s.seq() if case is None else self.stmt(case)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        return self.stmt(node.body) if _key_of(node) == self._key else self.descend(node)

    def visit_For(self, node: s.For) -> Stmt:
        if _key_of(node) == self._key and bytes_of_copy(node) is not None:
            return as_whole(node, self._is_met)
        return self.descend(node)


def _key_of(choice: Choice) -> object:
    match choice:
        case s.AttrStmt(node, key, value, _):
            return node, key, structural_key(value)
        case s.IfThenElse(condition, _, _):
            return structural_key(condition)
        case s.For():
            return "copy", structural_key(choice.extent)
