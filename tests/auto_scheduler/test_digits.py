"""Lines in patterns of a few elements: what is written for them, and that values are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import build, lower, te
from minitvm.auto_scheduler import auto_schedule
from minitvm.te.tensor import Tensor
from tests.codegen.test_dtypes import TARGETS

Array = np.ndarray[Any, Any]
Form = tuple[list[Tensor], Callable[..., Array], list[tuple[int, ...]]]


def _one(shape: tuple[int, ...], given_shape: tuple[int, ...], dtype: str,
         element: Callable[..., Any], exact: Callable[..., Array]) -> Form:  # fmt: skip
    X = te.placeholder(given_shape, dtype, name="X")
    T = te.compute(shape, lambda *i: element(X, *i), name="T")
    return [X, T], exact, [given_shape]


def reversed_channels(n: int, c: int, dtype: str) -> Form:
    return _one((n, c), (n, c), dtype, lambda x, i, k: x[i, c - 1 - k], lambda x: x[:, ::-1])


def repeated(n: int, c: int, dtype: str) -> Form:
    return _one((3, n * c), (3, n), dtype, lambda x, r, i: x[r, i // c],
                lambda x: np.repeat(x, c, 1))  # fmt: skip


def enlarged(n: int, c: int, dtype: str) -> Form:
    return _one((2 * c, n * c), (2, n), dtype, lambda x, r, i: x[r // c, i // c],
                lambda x: x.repeat(c, 0).repeat(c, 1))  # fmt: skip


def broadcast(n: int, c: int, dtype: str) -> Form:
    return _one((n, c), (n,), dtype, lambda x, i, k: x[i],
                lambda x: np.repeat(x[:, None], c, 1))  # fmt: skip


def tiled(n: int, c: int, dtype: str) -> Form:
    return _one((n * c,), (c,), dtype, lambda x, i: x[i % c], lambda x: np.tile(x, n))


def padded(n: int, c: int, dtype: str) -> Form:
    def element(x: Any, i: Any, j: Any, k: Any) -> Any:
        inside = te.all(i >= 1, i < 4, j >= 1, j < n + 1)
        return te.if_then_else(inside, x[i - 1, j - 1, k], te.const(1, dtype))

    return _one((5, n + 2, c), (3, n, c), dtype, element,
                lambda x: np.pad(x, ((1, 1), (1, 1), (0, 0)), constant_values=1))  # fmt: skip


def to_depth(n: int, c: int, dtype: str) -> Form:
    return _one(
        (2, n, 4 * c), (4, 2 * n, c), dtype,
        lambda x, i, j, k: x[2 * i + k // (2 * c), 2 * j + k // c % 2, k % c],
        lambda x: x.reshape(2, 2, n, 2, c).transpose(0, 2, 1, 3, 4).reshape(2, n, 4 * c),
    )  # fmt: skip


def stacked(n: int, c: int, dtype: str) -> Form:
    tensors = [te.placeholder((n,), dtype, name=f"X{k}") for k in range(c)]

    def element(i: Any, k: Any) -> Any:
        made = tensors[-1][i]
        for number in range(c - 2, -1, -1):
            made = te.if_then_else(k == number, tensors[number][i], made)
        return made

    T = te.compute((n, c), element, name="T")
    return [*tensors, T], lambda *x: np.stack(x, -1), [(n,)] * c


def interleaved(n: int, c: int, dtype: str) -> Form:
    A, B = te.placeholder((n,), dtype, name="A"), te.placeholder((n,), dtype, name="B")
    T = te.compute((2 * n,), lambda i: te.if_then_else(i % 2 < 1, A[i // 2], B[i // 2]), name="T")
    return [A, B, T], lambda a, b: np.stack([a, b], -1).reshape(-1), [(n,), (n,)]


def joined(n: int, c: int, dtype: str) -> Form:
    A, B = te.placeholder((n, c), dtype, name="A"), te.placeholder((n, 2), dtype, name="B")
    T = te.compute((n, c + 2), lambda i, k: te.if_then_else(k < c, A[i, k], B[i, k - c]), name="T")
    return [A, B, T], lambda a, b: np.concatenate([a, b], 1), [(n, c), (n, 2)]


def outer_sums(n: int, c: int, dtype: str) -> Form:
    """As a product of Kronecker."""
    A, B, m = (
        te.placeholder((2, c), dtype, name="A"),
        te.placeholder((3, n), dtype, name="B"),
        n or 1,
    )
    T = te.compute((6, c * n), lambda i, j: A[i // 3, j // m] + B[i % 3, j % m], name="T")

    def exact(a: Array, b: Array) -> Array:
        return (a[:, None, :, None] + b[None, :, None, :]).reshape(6, c * n)

    return [A, B, T], exact, [(2, c), (3, n)]


def windows_in_rows(n: int, c: int, dtype: str) -> Form:
    m, corners = n or 1, [(i, j) for i in (0, 1) for j in (0, 1)]
    return _one(
        (4, c * n), (c + 1, n + 1), dtype,
        lambda x, k, p: x[p // m + k // 2, p % m + k % 2],
        lambda x: np.stack([x[i : i + c, j : j + n].ravel() for i, j in corners]),
    )  # fmt: skip


def pairs_of_rows(n: int, c: int, dtype: str) -> Form:
    """As a product of Khatri and Rao."""
    A, B, m = (
        te.placeholder((5, c), dtype, name="A"),
        te.placeholder((n, c), dtype, name="B"),
        n or 1,
    )
    T = te.compute((5 * n, c), lambda p, r: A[p // m, r] + B[p % m, r], name="T")
    return [A, B, T], lambda a, b: (a[:, None] + b).reshape(5 * n, c), [(5, c), (n, c)]


def planes_in_a_row(n: int, c: int, dtype: str) -> Form:
    A, B, m = (
        te.placeholder((3, c, n), dtype, name="A"),
        te.placeholder((n,), dtype, name="B"),
        n or 1,
    )

    def element(p: Any) -> Any:
        return A[p // (c * m), p // m % c, p % m] + B[p % m]

    T = te.compute((3 * c * n,), element, name="T")
    return [A, B, T], lambda a, b: (a + b).ravel(), [(3, c, n), (n,)]


def pooled_in_rows(n: int, c: int, dtype: str) -> Form:
    m, (i, j) = n or 1, (te.reduce_axis((0, 2), name=name) for name in "ij")

    def element(x: Any, p: Any) -> Any:
        return te.max(x[p // m * 2 + i, p % m * 2 + j], axis=[i, j])

    return _one((c * n,), (2 * c, 2 * n), dtype, element,
                lambda x: x.reshape(c, 2, n, 2).max((1, 3)).ravel())  # fmt: skip


PLACES = (outer_sums, windows_in_rows, pairs_of_rows, planes_in_a_row, pooled_in_rows)
FORMS = (reversed_channels, repeated, enlarged, broadcast, tiled, padded, to_depth, stacked,
         interleaved, joined, *PLACES)  # fmt: skip


def check(form: Callable[..., Form], n: int, c: int, dtype: str, target: str = "llvm") -> None:
    arguments, exact, shapes = form(n, c, dtype)
    numbers = np.random.default_rng(0)
    arrays = [numbers.integers(0, 99, shape).astype(dtype) for shape in shapes]
    expected = exact(*arrays)
    found = np.full(expected.shape, 100, dtype)
    build([arguments[-1]], arguments, target=target)(*arrays, found)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: Callable[..., Form]) -> None:
    for n, c, dtype in ((37, 3, "float32"), (100, 2, "uint8"), (16, 4, "float64"), (0, 3, "int16")):
        check(form, n, c, dtype)


def check_drawn(data: st.DataObject, most: int) -> None:
    n, c = data.draw(st.integers(0, most)), data.draw(st.integers(1, 9))
    dtype = data.draw(st.sampled_from(("float32", "uint8", "int16", "float64", "float16")))
    check(data.draw(st.sampled_from(FORMS)), n, c, dtype, data.draw(st.sampled_from(TARGETS)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_sizes(data: st.DataObject) -> None:
    check_drawn(data, 50)


@pytest.mark.wide
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_many_sizes(data: st.DataObject) -> None:
    check_drawn(data, 300)


@pytest.mark.parametrize("form", [reversed_channels, repeated, broadcast, stacked])
def test_no_element_is_gathered(form: Callable[..., Form]) -> None:
    arguments, _, _ = form(504, 3, "float32")
    kernel = build([arguments[-1]], arguments, target="llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    assert "masked.gather" not in kernel.get_source("ll")


@pytest.mark.parametrize("form", PLACES)
def test_places_of_several_digits_have_an_axis_for_each(form: Callable[..., Form]) -> None:
    arguments, _, _ = form(31, 5, "float32")
    T = arguments[-1]
    s = auto_schedule(T, "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    assert "s[T].compute_view()" in s.trace() and "// 31" in s.trace()
    given = [each for each in arguments if each is not T]
    assert "broadcast(31" not in str(lower(s, [*given, T]))  # no vector divides


def test_rows_of_whole_vectors_and_results_that_are_read_stay() -> None:
    """No vector crosses the end of a digit; and a view would keep a reader's rows apart."""
    (*_, T), _, _ = planes_in_a_row(32, 5, "float32")
    assert "compute_view" not in auto_schedule(T, "llvm -mcpu=haswell").trace()
    (*_, T), _, _ = planes_in_a_row(31, 5, "float32")
    Y = te.compute(T.shape, lambda i: T[i] + T[T.shape[0] - 1 - i], name="Y")
    assert "s[T].compute_view" not in auto_schedule(Y, "llvm -mcpu=haswell").trace()


