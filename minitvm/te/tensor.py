"""Tensors, and the operations that define them.

An operation defines its output tensors: given from outside (:class:`PlaceholderOp`), element by
element (:class:`ComputeOp`) or by a piece of loop IR (:class:`ExternOp`). Operations are immutable
and compared by identity; :mod:`minitvm.te.operation` makes them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn, final
from typing import cast as typed

from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir import expr
from minitvm.tir.expr import (
    Buffer,
    ExprOperators,
    FloatImm,
    IntImm,
    IterVar,
    PrimExpr,
    ProducerLoad,
    Range,
    Reduce,
    Var,
    WholeTensor,
    as_expr,
    const,
    const_int,
)
from minitvm.tir.functor import Node, find
from minitvm.tir.intrinsics import INTRINSICS
from minitvm.tir.stmt import Stmt

# -- Operations -----------------------------------------------------------------------------------


class Operation:
    """Base of the operations: a `name`, a `tag` and `attrs` for schedules, and the tensors that it
    makes (`outputs`) and reads (`input_tensors`, in order of first use)."""

    __slots__ = ()
    name: str
    tag: str
    attrs: Mapping[str, Any]
    outputs: tuple[Tensor, ...]
    input_tensors: tuple[Tensor, ...]

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def output(self, index: int) -> Tensor:
        """The tensor of an index."""
        return self.outputs[index]

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def _set(op: Operation, **derived: object) -> None:
    """Fill in the derived fields of a frozen operation while it is made."""
    for name, value in derived.items():
        object.__setattr__(op, name, value)


@final
@record(eq=False, repr=False)
class PlaceholderOp(Operation):
    """A tensor that the caller passes. Made by ``te.placeholder``."""

    name: str
    shape: tuple[PrimExpr, ...]
    dtype: DType
    tag: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = field(init=False)
    input_tensors: tuple[Tensor, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        _set(self, outputs=(Tensor(self, 0, self.shape, self.dtype),))


@final
@record(eq=False, repr=False)
class ComputeOp(Operation):
    """Tensors whose elements are `body`, one expression for each output, in terms of `axis`.

    Either no member of `body` is a ``Reduce``, or all are, with one combiner, one tuple of sources
    and the axes `reduce_axis`. Made by ``te.compute``, which checks that.
    """

    name: str
    tag: str
    attrs: Mapping[str, Any]
    axis: tuple[IterVar, ...]
    reduce_axis: tuple[IterVar, ...]
    body: tuple[PrimExpr, ...]
    outputs: tuple[Tensor, ...] = field(init=False)
    input_tensors: tuple[Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        domains = [domain_of(axis) for axis in (*self.axis, *self.reduce_axis)]
        bounds = [bound for dom in domains for bound in (dom.min, dom.extent)]
        shape = tuple(dom.extent for dom in domains[: len(self.axis)])
        outputs = tuple(Tensor(self, i, shape, e.dtype) for i, e in enumerate(self.body))
        _set(self, outputs=outputs, input_tensors=_tensors_read(*self.body, *bounds))


@final
@record(eq=False, repr=False)
class ExternOp(Operation):
    """Tensors that a statement writes: `body` reads `inputs` through `input_placeholders`, buffer
    by buffer, and stores to `output_placeholders`. Made by ``te.extern``."""

    name: str
    tag: str
    attrs: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    input_placeholders: tuple[Buffer, ...]
    output_placeholders: tuple[Buffer, ...]
    body: Stmt
    outputs: tuple[Tensor, ...] = field(init=False)
    input_tensors: tuple[Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        outputs = tuple(
            Tensor(self, i, buffer.shape, buffer.dtype)
            for i, buffer in enumerate(self.output_placeholders)
        )
        _set(self, outputs=outputs, input_tensors=tuple(dict.fromkeys(self.inputs)))


@final
@record(eq=False, repr=False)
class ScanOp(Operation):
    """Tensors whose first dimension is time: each part along it is computed from the parts before
    it.

    ``init`` computes the first parts, and ``update`` the part at ``scan_axis`` in terms of
    ``state_placeholder``, which stands for the result so far. Made by ``te.scan``.
    """

    name: str
    tag: str
    attrs: Mapping[str, Any]
    scan_axis: IterVar
    init: tuple[Tensor, ...]
    update: tuple[Tensor, ...]
    state_placeholder: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...] = field(init=False)
    input_tensors: tuple[Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        outputs = tuple(
            Tensor(self, i, state.shape, state.dtype)
            for i, state in enumerate(self.state_placeholder)
        )
        read = (*self.init, *self.update, *self.inputs)
        _set(self, outputs=outputs, input_tensors=tuple(dict.fromkeys(read)))


def domain_of(axis: IterVar) -> Range:
    """The range of an axis of an operation; raises an error for any other axis."""
    if axis.dom is None:
        raise CompileError(f"axis {axis.name}: expected a range, got an axis without one")
    return axis.dom


def reduce_of(op: ComputeOp) -> Reduce:
    """The expression of a reduction; of one with several results, that of the first."""
    reduce = op.body[0]
    assert isinstance(reduce, Reduce)
    return reduce


def tensor_of(load: ProducerLoad) -> Tensor:
    """The tensor that an expression reads."""
    return typed(Tensor, load.producer)


def _tensors_read(*nodes: Node) -> tuple[Tensor, ...]:
    """The tensors that some expressions read, in order of first use."""
    loads = find(ProducerLoad, *nodes)
    return tuple(dict.fromkeys(map(tensor_of, loads)))


# -- Tensors --------------------------------------------------------------------------------------


def _operator(function: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: typed(Tensor, function(self, other))


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: typed(Tensor, function(other, self))


_OF_ARRAYS = {
    name: remedy
    for names, remedy in (
        (
            "sum mean prod max min any all argmax argmin std var norm dot mm matmul",
            "reduce over an axis, as in k = te.reduce_axis((0, x.shape[1])) and te.compute("
            "(x.shape[0],), lambda i: te.sum(x[i, k], axis=k))",
        ),
        (
            "T mT transpose permute swapaxes reshape view flatten ravel squeeze unsqueeze expand",
            "say where each element comes from, as in te.compute((n, m), lambda i, j: x[j, i])",
        ),
        ("float double half bfloat16 int long to type", 'write x.astype("float32")'),
        ("item tolist numpy", "it has no numbers while a program is written"),
        ("size numel dim", "its extents are x.shape, their number is x.ndim"),
    )
    for name in names.split()
}
"""What arrays have as attributes and methods, and how it is written in a program."""

_PARTS = {
    "slice": (
        "a slice",
        "compute the part that is meant, as in te.compute(shape, lambda i: A[i + 1])",
    ),
    "ellipsis": ("...", "give each index, as in te.compute(shape, lambda *i: A(*i[:-1], 0))"),
    "NoneType": (
        "None",
        "an axis of one element is an index that isn't read, as in te.compute((n, 1), lambda i, j: "
        "A[i])",
    ),
    "bool": (
        "a tensor of bools",
        "choose between elements, as in te.compute(shape, lambda i: te.if_then_else(mask[i], A[i], "
        "0.0))",
    ),
    "other": ("a whole tensor", "index it, as in te.compute(shape, lambda i: A[B[i]])"),
}
"""What selects a part of an array: how it is called, and how it is written in a program."""


@final
@record(eq=False, repr=False)
class Tensor(WholeTensor):
    """The `value_index`-th output of an operation.

    Indexed in full it is an element, an expression. On a whole tensor, Python's operators and the
    functions of ``te`` apply to each element, and broadcast as in numpy. A tensor of rank 0 next to
    an expression that is no constant stands for its element. ``==`` asks whether two tensors are
    one and the same.

    >>> from minitvm import te
    >>> A = te.placeholder((4, 3), name="A")
    >>> (A + 1).shape, (A < A[0, 0]).dtype
    ((4, 3), DType('bool'))
    """

    op: Operation
    value_index: int
    shape: tuple[PrimExpr, ...]
    dtype: DType

    @property
    def name(self) -> str:
        """The operation's name; with its index behind a dot where there are several outputs."""
        several = self.op.num_outputs > 1
        return f"{self.op.name}.v{self.value_index}" if several else self.op.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """The axes of a tensor that was computed."""
        if isinstance(self.op, ComputeOp):
            return self.op.axis
        raise AttributeError  # __getattr__ says it

    def __call__(self, *indices: Any) -> PrimExpr:
        """The element at some indices.

        Raises
        ------
        CompileError
            When the number of indices is not the tensor's rank, or an index is no integer.
        """
        if len(indices) != self.ndim:
            raise CompileError(f"{self.name}: expected {self.ndim} indices, got {len(indices)}")
        return ProducerLoad(self, tuple(self._index(i, each) for i, each in enumerate(indices)))

    def __getitem__(self, indices: Any) -> Any:
        """The element at some indices; given fewer, a :class:`TensorSlice` to be indexed on."""
        indices = indices if isinstance(indices, tuple) else (indices,)
        for position, each in enumerate(indices):
            self._check_is_of_element(position, each)
        return self(*indices) if len(indices) >= self.ndim else TensorSlice(self, indices)

    def _index(self, position: int, value: Any) -> PrimExpr:
        self._check_is_of_element(position, value)
        with expr.naming(f"{self.name}: index {position}"):
            return expr.as_index(value)

    def _check_is_of_element(self, position: int, value: Any) -> None:
        """Refuses what selects a part of an array in numpy, and says how that is written."""
        if isinstance(value, Tensor) and value.ndim:
            kind = "bool" if value.dtype.is_bool else "other"
            got, remedy = _PARTS[kind]
        elif value is None or isinstance(value, slice | types.EllipsisType):
            got, remedy = _PARTS[type(value).__name__]
        else:
            return
        raise CompileError(
            f"{self.name}: index {position}: expected an integer expression, got {got}: {remedy}"
        )

    def asobject(self) -> PrimExpr:
        """The only element of a tensor of rank 0."""
        if self.ndim:
            raise CompileError(
                f"{self.name}: expected an element, got the whole tensor, of rank {self.ndim}: "
                "index it"
            )
        return self()

    def map_elements(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if not any(t.ndim for t in tensors) and any(map(_is_open_expression, args)):
            return function(*[arg() if isinstance(arg, Tensor) else arg for arg in args])
        shape = broadcast_shapes(*[t.shape for t in tensors])
        axis = data_axes([f"i{i}" for i in range(len(shape))], shape)
        values = [_element(arg, axis) if isinstance(arg, Tensor) else arg for arg in args]
        tag = "broadcast" if len(tensors) > 1 else "elemwise"
        body = as_expr(function(*values))
        return ComputeOp(f"T_{function.__name__}", tag, {}, axis, (), (body,)).output(0)

    __add__, __radd__ = _operator(expr.add), _reflected(expr.add)
    __sub__, __rsub__ = _operator(expr.subtract), _reflected(expr.subtract)
    __mul__, __rmul__ = _operator(expr.multiply), _reflected(expr.multiply)
    __truediv__, __rtruediv__ = _operator(expr.divide), _reflected(expr.divide)
    __floordiv__, __rfloordiv__ = _operator(expr.floordiv), _reflected(expr.floordiv)
    __mod__, __rmod__ = _operator(expr.floormod), _reflected(expr.floormod)
    __pow__, __rpow__ = _operator(expr.power), _reflected(expr.power)
    __and__, __rand__ = _operator(expr.bitwise_and), _reflected(expr.bitwise_and)
    __or__, __ror__ = _operator(expr.bitwise_or), _reflected(expr.bitwise_or)
    __xor__, __rxor__ = _operator(expr.bitwise_xor), _reflected(expr.bitwise_xor)
    __lshift__, __rlshift__ = _operator(expr.shift_left), _reflected(expr.shift_left)
    __rshift__, __rrshift__ = _operator(expr.shift_right), _reflected(expr.shift_right)
    __lt__, __le__ = _operator(expr.less), _operator(expr.less_equal)
    __gt__, __ge__ = _operator(expr.greater), _operator(expr.greater_equal)

    def __matmul__(self, other: object) -> NoReturn:
        raise TypeError(
            f"{self.name}: a tensor of a program has no `@`: write the sum, as in te.compute((m, "
            "n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))"
        )

    __rmatmul__ = __matmul__

    if not TYPE_CHECKING:  # to which a missing attribute is an error

        def __getattr__(self, name: str) -> NoReturn:
            """Says how to write what an array has as an attribute or a method."""
            if name == "axis":
                kind = type(self.op).__name__
                raise AttributeError(f"{self.name}: a tensor of {kind} has no axis")
            remedy = f"write te.{name}(x)" if name in INTRINSICS else _OF_ARRAYS.get(name)
            if remedy is None:
                raise AttributeError(f"a tensor of a program has no attribute {name!r}")
            raise AttributeError(f"{self.name}: a tensor of a program has no `{name}`: {remedy}")

    def __neg__(self) -> Tensor:
        return typed(Tensor, expr.negate(self))

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return typed(Tensor, expr.absolute(self))

    def __invert__(self) -> Tensor:
        return typed(Tensor, expr.bitwise_not(self))

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Each element converted to `dtype`."""
        return typed(Tensor, expr.cast(dtype, self))

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return self.op is other.op and self.value_index == other.value_index

    def __hash__(self) -> int:
        return hash((id(self.op), self.value_index))

    def __bool__(self) -> bool:
        raise CompileError(
            f"{self.name}: a tensor has no truth value while a program is written: to compare "
            "identities use `is` or `same_as`"
        )

    def __len__(self) -> int:
        """The extent of the first dimension, where it is known."""
        length = const_int(self.shape[0]) if self.shape else None
        if length is None:
            hint = f": write {self.name}.shape[0]" if self.shape else ""
            raise TypeError(
                f"{self.name}: len: expected a constant first dimension, got {self!r}{hint}"
            )
        return length

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self.name}: a tensor can't be iterated over: index it")

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"Tensor(shape=[{shape}], op.name={self.op.name})"


@final
@record(eq=False, repr=False)
class TensorSlice(ExprOperators):
    """A tensor indexed in its first dimensions only: ``A[i]`` of a matrix, on the way to
    ``A[i][j]``."""

    tensor: Tensor
    indices: tuple[Any, ...]

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __getitem__(self, indices: Any) -> Any:
        return self.tensor[self.indices + expr.as_tuple(indices)]

    def asobject(self) -> PrimExpr:
        """The element at the indices; raises an error while indices are missing."""
        return self.tensor(*self.indices)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self.tensor.name}: a tensor can't be iterated over: index it")

    def __repr__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.indices))}]"


# -- Axes and broadcasting ------------------------------------------------------------------------


def data_axes(names: Sequence[str], shape: Sequence[PrimExpr]) -> tuple[IterVar, ...]:
    """Axes from 0 on over each dimension of `shape`."""
    return tuple(
        IterVar(Range(0, extent), Var(name, extent.dtype, axis=True))
        for name, extent in zip(names, shape, strict=True)
    )


def broadcast_shapes(*shapes: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
    """The shape to which all shapes broadcast, as for ``numpy.broadcast_shapes``. Symbolic
    dimensions fit when they are provably equal.

    Raises
    ------
    CompileError
        When there is no such shape.
    """
    made = tuple(shapes[0])
    for shape in shapes[1:]:
        rank = max(len(made), len(shape))
        pairs = zip(_padded(made, rank), _padded(shape, rank), strict=True)
        dims = [_common_extent(a, b) for a, b in pairs]
        if any(dim is None for dim in dims):
            raise CompileError(
                f"operands: expected shapes that broadcast, got {shape_text(made)} and "
                f"{shape_text(shape)}"
            )
        made = tuple(dim for dim in dims if dim is not None)
    return made


def _padded(shape: Sequence[PrimExpr], rank: int) -> list[PrimExpr]:
    return [const(1)] * (rank - len(shape)) + list(shape)


def _common_extent(a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    if const_int(a) == 1:
        return b
    same = const_int(b) == 1 or Prover().can_prove(expr.equal(a, b))
    return a if same else None


def shape_text(shape: Sequence[object]) -> str:
    """A shape as a tuple of Python."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _element(tensor: Tensor, axis: tuple[IterVar, ...]) -> PrimExpr:
    """The element of `tensor` that broadcasting puts at `axis`."""
    own = axis[len(axis) - tensor.ndim :]
    return tensor(
        *[
            0 if const_int(extent) == 1 else index.var
            for extent, index in zip(tensor.shape, own, strict=True)
        ]
    )


def _is_open_expression(value: Any) -> bool:
    """Whether `value` is an expression whose value is not known yet."""
    return isinstance(value, ExprOperators) and not isinstance(value, (IntImm, FloatImm))
