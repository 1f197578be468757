"""What auto_schedule writes for stages that read across, and that they copy the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import build, lower, te, tir
from minitvm.auto_scheduler import auto_schedule
from minitvm.runtime.dtype import INT8, DType
from minitvm.target import Target
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret
from tests.codegen.kernels import DTYPES, FLOATS
from tests.codegen.test_dtypes import TARGETS
from tests.transform.test_transpose_copies import random_bits

Array = np.ndarray[Any, Any]


def permuted(
    shape: Sequence[Any], order: Sequence[int], dtype: str = "float32"
) -> tuple[Tensor, Tensor]:
    """A tensor, and the same with its axes in another order."""
    X = te.placeholder(tuple(shape), dtype, name="X")

    def element(*place: Any) -> Any:
        return X(*(place[order.index(axis)] for axis in range(len(order))))

    T = te.compute(tuple(shape[axis] for axis in order), element, name="T")
    return X, T


def text_of(arguments: Sequence[Tensor]) -> str:
    return str(lower(auto_schedule(arguments[-1]), list(arguments)))


# -- Which stages ----------------------------------------------------------------------------------


def across(element: Callable[..., Any], shape: Sequence[Any] = (40, 50)) -> list[Tensor]:
    """A function of two matrices, the first of which is the output's transposed shape."""
    A, B = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    return [A, B, te.compute(tuple(shape), lambda *i: element(A, B, *i), name="T")]


FORMS: dict[str, list[Tensor]] = {
    "a transpose": across(lambda a, b, i, j: a[j, i]),
    "with another as it lies": across(lambda a, b, i, j: a[j, i] + 2.0 * b[i, j]),
    "both from across": across(lambda a, b, i, j: a[j, i] * b[j, i]),
    "a row of factors": across(lambda a, b, i, j: tir.max(a[j, i], 0.0) * b[0, j]),
    "two elements of one tensor": across(lambda a, b, i, j: a[j, i] - a[j + 1, i]),
    "a slice": across(lambda a, b, i, j: a[j + 7, i + 3]),
    "a narrower type": across(lambda a, b, i, j: a[j, i].astype("float16")),
    "joined along rows": across(
        lambda a, b, i, j: te.if_then_else(i < 17, a[j, i], b[j, i - 17])
    ),
    "joined along columns": across(
        lambda a, b, i, j: te.if_then_else(j < 17, a[j, i], b[j - 17, i])
    ),
    "padded": across(
        lambda a, b, i, j: te.if_then_else(
            te.all(i >= 1, i < 39, j >= 2, j < 48), a[j - 2, i - 1], 0.0
        )
    ),
    "chosen by its value": across(
        lambda a, b, i, j: te.if_then_else(a[j, i] > 0.0, a[j, i], a[j, i] * b[i, j])
    ),
    "a batch between": across(lambda a, b, i, n, j: a[j, i] + b[n, i], (20, 3, 30)),
    "three planes": across(lambda a, b, i, c: a[c, i] + b[c + 3, i], (50, 3)),
    "two planes with factors": across(lambda a, b, i, c: a[c * 9, i] * b[0, c], (50, 2)),
}  # fmt: skip


def expected_of(arguments: Sequence[Tensor], arrays: Sequence[Array]) -> Array:
    """By the reference interpreter of the plain loops."""
    made = te.create_schedule(arguments[-1].op)
    shape = [int(extent) for extent in arguments[-1].shape]
    found = np.zeros(shape, str(arguments[-1].dtype))
    interpret(lower(made, list(arguments))["main"], *arrays, found)
    return found


def check_values(arguments: list[Tensor]) -> None:
    """Holds the built function of two inputs to the interpreter."""
    numbers = np.random.default_rng(0)
    arrays = [numbers.integers(-99, 99, (64, 64)).astype("float32") for _ in range(2)]
    expected = expected_of(arguments, arrays)
    found = np.zeros_like(expected)
    build([arguments[-1]], arguments)(*arrays, found)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    arguments = FORMS[name]
    text = text_of(arguments)
    assert "vector_shuffle" in text
    assert "A[ramp" not in text  # nothing is gathered any more
    check_values(arguments)


