"""Promotion: the dtype in which an operator computes, and the conversion of operands to it."""

from __future__ import annotations

from typing import Any

from minitvm.runtime.dtype import FLOAT64, DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.tir import scalars
from minitvm.tir.checks import check_cast
from minitvm.tir.conversion import as_dtype, as_expr, constant
from minitvm.tir.described import described
from minitvm.tir.elementwise import elementwise
from minitvm.tir.node import ExprOperators, PrimExpr
from minitvm.tir.nodes import Broadcast, Cast, Constant


def operands(a: Any, b: Any) -> tuple[PrimExpr, PrimExpr]:
    """Both operands as expressions; a Python float next to a float64 keeps all its digits."""
    if isinstance(a, float) and not isinstance(b, (float, int)):
        b = as_expr(b)
        return constant(a, FLOAT64 if b.dtype.element == FLOAT64 else None), b
    if isinstance(b, float) and not isinstance(a, (float, int)):
        a = as_expr(a)
        return a, constant(b, FLOAT64 if a.dtype.element == FLOAT64 else None)
    return as_expr(a), as_expr(b)


def promote(a: Any, b: Any) -> tuple[PrimExpr, PrimExpr]:
    """Two operands as expressions of their common dtype, in which an operator computes.

    Raises
    ------
    CompileError
        When they have no common dtype: see :func:`promoted`.
    """
    if isinstance(a, PrimExpr) and isinstance(b, PrimExpr):
        return matched(a, b)
    return matched(*operands(a, b))


def matched(a: PrimExpr, b: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """Both operands in their common type (classic ``BinaryOpMatchTypes``, src/tir/op/op.cc)."""
    if a.dtype is b.dtype:
        return a, b
    dtype = promoted(a.dtype, b.dtype)
    return cast(dtype, a), cast(dtype, b)


def promoted(a: DType, b: DType) -> DType:
    """The type in which an operator on `a` and `b` computes.

    A scalar is broadcast to a vector. For two floats, or two integers of one signedness, it is the
    wider type; for an integer and a float, the float; for a signed and an unsigned integer, the
    wider one, or the unsigned one if both have the same width; ``bool`` yields to any type.

    Raises
    ------
    CompileError
        For vectors of different lanes, handles, and float16 with bfloat16, which have no common
        type: cast one of them.

    >>> from minitvm.runtime.dtype import DType
    >>> promoted(DType.of("int64"), DType.of("float32"))
    DType('float32')
    """
    if a == b:
        return a
    lanes = max(a.lanes, b.lanes)
    if min(a.lanes, b.lanes) not in (1, lanes):
        raise CompileError(f"operands: expected equal lanes, got {a} and {b}")
    x, y = a.element, b.element
    if x == y:
        return x.with_lanes(lanes)
    if not (x.is_float or x.is_integral) or not (y.is_float or y.is_integral):
        raise CompileError(f"operands: expected numbers, got {a} and {b}")
    if x.is_float != y.is_float:
        return (x if x.is_float else y).with_lanes(lanes)
    if x.is_bool or y.is_bool:
        return (y if x.is_bool else x).with_lanes(lanes)
    if x.bits != y.bits:
        return (x if x.bits > y.bits else y).with_lanes(lanes)
    if x.is_float:
        raise CompileError(f"operands: {a} and {b} have no common type: cast one of them")
    return (x if x.is_uint else y).with_lanes(lanes)


@elementwise
def cast(dtype: DTypeLike, value: Any) -> PrimExpr:
    """`value` converted to `dtype`; a scalar becomes a vector where `dtype` is one.

    >>> cast("float32", 1)
    1.0
    """
    if isinstance(dtype, ExprOperators) and isinstance(value, str | type):
        raise CompileError(
            f"expected a dtype and then a value, got {described(dtype)} first: write "
            f"cast({value!r}, ...)"
        )
    wanted = as_dtype(dtype)
    expr = as_expr(value)
    if expr.dtype is wanted:
        return expr
    if expr.dtype.lanes == 1 and wanted.lanes > 1:
        return Broadcast(cast(wanted.element, expr), wanted.lanes)
    check_cast(expr.dtype, wanted)
    if isinstance(expr, Constant):
        return constant(scalars.cast(wanted, expr.value), wanted)
    return Cast(wanted, expr)
