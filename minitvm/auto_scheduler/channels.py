"""Convolutions whose columns are the output channels.

The rows of a tile are neighbours in a row of the image. For any stride, dilation and size of the
image, each row of the tile reads the image at a constant distance from the first row, so the image
is read as it lies. The weights are brought into panels as wide as a tile::

    for each tile of channels:
        panel[k, j] = weights[j, k]                  # left out where channels are neighbours
        for each row of the image, for each tile of it:
            sums[rows, columns] = 0                  # "local": vector registers
            for k:
                sums[i, j] += image[window k of i] * panel[k, j]
            C[..., j, i] = sums[i, j]                # transposed, where channels aren't neighbours
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

from minitvm.auto_scheduler.choice import choose, choose_tile
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    bytes_at_once,
    contraction_of,
    extent_of,
)
from minitvm.auto_scheduler.cost import Blocks, Nest, Tile, copy_cycles, cost
from minitvm.auto_scheduler.loops import compute_of, fused
from minitvm.auto_scheduler.tiles import best_tile, vectors
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.expr import IterVar

_TASKS = 8  # tiles of channels from which on they are what threads share


def write_channels(
    s: Schedule,
    sums: Tensor,
    last: Tensor,
    axes: Sequence[IterVar],
    channel: int,
    takes_sums: bool,
    target: Target,
) -> list[Stage]:
    """Writes the schedule of a convolution; returns the scheduled stages.

    Parameters
    ----------
    sums, last
        The stage of the sums, in registers, and the stage that reads them.
    axes
        The loops of `last`, one for each axis of the sums.
    channel
        The position of the channels among these.
    takes_sums
        Whether `last` only copies the sums.
    """
    stage = s[last]
    turned = channel != len(axes) - 1
    copies = _turn(s, sums, channel, takes_sums) if turned else []
    found = contraction_of(s[sums].op)
    assert found is not None
    place = _row(found)
    row = found.op.axis[place]
    rows = [axis for axis in found.op.axis[:-1] if axis is not row and found.a.reads(axis)]
    width = extent_of(found.column) or target.lanes(last.dtype)
    tile, _ = best_tile_of(found.op, found.a, found.b, [*rows, row], width, target, turned=turned)
    choose_tile(s, found, tile, vectors(last.dtype, target), target)
    choose(s, "strategy", "channels are the columns of tiles, neighbours in the image their rows"
           + (", transposed on their way out" if turned else ""))  # fmt: skip

    loops = [axis for i, axis in enumerate(axes) if i != channel]
    column_outer, column = stage.split(axes[channel], factor=tile.columns)
    row_outer, row_inner = stage.split(loops[place], factor=tile.rows)
    reads = [found.b.reads(axis) for axis in found.op.axis[:-1]]
    outside = [loop for loop, weights in zip(loops, reads, strict=True) if weights]
    images = [loop for loop, weights in zip(loops, reads, strict=True) if not weights]
    images = [loop for loop in images if loop is not loops[place]]
    inside = [column, row_inner] if turned else [row_inner, column]
    stage.reorder(*outside, column_outer, *images, row_outer, *inside)
    width = min(extent_of(found.column) or tile.columns, tile.columns)
    lanes = target.lanes(found.op.output(0).dtype)
    if turned:
        stage.vectorize(row_inner)
    else:
        stage.unroll(row_inner)
        vectorize(stage, column, width, lanes)
    for each in (s[sums], *copies):
        each.compute_at(stage, row_outer)
    _write_sums(s[sums], place, width, lanes)
    _write_copies(copies, place, channel)

    tiles = -(-(extent_of(found.column) or 1) // tile.columns)
    tiles *= prod(extent_of(a) or 1 for a, w in zip(found.op.axis, reads, strict=False) if w)
    outer = fused(stage, [*outside, column_outer])
    stage.parallel(outer if tiles >= _TASKS or not images else fused(stage, images))
    panel = _write_panel(s, found, sums, tile)
    if panel is None:
        return [stage, s[sums], *copies]
    panel.compute_at(stage, outer)
    return [stage, s[sums], *copies, panel]


def _turn(s: Schedule, sums: Tensor, channel: int, takes_sums: bool) -> list[Stage]:
    """Makes the channels the last axis of the sums. The sums go through memory and are read
    transposed: by the stage that only copies them, or by a copy for an epilogue."""
    tile = _copied(s, sums)
    copies = [tile] if takes_sums else [tile, _copied(s, tile)]
    for each in (sums, tile):
        s[each].transform_layout(lambda *i: [*i[:channel], *i[channel + 1 :], i[channel]])
    return [s[each] for each in copies]


def _copied(s: Schedule, tensor: Tensor) -> Tensor:
    """A copy of a tensor, for all its readers."""
    return s.cache_read(tensor, "global", [reader.op for reader in s.readers(s[tensor])])


def _row(contraction: Contraction) -> int:
    """The axis of the sums along which a tile has rows: the last axis that only the image reads."""
    axes = contraction.op.axis
    found = [i for i, axis in enumerate(axes) if axis in contraction.rows]
    long = [i for i in found if extent_of(axes[i]) != 1]
    return (long or found)[-1]


def _write_sums(inner: Stage, place: int, width: int, lanes: int) -> None:
    """The sums of a tile: the reduction loops outside, a tile inside."""
    axes, reduced = compute_of(inner).axis, compute_of(inner).reduce_axis
    rest = [axis for i, axis in enumerate(axes[:-1]) if i != place]
    inner.reorder(*rest, *reduced, axes[place], axes[-1])
    inner.unroll(axes[place])
    vectorize(inner, axes[-1], width, lanes)


def _write_copies(copies: Sequence[Stage], place: int, channel: int) -> None:
    """Stores a tile of sums, and reads it transposed."""
    for tile in copies[:1]:
        axes = compute_of(tile).axis
        tile.unroll(axes[place])
        tile.vectorize(axes[-1])
    for across in copies[1:]:
        rest = list(compute_of(across).axis)
        column = rest.pop(channel)
        row = rest.pop(place)
        across.reorder(*rest, column, row)
        across.vectorize(row)


def _write_panel(s: Schedule, contraction: Contraction, sums: Tensor, tile: Tile) -> Stage | None:
    """Copies the weights into panels ``[..., j // columns, k, j % columns]``; None where they are
    read as they lie."""
    weights, column = contraction.b, contraction.column
    extent = extent_of(column)
    if (
        weights.along(column) == 1
        and extent is not None
        and (extent <= tile.columns or extent % tile.columns == 0)
    ):
        return None
    panel = s[s.cache_access(weights.tensor, "global", s[sums].op)]
    data = [axis for axis in contraction.op.axis if weights.reads(axis)]
    summed = [axis for axis in contraction.op.reduce_axis if weights.reads(axis)]
    # In the order in which they lie in memory, one line of neighbours is read after the other.
    places = sorted(range(len(summed)), key=lambda i: -weights.along(summed[i]))
    sizes = [extent_of(summed[i]) or 1 for i in places]
    first = len(data) - 1

    def layout(*indices: Any) -> list[Any]:
        outer, channel, inside = indices[:first], indices[first], indices[first + 1 :]
        k = [flat([inside[i] for i in places], sizes)] if places else []
        return [*outer, channel // tile.columns, *k, channel % tile.columns]

    loops = panel.transform_layout(layout)
    panel.vectorize(loops[-1])
    return panel


def flat(indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The place in row-major order."""
    pairs = list(zip(indices, sizes, strict=True))
    return reduce(lambda place, each: place * each[1] + each[0], pairs[1:], pairs[0][0])


def best_tile_of(
    op: ComputeOp,
    a: Factor,
    b: Factor,
    rows: Sequence[IterVar],
    width: int,
    target: Target,
    *,
    turned: bool,
) -> tuple[Tile, float]:
    """The tile of a convolution that takes the fewest cycles, and these. A panel of `width` columns
    of the factor `b` is read for all `rows`, along the last of which tiles have rows; their factor
    `a` is read once for each panel. A tile at the edge computes all its columns. `turned`: sums are
    transposed on their way to memory."""
    dtype, itemsize = op.output(0).dtype, a.tensor.dtype.itemsize
    lanes = target.lanes(dtype)
    nest = Nest(
        tuple(extent_of(axis) for axis in rows),
        -(-width // lanes) * lanes,
        tuple(extent_of(axis) for axis in op.reduce_axis),
        (),
        dtype,
        itemsize,
        a.along(rows[-1]) * itemsize,
        a.bytes_along(op.reduce_axis),
        vectors(dtype, target),
        a_bytes=bytes_at_once(op, a, b),
        pads_columns=True,
        is_packed=True,
        transposes=turned,
    )
    tile = best_tile(nest, target, lambda tile: Blocks(columns=tile.columns))
    copied = copy_cycles(nest.depth * width * itemsize)
    return tile, cost(nest, tile, Blocks(columns=tile.columns), target) + copied


def vectorize(stage: Stage, axis: IterVar, extent: int, lanes: int) -> None:
    """Runs a loop in vectors of `lanes`; the last one is masked, and no vector has the odd length
    of a remainder."""
    if extent % lanes and extent > lanes:
        outer, axis = stage.split(axis, factor=lanes)
        stage.unroll(outer)
    stage.vectorize(axis)
