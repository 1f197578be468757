"""The space of a contraction's tiles and blocks, searched for the least cost.

Blocks are for the caches. The panels of the columns' factor are read once for each tile of rows, so
as many panels are packed at a time as fit half of the L2 cache. A block has as many steps of the
sum as the rows of a tile may have in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from math import gcd, inf, prod
from typing import TypeAlias

from minitvm.auto_scheduler.cost import (
    SHARE,
    USUAL,
    Blocks,
    Nest,
    Tile,
    Unit,
    copy_cycles,
    cost,
    tile_cycles,
    waiting_cycles,
)
from minitvm.runtime.dtype import DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target

ALIKE = 1.02  # times the fewest cycles: nearer than the model is to the truth
_MOST_COUNTS = 256  # of parts that are tried: where there are so many, one more makes no difference
_COLUMNS = 256  # of a block, where their number is symbolic
_PAGE = 4096  # bytes
_MOST_PAGES = 64  # in the first level of address translation, of Zen 3; 96 of Golden Cove


def vectors(dtype: DType, target: Target) -> Unit:
    """Multiply-adds of vectors, or other arithmetic."""
    lanes, under_way = target.lanes(dtype), target.multiply_adds_under_way
    return Unit(1, lanes, 1, target.vector_registers, under_way, 1 / target.processor.ports)


def tiles_of(nest: Nest, target: Target) -> Iterator[Tile]:
    """The tiles that fit the registers, and whose rows fit the L1 cache side by side."""
    unit, terms = nest.unit, nest.terms
    most = min(rows_side_by_side(nest.row_bytes, target) * unit.rows, nest.height)
    widest = nest.width
    if unit.is_exact and nest.pads_columns:
        widest -= widest % unit.columns
    elif unit.is_exact and (widest % unit.columns or not nest.is_packed):
        # A tile as wide as all columns has no end that could be masked: its vectors would be odd.
        # In a panel, a single one may be.
        is_single = nest.is_packed and widest < unit.columns
        widest = widest if is_single else 1 << (widest.bit_length() - 1)
    for c in range(1, max(1, min(unit.under_way, -(-widest // unit.columns))) + 1):
        columns = min(c * unit.columns, widest)
        if columns % unit.panel and columns >= unit.columns:
            continue
        for r in range(1, unit.registers):
            rows = r * unit.rows if unit.is_exact else balanced(nest.height, r * unit.rows)
            factors = c * max(1, terms.vectors) + (r if unit.rows > 1 else 1) + terms.temporaries
            fits = r * c * terms.results + factors <= unit.registers and rows <= most
            if not fits and (r, c, unit.rows) != (1, 1, 1):
                break
            yield Tile(rows, columns)


def best_tile(nest: Nest, target: Target, block: Callable[[Tile], Blocks] | None = None) -> Tile:
    """The tile that takes the fewest cycles, in the blocks that `block` makes for it; of tiles that
    are alike one that divides rows and columns: a remainder is code of its own.

    >>> unit = vectors(DType.of("float32"), Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"))
    >>> nest = Nest((96,), 96, (96,), (), DType.of("float32"), 4, 4 * 96, 4, unit)
    >>> best_tile(nest, Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"))
    Tile(rows=12, columns=32)
    """
    costs = _costs(nest, target) if block is None else _costs_in(nest, target, block)
    chooser = _chooser.get()
    if chooser is not None:
        return chooser(costs)
    most = min(costs.values()) * ALIKE
    alike = [tile for tile in costs if costs[tile] <= most]
    return min(alike, key=lambda tile: (_remainders(nest, tile), costs[tile]))


@lru_cache(maxsize=256)  # the stages of a program are often of one size
def _costs(nest: Nest, target: Target) -> Mapping[Tile, float]:
    """The cycles of a nest by each tile, without blocks."""
    costs = _costs_in(nest, target, lambda _: Blocks())
    if nest.is_packed:
        return costs
    return {tile: _on_cores(nest, tile, cycles, target) for tile, cycles in costs.items()}


def _costs_in(nest: Nest, target: Target, block: Callable[[Tile], Blocks]) -> Mapping[Tile, float]:
    return {tile: cost(nest, tile, block(tile), target) for tile in tiles_of(nest, target)}


def _on_cores(nest: Nest, tile: Tile, cycles: float, target: Target) -> float:
    """The cycles of a nest whose tiles are the tasks of threads: the mean of one core's for all of
    them, and of those of as many cores as the work is worth, which wait for the last."""
    cores = min(target.num_cores, int(cycles) // target.processor.task)
    if cores < 2:
        return cycles
    tiles = nest.outer * -(-nest.height // tile.rows) * -(-nest.width // tile.columns)
    return cycles * (1 + -(-tiles // cores) * cores / tiles) / 2


_Chooser: TypeAlias = Callable[[Mapping[Tile, float]], Tile]
_chooser: ContextVar[_Chooser | None] = ContextVar("_chooser", default=None)


@contextmanager
def chosen_by(chooser: _Chooser) -> Iterator[None]:
    """Lets `chooser` choose tiles, given the cycles of each, to measure what the model predicts."""
    token = _chooser.set(chooser)
    try:
        yield
    finally:
        _chooser.reset(token)


def _remainders(nest: Nest, tile: Tile) -> int:
    return (nest.height % tile.rows > 0) + (nest.width % tile.columns > 0)


def rows_side_by_side(row_bytes: int, target: Target) -> int:
    """The number of rows, `row_bytes` apart, that a tile may read without evictions from L1."""
    return target.l1_ways if row_bytes % _way_bytes(target) == 0 else target.vector_registers


def _way_bytes(target: Target) -> int:
    """The distance, in bytes, of addresses in the same set of the L1 cache."""
    return max(CACHE_LINE, target.cache_bytes(1) // target.l1_ways)


def panels_together(target: Target) -> int:
    """The number of panels that are written side by side: if they fall into the same sets of the L1
    cache, as many lines stay for what is read."""
    return max(1, target.l1_ways // 2)


def blocks_of(
    nest: Nest,
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

    >>> znver4 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2")
    >>> f32 = DType.of("float32")
    >>> unit = vectors(f32, znver4)
    >>> nest = Nest((2048,), 2048, (2048,), (), f32, 4, 4 * 2048, 4, unit)
    >>> made = blocks_of(nest, Tile(8, 32), znver4)
    >>> made.columns * made.depth * 4 <= znver4.cache_bytes(2)
    True
    """
    itemsize = nest.itemsize
    copies = copied or thrashes(nest, nest.depth, target)
    copies = copies or _pays_to_copy(nest, tile, target)
    step = max(tile.rows * itemsize, 0 if copies else min(nest.step_bytes, CACHE_LINE))
    streams = _passes_memory(nest, target)
    rows_bytes = target.cache_bytes(1) // (2 if streams else 1)
    panels_bytes = target.cache_bytes(2) // (1 if streams else 2)
    depth, cut = (None, 0) if whole else _depth_and_cut(nest, max(1, rows_bytes // step))
    steps = (depth or nest.steps[cut] or 1) * nest.inside(cut)
    strip = strip_of(nest, tile, steps, target) if copies else None
    most = max(1, panels_bytes // (steps * tile.columns * itemsize))
    width = most * tile.columns
    if nest.columns is None:
        made = Blocks(None, min(width, _COLUMNS), depth, cut, strip)
        return made if copied else _shared(made)
    panels = -(-nest.columns // tile.columns)
    row_tiles = -(-prod(each or USUAL for each in nest.rows) // tile.rows)
    times = (
        tile_cycles(nest, tile, steps, target),
        copy_cycles(tile.columns * steps * itemsize),
        _row_cycles(nest, tile, steps, target, copied=copied),
    )
    unit = tile.rows if len(nest.rows) == 1 else 1
    outermost = -(-(nest.rows[0] or USUAL) // unit)
    most_row_parts = 1 if nest.rows[0] is None else outermost
    column_parts, row_parts = _parts_for_cores(
        panels, row_tiles, most, most_row_parts, nest.others, times, target.num_cores
    )
    if column_parts > 1:
        width = -(-panels // column_parts) * tile.columns
    height = -(-outermost // row_parts)
    if in_memory and depth is not None:
        each_row = min(width, nest.columns) * prod(each or USUAL for each in nest.rows[1:])
        height = min(
            height,
            max(1, target.cache_bytes(2) // 2 // (each_row * unit * nest.dtype.itemsize)),
        )
    made = Blocks(
        None if height == outermost else height * unit,
        None if column_parts == 1 else width,
        depth,
        cut,
        strip,
    )
    return made if copied or column_parts == 1 else _shared(made)


def _passes_memory(nest: Nest, target: Target) -> bool:
    """Whether factors and result together exceed all caches: then the rows' factor comes from
    memory for each block of columns, and fewer, wider blocks pay, though their panels leave no room
    in the L2 cache."""
    return target.level_of(_bytes_of(nest)) > 3


def _bytes_of(nest: Nest) -> int:
    """The size of both factors and of the result."""
    rows, columns, steps = prod(each or USUAL for each in nest.rows), nest.width, nest.depth
    return (rows + columns) * steps * nest.itemsize + rows * columns * nest.dtype.itemsize


def _rows_bytes(nest: Nest) -> int:
    """The size of the rows' factor, of one of a batch."""
    return prod(each or USUAL for each in nest.rows) * nest.depth * nest.itemsize


def _held(nest: Nest, target: Target) -> int:
    """The bytes that lie with the rows' factor in the cache from which it comes for each block of
    columns: its own, if they stay in L2 beside the panels of a block; otherwise all."""
    size = _rows_bytes(nest)
    return size if target.level_of(int(SHARE * size)) < 3 else _bytes_of(nest)


def _pays_to_copy(nest: Nest, tile: Tile, target: Target) -> bool:
    """Whether it takes less time to copy the rows' factor once than to wait for it, row by row, for
    each block of columns: what lies in the order in which it is read comes ahead of its use."""
    if None in (*nest.rows, nest.columns, *nest.steps) or len(nest.rows) > 1:
        return False
    width = target.cache_bytes(2) // 2 // (nest.depth * nest.itemsize)
    blocks = nest.width // max(tile.columns, width)
    size = _rows_bytes(nest)
    waiting = waiting_cycles(size * (blocks - 1), _held(nest, target), target)
    return waiting > copy_cycles(size)


def _row_cycles(nest: Nest, tile: Tile, steps: int, target: Target, *, copied: bool) -> float:
    """The cycles in which a task gets the rows of a tile: it copies them, or waits for them."""
    size = tile.rows * steps * nest.itemsize
    return copy_cycles(size) if copied else waiting_cycles(size, _held(nest, target), target)


def _shared(blocks: Blocks) -> Blocks:
    """Blocks whose tasks share one copy of the rows' factor, if it is copied: each column's task
    would make it again."""
    return replace(blocks, strip=None, shares_rows=blocks.strip is not None)


def strip_of(nest: Nest, tile: Tile, steps: int, target: Target) -> int:
    """The rows of a strip, if the rows' factor is copied: an eighth of the L2 cache."""
    tiles = target.cache_bytes(2) // 8 // (tile.rows * steps * nest.itemsize)
    rows = nest.rows[-1] or USUAL
    return max(1, min(tiles, -(-rows // tile.rows))) * tile.rows


def thrashes(nest: Nest, steps: int, target: Target) -> bool:
    """Whether lines of the rows' factor for neighbouring steps of the sum share so few sets of the
    L1 cache that they evict each other, or lie on more pages than the CPU finds without a walk."""
    if nest.step_bytes < CACHE_LINE:
        return False
    if steps * min(nest.step_bytes, _PAGE) > _MOST_PAGES * _PAGE:
        return True
    apart = _way_bytes(target)
    sets = apart // max(CACHE_LINE, gcd(nest.step_bytes, apart))
    return steps > 2 * sets * target.l1_ways


def balanced(size: int, most: int) -> int:
    """The size of equal parts, as many of them as there are parts of size `most`."""
    return -(-size // -(-size // most))


def _depth_and_cut(nest: Nest, most: int) -> tuple[int | None, int]:
    """The steps of a block of about `most` steps, along the reduction axis that is cut, and its
    place: the first one of which a block may have a step. A block has one step of those before."""
    places = range(len(nest.steps))
    cut = next((each for each in places if nest.inside(each) <= most), 0)
    depth = _depth(nest.steps[cut], max(1, most // nest.inside(cut)))
    return (nest.steps[cut] if cut and depth is None else depth), cut


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
    times: tuple[float, float, float],
    cores: int,
) -> tuple[int, int]:
    """The numbers of parts of columns and of rows with which the slowest core is done first; each
    part packs its own panels, and copies its own rows. `times` are those of computing a tile, of
    packing a panel, and of copying the rows of a tile."""
    tile, panel, row = times
    best, least = (1, 1), inf
    fewest = -(-panels // most_panels)
    for column_parts in range(fewest, panels + 1)[:_MOST_COUNTS]:
        for row_parts in range(1, min(cores, most_row_parts) + 1):
            tasks = prod(each or 1 for each in batches) * column_parts * row_parts
            rows, columns = -(-row_tiles // row_parts), -(-panels // column_parts)
            task = columns * (rows * tile + panel) + rows * row
            alone = panels * (row_tiles * tile + row_parts * panel) + column_parts * row_tiles * row
            # One core does all tasks where there is one thread, or the others are busy.
            time = -(-tasks // cores) * cores * task + alone
            if time < least * (1 - 1e-9):  # sums of floats differ by rounding
                best, least = (column_parts, row_parts), time
    return best
