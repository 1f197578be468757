"""Batches of scans that are computed in parts: drawn programs against numpy and the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import parts
from minitvm.te.schedules.batches import batch_along
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import const_int
from minitvm.tir.interpreter import interpret

Array = np.ndarray[Any, Any]
HASWELL = "llvm -mcpu=haswell -num-cores=2"
SIZES = (0, 1, 3, 16, 17, 40, 65)


class Drawn:
    """A scan over `B` systems of n numbers each, by numbers of `random`. The systems are the first
    or the last dimension of a state, and any dimension of the input."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.B, self.n = int(random.choice(SIZES)), int(random.integers(1, 5))
        self.back = int(random.integers(1, 3))
        self.T = self.back + int(random.integers(1, 6))
        self.extent: Any = te.var("b") if random.random() < 0.4 else self.B
        self.is_first = bool(random.random() < 0.5)
        self.inputs: list[Tensor] = []
        self.values: list[Array] = []
        order = [(0, 1, 2), (1, 0, 2), (1, 2, 0)][int(random.integers(3))]  # of b, t, i
        sizes, extents = (self.B, self.T, self.n), (self.extent, self.T, self.n)
        self.X = self.input("X", [extents[i] for i in order], [sizes[i] for i in order])
        self.order = order
        x = self.values[0].transpose([order.index(i) for i in (1, 0, 2)])
        self.x = x.astype("float64")
        self.W = self.input("W", [self.n, self.n], [self.n, self.n])
        self.V = self.input("V", [self.extent], [self.B])
        self.chosen = te.placeholder((self.extent,), "int32", name="chosen")
        self.inputs.append(self.chosen)
        self.values.append(random.integers(0, self.n, self.B).astype("int32"))
        self.states = [self.placed(f"s{j}", self.T) for j in range(int(random.integers(1, 4)))]

    def input(self, name: str, shape: list[Any], sizes: list[int]) -> Tensor:
        made: Tensor = te.placeholder(tuple(shape), name=name)
        self.inputs.append(made)
        self.values.append(0.5 * self.random.standard_normal(sizes).astype("float32"))
        return made

    def placed(self, name: str, steps: int) -> Tensor:
        shape = (self.extent, self.n) if self.is_first else (self.n, self.extent)
        made: Tensor = te.placeholder((steps, *shape), name=name)
        return made

    def at(self, tensor: Tensor, t: Any, b: Any, i: Any) -> Any:
        return tensor(t, b, i) if self.is_first else tensor(t, i, b)

    def given(self, t: Any, b: Any, i: Any) -> Any:
        return self.X(*((b, t, i)[each] for each in self.order))

    def computed(self, name: str, steps: int, element: Callable[..., Any]) -> Tensor:
        shape = (steps, self.extent, self.n) if self.is_first else (steps, self.n, self.extent)

        def turned(t: Any, a: Any, b: Any) -> Any:
            return element(t, a, b) if self.is_first else element(t, b, a)

        made: Tensor = te.compute(shape, turned, name=name)
        return made

    def step(self, j: int) -> tuple[Callable[..., Any], Callable[[list[Array], int], Array]]:
        """The element of an update, and its values by numpy."""
        other = int(self.random.integers(len(self.states)))
        state, own, at = self.states[other], self.states[j], self.at
        n, back, x, given = self.n, self.back, self.x, self.given
        w, v, chosen = (each.astype("float64") for each in self.values[1:4])
        k = te.reduce_axis((0, n), "k")
        kind = int(self.random.integers(6))
        if kind == 0:
            return (
                lambda t, b, i: te.max(at(own, t - back, b, i), at(state, t - 1, b, i) * self.V[b]),
                lambda S, t: np.maximum(S[j][t - back], S[other][t - 1] * v[:, None]),
            )
        if kind == 1:
            product = self.computed(
                f"P{j}",
                self.T,
                lambda t, b, i: te.sum(at(state, t - 1, b, k) * self.W[k, i], axis=k),
            )
            return (
                lambda t, b, i: te.tanh(at(product, t, b, i) + given(t, b, i)),
                lambda S, t: np.tanh(S[other][t - 1] @ w + x[t]),
            )
        if kind == 2:
            near = np.minimum(np.arange(n) + 1, n - 1)
            return (
                lambda t, b, i: at(state, t - 1, b, te.min(i + 1, n - 1)) * 0.5 + given(t, b, i),
                lambda S, t: S[other][t - 1][:, near] * 0.5 + x[t],
            )
        if kind == 3:
            return (
                lambda t, b, i: at(state, t - 1, b, self.chosen[b]) * 0.5 + self.W[i, 0],
                lambda S, t: (
                    S[other][t - 1][np.arange(len(v)), chosen.astype(int)][:, None] * 0.5 + w[:, 0]
                ),
            )
        if kind == 4:
            r = te.reduce_axis((0, self.T), "r")
            known = self.computed(
                f"K{j}",
                self.T,
                lambda t, b, i: te.sum(at(state, r, b, i) * 0.25, axis=r, where=r < t),
            )
            return (
                lambda t, b, i: at(known, t, b, i) - given(t, b, i),
                lambda S, t: S[other][:t].sum(0) * 0.25 - x[t],
            )
        return (
            lambda t, b, i: te.if_then_else(
                given(t, b, i) > 0, at(own, t - 1, b, i), at(state, t - 1, b, n - 1 - i) * 0.5
            ),
            lambda S, t: np.where(x[t] > 0, S[j][t - 1], S[other][t - 1][:, ::-1] * 0.5),
        )

    def program(self) -> tuple[list[Tensor], list[Array]]:
        """The outputs, and their values."""
        count, T, x = len(self.states), self.T, self.x
        first = partial(self.computed, steps=self.back)
        inits = [
            first(f"f{j}", element=lambda t, b, i, j=j: self.given(t, b, i) * (j + 0.5) + self.V[b])
            for j in range(count)
        ]
        steps = [self.step(j) for j in range(count)]
        updates = [self.computed(f"u{j}", T, element) for j, (element, _) in enumerate(steps)]
        made: Any = te.scan(inits, updates, self.states, name="R")
        R = made if isinstance(made, list) else [made]
        S = [np.zeros((T, self.B, self.n)) for _ in range(count)]
        for j, each in enumerate(S):
            each[: self.back] = x[: self.back] * (j + 0.5) + self.values[2][:, None]
        for t in range(self.back, T):
            new = [values(S, t) for _, values in steps]
            for each, part in zip(S, new, strict=True):
                each[t] = part
        return self.read(R, S)

    def read(self, R: list[Tensor], S: list[Array]) -> tuple[list[Tensor], list[Array]]:
        """Outputs that read a scan: all of it, its last step, or a scan backwards."""
        T, n, b = self.T, self.n, self.extent
        how = int(self.random.integers(4))
        if how == 0:
            return R, S if self.is_first else [each.swapaxes(1, 2) for each in S]
        if how == 1:
            made = [
                te.compute((n, b), lambda i, b, each=each: self.at(each, T - 1, b, i) * 2.0)
                for each in R
            ]
            return made, [each[-1].T * 2 for each in S]
        if how == 2:
            L = te.compute((b, n, T), lambda b, i, t: self.at(R[-1], t, b, i) + self.V[b])
            return [L], [(S[-1] + self.values[2][:, None]).transpose(1, 2, 0)]
        z = te.placeholder((T, b), name="z")
        z0 = te.compute((1, b), lambda t, b: self.at(R[0], T - 1, b, 0), name="z0")
        step = te.compute(
            (T, b), lambda t, b: z[t - 1, b] * 0.5 + self.at(R[0], T - 1 - t, b, n - 1), name="zz"
        )
        found = np.zeros((T, self.B))
        found[0] = S[0][-1][:, 0]
        for t in range(1, T):
            found[t] = found[t - 1] * 0.5 + S[0][T - 1 - t][:, n - 1]
        back: Any = te.scan(z0, step, z, name="Z")
        return [back], [found]


