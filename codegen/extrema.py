"""Minima and maxima of floats: NaN if an operand is NaN; of two zeros either may be the result.

Arm has an instruction for this. x86 has one that returns its second operand if one of the two is
NaN. So the operand that stays the second needs no test for NaN. The other operands are compared in
pairs, and where a comparison finds NaN, the result becomes NaN; with registers for masks, by doing
the last step in a register that holds NaN, which takes no operation more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce

from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    all_ones,
    floating,
    is_constant_number,
    lanes_of,
)
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr

TOGETHER = 2  # terms that share a comparison


def operands_of(node: PrimExpr, kind: type[e.Min] | type[e.Max]) -> Iterator[PrimExpr]:
    """The operands of a minimum of minima, or of a maximum of maxima."""
    if isinstance(node, kind):
        yield from operands_of(node.a, kind)
        yield from operands_of(node.b, kind)
    else:
        yield node


def extremum(emitter: Emitter, kind: type[e.Min] | type[e.Max], values: Sequence[Value]) -> Value:
    """The least or the greatest of some floats. LLVM makes vectors of scalars' own intrinsics."""
    text, type = emitter.text, values[0].type
    if emitter.target.keeps_nan or lanes_of(type) == 1:
        name = "minimum" if kind is e.Min else "maximum"
        return reduce(lambda a, b: text.intrinsic(name, type, a, b, flags="nsz"), values)
    second = partial(_second_if_unordered, text, "olt" if kind is e.Min else "ogt")
    numbers = [each for each in values if is_constant_number(each)]
    kept, *checked = [each for each in values if each not in numbers] or [numbers.pop()]
    others = [*checked, *numbers]
    made = second(reduce(second, others), kept) if others else kept
    if not checked:
        return made
    pairs = zip(checked[::2], [*checked[1::2], checked[-1]], strict=False)
    if not emitter.target.has_mask_registers:
        # A float with all bits set is NaN: an `or` sets the bits.
        is_nan = text.any_of(*[text.fcmp("uno", a, b) for a, b in pairs])
        return text.select(is_nan, all_ones(type), made)
    is_number = text.all_of([text.fcmp("ord", a, b) for a, b in pairs])
    return text.select(is_number, made, floating(type, float("nan")))


def _second_if_unordered(text: FunctionText, before: str, a: Value, b: Value) -> Value:
    """`a` where it comes before `b`."""
    return text.select(text.fcmp(before, a, b), a, b)
