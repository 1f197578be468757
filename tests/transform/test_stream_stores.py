"""Stores past the caches: which get the attribute, under which conditions, and what they store."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from minitvm import build, lower, nd, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.dtype import DType
from minitvm.runtime.threads import num_threads, set_num_threads
from minitvm.te.tensor import Tensor
from minitvm.tir import stmt as s
from minitvm.tir.functor import walk_once
from minitvm.transform.stream_stores import ALIGNMENT

Array = np.ndarray[Any, Any]


def scheduled(
    element: Callable[..., Any], shape: Any, least: int = 0, dtype: str = "float32"
) -> tuple[te.Schedule, list[Tensor]]:
    """An elementwise stage in vectors of 8, in parallel, stored past the caches."""
    X = te.placeholder((te.var("p"), te.var("q")), dtype, name="X")
    T = te.compute(shape, lambda *i: element(X, *i), name="T")
    s = te.create_schedule(T.op)
    outer, inner = s[T].split(T.op.axis[-1], factor=8)
    s[T].vectorize(inner)
    first = outer if len(shape) == 1 else T.op.axis[0]
    s[T].parallel(first)
    s[T].pragma(first, "nontemporal", least)
    return s, [X, T]


def attributes(s_: te.Schedule, arguments: list[Tensor]) -> list[tuple[str, str]]:
    """The attributes, each once, with their conditions."""
    nodes = list(walk_once(lower(s_, arguments)["main"].body))
    names = {each.var: each.value for each in nodes if isinstance(each, s.LetStmt)}
    found = [each for each in nodes if isinstance(each, s.AttrStmt) and each.attr_key in ALIGNMENT]
    return list({(a.attr_key, str(names.get(a.value, a.value))): None for a in found})  # type: ignore[call-overload]


n, m = te.var("n"), te.var("m")
FOUND: dict[str, tuple[tuple[te.Schedule, list[Tensor]], list[tuple[str, str]]]] = {
    "a line": (scheduled(lambda x, i: x[i, 0], (64,)), [("nontemporal", "True")]),
    "too small": (scheduled(lambda x, i: x[i, 0], (64,), 257), []),
    "as large as asked": (scheduled(lambda x, i: x[i, 0], (64,), 256), [("nontemporal", "True")]),
    "a size that calls tell": (
        scheduled(lambda x, i: x[i, 0], (n,), 99), [("nontemporal", "4 * int64(n) >= 99")]
    ),
    "whole rows": (scheduled(lambda x, i, j: x[i, j], (5, 12)), [("nontemporal", "True")]),
    "rows that begin anywhere": (scheduled(lambda x, i, j: x[i, j], (5, 11)), []),
    "rows of a length that calls tell": (
        scheduled(lambda x, i, j: x[i, j], (5, m)),
        [("nontemporal", "20 * int64(m) >= 0 and int64(m) % 4 == 0")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_conditions(name: str) -> None:
    (made, arguments), expected = FOUND[name]
    found = attributes(made, arguments)
    assert [key for key, _ in found] == [key for key, _ in expected]
    for (_, condition), (_, wanted) in zip(found, expected, strict=True):
        assert condition == wanted


def test_an_output_that_is_read_stays_in_the_caches() -> None:
    X = te.placeholder((64,), name="X")
    T = te.compute((64,), lambda i: X[i] + 1.0, name="T")
    U = te.compute((64,), lambda i: T[i] * 2.0, name="U")
    s_ = te.create_schedule(U.op)
    _, inner = s_[T].split(T.op.axis[0], factor=8)
    s_[T].vectorize(inner)
    s_[T].pragma(s_[T].leaf_iter_vars[0], "nontemporal")
    assert not attributes(s_, [X, T, U])


def across(shape: tuple[Any, Any], dtype: str = "float32") -> tuple[te.Schedule, list[Tensor]]:
    X = te.placeholder(shape, dtype, name="X")
    T = te.compute(shape[::-1], lambda i, j: X[j, i], name="T")
    s_ = te.create_schedule(T.op)
    s_[T].vectorize(T.op.axis[1])
    s_[T].pragma(T.op.axis[0], "nontemporal")
    return s_, [X, T]


def test_blocks_fill_lines() -> None:
    assert attributes(*across((64, 48))) == [("nontemporal_lines", "True")]
    assert not attributes(*across((72, 48)))  # rows of half lines
    assert not attributes(*across((64, 48), "uint8"))  # more lines than are combined
    assert attributes(*across((64, 48), "float16")) == [("nontemporal_lines", "True")]


def test_only_the_innermost_loops_are_written_twice() -> None:
    """Code generation writes what is below the attribute twice."""
    body = lower(*scheduled(lambda x, i, j: x[i, j], (n, m)))["main"].body
    nodes = list(walk_once(body))
    rows = next(each for each in nodes if isinstance(each, s.For))
    assert rows.kind == s.ForKind.PARALLEL
    written = [
        each for each in nodes if isinstance(each, s.AttrStmt) and each.attr_key in ALIGNMENT
    ]
    assert written
    for attribute in written:
        assert attribute.body is not rows
        assert sum(isinstance(each, s.For) for each in walk_once(attribute.body)) <= 1


def test_they_are_stored_past_the_caches() -> None:
    made, arguments = scheduled(lambda x, i: x[i, 0] + 1.0, (n,))
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3"
    text = build(made, arguments, target=target).get_source("ll")
    assert "!nontemporal" in text
    assert "sfence" in text
    other = build(made, arguments, target="llvm -mtriple=aarch64-linux-gnu").get_source("ll")
    assert "!nontemporal" in other
    assert "sfence" not in other


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Any:
    before = num_threads()
    set_num_threads(request.param)
    yield
    set_num_threads(before)


@cache
def transposing(dtype: str) -> Any:
    return build(*scheduled(lambda x, i, j: x[j, i], (n, m), dtype=dtype))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64", "int16", "bool"])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 31, 64, 1000])
def test_values(dtype: str, size: int) -> None:
    """Outputs that are aligned and others; the elements around stay as they were."""
    kernel = transposing(dtype)
    for rows in (1, 3):
        x = np.random.default_rng(0).integers(0, 2, (size, rows)).astype(dtype)
        itemsize = DType.of(dtype).itemsize
        whole = np.asarray(nd.empty((rows * size + 128,), dtype))
        for first in (0, 1, 16 // itemsize, 64 // itemsize):
            whole[:] = 1
            found = whole[first : first + rows * size].reshape(rows, size)
            kernel(x, found)
            np.testing.assert_array_equal(found, x.T)
            assert (whole[:first] == 1).all()
            assert (whole[first + rows * size :] == 1).all()


@cache
def built_across(shape: tuple[int, int], dtype: str) -> Any:
    return build(*across(shape, dtype))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(64, 48), (128, 33), (16, 1), (4, 256), (0, 8), (65, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_transposed_values(shape: tuple[int, int], dtype: str) -> None:
    kernel = built_across(shape, dtype)
    x = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    whole = np.asarray(nd.empty((x.size + 64,), dtype))
    for first in (0, 3):
        found = whole[first : first + x.size].reshape(shape[::-1])
        kernel(x, found)
        np.testing.assert_array_equal(found, x.T)


def test_strided_and_in_place() -> None:
    made, arguments = scheduled(lambda x, i, j: x[i, j] + 1.0, (n, m))
    kernel = build(made, arguments)
    whole = np.zeros((20, 64), "float32")
    kernel(np.zeros((10, 32), "float32"), whole[::2, ::2])
    assert whole.sum() == 320
    X = te.placeholder((n, 64), name="X")
    T = te.compute((n, 64), lambda i, j: X[i, j] + 1.0, name="T")
    s_ = te.create_schedule(T.op)
    s_[T].vectorize(T.op.axis[1])
    s_[T].pragma(T.op.axis[0], "nontemporal")
    array = np.asarray(nd.array(np.zeros((10, 64), "float32")))
    build(s_, [X, T])(array, array)
    assert (array == 1).all()


def test_what_auto_schedule_chooses() -> None:
    """Outputs beyond the last cache, of any size, and no others; nor where rows are read far from
    each other, unless they are requested."""
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3"  # an L3 cache of 32 MiB

    def trace(rows: Any, element: Callable[..., Any]) -> str:
        X = te.placeholder((rows, 1024), name="X")
        W = te.placeholder((rows,), "int32", name="W")
        T = te.compute((rows, 1024), lambda i, j: element(X, W, i, j), name="T")
        return auto_schedule(T, target).trace()

    def plus_one(x: Any, w: Any, i: Any, j: Any) -> Any:
        return x[i, j] + 1.0

    assert "nontemporal" in trace(1 << 12, plus_one)
    assert "nontemporal" in trace(n, plus_one)
    assert "nontemporal" not in trace(1 << 11, plus_one)
    assert "nontemporal" in trace(1 << 12, lambda x, w, i, j: x[w[i], j])
    assert "nontemporal" not in trace(1 << 12, lambda x, w, i, j: x[w[i], 5])
    Y = te.placeholder((1 << 13, 1024), name="Y")
    assert "nontemporal" not in trace(1 << 12, lambda x, w, i, j: Y[i * 2, j])


def test_stores_in_lines_of_different_dimensions() -> None:
    """The last vectors of all rows may be in one line, the others in lines of their own."""
    shape = (214481, 33)
    A = te.placeholder(shape, name="A")
    B = te.compute(shape, lambda i, j: A[i, j] + A[i, j], name="B")
    f = build([B], [A, B], name="f")
    a = np.random.default_rng(0).random(shape, np.float32)
    b = np.empty(shape, np.float32)
    f(a, b)
    np.testing.assert_array_equal(b, a + a)
