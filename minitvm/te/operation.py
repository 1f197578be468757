"""The functions that make tensors: ``placeholder``, ``compute`` and ``extern``, and their axes and
variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minitvm.runtime.dtype import FLOAT32, INT32, DType, DTypeLike
from minitvm.runtime.errors import CompileError
from minitvm.te.tag import scoped_tag
from minitvm.te.tensor import ComputeOp, ExternOp, PlaceholderOp, Tensor, data_axes
from minitvm.tir import expr
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.described import check_takes
from minitvm.tir.expr import (
    Buffer,
    IterType,
    IterVar,
    PrimExpr,
    Range,
    Reduce,
    StringImm,
    Var,
    as_dtype,
    as_expr,
    as_name,
    as_tuple,
    const_int,
    described,
    named,
    naming,
)
from minitvm.tir.functor import Node, children, contains, free_vars
from minitvm.tir.indices import as_dimension
from minitvm.tir.stmt import Evaluate, Stmt
from minitvm.tir.verify import check_body, check_calls

# -- Variables and axes ---------------------------------------------------------------------------


@named
def var(name: str = "tindex", dtype: DTypeLike = "int32", span: Any = None) -> Var:
    """A variable: a symbolic dimension, or a scalar parameter.

    Parameters
    ----------
    name : str
        The name that is printed.
    dtype : dtype
        Its type, of a scalar.
    span : ignored
        Classic TVM's source location.

    >>> var("n") + 1
    n + 1
    """
    return Var(as_name(name), as_dtype(dtype))


@named
def size_var(name: str = "size", dtype: DTypeLike = "int32", span: Any = None) -> Var:
    """A variable of at least zero, such as a dimension. See :func:`var`."""
    return Var(as_name(name), as_dtype(dtype), nonnegative=True)


def reduce_axis(
    dom: Range | Sequence[Any], name: str = "rv", thread_tag: str = "", span: Any = None
) -> IterVar:
    """An axis to reduce over.

    Parameters
    ----------
    dom : (begin, end) or Range
        The integers that it runs over, without `end`.
    name : str
        Its name in schedules and programs.

    Raises
    ------
    CompileError
        When `dom` is no range of integers.

    >>> reduce_axis((0, 8), "k")
    iter_var(k, range(min=0, ext=8))
    """
    with naming("reduce_axis"):
        as_name(name)
        if not isinstance(thread_tag, str):
            raise CompileError(f"expected a string as thread_tag, got {described(thread_tag)}")
    return _axis(_range(name, dom), name, IterType.COMM_REDUCE, thread_tag)


def thread_axis(
    dom: Range | Sequence[Any] | str | None = None, tag: str = "", name: str = "", span: Any = None
) -> IterVar:
    """An axis of threads, to which a loop may be bound: ``thread_axis("blockIdx.x")``.

    Raises
    ------
    CompileError
        When there is no `tag`.
    """
    if isinstance(dom, str):
        return thread_axis(None, dom, name)
    if not isinstance(tag, str) or not tag or not isinstance(name, str):
        got = described(name if isinstance(tag, str) and tag else tag)
        raise CompileError(f'thread_axis: expected a tag such as "threadIdx.x", got {got}')
    made = None if dom is None else _range(name or tag, dom)
    return _axis(made, name or tag, IterType.THREAD_INDEX, tag)


def _axis(dom: Range | None, name: str, iter_type: int, thread_tag: str) -> IterVar:
    dtype = INT32 if dom is None else dom.extent.dtype
    return IterVar(dom, Var(name, dtype, axis=True), iter_type, thread_tag)


def _range(name: str, dom: Any) -> Range:
    made: Range = dom
    if not isinstance(dom, Range):
        if not isinstance(dom, (tuple, list)) or len(dom) != 2:
            raise CompileError(f"axis {name}: expected a range (begin, end), got {described(dom)}")
        made = Range(*[_extent(f"axis {name}: bound {i}", bound) for i, bound in enumerate(dom)])
    extent = const_int(made.extent)
    if extent is not None and extent < 0:
        raise CompileError(f"axis {name}: expected begin <= end, got {described(dom)}")
    return made


# -- Shapes ---------------------------------------------------------------------------------------


def _extent(where: str, value: Any) -> PrimExpr:
    with naming(where):
        return as_dimension(expr.as_size(value))


def _shape(name: str, shape: Any) -> tuple[PrimExpr, ...]:
    """The dimensions of a tensor, checked."""
    members = shape if isinstance(shape, (tuple, list)) else (shape,)
    made = tuple(_extent(f"{name}: shape[{i}]", dim) for i, dim in enumerate(members))
    for i, dim in enumerate(made):
        extent = const_int(dim)
        if extent is not None and extent < 0:
            raise CompileError(f"{name}: shape[{i}]: expected no negative extent, got {extent}")
    return made


def _element_type(dtype: DType) -> DType:
    """The dtype of a tensor's elements, checked."""
    if dtype.is_handle:
        raise CompileError(f"expected the dtype of a number for a tensor, got {dtype}")
    return dtype


