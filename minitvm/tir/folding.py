"""Makes nodes on promoted operands, folded where these are constants or an identity holds."""

from __future__ import annotations

from typing import Any

from minitvm.runtime.dtype import BOOL, DType
from minitvm.tir import scalars
from minitvm.tir.checks import check_numbers
from minitvm.tir.conversion import constant
from minitvm.tir.intrinsics import IMPURE_CALLS, INTRINSICS
from minitvm.tir.node import PrimExpr
from minitvm.tir.nodes import Arithmetic, BinaryOp, Call, Constant, IntImm
from minitvm.tir.promotion import promote
from minitvm.tir.tree import find


def may_go(value: PrimExpr) -> bool:
    """Whether `value` need not be evaluated where its result isn't used."""
    calls = (each.op for each in find(Call, value))
    return IMPURE_CALLS.isdisjoint(calls)


_ZERO_RIGHT = ("Add", "Sub")  # x op 0 is x
_ONE_RIGHT = ("Mul", "Div", "FloorDiv")  # x op 1 is x


def arithmetic(node: type[Arithmetic], a: Any, b: Any) -> PrimExpr:
    """The node on promoted operands, folded where these are constants or an identity holds.

    Only identities that hold for every float are used, NaN, infinities and signed zeros included. A
    call out of the program stays, even if it is multiplied by 0.
    """
    x, y = promote(a, b)
    name = node.__name__
    check_numbers(x.dtype, node.takes_bools)
    if isinstance(x, IntImm) and isinstance(y, IntImm) and not _holds(x.dtype, name, x, y):
        return node(x, y)  # as a dimension, the result exceeds the dtype
    if isinstance(x, Constant) and isinstance(y, Constant):
        return constant(scalars.binary(name, x.dtype, x.value, y.value), x.dtype)
    if isinstance(y, IntImm):
        if (y.value == 0 and name in _ZERO_RIGHT) or (y.value == 1 and name in _ONE_RIGHT):
            return x
        if y.value == 0 and name not in ("Min", "Max") and may_go(x):
            return constant(0, x.dtype)  # x * 0, and by definition x / 0 and x % 0
    if isinstance(x, IntImm):
        if (x.value == 0 and name == "Add") or (x.value == 1 and name == "Mul"):
            return y
        if x.value == 0 and name not in ("Min", "Max", "Sub") and may_go(y):
            return constant(0, x.dtype)
    return node(x, y)


def _holds(dtype: DType, name: str, x: IntImm, y: IntImm) -> bool:
    """Whether a dtype holds an operator's result on two constants. Arithmetic of data wraps, so its
    result is always held."""
    if not dtype.is_int or dtype.bits < 32:
        return True
    return dtype.min() <= scalars.INT_BINARY[name](x.value, y.value) <= dtype.max()


def _holds_shifted(dtype: DType, value: int, amount: int) -> bool:
    """Whether a dtype holds ``value << amount``, as :func:`_holds`."""
    if not dtype.is_int or dtype.bits < 32 or not 0 <= amount < dtype.bits:
        return True
    return dtype.min() <= value << amount <= dtype.max()


def compare(node: type[BinaryOp], a: Any, b: Any) -> PrimExpr:
    """A comparison of promoted operands, folded where both are constants."""
    x, y = promote(a, b)
    if isinstance(x, Constant) and isinstance(y, Constant):
        return constant(scalars.COMPARE[node.__name__](x.value, y.value), BOOL)
    return node(x, y)


def intrinsic(name: str, dtype: DType, *args: PrimExpr) -> PrimExpr:
    """A call of an intrinsic of :data:`minitvm.tir.intrinsics.INTRINSICS`, folded on constants."""
    values = [a.value for a in args if isinstance(a, Constant)]
    if name in INTRINSICS and len(values) == len(args):
        if name == "shift_left" and not _holds_shifted(dtype, *map(int, values)):
            return Call(dtype, name, args)  # as a dimension, the result exceeds the dtype
        return constant(INTRINSICS[name].meaning(args[0].dtype, *values), dtype)
    return Call(dtype, name, args)
