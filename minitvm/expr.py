"""Every expression node, then how expressions are made: promotion of dtypes, folding of constants.

One set of nodes serves tensor expressions (where a read is a :class:`ProducerLoad` and a sum is a
:class:`Reduce`) and the loop IR (where a read is a :class:`BufferLoad` and reductions have become
loops). Nodes are immutable and compared by identity; ``==`` on expressions builds an :class:`EQ`.
Statements are in :mod:`minitvm.stmt`, traversal in :mod:`minitvm.functor`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import field
from inspect import signature
from typing import Any, ClassVar, Protocol, TypeVar, final
from typing import cast as typed

import numpy as np

from minitvm import scalars
from minitvm.runtime.dtype import BOOL, FLOAT32, FLOAT64, HANDLE, INT32, INT64, DType, DTypeLike
from minitvm.runtime.errors import CompileError, InternalError
from minitvm.runtime.record import record

_NO_TRUTH = (
    "an expression has no truth value while a program is written (found it in `if`, `and`, `or`, "
    "`not`, `in` or a chained comparison): use te.if_then_else, te.all, te.any or tir.Not; to "
    "compare identities use `is`"
)


class ExprOperators:
    """Python's operators, for whatever :func:`as_expr` turns into an expression."""

    __slots__ = ()
    __hash__ = object.__hash__
    __array_ufunc__: ClassVar[None] = None  # `np.float64(2) * x` is left to the operators below

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
        raise CompileError(_NO_TRUTH)


