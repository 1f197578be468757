"""The sizes of a contraction's tiles and blocks, from a model of registers, arithmetic and caches.

The innermost loops compute a tile of ``rows`` by ``columns`` sums that stay in vector registers
while the sum runs. A step of the sum loads ``columns / lanes`` vectors of one factor and ``rows``
scalars of the other, and multiplies and adds ``rows * columns / lanes`` vectors. Loads that the
arithmetic doesn't hide count. (The model of Low, Igual, Smith and Quintana-Orti, "Analytical
Modeling Is Enough for High-Performance BLIS", ACM TOMS 43(2), 2016, sections 4 and 5, with loads
counted against arithmetic for tiles at the edge.)

Blocks are for the caches. The panels of the columns' factor are read once for each tile of rows, so
as many panels are packed at a time as fit half of the L2 cache. A block has as many steps of the
sum as the rows of a tile may have in the L1 cache. (The order of Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, with the factors' roles exchanged: a
tile of rows is what the innermost loop around tiles reads again.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import final

from minitvm.auto_scheduler.terms import MULTIPLY_ADD, Terms
from minitvm.runtime.dtype import DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target

_MOST_VECTORS = 6  # of a tile's row
_SPARE = 2  # registers for a vector of each factor
VECTOR_LOAD = 3  # multiply-adds that a vector costs which comes from L2, or lies across two lines
_MOST_COUNTS = 256  # of parts that are tried: where there are so many, one more makes no difference
_REMAINDER = 0.01  # of the time, for rows that are left over: they are code of their own
_PACKING = 3  # tiles of rows that take as long as packing a panel's part
_USUAL = 4096  # a symbolic extent
_COLUMNS = 256  # of a block, where their number is symbolic


@final
@record()
class Tile:
    """A tile of sums: `rows` by `columns`."""

    rows: int
    columns: int


@final
@record()
class Geometry:
    """A contraction as the model sees it.

    Attributes
    ----------
    rows, columns, steps, others
        The extents of the axes of each kind: of the rows' factor, of the columns' factor, of the
        reduction, and of neither. None where an extent is symbolic.
    dtype
        The dtype of the sums.
    itemsize
        The size of an element of the packed factors, in bytes.
    row_bytes, step_bytes
        The distance in memory of neighbouring rows, and steps, of the rows' factor.
    terms
        What a step costs.
    """

    rows: tuple[int | None, ...]
    columns: int | None
    steps: tuple[int | None, ...]
    others: tuple[int | None, ...]
    dtype: DType
    itemsize: int
    row_bytes: int
    step_bytes: int
    terms: Terms = MULTIPLY_ADD


@final
@record()
class Blocks:
    """The parts of a contraction. A task computes `columns`, and `rows` of the outermost axis of
    rows. `depth` steps of the first reduction axis are summed in registers at a time (None: all).
    The rows' factor is copied in strips of `strip` rows (None: it isn't copied)."""

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None
    strip: int | None = None


def tile_of(geometry: Geometry, target: Target, *, in_panels: bool = False) -> Tile:
    """The tile that takes the fewest cycles. `in_panels`: the columns' factor is packed, so that
    the last columns are padded to a whole tile.

    >>> geometry = Geometry((96,), 96, (96,), (), DType.of("float32"), 4, 4 * 96, 4)
    >>> tile_of(geometry, Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"))
    Tile(rows=6, columns=32)
    """
    dtype, columns, terms = geometry.dtype, geometry.columns, geometry.terms
    rows = geometry.rows[-1] if geometry.rows else 1
    lanes = target.lanes(dtype)
    all_rows, all_columns = rows or 1 << 12, columns or 1 << 12
    most_rows = rows_side_by_side(geometry.row_bytes, target)
    # A tile as wide as all columns has no end that could be masked: its vectors would be as odd.
    widest = all_columns
    if all_columns % lanes or not in_panels:
        widest = 1 << (all_columns.bit_length() - 1)
    best, least = Tile(1, min(lanes, widest)), float("inf")
    size = prod(each or _USUAL for each in geometry.steps) * all_columns * geometry.itemsize
    # Each tile of rows reads the columns' factor: with taller tiles, it is read less often.
    is_large = size > target.cache_bytes(2) // 2
    for vectors in range(1, max(1, min(_MOST_VECTORS, widest // lanes)) + 1):
        tile_columns = min(vectors * lanes, widest)
        busy = _SPARE + terms.temporaries + vectors * max(1, terms.vectors) - 1
        limit = max(1, (target.vector_registers - busy) // (vectors * terms.results))
        for tile_rows in range(1, min(limit, most_rows, all_rows) + 1):
            computed = -(-all_columns // tile_columns) * tile_columns if in_panels else all_columns
            cycles = _cycles(geometry, all_rows, computed, tile_rows, tile_columns, target)
            if rows is not None and rows % tile_rows:
                cycles *= 1 + _REMAINDER
            reads_less = is_large and cycles == least and tile_columns == best.columns
            if cycles < least or reads_less:
                best, least = Tile(tile_rows, tile_columns), cycles
    return best


def rows_side_by_side(row_bytes: int, target: Target) -> int:
    """The number of rows, `row_bytes` apart, that a tile may read without evictions from L1."""
    return target.l1_ways if row_bytes % _way_bytes(target) == 0 else target.vector_registers


def _way_bytes(target: Target) -> int:
    """The distance, in bytes, of addresses in the same set of the L1 cache."""
    return max(CACHE_LINE, target.cache_bytes(1) // target.l1_ways)


def _cycles(
    geometry: Geometry, rows: int, columns: int, tile_rows: int, tile_columns: int, target: Target
) -> float:
    """The time of a step of the sum in all tiles, in units of one vector multiply-add."""
    lanes, terms = target.lanes(geometry.dtype), geometry.terms
    whole_rows, rest_rows = divmod(rows, tile_rows)
    whole, rest = divmod(columns, tile_columns)
    # What remains of a row is computed by the least power of two of lanes.
    rest_vectors = max(1, (1 << (rest - 1).bit_length()) // lanes) if rest else 0
    total = 0.0
    for count_r, r in ((whole_rows, tile_rows), (1, rest_rows)):
        for count_c, c in ((whole, max(1, tile_columns // lanes)), (1, rest_vectors)):
            if r and c:
                loads = terms.scalars * r + VECTOR_LOAD * terms.vectors * c + terms.both * r * c
                busy = max(r * c, target.multiply_adds_under_way) * terms.operations
                total += count_r * count_c * max(busy, loads)
    return total


def blocks_of(
    geometry: Geometry,
    tile: Tile,
    target: Target,
    *,
    copied: bool = False,
    in_memory: bool = False,
    whole: bool = False,
) -> Blocks:
    """The blocks of a contraction whose columns' factor is packed.

    `copied`: the rows' factor is read from a copy in which it lies row by row. `in_memory`: the
    sums of a task stay in memory of its own until the last step. `whole`: all steps are summed at
    once.

    >>> geometry = Geometry((2048,), 2048, (2048,), (), DType.of("float32"), 4, 4 * 2048, 4)
    >>> znver4 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2")
    >>> made = blocks_of(geometry, Tile(8, 32), znver4)
    >>> made.columns * made.depth * 4 <= znver4.cache_bytes(2) // 2
    True
    """
    itemsize = geometry.itemsize
    inner = prod(each or _USUAL for each in geometry.steps[1:])
    step = max(
        tile.rows * itemsize, CACHE_LINE if geometry.step_bytes >= CACHE_LINE and not copied else 0
    )
    depth = None
    if not whole:
        depth = _depth(geometry.steps[0], max(1, target.cache_bytes(1) // (step * inner)))
    steps = (depth or geometry.steps[0] or 1) * inner
    strip = (
        strip_of(geometry, tile, steps, target)
        if copied or thrashes(geometry, steps, target)
        else None
    )
    most = max(1, target.cache_bytes(2) // 2 // (steps * tile.columns * itemsize))
    width = most * tile.columns
    if geometry.columns is None:
        return Blocks(None, min(width, _COLUMNS), depth, strip)
    panels = -(-geometry.columns // tile.columns)
    row_tiles = -(-prod(each or _USUAL for each in geometry.rows) // tile.rows)
    unit = tile.rows if len(geometry.rows) == 1 else 1
    outermost = -(-(geometry.rows[0] or _USUAL) // unit)
    most_row_parts = 1 if geometry.rows[0] is None else outermost
    column_parts, row_parts = _parts_for_cores(
        panels, row_tiles, most, most_row_parts, geometry.others, target.num_cores
    )
    if column_parts > 1:
        width = -(-panels // column_parts) * tile.columns
    height = -(-outermost // row_parts)
    if in_memory and depth is not None:
        each_row = min(width, geometry.columns) * prod(each or _USUAL for each in geometry.rows[1:])
        height = min(
            height,
            max(1, target.cache_bytes(2) // 2 // (each_row * unit * geometry.dtype.itemsize)),
        )
    return Blocks(
        None if height == outermost else height * unit,
        None if column_parts == 1 else width,
        depth,
        strip,
    )


def strip_of(geometry: Geometry, tile: Tile, steps: int, target: Target) -> int:
    """The rows of a strip, if the rows' factor is copied: an eighth of the L2 cache."""
    tiles = target.cache_bytes(2) // 8 // (tile.rows * steps * geometry.itemsize)
    rows = geometry.rows[-1] or _USUAL
    return max(1, min(tiles, -(-rows // tile.rows))) * tile.rows


def thrashes(geometry: Geometry, steps: int, target: Target) -> bool:
    """Whether lines of the rows' factor for neighbouring steps of the sum share so few sets of the
    L1 cache that they evict each other."""
    if geometry.step_bytes < CACHE_LINE:
        return False
    apart = _way_bytes(target)
    sets = apart // max(CACHE_LINE, gcd(geometry.step_bytes, apart))
    return steps > 2 * sets * target.l1_ways


def balanced(size: int, most: int) -> int:
    """The size of equal parts, as many of them as there are parts of size `most`."""
    return -(-size // -(-size // most))


def _depth(steps: int | None, most: int) -> int | None:
    """The steps of a block: all, if there are hardly more than `most`; if possible the same number
    in each block."""
    if steps is None:
        return most
    if steps <= most + most // 4:
        return None
    even = next((each for each in range(most, most // 2, -1) if steps % each == 0), None)
    return even or -(-steps // -(-steps // most))


def _parts_for_cores(
    panels: int,
    row_tiles: int,
    most_panels: int,
    most_row_parts: int,
    batches: Sequence[int | None],
    cores: int,
) -> tuple[int, int]:
    """The numbers of parts of columns and of rows with which the slowest core is done first; each
    part packs its own panels."""
    best, least = (1, 1), float("inf")
    fewest = -(-panels // most_panels)
    for column_parts in range(fewest, panels + 1)[:_MOST_COUNTS]:
        for row_parts in range(1, min(cores, most_row_parts) + 1):
            tasks = prod(each or 1 for each in batches) * column_parts * row_parts
            task = -(-panels // column_parts) * (-(-row_tiles // row_parts) + _PACKING)
            # One core does all tasks where there is one thread, or the others are busy.
            time = -(-tasks // cores) * cores * task + panels * (row_tiles + row_parts * _PACKING)
            if time < least:
                best, least = (column_parts, row_parts), time
    return best
