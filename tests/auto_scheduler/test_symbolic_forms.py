"""Programs whose sizes the call decides, beside products: right at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor

SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 63, 64, 65]
AVX2 = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"
Array = np.ndarray[Any, np.dtype[Any]]


def built(inputs: list[Tensor], output: Tensor) -> Callable[[list[Array], tuple[int, ...]], Array]:
    function = tvm.build(output, [*inputs, output], name="f")

    def call(arrays: list[Array], shape: tuple[int, ...]) -> Array:
        got = np.full(shape, 77, "float32")
        function(*arrays, got)
        return got

    return call


def whole(*shape: int) -> Array:
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


m, n, b = te.var("m"), te.var("n"), te.var("b")


@pytest.mark.parametrize("axis", [0, 1])
def test_both_cases_of_a_choice(axis: int) -> None:
    X, Y = te.placeholder((m, n), name="X"), te.placeholder((m, n), name="Y")
    end = (m, n)[axis]

    def element(*i: Any) -> Any:
        behind = [index - end if each == axis else index for each, index in enumerate(i)]
        return te.if_then_else(i[axis] < end, X(*i), Y(*behind))

    shape = (2 * m, n) if axis == 0 else (m, 2 * n)
    f = built([X, Y], te.compute(shape, element, name="Z"))
    for size in SIZES:
        for rows, columns in ((size, size), (size, 37), (5, size)):
            x, y = whole(rows, columns), whole(rows, columns) + 1
            wanted = np.concatenate([x, y], axis)
            np.testing.assert_array_equal(f([x, y], wanted.shape), wanted)


def test_a_triangle() -> None:
    X = te.placeholder((m, n), name="X")
    Y = te.compute((m, n), lambda i, j: te.if_then_else(j <= i, X[i, j], 0.0), name="Y")
    f = built([X], Y)
    for size in SIZES:
        for shape in ((size, size), (size, 37), (37, size)):
            x = whole(*shape)
            np.testing.assert_array_equal(f([x], shape), np.tril(x))


@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0), (2, 1, 0)])
def test_few_rows_of_a_transpose(order: tuple[int, ...]) -> None:
    extents = (b, m, n)
    X = te.placeholder(extents, name="X")

    def element(*i: Any) -> Any:
        return X(*(i[order.index(axis)] for axis in range(3)))

    f = built([X], te.compute([extents[axis] for axis in order], element, name="Y"))
    for size in SIZES:
        for shape in ((size, 5, 9), (3, size, 70), (9, 33, size)):
            x = whole(*shape)
            wanted = np.transpose(x, order)
            np.testing.assert_array_equal(f([x], wanted.shape), wanted)


@pytest.mark.parametrize(
    ("order", "dtype"),
    [
        pytest.param(order, dtype, marks=[] if number % 3 == width else pytest.mark.wide)
        for number, order in enumerate([(0, 2, 1), (0, 2, 3, 1), (2, 0, 1), (0, 3, 1, 2)])
        for width, dtype in enumerate(["int8", "float16", "float64"])
    ],
)
def test_channels_first_and_last(order: tuple[int, ...], dtype: str) -> None:
    """A few channels are mixed, or picked; more of them run in blocks, which may overlap."""
    X = te.placeholder([te.var(f"n{axis}") for axis in range(len(order))], dtype, name="X")

    def element(*i: Any) -> Any:
        return X(*(i[order.index(axis)] for axis in range(len(order))))

    Y = te.compute([X.shape[axis] for axis in order], element, name="Y")
    f = tvm.build(Y, [X, Y], name="f")
    rest = (2, 9, 23) if len(order) == 4 else (9, 70)
    for channels in (0, 1, 2, 3, 4, 5, 17):
        for place in range(len(order)):
            shape = (*rest[:place], channels, *rest[place:])
            x = whole(*shape).astype(dtype)
            wanted = np.transpose(x, order)
            got = np.full(wanted.shape, 77, dtype)
            f(x, got)
            np.testing.assert_array_equal(got, wanted)


def over(combine: Any, x: Tensor, name: str) -> Tensor:
    k = te.reduce_axis((0, x.shape[1]), "k")
    made: Tensor = te.compute((x.shape[0],), lambda i: combine(x[i, k], axis=k), name=name)
    return made


def test_rows_of_several_reductions() -> None:
    """A stage between two reductions writes only rows that there are. The last row is read in
    place of the others, and what it holds stays there."""
    X = te.placeholder((m, n), name="X")
    largest = over(te.max, X, "M")
    off = te.compute((m, n), lambda i, j: X[i, j] - largest[i], "O")
    total = over(te.sum, te.compute((m, n), lambda i, j: off[i, j] * off[i, j], "Q"), "S")
    f = built([X], te.compute((m, n), lambda i, j: off[i, j] + total[i], name="Y"))
    for size in SIZES:
        for shape in ((size, 33), (19, size), (size, size)):
            x = whole(*shape)
            if x.size:
                x[-1, 0] = np.nan
            rows = x - x.max(1, initial=-np.inf, keepdims=True)
            wanted = rows + (rows * rows).sum(1, keepdims=True)
            np.testing.assert_array_equal(f([x], shape), wanted)


@pytest.mark.parametrize("combine", ["max", "min"])
def test_extrema_of_rows(combine: str) -> None:
    X = te.placeholder((m, n), name="X")
    f = built([X], over(getattr(te, combine), X, "Y"))
    for size in SIZES[1:]:
        for shape in ((size, 33), (19, size), (size, size)):
            x = whole(*shape)
            x[0, -1], x[-1, 0] = np.inf, np.nan
            np.testing.assert_array_equal(f([x], (shape[0],)), getattr(x, combine)(1))


def test_short_and_long_rows_that_are_copied() -> None:
    X = te.placeholder((m, n), name="X")
    f = built([X], te.compute((m + 2, n), lambda i, j: X[te.min(i, m - 1), j], name="Y"))
    for size in (*SIZES[1:], 2047, 2048, 2049, 5000):
        x = whole(3, size)
        np.testing.assert_array_equal(f([x], (5, size)), x[[0, 1, 2, 2, 2]])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["llvm", AVX2])
@pytest.mark.parametrize("kind", ["by five", "by half", "wrapped", "reflected"])
def test_rolls_and_borders(kind: str, target: str) -> None:
    """The main part of a row is a copy; the pieces behind it, and rows shorter than a vector."""
    X, width = te.placeholder((m, n), name="X"), 2 if kind in ("wrapped", "reflected") else 0

    def reflected(at: Any, size: Any) -> Any:
        other = te.if_then_else(at >= size, 2 * size - 2 - at, at)
        return te.if_then_else(at < 0, -at, other)

    def element(i: Any, j: Any) -> Any:
        if kind == "by five":
            return X[i, (j + 5) % n]
        if kind == "by half":
            return X[i, (j + n // 2) % n]
        if kind == "wrapped":
            return X[(i - width + m) % m, (j - width + n) % n]
        return X[reflected(i - width, m), reflected(j - width, n)]

    Y = te.compute((m + 2 * width, n + 2 * width), element, name="Y")
    f = tvm.build(Y, [X, Y], target, name="f")
    least = {"wrapped": 2, "reflected": 3}.get(kind, 0)
    for size in (each for each in (*SIZES, 333) if each >= least):
        x = whole(3, size)
        if width:
            wanted = np.pad(x, width, "wrap" if kind == "wrapped" else "reflect")
        else:
            wanted = np.roll(x, -5 if kind == "by five" else -(size // 2), 1)
        got = np.full(wanted.shape, 77, "float32")
        f(x, got)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("begin", [-40, -1, 0, 5, 2**31 - 50])
def test_lanes_that_begin_anew_at_an_unknown_number(begin: int) -> None:
    """Remainders of numbers that count up, as far as the greatest of their dtype."""
    start, by = te.var("start"), te.var("by")
    X = te.placeholder((n,), name="X")
    Y = te.compute((n,), lambda i: ((i + start) % by).astype("int64"), name="Y")
    f = tvm.build(Y, [X, start, by, Y], name="f")
    numbers = np.arange(50) + begin
    for divisor in (1, 2, 7, 15, 16, 17, 1000, 2**31 - 1, -3, 0):
        y = np.empty(50, "int64")
        f(np.empty(50, "float32"), begin, divisor, y)
        wanted = numbers % divisor if divisor else np.zeros(50, "int64")
        np.testing.assert_array_equal(y, wanted)


def test_totals_of_rows_so_far() -> None:
    X = te.placeholder((m, n), name="X")

    def element(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, i + 1), name="k")
        return te.sum(X[k, j], axis=k)

    f = built([X], te.compute((m, n), element, name="Y"))
    for size in SIZES:
        for shape in ((size, size), (3, size), (size, 37)):
            x = whole(*shape)
            np.testing.assert_array_equal(f([x], shape), x.cumsum(0))


def test_rows_that_data_choose_in_blocks_of_columns() -> None:
    """A fused loop of a symbolic and a constant one: its last block is narrower."""
    W, at = te.placeholder((50, 100), name="W"), te.placeholder((m, 7), "int32", name="I")
    k = te.reduce_axis((0, 7), name="k")
    f = built([W, at], te.compute((m, 100), lambda i, j: te.sum(W[at[i, k], j], axis=k), name="Y"))
    w = whole(50, 100)
    for size in SIZES:
        i = np.random.default_rng(1).integers(0, 50, (size, 7)).astype("int32")
        np.testing.assert_array_equal(f([w, i], (size, 100)), w[i].sum(1))


def convolution(stride: int, depthwise: bool) -> tuple[list[Tensor], Tensor]:
    """A convolution of 3 x 3 with padding, from 4 to 16 channels."""
    X = te.placeholder((2, 4, m, n), name="X")
    Z = te.compute(
        (2, 4, m + 2, n + 2),
        lambda b, c, y, x: te.if_then_else(
            te.all(y >= 1, y < m + 1, x >= 1, x < n + 1), X[b, c, y - 1, x - 1], 0.0
        ),
        name="Z",
    )
    c, p, q = (te.reduce_axis((0, size), name) for size, name in ((4, "c"), (3, "p"), (3, "q")))
    W = te.placeholder((4, 3, 3) if depthwise else (16, 4, 3, 3), name="W")

    def element(b: Any, f: Any, y: Any, x: Any) -> Any:
        y, x = y * stride + p, x * stride + q
        if depthwise:
            return te.sum(Z[b, f, y, x] * W[f, p, q], axis=[p, q])
        return te.sum(Z[b, c, y, x] * W[f, c, p, q], axis=[c, p, q])

    shape = (2, 4 if depthwise else 16, (m - 1) // stride + 1, (n - 1) // stride + 1)
    return [X, W], te.compute(shape, element, name="Y")


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_images_of_any_size(stride: int, depthwise: bool) -> None:
    inputs, output = convolution(stride, depthwise)
    f = built(inputs, output)
    w = whole(4, 3, 3) if depthwise else whole(16, 4, 3, 3)
    for height, width in [*((size, size) for size in SIZES), (5, 64), (65, 3), (0, 9), (9, 28)]:
        x = whole(2, 4, height, width)
        z = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        ends = (height - 1) // stride + 1, (width - 1) // stride + 1
        wanted = np.zeros((2, 4 if depthwise else 16, *ends), "float32")
        for p in range(3):
            for q in range(3):
                part = z[:, :, p : p + stride * ends[0] : stride, q : q + stride * ends[1] : stride]
                part = part[:, :, : ends[0], : ends[1]]
                how = "bchw,c->bchw" if depthwise else "bchw,fc->bfhw"
                wanted += np.einsum(how, part, w[..., p, q])
        np.testing.assert_array_equal(f([x, w], wanted.shape), wanted)


@pytest.mark.parametrize("depthwise", [False, True])
def test_an_image_of_any_size_is_read_as_it_lies(depthwise: bool) -> None:
    _, output = convolution(1, depthwise)
    trace = tvm.auto_schedule(output, AVX2).trace()
    assert "s[Z].compute_at" in trace if depthwise else "W_global" in trace


def test_channels_that_fill_no_vector_are_no_columns_of_a_symbolic_image() -> None:
    X, W = te.placeholder((1, 3, m, n), name="X"), te.placeholder((3, 3, 1, 1), name="W")
    c, p, q = (te.reduce_axis((0, size), name) for size, name in ((3, "c"), (1, "p"), (1, "q")))
    Y = te.compute(
        (1, 3, m, n),
        lambda b, f, y, x: te.sum(X[b, c, y + p, x + q] * W[f, c, p, q], axis=[c, p, q]),
        name="Y",
    )
    f = built([X, W], Y)
    w = whole(3, 3, 1, 1)
    for size in SIZES:
        x = whole(1, 3, size, 9)
        wanted = np.einsum("bchw,fc->bfhw", x, w[..., 0, 0])
        np.testing.assert_array_equal(f([x, w], wanted.shape), wanted)


_PARTS: dict[str, Callable[..., Any]] = {
    "product": lambda x, y, i, j, p, q: x[i // p, j // q] * y[i % p, j % q],
    "tiled": lambda x, y, i, j, p, q: x[i // p, 0] + y[i % p, j % q],
    "repeated": lambda x, y, i, j, p, q: x[i // p, j // q] + y[i % p, 0],
}


@pytest.mark.parametrize("name", list(_PARTS))
def test_lines_in_parts(name: str) -> None:
    """Of a product of Kronecker, and of rows that are repeated as wholes, or element by element."""
    p, q, element = te.var("p"), te.var("q"), _PARTS[name]
    X, Y = te.placeholder((m, n), name="X"), te.placeholder((p, q), name="Y")
    Z = te.compute((m * p, n * q), lambda i, j: element(X, Y, i, j, p, q), name="Z")
    versions = tvm.auto_schedule(Z).versions
    assert [str(condition) for condition, _ in versions] == ["q >= 1"]
    assert "q = Y.shape[1]" in versions[0][1].trace()
    f = built([X, Y], Z)
    for rows, columns in ((2, 3), (1, 1), (0, 3), (3, 0)):
        for size in SIZES:
            x, y = whole(rows, columns), whole(2, size)
            i, j = np.indices((rows * 2, columns * size))
            wanted = element(x, y, i, j, 2, size) if i.size else np.empty(i.shape, "float32")
            np.testing.assert_array_equal(f([x, y], wanted.shape), wanted)


def test_lines_that_are_one_line_of_memory_have_no_parts() -> None:
    X = te.placeholder((m, n), name="X")
    Y = te.compute((m * n,), lambda i: X[i // n, i % n] + 1.0, name="Y")
    assert not tvm.auto_schedule(Y).versions
