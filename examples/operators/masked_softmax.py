"""Softmax over the elements of a row that a mask keeps; the others get 0.

python examples/operators/masked_softmax.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Rows = Annotated[te.Tensor, "... n"]
Mask = Annotated[te.Tensor, "bool[... n]"]


@minitvm.jit
def masked_softmax(x: Rows, mask: Mask) -> Any:
    *lead, n = x.shape
    k, q = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="q")
    lowest = -te.infinity(x.dtype)
    kept = te.compute(x.shape, lambda *i: te.if_then_else(mask(*i), x(*i), lowest))
    top = te.compute(lead, lambda *i: te.max(kept(*i, k), axis=k))
    power = te.compute(
        x.shape, lambda *i: te.if_then_else(mask(*i), te.exp(x(*i) - top(*i[:-1])), 0.0)
    )
    total = te.compute(lead, lambda *i: te.sum(power(*i, q), axis=q))
    return te.compute(x.shape, lambda *i: power(*i) / total(*i[:-1]))


@minitvm.jit
def masked_softmax_gradient(x: Rows, mask: Mask, dy: Rows) -> Any:
    (dx,) = te.gradient(masked_softmax(x, mask), [x], dy)
    return dx


def check_numpy() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 10, 45), dtype=np.float32)
    mask = rng.random(x.shape) < 0.7
    power = np.where(mask, np.exp(x, dtype=np.float64), 0)
    expected = power / power.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(masked_softmax(x, mask), expected, rtol=1e-5)


def microseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=5, repeat=10)) / 5 * 1e6


def check_torch() -> str:
    import torch

    def eager(x: Any, mask: Any) -> Any:
        return torch.softmax(x.masked_fill(~mask, -torch.inf), dim=-1)

    torch.manual_seed(0)
    x, dy = torch.randn(2, 8, 128, 128)
    mask = torch.rand(x.shape) < 0.7
    expected = eager(x.requires_grad_(), mask)
    (dx,) = torch.autograd.grad(expected, [x], dy)

    with torch.no_grad():
        torch.testing.assert_close(masked_softmax(x, mask), expected)
        torch.testing.assert_close(masked_softmax_gradient(x, mask, dy), dx)
        ours = microseconds(lambda: masked_softmax(x, mask))
        theirs = microseconds(lambda: eager(x, mask))
    return f"equal, gradient too; 8 x 128 x 128: {ours:.0f} us, eager {theirs:.0f} us"


if __name__ == "__main__":
    check_numpy()
    compared = check_torch() if importlib.util.find_spec("torch") else "not installed, left out"
    print("masked_softmax: equal to the formula; torch:", compared)
