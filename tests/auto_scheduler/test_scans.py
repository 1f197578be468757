"""What auto_schedule writes for scans: values against numpy and the interpreter, and the loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret

Array = np.ndarray[Any, Any]
HASWELL = "llvm -mcpu=haswell -num-cores=2"
Recurrence = tuple[list[Tensor], list[Tensor], Callable[..., list[Array]]]
"""Inputs, outputs, and the outputs' values."""


def powers(steps: int, n: int) -> Recurrence:
    A = te.placeholder((n, n), name="A")
    state = te.placeholder((steps, n, n), name="state")
    first = te.compute((1, n, n), lambda t, i, j: A[i, j], name="first")
    k = te.reduce_axis((0, n), "k")
    step = te.compute(
        (steps, n, n), lambda t, i, j: te.sum(state[t - 1, i, k] * A[k, j], axis=k), name="step"
    )

    def expected(a: Array) -> list[Array]:
        return [np.stack([np.linalg.matrix_power(a, t + 1) for t in range(steps)])]

    return [A], [te.scan(first, step, state, name="P")], expected


def recurrent(steps: Any, rows: int, n: int) -> Recurrence:
    """h[t] = tanh(h[t - 1] @ W + x[t])"""
    X, W = te.placeholder((steps, rows, n), name="X"), te.placeholder((n, n), name="W")
    state = te.placeholder((steps, rows, n), name="state")
    first = te.compute((1, rows, n), lambda t, i, j: X[0, i, j], name="first")
    k = te.reduce_axis((0, n), "k")
    product = te.compute(
        (steps, rows, n), lambda t, i, j: te.sum(state[t - 1, i, k] * W[k, j], axis=k), name="P"
    )
    step = te.compute(
        (steps, rows, n), lambda t, i, j: te.tanh(product[t, i, j] + X[t, i, j]), name="step"
    )

    def expected(x: Array, w: Array) -> list[Array]:
        made = x.copy()
        for t in range(1, len(x)):
            made[t] = np.tanh(made[t - 1] @ w + x[t])
        return [made]

    return [X, W], [te.scan(first, step, state, name="H")], expected


def lstm(steps: int, rows: int, n: int) -> Recurrence:
    """Two states: the new output reads the new cell, at the same time step."""
    X, W = te.placeholder((steps, 4, rows, n), name="X"), te.placeholder((4, n, n), name="W")
    shape = (steps, rows, n)
    hidden, cell = te.placeholder(shape, name="hidden"), te.placeholder(shape, name="cell")
    firsts = [
        te.compute((1, rows, n), lambda t, i, j: te.const(0.0), name=name) for name in ("h0", "c0")
    ]
    k = te.reduce_axis((0, n), "k")
    product = te.compute(
        (steps, 4, rows, n),
        lambda t, g, i, j: te.sum(hidden[t - 1, i, k] * W[g, k, j], axis=k),
        name="P",
    )
    gates = te.compute(
        (steps, 4, rows, n), lambda t, g, i, j: product[t, g, i, j] + X[t, g, i, j], name="gates"
    )
    new_cell = te.compute(
        shape,
        lambda t, i, j: (
            te.sigmoid(gates[t, 1, i, j]) * cell[t - 1, i, j]
            + te.sigmoid(gates[t, 0, i, j]) * te.tanh(gates[t, 2, i, j])
        ),
        name="new_cell",
    )
    output = te.compute(
        shape,
        lambda t, i, j: te.sigmoid(gates[t, 3, i, j]) * te.tanh(new_cell[t, i, j]),
        name="output",
    )
    outputs = te.scan(firsts, [output, new_cell], [hidden, cell], name="L")

    def expected(x: Array, w: Array) -> list[Array]:
        h, c = np.zeros((2, steps, rows, n))
        for t in range(1, steps):
            i, f, g, o = np.einsum("ik,gkj->gij", h[t - 1], w) + x[t]
            c[t] = c[t - 1] / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h[t] = np.tanh(c[t]) / (1 + np.exp(-o))
        return [h, c]

    return [X, W], outputs, expected