class WholeTensor:
    """Base of a tensor taken whole, over whose elements the functions of this module map."""

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # numpy's scalars leave operators to the tensor, too

    def map_elements(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`function` of `args`, among which is this tensor, element by element."""
        raise NotImplementedError


_Function = TypeVar("_Function", bound=Callable[..., Any])


def elementwise(function: _Function) -> _Function:
    """Lets a function of expressions take whole tensors as well, and broadcast as numpy does."""
    parameters = signature(function)

    @functools.wraps(function)
    def apply(*args: Any, **named: Any) -> Any:
        if named:
            args = parameters.bind(*args, **named).args
        for arg in args:
            if isinstance(arg, WholeTensor):
                return arg.map_elements(function, args)
        return function(*args)

    return typed(_Function, apply)


class PrimExpr(ExprOperators):
    """Base of all expression nodes; ``dtype`` is the type of the value."""

    __slots__ = ()
    dtype: DType

    def __str__(self) -> str:
        from minitvm.printer import expr_text  # the printer stands above the nodes it prints

        return expr_text(self)

    def __repr__(self) -> str:
        return str(self)


def _set(node: object, name: str, value: object) -> None:
    """Fill in a derived field of a frozen node while it is made."""
    object.__setattr__(node, name, value)


# -- Leaves ---------------------------------------------------------------------------------------


@final
@record(eq=False, repr=False)
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
        _set(self, "dtype", DType.of(self.dtype))


@final
@record(eq=False, repr=False)
class IntImm(PrimExpr):
    """An integer (or ``bool``) constant. ``IntImm("int32", 56)``."""

    dtype: DType
    value: int

    def __post_init__(self) -> None:
        dtype = DType.of(self.dtype)
        value = bool(self.value) if dtype.is_bool else int(self.value)
        if dtype is not self.dtype:
            _set(self, "dtype", dtype)
        if value is not self.value:
            _set(self, "value", value)
        if not dtype.min() <= self.value <= dtype.max():
            raise CompileError(
                f"constant of dtype {dtype}: expected a value from {dtype.min()} to {dtype.max()}, "
                f"got {self.value}"
            )

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __bool__(self) -> bool:
        return self.value != 0


@final
@record(eq=False, repr=False)
class FloatImm(PrimExpr):
    """A floating-point constant, rounded to its dtype. ``FloatImm("float32", 0.5)``."""

    dtype: DType
    value: float

    def __post_init__(self) -> None:
        _set(self, "dtype", DType.of(self.dtype))
        _set(self, "value", scalars.round_float(self.dtype, float(self.value)))

    def __float__(self) -> float:
        return self.value


@final
@record(eq=False, repr=False)
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
    if node.a.dtype is not node.b.dtype and node.a.dtype != node.b.dtype:
        raise CompileError(
            f"{type(node).__name__}: expected operands of one dtype, got {node.a.dtype} and "
            f"{node.b.dtype}: the Python operators convert, these constructors don't"
        )


def _init_arithmetic(node: Arithmetic) -> None:
    _check_operands(node)
    _set(node, "dtype", node.a.dtype)


def _init_comparison(node: Comparison) -> None:
    _check_operands(node)
    _set(node, "dtype", BOOL.with_lanes(node.a.dtype.lanes))


class Arithmetic(BinaryOp):
    """Base of the operators whose result has the operands' dtype."""

    __slots__ = ()
    __post_init__ = _init_arithmetic


class Comparison(BinaryOp):
    """Base of the operators whose result is ``bool``."""

    __slots__ = ()
    __post_init__ = _init_comparison


@final
@record(eq=False, repr=False)
class Add(Arithmetic):
    """``a + b``; integers wrap."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Sub(Arithmetic):
    """``a - b``; integers wrap."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Mul(Arithmetic):
    """``a * b``; integers wrap."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Div(Arithmetic):
    """``a / b``; integers round towards zero (``truncdiv``)."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Mod(Arithmetic):
    """The remainder of :class:`Div` on integers, with the sign of `a` (``truncmod``)."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class FloorDiv(Arithmetic):
    """``a // b`` on integers, rounded down."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class FloorMod(Arithmetic):
    """``a % b`` on integers, with the sign of `b`."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Min(Arithmetic):
    """The lesser; NaN when either is NaN."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Max(Arithmetic):
    """The greater; NaN when either is NaN."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


# -- Comparison and logic: the result is bool -----------------------------------------------------


@final
@record(eq=False, repr=False)
class EQ(Comparison):
    """``a == b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class NE(Comparison):
    """``a != b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class LT(Comparison):
    """``a < b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class LE(Comparison):
    """``a <= b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class GT(Comparison):
    """``a > b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class GE(Comparison):
    """``a >= b``."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class And(Comparison):
    """Both of two ``bool`` values; both are evaluated."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Or(Comparison):
    """Either of two ``bool`` values; both are evaluated."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)


@final
@record(eq=False, repr=False)
class Not(PrimExpr):
    """The opposite of a ``bool``."""

    a: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", self.a.dtype)


# -- Choice, conversion, binding ------------------------------------------------------------------


@final
@record(eq=False, repr=False)
class Select(PrimExpr):
    """One of two values, both of which are evaluated. The lazy choice is the call
    ``if_then_else``."""

    condition: PrimExpr
    true_value: PrimExpr
    false_value: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        if not self.condition.dtype.is_bool:
            raise CompileError(f"Select: expected a bool condition, got {self.condition.dtype}")
        if self.true_value.dtype != self.false_value.dtype:
            raise CompileError(
                f"Select: expected two values of one dtype, got {self.true_value.dtype} and "
                f"{self.false_value.dtype}"
            )
        _set(self, "dtype", self.true_value.dtype)


@final
@record(eq=False, repr=False)
class Cast(PrimExpr):
    """`value` converted to `dtype`, as :func:`minitvm.scalars.cast` defines it."""

    dtype: DType
    value: PrimExpr

    def __post_init__(self) -> None:
        _set(self, "dtype", DType.of(self.dtype))


@final
@record(eq=False, repr=False)
class Let(PrimExpr):
    """``let var = value in body``: `value` is evaluated once."""

    var: Var
    value: PrimExpr
    body: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", self.body.dtype)


# -- Vectors --------------------------------------------------------------------------------------


@final
@record(eq=False, repr=False)
class Ramp(PrimExpr):
    """The vector ``base, base + stride, ...`` of `lanes` integers. Made by vectorisation."""

    base: PrimExpr
    stride: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", self.base.dtype.with_lanes(self.lanes))


@final
@record(eq=False, repr=False)
class Broadcast(PrimExpr):
    """The vector of `lanes` copies of a scalar. Made by vectorisation."""

    value: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", self.value.dtype.with_lanes(self.lanes))


# -- Memory ---------------------------------------------------------------------------------------


@final
@record(eq=False)
class Buffer:
    """A region of memory seen as a tensor: an identity, as a variable is.

    `strides` counts elements; ``()`` on a buffer of rank 1 or more means compact, row-major.
    Element ``[i, ...]`` is at ``data + (elem_offset + sum(i * stride)) * dtype.itemsize``.
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

    READ: ClassVar[int] = 1
    WRITE: ClassVar[int] = 2

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def vload(self, begin: Any, dtype: DTypeLike | None = None) -> PrimExpr:
        """The value at index `begin`, or with a vector `dtype` the values from there on along the
        last axis."""
        return BufferLoad(self, vector_indices(begin, self._lanes_of(dtype)))

    def vstore(self, begin: Any, value: Any) -> Stmt:
        """Stores `value` at index `begin`, a vector from there on along the last axis. A Python
        number is taken in the buffer's dtype."""
        expr = const(value, self.dtype) if isinstance(value, (bool, int, float)) else as_expr(value)
        return BufferStore(self, expr, vector_indices(begin, self._lanes_of(expr.dtype)))

    def _lanes_of(self, dtype: DTypeLike | None) -> int:
        """How many elements a value of `dtype` spans."""
        wanted = self.dtype if dtype is None else DType.of(dtype)
        if wanted.element != self.dtype.element or wanted.lanes % self.dtype.lanes:
            raise CompileError(f"{self.name}: expected a value of {self.dtype}, got {wanted}")
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
        if isinstance(access_mask, str):
            if not access_mask or not set(access_mask) <= {"r", "w"}:
                raise CompileError(
                    f"{self.name}: expected access_mask 'r', 'w' or 'rw', got {access_mask!r}"
                )
            access_mask = ("r" in access_mask) * self.READ + ("w" in access_mask) * self.WRITE
        count = const(-1) if extent is None else as_index(extent)
        args = (BufferRef(self), as_index(offset), count, const(access_mask))
        return Call(HANDLE, "tvm_access_ptr", args)

    def __getitem__(self, indices: Any) -> PrimExpr:
        return BufferLoad(self, vector_indices(indices, 1))

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"Buffer({self.name}: {self.dtype}[{shape}])"


def vector_indices(begin: Any, lanes: int) -> tuple[PrimExpr, ...]:
    """Index expressions, of which the last becomes a ramp of `lanes` neighbours."""
    begin = begin if isinstance(begin, (tuple, list)) else (begin,)
    indices = tuple(as_index(i) for i in begin)
    if lanes == 1 or not indices:
        return indices
    last = indices[-1]
    return (*indices[:-1], Ramp(last, const(1, last.dtype), lanes))


class DataProducer(Protocol):
    """What a :class:`ProducerLoad` reads: a tensor of the expression language."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[PrimExpr, ...]: ...
    @property
    def dtype(self) -> DType: ...


@final
@record(eq=False, repr=False)
class ProducerLoad(PrimExpr):
    """An element of a tensor, in tensor expressions only: ``A[i, k]``."""

    producer: DataProducer
    indices: tuple[PrimExpr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", self.producer.dtype)


@final
@record(eq=False, repr=False)
class BufferLoad(PrimExpr):
    """An element (or with a vector index several) of a buffer, in the loop IR.

    Lanes in which `predicate` is false are not read, and are 0. Vectorisation makes predicates.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        if len(self.indices) != self.buffer.ndim:
            raise CompileError(
                f"{self.buffer.name}: expected {self.buffer.ndim} indices, got {len(self.indices)}"
            )
        lanes = max((i.dtype.lanes for i in self.indices), default=1)
        _set(self, "dtype", self.buffer.dtype.with_lanes(lanes * self.buffer.dtype.lanes))


class Stmt:
    """Base of all statement nodes, which :mod:`minitvm.stmt` lists."""

    __slots__ = ()

    def __str__(self) -> str:
        from minitvm.printer import stmt_text  # the printer stands above the nodes it prints

        return stmt_text(self)

    def __repr__(self) -> str:
        return str(self)

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other


@final
@record(eq=False, repr=False)
class BufferStore(Stmt):
    """``buffer[indices] = value``. The one statement on this page, since :meth:`Buffer.vstore`
    makes it. Lanes are stored in order, and not where `predicate` is false."""

    buffer: Buffer
    value: PrimExpr
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None


# -- Calls ----------------------------------------------------------------------------------------


@final
@record(eq=False, repr=False)
class Call(PrimExpr):
    """An intrinsic of :mod:`minitvm.op` (``"exp"``), or a call out of the program.

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
    :data:`minitvm.scalars.VECTOR_FOLDS` (``vector_reduce_add(start, vector)``).
    """

    dtype: DType
    op: str
    args: tuple[PrimExpr, ...]

    def __post_init__(self) -> None:
        _set(self, "dtype", DType.of(self.dtype))
        _set(self, "args", tuple(self.args))


@final
@record(eq=False, repr=False)
class BufferRef(PrimExpr):
    """A whole buffer as an argument of a call: ``call_packed("f", ins[0], outs[0])``."""

    buffer: Buffer
    dtype: DType = field(default=HANDLE, init=False)


# -- Iteration and reduction (tensor expressions only) --------------------------------------------


@final
@record(eq=False)
class Range:
    """The integers from `min` on, `extent` of them. ``Range(0, n)`` is begin, end as in Python."""

    min: PrimExpr
    extent: PrimExpr

    def __init__(self, begin: Any, end: Any = None) -> None:
        begin, end = (0, begin) if end is None else (begin, end)
        low, high = promote(begin, end)
        _set(self, "min", low)
        _set(self, "extent", subtract(high, low))

    @staticmethod
    def from_min_extent(min: Any, extent: Any) -> Range:
        """``[min, min + extent)``, with neither simplified."""
        made = Range(0, 0)
        low, length = promote(min, extent)
        _set(made, "min", low)
        _set(made, "extent", length)
        return made

    def __repr__(self) -> str:
        return f"range(min={self.min}, ext={self.extent})"


@final
@record(eq=False, repr=False)
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
@record(eq=False)
class CommReducer:
    """A commutative, associative combination of tuples: ``result`` in terms of ``lhs`` and
    ``rhs``, and the ``identity`` that changes nothing. Made by ``te.comm_reducer``."""

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[PrimExpr, ...]
    identity: tuple[PrimExpr, ...]


@final
@record(eq=False, repr=False)
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
        _set(self, "dtype", self.source[self.value_index].dtype)


# -- Making expressions: what counts as one -------------------------------------------------------


def as_expr(value: Any) -> PrimExpr:
    """The expression that `value` stands for: an expression itself, an axis, a Python or numpy
    number, or an object with ``asobject()`` (an indexed tensor).

    Raises
    ------
    TypeError
        When `value` stands for none.
    """
    if isinstance(value, PrimExpr):
        return value
    if isinstance(value, IterVar):
        return value.var
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return const(value)
    if isinstance(value, str):
        return StringImm(value)
    convert = getattr(value, "asobject", None)
    if convert is not None:
        made = convert()
        if isinstance(made, PrimExpr):
            return made
    raise TypeError(f"expected an expression or a number, got {_describe(value)}")


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def as_index(value: Any) -> PrimExpr:
    """`value` as an integer expression: an index, an extent, a stride.

    Raises
    ------
    TypeError
        When it is none.
    """
    expr = as_expr(value)
    if not expr.dtype.is_integral or expr.dtype.is_bool:
        raise TypeError(f"expected an integer expression, got {expr} of dtype {expr.dtype}")
    return expr


def const(value: Any, dtype: DTypeLike | None = None) -> PrimExpr:
    """A constant.

    Without a `dtype`: ``bool`` for a bool; ``int32`` for an int that fits, else ``int64``;
    ``float32`` for a float; its own for a numpy scalar.

    Raises
    ------
    CompileError
        When an integer is out of the range of `dtype`.

    >>> const(3), const(0.5, "float64")
    (3, float64(0.5))
    """
    if type(value) is int and isinstance(dtype, DType) and dtype.is_integral and dtype.lanes == 1:
        return IntImm(dtype, value)
    if isinstance(value, (IntImm, FloatImm)):
        dtype = value.dtype if dtype is None else dtype
        value = value.value
    wanted = _constant_dtype(value) if dtype is None else DType.of(dtype)
    if isinstance(value, (np.number, np.bool_)):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"expected a number, got {_describe(value)}")
    if wanted.lanes > 1:
        return Broadcast(const(value, wanted.element), wanted.lanes)
    if wanted.is_float:
        return FloatImm(wanted, value)
    if wanted.is_integral:
        if isinstance(value, float) and not value.is_integer():
            raise CompileError(f"constant of dtype {wanted}: expected an integer, got {value}")
        return IntImm(wanted, int(value))
    raise CompileError(f"constant: expected a numeric dtype, got {wanted}")


