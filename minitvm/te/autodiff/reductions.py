"""The values from which a stage computes its elements, each with its adjoint.

For a sum, each term has the adjoint of the sum. A reducer that chooses, as a maximum does, hands
the adjoint to the term that was chosen: a stage computes its position. A product is the product of
all other factors, times one factor. Any other reduction is a scan over its terms
(:mod:`minitvm.te.autodiff.folds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod as product_of
from typing import Any, final

from minitvm.runtime.dtype import INT32, INT64, DType
from minitvm.runtime.record import record
from minitvm.te.autodiff.functions import number, where
from minitvm.te.autodiff.stages import (
    new_data_axes,
    new_reduce_axes,
    stage,
    stages,
)
from minitvm.te.tensor import ComputeOp, Tensor, domain_of
from minitvm.tir import expr as e
from minitvm.tir import op, reducer
from minitvm.tir.commutation import is_operator
from minitvm.tir.expr import (
    Call,
    CommReducer,
    IterVar,
    PrimExpr,
    ProducerLoad,
    Reduce,
    Select,
    Var,
    const_int,
)
from minitvm.tir.functor import contains, substitute
from minitvm.tir.structural_equal import structural_equal


@final
@record()
class Term:
    """A value that takes part in the elements of a stage.

    Attributes
    ----------
    value
        The value in an iteration of `axes`.
    adjoint
        Its adjoint there.
    axes
        The iterations.
    conditions
        Those under which the value is evaluated.
    output
        The index of the output whose elements are the values, if they are an output's.
    """

    value: PrimExpr
    adjoint: PrimExpr
    axes: tuple[IterVar, ...]
    conditions: tuple[PrimExpr, ...] = ()
    output: int | None = None


def terms_of(op: ComputeOp, adjoints: Mapping[int, PrimExpr]) -> list[Term]:
    """The terms of a stage that isn't a fold, by the adjoints of the elements of its outputs, for
    each index of an output that has one."""
    first = op.body[0]
    if not isinstance(first, Reduce):
        return [Term(op.body[i], adjoint, op.axis, (), i) for i, adjoint in adjoints.items()]
    return list(_Reduction(op, first, adjoints).terms())


def chooses(op: ComputeOp) -> bool:
    """Whether a stage reduces to one of the reduced values, as a maximum does."""
    first = op.body[0]
    return isinstance(first, Reduce) and _choices_of(first.combiner) is not None


def is_fold(op: ComputeOp) -> bool:
    """Whether the terms of a stage have an adjoint only in their order: it reduces by something
    else than a sum, a choice, or the product of one factor."""
    first = op.body[0]
    if not isinstance(first, Reduce):
        return False
    combiner = first.combiner
    if contains(ProducerLoad, *combiner.result, *(() if first.init else combiner.identity)):
        return True
    return not (
        is_operator(combiner, e.Add) or _is_product(first) or _choices_of(combiner) is not None
    )


def _is_product(reduce: Reduce) -> bool:
    first = (*reduce.init, *reduce.combiner.identity)[0]
    return len(reduce.source) == 1 and is_operator(reduce.combiner, e.Mul) and number(first) == 1


@final
class _Reduction:
    """A stage that reduces, and the adjoints of its results."""

    def __init__(self, op: ComputeOp, reduce: Reduce, adjoints: Mapping[int, PrimExpr]) -> None:
        self._op = op
        self._reduce = reduce
        self._adjoints = adjoints
        self._axes = (*op.axis, *reduce.axis)
        always = const_int(reduce.condition) == 1
        self._conditions = () if always else (reduce.condition,)

    def terms(self) -> Iterator[Term]:
        combiner = self._reduce.combiner
        if is_operator(combiner, e.Add):
            return self._of_sum()
        choices = _choices_of(combiner)
        if choices is not None:
            return self._of_choices(choices)
        return self._of_product()

    def _term(self, index: int, adjoint: PrimExpr) -> Term:
        return Term(self._reduce.source[index], adjoint, self._axes, self._conditions)

    def _first(self, index: int, adjoint: PrimExpr) -> Iterator[Term]:
        """The value from which the reduction begins."""
        if self._reduce.init:
            yield Term(self._reduce.init[index], adjoint, self._op.axis)

    def _of_sum(self) -> Iterator[Term]:
        for index, adjoint in self._adjoints.items():
            yield self._term(index, adjoint)
            yield from self._first(index, adjoint)

    # -- Choices ----------------------------------------------------------------------------------

    def _of_choices(self, choices: Sequence[_Choice]) -> Iterator[Term]:
        dtype = _position_dtype(self._reduce.axis)
        nowhere = op.max_value(dtype)
        here = _position(self._reduce.axis, dtype)
        made = {
            choices[index]: self._positions(choices, choices[index], dtype, nowhere)
            for index in self._adjoints
        }
        for index, adjoint in self._adjoints.items():
            zero, chosen = e.const(0, adjoint.dtype), made[choices[index]](*self._op.axis)
            yield self._term(index, where(e.equal(chosen, here), adjoint, zero))
            yield from self._first(index, where(e.equal(chosen, nowhere), adjoint, zero))

    def _positions(
        self, choices: Sequence[_Choice], choice: _Choice, dtype: DType, nowhere: PrimExpr
    ) -> Tensor:
        """The position of the term that one of the reducer's choices takes for each element."""
        axis, renamed = new_data_axes(self._op.axis)
        reduced, renamed = new_reduce_axes(self._reduce.axis, renamed)
        made = self._renamed(renamed)
        lhs, rhs = Var("lhs_position", dtype), Var("rhs_position", dtype)
        combiner = made.combiner
        triples = zip((*choices, choice), (*combiner.lhs, lhs), (*combiner.rhs, rhs), strict=True)
        combined = CommReducer(
            (*combiner.lhs, lhs),
            (*combiner.rhs, rhs),
            tuple(Select(substitute(each(lhs, rhs), renamed), a, b) for each, a, b in triples),
            (*combiner.identity, nowhere),
        )
        source = (*made.source, _position(reduced, dtype))
        init = (*made.init, nowhere) if made.init else ()
        results = [
            Reduce(combined, source, reduced, made.condition, i, init) for i in range(len(source))
        ]
        name = f"{self._op.name}_position"
        return stages(name, axis, *results, repeats=self._op)[-1]

    def _renamed(self, renamed: Mapping[Var, PrimExpr]) -> Reduce:
        """The reduction in terms of other variables of the axes."""
        reduce = self._reduce

        def each(values: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
            return tuple(substitute(value, renamed) for value in values)

        combiner = reduce.combiner
        changed = CommReducer(
            combiner.lhs, combiner.rhs, each(combiner.result), each(combiner.identity)
        )
        condition = substitute(reduce.condition, renamed)
        return Reduce(changed, each(reduce.source), reduce.axis, condition, 0, each(reduce.init))

    # -- Products ---------------------------------------------------------------------------------

    def _of_product(self) -> Iterator[Term]:
        (adjoint,) = self._adjoints.values()
        factor = self._reduce.source[0]
        zero, one = e.const(0, factor.dtype), e.const(1, factor.dtype)
        zeros = self._reduced(reducer.sum, "zeros", lambda x: where(e.equal(x, 0), one, zero))
        others = self._reduced(reducer.prod, "others", lambda x: where(e.equal(x, 0), one, x))
        count, rest = zeros(*self._op.axis), others(*self._op.axis)
        is_zero = e.equal(factor, zero)
        of_zero = where(e.equal(count, one), rest, zero)
        of_other = where(e.equal(count, zero), rest / where(is_zero, one, factor), zero)
        yield self._term(0, adjoint * where(is_zero, of_zero, of_other))

    def _reduced(self, reduce: Any, name: str, element: Callable[[PrimExpr], PrimExpr]) -> Tensor:
        axis, renamed = new_data_axes(self._op.axis)
        reduced, renamed = new_reduce_axes(self._reduce.axis, renamed)
        made = self._renamed(renamed)
        value = reduce(element(made.source[0]), axis=list(reduced), where=made.condition)
        return stage(f"{self._op.name}_{name}", axis, value)


# -- Reducers by their combination ----------------------------------------------------------------

_Choice = Callable[[Var, Var], PrimExpr]
"""Whether a reducer takes its left operand, by both operands' positions."""


def _choices_of(combiner: CommReducer) -> list[_Choice] | None:
    """How a reducer chooses one of its operands for each result, which may differ where operands
    are equal; choices by one condition are one. None for a reducer that computes with operands."""
    made: list[_Choice] = []
    by_condition: list[tuple[PrimExpr, _Choice]] = []
    for result, a, b in zip(combiner.result, combiner.lhs, combiner.rhs, strict=True):
        if isinstance(result, e.Max | e.Min) and {result.a, result.b} == {a, b}:
            is_better = a > b if isinstance(result, e.Max) else a < b
            if a.dtype.is_float:  # the result with a NaN is NaN
                is_better = e.logical_or(is_better, e.not_equal(a, a))
            made.append(partial(_first_of, is_better, e.equal(a, b)))
            continue
        condition = _chosen(result, a, b)
        if condition is None:
            return None
        known = [choice for each, choice in by_condition if structural_equal(each, condition)]
        made.append(known[0] if known else partial(_by_values, condition))
        by_condition.append((condition, made[-1]))
    return made


def _first_of(is_better: PrimExpr, is_equal: PrimExpr, x: Var, y: Var) -> PrimExpr:
    return e.logical_or(is_better, e.logical_and(is_equal, x < y))


def _by_values(condition: PrimExpr, x: Var, y: Var) -> PrimExpr:
    return condition


def _chosen(result: PrimExpr, a: Var, b: Var) -> PrimExpr | None:
    """The condition under which a result is `a` and not `b`."""
    match result:
        case Select(condition, x, y) | Call(op="if_then_else", args=(condition, x, y)):
            if x is a and y is b:
                return condition
            return e.logical_not(condition) if x is b and y is a else None
    return None


def _position_dtype(axes: Sequence[IterVar]) -> DType:
    """A dtype that holds the positions of all terms."""
    extents = [const_int(domain_of(axis).extent) for axis in axes]
    if None not in extents:
        return INT32 if product_of(each or 0 for each in extents) < INT32.max() else INT64
    return axes[0].var.dtype if len(axes) == 1 else INT64


def _position(axes: Sequence[IterVar], dtype: DType) -> PrimExpr:
    """The number of a term in the order of the axes."""
    total: PrimExpr = e.const(0, dtype)
    for axis in axes:
        dom = domain_of(axis)
        total = total * e.cast(dtype, dom.extent) + e.cast(dtype, axis.var - dom.min)
    return total
