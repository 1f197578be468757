"""The loops of one reduction, chosen from how far apart its reads lie along each axis.

The lanes of a vector are neighbours along the last data axis, or along the reduction; the cheaper
reads decide. Along the data axis a *tile* of results stays in registers: several vectors, and
several rows where the windows of neighbouring rows overlap::

    for each tile of rows and columns, on all threads:
        for r, q in the window, unrolled:
            for y in the tile's rows, unrolled:
                for x in the tile's columns, in vectors:
                    sums[y, x] = max(sums[y, x], X[y + r, x + q])
        Y[tile] = sums

Where each step of the reduction would read a short piece of a far row, the results stay in the L1
cache instead, and rows are read whole, a few of them side by side::

    for each part of the rows, on all threads:
        for a few rows of the part:
            for x in vectors:
                sums[part, x] += X[row, x]              # for these rows
    Y[x] = the sums of all parts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import final

from minitvm.auto_scheduler.contraction import (
    FAR,
    all_loads,
    bytes_of,
    distances_of,
    extent_of,
    is_uneven,
    uneven_axes,
)
from minitvm.auto_scheduler.loops import compute_of, fused
from minitvm.auto_scheduler.tiles import rows_side_by_side
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, ProducerLoad, Var
from minitvm.tir.functor import walk_once

Distances = Mapping[Var, int]
"""How far apart, in elements, the reads of neighbours along each axis lie."""

_MOST_TERMS = 256  # vectors of terms in the code of a tile: more take long to compile
_SIDE_BY_SIDE = 4  # rows that are read at a time where results stay in L1
_MOST_PARTS = 8  # of a column's terms
_LEAST_STEPS = 64  # of a part


# -- Reads --


def reads_of(op: ComputeOp) -> list[tuple[Tensor, Distances]]:
    """The tensors that a stage reads, each with the distances of a read. What is read for an index
    alone doesn't count; an axis that such an index depends on is far."""
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    loads = list(all_loads(op))
    of_indices = {id(node) for load in loads for node in walk_once(*load.indices) if _is_load(node)}
    return [
        (load.producer, _distances(load, axes))
        for load in loads
        if id(load) not in of_indices and isinstance(load.producer, Tensor)
    ]


def _is_load(node: object) -> bool:
    return isinstance(node, ProducerLoad)


def _distances(load: ProducerLoad, axes: Mapping[Var, IterVar]) -> Distances:
    is_data = [any(map(_is_load, walk_once(index))) for index in load.indices]
    places = zip(load.indices, is_data, strict=True)
    plain = replace(load, indices=tuple(e.const(0) if data else i for i, data in places))
    known = distances_of(plain, axes)
    places = zip(load.indices, is_data, strict=True)
    unknown = [i for i, data in places if data or known is None]
    used = (node for node in walk_once(*unknown) if isinstance(node, Var) and node in axes)
    return dict.fromkeys(used, FAR) | dict(known or {})


# -- Lanes --


def runs_in_columns(op: ComputeOp, target: Target) -> bool:
    """Whether the lanes of a reduction's vectors are neighbours along the last data axis."""
    if not op.axis or op.axis[-1] in uneven_axes(op):
        return False
    reads = [distances for _, distances in reads_of(op)]
    lanes = lanes_of(op, target)
    across = _cost(op.axis[-1], reads, lanes)
    one_by_one = 1.0 + len(reads)
    return across < min([one_by_one, *(_cost_along(op, k, reads, lanes) for k in op.reduce_axis)])


def _cost(axis: IterVar, reads: Sequence[Distances], lanes: int) -> float:
    """The instructions for a term of a reduction whose lanes are neighbours along an axis: loads
    and shuffles, and one to combine it."""
    extent = extent_of(axis)
    used = lanes if extent is None else max(1, min(lanes, extent))
    loads = (max(1, min(2 * each.get(axis.var, 0) - 1, 2 * used)) for each in reads)
    return (1 + sum(loads)) / used


def _cost_along(op: ComputeOp, k: IterVar, reads: Sequence[Distances], lanes: int) -> float:
    """The same along a reduction axis, at whose end the lanes are combined."""
    terms = prod(extent_of(axis) or FAR for axis in op.reduce_axis)
    return _cost(k, reads, lanes) + 2 * (lanes.bit_length() - 1) / max(1, terms)


