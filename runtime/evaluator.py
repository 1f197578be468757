"""Measuring the time of calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import final

import numpy as np

from minitvm.runtime.record import record

_GROWTH = 1.618  # the least growth of the number of calls after a measurement that was too short


@final
@record()
class BenchmarkResult:
    """Seconds a call, one for each measurement.

    >>> BenchmarkResult((0.002, 0.004)).mean
    0.003
    """

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        """The standard deviation of the measurements as numpy's ``std``."""
        return float(np.std(self.results))

    def __str__(self) -> str:
        names = ("mean", "median", "max", "min", "std")
        head = "".join(f"{name + ' (ms)':>14}" for name in names)
        row = "".join(f"{getattr(self, name) * 1e3:>14.6f}" for name in names)
        return f"Execution time summary:\n{head}\n{row}"

    __repr__ = __str__


def check_counts(number: int, repeat: int, min_repeat_ms: float) -> None:
    """Raise ValueError unless these describe at least one call."""
    for name, value, least in (
        ("number", number, 1),
        ("repeat", repeat, 1),
        ("min_repeat_ms", min_repeat_ms, 0),
    ):
        if value < least:
            raise ValueError(f"time_evaluator: expected {name} of at least {least}, got {value}")


def measure(
    run: Callable[[int], None], number: int, repeat: int, min_repeat_ms: float
) -> BenchmarkResult:
    """`repeat` measurements of ``run(number)``, in seconds a call.

    `number` grows until a measurement takes `min_repeat_ms`; the shorter measurements before don't
    count.
    """
    results = []
    for _ in range(repeat):
        seconds = _time(run, number)
        while seconds * 1e3 < min_repeat_ms:
            wanted = number * min_repeat_ms / max(seconds * 1e3, 1e-6)
            number = math.ceil(max(min(wanted, number * 1e3), number * _GROWTH))
            seconds = _time(run, number)
        results.append(seconds / number)
    return BenchmarkResult(tuple(results))


def _time(run: Callable[[int], None], number: int) -> float:
    start = time.perf_counter()
    run(number)
    return time.perf_counter() - start
