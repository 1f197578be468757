"""The functions of the expression language: mathematics, logic, bits, and calls out of it.

Every function of numbers takes whole tensors too, and maps over their elements as Python's
operators do; it then returns a tensor. Functions of constants are computed at once, as
:mod:`minitvm.tir.scalars` defines them.

The rules of dtype: two operands are promoted as an operator promotes them. A function that is only
defined on floats refuses integers, instead of guessing a width. Rounding leaves integers alone.

>>> from minitvm import te
>>> exp(te.const(0.0)), floor(te.const(3))
(1.0, 3)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, TypeVar

from minitvm.runtime.dtype import BOOL, INT32, DType, DTypeLike
from minitvm.runtime.errors import CompileError, similar
from minitvm.runtime.packed_func import convert_to_packed
from minitvm.tir import scalars
from minitvm.tir.expr import (
    NUMBERS,
    Buffer,
    BufferRef,
    Call,
    IntImm,
    IterVar,
    PrimExpr,
    Range,
    Stmt,
    StringImm,
    Var,
    WholeTensor,
    absolute,
    as_condition,
    as_dtype,
    as_expr,
    as_name,
    cast,
    const,
    described,
    divide,
    elementwise,
    floordiv,
    floormod,
    intrinsic,
    logical_and,
    logical_or,
    named,
    power,
    promote,
    truncdiv,
    valued,
)
from minitvm.tir.intrinsics import CALLS, INTRINSICS, Domain, Intrinsic
from minitvm.tir.names import plain_name
from minitvm.tir.verify import call_problems, llvm_name_problems

# -- Choice and logic -----------------------------------------------------------------------------


@elementwise
def if_then_else(cond: Any, t: Any, f: Any, span: Any = None) -> Any:
    """One of two values; the other is not evaluated. It guards a read.

    Parameters
    ----------
    cond : condition
        A bool; for a number write ``x != 0``.
    t, f : expression
        Promoted to one dtype.

    See Also
    --------
    minitvm.tir.expr.Select : the choice that evaluates both.

    >>> from minitvm import te
    >>> if_then_else(te.const(1) < 2, 3, 0.5)
    3.0
    """
    condition = as_condition(cond)
    true_value, false_value = promote(t, f)
    if isinstance(condition, IntImm):
        return true_value if condition.value else false_value
    return Call(true_value.dtype, "if_then_else", (condition, true_value, false_value))


@named
def all(*args: Any, span: Any = None) -> Any:
    """Whether all of some conditions hold; all are evaluated.

    Raises
    ------
    CompileError
        When there are none.
    """
    return _joined(logical_and, args)


@named
def any(*args: Any, span: Any = None) -> Any:
    """Whether any of some conditions holds; all are evaluated.

    Raises
    ------
    CompileError
        When there are none.
    """
    return _joined(logical_or, args)


def _joined(join: Callable[[Any, Any], Any], conditions: tuple[Any, ...]) -> Any:
    if not conditions:
        raise CompileError("expected at least one condition, got none")
    made = conditions[0] if len(conditions) > 1 else as_condition(conditions[0])
    for condition in conditions[1:]:
        made = join(made, condition)
    return made


@elementwise
def likely(cond: Any, span: Any = None) -> Any:
    """The condition itself, marked as one that mostly holds."""
    condition = as_condition(cond)
    return condition if isinstance(condition, IntImm) else Call(BOOL, "likely", (condition,))


def is_likely(condition: PrimExpr) -> TypeGuard[Call]:
    """Whether a condition is marked by :func:`likely`."""
    return isinstance(condition, Call) and condition.op == "likely"


# -- Integer division -----------------------------------------------------------------------------


@elementwise
def div(a: Any, b: Any, span: Any = None) -> Any:
    """``a / b`` as in C: of integers, rounded towards zero."""
    x, y = promote(a, b)
    return divide(x, y) if x.dtype.is_float else truncdiv(x, y)


@named
def indexdiv(a: Any, b: Any, span: Any = None) -> Any:
    """The quotient of two integers that aren't negative."""
    return floordiv(a, b)


