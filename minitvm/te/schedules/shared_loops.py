"""The order of the stages at one place, where some are computed in the loops of others."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.stage_graph import StageGraph


def in_shared_loops(graph: StageGraph[Stage], stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages of one place, given in order, as those that share loops: the stage whose loops
    they are, then the others. Each list stands behind those that it reads.

    Raises
    ------
    CompileError
        When a stage is to be computed with one of another place, or a third stage has to be
        computed between two that share loops.
    """
    found = {stage: [stage] for stage in stages if stage.with_stage is None}
    for stage in stages:
        other = stage.with_stage
        if other is None:
            continue
        if other not in found:
            raise CompileError(
                f"{stage.name}: compute_with: expected a stage that is computed at the same place, "
                f"in loops of its own, got {other.name}"
            )
        found[other].append(stage)
    made = in_order_of_reading(graph, [*found.values()])
    if made is None:
        names = [", ".join(x.name for x in each) for each in found.values() if len(each) > 1]
        raise CompileError(
            "compute_with: expected stages between which no other has to be computed, got "
            + "; ".join(names)
        )
    return made


def in_order_of_reading(
    graph: StageGraph[Stage], lists: Sequence[list[Stage]]
) -> list[list[Stage]] | None:
    """Lists of stages, each behind those that it reads, directly or through others; None if there
    is no such order. Those of single stages are given in order."""
    if all(len(each) == 1 for each in lists):
        return [*lists]
    place = {stage: number for number, each in enumerate(lists) for stage in each}
    missing, readers = [0] * len(lists), [list[int]() for _ in lists]
    for number, each in enumerate(lists):
        read = {place[x] for x in graph.consumed_by(each) if x in place} - {number}
        missing[number] = len(read)
        for other in read:
            readers[other].append(number)
    ready, made = [number for number, count in enumerate(missing) if not count], list[list[Stage]]()
    while ready:  # a heap, since ascending numbers are one
        number = heappop(ready)
        made.append(lists[number])
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return made if len(made) == len(lists) else None
