"""Schedules scans: the stages of a step in loops of their own, or all steps as a running reduction.

A scan that combines its state with one term a step is a running reduction, which is computed where
its results are stored in the end (:mod:`running`). In any other scan, the stages of a step are
scheduled as those of a program that computes one step. ::

    for t:
        for tiles of rows and columns, on all threads
            P = the tile of H[t - 1] by W
            H[t] = tanh(P + X[t])
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import partial

from minitvm.auto_scheduler.across import write_across
from minitvm.auto_scheduler.attempts import Attempt
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import distances_of, extent_of
from minitvm.auto_scheduler.loops import compute_of
from minitvm.auto_scheduler.packing import place_copy, write_copy
from minitvm.auto_scheduler.running import running_axis
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import reads_of
from minitvm.te.schedules.scans import (
    find_scans,
    moved_reduction,
    reduction_of_scan,
    stages_of_step,
)
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ScanOp, Tensor


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
    choose(s, "strategy", "a running reduction of the terms of all steps", stage=scan.name)
    s.reduce_scan(op.output(0))
    for reader in s.readers(scan) if scan not in kept else ():
        moved = None if reader.is_touched else moved_reduction(s, reader)
        if moved is not None and running_axis(moved) is not None:
            s.reverse_compute_inline(reader.op.output(0))
    return True


def write_steps(
    attempt: Attempt, stages: Iterable[Stage], by_hand: Container[Stage], target: Target
) -> tuple[list[Stage], set[Stage]]:
    """Lets the stages inside of scans be computed for one step. Returns those of `stages` that can
    be scheduled then, and the stages that are computed before a scan which reads them. Stages that
    a user scheduled, `by_hand`, stay as they are."""
    s = attempt.schedule
    for scan in _scans(s):
        attempt.follow("steps", scan, partial(_write_step, s, scan, by_hand, target))
    inside = find_scans(s).inside
    left = [stage for stage in stages if stage not in inside or stage.time is not None]
    read = {s[tensor] for stage in inside for tensor in stage.op.input_tensors} - inside.keys()
    return left, read


def _write_step(s: Schedule, scan: Stage, by_hand: Container[Stage], target: Target) -> bool | None:
    stages = [stage for stage in stages_of_step(s, scan) if stage not in by_hand]
    if not stages:
        return None
    choose(s, "strategy", "the stages of a step run in loops of their own", stage=scan.name)
    for stage in stages:
        for tensor in stage.op.input_tensors:
            _write_transposed(s, stage, tensor, target)
    s.drop_time(scan.op.output(0), [stage.op.output(0) for stage in stages])
    return True


def _write_transposed(s: Schedule, stage: Stage, tensor: Tensor, target: Target) -> None:
    """Transposes a tensor whose neighbours along time lie side by side in memory while neighbours
    along the last axis lie apart. Without this, each step would read one element of each cache
    line."""
    op = compute_of(stage)
    if op.reduce_axis or len(op.axis) < 2 or extent_of(op.axis[-1]) == 1:
        return
    time, last = op.axis[0], op.axis[-1]
    for i, load in enumerate(reads := reads_of(op, tensor)):
        distance = distances_of(load, op)
        if 0 < distance.get(time.var, 0) < distance.get(last.var, 0):
            copy = s[s.cache_access(tensor, "global", stage.op, i if len(reads) > 1 else None)]
            choose(s, "packing", "transposed, so that each step reads lines of it",
                   stage=copy.name)  # fmt: skip
            if write_across(s, copy, target) is None:
                write_copy(copy, target)
                place_copy(copy, None)
            _write_transposed(s, stage, tensor, target)
            return
