"""What auto_schedule writes for running reductions: values against numpy, and the loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret
from tests.auto_scheduler.test_scans import HASWELL, Array

SHAPES = [(37,), (5, 33), (33, 5), (3, 4, 19)]
EDGES = [(1, 8), (70, 1), (3, 0), (0, 3)]
# Which steps belong to the element at j, and numpy's result along an axis.
FORMS: dict[str, tuple[Callable[[Any, Any], Any], bool, bool]] = {
    "k <= j": (lambda k, j: k <= j, False, False),
    "k < j": (lambda k, j: k < j, True, False),
    "k >= j": (lambda k, j: k >= j, False, True),
    "k > j": (lambda k, j: k > j, True, True),
}
REDUCERS: dict[str, tuple[Any, Any, float]] = {
    "sum": (te.sum, np.add, 0.0),
    "prod": (te.prod, np.multiply, 1.0),
    "max": (te.max, np.maximum, -np.inf),
    "min": (te.min, np.minimum, np.inf),
}


def running(x: Tensor, axis: int, reducer: Any, form: str) -> Tensor:
    def element(*i: Any) -> Any:
        k = te.reduce_axis((0, x.shape[axis]), "k")
        where = FORMS[form][0](k, i[axis])
        return reducer(x(*i[:axis], k, *i[axis + 1 :]), axis=k, where=where)

    made: Tensor = te.compute(x.shape, element, name="R")
    return made


def expected(x: Array, axis: int, reducer: str, form: str) -> Array:
    _, combine, identity = REDUCERS[reducer]
    _, is_exclusive, is_reversed = FORMS[form]
    given = np.flip(x, axis) if is_reversed else x
    if is_exclusive and x.shape[axis]:
        begin = np.full_like(given.take([0], axis), identity)
        given = np.concatenate([begin, given.take(range(x.shape[axis] - 1), axis)], axis)
    made: Array = combine.accumulate(given, axis)
    return np.flip(made, axis) if is_reversed else made


def check(x: Tensor, out: Tensor, given: Array, wanted: Array, terms: int) -> str:
    """Within the error of a sum of so many terms in any order. Returns the schedule and loops."""
    s = tvm.auto_schedule(out, HASWELL)
    lowered = tvm.lower(s, [x, out], name="f")["f"]
    unit = np.finfo(wanted.dtype).eps if wanted.dtype.kind == "f" else 0
    magnitude = max(1.0, float(np.abs(given, dtype="float64").sum())) if given.size else 1.0
    for compute in (tvm.build([out], [x, out]), partial(interpret, lowered)):
        found = np.empty(wanted.shape, wanted.dtype)
        compute(given, found)
        np.testing.assert_allclose(found, wanted, rtol=terms * unit, atol=terms * unit * magnitude)
    return f"{s.trace()}\n{lowered}"


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_along_each_axis(shape: tuple[int, ...], form: str) -> None:
    given = np.random.default_rng(3).standard_normal(shape, dtype="float32")
    for axis in range(len(shape)):
        x = te.placeholder(shape, name="X")
        out = running(x, axis, te.sum, form)
        text = check(x, out, given, expected(given, axis, "sum", form), shape[axis])
        assert "s[R].accumulate(" in text or 0 in shape or shape[axis] == 1


@pytest.mark.parametrize("shape", EDGES, ids=str)
def test_edges(shape: tuple[int, ...]) -> None:
    given = np.random.default_rng(3).standard_normal(shape, dtype="float32")
    for axis in range(2):
        x = te.placeholder(shape, name="X")
        out = running(x, axis, te.sum, "k <= j")
        check(x, out, given, expected(given, axis, "sum", "k <= j"), shape[axis])


DTYPES = ["float32", "float64", "float16", "int32", "int8", "uint8"]
PAIRS = [("sum", each) for each in DTYPES] + [
    ("prod", "float32"), ("prod", "int8"), ("max", "float32"), ("max", "int32"), ("min", "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("reducer", "dtype"), PAIRS)
def test_reducers_and_dtypes(reducer: str, dtype: str) -> None:
    random = np.random.default_rng(5)
    for axis, form in ((0, "k >= j"), (1, "k <= j")):
        drawn = random.uniform(0.9, 1.1, (6, 41)), random.integers(0, 3, (6, 41))
        given = drawn[0 if dtype[0] == "f" else 1].astype(dtype)
        x = te.placeholder((6, 41), dtype, name="X")
        out = running(x, axis, REDUCERS[reducer][0], form)
        wanted = expected(given, axis, reducer, form).astype(dtype)
        assert "accumulate" in check(x, out, given, wanted, 41)


@pytest.mark.parametrize("axis", [0, 1])
def test_reducers_whose_combination_is_a_sum_of_other_things(axis: int) -> None:
    """A lane without terms holds the reducer's identity, and not that of additions."""

    def combine(a: Any, b: Any) -> Any:
        return te.max(a, b) + te.log1p(te.exp(te.min(a, b) - te.max(a, b)))

    logsumexp = te.comm_reducer(combine, te.min_value, name="logsumexp")
    given = np.random.default_rng(3).standard_normal((6, 41), dtype="float32")
    x = te.placeholder(given.shape, name="X")
    out = running(x, axis, logsumexp, "k <= j")
    wanted = np.log(np.cumsum(np.exp(given.astype("float64")), axis))
    text = check(x, out, given, wanted.astype("float32"), 41)
    assert "accumulate" in text


