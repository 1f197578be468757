"""Versions of schedules for calls whose symbolic extents are of some size."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from itertools import product as product_of
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.test_matrix_products import AMX, HAS_BMI2

AVX512 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2"
AVX2 = "llvm -mcpu=haswell"
ARGMAX = te.comm_reducer(
    lambda a, b: tuple(te.if_then_else(a[1] >= b[1], a[i], b[i]) for i in range(2)),
    lambda index, value: (te.const(-1, index), te.min_value(value)),
    name="argmax",
)


def product(m: Any, n: Any, k: Any, dtype: str = "float32", total: str = "float32") -> list[Tensor]:
    A, B = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        return te.sum(A[i, r].astype(total) * B[r, j].astype(total), axis=r)

    return [A, B, te.compute((m, n), element, name="C")]


def sizes() -> Any:
    return map(te.var, "mnk")


def conditions(C: Tensor, target: str) -> list[str]:
    return [str(condition) for condition, _ in tvm.auto_schedule(C, target).versions]


def test_products_of_matrices_have_versions_for_few_rows_and_small_sizes() -> None:
    few = ["m == 1", "m <= 8 and n >= 64 and k >= 64"]
    narrow = "k < 64 or n < 64"
    small = "int64(k) * int64(m) <= 65536 and int64(k) * int64(n) <= 65536"
    assert conditions(product(*sizes())[-1], AVX512) == [*few, narrow, small]


def test_few_rows_by_rows_of_short_sums_are_tiles() -> None:
    """The lanes of a few sums are added in the end: that takes long for short sums."""
    m, n, k = sizes()

    def by_rows(k: Any) -> list[Tensor]:
        A, B, r = te.placeholder((m, k)), te.placeholder((n, k)), te.reduce_axis((0, k))
        return [A, B, te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[j, r], axis=r))]

    A, B, C = by_rows(k)
    assert "m <= 8 and m <= k // 32" in conditions(C, AVX2)
    assert not any("m <= 8" in each for each in conditions(by_rows(48)[-1], AVX2))
    f = tvm.build(C, [A, B, C], AVX2, name="f")
    for rows, steps in product_of((0, 1, 4, 5, 8, 9), (0, 1, 63, 64, 128, 255, 256)):
        a, b, got = whole(rows, steps), whole(33, steps), np.full((rows, 33), 77, "float32")
        f(a, b, got)
        np.testing.assert_array_equal(got, a @ b.T)


@pytest.mark.parametrize("stride", [1, 2])
def test_images_that_are_read_as_they_lie_have_a_version(stride: int) -> None:
    """Its parts are tasks, since there may be a single image."""
    n, c, f, h, w = map(te.var, "ncfhw")
    X, W, k = te.placeholder((n, c, h, w)), te.placeholder((f, c)), te.reduce_axis((0, c))
    shape = (n, f, (h - 1) // stride + 1, (w - 1) // stride + 1)

    def element(b: Any, o: Any, y: Any, x: Any) -> Any:
        return te.sum(X[b, k, y * stride, x * stride] * W[o, k], axis=k)

    Y = te.compute(shape, element, name="Y")
    ((condition, version),) = tvm.auto_schedule(Y, AVX2).versions
    assert str(condition) == "True"
    assert "s[Y].fuse(b, y" in version.trace()
    function = tvm.build(Y, [X, W, Y], AVX2, name="f")
    for images, rows, columns in ((1, 1, 1), (2, 5, 7), (1, 3, 16), (1, 2, 33), (0, 3, 3)):
        x, weights = whole(images, 3, rows, columns), whole(7, 3)
        wanted = np.einsum("nchw,fc->nfhw", x[:, :, ::stride, ::stride], weights)
        got = np.full(wanted.shape, 77, "float32")
        function(x, weights, got)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_few_rows_of_a_symbolic_number_read_a_large_factor_row_after_row(dtype: str) -> None:
    """Each row is computed once, in a loop, and no copy of the factor is made."""
    m, total = te.var("m"), "int32" if dtype == "int8" else "float32"
    tensors = product(m, 1000, 300, dtype, total)
    s = tvm.auto_schedule(tensors[-1], AVX2)
    (few,) = (each for condition, each in s.versions if str(condition) == "m <= 8")
    assert "B_global" not in few.trace()
    f = tvm.build(tensors[-1], tensors, AVX2, name="f")
    for rows in (0, 1, 2, 7, 8, 9, 40):
        a, b, got = (whole(rows, 300, dtype=dtype), whole(300, 1000, dtype=dtype),
                     np.full((rows, 1000), 77, total))  # fmt: skip
        f(a, b, got)
        np.testing.assert_array_equal(got, a.astype(total) @ b.astype(total))


def test_columns_of_a_known_number_are_the_same_for_any_larger_number_of_rows() -> None:
    m, n = te.var("m"), te.var("n")
    assert conditions(product(m, 768, 768)[-1], AVX2) == ["m == 1", "m <= 8"]
    assert len(conditions(product(m, n, 768)[-1], AVX2)) > 2


@pytest.mark.parametrize(("n", "k"), [(512, 256), (512, 2048)])
def test_rows_by_known_columns_are_in_place_as_long_as_the_factor_lies(n: int, k: int) -> None:
    most = int(conditions(product(te.var("m"), n, k)[-1], AVX512)[-1].removeprefix("m <= "))

    def is_in_place(rows: int) -> bool:
        return len(tvm.auto_schedule(product(rows, n, k)[-1], AVX512).stages) == 4

    assert is_in_place(most) and (most == 512 or not is_in_place(2 * most))


def test_quotients_of_steps_are_no_windows() -> None:
    m, n, k = sizes()
    A, B = te.placeholder((m, k)), te.placeholder((n, k // 2), "int8")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[j, r // 2], axis=r), name="C")
    assert conditions(C, AVX512)[0] == "m == 1"


def test_the_number_of_products_makes_none_narrow() -> None:
    """Tiles have rows and columns of each product alone."""
    tensors = einsum("bik,bkj->bij", {axis: te.var(axis) for axis in "bijk"}, "float32", "float32")
    assert "k < 64 or j < 64" in conditions(tensors[-1], AVX512)
    f = tvm.build(tensors[-1], tensors, name="f")
    for b, i, j, k in ((1, 100, 65, 70), (300, 3, 17, 5), (2, 64, 64, 64), (0, 70, 70, 70)):
        x, y, got = whole(b, i, k), whole(b, k, j), np.full((b, i, j), 77, "float32")
        f(x, y, got)
        np.testing.assert_array_equal(got, x @ y)


def test_programs_of_constant_sizes_and_programs_without_products_have_none() -> None:
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    assert conditions(product(8, 8, 8)[-1], AVX512) == []
    assert conditions(te.compute((m, n), lambda i, j: X[i, j] + 1.0), AVX512) == []


def test_indices_may_have_wide_axes_of_one_element() -> None:
    m, n, k = (te.var(name, "int64") for name in "mnk")
    A, B = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="r")
    shape = (m, n, te.const(1, "int64"))
    C = te.compute(shape, lambda i, j, u: te.sum(A[i, r] * B[r - u, j], axis=r), name="C")
    assert tvm.auto_schedule(C, AVX512).trace()


def test_an_image_of_symbolic_size_has_the_schedule_of_a_constant_one() -> None:
    c, h, o = te.var("c"), te.var("h"), te.var("o")
    X, W = te.placeholder((c, h, h), name="X"), te.placeholder((o, c, 3, 3), name="W")
    axes = [te.reduce_axis((0, extent)) for extent in (c, 3, 3)]

    def element(o: Any, y: Any, x: Any) -> Any:
        ch, r, q = axes
        return te.sum(X[ch, y + r, x + q] * W[o, ch, r, q], axis=axes)

    Y = te.compute((o, h - 2, h - 2), element, name="Y")
    s = tvm.auto_schedule(Y, AVX512)
    assert [str(condition) for condition, _ in s.versions] == ["True"]
    f = tvm.build(Y, [X, W, Y], name="f")
    for outputs, channels, size in ((8, 1, 3), (1, 3, 7), (33, 5, 70), (13, 17, 33), (3, 0, 9)):
        x, w = whole(channels, size, size), whole(outputs, channels, 3, 3)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
        got = np.full((outputs, size - 2, size - 2), 77, "float32")
        f(x, w, got)
        np.testing.assert_array_equal(got, np.einsum("cyxrq,ocrq->oyx", windows, w))


def whole(*shape: int, dtype: str = "float32") -> Any:
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("target", ["llvm", AVX2])
def test_every_version_is_right(target: str) -> None:
    f = of_any_size(target)
    rows = [0, 1, 2, 4, 5, 16, 70]
    shapes = [(m, n, k) for m in rows for n, k in ((0, 3), (5, 0), (33, 21), (100, 65))]
    for m, n, k in [*shapes, (70, 600, 70), (600, 65, 80), (64, 64, 700)]:
        a, b, got = whole(m, k), whole(k, n), np.full((m, n), 77, "float32")
        f(a, b, got)
        np.testing.assert_array_equal(got, a @ b)


def test_half_a_tile_is_left_of_columns() -> None:
    m, n, k = sizes()
    tensors = product(m, n, k)
    s = tvm.auto_schedule(tensors[-1], AVX512)
    loops = str(tvm.lower(s, tensors, simple_mode=True, vector_bytes=64))
    assert re.search(r"whole = select\(n >= 32, \(n \+ 15\) // 32, 0\)", loops)
    assert re.search(r"for .* in range\(\(n \+ 15\) // 16 - .*whole \* 2\):", loops)


@pytest.mark.parametrize("columns", range(60, 100, 3))
def test_every_number_of_columns_is_right(columns: int) -> None:
    f, a, b = of_any_size("llvm"), whole(9, 70), whole(70, columns)
    got = np.full((9, columns), 77, "float32")
    f(a, b, got)
    np.testing.assert_array_equal(got, a @ b)


@cache
def of_any_size(target: str) -> Any:
    tensors = product(*sizes())
    return tvm.build(tensors[-1], tensors, target, name="f")


@pytest.mark.parametrize(
    ("dtype", "total", "index"),
    [("int8", "int32", "int32"), ("uint8", "int32", "int32"), ("int8", "int32", "int64")],
)
def test_instructions_for_matrices_take_symbolic_sizes(dtype: str, total: str, index: str) -> None:
    """Whose sums are as long as an integer of either width says."""
    rows, columns, steps = (te.var(name, index) for name in "mnk")
    tensors = product(rows, columns, steps, dtype, total)
    s = tvm.auto_schedule(tensors[-1], AMX)
    one, few, *tiled = s.versions
    conditions = [str(condition) for condition, _ in (one, few)]
    assert conditions == ["m == 1", "m <= 8 and n >= 64 and k >= 64"]
    assert len(tiled) == 2
    assert all("te.matrix_product(" in version.trace() for _, version in tiled)
    assert "tdpb" in str(tvm.lower(s, tensors))
    if not HAS_BMI2 or "amx-int8" not in tvm.Target().features:
        pytest.skip("this machine has no tiles")
    f = tvm.build(tensors[-1], tensors, name="f")
    for m, n, k in ((64, 128, 64), (64, 64, 192), (16, 16, 16), (67, 129, 65), (3, 40, 70)):
        a, b = abs(whole(m, k, dtype="int32")).astype(dtype), whole(k, n).astype(dtype)
        got = np.full((m, n), 77, total)
        f(a, b, got)
        np.testing.assert_array_equal(got, a.astype(total) @ b.astype(total))


def test_the_trace_of_a_schedule_with_versions_replays() -> None:
    C = product(*sizes())[-1]
    s = tvm.auto_schedule(C, AVX512)
    again = te.replay(s.trace(), C)
    assert again.trace() == s.trace()
    assert [v.trace() for _, v in again.versions] == [v.trace() for _, v in s.versions]


def test_the_reasons_name_the_versions() -> None:
    C = product(*sizes())[-1]
    about = [str(each) for each in tvm.auto_schedule(C, AVX512).choices if each.about == "version"]
    assert about[0] == "calls with one m have a version of the schedule, made for 1 x 128 x 128"


@pytest.mark.parametrize(
    ("rows", "columns", "made_for"),
    [(1, 80, "1 x 128"), (3, 80, "4 x 256"), (90, 63, "64 x 64"), (63, 80, "128 x 128")],
)
def test_explain_shows_the_version_of_a_call(rows: int, columns: int, made_for: str) -> None:
    f = of_any_size(AVX512)
    given = (whole(rows, 90), whole(90, columns), whole(rows, columns))
    found = tvm.explain(f, *given, measure=False)
    assert f"{made_for} sums" in str(found.stages[0].choices[0])
    assert "m x n sums" in str(tvm.explain(f, measure=False).stages[0].choices[0])


def test_minima_of_sums_stay_in_registers() -> None:
    """Steps in pairs leave a guard, under which the tile reads its own elements where they are."""
    m, n, k = sizes()
    A, B, r = te.placeholder((m, k)), te.placeholder((k, n)), te.reduce_axis((0, k))
    C = te.compute((m, n), lambda i, j: te.min(A[i, r] + B[r, j], axis=r), name="C")
    loops = str(tvm.lower(tvm.auto_schedule(C, AVX512), [A, B, C], simple_mode=True))
    assert ".local" in loops
    assert not re.search(r"\.local\w*\[min\(", loops)


def sum_of_rows(dtype: str, weighs: bool) -> list[Tensor]:
    m, n = te.var("m"), te.var("n")
    X, w = te.placeholder((m, n), dtype, "X"), te.placeholder((n,), dtype, "w")
    k = te.reduce_axis((0, n), name="k")
    Y = te.compute((m,), lambda i: te.sum(X[i, k] * w[k] if weighs else X[i, k], axis=k), name="Y")
    return [X, w, Y]


def test_sums_of_rows_have_a_version_for_short_ones() -> None:
    (found,) = conditions(sum_of_rows("float32", weighs=False)[-1], AVX512)
    assert found == "n <= 128 and n % 64 != 0 and m >= 16"
    (found,) = conditions(sum_of_rows("float64", weighs=True)[-1], AVX2)
    assert found == "n <= 64 and n % 16 != 0 and m >= 4"
    m, n = te.var("m"), te.var("n")
    X, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, n))
    largest = te.compute((m,), lambda i: te.max(X[i, k], axis=k))  # needs none
    assert conditions(largest, AVX512) == []


def variances(m: Any, n: Any) -> list[Tensor]:
    X, k, q = te.placeholder((m, n), name="X"), te.reduce_axis((0, n)), te.reduce_axis((0, n))
    total = te.compute((m,), lambda i: te.sum(X[i, k], axis=k), name="S")

    def square(i: Any) -> Any:
        return (X[i, q] - total[i] / n) * (X[i, q] - total[i] / n)

    return [X, te.compute((m,), lambda i: te.sum(square(i), axis=q), name="V")]


def test_sums_that_wait_for_each_other_are_combined_for_longer_rows() -> None:
    m, n = te.var("m"), te.var("n")
    tensors = variances(m, n)
    assert "n <= 512 and m >= 16" in conditions(tensors[-1], AVX512)
    f = tvm.build(tensors[-1], tensors, name="f")
    for rows, length in product_of((0, 1, 15, 16, 33), (1, 7, 64, 129, 512, 513)):
        x, got = whole(rows, length), np.full(rows, 77, "float32")
        f(x, got)
        np.testing.assert_allclose(got, ((x - x.mean(1, keepdims=True)) ** 2).sum(1), rtol=1e-4)


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["llvm", AVX2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_sums_of_short_and_long_rows(target: str, dtype: str, fp: str) -> None:
    tensors = sum_of_rows(dtype, weighs=dtype == "float64")
    f = tvm.build(tensors[-1], tensors, target, name="f", fp=fp)
    for rows in (0, 1, 3, 15, 16, 17, 67):
        for length in (0, 1, 2, 7, 16, 31, 64, 100, 127, 128, 129, 300):
            x, w = whole(rows, length, dtype=dtype), whole(length, dtype=dtype)
            for each in (x, x[::-1], np.asfortranarray(x)):
                got = np.full(rows, 77, dtype)
                f(each, w, got)
                expected = (each * w if dtype == "float64" else each).sum(1)
                np.testing.assert_array_equal(got, expected.astype(dtype))


def test_a_place_and_its_value_in_rows_of_any_length() -> None:
    m, n = te.var("m"), te.var("n")
    X, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, n), "k")
    place, value = te.compute((m,), lambda i: ARGMAX((k.var, X[i, k]), axis=k), name="Y")
    f = tvm.build([place, value], [X, place, value], name="f")
    for rows in (0, 1, 15, 16, 33):
        for length in (1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 100, 513):
            x = whole(rows, length)
            where, most = np.empty(rows, "int32"), np.empty(rows, "float32")
            f(x, where, most)
            np.testing.assert_array_equal(where, x.argmax(1))
            np.testing.assert_array_equal(most, x.max(1))


@pytest.mark.parametrize(
    ("dtype", "total"),
    [("bfloat16", "float32"), ("int8", "int32"), ("int16", "int32")],
)
def test_multiples_of_tiles_are_not_padded(dtype: str, total: str) -> None:
    m, n, k = sizes()
    tensors = product(m, n, k, dtype, total)
    s = tvm.auto_schedule(tensors[-1], AVX512)
    assert str(s.versions[2][0]) == "m % 64 == 0 and k % 64 == 0 and n % 64 == 0"
    loops = str(tvm.lower(s, tensors, vector_bytes=64, mask_registers=True))
    version = loops.split("elif")[2]
    assert "B.pad" not in version and "select(" not in version
    assert "A.pad" not in version or dtype == "int8"  # with 128 added
    if dtype == "bfloat16":
        return  # numpy may not know it
    f = tvm.build(tensors[-1], tensors, name="f")
    for m, n, k in ((64, 128, 64), (64, 64, 192), (320, 64, 64), (70, 65, 99), (64, 64, 65)):
        a, b, got = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype), np.full((m, n), 77, total)
        f(a, b, got)
        np.testing.assert_array_equal(got, a.astype(total) @ b.astype(total))


@pytest.mark.covering(1)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("depth", [8, 64, 100])
@pytest.mark.parametrize(
    ("dtype", "total"), [("bfloat16", "float32"), ("int8", "int32"), ("int16", "int32")]
)
def test_blocks_of_columns_are_whole_tiles(dtype: str, total: str, depth: int, cores: int) -> None:
    """So instructions serve the calls that no version serves."""
    m, n, _ = sizes()
    tensors = product(m, n, depth, dtype, total)
    s = tvm.auto_schedule(tensors[-1], AVX512.replace("cores=2", f"cores={cores}"))
    assert "te.dot_product(" in s.trace().split("s.specialize")[0]
    assert "llvm.x86.avx512" in str(tvm.lower(s, tensors, vector_bytes=64, mask_registers=True))


@pytest.mark.parametrize("cpu", ["skylake-avx512", "sapphirerapids", "znver4"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_of_columns_of_any_number_are_whole_tiles(cpu: str, dtype: str) -> None:
    """A tile that lies in two panels would compute each place's panel."""
    target = f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu} -num-cores=1"
    for depth in (64, 256, te.var("k")):
        m, n, _ = sizes()
        *_, C = product(m, n, depth, dtype, dtype)
        general = tvm.auto_schedule(C, target).trace().split("s.specialize")[0]
        found = re.findall(r"split\(j\w*, factor=(\d+)\)", general)
        for block, tile in pairwise(map(int, found)):
            assert block % tile == 0


