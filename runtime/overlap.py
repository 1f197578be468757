"""Decides exactly whether two arrays share an element, for arrays whose memory ranges meet."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.runtime.dlpack import TensorView, read_tensor
from minitvm.runtime.glue import glue

# The candidate solutions that numpy may try; after these, arrays count as sharing memory.
_LIMIT: dict[str, Any] = {"max_work": 100_000}


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


def _share_memory(a: int, b: int) -> bool:
    """Whether the tensors of two ``DLTensor*`` share a byte; True also if this is too hard to
    decide."""
    first, second = (np.asarray(_Elements(read_tensor(tensor))) for tensor in (a, b))
    try:
        return np.shares_memory(first, second, **_LIMIT)
    except np.exceptions.TooHardError:
        return True


def share_memory_address() -> int:
    """``int share_memory(DLTensor*, DLTensor*)`` for compiled code that holds the GIL: 1 if the
    tensors share a byte, or if this is too hard to decide; 0 if not; -1 with an exception
    pending."""
    glue().set_objects(share_elements=_share_memory)
    return glue().function("share_memory")