def test_vectors_of_a_period() -> None:
    def trace(c: int) -> str:
        (*_, T), _, _ = reversed_channels(500, c, "float32")
        return auto_schedule(T, "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3").trace()

    assert "factor=24" in trace(3)  # three vectors of eight
    assert "factor=8" in trace(2)
    assert "factor=8" in trace(4)
    assert "factor=56" in trace(7)


def test_rows_that_data_choose_stay_apart() -> None:
    W, rows = te.placeholder((100, 4), name="W"), te.placeholder((500,), "int64", name="I")
    T = te.compute((500, 4), lambda i, j: W[rows[i], j], name="T")
    assert "fuse" not in auto_schedule(T, "llvm -mcpu=haswell").trace()


@pytest.mark.parametrize(
    ("shape", "factor"), [((500,), 32), ((9,), 8), ((20,), 8), ((60,), 32), ((40, 24), 32)]
)
def test_vectors_of_functions_lie_side_by_side(shape: tuple[int, ...], factor: int) -> None:
    """As many as leave few elements behind the end of a line."""
    X = te.placeholder(shape, name="X")
    Y = te.compute(shape, lambda *i: X(*i) * 0.5, name="Y")
    E = te.compute(shape, lambda *i: te.exp(Y(*i)), name="E")
    Z = te.compute(shape, lambda *i: E(*i) + 1.0, name="Z")
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3"
    assert f"factor={factor})" in auto_schedule(Z, target).trace()
    assert "factor=8)" in auto_schedule(Y, target).trace()
    x = np.random.default_rng(0).random(shape, dtype="float32")
    found = np.zeros(shape, "float32")
    build([Z], [X, Z])(x, found)
    np.testing.assert_allclose(found, np.exp(x * 0.5) + 1, rtol=1e-6)


