"""Gradients of reductions that aren't sums, products or choices, against central differences of
numpy's fold of the same combination."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import Tensor

Array = npt.NDArray[Any]
F64 = "float64"
NUMPY = SimpleNamespace(max=np.maximum, exp=np.exp, sqrt=np.sqrt, sin=np.sin)


def _log_sum_exp(m: Any, a: Any, b: Any) -> Any:
    """Of maxima, and of sums of exponentials less the maximum."""
    top = m.max(a[0], b[0])
    return top, a[1] * m.exp(a[0] - top) + b[1] * m.exp(b[0] - top)


def _variance(m: Any, a: Any, b: Any) -> Any:
    """Of counts, means, and sums of squared deviations (Chan, Golub and LeVeque)."""
    n, d = a[0] + b[0], b[1] - a[1]
    part = b[0] / m.max(n, 1.0)
    return n, a[1] + d * part, a[2] + b[2] + d * d * a[0] * part


def _complex(m: Any, a: Any, b: Any) -> Any:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _matrix(m: Any, a: Any, b: Any) -> Any:
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
    )


# The identity, and the combination by the functions of a module.
COMBINATIONS: dict[str, tuple[tuple[float, ...], Callable[[Any, Any, Any], Any]]] = {
    "squares": ((0,), lambda m, a, b: (a[0] + b[0] * b[0],)),
    "decay": ((0,), lambda m, a, b: (a[0] * 0.9 + b[0],)),
    "length": ((0.5,), lambda m, a, b: (m.sqrt(a[0] * a[0] + b[0] * b[0]),)),
    "mean of two": ((0,), lambda m, a, b: ((a[0] + b[0]) * 0.5,)),
    "last": ((0,), lambda m, a, b: (b[0] + 0.0,)),
    "product from 2": ((2,), lambda m, a, b: (a[0] * b[0],)),
    "two products": ((1, 1), lambda m, a, b: (a[0] * b[0], a[1] * b[1])),
    "log-sum-exp": ((-1e30, 0), _log_sum_exp),
    "variance": ((0, 0, 0), _variance),
    "complex product": ((1, 0), _complex),
    "matrix product": ((1, 0, 0, 1), _matrix),
    "linear maps": ((1, 0), lambda m, a, b: (a[0] * b[0], a[1] * b[0] + b[1])),
    "sines": ((0.2,), lambda m, a, b: (m.sin(a[0]) + b[0],)),
}


def _reducer(name: str) -> Any:
    identity, combine = COMBINATIONS[name]
    return te.comm_reducer(
        lambda a, b: combine(te, a, b),
        lambda *types: tuple(te.const(each, t) for each, t in zip(identity, types, strict=True)),
        name="fold",
    )


def _folded(name: str, terms: list[Array], begin: list[Array] | None = None) -> Any:
    """The fold of terms along all axes but the first, and in the end the sum of all sines."""
    identity, combine = COMBINATIONS[name]
    rows = len(terms[0])
    state = tuple(begin or [np.full(rows, each, F64) for each in identity])
    rests = [term.reshape(rows, -1).T for term in terms]
    for term in zip(*rests, strict=True):
        state = combine(NUMPY, state, term)
    return sum(np.sin(each) * (i + 1) for i, each in enumerate(state))


def _sines(folds: list[Tensor]) -> Tensor:
    def element(i: Any) -> Any:
        parts = [te.sin(each[i]) * (n + 1.0) for n, each in enumerate(folds)]
        return sum(parts[1:], parts[0])

    made: Tensor = te.compute(folds[0].shape, element, name="L")
    return made


def _tensors(name: str, *shape: Any) -> list[Tensor]:
    return [te.placeholder(shape, F64, f"X{i}") for i in range(len(COMBINATIONS[name][0]))]


def _run(outputs: list[Tensor], inputs: list[Tensor], arrays: list[Array]) -> list[Array]:
    found = [np.full([int(n) for n in each.shape], np.nan) for each in outputs]
    tvm.build(outputs, [*inputs, *outputs])(*arrays, *found)
    return found


def _check(function: Callable[[list[Array]], Array], arrays: list[Array], found: Any) -> None:
    """Checks gradients of `function` along a random direction."""
    rng = np.random.default_rng(5)
    step = [rng.standard_normal(each.shape) for each in arrays]
    up, down = (
        np.sum(function([x + t * d for x, d in zip(arrays, step, strict=True)]))
        for t in (1e-6, -1e-6)
    )
    along = sum(float((g * d).sum()) for g, d in zip(found, step, strict=True))
    np.testing.assert_allclose(along, (up - down) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_folds_in_order(name: str) -> None:
    inputs, k, m = _tensors(name, 3, 2, 3), te.reduce_axis((0, 2), "k"), te.reduce_axis((0, 3), "m")
    reduce = _reducer(name)
    Y = te.compute((3,), lambda i: reduce(tuple(x[i, k, m] for x in inputs), axis=[k, m]), name="Y")
    L, H = _sines(list(Y) if isinstance(Y, (list, tuple)) else [Y]), te.placeholder((3,), F64, "H")
    arrays = [x + 0.2 for x in np.random.default_rng(0).random((len(inputs), 3, 2, 3))]
    head = np.array([1.0, -2, 0.5])
    found = _run(te.gradient(L, inputs, H), [*inputs, H], [*arrays, head])
    _check(lambda xs: _folded(name, xs) * head, arrays, found)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_folds_of_one_term(name: str) -> None:
    """The simplified stage has no reduction."""
    inputs, k = _tensors(name, 3, 1), te.reduce_axis((0, 1), "k")
    reduce = _reducer(name)
    Y = te.compute((3,), lambda i: reduce(tuple(x[i, k] for x in inputs), axis=k), name="Y")
    L, H = _sines(list(Y) if isinstance(Y, (list, tuple)) else [Y]), te.placeholder((3,), F64, "H")
    arrays = [x + 0.2 for x in np.random.default_rng(0).random((len(inputs), 3, 1))]
    head = np.array([1.0, -2, 0.5])
    found = _run(te.gradient(L, inputs, H), [*inputs, H], [*arrays, head])
    _check(lambda xs: _folded(name, xs) * head, arrays, found)


@pytest.mark.parametrize("name", ["squares", "complex product"])
def test_first_values_conditions_and_jacobians(name: str) -> None:
    inputs, k = _tensors(name, 3, 5), te.reduce_axis((0, 5), "k")
    begin, reduce = _tensors(name, 3), _reducer(name)

    def element(i: Any) -> Any:
        terms, first = (tuple(x(i, *at) for x in xs) for xs, at in ((inputs, [k]), (begin, [])))
        return reduce(terms, axis=k, where=k >= 2, init=first)

    Y = te.compute((3,), element, name="Y")
    L = _sines(list(Y) if isinstance(Y, (list, tuple)) else [Y])
    rng = np.random.default_rng(0)
    arrays = [rng.random(s) for s in ((3, 5), (3,)) for _ in inputs]
    found = _run(te.gradient(L, [*inputs, *begin]), [*inputs, *begin], arrays)
    count = len(inputs)
    _check(
        lambda xs: _folded(name, [x[:, 2:] for x in xs[:count]], xs[count:]),
        arrays, [each.sum(0) for each in found],
    )  # fmt: skip


def test_second_derivatives() -> None:
    (X,), k = _tensors("decay", 3, 5), te.reduce_axis((0, 5), "k")
    Y = te.compute((3,), lambda i: _reducer("length")((X[i, k],), axis=k)[0], name="Y")
    L = _sines([Y])
    H, G = te.placeholder((3,), F64, "H"), te.placeholder((3, 5), F64, "G")
    first = te.gradient(L, [X], H)
    second = te.gradient(first, [X], [G])
    x, g = np.random.default_rng(0).random((2, 3, 5)) + 0.1
    head = np.array([1.0, -2, 0.5])
    found = _run(second, [X, H, G], [x, head, g])
    _check(lambda xs: _run(first, [X, H], [xs[0], head])[0] * g, [x], found)


LENGTHS: dict[str, tuple[Callable[[Any], Any], Callable[[int], int]]] = {
    "longer": (lambda i: i + 1, lambda i: i + 1),
    "none": (lambda i: te.max(i - 1, 0), lambda i: max(i - 1, 0)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_folds_of_several_lengths(name: str) -> None:
    (X,), (length, known) = _tensors("length", 4, 4), LENGTHS[name]

    def element(i: Any) -> Any:
        k = te.reduce_axis((0, length(i)), "k")
        return _reducer("length")((X[i, k],), axis=k)[0]

    L = te.compute((4,), element, name="L")
    x = np.random.default_rng(0).random((4, 4))
    (found,) = _run(te.gradient(L, [X]), [X], [x])

    def value(xs: list[Array]) -> Array:
        rows = [[0.5, *xs[0][i, : known(i)]] for i in range(4)]
        return np.array([np.sqrt(np.sum(np.square(row))) for row in rows])

    _check(value, [x], [found.sum(0)])


def test_symbolic_extents() -> None:
    n, m = te.var("n"), te.var("m")
    (X,), k = _tensors("squares", n, m), te.reduce_axis((0, m), "k")
    Y = te.compute((n,), lambda i: _reducer("squares")((X[i, k],), axis=k)[0], name="Y")
    H = te.placeholder((n,), F64, "H")
    G = te.gradient(Y, [X], H)
    f = tvm.build(G, [X, H, *G])
    for shape in [(3, 5), (1, 1), (0, 4), (4, 0), (9, 17)]:
        x, head, found = np.random.random(shape), np.ones(shape[0]), np.full(shape, np.nan)
        f(x, head, found)
        np.testing.assert_allclose(found, 2 * x, rtol=1e-14)


def test_combinations_that_read() -> None:
    """``a * w + b``, from a first value."""
    (X,), (b, w) = _tensors("squares", 3, 5), (te.placeholder((3,), F64, n) for n in "bw")
    k = te.reduce_axis((0, 5), "k")

    def element(i: Any) -> Any:
        reduce = te.comm_reducer(lambda a, x: a * w[i] + x, lambda t: b[i], name="weighted")
        return reduce(X[i, k], axis=k)

    L = te.compute((3,), element, name="L")
    rng = np.random.default_rng(0)
    arrays = [rng.random(s) for s in ((3, 5), (3,), (3,))]
    found = _run(te.gradient(L, [X, b, w]), [X, b, w], arrays)

    def value(xs: list[Array]) -> Array:
        made = xs[1]
        for t in range(5):
            made = made * xs[2] + xs[0][:, t]
        return made

    _check(value, arrays, [each.sum(0) for each in found])


def test_lengths_from_data_are_refused() -> None:
    (X,), n = _tensors("squares", 3, 5), te.placeholder((3,), "int32", "n")

    def element(i: Any) -> Any:
        k = te.reduce_axis((0, n[i]), "k")
        return _reducer("squares")((X[i, k],), axis=k)[0]

    with pytest.raises(
        tvm.error.CompileError, match=r"Y: expected .*found that k has length n\[i\]"
    ):
        te.gradient(te.compute((3,), element, name="Y"), [X])
