"""The rungs of ``examples/schedules/09_gemm_ladder.py``: each against the one below, and the last
against the vendor's library, on one thread and on two."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.measure import (
    OURS,
    Measured,
    Row,
    Settings,
    Timer,
    calls,
    interleaved,
    kernel,
    on_threads,
)
from minitvm.runtime.module import Module

_EXAMPLE = Path(__file__).parents[1] / "examples" / "schedules" / "09_gemm_ladder.py"
_SHARE = 0.75  # of the library's speed that the last rung is to reach
_BUILD = 0.150  # seconds that building it may take
_SIZES = (1024, 1000, 768, 200)


def rows(settings: Settings) -> Iterator[Row]:
    """Each rung, building the last, and the last at several sizes."""
    ladder = _load()
    quick = not settings.least
    sizes = (48, 50) if quick else _SIZES
    yield from _rungs(ladder, sizes[0], settings)
    yield Row(
        f"build {ladder.LADDER[-1].__name__}, warm",
        f"the last rung's schedule made and built, {sizes[0]} x {sizes[0]}",
        interleaved({OURS: calls(ladder.build, ladder.LADDER[-1], sizes[0])}, settings),
        target=_BUILD,
    )
    for n in sizes:
        for threads in (1, 2):
            yield _against_library(ladder, n, threads, settings)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gemm_ladder", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _arrays(n: int) -> tuple[np.ndarray[Any, Any], ...]:
    a, b = np.random.default_rng(0).random((2, n, n), dtype=np.float32)
    return a, b, np.empty((n, n), np.float32)


def _checked(f: Module, n: int) -> Module:
    """`f` if it multiplies matrices."""
    a, b, c = _arrays(n)
    f(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=n * float(np.finfo(np.float32).eps))
    return f


def _rungs(ladder: ModuleType, n: int, settings: Settings) -> Iterator[Row]:
    """Each rung in turn with all others; the first takes seconds, so the rounds are few."""
    arrays = _arrays(n)
    contenders: dict[str, Timer] = {}
    for rung in ladder.LADDER:
        threads = 1 if rung in ladder.SERIAL else 2
        f = _checked(ladder.build(rung, n), n)
        contenders[rung.__name__] = on_threads(threads, kernel(f, *arrays))
    few = dataclasses.replace(settings, repeat=min(settings.repeat, 5))
    measured = interleaved(contenders, few)
    below: dict[str, Measured] = {}
    for rung in ladder.LADDER:
        name = rung.__name__
        rate = 2 * n**3 / measured[name].seconds / 1e9
        yield Row(
            f"{name}: {rate:.1f} GFLOP/s",
            f"float32, {n} x {n}; the peer is the rung below; the last rung has two threads",
            {OURS: measured[name], **below},
            threads=1 if rung in ladder.SERIAL else 2,
        )
        below = {"the rung below": measured[name]}


def _against_library(ladder: ModuleType, n: int, threads: int, settings: Settings) -> Row:
    arrays = _arrays(n)
    f = _checked(ladder.build(ladder.LADDER[-1], n), n)
    contenders = {OURS: on_threads(threads, kernel(f, *arrays))}
    if (torch := peers.peer("torch")) is not None:
        contenders["torch.mm"] = _torch(torch, threads, arrays)
    if threads == 1 and peers.peer("numpy") is not None:
        a, b, c = arrays
        contenders["numpy out="] = calls(np.matmul, a, b, c)
    measured = interleaved(contenders, settings)
    torch_time = measured.get("torch.mm")
    return Row(
        f"last rung, {n} x {n}, threads: {threads}",
        f"float32; the target is {_SHARE:.0%} of torch.mm's speed",
        measured,
        peers.missing(["torch"]),
        None if torch_time is None else torch_time.seconds / _SHARE,
        threads,
    )


def _torch(torch: Any, threads: int, arrays: tuple[np.ndarray[Any, Any], ...]) -> Timer:
    a, b, c = (torch.from_numpy(array) for array in arrays)
    return peers.torch_on_threads(threads, calls(lambda: torch.mm(a, b, out=c)))
