"""The forms of a contraction: which one takes the fewest cycles.

Each form has a model of its own: lanes of sums, sums one by one, streams, convolutions, tiles. What
a contraction takes as it is written is that of the form that it gets; :mod:`layouts` compares it
with other orders of its axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from minitvm.auto_scheduler.contraction import (
    NEAR,
    Contraction,
    Factor,
    factors_of,
    long_axes,
)
from minitvm.auto_scheduler.convolution import (
    cycles_of_convolution,
    is_convolution,
    reused_axis,
    row_of,
)
from minitvm.auto_scheduler.cost import Tile, transfer_cycles, usual_bytes_of, usual_size
from minitvm.auto_scheduler.few_rows import is_left_plain, is_streamed, streamed_cycles
from minitvm.auto_scheduler.instructions import cycles_by_instruction
from minitvm.auto_scheduler.lanes import best_in_lanes
from minitvm.auto_scheduler.tiled import cycles_of
from minitvm.auto_scheduler.tiles import ALIKE
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target
from minitvm.te.tensor import ComputeOp

_APART = 2  # loads in the time of one element of a vector whose elements lie apart
_ROWS = 4  # sums of a lane
_LANES = 2  # cycles of a shuffle and an addition


def tile_in_lanes(contraction: Contraction, target: Target) -> Tile | None:
    """The tile of a contraction by lanes of sums, if that takes fewer cycles than other forms.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((16, 4096), name="A"), te.placeholder((16, 4096), name="B")
    >>> k = te.reduce_axis((0, 4096), name="k")
    >>> C = te.compute((16, 16), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    >>> znver3 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    >>> tile_in_lanes(contraction_of(C.op), znver3)
    Tile(rows=6, columns=2)
    """
    found = best_in_lanes(contraction, target)
    if found is None:
        return None
    tile, cycles = found
    return tile if cycles * ALIKE < _cycles_of_others(contraction, target) else None


def cycles_of_strategy(contraction: Contraction, target: Target, *, in_order: bool) -> float:
    """The cycles of a contraction by the strategy that it gets."""
    in_lanes = None if in_order else best_in_lanes(contraction, target)
    others = _cycles_of_others(contraction, target, in_order=in_order)
    return min(inf if in_lanes is None else in_lanes[1], others)


def _cycles_of_others(contraction: Contraction, target: Target, *, in_order: bool = False) -> float:
    is_exact = not contraction.op.output(0).dtype.is_float
    if is_exact or not in_order:
        cycles = cycles_by_instruction(contraction, target)
        if cycles is not None:
            return cycles
    if is_left_plain(contraction):
        return _cycles_one_by_one(contraction.op, contraction.factors, target)
    if is_streamed(contraction, target):
        return streamed_cycles(contraction, target)
    if not contraction.rows or is_convolution(contraction, target):
        if row_of(contraction) is not None:
            return cycles_of_convolution(contraction, target)
        return _cycles_in_lanes(contraction, target)
    return cycles_of(contraction, target)


def _cycles_one_by_one(op: ComputeOp, factors: Sequence[Factor], target: Target) -> float:
    """The cycles of sums one by one, in vectors along the steps. Their lanes are added at the end;
    short ones side by side."""
    cpu = target.processor
    lanes = target.lanes(op.output(0).dtype)
    results, steps = usual_size(op.axis), usual_size(op.reduce_axis)
    each = steps / lanes if steps < lanes else -(-steps // lanes)
    apart = [factor.along(op.reduce_axis[-1]) for factor in factors]
    loads = each * sum(_APART * lanes if n > NEAR else max(1, n) for n in apart)
    added = min(steps, lanes) / lanes * lanes.bit_length() * _LANES
    return results * (loads / cpu.loads + added) + _moved(factors, target)


def _cycles_in_lanes(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction both of whose factors change from lane to lane, or that has no
    rows. A few sums of a lane use an element again; the others read it from its cache."""
    op, cpu, column = contraction.op, target.processor, contraction.column
    dtype = op.output(0).dtype
    lanes, width = target.lanes(dtype), usual_size([column])
    vectors = usual_size(op.axis) // width * -(-width // lanes) * usual_size(op.reduce_axis)
    row = reused_axis(contraction)
    several = min(_ROWS, 1 if row is None else usual_size([row]))
    loads, came = 0.0, 0.0
    for each in contraction.factors:
        apart = each.along(column)
        again = several if row is not None and not each.reads(row) else 1
        loads += (_APART * lanes if apart > NEAR else max(1, apart)) / again
        lines = lanes * min(apart * dtype.itemsize, CACHE_LINE)
        came += transfer_cycles(lines, usual_bytes_of(each.tensor), target) / again
    return vectors * max(1 / cpu.ports, loads / cpu.loads, came)


def cycles_of_reduction(op: ComputeOp, target: Target) -> float:
    """The cycles of a reduction that uses no element again: in vectors of neighbouring results, if
    these read neighbouring terms, or of neighbouring steps."""
    factors, lanes = factors_of(op), target.lanes(op.output(0).dtype)
    column = long_axes(op.axis)[-1:]
    if not column or any(each.along(column[0]) not in (0, 1) for each in factors):
        return _cycles_one_by_one(op, factors, target)
    width = usual_size(column)
    vectors = usual_size([*op.axis, *op.reduce_axis]) / width * -(-width // lanes)
    return vectors * len(factors) / target.processor.loads + _moved(factors, target)


def _moved(factors: Sequence[Factor], target: Target) -> float:
    """The cycles in which factors come once from the caches that hold them."""
    sizes = [usual_bytes_of(each.tensor) for each in factors]
    return sum(transfer_cycles(size, size, target) for size in sizes)
