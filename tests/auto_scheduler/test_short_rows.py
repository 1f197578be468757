"""Reductions along short rows, several of which are computed together: values and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from minitvm import build, lower, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret
from tests.auto_scheduler.test_reductions import HASWELL, built

RNG = np.random.default_rng(11)
Array = np.ndarray[Any, Any]


def row_of(x: Tensor, combine: Callable[..., Any], of: Callable[..., Any]) -> Tensor:
    k = te.reduce_axis((0, x.shape[1]), "k")
    made: Tensor = te.compute((x.shape[0],), lambda i: combine(of(i, k), axis=k), name="Y")
    return made


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, dtype="float32")


def check(out: Tensor, tensors: list[Tensor], values: list[Array], expected: Array) -> None:
    """Values to some digits, and that the rows are computed together."""
    loops = str(lower(auto_schedule(out, HASWELL), [*tensors, out], vector_bytes=32))
    assert "vector_shuffle" in loops
    np.testing.assert_allclose(built(out, tensors, values), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "size"), [(8, 4), (9, 5), (16, 7), (1003, 12), (33, 20), (8, 47)])
def test_sums(rows: int, size: int) -> None:
    x, values = te.placeholder((rows, size), name="X"), numbers(rows, size)
    check(row_of(x, te.sum, lambda i, k: x[i, k]), [x], [values], values.astype("d").sum(1))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "int16", "float16"])
@pytest.mark.parametrize("combine", ["sum", "max"])
def test_dtypes(dtype: str, combine: str) -> None:
    x = te.placeholder((37, 11), dtype, name="X")
    values = RNG.integers(0, 9, (37, 11)).astype(dtype)
    out = row_of(x, getattr(te, combine), lambda i, k: x[i, k])
    found = built(out, [x], [values])
    np.testing.assert_array_equal(found, getattr(values, combine)(1, **_kept(combine, dtype)))


def _kept(combine: str, dtype: str) -> dict[str, str]:
    return {"dtype": dtype} if combine == "sum" else {}


def test_extrema_keep_nan_and_infinities() -> None:
    x, values = te.placeholder((19, 9), name="X"), numbers(19, 9)
    values[3, 8], values[4, 0], values[5, 2], values[6] = np.nan, np.inf, -np.inf, -np.inf
    check(row_of(x, te.max, lambda i, k: x[i, k]), [x], [values], values.max(1))
    check(row_of(x, te.min, lambda i, k: x[i, k]), [x], [values], values.min(1))


def test_sums_keep_nan_and_infinities_in_their_rows() -> None:
    x, values = te.placeholder((19, 9), name="X"), numbers(19, 9)
    values[3, 8], values[4, 0], values[5, 2] = np.nan, np.inf, -np.inf
    check(row_of(x, te.sum, lambda i, k: x[i, k]), [x], [values], values.sum(1))


def test_a_condition_on_terms() -> None:
    x, values = te.placeholder((50, 13), name="X"), numbers(50, 13)
    out = row_of(x, lambda v, axis: te.sum(v, axis=axis, where=v > 0), lambda i, k: x[i, k])
    check(out, [x], [values], np.where(values > 0, values, 0).sum(1))


def test_a_stage_behind_a_reduction() -> None:
    x, values = te.placeholder((43, 12), name="X"), numbers(43, 12)
    s = row_of(x, te.sum, lambda i, k: x[i, k] * x[i, k])
    out = te.compute((43,), lambda i: te.sqrt(s[i]) + 1.0, name="N")
    check(out, [x], [values], np.linalg.norm(values, axis=1) + 1)


def test_several_reductions_of_one_row() -> None:
    """A cosine reads three sums; a variance is a sum that reads another."""
    a, b = te.placeholder((29, 10), name="A"), te.placeholder((29, 10), name="B")
    x, y = numbers(29, 10), numbers(29, 10)
    ab, aa, bb = (
        row_of(a, te.sum, lambda i, k, p=p, q=q: p[i, k] * q[i, k])
        for p, q in ((a, b), (a, a), (b, b))
    )
    cosine = te.compute((29,), lambda i: ab[i] * te.rsqrt(aa[i] * bb[i]), name="C")
    expected = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    check(cosine, [a, b], [x, y], expected)
    mean = row_of(a, te.sum, lambda i, k: a[i, k] / 10.0)
    variance = row_of(a, te.sum, lambda i, k: (a[i, k] - mean[i]) * (a[i, k] - mean[i]))
    check(variance, [a], [x], x.var(1) * 10)


def test_other_rows() -> None:
    """Rows of a batch, two axes that are one line, rows named by an index, and a flat array."""
    x, values = te.placeholder((3, 17, 3, 4), name="X"), numbers(3, 17, 3, 4)
    k, q = te.reduce_axis((0, 3), "k"), te.reduce_axis((0, 4), "q")
    out = te.compute((3, 17), lambda n, i: te.max(x[n, i, k, q], axis=[k, q]), name="Y")
    check(out, [x], [values], values.max((2, 3)))
    table, number = te.placeholder((40, 9), name="T"), te.placeholder((21,), "int32", name="I")
    rows, places = numbers(40, 9), RNG.integers(0, 40, 21).astype("int32")
    nine = te.reduce_axis((0, 9), "k")
    gathered = te.compute((21,), lambda i: te.sum(table[number[i], nine], axis=nine), name="G")
    check(gathered, [table, number], [rows, places], rows[places].sum(1))
    flat = te.placeholder((45 * 6,), name="F")
    six = te.reduce_axis((0, 6), "k")
    pooled = te.compute((45,), lambda i: te.max(flat[i * 6 + six], axis=six), name="P")
    line = numbers(45 * 6)
    check(pooled, [flat], [line], line.reshape(45, 6).max(1))


def test_short_vectors_by_a_matrix() -> None:
    x, v = te.placeholder((61, 12), name="X"), te.placeholder((12,), name="v")
    values, factor = numbers(61, 12), numbers(12)
    check(row_of(x, te.sum, lambda i, k: x[i, k] * v[k]), [x, v], [values, factor], values @ factor)


def test_any_number_of_rows() -> None:
    m = te.var("m")
    x = te.placeholder((m, 10), name="X")
    out = row_of(x, te.sum, lambda i, k: x[i, k])
    for rows in (0, 1, 7, 8, 9, 100):
        values = numbers(rows, 10)
        np.testing.assert_allclose(built(out, [x], [values]), values.sum(1), rtol=1e-5, atol=1e-5)


def test_a_bounded_number_of_rows() -> None:
    """Blocks of rows keep their size beside the few rows that there may be."""
    n = te.var("n")
    x = te.placeholder((te.min(n, 9), 14), "bfloat16", name="X")
    largest = row_of(x, te.max, lambda i, k: x[i, k])
    rest = te.compute(x.shape, lambda i, j: x[i, j] - largest[i], name="D")
    total = row_of(rest, te.sum, lambda i, k: rest[i, k])
    out = te.compute(x.shape, lambda i, j: rest[i, j] / total[i], name="Z")
    f = build([out], [x, n, out], HASWELL)
    plain = build([out], [x, n, out], HASWELL, auto_schedule=False)
    for size in (0, 1, 5, 9):
        values = RNG.integers(-9, 9, (size, 14)).astype(ml_dtypes.bfloat16)
        found, wanted = np.empty_like(values), np.empty_like(values)
        f(values, size, found)
        plain(values, size, wanted)
        assert found.tobytes() == wanted.tobytes()


def test_sums_that_are_arguments() -> None:
    x = te.placeholder((2, 17, 10), name="X")
    k, m = te.reduce_axis((0, 10), "k"), te.reduce_axis((0, 10), "m")
    largest = te.compute((2, 17), lambda i, j: te.max(x[i, j, k], axis=k), name="M")
    power = te.compute(x.shape, lambda i, j, c: te.exp(x[i, j, c] - largest[i, j]), name="E")
    total = te.compute((2, 17), lambda i, j: te.sum(power[i, j, m], axis=m), name="S")
    out = te.compute(x.shape, lambda i, j, c: power[i, j, c] / total[i, j], name="Z")
    values, sums, found = numbers(2, 17, 10), numbers(2, 17), numbers(2, 17, 10)
    build([out], [x, total, out], "llvm -mcpu=haswell")(values, sums, found)
    powers = np.exp(values - values.max(2)[..., None])
    np.testing.assert_allclose(sums, powers.sum(2), rtol=1e-5)
    np.testing.assert_allclose(found, powers / sums[..., None], rtol=1e-5)
    copied = te.compute(x.shape, lambda i, j, c: total[i, j], name="T")
    doubled = te.compute(x.shape, lambda i, j, c: copied[i, j, c] * 2.0, name="D")
    copies = numbers(2, 17, 10)
    build([copied, doubled], [x, copied, doubled], "llvm -mcpu=haswell")(values, copies, found)
    np.testing.assert_allclose(copies, np.repeat(sums[..., None], 10, 2), rtol=1e-5)
    np.testing.assert_array_equal(found, 2 * copies)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_no_rows_and_no_terms(shape: tuple[int, int]) -> None:
    x = te.placeholder(shape, name="X")
    k = te.reduce_axis((0, shape[1]), "k")
    out = te.compute((4, shape[0]), lambda i, j: te.sum(x[j, k], axis=k), name="Y")
    found = built(out, [x], [numbers(*shape)])
    np.testing.assert_array_equal(found, np.zeros((4, shape[0])))


@pytest.mark.parametrize(
    ("rows", "size"), [(7, 12), (1000, 3), (1000, 200)], ids=["few", "shorter", "longer"]
)
def test_rows_that_are_computed_otherwise(rows: int, size: int) -> None:
    x = te.placeholder((rows, size), name="X")
    made = auto_schedule(row_of(x, te.sum, lambda i, k: x[i, k]), HASWELL)
    assert "transform_layout" not in made.trace()


def test_strict_sums_have_an_order() -> None:
    """The lanes are rows, whose elements are added one after the other."""
    x, values = te.placeholder((101, 12), name="X"), numbers(101, 12)
    out = row_of(x, te.sum, lambda i, k: x[i, k])
    kernel = build([out], [x, out], target=HASWELL, fp="strict")
    assert "vector_shuffle" in kernel.get_source("tir")
    expected = np.zeros(101, "float32")
    for column in values.T:
        expected += column
    np.testing.assert_array_equal(built(out, [x], [values], fp="strict"), expected)


@pytest.mark.parametrize(("size", "apart"), [(5, 2), (8, 3), (7, 4)])
def test_rows_of_pairs_and_the_like(size: int, apart: int) -> None:
    """Elements of a row that are a few apart."""
    x, values = te.placeholder((43, size, apart), name="X"), numbers(43, size, apart)
    out = row_of(x, te.sum, lambda i, k: x[i, k, 0] * x[i, k, apart - 1])
    check(out, [x], [values], (values[..., 0] * values[..., -1]).sum(1))


def first_largest() -> Any:
    return te.comm_reducer(
        lambda a, b: tuple(te.if_then_else(a[1] >= b[1], a[i], b[i]) for i in range(2)),
        lambda index, value: (te.const(-1, index), te.min_value(value)),
        name="argmax",
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
@pytest.mark.parametrize("shape", [(37, 5), (1003, 12), (3, 19, 40), (70, 100)])
def test_places_of_the_first_of_equal_elements(dtype: str, shape: tuple[int, ...]) -> None:
    x, k = te.placeholder(shape, dtype, name="X"), te.reduce_axis((0, shape[-1]), name="k")
    made = first_largest()
    place, value = te.compute(shape[:-1], lambda *i: made((k.var, x(*i, k)), axis=k), name="A")
    values = RNG.integers(0, 5, shape).astype(dtype)
    loops = str(lower(auto_schedule([place, value], HASWELL), [x, place, value]))
    assert "vector_shuffle" in loops or dtype in ("int8", "float16")
    places, largest = np.empty(shape[:-1], "int32"), np.empty(shape[:-1], dtype)
    build([place, value], [x, place, value])(values, places, largest)
    np.testing.assert_array_equal(places, values.argmax(-1))
    np.testing.assert_array_equal(largest, values.max(-1))


def test_reducers_whose_steps_have_an_order() -> None:
    """Of affine functions, one after the other; along one axis and two, in any number of rows."""
    compose = te.comm_reducer(
        lambda f, g: (g[0] * f[0], g[0] * f[1] + g[1]),
        lambda scale, shift: (te.const(1, scale), te.const(0, shift)),
        name="compose",
    )
    m, k, q = te.var("m"), te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 4), name="q")
    a, b = te.placeholder((m, 3, 4), name="A"), te.placeholder((3, 4), name="B")
    scale, shift = te.compute(
        (m,), lambda i: compose((a[i, k, q], a[i, k, q] - b[k, q]), axis=[k, q]), name="F"
    )
    f = build([scale, shift], [a, b, scale, shift])
    assert "vector_shuffle" in f.get_source("tir")
    for rows in (0, 3, 16, 53):
        values, others = numbers(rows, 3, 4), numbers(3, 4)
        expected = np.ones(rows), np.zeros(rows)
        for x, y in zip(values.reshape(rows, 12).T, others.ravel(), strict=True):
            expected = x * expected[0], x * expected[1] + (x - y)
        found = [np.empty(rows, "float32") for _ in range(2)]
        f(values, others, *found)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_several_elements_of_each_step() -> None:
    """Neighbours, guarded at the border, and a row read in reverse."""
    x, k = te.placeholder((203, 9), name="X"), te.reduce_axis((0, 9), name="k")
    made, values = first_largest(), numbers(203, 9)

    def element(i: Any) -> Any:
        step = te.if_then_else(k < 8, x[i, k + 1], 0.0) - x[i, k] * x[i, 8 - k]
        return made((k.var, step), axis=k)

    place, value = te.compute((203,), element, name="A")
    out = te.compute((203,), lambda i: value[i] * 2.0 + place[i].astype("float32"), name="Y")
    steps = np.pad(values, ((0, 0), (0, 1)))[:, 1:] - values * values[:, ::-1]
    expected = 2 * steps.max(1) + steps.argmax(1)
    np.testing.assert_allclose(built(out, [x], [values]), expected, rtol=1e-5, atol=1e-5)


def test_blocks_of_rows_with_fewer_terms_than_others() -> None:
    """Copies for a block of rows have one size, whatever terms a condition leaves."""
    x = te.placeholder((7, 16, 5), name="X")
    k = te.reduce_axis((0, 5), "k")
    total = te.compute(
        (16, 7),
        lambda i, j: te.sum(te.if_then_else(j <= k, x[j, i // 2, k // 2], 0.0), axis=k),
        name="S",
    )
    out = te.compute((16, 7), lambda i, j: total[i, j] * 3.0, name="Z")
    arm = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1"
    values, found = numbers(7, 16, 5), numbers(16, 7)
    interpret(lower(auto_schedule(out, arm), [x, out], name="f")["f"], values, found)
    build([out], [x, out], arm, fp="strict")
    terms = values[:, :8, np.arange(5) // 2].repeat(2, 1) * np.triu(np.ones((7, 5)))[:, None]
    np.testing.assert_allclose(found, 3 * terms.sum(2).T, rtol=1e-4, atol=1e-5)


def test_the_last_block_may_have_lanes_without_rows() -> None:
    """Nothing uses their sums, and so the loops have a meaning."""
    x, k = te.placeholder((37, 5), name="X"), te.reduce_axis((0, 5), "k")
    total = te.compute((37,), lambda i: te.sum(x[i, k], axis=k), name="S")
    out = te.compute((37, 5), lambda i, j: x[i, j] - total[i], name="Y")
    values, found = numbers(37, 5), numbers(37, 5)
    interpret(lower(auto_schedule(out, "llvm -mcpu=haswell"), [x, out], name="f")["f"],
              values, found)  # fmt: skip
    np.testing.assert_allclose(found, values - values.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_equal_operations_of_a_term_count_once() -> None:
    X, M = te.placeholder((40, 12), name="X"), te.placeholder((40,), name="M")
    k = te.reduce_axis((0, 12), name="k")

    def apart(i: Any) -> Any:
        return X[i, k] - M[i] * 0.5

    Y = te.compute((40,), lambda i: te.sum(apart(i) * apart(i) * (apart(i) * apart(i)), axis=k))
    assert "vector_shuffle" in str(lower(auto_schedule(Y, HASWELL), [X, M, Y]))
    rng = np.random.default_rng(0)
    x, m = (rng.integers(-4, 4, n).astype("float32") for n in ((40, 12), 40))
    np.testing.assert_array_equal(
        built(Y, [X, M], [x, m]), ((x - m[:, None] / 2) ** 4).sum(1).astype("float32")
    )


@pytest.mark.covering(2)
@pytest.mark.parametrize("fp", ["fast", "strict"])
@pytest.mark.parametrize(("combine", "exact"), [(te.sum, np.sum), (te.max, np.max)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (3, 5), (20, 4), (2, 17), (1, 6)])
def test_blocks_of_lines(
    height: int, width: int, dtype: str, combine: Any, exact: Any, fp: str
) -> None:
    """Each row of terms consists of short pieces of several lines."""
    X = te.placeholder((4 * height, 19 * width), dtype, name="X")
    a, b = te.reduce_axis((0, height), name="a"), te.reduce_axis((0, width), name="b")
    x = np.random.default_rng(0).integers(0, 9, (4 * height, 19 * width)).astype(dtype)
    Y = te.compute(
        (4, 19), lambda i, j: combine(X[i * height + a, j * width + b], axis=[a, b]), name="Y"
    )
    wanted = exact(x.reshape(4, height, 19, width), axis=(1, 3)).astype(dtype)
    np.testing.assert_array_equal(built(Y, [X], [x], fp=fp), wanted)
    if (height, width, dtype) == (8, 8, "float32"):
        assert "vector_shuffle" in str(lower(auto_schedule(Y, HASWELL), [X, Y]))


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("results", "steps"), [(6, 6), (5, 7), (3, 3), (7, 12), (2, 9), (6, 8)])
@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_few_results_of_few_steps(results: int, steps: int, dtype: str, fp: str) -> None:
    A = te.placeholder((11, results, steps), dtype, name="A")
    X = te.placeholder((11, steps), dtype, name="X")
    k = te.reduce_axis((0, steps), name="k")
    Y = te.compute((11, results), lambda b, i: te.sum(A[b, i, k] * X[b, k], axis=k), name="Y")
    if (results, steps, dtype, fp) == (6, 6, "float64", "fast"):
        assert "i0 * 6 + i1" in auto_schedule(Y, "llvm -mcpu=znver4").trace()
    a = np.random.default_rng(0).standard_normal((11, results, steps)).astype(dtype)
    x = np.random.default_rng(1).standard_normal((11, steps)).astype(dtype)
    y = np.empty((11, results), dtype)
    build([Y], [A, X, Y], fp=fp)(a, x, y)
    expected = np.einsum("bik,bk->bi", a.astype("d"), x.astype("d"))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "size"), [(17, 5), (33, 3), (16, 5), (5, 9)])
def test_logarithms_of_sums_of_exponentials(rows: int, size: int) -> None:
    """The lanes of a function are one masked vector, also in rows of registers that aren't."""
    X, k = te.placeholder((rows, size), name="X"), te.reduce_axis((0, size), "k")
    largest = row_of(X, te.max, lambda i, k: X[i, k])
    total = te.compute((rows,), lambda i: te.sum(te.exp(X[i, k] - largest[i]), axis=k), "T")
    Y = te.compute((rows,), lambda i: te.log(total[i]) + largest[i], "Y2")
    x, y = numbers(rows, size), np.empty(rows, "float32")
    build([Y], [X, Y])(x, y)
    np.testing.assert_allclose(y, np.log(np.exp(x.astype("d")).sum(1)), rtol=1e-5, atol=1e-6)


