"""The rewriting rules of the simplifier: one a line, ``(left, right, condition)``.

``x y z`` stand for any value, ``p q`` for any ``bool``, ``c0 c1`` for integer constants; ZERO, ONE,
TRUE and FALSE for the constant in whatever dtype is at hand. Operands of ``+ * min max == != and
or`` match in either order. Without a condition a rule holds for every dtype and value, NaN,
infinities, signed zeros and integers that wrap included; ``integer`` restricts it to integers,
whose values are then those that the machine computes. Sums, products, and quotients of sums are not
here but have a normal form, in :mod:`minitvm.arith.simplify`. A rule only ever makes a term
smaller, so rewriting ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from minitvm.runtime.dtype import BOOL, INT32, DType
from minitvm.runtime.record import record
from minitvm.tir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    Call,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    Sub,
    Var,
)


class Matched(Protocol):
    """A term that a rule's left side matches, as its condition sees it."""

    node: PrimExpr

    def __getitem__(self, wildcard: Var) -> PrimExpr: ...
    def value(self, constant: Var) -> int: ...
    def proves(self, condition: PrimExpr) -> bool: ...
    def implies(self, premise: PrimExpr, conclusion: PrimExpr) -> bool: ...


Condition = Callable[[Matched], bool]


@final
@record()
class Rule:
    """`left` may be replaced by `right` where `when` holds."""

    left: PrimExpr
    right: PrimExpr
    when: Condition


# -- Wildcards ------------------------------------------------------------------------------------

x, y, z = Var("x"), Var("y"), Var("z")
c0, c1 = Var("c0"), Var("c1")
p, q = Var("p", BOOL), Var("q", BOOL)
CONSTANTS = (c0, c1)
ZERO, ONE = IntImm(INT32, 0), IntImm(INT32, 1)
TRUE, FALSE = IntImm(BOOL, 1), IntImm(BOOL, 0)


# -- Conditions -----------------------------------------------------------------------------------


def always(match: Matched) -> bool:
    return True


def integer(match: Matched) -> bool:
    """The operands are integers (so none is NaN, and order is total)."""
    operand: PrimExpr = getattr(match.node, "a", match.node)
    operand = getattr(operand, "a", operand)  # Not(LT(x, y)) is about x
    return operand.dtype.is_integral and not operand.dtype.is_bool


def proved(*conditions: PrimExpr) -> Condition:
    """The operands are integers, and `conditions` surely hold."""
    return lambda match: integer(match) and all(map(match.proves, conditions))


def implied(premise: PrimExpr, conclusion: PrimExpr) -> Condition:
    """`conclusion` holds whenever `premise` does."""
    return lambda match: match.implies(premise, conclusion)


def _composable(match: Matched) -> bool:
    first, second = match.value(c0), match.value(c1)
    return first > 0 and second > 0 and first * second <= match.node.dtype.max()


def _divides(match: Matched) -> bool:
    first, second = match.value(c0), match.value(c1)
    return first > 0 and second > 0 and first % second == 0


def _inner_cast_is_exact(match: Matched) -> bool:
    inner: PrimExpr = getattr(match.node, "value", match.node)
    outer, middle, source = (each.dtype.element for each in (match.node, inner, match[x]))
    if not represents(middle, source):
        return False
    # The conversion of a float that the integer type can't hold saturates, where an integer wraps.
    saturates = middle.is_float and outer.is_integral and source.is_integral
    return not saturates or represents(outer, source)


def represents(outer: DType, inner: DType) -> bool:
    """Whether every value of `inner` is one of `outer`.

    >>> from minitvm.runtime.dtype import FLOAT32, INT32, INT64
    >>> represents(INT64, INT32), represents(FLOAT32, INT32)
    (True, False)
    """
    if outer == inner:
        return True
    if outer.is_float and inner.is_float:
        return outer.bits > inner.bits
    if outer.is_float and inner.is_integral:
        return max(-inner.min(), inner.max()) <= 1 << _SIGNIFICANT_BITS[str(outer)]
    if outer.is_integral and inner.is_integral:
        return outer.min() <= inner.min() and inner.max() <= outer.max()
    return False


# float16 ends at 65504, so it holds only the integers of 8 bits; its 11 bits cover them.
_SIGNIFICANT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


# -- The rules, by the class of their left side ---------------------------------------------------


