"""Programs whose indices are roundabout are scheduled as those whose indices are plain."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from minitvm import build, lower, te, tir
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.tensor import Tensor

TARGET = "llvm -mcpu=haswell -num-cores=2"
M, N = te.var("m"), te.var("n")
SIZES = {"constant": (12, 20), "symbolic": (M, N)}

ROUNDABOUT: dict[str, Callable[[Any, Any, Any, Any, Tensor], Any]] = {
    "remainders": lambda i, j, m, n, A: A[i % m, j % n],
    "minima": lambda i, j, m, n, A: A[te.min(i, m - 1), te.max(te.min(j, n - 1), 0)],
    "flattened and back": lambda i, j, m, n, A: A[(i * n + j) // n, (i * n + j) % n],
    "transposed, flattened and back": lambda i, j, m, n, A: A[(j * m + i) % m, (j * m + i) // m],
    "quotients that are 0": lambda i, j, m, n, A: A[j // n + i, i // m * 5 + j],
    "select": lambda i, j, m, n, A: tir.Select(te.all(i < m, j >= 0), A[i, j], te.const(7.0)),
    "if_then_else": lambda i, j, m, n, A: te.if_then_else(te.any(j < n, i > 3), A[i, j], 7.0),
    "reversed twice": lambda i, j, m, n, A: A[m - 1 - (m - 1 - i), j],
    "casts": lambda i, j, m, n, A: A[i.astype("int64"), j.astype("int64").astype("int32")],
    "the cast of a sum": lambda i, j, m, n, A: A[i, (i.astype("int64") + j) - i],
}


def product(m: Any, n: Any, element: Callable[..., Any]) -> list[Tensor]:
    """The rows of A, which are read at roundabout indices, times B; the sum in an epilogue."""
    A, B = te.placeholder((m, n), name="A"), te.placeholder((n, 32), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute(
        (m, 32), lambda i, j: te.sum(element(i, k.var, m, n, A) * B[k, j], axis=k), name="C"
    )
    return [A, B, te.compute((m, 32), lambda i, j: C[i, j] + 1.0, name="D")]


def elements(m: Any, n: Any, element: Callable[..., Any]) -> list[Tensor]:
    A = te.placeholder((m, n), name="A")
    twice = te.compute((m, n), lambda i, j: element(i, j, m, n, A) * 2.0, name="twice")
    return [A, te.compute((m, n), lambda i, j: element(i, j, m, n, twice) + 1.0, name="C")]


def plainly(i: Any, j: Any, m: Any, n: Any, A: Tensor) -> Any:
    return A[i, j]


@pytest.mark.covering(2)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("make", [product, elements])
@pytest.mark.parametrize("kind", ROUNDABOUT)
def test_roundabout_indices_are_plain_ones(
    kind: str, make: Callable[..., list[Tensor]], sizes: str
) -> None:
    roundabout = make(*SIZES[sizes], ROUNDABOUT[kind])
    s = auto_schedule(roundabout[-1], TARGET)
    for schedule in (s, te.replay(s.trace(), roundabout[-1].op)):
        assert str(lower(schedule, roundabout, simple_mode=True)) == plain_text(make, sizes)


@cache
def plain_text(make: Callable[..., list[Tensor]], sizes: str) -> str:
    """The loops of a program with plain indices."""
    args = make(*SIZES[sizes], plainly)
    return str(lower(auto_schedule(args[-1], TARGET), args, simple_mode=True))


@pytest.mark.covering(1)
@pytest.mark.parametrize("make", [product, elements])
@pytest.mark.parametrize("kind", ["minima", "flattened and back", "casts"])
def test_results_of_roundabout_indices(kind: str, make: Callable[..., list[Tensor]]) -> None:
    args = make(M, N, ROUNDABOUT[kind])
    f = build(args[-1], args)
    for m, n in ((1, 1), (5, 3), (0, 4), (3, 0), (17, 33)):
        shapes = [[size(x, m, n) for x in tensor.shape] for tensor in args]
        arrays = [np.random.default_rng(0).integers(-9, 9, s).astype("float32") for s in shapes]
        f(*arrays)
        wanted = arrays[0] @ arrays[1] if make is product else arrays[0] * 2
        np.testing.assert_array_equal(arrays[-1], wanted + 1)


def size(extent: Any, m: int, n: int) -> int:
    return m if extent is M else n if extent is N else int(extent.value)


def convolution(groups: int, in_groups: bool) -> list[Tensor]:
    """A convolution whose text is for any number of groups, or, without them, for one."""
    P = te.placeholder((1, 16, 16, 16), name="P")
    W = te.placeholder((32, 16 // groups, 3, 3), name="W")
    c, q, r = (te.reduce_axis((0, x), name=y) for x, y in ((16 // groups, "c"), (3, "q"), (3, "r")))

    def element(n: Any, f: Any, y: Any, x: Any) -> Any:
        channel = f // (32 // groups) * (16 // groups) + c if in_groups else c
        return te.sum(P[n, channel, y + q, x + r] * W[f, c, q, r], axis=[c, q, r])

    return [P, W, te.compute((1, 32, 14, 14), element, name="Y")]


def test_one_group_is_a_convolution_without_groups() -> None:
    plain, grouped = convolution(1, False), convolution(1, True)
    texts = [str(lower(auto_schedule(x[-1], TARGET), x)) for x in (plain, grouped)]
    assert texts[0] == texts[1]
    several = convolution(4, True)
    assert "simplify" not in auto_schedule(several[-1], TARGET).trace()


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_product_of_one_step(is_scaled: bool) -> None:
    """It is a product only where elements of both factors are read for several results: a tensor
    that is scaled isn't."""
    A = te.placeholder((40, 6, 1), name="A")
    B = te.placeholder((6, 1) if is_scaled else (1, 6), name="B")
    k = te.reduce_axis((0, 1), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(A[i, j, k] * B[j, k] if is_scaled else A[i, 0, k] * B[k, j], axis=k)

    C = te.compute((40, 6), element, name="C")
    texts = [each.text for each in auto_schedule(C, TARGET).choices]
    assert any("sums of {steps} products" in text for text in texts) == (not is_scaled)
    a, b = np.random.default_rng(0).random((40, 6, 1)), np.arange(6.0)
    c = np.empty((40, 6), "float32")
    build(C, [A, B, C])(a.astype("float32"), b.reshape(B.shape[0], -1).astype("float32"), c)
    np.testing.assert_allclose(c, (a[..., 0] if is_scaled else a[:, :1, 0]) * b, rtol=1e-6)


def test_simplify_names_a_stage_without_expressions() -> None:
    A = te.placeholder((4,), name="A")
    s = te.create_schedule(te.compute((4,), lambda i: A[i], name="B").op)
    with pytest.raises(CompileError, match=r"simplify of A: expected a tensor of te\.compute, got"):
        s[A].simplify()


def test_an_access_outside_is_named_as_it_is_written() -> None:
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[(i + 1) * 2 // 2 % 16], name="B")
    with pytest.raises(CompileError, match=r"A\[\(i \+ 1\) \* 2 // 2 % 16\]|% 16"):
        build(B, [A, B])


def test_a_read_that_is_not_chosen_stays_inside() -> None:
    """Both values of a select are computed, so the index is bounded in either case."""
    A = te.placeholder((M,), name="A")

    def element(i: Any) -> Any:
        return tir.Select(i >= 1, A[te.max(i % (M + 1) - 1, 0)], te.const(7.0))

    B = te.compute((M + 1,), element, name="B")
    f = build(B, [A, B])
    a, b = np.arange(5, dtype="float32"), np.empty(6, "float32")
    f(a, b)
    np.testing.assert_array_equal(b, [7, *a])


@pytest.mark.parametrize("length", [lambda i: te.min(i + 2, 0), lambda i: te.max(te.min(i, 9), 0)])
def test_a_range_without_iterations_stays_one(length: Callable[[Any], Any]) -> None:
    """The length of a sum isn't simplified by what holds within its iterations."""
    A, B = te.placeholder((9, 12), "int32", name="A"), te.placeholder((12, 20), "int32", name="B")
    k = te.reduce_axis((0, 12), name="k")

    def element(i: Any, j: Any) -> Any:
        times = te.reduce_axis((0, length(i)), name="times")
        return te.sum(A[i, k] * B[k, j], axis=[k, times])

    C = te.compute((9, 20), element, name="C")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, t).astype("int32") for t in ((9, 12), (12, 20)))
    got = np.ones((9, 20), "int32")
    build([C], [A, B, C])(a, b, got)
    times = [int(getattr(length(i), "value", length(i))) for i in range(9)]
    np.testing.assert_array_equal(got, np.array(times)[:, None] * (a @ b))


