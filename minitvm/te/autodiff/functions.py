"""The functions in which derivatives are written (:mod:`minitvm.tir.intrinsics`): functions of the
language, and some of numpy's under numpy's names. Neutral constants are dropped.
"""

from __future__ import annotations

from minitvm.runtime.dtype import DType
from minitvm.te.schedules.factors import number as number
from minitvm.te.schedules.factors import product as product
from minitvm.tir import expr as e
from minitvm.tir.expr import IntImm, PrimExpr, Select
from minitvm.tir.op import copysign as copysign
from minitvm.tir.op import cos as cos
from minitvm.tir.op import cosh as cosh
from minitvm.tir.op import exp as exp
from minitvm.tir.op import ldexp as ldexp
from minitvm.tir.op import log as log
from minitvm.tir.op import sin as sin
from minitvm.tir.op import sinh as sinh
from minitvm.tir.op import sqrt as sqrt
from minitvm.tir.op import trunc as trunc

logical_and = e.logical_and


def where(condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """One of two values, both of which are evaluated."""
    x, y = e.promote(a, b)
    if isinstance(condition, IntImm):
        return x if condition.value else y
    return x if x is y else Select(condition, x, y)


def ones_like(x: PrimExpr) -> PrimExpr:
    """The constant 1 of the dtype of `x`."""
    return e.const(1, x.dtype)


def zeros_like(x: PrimExpr) -> PrimExpr:
    """The constant 0 of the dtype of `x`."""
    return e.const(0, x.dtype)


def power(x: PrimExpr, p: PrimExpr) -> PrimExpr:
    """``x ** p``."""
    return x if number(p) == 1 else e.power(x, p)


def wide(dtype: DType) -> DType:
    """The dtype in which adjoints of a dtype are added up: ``float32`` for a dtype of 16 bits."""
    return DType.of("float32") if dtype.bits < 32 else dtype
