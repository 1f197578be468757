"""Gradients of programs whose sums leave terms out: what is left out has no part in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.te.tensor import ComputeOp, Tensor
from minitvm.tir.expr import IntImm

F64 = "float64"


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Any) -> Tensor:
    (t, d), s = q.shape, k.shape[0]
    a, b, c, z = (
        te.reduce_axis((0, n), name) for n, name in ((d, "a"), (s, "b"), (s, "c"), (s, "z"))
    )
    S = te.compute((t, s), lambda i, j: te.sum(q[i, a] * k[j, a], axis=a), name="S")
    M = te.compute((t,), lambda i: te.max(S[i, b], axis=b, where=seen(i, b)), name="M")
    E = te.compute((t, s), lambda i, j: te.exp(S[i, j] - M[i]), name="E")
    T = te.compute((t,), lambda i: te.sum(E[i, c], axis=c, where=seen(i, c)), name="T")
    made: Tensor = te.compute(
        (t, v.shape[1]),
        lambda i, j: te.sum(E[i, z] / T[i] * v[z, j], axis=z, where=seen(i, z)),
        name="O",
    )
    return made


def _theirs(inputs: Any, mask: Any) -> Any:
    q, k, v = inputs
    return torch.where(mask, q @ k.T, -torch.inf).softmax(-1) @ v


MASKS: dict[str, Any] = {
    "causal": lambda i, j: j <= i,
    "after": lambda i, j: j >= i,
    "band": lambda i, j: te.all(j <= i + 1, j > i - 5),
    "every other": lambda i, j: (i + j) % 2 == 0,
    "padding": lambda i, j: j < 9,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masked_attention(name: str, scheduled: bool) -> None:
    """Scores that are left out may be so large that their exponentials overflow."""
    seen, (t, d, n) = MASKS[name], (37, 5, 6)
    shapes = {"q": (t, d), "k": (t, d), "v": (t, n), "h": (t, n)}
    q, k, v, h = given = [te.placeholder(shape, F64, name=x) for x, shape in shapes.items()]
    made = te.gradient(_attention(q, k, v, seen), [q, k, v], h)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes.values()]
    arrays[1] *= 1 if name == "every other" else 400
    found = [np.full(x.shape, 7.0) for x in arrays[:3]]
    f = tvm.build(made, [*given, *made], name="f", auto_schedule=scheduled)
    f(*arrays, *found)
    where = [[bool(_number(seen, i, j)) for j in range(t)] for i in range(t)]
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays[:3]]
    _theirs(leaves, torch.tensor(where)).backward(torch.tensor(arrays[3]))
    for mine, leaf in zip(found, leaves, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(mine, leaf.grad.numpy(), rtol=1e-9, atol=1e-9)


def _number(seen: Any, i: int, j: int) -> int:
    found = seen(te.const(i, "int32"), te.const(j, "int32"))
    if not isinstance(found, IntImm):
        found = tvm.arith.Analyzer().simplify(found)
    assert isinstance(found, IntImm)
    return found.value


def _text(tensor: Tensor) -> str:
    assert isinstance(tensor.op, ComputeOp)
    return str(tensor.op.body[0])


def test_sums_over_a_masked_adjoint_leave_its_zeros_out() -> None:
    A, B = te.placeholder((6, 4), F64, name="A"), te.placeholder((6, 4), F64, name="B")
    k = te.reduce_axis((0, 4), name="k")
    S = te.compute((6, 6), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="S")
    L = te.compute((6, 6), lambda i, j: te.if_then_else(j <= i, te.exp(S[i, j]), 0.0), name="L")
    H = te.placeholder((6, 6), F64, name="H")
    dA, dB = te.gradient(L, [A, B], H)
    assert _text(dA).endswith("axis=[j], where=j <= i0)")
    assert "where=" in _text(dB)


def test_sums_that_are_left_out_as_a_whole_have_no_condition() -> None:
    P, V = te.placeholder((6, 6), F64, name="P"), te.placeholder((6, 4), F64, name="V")
    z = te.reduce_axis((0, 6), name="z")
    Y = te.compute((6, 4), lambda i, j: te.sum(P[i, z] * V[z, j], axis=z, where=z <= i), name="Y")
    dP, dV = te.gradient(Y, [P, V], te.placeholder((6, 4), F64, name="H"))
    text = _text(dP)
    assert text.startswith("if_then_else(i1 <= i0, ") and text.endswith(", float64(0.0))")
    (part,) = dP.op.input_tensors
    assert "where" not in _text(part)
    assert "where" in _text(dV)


def test_a_sum_that_may_only_be_read_under_its_condition_keeps_it() -> None:
    """Beyond the condition there is no row of `P`."""
    P, V = te.placeholder((3, 6), F64, name="P"), te.placeholder((6, 4), F64, name="V")
    z = te.reduce_axis((0, 6), name="z")
    Y = te.compute(
        (6, 4),
        lambda i, j: te.sum(te.if_then_else(i < 3, P[i, z] * V[z, j], 0.0), axis=z),
        name="Y",
    )
    H = te.placeholder((6, 4), F64, name="H")
    made = te.gradient(Y, [P, V], H)
    rng = np.random.default_rng(0)
    p, v, h = (rng.standard_normal(s) for s in ((3, 6), (6, 4), (6, 4)))
    dp, dv = np.empty((3, 6)), np.empty((6, 4))
    tvm.build(made, [P, V, H, *made])(p, v, h, dp, dv)
    np.testing.assert_allclose(dp, h[:3] @ v.T)
    np.testing.assert_allclose(dv, p.T @ h[:3])


def test_a_masked_adjoint_with_dimensions_in_front_of_gathered_rows() -> None:
    """The mask compares a dimension of the adjoint with one of the tensor."""
    X, t = te.placeholder((5,), F64, name="X"), te.placeholder((4,), "int32", name="t")
    Y = te.compute((4,), lambda i: te.exp(X[t[i]]), name="Y")
    H = te.compute((3, 4), lambda a, i: te.if_then_else(i <= a, te.cast(F64, i + 1), 0.0), name="H")
    (J,) = te.gradient(Y, [X], H)
    x, places = np.arange(5.0) / 5, np.array([2, 2, 1, 4], "int32")
    found = np.empty((3, 5))
    tvm.build([J], [X, t, J])(x, places, found)
    expected = np.zeros((3, 5))
    for a in range(3):
        for i in range(a + 1):
            expected[a, places[i]] += (i + 1) * np.exp(x[places[i]])
    np.testing.assert_allclose(found, expected)


def test_an_infinite_factor_beyond_the_mask() -> None:
    A, B = te.placeholder((6, 4), F64, name="A"), te.placeholder((6, 4), F64, name="B")
    k = te.reduce_axis((0, 4), name="k")
    S = te.compute((6, 6), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="S")
    L = te.compute((6, 6), lambda i, j: te.if_then_else(j <= i, S[i, j], 0.0), name="L")
    H = te.placeholder((6, 6), F64, name="H")
    (dA,) = te.gradient(L, [A], H)
    rng = np.random.default_rng(0)
    b, h, found = rng.standard_normal((6, 4)), rng.standard_normal((6, 6)), np.empty((6, 4))
    b[5] = np.inf  # which only the last row sees
    tvm.build([dA], [B, H, dA])(b, h, found)
    np.testing.assert_allclose(found[:5], np.tril(h)[:5, :5] @ b[:5])


def test_a_stage_in_rows_is_computed_where_a_choice_reads_it() -> None:
    A = te.placeholder((24, 24), F64, name="A")
    E = te.compute((24, 24), lambda i, j: te.exp(A[i, j]), name="E")
    L = te.compute((24, 24), lambda i, j: te.if_then_else(j <= i, E[i, j], 0.0), name="L")
    s = te.create_schedule(L.op)
    outer, _ = s[L].split(L.op.axis[0], factor=6)
    s[E].compute_at(s[L], outer)
    assert "for j in range(i.outer * 6 + 6)" in str(tvm.lower(s, [A, L]))
    a, found = np.random.default_rng(0).random((24, 24)), np.full((24, 24), 7.0)
    tvm.build(s, [A, L])(a, found)
    np.testing.assert_allclose(found, np.tril(np.exp(a)))


def test_factors_of_sums_without_terms_are_read_under_their_conditions() -> None:
    """Anything follows from a variable without values, also that a guarded read stays inside."""
    X, C = te.placeholder((4,), F64, name="X"), te.placeholder((4, 1), F64, name="C")
    k = te.reduce_axis((1, 1), name="k")

    def element(i: Any) -> Any:
        before = te.if_then_else(i >= 1, X[i - 1], te.const(0.0, F64))
        return te.prod(te.tanh(before * before * C[i, k]) + 1.5, axis=k)

    Y = te.compute((4,), element, name="Y")
    h = te.placeholder((4,), F64, name="h")
    dx, dc = te.gradient(Y, [X, C], h)
    found = [np.full(4, 7.0), np.full((4, 1), 7.0)]
    tvm.build([dx, dc], [X, C, h, dx, dc])(np.ones(4), np.ones((4, 1)), np.ones(4), *found)
    assert not found[0].any() and not found[1].any()
