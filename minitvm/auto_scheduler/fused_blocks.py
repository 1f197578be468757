"""Stages that are computed together: all of them for one block of rows of the last, then the next.

The elements that one stage computes for a block stay in the L2 cache until the next stage has read
them: attention needs no matrix of all scores, and a product is normalised, or multiplied again,
before it is written to memory.

::

    for each head:
        panels = K[head], transposed
        for each block of rows:                      # on all threads
            scores[rows, :] = Q[head, rows] * panels  # tiles of sums in registers
            for each row: powers[row, :] = exp(...), their sum, their quotients
            O[head, rows] = powers * V[head]          # tiles of sums in registers

A stage joins a block if all of its readers are in the block and each reads, by its leading axes,
only its own rows of the stage: so no element is computed twice. A block pays where moving the bytes
that now stay in the cache takes longer than reading the contractions' factors again for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import lcm, prod
from typing import TypeAlias, final

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import Contraction, Factor, extent_of
from minitvm.auto_scheduler.cost import (
    USUAL,
    Blocks,
    Nest,
    Tile,
    cost,
    transfer_cycles,
    usual_bytes_of,
)
from minitvm.auto_scheduler.loops import Part, compute_of, nest_of, places_of, places_of_part
from minitvm.auto_scheduler.packing import place_copy
from minitvm.auto_scheduler.reductions import rows_of
from minitvm.auto_scheduler.rows import readers_of
from minitvm.auto_scheduler.tiles import best_tile, blocks_of
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar

_Readers: TypeAlias = Callable[[Stage], Sequence[tuple[Stage, int]]]
"""The readers of a stage, each with the number of leading axes by which it reads its own row."""


@final
@record()
class Product:
    """A contraction that is computed by tiles of sums in registers, and the stage that reads the
    sums: its epilogue, or itself."""

    contraction: Contraction
    last: Stage


@final
@record()
class Block:
    """The stages that are computed in the loop over parts of `root`."""

    root: Stage
    part: Part
    members: tuple[Stage, ...]


@final
@record()
class _Candidate:
    """Stages for a block: `members`, each after its readers, and the number of leading axes that
    all of their reads have in common."""

    root: Stage
    members: tuple[Stage, ...]
    common: int


def blocks_in(
    s: Schedule,
    stages: Sequence[Stage],
    free: Container[Stage],
    alone: Container[Stage],
    products: Mapping[Stage, Product],
    target: Target,
) -> Iterator[Block]:
    """The blocks of `stages`, given in an order in which each comes before its readers. Only stages
    of `free` may be computed in the loop of another stage. No stage is computed in the loops of a
    stage of `alone`, which holds contractions of other forms. `products` are the contractions."""
    readers: _Readers = cache(lambda stage: [*readers_of(s, stage)])
    nests = _nests(readers, stages, free, products)
    model = _Model(readers, products, nests, target)
    taken: set[Stage] = set()
    for root in reversed(stages):
        if root in taken or root in alone or nests[root] is not root:
            continue
        best: Block | None = None
        most = 0.0
        before = [each for each in stages[: stages.index(root)] if each in free]
        totals = _Totals(model, root)
        for candidate in _candidates(readers, root, before, products, nests, target, taken):
            totals.add(candidate)
            block, gain = model.judge(candidate, totals)
            if block is not None and gain > most:
                best, most = block, gain
        if best is not None:
            taken |= {best.root, *best.members}
            yield best


def _nests(
    readers: _Readers,
    stages: Sequence[Stage],
    free: Container[Stage],
    products: Mapping[Stage, Product],
) -> dict[Stage, Stage]:
    """For each stage, the stage in whose tiles or rows it is computed without blocks."""
    nests: dict[Stage, Stage] = {}
    lasts = {each.last for each in products.values()}
    for stage in reversed(stages):
        nests[stage] = products[stage].last if stage in products else stage
        if stage in products or stage in lasts or stage not in free:
            continue
        found = readers(stage)
        if all(r in nests and r not in products and r not in lasts and n for r, n in found):
            roots = {nests[reader] for reader, _ in found}
            nests[stage] = roots.pop() if len(roots) == 1 else stage
    return nests


def _candidates(
    readers: _Readers,
    root: Stage,
    before: Sequence[Stage],
    products: Mapping[Stage, Product],
    nests: Mapping[Stage, Stage],
    target: Target,
    taken: Container[Stage],
) -> Iterator[_Candidate]:
    """The candidates that end in `root`, from small to large: each has one nest more than the one
    before."""
    rows: dict[Stage, int] = {root: _most_rows(root, products, target)}
    common = rows[root]
    members: list[Stage] = []
    # An epilogue takes the sums in its tiles.
    rows |= {stage: common for stage, each in products.items() if each.last is root}
    for stage in reversed(before):
        if stage in rows or stage in taken:
            continue
        found = readers(stage)
        if not found or any(reader not in rows for reader, _ in found):
            continue
        shared = min([_most_rows(stage, products, target), *(min(n, rows[r]) for r, n in found)])
        if not shared:
            continue
        rows[stage] = shared
        common = min(common, shared)
        members.append(stage)
        if nests[stage] is stage:
            yield _Candidate(root, tuple(members), common)


def _most_rows(stage: Stage, products: Mapping[Stage, Product], target: Target) -> int:
    """The number of leading axes whose elements a stage may compute one after the other."""
    op = compute_of(stage)
    return len(op.axis) - 1 if stage in products else rows_of(op, target)


@final
@record()
class _Figures:
    """A contraction as the model of tiles sees it, its tile, its cycles, and the cycles that it
    takes `more` in blocks, where panels aren't cut to the size of a cache."""

    nest: Nest
    tile: Tile
    cycles: float
    more: float


