"""Wrappers that let a compiled function take another library's tensors (``tvm.contrib.dlpack``).

minitvm's own functions take any DLPack array as it is, so that :func:`to_pytorch_func` and
:func:`to_numpy_func` give them back unchanged. The wrappers serve programs written for classic TVM,
Python functions of NDArrays, and libraries whose tensors have no ``__dlpack__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.runtime.frameworks import is_read_only
from minitvm.runtime.module import Module
from minitvm.runtime.ndarray import from_dlpack
from minitvm.runtime.packed_func import PackedFunc


def convert_func(
    tvm_func: Callable[..., Any], tensor_type: type, to_dlpack_func: Callable[[Any], Any]
) -> Callable[..., Any]:
    """`tvm_func` as a function that takes tensors of `tensor_type`, in place.

    Parameters
    ----------
    tvm_func
        The function to call; its other arguments go to it as they are.
    tensor_type
        The class of the tensors to convert.
    to_dlpack_func
        Makes of such a tensor a DLPack capsule, or an array with ``__dlpack__``.

    >>> shape = convert_func(lambda a: a.shape, np.ndarray, lambda x: x.__dlpack__())
    >>> shape(np.zeros((2, 3)))
    (2, 3)
    """

    def converted(*args: Any, **kwargs: Any) -> Any:
        def convert(value: Any) -> Any:
            if not isinstance(value, tensor_type):
                return value
            return from_dlpack(to_dlpack_func(value), read_only=is_read_only(value))

        return tvm_func(*map(convert, args), **{name: convert(kwargs[name]) for name in kwargs})

    return converted


def to_pytorch_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of torch tensors: itself, if it is one of minitvm's.

    Raises
    ------
    ImportError
        When torch isn't installed.
    """
    import torch

    if _takes_any_array(tvm_func):
        return tvm_func
    # The tensor itself, not a capsule: from_dlpack then checks its device and its lazy bits.
    return convert_func(tvm_func, torch.Tensor, lambda tensor: tensor)


def to_numpy_func(tvm_func: Callable[..., Any]) -> Callable[..., Any]:
    """`tvm_func` as a function of numpy arrays, read-only ones included."""
    if _takes_any_array(tvm_func):
        return tvm_func
    return convert_func(tvm_func, np.ndarray, lambda tensor: tensor)


def _takes_any_array(function: Callable[..., Any]) -> bool:
    return isinstance(function, PackedFunc | Module)
