"""Reductions along short rows of memory, as many rows together as a vector of results has lanes.

The lanes of a vector hold the partial results of neighbouring steps of one row. Combining the lanes
of one row takes about as long as reading a hundred elements. So the vectors of several rows are
transposed in registers, and one operation for each lane combines all of these rows::

    for each block of 8 rows, on all threads:
        for i in 8 rows, k in vectors, written out:
            partial[i, 0:8] += X[i, k * 8 : k * 8 + 8]
        lanes[0:8, 0:8] = partial, transposed
        for lane in 8, written out:
            Y[0:8] += lanes[lane, 0:8]

Where the steps must stay in order, or a step has several results, as an argmax has, the elements
themselves are transposed, and the lanes hold the results of 8 rows from the first step on::

    for each block of 8 rows, on all threads:
        columns[k, 0:8] = X[0:8, k], transposed
        for k, written out:
            Y[0:8] += columns[k, 0:8]

Longer rows, and those of unknown length, are combined alike, in a loop over their vectors. Sums of
such rows alone are left as they are, since they wait for memory; those of unknown length have a
version for calls with short rows (:mod:`minitvm.auto_scheduler.versions`), and so have those whose
elements are better transposed: there the steps are a loop.

The second part of this module is about reductions over short pieces of lines. Where the channels
are the last dimension, a group of channels is a short piece of each pixel. A vector along a piece
would be half empty, and its lanes would be combined for each pixel. So the places in a piece become
columns, whose partial results stay in vectors over all pixels::

    for u in groups, c in a group:                  # in vectors along u and c
        for p in pixels: T[u, c] += X[p, u * 6 + c]
    for u in groups:
        for c in a group: Y[u] += T[u, c]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod
from typing import TypeAlias, cast

from minitvm.arith.accesses import step_of
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    FAR,
    NEAR,
    Factor,
    contraction_of,
    extent_of,
    factors_of,
    is_at_digits,
    is_in_order,
    is_line,
    is_uneven,
    lanes_of,
    product_of_extents,
    running_axis,
)
from minitvm.auto_scheduler.loops import (
    cached,
    calls_in,
    compute_of,
    factored,
    factored_in_lanes,
    fused,
    lie_along,
    run_parallel,
    write_loops,
)
from minitvm.auto_scheduler.some_sizes import has_short_rows
from minitvm.auto_scheduler.terms import is_long, step_operations, term_operations
from minitvm.auto_scheduler.ways import LONG_PIECE, is_grouped, is_plain_reduction, runs_in_columns
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import reads_of
from minitvm.te.schedules.layout import layout_of
from minitvm.te.schedules.rewrite_operations import in_layout
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, Tensor, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import Add, IterVar, Max, Min, PrimExpr, Reduce, Var
from minitvm.tir.functor import find, mentions, walk_once

_MOST_RESULTS = 1 << 40  # rows of more have numbers that overflow
_LEAST = 4  # elements of a row: of shorter rows, vectors along the results read whole lines
# Vector operations of a block. More take long to compile, and for rows of more vectors the
# combination of their lanes matters little.
_MOST = 128
_MOST_OF_TUPLES = 256  # of few rows, whose lanes take longer to combine
_FEW_LANES = 16
_MOST_OF_PIECES = 32  # vectors of a row of pieces: in longer rows, combining lanes matters little
_MOST_IN_STEPS = 1024  # operations of a block that is combined step by step
_MOST_SHARES = 8  # of a vector, in one of which the elements of a row lie
AT_ONCE = 4  # vectors in an iteration of a plain loop, as LLVM makes it


def are_short_rows(op: ComputeOp, target: Target, *, strict: bool) -> bool:
    """Whether a reduction combines short rows, each of neighbours in memory, one behind the other.

    >>> from minitvm import te
    >>> X, k = te.placeholder((1000, 12)), te.reduce_axis((0, 12), name="k")
    >>> Y = te.compute((1000,), lambda i: te.sum(X[i, k], axis=k), name="Y")
    >>> are_short_rows(Y.op, Target("llvm -mcpu=haswell"), strict=False)
    True
    """
    reduce = op.body[0] if op.reduce_axis and op.axis else None
    if not isinstance(reduce, Reduce) or reduce.init or is_uneven(op):
        return False
    if running_axis(op) is not None or any(body.dtype.is_bool for body in op.body):
        return False
    rows, size, lanes = op.axis[-1], product_of_extents(op.reduce_axis), lanes_of(op, target)
    if size is None and len(op.reduce_axis) > 1:
        return False
    if (size is not None and size < _LEAST) or (extent_of(rows) or lanes) < lanes or lanes < 4:
        return False
    reads, contraction = _reads_along(op), contraction_of(op)
    return (
        _writer_of(op, target, strict) is not None
        and all(0 < each.along(op.reduce_axis[-1]) <= NEAR for each in reads)
        # Neighbouring rows lie apart, or are the same one for a few results.
        and all(x.along(rows) >= _LEAST or is_at_digits(x.load) for x in reads if x.reads(rows))
        and any(each.reads(rows) for each in reads)
        and (contraction is None or is_plain_reduction(contraction))
    )


_Write: TypeAlias = Callable[[Schedule, Stage, tuple[Stage, IterVar], Target], None]


def _writer_of(op: ComputeOp, target: Target, strict: bool) -> _Write | None:
    """The form of a block that takes the fewest vector operations; None if these are too many to be
    written out. Single results that need no order are combined from partial ones."""
    reduce, lanes, size = reduce_of(op), lanes_of(op, target), product_of_extents(op.reduce_axis)
    components = range(len(op.body))
    values, each = term_operations(reduce, components), step_operations(reduce, components)
    costs: dict[_Write, int] = {}
    is_free = not is_in_order(op, strict)
    most = _most_of(op, lanes)
    line = _line_of_steps(op)
    is_one_line = len(line) == len(op.reduce_axis)
    across = [factor for factor in _reads_along(op) if factor.reads(op.axis[-1])]
    is_dense = all(factor.along(op.reduce_axis[-1]) == 1 for factor in across)
    can_loop = is_free and is_dense and is_one_line and lanes * (1 + values) <= most
    if size is None and has_short_rows() and goes_step_by_step(op, strict=strict):
        return _write_steps
    if size is None:
        return _write_partial if can_loop else None
    transpose, vectors = lanes * (lanes.bit_length() - 1), -(-size // lanes)
    # Of several pieces of lines, which are a loop, one is written out.
    piece = product_of_extents(line) or 0
    steps = lanes * -(-piece // _width_of(op, target))
    is_short = is_dense and piece >= _LEAST and size <= _MOST_OF_PIECES * lanes
    is_plain = is_free and (is_one_line or is_short)
    if len(op.body) == 1 and not is_dense and size > lanes:
        most = 0  # LLVM makes better vectors
    is_written_out = is_plain and steps * (1 + values) <= most
    if is_written_out or (can_loop and size <= LONG_PIECE):
        costs[_write_partial] = (steps + lanes) * each + len(op.body) * transpose
    can_be_copied = not _asks_data(reduce) and size <= _MOST and size * each <= _MOST_IN_STEPS
    if can_be_copied and (len(op.body) > 1 or not is_free):
        # Elements that are read in the order of memory are transposed in vectors.
        steps_of = (step_of(x.load.indices[-1], op.reduce_axis[-1].var) for x in across)
        copies = (vectors * transpose if step == 1 else size * lanes for step in steps_of)
        costs[_write_steps] = size * each + sum(copies)
    return min(costs, key=costs.__getitem__, default=None)


def goes_step_by_step(op: ComputeOp, *, strict: bool) -> bool:
    """Whether the elements of short rows are better transposed than partial results: steps stay in
    order, or have several results."""
    reduce = op.body[0] if op.reduce_axis else None
    is_free = len(op.body) == 1 and not is_in_order(op, strict)
    return isinstance(reduce, Reduce) and not is_free and not _asks_data(reduce)


def _most_of(op: ComputeOp, lanes: int) -> int:
    return _MOST if len(op.body) == 1 or lanes > _FEW_LANES else _MOST_OF_TUPLES


def _is_loop(op: ComputeOp, target: Target) -> bool:
    """Whether the vectors of a row are a loop: too many to be written out, or of unknown number."""
    size, lanes = product_of_extents(op.reduce_axis), lanes_of(op, target)
    values = term_operations(reduce_of(op), range(len(op.body)))
    return size is None or lanes * -(-size // lanes) * (1 + values) > _most_of(op, lanes)


def longest(op: ComputeOp) -> int:
    """The elements of the longest rows whose partial results are combined together. Of longer ones,
    sums of one row after the other are faster."""
    return _MOST // (1 + term_operations(reduce_of(op), range(len(op.body))))


def _asks_data(reduce: Reduce) -> bool:
    """Whether data say which elements are read, under a condition."""
    conditions = [each.args[0] for each in walk_once(*reduce.source) if is_lazy(each)]
    return reads_tensors(reduce.condition, *conditions)


def _reads_along(op: ComputeOp) -> list[Factor]:
    """The elements that change along the steps."""
    return [each for each in factors_of(op) if any(map(each.reads, op.reduce_axis))]


def _line_of_steps(op: ComputeOp) -> Sequence[IterVar]:
    """The reduction axes, if together they run along one line of memory; or else the last one."""
    return op.reduce_axis if is_line(op, op.reduce_axis) else op.reduce_axis[-1:]


def _width_of(op: ComputeOp, target: Target) -> int:
    """The lanes of a vector of partial results: a power of two, no more than a short row has."""
    size, lanes = product_of_extents(_line_of_steps(op)), lanes_of(op, target)
    return lanes if size is None else min(lanes, 1 << (size - 1).bit_length())


def waits_for_memory(op: ComputeOp, target: Target) -> bool:
    """Whether a reduction of rows that are a loop is a sum, whose steps take less time than those
    of reading: neighbouring lines of one row come faster than lines of several rows. So it is with
    extrema of rows of known length."""
    reduce = op.body[0] if op.reduce_axis else None
    is_known = product_of_extents(op.reduce_axis) is not None
    if not isinstance(reduce, Reduce) or not _is_loop(op, target):
        return False
    if has_short_rows() and not is_known:
        return False
    quick = (Add, Min, Max) if is_known else (Add,)
    return is_operator(reduce.combiner, *quick) and not any(map(is_long, walk_once(*reduce.source)))


def write_short_rows(
    s: Schedule, stages: Sequence[Stage], root: Stage, rows: int, target: Target, *, strict: bool
) -> IterVar:
    """Writes reductions along short rows, in blocks of the first `rows` axes of `root`: of the
    reduction itself, or of a stage that reads their results. Returns the loop over blocks."""
    lanes = lanes_of(compute_of(stages[0]), target)
    writers = [_writer_of(compute_of(stage), target, strict) for stage in stages]
    for stage, write in zip(stages, writers, strict=True):
        text = "{rows} rows together: {width} partial results of each are the lanes of a vector, "
        text += "and the vectors are transposed in registers"
        if write is _write_steps:
            text = "{rows} rows together: their elements are transposed in registers, and combined "
            text += "step by step"
        op = compute_of(stage)
        choose(stage, "strategy", text, rows=lanes_of(op, target), width=_width_of(op, target))
    if root in stages:
        sums = cached(s, root, "local")
        stages = [sums if stage is root else stage for stage in stages]
    axes = compute_of(root).axis
    *outer, row = axes[:rows]
    blocks, inside = root.split(row, factor=lanes)
    is_each = rows == len(axes)
    if is_each:
        root.vectorize(inside)
    for stage, write in zip(stages, writers, strict=True):
        assert write is not None
        stage.set_scope("local" if is_each else "global")
        stage.compute_at(root, blocks)
        write(s, stage, (root, blocks), target)
    return run_parallel(root, [*outer, blocks], target)[-1]


def _write_partial(s: Schedule, stage: Stage, at: tuple[Stage, IterVar], target: Target) -> None:
    """Combines partial results of each row of one block, `at` the loop over blocks of another
    stage."""
    op = compute_of(stage)
    line = fused(stage, _line_of_steps(op))
    vectors = factored_in_lanes(s, stage, line, _width_of(op, target))
    vectors.compute_at(*at)
    for tensor in vectors.op.outputs:
        turned = s[s.cache_read(tensor, "local", [stage.op])]
        turned.compute_at(*at)
        lie_along(turned, len(op.axis) - 1)
        turned.vectorize(turned.leaf_iter_vars[-1])
    write_loops(stage, [], compute_of(stage).axis[-1], unrolled=compute_of(stage).reduce_axis)
    *_, row, lane = compute_of(vectors).axis
    step, *around = compute_of(vectors).reduce_axis
    if around:
        write_loops(vectors, around, lane, unrolled=[step, row])
    elif _is_loop(op, target) and calls_in(s, vectors):
        write_loops(vectors, [row, step], lane)  # steps of a row don't wait for each other
    elif _is_loop(op, target):
        write_loops(vectors, [step], lane, unrolled=[row])
    elif calls_in(s, vectors) and _are_whole_vectors(op, target):  # of several rows
        part, lane = vectors.split(vectors.fuse(row, lane), factor=lanes_of(op, target))
        write_loops(vectors, [], lane, unrolled=[step, part])
    else:
        write_loops(vectors, [], lane, unrolled=[step, row])


def _are_whole_vectors(op: ComputeOp, target: Target) -> bool:
    """Whether rows of fewer steps than a vector has lanes fill whole vectors, one behind the
    other."""
    size, row, line = product_of_extents(op.reduce_axis), op.axis[-1], _line_of_steps(op)
    return (
        size == _width_of(op, target) < lanes_of(op, target)
        and len(line) == len(op.reduce_axis)
        and all(each.along(row) == size and each.along(line[-1]) == 1 for each in _reads_along(op))
    )


def _write_steps(s: Schedule, stage: Stage, at: tuple[Stage, IterVar], target: Target) -> None:
    """Combines the rows of one block step by step, `at` the loop over blocks of another stage."""
    op = compute_of(stage)
    is_known = product_of_extents(op.reduce_axis) is not None
    for tensor in dict.fromkeys(each.tensor for each in _reads_along(op)):
        while (which := _first_across(compute_of(stage), tensor)) is not None:
            scope = "local" if is_known else "global"
            copy = s[s.cache_access(tensor, scope, stage.op, which)]
            (load,) = reads_of(compute_of(stage), copy.op.output(0))
            row = compute_of(stage).axis[-1].var
            lie_along(copy, [mentions(row, index) for index in load.indices].index(True))
            copy.compute_at(*at)
            copy.vectorize(copy.leaf_iter_vars[-1])
    *_, row_axis = compute_of(stage).axis
    steps = compute_of(stage).reduce_axis
    write_loops(stage, [] if is_known else steps, row_axis, unrolled=steps if is_known else [])


def _first_across(op: ComputeOp, tensor: Tensor) -> int | None:
    """The number, among the elements of a tensor that a step reads, of the first one that changes
    along the steps and from row to row."""
    row, loads = op.axis[-1], reads_of(op, tensor)
    for which, load in enumerate(loads):
        used = set(find(Var, *load.indices))
        if row.var in used and any(k.var in used for k in op.reduce_axis):
            return which
    return None


# -- Few rows, behind each other --


def write_rows_in_line(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets another stage reduce the rows along the last two axes as rows along one axis, of which
    the result is a view; returns it. None where the rows along the last axis fill a vector of
    results, where rows are whole vectors or small shares of one, and where both axes aren't such
    rows."""
    s, target, op = program.schedule, program.target, compute_of(stage)
    is_read = not stage.is_output or s.readers(stage) or stage.time is not None
    if is_read or len(op.axis) < 2 or len(op.outputs) > 1 or not op.reduce_axis:
        return None
    few, lanes = extent_of(op.axis[-1]), lanes_of(op, target)
    many = extent_of(op.axis[-2])
    if few is None or not 1 < few < lanes or (many is not None and few * many < lanes):
        return None
    size = product_of_extents(op.reduce_axis)
    if size is None or size % lanes == 0 or lanes > _MOST_SHARES * _width_of(op, target):
        return None  # LLVM makes better vectors
    results = product_of_extents(op.axis) or 1
    if is_grouped(op, target) or running_axis(op) is not None or results > _MOST_RESULTS:
        return None
    if not all(each.reads(op.axis[-2]) for each in _reads_along(op)):
        return None
    are_neighbours = all(each.along(op.axis[-1]) in (0, 1) for each in factors_of(op))
    if are_neighbours and runs_in_columns(op, target):
        return None

    def in_line(*indices: Var) -> list[PrimExpr]:
        return [*indices[:-2], indices[-2] * few + indices[-1]]

    layout = layout_of(op.name, op.axis, in_line)
    joined = simplified(cast(ComputeOp, in_layout(op, layout)))
    if not joined.reduce_axis or not are_short_rows(joined, target, strict=program.strict):
        return None
    choose(stage, "digits", "the places along {outer} and {inner} are places along one axis",
           outer=op.axis[-2], inner=op.axis[-1])  # fmt: skip
    made = cached(s, stage, "global")
    made.transform_layout(in_line)
    made.simplify()
    stage.compute_view()
    return [made]