def test_one_version_serves_the_calls_of_two_with_its_schedule() -> None:
    """The schedule for 64 has an axis as one vector; for narrow and for small sizes it is that for
    128."""
    g, m, n, k = (te.var(name) for name in "gmnk")
    A, B = te.placeholder((m, g, k), name="A"), te.placeholder((g, n, k), name="B")
    r = te.reduce_axis((0, k))
    C = te.compute((m, g, n), lambda i, q, j: te.sum(A[i, q, r] * B[q, j, r], axis=r), name="C")
    s = tvm.auto_schedule(C, AVX512)
    traces = [version.trace() for _, version in s.versions]
    assert len(traces) == len(set(traces))
    narrow = "k < 64 or n < 64"
    small = "int64(k) * int64(m) <= 65536 and int64(k) * int64(n) <= 65536"
    assert [str(c) for c, _ in s.versions if narrow in str(c)] == [f"{narrow} or {small}"]
    again = te.replay(s.trace(), C)
    assert [str(c) for c, _ in again.versions] == [str(c) for c, _ in s.versions]


def test_the_number_of_products_of_narrow_numbers_needs_no_multiple() -> None:
    """Tiles of an instruction divide rows, columns and steps alone."""
    b, m, n = te.var("b"), te.var("m"), te.var("n")
    A, B = te.placeholder((b, m, 64), "int8", "A"), te.placeholder((b, n, 64), "int8", "B")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute(
        (b, m, n),
        lambda b, i, j: te.sum(A[b, i, k].astype("int32") * B[b, j, k].astype("int32"), axis=k),
        name="C",
    )
    assert conditions(C, AVX512)[1:] == ["m % 64 == 0 and n % 64 == 0", "16 <= m and 16 <= n"]


