"""Rewrites operations: they read copies, compute into caches, keep their tensors in other layouts,
reduce in two steps, or are padded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.atoms import structural_key
from minitvm.arith.effects import reads_tensors
from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.guarded_reads import element_of
from minitvm.te.schedules.layout import Layout
from minitvm.te.schedules.operation_graph import in_order, root_axes
from minitvm.te.schedules.relation import (
    Relation,
    guards_of,
    leaves_below,
    loops_from,
    ranges_of,
    results_of,
    roots_above,
    values_of,
)
from minitvm.te.tensor import (
    ComputeOp,
    ExternOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    data_axes,
    domain_of,
    reduce_of,
    tensor_of,
)
from minitvm.tir import expr as e
from minitvm.tir.commutation import can_exchange_terms, is_choice, is_commutative
from minitvm.tir.expr import (
    CommReducer,
    IterType,
    IterVar,
    PrimExpr,
    ProducerLoad,
    Range,
    Reduce,
    Var,
    const,
)
from minitvm.tir.functor import Mutator, Substitution, mentions, substitute, walk_once
from minitvm.tir.op import all as all_of
from minitvm.tir.structural_equal import structural_equal

# -- Reading other tensors ------------------------------------------------------------------------


_Indices = tuple[PrimExpr, ...]


def _same_place(tensor: Tensor, indices: _Indices) -> _Indices:
    return indices


class ReadOthers(Mutator):
    """Replaces reads of some tensors by reads of others, at the indices that `place` gives."""

    def __init__(
        self,
        others: Mapping[Tensor, Tensor],
        place: Callable[[Tensor, _Indices], _Indices] = _same_place,
    ) -> None:
        super().__init__()
        self._others = others
        self._place = place

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        indices = tuple(map(self.expr, node.indices))
        tensor = tensor_of(node)
        if tensor not in self._others:
            return ProducerLoad(tensor, indices)
        return ProducerLoad(self._others[tensor], self._place(tensor, indices))

    def visit_Cast(self, node: e.Cast) -> PrimExpr:
        value = self.expr(node.value)
        return node if value is node.value else e.cast(node.dtype, value)


def reading(op: Operation, others: Mapping[Tensor, Tensor]) -> Operation:
    """`op`, or an operation like it that reads `others` in place of some tensors."""
    if not any(tensor in others for tensor in op.input_tensors):
        return op

    def now(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(others.get(each, each) for each in tensors)

    match op:
        case ComputeOp():
            return replace(op, body=map_body(op.body, ReadOthers(others).expr))
        case ExternOp():
            return replace(op, inputs=now(op.inputs))
        case ScanOp():
            return replace(op, init=now(op.init), update=now(op.update), inputs=now(op.inputs))
    raise e.unknown_node(op, "a schedule")


class InlineReads(Mutator):
    """Replaces reads of inlined tensors by their values. `inlined` gives the operation that
    computes a tensor where it is read, and None for any other tensor."""

    def __init__(self, inlined: Callable[[Tensor], ComputeOp | None]) -> None:
        super().__init__()
        self._inlined = inlined
        self._values: dict[Hashable, PrimExpr] = {}

    def read(self, tensor: Tensor, indices: _Indices) -> PrimExpr:
        """A read of a tensor that is not inlined."""
        return ProducerLoad(tensor, indices)

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        tensor = tensor_of(node)
        op = self._inlined(tensor)
        if op is None:
            return self.read(tensor, tuple(map(self.expr, node.indices)))
        # Equal reads share a value: the tree of a chain of stages, each of which reads the one
        # before twice, is exponentially larger than its graph.
        key = tensor, structural_key(node.indices)
        if key not in self._values:
            values = {
                axis.var: e.cast(axis.var.dtype, index)
                for axis, index in zip(op.axis, node.indices, strict=True)
            }
            body = substitute(op.body[tensor.value_index], values)
            self._values[key] = self.expr(body)
        return self._values[key]


def with_inlined(op: ComputeOp, inlined: Callable[[Tensor], ComputeOp | None]) -> ComputeOp:
    """`op`, or an operation like it that computes inlined tensors where it reads them."""
    if all(inlined(tensor) is None for tensor in op.input_tensors):
        return op
    return replace(op, body=map_body(op.body, InlineReads(inlined).expr))


def rewritten(
    outputs: Iterable[Tensor],
    ops: Iterable[Operation],
    rewrite: Callable[[Operation, Mapping[Tensor, Tensor]], Operation],
    others: Mapping[Tensor, Tensor] | None = None,
) -> list[Tensor]:
    """`outputs` of a graph after `rewrite` has made each of `ops`, given after their inputs, anew.
    Its second argument maps tensors to those that are to be read in their place: at first `others`,
    then also the outputs of the operations that were made before."""
    now = dict(others or {})
    for op in ops:
        made = rewrite(op, now)
        if made is not op:
            now.update(zip(op.outputs, made.outputs, strict=True))
    return [now.get(each, each) for each in outputs]


def with_sizes(
    outputs: Iterable[Operation], sizes: Mapping[Var, PrimExpr]
) -> tuple[list[Operation], dict[Tensor, Tensor]] | None:
    """A program whose variables have values: its outputs, and a mapping from the tensors that
    changed to the new ones. None for programs of stages other than ``te.compute``.

    >>> from minitvm import te
    >>> n = te.var("n")
    >>> A = te.placeholder((n + 2,), name="A")
    >>> B = te.compute((n,), lambda i: A[i + 2] * 2.0, name="B")
    >>> (op,), now = with_sizes([B.op], {n: const(8)})
    >>> op.output(0).shape, now[A].shape
    ((8,), (10,))
    """
    now: dict[Tensor, Tensor] = {}
    made: dict[Operation, Operation] = {}
    outputs, read, simplify = list(outputs), ReadOthers(now), Analyzer().simplify

    def extent(value: PrimExpr) -> PrimExpr:
        return simplify(read.expr(substitute(value, sizes)))

    for op in in_order(outputs):
        match op:
            case PlaceholderOp():
                made[op] = replace(op, shape=tuple(map(extent, op.shape)))
            case ComputeOp():
                body = map_ranges(at_axes(op, sizes), read.expr, extent)
                axis = tuple(_ranging(each, extent) for each in op.axis)
                made[op] = replace(op, axis=axis, reduce_axis=reduced(body), body=body)
            case _:
                return None
        now.update(zip(op.outputs, made[op].outputs, strict=True))
    return [made[op] for op in outputs], now


def reading_elsewhere(
    op: ComputeOp, others: Mapping[Tensor, Tensor], place: Callable[[Tensor, _Indices], _Indices]
) -> ComputeOp:
    """`op`, or an operation like it that reads `others` in place of some tensors, at the indices
    that `place` gives."""
    if not any(tensor in others for tensor in op.input_tensors):
        return op
    return replace(op, body=map_body(op.body, ReadOthers(others, place).expr))


def map_body(
    body: tuple[PrimExpr, ...], function: Callable[[PrimExpr], PrimExpr]
) -> tuple[PrimExpr, ...]:
    """A computation's body, rewritten; results of one reduction remain results of one reduction."""
    first = function(body[0])
    return each_result(first) if isinstance(first, Reduce) else (first, *map(function, body[1:]))


