"""What auto_schedule writes for reductions: values against numpy, and the loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import build, lower, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.module import Module
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import const_int

Array = np.ndarray[Any, Any]
HASWELL = "llvm -mcpu=haswell -num-cores=2"


def built(output: Tensor, inputs: list[Tensor], values: list[Array], fp: str = "fast") -> Array:
    """The output for some values; symbolic extents are those of the values."""
    extents = {
        id(extent): size
        for tensor, value in zip(inputs, values, strict=True)
        for extent, size in zip(tensor.shape, value.shape, strict=True)
    }
    known = ((const_int(extent), extents.get(id(extent))) for extent in output.shape)
    shape = [symbolic or 0 if size is None else size for size, symbolic in known]
    found = np.empty(shape, str(output.dtype))
    function(output, *inputs, fp=fp)(*values, found)
    return found


@lru_cache(maxsize=1)
def function(output: Tensor, *inputs: Tensor, fp: str) -> Module:
    """Calls that follow each other share a build."""
    return build([output], [*inputs, output], fp=fp)


def close(found: Array, expected: Array, terms: int, magnitude: Array | float) -> None:
    """Within the bound of a sum of `terms` in any order."""
    unit = float(np.finfo(found.dtype).eps) if found.dtype.kind == "f" else 0.0
    bound = (terms + 8) * unit * np.maximum(magnitude, 1e-30)
    assert (np.abs(found.astype("float64") - expected) <= bound).all()


def text(output: Tensor, inputs: list[Tensor], target: str = HASWELL) -> str:
    return str(lower(auto_schedule(output, target), [*inputs, output], simple_mode=True))


# -- Sums over any axes --

LOGSUMEXP = te.comm_reducer(
    lambda a, b: te.max(a, b) + te.log(te.exp(a - te.max(a, b)) + te.exp(b - te.max(a, b))),
    lambda dtype: te.min_value(dtype),
    name="logsumexp",
)
EITHER = te.comm_reducer(
    lambda a, b: a + b - a * b, lambda dtype: te.const(0, dtype), name="either"
)
REDUCERS: dict[str, tuple[Any, Callable[[Array, tuple[int, ...]], Array]]] = {
    "sum": (te.sum, lambda x, axes: x.sum(axes)),
    "min": (te.min, lambda x, axes: x.min(axes)),
    "max": (te.max, lambda x, axes: x.max(axes)),
    "prod": (te.prod, lambda x, axes: x.prod(axes)),
    "either": (EITHER, lambda x, axes: 1 - (1 - x).prod(axes)),
    "logsumexp": (LOGSUMEXP, lambda x, axes: np.log(np.exp(x).sum(axes))),
}


def reduced(x: Tensor, axes: tuple[int, ...], reducer: Any, inner: Callable[[Any], Any]) -> Tensor:
    steps = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in axes}
    shape = [extent for axis, extent in enumerate(x.shape) if axis not in axes]

    def element(*indices: Any) -> Any:
        rest = iter(indices)
        place = [steps[axis] if axis in axes else next(rest) for axis in range(len(x.shape))]
        return reducer(inner(x(*place)), axis=list(steps.values()))

    made: Tensor = te.compute(tuple(shape), element, name="S")
    return made


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], str, bool]:
    rank = draw(st.integers(1, 3))
    sizes = st.sampled_from([1, 2, 3, 7, 8, 16, 33, 100, 130])
    shape = tuple(draw(sizes) for _ in range(rank))
    several = [axes for n in range(1, rank + 1) for axes in combinations(range(rank), n)]
    return (
        shape,
        draw(st.sampled_from(several)),
        draw(st.sampled_from([*REDUCERS])),
        draw(st.booleans()),
    )


@given(reductions(), st.sampled_from(["fast", "strict"]))
@settings(max_examples=25, deadline=None)
def test_reductions_over_any_axes(
    drawn: tuple[tuple[int, ...], tuple[int, ...], str, bool], fp: str
) -> None:
    shape, axes, name, is_symbolic = drawn
    extents = [te.var(f"n{i}") for i in range(len(shape))] if is_symbolic else shape
    x = te.placeholder(tuple(extents), name="X")
    reducer, exact = REDUCERS[name]
    output = reduced(x, axes, reducer, lambda value: value)
    value = np.random.default_rng(0).uniform(0.5, 1.0, shape).astype("float32")
    found = built(output, [x], [value], fp)
    expected = exact(value.astype("float64"), axes)
    terms = int(np.prod([shape[axis] for axis in axes]))
    close(found, expected, 4 * terms, np.maximum(np.abs(expected), 1.0))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float64"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_reductions_of_every_dtype(dtype: str, axes: tuple[int, ...]) -> None:
    x = te.placeholder((70, 130), dtype, name="X")
    value = np.random.default_rng(0).integers(0, 3, (70, 130)).astype(dtype)
    for reducer, exact in (te.max, value.max(axes)), (te.min, value.min(axes)):
        np.testing.assert_array_equal(
            built(reduced(x, axes, reducer, lambda v: v), [x], [value]), exact
        )
    wide = "float64" if "float" in dtype else "int64"
    total = reduced(x, axes, te.sum, lambda v: v.astype(wide))
    np.testing.assert_array_equal(built(total, [x], [value]), value.astype(wide).sum(axes))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_a_reduction_of_nothing_is_the_identity(axes: tuple[int, ...]) -> None:
    x = te.placeholder((te.var("m"), te.var("n")), name="X")
    output = reduced(x, axes, te.sum, lambda v: v)
    for shape in ((0, 5), (5, 0), (0, 0)):
        found = built(output, [x], [np.empty(shape, "float32")])
        np.testing.assert_array_equal(found, np.empty(shape).sum(axes))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize(
    ("reducer", "exact"), [(te.max, np.max), (te.min, np.min), (te.sum, np.sum)]
)
def test_special_values_reach_the_result(reducer: Any, exact: Any, axes: tuple[int, ...]) -> None:
    x = te.placeholder((40, 70), name="X")
    output = reduced(x, axes, reducer, lambda v: v)
    value = np.random.default_rng(0).random((40, 70), "float32")
    for special in (np.nan, np.inf, -np.inf):
        value[20, 33] = special
        found = built(output, [x], [value])
        np.testing.assert_allclose(found, exact(value, axis=axes), rtol=1e-5)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_masked_sums(axes: tuple[int, ...]) -> None:
    shape = (9, 40, 70)
    x, mask = te.placeholder(shape, name="X"), te.placeholder(shape, "bool", name="M")
    steps = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}

    def element(*indices: Any) -> Any:
        rest = iter(indices)
        at = [steps[axis] if axis in axes else next(rest) for axis in range(3)]
        return te.sum(x(*at), axis=list(steps.values()), where=mask(*at))

    output = te.compute(tuple(shape[i] for i in range(3) if i not in axes), element, name="S")
    rng = np.random.default_rng(0)
    value, chosen = rng.random(shape, "float32"), rng.random(shape) < 0.5
    found = built(output, [x, mask], [value, chosen])
    expected = np.where(chosen, value, 0).astype("float64").sum(axes)
    close(found, expected, 2800, expected)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_two_results_in_one_pass(dtype: str) -> None:
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda s, t: (te.const(0, s), te.const(0, t)),
        name="both",
    )
    for axis in (0, 1):
        x = te.placeholder((60, 130), dtype, name="X")
        k = te.reduce_axis((0, x.shape[axis]), "k")

        def element(i: Any, axis: int = axis, x: Tensor = x, k: Any = k) -> Any:
            value = x[k, i] if axis == 0 else x[i, k]
            return both((value, value * value), axis=k)

        s, q = te.compute((x.shape[1 - axis],), element, name="S")
        value = np.random.default_rng(0).integers(-9, 9, (60, 130)).astype(dtype)
        sums, squares = np.empty((2, 190 - 60 * (1 - axis) - 130 * axis), dtype)
        build([s, q], [x, s, q])(value, sums, squares)
        np.testing.assert_array_equal(sums, value.sum(axis))
        np.testing.assert_array_equal(squares, (value**2).sum(axis))


# -- The error of long sums --


@pytest.mark.parametrize("make", [
    lambda rng, n: rng.random(n, "float32"),
    lambda rng, n: np.full(n, 0.1, "float32"),
    lambda rng, n: rng.standard_normal(n, "float32"),
], ids=["uniform", "constant", "normal"])  # fmt: skip
def test_a_long_sum_is_as_exact_as_a_pairwise_one(make: Callable[..., Array]) -> None:
    n = 10**7
    x, k = te.placeholder((n,), name="X"), te.reduce_axis((0, n), "k")
    s = te.compute((), lambda: te.sum(x[k], axis=k), name="S")
    f = build([s], [x, s])
    for seed in range(2):
        value = make(np.random.default_rng(seed), n)
        exact = value.astype("float64").sum()
        magnitude = np.abs(value).astype("float64").sum()
        found = np.empty((), "float32")
        f(value, found)
        # Pairwise sums of n terms round log2(n) times.
        assert abs(float(found) - exact) <= np.log2(n) * 2.0**-24 * magnitude


def itself(x: Any) -> Any:
    return x


@pytest.mark.parametrize("value", [itself, te.exp])
def test_a_sum_of_long_rows_is_as_exact(value: Callable[[Any], Any]) -> None:
    """The distance of two rows is greater than the greatest that is known."""
    m, n = 2, (1 << 20) + 3
    x = te.placeholder((m, n), name="X")
    i, j = te.reduce_axis((0, m), "i"), te.reduce_axis((0, n), "j")
    s = te.compute((), lambda: te.sum(value(x[i, j]), axis=[i, j]), name="S")
    made = auto_schedule(s, "llvm -mcpu=skylake-avx512")
    assert "fuse(i, j)" in made.trace()
    rows, found = np.random.default_rng(0).random((m, n), "float32"), np.empty((), "float32")
    build([s], [x, s])(rows, found)
    wide = rows.astype("float64")
    exact = (wide if value is itself else np.exp(wide)).sum()
    assert abs(float(found) - exact) <= (2 + np.log2(m * n)) * 2.0**-24 * exact


@pytest.mark.parametrize("shape", [(300, 200), (1, 7), (33, 40_000)])
@pytest.mark.parametrize("function", ["exp", "tanh", "log"])
def test_functions_of_all_elements_are_summed_in_whole_vectors(
    shape: tuple[int, int], function: str
) -> None:
    """LLVM would make vectors of half the width."""
    x = te.placeholder(shape, name="X")
    i, j = (te.reduce_axis((0, extent)) for extent in shape)
    s = te.compute((), lambda: te.sum(getattr(te, function)(x[i, j] + 1.0), axis=[i, j]), name="S")
    made = text(s, [x], "llvm -mcpu=skylake-avx512")
    assert "vectorized(16)" in made or shape == (1, 7)
    value, found = np.random.default_rng(0).random(shape, "float32"), np.empty((), "float32")
    build([s], [x, s])(value, found)
    exact = getattr(np, function)(value.astype("float64") + 1).sum()
    np.testing.assert_allclose(found, exact, rtol=40 * 2.0**-24)


def test_results_are_the_same_for_any_number_of_threads() -> None:
    from minitvm.runtime.threads import num_threads, set_num_threads

    n = 600_000
    x, k = te.placeholder((3, n), name="X"), te.reduce_axis((0, n), "k")
    s = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), name="S")
    f = build([s], [x, s])
    value = np.random.default_rng(0).random((3, n), "float32")
    before, found = num_threads(), []
    try:
        for threads in (1, 2, 3):
            set_num_threads(threads)
            found.append(np.empty(3, "float32"))
            f(value, found[-1])
    finally:
        set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


# -- Windows --


@pytest.mark.parametrize(
    ("size", "stride", "dilation"),
    [((3, 3), 1, 1), ((3, 3), 2, 1), ((5, 2), 1, 2), ((1, 3), 3, 2), ((17, 20), 1, 1)],
    ids=str,
)
def test_windows(size: tuple[int, int], stride: int, dilation: int) -> None:
    x = te.placeholder((3, 40, 70), name="X")
    r, q = te.reduce_axis((0, size[0]), "r"), te.reduce_axis((0, size[1]), "q")
    h, w = ((n - (k - 1) * dilation - 1) // stride + 1 for n, k in zip((40, 70), size, strict=True))

    def place(c: Any, i: Any, j: Any) -> Any:
        return x[c, i * stride + r * dilation, j * stride + q * dilation]

    largest = te.compute((3, h, w), lambda *at: te.max(place(*at), axis=[r, q]), name="P")
    total = te.compute((3, h, w), lambda *at: te.sum(place(*at), axis=[r, q]), name="T")
    mean = te.compute((3, h, w), lambda *at: total(*at) * 0.5, name="Y")
    value = np.random.default_rng(0).integers(-99, 99, (3, 40, 70)).astype("float32")
    reach = tuple((k - 1) * dilation + 1 for k in size)
    windows = np.lib.stride_tricks.sliding_window_view(value, reach, (1, 2))
    windows = windows[:, ::stride, ::stride, ::dilation, ::dilation]
    np.testing.assert_array_equal(built(largest, [x], [value]), windows.max((-1, -2)))
    np.testing.assert_array_equal(built(mean, [x], [value]), windows.sum((-1, -2)) / 2)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 16])
def test_windows_of_images_with_channels_last(channels: int) -> None:
    x = te.placeholder((20, 50, channels), "uint8", name="X")
    r, q = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, 5), "q")
    output = te.compute(
        (16, 46, channels),
        lambda i, j, c: te.sum(x[i + r, j + q, c].astype("int32"), axis=[r, q]),
        name="P",
    )
    value = np.random.default_rng(0).integers(0, 256, (20, 50, channels)).astype("uint8")
    windows = np.lib.stride_tricks.sliding_window_view(value.astype("int32"), (5, 5), (0, 1))
    half = te.compute(output.shape, lambda i, j, c: output[i, j, c].astype("float32") / 2, name="Y")
    np.testing.assert_array_equal(built(half, [x], [value]), windows.sum((-1, -2)) / 2)
    width = min(46 * channels, 64)
    shape = f"1, 1, {width}" if channels > 1 else f"1, {width}"
    assert f'allocate(int32[{shape}], "local")' in text(half, [x])
    assert "masked.gather" not in build([half], [x, half], HASWELL).get_source("ll")


@pytest.mark.parametrize("symbolic", [False, True])
def test_windows_that_reach_into_padding(symbolic: bool) -> None:
    h, w = (te.var("h"), te.var("w")) if symbolic else (33, 50)
    x = te.placeholder((h, w), name="X")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")

    def padded(i: Any, j: Any) -> Any:
        inside = te.all(i >= 0, i < h, j >= 0, j < w)
        return te.if_then_else(inside, x[i, j], 0.0)

    output = te.compute(
        (h, w), lambda i, j: te.sum(padded(i + r - 1, j + q - 1), axis=[r, q]), name="P"
    )
    value = np.random.default_rng(0).integers(-99, 99, (33, 50)).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(value, 1), (3, 3))
    found = built(output, [x], [value])
    np.testing.assert_array_equal(found, windows.sum((-1, -2)))


@pytest.mark.parametrize("size", [2, 16, 50])
def test_moving_sums(size: int) -> None:
    x, q = te.placeholder((1000,), "int32", name="X"), te.reduce_axis((0, size), "q")
    output = te.compute((1001 - size,), lambda i: te.sum(x[i + q], axis=q), name="P")
    value = np.random.default_rng(0).integers(-99, 99, 1000).astype("int32")
    windows = np.lib.stride_tricks.sliding_window_view(value, size)
    np.testing.assert_array_equal(built(output, [x], [value]), windows.sum(-1))


# -- Gathers --


@pytest.mark.covering(1)
@pytest.mark.parametrize("width", [1, 7, 15, 50, 63, 64, 100])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_embedding_bags(width: int, index: str) -> None:
    table, bags = te.placeholder((50, width), name="W"), te.placeholder((9, 6), index, name="I")
    weights, k = te.placeholder((9, 6), name="P"), te.reduce_axis((0, 6), "k")
    plain = te.compute((9, width), lambda b, d: te.sum(table[bags[b, k], d], axis=k), name="E")
    mean = te.compute((9, width), lambda b, d: plain[b, d] * 0.25, name="Y")
    weighted = te.compute(
        (9, width), lambda b, d: te.sum(table[bags[b, k], d] * weights[b, k], axis=k), name="E"
    )
    rng = np.random.default_rng(0)
    w, p = (rng.integers(-9, 9, shape).astype("float32") for shape in ((50, width), (9, 6)))
    i = rng.integers(0, 50, (9, 6)).astype(index)
    np.testing.assert_array_equal(built(mean, [table, bags], [w, i]), w[i].sum(1) / 4)
    np.testing.assert_array_equal(
        built(weighted, [table, bags, weights], [w, i, p]), (w[i] * p[..., None]).sum(1)
    )


def test_gathers_of_one_index_for_each_element() -> None:
    x, where = te.placeholder((70, 50), name="X"), te.placeholder((70, 6), "int32", name="I")
    k = te.reduce_axis((0, 6), "k")
    output = te.compute((70,), lambda i: te.sum(x[i, where[i, k]], axis=k), name="S")
    rng = np.random.default_rng(0)
    value, index = rng.integers(-9, 9, (70, 50)).astype("float32"), rng.integers(0, 50, (70, 6))
    found = built(output, [x, where], [value, index.astype("int32")])
    np.testing.assert_array_equal(found, np.take_along_axis(value, index, 1).sum(1))


@pytest.mark.parametrize("reads", [True, False])
def test_sums_whose_lengths_are_data(reads: bool) -> None:
    """The axis that the length depends on lies around the sum, whatever the terms read."""
    x, lengths = te.placeholder((9, 8), name="X"), te.placeholder((17,), "int32", name="L")

    def element(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, lengths[i]), "k")
        return te.sum(x[k, j] if reads else te.const(1.0, "float32"), axis=k)

    output = te.compute((17, 8), element, name="S")
    rng = np.random.default_rng(0)
    counts = rng.integers(-2, 10, 17).astype("int32")
    value = rng.integers(-9, 9, (9, 8)).astype("float32") if reads else np.ones((9, 8), "float32")
    given = ([x, lengths], [value, counts]) if reads else ([lengths], [counts])
    wanted = np.stack([value[: max(count, 0)].sum(0) for count in counts])
    np.testing.assert_array_equal(built(output, *given), wanted)


def test_steps_whose_number_is_data_stay_loops() -> None:
    lengths = te.placeholder((9,), "int32", name="L")
    x = te.placeholder((5,), name="X")

    def element(i: Any) -> Any:
        k = te.reduce_axis((0, 9), "k")
        inner = te.reduce_axis((0, lengths[k]), "l")
        return te.sum(x[i], axis=[k, inner])

    output = te.compute((5,), element, name="S")
    counts, value = np.arange(9, dtype="int32") - 2, np.arange(5, dtype="float32")
    found = built(output, [lengths, x], [counts, value])
    np.testing.assert_array_equal(found, value * np.maximum(counts, 0).sum())


def test_sums_of_any_number_of_terms_in_parts() -> None:
    """The parts of a sum are so long that an index of 32 bits has no room for their weight."""
    n = te.var("n")
    x = te.placeholder((n * 3, 8), "float64", name="X")
    k = te.reduce_axis((0, n), "k")
    output = te.compute((n, 8), lambda i, j: te.sum(x[k + i * 2, j], axis=k), name="S")
    f = build([output], [x, output])
    for size in (0, 1, 2, 7, 40):
        value = np.random.default_rng(size).integers(-9, 9, (3 * size, 8)).astype("float64")
        found = np.empty((size, 8))
        f(value, found)
        wanted = [value[2 * i : 2 * i + size].sum(0) for i in range(size)]
        np.testing.assert_array_equal(found, np.reshape(wanted, (size, 8)))


def test_segments_of_rows() -> None:
    x, ends = te.placeholder((200, 70), name="X"), te.placeholder((11,), "int32", name="P")
    k = te.reduce_axis((0, 200), "k")
    output = te.compute(
        (10, 70),
        lambda i, j: te.sum(x[k, j], axis=k, where=te.all(k >= ends[i], k < ends[i + 1])),
        name="S",
    )
    rng = np.random.default_rng(0)
    value = rng.integers(-9, 9, (200, 70)).astype("float32")
    found_ends = np.sort(rng.integers(0, 200, 11)).astype("int32")
    expected = [value[a:b].sum(0) for a, b in pairwise(found_ends)]
    np.testing.assert_array_equal(built(output, [x, ends], [value, found_ends]), expected)


def gathered(table: Tensor, index: Tensor, *, is_summed: bool) -> Tensor:
    """Rows of a table, or their sums."""
    if not is_summed:
        rows: Tensor = te.compute(
            (*index.shape, table.shape[1]), lambda *i: table[index(*i[:-1]), i[-1]], name="T"
        )
        return rows
    k = te.reduce_axis((0, index.shape[1]), "k")
    sums: Tensor = te.compute(
        (index.shape[0], table.shape[1]),
        lambda i, j: te.sum(table[index[i, k], j], axis=k),
        name="T",
    )
    return sums


@pytest.mark.covering(2)
@pytest.mark.parametrize("is_summed", [False, True])
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("width", [64, 100, 700])
def test_rows_that_data_choose_are_requested(
    is_summed: bool, is_symbolic: bool, width: int
) -> None:
    """The last rows have no successors, and an index beyond the table is found when it is read."""
    rows = 1_200_000 // width
    table = te.placeholder((rows, width), name="X")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((rows, width), dtype="float32")
    index = te.placeholder((te.var("b"), te.var("n")), "int64", name="I")
    out = gathered(table, index, is_summed=is_summed)
    for shape in ((5, 7), (1, 1), (3, 40), (4, 0)):
        if not is_symbolic:
            index = te.placeholder(shape, "int64", name="I")
            out = gathered(table, index, is_summed=is_summed)
        places = rng.integers(0, rows, shape)
        parts = values[places].astype("float64")
        expected, sizes = (parts.sum(1), np.abs(parts).sum(1)) if is_summed else (parts, 0.0)
        close(built(out, [index, table], [places, values]), expected, shape[1], sizes)
        if places.size:
            places.ravel()[-1] = rows
            with pytest.raises(IndexError, match=r"X\["):
                built(out, [index, table], [places, values])


def test_requests_of_rows() -> None:
    for is_summed in (False, True):
        for table, index, steps in (
            ((50000, 256), (64, 20), 10),
            ((50000, 64), (64, 20), 40),
            ((50000, 32), (64, 20), None),  # short rows
            ((500, 64), (64, 20), None),  # which fit the L2 cache
        ):
            X, I = te.placeholder(table, name="X"), te.placeholder(index, "int32", name="I")  # noqa: E741  # indices
            out = gathered(X, I, is_summed=is_summed)
            trace = auto_schedule(out, "llvm -mcpu=znver5").trace()
            assert ("prefetch" in trace) == (steps is not None)
            if steps is not None:
                assert f", {steps})" in next(
                    line for line in trace.splitlines() if "prefetch" in line
                )


# -- The place of the greatest --


def place_of(better: Callable[[Any, Any], Any], begin: Any, worst: Any) -> Any:
    return te.comm_reducer(
        lambda a, b: (
            te.if_then_else(better(a, b), a[0], b[0]),
            te.if_then_else(better(a, b), a[1], b[1]),
        ),
        lambda s, t: (begin(s), worst(t)),
        name="place",
    )


def minus_one(dtype: Any) -> Any:
    return te.const(-1, dtype)


def last_of(x: Array) -> Array:
    return np.asarray(x.shape[1] - 1 - x[:, ::-1].argmax(1))


PLACES: dict[str, tuple[Any, Callable[[Array], Array]]] = {
    "first": (place_of(lambda a, b: a[1] >= b[1], minus_one, te.min_value), lambda x: x.argmax(1)),
    "last": (place_of(lambda a, b: a[1] > b[1], minus_one, te.min_value), last_of),
    "least": (place_of(lambda a, b: a[1] <= b[1], minus_one, te.max_value), lambda x: x.argmin(1)),
    "by index": (
        place_of(
            lambda a, b: te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] < b[0])),
            te.max_value, te.min_value,
        ),
        lambda x: x.argmax(1),
    ),
    "last, late identity": (
        place_of(lambda a, b: a[1] > b[1], te.max_value, te.min_value), last_of
    ),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((5, 7), "float32"), ((3, 100), "uint8"), ((70, 33), "int32"), ((2, 3000), "float32"),
        ((2, 3001), "uint8"), ((1, 5000), "int8"), ((3, 4096), "float64"),
    ],
    ids=str,
)  # fmt: skip
def test_places_where_several_are_equal(kind: str, shape: tuple[int, int], dtype: str) -> None:
    reducer, exact = PLACES[kind]
    x, k = te.placeholder(shape, dtype, name="X"), te.reduce_axis((0, shape[1]), "k")
    place, value = te.compute((shape[0],), lambda i: reducer((k.var, x[i, k]), axis=k), name="A")
    given_values = np.random.default_rng(0).integers(1, 5, shape).astype(dtype)
    places, values = np.empty(shape[0], str(place.dtype)), np.empty(shape[0], dtype)
    build([place, value], [x, place, value])(given_values, places, values)
    expected = exact(given_values)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, given_values[np.arange(shape[0]), expected])


@pytest.mark.covering(2)
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(3, 40, 33), (1, 5, 800), (2, 7, 3)])
@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_places_along_several_axes(
    is_last: bool, is_one: bool, shape: tuple[int, int, int], order: tuple[int, ...]
) -> None:
    """Of equal elements, the first or the last in the order of the axes, however they lie."""
    n, rows, width = shape
    memory = [shape[axis] for axis in order]
    x = te.placeholder(memory, name="X")
    k, step = te.reduce_axis((0, rows), name="k"), te.reduce_axis((0, width), name="l")

    def chosen(a: Any, b: Any) -> Any:
        is_first = a[-1] > b[-1] if is_last else a[-1] >= b[-1]
        return tuple(te.if_then_else(is_first, *each) for each in zip(a, b, strict=True))

    def nothing(*dtypes: Any) -> Any:
        return *map(minus_one, dtypes[:-1]), te.min_value(dtypes[-1])

    reducer = te.comm_reducer(chosen, nothing, name="place")
    places = (k * width + step,) if is_one else (k.var, step.var)

    def element(i: Any) -> Any:
        at = (i, k, step)
        return reducer((*places, x(*(at[axis] for axis in order))), axis=[k, step])

    outputs = te.compute((n,), element, name="A")
    given_values = np.random.default_rng(0).integers(1, 4, memory).astype("float32")
    rows_of = given_values.transpose(np.argsort(order)).reshape(n, -1)
    place = last_of(rows_of) if is_last else rows_of.argmax(1)
    expected = [place] if is_one else [*np.divmod(place, width)]
    found = [np.empty(n, str(each.dtype)) for each in outputs]
    build([*outputs], [x, *outputs])(given_values, *found)
    for one, other in zip(found, [*expected, rows_of.max(1)], strict=True):
        np.testing.assert_array_equal(one, other)
    if order == (0, 1, 2) and width == 800:
        assert "s.rfactor(A" in auto_schedule([*outputs], "llvm -mcpu=haswell").trace()


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_the_block_of_a_place_is_found_first(dtype: str) -> None:
    reducer, _ = PLACES["first"]
    x, k = te.placeholder((4, 3000), dtype, name="X"), te.reduce_axis((0, 3000), "k")
    place, value = te.compute((4,), lambda i: reducer((k.var, x[i, k]), axis=k), name="A")
    assert "s.find_block(A" in auto_schedule([place, value], "llvm -mcpu=haswell").trace()
    given_values = np.zeros((4, 3000), dtype)
    given_values[1, 2999], given_values[2, ::700] = 3, 3
    places, values = np.empty(4, "int32"), np.empty(4, dtype)
    build([place, value], [x, place, value])(given_values, places, values)
    np.testing.assert_array_equal(values, given_values.max(1))
    none = -1 if dtype == "uint8" else 0  # of the identity's value, no place is found
    np.testing.assert_array_equal(places, [none, 2999, 0, none])


def test_a_reducer_whose_order_counts_keeps_it() -> None:
    last = te.comm_reducer(lambda a, b: b, lambda dtype: te.const(0, dtype), name="last")
    x, k = te.placeholder((20, 1000), name="X"), te.reduce_axis((0, 1000), "k")
    output = te.compute((20,), lambda i: last(x[i, k], axis=k), name="L")
    value = np.random.default_rng(0).random((20, 1000), "float32")
    np.testing.assert_array_equal(built(output, [x], [value]), value[:, -1])


def welford(x: Tensor, axis: int) -> list[Tensor]:
    """Counts, means and sums of squared distances from the mean, in one pass."""

    def combine(a: Any, b: Any) -> Any:
        count, step = a[0] + b[0], b[1] - a[1]
        whole = te.max(count, 1.0)
        squares = a[2] + b[2] + step * step * (a[0] * b[0] / whole)
        return count, a[1] + step * (b[0] / whole), squares

    reducer = te.comm_reducer(combine, lambda *dtypes: tuple(te.const(0, t) for t in dtypes))
    k, zero, one = (
        te.reduce_axis((0, x.shape[axis]), "k"),
        te.const(0, x.dtype),
        te.const(1, x.dtype),
    )

    def element(i: Any) -> Any:
        return reducer((one, x[(k, i) if axis == 0 else (i, k)], zero), axis=k)

    return [*te.compute((x.shape[1 - axis],), element, name="W")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(6, 1000), (5, 37), (3, 5), (4, 1), (3, 0), (2, 70001)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_variances_in_one_pass(axis: int, shape: tuple[int, int], dtype: str) -> None:
    """Exchanged terms give the same means for all counts that occur."""
    values = 3 + np.random.default_rng(0).standard_normal(shape).astype(dtype)
    array = values if axis == 1 else np.ascontiguousarray(values.T)
    x = te.placeholder(array.shape, dtype, name="X")
    made = welford(x, axis)
    found = [np.full(shape[:1], 7, dtype) for _ in made]
    build(made, [x, *made])(array, *found)
    wide = values.astype("float64")
    count, unit = shape[1], float(np.finfo(dtype).eps)
    np.testing.assert_array_equal(found[0], np.full(shape[:1], count))
    means, squares = wide.sum(1) / max(count, 1), wide.var(1) * count if count else wide.sum(1)
    np.testing.assert_allclose(found[1], means, atol=(count + 8) * unit * 8)
    np.testing.assert_allclose(found[2], squares, atol=(count + 8) * unit * 64 * max(count, 1))


def test_variances_of_rows_are_computed_in_lanes() -> None:
    made = welford(te.placeholder((6, 1000), name="X"), 1)
    assert "s.rfactor(W" in auto_schedule(made, HASWELL).trace()


def test_nearest_centres() -> None:
    p, q = te.placeholder((333, 5), name="P"), te.placeholder((21, 5), name="Q")
    d, k = te.reduce_axis((0, 5), "d"), te.reduce_axis((0, 21), "k")
    distance = te.compute(
        (333, 21),
        lambda i, j: te.sum((p[i, d] - q[j, d]) * (p[i, d] - q[j, d]), axis=d),
        name="D",
    )
    place, _ = te.compute(
        (333,), lambda i: PLACES["least"][0]((k.var, distance[i, k]), axis=k), name="A"
    )
    nearest = te.compute((333,), lambda i: place[i], name="I")
    rng = np.random.default_rng(0)
    points, centres = (rng.integers(0, 9, (n, 5)).astype("float32") for n in (333, 21))
    expected = ((points[:, None] - centres) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(built(nearest, [p, q], [points, centres]), expected)


# -- Loops --


def test_results_of_windows_stay_in_registers() -> None:
    x = te.placeholder((4, 40, 70), name="X")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "q")
    output = te.compute(
        (4, 38, 68), lambda c, i, j: te.max(x[c, i + r, j + q], axis=[r, q]), name="P"
    )
    made = text(output, [x])
    assert 'P.local = allocate(float32[1, 1, 64], "local")' in made
    assert "parallel(" in made


def test_reads_of_an_index_are_no_lines() -> None:
    table, bags = te.placeholder((50, 256), name="W"), te.placeholder((9, 6), "int32", name="I")
    k = te.reduce_axis((0, 6), "k")
    output = te.compute((9, 256), lambda b, d: te.sum(table[bags[b, k], d], axis=k), name="E")
    assert 'E.local = allocate(float32[1, 64], "local")' in text(output, [table, bags])
    weights = te.placeholder((9, 6), name="P")
    output = te.compute(
        (9, 256), lambda b, d: te.sum(table[bags[b, k], d] * weights[b, k], axis=k), name="E"
    )
    made = text(output, [table, bags, weights])
    assert 'E.local = allocate(float32[1, 64], "local")' in made


def test_places_are_found_in_lanes() -> None:
    x, k = te.placeholder((9, 5000), name="X"), te.reduce_axis((0, 5000), "k")
    reducer, _ = PLACES["first"]
    place, value = te.compute((9,), lambda i: reducer((k.var, x[i, k]), axis=k), name="A")
    s = auto_schedule([place, value], HASWELL)
    made = str(lower(s, [x, place, value], simple_mode=True))
    assert 'A.rf.v1 = allocate(float32[1, 32], "local")' in made
    assert 'A.rf.v1_1 = allocate(float32[1, 8], "local")' in made  # to which the vectors are folded
    assert "parallel(9)" in made


def over_channels(shape: tuple[int, ...], reducer: Any) -> tuple[Tensor, Tensor]:
    """Of each channel of some images, or of planes."""
    x = te.placeholder(shape, name="X")
    n, *inner = (te.reduce_axis((0, shape[d]), f"k{d}") for d in range(len(shape)) if d != 1)

    def element(c: Any) -> Any:
        return reducer(x(n, c, *inner), axis=[n, *inner])

    return x, te.compute((shape[1],), element, name="Y")


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "shape", [(64, 3, 8, 8), (5, 4, 7, 10), (300, 2, 70, 70), (9, 2, 1030), (64, 2, 5000)]
)
@pytest.mark.parametrize(
    ("reducer", "exact"), [(te.sum, np.sum), (te.max, np.max), (te.min, np.min)]
)
def test_channels_of_images(reducer: Any, exact: Any, shape: tuple[int, ...]) -> None:
    x, out = over_channels(shape, reducer)
    values = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
    over = (0, *range(2, len(shape)))
    np.testing.assert_array_equal(built(out, [x], [values]), exact(values, over))


def test_pieces_of_a_nest_are_reduced_in_lanes() -> None:
    """The lanes stay apart from one piece to the next, and are folded at the end; lines of a
    nest that is cut into parts stay lines."""
    x, out = over_channels((64, 64, 8, 8), te.sum)
    made = text(out, [x])
    assert made.count("allocate") == 1  # of the lanes
    assert made.index("for k0") < made.rindex("vectorized(8)") < made.index("vectorized(64)")
    for reducer in (te.sum, te.max):
        x, out = over_channels((300, 2, 70, 70), reducer)
        assert "for k3 in" not in text(out, [x])
    x, out = over_channels((64, 2, 5000), te.sum)
    assert "vectorized" not in text(out, [x])  # LLVM makes the vectors of long lines


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_extrema_are_found_in_lanes(dtype: str) -> None:
    x, k = te.placeholder((9, 500), dtype, name="X"), te.reduce_axis((0, 500), "k")
    output = te.compute((9,), lambda i: te.max(x[i, k], axis=k), name="M")
    assert f'M.rf = allocate({dtype}[1, 64], "local")' in text(output, [x])


def test_columns_of_far_rows_are_summed_in_memory() -> None:
    x, k = te.placeholder((4096, 1024), name="X"), te.reduce_axis((0, 4096), "k")
    output = te.compute((1024,), lambda j: te.sum(x[k, j], axis=k), name="S")
    made = text(output, [x])
    assert "S.rf = allocate(float32[8, 1024])" in made
    assert "parallel(8)" in made


def test_a_sum_of_everything_is_cut_into_parts() -> None:
    x = te.placeholder((4096, 1024), name="X")
    output = reduced(x, (0, 1), te.sum, lambda value: value)
    made = text(output, [x])
    assert "parallel(64)" in made  # of half a megabyte: a haswell's L2 has 256 KiB


@pytest.mark.parametrize("form", ["triangle", "reversed", "from 3", "where", "init", "all"])
def test_places_in_other_forms(form: str) -> None:
    n = 70
    x = te.placeholder((n, n), name="X")
    reducer, _ = PLACES["first"]
    value = np.random.default_rng(0).integers(0, 9, (n, n)).astype("float32")
    seen = np.full((n, n), True)

    def element(*i: Any) -> Any:
        low, end = (3, n) if form == "from 3" else (0, i[0] + 1 if form == "triangle" else n)
        k = te.reduce_axis((low, end), "k")
        if form == "all":
            return reducer((k.var, x[5, k]), axis=k)
        read = x[i[0], n - 1 - k] if form == "reversed" else x[i[0], k]
        more: dict[str, Any] = {"where": read < 6} if form == "where" else {}
        more |= {"init": (-2, 8.0)} if form == "init" else {}
        return reducer((k.var, read), axis=k, **more)

    if form == "triangle":
        seen = np.tri(n) > 0
    elif form == "from 3":
        seen[:, :3] = False
    elif form == "where":
        seen = value < 6
    shape = () if form == "all" else (n,)
    rows = value[5:6] if form == "all" else value[:, ::-1] if form == "reversed" else value
    expected = np.where(seen[: len(rows)], rows, -1).argmax(1)
    if form == "init":
        expected = np.where(value.max(1) > 8, expected, -2)
    place, greatest = te.compute(shape, element, name="A")
    places, values = np.empty(shape, "int32"), np.empty(shape, "float32")
    build([place, greatest], [x, place, greatest])(value, places, values)
    np.testing.assert_array_equal(places, expected.reshape(shape))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
@pytest.mark.parametrize("size", [5, 9, 17])
def test_lanes_beyond_the_end_combine_nothing(dtype: str, size: int) -> None:
    """The last vector of a row is only filled in part; its other lanes are partial results, too."""

    def first(x: Any, y: Any) -> Any:
        less = x[1] <= y[1]
        return te.if_then_else(less, x[0], y[0]), te.if_then_else(less, x[1], y[1])

    least = te.comm_reducer(first, lambda i, v: (te.const(-1, i), te.max_value(v)), name="least")
    A, k = te.placeholder((33, 64, size), dtype, name="A"), te.reduce_axis((0, size), name="k")
    place, value = te.compute((33, 64), lambda i, j: least((k, A[i, j, k]), axis=k), name="C")
    x = np.random.default_rng(0).integers(0, 4, (33, 64, size)).astype(dtype)
    where, smallest = np.empty((33, 64), np.int32), np.empty((33, 64), dtype)
    build([place, value], [A, place, value])(x, where, smallest)
    np.testing.assert_array_equal(where, x.argmin(-1))
    np.testing.assert_array_equal(smallest, x.min(-1))


@pytest.mark.parametrize("columns", [5, 64, 333])
def test_rows_of_windows_are_not_streamed(columns: int) -> None:
    """Neighbours read them again: a banded matrix times a large one."""
    n, half = 400, 3
    A, B = te.placeholder((n, 2 * half + 1), name="A"), te.placeholder((n, columns), name="B")
    k = te.reduce_axis((0, 2 * half + 1), name="k")

    def element(i: Any, j: Any) -> Any:
        row = i + k - half
        return te.sum(A[i, k] * B[row, j], axis=k, where=te.all(row >= 0, row < n))

    C = te.compute((n, columns), element, name="C")
    assert "cache_write" in auto_schedule(C, HASWELL).trace()
    a, b = (
        np.random.default_rng(0).random(t, "float32") for t in ((n, 2 * half + 1), (n, columns))
    )
    padded = np.pad(b.astype("float64"), ((half, half), (0, 0)))
    expected = sum(a[:, q : q + 1] * padded[q : q + n] for q in range(2 * half + 1))
    found = built(C, [A, B], [a, b])
    close(found, np.asarray(expected), 2 * half + 1, 2.0 * half + 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
@pytest.mark.parametrize("is_read_again", [False, True])
def test_lines_of_their_own_are_summed_along_memory(
    order: tuple[int, ...], is_read_again: bool
) -> None:
    """Each group of channels, times the weights of its channels. No result reads the elements of
    another, so neighbouring groups, which lie far apart, are no columns of a vector."""
    image = (8, 32, 14, 14)
    A, H, W = (te.placeholder(t, name=n) for n, t in (("A", image), ("H", image), ("W", (32,))))
    axes = [te.reduce_axis((0, extent), name) for name, extent in (("r", 4), ("i", 14), ("j", 14))]
    r, i, j = axes
    shape = (8, 8, 2) if is_read_again else (8, 8)

    def element(p: Any, q: Any, *more: Any) -> Any:
        weight = W[q * 4 + r] if not more else W[(q * 4 + r + more[0]) % 32]
        terms = (A[p, q * 4 + r, i, j] - 1.0) * (H[p, q * 4 + r, i, j] * weight)
        return te.sum(terms, axis=[axes[each] for each in order])

    C = te.compute(shape, element, name="C")
    if not is_read_again:
        assert "i.j.fused.outer" in text(C, [A, H, W])  # pieces of a line
    rng = np.random.default_rng(0)
    a, h, w = (rng.random(t, "float32") for t in (image, image, (32,)))
    wide = ((a.astype("float64") - 1) * h).sum((2, 3))
    every = [(wide * np.roll(w, -n)).reshape(8, 8, 4).sum(-1) for n in range(2)]
    expected = np.stack(every, -1) if is_read_again else every[0]
    close(built(C, [A, H, W], [a, h, w]), expected, 784, np.abs(expected))


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 5, 16, 17])
@pytest.mark.parametrize("form", ["rows", "columns", "lengths"])
def test_elements_that_data_choose(form: str, steps: int, dtype: str) -> None:
    """Sparse matrices with a few elements in each row: each is read by itself."""
    n = 50
    shape = (steps, n) if form == "columns" else (n, steps)
    V, P = te.placeholder(shape, dtype, name="V"), te.placeholder(shape, "int32", name="P")
    X, L = te.placeholder((33,), dtype, name="X"), te.placeholder((n,), "int32", name="L")
    k = te.reduce_axis((0, steps), name="k")

    def value(i: Any) -> Any:
        at = (k, i) if form == "columns" else (i, k)
        term = V[at] * X[P[at]]
        if form == "lengths":
            term = te.if_then_else(k < L[i], term, te.const(0, dtype))
        return te.sum(term, axis=k)

    Y = te.compute((n,), value, name="Y")
    if steps in (5, 16) and form == "rows":
        assert "s[Y].unroll(k)" in auto_schedule(Y, "llvm -mcpu=znver4").trace()
    rng = np.random.default_rng(0)
    v, x = (rng.standard_normal(each).astype(dtype) for each in (shape, (33,)))
    at = rng.integers(0, 33, shape).astype("int32")
    length = rng.integers(0, steps + 1, n).astype("int32")
    terms = v.astype("d") * x[at]
    terms = terms.T if form == "columns" else terms
    if form == "lengths":
        terms = np.where(np.arange(steps) < length[:, None], terms, 0)
    y = np.empty(n, dtype)
    for fp in ("fast", "strict"):
        build([Y], [V, P, X, L, Y], fp=fp)(v, at, x, length, y)
        np.testing.assert_allclose(y, terms.sum(1), rtol=1e-4, atol=1e-4)
