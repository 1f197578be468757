"""Pads sums of products: rounds their axes up, and lets them read copies padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from minitvm.arith.prover import Prover
from minitvm.runtime.dtype import DType
from minitvm.runtime.errors import CompileError
from minitvm.te.schedules.operation_graph import multiplied_reads
from minitvm.te.schedules.rewrite_operations import (
    becoming,
    check_fixed,
    cloned,
    computed,
    each_result,
    only_where,
    places_of,
)
from minitvm.te.tensor import (
    ComputeOp,
    Operation,
    Tensor,
    data_axes,
    domain_of,
    reduce_of,
    tensor_of,
)
from minitvm.tir import expr as e
from minitvm.tir.expr import IterVar, PrimExpr, ProducerLoad, Range, Var, const
from minitvm.tir.functor import Substitution, find


def check_padding(
    where: str, op: Operation, multiples: Sequence[int], dtypes: Sequence[Any]
) -> tuple[ComputeOp, dict[Tensor, DType]]:
    """A sum of products of two tensors, and the dtype in which each tensor is kept.

    Raises
    ------
    CompileError
        When `op` is no such sum, `multiples` don't fit its axes, or a dtype can't hold all values.
    """
    loads = multiplied_reads(op)
    if not isinstance(op, ComputeOp) or not loads:
        raise CompileError(
            f"{where}: expected a sum of products of two elements at indices that are axes or "
            f"constants, got {op}"
        )
    axes = (*op.axis, *op.reduce_axis)
    if len(multiples) != len(axes) or any(each < 1 for each in multiples):
        raise CompileError(
            f"{where}: expected a multiple for each of {len(axes)} axes, 1 for those that stay as "
            f"they are, got {list(multiples)}"
        )
    for axis, multiple in zip(axes, multiples, strict=True):
        summed = axis in op.reduce_axis and _grows(domain_of(axis).extent, multiple)
        if summed and not all(any(x is axis.var for x in load.indices) for load in loads):
            raise CompileError(
                f"{where}: expected both factors to depend on {axis.name}, which is padded"
            )
    if loads[0].producer is loads[1].producer:
        raise CompileError(
            f"{where}: expected two tensors, got {loads[0].producer.name} twice: cache_read it for "
            "one of the factors"
        )
    kept = {}
    for load, dtype in zip(loads, dtypes, strict=True):
        source, wide = tensor_of(load), DType.of(dtype or load.dtype)
        kept[source] = wide
        offset = is_offset(source.dtype, wide) and op.body[0].dtype.bits > 8
        if not offset and not _holds(wide, source.dtype):
            raise CompileError(
                f"{where}: expected a dtype that holds all values of {source.name}, which are "
                f"{source.dtype}, got {wide}"
            )
    return op, kept


def padded(
    op: ComputeOp, multiples: Sequence[int], dtypes: Mapping[Tensor, DType]
) -> tuple[ComputeOp, dict[Tensor, Tensor]]:
    """A sum of products whose axes, data axes first, are rounded up to `multiples`; and for each
    tensor that it reads through a padded copy, this copy, which may have another dtype, as `dtypes`
    tells."""
    loops = [*zip((*op.axis, *op.reduce_axis), multiples, strict=True)]
    axes = {
        axis.var: IterVar(Range(0, _rounded_up(domain_of(axis).extent, multiple)), axis.var,
                          axis.iter_type)
        for axis, multiple in loops
    }  # fmt: skip
    grown = {axis.var for axis, multiple in loops if _grows(domain_of(axis).extent, multiple)}
    copies: dict[Tensor, Tensor] = {}
    for load in multiplied_reads(op):
        tensor = tensor_of(load)
        shape = tuple(
            domain_of(axes[index]).extent if isinstance(index, Var) else extent
            for index, extent in zip(load.indices, tensor.shape, strict=True)
        )
        dtype = dtypes.get(tensor, tensor.dtype)
        if dtype != tensor.dtype or not grown.isdisjoint(load.indices):
            for index in find(Var, *load.indices):
                where, remedy = f"pad_einsum of {op.name}", "give it a constant range"
                check_fixed(where, op, axes[index], remedy)
            padding = [index in grown for index in load.indices]
            copies[tensor] = _padded_copy(tensor, shape, padding, dtype)
    first = reduce_of(op)
    reduced = tuple(axes[axis.var] for axis in op.reduce_axis)
    product = cast(e.Mul, first.source[0])
    a, b = (_of_copy(each, copies) for each in (product.a, product.b))
    body = each_result(replace(first, source=(replace(product, a=a, b=b),), axis=reduced))
    return replace(
        op, axis=tuple(axes[axis.var] for axis in op.axis), reduce_axis=reduced, body=body
    ), copies


def _rounded_up(extent: PrimExpr, multiple: int) -> PrimExpr:
    if not _grows(extent, multiple):
        return extent
    size = e.const_int(extent)
    if size is None:
        return e.floordiv(extent + const(multiple - 1, extent.dtype), multiple) * multiple
    return const(-(-size // multiple) * multiple, extent.dtype)


def _grows(extent: PrimExpr, multiple: int) -> bool:
    """Whether an extent may not be a multiple."""
    form = Prover().affine(extent)
    return any(each % multiple for each in (form.constant, *form.terms.values()))


def _padded_copy(
    tensor: Tensor, shape: tuple[PrimExpr, ...], padding: Sequence[bool], dtype: DType
) -> Tensor:
    axis = data_axes([f"ax{i}" for i in range(tensor.ndim)], shape)
    value = e.cast(dtype, ProducerLoad(tensor, places_of(axis)))
    if is_offset(tensor.dtype, dtype):
        value = value ^ const(128, dtype)
    inside = [
        e.less(each.var, extent)
        for each, extent, is_padded in zip(axis, tensor.shape, padding, strict=True)
        if is_padded
    ]
    (value,) = only_where(inside, (value,))
    return computed(f"{tensor.name}.pad", axis, value).output(0)


def _of_copy(factor: PrimExpr, copies: Mapping[Tensor, Tensor]) -> PrimExpr:
    """A factor read from the copy of its tensor, which may have a wider dtype."""
    load = cast(ProducerLoad, factor.value if isinstance(factor, e.Cast) else factor)
    copy = copies.get(tensor_of(load))
    return factor if copy is None else e.cast(factor.dtype, ProducerLoad(copy, load.indices))


def without_offset(op: ComputeOp, offset: Tensor) -> tuple[ComputeOp, ComputeOp, ComputeOp]:
    """A sum of products in which one factor, `offset`, is kept with 128 added to its elements. It
    takes three operations: the sum of the larger products, the excess, and their elementwise
    difference::

        C.offset[i, j] = sum(A.pad[i, k] * B[k, j])
        C.excess[j] = sum(128 * B[k, j])
        C[i, j] = C.offset[i, j] - C.excess[j]
    """
    first = reduce_of(op)
    (other,) = (load for load in multiplied_reads(op) if load.producer is not offset)
    used = [axis for axis in op.axis if any(index is axis.var for index in other.indices)]
    axis, reduced, mine = (
        tuple(cloned(each, each.name) for each in axes) for axes in (used, op.reduce_axis, op.axis)
    )
    own = Substitution(becoming((*used, *op.reduce_axis), (*axis, *reduced)))
    value = e.cast(op.body[0].dtype, own.expr(other))
    source = (const(128, value.dtype) * value,)
    sums = each_result(replace(first, source=source, axis=reduced, condition=const(True), init=()))
    excess = ComputeOp(f"{op.name}.excess", "", {}, axis, reduced, sums)
    total = replace(op, name=f"{op.name}.offset")
    taken = tuple(new.var for old, new in zip(op.axis, mine, strict=True) if old in used)
    body = ProducerLoad(total.output(0), places_of(mine)) - ProducerLoad(excess.output(0), taken)
    return total, excess, replace(op, axis=mine, reduce_axis=(), body=(body,))


def is_offset(dtype: DType, kept: DType) -> bool:
    """Whether elements are kept with 128 added."""
    return dtype == "int8" and kept == "uint8"


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether each value of `narrow` is a value of `wide`."""
    if wide.is_float and narrow.is_float:
        same = wide.is_bfloat16 == narrow.is_bfloat16
        return wide.bits > narrow.bits or (wide.bits == narrow.bits and same)
    if not (wide.is_integral and narrow.is_integral):
        return wide == narrow
    return int(wide.min()) <= int(narrow.min()) and int(wide.max()) >= int(narrow.max())
