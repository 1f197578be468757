"""Classic ``te.create_prim_func``: the loops of an expression as a function, without a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitvm.lowering.lower import lower
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.schedule import create_schedule, is_input
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import Var, described
from minitvm.tir.stmt import PrimFunc


def create_prim_func(ops: Sequence[Any], index_dtype_override: str | None = None) -> PrimFunc:
    """The plain loops of an expression as a function named ``main``.

    ``build`` takes the function, and compiles its loops as they stand. Given the tensors
    themselves, it would schedule them first.

    Parameters
    ----------
    ops
        The parameters, in order: placeholders, tensors that are computed from them, and variables
        for scalars.
    index_dtype_override
        There for classic programs; must be None: indices have the dtype of the extents.

    Raises
    ------
    CompileError
        When a parameter is something else, or none is computed.

    >>> from minitvm import te
    >>> A = te.placeholder((8,), name="A")
    >>> B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
    >>> create_prim_func([A, B])
    def main(A: float32[8], B: float32[8]):
        for i in range(8):
            B[i] = A[i] + 1.0
    """
    if index_dtype_override is not None:
        raise CompileError(
            "create_prim_func: expected no index_dtype_override, since indices have the dtype of "
            f"the extents, got {index_dtype_override!r}: declare variables of it, te.var('n', "
            "'int64')"
        )
    if not isinstance(ops, list | tuple):
        raise CompileError(
            f"create_prim_func: expected a list of tensors, got {described(ops)}: pass [A, B]"
        )
    for position, each in enumerate(ops):
        if not isinstance(each, Tensor | Var):
            raise CompileError(
                f"create_prim_func: argument {position}: expected a tensor or a te.var, got "
                f"{described(each)}"
            )
    made = [each.op for each in ops if isinstance(each, Tensor) and not is_input(each.op)]
    if not made:
        raise CompileError(
            "create_prim_func: expected a tensor that is computed, got inputs alone: add the output"
        )
    return lower(create_schedule(list(dict.fromkeys(made))), list(ops), name="main")["main"]