@named
def indexmod(a: Any, b: Any, span: Any = None) -> Any:
    """The remainder of two integers that aren't negative."""
    return floormod(a, b)


@elementwise
def ceildiv(lhs: Any, rhs: Any, span: Any = None) -> Any:
    """The quotient of integers rounded up.

    >>> ceildiv(7, 2)
    4
    """
    x, y = promote(lhs, rhs)
    return floordiv(x + (y - 1), y)


# -- Intrinsics -----------------------------------------------------------------------------------


class _Unary(Protocol):
    def __call__(self, x: Any) -> Any:
        """See the entry of :data:`minitvm.tir.intrinsics.INTRINSICS`."""


class _Classic(Protocol):
    def __call__(self, x: Any, span: Any = None) -> Any:
        """See the entry of :data:`minitvm.tir.intrinsics.INTRINSICS`."""


class _Binary(Protocol):
    def __call__(self, x1: Any, x2: Any) -> Any:
        """See the entry of :data:`minitvm.tir.intrinsics.INTRINSICS`."""


def _unary(name: str) -> _Unary:
    known = INTRINSICS[name]

    def function(x: Any) -> Any:
        return _applied(known, as_expr(x))

    return elementwise(_documented(function, known))


def _classic(name: str) -> _Classic:
    """A function that takes a `span`, as in classic TVM, and ignores it."""
    known = INTRINSICS[name]

    def function(x: Any, span: Any = None) -> Any:
        return _applied(known, as_expr(x))

    return elementwise(_documented(function, known))


def _binary(name: str) -> _Binary:
    known = INTRINSICS[name]

    def function(x1: Any, x2: Any) -> Any:
        return _applied(known, *promote(x1, x2))

    return elementwise(_documented(function, known))


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _documented(function: _Function, known: Intrinsic) -> _Function:
    function.__name__ = function.__qualname__ = known.language_name
    function.__doc__ = known.doc
    return function


def _applied(known: Intrinsic, *args: PrimExpr) -> PrimExpr:
    """An intrinsic on operands of the dtypes that it takes; folded where no call is needed."""
    dtype = args[0].dtype
    problem = known.problem(dtype)
    if problem is not None:
        advice = ', as in x.astype("float32")' if "cast it" in problem else ""
        raise CompileError(problem + advice)
    if dtype.is_integral and known.domain is Domain.ROUNDED:
        return args[0]
    result = known.result_of(dtype)
    if dtype.is_integral and known.domain is Domain.TESTED:
        return const(known.meaning(dtype, 0), result)
    return intrinsic(known.name, result, *args)