def test_few_steps_of_bytes_are_written_out() -> None:
    A, X = te.placeholder((11, 2, 4), "uint8", name="A"), te.placeholder((11, 4), "uint8", name="X")
    k = te.reduce_axis((0, 4), name="k")
    Y = te.compute((11, 2), lambda b, i: te.sum(A[b, i, k] * X[b, k], axis=k), name="Y")
    trace = auto_schedule(Y, "llvm -mcpu=znver4").trace()
    assert "s[Y].unroll(i)" in trace and "s[Y].unroll(k)" in trace
    a, x = (RNG.integers(0, 256, shape, "uint8") for shape in ((11, 2, 4), (11, 4)))
    expected = (a * x[:, None]).sum(2, dtype="uint8")
    np.testing.assert_array_equal(built(Y, [A, X], [a, x]), expected)


def test_few_rows_of_symbolic_batches() -> None:
    n, k = te.var("n"), te.reduce_axis((0, 6), name="k")
    A, X = te.placeholder((n, 3, 6), name="A"), te.placeholder((n, 6), name="X")
    Y = te.compute((n, 3), lambda b, i: te.sum(A[b, i, k] * X[b, k], axis=k), name="Y")
    assert "i0 * 3 + i1" in auto_schedule(Y, HASWELL).trace()
    f = build([Y], [A, X, Y])
    for size in (0, 1, 2, 5, 64):
        a, x, y = numbers(size, 3, 6), numbers(size, 6), numbers(size, 3)
        f(a, x, y)
        np.testing.assert_allclose(y, np.einsum("bik,bk->bi", a, x), rtol=1e-4, atol=1e-5)


