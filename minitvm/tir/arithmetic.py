"""Python's operators as functions of expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm.runtime.dtype import BOOL
from minitvm.runtime.errors import CompileError
from minitvm.tir.conversion import as_condition, as_expr, constant
from minitvm.tir.elementwise import elementwise
from minitvm.tir.folding import arithmetic, compare, intrinsic, may_go
from minitvm.tir.node import PrimExpr
from minitvm.tir.nodes import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Arithmetic,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
)
from minitvm.tir.promotion import cast, matched, operands, promote


@elementwise
def add(a: Any, b: Any) -> PrimExpr:
    """``a + b``."""
    return arithmetic(Add, a, b)


@elementwise
def subtract(a: Any, b: Any) -> PrimExpr:
    """``a - b``."""
    return arithmetic(Sub, a, b)


@elementwise
def multiply(a: Any, b: Any) -> PrimExpr:
    """``a * b``."""
    return arithmetic(Mul, a, b)


@elementwise
def divide(a: Any, b: Any) -> PrimExpr:
    """``a / b`` of floats. On two integers it is ambiguous and refused, as in classic TVM."""
    x, y = operands(a, b)
    if x.dtype.is_integral and y.dtype.is_integral:
        raise CompileError(
            f"`/` on integers ({x.dtype}, {y.dtype}) is ambiguous: use floordiv or truncdiv "
            "(`//` is floordiv), or cast an operand to a float"
        )
    return arithmetic(Div, x, y)


@elementwise
def truncdiv(a: Any, b: Any) -> PrimExpr:
    """The quotient of integers rounded towards zero, as in C."""
    return _integer_arithmetic(Div, a, b)


@elementwise
def truncmod(a: Any, b: Any) -> PrimExpr:
    """The remainder of :func:`truncdiv`, with the sign of `a`, as in C."""
    return _integer_arithmetic(Mod, a, b)


def _integer_arithmetic(node: type[Arithmetic], a: Any, b: Any) -> PrimExpr:
    _refuse_zero(b)
    x, y = operands(a, b)
    if x.dtype.is_float or y.dtype.is_float:
        raise CompileError(f"expected integers, got {x.dtype} and {y.dtype}")
    return arithmetic(node, x, y)


def _refuse_zero(divisor: Any) -> None:
    """Refuses a division by a literal zero. A division by a computed zero has a value: 0."""
    if type(divisor) is int and divisor == 0:
        raise CompileError("expected a divisor other than 0")


@elementwise
def floordiv(a: Any, b: Any) -> PrimExpr:
    """The quotient rounded down, as Python's ``//``; on floats ``floor(a / b)``."""
    _refuse_zero(b)
    x, y = operands(a, b)
    if x.dtype.is_float or y.dtype.is_float:
        quotient = divide(x, y)
        return intrinsic("floor", quotient.dtype, quotient)
    return arithmetic(FloorDiv, x, y)


@elementwise
def floormod(a: Any, b: Any) -> PrimExpr:
    """The remainder of :func:`floordiv`, with the sign of `b`, as Python's ``%``."""
    _refuse_zero(b)
    x, y = promote(a, b)
    if not x.dtype.is_float:
        return arithmetic(FloorMod, x, y)
    remainder = Var("remainder", x.dtype)
    zero = constant(0.0, x.dtype)
    wrong_sign = And(NE(remainder, zero), NE(LT(remainder, zero), LT(y, zero)))
    shifted = Select(wrong_sign, Add(remainder, y), remainder)
    return Let(remainder, intrinsic("fmod", x.dtype, x, y), shifted)


@elementwise
def minimum(a: Any, b: Any) -> PrimExpr:
    """The lesser of two values; NaN when either is."""
    return arithmetic(Min, a, b)


@elementwise
def maximum(a: Any, b: Any) -> PrimExpr:
    """The greater of two values; NaN when either is."""
    return arithmetic(Max, a, b)


@elementwise
def negate(a: Any) -> PrimExpr:
    """``-a``: on floats the sign is flipped, also the sign of zero; unsigned integers wrap."""
    x = as_expr(a)
    if x.dtype.is_integral and not x.dtype.is_int and not x.dtype.is_bool:
        return subtract(constant(0, x.dtype), x)
    return multiply(x, constant(-1, x.dtype))


@elementwise
def absolute(a: Any) -> PrimExpr:
    """``abs(a)``; the least integer stays itself."""
    x = as_expr(a)
    return x if x.dtype.is_uint or x.dtype.is_bool else intrinsic("fabs", x.dtype, x)


