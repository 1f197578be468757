"""Distributes products over sums: factors that some axes don't change move out of the sum over
these.

::

    C[b] = sum(x[b, i] * A[i, j] * x[b, j], (i, j))

    C.sums[b, i] = sum(A[i, j] * x[b, j], j)
    C[b] = sum(C.sums[b, i] * x[b, i], i)

Where the terms of the inner sums depend on two axes by their sum alone, as those of a window do,
it is one axis of the inner sums::

    B[i, j] = max(X[i + r, j + q], (r, q))

    B.sums[i, u] = max(X[i + r, u], r)
    B[i, j] = max(B.sums[i, j + q], q)

A product is distributive over a sum, modulo 2^n too; an addition of floats over a minimum and a
maximum. (Of integers it isn't: their additions may wrap.) A condition on data that is the same for
all terms of an inner sum moves out of any reduction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.effects import reads_tensors
from minitvm.arith.guards import conjuncts
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.factors import Times, divided, number, product
from minitvm.te.schedules.hoist_values import is_defined
from minitvm.te.tensor import ComputeOp, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import Call, IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import find, substitute, walk_once
from minitvm.tir.intrinsics import IMPURE_CALLS
from minitvm.tir.op import all as all_of
from minitvm.tir.structural_equal import structural_equal

_WIDE = 32  # the bits of a float that is exact enough for the values kept between the steps


def distributed(op: ComputeOp, axes: Collection[IterVar]) -> tuple[ComputeOp, ComputeOp]:
    """A reduction in two operations: the sums over `axes`, and the rest, which reads them.

    Raises
    ------
    CompileError
        When nothing can be taken out of the sums, or the results would change.
    """
    reduce, times = _checked(op, axes)
    own = [axis.var for axis in axes]
    source = reduce.source[0]
    inside, outside = (source, None) if times is None else divided(source, own, times)
    conditions = [*conjuncts(reduce.condition)]
    beyond = [each for each in conditions if not _uses(each, own)]
    taken, others = list[PrimExpr](), list[PrimExpr]()
    for each in beyond:
        (taken if inside is not None and _is_taken_out(op, inside, each) else others).append(each)
    within = [each for each in conditions if _uses(each, own)]
    kept = [
        axis
        for axis in (*op.axis, *op.reduce_axis)
        if inside is not None and axis not in axes and _uses_any((inside, *within), [axis.var])
    ]
    # Any other condition may guard the existence of elements, so it stays with their reads.
    within += [each for each in others if _is_of(op, axes, each, kept)]
    joined = {} if inside is None else _joined(op, kept, (inside, *within))
    if times is None and not taken and not joined:
        raise CompileError(
            f"factor_out of {op.name}: expected one sum of products, or one minimum or maximum of "
            "sums of floats, of 32 bits or more, or a condition on data that doesn't change in the "
            f"sums, got {source}"
        )
    if inside is None or (outside is None and not taken and not joined):
        _refuse(op, axes, "terms with a factor that they don't change, and one that they do")
    if outside is not None and not has_terms(op, axes):
        _refuse(op, axes, "a term in each of the inner sums")
    alone = [axis for axis in kept if axis not in joined.values()]
    extents = [
        domain_of(axis).extent + (domain_of(joined[axis]).extent - 1 if axis in joined else 0)
        for axis in alone
    ]
    new = data_axes([axis.name for axis in alone], extents)
    moved = {axis.var: domain_of(axis).min for axis in joined.values()}
    moved |= {old.var: domain_of(old).min + axis.var for old, axis in zip(alone, new, strict=True)}
    sums = replace(
        reduce,
        source=(substitute(inside, moved),),
        axis=tuple(axis for axis in op.reduce_axis if axis in axes),
        condition=substitute(all_of(True, *within), moved),
    )
    partial = ComputeOp(f"{op.name}.sums", "", {}, new, sums.axis, (sums,))
    place = {axis: axis.var - domain_of(axis).min for axis in kept}
    at = tuple(place[x] + place[joined[x]] if x in joined else place[x] for x in alone)
    value: PrimExpr = ProducerLoad(partial.output(0), at)
    if outside is not None:
        value = _times(value, outside) if times is e.Mul else e.add(value, outside)
        beyond += _where_some(op, axes)
    return partial, _rest(op, reduce, value, all_of(True, *beyond), axes)


def _times(value: PrimExpr, factor: PrimExpr) -> PrimExpr:
    """A product, or a quotient where the factor is one of 1."""
    is_inverse = isinstance(factor, e.Div) and number(factor.a) == 1
    return value / factor.b if isinstance(factor, e.Div) and is_inverse else product(value, factor)


def _joined(
    op: ComputeOp, kept: Sequence[IterVar], terms: Collection[PrimExpr]
) -> dict[IterVar, IterVar]:
    """Data axes of inner sums, each with the reduction axis that only changes the sum of both."""
    reduce = op.body[0]
    assert isinstance(reduce, Reduce)
    is_rounded = reduce.dtype.is_float and reduce.dtype.bits < _WIDE
    exact = (e.Min, e.Max) if is_rounded else (e.Add, e.Min, e.Max)
    if not is_operator(reduce.combiner, *exact):
        return {}
    found = dict[IterVar, IterVar]()
    steps = [axis for axis in kept if axis in op.reduce_axis]
    # The variables of each index: where an index has one of two without the other, their sum isn't
    # all that matters, and nothing has to be simplified.
    used = [{*find(Var, x)} for load in find(ProducerLoad, *terms) for x in load.indices]
    for axis in (each for each in kept if each in op.axis):
        for step in (each for each in steps if each not in found.values()):
            if any((axis.var in each) != (step.var in each) for each in used):
                continue
            apart = {axis.var: axis.var - step.var}
            if not any(_uses(Analyzer().simplify(substitute(x, apart)), [step.var]) for x in terms):
                found[axis] = step
                break
    return found


def _is_taken_out(op: ComputeOp, inside: PrimExpr, condition: PrimExpr) -> bool:
    """Whether a condition on data that doesn't change in inner sums need not be one of theirs: it
    and their terms `inside` may be evaluated everywhere. The loops of a tensor's tiles end at a
    condition on axes alone, so that one stays."""
    return reads_tensors(condition) and is_defined(op, condition) and is_defined(op, inside)


def times_of(op: ComputeOp) -> Times | None:
    """The operator over which the reducer of an operation is distributive; None if there is no such
    operator, or if the operation isn't separable.

    >>> from minitvm import te
    >>> A, k = te.placeholder((4, 3), name="A"), te.reduce_axis((0, 3), "k")
    >>> [times_of(te.compute((4,), lambda i: f(A[i, k], axis=k)).op) for f in (te.sum, te.max)]
    [<class 'minitvm.tir.nodes.Mul'>, <class 'minitvm.tir.nodes.Add'>]
    """
    reduce = op.body[0]
    return operator_of(reduce) if isinstance(reduce, Reduce) and is_separable(op) else None


def is_separable(op: ComputeOp) -> bool:
    """Whether an operation is a single reduction that may be done in two steps: its ranges are
    independent of each other, and its terms are pure."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or len(op.body) > 1 or reduce.init:
        return False
    ends = [end for k in op.reduce_axis for end in (domain_of(k).min, domain_of(k).extent)]
    if _uses_any(ends, [axis.var for axis in (*op.axis, *op.reduce_axis)]) or reads_tensors(*ends):
        return False
    return not any(
        isinstance(x, Call) and x.op in IMPURE_CALLS
        for x in walk_once(reduce.condition, *reduce.source)
    )


