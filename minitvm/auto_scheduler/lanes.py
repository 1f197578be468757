"""A strategy for contractions: the lanes of a vector are neighbouring steps of the sum.

Both factors are read in vectors along a reduction axis. A factor that lies otherwise is copied
first. At the end, the lanes of each sum are added. The strategy is for two kinds of contractions.

A few long sums, in tiles::

    b[j, k] = B[k, j]                                # if the elements of B lie otherwise
    for each tile of rows and columns:               # on all threads
        for k.outer:
            for i, j of the tile, unrolled:
                sums[i, j, 0:lanes] += A[i, k.outer * lanes ...] * b[j, k.outer * lanes ...]
        C[i, j] = all lanes of sums[i, j]

The lanes of a sum are added once, which takes about two operations for each. So this form is for
sums that are long enough, and few enough to leave both factors in the caches; and for results too
narrow to fill vectors.

Sums over images, for each channel by itself: the weights of a depthwise convolution get as their
gradient a few sums over the image, at the places of a window. These don't fill vectors, but
neighbours in a row of the image do::

    for each channel, on all threads:
        parts[r, q, lane] = 0                        # "local": vector registers
        for y, and x in vectors:
            for all r and q, written out:
                parts[r, q, lane] += image[y + r, x + lane + q] * adjoint[y, x + lane]
        W[r, q] = sum of parts[r, q, lane] over lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    Contraction,
    Factor,
    extent_of,
    is_read_in_order,
    is_uneven,
    long_axes,
    product_of_extents,
)
from minitvm.auto_scheduler.cost import (
    Blocks,
    Nest,
    Tile,
    Unit,
    copy_cycles,
    cost,
    transfer_cycles,
    usual_bytes_of,
)
from minitvm.auto_scheduler.loops import (
    EVEN,
    compute_of,
    factored_in_lanes,
    fused,
    innermost,
    nest_of,
    places_of,
    run_parallel,
    write_sums,
    write_tiles,
)
from minitvm.auto_scheduler.packing import can_be_copied, copied_by_axes, write_along_steps
from minitvm.auto_scheduler.terms import CAST, MULTIPLY_ADD, terms_of
from minitvm.auto_scheduler.tiles import best_tile, in_one_block, vectors
from minitvm.runtime.dtype import DType
from minitvm.target import Target
from minitvm.te.intrinsics.dot_product import DOT_PRODUCTS, DotProduct, dot_product_of_lanes
from minitvm.te.intrinsics.instruction import find_instruction
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import reduce_of
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterVar

_SHORT = 16  # steps: fewer leave lanes idle
_OPERATIONS = 3  # of a step, at most: a product, of integers too, and an addition
_ADDITIONS = 2  # for each lane of a sum: a shuffle and an addition


# -- A few long sums --


def best_in_lanes(contraction: Contraction, target: Target) -> tuple[Tile, float] | None:
    """The tile of a contraction by lanes of sums that takes the fewest cycles, and their number;
    None where lanes can't hold steps."""
    op = contraction.op
    if not op.reduce_axis or not _is_plain(contraction):
        return None
    line, lanes = _line_of(contraction), target.lanes(op.output(0).dtype)
    copied = _copied(contraction, line)
    if lanes < 2 or not all(can_be_copied(contraction, each) for each in copied):
        return None
    if not all(each.reads(line) for each in copied):
        return None  # an element of a factor is used in all steps
    if copied and product_of_extents(contraction.rows) == 1:
        return None  # a single row uses an element once, as a copy does
    by, terms = instruction_in_lanes(contraction, line, target), terms_of(contraction, target)
    loads = terms.scalars, terms.vectors, terms.both
    plain = (1 if contraction.rows else 0, 1, 0)
    if by is None and (terms.operations > _OPERATIONS or loads != plain):
        return None
    if (extent_of(line) or 0) < lanes:
        return None
    found = _nest(contraction, line, by, target)
    tile = best_tile(found, target, in_one_block)
    cycles_of_one = 1 / target.processor.ports
    added = _ADDITIONS * lanes * cycles_of_one * found.outer * found.height * found.width
    copies = sum(copy_cycles(usual_bytes_of(each.tensor)) for each in copied)
    # Each row of both factors is read in its order. All planes of a batch come from one cache.
    size = usual_bytes_of(contraction.b.tensor)
    came = transfer_cycles(size, size, target)
    read = max(came, cost(found, tile, Blocks(depth=found.steps[0]), target))
    return tile, read + added + copies


