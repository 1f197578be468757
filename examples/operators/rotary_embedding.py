"""Rotary position embedding: the two halves of each head turn by angles that grow with position.

python examples/operators/rotary_embedding.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Heads = Annotated[te.Tensor, "... t 2*h"]
Table = Annotated[te.Tensor, "t h"]


@minitvm.jit
def rotary_embedding(x: Heads, cos: Table, sin: Table) -> Any:
    h = cos.shape[1]

    def turned(*i: Any) -> Any:
        *row, t, j = i
        first = x(*i) * cos[t, j] - x(*row, t, j + h) * sin[t, j]
        second = x(*i) * cos[t, j - h] + x(*row, t, j - h) * sin[t, j - h]
        return te.if_then_else(j < h, first, second)

    return te.compute(x.shape, turned)


@minitvm.jit
def rotary_embedding_gradient(cos: Table, sin: Table, dy: Heads) -> Any:
    """`x` itself isn't read: a placeholder of its shape is what the gradient is taken by."""
    x = te.placeholder(dy.shape, dy.dtype)
    (dx,) = te.gradient(rotary_embedding(x, cos, sin), [x], dy)
    return dx


def tables(t: int, h: int) -> tuple[Any, Any]:
    angles = np.outer(np.arange(t), 10000.0 ** (-np.arange(h) / h))
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")


def check_numpy() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 32), dtype=np.float32)
    cos, sin = tables(17, 16)
    turned = (x[..., :16] + 1j * x[..., 16:]) * (cos + 1j * sin)
    expected = np.concatenate((turned.real, turned.imag), axis=-1)
    np.testing.assert_allclose(rotary_embedding(x, cos, sin), expected, rtol=1e-5, atol=1e-6)


def microseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=5, repeat=10)) / 5 * 1e6


def check_torch() -> str:
    import torch

    def eager(x: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    torch.manual_seed(0)
    x, dy = torch.randn(2, 2, 8, 128, 64)
    cos, sin = map(torch.from_numpy, tables(128, 32))
    expected = eager(x.requires_grad_())
    (dx,) = torch.autograd.grad(expected, [x], dy)

    with torch.no_grad():
        torch.testing.assert_close(rotary_embedding(x, cos, sin), expected)
        torch.testing.assert_close(rotary_embedding_gradient(cos, sin, dy), dx)
        ours = microseconds(lambda: rotary_embedding(x, cos, sin))
        theirs = microseconds(lambda: eager(x))
    return f"equal, gradient too; 2 x 8 x 128 x 64: {ours:.0f} us, eager {theirs:.0f} us"


if __name__ == "__main__":
    check_numpy()
    compared = check_torch() if importlib.util.find_spec("torch") else "not installed, left out"
    print("rotary_embedding: equal to the formula; torch:", compared)