def operator_of(reduce: Reduce) -> Times | None:
    """The operator over which a separable reduction is distributive."""
    (result,), (identity,) = reduce.combiner.result, reduce.combiner.identity
    if not is_operator(reduce.combiner, e.Add, e.Min, e.Max):
        return None
    dtype = reduce.dtype
    if dtype.lanes > 1 or not ((dtype.is_float and dtype.bits >= _WIDE) or dtype.is_integral):
        return None
    if isinstance(result, e.Add):
        return e.Mul if structural_equal(identity, e.const(0, dtype)) else None
    sign = 1 if isinstance(result, e.Min) else -1
    is_infinite = dtype.is_float and structural_equal(identity, e.const(sign * float("inf"), dtype))
    return e.Add if is_infinite else None


def _checked(op: ComputeOp, axes: Collection[IterVar]) -> tuple[Reduce, Times | None]:
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or not is_separable(op):
        raise CompileError(
            f"factor_out of {op.name}: expected one reduction over fixed ranges, got {op.body[0]}"
        )
    if not axes or not {*axes} <= {*op.reduce_axis}:
        names = ", ".join(axis.name for axis in op.reduce_axis)
        raise CompileError(
            f"factor_out of {op.name}: expected some of its reduce axes ({names}), got "
            f"{[getattr(each, 'name', each) for each in axes]}"
        )
    return reduce, operator_of(reduce)


