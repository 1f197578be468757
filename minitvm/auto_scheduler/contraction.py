"""The description of a stage: the axes of its reads, the strides along them, and lines of memory.

A contraction is a reduction that reads an element for several results, such as
``C[d...] = reduce over r... of f(A[...], B[...], ...)``: a matrix product in any layout, batched or
not, over any semiring, masked or scaled; a matrix-vector product; distances; a convolution. It is
recognised by its reads. The operations don't matter here; :mod:`terms` counts them. All strategies
and costs take a stage as it is described in this module.

Some of the last axes are a *line* if each read goes on along the outer one where it ends along the
inner one: fused into one loop, they need no index arithmetic (:func:`line_of`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import final

from minitvm.arith.accesses import step_of
from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import is_lazy, reads_tensors
from minitvm.arith.prover import Prover
from minitvm.arith.work import TRIPS_FROM_DATA, USUAL_TRIPS
from minitvm.runtime.dtype import DType
from minitvm.runtime.host import CACHE_LINE
from minitvm.runtime.record import record
from minitvm.target import Target
from minitvm.te.schedules.accumulation import accumulation_of
from minitvm.te.schedules.guarded_reads import dtype_read
from minitvm.te.schedules.hoist_values import is_lookup, outside_of_loads, reads_everywhere
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.schedules.rewrite_operations import can_be_reordered, moved_by
from minitvm.te.schedules.views import place_in_memory
from minitvm.te.tensor import ComputeOp, Operation, Tensor, domain_of, reduce_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import can_exchange_terms, is_operator
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var
from minitvm.tir.functor import children, contains, find, free_vars, mentions, substitute, walk_once
from minitvm.tir.structural_equal import structural_equal
from minitvm.tir.tree import BITS, kinds_of

_LONGEST_PIECE = 8  # elements of a piece that shares vectors with other ones
NEAR = 4  # elements so far apart are picked from vectors of neighbours
FAR = 1 << 20  # a distance that is not known when building: elements in different lines


@final
@record()
class Factor:
    """One element that each step of a reduction reads: its tensor; for each axis the stride, in
    elements, of its reads along this axis (0: the same element; :data:`FAR`: not known); and the
    dtype in which it is `copied`."""

    tensor: Tensor
    load: ProducerLoad
    distance: Mapping[Var, int]
    copied: DType

    def reads(self, axis: IterVar) -> bool:
        """Whether the factor's value depends on an axis."""
        return axis.var in self.distance

    @property
    def is_gathered(self) -> bool:
        """Whether data say which element is read."""
        return reads_tensors(*self.load.indices)

    @property
    def is_cast(self) -> bool:
        """Whether a copy has the elements cast."""
        return self.copied != self.tensor.dtype

    def along(self, axis: IterVar) -> int:
        """The distance of neighbours along an axis, in elements."""
        return self.distance.get(axis.var, 0)

    def bytes_along(self, axes: Sequence[IterVar]) -> int:
        """The distance in bytes between the factor's elements for two successive steps along the
        innermost of some axes, if it is a cache line or more; otherwise about the bytes of memory
        that each step consumes."""
        itemsize, near = self.tensor.dtype.itemsize, 1
        steps = long_axes(reversed(axes))
        for axis in steps:
            distance = self.along(axis) * itemsize
            if distance >= CACHE_LINE:
                return distance if near == 1 else CACHE_LINE // near
            near *= extent_of(axis) or CACHE_LINE
        return self.along(steps[0]) * itemsize if steps else 0


