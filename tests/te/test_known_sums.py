"""Adjoints read sums that the program, or another adjoint, computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minitvm as tvm
from minitvm import te
from minitvm.te.autodiff.known_sums import reading_sums
from minitvm.te.schedules.operation_graph import in_order
from minitvm.te.tensor import Tensor

Mean = Callable[[Any, Any], Any]
F = torch.nn.functional


def _row_sums(x: Tensor, value: Callable[..., Any], name: str = "S") -> Any:
    k = te.reduce_axis((0, x.shape[1]), name="k")
    return te.compute((x.shape[0],), lambda i: te.sum(value(i, k), axis=k), name=name)


def _sums_in(*adjoints: Tensor) -> list[str]:
    """The sums that adjoints compute, of their inputs, as text."""
    ops = in_order([each.op for each in adjoints])
    return [str(op.body[0]) for op in ops if op.name.endswith(("_grad", "_sum")) and op.reduce_axis]  # type: ignore[attr-defined]  # of te.compute


def _layer_norm(x: Tensor, w: Tensor, mean: Callable[..., Any]) -> Any:
    n = x.shape[1]
    m = mean(x, n)
    c = te.compute(x.shape, lambda i, j: x[i, j] - m[i], name="c")
    v = _row_sums(x, lambda i, k: c[i, k] * c[i, k], "v")
    return te.compute(x.shape, lambda i, j: c[i, j] * te.rsqrt(v[i] / n + 1e-5) * w[j], name="Y")


def _mean_of_sum(x: Tensor, n: Any) -> Any:
    s = _row_sums(x, lambda i, k: x[i, k])
    return te.compute((x.shape[0],), lambda i: s[i] / n, name="m")


def _sum_of_parts(x: Tensor, n: Any) -> Any:
    return _row_sums(x, lambda i, k: x[i, k] / n, "m")


def _times_reciprocal(x: Tensor, n: Any) -> Any:
    s = _row_sums(x, lambda i, k: x[i, k])
    r = 1.0 / n if isinstance(n, int) else te.const(1.0, x.dtype) / n.astype(x.dtype)
    return te.compute((x.shape[0],), lambda i: s[i] * r, name="m")


def _unbiased(x: Tensor, n: Any) -> Any:
    """No mean: the deviations from it have a sum."""
    s = _row_sums(x, lambda i, k: x[i, k])
    return te.compute((x.shape[0],), lambda i: s[i] / (n - 1), name="m")


MEANS = [_mean_of_sum, _sum_of_parts, _times_reciprocal, _unbiased]


@pytest.mark.covering(1)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_the_gradient_of_a_norm(mean: Mean, is_symbolic: bool) -> None:
    m, n = (te.size_var("m"), te.size_var("n")) if is_symbolic else (5, 33)
    x, w = te.placeholder((m, n), "float64", name="X"), te.placeholder((n,), "float64", name="w")
    y = _layer_norm(x, w, mean)
    dy = te.placeholder((m, n), "float64", name="dY")
    dx, dw = te.gradient(y, [x, w], dy)
    is_split = all("c_grad" not in each for each in _sums_in(dx))
    assert is_split is (mean is not _unbiased)
    rng = np.random.default_rng(0)
    a, b, g = (rng.standard_normal(shape) for shape in ((5, 33), 33, (5, 33)))
    found = np.empty((5, 33)), np.empty(33)
    tvm.build([dx, dw], [x, w, dy, dx, dw])(a, b, g, *found)
    ta, tb = (torch.tensor(each, requires_grad=True) for each in (a, b))
    c = ta - ta.sum(1, keepdim=True) / (33 - (mean is _unbiased))
    made = c * torch.rsqrt((c * c).sum(1, keepdim=True) / 33 + 1e-5) * tb
    for one, other in zip(found, torch.autograd.grad(made, [ta, tb], torch.tensor(g)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_a_batch_norm_computes_two_sums_backward() -> None:
    shape = (4, 6, 9)
    x = te.placeholder(shape, "float64", name="X")
    w, bias = (te.placeholder((6,), "float64", name=name) for name in ("w", "bias"))

    def sums(value: Callable[..., Any], name: str) -> Any:
        a, b = te.reduce_axis((0, 4), name="a"), te.reduce_axis((0, 9), name="b")
        return te.compute((6,), lambda i: te.sum(value(a, i, b), axis=[a, b]), name=name)

    s = sums(lambda *at: x[at], "s")
    d = te.compute(shape, lambda n, i, j: x[n, i, j] - s[i] / 36.0, name="d")
    v = sums(lambda *at: d[at] * d[at], "v")
    y = te.compute(
        shape, lambda n, i, j: d[n, i, j] * te.rsqrt(v[i] / 36.0 + 1e-5) * w[i] + bias[i], name="Y"
    )
    dy = te.placeholder(shape, "float64", name="dY")
    found = te.gradient(y, [x, w, bias], dy)
    assert sorted(_sums_in(*found), key=len) == [
        "sum(dY[n, i0, j], axis=[n, j])",
        "sum(d[n, i0, j] * dY[n, i0, j], axis=[n, j])",
    ]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(each) for each in (shape, 6, 6, shape)]
    made = [np.empty(each) for each in (shape, 6, 6)]
    tvm.build(found, [x, w, bias, dy, *found])(*arrays, *made)
    *leaves, head = (torch.tensor(each, requires_grad=True) for each in arrays)
    wanted = torch.autograd.grad(
        F.batch_norm(leaves[0], None, None, *leaves[1:], True), leaves, head
    )
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def _adjoint_by(value: Callable[..., Any], where: Callable[..., Any] | None = None) -> str:
    """The body of a sum over rows, in a program that computes ``sum(X[i, j], j)``."""
    x, v = te.placeholder((4, 8), name="X"), te.placeholder((4,), name="v")
    s = _row_sums(x, lambda i, k: x[i, k])
    k = te.reduce_axis((0, 8), name="k")
    condition = {} if where is None else {"where": where(k)}
    d = te.compute((4,), lambda i: te.sum(value(x, v, i, k), axis=k, **condition), name="D")
    made: Any = reading_sums([d], [s])[0].op
    return str(made.body[0])


def test_deviations_from_the_mean_of_a_group() -> None:
    """Groups are parts of an axis: the indices of the mean's sum are found in those of others."""
    shape, part = (3, 8, 10), 4
    x = te.placeholder(shape, "float64", name="X")
    w = te.placeholder((8,), "float64", name="w")

    def sums(value: Callable[..., Any], name: str) -> Any:
        q, j = te.reduce_axis((0, part), name="q"), te.reduce_axis((0, 10), name="j")
        return te.compute(
            (3, 2), lambda n, g: te.sum(value(n, g, g * part + q, j), axis=[q, j]), name=name
        )

    m = sums(lambda n, g, i, j: x[n, i, j] / 40.0, "m")
    v = sums(lambda n, g, i, j: (x[n, i, j] - m[n, g]) * (x[n, i, j] - m[n, g]) / 40.0, "v")

    def element(n: Any, i: Any, j: Any) -> Any:
        g = i // part
        return (x[n, i, j] - m[n, g]) * te.rsqrt(v[n, g] + 1e-5) * w[i]

    y = te.compute(shape, element, name="Y")
    dy = te.placeholder(shape, "float64", name="dY")
    (dx,) = te.gradient(y, [x], dy)
    assert all("X" not in each or "dY" in each for each in _sums_in(dx) if "m[" in each) is True
    rng = np.random.default_rng(0)
    a, b, g, found = rng.random(shape), rng.random(8), rng.random(shape), np.empty(shape)
    tvm.build([dx], [x, w, dy, dx])(a, b, g, found)
    leaf = torch.tensor(a, requires_grad=True)
    made = torch.nn.functional.group_norm(leaf, 2, torch.tensor(b), None, 1e-5)
    (expected,) = torch.autograd.grad(made, leaf, torch.tensor(g))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_multiples_of_a_known_sum_read_it() -> None:
    assert _adjoint_by(lambda x, v, i, k: x[i, k] * v[i] * 3.0) == "v[i] * S[i] * 3.0"
    assert _adjoint_by(lambda x, v, i, k: v[i] * x[i, k] + x[i, k] * v[i]) == "v[i] * 2.0 * S[i]"
    assert _adjoint_by(lambda x, v, i, k: v[i] * v[i]) == "v[i] * v[i] * 8.0"