def in_parts_of(size: int, *, is_turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all batches be computed in parts of a size."""

    def factor(outputs: Any, batch: Any, target: Any, *, in_lanes: bool) -> int | None:
        extent = const_int(batch.extent)
        return None if extent is not None and extent < size else size

    monkeypatch.setattr(parts, "_factor", factor)
    if is_turned:
        monkeypatch.setattr(parts, "_are_lanes", lambda *_: True)


@pytest.mark.covering(3)
@pytest.mark.parametrize("seed", range(16))
def test_drawn_scans_in_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    drawn = Drawn(random)
    outputs, wanted = drawn.program()
    in_parts_of(int(random.choice([1, 3, 8, 16])), is_turned=seed % 3 == 0, monkeypatch=monkeypatch)
    s = tvm.auto_schedule(outputs, HASWELL)
    if drawn.B >= 16:
        assert s.parts is not None
    assert te.replay(s.trace(), outputs).trace() == s.trace()
    arguments = [*drawn.inputs, *outputs]
    found = [np.full(each.shape, 99, "float32") for each in wanted]
    tvm.build(s, arguments, HASWELL)(*drawn.values, *found)
    again = [np.full(each.shape, 99, "float32") for each in wanted]
    interpret(tvm.lower(s, arguments, name="f")["f"], *drawn.values, *again)
    for a, b, c in zip(found, again, wanted, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(b, c, rtol=1e-4, atol=1e-4)


def smoothed(steps: int, extent: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The last of some steps of a mean of n systems."""
    X = te.placeholder((steps, extent), name="X")
    state = te.placeholder((steps, extent), name="state")
    first = te.compute((1, extent), lambda t, b: X[t, b] * 0.5, name="first")
    step = te.compute(
        (steps, extent), lambda t, b: state[t - 1, b] * 0.5 + X[t, b] * 0.5, name="step"
    )
    H: Any = te.scan(first, step, state, name="H")
    return X, te.compute((extent,), lambda b: H[steps - 1, b], name="L"), H


def test_states_that_no_cache_holds_are_computed_in_parts() -> None:
    for extent, is_in_parts in ((1 << 20, True), (64, False), (te.var("n"), True)):
        _, L, _ = smoothed(50, extent)
        assert (tvm.auto_schedule(L, HASWELL).parts is not None) == is_in_parts


@pytest.mark.parametrize("size", [0, 1, 15, 16, 33, 100])
def test_the_rest_of_a_batch(size: int) -> None:
    X, L, _ = smoothed(6, te.var("n"))
    s = te.create_schedule(L.op)
    part = te.create_schedule(smoothed(6, 16)[1].op)
    s.compute_in_parts(0, 16, part.trace())
    assert te.replay(s.trace(), [L]).trace() == s.trace()
    text = str(tvm.lower(s, [X, L], simple_mode=True))
    assert "for part in parallel(n // 16)" in text and "H = allocate(float32[2, 16])" in text
    x, found = np.random.default_rng(0).random((6, size), "float32"), np.empty(size, "float32")
    tvm.build(s, [X, L])(x, found)
    wanted = x[0] * 0.5
    for each in x[1:]:
        wanted = wanted * 0.5 + each * 0.5
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_triangular_systems_are_turned_part_by_part() -> None:
    n, B = 8, 1024
    A, X = te.placeholder((B, n, n), name="A"), te.placeholder((B, n), name="X")
    state = te.placeholder((n, B), name="state")
    first = te.compute((1, B), lambda t, b: X[b, 0] / A[b, 0, 0], name="first")
    k = te.reduce_axis((0, n), "k")
    sums = te.compute(
        (n, B), lambda t, b: te.sum(A[b, t, k] * state[k, b], axis=k, where=k < t), name="sums"
    )
    step = te.compute((n, B), lambda t, b: (X[b, t] - sums[t, b]) / A[b, t, t], name="step")
    S: Any = te.scan(first, step, state, name="S")
    Y = te.compute((B, n), lambda b, i: S[i, b], name="Y")
    trace = tvm.auto_schedule(Y, HASWELL).trace()
    assert "s.compute_in_parts(0, " in trace and "A_lanes" in trace
    random = np.random.default_rng(0)
    a = np.tril(random.random((B, n, n), "float32")) + 2 * np.eye(n, dtype="float32")
    x, y = random.random((B, n), "float32"), np.empty((B, n), "float32")
    tvm.build([Y], [A, X, Y], HASWELL)(a, x, y)
    np.testing.assert_allclose(y, np.linalg.solve(a, x[..., None])[..., 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["neighbour", "sum", "place", "element", "range"])
def test_dimensions_along_which_elements_depend_on_each_other(how: str) -> None:
    T, n = 5, 40
    X, state = te.placeholder((T, n), name="X"), te.placeholder((T, n), name="state")
    lengths = te.placeholder((n,), "int32", name="lengths")
    first = te.compute((1, n), lambda t, b: X[t, b], name="first")
    k = te.reduce_axis((0, n), "k")
    total = te.compute((T,), lambda t: te.sum(state[t - 1, k], axis=k), name="total")

    def element(t: Any, b: Any) -> Any:
        before = state[t - 1, b] + X[t, b]
        return {
            "neighbour": before + state[t - 1, te.max(b - 1, 0)],
            "sum": before + total[t],
            "place": before + b.astype("float32"),
            "element": before + X[0, 0],
            "range": before + state[t - 1, te.max(te.min(lengths[b], n - 1), 0)],
        }[how]

    step = te.compute((T, n), element, name="step")
    S: Any = te.scan(first, step, state, name="S")
    assert batch_along([S.op], 0) is None
    assert batch_along([S.op], 1) is None
    with pytest.raises(tvm.CompileError, match=r"^compute_in_parts: expected a dimension of S alo"):
        te.create_schedule(S.op).compute_in_parts(1, 4, "")


def test_compute_in_parts_refuses() -> None:
    _, L, _ = smoothed(6, 40)
    part = te.create_schedule(smoothed(6, 16)[1].op).trace()
    s: Any = te.create_schedule(L.op)
    for dimension in (1, -1, "b"):
        with pytest.raises(tvm.CompileError, match=r"^compute_in_parts: expected a dimension of L"):
            s.compute_in_parts(dimension, 16, part)
    for factor in (0, 41, 1.5):
        with pytest.raises(
            tvm.CompileError, match=r"^compute_in_parts: expected the number of ele"
        ):
            s.compute_in_parts(0, factor, part)
    with pytest.raises(tvm.CompileError, match=r"^compute_in_parts: expected the trace of a sche"):
        s.compute_in_parts(0, 16, s)
    s.compute_in_parts(0, 16, part)
    with pytest.raises(tvm.CompileError, match=r"^compute_in_parts: expected a schedule without v"):
        s.compute_in_parts(0, 16, part)
    with pytest.raises(
        tvm.CompileError, match=r"^specialize: expected a schedule that computes no"
    ):
        s.specialize(True, te.create_schedule(L.op))


def test_parts_beside_stages_that_are_computed_ahead_are_refused() -> None:
    X, W = te.placeholder((6, 20), name="X"), te.placeholder((6,), name="W")
    Y = te.compute((6, 20), lambda t, b: X[t, b] * W[t], name="Y")
    s: Any = te.create_schedule(Y.op)
    s[s.cache_read(W, "global", [Y])].compute_ahead()
    s.compute_in_parts(1, 4, "")
    with pytest.raises(tvm.CompileError, match=r"compute_in_parts: expected no stage that is"):
        tvm.build(s, [X, W, Y])
