"""Long loops without an effect are skipped."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import minitvm as tvm
from minitvm import te, tir
from minitvm.auto_scheduler import auto_schedule
from minitvm.tir.expr import PrimExpr, Var, const
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore, IfThenElse, PrimFunc
from minitvm.transform import skip_loops as module
from minitvm.transform.skip_loops import skip_loops
from tests.tir.programs import function, loop
from tests.transform.loop_nests import Nest, loop_nests, same_effect

i, j, k = Var("i"), Var("j"), Var("k")
A = tir.decl_buffer((64, 64), name="A")


def tiles(guard: PrimExpr) -> PrimFunc:
    """A loop over k, between one over i and one over j."""
    store = BufferStore(A, A[i, j] + const(1.0), (i, j))
    return function("f", A, body=loop(i, 64, loop(k, 64, loop(j, 64, IfThenElse(guard, store)))))


@pytest.mark.parametrize(
    ("guard", "condition"),
    [
        (j + 60 <= i, "if i - 60 >= 0"),
        (i * 2 + j >= 100, "if i * 2 - 37 >= 0"),
        (j <= i, None),  # for each i it holds for a j
        (j <= k, None),  # the loop itself would be shorter
    ],
)
def test_conditions_of_the_weakest_iteration(guard: PrimExpr, condition: str | None) -> None:
    func = tiles(guard)
    made = skip_loops(func)
    if condition is None:
        assert made.body.same_as(func.body)
    else:
        assert condition in str(made)
    before = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    found, expected = before.copy(), before.copy()
    interpret(made, found)
    interpret(func, expected)
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None)
@given(loop_nests())
def test_nothing_changes_but_the_loops_without_effect(nest: Nest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONG", 1)
        same_effect(nest, skip_loops(nest.func))


MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "triangle": lambda p, q: q <= p,
    "strict triangle": lambda p, q: q > p,
    "band": lambda p, q: te.all(p <= q + 9, q <= p + 9),
    "anti-diagonal": lambda p, q: p + q >= 130,
    "blocks": lambda p, q: p // 32 == q // 32,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(100, 90), (None, 90), (None, None)])
@pytest.mark.parametrize("mask", MASKS)
def test_tiles_of_results_without_terms(mask: str, shape: tuple[int | None, int | None]) -> None:
    """Products of which a condition on the result keeps a part: a tile beside it takes no steps."""
    m, n = (extent or te.var(name) for extent, name in zip(shape, "mn", strict=True))
    X, Y = te.placeholder((m, 70), name="X"), te.placeholder((70, n), name="Y")
    r = te.reduce_axis((0, 70), name="r")
    Z = te.compute(
        (m, n),
        lambda p, q: te.sum(te.if_then_else(MASKS[mask](p, q), X[p, r] * Y[r, q], 0.0), axis=r),
        name="Z",
    )
    x = np.random.default_rng(0).standard_normal((100, 70)).astype("float32")
    y = np.random.default_rng(1).standard_normal((70, 90)).astype("float32")
    x[99], y[:, 0] = np.inf, np.nan
    z = np.ones((100, 90), "float32")
    tvm.build(Z, [X, Y, Z])(x, y, z)
    p, q = np.ogrid[:100, :90]
    holds = {
        "triangle": q <= p,
        "strict triangle": q > p,
        "band": abs(p - q) <= 9,
        "anti-diagonal": p + q >= 130,
        "blocks": p // 32 == q // 32,
    }[mask]
    with np.errstate(invalid="ignore"):
        expected = np.where(holds, x.astype("float64") @ y, 0)
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-4)


def test_tiles_beside_a_triangle() -> None:
    X, r = te.placeholder((200, 200), name="X"), te.reduce_axis((0, 200), name="r")
    Z = te.compute(
        (200, 200),
        lambda p, q: te.sum(te.if_then_else(q <= p, X[p, r] * X[r, q], 0.0), axis=r),
        name="Z",
    )
    loops = str(tvm.lower(auto_schedule(Z, "llvm -mcpu=haswell"), [X, Z]))
    tests = re.findall(r"if .* >= 0:\n +for r in range\(200\)", loops)
    assert len(tests) == 1  # of three parts: one has full tiles, and one no other
    assert loops.count("for r in range(200)") > 2