@pytest.mark.parametrize(("axis", "form"), [(0, "k <= j"), (1, "k < j"), (1, "k >= j")])
def test_strict_sums_are_in_order(axis: int, form: str) -> None:
    given = np.random.default_rng(3).standard_normal((6, 37), dtype="float32")
    x = te.placeholder(given.shape, name="X")
    out = running(x, axis, te.sum, form)
    made = [np.empty_like(given) for _ in range(2)]
    for auto_schedule, found in zip((True, False), made, strict=True):
        tvm.build([out], [x, out], fp="strict", auto_schedule=auto_schedule)(given, found)
    np.testing.assert_array_equal(made[0], made[1])


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_symbolic_sizes(data: st.DataObject) -> None:
    sizes = [te.size_var(name) for name in "nm"]
    shape = tuple(data.draw(st.sampled_from([0, 1, 2, 7, 8, 33])) for _ in sizes)
    axis, form = data.draw(st.integers(0, 1)), data.draw(st.sampled_from([*FORMS]))
    given = np.random.default_rng(3).standard_normal(shape, dtype="float32")
    x = te.placeholder(sizes, name="X")
    out = running(x, axis, te.sum, form)
    text = check(x, out, given, expected(given, axis, "sum", form), max(1, shape[axis]))
    assert "s[R].accumulate(" in text


def test_values_that_are_no_numbers_reach_all_later_sums() -> None:
    given = np.ones((4, 40), "float32")
    given[0, 7], given[1, 20], given[2, 3], given[2, 30] = np.nan, np.inf, np.inf, -np.inf
    x = te.placeholder(given.shape, name="X")
    for reducer in ("sum", "max", "min"):
        out = running(x, 1, REDUCERS[reducer][0], "k <= j")
        found = np.empty_like(given)
        tvm.build([out], [x, out])(given, found)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(found, expected(given, 1, reducer, "k <= j"))


# -- Other ways to write them --


def test_ranges_conditions_and_choices_are_alike() -> None:
    x = te.placeholder((6, 50), name="X")
    k = te.reduce_axis((0, 50), "k")

    def ragged(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, j + 1), "k")
        return te.sum(x[i, k], axis=k)

    texts = [
        tvm.auto_schedule(te.compute((6, 50), element, name="R"), HASWELL).trace()
        for element in (
            ragged,
            lambda i, j: te.sum(te.if_then_else(k <= j, x[i, k], 0.0), axis=k),
            lambda i, j: te.sum(x[i, k], axis=k, where=j >= k),
        )
    ]
    lanes = "s[R].vectorize(j_inner)"
    assert all("s[R].accumulate(j)" in each and lanes in each for each in texts), texts


