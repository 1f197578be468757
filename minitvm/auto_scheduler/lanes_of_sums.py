"""Contractions of a few long sums: the elements of both factors are neighbours along the sum.

Lanes of a vector hold the partial sums of neighbouring steps. Both factors are read in vectors, in
the order in which they lie, and no factor is copied; at the end, the lanes of each sum are added::

    for each tile of rows and columns:               # on all threads
        for k.outer:
            for i, j of the tile, unrolled:
                sums[i, j, 0:lanes] += A[i, k.outer * lanes ...] * B[j, k.outer * lanes ...]
        C[i, j] = all lanes of sums[i, j]

The lanes of a sum are added once, which takes about two operations for each. So this form is for
sums that are long enough, and few enough to leave both factors in the caches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import final

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import Contraction, can_be_packed
from minitvm.auto_scheduler.cost import Blocks, Nest, Tile, Unit, cost
from minitvm.auto_scheduler.loops import (
    EVEN,
    Places,
    compute_of,
    factored,
    nest_of,
    places_of,
    run_parallel,
    write_sums,
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
    """A contraction by lanes of sums: its nest, its tile, and its cycles."""

    nest: Nest
    tile: Tile
    cycles: float


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
    if (contraction.a.along(k), contraction.b.along(k)) != (1, 1) or lanes < 2:
        return None
    if replace(terms_of(contraction, target), temporaries=0) != MULTIPLY_ADD:
        return None
    found = _nest(contraction, places_of(contraction), target)
    if found.depth < lanes:
        return None
    tile = best_tile(found, target, lambda tile: Blocks())
    added = _ADDITIONS * lanes * found.unit.cycles * found.outer * found.height * found.width
    cycles = cost(found, tile, Blocks(), target) + added
    if cycles * ALIKE >= least_cycles(contraction, target):
        return None
    return Lanes(found, tile, cycles)


def _nest(contraction: Contraction, places: Places, target: Target) -> Nest:
    """A contraction as the model sees it: a vector holds one sum, whose lanes are as many steps."""
    dtype = contraction.op.output(0).dtype
    made = vectors(dtype, target)
    unit = Unit(1, 1, made.columns, made.registers, made.under_way, made.cycles)
    made_of = partial(nest_of, contraction, places, target, dtype, unit=unit)
    found = made_of(terms=MULTIPLY_ADD)
    is_aligned = found.row_bytes % (target.vector_bits // 8) == 0
    # A vector of a row may lie across two lines of the cache.
    return found if is_aligned else made_of(terms=replace(MULTIPLY_ADD, scalars=2))


def write_lanes(s: Schedule, contraction: Contraction, found: Lanes, target: Target) -> None:
    """Writes the schedule."""
    total, places, tile = contraction.op.output(0), places_of(contraction), found.tile
    lanes = found.nest.unit.depth
    choose(
        s,
        "strategy",
        "the {lanes} lanes of a vector hold the sums of neighbouring steps, in tiles of {rows} x "
        "{columns} sums: both factors lie side by side along {k}, and none is copied",
        lanes=lanes,
        rows=tile.rows,
        columns=tile.columns,
        k=contraction.op.reduce_axis[0].var.name,
    )
    stage = s[total]
    _, lane = stage.split(compute_of(stage).reduce_axis[0], factor=lanes)
    sums = factored(s, stage, lane, len(compute_of(stage).axis)).set_scope("local")
    stage = s[total]
    tiles = write_tiles(stage, places, tile, Blocks(), None)
    for axis in (tiles.row, tiles.column, *compute_of(stage).reduce_axis):
        if axis is not None:
            stage.unroll(axis)
    loops = run_parallel(stage, [*tiles.tasks, *tiles.loops], target, EVEN)
    op = compute_of(sums)
    write_sums(sums, (stage, loops[-1]), op.axis, op.reduce_axis)
