"""Replaces a loop in which data choose the only iteration with an effect by that iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_stable, loads
from minitvm.arith.guards import conjuncts
from minitvm.runtime.dtype import INT64, DType
from minitvm.runtime.record import record
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, mentions, with_fields
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, seq, with_body
from minitvm.tir.structural_equal import structural_equal


def enter_once(func: PrimFunc) -> PrimFunc:
    """Replaces a loop that has an effect only where its variable equals a value by that iteration.

    Before::

        for p in range(n):
            for c in range(64):
                if nearest[p] == c:
                    count[c] = count[c] + 1

    After::

        for p in range(n):
            c = nearest[p]
            if c >= 0 and c < 64:
                count[c] = count[c] + 1

    The loop is serial, the equality is a condition on all that it does, and nothing in the loop
    changes the value. A value that is read from memory is read only where the loop surely
    runs, which has constant bounds. Conditions before the equality that are the same in all
    iterations are tested first, outside of the loop: so each of several nested loops may become
    one iteration.
    """
    return with_body(func, _EnterOnce().stmt(func.body))


class _EnterOnce(Mutator):
    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        begin, extent = e.const_int(made.min), e.const_int(made.extent)
        if made.kind != ForKind.SERIAL or begin is None or not extent:
            return made
        found = _where_equal(made.body, made.loop_var, range(begin, begin + extent))
        if found is None or not found.is_read:
            return made
        if not all(is_stable(each, made.body) for each in (found.value, *found.before)):
            return made
        value, inside = found.value, found.inside
        named = Var(made.loop_var.name, INT64)
        once = s.LetStmt(made.loop_var, e.cast(made.loop_var.dtype, named), inside)
        is_inside = e.logical_and(
            e.GE(named, e.const(begin, INT64)), e.LT(named, e.const(begin + extent, INT64))
        )
        entered: Stmt = s.LetStmt(named, e.cast(INT64, value), s.IfThenElse(is_inside, once))
        for each in reversed(found.before):
            entered = s.IfThenElse(each, entered)
        return entered


@final
@record()
class _Equal:
    """The only value of a variable for which a statement has an effect; the statement `inside` of
    this condition; the conditions `before` it, which don't change with the variable; and whether
    the statement reads the value wherever these hold."""

    value: PrimExpr
    inside: Stmt
    before: tuple[PrimExpr, ...]
    is_read: bool


def _where_equal(body: Stmt, var: Var, values: range) -> _Equal | None:
    match body:
        case s.IfThenElse(condition, inside, None):
            each_of = [*conjuncts(condition)]
            for at, first in enumerate(each_of):
                value = _value_of(first, var, values)
                if value is not None:
                    for each in reversed(each_of[at + 1 :]):
                        inside = s.IfThenElse(each, inside)
                    return _Equal(value, inside, tuple(each_of[:at]), True)
                if mentions(var, first) or not is_pure(first):
                    break
            found = _where_equal(inside, var, values) if is_pure(condition) else None
            if found is None or found.before:
                return None
            return _Equal(found.value, s.IfThenElse(condition, found.inside), (), False)
        case s.For() if is_pure(body.min) and is_pure(body.extent):
            found = _where_equal(body.body, var, values)
            if found is None:
                return None
            if any(mentions(body.loop_var, each) for each in (found.value, *found.before)):
                return None
            runs = (e.const_int(body.extent) or 0) > 0
            loop = with_fields(body, body=found.inside)
            return _Equal(found.value, loop, found.before, found.is_read and runs)
        case s.SeqStmt(statements):  # such as whole vectors, and the last elements
            parts = [_where_equal(each, var, values) for each in statements]
            known = [each for each in parts if each is not None]
            if len(known) < len(parts):
                return None
            value, before = known[0].value, known[0].before
            if not all(_are_equal((x.value, *x.before), (value, *before)) for x in known):
                return None
            made = seq(*(each.inside for each in known))
            return _Equal(value, made, before, any(each.is_read for each in known))
    return None


def _are_equal(some: Sequence[PrimExpr], others: Sequence[PrimExpr]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(structural_equal(x, y) for x, y in pairs)


def _value_of(condition: PrimExpr, var: Var, values: range) -> PrimExpr | None:
    """The value that a condition requires a variable to equal; None if the condition isn't such an
    equality."""
    if not isinstance(condition, e.EQ):
        return None
    for own, other in ((condition.a, condition.b), (condition.b, condition.a)):
        is_var = own is var or (
            isinstance(own, e.Cast) and own.value is var and _holds(own.dtype, values)
        )
        if is_var and _holds(INT64, other.dtype) and is_pure(other) and not mentions(var, other):
            return other if loads(other) else None
    return None


def _holds(dtype: DType, values: range | DType) -> bool:
    """Whether an integer type holds all values of a range or of another integer type."""
    if not dtype.is_integral or dtype.lanes > 1:
        return False
    if isinstance(values, range):
        return dtype.min() <= values[0] and values[-1] <= dtype.max()
    is_integer = values.is_integral and values.lanes == 1
    return is_integer and dtype.min() <= values.min() and values.max() <= dtype.max()
