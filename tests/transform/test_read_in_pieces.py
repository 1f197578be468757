"""Vectors read where an index is linear in parts: as they become, and that the values are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor

n = te.var("n")
TARGET = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"

At = Callable[[Any, Any], Any]
INDICES: dict[str, tuple[Any, At, At]] = {
    "least": (n + 4, lambda j, n: te.min(j, n - 1), lambda j, n: np.minimum(j, n - 1)),
    "both": (
        n + 9,
        lambda j, n: te.max(te.min(j - 4, n - 1), 0),
        lambda j, n: np.clip(j - 4, 0, n - 1),
    ),
    "reflected": (
        n + 2,
        lambda j, n: te.if_then_else(j < n, j, te.max(2 * n - 2 - j, 0)),
        lambda j, n: np.where(j < n, j, np.maximum(2 * n - 2 - j, 0)),
    ),
    "rolled": (n, lambda j, n: (j + 5) % n, lambda j, n: (j + 5) % n),
    "rolled by half": (n, lambda j, n: (j + n // 2) % n, lambda j, n: (j + n // 2) % n),
    "wrapped": (n + 40, lambda j, n: (j + n - 3) % n, lambda j, n: (j + n - 3) % n),
    "wrapped below": (n + 3, lambda j, n: (j - 7) % n, lambda j, n: (j - 7) % n),
}


def rows(name: str, dtype: str = "float32") -> list[Tensor]:
    m, (extent, at, _) = te.var("m"), INDICES[name]
    X = te.placeholder((m, n), dtype, name="X")
    return [X, te.compute((m, extent), lambda i, j: X[i, at(j, n)], name="Y")]


def loops(name: str, target: str) -> str:
    tensors = rows(name)
    s = tvm.auto_schedule(tensors[-1], target)
    made = tvm.target.Target(target)
    lowered = tvm.lower(
        s,
        tensors,
        vector_bytes=made.vector_bits // 8,
        mask_registers=made.has_mask_registers,
    )
    return str(lowered)


@pytest.mark.parametrize("name", ["least", "both", "reflected", "rolled", "rolled by half"])
def test_lanes_read_neighbours(name: str) -> None:
    _, text = loops(name, TARGET).split("    for i in", 1)
    reads = [each.split(", where")[0].split("]")[0] for each in text.split("X[i, ")[1:]]
    assert any(each.startswith("ramp(") for each in reads)
    assert all("broadcast" not in each for each in reads)  # no vector of places


def test_a_row_that_may_be_shorter_than_a_vector_keeps_its_form() -> None:
    text = loops("wrapped", TARGET)
    assert "if_then_else(16 <= int64(n), let begin = " in text and "% broadcast(int64(n)" in text


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
@pytest.mark.parametrize("name", INDICES)
def test_values(name: str, dtype: str, target: str) -> None:
    tensors = rows(name, dtype)
    f = tvm.build(tensors[-1], tensors, target, name="f")
    at = INDICES[name][2]
    for size in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 47, 64, 65, 100):
        x = np.random.default_rng(0).integers(0, 100, (3, size)).astype(dtype)
        more = {"least": 4, "both": 9, "reflected": 2, "wrapped": 40, "wrapped below": 3}
        columns = size + more.get(name, 0)
        expected = x[:, at(np.arange(columns), size)]
        for each in (x, np.asfortranarray(x)):
            got = np.full((3, columns), 77, dtype)
            f(each, got)
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("size", [16, 17, 65])
def test_constant_sizes(size: int) -> None:
    X = te.placeholder((5, size), name="X")
    Y = te.compute((5, size + 3), lambda i, j: X[i, (j + 5) % size], name="Y")
    f = tvm.build(Y, [X, Y], name="f")
    x, got = np.random.default_rng(0).random((5, size), "float32"), np.empty((5, size + 3), "f")
    f(x, got)
    np.testing.assert_array_equal(got, x[:, (np.arange(size + 3) + 5) % size])


def test_empty_rows_are_refused_at_the_call() -> None:
    tensors = rows("wrapped")
    f = tvm.build(tensors[-1], tensors, name="f")
    with pytest.raises(ValueError, match=r"needs n >= 1 or m <= 0, got n = 0"):
        f(np.empty((2, 0), "float32"), np.empty((2, 40), "float32"))


def test_numbers_without_places_are_read_as_they_are() -> None:
    X, c = te.placeholder((n,), name="X"), te.placeholder((), name="c")
    Y = te.compute((n,), lambda j: X[te.min(j + 1, n - 1)] * c(), name="Y")
    f = tvm.build(Y, [X, c, Y], name="f")
    x, got = np.arange(40, dtype="float32"), np.empty(40, "float32")
    f(x, np.array(3, "float32"), got)
    np.testing.assert_array_equal(got, 3 * np.append(x[1:], x[-1]))
