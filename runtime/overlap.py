"""Whether two arrays share an element: the exact answer, for when their memory ranges meet."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from minitvm.runtime.dlpack import TensorView, read_tensor

# Candidate solutions that numpy may try; beyond, arrays count as sharing.
_LIMIT: dict[str, Any] = {"max_work": 100_000}
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Elements:
    """The elements of a tensor as numpy sees them: bytes without meaning."""

    def __init__(self, view: TensorView) -> None:
        size = view.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "shape": view.shape,
            "strides": tuple(step * size for step in view.strides),
            "typestr": f"|V{size}",
            "data": (view.data, True),
        }


def _share_memory(a: int, b: int) -> int:
    """1 if the tensors of two ``DLTensor*`` share a byte, or if that is too hard to tell."""
    try:
        first, second = (np.asarray(_Elements(read_tensor(tensor))) for tensor in (a, b))
        return int(np.shares_memory(first, second, **_LIMIT))
    except Exception:
        return 1


@lru_cache(maxsize=1)
def _callback() -> Any:
    return _CALLBACK(_share_memory)


def share_memory_address() -> int:
    """``int share_memory(DLTensor*, DLTensor*)`` for compiled code that holds the GIL."""
    return ctypes.cast(_callback(), ctypes.c_void_p).value or 0
