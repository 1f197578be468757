"""Arithmetic on arrays of numbers that carry a bound of their error.

A value is what exact arithmetic makes of the inputs, and how far from that a computer's result may
be whose every operation is rounded once (a running error analysis: Higham, Accuracy and Stability
of Numerical Algorithms, 2nd edition, sections 3.1 and 3.3). Integers and conditions are exact, and
wrap; an infinite error says that nothing is known: a comparison of numbers nearer than their
errors, a sum that may overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tests.whole_programs.description import FLOATS, SIGNED, bits

Array: TypeAlias = "np.ndarray[Any, Any]"
WIDE = np.longdouble
_EPS = WIDE(np.finfo(WIDE).eps)

# docs/numerics.md: the error of each function in ULP; the others are correctly rounded or exact.
ULPS = {
    "exp": 2, "exp2": 2, "log": 2, "log2": 2, "log1p": 2, "sin": 2, "cos": 2, "erf": 2, "tanh": 3,
    "sigmoid": 4, "atan": 2, "asinh": 2, "rsqrt": 2, "sqrt": 0.5,
}  # fmt: skip


@dataclass(frozen=True)
class _Format:
    digits: int
    least: Any  # the least subnormal number
    most: Any  # the greatest finite number


def _format(digits: int, exponents: int) -> _Format:
    most_exponent = 2 ** (exponents - 1) - 1
    least = np.ldexp(WIDE(1), 2 - most_exponent - digits)
    return _Format(digits, least, np.ldexp(2 - np.ldexp(WIDE(1), 1 - digits), most_exponent))


_FORMATS = {
    "float16": _format(11, 5),
    "bfloat16": _format(8, 8),
    "float32": _format(24, 8),
    "float64": _format(53, 11),
}


@dataclass(frozen=True)
class Bounded:
    """Elements of a type, and a bound of each one's error: 0 where it is exact."""

    dtype: str
    exact: Array
    error: Array

    def where(self, mask: Array, other: Bounded) -> Bounded:
        return Bounded(
            self.dtype,
            np.where(mask, self.exact, other.exact),
            np.where(mask, self.error, other.error),
        )


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def known(dtype: str, elements: Any) -> Bounded:
    """Numbers of a type, as they are."""
    exact = np.asarray(elements).astype(WIDE if dtype in FLOATS else dtype)
    return Bounded(dtype, exact, np.zeros((), WIDE))


def _unit(dtype: str, size: Array) -> Array:
    """An ULP of the type at some magnitude."""
    form = _FORMATS[dtype]
    _, exponent = np.frexp(size)
    unit: Array = np.maximum(np.ldexp(WIDE(1), exponent - form.digits), form.least)
    return unit


def round_to(dtype: str, exact: Array) -> Array:
    """The nearest number of a type, halves to even."""
    form = _FORMATS[dtype]
    finite = np.where(np.isfinite(exact), exact, 0)
    unit = _unit(dtype, finite)
    near = np.rint(finite / unit) * unit
    near = np.where(abs(near) > form.most, np.copysign(WIDE(np.inf), finite), near)
    return np.where(np.isfinite(exact), np.copysign(near, exact), exact)


def settle(dtype: str, exact: Array, error: Array, ulps: float = 0.5, held: str = "") -> Bounded:
    """The result of one operation: rounded once, `ulps` off its exact value at most.

    16-bit floats are computed as float32 and rounded after: `held` is the type of the operation.
    """
    exact, error = np.broadcast_arrays(np.asarray(exact, WIDE), np.asarray(error, WIDE))
    finite = np.isfinite(exact)
    size = np.where(finite, abs(exact) + np.where(np.isfinite(error), error, 0), 0)
    if ulps > 0.5 and bits(dtype) == 16:
        rounding = ulps * _unit("float32", size) + 0.5 * _unit(dtype, size) * (1 + 2.0**-8)
    else:
        rounding = ulps * _unit(held or dtype, size)
    rounding = rounding * (1 + 2.0**-8) + size * _EPS * 4  # of the sizes, and of this arithmetic
    if ulps == 0.5:
        same = (error == 0) & (
            np.where(finite, round_to(dtype, exact), 0) == np.where(finite, exact, 0)
        )
        rounding = np.where(same, 0, rounding)
    bound = error + rounding
    bound = np.where(finite & (size + rounding <= _FORMATS[dtype].most), bound, np.inf)
    bound = np.where(~finite & (error == 0), 0, bound)
    return Bounded(dtype, exact, bound)


