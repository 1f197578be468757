"""The stage that keeps the sums of a register tile, and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from minitvm.auto_scheduler.contraction import Contraction, extent_of, is_uneven
from minitvm.auto_scheduler.loops import compute_of, in_vectors
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, Reduce


def sums_in_registers(s: Schedule, contraction: Contraction, last: Tensor) -> Tensor:
    """The stage that keeps a contraction's sums in registers: the contraction itself, if `last` is
    an epilogue; otherwise a new stage, from which the contraction's tensor is copied."""
    if last.op is contraction.op:
        several = len(last.op.outputs) > 1
        made = s.cache_write(list(last.op.outputs) if several else last, "local")
        return cast(Tensor, made[0] if several else made)
    sums = contraction.op.output(0)
    s[sums].set_scope("local")
    return sums


def split_steps(stage: Stage, target: Target) -> tuple[list[IterVar], list[IterVar]]:
    """The loops over the steps of a reduction; and inside of them a loop over steps that are
    combined at once, where this is cheaper. Two minima or maxima of floats share one test for
    NaN."""
    op = compute_of(stage)
    (reduce, *_) = op.body
    assert isinstance(reduce, Reduce)
    *before, k = op.reduce_axis
    (result, *others) = reduce.combiner.result
    is_extremum = isinstance(result, (e.Min, e.Max)) and result.dtype.is_float
    if not is_extremum or others or is_uneven(op) or target.keeps_nan:
        return [*before, k], []
    step, together = stage.split(k, factor=2)
    return [*before, step], [together]


def write_sums(
    inner: Stage,
    at: tuple[Stage, IterVar],
    tile: Sequence[IterVar],
    steps: Sequence[IterVar],
    together: Sequence[IterVar] = (),
    vectors: tuple[int, int] = (0, 1),
) -> None:
    """Computes the sums of a tile at a loop of the stage that reads them. From outside to inside,
    the loops are those over `steps`, those over `together`, which are unrolled, and those of the
    `tile`, whose last axis is vectorised. `vectors`: the extent of this axis and the lanes, where
    vectors needn't divide it."""
    *rows, column = tile
    inner.compute_at(*at)
    rest = [axis for axis in compute_of(inner).axis if axis not in tile]
    inner.reorder(*rest, *steps, *rows, *together, column)
    for axis in (*rows, *together):
        inner.unroll(axis)
    in_vectors(inner, column, *vectors)


def innermost(axes: Sequence[IterVar], most: int) -> list[IterVar]:
    """The innermost axes that have at most `most` iterations together."""
    found, count = list[IterVar](), 1
    for axis in reversed(axes):
        count *= extent_of(axis) or most + 1
        if count > most:
            break
        found.insert(0, axis)
    return found
