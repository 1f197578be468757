"""The folds of :data:`minitvm.tir.intrinsics.VECTOR_FOLDS`: a vector to one value."""

from __future__ import annotations

from minitvm.codegen.conversion import Conversions
from minitvm.codegen.integers import Integers
from minitvm.codegen.llvm_text import FunctionText, Value, lanes_of
from minitvm.runtime.dtype import DType
from minitvm.tir.intrinsics import VECTOR_FOLDS

_OF_FLOATS = {"vector_reduce_add": "fadd", "vector_reduce_mul": "fmul"}
_FLOAT_EXTREMA = {"vector_reduce_min": "minimum", "vector_reduce_max": "maximum"}
_BITWISE = {"vector_reduce_and": "and", "vector_reduce_or": "or", "vector_reduce_xor": "xor"}


class VectorFolds:
    """Emits folds into one function."""

    def __init__(
        self, text: FunctionText, conversions: Conversions, integers: Integers, strict: bool
    ) -> None:
        """`strict`: sums and products of floats are taken in the order of the lanes."""
        self._text = text
        self._conversions = conversions
        self._integers = integers
        self._flags = "" if strict else "reassoc"

    def emit(self, name: str, dtype: DType, start: Value, vector: Value) -> Value:
        """The lanes of `vector`, folded into `start`, a value of `dtype`."""
        if name in _BITWISE:
            folded = self._folded(_BITWISE[name], start, vector)
            return self._text.binary(_BITWISE[name], start, folded)
        if not dtype.is_float:
            folded = self._folded(_integer_fold(name, dtype), start, vector)
            return self._integers.binary(VECTOR_FOLDS[name], dtype, start, folded)
        if name in _FLOAT_EXTREMA:
            operation = _FLOAT_EXTREMA[name]
            folded = self._folded(f"f{operation}", start, vector, flags="nsz")
            return self._text.intrinsic(operation, start.type, start, folded, flags="nsz")
        if dtype.bits == 16:
            return self._rounded_steps(name, dtype, start, vector)
        operation = f"vector.reduce.{_OF_FLOATS[name]}"
        return self._text.intrinsic(operation, start.type, start, vector, flags=self._flags)

    def _folded(self, operation: str, start: Value, vector: Value, flags: str = "") -> Value:
        return self._text.intrinsic(f"vector.reduce.{operation}", start.type, vector, flags=flags)

    def _rounded_steps(self, name: str, dtype: DType, start: Value, vector: Value) -> Value:
        """16-bit types are rounded after each step."""
        for lane in range(lanes_of(vector.type)):
            value = self._text.extract(vector, lane)
            start = self._text.binary(_OF_FLOATS[name], start, value)
            start = self._conversions.round(start, dtype)
        return start


def _integer_fold(name: str, dtype: DType) -> str:
    if name not in _FLOAT_EXTREMA:
        return VECTOR_FOLDS[name].lower()
    if dtype.is_bool:
        return "and" if name == "vector_reduce_min" else "or"
    return ("s" if dtype.is_int else "u") + VECTOR_FOLDS[name].lower()
