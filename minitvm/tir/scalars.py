"""The meaning of each operator on scalars: the one definition behind constant folding and the
reference interpreter, against which compiled code is tested.

A value is a Python ``bool``, ``int`` or ``float``. Integers are always in the range of their
dtype: arithmetic wraps. Floats are always exactly representable in theirs: an operation is
computed in binary64 and rounded once, which for ``+ - * /`` and ``sqrt`` on types of at most 24
significant bits equals rounding the exact result (Figueroa, "When is double rounding
innocuous?", SIGNUM 1995: 53 >= 2 * 24 + 2).

Where C leaves a result undefined, minitvm defines it:

* an integer divided by zero gives 0, and so does its remainder (as numpy, without the warning);
* the least integer divided by -1 wraps to itself;
* a shift by a negative amount or by at least the width gives 0 (-1 for a negative number shifted
  right);
* a float cast to an integer saturates, and NaN becomes 0;
* ``min`` and ``max`` give NaN when either side is NaN; of -0.0 and 0.0 they may give either.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from ctypes import c_float
from typing import Any

import numpy as np

from minitvm.runtime.dtype import DType

Scalar = bool | int | float


def wrap(dtype: DType, value: int) -> int:
    """`value` modulo 2**bits, in the range of the integer type `dtype`.

    >>> from minitvm.runtime.dtype import INT8
    >>> wrap(INT8, 130)
    -126
    """
    if dtype.is_bool:
        return bool(value)
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_int and value >> (dtype.bits - 1) else value


def round_to_bfloat16(value: float) -> float:
    """`value` rounded once, to nearest, ties to even, to the 8 significant bits of bfloat16."""
    if not math.isfinite(value) or value == 0.0:
        return value
    exponent = max(math.frexp(value)[1], -125)  # below, the spacing is that of subnormals
    spacing = math.ldexp(1.0, exponent - 8)
    rounded = round(value / spacing) * spacing  # exact scaling; round() ties to even
    return math.copysign(math.inf, value) if abs(rounded) >= 2.0**128 else rounded or value * 0.0


def round_float(dtype: DType, value: float) -> float:
    """`value` rounded to nearest, ties to even, in the floating-point type `dtype`."""
    if dtype.bits == 64:
        return value
    if dtype.is_bfloat16:
        return round_to_bfloat16(value)
    if dtype.bits == 32:
        return c_float(value).value
    with np.errstate(all="ignore"):
        return float(np.float16(value))


def _int_to_float(dtype: DType, value: int) -> float:
    """An integer rounded once: integers beyond 2**53 go through round-to-odd."""
    if abs(value) >> 53 and dtype.bits < 64:
        shift = abs(value).bit_length() - 53
        magnitude = abs(value) >> shift
        if abs(value) & ((1 << shift) - 1):
            magnitude |= 1
        value = (magnitude << shift) * (1 if value > 0 else -1)
    return round_float(dtype, float(value))


def cast(dtype: DType, value: Scalar) -> Scalar:
    """`value` converted to `dtype` (see the module's text for floats out of range)."""
    if dtype.is_bool:
        return bool(value != 0)
    if dtype.is_float:
        return (
            round_float(dtype, value)
            if isinstance(value, float)
            else _int_to_float(dtype, int(value))
        )
    if not isinstance(value, float):
        return wrap(dtype, int(value))
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return dtype.max() if value > 0 else dtype.min()
    return min(max(math.trunc(value), dtype.min()), dtype.max())


def truncdiv(a: int, b: int) -> int:
    """The quotient rounded towards zero; 0 when `b` is 0."""
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def truncmod(a: int, b: int) -> int:
    """The remainder with the sign of `a`; 0 when `b` is 0."""
    return a - truncdiv(a, b) * b if b else 0


def floordiv(a: int, b: int) -> int:
    """The quotient rounded down; 0 when `b` is 0."""
    return a // b if b else 0


def floormod(a: int, b: int) -> int:
    """The remainder with the sign of `b`; 0 when `b` is 0."""
    return a % b if b else 0


def float_divide(a: float, b: float) -> float:
    """IEEE 754 division; Python's would raise on zero."""
    if b != 0.0:
        return a / b
    if a == 0.0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _minimum(a: Any, b: Any) -> Any:
    return math.nan if a != a or b != b else min(a, b)


def _maximum(a: Any, b: Any) -> Any:
    return math.nan if a != a or b != b else max(a, b)


# Arithmetic by the name of its node; an integer result is wrapped, a float result rounded.
INT_BINARY: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": truncdiv,
    "Mod": truncmod,
    "FloorDiv": floordiv,
    "FloorMod": floormod,
    "Min": min,
    "Max": max,
}
FLOAT_BINARY: dict[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": float_divide,
    "Min": _minimum,
    "Max": _maximum,
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": lambda a, b: bool(a == b),
    "NE": lambda a, b: bool(a != b),
    "LT": lambda a, b: bool(a < b),
    "LE": lambda a, b: bool(a <= b),
    "GT": lambda a, b: bool(a > b),
    "GE": lambda a, b: bool(a >= b),
    "And": lambda a, b: bool(a and b),
    "Or": lambda a, b: bool(a or b),
}


def binary(name: str, dtype: DType, a: Scalar, b: Scalar) -> Scalar:
    """The operator `name` on two scalars of type `dtype`.

    >>> from minitvm.runtime.dtype import INT32
    >>> binary("FloorDiv", INT32, -7, 2)
    -4
    """
    if name in COMPARE:
        return COMPARE[name](a, b)
    if dtype.is_float:
        return round_float(dtype, FLOAT_BINARY[name](float(a), float(b)))
    return wrap(dtype, INT_BINARY[name](int(a), int(b)))


# -- Bits -----------------------------------------------------------------------------------------


def to_bits(dtype: DType, value: float) -> int:
    """The bit pattern of a float of type `dtype`.

    >>> from minitvm.runtime.dtype import BFLOAT16
    >>> hex(to_bits(BFLOAT16, 1.0))
    '0x3f80'
    """
    if dtype.is_bfloat16:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    code = {16: "<e", 32: "<f", 64: "<d"}[dtype.bits]
    return int.from_bytes(struct.pack(code, value), "little")


def from_bits(dtype: DType, bits: int) -> float:
    """The float of type `dtype` with a bit pattern."""
    if dtype.is_bfloat16:
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    code = {16: "<e", 32: "<f", 64: "<d"}[dtype.bits]
    return float(struct.unpack(code, bits.to_bytes(dtype.bits // 8, "little"))[0])


def greatest(dtype: DType) -> float:
    """The greatest finite value of a floating-point type."""
    return from_bits(dtype, to_bits(dtype, math.inf) - 1)