def filtered(steps: int, n: int) -> Recurrence:
    """y[t] = y[t - 1] / 2 - y[t - 2] / 4 + x[t]"""
    X, state = te.placeholder((steps, n), name="X"), te.placeholder((steps, n), name="state")
    first = te.compute((2, n), lambda t, i: X[t, i], name="first")
    step = te.compute(
        (steps, n), lambda t, i: state[t - 1, i] * 0.5 - state[t - 2, i] * 0.25 + X[t, i], name="s"
    )

    def expected(x: Array) -> list[Array]:
        made = x.copy()
        for t in range(2, len(x)):
            made[t] = made[t - 1] * 0.5 - made[t - 2] * 0.25 + x[t]
        return [made]

    return [X], [te.scan(first, step, state, name="Y")], expected


def centred(steps: int, n: int) -> Recurrence:
    """A mean for each step: a stage with no axis but time."""
    X, state = te.placeholder((steps, n), name="X"), te.placeholder((steps, n), name="state")
    first = te.compute((1, n), lambda t, i: X[t, i], name="first")
    k = te.reduce_axis((0, n), "k")
    mean = te.compute((steps,), lambda t: te.sum(state[t - 1, k] / n, axis=k), name="mean")
    step = te.compute((steps, n), lambda t, i: X[t, i] - mean[t] * state[t - 1, i], name="step")

    def expected(x: Array) -> list[Array]:
        made = x.copy()
        for t in range(1, len(x)):
            made[t] = x[t] - made[t - 1].mean() * made[t - 1]
        return [made]

    return [X], [te.scan(first, step, state, name="Y")], expected


def smoothed(rows: int, steps: int) -> Recurrence:
    """Along the last axis of the input and the output."""
    X, state = te.placeholder((rows, steps), name="X"), te.placeholder((steps, rows), name="state")
    first = te.compute((1, rows), lambda t, i: X[i, t], name="first")
    step = te.compute((steps, rows), lambda t, i: state[t - 1, i] * 0.5 + X[i, t], name="step")
    result: Any = te.scan(first, step, state, name="R")
    out = te.compute((rows, steps), lambda i, t: result[t, i], name="out")

    def expected(x: Array) -> list[Array]:
        made = x.copy()
        for t in range(1, steps):
            made[:, t] = made[:, t - 1] * 0.5 + x[:, t]
        return [made]

    return [X], [out], expected


def check(recurrence: Recurrence, *shapes: tuple[int, ...], interpreted: bool = True) -> str:
    """Results as numpy's, compiled and interpreted, of the schedule and of its replay."""
    inputs, outputs, expected = recurrence
    values = [0.4 * np.random.default_rng(7).standard_normal(s, dtype="float32") for s in shapes]
    wanted = expected(*values)
    s = tvm.auto_schedule(outputs, HASWELL)
    text = str(tvm.lower(s, [*inputs, *outputs], simple_mode=True))
    again = te.replay(s.trace(), outputs)
    assert str(tvm.lower(again, [*inputs, *outputs], simple_mode=True)) == text
    for fp in ("fast", "strict"):
        found = [np.full(each.shape, 99, "float32") for each in wanted]
        tvm.build(outputs, [*inputs, *outputs], fp=fp)(*values, *found)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    if not interpreted:
        return s.trace() + "\n" + text
    found = [np.full(each.shape, 99, "float32") for each in wanted]
    interpret(tvm.lower(s, [*inputs, *outputs], name="f")["f"], *values, *found)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    return s.trace() + "\n" + text


@pytest.mark.parametrize(("steps", "n"), [(4, 19), (3, 1), (2, 8), (1, 5)])
def test_a_product_a_step_runs_in_tiles(steps: int, n: int) -> None:
    text = check(powers(steps, n), (n, n))
    assert ("s.drop_time(P, [step])" if n > 1 else "s.drop_time(") in text
    assert n == 1 or "s.cache_write(step, 'local')" in text or "s.cache_write(s[step]" in text


