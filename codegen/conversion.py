"""The forms of a DType in a register and in memory, and conversions between forms and dtypes.

A ``bool`` is an ``i1`` in a register and a byte in memory. ``float16`` and ``bfloat16`` are a
``float`` in a register, always one that the narrow type can represent, and two bytes in memory: an
operation computes in binary32 and rounds once to the narrow type, which gives the correctly
rounded result for ``+ - * /`` and ``sqrt`` (24 >= 2 * 11 + 2) on every target alike.
The meaning of a conversion is that of :func:`minitvm.tir.scalars.cast`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from minitvm.codegen.llvm_text import (
    FunctionText,
    Value,
    element_type,
    floating,
    integer,
    lanes_of,
    like,
    vector_type,
)
from minitvm.runtime.dtype import FLOAT64, UINT32, DType
from minitvm.runtime.errors import CompileError


def register_type(dtype: DType) -> str:
    """The LLVM type of a value in a register."""
    return vector_type(_register_element(dtype), dtype.lanes)


def memory_type(dtype: DType) -> str:
    """The LLVM type of a value in memory."""
    if dtype.is_bool:
        return vector_type("i8", dtype.lanes)
    if dtype.is_float and dtype.bits == 16:
        return vector_type("i16", dtype.lanes)
    return register_type(dtype)


def _register_element(dtype: DType) -> str:
    if dtype.is_bool:
        return "i1"
    if dtype.is_float:
        return "double" if dtype.bits == 64 else "float"
    if dtype.is_integral:
        return f"i{dtype.bits}"
    if dtype.is_handle:
        return "ptr"
    raise CompileError(
        f"dtype {dtype}: expected a type that kernels compute with: bool, int8 to "
        "int64, uint8 to uint64, float16, bfloat16, float32, float64"
    )


class Conversions:
    """Emits conversions into one function, for one target."""

    def __init__(self, text: FunctionText, has_float16: bool) -> None:
        """`has_float16`: the target converts between float16 and float32 by an instruction."""
        self._text = text
        self._has_float16 = has_float16
        self._bits: dict[tuple[Value, DType], Value] = {}  # of values widened from a dtype

    def cast(self, value: Value, source: DType, target: DType) -> Value:
        """`value` converted from one dtype to another of as many lanes."""
        source, target = source.element, target.element
        if source == target:
            return value
        if target.is_bool:
            if source.is_float:  # NaN counts as true
                return self._text.fcmp("une", value, floating(value.type, 0.0))
            return self._text.icmp("ne", value, integer(value.type, 0))
        if source.is_float:
            if target.is_float:
                return self._float_to_float(value, source, target)
            return self.float_to_int(value, target)
        if target.is_float:
            return self._int_to_float(value, source, target)
        return self._int_to_int(value, source, target)

    def round(self, value: Value, dtype: DType) -> Value:
        """A ``float`` result of an operation on `dtype`, rounded to a value of `dtype`."""
        if dtype.bits != 16:
            return value
        return self.from_memory(self.to_memory(value, dtype, rounded=False), dtype)

    def from_memory(self, value: Value, dtype: DType) -> Value:
        """The register form of a value just loaded."""
        if dtype.is_bool:
            return self._text.icmp("ne", value, integer(value.type, 0))
        if not dtype.is_float or dtype.bits != 16:
            return value
        made = self._widened(value, dtype)
        self._bits[made, dtype.element] = value
        return made

    def _widened(self, value: Value, dtype: DType) -> Value:
        text = self._text
        if dtype.is_bfloat16:
            wide = text.convert("zext", value, "i32")
            shifted = text.binary("shl", wide, integer(wide.type, 16))
            return text.convert("bitcast", shifted, "float")
        if self._has_float16:
            return text.convert("fpext", text.convert("bitcast", value, "half"), "float")
        return self._emulated("float16_to_float32", "float", value, _float16_to_float32)

    def to_memory(self, value: Value, dtype: DType, *, rounded: bool = True) -> Value:
        """The memory form of a value about to be stored. `rounded`: `dtype` holds it exactly. A
        value that was only widened is stored unchanged, a NaN with its payload."""
        if dtype.is_bool:
            return self._text.convert("zext", value, "i8")
        if not dtype.is_float or dtype.bits != 16:
            return value
        known = self._bits.get((value, dtype.element))
        if known is not None and rounded:
            return known
        text = self._text
        if dtype.is_bfloat16:
            return self._float32_to_bfloat16(value, rounded)
        if self._has_float16:
            return text.convert("bitcast", text.convert("fptrunc", value, "half"), "i16")
        return self._emulated("float32_to_float16", "i16", value, _float32_to_float16)

    # -- integers --

    def _int_to_int(self, value: Value, source: DType, target: DType) -> Value:
        if source.is_bool or source.bits < target.bits:
            return self._text.convert("sext" if source.is_int else "zext", value, f"i{target.bits}")
        return self._text.convert("trunc", value, f"i{target.bits}")

    def _int_to_float(self, value: Value, source: DType, target: DType) -> Value:
        opcode = "sitofp" if source.is_int else "uitofp"
        if target.bits != 16:
            return self._text.convert(opcode, value, "double" if target.bits == 64 else "float")
        if source.bits == 64:
            value = self._sticky_int(value, source)
        wide = self._text.convert(opcode, value, "double")
        return self._float_to_float(wide, FLOAT64, target)

    def _sticky_int(self, value: Value, source: DType) -> Value:
        """A 64-bit integer rounded to odd, to 53 significant bits if it has more, so that a second
        rounding to at most 51 bits equals a single one."""
        text = self._text
        low = text.binary("and", value, integer(value.type, 0x7FF))
        sticky = text.binary(
            "or", text.binary("and", value, integer(value.type, -0x800)), integer(value.type, 0x800)
        )
        lost = text.icmp("ne", low, integer(value.type, 0))
        if source.is_int:
            magnitude = text.intrinsic("abs", value.type, value, Value("i1", "false"))
        else:
            magnitude = value
        large = text.icmp("ugt", magnitude, integer(value.type, 1 << 53))
        return text.select(text.binary("and", large, lost), sticky, value)

    def float_to_int(
        self, value: Value, target: DType, limits: tuple[float, float] = (-inf, inf)
    ) -> Value:
        """A float rounded towards zero and limited to the range of `target`; NaN becomes 0. The
        float is limited first, unless it is NaN or known to lie between `limits`: vectors of
        conversions within the range have instructions. The greatest integer may be no float;
        whatever lies beyond becomes this integer afterwards.

        What is no number greater than 0 becomes 0 as an integer of an unsigned type. LLVM takes a
        choice of a float for a maximum, whatever it does with NaN: a choice of ``max(x, 0)`` if
        that exceeds 0, and of 0 otherwise, would become ``max(x, 0)``, which may be NaN."""
        text, type = self._text, value.type
        digits = 53 if element_type(type) == "double" else 24
        is_counted = text.fcmp("ord" if target.is_int else "ogt", value,
                               value if target.is_int else floating(type, 0.0))  # fmt: skip
        low, high = (floating(type, float(bound)) for bound in (target.min(), target.max()))
        if target.bits <= digits and target != UINT32:
            if target.is_int and limits[0] < target.min():
                value = text.select(text.fcmp("ogt", value, low), value, low)
            if limits[1] > target.max():
                value = text.select(text.fcmp("olt", value, high), value, high)
            made = text.convert("fptosi", value, "i32")
            made = text.select(is_counted, made, integer(made.type, 0))
            return text.convert("trunc", made, f"i{target.bits}")
        if target.is_int:
            value = text.select(is_counted, value, floating(type, 0.0))
            value = text.select(text.fcmp("ogt", value, low), value, low)
        beyond = text.fcmp("oge", value, floating(type, 2.0 ** (target.bits - target.is_int)))
        inside = text.select(beyond, low, value)
        made = text.convert("fptosi" if target.is_int else "fptoui", inside, f"i{target.bits}")
        made = text.select(beyond, integer(made.type, target.max()), made)
        return made if target.is_int else text.select(is_counted, made, integer(made.type, 0))

    # -- floats --

    def _float_to_float(self, value: Value, source: DType, target: DType) -> Value:
        """A conversion through ``float`` in a register; float64 to 16 bits rounds to odd on the
        way."""
        text = self._text
        if target.bits == 64:
            return text.convert("fpext", value, "double")
        if target.bits == 32:
            return value if source.bits == 16 else text.convert("fptrunc", value, "float")
        narrow = self._round_to_odd(value) if source.bits == 64 else value
        return self.round(narrow, target)

    def _round_to_odd(self, value: Value) -> Value:
        """A double rounded to odd: if it is no float, the result is that neighbour which has an odd
        significand (Boldo and Melquiond, "When double rounding is odd", 2005)."""
        text = self._text
        nearest = text.convert("fptrunc", value, "float")
        back = text.convert("fpext", nearest, "double")
        bits = text.convert("bitcast", nearest, "i32")
        one = integer(bits.type, 1)
        magnitude = text.intrinsic("fabs", value.type, value)
        too_large = text.fcmp("ogt", text.intrinsic("fabs", back.type, back), magnitude)
        # Rounded towards zero first (infinity to the largest finite number), then made odd.
        truncated = text.select(too_large, text.binary("sub", bits, one), bits)
        odd = text.binary("or", truncated, one)
        inexact = text.fcmp("one", back, value)
        return text.convert("bitcast", text.select(inexact, odd, bits), "float")

    def _float32_to_bfloat16(self, value: Value, rounded: bool) -> Value:
        text = self._text
        bits = text.convert("bitcast", value, "i32")
        sixteen = integer(bits.type, 16)
        if rounded:
            return text.convert("trunc", text.binary("lshr", bits, sixteen), "i16")
        lowest = text.binary("and", text.binary("lshr", bits, sixteen), integer(bits.type, 1))
        bias = text.binary("add", lowest, integer(bits.type, 0x7FFF))
        nearest = text.binary("lshr", text.binary("add", bits, bias), sixteen)
        quiet = text.binary("or", text.binary("lshr", bits, sixteen), integer(bits.type, 0x40))
        is_nan = text.fcmp("uno", value, value)
        return text.convert("trunc", text.select(is_nan, quiet, nearest), "i16")

    def _emulated(
        self, name: str, result: str, value: Value, emit: Callable[[FunctionText, Value], Value]
    ) -> Value:
        """A conversion of many instructions. On vectors it is a function of its own, since LLVM
        would take seconds for the hundreds of conversions of unrolled code."""
        lanes = lanes_of(value.type)
        if lanes == 1:
            return emit(self._text, value)
        return self._text.outlined(f"{name}.{lanes}", like(value.type, result), [value], emit)


def _float16_to_float32(text: FunctionText, value: Value) -> Value:
    """The conversion where there is no instruction for it. A multiplication rebiases the exponent;
    it is exact, also for subnormals."""
    wide = text.convert("zext", value, "i32")
    type = wide.type
    magnitude = text.binary("and", wide, integer(type, 0x7FFF))
    sign = text.binary("shl", text.binary("and", wide, integer(type, 0x8000)), integer(type, 16))
    shifted = text.binary("shl", magnitude, integer(type, 13))
    small = text.convert("bitcast", shifted, "float")
    scaled = text.binary("fmul", small, floating(small.type, 2.0**112))
    finite = text.convert("bitcast", scaled, "i32")
    special = text.binary("or", finite, integer(type, 0x7F800000))
    is_special = text.icmp("uge", magnitude, integer(type, 0x7C00))
    unsigned = text.select(is_special, special, finite)
    return text.convert("bitcast", text.binary("or", unsigned, sign), "float")


def _float32_to_float16(text: FunctionText, value: Value) -> Value:
    """The conversion where there is no instruction for it. Subnormal results are rounded by adding
    0.5, whose unit in the last place is theirs; normal results by the carry of an integer
    addition."""
    bits = text.convert("bitcast", value, "i32")
    type = bits.type
    magnitude = text.binary("and", bits, integer(type, 0x7FFFFFFF))
    sign = text.binary("and", text.binary("lshr", bits, integer(type, 16)), integer(type, 0x8000))
    small = text.convert("bitcast", magnitude, "float")
    with_half = text.binary("fadd", small, floating(small.type, 0.5))
    subnormal = text.binary(
        "sub", text.convert("bitcast", with_half, "i32"), integer(type, 0x3F000000)
    )
    lowest = text.binary("and", text.binary("lshr", magnitude, integer(type, 13)), integer(type, 1))
    rebias = text.binary("add", lowest, integer(type, ((15 - 127) << 23) + 0xFFF))
    normal = text.binary("lshr", text.binary("add", magnitude, rebias), integer(type, 13))
    is_nan = text.icmp("ugt", magnitude, integer(type, 0x7F800000))
    special = text.select(is_nan, integer(type, 0x7E00), integer(type, 0x7C00))
    is_subnormal = text.icmp("ult", magnitude, integer(type, 0x38800000))
    is_special = text.icmp("uge", magnitude, integer(type, 0x47800000))
    finite = text.select(is_subnormal, subnormal, normal)
    result = text.binary("or", text.select(is_special, special, finite), sign)
    return text.convert("trunc", result, "i16")