def summed_by_scan(shape: tuple[int, int], axis: int, is_reversed: bool) -> tuple[Tensor, Tensor]:
    """A scan along time, and its result in the order of the input."""
    x = te.placeholder(shape, name="X")
    steps, others = shape[axis], shape[1 - axis]

    def at(t: Any, i: Any) -> Any:
        t = steps - 1 - t if is_reversed else t
        return x[(t, i) if axis == 0 else (i, t)]

    state = te.placeholder((steps, others), name="state")
    first = te.compute((1, others), at, name="first")
    step = te.compute((steps, others), lambda t, i: state[t - 1, i] + at(t, i), name="step")
    made: Any = te.scan(first, step, state, inputs=[x], name="R")

    def back(i: Any, j: Any) -> Any:
        t, other = (i, j) if axis == 0 else (j, i)
        return made[steps - 1 - t if is_reversed else t, other]

    return x, te.compute(shape, back, name="out")


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7, 40), 0), ((7, 40), 1), ((40, 1), 0), ((1, 9), 1)])
def test_scans(shape: tuple[int, int], axis: int, is_reversed: bool) -> None:
    x, out = summed_by_scan(shape, axis, is_reversed)
    given = np.random.default_rng(3).standard_normal(shape, dtype="float32")
    wanted = expected(given, axis, "sum", "k >= j" if is_reversed else "k <= j")
    text = check(x, out, given, wanted, shape[axis])
    again = te.replay(tvm.auto_schedule(out, HASWELL).trace(), [out])
    assert str(tvm.lower(again, [x, out], name="f")["f"]) in text
    assert "s.reduce_scan(R)" in text and "s.reverse_compute_inline(" in text
    assert "accumulate(" in text and "R = allocate" not in text


BEGINS = [("sum", each) for each in ("same", "other", "argument")]
BEGINS += [("prod", "argument"), ("max", "same")]


@pytest.mark.parametrize(("name", "begin"), BEGINS)
def test_scans_begin_from_their_first_part(name: str, begin: str) -> None:
    """Also from a negative zero."""
    combine: Any = {
        "sum": lambda a, b: a + b,
        "prod": lambda a, b: a * b,
        "max": te.max,
        "min": te.min,
    }
    x, start = te.placeholder((9, 20), name="X"), te.placeholder((1, 20), name="start")
    state = te.placeholder((9, 20), name="state")
    firsts = {"same": lambda t, i: x[0, i], "other": lambda t, i: te.const(2.0) - start[t, i]}
    first = start if begin == "argument" else te.compute((1, 20), firsts[begin], name="first")
    step = te.compute((9, 20), lambda t, i: combine[name](x[t, i], state[t - 1, i]), name="step")
    out: Any = te.scan(first, step, state, name="R")
    given = np.random.default_rng(0).choice([-0.0, -0.0, -0.0, 1.5, -2], (9, 20))
    given, found = given.astype("float32"), np.empty((9, 20), "float32")
    zeros = np.full((1, 20), -0.0, "float32")
    used = {"same": given[:1], "other": 2 - zeros, "argument": zeros}[begin]
    tvm.build([out], [x, start, out])(given, zeros, found)
    wanted = REDUCERS[name][1].accumulate(np.concatenate([used, given[1:]]), 0)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    assert "accumulate(" in tvm.auto_schedule(out, HASWELL).trace()


def test_negative_zeros_along_the_last_axis() -> None:
    x, out = summed_by_scan((3, 40), 1, False)
    given, found = np.full((3, 40), -0.0, "float32"), np.ones((3, 40), "float32")
    tvm.build([out], [x, out])(given, found)
    assert np.signbit(found).all()


# -- Their neighbours --


