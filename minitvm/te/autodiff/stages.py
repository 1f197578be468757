"""Makes the stages of gradients: tensors with fresh axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from minitvm.te.tensor import ComputeOp, Operation, Tensor, data_axes, domain_of
from minitvm.tir import expr as e
from minitvm.tir import op
from minitvm.tir.expr import IterType, IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var
from minitvm.tir.functor import contains, substitute

_REPEATS = "repeats"  # among the attributes of a stage


def stage(name: str, axis: Sequence[IterVar], *body: PrimExpr) -> Tensor:
    """The first of the tensors whose elements are `body`."""
    return stages(name, axis, *body)[0]


def stages(
    name: str, axis: Sequence[IterVar], *body: PrimExpr, repeats: ComputeOp | None = None
) -> tuple[Tensor, ...]:
    """The tensors whose elements are `body`. The first of them may be those of an operation of the
    program, which the stage `repeats`."""
    first = body[0]
    reduced = first.axis if isinstance(first, Reduce) else ()
    attrs = {} if repeats is None else {_REPEATS: repeats}
    return ComputeOp(name, "", attrs, tuple(axis), reduced, body).outputs


def repeated_by(op: Operation) -> ComputeOp | None:
    """The operation of the program whose tensors a stage computes again, beside others."""
    found = op.attrs.get(_REPEATS)
    return found if isinstance(found, ComputeOp) else None


def computed(
    name: str, shape: Sequence[PrimExpr], element: Callable[[tuple[Var, ...]], PrimExpr]
) -> Tensor:
    """The tensor with an element at each place."""
    axis = data_axes([f"i{i}" for i in range(len(shape))], shape)
    return stage(name, axis, element(tuple(each.var for each in axis)))


def new_reduce_axes(
    axes: Iterable[IterVar], values: Mapping[Var, PrimExpr]
) -> tuple[tuple[IterVar, ...], dict[Var, PrimExpr]]:
    """Reduction axes of the same ranges, with new variables; and the values of the old variables.
    `values` are the values of other variables in the ranges."""
    made: list[IterVar] = []
    renamed = dict(values)
    for axis in axes:
        dom = domain_of(axis)
        low, extent = substitute(dom.min, renamed), substitute(dom.extent, renamed)
        var = Var(axis.var.name, axis.var.dtype, axis=True)
        made.append(IterVar(Range.from_min_extent(low, extent), var, IterType.COMM_REDUCE))
        renamed[axis.var] = var
    return tuple(made), renamed


def new_data_axes(
    axes: Sequence[IterVar],
) -> tuple[tuple[IterVar, ...], dict[Var, PrimExpr]]:
    """Data axes of the same extents, and the values of the old variables."""
    made = data_axes([axis.name for axis in axes], [domain_of(axis).extent for axis in axes])
    values = [new.var + domain_of(old).min for new, old in zip(made, axes, strict=True)]
    return made, dict(zip([axis.var for axis in axes], values, strict=True))


def place_in(axes: Iterable[IterVar]) -> list[PrimExpr]:
    """The indices, in a tensor of :func:`new_data_axes`, of the element of an iteration of the old
    axes."""
    return [axis.var - domain_of(axis).min for axis in axes]


def guarded(conditions: Iterable[PrimExpr], value: PrimExpr) -> PrimExpr:
    """`value` where all conditions hold, in order, and 0 elsewhere. Elsewhere `value` isn't
    evaluated; after a condition that doesn't hold, the further conditions aren't either."""
    zero = e.const(0, value.dtype)
    pure = [each for each in conditions if not reads(each)]
    for condition in reversed([each for each in conditions if reads(each)]):
        value = op.if_then_else(condition, value, zero)
    return op.if_then_else(op.all(True, *pure), value, zero) if pure else value


def reads(node: PrimExpr) -> bool:
    """Whether an expression reads memory, or calls a function."""
    return contains((ProducerLoad, e.Call), node)
