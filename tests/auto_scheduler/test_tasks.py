"""What threads share: which loops are parallel, in how many iterations, and when they stay on one
thread. No time is measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.codegen.parallel import PARALLEL_FOR
from minitvm.runtime import num_threads
from minitvm.te.tensor import Tensor

CORES = 2
TARGET = f"llvm -num-cores={CORES}"
Program = Callable[..., tuple[list[Tensor], Callable[..., Any]]]


def full_sum(*shape: int) -> tuple[list[Tensor], Callable[..., Any]]:
    X = te.placeholder(shape, name="X")
    k = [te.reduce_axis((0, n), f"k{i}") for i, n in enumerate(shape)]
    S = te.compute((), lambda: te.sum(X[tuple(k)], axis=k), name="S")
    return [X, S], lambda x: x.sum()


def row_sums(m: int, n: int) -> tuple[list[Tensor], Callable[..., Any]]:
    X, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, n), "k")
    return [X, te.compute((m,), lambda i: te.sum(X[i, k], axis=k), name="S")], lambda x: x.sum(1)


def column_sums(*shape: int) -> tuple[list[Tensor], Callable[..., Any]]:
    """Over all axes but the last."""
    X = te.placeholder(shape, name="X")
    k = [te.reduce_axis((0, n), f"k{i}") for i, n in enumerate(shape[:-1])]
    S = te.compute(shape[-1:], lambda j: te.sum(X(*k, j), axis=k), name="S")
    return [X, S], lambda x: x.sum((*range(len(shape) - 1),))


def column_maxima(m: int, n: int) -> tuple[list[Tensor], Callable[..., Any]]:
    X, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, m), "k")
    return [X, te.compute((n,), lambda j: te.max(X[k, j], axis=k), name="S")], lambda x: x.max(0)


def biased(m: int, n: int) -> tuple[list[Tensor], Callable[..., Any]]:
    X, B = te.placeholder((m, n), name="X"), te.placeholder((n,), name="B")
    Y = te.compute((m, n), lambda i, j: te.exp(X[i, j]) + B[j], name="Y")
    return [X, B, Y], lambda x, b: np.exp(x) + b


def copied(*shape: int) -> tuple[list[Tensor], Callable[..., Any]]:
    X = te.placeholder(shape, name="X")
    return [X, te.compute(shape, lambda *i: X(*i) * 2.0, name="Y")], lambda x: x * 2


def softmax(m: int, n: int) -> tuple[list[Tensor], Callable[..., Any]]:
    X = te.placeholder((m, n), name="X")
    k, q = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "q")
    most = te.compute((m,), lambda i: te.max(X[i, k], axis=k), name="most")
    power = te.compute((m, n), lambda i, j: te.exp(X[i, j] - most[i]), name="power")
    total = te.compute((m,), lambda i: te.sum(power[i, q], axis=q), name="total")

    def of(x: Any) -> Any:
        found = np.exp(x - x.max(1, keepdims=True))
        return found / found.sum(1, keepdims=True)

    return [X, te.compute((m, n), lambda i, j: power[i, j] / total[i], name="Y")], of


def product(m: int, k: int, n: int) -> tuple[list[Tensor], Callable[..., Any]]:
    A, B, q = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), None
    q = te.reduce_axis((0, k), "q")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, q] * B[q, j], axis=q), name="C")
    return [A, B, C], lambda a, b: a @ b


LARGE: dict[str, tuple[Program, tuple[int, ...]]] = {
    # The last part of a sum is shorter than the others.
    "sum of a million": (full_sum, (1_000_000,)),
    "sum of one row": (full_sum, (1, 1_320_000)),
    "sum of a matrix": (full_sum, (100_003, 7)),
    "sum of whole parts": (full_sum, (1024, 1024)),
    "row sums": (row_sums, (256, 4096)),
    "sums of three rows": (row_sums, (3, 400_000)),
    "sum of the one row": (row_sums, (1, 1_000_000)),
    "column sums": (column_sums, (2048, 512)),
    "sums of seven columns": (column_sums, (100_003, 7)),
    "sums of sixteen columns": (column_sums, (100_003, 16)),
    "column sums over two axes": (column_sums, (300, 400, 7)),
    "maxima of seven columns": (column_maxima, (100_003, 7)),
    "one row": (biased, (1, 300_000)),
    "two rows": (biased, (2, 150_000)),
    "three rows": (biased, (3, 100_000)),
    "seven rows": (biased, (7, 50_000)),
    "an axis of one element": (copied, (1, 1, 1_000_000)),
    "softmax of one row": (softmax, (1, 300_000)),
    "softmax": (softmax, (64, 1000)),
    "a row of tiles": (product, (16, 32, 4096)),
    "three tiles of rows": (product, (18, 600, 64)),
    "skinny product": (product, (1024, 16, 512)),
}


def built(program: Program, *shape: int) -> tuple[Any, list[Tensor], Callable[..., Any]]:
    args, expected = program(*shape)
    return tvm.build([args[-1]], args, TARGET, name="f"), args, expected


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_are_shared_by_all_cores(name: str) -> None:
    """The loop that does most has iterations for both cores, and about as many for each."""
    program, shape = LARGE[name]
    f, args, expected = built(program, *shape)
    shared = [each for each in tvm.explain(f, measure=False).parallel if each.starts_threads]
    assert shared
    iterations = shared[0].iterations
    assert isinstance(iterations, int)
    assert -(-iterations // CORES) * CORES <= 1.25 * iterations
    generator = np.random.default_rng(0)
    arrays = [generator.random([int(n) for n in t.shape], "float32") for t in args[:-1]]
    want = expected(*(a.astype("float64") for a in arrays))
    found = []
    for threads in (1, 2, 3, 7):
        out = np.full([int(n) for n in args[-1].shape], np.nan, "float32")
        with num_threads(threads):
            f(*arrays, out)
        np.testing.assert_allclose(out, want, rtol=1e-4)
        found.append(out)
    for out in found[1:]:
        np.testing.assert_array_equal(out, found[0])


SMALL: dict[str, tuple[Program, tuple[int, ...]]] = {
    "copy": (copied, (10_000,)),
    "one row": (biased, (1, 1000)),
    "sum": (full_sum, (10_000,)),
    "row sums": (row_sums, (64, 100)),
    "column sums": (column_sums, (64, 100)),
    "softmax": (softmax, (10, 100)),
    "product": (product, (20, 20, 20)),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_ones_stay_on_one_thread(name: str) -> None:
    program, shape = SMALL[name]
    f, _, _ = built(program, *shape)
    assert PARALLEL_FOR not in f.get_source("ll")


def worth(f: Any) -> list[int]:
    """The number of tasks that each region is worth."""
    pattern = rf"call i32 @{PARALLEL_FOR}\(ptr [^,]+, ptr [^,]+, i64 [^,]+, i64 (\d+), i64 16,"
    return [int(each) for each in re.findall(pattern, f.get_source("ll"))]


def test_tasks_are_in_proportion_to_the_work() -> None:
    found = [worth(built(copied, n)[0]) for n in (100_000, 200_000, 1_600_000)]
    ((first,), (second,), (third,)) = found
    assert 2 <= first < second < third
    assert 15 * first <= third <= 17 * first + 17
    ((dear,),) = [worth(built(biased, 1, 100_000)[0])]
    assert dear > 3 * first


def test_a_small_machine_has_smaller_tasks() -> None:
    """A task takes as long: narrower vectors do less in it."""
    args, _ = copied(1_000_000)
    narrow, wide = (
        worth(tvm.build([args[-1]], args, f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}", name="f"))
        for cpu in ("nehalem", "haswell")
    )
    assert narrow[0] > 3 * wide[0]
