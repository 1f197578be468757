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
from math import ceil
from typing import final

from minitvm.runtime.dtype import DType
from minitvm.target import Target

_SPARE = 2  # registers for a vector of each factor
_LATENCY = 8  # sums that are under way at once: a multiply-add takes 4 cycles, two begin in each
_WAYS = 8  # of the L1 cache
_PAGE = 4096  # bytes: rows so far apart fall into the same set of L1


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of sums: `rows` by `columns`."""

    rows: int
    columns: int


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
    lanes = max(1, target.vector_bits // dtype.bits)
    all_rows, all_columns = rows or 1 << 12, columns or 1 << 12
    most_rows = _WAYS if row_bytes % _PAGE == 0 else target.vector_registers
    best, least = Tile(1, lanes), float("inf")
    for vectors in (1, 2, 3, 4, 6, 8):
        if vectors > 1 and (vectors - 1) * lanes >= all_columns:
            break
        limit = (target.vector_registers - _SPARE - vectors + 1) // vectors
        for tiles in range(1, all_rows + 1):
            tile_rows = ceil(all_rows / tiles)
            if tile_rows > min(limit, most_rows):
                continue
            cycles = _cycles(all_rows, all_columns, tile_rows, vectors, lanes)
            if cycles < least * 0.999:
                best, least = Tile(tile_rows, vectors * lanes), cycles
            if tile_rows == 1 or tile_rows * vectors < _LATENCY:
                break
    return best


def _cycles(rows: int, columns: int, tile_rows: int, vectors: int, lanes: int) -> float:
    """Of a step of the sum in all tiles, in units of one vector multiply-add."""
    whole_rows, rest_rows = divmod(rows, tile_rows)
    all_vectors = ceil(columns / lanes)
    whole, rest = divmod(all_vectors, vectors)
    total = 0.0
    for count_r, r in ((whole_rows, tile_rows), (1, rest_rows)):
        for count_c, c in ((whole, vectors), (1, rest)):
            if r and c:
                total += count_r * count_c * max(r * c, r + c, _LATENCY)
    return total