# -- Integers -------------------------------------------------------------------------------------


def _integer(op: str, dtype: str, a: Array, b: Array) -> Array:
    """docs/language.md: integers wrap, and nothing is undefined."""
    zero, width = np.zeros((), dtype), bits(dtype)
    match op:
        case "add":
            return a + b
        case "subtract":
            return a - b
        case "multiply":
            return a * b
        case "floordiv" | "floormod" | "truncdiv" | "truncmod":
            return _divided(op, dtype, a, b)
        case "minimum":
            return np.where(a < b, a, b)
        case "maximum":
            return np.where(a > b, a, b)
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "shift_left":
            inside = (b >= 0) & (b < width)
            return np.where(inside, a << np.where(inside, b, zero), zero)
        case "shift_right":
            inside = (b >= 0) & (b < width)
            beyond = np.where(a < 0, -np.ones((), dtype), zero) if dtype in SIGNED else zero
            return np.where(inside, a >> np.where(inside, b, zero), beyond)
    raise NotImplementedError(op)


def _divided(op: str, dtype: str, a: Array, b: Array) -> Array:
    zero, one = np.zeros((), dtype), np.ones((), dtype)
    plain = b != 0
    if dtype in SIGNED:
        plain = plain & (b != -1)
    divisor = np.where(plain, b, one)
    quotient, rest = a // divisor, a % divisor
    if op.startswith("trunc"):
        up = (rest != 0) & ((a < 0) != (divisor < 0))
        quotient = np.where(up, quotient + one, quotient)
        rest = np.where(up, rest - divisor, rest)
    if op.endswith("mod"):
        return np.where(plain, rest, zero)
    return np.where(plain, quotient, np.where(b == 0, zero, zero - a))


# -- Operators ------------------------------------------------------------------------------------


def binary(op: str, dtype: str, a: Bounded, b: Bounded) -> Bounded:
    """An operator of two numbers of its type."""
    if dtype not in FLOATS:
        doubt = np.asarray(a.error + b.error)
        if dtype == "bool":
            return Bounded(dtype, _LOGIC[op](a.exact, b.exact), doubt)
        return Bounded(dtype, _integer(op, dtype, a.exact, b.exact).astype(dtype), doubt)
    return _FLOAT_BINARY[op](dtype, a, b)


def _add(dtype: str, a: Bounded, b: Bounded) -> Bounded:
    return settle(dtype, a.exact + b.exact, a.error + b.error)


def _subtract(dtype: str, a: Bounded, b: Bounded) -> Bounded:
    return settle(dtype, a.exact - b.exact, a.error + b.error)


def _times(size: Array, error: Array) -> Array:
    """How much an error counts: nothing is nothing, however large the other factor."""
    return np.where(error == 0, 0, np.where(np.isfinite(size), size, np.inf) * error)


def _multiply(dtype: str, a: Bounded, b: Bounded) -> Bounded:
    error = _times(abs(a.exact), b.error) + _times(abs(b.exact), a.error) + a.error * b.error
    return settle(dtype, a.exact * b.exact, np.where(np.isnan(error), np.inf, error))


def _divide(dtype: str, a: Bounded, b: Bounded) -> Bounded:
    least = abs(b.exact) - b.error
    quotient = a.exact / b.exact
    error = np.where(
        least > 0,
        (a.error + _times(abs(quotient), b.error)) / np.where(least > 0, least, 1),
        np.inf,
    )
    error = np.where(np.isnan(quotient) & (a.error + b.error == 0) & (b.exact != 0), 0, error)
    return settle(dtype, quotient, error)


