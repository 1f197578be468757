"""The indices of fused and split axes: guards that nothing needs, and addresses that are one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm import build, lower, te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.te.tensor import Tensor
from minitvm.tir.functor import substitute, walk_once

B, S, T, D = (te.var(name) for name in "bstd")


def sizes_beside(*tensors: Tensor) -> list[Any]:
    """The sizes that are no plain dimension of a tensor, so that a call has to give them."""
    plain = {each for tensor in tensors for each in tensor.shape if isinstance(each, tir.Var)}
    used = {each for tensor in tensors for each in walk_once(*tensor.shape)}
    return [each for each in (B, S, T, D) if each in used - plain]


def size(extent: Any, given: dict[Any, int]) -> int:
    """A symbolic extent where sizes are `given`."""
    return int(Analyzer().simplify(substitute(extent + 0, given)).value)


# -- Leading dimensions ----------------------------------------------------------------------------

LEADING: dict[str, tuple[Any, ...]] = {
    "b": (B,), "b, s": (B, S), "b, s, t": (B, S, T), "b, s, t, d": (B, S, T, D),
    "b, s, 8": (B, S, 8), "b, 8, t": (B, 8, T), "8, s, t": (8, S, T), "3, 5, t": (3, 5, T),
    "b, s + 1, t": (B, S + 1, T), "b, 2 * s, t": (B, 2 * S, T), "b, s // 2": (B, S // 2),
    "b, s, s": (B, S, S),
}  # fmt: skip


def means(leading: tuple[Any, ...], from_right: bool, factor: int | None) -> list[Any]:
    """Each row less its sum; in one loop over the rows, which may be split further."""
    X = te.placeholder((*leading, 32), name="X")
    k = te.reduce_axis((0, 32), name="k")
    total = te.compute(leading, lambda *at: te.sum(X[(*at, k)], axis=k), name="total")
    Y = te.compute(X.shape, lambda *at: X[at] - total[at[:-1]], name="Y")
    s = te.create_schedule(Y.op)
    *rows, _ = s[Y].op.axis
    if from_right:
        while len(rows) > 1:
            rows[-2:] = [s[Y].fuse(*rows[-2:])]
    row = s[Y].fuse(*rows)
    if factor is not None:
        _, row = s[Y].split(row, factor=factor)
    s[total].compute_at(s[Y], row)
    return [s, X, Y]


@pytest.mark.parametrize("from_right", [False, True])
@pytest.mark.parametrize("leading", LEADING)
def test_a_fused_row_lies_in_its_tensor(leading: str, from_right: bool) -> None:
    s, X, Y = means(LEADING[leading], from_right, None)
    text = str(lower(s, [*sizes_beside(X), X, Y], simple_mode=True))
    assert "if " not in text
    assert "total = allocate(float32[1" in text


@pytest.mark.parametrize("factor", [None, 4, 5])
@pytest.mark.parametrize("leading", LEADING)
def test_rows_of_symbolic_shapes(leading: str, factor: int | None) -> None:
    s, X, Y = means(LEADING[leading], leading.count("s") > 1, factor)
    beside = sizes_beside(X)
    f = build(s, [*beside, X, Y])
    for b, n, t, d in ((2, 3, 5, 2), (1, 1, 1, 1), (3, 2, 7, 3), (0, 2, 2, 1), (2, 4, 0, 2)):
        given = {B: b, S: n, T: t, D: d}
        shape = [size(each, given) for each in X.shape]
        x = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
        y = np.full_like(x, 77)
        f(*(given[each] for each in beside), x, y)
        np.testing.assert_array_equal(y, x - x.sum(-1, keepdims=True))
