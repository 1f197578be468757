"""Scans: running reductions, or stages of which each step computes the elements of one time.

A scan that combines its state with one term in each step is a running reduction, and is computed in
the memory of its results. In any other scan, the stages of a step are scheduled like those of a
program that computes one step. ::

    for t:
        for tiles of rows and columns, on all threads
            P = the tile of H[t - 1] by W
            H[t] = tanh(P + X[t])

An operand whose neighbours along time lie side by side is transposed first
(:func:`minitvm.auto_scheduler.layouts.write_operands`). Otherwise, each step would read one element
of each cache line.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import partial

from minitvm.auto_scheduler.attempts import Attempt, Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import running_axis
from minitvm.auto_scheduler.layouts import write_operands
from minitvm.auto_scheduler.packing import write_whole_copy
from minitvm.te.schedules.places_needed import places_needed
from minitvm.te.schedules.scans import (
    find_scans,
    moved_reduction,
    reduction_of_scan,
    stages_of_step,
)
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ScanOp


def write_running_scans(attempt: Attempt, kept: Container[Stage]) -> None:
    """Turns scans that are running reductions into such. Stages of `kept` stay as they are."""
    s = attempt.schedule
    for scan in _scans(s):
        attempt.follow("running reduction", scan, partial(_write_reduction, s, scan, kept))


def _scans(s: Schedule) -> list[Stage]:
    return [stage for stage in s.stages if isinstance(stage.op, ScanOp)]


def _write_reduction(s: Schedule, scan: Stage, kept: Container[Stage]) -> bool | None:
    op = scan.op
    assert isinstance(op, ScanOp)
    if scan.is_touched or any(s[part] in kept for part in (*op.update, *op.init)):
        return None
    if reduction_of_scan(s, scan) is None:
        return None
    choose(scan, "strategy", "a running reduction of the terms of all steps")
    s.reduce_scan(op.output(0))
    for reader in s.readers(scan) if scan not in kept else ():
        moved = None if reader.is_touched else moved_reduction(s, reader)
        if moved is not None and running_axis(moved) is not None:
            s.reverse_compute_inline(reader.op.output(0))
    return True


def write_steps(attempt: Attempt, program: Program, stages: Iterable[Stage]) -> list[Stage]:
    """Lets the stages inside of scans be computed for one step. Returns those of `stages` that can
    be scheduled then."""
    s = attempt.schedule
    for scan in _scans(s):
        attempt.follow("steps", scan, partial(_write_step, program, scan))
    inside = find_scans(s).inside
    read = {s[tensor] for stage in inside for tensor in stage.op.input_tensors}
    program.whole.update(read - inside.keys())
    return [stage for stage in stages if stage not in inside or stage.time is not None]


def _write_step(program: Program, scan: Stage) -> bool | None:
    s = program.schedule
    stages = [stage for stage in stages_of_step(s, scan) if stage not in program.by_hand]
    if not stages:
        return None
    choose(scan, "strategy", "the stages of a step run in loops of their own")
    for stage in stages:
        for copy in write_operands(program, stage, in_step=True) or ():
            write_whole_copy(s, copy, program.target)
    s.drop_time(scan.op.output(0), [stage.op.output(0) for stage in stages])
    if (needed := places_needed(s, scan)) is not None:
        choose(scan, "places", "a step computes what later ones read: {needed}", needed=needed)
        stages[-1].set_store_predicate(needed)
    return True