_FORMS = ("row", "product", "weighted", "by_vector", "largest")


@pytest.mark.covering(2)
@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int16"])
@pytest.mark.parametrize(
    ("batch", "rows", "size"),
    [(20, 6, 6), (33, 2, 7), (7, 3, 5), (5, 3, 10), (9, 5, 15), (3, 7, 9), (1, 3, 6)],
)
@pytest.mark.parametrize("target", [HASWELL, "llvm -mcpu=znver4"])
def test_few_rows_behind_each_other(
    form: str, dtype: str, batch: int, rows: int, size: int, target: str
) -> None:
    """Rows that fill no vector of results by themselves, as those of small matrices."""
    x, k = te.placeholder((batch, rows, size), dtype, name="X"), te.reduce_axis((0, size), "k")
    shapes = {"product": x.shape, "weighted": (size,), "by_vector": (batch, size)}
    other = te.placeholder(shapes.get(form, (size,)), dtype, name="O")
    value: dict[str, Callable[..., Any]] = {
        "row": lambda b, i: x[b, i, k],
        "largest": lambda b, i: x[b, i, k],
        "product": lambda b, i: x[b, i, k] * other[b, i, k],
        "weighted": lambda b, i: x[b, i, k] * other[k],
        "by_vector": lambda b, i: x[b, i, k] * other[b, k],
    }
    combine = te.max if form == "largest" else te.sum
    out = te.compute((batch, rows), lambda b, i: combine(value[form](b, i), axis=k), name="Y")
    given = [RNG.integers(-9, 9, t.shape).astype(dtype) for t in (x, other)]
    terms = given[0]
    if form in shapes:
        terms = terms * (given[1][:, None] if form == "by_vector" else given[1])
    expected = terms.max(2) if form == "largest" else terms.sum(2, dtype=dtype)
    found = np.empty((batch, rows), dtype)
    build(auto_schedule(out, target), [x, other, out])(*given, found)
    np.testing.assert_array_equal(found, expected)