@final
@record()
class Contraction:
    """A reduction that reads an element for several results.

    The last axis is the *column*, unless another one is asked for: neighbours along it are
    neighbours in the result, vectors lie along it, and `b` is the factor that reads it. (If the
    sums lie along one axis, it is the last axis with more than one element, as for a matrix-vector
    product that is written as a matrix.) The axes that `a` alone reads are *rows*: along them,
    elements of `b` are used again. Of several factors on one side, `a` and `b` are those that cost
    most (:func:`_weight`). Tiles have several rows along the axis of rows `row`; by default along
    the last one.
    """

    op: ComputeOp
    a: Factor
    b: Factor
    factors: tuple[Factor, ...]
    column: IterVar
    row: IterVar | None = None

    @property
    def rows(self) -> tuple[IterVar, ...]:
        """The axes that `a` reads and `b` doesn't, `row` behind the others; none if `a` reads the
        column too."""
        if self.a.reads(self.column):
            return ()
        found = [x for x in self.op.axis if self.a.reads(x) and not self.b.reads(x)]
        return tuple(sorted(found, key=lambda axis: axis is self.row))

    @property
    def columns(self) -> tuple[IterVar, ...]:
        """The axes that `b` reads and `a` doesn't."""
        return tuple(x for x in self.op.axis if self.b.reads(x) and not self.a.reads(x))


def _column_of(op: ComputeOp) -> IterVar:
    """The last axis; if the sums lie along one axis, the last axis with more than one element."""
    if len(op.reduce_axis) != 1:
        return op.axis[-1]
    several = (axis for axis in reversed(op.axis) if extent_of(axis) != 1)
    return next(several, op.axis[-1])


def extent_of(axis: IterVar) -> int | None:
    """The extent of an axis, None if it is symbolic."""
    return e.const_int(domain_of(axis).extent)


def divides(size: int, axis: IterVar) -> bool:
    """Whether the extent of an axis is a multiple of a size, whatever symbols stand for."""
    form = Prover().affine(domain_of(axis).extent)
    return not any(each % size for each in (form.constant, *form.terms.values()))


def is_multiple(op: ComputeOp, axis: IterVar, size: int) -> bool:
    """Whether the extent of an axis is surely a multiple of a size. So is a symbolic one, such as
    n, if all elements at quotients of the axis are read from a dimension of ``n // size``."""
    if divides(size, axis):
        return True
    extent = domain_of(axis).extent
    return reads_everywhere(op) and any(
        isinstance(index, e.FloorDiv)
        and index.a is axis.var
        and (e.const_int(index.b) or 1) % size == 0
        and structural_equal(dim, e.floordiv(extent, index.b))
        for load in find(ProducerLoad, *op.body)
        for index, dim in zip(load.indices, load.producer.shape, strict=True)
    )


def usual_extent(extent: PrimExpr) -> int:
    """An extent in which a usual value stands for each variable, and for a difference that would be
    less than 1."""
    known = e.const_int(extent)
    if known is not None:
        return known
    if isinstance(extent, Var):
        return USUAL_TRIPS
    sizes = {var: e.const(USUAL_TRIPS, var.dtype) for var in free_vars(extent)}
    usual = e.const_int(Analyzer().simplify(substitute(extent, sizes)))
    return int(TRIPS_FROM_DATA) if usual is None else usual if usual > 0 else USUAL_TRIPS


def usual_iterations(axes: Iterable[IterVar]) -> int:
    """The iterations of some axes together, with usual values for variables."""
    return prod(usual_extent(domain_of(axis).extent) for axis in axes)


def long_axes(axes: Iterable[IterVar]) -> list[IterVar]:
    """The axes of more than one element, or of a symbolic number."""
    return [axis for axis in axes if extent_of(axis) != 1]


def rows_in_common(load: ProducerLoad, op: ComputeOp) -> int:
    """The number of leading dimensions in which an operation reads the element at its own place;
    where both have one element, there is one place."""
    for place, (index, axis) in enumerate(zip(load.indices, op.axis, strict=False)):
        is_single = extent_of(axis) == 1 and e.const_int(load.producer.shape[place]) == 1
        if index is not axis.var and not is_single:
            return place
    return min(len(load.indices), len(op.axis))


def product_of_extents(axes: Iterable[IterVar]) -> int | None:
    """The number of iterations of some axes together, None if an extent is symbolic."""
    extents = [extent_of(axis) for axis in axes]
    return None if None in extents else prod(each or 0 for each in extents)


def all_loads(op: ComputeOp) -> Iterator[ProducerLoad]:
    """The reads of tensors in a stage."""
    return find(ProducerLoad, *op.body)


