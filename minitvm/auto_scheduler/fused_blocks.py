"""Stages that are computed together, for a block of rows of the last of them at a time.

What one stage computes for a block stays in the L2 cache until the next one has read it: attention
needs no matrix of all scores, and a product is normalised, or multiplied again, before it is
written to memory.

::

    for each head:
        panels = K[head], transposed
        for each block of rows:                      # on all threads
            scores[rows, :] = Q[head, rows] * panels  # tiles of sums in registers
            for each row: powers[row, :] = exp(...), their sum, their quotients
            O[head, rows] = powers * V[head]          # tiles of sums in registers

A stage joins a block if all of its readers are in the block and read, by the leading axes, their
own rows of it alone: so nothing is computed twice. It pays where the bytes that stay in the cache
take longer to move than the factors that each block reads again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod
from typing import final

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
from minitvm.auto_scheduler.loops import (
    Part,
    compute_of,
    nest_of,
    place_copy,
    places_of,
    places_of_part,
)
from minitvm.auto_scheduler.reductions import rows_of
from minitvm.auto_scheduler.rows import readers_of
from minitvm.auto_scheduler.tiles import best_tile, blocks_of
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import Operation
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar


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
    """Stages for a block: `members`, each after its readers, and the number of leading axes by
    which all are read."""

    root: Stage
    members: tuple[Stage, ...]
    common: int


def blocks_in(
    s: Schedule,
    stages: Sequence[Stage],
    free: Container[Stage],
    products: Mapping[Stage, Product],
    target: Target,
) -> Iterator[Block]:
    """The blocks of `stages`, given in an order in which each comes before its readers. Only those
    that are `free` may be computed in a loop of another. `products` are the contractions."""
    nests = _nests(s, stages, free, products)
    model = _Model(s, products, nests, target)
    taken: set[Stage] = set()
    for root in reversed(stages):
        if root in taken or nests[root] is not root:
            continue
        best: Block | None = None
        most = 0.0
        before = [each for each in stages[: stages.index(root)] if each in free]
        for candidate in _candidates(s, root, before, products, nests, target, taken):
            block, gain = model.judge(candidate)
            if block is not None and gain > most:
                best, most = block, gain
        if best is not None:
            taken |= {best.root, *best.members}
            yield best


def _nests(
    s: Schedule,
    stages: Sequence[Stage],
    free: Container[Stage],
    products: Mapping[Stage, Product],
) -> dict[Stage, Stage]:
    """For each stage the one in whose tiles or rows it is computed anyway."""
    nests: dict[Stage, Stage] = {}
    lasts = {each.last for each in products.values()}
    for stage in reversed(stages):
        nests[stage] = products[stage].last if stage in products else stage
        if stage in products or stage in lasts or stage not in free:
            continue
        found = list(readers_of(s, stage))
        if all(r in nests and r not in products and r not in lasts and n for r, n in found):
            roots = {nests[reader] for reader, _ in found}
            nests[stage] = roots.pop() if len(roots) == 1 else stage
    return nests


def _candidates(
    s: Schedule,
    root: Stage,
    before: Sequence[Stage],
    products: Mapping[Stage, Product],
    nests: Mapping[Stage, Stage],
    target: Target,
    taken: Container[Stage],
) -> Iterator[_Candidate]:
    """The candidates that end in `root`, from small to large: one for each nest more."""
    rows: dict[Stage, int] = {root: _most_rows(root, products, target)}
    common = rows[root]
    members: list[Stage] = []
    # An epilogue takes the sums in its tiles.
    rows |= {stage: common for stage, each in products.items() if each.last is root}
    for stage in reversed(before):
        if stage in rows or stage in taken:
            continue
        found = list(readers_of(s, stage))
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
    """The number of leading axes along which a stage may be computed one by one."""
    op = compute_of(stage)
    return len(op.axis) - 1 if stage in products else rows_of(op, target)


@final
class _Model:
    """The time that a block saves, in cycles."""

    def __init__(
        self,
        s: Schedule,
        products: Mapping[Stage, Product],
        nests: Mapping[Stage, Stage],
        target: Target,
    ) -> None:
        self._schedule = s
        self._nests = nests
        self._products = products.values()
        self._target = target
        self._tiles: dict[Operation, tuple[Nest, Tile]] = {}

    def judge(self, candidate: _Candidate) -> tuple[Block | None, float]:
        """A block for a candidate, and what it saves; no block where none can be written."""
        root, members = candidate.root, candidate.members
        kept = [each for each in members if self._nests[each] is each]
        mine = [each for each in self._products if each.last in (root, *members)]
        if not kept or not mine:
            return None, 0.0
        target = self._target
        axis = candidate.common - 1
        each_row = sum(map(_bytes_of_row, kept, [candidate.common] * len(kept)))
        heights = [self._tiled(each)[1].rows for each in mine]
        unit = lcm(*heights)
        most = target.cache_bytes(2) // 2 // max(1, each_row)
        sizes = (extent_of(x) for each in kept for x in compute_of(each).axis[axis + 1 :])
        if unit > most and None not in sizes:
            unit = max(heights)
        rows = max(unit, most // unit * unit)
        extent = extent_of(compute_of(root).axis[axis])
        is_whole = extent is not None and rows >= extent
        if is_whole and not axis:
            return None, 0.0
        part = Part(axis, None if is_whole else rows)
        sums = [each.contraction for each in mine if each.last is root]
        if any(places_of_part(places_of(each), part) is None for each in sums):
            return None, 0.0
        size = each_row * (extent if is_whole and extent else rows)
        saved = sum(self._moving(each, size) for each in kept)
        if not self._spares_memory(kept, mine):
            saved -= sum(map(self._more, mine))
        if any(map(_is_clipped, (root, *members))):
            saved += sum(self._cycles(each) / 2 for each in mine if each.last is not root)
        return Block(root, part, members), saved

    def _tiled(self, product: Product) -> tuple[Nest, Tile]:
        """A contraction as the model of tiles sees it, and its tile."""
        found = self._tiles.get(product.contraction.op)
        if found is None:
            contraction = product.contraction
            dtypes = (each.tensor.dtype for each in (contraction.a, contraction.b))
            made = nest_of(contraction, places_of(contraction), self._target, *dtypes)
            nest = replace(made, is_packed=True)
            found = self._tiles[product.contraction.op] = nest, best_tile(nest, self._target)
        return found

    def _moving(self, stage: Stage, inside: int) -> float:
        """The cycles in which a stage's elements are written, and read by each nest, less those
        in a block of `inside` bytes."""
        size = usual_bytes_of(stage.op.output(0))
        readers = {self._nests[reader] for reader, _ in readers_of(self._schedule, stage)}
        moved = (1 + len(readers)) * size
        far = transfer_cycles(moved, 2 * size, self._target)
        return far - transfer_cycles(moved, 2 * inside, self._target)

    def _spares_memory(self, kept: Sequence[Stage], mine: Sequence[Product]) -> bool:
        """Whether memory is read less, and panels come from the L3 cache at most: they are fetched
        ahead, while tiles are computed."""
        target = self._target
        moved = max(2 * usual_bytes_of(each.op.output(0)) for each in kept)
        nests = [self._tiled(each)[0] for each in mine]
        panels = max(each.width * each.depth * each.itemsize for each in nests)
        return target.level_of(moved) > 3 >= target.level_of(panels)

    def _cycles(self, product: Product) -> float:
        return cost(*self._tiled(product), Blocks(), self._target)

    def _more(self, product: Product) -> float:
        """The cycles that a contraction takes longer in blocks, as its panels aren't cut to the
        size of a cache."""
        nest, tile = self._tiled(product)
        before = cost(nest, tile, blocks_of(nest, tile, self._target), self._target)
        return cost(replace(nest, is_packed=False), tile, Blocks(), self._target) - before


def _is_clipped(stage: Stage) -> bool:
    """Whether a stage reads only some of what its ranges hold: about half, as in a triangle."""
    first = compute_of(stage).body[0]
    return isinstance(first, e.Reduce) and e.const_int(first.condition) is None


def _bytes_of_row(stage: Stage, common: int) -> int:
    extents = map(extent_of, compute_of(stage).axis[common:])
    size = prod(USUAL if each is None else each for each in extents)
    return sum(size * body.dtype.itemsize for body in compute_of(stage).body)


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
        The part of each stage in a block; None for a member, of which its readers need a part.
    loops
        The loop over parts of each root that is written.
    panels
        The copies of factors that are to be placed, each behind the stage in whose tiles it is
        read, the contraction, and the factor.
    """

    def __init__(self, s: Schedule, blocks: Sequence[Block]) -> None:
        self._schedule = s
        self.blocks = blocks
        self.parts: dict[Stage, Part | None] = {}
        self.loops: dict[Stage, IterVar] = {}
        self.panels: list[tuple[Stage, Contraction, Factor, Stage]] = []
        for block in blocks:
            self.parts |= {block.root: block.part, **dict.fromkeys(block.members)}

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
                inside = any(factor.tensor.op is each.op for each in block.members)
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
