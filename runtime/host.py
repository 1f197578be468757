"""The machine that this process runs on, as LLVM knows it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import final

import llvmlite.binding as llvm

from minitvm.runtime.record import record


@final
@record()
class Host:
    """The machine that this process runs on."""

    triple: str
    cpu: str
    features: frozenset[str]
    known_features: frozenset[str]
    feature_string: str


@lru_cache(maxsize=1)
def host() -> Host:
    """What LLVM says of this machine: the list of features counts, not the CPU's name."""
    features = llvm.get_host_cpu_features()
    return Host(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=frozenset(name for name, present in features.items() if present),
        known_features=frozenset(features),
        feature_string=str(features.flatten()),
    )


_TYPICAL = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
_SYSTEM = Path("/sys/devices/system/cpu/cpu0/cache")


@lru_cache(maxsize=1)
def cache_sizes() -> dict[int, int]:
    """The bytes of this machine's data caches by level, typical ones where it doesn't tell.

    >>> sorted(cache_sizes())
    [1, 2, 3]
    """
    return _TYPICAL | _sizes_below(_SYSTEM)


def _sizes_below(folder: Path) -> dict[int, int]:
    """The sizes that Linux tells, in a folder of folders ``index0``, ``index1``..."""
    found: dict[int, int] = {}
    for cache in sorted(folder.glob("index*")):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in _FILES)
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdecimal():
            found[int(level)] = int(size[:-1]) << 10
    return found


_FILES = ("level", "type", "size")
