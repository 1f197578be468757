"""The heat equation on a square: explicit Euler steps of a five-point stencil, many in a call.

python examples/operators/heat_equation.py
"""

import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Plane = Annotated[te.Tensor, "m n"]


@minitvm.jit(static="steps")
def heat(u: Plane, rate: float, steps: int = 1) -> Any:
    """The temperatures after `steps` steps; those of the border stay as they are."""
    m, n = u.shape

    def step(v: Any) -> Any:
        def at(i: Any, j: Any) -> Any:
            around = v[i - 1, j] + v[i + 1, j] + v[i, j - 1] + v[i, j + 1]
            inside = te.all(i > 0, i < m - 1, j > 0, j < n - 1)
            return te.if_then_else(inside, v[i, j] + rate * (around - 4.0 * v[i, j]), v[i, j])

        return te.compute((m, n), at, name="step")

    for _ in range(steps):
        u = step(u)
    return u


@minitvm.jit(static="steps")
def backward(u: Plane, adjoint: Plane, rate: float, steps: int = 1) -> Any:
    """How the temperatures at the end depend on those at the start."""
    return te.gradient(heat(u, rate, steps=steps), [u], adjoint)[0]


def by_numpy(u: Any, rate: float, steps: int) -> Any:
    u = u.copy()
    for _ in range(steps):
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] += rate * (around - 4 * u[1:-1, 1:-1])
    return u


def milliseconds(call: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(call, number=3, repeat=10)) / 3


def main() -> None:
    minitvm.set_num_threads(1)  # as the peer
    rng = np.random.default_rng(0)
    u = rng.random((512, 512), dtype=np.float32)
    np.testing.assert_allclose(heat(u, 0.2, steps=4), by_numpy(u, 0.2, 4), rtol=1e-5, atol=1e-6)

    # A step is linear: <adjoint, f(other)> is <gradient, other>.
    adjoint, other = rng.standard_normal((2, *u.shape), dtype=np.float32)
    gradient = backward(u, adjoint, 0.2, steps=4)
    np.testing.assert_allclose(
        np.vdot(gradient, other), np.vdot(adjoint, by_numpy(other, 0.2, 4)), rtol=1e-3, atol=1e-1
    )

    ours = milliseconds(lambda: heat(u, 0.2, steps=4))
    theirs = milliseconds(lambda: by_numpy(u, 0.2, 4))
    print(f"4 steps on 512 x 512: {ours:.3f} ms, numpy {theirs:.3f} ms")


if __name__ == "__main__":
    main()
