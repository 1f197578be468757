"""Results along a short axis that sum different terms: values, and whether each is a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minitvm import auto_schedule, build, te
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import Select
from tests.auto_scheduler.test_reductions import built

RNG = np.random.default_rng(5)
Choose = Callable[[Any, Any, Any], Any]


def complex_product(m: int, k: int, n: int, choose: Choose, order: str, dtype: str) -> Any:
    """The tensors of a product of complex matrices, its axes in some order."""
    a, b = te.placeholder((m, k, 2), dtype, name="A"), te.placeholder((k, n, 2), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def element(*axes: Any) -> Any:
        i, j, c = (axes[order.index(name)] for name in "ijc")
        real = a[i, r, 0] * b[r, j, 0] - a[i, r, 1] * b[r, j, 1]
        imaginary = a[i, r, 0] * b[r, j, 1] + a[i, r, 1] * b[r, j, 0]
        return te.sum(choose(c == 0, real, imaginary), axis=r)

    sizes = {"i": m, "j": n, "c": 2}
    return a, b, te.compute(tuple(sizes[name] for name in order), element, name="C")


@pytest.mark.covering(1)
@pytest.mark.parametrize("choose", [te.if_then_else, Select])
@pytest.mark.parametrize("order", ["ijc", "cij", "icj"])
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(33, 12, 47, "float32"), (7, 5, 3, "float64"), (40, 20, 1, "float32"), (9, 8, 20, "int32")],
)
def test_complex_products(choose: Choose, order: str, m: int, k: int, n: int, dtype: str) -> None:
    a, b, c = complex_product(m, k, n, choose, order, dtype)
    assert "s.unstack(" in auto_schedule(c).trace()
    x, y = (RNG.integers(-9, 9, t).astype(dtype) for t in ((m, k, 2), (k, n, 2)))
    product = (x[..., 0] + 1j * x[..., 1]) @ (y[..., 0] + 1j * y[..., 1])
    expected = np.stack([product.real, product.imag], order.index("c"))
    np.testing.assert_array_equal(built(c, [a, b], [x, y]), expected.astype(dtype))


def test_signs_and_reversed_parts() -> None:
    """The same written by signs: the other part of one factor lies in reverse."""
    a, b = te.placeholder((30, 9, 2), name="A"), te.placeholder((9, 21, 2), name="B")
    r = te.reduce_axis((0, 9), name="r")

    def element(i: Any, j: Any, c: Any) -> Any:
        sign = te.if_then_else(c == 0, -1.0, 1.0)
        return te.sum(a[i, r, 0] * b[r, j, c] + sign * a[i, r, 1] * b[r, j, 1 - c], axis=r)

    c = te.compute((30, 21, 2), element, name="C")
    assert "s.unstack(" in auto_schedule(c).trace()
    x, y = (RNG.integers(-9, 9, t).astype("float32") for t in ((30, 9, 2), (9, 21, 2)))
    product = (x[..., 0] + 1j * x[..., 1]) @ (y[..., 0] + 1j * y[..., 1])
    expected = np.stack([product.real, product.imag], 2)
    np.testing.assert_array_equal(built(c, [a, b], [x, y]), expected)


def alike(choose: str) -> tuple[Tensor, Tensor]:
    x, k = te.placeholder((20, 30, 3), name="X"), te.reduce_axis((0, 30), name="k")

    def element(i: Any, c: Any) -> Any:
        if choose == "padding":  # a fourth channel
            return te.sum(te.if_then_else(c < 3, x[i, k, te.min(c, 2)], 1.0), axis=k)
        if choose == "weights":
            return te.sum(x[i, k, c] * te.if_then_else(c == 0, 2.0, 1.0), axis=k)
        return te.sum(te.if_then_else(k < 9, x[i, k, c], 0.0), axis=k)

    return x, te.compute((20, 4 if choose == "padding" else 3), element, name="C")


@pytest.mark.parametrize("choose", ["padding", "weights", "steps"])
def test_terms_along_the_axis_stay_together(choose: str) -> None:
    _, c = alike(choose)
    assert "s.unstack(" not in auto_schedule(c).trace()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_terms_of_several_products_are_multiply_adds(dtype: str) -> None:
    A, B, C, D = given = [te.placeholder((40, 40), dtype, name=name) for name in "ABCD"]
    k = te.reduce_axis((0, 40), name="k")
    R = te.compute(
        (40, 40),
        lambda i, j: te.sum(A[i, k] * B[k, j] - (C[i, k] * D[k, j] - A[i, k] * D[k, j]), axis=k),
        name="R",
    )
    f = build([R], [*given, R], target="llvm -mcpu=haswell", name="f")
    kinds = [line.split()[0] for line in f.get_source("asm").splitlines() if line.split()]
    assert not any(each.startswith("vmulp") for each in kinds)
    assert {each[:8] for each in kinds if each.startswith("vfnmadd")} == {"vfnmadd2"}
    rng = np.random.default_rng(0)
    a, b, c, d = (rng.standard_normal((40, 40)).astype(dtype) for _ in "abcd")
    r = np.empty((40, 40), dtype)
    build([R], [*given, R])(a, b, c, d, r)
    a, b, c, d = (each.astype("float64") for each in (a, b, c, d))
    bound = 130 * np.finfo(dtype).eps * (abs(a) @ abs(b) + abs(c) @ abs(d) + abs(a) @ abs(d))
    assert (abs(r - (a @ b - (c @ d - a @ d))) <= bound).all()


def test_strict_terms_are_computed_as_written() -> None:
    A, B = (te.placeholder((16, 16), name=name) for name in "AB")
    k = te.reduce_axis((0, 16), name="k")
    R = te.compute(
        (16, 16), lambda i, j: te.sum(A[i, k] * B[k, j] - A[i, k] * A[k, j], axis=k), name="R"
    )
    a, b = np.random.default_rng(0).standard_normal((2, 16, 16)).astype("float32")
    r, expected = np.empty((16, 16), "float32"), np.zeros((16, 16), "float32")
    build([R], [A, B, R], fp="strict")(a, b, r)
    for n in range(16):
        expected = expected + (a[:, n, None] * b[n] - a[:, n, None] * a[n])
    np.testing.assert_array_equal(r, expected)


# -- Elementwise stages --


def one_of(c: Any, values: list[Any]) -> Any:
    *others, last = values
    for place, value in reversed([*enumerate(others)]):
        last = te.if_then_else(c == place, value, last)
    return last


def normals(height: Any, width: Any, dtype: str = "float32") -> tuple[Tensor, Tensor]:
    """The normals of a field of heights, of unit length; integers are the slopes and their sum."""
    X = te.placeholder((height + 2, width + 2), dtype, name="X")

    def element(i: Any, j: Any, c: Any) -> Any:
        at = [X[i + p, j + q] for p, q in ((1, 2), (1, 0), (2, 1), (0, 1))]
        if not X.dtype.is_float:
            across, along, *_ = (
                each.astype("int32") - other.astype("int32") for each, other in (at[:2], at[2:])
            )
            slopes = [te.abs(across) * 3 >> 2, te.abs(along) * 5 >> 3]
            return one_of(c, [*slopes, te.min(slopes[0] + slopes[1], 255)]).astype(dtype)
        across, along = at[0] - at[1], at[2] - at[3]
        scale = 1.0 / te.sqrt(across * across + along * along + 4.0)
        return one_of(c, [-across * scale, -along * scale, scale * 2.0])

    return X, te.compute((height, width, 3), element, name="N")


def normals_of(x: Any) -> Any:
    wide = x.astype("int64" if x.dtype.kind in "iu" else "float64")
    across, along = wide[1:-1, 2:] - wide[1:-1, :-2], wide[2:, 1:-1] - wide[:-2, 1:-1]
    if x.dtype.kind in "iu":
        slopes = [abs(across) * 3 >> 2, abs(along) * 5 >> 3]
        return np.stack([*slopes, np.minimum(slopes[0] + slopes[1], 255)], 2).astype(x.dtype)
    scale = 1 / np.sqrt(across**2 + along**2 + 4)
    return np.stack([-across * scale, -along * scale, 2 * scale], 2)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm"])
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_results_of_one_place_are_computed_by_places(
    is_symbolic: bool, target: str, dtype: str
) -> None:
    h, w = (te.var("h"), te.var("w")) if is_symbolic else (17, 45)
    X, N = normals(h, w, dtype)
    assert "s.unstack(N, c)" in auto_schedule(N, target).trace()
    f = build([N], [X, N])
    rng = np.random.default_rng(0)
    for shape in ((17, 45), (1, 1), (3, 100)) if is_symbolic else ((17, 45),):
        x = (100 * rng.random([n + 2 for n in shape])).astype(dtype)
        n = np.empty((*shape, 3), dtype)
        f(x, n)
        np.testing.assert_allclose(n, normals_of(x), rtol=0 if dtype == "uint8" else 1e-5)


def test_a_stage_reads_results_by_places() -> None:
    X, N = normals(20, 33)
    k = te.reduce_axis((0, 3), name="k")
    S = te.compute((20, 33), lambda i, j: te.sum(N[i, j, k] * N[i, j, k], axis=k), name="S")
    T = te.compute((20, 33, 3), lambda i, j, c: N[i, j, c] * S[i, j], name="T")
    x = np.random.default_rng(0).random((22, 35), "float32")
    t = np.empty((20, 33, 3), "float32")
    build([T], [X, T])(x, t)
    expected = normals_of(x)
    np.testing.assert_allclose(t, expected * (expected**2).sum(2, keepdims=True), rtol=1e-5)


def sorted_rows(n: Any, width: int, dtype: str = "float32") -> tuple[Tensor, Tensor]:
    """Rows that are sorted by exchanging neighbours, each place a formula of its own."""
    X = te.placeholder((n, width), dtype, name="X")

    def element(i: Any, c: Any) -> Any:
        row = [X[i, each] for each in range(width)]
        for first in range(width):
            for a in range(first % 2, width - 1, 2):
                row[a : a + 2] = te.min(row[a], row[a + 1]), te.max(row[a], row[a + 1])
        return one_of(c, row)

    return X, te.compute((n, width), element, name="S")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(("n", "width"), [(100, 4), (37, 5), (16, 8), (50, 9), (3, 6)])
def test_many_places(n: int, width: int, dtype: str) -> None:
    X, S = sorted_rows(n, width, dtype)
    trace = auto_schedule(S, "llvm -mcpu=haswell").trace()
    assert "s.unstack(" in trace
    if n > 8:  # lanes: all places are computed in the loop over rows
        assert trace.count("compute_at(s[S]") == width
    x = (100 * np.random.default_rng(3).random((n, width))).astype(dtype)
    np.testing.assert_array_equal(built(S, [X], [x]), np.sort(x, 1))


@pytest.mark.parametrize(("width", "is_divided"), [(4, True), (5, False)])
def test_narrow_elements_far_apart_stay_in_one_loop(width: int, is_divided: bool) -> None:
    """No processor gathers bytes."""
    X, S = sorted_rows(200, width, "uint8")
    assert ("s.unstack(" in auto_schedule(S, "llvm -mcpu=haswell").trace()) is is_divided
    x = np.random.default_rng(3).integers(0, 256, (200, width), dtype="uint8")
    np.testing.assert_array_equal(built(S, [X], [x]), np.sort(x, 1))


def test_places_of_a_symbolic_number_of_rows() -> None:
    X, S = sorted_rows(te.var("n"), 6)
    f = build([S], [X, S])
    for n in (0, 1, 8, 45):
        x, y = np.random.default_rng(n).random((n, 6), "float32"), np.empty((n, 6), "float32")
        f(x, y)
        np.testing.assert_array_equal(y, np.sort(x, 1))


def few_operations() -> Any:
    """The products of complex numbers: one loop stores them as they lie."""
    A, B = te.placeholder((100, 2), name="A"), te.placeholder((100, 2), name="B")

    def element(i: Any, c: Any) -> Any:
        real = A[i, 0] * B[i, 0] - A[i, 1] * B[i, 1]
        return one_of(c, [real, A[i, 0] * B[i, 1] + A[i, 1] * B[i, 0]])

    return te.compute((100, 2), element, name="C")


def neighbours_along_the_axis() -> Any:
    A = te.placeholder((100, 4), name="A")
    return te.compute(
        (100, 4), lambda i, c: te.if_then_else(c == 3, A[i, c], te.exp(A[i, c])), name="C"
    )


def places_along_two_axes() -> Any:
    A = te.placeholder((100, 2), name="A")

    def element(i: Any, a: Any, b: Any) -> Any:
        s, c = te.sin(A[i, 0]), te.cos(A[i, 1])
        return one_of(a, [one_of(b, [c, s]), one_of(b, [-s, c])])

    return te.compute((100, 2, 2), element, name="C")


def planes() -> Any:
    A = te.placeholder((100, 3), name="A")

    def element(c: Any, i: Any) -> Any:
        return one_of(c, [te.exp(A[i, 0]), te.sin(A[i, 1]), te.cos(A[i, 2])])

    return te.compute((3, 100), element, name="C")


@pytest.mark.parametrize(
    "program", [few_operations, neighbours_along_the_axis, places_along_two_axes, planes]
)
def test_one_loop_over_all_places_stays(program: Any) -> None:
    assert "s.unstack(" not in auto_schedule(program(), "llvm -mcpu=haswell").trace()
