"""Depthwise convolution: a kernel of its own for each channel, with a border of zeros.

python examples/operators/depthwise_convolution.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Image = Annotated[te.Tensor, "n c h w"]
Kernel = Annotated[te.Tensor, "c kh kw"]


@minitvm.jit(static=("stride", "padding"))
def depthwise_convolution(x: Image, kernel: Kernel, stride: int = 1, padding: int = 0) -> Any:
    n, c, h, w = x.shape
    _, kh, kw = kernel.shape
    padded = te.compute(
        (n, c, h + 2 * padding, w + 2 * padding),
        lambda b, ch, y, z: te.if_then_else(
            te.all(y >= padding, y < h + padding, z >= padding, z < w + padding),
            x[b, ch, y - padding, z - padding],
            te.const(0, x.dtype),
        ),
        name="padded",
    )
    p, q = te.reduce_axis((0, kh), name="p"), te.reduce_axis((0, kw), name="q")
    return te.compute(
        (n, c, (h + 2 * padding - kh) // stride + 1, (w + 2 * padding - kw) // stride + 1),
        lambda b, ch, y, z: te.sum(
            padded[b, ch, y * stride + p, z * stride + q] * kernel[ch, p, q], axis=[p, q]
        ),
    )


@minitvm.jit(static=("stride", "padding"))
def backward(
    x: Image,
    kernel: Kernel,
    adjoint: Annotated[te.Tensor, "n c _ _"],
    stride: int = 1,
    padding: int = 0,
) -> Any:
    y = depthwise_convolution(x, kernel, stride=stride, padding=padding)
    return te.gradient(y, [x, kernel], adjoint)


def reference(x: Any, kernel: Any, stride: int, padding: int) -> Any:
    """The same by numpy, from all windows of the image."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[1:], (2, 3))
    return np.einsum("bcyzpq,cpq->bcyz", windows[:, :, ::stride, ::stride], kernel)


def milliseconds(call: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(call, number=3, repeat=10)) / 3


def main() -> None:
    minitvm.set_num_threads(1)  # as the peer
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 56, 56), dtype=np.float32)
    kernel = rng.standard_normal((32, 3, 3), dtype=np.float32)
    for stride in (1, 2):
        y = depthwise_convolution(x, kernel, stride=stride, padding=1)
        np.testing.assert_allclose(y, reference(x, kernel, stride, 1), rtol=1e-4, atol=1e-5)

    # The convolution is linear in both: <adjoint, f(image, k)> is <dx, image> and <dk, k>.
    adjoint = rng.standard_normal(x.shape, dtype=np.float32)
    dx, dk = backward(x, kernel, adjoint, stride=1, padding=1)
    other = rng.standard_normal(x.shape, dtype=np.float32)
    product = np.vdot(adjoint, reference(other, kernel, 1, 1))
    np.testing.assert_allclose(np.vdot(dx, other), product, rtol=1e-3, atol=1e-1)
    other = rng.standard_normal(kernel.shape, dtype=np.float32)
    product = np.vdot(adjoint, reference(x, other, 1, 1))
    np.testing.assert_allclose(np.vdot(dk, other), product, rtol=1e-3, atol=1e-1)

    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)

        image, weight = torch.from_numpy(x), torch.from_numpy(kernel)

        def peer() -> Any:
            return torch.nn.functional.conv2d(image, weight[:, None], padding=1, groups=32)

        def run() -> Any:
            return depthwise_convolution(image, weight, padding=1)

        torch.testing.assert_close(run(), peer(), rtol=1e-4, atol=1e-5)
        ours, theirs = milliseconds(run), milliseconds(peer)
        print(f"3 x 3 on 32 channels of 56 x 56: {ours:.3f} ms, torch {theirs:.3f} ms")
    else:
        ours = milliseconds(lambda: depthwise_convolution(x, kernel, padding=1))
        print(f"3 x 3 on 32 channels of 56 x 56: {ours:.3f} ms; torch: not installed, left out")


if __name__ == "__main__":
    main()
