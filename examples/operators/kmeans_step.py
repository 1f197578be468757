"""A step of k-means: the nearest centre of each point, then the mean of each centre's points.

python examples/operators/kmeans_step.py
"""

import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te

Points = Annotated[te.Tensor, "n d"]
Centres = Annotated[te.Tensor, "k d"]

argmin = te.comm_reducer(
    lambda a, b: (
        te.if_then_else(te.any(b[1] < a[1], te.all(b[1] == a[1], b[0] < a[0])), b[0], a[0]),
        te.min(a[1], b[1]),
    ),
    lambda index, distance: (te.max_value(index), te.max_value(distance)),
    name="argmin",
)


@minitvm.jit
def kmeans_step(x: Points, centres: Centres) -> Any:
    """The moved centres, and the centre of each point. A centre without points stays."""
    (n, d), k = x.shape, centres.shape[0]
    r = te.reduce_axis((0, d), name="r")
    # |x - c|^2 without |x|^2, which is the same for all centres.
    product = te.compute((n, k), lambda i, j: te.sum(x[i, r] * centres[j, r], axis=r))
    r = te.reduce_axis((0, d), name="r")
    norms = te.compute((k,), lambda j: te.sum(centres[j, r] * centres[j, r], axis=r))
    j = te.reduce_axis((0, k), name="j")
    nearest, _ = te.compute(
        (n,), lambda i: argmin((j.astype("int32"), norms[j] - 2.0 * product[i, j]), axis=j)
    )
    p = te.reduce_axis((0, n), name="p")
    sums = te.compute((k, d), lambda c, e: te.sum(x[p, e], axis=p, where=nearest[p] == c))
    p = te.reduce_axis((0, n), name="p")
    one = te.const(1, x.dtype)
    counts = te.compute((k,), lambda c: te.sum(one, axis=p, where=nearest[p] == c))
    moved = te.compute(
        (k, d),
        lambda c, e: te.if_then_else(counts[c] > 0.0, sums[c, e] / counts[c], centres[c, e]),
    )
    return moved, nearest


def by_numpy(x: Any, centres: Any) -> tuple[Any, Any]:
    nearest = np.argmin(np.square(centres).sum(1) - 2 * x @ centres.T, axis=1)
    counts = np.bincount(nearest, minlength=len(centres))
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, x)
    return np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres), nearest


def milliseconds(call: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(call, number=3, repeat=5)) / 3


def main() -> None:
    minitvm.set_num_threads(1)  # as the peer
    rng = np.random.default_rng(0)
    x = rng.random((4096, 16), dtype=np.float32)
    x[:2048] += 1
    centres = x[rng.choice(len(x), 16, replace=False)]

    spread = []
    for _ in range(5):
        wanted, wanted_nearest = by_numpy(x, centres)
        moved, nearest = kmeans_step(x, centres)
        assert (nearest == wanted_nearest).mean() > 0.999  # but for ties to the last bit
        spread.append(float(np.square(x - centres[nearest]).sum()))
        if (nearest == wanted_nearest).all():
            np.testing.assert_allclose(moved, wanted, rtol=1e-4)
        centres = moved
    assert spread == sorted(spread, reverse=True)

    ours = milliseconds(lambda: kmeans_step(x, centres))
    theirs = milliseconds(lambda: by_numpy(x, centres))
    print(f"4096 points of 16 to 16 centres: {ours:.3f} ms, numpy {theirs:.3f} ms")


if __name__ == "__main__":
    main()
