"""Reductions over short pieces of lines, and over digits: values against numpy, and the loops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from minitvm import auto_schedule, build, lower, te
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.test_reductions import built, close, text

RNG = np.random.default_rng(7)


def by_groups(x: Tensor, groups: int, size: int, reducer: Any = te.sum) -> Tensor:
    n, h, w, _ = x.shape
    c, y, z = (
        te.reduce_axis((0, size), "c"),
        te.reduce_axis((0, h), "y"),
        te.reduce_axis((0, w), "z"),
    )
    made: Tensor = te.compute(
        (n, groups), lambda b, u: reducer(x[b, y, z, u * size + c], axis=[c, y, z]), name="G"
    )
    return made


@pytest.mark.parametrize(("groups", "size"), [(4, 6), (1, 5), (3, 3), (5, 2), (2, 17)])
def test_groups_of_channels(groups: int, size: int) -> None:
    x = te.placeholder((2, 5, 7, groups * size), name="X")
    values = RNG.standard_normal((2, 5, 7, groups * size), dtype="float32")
    out = by_groups(x, groups, size)
    parts = values.reshape(2, 35, groups, size).astype("float64")
    close(built(out, [x], [values]), parts.sum((1, 3)), 35 * size, np.abs(parts).sum((1, 3)))
    close(built(by_groups(x, groups, size, te.max), [x], [values]), parts.max((1, 3)), 0, 0)


def test_pieces_are_columns_first() -> None:
    x = te.placeholder((2, 5, 7, 24), name="X")
    assert "X[b, y, z, u.c.fused.inner.c]" in text(by_groups(x, 4, 6), [x])


@pytest.mark.parametrize("body", ["weighted", "transposed weights", "distance", "pairs"])
@pytest.mark.parametrize(("rows", "size"), [(20, 3), (20, 17), (3, 5), (1, 4)])
def test_operands_that_do_not_change_along_a_piece(body: str, rows: int, size: int) -> None:
    """Their values are spread over the lanes. Lines one behind the other aren't one line for them,
    nor for a second piece."""
    x, y = te.placeholder((rows, 60, size), name="X"), te.placeholder((rows, 60), name="Y")
    c, k, k2 = (te.reduce_axis((0, n), name) for n, name in ((60, "c"), (size, "k"), (size, "k2")))
    z = te.placeholder((60, rows), name="Z")
    element: dict[str, Any] = {
        "weighted": lambda b: te.sum(x[b, c, k] * y[b, c], axis=[k, c]),
        "transposed weights": lambda b: te.sum(x[b, c, k] * z[c, b], axis=[c, k]),
        "distance": lambda b: te.max(te.abs(x[b, c, k] - y[b, c]), axis=[c, k]),
        "pairs": lambda b: te.sum(te.abs(x[b, c, k] - x[b, c, k2]), axis=[c, k, k2]),
    }
    out = te.compute((rows,), element[body], name="G")
    assert any("reduced apart, as columns" in each.text for each in auto_schedule(out).choices)
    lanes = RNG.standard_normal((rows, 60, size), dtype="float32")
    spread = RNG.standard_normal((rows, 60), dtype="float32")
    a, b = lanes.astype("float64"), spread.astype("float64")[..., None]
    if body == "pairs":
        terms = np.abs(a[..., None] - a[:, :, None]).reshape(rows, -1)
    else:
        terms = (np.abs(a - b) if body == "distance" else a * b).reshape(rows, -1)
    given = {"pairs": ([x], [lanes]), "transposed weights": ([x, z], [lanes, spread.T.copy()])}
    found = built(out, *given.get(body, ([x, y], [lanes, spread])))
    exact = terms.max(1) if body == "distance" else terms.sum(1)
    close(found, exact, terms.shape[1] + 1, np.abs(terms).sum(1))


def test_a_piece_of_a_longer_line() -> None:
    """Columns that no result has a line with."""
    x = te.placeholder((9, 5, 11), name="X")
    k, c = te.reduce_axis((0, 9), "k"), te.reduce_axis((0, 6), "c")
    k2 = te.reduce_axis((0, 5), "k2")
    out = te.compute((2,), lambda i: te.sum(x[k, k2, i * 5 + c], axis=[k, k2, c]), name="G")
    values = RNG.standard_normal((9, 5, 11), dtype="float32")
    parts = np.stack([values[:, :, :6], values[:, :, 5:]]).astype("float64")
    close(built(out, [x], [values]), parts.sum((1, 2, 3)), 270, np.abs(parts).sum((1, 2, 3)))


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8"])
def test_groups_of_other_types_and_images_of_any_size(dtype: str) -> None:
    h, w = te.var("h"), te.var("w")
    x = te.placeholder((2, h, w, 12), dtype, name="X")
    out = by_groups(x, 3, 4)
    for size in ((6, 9), (1, 1), (0, 3)):
        values = RNG.integers(0, 9, (2, *size, 12)).astype(dtype)
        expected = values.reshape(2, -1, 3, 4).sum((1, 3), dtype=dtype)
        np.testing.assert_array_equal(built(out, [x], [values]), expected)


def test_strict_sums_stay_in_order() -> None:
    x = te.placeholder((1, 4, 7, 6), name="X")
    values = RNG.standard_normal((1, 4, 7, 6), dtype="float32")
    expected = np.zeros((1, 2), "float32")
    for u in range(2):
        for c in range(3):
            for p in values.reshape(28, 6)[:, u * 3 + c]:
                expected[0, u] += p
    np.testing.assert_array_equal(built(by_groups(x, 2, 3), [x], [values], "strict"), expected)


def test_the_moments_of_groups() -> None:
    """Two reductions and what reads them, in one image's rows."""
    x = te.placeholder((2, 5, 6, 12), name="X")
    values = RNG.standard_normal((2, 5, 6, 12), dtype="float32")
    mean = by_groups(x, 3, 4)
    squares = te.compute(x.shape, lambda *i: x(*i) * x(*i), name="Q")
    second = by_groups(squares, 3, 4)
    out = te.compute(
        x.shape, lambda b, i, j, c: x[b, i, j, c] * second[b, c // 4] - mean[b, c // 4], name="Y"
    )
    parts = values.reshape(2, 30, 3, 4).astype("float64")
    first, squared = (
        np.repeat(sums, 4, 1)[:, None, None] for sums in (parts.sum((1, 3)), (parts**2).sum((1, 3)))
    )
    expected = values * squared - first
    np.testing.assert_allclose(built(out, [x], [values]), expected, rtol=1e-4, atol=1e-3)


# -- Few columns --


def of_columns(shape: tuple[Any, ...], dtype: str, reducer: Any) -> tuple[Tensor, Tensor]:
    x = te.placeholder(shape, dtype, name="X")
    k = te.reduce_axis((0, shape[-2]), "k")

    def element(*i: Any) -> Any:
        return reducer(x(*i[:-1], k, i[-1]), axis=k)

    return x, te.compute((*shape[:-2], shape[-1]), element, name="Y")


@pytest.mark.parametrize("columns", [2, 3, 4, 5, 7, 8, 13, 20, 24, 40])
def test_sums_of_few_columns(columns: int) -> None:
    m = te.var("m")
    for rows in (997, m):
        x, out = of_columns((rows, columns), "float32", te.sum)
        for size in (997,) if rows == 997 else (997, 16, 3, 0):
            values = RNG.standard_normal((size, columns), dtype="float32")
            exact, sizes = (each.astype("float64").sum(0) for each in (values, np.abs(values)))
            close(built(out, [x], [values]), exact, size, sizes)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8", "int64"])
@pytest.mark.parametrize("shape", [(700, 7), (3, 700, 5), (2, 3, 500, 8)])
def test_other_reductions_of_few_columns(shape: tuple[int, ...], dtype: str) -> None:
    values = RNG.integers(0, 99, shape).astype(dtype)
    for reducer, expected in ((te.max, values.max(-2)), (te.min, values.min(-2))):
        x, out = of_columns(shape, dtype, reducer)
        np.testing.assert_array_equal(built(out, [x], [values]), expected)
    if dtype != "float16":
        x, out = of_columns(shape, dtype, te.sum)
        expected = values.sum(-2, dtype=dtype)
        np.testing.assert_array_equal(built(out, [x], [values]), expected)


def test_rows_of_few_columns_share_vectors() -> None:
    """Sixteen rows of seven columns are seven vectors; what has an order stays as it is."""
    x, out = of_columns((1000, 7), "float32", te.sum)
    assert "split(k, factor=16)" in auto_schedule(out, "llvm -mcpu=znver5").trace()
    assert "split(k, factor=8)" in auto_schedule(out, "llvm -mcpu=haswell").trace()
    _, few = of_columns((100, 7), "float32", te.sum)
    _, wide = of_columns((1000, 64), "float32", te.sum)
    for each in (few, wide):
        assert "rfactor" not in auto_schedule(each, "llvm -mcpu=znver5").trace()
    values = RNG.standard_normal((1000, 7), dtype="float32")
    total = np.zeros(7, "float32")
    for row in values:
        total += row
    np.testing.assert_array_equal(built(out, [x], [values], "strict"), total)


def test_long_sums_of_few_columns_run_in_vectors() -> None:
    """A range that ends elsewhere in each lane would run the lanes one by one."""
    m = te.var("m")
    x, out = of_columns((m, 8), "float32", te.sum)
    loops = str(lower(auto_schedule(out, "llvm -mcpu=znver5"), [x, out]))
    assert "Y.rf.local.rf[0, 0, ramp(0, 1, 64)] + X[broadcast(" in loops


# -- Digits --


@pytest.mark.parametrize(("bits", "length"), [(4, 70), (4, 71), (2, 68), (1, 64), (4, 2)])
def test_packed_weights(bits: int, length: int) -> None:
    """Each byte holds several weights: neighbouring steps read the same byte."""
    each = 8 // bits
    w = te.placeholder((5, -(-length // each)), "uint8", name="W")
    x = te.placeholder((length,), name="X")
    k = te.reduce_axis((0, length), "k")

    def row(i: Any) -> Any:
        digit = (w[i, k // each].astype("int32") >> (k % each * bits)) & ((1 << bits) - 1)
        return te.sum(digit.astype("float32") * x[k], axis=k)

    out = te.compute((5,), row, name="Y")
    codes = RNG.integers(0, 256, (5, -(-length // each)), "uint8")
    values = RNG.standard_normal(length, dtype="float32")
    places = np.arange(length)
    digits = (codes[:, places // each] >> (places % each * bits)) & ((1 << bits) - 1)
    terms = digits * values.astype("float64")
    close(built(out, [w, x], [codes, values]), terms.sum(1), length, np.abs(terms).sum(1))


def test_steps_of_a_byte_are_written_out() -> None:
    w, x = te.placeholder((5, 35), "uint8", name="W"), te.placeholder((70,), name="X")
    k = te.reduce_axis((0, 70), "k")
    out = te.compute(
        (5,), lambda i: te.sum((w[i, k // 2] >> (k % 2).astype("uint8")) * x[k], axis=k), name="Y"
    )
    assert "W[i, k.outer]" in text(out, [w, x])


def test_variances_of_groups_of_channels() -> None:
    """A mean of each group is the same for all steps of its sum."""
    x, m = te.placeholder((2, 5, 7, 24), name="X"), te.placeholder((2, 4), name="M")
    c, y, z = (te.reduce_axis((0, n), name) for n, name in ((6, "c"), (5, "y"), (7, "z")))

    def term(b: Any, u: Any) -> Any:
        apart = x[b, y, z, u * 6 + c] - m[b, u]
        return apart * apart

    out = te.compute((2, 4), lambda b, u: te.sum(term(b, u), axis=[c, y, z]), name="G")
    assert "s.rfactor(G, c" in auto_schedule(out, "llvm -mcpu=haswell").trace()
    values, means = RNG.standard_normal((2, 5, 7, 24)), RNG.standard_normal((2, 4))
    parts = (values.reshape(2, 35, 4, 6) - means[:, None, :, None]) ** 2
    given = [values.astype("float32"), means.astype("float32")]
    close(built(out, [x, m], given), parts.sum((1, 3)), 210, 3 * parts.sum((1, 3)))


# -- Windows that move by several pixels of few channels ------------------------------------------


def pooled(x: Tensor, kernel: int, stride: int, dilation: int, reducer: Any = te.max) -> Tensor:
    height, width, channels = x.shape
    reach = (kernel - 1) * dilation + 1
    r, q = te.reduce_axis((0, kernel), "r"), te.reduce_axis((0, kernel), "q")
    shape = ((height - reach) // stride + 1, (width - reach) // stride + 1, channels)
    made: Tensor = te.compute(
        shape,
        lambda i, j, c: reducer(
            x[i * stride + r * dilation, j * stride + q * dilation, c], axis=[r, q]
        ),
        name="P",
    )
    return made


def windows(x: Any, kernel: int, stride: int, dilation: int) -> Any:
    reach = (kernel - 1) * dilation + 1
    every = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), (0, 1))
    return every[::stride, ::stride, ..., ::dilation, ::dilation]


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("channels", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("window", [(2, 2, 1), (3, 2, 1), (2, 3, 1), (3, 3, 2), (1, 4, 1)])
def test_strided_windows(window: tuple[int, int, int], channels: int, dtype: str) -> None:
    for height, width in ((17, 131), (9, 10), (40, 7)):
        values = RNG.integers(0, 100, (height, width, channels)).astype(dtype)
        x = te.placeholder(values.shape, dtype, name="X")
        expected = windows(values, *window).max((-2, -1))
        np.testing.assert_array_equal(built(pooled(x, *window), [x], [values]), expected)


def test_strided_windows_of_any_size() -> None:
    x = te.placeholder((te.var("h"), te.var("w"), 3), name="X")
    out = pooled(x, 2, 2, 1, te.sum)
    kernel: Any = build([out], [x, out])
    for height, width in ((2, 2), (9, 33), (16, 128), (5, 201)):
        values = RNG.integers(0, 100, (height, width, 3)).astype("float32")
        found = np.zeros((height // 2, width // 2, 3), "float32")
        kernel(values, found)
        np.testing.assert_array_equal(found, windows(values, 2, 2, 1).sum((-2, -1)))


@pytest.mark.parametrize("channels", [2, 3, 4, 7])
def test_pixels_of_strided_windows_share_vectors(channels: int) -> None:
    """Elements are picked from vectors of neighbours: nothing is gathered."""
    x = te.placeholder((64, 256, channels), name="X")
    out = pooled(x, 2, 2, 1)
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"
    kernel: Any = build([out], [x, out], target)
    assert "masked.gather" not in kernel.get_source("ll")
    trace = auto_schedule(out, target).trace()
    (columns,) = {int(each) for each in re.findall(r"j_c_fused\w*, factor=(\d+)", trace)}
    assert columns % channels == 0 and columns >= 64


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_weighted_strided_windows(channels: int, stride: int) -> None:
    """A level of a pyramid: the same weights for all channels."""
    x = te.placeholder((33, 140, channels), name="X")
    w = te.placeholder((5,), name="W")
    r, q = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, 5), "q")
    shape = ((33 - 5) // stride + 1, (140 - 5) // stride + 1, channels)
    out = te.compute(
        shape,
        lambda i, j, c: te.sum(x[i * stride + r, j * stride + q, c] * w[r] * w[q], axis=[r, q]),
        name="P",
    )
    values = RNG.random((33, 140, channels), dtype="float32")
    weights = RNG.random(5, dtype="float32")
    terms = windows(values, 5, stride, 1) * np.outer(weights, weights)
    close(built(out, [x, w], [values, weights]), terms.sum((-2, -1)), 75, terms.sum((-2, -1)))
    trace = auto_schedule(out, "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").trace()
    assert re.search(r"s\[P\].fuse\(j\w*, c\w*\)", trace)


@pytest.mark.parametrize(("calls", "lanes"), [(3, 64), (80, 32), (150, 16)])
def test_long_bodies_are_computed_in_fewer_vectors_at_once(calls: int, lanes: int) -> None:
    """Vectors of functions run side by side, unless the code of one is long."""
    X = te.placeholder((640,), name="X")

    def element(i: Any) -> Any:
        value = X[i]
        for _ in range(calls):
            value = te.sin(value)
        return value

    Y = te.compute((640,), element, name="Y")
    s = auto_schedule(Y, "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    assert [each.factor for each in s[Y].relations if hasattr(each, "factor")] == [lanes]