def einsum(text: str, extents: dict[str, Any], dtype: str, total: str) -> list[Tensor]:
    inputs, z = text.split("->")
    read = inputs.split(",")
    factors = [
        te.placeholder([extents[axis] for axis in axes], dtype, name)
        for name, axes in zip("XY", read, strict=True)
    ]
    steps = {axis: te.reduce_axis((0, extents[axis]), axis) for axis in read[0] if axis not in z}

    def element(*axes: Any) -> Any:
        at = dict(zip(z, axes, strict=True)) | steps
        x, y = (f(*(at[a] for a in a_)).astype(total) for f, a_ in zip(factors, read, strict=True))
        return te.sum(x * y, axis=[*steps.values()])

    return [*factors, te.compute([extents[axis] for axis in z], element, name="Z")]


@pytest.mark.parametrize(
    ("text", "known", "called"),
    [
        ("mk,kn->mn", {"k": 256, "n": 128}, [{"m": 100}, {"m": 16}, {"m": 129}, {"m": 64}]),
        ("mk,nk->mn", {"k": 64, "n": 128}, [{"m": 100}, {"m": 3}, {"m": 33}]),
        ("bsd,df->bsf", {"d": 64, "f": 65}, [{"b": 2, "s": 100}, {"b": 1, "s": 31}]),
        ("bsd,dhe->bshe", {"d": 64, "h": 3, "e": 64}, [{"b": 2, "s": 64}, {"b": 1, "s": 17}]),
        ("bshe,hed->bsd", {"d": 64, "h": 3, "e": 64}, [{"b": 2, "s": 64}, {"b": 1, "s": 17}]),
        ("bmk,kn->bmn", {"m": 160, "k": 256}, [{"b": 1, "n": 33}, {"b": 2, "n": 128}]),
    ],
)
def test_instructions_for_matrices_take_some_symbolic_sizes(
    text: str, known: dict[str, int], called: list[dict[str, int]]
) -> None:
    """Whichever extents are symbolic, and however many axes are rows or columns."""
    extents = {axis: known.get(axis, te.var(axis)) for axis in text if axis.isalpha()}
    tensors = einsum(text, extents, "uint8", "int32")
    s = tvm.auto_schedule(tensors[-1], AMX)
    assert "te.matrix_product(" in s.versions[-1][1].trace()
    tvm.lower(s, tensors)  # no version has tiles that leave a rest
    f = tvm.build(tensors[-1], tensors, name="f")
    for sizes in called:
        shapes = [[(known | sizes)[a] for a in axes] for axes in text.replace("->", ",").split(",")]
        x, y = (abs(whole(*shape, dtype="int32")).astype("uint8") for shape in shapes[:2])
        got = np.full(shapes[2], 77, "int32")
        f(x, y, got)
        np.testing.assert_array_equal(got, np.einsum(text, x.astype("int32"), y.astype("int32")))