def test_other_sums_stay_as_they_are() -> None:
    assert _adjoint_by(lambda x, v, i, k: x[3 - i, k]) == "S[3 - i]"
    assert "sum" in _adjoint_by(lambda x, v, i, k: x[i, 7 - k])
    assert "sum" in _adjoint_by(lambda x, v, i, k: x[i, k] * x[i, k])
    assert "sum" in _adjoint_by(lambda x, v, i, k: x[i, k], lambda k: k < 3)
    assert "sum" in _adjoint_by(lambda x, v, i, k: x[i, k] - v[i])  # which may be small
    assert "sum" in _adjoint_by(lambda x, v, i, k: te.exp(x[i, k]) + te.sin(x[i, k]))


@pytest.mark.parametrize(("rows", "first", "shared"), [(4, 0, True), (3, 1, True), (4, 4, False)])
def test_a_known_sum_is_read_where_it_has_an_element(rows: int, first: int, shared: bool) -> None:
    X = te.placeholder((8, 5), name="X")
    j, k = te.reduce_axis((0, 5), "j"), te.reduce_axis((0, 5), "k")
    S = te.compute((4,), lambda i: te.sum(X[i, j], axis=j), name="S")
    D = te.compute((rows,), lambda i: te.sum(X[i + first, k], axis=k), name="D_grad")
    (found,) = reading_sums([D], [S])
    assert isinstance(found.op, te.ComputeOp)
    assert (str(found.op.body[0]) == f"S[{f'i + {first}' if first else 'i'}]") is shared
    assert bool(found.op.reduce_axis) is not shared


