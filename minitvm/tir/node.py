"""The methods of every node: the bases of expressions and statements.

A node's class stands below the functions that make nodes: ``a + b`` makes an ``Add``, folds
constants and knows all classes. So the methods here call a :class:`Language`: a record of the
functions in the modules above, which :mod:`minitvm.tir` hands over once these are imported::

    node            the bases, whose methods call the Language
    fields, tree    children and constructors, read from the fields of a class
    nodes           every class
    conversion, promotion, arithmetic, admission, buffer, printer, ...      the functions
    tir             hands them over
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from minitvm.runtime.dtype import DType, DTypeLike
from minitvm.runtime.errors import CompileError, InternalError
from minitvm.runtime.record import record
from minitvm.tir.described import described, shown


@record(eq=False)
class Language:
    """The functions that the methods of nodes call.

    Attributes
    ----------
    functions
        The functions of :data:`minitvm.tir.arithmetic.FUNCTIONS`, by name: Python's operators.
    of_numpy, of_torch
        A function of numpy, or of torch, on an expression or a tensor.
    text
        The text of an expression, a statement or a function.
    admit
        The fields of a node, converted from its constructor's arguments.
    is_same_size
        Whether both sides of a comparison are one expression.
    load, store, access_ptr
        The methods of ``Buffer``.
    bounds
        Two ends of a range in one dtype.
    with_attributes
        A function with classic attributes.
    """

    functions: Mapping[str, Callable[..., PrimExpr]]
    of_numpy: Callable[..., Any]
    of_torch: Callable[..., NoReturn]
    text: Callable[[Any], str]
    admit: Callable[[type, dict[str, Any]], dict[str, Any]]
    is_same_size: Callable[[Any], bool]
    load: Callable[..., PrimExpr]
    store: Callable[..., Stmt]
    access_ptr: Callable[..., PrimExpr]
    bounds: Callable[[Any, Any], tuple[PrimExpr, PrimExpr]]
    with_attributes: Callable[[Any, Any, Any], Any]


_language: Language


def hand_over(made: Language) -> None:
    """Gives the methods of nodes their Language."""
    global _language
    _language = made


def language() -> Language:
    """The Language that was handed over."""
    return _language


# -- Objects without a value yet -------------------------------------------------------------------

# The advice where Python code needs a value that is only known when a kernel runs.
NO_TRUTH = (
    "no truth value while a program is written: for `if` write te.if_then_else(c, a, b); for "
    "`and`, `or`, `not`: te.all, te.any, tir.Not; for `a < b < c`: te.all(a < b, b < c); for "
    "max(a, b), min(a, b): te.max, te.min; to compare identities: `is`"
)
_NO_NUMBER = {
    "__float__": 'for float(x) write x.astype("float32"), for math.sqrt(x): te.sqrt(x)',
    "__int__": 'for int(x) write x.astype("int32")',
    "__index__": "for `for i in range(x)` write a loop of tir.ir_builder or te.hybrid, or an axis "
    "of te.compute; for values[x] of a Python list pass the list as a te.placeholder",
    "__complex__": "there are no complex numbers",
    "__round__": "for round(x) write te.nearbyint(x), halves to even, or te.round(x), halves away "
    "from zero",
    "__trunc__": "for math.trunc(x) write te.trunc(x)",
    "__floor__": "for math.floor(x) write te.floor(x)",
    "__ceil__": "for math.ceil(x) write te.ceil(x)",
}


def _no_number(name: str) -> Callable[..., Any]:
    """A method of Python's number protocol that raises."""

    def refuse(self: object, *args: object) -> NoReturn:
        raise TypeError(
            f"{shown(self)} has no value while a program is written: {_NO_NUMBER[name]}"
        )

    return refuse


