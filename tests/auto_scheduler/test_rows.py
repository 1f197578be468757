"""What auto_schedule writes for elementwise stages, reductions, and stages around contractions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pytest

from minitvm import build, lower, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import const_int

Array = np.ndarray[Any, Any]
Program = tuple[list[Tensor], Tensor, Callable[..., Array]]
UNIT = 2.0**-24  # rounding of float32, relative


def total(axis: int, x: Tensor, name: str = "S", combine: Any = te.sum) -> Tensor:
    """Over one axis of a matrix."""
    k = te.reduce_axis((0, x.shape[axis]), name="k")
    rest = x.shape[1 - axis]
    made: Tensor = te.compute(
        (rest,), lambda i: combine(x[i, k] if axis == 1 else x[k, i], axis=k), name=name
    )
    return made


def product(a: Tensor, b: Tensor) -> Tensor:
    k = te.reduce_axis((0, a.shape[1]), name="k")
    shape = (a.shape[0], b.shape[1])
    made: Tensor = te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return made


def matrix(m: Any, n: Any, name: str = "X", dtype: str = "float32") -> Tensor:
    return te.placeholder((m, n), dtype, name=name)


def softmax_of(x: Tensor) -> Tensor:
    largest = total(1, x, "M", te.max)
    power = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - largest[i]), name="P")
    sums = total(1, power)
    made: Tensor = te.compute(x.shape, lambda i, j: power[i, j] / sums[i], name="Y")
    return made


def exact_softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    found: Array = power / power.sum(-1, keepdims=True)
    return found


def softmax(m: int, n: int) -> Program:
    x = matrix(m, n)
    return [x], softmax_of(x), exact_softmax


def attention_softmax(m: int, n: int) -> Program:
    x = te.placeholder((2, 3, m, n), name="X")
    k = te.reduce_axis((0, n), name="k")
    largest = te.compute((2, 3, m), lambda b, h, i: te.max(x[b, h, i, k], axis=k), name="M")
    power = te.compute(
        x.shape, lambda b, h, i, j: te.exp(x[b, h, i, j] - largest[b, h, i]), name="P"
    )
    k = te.reduce_axis((0, n), name="k")
    sums = te.compute((2, 3, m), lambda b, h, i: te.sum(power[b, h, i, k], axis=k), name="S")
    y = te.compute(x.shape, lambda b, h, i, j: power[b, h, i, j] / sums[b, h, i], name="Y")
    return [x], y, exact_softmax


def layer_norm(m: int, n: int) -> Program:
    x, gain = matrix(m, n), te.placeholder((n,), name="g")
    sums = total(1, x)
    mean = te.compute((m,), lambda i: sums[i] / float(n), name="mean")
    k = te.reduce_axis((0, n), name="k")
    square = te.compute(
        (m,), lambda i: te.sum((x[i, k] - mean[i]) * (x[i, k] - mean[i]), axis=k), name="V"
    )
    y = te.compute(
        (m, n),
        lambda i, j: (x[i, j] - mean[i]) * te.rsqrt(square[i] / float(n) + 1e-5) * gain[j],
        name="Y",
    )

    def exact(x: Array, gain: Array) -> Array:
        centred = x - x.mean(1, keepdims=True)
        found: Array = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gain
        return found

    return [x, gain], y, exact


def row_sums(m: int, n: int) -> Program:
    x = matrix(m, n)
    return [x], total(1, x), lambda x: x.sum(1)


def column_sums(m: int, n: int) -> Program:
    x = matrix(m, n)
    return [x], total(0, x), lambda x: x.sum(0)


def column_maxima(m: int, n: int) -> Program:
    x = matrix(m, n)
    return [x], total(0, x, "M", te.max), lambda x: x.max(0)


def column_means(m: int, n: int) -> Program:
    x = matrix(m, n)
    sums = total(0, x)
    y = te.compute((n,), lambda j: sums[j] * (1.0 / m), name="Y")
    return [x], y, lambda x: x.mean(0)


def channels(m: int, n: int) -> Program:
    x, scale = te.placeholder((2, 3, m, n), name="X"), te.placeholder((3,), name="scale")
    y = te.compute(x.shape, lambda b, c, i, j: x[b, c, i, j] * scale[c], name="Y")
    return [x, scale], y, lambda x, scale: x * scale[:, None, None]


def transposed(m: int, n: int) -> Program:
    x = matrix(n, m)
    return [x], te.compute((m, n), lambda i, j: x[j, i] + 1.0, name="Y"), lambda x: x.T + 1


def activated(m: int, n: int) -> Program:
    a, b, bias = matrix(m, 40, "A"), matrix(40, n, "B"), te.placeholder((n,), name="bias")
    c = product(a, b)
    moved = te.compute((m, n), lambda i, j: c[i, j] + bias[j], name="D")
    y = te.compute((m, n), lambda i, j: te.tanh(moved[i, j]), name="Y")
    return [a, b, bias], y, lambda a, b, bias: np.tanh(a @ b + bias)


def residual(m: int, n: int) -> Program:
    a, b, x = matrix(m, 40, "A"), matrix(40, n, "B"), matrix(m, n)
    c = product(a, b)
    y = te.compute((m, n), lambda i, j: c[i, j] + x[i, j], name="Y")
    return [a, b, x], y, lambda a, b, x: a @ b + x


def product_softmax(m: int, n: int) -> Program:
    a, b = matrix(m, 40, "A"), matrix(40, n, "B")
    return [a, b], softmax_of(product(a, b)), lambda a, b: exact_softmax(a @ b)


def dequantised(m: int, n: int) -> Program:
    a, b, scale = matrix(m, 40, "A"), matrix(40, n, "B", "int8"), te.placeholder((n,), name="s")
    weights = te.compute((40, n), lambda k, j: b[k, j].astype("float32") * scale[j], name="weights")
    return [a, b, scale], product(a, weights), lambda a, b, scale: a @ (b * scale)


# How far a result may be off, in units of rounding of its largest element: a sum of n terms has
# n of them at most, a function a few of its own.
PROGRAMS: dict[Callable[[int, int], Program], Callable[[int, int], float]] = {
    softmax: lambda m, n: n + 8, attention_softmax: lambda m, n: n + 8,
    layer_norm: lambda m, n: 3 * n + 16, row_sums: lambda m, n: n * n,
    column_sums: lambda m, n: m * m,
    column_maxima: lambda m, n: 0, column_means: lambda m, n: m * m, channels: lambda m, n: 1,
    transposed: lambda m, n: 1, activated: lambda m, n: 1600, residual: lambda m, n: 1600,
    product_softmax: lambda m, n: 40 * 40 + n + 8, dequantised: lambda m, n: 1600,
}  # fmt: skip


def shape_of(tensor: Tensor) -> list[int]:
    extents = map(const_int, tensor.shape)
    return [extent for extent in extents if extent is not None]


def arguments(inputs: list[Tensor]) -> list[Array]:
    generator = np.random.default_rng(0)
    made = []
    for each in inputs:
        shape = shape_of(each)
        if str(each.dtype) == "int8":
            made.append(generator.integers(-100, 100, shape).astype("int8"))
        else:
            made.append(generator.uniform(-1, 1, shape).astype(str(each.dtype)))
    return made


SHAPES = [(33, 200), (1, 1), (5, 7), (16, 64), (70, 129)]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(
            make, shape, id=f"{make.__name__}-{shape}",
            marks=[] if place in (0, 1 + number % 4) else pytest.mark.wide,
        )
        for number, make in enumerate(PROGRAMS)
        for place, shape in enumerate(SHAPES)
    ],
)  # fmt: skip
def test_results(make: Callable[[int, int], Program], shape: tuple[int, int]) -> None:
    """Of each program the first shape, and one of the others."""
    inputs, output, exact = make(*shape)
    values = arguments(inputs)
    found = np.empty(shape_of(output), "float32")
    build(auto_schedule(output), [*inputs, output])(*values, found)
    expected = exact(*(each.astype("float64") for each in values))
    most = PROGRAMS[make](*shape) * UNIT * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=most)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_traces_replay(make: Callable[[int, int], Program]) -> None:
    inputs, output, _ = make(70, 129)
    s = auto_schedule(output, "llvm -mcpu=haswell")
    again = te.replay(s.trace(), output.op)
    args = [*inputs, output]
    assert str(lower(again, args)) == str(lower(s, args))


@pytest.mark.parametrize("make", [softmax, attention_softmax, layer_norm])
def test_what_meets_in_a_row_is_computed_together(make: Callable[[int, int], Program]) -> None:
    inputs, output, _ = make(70, 384)
    text = str(lower(auto_schedule(output), [*inputs, output], simple_mode=True))
    assert text.count("parallel(") == 1
    assert re.search(r"= allocate\(float32\[1(, 1)*\]\)", text)  # of one row
    assert re.search(r"allocate\([^)]*70", text) is None


def test_elements_of_several_dimensions_are_one_line() -> None:
    inputs, output, _ = channels(14, 14)
    text = str(lower(auto_schedule(output), [*inputs, output], simple_mode=True))
    assert "in parallel(6)" in text  # 2 * 3
    assert text.count("for ") == 4  # lines of 196 elements: vectors, and what remains


@pytest.mark.parametrize("channels", range(1, 9))
def test_windows_of_pixels_are_one_line(channels: int) -> None:
    shape = (10, 6, channels)
    x = te.placeholder((12, 8, channels), "uint8", name="X")

    def element(i: Any, j: Any, c: Any) -> Any:
        near = [x[i + r, j + q, c].astype("int32") for r in range(3) for q in range(3)]
        return sum(near[1:], near[0])

    y = te.compute(shape, element, name="Y")
    f = build(y, [x, y], target="llvm -mcpu=haswell", name="f")
    assert "gather" not in f.get_source("ll") and "scatter" not in f.get_source("ll")
    values = np.random.default_rng(0).integers(0, 256, (12, 8, channels)).astype("uint8")
    found = np.empty(shape, "int32")
    build(y, [x, y])(values, found)
    near = [values[r : r + 10, q : q + 6].astype("int32") for r in range(3) for q in range(3)]
    np.testing.assert_array_equal(found, sum(near))


def test_sums_of_columns_stay_in_registers() -> None:
    inputs, output, _ = column_sums(100, 128)
    s = auto_schedule(output, "llvm -mcpu=haswell")
    text = str(lower(s, [*inputs, output], simple_mode=True))
    assert 'S.local = allocate(float32[64], "local")' in text


def test_long_epilogues_are_loops_over_rows() -> None:
    _, output, _ = activated(64, 64)
    trace = auto_schedule(output).trace()
    assert "s[Y].unroll" not in trace
    _, output, _ = residual(64, 64)
    assert "s[Y].unroll" in auto_schedule(output).trace()


def test_dequantisation_is_inlined_where_panels_are_packed() -> None:
    inputs, output, _ = dequantised(64, 64)
    assert "s[weights].compute_inline()" in auto_schedule(output).trace()
    text = str(lower(auto_schedule(output), [*inputs, output], simple_mode=True))
    assert "float32[40, 64]" not in text.split("):", 1)[1]


def test_intermediate_results_that_are_arguments_are_written() -> None:
    x = matrix(20, 30)
    largest = total(1, x, "M", te.max)
    y = te.compute((20, 30), lambda i, j: x[i, j] - largest[i], name="Y")
    values = arguments([x])[0]
    m, found = np.empty(20, "float32"), np.empty((20, 30), "float32")
    build([y], [x, largest, y])(values, m, found)
    np.testing.assert_array_equal(m, values.max(1))
    np.testing.assert_array_equal(found, values - values.max(1, keepdims=True))


def test_rows_of_equal_symbolic_sizes_are_one_line() -> None:
    m, n = te.var("m"), te.var("n")

    def doubled(last: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        X = te.placeholder((m, 5, n, last()), name="X")
        return X, te.compute((m, 5, n, last()), lambda *at: X(*at) * 2.0, name="Y")

    for last in (lambda: n, lambda: (n + 15) // 16):
        X, Y = doubled(last)
        assert "fuse(i0, i1, i2, i3)" in auto_schedule(Y, "llvm -mcpu=haswell").trace()
    f = build([Y], [X, Y], name="f")
    for rows, size in ((0, 3), (3, 0), (2, 7), (5, 49)):
        shape = (rows, 5, size, (size + 15) // 16)
        x = np.random.default_rng(0).random(shape, dtype="float32")
        y = np.empty_like(x)
        f(x, y)
        np.testing.assert_array_equal(y, x * 2)


def test_symbolic_sizes() -> None:
    m, n = te.var("m"), te.var("n")
    x = matrix(m, n)
    y = softmax_of(x)
    f = build([y], [x, y])
    for shape in ((0, 3), (1, 1), (3, 17), (20, 100)):
        values = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
        found = np.empty_like(values)
        f(values, found)
        if values.size:
            np.testing.assert_allclose(found, exact_softmax(values), rtol=0, atol=108 * UNIT)


@pytest.mark.parametrize("width", [1023, 5, 16])
def test_rows_that_are_padded_are_read_line_by_line(width: int) -> None:
    x, w = te.placeholder((6, 4, width), name="X"), te.placeholder((4,), name="W")
    k, q = te.reduce_axis((0, 4)), te.reduce_axis((0, width))
    a = te.compute(x.shape, lambda i, j, p: te.exp(x[i, j, p]) * w[j], name="A")
    s = te.compute((6,), lambda i: te.sum(a[i, k, q], axis=[k, q]), name="S")
    y = te.compute(x.shape, lambda i, j, p: a[i, j, p] - s[i], name="Y")
    f = build([y], [x, w, y])
    values = np.random.default_rng(0).uniform(-1, 1, (6, 4, width)).astype("float32")
    weights, found = np.arange(1, 5, dtype="float32"), np.empty_like(values)
    f(values, weights, found)
    wide = np.exp(values.astype("float64")) * weights[:, None]
    expected = wide - wide.sum((1, 2), keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * width * 40 * UNIT)
    if width == 1023:  # rows of A lie 1024 elements apart
        text = str(lower(auto_schedule(y), [x, w, y], simple_mode=True))
        assert "float32[1, 4, 1024]" in text
        assert "% 1023" not in text and "// 1023" not in text


def test_cheap_stages_are_computed_where_they_are_read() -> None:
    """By sums along rows and along columns, which have no row in common."""
    x = matrix(40, 50)
    mean = te.compute((40,), lambda i: x[i, 3] / 7.0, name="mean")
    c = te.compute((40, 50), lambda i, j: x[i, j] - mean[i], name="c")
    k, r = te.reduce_axis((0, 50)), te.reduce_axis((0, 40))
    rows = te.compute((40,), lambda i: te.sum(c[i, k] * c[i, k], axis=k), name="rows")
    columns = te.compute((50,), lambda j: te.sum(c[r, j] * x[r, j], axis=r), name="columns")
    s = auto_schedule([rows, columns])
    assert "s[c].compute_inline()" in s.trace()
    values = arguments([x])[0]
    found = np.empty(40, "float32"), np.empty(50, "float32")
    build([rows, columns], [x, rows, columns])(values, *found)
    centred = values - values[:, 3:4] / np.float32(7)
    np.testing.assert_allclose(found[0], (centred**2).sum(1), rtol=100 * UNIT, atol=50 * UNIT)
    np.testing.assert_allclose(found[1], (centred * values).sum(0), rtol=0, atol=200 * UNIT)


def less_half_of_the_most(x: Tensor, name: str) -> Tensor:
    """Each row less half of its maximum."""
    k = te.reduce_axis((0, x.shape[1]))
    most = te.compute((x.shape[0],), lambda i: te.max(x[i, k], axis=k), name=f"most_{name}")
    rest: Tensor = te.compute(x.shape, lambda i, j: x[i, j] - most[i] * 0.5, name=name)
    return rest


def test_long_chains_of_cheap_stages_are_computed_in_parts() -> None:
    """Otherwise each of n sums computes the whole chain before it."""
    count = 24
    x = chain = matrix(12, 40)
    for n in range(count):
        chain = less_half_of_the_most(chain, f"chain{n}")
    trace = auto_schedule(chain).trace()
    inlined = [n for n in range(count) if f"s[chain{n}].compute_inline()" in trace]
    kept = sorted({*range(count)} - {*inlined})
    assert inlined and max(b - a for a, b in pairwise([-1, *kept])) <= 9
    values = arguments([x])[0]
    found = np.empty_like(values)
    build([chain], [x, chain])(values, found)
    for _ in range(count):
        values = values - values.max(1, keepdims=True) * np.float32(0.5)
    np.testing.assert_allclose(found, values, rtol=0, atol=4 * count * UNIT)


@pytest.mark.parametrize(
    "value",
    [
        lambda x, i, j: te.exp(x[i, j]),
        lambda x, i, j: x[j, i] * 2.0,
        lambda x, i, j: x[i, j] / (x[i, 0] + x[0, j]),
        lambda x, i, j: reduce(lambda y, n: y * x[i, j] + float(n), range(9), x[i, j]),
    ],
)
def test_dear_stages_are_computed_once(value: Callable[..., Any]) -> None:
    x = matrix(40, 40)
    c = te.compute((40, 40), lambda i, j: value(x, i, j), name="c")
    k, r = te.reduce_axis((0, 40)), te.reduce_axis((0, 40))
    rows = te.compute((40,), lambda i: te.sum(c[i, k] * c[i, k], axis=k), name="rows")
    columns = te.compute((40,), lambda j: te.sum(c[r, j] * x[r, j], axis=r), name="columns")
    assert "s[c].compute_inline()" not in auto_schedule([rows, columns]).trace()


Reader: TypeAlias = Callable[[Tensor], Any]


def reduced(axes: str, reduction: Callable[..., Any]) -> Reader:
    """A reduction of a matrix along its rows, its columns or both."""

    def made(x: Tensor) -> Any:
        m, n = x.shape
        k, r = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, m), name="r")
        name = f"{axes}_of_{x.name}"
        if axes == "rows":
            return te.compute((m,), lambda i: reduction(x[i, k], axis=k), name=name)
        if axes == "columns":
            return te.compute((n,), lambda j: reduction(x[r, j], axis=r), name=name)
        return te.compute((1,), lambda i: reduction(x[r, k], axis=[r, k]), name=name)

    return made


VALUES: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "polynomial": (lambda x, i, j: (x[i, j] * x[i, j] + x[i, j]) * x[i, j], lambda a: a**3 + a**2),
    "division": (lambda x, i, j: 1.0 / (1.0 + x[i, j] * x[i, j]), lambda a: 1 / (1 + a * a)),
    "mask": (
        lambda x, i, j: te.if_then_else(j <= i, x[i, j] * x[i, j] * 2.0, 0.5),
        lambda a: np.where(np.tri(*a.shape) > 0, a * a * 2, 0.5),
    ),
    "others": (
        lambda x, i, j: te.abs(x[i, j] - x[0, j]) * (x[i, j] + x[1, j]),
        lambda a: np.abs(a - a[:1]) * (a + a[1:2]),
    ),
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("axes", ["rows", "columns", "all"])
@pytest.mark.parametrize("shape", [(40, 50), (33, 7), (2, 129), (300, 2)])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_values_that_are_reduced_at_once_have_no_memory(
    axes: str, shape: tuple[int, int], value: str, reduction: str
) -> None:
    """They would be stored and read, which takes longer than to compute them."""
    compute, exact = VALUES[value]
    x = matrix(*shape)
    c = te.compute(shape, lambda i, j: compute(x, i, j), name="c")
    y = reduced(axes, getattr(te, reduction))(c)
    s = auto_schedule(y)
    assert "s[c].compute_inline()" in s.trace()
    values = arguments([x])[0]
    found = np.empty([int(n) for n in y.shape], "float32")
    build(s, [x, y])(values, found)
    along = {"rows": 1, "columns": 0, "all": (0, 1)}[axes]
    expected = getattr(exact(values.astype("float64")), reduction)(along)
    size = shape[0] * shape[1]
    np.testing.assert_allclose(
        found, np.reshape(expected, found.shape), rtol=0, atol=8 * size * UNIT
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint16"])
def test_values_that_are_reduced_at_once_are_rounded_as_if_stored(dtype: str) -> None:
    """Narrow values keep the rounding, or the overflow, of their dtype ahead of a wider sum."""
    m, n, wide = 200, 37, "float64" if dtype.startswith("float") else "int64"
    x, w, k = te.placeholder((m, n), dtype), te.placeholder((n,), dtype), te.reduce_axis((0, m))
    c = te.compute((m, n), lambda i, j: x[i, j] * w[j] + x[i, j], name="c")
    s = te.compute((n,), lambda j: te.sum(c[k, j].astype(wide), axis=k), name="s")
    assert "s[c].compute_inline()" in auto_schedule(s).trace()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape) for shape in ((m, n), (n,)))
    a, b = (
        (each if wide == "float64" else 100 * each).astype(wide).astype(dtype) for each in (a, b)
    )
    found = np.empty(n, wide)
    build(te.create_schedule(s.op), [x, w, s], fp="strict")(a, b, found)
    np.testing.assert_array_equal(found, (a * b + a).astype(wide).sum(axis=0))


@pytest.mark.parametrize("axes", ["rows", "columns", "all"])
def test_functions_are_reduced_at_once_but_for_results_of_lines(axes: str) -> None:
    """These take as long from a line of their own."""
    x = matrix(70, 90)
    c = te.compute((70, 90), lambda i, j: te.exp(x[i, j]), name="c")
    trace = auto_schedule(reduced(axes, te.sum)(c)).trace()
    assert ("s[c].compute_inline()" in trace) == (axes != "rows")


def test_several_reductions_compute_little_again() -> None:
    x = matrix(40, 50)
    c = te.compute((40, 50), lambda i, j: (x[i, j] + 1.0) * x[i, j] - 2.0, name="c")
    outputs = [reduced("columns", te.sum)(c), reduced("rows", te.max)(c)]
    s = auto_schedule(outputs)
    assert "s[c].compute_inline()" in s.trace()
    values = arguments([x])[0]
    found = np.empty(50, "float32"), np.empty(40, "float32")
    build(s, [x, *outputs])(values, *found)
    wide = values.astype("float64")
    exact = (wide + 1) * wide - 2
    np.testing.assert_allclose(found[0], exact.sum(0), rtol=0, atol=400 * UNIT)
    np.testing.assert_allclose(found[1], exact.max(1), rtol=0, atol=8 * UNIT)


def test_cheap_factors_of_products_are_computed_once() -> None:
    x, w = matrix(40, 50), matrix(50, 60, "W")
    c = te.compute((40, 50), lambda i, j: x[i, j] * 2.0, name="c")
    y = product(c, w)
    assert "s[c].compute_inline()" not in auto_schedule(y).trace()


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", [(33, 100), (5, 7), (1, 4), (4, 1), (3, 0), (0, 3)])
def test_outputs_are_computed_in_the_rows_of_their_readers(
    shape: tuple[int, int], symbolic: bool
) -> None:
    m, n = (te.var("m"), te.var("n")) if symbolic else shape
    x = matrix(m, n)
    k = te.reduce_axis((0, n))
    mean = total(1, x, "mean")
    squares = te.compute(
        (m,), lambda i: te.sum((x[i, k] - mean[i]) * (x[i, k] - mean[i]), axis=k), name="squares"
    )
    y = te.compute((m, n), lambda i, j: (x[i, j] - mean[i]) * squares[i], name="Y")
    outputs = [squares, y, mean]
    if not symbolic and shape == (33, 100):
        trace = auto_schedule(outputs).trace()
        assert "s[mean].compute_at(s[Y], i)" in trace
        assert "s[squares].compute_at(s[Y], i)" in trace
    f = build(outputs, [x, *outputs])
    values = np.random.default_rng(0).integers(-3, 4, shape).astype("float32")
    found = [np.full(shape[:1], 7, "float32"), np.empty(shape, "float32"), np.full(shape[:1], 7.0)]
    found[2] = found[2].astype("float32")
    f(values, *found)
    wide = values.astype("float64")
    sums = wide.sum(1)
    expected = ((wide - sums[:, None]) ** 2).sum(1)
    np.testing.assert_array_equal(found[2], sums)
    np.testing.assert_allclose(found[0], expected, rtol=200 * UNIT)
    scale = (wide - sums[:, None]) * expected[:, None]
    np.testing.assert_allclose(found[1], scale, rtol=200 * UNIT)


@pytest.mark.parametrize("shape", [(1, 100), (3, 100), (1, 1, 100), (1, 7), (2, 1, 9), (1, 0)])
def test_outputs_with_functions_are_computed_in_the_rows_of_their_readers(
    shape: tuple[int, ...],
) -> None:
    """As the states of a recurrent network. In a batch of one, a vector at a time is computed."""
    x = te.placeholder(shape, name="X")
    state = te.compute(shape, lambda *i: te.tanh(x(*i)), name="state")
    y = te.compute(shape, lambda *i: te.sigmoid(x(*i)) * te.tanh(state(*i)), name="Y")
    trace = auto_schedule([y, state], "llvm -mcpu=haswell").trace()
    assert "s[state].compute_at(s[Y]" in trace
    values = np.random.default_rng(0).standard_normal(shape, dtype="float32")
    found = [np.full(shape, 7, "float32") for _ in "ys"]
    build([y, state], [x, y, state])(values, *found)
    wanted = np.tanh(values.astype("float64"))
    np.testing.assert_allclose(found[1], wanted, rtol=8 * UNIT)
    gate = 1 / (1 + np.exp(-values.astype("float64")))
    np.testing.assert_allclose(found[0], gate * np.tanh(wanted), rtol=30 * UNIT)


def prefix_sums(x: Tensor) -> Tensor:
    k = te.reduce_axis((0, x.shape[1]), name="k")
    made: Tensor = te.compute(
        x.shape, lambda i, j: te.sum(x[i, k], axis=k, where=k <= j), name="prefix"
    )
    return made


def triangle(x: Tensor) -> Tensor:
    made: Tensor = te.compute(
        x.shape, lambda i, j: te.if_then_else(j < i, x[i, j], x[i, 99 - j]), name="triangle"
    )
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (total(1, matrix(1000, 12)), "rows together"),
        (total(1, matrix(10, 1200)), "each along its line"),
        (total(0, matrix(40, 100)), "in vectors of neighbours in memory"),
        (total(0, matrix(4096, 4096)), "rows are read whole"),
        (prefix_sums(matrix(40, 100)), "goes on from the one before"),
        (triangle(matrix(100, 100, dtype="int8")), "in pieces"),
    ],
)
def test_one_strategy_is_noted(made: Tensor, said: str) -> None:
    choices = auto_schedule(made, "llvm -mcpu=haswell -num-cores=4").choices
    (strategy,) = (str(each) for each in choices if each.about == "strategy")
    assert said in strategy
    assert {each.stage for each in choices} == {made.op.name}


def prefix_sums_of_exponentials(m: int, n: int) -> Tensor:
    x = matrix(m, n)
    return prefix_sums(te.compute((m, n), lambda i, j: te.exp(x[i, j]), name="E"))


@pytest.mark.parametrize(
    "make",
    [prefix_sums_of_exponentials, *(lambda m, n, make=make: make(m, n)[1] for make in PROGRAMS)],
)
def test_each_stage_has_one_strategy(make: Callable[[int, int], Tensor]) -> None:
    """Also where it is computed in the rows of another, which is no strategy but a place."""
    for shape in ((70, 129), (300, 12)):
        choices = auto_schedule(make(*shape), "llvm -mcpu=haswell -num-cores=4").choices
        noted = [each.stage for each in choices if each.about == "strategy"]
        assert len({*noted}) == len(noted), [*map(str, choices)]


@pytest.mark.parametrize(("count", "vectors"), [(10, 4), (40, 2)])
def test_long_bodies_have_fewer_vectors_side_by_side(count: int, vectors: int) -> None:
    """The derivative of sines of sines reads all of them again, and has as many cosines."""
    X = te.placeholder((1000,), name="X")

    def sines(i: te.Var) -> te.PrimExpr:
        value = X[i]
        for _ in range(count):
            value = te.sin(value)
        return value

    Y, k = te.compute((1000,), sines, name="Y"), te.reduce_axis((0, 1000), name="k")
    L = te.compute((), lambda: te.sum(Y[k], axis=k), name="L")
    (G,) = te.gradient(L, [X])
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"
    assert f"factor={vectors * 8})" in auto_schedule(G, target).trace()
    assert "factor=32)" in auto_schedule(Y, target).trace()
    x = np.linspace(0, 7, 1000, dtype="float32")
    g, values = np.empty_like(x), [x.astype("float64")]
    build([G], [X, G])(x, g)
    for _ in range(count):
        values.append(np.sin(values[-1]))
    np.testing.assert_allclose(g, np.prod(np.cos(values[:-1]), axis=0), rtol=1e-3, atol=1e-6)


def centred(m: Any, n: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Rows without their mean, and sums of the same matrix down its columns."""
    x, w = matrix(m, n), te.placeholder((n,), name="w")
    k = te.reduce_axis((0, n), name="k")
    mean = te.compute((m,), lambda i: te.sum(x[i, k] * w[k], axis=k), name="mean")
    y = te.compute((m, n), lambda i, j: x[i, j] - mean[i] / n, name="Y")
    square = te.compute((m, n), lambda i, j: x[i, j] * x[i, j], name="Q")
    return [x, w], [y, total(0, x, "S"), total(0, square, "T")]


