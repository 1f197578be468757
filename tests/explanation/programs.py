"""Programs that are explained: each is built once, for all who ask of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te
from minitvm.driver.program import CompiledProgram
from minitvm.tir.expr import const_int

ZNVER4 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"
HASWELL = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"
AARCH64 = "llvm -mtriple=aarch64-linux-gnu"


@cache
def product(
    m: Any,
    n: Any,
    k: int,
    target: str | None = None,
    dtypes: tuple[str, str, str] = ("float32", "float32", "float32"),
    *,
    transposed: bool = False,
    rectified: bool = False,
) -> tvm.runtime.Module:
    """A matrix product, with a transposed B or the larger of the result and zero, if asked for."""
    A = te.placeholder((m, k), dtypes[0], name="A")
    B = te.placeholder((n, k) if transposed else (k, n), dtypes[1], name="B")
    step = te.reduce_axis((0, k), name="k")

    def element(i: Any, j: Any) -> Any:
        factor = B[j, step] if transposed else B[step, j]
        return te.sum(A[i, step].astype(dtypes[2]) * factor.astype(dtypes[2]), axis=step)

    C = te.compute((m, n), element, name="C")
    if not rectified:
        return tvm.build([C], [A, B, C], target, name="product")
    D = te.compute((m, n), lambda i, j: te.max(C[i, j], 0), name="D")
    return tvm.build([D], [A, B, D], target, name="product")


@cache
def tiled_product(rows: int, columns: int, target: str) -> tvm.runtime.Module:
    """A product of 96 x 96 x 96, tiled by hand."""
    A, B = te.placeholder((96, 96), name="A"), te.placeholder((96, 96), name="B")
    k = te.reduce_axis((0, 96), name="k")
    C = te.compute((96, 96), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s: Any = te.create_schedule(C.op)
    sums = s.cache_write(C, "local")
    _, outer, i, j = s[C].tile(*s[C].op.axis, rows, columns)
    s[C].unroll(i)
    s[C].vectorize(j)
    s[sums].compute_at(s[C], outer)
    i, j = s[sums].op.axis
    s[sums].reorder(s[sums].op.reduce_axis[0], i, j)
    s[sums].unroll(i)
    s[sums].vectorize(j)
    return tvm.build(s, [A, B, C], target, name="tiled")


@cache
def softmax(rows: int, columns: int) -> tvm.runtime.Module:
    X = te.placeholder((rows, columns), name="X")
    k, m = te.reduce_axis((0, columns), name="k"), te.reduce_axis((0, columns), name="m")
    largest = te.compute((rows,), lambda i: te.max(X[i, k], axis=k), name="largest")
    powers = te.compute(X.shape, lambda i, j: te.exp(X[i, j] - largest[i]), name="powers")
    total = te.compute((rows,), lambda i: te.sum(powers[i, m], axis=m), name="total")
    Y = te.compute(X.shape, lambda i, j: powers[i, j] / total[i], name="Y")
    return tvm.build([Y], [X, Y], name="softmax")


@cache
def convolution(channels: int, features: int, groups: int = 1) -> tvm.runtime.Module:
    """3 x 3 windows of a padded image of 14 x 14."""
    inside = channels // groups
    X = te.placeholder((1, channels, 14, 14), name="X")
    W = te.placeholder((features, inside, 3, 3), name="W")
    c, y, x = (te.reduce_axis((0, extent)) for extent in (inside, 3, 3))
    each = features // groups
    padded = te.compute(
        (1, channels, 16, 16),
        lambda n, c, i, j: te.if_then_else(
            te.all(i >= 1, i < 15, j >= 1, j < 15), X[n, c, i - 1, j - 1], 0.0
        ),
        name="padded",
    )

    def element(n: Any, f: Any, i: Any, j: Any) -> Any:
        channel = c if groups == 1 else f // each * inside + c
        return te.sum(padded[n, channel, i + y, j + x] * W[f, c, y, x], axis=[c, y, x])

    Y = te.compute((1, features, 14, 14), element, name="Y")
    return tvm.build([Y], [X, W, Y], name="convolution")


def arrays(module: tvm.runtime.Module) -> list[np.ndarray[Any, Any]]:
    """Zeros for the arguments of a function whose shapes are constant."""
    program = module.entry_func.program
    assert isinstance(program, CompiledProgram)
    func = program.lowered[module.name]
    buffers = (func.buffer_map[param] for param in func.params)
    return [np.zeros([const_int(n) or 0 for n in b.shape], b.dtype.to_numpy()) for b in buffers]
