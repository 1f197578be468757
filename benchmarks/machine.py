"""The machine and the versions, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

import minitvm
from benchmarks import THREAD_VARIABLES, peers
from minitvm.target import Target


def describe() -> dict[str, str]:
    """What the figures depend on, by name."""
    return {
        "CPU": f"{_cpu()} (LLVM: {Target('llvm').mcpu})",
        "cores available": str(_cores()),
        "load before": _load(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "minitvm": minitvm.__version__,
        "llvmlite": f"{llvmlite.__version__}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}",
        **peers.versions(),
        "threads asked for": _threads_asked_for(),
        "threads reported": ", ".join(f"{k} {v}" for k, v in peers.threads().items()) or "by none",
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load() -> str:
    if not hasattr(os, "getloadavg"):
        return "unknown"
    return f"{os.getloadavg()[0]:.1f} (mean of one minute)"


def _threads_asked_for() -> str:
    counts = {os.environ[name] for name in THREAD_VARIABLES}
    if len(counts) == 1:
        return f"{counts.pop()} (by {', '.join(THREAD_VARIABLES)})"
    return ", ".join(f"{name}={os.environ[name]}" for name in THREAD_VARIABLES)
