"""Checks that the fields of a node are valid together."""

from __future__ import annotations

from typing import Protocol

from minitvm.runtime.dtype import BOOL, MAX_LANES, DType
from minitvm.runtime.errors import CompileError
from minitvm.tir.described import digits, shown
from minitvm.tir.node import PrimExpr


class Indexed(Protocol):
    """An object with elements: a buffer."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[PrimExpr, ...]: ...
    @property
    def dtype(self) -> DType: ...


def two_dtypes(made: object, a: PrimExpr, b: PrimExpr) -> CompileError:
    """The error for operands of two dtypes."""
    return CompileError(
        f"{type(made).__name__}: expected operands of one dtype, got {a.dtype} and "
        f"{b.dtype}: the Python operators convert, these constructors don't"
    )


def check_numbers(dtype: DType, takes_bools: bool, where: str = "") -> None:
    """Refuses operands of a dtype that have no arithmetic."""
    if dtype.is_bool and not takes_bools:
        raise CompileError(
            f"{where}expected numbers, got two bools: cast them, or use te.all, te.any"
        )
    if not (dtype.is_float or dtype.is_integral):
        raise CompileError(f"{where}expected numbers, got {dtype}")


def no_condition(expr: PrimExpr) -> str:
    """The error for a number in the place of a condition."""
    text = shown(expr)
    return f"expected a bool condition, got {text} of {expr.dtype}: write x != 0 for a number x"


def check_condition(where: str, condition: PrimExpr) -> None:
    """Refuses a number in the place of a condition."""
    if not condition.dtype.is_bool:
        raise CompileError(f"{where}: {no_condition(condition)}")


def check_value_of(where: str, name: str, dtype: DType, value: PrimExpr) -> None:
    """Refuses a value whose dtype isn't the dtype of its variable."""
    if dtype is not value.dtype:
        raise CompileError(
            f"{where} {name}: expected a value of {dtype}, got one of {value.dtype}: cast "
            f"it, as in x.astype({str(dtype)!r})"
        )


def check_cast(given: DType, wanted: DType, where: str = "") -> None:
    """Refuses a conversion of a value that is no number, or to another number of lanes."""
    if given.lanes != wanted.lanes:
        raise CompileError(f"{where}expected {given.lanes} lanes, as in {given}, got {wanted}")
    for dtype in (given, wanted):
        if not (dtype.is_float or dtype.is_integral):
            raise CompileError(f"{where}expected numeric dtypes, got {given} to {wanted}")


def vector_of(where: str, scalar: DType, lanes: int) -> DType:
    """The vector of `lanes` scalars."""
    if scalar.lanes > 1:
        raise CompileError(f"{where}: expected a scalar, got {scalar}")
    if not 2 <= lanes <= MAX_LANES:
        raise CompileError(f"{where}: expected 2 to {MAX_LANES} lanes, got {digits(lanes)}")
    return scalar.with_lanes(lanes)


def is_size(dtype: DType) -> bool:
    """Whether extents and indices may have a dtype."""
    return dtype.is_integral and not dtype.is_bool and dtype.lanes == 1


def dtype_at(
    buffer: Indexed, indices: tuple[PrimExpr, ...], predicate: PrimExpr | None = None
) -> DType:
    """The dtype of the value at some indices, which are checked, where a predicate holds."""
    rank = len(buffer.shape)
    if len(indices) != rank:
        raise CompileError(f"{buffer.name}: expected {rank} indices, got {len(indices)}")
    lanes = 1
    for i, index in enumerate(indices):
        dtype = index.dtype
        if not dtype.is_integral or dtype.is_bool:
            raise CompileError(f"{buffer.name}: index {i}: expected an integer, got {dtype}")
        if dtype.lanes > 1:
            if lanes not in (1, dtype.lanes):
                raise CompileError(
                    f"{buffer.name}: index {i}: expected 1 or {lanes} lanes, got {dtype}"
                )
            lanes = dtype.lanes
    if predicate is not None and predicate.dtype is not BOOL.with_lanes(lanes):
        raise CompileError(
            f"{buffer.name}: predicate: expected {BOOL.with_lanes(lanes)}, got {predicate.dtype}"
        )
    element = buffer.dtype
    return element if lanes == 1 else element.with_lanes(element.lanes * lanes)
