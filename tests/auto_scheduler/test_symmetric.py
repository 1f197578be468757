"""Contractions whose rows and columns can be exchanged: half of the results is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import build, te
from minitvm.auto_scheduler import auto_schedule

HASWELL = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"

Term = Callable[[Any, Any, Any, Any], Any]


def of(shape: tuple[int, int], term: Term, dtype: str = "float32", **more: Any) -> tuple[Any, Any]:
    X, k = te.placeholder(shape, dtype, name="X"), te.reduce_axis((0, shape[1]), name="k")
    n = shape[0]
    return X, te.compute((n, n), lambda i, j: te.sum(term(X, i, j, k), axis=k, **more), name="C")


def product(X: Any, i: Any, j: Any, k: Any) -> Any:
    return X[i, k] * X[j, k]


def is_mirrored(output: Any) -> bool:
    return "mirror(" in auto_schedule(output, HASWELL).trace()


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(97, 200), (256, 96), (130, 65), (17, 5)], ids=str)
@pytest.mark.parametrize("is_last", [True, False], ids=["output", "read"])
def test_gram_matrices(shape: tuple[int, int], dtype: str, is_last: bool) -> None:
    X, C = of(shape, product, dtype)
    D = C if is_last else te.compute(C.shape, lambda i, j: C[i, j] * 2 + X[i, 0], name="D")
    x = np.random.default_rng(0).integers(-9, 10, shape).astype(dtype)
    got = np.full((shape[0], shape[0]), 77, dtype)
    build([D], [X, D])(x, got)
    expected = x @ x.T if is_last else x @ x.T * 2 + x[:, :1]
    np.testing.assert_array_equal(got, expected)


def test_gram_matrices_of_any_size() -> None:
    m, k = te.var("m"), te.var("k")
    X, r = te.placeholder((m, k), name="X"), te.reduce_axis((0, k), name="k")
    C = te.compute((m, m), lambda i, j: te.sum(X[i, r] * X[j, r], axis=r), name="C")
    s = auto_schedule(C, HASWELL)
    assert "mirror(" in s.trace().split("s.specialize")[0]
    f = build([C], [X, C], HASWELL)
    for rows in (0, 1, 2, 7, 47, 48, 49, 64, 65, 97, 130):
        for steps in (0, 1, 3, 64, 100, 300):
            x = np.random.default_rng(0).integers(-9, 10, (rows, steps)).astype("float32")
            around = np.full((rows + 2, rows), 77, "float32")
            f(x, around[1:-1])
            np.testing.assert_array_equal(around[1:-1], x @ x.T)
            assert (around[[0, -1]] == 77).all()


def test_batches_and_parts_of_factors() -> None:
    X, M = te.placeholder((3, 100, 160), name="X"), te.placeholder((3, 160), name="M")
    k = te.reduce_axis((0, 100), name="k")

    def covariance(b: Any, i: Any, j: Any) -> Any:
        return te.sum((X[b, k, i] - M[b, i]) * (X[b, k, j] - M[b, j]), axis=k)

    C = te.compute((3, 160, 160), covariance, name="C")
    x = np.random.default_rng(0).standard_normal((3, 100, 160), "float32")
    mean, got = x.mean(1), np.empty((3, 160, 160), "float32")
    build([C], [X, M, C])(x, mean, got)
    y = x.astype("float64") - mean[:, None]
    np.testing.assert_allclose(got, y.transpose(0, 2, 1) @ y, rtol=1e-4, atol=1e-3)
    assert is_mirrored(C)


def test_what_is_mirrored() -> None:
    shape = (256, 500)
    assert is_mirrored(of(shape, product)[1])
    assert is_mirrored(of(shape, lambda X, i, j, k: (X[i, k] - X[j, k]) * (X[i, k] - X[j, k]))[1])
    assert not is_mirrored(of(shape, lambda X, i, j, k: (X[i, k] - X[j, k]) * X[j, k])[1])
    assert not is_mirrored(of((256, 256), lambda X, i, j, k: X[i, k] * X[k, j])[1])
    assert not is_mirrored(of((6, 500), product)[1]), "one tile"
    assert not is_mirrored(of((2048, 4), product)[1]), "mirroring takes longer"
    X, C = of(shape, product)
    k = te.reduce_axis((0, 500), name="k")
    low = te.compute(
        C.shape, lambda i, j: te.sum(product(X, i, j, k), axis=k, where=k <= i), name="L"
    )
    assert not is_mirrored(low)
