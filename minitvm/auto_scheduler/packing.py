"""Copies of a contraction's factors: padded, in vectors, in lines along steps, in panels.

A strategy decides which factors are copied, and where the copy is placed. This module writes the
copy. A panel holds a few neighbours along one axis for all steps of the others, one behind the
other::

    panels[..., j // width, k..., j % width] = B[k..., ..., j]

Each dimension of a factor's copy is an axis of the contraction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from minitvm.arith.accesses import without_digits
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import is_lazy
from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.across import write_across
from minitvm.auto_scheduler.contraction import (
    FAR,
    Contraction,
    Factor,
    all_loads,
    divisors_along,
    extent_of,
    is_uneven,
    plain_axes_of,
)
from minitvm.auto_scheduler.loops import compute_of, fused, lie_along
from minitvm.auto_scheduler.tiles import panels_together
from minitvm.runtime.dtype import DType
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import reads_of
from minitvm.te.schedules.rewrite_operations import places_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import place_in_memory
from minitvm.te.tensor import ComputeOp, Operation, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Var
from minitvm.tir.functor import mentions, substitute, walk_once
from minitvm.tir.structural_equal import structural_equal

Place: TypeAlias = tuple[Stage, IterVar] | Literal["ahead"] | None
"""The place of a copy: a loop of a stage; ahead of the call; or, as a whole, before the loops."""

_REST = 4  # instructions of the loop over the rest of a line


# -- Copies --


def write_copy(stage: Stage, target: Target) -> None:
    """Writes a padded or widened copy, in vectors. Where it reads lines that lie apart, each vector
    stays within a line."""
    op = compute_of(stage)
    column, lanes = op.axis[-1], target.lanes(op.output(0).dtype)
    line = line_of_digits(op)
    if line is not None:
        _, column = stage.split(column, factor=line)
        lanes = _part_of_line(line, lanes)
    if line != lanes:
        _, column = stage.split(column, factor=lanes)
    stage.vectorize(column)


def _part_of_line(line: int, lanes: int) -> int:
    """The elements of each part of a line that take the fewest instructions. A part whose number of
    lanes is no power of 2 takes several, and a rest has a guard."""

    def instructions(part: int) -> int:
        count, rest = divmod(line, part)
        return count * part.bit_count() + (rest.bit_count() + _REST if rest else 0)

    return min(range(1, min(line, lanes) + 1), key=lambda part: (instructions(part), -part))


def line_of_digits(op: ComputeOp) -> int | None:
    """The neighbours along the last axis of an elementwise stage that are neighbours in all tensors
    which are read at digits of this axis; None if there are no digits."""
    loads = [*all_loads(op)]
    indices = (index for load in loads for index in load.indices)
    divisors = {each for each in divisors_along(op.axis[-1:], *indices) if each > 1}
    for divisor in sorted(divisors, reverse=True):
        if all(_is_line(op, load, divisor) for load in loads):
            return divisor
    return 1 if divisors else None


def _is_line(op: ComputeOp, load: ProducerLoad, size: int) -> bool:
    """Whether `size` elements along the last axis of a stage, beginning at a multiple of `size`,
    read neighbours, or one element."""
    column = op.axis[-1]
    analyzer, dtype = Analyzer(), column.var.dtype
    digit, around = Var("digit", dtype), Var("around", dtype)
    for axis in op.axis[:-1]:
        analyzer.bind(axis.var, domain_of(axis))
    analyzer.bind(digit, Range(0, size))
    analyzer.bind(around, Range(0, e.floordiv(domain_of(column).extent + (size - 1), size)))
    at = {column.var: around * size + digit}
    place = place_in_memory([substitute(x, at) for x in load.indices], load.producer.shape)
    terms = Prover().affine(analyzer.simplify(place)).terms
    others = [each for each in terms if each is not digit]
    return terms.get(digit, 0) in (0, 1) and not any(mentions(digit, each) for each in others)


def make_copy(stage: Stage, at: Place, target: Target) -> None:
    """Writes a padded copy in vectors, at the place of its reader, or before a reader that is made
    ahead."""
    write_copy(stage, target)
    place_copy(stage, None if at == "ahead" else at)


def write_whole_copy(s: Schedule, copy: Stage, target: Target) -> None:
    """Writes the copy of a whole tensor, outside of all loops: in blocks that are transposed where
    it reads across, otherwise in vectors."""
    if write_across(s, copy, target) is None:
        write_copy(copy, target)
        place_copy(copy, None)


def place_copy(stage: Stage, at: Place) -> None:
    """Makes a copy at a place; in parallel where the place is outside of all loops, or inside of a
    scan on whose steps the copy doesn't depend."""
    if isinstance(at, tuple) and at[0].time is stage.time:
        stage.compute_at(*at)
        return
    if stage.op.output(0).ndim > 1:
        stage.parallel(stage.leaf_iter_vars[0])
    if at == "ahead":
        stage.compute_ahead()


