"""Contractions of a few long sums: the elements of both factors are neighbours along the sum.

Lanes of a vector hold the partial sums of neighbouring steps. Both factors are read in vectors, in
the order in which they lie, or are copied into; at the end, the lanes of each sum are added::

    b[j, k] = B[k, j]                                # if the elements of B lie otherwise
    for each tile of rows and columns:               # on all threads
        for k.outer:
            for i, j of the tile, unrolled:
                sums[i, j, 0:lanes] += A[i, k.outer * lanes ...] * b[j, k.outer * lanes ...]
        C[i, j] = all lanes of sums[i, j]

The lanes of a sum are added once, which takes about two operations for each. So this form is for
sums that are long enough, and few enough to leave both factors in the caches; and for results too
narrow to fill vectors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import final

from minitvm.auto_scheduler.accumulators import write_sums
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import Contraction, Factor, can_be_packed
from minitvm.auto_scheduler.copies import can_be_copied, copied_by_axes, write_lines
from minitvm.auto_scheduler.cost import (
    Blocks,
    Nest,
    Tile,
    Unit,
    copy_cycles,
    cost,
    usual_bytes_of,
)
from minitvm.auto_scheduler.loops import (
    EVEN,
    Places,
    compute_of,
    nest_of,
    place_copy,
    places_of,
    run_parallel,
    write_tiles,
)
from minitvm.auto_scheduler.terms import MULTIPLY_ADD, terms_of
from minitvm.auto_scheduler.tiles import ALIKE, best_tile, vectors
from minitvm.auto_scheduler.turned import is_plain, least_cycles
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.schedule import Schedule

_ADDITIONS = 2  # for each lane of a sum: a shuffle and an addition


@final
@record()
class Lanes:
    """A contraction by lanes of sums: its nest, its tile, and the factors that are copied."""

    nest: Nest
    tile: Tile
    copied: tuple[Factor, ...]


def in_lanes(contraction: Contraction, target: Target) -> Lanes | None:
    """A contraction by lanes of sums, if that takes fewer cycles than tiles of sums.

    >>> from minitvm import te
    >>> from minitvm.auto_scheduler.contraction import contraction_of
    >>> A, B = te.placeholder((16, 4096), name="A"), te.placeholder((16, 4096), name="B")
    >>> k = te.reduce_axis((0, 4096), name="k")
    >>> C = te.compute((16, 16), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    >>> znver3 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3")
    >>> in_lanes(contraction_of(C.op), znver3).tile
    Tile(rows=6, columns=2)
    """
    op, axes = contraction.op, contraction.op.reduce_axis
    if len(axes) != 1 or len(contraction.rows) != 1:
        return None
    if not is_plain(contraction) or not can_be_packed(contraction):
        return None
    (k,) = axes
    lanes = target.lanes(op.output(0).dtype)
    factors = (contraction.a, contraction.b)
    copied = tuple(each for each in factors if each.along(k) != 1)
    if lanes < 2 or not all(can_be_copied(contraction, each) for each in copied):
        return None
    if replace(terms_of(contraction, target), temporaries=0) != MULTIPLY_ADD:
        return None
    found = _nest(contraction, places_of(contraction), target, contraction.a in copied)
    if found.depth < lanes:
        return None
    tile = best_tile(found, target, lambda tile: Blocks())
    added = _ADDITIONS * lanes * found.unit.cycles * found.outer * found.height * found.width
    copies = sum(copy_cycles(usual_bytes_of(each.tensor)) for each in copied)
    cycles = cost(found, tile, Blocks(), target) + added + copies
    if cycles * ALIKE >= least_cycles(contraction, target):
        return None
    return Lanes(found, tile, copied)


def _nest(contraction: Contraction, places: Places, target: Target, is_copied: bool) -> Nest:
    """A contraction as the model sees it: a vector holds one sum, whose lanes are as many steps.
    `is_copied`: rows are read from a copy in which their elements are neighbours."""
    dtype = contraction.op.output(0).dtype
    made = vectors(dtype, target)
    unit = Unit(1, 1, made.columns, made.registers, made.under_way, made.cycles)
    made_of = partial(nest_of, contraction, places, target, dtype, unit=unit)
    found = made_of(terms=MULTIPLY_ADD)
    if is_copied:
        size = found.itemsize
        found = replace(found, row_bytes=found.depth * size, step_bytes=size)
    if found.row_bytes % (target.vector_bits // 8) == 0:
        return found
    # A vector of a row may lie across two lines of the cache.
    return replace(found, terms=replace(MULTIPLY_ADD, scalars=2))


def write_lanes(s: Schedule, contraction: Contraction, found: Lanes, target: Target) -> None:
    """Writes the schedule."""
    total, places, tile = contraction.op.output(0), places_of(contraction), found.tile
    lanes = found.nest.unit.depth
    choose(
        s,
        "strategy",
        "the {lanes} lanes of a vector hold the sums of neighbouring steps, in tiles of {rows} x "
        "{columns} sums: the elements of both factors lie side by side along {k}{copied}",
        lanes=lanes,
        rows=tile.rows,
        columns=tile.columns,
        k=contraction.op.reduce_axis[0].var.name,
        copied="".join(f", of {each.tensor.name} in a copy" for each in found.copied),
    )
    stage = s[total]
    copies = [(each, copied_by_axes(s, contraction, each)) for each in found.copied]
    _, lane = stage.split(compute_of(stage).reduce_axis[0], factor=lanes)
    sums = s[s.rfactor(total, lane, len(compute_of(stage).axis))]
    stage = s[total]
    sums.set_scope("local")
    tiles = write_tiles(stage, places, tile, Blocks(), None)
    for axis in (tiles.row, tiles.column, *compute_of(stage).reduce_axis):
        if axis is not None:
            stage.unroll(axis)
    loops = run_parallel(stage, [*tiles.tasks, *tiles.loops], target, EVEN)
    op = compute_of(sums)
    write_sums(sums, (stage, loops[-1]), op.axis, op.reduce_axis)
    for factor, tensor in copies:
        made = tensor or s.cache_read(factor.tensor, "global", [sums.op])
        write_lines(s[made], contraction, factor)
        place_copy(s[made], None)
