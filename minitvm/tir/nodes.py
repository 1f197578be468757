"""Every node of the IR.

One set of nodes serves tensor expressions (where a read is a :class:`ProducerLoad` and a sum is a
:class:`Reduce`) and the loop IR (where a read is a :class:`BufferLoad` and reductions have become
loops). Nodes are immutable and compared by identity; ``==`` on expressions builds an :class:`EQ`.

This module defines the fields of each node and their validity. The functions that make nodes are in
the modules above, as :mod:`minitvm.tir.node` shows; traversal is in :mod:`minitvm.tir.functor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from typing import Any, ClassVar, cast, final

from minitvm.runtime.dtype import BOOL, HANDLE, INT32, DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.tir import scalars
from minitvm.tir.checks import (
    check_cast,
    check_condition,
    check_numbers,
    check_value_of,
    dtype_at,
    is_size,
    two_dtypes,
    vector_of,
)
from minitvm.tir.described import digits
from minitvm.tir.fields import holding, node
from minitvm.tir.names import GlobalVar, Op
from minitvm.tir.node import ExprOperators, PrimExpr, Stmt, WholeTensor, language
from minitvm.tir.provenance import Origin
from minitvm.tir.tree import walk_leaves_first


def _set(made: object, name: str, value: object) -> None:
    """Fill in a derived field of a frozen node while it is made."""
    object.__setattr__(made, name, value)


# -- Leaves ---------------------------------------------------------------------------------------


@final
@node
class Var(PrimExpr):
    """A variable: an identity, which prints as `name`. ``n = te.var("n")``.

    `nonnegative` marks a size (classic ``SizeVar``): at least zero. `axis` marks the variable of an
    axis: it has a value only inside the loop of that axis.
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
@node
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
                f"got {digits(value)}"
            )
        if isinstance(value, bool) is not dtype.is_bool:
            _set(self, "value", bool(value) if dtype.is_bool else int(value))

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return self.value != 0


@final
@node
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
@node
class StringImm(PrimExpr):
    """A string constant: an argument of ``call_packed``."""

    value: str
    dtype: DType = field(default=HANDLE, init=False)


# -- Arithmetic: both operands of one dtype, which is the result's --------------------------------


@node
class BinaryOp(PrimExpr):
    """Base of the operators on two values of one dtype, and their constructor."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        """Stores the dtype of the result, which each family of operators derives."""
        raise NotImplementedError


class Arithmetic(BinaryOp):
    """Base of the operators whose result has the operands' dtype."""

    __slots__ = ()
    takes_bools: ClassVar[bool] = False

    def __post_init__(self) -> None:
        dtype = self.a.dtype
        if dtype is not self.b.dtype:
            raise two_dtypes(self, self.a, self.b)
        if not dtype.is_float and (not dtype.is_integral or dtype.is_bool):
            check_numbers(dtype, self.takes_bools, f"{type(self).__name__}: ")
        _set(self, "dtype", dtype)


class IntegerArithmetic(Arithmetic):
    """Base of the operators on integers alone."""

    __slots__ = ()

    def __post_init__(self) -> None:
        Arithmetic.__post_init__(self)
        if not self.dtype.is_integral:
            raise CompileError(f"{type(self).__name__}: expected integers, got {self.dtype}")


@final
@node
class Add(Arithmetic):
    """``a + b``; integers wrap."""


@final
@node
class Sub(Arithmetic):
    """``a - b``; integers wrap."""


@final
@node
class Mul(Arithmetic):
    """``a * b``; integers wrap."""


@final
@node
class Div(Arithmetic):
    """``a / b``; integers round towards zero (``truncdiv``)."""


@final
@node
class Mod(IntegerArithmetic):
    """The remainder of :class:`Div` on integers, with the sign of `a` (``truncmod``)."""


@final
@node
class FloorDiv(IntegerArithmetic):
    """``a // b`` on integers, rounded down."""


@final
@node
class FloorMod(IntegerArithmetic):
    """``a % b`` on integers, with the sign of `b`."""


@final
@node
class Min(Arithmetic):
    """The lesser; NaN when either is NaN."""

    takes_bools: ClassVar[bool] = True


@final
@node
class Max(Arithmetic):
    """The greater; NaN when either is NaN."""

    takes_bools: ClassVar[bool] = True


