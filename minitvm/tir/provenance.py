"""What a function was made from: the work of its stages as they were written, and why its schedule
is as it is. It changes nothing of the loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from minitvm.runtime.record import record
from minitvm.tir.node import PrimExpr

# The dtypes of operations, or the name of a function: see `Work`.
Kind = tuple[str, ...] | str
Figure = int | float | str | PrimExpr | None
_Extents = tuple[PrimExpr, ...]


@final
@record(eq=False)
class Work:
    """Some operations of a stage, each done once for every combination of the axes that it depends
    on.

    Attributes
    ----------
    kind
        The dtypes: one for arithmetic in it, three for the products of two and their sums in the
        third; or the name of a function such as exp.
    number
        How many there are for one combination.
    extents
        Of those axes.
    """

    kind: Kind
    number: int
    extents: _Extents


@final
@record(eq=False)
class StageWork:
    """What a stage computes: elements of the shape `extents`, each from steps of the shape
    `summed`; `work` is None where that can't be read from an expression."""

    name: str
    extents: _Extents
    summed: _Extents
    work: tuple[Work, ...] | None


@final
@record(eq=False)
class Choice:
    """One decision.

    Attributes
    ----------
    stage
        For which stage.
    about
        What was decided: ``"form"`` (what the stage was recognised as), ``"strategy"``, ``"tile"``,
        ``"packing"``, ``"blocks"``, ``"epilogue"``; ``"dropped"`` (a strategy that failed).
    text
        What was chosen and why, with the names of figures in braces.
    figures
        The figures that decided.

    >>> print(Choice("C", "tile", "{rows} x {columns}", {"rows": 14, "columns": 32}))
    14 x 32
    """

    stage: str
    about: str
    text: str
    figures: Mapping[str, Figure]

    def __str__(self) -> str:
        return self.text.format_map(self.figures)


@final
@record(eq=False)
class Origin:
    """What a function was made from: a schedule.

    Attributes
    ----------
    stages
        Of the program before it was scheduled, inputs left out.
    scheduled
        ``"by auto_schedule"``, ``"by hand"``, or ``"not"``: plain loops.
    choices
        Why the schedule is as it is, where auto_schedule wrote it.
    """

    stages: tuple[StageWork, ...]
    scheduled: str
    choices: tuple[Choice, ...]
