"""Tensors of TensorFlow: inputs in place, results without a copy. See `tests/frameworks/run`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from minitvm.contrib import to_tensorflow_func
from tests.frameworks import programs


def test_results_are_returned() -> None:
    f = to_tensorflow_func(programs.scaled())
    x = tf.constant([1.0, 2.0, 3.0])
    y = f(x, 2.0)
    assert isinstance(y, tf.Tensor)
    assert y.numpy().tolist() == [2, 8, 18]
    assert x.numpy().tolist() == [1, 2, 3]
    assert float(tf.reduce_sum(y * y)) == 4 + 64 + 324  # it computes with aligned memory alone
    assert f(tf.Variable([3.0]), a=1.0).numpy().tolist() == [9]
    assert f(X=tf.zeros(0), a=1.0).shape == (0,)


def test_several_results() -> None:
    x, _ = programs.matrices()
    y, z = to_tensorflow_func(programs.parts())(tf.constant(x))
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_allclose(z, x.sum(1), rtol=1e-6)


@pytest.mark.parametrize("dtype", [*programs.DTYPES, "bfloat16"])
def test_dtypes(dtype: str) -> None:
    x = tf.cast(tf.constant([0, 1, 1, 0]), dtype)[::1]
    y = to_tensorflow_func(programs.backwards(dtype))(x)
    assert y.dtype == x.dtype
    assert y.numpy().tolist() == x.numpy()[::-1].tolist()


def test_in_a_graph() -> None:
    f = to_tensorflow_func(programs.scaled())
    graph = tf.function(lambda x: f(x, 2.0) + 1)
    assert graph(tf.constant([1.0, 2.0])).numpy().tolist() == [3, 9]
    assert graph.get_concrete_function(tf.TensorSpec([5])).output_shapes == (5,)
    spec = [tf.TensorSpec([None]), tf.TensorSpec([])]
    graph = tf.function(lambda x, a: f(x, a) + 1, input_signature=spec)
    assert graph(tf.constant([1.0, 2.0]), tf.constant(3.0)).numpy().tolist() == [4, 13]
    product = to_tensorflow_func(programs.product())
    a, b = programs.matrices()
    made = tf.function(lambda a, b: tf.nn.relu(product(a, b)))(a, b)
    np.testing.assert_allclose(made, a @ b, rtol=1e-5)


def test_what_is_refused() -> None:
    f = to_tensorflow_func(programs.scaled())
    x = tf.constant([1.0])
    with pytest.raises(TypeError, match=r"scaled: expected 2 inputs \(X, a\), got 3"):
        f(x, 1.0, x)
    with pytest.raises(TypeError, match="argument 0 'X': expected dtype float32, got float64"):
        f(tf.constant([1.0], tf.float64), 1.0)
    with pytest.raises(ValueError, match="of tensorflow, whose arrays never change"):
        programs.scaled()(x, 1.0, x)
    with pytest.raises(TypeError, match=r"expected a function of minitvm.build.*got function"):
        to_tensorflow_func(programs.add_one)


def test_a_tensor_keeps_its_memory() -> None:
    f: Any = to_tensorflow_func(programs.scaled())
    made = [f(tf.fill([1000], float(i)), 1.0) for i in range(50)]
    assert [float(each[-1]) for each in made] == [float(i * i) for i in range(50)]
