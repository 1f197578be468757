"""Loop IR for tests, built by hand: functions, loops, stores and guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm.runtime.dtype import BOOL
from minitvm.tir import ir_builder
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Call, PrimExpr, Var, as_expr, cast
from minitvm.tir.stmt import BufferStore, For, ForKind, PrimFunc, Stmt, seq


def function(name: str, *params: Buffer | Var, body: Stmt | None = None) -> PrimFunc:
    """A function of tensors, which it takes by their data, and scalars."""
    made = tuple(each.data if isinstance(each, Buffer) else each for each in params)
    buffer_map = {each.data: each for each in params if isinstance(each, Buffer)}
    return PrimFunc(made, seq() if body is None else body, buffer_map, name)


def function_of(*params: Buffer | Var) -> Callable[..., PrimFunc]:
    """Makes functions ``f`` of these tensors and scalars, and more, if given, of their bodies."""
    return lambda body, *more: function("f", *params, *more, body=body)


def loop(var: Var, extent: Any, body: Stmt, kind: ForKind = ForKind.SERIAL, begin: Any = 0) -> For:
    """``for var in [begin, begin + extent)``."""
    return For(var, cast(var.dtype, begin), cast(var.dtype, extent), kind, body)


def store(buffer: Buffer, value: Any, *indices: Any) -> BufferStore:
    """``buffer[indices] = value``, of any number of lanes."""
    return BufferStore(buffer, value, indices)


def likely(condition: PrimExpr) -> PrimExpr:
    """The guard of an imperfect split."""
    return Call(BOOL, "likely", (condition,))


def lazily(condition: Any, value: Any, other: Any = 0.0) -> PrimExpr:
    """A choice that evaluates what is chosen alone."""
    chosen = as_expr(value)
    return Call(chosen.dtype, "if_then_else", (as_expr(condition), chosen, as_expr(other)))


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
