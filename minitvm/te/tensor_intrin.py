"""Tensor intrinsics: small computations that have a statement of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, final

from minitvm.arith.prover import Prover
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, PrimExpr, Var, equal
from minitvm.tir.functor import walk
from minitvm.tir.stmt import Evaluate, Stmt


@final
@record(eq=False, repr=False)
class TensorIntrin:
    """A statement that computes the operation `op`, for ``s[C].tensorize(axis, intrin)``.

    `body` reads `input_buffers`, one for each of `inputs`, and writes `output_buffers`. For a
    reduction that is done in pieces, `reduce_init` stores the initial values and `reduce_update`
    adds a piece; without a `reduce_init`, `body` computes the first piece. Made by
    :func:`decl_tensor_intrin`.
    """

    name: str
    op: ComputeOp
    inputs: tuple[Tensor, ...]
    input_buffers: tuple[Buffer, ...]
    output_buffers: tuple[Buffer, ...]
    scalar_params: tuple[Var, ...]
    body: Stmt
    reduce_init: Stmt | None = None
    reduce_update: Stmt | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the inputs, then those of the outputs (classic)."""
        return self.input_buffers + self.output_buffers

    def __call__(self, *args: Any, **named: Any) -> NoReturn:
        raise CompileError(
            f"{self.name}: expected an intrinsic in a schedule, found it called in a computation: "
            f"write the computation out, and use s[C].tensorize(axis, {self.name})"
        )

    def __repr__(self) -> str:
        return f"TensorIntrin({self.name})"


def decl_tensor_intrin(
    op: Operation,
    fcompute: Callable[..., Any],
    name: str = "tensor_intrin",
    binds: Mapping[Tensor, Buffer] | None = None,
    scalar_params: Sequence[Var] | None = None,
    default_buffer_params: Mapping[str, Any] | None = None,
) -> TensorIntrin:
    """Declares a tensor intrinsic.

    Parameters
    ----------
    op : Operation
        The computation that the intrinsic performs, on placeholders, with constant extents.
    fcompute : function of the input buffers and the output buffers, two lists
        Returns the statement (or call) that does the computation, or the tuple ``(body,
        reduce_reset, reduce_update)`` for a reduction that may be done in pieces. Either of the
        last two may be None. With `scalar_params`, these are its third argument.
    name : str
        For messages.
    binds : mapping of Tensor to Buffer
        Buffers that describe the memory on which the statement can work: strides, alignment. A
        tensor without one has a compact buffer.
    scalar_params : sequence of Var
        Variables of `op` that stand for scalars of the replaced computation.
    default_buffer_params : mapping
        Further arguments of ``decl_buffer`` for the buffers that are not in `binds`.

    Raises
    ------
    CompileError
        When `op` is no such operation, a buffer doesn't fit its tensor, or `fcompute` returns
        anything else.

    >>> from minitvm import te, tir
    >>> x = te.placeholder((4,), name="x")
    >>> y = te.compute((4,), lambda i: x[i] * 2.0, name="y")
    >>> def twice(ins, outs):
    ...     return outs[0].vstore(0, ins[0].vload(0, "float32x4") * 2.0)
    >>> decl_tensor_intrin(y.op, twice, name="twice")
    TensorIntrin(twice)
    """
    checked = _checked_op(name, op)
    given = dict(binds or {})
    tensors = (*checked.input_tensors, *checked.outputs)
    for tensor in given:
        if tensor not in tensors:
            known = ", ".join(each.name for each in tensors)
            raise CompileError(f"{name}: binds: expected tensors among {known}, got {tensor}")
    buffers = [
        _checked_buffer(name, tensor, given[tensor])
        if tensor in given
        else _default_buffer(name, tensor, default_buffer_params or {})
        for tensor in tensors
    ]
    count = len(checked.input_tensors)
    scalars = _checked_scalars(name, scalar_params or ())
    arguments: list[Any] = [buffers[:count], buffers[count:]]
    if scalars:
        arguments.append(list(scalars))
    body, init, update = _statements(name, checked, fcompute(*arguments))
    if init is not None and any(getattr(n, "buffer", None) in buffers[:count] for n in walk(init)):
        raise CompileError(
            f"{name}: expected a reduce_reset that makes the first values of the outputs, found "
            "one that reads an input: leave reading to reduce_update"
        )
    return TensorIntrin(
        name,
        checked,
        checked.input_tensors,
        tuple(buffers[:count]),
        tuple(buffers[count:]),
        scalars,
        body,
        init,
        update,
    )