def _constant_dtype(value: Any) -> DType:
    if isinstance(value, (np.number, np.bool_)):
        return DType.of(value.dtype)
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


# -- Making expressions: operators, with classic promotion ----------------------------------------


def _operands(a: Any, b: Any) -> tuple[PrimExpr, PrimExpr]:
    """Both as expressions; a Python float next to a float64 keeps all its digits."""
    if isinstance(a, float) and not isinstance(b, (float, int)):
        b = as_expr(b)
        return const(a, FLOAT64 if b.dtype.element == FLOAT64 else None), b
    if isinstance(b, float) and not isinstance(a, (float, int)):
        a = as_expr(a)
        return a, const(b, FLOAT64 if a.dtype.element == FLOAT64 else None)
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
    wanted = DType.of(dtype)
    expr = as_expr(value)
    if expr.dtype == wanted:
        return expr
    if expr.dtype.lanes != wanted.lanes:
        if expr.dtype.lanes != 1:
            raise CompileError(
                f"cast: expected {expr.dtype.lanes} lanes as in {expr}, got {wanted}"
            )
        return Broadcast(cast(wanted.element, expr), wanted.lanes)
    if wanted.is_handle or expr.dtype.is_handle:
        raise CompileError(f"cast: expected numeric dtypes, got {expr.dtype} to {wanted}")
    if isinstance(expr, (IntImm, FloatImm)):
        return const(scalars.cast(wanted, expr.value), wanted)
    return Cast(wanted, expr)