def _is_plain(contraction: Contraction) -> bool:
    """Whether a contraction has two factors no wider than the sums, and constant extents."""
    op, factors = contraction.op, contraction.factors
    itemsize = op.output(0).dtype.itemsize
    return (
        len(factors) == 2
        and len(op.outputs) == 1
        and all(each.tensor.dtype.itemsize <= itemsize for each in factors)
        and not is_uneven(op)
        and product_of_extents(contraction.rows) not in (None, 0)
        and None not in map(extent_of, (*op.axis, *op.reduce_axis))
    )


def _line_of(contraction: Contraction) -> IterVar:
    """The reduction axis whose steps are in the lanes: a long one along which factors without a
    copy are neighbours, such as the channels of an image; of several, the one that saves the most
    copies."""
    axes = contraction.op.reduce_axis
    copied = {k: _copied(contraction, k) for k in axes}
    found = [k for k in axes if all(can_be_copied(contraction, each) for each in copied[k])]
    long = [k for k in found if (extent_of(k) or 0) >= _SHORT]
    return min(long or found or axes, key=lambda k: len(copied[k]))


def _copied(contraction: Contraction, k: IterVar) -> list[Factor]:
    """The factors whose elements aren't neighbours along a reduction axis from end to end."""
    factors = (contraction.a, contraction.b)
    return [x for x in factors if x.along(k) != 1 or not is_read_in_order(x.load, k)]


def instruction_in_lanes(
    contraction: Contraction, line: IterVar, target: Target
) -> DotProduct | None:
    """The instruction that multiplies neighbouring steps of narrow factors and adds them to the
    lanes of a sum; None where the target has none for the factors as they are, or they don't fill
    its vectors."""
    op, factors = contraction.op, (contraction.a, contraction.b)
    if not multiplied_reads(op) or len(op.reduce_axis) != 1:
        return None
    a, b = (str(each.tensor.dtype) for each in factors)
    found = find_instruction(DOT_PRODUCTS, a, b, str(op.output(0).dtype), target.features)
    if found is None or found.lanes != target.lanes(op.output(0).dtype):
        return None
    return None if (extent_of(line) or 1) % (found.lanes * found.group) else found