def test_places_of_the_greatest_so_far() -> None:
    """A reducer of tuples goes on one by one."""
    argmax = te.comm_reducer(
        lambda a, b: tuple(te.if_then_else(a[1] >= b[1], a[i], b[i]) for i in range(2)),
        lambda index, value: (te.const(-1, index), te.min_value(value)),
        name="argmax",
    )
    x = te.placeholder((5, 30), name="X")
    k = te.reduce_axis((0, 30), "k")
    place, value = te.compute(
        (5, 30), lambda i, j: argmax((k.var, x[i, k]), axis=k, where=k <= j), name="A"
    )
    given = np.random.default_rng(1).standard_normal((5, 30), dtype="float32")
    found = np.empty((5, 30), "int32"), np.empty((5, 30), "float32")
    tvm.build([place, value], [x, place, value])(given, *found)
    wanted = np.maximum.accumulate(given, 1)
    np.testing.assert_array_equal(found[1], wanted)
    np.testing.assert_array_equal(np.take_along_axis(given, found[0], 1), wanted)
    assert "accumulate(" in tvm.auto_schedule([place, value], HASWELL).trace()


def test_tables_of_sums() -> None:
    """Sums over all that lies above and left: one axis goes on, the other is reduced each time."""
    x = te.placeholder((9, 12), name="X")
    k, n = te.reduce_axis((0, 9), "k"), te.reduce_axis((0, 12), "n")
    out = te.compute(
        (9, 12), lambda i, j: te.sum(x[k, n], axis=[k, n], where=te.all(k <= i, n <= j)), name="R"
    )
    given = np.random.default_rng(1).integers(-5, 5, (9, 12)).astype("float32")
    text = check(x, out, given, given.cumsum(0).cumsum(1), 1)
    assert "accumulate(" in text


def test_stages_around_share_the_row() -> None:
    x = te.placeholder((6, 70), name="X")
    k = te.reduce_axis((0, 70), "k")
    powers = te.compute((6, 70), lambda i, j: te.exp(x[i, j]), name="E")
    total = te.compute((6, 70), lambda i, j: te.sum(powers[i, k], axis=k, where=k <= j), name="T")
    out = te.compute((6, 70), lambda i, j: powers[i, j] / total[i, j], name="out")
    given = np.random.default_rng(1).standard_normal((6, 70), dtype="float32")
    e = np.exp(given)
    text = check_fast(x, out, given, e / e.cumsum(1))
    assert "s[T].accumulate(" in text and "s[T].compute_at(s[out], i)" in text
    assert "E = allocate(float32[1, 7" in text


