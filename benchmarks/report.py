"""What is shown of the rows: a table, a JSON file, a plot."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import OURS, Measured, Row, Settings

Groups = Mapping[str, Sequence[Row]]
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BUSY = 0.2  # of a core more than there should be threads: there were more


def seconds(value: float) -> str:
    """A time to three digits.

    >>> seconds(0.0123)
    '12.3 ms'
    """
    scale, unit = next((u for u in _UNITS if value >= u[0]), _UNITS[-1])
    return f"{value / scale:.3g} {unit}"


def machine_lines(machine: Mapping[str, str]) -> str:
    """The machine, a line each."""
    width = max(map(len, machine))
    return "\n".join(f"{name:{width}}  {value}" for name, value in machine.items())


def table(group: str, rows: Sequence[Row]) -> str:
    """The rows of a group, aligned; under each what was measured, and every peer with
    minitvm's time in its own."""
    head = (group, "minitvm", "best peer", "minitvm / peer", "target")
    body = [(row.name, seconds(row.ours), _best(row), _verdict(row), _target(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [_aligned(head, widths), _aligned(["-" * width for width in widths], widths)]
    what = ""
    for row, cells in zip(rows, body, strict=True):
        if what not in ("", row.what):
            lines.append("")
        lines.append(_aligned(cells, widths))
        if row.what != what:
            lines.append(f"    {row.what}")
        what = row.what
        if details := _details(row):
            lines.append(f"    {details}")
    return "\n".join(lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{c:{w}}" for c, w in zip(cells, widths, strict=True)).rstrip()


def _best(row: Row) -> str:
    best = row.best_peer
    return "-" if best is None else f"{best} {seconds(row.peers[best].seconds)}"


def _verdict(row: Row) -> str:
    if row.ratio is None:
        return "-"
    return f"{row.ratio:.2f} ({'slower' if row.ratio > 1 else 'faster'})"


def _target(row: Row) -> str:
    if row.target is None:
        return "-"
    return f"{seconds(row.target)}: {'met' if row.met else 'MISSED'}"


def _details(row: Row) -> str:
    parts = [
        f"{name} {seconds(found.seconds)} ({row.ours / found.seconds:.2f})"
        for name, found in row.peers.items()
    ]
    parts += [f"{name} {reason}" for name, reason in row.missing.items()]
    more = "NOT ONE THREAD" if row.threads == 1 else f"MORE THAN {row.threads} THREADS"
    parts += [
        f"{more}: {name} kept {found.cores_busy:.1f} cores busy"
        for name, found in row.measured.items()
        if found.cores_busy is not None and found.cores_busy > row.threads + _BUSY
    ]
    return "; ".join(parts)


def document(machine: Mapping[str, str], settings: Settings, groups: Groups) -> dict[str, Any]:
    """Everything, as JSON has it; times are in seconds."""
    return {
        "machine": dict(machine),
        "settings": {
            "repeat": settings.repeat,
            "least_seconds": settings.least,
            "processes": settings.processes,
        },
        "groups": {name: [_row(row) for row in rows] for name, rows in groups.items()},
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "what": row.what,
        "minitvm": _measured(row.measured[OURS]) if OURS in row.measured else None,
        "peers": {name: _measured(found) for name, found in row.peers.items()},
        "missing": dict(row.missing),
        "best_peer": row.best_peer,
        "ratio": row.ratio,
        "target": row.target,
        "met": row.met,
        "threads": row.threads,
        "contraction": None if row.contraction is None else dataclasses.asdict(row.contraction),
    }


def _measured(found: Measured) -> dict[str, float | None]:
    return dataclasses.asdict(found)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document, and the folder it goes to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def plot(path: Path, groups: Groups) -> str:
    """Draws the times on one logarithmic axis; says what became of it."""
    if importlib.util.find_spec("matplotlib") is None:
        return "plot: not drawn, matplotlib is not installed"
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for group in groups.values() for row in group]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(rows)), layout="constrained")
    names = list(dict.fromkeys(name for row in rows for name in row.measured))
    for index, name in enumerate(names):
        found = [
            (row.measured[name].seconds, y) for y, row in enumerate(rows) if name in row.measured
        ]
        style = {"marker": "D", "s": 60, "zorder": 3} if name == OURS else {"marker": "o", "s": 30}
        axes.scatter(*zip(*found, strict=True), color=f"C{index}", label=name, **style)
    wanted = [(row.target, y) for y, row in enumerate(rows) if row.target is not None]
    if wanted:
        axes.scatter(*zip(*wanted, strict=True), marker="|", s=200, color="black", label="target")
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds, median (further left is faster)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return f"plot: {path}"