def _nest(contraction: Contraction, line: IterVar, by: DotProduct | None, target: Target) -> Nest:
    """A contraction as the model sees it: a vector holds one sum, whose lanes are as many steps, or
    groups of steps that an instruction adds."""
    dtype = contraction.op.output(0).dtype
    made, group = vectors(dtype, target), 1 if by is None else by.group
    unit = Unit(1, 1, made.columns * group, made.registers, made.under_way, made.cycles)
    packed = contraction.b.tensor.dtype
    found = nest_of(
        contraction, target, packed, unit=unit, terms=None if by is None else MULTIPLY_ADD
    )
    steps = -(-(extent_of(line) or 1) // unit.depth) * unit.depth
    others = (extent_of(axis) for axis in contraction.op.reduce_axis if axis is not line)
    size = found.itemsize
    found = replace(found, steps=(*others, steps), step_bytes=size)
    if any(each is contraction.a for each in _copied(contraction, line)):
        found = replace(found, row_bytes=found.depth * size)
    # A vector of a row may lie across two lines of the cache; narrow elements are widened.
    is_whole = found.row_bytes % (target.vector_bits // 8) == 0
    a, b = (0 if by else _widening(x, dtype) for x in (contraction.a, contraction.b))
    terms = replace(found.terms, scalars=1 + a + (not is_whole), vectors=1, casts=CAST * b)
    return replace(found, terms=terms if terms.operations > 1 else replace(terms, temporaries=0))


def _widening(factor: Factor, dtype: DType) -> int:
    """How often the width of a factor's elements is doubled, to be that of a dtype."""
    return (dtype.bits // factor.tensor.dtype.bits).bit_length() - 1


def write_lanes(s: Schedule, contraction: Contraction, tile: Tile, target: Target) -> None:
    """Writes the schedule."""
    total, line = contraction.op.output(0), _line_of(contraction)
    lanes, copied = target.lanes(total.dtype), _copied(contraction, line)
    choose(s, "strategy", "the {lanes} lanes of a vector hold the sums of neighbouring steps, in "
           "tiles of {rows} x {columns} sums: the elements of both factors lie side by side along "
           "{k}{copied}", lanes=lanes, rows=tile.rows, columns=tile.columns, k=line,
           copied="".join(f", of {each.tensor.name} in a copy" for each in copied))  # fmt: skip
    stage, place = s[total], contraction.op.reduce_axis.index(line)
    copies = [(each, copied_by_axes(s, contraction, each)) for each in copied]
    by, k = instruction_in_lanes(contraction, line, target), compute_of(stage).reduce_axis[place]
    sums = factored_in_lanes(s, stage, k, lanes, 1 if by is None else by.group)
    stage = s[total]
    tiles = write_tiles(stage, places_of(contraction), tile, Blocks(), None)
    for axis in (tiles.row, tiles.column, *compute_of(stage).reduce_axis):
        if axis is not None:
            stage.unroll(axis)
    loops = run_parallel(stage, [*tiles.tasks, *tiles.loops], target, EVEN)
    op, places = compute_of(sums), places_of(contraction)
    lane, steps = op.axis[-1], [*op.reduce_axis]
    own = [*(op.axis[i] for i in places.rows[-1:]), op.axis[places.column]]
    if by is None:
        steps.append(steps.pop(place))
        write_sums(sums, (stage, loops[-1]), [*own, lane], steps)
    else:
        *steps, group = steps
        sums.compute_at(stage, loops[-1])
        rest = [axis for axis in op.axis if axis not in (*own, lane)]
        sums.reorder(*rest, *steps, *own, lane, group)
        for axis in own:
            sums.unroll(axis)
        sums.tensorize(lane, dot_product_of_lanes(by.name))
    for factor, tensor in copies:
        if tensor is None:
            tensor = s.cache_read(factor.tensor, "global", [sums.op])
        write_along_steps(s, s[tensor], contraction, factor, line, target)


# -- Sums over images --


def fills_lanes_with_steps(contraction: Contraction, target: Target) -> bool:
    """Whether the lanes should hold neighbouring steps of the sums instead of columns. There are
    fewer columns than lanes. The last reduction axis fills a vector, and runs along neighbours in
    both factors. The sums are long enough to pay for adding the lanes at their end."""
    op, a, b = contraction.op, contraction.a, contraction.b
    if not op.reduce_axis or len(contraction.factors) != 2 or len(op.outputs) > 1:
        return False
    if not is_commutative(reduce_of(op).combiner):
        return False
    lanes, step = target.lanes(op.output(0).dtype), op.reduce_axis[-1]
    columns, steps = extent_of(contraction.column), extent_of(step)
    if columns is None or steps is None or columns >= lanes or steps < lanes:
        return False
    total = product_of_extents(op.reduce_axis)
    if total is not None and columns * (total / lanes + _ADDITIONS * lanes) > total:
        return False
    shared, window = _axes_of(contraction)
    are_neighbours = all(each.along(step) == 1 for each in (a, b))
    return are_neighbours and bool(shared) and bool(_written_out(window, target))


def write_lanes_of_steps(
    s: Schedule, contraction: Contraction, target: Target
) -> tuple[list[Stage], IterVar]:
    """Writes the schedule; returns the scheduled stages, and the loop over channels."""
    total = contraction.op.output(0)
    lanes = target.lanes(total.dtype)
    shared, window = ([*map(contraction.op.axis.index, axes)] for axes in _axes_of(contraction))
    several = [contraction.op.axis[i] for i in window]
    written = [contraction.op.axis.index(each) for each in _written_out(several, target)]
    choose(s[total], "strategy", "each channel by itself: {lanes} neighbouring steps of the sum in "
           "the lanes, {sums} sums at once", lanes=lanes,
           sums=prod(extent_of(contraction.op.axis[i]) or 1 for i in written))  # fmt: skip
    stage = s[total]
    part = factored_in_lanes(s, stage, compute_of(stage).reduce_axis[-1], lanes)
    axes = compute_of(stage).axis
    channels = [axes[i] for i in shared]
    outside = [axes[i] for i in range(len(axes)) if i not in shared and i not in written]
    stage.reorder(*channels, *outside, *(axes[i] for i in written))
    *own, lane = (op := compute_of(part)).axis
    tile = [*(own[i] for i in written), lane]
    write_sums(part, (stage, [*channels, *outside][-1]), tile, op.reduce_axis)
    task = fused(stage, channels)
    stage.parallel(task)
    if not outside:
        part.compute_at(stage, task)
    return [stage, part], task


def _axes_of(contraction: Contraction) -> tuple[list[IterVar], list[IterVar]]:
    """The data axes that both factors read, and the other data axes of more than one element."""
    axes, a, b = contraction.op.axis, contraction.a, contraction.b
    shared = [axis for axis in axes if a.reads(axis) and b.reads(axis)]
    return shared, [axis for axis in long_axes(axes) if axis not in shared]


def _written_out(axes: Sequence[IterVar], target: Target) -> list[IterVar]:
    """The axes of the sums that registers hold together."""
    return innermost(axes, target.vector_registers - 4)
