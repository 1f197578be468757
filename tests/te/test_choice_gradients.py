"""Gradients of nested choices whose branches share values: against torch, and their size."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.tree import walk_once

torch = pytest.importorskip("torch")

F64, N = "float64", 40


def _lazily(condition: Any, a: Any, b: Any) -> Any:
    return te.if_then_else(condition, a, b)


# Each with torch's. Both sides of all values that are drawn are finite.
CHOICES: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda p, q, a, b: _lazily(p > q, a, b), lambda p, q, a, b: torch.where(p > q, a, b)),
    (lambda p, q, a, b: tir.Select(p > q, a, b), lambda p, q, a, b: torch.where(p > q, a, b)),
    (lambda p, q, a, b: te.max(a, b), lambda p, q, a, b: torch.maximum(a, b)),
    (lambda p, q, a, b: te.min(a, b) * p, lambda p, q, a, b: torch.minimum(a, b) * p),
    (lambda p, q, a, b: a * b, lambda p, q, a, b: a * b),
    (lambda p, q, a, b: te.sin(a) + b, lambda p, q, a, b: torch.sin(a) + b),
]


def _drawn(seed: int) -> tuple[list[Tensor], Tensor, Callable[..., Any]]:
    """A program in which any value may be used in any later one."""
    drawn = random.Random(seed)
    steps = [
        (drawn.choice(CHOICES), [drawn.randrange(i + 3) for _ in range(4)])
        for i in range(drawn.randint(2, 9))
    ]

    def result(which: int, *values: Any) -> Any:
        made = list(values)
        for choice, places in steps:
            made.append(choice[which](*(made[at] for at in places)))
        return made[-1]

    inputs = [te.placeholder((N,), F64, name=name) for name in "XYZ"]
    made = te.compute((N,), lambda i: result(0, *(each[i] for each in inputs)), name="made")
    return inputs, made, lambda *values: result(1, *values)


@pytest.mark.covering(1)
@pytest.mark.parametrize("seed", range(12))
def test_random_choices(seed: int) -> None:
    inputs, made, theirs = _drawn(seed)
    head = te.placeholder((N,), F64, name="H")
    adjoints = te.gradient(made, inputs, head)
    f = tvm.build(adjoints, [*inputs, head, *adjoints], name="adjoints")
    rng = np.random.default_rng(seed)
    *arrays, h = (rng.uniform(-1.5, 1.5, N) for _ in range(4))
    found = [np.empty(N) for _ in inputs]
    f(*arrays, h, *found)
    given = [torch.from_numpy(each).requires_grad_() for each in arrays]
    out = theirs(*given)
    wanted = torch.autograd.grad(out, given, torch.from_numpy(h), materialize_grads=True)
    for mine, each in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, each.numpy(), rtol=1e-11, atol=1e-11)


def _nested(choose: Callable[..., Any], depth: int) -> tuple[Tensor, Tensor]:
    X = te.placeholder((N,), F64, name="X")

    def element(i: Any) -> Any:
        made = X[i]
        for step in range(depth):
            made = choose(X[i] > 0.1 * step, made * 1.5, made * made)
        return made

    return X, te.compute((N,), element, name="Y")


def _stages(choose: Callable[..., Any], depth: int) -> tuple[Tensor, Tensor]:
    X = Y = te.placeholder((N,), F64, name="X")
    for step in range(depth):
        before, name = Y, f"Y{step}"
        Y = te.compute((N,), lambda i: choose(X[i] > 0.1 * step, before[i], X[i]), name=name)  # noqa: B023
    return X, Y


def _by_places(choose: Callable[..., Any], depth: int) -> tuple[Tensor, Tensor]:
    """The conditions are facts, with which indices are simplified."""
    X = te.placeholder((N,), F64, name="X")

    def element(i: Any) -> Any:
        made = X[i]
        for step in range(depth):
            made = choose(i % (step + 2) == 0, made * X[i], te.sqrt(te.abs(made)))
        return made

    return X, te.compute((N,), element, name="Y")


def _nodes(made: Tensor) -> int:
    return len({*_everything(made)})


def _everything(made: Tensor) -> Iterator[object]:
    left, seen = [made.op], {made.op}
    while left:
        op = left.pop()
        yield op
        if isinstance(op, ComputeOp):
            yield from walk_once(*op.body)
        fresh = {each.op for each in op.input_tensors} - seen
        seen |= fresh
        left += fresh


@pytest.mark.parametrize("program", [_nested, _stages])
@pytest.mark.parametrize("choose", [_lazily, tir.Select, lambda c, a, b: te.max(a, b)])
def test_gradients_grow_like_their_programs(program: Any, choose: Any) -> None:
    """In proportion to the number of choices, although the number of ways through them doubles."""
    sizes = []
    for depth in (5, 10, 20):
        X, Y = program(choose, depth)
        sizes.append(_nodes(te.gradient(Y, [X], te.placeholder((N,), F64, name="H"))[0]))
    assert sizes[2] - sizes[1] <= 2.2 * (sizes[1] - sizes[0])


def test_choices_by_places_share_the_choices_in_both_branches() -> None:
    X, Y = _by_places(_lazily, 10)
    (dX,) = te.gradient(Y, [X], te.placeholder((N,), F64, name="H"))
    assert _nodes(dX) < 1000  # 2909, if each branch computed the choices before in its own way


def test_functions_in_nested_choices_are_computed_once() -> None:
    """Also where the indices are simplified in the scope of each choice."""
    X, H = (te.placeholder((N,), F64, name=name) for name in "XH")

    def element(i: Any) -> Any:
        made = te.exp(X[i])
        for step in range(12):
            made = _lazily(X[i] > 0.1 * step, te.sin(made), te.cos(made))
        return made

    (dX,) = te.gradient(te.compute((N,), element, name="Y"), [X], H)
    calls = [each for each in _everything(dX) if isinstance(each, tir.Call)]
    assert sum(each.op == "sin" for each in calls) <= 2 * 12
    assert sum(each.op == "exp" for each in calls) == 1


def test_a_value_of_several_choices_is_differentiated_where_one_of_them_uses_it() -> None:
    """Elsewhere, it would read beyond the tensor, or make infinities."""
    X, H = (te.placeholder((N,), F64, name=name) for name in "XH")

    def element(i: Any) -> Any:
        shared = te.sqrt(X[i - 3])
        return _lazily(i > 2, shared, 1.0) + _lazily(i > 4, shared * X[i], X[i])

    (dX,) = te.gradient(te.compute((N,), element, name="Y"), [X], H)
    f = tvm.build([dX], [X, H, dX], name="adjoint")
    x, h, found = np.linspace(0.5, 2, N), np.linspace(1, 3, N), np.empty(N)
    f(x, h, found)
    given = torch.from_numpy(x).requires_grad_()
    roots = torch.sqrt(given[:-3])
    out = torch.cat([given[:3], roots[:2] + given[3:5], roots[2:] + roots[2:] * given[5:]])
    out[:3] += 1.0
    (wanted,) = torch.autograd.grad(out, given, torch.from_numpy(h))
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)


def test_infinities_of_a_value_that_no_choice_takes() -> None:
    X, H = (te.placeholder((4,), F64, name=name) for name in "XH")

    def element(i: Any) -> Any:
        shared, zero = te.sqrt(X[i]), te.const(0.0, F64)
        return tir.Select(X[i] > 1.0, shared, zero) + tir.Select(X[i] > 2.0, shared * shared, zero)

    (dX,) = te.gradient(te.compute((4,), element, name="Y"), [X], H)
    f = tvm.build([dX], [X, H, dX], name="adjoint")
    found = np.empty(4)
    f(np.array([0.0, -1.0, 1.44, 4.0]), np.ones(4), found)
    np.testing.assert_allclose(found, [0, 0, 0.5 / 1.2, 0.25 + 1.0], rtol=1e-12)