@pytest.mark.parametrize(("rows", "n"), [(7, 19), (1, 24), (16, 2)])
def test_what_reads_a_product_takes_it_from_the_tile(rows: int, n: int) -> None:
    text = check(recurrent(5, rows, n), (5, rows, n), (n, n))
    assert "s.drop_time(H, [" in text
    assert rows < 7 or "s[P].compute_at(s[step], " in text


@pytest.mark.parametrize("size", [1, 2, 6])
def test_symbolic_numbers_of_steps(size: int) -> None:
    check(recurrent(te.size_var("m"), 3, 10), (size, 3, 10), (10, 10))


def test_weights_are_packed_before_the_first_step() -> None:
    n = 96
    X, W = te.placeholder((3, n, n), name="X"), te.placeholder((n, n), name="W")
    state = te.placeholder((3, n, n), name="state")
    first = te.compute((1, n, n), lambda t, i, j: X[0, i, j], name="first")
    k = te.reduce_axis((0, n), "k")
    step = te.compute(
        (3, n, n), lambda t, i, j: te.sum(state[t - 1, i, k] * W[j, k], axis=k), name="step"
    )

    def expected(x: Array, w: Array) -> list[Array]:
        return [np.stack([x[0], x[0] @ w.T, x[0] @ w.T @ w.T])]

    recurrence: Recurrence = [X, W], [te.scan(first, step, state, name="H")], expected
    text = check(recurrence, (3, n, n), (n, n), interpreted=False)
    assert text.index("W.global = allocate") < text.index("for H.idx in range")


def test_an_update_reads_another_of_the_same_step() -> None:
    text = check(lstm(4, 3, 9), (4, 4, 3, 9), (4, 9, 9))
    assert "s[P].compute_at(s[gates], " in text


def test_states_two_steps_before() -> None:
    check(filtered(7, 13), (7, 13))


def test_a_stage_with_no_axis_but_time() -> None:
    assert "mean" in check(centred(5, 11), (5, 11))


@pytest.mark.parametrize("shape", [(20, 33), (3, 40), (1, 9), (5, 1)])
def test_inputs_along_time_are_transposed_first(shape: tuple[int, int]) -> None:
    text = check(smoothed(*shape), shape)
    assert ("s.cache_read(X, 'global', [step.op" in text) == (shape[0] > 1 and shape[1] > 1)


def test_stages_read_at_several_steps_keep_their_axis_of_time() -> None:
    X, state = te.placeholder((6, 9), name="X"), te.placeholder((6, 9), name="state")
    first = te.compute((2, 9), lambda t, i: X[t, i], name="first")
    twice = te.compute((6, 9), lambda t, i: state[t - 1, i] * 2.0, name="twice")
    step = te.compute((6, 9), lambda t, i: twice[t, i] - twice[t - 1, 8 - i] + X[t, i], name="step")

    def expected(x: Array) -> list[Array]:
        made = x.copy()
        for t in range(2, 6):
            made[t] = 2 * made[t - 1] - 2 * made[t - 2, ::-1] + x[t]
        return [made]

    text = check(([X], [te.scan(first, step, state, name="R")], expected), (6, 9))
    assert "s.drop_time(R, [step])" in text


def test_what_is_the_same_at_all_steps_is_computed_once() -> None:
    """Also where it has the axes of the step's rows."""
    X, W = te.placeholder((5, 8), name="X"), te.placeholder((8, 30), name="W")
    k = te.reduce_axis((0, 30), "k")
    total = te.compute((8,), lambda i: te.sum(te.exp(W[i, k]), axis=k), name="total")
    state = te.placeholder((5, 8), name="state")
    first = te.compute((1, 8), lambda t, i: X[t, i], name="first")
    step = te.compute((5, 8), lambda t, i: state[t - 1, i] / total[i] + X[t, i], name="step")

    def expected(x: Array, w: Array) -> list[Array]:
        made = x.copy()
        for t in range(1, 5):
            made[t] = made[t - 1] / np.exp(w).sum(1) + x[t]
        return [made]

    text = check(([X, W], [te.scan(first, step, state, name="R")], expected), (5, 8), (8, 30))
    assert text.index("exp(") < text.index("for R.idx in range")


