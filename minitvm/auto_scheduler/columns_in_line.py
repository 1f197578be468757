"""Products whose columns run along several axes, one line of memory: as columns along one axis.

The places of an image, as a convolution of 1 x 1 reads them, lie one behind the other in the image
and in the result. Vectors and panels needn't end with a row of the image then, and the sums are
those of a product of matrices::

    Y[f, y, x]        = sum(W[f, c] * X[c, y, x])
    made[f, y * w + x] = sum(W[f, c] * X[c, y, x])       # Y is a view of it

The stages that read the sums elementwise are computed along the same axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    Contraction,
    contraction_of,
    extent_of,
    is_line,
    long_axes,
)
from minitvm.auto_scheduler.loops import cached, compute_of
from minitvm.auto_scheduler.strategies import TILES, cycles_of_strategy, strategy_for
from minitvm.auto_scheduler.streams import line_of_columns
from minitvm.auto_scheduler.sums import Sums, is_elementwise, reads_in_order
from minitvm.te.schedules.layout import layout_of
from minitvm.te.schedules.rewrite_operations import in_layout
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import place_in_memory
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar, PrimExpr

_SURE = 1.3  # times the cycles of a convolution, whose loads the model takes to come in time


def write_columns_in_line(program: Program, stage: Stage) -> list[Stage] | bool | None:
    """Lets a product whose columns run along several axes, one line of memory, have them along one
    axis, and so the stages that read the sums elementwise; the last of these is a view of another
    stage then, which is returned. None for any other stage, and for a product that takes fewer
    cycles as it is."""
    if stage not in program.in_line:
        program.in_line.update(_stages_in_line(program, stage))
    count = program.in_line.get(stage)
    if count is None:
        return None
    axes = compute_of(stage).axis[-count:]
    choose(stage, "line", "the places along {axes} are places along one axis", axes=axes)
    s = program.schedule
    is_last = not s.readers(stage) or any(each not in program.in_line for each in s.readers(stage))
    made = cached(s, stage, "global") if is_last else stage
    made.transform_layout(_in_line(axes))
    made.simplify()
    if made is stage:
        return True
    stage.compute_view()
    return [made]


def _in_line(axes: Sequence[IterVar]) -> Callable[..., list[PrimExpr]]:
    """The layout in which the last axes of a stage, of known extents, are one dimension."""
    count, sizes = len(axes), [extent_of(axis) or 0 for axis in axes]
    return lambda *at: [*at[:-count], place_in_memory(at[-count:], sizes)]


def _stages_in_line(program: Program, stage: Stage) -> dict[Stage, int]:
    """A product and its readers whose last axes are better one axis, and the number of these
    axes."""
    contraction, target = contraction_of(stage.op), program.target
    # Only tiles of matrices request what comes from the L2 cache and beyond it, where a CPU waits.
    if contraction is None or len(contraction.op.outputs) > 1 or not target.processor.l2_latency:
        return {}
    if any(each.tensor in program.prepacked for each in contraction.factors):
        return {}
    count = _line_of(contraction)
    found = _readers_in_line(program, stage, count) if count > 1 else None
    is_better = found is not None and _is_better_in_line(contraction, count, program)
    return dict.fromkeys(found or (), count) if is_better else {}


def _is_better_in_line(contraction: Contraction, count: int, program: Program) -> bool:
    """Whether a contraction takes fewer cycles with its last axes as one."""
    op, target = contraction.op, program.target
    if strategy_for(Sums(contraction, target, program.strict)).name not in ("convolution", TILES):
        return False
    layout = layout_of(op.name, op.axis, _in_line(op.axis[-count:]))
    made = contraction_of(simplified(cast(ComputeOp, in_layout(op, layout))))
    if made is None or strategy_for(Sums(made, target, program.strict)).name != TILES:
        return False
    before, after = (
        cycles_of_strategy(each, target, strict=program.strict) for each in (contraction, made)
    )
    # Of any number of images, nobody knows the cache from which they come.
    return after < before * _SURE or None in map(extent_of, op.axis)


def _line_of(contraction: Contraction) -> int:
    """The number of the last axes that are columns, one line in all tensors, of known extents."""
    line, op = line_of_columns(contraction), contraction.op
    while line and (None in map(extent_of, line) or not is_line(op, line)):
        del line[0]
    is_last = line == [*op.axis[len(op.axis) - len(line) :]] and len(long_axes(line)) > 1
    return len(line) if is_last else 0


def _readers_in_line(program: Program, stage: Stage, count: int) -> list[Stage] | None:
    """A stage, and those that read it elementwise up to a tensor in memory, if the last axes of
    each may be one axis; None otherwise."""
    s, found = program.schedule, [stage]
    while True:
        op, readers = compute_of(stage), s.readers(stage)
        is_taken = stage.inlined or stage in program.by_hand or stage.time is not None
        if is_taken or not is_line(op, op.axis[-count:]):
            return None
        if stage.is_output:
            return None if readers else found
        if stage in program.kept:
            return None
        if len(readers) == 1 and reads_in_order(readers[0], stage):
            (stage,) = readers
            found.append(stage)
            continue
        return found if all(_reads_from_memory(each) for each in readers) else None


def _reads_from_memory(reader: Stage) -> bool:
    """Whether a stage has loops of its own, apart from those it reads: it reads each element for
    several results, or, as padding does, an element at another place."""
    return is_elementwise(reader.op) or contraction_of(reader.op) is not None