def _nearer(pick: Callable[[Array, Array], Array]) -> Callable[[str, Bounded, Bounded], Bounded]:
    def picked(dtype: str, a: Bounded, b: Bounded) -> Bounded:
        exact = pick(a.exact, b.exact)
        error = np.maximum(a.error, b.error)
        return Bounded(dtype, exact, np.where(np.isnan(exact) & np.isfinite(error), 0, error))

    return picked


def _fmod(dtype: str, a: Bounded, b: Bounded) -> Bounded:
    exact = np.fmod(a.exact, b.exact)
    return settle(dtype, exact, np.where(a.error + b.error == 0, 0, np.inf))


def _floordiv(dtype: str, a: Bounded, b: Bounded) -> Bounded:
    return floor_like("floor", _divide(dtype, a, b))


_FLOAT_BINARY: dict[str, Callable[[str, Bounded, Bounded], Bounded]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "minimum": _nearer(np.minimum),
    "maximum": _nearer(np.maximum),
    "fmod": _fmod,
}
_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "all": np.logical_and,
    "and": np.logical_and,
    "minimum": np.logical_and,
    "any": np.logical_or,
    "or": np.logical_or,
    "maximum": np.logical_or,
    "xor": np.logical_xor,
}
_COMPARED: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def compare(op: str, a: Bounded, b: Bounded) -> Bounded:
    errors = np.asarray(a.error + b.error)
    doubt = (errors > 0) & ~(np.abs(_apart(a, b)) > errors)
    return Bounded("bool", _COMPARED[op](a.exact, b.exact), np.where(doubt, WIDE(np.inf), 0))


def _apart(a: Bounded, b: Bounded) -> Array:
    if a.dtype in FLOATS:
        return np.asarray(a.exact - b.exact)
    return np.zeros(np.broadcast_shapes(a.exact.shape, b.exact.shape))


def choose(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    exact = np.where(condition.exact, a.exact, b.exact)
    error = np.where(condition.exact, a.error, b.error) + condition.error
    return Bounded(a.dtype, exact, error)


# -- Functions of one number ----------------------------------------------------------------------


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    values: Array = np.array([math.erf(each) for each in x.flat], WIDE).reshape(x.shape)
    return values


# Rising or falling all along, so that the ends of an interval tell how far the result is off.
_MONOTONE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
}
_WAVES: dict[str, Callable[[Array], Array]] = {"sin": np.sin, "cos": np.cos}


def function(op: str, a: Bounded) -> Bounded:
    """A mathematical function: off by what its argument is, and by its own error."""
    if op in _WAVES:
        exact = _WAVES[op](a.exact)
        error = np.broadcast_to(a.error, exact.shape)
    else:
        exact = _MONOTONE[op](a.exact)
        ends = [abs(_MONOTONE[op](end) - exact) for end in (a.exact - a.error, a.exact + a.error)]
        error = np.where(a.error == 0, 0, np.maximum(*ends))
        error = np.where(np.isnan(error), np.inf, error)
    own = 2.0**-52 * abs(exact) if op == "erf" else 0  # the reference is of float64
    at_border = (op in ("log", "log2", "rsqrt")) & (abs(a.exact) <= a.error)
    error = np.where(at_border, np.inf, error + np.where(np.isfinite(exact), own, 0))
    return settle(a.dtype, exact, error, ULPS[op])


_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": lambda x: np.copysign(np.floor(abs(x) + WIDE(0.5)), x),
}


def floor_like(op: str, a: Bounded) -> Bounded:
    """A function with steps: known where the whole interval lies on one."""
    if a.dtype not in FLOATS:
        return a
    exact, below, above = (
        _ROUNDED[op](each) for each in (a.exact, a.exact - a.error, a.exact + a.error)
    )
    doubt = (a.error > 0) & ~(below == above)
    return Bounded(a.dtype, exact, np.where(doubt, WIDE(np.inf), 0))


