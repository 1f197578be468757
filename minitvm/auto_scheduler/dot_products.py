"""Contractions of narrow numbers by dot-product instructions.

As :mod:`tiled`, but an instruction multiplies a group of neighbouring steps of the sum, and adds
the products to 32-bit sums. The columns' factor is packed so that groups lie together::

    for each tile of rows:
        for each tile of columns:
            sums[rows, columns] = 0                  # "local": vector registers
            for each group of k:
                sums[i, :] += dot_product(A[i, group], panels[j // columns, group, :])
            C[...] = sums
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from minitvm.auto_scheduler.accumulators import sums_in_registers
from minitvm.auto_scheduler.choice import choose, choose_blocks, choose_tile
from minitvm.auto_scheduler.contraction import Contraction, extent_of
from minitvm.auto_scheduler.loops import (
    Place,
    Places,
    compute_of,
    geometry_of,
    make_copy,
    place_copy,
    places_of,
    run_in_vectors,
    run_outermost,
    write_tiles,
)
from minitvm.auto_scheduler.tiles import Blocks, Geometry, Tile, blocks_of
from minitvm.runtime.dtype import DType
from minitvm.target import Target
from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS, DotProduct, dot_product, interleave
from minitvm.te.intrinsics.instruction import find_instruction
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import IterVar, ProducerLoad, Var

LEAST_ROWS = 4  # that must use a packed factor
_OFFSET = {"int8": "uint8"}  # kept with 128 added
_WIDER = {"int8": "int16", "uint8": "int16", "int16": "int16"}
_MOST_VECTORS = 4  # of a tile's row


def instruction_for(
    contraction: Contraction, target: Target, ahead: bool = False
) -> DotProduct | None:
    """The instruction for a contraction, or None. Where the columns' factor is packed `ahead` of
    the call, a single row is enough.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((8, 64), "uint8"), te.placeholder((64, 16), "int8")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.sum(
    ...     A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k))
    >>> znver4 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    >>> instruction_for(contraction_of(C.op), znver4).name
    'vpdpbusd_512'
    """
    op = contraction.op
    if not multiplied_reads(op) or len(op.reduce_axis) != 1 or not contraction.rows:
        return None
    if contraction.column is not op.axis[-1]:
        return None
    a, b = contraction.a, contraction.b
    (k,) = op.reduce_axis
    if a.tensor is b.tensor or not (a.reads(k) and b.reads(k)):
        return None
    mine, other = str(a.tensor.dtype), str(b.tensor.dtype)
    ways = [(mine, other), (_OFFSET.get(mine), other), (_WIDER.get(mine), _WIDER.get(other))]
    found = next(filter(None, (_find(*way, op.output(0).dtype, target) for way in ways)), None)
    rows, columns, depth = map(extent_of, (contraction.rows[-1], contraction.column, k))
    if found is None or columns is None or depth is None:
        return None
    if rows is not None and rows < LEAST_ROWS and not ahead:
        return None
    return found if columns >= found.lanes and depth >= found.group else None


def _find(a: str | None, b: str | None, sum: DType, target: Target) -> DotProduct | None:
    return (
        None
        if a is None or b is None
        else find_instruction(DOT_PRODUCTS, a, b, str(sum), target.features)
    )


def write_dotted(
    s: Schedule, contraction: Contraction, last: Tensor, by: DotProduct, target: Target, ahead: bool
) -> None:
    """Writes the schedule of a contraction by an instruction, and of `last`, the stage that reads
    its sums. `ahead`: the columns' factor is an argument that is packed before the call."""
    places = places_of(contraction)
    tile = _tile(contraction, contraction.rows[-1], by, target)
    geometry = geometry_of(contraction, places, target, DType.of(by.a), DType.of(by.b))
    blocks = even_blocks(geometry, tile, target)
    choose_tile(s, contraction, tile, target, by.name)
    choose_blocks(s, contraction, replace(blocks, strip=None))

    sums = sums_in_registers(s, contraction, last)
    loads = multiplied_reads(s[sums].op)
    kept = [by.b if each.producer is contraction.b.tensor else by.a for each in loads]
    known = {stage.op for stage in s.stages}
    padding = padding_of(contraction, tile, blocks, by.group)
    padded, *factors = s.pad_einsum(sums, padding, kept)
    excess = factors[2:]
    tiles = write_tiles(s[last], places, tile, blocks, None)
    run_in_vectors(s[last], tiles)
    task = run_outermost(s[last], tiles)
    for load, factor in zip(loads, factors[:2], strict=True):
        is_b = load.producer is contraction.b.tensor
        place = len(contraction.op.axis) - 1 if is_b else places.rows[-1]
        width = tile.columns if is_b else tile.rows
        at: Place = task if is_b else (s[last], tiles.strip)
        if is_b and ahead:
            at = "ahead"
        readers = [padded, *excess] if is_b else [padded]
        in_order = write_panels(s, readers, factor, load, place, width, by.group, at)
        if factor.op not in known:
            make_copy(s[factor], in_order, at, target)
    for each in excess:
        _write_excess(s[each], tile, by)
        place_copy(s[each], task)
        # A tile reads as many of its elements as it is wide, so it is computed for whole tiles.
        part = s[s.cache_read(each, "local", [stage.op for stage in s.readers(s[each])])]
        part.compute_at(s[last], tiles.loops[-1].axis)
        part.vectorize(compute_of(part).axis[-1])
    _write_sums(s[padded], s[last], places, tiles.loops[-1].axis, tile, by)


