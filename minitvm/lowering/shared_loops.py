"""The order of the stages at one place, where some are computed in the loops of others."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage


def in_shared_loops(schedule: Schedule, stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages of one place, given in order, as those that share loops: the stage whose loops
    they are, then the others. Each list stands behind those that it reads.

    Raises
    ------
    CompileError
        When a stage is to be computed with one of another place, or a third stage is to be computed
        between two that share loops.
    """
    found = {stage: [stage] for stage in stages if stage.with_stage is None}
    guests = [(stage, stage.with_stage) for stage in stages if stage.with_stage is not None]
    if not guests:
        return [*found.values()]
    for stage, other in guests:
        if other not in found:
            raise CompileError(
                f"{stage.name}: compute_with: expected a stage that is computed at the same place, "
                f"in loops of its own, got {other.name}"
            )
        found[other].append(stage)
    waiting, made = [*found.values()], list[list[Stage]]()
    while waiting:
        ready = next((x for x in waiting if not _waits(schedule, x, waiting)), None)
        if ready is None:
            names = " and ".join(each.name for each in next(x for x in waiting if len(x) > 1))
            raise CompileError(
                f"compute_with: expected no stage to be computed between those that share loops, "
                f"found one for {names}"
            )
        waiting.remove(ready)
        made.append(ready)
    return made


def _waits(schedule: Schedule, stages: Sequence[Stage], others: Sequence[Sequence[Stage]]) -> bool:
    """Whether a stage reads one of the others, directly or through others."""
    return any(
        schedule.consumes(stage, read)
        for other in others
        if other is not stages
        for read in other
        for stage in stages
    )
