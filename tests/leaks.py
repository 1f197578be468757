"""Memory that calls leave behind.

A growth by itself is no leak: the interpreter fills its free lists, ctypes makes a type anew that a
search for garbage took, other threads hold objects at the moment of the count. A leak grows in
every round of calls, the rest doesn't; so the round that grows least is the one that tells.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

_ROUNDS = 40


def traced_growth(call: Callable[[], object], count: int, most: int) -> int:
    """The bytes by which `count` calls grow what Python has allocated, after as many calls that
    don't count: those of the first round that stays below `most`, or of the best."""
    tracemalloc.start()
    try:
        _run(call, count)
        return least_growth(lambda: tracemalloc.get_traced_memory()[0], call, count, most)
    finally:
        tracemalloc.stop()


def least_growth(
    measure: Callable[[], int], call: Callable[[], object], count: int, most: float
) -> int:
    """By how much `count` calls raise what `measure` gives: in the first round that stays below
    `most`, or in the best."""
    found = []
    for _ in range(_ROUNDS):
        before = measure()
        _run(call, count)
        found.append(measure() - before)
        if found[-1] < most:
            break
    return min(found)


def _run(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()
    gc.collect()
