"""Tells index arithmetic, which is exact, from arithmetic on data, which wraps.

An integer expression of constants, sizes, scalar parameters, loop variables and names for such
expressions alone is *index arithmetic*: its value is that of mathematical integers, however narrow
its dtype. It becomes data where it is stored, converted to a float or passed to a function; there
it is taken modulo 2**bits into its dtype. ``+ - * <<`` of anything else is arithmetic on data, and
wraps; so do the least integer divided by -1, and all arithmetic on unsigned integers and on
integers of less than 32 bits.

Proofs (:mod:`minitvm.arith.prover`), the reference interpreter, and the code that is generated
(:mod:`minitvm.transform.widen_indices`) ask this module which arithmetic an expression is. At the
entry of a function, a check makes sure that 64 bits suffice
(:mod:`minitvm.transform.limit_indices`).
"""

from __future__ import annotations

from collections.abc import Container

from minitvm.runtime.dtype import INT64, DType
from minitvm.tir import expr as e
from minitvm.tir import scalars
from minitvm.tir.expr import Call, IntImm, PrimExpr, Var
from minitvm.tir.functor import Node, rebuild, walk_once

RING = (e.Add, e.Sub, e.Mul)  # the operators that wrap on data
_NODES = (
    Var, IntImm, *RING, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max, e.Cast, e.Select,
    e.Comparison, e.Not, e.Let,
)  # fmt: skip
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
_SHIFTS = ("shift_left", "shift_right")


def is_wide(dtype: DType) -> bool:
    """Whether index arithmetic is done in a dtype."""
    return dtype.is_int and dtype.bits >= 32


def is_exact_call(node: PrimExpr) -> bool:
    """Whether a call is index arithmetic if its arguments are."""
    if not isinstance(node, Call):
        return False
    if node.op in _SHIFTS:
        amount = e.const_int(node.args[1])
        return amount is not None and 0 <= amount < node.dtype.bits
    return node.op in _BITWISE or node.op in ("if_then_else", "likely")


def is_modular(node: PrimExpr) -> bool:
    """Whether the operator at the top of `node`, on data, asks only for its operands modulo
    2**bits."""
    return isinstance(node, RING) or (isinstance(node, Call) and node.op == "shift_left")


def wraps(node: PrimExpr) -> bool:
    """Whether the operator at the top of `node` may leave its dtype, and so wraps if it isn't index
    arithmetic. A division leaves it for the least integer divided by -1."""
    if isinstance(node, e.Div | e.FloorDiv) and node.dtype.element.is_int:
        return e.const_int(node.b) in (None, -1)
    return is_modular(node)


def is_index_arithmetic(node: PrimExpr, data: Container[Var] = ()) -> bool:
    """Whether an expression is index arithmetic. The variables in `data` are names for data.

    >>> n, u = Var("n"), Var("u", "uint8")
    >>> is_index_arithmetic(n * 4 + 1), is_index_arithmetic(u * 4)
    (True, True)
    """
    return all(is_index_node(each, data) for each in walk_once(node))


def is_index_node(node: Node, data: Container[Var] = ()) -> bool:
    """Whether `node` itself is index arithmetic, provided that its children are."""
    if not isinstance(node, PrimExpr):
        return False
    if isinstance(node, Var):
        return node not in data and node.dtype.is_integral
    known = isinstance(node, _NODES) or is_exact_call(node)
    return known and (is_wide(node.dtype.element) or node.dtype.is_bool)


def as_dimension(node: PrimExpr) -> PrimExpr:
    """An expression as a dimension, which is exact: a constant is folded, and arithmetic that would
    wrap in its dtype is computed in 64 bits.

    Raises
    ------
    CompileError
        When it is a constant that exceeds 64 bits.

    >>> as_dimension(Var("n", "uint8") * IntImm("uint8", 4))
    int64(n) * 4
    """
    if isinstance(node, IntImm | Var):
        return node
    value = exact_value(node)
    if value is not None:
        return e.const(value)
    if is_wide(node.dtype) or not isinstance(node, e.Arithmetic):
        return node
    a, b = (e.cast(INT64, as_dimension(each)) for each in (node.a, node.b))
    return rebuild(node, {"a": a, "b": b})


def exact_value(node: PrimExpr) -> int | None:
    """The value of index arithmetic on constants; None for any other expression."""
    if isinstance(node, IntImm):
        return int(node.value)
    if isinstance(node, e.Cast) and node.dtype.is_integral:
        value = exact_value(node.value)
        return None if value is None else int(scalars.cast(node.dtype, value))
    if is_wide(node.dtype) and is_exact_call(node) and is_modular(node):
        assert isinstance(node, Call)
        shifted, amount = exact_value(node.args[0]), e.const_int(node.args[1])
        return None if shifted is None or amount is None else shifted << amount
    if not isinstance(node, e.Arithmetic) or not is_wide(node.dtype):
        return None
    a, b = exact_value(node.a), exact_value(node.b)
    if a is None or b is None:
        return None
    return scalars.INT_BINARY[type(node).__name__](a, b)
