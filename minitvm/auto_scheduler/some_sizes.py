"""Whether a version is written: a schedule for calls with some sizes of the symbolic extents.

A version is the schedule of constant extents that stand for the symbolic ones, or of the symbolic
ones themselves. It is right for calls of other sizes as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from minitvm.auto_scheduler.contraction import bytes_of, extent_of
from minitvm.target import Target
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import IterVar

# What stands for a symbolic extent where a number has to do. Where operations are counted, that is
# `USUAL_TRIPS` of :mod:`minitvm.arith.work`.
USUAL = 4096  # in the model: data are larger than caches
USUAL_STEPS = 512  # of a reduction along its lanes
USUAL_COLUMNS = 256  # of rows, and of blocks

_sizes: ContextVar[Collection[int] | None] = ContextVar("_sizes", default=None)
_near: ContextVar[bool] = ContextVar("_near", default=False)


@contextmanager
def written_for(sizes: Collection[int], *, is_near: bool = False) -> Iterator[None]:
    """Lets a version be written for `sizes` of the symbolic extents; for none, they stay.
    `is_near`: tensors of symbolic size are in the L2 cache."""
    tokens = _sizes.set(sizes), _near.set(is_near)
    try:
        yield
    finally:
        _sizes.reset(tokens[0])
        _near.reset(tokens[1])


def is_far(tensor: Tensor, target: Target) -> bool:
    """Whether a tensor comes from beyond the L2 cache, as one of symbolic size does, unless a
    version is written for near ones."""
    size = bytes_of(tensor)
    return not has_near_tensors() if size is None else size > target.cache_bytes(2)


def has_near_tensors() -> bool:
    """Whether a version is written in which tensors of symbolic size are in the L2 cache."""
    return _near.get()


def is_version() -> bool:
    """Whether a version is written."""
    return _sizes.get() is not None


def has_sizes() -> bool:
    """Whether the version that is written has sizes, in place of symbolic extents."""
    return bool(_sizes.get())


def has_short_rows() -> bool:
    """Whether a version is written in which rows of symbolic length are short, or have parts."""
    return is_version() and not has_near_tensors()


def may_vary(axis: IterVar) -> bool:
    """Whether other calls may have another extent of an axis: it is symbolic, or as large as those
    that stand for symbolic ones."""
    return is_for_others(extent_of(axis))


def is_for_others(extent: int | None) -> bool:
    """Whether an extent is symbolic, or one that stands for symbolic ones."""
    return extent is None or extent in (_sizes.get() or ())
