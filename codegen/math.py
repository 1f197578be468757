"""The functions of numbers (:mod:`minitvm.tir.intrinsics`), on scalars and lane by lane on vectors.

LLVM computes the functions for which it has instructions. The others are our own
(:mod:`elementary`), or with strict floating point the C library's. ``float16`` and ``bfloat16`` are
computed in float32 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable

from minitvm.codegen.conversion import Conversions
from minitvm.codegen.elementary import ELEMENTARY
from minitvm.codegen.integers import Integers
from minitvm.codegen.lanes import Lanes
from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    element_type,
    float_literal,
    floating,
    integer,
    lanes_of,
    poison,
)
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.powers import power_of_number
from minitvm.codegen.rounding import rounded
from minitvm.runtime.dtype import FLOAT32, FLOAT64, DType
from minitvm.runtime.errors import InternalError
from minitvm.tir.intrinsics import INTRINSICS, Domain, Intrinsic

_LONG = 64  # lines of LLVM IR


class MathFunctions:
    """Emits intrinsics into one function."""

    def __init__(
        self,
        text: FunctionText,
        conversions: Conversions,
        integers: Integers,
        options: CodegenOptions,
    ) -> None:
        self._text = text
        self._strict = options.strict
        self._fuses = options.target.has_fused_multiply_add
        self._takes_apart = "avx512f" in options.target.features
        self._rounds = options.target.has_rounding
        self._conversions = conversions
        self._integers = integers
        self.own: dict[str, Callable[[DType, list[Value]], Value]] = {
            "exp10": self._exp10,
            "rsqrt": self._rsqrt,
            "sigmoid": self._sigmoid,
            "nextafter": self._nextafter,
            "ldexp": self._ldexp,
            "isnan": lambda dtype, args: self._text.fcmp("uno", args[0], args[0]),
            "isinf": lambda dtype, args: self._compare_with_infinity("oeq", args[0]),
            "isfinite": lambda dtype, args: self._compare_with_infinity("olt", args[0]),
        }

    def emit(self, name: str, dtype: DType, args: list[Value]) -> Value:
        """The value of intrinsic `name`; `dtype` is the dtype of its first argument."""
        if not dtype.is_float:
            return self._integers.intrinsic(name, dtype, args)
        known = INTRINSICS[name]
        result = self._float(known, dtype, args)
        return self._conversions.round(result, dtype) if known.ulps else result

    def _float(self, known: Intrinsic, dtype: DType, args: list[Value]) -> Value:
        if known.name == "ldexp":
            return self._ldexp(dtype, args)
        if known.name in ELEMENTARY and not self._strict:
            return self._power_of_number(known, args) or self._elementary(known.name, args)
        if known.composed:
            return self.own[known.name](dtype, args)
        if known.domain is Domain.ROUNDED and not self._rounds:
            return rounded(known.llvm, Lanes(self._text, args[0])).value
        if known.llvm:
            return self._text.intrinsic(known.llvm, args[0].type, *args)
        if known.libm:
            return call_libm(self._text, known.libm, *args)
        raise InternalError(f"intrinsic {known.name!r} of {dtype} has no lowering")

    def _power_of_number(self, known: Intrinsic, args: list[Value]) -> Value | None:
        """A power whose exponent is a number, as a product; None for any other function."""
        exponent = float_literal(args[1]) if known.name == "power" else None
        if exponent is None:
            return None
        x = Lanes(self._text, args[0], self._fuses, self._takes_apart)
        made = power_of_number(x, exponent)
        return made and made.value

    def _elementary(self, name: str, args: list[Value]) -> Value:
        """A function by arithmetic. On vectors, long code is emitted inline once and called
        afterwards: a call costs less time than LLVM takes to compile the code again. Scalars don't
        call, so that LLVM can vectorise their loop."""

        def emit(text: FunctionText, *values: Value) -> Value:
            lanes = [Lanes(text, each, self._fuses, self._takes_apart) for each in values]
            return ELEMENTARY[name](*lanes).value

        type = args[0].type
        if lanes_of(type) == 1:
            return emit(self._text, *args)
        symbol = f"minitvm.{name}.{lanes_of(type)}.{element_type(type)}"
        return self._text.inline_or_outlined(symbol, type, args, emit, _LONG)

    def _exp10(self, dtype: DType, args: list[Value]) -> Value:
        """``pow(10, x)``, which every C library has, with the exactness of its ``pow``."""
        return call_libm(self._text, "pow", floating(args[0].type, 10.0), args[0])

    def _rsqrt(self, dtype: DType, args: list[Value]) -> Value:
        root = self._text.intrinsic("sqrt", args[0].type, args[0])
        return self._text.binary("fdiv", floating(root.type, 1.0), root)

    def _sigmoid(self, dtype: DType, args: list[Value]) -> Value:
        """``1 / (1 + e)`` with ``e = exp(-x)``; below zero ``e / (1 + e)`` with ``e = exp(x)``,
        since the first form overflows where the result is still finite."""
        x = args[0]
        magnitude = self._text.intrinsic("fabs", x.type, x)
        power = call_libm(self._text, "exp", self._text.fneg(magnitude))
        one = floating(power.type, 1.0)
        is_negative = self._text.fcmp("olt", x, floating(x.type, 0.0))
        numerator = self._text.select(is_negative, power, one)
        return self._text.binary("fdiv", numerator, self._text.binary("fadd", one, power))

    def _compare_with_infinity(self, predicate: str, x: Value) -> Value:
        magnitude = self._text.intrinsic("fabs", x.type, x)
        return self._text.fcmp(predicate, magnitude, floating(x.type, float("inf")))

    def _ldexp(self, dtype: DType, args: list[Value]) -> Value:
        """``x * 2**exponent``; in double for 16-bit types, where scaling in float could round
        twice."""
        x, exponent = args
        if dtype.bits == 16:
            x = self._conversions.cast(x, FLOAT32, FLOAT64)
        if self._strict:
            scaled = call_libm(self._text, "ldexp", x, exponent)
        else:
            scaled = self._elementary("ldexp", [x, exponent])
        return self._conversions.cast(scaled, FLOAT64, dtype) if dtype.bits == 16 else scaled

    def _nextafter(self, dtype: DType, args: list[Value]) -> Value:
        """The neighbour by one step of the bit pattern, in the width of `dtype` itself."""
        text = self._text
        x, y = args
        bits = self._bits(x, dtype)
        one = integer(bits.type, 1)
        sign = integer(bits.type, -(1 << (dtype.bits - 1)))
        zero = floating(x.type, 0.0)
        upwards, positive = text.fcmp("ogt", y, x), text.fcmp("ogt", x, zero)
        away = text.icmp("eq", upwards, positive)
        stepped = text.select(away, text.binary("add", bits, one), text.binary("sub", bits, one))
        y_sign = text.binary("and", self._bits(y, dtype), sign)
        from_zero = text.binary("or", y_sign, one)
        moved = text.select(text.fcmp("oeq", x, zero), from_zero, stepped)
        result = text.select(text.fcmp("oeq", x, y), y, self._from_bits(moved, dtype))
        is_nan = text.fcmp("uno", x, y)
        return text.select(is_nan, floating(x.type, float("nan")), result)

    def _bits(self, value: Value, dtype: DType) -> Value:
        memory = self._conversions.to_memory(value, dtype)
        return self._text.convert("bitcast", memory, f"i{dtype.bits}")

    def _from_bits(self, bits: Value, dtype: DType) -> Value:
        if dtype.bits == 16:
            return self._conversions.from_memory(bits, dtype)
        return self._text.convert("bitcast", bits, "float" if dtype.bits == 32 else "double")


def call_libm(text: FunctionText, name: str, *args: Value) -> Value:
    """A C library function, on each lane in turn."""
    type = args[0].type
    element = element_type(type)
    symbol = name if element == "double" else name + "f"
    params = ", ".join(element_type(a.type) for a in args)
    function = text.module.external_function(symbol, f"{element} ({params})")
    if lanes_of(type) == 1:
        return text.call(function, element, args)
    result = poison(type)
    for lane in range(lanes_of(type)):
        lanes = [text.extract(a, lane) for a in args]
        result = text.insert(result, text.call(function, element, lanes), lane)
    return result
