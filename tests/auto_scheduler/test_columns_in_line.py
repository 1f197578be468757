"""Products whose columns run along several axes, one line of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm import auto_schedule, build, lower, te
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import Var

INTEL = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -num-cores=1"
random = np.random.default_rng(11)


def pointwise(
    channels: int, filters: int, *size: int, images: Any = 1, dtype: str = "float32"
) -> list[Tensor]:
    """A convolution of 1 x 1."""
    W = te.placeholder((filters, channels), dtype, name="W")
    X = te.placeholder((images, channels, *size), dtype, name="X")
    c = te.reduce_axis((0, channels), name="c")

    def element(n: Any, f: Any, *at: Any) -> Any:
        place = (n, c, *at)
        return te.sum(W[f, c] * X[place], axis=c)

    Y = te.compute((images, filters, *size), element, name="Y")
    return [W, X, Y]


def texts(arguments: list[Tensor]) -> str:
    return "\n".join(map(str, auto_schedule(arguments[-1], INTEL).choices))


def numbers(tensor: Tensor, images: int = 2) -> Any:
    shape = [images if isinstance(n, Var) else int(n) for n in tensor.shape]
    return random.integers(-9, 9, shape).astype(tensor.dtype)


def exact(w: Any, x: Any) -> Any:
    return np.einsum("fc,nc...->nf...", w, x)


@pytest.mark.covering(2)
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("channels", "filters", "size"),
    [(64, 64, (40, 56)), (128, 100, (28, 27)), (64, 65, (13, 11)), (40, 33, (5, 12, 7))],
)
def test_places_of_an_image_are_columns_along_one_axis(
    channels: int, filters: int, size: tuple[int, ...], dtype: str, cores: int
) -> None:
    arguments = pointwise(channels, filters, *size, dtype=dtype)
    s = auto_schedule(arguments[-1], INTEL.replace("cores=1", f"cores={cores}"))
    found = "\n".join(map(str, s.choices))
    assert "computed as Y[" in found
    assert "matrix product of W and X.global" in found  # a view
    w, x = map(numbers, arguments[:2])
    y = np.full([int(n) for n in arguments[-1].shape], np.nan, dtype)
    build(s, arguments)(w, x, y)
    np.testing.assert_array_equal(y, exact(w, x))


def test_any_number_of_images_and_strided_arrays_are_right() -> None:
    arguments = pointwise(64, 48, 28, 27, images=te.var("n"))
    assert "computed as Y[" in texts(arguments)
    f = build(auto_schedule(arguments[-1], INTEL), arguments)
    for images in (0, 1, 3):
        w, x = numbers(arguments[0]), numbers(arguments[1], images)
        y = np.full((images, 48, 28, 27), np.nan, "float32")
        f(w, x, y)
        np.testing.assert_array_equal(y, exact(w, x))
    w, x = numbers(arguments[0]), random.integers(-9, 9, (2, 64, 30, 60)).astype("f4")
    y = np.full((2, 48, 31, 29), np.nan, "float32")
    f(w, x[:, :, 1:29, 2:56:2], y[:, :, 2:30, 1:28])
    np.testing.assert_array_equal(y[:, :, 2:30, 1:28], exact(w, x[:, :, 1:29, 2:56:2]))
    assert np.isnan(y).sum() == y.size - 2 * 48 * 28 * 27


def test_stages_that_read_the_sums_elementwise_are_in_line_too() -> None:
    W, X, Y = pointwise(64, 72, 26, 28)
    b, R = te.placeholder((72,), name="b"), te.placeholder((1, 72, 26, 28), name="R")
    S = te.compute(Y.shape, lambda n, f, y, x: Y[n, f, y, x] + b[f] + R[n, f, y, x], name="S")
    Z = te.compute(S.shape, lambda *i: te.max(S[i], te.const(0.0)), name="Z")
    arguments = [W, X, b, R, Z]
    assert "computed as Y[" in texts(arguments)
    s = auto_schedule(Z, INTEL)
    assert str(lower(s, arguments)).count("allocate(") <= 2  # a panel, and sums in registers
    w, x, bias, r = map(numbers, arguments[:-1])
    z = np.full((1, 72, 26, 28), np.nan, "float32")
    build(s, arguments)(w, x, bias, r, z)
    np.testing.assert_array_equal(z, np.maximum(exact(w, x) + bias[:, None, None] + r, 0))


def test_sums_in_memory_that_a_padded_convolution_reads() -> None:
    """A bottleneck: the result of the first product is a view that the padding reads."""
    W, X, Y = pointwise(64, 48, 20, 18)
    R = te.compute(Y.shape, lambda *i: te.max(Y[i], te.const(0.0)), name="R")
    P = te.compute(
        (1, 48, 22, 20),
        lambda n, f, y, x: te.if_then_else(
            te.all(y >= 1, y < 21, x >= 1, x < 19), R[n, f, y - 1, x - 1], 0.0
        ),
        name="P",
    )
    V = te.placeholder((16, 48, 3, 3), name="V")
    f, r, q = (te.reduce_axis((0, n), name=x) for n, x in ((48, "f"), (3, "r"), (3, "q")))
    Z = te.compute(
        (1, 16, 20, 18),
        lambda n, g, y, x: te.sum(V[g, f, r, q] * P[n, f, y + r, x + q], axis=[f, r, q]),
        name="Z",
    )
    assert "computed as Y[" in texts([W, X, V, Z])
    w, x, v = map(numbers, (W, X, V))
    z = np.full((1, 16, 20, 18), np.nan, "float32")
    build(auto_schedule(Z, INTEL), [W, X, V, Z])(w, x, v, z)
    padded = np.pad(np.maximum(exact(w, x), 0), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(z, np.einsum("gfrq,nfyxrq->ngyx", v, windows))


def test_a_window_reads_sums_in_line() -> None:
    W, X, Y = pointwise(64, 64, 28, 28)
    r, q = te.reduce_axis((0, 2), name="r"), te.reduce_axis((0, 2), name="q")
    P = te.compute(
        (1, 64, 14, 14),
        lambda n, f, y, x: te.max(Y[n, f, 2 * y + r, 2 * x + q], axis=[r, q]),
        name="P",
    )
    assert "computed as Y[" in texts([W, X, P])
    w, x = map(numbers, (W, X))
    p = np.full((1, 64, 14, 14), np.nan, "float32")
    build(auto_schedule(P, INTEL), [W, X, P])(w, x, p)
    np.testing.assert_array_equal(p, exact(w, x).reshape(1, 64, 14, 2, 14, 2).max((3, 5)))


def test_columns_on_several_lines_keep_their_axes() -> None:
    W, c = te.placeholder((64, 64), name="W"), te.reduce_axis((0, 64), name="c")
    V = te.placeholder((64, 30, 28), name="V")
    T = te.compute((64, 27, 28), lambda f, y, x: te.sum(W[f, c] * V[c, x, y], axis=c), name="T")
    assert "y x" not in texts([W, V, T])
    w, v = map(numbers, (W, V))
    t = np.full((64, 27, 28), np.nan, "float32")
    build(auto_schedule(T, INTEL), [W, V, T])(w, v, t)
    np.testing.assert_array_equal(t, np.einsum("fc,cxy->fyx", w, v[:, :28, :27]))


def test_a_product_of_matrices_reads_places_by_their_digits() -> None:
    """As the program says it, in vectors and with a request for each line."""
    W, X = te.placeholder((64, 64), name="W"), te.placeholder((64, 56, 56), name="X")
    c = te.reduce_axis((0, 64), name="c")
    Y = te.compute(
        (64, 56 * 56), lambda f, i: te.sum(W[f, c] * X[c, i // 56, i % 56], axis=c), name="Y"
    )
    s = auto_schedule(Y, INTEL)
    assert "matrix product of W and X" in texts([W, X, Y])
    assert "prefetch(X[" in str(lower(s, [W, X, Y]))
    assert "in range(48)" not in str(lower(s, [W, X, Y]))
    w, x = map(numbers, (W, X))
    y = np.full((64, 3136), np.nan, "float32")
    build(s, [W, X, Y])(w, x, y)
    np.testing.assert_array_equal(y, w @ x.reshape(64, 3136))
