"""Floats that are compared and chosen, as C has them.

LLVM takes a choice by a comparison for a maximum or minimum, and one maximum of another for a
single one, whatever they do with NaN. With ``v = max(x, 0)``, which is NaN where `x` is, `v` if
``v > 0`` and otherwise 0 would become `v`. So a float that may be chosen itself is hidden from
LLVM, where it is compared or where it is chosen by the comparison.
"""

from __future__ import annotations

from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import Value
from minitvm.tir import expr as e
from minitvm.tir.expr import BufferLoad, PrimExpr
from minitvm.tir.functor import contains, find
from minitvm.tir.structural_equal import structural_equal


def emit_compared(emitter: Emitter, node: PrimExpr) -> Value:
    """An operand of a comparison, which the expression itself may choose from others."""
    value = emitter.emit(node)
    is_lazy = any(each.op == "if_then_else" for each in find(e.Call, node))
    if node.dtype.is_float and (is_lazy or contains((e.Min, e.Max, e.Select), node)):
        return _hidden(emitter, value)
    return value


def emit_branch(emitter: Emitter, condition: PrimExpr, node: PrimExpr) -> Value:
    """A branch of a choice. Where the choice compares the same float, another statement may have
    chosen that: LLVM sees through names, and through memory that the function writes."""
    value = emitter.emit(node)
    compared = condition.a if isinstance(condition, e.Not) else condition
    if not node.dtype.is_float or not isinstance(compared, e.Comparison):
        return value
    inner = node.value if isinstance(node, (e.Broadcast, e.Cast)) else node
    is_stored = isinstance(inner, BufferLoad) and inner.buffer.data in emitter.stored
    if not (is_stored or isinstance(inner, e.Var)):
        return value
    is_compared = any(structural_equal(node, each) for each in (compared.a, compared.b))
    return _hidden(emitter, value) if is_compared else value


def _hidden(emitter: Emitter, value: Value) -> Value:
    return emitter.text.intrinsic("arithmetic.fence", value.type, value)
