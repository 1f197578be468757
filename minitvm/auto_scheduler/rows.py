"""Everything around contractions: elementwise stages and reductions, computed row by row.

Stages that meet in one row (a softmax's maximum, exponentials, sum and quotient) are computed for
each row together, so that a row is in the cache when the next stage reads it. Data axes run in
vectors: where a sum runs down the columns of a matrix, a vector of sums stays in a register. A sum
along neighbours is left as a plain loop, which LLVM turns into vectors of partial sums.

::

    for each row, on all threads:
        for k: largest = max(largest, X[row, k])
        for j in vectors: powers[j] = exp(X[row, j] - largest)
        for k: total += powers[k]
        for j in vectors: Y[row, j] = powers[j] / total
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial
from math import prod
from typing import final

from minitvm.auto_scheduler.across import write_across
from minitvm.auto_scheduler.attempts import Attempt
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import all_loads, extent_of
from minitvm.auto_scheduler.loops import compute_of, fused, run_parallel
from minitvm.auto_scheduler.reductions import (
    is_in_order,
    is_line,
    is_streamed,
    runs_in_columns,
    write_along,
    write_in_registers,
    write_streamed,
)
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Operation
from minitvm.tir.expr import IterVar


@final
@record()
class _Place:
    """The place of a stage: within the loops over the first `rows` axes of `root`."""

    root: Stage
    rows: int


def write_rows(
    attempt: Attempt,
    stages: Sequence[Stage],
    target: Target,
    kept: Container[Operation],
    *,
    strict: bool,
) -> None:
    """Schedules `stages`, given in an order in which each comes before its readers. Stages of
    `kept` are computed as a whole. `strict`: floats are combined in order."""
    s = attempt.schedule
    places: dict[Stage, _Place] = {}
    members: dict[Stage, list[Stage]] = {}
    for stage in reversed(stages):
        place = None
        if stage.op not in kept:
            find = partial(_place_of_readers, s, stage, places, target)
            place = attempt.follow("rows of its readers", stage, find)
        if place is not None:
            members.setdefault(place.root, []).append(stage)
        places[stage] = place or _Place(stage, len(compute_of(stage).axis))
    for root in stages:
        if places[root].root is root:
            inside = [(stage, places[stage].rows) for stage in members.get(root, [])]
            across = partial(write_across, s, root, target)
            if not inside and attempt.follow("blocks across", root, across):
                continue
            attempt.follow("rows", root, partial(_write_root, s, root, inside, target, strict))
        else:
            choose(s, "strategy", "computed row by row within {root}",
                   stage=root.name, root=places[root].root.name)  # fmt: skip


def _write_root(
    s: Schedule, root: Stage, inside: Sequence[tuple[Stage, int]], target: Target, strict: bool
) -> bool:
    """Schedules a stage and the stages `inside` of its rows, with the number of rows for each."""
    op = compute_of(root)
    in_columns = not op.reduce_axis or runs_in_columns(op, target)
    how = "in vectors of what lies side by side" if in_columns else "each along its line of memory"
    choose(s, "strategy", f"row by row, {how}", stage=root.name)
    if not inside:
        _write_alone(s, root, target, strict)
        return True
    if len(inside) == 1 and _is_tail_of(root, inside[0][0], target):
        run_parallel(root, write_in_registers(s, inside[0][0], root, 0, target), target)
        return True
    rows = min(most for _, most in inside)
    _write_columns(s, root, rows, target, strict)
    row = fused(root, compute_of(root).axis[:rows])
    root.parallel(row)
    for stage, _ in inside:
        _write_columns(s, stage, rows, target, strict)
        stage.compute_at(root, row)
    return True


# -- Stages that are computed together --


def _is_tail_of(root: Stage, stage: Stage, target: Target) -> bool:
    """Whether `root` reads elementwise what a reduction computes in columns."""
    op, last = compute_of(stage), compute_of(root)
    if not op.reduce_axis or last.reduce_axis or len(last.axis) != len(op.axis):
        return False
    return runs_in_columns(op, target) and _rows_in_common(last, stage) == len(op.axis)


def _place_of_readers(
    s: Schedule, stage: Stage, places: dict[Stage, _Place], target: Target
) -> _Place | None:
    """The place of all readers of a stage, in the rows that they share with it; None if there is no
    such place, or a reader needs more than one row. Sums of columns stay side by side."""
    if stage.is_output:
        return None
    op = compute_of(stage)
    most = len(op.axis) - bool(op.reduce_axis and runs_in_columns(op, target))
    found: list[_Place] = []
    for reader, rows in _readers(s, stage):
        if reader not in places:
            return None
        found.append(_Place(places[reader].root, min(rows, places[reader].rows)))
    if not found:  # ranges alone read it
        return None
    root, rows = found[0].root, min([most, *(place.rows for place in found)])
    return _Place(root, rows) if rows and all(place.root is root for place in found) else None


def _readers(s: Schedule, stage: Stage) -> Iterator[tuple[Stage, int]]:
    """The readers of a stage, through inlined stages as well; for each, the number of leading
    indices by which it reads only its own row."""
    for reader in s.readers(stage):
        rows = _rows_in_common(reader.op, stage)
        if not reader.inlined:
            yield reader, rows
            continue
        for other, more in _readers(s, reader):
            yield other, min(rows, more)


def _rows_in_common(reader: Operation, stage: Stage) -> int:
    if not isinstance(reader, ComputeOp):
        return 0
    axes = [axis.var for axis in reader.axis]
    rows = len(axes)
    for load in all_loads(reader):
        if load.producer in stage.op.outputs:
            pairs = list(zip(load.indices, axes, strict=False))
            differs = [index is not var for index, var in pairs]
            rows = min(rows, differs.index(True) if True in differs else len(pairs))
    return rows


# -- The loops of a stage --


def _write_alone(s: Schedule, stage: Stage, target: Target, strict: bool) -> None:
    """The loops of a stage in whose rows no other stage is computed."""
    op = compute_of(stage)
    if op.reduce_axis:
        in_order = is_in_order(op, strict)
        if not runs_in_columns(op, target):
            write_along(s, stage, target, in_order=in_order, alone=True)
        elif is_streamed(op, target):
            write_streamed(s, stage, target, in_order=in_order)
        else:
            run_parallel(stage, write_in_registers(s, stage, stage, 0, target), target)
    elif op.axis:
        first = _first_of_line(s, stage)
        column = _write_columns(s, stage, first, target, strict)
        outer = list(compute_of(stage).axis[:first])
        if column is not None and not outer:
            outer.append(column)
        stage.parallel(fused(stage, outer))


def _write_columns(
    s: Schedule, stage: Stage, rows: int, target: Target, strict: bool
) -> IterVar | None:
    """The loops inside of the first `rows`: the outer loop over vectors of an elementwise stage."""
    op = compute_of(stage)
    if op.reduce_axis:
        if not runs_in_columns(op, target):
            write_along(s, stage, target, in_order=is_in_order(op, strict), alone=False)
        elif rows < len(op.axis):
            write_in_registers(s, stage, stage, rows, target)
        return None
    if rows == len(op.axis):
        return None
    lanes = target.lanes(op.body[0].dtype)
    line = op.axis[max(rows, _first_of_line(s, stage)) :]
    outer, inner = stage.split(fused(stage, line), factor=_vector(line, lanes))
    stage.vectorize(inner)
    return outer


def _vector(line: Sequence[IterVar], most: int) -> int:
    """The number of lanes: `most`, or the number of elements."""
    extents = [extent_of(axis) for axis in line]
    known = prod(each or 1 for each in extents)
    return most if None in extents else max(1, min(most, known))


# -- Neighbours in memory --


def _first_of_line(s: Schedule, stage: Stage) -> int:
    """The first axis from which on all axes together run along one line of memory of every tensor,
    or don't index it. Fused into one loop, these axes need no index arithmetic."""
    op = compute_of(stage)
    last = len(op.axis) - 1
    first = next((i for i in range(last) if is_line(op, op.axis[i:])), last)
    inlined = [s[tensor] for tensor in op.input_tensors if s[tensor].inlined]
    return max([first, *(_first_of_line(s, each) for each in inlined)])