@pytest.mark.parametrize(
    ("m", "n", "is_beside"),
    [
        (1024, 256, True),
        (640, 520, True),
        (100, 64, False),  # which stay in the caches
        (1024, 250, False),
        (1021, 256, False),
    ],
)
@pytest.mark.parametrize("target", ["llvm -mcpu=haswell -num-cores=1", "llvm -mcpu=haswell"])
def test_sums_of_columns_beside_rows(m: int, n: int, is_beside: bool, target: str) -> None:
    inputs, outputs = centred(m, n)
    s = auto_schedule(outputs, target)
    assert ("compute_with(s[Y]" in s.trace()) is is_beside
    assert te.replay(s.trace(), [each.op for each in outputs]).trace() == s.trace()
    rng = np.random.default_rng(0)
    x, w = rng.random((m, n), "float32"), rng.random(n, "float32")
    found = [np.full([int(d) for d in each.shape], np.nan, "float32") for each in outputs]
    build(outputs, [*inputs, *outputs], target)(x, w, *found)
    exact = x.astype("float64")
    expected = exact - (exact @ w)[:, None] / n, exact.sum(0), (exact * exact).sum(0)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)


def test_sums_of_columns_beside_rows_with_an_inlined_stage() -> None:
    """A stage between the sums of a row and the row itself is computed where it is read."""
    (x, w), (_, s, _) = centred(1024, 256)
    k = te.reduce_axis((0, 256), name="k")
    row = te.compute((1024,), lambda i: te.sum(x[i, k] * w[k], axis=k), name="row")
    v = te.placeholder((1024,), name="v")
    scaled = te.compute((1024,), lambda i: row[i] * te.rsqrt(v[i]), name="scaled")
    mean = te.compute((1024,), lambda i: scaled[i] / 256, name="mean")
    y = te.compute((1024, 256), lambda i, j: x[i, j] - mean[i], name="Y")
    assert "compute_with(s[Y]" in auto_schedule([y, s], "llvm -mcpu=haswell").trace()


