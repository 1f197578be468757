"""Reductions by groups: sums by key, counts, extremes, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te


def _by_key(
    n: int, groups: int, width: int, dtype: str, combine: Any = te.sum, key_dtype: str = "int32"
) -> tuple[list[te.Tensor], Any]:
    key = te.placeholder((n,), key_dtype, name="key")
    x = te.placeholder((n, width), dtype, name="x")
    p = te.reduce_axis((0, n), name="p")
    found = te.compute(
        (groups, width), lambda c, e: combine(x[p, e], axis=p, where=key[p] == c), name="found"
    )
    return [key, x, found], tvm.auto_schedule(found)


def _is_grouped(schedule: Any) -> bool:
    return any("its own one of" in each.text for each in schedule.choices)


@pytest.mark.covering(2)
@pytest.mark.parametrize("key_dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8"])
@pytest.mark.parametrize(
    ("n", "groups", "width"), [(1000, 70, 33), (5, 71, 1), (70_000, 65, 3), (0, 70, 5)]
)
def test_sums_by_key(n: int, groups: int, width: int, dtype: str, key_dtype: str) -> None:
    arguments, schedule = _by_key(n, groups, width, dtype, key_dtype=key_dtype)
    assert _is_grouped(schedule) == (n > 0)
    rng = np.random.default_rng(0)
    low = 0 if key_dtype == "uint8" else -3  # some terms are of no group
    key = rng.integers(low, groups + 3, n).astype(key_dtype)
    x = rng.integers(-9, 9, (n, width)).astype(dtype)
    expected = np.zeros((groups, width), dtype)
    is_inside = (key >= 0) & (key < groups)
    np.add.at(expected, key[is_inside].astype(int), x[is_inside])
    found = np.full((groups, width), 7, dtype)
    tvm.build(schedule, arguments)(key, x, found)
    np.testing.assert_array_equal(found, expected)  # small integers, whose sums are exact


def test_few_groups_are_compared_with() -> None:
    """Where the lanes are groups, or there are two groups; columns of more groups are added up."""
    assert not _is_grouped(_by_key(1000, 2, 8, "float32")[1])
    assert not _is_grouped(_by_key(1000, 4, 1, "float32")[1])
    assert _is_grouped(_by_key(1000, 4, 8, "float32")[1])


@pytest.mark.parametrize("layout", ["strided", "compact"])
def test_extremes_of_batches(layout: str) -> None:
    b, n, groups = 3, 50, 90
    key = te.placeholder((b, n), "int32", name="key")
    x = te.placeholder((b, n), "float32", name="x")
    p = te.reduce_axis((0, n), name="p")
    most = te.compute(
        (groups, b), lambda c, i: te.max(x[i, p], axis=p, where=c == key[i, p]), name="most"
    )
    schedule = tvm.auto_schedule(most)
    assert _is_grouped(schedule)
    rng = np.random.default_rng(1)
    step = 2 if layout == "strided" else 1
    keys = rng.integers(0, groups, (b, n * step)).astype("int32")[:, ::step]
    values = rng.standard_normal((b, n * step)).astype("float32")[:, ::step]
    expected = np.full((groups, b), -np.inf, "float32")
    for i in range(b):
        np.maximum.at(expected[:, i], keys[i], values[i])
    found = np.empty((groups, b), "float32")
    tvm.build(schedule, [key, x, most])(keys, values, found)
    np.testing.assert_array_equal(np.maximum(found, np.finfo("float32").min), np.maximum(
        expected, np.finfo("float32").min))  # fmt: skip


def test_counts_and_their_reader() -> None:
    n, groups = 3000, 100
    key = te.placeholder((n,), "int64", name="key")
    p = te.reduce_axis((0, n), name="p")
    one = te.const(1, "int32")
    counts = te.compute((groups,), lambda c: te.sum(one, axis=p, where=key[p] == c), name="counts")
    shares = te.compute((groups,), lambda c: counts[c].astype("float32") / n, name="shares")
    keys = np.random.default_rng(2).integers(0, groups, n)
    found = np.empty(groups, "float32")
    tvm.build([shares], [key, shares])(keys, found)
    np.testing.assert_allclose(found, np.bincount(keys, minlength=groups) / n, rtol=1e-6)


@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_strict_sums_are_in_order(fp: str) -> None:
    arguments, _ = _by_key(70_000, 64, 8, "float32")
    rng = np.random.default_rng(3)
    key = rng.integers(0, 64, 70_000).astype("int32")
    x = rng.standard_normal((70_000, 8)).astype("float32")
    expected = np.zeros((64, 8), "float32")
    np.add.at(expected, key, x)  # one after the other
    found = np.empty((64, 8), "float32")
    tvm.build([arguments[-1]], arguments, fp=fp)(key, x, found)
    np.testing.assert_allclose(found, expected, rtol=0 if fp == "strict" else 1e-4, atol=1e-3)
    if fp == "strict":
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", ["choice", "cast", "where"])
@pytest.mark.parametrize("groups", [3, 70])
def test_counts_by_rows(form: str, groups: int) -> None:
    """A choice whose condition names the result is a condition of the sum."""
    A = te.placeholder((9, 300), "int32", name="A")
    k = te.reduce_axis((0, 300), name="k")
    one, none = te.const(1, "int32"), te.const(0, "int32")

    def count(i: Any, c: Any) -> Any:
        if form == "where":
            return te.sum(one, axis=k, where=A[i, k] == c)
        is_of = A[i, k] == c
        return te.sum(
            is_of.astype("int32") if form == "cast" else te.if_then_else(is_of, one, none), axis=k
        )

    C = te.compute((9, groups), count, name="C")
    schedule = tvm.auto_schedule(C)
    assert _is_grouped(schedule) == (groups == 70)
    a = np.random.default_rng(0).integers(-1, groups + 1, (9, 300)).astype("int32")
    found = np.full((9, groups), 7, "int32")
    tvm.build(schedule, [A, C])(a, found)
    np.testing.assert_array_equal(found, (a[:, :, None] == np.arange(groups)).sum(1))


@pytest.mark.parametrize("width", [1, 8, 9, 33, 64])
def test_rows_of_sparse_matrices(width: int) -> None:
    """Rows of whole vectors and a rest enter the one result of each term."""
    rows, terms = 70, 200
    row, column = (te.placeholder((terms,), "int32", name=name) for name in ("row", "column"))
    value, x = te.placeholder((terms,), name="value"), te.placeholder((40, width), name="x")
    p = te.reduce_axis((0, terms), name="p")
    Y = te.compute(
        (rows, width),
        lambda i, j: te.sum(value[p] * x[column[p], j], axis=p, where=row[p] == i),
        name="Y",
    )
    text = str(tvm.lower(tvm.auto_schedule(Y), [row, column, value, x, Y]))
    assert "for i in range(70)" not in text
    rng = np.random.default_rng(0)
    r, c = rng.integers(-1, rows + 1, terms).astype("int32"), rng.integers(0, 40, terms)
    v, m = rng.random(terms, dtype="float32"), rng.random((40, width), dtype="float32")
    expected = np.zeros((rows, width))
    is_inside = (r >= 0) & (r < rows)
    np.add.at(expected, r[is_inside], (v[:, None] * m[c])[is_inside])
    found = np.full((rows, width), 7, "float32")
    tvm.build([Y], [row, column, value, x, Y])(r, c.astype("int32"), v, m, found)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["where", "cast", "choice"])
@pytest.mark.parametrize("shape", [(7, 9), (2, 3)])
def test_two_keys_name_a_group(form: str, shape: tuple[int, int]) -> None:
    """Counts of pairs, as a confusion matrix has them, and sums."""
    n = 500
    a, b = (te.placeholder((n,), "int32", name=name) for name in "ab")
    x, p = te.placeholder((n,), "int32", name="x"), te.reduce_axis((0, n), name="p")

    def count(i: Any, j: Any) -> Any:
        both = te.all(a[p] == i, j == b[p])
        if form == "where":
            return te.sum(x[p], axis=p, where=both)
        one = both.astype("int32") if form == "cast" else te.if_then_else(both, x[p], 0)
        return te.sum(one, axis=p)

    C = te.compute(shape, count, name="C")
    schedule = tvm.auto_schedule(C, "llvm -mcpu=haswell")
    assert _is_grouped(schedule) == (shape == (7, 9))
    rng = np.random.default_rng(0)
    keys = [rng.integers(-1, size + 1, n).astype("int32") for size in shape]
    values = rng.integers(-5, 5, n).astype("int32")
    found = np.full(shape, 3, "int32")
    tvm.build(schedule, [a, b, x, C])(*keys, values, found)
    expected = np.zeros(shape, "int32")
    inside = (keys[0] >= 0) & (keys[0] < shape[0]) & (keys[1] >= 0) & (keys[1] < shape[1])
    weight = np.ones_like(values) if form == "cast" else values
    np.add.at(expected, (keys[0][inside], keys[1][inside]), weight[inside])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bins", [4, 64])
def test_computed_keys_are_computed_in_vectors(bins: int) -> None:
    n = 3000
    X, p = te.placeholder((n,), name="X"), te.reduce_axis((0, n), name="p")
    key = te.min(te.max((X[p] * float(bins)).astype("int32"), 0), bins - 1)
    C = te.compute((bins,), lambda c: te.sum((key == c).astype("int32"), axis=p), name="C")
    schedule = tvm.auto_schedule(C)
    assert (".hoist(" in schedule.trace()) == (bins == 64)
    x = np.random.default_rng(0).standard_normal(n).astype("float32")
    x[:4] = np.nan, np.inf, -np.inf, 1e30
    at = np.clip(np.nan_to_num(x.astype("float64") * bins, nan=0.0), 0, bins - 1).astype(int)
    found = np.empty(bins, "int32")
    for each in (schedule, te.create_schedule(C.op)):
        tvm.build(each, [X, C])(x, found)
        np.testing.assert_array_equal(found, np.bincount(at, minlength=bins))


# -- Factors that name the group --


def _named_by_factors(kind: str, n: int, c: int, d: int) -> tuple[list[te.Tensor], te.Tensor]:
    X, K = te.placeholder((n, d), name="X"), te.placeholder((n,), "int32", name="K")
    k = te.reduce_axis((0, n), name="k")
    if kind == "stage":
        hot = te.compute((n, c), lambda p, i: (K[p] == i).astype("float32"), name="hot")
        terms: Any = lambda i, j: hot[k, i] * X[k, j]  # noqa: E731
    elif kind == "factor":
        terms = lambda i, j: X[k, j] * (K[k] == i).astype("float32")  # noqa: E731
    else:
        terms = lambda i, j: te.if_then_else(K[k] != i, 0.0, X[k, j])  # noqa: E731
    Y = te.compute((c, d), lambda i, j: te.sum(terms(i, j), axis=k), name="Y")
    return [X, K], Y


@pytest.mark.parametrize("kind", ["stage", "factor", "negated"])
@pytest.mark.parametrize("shape", [(1001, 77, 33), (50, 40, 1)])
def test_factors_that_name_the_group(kind: str, shape: tuple[int, int, int]) -> None:
    """Keys outside of all groups have no term."""
    n, c, d = shape
    args, Y = _named_by_factors(kind, n, c, d)
    trace = tvm.auto_schedule(Y, "llvm -mcpu=haswell -num-cores=2").trace()
    assert "s[Y].omit_zeros()" in trace
    rng = np.random.default_rng(0)
    x, key = rng.integers(-9, 9, (n, d)).astype("float32"), rng.integers(-5, c + 5, n)
    found = np.full((c, d), np.nan, "float32")
    tvm.build([Y], [*args, Y])(x, key.astype("int32"), found)
    np.testing.assert_array_equal(found, (key == np.arange(c)[:, None]).astype("float32") @ x)


def test_counts_of_pairs_as_products() -> None:
    K, L = (te.placeholder((500,), "int32", name=name) for name in "KL")
    k = te.reduce_axis((0, 500), name="k")

    def count(i: Any, j: Any) -> Any:
        return te.sum((K[k] == i).astype("int32") * (L[k] == j).astype("int32"), axis=k)

    Y = te.compute((30, 40), count, name="Y")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, most, 500).astype("int32") for most in (30, 40))
    found, wanted = np.empty((30, 40), "int32"), np.zeros((30, 40), "int32")
    np.add.at(wanted, (a, b), 1)
    assert "s[Y].omit_zeros()" in tvm.auto_schedule(Y).trace()
    tvm.build([Y], [K, L, Y])(a, b, found)
    np.testing.assert_array_equal(found, wanted)


def test_infinite_factors_are_strict() -> None:
    """0 times infinity is NaN, which fast sums by groups leave out."""
    args, Y = _named_by_factors("factor", 100, 40, 8)
    x, key = np.ones((100, 8), "float32"), np.zeros(100, "int32")
    x[3, 2] = np.inf
    found = np.empty((40, 8), "float32")
    tvm.build([Y], [*args, Y], fp="strict")(x, key, found)
    assert np.isnan(found[1:, 2]).all()
    tvm.build([Y], [*args, Y])(x, key, found)
    assert (found[1:] == 0).all()


@pytest.mark.parametrize("groups", [3, 40])
def test_exponentials_of_empty_groups_are_nan(groups: int) -> None:
    """The largest element of a group without elements is minus infinity."""
    X, K = te.placeholder((300,), name="X"), te.placeholder((300,), "int32", name="K")
    p, q = (te.reduce_axis((0, 300), name=name) for name in "pq")
    shape, nothing = (groups, 300), te.const(float("-inf"), "float32")
    S = te.compute(shape, lambda c, p: te.if_then_else(K[p] == c, X[p], nothing), name="S")
    M = te.compute((groups,), lambda c: te.max(S[c, p], axis=p), name="M")
    E = te.compute(shape, lambda c, p: te.exp(S[c, p] - M[c]), name="E")
    Z = te.compute((groups,), lambda c: te.sum(E[c, q], axis=q), name="Z")
    rng = np.random.default_rng(0)
    x, key = rng.random(300, "float32"), rng.integers(0, groups - 1, 300).astype("int32")
    found = np.empty(groups, "float32")
    tvm.build([Z], [X, K, Z])(x, key, found)
    alike = [x[key == c] for c in range(groups - 1)]
    wanted = [np.exp(each - each.max()).sum() for each in alike]
    np.testing.assert_allclose(found, [*wanted, np.nan], rtol=1e-5)
