"""Fewer cases of parametrised tests.

``@pytest.mark.covering(2)`` leaves as many cases of a test as are needed for any two values to meet
in one; ``covering(1)`` as many as are needed for each value. The others are marked ``wide``::

    @pytest.mark.covering(2)                                    dtype    rows  scheduled
    @pytest.mark.parametrize("dtype", ["float32", "int8"])      float32  1     False
    @pytest.mark.parametrize("rows", [1, 4])                    int8     4     False
    @pytest.mark.parametrize("scheduled", [False, True])        float32  4     True
    def test_sums(dtype, rows, scheduled): ...                  int8     1     True
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

Value = tuple[str, tuple[int, ...]]  # the parameters of a `parametrize`, what they are


def chosen(cases: Sequence[Sequence[Value]], strength: int) -> list[int]:
    """The numbers of cases in which any `strength` values meet that meet in one of all.

    A case is its values. Chosen is each time one in which the most meet that haven't yet, of these
    the first whose values have been chosen least.
    """
    sets = [{*combinations(sorted(case), min(strength, len(case)))} for case in cases]
    missing = set().union(*sets)
    seen: Counter[Value] = Counter()
    found = []
    while missing:
        best = max(
            range(len(cases)),
            key=lambda number: (len(sets[number] & missing), -sum(seen[v] for v in cases[number])),
        )
        found.append(best)
        missing -= sets[best]
        seen.update(cases[best])
    return found


def mark_others(items: Sequence[pytest.Item]) -> None:
    """Marks the cases as wide that are not chosen."""
    tests: dict[Any, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            tests[item.parent, item.originalname].append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("covering")
        assert marker is not None
        kept = chosen([_values(case) for case in cases], *marker.args)
        for number in {*range(len(cases))} - {*kept}:
            cases[number].add_marker(pytest.mark.wide)


def _values(case: pytest.Function) -> list[Value]:
    """What each of the ``parametrize`` of a test has given it. The values are told apart by their
    identities, since some can't be compared."""
    found = []
    for marker in case.iter_markers("parametrize"):
        names = marker.args[0]
        each = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        found.append((str(names), tuple(id(case.callspec.params[name]) for name in each)))
    return found
