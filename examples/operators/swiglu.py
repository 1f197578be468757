"""SwiGLU: the elementwise product of two linear layers, one of them through SiLU.

python examples/operators/swiglu.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Rows = Annotated[te.Tensor, "m k"]
Weights = Annotated[te.Tensor, "n k"]
Outputs = Annotated[te.Tensor, "m n"]


def linear(x: te.Tensor, w: te.Tensor) -> Any:
    k = te.reduce_axis((0, x.shape[1]), name="k")
    shape = (x.shape[0], w.shape[0])
    return te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k))


def gated(g: te.Tensor, u: te.Tensor) -> Any:
    return te.compute(g.shape, lambda i, j: g[i, j] * te.sigmoid(g[i, j]) * u[i, j])


@minitvm.jit
def swiglu(x: Rows, gate: Weights, up: Weights) -> Any:
    return gated(linear(x, gate), linear(x, up))


@minitvm.jit
def swiglu_gradient(x: Rows, gate: Weights, up: Weights, dy: Outputs) -> Any:
    dx, dgate, dup = te.gradient(swiglu(x, gate, up), [x, gate, up], dy)
    return dx, dgate, dup


@minitvm.jit
def swiglu_recorded(x: Rows, gate: Weights, up: Weights) -> Any:
    """A forward run that also returns the sums of both layers, for a backward run."""
    g, u = linear(x, gate), linear(x, up)
    return gated(g, u), g, u


@minitvm.jit
def swiglu_backward(
    x: Rows, gate: Weights, up: Weights, g: Outputs, u: Outputs, dy: Outputs
) -> Any:
    """The gradients from recorded sums: four products, where `swiglu_gradient` computes six."""
    dg, du = te.gradient(gated(g, u), [g, u], dy)
    layers = [linear(x, gate), linear(x, up)]
    dx, dgate, dup = te.gradient(layers, [x, gate, up], [dg, du])
    return dx, dgate, dup


def check_numpy() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((33, 64), dtype=np.float32)
    gate, up = rng.standard_normal((2, 50, 64), dtype=np.float32) / 8
    g, u = (np.matmul(x, w.T, dtype=np.float64) for w in (gate, up))
    np.testing.assert_allclose(swiglu(x, gate, up), g / (1 + np.exp(-g)) * u, rtol=1e-5, atol=1e-5)


def microseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=5, repeat=10)) / 5 * 1e6


def check_torch() -> str:
    import torch

    def eager(x: Any, gate: Any, up: Any) -> Any:
        linear = torch.nn.functional.linear
        return torch.nn.functional.silu(linear(x, gate)) * linear(x, up)

    m, k, n = 64, 128, 256
    torch.manual_seed(0)
    x, dy = torch.randn(m, k), torch.randn(m, n)
    gate, up = torch.randn(2, n, k) / k**0.5
    inputs = [each.requires_grad_() for each in (x, gate, up)]
    expected = eager(*inputs)
    gradients = torch.autograd.grad(expected, inputs, dy)

    with torch.no_grad():
        y, adjoints = swiglu(*inputs), swiglu_gradient(*inputs, dy)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(adjoints, gradients, rtol=1e-5, atol=1e-4)
        _, *sums = swiglu_recorded(*inputs)
        adjoints = swiglu_backward(*inputs, *sums, dy)
        torch.testing.assert_close(adjoints, gradients, rtol=1e-5, atol=1e-4)
        ours = microseconds(lambda: swiglu(*inputs))
        theirs = microseconds(lambda: eager(*inputs))
    return f"equal, gradient too; {m} x {k} x {n}: {ours:.0f} us, eager {theirs:.0f} us"


if __name__ == "__main__":
    check_numpy()
    compared = check_torch() if importlib.util.find_spec("torch") else "not installed, left out"
    print("swiglu: equal to the formula; torch:", compared)
