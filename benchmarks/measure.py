"""Measuring: contenders take turns, and the median of each counts."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from minitvm.runtime.module import Module
from minitvm.runtime.threads import num_threads, set_num_threads

OURS = "minitvm"

Timer = Callable[[int], float]
"""Seconds that a number of runs takes."""


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure: rounds, the least seconds of a measurement, and fresh processes; of
    the groups that can be taken in part, what contains `only`, on each number of `threads`."""

    repeat: int = 21
    least: float = 0.005
    processes: int = 5
    only: str = ""
    threads: tuple[int, ...] = (1, 2)


QUICK = Settings(repeat=2, least=0.0, processes=0)


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """The median seconds of a run, how many cores were busy meanwhile, and the least seconds.

    `processor` is the least that a run took of processors, however many other processes had them.
    """

    seconds: float
    cores_busy: float | None = None
    least: float | None = None
    processor: float | None = None


@final
@dataclass(frozen=True, slots=True)
class Contraction:
    """What a row of the groups gemm and conv is about, beside its shape.

    `build` is how many seconds minitvm took to schedule and build it; the contenders `aside` are
    shown, but not counted as peers.
    """

    family: str
    flop: int
    held_out: bool
    build: float | None
    aside: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    `measured` maps each contender to its time, minitvm under :data:`OURS`; `missing` names the
    peers that would belong here, and why they don't. `target` is in seconds; `threads` is how many
    any contender may keep busy.

    >>> row = Row("call", "one call", {"minitvm": Measured(2.0), "numpy": Measured(1.0)})
    >>> row.best_peer, row.ratio, row.met
    ('numpy', 2.0, None)
    """

    name: str
    what: str
    measured: Mapping[str, Measured]
    missing: Mapping[str, str] = field(default_factory=dict)
    target: float | None = None
    threads: int = 1
    contraction: Contraction | None = None

    @property
    def ours(self) -> float:
        """minitvm's seconds."""
        return self.measured[OURS].seconds

    @property
    def peers(self) -> dict[str, Measured]:
        """What the others took."""
        return {name: found for name, found in self.measured.items() if name != OURS}

    @property
    def counted(self) -> dict[str, Measured]:
        """The peers that are a measure."""
        aside = () if self.contraction is None else self.contraction.aside
        return {name: found for name, found in self.peers.items() if name not in aside}

    @property
    def best_peer(self) -> str | None:
        """The fastest other that counts, if there is one."""
        peers = self.counted
        return min(peers, key=lambda name: peers[name].seconds, default=None)

    @property
    def ratio(self) -> float | None:
        """minitvm's time in that of the best peer: above 1, minitvm is slower."""
        best = self.best_peer
        if best is None or OURS not in self.measured:
            return None
        return self.ours / self.measured[best].seconds

    @property
    def met(self) -> bool | None:
        """Whether minitvm's time is within the target, where there is one."""
        return None if self.target is None else self.ours <= self.target


def calls(function: Callable[..., object], *args: object) -> Timer:
    """Times calls of `function` from Python."""

    def timer(number: int) -> float:
        rounds = itertools.repeat(None, number)
        start = time.perf_counter()
        for _ in rounds:
            function(*args)
        return time.perf_counter() - start

    return timer


def statement(text: str, **names: object) -> Timer:
    """Times a statement of Python, for calls so short that those of :func:`calls` would weigh.

    The loop is compiled around the statement. What it takes, some 10 ns a run, is inside for every
    contender; the garbage collector doesn't run meanwhile.

    >>> statement("f(x)", f=abs, x=-1)(1000) > 0
    True
    """
    return timeit.Timer(text, globals=names).timeit


def kernel(module: Module, *args: Any) -> Timer:
    """Times the compiled function alone, by minitvm's ``time_evaluator``."""
    return lambda number: module.time_evaluator(number=number, repeat=1)(*args).mean * number


def on_threads(threads: int, timer: Timer) -> Timer:
    """`timer` where parallel loops use that many threads."""

    def run(number: int) -> float:
        before = num_threads()
        set_num_threads(threads)
        try:
            return timer(number)
        finally:
            set_num_threads(before)

    return run


def interleaved(contenders: Mapping[str, Timer], settings: Settings) -> dict[str, Measured]:
    """The contenders in turn, ``settings.repeat`` rounds after a warm-up.

    Each round begins with another contender, so that none always follows the same one.
    """
    numbers = {name: _number(timer, settings.least) for name, timer in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    cores: dict[str, list[float]] = {name: [] for name in contenders}
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(settings.repeat):
        for name in order:
            wall, process = time.perf_counter(), time.process_time()
            seconds[name].append(contenders[name](numbers[name]) / numbers[name])
            process = time.process_time() - process
            cores[name].append(process / (time.perf_counter() - wall))
            # A timer's preparations are in the process's time, and waiting is in the seconds.
            spent[name].append(min(process / numbers[name], seconds[name][-1]))
        order.append(order.pop(0))
    return {
        name: Measured(
            statistics.median(seconds[name]),
            statistics.median(cores[name]),
            min(seconds[name]),
            min(spent[name]),
        )
        for name in contenders
    }


def paced(
    contenders: Mapping[str, Timer], settings: Settings, budget: float
) -> dict[str, Measured]:
    """As :func:`interleaved`, in as many rounds as fit into `budget` seconds, at least three.

    Who takes several times the budget for a single run has had it, and waits aside. A quick run has
    the rounds of the settings.
    """
    if not settings.least:
        return interleaved(contenders, settings)
    once = {name: timer(1) for name, timer in contenders.items()}
    slow = {
        name: Measured(found, least=found) for name, found in once.items() if found > 4 * budget
    }
    others = {name: timer for name, timer in contenders.items() if name not in slow}
    if not others:
        return slow
    a_round = sum(max(once[name], settings.least) for name in others)
    fitting = max(3, int(budget / a_round))
    few = dataclasses.replace(settings, repeat=min(settings.repeat, fitting))
    measured = interleaved(others, few)
    return {name: slow.get(name) or measured[name] for name in contenders}


def _number(timer: Timer, least: float) -> int:
    """How many runs take `least` seconds, and not just once, when another process had the core;
    finding it out is the warm-up. A quick run has none."""
    number = 1
    if not least:
        return number
    timer(number)
    while timer(number) < least or timer(number) < least:
        number *= 2
    return number


def in_turn(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Measured]:
    """Contenders that measure themselves, in processes of their own for instance.

    A first round warms the disk and the byte code up, and does not count where others follow.
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + rounds):
        for name, run in contenders.items():
            found[name].append(run())
    return {name: Measured(statistics.median(times[1:] or times)) for name, times in found.items()}
