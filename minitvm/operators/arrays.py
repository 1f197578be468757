"""The arrays of an operator's call: their library, shape and dtype.

A library is known by the names of its classes, so that none is imported.
"""

from __future__ import annotations

from typing import Any, final
from zlib import crc32

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
    """The properties of an array on which a program depends. Signatures consist of these."""

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
        When the language has no such dtype.
    """
    shape = tuple(map(_extent, array.shape))
    return Described(shape, _dtype(array.dtype))


def _extent(extent: Any) -> int:
    """An extent as a number. An extent that torch doesn't fix has the value of the current call;
    one that JAX doesn't fix has some value."""
    if isinstance(extent, int) or not is_symbol(extent):
        return int(extent)
    if is_a(extent, *_JAX_SYMBOL):  # any numbers that show which extents are equal
        names = extent._get_vars()
        return int(extent._evaluate({name: 64 + crc32(name.encode()) % 4096 for name in names}))
    return int(extent.node.hint)


def fixed(value: Any) -> Any:
    """A value that the program is made for. A number that torch doesn't fix is fixed here, and
    torch notes it as a condition of the program that it traces."""
    if not is_symbol(value):
        return value
    return int(value) if type(value).__name__ == "SymInt" else float(value)


_JAX_SYMBOL = ("jax._src.export.shape_poly", "_DimExpr")


def is_symbol(value: Any) -> bool:
    """Whether a value is a symbolic number of a program that torch traces, or JAX exports."""
    return is_a(value, *_JAX_SYMBOL) or any(
        is_a(value, "torch", name) for name in ("SymInt", "SymFloat")
    )


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
    """The reason for which an array is refused, as the array that was expected; None for an array
    that is accepted.

    Arrays that the call of a built function refuses are left to that call.
    """
    if isinstance(array, np.ma.MaskedArray):
        return "expected an array without a mask, got a masked one: pass x.filled(value)"
    if is_without_data((array,)):  # first: torch would note the next question
        place = array.device
        return None if place.type in ("cpu", "meta") else _elsewhere(place)
    if getattr(array, "is_nested", False):  # a nested tensor of torch has no single shape
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


def sample(array: Described) -> NDArray:
    """An array for measuring: of random floats, or of integer zeros."""
    random = np.random.default_rng(0).random(array.shape, np.float32)
    return make_array(random if array.dtype.is_float else random * 0, dtype=array.dtype)


def writable(array: Any) -> Any:
    """An array of the same shape that can be written: `array` itself, if its library has mutable
    arrays."""
    if not is_immutable(type(array)):
        return array
    found = described(array)
    return empty(found.shape, found.dtype)