@pytest.mark.parametrize(
    ("dtype", "total"), [("int8", "int32"), ("int16", "int32"), ("bfloat16", "float32")]
)
def test_weights_along_a_sum_of_any_length_are_transposed_in_registers(
    dtype: str, total: str
) -> None:
    """The padded steps are whole squares of groups, however many there are."""
    tensors = einsum("mk,nk->mn", dict(zip("mnk", sizes(), strict=True)), dtype, total)
    s = tvm.auto_schedule(tensors[-1], AMX)
    padded = s.versions[-1][1].trace()
    assert "pad_einsum(" in padded and "te.interleave_rows(" in padded
    tvm.lower(s, tensors)
    f = tvm.build(tensors[-1], tensors, name="f")
    for m, n, k in (
        (16, 16, 16),
        (17, 33, 65),
        (40, 100, 129),
        (1, 64, 64),
        (3, 5, 0),
        (64, 64, 64),
    ):
        x, y = (whole(*shape, dtype="float32") for shape in ((m, k), (n, k)))
        got = np.full((m, n), 77, total)
        f(*(tvm.nd.array(each, dtype=dtype) for each in (x, y)), got)
        np.testing.assert_array_equal(got, x @ y.T)


def test_multiples_of_tiles_come_before_few_rows() -> None:
    """A call of 64 rows is both."""
    tensors = einsum("mk,nk->mn", {"m": te.var("m"), "n": 64, "k": 64}, "int8", "int32")
    named = conditions(tensors[-1], AMX)
    assert named.index("m % 64 == 0") < named.index("m <= 64")