exp, exp2, exp10, expm1 = map(_unary, ("exp", "exp2", "exp10", "expm1"))
log, log2, log10, log1p = map(_unary, ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, erf, sigmoid = map(_unary, ("sqrt", "rsqrt", "erf", "sigmoid"))
sin, cos, tan = map(_unary, ("sin", "cos", "tan"))
asin, acos, atan = map(_unary, ("asin", "acos", "atan"))
sinh, cosh, tanh = map(_unary, ("sinh", "cosh", "tanh"))
asinh, acosh, atanh = map(_unary, ("asinh", "acosh", "atanh"))
floor, ceil, trunc = map(_classic, ("floor", "ceil", "trunc"))
round, nearbyint = map(_classic, ("round", "nearbyint"))
isnan, isinf, isfinite = map(_classic, ("isnan", "isinf", "isfinite"))
popcount, clz = map(_unary, ("popcount", "clz"))
atan2, hypot, copysign, nextafter = map(_binary, ("atan2", "hypot", "copysign", "nextafter"))


@elementwise
def fmod(x: Any, y: Any) -> Any:
    """The remainder of `x` divided by `y`, with the sign of `x`."""
    return _applied(INTRINSICS["fmod"], *promote(x, y))


@elementwise
def ldexp(x1: Any, x2: Any) -> Any:
    """``x1 * 2 ** x2``, of an integer `x2`."""
    exponent = as_expr(x2)
    if not exponent.dtype.is_integral:
        raise CompileError(f"expected an integer exponent, got {exponent.dtype}")
    x, known = as_expr(x1), INTRINSICS["ldexp"]
    return _applied(known, x, cast(known.second_of(x.dtype), exponent))


@elementwise
def abs(x: Any, span: Any = None) -> Any:
    """The magnitude; the least integer stays itself."""
    return absolute(x)


@named
def pow(x: Any, y: Any, span: Any = None) -> Any:
    """``x ** y``: another name of ``power``."""
    return power(x, y)


# -- Bits -----------------------------------------------------------------------------------------


@elementwise
def reinterpret(dtype: DTypeLike, value: Any) -> Any:
    """The bits of a value as those of another type.

    Raises
    ------
    CompileError
        When the types differ in width.
    """
    wanted, x = as_dtype(dtype), as_expr(value)
    if wanted.bits * wanted.lanes != x.dtype.bits * x.dtype.lanes:
        raise CompileError(
            f"expected types of one width, got {x.dtype} as {wanted}: "
            f"{x.dtype.bits * x.dtype.lanes} and {wanted.bits * wanted.lanes} bits"
        )
    return x if x.dtype == wanted else Call(wanted, "reinterpret", (x,))


# -- Limits of a type -----------------------------------------------------------------------------


@named
def max_value(dtype: DTypeLike, span: Any = None) -> PrimExpr:
    """The greatest finite value of a type.

    >>> max_value("int8"), max_value("float16")
    (int8(127), float16(65504.0))
    """
    wanted = _number_type(dtype)
    return const(scalars.greatest(wanted.element) if wanted.is_float else wanted.max(), wanted)


@named
def min_value(dtype: DTypeLike, span: Any = None) -> PrimExpr:
    """The least finite value of a type."""
    wanted = _number_type(dtype)
    return const(-scalars.greatest(wanted.element) if wanted.is_float else wanted.min(), wanted)


@named
def infinity(dtype: DTypeLike, span: Any = None) -> PrimExpr:
    """The positive infinity of a floating-point type."""
    wanted = as_dtype(dtype)
    if not wanted.is_float:
        raise CompileError(f"expected a floating-point dtype, got {wanted}")
    return const(math.inf, wanted)


def _number_type(dtype: DTypeLike) -> DType:
    wanted = as_dtype(dtype)
    if wanted.is_handle:
        raise CompileError(f"expected the dtype of a number, got {wanted}")
    return wanted


# -- Calls out of the program ---------------------------------------------------------------------


def _argument(value: Any) -> PrimExpr:
    """An argument of a call: a number, a string, or a whole buffer."""
    return BufferRef(value) if isinstance(value, Buffer) else as_expr(value)


@named
def call_packed(name: str, *args: Any, span: Any = None) -> Call:
    """The call of a registered function: its result is an ``int32``.

    Parameters
    ----------
    name : str
        The name under which it is registered.
    args
        Numbers, strings, and buffers, which arrive as tensors.
    """
    return Call(INT32, "call_packed", (StringImm(as_name(name)), *map(_argument, args)))


@named
def call_extern(dtype: DTypeLike, func_name: str, *args: Any, span: Any = None) -> Call:
    """The call of a C function whose symbol the process or the linker knows.

    Parameters
    ----------
    dtype : dtype
        The dtype of its result.
    func_name : str
        Its symbol.
    args
        Numbers and addresses (``buffer.access_ptr("r")``), each passed in its own dtype.
    """
    return Call(
        as_dtype(dtype), "call_extern", (StringImm(as_name(func_name)), *map(_argument, args))
    )


@named
def call_pure_extern(dtype: DTypeLike, func_name: str, *args: Any, span: Any = None) -> Call:
    """The call of a C function without effects. See :func:`call_extern`."""
    return call_extern(dtype, func_name, *args)


@named
def call_llvm_intrin(dtype: DTypeLike, name: str, *args: Any, span: Any = None) -> Call:
    """The call of an intrinsic of LLVM that may have effects.

    A first argument that is a ``uint32`` constant is dropped: in classic TVM it counts the
    arguments that select an overload. Here their dtypes select it. ``build`` asks LLVM whether
    there is such an intrinsic, of these types.

    >>> from minitvm import te
    >>> x = te.var("x", "float32")
    >>> len(call_llvm_intrin("float32", "llvm.sqrt", te.const(1, "uint32"), x).args)
    2
    """
    return _llvm_call("call_llvm_intrin", dtype, name, args)


@named
def call_llvm_pure_intrin(dtype: DTypeLike, name: str, *args: Any, span: Any = None) -> Call:
    """The call of an intrinsic of LLVM without effects. See :func:`call_llvm_intrin`."""
    return _llvm_call("call_llvm_pure_intrin", dtype, name, args)


def _llvm_call(op: str, dtype: DTypeLike, name: str, args: tuple[Any, ...]) -> Call:
    for problem in llvm_name_problems(name):
        raise CompileError(problem)
    made = [_argument(arg) for arg in args]
    if made and isinstance(made[0], IntImm) and made[0].dtype == "uint32":
        made = made[1:]
    return Call(as_dtype(dtype), op, (StringImm(name), *made))


@named
def call_intrin(dtype: DTypeLike, func_name: str, *args: Any, span: Any = None) -> PrimExpr:
    """The call of an intrinsic by name: ``"exp"``, or as in classic TVM ``"tir.exp"``.

    Raises
    ------
    CompileError
        When there is no intrinsic of that name, or it doesn't take these arguments.

    >>> call_intrin("float32", "tir.sqrt", 4.0)
    2.0
    """
    name = plain_name(as_name(func_name))
    if name not in INTRINSICS and name not in CALLS:
        close = similar(name, [*INTRINSICS, *CALLS])
        hint = f"did you mean {' or '.join(close)}?" if close else ""
        own = f"one of your own begins with register_op_attr('tir.{name}', ...)"
        raise CompileError(f"expected the name of an intrinsic, got {func_name!r}: {hint or own}")
    wanted = as_dtype(dtype)
    firm = [_argument(arg) for arg in args if not isinstance(arg, NUMBERS)]
    alike = firm[0].dtype if firm else wanted  # the dtype of the operands of a function of numbers
    taken = [
        valued(alike, arg) if isinstance(arg, NUMBERS) and name in INTRINSICS else arg
        for arg in args
    ]
    made = Call(wanted, name, tuple(map(_argument, taken)))
    for problem in call_problems(made):
        raise CompileError(problem)
    return intrinsic(name, wanted, *made.args)


@named
def isnullptr(x: Any, span: Any = None) -> Call:
    """Whether an address is null."""
    handle = as_expr(x)
    if not handle.dtype.is_handle:
        raise CompileError(f"expected a handle, got {handle.dtype}")
    return Call(BOOL, "isnullptr", (handle,))


def are_apart(a: Any, b: Any) -> Call:
    """Whether the memory of two parameters of one shape isn't the same, at the call.

    Parameters
    ----------
    a, b : Var
        The ``data`` of two buffers that are parameters.

    Raises
    ------
    CompileError
        When one of them is no such variable.
    """
    for name, each in (("a", a), ("b", b)):
        if not isinstance(each, Var) or not each.dtype.is_handle:
            raise CompileError(
                f"are_apart: {name}: expected the data of a buffer, got {described(each)}"
            )
    return Call(BOOL, "are_apart", (a, b))


# -- Conversion -----------------------------------------------------------------------------------


@named
def convert(value: Any, span: Any = None) -> Any:
    """A Python value as a value of the language (classic ``tvm.convert``). Numbers and strings
    become constants, callables become packed functions, and lists and tuples become tuples of
    converted members; a value of the language stays.

    Raises
    ------
    CompileError
        When `value` can't be converted.

    >>> convert([1, 2.5])
    (1, 2.5)
    """
    if isinstance(value, (list, tuple)):
        return tuple(convert(member) for member in value)
    if isinstance(value, dict):
        return {key: convert(member) for key, member in value.items()}
    if value is None or isinstance(value, (IterVar, Range, Buffer, Stmt, WholeTensor)):
        return value
    if callable(value) and not hasattr(value, "asobject"):
        return convert_to_packed(value)
    return as_expr(value)
