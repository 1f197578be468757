"""Scaled dot-product attention: over all positions, or over those up to each position (causal).

python examples/operators/attention.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Queries = Annotated[te.Tensor, "... t d"]
Keys = Annotated[te.Tensor, "... s d"]
Values = Annotated[te.Tensor, "... s e"]
Outputs = Annotated[te.Tensor, "... t e"]


@minitvm.jit(static="causal")
def attention(q: Queries, k: Keys, v: Values, causal: bool = False) -> Any:
    *lead, t, d = q.shape
    s, e = v.shape[-2:]
    a, b, c, z = (
        te.reduce_axis((0, n), name) for n, name in ((d, "a"), (s, "b"), (s, "c"), (s, "z"))
    )
    product = te.compute(
        (*lead, t, s), lambda *i: te.sum(q(*i[:-1], a) * k(*i[:-2], i[-1], a), axis=a)
    )
    scale = te.rsqrt(te.cast(q.dtype, d))

    def seen(i: Any, key: Any) -> Any:
        return key <= i[-1] if causal else True

    score = te.compute(product.shape, lambda *i: product(*i) * scale)
    top = te.compute((*lead, t), lambda *i: te.max(score(*i, b), axis=b, where=seen(i, b)))
    power = te.compute(score.shape, lambda *i: te.exp(score(*i) - top(*i[:-1])))
    total = te.compute((*lead, t), lambda *i: te.sum(power(*i, c), axis=c, where=seen(i, c)))

    def mix(*i: Any) -> Any:
        *row, j = i
        return te.sum(power(*row, z) * v(*row[:-1], z, j), axis=z, where=seen(row, z))

    mixed = te.compute((*lead, t, e), mix)
    return te.compute(mixed.shape, lambda *i: mixed(*i) / total(*i[:-1]))


@minitvm.jit(static="causal")
def attention_gradient(q: Queries, k: Keys, v: Values, dy: Outputs, causal: bool = False) -> Any:
    dq, dk, dv = te.gradient(attention(q, k, v, causal), [q, k, v], dy)
    return dq, dk, dv


def check_numpy() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 3, 20, 16), dtype=np.float32)
    v = rng.standard_normal((3, 20, 8), dtype=np.float32)
    score = np.matmul(q, k.mT, dtype=np.float64) / 4
    for causal in (False, True):
        power = np.exp(np.where(np.tri(20) if causal else True, score, -np.inf))
        expected = power / power.sum(axis=-1, keepdims=True) @ v
        np.testing.assert_allclose(attention(q, k, v, causal), expected, rtol=1e-5, atol=1e-5)


def microseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=5, repeat=10)) / 5 * 1e6


def check_torch() -> str:
    import torch

    eager = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(0)
    inputs = torch.randn(3, 2, 4, 128, 64).requires_grad_().unbind()
    dy = torch.randn(2, 4, 128, 64)
    expected = eager(*inputs, is_causal=True)
    gradients = torch.autograd.grad(expected, inputs, dy)

    with torch.no_grad():
        y, adjoints = attention(*inputs, causal=True), attention_gradient(*inputs, dy, causal=True)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(adjoints, gradients, rtol=1e-5, atol=1e-4)
        ours = microseconds(lambda: attention(*inputs, causal=True))
        theirs = microseconds(lambda: eager(*inputs, is_causal=True))
    return f"equal, gradient too; 2 x 4 x 128 x 64, causal: {ours:.0f} us, eager {theirs:.0f} us"


if __name__ == "__main__":
    check_numpy()
    compared = check_torch() if importlib.util.find_spec("torch") else "not installed, left out"
    print("attention: equal to the formula; torch:", compared)