def each_result(reduce: Reduce) -> tuple[PrimExpr, ...]:
    """All results of the reduction to which `reduce` belongs."""
    return tuple(replace(reduce, value_index=i) for i in range(len(reduce.source)))


def reduced(body: tuple[PrimExpr, ...]) -> tuple[IterVar, ...]:
    """The axes that a body reduces over."""
    return body[0].axis if isinstance(body[0], Reduce) else ()


# -- cache_read -----------------------------------------------------------------------------------


def copy_of(tensor: Tensor, name: str, dtype: DType) -> Tensor:
    """An operation that copies a tensor, with its elements cast to a dtype."""
    axis = data_axes([f"ax{i}" for i in range(tensor.ndim)], tensor.shape)
    value = e.cast(dtype, ProducerLoad(tensor, places_of(axis)))
    return computed(name, axis, value).output(0)


def computed(name: str, axis: tuple[IterVar, ...], value: PrimExpr) -> ComputeOp:
    return ComputeOp(name, "", {}, axis, (), (value,))


def places_of(axes: Iterable[IterVar]) -> _Indices:
    """The indices of the element at some axes."""
    return tuple(axis.var for axis in axes)


def becoming(old: Iterable[IterVar], new: Iterable[IterVar]) -> dict[Var, PrimExpr]:
    """The substitution of new axes for old ones."""
    return {a.var: b.var for a, b in zip(old, new, strict=True)}


