"""Emits expressions of the loop IR as LLVM values: a function for each class of node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor, inf, isinf
from typing import Any

from minitvm.codegen.accesses import emit_load, first_lanes, multiples, pointer_of
from minitvm.codegen.calls import CALLS, emit_call
from minitvm.codegen.choices import emit_branch, emit_compared
from minitvm.codegen.conversion import register_type
from minitvm.codegen.emitter import Emitter
from minitvm.codegen.extrema import extremum, operands_of
from minitvm.codegen.integers import Integers
from minitvm.codegen.llvm_text import FunctionText, Value, floating, i64, integer, like, literal
from minitvm.codegen.options import CodegenOptions
from minitvm.runtime.dtype import INT32, DType
from minitvm.runtime.errors import CompileError
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr
from minitvm.tir.functor import contains

_FLOAT_BINARY = {e.Add: "fadd", e.Sub: "fsub", e.Mul: "fmul", e.Div: "fdiv"}
_FLOAT_COMPARE = {e.EQ: "oeq", e.NE: "une", e.LT: "olt", e.LE: "ole", e.GT: "ogt", e.GE: "oge"}
_INT_COMPARE = {e.EQ: "eq", e.NE: "ne", e.LT: "lt", e.LE: "le", e.GT: "gt", e.GE: "ge"}
_MASKS = (8, 16, 32, 64)  # lanes whose mask fills a register
_ARITHMETIC = (e.Add, e.Sub, e.Mul, e.Div, e.Mod, e.FloorDiv, e.FloorMod, e.Min, e.Max)


def expression_emitter(
    text: FunctionText,
    options: CodegenOptions,
    calls: Mapping[str, Callable[[Emitter, e.Call], Value]] | None = None,
) -> Emitter:
    """The emitter of expressions into a function; `calls` adds calls that need statements around
    them."""
    return Emitter(text, options, _NODES, {**CALLS, **(calls or {})})


def arithmetic(emitter: Emitter, node: e.Arithmetic, a: Value, b: Value, flags: str) -> Value:
    """`node` on operands already emitted; on floats with LLVM's fast-math `flags`."""
    dtype = node.dtype
    if not dtype.is_float:
        return emitter.integers.binary(type(node).__name__, dtype.element, a, b)
    if type(node) in _FLOAT_BINARY:
        made = emitter.text.binary(_FLOAT_BINARY[type(node)], a, b, flags)
        return emitter.conversions.round(made, dtype)
    if isinstance(node, (e.Min, e.Max)):
        return extremum(emitter, type(node), [a, b])
    raise CompileError(f"{type(node).__name__}: expected integers, got {dtype}")


def _emit_arithmetic(emitter: Emitter, node: e.Arithmetic) -> Value:
    if isinstance(node, (e.Min, e.Max)) and node.dtype.is_float:
        return extremum(
            emitter, type(node), [emitter.emit(each) for each in operands_of(node, type(node))]
        )
    if isinstance(node, e.FloorMod) and _goes_around(node):
        return _emit_around(emitter, node)
    flags = "" if emitter.strict else "contract"
    return arithmetic(emitter, node, emitter.emit(node.a), emitter.emit(node.b), flags)


def _goes_around(node: e.FloorMod) -> bool:
    """Whether lanes count up modulo a divisor that isn't known."""
    return (
        isinstance(node.a, e.Ramp)
        and isinstance(node.b, e.Broadcast)
        and node.dtype.is_int
        and node.dtype.bits >= 32
        and e.const_int(node.a.stride) == 1
        and e.const_int(node.b.value) is None
    )


def _emit_around(emitter: Emitter, node: e.FloorMod) -> Value:
    """``(x + lane) % n`` by a single division, of the first lane. If n is no less than the number
    of lanes, each other lane exceeds n at most once. If n is less, or if ``x + lane`` wraps, each
    lane is divided."""
    assert isinstance(node.a, e.Ramp) and isinstance(node.b, e.Broadcast)
    text, lanes, element = emitter.text, node.dtype.lanes, node.dtype.element
    values, divisor = emitter.emit(node.a), emitter.emit(node.b)
    base, number = emitter.emit(node.a.base), emitter.emit(node.b.value)
    first = emitter.emit(e.FloorMod(node.a.base, node.b.value))
    steps = multiples(text, integer(first.type, 1), lanes)
    counted = text.binary("add", text.splat(first, lanes), steps)  # as an unsigned number
    beyond = text.icmp("uge", counted, divisor)
    once = text.select(beyond, text.binary("sub", counted, divisor), counted)
    is_long = text.icmp("sge", number, integer(number.type, lanes))
    most = integer(base.type, element.max() - lanes + 1)
    is_usual = text.binary("and", is_long, text.icmp("sle", base, most))
    short, join = text.blocks("short", "endshort")
    before = text.current
    text.branch_if(is_usual, join, short, likely=True)
    text.place(short)
    with text.scope():
        each = text.outlined(
            f"minitvm.floormod.v{lanes}{first.type}",
            values.type,
            [values, divisor],
            lambda to, a, b: Integers(to).binary("FloorMod", element, a, b),
        )
    text.branch(join)
    text.place(join)
    return text.phi(values.type, (once, before), (each, short))