def lanes_of(op: ComputeOp, target: Target) -> int:
    """The number of lanes of a vector of the widest of a reduction's results."""
    return min(target.lanes(body.dtype) for body in op.body)


# -- Tiles of results in registers --


@final
@record()
class Tile:
    """Results that are computed together: `count` rows along the axis `row`, if any, and `columns`.
    The loops over the reduction axes `unrolled` are written out."""

    row: int | None
    count: int
    columns: int
    unrolled: tuple[int, ...]


def tile_of(op: ComputeOp, inside: int, target: Target) -> Tile:
    """As many results as hide the latency of one. Rows, of axes from the one at `inside` on, make a
    tile high if their windows overlap; a row of it fills whole lines of the cache."""
    reads = [distances for _, distances in reads_of(op)]
    lanes, most = lanes_of(op, target), _vectors_under_way(op, target)
    extent = extent_of(op.axis[-1])
    if extent is not None:
        most_vectors = max(1, -(-extent // lanes))
    else:
        most_vectors = most
    line = -(-CACHE_LINE * 8 // target.vector_bits)
    row, count = None, 1
    if window := _overlap(op, reads, range(inside, len(op.axis) - 1)):
        row, steps, reach = window
        bytes_apart = steps[0] * op.body[0].dtype.itemsize
        highest = min(
            most // min(line, most_vectors),
            rows_side_by_side(bytes_apart, target) - reach,
            extent_of(op.axis[row]) or most,
        )
        counts = [1 << i for i in range(max(1, highest).bit_length())]
        count = min(counts, key=lambda each: _rows_read(each, *steps) / each)
    vectors = max(1, min(most // count, most_vectors))
    columns = vectors * lanes if extent is None else max(1, min(vectors * lanes, extent))
    unrolled = _unrolled(op, reads, row if count > 1 else None, columns, count * vectors)
    return Tile(row if count > 1 else None, count, columns, unrolled)


def _vectors_under_way(op: ComputeOp, target: Target) -> int:
    most = min(target.multiply_adds_under_way, target.vector_registers * 3 // 4)
    return max(1, most // len(op.body))


def _overlap(
    op: ComputeOp, reads: Sequence[Distances], rows: range
) -> tuple[int, tuple[int, int, int], int] | None:
    """The last axis of `rows` along which windows overlap: its position; its distance, and the
    distance and extent of the reduction axis; and by how many rows a window reaches further."""
    for i in reversed(rows):
        for k in op.reduce_axis:
            extent = extent_of(k)
            for each in reads:
                a, b = each.get(op.axis[i].var, 0), each.get(k.var, 0)
                if a and b and extent and _rows_read(2, a, b, extent) < 2 * extent:
                    return i, (a, b, extent), extent * b // a
    return None


def _rows_read(count: int, apart: int, step: int, extent: int) -> int:
    """The number of different rows that the windows of `count` neighbours read."""
    return len({i * apart + k * step for i, k in product(range(count), range(extent))})


def _unrolled(
    op: ComputeOp, reads: Sequence[Distances], row: int | None, columns: int, vectors: int
) -> tuple[int, ...]:
    """The reduction axes along which the windows of a tile overlap, as many as fit."""
    found: list[int] = []
    for i in reversed(range(len(op.reduce_axis))):
        k = op.reduce_axis[i]
        extent = extent_of(k)
        if extent and vectors * extent <= _MOST_TERMS and _is_window(op, k, reads, row, columns):
            vectors *= extent
            found.append(i)
    return tuple(reversed(found))


def _is_window(
    op: ComputeOp, k: IterVar, reads: Sequence[Distances], row: int | None, columns: int
) -> bool:
    """Whether several results of a tile read an element at different steps along `k`."""
    for each in reads:
        step = each.get(k.var, 0)
        across = each.get(op.axis[-1].var, 0)
        if 0 < step < across * columns:
            return True
        if row is not None and step and each.get(op.axis[row].var, 0) % step == 0:
            return True
    return False


def write_tile(
    s: Schedule, stage: Stage, last: Stage, inside: int, target: Target
) -> list[IterVar]:
    """Computes a tile of results in registers, which `last` stores: the stage itself, or an
    elementwise reader. Returns the loops over tiles."""
    op = compute_of(stage)
    tile = tile_of(op, inside, target)
    if last is stage:
        sums = s[_cached(s, op)]
    else:
        sums = stage.set_scope("local")
    axes = list(compute_of(last).axis)
    outer, column = last.split(axes[-1], factor=tile.columns)
    inner = [column]
    axes[-1] = outer
    if tile.row is not None:
        axes[tile.row], row = last.split(axes[tile.row], factor=tile.count)
        inner.insert(0, row)
        last.unroll(row)
    last.reorder(*axes[inside:], *inner)
    last.vectorize(column)
    sums.compute_at(last, outer)
    made = compute_of(sums)
    unrolled = [made.reduce_axis[i] for i in tile.unrolled]
    looped = [axis for axis in made.reduce_axis if axis not in unrolled]
    row_axes = [] if tile.row is None else [made.axis[tile.row]]
    others = [axis for axis in made.axis[:-1] if axis not in row_axes]
    sums.reorder(*others, *looped, *unrolled, *row_axes, made.axis[-1])
    for axis in (*unrolled, *row_axes):
        sums.unroll(axis)
    sums.vectorize(made.axis[-1])
    return axes[inside:]


def _cached(s: Schedule, op: ComputeOp) -> Tensor:
    """The first of a stage's results, in registers."""
    if len(op.outputs) == 1:
        return s.cache_write(op.outputs[0], "local")  # type: ignore[no-any-return]  # of one, one
    return s.cache_write(list(op.outputs), "local")[0]  # type: ignore[no-any-return]  # of a list


# -- Results in the L1 cache --


def is_streamed(op: ComputeOp, target: Target) -> bool:
    """Whether a tile in registers would read short pieces of far rows, from beyond the L2 cache."""
    if is_uneven(op):
        return False
    tile = tile_of(op, 0, target)
    extent = extent_of(op.axis[-1])
    if tile.count > 1 or tile.unrolled or (extent is not None and extent <= tile.columns):
        return False
    return any(
        each.get(op.axis[-1].var) == 1
        and FAR > each.get(op.reduce_axis[-1].var, 0) >= (extent or tile.columns)
        and (bytes_of(tensor) or FAR) > target.cache_bytes(2)
        for tensor, each in reads_of(op)
    )


def write_streamed(s: Schedule, stage: Stage, target: Target, *, in_order: bool) -> None:
    """Reads rows whole, a few of them at a time. `in_order`: not in parts."""
    op = compute_of(stage)
    lanes = lanes_of(op, target)
    width = sum(body.dtype.itemsize for body in op.body)
    extent = extent_of(op.axis[-1])
    most = max(lanes, target.cache_bytes(1) // 2 // width // lanes * lanes)
    steps = extent_of(op.reduce_axis[0])
    results = [extent_of(axis) for axis in op.axis]
    parts = 1
    if not in_order and steps is not None and None not in results:
        size = prod(each or 0 for each in results) * width
        parts = max(1, min(_MOST_PARTS, steps // _LEAST_STEPS, target.cache_bytes(2) // 2 // size))
    tasks: list[IterVar] = []
    if parts > 1:
        part, _ = stage.split(op.reduce_axis[0], nparts=parts)
        factored = s.rfactor(op.outputs[0], part)
        write_last(stage, lanes)
        stage = s[factored[0] if isinstance(factored, list) else factored]
    elif target.num_cores > 1 and extent is not None:
        share = -(-extent // target.num_cores)
        most = min(most, max(-(-share // lanes) * lanes, 16 * lanes))
    made = compute_of(stage)
    *others, column = made.axis
    block, column = stage.split(column, factor=most)
    column, lane = stage.split(column, factor=lanes)
    *before, k = made.reduce_axis
    step, inner = stage.split(k, factor=_SIDE_BY_SIDE)
    tasks = [*others, block]
    stage.reorder(*tasks, *before, step, column, inner, lane)
    stage.unroll(inner)
    stage.vectorize(lane)
    stage.parallel(fused(stage, tasks))


def write_last(stage: Stage, lanes: int) -> None:
    """Combines the parts, in vectors."""
    op = compute_of(stage)
    *others, column = op.axis
    column, lane = stage.split(column, factor=lanes)
    stage.reorder(*others, column, *op.reduce_axis, lane)
    stage.vectorize(lane)
    stage.parallel(fused(stage, [*others, column]))