def test_stages_by_hand_keep_their_axis_of_time() -> None:
    inputs, outputs, expected = recurrent(5, 3, 17)
    s: Any = te.create_schedule(outputs[0].op)
    step: Any = outputs[0].op.input_tensors[1]
    time, i, j = step.op.axis
    s[step].vectorize(s[step].split(j, 4)[1])
    tvm.auto_schedule(s, HASWELL)
    assert s[step].leaf_iter_vars[:2] == [time, i]
    assert "s.drop_time(H, [P])" in s.trace()
    x = 0.4 * np.random.default_rng(1).standard_normal((5, 3, 17), dtype="float32")
    w = 0.4 * np.random.default_rng(2).standard_normal((17, 17), dtype="float32")
    found = np.empty_like(x)
    tvm.build(s, [*inputs, *outputs])(x, w, found)
    np.testing.assert_allclose(found, expected(x, w)[0], rtol=2e-5, atol=2e-5)


def test_drop_time_refuses() -> None:
    _, outputs, _ = recurrent(5, 3, 17)
    s: Any = te.create_schedule(outputs[0].op)
    step: Any = outputs[0].op.input_tensors[1]
    with pytest.raises(tvm.CompileError, match=r"^drop_time of step: expected a result of te"):
        s.drop_time(step)
    s[step].split(step.op.axis[1], 2)
    with pytest.raises(tvm.CompileError, match=r"^drop_time of H: .* as they began, got step"):
        s.drop_time(outputs[0], [step])
    s.drop_time(outputs[0])
    assert len(s[step].op.axis) == 3


def test_updates_are_read_at_the_step_that_is_computed() -> None:
    X = te.placeholder((6, 4), name="X")
    a, b = te.placeholder((6, 4), name="a"), te.placeholder((6, 4), name="b")
    firsts = [te.compute((2, 4), lambda t, i: X[t, i], name=name) for name in ("a0", "b0")]
    one = te.compute((6, 4), lambda t, i: a[t - 1, i] + X[t, i], name="one")
    for back, is_known in ((0, True), (1, False)):
        two = te.compute((6, 4), lambda t, i, back=back: one[t - back, i] + b[t - 1, i], name="two")
        results = te.scan(firsts, [one, two], [a, b], name="R")
        s = te.create_schedule(results[0].op)
        if is_known:
            tvm.lower(s, [X, *results])
            continue
        with pytest.raises(tvm.CompileError, match=r"^two: expected to read the update one at the"):
            tvm.lower(s, [X, *results])


def test_a_stage_of_the_step_that_nothing_needs() -> None:
    """Simplified, the update reads a stage between the state and itself no more."""
    X = te.placeholder((5, 8), "int32", name="X")
    state = te.placeholder((5, 8), "int32", name="state")
    first = te.compute((1, 8), lambda t, i: X[t, i], name="first")
    between = te.compute((5, 8), lambda t, i: state[t - 1, i] * 3, name="between")
    step = te.compute(
        (5, 8),
        lambda t, i: state[t - 1, i] + X[t, i] + te.if_then_else(i < 8, 0, between[t, i]),
        name="step",
    )
    S = te.scan(first, step, state, name="S")
    x, y = np.arange(40, dtype="int32").reshape(5, 8), np.empty((5, 8), "int32")
    tvm.build(S, [X, S])(x, y)
    np.testing.assert_array_equal(y, x.cumsum(0))
    s = te.create_schedule(S.op)
    s[step].simplify()
    tvm.build(s, [X, S])(x, y[::-1])
    np.testing.assert_array_equal(y[::-1], x.cumsum(0))


