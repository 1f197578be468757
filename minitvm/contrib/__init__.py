"""Bridges to frameworks: functions that take their tensors, operators of torch."""

from minitvm.contrib.dlpack import convert_func as convert_func
from minitvm.contrib.dlpack import to_cupy_func as to_cupy_func
from minitvm.contrib.dlpack import to_jax_func as to_jax_func
from minitvm.contrib.dlpack import to_mxnet_func as to_mxnet_func
from minitvm.contrib.dlpack import to_numpy_func as to_numpy_func
from minitvm.contrib.dlpack import to_paddle_func as to_paddle_func
from minitvm.contrib.dlpack import to_pytorch_func as to_pytorch_func
from minitvm.contrib.dlpack import to_tensorflow_func as to_tensorflow_func
from minitvm.contrib.jax_op import jax_op as jax_op
from minitvm.contrib.torch_op import register_torch_op as register_torch_op
from minitvm.runtime.faces import hand_on as _hand_on

_hand_on(__name__)
