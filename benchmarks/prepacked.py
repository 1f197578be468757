"""Linear layers whose weights are packed once, a row for each output as layers keep them, against
what torch makes of weights that are packed once, and of those that aren't."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from benchmarks import contraction, peers
from benchmarks.contraction import Array, Call, Problem

Shapes = tuple[tuple[int, int, int], ...]  # m, n, k; tuned on, then held out
_LINEAR: tuple[Shapes, Shapes] = (
    tuple(
        (rows, n, k)
        for rows in (1, 4, 16, 128)
        for n, k in ((768, 768), (3072, 768), (768, 3072), (4096, 1024))
    ),
    tuple((rows, n, k) for rows in (1, 2, 24, 77) for n, k in ((640, 1280), (5120, 1280))),
)
_SUMS = {"float32": "float32", "bfloat16": "float32", "uint8": "int32"}
_EPILOGUE = 4  # roundings of the scales


def problems() -> Iterator[Problem]:
    """Each dtype of the activations at its shapes; with uint8, weights are int8."""
    for held_out in (False, True):
        for dtype in ("float32", "bfloat16", "uint8"):
            if dtype == "bfloat16" and peers.peer("torch") is None:
                continue  # whose tensors are the arrays
            for shape in _LINEAR[held_out]:
                yield _linear(dtype, *shape, held_out=held_out)


def _linear(dtype: str, m: int, n: int, k: int, *, held_out: bool) -> Problem:
    """``x @ weights.T``; of integers, times a scale for each output."""
    is_quantised = dtype == "uint8"
    weights = "int8" if is_quantised else dtype
    result = "bfloat16" if dtype == "bfloat16" else "float32"

    def program(te: Any) -> list[Any]:
        X = te.placeholder((m, k), dtype, name="X")
        W = te.placeholder((n, k), weights, name="W")
        r, summed = te.reduce_axis((0, k), name="k"), _SUMS[dtype]

        def element(i: Any, j: Any) -> Any:
            return te.sum(X[i, r].astype(summed) * W[j, r].astype(summed), axis=r)

        C = te.compute((m, n), element, name="C")
        if not is_quantised:
            out = te.compute((m, n), lambda i, j: C[i, j].astype(result), name="D")
            return [X, W, C if result == summed else out]
        scale = te.placeholder((n,), "float32", name="scale")
        Y = te.compute((m, n), lambda i, j: C[i, j].astype("float32") * scale[j], name="Y")
        return [X, W, scale, Y]

    def arrays() -> list[Any]:
        x, w, y = ((m, k), dtype), ((n, k), weights), ((m, n), result)
        if dtype == "bfloat16":
            torch = peers.peer("torch")
            made = [contraction.filled(shape, "float32", 0) for shape, _ in (x, w, y)]
            return [torch.from_numpy(each).to(torch.bfloat16) for each in made]
        scales = [contraction.filled((n,), "float32", 2)] if is_quantised else []
        inputs = [contraction.filled(*x, 0), contraction.filled(*w, 1)]
        return [*inputs, *scales, contraction.aligned(*y)]

    def exact(x: Array, w: Array, *scales: Array) -> tuple[Array, Array]:
        scale = scales[0] if scales else np.ones(1)
        if is_quantised:
            found = (x @ w.T) * scale
            return found, np.abs(found)
        return x @ w.T, np.abs(x) @ np.abs(w).T

    return Problem(
        f"prepacked/{'int8' if is_quantised else dtype}",
        f"{m} x {n} x {k}",
        2 * m * n * k,
        program,
        arrays,
        exact,
        _EPILOGUE if is_quantised else k,
        partial(_quantised if is_quantised else _floats, m),
        rounding=2.0**-8 * 1.01 if dtype == "bfloat16" else 0.0,
        held_out=held_out,
        prepacked=1,
    )


def _floats(rows: int, inputs: Sequence[Any]) -> dict[str, Call]:
    """As it is; packed by oneDNN; and, of float32, by MKL."""
    torch = peers.peer("torch")
    if torch is None:
        return {}
    x, w = contraction.tensors(inputs)
    found: dict[str, Call] = {
        "torch": partial(torch.mm, x, w.T, out=torch.empty(rows, len(w), dtype=x.dtype)),
    }
    with suppress(RuntimeError):  # of bfloat16, on a processor that has no instructions for it
        packed = torch.ops.mkldnn._reorder_linear_weight(w, rows)
        linear = torch.ops.mkldnn._linear_pointwise
        found["torch oneDNN packed"] = partial(linear, x, packed, None, "none", [], "")
    if torch.backends.mkl.is_available() and x.dtype == torch.float32:
        packed_by_mkl = torch.ops.mkl._mkl_reorder_linear_weight(w, rows)
        mkl = torch.ops.mkl._mkl_linear
        found["torch MKL packed"] = partial(mkl, x, packed_by_mkl, w, None, rows)
    return found


def _quantised(rows: int, inputs: Sequence[Any]) -> dict[str, Call]:
    """The quantised linear layer of oneDNN, which gives float32."""
    torch = peers.peer("torch")
    if torch is None:
        return {}
    x, w, scale = contraction.tensors(inputs)
    onednn = torch.ops.onednn
    packed = onednn.qlinear_prepack(w, [rows, w.shape[1]])
    zeros = torch.zeros(len(w), dtype=torch.int32)
    return {
        "torch quantised": lambda: onednn.qlinear_pointwise(
            x, 1.0, 0, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
    }