# -- Comparison and logic: the result is bool -----------------------------------------------------


class Comparison(BinaryOp):
    """Base of the operators whose result is ``bool``."""

    __slots__ = ()

    def __post_init__(self) -> None:
        dtype = self.a.dtype
        if dtype is not self.b.dtype:
            raise two_dtypes(self, self.a, self.b)
        if not (dtype.is_float or dtype.is_integral):
            raise CompileError(f"{type(self).__name__}: expected numbers, got {dtype}")
        _set(self, "dtype", BOOL if dtype.lanes == 1 else BOOL.with_lanes(dtype.lanes))


class Logic(BinaryOp):
    """Base of the operators on two conditions."""

    __slots__ = ()

    def __post_init__(self) -> None:
        dtype = self.a.dtype
        if dtype is not self.b.dtype:
            raise two_dtypes(self, self.a, self.b)
        check_condition(type(self).__name__, self.a)
        _set(self, "dtype", dtype)


@final
@node
class EQ(Comparison):
    """``a == b``. As a condition in Python code, it tells whether both sides are one expression:
    see :func:`minitvm.tir.sizes.is_same_size`."""

    def __bool__(self) -> bool:
        return language().is_same_size(self)


@final
@node
class NE(Comparison):
    """``a != b``. As a condition in Python code, it tells whether the sides are different
    expressions: see :func:`minitvm.tir.sizes.is_same_size`."""

    def __bool__(self) -> bool:
        return not language().is_same_size(self)


@final
@node
class LT(Comparison):
    """``a < b``."""


@final
@node
class LE(Comparison):
    """``a <= b``."""


@final
@node
class GT(Comparison):
    """``a > b``."""


@final
@node
class GE(Comparison):
    """``a >= b``."""


@final
@node
class And(Logic):
    """Both of two ``bool`` values; both are evaluated."""


@final
@node
class Or(Logic):
    """Either of two ``bool`` values; both are evaluated."""


@final
@node
class Not(PrimExpr):
    """The opposite of a ``bool``."""

    a: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        check_condition("Not", self.a)
        _set(self, "dtype", self.a.dtype)


# -- Choice, conversion, binding ------------------------------------------------------------------


@final
@node
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
@node
class Cast(PrimExpr):
    """`value` converted to `dtype`, as :func:`minitvm.tir.scalars.cast` defines it."""

    dtype: DType
    value: PrimExpr

    def __post_init__(self) -> None:
        check_cast(self.value.dtype, self.dtype, "Cast: ")


@final
@node
class Let(PrimExpr):
    """``let var = value in body``: `value` is evaluated once."""

    var: Var
    value: PrimExpr
    body: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        check_value_of("Let", self.var.name, self.var.dtype, self.value)
        _set(self, "dtype", self.body.dtype)


# -- Vectors --------------------------------------------------------------------------------------


@final
@node
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
        _set(self, "dtype", vector_of("Ramp", dtype, self.lanes))


@final
@node
class Broadcast(PrimExpr):
    """The vector of `lanes` copies of a scalar. Made by vectorisation."""

    value: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", vector_of("Broadcast", self.value.dtype, self.lanes))


# -- Memory ---------------------------------------------------------------------------------------


