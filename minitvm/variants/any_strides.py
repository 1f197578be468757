"""The variant of a function that accepts arrays of any strides."""

from __future__ import annotations

from collections.abc import Mapping

from minitvm.arith.effects import written_parameters
from minitvm.runtime.dtype import HANDLE, INT64
from minitvm.tir import expr as e
from minitvm.tir.buffer import with_layout
from minitvm.tir.expr import Buffer, BufferLoad, BufferRef, Call, Var
from minitvm.tir.functor import replace_buffers, walk_once
from minitvm.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, Stmt, seq, with_buffers
from minitvm.transform.widen_indices import widened


def accept_strides(func: PrimFunc) -> PrimFunc:
    """`func` with a variable for each stride of its compact tensor parameters.

    Before::

        def f(A: float32[n, m]): ...

    After::

        def f(A: float32[n, m, strides=(A_s0, A_s1)]): ...

    A function may depend on compact arrays: it passes their addresses to C or LLVM, which don't
    know the strides. Such a function works on compact copies::

        def f(A: float32[n, m, strides=(A_s0, A_s1)]):
            A_compact = allocate(float32[n, m])
            for i0 in range(n): for i1 in range(m): A_compact[i0, i1] = A[i0, i1]
            ...
            for i0 in range(n): for i1 in range(m): A[i0, i1] = A_compact[i0, i1]  # if written
    """
    on_copies = _knows_layout(func)
    replaced = {
        buffer: _strided(buffer)
        for buffer in func.buffer_map.values()
        if is_free(buffer) and not (on_copies and buffer.elem_offset is not None)
    }
    if on_copies:
        body = _on_copies(func, replaced)
    else:
        body = replace_buffers(func.body, replaced)
    return with_buffers(func, body, replaced)


def is_free(buffer: Buffer) -> bool:
    """Whether a parameter's array may have another layout in a variant, since its declaration
    requires none."""
    return bool(buffer.ndim) and not buffer.strides and not buffer.layout


def _knows_layout(func: PrimFunc) -> bool:
    """Whether a function is right only for compact arrays: it passes the address of a parameter
    that is declared compact to C or LLVM, or has the attribute ``knows_layout``."""
    compact = {b for b in func.buffer_map.values() if is_free(b)}
    return func.attrs.knows_layout or any(
        isinstance(node, Call)
        and node.op not in ("call_packed", "tvm_stack_make_array")
        and any(isinstance(arg, BufferRef) and arg.buffer in compact for arg in node.args)
        for node in walk_once(func.body)
    )


def _strided(buffer: Buffer) -> Buffer:
    strides = tuple(Var(f"{buffer.name}_s{dim}", INT64) for dim in range(buffer.ndim))
    return with_layout(buffer, buffer.shape, strides)


def _on_copies(func: PrimFunc, strided: Mapping[Buffer, Buffer]) -> Stmt:
    """The body of a function on compact copies of parameters, whose own arrays are `strided`."""
    copies = {
        buffer: Buffer(
            Var(f"{buffer.name}_compact", HANDLE), buffer.shape, buffer.dtype,
            f"{buffer.name}_compact",
        )
        for buffer in strided
    }  # fmt: skip
    written = written_parameters(func)
    body = seq(
        *(_copied(strided[buffer], copy) for buffer, copy in copies.items()),
        replace_buffers(func.body, copies),
        *(_copied(copy, strided[b]) for b, copy in copies.items() if b in written),
    )
    for copy in copies.values():
        body = Allocate(copy, body)
    return body


def _copied(source: Buffer, target: Buffer) -> Stmt:
    """A loop nest that copies all elements."""
    indices = tuple(Var(f"i{dim}", INT64) for dim in range(source.ndim))
    body: Stmt = BufferStore(target, BufferLoad(source, indices), indices)
    for index, extent in reversed(list(zip(indices, source.shape, strict=True))):
        body = For(index, e.const(0, INT64), e.cast(INT64, widened(extent)), ForKind.SERIAL, body)
    return body