class _Unknown:
    """Base of objects without a value while a program is written: conversions to Python's numbers
    fail, and so do functions of torch; numpy's become the language's or fail."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _language.of_numpy(self, ufunc, method, inputs, options)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), options: Any = None
    ) -> NoReturn:
        given = [*args, *(options or {}).values()]
        parts = [part for x in given for part in (x if isinstance(x, list | tuple) else [x])]
        unknown = next((part for part in parts if isinstance(part, cls)), cls)
        _language.of_torch(unknown, function, parts)

    def __format__(self, how: str) -> str:
        if how:
            raise TypeError(
                f"{shown(self)} has no value while a program is written: for the format {how!r} "
                "print the array that the compiled function returns"
            )
        return str(self)

    __float__, __int__ = _no_number("__float__"), _no_number("__int__")
    __index__, __complex__ = _no_number("__index__"), _no_number("__complex__")
    __round__, __trunc__ = _no_number("__round__"), _no_number("__trunc__")
    __floor__, __ceil__ = _no_number("__floor__"), _no_number("__ceil__")


class WholeTensor(_Unknown):
    """Base of whole tensors, over whose elements the functions of the language map."""

    __slots__ = ()
    shape: tuple[PrimExpr, ...]
    dtype: DType

    @property
    def name(self) -> str:
        """The name in printed programs."""
        raise NotImplementedError

    def map_elements(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`function` applied element by element to `args`, one of which is this tensor."""
        raise NotImplementedError

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError(
            f"{described(self)} has no elements while a program is written: build a function of "
            "it, as in tvm.build(s, [A, B]), and call that with arrays"
        )

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            f"{described(self)} has no elements that could be set while a program is written: "
            "write another tensor, te.compute(shape, lambda i: ...), and choose between values by "
            "te.if_then_else"
        )


# -- Operators ------------------------------------------------------------------------------------


def _unary(name: str) -> Callable[[Any], PrimExpr]:
    return lambda self: _language.functions[name](self)


def _binary(name: str) -> Callable[[Any, Any], PrimExpr]:
    return lambda self, other: _language.functions[name](self, other)


def _reflected(name: str) -> Callable[[Any, Any], PrimExpr]:
    return lambda self, other: _language.functions[name](other, self)


class ExprOperators(_Unknown):
    """Python's operators, for objects that stand for an expression."""

    __slots__ = ()
    __hash__ = object.__hash__

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("floormod"), _reflected("floormod")
    __pow__, __rpow__ = _binary("power"), _reflected("power")
    __lshift__, __rlshift__ = _binary("shift_left"), _reflected("shift_left")
    __rshift__, __rrshift__ = _binary("shift_right"), _reflected("shift_right")
    __and__ = __rand__ = _binary("bitwise_and")
    __or__ = __ror__ = _binary("bitwise_or")
    __xor__ = __rxor__ = _binary("bitwise_xor")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __neg__, __pos__ = _unary("negate"), _unary("as_expr")
    __abs__, __invert__ = _unary("absolute"), _unary("bitwise_not")

    def __eq__(self, other: Any) -> PrimExpr:  # type: ignore[override]  # builds an expression
        return _language.functions["equal"](self, other)

    def __ne__(self, other: Any) -> PrimExpr:  # type: ignore[override]  # builds an expression
        return _language.functions["not_equal"](self, other)

    def equal(self, other: Any) -> PrimExpr:
        """``self == other`` as an expression (classic name)."""
        return _language.functions["equal"](self, other)

    def astype(self, dtype: DTypeLike) -> PrimExpr:
        """This value converted to `dtype`."""
        return _language.functions["cast"](dtype, self)

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other

    def __iter__(self) -> Any:
        raise TypeError(
            f"{shown(self)} has no members: loop with an axis of te.compute, tir.ir_builder "
            "or te.hybrid"
        )

    def __bool__(self) -> bool:
        raise CompileError(f"{shown(self)} has {NO_TRUTH}")


# -- The bases ------------------------------------------------------------------------------------


class PrimExpr(ExprOperators):
    """Base of all expression nodes; ``dtype`` is the type of the value."""

    __slots__ = ("_kinds",)  # see `minitvm.tir.tree.find`
    dtype: DType

    def __str__(self) -> str:
        return _language.text(self)

    def __repr__(self) -> str:
        return _language.text(self)


class Stmt:
    """Base of all statement nodes."""

    __slots__ = ("_kinds",)  # see `minitvm.tir.tree.find`

    def __str__(self) -> str:
        return _language.text(self)

    def __repr__(self) -> str:
        return _language.text(self)

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other


Node = PrimExpr | Stmt


def unknown_node(node: object, where: str) -> InternalError:
    """The error at the end of a ``match`` over nodes: `where` does not know this class."""
    return InternalError(f"{where}: no case for {type(node).__name__}")
