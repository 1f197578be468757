"""Reductions as scans, which have a derivative for each combination.

A reduction begins with a value, and combines it with each term, in order. A scan over the terms
keeps all the values in between::

    Y[i] = reduce(X[i, k], k)       S[0, i] = identity
                                    S[t, i] = combine(S[t - 1, i], X[i, t - 1])     Y[i] = S[n, i]

The adjoint of a scan asks nothing of the combination but a derivative: it need not be commutative,
nor associative. Its time is linear in the number of terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.arith.prover import Prover
from minitvm.arith.regions import Spans
from minitvm.runtime.errors import CompileError
from minitvm.te.autodiff.stages import new_data_axes, reads, stages
from minitvm.te.operation import placeholder
from minitvm.te.scan import scan as te_scan
from minitvm.te.tensor import ComputeOp, ScanOp, Tensor, data_axes, domain_of, reduce_of
from minitvm.tir import expr as e
from minitvm.tir import op as language
from minitvm.tir.expr import IterVar, PrimExpr, Reduce, Var, const_int
from minitvm.tir.functor import substitute


def scan_of(op: ComputeOp) -> ScanOp:
    """The scan whose results at the last step are the tensors of an operation that reduces.

    Raises
    ------
    CompileError
        When data choose the number of terms.

    >>> from minitvm import te
    >>> A, k = te.placeholder((4, 8), name="A"), te.reduce_axis((0, 8), name="k")
    >>> far = te.comm_reducer(lambda a, b: te.sqrt(a * a + b * b), lambda t: te.const(0, t))
    >>> scan_of(te.compute((4,), lambda i: far(A[i, k], axis=k), name="B").op).outputs
    (Tensor(shape=[9, 4], op.name=B_terms),)
    """
    reduce = reduce_of(op)
    extents = _extents(op, reduce.axis)
    count: PrimExpr = e.const(1, extents[0].dtype)
    for extent in extents:
        count = count * e.cast(count.dtype, extent)
    name, shape = f"{op.name}_terms", op.outputs[0].shape
    states = [placeholder((count + 1, *shape), each.dtype, f"{name}_state") for each in op.body]
    made = te_scan(
        [*_first(op, reduce, name)], [*_step(op, reduce, extents, states)], states, name=name
    )
    found: ScanOp = (made[0] if isinstance(made, list) else made).op
    return found


def _first(op: ComputeOp, reduce: Reduce, name: str) -> tuple[Tensor, ...]:
    """The values from which the reduction begins."""
    axis, values = new_data_axes(op.axis)
    first = [substitute(each, values) for each in reduce.init or reduce.combiner.identity]
    return stages(f"{name}_first", (*data_axes(["t"], [e.const(1)]), *axis), *first)


def _step(
    op: ComputeOp, reduce: Reduce, extents: Sequence[PrimExpr], states: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The values after each term."""
    axis, values = new_data_axes(op.axis)
    (time,) = data_axes(["t"], [states[0].shape[0]])
    before = [state(time.var - 1, *(each.var for each in axis)) for state in states]
    inside = _set_place(values, reduce.axis, extents, time.var - 1)
    condition = language.all(*inside, substitute(reduce.condition, values))
    combiner = reduce.combiner
    terms = [substitute(each, values) for each in reduce.source]
    operands = {
        **values,
        **dict(zip((*combiner.lhs, *combiner.rhs), (*before, *terms), strict=True)),
    }
    after = [substitute(each, operands) for each in combiner.result]
    if const_int(condition) != 1:
        pairs = zip(after, before, strict=True)
        after = [language.if_then_else(condition, a, b) for a, b in pairs]
    return stages(f"{op.name}_terms_step", (time, *axis), *after)


def _set_place(
    values: dict[Var, PrimExpr],
    axes: Sequence[IterVar],
    extents: Sequence[PrimExpr],
    place: PrimExpr,
) -> list[PrimExpr]:
    """Sets the values of the axes at a place among all terms, the last axis being the fastest.
    Returns the conditions under which they are in their ranges."""
    digits: list[PrimExpr] = []
    for extent in reversed(extents[1:]):
        digits.insert(0, e.floormod(place, extent))
        place = e.floordiv(place, extent)
    digits.insert(0, place)
    inside: list[PrimExpr] = []
    for axis, digit, extent in zip(axes, digits, extents, strict=True):
        dom = domain_of(axis)
        own = substitute(dom.extent, values)
        if own is not extent:
            inside.append(digit < own)
        values[axis.var] = e.cast(axis.var.dtype, substitute(dom.min, values) + digit)
    return inside


def _extents(op: ComputeOp, axes: Sequence[IterVar]) -> list[PrimExpr]:
    """The greatest extent of each reduction axis, which no other axis has a part in."""
    spans, found = Spans(Prover()), list[PrimExpr]()
    for axis in op.axis:
        spans.let(axis.var, spans.of_range(domain_of(axis)))
    for axis in axes:
        dom = domain_of(axis)
        span = spans.of(dom.extent)
        if span is None or reads(dom.extent) or reads(dom.min):
            raise CompileError(
                f"gradient: {op.name}: expected a reducer that adds, multiplies or chooses, or "
                f"reduction axes whose ranges need no data, found that {axis.name} has length "
                f"{dom.extent} from {dom.min}: reduce over the greatest length, with where="
            )
        extent = dom.extent if span.is_point else spans.expression(span.high, dom.extent.dtype)
        found.append(e.const(1, extent.dtype) if const_int(extent) == 0 else extent)
        spans.let(axis.var, spans.of_range(dom))
    return found
