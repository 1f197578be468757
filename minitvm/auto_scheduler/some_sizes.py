"""Whether a version is written: a schedule for calls with some sizes of the symbolic extents.

A version is the schedule of constant extents that stand for the symbolic ones, or of the symbolic
ones themselves. It is right for calls of other sizes as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from minitvm.auto_scheduler.contraction import extent_of
from minitvm.tir.expr import IterVar

_sizes: ContextVar[Collection[int] | None] = ContextVar("_sizes", default=None)
_near: ContextVar[bool] = ContextVar("_near", default=False)


@contextmanager
def written_for(sizes: Collection[int], *, is_near: bool = False) -> Iterator[None]:
    """Lets a version be written for `sizes` of the symbolic extents; for none, they stay.
    `is_near`: the tables whose rows data choose are in the L2 cache."""
    tokens = _sizes.set(sizes), _near.set(is_near)
    try:
        yield
    finally:
        _sizes.reset(tokens[0])
        _near.reset(tokens[1])


def has_near_tables() -> bool:
    """Whether a version is written whose tables are in the L2 cache, if their size is symbolic."""
    return _near.get()


def is_version() -> bool:
    """Whether a version is written."""
    return _sizes.get() is not None


def may_vary(axis: IterVar) -> bool:
    """Whether other calls may have another extent of an axis: it is symbolic, or as large as those
    that stand for symbolic ones."""
    extent = extent_of(axis)
    return extent is None or extent in (_sizes.get() or ())
