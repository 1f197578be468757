"""``te.jvp``: forward-mode differentiation, by reverse mode twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitvm.runtime.errors import CompileError
from minitvm.te.autodiff.gradient import gradient, is_same_shape, tensors_of_floats
from minitvm.te.operation import placeholder
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.tensor import Tensor, shape_text


def jvp(outputs: Any, inputs: Any, tangents: Any) -> list[Tensor]:
    """The tangents of tensors: the rates at which a program's outputs change while each of `inputs`
    changes at the rate of its tangent. They are the product of the Jacobian with the inputs'
    tangents; no Jacobian is computed.

    Parameters
    ----------
    outputs : Tensor, or a list of them
        The results, of floating-point dtypes.
    inputs : Tensor, or a list of them
        The tensors that change, placeholders or computed ones, of floating-point dtypes.
    tangents : Tensor, or a list with one for each input
        The tangents of the inputs, each of the shape and dtype of its input.

    Returns
    -------
    list of Tensor
        The tangent of each of `outputs`, of its shape and dtype.

    Raises
    ------
    CompileError
        When an argument is something else; when a result depends on an input through an operation
        without a derivative.

    Notes
    -----
    The adjoints of the inputs are linear in the adjoints of the outputs. So differentiating them by
    the outputs' adjoints, with the inputs' tangents as heads, gives the outputs' tangents (J.
    Townsend, *A new trick for calculating Jacobian vector products*, 2017).

    >>> from minitvm import te
    >>> X, dX = te.placeholder((4,), name="X"), te.placeholder((4,), name="dX")
    >>> Y = te.compute((4,), lambda i: X[i] * X[i], name="Y")
    >>> (dY,) = jvp(Y, X, dX)
    >>> dY.op.body[0]
    dX[i0] * 2.0 * X[i0]
    """
    results = tensors_of_floats("jvp: outputs", outputs)
    moved = tensors_of_floats("jvp: inputs", inputs)
    given = tensors_of_floats("jvp: tangents", tangents)
    if len(given) != len(moved):
        raise CompileError(
            f"jvp: tangents: expected one for each of {len(moved)} inputs, got {len(given)}"
        )
    for i, (tangent, each) in enumerate(zip(given, moved, strict=True)):
        if tangent.dtype is not each.dtype or not is_same_shape(tangent.shape, each.shape):
            raise CompileError(
                f"jvp: tangents[{i}]: expected the shape and dtype of {each.name}, "
                f"{shape_text(each.shape)} and {each.dtype}, got {shape_text(tangent.shape)} and "
                f"{tangent.dtype}"
            )
    heads = [placeholder(each.shape, each.dtype, f"{each.op.name}_head") for each in results]
    return transposed(gradient(results, moved, heads), heads, given)


def transposed(
    adjoints: Sequence[Tensor], heads: Sequence[Tensor], tangents: Sequence[Tensor]
) -> list[Tensor]:
    """The tangents of the outputs. `heads` are the adjoints of the outputs, `adjoints` the adjoints
    of the inputs, which are linear in `heads`, and `tangents` the tangents of the inputs.

    Raises
    ------
    CompileError
        When the adjoints aren't linear in `heads`.
    """
    made = gradient(adjoints, heads, tangents)
    read = {op.outputs[0] for op in in_order([each.op for each in made])}
    for head in heads:
        if head in read:
            raise CompileError(
                f"jvp: expected gradients that are linear in {head.name}, the gradient of an "
                "output, found gradients that aren't, so no tangent follows"
            )
    return made
