"""Wrappers that let a compiled function take another library's tensors (``tvm.contrib.dlpack``).

minitvm's own functions take any DLPack array as it is, so that for libraries whose arrays speak
DLPack and can be written the wrapper is the function itself. The wrappers serve programs written
for classic TVM, Python functions of NDArrays, libraries whose tensors have no ``__dlpack__``, and
libraries whose arrays never change: for these, a function returns its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.contrib.imported import imported
from minitvm.contrib.jax_op import jax_op
from minitvm.runtime.frameworks import is_read_only
from minitvm.runtime.interchange import from_dlpack
from minitvm.runtime.module import Module
from minitvm.runtime.ndarray import NDArray, empty
from minitvm.runtime.packed_func import PackedFunc
from minitvm.runtime.results import Results, results_of


def convert_func(
    tvm_func: Callable[..., Any],
    tensor_type: type | tuple[type, ...],
    to_dlpack_func: Callable[[Any], Any],
    from_dlpack_func: Callable[[NDArray], Any] | None = None,
) -> Callable[..., Any]:
    """`tvm_func` as a function that takes tensors of `tensor_type`, in place.

    Parameters
    ----------
    tvm_func
        The function to call. Arguments of other types are passed to it unchanged.
    tensor_type
        The class of the tensors to convert, or several.
    to_dlpack_func
        Converts a tensor to a DLPack capsule, or to an array with ``__dlpack__``.
    from_dlpack_func
        Makes a tensor from an NDArray, which the tensor keeps alive. With this argument, the
        wrapper takes only the inputs, by position or by name, and returns the outputs: one tensor,
        or a tuple.

    Raises
    ------
    TypeError
        With `from_dlpack_func`, when `tvm_func` is no function of ``build``: other functions don't
        declare their outputs.

    >>> shape = convert_func(lambda a: a.shape, np.ndarray, lambda x: x.__dlpack__())
    >>> shape(np.zeros((2, 3)))
    (2, 3)
    """

    def convert(value: Any) -> Any:
        if not isinstance(value, tensor_type):
            return value
        return from_dlpack(to_dlpack_func(value), read_only=is_read_only(value))

    if from_dlpack_func is not None:
        return _returning(tvm_func, convert, from_dlpack_func)

    def converted(*args: Any, **kwargs: Any) -> Any:
        return tvm_func(*map(convert, args), **{name: convert(kwargs[name]) for name in kwargs})

    return converted


def _returning(
    function: Callable[..., Any], convert: Callable[[Any], Any], back: Callable[[NDArray], Any]
) -> Callable[..., Any]:
    results = results_of(function)

    def converted(*args: Any, **kwargs: Any) -> Any:
        made = written(function, results, [convert(value) for value in results.bind(args, kwargs)])
        return results.returned([back(each) for each in made])

    return converted


def written(function: Callable[..., Any], results: Results, values: Sequence[Any]) -> list[NDArray]:
    """The outputs of a function for some inputs, in new arrays."""
    kinds = (results.dtypes[position] for position in results.outputs)
    made = [empty(shape, dtype) for shape, dtype in zip(results.shapes(values), kinds, strict=True)]
    function(*results.arguments(values, made))
    return made


# -- Libraries whose arrays can be written --------------------------------------------------------


def to_numpy_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of numpy arrays, read-only ones included: itself, if it is one of
    minitvm's."""
    return _in_place(tvm_func, np.ndarray, lambda array: array)


def to_pytorch_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of torch tensors: itself, if it is one of minitvm's.

    Raises
    ------
    ImportError
        When torch isn't installed.
    """
    torch = imported("torch", "to_pytorch_func")
    # The tensor itself, not a capsule: from_dlpack then checks its device and its lazy bits.
    return _in_place(tvm_func, torch.Tensor, lambda tensor: tensor)


def to_paddle_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of Paddle's tensors. Paddle refuses tensors that take part in
    gradients: pass ``x.detach()``.

    Raises
    ------
    ImportError
        When paddle isn't installed.
    """
    paddle = imported("paddle", "to_paddle_func")
    # A capsule, since Paddle's exchange API (3.3) also exports tensors that take part in gradients.
    return convert_func(tvm_func, paddle.Tensor, lambda tensor: tensor.__dlpack__())