def solved(n: int, b: int, form: str) -> tuple[Tensor, Tensor, Tensor]:
    """Triangular systems, row after row: each row reads all solved ones."""
    L, X = te.placeholder((b, n, n), name="L"), te.placeholder((b, n), name="X")
    state = te.placeholder((n, b), name="state")
    first = te.compute((1, b), lambda t, i: X[i, 0] / L[i, 0, 0], name="first")

    def known(t: Any, i: Any) -> Any:
        k = te.reduce_axis((0, n if "where" in form else t), "k")
        row = t - 1 - k if "backwards" in form else k
        conditions = {"where": k < t, "where, too late": k <= t}
        return te.sum(L[i, t, row] * state[row, i], axis=k, where=conditions.get(form))

    sums = te.compute((n, b), known, name="sums")
    step = te.compute((n, b), lambda t, i: (X[i, t] - sums[t, i]) / L[i, t, t], name="step")
    made: Any = te.scan(first, step, state, inputs=[L, X], name="S")
    return L, X, made


@pytest.mark.covering(2)
@pytest.mark.parametrize("auto_schedule", [True, False])
@pytest.mark.parametrize("form", ["range", "where", "range backwards"])
@pytest.mark.parametrize(("n", "b"), [(9, 5), (1, 3), (4, 70), (6, 0)])
def test_sums_over_all_earlier_steps(n: int, b: int, form: str, auto_schedule: bool) -> None:
    random = np.random.default_rng(0)
    lower = np.tril(random.random((b, n, n), dtype="float32")) + np.eye(n, dtype="float32")
    x = random.random((b, n), dtype="float32")
    L, X, S = solved(n, b, form)
    found = np.full((n, b), np.nan, "float32")
    tvm.build([S], [L, X, S], auto_schedule=auto_schedule)(lower, x, found)
    wanted = np.linalg.solve(lower.astype("float64"), x.astype("float64")[..., None])[..., 0].T
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_sums_reach_no_later_step() -> None:
    with pytest.raises(
        tvm.CompileError, match=r"^sums: expected to read state at a time step before the one"
    ):
        tvm.build([solved(4, 3, "where, too late")[2]], [*solved(4, 3, "where, too late")])


@pytest.mark.parametrize("size", [1, 20])
def test_an_input_of_the_step_before_is_transposed_as_a_whole(size: int) -> None:
    """The axis of time has a step more than the input has elements along it."""
    X = te.placeholder((20, size), "uint8", name="X")
    state = te.placeholder((size + 1, 20), "uint32", name="state")
    first = te.compute((1, 20), lambda t, i: te.const(5, "uint32"), name="first")
    step = te.compute(
        (size + 1, 20),
        lambda t, i: (state[t - 1, i] ^ X[i, t - 1].astype("uint32")) * te.const(33, "uint32"),
        name="step",
    )
    scan = te.scan(first, step, state, name="H")
    H = te.compute((20,), lambda i: scan[size, i], name="last")
    x = np.random.default_rng(0).integers(0, 256, (20, size), "uint8")
    found = np.empty(20, "uint32")
    tvm.build([H], [X, H], HASWELL)(x, found)
    wanted = np.full(20, 5, "uint32")
    for each in x.T:
        wanted = (wanted ^ each) * np.uint32(33)
    np.testing.assert_array_equal(found, wanted)
    if size > 1:
        assert "X_global = s.cache_read(X" in tvm.auto_schedule(H, HASWELL).trace()


