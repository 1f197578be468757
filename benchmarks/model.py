"""The auto-scheduler's model against measurements: a contraction's tiles, in the order that the
model predicts, and the time of each.

For each contraction some tiles are taken from all over the space, the best one first. A row is the
chosen tile beside the others; after a tile's sizes stand the cycles that the model predicts, in
those of the chosen one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

import minitvm
from benchmarks import conv, gemm
from benchmarks.contraction import Problem
from benchmarks.measure import OURS, Row, Settings, Timer, calls, on_threads, paced
from minitvm.auto_scheduler.cost import Tile
from minitvm.auto_scheduler.tiles import chosen_by

_TILES = 9  # of a contraction
_BUDGET = 1.0  # seconds of measuring a row
_MOST = 4.0  # times the least cycles: nobody would take such a tile
_SIZES = ((64, 64, 64), (256, 256, 256), (512, 512, 512), (1000, 1000, 1000), (200, 700, 90))
_LAYERS = (
    conv.Layer(64, 56, 64, 3, 1, 1),
    conv.Layer(256, 14, 1024, 1),
    conv.Layer(1024, 14, 256, 1),
    conv.Layer(128, 28, 128, 3, 2, 1),
    conv.Layer(192, 24, 192, 3, 1, 1, groups=6),
)
_PREDICTED = re.compile(r"\((.*)\)")


def rows(settings: Settings) -> Iterator[Row]:
    """Each contraction whose title contains ``settings.only``, on one thread."""
    for problem in list(_problems())[: None if settings.least else 1]:
        if settings.only in problem.title:
            yield _measured(problem, settings)


def _problems() -> Iterator[Problem]:
    for sizes in _SIZES:
        yield gemm.product("float32/NN", "float32", "NN", *sizes)
    for n in (64, 250, 500):
        yield gemm.product("float32/TT", "float32", "TT", n, n, n)
        yield gemm.product("float64/NN", "float64", "NN", n, n, n)
        yield gemm.product("int8/NN", "int8", "NN", n, n, n)
    for layer in _LAYERS:
        yield conv.convolution("conv", layer)


def _measured(problem: Problem, settings: Settings) -> Row:
    """A contraction by some of its tiles."""
    arguments = problem.program(minitvm.te)
    costs = dict[Tile, float]()

    def note(found: Mapping[Tile, float]) -> Tile:
        costs.update(found)
        return min(found, key=lambda tile: found[tile])

    with chosen_by(note):
        minitvm.auto_schedule(arguments[-1])
    order = sorted(costs, key=lambda tile: costs[tile])
    order = [tile for tile in order if costs[tile] <= _MOST * costs[order[0]]]
    places = np.unique(np.linspace(0, len(order) - 1, _TILES).round().astype(int))
    arrays = problem.arrays()
    contenders: dict[str, Timer] = {}
    for tile in (order[place] for place in places):
        with chosen_by(lambda found, tile=tile: tile if tile in found else next(iter(found))):  # type: ignore[misc]  # a closure
            schedule = minitvm.auto_schedule(arguments[-1])
        name = f"{tile.rows} x {tile.columns} ({costs[tile] / costs[order[0]]:.2f})"
        function = minitvm.build(schedule, arguments, name="f")
        contenders[name if contenders else OURS] = calls(partial(function, *arrays))
    timers = {name: on_threads(1, timer) for name, timer in contenders.items()}
    found = paced(timers, settings, _BUDGET)
    what = f"rank correlation {_rank_correlation(_pairs(Row('', '', found))):.2f}"
    return Row(problem.title, what, found)


def _pairs(row: Row) -> list[tuple[float, float]]:
    """What was predicted and what was measured."""
    found = []
    for name, each in row.measured.items():
        stated = _PREDICTED.search(name)
        found.append((1.0 if stated is None else float(stated[1]), each.processor or each.seconds))
    return found


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's coefficient: 1 where both are in the same order.

    >>> round(_rank_correlation([(1.0, 2.0), (1.5, 2.5), (2.0, 9.0)]), 6)
    1.0
    """
    if len(pairs) < 2:
        return 1.0
    predicted, measured = np.argsort(np.argsort(np.array(pairs), axis=0), axis=0).T
    return float(np.corrcoef(predicted, measured)[0, 1])


def summary(rows: Sequence[Row]) -> str:
    """How well the model orders tiles, and what is lost by the tiles that it chooses.

    The order counts tiles of all contractions, each time in that of the chosen tile.
    """
    everything = []
    lost = []
    for row in rows:
        pairs = _pairs(row)
        (_, ours), *_ = pairs
        everything += [(predicted, measured / ours) for predicted, measured in pairs]
        lost.append(ours / min(measured for _, measured in pairs))
    each = [_rank_correlation(_pairs(row)) for row in rows]
    return (
        f"rank correlation of predicted and measured times: {_rank_correlation(everything):.2f} "
        f"over all tiles, {np.median(each):.2f} the median of a contraction; the chosen tile takes "
        f"{np.exp(np.mean(np.log(lost))):.2f} times the fastest one measured, at most "
        f"{max(lost):.2f}"
    )
