"""Batches of built functions and operators in JAX and torch: one kernel, and right gradients."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from tests.frameworks import programs

torch = pytest.importorskip("torch")
X = np.random.default_rng(0).random((3, 5, 4), "float32")
W = np.random.default_rng(1).random((3, 4), "float32")


Vector = Annotated[te.Tensor, "n"]


@tvm.jit
def weighed(x: Vector, w: Vector) -> Any:
    """x / sum(x) * w."""
    k = te.reduce_axis((0, x.shape[0]))
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
    return te.compute(x.shape, lambda i: x[i] / total[()] * w[i], name="y")


def weighed_by_others(x: Any, w: Any) -> Any:
    return x / x.sum(-1)[..., None] * w


@cache
def operator() -> Any:
    """x * x * w with a built derivative, as an operator of torch and an operation of JAX."""
    n = te.var("n")
    x, w, g = (te.placeholder((n,), name=name) for name in "XWG")
    y = te.compute((n,), lambda i: x[i] * x[i] * w[i], name="Y")
    dx = te.compute((n,), lambda i: 2.0 * x[i] * w[i] * g[i], name="DX")
    dw = te.compute((n,), lambda i: x[i] * x[i] * g[i], name="DW")
    forward = tvm.build(te.create_schedule(y.op), [x, w, y], name="forward")
    backward = tvm.build([dx, dw], [x, w, g, dx, dw], name="backward")
    name = f"minitvm_tests::b{uuid.uuid4().hex}"
    return forward.torch_op(name, backward), forward.jax_op(backward=backward)


def squared(x: Any, w: Any) -> Any:
    return x * x * w


@cache
def called() -> Any:
    """A program of an extern stage, which has no batch: X + 1."""
    x = te.placeholder((4,), name="X")

    def body(ins: Any, outs: Any) -> Any:
        ib = tvm.tir.ir_builder.create()
        source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, 4) as i:
            target[i] = source[i] + 1.0
        return ib.get()

    y = te.extern((4,), [x], body, name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], name="called")


# -- torch ----------------------------------------------------------------------------------------

IN_TORCH = [(lambda: weighed, weighed_by_others), (lambda: operator()[0], squared)]


@pytest.mark.parametrize(("ours", "theirs"), IN_TORCH)
def test_torch(ours: Callable[[], Any], theirs: Any) -> None:
    f, x, w = ours(), torch.tensor(X), torch.tensor(W)
    nested = torch.vmap(torch.vmap(f, (0, None)), (0, 0))
    assert nested(x[:, :0], w).shape == (3, 0, 4)
    torch.testing.assert_close(nested(x, w), theirs(x, w[:, None]))
    turned = torch.vmap(f, (1, 1), 1)(x[0].T, x[1].T)
    torch.testing.assert_close(turned, theirs(x[0], x[1]).T)
    shared = torch.vmap(torch.vmap(f, (None, 0)), (0, None))(x[0], w)
    torch.testing.assert_close(shared, theirs(x[0][:, None], w))


@pytest.mark.parametrize(("ours", "theirs"), IN_TORCH)
def test_gradients_in_torch(ours: Callable[[], Any], theirs: Any) -> None:
    """Of a batch, of each sample, and of batches of batches."""
    f, x, w = ours(), torch.tensor(X), torch.tensor(W)

    def of_each(f: Any) -> Any:
        one = torch.func.grad(lambda x, w: f(x, w).sin().sum(), argnums=(0, 1))
        return torch.func.vmap(one, (0, None))(x[0], w[0])

    def of_all(f: Any) -> Any:
        leaves = x[0].clone().requires_grad_(), w[0].clone().requires_grad_()
        torch.vmap(f, (0, None))(*leaves).sin().sum().backward()
        return [leaf.grad for leaf in leaves]

    def of_nested(f: Any) -> Any:
        inner = torch.func.vmap(f, (0, None))
        one = torch.func.grad(lambda x, w: inner(x, w).sin().sum(), argnums=(0, 1))
        return torch.func.vmap(one, (0, 0))(x, w)

    def of_one(f: Any) -> Any:
        one = torch.func.grad(lambda w: f(x[0, 0], w).sin().sum())
        return [torch.func.vmap(one)(w)]

    for each in (of_each, of_all, of_nested, of_one):
        for found, expected in zip(each(f), each(theirs), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_batch_in_torch_is_one_operator() -> None:
    op, x, w = operator()[0], torch.tensor(X[0]), torch.tensor(W[0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.vmap(op, (0, None))(x, w)
    counts = {each.key: each.count for each in profile.key_averages()}
    assert counts[f"{op.name}_batch_10"] == 1
    compiled = torch.compile(torch.vmap(op, (0, None)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), squared(x, w))


def test_operators_without_a_batch_in_torch() -> None:
    name = f"minitvm_tests::b{uuid.uuid4().hex}"
    op = called().torch_op(name)
    x = torch.tensor(X[0])
    torch.testing.assert_close(torch.vmap(op)(x), x + 1)
    assert torch.vmap(op)(x[:0]).shape == (0, 4)
    unpickled = pickle.loads(pickle.dumps(programs.parts()))
    y, z = torch.vmap(unpickled.torch_op(f"{name}_pickled"))(torch.ones(2, 3, 4))
    assert (y.sum(), z.sum()) == (48, 24)
    with pytest.raises(NotImplementedError, match="expected an operator with a backward"):
        torch.vmap(op)(x.requires_grad_()).sum().backward()


# -- JAX ------------------------------------------------------------------------------------------

IN_JAX = [(lambda: weighed, weighed_by_others), (lambda: operator()[1], squared)]


@pytest.mark.parametrize(("ours", "theirs"), IN_JAX)
def test_jax(ours: Callable[[], Any], theirs: Any) -> None:
    f, x, w = ours(), jnp.asarray(X), jnp.asarray(W)
    nested = jax.jit(jax.vmap(jax.vmap(f, (0, None)), (0, 0)))
    assert nested(x[:, :0], w).shape == (3, 0, 4)
    np.testing.assert_allclose(nested(x, w), theirs(x, w[:, None]), rtol=1e-5)
    turned = jax.vmap(f, (1, 1), 1)(x[0].T, x[1].T)
    np.testing.assert_allclose(turned, theirs(x[0], x[1]).T, rtol=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), IN_JAX)
def test_gradients_in_jax(ours: Callable[[], Any], theirs: Any) -> None:
    f, x, w = ours(), jnp.asarray(X), jnp.asarray(W)

    def of_each(f: Any) -> Any:
        one = jax.grad(lambda x, w: jnp.sin(f(x, w)).sum(), argnums=(0, 1))
        return jax.vmap(one, (0, None))(x[0], w[0])

    def of_nested(f: Any) -> Any:
        inner = jax.vmap(f, (0, None))
        one = jax.grad(lambda x, w: jnp.sin(inner(x, w)).sum(), argnums=(0, 1))
        return jax.jit(jax.vmap(one, (0, 0)))(x, w)

    for each in (of_each, of_nested):
        for found, expected in zip(each(f), each(theirs), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_numbers_of_a_batch_in_jax() -> None:
    """A number that differs from element to element; one whose dtype JAX has no array of."""
    f, x = programs.scaled().jax_op(), jnp.asarray(X[0])
    for a in (jnp.arange(5.0), jnp.arange(5)):
        np.testing.assert_allclose(jax.vmap(f)(x, a), x * x * a[:, None], rtol=1e-6)
    for dtype in ("int64", "int8"):
        a = te.var("a", dtype)
        y = te.compute((1,), lambda i, a=a: a.astype("float32"), name="Y")
        number = tvm.build(te.create_schedule(y.op), [a, y], name="number").jax_op()
        assert jax.vmap(number)(jnp.arange(3)).tolist() == [[0], [1], [2]]
    with pytest.raises(Exception, match="argument 0 'a': expected a value of dtype int8, got 300"):
        jax.vmap(number)(jnp.array([1, 300])).block_until_ready()


def test_a_batch_in_jax_shares_operands() -> None:
    op = programs.product().jax_op()
    a, b = np.ones((2, 5, 7), "float32"), np.ones((7, 3), "float32")
    text = str(jax.make_jaxpr(jax.vmap(op, in_axes=(0, None)))(a, b))
    assert ("1,7,3" in text, text.count("ffi_call[")) == (False, 1)
    each = str(jax.make_jaxpr(jax.vmap(called().jax_op()))(jnp.asarray(X[0])))
    assert each.count("ffi_call[") == 1
    assert jax.vmap(called().jax_op())(jnp.zeros((2, 4))).tolist() == [[1] * 4] * 2


def test_sizes_in_jax_are_the_same_for_all() -> None:
    """A number on which a shape depends, beside a batch."""
    n = te.var("n")
    x = te.placeholder((4,), name="X")
    y = te.compute((n, 4), lambda i, j: x[j] * 1.0, name="Y")
    rows = tvm.build(te.create_schedule(y.op), [n, x, y], name="rows").jax_op()
    found = jax.vmap(lambda x: rows(2, x))(jnp.asarray(X[0]))
    np.testing.assert_array_equal(found, np.repeat(X[0][:, None], 2, 1))