def _checked_op(name: str, op: Any) -> ComputeOp:
    if not isinstance(op, ComputeOp):
        raise CompileError(
            f"{name}: expected the operation of a te.compute, such as C.op, got {op!r}"
        )
    for tensor in op.input_tensors:
        if not isinstance(tensor.op, PlaceholderOp):
            raise CompileError(
                f"{name}: expected a computation of placeholders, found that {op.name} reads "
                f"{tensor.name}, which is computed: write it as one te.compute"
            )
    return op


def _default_buffer(name: str, tensor: Tensor, params: Mapping[str, Any]) -> Buffer:
    try:
        return decl_buffer(tensor.shape, tensor.dtype, tensor.name, **params)
    except TypeError as error:
        raise CompileError(f"{name}: default_buffer_params: {error}") from None


def _checked_buffer(name: str, tensor: Tensor, buffer: Any) -> Buffer:
    where = f"{name}: binds[{tensor.name}]"
    if not isinstance(buffer, Buffer):
        raise CompileError(f"{where}: expected a buffer, got {type(buffer).__name__}")
    if buffer.dtype != tensor.dtype or buffer.ndim != tensor.ndim:
        raise CompileError(
            f"{where}: expected a buffer of rank {tensor.ndim} of {tensor.dtype}, got one of rank "
            f"{buffer.ndim} of {buffer.dtype}"
        )
    prover = Prover()
    for i, (extent, wanted) in enumerate(zip(buffer.shape, tensor.shape, strict=True)):
        if not isinstance(extent, Var) and not prover.can_prove(equal(extent, wanted)):
            raise CompileError(f"{where}: expected shape[{i}] == {wanted}, got {extent}")
    return buffer


def _checked_scalars(name: str, scalars: Any) -> tuple[Var, ...]:
    members = tuple(scalars) if isinstance(scalars, (tuple, list)) else (scalars,)
    for each in members:
        if not isinstance(each, Var):
            raise CompileError(f"{name}: scalar_params: expected variables, got {each!r}")
    return members


def _statements(name: str, op: ComputeOp, made: Any) -> tuple[Stmt, Stmt | None, Stmt | None]:
    """The result of fcompute, as a body, a reset and an update."""
    members = list(made) if isinstance(made, (tuple, list)) else [made]
    if not 1 <= len(members) <= 3:
        raise CompileError(
            f"{name}: expected fcompute to return a statement, or (body, reduce_reset, "
            f"reduce_update), got {len(members)} of them"
        )
    parts = ("body", "reduce_reset", "reduce_update")
    statements: list[Stmt | None] = []
    for part, member in zip(parts, members, strict=False):
        statement = Evaluate(member) if isinstance(member, PrimExpr) else member
        if not isinstance(statement, Stmt) and (statement is not None or part == "body"):
            raise CompileError(
                f"{name}: expected fcompute to return a statement or a call as its {part}, got "
                f"{type(member).__name__}"
            )
        statements.append(statement)
    body, init, update = (statements + [None] * 2)[:3]
    assert body is not None
    if (init is not None or update is not None) and not op.reduce_axis:
        raise CompileError(
            f"{name}: expected a body alone, since {op.name} is no reduction, got a reduce_reset "
            "or a reduce_update"
        )
    if init is not None and update is None:
        raise CompileError(f"{name}: expected a reduce_update next to the reduce_reset, got None")
    return body, init, update
