"""Convolutions of images with borders that are wrapped, mirrored or repeated, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import minitvm as tvm
from minitvm import te, tir
from minitvm.te.tensor import Tensor

Array = np.ndarray[Any, Any]
Border = Callable[[Any, Any], Any]
COPIED = "{tensor} is copied with its borders"

BORDERS: dict[str, Border] = {
    "wrap": lambda i, n: te.indexmod(i + 8 * n, n),
    "edge": lambda i, n: tir.min(tir.max(i, 0), n - 1),
    "reflect": lambda i, n: te.if_then_else(i < 0, -i, te.if_then_else(i < n, i, 2 * n - 2 - i)),
    "symmetric": lambda i, n: tir.Select(i < 0, -1 - i, tir.Select(i < n, i, 2 * n - 1 - i)),
}  # numpy's names


def program(
    border: Border,
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    dtype: str = "float32",
) -> list[Tensor]:
    images, inputs, height, width = shape
    X = te.placeholder(shape, dtype, name="X")
    W = te.placeholder((outputs, inputs, kernel, kernel), dtype, name="W")
    c, r, q = (te.reduce_axis((0, n)) for n in (inputs, kernel, kernel))
    p = dilation * (kernel - 1) // 2

    def element(n: Any, f: Any, y: Any, x: Any) -> Any:
        at = (
            border(i * stride + k * dilation - p, m) for i, k, m in ((y, r, height), (x, q, width))
        )
        return te.sum(X(n, c, *at) * W[f, c, r, q], axis=[c, r, q])

    result = (images, outputs, -(-height // stride), -(-width // stride))
    return [X, W, te.compute(result, element, name="Y")]


def expected(x: Array, w: Array, mode: Any, stride: int = 1, dilation: int = 1) -> Array:
    p = dilation * (w.shape[-1] - 1) // 2
    padded = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)], mode)
    span = dilation * (w.shape[-1] - 1) + 1
    windows = sliding_window_view(padded, (span, span), (2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    made: Array = np.einsum("ncyxrq,fcrq->nfyx", windows, w)
    return made


def arrays(tensors: list[Tensor]) -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in each.shape) for each in tensors]
    return [
        rng.integers(-9, 10, shape).astype(str(each.dtype))
        for shape, each in zip(shapes, tensors, strict=True)
    ]


def is_copied(output: Tensor) -> bool:
    return COPIED in [each.text for each in tvm.auto_schedule(output).choices]


@pytest.mark.covering(1)  # the borders are in the copy, the options in the loops that read it
@pytest.mark.parametrize("mode", BORDERS)
@pytest.mark.parametrize(
    "options",
    [
        ((1, 5, 13, 17), 20, 3),
        ((2, 3, 15, 14), 7, 5),
        ((2, 4, 16, 19), 9, 3, 2),
        ((1, 6, 18, 15), 16, 3, 1, 2),
        ((1, 4, 13, 13), 8, 3, 1, 1, "float64"),
        ((1, 4, 13, 13), 8, 3, 1, 1, "int32"),
    ],
)
def test_borders(mode: str, options: tuple[Any, ...]) -> None:
    """Small integers have exact sums in any order."""
    tensors = program(BORDERS[mode], *options)
    assert is_copied(tensors[-1])
    x, w, y = arrays(tensors)
    tvm.build(tensors[-1], tensors, name="f")(x, w, y)
    np.testing.assert_array_equal(y, expected(x, w, mode, *options[3:5]))


def test_a_nan_stays_in_its_windows() -> None:
    tensors = program(BORDERS["wrap"], (1, 2, 12, 12), 3, 3)
    x, w, y = arrays(tensors)
    x[0, 1, 0, 11] = np.nan
    tvm.build(tensors[-1], tensors, name="f")(x, w, y)
    np.testing.assert_array_equal(y, expected(x, w, "wrap"))
    assert np.isnan(y).sum() == 3 * 9


def test_a_computed_image_and_an_epilogue() -> None:
    X = te.placeholder((1, 4, 12, 12), name="X")
    A = te.compute(X.shape, lambda *i: tir.max(X(*i), 0.0), name="A")
    W = te.placeholder((8, 4, 3, 3), name="W")
    c, r, q = (te.reduce_axis((0, n)) for n in (4, 3, 3))

    def element(n: Any, f: Any, y: Any, x: Any) -> Any:
        at = (te.indexmod(y + r + 11, 12), te.indexmod(x + q + 11, 12))
        return te.sum(A(n, c, *at) * W[f, c, r, q], axis=[c, r, q])

    Y = te.compute((1, 8, 12, 12), element, name="Y")
    Z = te.compute(Y.shape, lambda *i: Y(*i) * 2.0 + 1.0, name="Z")
    x, w, z = arrays([X, W, Z])
    tvm.build(Z, [X, W, Z], name="f")(x, w, z)
    np.testing.assert_array_equal(z, 2 * expected(np.maximum(x, 0), w, "wrap") + 1)


def test_a_moving_sum_on_a_ring() -> None:
    X = te.placeholder((5, 64), name="X")
    k = te.reduce_axis((0, 7))
    S = te.compute(X.shape, lambda i, j: te.sum(X[i, (j + k + 61) % 64], axis=k), name="S")
    assert is_copied(S)
    x, found = arrays([X, S])
    tvm.build(S, [X, S], name="f")(x, found)
    np.testing.assert_array_equal(found, sum(np.roll(x, 3 - i, 1) for i in range(7)))


def _sums(element: Callable[[Tensor, Any, Any], Any], steps: int = 8) -> Tensor:
    X = te.placeholder((32, 4), name="X")
    k = te.reduce_axis((0, steps))
    made: Tensor = te.compute((16,), lambda i: te.sum(element(X, i, k), axis=k), name="S")
    return made


OTHERS = {
    "a plain window": _sums(lambda x, i, k: x[i + k, 0]),
    "each element once": _sums(lambda x, i, k: x[(i * 8 + k) // 4, (i * 8 + k) % 4]),
    "a product of axes": _sums(lambda x, i, k: x[(i * k) % 32, 0]),
    "sums and an axis apart": _sums(lambda x, i, k: x[(i + k) % 32 * 1, k % 4]),
    "elements that data name": _sums(lambda x, i, k: x[te.cast("int32", x[i, 0]) % 32, k % 4]),
    "one of few": _sums(lambda x, i, k: x[(i * 31 + k) % 32, 0], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_read_as_they_lie(name: str) -> None:
    assert not is_copied(OTHERS[name])


@pytest.mark.parametrize("mode", BORDERS)
def test_symbolic_images(mode: str) -> None:
    h, w = te.var("h"), te.var("w")
    X, W = te.placeholder((h, w), "int32", name="X"), te.placeholder((3, 5), "int32", name="W")
    r, q = te.reduce_axis((0, 3)), te.reduce_axis((0, 5))
    border = BORDERS[mode]

    def element(y: Any, x: Any) -> Any:
        return te.sum(X[border(y + r - 1, h), border(x + q - 2, w)] * W[r, q], axis=[r, q])

    Y = te.compute((h, w), element, name="Y")
    assert is_copied(Y)
    f = tvm.build(Y, [X, W, Y], name="f")
    weights = np.arange(15, dtype="int32").reshape(3, 5)
    for shape in ((3, 3), (9, 70), (40, 31)):
        image = np.arange(shape[0] * shape[1], dtype="int32").reshape(1, 1, *shape)
        found = np.empty(shape, "int32")
        f(image[0, 0], weights, found)
        padded = np.pad(image[0, 0], [(1, 1), (2, 2)], mode)  # type: ignore[call-overload]
        windows = sliding_window_view(padded, (3, 5))
        np.testing.assert_array_equal(found, np.einsum("yxrq,rq->yx", windows, weights))


def test_rings_of_symbolic_size() -> None:
    """A ring of no elements has a copy of two, which read none."""
    n = te.var("n")
    X, W = te.placeholder((n,), name="X"), te.placeholder((3,), name="W")
    C = te.placeholder((n, 4), name="C")
    k, r = te.reduce_axis((0, 3)), te.reduce_axis((0, n))
    Y = te.compute((n,), lambda i: te.sum(X[(i + k) % n] * W[k], axis=k), name="Y")
    Z = te.compute((n, 4), lambda i, j: te.sum(X[(i - r + n) % n] * C[r, j], axis=r), name="Z")
    assert is_copied(Y)
    assert is_copied(Z)
    f = tvm.build([Y, Z], [X, W, C, Y, Z], name="f")
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 11, 40):
        x, w, c = (rng.integers(-9, 9, m).astype("float32") for m in (size, 3, (size, 4)))
        y, z = np.empty(size, "float32"), np.empty((size, 4), "float32")
        f(x, w, c, y, z)
        np.testing.assert_array_equal(y, sum(np.roll(x, -i) * w[i] for i in range(3)))
        places = np.arange(size)[:, None] - np.arange(size)
        np.testing.assert_array_equal(z, x[places] @ c)


def test_the_trace_makes_the_same_schedule() -> None:
    tensors = program(BORDERS["reflect"], (1, 5, 13, 17), 20, 3)
    s = tvm.auto_schedule(tensors[-1])
    again = te.replay(s.trace(), [tensors[-1].op])
    assert str(tvm.lower(again, tensors)) == str(tvm.lower(s, tensors))


def test_a_table_for_many_rows() -> None:
    """The elements of ``C[(k * j) % n]`` are copied once for all rows."""
    X, C = te.placeholder((70, 13), name="X"), te.placeholder((13,), name="C")
    k = te.reduce_axis((0, 13))
    Y = te.compute((70, 13), lambda i, j: te.sum(X[i, k] * C[(k * j) % 13], axis=k), name="Y")
    assert "cache_access(C" in tvm.auto_schedule(Y).trace()
    rng = np.random.default_rng(2)
    x, c = (rng.integers(-9, 9, shape).astype("float32") for shape in ((70, 13), (13,)))
    y = np.empty((70, 13), "float32")
    tvm.build(Y, [X, C, Y], name="f")(x, c, y)
    np.testing.assert_array_equal(y, x @ c[np.outer(np.arange(13), np.arange(13)) % 13])


@pytest.mark.parametrize("border", [5, 40])
def test_mirrored_indices_are_linear_in_pieces(border: int) -> None:
    X = te.placeholder((3, 67), name="X")

    def place(j: Any) -> Any:
        near = te.abs(j - border)
        return te.if_then_else(near < 67, near, 2 * 66 - near)

    Y = te.compute((3, 67 + 2 * border), lambda i, j: X[i, place(j)], name="Y")
    x, y = np.arange(201, dtype="float32").reshape(3, 67), np.empty((3, 67 + 2 * border), "float32")
    tvm.build(Y, [X, Y], name="f")(x, y)
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (border, border)), "reflect"))
    assert f"j.outer * 8 - {border}, 1, 8)]" in str(
        tvm.lower(tvm.auto_schedule(Y, "llvm -mcpu=haswell"), [X, Y])
    )


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 40, 24), (5, 1, 3), (0, 4, 9)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_padded_windows_keep_their_rows(shape: tuple[int, int, int], dtype: str) -> None:
    """Rows that follow each other in memory aren't one line where conditions ask for the place in a
    row: each lane would divide the common index."""
    X = te.placeholder(shape, dtype, name="X")
    channels, h, w = shape
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")
    least = te.min_value(dtype)

    def element(c: Any, y: Any, x: Any) -> Any:
        inside = te.all(y + r >= 1, y + r <= h, x + q >= 1, x + q <= w)
        return te.max(te.if_then_else(inside, X[c, y + r - 1, x + q - 1], least), axis=[r, q])

    Y = te.compute(shape, element, name="Y")
    assert not channels or ".vectorize(x_" in tvm.auto_schedule(Y).trace()
    x = np.random.default_rng(3).integers(-99, 99, shape).astype(dtype)
    found = np.empty(shape, dtype)
    tvm.build([Y], [X, Y])(x, found)
    border = -np.inf if dtype == "float32" else -128
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1)], constant_values=border)
    expected = sliding_window_view(padded, (3, 3), (1, 2)).max((-2, -1), initial=border)
    np.testing.assert_array_equal(found, expected)


def along(axes: list[int], mode: str, shape: tuple[Any, ...], size: int, stride: int = 1) -> Any:
    """The tensors of a convolution of each plane by itself, over windows along some axes."""
    X, W = te.placeholder(shape, name="X"), te.placeholder((size,) * len(axes), name="W")
    steps = [te.reduce_axis((0, size), f"r{axis}") for axis in axes]
    shrunk = [-(-n // stride) if axis in axes else n for axis, n in enumerate(shape)]

    def element(*at: Any) -> Any:
        place = list(at)
        for axis, r in zip(axes, steps, strict=True):
            place[axis] = BORDERS[mode](at[axis] * stride + r - size // 2, shape[axis])
        return te.sum(W(*steps) * X(*place), axis=steps)

    return [X, W, te.compute(tuple(shrunk), element, name="Y")]


def expected_along(axes: list[int], mode: Any, x: Array, w: Array, stride: int = 1) -> Array:
    size = w.shape[0]
    padded = np.pad(x, [(size // 2,) * 2 if i in axes else (0, 0) for i in range(x.ndim)], mode)
    windows = sliding_window_view(padded, w.shape, tuple(axes))
    windows = windows[tuple(slice(None, None, stride if i in axes else 1) for i in range(x.ndim))]
    summed: Array = (windows * w).sum(tuple(range(-len(axes), 0)))
    return summed


@pytest.mark.parametrize("mode", BORDERS)
@pytest.mark.parametrize(
    ("axes", "shape", "size", "stride"),
    [
        ([0], (37, 45), 3, 1),
        ([0], (64, 70), 5, 2),
        ([1], (3, 21, 33), 7, 1),
        ([0, 1], (9, 11, 40), 3, 1),
    ],
)
def test_rows_of_a_border_are_read_where_they_lie(
    mode: str, axes: list[int], shape: tuple[int, ...], size: int, stride: int
) -> None:
    """Vectors lie along the last axis, which has no border."""
    tensors = along(axes, mode, shape, size, stride)
    assert not is_copied(tensors[-1])
    x, w, y = arrays(tensors)
    tvm.build(tensors[-1], tensors, name="f")(x, w, y)
    np.testing.assert_array_equal(y, expected_along(axes, mode, x, w, stride))


@pytest.mark.parametrize("mode", BORDERS)
@pytest.mark.parametrize(
    ("axes", "shape", "size", "stride", "in_strips"),
    [
        ([0, 1], (90, 201), 3, 1, True),
        ([0, 1], (91, 200), 5, 2, True),
        ([1, 2], (3, 90, 201), 3, 1, True),
        ([0, 1], (20, 33), 3, 1, False),  # which stays in the L1 cache
        ([0, 1, 2], (5, 90, 201), 3, 1, False),  # planes would be padded for each neighbour
    ],
)
def test_images_are_padded_in_strips(
    mode: str, axes: list[int], shape: tuple[int, ...], size: int, stride: int, in_strips: bool
) -> None:
    tensors = along(axes, mode, shape, size, stride)
    s = tvm.auto_schedule(tensors[-1], "llvm -mcpu=haswell")
    assert is_copied(tensors[-1])
    assert ("s[X_global].compute_at(" in s.trace()) is in_strips
    assert te.replay(s.trace(), [tensors[-1].op]).trace() == s.trace()
    x, w, y = arrays(tensors)
    tvm.build(tensors[-1], tensors, "llvm -mcpu=haswell", name="f")(x, w, y)
    np.testing.assert_array_equal(y, expected_along(axes, mode, x, w, stride))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 80, 150), (1, 1, 121, 119)])
def test_planes_are_padded_in_strips(shape: tuple[int, ...], stride: int) -> None:
    """A stage of the program pads them, and an epilogue reads the sums."""
    n, c, h, w = shape
    X, W = te.placeholder(shape, name="X"), te.placeholder((c, 5, 5), name="W")

    def padded(b: Any, k: Any, i: Any, j: Any) -> Any:
        inside = te.all(i >= 2, i < h + 2, j >= 2, j < w + 2)
        return te.if_then_else(inside, X[b, k, i - 2, j - 2], 0.0)

    P = te.compute((n, c, h + 4, w + 4), padded, name="P")
    r, q = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, 5), "q")
    Y = te.compute(
        (n, c, -(-h // stride), -(-w // stride)),
        lambda b, k, i, j: te.sum(P[b, k, i * stride + r, j * stride + q] * W[k, r, q], [r, q]),
        name="Y",
    )
    Z = te.compute(Y.shape, lambda *i: te.max(Y(*i), 0.0), name="Z")
    x, weights, z = arrays([X, W, Z])
    for target in ("llvm -mcpu=haswell", "llvm"):
        tvm.build(Z, [X, W, Z], target, name="f")(x, weights, z)
        windows = sliding_window_view(np.pad(x, [(0, 0)] * 2 + [(2, 2)] * 2), (5, 5), (2, 3))
        sums = (windows[:, :, ::stride, ::stride] * weights[:, None, None]).sum((-2, -1))
        np.testing.assert_array_equal(z, np.maximum(sums, 0))
