"""Reductions along short rows of memory, as many rows together as a vector of results has lanes.

The lanes of a vector hold the partial results of neighbouring steps of one row. Combining the lanes
of one row takes about as long as reading a hundred elements. So the vectors of several rows are
transposed in registers, and one operation for each lane combines all of these rows::

    for each block of 8 rows, on all threads:
        for i in 8 rows, k in vectors, written out:
            partial[i, 0:8] += X[i, k * 8 : k * 8 + 8]
        lanes[0:8, 0:8] = partial, transposed
        for lane in 8, written out:
            Y[0:8] += lanes[lane, 0:8]
"""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.arith.work import value_operations
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    contraction_of,
    extent_of,
    factors_of,
    is_uneven,
    product_of_extents,
)
from minitvm.auto_scheduler.few_rows import is_left_plain
from minitvm.auto_scheduler.lines import is_line
from minitvm.auto_scheduler.loops import (
    cached,
    compute_of,
    factored,
    fused,
    loops_over,
    run_parallel,
)
from minitvm.auto_scheduler.reductions import is_in_order
from minitvm.auto_scheduler.running import lanes_of, running_axis
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterVar, Reduce

_LEAST = 4  # elements of a row: of shorter rows, vectors along the results read whole lines
# Vector operations of a block. More take long to compile, and for rows of more vectors the
# combination of their lanes matters little.
_MOST = 128


def are_short_rows(op: ComputeOp, target: Target, *, strict: bool) -> bool:
    """Whether a reduction combines short rows, each of neighbours in memory, one behind the other.

    >>> from minitvm import te
    >>> X, k = te.placeholder((1000, 12)), te.reduce_axis((0, 12), name="k")
    >>> Y = te.compute((1000,), lambda i: te.sum(X[i, k], axis=k), name="Y")
    >>> are_short_rows(Y.op, Target("llvm -mcpu=haswell"), strict=False)
    True
    """
    reduce = op.body[0] if op.reduce_axis and op.axis else None
    if not isinstance(reduce, Reduce) or reduce.init or is_uneven(op):
        return False
    if is_in_order(op, strict) or not is_commutative(reduce.combiner):
        return False
    if running_axis(op) is not None:
        return False
    rows, size, lanes = op.axis[-1], product_of_extents(op.reduce_axis), lanes_of(op, target)
    if size is None or size < _LEAST or not is_line(op, op.reduce_axis):
        return False
    if (
        any(body.dtype.is_bool for body in op.body)
        or (extent_of(rows) or lanes) < lanes
        or lanes < 4
    ):
        return False
    steps = -(-size // _width_of(op, target)) * (1 + len([*value_operations(*reduce.source)]))
    reads = [each for each in factors_of(op) if any(each.along(k) for k in op.reduce_axis)]
    contraction = contraction_of(op)
    return (
        lanes * steps <= _MOST
        and all(each.along(op.reduce_axis[-1]) == 1 for each in reads)
        and all(each.along(rows) >= _LEAST for each in reads if each.reads(rows))
        and any(each.reads(rows) for each in reads)
        and (contraction is None or is_left_plain(contraction))
    )


def _width_of(op: ComputeOp, target: Target) -> int:
    """The lanes of a vector of partial results: a power of two, no more than a short row has."""
    size = product_of_extents(op.reduce_axis)
    assert size is not None
    return min(lanes_of(op, target), 1 << (size - 1).bit_length())


def write_short_rows(
    s: Schedule, stages: Sequence[Stage], root: Stage, rows: int, target: Target
) -> IterVar:
    """Writes reductions along short rows, in blocks of the first `rows` axes of `root`: of the
    reduction itself, or of a stage that reads their results. Returns the loop over blocks."""
    lanes = lanes_of(compute_of(stages[0]), target)
    for stage in stages:
        op = compute_of(stage)
        choose(s, "strategy", "{rows} rows together: {width} partial results of each are the lanes "
               "of a vector, and the vectors are transposed in registers", stage=stage.name,
               rows=lanes_of(op, target), width=_width_of(op, target))  # fmt: skip
    if root in stages:
        sums = cached(s, root, "local")
        stages = [sums if stage is root else stage for stage in stages]
    axes = compute_of(root).axis
    *outer, row = loops_over(axes[:rows])
    blocks, inside = row.split(root, lanes)
    is_each = rows == len(axes)
    if is_each:
        root.vectorize(inside.axis)
    for stage in stages:
        stage.set_scope("local" if is_each else "global")
        stage.compute_at(root, blocks.axis)
        _write_block(s, stage, (root, blocks.axis), target)
    return run_parallel(root, [*outer, blocks], target)[-1]


def _write_block(s: Schedule, stage: Stage, at: tuple[Stage, IterVar], target: Target) -> None:
    """Combines the rows of one block, `at` the loop over blocks of another stage."""
    op = compute_of(stage)
    _, lane = stage.split(fused(stage, op.reduce_axis), factor=_width_of(op, target))
    vectors = factored(s, stage, lane, len(op.axis))
    for tensor in vectors.op.outputs:
        turned = s[s.cache_read(tensor, "local", [stage.op])]
        turned.compute_at(*at)
        turned.transform_layout(lambda *axes: [*axes[:-2], axes[-1], axes[-2]])
        turned.vectorize(turned.leaf_iter_vars[-1])
    *_, row = compute_of(stage).axis
    (lane,) = compute_of(stage).reduce_axis
    stage.reorder(lane, row)
    stage.unroll(lane)
    stage.vectorize(row)
    vectors.set_scope("local").compute_at(*at)
    *_, row, lane = compute_of(vectors).axis
    (step,) = compute_of(vectors).reduce_axis
    vectors.reorder(step, row, lane)
    vectors.unroll(step)
    vectors.unroll(row)
    vectors.vectorize(lane)