def _unread(given: bool) -> tuple[str, np.ndarray[Any, Any]]:
    """The loops of a program in which nothing reads two of its stages once it is simplified."""
    A, k = te.placeholder((16,), name="A"), te.reduce_axis((0, 16), "k")
    S = te.compute((16,), lambda i: te.sum(A[k] * i, axis=k), name="S")
    T = te.compute((16,), lambda i: S[i] + 1.0, name="T")
    Y = te.compute((16,), lambda i: te.if_then_else(i < 16, A[i] * 2.0, T[i]), name="Y")
    function = build(Y, [A, S, Y] if given else [A, Y])
    a, s, y = np.arange(16, dtype="float32"), np.empty(16, "float32"), np.empty(16, "float32")
    function(*([a, s, y] if given else [a, y]))
    np.testing.assert_array_equal(y, a * 2)
    return function.get_source("tir"), s


def test_what_nothing_reads_is_not_computed() -> None:
    assert "k" not in _unread(False)[0]
    np.testing.assert_array_equal(_unread(True)[1], np.arange(16) * 120)


def test_a_reduction_is_inlined_only_where_nothing_reads_it() -> None:
    A, k = te.placeholder((16,), name="A"), te.reduce_axis((0, 16), "k")
    S = te.compute((), lambda: te.sum(A[k], axis=k), name="S")
    T = te.compute((16,), lambda i: S() + i, name="T")
    Y = te.compute((16,), lambda i: te.if_then_else(i < 16, A[i], T[i]), name="Y")
    s = te.create_schedule(Y.op)
    s[T].compute_inline()
    with pytest.raises(CompileError, match="S: compute_inline: expected no reduction"):
        s[S].compute_inline()
    s[Y].simplify()
    s[S].compute_inline()
    assert "allocate" not in str(lower(s, [A, Y]))