# -- Short lines --


_LEAST_PIECES = 16  # pieces, from which on one more step for each place in a piece costs little
_BETTER = 1.5  # the factor in instructions from which on the partial results pay


def write_short_pieces(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets another stage reduce the places of short pieces; returns it. None for a stage that reads
    no short pieces of lines, or whose terms have an order."""
    s, target, op = program.schedule, program.target, compute_of(stage)
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or reduce.init or is_uneven(op):
        return None
    if is_in_order(op, program.strict):
        return None
    if not isinstance(reduce.condition, e.IntImm):
        return None
    together = _rows_together(op, target)
    if together > 1:
        choose(stage, "blocks", "{rows} rows of short lines have partial results of their own",
               rows=together)  # fmt: skip
        _, row = stage.split(op.reduce_axis[-1], factor=together)
        return [factored(s, stage, row, len(op.axis) - 1)]
    piece = _piece_of(op, target)
    if piece is None:
        return None
    choose(stage, "strategy", "the {places} places along {axis} are reduced apart, as columns, and "
           "then together", places=extent_of(piece), axis=piece)  # fmt: skip
    return [factored(s, stage, piece, len(op.axis))]


def _rows_together(op: ComputeOp, target: Target) -> int:
    """The number of neighbouring steps of a reduction that get partial results of their own. Their
    lines, one behind the other, fill whole vectors, enough to hide the latency of one. 1 where a
    line fills enough vectors by itself, where lines don't follow each other, or for few steps."""
    if not op.axis or len(op.body) > 1 or running_axis(op) is not None:
        return 1
    column, k = op.axis[-1], op.reduce_axis[-1]
    width, extent, lanes = extent_of(column), extent_of(k), lanes_of(op, target)
    if width is None or width < 2 or not runs_in_columns(op, target) or contraction_of(op):
        return 1
    if any((each.along(column), each.along(k)) != (1, width) for each in factors_of(op)):
        return 1
    least = target.multiply_adds_under_way // 2 * lanes
    together = lcm(width, lanes) // width
    together *= max(1, least // (together * width))
    is_kept = together * width <= target.vector_registers * 3 // 4 * lanes
    is_many = extent is None or extent >= _LEAST_PIECES * together
    return together if width < least and is_kept and is_many else 1


def _piece_of(op: ComputeOp, target: Target) -> IterVar | None:
    """The longest reduction axis along which all reads that change along it go through short pieces
    of lines; None if there is no such axis, or vectors along it or along the results cost as
    little."""
    if len(op.reduce_axis) < 2:
        return None
    reads = _reads_along(op)
    near = [k for k in op.reduce_axis if {each.along(k) for each in reads if each.reads(k)} == {1}]
    if not near:
        return None
    piece = max(near, key=lambda k: extent_of(k) or 0)
    extent = extent_of(piece) or 0
    others = [k for k in op.reduce_axis if k is not piece]
    pieces = [FAR if (n := extent_of(k)) is None else n for k in others]
    if extent < 2 or prod(pieces) < _LEAST_PIECES:
        return None
    # A gap must lie between two pieces; without one they are a single line.
    if any(all(each.along(k) == extent * each.along(piece) for each in reads) for k in others):
        return None
    lanes = lanes_of(op, target)
    loads = 1 + len(reads)
    along = (loads * -(-extent // lanes) + 2 * (lanes.bit_length() - 1)) / extent
    is_line = op.axis and all(each.along(op.axis[-1]) == extent for each in reads)
    width = extent * ((extent_of(op.axis[-1]) or lanes) if is_line else 1)
    across = loads / min(lanes, width)
    if across * _BETTER >= along or running_axis(op) is not None:
        return None
    return None if contraction_of(op) or runs_in_columns(op, target) else piece
