"""Values that are the same in many iterations are computed once, ahead of them.

::

    C[i, j] = sum(exp(A[i, k]) * B[k, j], k)       # m * n * k exponentials

    C.exp[i, k] = exp(A[i, k])                     # m * k
    C[i, j] = sum(C.exp[i, k] * B[k, j], k)

What changes along outer axes alone, as the scale of a row, is computed once for the inner ones
anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import elements_of
from minitvm.auto_scheduler.loops import compute_of
from minitvm.target import Target
from minitvm.te.schedules.hoist_values import Part, parts_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr

_FEWEST = 8.0  # operations of a part: computing fewer costs no more than reading a stored value
_SIZE = 128  # taken for a dimension of symbolic extent
_LEAST = 2000.0  # cycles saved, for which another stage, with loops and memory of its own, pays
_SHARE = 0.1  # of the computation's cycles


def write_hoisted(s: Schedule, stage: Stage, target: Target) -> list[Stage] | None:
    """Lets other stages compute parts of a stage once; returns them. None if none is worth it."""
    if stage.time is not None:
        return None
    made = list[Stage]()
    while (part := _best_part(compute_of(stage), target)) is not None:
        axes = ", ".join(axis.name for axis in part.axes)
        text = "the part that changes along {axes} alone is computed once"
        choose(s, "parts", text, stage=stage.name, axes=axes)
        new = s[s.hoist(compute_of(stage).output(0), [*part.axes])]
        made += [*(write_hoisted(s, new, target) or ()), new]
    return made or None


def _best_part(op: ComputeOp, target: Target) -> Part | None:
    """The part that saves the most cycles, if any is worth a stage."""
    saved = [(_cycles_saved(op, part, target), part) for part in parts_of(op)]
    most, best = max(saved, key=lambda each: each[0], default=(0.0, None))
    if best is None:
        return None
    all_axes = (*op.axis, *op.reduce_axis)
    steps = _size(domain_of(axis).extent for axis in all_axes) / target.lanes(op.output(0).dtype)
    return best if most >= max(_LEAST, _SHARE * (most + steps)) else None


def _cycles_saved(op: ComputeOp, part: Part, target: Target) -> float:
    """The cycles saved by computing a part once, less than 0 where it takes more."""
    axes = (*op.axis, *op.reduce_axis)
    last = max(axes.index(axis) for axis in part.axes)
    evaluated = _size(domain_of(axis).extent for axis in axes[: last + 1])
    size, dtype = _size(part.shape), part.value.dtype
    tensors = [_elements(each) for each in (*op.outputs, *op.input_tensors)]
    is_cheap = part.operations < _FEWEST
    most = max(target.cache_bytes(2), target.cache_bytes(3) // 2) // dtype.itemsize
    if is_cheap or size > max(*tensors, most):
        return 0.0
    bytes_ = size * dtype.itemsize
    moved = 2.0 * bytes_ / target.bytes_per_cycle(max(2, target.level_of(bytes_)))
    # The stored value is read.
    computed = (part.operations * (evaluated - size) - evaluated) / target.lanes(dtype)
    return computed - moved


def _elements(tensor: Tensor) -> int:
    known = elements_of(tensor)
    return _size(tensor.shape) if known is None else known


def _size(extents: Iterable[PrimExpr]) -> int:
    return prod(_SIZE if (n := e.const_int(each)) is None else n for each in extents)