def convert(a: Bounded, dtype: str) -> Bounded:
    """A cast."""
    if a.dtype == dtype:
        return a
    if dtype == "bool":
        zero = known(a.dtype, 0)
        return compare("ne", a, zero)
    if dtype in FLOATS:
        exact = a.exact.astype(WIDE)
        if a.dtype not in FLOATS or bits(dtype) < bits(a.dtype) or bits(a.dtype) == 16:
            sure = a.error == 0
            rounded = settle(dtype, exact, a.error)
            nearest = round_to(dtype, exact)
            return Bounded(dtype, np.where(sure, nearest, exact), np.where(sure, 0, rounded.error))
        return Bounded(dtype, exact, a.error)
    if a.dtype not in FLOATS:
        return Bounded(dtype, a.exact.astype(dtype), a.error)
    return _to_integer(a, dtype)


def _to_integer(a: Bounded, dtype: str) -> Bounded:
    """Towards zero, to the nearest end of the range; NaN gives 0."""
    limits = np.iinfo(dtype)
    low, high = WIDE(limits.min), WIDE(limits.max)
    whole, below, above = (
        np.clip(np.trunc(np.where(np.isnan(x), 0, x)), low, high)
        for x in (a.exact, a.exact - a.error, a.exact + a.error)
    )
    doubt = (a.error > 0) & ~(below == above)
    inside = (whole > low) & (whole < high)
    exact = np.where(inside, whole, 0).astype(dtype)
    exact = np.where(whole >= high, np.asarray(limits.max, dtype), exact)
    exact = np.where(whole <= low, np.asarray(limits.min, dtype), exact)
    return Bounded(dtype, exact, np.where(doubt, WIDE(np.inf), 0))


def unary(op: str, a: Bounded) -> Bounded:
    if op in _ROUNDED:
        return floor_like(op, a)
    if op in ULPS:
        return function(op, a)
    is_float = a.dtype in FLOATS
    match op:
        case "negative":
            return Bounded(a.dtype, -a.exact, a.error)
        case "absolute":
            return Bounded(a.dtype, np.abs(a.exact), a.error)
        case "invert":
            return Bounded(a.dtype, ~a.exact, a.error)
        case "not":
            return Bounded("bool", ~a.exact, a.error)
        case "isnan" | "isfinite":
            test = np.isnan if op == "isnan" else np.isfinite
            exact = test(a.exact) if is_float else np.full(a.exact.shape, op == "isfinite")
            return Bounded("bool", exact, np.where(np.isinf(a.error), a.error, 0))
        case "popcount":
            unsigned = a.exact.astype(f"uint{bits(a.dtype)}")
            return Bounded(a.dtype, np.bitwise_count(unsigned).astype(a.dtype), a.error)
    raise NotImplementedError(op)


# -- Reductions -----------------------------------------------------------------------------------


def total(terms: Bounded, used: Array, init: Bounded | None, axes: tuple[int, ...]) -> Bounded:
    """A sum in any order: gamma_k of the sum of magnitudes (docs/numerics.md)."""
    exact = np.where(used, terms.exact, np.zeros((), terms.exact.dtype))
    error = np.where(used, terms.error, 0)
    if terms.dtype not in FLOATS:
        value = np.add.reduce(exact, axis=axes, dtype=terms.dtype, keepdims=True)
        doubt = error.sum(axes, keepdims=True)
        if init is not None:
            value, doubt = (value + init.exact).astype(terms.dtype), doubt + init.error
        return Bounded(terms.dtype, value, doubt)
    count = used.sum(axes, keepdims=True) + 1
    value, off = exact.sum(axes, keepdims=True), error.sum(axes, keepdims=True)
    magnitudes = np.where(np.isfinite(exact), abs(exact), 0) + np.where(
        np.isfinite(error), error, 0
    )
    size = magnitudes.sum(axes, keepdims=True)
    if init is not None:
        value, off, count = value + init.exact, off + init.error, count + 1
        size = size + _finite(abs(init.exact)) + _finite(init.error)
    form = _FORMATS[terms.dtype]
    # Not gamma_k, which needs k u < 1, but what it is a bound of: (1 + u)^k - 1.
    growth = np.expm1(count * np.log1p(WIDE(2.0**-form.digits)))
    sixteenths = exact * 16  # numbers with four binary places, few enough to be summed exactly
    whole = np.all(
        (sixteenths == np.rint(sixteenths)) | ~np.isfinite(exact), axis=axes, keepdims=True
    )
    if init is not None:
        whole = whole & (init.exact * 16 == np.rint(init.exact * 16))
    fits = whole & (off == 0) & (size * 16 <= 2.0**form.digits)
    # Subnormal products count as zero in some instructions for 16-bit floats.
    rounding = growth * size * (1 + 2.0**-8) + count * form.least + count * size * _EPS
    rounding = rounding + (count * (2 + size) * WIDE(2.0**-126) if terms.dtype == "float32" else 0)
    bound = off + np.where(fits, 0, rounding)
    bound = np.where(size * (1 + growth) + off > form.most, np.inf, bound)
    bound = np.where(~np.isfinite(value) & np.isfinite(off) & (size * (1 + growth) < form.most),
                     0, bound)  # fmt: skip
    return Bounded(terms.dtype, value, bound)


