"""Products of a few rows by a large matrix: streams of its rows, and requests ahead."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from minitvm import build, prepack, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.module import Module
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor

ZEN5 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver5 -num-cores=1"
INTEL = "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -num-cores=1"
random = np.random.default_rng(5)


def product(rows: Any, columns: Any, steps: Any, dtype: str = "float32") -> list[Tensor]:
    A = te.placeholder((rows, steps), dtype, name="A")
    B = te.placeholder((steps, columns), dtype, name="B")
    k = te.reduce_axis((0, steps), name="k")
    C = te.compute((rows, columns), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return [A, B, C]


def texts(s: Schedule) -> str:
    return "\n".join(map(str, s.choices))


def requests(function: Module) -> int:
    """The number of requests in the code of a product."""
    return len(re.findall(r"call void @llvm.prefetch", function.get_source("ll")))


@pytest.mark.parametrize("sizes", [(8, 3000, 900), (24, 3001, 901), (100, 1300, 1290)])
def test_lines_from_afar_are_requested_ahead(sizes: tuple[int, int, int]) -> None:
    arguments = product(*sizes)
    s = auto_schedule(arguments[-1], ZEN5)
    assert "steps ahead: it comes from beyond the L2 cache" in texts(s)
    f = build(s, arguments)
    assert requests(f)
    a, b = (random.integers(-9, 9, [int(n) for n in t.shape]).astype("f4") for t in arguments[:2])
    c = np.full((sizes[0], sizes[1]), np.nan, "float32")
    f(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("sizes", [(8, 100, 90), (24, 256, 256), (1024, 1024, 1024)])
def test_what_the_l2_cache_or_a_panel_holds_is_not(sizes: tuple[int, int, int]) -> None:
    arguments = product(*sizes)
    s = auto_schedule(arguments[-1], ZEN5)
    assert "steps ahead" not in texts(s)
    # Of the largest, blocks of sums in memory are requested.
    assert sizes[0] == 1024 or not requests(build(s, arguments))


@pytest.mark.parametrize("sizes", [(24, 256, 256), (1024, 1024, 1024)])
def test_from_l2_some_processors_request_what_they_read(sizes: tuple[int, int, int]) -> None:
    """As it lies, or in panels."""
    _, _, C = product(*sizes)
    assert "steps ahead: it comes from the L2 cache" in texts(auto_schedule(C, INTEL))


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [11, 40])
@pytest.mark.parametrize("cores", [1, 2])
def test_rows_from_afar_are_read_in_blocks_of_steps(rows: int, cores: int) -> None:
    """Each on pages that are found without a walk."""
    arguments = product(rows, 3000, 900)
    target = ZEN5.replace("-num-cores=1", f"-num-cores={cores}")
    s = auto_schedule(arguments[-1], target)
    found = texts(s)
    assert "90 steps of the sum at a time: rows of B on pages found without a walk" in found
    assert cores == 1 or re.search(r"in tasks of \d+ columns, whose part of B stays", found)
    a, b = (random.integers(-9, 9, [int(n) for n in t.shape]).astype("f4") for t in arguments[:2])
    c = np.full((rows, 3000), np.nan, "float32")
    build(s, arguments)(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_a_sum_in_order_is_not_cut() -> None:
    arguments = product(3, 700, 900)
    a, b = (random.random([int(n) for n in t.shape]).astype("f4") for t in arguments[:2])
    found = []
    for is_scheduled in (False, True):
        target = "llvm -mcpu=haswell -num-cores=1 -l2-cache-bytes=65536"
        f = build([arguments[-1]], arguments, target, fp="strict", auto_schedule=is_scheduled)
        found.append(np.empty((3, 700), "float32"))
        f(a, b, found[-1])
    np.testing.assert_array_equal(found[0], found[1])


def test_rows_that_are_copied_are_copied_once() -> None:
    """Each block of columns would copy them again."""
    A, B = te.placeholder((2900, 40), name="A"), te.placeholder((2900, 700), name="B")
    k = te.reduce_axis((0, 2900), name="k")
    C = te.compute((40, 700), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")
    found = texts(auto_schedule(C, ZEN5))
    assert "B is not packed" in found
    assert "A is copied 14 rows at a time" in found
    assert "in tasks of" not in found


def test_one_row_streams_and_many_do_not() -> None:
    assert "rows are read whole" in texts(auto_schedule(product(1, 2050, 6000)[-1], ZEN5))
    assert "rows are read whole" not in texts(auto_schedule(product(8, 2050, 6000)[-1], ZEN5))


@pytest.mark.parametrize("sizes", [(2, 158, 1629), (3, 142, 3563), (5, 189, 1835), (1, 333, 1801)])
def test_steps_of_any_number_are_read_side_by_side(sizes: tuple[int, int, int]) -> None:
    """A part of a prime number of steps has a remainder, and isn't read row by row."""
    arguments = product(*sizes)
    assert "rows are read whole, 1 at a time" not in texts(auto_schedule(arguments[-1], ZEN5))
    a, b = (random.integers(-9, 9, [int(n) for n in t.shape]).astype("f4") for t in arguments[:2])
    c = np.full((sizes[0], sizes[1]), np.nan, "float32")
    build([arguments[-1]], arguments)(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("batch", [(), (1,), (3,), (3, 1)])
@pytest.mark.parametrize("sizes", [(3, 1000), (7, 61), (300, 256), (129, 4099), (1, 70), (0, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.covering(1)
def test_a_vector_by_a_matrix_is_a_reduction(
    batch: tuple[int, ...], sizes: tuple[int, int], dtype: str
) -> None:
    """In vectors along the columns or along the sum, as for any other reduction."""
    n, steps = sizes
    x = te.placeholder((*batch, steps), dtype, name="x")
    B = te.placeholder((*batch[:-1], steps, n), dtype, name="B")
    k = te.reduce_axis((0, steps), name="k")
    others = len(batch[:-1])

    def element(*i: Any) -> Any:
        return te.sum(x(*i[:-1], k) * B(*i[:others], k, i[-1]), axis=k)

    y = te.compute((*batch, n), element)
    given = [random.integers(-9, 9, [int(n) for n in t.shape]).astype(dtype) for t in (x, B)]
    found = np.full((*batch, n), 77, dtype)
    build([y], [x, B, y])(*given, found)
    np.testing.assert_array_equal(found, given[0] @ given[1])
    is_one_row = batch in ((), (1,), (3, 1)) and n > 1
    assert not is_one_row or "tiles of" not in texts(auto_schedule(y, ZEN5))


def test_a_vector_by_a_matrix_that_is_stored_transposed() -> None:
    """Its columns lie side by side, though the axis of one element is the last one."""
    A, x = te.placeholder((3113, 3696), name="A"), te.placeholder((3113, 1), name="x")
    k = te.reduce_axis((0, 3113), name="k")
    y = te.compute((3696, 1), lambda i, j: te.sum(A[k, i] * x[k, j], axis=k), name="y")
    assert "rows are read whole" in texts(auto_schedule(y, ZEN5))


def test_a_row_by_weights_at_digits_and_by_a_table() -> None:
    """Sums of one row run along the steps: in lanes within each group, or along the numbers of
    table entries."""
    x, scale = te.placeholder((64,), name="X"), te.placeholder((48, 2), name="S")
    w, table = te.placeholder((48, 32), "uint8", name="W"), te.placeholder((256,), name="T")
    r = te.reduce_axis((0, 64), name="r")

    def bits(j: Any) -> Any:
        return (w[j, r // 2] >> ((r % 2) * 4).astype("uint8")) & te.const(15, "uint8")

    Y = te.compute(
        (48,),
        lambda j: te.sum(x[r] * bits(j).astype("float32") * scale[j, r // 32], axis=r),
        name="Y",
    )
    assert "s.rfactor(Y" in auto_schedule(Y, "llvm -mcpu=haswell").trace()
    v = te.placeholder((48, 64), "uint8", name="V")
    Z = te.compute((48,), lambda j: te.sum(x[r] * table[v[j, r].astype("int32")], axis=r), name="Z")
    assert "vectorize" not in auto_schedule(Z, "llvm -mcpu=haswell").trace()
    rng = np.random.default_rng(0)
    a, s = rng.integers(-3, 4, 64).astype("float32"), rng.integers(1, 4, (48, 2)).astype("float32")
    b, c = rng.integers(0, 256, (48, 32), "uint8"), rng.integers(0, 256, (48, 64), "uint8")
    t, found = np.arange(256, dtype="float32"), np.empty(48, "float32")
    build([Y], [x, w, scale, Y], "llvm -mcpu=haswell")(a, b, s, found)
    unpacked = np.stack([b & 15, b >> 4], axis=2).reshape(48, 64) * np.repeat(s, 32, axis=1)
    np.testing.assert_array_equal(found, unpacked @ a)
    build([Z], [x, table, v, Z], "llvm -mcpu=haswell")(a, t, c, found)
    np.testing.assert_array_equal(found, t[c] @ a)


def test_columns_that_are_the_same_for_all_steps_are_summed_at_once() -> None:
    """The columns' factor doesn't change along the sum, so no block of steps helps it."""
    x, y = te.placeholder((20000,), name="X"), te.placeholder((3000,), name="Y")
    k = te.reduce_axis((0, 3000), name="k")
    Z = te.compute((20000,), lambda i: te.max(x[i] * y[k] - x[i], axis=k), name="Z")
    assert "rfactor" not in auto_schedule(Z, "llvm -mcpu=znver3").trace()


# ---- One panel at a time -------------------------------------------------------------------------

NEXT_PANEL = "prefetched while all tiles of rows read"


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(
    "sizes", [(128, 768, 1500), (100, 1300, 701), (33, 1001, 900), (197, 1600, 768)]
)
def test_panels_are_requested_while_rows_read_the_one_before(
    sizes: tuple[int, int, int], cores: int
) -> None:
    """Where a CPU waits for lines that nobody requests, and the factor comes from beyond L2."""
    arguments = product(*sizes)
    target = INTEL.replace("cores=1", f"cores={cores}")
    s = auto_schedule(arguments[-1], target)
    assert NEXT_PANEL in texts(s)
    assert ", of=" in s.trace()
    assert NEXT_PANEL not in texts(auto_schedule(arguments[-1], ZEN5))
    f = build(s, arguments)
    assert requests(f)
    a, b = (random.integers(-9, 9, [int(n) for n in t.shape]).astype("f4") for t in arguments[:2])
    c = np.full(sizes[:2], np.nan, "float32")
    f(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((24, 2000, 1000), "float32"),
        ((19, 12345, 77), "float32"),
        ((33, 3000, 768), "float32"),
        ((20, 1500, 768), "float64"),
    ],
)
def test_the_factor_of_few_tiles_of_rows_is_not_packed(
    sizes: tuple[int, int, int], dtype: str, cores: int
) -> None:
    """A copy takes longer than a few tiles of rows save by it."""
    arguments = product(*sizes, dtype=dtype)
    target = INTEL.replace("cores=1", f"cores={cores}")
    s = auto_schedule(arguments[-1], target)
    assert NEXT_PANEL in texts(s)
    assert "B is not packed" in texts(s)
    assert "cache_read" not in s.trace()
    a, b = (random.integers(-9, 9, [int(n) for n in t.shape]).astype(dtype) for t in arguments[:2])
    c = np.full(sizes[:2], np.nan, dtype)
    build(s, arguments)(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_a_panel_that_one_tile_of_rows_reads_is_not_requested_as_such() -> None:
    assert NEXT_PANEL not in texts(auto_schedule(product(8, 3072, 768)[-1], INTEL))


def test_panels_of_any_layout_are_requested() -> None:
    """Transposed factors, factors that are packed ahead of the call, and sums that an epilogue
    reads."""
    m, n, d = 90, 1100, 640
    X, W, D = (te.placeholder(t, name=x) for t, x in (((m, d), "X"), ((n, d), "W"), ((m, n), "D")))
    k = te.reduce_axis((0, d), name="k")
    P = te.compute((m, n), lambda i, j: te.sum(X[i, k] * W[j, k], axis=k), name="P")
    Y = te.compute((m, n), lambda i, j: P[i, j] + D[i, j], name="Y")
    x, w, r = (random.integers(-9, 9, t).astype("f4") for t in ((m, d), (n, d), (m, n)))
    for packed in ([], [W]):
        s = auto_schedule(Y, INTEL, prepacked=packed)
        assert NEXT_PANEL in texts(s)
        f = build(s, [X, W, D, Y], name="f")
        y = np.full((m, n), np.nan, "float32")
        f(x, prepack(f, "W", w) if packed else w, r, y)
        np.testing.assert_array_equal(y, x @ w.T + r)


@pytest.mark.parametrize("sizes", [(128, 100, 90), (2000, 1024, 1024), (None, 768, 1500)])
def test_small_factors_and_many_rows_have_blocks_of_panels(sizes: tuple[Any, int, int]) -> None:
    rows = te.var("rows") if sizes[0] is None else sizes[0]
    s = auto_schedule(product(rows, *sizes[1:])[-1], INTEL)
    assert NEXT_PANEL not in texts(s)


@pytest.mark.parametrize("sizes", [(1, 61, 352, 32), (2, 40, 960, 96), (1, 7, 384, 128)])
def test_a_row_by_weights_whose_groups_have_a_scale(sizes: tuple[int, int, int, int]) -> None:
    """The steps have two axes, along which the weights lie in one line: lanes are steps."""
    m, n, steps, size = sizes
    X = te.placeholder((m, steps), name="X")
    W = te.placeholder((n, steps), "int8", name="W")
    S = te.placeholder((n, steps // size), name="S")
    k = te.reduce_axis((0, steps), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(X[i, k] * (W[j, k].astype("float32") * S[j, k // size]), axis=k)

    Y = te.compute((m, n), element, name="Y")
    said = texts(auto_schedule(Y, INTEL))
    assert m > 1 or "each channel by itself" not in said or "of the sum in the lanes" in said
    x, w = random.integers(-9, 9, (m, steps)), random.integers(-9, 9, (n, steps))
    scales = random.integers(1, 4, (n, steps // size))
    y = np.full((m, n), np.nan, "float32")
    f = build([Y], [X, W, S, Y])
    f(x.astype("f4"), w.astype("int8"), scales.astype("f4"), y)
    np.testing.assert_array_equal(y, x @ (w * scales.repeat(size, 1)).T)


@pytest.mark.parametrize("sizes", [(1, 3, 40, 50), (2, 9, 30, 17), (1, 33, 16, 64)])
def test_a_row_by_weights_with_several_axes_of_steps(sizes: tuple[int, int, int, int]) -> None:
    m, n, outer, inner = sizes
    X = te.placeholder((m, outer, inner), name="X")
    W = te.placeholder((n, outer, inner), name="W")
    g, k = te.reduce_axis((0, outer), name="g"), te.reduce_axis((0, inner), name="k")
    Y = te.compute((m, n), lambda i, j: te.sum(X[i, g, k] * W[j, g, k], axis=[g, k]), name="Y")
    x, w = (random.integers(-9, 9, [int(e) for e in t.shape]).astype("f4") for t in (X, W))
    y = np.full((m, n), np.nan, "float32")
    build([Y], [X, W, Y])(x, w, y)
    np.testing.assert_array_equal(y, np.einsum("igk,jgk->ij", x, w))


@pytest.mark.parametrize("sizes", [(100, 1000, 64), (7, 3000, 40)])
def test_windows_that_slide_along_the_columns_are_not_requested(
    sizes: tuple[int, int, int],
) -> None:
    """The next step of an autocorrelation reads the same lines."""
    rows, steps, lags = sizes
    x = te.placeholder((rows, steps), name="x")
    k = te.reduce_axis((0, steps), name="k")

    def element(a: Any, j: Any) -> Any:
        return te.sum(x[a, k] * x[a, te.min(k + j, steps - 1)], axis=k, where=k + j < steps)

    R = te.compute((rows, lags), element, name="R")
    assert "prefetch" not in auto_schedule(R, INTEL).trace()
    given = random.integers(-9, 9, (rows, steps)).astype("f4")
    found = np.full((rows, lags), np.nan, "float32")
    build([R], [x, R])(given, found)
    expected = [(given[:, : steps - j] * given[:, j:]).sum(1) for j in range(lags)]
    np.testing.assert_array_equal(found, np.stack(expected, 1))


@pytest.mark.parametrize("sizes", [(4, 300, 64), (4, 64, 64), (4, 203, 61)])
def test_few_short_sums_of_weights_that_lie_along_them_have_columns(
    sizes: tuple[int, int, int],
) -> None:
    """Weights that stay in L2 with their panels are transposed in registers, sooner than lanes of
    many short sums are added."""
    rows, columns, steps = sizes
    A, B = te.placeholder((rows, steps), name="A"), te.placeholder((columns, steps), name="B")
    k = te.reduce_axis((0, steps), name="k")
    C = te.compute((rows, columns), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    assert "lanes of a vector hold the sums" not in texts(auto_schedule(C, INTEL))
    a, b = (random.integers(-9, 9, [int(n) for n in t.shape]).astype("f4") for t in (A, B))
    c = np.full((rows, columns), np.nan, "float32")
    build([C], [A, B, C])(a, b, c)
    np.testing.assert_array_equal(c, a @ b.T)


@pytest.mark.parametrize("rows", [4, 6, 8])
def test_a_few_rows_have_the_strategy_of_the_fewest_cycles(rows: int) -> None:
    """No order of strategies decides: instructions multiply 8-bit integers faster than rows are
    streamed, and tiles 16-bit floats faster than an instruction that takes its factor packed."""

    def said(dtypes: tuple[str, str]) -> str:
        A, B = te.placeholder((rows, 512), dtypes[0]), te.placeholder((512, 512), dtypes[0])
        k = te.reduce_axis((0, 512))

        def element(i: Any, j: Any) -> Any:
            return te.sum(A[i, k].astype(dtypes[1]) * B[k, j].astype(dtypes[1]), axis=k)

        return texts(auto_schedule(te.compute((rows, 512), element, name="C"), INTEL))

    assert "by tdpbssd" in said(("int8", "int32"))
    assert "by multiply-adds" in said(("bfloat16", "float32"))
