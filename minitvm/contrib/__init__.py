"""Bridges to frameworks: functions that take their tensors, operators of torch."""

from minitvm.contrib.dlpack import (
    convert_func,
    to_cupy_func,
    to_jax_func,
    to_mxnet_func,
    to_numpy_func,
    to_paddle_func,
    to_pytorch_func,
    to_tensorflow_func,
)
from minitvm.contrib.torch_op import register_torch_op

__all__ = [
    "convert_func",
    "register_torch_op",
    "to_cupy_func",
    "to_jax_func",
    "to_mxnet_func",
    "to_numpy_func",
    "to_paddle_func",
    "to_pytorch_func",
    "to_tensorflow_func",
]
