"""Results that are the same with two axes exchanged: half of them is computed, and mirrored.

::

    C[i, j] = sum(A[i, k] * A[j, k], k)

    C.half[i, j] = sum(A[i, k] * A[j, k], k, where=j // 48 >= i // 48)
    C[i, j] = if_then_else(j // 48 >= i // 48, C.half[i, j], C.half[j, i])
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from minitvm.arith.atoms import is_pure, structural_key
from minitvm.arith.guards import conjuncts
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.rewrite_operations import (
    at_axes,
    becoming,
    cloned,
    each_result,
    places_of,
    reduced,
)
from minitvm.te.tensor import ComputeOp, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce, Var
from minitvm.tir.functor import children, mentions
from minitvm.tir.structural_equal import structural_equal

_ORDERLESS = (e.Add, e.Mul, e.Min, e.Max, e.And, e.Or, e.EQ, e.NE)


def is_symmetric(op: ComputeOp, i: IterVar, j: IterVar) -> bool:
    """Whether a reduction has the same results, to the last bit, if two of its data axes are
    exchanged: its terms have."""
    reduce = op.body[0]
    if not isinstance(reduce, Reduce) or reduce.init or len(op.body) > 1 or i is j:
        return False
    height, width = (domain_of(axis).extent for axis in (i, j))
    ranges = (domain_of(axis) for axis in op.reduce_axis)
    if not structural_equal(height, width):
        return False
    if any(mentions(v.var, r.min, r.extent) for r in ranges for v in (i, j)):
        return False
    terms = (*reduce.source, reduce.condition)
    parts: dict[Hashable, int] = {}
    here = partial(_number, {}, parts, {})
    there = partial(_number, {i.var: j.var, j.var: i.var}, parts, {})
    return all(map(is_pure, terms)) and all(here(each) == there(each) for each in terms)


def _number(
    names: Mapping[Var, Var], parts: dict[Hashable, int], known: dict[int, int], node: PrimExpr
) -> int:
    """The place of an expression among distinct `parts`: equal ones have the same, whatever the
    order of the operands of sums and products, and the sign of squared differences. `names`: the
    variables that stand for others. A shared subexpression is looked at once."""
    number = known.get(id(node))
    if number is not None:
        return number
    key: Hashable
    below = [_number(names, parts, known, each) for each in children(node)]
    if isinstance(node, Var):
        key = id(names.get(node, node))
    elif not below:
        key = structural_key(node)
    else:
        kind = getattr(node, "op", None) or id(getattr(node, "producer", None))
        if isinstance(node, e.Mul) and isinstance(node.a, e.Sub) and below[0] == below[1]:
            kind, below = "square", [known[id(each)] for each in (node.a.a, node.a.b)]
        if isinstance(node, _ORDERLESS):
            below.sort()
        key = type(node), kind, str(node.dtype), *below
    number = known[id(node)] = parts.setdefault(key, len(parts))
    return number


def mirrored(op: ComputeOp, axes: Any, block: Any) -> tuple[ComputeOp, ComputeOp]:
    """An operation of half of the results, in square blocks, and one that mirrors them.

    Raises
    ------
    CompileError
        When the results are not the same with both axes exchanged.
    """
    where = f"mirror of {op.name}"
    if len(axes) != 2 or any(axis not in op.axis for axis in axes) or not is_symmetric(op, *axes):
        raise CompileError(
            f"{where}: expected two of its data axes that can be exchanged without another result, "
            f"got {', '.join(str(getattr(axis, 'name', axis)) for axis in axes)}"
        )
    if not isinstance(block, int) or block < 1:
        raise CompileError(f"{where}: expected a positive size of blocks, got {block!r}")
    i, j = axes
    own = [cloned(each, each.name) for each in op.axis]
    new = becoming(op.axis, own)
    reduce = at_axes(op, new)[0]
    assert isinstance(reduce, Reduce)
    is_half = new[j.var] // block >= new[i.var] // block
    body = each_result(replace(reduce, condition=e.logical_and(is_half, reduce.condition)))
    half = replace(
        op, name=f"{op.name}.half", axis=tuple(own), reduce_axis=reduced(body), body=body
    )
    places = places_of(op.axis)
    exchanged = {i: j.var, j: i.var}
    turned = [exchanged.get(axis, axis.var) for axis in op.axis]
    here, there = (ProducerLoad(half.output(0), tuple(at)) for at in (places, turned))
    is_here = i.var < (j.var // block + 1) * block  # as above, for a prover that solves it for i
    value = e.intrinsic("if_then_else", here.dtype, is_here, here, there)
    return half, replace(op, reduce_axis=(), body=(value,))


def block_of_half(condition: PrimExpr, axes: Any) -> int | None:
    """The size of the blocks of a condition ``j // size >= i // size`` on two of some axes; None of
    any other condition."""
    for each in conjuncts(condition):
        match each:
            case e.GE(
                e.FloorDiv(Var() as j, e.IntImm(value=size)),
                e.FloorDiv(Var() as i, e.IntImm(value=other)),
            ) if size == other and {i, j} <= {axis.var for axis in axes}:
                return int(size)
    return None
