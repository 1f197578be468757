"""The functions of hybrid programs, as Python runs them on numpy's numbers and arrays.

A hybrid function may use them without importing them; importing them from here lets editors and
type checkers know them. Mathematics has the same results as in compiled code, as
:mod:`minitvm.tir.scalars` says: integers wrap, ``min`` and ``max`` keep NaN, casts saturate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.runtime.dtype import FLOAT64, INT64, DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.tir import intrinsics as tir
from minitvm.tir import scalars
from minitvm.tir.expr import promoted
from minitvm.tir.intrinsics import Domain

# -- Loops ----------------------------------------------------------------------------------------


def serial(*bounds: int) -> range:
    """``range``: a loop that runs in order."""
    return range(*bounds)


def parallel(*bounds: int) -> range:
    """A range whose iterations may run at once, on several threads."""
    return range(*bounds)


def vectorize(*bounds: int) -> range:
    """A range whose iterations become lanes of vectors."""
    return range(*bounds)


def unroll(*bounds: int) -> range:
    """A range whose iterations are unrolled by the compiler."""
    return range(*bounds)


def const_range(*bounds: int) -> range:
    """A range whose iterations are unrolled while the program is parsed, so that its variable is a
    number: the index of a tuple, or part of a shape."""
    return range(*bounds)


def bind(thread: str, extent: int) -> range:
    """A range whose iterations are the threads of a GPU; here it only runs as Python."""
    return range(extent)


def max_num_threads(allow_none: bool = True) -> int:
    """The number of threads of a GPU's block that ``bind`` may use: 1 without a GPU."""
    return 1


# -- Memory ---------------------------------------------------------------------------------------


def allocate(shape: Any, dtype: DTypeLike = "float32", scope: str = "global") -> Any:
    """A local array of zeros."""
    return np.zeros(shape, DType.of(dtype).to_numpy())


def output_tensor(shape: Any, dtype: DTypeLike = "float32") -> Any:
    """An output array of zeros."""
    return allocate(shape, dtype)


# -- Mathematics ----------------------------------------------------------------------------------

CASTS = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64",
)  # fmt: skip


def _common_dtype(args: tuple[Any, ...]) -> DType | None:
    """The dtype in which an operator on numpy's numbers computes; Python's numbers adapt. None if
    all are Python's."""
    found = [DType.of(arg.dtype) for arg in args if isinstance(arg, (np.generic, np.ndarray))]
    return functools.reduce(promoted, found) if found else None


def _intrinsic(name: str) -> Callable[..., Any]:
    known = tir.INTRINSICS[name]

    def run(*args: Any) -> Any:
        dtype = _common_dtype(args if known.second is None else args[:1])
        problem = None if dtype is None else known.problem(dtype)
        if problem is not None:
            raise CompileError(f"{name}: {problem}")
        floats = known.domain is Domain.FLOATS or any(isinstance(arg, float) for arg in args)
        computed = dtype or (FLOAT64 if floats else INT64)
        dtypes = (computed, known.second_of(computed))
        values = [scalars.cast(of, _number(arg)) for of, arg in zip(dtypes, args, strict=False)]
        result = known.meaning(computed, *values)
        return result if dtype is None else known.result_of(dtype).to_numpy().type(result)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = known.doc
    return run


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value


def _cast(name: str) -> Callable[[Any], Any]:
    dtype = DType.of(name)

    def run(value: Any) -> Any:
        return dtype.to_numpy().type(scalars.cast(dtype, _number(value)))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"`value` as {name}; an integer out of range wraps, a float saturates."
    return run


def _extremum(name: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        values = args[0] if len(args) == 1 else args
        dtype = _common_dtype(tuple(values))
        computed = dtype or FLOAT64
        if dtype is None and all(isinstance(value, int) for value in values):
            computed = INT64
        of_two = functools.partial(scalars.binary, name.capitalize(), computed)
        result = functools.reduce(of_two, [scalars.cast(computed, _number(v)) for v in values])
        return result if dtype is None else dtype.to_numpy().type(result)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"The {name}imum of some numbers; NaN when one of them is."
    return run


def ceil_div(a: Any, b: Any) -> Any:
    """The quotient of integers, rounded up."""
    return (a + b - 1) // b


def likely(condition: Any) -> Any:
    """A condition that mostly holds."""
    return condition


exp, exp2, exp10, expm1 = map(_intrinsic, ("exp", "exp2", "exp10", "expm1"))
log, log2, log10, log1p = map(_intrinsic, ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, power = map(_intrinsic, ("sqrt", "rsqrt", "power"))
sin, cos, tan = map(_intrinsic, ("sin", "cos", "tan"))
asin, acos, atan, atan2 = map(_intrinsic, ("asin", "acos", "atan", "atan2"))
sinh, cosh, tanh = map(_intrinsic, ("sinh", "cosh", "tanh"))
asinh, acosh, atanh = map(_intrinsic, ("asinh", "acosh", "atanh"))
erf, sigmoid, hypot, fmod = map(_intrinsic, ("erf", "sigmoid", "hypot", "fmod"))
copysign, nextafter, ldexp = map(_intrinsic, ("copysign", "nextafter", "ldexp"))
floor, ceil, trunc = map(_intrinsic, ("floor", "ceil", "trunc"))
round, nearbyint = map(_intrinsic, ("round", "nearbyint"))
isnan, isinf, isfinite = map(_intrinsic, ("isnan", "isinf", "isfinite"))
popcount, clz = map(_intrinsic, ("popcount", "clz"))
int8, int16, int32, int64, uint8, uint16, uint32, uint64 = map(_cast, CASTS[:8])
float16, float32, float64 = map(_cast, CASTS[8:])
min, max = _extremum("min"), _extremum("max")

# The names that a hybrid function may use without importing them, with the functions that Python
# runs for them: all intrinsics except those written as operators, and except `fabs`, which is
# Python's `abs`.
INTRINSICS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        serial, parallel, vectorize, unroll, const_range, bind, max_num_threads,
        allocate, output_tensor, ceil_div, likely, min, max,
    )
} | {
    name: globals()[name]
    for name in (
        *CASTS,
        *(each.name for each in tir.INTRINSICS.values() if not each.operator and not each.function),
    )
}  # fmt: skip
# The built-in functions of Python that a hybrid function may use.
BUILTINS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (range, len, abs, int, float, bool)
}
