"""How large the tiles of a contraction are: a model of registers, arithmetic and caches.

The innermost loops compute a tile of ``rows`` by ``columns`` sums that stay in vector registers
while the sum runs. A step of the sum loads ``columns / lanes`` vectors of one factor and ``rows``
scalars of the other, and multiplies and adds ``rows * columns / lanes`` vectors. What is not hidden
by arithmetic is counted. (The model of Low, Igual, Smith and Quintana-Orti, "Analytical Modeling Is
Enough for High-Performance BLIS", ACM TOMS 43(2), 2016, sections 4 and 5, with loads counted
against arithmetic for tiles at the edge.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from minitvm.runtime.dtype import DType
from minitvm.target import Target

_SPARE = 2  # registers for a vector of each factor
_LATENCY = 8  # sums that are under way at once: a multiply-add takes 4 cycles, two begin in each
_VECTOR_LOAD = 3  # multiply-adds that a vector costs which comes from L2, or lies across two lines
_WAYS = 8  # of the L1 cache
_PAGE = 4096  # bytes: rows so far apart fall into the same set of L1


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of sums: `rows` by `columns`."""

    rows: int
    columns: int


def tile_of(
    rows: int | None,
    columns: int | None,
    dtype: DType,
    target: Target,
    row_bytes: int,
    padded: bool = False,
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
    padded
        Whether the last tile of a row computes all its columns, since zeros pad what it reads.
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
            summed = -(-all_columns // tile_columns) * tile_columns if padded else all_columns
            cycles = _cycles(all_rows, summed, tile_rows, tile_columns, lanes)
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
