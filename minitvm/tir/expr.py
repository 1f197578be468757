"""Every expression node, then how expressions are made: promotion of dtypes, folding of constants.

One set of nodes serves tensor expressions (where a read is a :class:`ProducerLoad` and a sum is a
:class:`Reduce`) and the loop IR (where a read is a :class:`BufferLoad` and reductions have become
loops). Nodes are immutable and compared by identity; ``==`` on expressions builds an :class:`EQ`.
Statements are in :mod:`minitvm.tir.stmt`, traversal in :mod:`minitvm.tir.functor`.
"""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, field, fields
from enum import IntEnum
from inspect import signature
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, final
from typing import cast as typed

import numpy as np

from minitvm.runtime.dtype import (
    BOOL,
    FLOAT32,
    FLOAT64,
    HANDLE,
    INT32,
    INT64,
    MAX_LANES,
    DType,
    DTypeLike,
)
from minitvm.runtime.errors import CompileError, InternalError
from minitvm.runtime.record import record
from minitvm.runtime.values import text_for_c
from minitvm.tir import scalars
from minitvm.tir.intrinsics import IMPURE_CALLS, INTRINSICS

# What to write in place of what Python would compute now, of a value known when a kernel runs.
_NO_TRUTH = (
    "no truth value while a program is written: for `if` write te.if_then_else(c, a, b); for "
    "`and`, `or`, `not`: te.all, te.any, tir.Not; for `a < b < c`: te.all(a < b, b < c); for "
    "max(a, b), min(a, b): te.max, te.min; to compare identities: `is`"
)
_NO_NUMBER = {
    "__float__": 'for float(x) write x.astype("float32"), for math.sqrt(x): te.sqrt(x)',
    "__int__": 'for int(x) write x.astype("int32")',
    "__index__": "for `for i in range(x)` write a loop of tir.ir_builder or te.hybrid, or an axis "
    "of te.compute",
    "__complex__": "there are no complex numbers",
    "__round__": "for round(x) write te.nearbyint(x), halves to even, or te.round(x), halves away "
    "from zero",
    "__trunc__": "for math.trunc(x) write te.trunc(x)",
    "__floor__": "for math.floor(x) write te.floor(x)",
    "__ceil__": "for math.ceil(x) write te.ceil(x)",
}


def _no_number(name: str) -> Callable[..., Any]:
    """The method of a protocol of Python's numbers, which refuses."""

    def refuse(self: object, *args: object) -> NoReturn:
        raise TypeError(
            f"{described(self)} has no value while a program is written: {_NO_NUMBER[name]}"
        )

    return refuse


