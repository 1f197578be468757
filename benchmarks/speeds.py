"""What is shown of contractions: a line for each shape, and what the shapes come to together.

Here a figure is a speed in that of the best peer: above 1, minitvm is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from benchmarks.measure import OURS, Measured, Row
from benchmarks.report import seconds

LOST = 0.95  # what is slower than this has lost
_BUILD_MEDIAN, _BUILD_WORST = 0.100, 0.300  # seconds
_BUSY = 0.2  # of a core more than there should be threads: there were more

HEAD = (
    f"{'shape (* held out)':44} T {'minitvm':>8} {'GFLOP/s':>8}  {'speed':>6} (undisturbed)"
    "  in the speed of each peer"
)


@final
@dataclass(frozen=True, slots=True)
class Target:
    """What a part of the rows is to reach: a geometric mean, and perhaps a worst."""

    title: str
    mean: float
    covers: Callable[[Row], bool]
    worst: float | None = None


def speed(row: Row) -> float | None:
    """The best peer's time in minitvm's, of the medians."""
    return None if row.ratio is None else 1 / row.ratio


def undisturbed(row: Row) -> float | None:
    """The same of the least times, on one thread those of the processor: other processes disturb
    these less."""
    if OURS not in row.measured or not row.counted:
        return None
    return min(_least(row, peer) for peer in row.counted.values()) / _least(row, row.measured[OURS])


def _least(row: Row, found: Measured) -> float:
    return (found.processor if row.threads == 1 else found.least) or found.least or found.seconds


def line(row: Row) -> str:
    """A shape in one line."""
    about = row.contraction
    assert about is not None
    name = f"{about.family} {row.name}{' *' if about.held_out else ''}"
    if OURS not in row.measured:
        return f"{name:44} {row.threads} {row.missing[OURS]}"
    found = speed(row)
    rate = about.flop / row.ours / 1e9
    verdict = "" if found is None else f"{found:6.2f} ({undisturbed(row):.2f})"
    parts = [f"{peer} {it.seconds / row.ours:.2f}" for peer, it in row.peers.items()]
    parts += [f"{peer}: {reason}" for peer, reason in row.missing.items()]
    parts += [
        f"MORE THAN {row.threads} THREADS: {contender} kept {it.cores_busy:.1f} cores busy"
        for contender, it in row.measured.items()
        if it.cores_busy is not None and it.cores_busy > row.threads + _BUSY
    ]
    return (
        f"{name:44} {row.threads} {seconds(row.ours):>8} {rate:8.1f}  {verdict:13}"
        f"{'  LOST' if found is not None and found < LOST else '      '}  {'; '.join(parts)}"
    )


def summary(rows: Sequence[Row], targets: Sequence[Target]) -> str:
    """Means, worst shapes and targets, all losses, and the time to build."""
    lines = [f"{'':52} shapes    mean (undisturbed)  worst below {LOST}   target"]
    for target in targets:
        for threads in sorted({row.threads for row in rows}):
            covered = [row for row in rows if target.covers(row) and row.threads == threads]
            lines += _means(target, threads, covered)
    lines += ["", f"Slower than {LOST} of the best peer, the worst first:", *_losses(rows)]
    lines += ["", _build(rows)]
    return "\n".join(lines)


def _means(target: Target, threads: int, rows: Sequence[Row]) -> Iterator[str]:
    """A line for all shapes of a target, and one each for those tuned on and held out."""
    if not rows:
        return
    title = f"{target.title}, {threads} thread{'s' if threads > 1 else ''}"
    yield f"{title:52} {_figures(rows)}   {_verdict(target, rows)}"
    for kind, held_out in (("tuned on", False), ("held out", True)):
        part = [row for row in rows if row.contraction and row.contraction.held_out == held_out]
        if part and len(part) < len(rows):
            yield f"{'    ' + kind:52} {_figures(part)}"


def _speeds(rows: Sequence[Row], of: Callable[[Row], float | None] = speed) -> list[float]:
    return [found for row in rows if (found := of(row)) is not None]


def _figures(rows: Sequence[Row]) -> str:
    found = _speeds(rows)
    failed = sum(OURS not in row.measured for row in rows)
    said = f", {failed} FAILED" if failed else ""
    if not found:
        return f"{len(rows):6}: no peer{said}"
    lost = sum(value < LOST for value in found)
    least = f"({_mean(_speeds(rows, undisturbed)):.2f})"
    return f"{len(rows):6} {_mean(found):7.2f} {least:13} {min(found):6.2f} {lost:10}{said}"


def _mean(values: Sequence[float]) -> float:
    """The geometric mean.

    >>> _mean([0.5, 2.0])
    1.0
    """
    return math.exp(statistics.fmean(map(math.log, values)))


def _verdict(target: Target, rows: Sequence[Row]) -> str:
    wanted = f"mean {target.mean}" + ("" if target.worst is None else f", worst {target.worst}")
    found = _speeds(rows)
    if not found:
        return wanted
    met = _mean(found) >= target.mean and min(found) >= (target.worst or 0)
    met = met and all(OURS in row.measured for row in rows)
    return f"{wanted}: {'met' if met else 'MISSED'}"


def _losses(rows: Sequence[Row]) -> list[str]:
    failed = [row for row in rows if OURS not in row.measured]
    lost = [row for row in rows if _worse(row) < LOST]
    return [line(row) for row in [*failed, *sorted(lost, key=_worse)]] or ["none"]


def _worse(row: Row) -> float:
    """The speed, disturbed or not."""
    return min(speed(row) or 1.0, undisturbed(row) or 1.0)


def _build(rows: Sequence[Row]) -> str:
    times = {
        f"{row.contraction.family} {row.name}": row.contraction.build
        for row in rows
        if row.contraction is not None and row.contraction.build is not None
    }
    if not times:
        return "Nothing was built."
    median, worst = statistics.median(times.values()), max(times, key=lambda name: times[name])
    met = median <= _BUILD_MEDIAN and times[worst] <= _BUILD_WORST
    return (
        f"Scheduling and building {len(times)} programs: median {seconds(median)}, "
        f"worst {seconds(times[worst])} ({worst}); target {seconds(_BUILD_MEDIAN)}, "
        f"{seconds(_BUILD_WORST)}: {'met' if met else 'MISSED'}"
    )
