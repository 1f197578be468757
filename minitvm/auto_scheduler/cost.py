"""The time of a contraction by register tiles, in cycles of one core, from figures of the target.

The innermost loops compute a tile of ``rows`` by ``columns`` sums that stay in registers while the
sum runs. One step of the sum takes the longest of

- the arithmetic: a product for each register of sums, as many in a cycle as there are ports, and no
  faster than the latency of one lets the next step begin;
- the loads: registers of the columns' factor, an element of the rows' factor for each row, and the
  time in which both come from the caches that hold them: the columns' factor between two tiles of
  rows, the rows' factor between two blocks of columns. A register of a factor that isn't packed
  may lie across two lines of the cache, and takes two loads then. Where such a factor comes from
  beyond the L2 cache, its lines are requested ahead: no processor foresees steps from row to row
  that are longer than a page. Some processors wait for lines of the L2 cache as well. There, they
  are requested too, whether of panels or of rows, and only get in the way of other loads.

From the L3 cache and from memory, data take longer in pieces that lie apart than in order. While
panels are packed, each piece may be on a page of its own; if the pages are more than the CPU keeps
translations of, it takes a walk of the page table, too. A block of steps of a factor that isn't
packed is read in order, and so are panels.

A tile stores its sums, transposed where channels that lie apart are its columns. Their lines come
from the cache that holds the result, and go back there. The tile begins and ends its loop. Rows
that are padded are copied.

The order of loops is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", ACM TOMS 34(3), 2008, with the factors' roles exchanged: a tile of rows is what the
innermost loop around tiles reads again. The model is that of Low, Igual, Smith and Quintana-Orti,
"Analytical Modeling Is Enough for High-Performance BLIS", ACM TOMS 43(2), 2016, sections 4 and 5,
with loads counted against arithmetic for tiles at the edge, and with any terms for
multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from math import gcd, hypot, prod
from typing import final

from minitvm.auto_scheduler.contraction import extent_of
from minitvm.auto_scheduler.some_sizes import USUAL
from minitvm.auto_scheduler.terms import MULTIPLY_ADD, Terms
from minitvm.runtime.dtype import DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.tensor import Tensor
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar

_SUSTAINED = 0.9  # of the loads that could begin: some lie across two lines
_LOOP = 12  # cycles in which a loop begins and ends: its branch is foreseen wrongly once
_LATE = 0.125  # of the time in which data come, if they are read in their order
_IN_THE_WAY = 0.2  # of the time in which requested lines fill the L1 cache, which others wait for
_UNASKED = 1.0  # of the time in which lines of the L2 cache come that nobody requests
_ALONE = 0.5  # of the time in which lines of the L2 cache come, if no others come beside them
_COPY = 4  # bytes of a copy in another layout that are made in a cycle
_APART = 2.5  # cycles in which an element that lies apart from its neighbours is copied
_COPY_SHORT = 4 / 3  # bytes of a copy of short rows
_LINE = 2  # cycles in which the copy of a line of them begins
_COPY_ROWS = 16  # bytes of a copy of rows in vectors
PAGE = 4096  # bytes
_WALK = 25  # cycles in which the address of another page is translated, while others are, too
_SHORT_ROWS = 4  # of a tile at the end of a symbolic number of rows
SHARE = 4 / 3  # times the bytes that a cache keeps, since other data pass through it


@final
@record()
class Unit:
    """What multiplies and adds: an instruction that computes `rows` by `columns` sums in one of
    `registers`, for sums and factors together, from `depth` steps. A product begins every `cycles`;
    `under_way` must run at once for none to wait. A register takes `loads` loads. Tiles have a
    multiple of `panel` columns. `is_exact`: they consist of whole registers. `is_masked`: a part of
    a register's lanes takes one register, too."""

    rows: int
    columns: int
    depth: int
    registers: int
    under_way: int
    cycles: float
    loads: int = 1
    panel: int = 1
    is_exact: bool = True
    is_masked: bool = False

    def vectors_of(self, columns: int) -> int:
        """The registers for a row of sums. Without masks, fewer columns than fill one are computed
        in vectors whose lanes are powers of two."""
        is_odd = self.is_exact and not self.is_masked and columns < self.columns
        return columns.bit_count() if is_odd else -(-columns // self.columns)


@final
@record()
class Tile:
    """A tile of sums: `rows` by `columns`."""

    rows: int
    columns: int


@final
@record()
class Blocks:
    """The parts of a contraction. A task computes `columns`, and `rows` of the outermost axis of
    rows. `depth` steps of the reduction axis at the place `cut`, for one step of those before it,
    are summed in registers at a time (None: all).
    The rows' factor is copied by each task, in strips of `strip` rows, or once for all tasks, if
    they share it (`shares_rows`); otherwise it isn't copied. `by_panel`: all tiles of rows read one
    panel of the columns' factor before the next one, which is requested meanwhile."""

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None
    cut: int = 0
    strip: int | None = None
    shares_rows: bool = False
    by_panel: bool = False


@final
@record()
class Nest:
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
    line_bytes
        The distance in memory of neighbouring steps of the columns' factor, as it lies.
    spread
        The bytes that come to a core for each byte of the columns' factor, as it lies.
    unit
        What computes the products.
    terms
        What a step costs.
    a_bytes, b_bytes
        The sizes of the rows' factor and of the columns' factor, of one of a batch or of groups;
        None if they are symbolic.
    pads_rows, pads_columns
        Whether tiles at the edge compute all of their rows, or columns.
    is_packed
        Whether the columns' factor is packed.
    copies_rows
        Whether the rows' factor is copied in any case: so its padding takes no further copy.
    transposes
        Whether sums are transposed on their way to memory.
    block
        The size that rows and columns of tiles divide; None where any size will do.
    is_symbolic
        Whether the extents are those of a call, which the tiles aren't made for: rows and columns
        that are left are computed in a part of a tile.
    """

    rows: tuple[int | None, ...]
    columns: int | None
    steps: tuple[int | None, ...]
    others: tuple[int | None, ...]
    dtype: DType
    itemsize: int
    row_bytes: int
    step_bytes: int
    line_bytes: int
    unit: Unit
    terms: Terms = MULTIPLY_ADD
    a_bytes: int | None = None
    b_bytes: int | None = None
    spread: int = 1
    pads_rows: bool = False
    pads_columns: bool = False
    is_packed: bool = False
    copies_rows: bool = False
    transposes: bool = False
    block: int | None = None
    is_symbolic: bool = False

    @property
    def height(self) -> int:
        """The extent of the axis along which tiles have rows."""
        return (self.rows[-1] if self.rows else 1) or USUAL

    @property
    def outer(self) -> int:
        """The number of the planes of rows and columns."""
        return usual_product((*self.others, *self.rows[:-1]))

    @property
    def width(self) -> int:
        return self.columns or USUAL

    @property
    def depth(self) -> int:
        return usual_product(self.steps)

    def bytes_of_columns(self, width: int, steps: int) -> float:
        """The bytes of the columns' factors for some columns and steps. As it lies, a factor of
        which several steps read the same element has fewer."""
        size = width * self.itemsize * max(1, self.terms.vectors) * self.share * steps
        if self.b_bytes is None or self.is_packed:
            return size
        return min(size, self.b_bytes * max(1, self.terms.vectors))

    @property
    def share(self) -> float:
        """The part of the lines of the columns' factor that are others at the next step. Windows of
        an image, as it lies, share lines."""
        is_apart = self.is_packed or self.unit.depth > 1
        return 1.0 if is_apart else min(1.0, self.line_bytes / CACHE_LINE)

    def inside(self, place: int) -> int:
        """The steps of the sum for one of the reduction axis at a place."""
        return usual_product(self.steps[place + 1 :])

    def steps_of(self, depth: int | None, cut: int) -> int:
        """The steps of the sum in a block: see :class:`Blocks`."""
        return self.depth if depth is None else depth * self.inside(cut)


@lru_cache(maxsize=1024)  # asked for each tile that is considered
def usual_product(extents: tuple[int | None, ...]) -> int:
    """The product of extents; a symbolic one is of the usual size."""
    return prod(each or USUAL for each in extents)


@lru_cache(maxsize=2048)  # asked for one core, and for several, whose blocks are often the same
def cost(nest: Nest, tile: Tile, blocks: Blocks, target: Target) -> float:
    """The cycles of one core for a nest by tiles in blocks.

    >>> unit = Unit(1, 8, 1, 16, 10, 0.5)
    >>> nest = Nest((96,), 96, (96,), (), DType.of("float32"), 4, 4 * 96, 4, 4 * 96, unit)
    >>> haswell = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
    >>> cost(nest, Tile(6, 16), Blocks(), haswell) < cost(nest, Tile(2, 16), Blocks(), haswell)
    True
    """
    width = min(blocks.columns or nest.width, nest.width)
    steps = nest.depth
    sums = nest.steps_of(blocks.depth, blocks.cut)
    panel = _panel_level(nest, tile, width, sums, target)
    if nest.is_packed and blocks.columns is None:
        panel = min(panel, 2)  # blocks are chosen later
    rows_first, rows_again = _rows_moved(nest, tile, sums, target)
    # A factor that lies comes from further away for the first tile of rows of a block.
    first, evicts = panel, False
    if not nest.is_packed:
        first = comes_from(nest, tile, target)
        evicts = sums > lines_in_l2(nest, target)
        panel = first if evicts else panel
    total = 0.0
    rows, columns = _parts_of(nest, tile)
    for count_r, r in rows:
        for count_c, c in columns:
            step = partial(_step, nest, r, c, target=target, in_order=blocks.depth is not None)
            tiles, each = count_r * count_c, steps / nest.unit.depth
            usual = step(panel, rows_again, evicts=evicts)
            total += tiles * each * usual
            if first > 2 and not nest.is_packed and r == min(tile.rows, nest.height):
                total += count_c * each * (step(first, rows_again) - usual)
            if rows_first != rows_again and c == min(tile.columns, nest.width):
                more = step(panel, rows_first, evicts=evicts) - usual
                total += count_r * -(-nest.width // width) * each * more
            total += tiles * -(-steps // sums) * _around(nest, r, c, target)
    if nest.pads_rows and not nest.copies_rows and nest.height % tile.rows:
        total += copy_cycles(nest.height * steps * nest.itemsize)
    return nest.outer * total


def cycles_by_panel(
    nest: Nest, tile: Tile, steps: int, target: Target, *, packs: bool = True
) -> float:
    """The cycles of a nest whose tiles of rows all read one panel of some steps before the next,
    which comes to L2 meanwhile, and is copied if the call `packs` it. The rows' factor for these
    steps stays in L2. A factor that isn't packed has panels, too: the columns of a tile in the rows
    of memory."""
    tiles = -(-nest.height // tile.rows)
    rows, size = _rows_bytes(nest, tile.rows), tile.columns * steps * nest.itemsize
    each = _step(nest, tile.rows, tile.columns, 1, _Rows(0.0, 0.0), target)
    each += _UNASKED * rows / target.bytes_per_cycle(2)
    is_in_l2 = kept_level(size, target) > 1
    moved = _LATE * size / steps if is_in_l2 else 0.0
    if not nest.is_packed:
        lines = (size / steps + CACHE_LINE) * nest.share  # the next panel comes to L1, too
        is_kept = kept_level(int(2 * lines * steps), target) == 1
        is_kept = is_kept and steps <= _lines_in_l1(nest, target)
        moved = 0.0 if is_kept else _IN_THE_WAY * lines
    each += moved / target.bytes_per_cycle(2)
    sums = _around(nest, tile.rows, tile.columns, target)
    if steps < nest.depth:
        sums += _sums_again(nest, tile, steps, target)
    level = panels_from(nest, target)
    # Either is faster at times, and waits for the other then.
    panel = hypot(size / target.bytes_per_cycle(level), tiles * (steps * each + sums))
    if packs and nest.is_packed:
        panel += size / (_COPY if nest.line_bytes < CACHE_LINE else _COPY_ROWS)
        panel += 2 * size / target.bytes_per_cycle(2) if is_in_l2 else 0.0
    return nest.outer * -(-nest.width // tile.columns) * -(-nest.depth // steps) * panel


def _sums_again(nest: Nest, tile: Tile, steps: int, target: Target) -> float:
    """The cycles in which the sums of a tile come, and go back, for each block of steps, of which
    all sums and the rows' factor pass the L2 cache: half of it keeps them."""
    sums = nest.height * nest.width * nest.dtype.itemsize
    held = sums + nest.height * steps * nest.itemsize
    far = min(1.0, max(0.0, (2 * held - target.cache_bytes(2)) / sums))
    near, beyond = (target.bytes_per_cycle(level) for level in (2, target.level_of(4 * held)))
    return tile.rows * tile.columns * nest.dtype.itemsize * ((1 - far) / near + 2 * far / beyond)


def panels_from(nest: Nest, target: Target) -> int:
    """The cache from which the columns' factor comes for the first time."""
    return target.level_of(_bytes_of_factor(nest))


def _bytes_of_factor(nest: Nest) -> int:
    """The bytes of the lines on which the columns' factor of one product lies."""
    return nest.depth * nest.width * nest.itemsize * nest.spread


def cycles_in_panels(
    nest: Nest, tile: Tile, width: int, steps: int, target: Target
) -> tuple[float, float]:
    """The cycles of one whole tile over some steps of the sum, in panels of a block of `width`
    columns; and those in which a panel is packed."""
    level = max(2, _panel_level(nest, tile, width, steps, target))
    each = _step(nest, tile.rows, tile.columns, level, _Rows(0.0, 0.0), target) / nest.unit.depth
    size = tile.columns * steps * nest.itemsize
    packing = _packing(nest, size, width, steps, width * steps * nest.itemsize, target)
    return steps * each + _around(nest, tile.rows, tile.columns, target), packing


def _packing(nest: Nest, size: int, width: int, steps: int, held: int, target: Target) -> float:
    """The cycles in which `size` bytes are copied into panels of a block of `width` columns by
    `steps` steps, which take `held` bytes. Written bytes pass their cache twice. This is L2 at
    least: other lines evict them from L1 meanwhile."""
    lies_across = nest.line_bytes < CACHE_LINE
    piece = (steps if lies_across else width) * nest.itemsize
    whole = nest.depth if lies_across else nest.width
    level = panels_from(nest, target)
    came = size * nest.spread / target.bytes_per_cycle(level) if level > 1 else 0.0
    if piece < whole * nest.itemsize:
        came *= in_pieces(level, piece, target)
        came += size / piece * _WALK if _has_walks(nest, piece, target) else 0.0
    # What is copied passes the cache of the panels, and evicts some, which tiles of matrices don't
    # request.
    passing = held if level > 2 and nest.unit.loads > 1 else 0
    written = 2 * size / target.bytes_per_cycle(max(2, kept_level(held + passing, target)))
    # Blocks that are transposed wait for lines of many rows.
    is_near = target.level_of(_bytes_of_factor(nest) + held) < 3
    across = _transposed(target) if is_near else _COPY
    return size / (across if lies_across else _COPY_ROWS) + came + written


def _has_walks(nest: Nest, piece: int, target: Target) -> bool:
    """Whether each piece of a row of the columns' factor, as it lies, takes a walk of the page
    table: it is on a page of its own, and the CPU keeps translations of fewer pages."""
    kept = target.processor.pages[1] * PAGE
    return piece < nest.line_bytes >= PAGE and nest.depth * nest.line_bytes > kept


def comes_from(nest: Nest, tile: Tile, target: Target, blocks: Blocks | None = None) -> int:
    """The cache from which the columns' factor comes, 1 to 3, or 4 for memory: as it lies; or the
    panels of a block, from one tile of rows to the next."""
    if blocks is None or not nest.is_packed:
        return _panel_level(nest, tile, nest.width, nest.depth, target)
    width = min(blocks.columns or nest.width, nest.width)
    return _panel_level(nest, tile, width, nest.steps_of(blocks.depth, blocks.cut), target)


def steps_ahead(nest: Nest, tile: Tile, blocks: Blocks, level: int, target: Target) -> int:
    """The number of steps of the sum by which a tile requests the columns' factor early from the
    cache `level`; 0 where it comes in time without requests. From beyond L2, panels come to L2 by
    themselves. Requested lines fill at most half of the L1 cache, or half of the few sets that
    lines of rows far apart share. Requests beyond the end of a block are of no use."""
    cpu = target.processor
    latency = cpu.l2_latency if level == 2 or nest.is_packed else cpu.memory_latency
    if nest.is_packed and panels_from(nest, target) > 2:
        latency *= 2  # for the first tile of rows they come from beyond L2
    if level == 1 or not latency:
        return 0
    size = tile.columns * nest.itemsize * nest.unit.depth
    most = min(
        target.cache_bytes(1) // (2 * (size + CACHE_LINE)),
        nest.steps_of(blocks.depth, blocks.cut) // 8,
        *(() if nest.is_packed else (_most_ahead(nest, target),)),
    )
    return min(steps_in(latency, tile, nest.unit, nest.terms), max(1, most))


def _most_ahead(nest: Nest, target: Target) -> int:
    """The number of steps of the columns' factor, as it lies, whose lines wait in half of the sets
    of the L1 cache that they share."""
    return _lines_in_l1(nest, target) // 2


def _lines_in_l1(nest: Nest, target: Target) -> int:
    """The number of steps of the columns' factor, as it lies, whose lines don't evict each other
    from the L1 cache."""
    return lines_kept(nest.line_bytes, l1_way_bytes(target), target.l1_ways)


def steps_in(cycles: int, tile: Tile, unit: Unit, terms: Terms = MULTIPLY_ADD) -> int:
    """The steps of the sum that a tile computes in some cycles."""
    vectors = -(-tile.rows // unit.rows) * unit.vectors_of(tile.columns)
    return max(1, round(cycles / (vectors * terms.operations * unit.cycles)))


def in_pieces(level: int, piece: int, target: Target) -> float:
    """How much longer data take to come from a cache, 1 to 3, or from memory, 4, in pieces of some
    bytes that lie apart."""
    return 1 + (0, 0, *target.processor.piece_bytes)[level - 1] / piece


def lines_in_l2(nest: Nest, target: Target) -> int:
    """The number of neighbouring steps of the columns' factor, as it lies, whose lines don't evict
    each other from the L2 cache before the next tile of rows; a symbolic number of columns is taken
    for a harmless one."""
    if nest.columns is None:
        return nest.depth
    return _lines_in_l2(nest.line_bytes, target)


def _lines_in_l2(distance: int, target: Target) -> int:
    way = target.processor.l2_way_bytes
    return lines_kept(distance, way, max(1, target.cache_bytes(2) // way))


def cycles_of_evicted_rows(nest: Nest, tile: Tile, target: Target) -> float:
    """The cycles in which the rows' factor, as it lies, comes from beyond the L2 cache again for
    each tile. It does so where lines of neighbouring steps evict each other from L2."""
    is_kept = nest.step_bytes < CACHE_LINE or nest.depth <= _lines_in_l2(nest.step_bytes, target)
    level = target.level_of(nest.a_bytes or 0)
    if is_kept or level < 3:
        return 0.0
    size = max(_rows_bytes(nest, tile.rows), CACHE_LINE)
    tiles = nest.outer * -(-nest.height // tile.rows) * -(-nest.width // tile.columns)
    came = size / target.bytes_per_cycle(level) * in_pieces(level, size, target)
    return tiles * nest.depth * came


def l1_way_bytes(target: Target) -> int:
    """The distance, in bytes, of addresses in the same set of the L1 cache."""
    return max(CACHE_LINE, target.cache_bytes(1) // target.l1_ways)


def lines_kept(distance: int, way_bytes: int, ways: int) -> int:
    """The number of lines, `distance` bytes apart, that stay in a cache of `ways` ways, each of
    `way_bytes`. Lines of the same set evict each other."""
    return way_bytes // max(CACHE_LINE, gcd(distance, way_bytes)) * ways


def copy_cycles(size: int) -> float:
    """The cycles in which `size` bytes are copied into panels of another layout."""
    return size / _COPY


def copy_cycles_apart(elements: int) -> float:
    """The cycles in which elements are copied that lie apart from their neighbours."""
    return elements * _APART


def copy_cycles_of_lines(size: int, line: int) -> float:
    """The cycles in which `size` bytes are copied, in vectors, in lines of `line` bytes."""
    return size / line * _LINE + size / _COPY_ROWS


def layout_cycles(size: int, run: int, target: Target, *, in_rows: bool) -> float:
    """The cycles in which a whole tensor of `size` bytes is copied into another layout: `in_rows`
    that stay in order, or in blocks that are transposed in registers. `run`: the bytes of a row of
    the copy; short rows leave lanes idle."""
    if run < CACHE_LINE:
        return size / _COPY_SHORT
    return size / (_COPY_ROWS if in_rows else _transposed(target))


def _transposed(target: Target) -> float:
    """The bytes of blocks that are transposed in registers in a cycle."""
    return target.vector_bits / 64


def packing_cycles(nest: Nest, target: Target) -> float:
    """The cycles in which the columns' factor is copied into panels, block by block in L2."""
    others = usual_product(nest.others)
    size = nest.depth * nest.width * nest.itemsize
    held = min(size, target.cache_bytes(2) // 2)
    return others * _packing(nest, size, nest.width, nest.depth, held, target)


def waiting_for_panels(size: int, target: Target) -> float:
    """The cycles in which tiles wait for `size` bytes of panels that are made ahead of the call:
    they come once, from beyond L2."""
    level = kept_level(size, target)
    return size / target.bytes_per_cycle(level) if level > 2 else 0.0


def usual_bytes_of(tensor: Tensor) -> int:
    """The size of a tensor; symbolic extents are of the usual size."""
    extents = (e.const_int(extent) for extent in tensor.shape)
    return prod(USUAL if each is None else each for each in extents) * tensor.dtype.itemsize


def usual_size(axes: Iterable[IterVar]) -> int:
    """The iterations of some axes together; a symbolic extent is of the usual size."""
    return prod(USUAL if (n := extent_of(axis)) is None else n for axis in axes)


def transfer_cycles(size: int, held: int, target: Target) -> float:
    """The cycles in which `size` bytes pass between registers and the cache that holds `held`
    bytes: none for the L1 cache."""
    level = target.level_of(held)
    return 0.0 if level == 1 else size / target.bytes_per_cycle(level)


def unasked_cycles(size: int, held: int, target: Target) -> float:
    """The cycles that a core waits for `size` bytes, in the order of memory, of the `held` bytes of
    the L2 cache, while no other lines come beside them and nobody requests them."""
    if not target.processor.l2_latency or target.level_of(held) != 2:
        return 0.0
    return _ALONE * transfer_cycles(size, held, target)


def kept_level(size: int, target: Target) -> int:
    """The cache that keeps `size` bytes from one use to the next, while other data pass through it;
    half of an L3 cache is for other cores."""
    level = target.level_of(int(SHARE * size))
    return target.level_of(int(2 * SHARE * size)) if level > 2 else level


def waiting_cycles(size: int, held: int, target: Target, *, in_order: bool = True) -> float:
    """The cycles that a core waits, while it computes, for `size` bytes which come from the L3
    cache, if it keeps `held` bytes, or else from memory. Half of them come from L3 ahead of their
    use. From memory all come late: in half again the time, or, if not read `in_order`, twice it."""
    level = kept_level(held, target)
    if level < 3:
        return 0.0
    late = 0.5 if level == 3 else 1.5 if in_order else 2.0
    return late * size / target.bytes_per_cycle(level)


def _parts_of(nest: Nest, tile: Tile) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The numbers of whole tiles and of parts at the end of rows, and of columns; their sizes."""
    if not nest.is_symbolic or nest.unit.rows > 1 or nest.pads_columns:
        known = [*_parts(nest.height, tile.rows, nest.pads_rows)]
        return known, [*_parts(nest.width, tile.columns, nest.pads_columns or nest.is_packed)]
    (whole, left), half = divmod(nest.height, tile.rows), tile.columns // 2
    rows = [(whole, tile.rows)]
    if tile.rows < 2 * _SHORT_ROWS or left > 2 * _SHORT_ROWS:
        rows = [(whole + (left > 0), tile.rows)]
    elif left:
        rows.append((-(-left // _SHORT_ROWS), _SHORT_ROWS))
    if half < nest.unit.columns or nest.is_packed:
        return rows, [(-(-nest.width // tile.columns), tile.columns)]
    halves = -(-nest.width // half)
    return rows, [(halves // 2, tile.columns), *([(1, half)] if halves % 2 else [])]


def _parts(extent: int, size: int, is_padded: bool) -> Iterator[tuple[int, int]]:
    """The numbers of whole parts and of remainders, and their sizes."""
    if is_padded:
        yield -(-extent // size), size
        return
    whole, rest = divmod(extent, size)
    if whole:
        yield whole, size
    if rest:
        yield 1, rest


def _rows_bytes(nest: Nest, rows: int) -> int:
    """The bytes of memory that pass with a step of the rows' factor for a tile of some rows: those
    of its lines, or of the parts of them that a step takes."""
    apart = min(nest.row_bytes, nest.step_bytes, CACHE_LINE)
    return max(rows * max(apart, nest.itemsize), min(nest.step_bytes, CACHE_LINE))


def _panel_level(nest: Nest, tile: Tile, width: int, steps: int, target: Target) -> int:
    """The cache that holds the columns' factor of a block from one tile of rows to the next, which
    read `steps` steps of the sum."""
    rows = _rows_bytes(nest, tile.rows) * steps
    return kept_level(int(nest.bytes_of_columns(width, steps) + rows), target)


@final
@record()
class _Rows:
    """The cycles in which the rows' factor comes for a product: those that the loads wait, and
    those in which it comes from beyond the L2 cache meanwhile."""

    near: float
    far: float


def _rows_moved(nest: Nest, tile: Tile, steps: int, target: Target) -> tuple[_Rows, _Rows]:
    """How the rows' factor comes for the first tile of a block's columns, and for the others. Its
    part for `steps` steps of a tile of rows stays in L1 from one to the next, or in L2. Rows that
    are read in their order come ahead."""
    size = _rows_bytes(nest, tile.rows)
    level, part = kept_level(nest.a_bytes or 0, target), kept_level(size * steps, target)
    size *= nest.unit.depth
    near = size / target.bytes_per_cycle(2) if level > 1 else 0.0
    if nest.step_bytes < CACHE_LINE:
        near *= _LATE
    far = size * _apart(nest) / target.bytes_per_cycle(level) if level > 2 else 0.0
    again = _Rows(near, size / target.bytes_per_cycle(2)) if part > 1 else _Rows(0.0, 0.0)
    return _Rows(near, max(far, again.far)), again


def _apart(nest: Nest) -> float:
    """The part of the reads of the rows' factor for all sums that are of other elements. Windows of
    neighbouring rows share elements, which are in L2 by then."""
    read = usual_product(nest.rows) * nest.depth * nest.itemsize
    return min(1.0, (nest.a_bytes or read) / read) if read else 1.0


def _step(
    nest: Nest,
    rows: int,
    columns: int,
    panel: int,
    rows_moved: _Rows,
    target: Target,
    *,
    in_order: bool = False,
    evicts: bool = False,
) -> float:
    """The cycles of a step of the sum in a tile, whose columns' factor lies in the cache of level
    `panel`. If it isn't packed and its rows aren't read `in_order`, it comes in pieces, the slower
    if it `evicts` itself."""
    unit, terms, cpu = nest.unit, nest.terms, target.processor
    r, c = -(-rows // unit.rows), unit.vectors_of(columns)
    size = terms.vectors * columns * nest.itemsize * unit.depth
    lines, split = float(size), 1.0
    if not nest.is_packed:  # nobody knows where in a line a row begins
        split += min(1.0, size / c / CACHE_LINE)
        lines = (lines + terms.vectors * CACHE_LINE) * nest.share
    loads = (terms.scalars * r + terms.vectors * c * split + terms.both * r * c) * unit.loads
    came = lines / target.bytes_per_cycle(2) if panel > 1 else 0.0
    is_requested = bool(cpu.l2_latency) if panel == 2 else panel > 2 and not nest.is_packed
    waits, meanwhile = rows_moved.near, rows_moved.far
    in_the_way = 0.0
    if panel == 2 and is_requested:
        ahead = steps_in(cpu.l2_latency, Tile(rows, columns), unit, terms)
        is_in_time = nest.is_packed or _most_ahead(nest, target) >= ahead
        in_the_way = _IN_THE_WAY * came if is_in_time else came
    else:
        waits += came
    if panel > 2:
        # Panels are read from end to end, and other lines are requested: nearly all comes to L2
        # ahead, if it comes fast enough.
        came = size * nest.share / target.bytes_per_cycle(panel)
        waits += _LATE * came
        if not nest.is_packed:
            came *= in_pieces(panel, size, target) ** (2 if evicts else 0 if in_order else 1)
        meanwhile += came
    if is_requested:
        loads += lines / CACHE_LINE
    # Columns that pass through L1 evict the rows. A unit of several rows loads them at once.
    if panel > 1 and cpu.l2_latency and unit.rows == 1:
        came = _rows_bytes(nest, rows) * unit.depth / target.bytes_per_cycle(2)
        in_the_way += _UNASKED * came
    return in_the_way + max(
        c * (r * terms.operations + terms.casts) * unit.cycles,
        # With less under way there is nothing to do while data come.
        unit.under_way * terms.operations * unit.cycles + waits / 2,
        loads / (_SUSTAINED * cpu.loads) + waits,
        meanwhile,
    )


def _around(nest: Nest, rows: int, columns: int, target: Target) -> float:
    """The cycles of a tile beside its steps. Lines of the result come from its cache, and go back
    there, half of the time while the next tile is computed; nobody knows where in a line they
    begin."""
    stores = rows * max(1, columns // nest.unit.columns)
    itemsize = nest.dtype.itemsize
    moved = transfer_cycles(
        rows * (columns * itemsize + CACHE_LINE),
        nest.outer * nest.height * nest.width * itemsize,
        target,
    )
    total = target.processor.latency + stores + moved + _LOOP
    if nest.transposes:
        lanes = target.lanes(nest.dtype)
        block = 8 if rows >= 8 else 4  # blocks of 4 x 4 take twice as many instructions
        registers = -(-rows // block) * 8 * columns / lanes
        total += registers * lanes.bit_length()  # a shuffle for each halving, and a store
    return total
