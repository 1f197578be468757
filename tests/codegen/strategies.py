"""Random expressions, values and shapes, for hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from minitvm import te, tir
from minitvm.runtime.dtype import BOOL, INT32, DType
from minitvm.tir import expr, scalars
from minitvm.tir.scalars import Scalar
from tests.codegen.kernels import DTYPES, telling_values


@dataclass(frozen=True)
class Expression:
    """A function of the elements of some arrays, of one dtype.

    `loses_sign_of_zero`: a minimum or a maximum is in it, which may give either zero. No operation
    that tells the zeros apart is made of such an operand.
    """

    text: str
    made: Callable[..., Any]
    loses_sign_of_zero: bool = False


def elements(dtype: DType) -> st.SearchStrategy[Scalar]:
    """Any value of a type, the telling ones often."""
    telling = st.sampled_from(telling_values(dtype))
    if dtype.is_bool:
        return telling
    if not dtype.is_float:
        return telling | st.integers(dtype.min(), dtype.max())
    patterns = st.integers(0, (1 << dtype.bits) - 1)
    return telling | patterns.map(lambda bits: scalars.from_bits(dtype, bits))


def shapes(max_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of rank 1 to 3, with empty, odd and single extents."""
    extents = st.sampled_from([0, 1, 2, 3, max_size])
    return st.lists(extents, min_size=1, max_size=3).map(tuple)


@lru_cache(maxsize=4096)
def expressions(
    dtype: DType, inputs: tuple[DType, ...], depth: int = 4
) -> st.SearchStrategy[Expression]:
    """Expressions of a type over elements of arrays of some types."""
    made = [_constants(dtype)]
    made += [st.just(_input(i)) for i, d in enumerate(inputs) if d == dtype]
    if depth == 0:
        return st.one_of(made)

    def of(wanted: DType) -> st.SearchStrategy[Expression]:
        return expressions(wanted, inputs, depth - 1)

    made += [_casts(dtype, of), _choices(dtype, of)]
    if dtype.is_bool:
        made += [_applied({"all": te.all, "any": te.any}, of(BOOL), of(BOOL)), _comparisons(of)]
        made += [_applied({"not": tir.Not}, of(BOOL))]
    else:
        made += [_applied(_binary(dtype), of(dtype), of(dtype)), _applied(_unary(dtype), of(dtype))]
        made += [_applied(_EXTREMA, of(dtype), of(dtype)).map(_either_zero)]
    return st.one_of(made)


_EXTREMA = {"min": expr.minimum, "max": expr.maximum}
_RING: dict[str, Any] = {"add": expr.add, "sub": expr.subtract, "mul": expr.multiply}
# Exactly rounded, and with one answer for 0.0 and -0.0 but for its sign.
_OF_FLOAT: dict[str, Any] = {
    "sqrt": te.sqrt, "floor": te.floor, "ceil": te.ceil, "trunc": te.trunc, "round": te.round,
    "nearbyint": te.nearbyint, "abs": te.abs, "neg": expr.negate,
}  # fmt: skip
_OF_INTEGER: dict[str, Any] = {
    "truncdiv": te.truncdiv, "truncmod": te.truncmod, "floordiv": te.floordiv,
    "floormod": te.floormod, "and": expr.bitwise_and, "or": expr.bitwise_or,
    "xor": expr.bitwise_xor, "power": te.power,
}  # fmt: skip


def _binary(dtype: DType) -> dict[str, Any]:
    if dtype.is_float:
        return {**_RING, "fmod": te.fmod}
    # As intrinsics, since a constant shift out of range is refused where it is written.
    shifts = {
        name: lambda a, b, name=name: expr.intrinsic(name, dtype, a, b)
        for name in ("shift_left", "shift_right")
    }
    return {**_RING, **_OF_INTEGER, **shifts}


def _unary(dtype: DType) -> dict[str, Any]:
    if dtype.is_float:
        return _OF_FLOAT
    clz = {"clz": te.clz} if dtype == INT32 else {}
    named = {"popcount": te.popcount, "abs": te.abs, "not": expr.bitwise_not, "neg": expr.negate}
    return {**named, **clz}


def _constants(dtype: DType) -> st.SearchStrategy[Expression]:
    return elements(dtype).map(lambda v: Expression(repr(v), lambda *xs: te.const(v, dtype)))


def _input(position: int) -> Expression:
    return Expression(f"x{position}", lambda *xs: xs[position])


def _applied(
    named: dict[str, Any], *operands: st.SearchStrategy[Expression]
) -> st.SearchStrategy[Expression]:
    def make(name: str, *args: Expression) -> Expression:
        text = f"{name}({', '.join(a.text for a in args)})"
        loses = any(a.loses_sign_of_zero for a in args)
        return Expression(text, lambda *xs: named[name](*[a.made(*xs) for a in args]), loses)

    return st.builds(make, st.sampled_from(sorted(named)), *operands)


def _either_zero(made: Expression) -> Expression:
    return Expression(made.text, made.made, loses_sign_of_zero=True)


def _casts(
    dtype: DType, of: Callable[[DType], st.SearchStrategy[Expression]]
) -> st.SearchStrategy[Expression]:
    named = {f"to_{dtype}": lambda x: expr.cast(dtype, x)}
    return st.sampled_from(DTYPES).flatmap(lambda source: _applied(named, of(source)))


def _comparisons(
    of: Callable[[DType], st.SearchStrategy[Expression]],
) -> st.SearchStrategy[Expression]:
    named = {"eq": expr.equal, "ne": expr.not_equal, "lt": expr.less, "le": expr.less_equal,
             "gt": expr.greater, "ge": expr.greater_equal}  # fmt: skip
    return st.sampled_from(DTYPES).flatmap(lambda source: _applied(named, of(source), of(source)))


def _choices(
    dtype: DType, of: Callable[[DType], st.SearchStrategy[Expression]]
) -> st.SearchStrategy[Expression]:
    named = {"select": tir.Select, "if_then_else": te.if_then_else}
    return _applied(named, of(BOOL), of(dtype), of(dtype))
