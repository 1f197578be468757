"""Bridges to frameworks: functions that take their tensors, operators of torch."""

import typing as _typing

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
from minitvm.runtime.faces import on_demand as _on_demand

if _typing.TYPE_CHECKING:
    from minitvm.contrib import cblas as cblas
    from minitvm.contrib import clang as clang
    from minitvm.contrib import utils as utils

_MODULES = ("cblas", "clang", "utils")
__getattr__ = _on_demand(__name__, {name: f"{__name__}.{name}" for name in _MODULES})
_hand_on(__name__, *_MODULES)
