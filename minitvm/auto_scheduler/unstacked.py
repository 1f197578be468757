"""Results along a short axis that sum different terms: each place is a stage of its own.

The real and imaginary parts of a complex product are sums of different elements. In one loop over
both, each step asks which of them it computes, and the elements that both need are read twice::

    C[i, j, c] = sum(if_then_else(c == 0, f(i, j, k), g(i, j, k)), k)

    C.0[i, j] = sum(f(i, j, k), k)      # a product of matrices, in the same tiles as
    C.1[i, j] = sum(g(i, j, k), k)
    C[i, j, c] = if_then_else(c == 0, C.0[i, j], C.1[i, j])
"""

from __future__ import annotations

from collections.abc import Iterator

from minitvm.arith.accesses import step_of
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import extent_of
from minitvm.auto_scheduler.loops import compute_of
from minitvm.te.schedules.guarded_reads import choices_in
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import find, mentions

_MOST = 4  # places


def write_unstacked(s: Schedule, stage: Stage) -> list[Stage] | None:
    """Lets other stages compute the places along an axis; returns them. None where all places sum
    alike terms."""
    op = compute_of(stage)
    axis = next((each for each in op.axis if _chooses_terms(op, each)), None)
    if axis is None or stage.time is not None:
        return None
    choose(s, "places", "each place along {axis} sums other terms, and is computed by itself",
           stage=stage.name, axis=axis.name)  # fmt: skip
    return [s[each] for each in s.unstack(op.output(0), axis)]


def _chooses_terms(op: ComputeOp, axis: IterVar) -> bool:
    """Whether conditions on a short axis alone choose between terms that don't lie along it."""
    reduce, extent = op.body[0], extent_of(axis)
    if not isinstance(reduce, Reduce) or reduce.init or len(op.body) > 1 or len(op.axis) < 2:
        return False
    if extent is None or not 1 < extent <= _MOST:
        return False
    chosen = [
        [*_loads(*values)]
        for condition, *values in choices_in(*reduce.source)
        if _is_of(condition, axis)
    ]
    steps = [step_of(index, axis.var) for each in _loads(*reduce.source) for index in each.indices]
    is_reversed = any(step is None or step < 0 for step in steps)
    return bool(chosen) and (
        is_reversed or any(loads and not mentions(axis.var, *loads) for loads in chosen)
    )


def _loads(*nodes: PrimExpr) -> Iterator[ProducerLoad]:
    return find(ProducerLoad, *nodes)


def _is_of(condition: PrimExpr, axis: IterVar) -> bool:
    """Whether a condition depends on an axis and on nothing else."""
    used = set(find((Var, ProducerLoad), condition))
    return used == {axis.var}
