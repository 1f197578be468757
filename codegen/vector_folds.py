"""The folds of :data:`minitvm.tir.scalars.VECTOR_FOLDS`: a vector to one value."""

from __future__ import annotations

from minitvm.codegen.emitter import Emitter
from minitvm.codegen.llvm_text import Value, lanes_of
from minitvm.runtime.dtype import DType
from minitvm.tir.expr import Call

_OF_FLOATS = {"vector_reduce_add": "fadd", "vector_reduce_mul": "fmul"}
_FLOAT_EXTREMA = {"vector_reduce_min": "minimum", "vector_reduce_max": "maximum"}
_BITWISE = {"vector_reduce_and": "and", "vector_reduce_or": "or", "vector_reduce_xor": "xor"}
_NODES = {
    "vector_reduce_add": "Add", "vector_reduce_mul": "Mul", "vector_reduce_min": "Min",
    "vector_reduce_max": "Max",
}  # fmt: skip


def emit_fold(emitter: Emitter, node: Call) -> Value:
    """The lanes of a vector, folded into a value of the node's dtype. Where floating point is
    strict, sums and products of floats are taken in the order of the lanes."""
    name, dtype, text = node.op, node.dtype, emitter.text
    start, vector = map(emitter.emit, node.args)

    def folded(operation: str, *values: Value, flags: str = "") -> Value:
        return text.intrinsic(f"vector.reduce.{operation}", start.type, *values, flags=flags)

    if name in _BITWISE:
        return text.binary(_BITWISE[name], start, folded(_BITWISE[name], vector))
    if not dtype.is_float:
        each = folded(_integer_fold(name, dtype), vector)
        return emitter.integers.binary(_NODES[name], dtype, start, each)
    if name in _FLOAT_EXTREMA:
        operation = _FLOAT_EXTREMA[name]
        extremum = folded(f"f{operation}", vector, flags="nsz")
        return text.intrinsic(operation, start.type, start, extremum, flags="nsz")
    if dtype.bits != 16:
        flags = "" if emitter.strict else "reassoc"
        return folded(_OF_FLOATS[name], start, vector, flags=flags)
    for lane in range(lanes_of(vector.type)):  # 16-bit types are rounded after each step
        start = text.binary(_OF_FLOATS[name], start, text.extract(vector, lane))
        start = emitter.conversions.round(start, dtype)
    return start


def _integer_fold(name: str, dtype: DType) -> str:
    if name not in _FLOAT_EXTREMA:
        return _NODES[name].lower()
    if dtype.is_bool:
        return "and" if name == "vector_reduce_min" else "or"
    return ("s" if dtype.is_int else "u") + _NODES[name].lower()