def test_an_image_read_as_it_lies_has_a_version() -> None:
    """Not one of known channels, whose schedule is right for images of any size."""
    text = "bchw,oc->bohw"
    extents = {axis: te.var(axis) for axis in "bchwo"}
    tensors = einsum(text, extents, "float32", "float32")
    assert {*conditions(tensors[-1], AMX)} <= {"True"}  # unless it is the same schedule
    f = tvm.build(tensors[-1], tensors, name="f")
    for b, c, h, w, o in ((2, 7, 5, 30, 9), (1, 70, 3, 65, 66), (1, 1, 1, 1, 1), (3, 0, 2, 5, 4)):
        x, y, got = whole(b, c, h, w), whole(o, c), np.full((b, o, h, w), 77, "float32")
        f(x, y, got)
        np.testing.assert_array_equal(got, np.einsum(text, x, y))


def test_long_lines_of_an_image_read_as_it_lies_are_columns() -> None:
    """Channels of a known number are the columns of short ones."""
    text = "bchw,oc->bohw"
    extents = {axis: te.var(axis) for axis in "bhw"} | {"c": 20, "o": 64}
    tensors = einsum(text, extents, "float32", "float32")
    s = tvm.auto_schedule(tensors[-1], AVX512)
    ((condition, version),) = s.versions
    assert str(condition) == "48 <= w"
    assert "i0, i2, i3, i1" in s.trace() and "i0, i2, i3, i1" not in version.trace()
    f = tvm.build(tensors[-1], tensors, name="f")
    for b, h, w in (
        (1, 1, 1),
        (2, 3, 0),
        (0, 2, 65),
        (2, 3, 47),
        (2, 3, 48),
        (1, 2, 65),
        (1, 1, 100),
    ):
        x, y, got = whole(b, 20, h, w), whole(64, 20), np.full((b, 64, h, w), 77, "float32")
        f(x, y, got)
        np.testing.assert_array_equal(got, np.einsum(text, x, y))


