"""The stage that keeps the sums of a register tile, and its steps."""

from __future__ import annotations

from typing import cast

from minitvm.auto_scheduler.contraction import Contraction, is_uneven
from minitvm.auto_scheduler.loops import compute_of
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
    """The loops over the steps of a reduction, and a loop inside of them over steps that are
    combined at once, if that is cheaper: two minima or maxima of floats share the care for NaN."""
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
