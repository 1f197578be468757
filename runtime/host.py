"""The machine that this process runs on, as LLVM knows it."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import final

import llvmlite.binding as llvm

from minitvm.runtime.record import record

CACHE_LINE = 64  # bytes, on every CPU for which code is generated
LINES_AT_ONCE = 2  # neighbouring cache lines, which CPUs fetch together
LINES_COMBINED = 8  # lines that a CPU can fill at the same time with stores past the caches


@final
@record()
class Host:
    """The machine that this process runs on.

    `refusal` is the reason why the system does not let this process use the CPU's AMX; the features
    then lack it.
    """

    triple: str
    cpu: str
    features: frozenset[str]
    known_features: frozenset[str]
    feature_string: str
    refusal: str = ""


@lru_cache(maxsize=1)
def host() -> Host:
    """LLVM's description of this machine: the list of features counts, not the CPU's name. LLVM
    leaves out features whose registers the system doesn't switch. But it lists tiles as soon as the
    kernel knows them, so the kernel must be asked for them."""
    features = llvm.get_host_cpu_features()
    refusal = _ask_for_tiles() if features.get("amx-tile") else ""
    if refusal:
        features.update({name: False for name in features if name.startswith("amx-")})
    return Host(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=frozenset(name for name, present in features.items() if present),
        known_features=frozenset(features),
        feature_string=str(features.flatten()),
        refusal=refusal,
    )


# asm/unistd_64.h, and asm/prctl.h with "Using XSTATE features in user space applications" of the
# kernel's documentation (arch/x86/xstate).
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def _ask_for_tiles() -> str:
    """Asks the kernel to let this process use tile registers; returns why it refuses, or nothing.

    A process has to ask once before their first use. Then all its threads may use them, also
    existing ones, and so may children that it forks.
    """
    if sys.platform != "linux":
        return f"how to ask {sys.platform} for its tile registers is not known"
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    if libc.syscall(*map(ctypes.c_long, numbers)) == 0:
        return ""
    return f"the kernel refuses its tile registers: {os.strerror(ctypes.get_errno())}"


TYPICAL_CACHES = (32 << 10, 512 << 10, 8 << 20)
"""The bytes assumed for unknown data caches, from level 1 on."""
TYPICAL_WAYS = 8
"""The ways of such an L1 cache."""
TYPICAL_BYTES_PER_CYCLE = (32, 16, 6)
"""The bytes that a core reads in a cycle from L2, from L3 and from memory."""
_MOST_OF_L3 = 64 << 20
"""The bytes of an L3 cache that one core is expected to use: the system tells the size of the whole
socket's, which all its cores share, and all other guests of the machine as well. On a guest that
was told 480 MB, copies of more than 40 MB, 80 MB in all, ran at the memory's speed."""
_SYSTEM = Path("/sys/devices/system/cpu/cpu0/cache")


@lru_cache(maxsize=1)
def cache_sizes() -> dict[int, int]:
    """The bytes of this machine's data caches that a core uses, by level; typical sizes where the
    system doesn't tell.

    >>> sorted(cache_sizes())
    [1, 2, 3]
    """
    found = {level: size for level, (size, _) in _caches_below(_SYSTEM).items()}
    sizes = dict(enumerate(TYPICAL_CACHES, 1)) | found
    return sizes | {3: min(sizes[3], _MOST_OF_L3)}


@lru_cache(maxsize=1)
def l1_ways() -> int:
    """The ways of this machine's L1 data cache; a typical number where the system doesn't tell.

    >>> l1_ways() > 0
    True
    """
    _, ways = _caches_below(_SYSTEM).get(1, (0, TYPICAL_WAYS))
    return ways


def _caches_below(folder: Path) -> dict[int, tuple[int, int]]:
    """The sizes and ways that Linux tells, in a folder of folders ``index0``, ``index1``..."""
    found: dict[int, tuple[int, int]] = {}
    for cache in sorted(folder.glob("index*")):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in _FILES)
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdecimal():
            found[int(level)] = int(size[:-1]) << 10, _ways_of(cache)
    return found


def _ways_of(cache: Path) -> int:
    try:
        return int((cache / "ways_of_associativity").read_text()) or TYPICAL_WAYS
    except (OSError, ValueError):  # not every system tells
        return TYPICAL_WAYS


_FILES = ("level", "type", "size")
