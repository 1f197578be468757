"""Replaces a loop in which data choose the only iteration with an effect by that iteration."""

from __future__ import annotations

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
    runs, which has constant bounds.
    """
    return with_body(func, _EnterOnce().stmt(func.body))


class _EnterOnce(Mutator):
    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        begin, extent = e.const_int(made.min), e.const_int(made.extent)
        if made.kind != ForKind.SERIAL or begin is None or not extent:
            return made
        found = _where_equal(made.body, made.loop_var, range(begin, begin + extent))
        if found is None or not found.is_read or not is_stable(found.value, made.body):
            return made
        value, inside = found.value, found.inside
        named = Var(made.loop_var.name, INT64)
        once = s.LetStmt(made.loop_var, e.cast(made.loop_var.dtype, named), inside)
        is_inside = e.logical_and(
            e.GE(named, e.const(begin, INT64)), e.LT(named, e.const(begin + extent, INT64))
        )
        return s.LetStmt(named, e.cast(INT64, value), s.IfThenElse(is_inside, once))


@final
@record()
class _Equal:
    """The only value of a variable for which a statement has an effect; the statement `inside` of
    this condition; and whether the statement reads the value in any case."""

    value: PrimExpr
    inside: Stmt
    is_read: bool


def _where_equal(body: Stmt, var: Var, values: range) -> _Equal | None:
    match body:
        case s.IfThenElse(condition, inside, None):
            first, *others = conjuncts(condition)
            value = _value_of(first, var, values)
            if value is not None:
                for each in reversed(others):
                    inside = s.IfThenElse(each, inside)
                return _Equal(value, inside, True)
            found = _where_equal(inside, var, values) if is_pure(condition) else None
            return found and _Equal(found.value, s.IfThenElse(condition, found.inside), False)
        case s.For() if is_pure(body.min) and is_pure(body.extent):
            found = _where_equal(body.body, var, values)
            if found is None or mentions(body.loop_var, found.value):
                return None
            runs = (e.const_int(body.extent) or 0) > 0
            loop = with_fields(body, body=found.inside)
            return _Equal(found.value, loop, found.is_read and runs)
        case s.SeqStmt(statements):  # such as whole vectors, and the last elements
            parts = [_where_equal(each, var, values) for each in statements]
            known = [each for each in parts if each is not None]
            if len(known) < len(parts):
                return None
            value = known[0].value
            if not all(structural_equal(each.value, value) for each in known):
                return None
            made = seq(*(each.inside for each in known))
            return _Equal(value, made, any(each.is_read for each in known))
    return None


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
