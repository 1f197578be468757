"""Products that are nearly ones: guards in factors, factors without the axes that are summed, sums
of several lengths. Each is built without a schedule, and means what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from tests.auto_scheduler.meaning import Meaning
from tests.auto_scheduler.test_contractions import assert_means, inputs, numpy_dtype, run
from tests.schedules.programs import Program

Tensors = list[Tensor]
ZNVER4 = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2"
n = te.size_var("n")


def placeholder(shape: Any, name: str, dtype: str = "float32") -> Tensor:
    return te.placeholder(shape, dtype, name=name)


def assert_computes(tensors: Tensors, size: int = 20, **options: Any) -> None:
    outputs = tensors[-1:]
    program, sizes = Program([outputs[0].op], tensors, {n: size}), {n: size}
    f = tvm.build(outputs, tensors, name="f", **options)
    given = inputs(program, sizes, 0, whole=True)
    for got in run(f, program, given, sizes):
        assert_means(outputs[0], got, Meaning(given, sizes).of(outputs[0]))


# -- Guards ---------------------------------------------------------------------------------------


def padded(
    channels: int,
    guard: str = "lazy",
    dtype: str = "float32",
    step: int = 1,
    apart: int = 1,
    length: Any = 20,
    before: int = 2,
) -> Tensors:
    """A convolution whose padding is a condition of its sum."""
    X, W = placeholder((2, 3, length), "X", dtype), placeholder((channels, 3, 5), "W", dtype)
    c, k = te.reduce_axis((0, 3), name="c"), te.reduce_axis((0, 5), name="k")
    mask = placeholder((5,), "M", "int32")
    zero, axis = te.const(0, dtype), [c, k]

    def element(b: Any, o: Any, i: Any) -> Any:
        place = i * step + k * apart - before
        inside = te.all(place >= 0, place < length)
        value = X[b, c, place]
        if guard == "where":
            return te.sum(value * W[o, c, k], axis=axis, where=inside)
        if guard == "any":
            outside = te.any(place < 0, place >= length)
            return te.sum(te.if_then_else(outside, zero, value) * W[o, c, k], axis=axis)
        if guard == "nested":
            value = te.if_then_else(place < length, value, zero)
            value = te.if_then_else(place >= 0, value, zero)
            return te.sum(value * W[o, c, k], axis=axis)
        if guard == "both":
            weight = te.if_then_else(k < 4, W[o, c, k], zero)
            return te.sum(te.if_then_else(inside, value, zero) * weight, axis=axis)
        if guard == "data":
            inside = te.all(inside, mask[k] > 0)
        if guard == "channel":
            inside = te.all(inside, k <= o)
        if guard == "one":
            return te.sum(
                te.if_then_else(inside, value, te.const(1, dtype)) * W[o, c, k], axis=axis
            )
        if guard == "choice":  # of both sides, which are there
            value = te.if_then_else(inside, value, zero)
            return te.sum(te.max(te.min(value, value), zero) * W[o, c, k], axis=axis)
        if guard == "around":
            return te.sum(te.if_then_else(inside, value * W[o, c, k], zero), axis=axis)
        return te.sum(te.if_then_else(inside, value, zero) * W[o, c, k], axis=axis)

    Y = te.compute((2, channels, length // step), element, name="Y")
    return [X, W, mask, Y]


GUARDS = ["lazy", "where", "any", "nested", "both", "data", "channel", "one", "choice", "around"]


@pytest.mark.parametrize("channels", [1, 3, 5, 7, 8, 33])
def test_padding_in_the_sum(channels: int) -> None:
    assert_computes(padded(channels))


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("channels", [3, pytest.param(16, marks=pytest.mark.wide)])
def test_guards_of_a_factor(guard: str, channels: int) -> None:
    assert_computes(padded(channels, guard))


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64"])
def test_padding_of_other_types(dtype: str) -> None:
    numpy_dtype(te.const(0, dtype).dtype)
    assert_computes(padded(7, dtype=dtype))


@pytest.mark.parametrize(("step", "apart", "before"), [(2, 1, 2), (1, 3, 6), (2, 2, 0), (1, 1, 4)])
def test_padding_of_other_windows(step: int, apart: int, before: int) -> None:
    assert_computes(padded(5, step=step, apart=apart, before=before))


def test_padding_alone() -> None:
    """No element is read at all."""
    assert_computes(padded(5, before=40))
    assert_computes(padded(16, before=40))


@pytest.mark.parametrize("size", [0, 1, 20])
def test_padding_of_symbolic_sizes(size: int) -> None:
    assert_computes(padded(5, length=n), size)


def around(kind: str, side: str) -> Tensors:
    """A product with a matrix that is given by its diagonals, or is zero beyond some."""
    depth, columns = 20, 7
    k = te.reduce_axis((0, depth), name="k")
    B = placeholder((depth, columns), "B")
    cases: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
        "toeplitz": ((2 * depth - 1,), lambda A, i: A[i - k + depth - 1]),
        "hankel": ((2 * depth - 1,), lambda A, i: A[i + k]),
        "circulant": ((depth,), lambda A, i: A[(i - k) % depth]),
        "band": (
            (depth, depth),
            lambda A, i: te.if_then_else(te.all(i - k <= 2, k - i <= 1), A[i, k], 0.0),
        ),
        "diagonals": (
            (depth, 4),
            lambda A, i: te.if_then_else(te.all(i - k <= 2, k - i <= 1), A[i, k - i + 2], 0.0),
        ),
        "lower": ((depth, depth), lambda A, i: te.if_then_else(k <= i, A[i, k], 0.0)),
        "packed lower": (
            (depth * (depth + 1) // 2,),
            lambda A, i: te.if_then_else(k <= i, A[i * (i + 1) // 2 + k], 0.0),
        ),
        "upper transposed": ((depth, depth), lambda A, i: te.if_then_else(k >= i, A[k, i], 0.0)),
        "reversed": ((depth, depth), lambda A, i: te.if_then_else(k > 0, A[depth - k, i], 0.0)),
        "halves": ((depth, depth), lambda A, i: A[i // 2, depth - 1 - k] + A[i % 2, k]),
    }
    shape, element = cases[kind]
    A = placeholder(shape, "A")
    if side == "left":
        return [A, B, te.compute((depth, columns), lambda i, j: te.sum(element(A, i) * B[k, j], k))]
    return [A, B, te.compute((columns, depth), lambda i, j: te.sum(B[k, i] * element(A, j), k))]


KINDS = [
    "toeplitz", "hankel", "circulant", "band", "diagonals", "lower", "packed lower",
    "upper transposed", "reversed", "halves",
]  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_structured_matrices(kind: str, side: str) -> None:
    assert_computes(around(kind, side))


def test_a_guard_that_does_not_suffice_is_an_error_of_the_program() -> None:
    X, W = placeholder((20,), "X"), placeholder((3, 5), "W")
    k = te.reduce_axis((0, 5), name="k")
    Y = te.compute(
        (3, 20),
        lambda o, i: te.sum(te.if_then_else(i + k < 22, X[i + k], 0.0) * W[o, k], axis=k),
        name="Y",
    )
    with pytest.raises(tvm.CompileError, match=r"f: X\[i \+ k\]: index 0 must stay in \[0, 20\)"):
        tvm.build([Y], [X, W, Y], name="f")


# -- Factors without the axes that are summed -----------------------------------------------------

Element = Callable[[Any, Any, Any, Any], Any]
A, B = placeholder((3, 5), "A"), placeholder((5, 40), "B")
X, R, C = placeholder((100,), "X"), placeholder((3,), "R"), placeholder((40,), "C")
D, S = placeholder((5,), "D"), placeholder((), "S")
WITHOUT: dict[str, Element] = {
    "X[2j+1] A": lambda i, j, k, r: X[j * 2 + 1] * A[i, k],
    "A X[2j+1]": lambda i, j, k, r: A[i, k] * X[j * 2 + 1],
    "X[j] A": lambda i, j, k, r: X[j] * A[i, k],
    "B reversed R": lambda i, j, k, r: B[k, 39 - j] * R[i],
    "B R": lambda i, j, k, r: B[k, j] * R[2 - i],
    "R C": lambda i, j, k, r: R[i] * C[39 - j],
    "scalar": lambda i, j, k, r: S() * B[k, j],
    "number": lambda i, j, k, r: te.const(2.0) * B[k, 39 - j],
    "one element": lambda i, j, k, r: X[3] * B[k, j],
    "an axis": lambda i, j, k, r: i.astype("float32") * B[k, j],
    "other axes": lambda i, j, k, r: X[j + r] * A[i, k],
    "windows of one": lambda i, j, k, r: X[j * 2 + k] * R[i],
    "windows of rows": lambda i, j, k, r: X[j * 2 + i] * D[k],
    "three": lambda i, j, k, r: R[i] * B[k, j] * C[j],
    "three of windows": lambda i, j, k, r: R[i] * (X[j * 2 + 1] * D[k]),
    "the same": lambda i, j, k, r: X[i + k] * X[j + k],
    "the same twice": lambda i, j, k, r: X[j * 2 + 1] * X[i],
    "quotients": lambda i, j, k, r: X[j // 2 + j % 2] * A[i, k],
    "quotients of both": lambda i, j, k, r: X[i // 2 + k] * B[k // 2, j // 2],
}


@pytest.mark.parametrize(
    "target", [None, pytest.param("llvm -mcpu=x86-64", marks=pytest.mark.wide)]
)
@pytest.mark.parametrize("name", WITHOUT)
def test_factors_without_what_is_summed(name: str, target: str | None) -> None:
    k, r = te.reduce_axis((0, 5), name="k"), te.reduce_axis((0, 3), name="r")
    summed = [k, r] if "other" in name else [k]
    Y = te.compute((3, 40), lambda i, j: te.sum(WITHOUT[name](i, j, k, r), axis=summed), name="Y")
    assert_computes([*Y.op.input_tensors, Y], target=target)


@pytest.mark.parametrize("sizes", [(5, 7, 1), (33, 1, 2), (1, 1, 1), (4, 4, 0), (0, 4, 4)], ids=str)
def test_such_factors_of_odd_sizes(sizes: tuple[int, int, int], dropped: list[str]) -> None:
    """The schedules for three machines; each is lowered, and none is dropped."""
    rows, columns, depth = sizes
    A, X = placeholder((rows, depth), "A"), placeholder((2 * columns + depth,), "X")
    k = te.reduce_axis((0, depth), name="k")
    for element in (
        lambda i, j: X[j * 2 + 1] * A[i, k],
        lambda i, j: X[j + k] * A[i, k],
        lambda i, j: X[columns - 1 - j] * A[i, depth - 1 - k],
        lambda i, j: X[j // 2 + j % 2] * A[i, k],
    ):
        Y = te.compute((rows, columns), lambda i, j, f=element: te.sum(f(i, j), axis=k), name="Y")
        for target in (ZNVER4, "llvm -mcpu=x86-64", "llvm"):
            tvm.lower(tvm.auto_schedule(Y, target), [*Y.op.input_tensors, Y])
    assert not dropped


def test_weights_in_the_factor_of_the_image() -> None:
    """Of three factors the second alone has most of the axes, rows among them."""
    B, A, T = placeholder((12, 67), "B"), placeholder((16, 24, 5), "A"), placeholder((16,), "T")
    k = te.reduce_axis((0, 11), name="k")
    Y = te.compute(
        (5, 16, 67),
        lambda b, i, j: te.sum(B[k + 1, j] * A[i, k * 2, b] * T[15 - i], axis=k),
        name="Y",
    )
    assert_computes([B, A, T, Y])


# -- Sums of several lengths ----------------------------------------------------------------------


def uneven(kind: str, batch: bool = False) -> Tensors:
    A, B = placeholder((20, 20), "A"), placeholder((20, 40), "B")
    L, P = placeholder((20,), "L", "int32"), placeholder((21,), "P", "int32")

    def element(i: Any, j: Any) -> Any:
        ranges = {
            "lower": (0, i + 1),
            "strictly lower": (0, i),
            "upper": (i, 20),
            "of columns": (0, te.min(j + 1, 20)),
            "band": (te.max(i - 2, 0), te.min(i + 3, 20)),
            "lengths": (0, L[i] % 21),
            "pieces": (0, (P[i + 1] - P[i]) % 21),
            "negative": (3, L[i] % 3),
        }
        k = te.reduce_axis(ranges[kind], name="k")
        return te.sum(A[i, k] * B[k, j], axis=k)

    Y = te.compute((20, 40), element, name="Y")
    return [A, B, L, P, te.compute((20, 40), lambda i, j: Y[i, j] + 1.0, name="Z")]


UNEVEN = ["lower", "strictly lower", "upper", "of columns", "band", "lengths", "pieces", "negative"]


@pytest.mark.parametrize("kind", UNEVEN)
def test_sums_of_several_lengths(kind: str) -> None:
    assert_computes(uneven(kind))


def in_ranges(kind: str) -> Tensors:
    """Reductions whose ranges depend on outer axes or on data, without products."""
    A, X = placeholder((20, 20), "A"), placeholder((3, 20, 12), "X")
    V, W = placeholder((64,), "V"), placeholder((64, 24), "W")
    L, P = placeholder((20,), "L", "int32"), placeholder((21,), "P", "int32")

    def made(
        inputs: Tensors, shape: Any, term: Callable[..., Any], *ranges: Callable[..., Any]
    ) -> Tensors:
        combine = te.max if kind.endswith("maxima") else te.sum

        def element(*at: Any) -> Any:
            ends = [each(*at) for each in ranges]
            axes = [te.reduce_axis(each, name=name) for each, name in zip(ends, "kq", strict=False)]
            return combine(term(*at, *axes), axis=axes)

        Y = te.compute(shape, element, name="Y")
        return [*inputs, te.compute(shape, lambda *at: Y(*at) * 2.0, name="Z")]

    count = te.compute((20,), lambda i: te.min(L[i] % 20 + 1, 20), name="count")
    return {
        "triangle": lambda: made([A], (20,), lambda i, k: A[i, k], lambda i: (0, i + 1)),
        "triangle's maxima": lambda: made([A], (20,), lambda i, k: A[i, k], lambda i: (0, i + 1)),
        "both axes": lambda: made(
            [X], (3, 20, 12), lambda b, i, j, k, q: X[b, k, q],
            lambda b, i, j: (0, i + 1), lambda b, i, j: (0, j + 1),
        ),
        "prefixes": lambda: made(
            [X], (3, 20, 12), lambda b, i, j, k: X[b, k, j], lambda b, i, j: (0, i + 1)
        ),
        "windows at an edge": lambda: made(
            [X], (3, 20, 12), lambda b, i, j, k, q: X[b, i + k, j + q],
            lambda b, i, j: (0, te.min(3, 20 - i)), lambda b, i, j: (0, te.min(3, 12 - j)),
        ),
        "pieces": lambda: made([V, P], (20,), lambda i, k: V[k],
                               lambda i: (P[i] % 8, P[i] % 8 + P[i + 1] % 50 + 1)),
        "rows of pieces": lambda: made([W, P], (20, 24), lambda i, j, k: W[k, j],
                                       lambda i, j: (P[i] % 8, P[i] % 8 + P[i + 1] % 50 + 1)),
        "rows of pieces' maxima": lambda: made([W, P], (20, 24), lambda i, j, k: W[k, j],
                                       lambda i, j: (P[i] % 8, P[i] % 8 + P[i + 1] % 50 + 1)),
        "computed lengths": lambda: made([A, L], (20,), lambda i, k: A[i, k],
                                         lambda i: (0, count[i])),
    }[kind]()  # fmt: skip


IN_RANGES = ["triangle", "triangle's maxima", "both axes", "prefixes", "windows at an edge",
             "pieces", "rows of pieces", "rows of pieces' maxima", "computed lengths"]  # fmt: skip


@pytest.mark.parametrize("kind", IN_RANGES)
def test_reductions_over_ranges_of_their_own(kind: str) -> None:
    tensors = in_ranges(kind)
    assert "parallel" in tvm.auto_schedule(tensors[-1], ZNVER4).trace()
    assert_computes(tensors)


def test_lengths_cannot_be_prepacked() -> None:
    *inputs, lengths, pieces, Z = uneven("lengths")
    message = "prepacked: expected placeholders whose elements are computed with, got L, which says"
    with pytest.raises(tvm.CompileError, match=message):
        tvm.build([Z], [*inputs, lengths, pieces, Z], prepacked=[lengths])


def test_sums_of_several_lengths_within_sums() -> None:
    A = placeholder((9, 9), "A")
    k = te.reduce_axis((0, 9), name="k")
    r = te.reduce_axis((0, k + 1), name="r")
    Y = te.compute((9, 16), lambda i, j: te.sum(A[i, k] * A[r, k], axis=[k, r]), name="Y")
    assert_computes([A, Y])


def test_sums_as_long_as_each_batch_says() -> None:
    """The sums of a tile are as long as one another, so there are tiles."""
    Q, V = placeholder((3, 20, 30), "Q"), placeholder((3, 30, 40), "V")
    L = placeholder((3,), "L", "int32")

    def element(b: Any, i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, L[b] % 31), name="k")
        return te.sum(Q[b, i, k] * V[b, k, j], axis=k)

    Y = te.compute((3, 20, 40), element, name="Y")
    assert "unroll" in tvm.auto_schedule(Y, ZNVER4).trace()
    assert_computes([Q, V, L, Y])


def test_rows_of_a_sparse_matrix() -> None:
    """As many steps as a row has elements, at columns that data names."""
    values, columns = placeholder((n,), "V"), placeholder((n,), "J", "int32")
    begins, B = placeholder((6,), "P", "int32"), placeholder((9, 33), "B")

    def element(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, begins[i + 1] - begins[i]), name="k")
        return te.sum(values[begins[i] + k] * B[columns[begins[i] + k], j], axis=k)

    Y = te.compute((5, 33), element, name="Y")
    f = tvm.build([Y], [values, columns, begins, B, Y])
    generator = np.random.default_rng(0)
    dense = generator.integers(-3, 4, (5, 9)).astype("float32")
    where = np.nonzero(dense)
    starts = np.searchsorted(where[0], np.arange(6)).astype("int32")
    b = generator.integers(-3, 4, (9, 33)).astype("float32")
    y = np.empty((5, 33), "float32")
    f(dense[where], where[1].astype("int32"), starts, b, y)
    np.testing.assert_array_equal(y, dense @ b)
