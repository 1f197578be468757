"""Reductions that find a place, as an argmax does: first in which block of steps it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.rewrite_operations import (
    becoming,
    cloned,
    each_result,
    place_among,
    places_of,
)
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.arithmetic import maximum, minimum
from minitvm.tir.commutation import plain_extremum
from minitvm.tir.expr import IterType, IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var
from minitvm.tir.functor import Substitution, mentions
from minitvm.tir.promotion import cast

_T = TypeVar("_T")


def place_found(op: ComputeOp) -> int | None:
    """The component of a reduction's operands that is the place of a step, if the other components
    alone decide which operand is chosen; None if there is none."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or len(op.reduce_axis) > 1 or len(op.body) == 1:
        return None
    place, *others = place_among(op, reduce) or (None,)
    if place is None or others:
        return None
    results = _without(place, reduce.combiner.result)
    names = reduce.combiner.lhs[place], reduce.combiner.rhs[place]
    return None if any(mentions(name, *results) for name in names) else place


def found_in_blocks(op: ComputeOp, size: Any) -> tuple[ComputeOp, ComputeOp, ComputeOp]:
    """A reduction that finds a place, in three: the chosen values of each block of `size` steps;
    the block that holds the result; and the reduction of this block."""
    where, place, reduce = f"find_block of {op.name}", place_found(op), op.body[0]
    if place is None or not isinstance(reduce, Reduce):
        raise CompileError(
            f"{where}: expected a reduction of tuples that chooses the place of a step by the "
            f"other components, as an argmax does"
        )
    (axis,) = op.reduce_axis
    extent = e.const_int(domain_of(axis).extent)
    if not isinstance(size, int) or extent is None or not 1 <= size <= extent:
        raise CompileError(
            f"{where}: expected a size of blocks from 1 to the steps of {axis.name}, whose range "
            f"is constant, got {size!r} of {domain_of(axis).extent}"
        )
    dtype = axis.var.dtype
    count = -(-extent // size)

    def at(block: PrimExpr, axes: Sequence[IterVar]) -> Reduce:
        """The reduction of one block. The last one ends with the last step."""
        begin = block * size if extent % size == 0 else minimum(block * size, extent - size)
        step = _steps(size, f"{axis.name}.inner", dtype)
        values = {axis.var: domain_of(axis).min + begin + step.var}
        rewrite = Substitution(becoming(op.axis, axes) | values)
        source = tuple(map(rewrite.expr, reduce.source))
        condition = rewrite.expr(reduce.condition)
        return replace(reduce, source=source, axis=(step,), condition=condition, value_index=0)

    blocks = IterVar(Range(0, count), Var(f"{axis.name}.outer", dtype, axis=True))
    axes = [cloned(each, each.name) for each in op.axis]
    whole = at(blocks.var, axes)
    combiner = replace(
        reduce.combiner,
        lhs=_without(place, reduce.combiner.lhs),
        rhs=_without(place, reduce.combiner.rhs),
        result=_without(place, reduce.combiner.result),
        identity=_without(place, reduce.combiner.identity),
    )
    chosen = each_result(
        replace(whole, combiner=plain_extremum(combiner), source=_without(place, whole.source))
    )
    best = replace(
        op, name=f"{op.name}.best", axis=(*axes, blocks), reduce_axis=whole.axis, body=chosen
    )
    axes, number = [cloned(each, each.name) for each in op.axis], _steps(count, blocks.name, dtype)
    source: list[PrimExpr] = [
        ProducerLoad(each, (*places_of(axes), number.var)) for each in best.outputs
    ]
    source.insert(place, cast(reduce.source[place].dtype, number.var))
    found = replace(reduce, source=tuple(source), axis=(number,), condition=e.const(True))
    block = replace(
        op,
        name=f"{op.name}.block",
        axis=tuple(axes),
        reduce_axis=(number,),
        body=each_result(replace(found, value_index=0)),
    )
    # Where no step is chosen, any block finds none.
    held = cast(dtype, ProducerLoad(block.output(place), places_of(op.axis)))
    rest = at(maximum(minimum(held, count - 1), 0), op.axis)
    return best, block, replace(op, reduce_axis=rest.axis, body=each_result(rest))


def _steps(extent: int, name: str, dtype: Any) -> IterVar:
    return IterVar(Range(0, extent), Var(name, dtype, axis=True), IterType.COMM_REDUCE)


def _without(place: int, parts: Sequence[_T]) -> tuple[_T, ...]:
    return (*parts[:place], *parts[place + 1 :])
