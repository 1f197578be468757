"""How much memory this process has mapped, where Linux says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_STATM = Path("/proc/self/statm")
needs_statm = pytest.mark.skipif(not _STATM.exists(), reason="reads Linux's /proc")


def mapped() -> int:
    """The bytes of this process's address space that are in use."""
    return int(_STATM.read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def given_back(most: int) -> Iterator[None]:
    """What is allocated inside is given back, but for `most` bytes."""
    before = mapped() if _STATM.exists() else 0
    yield
    if _STATM.exists():
        assert mapped() - before < most
