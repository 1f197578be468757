"""The ways to write a reduction: which fit, which is written, and the cycles of each.

A reduction combines the terms of its steps; each term is computed from an element of each factor.
The ways differ in what the lanes of vectors are, and in where the results lie meanwhile:

=============  =====================  ===============  =============================================
way            lanes                  results lie in   elements of a line of memory that are read
=============  =====================  ===============  =============================================
along          steps                  registers        all, or the steps of a piece
in columns     neighbouring results   registers        as many as registers hold results
streamed       neighbouring results   the L1 cache     as many as half of L1 holds results
by groups      results of a group     memory           all
=============  =====================  ===============  =============================================

:mod:`reductions` writes them, and :mod:`short_rows` those of short lines, for several results at
once. All that choose between ways, or between a way and tiles of sums (:mod:`strategies`,
:mod:`layouts`, :mod:`convolutions`), take the cycles from this module.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod
from typing import final

from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.auto_scheduler.contraction import (
    FAR,
    NEAR,
    Contraction,
    Factor,
    all_loads,
    are_pieces,
    bare_vars,
    bytes_of,
    bytes_of_results,
    distances_of,
    extent_of,
    factors_in_indices,
    factors_of,
    is_in_order,
    is_near_along,
    is_uneven,
    lanes_of,
    line_of,
    long_axes,
    plain_axes_of,
    product_of_extents,
    reused_axis,
    running_axis,
    slides,
    uneven_axes,
)
from minitvm.auto_scheduler.cost import (
    in_pieces,
    transfer_cycles,
    unasked_cycles,
    usual_bytes_of,
    usual_size,
)
from minitvm.auto_scheduler.some_sizes import USUAL, has_near_tensors, is_far
from minitvm.auto_scheduler.terms import CAST, terms_of
from minitvm.runtime.dtype import UINT8
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.hoist_values import is_lookup
from minitvm.te.schedules.simplify_operations import named_result
from minitvm.te.tensor import ComputeOp, Tensor, reduce_of
from minitvm.tir.expr import IterVar, PrimExpr, Reduce
from minitvm.tir.functor import mentions

MOST_ROWS = 8
_MOST_PLAIN_ROWS = 2
_APART = 2  # vectors of elements that lie apart, under way
_VECTORS = 8  # of results that are computed together, where there may be few
_MASKED = 4  # bytes of an element, for which any target masks lanes at once
_LONG = 32  # steps, after which a tile for each rest pays (:mod:`overlap_tiles`)
_CHOSEN = 3  # instructions in the time of one element of a vector that data choose
_LOADS_APART = 2  # loads in the time of one element of a vector whose elements lie apart
_VECTORS_OF_PIECES = 3  # of bytes: loops over more lanes aren't unrolled
_ROWS_OF_LANE = 4  # sums of a lane
_CYCLES_OF_LANE = 2  # cycles of a shuffle and an addition
_MOST_PARTS = 8  # of the steps
_LEAST_STEPS = 64  # of a part
MOST_UNROLLED = 16  # steps: more take long to compile
STEPS = 8  # rows that are read side by side: streams that the prefetcher follows
LONG_PIECE = 1024  # elements, beside which it costs little to combine the lanes of a vector


# -- Contractions that are written as other reductions --


def is_plain_reduction(contraction: Contraction) -> bool:
    """Whether a contraction is best scheduled as any other reduction: it is left plain; or a single
    row uses the columns' factor, whose neighbours lie along the last axis."""
    op, b = contraction.op, contraction.b
    if b.along(contraction.column) != 1 or not _is_of_one_axis_for_few(contraction, 1):
        return is_left_plain(contraction)
    is_in_columns = contraction.column is op.axis[-1] and not is_uneven(op)
    is_known = bytes_of(b.tensor) is not None or has_near_tensors()
    is_once = is_known and plain_axes_of(contraction, b) is not None
    return is_in_columns and is_once and len(line_of_columns(contraction)) == 1