_ZERO_RIGHT = ("Add", "Sub")  # x op 0 is x
_ONE_RIGHT = ("Mul", "Div", "FloorDiv")  # x op 1 is x


def _arithmetic(node: Callable[[PrimExpr, PrimExpr], PrimExpr], a: Any, b: Any) -> PrimExpr:
    """The node on promoted operands, folded where they are constants or an identity holds.

    Identities are those that hold for every float, NaN, infinities and signed zeros included.
    """
    x, y = promote(a, b)
    name: str = node.__name__
    if x.dtype.element.is_bool and name not in ("Min", "Max"):
        raise CompileError(
            f"{name}: expected numbers, got two bools: cast them, or use te.all, te.any"
        )
    if not (x.dtype.is_float or x.dtype.is_integral):
        raise CompileError(f"{name}: expected numbers, got {x.dtype}")
    if isinstance(x, (IntImm, FloatImm)) and isinstance(y, (IntImm, FloatImm)):
        return const(scalars.binary(name, x.dtype, x.value, y.value), x.dtype)
    if isinstance(y, IntImm):
        if (y.value == 0 and name in _ZERO_RIGHT) or (y.value == 1 and name in _ONE_RIGHT):
            return x
        if y.value == 0 and name not in ("Min", "Max"):
            return const(0, x.dtype)  # x * 0, and by definition x / 0 and x % 0
    if isinstance(x, IntImm):
        if (x.value == 0 and name == "Add") or (x.value == 1 and name == "Mul"):
            return y
        if x.value == 0 and name not in ("Min", "Max", "Sub"):
            return const(0, x.dtype)
    return node(x, y)


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
    return _integer_arithmetic(Div, "truncdiv", a, b)