def check_fast(x: Tensor, out: Tensor, given: Array, wanted: Array) -> str:
    found = np.empty_like(wanted)
    tvm.build([out], [x, out])(given, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    s = tvm.auto_schedule(out, HASWELL)
    return s.trace() + str(tvm.lower(s, [x, out], simple_mode=True))


@pytest.mark.parametrize("kind", ["both ends", "own term", "twice as fast", "own start"])
def test_what_does_not_go_on_is_computed_anew(kind: str) -> None:
    """A moving window; terms or a range that depend on the element; several first terms."""
    x = te.placeholder((4, 24), name="X")
    k = te.reduce_axis((0, 24), "k")
    reads: dict[str, Callable[[Any, Any], Any]] = {
        "both ends": lambda i, j: te.sum(x[i, k], axis=k, where=te.all(k <= j, k > j - 3)),
        "own term": lambda i, j: te.sum(x[i, k] * x[i, j], axis=k, where=k <= j),
        "twice as fast": lambda i, j: te.sum(x[i, k], axis=k, where=k <= 2 * j),
        "own start": lambda i, j: te.sum(x[i, k], axis=k, where=k <= j + 2),
    }
    out = te.compute((4, 24), reads[kind], name="R")
    given = np.random.default_rng(1).integers(-4, 5, (4, 24)).astype("float32")
    a, b = np.arange(24)[:, None], np.arange(24)
    inside = {
        "both ends": (a <= b) & (a > b - 3), "own term": a <= b, "twice as fast": a <= 2 * b,
        "own start": a <= b + 2,
    }[kind]  # fmt: skip
    wanted = given @ inside.astype("float32") * (given if kind == "own term" else 1)
    assert "accumulate" not in check(x, out, given, wanted, 1)


def test_long_sums_round_as_little_as_their_lanes() -> None:
    """A running sum of n terms along a row has the error of n / 32 additions and of five more."""
    given = np.random.default_rng(9).random((1, 1 << 16), dtype="float32")
    x = te.placeholder(given.shape, name="X")
    out = running(x, 1, te.sum, "k <= j")
    found = np.empty_like(given)
    tvm.build([out], [x, out])(given, found)
    exact = given.astype("float64").cumsum(1)
    additions = given.shape[1] / 32 + 5
    assert (np.abs(found - exact) <= additions * np.finfo("float32").eps / 2 * exact).all()


@pytest.mark.parametrize("size", [1, 7, 50])
def test_backwards_inside_of_rows(size: int) -> None:
    """The last block of a row that runs backwards stores nothing before the row's first element."""
    n = te.var("n")
    X = te.placeholder((3, n), name="X")
    Y = running(X, 1, te.sum, "k >= j")
    Z = te.compute((3, n), lambda i, j: Y[i, j] * 2, name="Z")
    f = tvm.build([Z], [X, Z], name="f", debug="bounds")
    x = np.random.default_rng(size).random((3, size), np.float32)
    z = np.empty_like(x)
    f(x, z)
    np.testing.assert_allclose(z, 2 * x[:, ::-1].cumsum(1)[:, ::-1], rtol=1e-5)


@pytest.mark.parametrize("length", [33, te.var("n")], ids=str)
def test_terms_that_are_counted_from_an_element_on(length: Any) -> None:
    """``sum over k in (0, n - j) of X[j + k]``: the terms of each element are those of the next,
    and one more."""
    x = te.placeholder((5, length), name="X")

    def element(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, length - j), "k")
        return te.sum(x[i, j + k] * x[i, j + k], axis=k)

    out = te.compute((5, length), element, name="R")
    assert "s[R].accumulate(" in tvm.auto_schedule(out, HASWELL).trace()
    given = np.random.default_rng(3).integers(-9, 9, (5, 33)).astype("float32")
    found = np.empty_like(given)
    tvm.build([out], [x, out])(given, found)
    wanted = np.flip(np.cumsum(np.flip(given * given, 1), 1), 1)
    np.testing.assert_array_equal(found, wanted)


def test_terms_with_weights_of_their_number_stay() -> None:
    x, w = te.placeholder((33,), name="X"), te.placeholder((33,), name="W")

    def element(j: Any) -> Any:
        k = te.reduce_axis((0, 33 - j), "k")
        return te.sum(x[j + k] * w[k], axis=k)

    out = te.compute((33,), element, name="R")
    assert "accumulate" not in tvm.auto_schedule(out, HASWELL).trace()
    given, weights = np.random.default_rng(3).integers(-9, 9, (2, 33)).astype("float32")
    found = np.empty_like(given)
    tvm.build([out], [x, w, out])(given, weights, found)
    np.testing.assert_array_equal(found, [given[j:] @ weights[: 33 - j] for j in range(33)])


@pytest.mark.parametrize("form", FORMS)
def test_conditions_that_read_elements(form: str) -> None:
    """No element is read where there is no term."""
    x = te.placeholder((41,), name="X")

    def element(j: Any) -> Any:
        k = te.reduce_axis((0, 41), name="k")
        return te.max(x[k], axis=k, where=te.all(x[k] < 0, FORMS[form][0](k, j)))

    y = te.compute((41,), element, name="Y")
    given = np.random.default_rng(7).standard_normal(41, "float32")
    wanted = expected(np.where(given < 0, given, -np.inf), 0, "max", form)
    assert "accumulate" in check(x, y, given, wanted, 41)
