"""Windows with borders that are wrapped, mirrored or repeated: copies of images with borders.

A reduction may read a tensor at a function of a sum of axes, as ``X[(y + k) % n]``. Neighbours in
the result then don't read neighbours of the tensor. They do in a copy that has one element for each
value of the sum::

    P[t] = X[t % n]                                  # n + 2 elements
    Y[y] = sum(P[y + k] * W[k], k)                   # of 3

Where the index is any other function of the axes, as ``X[(k * j) % n]`` for the sums of a Fourier
transform, a copy holds the elements in the order of the steps, if many rows read them.
"""

from __future__ import annotations

from minitvm.arith.effects import reads_tensors
from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import elements_of, extent_of, is_uneven, product_of_extents
from minitvm.auto_scheduler.loops import compute_of
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.guarded_reads import choices_in, element_of, is_lazy, reads_of
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.window_reads import read_by_sums
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.expr import PrimExpr, Reduce, Var
from minitvm.tir.functor import mentions, walk_once

_MOST = 2.25  # times the elements of the tensor, and a few more, in a copy
_READ = 8  # reads of each element for which a copy in the order of the steps pays


def write_windows(s: Schedule, stage: Stage) -> list[Stage] | None:
    """Lets a reduction read copies of tensors with their borders; returns the copies. None for a
    stage that reads no such windows."""
    op = compute_of(stage)
    if not isinstance(op.body[0], Reduce) or is_uneven(op):
        return None
    if None in map(extent_of, (*op.axis, *op.reduce_axis)):
        return None
    made = list[Stage]()
    for tensor in op.input_tensors:
        is_table = _is_table(op, tensor)
        if not is_table and not _has_borders(op, tensor):
            continue
        how = "in the order of the steps" if is_table else "with its borders"
        choose(s, "packing", f"{{tensor}} is copied {how}", stage=stage.name, tensor=tensor.name)
        made.append(s[s.cache_access(tensor, "global", stage.op, None, not is_table)])
    return made or None


def _has_borders(op: ComputeOp, tensor: Tensor) -> bool:
    """Whether an iteration reads one element of a tensor, at a function of a sum of data and
    reduction axes, or under a choice that depends on such a sum; and whether in a copy with one
    element for each sum several iterations read an element, and the copy isn't much larger than the
    tensor."""
    loads = reads_of(op, tensor)
    if len(loads) != 1:
        return False
    is_odd = any(_is_of_sum(op, index) for index in loads[0].indices)
    if not is_odd and not any(map(is_lazy, walk_once(*op.body))):
        return False
    try:
        value = element_of(op, tensor).value
        is_chosen = any(_is_of_both(op, condition) for condition, *_ in choices_in(value))
        if not is_odd and not is_chosen:
            return False
        copy, _ = read_by_sums(tensor, op, tensor.name, None)
    except CompileError:  # neither the index nor the choice is a function of sums alone
        return False
    size, copied = elements_of(tensor), elements_of(copy)
    axes = (*op.axis, *op.reduce_axis)
    read = product_of_extents(axis for axis in axes if mentions(axis.var, *loads[0].indices))
    if None in (size, copied, read):
        return False
    return (copied or 0) <= min((size or 0) * _MOST + 64, (read or 0) // 2)


def _is_table(op: ComputeOp, tensor: Tensor) -> bool:
    """Whether an iteration reads one element of a tensor, at a function of data and reduction axes
    that is no function of their sums; and whether other axes read each element again and again."""
    loads = reads_of(op, tensor)
    if len(loads) != 1 or not any(_is_of_sum(op, index) for index in loads[0].indices):
        return False
    if reads_tensors(*loads[0].indices):
        return False
    if any(is_lazy(each) for each in walk_once(*op.body)):
        return False
    axes = (*op.axis, *op.reduce_axis)
    steps = product_of_extents(axes)
    copied = product_of_extents(axis for axis in axes if mentions(axis.var, *loads[0].indices))
    if (copied or 0) * _READ > (steps or 0):
        return False
    try:
        copy, _ = read_by_sums(tensor, op, tensor.name, None)
    except CompileError:
        return True
    return elements_of(copy) == copied  # no dimension of the copy stands for a sum of several axes


def _is_of_sum(op: ComputeOp, index: PrimExpr) -> bool:
    """Whether an index depends on data and reduction axes, but isn't just their sum."""
    terms = Prover().affine(index).terms
    return any(not isinstance(atom, Var) and _is_of_both(op, atom) for atom in terms)


def _is_of_both(op: ComputeOp, node: PrimExpr) -> bool:
    """Whether an expression depends on data and reduction axes."""
    return all(any(mentions(axis.var, node) for axis in axes) for axes in (op.axis, op.reduce_axis))