def test_sums_of_columns_that_rows_wait_for_are_not_beside_them() -> None:
    x = matrix(1024, 256)
    s = total(0, x)
    r = total(1, x, "R")
    y = te.compute(x.shape, lambda i, j: x[i, j] * r[i] - s[j], name="Y")
    assert "compute_with" not in auto_schedule(y, "llvm -mcpu=haswell").trace()


def unit_vectors(*shape: Any, dtype: str = "float32") -> tuple[Tensor, Tensor]:
    """Short rows, divided by their lengths, which are functions of all elements of a row."""
    x, width = te.placeholder(shape, dtype, name="X"), shape[-1]
    square = te.compute(
        shape[:-1], lambda *i: sum(x(*i, c) * x(*i, c) for c in range(width)), name="square"
    )
    inverse = te.compute(
        shape[:-1], lambda *i: te.rsqrt(square[i]) + te.exp(-square[i]), name="inverse"
    )
    unit = te.compute(shape, lambda *i: x[i] * inverse[i[:-1]], name="U")
    return x, unit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(100, 3), (61, 4), (16, 2), (5, 19, 3), (2, 3, 33, 3), (3, 3)])
def test_elements_of_short_rows(shape: tuple[int, ...], dtype: str) -> None:
    """A stage with one element of each row is computed for as many rows as a vector has lanes, in
    the loop over these rows."""
    x, unit = unit_vectors(*shape, dtype=dtype)
    trace = auto_schedule(unit, "llvm -mcpu=haswell").trace()
    assert ("s[inverse].compute_at(s[U]" in trace) is (shape[-2] > 3)
    a = np.random.default_rng(0).random(shape).astype(dtype)
    found = np.full(shape, np.nan, dtype)
    build([unit], [x, unit])(a, found)
    square = (a.astype("float64") ** 2).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, a * (square**-0.5 + np.exp(-square)), rtol=1e-5)


