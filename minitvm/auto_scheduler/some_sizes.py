"""Schedules for calls of some sizes: the versions of a schedule of symbolic extents.

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


@contextmanager
def written_for(sizes: Collection[int]) -> Iterator[None]:
    """Lets a version be written for `sizes` of the symbolic extents; for none, they stay."""
    token = _sizes.set(sizes)
    try:
        yield
    finally:
        _sizes.reset(token)


def is_version() -> bool:
    """Whether a version is written."""
    return _sizes.get() is not None


def may_vary(axis: IterVar) -> bool:
    """Whether other calls may have another extent of an axis: it is symbolic, or as large as those
    that stand for symbolic ones."""
    extent = extent_of(axis)
    return extent is None or extent in (_sizes.get() or ())
