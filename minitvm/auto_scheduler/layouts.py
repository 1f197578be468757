"""Contractions whose axes lie in another order than those of products: they become products.

Each axis of a contraction of two factors is read by both of them (*batches*), by one alone (rows,
or columns), or is summed (steps). In a product, the axes of a kind lie together::

    C[batch, rows, columns] = sum over steps of A[batch, rows, steps] * B[batch, steps, columns]

In other orders, neighbours in the result lie apart in the factors, or too few are neighbours. Then
the result is computed in such an order, and copied; factors are copied; and the axes of a kind,
steps too, are flattened to one; where that takes fewer cycles, the copies counted::

    Y.global[d, b, c] = Y[b, d, c]                         # left out where Y lies well
    Y.global.global[d, b * 100 + c] = Y.global[d, b, c]    # a view, which takes no time
    T[a, i] = sum over d of X[a, d] * Y.global.global[d, i]
    Z[b, a, c] = T[a, b * 100 + c]                         # a view where Z lies so

Where no axis but the batches is long, they are the columns: each lane computes a product of its
own.

Instructions for narrow numbers read rows of steps that lie side by side. For them, windows of an
image are copied to such rows, and channels that are read by groups get an axis for the groups, by
views.

P. Springer and P. Bientinesi, "Design of a High-Performance GEMM-like Tensor-Tensor
Multiplication", ACM TOMS 44(3), 2018, section 2, describe the transposition of contractions into
products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from math import inf, prod
from typing import Any, TypeAlias, final

from minitvm.arith.accesses import step_of
from minitvm.arith.prover import Prover
from minitvm.auto_scheduler.attempts import Program
from minitvm.auto_scheduler.choice import choose
from minitvm.auto_scheduler.contraction import (
    NEAR,
    Contraction,
    Factor,
    all_loads,
    contraction_of,
    distances_of,
    extent_of,
    factors_of,
    is_in_order,
    is_uneven,
    long_axes,
    running_axis,
)
from minitvm.auto_scheduler.convolutions import (
    SURE,
    group_sizes,
    is_copied_by_its_axes,
    sums_over_images,
)
from minitvm.auto_scheduler.cost import (
    copy_cycles,
    copy_cycles_apart,
    copy_cycles_of_lines,
    layout_cycles,
    transfer_cycles,
    usual_bytes_of,
    usual_size,
)
from minitvm.auto_scheduler.instructions import cycles_by_instruction, multiplies_dtypes
from minitvm.auto_scheduler.loops import compute_of, divided, lie_along, lie_in_order
from minitvm.auto_scheduler.packing import tell_apart
from minitvm.auto_scheduler.some_sizes import may_vary
from minitvm.auto_scheduler.strategies import CONVOLUTION, TILES, cycles_of_strategy, strategy_for
from minitvm.auto_scheduler.sums import Sums, epilogue_of, sums_of
from minitvm.auto_scheduler.tiled import cycles_ahead
from minitvm.auto_scheduler.tiles import ALIKE, on_one_core
from minitvm.auto_scheduler.ways import cycles_of_reduction
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.guarded_reads import all_reads, reads_of
from minitvm.te.schedules.rewrite_operations import computed, places_of, reading_elsewhere
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.schedules.stage import Stage
from minitvm.te.schedules.views import place_in_memory
from minitvm.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor, domain_of, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var, const_int
from minitvm.tir.functor import free_vars, substitute
from minitvm.tir.structural_equal import structural_equal

_Dimensions: TypeAlias = tuple[tuple[int, ...], ...]
"""The dimensions of a tensor, outermost first: the places of the axes that are flattened to each,
among the data axes and the reduction axes of a contraction."""
_Written: TypeAlias = tuple[list[Stage], list[Stage]]
"""The stages of the copies of factors; and those of a contraction and of its epilogue."""
_AGAIN = 4  # times that an element is read for which a copy pays
_WIDE = 4  # vectors of a row of results that hardly leave a lane idle
_MOST = 32  # layouts that are costed, those with the least bounds
_LATE = 1.3  # times the cycles, where the model takes loads to come in time that nobody requests
_SURE = 1.2  # times the cycles of copies, where the model is least exact


@final
@record()
class Layout:
    """The order of the result of a contraction, that of the steps of its sums, and those of copies
    of its factors (None: it isn't copied)."""

    result: _Dimensions
    steps: _Dimensions
    copies: tuple[_Dimensions | None, ...]


def write_layouts(program: Program, stage: Stage) -> list[Stage] | None:
    """Lets a contraction be computed in another order, where that takes fewer cycles, and another
    reduction in the order in which its operand lies. Returns the stages of the copied factors, of
    the reduction and, if it has the same order, of its epilogue. None of them is scheduled yet. A
    result that others need as it is becomes a copy."""
    stays = not program.is_free(stage) or bool(stage.whole_readers)
    made = _written(program, stage, stays=stays) if stage.time is None else None
    copied, computed = made or ([], [])
    program.copies.update(copied)
    return [*copied, *computed] or None


def _written(program: Program, stage: Stage, *, stays: bool) -> _Written | None:
    s, target, contraction = program.schedule, program.target, contraction_of(stage.op)
    if any(each in program.prepacked for each in stage.op.input_tensors) and (
        contraction is None or not multiplies_dtypes(contraction, target)
    ):
        return _write_ahead(program, stage, stays=stays)
    if contraction is None:
        in_order = _write_in_order(s, stage, target, stays=stays)
        return None if in_order is None else ([], in_order)
    is_grouped = len(stage.op.outputs) == 1 and any(group_sizes(contraction))
    if is_grouped and multiplies_dtypes(contraction, target):
        trial = s.copy()
        made = _write_in_groups(replace(program, schedule=trial), trial[stage.op], stays)
        _, (computed, *_) = made
        found = contraction_of(computed.op)
        if found is not None and cycles_by_instruction(found, target) is not None:
            return _write_in_groups(program, stage, stays)
    return _write_best(program, stage, stays=stays)


def _write_ahead(program: Program, stage: Stage, *, stays: bool) -> _Written | None:
    """Lets tiles that would read panels of a prepacked factor read it as it lies, or a copy in
    another order, where that takes fewer cycles: few rows read each panel once."""
    sums = sums_of(program, stage, program.kept, program.by_hand)
    if sums is None or sums.ahead is not sums.contraction.b.tensor:
        return None
    op = sums.contraction.op
    if None in map(extent_of, (*op.axis, *op.reduce_axis)) or strategy_for(sums).name != TILES:
        return None
    return _write_best(program, stage, stays=stays, ahead=sums.ahead)


def _write_in_groups(program: Program, stage: Stage, stays: bool) -> _Written:
    """Lets channels that are read by groups have an axis for the groups, along which there is a
    product for each, and writes the layout of these products."""
    s = program.schedule
    contraction = contraction_of(stage.op)
    assert contraction is not None
    groups = group_sizes(contraction)
    choose(stage, "layout", "{groups} groups, each a product of its own",
           groups=prod((extent_of(x) or n) // n for x, n
           in zip(contraction.op.axis, groups, strict=True) if n))  # fmt: skip
    last = stage if stays else epilogue_of(s, stage, program.by_hand)
    total, epilogue = stage.op.output(0), list[Stage]()
    if stays:
        total = s.cache_write(total, "global")
    if last is not stage:
        epilogue = [s[s.cache_write(last.op.output(0), "global")]]
    for each in (s[total], *epilogue):
        each.transform_layout(divided(groups))
        each.simplify()
    if stays or epilogue:
        last.compute_view()
    for tensor in dict.fromkeys(each.tensor for each in contraction.factors):
        _split_joined(s, s[total], tensor)
    return _write_best(program, s[total], stays=False) or ([], [s[total], *epilogue])


def _split_joined(s: Schedule, stage: Stage, tensor: Tensor) -> None:
    """Lets a contraction read a view of a tensor that has a dimension for each of two axes, where
    it reads the tensor's dimension at places that both of them give."""
    op = compute_of(stage)
    (load, *_) = reads_of(op, tensor)
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    inner = [_inner_of(index, extent, axes) for index, extent in
             zip(load.indices, tensor.shape, strict=True)]  # fmt: skip
    if any(inner):
        view = s[s.cache_read(tensor, "global", [op])]
        view.transform_layout(divided(inner))
        view.compute_view()
        stage.simplify()


def _inner_of(index: PrimExpr, extent: PrimExpr, axes: Mapping[Var, IterVar]) -> int:
    """The extent of the inner one of two axes that give the places along a dimension; 0 if they
    don't give all of them."""
    form = Prover().affine(index)
    terms = [(n, axes.get(x)) for x, n in form.terms.items() if isinstance(x, Var)]
    found = sorted((n, extent_of(axis)) for n, axis in terms if axis is not None)
    match found:
        case [(1, int() as size), (weight, int() as count)] if weight == size:
            is_whole = const_int(extent) == size * count and const_int(form.constant) in (0, None)
            return size if is_whole and len(form.terms) == 2 else 0
    return 0


def _write_best(
    program: Program, stage: Stage, *, stays: bool, ahead: Tensor | None = None
) -> _Written | None:
    """Lets a contraction be computed in the layout that takes the fewest cycles; None if that is
    its own. `ahead`: see :func:`best_layout`."""
    s = program.schedule
    contraction = contraction_of(stage.op)
    if contraction is None:
        return None
    layout = best_layout(contraction, program.target, strict=program.strict, ahead=ahead)
    if layout is None:
        return None
    if ahead is not None:
        program.prepacked.discard(ahead)
    if layout == _itself(contraction):
        choose(stage, "layout", "{ahead} stays as it lies: that takes fewer cycles than panels",
               ahead=ahead)  # fmt: skip
        return None
    axes = [axis.var.name for axis in _axes_of(contraction)]
    tensors = [(stage.op.output(0), layout.result)]
    tensors += [
        (each.tensor, dims)
        for each, dims in zip(contraction.factors, layout.copies, strict=True)
        if dims is not None
    ]
    orders = [
        f"{tensor.name}[{', '.join(' '.join(axes[i] for i in dim) for dim in dims)}]"
        for tensor, dims in tensors
    ]
    if layout.steps != _itself(contraction).steps:
        orders[0] += " over " + ", ".join(" ".join(axes[i] for i in dim) for dim in layout.steps)
    choose(stage, "layout", "computed as {orders}: copies counted, that takes fewer cycles",
           orders=" and ".join(orders))  # fmt: skip
    last = stage if stays else epilogue_of(s, stage, program.by_hand)
    made, computed = _write(s, contraction, layout, stays)
    for copy in made:
        if ahead in copy.op.input_tensors and not copy.is_view:
            tell_apart(copy)
            copy.compute_ahead()
    if last is not computed and layout.result != _itself(contraction).result and not stays:
        return made, [computed, *_write_epilogue(s, contraction, layout, last)]
    return made, [computed]


def _write_epilogue(
    s: Schedule, contraction: Contraction, layout: Layout, last: Stage
) -> list[Stage]:
    """Lets an epilogue be computed in the order of the sums, which it then takes from registers;
    returns its stage. None where the copy into its own order would take longer than that of the
    sums."""
    result = last.op.output(0)
    is_view = _is_view(contraction, None, layout.result)
    if not is_view and result.dtype.itemsize >= contraction.op.output(0).dtype.itemsize:
        return []
    axes = _axes_of(contraction)
    inner = s[s.cache_write(result, "global")]
    inner.transform_layout(_flattened(axes, range(len(contraction.op.axis)), layout.result))
    inner.simplify()
    if is_view:
        last.compute_view()
    return [inner]


def _write_in_order(
    s: Schedule, stage: Stage, target: Target, *, stays: bool
) -> list[Stage] | None:
    """Lets the results of a reduction that aren't neighbours, but whose terms are, be computed in
    the order of the terms; and those of an elementwise stage with short rows in the order of its
    largest operand, where other operands keep rows from being read as one."""
    op = compute_of(stage)
    if len(op.outputs) > 1 or stage.time is not None:
        return None
    order = _order_of(op) if op.reduce_axis else _order_of_blocks(op, target)
    data = [axis for axis in order if axis not in op.reduce_axis]
    long = long_axes(op.axis)
    if not data or order[-1] is not data[-1] or data[-1] is long[-1]:
        return None
    choose(stage, "layout", "computed along {axis}, where its terms are neighbours", axis=order[-1])
    total = op.output(0)
    if stays:
        total = s.cache_write(total, "global")
    places = [op.axis.index(axis) for axis in data]
    places = [*(i for i in range(len(op.axis)) if i not in places), *places]
    lie_in_order(s[total], places)
    return [s[total]]


def _order_of_blocks(op: ComputeOp, target: Target) -> list[IterVar]:
    """The order in which the largest operand of an elementwise stage lies, if short rows of the
    result go on in it, and another operand reads a part of their axes; otherwise none."""
    long = long_axes(op.axis)
    known = bool(long) and None not in map(extent_of, long) and 0 not in map(extent_of, long)
    reads = [distances_of(load, op) for load in all_loads(op)] if known else []
    whole = [each for each in reads if all(axis.var in each for axis in long)]
    if not whole:
        return []
    order = sorted(long, key=lambda axis: -whole[0][axis.var])
    row = _line(long, order)
    lanes = target.lanes(op.output(0).dtype)
    is_short = usual_size(row[-1:]) < lanes <= usual_size(row)
    is_cut = any(0 < sum(axis.var in each for axis in row) < len(row) for each in reads)
    return order if is_short and is_cut else []


def write_operands(program: Program, stage: Stage, *, in_step: bool = False) -> list[Stage] | None:
    """Copies the operands of a stage that lie across the order in which it reads them several
    times; returns the stages of the copies. Of contractions, only those that run along columns with
    factors of their own: others have a layout, or pack their factors. `in_step`: the outermost loop
    is the time of a scan. No other loop is outside of it, and elementwise stages can't be computed
    in blocks along it."""
    s, op, made = program.schedule, compute_of(stage), list[Stage]()
    axes, contraction = _order_of(op), contraction_of(op)
    if not axes or stage.time is not None or (in_step and op.reduce_axis):
        return None
    if contraction is not None:
        has_own = all(each.reads(contraction.column) for each in contraction.factors)
        if axes[-1] is not contraction.column or not has_own:
            return None
    order = {axis.var: place for place, axis in enumerate(axes)}
    line, count = axes[-1].var, usual_size(axes)
    for tensor, (load, *others) in all_reads(op).items():
        innermost, *more = (_innermost(each, order) for each in (load, *others))
        ends = [i for i, index in enumerate(load.indices) if index is line]
        is_plain = len(ends) == innermost.count(len(axes) - 1) == 1
        if not is_plain or any(each != innermost for each in more):
            continue
        again = count // max(1, usual_bytes_of(tensor) // tensor.dtype.itemsize)
        distance = distances_of(load, op)
        apart = distance.get(line, 0)
        # A line of several axes that lies otherwise is none; elementwise stages read it in blocks.
        lies_across = apart > (1 if op.reduce_axis else NEAR)
        if in_step:  # each step would read one element of each line
            is_far = 0 < distance.get(op.axis[0].var, 0) < apart
        else:
            is_far = apart * tensor.dtype.itemsize >= CACHE_LINE
            is_far = is_far and bool(op.reduce_axis) and _reads_each_element(load)
        places = sorted(range(len(innermost)), key=innermost.__getitem__)
        if lies_across and (again >= _AGAIN or is_far) and places != sorted(places):
            copy = s[s.cache_read(tensor, "global", [op])]
            lie_in_order(copy, places)
            choose(stage, "layout", "{tensor} is copied in the order in which it is read; reads of "
                   "an element: {again}", tensor=tensor, again=again)  # fmt: skip
            made.append(copy)
            op = compute_of(stage)
    program.kept.update(made)
    return made or None


def _innermost(load: ProducerLoad, order: Mapping[Var, int]) -> list[int]:
    """For each dimension of a tensor the place of the innermost loop along which it is read; -1
    where there is none."""
    used = ([order[x] for x in free_vars(index) if x in order] for index in load.indices)
    return [max(each, default=-1) for each in used]


def _reads_each_element(load: ProducerLoad) -> bool:
    """Whether each dimension of several elements is read at an axis of its own."""
    axes = [index for index in load.indices if isinstance(index, Var)]
    single = sum(const_int(extent) == 1 for extent in load.producer.shape)
    return len({*axes}) == len(axes) == len(load.indices) - single


def _order_of(op: ComputeOp) -> list[IterVar]:
    """The axes, without those of one element, in the order in which their loops run: that of the
    result; of a reduction, the order in which its largest operand lies, data axes last among those
    along which it is read at near places. None of an operation whose loops have another order."""
    axes = long_axes((*op.axis, *op.reduce_axis))
    if 0 in map(extent_of, axes) or running_axis(op) is not None or is_uneven(op):
        return []
    if op.reduce_axis:
        read = [each for each in factors_of(op) if all(map(each.reads, axes))]
        if not read:
            return []
        near = CACHE_LINE // 2 // read[0].tensor.dtype.itemsize

        def place(axis: IterVar) -> tuple[int, bool, int]:
            distance = read[0].along(axis)
            steps = [step_of(index, axis.var) for index in read[0].load.indices]
            return -max(distance, near), axis in op.axis and None not in steps, -distance

        axes = sorted(axes, key=place)
    return axes


def _write(
    s: Schedule, contraction: Contraction, layout: Layout, stays: bool
) -> tuple[list[Stage], Stage]:
    """The stages of the copied factors, and that of the contraction. Copies in the order in which
    the memory lies are views."""
    op, axes = contraction.op, _axes_of(contraction)
    total, made = op.output(0), list[Stage]()
    changes = layout.result != _itself(contraction).result
    if changes and stays:
        total = s.cache_write(total, "global")
    for factor, dims in zip(contraction.factors, layout.copies, strict=True):
        if dims is None:
            continue
        source, places = factor.tensor, _places(contraction, factor)
        if not _has_axes(contraction, factor):
            if (last := _dimension_of_lines(contraction, factor, dims)) is not None:
                source = s.cache_read(source, "global", [total])
                lie_along(s[source], last)
                made.append(s[source])
            copy = s[s.cache_access(source, "global", s[total].op)]
            copy.transform_layout(_flattened(axes, places, dims))
            copy.simplify()
            made.append(copy)
            continue
        if not _is_view(contraction, factor, dims):
            # Rows of a copy that isn't flattened stay rows; flattening it takes no time.
            source = s.cache_read(source, "global", [total])
            order = tuple((i,) for dim in dims for i in dim)
            s[source].transform_layout(_flattened(axes, places, order))
            made.append(s[source])
            known = [i for (i,) in order if i in places]
            places = [*(i for i in places if i is None), *known]
        if any(len(dim) > 1 for dim in dims):
            view = s[s.cache_read(source, "global", [total])]
            view.transform_layout(_flattened(axes, places, dims))
            made.append(view.compute_view())
    computed = s[total]
    if layout.steps != _itself(contraction).steps:
        steps = range(len(op.axis), len(axes))
        computed.transform_reduction(_flattened(axes, steps, layout.steps))
        computed.simplify()
    if changes:
        computed.transform_layout(_flattened(axes, range(len(op.axis)), layout.result))
        computed.simplify()
        if stays and _is_view(contraction, None, layout.result):
            s[op.output(0)].compute_view()
    return made, computed


def _flattened(
    axes: Sequence[IterVar], places: Sequence[int | None], dims: _Dimensions
) -> Callable[..., list[Any]]:
    """The map from the indices of a tensor, whose dimensions are the axes at `places`, to those of
    its layout; dimensions of one element, at no place, stay the first ones."""

    def layout(*indices: Any) -> list[Any]:
        at = dict(zip(places, indices, strict=True))
        single = [index for i, index in zip(places, indices, strict=True) if i is None]
        return [
            *single,
            *(
                place_in_memory([at[i] for i in dim], [extent_of(axes[i]) or 1 for i in dim])
                for dim in ([i for i in dim if i in at] for dim in dims)
                if dim
            ),
        ]

    return layout


def _places(contraction: Contraction, factor: Factor) -> list[int | None]:
    """The axis of each dimension of a factor, among the data axes and the reduction axes; None for
    a dimension of one element. Of a factor that is read through windows, those of a copy that has
    an element for each iteration."""
    if not _has_axes(contraction, factor):
        return [i for i, axis in enumerate(_axes_of(contraction)) if factor.reads(axis)]
    at = {axis.var: i for i, axis in enumerate(_axes_of(contraction))}
    return [at[index] if isinstance(index, Var) else None for index in factor.load.indices]


def _has_axes(contraction: Contraction, factor: Factor) -> bool:
    """Whether each dimension of a factor is an axis of its own, or has one element."""
    found = {axis.var for axis in _axes_of(contraction)}
    indices = [index for index in factor.load.indices if const_int(index) is None]
    return len({*indices}) == len(indices) and found.issuperset(indices)


def _is_read_whole(contraction: Contraction, factor: Factor) -> bool:
    """Whether each dimension of a factor is as long as its axis, or a copy has other dimensions."""
    axes, places = _axes_of(contraction), _places(contraction, factor)
    return not _has_axes(contraction, factor) or all(
        i is None or structural_equal(domain_of(axes[i]).extent, extent)
        for i, extent in zip(places, factor.tensor.shape, strict=True)
    )


def _can_be_copied(contraction: Contraction, factor: Factor) -> bool:
    """Whether a factor can be copied in another order: its dimensions are axes, or its numbers are
    narrow, so that instructions may multiply a copy whose dimensions are axes. Two elements of one
    tensor have no copies of their own."""
    if sum(each.tensor is factor.tensor for each in contraction.factors) > 1:
        return False
    is_narrow = factor.tensor.dtype.itemsize < contraction.op.output(0).dtype.itemsize
    return _has_axes(contraction, factor) or (
        is_narrow and is_copied_by_its_axes(contraction, factor)
    )


def _dimension_of_lines(contraction: Contraction, factor: Factor, dims: _Dimensions) -> int | None:
    """The dimension of an image along which the lines of a copy by axes lie, if neighbours in it
    lie apart in the image, so that the image is copied in another order first."""
    axes = _axes_of(contraction)
    if _has_axes(contraction, factor):
        return None
    *_, line = long_axes(axes[i] for dim in dims for i in dim)
    if factor.along(line) <= NEAR:
        return None
    return next((i for i, index in enumerate(factor.load.indices) if index is line.var), None)


def _axes_of(contraction: Contraction) -> list[IterVar]:
    return [*contraction.op.axis, *contraction.op.reduce_axis]


def _is_view(contraction: Contraction, factor: Factor | None, dims: _Dimensions) -> bool:
    """Whether the dimensions of a factor, or of the result, lie as its axes do in memory."""
    if factor is not None and not _has_axes(contraction, factor):
        return False
    axes = _axes_of(contraction)
    own = range(len(contraction.op.axis)) if factor is None else _places(contraction, factor)
    order = [i for i in own if i is not None and extent_of(axes[i]) != 1]
    return order == [i for dim in dims for i in dim if extent_of(axes[i]) != 1]


def _itself(contraction: Contraction) -> Layout:
    """The layout that a contraction has."""
    places: _Dimensions = tuple((i,) for i, _ in enumerate(_axes_of(contraction)))
    first, copies = len(contraction.op.axis), (None,) * len(contraction.factors)
    return Layout(places[:first], places[first:], copies)


# -- The choice --


def best_layout(
    contraction: Contraction, target: Target, *, strict: bool = False, ahead: Tensor | None = None
) -> Layout | None:
    """The layout in which a contraction takes the fewest cycles; None if it is its own. `strict`:
    floats are summed in order. `ahead`: the columns' factor, if it is copied ahead of the call.
    None is returned then if panels of it take the fewest cycles.

    >>> from minitvm import te
    >>> A, B = te.placeholder((64, 512, 100), name="A"), te.placeholder((64,), name="B")
    >>> k = te.reduce_axis((0, 64), name="k")
    >>> C = te.compute((100, 512), lambda i, j: te.sum(A[k, j, i] * B[k], axis=k), name="C")
    >>> best_layout(contraction_of(C.op), Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver3"))
    Layout(result=((1, 0),), steps=((2,),), copies=(((2,), (1, 0)), None))
    """
    target = on_one_core(target)
    if ahead is None and (not _may_change(contraction, target) or _is_product(contraction, target)):
        return None
    in_order = is_in_order(contraction.op, strict)

    def cycles_by(each: Contraction) -> float:
        return cycles_of_strategy(each, target=target, strict=strict) + _cycles_of_others(each)

    def form_of(each: Contraction) -> str:
        return strategy_for(Sums(each, target, strict)).name

    found, best = None, cycles_by(contraction)
    if ahead is not None:
        in_panels = cycles_ahead(contraction, target)
        found, best = (_itself(contraction), best) if best < in_panels else (None, in_panels)
        if not _may_change(contraction, target):
            return found
    for least, layout in _ways(contraction, target, in_order=in_order, ahead=ahead)[:_MOST]:
        if least >= best:
            break
        op = _in_layout(contraction, layout)
        made = contraction_of(op)
        if _copies_windows(contraction, layout):  # which other forms read as they lie
            cycles = inf
            if made is not None and not in_order:
                cycles = cycles_by_instruction(made, target) or inf
        else:
            cycles = cycles_of_reduction(op, target) if made is None else cycles_by(made)
        if made is not None and _reads_in_place(contraction, layout) and form_of(made) == TILES:
            cycles *= _margin_in_line(form_of(contraction), target)
        elif made is not None and _moves_others(contraction, layout, ahead):
            cycles *= ALIKE
        cycles += _copying(contraction, layout, target, ahead)
        best, found = (cycles, layout) if cycles < best else (best, found)
    return found


def _moves_others(contraction: Contraction, layout: Layout, ahead: Tensor | None) -> bool:
    """Whether a layout changes more than the order of the factor that is copied `ahead`."""
    itself = _itself(contraction)
    if ahead is None or (layout.result, layout.steps) != (itself.result, itself.steps):
        return True
    pairs = zip(contraction.factors, layout.copies, strict=True)
    return any(dims is not None and each.tensor is not ahead for each, dims in pairs)


def _margin_in_line(form: str, target: Target) -> float:
    """The factor in cycles with which columns along one axis are compared with those of a form
    along several. Only tiles of matrices request what comes from the L2 cache and beyond it, where
    a CPU waits; where it doesn't, the model is near enough."""
    if target.processor.l2_latency and form in (CONVOLUTION, TILES):
        return 1 / _LATE
    return SURE if form == CONVOLUTION else ALIKE


def _cycles_of_others(contraction: Contraction) -> float:
    """The cycles in which elements of further factors are read whose neighbours along the columns
    lie apart: one by one, in each step that reads others."""
    a, b, op = contraction.a, contraction.b, contraction.op
    total = 0.0
    for factor in contraction.factors:
        if not (factor is a or factor is b or factor.along(contraction.column) in (0, 1)):
            axes = filter(factor.reads, (*op.axis, *op.reduce_axis))
            total += copy_cycles_apart(usual_size(axes))
    return total


def _ways(
    contraction: Contraction, target: Target, *, in_order: bool, ahead: Tensor | None
) -> list[tuple[float, Layout]]:
    """The layouts to choose from with their bounds, the least bound first. Of layouts with the same
    inner dimensions only the one with the least bound is kept: outer loops make little difference.
    Of equal ones the first counts, in every process."""
    found = dict[object, tuple[float, Layout]]()
    itself = _itself(contraction)
    for layout in dict.fromkeys(_layouts(contraction, in_order=in_order)):
        if layout == itself:
            continue
        copied = tuple(dims and dims[-2:] for dims in layout.copies)
        inner = layout.result[-2:], layout.steps, copied
        least = _least(contraction, layout, target, ahead)
        if inner not in found or least < found[inner][0]:
            found[inner] = least, layout
    return sorted(found.values(), key=lambda way: way[0])


def _least(contraction: Contraction, layout: Layout, target: Target, ahead: Tensor | None) -> float:
    """A lower bound of the cycles in a layout: those of copies, and of arithmetic in vectors along
    the columns. Arithmetic of narrow numbers isn't counted: an instruction may compute many
    products."""
    op, axes = contraction.op, _axes_of(contraction)
    if contraction.b.tensor.dtype.itemsize < op.output(0).dtype.itemsize:
        return _copying(contraction, layout, target, ahead)
    lanes = target.lanes(op.output(0).dtype)
    width = usual_size(axes[i] for i in layout.result[-1])
    # Lanes without a column hold steps.
    vectors = usual_size(axes) / width * (-(-width // lanes) if width >= lanes else width / lanes)
    return vectors / target.processor.ports + _copying(contraction, layout, target, ahead)


def _copying(
    contraction: Contraction, layout: Layout, target: Target, ahead: Tensor | None
) -> float:
    """The cycles in which the result and factors are copied, estimated rather too high. A result is
    written and read; a factor would have come anyway. The factor `ahead` isn't copied in a call."""
    op, axes, total = contraction.op, _axes_of(contraction), 0.0
    if not _is_view(contraction, None, layout.result):
        result, computed = op.output(0), [axes[i] for dim in layout.result for i in dim]
        size = usual_bytes_of(result)
        total += _copy_of(result, computed, op.axis, target)
        total += transfer_cycles(2 * size, 2 * size, target)
    for factor, dims in zip(contraction.factors, layout.copies, strict=True):
        if dims is None or factor.tensor is ahead or _is_view(contraction, factor, dims):
            continue
        if _has_axes(contraction, factor):
            made = [axes[i] for dim in dims for i in dim]
            size = usual_size(made) * factor.tensor.dtype.itemsize
            places = [axes[i] for i in _places(contraction, factor) if i is not None]
            total += _copy_of(factor.tensor, places, made, target)
            total += transfer_cycles(size, 2 * size, target)
        else:  # a strip at a time, in the caches
            total += _copy_of_windows(contraction, factor, dims)
            size = usual_bytes_of(factor.tensor)
            total += transfer_cycles(size, size, target)
    return total * _SURE


def _copy_of_windows(contraction: Contraction, factor: Factor, dims: _Dimensions) -> float:
    """The cycles of a copy of an image with an element for each iteration: by lines, for which the
    image may be transposed before, or else one by one."""
    axes, itemsize = _axes_of(contraction), factor.tensor.dtype.itemsize
    made = long_axes(axes[i] for dim in dims for i in dim)
    transposing, distance = 0.0, dict(factor.distance)
    if _dimension_of_lines(contraction, factor, dims) is not None:
        transposing = copy_cycles(usual_bytes_of(factor.tensor))
        channels = usual_size(made[-1:])
        apart = distance[made[-1].var]
        distance = {var: n * channels if n < apart else n for var, n in distance.items()}
        distance[made[-1].var] = 1
    line = 1
    for axis in reversed(made):
        if distance[axis.var] != line:
            break
        line *= usual_size([axis])
    size = usual_size(made)
    if line == 1:
        return transposing + copy_cycles_apart(size)
    return transposing + copy_cycles_of_lines(size * itemsize, line * itemsize)


def _copy_of(
    tensor: Tensor, source: Sequence[IterVar], made: Sequence[IterVar], target: Target
) -> float:
    """The cycles of a copy of a tensor from one order of its axes to another."""
    source, made = long_axes(source), long_axes(made)
    in_rows = source[-1:] == made[-1:]
    written, read = _line(made, source), _line(source, made)
    # Blocks are as high as a line that is read; a quarter of a vector is enough.
    run = min(usual_size(written), 4 * usual_size(read)) * tensor.dtype.itemsize
    return layout_cycles(usual_size(made) * tensor.dtype.itemsize, run, target, in_rows=in_rows)


def _line(axes: Sequence[IterVar], others: Sequence[IterVar]) -> list[IterVar]:
    """The last of some axes, as many as follow each other in another order as well."""
    before = dict(zip(others[1:], others, strict=False))
    line = [*axes[-1:]]
    for axis in reversed(axes[:-1]):
        if before.get(line[0]) is not axis:
            break
        line.insert(0, axis)
    return line


def _may_change(contraction: Contraction, target: Target) -> bool:
    """Whether a contraction has factors whose dimensions are axes, or copies of them have; or one
    of them is an image, the result being as small as a window of it, or having a single column."""
    op, factors = contraction.op, contraction.factors
    has_instruction = multiplies_dtypes(contraction, target)
    are_copied = has_instruction and all(_can_be_copied(contraction, each) for each in factors)
    return (
        len(op.outputs) == 1
        and not is_uneven(op)
        and (_have_axes(contraction) or are_copied or _is_small(contraction))
        and all(any(each.reads(axis) for each in factors) for axis in long_axes(op.axis))
    )


def _is_for_instructions(contraction: Contraction) -> bool:
    """Whether a contraction has another layout for the sake of an instruction alone, which doesn't
    read windows."""
    return not (_is_small(contraction) or _have_axes(contraction))


def _is_small(contraction: Contraction) -> bool:
    """Whether a result is as small as a window of an image, or has a single column; or channels
    with weights of their own are the columns, but lie apart in the image."""
    op, column = contraction.op, contraction.column
    is_across = len(contraction.factors) == 2 and all(
        each.along(column) > NEAR for each in contraction.factors
    )
    return extent_of(op.axis[-1]) == 1 or sums_over_images(contraction) or is_across


def _copies_windows(contraction: Contraction, layout: Layout) -> bool:
    """Whether a layout copies a factor that is read through windows."""
    pairs = zip(contraction.factors, layout.copies, strict=True)
    return any(dims is not None and not _has_axes(contraction, each) for each, dims in pairs)


def _reads_in_place(contraction: Contraction, layout: Layout) -> bool:
    """Whether a layout joins columns, and all of its copies are views."""
    pairs = zip((None, *contraction.factors), (layout.result, *layout.copies), strict=True)
    return len(layout.result[-1]) > 1 and all(
        dims is None or _is_view(contraction, each, dims) for each, dims in pairs
    )


def _have_axes(contraction: Contraction) -> bool:
    """Whether the dimensions of all factors are axes."""
    return all(_has_axes(contraction, each) for each in contraction.factors)


def _is_product(contraction: Contraction, target: Target) -> bool:
    """Whether the axes have the order of a product, as libraries have it: batches first, then one
    axis of rows and one of columns that fills vectors; of a factor, one of these or the steps are
    neighbours."""
    op, factors = contraction.op, contraction.factors
    axes, steps = long_axes(op.axis), long_axes(op.reduce_axis)
    batch = [axis for axis in axes if all(each.reads(axis) for each in factors)]
    own = axes[len(batch) :]
    is_in_order = axes[: len(batch)] == batch and len(own) <= 2 and len(steps) <= 1
    is_wide = not own or usual_size(own[-1:]) >= _WIDE * target.lanes(op.output(0).dtype)
    are_apart = len(own) < 2 or all(each.reads(own[0]) != each.reads(own[1]) for each in factors)
    return (
        is_in_order
        and is_wide
        and are_apart
        and all(any(each.along(axis) == 1 for axis in (*own, *steps)) for each in factors)
    )


def _in_layout(contraction: Contraction, layout: Layout) -> ComputeOp:
    """The operation in a layout, as if the copies that it reads were there."""
    op, axes = contraction.op, _axes_of(contraction)
    made, values = dict[int, IterVar](), dict[Var, PrimExpr]()
    for dim in (*layout.result, *layout.steps):
        first, dom = axes[dim[0]], domain_of(axes[dim[0]])
        if len(dim) > 1:
            dom = Range(0, usual_size(axes[i] for i in dim))
        axis = IterVar(dom, Var(first.name, first.var.dtype, axis=True), first.iter_type)
        below = 1
        for i in reversed(dim):
            value = e.floordiv(axis.var, below)
            below *= extent_of(axes[i]) or 1
            values[axes[i].var] = value if i == dim[0] else e.floormod(value, extent_of(axes[i]))
            made[i] = axis
    result, steps = ([made[dim[0]] for dim in dims] for dims in (layout.result, layout.steps))
    copies, at = dict[Tensor, Tensor](), dict[Tensor, tuple[PrimExpr, ...]]()
    for factor, dims in zip(contraction.factors, layout.copies, strict=True):
        along = [made[dim[0]] for dim in dims or () if dim]
        if along:
            tensor, own = factor.tensor, tuple(IterVar(axis.dom, axis.var) for axis in along)
            shape = tuple(domain_of(axis).extent for axis in along)
            if _has_axes(contraction, factor):
                copy: Operation = PlaceholderOp(tensor.name, shape, tensor.dtype)
            else:
                indices = tuple(substitute(index, values) for index in factor.load.indices)
                copy = computed(tensor.name, own, ProducerLoad(tensor, indices))
            copies[tensor], at[tensor] = copy.output(0), places_of(along)
    moved = reading_elsewhere(op, copies, lambda tensor, _: at[tensor])
    reduce = substitute(reduce_of(moved), values)
    assert isinstance(reduce, Reduce)
    body = (replace(reduce, axis=tuple(steps)),)
    return replace(op, axis=tuple(result), reduce_axis=tuple(steps), body=body)


def _layouts(contraction: Contraction, *, in_order: bool) -> Iterator[Layout]:
    """The layouts to choose from: of results and of steps. Some come again. Windows are copied to
    rows of all steps."""
    orders = _orders_of_steps(contraction, in_order=in_order)
    reads_windows = _is_for_instructions(contraction)
    if reads_windows:
        orders = [order for order in orders if len(order) == 1] or orders
    can_be_copied = [_can_be_copied(contraction, each) for each in contraction.factors]
    for result, columns in _results(contraction):
        for steps in orders:
            for made in _with_copies(contraction, result, columns, steps, can_be_copied):
                if not reads_windows or _copies_windows(contraction, made):
                    yield made


def _orders_of_steps(contraction: Contraction, *, in_order: bool) -> list[_Dimensions]:
    """The orders of steps to choose from: their own, and, unless that is kept, those in which the
    factors lie; flattened or not."""
    axes, own = _axes_of(contraction), _itself(contraction).steps
    found, places = [own], [i for (i,) in own]
    is_free = is_commutative(reduce_of(contraction.op).combiner)
    is_free = is_free and not any(may_vary(axes[i]) for i in places)
    is_free = is_free and all(const_int(domain_of(axes[i]).min) == 0 for i in places)
    if sum(extent_of(axes[i]) != 1 for i in places) < 2 or not is_free:
        return found
    orders = [places]
    if not in_order:
        for each in (contraction.b, contraction.a):
            by_memory = _by_memory(places, each, axes)
            # Windows that are copied have longer lines along the other axes.
            plain = {index for index in each.load.indices if isinstance(index, Var)}
            in_lines = sorted(by_memory, key=lambda i: axes[i].var in plain)
            orders += [by_memory] if _has_axes(contraction, each) else [by_memory, in_lines]
    for order in orders:
        found += [tuple((i,) for i in order), (tuple(order),)]
    return list(dict.fromkeys(found))


def _results(contraction: Contraction) -> Iterator[tuple[_Dimensions, set[int]]]:
    """The orders of results to choose from, and the axes of their columns: with the columns of
    either factor, or the batches, as the last dimensions; in the order of the result or of the
    factors; flattened or not."""
    op, a, b, axes = contraction.op, contraction.a, contraction.b, _axes_of(contraction)
    itself = _itself(contraction).result
    single = [i for i, axis in enumerate(op.axis) if extent_of(axis) == 1]
    long = [i for i in range(len(op.axis)) if i not in single]
    batch = [i for i in long if a.reads(axes[i]) == b.reads(axes[i])]
    mine = [i for i in long if i not in batch and a.reads(axes[i])]
    its = [i for i in long if i not in batch and b.reads(axes[i])]
    kinds = groupby(range(len(op.axis)), lambda i: [each.reads(axes[i]) for each in (a, b)])
    runs = _joined([[*run] for _, run in kinds], axes)
    for columns in (batch, mine, its):
        yield itself, {*columns}
        yield runs, {*columns}
    for before, rows, columns, own, other in (
        (batch, mine, its, b, a),
        (batch, its, mine, a, b),
        (mine, its, batch, a, b),
        (its, mine, batch, b, a),
    ):
        if not columns:
            continue
        in_memory = [
            _by_memory(places, factor, axes)
            for places, factor in ((before, own), (rows, other), (columns, own))
        ]
        # Rows of the result that stay together are copied as one.
        together = [sorted([*before, *rows]), [], columns]
        for (first, *rest), flattens in product(
            ([before, rows, columns], in_memory, together), (False, True)
        ):
            groups = [group for group in (first, *rest) if group]
            groups = _with_single(contraction, single, groups)
            alone = tuple((i,) for group in groups for i in group)
            dims = _joined(groups, axes) if flattens else alone
            is_flat = any(len({*dim} - {*single}) > 1 for dim in dims)
            is_wide = itself[-1][0] in long
            if not is_flat and is_wide and [i for dim in dims for i in dim if i in long] == long:
                dims = itself
            yield dims, {*columns}


def _joined(groups: Sequence[Sequence[int]], axes: Sequence[IterVar]) -> _Dimensions:
    """A dimension for each group of axes; for an axis whose extent may vary, one of its own."""
    dims = list[tuple[int, ...]]()
    for group in groups:
        for varies, run in groupby(group, lambda i: may_vary(axes[i])):
            part = tuple(run)
            dims += [(i,) for i in part] if varies else [part]
    return tuple(dims)


def _with_single(
    contraction: Contraction, single: Sequence[int], groups: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Groups of axes, with the axes of one element added: each to the first group that is read by
    all factors which read this axis, or to a group in front of the others."""
    axes, made, alone = _axes_of(contraction), [[*group] for group in groups], list[int]()
    for i in single:
        readers = [each for each in contraction.factors if each.reads(axes[i])]
        fits = (all(each.reads(axes[g[-1]]) for each in readers) for g in groups)
        place = next((place for place, fit in enumerate(fits) if fit), None)
        (alone if place is None else made[place]).insert(0, i)
    return [alone, *made] if alone else made


def _by_memory(places: Sequence[int], factor: Factor, axes: Sequence[IterVar]) -> list[int]:
    """Places of axes in the order of a factor in memory; axes that it doesn't read come last."""
    return sorted(places, key=lambda i: -factor.along(axes[i]))


def _with_copies(
    contraction: Contraction,
    result: _Dimensions,
    columns: set[int],
    steps: _Dimensions,
    can_be_copied: Sequence[bool],
) -> Iterator[Layout]:
    """The layouts with one order of the result and of the steps: those factors are copied that read
    flattened axes, or viewed where they lie so, and perhaps others that lie otherwise."""
    axes, ways = _axes_of(contraction), list[list[_Dimensions | None]]()
    for factor, is_free in zip(contraction.factors, can_be_copied, strict=True):
        read = [dim for dim in (*result, *steps) if any(factor.reads(axes[i]) for i in dim)]
        inner = [dim for dim in read if columns.intersection(dim)]
        dims = (*(dim for dim in read if dim not in inner), *inner)
        dims = tuple(tuple(i for i in dim if factor.reads(axes[i])) for dim in dims)
        dims = tuple(sorted(dims, key=lambda dim: any(extent_of(axes[i]) != 1 for i in dim)))
        if any(extent_of(axes[i]) != 1 and not factor.reads(axes[i]) for dim in read for i in dim):
            return
        order = [i for dim in dims for i in dim if extent_of(axes[i]) != 1]
        is_flat = any(sum(extent_of(axes[i]) != 1 for i in dim) > 1 for dim in dims)
        lies_so = order == _by_memory(order, factor, axes)
        if is_flat and not (is_free and _is_read_whole(contraction, factor)):
            return
        if is_flat:
            lying = tuple(sorted(dims, key=lambda dim: -max(factor.along(axes[i]) for i in dim)))
            ways.append([dims, *([lying] if _is_view(contraction, factor, lying) else [])])
        else:
            ways.append([None] if lies_so or not is_free else [None, dims])
    for copies in product(*ways):
        yield Layout(result, steps, copies)