@final
@record()
class _Traffic:
    """The bytes of a stage; the bytes moved, when it is written and when each nest reads it; and
    the cycles that moving them takes where stages are computed one after the other."""

    size: int
    moved: int
    far: float


@final
class _Model:
    """The time that a block saves, in cycles.

    Attributes
    ----------
    nests
        For each stage, the stage in whose tiles or rows it is computed without blocks.
    """

    def __init__(
        self,
        readers: _Readers,
        products: Mapping[Stage, Product],
        nests: Mapping[Stage, Stage],
        target: Target,
    ) -> None:
        self.nests = nests
        self._readers = readers
        self._target = target
        self._by_last: dict[Stage, list[Product]] = {}
        for each in products.values():
            self._by_last.setdefault(each.last, []).append(each)
        self._figures: dict[Stage, list[_Figures]] = {}
        # The candidates of a root share most of their stages.
        self.traffic_of = cache(self._traffic_of)
        self.row_of = cache(_row_of)

    def judge(self, candidate: _Candidate, totals: _Totals) -> tuple[Block | None, float]:
        """The block of a candidate, None if there can be none, and the cycles that it saves."""
        root = candidate.root
        if not totals.moved or not totals.heights:
            return None, 0.0
        target = self._target
        axis = candidate.common - 1
        unit = lcm(*totals.heights)
        most = target.cache_bytes(2) // 2 // max(1, totals.row_bytes)
        if unit > most and totals.is_known:
            unit = max(totals.heights)
        rows = max(unit, most // unit * unit)
        extent = extent_of(compute_of(root).axis[axis])
        is_whole = extent is not None and rows >= extent
        if is_whole and not axis:
            return None, 0.0
        part = Part(axis, None if is_whole else rows)
        sums = [each.contraction for each in self._by_last.get(root, ())]
        if any(places_of_part(places_of(each), part) is None for each in sums):
            return None, 0.0
        size = totals.row_bytes * (extent if is_whole and extent else rows)
        saved = totals.far - transfer_cycles(totals.moved, 2 * size, target)
        # Memory is read less, and panels come from the L3 cache at most: they are fetched ahead,
        # while tiles are computed.
        if not target.level_of(2 * totals.largest) > 3 >= target.level_of(totals.panels):
            saved -= totals.more
        if totals.is_clipped:
            saved += totals.inside / 2
        return Block(root, part, candidate.members), saved

    def figures_of(self, last: Stage) -> list[_Figures]:
        """The figures of the contractions whose sums a stage reads in their tiles."""
        found = self._figures.get(last)
        if found is None:
            found = [*map(self._measured, self._by_last.get(last, ()))]
            self._figures[last] = found
        return found

    def _measured(self, product: Product) -> _Figures:
        contraction, target = product.contraction, self._target
        nest = replace(nest_of(contraction, target), is_packed=True)
        tile = best_tile(nest, target)
        before = cost(nest, tile, blocks_of(nest, tile, target), target)
        after = cost(replace(nest, is_packed=False), tile, Blocks(), target)
        return _Figures(nest, tile, cost(nest, tile, Blocks(), target), after - before)

    def _traffic_of(self, stage: Stage) -> _Traffic:
        readers = {self.nests[reader] for reader, _ in self._readers(stage)}
        size = usual_bytes_of(stage.op.output(0))
        moved = (1 + len(readers)) * size
        return _Traffic(size, moved, transfer_cycles(moved, 2 * size, self._target))


@final
class _Totals:
    """The figures of a candidate, added up while it grows.

    Attributes
    ----------
    heights
        The rows of its tiles.
    row_bytes
        The bytes of a row of the tensors that stay in the cache.
    is_known
        Whether no extent of such a row is symbolic.
    moved, far
        The bytes that stages write and read, and the cycles of moving them without a block.
    largest, panels
        The bytes of the largest stage, and of the largest panels.
    inside, more
        The cycles of the contractions before the root, and the cycles that all take more in blocks.
    is_clipped
        Whether a condition leaves out some of a stage's steps.
    """

    def __init__(self, model: _Model, root: Stage) -> None:
        self._model = model
        self._kept: list[Stage] = []
        self._common = 0
        self._count = 0
        self.heights: set[int] = set()
        self.row_bytes, self.is_known = 0, True
        self.moved, self.far = 0, 0.0
        self.largest, self.panels = 0, 0
        self.inside, self.more = 0.0, 0.0
        self.is_clipped = _is_clipped(root)
        self._add_contractions(root)

    def add(self, candidate: _Candidate) -> None:
        """Adds the members that are new in a candidate."""
        begin = len(self._kept)
        for stage in candidate.members[self._count :]:
            self.is_clipped |= _is_clipped(stage)
            self.inside += sum(each.cycles for each in self._add_contractions(stage))
            if self._model.nests[stage] is stage:
                self._kept.append(stage)
                traffic = self._model.traffic_of(stage)
                self.moved += traffic.moved
                self.far += traffic.far
                self.largest = max(self.largest, traffic.size)
        self._count = len(candidate.members)
        if candidate.common != self._common:
            self._common, self.row_bytes, self.is_known, begin = candidate.common, 0, True, 0
        for stage in self._kept[begin:]:
            size, is_known = self._model.row_of(stage, self._common)
            self.row_bytes += size
            self.is_known = self.is_known and is_known

    def _add_contractions(self, last: Stage) -> list[_Figures]:
        found = self._model.figures_of(last)
        for each in found:
            nest = each.nest
            self.heights.add(each.tile.rows)
            self.more += each.more
            self.panels = max(self.panels, nest.width * nest.depth * nest.itemsize)
        return found


def _is_clipped(stage: Stage) -> bool:
    """Whether a condition leaves out some steps of a stage's reduction: about half, as in a
    triangle."""
    first = compute_of(stage).body[0]
    return isinstance(first, e.Reduce) and e.const_int(first.condition) is None


def _row_of(stage: Stage, common: int) -> tuple[int, bool]:
    """The bytes of a row of a stage, below its first `common` axes, and whether they are known."""
    extents = [*map(extent_of, compute_of(stage).axis[common:])]
    size = prod(USUAL if each is None else each for each in extents)
    return sum(size * body.dtype.itemsize for body in compute_of(stage).body), None not in extents


def _choose_block(s: Schedule, block: Block) -> None:
    """Notes a block."""
    names = ", ".join(each.name for each in reversed(block.members))
    how = "{rows} rows" if block.part.rows is not None else "all rows of an outer step"
    choose(s, "blocks", f"{how} at a time, together with {{stages}}: what they compute stays in "
           "the L2 cache", stage=block.root.name, rows=block.part.rows or 0,
           stages=names)  # fmt: skip


@final
class FusedBlocks:
    """The blocks of a program.

    Attributes
    ----------
    parts
        For each stage of a block its part, which is computed at a time. None for a member, whose
        readers determine its part.
    without_epilogue
        The contractions in blocks that have no epilogue in their tiles.
    loops
        For each root that has been scheduled, its loop over parts.
    panels
        The copies of factors that are to be placed, each behind the stage in whose tiles it is
        read, the contraction, and the factor.
    """

    def __init__(
        self, s: Schedule, blocks: Sequence[Block], products: Mapping[Stage, Product]
    ) -> None:
        self._schedule = s
        self.blocks = blocks
        self.parts: dict[Stage, Part | None] = {}
        self.loops: dict[Stage, IterVar] = {}
        self.panels: list[tuple[Stage, Contraction, Factor, Stage]] = []
        for block in blocks:
            self.parts |= {block.root: block.part, **dict.fromkeys(block.members)}
        self.without_epilogue = {
            stage for stage, each in products.items() if each.last is stage and stage in self.parts
        }

    def attach(self) -> bool:
        """Computes the members of each block in the loop over parts of its root, and the panels of
        their factors as far outside as possible."""
        for block in self.blocks:
            _choose_block(self._schedule, block)
            self._attach(block)
        return True

    def _attach(self, block: Block) -> None:
        root, loop = block.root, self.loops[block.root]
        for stage in block.members:
            if not stage.inlined and stage.attach_stage is None:
                stage.compute_at(root, loop)
        for last, contraction, factor, copy in self.panels:
            if last in (root, *block.members):
                inside = self._schedule[factor.tensor] in block.members
                place = (root, loop) if inside else _place_of(block, loop, contraction, factor)
                place_copy(copy, place)


def _place_of(
    block: Block, loop: IterVar, contraction: Contraction, factor: Factor
) -> tuple[Stage, IterVar] | None:
    """The innermost loop outside of the parts on which a factor depends; None if none does."""
    leaves = block.root.leaf_iter_vars
    axes = compute_of(block.root).axis[: block.part.axis]
    read = [i for i, _ in enumerate(axes) if factor.reads(contraction.op.axis[i])]
    if not read:
        return None
    outside = leaves[: leaves.index(loop) + (block.part.rows is None)]
    here = [axis for axis in axes[: read[-1] + 1] if axis in outside]
    if len(here) == read[-1] + 1:
        return block.root, here[-1]
    return (block.root, outside[-1]) if outside else None
