"""The arrays of a call: their library, shape and dtype.

A library is known by the names of its classes, so that none is imported.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from minitvm.runtime.dtype import DType
from minitvm.runtime.frameworks import is_a, is_immutable, why_unreadable
from minitvm.runtime.ndarray import NDArray, empty
from minitvm.runtime.ndarray import array as make_array
from minitvm.runtime.record import record
from minitvm.runtime.traced import is_without_data

_CPU = (1, 0)  # DLPack's kDLCPU


@final
@record()
class Described:
    """An array as far as a program is made for it. A signature is made of these."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(map(str, self.shape))}]"


_libraries: dict[type, str | None] = {}


def library_of(value: object) -> str | None:
    """The library of an array: its package; None for a value that is no array."""
    kind = type(value)
    if kind not in _libraries:
        _libraries[kind] = _library_of(kind)
    return _libraries[kind]


def _library_of(kind: type) -> str | None:
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
    shape = tuple(map(_extent, array.shape))
    return Described(shape, _dtype(array.dtype))


def _extent(extent: Any) -> int:
    """An extent as a number: of a size that torch doesn't fix, the one that it has now."""
    return int(extent if isinstance(extent, int) or not is_symbol(extent) else extent.node.hint)


def fixed(value: Any) -> Any:
    """A value that the program is made for: a number that torch doesn't fix is fixed here, which
    torch notes as a condition of the program that it reads."""
    if not is_symbol(value):
        return value
    return int(value) if type(value).__name__ == "SymInt" else float(value)


def is_symbol(value: Any) -> bool:
    """Whether a value is a number that torch, which reads a program, doesn't fix."""
    return any(is_a(value, "torch", name) for name in ("SymInt", "SymFloat"))


def _dtype(dtype: Any) -> DType:
    try:
        found = DType.of(dtype)
    except (TypeError, ValueError):
        found = None
    is_number = found is not None and (found.is_float or found.is_integral)
    if found is None or not is_number or found.bits < 8 or found.lanes > 1:
        raise TypeError(f"expected an array of real numbers, such as float32, got {dtype}")
    return found


def why_refused(array: Any) -> str | None:
    """What is expected of an array in place of this one; None where it may be computed with.

    What the call of a built function refuses is left to that.
    """
    if isinstance(array, np.ma.MaskedArray):
        return "expected an array without a mask, got a masked one: pass x.filled(value)"
    if is_without_data((array,)):  # asked by its own attribute: torch would note the other question
        place = array.device
        return None if place.type in ("cpu", "meta") else _elsewhere(place)
    if getattr(array, "is_nested", False):  # of torch: it has no one shape
        return why_unreadable(array)
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return None
    try:
        place = tuple(map(int, device()))
    except Exception:
        return None  # a tensor without memory, which the call refuses
    if place[0] == _CPU[0]:
        return None
    return _elsewhere(getattr(array, "device", place))


def _elsewhere(place: Any) -> str:
    return f"expected an array in the CPU's memory, got one on {place}: copy it to the CPU"


def is_tracer(value: Any) -> bool:
    """Whether a value stands for one in a program that JAX traces."""
    kinds = type(value).__mro__
    return any(each.__name__ == "Tracer" and "jax" in each.__module__ for each in kinds)


def sample(array: Described) -> NDArray:
    """An array to measure with: of random floats, or of integers that are zero."""
    random = np.random.default_rng(0).random(array.shape, np.float32)
    return make_array(random if array.dtype.is_float else random * 0, dtype=array.dtype)


def writable(array: Any) -> Any:
    """An array of the same shape that can be written: itself, if its library's arrays change."""
    if not is_immutable(type(array)):
        return array
    found = described(array)
    return empty(found.shape, found.dtype)
