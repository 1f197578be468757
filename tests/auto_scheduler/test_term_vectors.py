"""Reductions whose terms LLVM makes poor vectors of, in vectors of the schedule: terms that call
functions, and short pieces of lines. Several reductions in the registers of one reader, and rows of
outputs beside those that read them. Values against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor

Array = np.ndarray[Any, Any]
AVX512 = "llvm -mcpu=skylake-avx512 -num-cores=2"
HASWELL = "llvm -mcpu=haswell -num-cores=2"


def result(output: Tensor, inputs: list[Tensor], values: list[Array], shape: Any) -> Array:
    found = np.empty(shape, str(output.dtype))
    tvm.build([output], [*inputs, output])(*values, found)
    return found


def drawn(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


# -- Terms that call functions --


def focal(X: Tensor, T: Tensor) -> Tensor:
    n, c = X.shape
    k = te.reduce_axis((0, c), name="k")

    def term(i: Any) -> Any:
        x = X[i, k]
        p, softplus = te.sigmoid(x), te.max(x, 0.0) + te.log(1.0 + te.exp(-te.abs(x)))
        return te.if_then_else(k == T[i], (1.0 - p) * (softplus - x), p * softplus)

    R: Tensor = te.compute((n,), lambda i: te.sum(term(i), axis=k), name="R")
    return R


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(33, 10), (7, 100), (5, 333), (40, 16)])
def test_functions_in_terms(shape: tuple[int, int], dtype: str) -> None:
    n, c = shape
    X, T = te.placeholder(shape, dtype, name="X"), te.placeholder((n,), "int32", name="T")
    x, t = drawn(n, c, dtype=dtype), np.arange(n, dtype="int32") % c
    p, softplus = 1 / (1 + np.exp(-x.astype("float64"))), np.logaddexp(0, x.astype("float64"))
    is_label = t[:, None] == np.arange(c)
    wanted = np.where(is_label, (1 - p) * (softplus - x), p * softplus).sum(1)
    R = focal(X, T)
    np.testing.assert_allclose(
        result(R, [X, T], [x, t], n), wanted, rtol=1e-4 if dtype == "float32" else 1e-12
    )


@pytest.mark.parametrize("target", [AVX512, HASWELL])
def test_functions_are_vectors_of_the_schedule(target: str) -> None:
    X, T = te.placeholder((33, 1000), name="X"), te.placeholder((33,), "int32", name="T")
    trace = auto_schedule(focal(X, T), target).trace()
    assert "s.rfactor(" in trace
    assert ".vectorize(" in trace


def test_a_plain_term_is_left_to_llvm() -> None:
    X, k = te.placeholder((33, 1000), name="X"), te.reduce_axis((0, 1000), name="k")
    R = te.compute((33,), lambda i: te.sum(X[i, k] * X[i, k], axis=k), name="R")
    assert "s.rfactor(" not in auto_schedule(R, HASWELL).trace()


# -- Short pieces --


def without_diagonal(X: Tensor) -> Tensor:
    b, m, n = X.shape
    k, r = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, n), name="r")

    def term(i: Any) -> Any:
        return te.if_then_else(k == r, te.const(0, X.dtype), X[i, k, r] * X[i, k, r])

    R: Tensor = te.compute((b,), lambda i: te.sum(term(i), axis=[k, r]), name="R")
    return R


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(9, 7), (12, 12), (24, 24), (5, 31), (3, 3), (40, 5)])
def test_short_pieces(shape: tuple[int, int], dtype: str) -> None:
    X = te.placeholder((21, *shape), dtype, name="X")
    x = (4 * drawn(21, *shape)).astype(dtype)
    wanted = (x.astype("float64") ** 2 * ~np.eye(*shape, dtype=bool)).sum((1, 2))
    found = result(without_diagonal(X), [X], [x], 21)
    np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("extent", [7, 12, 24, 31])
def test_pieces_lie_in_lanes(extent: int) -> None:
    X = te.placeholder((21, 40, extent), name="X")
    assert "s.rfactor(" in auto_schedule(without_diagonal(X), AVX512).trace()


def test_a_band_takes_its_own_steps() -> None:
    """The loops of a band are clipped: they are shorter than a vector."""
    X = te.placeholder((21, 12, 12), name="X")
    k, r = te.reduce_axis((0, 12), name="k"), te.reduce_axis((0, 12), name="r")

    def element(i: Any) -> Any:
        return te.sum(X[i, k, r], axis=[k, r], where=te.all(k - r <= 1, r - k <= 1))

    R = te.compute((21,), element, name="R")
    assert "s.rfactor(" not in auto_schedule(R, AVX512).trace()
    x = drawn(21, 12, 12)
    near = abs(np.subtract.outer(np.arange(12), np.arange(12))) <= 1
    np.testing.assert_allclose(
        result(R, [X], [x], 21), (x * near).sum((1, 2)), rtol=1e-4, atol=1e-5
    )


# -- Several reductions of one reader --


def spread(X: Tensor, size: int) -> tuple[Tensor, list[Tensor]]:
    """The largest element of each window less the smallest."""
    h, w = (extent - (size - 1) for extent in X.shape)

    def extremum(combine: Any, name: str) -> Tensor:
        r, q = (te.reduce_axis((0, size), name=each) for each in "rq")
        made: Tensor = te.compute(
            (h, w), lambda i, j: combine(X[i + r, j + q], axis=[r, q]), name=name
        )
        return made

    largest, smallest = extremum(te.max, "largest"), extremum(te.min, "smallest")
    R = te.compute((h, w), lambda i, j: largest[i, j] - smallest[i, j], name="R")
    return R, [largest, smallest]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("shape", [(9, 11), (20, 45), (7, 301)])
def test_two_windows(shape: tuple[int, int], dtype: str) -> None:
    X = te.placeholder(shape, dtype, name="X")
    x = (40 * np.abs(drawn(*shape))).astype(dtype)
    windows = sliding_window_view(x, (3, 3))
    wanted = windows.max((2, 3)) - windows.min((2, 3))
    np.testing.assert_array_equal(result(spread(X, 3)[0], [X], [x], wanted.shape), wanted)


@pytest.mark.parametrize("shape", [(3, 20, 40), (2, 200, 300), (5, 9, 64)])
def test_three_sums_of_columns(shape: tuple[int, int, int]) -> None:
    b, n, d = shape
    X, Y = (te.placeholder(shape, name=name) for name in "XY")

    def sums(A: Tensor, B: Tensor, name: str) -> Tensor:
        k = te.reduce_axis((0, n), name="k")
        made: Tensor = te.compute(
            (b, d), lambda i, j: te.sum(A[i, k, j] * B[i, k, j], axis=k), name=name
        )
        return made

    XY, XX, YY = sums(X, Y, "XY"), sums(X, X, "XX"), sums(Y, Y, "YY")
    R = te.compute((b, d), lambda i, j: XY[i, j] * te.rsqrt(XX[i, j] * YY[i, j]), name="R")
    x, y = drawn(*shape), 1 - drawn(*shape)
    wide = x.astype("float64"), y.astype("float64")
    wanted = (wide[0] * wide[1]).sum(1) / np.sqrt((wide[0] ** 2).sum(1) * (wide[1] ** 2).sum(1))
    found = result(R, [X, Y], [x, y], (b, d))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_their_results_stay_in_registers() -> None:
    X = te.placeholder((40, 641), name="X")
    R, made = spread(X, 3)
    s = auto_schedule(R, HASWELL)
    assert [s[each].scope for each in made] == ["local", "local"]


def test_results_that_the_caller_gets_stay_in_memory() -> None:
    X = te.placeholder((40, 61), name="X")
    R, (largest, smallest) = spread(X, 3)
    x, found = drawn(40, 61), [np.empty((38, 59), "float32") for _ in range(3)]
    tvm.build([largest, smallest, R], [X, largest, smallest, R])(x, *found)
    windows = sliding_window_view(x, (3, 3))
    np.testing.assert_array_equal(found[0], windows.max((2, 3)))
    np.testing.assert_array_equal(found[2], windows.max((2, 3)) - windows.min((2, 3)))


# -- Outputs whose rows another output reads --


def lifted(X: Tensor) -> list[Tensor]:
    """The differences and the sums of one step of a wavelet, in place."""
    m, n = (int(str(extent)) for extent in X.shape)
    half = n // 2

    def difference(i: Any, j: Any) -> Any:
        return X[i, 2 * j + 1] - 0.5 * (X[i, 2 * j] + X[i, 2 * te.min(j + 1, half - 1)])

    D = te.compute((m, half), difference, name="D")
    S = te.compute(
        (m, half),
        lambda i, j: X[i, 2 * j] + 0.25 * (D[i, te.max(j - 1, 0)] + D[i, j]),
        name="S",
    )
    return [D, S]


@pytest.mark.parametrize("shape", [(7, 30), (300, 134)])
def test_rows_of_outputs(shape: tuple[int, int]) -> None:
    """The rows of a large output are computed beside those that read them."""
    X = te.placeholder(shape, name="X")
    D, S = lifted(X)
    is_large = shape[0] == 300
    assert ("s[D].compute_at(s[S], i" in auto_schedule([D, S], HASWELL).trace()) == is_large
    x = drawn(*shape)
    even, odd = x[:, ::2], x[:, 1::2]
    d = odd - 0.5 * (even + np.concatenate([even[:, 1:], even[:, -1:]], 1))
    wanted = even + 0.25 * (np.concatenate([d[:, :1], d[:, :-1]], 1) + d)
    found = [np.full(d.shape, np.nan, "float32") for _ in range(2)]
    tvm.build([D, S], [X, D, S])(x, *found)
    np.testing.assert_allclose(found[0], d, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [67, 134])
def test_rows_that_are_read_in_part(columns: int) -> None:
    """Not even if a stage between reads whole rows, of which the last stage reads a part."""
    X = te.placeholder((300, 134), "float64", name="X")
    A = te.compute((300, 134), lambda i, j: X[i, j] * 2.0, name="A")
    B = te.compute((300, 134), lambda i, j: A[i, j] + A[i, te.max(j - 1, 0)], name="B")
    C = te.compute((300, columns), lambda i, j: B[i, j] * B[i, te.max(j - 1, 0)], name="C")
    x, found = drawn(300, 134, dtype="float64"), [np.empty((300, n)) for n in (134, columns)]
    tvm.build([A, C], [X, A, C])(x, *found)
    a = 2 * x
    b = a + np.concatenate([a[:, :1], a[:, :-1]], 1)
    np.testing.assert_allclose(found[0], a)
    wanted = (b * np.concatenate([b[:, :1], b[:, :-1]], 1))[:, :columns]
    np.testing.assert_allclose(found[1], wanted)
