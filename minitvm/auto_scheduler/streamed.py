"""Contractions of a few rows, whose time is that of reading the columns' factor once.

::

    for each block of columns whose sums stay in the L1 cache:
        for a few steps of k:                        # so many rows of B, each read in its order
            for each vector of columns:
                C[i, j] += A[i, k] * B[k, j]         # for all i, and these k
"""

from __future__ import annotations

from math import prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import Contraction, bytes_of, extent_of
from minitvm.target import Target
from minitvm.te.schedule import Schedule

_MOST_ROWS = 8
_MOST_PLAIN_ROWS = 2
_STEPS = 8  # rows of B that are read side by side: streams that the prefetcher follows


def is_streamed(contraction: Contraction, target: Target) -> bool:
    """Whether so few rows use what is read of a large factor that a tile would wait for memory."""
    if not _is_for_few(contraction, _MOST_ROWS) or contraction.b.along(contraction.column) != 1:
        return False
    size = bytes_of(contraction.b.tensor)
    return size is None or size > target.cache_bytes(2) // 4


def is_left_plain(contraction: Contraction) -> bool:
    """Whether so few rows use a factor whose elements lie side by side along the sum that the sums
    are best computed one by one, as plain loops."""
    across = contraction.b.along(contraction.column) != 1
    if not across or not _is_for_few(contraction, _MOST_PLAIN_ROWS):
        return False
    (k,) = contraction.op.reduce_axis
    return contraction.b.along(k) == 1 and contraction.a.along(k) <= 1


def _is_for_few(contraction: Contraction, most: int) -> bool:
    """Whether at most so many rows use what is read of `b`, along one axis that is summed."""
    if contraction.a.reads(contraction.column) or len(contraction.op.reduce_axis) != 1:
        return False
    extents = [extent_of(axis) for axis in contraction.rows]
    return None not in extents and prod(each or 0 for each in extents) <= most


def write_streamed(s: Schedule, contraction: Contraction, target: Target) -> None:
    """Writes that schedule."""
    op, stage = contraction.op, s[contraction.op]
    extents = [extent_of(axis) for axis in contraction.rows]
    rows = prod(each or 1 for each in extents)
    itemsize = op.output(0).dtype.itemsize
    lanes = target.lanes(op.output(0).dtype)
    block = max(1, target.cache_bytes(1) // 2 // (rows * itemsize * lanes)) * lanes
    choose(
        s,
        "strategy",
        "{b} is read once, {steps} rows of it at a time: {rows} rows alone use it, {most} at most; "
        "{block} columns of sums stay in the L1 cache",
        b=contraction.b.tensor.name,
        steps=_STEPS,
        rows=rows,
        most=_MOST_ROWS,
        block=block,
    )
    outer = [axis for axis in op.axis[:-1] if axis not in contraction.rows]
    (k,) = op.reduce_axis
    block_outer, column = stage.split(contraction.column, factor=block)
    column_outer, column_inner = stage.split(column, factor=lanes)
    columns = extent_of(contraction.column)
    ends_even = rows == 1 or (columns is not None and columns % lanes == 0)
    k_outer, k_inner = stage.split(k, factor=_steps(extent_of(k), ends_even))
    stage.reorder(
        *outer, block_outer, k_outer, column_outer, *contraction.rows, k_inner, column_inner
    )
    for axis in (*contraction.rows, k_inner):
        stage.unroll(axis)
    stage.vectorize(column_inner)
    stage.parallel(outer[0] if outer else block_outer)


def _steps(extent: int | None, ends_even: bool) -> int:
    """How many rows of B are read side by side: a divisor, if one is near enough. What is left over
    otherwise costs little, unless the columns leave something over as well."""
    sizes = range(_STEPS, _STEPS // 2 - 1, -1)
    even = next((each for each in sizes if extent is not None and extent % each == 0), None)
    return even or (_STEPS if ends_even or extent is None else 1)
