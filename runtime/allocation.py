"""Makes new arrays, for compiled code to write, in the framework of a given array.

Frameworks are known by the classes of their arrays, so that none is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minitvm.runtime.dtype import DType
from minitvm.runtime.frameworks import is_a
from minitvm.runtime.ndarray import NDArray, empty, numpy_dtype

LEAST_ALIGNMENT = 16  # the alignment of new arrays in all frameworks, which malloc gives


class Kind(NamedTuple):
    """The properties of a new array, apart from its framework."""

    shape: tuple[int, ...]
    dtype: DType
    alignment: int = 1
    in_columns: bool = False


class Allocated(NamedTuple):
    """A new array: the array that compiled code writes, and the function that turns it into the
    result afterwards."""

    array: Any
    finish: Callable[[Any], Any]


def allocate_like(like: Any, kind: Kind) -> Allocated:
    """An uninitialised array in the framework of `like` and on its device; a numpy array for None,
    and for objects that numpy sees as arrays.

    Raises
    ------
    TypeError
        When the framework has no such dtype.
    MemoryError
        When there isn't enough memory; frameworks raise errors of their own, too.
    """
    if isinstance(like, NDArray):
        return Allocated(_own(kind, like.device), _itself)
    if like is None or _is_of_numpy(like):
        return _of_numpy(kind)
    if is_a(like, "torch", "Tensor"):
        return _of_torch(kind, like)
    return Allocated(_own(kind), _importer(like))


def _itself(array: Any) -> Any:
    return array


def _is_of_numpy(like: Any) -> bool:
    if isinstance(like, np.ndarray | np.generic):
        return True
    return not hasattr(like, "__dlpack__")


def _of_numpy(kind: Kind) -> Allocated:
    dtype = numpy_dtype(kind.dtype)
    if kind.alignment > LEAST_ALIGNMENT or kind.dtype.is_sub_byte:
        return Allocated(_own(kind), NDArray.__array__)
    return Allocated(np.empty(kind.shape, dtype, "F" if kind.in_columns else "C"), _itself)


def _of_torch(kind: Kind, like: Any) -> Allocated:
    torch: Any = sys.modules["torch"]
    dtype = getattr(torch, str(kind.dtype), None)
    if not isinstance(dtype, torch.dtype) or kind.dtype.is_sub_byte:
        raise TypeError(
            f"expected a dtype that torch has, got {kind.dtype}: call the function itself, with an "
            "NDArray (tvm.nd.empty)"
        )
    if kind.alignment > LEAST_ALIGNMENT:
        return Allocated(_own(kind), torch.from_dlpack)
    shape = kind.shape[::-1] if kind.in_columns else kind.shape
    made = torch.empty(shape, dtype=dtype, device=like.device)
    if kind.in_columns:
        made = made.permute(*range(len(shape))[::-1])
    return Allocated(made, _itself)


def _own(kind: Kind, device: Any = None) -> NDArray:
    if not kind.in_columns:
        return empty(kind.shape, kind.dtype, device)
    return empty(kind.shape[::-1], kind.dtype, device).T


def _importer(like: Any) -> Callable[[Any], Any]:
    """The function that makes an array of `like`'s framework from an NDArray, without a copy."""
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(like, jax.Array):
        found: Callable[[Any], Any] = jax.dlpack.from_dlpack
        return found
    space = getattr(like, "__array_namespace__", None)
    of_space = None if space is None else getattr(space(), "from_dlpack", None)
    return _itself if of_space is None else of_space
