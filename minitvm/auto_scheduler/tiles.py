"""The space of a contraction's register tiles and cache blocks, searched for the least cost.

The search takes a nest and a target, and asks :func:`cost` for the cycles of each candidate. All
register tiles are tried that fit the registers. Cache blocks follow from the tile:

- A block has as many steps of the sum as the rows of a tile may have in the L1 cache; or more,
  where panels that are requested pass through it.
- The panels of a block's columns are read once for each tile of rows. Few panels stay in the L2
  cache. Many panels lie in L3, and are read from end to end.
- The rows are read once for each block of columns. Wide blocks let them come less often from L3 or
  from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod
from typing import TypeAlias

from minitvm.auto_scheduler.cost import (
    PAGE,
    SHARE,
    Blocks,
    Nest,
    Tile,
    Unit,
    copy_cycles,
    cost,
    cycles_by_panel,
    cycles_in_panels,
    kept_level,
    l1_way_bytes,
    lines_in_l2,
    lines_kept,
    packing_cycles,
    panels_from,
    transfer_cycles,
    usual_product,
    waiting_cycles,
)
from minitvm.auto_scheduler.some_sizes import (
    USUAL,
    USUAL_COLUMNS,
    has_sizes,
    is_for_others,
    is_version,
)
from minitvm.runtime.dtype import DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target

ALIKE = 1.02  # times the fewest cycles: nearer than the model is to the truth
_MOST_COUNTS = 256  # of parts that are tried: where there are so many, one more makes no difference
_FEW = 8  # rows
_SMALL = 128  # rows and columns of a call
_NARROW = 64  # rows, columns or steps, of a version for fewer of one of them
# Eighths of them, and how many more: whole tiles are the most frequent ones.
_CALLS = ((8, 0), (8, 0), (7, 1), (6, 4), (6, 0), (5, 3), (4, 3), (4, 1), (4, 0), (4, 0))
_GOOD = 1.25  # times the fewest cycles of whole tiles
_BlocksOf: TypeAlias = Callable[[Nest, Tile, Target], Blocks]


def vectors(dtype: DType, target: Target) -> Unit:
    """Multiply-adds of vectors, or other arithmetic."""
    lanes, under_way = target.lanes(dtype), target.multiply_adds_under_way
    cycles, masks = 1 / target.processor.ports, target.has_mask_registers
    return Unit(1, lanes, 1, target.vector_registers, under_way, cycles, is_masked=masks)


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
            n = unit.vectors_of(columns)
            factors = n * max(1, terms.vectors) + (r if unit.rows > 1 else 1) + terms.temporaries
            fits = r * n * terms.results + factors <= unit.registers
            if not fits and (r, c, unit.rows) != (1, 1, 1):
                break
            for rows in _rows_of_tile(nest, r * unit.rows):
                is_apart = nest.block is not None and (nest.block % rows or nest.block % columns)
                if not is_apart and (rows <= most or (r, c, unit.rows) == (1, 1, 1)):
                    yield Tile(rows, columns)


def _rows_of_tile(nest: Nest, most: int) -> Iterator[int]:
    """The numbers of rows of a tile, about `most`, that leave a small remainder, or none."""
    unit, height = nest.unit, nest.height
    if unit.is_exact:
        yield most
        return
    even = balanced(height, most)
    yield even
    if height % even and nest.pads_rows:  # a remainder is padded in a copy of the rows' factor
        least = most - unit.rows + 1
        yield from [each for each in range(most, least - 1, -1) if height % each == 0][:1]


def best_tile(nest: Nest, target: Target, blocks: _BlocksOf | None = None) -> Tile:
    """The tile that takes the fewest cycles, in the `blocks` of a function; of tiles that are alike
    one that divides rows and columns whose number is known: a remainder is code of its own.

    >>> unit = vectors(DType.of("float32"), Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"))
    >>> nest = Nest((96,), 96, (96,), (), DType.of("float32"), 4, 4 * 96, 4, 4 * 96, unit)
    >>> best_tile(nest, Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"))
    Tile(rows=8, columns=48)
    """
    chooser, calls = _chooser.get(), _calls(nest)
    if chooser is None and not calls:
        return _best_of_all(nest, target, blocks)
    costs = _costs_by_tile(nest, target, blocks)
    if chooser is not None:
        return chooser(costs)
    best = min(costs, key=lambda tile: costs[tile])
    most, widest = costs[best] * _GOOD, best.columns  # more columns are left by wider tiles
    good = tuple(t for t in costs if costs[t] <= most and t.columns <= widest)
    return _best_of(nest, _misses(good, calls, on_one_core(target), blocks or _blocks_for(nest)))


@lru_cache(maxsize=256)  # asked for each way to compute a contraction
def _best_of_all(nest: Nest, target: Target, blocks: _BlocksOf | None) -> Tile:
    return _best_of(nest, _costs_by_tile(nest, target, blocks))


def _costs_by_tile(nest: Nest, target: Target, blocks: _BlocksOf | None) -> Mapping[Tile, float]:
    return _costs(nest, target) if blocks is None else _costs_in(nest, target, blocks)


def _best_of(nest: Nest, costs: Mapping[Tile, float]) -> Tile:
    """The tile that costs the least; of tiles that are alike one that leaves no remainder."""
    most = min(costs.values()) * ALIKE
    alike = [tile for tile in costs if costs[tile] <= most]

    def rank(tile: Tile) -> tuple[int, float]:
        height = nest.rows[-1] if nest.rows else 1
        pairs = (height, tile.rows), (nest.columns, tile.columns)
        return sum(n is not None and n % size > 0 for n, size in pairs), costs[tile]

    return min(alike, key=rank)


def _calls(nest: Nest) -> tuple[Nest, ...]:
    """Nests of some calls that have the version which is written, from whole tiles to half as many
    rows and columns. In a version for few columns or steps, rows stay as they are. Padded tiles of
    known sizes are for multiples of them."""
    is_padded, unit = nest.pads_columns, nest.unit
    if not is_version() or unit.rows > 1 or not nest.rows or (is_padded and has_sizes()):
        return ()
    if not is_padded and (unit.depth > 1 or not is_for_others(nest.columns)):
        return ()
    row, column = (_SMALL if is_padded else n or _SMALL for n in (nest.rows[-1], nest.columns))
    varies = is_padded or is_for_others(nest.rows[-1])
    made = list[Nest]()
    for eighths, more in _CALLS:
        width, height = (n * eighths // 8 + more for n in (column, row))
        height = height if varies and height >= _NARROW else row
        rows = (*nest.rows[:-1], height)
        made.append(replace(nest, rows=rows, columns=width, is_symbolic=True))
    return tuple(made)


@lru_cache(maxsize=256)  # asked whether to pack, and for the tile
def _misses(
    tiles: tuple[Tile, ...], calls: tuple[Nest, ...], target: Target, blocks: _BlocksOf
) -> Mapping[Tile, float]:
    """By how much each of some tiles misses the fewest cycles, in the mean of the calls."""
    made = {
        tile: [cost(each, tile, blocks(each, tile, target), target) for each in calls]
        for tile in tiles
    }
    least = [min(each) for each in zip(*made.values(), strict=True)]
    return {
        tile: sum(n / m for n, m in zip(cycles, least, strict=True)) / len(calls)
        for tile, cycles in made.items()
    }


def _costs(nest: Nest, target: Target) -> Mapping[Tile, float]:
    """The cycles of a nest by each tile; its blocks, if it is packed, are chosen later."""
    found = _costs_in(nest, on_one_core(target), _blocks_for(nest))
    if nest.is_packed or target.num_cores == 1:
        return found
    return {tile: _on_cores(nest, tile, cycles, target) for tile, cycles in found.items()}


@lru_cache(maxsize=256)  # the stages of a program are often of one size
def _costs_in(nest: Nest, target: Target, blocks: _BlocksOf) -> Mapping[Tile, float]:
    """The cycles of a nest by each tile, in the blocks that a function gives for the tile."""
    alone = on_one_core(target)
    return {
        tile: cost(nest, tile, blocks(nest, tile, target), alone) for tile in tiles_of(nest, target)
    }


def _blocks_for(nest: Nest) -> _BlocksOf:
    return in_one_block if nest.is_packed else blocks_in_place


def in_one_block(nest: Nest, tile: Tile, target: Target) -> Blocks:
    """The blocks of a nest that is not divided."""
    return Blocks()


def in_columns_of_tiles(nest: Nest, tile: Tile, target: Target) -> Blocks:
    """The blocks of a nest whose tasks are as wide as a tile."""
    return Blocks(columns=tile.columns)


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
    """Lets `chooser` choose tiles, given the cycles of each, to compare the model with the
    clock."""
    token = _chooser.set(chooser)
    try:
        yield
    finally:
        _chooser.reset(token)


def rows_side_by_side(row_bytes: int, target: Target) -> int:
    """The number of rows, `row_bytes` apart, that a tile may read without evictions from L1. Where
    a CPU waits for lines of L2, a third of the ways is left for the columns that pass."""
    ways = target.l1_ways - (target.l1_ways // 3 if target.processor.l2_latency else 0)
    return ways if row_bytes % l1_way_bytes(target) == 0 else target.vector_registers


def panels_together(target: Target) -> int:
    """The number of panels that are written side by side. Even if all of them fall into the same
    sets of the L1 cache, half of its ways are left for the lines that are read."""
    return max(1, target.l1_ways // 2)


def blocks_of(
    nest: Nest, tile: Tile, target: Target, *, copied: bool = False, whole: bool = False
) -> Blocks:
    """The blocks of a contraction whose columns' factor is packed.

    `copied`: the rows' factor is read from a copy in which it lies row by row. `whole`: all steps
    are summed at once.

    >>> znver4 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2")
    >>> f32 = DType.of("float32")
    >>> unit = vectors(f32, znver4)
    >>> nest = Nest((2048,), 2048, (2048,), (), f32, 4, 4 * 2048, 4, 4 * 2048, unit)
    >>> made = blocks_of(nest, Tile(8, 32), znver4)
    >>> made.columns * made.depth * 4 <= znver4.cache_bytes(3) // 8
    True
    """
    nest, itemsize = replace(nest, is_packed=True), nest.itemsize
    across = copied or thrashes(nest, nest.depth, target)
    step = max(tile.rows * itemsize, 0 if across else min(nest.step_bytes, CACHE_LINE))
    most = max(1, int(target.cache_bytes(1) / SHARE) // step)
    is_far = kept_level(nest.terms.vectors * nest.depth * nest.width * itemsize, target) > 2
    # From afar, fewer steps let more of a row be packed at once, in the order of memory.
    depths = [most, most // 2, most // 4] if is_far and nest.columns is not None else [most]
    if is_far and nest.columns is not None and target.processor.l2_latency:
        depths += [2 * most, nest.depth]  # panels that are requested evict the rows from L1 anyway
    cuts = [(None, 0)] if whole else [*dict.fromkeys(_depth_and_cut(nest, n) for n in depths if n)]
    if nest.columns is None:
        ((depth, cut),) = cuts
        steps = nest.steps_of(depth, cut)
        panels = max(1, _panels_bytes(nest, target) // (steps * tile.columns * itemsize))
        strip = strip_of(nest, tile, steps, target) if copied else None
        width = tile.columns * max(1, min(panels, USUAL_COLUMNS // tile.columns))  # whole panels
        return Blocks(None, width, depth, cut, strip, shares_rows=across and not copied)

    def search(cut: tuple[int | None, int], on: Target) -> tuple[float, Blocks]:
        return _blocks_with(nest, tile, *cut, on, across=across, copied=copied)

    alone = on_one_core(target)  # a sum has the same parts on any number of cores
    best_cut = min(cuts, key=lambda each: search(each, alone)[0]) if len(cuts) > 1 else cuts[0]
    return search(best_cut, target)[1]


def _blocks_with(
    nest: Nest,
    tile: Tile,
    depth: int | None,
    cut: int,
    target: Target,
    *,
    across: bool,
    copied: bool,
) -> tuple[float, Blocks]:
    """The best blocks of some steps, and their cycles. `across`: the rows' factor is copied, by
    each task or once for all; `copied`: by each."""
    steps = nest.steps_of(depth, cut)
    strip = strip_of(nest, tile, steps, target)
    most = max(1, _panels_bytes(nest, target) // (steps * tile.columns * nest.itemsize))
    unit, outermost = _outermost_rows(nest, tile)
    panels = -(-nest.width // tile.columns)
    # A version leaves the rows, whose number calls decide, undivided: each part of them would pack
    # the columns' factor again.
    is_whole = None in nest.rows[:1] or is_version()
    most_row_parts = 1 if is_whole else min(target.num_cores, outermost)
    is_known = None not in (*nest.rows, *nest.steps) and len(nest.rows) == 1
    best, least = Blocks(), inf
    heights = _sizes(outermost, range(1, most_row_parts + 1))
    for width in _sizes(panels, range(-(-panels // most), panels + 1)[:_MOST_COUNTS]):
        column_parts = -(-panels // width)
        # Each of several tasks would make the copy again.
        shares = column_parts > 1 and not copied
        ways = [shares] if across else [False, True] if shares and is_known else [False]
        times = cycles_in_panels(nest, tile, width * tile.columns, steps, target)
        for shared, height in product(ways, heights):
            made = Blocks(
                None if height == outermost else height * unit,
                None if column_parts == 1 else width * tile.columns,
                depth,
                cut,
                strip if across and not shared else None,
                shares_rows=shared,
            )
            cycles = _cycles_in(nest, tile, made, times, steps, target)
            if cycles < least * (1 - 1e-9):  # sums of floats differ by rounding
                best, least = made, cycles
    return least * -(-nest.depth // steps), best


def _outermost_rows(nest: Nest, tile: Tile) -> tuple[int, int]:
    """The rows by which blocks of the outermost axis of rows grow, and the number of such parts."""
    unit = tile.rows if len(nest.rows) == 1 else 1
    return unit, -(-_outermost(nest) // unit)


def _outermost(nest: Nest) -> int:
    """The extent of the outermost axis of rows."""
    return (nest.rows[0] or USUAL) if nest.rows else 1


def best_by_panel(
    nest: Nest, target: Target, *, packs: bool = True
) -> tuple[float, Tile, Blocks] | None:
    """The fewest cycles of a nest whose tiles of rows all read one panel before the next, the tile,
    and the blocks: of as many steps as let the rows' factor and two panels stay in the L2 cache, or
    one panel in L1; if the factor isn't packed, of no more than :func:`_steps_in_place` lets be. It
    is for CPUs that wait for lines which are not requested, and a factor from beyond L2. `packs`:
    see :func:`cycles_by_panel`."""
    is_far = panels_from(nest, target) > 2 and target.processor.l2_latency
    sizes = (*nest.rows, *nest.steps, nest.columns, *nest.others)
    if not is_far or None in sizes or len(nest.rows) != 1 or len(nest.steps) != 1:
        return None
    if nest.outer > 1 or nest.unit.rows > 1 or is_version() or thrashes(nest, nest.depth, target):
        return None
    return _best_by_panel(nest, target, packs)


@lru_cache(maxsize=256)  # asked whether to pack, and for the blocks
def _best_by_panel(nest: Nest, target: Target, packs: bool) -> tuple[float, Tile, Blocks] | None:
    """The search of :func:`best_by_panel`, for a nest of known sizes."""
    found = list[tuple[float, Tile, Blocks]]()
    for tile in tiles_of(nest, target):
        if not nest.is_packed and nest.height <= tile.rows:
            continue  # nothing reads a panel again
        panels = -(-nest.width // tile.columns)
        most = target.cache_bytes(2) // 2 // ((nest.height + 2 * tile.columns) * nest.itemsize)
        near = int(target.cache_bytes(1) / SHARE) // (tile.columns * nest.itemsize)
        most = most if nest.is_packed else min(most, _steps_in_place(nest, target))
        for depth in {_depth(nest.depth, n) for n in (most, most // 2, near) if 0 < n <= most}:
            width = -(-panels // min(panels, target.num_cores))
            columns = None if width == panels else width * tile.columns
            blocks = Blocks(columns=columns, depth=depth, by_panel=True)
            cycles = cycles_by_panel(nest, tile, depth or nest.depth, target, packs=packs)
            found.append((cycles, tile, blocks))
    return min(found, key=lambda each: each[0], default=None)


def with_sums_kept(
    nest: Nest, tile: Tile, blocks: Blocks, target: Target, *, packs: bool
) -> Blocks:
    """Blocks of rows for a task whose sums are in memory of its own until the last step. If all of
    them stay in the L2 cache from one block of steps to the next, they come sooner; but the
    columns' factor comes again for each block of rows, and is packed again, if the call `packs`
    it."""
    if blocks.depth is None or nest.columns is None:
        return blocks
    unit, outermost = _outermost_rows(nest, tile)
    width = min(blocks.columns or nest.width, nest.width)
    each_row = width * usual_product(nest.rows[1:]) * unit * nest.dtype.itemsize
    whole = -(-(blocks.rows or outermost * unit) // unit)
    kept = min(whole, max(1, target.cache_bytes(2) // 2 // each_row))
    factor = nest.depth * nest.width * nest.itemsize
    coming = packing_cycles(nest, target) if packs else transfer_cycles(factor, factor, target)
    rounds = 2 * -(-nest.depth // nest.steps_of(blocks.depth, blocks.cut))

    def cycles(height: int) -> float:
        sums = rounds * each_row * nest.width // width * outermost
        return -(-outermost // height) * coming + transfer_cycles(sums, each_row * height, target)

    height = min((whole, kept), key=cycles)
    return replace(blocks, rows=None if height == outermost else height * unit)


def blocks_in_place(
    nest: Nest, tile: Tile, target: Target, *, copied: bool = False, whole: bool = False
) -> Blocks:
    """The blocks of a contraction whose columns' factor is read as it lies, from beyond the L2
    cache. The rows of a block's steps lie on pages that the CPU finds without a walk. The part of
    these rows under a block's columns stays in L2 from one tile of rows to the next. So rows of
    memory are read from one end to the other. The arguments are those of :func:`blocks_of`."""
    if nest.columns is None or None in nest.steps:
        return Blocks()
    column_bytes = nest.terms.vectors * nest.itemsize  # of a step
    if kept_level(int(nest.bytes_of_columns(nest.columns, nest.depth)), target) <= 2:
        return Blocks()
    most = _steps_in_place(nest, target)
    depth, cut = (None, 0) if whole else _depth_and_cut(nest, most)
    steps = nest.steps_of(depth, cut)
    panels = -(-nest.columns // tile.columns)
    width = panels
    if nest.height > tile.rows:
        kept = target.cache_bytes(2) // 2 // (steps * column_bytes * tile.columns)
        is_worse = copied or steps > lines_in_l2(nest, target)  # or each block would copy again
        width = panels if kept < 1 or (depth is None and is_worse) else balanced(panels, kept)
    if depth is not None:
        tasks = prod(each or target.num_cores for each in nest.others)
        width = min(width, -(-panels * tasks // target.num_cores))
    columns = None if width == panels else width * tile.columns
    return Blocks(columns=columns, depth=depth, cut=cut)


def _steps_in_place(nest: Nest, target: Target) -> int:
    """The most steps of a block whose columns' factor isn't packed: their rows in memory lie on
    pages that the CPU finds without a walk, and don't evict each other from the L2 cache."""
    pages = target.processor.pages[0] * PAGE // max(1, min(nest.line_bytes, PAGE))
    return min(pages, lines_in_l2(nest, target))


@lru_cache(maxsize=64)
def on_one_core(target: Target) -> Target:
    """The target with one core. The order of a sum is decided for it, so that the bits of a result
    don't depend on the number of cores."""
    return Target(f"{target} -num-cores=1")


def _panels_bytes(nest: Nest, target: Target) -> int:
    """The most bytes of the panels of a block: half of the L2 cache, since pages that lie at random
    on its sets evict each other from more of it; or an eighth of a core's part of L3, through which
    both factors and the result pass until the panels are read again. From L3, nothing is requested
    early for instructions that take their factors as matrices."""
    half = target.cache_bytes(2) // 2
    if nest.unit.loads > 1:
        return half
    return max(half, target.cache_bytes(3) // target.num_cores // 8)


def _sizes(total: int, counts: Iterable[int]) -> list[int]:
    """The different sizes of equal parts, for numbers of parts; the largest first."""
    return sorted({-(-total // count) for count in counts}, reverse=True)


def _cycles_in(
    nest: Nest, tile: Tile, blocks: Blocks, times: tuple[float, float], steps: int, target: Target
) -> float:
    """The cycles of a contraction's tasks over `steps` steps of the sum: those of one core for all
    of them, where there is one thread, or the others are busy; and of all cores until the slowest
    is done. `times` are those of computing a tile, and of packing a panel."""
    tile_cycles, panel_cycles = times
    cores, rows = target.num_cores, _outermost(nest)
    panels = -(-nest.width // tile.columns)
    row_tiles = -(-usual_product(nest.rows) // tile.rows)
    column_parts = -(-nest.width // (blocks.columns or nest.width))
    row_parts = -(-rows // (blocks.rows or rows))
    tasks = prod(each or 1 for each in nest.others) * column_parts * row_parts
    each_rows, each_columns = -(-row_tiles // row_parts), -(-panels // column_parts)

    size, held = tile.rows * steps * nest.itemsize, _held(nest, target)
    copies = blocks.strip is not None or blocks.shares_rows
    row = waiting_cycles(size, held, target, in_order=copies)
    once = 0.0
    if blocks.shares_rows:
        once = row_tiles * (copy_cycles(size) + transfer_cycles(2 * size, held, target))
    elif copies:
        row += copy_cycles(size)
    task = each_columns * (each_rows * tile_cycles + panel_cycles) + each_rows * row
    alone = panels * (row_tiles * tile_cycles + row_parts * panel_cycles)
    alone += column_parts * row_tiles * row
    return -(-tasks // cores) * cores * task + alone + 2 * once


def _held(nest: Nest, target: Target) -> int:
    """The bytes that lie with the rows' factor in the cache from which it comes for each block of
    columns: its own, if they stay in L2 beside the panels of a block; otherwise all."""
    rows, columns = usual_product(nest.rows), nest.width
    size = rows * nest.depth * nest.itemsize
    if kept_level(size, target) < 3:
        return size
    return size + columns * (nest.depth * nest.itemsize + rows * nest.dtype.itemsize)


def strip_of(nest: Nest, tile: Tile, steps: int, target: Target) -> int:
    """The rows of a strip, if the rows' factor is copied: an eighth of the L2 cache."""
    tiles = target.cache_bytes(2) // 8 // (tile.rows * steps * nest.itemsize)
    rows = nest.rows[-1] or USUAL
    return max(1, min(tiles, -(-rows // tile.rows))) * tile.rows


def thrashes(nest: Nest, steps: int, target: Target) -> bool:
    """Whether lines of the rows' factor for neighbouring steps of the sum share so few sets of the
    L1 cache that they evict each other, lie on more pages than the CPU finds without a walk, or
    have an element each, and are more than L1 holds for a few rows."""
    if nest.step_bytes < CACHE_LINE:
        return False
    way, ways = l1_way_bytes(target), target.l1_ways
    if nest.row_bytes >= CACHE_LINE:
        apart = gcd(nest.row_bytes, nest.step_bytes)
        return steps * min(_FEW, nest.height) > lines_kept(apart, way, ways)
    if steps * min(nest.step_bytes, PAGE) > target.processor.pages[0] * PAGE:
        return True
    return steps > 2 * lines_kept(nest.step_bytes, way, ways)


def balanced(size: int, most: int) -> int:
    """The size of equal parts, as many of them as there are parts of size `most`."""
    return -(-size // -(-size // most))


def _depth_and_cut(nest: Nest, most: int) -> tuple[int | None, int]:
    """The steps of a block of about `most` steps, along the reduction axis that is cut, and its
    place: that of the first axis along which a block may have a step or more. A block has one step
    along the axes before."""
    places = range(len(nest.steps))
    cut = next((each for each in places if nest.inside(each) <= most), 0)
    depth = _depth(nest.steps[cut], max(1, most // nest.inside(cut)))
    return (nest.steps[cut] if cut and depth is None else depth), cut


def _depth(steps: int | None, most: int) -> int | None:
    """The steps of a block: all, if there are hardly more than `most`; if possible the same number
    in each block."""
    if steps is None:
        return most
    if steps <= most + most // 8:
        return None
    even = next((each for each in range(most, most // 2, -1) if steps % each == 0), None)
    return even or -(-steps // -(-steps // most))