def is_left_plain(contraction: Contraction) -> bool:
    """Whether plain loops, which compute one sum after the other, are best: few rows use the
    columns' factor, and its elements lie side by side along the reduction axis, or along all of
    them."""
    if _sums_own_lines(contraction):
        return True
    a, b, op = contraction.a, contraction.b, contraction.op
    across = b.along(contraction.column) != 1
    if not across or not is_for_few(contraction, _MOST_PLAIN_ROWS):
        return False
    *outer, k = op.reduce_axis
    if outer and (is_uneven(op) or len(line_of(op, op.reduce_axis, [b.load])) <= len(outer)):
        return False
    return b.reads(k) and all(is_near_along(op, each.load, k) for each in (a, b))


def _sums_own_lines(contraction: Contraction) -> bool:
    """Whether each result sums elements of the columns' factor that no other result reads, in lines
    of memory along reduction axes: tiles would use no element again, and read the columns of a
    vector far apart."""
    op, b = contraction.op, contraction.b
    if not op.reduce_axis or is_uneven(op):
        return False
    reduced = sorted(op.reduce_axis, key=b.along, reverse=True)
    k, size = reduced[-1], product_of_extents(line_of(op, reduced, [b.load]))
    results = long_axes(op.axis)  # of which none reads a line of another
    if b.along(k) != 1 or size is None or size * b.tensor.dtype.itemsize < CACHE_LINE:
        return False
    return (
        b.along(contraction.column) >= size
        and all(
            each.reads(axis) for each in contraction.factors if each.reads(k) for axis in results
        )
        and _reads_once(contraction, b)
        and all(is_near_along(op, each.load, k) for each in contraction.factors)
    )


def _reads_once(contraction: Contraction, factor: Factor) -> bool:
    """Whether each element of a factor is read in one iteration alone."""
    below = 0
    axes = [*contraction.op.axis, *contraction.op.reduce_axis]
    for axis in sorted(axes, key=factor.along):
        extent = extent_of(axis)
        if extent == 1:
            continue
        if factor.along(axis) <= below or extent is None:
            return False
        below += factor.along(axis) * (extent - 1)
    return True


def is_along_lines(contraction: Contraction, target: Target) -> bool:
    """Whether the columns fill half a vector at most, and lie in one line of the columns' factor
    with those of the axes before, or a few pieces apart, while the other factors don't change along
    the results: as the few channels of an image do whose places are weighted."""
    op, column = contraction.op, contraction.column
    width, lanes = extent_of(column), target.lanes(op.output(0).dtype)
    if column is not op.axis[-1] or width is None or not 1 < width <= lanes // 2:
        return False
    if any(map(contraction.a.reads, op.axis)) or contraction.b.along(column) != 1:
        return False
    line = product_of_extents(line_of_columns(contraction))
    return line is None or line >= lanes or are_pieces(op)


def can_be_streamed(contraction: Contraction, target: Target) -> bool:
    """Whether few rows use a large factor whose columns are neighbours, none in windows that
    overlap: it may be read once, row after row."""
    op, b = contraction.op, contraction.b
    if not _is_of_one_axis_for_few(contraction, MOST_ROWS) or b.along(contraction.column) != 1:
        return False
    size = bytes_of(b.tensor)
    is_large = size is None or size > target.cache_bytes(2) // 4
    return is_large and not is_uneven(op) and not slides(op, b)


def _is_of_one_axis_for_few(contraction: Contraction, most: int) -> bool:
    return len(contraction.op.reduce_axis) == 1 and is_for_few(contraction, most)


def is_for_few(contraction: Contraction, most: int) -> bool:
    """Whether at most `most` rows use an element of `b`."""
    if contraction.a.reads(contraction.column):
        return False
    extents = [extent_of(axis) for axis in contraction.rows]
    return None not in extents and prod(each or 0 for each in extents) <= most


def line_of_columns(contraction: Contraction) -> list[IterVar]:
    """The axes along which a line of the columns' factor lies: the column, and those before it that
    continue the line."""
    axes = contraction.op.axis[: contraction.op.axis.index(contraction.column) + 1]
    outside = [*filter(contraction.a.reads, axes)]
    return line_of(contraction.op, axes, [contraction.b.load], outside)


# -- The axis of the lanes --


