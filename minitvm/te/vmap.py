"""vmap: a program for one element of a batch becomes the program for the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.te.operation import placeholder
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.schedules.rewrite_operations import reading_elsewhere
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor, data_axes
from minitvm.tir.expr import PrimExpr, described


def vmap(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], extent: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Adds one dimension in front of each input and of each stage that needs one of them::

        C[i] = sum(A[i, k] * B[k])    ->    C[b, i] = sum(A[b, i, k] * B[b, k])

    Other placeholders are shared by the elements of the batch.

    Parameters
    ----------
    outputs
        Tensors that ``compute`` makes.
    inputs
        The placeholders that get the dimension.
    extent
        The extent of the dimension: a number or a variable.

    Returns
    -------
    list of Tensor, list of Tensor
        The outputs and the inputs of the new program.

    Raises
    ------
    CompileError
        When another operation than ``compute`` needs an input (``extern``, ``scan``, ``hybrid``),
        or an output doesn't come from ``compute``.

    >>> from minitvm import te
    >>> X = te.placeholder((4,), name="X")
    >>> (y,), (x,) = vmap([te.compute((4,), lambda i: X[i] + 1.0, name="Y")], [X], te.var("n"))
    >>> y, x
    (Tensor(shape=[n, 4], op.name=Y), Tensor(shape=[n, 4], op.name=X))
    """
    others: dict[Tensor, Tensor] = {}
    _check_tensors("outputs", outputs)
    _check_tensors("inputs", inputs)
    for each in inputs:
        if not isinstance(each.op, PlaceholderOp):
            raise CompileError(f"vmap: {each.name}: expected a placeholder, got a stage")
        others[each] = placeholder((extent, *each.shape), each.dtype, each.op.name)
    for op in in_order([each.op for each in outputs]):
        if isinstance(op, ComputeOp):
            made = _batched(op, others, extent)
            others |= dict(zip(op.outputs, made.outputs, strict=True))
        elif any(tensor in others for tensor in op.input_tensors):
            raise CompileError(
                f"vmap: {op.name}: expected stages of te.compute, got {type(op).__name__}: write "
                "the dimension of the batch yourself"
            )
    for each in outputs:
        if not isinstance(each.op, ComputeOp):
            raise CompileError(f"vmap: {each.name}: expected an output of te.compute")
    return [others[each] for each in outputs], [others[each] for each in inputs]


def _check_tensors(what: str, given: object) -> None:
    members = given if isinstance(given, tuple | list) else [None]
    if not members or not all(isinstance(each, Tensor) for each in members):
        raise CompileError(f"vmap: {what}: expected a list of tensors, got {described(given)}")


def _batched(op: ComputeOp, others: dict[Tensor, Tensor], extent: Any) -> Operation:
    """A stage with the dimension of the batch in front."""
    (axis,) = data_axes(["b"], [_as_extent(extent)])

    def place(tensor: Tensor, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        return (axis.var, *indices)

    return replace(reading_elsewhere(op, others, place), axis=(axis, *op.axis))


def _as_extent(extent: Any) -> PrimExpr:
    return placeholder((extent,), name="extent").shape[0]