@final
@node
class Buffer:
    """A region of memory seen as a tensor: an identity, as a variable is.

    `strides` counts elements; ``()`` on a buffer of rank 1 or more means compact, row-major.
    Element ``[i, ...]`` is at ``data + (elem_offset + sum(i * stride)) * dtype.itemsize``.
    `layout` is the declared layout (``decl_buffer``), which an argument must have, or "".
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
        for size in self.sizes:
            if not is_size(size.dtype):
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

    @property
    def sizes(self) -> tuple[PrimExpr, ...]:
        """The expressions of the shape, the strides and the offset."""
        offset = () if self.elem_offset is None else (self.elem_offset,)
        return (*self.shape, *self.strides, *offset)

    def vload(self, begin: Any, dtype: DTypeLike | None = None) -> PrimExpr:
        """The value at index `begin`, or with a vector `dtype` the values from this index on along
        the last axis."""
        return language().load(self, begin, dtype)

    def vstore(self, begin: Any, value: Any) -> Stmt:
        """Stores `value` at index `begin`; a vector is stored from this index on along the last
        axis. A Python number is taken in the buffer's dtype."""
        return language().store(self, begin, value)

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
        for the rest of the buffer. `ptr_type` and `content_lanes` are there for classic programs,
        and ignored: pointers are opaque.
        """
        return language().access_ptr(self, access_mask, offset, extent)

    def __getitem__(self, indices: Any) -> PrimExpr:
        return language().load(self, indices)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"Buffer({self.name}: {self.dtype}[{shape}])"


@final
@node
class ProducerLoad(PrimExpr):
    """An element of a tensor, in tensor expressions only: ``A[i, k]``."""

    producer: WholeTensor
    indices: tuple[PrimExpr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.producer.shape):
            raise CompileError(
                f"{self.producer.name}: expected {len(self.producer.shape)} indices, got "
                f"{len(self.indices)}"
            )
        for i, index in enumerate(self.indices):
            if not is_size(index.dtype):
                raise CompileError(
                    f"{self.producer.name}: index {i}: expected an integer, got {index.dtype}"
                )
        _set(self, "dtype", self.producer.dtype)


@final
@node
class BufferLoad(PrimExpr):
    """An element of a buffer, or with a vector index several elements, in the loop IR.

    Lanes in which `predicate` is false are not read, and are 0. Vectorisation makes predicates.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        _set(self, "dtype", dtype_at(self.buffer, self.indices, self.predicate))


# -- Calls ----------------------------------------------------------------------------------------


@final
@node
class Call(PrimExpr):
    """An intrinsic of :mod:`minitvm.tir.op` (``"exp"``), or a call out of the program.

    `op` is the name of an intrinsic, or one of ``call_packed`` (a registered function; the first
    argument is its name), ``call_extern`` (a C symbol), ``call_llvm_intrin``,
    ``call_llvm_pure_intrin``, ``if_then_else``, ``likely``, ``isnullptr``, ``tvm_access_ptr`` (see
    :meth:`Buffer.access_ptr`), ``tvm_stack_make_array`` (a region of a buffer passed to a packed
    call: a ``BufferRef``, the begin of the region in each dimension, and the extents of the last
    dimensions; the dimensions before are dropped), ``reinterpret``, ``prefetch`` (requests an
    element of a buffer, which is not read and may lie outside), ``checked`` (its arguments are a
    condition, a message, a value, and the values in the message; it returns the value if the
    condition holds, and otherwise fails with an ``IndexError``, as an ``AssertStmt`` does); or one
    of vectors: ``vector_extract`` (one lane, by its number), ``vector_shuffle``
    (``vector_shuffle(a, b, 0, 4, 1, 5)``: lanes by their numbers; the lanes of b are numbered
    behind those of a) and the folds of :data:`minitvm.tir.intrinsics.VECTOR_FOLDS`
    (``vector_reduce_add(start, vector)``).
    """

    dtype: DType
    op: str
    args: tuple[PrimExpr, ...]

    def __post_init__(self) -> None:
        if type(self.op) is not Op:
            _set(self, "op", _OPS.get(self.op) or _OPS.setdefault(self.op, Op(self.op)))


_OPS: dict[str, Op] = {}  # one for each name in use


@final
@node
class BufferRef(PrimExpr):
    """A whole buffer as an argument of a call: ``call_packed("f", ins[0], outs[0])``."""

    buffer: Buffer
    dtype: DType = field(default=HANDLE, init=False)


# -- Iteration and reduction (tensor expressions only) --------------------------------------------


@final
@node
class Range:
    """The integers from `min` on, `extent` of them. ``Range(0, n)`` is begin, end as in Python."""

    min: PrimExpr
    extent: PrimExpr

    def __init__(self, begin: Any, end: Any = None) -> None:
        begin, end = (0, begin) if end is None else (begin, end)
        low, high = language().bounds(begin, end)
        _set(self, "min", low)
        _set(self, "extent", high - low)

    @staticmethod
    def from_min_extent(min: Any, extent: Any) -> Range:
        """``[min, min + extent)``; neither end is simplified."""
        made = Range(0, 0)
        low, length = language().bounds(min, extent)
        _set(made, "min", low)
        _set(made, "extent", length)
        return made

    def __repr__(self) -> str:
        return f"range(min={self.min}, ext={self.extent})"


