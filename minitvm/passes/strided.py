"""The variant of a function that accepts arrays of any strides."""

from __future__ import annotations

from typing import cast

from minitvm.expr import Buffer, BufferRef, Call, Var
from minitvm.functor import replace_buffers, walk_once
from minitvm.runtime.dtype import INT64
from minitvm.stmt import PrimFunc, Stmt


def knows_layout(func: PrimFunc) -> bool:
    """Whether a function holds for compact arrays only: where the address of a parameter that is
    declared compact goes to C or LLVM, which see memory and not its strides; or where the
    attribute ``knows_layout`` says so."""
    compact = {b for b in func.buffer_map.values() if b.ndim and not b.strides}
    return bool(func.attrs.get("knows_layout")) or any(
        isinstance(node, Call)
        and node.op not in ("call_packed", "tvm_stack_make_array")
        and any(isinstance(arg, BufferRef) and arg.buffer in compact for arg in node.args)
        for node in walk_once(func.body)
    )


def accept_strides(func: PrimFunc) -> PrimFunc:
    """`func` with a variable for each stride of its compact tensor parameters.

    Before::

        def f(A: float32[n, m]): ...

    After::

        def f(A: float32[n, m, strides=(A_s0, A_s1)]): ...
    """
    replaced = {
        buffer: _strided(buffer)
        for buffer in func.buffer_map.values()
        if buffer.ndim and not buffer.strides
    }
    body = cast(Stmt, replace_buffers(func.body, replaced))
    buffers = {param: replaced.get(b, b) for param, b in func.buffer_map.items()}
    attrs = dict(func.attrs)
    if "outputs" in attrs:
        attrs["outputs"] = frozenset(replaced.get(b, b) for b in attrs["outputs"])
    return PrimFunc(func.params, body, buffers, func.name, attrs)


def _strided(buffer: Buffer) -> Buffer:
    strides = tuple(Var(f"{buffer.name}_s{dim}", INT64) for dim in range(buffer.ndim))
    return Buffer(
        buffer.data, buffer.shape, buffer.dtype, buffer.name, strides, buffer.elem_offset,
        buffer.scope, buffer.data_alignment, buffer.offset_factor, buffer.auto_broadcast,
    )  # fmt: skip