def test_elements_of_a_symbolic_number_of_short_rows() -> None:
    x, unit = unit_vectors(te.var("m"), te.var("n"), 3)
    f = build([unit], [x, unit])
    for shape in [(1, 1, 3), (0, 5, 3), (2, 7, 3), (3, 16, 3), (2, 45, 3)]:
        a = np.random.default_rng(0).random(shape, "float32")
        found = np.full(shape, np.nan, "float32")
        f(a, found)
        square = (a.astype("float64") ** 2).sum(-1, keepdims=True)
        np.testing.assert_allclose(found, a * (square**-0.5 + np.exp(-square)), rtol=1e-5)


def test_parts_that_an_expression_shares_are_visited_once() -> None:
    """40 steps, each of which reads the one before twice."""
    n = te.var("n")
    x = te.placeholder((n, 3), name="X")

    def element(i: Any) -> Any:
        value = x[i, 0]
        for _ in range(40):
            value = te.min(value, x[i, 1] - value)
        return value

    least = te.compute((n,), element, name="least")
    scaled = te.compute((n, 3), lambda i, c: x[i, c] * least[i], name="S")
    s = auto_schedule(scaled, "llvm -mcpu=haswell")
    assert "padded_buffer" in str(lower(s, [x, scaled]))
    a = np.random.default_rng(0).random((45, 3), "float32")
    found, value = np.empty_like(a), a[:, 0]
    for _ in range(40):
        value = np.minimum(value, a[:, 1] - value)
    build([scaled], [x, scaled])(a, found)
    np.testing.assert_array_equal(found, a * value[:, None])
