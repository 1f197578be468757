"""Arrays of JAX as arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.contrib import convert_func, to_jax_func, to_pytorch_func
from minitvm.runtime import from_dlpack
from tests.frameworks import programs
from tests.runtime.test_read_only import WRITES, add_one, stays_as_it_is


@pytest.mark.parametrize("write", [name for name in WRITES if name != "wrapper of capsules"])
@pytest.mark.parametrize("make", [jnp.asarray, lambda x: jax.jit(lambda y: y * 1)(x)])
def test_arrays_of_jax_are_never_written(make: Any, write: str) -> None:
    x = make(np.array([1, 2, 3], "float32"))
    stays_as_it_is(WRITES[write], x, x)


def test_arrays_of_jax_are_inputs() -> None:
    x, out = jnp.arange(3, dtype="float32"), np.empty(3, "float32")
    for source in (x, from_dlpack(x), jnp.flip(x)[::-1]):
        out[:] = 0
        to_pytorch_func(add_one())(source, out)
        assert list(out) == [1, 2, 3]
    assert jnp.from_dlpack(tvm.nd.array(out)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "int8", "uint32"])
def test_dtypes(dtype: str) -> None:
    a = te.placeholder((4,), dtype, name="A")
    b = te.compute((4,), lambda i: a[3 - i], name="B")
    f = tvm.build(te.create_schedule(b.op), [a, b], name="f")
    x, out = jnp.array([0, 1, 1, 0, 1][:4], dtype), tvm.nd.empty((4,), dtype)
    f(x, out)
    assert jnp.from_dlpack(out).tolist() == x[::-1].tolist()
    with pytest.raises(ValueError, match="of jax, whose arrays never change"):
        f(x, x)


def test_a_program_that_jax_traces_is_refused() -> None:
    out = np.empty(3, "float32")
    with pytest.raises(Exception, match=r"argument 0 'A'.*that JAX is tracing"):
        jax.jit(lambda x: (add_one()(x, out), x)[1])(jnp.zeros(3))


# -- to_jax_func ----------------------------------------------------------------------------------


def test_results_are_returned() -> None:
    f = to_jax_func(programs.scaled())
    x = jnp.array([1.0, 2.0, 3.0])
    y = f(x, 2.0)
    assert isinstance(y, jax.Array)
    assert (y.tolist(), x.tolist()) == ([2, 8, 18], [1, 2, 3])
    assert f(X=x, a=1.0).tolist() == [1, 4, 9]
    assert f(np.ones(2, "float32"), 3.0).tolist() == [3, 3]
    assert f(jnp.zeros(0), 1.0).shape == (0,)
    y, z = to_jax_func(programs.parts())(x.reshape(1, 3))
    assert (y.tolist(), z.tolist()) == ([[2, 3, 4]], [6])


def test_results_are_not_copied() -> None:
    made: list[tvm.NDArray] = []

    def keep(array: tvm.NDArray) -> Any:
        made.append(array)
        return jax.dlpack.from_dlpack(array)

    f = convert_func(programs.scaled(), jax.Array, lambda array: array, keep)
    y = f(jnp.arange(5.0), 1.0)
    assert y.unsafe_buffer_pointer() == made[0].data


@pytest.mark.parametrize("dtype", [*programs.DTYPES, "bfloat16"])
def test_dtypes_of_results(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.array([0, 1, 1, 0], dtype)
        y = to_jax_func(programs.backwards(dtype))(x)
        assert (y.dtype, y.tolist()) == (x.dtype, x[::-1].tolist())


@pytest.mark.parametrize("dtype", ["bool", "bfloat16"])
def test_dtypes_in_a_program_of_jax(dtype: str) -> None:
    x = jnp.array([0, 1, 1, 1], dtype)
    y = jax.jit(to_jax_func(programs.backwards(dtype)))(x)
    assert (y.dtype, y.tolist()) == (x.dtype, [1, 1, 1, 0])


def test_compiled_by_jax() -> None:
    f, product = to_jax_func(programs.scaled()), to_jax_func(programs.product())
    x = jnp.arange(4.0)
    assert jax.jit(lambda x: f(x + 1, 2.0) * 2)(x).tolist() == [4, 16, 36, 64]
    assert jax.jit(lambda x, a: f(x, a))(x, 3.0).tolist() == [0, 3, 12, 27]
    assert jax.vmap(lambda x: f(x, 1.0))(jnp.ones((2, 3))).tolist() == [[1, 1, 1]] * 2
    a, b = programs.matrices()
    c = jax.jit(lambda a, b: jax.nn.relu(product(a, b)))(a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    y, z = jax.jit(to_jax_func(programs.parts()))(jnp.ones((2, 3)))
    assert (y.tolist(), z.tolist()) == ([[2] * 3] * 2, [3, 3])


def test_given_derivatives() -> None:
    f = to_jax_func(programs.scaled())
    square = jax.custom_vjp(lambda x: f(x, 1.0))
    square.defvjp(lambda x: (f(x, 1.0), x), lambda x, g: (2 * x * g,))
    for grad in (jax.grad, lambda g: jax.jit(jax.grad(g))):
        assert grad(lambda x: square(x).sum())(jnp.array([1.0, 3.0])).tolist() == [2, 6]


def test_what_a_function_of_jax_refuses() -> None:
    f = to_jax_func(programs.scaled())
    x = jnp.zeros(3)
    for args, kwargs, text in (
        ((x,), {}, r"scaled: expected 2 inputs \(X, a\), got 1: outputs are returned, not passed"),
        ((x, 1.0, x), {}, r"expected 2 inputs \(X, a\), got 3"),
        ((x, 1.0), {"Y": x}, "expected inputs by name among none, got 'Y'"),
        ((x,), {"X": x}, "argument 0 'X': given by position and by name"),
        ((x.astype("int32"), 1.0), {}, "argument 0 'X': expected dtype float32, got int32"),
    ):
        with pytest.raises(TypeError, match=text):
            f(*args, **kwargs)
    with pytest.raises(ValueError, match="argument 0 'X': expected ndim == 1, got 2"):
        f(x.reshape(3, 1), 1.0)
    with pytest.raises(TypeError, match=r"expected a function of minitvm.build.*got function"):
        to_jax_func(programs.add_one)
