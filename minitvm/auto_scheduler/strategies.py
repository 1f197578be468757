"""The strategies for a contraction, in one table: the condition, the cycles and the writer of each.

Those that fit a contraction are compared by their cycles. :mod:`layouts` compares orders of axes by
the cycles of the strategy that the contraction gets in each order. The models are those of tiles
(:mod:`cost`, :mod:`tiles`) and of other reductions (:mod:`ways`); the writers are modules of their
own, which share the description (:mod:`contraction`, :mod:`terms`), the loops (:mod:`loops`) and
the panels (:mod:`packing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, final

from minitvm.auto_scheduler.attempts import Attempt
from minitvm.auto_scheduler.choice import choose, choose_form
from minitvm.auto_scheduler.contraction import Contraction
from minitvm.auto_scheduler.convolutions import (
    cycles_of_convolution,
    is_convolution,
    write_convolution,
)
from minitvm.auto_scheduler.cost import Tile
from minitvm.auto_scheduler.instructions import (
    cycles_by,
    dot_product_for,
    matrix_product_for,
    takes_rows,
    write_by_instruction,
)
from minitvm.auto_scheduler.lanes import best_in_lanes, write_lanes
from minitvm.auto_scheduler.loops import places_of
from minitvm.auto_scheduler.packing import write_cast
from minitvm.auto_scheduler.reductions import may_be_others, write_streamed
from minitvm.auto_scheduler.sums import Sums, sums_of
from minitvm.auto_scheduler.tiled import (
    are_alike,
    cycles_of,
    pays_together,
    with_best_row,
    write_tiled,
)
from minitvm.auto_scheduler.tiles import ALIKE
from minitvm.auto_scheduler.ways import (
    MOST_ROWS,
    can_be_streamed,
    cycles_of_coming,
    cycles_of_plain,
    cycles_of_streamed,
    cycles_without_rows,
    is_along_lines,
    is_for_few,
    is_plain_reduction,
    line_of_columns,
)
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.intrinsics.dot_product import DotProduct
from minitvm.te.intrinsics.matrix_product import MatrixProduct
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage

_By = TypeVar("_By", DotProduct, MatrixProduct)
CONVOLUTION = "convolution"
TILES = "tiles"
"""The last strategy, which fits any contraction."""
TOGETHER = "tiles together"
"""The strategy for several contractions with one epilogue."""


@final
@record()
class Strategy:
    """A way to compute a contraction.

    Attributes
    ----------
    name
        The name under which the strategy is tried and dropped.
    find
        Returns the argument of the writer, such as a tile or an instruction; None or False if the
        strategy doesn't fit.
    cycles
        The cycles of one core, those of copies of the factors included. None for a strategy that
        fits only together with other stages, and is tried first.
    write
        Writes the schedule, given the result of `find`; returns the scheduled stages.
    takes_epilogue
        Whether the stage that reads the sums takes them in the tiles.
    is_sure
        Whether no strategy below can take fewer cycles, if this one fits.
    margin
        Times the cycles, when they are compared with those of other strategies.
    """

    name: str
    find: Callable[[Sums], Any]
    cycles: Callable[[Sums, Any], float] | None
    write: Callable[[Sums, Any], Iterable[Stage]]
    takes_epilogue: bool = True
    is_sure: Callable[[Sums], bool] = lambda _: False
    margin: float = 1.0


def strategy_for(sums: Sums) -> Strategy:
    """The strategy of a contraction by itself."""
    return _compared(sums)[0][0]


def cycles_of_strategy(contraction: Contraction, target: Target, *, strict: bool) -> float:
    """The cycles of a contraction by the strategy that it gets."""
    sums = Sums(contraction, target, strict)
    return _cycles(sums, *_compared(sums)[0])


def write_contraction(attempt: Attempt, sums: Sums) -> Iterable[Stage]:
    """Schedules a contraction by the strategy that takes the fewest cycles; returns the scheduled
    stages. If it fails, the next one is tried; if the comparison fails, they are tried in the order
    of the table. A contraction that none can write is left to :mod:`rows`."""

    def write(strategy: Strategy) -> Iterable[Stage] | None:
        found = known[strategy] if strategy in known else strategy.find(sums)
        return strategy.write(sums, found) if found else None

    compared = attempt.follow("comparison of strategies", sums.stage, partial(_compared, sums))
    known = dict(compared or ())
    first = [each for each in STRATEGIES if each.cycles is None]
    for each in dict.fromkeys((*first, *known, *STRATEGIES)):
        done = attempt.follow(each.name, sums.stage, partial(write, each))
        if done is not None:
            return done
    return ()


def _compared(sums: Sums) -> list[tuple[Strategy, Any]]:
    """The strategies that fit a contraction, down to the first sure one, each with the argument of
    its writer: the one of the fewest cycles first."""
    found = list[tuple[Strategy, Any]]()
    for each in STRATEGIES:
        if each.cycles is not None and (made := each.find(sums)):
            found.append((each, made))
            if each.is_sure(sums):
                break
    if len(found) > 1:
        found.sort(key=lambda pair: _cycles(sums, *pair) * pair[0].margin)
    return found


def _cycles(sums: Sums, strategy: Strategy, found: Any) -> float:
    assert strategy.cycles is not None
    return strategy.cycles(sums, found)


def cycles_in_tiles(contraction: Contraction, target: Target, *, strict: bool) -> float | None:
    """The cycles of a contraction that is computed by tiles of sums; None of any other."""
    tiled = is_tiled(Sums(contraction, target, strict))
    return _cycles_of_tiles(contraction, target) if tiled else None


def is_tiled(sums: Sums) -> bool:
    """Whether a contraction is computed by tiles of sums in vector registers."""
    return bool(sums.contraction.rows) and strategy_for(sums).name == TILES


# -- Long sums in the lanes of vectors --


def _in_lanes(sums: Sums) -> tuple[Tile, float] | None:
    """The tile of sums whose lanes are steps, and its cycles.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((16, 4096), name="A"), te.placeholder((16, 4096), name="B")
    >>> k = te.reduce_axis((0, 4096), name="k")
    >>> C = te.compute((16, 16), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    >>> znver3 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    >>> _in_lanes(Sums(contraction_of(C.op), znver3))[0]
    Tile(rows=6, columns=2)
    """
    if sums.in_order or sums.ahead is not None or sums.inline_columns:
        return None
    return best_in_lanes(sums.contraction, sums.target)


def _write_lanes(sums: Sums, found: tuple[Tile, float]) -> Iterable[Stage]:
    choose_form(sums.schedule, sums.contraction, "matrix product")
    write_lanes(sums.schedule, sums.contraction, found[0], sums.target)
    return (sums.stage,)


# -- Reductions, and streams --


def _is_plain(sums: Sums) -> bool:
    found = sums.contraction
    return sums.ahead is None and (is_plain_reduction(found) or is_along_lines(found, sums.target))


def _leave_to_rows(sums: Sums, _: bool) -> Iterable[Stage]:
    choose_form(sums.schedule, sums.contraction, "matrix-vector product")
    return ()


def _write_streamed(sums: Sums, _: bool) -> Iterable[Stage]:
    s, contraction = sums.schedule, sums.contraction
    choose_form(s, contraction, "matrix product")
    if sums.inline_columns:
        s[contraction.b.tensor].compute_inline()
    a, places = contraction.a, places_of(contraction)
    if a.is_cast and any(map(may_be_others, contraction.rows)):
        write_cast(s, contraction.op, a, sums.target)
    line = len(line_of_columns(contraction))
    write_streamed(s, sums.stage, sums.target, places, line, in_order=sums.in_order)
    return (sums.stage,)


# -- Instructions for narrow numbers --


def _by_matrix_products(sums: Sums) -> MatrixProduct | None:
    by = _allowed(sums, matrix_product_for(sums.contraction, sums.target))
    return by if by is None or sums.ahead is None or takes_rows(sums.contraction) else None


def _by_dot_products(sums: Sums) -> DotProduct | None:
    if _by_matrix_products(sums) is not None and takes_rows(sums.contraction):
        return None  # it multiplies as many elements in one instruction as several of these
    found = dot_product_for(sums.contraction, sums.target, sums.is_packed_ahead)
    return _allowed(sums, found)


def _allowed(sums: Sums, found: _By | None) -> _By | None:
    """An instruction, if floats may be rounded as it does."""
    return None if found is None or (sums.strict and found.sum == "float32") else found


def _cycles_by(sums: Sums, by: DotProduct | MatrixProduct) -> float:
    return cycles_by(by, sums.contraction, sums.target)


def _write_by(sums: Sums, by: DotProduct | MatrixProduct) -> Iterable[Stage]:
    choose_products([sums])
    return (sums.stage, sums.last, *write_by_instruction(sums, by))


# -- Tiles --


def together(sums: Sums) -> list[Sums] | None:
    """The contractions that one epilogue reads, and whose sums are computed in the same tiles; None
    where the epilogue reads one alone, or computing them together takes longer."""
    s, last = sums.schedule, sums.last
    if last is sums.stage or not is_tiled(sums):
        return None
    assert sums.program is not None
    read = _read_by(s, last)
    find = partial(sums_of, sums.program, kept=sums.kept, by_hand=sums.by_hand)
    found = [each for stage in s.stages if stage in read and (each := find(stage))]
    alike = [
        each for each in found if each.last is last and is_tiled(each) and are_alike(sums, each)
    ]
    return alike if len(alike) > 1 and pays_together(alike) else None


def _read_by(s: Schedule, stage: Stage) -> set[Stage]:
    """The stages that a stage reads, directly or through inlined stages."""
    readers = (stage, *s.inlined_in(stage))
    found = {s[tensor] for each in readers for tensor in each.op.input_tensors}
    return {each for each in found if not each.inlined}


def _write_group(_: Sums, group: Sequence[Sums]) -> Iterable[Stage]:
    choose_products(group)
    write_tiled(group)
    return (*(each.stage for each in group), group[0].last)


def _write_alone(sums: Sums, _: bool) -> Iterable[Stage]:
    best = with_best_row(sums.contraction, sums.target)
    return _write_group(sums, [replace(sums, contraction=best)])


def _cycles_of_tiles(contraction: Contraction, target: Target) -> float:
    if contraction.rows:
        return max(cycles_of(contraction, target), cycles_of_coming(contraction, target))
    return cycles_without_rows(contraction, target)


def _cycles_of_convolution(contraction: Contraction, target: Target) -> float:
    cycles = cycles_of_convolution(contraction, target)
    return max(cycles, cycles_of_coming(contraction, target))


def choose_products(group: Sequence[Sums]) -> None:
    """Notes the products of a group, and how their sums reach the stage that reads them."""
    for each in group:
        choose_form(each.schedule, each.contraction, "matrix product")
        if each.last is not each.stage:
            text = "{last} takes the sums in the tile"
            choose(each.schedule, "epilogue", text, last=each.last)
    if len(group) > 1:
        text = "the sums of {stages} are computed in the same tiles, and do not pass through memory"
        choose(group[0].schedule, "strategy", text, stages=[each.stage for each in group])


def _of(value: Callable[[Contraction, Target], float]) -> Callable[..., float]:
    """A function of sums, whose contraction and target `value` takes."""
    return lambda sums, *_: value(sums.contraction, sums.target)


def _are_many(sums: Sums) -> bool:
    """Whether so many rows use the columns' factor that an instruction surely takes the fewest
    cycles, or this factor is packed ahead."""
    return sums.ahead is not None or not is_for_few(sums.contraction, MOST_ROWS)


# fmt: off
STRATEGIES: tuple[Strategy, ...] = (
    Strategy("lanes of sums", _in_lanes, lambda _, found: found[1], _write_lanes, False,
             margin=ALIKE),
    Strategy("matrix-product instructions", _by_matrix_products, _cycles_by, _write_by,
             is_sure=_are_many, margin=ALIKE),
    Strategy("plain reduction", _is_plain, _of(cycles_of_plain), _leave_to_rows, False,
             is_sure=lambda _: True),
    Strategy("streamed", lambda x: x.ahead is None and can_be_streamed(x.contraction, x.target),
             _of(cycles_of_streamed), _write_streamed, False, margin=1 / ALIKE),
    Strategy("dot-product instructions", _by_dot_products, _cycles_by, _write_by,
             is_sure=_are_many),
    Strategy(CONVOLUTION, _of(is_convolution), _of(_cycles_of_convolution), write_convolution,
             is_sure=lambda _: True),
    Strategy(TOGETHER, together, None, _write_group),
    Strategy(TILES, lambda _: True, _of(_cycles_of_tiles), _write_alone),
)
# fmt: on
"""In the order in which they are compared."""