def complex_products(n: int, c: int, dtype: str) -> Form:
    A, B = (te.placeholder((n, c), dtype, name=name) for name in "AB")
    last = c - 1

    def element(i: Any, k: Any) -> Any:
        real = A[i, 0] * B[i, 0] - A[i, last] * B[i, last]
        return te.if_then_else(k == 0, real, A[i, 0] * B[i, last] + A[i, last] * B[i, 0])

    def exact(a: Array, b: Array) -> Array:
        real = a[:, 0] * b[:, 0] - a[:, last] * b[:, last]
        other = a[:, 0] * b[:, last] + a[:, last] * b[:, 0]
        return np.stack([real] + [other] * last, 1)

    T = te.compute((n, c), element, name="T")
    return [A, B, T], exact, [(n, c), (n, c)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("c", [2, 3, 4, 5])
@pytest.mark.parametrize("n", [1, 3, 4, 37, 200])
def test_elements_around_a_number_are_read_in_whole_vectors(n: int, c: int) -> None:
    (A, B, T), exact, _ = complex_products(n, c, "float32")
    kernel = build([T], [A, B, T])
    # The last elements lie at the end of their memory.
    whole = np.random.default_rng(0).integers(-9, 9, (2, n + 3, c)).astype("float32")
    a, b = whole[:, 3:]
    found = np.zeros((n, c), "float32")
    kernel(a, b, found)
    np.testing.assert_array_equal(found, exact(a, b))


def test_pairs_are_read_once() -> None:
    (A, B, T), _, _ = complex_products(100, 2, "float32")
    kernel = build(
        [T], [A, B, T], target="llvm -mtriple=x86_64-linux-gnu -mcpu=znver3 -num-cores=1"
    )
    loads = [x for x in kernel.get_source("ll").splitlines() if "load <8 x float>" in x]
    assert len(loads) == 2


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_steps_of_several_digits(dtype: str) -> None:
    X, W = te.placeholder((14, 36), dtype, name="X"), te.placeholder((12 * 33,), dtype, name="W")
    p = te.reduce_axis((0, 12 * 33), name="p")
    Y = te.compute((2,), lambda c: te.sum(X[p // 33 + c, p % 33 + 1] * W[p], axis=p), name="Y")
    assert "s[Y].transform_reduction(" in auto_schedule(Y, "llvm -mcpu=haswell").trace()
    random = np.random.default_rng(0)
    x, w = random.integers(-9, 9, (14, 36)).astype(dtype), random.integers(0, 9, 396).astype(dtype)
    y = np.empty(2, dtype)
    build([Y], [X, W, Y])(x, w, y)
    expected = [(x[c : c + 12, 1:34] * w.reshape(12, 33)).sum() for c in range(2)]
    np.testing.assert_array_equal(y, expected)


# -- Rows that share elements --


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("n", [16, 24])
def test_blocks_by_a_matrix(size: int, n: int) -> None:
    """A transform of each block of an image, as one sum and as two."""
    X, D = te.placeholder((n, 2 * n), name="X"), te.placeholder((size, size), name="D")
    a, b = te.reduce_axis((0, size), name="a"), te.reduce_axis((0, size), name="b")

    def term(i: Any, j: Any) -> Any:
        block = X[i // size * size + a, j // size * size + b]
        return D[i % size, a] * block * D[j % size, b]

    one = te.compute((n, 2 * n), lambda i, j: te.sum(term(i, j), axis=[a, b]), name="T")
    rows = te.compute(
        (n, 2 * n), lambda i, j: te.sum(D[i % size, a] * X[i // size * size + a, j], axis=a)
    )
    two = te.compute(
        (n, 2 * n), lambda i, j: te.sum(rows[i, j // size * size + b] * D[j % size, b], axis=b)
    )
    x = np.random.default_rng(0).integers(-9, 9, (n, 2 * n)).astype("float32")
    d = np.random.default_rng(1).integers(-9, 9, (size, size)).astype("float32")
    blocks = x.reshape(n // size, size, 2 * n // size, size)
    wanted = np.einsum("ia,paqb,jb->piqj", d, blocks, d).reshape(n, 2 * n)
    for output in (one, two):
        assert "compute_view()" in auto_schedule(output, "llvm -mcpu=haswell").trace()
        found = np.empty((n, 2 * n), "float32")
        build([output], [X, D, output], "llvm -mcpu=haswell")(x, d, found)
        np.testing.assert_array_equal(found, wanted)


def test_rows_of_blocks_that_data_choose() -> None:
    """The product of a matrix of few blocks: rows of one block read the same elements."""
    size, count, n = 8, 3, 20
    C = te.placeholder((4, count), "int32", name="C")
    W = te.placeholder((4, count, size, size), name="W")
    X = te.placeholder((5 * size, n), name="X")
    b, k = te.reduce_axis((0, count), name="b"), te.reduce_axis((0, size), name="k")

    def term(i: Any, j: Any) -> Any:
        return W[i // size, b, i % size, k] * X[C[i // size, b] * size + k, j]

    Y = te.compute((4 * size, n), lambda i, j: te.sum(term(i, j), axis=[b, k]), name="Y")
    assert "s[Y].compute_view()" in auto_schedule(Y, "llvm -mcpu=haswell").trace()
    rng = np.random.default_rng(0)
    c, w = rng.integers(0, 5, (4, count), "int32"), rng.integers(-9, 9, (4, count, size, size))
    x, found = rng.integers(-9, 9, (5 * size, n)).astype("float32"), np.empty((32, n), "float32")
    f = build([Y], [C, W, X, Y], "llvm -mcpu=haswell")
    f(c, w.astype("float32"), x, found)
    wanted = np.einsum("pbik,pbkj->pij", w, x.reshape(5, size, n)[c]).reshape(32, n)
    np.testing.assert_array_equal(found, wanted)
    c[1, 1] = 5
    with pytest.raises(IndexError):
        f(c, w.astype("float32"), x, found)


def test_windows_of_phases_have_no_digits() -> None:
    """Neighbours of one remainder read overlapping windows: these are phases."""
    X, W = te.placeholder((40,), name="X"), te.placeholder((8, 3), name="W")
    k = te.reduce_axis((0, 3), name="k")
    Y = te.compute((64,), lambda i: te.sum(X[i // 2 + k] * W[i % 2 * 4, k], axis=k), name="Y")
    assert "[i0 % 2, i0 // 2]" in auto_schedule(Y, "llvm -mcpu=haswell").trace()


def test_a_single_term_has_no_phases() -> None:
    """Phases of one term are no dense sums: of a convolution whose stride is its kernel's size."""
    X, W = te.placeholder((8, 20), name="X"), te.placeholder((8, 6, 3), name="W")
    c, r = te.reduce_axis((0, 8), name="c"), te.reduce_axis((0, 3), name="r")

    def element(f: Any, y: Any) -> Any:
        is_read = te.all((y - r) % 3 == 0, y >= r)
        return te.sum(X[c, (y - r) // 3] * W[c, f, r], axis=[c, r], where=is_read)

    Y = te.compute((6, 60), element, name="Y")
    assert "phases" not in {each.about for each in auto_schedule(Y).choices}
    x, w = np.random.default_rng(0).random((8, 20), "float32"), np.ones((8, 6, 3), "float32")
    w += np.arange(3, dtype="float32")
    y = np.empty((6, 60), "float32")
    build([Y], [X, W, Y])(x, w, y)
    expected = np.einsum("cp,cfr->fpr", x, w).reshape(6, 60)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("size", "step", "n"), [(3, 2, 41), (3, 2, 40), (5, 3, 37), (2, 2, 24), (3, 1, 19)]
)
def test_phases_row_by_row(size: int, step: int, n: int, dtype: str) -> None:
    """No tile uses an element of such sums again. The phases of a row are interleaved at once, and
    the rows' own phases are the same for a whole row."""
    m = (n - size) // step + 1
    P = te.placeholder((4, m, m), "int32", name="P")
    D = te.placeholder((4, m, m), dtype, name="D")
    r, q = (te.reduce_axis((0, -(-size // step))) for _ in range(2))

    def term(c: Any, i: Any, j: Any) -> Any:
        a, b = r * step + i % step, q * step + j % step
        y, x = i // step - r, j // step - q
        at = te.all(a < size, b < size, y >= 0, y < m, x >= 0, x < m)
        value = te.if_then_else(P[c, y, x] == a * size + b, D[c, y, x], te.const(0, dtype))
        return te.sum(value, axis=[r, q], where=at)

    Y = te.compute((4, n, n), term, name="Y")
    s = auto_schedule(Y, "llvm -mcpu=haswell")
    if size > step > 1:
        assert f": [i0, i1, i2 % {step}, i2 // {step}]" in s.trace()
    rng = np.random.default_rng(0)
    p = rng.integers(0, size * size, (4, m, m)).astype("int32")
    d = rng.random((4, m, m)).astype(dtype)
    found, expected = np.full((4, n, n), np.nan, dtype), np.zeros((4, n, n))
    build([Y], [P, D, Y])(p, d, found)
    c, y, x = np.indices(p.shape)
    np.add.at(expected, (c, y * step + p // size, x * step + p % size), d)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_phases_of_multiples() -> None:
    """A signal at two thirds of its rate: filters repeat themselves after three results."""
    X, H, n = te.placeholder((3, 50), name="X"), te.placeholder((24,), name="H"), 61
    k = te.reduce_axis((0, 8), name="k")

    def term(i: Any, t: Any) -> Any:
        return X[i, t * 2 // 3 + k] * H[t * 2 % 3 + 3 * (7 - k)]

    Y = te.compute((3, n), lambda i, t: te.sum(term(i, t), axis=k), name="Y")
    assert "[i1 % 3, i0, i1 // 3]" in auto_schedule(Y, "llvm -mcpu=haswell").trace()
    rng = np.random.default_rng(0)
    x, h = (rng.integers(-9, 9, m).astype("float32") for m in ((3, 50), 24))
    found = np.empty((3, n), "float32")
    build([Y], [X, H, Y])(x, h, found)
    at, step = np.arange(n) * 2, np.arange(8)
    taps = h[(at % 3)[:, None] + 3 * (7 - step)]
    np.testing.assert_array_equal(found, (x[:, (at // 3)[:, None] + step] * taps).sum(-1))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64"])
@pytest.mark.parametrize(("planes", "n"), [(2, 40), (3, 33), (4, 16), (7, 9)])
def test_planes_in_turn(planes: int, n: int, dtype: str) -> None:
    """Neighbours lie in several planes, as where channels become pixels. Few planes are shuffled as
    they lie, where registers are wide."""
    X = te.placeholder((planes, 5, n), dtype, name="X")
    Y = te.compute((5, planes * n), lambda i, j: X[j % planes, i, j // planes], name="Y")
    Z = te.placeholder((4, 6, n), dtype, name="Z")
    S = te.compute((12, 2 * n), lambda i, j: Z[i % 2 * 2 + j % 2, i // 2, j // 2], name="S")
    x = np.random.default_rng(0).integers(0, 99, (planes, 5, n)).astype(dtype)
    z = np.random.default_rng(1).integers(0, 99, (4, 6, n)).astype(dtype)
    y, s = np.empty((5, planes * n), dtype), np.empty((12, 2 * n), dtype)
    for target in ("llvm -mcpu=haswell", "llvm -mcpu=x86-64"):
        has_digits = planes > 4 or target == "llvm -mcpu=x86-64"
        assert ("compute_view()" in auto_schedule(Y, target).trace()) == has_digits
        build([Y], [X, Y], target)(x, y)
        np.testing.assert_array_equal(y, x.transpose(1, 2, 0).reshape(5, planes * n))
        build([S], [Z, S], target)(z, s)
        shuffled = z.reshape(2, 2, 6, n).transpose(2, 0, 3, 1).reshape(12, 2 * n)
        np.testing.assert_array_equal(s, shuffled)
    text = str(lower(auto_schedule(S, "llvm -mcpu=x86-64"), [Z, S]))
    assert n < 16 or "vector_shuffle" in text


def test_planes_of_symbolic_sizes() -> None:
    """Channels become pixels in images of any size."""
    b, c, h, w = map(te.var, "bchw")
    X = te.placeholder((b, c * 4, h, w), name="X")

    def element(p: Any, o: Any, y: Any, z: Any) -> Any:
        return X[p, o * 4 + y % 2 * 2 + z % 2, y // 2, z // 2]

    Y = te.compute((b, c, h * 2, w * 2), element, name="Y")
    assert "vector_shuffle" in str(lower(auto_schedule(Y, "llvm -mcpu=haswell"), [X, Y]))
    shuffle = build([Y], [X, Y])
    for shape in [(2, 3, 5, 67), (1, 1, 1, 1), (1, 2, 4, 16), (2, 0, 3, 3), (1, 1, 2, 0)]:
        batch, channels, height, width = shape
        x = np.random.default_rng(0).random((batch, 4 * channels, height, width), "float32")
        y = np.empty((batch, channels, 2 * height, 2 * width), "float32")
        shuffle(x, y)
        planes = x.reshape(batch, channels, 2, 2, height, width).transpose(0, 1, 4, 2, 5, 3)
        np.testing.assert_array_equal(y, planes.reshape(y.shape))


@pytest.mark.parametrize("size", [1004, 24, 7])
def test_digits_of_a_symbolic_number_of_parts(size: int) -> None:
    m = te.var("m")
    A, B = te.placeholder((m,), name="A"), te.placeholder((size,), name="B")
    Y = te.compute((m * size,), lambda i: A[i // size] * B[i % size], name="Y")
    if size == 1004:
        assert "i0 // 1004, i0 % 1004" in auto_schedule(Y, "llvm -mcpu=haswell").trace()
    outer = build([Y], [A, B, Y])
    b = np.arange(size, dtype="float32")
    for rows in (0, 1, 3, 33):
        a, y = np.arange(rows, dtype="float32"), np.empty(rows * size, "float32")
        outer(a, b, y)
        np.testing.assert_array_equal(y, np.kron(a, b))


def test_halves_of_bytes_by_a_choice() -> None:
    """Both values of the choice read the same byte, so all weights are unpacked before the tiles,
    in the panels. The schedules of all versions can be lowered."""
    m, n, k = map(te.var, "mnk")
    X, W = te.placeholder((m, k), name="X"), te.placeholder((n, k // 2), "uint8", name="W")
    r = te.reduce_axis((0, k), name="r")

    def weight(j: Any, i: Any) -> Any:
        byte = W[j, i // 2].astype("int32")
        return (te.if_then_else(i % 2 == 0, byte & 15, byte >> 4) - 8).astype("float32")

    Y = te.compute((m, n), lambda i, j: te.sum(X[i, r] * weight(j, r), axis=r), name="Y")
    s = auto_schedule(Y, "llvm -mcpu=znver4")
    lower(s, [X, W, Y])
    assert len(s.versions) > 1 and any("is packed" in str(each) for each in s.choices)
    multiply, rng = build([Y], [X, W, Y]), np.random.default_rng(0)
    for rows, columns, steps in [(1, 5, 6), (4, 70, 130), (67, 65, 130), (3, 0, 4), (5, 3, 0)]:
        x = rng.integers(-9, 9, (rows, steps)).astype("float32")
        w = rng.integers(0, 256, (columns, steps // 2)).astype("uint8")
        y = np.empty((rows, columns), "float32")
        multiply(x, w, y)
        weights = np.stack([w & 15, w >> 4], -1).reshape(columns, steps).astype("float32") - 8
        np.testing.assert_array_equal(y, x @ weights.T)


def test_groups_of_steps_in_panels() -> None:
    """A factor read at both digits of the steps is packed."""
    m, n, k = te.var("m"), te.var("n"), 96
    X, W = te.placeholder((m, k), name="X"), te.placeholder((n, k), "int8", name="W")
    S, r = te.placeholder((n, k // 32), name="S"), te.reduce_axis((0, k), name="r")

    def term(i: Any, j: Any) -> Any:
        return te.sum(X[i, r] * (W[j, r].astype("float32") * S[j, r // 32]), axis=r)

    Y = te.compute((m, n), term, name="Y")
    s = auto_schedule(Y, "llvm -mcpu=znver4")
    assert "X is packed into panels" in "\n".join(map(str, s.choices))
    multiply, rng = build([Y], [X, W, S, Y]), np.random.default_rng(0)
    for rows, columns in [(1, 5), (4, 70), (67, 65), (70, 130), (0, 3)]:
        x, scale = (
            rng.integers(-4, 4, (i, j)).astype("float32") for i, j in ((rows, k), (columns, 3))
        )
        w, y = (
            rng.integers(-9, 9, (columns, k)).astype("int8"),
            np.empty((rows, columns), "float32"),
        )
        multiply(x, w, scale, y)
        np.testing.assert_array_equal(y, x @ (w * scale.repeat(32, 1)).T)


@pytest.mark.parametrize("sizes", [(8, 4, 300, 64), (6, 3, 37, 24), (32, 8, 130, 16)])
def test_heads_that_share_their_keys_are_rows(sizes: tuple[int, int, int, int]) -> None:
    """A query of each head reads the keys at the quotient of the head: the heads of a group are the
    rows of one product."""
    heads, shared, keys, size = sizes
    Q = te.placeholder((heads, 1, size), name="Q")
    K = te.placeholder((heads // shared, keys, size), name="K")
    c = te.reduce_axis((0, size), name="c")

    def score(h: Any, i: Any, j: Any) -> Any:
        return te.sum(Q[h, i, c] * K[h // shared, j, c], axis=c)

    S = te.compute((heads, 1, keys), score, name="S")
    trace = auto_schedule(S, "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids").trace()
    assert f"i0 // {shared}, i0 % {shared}" in trace
    random = np.random.default_rng(3)
    q, k = (random.integers(-9, 9, [int(n) for n in t.shape]).astype("f4") for t in (Q, K))
    s = np.full((heads, 1, keys), np.nan, "float32")
    build([S], [Q, K, S])(q, k, s)
    np.testing.assert_array_equal(s, q @ k.repeat(shared, 0).transpose(0, 2, 1))