@pytest.mark.parametrize("rows", [9, te.var("n")])
def test_a_reduction_without_steps_keeps_what_it_begins_from(rows: Any) -> None:
    """The facts of steps that don't exist prove anything."""
    A = te.placeholder((rows, 1), "int32", name="A")
    k = te.reduce_axis((1, 1), name="k")

    def row(i: Any) -> Any:
        goes_up = i % 2 == 0
        reducer = te.comm_reducer(
            lambda x, y: te.if_then_else(goes_up, te.max(x, y), te.min(x, y)),
            lambda t: te.if_then_else(goes_up, te.min_value(t), te.max_value(t)),
        )
        return reducer(A[i, k] * 2, axis=k)

    B = te.compute((rows,), row, name="B")
    out = np.empty(9, "int32")
    build([B], [A, B])(np.zeros((9, 1), "int32"), out)
    ends = np.iinfo("int32")
    np.testing.assert_array_equal(out, np.where(np.arange(9) % 2, ends.max, ends.min))


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_shifts_and_masks_of_places(shift: int) -> None:
    """They are quotients, remainders and multiples, of negative numbers, too."""
    n, size = 48, 1 << shift
    X = te.placeholder((4 * n,), "int32", name="X")

    def element(i: Any) -> Any:
        low, far = i - 20, te.const(n, "int32")
        return (
            X[i >> shift]
            + 3 * X[i & (size - 1)]
            + 5 * X[(i << shift) & (n - 1 | 63)]
            + 7 * X[(i ^ size) & 127]
            + 11 * ((low >> shift) + (low & (2 * size - 1)) + (low & size) + (low ^ size))
            + (low << shift) * far
        )

    Y = te.compute((n,), element, name="Y")
    made = str(simplified(Y.op).body[0])
    assert ">>" not in made and "<<" not in made and "&" not in made and "^" not in made
    x = np.random.default_rng(0).integers(-99, 99, 4 * n, "int32")
    i = np.arange(n)
    low = i - 20
    wanted = x[i >> shift] + 3 * x[i & (size - 1)] + 5 * x[(i << shift) & 63]
    wanted += 7 * x[(i ^ size) & 127] + (low << shift) * n
    wanted += 11 * ((low >> shift) + (low & (2 * size - 1)) + (low & size) + (low ^ size))
    found = np.empty(n, "int32")
    for whole in (True, False):
        build(te.create_schedule(Y.op), [X, Y], auto_schedule=whole)(x, found)
        np.testing.assert_array_equal(found, wanted)


