"""Reductions over short pieces of lines, whose columns are added up first.

Where the channels are the last dimension, a group of channels is a short piece of each pixel. A
vector along a piece would be half empty, and its lanes would be combined for each pixel. So the
places in a piece become columns, whose partial results stay in vectors over all pixels::

    for u in groups, c in a group:                  # in vectors along u and c
        for p in pixels: T[u, c] += X[p, u * 6 + c]
    for u in groups:
        for c in a group: Y[u] += T[u, c]
"""

from __future__ import annotations

from math import lcm, prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import FAR, contraction_of, extent_of, factors_of, is_uneven
from minitvm.auto_scheduler.loops import compute_of, factored
from minitvm.auto_scheduler.reductions import is_in_order, runs_in_columns
from minitvm.auto_scheduler.running import lanes_of, running_axis
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Reduce

_LEAST = 16  # pieces, from which on one more step for each place in a piece costs little
_BETTER = 1.5  # the factor in instructions from which on the partial results pay


def write_short_lines(
    s: Schedule, stage: Stage, target: Target, strict: bool
) -> list[Stage] | None:
    """Lets another stage reduce the places of short pieces; returns it. None for a stage that reads
    no short pieces of lines, or whose terms have an order."""
    op = compute_of(stage)
    if not _is_plain(op) or is_in_order(op, strict):
        return None
    together = _rows_together(op, target)
    if together > 1:
        choose(s, "blocks", "{rows} rows of short lines have partial results of their own",
               stage=stage.name, rows=together)  # fmt: skip
        _, row = stage.split(op.reduce_axis[-1], factor=together)
        return [factored(s, stage, row, len(op.axis) - 1)]
    piece = _piece_of(op, target)
    if piece is None:
        return None
    choose(s, "strategy", "the {places} places along {axis} are reduced apart, as columns, and "
           "then together", stage=stage.name, places=extent_of(piece),
           axis=piece.var.name)  # fmt: skip
    return [factored(s, stage, piece, len(op.axis))]


def _is_plain(op: ComputeOp) -> bool:
    """Whether an operation is a reduction of all terms of a rectangle."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or reduce.init or is_uneven(op):
        return False
    return isinstance(reduce.condition, e.IntImm)


def _rows_together(op: ComputeOp, target: Target) -> int:
    """The number of neighbouring steps of a reduction whose lines, one behind the other, fill whole
    vectors in registers, enough to be under way together. 1 where lines fill as many by themselves,
    don't follow each other, or aren't many times as many."""
    if not op.axis or len(op.body) > 1 or running_axis(op) is not None:
        return 1
    column, k = op.axis[-1], op.reduce_axis[-1]
    width, extent, lanes = extent_of(column), extent_of(k), lanes_of(op, target)
    if width is None or width < 2 or not runs_in_columns(op, target) or contraction_of(op):
        return 1
    if any((each.along(column), each.along(k)) != (1, width) for each in factors_of(op)):
        return 1
    least = target.multiply_adds_under_way // 2 * lanes
    together = lcm(width, lanes) // width
    together *= max(1, least // (together * width))
    is_kept = together * width <= target.vector_registers * 3 // 4 * lanes
    is_many = extent is None or extent >= _LEAST * together
    return together if width < least and is_kept and is_many else 1


def _piece_of(op: ComputeOp, target: Target) -> IterVar | None:
    """The reduction axis along which all reads go through short pieces of lines; None if there is
    no such axis, or vectors along it or along the results cost as little."""
    if len(op.reduce_axis) < 2:
        return None
    reads = factors_of(op)
    near = [k for k in op.reduce_axis if all(each.along(k) == 1 for each in reads)]
    if not reads or len(near) != 1:
        return None
    (piece,) = near
    extent = extent_of(piece) or 0
    others = [k for k in op.reduce_axis if k is not piece]
    pieces = [FAR if (n := extent_of(k)) is None else n for k in others]
    if extent < 2 or prod(pieces) < _LEAST:
        return None
    # A gap must lie between two pieces; without one they are a single line.
    if any(all(each.along(k) == extent for each in reads) for k in others):
        return None
    lanes = lanes_of(op, target)
    loads = 1 + len(reads)
    along = (loads * -(-extent // lanes) + 2 * (lanes.bit_length() - 1)) / extent
    is_line = op.axis and all(each.along(op.axis[-1]) == extent for each in reads)
    width = extent * ((extent_of(op.axis[-1]) or lanes) if is_line else 1)
    across = loads / min(lanes, width)
    if across * _BETTER >= along or running_axis(op) is not None:
        return None
    return None if contraction_of(op) or runs_in_columns(op, target) else piece
