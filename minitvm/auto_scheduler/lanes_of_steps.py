"""Sums over images, for each channel by itself, in vectors whose lanes are steps of the sum.

The weights of a depthwise convolution get as their gradient a few sums over the image, at the
places of a window. These don't fill vectors, but neighbours in a row of the image do::

    for each channel, on all threads:
        parts[r, q, lane] = 0                        # "local": vector registers
        for y, and x in vectors:
            for all r and q, written out:
                parts[r, q, lane] += image[y + r, x + lane + q] * adjoint[y, x + lane]
        W[r, q] = sum of parts[r, q, lane] over lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.auto_scheduler.loops import compute_of, factored, fused, innermost, write_sums
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterVar, Reduce


def fills_lanes_with_steps(contraction: Contraction, target: Target) -> bool:
    """Whether columns along the last axis leave lanes idle, while the last reduction axis is as
    long as a vector, and each of its steps goes to the neighbouring element of both factors."""
    op, a, b = contraction.op, contraction.a, contraction.b
    reduce = op.body[0]
    assert isinstance(reduce, Reduce)
    if not op.reduce_axis or len(contraction.factors) != 2 or len(op.outputs) > 1:
        return False
    if not is_commutative(reduce.combiner):
        return False
    lanes, step = target.lanes(op.output(0).dtype), op.reduce_axis[-1]
    columns, steps = extent_of(contraction.column), extent_of(step)
    if columns is None or steps is None or columns >= lanes or steps < lanes:
        return False
    shared, window = _axes_of(contraction)
    are_neighbours = all(each.along(step) == 1 for each in (a, b))
    return are_neighbours and bool(shared) and bool(_written_out(window, target))


def write_lanes_of_steps(
    s: Schedule, contraction: Contraction, target: Target
) -> tuple[list[Stage], IterVar]:
    """Writes the schedule; returns the scheduled stages, and the loop over channels."""
    total = contraction.op.output(0)
    lanes = target.lanes(total.dtype)
    shared, window = ([*map(contraction.op.axis.index, axes)] for axes in _axes_of(contraction))
    several = [contraction.op.axis[i] for i in window]
    written = [contraction.op.axis.index(each) for each in _written_out(several, target)]
    choose(s, "strategy", "each channel by itself: {lanes} neighbouring steps of the sum in the "
           "lanes, {sums} sums at once", stage=total.op.name, lanes=lanes,
           sums=prod(extent_of(contraction.op.axis[i]) or 1 for i in written))  # fmt: skip
    stage = s[total]
    _, lane = stage.split(compute_of(stage).reduce_axis[-1], factor=lanes)
    part = factored(s, stage, lane, len(contraction.op.axis)).set_scope("local")
    axes = compute_of(stage).axis
    channels = [axes[i] for i in shared]
    outside = [axes[i] for i in range(len(axes)) if i not in shared and i not in written]
    stage.reorder(*channels, *outside, *(axes[i] for i in written))
    *own, lane = (op := compute_of(part)).axis
    tile = [*(own[i] for i in written), lane]
    write_sums(part, (stage, [*channels, *outside][-1]), tile, op.reduce_axis)
    task = fused(stage, channels)
    stage.parallel(task)
    if not outside:
        part.compute_at(stage, task)
    return [stage, part], task


def _axes_of(contraction: Contraction) -> tuple[list[IterVar], list[IterVar]]:
    """The data axes that both factors read, and the other data axes of more than one element."""
    axes, a, b = contraction.op.axis, contraction.a, contraction.b
    shared = [axis for axis in axes if a.reads(axis) and b.reads(axis)]
    return shared, [axis for axis in axes if axis not in shared and extent_of(axis) != 1]


def _written_out(axes: Sequence[IterVar], target: Target) -> list[IterVar]:
    """The axes of the sums that registers hold together."""
    return innermost(axes, target.vector_registers - 4)
