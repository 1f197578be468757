"""Built functions as operations of JAX: what ``jax.jit``, ``vmap`` and ``grad`` see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.contrib.imported import imported
from minitvm.contrib.results import Results, results_of
from minitvm.contrib.xla_call import TARGET, XlaCallee, handler
from minitvm.runtime.dtype import DType
from minitvm.runtime.native import Once

Backward = Callable[..., Any]


def jax_op(function: Any, backward: Any = None) -> Callable[..., Any]:
    """A function of JAX's arrays that calls a built function."""
    jax = imported("jax", "jax_op")
    results = results_of(function)
    call = _custom_call(jax, results)
    return jax.jit(call)


def _custom_call(jax: Any, results: Results) -> Callable[..., Any]:
    callee = XlaCallee.of(results)
    _register()

    def call(*args: Any, **kwargs: Any) -> Any:
        values = results.bind(args, kwargs)
        specs = [
            jax.ShapeDtypeStruct(shape, jax.numpy.dtype(str(results.dtype(position))))
            for shape, position in zip(results.shapes(values), results.outputs, strict=True)
        ]
        run = jax.ffi.ffi_call(TARGET, specs, vmap_method="expand_dims")
        made = run(*values, function=results.name, key=np.int64(callee.key))
        return results.returned(made)

    return call


@Once
def _register() -> None:
    jax = imported("jax", "jax_op")
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler()), platform="cpu")
