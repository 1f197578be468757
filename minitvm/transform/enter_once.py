"""Replaces a loop in which data choose the only iteration with an effect by that iteration."""

from __future__ import annotations

from minitvm.arith.atoms import is_pure
from minitvm.arith.effects import is_stable, loads
from minitvm.arith.guards import conjuncts
from minitvm.runtime.dtype import INT64, DType
from minitvm.tir import expr as e
from minitvm.tir import stmt as s
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.functor import Mutator, mentions
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, with_body


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

    The loop is serial, the equality is the first condition around its whole body, and nothing in
    the loop changes the value. A value from memory is read only where the loop surely runs; the
    loop has constant bounds.
    """
    return with_body(func, _EnterOnce().stmt(func.body))


class _EnterOnce(Mutator):
    def expr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: s.For) -> Stmt:
        made: s.For = self.descend(node)
        body = made.body
        if made.kind != ForKind.SERIAL or not isinstance(body, s.IfThenElse) or body.else_case:
            return made
        begin, extent = e.const_int(made.min), e.const_int(made.extent)
        if begin is None or not extent:
            return made
        first, *others = conjuncts(body.condition)
        value = _value_of(first, made.loop_var, range(begin, begin + extent))
        if value is None or not is_stable(value, made.body):
            return made
        inside = body.then_case
        for condition in reversed(others):
            inside = s.IfThenElse(condition, inside)
        named = Var(made.loop_var.name, INT64)
        once = s.LetStmt(made.loop_var, e.cast(made.loop_var.dtype, named), inside)
        is_inside = e.logical_and(
            e.GE(named, e.const(begin, INT64)), e.LT(named, e.const(begin + extent, INT64))
        )
        return s.LetStmt(named, e.cast(INT64, value), s.IfThenElse(is_inside, once))


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