def test_few_rows_are_computed_together() -> None:
    x, k = te.placeholder((20, 3, 6), name="X"), te.reduce_axis((0, 6), "k")
    out = te.compute((20, 3), lambda b, i: te.sum(x[b, i, k], axis=k), name="Y")
    assert "vector_shuffle" in str(lower(auto_schedule(out, HASWELL), [x, out]))
    few = te.compute((2, 3), lambda b, i: te.sum(x[b, i, k], axis=k), name="Z")
    assert "transform_layout" not in auto_schedule(few, HASWELL).trace()  # of a vector of results


def test_few_columns_are_no_rows_in_line() -> None:
    """Rows that all places share, as of a product of few columns, aren't behind each other; and
    results of which neighbours read neighbours are in vectors already."""
    a, b = te.placeholder((300, 12), name="A"), te.placeholder((3, 12), name="B")
    k, q = te.reduce_axis((0, 12), "k"), te.reduce_axis((0, 5), "q")
    product = te.compute((300, 3), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="Y")
    image = te.placeholder((40, 84, 3), "int32", name="P")
    blur = te.compute((40, 80, 3), lambda y, x, c: te.sum(image[y, x + q, c], axis=q), name="Z")
    for out in (product, blur):
        assert "digits" not in {each.about for each in auto_schedule(out, HASWELL).choices}


@pytest.mark.parametrize("combine", ["sum", "max"])
@pytest.mark.parametrize("rows", [64, 37, 8])
def test_functions_of_several_rows_share_a_vector(rows: int, combine: str) -> None:
    """A vector has more lanes than a row has terms, and the rows lie one behind the other."""
    x, values = te.placeholder((rows, 4), name="X"), numbers(rows, 4)
    out = row_of(x, getattr(te, combine), lambda i, k: te.exp(x[i, k]) * 0.5)
    check(out, [x], [values], getattr(np.exp(values.astype("float64")) * 0.5, combine)(1))
    loops = str(lower(auto_schedule(out, HASWELL), [x, out])).splitlines()
    lanes = {"broadcast(0.5, 8)" in each for each in loops if "exp(" in each}
    assert lanes == {True}
