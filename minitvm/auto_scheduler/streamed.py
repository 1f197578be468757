"""Contractions of a few rows, whose time is that of reading the columns' factor once.

::

    for each block of columns whose sums stay in the L1 cache:
        for a few steps of k:                        # so many rows of B, each read in its order
            for each vector of columns:
                C[i, j] += A[i, k] * B[k, j]         # for all i, and these k
"""

from __future__ import annotations

from math import prod

from minitvm import expr as e
from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.target import Target
from minitvm.te.schedule import Schedule

_MOST_ROWS = 8
_MOST_DOTTED_ROWS = 2
_STEPS = 8  # rows of B that are read side by side: streams that the prefetcher follows


def is_streamed(contraction: Contraction, target: Target) -> bool:
    """Whether so few rows use what is read of a large factor that a tile would wait for memory."""
    if contraction.b.along(contraction.column) != 1 or contraction.a.reads(contraction.column):
        return False
    extents = [extent_of(axis) for axis in contraction.rows]
    if None in extents or prod(each or 0 for each in extents) > _MOST_ROWS:
        return False
    if len(contraction.op.reduce_axis) != 1:
        return False
    shape = [e.const_int(extent) for extent in contraction.b.tensor.shape]
    size = prod(each or 0 for each in shape) * contraction.b.tensor.dtype.itemsize
    return None in shape or size > target.cache_bytes(2) // 4


def is_dotted(contraction: Contraction) -> bool:
    """Whether so few rows use a factor whose elements lie side by side along the sum that the sums
    are best computed one by one, as plain loops."""
    extents = [extent_of(axis) for axis in contraction.rows]
    if None in extents or prod(each or 0 for each in extents) > _MOST_DOTTED_ROWS:
        return False
    if contraction.a.reads(contraction.column) or len(contraction.op.reduce_axis) != 1:
        return False
    (k,) = contraction.op.reduce_axis
    across = contraction.b.along(contraction.column) != 1
    return across and contraction.b.along(k) == 1 and contraction.a.along(k) <= 1


def write_streamed(s: Schedule, contraction: Contraction, target: Target) -> None:
    """Writes that schedule."""
    op, stage = contraction.op, s[contraction.op]
    extents = [extent_of(axis) for axis in contraction.rows]
    rows = prod(each or 1 for each in extents)
    itemsize = op.output(0).dtype.itemsize
    lanes = max(1, target.vector_bits // (8 * itemsize))
    block = max(1, target.cache_bytes(1) // 2 // (rows * itemsize * lanes)) * lanes
    outer = [axis for axis in op.axis[:-1] if axis not in contraction.rows]
    (k,) = op.reduce_axis
    block_outer, column = stage.split(contraction.column, factor=block)
    column_outer, column_inner = stage.split(column, factor=lanes)
    k_outer, k_inner = stage.split(k, factor=_STEPS)
    stage.reorder(
        *outer, block_outer, k_outer, column_outer, *contraction.rows, k_inner, column_inner
    )
    for axis in (*contraction.rows, k_inner):
        stage.unroll(axis)
    stage.vectorize(column_inner)
    stage.parallel(outer[0] if outer else block_outer)
