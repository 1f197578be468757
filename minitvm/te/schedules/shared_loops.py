"""The order of the stages at one place, where some are computed in the loops of others."""

from __future__ import annotations

from collections.abc import Sequence

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
    waiting, made = [*lists], list[list[Stage]]()
    while waiting:
        ready = next((x for x in waiting if not _waits(graph, x, waiting)), None)
        if ready is None:
            return None
        waiting.remove(ready)
        made.append(ready)
    return made


def _waits(graph: StageGraph[Stage], stages: list[Stage], others: Sequence[list[Stage]]) -> bool:
    """Whether one of `stages` reads one of the others."""
    return any(
        graph.consumes(stage, read)
        for other in others
        if other is not stages
        for read in other
        for stage in stages
    )
