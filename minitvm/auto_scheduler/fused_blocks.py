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
    cost,
    transfer_cycles,
    usual_bytes_of,
)
from minitvm.auto_scheduler.loops import Part, compute_of, nest_of, places_of, places_of_part
from minitvm.auto_scheduler.packing import place_copy
from minitvm.auto_scheduler.reductions import rows_of
from minitvm.auto_scheduler.rows import readers_of
from minitvm.auto_scheduler.tiles import best_tile, blocks_of
from minitvm.runtime.host import CACHE_LINE
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
    model = _Model(readers, stages, free, products, target)
    taken: set[Stage] = set()
    for root in reversed(stages):
        if root in taken or root in alone or model.nests[root] is not root:
            continue
        best: Block | None = None
        most = 0.0
        group = _Group(model, root)
        for stage in reversed(stages[: stages.index(root)]):
            # Each group to be judged has one nest more than the one before.
            if stage in taken or stage not in free or not group.joins(stage):
                continue
            block, gain = group.block() if model.nests[stage] is stage else (None, 0.0)
            if block is not None and gain > most:
                best, most = block, gain
        if best is not None:
            taken |= {best.root, *best.members}
            yield best


@final
@record()
class _Figures:
    """The rows of a contraction's tiles, the bytes of its panels, its cycles, and the cycles that
    it takes `more` in blocks, where panels aren't cut to the size of a cache."""

    height: int
    panels: int
    cycles: float
    more: float


@final
class _Model:
    """The stages of a program, and what each of them takes.

    Attributes
    ----------
    nests
        For each stage, the stage in whose tiles or rows it is computed without blocks.
    """

    def __init__(
        self,
        readers: _Readers,
        stages: Sequence[Stage],
        free: Container[Stage],
        products: Mapping[Stage, Product],
        target: Target,
    ) -> None:
        self.readers = readers
        self.products = products
        self.target = target
        self.by_last: dict[Stage, list[Contraction]] = {}
        for each in products.values():
            self.by_last.setdefault(each.last, []).append(each.contraction)
        self.nests: dict[Stage, Stage] = {}
        for stage in reversed(stages):
            self.nests[stage] = self._nest_of(stage, free)
        # The groups of different roots share most of their stages.
        self.figures_of, self.row_of = cache(self._figures_of), cache(_row_of)

    def _nest_of(self, stage: Stage, free: Container[Stage]) -> Stage:
        if stage in self.products:
            return self.products[stage].last
        nests, found = self.nests, self.readers(stage)
        if stage in self.by_last or stage not in free:
            return stage
        if not all(
            n and r in nests and r not in self.products and r not in self.by_last for r, n in found
        ):
            return stage
        roots = {nests[reader] for reader, _ in found}
        return roots.pop() if len(roots) == 1 else stage

    def most_rows(self, stage: Stage) -> int:
        """The number of leading axes whose elements a stage may compute one after the other."""
        op = compute_of(stage)
        return len(op.axis) - 1 if stage in self.products else rows_of(op, self.target)

    def _figures_of(self, last: Stage) -> Sequence[_Figures]:
        """The figures of the contractions whose sums a stage reads in their tiles."""
        return [*map(self._measured, self.by_last.get(last, ()))]

    def _measured(self, contraction: Contraction) -> _Figures:
        target = self.target
        nest = replace(nest_of(contraction, target), is_packed=True)
        tile = best_tile(nest, target)
        before = cost(nest, tile, blocks_of(nest, tile, target), target)
        # Panels of all columns come line by line, as rows do.
        lines = max(nest.line_bytes, CACHE_LINE)
        after = cost(replace(nest, is_packed=False, line_bytes=lines), tile, Blocks(), target)
        panels = nest.width * nest.depth * nest.itemsize
        return _Figures(tile.rows, panels, cost(nest, tile, Blocks(), target), after - before)


@final
class _Group:
    """Stages that may be computed in blocks of the rows of `root`, with figures that are added up
    while stages join.

    Attributes
    ----------
    members
        The other stages, each after its readers.
    rows
        For each stage, the number of leading axes that its reads have in common with the root.
    kept
        The members whose elements are stored, and stay in the cache.
    heights
        The rows of tiles.
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
        self._root = root
        self._members: list[Stage] = []
        common = model.most_rows(root)
        # An epilogue takes the sums in its tiles.
        sums = (stage for stage, each in model.products.items() if each.last is root)
        self._rows = {root: common, **dict.fromkeys(sums, common)}
        self._common = common
        self._kept: list[Stage] = []
        self._heights: set[int] = set()
        self._moved, self._far = 0, 0.0
        self._largest, self._panels = 0, 0
        self._inside, self._more = 0.0, 0.0
        self._is_clipped = _is_clipped(root)
        self._add_contractions(root)

    def joins(self, stage: Stage) -> bool:
        """Adds a stage if all of its readers are in the group, and read their own rows of it."""
        model, rows = self._model, self._rows
        found = model.readers(stage)
        if stage in rows or not found or any(reader not in rows for reader, _ in found):
            return False
        shared = min([model.most_rows(stage), *(min(n, rows[reader]) for reader, n in found)])
        if not shared:
            return False
        rows[stage] = shared
        self._members.append(stage)
        self._is_clipped |= _is_clipped(stage)
        self._inside += self._add_contractions(stage)
        self._common = min(self._common, shared)
        if model.nests[stage] is stage:
            size = usual_bytes_of(stage.op.output(0))
            moved = (1 + len({model.nests[reader] for reader, _ in found})) * size
            self._moved += moved
            self._far += transfer_cycles(moved, 2 * size, model.target)
            self._largest = max(self._largest, size)
            self._kept.append(stage)
        return True

    def _add_contractions(self, last: Stage) -> float:
        """Adds the contractions whose sums a stage reads in their tiles; returns their cycles."""
        found = self._model.figures_of(last)
        self._heights |= {each.height for each in found}
        self._more += sum(each.more for each in found)
        self._panels = max([self._panels, *(each.panels for each in found)])
        return sum(each.cycles for each in found)

    def block(self) -> tuple[Block | None, float]:
        """The block of the group, None if there can be none, and the cycles that it saves."""
        root, target = self._root, self._model.target
        if not self._moved or not self._heights:
            return None, 0.0
        axis = self._common - 1
        kept = [self._model.row_of(each, self._common) for each in self._kept]
        row_bytes = sum(size for size, _ in kept)
        unit = lcm(*self._heights)
        most = target.cache_bytes(2) // 2 // max(1, row_bytes)
        if unit > most and all(is_known for _, is_known in kept):
            unit = max(self._heights)
        rows = max(unit, most // unit * unit)
        extent = extent_of(compute_of(root).axis[axis])
        is_whole = extent is not None and rows >= extent
        if is_whole and not axis:
            return None, 0.0
        part = Part(axis, None if is_whole else rows)
        sums = self._model.by_last.get(root, ())
        if any(places_of_part(places_of(each), part) is None for each in sums):
            return None, 0.0
        size = row_bytes * (extent if is_whole and extent else rows)
        saved = self._far - transfer_cycles(self._moved, 2 * size, target)
        # Memory is read less, and panels come from the L3 cache at most: they are fetched ahead,
        # while tiles are computed.
        if not target.level_of(2 * self._largest) > 3 >= target.level_of(self._panels):
            saved -= self._more
        if self._is_clipped:
            saved += self._inside / 2
        return Block(root, part, tuple(self._members)), saved


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