def to_cupy_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of CuPy's arrays: itself, if it is one of minitvm's. Functions for
    the CPU refuse arrays in a GPU's memory, which are the only ones that CuPy has.

    Raises
    ------
    ImportError
        When cupy isn't installed.
    """
    cupy = imported("cupy", "to_cupy_func")
    return _in_place(tvm_func, cupy.ndarray, lambda array: array)


def to_mxnet_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of MXNet's arrays, which have no ``__dlpack__``. It waits for
    MXNet's computations in the background.

    Raises
    ------
    ImportError
        When mxnet isn't installed.
    """
    mxnet = imported("mxnet", "to_mxnet_func")
    return convert_func(tvm_func, mxnet.nd.NDArray, lambda array: array.to_dlpack_for_write())


def _in_place(
    function: Callable[..., Any], tensor_type: type, to_dlpack_func: Callable[[Any], Any]
) -> Callable[..., Any]:
    if isinstance(function, PackedFunc | Module):
        return function
    return convert_func(function, tensor_type, to_dlpack_func)


# -- Libraries whose arrays never change ----------------------------------------------------------


def to_jax_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func`, a function of ``build``, as a function of JAX's arrays: an operation of JAX, see
    :func:`minitvm.contrib.jax_op`. Arrays of JAX never change, so it takes the inputs and returns
    the outputs, without a copy::

        add(x, y, z)  ->  z = to_jax_func(add)(x, y)

    Raises
    ------
    ImportError
        When jax isn't installed.
    TypeError
        When `tvm_func` doesn't come from ``build``.
    """
    imported("jax", "to_jax_func")
    return jax_op(tvm_func)


def to_tensorflow_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func`, a function of ``build``, as a function of TensorFlow's tensors and variables.
    Tensors never change, so it takes the inputs and returns the outputs, without a copy::

        add(x, y, z)  ->  z = to_tensorflow_func(add)(x, y)

    It may stand in a ``tf.function``, which calls it back.

    Raises
    ------
    ImportError
        When tensorflow isn't installed.
    TypeError
        When `tvm_func` doesn't come from ``build``.
    """
    tf = imported("tensorflow", "to_tensorflow_func")
    results = results_of(tvm_func)
    exchange = tf.experimental.dlpack
    eager = convert_func(
        tvm_func,
        (tf.Tensor, tf.Variable),
        lambda tensor: exchange.to_dlpack(tf.convert_to_tensor(tensor)),
        lambda array: exchange.from_dlpack(array.__dlpack__()),
    )

    def converted(*args: Any, **kwargs: Any) -> Any:
        values = results.bind(args, kwargs)
        if tf.executing_eagerly():
            return eager(*values)
        kinds = (tf.Tensor, tf.Variable)
        tensors = [i for i, value in enumerate(values) if isinstance(value, kinds)]

        def call(*known: Any) -> Any:
            now = list(values)
            for i, value in zip(tensors, known, strict=True):
                now[i] = value.numpy().item() if results.is_scalar(results.inputs[i]) else value
            return eager(*now)

        dtypes = [tf.as_dtype(str(results.dtypes[position])) for position in results.outputs]
        made = tf.py_function(call, [values[i] for i in tensors], results.returned(dtypes))
        if all(values[i].shape.is_fully_defined() for i in tensors):
            parts = made if len(dtypes) > 1 else [made]
            for part, shape in zip(parts, results.shapes(values), strict=True):
                part.set_shape(shape)
        return made

    made: Callable[..., Any] = tf.autograph.experimental.do_not_convert(converted)
    return made