def runs_in_columns(op: ComputeOp, target: Target) -> bool:
    """Whether the lanes of a reduction's vectors are neighbours along the last data axis."""
    if running_axis(op) is not None or not op.axis or op.axis[-1] in uneven_axes(op):
        return False
    reads = factors_of(op)
    reads += factors_in_indices(op, *(each.load for each in reads))
    lanes = lanes_of(op, target)
    across = _cost(op.axis[-1], product_of_extents(op.axis[-columns_in_line(op) :]), reads, lanes)
    # At the end of an axis, the lanes are combined.
    terms = prod(extent_of(axis) or FAR for axis in op.reduce_axis)
    combining = 2 * (lanes.bit_length() - 1) / max(1, terms)
    along = [_cost(k, extent_of(k), reads, lanes) + combining for k in op.reduce_axis]
    return across < min([1.0 + len(reads), *along])  # or one by one


def rows_of(op: ComputeOp, target: Target) -> int:
    """The number of leading axes along which a stage can be computed row by row: results that are
    computed together, or are computed from each other, stay in one row."""
    axis = running_axis(op)
    if axis is not None:
        return op.axis.index(axis)
    if not op.reduce_axis or not runs_in_columns(op, target):
        return len(op.axis)
    is_wide = (extent_of(op.axis[-1]) or FAR) >= lanes_of(op, target)
    return len(op.axis) - (1 if is_wide else columns_in_line(op))


def columns_in_line(op: ComputeOp) -> int:
    """The number of last data axes that together run along one line of memory in every read. No
    range of a sum depends on the outer ones, and no condition or value on any, since the digits of
    their common index are dear. In a window of several columns, too, only the steps of a reduction
    leave the line."""
    if op.axis[-1].var in bare_vars(*op.body):
        return 1
    # The guard of a last part, which rfactor makes, leaves the main part alone.
    bare = bare_vars(*(reduce_of(op).source if op.reduce_axis else op.body))
    outside = [*uneven_axes(op), *(axis for axis in op.axis if axis.var in bare)]
    found = len(line_of(op, op.axis, [each.load for each in factors_of(op)], outside))
    return 2 if found == 1 and are_pieces(op) else found


def _cost(axis: IterVar, extent: int | None, reads: Sequence[Factor], lanes: int) -> float:
    """The instructions for a term of a reduction whose lanes are neighbours along an axis: loads
    and shuffles, and one to combine it. A lane that data choose takes the time of three."""
    used = lanes if extent is None else max(1, min(lanes, extent))
    most = (_CHOSEN if is_lookup(each.load) else 2 for each in reads)
    loads = (
        max(1, min(2 * each.along(axis) - 1, n * used)) for each, n in zip(reads, most, strict=True)
    )
    return (1 + sum(loads)) / used


# -- Where results lie --


