"""RMS normalisation: each row divided by the root of its mean square, times a weight.

python examples/operators/rms_norm.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Rows = Annotated[te.Tensor, "... n"]
Row = Annotated[te.Tensor, "n"]


@minitvm.jit
def rms_norm(x: Rows, w: Row, eps: float = 1e-6) -> Any:
    n = x.shape[-1]
    k = te.reduce_axis((0, n), name="k")
    squares = te.compute(x.shape[:-1], lambda *i: te.sum(x(*i, k) * x(*i, k), axis=k))
    return te.compute(x.shape, lambda *i: x(*i) * te.rsqrt(squares(*i[:-1]) / n + eps) * w[i[-1]])


@minitvm.jit
def rms_norm_gradient(x: Rows, w: Row, dy: Rows, eps: float = 1e-6) -> Any:
    dx, dw = te.gradient(rms_norm(x, w, eps), [x, w], dy)
    return dx, dw


def check_numpy() -> None:
    rng = np.random.default_rng(0)
    w = rng.random(96, dtype=np.float32)
    for shape in ((1, 96), (5, 96), (2, 32, 96)):  # the rank and the sizes are those of the call
        x = rng.standard_normal(shape, dtype=np.float32)
        mean = np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)
        np.testing.assert_allclose(rms_norm(x, w), x / np.sqrt(mean + 1e-6) * w, rtol=1e-5)


def microseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=5, repeat=10)) / 5 * 1e6


def check_torch() -> str:
    import torch

    m, n = 64, 768
    torch.manual_seed(0)
    x, dy = torch.randn(2, m, n)
    w = torch.rand(n)
    inputs = [x.requires_grad_(), w.requires_grad_()]
    expected = torch.nn.functional.rms_norm(x, (n,), w, 1e-6)
    gradients = torch.autograd.grad(expected, inputs, dy)

    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, w), expected)
        torch.testing.assert_close(rms_norm_gradient(x, w, dy), gradients, rtol=1e-5, atol=1e-4)
        ours = microseconds(lambda: rms_norm(x, w))
        eager = microseconds(lambda: torch.nn.functional.rms_norm(x, (n,), w, 1e-6))
    return f"equal, gradient too; {m} x {n}: {ours:.0f} us, eager {eager:.0f} us"


if __name__ == "__main__":
    check_numpy()
    compared = check_torch() if importlib.util.find_spec("torch") else "not installed, left out"
    print("rms_norm: equal to the formula; torch:", compared)