def has_choices(op: ComputeOp) -> bool:
    """Whether a stage may not need all that it reads: conditions choose values or terms."""
    return any(
        isinstance(each, e.Select)
        or is_lazy(each)
        or (isinstance(each, Reduce) and e.const_int(each.condition) != 1)
        for each in walk_once(*op.body)
    )


def only_moves(op: Operation) -> bool:
    """Whether a stage is elementwise, and its elements are those of other tensors, or numbers; axes
    alone choose."""
    if not isinstance(op, ComputeOp) or op.reduce_axis or len(op.body) > 1:
        return False
    return moved_by(op.body[0]) is not None


def bytes_of(tensor: Tensor) -> int | None:
    """The size of a tensor, None if it is symbolic."""
    elements = elements_of(tensor)
    return None if elements is None else elements * tensor.dtype.itemsize


def elements_of(tensor: Tensor) -> int | None:
    """The number of a tensor's elements, None if it is symbolic."""
    shape = [e.const_int(extent) for extent in tensor.shape]
    return None if None in shape else prod(each or 0 for each in shape)


def bytes_at_once(op: ComputeOp, factor: Factor, other: Factor) -> int | None:
    """The bytes of the part of a factor that is combined with one part of the other factor: one
    matrix of a batch, or one group; of all lines on which it lies. None if the size is symbolic."""
    size = bytes_of(factor.tensor)
    shared = [axis for axis in op.axis if factor.reads(axis) and other.reads(axis)]
    both = prod(extent_of(axis) or 1 for axis in shared)
    return None if size is None else -(-size // both) * spread_of(op, factor, shared)


def spread_of(op: ComputeOp, factor: Factor, others: Sequence[IterVar]) -> int:
    """The bytes of memory that come to a core for each byte of a factor of one product. There is a
    product for each iteration of the axes `others`; if their matrices share cache lines, more comes
    than one product uses."""
    if product_of_extents([axis for axis in others if factor.reads(axis)]) == 1:
        return 1
    own = [axis for axis in (*op.axis, *op.reduce_axis) if axis not in others]
    apart = min((n for n in map(factor.along, own) if n), default=1)
    return min(apart, CACHE_LINE // factor.tensor.dtype.itemsize)


def contraction_of(op: Operation, column: IterVar | None = None) -> Contraction | None:
    """A stage as a contraction whose column is the last axis, or the axis `column`. None if the
    stage isn't a reduction, or uses no element for several results, as in ``sum(X[i, k] * X[i,
    k])``.

    >>> from minitvm import te
    >>> A, B = te.placeholder((8, 4), name="A"), te.placeholder((4, 16), name="B")
    >>> k = te.reduce_axis((0, 4), name="k")
    >>> C = te.compute((8, 16), lambda i, j: te.min(A[i, k] + B[k, j], axis=k), name="C")
    >>> found = contraction_of(C.op)
    >>> i, j = C.op.axis
    >>> [(f.tensor.name, f.along(i), f.along(j), f.along(k)) for f in (found.a, found.b)]
    [('A', 4, 0, 1), ('B', 0, 1, 16)]
    """
    if not isinstance(op, ComputeOp) or not isinstance(op.body[0], Reduce):
        return None
    axes = (*op.axis, *op.reduce_axis)
    extents = map(extent_of, axes)
    if not op.axis or any(each is not None and each <= 0 for each in extents):
        return None  # nothing is combined
    column, factors = _column_of(op) if column is None else column, factors_of(op)
    across = [each for each in factors if each.reads(column)]
    if not across:
        return None
    b = max(across, key=partial(_weight, op))
    along = [each for each in factors if not each.reads(column)] or [
        each for each in across if each.distance.keys() != b.distance.keys()
    ]
    a = max(along, key=partial(_weight, op), default=None)
    if a is None or all(a.reads(axis) and b.reads(axis) for axis in op.axis):
        return None  # no element of either factor is used again
    made = Contraction(op, a, b, tuple(factors), column)
    # The sums of a tile run side by side.
    is_even = {column, *made.rows[-1:]}.isdisjoint(uneven_axes(op))
    is_once = _runs_along_sums(made) or (b.is_gathered and not made.rows)
    return made if is_even and not is_once else None


def _weight(op: ComputeOp, factor: Factor) -> tuple[bool, int, float]:
    """The rank of a factor among the factors of its side. A factor ranks high if it changes from
    step to step, is read along many axes, or is large."""
    size = bytes_of(factor.tensor)
    steps = any(map(factor.reads, op.reduce_axis))
    return steps, sum(map(factor.reads, op.axis)), inf if size is None else size


def _runs_along_sums(contraction: Contraction) -> bool:
    """Whether only elements of the rows' factor are used again, while the columns' factor is read
    once, in the order of its memory, along several reduction axes: in windows that don't
    overlap."""
    b, reduced = contraction.b, contraction.op.reduce_axis
    apart = b.along(contraction.column)
    # Each step of each sum reads an element of its own, at the axes themselves.
    axes = {axis.var for axis in (*contraction.op.axis, *reduced)}
    is_read_once = len(b.load.indices) == len(axes) and {*b.load.indices} == axes
    across = apart != 1 and (not contraction.a.reads(contraction.column) or is_read_once)
    in_order = len(reduced) > 1 and any(
        b.along(axis) == 1 and (extent_of(axis) or FAR) <= apart for axis in reduced
    )
    return across and in_order and not contraction.rows


def reused_axis(contraction: Contraction) -> IterVar | None:
    """The last axis, other than the columns, along which one of the factors stays the same."""
    a, b = contraction.a, contraction.b
    for axis in reversed(contraction.op.axis[:-1]):
        if extent_of(axis) != 1 and a.reads(axis) != b.reads(axis):
            return axis
    return None


def bytes_of_results(op: ComputeOp) -> int:
    """The bytes of a stage's results for one place."""
    return sum(body.dtype.itemsize for body in op.body)


def factors_of(op: ComputeOp) -> list[Factor]:
    """The elements that one step of a reduction reads, each once. Reads inside of indices don't
    count."""
    reduce, found = reduce_of(op), list[Factor]()
    waiting: list[PrimExpr] = [*reduce.source, reduce.condition]
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, ProducerLoad):
            waiting += children(node)
        elif isinstance(node.producer, Tensor) and not any(
            each.tensor is node.producer and structural_equal(each.load, node) for each in found
        ):
            dtype = _dtype_of_copy(op, node.producer)
            found.append(Factor(node.producer, node, distances_of(node, op), dtype))
    return found


def factors_in_indices(op: ComputeOp, *loads: ProducerLoad) -> list[Factor]:
    """The elements in the indices of some reads: data that choose other elements."""
    inside = find(ProducerLoad, *(index for load in loads for index in load.indices))
    return [
        Factor(each.producer, each, distances_of(each, op), each.dtype)
        for each in inside
        if isinstance(each.producer, Tensor)
    ]


def _dtype_of_copy(op: ComputeOp, tensor: Tensor) -> DType:
    """The dtype of copies of a factor: the dtype to which its elements are cast, unless this is a
    64-bit integer. A product of 64-bit integers takes several instructions, but one if both are
    known to be widened."""
    dtype = dtype_read(op, tensor)
    return tensor.dtype if dtype.is_integral and dtype.bits > 32 else dtype


def steps_of(op: ComputeOp, a: Factor) -> list[IterVar]:
    """The reduction axes in the order in which their loops run: the order of the program, unless
    each step then reads another line of the rows' factor `a`; if so, the order of `a` in memory."""
    axes = list(op.reduce_axis)
    if a.bytes_along(axes) < CACHE_LINE:
        return axes
    return sorted(axes, key=lambda axis: -a.along(axis))


def order_of_steps(contraction: Contraction, *, in_order: bool = False) -> list[int]:
    """The places of the reduction axes, outermost first. `in_order`: steps are summed in the order
    of the program, as those are whose terms can't be exchanged."""
    op, axes = contraction.op, contraction.op.reduce_axis
    if in_order or len(axes) == 1 or not can_exchange_terms(reduce_of(op)):
        return [*range(len(axes))]
    return [*map(axes.index, steps_of(op, contraction.a))]


def reads_windows(op: ComputeOp, *loads: ProducerLoad) -> bool:
    """Whether an index of some reads changes along both a data axis and a reduction axis."""
    data, steps = ({axis.var for axis in axes} for axes in (op.axis, long_axes(op.reduce_axis)))
    used = ({*find(Var, index)} for each in loads for index in each.indices)
    return any(data & each and steps & each for each in used)


def slides(op: ComputeOp, factor: Factor) -> bool:
    """Whether results that are neighbours along an axis other than the column read overlapping
    windows along the last reduction axis. A cache holds the overlap from one result to the
    next."""
    k, column = op.reduce_axis[-1], _column_of(op)
    window = factor.along(k) * (extent_of(k) or 1)
    together = [{*find(Var, index)} for index in factor.load.indices]
    return any(
        0 < factor.along(axis) < window and any({axis.var, k.var} <= used for used in together)
        for axis in op.axis
        if axis is not column
    )


def line_of(
    op: ComputeOp,
    axes: Sequence[IterVar],
    loads: Iterable[ProducerLoad],
    outside: Container[IterVar] = (),
) -> list[IterVar]:
    """The last of some axes, as many as together run along one line of memory in all reads, or
    don't index it, and aren't `outside`. Fused into one loop, they need no index arithmetic."""
    line, reads = [*axes[-1:]], [(load, distances_of(load, op)) for load in loads]
    for axis in reversed(axes[:-1]):
        if axis in outside or not all(_goes_on(*read, axis, line[0]) for read in reads):
            break
        line.insert(0, axis)
    return line


def _goes_on(
    load: ProducerLoad, distance: Mapping[Var, int], axis: IterVar, inner: IterVar
) -> bool:
    """Whether the memory that is read along `axis` goes on where that along `inner` ends; also if
    the read depends on neither, or data that depend on them choose the element."""
    used = bare_vars(*load.indices)
    outer, step = (distance.get(x.var, 0) if x.var in used else 0 for x in (axis, inner))
    extent = extent_of(inner)
    if extent is not None and step * extent < FAR:
        return outer == step * extent
    pairs = zip(load.indices, load.producer.shape, strict=True)
    dimensions = [pair for pair in pairs if e.const_int(pair[1]) != 1]
    places = [i for i, (index, _) in enumerate(dimensions) if mentions(axis.var, index)]
    if not places or places[-1] == len(dimensions) - 1:
        return not (outer or step)
    (first, _), (index, size) = dimensions[places[-1] :][:2]
    is_once = not any(mentions(inner.var, i) for i, _ in dimensions if i is not index)
    is_plain = len(places) == 1 and is_once and index is inner.var
    is_same = structural_equal(domain_of(inner).extent, size)
    is_whole = is_same if extent is None else e.const_int(size) == extent
    return is_plain and is_whole and step_of(first, axis.var) == 1


def are_pieces(op: ComputeOp) -> bool:
    """Whether the last axis is a short piece of a line, and pieces along the axis before it are a
    few of them apart: the channels of the pixels that a window reads which moves by several pixels.
    Vectors of neighbours hold the elements of several pieces, at constant places. No range, value
    or condition depends on either axis."""
    if len(op.axis) < 2:
        return False
    *_, axis, inner = op.axis
    size, used = extent_of(inner), bare_vars(*op.body)
    if size is None or not 1 < size <= _LONGEST_PIECE or {axis.var, inner.var} & used:
        return False
    reads = [] if {axis, inner} & {*uneven_axes(op)} else factors_of(op)
    return bool(reads) and all(
        not is_lookup(each.load)
        and (
            (each.along(inner) == 1 and size < each.along(axis) <= NEAR * size)
            or each.along(inner) == each.along(axis) == 0
        )
        for each in reads
    )


def last_line(op: ComputeOp, axes: Sequence[IterVar]) -> Sequence[IterVar]:
    """The last of some axes of a stage, as many as together are a line, one at least."""
    return next((axes[i:] for i in range(len(axes)) if is_line(op, axes[i:])), axes[-1:])


def is_line(op: ComputeOp, axes: Sequence[IterVar]) -> bool:
    """Whether some axes of a stage together run along one line of memory, in the order of its
    elements, in all reads; and no range of a sum, and no value or condition outside of reads,
    depends on them."""
    long = long_axes(axes)
    bare = bare_vars(*op.body)
    if not uneven_axes(op).isdisjoint(long) or any(axis.var in bare for axis in long):
        return False
    loads = [*all_loads(op)]
    in_order = all(is_read_in_order(load, axis) for load in loads for axis in long)
    return in_order and len(line_of(op, long, loads)) == len(long)


def is_read_in_order(load: ProducerLoad, axis: IterVar) -> bool:
    """Whether an element is read at the place along an axis itself, or is the same along it."""
    used = [index for index in load.indices if axis.var in bare_vars(index)]
    return len(used) <= 1 and all(step_of(index, axis.var) == 1 for index in used)


def bare_vars(*nodes: PrimExpr) -> set[Var]:
    """The variables that values or conditions depend on, outside of the indices of reads."""
    return {each for each in outside_of_loads(*nodes) if isinstance(each, Var)}


def plain_axes_of(contraction: Contraction, factor: Factor) -> list[IterVar] | None:
    """The axis that indexes each dimension of a factor; None if a dimension is indexed otherwise,
    or the tensor is read at several places."""
    op, tensor = contraction.op, factor.tensor
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    if sum(each.tensor is tensor for each in contraction.factors) != 1:
        return None
    found = [axes.get(index) for index in factor.load.indices if isinstance(index, Var)]
    known = [axis for axis in found if axis is not None]
    return known if len(known) == tensor.ndim else None


def can_be_packed(contraction: Contraction) -> bool:
    """Whether the columns' factor can be packed into panels that a row of tiles reads."""
    return bool(contraction.rows) and plain_axes_of(contraction, contraction.b) is not None


def is_in_order(op: ComputeOp, strict: bool) -> bool:
    """Whether a reduction's steps must be combined one after the other."""
    is_rounded = any(body.dtype.is_float for body in op.body)
    return (strict and is_rounded) or not can_be_reordered(op)


def is_rounded(op: ComputeOp) -> bool:
    """Whether each step of a reduction rounds a float."""
    return reduce_of(op).combiner.result[0].dtype.is_float and not is_extremum(op)


def is_extremum(op: ComputeOp) -> bool:
    """Whether a reduction is a minimum or maximum of floats: in plain loops, LLVM tests each step
    for NaN."""
    reduce = reduce_of(op)
    return reduce.dtype.is_float and is_operator(reduce.combiner, e.Min, e.Max)


def part_of_long_sum(op: ComputeOp) -> int | None:
    """The number of steps along the last axis that one partial sum adds, so that half of the digits
    stay exact in spite of rounding. None where the axis has no more steps, or nothing is
    rounded."""
    extent = extent_of(op.reduce_axis[-1])
    if len(op.body) > 1 or not is_rounded(op) or is_uneven(op):
        return None
    least = 1 << (24 if op.body[0].dtype.bits < 64 else 53) // 2
    if extent is None:
        return least
    return 1 << (extent.bit_length() // 2) if extent > least else None


def is_uneven(op: ComputeOp) -> bool:
    """Whether the length of a stage's sums depends on other axes, or on data."""
    return bool(uneven_axes(op) or read_by_ranges(op))


def running_axis(op: ComputeOp, *, in_order: bool = False) -> IterVar | None:
    """The data axis along which a reduction gains one term from each element to the next; None if
    there is none. `in_order`: the new term must come behind all others."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or isinstance(reduce.condition, e.IntImm):
        return None
    found = (accumulation_of(op, axis) for axis in op.axis)
    return next((each.axis for each in found if each and (each.in_order or not in_order)), None)


def lanes_of(op: ComputeOp, target: Target) -> int:
    """The number of lanes of a vector of the widest of a stage's results."""
    return min(target.lanes(body.dtype) for body in op.body)


def uneven_axes(op: ComputeOp) -> set[IterVar]:
    """The axes on which the ranges of sums depend."""
    doms = map(domain_of, op.reduce_axis)
    used = {var for dom in doms for var in find(Var, dom.min, dom.extent)}
    return {axis for axis in (*op.axis, *op.reduce_axis) if axis.var in used}


def distances_of(load: ProducerLoad, op: ComputeOp) -> dict[Var, int]:
    """The distance in memory, in elements, of neighbouring reads along each axis of an operation;
    :data:`FAR` along an axis in which an index isn't affine."""
    axes = {axis.var: domain_of(axis) for axis in (*op.axis, *op.reduce_axis)}
    flat = _flat_index(load)
    if flat is not None:
        coefficients = _coefficients(flat, axes)
        if FAR not in coefficients.values():
            return {var: min(abs(c), FAR) for var, c in coefficients.items()}
    distance: dict[Var, int] = {}
    step: int | None = 1
    for index, extent in reversed(list(zip(load.indices, load.producer.shape, strict=True))):
        for var, coefficient in _coefficients(index, axes).items():
            more = FAR if step is None else min(abs(coefficient) * step, FAR)
            distance[var] = min(distance.get(var, 0) + more, FAR)
        known = e.const_int(extent)
        step = None if step is None or known is None else step * known
    return distance


def is_near_along(op: ComputeOp, load: ProducerLoad, axis: IterVar) -> bool:
    """Whether neighbours along an axis read elements near each other, or, where data choose each
    element, whether these data are near each other."""
    chosen_by = factors_in_indices(op, load) if is_lookup(load) else []
    distances = [each.distance for each in chosen_by] or [distances_of(load, op)]
    return all(each.get(axis.var, 0) <= NEAR for each in distances)


def is_at_digits(load: ProducerLoad) -> bool:
    """Whether an element is read at quotients or remainders, or data choose it: a vector of such
    elements is no vector of neighbours."""
    return is_lookup(load) or contains((e.FloorDiv, e.FloorMod), *load.indices)


def divisors_along(axes: Sequence[IterVar], *nodes: PrimExpr) -> list[int]:
    """The numbers of steps along some axes after which a quotient or a remainder in expressions
    repeats itself."""
    divisions = find((e.FloorDiv, e.FloorMod), *nodes)
    found = (e.const_int(x.b) for x in divisions if any(mentions(a.var, x) for a in axes))
    return [each for each in found if each is not None and each > 0]


def _flat_index(load: ProducerLoad) -> PrimExpr | None:
    """The place of an element in a tensor of constant sizes that is read at quotients, as a copy
    with flattened axes does: together they may be affine."""
    shape = load.producer.shape
    if None in map(e.const_int, shape) or not contains(e.FloorDiv, *load.indices):
        return None
    return Analyzer().simplify(place_in_memory(load.indices, shape))


_LINEAR = BITS[Var, e.IntImm, e.Add, e.Sub, e.Mul]


def _coefficients(index: PrimExpr, axes: Mapping[Var, Range]) -> dict[Var, int]:
    """The coefficients of the axes in an index. An axis inside of a quotient or remainder, such as
    the group of a channel, counts as one by itself; inside of anything else, as :data:`FAR`."""
    if isinstance(index, Var):
        return {index: 1} if index in axes else {}
    prover = Prover()
    if kinds_of(index) & ~_LINEAR:  # the ranges of axes tell nothing of a sum of their multiples
        for axis, dom in axes.items():
            prover.bind(axis, dom)
    found: dict[Var, int] = {}
    for atom, coefficient in prover.affine(index).terms.items():
        is_quotient = isinstance(atom, e.FloorDiv | e.FloorMod)
        for var in {each for each in find(Var, atom) if each in axes}:
            found[var] = coefficient if atom is var else 1 if is_quotient else FAR
    return found