def test_one_version_serves_multiples_of_tiles_as_well() -> None:
    """Where tiles of six rows pad multiples, too, both versions would be the same."""
    m, n, k = sizes()
    tensors = product(m, n, k, "int8", "int32")
    assert conditions(tensors[-1], AVX2)[2:] == ["16 <= m and 16 <= k and 16 <= n"]
    f = tvm.build(tensors[-1], tensors, AVX2, name="f")
    for m, n, k in ((64, 64, 64), (128, 16, 16), (100, 129, 65), (3, 40, 70), (0, 64, 64)):
        a, b = (whole(*shape, dtype="int8") for shape in ((m, k), (k, n)))
        got = np.full((m, n), 7, "int32")
        f(a, b, got)
        np.testing.assert_array_equal(got, a.astype("int32") @ b.astype("int32"))


@pytest.mark.parametrize("known", [{}, {"c": 9, "o": 40}])
def test_rows_of_tiles_do_not_lie_along_the_images_of_a_batch(known: dict[str, int]) -> None:
    """A call may have a single one."""
    b, h, w = te.var("b"), te.var("h"), te.var("w")
    c, o = (known.get(name) or te.var(name) for name in "co")
    X, W = te.placeholder((b, h, w, c), name="X"), te.placeholder((3, 3, c, o), name="W")
    r, q, k = (te.reduce_axis((0, n), name) for n, name in ((3, "r"), (3, "q"), (c, "k")))

    def element(b: Any, y: Any, z: Any, o: Any) -> Any:
        return te.sum(X[b, y + r, z + q, k] * W[r, q, k, o], axis=[r, q, k])

    Y = te.compute((b, h - 2, w - 2, o), element, name="Y")
    s = tvm.auto_schedule(Y, AVX2)
    traces = [s.trace().split("s.specialize")[0], *(each.trace() for _, each in s.versions)]
    assert all("].split(z, factor=6)" in each and "].split(b," not in each for each in traces)
    f = tvm.build(Y, [X, W, Y], name="f")
    for images, height, width in ((1, 20, 33), (7, 3, 9), (0, 5, 5), (2, 5, 2)):
        channels, outputs = known.get("c", 5), known.get("o", 18)
        x, weights = whole(images, height, width, channels), whole(3, 3, channels, outputs)
        got = np.full((images, height - 2, width - 2, outputs), 77, "float32")
        f(x, weights, got)
        want = np.zeros_like(got)
        for u, v in np.ndindex(3, 3):
            want += x[:, u : u + height - 2, v : v + width - 2] @ weights[u, v]
        np.testing.assert_array_equal(got, want)


def test_channels_of_symbolic_number_each_by_itself() -> None:
    """As with a constant number, sums of several places use what they read together."""
    X, W, Y = _depthwise(te.var("c"))
    known = _depthwise(64)[-1]
    assert tvm.auto_schedule(Y, AVX2).trace() == tvm.auto_schedule(known, AVX2).trace()
    f = tvm.build(Y, [X, W, Y], name="f")
    images_of_sizes = ((1, 20, 33), (3, 3, 9), (2, 4, 2))
    for channels, (images, height, width) in product_of((0, 1, 3, 16, 33, 70), images_of_sizes):
        x, w = whole(images, height, width, channels), whole(3, 3, channels)
        got = np.full((images, height - 2, width - 2, channels), 77, "float32")
        f(x, w, got)
        want = np.zeros_like(got)
        for u, v in np.ndindex(3, 3):
            want += x[:, u : u + height - 2, v : v + width - 2] * w[u, v]
        np.testing.assert_array_equal(got, want)