@final
@node
class IterVar(ExprOperators):
    """An axis: a variable, the range it runs over and its kind. In arithmetic an axis stands for
    its variable; for ``==`` of two axes see :class:`AxisComparison`.

    `iter_type` is one of the class's constants.
    """

    dom: Range | None
    var: Var
    iter_type: int = 0
    thread_tag: str = ""

    def __eq__(self, other: Any) -> Any:
        return AxisComparison(self, other) if isinstance(other, IterVar) else self.var == other

    def __ne__(self, other: Any) -> Any:
        if isinstance(other, IterVar):
            return AxisComparison(self, other, negated=True)
        return self.var != other

    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        return self.var.name

    def __repr__(self) -> str:
        return f"iter_var({self.var.name}, {self.dom})"


@final
class AxisComparison(ExprOperators):
    """``k == l`` or ``k != l`` of two axes. As a condition in Python code (``if``, ``in``), it
    tells whether they are the same axis; as an expression, whether they have the same value.

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
        a, b = self._a.var, self._b.var
        return a != b if self._negated else a == b

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
@node
class CommReducer:
    """A commutative, associative combination of tuples: ``result`` in terms of ``lhs`` and
    ``rhs``, and the ``identity``, which leaves the other operand as it is. Made by
    ``te.comm_reducer``."""

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[PrimExpr, ...]
    identity: tuple[PrimExpr, ...]


@final
@node
class Reduce(PrimExpr):
    """The `value_index`-th result of combining `source` over `axis` wherever `condition` holds,
    beginning with `init` (or the identity). It is always the whole body of a ``compute``."""

    combiner: CommReducer = holding("result", "identity")
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
                f"{digits(self.value_index)}"
            )
        _set(self, "dtype", self.source[self.value_index].dtype)


# -- Statements -----------------------------------------------------------------------------------


class ForKind(IntEnum):
    """The kind of a loop (classic numbering)."""

    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3
    THREAD_BINDING = 4


# The annotation of a loop whose iterations don't read elements that other iterations write. The
# loop's maker sets it, on the data axes of a schedule.
INDEPENDENT = "independent"
# The annotation of a loop with so few iterations that compiling vectors of it doesn't pay.
FEW = "few"


@final
@node
class For(Stmt):
    """``for loop_var in [min, min + extent)``. With a negative extent it has no iterations."""

    loop_var: Var
    min: PrimExpr
    extent: PrimExpr
    kind: ForKind
    body: Stmt
    annotations: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dtype = self.loop_var.dtype
        if not dtype.is_integral or dtype.is_bool:
            raise CompileError(f"For: loop variable: expected an integer, got {dtype}")
        for what, bound in (("min", self.min), ("extent", self.extent)):
            if bound.dtype is not dtype.element:
                raise CompileError(f"For: {what}: expected {dtype.element}, got {bound.dtype}")


@final
@node
class While(Stmt):
    """Repeats `body` while `condition` holds. Made by ``ir_builder``."""

    condition: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        check_condition("While", self.condition)


@final
@node
class BufferStore(Stmt):
    """``buffer[indices] = value``. Lanes are stored in order, except for those in which `predicate`
    is false."""

    buffer: Buffer
    value: PrimExpr
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None

    def __post_init__(self) -> None:
        wanted = dtype_at(self.buffer, self.indices, self.predicate)
        if self.value.dtype is not wanted:
            raise CompileError(
                f"{self.buffer.name}: expected a value of {wanted} to store, got one of "
                f"{self.value.dtype}: cast it, as in x.astype({str(wanted)!r})"
            )


@final
@node
class Allocate(Stmt):
    """`buffer` exists, with undefined contents, while `body` runs."""

    buffer: Buffer = holding("shape", "strides")
    body: Stmt


@final
@node
class LetStmt(Stmt):
    """``var = value`` while `body` runs."""

    var: Var
    value: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        check_value_of("LetStmt", self.var.name, self.var.dtype, self.value)


@final
@node
class IfThenElse(Stmt):
    """Runs one of two statements; `else_case` may be None."""

    condition: PrimExpr
    then_case: Stmt
    else_case: Stmt | None = None

    def __post_init__(self) -> None:
        check_condition("IfThenElse", self.condition)


@final
@node
class SeqStmt(Stmt):
    """Statements one after the other; ``SeqStmt(())`` does nothing."""

    seq: tuple[Stmt, ...]


@final
@node
class Evaluate(Stmt):
    """Evaluates a call for its effect."""

    value: PrimExpr


@final
@node
class AssertStmt(Stmt):
    """Ends the function with a ``KernelError`` (or `kind`, a name of
    :data:`minitvm.runtime.errors.RAISABLE`) of text `message` unless `condition` holds.

    ``{}`` in `message` stand for the values of `values`, integers, in order.
    """

    condition: PrimExpr
    message: str
    body: Stmt
    values: tuple[PrimExpr, ...] = ()
    kind: str = "KernelError"

    def __post_init__(self) -> None:
        check_condition("AssertStmt", self.condition)


VIEW = "view_of"
"""The attribute of a buffer that has the memory of another one."""


@final
@node
class AttrStmt(Stmt):
    """Annotates `body`: the attribute `attr_key` of `node` is `value`.

    Where the key is :data:`VIEW`, `node` is a buffer of another shape that has the memory of the
    buffer in `value`, a ``BufferRef``, inside of `body`.
    """

    node: Any
    attr_key: str
    value: PrimExpr
    body: Stmt


# -- Functions and modules ------------------------------------------------------------------------


@final
@node
class FuncAttrs:
    """Facts about a function that its statements don't contain.

    Attributes
    ----------
    outputs
        The parameters that it writes; None if they have to be found in the body.
    origin
        The stages and the schedule from which it was made. They don't belong to its meaning.
    prepacked
        The arguments that another function makes: from an argument's position to the name of that
        function.
    in_place
        The pairs of arguments that are one array: (position of the output, position of the input).
    form_in_place
        The form of the function for calls in place, if its own loops, which compute in blocks,
        can't serve them.
    knows_layout
        Whether an intrinsic was given the layout of arguments, so that they must be compact.
    has_plain_entry
        Whether it also has an entry that machine code of ours calls with the addresses of its
        arguments.
    holds
        Comparisons ``n >= 8`` of extents that hold in all calls, where the function is a version of
        another.
    """

    outputs: frozenset[Buffer] | None = None
    origin: Origin | None = None
    prepacked: Mapping[int, str] = field(default_factory=dict)
    in_place: frozenset[tuple[int, int]] = frozenset()
    form_in_place: PrimFunc | None = None
    knows_layout: bool = False
    has_plain_entry: bool = False
    holds: tuple[PrimExpr, ...] = ()


@final
@node
class PrimFunc:
    """A function of the loop IR.

    A parameter in `buffer_map` is a tensor, whose shape (and strides) bind the variables in them at
    the call; any other parameter is a scalar, or an opaque handle. As in classic TVM, a buffer
    among the parameters stands for a handle bound to it, and `attrs` may be a mapping with
    ``"global_symbol"``, the function's name. `ret_type` is there for classic programs, and None:
    functions return nothing.

    >>> from minitvm import te, tir
    >>> A, i = tir.decl_buffer((4,), name="A"), te.var("i")
    >>> PrimFunc([A], tir.For(i, 0, 4, tir.ForKind.SERIAL, tir.BufferStore(A, 1.0, [i])))
    def main(A: float32[4]):
        for i in range(4):
            A[i] = 1.0
    """

    params: tuple[Var, ...]
    body: Stmt
    buffer_map: Mapping[Var, Buffer] = field(default_factory=dict)
    name: str = "main"
    attrs: FuncAttrs = field(default_factory=FuncAttrs)
    ret_type: Any = None

    def __post_init__(self) -> None:
        if self.ret_type is not None:
            raise CompileError(
                f"{self.name}: ret_type: expected None, as functions return nothing, got "
                f"{self.ret_type!r}: write the result to an argument"
            )

    @property
    def arguments(self) -> tuple[Buffer | Var, ...]:
        """For each parameter its buffer; for a scalar or a handle, the variable itself."""
        return tuple(self.buffer_map.get(param, param) for param in self.params)

    def with_body(self, new_body: Stmt, span: Any = None) -> PrimFunc:
        """The function with another body; itself if it is the same one."""
        if new_body is self.body:
            return self
        return PrimFunc(self.params, new_body, self.buffer_map, self.name, self.attrs)

    def with_attr(self, attr_key_or_dict: Any, attr_value: Any = None) -> PrimFunc:
        """The function with a classic attribute, or with several of a mapping.

        ``"global_symbol"`` is its name. ``"tir.noalias"``, ``"tir.is_entry_func"`` and
        ``"from_legacy_te_schedule"`` hold for every function, and are accepted.

        Raises
        ------
        CompileError
            For another attribute, or another value.
        """
        made: PrimFunc = language().with_attributes(self, attr_key_or_dict, attr_value)
        return made

    def __str__(self) -> str:
        return language().text(self)

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle refers to objects that it holds already. The leaves are written first, so that
        pickling never recurses deeply, and expressions may be nested as deeply as for `build`.
        Parameters and buffers are written in pairs, since joblib would sort a mapping by its
        keys."""
        leaves_first, buffers = tuple(walk_leaves_first(self.body)), (*self.buffer_map.items(),)
        return _prim_func, (leaves_first, self.params, self.body, buffers, self.name, self.attrs)


