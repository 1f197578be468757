"""Levenshtein's distance of two texts: a scan over the antidiagonals of the table of distances.

The cells of an antidiagonal depend on the two before it alone, so each is computed in vectors.

python examples/operators/edit_distance.py
"""

import timeit
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te


@minitvm.jit
def edit_distance(
    a: Annotated[te.Tensor, "uint8|int32[m]"], b: Annotated[te.Tensor, "uint8|int32[n]"]
) -> Any:
    """The least number of insertions, deletions and replacements that make `b` of `a`."""
    m, n = a.shape[0], b.shape[0]
    # state[t, i] is the distance of the first i letters of a and the first t - i of b.
    state = te.placeholder((m + n + 2, m + 1), "int32", name="state")
    first = te.compute((2, m + 1), lambda t, i: te.const(1, "int32") * t, name="first")

    def cell(t: Any, i: Any) -> Any:
        j = t - i
        other = te.if_then_else(a[i - 1] == b[j - 1], 0, 1)
        best = te.min(te.min(state[t - 1, i - 1], state[t - 1, i]) + 1, state[t - 2, i - 1] + other)
        inside = te.all(i >= 1, j >= 1, j <= n)
        return te.if_then_else(inside, best, t.astype("int32"))

    update = te.compute((m + n + 2, m + 1), cell, name="update")
    distances = te.scan(first, update, state, inputs=[a, b], name="distances")
    return te.compute((), lambda: distances[m + n, m])


def by_numpy(a: Any, b: Any) -> int:
    """Row by row; a running minimum makes up for the insertions."""
    ramp = np.arange(len(b) + 1)
    row = ramp
    for i, letter in enumerate(a):
        best = np.minimum(row[1:] + 1, row[:-1] + (b != letter))
        row = np.minimum.accumulate(np.concatenate([[i + 1], best]) - ramp) + ramp
    return int(row[-1])


def letters(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8)


def milliseconds(call: Callable[[], object]) -> float:
    return 1e3 * min(timeit.repeat(call, number=1, repeat=10))


def main() -> None:
    minitvm.set_num_threads(1)  # as the peer
    for x, y, wanted in (("kitten", "sitting", 3), ("flaw", "lawn", 2), ("a", "", 1), ("", "", 0)):
        assert edit_distance(letters(x), letters(y)) == by_numpy(letters(x), letters(y)) == wanted

    rng = np.random.default_rng(0)
    for size in ((700, 700), (300, 500), (500, 300)):
        p, q = (rng.integers(0, 4, length, dtype=np.uint8) for length in size)
        assert edit_distance(p, q) == by_numpy(p, q)

    p, q = rng.integers(0, 4, (2, 700), dtype=np.uint8)
    ours, theirs = milliseconds(lambda: edit_distance(p, q)), milliseconds(lambda: by_numpy(p, q))
    print(f"two texts of 700 letters: {ours:.3f} ms, numpy {theirs:.3f} ms")


if __name__ == "__main__":
    main()
