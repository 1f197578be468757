"""The quickstart's matrix product, 56 x 56 in float32, without a schedule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks import peers, small_matmul
from benchmarks.measure import OURS, Row, Settings, Timer, calls, interleaved, kernel

# The rounding of a sum of N products, whatever the order (Higham, Accuracy and Stability of
# Numerical Algorithms, section 3.1), twice: the reference has its own.
_TOLERANCE = 2 * small_matmul.N * float(np.finfo(np.float32).eps)


def rows(settings: Settings) -> Iterator[Row]:
    """The call from Python on arrays of numpy, and the kernel alone."""
    x, y, z = small_matmul.arrays()
    ours = small_matmul.builders()[OURS]()
    timers = _peers()
    ours(x, y, z)
    np.testing.assert_allclose(z, x @ y, rtol=_TOLERANCE)
    yield Row(
        "matmul 56, call",
        "f(x, y, z) on numpy arrays, no schedule given; numpy and torch call BLAS, numba and tvm "
        "compile plain loops",
        interleaved({OURS: calls(ours, x, y, z), **timers}, settings),
        peers.missing(),
    )
    yield Row(
        "matmul 56, kernel alone",
        "minitvm by time_evaluator; peers through their calls",
        interleaved({OURS: kernel(ours, x, y, z), **timers}, settings),
        peers.missing(),
    )


def _peers() -> dict[str, Timer]:
    """Calls of the peers, each checked once."""
    x, y, z = small_matmul.arrays()
    timers = {"numpy @": calls(x.__matmul__, y), "numpy out=": calls(_numpy_out, x, y, z)}
    if (torch := peers.peer("torch")) is not None:
        a, b, c = (torch.from_numpy(array) for array in small_matmul.arrays())
        timers["torch out="] = calls(lambda: torch.mm(a, b, out=c))
    for name, build in small_matmul.builders().items():
        if name == OURS:
            continue
        function, (x, y, z) = build(), small_matmul.arrays()
        function(x, y, z)
        np.testing.assert_allclose(z, x @ y, rtol=_TOLERANCE)
        timers[name] = calls(function, x, y, z)
    return timers


def _numpy_out(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    np.matmul(x, y, out=z)
