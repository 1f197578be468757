"""The machine that this process runs on, as LLVM knows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import llvmlite.binding as llvm


@final
@dataclass(frozen=True, slots=True)
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