def _emit_comparison(emitter: Emitter, node: e.Comparison) -> Value:
    if emitter.target.has_mask_registers and node.a.dtype.lanes in _MASKS:
        count = first_lanes(emitter, node)
        if count is not None:
            return _first_lanes(emitter, count, node.a.dtype.lanes)
    a, b = (emit_compared(emitter, each) for each in (node.a, node.b))
    dtype = node.a.dtype
    if isinstance(node.a, e.Broadcast) and isinstance(node.b, e.Broadcast):
        a = _opaque(emitter, node.a, a) if contains(e.BufferLoad, node) else a
    if dtype.is_float:
        return emitter.text.fcmp(_FLOAT_COMPARE[type(node)], a, b)
    predicate = _INT_COMPARE[type(node)]
    if predicate not in ("eq", "ne"):
        predicate = ("s" if dtype.is_int else "u") + predicate
    return emitter.text.icmp(predicate, a, b)


def _opaque(emitter: Emitter, node: PrimExpr, value: Value) -> Value:
    """A vector of equal elements, whose equality is hidden from LLVM. LLVM would make a branch of a
    choice between vectors by a comparison of single numbers, and no processor predicts a branch
    that depends on data."""
    text, element = emitter.text, {32: "float", 64: "double"}.get(node.dtype.bits)
    if element is None:
        return value
    type = like(value.type, element)
    fenced = text.intrinsic("arithmetic.fence", type, text.convert_whole(value, type))
    return text.convert_whole(fenced, value.type)


def _first_lanes(emitter: Emitter, bound: PrimExpr, lanes: int) -> Value:
    """``ramp(0, 1) < broadcast(bound)`` by shifting bits: LLVM would repeat the comparison of
    vectors in each block that uses it, inside of loops too, and hold its operands in vector
    registers."""
    text = emitter.text
    count = text.intrinsic("smax", "i64", emitter.index(bound), i64(0))
    count = text.intrinsic("umin", "i64", count, i64(lanes))
    # bzhi clears the bits from the count on; a count of 64 clears none.
    bits = text.intrinsic("x86.bmi.bzhi.64", "i64", i64(-1), count)
    return text.convert_whole(text.convert("trunc", bits, f"i{lanes}"), f"<{lanes} x i1>")


def _emit_not(emitter: Emitter, node: e.Not) -> Value:
    value = emitter.emit(node.a)
    return emitter.text.binary("xor", value, integer(value.type, 1))


def _emit_let(emitter: Emitter, node: e.Let) -> Value:
    """Emits a let. The scope is lexical: if the body binds the variable again, which substitution
    can cause, the outer value is restored behind it."""
    text, variables = emitter.text, emitter.variables
    value = emitter.emit(node.value)
    outer = variables.get(node.var)
    if outer is not None:
        text.forget()
    variables[node.var] = value
    with text.scope():
        result = emitter.emit(node.body)
    if outer is not None:
        text.forget()
        variables[node.var] = outer
    return result


_ROUNDS = ("floor", "ceil", "trunc", "round", "nearbyint")


def _emit_cast(emitter: Emitter, node: e.Cast) -> Value:
    """A conversion. Narrow lanes that are shifted right, each by a number of its own, are widened
    before: instructions that shift so have lanes of 32 bits or more on most processors."""
    value = node.value
    if (low := _low_half(node)) is not None:
        return emitter.emit(low)
    if (
        isinstance(value, e.Call)
        and value.op == "shift_right"
        and value.dtype.lanes > 1
        and value.dtype.bits < 32 <= node.dtype.bits
        and not isinstance(value.args[1], e.Broadcast)
    ):
        word = INT32.with_lanes(value.dtype.lanes)
        value = e.Call(word, value.op, tuple(e.Cast(word, each) for each in value.args))
    if value.dtype.is_float and node.dtype.is_integral and not node.dtype.is_bool:
        made = emitter.emit(value)
        return emitter.conversions.float_to_int(made, node.dtype.element, _limits(value))
    return emitter.cast(value, node.dtype)


