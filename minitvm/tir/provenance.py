"""Records of a function's origin: the work of its stages as written, and the reasons for its
schedule. They don't belong to the meaning of the loops."""

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
    """Some operations of a stage, each done once for every combination of the axes on which it
    depends.

    Attributes
    ----------
    kind
        The dtypes: one dtype for arithmetic in it; three for products, the dtypes of both factors
        and of their sums; or the name of a function such as exp.
    number
        The number of operations for one combination.
    extents
        The extents of the axes on which it depends.
    """

    kind: Kind
    number: int
    extents: _Extents


@final
@record(eq=False)
class StageWork:
    """The work of a stage: elements of the shape `extents`, each computed in steps of the shape
    `summed`. `work` is None for a stage that isn't an expression, and empty for a
    stage that the schedule computes nowhere. `named` are the same operations
    and all others on values, under names such as ``"multiply-adds"`` or ``"comparisons"``."""

    name: str
    extents: _Extents
    summed: _Extents
    work: tuple[Work, ...] | None
    named: tuple[Work, ...] = ()


@final
@record(eq=False)
class Choice:
    """One decision.

    Attributes
    ----------
    stage
        The name of the stage.
    about
        The subject of the decision: ``"form"`` (the recognised form of the stage), ``"strategy"``
        (one for each stage), ``"place"`` (the loops of another stage in which this one is
        computed), ``"tile"``, ``"packing"``, ``"prefetch"``, ``"blocks"``, ``"epilogue"``;
        ``"dropped"`` (a strategy that failed).
    text
        The choice and its reason, with the names of figures in braces.
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
    """The origin of a function: a schedule.

    Attributes
    ----------
    stages
        The stages of the program before it was scheduled, without its inputs.
    scheduled
        ``"by auto_schedule"``, ``"by hand"``, ``"by hand, the rest by auto_schedule"``, or
        ``"not"``: plain loops.
    choices
        The decisions of auto_schedule, with their reasons.
    versions
        The conditions under which other schedules serve a call, and their decisions. The first
        condition that holds counts.
    """

    stages: tuple[StageWork, ...]
    scheduled: str
    choices: tuple[Choice, ...]
    versions: tuple[tuple[PrimExpr, tuple[Choice, ...]], ...] = ()
