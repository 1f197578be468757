"""What each operator means on scalars: the one definition behind constant folding and the
reference interpreter, and what compiled code is tested against.

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
from collections.abc import Callable, Sequence
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
    exponent = max(math.frexp(value)[1], -125)  # below, the spacing stays that of subnormals
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
    """IEEE 754 division, where Python would raise on zero."""
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


# The folds of a vector, ``f(...f(f(start, lane 0), lane 1)...)`` in the order of the lanes, by the
# operator that they repeat: arithmetic, or an intrinsic. On bools the bitwise ones are logic.
VECTOR_FOLDS: dict[str, str] = {
    "vector_reduce_add": "Add",
    "vector_reduce_mul": "Mul",
    "vector_reduce_min": "Min",
    "vector_reduce_max": "Max",
    "vector_reduce_and": "bitwise_and",
    "vector_reduce_or": "bitwise_or",
    "vector_reduce_xor": "bitwise_xor",
}


def fold(name: str, dtype: DType, start: Scalar, lanes: Sequence[Scalar]) -> Scalar:
    """A fold of :data:`VECTOR_FOLDS`.

    >>> from minitvm.runtime.dtype import INT8
    >>> fold("vector_reduce_add", INT8, 100, (20, 10))
    -126
    """
    operator = VECTOR_FOLDS[name]
    for lane in lanes:
        if operator in INTRINSICS:
            start = INTRINSICS[operator](dtype, start, lane)
        else:
            start = binary(operator, dtype, start, lane)
    return start


# -- Intrinsics -----------------------------------------------------------------------------------


def _via_numpy(function: Callable[..., Any]) -> Callable[..., float]:
    def evaluate(dtype: DType, *args: float) -> float:
        with np.errstate(all="ignore"):
            return round_float(dtype, float(function(*map(np.float64, args))))

    return evaluate


def _round_half_away(x: float) -> float:
    if not math.isfinite(x) or abs(x) >= 2.0**52:
        return x
    floor = math.floor(abs(x))
    return math.copysign(floor + (abs(x) - floor >= 0.5), x)


def _sigmoid(x: Any) -> Any:
    e = np.exp(-abs(x))  # of -x it would overflow where the result is still a number
    return (e if x < 0 else 1.0) / (1.0 + e)


def _nextafter(dtype: DType, x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return math.nan
    if x == y:
        return y
    bits = to_bits(dtype, x)
    if x == 0.0:
        return from_bits(dtype, 1 | (1 << (dtype.bits - 1) if y < 0 else 0))
    return from_bits(dtype, bits + (1 if (y > x) == (x > 0) else -1))


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


def _ldexp(dtype: DType, x: float, n: int) -> float:
    n = max(min(int(n), 5000), -5000)
    with np.errstate(all="ignore"):
        return _once_rounded_ldexp(dtype, x, n)


def _once_rounded_ldexp(dtype: DType, x: float, n: int) -> float:
    if not math.isfinite(x) or x == 0.0:
        return x
    try:
        return round_float(dtype, math.ldexp(x, n))
    except OverflowError:
        return math.copysign(math.inf, x)


def _float_power(x: float, y: float) -> float:
    """``pow`` of C99 (F.9.4.4), where Python would raise. ``np.power`` takes the square root for
    an exponent of 0.5, which differs at -inf and -0.0."""
    odd = math.fmod(y, 2.0) in (-1.0, 1.0) if math.isfinite(y) else False
    infinity = math.copysign(math.inf, x) if odd else math.inf
    try:
        return math.pow(x, y)
    except OverflowError:
        return infinity
    except ValueError:
        return infinity if x == 0.0 else math.nan


def _power(dtype: DType, x: Any, y: Any) -> Scalar:
    if dtype.is_float:
        return round_float(dtype, _float_power(float(x), float(y)))
    if y >= 0:
        return wrap(dtype, pow(int(x), int(y), 1 << dtype.bits) if y else 1)
    if x in (1, -1):
        return 1 if x == 1 or y % 2 == 0 else -1
    return 0


def _shift_left(dtype: DType, x: int, s: int) -> int:
    return wrap(dtype, x << s) if 0 <= s < dtype.bits else 0


def _shift_right(dtype: DType, x: int, s: int) -> int:
    if 0 <= s < dtype.bits:
        return x >> s
    return -1 if x < 0 else 0


def _bitwise(function: Callable[[int, int], int]) -> Callable[..., Scalar]:
    def evaluate(dtype: DType, a: int, b: int) -> Scalar:
        return wrap(dtype, function(int(a), int(b)))

    return evaluate


def _unary_exact(function: Callable[[float], float]) -> Callable[..., Scalar]:
    """An operation whose result needs no rounding, and which leaves integers alone."""

    def evaluate(dtype: DType, x: Scalar) -> Scalar:
        return function(x) if isinstance(x, float) and math.isfinite(x) else x

    return evaluate


def _keep_sign(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(float(function(x)), x)


def _abs(dtype: DType, x: Scalar) -> Scalar:
    return abs(x) if isinstance(x, float) else wrap(dtype, abs(int(x)))


def _float_test(function: Callable[[float], bool], of_integer: bool) -> Callable[..., bool]:
    def evaluate(dtype: DType, x: Scalar) -> bool:
        return function(x) if isinstance(x, float) else of_integer

    return evaluate


# Each intrinsic's meaning: a function of the dtype of its first argument and of its arguments.
INTRINSICS: dict[str, Callable[..., Scalar]] = {
    "exp": _via_numpy(np.exp),
    "exp2": _via_numpy(np.exp2),
    "exp10": _via_numpy(lambda x: np.power(10.0, x)),
    "log": _via_numpy(np.log),
    "log2": _via_numpy(np.log2),
    "log10": _via_numpy(np.log10),
    "log1p": _via_numpy(np.log1p),
    "sqrt": _via_numpy(np.sqrt),
    "rsqrt": _via_numpy(lambda x: 1.0 / np.sqrt(x)),
    "sin": _via_numpy(np.sin),
    "cos": _via_numpy(np.cos),
    "tan": _via_numpy(np.tan),
    "asin": _via_numpy(np.arcsin),
    "acos": _via_numpy(np.arccos),
    "atan": _via_numpy(np.arctan),
    "sinh": _via_numpy(np.sinh),
    "cosh": _via_numpy(np.cosh),
    "tanh": _via_numpy(np.tanh),
    "asinh": _via_numpy(np.arcsinh),
    "acosh": _via_numpy(np.arccosh),
    "atanh": _via_numpy(np.arctanh),
    "atan2": _via_numpy(np.arctan2),
    "erf": _via_numpy(math.erf),
    "sigmoid": _via_numpy(_sigmoid),
    "hypot": _via_numpy(np.hypot),
    "fmod": _via_numpy(np.fmod),
    "copysign": _via_numpy(np.copysign),
    "nextafter": _nextafter,
    "ldexp": _ldexp,
    "power": _power,
    "floor": _unary_exact(_keep_sign(math.floor)),
    "ceil": _unary_exact(_keep_sign(math.ceil)),
    "trunc": _unary_exact(_keep_sign(math.trunc)),
    "round": _unary_exact(_round_half_away),
    "nearbyint": _unary_exact(_keep_sign(round)),
    "fabs": _abs,
    "isnan": _float_test(math.isnan, of_integer=False),
    "isinf": _float_test(math.isinf, of_integer=False),
    "isfinite": _float_test(math.isfinite, of_integer=True),
    "popcount": lambda dtype, x: bin(int(x) & ((1 << dtype.bits) - 1)).count("1"),
    "clz": lambda dtype, x: dtype.bits - (int(x) & ((1 << dtype.bits) - 1)).bit_length(),
    "bitwise_and": _bitwise(lambda a, b: a & b),
    "bitwise_or": _bitwise(lambda a, b: a | b),
    "bitwise_xor": _bitwise(lambda a, b: a ^ b),
    "bitwise_not": lambda dtype, x: wrap(dtype, ~int(x)) if not dtype.is_bool else not x,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
}
