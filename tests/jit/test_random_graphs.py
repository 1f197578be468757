"""Random graphs as operators: results, gradients, tangents and batches in torch, numpy and JAX,
against torch's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import minitvm as tvm
from tests.jit.random_graphs import STEPS, Graph

# torch's own forward mode imports what it has deprecated, and batches some gradients slowly.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]


class _Program:
    """A graph as an operator and as a function of torch, of its inputs of floats."""

    def __init__(self, seed: int) -> None:
        plan = Graph(seed)
        plan.run()
        self.shapes, self.rows, self.steps = plan.shapes, plan.rows, plan.steps
        count = len(self.shapes)
        names = [f"x{i}" for i in range(count)] + [f"t{i}" for i in range(len(self.rows))]
        ranks = [*map(len, self.shapes), *([1] * len(self.rows))]
        letters = [
            " ".join(f"{n}_{d}" for d in range(k)) for n, k in zip(names, ranks, strict=True)
        ]
        given = ", ".join(f"{n}: {each!r}" for n, each in zip(names, letters, strict=True))

        def result(*given: Any) -> Any:
            return Graph(seed, tensors=given[:count], rows=given[count:]).run()[0]

        made: dict[str, Any] = {"result": result}
        exec(f"def graph({given}): return result({', '.join(names)})", made)
        self.operator = tvm.jit(made["graph"])
        self.known: Callable[..., Any] = lambda *x: Graph(seed, leaves=x).run()[1]

    def arrays(self, rng: np.random.Generator, *more: int) -> list[Any]:
        """Inputs, each with more dimensions in front."""
        return [rng.standard_normal((*more, *shape)) for shape in self.shapes]

    def __call__(self, *given: Any) -> Any:
        """The operator, with its rows as the library of the other inputs has them."""
        as_given = {torch.Tensor: torch.tensor, np.ndarray: np.asarray}
        convert = next(
            (f for kind, f in as_given.items() if isinstance(given[0], kind)), jnp.asarray
        )
        return self.operator(*given, *map(convert, self.rows))


def _tensors(arrays: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(each) for each in arrays)


def _close(found: Any, known: Any, what: str) -> None:
    want = np.asarray(known.detach())
    found = np.asarray(found.detach() if isinstance(found, torch.Tensor) else found)
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-10 * scale, err_msg=what)


def _check(seed: int) -> None:
    program = _Program(seed)
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    close = partial(_close, what=f"seed {seed}: {', '.join(program.steps)}")
    arrays, moves = program.arrays(rng), program.arrays(rng)
    x, v = _tensors(arrays), _tensors(moves)
    y = program.known(*x)
    close(program(*arrays), y)
    close(program(*(np.asarray(a.T.copy()).T for a in arrays)), y)  # columns first

    head = torch.tensor(rng.standard_normal(y.shape))
    known = torch.func.vjp(program.known, *x)[1](head)
    leaves = [each.clone().requires_grad_() for each in x]
    found = torch.autograd.grad(program(*leaves), leaves, head, materialize_grads=True)
    for mine, theirs in zip(found, known, strict=True):
        close(mine, theirs)
    tangent = torch.func.jvp(program.known, x, v)[1]
    close(torch.func.jvp(program, x, v)[1], tangent)

    flags = [draw.random() < 0.7 for _ in x]
    flags[draw.randrange(len(flags))] = True
    batch = program.arrays(rng, 3)
    some = _tensors([a if flag else a[0] for a, flag in zip(batch, flags, strict=True)])
    axes = tuple(0 if flag else None for flag in flags)
    each = [[a[b] if flag else a for a, flag in zip(some, flags, strict=True)] for b in range(3)]
    close(torch.vmap(program, axes)(*some), torch.stack([program.known(*one) for one in each]))

    with jax.enable_x64(True):
        inputs = [jnp.asarray(a) for a in arrays]
        _, pull = jax.vjp(jax.jit(program), *inputs)
        for mine, theirs in zip(pull(jnp.asarray(head.numpy())), known, strict=True):
            close(mine, theirs)
        close(jax.jvp(program, inputs, [jnp.asarray(a) for a in moves])[1], tangent)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int) -> None:
    _check(seed)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(100, 700))
def test_many_random_graphs(seed: int) -> None:
    _check(seed)


def test_all_operations_are_drawn() -> None:
    drawn: set[str] = set()
    for seed in range(100, 160):
        plan = Graph(seed)
        plan.run()
        drawn.update(plan.steps)
    assert drawn == STEPS.keys()
