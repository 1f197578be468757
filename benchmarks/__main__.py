"""Runs the benchmarks: ``python -m benchmarks [GROUP ...]``, in the repository's root."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import (
    batches,
    build,
    calls,
    conv,
    device_copies,
    devices,
    einsum,
    exchange,
    functions,
    gemm,
    graphs,
    ladder,
    machine,
    matmul,
    memory,
    model,
    operators,
    peers,
    reductions,
    report,
    semirings,
    speeds,
    start,
    symbolic,
    threads,
)
from benchmarks.measure import QUICK, Row, Settings

# A group is a function of the settings that yields rows.
GROUPS: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "start": start.rows,
    "build": build.rows,
    "calls": calls.rows,
    "batches": batches.rows,
    "exchange": exchange.rows,
    "devices": devices.rows,
    "copies": device_copies.rows,
    "matmul": matmul.rows,
    "ladder": ladder.rows,
    "threads": threads.rows,
    "gemm": gemm.rows,
    "conv": conv.rows,
    "einsum": einsum.rows,
    "graphs": graphs.rows,
    "memory": memory.rows,
    "reductions": reductions.rows,
    "semirings": semirings.rows,
    "math": functions.rows,
    "model": model.rows,
    "operators": operators.rows,
    "symbolic": symbolic.rows,
}
# Those of many shapes: a line for each as it is measured, and a summary.
_TARGETS = {
    "gemm": gemm.TARGETS,
    "conv": conv.TARGETS,
    "einsum": einsum.TARGETS,
    "graphs": graphs.TARGETS,
    "reductions": reductions.TARGETS,
}
_SUMMARIES = {
    "math": functions.summary,
    "model": model.summary,
    "operators": operators.summary,
    "symbolic": symbolic.summary,
}
# The first line and the line of a row, of groups that are printed as they are measured.
_LINES = {
    **dict.fromkeys(_TARGETS, (speeds.HEAD, speeds.line)),
    "operators": (operators.HEAD, operators.line),
    "symbolic": (symbolic.HEAD, symbolic.line),
}
_LATEST = Path(__file__).resolve().parent / "results" / "latest.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the groups asked for, by default all, and reports them."""
    options = _parser().parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    if options.repeat is not None:
        settings = dataclasses.replace(settings, repeat=options.repeat)
    settings = dataclasses.replace(settings, only=options.only)
    if options.threads is not None:
        peers.allow(options.threads)
        settings = dataclasses.replace(settings, threads=(options.threads,))
    described = machine.describe()
    print(report.machine_lines(described), flush=True)
    groups: dict[str, list[Row]] = {}
    for name in dict.fromkeys(options.groups or GROUPS):
        groups[name] = _rows(name, settings)
    report.write_json(options.json, report.document(described, settings, groups))
    print(f"\nJSON: {options.json}")
    if options.plot is not None:
        print(report.plot(options.plot, groups))


def _rows(group: str, settings: Settings) -> list[Row]:
    """The rows of a group, shown; those of :data:`_LINES` one by one."""
    if group not in _LINES:
        rows = list(GROUPS[group](settings))
        print(f"\n{report.table(group, rows)}", flush=True)
    else:
        rows = []
        head, line = _LINES[group]
        print(f"\n{group}: {head}", flush=True)
        for row in GROUPS[group](settings):
            print(line(row), flush=True)
            rows.append(row)
        if not rows:
            print(f"nothing has {settings.only!r} in its name")
            return rows
    if group in _TARGETS:
        print(f"\n{speeds.summary(rows, _TARGETS[group])}", flush=True)
    if group in _SUMMARIES:
        print(f"\n{_SUMMARIES[group](rows)}", flush=True)
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures minitvm and its peers in turn, on one thread (the groups "
        "ladder, threads, gemm, conv, einsum, graphs, memory and reductions: also on two). "
        "Medians; losses are printed as wins are.",
    )
    listed = ", ".join(GROUPS)
    parser.add_argument(
        "groups", nargs="*", type=_group, metavar="GROUP", help=f"of {listed}; by default all"
    )
    parser.add_argument(
        "--json", type=Path, default=_LATEST, metavar="FILE", help="where results go"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draws the times (matplotlib)")
    parser.add_argument(
        "--only",
        default="",
        metavar="PART",
        help="only rows whose name contains this, as float32/squares, 'NT 64' or 'rms_norm "
        "backward large': in the groups gemm, conv, einsum, graphs, memory, reductions, semirings, "
        "math, model, operators and symbolic",
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        metavar="N",
        help="gemm, conv, einsum, graphs, memory and reductions on this number alone; operators "
        "and symbolic on this number",
    )
    parser.add_argument("--repeat", type=_positive, metavar="N", help="rounds in one process")
    parser.add_argument(
        "--quick", action="store_true", help="a try of everything, not a measurement"
    )
    return parser


def _group(text: str) -> str:
    if text not in GROUPS:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(GROUPS)}, got {text!r}")
    return text


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


if __name__ == "__main__":
    main()