def results_at_once(op: ComputeOp, target: Target) -> int:
    """The number of neighbouring results that are computed together: enough vectors to hide the
    latency of one. Of rows that data choose, it is a whole row, if registers hold it."""
    lanes = lanes_of(op, target)
    columns = lanes * vectors_under_way(op, target)
    extent = product_of_extents(op.axis[-columns_in_line(op) :])
    if extent is not None and len(op.body) == 1 and gathered(op, target):
        most = target.vector_registers * 3 // 4
        columns = lanes * (most if extent <= most * lanes else target.vector_registers // 2)
    if any(each.along(op.axis[-1]) > NEAR for each in factors_of(op)):
        columns = min(columns, _APART * lanes)  # elements are loaded one by one
    if extent is None:
        # A tile of the rest has as many vectors as it needs; without that, few results fall to a
        # masked tile. A window has so few terms that the processor begins the next tile meanwhile.
        is_masked = target.has_mask_registers or op.output(0).dtype.itemsize >= _MASKED
        has_rests = is_masked and (product_of_extents(op.reduce_axis) or _LONG) >= _LONG
        vectors = 2 if is_window(op, columns) else _VECTORS if has_rests else _VECTORS // 2
        columns = min(columns, lanes_of(op, target) * vectors)
    if columns_in_line(op) > 1 and are_pieces(op):
        size, most = extent_of(op.axis[-1]) or 1, _VECTORS_OF_PIECES * target.lanes(UINT8)
        columns = size << max(0, (min(columns, most) // size).bit_length() - 1)
    return columns if extent is None else max(1, min(columns, extent))


def vectors_under_way(op: ComputeOp, target: Target) -> int:
    """The number of vectors that are computed together, for each of a reduction's results: a power
    of two."""
    most = min(target.multiply_adds_under_way, target.vector_registers * 3 // 4)
    return 1 << (max(1, most // len(op.body)).bit_length() - 1)


def is_window(op: ComputeOp, columns: int) -> bool:
    """Whether several of the columns read the same element, at different steps along the last
    reduction axis."""
    column, k = op.axis[-1], op.reduce_axis[-1]
    extent = extent_of(k)
    if extent is None or extent > MOST_UNROLLED:
        return False
    return any(0 < each.along(k) < each.along(column) * columns for each in factors_of(op))


def gathered(op: ComputeOp, target: Target) -> list[Tensor]:
    """The tensors from beyond the L2 cache whose rows are chosen by data, and read along the last
    axis."""
    found = dict.fromkeys(
        load.producer
        for load in all_loads(op)
        if op.axis
        and isinstance(load.producer, Tensor)
        and reads_tensors(*load.indices)
        and distances_of(load, op).get(op.axis[-1].var) == 1
    )
    return [each for each in found if is_far(each, target)]


def streamed(op: ComputeOp, target: Target) -> list[Tensor]:
    """The tensors whose rows a reduction reads whole: registers would hold the results of a short
    piece of each row, and the rows come from beyond the L2 cache."""
    if is_uneven(op):
        return []
    columns, extent = results_at_once(op, target), extent_of(op.axis[-1])
    if extent is not None and extent <= columns:
        return []
    return [
        each.tensor
        for each in factors_of(op)
        if each.along(op.axis[-1]) == 1
        and _reads_rows(op, each, extent or columns)
        and is_far(each.tensor, target)
        and not slides(op, each)
    ]


def _reads_rows(op: ComputeOp, factor: Factor, columns: int) -> bool:
    """Whether a step reads another row of a tensor than the step before."""
    apart = factor.along(op.reduce_axis[-1])
    # Rows of symbolic size lie as far apart as rows that data choose.
    is_plain = {*factor.load.indices} <= {axis.var for axis in (*op.axis, *op.reduce_axis)}
    return apart >= columns and (apart < FAR or is_plain)


def results_in_cache(op: ComputeOp, target: Target, rows: int = 1) -> int:
    """The number of neighbouring results of some rows, in whole vectors, that fit half of the L1
    cache."""
    lanes = lanes_of(op, target)
    return max(lanes, target.cache_bytes(1) // 2 // (rows * bytes_of_results(op)) // lanes * lanes)


def parts_of_rows(op: ComputeOp, target: Target) -> int:
    """The number of parts of a reduction's steps whose results fit half of the L2 cache. It doesn't
    depend on the number of cores, and so the bits of the result don't either. A few parts less are
    better than a remainder."""
    results, steps = product_of_extents(op.axis), extent_of(longest_axis(op))
    if results is None or steps is None:
        return 1
    size = max(1, results * bytes_of_results(op))
    most = max(1, min(_MOST_PARTS, steps // _LEAST_STEPS, target.cache_bytes(2) // 2 // size))
    counts = range(most, most // 2, -1)
    return min(counts, key=lambda parts: (steps % parts > 0, steps // parts % STEPS > 0))


def longest_axis(op: ComputeOp) -> IterVar:
    """The reduction axis of the most steps, the outermost of several."""
    return max(op.reduce_axis, key=lambda k: extent_of(k) or 0)


def rows_summed(
    op: ComputeOp, row: IterVar, read: Container[Tensor], target: Target, *, strict: bool
) -> bool:
    """Whether a reduction adds up the rows of matrices, in parts, and those of `read` among them
    are too large for the L2 cache. A loop over rows, as long as the axis `row`, may add them up."""
    if len(op.axis) != 1 or len(op.reduce_axis) != 1 or is_in_order(op, strict):
        return False
    (column,), (k,) = op.axis, op.reduce_axis
    steps, results = extent_of(k), extent_of(column)
    if steps is None or results is None or steps != extent_of(row) or is_uneven(op):
        return False
    is_even = results % lanes_of(op, target) == 0 and steps % parts_of_rows(op, target) == 0
    if not is_even or parts_of_rows(op, target) == 1 or not runs_in_columns(op, target):
        return False
    shared = {
        each.tensor
        for each in factors_of(op)
        if [*map(id, each.load.indices)] == [id(k.var), id(column.var)] and each.tensor in read
    }
    size = sum(map(usual_bytes_of, shared))
    few = results * bytes_of_results(op) <= target.cache_bytes(1) // 4
    return few and size > target.cache_bytes(2) // 2


# -- By groups --


_FEW = 2  # groups with which each term may be compared


def groups_of(op: ComputeOp) -> dict[IterVar, PrimExpr]:
    """The axes of the groups of a reduction, each with the index that names a term's group."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or is_uneven(op):
        return {}
    found = dict[IterVar, PrimExpr]()
    for each in conjuncts(reduce.condition):
        named = named_result(op, each)
        if named is None or named[0] in found or not _is_of_terms(op, named[1]):
            break
        found |= [named]
    is_apart = not any(mentions(axis.var, key) for axis in found for key in found.values())
    return found if is_apart else {}


def _is_of_terms(op: ComputeOp, key: PrimExpr) -> bool:
    """Whether a value is read from memory, and changes with the terms of a reduction."""
    return reads_tensors(key) and any(mentions(each.var, key) for each in op.reduce_axis)


def is_grouped(op: ComputeOp, target: Target) -> bool:
    """Whether data name the only group of each term, and there are so many groups that it isn't
    compared with all of them."""
    found = groups_of(op)
    groups = product_of_extents([*found])
    others = product_of_extents([axis for axis in op.axis if axis not in found])
    is_compared = (bool(found) and [*found][-1] is op.axis[-1]) or others == 1
    # Groups of a symbolic number keep their loop.
    return bool(found) and (groups or 0) > (lanes_of(op, target) if is_compared else _FEW)


# -- Cycles --


@final
@record()
class Way:
    """A way to write a reduction, as the model sees it.

    Attributes
    ----------
    axis
        Neighbours along it are the lanes of vectors: results, or steps.
    rows, again
        An element that changes along none of the axes `rows` is loaded once for `again` results.
    in_cache
        Whether sums lie in the L1 cache, and come and go once in a few steps, so that lines which
        come get in their way. Then elements that are the same for all lanes stay in registers, if
        there are few; the others are loaded in each step.
    piece
        The elements of a line of memory that are read at a time, if the line has more.
    operations
        Those of a term, in vector multiply-adds.
    sums
        The vectors of sums that are computed side by side, if these don't hide the latency of one.
    is_dense
        Whether the results of one step that don't fill a vector lie beside those of the next.
    """

    axis: IterVar
    rows: Sequence[IterVar] = ()
    again: int = 1
    in_cache: bool = False
    piece: int | None = None
    operations: float = 1.0
    sums: int | None = None
    is_dense: bool = False


def cycles_of_way(way: Way, op: ComputeOp, factors: Sequence[Factor], target: Target) -> float:
    """The cycles of a reduction of these factors that is written in some way. Each factor comes
    from the cache that holds it, while the arithmetic is done; the lanes of steps are combined at
    the end. Short lines of steps are computed side by side."""
    cpu, lanes, width = target.processor, target.lanes(op.output(0).dtype), usual_size([way.axis])
    is_step = way.axis in op.reduce_axis
    vectors = usual_size([*op.axis, *op.reduce_axis]) / width
    vectors *= width / lanes if (is_step or way.is_dense) and width < lanes else -(-width // lanes)
    are_held = way.in_cache and way.again * STEPS <= target.vector_registers // 2
    loads = 1 / STEPS if way.in_cache else 0.0
    came = casts = 0.0
    for each in factors:
        apart, again = each.along(way.axis), 1 if any(map(each.reads, way.rows)) else way.again
        if apart or not are_held:
            loads += (_LOADS_APART * lanes if apart > NEAR else max(1, apart)) / again
        casts += CAST / again if each.is_cast and apart else 0.0
        lines = lanes * min(apart * each.tensor.dtype.itemsize, CACHE_LINE)
        came += _came(each, lines, way.piece, target) / again
    computed = vectors * max(way.operations / cpu.ports, loads / cpu.loads)
    casts *= vectors / cpu.ports
    if way.sums is not None:
        computed = max(computed, vectors * cpu.latency / way.sums)
    if way.in_cache:
        fewer, more = sorted((computed + casts, vectors * came))
        return more + fewer * fewer / more
    results = usual_size(op.axis) * min(width, lanes) / lanes if is_step else 0
    added = results * lanes.bit_length() * _CYCLES_OF_LANE
    return max(computed, vectors * came) + casts + added


def _came(factor: Factor, size: int, piece: int | None, target: Target) -> float:
    """The cycles in which `size` bytes of a factor come, `piece` elements of a line at a time."""
    held = usual_bytes_of(factor.tensor)
    came = transfer_cycles(size, held, target)
    if piece is not None:
        came *= in_pieces(target.level_of(held), piece * factor.tensor.dtype.itemsize, target)
    return came


def cycles_of_reduction(op: ComputeOp, target: Target) -> float:
    """The cycles of a reduction that uses no element again: in vectors of neighbouring results, if
    these read neighbouring terms, or of neighbouring steps."""
    factors, column = factors_of(op), long_axes(op.axis)[-1:]
    is_across = not column or any(each.along(column[0]) not in (0, 1) for each in factors)
    way = Way(op.reduce_axis[-1] if is_across else column[0])
    return cycles_of_way(way, op, factors, target)


def cycles_of_plain(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction that is written as any other reduction."""
    op, b, step = contraction.op, contraction.b, contraction.op.reduce_axis[-1]
    if is_left_plain(contraction):
        read = usual_size([*op.axis, *op.reduce_axis]) * b.tensor.dtype.itemsize
        waited = unasked_cycles(read, usual_bytes_of(b.tensor), target)
        return cycles_of_way(Way(step), op, contraction.factors, target) + waited
    is_dense = b.along(step) == usual_size([contraction.column])
    way = Way(contraction.column, is_dense=is_dense)
    return cycles_of_way(way, op, contraction.factors, target)


def cycles_of_streamed(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction of few rows whose columns' factor is read row after row."""
    rows, operations = usual_size(contraction.rows), terms_of(contraction, target).operations
    piece = results_in_cache(contraction.op, target, rows)
    way = Way(
        contraction.column,
        contraction.rows,
        rows,
        in_cache=True,
        piece=_part_of_line(contraction, piece),
        operations=operations,
    )
    return cycles_of_way(way, contraction.op, contraction.factors, target)


def cycles_of_coming(contraction: Contraction, target: Target) -> float:
    """The cycles in which the factors come once, that of the columns in pieces of its lines as long
    as the column."""
    piece = _part_of_line(contraction, extent_of(contraction.column) or USUAL)
    return sum(
        _came(each, usual_bytes_of(each.tensor), piece if each is contraction.b else None, target)
        for each in contraction.factors
    )


def _part_of_line(contraction: Contraction, columns: int) -> int | None:
    """A number of columns that are less than a line of their factor; None where they aren't."""
    line = product_of_extents(line_of_columns(contraction)) or USUAL
    return columns if columns < line else None


def cycles_without_rows(contraction: Contraction, target: Target) -> float:
    """The cycles of a contraction whose tiles have columns, and perhaps a few results along an axis
    along which one factor is the same. Each vector of sums waits for the last product that was
    added to it."""
    op, row, column = contraction.op, reused_axis(contraction), contraction.column
    rows = () if row is None else (row,)
    results = usual_size(rows)
    sums = -(-usual_size([column]) // target.lanes(op.output(0).dtype)) * results
    under_way = min(sums, target.multiply_adds_under_way)
    way = Way(column, rows, min(_ROWS_OF_LANE, results), sums=under_way)
    return cycles_of_way(way, op, contraction.factors, target)
