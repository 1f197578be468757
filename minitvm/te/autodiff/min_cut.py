"""The cheapest cut of a graph between a source and a sink (Dinic's method)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import pairwise
from math import inf
from typing import final

_LEAST = 1e-12  # a residual capacity below this share of the largest one is rounding error


@final
class Network:
    """A directed graph with capacities.

    >>> network = Network("s", "t")
    >>> network.join("s", "a", 3.0)
    >>> network.join("a", "t", 2.0)
    >>> sorted(network.on_side_of_source())
    ['a', 's']
    """

    def __init__(self, source: Hashable, sink: Hashable) -> None:
        self._source, self._sink = source, sink
        self._left: dict[Hashable, dict[Hashable, float]] = {source: {}, sink: {}}
        self._largest = 0.0

    def join(self, a: Hashable, b: Hashable, capacity: float = inf) -> None:
        """Adds an edge, or adds capacity to an existing edge."""
        onwards = self._left.setdefault(a, {})
        onwards[b] = onwards.get(b, 0.0) + capacity
        self._left.setdefault(b, {}).setdefault(a, 0.0)
        self._largest = max(self._largest, 0.0 if capacity == inf else capacity)

    def on_side_of_source(self) -> set[Hashable]:
        """The nodes on the source's side of a cheapest cut, as near to the source as it can be.
        There has to be a cut of finite cost."""
        while (levels := self._levels()).get(self._sink) is not None:
            begun = {node: iter([*onwards]) for node, onwards in self._left.items()}
            while self._augment(levels, begun):
                pass
        return set(levels)

    def _levels(self) -> dict[Hashable, int]:
        """The distance from the source, of all nodes that can take more flow."""
        found = {self._source: 0}
        waiting = deque([self._source])
        while waiting:
            node = waiting.popleft()
            for other, left in self._left[node].items():
                if self._is_open(left) and other not in found:
                    found[other] = found[node] + 1
                    waiting.append(other)
        return found

    def _augment(
        self, levels: dict[Hashable, int], begun: dict[Hashable, Iterator[Hashable]]
    ) -> bool:
        """Sends flow along one of the shortest paths, if there is one left."""
        path = [self._source]
        while path[-1] != self._sink:
            node = path[-1]
            following = next(
                (
                    other
                    for other in begun[node]  # the iterator resumes where it stopped
                    if self._is_open(self._left[node][other])
                    and levels.get(other) == levels[node] + 1
                ),
                None,
            )
            if following is not None:
                path.append(following)
            elif len(path) == 1:
                return False
            else:
                path.pop()
        edges = [*pairwise(path)]
        flow = min(self._left[a][b] for a, b in edges)
        for a, b in edges:
            self._left[a][b] -= flow
            self._left[b][a] += flow
        return True

    def _is_open(self, left: float) -> bool:
        return left > _LEAST * self._largest