def _depthwise(c: Any) -> list[Tensor]:
    b, h, w = (te.var(name) for name in "bhw")
    X, W = te.placeholder((b, h, w, c), name="X"), te.placeholder((3, 3, c), name="W")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")

    def element(b: Any, y: Any, z: Any, k: Any) -> Any:
        return te.sum(X[b, y + r, z + q, k] * W[r, q, k], axis=[r, q])

    return [X, W, te.compute((b, h - 2, w - 2, c), element, name="Y")]


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_rows_of_large_matrices_are_summed_whole(dtype: str) -> None:
    m, n, b = te.var("m"), te.var("n"), te.var("b")
    X, k = te.placeholder((b, m, n), dtype, "X"), te.reduce_axis((0, m), name="k")
    Y = te.compute((b, n), lambda p, j: te.sum(X[p, k, j], axis=k), name="Y")
    ((condition, version),) = tvm.auto_schedule(Y, AVX2).versions
    size = np.dtype(dtype).itemsize
    assert str(condition) == f"int64(m) * int64(n) * {size} <= 262144"
    assert "Y_local" in version.trace()
    f = tvm.build(Y, [X, Y], name="f")
    for shape in ((1, 3, 5), (2, 0, 9), (2, 7, 0), (3, 70, 33), (1, 521, 1003), (2, 600, 601)):
        x, got = whole(*shape).astype(dtype), np.full((shape[0], shape[2]), 77, dtype)
        f(x, got)
        np.testing.assert_array_equal(got, x.sum(1, dtype=dtype))


def test_vectors_by_large_matrices_are_summed_in_registers_or_in_the_cache() -> None:
    m, n, _ = sizes()
    X, A, k = te.placeholder((m,)), te.placeholder((m, n), name="A"), te.reduce_axis((0, m))
    Y = te.compute((n,), lambda j: te.sum(X[k] * A[k, j], axis=k), name="Y")
    ((_, version),) = tvm.auto_schedule(Y, AVX2).versions
    assert "Y_local" in version.trace()
    f = tvm.build(Y, [X, A, Y], name="f")
    for rows, columns in ((1, 1), (0, 5), (100, 65), (513, 1001)):
        x, a, got = whole(rows), whole(rows, columns), np.full(columns, 77, "float32")
        f(x, a, got)
        np.testing.assert_array_equal(got, x @ a)


def test_rows_of_small_tables_are_not_requested() -> None:
    m, n, k = sizes()
    X, at = te.placeholder((n, k), name="X"), te.placeholder((m,), "int32", name="I")
    Y = te.compute((m, k), lambda i, j: X[at[i], j], name="Y")
    s = tvm.auto_schedule(Y, AVX2)
    ((condition, version),) = s.versions
    assert str(condition) == "int64(n) * int64(k) * 4 <= 262144"
    assert ".prefetch(X" in s.trace() and ".prefetch(" not in version.trace()
    f = tvm.build(Y, [X, at, Y], name="f")
    for rows, table, columns in ((7, 5, 64), (0, 3, 4), (100, 1000, 129), (9, 5000, 70), (3, 1, 0)):
        x, places = (
            whole(table, columns),
            np.random.default_rng(1).integers(0, table, rows, "int32"),
        )
        got = np.full((rows, columns), 77, "float32")
        f(x, places, got)
        np.testing.assert_array_equal(got, x[places])


def test_instructions_leave_out_no_terms_in_versions() -> None:
    """A version in which an instruction would have to is left out, and others stay."""
    m, n, k = sizes()
    A, B = te.placeholder((m, k), "int16", "A"), te.placeholder((n, k), "int16", "B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(A[i, r].astype("int32") * B[j, r].astype("int32"), axis=r),
        name="C",
    )
    s = tvm.auto_schedule(C, AVX512)
    assert "k % 64 == 0" in " ".join(str(condition) for condition, _ in s.versions)
    tvm.lower(s, [A, B, C])


def biased(*shape: Any, dtype: str = "float32") -> list[Tensor]:
    X, w = te.placeholder(shape, dtype, "X"), te.placeholder(shape[-1:], dtype, "w")
    return [X, w, te.compute(shape, lambda *at: X[at] + X[at] + w[at[-1]], name="Y")]


def test_short_rows_that_read_the_same_row_are_lines() -> None:
    m, n, p = te.var("m"), te.var("n"), te.var("p")
    (found,) = conditions(biased(m, n)[-1], AVX512)
    assert found == "1 <= n and n <= 64 and n % 16 != 0 and int64(m) >= 128"
    (found,) = conditions(biased(p, m, n)[-1], AVX2)
    assert found == "1 <= n and n <= 128 and n % 8 != 0 and int64(p) * int64(m) >= 64"
    assert conditions(biased(m, 17)[-1], AVX512) == []  # a length that is known
    s = tvm.auto_schedule(biased(m, n)[-1], AVX512)
    assert "s.repeat_rows(w, Y.op, 32)" in s.versions[0][1].trace()
    # Whole vectors: the places in a line are one index of each tensor, without a remainder.
    loops = str(tvm.lower(s.versions[0][1], biased_arguments(s), name="f"))
    assert "% broadcast(32" not in loops
    assert "must stay in" not in loops


def biased_arguments(s: Any) -> list[Tensor]:
    X, w = s.calls.outputs[0].input_tensors
    return [X, w, s.calls.outputs[0].output(0)]