@elementwise
def truncmod(a: Any, b: Any) -> PrimExpr:
    """The remainder of :func:`truncdiv`, with the sign of `a`, as in C."""
    return _integer_arithmetic(Mod, "truncmod", a, b)


def _integer_arithmetic(
    node: Callable[[PrimExpr, PrimExpr], PrimExpr], name: str, a: Any, b: Any
) -> PrimExpr:
    x, y = _operands(a, b)
    if x.dtype.is_float or y.dtype.is_float:
        raise CompileError(f"{name}: expected integers, got {x.dtype} and {y.dtype}")
    return _arithmetic(node, x, y)


@elementwise
def floordiv(a: Any, b: Any) -> PrimExpr:
    """The quotient rounded down, as Python's ``//``; on floats ``floor(a / b)``."""
    x, y = _operands(a, b)
    if x.dtype.is_float or y.dtype.is_float:
        quotient = divide(x, y)
        return intrinsic("floor", quotient.dtype, quotient)
    return _arithmetic(FloorDiv, x, y)


@elementwise
def floormod(a: Any, b: Any) -> PrimExpr:
    """The remainder of :func:`floordiv`, with the sign of `b`, as Python's ``%``."""
    x, y = promote(a, b)
    if not x.dtype.is_float:
        return _arithmetic(FloorMod, x, y)
    remainder = Var("remainder", x.dtype)
    zero = const(0.0, x.dtype)
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
        return subtract(const(0, x.dtype), x)
    return multiply(x, const(-1, x.dtype))


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
    if isinstance(x, (IntImm, FloatImm)) and isinstance(y, (IntImm, FloatImm)):
        return const(scalars.COMPARE[node.__name__](x.value, y.value), BOOL)
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
    """`value` as a ``bool`` expression: a number is true when it is not zero."""
    expr = as_expr(value)
    return expr if expr.dtype.is_bool else compare(NE, expr, const(0, expr.dtype))


