"""Every call that an expression may have, with its properties: one entry each.

:data:`INTRINSICS` are functions of numbers, such as ``exp`` and ``popcount``. An entry defines its
function completely: the language's function (:mod:`minitvm.tir.op`), the folding of constants, the
verifier, the reference interpreter, hybrid programs, schedules and code generation read it here.
Code that an entry can't hold stands in a table by the same name: functions by arithmetic in
``codegen/elementary.py``, and functions that neither LLVM nor the C library has in
``codegen/math.py`` and ``codegen/integers.py``.

:data:`CALLS` are all other calls: choices, vectors, memory, and functions outside of the program.

Values are those of :mod:`minitvm.tir.scalars`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, final

import numpy as np

from minitvm.runtime.dtype import BOOL, INT32, DType
from minitvm.runtime.record import record
from minitvm.tir.scalars import Scalar, binary, from_bits, round_float, to_bits, wrap


class Domain(Enum):
    """The values that an intrinsic takes as its first argument."""

    FLOATS = auto()
    NUMBERS = auto()
    ROUNDED = auto()  # numbers; an integer is its own result
    TESTED = auto()  # numbers; all integers have the same result
    INTEGERS = auto()
    BITS = auto()  # integers and bools


# The derivatives by each argument. `f` is the module of functions, `y` the value, and `x` the
# arguments.
Derivative = Callable[..., tuple[Any, ...]]


@final
@record()
class Intrinsic:
    """A function of numbers, lane by lane on vectors.

    Attributes
    ----------
    name
        The name in a ``Call``.
    doc
        The docstring of the language's function.
    meaning
        The function that computes the value, from the dtype of the first argument and from the
        arguments.
    domain, arity
        The values that it takes as first argument, and the number of arguments. The other arguments
        have the dtype of the first, unless `second` gives another dtype.
    result
        The dtype of its value, if that isn't the dtype of the first argument.
    ulps
        The largest error on floats in ULP: 0 is exact, 0.5 correctly rounded. With ``fp="strict"``
        it is `strict_ulps`, if that differs.
    llvm
        LLVM's intrinsic that computes it on floats.
    libm
        The C library's function that computes it on floats, or most of it, where floating point is
        strict. Otherwise it is computed by arithmetic.
    composed
        Whether code generation composes it on floats from the C library's function or from others.
    cost
        Its cost on floats, in additions.
    function
        The language's function, if that has another name.
    operator
        The operator by which it is written and printed.
    numpy
        numpy's function, if that has another name.
    derivative
        Computes the derivatives by each argument, from a module of functions
        (:mod:`minitvm.tir.op`, or numpy), the arguments and the value. The derivative is None for
        an argument in which the value is piecewise constant. The attribute is None for a function
        without a derivative.
    """

    name: str
    doc: str
    meaning: Callable[..., Scalar]
    ulps: float = 0.0
    strict_ulps: float | None = None
    domain: Domain = Domain.FLOATS
    arity: int = 1
    second: DType | None = None
    result: DType | None = None
    llvm: str = ""
    libm: str = ""
    composed: bool = False
    cost: float = 16.0
    function: str = ""
    operator: str = ""
    numpy: tuple[str, ...] = ()
    derivative: Derivative | None = None

    @property
    def language_name(self) -> str:
        """The name of the language's function."""
        return self.function or self.name

    @property
    def is_long(self) -> bool:
        """Whether its code is long: a function by arithmetic, or a call."""
        return bool(self.libm)

    @property
    def is_piecewise_constant(self) -> bool:
        """Whether its derivative is 0 wherever there is one."""
        return self.derivative is _constant

    def result_of(self, first: DType) -> DType:
        """The dtype of the value, given the dtype of the first argument."""
        return first if self.result is None else self.result.with_lanes(first.lanes)

    def second_of(self, first: DType) -> DType:
        """The dtype of the second argument, given the dtype of the first."""
        return first if self.second is None else self.second.with_lanes(first.lanes)

    def problem(self, first: DType) -> str | None:
        """The reason to refuse a first argument of a dtype; None for a dtype that it takes."""
        if self.domain in (Domain.INTEGERS, Domain.BITS):
            whole = first.is_integral and not (first.is_bool and self.domain is Domain.INTEGERS)
            return None if whole else f"expected an integer, got {first}"
        if first.is_float or (first.is_integral and self.domain is not Domain.FLOATS):
            return None
        return f"expected a floating-point argument, got {first}: cast it"


