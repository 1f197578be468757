"""Reductions that read as a matrix product does and compute something else, beside that product.

A row's target is a multiple of the product's time: 2.5; less where terms are left out, or where
only what the factors are made of differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

import minitvm
from benchmarks import contraction
from benchmarks.contraction import Array, Call
from benchmarks.measure import OURS, Row, Settings, calls, paced

_SIZES = (256, 512, 1000)
_BUDGET = 1.0  # seconds of measuring a row
_PRODUCT = "the product"
_TERMS = 2.5  # times the product
_HALF = 0.75  # of the product, where half of the terms are left out
_ALIKE = 1.25  # times the product, where factors are cast or computed


def _all_terms(i: Any, j: Any, k: Any) -> Sequence[Any]:
    return ()


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """What is folded, how, and under which conditions: `terms` takes ``a[i, k]``, ``b[k, j]``,
    ``c[k, j]`` and ``d[i, j]``, `conditions` the indices; of numpy's arrays, too. `a` and `b` are
    cast to float32 if their `dtype` is another one."""

    name: str
    fold: str
    terms: Callable[[Any, Any, Any, Any], Any]
    conditions: Callable[[Any, Any, Any], Sequence[Any]] = _all_terms
    most: float = _TERMS
    dtype: str = "float32"


_PLAIN = Kind(_PRODUCT, "sum", lambda a, b, c, d: a * b)
KINDS = (
    Kind("min(a + b)", "min", lambda a, b, c, d: a + b),
    Kind("max(a * b)", "max", lambda a, b, c, d: a * b),
    Kind("sum((a - b)^2)", "sum", lambda a, b, c, d: (a - b) * (a - b)),
    Kind("sum(|a - b|)", "sum", lambda a, b, c, d: abs(a - b)),
    Kind("sum(a * b + c[k, j])", "sum", lambda a, b, c, d: a * b + c),
    Kind("sum(a * b * d[i, j])", "sum", lambda a, b, c, d: a * b * d),
    Kind("sum(a * b), k <= i", "sum", _PLAIN.terms, lambda i, j, k: (k <= i,), _HALF),
    Kind("sum(a * b), k >= j", "sum", _PLAIN.terms, lambda i, j, k: (k >= j,), _HALF),
    Kind("sum(a * b), |i - k| <= 16", "sum", _PLAIN.terms,
         lambda i, j, k: (k - i <= 16, i - k <= 16), _HALF),
    Kind("sum(float32(a) * float32(b)), int8", "sum", _PLAIN.terms, most=_ALIKE, dtype="int8"),
    Kind("sum(float32(a) * float32(b)), float16", "sum", _PLAIN.terms, most=_ALIKE,
         dtype="float16"),
    Kind("sum((a * a + a) * b)", "sum", lambda a, b, c, d: (a * a + a) * b, most=_ALIKE),
    Kind("sum(a * (b - c[k, j])), int8", "sum", lambda a, b, c, d: a * (b - c), most=_ALIKE,
         dtype="int8"),
)  # fmt: skip


def rows(settings: Settings) -> Iterator[Row]:
    """Each kind whose name contains ``settings.only``, on one thread."""
    for n in _SIZES if settings.least else _SIZES[:1]:
        product = _call(_PLAIN, n)
        for kind in KINDS:
            if settings.only not in kind.name:
                continue
            contenders = {OURS: _call(kind, n), _PRODUCT: product}
            timers = {name: contraction.on(1, name, calls(f)) for name, f in contenders.items()}
            found = paced(timers, settings, _BUDGET)
            what = f"minitvm without a schedule; the target is {kind.most} times the plain product"
            target = found[_PRODUCT].seconds * kind.most
            yield Row(f"{kind.name}, {n}^3", what, found, {}, target, 1)


def _call(kind: Kind, n: int) -> Call:
    """A call of the function that is built for the bare expression."""
    te, dtypes = minitvm.te, (kind.dtype, kind.dtype, "float32", "float32")
    arrays = [contraction.filled((n, n), dtype, seed) for seed, dtype in enumerate(dtypes)]
    A, B, C, D = (
        te.placeholder((n, n), dtype, name=name) for name, dtype in zip("ABCD", dtypes, strict=True)
    )
    k = te.reduce_axis((0, n), name="k")

    def value(i: Any, j: Any) -> Any:
        a, b = (each.astype("float32") for each in (A[i, k], B[k, j]))
        terms = kind.terms(a, b, C[k, j], D[i, j])
        conditions = kind.conditions(i, j, k)
        where = te.all(*conditions) if conditions else None
        return getattr(te, kind.fold)(terms, axis=k, where=where)

    made = te.compute((n, n), value, name="O")
    function = minitvm.build([made], [A, B, C, D, made], name="f")
    output = contraction.aligned((n, n), "float32")
    function(*arrays, output)
    _check(kind, n, arrays, output)
    return partial(function, *arrays, output)


def _check(kind: Kind, n: int, arrays: Sequence[Array], output: Array) -> None:
    """Holds a few rows of a result to float64."""
    a, b, c, d = (each.astype(np.float64) for each in arrays)
    j, k = np.arange(n)[None, :], np.arange(n)[:, None]
    for i in (0, n // 3, n - 1):
        terms = kind.terms(a[i][:, None], b, c, d[i][None])
        for condition in kind.conditions(i, j, k):
            terms = np.where(condition, terms, 0.0)
        expected = getattr(np, kind.fold)(terms, axis=0)
        near = 1e-3 * max(1.0, float(np.abs(expected).mean()))
        np.testing.assert_allclose(output[i], expected, rtol=1e-3, atol=near)
