"""``te.create_prim_func``: the plain loops of expressions as functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir

RNG = np.random.default_rng(3)


def test_a_product_of_any_size() -> None:
    n = te.var("n")
    A, B = te.placeholder((n, 5), name="A"), te.placeholder((5, n), name="B")
    k = te.reduce_axis((0, 5), name="k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    func = te.create_prim_func([A, B, C])
    assert isinstance(func, tir.PrimFunc)
    assert func.name == "main"
    x, y = RNG.random((7, 5), dtype="float32"), RNG.random((5, 7), dtype="float32")
    z = np.empty((7, 7), "float32")
    for module in (
        tvm.build(func),
        tvm.build(tvm.IRModule.from_expr(func)),
        tvm.build(func.with_attr("global_symbol", "product")),
    ):
        z[:] = 0
        module(x, y, z)
        np.testing.assert_allclose(z, x @ y, rtol=1e-5)


def test_several_outputs_and_stages_between() -> None:
    A, a = te.placeholder((4, 6), name="A"), te.var("a", "float32")
    B = te.compute((4, 6), lambda i, j: A[i, j] * a, name="B")
    C = te.compute((4, 6), lambda i, j: te.exp(B[i, j]), name="C")
    D, E = te.compute((6,), lambda j: (C[0, j], B[1, j]), name="D")
    module = tvm.build(te.create_prim_func([A, a, C, D, E]))
    x = RNG.random((4, 6), dtype="float32")
    c, d, e = np.empty((4, 6), "float32"), np.empty(6, "float32"), np.empty(6, "float32")
    module(x, 0.5, c, d, e)
    np.testing.assert_allclose(c, np.exp(x * 0.5), rtol=1e-5)
    np.testing.assert_allclose(d, c[0], rtol=1e-5)
    np.testing.assert_allclose(e, x[1] * 0.5, rtol=1e-5)


A = te.placeholder((8,), name="A")
B = te.compute((8,), lambda i: A[i] + 1.0, name="B")


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: te.create_prim_func(B), r"expected a list of tensors, .*pass \[A, B\]"),
        (lambda: te.create_prim_func([A]), "expected a tensor that is computed, got inputs alone"),
        (lambda: te.create_prim_func([A, 3]), "argument 1: expected a tensor or a te.var"),
        (lambda: te.create_prim_func([B]), "A"),
        (lambda: te.create_prim_func([A, B, B]), "expected each argument once"),
        (lambda: te.create_prim_func([A, B], "int64"), "expected no index_dtype_override"),
    ],
)
def test_what_is_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(tvm.CompileError, match=message):
        tvm.build(attempt())
