"""Operations for each place along an axis, and the operation that puts their results together.

::

    C[i, c] = sum(if_then_else(c == 0, f(i, k), g(i, k)), k)

    C.0[i] = sum(f(i, k), k)
    C.1[i] = sum(g(i, k), k)
    C[i, c] = if_then_else(c == 0, C.0[i], C.1[i])
"""

from __future__ import annotations

from dataclasses import replace

from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.rewrite_operations import (
    at_axes,
    becoming,
    cloned,
    each_result,
    places_of,
)
from minitvm.te.schedules.simplify_operations import simplified
from minitvm.te.tensor import ComputeOp, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Reduce
from minitvm.tir.functor import Substitution

MOST_PLACES = 16  # each is a stage of its own


def unstacked(op: ComputeOp, axis: IterVar) -> tuple[list[ComputeOp], ComputeOp]:
    """The operations of an operation's results at each place along a data axis, and the operation
    that reads them.

    Raises
    ------
    CompileError
        When `axis` is no data axis of a constant extent from 1 to :data:`MOST_PLACES`.
    """
    where = f"unstack of {op.name}"
    if axis not in op.axis:
        names = ", ".join(each.name for each in op.axis)
        raise CompileError(f"{where}: expected one of its data axes ({names}), got {axis!r}")
    extent = domain_of(axis).extent
    count = e.const_int(extent)
    if count is None or not 0 < count <= MOST_PLACES:
        raise CompileError(
            f"{where}: expected an axis of 1 to {MOST_PLACES} places, got {axis.name} of {extent}"
        )
    parts = [_at_place(op, axis, place) for place in range(count)]
    at = places_of(each for each in op.axis if each is not axis)
    *others, last = ([ProducerLoad(each, at) for each in part.outputs] for part in parts)
    body: list[PrimExpr] = [*last]
    for place, loads in reversed([*enumerate(others)]):
        is_here = e.equal(axis.var, place)
        body = [
            e.intrinsic("if_then_else", load.dtype, is_here, load, other)
            for load, other in zip(loads, body, strict=True)
        ]
    return parts, replace(op, reduce_axis=(), body=tuple(body))


def _at_place(op: ComputeOp, axis: IterVar, place: int) -> ComputeOp:
    others = [each for each in op.axis if each is not axis]
    own = data_axes([each.name for each in others], [domain_of(each).extent for each in others])
    values = {axis.var: e.const(place, axis.var.dtype), **becoming(others, own)}
    body = at_axes(op, values)
    first, reduced = body[0], tuple[IterVar, ...]()
    if isinstance(first, Reduce):
        reduced = tuple(cloned(each, each.name) for each in first.axis)
        made = Substitution(becoming(first.axis, reduced)).expr(first)
        assert isinstance(made, Reduce)
        body = each_result(replace(made, axis=reduced))
    return simplified(ComputeOp(f"{op.name}.{place}", "", {}, own, reduced, body))