class ReadAt(Mutator):
    """Replaces an expression by a read, wherever it stands."""

    def __init__(self, element: PrimExpr, other: ProducerLoad) -> None:
        super().__init__()
        self._element = element
        self._other = other

    def _replaced(self, node: PrimExpr) -> PrimExpr:
        if structural_equal(node, self._element):
            return self._other
        return self.descend(node)

    visit_ProducerLoad = visit_Call = visit_Cast = _replaced


class SpellOut(Mutator):
    """Replaces names inside of expressions by their values; unused values are kept, too."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[PrimExpr] = []

    def visit_Let(self, node: e.Let) -> PrimExpr:
        value = self.expr(node.value)
        self.values.append(value)
        return substitute(self.expr(node.body), {node.var: value})


def read_by_axes(
    tensor: Tensor, reader: ComputeOp, name: str, which: int | None, dtype: DType
) -> tuple[Tensor, ComputeOp]:
    """A copy, with a dtype, of the elements of a tensor that `reader` reads, with a dimension for
    each axis of `reader` on which they depend; and `reader` reading the copy."""
    op = replace(reader, body=map_body(reader.body, SpellOut().expr))
    element = element_of(op, tensor, which, dtype)
    for axis in element.axes:
        check_fixed(f"cache_access of {tensor.name}", op, axis, "use cache_read")
    domains = [domain_of(axis) for axis in element.axes]
    own = data_axes([axis.name for axis in element.axes], [each.extent for each in domains])
    pairs = [*zip(element.axes, own, domains, strict=True)]
    shift = Substitution({axis.var: domain.min + new.var for axis, new, domain in pairs})
    copy = computed(name, own, shift.expr(element.copied)).output(0)
    at = tuple(axis.var - domain.min for axis, _, domain in pairs)
    read = ReadAt(element.value, ProducerLoad(copy, at))
    return copy, replace(op, body=map_body(op.body, read.expr))


def read_by_rows(tensor: Tensor, reader: ComputeOp, times: int) -> tuple[Tensor, ComputeOp]:
    """A copy of a tensor that has each of its rows a number of times; and `reader` reading a row's
    copies in turn, along its last axis but one."""
    shape = (*tensor.shape[:-1], e.const(times, "int32"), tensor.shape[-1])
    axis = data_axes([f"ax{i}" for i in range(len(shape))], shape)
    *outer, _, column = places_of(axis)
    value = ProducerLoad(tensor, (*outer, column))
    copy = computed(f"{tensor.name}.repeated", axis, value).output(0)
    row = e.floormod(reader.axis[-2].var, times)

    def place(_: Tensor, indices: _Indices) -> _Indices:
        return (*indices[:-1], row, indices[-1])

    read = ReadOthers({tensor: copy}, place)
    return copy, replace(reader, body=map_body(reader.body, read.expr))


# -- cache_write ----------------------------------------------------------------------------------


def written_through(
    op: ComputeOp, relations: Sequence[Relation], leaves: Sequence[IterVar], scope: str
) -> tuple[ComputeOp, ComputeOp]:
    """An operation split in two: one computes into a cache, the other copies the cache. Where the
    loops, `leaves`, were split or reordered, they are the dimensions of the cache."""
    if not relations and tuple(leaves) == root_axes(op):
        axis = tuple(cloned(each, f"{each.name}.c") for each in op.axis)
        body, at = at_axes(op, becoming(op.axis, axis)), places_of(op.axis)
    else:
        axis, body, at = _in_layout(op, relations, leaves)
    name = f"{op.name}.{scope}"
    cache = replace(op, name=name, axis=axis, reduce_axis=reduced(body), body=body)
    copied = tuple(ProducerLoad(each, at) for each in cache.outputs)
    return cache, replace(op, reduce_axis=(), body=copied)


def _in_layout(
    op: ComputeOp, relations: Sequence[Relation], leaves: Sequence[IterVar]
) -> tuple[tuple[IterVar, ...], tuple[PrimExpr, ...], _Indices]:
    """The axes of a cache whose dimensions are the data loops, its body, and the indices in the
    cache of the element at the operation's own axes."""
    reduced = leaves_below(relations, op.reduce_axis)
    relations = [r for r in relations if not any(each in reduced for each in results_of(r))]
    ranges = ranges_of(relations, {each: domain_of(each) for each in op.axis})
    leaves = [leaf for leaf in leaves if leaf not in reduced]
    axis = tuple(
        IterVar(ranges[leaf], Var(f"{leaf.name}.c", leaf.var.dtype, axis=True)) for leaf in leaves
    )
    loops: dict[IterVar, PrimExpr] = {leaf: new.var for leaf, new in zip(leaves, axis, strict=True)}
    values = values_of(relations, ranges, loops)
    body = at_axes(op, {each.var: values[each] for each in op.axis})
    guards = [guard.condition for guard in guards_of(relations, ranges, values)]
    body = only_where(guards, body)
    places = loops_from(relations, ranges, {each: each.var for each in op.axis})
    return axis, body, tuple(places[leaf] for leaf in leaves)