class ExprOperators:
    """Python's operators, for whatever :func:`as_expr` turns into an expression."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _of_numpy(self, ufunc, method, inputs, options)

    __float__, __int__ = _no_number("__float__"), _no_number("__int__")
    __index__, __complex__ = _no_number("__index__"), _no_number("__complex__")
    __round__, __trunc__ = _no_number("__round__"), _no_number("__trunc__")
    __floor__, __ceil__ = _no_number("__floor__"), _no_number("__ceil__")

    def __iter__(self) -> Any:
        raise TypeError(
            f"{described(self)} has no members: loop with an axis of te.compute, tir.ir_builder "
            "or te.hybrid"
        )

    def __add__(self, other: Any) -> PrimExpr:
        return add(self, other)

    def __radd__(self, other: Any) -> PrimExpr:
        return add(other, self)

    def __sub__(self, other: Any) -> PrimExpr:
        return subtract(self, other)

    def __rsub__(self, other: Any) -> PrimExpr:
        return subtract(other, self)

    def __mul__(self, other: Any) -> PrimExpr:
        return multiply(self, other)

    def __rmul__(self, other: Any) -> PrimExpr:
        return multiply(other, self)

    def __truediv__(self, other: Any) -> PrimExpr:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> PrimExpr:
        return divide(other, self)

    def __floordiv__(self, other: Any) -> PrimExpr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Any) -> PrimExpr:
        return floordiv(other, self)

    def __mod__(self, other: Any) -> PrimExpr:
        return floormod(self, other)

    def __rmod__(self, other: Any) -> PrimExpr:
        return floormod(other, self)

    def __pow__(self, other: Any) -> PrimExpr:
        return power(self, other)

    def __rpow__(self, other: Any) -> PrimExpr:
        return power(other, self)

    def __neg__(self) -> PrimExpr:
        return negate(self)

    def __pos__(self) -> PrimExpr:
        return as_expr(self)

    def __abs__(self) -> PrimExpr:
        return absolute(self)

    def __lshift__(self, other: Any) -> PrimExpr:
        return shift_left(self, other)

    def __rlshift__(self, other: Any) -> PrimExpr:
        return shift_left(other, self)

    def __rshift__(self, other: Any) -> PrimExpr:
        return shift_right(self, other)

    def __rrshift__(self, other: Any) -> PrimExpr:
        return shift_right(other, self)

    def __and__(self, other: Any) -> PrimExpr:
        return bitwise_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> PrimExpr:
        return bitwise_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> PrimExpr:
        return bitwise_xor(self, other)

    __rxor__ = __xor__

    def __invert__(self) -> PrimExpr:
        return bitwise_not(self)

    def __lt__(self, other: Any) -> PrimExpr:
        return less(self, other)

    def __le__(self, other: Any) -> PrimExpr:
        return less_equal(self, other)

    def __gt__(self, other: Any) -> PrimExpr:
        return greater(self, other)

    def __ge__(self, other: Any) -> PrimExpr:
        return greater_equal(self, other)

    def __eq__(self, other: Any) -> PrimExpr:  # type: ignore[override]  # builds an expression
        return equal(self, other)

    def __ne__(self, other: Any) -> PrimExpr:  # type: ignore[override]  # builds an expression
        return not_equal(self, other)

    def equal(self, other: Any) -> PrimExpr:
        """``self == other`` as an expression (classic name)."""
        return equal(self, other)

    def astype(self, dtype: DTypeLike) -> PrimExpr:
        """This value converted to `dtype`."""
        return cast(dtype, self)

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other

    def __bool__(self) -> bool:
        raise CompileError(f"{described(self)} has {_NO_TRUTH}")


class WholeTensor:
    """Base of a tensor taken whole, over whose elements the functions of this module map."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _of_numpy(self, ufunc, method, inputs, options)

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError(
            f"{described(self)} has no elements while a program is written: build a function of "
            "it, as in tvm.build(s, [A, B]), and call that with arrays"
        )

    __float__, __int__ = _no_number("__float__"), _no_number("__int__")
    __index__, __complex__ = _no_number("__index__"), _no_number("__complex__")
    __round__, __trunc__ = _no_number("__round__"), _no_number("__trunc__")
    __floor__, __ceil__ = _no_number("__floor__"), _no_number("__ceil__")

    def map_elements(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`function` of `args`, among which is this tensor, element by element."""
        raise NotImplementedError


_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(function: _Function) -> _Function:
    """Has the errors of a function of the language begin with the name that the user wrote: that
    of the outermost such function."""
    name = function.__name__

    @functools.wraps(function)
    def apply(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except CompileError as error:
            raise _named_error(name, error) from None

    return typed(_Function, apply)


def elementwise(function: _Function) -> _Function:
    """Lets a function of expressions take whole tensors as well, and broadcast as numpy does. Its
    errors begin with its name, as with :func:`named`."""
    parameters = signature(function)
    name = function.__name__

    @functools.wraps(function)
    def apply(*args: Any, **keywords: Any) -> Any:
        try:
            if keywords:
                bound = parameters.bind(*args, **keywords)
                bound.apply_defaults()
                args = bound.args
            for arg in args:
                if isinstance(arg, WholeTensor):
                    return arg.map_elements(function, args)
            return function(*args)
        except CompileError as error:
            raise _named_error(name, error) from None

    return typed(_Function, apply)


def _named_error(name: str, error: CompileError) -> CompileError:
    problem = error.problem or str(error)
    made = CompileError(f"{name}: {problem}")
    made.problem = problem
    return made


def _of_numpy(
    given: Any, ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A function of numpy on `given`, which is no number: Python's operators, where a numpy scalar
    stands on the left; else an error that says what to write."""
    inputs = tuple(each[()] if isinstance(each, np.ndarray) else each for each in inputs)
    arrays = [each for each in inputs if isinstance(each, np.ndarray)]  # a scalar is none
    operator = _OPERATORS_OF_NUMPY.get(ufunc.__name__)
    if operator is not None and method == "__call__" and not options and not arrays:
        return operator(*inputs)
    if arrays:
        raise TypeError(f"np.{ufunc.__name__} of {described(given)}: {_no_array(arrays[0])}")
    own = _NAMES_OF_NUMPY.get(ufunc.__name__)
    advice = f"write te.{own}" if own else "write it with the functions of te"
    raise TypeError(
        f"np.{ufunc.__name__} computes numbers, and {described(given)} has none while a program "
        f"is written: {advice}"
    )


class PrimExpr(ExprOperators):
    """Base of all expression nodes; ``dtype`` is the type of the value."""

    __slots__ = ()
    dtype: DType

    def __str__(self) -> str:
        from minitvm.tir.printer import expr_text  # the printer stands above the nodes it prints

        return expr_text(self)

    def __repr__(self) -> str:
        return str(self)


def _set(node: object, name: str, value: object) -> None:
    """Fill in a derived field of a frozen node while it is made."""
    object.__setattr__(node, name, value)


# -- What the fields of nodes take ----------------------------------------------------------------

# Fields of one dtype, which a literal among them takes; those of a `BinaryOp` are its operands.
_ALIKE: dict[str, tuple[str, ...]] = {
    "Select": ("true_value", "false_value"),
    "Ramp": ("base", "stride"),
    "Let": ("var", "value"),
    "LetStmt": ("var", "value"),
    "For": ("loop_var", "min", "extent"),
}


class NodeAdmission:
    """What the constructors of nodes take, of this page and of :mod:`minitvm.tir.stmt`: whatever
    the annotations say, and what stands for it: numbers and axes for expressions, lists for tuples.

    A literal takes the dtype of the field next to it that must have the same, as in
    ``EQ(v, 4)``; of a float next to an integer, the integer is converted, as operators do.
    """

    def test(self, cls: type, annotation: str, name: str) -> tuple[str, Mapping[str, Any]]:
        """See :class:`minitvm.runtime.record.Admission`."""
        kind, optional, several = _parts(annotation)
        if kind == "Any":
            return "True", {}
        taken = _class_of(cls, kind)
        if several:
            return f"_all_{kind}({name})", {f"_all_{kind}": functools.partial(_are_all, taken)}
        exact = taken in (float, DType)
        test = f"type({name}) is {kind}" if exact else f"isinstance({name}, {kind})"
        return f"{name} is None or {test}" if optional else test, {kind: taken}

    def admit(self, cls: type, values: dict[str, Any]) -> dict[str, Any]:
        """The fields of a node of `cls` made of what was given for them."""
        annotations = {each.name: str(each.type) for each in fields(cls)}
        alike = ("a", "b") if issubclass(cls, BinaryOp) else _ALIKE.get(cls.__name__, ())
        if cls is BufferStore:
            alike = ("value",)
        made: dict[str, Any] = {}
        for name, value in values.items():
            made[name] = value
            literal = isinstance(value, NUMBERS) and annotations[name] == "PrimExpr"
            if name not in alike or not literal:
                made[name] = _field(cls, name, annotations[name], value)
        with naming(cls.__name__):
            if cls is BufferStore:
                dtype = _dtype_at(made["buffer"], made["indices"])
                return {**made, "value": valued(dtype, made["value"])}
            return {**made, **_of_one_dtype({name: made[name] for name in alike})}


def _parts(annotation: str) -> tuple[str, bool, bool]:
    """The class that an annotation names, whether None may stand for it, and whether it is that of
    the members of a tuple."""
    kind = annotation.removesuffix(" | None")
    members = kind.removeprefix("tuple[").removesuffix(", ...]")
    return members.split("[")[0], kind != annotation, members != kind


def _class_of(cls: type, kind: str) -> Any:
    """The class that an annotation in `cls` names; of what is read, a tensor."""
    known = vars(sys.modules[cls.__module__])
    return WholeTensor if kind == "DataProducer" else known.get(kind) or getattr(builtins, kind)


def _are_all(taken: type, values: object) -> bool:
    return type(values) is tuple and all(isinstance(value, taken) for value in values)


def _field(cls: type, name: str, annotation: str, value: Any) -> Any:
    """What a field of a node holds, made of `value`."""
    kind, optional, several = _parts(annotation)
    if kind == "Any" or value is MISSING or (optional and value is None):
        return value
    taken = _class_of(cls, kind)
    with naming(f"{cls.__name__}: {name}"):
        if several:
            return tuple(_as_kind(taken, kind, each) for each in as_tuple(value))
        return _as_kind(taken, kind, value)


def _as_kind(taken: Any, kind: str, value: Any) -> Any:
    converted = _CONVERTERS.get(kind, lambda same: same)(value)
    if issubclass(taken, IntEnum) and type(value) is int and value in list(taken):
        converted = taken(value)
    if not isinstance(converted, taken):
        raise CompileError(f"expected {_WORDS.get(kind, kind)}, got {described(value)}")
    return converted


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Has errors begin with where they are."""
    try:
        yield
    except CompileError as error:
        raise CompileError(f"{where}: {error}") from None


def _of_one_dtype(values: dict[str, Any]) -> dict[str, Any]:
    """Expressions and literals of which each literal takes the dtype of the expressions."""
    literals = [value for value in values.values() if isinstance(value, NUMBERS)]
    if not literals:
        return values
    firm = [value for value in values.values() if not isinstance(value, NUMBERS)]
    if len(values) == 2 and not any(isinstance(value, Var) for value in firm if "var" in values):
        fraction = any(isinstance(literal, float) for literal in literals)
        if not firm or (fraction and firm[0].dtype.is_integral):
            return dict(zip(values, promote(*values.values()), strict=True))
    dtype = firm[0].dtype if firm else INT32
    return {
        name: valued(dtype, value) if isinstance(value, NUMBERS) else value
        for name, value in values.items()
    }


def _as_int(value: Any) -> Any:
    return value.__index__() if isinstance(value, np.integer) else value


def _as_float(value: Any) -> Any:
    if not isinstance(value, (int, float, np.floating, np.integer)):
        return value
    try:
        return float(value)
    except OverflowError:
        raise CompileError(
            f"expected a number that a float can hold, got {described(value)}"
        ) from None


def _as_var(value: Any) -> Any:
    return value.var if isinstance(value, IterVar) else value


def _as_buffer(value: Any) -> Any:
    convert = None if isinstance(value, type) else getattr(value, "asobject", None)
    reference = value if convert is None else convert()
    return reference.buffer if isinstance(reference, BufferRef) else value


# What stands for a value of a class, and what a class is called.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "PrimExpr": lambda value: as_expr(value),
    "DType": lambda value: as_dtype(value),
    "int": _as_int,
    "float": _as_float,
    "Var": _as_var,
    "Buffer": _as_buffer,
}
_WORDS = {
    "PrimExpr": "an expression",
    "Var": "a variable",
    "Buffer": "a buffer",
    "Stmt": "a statement",
    "DataProducer": "a tensor",
    "IterVar": "an axis",
    "Range": "a Range",
    "CommReducer": "a reducer's combination",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
}
NODES = NodeAdmission()


# -- Leaves ---------------------------------------------------------------------------------------


@final
@record(eq=False, repr=False, admission=NODES)
class Var(PrimExpr):
    """A variable: an identity, of which `name` is only how it prints. ``n = te.var("n")``.

    `nonnegative` marks a size (classic ``SizeVar``): never less than zero. `axis` marks the
    variable of an axis: it has a value only inside the loop of that axis.
    """

    name: str
    dtype: DType = INT32
    nonnegative: bool = False
    axis: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise CompileError("Var: expected a name, got an empty string")


class Constant(PrimExpr):
    """Base of the constants that are numbers: Python's own functions take them."""

    __slots__ = ()
    value: bool | int | float

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __round__(self, *digits: int) -> float:
        return round(self.value, *digits)

    def __trunc__(self) -> int:
        return math.trunc(self.value)

    def __floor__(self) -> int:
        return math.floor(self.value)

    def __ceil__(self) -> int:
        return math.ceil(self.value)


@final
@record(eq=False, repr=False, admission=NODES)
class IntImm(Constant):
    """An integer (or ``bool``) constant. ``IntImm("int32", 56)``."""

    dtype: DType
    value: int

    def __post_init__(self) -> None:
        dtype, value = self.dtype, self.value
        if not dtype.is_integral or dtype.lanes > 1:
            raise CompileError(f"IntImm: expected the dtype of an integer, got {dtype}")
        if not dtype.min() <= value <= dtype.max():
            raise CompileError(
                f"constant of dtype {dtype}: expected a value from {dtype.min()} to {dtype.max()}, "
                f"got {_digits(value)}"
            )
        if isinstance(value, bool) is not dtype.is_bool:
            _set(self, "value", bool(value) if dtype.is_bool else int(value))

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return self.value != 0


@final
@record(eq=False, repr=False, admission=NODES)
class FloatImm(Constant):
    """A floating-point constant, rounded to its dtype. ``FloatImm("float32", 0.5)``."""

    dtype: DType
    value: float

    def __post_init__(self) -> None:
        dtype = self.dtype
        if not dtype.is_float or dtype.lanes > 1:
            raise CompileError(f"FloatImm: expected the dtype of a float, got {dtype}")
        rounded = scalars.round_float(dtype, self.value)
        if math.isinf(rounded) and not math.isinf(self.value):
            raise CompileError(
                f"constant of dtype {dtype}: expected a value of magnitude up to "
                f"{scalars.greatest(dtype)}, got {self.value}: for an infinity write "
                f'te.infinity("{dtype}")'
            )
        _set(self, "value", rounded)


@final
@record(eq=False, repr=False, admission=NODES)
class StringImm(PrimExpr):
    """A string constant: an argument of ``call_packed``."""

    value: str
    dtype: DType = field(default=HANDLE, init=False)


# -- Arithmetic: both operands of one dtype, which is the result's --------------------------------


class BinaryOp(PrimExpr):
    """Base of the operators on two values of one dtype."""

    __slots__ = ()
    a: PrimExpr
    b: PrimExpr


def _check_operands(node: BinaryOp) -> None:
    if node.a.dtype is not node.b.dtype:
        raise CompileError(
            f"{type(node).__name__}: expected operands of one dtype, got {node.a.dtype} and "
            f"{node.b.dtype}: the Python operators convert, these constructors don't"
        )


def _init_arithmetic(node: Arithmetic) -> None:
    _check_operands(node)
    dtype = node.a.dtype
    if not dtype.is_float and (not dtype.is_integral or dtype.is_bool):
        _check_numbers(type(node), dtype, f"{type(node).__name__}: ")
    _set(node, "dtype", dtype)


def _check_numbers(node: type, dtype: DType, where: str = "") -> None:
    """Refuses operands of a dtype that have no arithmetic."""
    if dtype.is_bool and not issubclass(node, (Min, Max)):
        raise CompileError(
            f"{where}expected numbers, got two bools: cast them, or use te.all, te.any"
        )
    if not (dtype.is_float or dtype.is_integral):
        raise CompileError(f"{where}expected numbers, got {dtype}")


def _init_comparison(node: Comparison) -> None:
    _check_operands(node)
    dtype = node.a.dtype
    if not (dtype.is_float or dtype.is_integral):
        raise CompileError(f"{type(node).__name__}: expected numbers, got {dtype}")
    _set(node, "dtype", BOOL if dtype.lanes == 1 else BOOL.with_lanes(dtype.lanes))


def _init_integer_arithmetic(node: Arithmetic) -> None:
    _init_arithmetic(node)
    if not node.dtype.is_integral:
        raise CompileError(f"{type(node).__name__}: expected integers, got {node.dtype}")


def _init_logic(node: And | Or) -> None:
    _check_operands(node)
    _set(node, "dtype", node.a.dtype)
    check_condition(type(node).__name__, node.a)


def no_condition(expr: PrimExpr) -> str:
    """What to say of a number in the place of a condition."""
    text = _shown(expr)
    return f"expected a bool condition, got {text} of {expr.dtype}: write x != 0 for a number x"


def check_condition(where: str, condition: PrimExpr) -> None:
    """Refuses a number in the place of a condition."""
    if not condition.dtype.is_bool:
        raise CompileError(f"{where}: {no_condition(condition)}")


class Arithmetic(BinaryOp):
    """Base of the operators whose result has the operands' dtype."""

    __slots__ = ()
    __post_init__ = _init_arithmetic


class IntegerArithmetic(Arithmetic):
    """Base of the operators on integers alone."""

    __slots__ = ()
    __post_init__ = _init_integer_arithmetic


class Comparison(BinaryOp):
    """Base of the operators whose result is ``bool``."""

    __slots__ = ()
    __post_init__ = _init_comparison


class Logic(BinaryOp):
    """Base of the operators on two conditions."""

    __slots__ = ()
    __post_init__ = _init_logic


@final
@record(eq=False, repr=False, admission=NODES)
class Add(Arithmetic):
    """``a + b``; integers wrap."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Sub(Arithmetic):
    """``a - b``; integers wrap."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Mul(Arithmetic):
    """``a * b``; integers wrap."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Div(Arithmetic):
    """``a / b``; integers round towards zero (``truncdiv``)."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Mod(IntegerArithmetic):
    """The remainder of :class:`Div` on integers, with the sign of `a` (``truncmod``)."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class FloorDiv(IntegerArithmetic):
    """``a // b`` on integers, rounded down."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class FloorMod(IntegerArithmetic):
    """``a % b`` on integers, with the sign of `b`."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Min(Arithmetic):
    """The lesser; NaN when either is NaN."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Max(Arithmetic):
    """The greater; NaN when either is NaN."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


# -- Comparison and logic: the result is bool -----------------------------------------------------


@final
@record(eq=False, repr=False, admission=NODES)
class EQ(Comparison):
    """``a == b``. As a condition of Python it asks whether both sides are one expression: see
    :func:`is_same_size`."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)

    def __bool__(self) -> bool:
        return is_same_size(self)


@final
@record(eq=False, repr=False, admission=NODES)
class NE(Comparison):
    """``a != b``. As a condition of Python it asks whether both sides are two expressions: see
    :func:`is_same_size`."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)

    def __bool__(self) -> bool:
        return not is_same_size(self)


@final
@record(eq=False, repr=False, admission=NODES)
class LT(Comparison):
    """``a < b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class LE(Comparison):
    """``a <= b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class GT(Comparison):
    """``a > b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class GE(Comparison):
    """``a >= b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class And(Logic):
    """Both of two ``bool`` values; both are evaluated."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Or(Logic):
    """Either of two ``bool`` values; both are evaluated."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False, admission=NODES)
class Not(PrimExpr):
    """The opposite of a ``bool``."""

    a: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        check_condition("Not", self.a)
        _set(self, "dtype", self.a.dtype)


# -- Choice, conversion, binding ------------------------------------------------------------------


@final
@record(eq=False, repr=False, admission=NODES)
class Select(PrimExpr):
    """One of two values, both of which are evaluated. The lazy choice is the call
    ``if_then_else``."""

    condition: PrimExpr
    true_value: PrimExpr
    false_value: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        check_condition("Select", self.condition)
        dtype = self.true_value.dtype
        if dtype is not self.false_value.dtype:
            raise CompileError(
                f"Select: expected two values of one dtype, got {dtype} and "
                f"{self.false_value.dtype}"
            )
        if self.condition.dtype.lanes not in (1, dtype.lanes):
            raise CompileError(
                f"Select: expected a condition of 1 or {dtype.lanes} lanes, got "
                f"{self.condition.dtype}"
            )
        _set(self, "dtype", dtype)


@final
@record(eq=False, repr=False, admission=NODES)
class Cast(PrimExpr):
    """`value` converted to `dtype`, as :func:`minitvm.tir.scalars.cast` defines it."""

    dtype: DType
    value: PrimExpr

    def __post_init__(self) -> None:
        _check_cast(self.value.dtype, self.dtype, "Cast: ")


@final
@record(eq=False, repr=False, admission=NODES)
class Let(PrimExpr):
    """``let var = value in body``: `value` is evaluated once."""

    var: Var
    value: PrimExpr
    body: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        check_value_of("Let", self.var, self.value)
        _set(self, "dtype", self.body.dtype)


def check_value_of(where: str, var: Var, value: PrimExpr) -> None:
    """Refuses a value of another dtype than its variable's."""
    if var.dtype is not value.dtype:
        raise CompileError(
            f"{where} {var.name}: expected a value of {var.dtype}, got one of {value.dtype}: cast "
            f"it, as in x.astype({str(var.dtype)!r})"
        )


def _check_cast(given: DType, wanted: DType, where: str = "") -> None:
    if given.lanes != wanted.lanes:
        raise CompileError(f"{where}expected {given.lanes} lanes, as in {given}, got {wanted}")
    for dtype in (given, wanted):
        if not (dtype.is_float or dtype.is_integral):
            raise CompileError(f"{where}expected numeric dtypes, got {given} to {wanted}")


# -- Vectors --------------------------------------------------------------------------------------


@final
@record(eq=False, repr=False, admission=NODES)
class Ramp(PrimExpr):
    """The vector ``base, base + stride, ...`` of `lanes` integers. Made by vectorisation."""

    base: PrimExpr
    stride: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        dtype = self.base.dtype
        if dtype is not self.stride.dtype or not dtype.is_integral or dtype.is_bool:
            raise CompileError(
                f"Ramp: expected base and stride of one integer dtype, got {dtype} and "
                f"{self.stride.dtype}"
            )
        _set(self, "dtype", _vector_of("Ramp", dtype, self.lanes))


@final
@record(eq=False, repr=False, admission=NODES)
class Broadcast(PrimExpr):
    """The vector of `lanes` copies of a scalar. Made by vectorisation."""

    value: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", _vector_of("Broadcast", self.value.dtype, self.lanes))


def _vector_of(where: str, scalar: DType, lanes: int) -> DType:
    if scalar.lanes > 1:
        raise CompileError(f"{where}: expected a scalar, got {scalar}")
    if not 2 <= lanes <= MAX_LANES:
        raise CompileError(f"{where}: expected 2 to {MAX_LANES} lanes, got {_digits(lanes)}")
    return scalar.with_lanes(lanes)


# -- Memory ---------------------------------------------------------------------------------------


@final
@record(eq=False, admission=NODES)
class Buffer:
    """A region of memory seen as a tensor: an identity, as a variable is.

    `strides` counts elements; ``()`` on a buffer of rank 1 or more means compact, row-major.
    Element ``[i, ...]`` is at ``data + (elem_offset + sum(i * stride)) * dtype.itemsize``.
    `layout` is how it was declared to lie (``decl_buffer``), which an argument is held to, or "".
    """

    data: Var
    shape: tuple[PrimExpr, ...]
    dtype: DType
    name: str
    strides: tuple[PrimExpr, ...] = ()
    elem_offset: PrimExpr | None = None
    scope: str = "global"
    data_alignment: int = 0
    offset_factor: int = 0
    auto_broadcast: bool = False
    layout: str = ""

    READ: ClassVar[int] = 1
    WRITE: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for size in (*self.shape, *self.strides, self.elem_offset):
            if size is not None and not _is_size(size.dtype):
                raise CompileError(
                    f"{self.name}: layout: expected a scalar integer, got {size} of {size.dtype}"
                )
        if len(self.strides) not in (0, len(self.shape)):
            raise CompileError(
                f"{self.name}: expected {len(self.shape)} strides, got {len(self.strides)}"
            )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def vload(self, begin: Any, dtype: DTypeLike | None = None) -> PrimExpr:
        """The value at index `begin`, or with a vector `dtype` the values from there on along the
        last axis."""
        with naming(self.name):
            wanted = self.dtype if dtype is None else as_dtype(dtype)
            return BufferLoad(self, vector_indices(begin, self._lanes_of(wanted)))

    def vstore(self, begin: Any, value: Any) -> Stmt:
        """Stores `value` at index `begin`, a vector from there on along the last axis. A Python
        number is taken in the buffer's dtype."""
        with naming(self.name):
            expr = valued(self.dtype, value)
            return BufferStore(self, expr, vector_indices(begin, self._lanes_of(expr.dtype)))

    def _lanes_of(self, wanted: DType) -> int:
        """How many elements a value of a dtype spans."""
        if wanted.element != self.dtype.element or wanted.lanes % self.dtype.lanes:
            raise CompileError(f"expected a value of {self.dtype}, got {wanted}")
        return wanted.lanes // self.dtype.lanes

    def access_ptr(
        self,
        access_mask: str | int,
        ptr_type: DTypeLike = HANDLE,
        content_lanes: int = 1,
        offset: Any = 0,
        extent: Any = None,
    ) -> PrimExpr:
        """The address of element `offset` (in memory order), for a ``call_extern`` that reads
        (``"r"``), writes (``"w"``) or does both (``"rw"``) to `extent` elements from there on.

        It is the call ``tvm_access_ptr(BufferRef, offset, extent, mask)``; an extent of -1 stands
        for the rest of the buffer. `ptr_type` and `content_lanes` are classic, and change nothing:
        pointers are opaque.
        """
        masks = {"r": self.READ, "w": self.WRITE, "rw": self.READ | self.WRITE}
        masks["wr"] = masks["rw"]
        mask = masks.get(access_mask, access_mask) if isinstance(access_mask, str) else access_mask
        if type(mask) is not int or mask not in masks.values():
            raise CompileError(
                f"{self.name}: expected access_mask 'r', 'w' or 'rw', got {described(access_mask)}"
            )
        with naming(self.name):
            count = constant(-1) if extent is None else as_size(extent)
            args = (BufferRef(self), as_size(offset), count, constant(mask))
        return Call(HANDLE, "tvm_access_ptr", args)

    def __getitem__(self, indices: Any) -> PrimExpr:
        with naming(self.name):
            return BufferLoad(self, vector_indices(indices, 1))

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"Buffer({self.name}: {self.dtype}[{shape}])"


def _is_size(dtype: DType) -> bool:
    return dtype.is_integral and not dtype.is_bool and dtype.lanes == 1


def vector_indices(begin: Any, lanes: int) -> tuple[PrimExpr, ...]:
    """Index expressions, of which the last becomes a ramp of `lanes` neighbours."""
    begin = begin if isinstance(begin, (tuple, list)) else (begin,)
    indices = tuple(as_index(i) for i in begin)
    if lanes == 1 or not indices:
        return indices
    last = indices[-1]
    return (*indices[:-1], Ramp(last, constant(1, last.dtype), lanes))


class DataProducer(Protocol):
    """What a :class:`ProducerLoad` reads: a tensor of the expression language."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[PrimExpr, ...]: ...
    @property
    def dtype(self) -> DType: ...


@final
@record(eq=False, repr=False, admission=NODES)
class ProducerLoad(PrimExpr):
    """An element of a tensor, in tensor expressions only: ``A[i, k]``."""

    producer: DataProducer
    indices: tuple[PrimExpr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.producer.shape):
            raise CompileError(
                f"{self.producer.name}: expected {len(self.producer.shape)} indices, got "
                f"{len(self.indices)}"
            )
        for i, index in enumerate(self.indices):
            if not _is_size(index.dtype):
                raise CompileError(
                    f"{self.producer.name}: index {i}: expected an integer, got {index.dtype}"
                )
        _set(self, "dtype", self.producer.dtype)


@final
@record(eq=False, repr=False, admission=NODES)
class BufferLoad(PrimExpr):
    """An element (or with a vector index several) of a buffer, in the loop IR.

    Lanes in which `predicate` is false are not read, and are 0. Vectorisation makes predicates.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", _dtype_at(self.buffer, self.indices, self.predicate))


def _dtype_at(
    buffer: Buffer, indices: tuple[PrimExpr, ...], predicate: PrimExpr | None = None
) -> DType:
    """The dtype of the value at some indices, which are checked, where a predicate holds."""
    if len(indices) != len(buffer.shape):
        raise CompileError(f"{buffer.name}: expected {buffer.ndim} indices, got {len(indices)}")
    lanes = 1
    for i, index in enumerate(indices):
        dtype = index.dtype
        if not dtype.is_integral or dtype.is_bool:
            raise CompileError(f"{buffer.name}: index {i}: expected an integer, got {dtype}")
        if dtype.lanes > 1:
            if lanes not in (1, dtype.lanes):
                raise CompileError(
                    f"{buffer.name}: index {i}: expected 1 or {lanes} lanes, got {dtype}"
                )
            lanes = dtype.lanes
    if predicate is not None and predicate.dtype is not BOOL.with_lanes(lanes):
        raise CompileError(
            f"{buffer.name}: predicate: expected {BOOL.with_lanes(lanes)}, got {predicate.dtype}"
        )
    element = buffer.dtype
    return element if lanes == 1 else element.with_lanes(element.lanes * lanes)


class Stmt:
    """Base of all statement nodes, which :mod:`minitvm.tir.stmt` lists."""

    __slots__ = ()

    def __str__(self) -> str:
        from minitvm.tir.printer import stmt_text  # the printer stands above the nodes it prints

        return stmt_text(self)

    def __repr__(self) -> str:
        return str(self)

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other


@final
@record(eq=False, repr=False, admission=NODES)
class BufferStore(Stmt):
    """``buffer[indices] = value``. The one statement on this page, since :meth:`Buffer.vstore`
    makes it. Lanes are stored in order, and not where `predicate` is false."""

    buffer: Buffer
    value: PrimExpr
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None

    def __post_init__(self) -> None:
        wanted = _dtype_at(self.buffer, self.indices, self.predicate)
        if self.value.dtype is not wanted:
            raise CompileError(
                f"{self.buffer.name}: expected a value of {wanted} to store, got one of "
                f"{self.value.dtype}: cast it, as in x.astype({str(wanted)!r})"
            )


# -- Calls ----------------------------------------------------------------------------------------


@final
@record(eq=False, repr=False, admission=NODES)
class Call(PrimExpr):
    """An intrinsic of :mod:`minitvm.tir.op` (``"exp"``), or a call out of the program.

    `op` is the name of an intrinsic, or one of ``call_packed`` (a registered function; the first
    argument is its name), ``call_extern`` (a C symbol), ``call_llvm_intrin``,
    ``call_llvm_pure_intrin``, ``if_then_else``, ``likely``, ``isnullptr``, ``tvm_access_ptr`` (see
    :meth:`Buffer.access_ptr`), ``tvm_stack_make_array`` (a region of a buffer passed to a
    packed call: a ``BufferRef``, where it begins in each dimension, and the extents of the last
    dimensions; those before are dropped), ``reinterpret``, ``prefetch`` (of the element of a
    buffer, which is not read and may lie outside), ``checked`` (a condition, a message, a value
    and those in the message: the value, once the condition is seen to hold; an ``IndexError``
    where it doesn't, as in an ``AssertStmt``); or one of vectors: ``vector_extract``
    (one lane, by its number), ``vector_shuffle`` (``vector_shuffle(a, b, 0, 4, 1, 5)``: lanes by
    their numbers in a and, counted on, in b) and the folds of
    :data:`minitvm.tir.intrinsics.VECTOR_FOLDS` (``vector_reduce_add(start, vector)``).
    """

    dtype: DType
    op: str
    args: tuple[PrimExpr, ...]


@final
@record(eq=False, repr=False, admission=NODES)
class BufferRef(PrimExpr):
    """A whole buffer as an argument of a call: ``call_packed("f", ins[0], outs[0])``."""

    buffer: Buffer
    dtype: DType = field(default=HANDLE, init=False)


# -- Iteration and reduction (tensor expressions only) --------------------------------------------


@final
@record(eq=False, admission=NODES)
class Range:
    """The integers from `min` on, `extent` of them. ``Range(0, n)`` is begin, end as in Python."""

    min: PrimExpr
    extent: PrimExpr

    def __init__(self, begin: Any, end: Any = None) -> None:
        begin, end = (0, begin) if end is None else (begin, end)
        with naming("Range"):
            low, high = promote(as_size(begin), as_size(end))
        _set(self, "min", low)
        _set(self, "extent", subtract(high, low))

    @staticmethod
    def from_min_extent(min: Any, extent: Any) -> Range:
        """``[min, min + extent)``, with neither simplified."""
        made = Range(0, 0)
        with naming("Range"):
            low, length = promote(as_size(min), as_size(extent))
        _set(made, "min", low)
        _set(made, "extent", length)
        return made

    def __repr__(self) -> str:
        return f"range(min={self.min}, ext={self.extent})"


@final
@record(eq=False, repr=False, admission=NODES)
class IterVar(ExprOperators):
    """An axis: a variable, the range it runs over and its kind. In arithmetic an axis stands for
    its variable; what ``==`` of two axes asks, see :class:`AxisComparison`.

    `iter_type` is one of the class's constants.
    """

    dom: Range | None
    var: Var
    iter_type: int = 0
    thread_tag: str = ""

    def __eq__(self, other: Any) -> Any:
        return AxisComparison(self, other) if isinstance(other, IterVar) else equal(self, other)

    def __ne__(self, other: Any) -> Any:
        if isinstance(other, IterVar):
            return AxisComparison(self, other, negated=True)
        return not_equal(self, other)

    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        return self.var.name

    def __repr__(self) -> str:
        return f"iter_var({self.var.name}, {self.dom})"


@final
class AxisComparison(ExprOperators):
    """``k == l`` or ``k != l`` of two axes. In Python (``if``, ``in``) it asks whether they are one
    axis; where an expression is expected, whether they have one value there.

    >>> from minitvm import te
    >>> A, k, l = te.placeholder((3, 3), name="A"), *(te.reduce_axis((0, 3), x) for x in "kl")
    >>> te.compute((1,), lambda i: te.sum(A[k, l], axis=[k, l], where=k == l), name="trace")
    Tensor(shape=[1], op.name=trace)
    >>> bool(k == l), k in [l, k]
    (False, True)
    """

    __slots__ = ("_a", "_b", "_negated")

    def __init__(self, a: IterVar, b: IterVar, negated: bool = False) -> None:
        self._a, self._b, self._negated = a, b, negated

    def __bool__(self) -> bool:
        return (self._a is self._b) is not self._negated

    def asobject(self) -> PrimExpr:
        """The comparison of their values."""
        return (not_equal if self._negated else equal)(self._a.var, self._b.var)

    def __repr__(self) -> str:
        return repr(self.asobject())


class IterType:
    """The kinds of an axis (classic numbering)."""

    DATA_PAR = 0
    THREAD_INDEX = 1
    COMM_REDUCE = 2
    ORDERED = 3
    OPAQUE = 4
    UNROLLED = 5
    VECTORIZED = 6
    PARALLELIZED = 7
    TENSORIZED = 8


@final
@record(eq=False, admission=NODES)
class CommReducer:
    """A commutative, associative combination of tuples: ``result`` in terms of ``lhs`` and
    ``rhs``, and the ``identity`` that changes nothing. Made by ``te.comm_reducer``."""

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[PrimExpr, ...]
    identity: tuple[PrimExpr, ...]


@final
@record(eq=False, repr=False, admission=NODES)
class Reduce(PrimExpr):
    """The `value_index`-th result of combining `source` over `axis` wherever `condition` holds,
    from `init` (or the identity) on. Only ever the whole body of a ``compute``."""

    combiner: CommReducer
    source: tuple[PrimExpr, ...]
    axis: tuple[IterVar, ...]
    condition: PrimExpr
    value_index: int
    init: tuple[PrimExpr, ...] = ()
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        check_condition("Reduce", self.condition)
        if not 0 <= self.value_index < len(self.source):
            raise CompileError(
                f"Reduce: expected value_index among {len(self.source)} sources, got "
                f"{_digits(self.value_index)}"
            )
        _set(self, "dtype", self.source[self.value_index].dtype)


# -- Making expressions: what counts as one -------------------------------------------------------


def as_expr(value: Any) -> PrimExpr:
    """The expression that `value` stands for: an expression itself, an axis, a Python or numpy
    number, or an object with ``asobject()`` (an indexed tensor).

    Raises
    ------
    CompileError
        When `value` stands for none.
    """
    if isinstance(value, PrimExpr):
        return value
    if isinstance(value, IterVar):
        return value.var
    if isinstance(value, NUMBERS):
        return constant(value)
    if isinstance(value, str):
        return StringImm(value)
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return as_expr(value[()])
        raise CompileError(_no_array(value))
    convert = None if isinstance(value, type) else getattr(value, "asobject", None)
    if convert is not None:
        made = convert()
        if isinstance(made, PrimExpr):
            return made
    raise CompileError(f"expected an expression or a number, got {described(value)}")


def _no_array(array: Any) -> str:
    return (
        f"expected an expression or a number, got an array of shape {array.shape}: pass it as a "
        "te.placeholder, or take one of its numbers"
    )


def described(value: Any) -> str:
    """The class of a value and its text, cut short."""
    kind, text = type(value).__name__, _shown(value)
    return text if text.startswith(kind) else f"{kind} {text}"


def _digits(value: int) -> str:
    """An integer as text; Python refuses to print thousands of digits."""
    return str(value) if abs(value) >> 256 == 0 else f"one of {value.bit_length()} bits"


def _shown(value: Any) -> str:
    try:
        text = _digits(value) if isinstance(value, int) else repr(value)
    except ValueError:  # of a list of such integers
        text = object.__repr__(value)
    return text if len(text) <= 60 else text[:57] + "..."


def as_index(value: Any) -> PrimExpr:
    """`value` as an integer expression: an index. A numpy integer counts as Python's, and so does a
    quotient of integers that came out even, such as ``1024 / 32``.

    Raises
    ------
    CompileError
        When it is none.
    """
    even = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    expr = as_expr(int(value) if even or isinstance(value, np.integer) else value)
    if not expr.dtype.is_integral or expr.dtype.is_bool:
        got = f"{_shown(expr)} of dtype {expr.dtype}"
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
        raise CompileError(f"expected a scalar, got {_shown(expr)} of dtype {expr.dtype}")
    return expr


def as_dtype(dtype: DTypeLike, default: DType | None = None) -> DType:
    """A dtype of the language; `default`, if there is one, for None.

    Raises
    ------
    CompileError
        When there is none of that name, or it isn't one of the language's.
    """
    if dtype is None and default is not None:
        return default
    try:
        made = None if dtype is None else DType.of(dtype)
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
    """`value` where one of `dtype` is wanted: a literal is taken in it, anything else as it is.

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


NUMBERS = (bool, int, float, np.integer, np.floating, np.bool_)


def is_same_size(comparison: EQ | NE) -> bool:
    """Whether both sides of a comparison of dimensions are one and the same expression, which is
    what ``if A.shape[0] == B.shape[0]`` asks while a program is written: n is n, whatever it is at
    the call, and not 1, though it may be at the call.

    Raises
    ------
    CompileError
        When a side is no expression of dimensions: it has other values than the program's text.
    """
    pairs = [(comparison.a, comparison.b)]
    if not _are_of_sizes(*pairs[0]):
        raise CompileError(f"{_shown(comparison)} has {_NO_TRUTH}")
    seen = set()
    while pairs:
        a, b = pairs.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        below = _operands_of(a), _operands_of(b)
        numbers = isinstance(a, IntImm) and isinstance(b, IntImm) and a.value == b.value
        if type(a) is not type(b) or a.dtype is not b.dtype or not (all(below) or numbers):
            return False
        pairs += zip(*below, strict=True)
    return True


def _operands_of(expr: PrimExpr) -> tuple[PrimExpr, ...]:
    """Below what expressions of dimensions are made of."""
    if isinstance(expr, BinaryOp):
        return expr.a, expr.b
    return (expr.value,) if isinstance(expr, Cast) else ()


def _are_of_sizes(*exprs: PrimExpr) -> bool:
    """Whether expressions are made of dimensions and integers alone."""
    stack, seen = list(exprs), set()
    while stack:
        top = stack.pop()
        if id(top) in seen:
            continue
        seen.add(id(top))
        below = _operands_of(top)
        size = isinstance(top, IntImm) or (isinstance(top, Var) and not top.axis) or below
        if not size or not _is_size(top.dtype):
            return False
        stack += below
    return True


def const_int(expr: Any) -> int | None:
    """The value of a constant integer, None for anything else."""
    if isinstance(expr, IntImm):
        return int(expr.value)
    return expr if isinstance(expr, int) else None


# -- Making expressions: operators, with classic promotion ----------------------------------------


def _operands(a: Any, b: Any) -> tuple[PrimExpr, PrimExpr]:
    """Both as expressions; a Python float next to a float64 keeps all its digits."""
    if isinstance(a, float) and not isinstance(b, (float, int)):
        b = as_expr(b)
        return constant(a, FLOAT64 if b.dtype.element == FLOAT64 else None), b
    if isinstance(b, float) and not isinstance(a, (float, int)):
        a = as_expr(a)
        return a, constant(b, FLOAT64 if a.dtype.element == FLOAT64 else None)
    return as_expr(a), as_expr(b)


def promote(a: Any, b: Any) -> tuple[PrimExpr, PrimExpr]:
    """Two operands as expressions of their common dtype, in which an operator computes.

    Raises
    ------
    CompileError
        When they have none: see :func:`promoted`.
    """
    return _match(*_operands(a, b))


def _match(a: PrimExpr, b: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """Both operands in their common type (classic ``BinaryOpMatchTypes``, src/tir/op/op.cc)."""
    if a.dtype is b.dtype:
        return a, b
    dtype = promoted(a.dtype, b.dtype)
    return cast(dtype, a), cast(dtype, b)


def promoted(a: DType, b: DType) -> DType:
    """The type in which an operator on `a` and `b` computes.

    A scalar is broadcast to a vector. Of two floats, or two integers of one signedness, the wider;
    with an integer and a float, the float; with signed and unsigned, the wider, and of one width
    the unsigned; ``bool`` yields to any.

    Raises
    ------
    CompileError
        For vectors of different lanes, handles, and float16 with bfloat16, which have no common
        type: cast one of them.

    >>> from minitvm.runtime.dtype import DType
    >>> promoted(DType.of("int64"), DType.of("float32"))
    DType('float32')
    """
    if a == b:
        return a
    lanes = max(a.lanes, b.lanes)
    if min(a.lanes, b.lanes) not in (1, lanes):
        raise CompileError(f"operands: expected equal lanes, got {a} and {b}")
    x, y = a.element, b.element
    if x == y:
        return x.with_lanes(lanes)
    if not (x.is_float or x.is_integral) or not (y.is_float or y.is_integral):
        raise CompileError(f"operands: expected numbers, got {a} and {b}")
    if x.is_float != y.is_float:
        return (x if x.is_float else y).with_lanes(lanes)
    if x.is_bool or y.is_bool:
        return (y if x.is_bool else x).with_lanes(lanes)
    if x.bits != y.bits:
        return (x if x.bits > y.bits else y).with_lanes(lanes)
    if x.is_float:
        raise CompileError(f"operands: {a} and {b} have no common type: cast one of them")
    return (x if x.is_uint else y).with_lanes(lanes)


@elementwise
def cast(dtype: DTypeLike, value: Any) -> PrimExpr:
    """`value` converted to `dtype`; a scalar becomes a vector where `dtype` is one.

    >>> cast("float32", 1)
    1.0
    """
    wanted = as_dtype(dtype)
    expr = as_expr(value)
    if expr.dtype is wanted:
        return expr
    if expr.dtype.lanes == 1 and wanted.lanes > 1:
        return Broadcast(cast(wanted.element, expr), wanted.lanes)
    _check_cast(expr.dtype, wanted)
    if isinstance(expr, Constant):
        return constant(scalars.cast(wanted, expr.value), wanted)
    return Cast(wanted, expr)


def _may_go(value: PrimExpr) -> bool:
    """Whether `value` need not be evaluated where its number doesn't matter."""
    from minitvm.tir.functor import walk_once  # the traversal stands above the nodes it visits

    calls = (each.op for each in walk_once(value) if isinstance(each, Call))
    return IMPURE_CALLS.isdisjoint(calls)


_ZERO_RIGHT = ("Add", "Sub")  # x op 0 is x
_ONE_RIGHT = ("Mul", "Div", "FloorDiv")  # x op 1 is x


def _arithmetic(node: Any, a: Any, b: Any) -> PrimExpr:
    """The node on promoted operands, folded where they are constants or an identity holds.

    Identities are those that hold for every float, NaN, infinities and signed zeros included. What
    calls out of the program stays, whatever it is multiplied by.
    """
    x, y = promote(a, b)
    name: str = node.__name__
    _check_numbers(node, x.dtype)
    if isinstance(x, IntImm) and isinstance(y, IntImm) and not _holds(x.dtype, name, x, y):
        return node(x, y)  # type: ignore[no-any-return]  # as a dimension, more than its dtype holds
    if isinstance(x, Constant) and isinstance(y, Constant):
        return constant(scalars.binary(name, x.dtype, x.value, y.value), x.dtype)
    if isinstance(y, IntImm):
        if (y.value == 0 and name in _ZERO_RIGHT) or (y.value == 1 and name in _ONE_RIGHT):
            return x
        if y.value == 0 and name not in ("Min", "Max") and _may_go(x):
            return constant(0, x.dtype)  # x * 0, and by definition x / 0 and x % 0
    if isinstance(x, IntImm):
        if (x.value == 0 and name == "Add") or (x.value == 1 and name == "Mul"):
            return y
        if x.value == 0 and name not in ("Min", "Max", "Sub") and _may_go(y):
            return constant(0, x.dtype)
    made: PrimExpr = node(x, y)
    return made


def _holds(dtype: DType, name: str, x: IntImm, y: IntImm) -> bool:
    """Whether a dtype holds what an operator makes of two constants. One that wraps, as those of
    data do, need not."""
    if not dtype.is_int or dtype.bits < 32:
        return True
    return dtype.min() <= scalars.INT_BINARY[name](x.value, y.value) <= dtype.max()


@elementwise
def add(a: Any, b: Any) -> PrimExpr:
    """``a + b``."""
    return _arithmetic(Add, a, b)


@elementwise
def subtract(a: Any, b: Any) -> PrimExpr:
    """``a - b``."""
    return _arithmetic(Sub, a, b)


@elementwise
def multiply(a: Any, b: Any) -> PrimExpr:
    """``a * b``."""
    return _arithmetic(Mul, a, b)


@elementwise
def divide(a: Any, b: Any) -> PrimExpr:
    """``a / b`` of floats. On two integers it is ambiguous and refused, as in classic TVM."""
    x, y = _operands(a, b)
    if x.dtype.is_integral and y.dtype.is_integral:
        raise CompileError(
            f"`/` on integers ({x.dtype}, {y.dtype}) is ambiguous: use floordiv or truncdiv, or "
            "cast an operand to a float"
        )
    return _arithmetic(Div, x, y)


@elementwise
def truncdiv(a: Any, b: Any) -> PrimExpr:
    """The quotient of integers rounded towards zero, as in C."""
    return _integer_arithmetic(Div, a, b)


@elementwise
def truncmod(a: Any, b: Any) -> PrimExpr:
    """The remainder of :func:`truncdiv`, with the sign of `a`, as in C."""
    return _integer_arithmetic(Mod, a, b)


def _integer_arithmetic(node: Any, a: Any, b: Any) -> PrimExpr:
    _refuse_zero(b)
    x, y = _operands(a, b)
    if x.dtype.is_float or y.dtype.is_float:
        raise CompileError(f"expected integers, got {x.dtype} and {y.dtype}")
    return _arithmetic(node, x, y)


def _refuse_zero(divisor: Any) -> None:
    """Refuses a division by zero where it is written. One that is computed has a value: 0."""
    if type(divisor) is int and divisor == 0:
        raise CompileError("expected a divisor other than 0")


@elementwise
def floordiv(a: Any, b: Any) -> PrimExpr:
    """The quotient rounded down, as Python's ``//``; on floats ``floor(a / b)``."""
    _refuse_zero(b)
    x, y = _operands(a, b)
    if x.dtype.is_float or y.dtype.is_float:
        quotient = divide(x, y)
        return intrinsic("floor", quotient.dtype, quotient)
    return _arithmetic(FloorDiv, x, y)


@elementwise
def floormod(a: Any, b: Any) -> PrimExpr:
    """The remainder of :func:`floordiv`, with the sign of `b`, as Python's ``%``."""
    _refuse_zero(b)
    x, y = promote(a, b)
    if not x.dtype.is_float:
        return _arithmetic(FloorMod, x, y)
    remainder = Var("remainder", x.dtype)
    zero = constant(0.0, x.dtype)
    wrong_sign = And(NE(remainder, zero), NE(LT(remainder, zero), LT(y, zero)))
    shifted = Select(wrong_sign, Add(remainder, y), remainder)
    return Let(remainder, intrinsic("fmod", x.dtype, x, y), shifted)


@elementwise
def minimum(a: Any, b: Any) -> PrimExpr:
    """The lesser of two values; NaN when either is."""
    return _arithmetic(Min, a, b)


@elementwise
def maximum(a: Any, b: Any) -> PrimExpr:
    """The greater of two values; NaN when either is."""
    return _arithmetic(Max, a, b)


@elementwise
def negate(a: Any) -> PrimExpr:
    """``-a``: on floats the sign is flipped, that of zero too; unsigned integers wrap."""
    x = as_expr(a)
    if x.dtype.is_integral and not x.dtype.is_int and not x.dtype.is_bool:
        return subtract(constant(0, x.dtype), x)
    return multiply(x, constant(-1, x.dtype))


@elementwise
def absolute(a: Any) -> PrimExpr:
    """``abs(a)``; the least integer stays itself."""
    x = as_expr(a)
    return x if x.dtype.is_uint or x.dtype.is_bool else intrinsic("fabs", x.dtype, x)


@elementwise
def power(a: Any, b: Any) -> PrimExpr:
    """``a ** b``; integers wrap, and a negative exponent gives the quotient towards zero."""
    x, y = promote(a, b)
    return intrinsic("power", x.dtype, x, y)


def compare(node: Callable[[PrimExpr, PrimExpr], PrimExpr], a: Any, b: Any) -> PrimExpr:
    """A comparison of promoted operands, folded where both are constants."""
    x, y = promote(a, b)
    if isinstance(x, Constant) and isinstance(y, Constant):
        return constant(scalars.COMPARE[node.__name__](x.value, y.value), BOOL)
    return node(x, y)


@elementwise
def less(a: Any, b: Any) -> PrimExpr:
    """``a < b``."""
    return compare(LT, a, b)


@elementwise
def less_equal(a: Any, b: Any) -> PrimExpr:
    """``a <= b``."""
    return compare(LE, a, b)


@elementwise
def greater(a: Any, b: Any) -> PrimExpr:
    """``a > b``."""
    return compare(GT, a, b)


@elementwise
def greater_equal(a: Any, b: Any) -> PrimExpr:
    """``a >= b``."""
    return compare(GE, a, b)


@elementwise
def equal(a: Any, b: Any) -> PrimExpr:
    """``a == b``."""
    return compare(EQ, a, b)


@elementwise
def not_equal(a: Any, b: Any) -> PrimExpr:
    """``a != b``."""
    return compare(NE, a, b)


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


@elementwise
def logical_and(a: Any, b: Any) -> PrimExpr:
    """Both of two conditions."""
    x, y = _match(as_condition(a), as_condition(b))
    if isinstance(x, IntImm) and (x.value or _may_go(y)):
        return y if x.value else x
    if isinstance(y, IntImm) and (y.value or _may_go(x)):
        return x if y.value else y
    return And(x, y)


@elementwise
def logical_or(a: Any, b: Any) -> PrimExpr:
    """Either of two conditions."""
    x, y = _match(as_condition(a), as_condition(b))
    if isinstance(x, IntImm) and (not x.value or _may_go(y)):
        return x if x.value else y
    if isinstance(y, IntImm) and (not y.value or _may_go(x)):
        return y if y.value else x
    return Or(x, y)


@elementwise
def logical_not(a: Any) -> PrimExpr:
    """The opposite of a condition."""
    x = as_condition(a)
    return constant(not x.value, BOOL) if isinstance(x, IntImm) else Not(x)


def _bitwise(name: str, a: Any, b: Any) -> PrimExpr:
    x, y = promote(a, b)
    if not x.dtype.is_integral:
        raise CompileError(f"expected integers, got {x.dtype}")
    return intrinsic(name, x.dtype, x, y)


@elementwise
def bitwise_and(a: Any, b: Any) -> PrimExpr:
    """``a & b`` on integers."""
    return _bitwise("bitwise_and", a, b)


@elementwise
def bitwise_or(a: Any, b: Any) -> PrimExpr:
    """``a | b`` on integers."""
    return _bitwise("bitwise_or", a, b)


@elementwise
def bitwise_xor(a: Any, b: Any) -> PrimExpr:
    """``a ^ b`` on integers."""
    return _bitwise("bitwise_xor", a, b)


@elementwise
def bitwise_not(a: Any) -> PrimExpr:
    """``~a`` on integers; the opposite of a ``bool``."""
    x = as_expr(a)
    if x.dtype.is_bool:
        return logical_not(x)
    if not x.dtype.is_integral:
        raise CompileError(f"expected an integer, got {x.dtype}")
    return intrinsic("bitwise_not", x.dtype, x)


def _shift(name: str, a: Any, b: Any) -> PrimExpr:
    x, y = promote(a, b)
    if not x.dtype.is_integral or x.dtype.is_bool:
        raise CompileError(f"expected integers, got {x.dtype}")
    if isinstance(y, IntImm) and not 0 <= y.value < x.dtype.bits:
        raise CompileError(
            f"expected a shift from 0 to {x.dtype.bits - 1} for {x.dtype}, got {y.value}"
        )
    return intrinsic(name, x.dtype, x, y)


@elementwise
def shift_left(a: Any, b: Any) -> PrimExpr:
    """``a << b``; a shift out of range gives 0."""
    return _shift("shift_left", a, b)


@elementwise
def shift_right(a: Any, b: Any) -> PrimExpr:
    """``a >> b``, keeping the sign of a signed `a`."""
    return _shift("shift_right", a, b)


def intrinsic(name: str, dtype: DType, *args: PrimExpr) -> PrimExpr:
    """A call of an intrinsic of :data:`minitvm.tir.intrinsics.INTRINSICS`, folded on constants."""
    if name in INTRINSICS and all(isinstance(a, Constant) for a in args):
        values = [a.value for a in args if isinstance(a, Constant)]
        return constant(INTRINSICS[name].meaning(args[0].dtype, *values), dtype)
    return Call(dtype, name, args)


def unknown_node(node: object, where: str) -> InternalError:
    """What to raise at the end of a ``match`` over nodes: `where` does not know this class."""
    return InternalError(f"{where}: no case for {type(node).__name__}")


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple of one, or of the members of a list or tuple."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


# -- Functions of numpy, by name ------------------------------------------------------------------

# Those that numpy's numbers apply where they stand on the left of an operator.
_OPERATORS_OF_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "divide": divide,
    "floor_divide": floordiv,
    "remainder": floormod,
    "power": power,
    "left_shift": shift_left,
    "right_shift": shift_right,
    "bitwise_and": bitwise_and,
    "bitwise_or": bitwise_or,
    "bitwise_xor": bitwise_xor,
    "less": less,
    "less_equal": less_equal,
    "greater": greater,
    "greater_equal": greater_equal,
    "equal": equal,
    "not_equal": not_equal,
}
# What te calls them.
_NAMES_OF_NUMPY = {
    "fmax": "max",
    "fmin": "min",
    "logical_and": "all",
    "logical_or": "any",
    "maximum": "max",
    "minimum": "min",
    **{
        name: each.language_name
        for each in INTRINSICS.values()
        for name in (each.name, *each.numpy)
    },
}