@pytest.mark.parametrize("target", ["llvm", AVX2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_short_rows_of_any_length_and_number(target: str, dtype: str) -> None:
    tensors = biased(te.var("m"), te.var("n"), dtype=dtype)
    f = tvm.build(tensors[-1], tensors, target, name="f")
    for rows, length in product_of(
        (0, 1, 31, 63, 127, 128, 129, 160, 500), (0, 1, 2, 3, 16, 17, 63)
    ):
        x, w = whole(rows, length, dtype=dtype), whole(length, dtype=dtype)
        for each in (x, np.asfortranarray(x)):
            got = np.full((rows, length), 77, dtype)
            f(each, w, got)
            np.testing.assert_array_equal(got, x + x + w)
        f(x, w, x)  # in place
        np.testing.assert_array_equal(x, got)


def test_lines_of_images_whose_channels_are_last() -> None:
    b, h, w, c = (te.var(name) for name in "bhwc")
    tensors = biased(b, h, w, c)
    f = tvm.build(tensors[-1], tensors, name="f")
    for shape in ((2, 5, 30, 3), (1, 1, 64, 17), (3, 40, 1, 33), (2, 9, 9, 64), (2, 9, 9, 65)):
        x, v, got = whole(*shape), whole(shape[-1]), np.full(shape, 77, "float32")
        f(x, v, got)
        np.testing.assert_array_equal(got, x + x + v)


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_symbolic_channels_run_along_lines(stride: int) -> None:
    """Windows of neighbouring places and channels are one line of memory, of any length."""
    b, h, w, c = (te.var(name) for name in "bhwc")
    X = te.placeholder((b, h, w, c), name="X")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")
    shape = (b, h - 2, w - 2, c) if stride == 1 else (b, (h - 3) // 2 + 1, (w - 3) // 2 + 1, c)

    def element(p: Any, y: Any, z: Any, k: Any) -> Any:
        return te.max(X[p, y * stride + r, z * stride + q, k], axis=[r, q])

    Y = te.compute(shape, element, name="Y")
    s = tvm.auto_schedule(Y, AVX512)
    assert ("s[Y].fuse(z, k)" in s.trace()) is (stride == 1)
    assert "must stay in" not in str(tvm.lower(s, [X, Y], name="f"))
    f = tvm.build(Y, [X, Y], name="f")
    for sizes_ in ((1, 3, 3, 1), (2, 9, 30, 3), (1, 7, 4, 17), (1, 5, 66, 1), (2, 4, 9, 64)):
        x = whole(*sizes_)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
        want = windows[:, ::stride, ::stride].max((-1, -2))
        got = np.full(want.shape, 77, "float32")
        f(x, got)
        np.testing.assert_array_equal(got, want)


def test_places_in_short_rows_are_found_step_by_step() -> None:
    m, n = te.var("m"), te.var("n")
    X, k = te.placeholder((m, n), name="X"), te.reduce_axis((0, n), "k")
    place, _ = te.compute((m,), lambda i: ARGMAX((k.var, X[i, k]), axis=k), name="Y")
    (found,) = conditions(place, AVX512)
    assert found == "n <= 64 and m >= 16"
    version = tvm.auto_schedule(place, AVX512).versions[0][1]
    assert "s.cache_access(X, 'global'" in version.trace()


def test_versions_for_few_rows_have_no_tiles_that_sums_of_any_length_do_not_fill() -> None:
    """The version for few rows of a batch is that of a long sum, which needs no padding."""
    m, n, k = sizes()
    A, B = te.placeholder((m, k), "uint8", "A"), te.placeholder((n, k, 18), "uint8", "B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (18, n, m),
        lambda b, j, i: te.sum(A[i, r].astype("int32") * B[j, r, b].astype("int32"), axis=r),
        name="C",
    )
    s = tvm.auto_schedule(C, AMX)
    found = {str(condition): version.trace() for condition, version in s.versions}
    *few, whole, padded = (("te.matrix_product(" in trace) for trace in found.values())
    assert (few, whole, padded) == ([False], True, True)
    assert "16 <= k" in [*found][-1]
    tvm.lower(s, [A, B, C])


def test_an_image_of_any_size_has_a_version_whose_rows_stay_apart() -> None:
    n, c, f, h, w = (te.var(each) for each in "ncfhw")
    x, weights = te.placeholder((n, c, h, w), name="X"), te.placeholder((f, c), name="W")
    k = te.reduce_axis((0, c), "k")
    y = te.compute(
        (n, f, h, w), lambda b, o, i, j: te.sum(weights[o, k] * x[b, k, i, j], axis=k), name="Y"
    )
    s = tvm.auto_schedule(y, "llvm -mcpu=sapphirerapids")
    ((condition, version),) = s.versions
    assert str(condition) == "True"
    assert "transform_layout" not in version.trace()


def test_several_reduction_axes_have_as_many_steps_as_one() -> None:
    m, n, k, q = (te.var(each) for each in "mnkq")
    a, b = te.placeholder((k, q, m), name="A"), te.placeholder((q, k, n), name="B")
    r, t = te.reduce_axis((0, k), "r"), te.reduce_axis((0, q), "t")
    c = te.compute((n, m), lambda j, i: te.sum(a[r, t, i] * b[t, r, j], axis=[r, t]), name="C")
    s = tvm.auto_schedule(c, "llvm -mcpu=sapphirerapids")
    _, (_, small) = s.versions
    assert "rfactor" not in small.trace()  # its sums aren't cut, as those of many steps are