@pytest.mark.parametrize("target", [HASWELL, "llvm"])
@pytest.mark.parametrize(
    ("form", "is_copied"), [("along time", True), ("in order", False), ("both", False)]
)
def test_operands_are_copied_in_the_order_of_the_steps(
    form: str, is_copied: bool, target: str
) -> None:
    """An input whose neighbours lie along time, each element of which is read for several results,
    is copied once, before the first step; one that lies in order is read as it lies, and so is one
    that is read in both orders."""
    steps, n, m = 17, 17, 5
    shape = (steps, n) if form == "in order" else (n, steps)
    X = te.placeholder(shape, name="X")
    state = te.placeholder((steps, m, n), name="state")

    def given(t: Any, i: Any) -> Any:
        across, along = X[i, t], X[t, i]
        return {"along time": across, "in order": along, "both": across - 2.0 * along}[form]

    first = te.compute((1, m, n), lambda t, j, i: given(t, i), name="first")
    step = te.compute(
        (steps, m, n), lambda t, j, i: te.max(state[t - 1, j, i] * -0.5, given(t, i)), name="step"
    )
    H = te.scan(first, step, state, name="H")
    x = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
    terms = {"along time": x.T, "in order": x, "both": x.T - 2 * x if n == steps else x}[form]
    expected = np.empty((steps, m, n), "float32")
    expected[0] = terms[0]
    for t in range(1, steps):
        expected[t] = np.maximum(expected[t - 1] * np.float32(-0.5), terms[t])
    h = np.empty((steps, m, n), "float32")
    tvm.build([H], [X, H], target)(x, h)
    np.testing.assert_array_equal(h, expected)
    s = tvm.auto_schedule(H, target)
    assert ("X_global = s.cache_read(X" in s.trace()) == is_copied
    if is_copied:
        text = str(tvm.lower(s, [X, H]))
        assert text.index("X.global[") < text.index("for H.idx")


def cone(
    shape: tuple[int, ...], offsets: list[tuple[int, ...]], reads: list[tuple[int, ...]], how: str
) -> tuple[Tensor, Tensor, Callable[[Array], Array]]:
    """Steps that add neighbours, the indices of which are clamped or asked for; of the last step
    only some places are read. With two steps back, the first neighbour is that of t - 2."""
    steps = 12
    X = te.placeholder(shape, name="X")
    state = te.placeholder((steps, *shape), name="state")
    back = 2 if how == "two steps back" else 1

    def neighbour(t: Any, at: tuple[Any, ...], by: tuple[int, ...], before: int) -> Any:
        places = [i + d for i, d in zip(at, by, strict=True)]
        clamped = [te.max(te.min(i, n - 1), 0) for i, n in zip(places, shape, strict=True)]
        if how != "asked":
            return state(t - before, *clamped)
        inside = [te.all(i >= 0, i < n) for i, n in zip(places, shape, strict=True)]
        return te.if_then_else(te.all(*inside), state(t - 1, *places), te.const(0.0))

    def element(t: Any, *at: Any) -> Any:
        first, *others = (
            neighbour(t, at, by, back if place == 0 else 1) for place, by in enumerate(offsets)
        )
        return sum(others, first) * 0.5

    first = te.compute((back, *shape), lambda t, *at: X(*at) + t.astype("float32"), name="first")
    step = te.compute((steps, *shape), element, name="step")
    scan = te.scan(first, step, state, name="H")
    last = te.compute(
        (len(reads),),
        lambda i: sum((scan(steps - 1, *r) * (i.equal(n)).astype("float32")
                       for n, r in enumerate(reads[1:], 1)),
                      scan(steps - 1, *reads[0]) * (i.equal(0)).astype("float32")),
        name="L",
    )  # fmt: skip

    def moved(x: Array, by: tuple[int, ...]) -> Array:
        places = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij")
        made = [p + d for p, d in zip(places, by, strict=True)]
        clamped = [np.clip(p, 0, n - 1) for p, n in zip(made, shape, strict=True)]
        inside = np.all([(p >= 0) & (p < n) for p, n in zip(made, shape, strict=True)], axis=0)
        return np.where(inside | (how != "asked"), x[tuple(clamped)], 0)

    def expected(x: Array) -> Array:
        parts = [x.astype("float64") + t for t in range(back)]
        for _ in range(back, steps):
            neighbours = [
                moved(parts[-back if place == 0 else -1], by) for place, by in enumerate(offsets)
            ]
            parts.append(np.sum(neighbours, axis=0) * 0.5)
        return np.array([parts[-1][each] for each in reads])

    return X, last, expected


