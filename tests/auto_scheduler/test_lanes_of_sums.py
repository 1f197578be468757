"""Contractions whose sums lie in the lanes of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm import build, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from tests.whole_programs.running import strategies_that_failed

ZEN3 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3 -num-cores=2"
NEON = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=2"
random = np.random.default_rng(3)


def product(
    rows: Any,
    columns: Any,
    steps: Any,
    dtype: str = "float32",
    batch: tuple[int, ...] = (),
    layout: str = "NT",
) -> list[Tensor]:
    """Rows times rows: ``C[..., i, j] = sum(A[..., i, k] * B[..., j, k])``; the factors lie as the
    `layout` says, with a T for one that is stored transposed."""
    is_apart = layout[0] == "T", layout[1] == "N"
    shapes = [
        [n, steps][:: -1 if each else 1] for n, each in zip((rows, columns), is_apart, strict=True)
    ]
    A, B = (
        te.placeholder((*batch, *shape), dtype, name=name)
        for shape, name in zip(shapes, "AB", strict=True)
    )
    k = te.reduce_axis((0, steps), name="k")

    def element(*axes: Any) -> Any:
        *outer, i, j = axes
        a = A(*outer, k, i) if is_apart[0] else A(*outer, i, k)
        b = B(*outer, k, j) if is_apart[1] else B(*outer, j, k)
        return te.sum(a * b, axis=k)

    return [A, B, te.compute((*batch, rows, columns), element, name="C")]


def is_in_lanes(s: Schedule) -> bool:
    return any("lanes of a vector hold the sums" in each.text for each in s.choices)


def check(arguments: list[Tensor], s: Schedule | None = None, layout: str = "NT") -> None:
    """The function against float64."""
    a, b = (
        random.integers(-9, 9, [int(n) for n in each.shape]).astype(str(each.dtype))
        for each in arguments[:2]
    )
    c = np.full([int(n) for n in arguments[-1].shape], 7, str(arguments[-1].dtype))
    build(arguments[-1:] if s is None else s, arguments)(a, b, c)
    a = a if layout[0] == "N" else a.swapaxes(-1, -2)
    b = b if layout[1] == "N" else b.swapaxes(-1, -2)
    expected = a.astype("float64") @ b.astype("float64")
    np.testing.assert_array_equal(c, expected.astype(c.dtype))  # whole numbers: exact


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    "sizes", [(16, 16, 512), (8, 8, 1000), (5, 7, 333), (17, 23, 777), (4, 3, 1025)]
)
def test_odd_sizes(sizes: tuple[int, int, int], dtype: str) -> None:
    check(product(*sizes, dtype))


@pytest.mark.parametrize("sizes", [(300, 2, 644), (200, 5, 333), (2, 139, 500), (90, 9, 1141)])
def test_few_columns_leave_the_lanes_of_other_forms_idle(sizes: tuple[int, int, int]) -> None:
    s = auto_schedule(product(*sizes, layout="NN")[-1], ZEN3)
    assert is_in_lanes(s) == (sizes[0] > 2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
@pytest.mark.parametrize(
    ("sizes", "dtype", "batch"),
    [
        ((300, 2, 644), "float32", ()),
        ((200, 5, 333), "float32", ()),
        ((2, 139, 500), "float32", ()),
        ((90, 9, 1141), "float32", ()),
        ((60, 3, 300), "float64", (2,)),
    ],
)
@pytest.mark.parametrize("target", [ZEN3, None])
def test_factors_that_lie_otherwise_are_copied(
    target: str | None,
    sizes: tuple[int, int, int],
    dtype: str,
    batch: tuple[int, ...],
    layout: str,
) -> None:
    arguments = product(*sizes, dtype, batch, layout)
    check(arguments, auto_schedule(arguments[-1], target) if target else None, layout)


def test_such_a_copy_is_transposed_in_registers() -> None:
    arguments = product(90, 9, 1141, layout="NN")
    assert is_in_lanes(auto_schedule(arguments[-1], ZEN3))
    assert "vector_shuffle" in build(arguments[-1:], arguments, ZEN3).get_source("tir")


def test_two_rows_share_what_they_read() -> None:
    """A product of two rows isn't two products of one."""
    assert is_in_lanes(auto_schedule(product(2, 1000, 1000)[-1], ZEN3))
    assert not is_in_lanes(auto_schedule(product(1, 1000, 1000)[-1], ZEN3))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(
    ("n", "k", "dtype", "is_wider"),
    [(512, 520, "float32", True), (203, 517, "float16", True), (40, 50, "float32", False)],
)
def test_a_single_row_by_many_lines(n: int, k: int, dtype: str, is_wider: bool, rank: int) -> None:
    """Where data come from L2 only when they are asked for, several lines are read at once; and so
    are narrow ones, which are widened anyway."""
    r = te.reduce_axis((0, k), name="r")
    x = te.placeholder((k,) if rank == 1 else (1, k), dtype, "x")
    W = te.placeholder((n, k), dtype, "W")

    def element(*at: te.Var) -> te.PrimExpr:
        mine = x[r] if rank == 1 else x[0, r]
        return te.sum(mine.astype("float32") * W[at[-1], r].astype("float32"), axis=r)

    y = te.compute((n,) if rank == 1 else (1, n), element, name="y")
    with strategies_that_failed() as failed:
        s = auto_schedule(y, "llvm -mtriple=x86_64-linux-gnu -mcpu=emeraldrapids")
    assert not failed
    assert is_in_lanes(s) == is_wider
    v, w = (random.integers(-9, 9, size).astype(dtype) for size in ([*map(int, x.shape)], [n, k]))
    out = np.zeros([int(each) for each in y.shape], "float32")
    build(s, [x, W, y])(v, w, out)
    np.testing.assert_array_equal(out.ravel(), w.astype("float32") @ v.ravel().astype("float32"))


