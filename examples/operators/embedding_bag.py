"""Embedding bags: each sample is the weighted sum of the table's rows that it names.

python examples/operators/embedding_bag.py
"""

import importlib.util
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Table = Annotated[te.Tensor, "rows d"]
Bags = Annotated[te.Tensor, "int64[bags n]"]
Weights = Annotated[te.Tensor, "bags n"]
Sums = Annotated[te.Tensor, "bags d"]


@minitvm.jit
def embedding_bag(table: Table, bags: Bags, weights: Weights) -> Any:
    k = te.reduce_axis((0, bags.shape[1]), name="k")
    return te.compute(
        (bags.shape[0], table.shape[1]),
        lambda i, j: te.sum(table[bags[i, k], j] * weights[i, k], axis=k),
    )


@minitvm.jit
def backward(table: Table, bags: Bags, weights: Weights, adjoint: Sums) -> Any:
    """The adjoints of the table, where each row is added in place, and of the weights."""
    return te.gradient(embedding_bag(table, bags, weights), [table, weights], adjoint)


def milliseconds(call: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(call, number=3, repeat=10)) / 3


def main() -> None:
    minitvm.set_num_threads(1)  # as the peer
    rng = np.random.default_rng(0)
    table = rng.standard_normal((5000, 64), dtype=np.float32)
    bags = rng.integers(0, len(table), (512, 20))
    weights = rng.random(bags.shape, dtype=np.float32)
    adjoint = rng.standard_normal((512, 64), dtype=np.float32)

    sums = embedding_bag(table, bags, weights)
    np.testing.assert_allclose(
        sums, np.einsum("bnd,bn->bd", table[bags], weights), rtol=1e-5, atol=1e-5
    )
    d_table, d_weights = backward(table, bags, weights, adjoint)
    wanted = np.zeros_like(table)
    np.add.at(wanted, bags, weights[..., None] * adjoint[:, None])
    np.testing.assert_allclose(d_table, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        d_weights, np.einsum("bnd,bd->bn", table[bags], adjoint), rtol=1e-5, atol=1e-4
    )

    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)

        t, b, w = map(torch.from_numpy, (table, bags, weights))

        def peer() -> Any:
            return torch.nn.functional.embedding_bag(b, t, mode="sum", per_sample_weights=w)

        torch.testing.assert_close(embedding_bag(t, b, w), peer(), rtol=1e-5, atol=1e-5)
        ours, theirs = milliseconds(lambda: embedding_bag(t, b, w)), milliseconds(peer)
        print(f"512 bags of 20 rows of 64: {ours:.3f} ms, torch {theirs:.3f} ms")
    else:
        ours = milliseconds(lambda: embedding_bag(table, bags, weights))
        print(f"512 bags of 20 rows of 64: {ours:.3f} ms; torch: not installed, left out")


if __name__ == "__main__":
    main()
