"""How large the tiles and blocks of a contraction are: a model of registers, arithmetic and caches.

The innermost loops compute a tile of ``rows`` by ``columns`` sums that stay in vector registers
while the sum runs. A step of the sum loads ``columns / lanes`` vectors of one factor and ``rows``
scalars of the other, and multiplies and adds ``rows * columns / lanes`` vectors. What is not hidden
by arithmetic is counted. (The model of Low, Igual, Smith and Quintana-Orti, "Analytical Modeling Is
Enough for High-Performance BLIS", ACM TOMS 43(2), 2016, sections 4 and 5, with loads counted
against arithmetic for tiles at the edge.)

Blocks are for the caches: the panels of the columns' factor are read once for each tile of rows, so
that as many of them are packed at a time as half of the L2 cache holds; with as many steps of the
sum as the rows of a tile have in the L1 cache. (The order of Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, with the factors' roles exchanged: a
tile of rows is what the innermost loop around tiles reads again.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

from minitvm.runtime.dtype import DType
from minitvm.target import Target

_SPARE = 2  # registers for a vector of each factor
_LATENCY = 8  # sums that are under way at once: a multiply-add takes 4 cycles, two begin in each
_VECTOR_LOAD = 3  # multiply-adds that a vector costs which comes from L2, or lies across two lines
_WAYS = 8  # of the L1 cache
_PAGE = 4096  # bytes: rows so far apart fall into the same set of L1
_PACKING = 3  # tiles of rows that take as long as to bring a panel's part into place
_USUAL = 4096  # an extent that the call decides
_ROWS = 512  # of a block, where the call decides how many columns there are


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of sums: `rows` by `columns`."""

    rows: int
    columns: int


@final
@dataclass(frozen=True, slots=True)
class Blocks:
    """The parts of a contraction that tasks compute, `columns`, and `rows` of the outermost axis of
    rows; and the `depth`, how many steps of the first summed axis are summed in registers at a
    time. None: all."""

    rows: int | None
    columns: int | None
    depth: int | None


def tile_of(
    rows: int | None, columns: int | None, dtype: DType, target: Target, row_bytes: int
) -> Tile:
    """The tile that takes the fewest cycles.

    Parameters
    ----------
    rows, columns
        The extents of the loops that are tiled; None if the call decides.
    dtype
        Of the sums.
    row_bytes
        The distance in memory of what neighbouring rows load.
    """
    lanes = target.lanes(dtype)
    all_rows, all_columns = rows or 1 << 12, columns or 1 << 12
    most_rows = rows_side_by_side(row_bytes, target)
    # A tile as wide as all columns has no end that could be masked: its vectors would be as odd.
    widest = 1 << (all_columns.bit_length() - 1)
    best, least = Tile(1, min(lanes, widest)), float("inf")
    for vectors in (1, 2, 3, 4):
        tile_columns = min(vectors * lanes, widest)
        if vectors > 1 and vectors * lanes > all_columns:
            break
        limit = (target.vector_registers - _SPARE - vectors + 1) // vectors
        for tile_rows in range(1, min(limit, most_rows, all_rows) + 1):
            cycles = _cycles(all_rows, all_columns, tile_rows, tile_columns, lanes)
            if cycles < least:
                best, least = Tile(tile_rows, tile_columns), cycles
    return best


def rows_side_by_side(row_bytes: int, target: Target) -> int:
    """How many rows a tile may read, so many bytes apart, without one driving another out of L1."""
    return _WAYS if row_bytes % _PAGE == 0 else target.vector_registers


def _cycles(rows: int, columns: int, tile_rows: int, tile_columns: int, lanes: int) -> float:
    """Of a step of the sum in all tiles, in units of one vector multiply-add."""
    whole_rows, rest_rows = divmod(rows, tile_rows)
    whole, rest = divmod(columns, tile_columns)
    # What remains of a row is computed by the least power of two of lanes.
    rest_vectors = max(1, (1 << (rest - 1).bit_length()) // lanes) if rest else 0
    total = 0.0
    for count_r, r in ((whole_rows, tile_rows), (1, rest_rows)):
        for count_c, c in ((whole, max(1, tile_columns // lanes)), (1, rest_vectors)):
            if r and c:
                loads = r + _VECTOR_LOAD * c
                total += count_r * count_c * max(r * c, loads, _LATENCY)
    return total


def blocks_of(
    rows: Sequence[int | None],
    columns: int | None,
    steps: Sequence[int | None],
    batches: Sequence[int | None],
    tile: Tile,
    dtype: DType,
    in_memory: bool,
    target: Target,
) -> Blocks:
    """The blocks of a contraction whose columns' factor is packed.

    Parameters
    ----------
    rows, columns, steps, batches
        The extents of the axes of rows, of the columns, of what is summed, and of the others; None
        if the call decides.
    dtype
        Of the sums, and of what is packed.
    in_memory
        Whether the sums of a task stay in a block of memory until the last step.
    """
    itemsize = dtype.itemsize
    inner = prod(each or _USUAL for each in steps[1:])
    depth = _depth(steps[0], max(1, target.cache_bytes(1) // (tile.rows * itemsize * inner)))
    panel_bytes = (depth or steps[0] or 1) * inner * tile.columns * itemsize
    most = max(1, target.cache_bytes(2) // 2 // panel_bytes)
    width = most * tile.columns
    if columns is None:
        return Blocks(_ROWS, min(width, _ROWS), depth)
    panels = -(-columns // tile.columns)
    row_tiles = -(-prod(each or _USUAL for each in rows) // tile.rows)
    unit = tile.rows if len(rows) == 1 else 1
    outermost = -(-(rows[0] or _USUAL) // unit)
    column_parts, row_parts = _parts(panels, row_tiles, most, outermost, batches, target.num_cores)
    if column_parts > 1:
        width = -(-panels // column_parts) * tile.columns
    height = -(-outermost // row_parts)
    if in_memory and depth is not None:
        row_bytes = (
            min(width, columns) * prod(each or _USUAL for each in rows[1:]) * unit * itemsize
        )
        height = min(height, max(1, target.cache_bytes(2) // 2 // row_bytes))
    return Blocks(
        None if height == outermost and rows[0] else height * unit,
        None if column_parts == 1 else width,
        depth,
    )


def _depth(steps: int | None, most: int) -> int | None:
    """How many steps are summed at a time: all, if there are hardly more than `most`; as many in
    each block, if possible."""
    if steps is None:
        return most
    if steps <= most + most // 4:
        return None
    even = next((each for each in range(most, most // 2, -1) if steps % each == 0), None)
    return even or -(-steps // -(-steps // most))


def _parts(
    panels: int,
    row_tiles: int,
    most_panels: int,
    most_row_parts: int,
    batches: Sequence[int | None],
    cores: int,
) -> tuple[int, int]:
    """In how many parts columns and rows are computed: with which the slowest core is done first,
    each part bringing its panels into place by itself."""
    best, least = (1, 1), float("inf")
    fewest = -(-panels // most_panels)
    for column_parts in range(fewest, max(fewest, min(panels, 2 * fewest + 4 * cores)) + 1):
        for row_parts in range(1, min(cores, most_row_parts) + 1):
            tasks = prod(each or 1 for each in batches) * column_parts * row_parts
            task = -(-panels // column_parts) * (-(-row_tiles // row_parts) + _PACKING)
            time = -(-tasks // cores) * task
            if time < least:
                best, least = (column_parts, row_parts), time
    return best
