"""Reductions that read as a matrix product does and compute something else, beside that product.

A row's target is a multiple of the product's time: 2.5, and less where terms are left out.
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


def _all_terms(i: Any, j: Any, k: Any) -> Sequence[Any]:
    return ()


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """What is folded, how, and under which conditions: `terms` takes ``a[i, k]``, ``b[k, j]``,
    ``c[k, j]`` and ``d[i, j]``, `conditions` the indices; of numpy's arrays, too."""

    name: str
    fold: str
    terms: Callable[[Any, Any, Any, Any], Any]
    conditions: Callable[[Any, Any, Any], Sequence[Any]] = _all_terms
    most: float = _TERMS


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
)  # fmt: skip


def rows(settings: Settings) -> Iterator[Row]:
    """Each kind whose name contains ``settings.only``, on one thread."""
    for n in _SIZES if settings.least else _SIZES[:1]:
        arrays = [contraction.filled((n, n), "float32", seed) for seed in range(4)]
        product = _call(_PLAIN, n, arrays)
        for kind in KINDS:
            if settings.only not in kind.name:
                continue
            contenders = {OURS: _call(kind, n, arrays), _PRODUCT: product}
            timers = {name: contraction.on(1, name, calls(f)) for name, f in contenders.items()}
            found = paced(timers, settings, _BUDGET)
            what = f"minitvm without a schedule; the target is {kind.most} times the plain product"
            target = found[_PRODUCT].seconds * kind.most
            yield Row(f"{kind.name}, {n}^3", what, found, {}, target, 1)


def _call(kind: Kind, n: int, arrays: Sequence[Array]) -> Call:
    """A call of the function that is built for the bare expression."""
    te = minitvm.te
    A, B, C, D = (te.placeholder((n, n), name=name) for name in "ABCD")
    k = te.reduce_axis((0, n), name="k")

    def value(i: Any, j: Any) -> Any:
        terms = kind.terms(A[i, k], B[k, j], C[k, j], D[i, j])
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
        np.testing.assert_allclose(output[i], expected, rtol=1e-3, atol=1e-3)