def tell_apart(copy: Stage) -> list[IterVar]:
    """Gives a copy that is made ahead of the call one more dimension, of one element, if it has the
    shape of its source, but another order: the function then refuses an array that isn't packed.
    Returns the loops over the dimensions that it had."""
    op = compute_of(copy)
    (source,) = op.input_tensors
    (load,) = all_loads(op)
    is_alike = structural_equal([*op.output(0).shape], [*source.shape])
    if not is_alike or structural_equal([*load.indices], [*places_of(op.axis)]):
        return [*op.axis]
    count = op.output(0).shape[0]

    def layout(first: Any, *others: Any) -> list[Any]:
        return [first // count, first % count, *others]

    return copy.transform_layout(layout)[1:]


def write_image(image: Stage, target: Target) -> None:
    """Writes a padded image, or a copy of a whole tensor: rows in vectors, channels in parallel."""
    *outer, column = compute_of(image).axis
    if (extent_of(column) or FAR) > target.lanes(image.op.output(0).dtype):
        write_copy(image, target)
    else:
        image.vectorize(column)
    if image.attach_stage is None and outer:
        image.parallel(fused(image, outer[:2]) if len(outer) > 2 else outer[0])


def write_cast(s: Schedule, reader: Operation | Tensor, factor: Factor, target: Target) -> Stage:
    """Lets an operation read a copy of a factor's whole tensor, with its elements cast; returns the
    copy's stage."""
    copy = s[s.cache_read(factor.tensor, "global", [reader], factor.copied)]
    write_image(copy, target)
    return copy


# -- Panels --


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
    chosen = any(is_lazy(each) for each in walk_once(op.body[0]))
    if chosen or is_uneven(op):
        return None
    axes = [axis for axis in (*op.axis, *op.reduce_axis) if factor.reads(axis)]
    indices = without_digits(factor.load.indices, factor.tensor.shape)
    used = [{axis for axis in axes if axis.var in {*walk_once(i)}} for i in indices]
    once = sum(map(len, used)) == len(axes) and all(
        len(each) <= 1 or _are_digits(index, each)
        for index, each in zip(indices, used, strict=True)
    )
    return axes if once and {*axes} == set().union(*used) else None


def _are_digits(index: PrimExpr, axes: Iterable[IterVar]) -> bool:
    """Whether an index is a sum of multiples of axes that is different for all of their places."""
    terms = Prover().affine(index).terms
    if {*terms} != {axis.var for axis in axes} or min(terms.values()) < 0:
        return False
    below = 1
    for axis in sorted(axes, key=lambda each: terms[each.var]):
        if terms[axis.var] < below:
            return False
        below = terms[axis.var] * (FAR if (extent := extent_of(axis)) is None else extent)
    return True


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


def copied_by_axes(
    s: Schedule, contraction: Contraction, factor: Factor, dtype: DType | None = None
) -> Tensor | None:
    """A copy of a factor whose dimensions are axes, which the contraction reads in its place; None
    where the tensor itself has such dimensions. `dtype`: that of the copy."""
    if plain_axes_of(contraction, factor) is not None:
        return None
    stage = s[contraction.op]
    reads = reads_of(compute_of(stage), factor.tensor)
    which = [structural_equal(each, factor.load) for each in reads].index(True)
    return s.cache_access(factor.tensor, "global", stage.op, which, **cast_to(dtype, factor.tensor))


def cast_to(dtype: DType | None, tensor: Tensor) -> dict[str, Any]:
    """The argument of a copy of a tensor for its dtype; none where it is that of the tensor."""
    return {} if dtype in (None, tensor.dtype) else {"dtype": dtype}


def in_panels(
    copy: Stage,
    width: int,
    outside: Sequence[int],
    column: int,
    steps: Sequence[int],
    *,
    group: int = 1,
    flat: Sequence[int] | None = None,
) -> list[IterVar]:
    """Lets a copy lie in panels of `width` neighbours along the dimension `column`; returns its
    loops. A panel holds all `steps`; for each neighbour, a `group` of the last of them lies
    together. The dimensions `outside` are in front. `flat`: the extents of the steps, which become
    one dimension."""

    def layout(*indices: Any) -> list[Any]:
        outer, inner = indices[column] // width, indices[column] % width
        along = [indices[i] for i in steps]
        if group > 1:
            *along, last = along
            along, inner = [*along, last // group], inner * group + last % group
        if flat:
            along = [place_in_memory(along, flat)]
        return [*(indices[i] for i in outside), outer, *along, inner]

    return copy.transform_layout(layout)


def write_panels(
    panels: Stage,
    contraction: Contraction,
    factor: Factor,
    width: int,
    target: Target,
    order: Sequence[int] | None = None,
) -> None:
    """Lets a copy of a factor lie in panels, ``panels[..., i // width, k..., i % width]``. `order`:
    that of the steps, as places of reduction axes, in a copy that has all axes that the factor
    reads; by default that of the copy's dimensions."""
    reduced = contraction.op.reduce_axis
    read = [axis for axis in (*contraction.op.axis, *reduced) if factor.reads(axis)]
    axes = copied_axes(contraction, factor) if order is None else read
    assert axes is not None
    column = contraction.column
    place = axes.index(column if factor.reads(column) else contraction.rows[-1])
    steps = [i for i, each in enumerate(axes) if each in reduced]
    first = [i for i in range(len(axes)) if i not in steps and i != place]
    in_memory = steps
    if order is not None:
        steps = [axes.index(reduced[i]) for i in order if reduced[i] in axes]
        in_memory = sorted(steps, key=lambda i: -factor.along(axes[i]))
    is_flat = order is not None and steps == in_memory
    flat = [extent_of(axes[i]) or 1 for i in steps] if is_flat else None
    loops = in_panels(panels, width, first, place, steps, flat=flat)
    if steps != in_memory:  # loops in the order of memory read one line after the other
        inside = loops[len(first) + 1 : -1]
        panels.reorder(*(inside[steps.index(i)] for i in in_memory), loops[-1])
    if first[-1:] != [len(axes) - 1]:  # elements are neighbours along the axis or along a sum
        panels.vectorize(loops[-1])
    if place == len(axes) - 1:  # row after row is read, for a few panels
        several, each = panels.split(loops[len(first)], factor=panels_together(target))
        panels.reorder(*loops[: len(first)], several, *loops[len(first) + 1 : -1], each, loops[-1])


def write_along_steps(
    s: Schedule,
    copy: Stage,
    contraction: Contraction,
    factor: Factor,
    line: IterVar,
    target: Target,
) -> None:
    """Lets a copy of a factor lie in lines along a reduction axis."""
    axes = copied_axes(contraction, factor)
    assert axes is not None
    lie_along(copy, axes.index(line))
    write_whole_copy(s, copy, target)