@pytest.mark.parametrize("half", [3, 16])
def test_the_angles_of_a_rotation_are_read_by_both_halves(half: int) -> None:
    @tvm.jit
    def rotated(x: Any, c: Any, s: Any) -> Any:
        return te.compute(
            x.shape,
            lambda b, t, d: te.if_then_else(
                d < half,
                x[b, t, d] * c[t, d] - x[b, t, d + half] * s[t, d],
                x[b, t, d] * c[t, d - half] + x[b, t, d - half] * s[t, d - half],
            ),
        )

    def expected(x: Any, c: Any, s: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    torch.manual_seed(0)
    shapes = [(4, 5, 2 * half), (5, half), (5, half)]
    given = [torch.rand(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    head = torch.rand(4, 5, 2 * half, dtype=torch.float64)
    found = torch.autograd.grad(rotated(*given), given, head)
    wanted = torch.autograd.grad(expected(*given), given, head)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_adjoints_that_read_the_same_sums_stand_between_them_and_the_last() -> None:
    n, c, m = 4, 3, 5
    X = te.placeholder((n, c, m), "float64", name="X")
    w, b = (te.placeholder((c,), "float64", name=name) for name in "wb")
    (i, j), (k, h) = ([te.reduce_axis((0, each)) for each in (n, m)] for _ in range(2))
    s = te.compute((c,), lambda q: te.sum(X[i, q, j], axis=[i, j]), name="s")
    d = te.compute(X.shape, lambda a, q, e: X[a, q, e] - s[q] / (n * m), name="d")
    v = te.compute((c,), lambda q: te.sum(d[k, q, h] * d[k, q, h], axis=[k, h]), name="v")
    r = te.compute((c,), lambda q: te.rsqrt(v[q] / (n * m) + 1e-5), name="r")
    Y = te.compute(X.shape, lambda a, q, e: d[a, q, e] * r[q] * w[q] + b[q], name="Y")
    dY = te.placeholder(X.shape, "float64", name="dY")
    dX, dw, db = te.gradient(Y, [X, w, b], dY)
    ops = in_order([dX.op])
    assert db.op in ops and dw.op in ops and db.op.name == "b_grad"
    readers = [
        op.name for op in ops if any(x.op is dw.op.input_tensors[0].op for x in op.input_tensors)
    ]
    assert isinstance(db.op, te.ComputeOp) and db.op.reduce_axis and "w_grad" in readers[:1]


def test_two_adjoints_that_copy_one_sum_are_two_tensors() -> None:
    X = te.placeholder((6, 4), "float64", name="X")
    a, b = (te.placeholder((4,), "float64", name=name) for name in "ab")
    Y = te.compute(X.shape, lambda i, j: X[i, j] + a[j] + b[j], name="Y")
    dY = te.placeholder(X.shape, "float64", name="dY")
    da, db = te.gradient(Y, [a, b], dY)
    assert da is not db
    dy, found = np.random.default_rng(0).random((6, 4)), [np.empty(4), np.empty(4)]
    tvm.build([da, db], [dY, da, db])(dy, *found)
    for each in found:
        np.testing.assert_allclose(each, dy.sum(0), rtol=1e-12)
