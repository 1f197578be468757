"""What it costs to get memory and to give it back, when there is some that was used before."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.measure import OURS, Row, Settings, Timer, interleaved, statement
from minitvm.runtime.device_api.allocator import cpu_allocator
from minitvm.runtime.native import NativeCode
from minitvm.runtime.native_text import native_text

_SIZES = {"64 B": 64, "4 KB": 4 << 10, "256 KB": 256 << 10, "16 MB": 16 << 20, "64 MB": 64 << 20}
_NATIVE = "allocated and freed by compiled code; the target is the fastest of the others"
_TOUCHED = "as before, and a byte of each page written"
_PYTHON = "allocated and freed by Python; the target is the fastest of the others"
# of torch's libc10.so: c10::alloc_cpu(size_t), c10::free_cpu(void*)
_TORCH = ("_ZN3c109alloc_cpuEm", "_ZN3c108free_cpuEPv")

_PAIRS = """
# Allocates and frees `number` times; in between a byte every `step` bytes is written.
@export
def pairs(allocate: ptr, free: ptr, size: i64, number: i64, step: i64) -> i64:
    for _ in range(number):
        memory = call(ptr[i8], allocate, size)
        offset = 0
        while offset < size:
            store_monotonic(1, memory[offset])
            offset += step
        call(void, free, memory)
    return 0
"""


def rows(settings: Settings) -> Iterator[Row]:
    """Pairs of an allocation and a free, of compiled code and of Python."""
    # Many short measurements: those in which another process had the core stay in the minority.
    settings = dataclasses.replace(settings, least=settings.least / 10, repeat=5 * settings.repeat)
    functions, missing = _functions()
    for touched in (False, True):
        for name, size in _SIZES.items():
            step = 4096 if touched else size
            yield _row(
                f"{name}{', touched' if touched else ''}",
                _TOUCHED if touched else _NATIVE,
                {who: _pairs(*found, size, step) for who, found in functions.items()},
                missing,
                settings,
            )
    for name, size in _SIZES.items():
        timers = {
            OURS: statement("f(n)", f=cpu_allocator().allocate, n=size),
            "np.empty": statement("f(n, t)", f=np.empty, n=size, t=np.dtype("uint8")),
        }
        if (torch := peers.peer("torch")) is not None:
            timers["torch.empty"] = statement("f(n, dtype=t)", f=torch.empty, n=size, t=torch.uint8)
        yield _row(f"{name} in Python", _PYTHON, timers, peers.missing(("torch",)), settings)


def _row(
    name: str, what: str, timers: dict[str, Timer], missing: dict[str, str], settings: Settings
) -> Row:
    measured = interleaved(timers, settings)
    target = min(each.seconds for who, each in measured.items() if who != OURS)
    return Row(name, what, measured, missing, target)


def _functions() -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Who allocates: the addresses of the two functions; and who is missing."""
    library = ctypes.CDLL(None)
    found = {
        OURS: cpu_allocator().workspace_functions(),
        "malloc": (_address(library.malloc), _address(library.free)),
    }
    missing = peers.missing(("torch",))
    if (torch := peers.peer("torch")) is not None:
        paths = sorted((Path(torch.__file__).parent / "lib").glob("libc10.*"))
        core = ctypes.CDLL(str(paths[0])) if paths else None
        if core is not None and all(hasattr(core, name) for name in _TORCH):
            allocate, free = (_address(getattr(core, name)) for name in _TORCH)
            found["torch"] = (allocate, free)
        else:
            missing["torch"] = f"has no {_TORCH[0]}"
    return found, missing


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _pairs(allocate: int, free: int, size: int, step: int) -> Timer:
    def timer(number: int) -> float:
        start = time.perf_counter()
        _loop()(allocate, free, size, number, step)
        return time.perf_counter() - start

    return timer


@cache
def _loop() -> Callable[..., int]:
    code = NativeCode(native_text(_PAIRS))
    words = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    loop: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int64, *words)(code.function("pairs"))
    return loop
