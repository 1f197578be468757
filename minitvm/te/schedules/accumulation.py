"""Running reductions: along a data axis, each element reduces one term more than the one before.

``C[j] = sum over k <= j of A[k]`` then needs one addition for each element,
``C[j] = C[j - 1] + A[j]``; plain loops compute each sum from its first term.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import final

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.guards import conjuncts, form_of
from minitvm.arith.linear import Affine
from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.te.schedules.loop_nest import LoopNest, names_of
from minitvm.te.schedules.operation_graph import read_by_ranges
from minitvm.te.schedules.relation import results_of, sources_of
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.commutation import is_commutative
from minitvm.tir.expr import IterVar, PrimExpr, Range, Reduce, Var
from minitvm.tir.functor import mentions, walk_once
from minitvm.tir.op import all as all_of
from minitvm.tir.op import is_likely, likely
from minitvm.tir.stmt import ForKind


@final
@record()
class Accumulation:
    """A running reduction: the term that each element along a data axis adds to the element before.

    Attributes
    ----------
    axis, step
        The data axis, and the reduction axis whose range grows along it.
    term
        The value of `step` for the term that an element adds, in terms of `axis`.
    condition
        The condition under which an element adds a term.
    is_descending
        Whether the terms grow from the last element to the first.
    in_order
        Whether each term comes behind those before it in the reduction's own order.
    """

    axis: IterVar
    step: IterVar
    term: PrimExpr
    condition: PrimExpr
    is_descending: bool
    in_order: bool


def accumulation_of(op: ComputeOp, axis: IterVar) -> Accumulation | None:
    """The running reduction along a data axis: each element must have one term more than the one
    before. None if the elements don't.

    >>> from minitvm import te
    >>> A, k = te.placeholder((8,), name="A"), te.reduce_axis((0, 8), name="k")
    >>> B = te.compute((8,), lambda j: te.sum(A[k], axis=k, where=k < j), name="B")
    >>> found = accumulation_of(B.op, B.op.axis[0])
    >>> str(found.term), str(found.condition), found.is_descending
    ('j - 1', 'j - 1 >= 0', False)
    """
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or read_by_ranges(op):
        return None
    known = Analyzer()
    for tensor in (*op.outputs, *op.input_tensors):
        for extent in tensor.shape:
            known.bind_size(extent)
    for each in (*op.axis, *op.reduce_axis):
        if e.const_int(domain_of(each).extent) != 0:  # an empty range would prove anything
            known.bind(each.var, domain_of(each))
    combiner = reduce.combiner
    ranges = [end for each in reduce.axis for end in (domain_of(each).min, domain_of(each).extent)]
    terms = (*reduce.source, *reduce.init, *combiner.result, *combiner.identity, *ranges)
    if any(mentions(axis.var, each) for each in terms):
        return None
    conditions = [*conjuncts(reduce.condition)]
    growing = [each for each in conditions if mentions(axis.var, each)]
    for condition, step in product(growing, reduce.axis):
        made = _growing(known, axis, step, condition)
        others = [each for each in growing if each is not condition and not known.can_prove(each)]
        if made is None or others or any(mentions(step.var, each) for each in ranges):
            continue
        if made.in_order or is_commutative(combiner):
            rest = [each for each in conditions if not mentions(axis.var, each)]
            return replace(made, condition=all_of(True, *conjuncts(made.condition), *rest))
    return None


def _growing(
    known: Analyzer, axis: IterVar, step: IterVar, condition: PrimExpr
) -> Accumulation | None:
    """The accumulation of the steps for which `condition` holds."""
    (bare,) = condition.args if is_likely(condition) else (condition,)
    form = form_of(known, bare)
    if form is None:
        return None
    own = {axis.var, step.var}
    others = [atom for atom in form.terms if atom not in own]
    by_step, by_axis = form.terms.get(step.var, 0), form.terms.get(axis.var, 0)
    if {abs(by_step), abs(by_axis)} != {1} or any(map(_has_axis, others)):
        return None
    domain, steps = domain_of(axis), domain_of(step)
    low, high = _ends(known, steps)
    begin, end = _ends(known, domain)
    # The condition bounds the steps: term(j) is the last step of element j, or the first.
    term = form - known.affine(step.var) * by_step
    term = term if by_step < 0 else -term
    is_descending = by_axis < 0
    first = term + (end if is_descending else begin) * term.terms[axis.var]
    first = first - known.affine(axis.var) * term.terms[axis.var]
    if not known.proves(low - first if by_step < 0 else first - high):
        return None  # several steps belong to the first element
    dtype = step.var.dtype
    inside = [
        likely(e.greater_equal(known.expression(room, dtype), 0))
        for room in (term - low, high - term)
        if not known.proves(room)
    ]
    value = known.expression(term, dtype)
    return Accumulation(axis, step, value, all_of(True, *inside), is_descending, by_step < 0)


def _ends(known: Analyzer, domain: Range) -> tuple[Affine, Affine]:
    """The first and the last value of a range."""
    low = known.affine(domain.min)
    return low, low + known.affine(domain.extent) - 1


def _has_axis(atom: PrimExpr) -> bool:
    return any(isinstance(each, Var) and each.axis for each in walk_once(atom))


# -- Loops ----------------------------------------------------------------------------------------


def normalize_loops(stage: LoopNest, axis: IterVar) -> None:
    """Prepares a stage that accumulates along an axis: its loops begin at the first element that
    has a term, and each element reduces one term.

    Raises
    ------
    CompileError
        When the loops along `axis` don't go through it in order.
    """
    found = checked_accumulation(stage, axis)
    along = _loops_along(stage, axis, found.step)
    places = [stage.leaf_iter_vars.index(each) for each in along]
    kinds = [stage.attrs_of(each).kind for each in along]
    inside = [leaf for leaf in stage.leaf_iter_vars[places[-1] + 1 :] if leaf is not found.step]
    if kinds[-1] == ForKind.VECTORIZED and not inside:
        kinds.pop()
    is_serial = all(kind in (ForKind.SERIAL, ForKind.UNROLLED) for kind in kinds)
    if places != sorted(places) or not is_serial:
        raise CompileError(
            f"{_where(stage, axis)}: expected loops that go through {axis.name} in order, and "
            "aren't parallel; the innermost one may be vectorized; found "
            f"{names_of(stage.leaf_iter_vars)}"
        )
    stage.rebase(found.step)
    if found.is_descending:
        stage.reverse(axis)


def checked_accumulation(stage: LoopNest, axis: IterVar) -> Accumulation:
    """The running reduction of a stage along an axis.

    Raises
    ------
    CompileError
        When the stage is no running reduction along the axis.
    """
    found = accumulation_of(stage.op, axis) if isinstance(stage.op, ComputeOp) else None
    if found is None:
        body = stage.op.body[0] if isinstance(stage.op, ComputeOp) else stage.op
        raise CompileError(
            f"{_where(stage, axis)}: expected a reduction over one step more for each element "
            f"along it, such as te.sum(X[k], axis=k, where=k <= {axis.name}), got {body}"
        )
    return found


def _where(stage: LoopNest, axis: IterVar) -> str:
    return f"{stage.name}: accumulate along {axis.name}"


def _loops_along(stage: LoopNest, axis: IterVar, step: IterVar) -> list[IterVar]:
    """The loops along an axis, in the order of its elements."""
    along = [axis]
    for relation in stage.relations:
        sources = sources_of(relation)
        mine = [each for each in sources if each in along]
        if step in sources or 0 < len(mine) < len(sources):
            raise CompileError(
                f"{_where(stage, axis)}: expected loops along {axis.name} alone, and none along "
                f"{step.name}, found {names_of(sources)} in one"
            )
        if mine:
            place = along.index(mine[0])
            along[place : place + len(mine)] = results_of(relation)
    return along