def test_shifts_and_masks_of_elements_stay() -> None:
    X = te.placeholder((8,), "int32", name="X")
    Y = te.compute((8,), lambda i: (X[i] >> 2) & 3, name="Y")
    assert simplified(Y.op) is Y.op


def test_single_steps_leave_plain_indices() -> None:
    """A convolution of 1 x 1, written for any window."""
    X, W = te.placeholder((8, 9, 7), name="X"), te.placeholder((5, 8, 1, 1), name="W")
    c, r, q = (te.reduce_axis((0, n), name=name) for n, name in ((8, "c"), (1, "r"), (1, "q")))
    Y = te.compute(
        (5, 9, 7),
        lambda f, y, x: te.sum(X[c, y + r, x + q] * W[f, c, r, q], axis=[c, r, q]),
        name="Y",
    )
    assert str(simplified(Y.op).body[0]) == "sum(X[c, y, x] * W[f, c, 0, 0], axis=[c])"


CHOICES: dict[str, Callable[..., Any]] = {
    "before an end": lambda k, at, i: k < at[i],
    "up to an end": lambda k, at, i: at[i] >= k,
    "from a beginning": lambda k, at, i: te.all(k >= at[i] - 9, i - k < at[i]),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("is_product", [False, True])
def test_data_say_where_terms_end(name: str, is_product: bool) -> None:
    """A choice between an element and 0 is the condition of its sum. Data may leave out all."""
    holds, m, n, width = CHOICES[name], 14, 23, 19
    A, B = te.placeholder((m, n, width), name="A"), te.placeholder((n, width), name="B")
    at, k = te.placeholder((m,), "int32", name="at"), te.reduce_axis((0, n), name="k")

    def term(i: Any, j: Any) -> Any:
        return A[i, k, 0] * B[k, j] if is_product else A[i, k, j]

    chosen = te.compute(
        (m, width),
        lambda i, j: te.sum(te.if_then_else(holds(k.var, at, i), term(i, j), 0.0), axis=k),
    )
    left = te.compute((m, width), lambda i, j: te.sum(term(i, j), axis=k, where=holds(k, at, i)))
    loops = [str(lower(auto_schedule(S, TARGET), [A, B, at, S])) for S in (chosen, left)]
    assert loops[0] == loops[1]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, shape).astype("float32") for shape in ((m, n, width), (n, width)))
    ends = rng.integers(-3, n + 12, m).astype("int32")
    s = np.full((m, width), np.nan, "float32")
    build([chosen], [A, B, at, chosen])(a, b, ends, s)
    terms = a[:, :, :1] * b if is_product else a
    i, places = np.arange(m)[:, None], np.arange(n)
    end = ends[:, None]
    kept = {
        "before an end": places < end,
        "up to an end": places <= end,
        "from a beginning": (places >= end - 9) & (i - places < end),
    }[name]
    np.testing.assert_array_equal(s, (terms * kept[:, :, None]).sum(1))
