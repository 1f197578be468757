"""Attempts at a program: where one strategy can't, the next one is taken, the plain loops last.

A strategy that fails, be it when it writes its part of a schedule or when loops and machine code
are made of that, is dropped, and the program is scheduled anew without it. What the plain loops
fail for, too, is an error of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, final

from minitvm.auto_scheduler.choice import choose
from minitvm.te.schedules.schedule import Schedule, create_schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Operation

_T = TypeVar("_T")
Step: TypeAlias = tuple[Operation, str]
"""A strategy for a stage, which is known by its operation in the program that nobody scheduled."""
LOGGER = "minitvm.auto_scheduler"
"""Of the logger that gets a record, of the level INFO, for each strategy that is dropped."""


@final
class Attempt:
    """A schedule that is being written.

    Parameters
    ----------
    ops
        The outputs, as for ``te.create_schedule``.
    dropped
        The strategies that failed, and why.

    Attributes
    ----------
    schedule
        What is written.
    taken
        The strategies that were followed.
    """

    __slots__ = ("_dropped", "_ops", "schedule", "taken")

    def __init__(self, ops: Any, dropped: Mapping[Step, str]) -> None:
        self.schedule = create_schedule(ops)
        self.taken: list[Step] = []
        self._dropped = dropped
        self._ops = {stage: stage.op for stage in self.schedule.stages}

    def follow(self, strategy: str, stage: Stage, write: Callable[[], _T | None]) -> _T | None:
        """What `write` gives, which follows a strategy for a stage of the program; None, too, if
        that was dropped. It gives None where the strategy is not for the stage."""
        step = self._ops[stage], strategy
        if step in self._dropped:
            text = "{strategy}: tried, and dropped since it failed: {why}"
            choose(self.schedule, "dropped", text, stage=stage.name, strategy=strategy,
                   why=self._dropped[step])  # fmt: skip
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


def first_that_works(
    ops: Any, write: Callable[[Attempt], None], use: Callable[[Schedule], _T]
) -> _T:
    """What `use` makes of the first schedule for which it raises nothing.

    Parameters
    ----------
    ops
        The outputs of the program.
    write
        Writes a schedule: the same one for the same dropped strategies.
    use
        What a schedule is for.

    Raises
    ------
    Exception
        That which `use` raises for a schedule without any strategy.
    """
    dropped: dict[Step, str] = {}
    attempt = _written(ops, write, dropped)
    made, why = _used(attempt, use)
    if made is None:
        made = _without(ops, write, use, attempt, dropped, why)
    for (op, strategy), reason in dropped.items():
        _report(f"{op.name}: {strategy} was dropped: {reason}")
    return made[0]


def _written(ops: Any, write: Callable[[Attempt], None], dropped: dict[Step, str]) -> Attempt:
    """A schedule without what was `dropped`, and what fails while it is written, which is dropped
    as well."""
    while True:
        attempt = Attempt(ops, dropped)
        try:
            write(attempt)
        except _StrategyFailed as failed:
            dropped[failed.step] = failed.why
        else:
            return attempt


def _used(attempt: Attempt, use: Callable[[Schedule], _T]) -> tuple[tuple[_T] | None, str]:
    """What `use` makes of a schedule; None if it fails, and why."""
    try:
        return (use(attempt.schedule),), ""
    except Exception as error:  # whatever it is, other schedules may do
        return None, _said(error)


def _without(
    ops: Any,
    write: Callable[[Attempt], None],
    use: Callable[[Schedule], _T],
    first: Attempt,
    dropped: dict[Step, str],
    why: str,
) -> tuple[_T]:
    """What `use` makes of a schedule without the strategies of one stage, or without any, where
    it failed for the `first` one."""
    nothing, plain = dict(dropped), first
    while plain.taken:
        nothing.update(dict.fromkeys(plain.taken, why))
        plain = _written(ops, write, nothing)
    last = (use(plain.schedule),)  # the program's own errors come out of it
    for op in dict.fromkeys(op for op, _ in first.taken):
        fewer, attempt, reason = dict(dropped), first, why
        while mine := [step for step in attempt.taken if step[0] is op]:
            fewer[mine[-1]] = reason
            attempt = _written(ops, write, fewer)
            made, reason = _used(attempt, use)
            if made is not None:
                dropped.update(fewer)
                return made
    dropped.update(nothing)
    return last


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _report(text: str) -> None:
    import logging  # slow to load, and rarely needed

    logging.getLogger(LOGGER).info(text)