# -- Operations -----------------------------------------------------------------------------------


def placeholder(shape: Any, dtype: DTypeLike | None = None, name: str = "placeholder") -> Tensor:
    """A tensor that the caller passes.

    Parameters
    ----------
    shape : int or expression, or a tuple of them
        Its dimensions; a variable is bound to the argument's dimension at the call.
    dtype : dtype
        The type of its elements; ``float32`` unless given.
    name : str
        Its name in messages and programs.

    Raises
    ------
    CompileError
        When a dimension is negative, or no integer.

    >>> placeholder((4, 3), name="A")
    Tensor(shape=[4, 3], op.name=A)
    """
    with naming("placeholder"):
        if isinstance(shape, str):
            raise CompileError(
                f"expected a shape first, got {shape!r}: write placeholder(shape, name=...)"
            )
        wanted = _element_type(as_dtype(dtype, FLOAT32))
        as_name(name)
    return PlaceholderOp(name, _shape(name, shape), wanted).output(0)


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Any:
    """A tensor whose element at each index is the result of `fcompute` for this index.

    Parameters
    ----------
    shape : int or expression, or a tuple of them
        The dimensions of the result.
    fcompute : function of as many indices as there are dimensions
        Its parameters name the axes. Returns the element, or a tuple of elements.
    name, tag, attrs
        For messages, programs and schedules.
    varargs_names : sequence of str
        Names of the axes that a ``*parameter`` of `fcompute` takes; ``i0, i1...`` unless given.

    Returns
    -------
    Tensor, or tuple of Tensor
        A tensor if `fcompute` returns an element; for a tuple, a tensor for each of its elements.

    Raises
    ------
    CompileError
        When `fcompute` takes another number of indices, returns something that is no number, puts a
        reduction inside another expression, or uses an axis outside of its loop.

    >>> from minitvm import te
    >>> A = te.placeholder((4, 3), name="A")
    >>> compute((3, 4), lambda i, j: A[j, i] * 2, name="B")
    Tensor(shape=[3, 4], op.name=B)
    """
    with naming("compute"):
        tag = scoped_tag(as_name(name), tag)
        attrs = _attrs(attrs)
    if not callable(fcompute):
        raise CompileError(f"{name}: expected fcompute to be a function, got {described(fcompute)}")
    extents = _shape(name, shape)
    axis = data_axes(_axis_names(name, fcompute, len(extents), varargs_names), extents)
    value = _called(name, fcompute, axis)
    members = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    body = tuple(_element(name, member) for member in members)
    _check_body(name, axis, body)
    reduced = body[0].axis if isinstance(body[0], Reduce) else ()
    outputs = ComputeOp(name, tag, attrs, axis, reduced, body).outputs
    return outputs[0] if len(outputs) == 1 else outputs


def _called(name: str, fcompute: Callable[..., Any], axis: Iterable[IterVar]) -> Any:
    try:
        return fcompute(*[each.var for each in axis])
    except IndexError as error:
        if "valid indices" not in str(error):  # the words of numpy and JAX
            raise
        raise CompileError(
            f"{name}: expected axes as indices of tensors, found one as the index of an array, "
            "which holds numbers: pass the array as a te.placeholder (an operator of jit takes it "
            f"as a parameter): {error}"
        ) from error


def _attrs(attrs: Any) -> dict[str, Any]:
    if attrs is not None and not isinstance(attrs, Mapping):
        raise CompileError(f"expected a dict as attrs, got {described(attrs)}")
    return dict(attrs or {})


