"""A linear layer with weights of int8, on rows that are quantised to int8 in the call.

python examples/operators/int8_linear.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Rows = Annotated[te.Tensor, "float32[m k]"]
Weights = Annotated[te.Tensor, "int8[n k]"]
Row = Annotated[te.Tensor, "float32[n]"]


@minitvm.jit
def int8_linear(x: Rows, w: Weights, scale: Row, bias: Row) -> Any:
    """`x @ (w * scale).T + bias`, where a row of `x` is 127 steps to its largest element."""
    (m, n), depth = (x.shape[0], w.shape[0]), x.shape[1]
    p, k = te.reduce_axis((0, depth), name="p"), te.reduce_axis((0, depth), name="k")
    largest = te.compute((m,), lambda i: te.max(te.abs(x[i, p]), axis=p))
    step = te.compute((m,), lambda i: te.max(largest[i], 1e-30) / 127.0)
    q = te.compute(x.shape, lambda i, j: te.nearbyint(x[i, j] / step[i]).astype("int8"))
    product = te.compute(
        (m, n), lambda i, j: te.sum(q[i, k].astype("int32") * w[j, k].astype("int32"), axis=k)
    )
    return te.compute(
        (m, n), lambda i, j: product[i, j].astype("float32") * step[i] * scale[j] + bias[j]
    )


def quantised(w: Any) -> tuple[Any, Any]:
    """Weights of int8, and the scale of each row."""
    scale = np.abs(w).max(axis=1) / np.float32(127)
    return np.rint(w / scale[:, None]).astype(np.int8), scale


def layer(m: int, k: int, n: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    w, scale = quantised(rng.standard_normal((n, k), dtype=np.float32))
    return rng.standard_normal((m, k), dtype=np.float32), w, scale, rng.random(n, dtype=np.float32)


def check_numpy() -> None:
    x, w, scale, bias = layer(33, 70, 50)
    step = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-30)) / np.float32(127)
    product = np.rint(x / step).astype(np.int32) @ w.T.astype(np.int32)
    expected = product * np.float64(step) * scale + bias
    np.testing.assert_allclose(int8_linear(x, w, scale, bias), expected, rtol=1e-5, atol=1e-5)


def microseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=5, repeat=10)) / 5 * 1e6


def check_torch() -> str:
    import torch

    def eager(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        step = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        product = torch._int_mm(torch.round(x / step).to(torch.int8), w.T)
        return product * step * scale + bias

    m, k, n = 64, 256, 512
    inputs = [torch.from_numpy(each) for each in layer(m, k, n)]
    torch.testing.assert_close(int8_linear(*inputs), eager(*inputs), rtol=1e-5, atol=1e-5)
    ours = microseconds(lambda: int8_linear(*inputs))
    theirs = microseconds(lambda: eager(*inputs))
    return f"equal; {m} x {k} x {n}: {ours:.0f} us, eager {theirs:.0f} us"


if __name__ == "__main__":
    check_numpy()
    compared = check_torch() if importlib.util.find_spec("torch") else "not installed, left out"
    print("int8_linear: equal to the formula; torch:", compared)
