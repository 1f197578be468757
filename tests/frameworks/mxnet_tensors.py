"""Arrays of MXNet, read and written in place. `tests/frameworks/run` runs it."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from minitvm.contrib import to_mxnet_func
from tests.frameworks import programs


def test_built_functions() -> None:
    x, y = mx.nd.array([1.0, 2.0, 3.0]), mx.nd.zeros((3,))
    to_mxnet_func(programs.scaled())(x, 2.0, y)
    assert y.asnumpy().tolist() == [2, 8, 18]
    assert (y + 1).asnumpy().tolist() == [3, 9, 19]
    a, b = programs.matrices()
    c = mx.nd.zeros((5, 3))
    to_mxnet_func(programs.product())(mx.nd.array(a), mx.nd.array(b), C=c)
    np.testing.assert_allclose(c.asnumpy(), a @ b, rtol=1e-5)


def test_what_mxnet_computes_in_the_background() -> None:
    """Its operators return before they have run; reads and writes wait for each other."""
    f = to_mxnet_func(programs.scaled())
    for _ in range(20):
        x = mx.nd.ones((400, 400))
        for _ in range(3):
            x = mx.nd.dot(x, x) / 400
        y = mx.nd.zeros((160_000,))
        f(x.reshape((-1,)), 3.0, y)
        assert float((y * 2).sum().asscalar()) == pytest.approx(6 * 160_000)


def test_parts_of_an_array() -> None:
    x, y = mx.nd.array([[9.0, 9], [1, 2], [9, 9]]), mx.nd.zeros((2, 2))
    to_mxnet_func(programs.scaled())(x[1], 2.0, y[1])
    assert y.asnumpy().tolist() == [[0, 0], [2, 8]]


def test_python_functions() -> None:
    x, y = mx.nd.array([1, 2, 3], dtype="int64"), mx.nd.zeros((3,), dtype="int64")
    f = to_mxnet_func(programs.add_one)
    f(x, y)
    assert y.asnumpy().tolist() == [2, 3, 4]
    f(x, target=y, by=5)
    assert y.asnumpy().tolist() == [6, 7, 8]


@pytest.mark.parametrize("dtype", [name for name in programs.DTYPES if name != "bool"])
def test_dtypes(dtype: str) -> None:
    x, y = mx.nd.array([0, 1, 2, 3], dtype=dtype), mx.nd.zeros((4,), dtype=dtype)
    to_mxnet_func(programs.backwards(dtype))(x, y)
    assert y.asnumpy().tolist() == [3, 2, 1, 0]


def test_what_is_refused() -> None:
    f = to_mxnet_func(programs.scaled())
    y = mx.nd.zeros((2,))
    with pytest.raises(TypeError, match="argument 0 'X': expected dtype float32, got float64"):
        f(mx.nd.zeros((2,), dtype="float64"), 1.0, y)
    with pytest.raises(ValueError, match="argument 2 'Y': expected shape"):
        f(mx.nd.zeros((3,)), 1.0, y)
