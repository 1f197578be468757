"""Parts of a stage that other stages compute ahead of it, so that fewer operations are left.

Values that are the same in many iterations are computed once::

    C[i, j] = sum(exp(A[i, k]) * B[k, j], k)       # m * n * k exponentials

    C.exp[i, k] = exp(A[i, k])                     # m * k
    C[i, j] = sum(C.exp[i, k] * B[k, j], k)

What changes along outer axes alone, as the scale of a row, is computed once for the inner ones
anyway.

The sums over a product of several factors are computed in the best order::

    D[i, j] = sum(A[i, k] * B[k, l] * C[l, j], (k, l))       # n^4 steps

    D.sums[i, l] = sum(A[i, k] * B[k, l], k)                 # n^3 steps, twice
    D[i, j] = sum(D.sums[i, l] * C[l, j], l)

Axes are summed over one group after the other. The remaining sums depend on the set of the axes
that are done, not on their order. So the search is exact: the best way from each set is found once
(dynamic programming, as for the order of a chain of products).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from math import inf, lcm, prod
from typing import TypeAlias

from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    Contraction,
    all_loads,
    contraction_of,
    extent_of,
    factors_of,
    is_at_digits,
    is_near_along,
    long_axes,
    product_of_extents,
    reads_windows,
    usual_extent,
    usual_iterations,
)
from minitvm.auto_scheduler.cost import layout_cycles, transfer_cycles
from minitvm.auto_scheduler.instructions import cycles_by_instruction, multiplies_dtypes
from minitvm.auto_scheduler.loops import compute_of, nest_of
from minitvm.auto_scheduler.loops import divided as in_parts
from minitvm.auto_scheduler.shared_loops import place_of
from minitvm.auto_scheduler.short_rows import are_short_rows
from minitvm.auto_scheduler.strategies import cycles_in_tiles, cycles_of_strategy
from minitvm.auto_scheduler.tiles import best_tile, tiles_of
from minitvm.auto_scheduler.ways import groups_of, is_grouped, is_left_plain
from minitvm.runtime.errors import CompileError
from minitvm.runtime.host import CACHE_LINE
from minitvm.target import Target
from minitvm.te.schedules.distribute_sums import distributed, has_terms, is_separable, operator_of
from minitvm.te.schedules.factors import factors_in
from minitvm.te.schedules.hoist_values import Part, hoisted, operations_of, parts_of
from minitvm.te.schedules.joined_reductions import can_be_joined
from minitvm.te.schedules.layout import layout_of
from minitvm.te.schedules.mirrored_results import block_of_half, is_symmetric, mirrored
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.reassociation import reassociated
from minitvm.te.schedules.rewrite_operations import in_steps
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.schedules.stage import Stage
from minitvm.te.tensor import ComputeOp, domain_of, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce
from minitvm.tir.functor import find, mentions, substitute, walk_once

_MOST_JOINED = 4  # reductions of one stage: more results don't stay in registers
_FEWEST = 8.0  # operations of a part: computing fewer costs no more than reading a stored value
_ROWS, _VECTORS = 4, 2  # of a register tile, about
_LEAST = 2000.0  # cycles saved, for which another stage, with loops and memory of its own, pays
_SHARE = 0.1  # of the computation's cycles
_MOST = 10  # reduction axes of a search
_TOGETHER = 6  # reduction axes up to which groups of several axes are tried: 3^6 pairs of sets
_CYCLES_OF_STEP = 2  # of windows, whose vectors lie in two lines of the cache
_NARROW_BLOCKS = (1, 2, 3)  # tiles of columns in a block of symmetric results
_GAIN = 1.25  # the factor in cycles from which on another stage pays

_Axes: TypeAlias = frozenset[IterVar]
_Groups: TypeAlias = tuple[_Axes, ...]


# -- Values that are computed once --


def write_hoisted(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets other stages compute parts of a stage once; returns them. None if none is worth it."""
    if stage.time is not None:
        return None
    s, target, made = program.schedule, program.target, list[Stage]()
    while (part := _best_part(compute_of(stage), target)) is not None:
        text = "the part that changes along {axes} alone is computed once"
        choose(stage, "parts", text, axes=part.axes)
        new = s[s.hoist(compute_of(stage).output(0), [*part.axes])]
        made += [*(write_hoisted(program, new) or ()), new]
    return made or None


