"""The error of long sums of float32: no worse than that of numpy's pairwise sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm import build, te
from minitvm.te.tensor import Tensor

TERMS = 10**7
BOUND = 2.0**-24 * np.log2(TERMS)
"""The relative error of a pairwise sum of terms of one sign (Higham, Accuracy and Stability of
Numerical Algorithms, section 4.2)."""

Case = tuple[tuple[int, ...], tuple[int, ...]]  # the shape, and the axes that are summed up
CASES: dict[str, Case] = {
    "all": ((TERMS,), (0,)),
    "all of a matrix": ((2500, 4000), (0, 1)),
    "a row": ((1, TERMS), (1,)),
    "rows": ((8, TERMS // 8), (1,)),
    "a column": ((TERMS, 1), (0,)),
    "few columns": ((TERMS // 8, 8), (0,)),
    "columns": ((TERMS // 64, 64), (0,)),
    "columns in the middle": ((2, TERMS // 16, 8), (1,)),
    "the first and the last": ((1250, 8, 1000), (0, 2)),
}


def summed(case: Case, *, is_symbolic: bool, is_mean: bool = False) -> list[Tensor]:
    shape, axes = case
    sizes: list[Any] = [te.var(f"n{d}") if is_symbolic else n for d, n in enumerate(shape)]
    X = te.placeholder(tuple(sizes), name="X")
    summed_axes = {d: te.reduce_axis((0, sizes[d]), name=f"k{d}") for d in axes}
    kept = [d for d in range(len(shape)) if d not in axes]

    def term(*place: Any) -> Any:
        at = {**summed_axes, **dict(zip(kept, place, strict=True))}
        return X(*(at[d] for d in range(len(shape))))

    S = te.compute(
        tuple(sizes[d] for d in kept),
        lambda *i: te.sum(term(*i), axis=list(summed_axes.values())),
        name="S",
    )
    if not is_mean:
        return [X, S]
    count = float(np.prod([shape[d] for d in axes]))
    return [X, te.compute(S.shape, lambda *i: S(*i) * (1.0 / count), name="M")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_error(name: str, is_symbolic: bool) -> None:
    shape, axes = CASES[name]
    if is_symbolic and name == "the first and the last":
        pytest.skip("two sizes are multiplied")
    x = np.random.default_rng(0).random(shape, dtype="float32")
    expected = x.sum(axes, dtype="float64")
    found = np.zeros(expected.shape, "float32")
    arguments = summed(CASES[name], is_symbolic=is_symbolic)
    build([arguments[-1]], arguments)(x, found)
    assert (np.abs(found - expected) <= BOUND * expected).all()


@pytest.mark.parametrize("name", ["all", "rows", "few columns", "columns", "columns in the middle"])
def test_error_of_means(name: str) -> None:
    shape, axes = CASES[name]
    x = np.random.default_rng(0).random(shape, dtype="float32")
    expected = x.mean(axes, dtype="float64")
    found = np.zeros(expected.shape, "float32")
    arguments = summed(CASES[name], is_symbolic=False, is_mean=True)
    build([arguments[-1]], arguments)(x, found)
    assert (np.abs(found - expected) <= BOUND * expected).all()


def test_strict_sums_stay_in_order() -> None:
    x = np.random.default_rng(0).random((5000, 8), dtype="float32")
    arguments = summed(((5000, 8), (0,)), is_symbolic=False)
    found = np.zeros(8, "float32")
    build([arguments[-1]], arguments, fp="strict")(x, found)
    np.testing.assert_array_equal(found, np.add.accumulate(x, 0)[-1])
