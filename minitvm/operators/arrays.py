"""The arrays of a call: their library, shape and dtype, and new arrays of the same library.

A library is known by the names of its classes, so that none is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, final

import numpy as np

from minitvm.runtime.dtype import DType
from minitvm.runtime.frameworks import is_immutable
from minitvm.runtime.ndarray import NDArray, empty
from minitvm.runtime.record import record

_CPU = (1, 0)  # DLPack's kDLCPU


@final
@record()
class Described:
    """An array as far as a program is made for it. A signature is made of these."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(map(str, self.shape))}]"


@cache
def library_of(kind: type) -> str | None:
    """The library of the arrays of a type: its package; None for a type of no arrays."""
    if issubclass(kind, NDArray):
        return "minitvm"
    if issubclass(kind, np.ndarray):
        return "numpy"
    packages = [str(each.__module__).partition(".")[0] for each in kind.__mro__]
    for package in ("torch", "jax", "jaxlib"):
        if package in packages and hasattr(kind, "shape"):
            return package.removesuffix("lib")
    return packages[0] if hasattr(kind, "__dlpack__") else None


def described(array: Any) -> Described:
    """The shape and dtype of an array, or of an object that has these.

    Raises
    ------
    TypeError
        When there are no numbers of such a dtype here.
    """
    shape = tuple(map(int, array.shape))
    return Described(shape, _dtype(array.dtype))


def _dtype(dtype: Any) -> DType:
    found = DType.of(dtype)
    if not (found.is_float or found.is_integral) or found.bits < 8 or found.lanes > 1:
        raise TypeError(f"expected an array of a real number, such as float32, got {dtype}")
    return found


def why_refused(array: Any) -> str | None:
    """What is expected of an array in place of this one; None where it may be computed with.

    What the call of a built function refuses is left to that.
    """
    if isinstance(array, np.ma.MaskedArray):
        return "expected an array without a mask, got a masked one: pass x.filled(value)"
    if _is_tracer(type(array)):
        return (
            "expected an array with values, got one that JAX is tracing: call the operator outside "
            "of jax.jit, jax.grad and jax.vmap"
        )
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return None
    try:
        place = tuple(map(int, device()))
    except Exception:
        return None  # a tensor without memory, which the call refuses
    if place[0] == _CPU[0]:
        return None
    named = getattr(array, "device", place)
    return f"expected an array in the CPU's memory, got one on {named}: copy it to the CPU"


def _is_tracer(kind: type) -> bool:
    return any(each.__name__ == "Tracer" and "jax" in each.__module__ for each in kind.__mro__)


def is_fixed(kind: type) -> bool:
    """Whether arrays of a type never change."""
    return is_immutable(kind)


@final
@record()
class Maker:
    """Makes outputs in a library's arrays: `empty`, which is written, and then `result` of it."""

    empty: Callable[[tuple[int, ...], DType], Any]
    result: Callable[[Any], Any]


@cache
def maker_for(kind: type) -> Maker:
    """The maker of outputs for inputs of a type."""
    library = library_of(kind)
    if library == "numpy":
        return Maker(_empty_numpy, _itself)
    if library == "torch":
        return Maker(_empty_torch, _itself)
    if library == "jax":
        return Maker(empty, sys.modules["jax"].dlpack.from_dlpack)
    return Maker(empty, _itself if library == "minitvm" else _import_of(kind))


def _itself(array: Any) -> Any:
    return array


def _empty_numpy(shape: tuple[int, ...], dtype: DType) -> Any:
    try:
        return np.empty(shape, str(dtype))
    except TypeError:  # a dtype that another package adds to numpy
        return empty(shape, dtype).numpy()


def _empty_torch(shape: tuple[int, ...], dtype: DType) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, str(dtype)), device="cpu")


def _import_of(kind: type) -> Callable[[NDArray], Any]:
    """The `from_dlpack` of a library, as the array API standard has it; arrays of other libraries
    are NDArrays."""
    package = importlib.import_module(str(kind.__module__).partition(".")[0])
    return getattr(package, "from_dlpack", _itself)