def at_axes(op: ComputeOp, values: Mapping[Var, PrimExpr]) -> tuple[PrimExpr, ...]:
    """The body of an operation at some values of its data axes. The ranges of its reduction axes
    may depend on the data axes."""
    rewrite = Substitution(values)
    return map_ranges(op.body, rewrite.expr, rewrite.expr)


def map_ranges(
    body: tuple[PrimExpr, ...],
    rewrite: Callable[[PrimExpr], PrimExpr],
    limit: Callable[[PrimExpr], PrimExpr],
) -> tuple[PrimExpr, ...]:
    """A body that `rewrite` has rewritten, and `limit` the ranges of its reduction axes."""

    def element(value: PrimExpr) -> PrimExpr:
        made = rewrite(value)
        if not isinstance(made, Reduce):
            return made
        return replace(made, axis=tuple(_ranging(axis, limit) for axis in made.axis))

    return map_body(body, element)


def _ranging(axis: IterVar, rewrite: Callable[[PrimExpr], PrimExpr]) -> IterVar:
    """An axis whose range `rewrite` has rewritten."""
    dom = domain_of(axis)
    low, extent = rewrite(dom.min), rewrite(dom.extent)
    if low is dom.min and extent is dom.extent:
        return axis
    return IterVar(Range.from_min_extent(low, extent), axis.var, axis.iter_type)


