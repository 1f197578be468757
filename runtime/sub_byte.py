"""Reads and writes packed elements of fewer bits than a byte.

DLPack packs them in little bit order. Element number `i` of `bits` bits is
``memory >> (i * bits) & mask``, with the memory as one little-endian number; numpy has no such
arrays. Here they become arrays of codes, a byte for each element, and come back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.runtime.dlpack import TensorView

Codes = np.ndarray[Any, np.dtype[np.uint8]]


def read_codes(view: TensorView, memory: Codes) -> Codes:
    """The bits of each element as an array, with a last axis for the lanes.

    Parameters
    ----------
    view
        The array.
    memory
        The bytes of its span.

    >>> from minitvm.runtime.dtype import DType
    >>> memory = np.array([0x21, 0x43], "uint8")
    >>> pairs = TensorView(memory.ctypes.data, (2, 2), (2, 1), DType.of("uint4"))
    >>> read_codes(pairs, memory)
    array([[1, 2],
           [3, 4]], dtype=uint8)
    """
    bits = np.unpackbits(memory, bitorder="little")[_places(view)]
    return np.packbits(bits, axis=-1, bitorder="little")[..., 0]


def write_codes(view: TensorView, memory: Codes, codes: Codes) -> None:
    """The inverse of :func:`read_codes`: writes the elements' bits, and leaves all other bits of
    their bytes."""
    bits = np.unpackbits(memory, bitorder="little")
    width = view.dtype.bits
    bits[_places(view)] = np.unpackbits(codes[..., None], axis=-1, count=width, bitorder="little")
    memory[...] = np.packbits(bits, bitorder="little")


def _places(view: TensorView) -> np.ndarray[Any, Any]:
    """The position of each bit of each lane of each element, from the span's first bit."""
    dtype, step = view.dtype, view.element_bits
    axes = [
        (extent, stride * step) for extent, stride in zip(view.shape, view.strides, strict=True)
    ]
    if dtype.lanes > 1:
        axes.append((dtype.lanes, dtype.bits))
    axes.append((dtype.bits, 1))
    places = np.array(8 * (view.data - view.span().start) + view.bit)
    for extent, stride in axes:
        places = places[..., None] + np.arange(extent) * stride
    return places