def _prim_func(
    leaves_first: object,
    params: tuple[Var, ...],
    body: Stmt,
    buffers: tuple[tuple[Var, Buffer], ...],
    name: str,
    attrs: FuncAttrs,
) -> PrimFunc:
    """The function that the pickle of a function calls."""
    return PrimFunc(params, body, dict(buffers), name, attrs)


@final
@node
class IRModule:
    """Functions by name. Prints as a program.

    >>> from minitvm import tir
    >>> IRModule.from_expr(tir.PrimFunc((), tir.SeqStmt(()))).get_global_var("main").name_hint
    'main'
    """

    functions: Mapping[str, PrimFunc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {GlobalVar(name): func for name, func in self.functions.items()}
        _set(self, "functions", named)

    def update_func(self, var: GlobalVar | str, func: PrimFunc) -> None:
        """Puts a function into the module, in place of one of that name if there is one (classic).

        Raises
        ------
        CompileError
            When it isn't a function, or the name isn't one.
        """
        if not isinstance(var, str):
            raise CompileError(f"IRModule.update_func: expected a function's name, got {var!r}")
        if not isinstance(func, PrimFunc):
            raise CompileError(f"IRModule.update_func: {var}: expected a PrimFunc, got {func!r}")
        self._functions()[GlobalVar(var)] = func

    def update(self, other: IRModule | Mapping[str, PrimFunc]) -> None:
        """Puts all functions of another module into this one (classic).

        Raises
        ------
        CompileError
            When `other` is no module.
        """
        if not isinstance(other, IRModule | Mapping):
            raise CompileError(f"IRModule.update: expected a module, got {other!r}")
        functions = other.functions if isinstance(other, IRModule) else other
        for name, func in functions.items():
            self.update_func(name, func)

    def __setitem__(self, var: GlobalVar | str, func: PrimFunc) -> None:
        self.update_func(var, func)

    def _functions(self) -> dict[str, PrimFunc]:
        """The module's own mapping. `build` works on a copy of the module."""
        return cast("dict[str, PrimFunc]", self.functions)

    @staticmethod
    def from_expr(expr: PrimFunc, functions: Mapping[str, PrimFunc] | None = None) -> IRModule:
        """The module of a function under its own name, and of further functions under theirs."""
        if not isinstance(expr, PrimFunc):
            raise CompileError(f"IRModule.from_expr: expected a PrimFunc, got {expr!r}")
        return IRModule({**(functions or {}), expr.name: expr})

    def get_global_var(self, name: str) -> GlobalVar:
        """The name of a function in the module, as classic programs pass it on.

        Raises
        ------
        KeyError
            When the module has no such function.
        """
        return GlobalVar(self[name] and name)

    def get_global_vars(self) -> list[GlobalVar]:
        """The names of all functions."""
        return [GlobalVar(name) for name in self.functions]

    def __getitem__(self, name: str) -> PrimFunc:
        if name not in self.functions:
            raise KeyError(f"expected a function among {', '.join(self.functions)}, got {name!r}")
        return self.functions[name]

    def script(self, show_meta: bool = False) -> str:
        """The text of all functions."""
        return str(self)

    def astext(self, show_meta_data: bool = True, annotate: Any = None) -> str:
        """The text of all functions."""
        return str(self)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.functions.values()))

    def __repr__(self) -> str:
        return str(self)