def _write_excess(stage: Stage, tile: Tile, by: DotProduct) -> None:
    """Computes the excess of an offset in the rows' factor, for each column, like a row of sums."""
    op = compute_of(stage)
    *others, column = op.axis
    (k,) = op.reduce_axis
    outer, inner = stage.split(column, factor=tile.columns)
    groups, group = stage.split(k, factor=by.group)
    stage.reorder(*others, outer, groups, inner, group)
    stage.tensorize(inner, dot_product(by.name, tile.columns, 128))


def _tile(contraction: Contraction, row: IterVar, by: DotProduct, target: Target) -> Tile:
    """The tile that takes the fewest instructions. All tiles have one size: the padding of the last
    one is computed as well."""
    rows, columns = extent_of(row) or 1 << 12, cast(int, extent_of(contraction.column))
    best, least = Tile(1, by.lanes), float("inf")
    for vectors in range(1, min(_MOST_VECTORS, columns // by.lanes) + 1):
        # Next to the sums there are a row's group, and a vector of each column.
        limit = (target.vector_registers - 2 - vectors) // vectors
        for tile_rows in range(1, min(limit, rows) + 1):
            tiles = -(-rows // tile_rows) * -(-columns // (vectors * by.lanes))
            products = tile_rows * vectors
            cost = tiles * (max(products, tile_rows + 2 * vectors, target.multiply_adds_under_way))
            if cost < least:
                best, least = Tile(tile_rows, vectors * by.lanes), cost
    return best


def even_blocks(geometry: Geometry, tile: Tile, target: Target) -> Blocks:
    """Blocks over the whole reduction axis, divided into equal strips."""
    blocks = blocks_of(geometry, tile, target, copied=True, whole=True)
    rows = (blocks.rows if len(geometry.rows) == 1 else None) or geometry.rows[-1]
    if rows is None:
        return blocks
    tiles = -(-rows // tile.rows)
    most = cast(int, blocks.strip) // tile.rows
    strip = next(each for each in range(most, 0, -1) if tiles % each == 0)
    return replace(blocks, strip=strip * tile.rows)


def padding_of(contraction: Contraction, tile: Tile, blocks: Blocks, steps: int) -> list[int]:
    """The multiples to which the axes are padded, so that all tiles are full; rows of symbolic
    extent are not padded."""
    padding = [1] * len(contraction.op.axis)
    padding[contraction.op.axis.index(contraction.rows[0])] = blocks.rows or 1
    row = contraction.op.axis.index(contraction.rows[-1])
    if extent_of(contraction.rows[-1]) is not None:
        padding[row] = max(padding[row], tile.rows)
    return [*padding[:-1], blocks.columns or tile.columns, steps]


def _write_sums(
    inner: Stage,
    stage: Stage,
    places: Places,
    at: IterVar,
    tile: Tile,
    by: DotProduct,
) -> None:
    """The loops over groups in a tile."""
    inner.compute_at(stage, at)
    rows, _, column = places.of(inner)
    op = compute_of(inner)
    rest = [axis for axis in op.axis if axis not in (rows[-1], column)]
    (k,) = op.reduce_axis
    groups, group = inner.split(k, factor=by.group)
    inner.reorder(*rest, groups, rows[-1], column, group)
    inner.unroll(rows[-1])
    inner.tensorize(column, dot_product(by.name, tile.columns))


def write_panels(
    s: Schedule,
    readers: Sequence[Tensor],
    factor: Tensor,
    load: ProducerLoad,
    place: int,
    width: int,
    group: int,
    at: Place,
) -> bool:
    """Puts the groups of the factor that `load` reads together in memory. Returns whether the
    factor is read in vectors.

    Rows with their groups together stay as they are. Other factors go into panels of `width` along
    the axis `place` of the sums, where ``panels[..., j // width, k // group, c]`` holds the element
    with ``c = j % width * group + k % group``.
    """
    op = compute_of(s[readers[0]])
    dimension = {cast(Var, index): i for i, index in enumerate(load.indices)}
    k, j = dimension[op.reduce_axis[0].var], dimension[op.axis[place].var]
    last = factor.ndim - 1
    if k == last and place != len(op.axis) - 1:
        return True

    def layout(*indices: Any) -> list[Any]:
        first = [index for i, index in enumerate(indices) if i not in (k, j)]
        inner = indices[j] % width * group + indices[k] % group
        return [*first, indices[j] // width, indices[k] // group, inner]

    choose(
        s,
        "packing",
        "{factor} is packed into panels of {width}, groups of {group} together"
        + ", ahead of the call" * (at == "ahead"),
        factor=factor.name,
        width=width,
        group=group,
    )
    panels = s[s.cache_read(factor, "global", readers)]
    loops = panels.transform_layout(layout)
    place_copy(panels, at)
    is_whole = extent_of(op.axis[place]) is not None  # or else the last panel looks where it ends
    if is_whole and (k, j) == (last - 1, last):
        panels.reorder(*loops[-2:-4:-1], loops[-1])  # row after row is read, for all panels
        panels.tensorize(loops[-1], interleave(str(factor.dtype), group, width))
        return True
    _, together = panels.split(loops[-1], factor=group)
    panels.vectorize(together)
    return False
