"""How many threads numpy's OpenBLAS uses, which numpy itself can't be told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_MAPPED = Path("/proc/self/maps")
_SET = "scipy_openblas_set_num_threads64_"  # as numpy's wheels have it


def on_threads(threads: int, timer: Callable[[int], float]) -> Callable[[int], float]:
    """`timer` where OpenBLAS uses that many threads; only where :func:`why_not` is empty."""

    def run(number: int) -> float:
        set_threads = getattr(_library(), _SET)
        set_threads(threads)
        try:
            return timer(number)
        finally:
            set_threads(1)

    return run


def why_not() -> str:
    """Why the number of threads can't be set, or nothing."""
    if _library() is not None:
        return ""
    return f"its threads can't be set: no library with {_SET} is loaded"


@cache
def _library() -> Any:
    """The OpenBLAS that this process has loaded, of which only Linux tells the name."""
    if not _MAPPED.exists():
        return None
    lines = _MAPPED.read_text(encoding="utf-8").splitlines()
    for path in {line.split()[-1] for line in lines if "openblas" in line}:
        library = ctypes.CDLL(path)
        if hasattr(library, _SET):
            return library
    return None