@elementwise
def logical_and(a: Any, b: Any) -> PrimExpr:
    """Both of two conditions."""
    x, y = _match(as_condition(a), as_condition(b))
    if isinstance(x, IntImm):
        return y if x.value else x
    if isinstance(y, IntImm):
        return x if y.value else y
    return And(x, y)


@elementwise
def logical_or(a: Any, b: Any) -> PrimExpr:
    """Either of two conditions."""
    x, y = _match(as_condition(a), as_condition(b))
    if isinstance(x, IntImm):
        return x if x.value else y
    if isinstance(y, IntImm):
        return y if y.value else x
    return Or(x, y)


@elementwise
def logical_not(a: Any) -> PrimExpr:
    """The opposite of a condition."""
    x = as_condition(a)
    return const(not x.value, BOOL) if isinstance(x, IntImm) else Not(x)


def _bitwise(name: str, a: Any, b: Any) -> PrimExpr:
    x, y = promote(a, b)
    if not x.dtype.is_integral:
        raise CompileError(f"{name}: expected integers, got {x.dtype}")
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
        raise CompileError(f"bitwise_not: expected an integer, got {x.dtype}")
    return intrinsic("bitwise_not", x.dtype, x)


def _shift(name: str, a: Any, b: Any) -> PrimExpr:
    x, y = promote(a, b)
    if not x.dtype.is_integral or x.dtype.is_bool:
        raise CompileError(f"{name}: expected integers, got {x.dtype}")
    if isinstance(y, IntImm) and not 0 <= y.value < x.dtype.bits:
        raise CompileError(
            f"{name}: expected a shift from 0 to {x.dtype.bits - 1} for {x.dtype}, got {y.value}"
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
    """A call of an intrinsic of :data:`minitvm.scalars.INTRINSICS`, folded on constants."""
    if name in scalars.INTRINSICS and all(isinstance(a, (IntImm, FloatImm)) for a in args):
        values = [a.value for a in args if isinstance(a, (IntImm, FloatImm))]
        return const(scalars.INTRINSICS[name](args[0].dtype, *values), dtype)
    return Call(dtype, name, args)


def unknown_node(node: object, where: str) -> InternalError:
    """What to raise at the end of a ``match`` over nodes: `where` does not know this class."""
    return InternalError(f"{where}: no case for {type(node).__name__}")


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple of one, or of the members of a list or tuple."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