def of_steps(dtype: str, values: Array) -> Array:
    """What the order of the additions may change in sums along the first axis."""
    if dtype not in FLOATS or not len(values):
        return np.zeros((), WIDE)
    finite = _finite(values).astype(WIDE)
    size = abs(np.diff(finite, axis=0, prepend=0)).cumsum(0)
    count = np.arange(len(values)).reshape((-1,) + (1,) * (values.ndim - 1)) + 8
    return np.asarray(np.expm1(count * np.log1p(WIDE(2.0 ** -_FORMATS[dtype].digits))) * size)


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0)


def product(terms: Bounded, used: Array, init: Bounded | None, axes: tuple[int, ...]) -> Bounded:
    """A product in any order; nothing is known of one that could leave the range on the way."""
    exact = np.where(used, terms.exact, np.ones((), terms.exact.dtype))
    error = np.where(used, terms.error, 0)
    if terms.dtype not in FLOATS:
        value = np.multiply.reduce(exact, axis=axes, dtype=terms.dtype, keepdims=True)
        doubt = error.sum(axes, keepdims=True)
        if init is not None:
            value, doubt = (value * init.exact).astype(terms.dtype), doubt + init.error
        return Bounded(terms.dtype, value, doubt)
    if init is not None:
        exact = _with_first(exact, init.exact, axes)
        error = _with_first(error, init.error, axes)
    count = math.prod(used.shape[axis] for axis in axes) + 1
    shape = tuple(1 if i in axes else n for i, n in enumerate(used.shape))
    axes = (-1,) if init is not None else axes
    form = _FORMATS[terms.dtype]
    value = np.multiply.reduce(exact, axis=axes, keepdims=True)
    with_error = np.multiply.reduce(abs(exact) + error, axis=axes, keepdims=True)
    growth = np.exp(count * np.log1p(WIDE(2.0**-form.digits)))
    bound = with_error * growth * (1 + count * _EPS * 4) - abs(value)
    ones = np.all((exact == np.rint(exact)) & (error == 0), axis=axes, keepdims=True)
    small = np.multiply.reduce(np.maximum(abs(exact), 1), axis=axes, keepdims=True)
    bound = np.where(ones & (small <= 2.0**form.digits), 0, bound)
    largest = np.multiply.reduce(np.maximum(abs(exact) + error, 1), axis=axes, keepdims=True)
    below = np.where(exact == 0, 1, abs(exact) - error)
    least = np.multiply.reduce(np.minimum(below, 1), axis=axes, keepdims=True)
    normal = form.least * WIDE(2) ** form.digits
    inside = (largest * growth < form.most) & (least > normal) & np.isfinite(value)
    bound = np.where(inside, bound, np.inf)
    return Bounded(terms.dtype, value.reshape(shape), bound.reshape(shape))


def _with_first(terms: Array, first: Array, axes: tuple[int, ...]) -> Array:
    """Terms in one column each, and one more."""
    kept = tuple(n for i, n in enumerate(terms.shape) if i not in axes)
    column = np.broadcast_to(first, (*kept, *([1] * len(axes)))).reshape(*kept, 1)
    count = math.prod(terms.shape[axis] for axis in axes)
    return np.concatenate([terms.reshape(*kept, count), column], axis=-1)
