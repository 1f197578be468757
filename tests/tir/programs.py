"""Loop IR for the tests of this folder, built by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm.runtime.dtype import HANDLE
from minitvm.tir import ir_builder
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Var, const
from minitvm.tir.stmt import For, ForKind, PrimFunc, Stmt, seq


def function(name: str, *params: Buffer | Var, body: Stmt | None = None) -> PrimFunc:
    """A function of tensors and scalars."""
    made: list[Var] = []
    buffer_map: dict[Var, Buffer] = {}
    for param in params:
        if isinstance(param, Buffer):
            buffer_map[handle := Var(f"{param.name}_handle", HANDLE)] = param
            param = handle
        made.append(param)
    return PrimFunc(tuple(made), seq() if body is None else body, buffer_map, name)


def loop(var: Var, extent: Any, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    """``for var in [0, extent)``."""
    return For(var, const(0, var.dtype), const(extent, var.dtype), kind, body)


def built(write: Callable[..., None], *buffers: Buffer) -> PrimFunc:
    """The function that `write` writes, given a builder and the buffers to index."""
    ib = ir_builder.create()
    write(ib, *map(ib.buffer_ptr, buffers))
    return function(write.__name__, *buffers, body=ib.get())


def matmul(n: int = 56) -> PrimFunc:
    """``Z = X @ Y`` on square float32 matrices."""

    def fmm(ib: Any, x: Any, y: Any, z: Any) -> None:
        with ib.for_range(0, n, "i") as i, ib.for_range(0, n, "j") as j:
            z[i, j] = 0.0
            with ib.for_range(0, n, "k") as k:
                z[i, j] = z[i, j] + x[i, k] * y[k, j]

    return built(fmm, *(decl_buffer((n, n), "float32", name) for name in "XYZ"))