def _low_half(node: e.Cast) -> PrimExpr | None:
    """The low half of a product of vectors that were widened, as a product of narrow ones; None for
    any other conversion. Where the program needs the high half, too, LLVM would pick the low one
    from the wide product, lane by lane."""
    product, dtype = node.value, node.dtype
    if not isinstance(product, e.Mul) or dtype.lanes == 1 or not dtype.is_integral:
        return None
    if not product.dtype.is_integral or product.dtype.bits != 2 * dtype.bits:
        return None
    sides = [
        each.value if isinstance(each, e.Cast) else each
        for each in (product.a, product.b)
        if _is_widened(each, dtype)
    ]
    return e.Mul(*(e.cast(dtype, each) for each in sides)) if len(sides) == 2 else None


def _is_widened(node: PrimExpr, dtype: DType) -> bool:
    """Whether a vector is one of half its width that was widened, or a constant."""
    if isinstance(node, e.Broadcast):
        return e.const_int(node.value) is not None
    source = node.value.dtype if isinstance(node, e.Cast) else None
    return source is not None and source.is_integral and source.bits == dtype.bits


def _limits(
    node: PrimExpr, known: dict[PrimExpr, tuple[float, float]] | None = None
) -> tuple[float, float]:
    """Numbers between which the value of a float lies, unless it is NaN. `known`: those of nodes
    that were asked before, since a network of minima and maxima shares its nodes."""
    known = {} if known is None else known
    if node not in known:
        known[node] = _limits_by(node, known)
    return known[node]


def _limits_by(node: PrimExpr, known: dict[PrimExpr, tuple[float, float]]) -> tuple[float, float]:
    match node:
        case e.FloatImm(value=value):
            return (value, value) if value == value else (-inf, inf)
        case e.Broadcast(value=value):
            return _limits(value, known)
        case e.Min(a, b) | e.Max(a, b):
            choose = min if isinstance(node, e.Min) else max
            (low, high), (other_low, other_high) = _limits(a, known), _limits(b, known)
            return choose(low, other_low), choose(high, other_high)
        case e.Call(op=op, args=(value,)) if op in _ROUNDS:
            low, high = _limits(value, known)
            return low if isinf(low) else floor(low), high if isinf(high) else ceil(high)
    return -inf, inf


def _emit_ramp(emitter: Emitter, node: e.Ramp) -> Value:
    text, base, first = emitter.text, node.base, 0
    stride = emitter.emit(node.stride)
    if isinstance(base, e.Add) and literal(stride) is not None:  # progressions share their bases
        known = literal(emitter.emit(base.b))
        base, first = (base, 0) if known is None else (base.a, known)
    steps = multiples(text, stride, node.lanes, first)
    begin = emitter.emit(base)
    return steps if begin.text == "0" else text.binary("add", text.splat(begin, node.lanes), steps)


_NODES: dict[type, Callable[[Emitter, Any], Value]] = {
    **dict.fromkeys(_ARITHMETIC, _emit_arithmetic),
    **dict.fromkeys(_INT_COMPARE, _emit_comparison),
    e.Var: Emitter.value_of,
    e.IntImm: lambda to, node: integer(register_type(node.dtype), node.value),
    e.FloatImm: lambda to, node: floating(register_type(node.dtype), node.value),
    e.StringImm: lambda to, node: to.text.module.string(node.value),
    e.And: lambda to, node: to.text.binary("and", to.emit(node.a), to.emit(node.b)),
    e.Or: lambda to, node: to.text.binary("or", to.emit(node.a), to.emit(node.b)),
    e.Not: _emit_not,
    e.Cast: _emit_cast,
    e.Select: lambda to, node: to.text.select(
        to.emit(node.condition),
        *(emit_branch(to, node.condition, each) for each in (node.true_value, node.false_value)),
    ),
    e.Let: _emit_let,
    e.Ramp: _emit_ramp,
    e.Broadcast: lambda to, node: to.text.splat(to.emit(node.value), node.lanes),
    e.BufferLoad: emit_load,
    e.BufferRef: lambda to, node: pointer_of(to, node.buffer),
    e.Call: emit_call,
}
