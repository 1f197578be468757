"""Python's values as expressions, dtypes and names of the language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.runtime.dtype import BOOL, FLOAT32, INT32, INT64, DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.runtime.values import text_for_c
from minitvm.tir.checks import no_condition
from minitvm.tir.described import described, shown
from minitvm.tir.elementwise import named
from minitvm.tir.node import ExprOperators, PrimExpr
from minitvm.tir.nodes import Broadcast, Constant, FloatImm, IntImm, IterVar, StringImm

NUMBERS = (bool, int, float, np.integer, np.floating, np.bool_)


def as_expr(value: Any) -> PrimExpr:
    """The expression that `value` stands for: an expression itself, an axis, a Python or numpy
    number, or an object with ``asobject()`` (an indexed tensor).

    Raises
    ------
    CompileError
        When `value` stands for no expression.
    """
    if isinstance(value, PrimExpr):
        return value
    if isinstance(value, IterVar):
        return value.var
    if isinstance(value, NUMBERS):
        return constant(value)
    if isinstance(value, str):
        return StringImm(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return as_expr(value[()])
    if is_array(value):
        raise CompileError(no_array(value))
    convert = None if isinstance(value, type) else getattr(value, "asobject", None)
    if convert is not None:
        made = convert()
        if isinstance(made, PrimExpr):
            return made
    raise CompileError(f"expected an expression or a number, got {described(value)}")


def is_array(value: Any) -> bool:
    """Whether `value` is an array, of numpy or of another library."""
    return hasattr(type(value), "__dlpack__")


def no_array(array: Any) -> str:
    """The error for an array in the place of an expression."""
    return (
        f"expected an expression or a number, got an array of shape {tuple(array.shape)}: pass it "
        "as a te.placeholder (an operator of jit takes it as a parameter), or take one of its "
        "numbers"
    )


def as_index(value: Any) -> PrimExpr:
    """`value` as an integer expression: an index. An integer of numpy counts as Python's, and so
    does a quotient of integers that came out even, such as ``1024 / 32``, of Python or numpy.

    Raises
    ------
    CompileError
        When it is none.
    """
    is_float = isinstance(value, float | np.floating)
    even = is_float and float(value).is_integer() and abs(float(value)) <= 2**53
    expr = as_expr(int(value) if even or isinstance(value, np.integer) else value)
    if not expr.dtype.is_integral or expr.dtype.is_bool:
        got = f"{shown(expr)} of dtype {expr.dtype}"
        raise CompileError(f"expected an integer expression, got {got}")
    return expr


def as_size(value: Any) -> PrimExpr:
    """`value` as a scalar integer expression: an extent, a bound, a stride.

    Raises
    ------
    CompileError
        When it is none.
    """
    expr = as_index(value)
    if expr.dtype.lanes > 1:
        raise CompileError(f"expected a scalar, got {shown(expr)} of dtype {expr.dtype}")
    return expr


def as_dtype(dtype: DTypeLike, default: DType | None = None) -> DType:
    """A dtype of the language; `default`, if there is one, for None.

    Raises
    ------
    CompileError
        When there is none of that name, or the language doesn't have it.
    """
    if dtype is None and default is not None:
        return default
    try:
        is_value = dtype is None or isinstance(dtype, ExprOperators)
        made = None if is_value else DType.of(dtype)
    except (TypeError, ValueError) as error:
        raise CompileError(str(error)) from None
    computes = made is not None and (made.is_float or made.is_integral or made.is_handle)
    if made is None or not computes or made.bits < 8:
        raise CompileError(
            f"expected a dtype of the language, such as 'float32', got {described(dtype)}"
        )
    return made


def as_name(name: Any) -> str:
    """A name, which is a string, not empty, and can be one of C's.

    Raises
    ------
    CompileError
        When it is none.
    """
    if not isinstance(name, str) or not name:
        raise CompileError(f"expected a string as name, got {described(name)}")
    try:
        text_for_c(name)
    except ValueError as error:
        raise CompileError(f"name: {error}") from None
    return name


@named
def const(value: Any, dtype: DTypeLike | None = None) -> PrimExpr:
    """A constant.

    Without a `dtype`: ``bool`` for a bool; ``int32`` for an int that fits, else ``int64``;
    ``float32`` for a float; its own for a numpy scalar.

    Raises
    ------
    CompileError
        When the number is out of the range of `dtype`. Infinities and NaN are numbers of every
        floating-point type.

    >>> const(3), const(0.5, "float64")
    (3, float64(0.5))
    """
    return constant(value, dtype)


def constant(value: Any, dtype: DTypeLike | None = None) -> PrimExpr:
    """:func:`const`, whose errors don't have its name."""
    if type(value) is int and isinstance(dtype, DType) and dtype.is_integral and dtype.lanes == 1:
        return IntImm(dtype, value)
    if isinstance(value, Constant):
        dtype = value.dtype if dtype is None else dtype
        value = value.value
    if not isinstance(value, NUMBERS):
        raise CompileError(f"expected a number, got {described(value)}")
    wanted = as_dtype(_constant_dtype(value) if dtype is None else dtype)
    if isinstance(value, np.generic):
        value = value.item()
    if wanted.lanes > 1:
        return Broadcast(constant(value, wanted.element), wanted.lanes)
    if not isinstance(value, (bool, int, float)):  # a time of numpy's
        raise CompileError(f"expected a number, got {described(value)}")
    if wanted.is_float:
        return FloatImm(wanted, value)
    if wanted.is_integral:
        if isinstance(value, float) and not value.is_integer():
            raise CompileError(f"constant of dtype {wanted}: expected an integer, got {value}")
        return IntImm(wanted, int(value))
    raise CompileError(f"constant: expected a numeric dtype, got {wanted}")


def valued(dtype: DType, value: Any) -> PrimExpr:
    """A literal as a constant of `dtype`; any other value as it is.

    A literal is a number of Python's or numpy's. A bool is a bool, and no number is one; a number
    of numpy's must be one of `dtype` exactly.

    Raises
    ------
    CompileError
        When a literal has no such value.

    >>> from minitvm.runtime.dtype import INT64
    >>> valued(INT64, 4).dtype
    DType('int64')
    """
    if not isinstance(value, NUMBERS) or not (dtype.is_float or dtype.is_integral):
        return as_expr(value)
    if isinstance(value, (bool, np.bool_)) is not dtype.is_bool:
        raise CompileError(f"expected a value of {dtype}, got {described(value)}")
    made = constant(value, dtype)
    if isinstance(value, np.generic) and isinstance(made, Constant):
        given = constant(value)
        assert isinstance(given, Constant)
        if made.value != given.value and given.value == given.value:
            raise CompileError(
                f"expected a value of {dtype}, got {given.dtype} {value}, which is none: "
                f"write np.{dtype}(x)"
            )
    return made


def _constant_dtype(value: Any) -> DType:
    if isinstance(value, np.generic):
        return as_dtype(value.dtype)
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, float):
        return FLOAT32
    return INT32 if INT32.min() <= value <= INT32.max() else INT64


def const_int(expr: Any) -> int | None:
    """The value of a constant integer, None for anything else."""
    if isinstance(expr, IntImm):
        return int(expr.value)
    return expr if isinstance(expr, int) else None


def as_condition(value: Any) -> PrimExpr:
    """`value` as a ``bool`` expression.

    Raises
    ------
    CompileError
        When it is a number: whether it is zero is a comparison.
    """
    expr = as_expr(value)
    if not expr.dtype.is_bool:
        raise CompileError(no_condition(expr))
    return expr


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple of one, or of the members of a list or tuple."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