@elementwise
def power(a: Any, b: Any) -> PrimExpr:
    """``a ** b``; integers wrap, and a negative exponent gives the quotient towards zero. Squares,
    cubes and inverses of floats are products and quotients."""
    x, y = promote(a, b)
    if isinstance(y, IntImm | FloatImm):
        if y.value in (2, 3):
            return multiply(x, x) if y.value == 2 else multiply(multiply(x, x), x)
        if y.value in (0, 1):
            return x if y.value == 1 else constant(1, x.dtype)
        if y.value == -1 and x.dtype.is_float:
            return divide(constant(1, x.dtype), x)
    return intrinsic("power", x.dtype, x, y)


@elementwise
def less(a: Any, b: Any) -> PrimExpr:
    """``a < b``."""
    return compare(LT, a, b)


@elementwise
def less_equal(a: Any, b: Any) -> PrimExpr:
    """``a <= b``."""
    return compare(LE, a, b)


@elementwise
def greater(a: Any, b: Any) -> PrimExpr:
    """``a > b``."""
    return compare(GT, a, b)


@elementwise
def greater_equal(a: Any, b: Any) -> PrimExpr:
    """``a >= b``."""
    return compare(GE, a, b)


@elementwise
def equal(a: Any, b: Any) -> PrimExpr:
    """``a == b``."""
    return compare(EQ, a, b)


@elementwise
def not_equal(a: Any, b: Any) -> PrimExpr:
    """``a != b``."""
    return compare(NE, a, b)


def _joined(cls: type[And | Or], neutral: bool, a: Any, b: Any) -> PrimExpr:
    """``cls`` of two conditions. A constant condition is folded, unless this would drop a condition
    that must be evaluated."""
    x, y = matched(as_condition(a), as_condition(b))
    for known, other in ((x, y), (y, x)):
        if isinstance(known, IntImm):
            if bool(known.value) is neutral:
                return other
            if may_go(other):
                return known
    return cls(x, y)


@elementwise
def logical_and(a: Any, b: Any) -> PrimExpr:
    """The conjunction of two conditions."""
    return _joined(And, True, a, b)


@elementwise
def logical_or(a: Any, b: Any) -> PrimExpr:
    """The disjunction of two conditions."""
    return _joined(Or, False, a, b)


@elementwise
def logical_not(a: Any) -> PrimExpr:
    """The opposite of a condition."""
    x = as_condition(a)
    return constant(not x.value, BOOL) if isinstance(x, IntImm) else Not(x)


def _bitwise(name: str, a: Any, b: Any) -> PrimExpr:
    x, y = promote(a, b)
    if not x.dtype.is_integral:
        raise CompileError(f"expected integers, got {x.dtype}")
    return intrinsic(name, x.dtype, x, y)


@elementwise
def bitwise_and(a: Any, b: Any) -> PrimExpr:
    """``a & b`` on integers."""
    return _bitwise("bitwise_and", a, b)


@elementwise
def bitwise_or(a: Any, b: Any) -> PrimExpr:
    """``a | b`` on integers."""
    return _bitwise("bitwise_or", a, b)


@elementwise
def bitwise_xor(a: Any, b: Any) -> PrimExpr:
    """``a ^ b`` on integers."""
    return _bitwise("bitwise_xor", a, b)


@elementwise
def bitwise_not(a: Any) -> PrimExpr:
    """``~a`` on integers; the opposite of a ``bool``."""
    x = as_expr(a)
    if x.dtype.is_bool:
        return logical_not(x)
    if not x.dtype.is_integral:
        raise CompileError(f"expected an integer, got {x.dtype}")
    return intrinsic("bitwise_not", x.dtype, x)


def _shift(name: str, a: Any, b: Any) -> PrimExpr:
    x, y = promote(a, b)
    if not x.dtype.is_integral or x.dtype.is_bool:
        raise CompileError(f"expected integers, got {x.dtype}")
    if isinstance(y, IntImm) and not 0 <= y.value < x.dtype.bits:
        raise CompileError(
            f"expected a shift from 0 to {x.dtype.bits - 1} for {x.dtype}, got {y.value}"
        )
    return intrinsic(name, x.dtype, x, y)


@elementwise
def shift_left(a: Any, b: Any) -> PrimExpr:
    """``a << b``; a shift out of range gives 0."""
    return _shift("shift_left", a, b)


@elementwise
def shift_right(a: Any, b: Any) -> PrimExpr:
    """``a >> b``, keeping the sign of a signed `a`."""
    return _shift("shift_right", a, b)


# The functions behind the methods of expressions.
FUNCTIONS: dict[str, Callable[..., PrimExpr]] = {
    each.__name__: each
    for each in (
        add, subtract, multiply, divide, floordiv, floormod, power, negate, absolute, shift_left,
        shift_right, bitwise_and, bitwise_or, bitwise_xor, bitwise_not, less, less_equal, greater,
        greater_equal, equal, not_equal, as_expr, cast,
    )
}  # fmt: skip