def _refuse(op: ComputeOp, axes: Iterable[IterVar], expected: str) -> NoReturn:
    names = ", ".join(axis.name for axis in axes)
    raise CompileError(
        f"factor_out of {op.name}: expected {expected}, found none for {names}: leave the sum as "
        "it is, or choose other axes"
    )


def _is_of(
    op: ComputeOp, axes: Collection[IterVar], condition: PrimExpr, kept: Sequence[IterVar]
) -> bool:
    """Whether a condition belongs to the inner sums over `axes`; refused where it also depends on
    axes that the `kept` sums don't have."""
    used = {axis for axis in (*op.axis, *op.reduce_axis) if _uses(condition, [axis.var])}
    if used and not used <= {*kept} and not used.isdisjoint(kept):
        _refuse(op, axes, f"a condition on axes of the inner sums alone, and not {condition}")
    return bool(used) and used <= {*kept}


def has_terms(op: ComputeOp, axes: Collection[IterVar]) -> bool:
    """Whether it is known that each of a reduction's sums over `axes` has terms, unless a symbolic
    extent is 0. A sum of no terms is 0. For floats, NaN or infinity times that 0 isn't 0; for
    integers any product with 0 is.
    """
    if op.body[0].dtype.is_integral:
        return True
    if 0 in (e.const_int(domain_of(axis).extent) for axis in axes):
        return False
    reduce, own = op.body[0], [axis.var for axis in axes]
    assert isinstance(reduce, Reduce)
    conditions = [each for each in conjuncts(reduce.condition) if _uses(each, own)]
    if not conditions:
        return True
    known = Analyzer()
    for axis in (*op.axis, *op.reduce_axis):
        known.bind(axis.var, domain_of(axis))
    domains = {axis.var: domain_of(axis) for axis in axes}
    first = {var: dom.min for var, dom in domains.items()}
    last = {var: dom.min + dom.extent - 1 for var, dom in domains.items()}
    return any(
        all(known.can_prove(substitute(each, place)) for each in conditions)
        for place in (first, last)
    )


def _where_some(op: ComputeOp, axes: Collection[IterVar]) -> list[PrimExpr]:
    """The conditions on symbolic extents under which each inner sum of floats has terms. An extent
    that another axis has as well needs no condition: where it is 0, nothing is computed."""
    if op.body[0].dtype.is_integral:
        return []
    extents = [domain_of(axis).extent for axis in axes]
    others = [domain_of(axis).extent for axis in (*op.axis, *op.reduce_axis) if axis not in axes]
    return [
        extent > 0
        for extent in extents
        if e.const_int(extent) is None and not any(structural_equal(extent, x) for x in others)
    ]


def _rest(
    op: ComputeOp, reduce: Reduce, value: PrimExpr, where: PrimExpr, axes: Collection[IterVar]
) -> ComputeOp:
    left = tuple(axis for axis in op.reduce_axis if axis not in axes)
    if left:
        made: PrimExpr = replace(reduce, source=(value,), axis=left, condition=where)
    elif e.const_int(where) == 1:
        made = value
    else:
        made = e.intrinsic("if_then_else", value.dtype, where, value, reduce.combiner.identity[0])
    return replace(op, reduce_axis=left, body=(made,))


def _uses(node: PrimExpr, variables: Collection[Var]) -> bool:
    return _uses_any((node,), variables)


def _uses_any(nodes: Iterable[PrimExpr], variables: Collection[Var]) -> bool:
    return not {*variables}.isdisjoint(walk_once(*nodes))