OTHERS: dict[str, list[Tensor]] = {
    "a plain copy": across(lambda a, b, i, j: a[i, j]),
    "one column": across(lambda a, b, i, j: a[i, 3]),
    "few rows": across(lambda a, b, i, j: a[j, i], (3, 50)),
    "a pair that is no plane": across(lambda a, b, i, n, c: a[c + n, i], (20, 3, 2)),
    "every other element": across(lambda a, b, i, j: a[i, j * 2], (40, 30)),
    "a diagonal": across(lambda a, b, i: a[i, i], (50,)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_stages(name: str) -> None:
    arguments = OTHERS[name]
    assert "vector_shuffle" not in text_of(arguments)
    check_values(arguments)


@pytest.mark.parametrize("size", [2048, 2049, 4096, 6000])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_planes_become_channels(size: int, channels: int) -> None:
    """Also where the parts of rows for the threads are digits of one place."""
    X, T = permuted((4, channels, size), (0, 2, 1), "uint8")
    kernel = build([T], [X, T])
    assert "vector_shuffle" in kernel.get_source("tir")
    x = np.random.default_rng(0).integers(0, 255, (4, channels, size)).astype("uint8")
    found = np.empty((4, size, channels), "uint8")
    kernel(x, found)
    np.testing.assert_array_equal(found, x.transpose(0, 2, 1))


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("rows", [5, 6, 7, 8, 9])
def test_more_rows_become_columns(rows: int, dtype: str) -> None:
    for size in (200, 33, 9):
        X, T = permuted((rows, size), (1, 0), dtype)
        x = np.random.default_rng(0).integers(0, 99, (rows, size)).astype(dtype)
        for target in TARGETS:
            found = np.full((size + 1, rows), 77, dtype)
            build([T], [X, T], target=target)(x, found[:-1])
            np.testing.assert_array_equal(found[:-1], x.T)
            assert (found[-1] == 77).all()


@pytest.mark.parametrize(
    ("rows", "cpu", "is_mixed"),
    [(6, "haswell", True), (7, "haswell", False), (7, "znver5", True), (8, "znver5", False)],
)
def test_few_rows_are_mixed(rows: int, cpu: str, is_mixed: bool) -> None:
    X, T = permuted((rows, 200), (1, 0), "uint8")
    target = Target(f"llvm -mcpu={cpu}")
    text = str(build([T], [X, T], target=target).get_source("tir"))
    assert ("T[ramp(" in text) == is_mixed, text


def test_channels_become_planes() -> None:
    """The elements of all planes are picked from the same reads."""
    X, T = permuted((5, 100, 3), (0, 2, 1))
    s = auto_schedule(T)
    assert "s[T].unroll(i1)" in s.trace()
    x = np.random.default_rng(0).random((5, 100, 3), dtype="float32")
    found = np.empty((5, 3, 100), "float32")
    build(s, [X, T])(x, found)
    np.testing.assert_array_equal(found, x.transpose(0, 2, 1))


@pytest.mark.parametrize("shape", [(6, 3, 3, 20), (40, 3, 3, 37), (7, 2, 5, 9), (5, 4, 4, 33)])
def test_short_rows_go_on_in_the_next(shape: tuple[int, ...]) -> None:
    """Kernels whose channels become the first axis are transposed as a matrix."""
    X, T = permuted(shape, (3, 0, 1, 2))
    text = text_of([X, T])
    assert "vector_shuffle" in text
    assert "X[ramp" not in text
    x = np.random.default_rng(0).random(shape, dtype="float32")
    found = np.empty((shape[3], *shape[:3]), "float32")
    build([T], [X, T])(x, found)
    np.testing.assert_array_equal(found, x.transpose(3, 0, 1, 2))


def test_rows_that_do_not_go_on_stay_apart() -> None:
    """Where another read, a condition or a value of an index sees where a row ends."""
    X = te.placeholder((6, 3, 9, 20), name="X")
    B = te.placeholder((20, 6, 3, 9), name="B")
    forms = {
        "every other": lambda f, c, r, q: X[c, r, q, f] + B[f, c, r, 8 - q],
        "cut": lambda f, c, r, q: X[c, r, q + 1, f] * 2.0,
        "chosen": lambda f, c, r, q: te.if_then_else(q > r, X[c, r, q, f], 0.0),
        "counted": lambda f, c, r, q: X[c, r, q, f] + (r * 2 + q),
    }
    for element in forms.values():
        T = te.compute((20, 6, 3, 8), element, name="T")
        x, b = (np.random.default_rng(1).random(t, dtype="float32") for t in (X.shape, B.shape))
        expected = np.zeros((20, 6, 3, 8), "float32")
        made = te.create_schedule(T.op)
        interpret(lower(made, [X, B, T])["main"], x, b, expected)
        found = np.empty_like(expected)
        build([T], [X, B, T])(x, b, found)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [300, 301])
def test_rows_that_end_within_lines_are_finished_line_by_line(size: int) -> None:
    X, T = permuted((37, size), (1, 0))
    s = auto_schedule(T, "llvm -mcpu=haswell")
    assert "factor=16" in s.trace() and "split(j" not in s.trace()
    x = np.random.default_rng(0).random((37, size), dtype="float32")
    found = np.empty((size, 37), "float32")
    build([T], [X, T])(x, found)
    np.testing.assert_array_equal(found, x.T)


@pytest.mark.parametrize(
    ("shape", "is_by_lines"),
    [
        ((512, 512), True),
        ((64, 512), False),  # 32 pages
        ((512, 1280), False),  # the lines of a column exceed the L1 cache
        ((64, 256, 192), True),
        ((300, 64, 512), False),  # the result is stored past the caches
    ],
)
def test_columns_on_many_pages_are_finished_line_by_line(
    shape: tuple[int, ...], is_by_lines: bool
) -> None:
    order = (1, 0) if len(shape) == 2 else (2, 0, 1)
    X, T = permuted(tuple(shape[::-1]) if len(shape) == 2 else shape, order)
    for cores in (1, 4):
        trace = auto_schedule(T, f"llvm -mcpu=znver5 -num-cores={cores}").trace()
        assert ("factor=16" in trace) == is_by_lines, trace
    if len(shape) == 3:
        return
    x = np.random.default_rng(0).random(shape[::-1], dtype="float32")
    found = np.empty(shape, "float32")
    build([T], [X, T])(x, found)
    np.testing.assert_array_equal(found, x.T)


def test_through_a_stage_that_is_computed_where_it_is_read() -> None:
    A = te.placeholder((50, 40), name="A")
    B = te.compute((40, 50), lambda i, j: A[j, i] + 1.0, name="B")
    C = te.compute((40, 50), lambda i, j: B[i, j] * 2.0, name="C")
    assert "vector_shuffle" in text_of([A, C])
    a, c = np.ones((50, 40), "float32"), np.empty((40, 50), "float32")
    build([C], [A, C])(a, c)
    np.testing.assert_array_equal(c, 4)


def test_the_trace_makes_the_same_schedule() -> None:
    X, T = permuted((3, 70, 90), (0, 2, 1))
    s = auto_schedule(T)
    again = te.replay(s.trace(), [T.op])
    assert str(lower(again, [X, T])) == str(lower(s, [X, T]))


def test_blocks_fit_the_registers() -> None:
    X, T = permuted((64, 64), (1, 0))
    s = auto_schedule(T)
    for target, size in (("x86-64", 4), ("znver3", 8), ("znver4", 16)):
        source = build(s, [X, T], target=f"llvm -mtriple=x86_64-linux-gnu -mcpu={target}")
        assert f"float32x{size}" in source.get_source("tir") or (
            f", 1, {size})]" in source.get_source("tir")
        )


# -- That they copy the same bits ------------------------------------------------------------------


SHAPES = ((33, 70), (4, 100), (100, 4), (1, 50), (16, 16), (0, 8), (7, 5), (2, 65), (65, 3))


def check_bits(kernel: Any, dtype: DType, shape: tuple[int, int]) -> None:
    """Payloads of NaN, too."""
    given_rows = random_bits(dtype, shape)
    expected = np.ascontiguousarray(given_rows.T)
    found = np.zeros_like(expected)
    kernel(given_rows, found)
    assert found.tobytes() == expected.tobytes(), shape


@pytest.mark.parametrize(
    "dtype",
    [
        # Other integers have the size of one of these.
        pytest.param(each, marks=[] if each in (INT8, *FLOATS) else pytest.mark.wide)
        for each in DTYPES if not each.is_bool
    ],
    ids=str,
)  # fmt: skip
def test_bits(dtype: DType) -> None:
    X, T = permuted((te.var("m"), te.var("n")), (1, 0), str(dtype))
    kernel = build([T], [X, T])
    for shape in SHAPES:
        check_bits(kernel, dtype, shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_known_sizes(shape: tuple[int, int]) -> None:
    for name in ("float32", "uint8"):
        X, T = permuted(shape, (1, 0), name)
        check_bits(build([T], [X, T]), DType.of(name), shape)


def test_arrays_with_strides() -> None:
    X, T = permuted((40, 50), (1, 0))
    kernel = build([T], [X, T])
    whole = np.random.default_rng(0).random((80, 100), dtype="float32")
    for x in (whole[::2, ::2], whole.T[:40, :50], whole[:40, 99:49:-1]):
        found = np.empty((50, 40), "float32")
        kernel(x, found)
        np.testing.assert_array_equal(found, x.T)
        wide = np.empty((50, 80), "float32")
        kernel(x, wide[:, ::2])
        np.testing.assert_array_equal(wide[:, ::2], x.T)


ranks = st.integers(2, 4)


def check_drawn(data: st.DataObject, most: int) -> None:
    """A permutation, in an expression or alone, of any sizes, types and targets."""
    rank = data.draw(ranks)
    shape = tuple(data.draw(st.lists(st.integers(0, most), min_size=rank, max_size=rank)))
    order = data.draw(st.sampled_from(list(permutations(range(rank)))))
    dtype = data.draw(st.sampled_from(("float32", "uint8", "int16", "float64", "float16")))
    is_symbolic = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    sizes = [te.var() if each else n for each, n in zip(is_symbolic, shape, strict=True)]
    X, T = permuted(sizes, order, dtype)
    outputs = [T]
    numbers = np.random.default_rng(0)
    x = numbers.integers(0, 9, shape).astype(dtype)
    arrays, expected = [x], x.transpose(order)
    form = data.draw(st.sampled_from(("plain", "with another", "joined", "padded")))
    at = data.draw(st.integers(0, rank - 1))
    if form == "with another":
        Y = te.placeholder(T.shape, dtype, name="Y")
        y = numbers.integers(0, 9, expected.shape).astype(dtype)
        made = te.compute(T.shape, lambda *i: Y(*i) + (T(*i) + T(*i)) * Y(*i), name="Z")
        outputs, arrays, expected = [Y, made], [x, y], y + 2 * expected * y
    elif form != "plain":
        Y = te.placeholder(X.shape, dtype, name="Y")
        y = numbers.integers(0, 9, shape).astype(dtype)
        extent = T.shape[at]
        inverse = [order.index(axis) for axis in range(rank)]

        def element(*place: Any) -> Any:
            def read(tensor: Tensor, offset: Any) -> Any:
                moved = [p - offset if axis == at else p for axis, p in enumerate(place)]
                return tensor(*(moved[axis] for axis in inverse))

            if form == "joined":
                return te.if_then_else(place[at] < extent, read(X, 0), read(Y, extent))
            inside = te.all(place[at] >= 2, place[at] < extent + 2)
            return te.if_then_else(inside, read(X, 2), tir.const(3, dtype))

        more = extent if form == "joined" else 5
        wide = tuple(n + more if axis == at else n for axis, n in enumerate(T.shape))
        made = te.compute(wide, element, name="Z")
        if form == "joined":
            outputs, arrays = [Y, made], [x, y]
            expected = np.concatenate([expected, y.transpose(order)], at)
        else:
            outputs = [made]
            around = [(2, 3) if axis == at else (0, 0) for axis in range(rank)]
            expected = np.pad(expected, around, constant_values=3)
    target = data.draw(st.sampled_from(TARGETS))
    found = np.zeros(expected.shape, dtype)
    build(outputs[-1:], [X, *outputs], target=target)(*arrays, found)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_permutations(data: st.DataObject) -> None:
    check_drawn(data, 40)


@pytest.mark.wide
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_many_permutations(data: st.DataObject) -> None:
    check_drawn(data, 150)


# -- Short lines -----------------------------------------------------------------------------------


def short_lines(shape: Sequence[Any], kind: str, dtype: str) -> list[Tensor]:
    """An image with channels last, transposed."""
    x, y, z = shape
    A, W = te.placeholder((x, y, z), dtype, name="A"), te.placeholder((y, z), dtype, name="W")
    elements: dict[str, Callable[..., Any]] = {
        "moved": lambda i, j, c: A[j, i, c],
        "backwards": lambda i, j, c: A[j, i, z - 1 - c],
        "scaled": lambda i, j, c: A[j, i, c] * W[i, c],
        "a part": lambda i, j, c: te.if_then_else(te.all(i > 0, j > 1), A[j, i, c], A[0, 0, c]),
    }
    return [A, W, te.compute((y, x, z), elements[kind], name="T")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["moved", "backwards", "scaled", "a part"])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64", "bool"])
@pytest.mark.parametrize("sizes", [(37, 29, 3), (5, 8, 2), (64, 40, 7), (9, 4, 16), (3, 3, 3)])
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_short_lines_are_moved_whole(
    sizes: tuple[int, int, int], dtype: str, kind: str, is_symbolic: bool
) -> None:
    dtype = "int16" if dtype == "bool" and kind == "scaled" else dtype
    x, y, z = sizes
    shape = (te.var("x"), te.var("y"), z) if is_symbolic else sizes
    arguments = short_lines(shape, kind, dtype)
    texts = [each.text for each in auto_schedule(arguments[-1]).choices]
    is_found = any(text.startswith("short lines") for text in texts)
    assert is_found == ((is_symbolic or y > 3) and z * np.dtype(dtype).itemsize <= 64)
    rng = np.random.default_rng(0)
    a, w = (rng.integers(0, 9, n).astype(dtype) for n in (sizes, (y, z)))
    moved = a.transpose(1, 0, 2)
    i, j = np.ogrid[:y, :x]
    expected = {
        "moved": moved,
        "backwards": moved[..., ::-1],
        "scaled": moved * w[:, None],
        "a part": np.where(((i > 0) & (j > 1))[..., None], moved, a[0, 0]),
    }[kind]
    found = np.zeros((y, x, z), dtype)
    build(arguments[-1], arguments)(a, w, found)
    np.testing.assert_array_equal(found, expected)


def test_long_lines_and_functions_are_no_short_lines() -> None:
    for arguments in (
        short_lines((37, 29, 17), "moved", "float32"),  # longer than a line of the cache
        [*permuted((37, 29, 3), (0, 1, 2))],
    ):
        texts = [each.text for each in auto_schedule(arguments[-1]).choices]
        assert not any(text.startswith("short lines") for text in texts)
