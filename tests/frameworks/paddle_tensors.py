"""Tensors of Paddle, read and written in place. `tests/frameworks/run` runs it."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import minitvm as tvm
from minitvm.contrib import to_paddle_func
from tests.frameworks import programs


def test_built_functions() -> None:
    x, y = paddle.to_tensor([1.0, 2.0, 3.0]), paddle.zeros([3])
    to_paddle_func(programs.scaled())(x, 2.0, y)
    assert y.tolist() == [2, 8, 18]
    assert (y + 1).tolist() == [3, 9, 19]
    a, b = programs.matrices()
    c = paddle.zeros([5, 3])
    to_paddle_func(programs.product())(paddle.to_tensor(a), paddle.to_tensor(b), C=c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)


def test_strided_tensors() -> None:
    a, b = programs.matrices()
    c = paddle.zeros([5, 3])
    turned = paddle.to_tensor(a.T.copy()).t()
    to_paddle_func(programs.product())(turned, paddle.to_tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)


def test_python_functions() -> None:
    x, y = paddle.to_tensor([1, 2, 3]), paddle.zeros([3], "int64")
    f = to_paddle_func(programs.add_one)
    f(x, y)
    assert y.tolist() == [2, 3, 4]
    f(x, target=y, by=5)
    assert y.tolist() == [6, 7, 8]


@pytest.mark.parametrize("dtype", [*programs.DTYPES, "bfloat16"])
def test_dtypes(dtype: str) -> None:
    x = paddle.to_tensor([0, 1, 1, 0]).astype(dtype)
    y = paddle.zeros([4], dtype)
    to_paddle_func(programs.backwards(dtype))(x[:4], y)
    assert y.astype("float32").tolist() == [0, 1, 1, 0][::-1]


def test_what_is_refused() -> None:
    f = to_paddle_func(programs.scaled())
    x, y = paddle.ones([2]), paddle.zeros([2])
    x.stop_gradient = False
    with pytest.raises(BufferError, match="requires gradients"):
        f(x, 1.0, y)
    for plainly in (lambda: programs.scaled()(x, 1.0, y), lambda: tvm.from_dlpack(x)):
        with pytest.raises(BufferError, match=r"requires gradient|stop_gradient"):
            plainly()
    f(x.detach(), 1.0, y)
    assert y.tolist() == [1, 1]
    with pytest.raises(ValueError, match="argument 2 'Y': expected shape"):
        f(paddle.ones([4]), 1.0, y)
    z = paddle.ones([2, 2])
    with pytest.raises(ValueError, match=r"argument 2 'C': expected .* shares no memory"):
        to_paddle_func(programs.product())(z, z, z)
