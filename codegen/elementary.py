"""Elementary functions computed by arithmetic alone, so that they run in the lanes of vectors.

Each consists of the classic reduction of its argument, and a polynomial of the rest (Muller,
"Elementary Functions", 3rd ed., 2016, chapters 3 and 11; for erf, ``1 - erf(x) = exp(-x * Q(x))``,
where Q is smooth). Every function takes all arguments, NaN, infinities, zeros and subnormals
included. Errors are in docs/numerics.md; a scalar gets the same bits as a lane.
"""

from __future__ import annotations

from collections.abc import Callable

from minitvm.codegen import angles, exponentials, logarithms, powers
from minitvm.codegen.coefficients import LN2, LN10, ONE
from minitvm.codegen.lanes import Lanes

# The functions of floats, by the names of intrinsics.
ELEMENTARY: dict[str, Callable[..., Lanes]] = {
    "exp": exponentials.exponential(ONE),
    "exp2": exponentials.exponential(LN2),
    "exp10": exponentials.exponential(LN10),
    "expm1": exponentials.expm1,
    "log": logarithms.logarithm(ONE),
    "log2": logarithms.logarithm(LN2),
    "log10": logarithms.logarithm(LN10),
    "log1p": logarithms.log1p,
    "sin": angles.sin,
    "cos": angles.cos,
    "tan": angles.tan,
    "asin": angles.asin,
    "acos": angles.acos,
    "atan": angles.atan,
    "atan2": angles.atan2,
    "sinh": exponentials.sinh,
    "cosh": exponentials.cosh,
    "tanh": exponentials.tanh,
    "asinh": logarithms.asinh,
    "acosh": logarithms.acosh,
    "atanh": logarithms.atanh,
    "erf": exponentials.erf,
    "sigmoid": exponentials.sigmoid,
    "rsqrt": powers.rsqrt,
    "hypot": powers.hypot,
    "fmod": powers.fmod,
    "ldexp": powers.ldexp,
    "power": powers.power,
}