@pytest.mark.parametrize("target", [ZEN3, NEON])
def test_few_long_sums_are_in_lanes(target: str) -> None:
    assert is_in_lanes(auto_schedule(product(8, 8, 1000)[-1], target))
    assert is_in_lanes(auto_schedule(product(8, 8, 1000, "float64", (3,))[-1], target))


def test_forms_of_any_machine() -> None:
    """The schedule for another CPU computes the same here."""
    for sizes in ((16, 16, 512), (9, 11, 515)):
        arguments = product(*sizes)
        s = auto_schedule(arguments[-1], ZEN3)
        assert is_in_lanes(s)
        check(arguments, s)


@pytest.mark.parametrize("sizes", [(512, 512, 64), (300, 300, 300), (16, 16, 4), (64, 8, 6)])
def test_many_or_short_sums_are_not(sizes: tuple[int, int, int]) -> None:
    assert not is_in_lanes(auto_schedule(product(*sizes)[-1], ZEN3))


def test_batches() -> None:
    check(product(6, 10, 300, batch=(3,)))
    check(product(6, 10, 301, batch=(2, 2)))


def test_extrema_are_too() -> None:
    k = te.reduce_axis((0, 999), name="k")
    B = te.placeholder((8, 999), name="B")
    D = te.compute((8, 8), lambda i, j: te.max(B[i, k] * B[j, k], axis=k), name="D")
    s = auto_schedule(D, ZEN3)
    assert is_in_lanes(s)
    b, d = random.integers(-9, 9, (8, 999)).astype("float32"), np.zeros((8, 8), "float32")
    b[3, 997] = np.nan
    build(s, [B, D])(b, d)
    np.testing.assert_array_equal(d, (b[:, None] * b).max(-1))


def test_symbolic_sizes_are_not() -> None:
    assert not is_in_lanes(auto_schedule(product(te.var("n"), 8, 1000)[-1], ZEN3))


