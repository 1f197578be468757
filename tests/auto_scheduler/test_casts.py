"""Contractions of factors whose elements are cast: copies hold them in the dtype of the products,
so that the innermost loops convert nothing. Small integers are exact in any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import mul
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from tests.auto_scheduler.contractions import product
from tests.whole_programs.running import strategies_that_failed

HASWELL = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell -num-cores=2"
PAIRS = [
    ("bfloat16", "float32"), ("float16", "float32"), ("int8", "float32"), ("uint8", "int64"),
    ("float32", "float64"), ("float16", "float64"), ("int16", "float32"), ("int32", "float64"),
]  # fmt: skip
Value = Any


def numpy_of(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def distance(a: Value, b: Value) -> Value:
    return te.abs(a - b)


def run(tensors: list[te.Tensor], sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    """The arguments and the result of a program, without failed strategies."""
    rng = np.random.default_rng(0)
    shapes = [
        [(sizes or {}).get(str(extent)) or int(str(extent)) for extent in each.shape]
        for each in tensors
    ]
    arrays = [
        rng.integers(0, 6, shape).astype(numpy_of(str(each.dtype)))
        for shape, each in zip(shapes, tensors, strict=True)
    ]
    with strategies_that_failed() as failed:
        tvm.build(tensors[-1], tensors, name="f")(*arrays)
    assert not failed
    return arrays


@pytest.mark.parametrize(("narrow", "wide"), PAIRS)
@pytest.mark.parametrize(("layout", "term"), [
    ("NN", mul), ("NT", mul), ("TN", distance), ("TT", mul), ("NN", distance),
])  # fmt: skip
@pytest.mark.covering(1)
def test_products(
    narrow: str, wide: str, layout: str, term: Callable[[Value, Value], Value]
) -> None:
    x, y, found = run(product(37, 45, 53, (narrow, narrow, wide), layout, term))
    x, y = (each.astype(wide) for each in (x, y))
    x, y = (x if layout[0] == "N" else x.T), (y if layout[1] == "N" else y.T)
    expected = x @ y if term is mul else np.abs(x[:, :, None] - y[None]).sum(1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("narrow", "wide"), [("int8", "float32"), ("float32", "float64")])
def test_panels_and_strips_are_cast(narrow: str, wide: str) -> None:
    """No conversion is left in the stage of the sums."""
    *_, c = product(96, 96, 96, (narrow, narrow, wide))
    trace = auto_schedule(c, HASWELL).trace()
    assert trace.count(f"dtype='{wide}')") == 2


def test_64_bit_integers_are_widened_where_they_are_multiplied() -> None:
    """A product of two 64-bit integers takes several instructions, one of widened 32-bit integers a
    single one."""
    *_, c = product(96, 96, 96, ("int32", "int32", "int64"))
    assert "dtype=" not in auto_schedule(c, HASWELL).trace()


@pytest.mark.covering(2)
@pytest.mark.parametrize("narrow", ["float16", "int8"])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("channels", "out", "window"), [(8, 24, 3), (3, 20, 3), (32, 64, 1)])
def test_windows(narrow: str, is_last: bool, channels: int, out: int, window: int) -> None:
    """The image is read through windows from a copy of the whole of it."""
    size = 11
    made = size - window + 1
    image = (2, size, size, channels) if is_last else (2, channels, size, size)
    kernel = (window, window, channels, out) if is_last else (out, channels, window, window)
    x, w = te.placeholder(image, narrow, name="X"), te.placeholder(kernel, narrow, name="W")
    c, r, q = (te.reduce_axis((0, n)) for n in (channels, window, window))

    def last(n: Any, i: Any, j: Any, f: Any) -> Any:
        return te.sum(
            x[n, i + r, j + q, c].astype("float32") * w[r, q, c, f].astype("float32"), [r, q, c]
        )

    def first(n: Any, f: Any, i: Any, j: Any) -> Any:
        return te.sum(
            x[n, c, i + r, j + q].astype("float32") * w[f, c, r, q].astype("float32"), [c, r, q]
        )

    shape = (2, made, made, out) if is_last else (2, out, made, made)
    y = te.compute(shape, last if is_last else first, name="Y")
    data, weights, found = run([x, w, y])
    places = np.lib.stride_tricks.sliding_window_view(
        data.astype("float32"), (window, window), axis=(1, 2) if is_last else (2, 3)
    )
    equation = "nijcrq,rqcf->nijf" if is_last else "ncijrq,fcrq->nfij"
    np.testing.assert_array_equal(found, np.einsum(equation, places, weights.astype("float32")))


@pytest.mark.parametrize("width", [5, 40])
def test_of_one_tensor(width: int) -> None:
    """A tensor times itself: each side has a copy of its own."""
    a = te.placeholder((70, width), "float32", name="A")
    k = te.reduce_axis((0, 70), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[k, i].astype("float64") * a[k, j].astype("float64"), axis=k)

    c = te.compute((width, width), element, name="C")
    x, found = run([a, c])
    np.testing.assert_array_equal(found, x.astype("float64").T @ x.astype("float64"))


@cache
def _symbolic_rows() -> Any:
    """``max((A @ B) * scale - 9, 0)`` of any number of rows."""
    m = te.var("m")
    a, b = te.placeholder((m, 96), "int8", name="A"), te.placeholder((96, 80), "int8", name="B")
    scale = te.placeholder((80,), "float32", name="S")
    k = te.reduce_axis((0, 96), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    sums = te.compute((m, 80), element, name="sums")
    c = te.compute((m, 80), lambda i, j: te.max(sums[i, j] * scale[j] - 9, 0.0), name="C")
    return tvm.build(c, [a, b, scale, c], name="f")


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
def test_symbolic_rows_with_an_epilogue(rows: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-5, 6, (rows, 96), "int8"), rng.integers(-5, 6, (96, 80), "int8")
    factor, found = rng.integers(0, 3, 80).astype("float32"), np.empty((rows, 80), "float32")
    _symbolic_rows()(x, y, factor, found)
    expected = np.maximum(x.astype("float32") @ y.astype("float32") * factor - 9, 0)
    np.testing.assert_array_equal(found, expected)


def test_rows_that_data_choose() -> None:
    """A table of more elements than are read isn't copied as a whole."""
    table = te.placeholder((5000, 64), "float16", name="T")
    index, w = (
        te.placeholder((20,), "int32", name="I"),
        te.placeholder((64, 48), "float16", name="W"),
    )
    k = te.reduce_axis((0, 64), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(table[index[i], k].astype("float32") * w[k, j].astype("float32"), axis=k)

    c = te.compute((20, 48), element, name="C")
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 4, (5000, 64)).astype("float16")
    at, y = rng.integers(0, 5000, 20, "int32"), rng.integers(0, 4, (64, 48)).astype("float16")
    found = np.empty((20, 48), "float32")
    s = auto_schedule(c)
    assert f"cache_read({table.name}" not in s.trace()
    tvm.build(c, [table, index, w, c], name="f")(rows, at, y, found)
    np.testing.assert_array_equal(found, rows[at].astype("float32") @ y.astype("float32"))
