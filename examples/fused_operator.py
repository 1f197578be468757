"""One operator of a transformer block in one function: bias, GELU, residual, RMS normalisation.

A framework runs it as a chain of calls, each with a result of its own; here the chain is one call
and one result, on torch's tensors where torch is installed, and else on numpy's arrays.

python examples/fused_operator.py
"""

import importlib.util
import math
from typing import Any

import numpy as np

import minitvm as tvm
from minitvm import te

WIDTH = 96
EPSILON = 1e-6


def bias_gelu_residual_norm() -> Any:
    """``norm(gelu(x + bias) + residual) * weight``, over any number of rows."""
    rows = te.var("rows")
    X = te.placeholder((rows, WIDTH), name="X")
    R = te.placeholder((rows, WIDTH), name="R")
    bias = te.placeholder((WIDTH,), name="bias")
    weight = te.placeholder((WIDTH,), name="weight")

    biased = te.compute((rows, WIDTH), lambda i, j: X[i, j] + bias[j], name="biased")
    hidden = te.compute(
        (rows, WIDTH),
        lambda i, j: biased[i, j] * 0.5 * (1.0 + te.erf(biased[i, j] / math.sqrt(2.0))) + R[i, j],
        name="hidden",
    )
    k = te.reduce_axis((0, WIDTH), name="k")
    squares = te.compute(
        (rows,), lambda i: te.sum(hidden[i, k] * hidden[i, k], axis=k), name="squares"
    )
    Y = te.compute(
        (rows, WIDTH),
        lambda i, j: hidden[i, j] * te.rsqrt(squares[i] / WIDTH + EPSILON) * weight[j],
        name="Y",
    )
    return tvm.build(te.create_schedule(Y.op), [X, R, bias, weight, Y], name="fused")


def with_torch(fused: Any) -> None:
    """The same from torch, operator by operator; no copy and no conversion on the way in."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for rows in (1, 5, 64):
        x, residual = torch.randn(2, rows, WIDTH, generator=generator)
        bias, weight = torch.randn(2, WIDTH, generator=generator)
        y = torch.empty(rows, WIDTH)
        fused(x, residual, bias, weight, y)

        hidden = torch.nn.functional.gelu(x + bias) + residual
        norm = torch.rsqrt(hidden.square().mean(dim=1, keepdim=True) + EPSILON)
        torch.testing.assert_close(y, hidden * norm * weight, rtol=1e-5, atol=1e-6)
        print(f"torch, {rows} rows: equal to gelu, add, rsqrt and mul one by one")


def with_numpy(fused: Any) -> None:
    """The same from numpy; GELU's error function comes from the standard library."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    rng = np.random.default_rng(0)
    for rows in (1, 5, 64):
        x, residual = rng.standard_normal((2, rows, WIDTH), dtype=np.float32)
        bias, weight = rng.standard_normal((2, WIDTH), dtype=np.float32)
        y = np.empty((rows, WIDTH), dtype=np.float32)
        fused(x, residual, bias, weight, y)

        biased = x.astype(np.float64) + bias
        hidden = biased * 0.5 * (1 + erf(biased / math.sqrt(2))) + residual
        norm = 1 / np.sqrt(np.square(hidden).mean(axis=1, keepdims=True) + EPSILON)
        np.testing.assert_allclose(y, hidden * norm * weight, rtol=1e-5, atol=1e-6)
        print(f"numpy, {rows} rows: equal to the formula in float64")


operator = bias_gelu_residual_norm()
with_numpy(operator)
if importlib.util.find_spec("torch"):
    with_torch(operator)
else:
    print("torch: not installed, left out")
