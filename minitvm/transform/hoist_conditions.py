"""Moves conditions out of the loops on which they don't depend."""

from __future__ import annotations

from minitvm.arith.atoms import is_pure, structural_key
from minitvm.arith.effects import is_stable, loads
from minitvm.arith.guards import conditions_around, under
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr
from minitvm.tir.functor import Mutator, mentions
from minitvm.tir.op import is_likely
from minitvm.tir.stmt import PrimFunc, Stmt, seq, with_body


def hoist_conditions(func: PrimFunc) -> PrimFunc:
    """Evaluates each condition as far out as its variables allow.

    Before::

        for i in range(n):
            for j in range(m):
                if likely(j < k):
                    if likely(i < k):
                        B[i, j] = 0.0

    After::

        for i in range(n):
            if likely(i < k):
                for j in range(m):
                    if likely(j < k):
                        B[i, j] = 0.0

    A condition moves out of a loop if it is around the whole body, if nothing in the loop changes
    it, and if it may be evaluated even when the loop has no iterations: a condition that reads a
    buffer moves only if the loop surely runs. Each of several nested conditions moves by itself.
    Neighbours under one condition are joined first, so that a condition on several loops in a row
    moves out of the loop around them.
    """
    return with_body(func, _Hoist().stmt(func.body))


class _Hoist(Mutator):
    """Moves conditions out of loops, inner loops first."""

    def visit_SeqStmt(self, node: s.SeqStmt) -> Stmt:
        made = [self.stmt(each) for each in node.seq]
        joined = made[:1]
        for each in made[1:]:
            both = _joined(joined[-1], each)
            if both is None:
                joined.append(each)
            else:
                joined[-1] = both
        same = len(joined) == len(node.seq) and all(map(Stmt.same_as, joined, node.seq))
        return node if same else seq(*joined)

    def visit_AttrStmt(self, node: s.AttrStmt) -> Stmt:
        """Moves conditions out of the statement that pads a buffer. Guards of the padding itself
        stay."""
        made: s.AttrStmt = self.descend(node)
        conditions, body = conditions_around(made.body)
        moves = [is_pure(each) and not is_likely(each) for each in conditions]
        if made.attr_key != "padded_buffer" or not any(moves) or any(map(loads, conditions)):
            return made
        stay = [each for each, does in zip(conditions, moves, strict=True) if not does]
        outside = [each for each, does in zip(conditions, moves, strict=True) if does]
        rest = s.AttrStmt(made.node, made.attr_key, made.value, under(stay, body))
        return under(outside, rest)

    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        if not (is_pure(node.min) and is_pure(node.extent)):
            return made
        body = made.body
        if isinstance(body, s.IfThenElse) and body.else_case is not None:
            return self._with_both_cases(made, body)
        outside: list[PrimExpr] = []
        inside: list[PrimExpr] = []
        conditions, body = conditions_around(body)
        for condition in conditions:
            # A condition with a load stays under the conditions around it; every condition stays
            # under an impure one.
            behind = loads(condition) or not all(map(is_pure, inside))
            moves = _may_move(condition, made) and not (inside and behind)
            (outside if moves else inside).append(condition)
        if not outside:
            return made
        result = _loop(made, under(inside, body))
        return under(outside, result)

    def _with_both_cases(self, node: s.For, body: s.IfThenElse) -> Stmt:
        assert body.else_case is not None
        if not _may_move(body.condition, node):
            return node
        cases = _loop(node, body.then_case), _loop(node, body.else_case)
        return s.IfThenElse(body.condition, *cases)


def _joined(first: Stmt, second: Stmt) -> Stmt | None:
    """Joins two statements under the same condition, if the first doesn't change it."""
    if not (isinstance(first, s.IfThenElse) and isinstance(second, s.IfThenElse)):
        return None
    if first.else_case is not None or second.else_case is not None:
        return None
    condition = first.condition
    if structural_key(condition) != structural_key(second.condition):
        return None
    if not (is_pure(condition) and is_stable(condition, first.then_case)):
        return None
    inner = _joined(first.then_case, second.then_case)
    return s.IfThenElse(condition, inner or seq(first.then_case, second.then_case))


def _may_move(condition: PrimExpr, node: s.For) -> bool:
    if not is_pure(condition) or mentions(node.loop_var, condition):
        return False
    if not loads(condition):
        return True
    runs = (e.const_int(node.extent) or 0) > 0
    return runs and is_stable(condition, node.body)


def _loop(node: s.For, body: Stmt) -> Stmt:
    return s.For(node.loop_var, node.min, node.extent, node.kind, body, node.annotations)