def test_a_stage_that_reads_the_sums() -> None:
    A, B, C = product(8, 8, 1000)
    D = te.compute(C.shape, lambda i, j: C[i, j] * 2.0 + 1.0, name="D")
    s = auto_schedule(D, ZEN3)
    assert is_in_lanes(s)
    a, b = (random.integers(-9, 9, (8, 1000)).astype("float32") for _ in range(2))
    d = np.zeros((8, 8), "float32")
    build(s, [A, B, D])(a, b, d)
    np.testing.assert_array_equal(d, a @ b.T * 2 + 1)


def test_strict_sums_stay_in_order() -> None:
    arguments = product(3, 4, 100)
    a, b = (random.random((n, 100), dtype="float32") for n in (3, 4))
    c = np.zeros((3, 4), "float32")
    build(arguments[-1:], arguments, fp="strict")(a, b, c)
    in_order = np.add.accumulate(a[:, None, :] * b[None], -1)[..., -1]
    np.testing.assert_array_equal(c, in_order)


def test_not_a_number_reaches_its_sums_alone() -> None:
    arguments = product(8, 8, 999)
    a, b = (random.random((8, 999), dtype="float32") for _ in range(2))
    a[3, 998] = np.nan
    c = np.zeros((8, 8), "float32")
    build(arguments[-1:], arguments)(a, b, c)
    assert np.isnan(c[3]).all()
    assert np.isfinite(np.delete(c, 3, 0)).all()


def test_a_factor_that_is_the_same_in_all_steps_has_no_lanes() -> None:
    """There is no copy of it along the steps."""
    a, b = te.placeholder((1, 2, 4), "int64", name="A"), te.placeholder((3, 1), "int64", name="B")
    k = te.reduce_axis((0, 4), name="k")
    c = te.compute((3, 1, 2), lambda i, j, n: te.sum(a[j, n, k] * b[i, j], axis=k), name="C")
    x, y = np.arange(8).reshape(1, 2, 4), np.arange(3).reshape(3, 1)
    found = np.empty((3, 1, 2), "int64")
    with strategies_that_failed() as failed:
        build([c], [a, b, c], "llvm -mcpu=haswell -num-cores=2")(x, y, found)
    assert not failed
    np.testing.assert_array_equal(found, np.einsum("jnk,ij->ijn", x, y))


@pytest.mark.parametrize(("channels", "out", "kernel"), [(160, 4, 3), (33, 3, 5), (96, 2, 3)])
def test_windows_that_share_elements(channels: int, out: int, kernel: int) -> None:
    """Few channels out of many, channels last: neighbours share most of what they read, so that an
    image much larger than the caches doesn't come again for each place of the window."""

    def convolution(size: int) -> list[Tensor]:
        X = te.placeholder((8, size, size, channels), name="X")
        W = te.placeholder((kernel, kernel, out, channels), name="W")
        r, q, c = (te.reduce_axis((0, n)) for n in (kernel, kernel, channels))
        places = size - kernel + 1
        Y = te.compute(
            (8, places, places, out),
            lambda b, y, x, o: te.sum(X[b, y + r, x + q, c] * W[r, q, o, c], axis=[r, q, c]),
            name="Y",
        )
        return [X, W, Y]

    assert is_in_lanes(auto_schedule(convolution(200)[-1], ZEN3))
    arguments = convolution(11)
    x, w = (
        random.integers(-9, 9, [int(n) for n in each.shape]).astype("float32")
        for each in arguments[:2]
    )
    y = np.full([int(n) for n in arguments[-1].shape], 7, "float32")
    s = auto_schedule(arguments[-1], ZEN3)
    build(s, arguments)(x, w, y)
    windows = np.lib.stride_tricks.sliding_window_view(
        x.astype("float64"), (kernel, kernel), (1, 2)
    )
    np.testing.assert_array_equal(y, np.einsum("byxcrq,rqoc->byxo", windows, w))