def _axis_names(
    name: str, fcompute: Callable[..., Any], ndim: int, varargs_names: Sequence[str] | None
) -> list[str]:
    """The names of the axes: those of fcompute's parameters."""
    kinds = inspect.Parameter
    try:
        parameters = list(inspect.signature(fcompute).parameters.values())
    except ValueError:
        raise CompileError(
            f"{name}: expected an fcompute whose parameters are known, got {described(fcompute)}: "
            "write a lambda that calls it"
        ) from None
    named = [
        p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    required = [p for p in named if p.default is kinds.empty]
    rest = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
        raise CompileError(f"{name}: expected an fcompute of indices, got keyword-only parameters")
    if len(required) > ndim or (len(named) < ndim and not rest):
        takes = ", ".join(p.name for p in required) or "none"
        raise CompileError(
            f"{name}: expected an fcompute of {ndim} indices, as the shape has, got one of "
            f"{len(required)} ({takes})"
        )
    names = [p.name for p in named][:ndim]
    remaining = ndim - len(names)
    if varargs_names is not None and not all(isinstance(n, str) for n in as_tuple(varargs_names)):
        raise CompileError(f"{name}: expected strings, got {described(varargs_names)}")
    if varargs_names is not None and len(varargs_names) != remaining:
        raise CompileError(f"{name}: expected {remaining} varargs_names, got {len(varargs_names)}")
    return names + list(varargs_names or [f"i{i}" for i in range(len(names), ndim)])


def _element(name: str, value: Any) -> PrimExpr:
    if value is None:
        raise CompileError(f"{name}: expected fcompute to return an element, got None")
    with naming(f"{name}: fcompute returned no element"):
        element = as_expr(value)
    if element.dtype.is_handle:
        got = "a string" if isinstance(element, StringImm) else element.dtype
        raise CompileError(f"{name}: expected fcompute to return a number, got {got}")
    return element


def _check_body(name: str, axis: Iterable[IterVar], body: tuple[PrimExpr, ...]) -> None:
    if not body:
        raise CompileError(f"{name}: expected fcompute to return an element, got an empty tuple")
    reductions = [each for each in body if isinstance(each, Reduce)]
    if reductions and not _are_one_reduction(body):
        raise CompileError(
            f"{name}: expected the results of one reducer over one set of axes, or no reduction, "
            "in a tuple: make each reduction a stage of its own"
        )
    below: list[Node] = [each for each in body if not isinstance(each, Reduce)]
    for reduction in reductions[:1]:
        below += children(reduction)
    if contains(Reduce, *below):
        raise CompileError(
            f"{name}: expected a reduction to be the whole body, found one inside an expression: "
            "make it a stage of its own, te.compute(..., lambda i: te.sum(...)), and read that"
        )
    check_calls(name, *body, *below)
    own = {each.var for each in axis}
    for member in body:
        for each in free_vars(member):
            if each.axis and each not in own:
                raise CompileError(
                    f"{name}: axis {each.name} is used outside of its loop: it is none of "
                    f"{name}'s axes ({', '.join(v.name for v in own)}), and no reducer runs over "
                    f"it, as in te.sum(..., axis={each.name})"
                )


def _are_one_reduction(body: tuple[PrimExpr, ...]) -> bool:
    """Whether the members are the results of one reduction, in order."""
    first = body[0]
    return isinstance(first, Reduce) and all(
        isinstance(each, Reduce)
        and each.combiner is first.combiner
        and each.axis == first.axis
        and each.condition is first.condition
        and each.source is first.source
        and each.init is first.init
        and each.value_index == i
        for i, each in enumerate(body)
    )


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: Callable[[list[Buffer], list[Buffer]], Any],
    name: str = "extern",
    dtype: Any = None,
    in_buffers: Any = None,
    out_buffers: Any = None,
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Tensors that a statement writes: loops of ``tir.ir_builder``, or a call out of the program.

    Parameters
    ----------
    shape : a shape, or a list of shapes
        The shape of the one output, or of each output.
    inputs : sequence of Tensor
        The tensors that the statement reads.
    fcompute : function of the input buffers and the output buffers, two lists
        Returns a statement, or a call, as of ``tir.call_packed("f", ins[0], outs[0])``.
    dtype : dtype, or a list of them
        The dtype of all outputs, or of each; by default the dtype of the inputs, if they agree.
    in_buffers, out_buffers : Buffer, or a list of them
        Buffers to use in place of compact ones, for example to declare strides or an alignment.

    Returns
    -------
    Tensor, or tuple of Tensor

    Raises
    ------
    CompileError
        When the numbers of inputs, outputs, dtypes and buffers don't agree, the dtype can't be
        known, or `fcompute` returns neither statement nor expression.

    >>> from minitvm import te, tir
    >>> A = te.placeholder((8,), name="A")
    >>> extern(A.shape, [A], lambda ins, outs: tir.call_packed("scale", ins[0], outs[0]), name="C")
    Tensor(shape=[8], op.name=C)
    """
    with naming("extern"):
        tag = scoped_tag(as_name(name), tag)
        attrs = _attrs(attrs)
        inputs = as_tuple(inputs)
    for i, each in enumerate(inputs):
        if not isinstance(each, Tensor):
            raise CompileError(f"{name}: inputs[{i}]: expected a tensor, got {type(each).__name__}")
    shapes = [_shape(name, each) for each in _shapes(shape)]
    dtypes = _output_dtypes(name, dtype, inputs, len(shapes))
    ins = [decl_buffer(t.shape, t.dtype, t.op.name) for t in inputs]
    outs = [decl_buffer(*each, name) for each in zip(shapes, dtypes, strict=True)]
    ins = _given_buffers(name, "in_buffers", in_buffers, ins)
    outs = _given_buffers(name, "out_buffers", out_buffers, outs)
    expected = (
        f"{name}: expected fcompute to be a function of two lists, of input and output buffers"
    )
    check_takes(expected, fcompute, ins, outs)
    body = fcompute(ins, outs)
    if isinstance(body, PrimExpr):
        body = Evaluate(body)
    if not isinstance(body, Stmt):
        raise CompileError(
            f"{name}: expected fcompute to return a statement or a call, got {type(body).__name__}"
        )
    check_body(name, body, (*ins, *outs))
    op = ExternOp(name, tag, attrs, tuple(inputs), tuple(ins), tuple(outs), body)
    return op.output(0) if op.num_outputs == 1 else op.outputs


def _shapes(shape: Any) -> list[Any]:
    """The shapes of all outputs: a list of shapes, or one shape."""
    members = expr.as_tuple(shape)
    several = bool(members) and all(isinstance(each, (tuple, list)) for each in members)
    return list(members) if several else [members]


def _output_dtypes(name: str, dtype: Any, inputs: Sequence[Tensor], count: int) -> list[DType]:
    if dtype is None:
        found = list(dict.fromkeys(t.dtype for t in inputs))
        if len(found) != 1:
            raise CompileError(
                f"{name}: expected a dtype, since the inputs' do not tell it "
                f"({', '.join(map(str, found)) or 'no inputs'}): pass dtype="
            )
        return found * count
    if not isinstance(dtype, (tuple, list)):
        return [_named_type(name, dtype)] * count
    if len(dtype) != count:
        raise CompileError(f"{name}: expected {count} dtypes, one each output, got {len(dtype)}")
    return [_named_type(name, each) for each in dtype]


def _named_type(name: str, dtype: Any) -> DType:
    with naming(name):
        return _element_type(as_dtype(dtype))


def _given_buffers(name: str, what: str, given: Any, made: list[Buffer]) -> list[Buffer]:
    """The buffers that the caller gave, checked; or the default ones, `made`."""
    if given is None:
        return made
    buffers = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(buffers) != len(made):
        raise CompileError(f"{name}: expected {len(made)} {what}, got {len(buffers)}")
    for i, (buffer, wanted) in enumerate(zip(buffers, made, strict=True)):
        if not isinstance(buffer, Buffer):
            raise CompileError(
                f"{name}: {what}[{i}]: expected a buffer, got {type(buffer).__name__}"
            )
        if buffer.dtype != wanted.dtype or buffer.ndim != wanted.ndim:
            raise CompileError(
                f"{name}: {what}[{i}]: expected rank {wanted.ndim} of {wanted.dtype}, got rank "
                f"{buffer.ndim} of {buffer.dtype}"
            )
    return buffers