def _lazy(condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return Call(a.dtype, "if_then_else", (condition, a, b))


# fmt: off
_ROWS: tuple[tuple[PrimExpr, PrimExpr, Condition], ...] = (
    # Numbers. `x + 0.0` stays: it turns -0.0 into 0.0.
    (Sub(x, ZERO), x, always),
    (Mul(x, ONE), x, always),
    (Div(x, ONE), x, always),
    (Mod(x, ONE), ZERO, integer),

    # Quotients and remainders.
    (FloorDiv(FloorDiv(x, c0), c1), FloorDiv(x, c0 * c1), _composable),
    (FloorMod(FloorMod(x, c0), c1), FloorMod(x, c1), _divides),
    (FloorDiv(FloorMod(x, c0), c1), FloorMod(FloorDiv(x, c1), FloorDiv(c0, c1)), _divides),
    (FloorDiv(x, y), ZERO, proved(GE(x, ZERO), LT(x, y))),
    (FloorMod(x, y), x, proved(GE(x, ZERO), LT(x, y))),
    (Div(x, y), ZERO, proved(GE(x, ZERO), LT(x, y))),
    (Mod(x, y), x, proved(GE(x, ZERO), LT(x, y))),

    # The lesser and the greater.
    (Min(x, x), x, always),
    (Max(x, x), x, always),
    (Min(Min(x, c0), c1), Min(x, Min(c0, c1)), integer),
    (Max(Max(x, c0), c1), Max(x, Max(c0, c1)), integer),
    (Min(x, y), x, proved(LE(x, y))),
    (Max(x, y), x, proved(GE(x, y))),

    # Comparisons.
    (LT(x, y), TRUE, proved(LT(x, y))),
    (LE(x, y), TRUE, proved(LE(x, y))),
    (GT(x, y), TRUE, proved(GT(x, y))),
    (GE(x, y), TRUE, proved(GE(x, y))),
    (EQ(x, y), TRUE, proved(EQ(x, y))),
    (NE(x, y), TRUE, proved(NE(x, y))),
    (LT(x, y), FALSE, proved(GE(x, y))),
    (LE(x, y), FALSE, proved(GT(x, y))),
    (GT(x, y), FALSE, proved(LE(x, y))),
    (GE(x, y), FALSE, proved(LT(x, y))),
    (EQ(x, y), FALSE, proved(NE(x, y))),
    (NE(x, y), FALSE, proved(EQ(x, y))),
    (EQ(p, TRUE), p, always),
    (EQ(p, FALSE), Not(p), always),
    (NE(p, TRUE), Not(p), always),
    (NE(p, FALSE), p, always),

    # Logic.
    (And(p, TRUE), p, always),
    (And(p, FALSE), FALSE, always),
    (And(p, p), p, always),
    (And(p, Not(p)), FALSE, always),
    (And(p, And(p, q)), And(p, q), always),
    (And(p, Or(p, q)), p, always),
    (And(p, q), p, implied(p, q)),
    (And(p, q), FALSE, implied(p, Not(q))),
    (Or(p, TRUE), TRUE, always),
    (Or(p, FALSE), p, always),
    (Or(p, p), p, always),
    (Or(p, Not(p)), TRUE, always),
    (Or(p, Or(p, q)), Or(p, q), always),
    (Or(p, And(p, q)), p, always),
    (Or(p, q), q, implied(p, q)),
    (Or(p, q), TRUE, implied(Not(p), q)),
    (Not(TRUE), FALSE, always),
    (Not(FALSE), TRUE, always),
    (Not(Not(p)), p, always),
    (Not(EQ(x, y)), NE(x, y), always),
    (Not(NE(x, y)), EQ(x, y), always),
    (Not(LT(x, y)), GE(x, y), integer),  # not for floats: with NaN both are false
    (Not(LE(x, y)), GT(x, y), integer),
    (Not(GT(x, y)), LE(x, y), integer),
    (Not(GE(x, y)), LT(x, y), integer),

    # Choices.
    (Select(TRUE, x, y), x, always),
    (Select(FALSE, x, y), y, always),
    (Select(p, x, x), x, always),
    (Select(p, TRUE, FALSE), p, always),
    (Select(p, FALSE, TRUE), Not(p), always),
    (Select(Not(p), x, y), Select(p, y, x), always),
    (Select(p, Select(p, x, y), z), Select(p, x, z), always),
    (Select(p, x, Select(p, y, z)), Select(p, x, z), always),
    (_lazy(TRUE, x, y), x, always),
    (_lazy(FALSE, x, y), y, always),
    (_lazy(p, x, x), x, always),
    (Call(BOOL, "likely", (TRUE,)), TRUE, always),
    (Call(BOOL, "likely", (FALSE,)), FALSE, always),

    # Conversions: a rule's cast is to the dtype of the term that it rewrites.
    (Cast(INT32, Cast(INT32, x)), Cast(INT32, x), _inner_cast_is_exact),
)
# fmt: on

RULES: dict[type[PrimExpr], tuple[Rule, ...]] = {
    cls: tuple(Rule(*row) for row in _ROWS if type(row[0]) is cls)
    for cls in {type(left): None for left, _, _ in _ROWS}
}
