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
from math import lcm
from typing import TypeAlias, final

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    bytes_of_results,
    extent_of,
    product_of_extents,
)
from minitvm.auto_scheduler.cost import Blocks, cost, transfer_cycles, usual_bytes_of, usual_size
from minitvm.auto_scheduler.loops import Part, compute_of, nest_of, places_of, places_of_part
from minitvm.auto_scheduler.packing import place_copy
from minitvm.auto_scheduler.rows import readers_of
from minitvm.auto_scheduler.sums import Sums
from minitvm.auto_scheduler.tiles import best_tile, blocks_of
from minitvm.auto_scheduler.ways import rows_of
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
    products: Mapping[Stage, Sums],
    target: Target,
) -> Iterator[Block]:
    """The blocks of `stages`, given in an order in which each comes before its readers. Only stages
    of `free` may be computed in the loop of another stage. No stage is computed in the loops of a
    stage of `alone`, which holds contractions of other forms. `products` are computed by tiles."""
    readers: _Readers = cache(lambda stage: [*readers_of(s, stage).items()])
    model = _Model(readers, stages, free, products, target)
    taken: set[Stage] = set()
    for root in reversed(stages):
        if root in taken or root in alone or model.nests[root] is not root:
            continue
        best: Block | None = None
        most = 0.0
        group, rows = _Group(model, root), model.rows_with(root)
        for stage in reversed(stages[: stages.index(root)]):
            shared = 0 if stage in taken or stage not in free else model.rows_shared(stage, rows)
            if not shared:
                continue
            group.add(stage, min(shared, group.common))
            rows[stage] = shared
            # Each group to be judged has one nest more than the one before.
            if model.nests[stage] is stage:
                block, gain = group.block()
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
    """The stages of a program, and the cost of each.

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
        products: Mapping[Stage, Sums],
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
        # The figures of the contractions whose sums a stage reads in their tiles. The groups of
        # different roots share most of their stages.
        self.figures_of = cache(lambda last: [*map(self._measured, self.by_last.get(last, ()))])

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

    def rows_with(self, root: Stage) -> dict[Stage, int]:
        """The number of leading axes by which the reads of stages have a row in common with the
        root, at first those of the root itself. An epilogue takes the sums in its tiles."""
        sums = (stage for stage, each in self.products.items() if each.last is root)
        return dict.fromkeys((root, *sums), self.most_rows(root))

    def rows_shared(self, stage: Stage, rows: Mapping[Stage, int]) -> int:
        """The number of leading axes by which a stage has a row in common with all of its readers,
        stages that `rows` holds; 0 where it has none, or another reader."""
        found = self.readers(stage)
        if stage in rows or not found or any(reader not in rows for reader, _ in found):
            return 0
        return min([self.most_rows(stage), *(min(n, rows[reader]) for reader, n in found)])

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
    """The stages that may become a block of `root`, each behind its readers; and sums over them,
    since each group has one stage more than the one judged before it.

    Attributes
    ----------
    common
        The number of leading axes that all reads have in common.
    """

    def __init__(self, model: _Model, root: Stage) -> None:
        self._model, self._root = model, root
        self._members: list[Stage] = []
        self._kept: list[Stage] = []  # those whose elements are stored, and stay in the cache
        self._moved = self._largest = self._panels = 0  # bytes
        self._far = self._more = self._cycles = 0.0
        self._heights: set[int] = set()
        self._is_clipped = False
        self._row_bytes, self._is_known = 0, True
        self.common = min(model.rows_with(root).values())
        self._note_figures(root)

    def add(self, stage: Stage, common: int) -> None:
        """Adds a stage; `common`: the leading axes that all reads have in common now."""
        model = self._model
        self._members.append(stage)
        self._cycles += self._note_figures(stage)
        rows = [stage] if model.nests[stage] is stage else []
        self._kept += rows
        for each in rows:
            size = usual_bytes_of(each.op.output(0))
            readers = {model.nests[reader] for reader, _ in model.readers(each)}
            moved = (1 + len(readers)) * size
            self._moved, self._largest = self._moved + moved, max(self._largest, size)
            self._far += transfer_cycles(moved, 2 * size, model.target)
        if common != self.common:
            self.common, self._row_bytes, self._is_known, rows = common, 0, True, self._kept
        for op in map(compute_of, rows):
            self._row_bytes += usual_size(op.axis[common:]) * bytes_of_results(op)
            self._is_known &= product_of_extents(op.axis[common:]) is not None

    def _note_figures(self, stage: Stage) -> float:
        """Notes the figures of the contractions of a stage; returns their cycles."""
        figures = self._model.figures_of(stage)
        for each in figures:
            self._heights.add(each.height)
            self._panels, self._more = max(self._panels, each.panels), self._more + each.more
        self._is_clipped = self._is_clipped or _is_clipped(stage)
        return sum(each.cycles for each in figures)

    def block(self) -> tuple[Block | None, float]:
        """The block of the stages, and the cycles that it saves; None if there can be none."""
        model, root, target, axis = self._model, self._root, self._model.target, self.common - 1
        if not self._moved or not self._heights:
            return None, 0.0
        unit = lcm(*self._heights)
        most = target.cache_bytes(2) // 2 // max(1, self._row_bytes)
        if unit > most and self._is_known:
            unit = max(self._heights)
        rows = max(unit, most // unit * unit)
        extent = extent_of(compute_of(root).axis[axis])
        is_whole = extent is not None and rows >= extent
        if is_whole and not axis:
            return None, 0.0
        part = Part(axis, None if is_whole else rows)
        sums = model.by_last.get(root, ())
        if any(places_of_part(places_of(each), part) is None for each in sums):
            return None, 0.0
        size = self._row_bytes * (extent if is_whole and extent else rows)
        saved = self._far - transfer_cycles(self._moved, 2 * size, target)
        # Memory is read less, and panels come from the L3 cache at most: they are fetched ahead,
        # while tiles are computed.
        if not target.level_of(2 * self._largest) > 3 >= target.level_of(self._panels):
            saved -= self._more
        if self._is_clipped:
            saved += self._cycles / 2
        return Block(root, part, tuple(self._members)), saved


def _is_clipped(stage: Stage) -> bool:
    """Whether a condition leaves out some steps of a stage's reduction: about half, as in a
    triangle."""
    first = compute_of(stage).body[0]
    return isinstance(first, e.Reduce) and e.const_int(first.condition) is None


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
        self, s: Schedule, blocks: Sequence[Block], products: Mapping[Stage, Sums]
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
        s = self._schedule
        for block in self.blocks:
            root, loop, part = block.root, self.loops[block.root], block.part
            how = "{rows} rows" if part.rows is not None else "all rows of an outer step"
            choose(root, "blocks", f"{how} at a time, together with {{stages}}: their elements "
                   "stay in the L2 cache", rows=part.rows or 0,
                   stages=block.members[::-1])  # fmt: skip
            for stage in block.members:
                if not stage.inlined and stage.attach_stage is None:
                    stage.compute_at(root, loop)
            for last, contraction, factor, copy in self.panels:
                if last in (root, *block.members):
                    inside = s[factor.tensor] in block.members
                    place = (root, loop) if inside else _place_of(block, loop, contraction, factor)
                    place_copy(copy, place)
        return True


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