def _best_part(op: ComputeOp, target: Target) -> Part | None:
    """The part that saves the most cycles, if any is worth a stage."""
    saved = [(_cycles_saved(op, part, target), part) for part in parts_of(op)]
    most, best = max(saved, key=lambda each: each[0], default=(0.0, None))
    if best is None:
        return None
    all_axes = (*op.axis, *op.reduce_axis)
    steps = usual_iterations(all_axes) / target.lanes(op.output(0).dtype)
    least = 0.0 if None in map(extent_of, best.axes) else _LEAST  # a symbolic extent may be large
    return best if most >= max(least, _SHARE * (most + steps)) else None


def _cycles_saved(op: ComputeOp, part: Part, target: Target) -> float:
    """The cycles saved by computing a part once, less than 0 where it takes more."""
    axes = (*op.axis, *op.reduce_axis)
    last = max(axes.index(axis) for axis in part.axes)
    evaluated = usual_iterations(axes[: last + 1])
    size, dtype = prod(map(usual_extent, part.shape)), part.value.dtype
    tensors = [prod(map(usual_extent, each.shape)) for each in (*op.outputs, *op.input_tensors)]
    most = max(target.cache_bytes(2), target.cache_bytes(3) // 2) // dtype.itemsize
    if size > max(*tensors, most):
        return 0.0
    lanes, moved = target.lanes(dtype), _moving(size * dtype.itemsize, target)
    again = _values_of_tiles(op, part, target)
    if again is not None:  # the stored value is read in place of the elements
        apart = _read_apart(op, part) if again else 0
        return part.operations * (again - size / lanes) + apart * size - moved
    if _is_one_by_one(op, part, target):
        return part.operations * size * (1 - 1 / lanes) - size - moved
    if part.operations < _FEWEST:
        return 0.0
    # The stored value is read.
    return (part.operations * (evaluated - size) - evaluated) / lanes - moved


def _is_one_by_one(op: ComputeOp, part: Part, target: Target) -> bool:
    """Whether the loops of an operation compute the values of a part one by one: a part that is the
    same for all groups of a reduction, or a dear one that is the same for all elements of a row of
    one vector, where data choose the rows."""
    if is_grouped(op, target):
        return not any(mentions(axis.var, part.value) for axis in groups_of(op))
    if op.reduce_axis or not op.axis or op.axis[-1] in part.axes or part.operations < _FEWEST:
        return False
    is_short = (extent_of(op.axis[-1]) or inf) <= target.lanes(part.value.dtype)
    return is_short and any(reads_tensors(*load.indices) for load in all_loads(op))


def _values_of_tiles(op: ComputeOp, part: Part, target: Target) -> float | None:
    """The values of a part, in vectors or one by one, that register tiles of a contraction compute;
    None of another part. A tile computes a vector for a few columns once for its rows, and a value
    for a row once for its columns."""
    found = contraction_of(op)
    if found is None or not found.rows or {*op.reduce_axis}.isdisjoint(part.axes):
        return None
    if is_left_plain(found):
        return 0.0
    steps, lanes = usual_iterations((*op.axis, *op.reduce_axis)), target.lanes(op.output(0).dtype)
    if {*found.rows}.isdisjoint(part.axes):
        return steps / _ROWS / lanes
    return None if found.column in part.axes else steps / (_VECTORS * lanes)


def _read_apart(op: ComputeOp, part: Part) -> int:
    """The elements that tiles read one by one for a value of a part, which is computed along its
    own rows otherwise."""
    column, last = op.axis[-1], part.dimensions[-1]
    return sum(
        is_at_digits(load) and is_near_along(op, load, last) and not is_near_along(op, load, column)
        for load in find(ProducerLoad, part.value)
    )


# -- Reductions that share dear terms --


def write_joined(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets one stage compute a reduction together with others that need a dear part of its terms,
    too; returns it. None if there are no such others, or if their loops are shared as they are."""
    s = program.schedule
    mine, place, group = _dear_parts(stage), s.stages.index(stage), [stage]
    if not mine or _may_share_loops(compute_of(stage), program.target, program.strict):
        return None
    for other in s.stages[place + 1 :]:
        op = other.op
        is_kept = other in program.by_hand or other.is_named
        if is_kept or not isinstance(op, ComputeOp) or not can_be_joined(compute_of(stage), op):
            continue
        is_free = all(s.stages.index(s[tensor]) < place for tensor in op.input_tensors)
        if is_free and not mine.isdisjoint(_dear_parts(other)):
            group.append(other)
    group = group[:_MOST_JOINED]
    if len(group) == 1:
        return None
    choose(stage, "parts", "computed together with {others}, which sum parts of the same terms",
           others=group[1:])  # fmt: skip
    made = s.join([compute_of(each).output(0) for each in group])
    return [s[made[0]]]


def _may_share_loops(op: ComputeOp, target: Target, strict: bool) -> bool:
    """Whether a reduction runs along lines or down columns in plain loops (:mod:`shared_loops`),
    and not through windows."""
    if contraction_of(op) is not None or product_of_extents(op.axis) == 1:
        return False
    return not _is_in_windows(op) and not are_short_rows(op, target, strict=strict)


def _dear_parts(stage: Stage) -> set[Hashable]:
    """The dear functions and quotients in the terms of a reduction that change along all of its
    axes, by their values."""
    op = stage.op
    if (
        not isinstance(op, ComputeOp)
        or not isinstance(op.body[0], Reduce)
        or stage.time is not None
    ):
        return set()
    axes = (*op.axis, *op.reduce_axis)
    dear = [
        node
        for node in walk_once(*op.body[0].source)
        if isinstance(node, PrimExpr) and operations_of(node) >= _FEWEST
        if all(mentions(axis.var, node) for axis in long_axes(axes))
    ]
    places = {axis.var: place_of(i, axis.var.dtype) for i, axis in enumerate(axes)}
    return {structural_key(substitute(node, places)) for node in dear}


# -- Products of a tensor with itself --


def write_own_factor(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets a product of a tensor with itself read the columns' factor from a copy, which is
    returned, if an instruction of two factors then takes fewer cycles than half of the results
    would. None for any other stage."""
    op, target = compute_of(stage), program.target
    found = contraction_of(op) if stage.time is None else None
    if found is None or found.a.tensor is not found.b.tensor:
        return None
    if not multiplied_reads(op) or not multiplies_dtypes(found, target):
        return None
    axes = [axis for axis in (*op.axis, *op.reduce_axis) if found.b.reads(axis)]
    made = contraction_of(hoisted(op, axes)[1])
    if made is None or cycles_by_instruction(made, target) is None:
        return None
    cycles = partial(cycles_of_strategy, target=target, strict=program.strict)
    if 2 * cycles(made) > cycles(found):
        return None
    choose(stage, "factors", "a copy of {b} is the factor of the columns: instructions multiply "
           "two tensors", b=found.b.tensor)  # fmt: skip
    s = program.schedule
    return [s[s.hoist(op.output(0), axes)]]


# -- Symmetric results --


def write_mirrored(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets another stage compute half of a contraction whose rows and columns can be exchanged;
    returns it. None where the copy of the other half takes longer, and for any other stage."""
    s, target, op = program.schedule, program.target, compute_of(stage)
    found = contraction_of(op) if stage.time is None else None
    if found is None or not found.rows or not is_symmetric(op, found.rows[-1], found.column):
        return None
    cycles = cycles_in_tiles(found, target, strict=program.strict)
    if cycles is None or block_of_half(reduce_of(op).condition, op.axis) is not None:
        return None
    tile = best_tile(nest_of(found, target), target)
    line = CACHE_LINE // op.output(0).dtype.itemsize
    narrow = lcm(tile.columns, line)
    # Small blocks leave out more of the half, but few tiles fit them.
    sizes = {lcm(tile.rows, narrow), *(narrow * n for n in _NARROW_BLOCKS)}
    half, block = min((_cycles_of_half(found, each, program), each) for each in sorted(sizes))
    size = usual_iterations(op.axis) * op.output(0).dtype.itemsize
    # The half comes, is stored and is read beside the result.
    copied = layout_cycles(size, size, target, in_rows=False) + 3 * _moving(size, target)
    if cycles - half < max(_GAIN * copied, _SHARE * (cycles + copied)):
        return None
    i, j = found.rows[-1], found.column
    choose(stage, "symmetry", "the same if {i} and {j} are exchanged: blocks of {block} on one "
           "side are computed, and mirrored", i=i, j=j, block=block)  # fmt: skip
    return [s[s.mirror(op.output(0), [i, j], block)]]


def _cycles_of_half(whole: Contraction, block: int, program: Program) -> float:
    """The cycles of the half of symmetric results that is computed in square blocks."""
    axes = [whole.rows[-1], whole.column]
    half, target = contraction_of(mirrored(whole.op, axes, block)[0]), program.target
    if half is None:
        return inf
    nest = nest_of(half, target)
    if not all(any(tiles_of(replace(nest, is_packed=way), target)) for way in (False, True)):
        return inf  # no tile divides the block
    cycles = cycles_in_tiles(half, target, strict=program.strict)
    count, rest = divmod(usual_iterations(axes[:1]), block)
    on_diagonal = count * block * block + rest * rest
    return inf if cycles is None else cycles * (1 + on_diagonal / usual_iterations(axes)) / 2


# -- The order of sums --


def write_factor_order(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets other stages compute inner sums of a stage, in the order that takes the fewest cycles;
    returns them. None for a stage that is best as it is, or whose sums have an order (`strict`)."""
    if program.strict or stage.time is not None:
        return None
    s, groups = program.schedule, _groups_of(compute_of(stage), program.target)
    made = list[Stage]()
    for group in groups:
        text = "the sums over {axes} are done first, of the factors that change along them: that "
        text += "takes fewer operations"
        choose(stage, "factors", text, axes=group)
        made.append(s[s.factor_out(compute_of(stage).output(0), group)])
    for each in (*made, stage):
        made += _write_digits_of_window(program, each)
    return made or None


def _write_digits_of_window(program: Program, stage: Stage) -> list[Stage]:
    """Lets other stages reduce parts of a window's axis, which belong to several windows; returns
    them. None are made where the parts don't save enough steps."""
    s, found = program.schedule, _digits_of_window(compute_of(stage), program.target)
    if found is None:
        return []
    choose(stage, "factors", "parts of the window belong to several windows, and are computed "
           "once: {size} steps of {axis}", size=max(found),
           axis=compute_of(stage).reduce_axis[found.index(max(found))])  # fmt: skip
    stage.transform_reduction(in_parts(found))
    stage.simplify()
    made = list[Stage]()
    for group in _groups_of_windows(compute_of(stage), program.target):
        made.append(s[s.factor_out(compute_of(stage).output(0), group)])
    for each in (*made, stage):
        made += _write_digits_of_window(program, each)
    return made


def _digits_of_window(op: ComputeOp, target: Target) -> list[int] | None:
    """The steps of a part of each reduction axis, 0 for an axis that stays whole, where parts of
    a window's axis are worth a stage of their own; None if they aren't."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or not _is_in_windows(op) or not is_separable(op):
        return None
    if 0 in map(extent_of, (*op.axis, *op.reduce_axis)) or not is_commutative(reduce.combiner):
        return None
    if any(e.const_int(domain_of(axis).min) != 0 for axis in op.reduce_axis):
        return None
    for i, axis in enumerate(op.reduce_axis):
        steps = extent_of(axis) or 0
        parts = [n for n in range(2, steps // 2 + 1) if steps % n == 0]
        part = min(parts, key=lambda n: n + steps // n, default=0)
        sizes = [part if k == i else 0 for k in range(len(op.reduce_axis))]
        if part == 0:
            continue
        layout = layout_of(op.name, op.reduce_axis, in_parts(sizes))
        if _groups_of_windows(simplified(in_steps(op, layout)), target):
            return sizes
    return None


def write_reassociated(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets a contraction of several rows multiply factors first that change along the same axes: a
    tile computes their product once for several results, or another stage does ahead. None for any
    other stage; and where products are rounded as they are written (`strict`)."""
    found = contraction_of(stage.op) if stage.time is None else None
    if program.strict or found is None or product_of_extents(found.rows) == 1:
        return None
    if reassociated(found.op) is None:
        return None
    text = "factors that change along the same axes are multiplied first"
    choose(stage, "factors", text)
    stage.reassociate()
    return []


def _groups_of(op: ComputeOp, target: Target) -> list[list[IterVar]]:
    """The axes of the sums that are done first, group after group."""
    if not 0 < len(op.reduce_axis) <= _MOST or 0 in map(extent_of, (*op.axis, *op.reduce_axis)):
        return []
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or not is_separable(op):
        return []
    if windows := _groups_of_windows(op, target):
        return windows
    times = operator_of(reduce)
    on_data, on_axes = list[PrimExpr](), list[PrimExpr]()
    for each in conjuncts(reduce.condition):
        (on_data if reads_tensors(each) else on_axes).append(each)
    if times is not None:
        factors = (each for each, _ in factors_in(reduce.source[0], times))
        groups = _best_groups(op, factors, on_data, on_axes, target)
        if not groups and _divides_terms(op, target):
            groups = (frozenset(op.reduce_axis),)
    elif on_data and contraction_of(op) is not None:
        groups = (frozenset(op.reduce_axis),)
    else:
        return []
    listed = [[axis for axis in op.reduce_axis if axis in group] for group in groups]
    try:
        for group in listed:
            _, op = distributed(op, group)
    except CompileError:  # results would be others
        return []
    return listed


def _divides_terms(op: ComputeOp, target: Target) -> bool:
    """Whether all terms of a sum are divided by the same number, which takes longer than to divide
    the sum: by the number of terms, as a mean is."""
    factors = factors_in(reduce_of(op).source[0], e.Mul)
    own = frozenset(op.reduce_axis)
    is_divided = any(by and not _axes_of(op, each) & own for each, by in factors)
    terms = usual_iterations((*op.axis, *op.reduce_axis)) / target.lanes(op.body[0].dtype)
    return is_divided and contraction_of(op) is None and terms * _FEWEST >= _LEAST


def _groups_of_windows(op: ComputeOp, target: Target) -> list[list[IterVar]]:
    """The axes of a window, one after the other, whose inner sums belong to several windows."""
    most = _most_kept(op, target)
    made = list[list[IterVar]]()
    while len(op.reduce_axis) > 1 and _is_in_windows(op):
        least, best = usual_iterations((*op.axis, *op.reduce_axis)) / _GAIN, None
        for axis in op.reduce_axis:
            try:
                sums, rest = distributed(op, [axis])
            except CompileError:  # results would be others
                continue
            steps = _steps_of_moving(sums, target)
            steps += sum(usual_iterations((*each.axis, *each.reduce_axis)) for each in (sums, rest))
            if steps < least and usual_iterations(sums.axis) <= most:
                least, best = steps, ([axis], rest)
        if best is None:
            break
        made.append(best[0])
        op = best[1]
    return made


def _steps_of_moving(sums: ComputeOp, target: Target) -> float:
    """The steps of windows in whose time the inner sums are stored and read: from the cache that
    holds them beside the elements and the results, unless they are computed row by row."""
    count, dtype = usual_iterations(sums.axis), sums.body[0].dtype
    if len(long_axes(sums.axis)) > 1:
        return 2.0 * count
    size = count * dtype.itemsize
    cycles = transfer_cycles(2 * size, 3 * size, target)
    return max(2.0 * count, cycles * target.lanes(dtype) / _CYCLES_OF_STEP)


def _most_kept(op: ComputeOp, target: Target) -> int:
    """The elements of inner sums that may be kept between two steps: as many as the largest tensor
    of the program or the L2 cache has."""
    tensors = (prod(map(usual_extent, each.shape)) for each in (*op.outputs, *op.input_tensors))
    return max(*tensors, target.cache_bytes(2) // op.body[0].dtype.itemsize)


def _is_in_windows(op: ComputeOp) -> bool:
    """Whether a reduction reads windows."""
    return reads_windows(op, *(each.load for each in factors_of(op)))


def _axes_of(op: ComputeOp, node: PrimExpr) -> _Axes:
    used = {*walk_once(node)}
    return frozenset(axis for axis in (*op.axis, *op.reduce_axis) if axis.var in used)


def _best_groups(
    op: ComputeOp,
    factors: Iterable[PrimExpr],
    on_data: Iterable[PrimExpr],
    on_axes: Iterable[PrimExpr],
    target: Target,
) -> _Groups:
    """The groups of axes over which a product of factors is summed, one after the other, in the
    order that takes the fewest cycles. A condition on data is an operation for each term, as a
    factor is; conditions on axes cut loops shorter."""
    data, dtype = frozenset(op.axis), op.body[0].dtype
    all_factors = [_axes_of(op, each) for each in (*factors, *on_data)]
    conditions = [_axes_of(op, each) for each in on_axes]
    if len(all_factors) < 2:
        return ()
    largest = _most_kept(op, target)

    def cycles(axes: _Axes, factors: Sequence[_Axes]) -> float:
        """The cycles of the products of some factors, and of their sum: while the factors come from
        the caches that hold them, or no less than the arithmetic."""
        arithmetic = usual_iterations(axes) * max(1, len(factors) - 1) / target.lanes(dtype)
        sizes = [usual_iterations(each) * dtype.itemsize for each in factors]
        return max(arithmetic, sum(transfer_cycles(n, n, target) for n in sizes))

    known = dict[_Axes, tuple[float, _Groups]]()

    def best(left: _Axes, factors: Sequence[_Axes]) -> tuple[float, _Groups]:
        """The cycles of the sums over the axes `left`, and their groups."""
        if left in known:
            return known[left]
        found = cycles(data | left, factors), _Groups()
        for group in _next_groups(op, left) if left else ():
            inside = [each for each in factors if each & group]
            outside = [each for each in factors if not each & group]
            if not inside or not outside or not has_terms(op, group):
                continue
            kept = frozenset(chain(*inside, *(each for each in conditions if each & group))) - group
            # Elements of factors that are used for several sums stay in registers.
            is_once = group == left and not any(kept - each for each in inside)
            size = usual_iterations(kept)
            if size > largest or (is_once and kept >= data):
                continue
            rest, groups = best(left - group, [*outside, kept])
            here = cycles(kept | group, inside)
            # The sums of a tile pass to the stage that reads them in registers.
            moved = 0.0 if group == left else _moving(size * dtype.itemsize, target)
            if (here + moved + rest) * _GAIN < found[0]:
                found = here + moved + rest, (group, *groups)
        known[left] = found
        return found

    return best(frozenset(op.reduce_axis), all_factors)[1]


def _next_groups(op: ComputeOp, left: _Axes) -> Iterator[_Axes]:
    """The axes of those `left` that may be done next, the smallest groups first."""
    axes, most = [axis for axis in op.reduce_axis if axis in left], len(left)
    sizes = range(1, most + 1) if len(op.reduce_axis) <= _TOGETHER else {1, most}
    return (frozenset(group) for size in sizes for group in combinations(axes, size))


def _moving(size: int, target: Target) -> float:
    """The cycles in which `size` bytes are stored and read again, at least in the L2 cache."""
    return transfer_cycles(2 * size, max(size, target.cache_bytes(1) + 1), target)