def only_where(guards: Sequence[PrimExpr], body: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    """A body where all guards hold, and a harmless value elsewhere."""
    if not guards:
        return body
    condition = all_of(*guards)
    begin = _WhereRead(condition)

    def guarded(value: PrimExpr) -> PrimExpr:
        if not isinstance(value, Reduce):
            return _or_zero(condition, value)
        identity = tuple(map(begin.expr, value.combiner.identity))
        return replace(
            value,
            combiner=replace(value.combiner, identity=identity),
            axis=tuple(_ranging(axis, begin.expr) for axis in value.axis),
            condition=e.logical_and(condition, value.condition),
            init=tuple(map(begin.expr, value.init)),
        )

    return map_body(body, guarded)


def _or_zero(condition: PrimExpr, value: PrimExpr) -> PrimExpr:
    return e.intrinsic("if_then_else", value.dtype, condition, value, const(0, value.dtype))


class _WhereRead(Mutator):
    """Makes values that read tensors zero where a condition doesn't hold, since the elements may
    not exist there."""

    def __init__(self, condition: PrimExpr) -> None:
        super().__init__()
        self._condition = condition

    def visit_ProducerLoad(self, node: ProducerLoad) -> PrimExpr:
        return _or_zero(self._condition, node)


# -- transform_layout -----------------------------------------------------------------------------


def in_layout(op: Operation, layout: Layout) -> Operation:
    """An operation whose tensors are kept in another layout. Its padding is zero, or the identity
    of the reduction."""
    if isinstance(op, PlaceholderOp):
        shape = tuple(domain_of(axis).extent for axis in layout.axis)
        return replace(op, shape=shape)
    op = cast(ComputeOp, op)
    values = {axis.var: value for axis, value in zip(op.axis, layout.backward, strict=True)}
    body = only_where(layout.inside, at_axes(op, values))
    return replace(op, axis=layout.axis, reduce_axis=reduced(body), body=body)


def in_steps(op: ComputeOp, layout: Layout) -> ComputeOp:
    """A reduction over the axes of a layout of its reduction axes."""
    axes = [IterVar(each.dom, each.var, IterType.COMM_REDUCE) for each in layout.axis]
    reduce = reduce_of(op)
    old = zip(op.reduce_axis, layout.backward, strict=True)
    steps = Substitution({axis.var: value for axis, value in old})
    source = tuple(map(steps.expr, reduce.source))
    condition = all_of(steps.expr(reduce.condition), *layout.inside)
    body = each_result(replace(reduce, source=source, axis=tuple(axes), condition=condition))
    return replace(op, reduce_axis=tuple(axes), body=body)


def reading_layout(op: Operation, tensors: Mapping[Tensor, Tensor], layout: Layout) -> Operation:
    """`op`, or one like it that reads some tensors in a layout."""

    def place(_: Tensor, indices: _Indices) -> _Indices:
        moved = Substitution(dict(zip(layout.old, indices, strict=True)))
        return tuple(map(moved.expr, layout.forward))

    return reading_elsewhere(cast(ComputeOp, op), tensors, place)


# -- rfactor --------------------------------------------------------------------------------------


def factored(
    op: ComputeOp,
    relations: Sequence[Relation],
    leaves: Sequence[IterVar],
    axis: IterVar,
    factor_axis: int,
) -> tuple[ComputeOp, ComputeOp]:
    """A reduction split in two: one computes partial results, with the loop `axis` of `leaves` as
    the new dimension `factor_axis`; the other reduces over this dimension."""
    reduce = reduce_of(op)
    ranges = ranges_of(relations, {each: domain_of(each) for each in root_axes(op)})
    touched = roots_above(relations, [axis]) & set(op.reduce_axis)
    # The loops over the axes that were split or fused are themselves axes of the new operation.
    own = {
        leaf: IterVar(Range(0, ranges[leaf].extent), Var(leaf.name, leaf.var.dtype, axis=True))
        for leaf in leaves
        if roots_above(relations, [leaf]) & touched
    }
    loops = {leaf: ranges[leaf].min + made.var for leaf, made in own.items()}
    values = values_of(relations, ranges, loops)
    axes = [cloned(each, each.name) for each in op.axis]
    new = becoming(op.axis, axes)
    at_axes = Substitution(new)
    rewrite = Substitution(new | {each.var: at_axes.expr(values[each]) for each in touched})
    moved = cast(Reduce, rewrite.expr(reduce))
    condition = moved.condition
    for guard in guards_of(relations, ranges, values):
        condition = e.logical_and(rewrite.expr(guard.condition), condition)
    factor = own.pop(axis)
    remedy = "split it by a constant, and use rfactor over the inner"
    check_fixed(f"rfactor of {op.name}", op, factor, remedy)
    axes.insert(factor_axis, factor)
    reduced = tuple(
        IterVar(_ranging(each, rewrite.expr).dom, each.var, IterType.COMM_REDUCE)
        for each in own.values()
    ) + tuple(_ranging(each, rewrite.expr) for each in op.reduce_axis if each not in touched)
    body: tuple[PrimExpr, ...]
    if reduced:
        body = each_result(replace(moved, axis=reduced, condition=condition, init=()))
    else:
        body = tuple(
            e.intrinsic("if_then_else", each.dtype, condition, each, neutral)
            for each, neutral in zip(moved.source, moved.combiner.identity, strict=True)
        )
    partial = replace(op, name=f"{op.name}.rf", axis=tuple(axes), reduce_axis=reduced, body=body)
    return partial, _final(op, reduce, partial, factor, factor_axis)


def check_fixed(where: str, op: ComputeOp, axis: IterVar, remedy: str) -> None:
    """Refuses an axis whose range differs between elements of an operation."""
    if not is_fixed(op, axis):
        raise CompileError(
            f"{where}: expected a loop of one length for all elements, got {axis.name} of "
            f"{domain_of(axis).extent} iterations: {remedy}"
        )


def is_fixed(op: ComputeOp, axis: IterVar) -> bool:
    """Whether an axis has one length for all elements of an operation."""
    own, extent = {each.var for each in (*op.axis, *op.reduce_axis)}, domain_of(axis).extent
    return own.isdisjoint(walk_once(extent)) and not reads_tensors(extent)


def _final(
    op: ComputeOp, reduce: Reduce, partial: ComputeOp, factor: IterVar, factor_axis: int
) -> ComputeOp:
    """The reduction over the dimension of partial results."""
    last = replace(cloned(factor, f"{factor.name}.v"), iter_type=IterType.COMM_REDUCE)
    at = places_of(op.axis)
    at = (*at[:factor_axis], last.var, *at[factor_axis:])
    source = tuple(ProducerLoad(each, at) for each in partial.outputs)
    combiner = _in_order(reduce.combiner, place_among(op, reduce))
    body = each_result(
        replace(reduce, combiner=combiner, source=source, axis=(last,), condition=const(True))
    )
    return replace(op, reduce_axis=(last,), body=body)


def can_be_reordered(op: ComputeOp) -> bool:
    """Whether the steps of a reduction may be combined in any order: its terms can be exchanged, or
    a component of the operands tells which of them comes first."""
    reduce = reduce_of(op)
    return can_exchange_terms(reduce) or bool(place_among(op, reduce))


def place_among(op: ComputeOp, reduce: Reduce) -> tuple[int, ...]:
    """The components that tell which operand comes first, the one that decides before the others
    first, if the order matters: the combination is one of its operands, these components count the
    steps, and the identity comes before all steps. None of them otherwise."""
    if not op.reduce_axis or reduce.init or not is_choice(reduce.combiner):
        return ()
    prover = Prover()
    for axis in (*op.axis, *op.reduce_axis):
        prover.bind(axis.var, domain_of(axis))
    begins = map(e.const_int, reduce.combiner.identity)
    counts = [
        begin is not None and begin <= prover.interval(prover.affine(source))[0]
        for source, begin in zip(reduce.source, begins, strict=True)
    ]
    found, axes = list[int](), list(op.reduce_axis)
    while axes:
        runs = (
            (n, i)
            for n in range(len(axes), 0, -1)
            for i, source in enumerate(reduce.source)
            if counts[i] and i not in found and _grows(source, axes[:n], axes[n:], prover)
        )
        length, place = next(runs, (0, -1))
        if not length:
            return ()
        found.append(place)
        axes = axes[length:]
    return () if is_commutative(reduce.combiner) else tuple(found)


def _grows(
    place: PrimExpr, axes: Sequence[IterVar], others: Sequence[IterVar], prover: Prover
) -> bool:
    """Whether a number grows from each step to the next along nested axes, and is the same along
    others."""
    if not place.dtype.is_integral or any(mentions(each.var, place) for each in others):
        return False
    for i, axis in enumerate(axes):
        inner = [(each.var, domain_of(each)) for each in axes[i + 1 :]]
        last = {var: dom.min + dom.extent - 1 for var, dom in inner}
        first = {var: dom.min for var, dom in inner}
        begin = substitute(place, {axis.var: axis.var + 1, **first})
        growth = prover.affine(begin) - prover.affine(substitute(place, last))
        if not prover.proves(growth - 1):
            return False
    return True


def _in_order(combiner: CommReducer, places: Sequence[int]) -> CommReducer:
    """A combiner that exchanges its operands where the second comes first."""
    if not places:
        return combiner
    pairs = [*zip(combiner.lhs, combiner.rhs, strict=True)]
    exchange = Substitution(dict(pairs) | {b: a for a, b in pairs})
    is_first: PrimExpr = const(True)
    for place in reversed(places):
        a, b = combiner.lhs[place], combiner.rhs[place]
        is_first = a <= b if place == places[-1] else e.logical_or(a < b, all_of(a == b, is_first))
    result = tuple(
        e.intrinsic("if_then_else", each.dtype, is_first, each, exchange.expr(each))
        for each in combiner.result
    )
    return replace(combiner, result=result)


def cloned(axis: IterVar, name: str) -> IterVar:
    return IterVar(axis.dom, Var(name, axis.var.dtype, axis=True), axis.iter_type)


def choice_of(node: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """The condition and the two values of a choice; None for another expression."""
    match node:
        case e.Select(condition, chosen, other):
            return condition, chosen, other
        case e.Call(op="if_then_else", args=(condition, chosen, other)):
            return condition, chosen, other
    return None


def moved_by(value: PrimExpr) -> list[PrimExpr] | None:
    """The reads and the numbers between which axes alone choose, if that is all that a value does,
    as it is in a copy, in padding or in a concatenation; None for another value.

    >>> from minitvm import te
    >>> A = te.placeholder((8,), name="A")
    >>> B = te.compute((9,), lambda i: te.if_then_else(i < 8, A[i], 0.0), name="B")
    >>> moved_by(B.op.body[0])
    [A[i], 0.0]
    >>> moved_by(te.compute((8,), lambda i: A[i] * 2.0).op.body[0])
    """
    found, waiting = list[PrimExpr](), [value]
    while waiting:
        node = waiting.pop(0)
        choice = choice_of(node)
        if choice is not None and not reads_tensors(choice[0]):
            waiting[:0] = choice[1:]
        elif isinstance(node, ProducerLoad | e.IntImm | e.FloatImm):
            found.append(node)
        else:
            return None
    return found
