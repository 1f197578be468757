"""The arrays that a program is called with: numbers of each kind, in memory of each layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.random import Generator

from tests.whole_programs.bounded import Array, numpy_dtype
from tests.whole_programs.description import FLOATS, Input

AROUND = 67  # elements around an array that nobody may write
LAYOUTS = ("compact", "strided", "rows apart", "reversed", "transposed", "offset")


@dataclass
class Placed:
    """An array, and the memory that it is a part of."""

    base: Array
    layout: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.view = _view(self.base, self.layout, self.shape)

    def holding(self, values: Array) -> bytes:
        """All of the memory, as it is with these values in the array."""
        other = Placed(self.base.copy(), self.layout, self.shape)
        other.view[...] = values
        return other.base.tobytes()


def _view(base: Array, layout: str, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    match layout:
        case "strided":
            return base[..., 1 : 1 + 2 * shape[-1] : 2]
        case "rows apart":
            return base[..., 1 : 1 + shape[-1]]
        case "reversed":
            return base[1 : 1 + shape[0]][::-1]
        case "transposed":
            return np.transpose(base[1:-1].reshape(shape[::-1]))
    begin = AROUND if layout == "offset" else 64
    return base[begin : begin + count].reshape(shape)


def _base_shape(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    match layout:
        case "strided":
            return (*shape[:-1], 2 * shape[-1] + 3)
        case "rows apart":
            return (*shape[:-1], shape[-1] + 3)
        case "reversed":
            return (shape[0] + 2, *shape[1:])
        case "transposed":
            return (int(np.prod(shape)) + 2,)
    return (int(np.prod(shape)) + 2 * AROUND,)


def rubbish(dtype: str) -> object:
    """What a function that reads or leaves it is caught by."""
    return np.nan if dtype in FLOATS else True if dtype == "bool" else 77


def place(shape: tuple[int, ...], dtype: str, layout: str, values: Array | None = None) -> Placed:
    """An array of some values, or of rubbish."""
    layout = layout if shape else "compact"
    base = np.full(_base_shape(layout, shape), rubbish(dtype), numpy_dtype(dtype))
    placed = Placed(base, layout, shape)
    if values is not None:
        placed.view[...] = values
    return placed


def numbers(stage: Input, shape: tuple[int, ...], bound: int, random: Random) -> Array:
    """Elements of an input."""
    generator = np.random.default_rng(random.getrandbits(64))
    dtype = stage.dtype
    return _NUMBERS[stage.numbers](generator, shape, dtype, bound).astype(numpy_dtype(dtype))


def _whole(generator: Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    if dtype == "bool":
        return generator.integers(0, 2, shape)
    return generator.integers(0 if dtype.startswith("u") else -4, 6, shape)


def _real(generator: Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    return np.asarray(generator.standard_normal(shape))


def _any(generator: Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    if dtype == "bool":
        return generator.integers(0, 2, shape)
    limits = np.iinfo(dtype)
    drawn = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    ends = generator.choice(np.array([limits.min, limits.max, 0], dtype), shape)
    return np.where(generator.random(shape) < 0.15, ends, drawn)


def _special(generator: Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    odd = generator.choice(np.array([np.inf, -np.inf, np.nan, -0.0, 0.0]), shape)
    return np.where(generator.random(shape) < 0.1, odd, generator.standard_normal(shape))


def _positions(generator: Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    return generator.integers(0, bound, shape)


def _offsets(generator: Generator, shape: tuple[int, ...], dtype: str, bound: int) -> Array:
    return np.sort(generator.integers(0, bound + 1, shape))


_NUMBERS: dict[str, Callable[..., Array]] = {
    "whole": _whole,
    "real": _real,
    "any": _any,
    "special": _special,
    "positions": _positions,
    "offsets": _offsets,
}
