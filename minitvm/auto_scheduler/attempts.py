"""Attempts at a schedule: if a strategy fails, the next one is tried, the plain loops last.

A strategy may fail while it writes its part of a schedule, or while loops and machine code are made
from the schedule. The strategy is dropped then, and the program is scheduled anew without it. If
the plain loops fail, too, the error is the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar, final

from minitvm.auto_scheduler.choice import choose
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Operation, Tensor

_T = TypeVar("_T")
Step: TypeAlias = tuple[Operation, str]
"""A strategy for a stage, which is identified by its operation before the attempt."""
Begin: TypeAlias = Callable[[], Schedule]
Write: TypeAlias = Callable[..., None]
"""Writes the schedule of an attempt for a program with some `arguments`."""
VERSION = "version for "
"""How the names of those strategies begin that write a version of a schedule."""
LOGGER = "minitvm.auto_scheduler"
"""The name of the logger that gets a record of level INFO for each strategy that is dropped."""


@final
@record()
class Program:
    """What the strategies know of a program.

    Attributes
    ----------
    schedule, target
        The schedule that is being written, and the target.
    prepacked
        The placeholders that may be packed into panels before the call. Strategies take those out
        which are copied before the call in another order, or lie well.
    strict
        Whether floats are rounded as the program is written.
    by_hand
        The stages that a user scheduled.
    kept
        The stages that stay stages of their own. Strategies add to these and to the following.
    copies
        The copies of factors that contractions in another layout read.
    whole
        The stages that are computed before a scan, or a reduction by groups, which reads them.
    levels
        The levels of the expressions of inlined stages.
    """

    schedule: Schedule
    target: Target
    prepacked: set[Tensor]
    strict: bool
    by_hand: set[Stage]
    kept: set[Stage]
    copies: set[Stage]
    whole: set[Stage]
    levels: dict[Stage, int]

    def is_free(self, stage: Stage) -> bool:
        """Whether a stage may be computed in the loops of others."""
        return stage not in self.kept and not stage.is_output and not stage.inlined


@final
class Attempt:
    """A schedule that is being written.

    Parameters
    ----------
    schedule
        The schedule to begin with.
    dropped
        The strategies that failed, and the reasons.

    Attributes
    ----------
    schedule
        The schedule so far.
    taken
        The strategies that were followed.
    """

    __slots__ = ("_dropped", "_ops", "schedule", "taken")

    def __init__(self, schedule: Schedule, dropped: Mapping[Step, str]) -> None:
        self.schedule = schedule
        self.taken: list[Step] = []
        self._dropped = dropped
        self._ops = {stage: stage.op for stage in self.schedule.stages}

    def count_as(self, made: Stage, stage: Stage) -> None:
        """Counts `made`, a stage that this attempt made from a stage of the program, as that stage:
        a strategy that is dropped for one is dropped for both."""
        self._ops[made] = self._ops[stage]

    def follow(self, strategy: str, stage: Stage, write: Callable[[], _T | None]) -> _T | None:
        """The result of `write`, which applies a strategy to a stage of the program; None if the
        strategy was dropped. `write` returns None where the strategy doesn't fit the stage."""
        step = self._ops[stage], strategy
        if step in self._dropped:
            text = "{strategy}: tried, and dropped since it failed: {why}"
            choose(stage, "dropped", text, strategy=strategy, why=self._dropped[step])
            return None
        try:
            made = write()
        except Exception as error:  # whatever it is, other strategies may do
            raise _StrategyFailed(step, _said(error)) from error
        if made is not None:
            self.taken.append(step)
        return made


class _StrategyFailed(Exception):
    """A strategy failed when it wrote its part of a schedule."""

    def __init__(self, step: Step, why: str) -> None:
        super().__init__(why)
        self.step = step
        self.why = why


def complete(s: Schedule, write: Callable[[Attempt], None]) -> None:
    """Lets `write` write in a schedule itself; strategies that fail are dropped on a copy first."""
    dropped: dict[Step, str] = {}
    written(s.copy, write, dropped)
    write(Attempt(s, dropped))
    _report(dropped)


def first_that_works(
    begin: Begin, write: Callable[[Attempt], None], use: Callable[[Schedule], _T]
) -> _T:
    """The result of `use` for the first schedule for which `use` raises no error.

    Parameters
    ----------
    begin
        Makes the schedule that each attempt begins with.
    write
        Writes a schedule: the same one for the same dropped strategies.
    use
        The function to call with a schedule.

    Raises
    ------
    Exception
        The exception of `use` for a schedule without any strategy.
    """
    dropped: dict[Step, str] = {}
    attempt = written(begin, write, dropped)
    try:
        made = use(attempt.schedule)
    except Exception as error:  # whatever it is, other schedules may do
        why = _said(error)
    else:
        _report(dropped)
        return made
    made, dropped = _without(begin, write, use, attempt, dropped, why)
    _report(dropped)
    return made


def written(begin: Begin, write: Callable[[Attempt], None], dropped: dict[Step, str]) -> Attempt:
    """A schedule without the `dropped` strategies. Strategies that fail while it is written are
    dropped as well."""
    while True:
        attempt = Attempt(begin(), dropped)
        try:
            write(attempt)
        except _StrategyFailed as failed:
            dropped[failed.step] = failed.why
        else:
            return attempt


def _without(
    begin: Begin,
    write: Callable[[Attempt], None],
    use: Callable[[Schedule], _T],
    first: Attempt,
    dropped: Mapping[Step, str],
    why: str,
) -> tuple[_T, dict[Step, str]]:
    """The result of `use` for a schedule without the versions that fail, without the strategies of
    one stage, or without any, after `use` failed for the `first` schedule; and the strategies that
    were dropped."""
    nothing, plain = dict(dropped), first
    while plain.taken:
        nothing.update(dict.fromkeys(plain.taken, why))
        plain = written(begin, write, nothing)
    last = use(plain.schedule)  # the program's own errors come out of it
    versions = [step for step in first.taken if step[1].startswith(VERSION)]
    wrong = dict[Step, str]()
    for step in versions:
        alone = {**dropped, **{other: why for other in versions if other is not step}}
        try:
            use(written(begin, write, alone).schedule)
        except Exception as error:  # also where the schedule beside it is at fault
            wrong[step] = _said(error)
    if len(wrong) < len(versions):
        fewer = {**dropped, **wrong}
        try:
            return use(written(begin, write, fewer).schedule), fewer
        except Exception as error:
            why = _said(error)
    for op in dict.fromkeys(op for op, _ in first.taken):
        fewer, attempt, reason = dict(dropped), first, why
        while mine := [step for step in attempt.taken if step[0] is op]:
            fewer[mine[-1]] = reason
            attempt = written(begin, write, fewer)
            try:
                return use(attempt.schedule), fewer
            except Exception as error:
                reason = _said(error)
    return last, nothing


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _report(dropped: Mapping[Step, str]) -> None:
    if dropped:
        import logging  # slow to load, and rarely needed

        for (op, strategy), reason in dropped.items():
            logging.getLogger(LOGGER).info(f"{op.name}: {strategy} was dropped: {reason}")
