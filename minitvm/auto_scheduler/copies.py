"""Copies of a contraction's factors, in which each dimension is an axis of the contraction."""

from __future__ import annotations

from typing import Any

from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    is_uneven,
    plain_axes_of,
)
from minitvm.auto_scheduler.loops import compute_of
from minitvm.auto_scheduler.tiles import panels_together
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import is_lazy, reads_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar
from minitvm.tir.functor import walk_once
from minitvm.tir.structural_equal import structural_equal


def can_be_copied(contraction: Contraction, factor: Factor) -> bool:
    """Whether a copy of a factor, by axes, has no more elements than the factor's tensor."""
    return copied_axes(contraction, factor) is not None


def copied_axes(contraction: Contraction, factor: Factor) -> list[IterVar] | None:
    """The axes that are the dimensions of a factor's copy: the axes that index the tensor's
    dimensions, or else all axes on which its elements depend, data axes first. None where a copy
    may have more elements than the tensor, a condition chooses elements, or ranges differ."""
    plain = plain_axes_of(contraction, factor)
    if plain is not None:
        return plain
    op = contraction.op
    chosen = any(isinstance(each, e.Call) and is_lazy(each) for each in walk_once(op.body[0]))
    if chosen or is_uneven(op):
        return None
    axes = [axis for axis in (*op.axis, *op.reduce_axis) if factor.reads(axis)]
    used = [{axis for axis in axes if axis.var in {*walk_once(i)}} for i in factor.load.indices]
    once = all(len(each) <= 1 for each in used) and sum(map(len, used)) == len(axes)
    return axes if once and {*axes} == set().union(*used) else None


def beside(contraction: Contraction, factor: Factor, axis: IterVar) -> list[Factor]:
    """The factors that are packed together: `factor`, and those that read one of its axes, `axis`,
    in the same way."""
    return [
        each
        for each in contraction.factors
        if each is factor
        or (
            each.reads(axis)
            and any(map(each.reads, contraction.op.reduce_axis))
            and all(factor.reads(other) or not each.reads(other) for other in contraction.op.axis)
            and copied_axes(contraction, each) is not None
        )
    ]


def copied_by_axes(s: Schedule, contraction: Contraction, factor: Factor) -> Tensor | None:
    """A copy of a factor whose dimensions are axes, which the contraction reads in its place; None
    where the tensor itself has such dimensions."""
    if plain_axes_of(contraction, factor) is not None:
        return None
    stage = s[contraction.op]
    reads = reads_of(compute_of(stage), factor.tensor)
    which = [structural_equal(each, factor.load) for each in reads].index(True)
    return s.cache_access(factor.tensor, "global", stage.op, which)


def write_panels(
    panels: Stage, contraction: Contraction, factor: Factor, width: int, target: Target
) -> None:
    """Lets a copy of a factor lie in panels, ``panels[..., i // width, k..., i % width]``."""
    axes = copied_axes(contraction, factor)
    assert axes is not None
    column = contraction.column
    place = axes.index(column if factor.reads(column) else contraction.rows[-1])
    reduced = [i for i, each in enumerate(axes) if each in contraction.op.reduce_axis]
    first = [i for i in range(len(axes)) if i not in reduced and i != place]

    def layout(*indices: Any) -> list[Any]:
        outer, inner = indices[place] // width, indices[place] % width
        return [*(indices[i] for i in first), outer, *(indices[i] for i in reduced), inner]

    loops = panels.transform_layout(layout)
    if first[-1:] != [len(axes) - 1]:  # elements are neighbours along the axis or along a sum
        panels.vectorize(loops[-1])
    if place == len(axes) - 1:  # row after row is read, for a few panels
        several, each = panels.split(loops[len(first)], factor=panels_together(target))
        panels.reorder(*loops[: len(first)], several, *loops[len(first) + 1 : -1], each, loops[-1])


def write_lines(copy: Stage, contraction: Contraction, factor: Factor) -> None:
    """Lets a copy of a factor lie in lines along the last reduction axis."""
    axes = copied_axes(contraction, factor)
    assert axes is not None
    place = axes.index(contraction.op.reduce_axis[-1])

    def layout(*indices: Any) -> list[Any]:
        return [*indices[:place], *indices[place + 1 :], indices[place]]

    *_, line = copy.transform_layout(layout)
    copy.vectorize(line)
