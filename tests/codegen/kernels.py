"""Elementwise kernels over arrays of telling values, and how results are compared bit by bit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from minitvm import build, lower, te
from minitvm.runtime.dtype import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from minitvm.tir import interpreter, ir_builder, scalars
from minitvm.tir.expr import Buffer, Stmt, Var, as_expr, as_tuple
from minitvm.tir.scalars import Scalar

INTEGERS = (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
DTYPES = (BOOL, *INTEGERS, *FLOATS)

Array = np.ndarray[Any, Any]


def largest(dtype: DType) -> float:
    """The greatest finite value of a float type."""
    return scalars.from_bits(dtype, scalars.to_bits(dtype, math.inf) - 1)


def numpy_dtype(dtype: DType) -> Any:
    """numpy's dtype of the same elements; of ``bfloat16`` that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16) if dtype.is_bfloat16 else dtype.to_numpy()


def telling_values(dtype: DType) -> list[Scalar]:
    """The values of a type at which conversions and operators go wrong."""
    return list(_telling_values(dtype))


@cache
def _telling_values(dtype: DType) -> list[Scalar]:
    if dtype.is_bool:
        return [False, True]
    if not dtype.is_float:
        low, high = dtype.min(), dtype.max()
        small = (-7, -3, -2, -1) if dtype.is_int else ()
        # Halfway between two floats, and one beside it: of 8, 11, 24 and 53 significant bits.
        ties = [t + d for b in (8, 11, 24, 53) for t in ((1 << b) + 1,) for d in (0, 1, 2)]
        # The same at the upper end, where the rest doesn't fit a double.
        top = dtype.bits - 2 if dtype.is_int else dtype.bits - 1
        ties += [
            (1 << top) + (1 << (top - b)) + d
            for b in (8, 11, 24, 53)
            if b <= top
            for d in (-1, 0, 1)
        ]
        fitting = [t for t in (*ties, *(-t for t in ties)) if low <= t <= high]
        ends = (low, low + 1, high - 1, high, high // 2 + 1)
        return list(dict.fromkeys([*small, 0, 1, 2, 3, 7, 100, *ends, *fitting]))
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0]
    special += [
        7.0,
        -7.25,
        1e-3,
        100.0,
        127.5,
        -128.5,
        255.5,
        65504.0,
        65520.0,
        2.0**31,
        -(2.0**31),
    ]
    special += [2.0**63, -(2.0**63), 2.0**64, 1e30, 1.0 + 2.0**-8, 1.0 + 2.0**-11, 1.0 + 2.0**-24]
    # Just beside a tie of a narrower type, where rounding twice shows.
    special += [1.0 + 2.0**-8 + 2.0**-30, 1.0 + 2.0**-11 - 2.0**-40, 2.0**-25 * (1 + 2.0**-30)]
    tiny, least = scalars.from_bits(dtype, 1), scalars.from_bits(dtype, 3)
    normal = math.ldexp(1.0, {FLOAT16: -14, FLOAT64: -1022}.get(dtype, -126))
    special += [tiny, -least, normal, largest(dtype), -largest(dtype)]
    return list(dict.fromkeys(scalars.round_float(dtype, v) for v in special))


def array_of(dtype: DType, values: Sequence[Scalar]) -> Array:
    """The values as an array of their type."""
    if dtype.is_bfloat16:
        bits = np.array([scalars.to_bits(dtype, float(v)) for v in values], np.uint16)
        return bits.view(ml_dtypes.bfloat16)
    return np.array(values, dtype.to_numpy())


def values_of(dtype: DType, array: Array) -> list[Scalar]:
    """The elements of an array as the values that :mod:`minitvm.tir.scalars` speaks of."""
    if dtype.is_bfloat16:
        return [scalars.from_bits(dtype, int(b)) for b in array.view(np.uint16).ravel()]
    found: list[Scalar] = array.ravel().tolist()
    return found


def same(a: Scalar, b: Scalar) -> bool:
    """Whether two values are one: NaN is NaN, and the zeros differ."""
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b and math.copysign(1.0, a) == math.copysign(1.0, b)
    return a == b


def equal(a: Scalar, b: Scalar) -> bool:
    """As :func:`same`, but -0.0 is 0.0: what ``min`` and ``max`` promise."""
    return same(a, b) or a == b == 0.0


class Elementwise:
    """Several functions of the elements of some one-dimensional arrays, as one kernel.

    The results of one dtype are the rows of one output: an array each would cost a check of
    overlap for each pair.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        dtypes: Sequence[DType],
        *,
        target: str = "llvm",
        fp: str = "strict",
    ) -> None:
        n = Var("n")
        self._inputs = [te.placeholder((n,), dtype=d, name=f"X{i}") for i, d in enumerate(dtypes)]
        self._functions = functions
        variables = [Var("x", d) for d in dtypes]
        self._dtypes = [as_expr(f(*variables)).dtype for f in functions]
        self._rows = Counter(self._dtypes)
        outputs = te.extern(
            [(rows, n) for rows in self._rows.values()],
            self._inputs,
            self._body,
            dtype=list(self._rows),
            name="Y",
        )
        self.outputs = list(as_tuple(outputs))
        self.args = [*self._inputs, *self.outputs]
        self.module = build(self.outputs, self.args, target, name="kernel", fp=fp)

    def _body(self, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        builder = ir_builder.create()
        written = dict(zip(self._rows, map(builder.buffer_ptr, outs), strict=True))
        row = Counter[DType]()
        with builder.for_range(0, ins[0].shape[0]) as i:
            elements = [builder.buffer_ptr(each)[i] for each in ins]
            for function, dtype in zip(self._functions, self._dtypes, strict=True):
                written[dtype][row[dtype], i] = function(*elements)
                row[dtype] += 1
        return builder.get()

    def __call__(self, *arrays: Array) -> list[list[Scalar]]:
        """The values of each function."""
        made = self._results(arrays)
        self.module(*arrays, *made.values())
        return self._values(made)

    def interpreted(self, *arrays: Array) -> list[list[Scalar]]:
        """The same by the reference interpreter."""
        made = self._results(arrays)
        (function,) = lower(self.outputs, self.args).functions.values()
        interpreter.interpret(function, *arrays, *made.values())
        return self._values(made)

    def _results(self, arrays: Sequence[Array]) -> dict[DType, Array]:
        length = len(arrays[0])
        return {d: np.zeros((rows, length), numpy_dtype(d)) for d, rows in self._rows.items()}

    def _values(self, made: dict[DType, Array]) -> list[list[Scalar]]:
        rows = {dtype: iter(array) for dtype, array in made.items()}
        return [values_of(dtype, next(rows[dtype])) for dtype in self._dtypes]


def pairs(
    first: Sequence[Scalar], second: Sequence[Scalar]
) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """All combinations, as two columns."""
    return tuple(a for a in first for _ in second), tuple(b for _ in first for b in second)
