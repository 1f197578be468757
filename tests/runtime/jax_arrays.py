"""Arrays of JAX. Run by test_jax.py in a process of its own: where JAX is imported, a fork is a
warning, and other tests fork."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.contrib.dlpack import to_pytorch_func
from minitvm.runtime import from_dlpack
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
    with pytest.raises(Exception, match=r"argument 0 'A'.*traced array"):
        jax.jit(lambda x: (add_one()(x, out), x)[1])(jnp.zeros(3))