@pytest.mark.parametrize("how", ["clamped", "asked", "two steps back"])
@pytest.mark.parametrize(
    ("shape", "offsets", "reads", "is_cone"),
    [
        ((14,), [(0,), (1,)], [(0,)], True),  # a tree: up to n - t
        ((45,), [(-1,), (0,), (1,)], [(20,), (23,)], True),
        ((45,), [(-1,), (0,)], [(44,)], True),
        ((6, 29), [(0, 0), (0, 2)], [(3, 0), (5, 1)], True),  # and those of rows from 3 on
        ((9, 14), [(0, 0), (1, 1)], [(0, 0)], True),
        ((14,), [(-3,), (3,)], [(7,)], False),  # nearly all are needed
        ((14,), [(0,)], [(5,)], True),
    ],
    ids=str,
)
def test_steps_compute_the_elements_that_later_ones_read(
    shape: tuple[int, ...],
    offsets: list[tuple[int, ...]],
    reads: list[tuple[int, ...]],
    is_cone: bool,
    how: str,
) -> None:
    X, last, expected = cone(shape, offsets, reads, how)
    x = np.random.default_rng(0).integers(-9, 10, shape).astype("float32")
    wanted = expected(x)
    s = tvm.auto_schedule(last, HASWELL)
    assert ("set_store_predicate(" in s.trace()) == is_cone
    again = te.replay(s.trace(), [last.op])
    for schedule in (s, again, [last]):
        found = np.empty(len(reads), "float32")
        tvm.build(schedule, [X, last])(x, found)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_results_of_a_scan_are_whole() -> None:
    """All steps are the caller's, or are read by another stage."""
    X, _, _ = cone((14,), [(0,), (1,)], [(0,)], "clamped")
    state = te.placeholder((5, 14), name="state")
    first = te.compute((1, 14), lambda t, i: X[i], name="first")
    step = te.compute(
        (5, 14), lambda t, i: state[t - 1, i] + state[t - 1, te.min(i + 1, 13)], name="step"
    )
    H = te.scan(first, step, state, name="H")
    L = te.compute((5,), lambda t: H[t, 0], name="L")
    M = te.compute((1,), lambda i: H[4, 0], name="M")
    for outputs in ([L], [H, M], [M, L]):
        assert "set_store_predicate" not in tvm.auto_schedule(outputs, HASWELL).trace()
    assert "set_store_predicate" in tvm.auto_schedule([M], HASWELL).trace()


def test_any_number_of_trees() -> None:
    """Along an axis of symbolic extent, all places are needed."""
    n, steps = te.var("n"), 20
    X, state = te.placeholder((steps, n), name="X"), te.placeholder((steps, steps, n), name="state")
    first = te.compute((1, steps, n), lambda t, i, b: X[i, b], name="first")
    step = te.compute(
        (steps, steps, n),
        lambda t, i, b: state[t - 1, i, b] - state[t - 1, te.min(i + 1, steps - 1), b],
        name="step",
    )
    H = te.scan(first, step, state, name="H")
    L = te.compute((n,), lambda b: H[steps - 1, 0, b], name="L")
    trace = tvm.auto_schedule(L, HASWELL).trace()
    whole, part = trace.split("s.compute_in_parts(")
    assert whole.count("set_store_predicate(i.var <= ") == 1 and "b.var" not in whole
    assert part.count("set_store_predicate(i.var <= ") == 1 and "b.var" not in part
    f = tvm.build([L], [X, L])
    for size in (1, 7, 40):
        x = np.random.default_rng(0).integers(-3, 4, (steps, size)).astype("float32")
        found = np.empty(size, "float32")
        f(x, found)
        np.testing.assert_array_equal(found, (-1.0) ** (steps - 1) * np.diff(x, steps - 1, 0)[0])