# -- Meanings -------------------------------------------------------------------------------------

Meaning = Callable[..., Scalar]


def _via_numpy(function: Callable[..., Any]) -> Meaning:
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
    e = np.exp(-abs(x))  # exp(-x) would overflow where the result is still finite
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


def _ldexp(dtype: DType, x: float, n: int) -> float:
    if not math.isfinite(x) or x == 0.0:
        return x
    try:
        with np.errstate(all="ignore"):
            return round_float(dtype, math.ldexp(x, max(min(int(n), 5000), -5000)))
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


def _bitwise(function: Callable[[int, int], int]) -> Meaning:
    def evaluate(dtype: DType, a: int, b: int) -> Scalar:
        return wrap(dtype, function(int(a), int(b)))

    return evaluate


def _unsigned(dtype: DType, x: int) -> int:
    return int(x) & ((1 << dtype.bits) - 1)


def _keep_sign(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(float(function(x)), x)


def _abs(dtype: DType, x: Scalar) -> Scalar:
    return abs(x) if isinstance(x, float) else wrap(dtype, abs(int(x)))


# -- Derivatives ----------------------------------------------------------------------------------


def _constant(f: Any, y: Any, *x: Any) -> tuple[None, ...]:
    """The derivative of a function that is constant between jumps."""
    return (None,) * len(x)


def _sign(f: Any, x: Any) -> Any:
    """0 at 0, the mean of both sides."""
    return f.where(x == 0, f.zeros_like(x), f.copysign(f.ones_like(x), x))


def _power_derivative(f: Any, y: Any, x: Any, p: Any) -> tuple[Any, Any]:
    """``x ** 0`` is 1 for all x, and ``0 ** p`` is 0 for all p > 0."""
    by_x = f.where(p == 0, f.zeros_like(x), p * f.power(x, p - 1))
    by_p = f.where(f.logical_and(x == 0, p >= 0), f.zeros_like(x), y * f.log(x))
    return by_x, by_p


def _hypot_derivative(f: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """0 at the origin, the mean over all directions."""
    return tuple(f.where(y == 0, f.zeros_like(y), x / y) for x in (a, b))


# -- Functions of numbers -------------------------------------------------------------------------


def _approximate(
    name: str, doc: str, function: Callable[..., Any], *, ulps: float = 1.0, **known: Any
) -> Intrinsic:
    """The entry of a function of the C library."""
    given = {"ulps": ulps, "strict_ulps": 2.0, "libm": name, **known}
    return Intrinsic(name, doc, _via_numpy(function), **given)


def _rounding(name: str, doc: str, function: Callable[[float], float], **known: Any) -> Intrinsic:
    def evaluate(dtype: DType, x: Scalar) -> Scalar:
        return function(x) if isinstance(x, float) and math.isfinite(x) else x

    return Intrinsic(
        name, doc, evaluate, domain=Domain.ROUNDED, derivative=_constant, **{"llvm": name, **known}
    )


def _test(
    name: str, doc: str, function: Callable[[float], bool], *, of_integer: bool = False
) -> Intrinsic:
    def evaluate(dtype: DType, x: Scalar) -> bool:
        return function(x) if isinstance(x, float) else of_integer

    return Intrinsic(
        name, doc, evaluate, domain=Domain.TESTED, result=BOOL, composed=True, cost=1.0
    )


def _of_integers(
    name: str, doc: str, meaning: Meaning, domain: Domain = Domain.INTEGERS, **known: Any
) -> Intrinsic:
    return Intrinsic(name, doc, meaning, domain=domain, cost=1.0, **known)


_LN2, _LN10, _TWO_BY_ROOT_PI = math.log(2.0), math.log(10.0), 2.0 / math.sqrt(math.pi)
# Errors of the functions by arithmetic (``codegen/elementary.py``), measured on every float32 and
# on dense samples of float64, rounded up to 1 or 2. Strict floating point calls the C library, for
# which glibc's manual, "Errors in Math Functions", states at most 2 ULP on x86-64 and aarch64.
# There `rsqrt` is a root (0.5 ULP, halved or doubled by the quotient) and a quotient (0.5);
# `sigmoid` an exponential (2, of at most half of the sum), a sum (0.5) and a quotient (0.5), where
# an ULP of the sum may be two of the quotient.
INTRINSICS: dict[str, Intrinsic] = {each.name: each for each in (
    _approximate("exp", "``e ** x``.", np.exp,
                 derivative=lambda f, y, x: (y,)),
    _approximate("exp2", "``2 ** x``.", np.exp2,
                 derivative=lambda f, y, x: (y * _LN2,)),
    _approximate("exp10", "``10 ** x``.", lambda x: np.power(10.0, x), libm="pow",
                 composed=True,
                 derivative=lambda f, y, x: (y * _LN10,)),
    _approximate("expm1", "``e ** x - 1``, exact for small `x`.", np.expm1,
                 derivative=lambda f, y, x: (y + 1.0,)),
    _approximate("log", "The natural logarithm; NaN below zero.", np.log,
                 derivative=lambda f, y, x: (1.0 / x,)),
    _approximate("log2", "The logarithm of base 2.", np.log2,
                 derivative=lambda f, y, x: (1.0 / (x * _LN2),)),
    _approximate("log10", "The logarithm of base 10.", np.log10,
                 derivative=lambda f, y, x: (1.0 / (x * _LN10),)),
    _approximate("log1p", "``log(1 + x)``, exact for small `x`.", np.log1p,
                 derivative=lambda f, y, x: (1.0 / (x + 1.0),)),
    Intrinsic("sqrt", "The square root; NaN below zero.", _via_numpy(np.sqrt), 0.5, llvm="sqrt",
              derivative=lambda f, y, x: (0.5 / y,)),
    Intrinsic("rsqrt", "``1 / sqrt(x)``.", _via_numpy(lambda x: 1.0 / np.sqrt(x)), 1.0,
              strict_ulps=2.0, composed=True,
              derivative=lambda f, y, x: (-0.5 * y / x,)),
    _approximate("sin", "The sine of radians.", np.sin, ulps=2.0,
                 derivative=lambda f, y, x: (f.cos(x),)),
    _approximate("cos", "The cosine of radians.", np.cos, ulps=2.0,
                 derivative=lambda f, y, x: (-f.sin(x),)),
    _approximate("tan", "The tangent of radians.", np.tan, ulps=2.0,
                 derivative=lambda f, y, x: (y * y + 1.0,)),
    _approximate("asin", "The arc sine, in radians.", np.arcsin, numpy=("arcsin",), ulps=2.0,
                 derivative=lambda f, y, x: (1.0 / f.sqrt((1.0 - x) * (1.0 + x)),)),
    _approximate("acos", "The arc cosine, in radians.", np.arccos, numpy=("arccos",), ulps=2.0,
                 derivative=lambda f, y, x: (-1.0 / f.sqrt((1.0 - x) * (1.0 + x)),)),
    _approximate("atan", "The arc tangent, in radians.", np.arctan, numpy=("arctan",), ulps=2.0,
                 derivative=lambda f, y, x: (1.0 / (x * x + 1.0),)),
    _approximate("sinh", "The hyperbolic sine.", np.sinh, ulps=2.0,
                 derivative=lambda f, y, x: (f.cosh(x),)),
    _approximate("cosh", "The hyperbolic cosine.", np.cosh, ulps=2.0,
                 derivative=lambda f, y, x: (f.sinh(x),)),
    _approximate("tanh", "The hyperbolic tangent.", np.tanh,
                 derivative=lambda f, y, x: (1.0 - y * y,)),
    _approximate("asinh", "The inverse hyperbolic sine.", np.arcsinh, numpy=("arcsinh",),
                 derivative=lambda f, y, x: (1.0 / f.sqrt(x * x + 1.0),)),
    _approximate("acosh", "The inverse hyperbolic cosine.", np.arccosh, numpy=("arccosh",),
                 derivative=lambda f, y, x: (1.0 / f.sqrt((x - 1.0) * (x + 1.0)),)),
    _approximate("atanh", "The inverse hyperbolic tangent.", np.arctanh, numpy=("arctanh",),
                 derivative=lambda f, y, x: (1.0 / ((1.0 - x) * (1.0 + x)),)),
    _approximate("atan2", "The angle of the point ``(x2, x1)``, in radians.", np.arctan2,
                 arity=2, ulps=2.0, numpy=("arctan2",),
                 derivative=lambda f, y, a, b: (b / (a * a + b * b), -a / (a * a + b * b))),
    _approximate("erf", "The error function.", math.erf, ulps=2.0,
                 derivative=lambda f, y, x: (_TWO_BY_ROOT_PI * f.exp(-(x * x)),)),
    _approximate("sigmoid", "``1 / (1 + exp(-x))``.", _sigmoid, ulps=2.0,
                 strict_ulps=4.0, libm="exp", composed=True,
                 derivative=lambda f, y, x: (y * (1.0 - y),)),
    _approximate("hypot", "``sqrt(x1 * x1 + x2 * x2)``.", np.hypot, arity=2,
                 derivative=_hypot_derivative),
    _approximate("fmod", "The remainder of `x` divided by `y`, with the sign of `x`.", np.fmod,
                 ulps=0.0, strict_ulps=0.0, arity=2,
                 derivative=lambda f, y, x, m: (f.ones_like(x), -f.trunc(x / m))),
    Intrinsic("copysign", "The magnitude of `x1` with the sign of `x2`.",
              _via_numpy(np.copysign), arity=2, llvm="copysign",
              derivative=lambda f, y, a, b: (_sign(f, a) * f.copysign(f.ones_like(b), b), None)),
    Intrinsic("nextafter", "The float next to `x1` in the direction of `x2`.", _nextafter,
              arity=2, composed=True),
    Intrinsic("ldexp", "``x1 * 2 ** x2``, of an integer `x2`.", _ldexp, 0.5, arity=2,
              second=INT32, libm="ldexp", composed=True,
              derivative=lambda f, y, x, n: (f.ldexp(f.ones_like(x), n), None)),
    Intrinsic("power", "``x1 ** x2``.", _power, 1.0, strict_ulps=2.0, domain=Domain.NUMBERS,
              arity=2, libm="pow", numpy=("float_power", "square"),
              derivative=_power_derivative),
    Intrinsic("fabs", "The magnitude; the least integer stays itself.", _abs,
              domain=Domain.NUMBERS, llvm="fabs", function="abs", numpy=("absolute",),
              derivative=lambda f, y, x: (_sign(f, x),)),
    _rounding("floor", "The greatest integer not above `x`.", _keep_sign(math.floor)),
    _rounding("ceil", "The least integer not below `x`.", _keep_sign(math.ceil)),
    _rounding("trunc", "`x` without its fraction.", _keep_sign(math.trunc)),
    _rounding("round", "The nearest integer, halves away from zero.", _round_half_away),
    _rounding("nearbyint", "The nearest integer, halves to even.", _keep_sign(round),
              llvm="roundeven", numpy=("rint",)),
    _test("isnan", "Whether `x` is NaN.", math.isnan),
    _test("isinf", "Whether `x` is an infinity.", math.isinf),
    _test("isfinite", "Whether `x` is neither infinite nor NaN.", math.isfinite, of_integer=True),
    _of_integers("popcount", "How many bits of an integer are set, in its own dtype.",
                 lambda dtype, x: bin(_unsigned(dtype, x)).count("1")),
    _of_integers("clz", "How many zero bits lead an integer, as ``int32``; all of them for 0.",
                 lambda dtype, x: dtype.bits - _unsigned(dtype, x).bit_length(), result=INT32),
    _of_integers("bitwise_and", "``a & b``.", _bitwise(lambda a, b: a & b), Domain.BITS,
                 arity=2, operator="&"),
    _of_integers("bitwise_or", "``a | b``.", _bitwise(lambda a, b: a | b), Domain.BITS,
                 arity=2, operator="|"),
    _of_integers("bitwise_xor", "``a ^ b``.", _bitwise(lambda a, b: a ^ b), Domain.BITS,
                 arity=2, operator="^"),
    _of_integers("bitwise_not", "``~a``; the opposite of a bool.",
                 lambda dtype, x: not x if dtype.is_bool else wrap(dtype, ~int(x)), Domain.BITS,
                 operator="~"),
    _of_integers("shift_left", "``a << b``; a shift out of range gives 0.", _shift_left,
                 arity=2, operator="<<"),
    _of_integers("shift_right", "``a >> b``, keeping the sign of a signed `a`.", _shift_right,
                 arity=2, operator=">>"),
)}  # fmt: skip


# -- Other calls ----------------------------------------------------------------------------------


class Effect(Enum):
    """The effect of evaluating a call, besides its value."""

    NONE = auto()  # the value depends on the arguments alone
    READS = auto()  # it may read memory
    FAILS = auto()  # it may fail; the value depends on the arguments alone
    ACTS = auto()  # it may do anything, or returns an address through which other code may


@final
@record()
class OtherCall:
    """A call that is no function of numbers: the number of its arguments, None for any number, and
    its effect. The docstring of ``Call`` defines each call."""

    arity: int | None
    effect: Effect = Effect.NONE


# The folds of a vector, ``f(...f(f(start, lane 0), lane 1)...)`` in the order of the lanes, by the
# operator that they repeat: arithmetic, or an intrinsic. On bools the bitwise folds are logic.
VECTOR_FOLDS: dict[str, str] = {
    "vector_reduce_add": "Add",
    "vector_reduce_mul": "Mul",
    "vector_reduce_min": "Min",
    "vector_reduce_max": "Max",
    "vector_reduce_and": "bitwise_and",
    "vector_reduce_or": "bitwise_or",
    "vector_reduce_xor": "bitwise_xor",
}

CALLS: dict[str, OtherCall] = {
    "if_then_else": OtherCall(3),
    "likely": OtherCall(1),
    "reinterpret": OtherCall(1),
    "isnullptr": OtherCall(1),
    "are_apart": OtherCall(2),
    "checked": OtherCall(None, Effect.FAILS),
    "prefetch": OtherCall(1, Effect.READS),
    "tvm_access_ptr": OtherCall(4, Effect.ACTS),
    "tvm_stack_make_array": OtherCall(None, Effect.ACTS),
    "call_packed": OtherCall(None, Effect.ACTS),
    "call_extern": OtherCall(None, Effect.ACTS),
    "call_llvm_intrin": OtherCall(None, Effect.ACTS),
    "call_llvm_pure_intrin": OtherCall(None, Effect.READS),
    "vector_extract": OtherCall(2),
    "vector_shuffle": OtherCall(None),
    **dict.fromkeys(VECTOR_FOLDS, OtherCall(2)),
}


def _with(*effects: Effect) -> set[str]:
    return {name for name, call in CALLS.items() if call.effect in effects}


# Calls whose value depends on their arguments alone, and that do nothing else.
FUNCTIONS = _with(Effect.NONE) | INTRINSICS.keys()
# Calls that must be evaluated where they stand, once: no equal call may take their place.
IMPURE_CALLS = _with(Effect.FAILS, Effect.ACTS)


def define_call(name: str, effect: Effect) -> None:
    """Defines a call of the user, or gives it another effect. When a program is compiled, a rule
    replaces the call: see :mod:`minitvm.tir.registered`."""
    CALLS[name] = OtherCall(None, effect)
    for names, effects in (
        (FUNCTIONS, (Effect.NONE,)),
        (IMPURE_CALLS, (Effect.FAILS, Effect.ACTS)),
    ):
        (names.add if effect in effects else names.discard)(name)


def fold(name: str, dtype: DType, start: Scalar, lanes: Sequence[Scalar]) -> Scalar:
    """A fold of :data:`VECTOR_FOLDS`.

    >>> from minitvm.runtime.dtype import INT8
    >>> fold("vector_reduce_add", INT8, 100, (20, 10))
    -126
    """
    operator = VECTOR_FOLDS[name]
    for lane in lanes:
        if operator in INTRINSICS:
            start = INTRINSICS[operator].meaning(dtype, start, lane)
        else:
            start = binary(operator, dtype, start, lane)
    return start
