"""Contractions: the bare expression under ``minitvm.auto_schedule`` against the vendors' libraries.

A :class:`Problem` says what is computed, by whom, and exactly. Each contender's result is held to
the float64 one before it is timed; a wrong one is not timed, but named.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

import minitvm
from benchmarks import openblas, peers
from benchmarks.measure import OURS, Contraction, Row, Settings, Timer, calls, on_threads, paced

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
"""Computes, and returns the result, or None where that is in the last array."""
Program = Callable[[Any], list[Any]]
"""Given a `te`, the arguments of a function, the output last."""

EPS = float(np.finfo(np.float32).eps)
_ASIDE_FLOP = 2**26  # beyond, plain loops take seconds
_PAUSE = 0.01  # seconds
_BUDGET = 0.5  # seconds of measuring a row


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One contraction of one shape.

    `arrays` makes the inputs and the output. `exact` takes the inputs in float64, and returns the
    result and the sums of the terms' magnitudes; an error may be ``terms * eps`` of these, which
    bounds a sum in any order (Higham, Accuracy and Stability of Numerical Algorithms, section
    3.1), and `rounding` of the result, for an output of a narrower type. `peers` makes the calls
    that compute the same from the inputs, `aside` those of compilers, from all arrays: these are
    shown, but are no measure. A shape is `held_out` when nothing was tuned on it. The argument at
    `prepacked` is packed once, as it is by peers that can.
    """

    family: str
    name: str
    flop: int
    program: Program
    arrays: Callable[[], list[Any]]
    exact: Callable[..., tuple[Array, Array]]
    terms: int
    peers: Callable[[Sequence[Any]], dict[str, Call]]
    eps: float = EPS
    rounding: float = 0.0
    held_out: bool = False
    aside: Callable[[Sequence[Any]], dict[str, Call]] | None = None
    prepacked: int | None = None

    @property
    def title(self) -> str:
        """What ``--only`` looks into."""
        return f"{self.family} {self.name}"


def rows(problems: Iterable[Problem], settings: Settings) -> Iterator[Row]:
    """Each problem whose title contains ``settings.only``, on as many threads as the settings
    say; in a quick run the smallest of each family.
    """
    chosen = [problem for problem in problems if settings.only in problem.title]
    if not chosen:
        return
    if not settings.least:
        smallest: dict[str, Problem] = {}
        for problem in sorted(chosen, key=lambda problem: problem.flop):
            smallest.setdefault(problem.family, problem)
        chosen = list(smallest.values())
    build_seconds(chosen[0].program)  # the first build of a process takes longer
    for problem in chosen:
        yield from measured(problem, settings)


def build_seconds(program: Program, prepacked: int | None = None) -> tuple[float, Any]:
    """The seconds to schedule and build a program, its expression there already; its function."""
    arguments = program(minitvm.te)
    packed = [] if prepacked is None else [arguments[prepacked]]
    start = time.perf_counter()
    schedule = minitvm.auto_schedule(arguments[-1], prepacked=packed)
    function = minitvm.build(schedule, arguments, name="f")
    return time.perf_counter() - start, function


def measured(problem: Problem, settings: Settings) -> Iterator[Row]:
    """One problem, a row for each number of threads."""
    arrays = problem.arrays()
    expected, magnitude = problem.exact(*map(_double, arrays[:-1]))
    bound = problem.terms * problem.eps * magnitude + problem.rounding * np.abs(expected)
    unbuilt: dict[str, str] = {}
    contenders: dict[str, Call] = {}
    seconds = None
    try:
        seconds, function = build_seconds(problem.program, problem.prepacked)
        contenders[OURS] = partial(function, *_given(function, problem.prepacked, arrays))
    except Exception as error:  # shown among the losses; the other shapes are measured
        unbuilt[OURS] = f"FAILED: {_in_a_line(error)}"
    contenders |= problem.peers(arrays[:-1])
    aside = {}
    if problem.aside is not None and problem.flop <= _ASIDE_FLOP:
        aside = problem.aside(arrays)
    for threads in settings.threads:
        missing = dict(unbuilt)
        timers: dict[str, Timer] = {}
        for name, call in {**contenders, **(aside if threads == 1 else {})}.items():
            reason = _cannot(name, threads)
            reason = reason or _wrong(name, threads, call, arrays[-1], expected, bound)
            if reason:
                missing[name] = reason
            else:
                timer = on(threads, name, calls(call))
                timers[name] = _rested(timer) if threads > 1 and settings.least else timer
        found = paced(timers, settings_of(settings, threads), _BUDGET)
        about = Contraction(
            problem.family, problem.flop, problem.held_out, seconds, tuple(sorted(aside))
        )
        yield Row(problem.name, problem.family, found, missing, None, threads, about)


def _given(function: Any, prepacked: int | None, arrays: Sequence[Any]) -> list[Any]:
    """The arrays that a function is called with."""
    if prepacked is None:
        return [*arrays]
    name = function.entry_func.arg_names[prepacked]
    packed = minitvm.prepack(function, name, arrays[prepacked])
    return [*arrays[:prepacked], packed, *arrays[prepacked + 1 :]]


def settings_of(settings: Settings, threads: int) -> Settings:
    """On one thread many short measurements: those in which another process had the core stay in
    the minority. On two, each begins when the workers of the one before sleep. A quick run isn't a
    measurement."""
    if not settings.least:
        return settings
    if threads > 1:
        return dataclasses.replace(settings, repeat=min(settings.repeat, 11))
    return dataclasses.replace(settings, least=settings.least / 10, repeat=3 * settings.repeat)


# ---- Contenders ----------------------------------------------------------------------------------


def on(threads: int, name: str, timer: Timer) -> Timer:
    """`timer` where that contender uses that many threads."""
    if name == OURS:
        timer = on_threads(threads, timer)
    elif name.startswith("torch"):
        timer = peers.torch_on_threads(threads, timer)
    elif name.startswith("numpy") and not openblas.why_not():
        timer = openblas.on_threads(threads, timer)
    return timer


def _rested(timer: Timer) -> Timer:
    """`timer` where it begins when the workers of the contender before sleep."""

    def rested(number: int) -> float:
        _rest()
        return timer(number)

    return rested


def _rest() -> None:
    """Waits until no thread of this process is busy: the workers of OpenBLAS look for more work for
    0.1 seconds, on a core that the next contender needs."""
    spent = _PAUSE
    while spent > _PAUSE / 10:
        before = time.process_time()
        time.sleep(_PAUSE)
        spent = time.process_time() - before


def _cannot(name: str, threads: int) -> str:
    """Why a contender can't be measured on that many threads."""
    if threads == 1 or not name.startswith("numpy"):
        return ""
    return openblas.why_not()


def _wrong(name: str, threads: int, call: Call, output: Any, expected: Array, bound: Array) -> str:
    """What is wrong with a contender's result, if anything is."""
    output[...] = 0
    results: list[Any] = []

    def once(number: int) -> float:
        results.append(call())
        return 0.0

    try:
        on(threads, name, once)(1)
    except Exception as error:  # of a peer, or of ours: the row names it, and the run goes on
        return f"FAILED: {_in_a_line(error)}"
    (result,) = results
    off = np.abs(_double(output if result is None else result) - expected)
    if (off <= bound).all():
        return ""
    return f"WRONG: off by {np.nanmax(off):.3g}, where {np.nanmax(bound):.3g} is allowed"


def _double(array: Any) -> Array:
    """In float64 of numpy, which holds every element of the others exactly."""
    if hasattr(array, "double"):  # torch, which knows bfloat16
        array = array.double()
    return np.asarray(array, np.float64)


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


def aligned(shape: Sequence[int], dtype: str) -> Array:
    """Unspecified elements on an address as TVM takes for granted: see
    :func:`benchmarks.callers._aligned`."""
    return np.asarray(minitvm.nd.empty(tuple(shape), dtype))


def filled(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """Random elements: of floats those between -1 and 1, of int8 and uint8 all."""
    rng = np.random.default_rng(seed)
    array = aligned(shape, dtype)
    if dtype in ("int8", "uint8"):
        array[...] = rng.integers(*((-128, 128) if dtype == "int8" else (0, 256)), shape, dtype)
    else:
        drawn = "float64" if dtype == "float64" else "float32"
        array[...] = rng.random(tuple(shape), np.dtype(drawn)) * 2 - 1
    return array


def place_of_greatest(te: Any) -> Any:
    """A reducer of pairs of a place and a value: the first place of the greatest value."""
    return te.comm_reducer(
        lambda a, b: (
            te.if_then_else(te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] < b[0])), a[0], b[0]),
            te.max(a[1], b[1]),
        ),
        lambda s, t: (te.max_value(s), te.min_value(t)),
        name="argmax",
    )


def tensors(arrays: Sequence[Any]) -> list[Any]:
    """torch's own: on the memory of numpy some of its operations are slower."""
    torch = peers.peer("torch")
    return [x.clone() if hasattr(x, "clone") else torch.from_numpy(x).clone() for x in arrays]


def compilers(program: Program, loop: Callable[..., None], expression: str) -> Any:
    """What TVM's default, numba and JAX make of plain loops, as `Problem.aside` wants it.

    `loop` is numba's; `expression` the name of the function of ``jax.numpy``.
    """

    def calls_of(arrays: Sequence[Any]) -> dict[str, Call]:
        found: dict[str, Call] = {}
        if (tvm := peers.peer("tvm")) is not None:
            function = tvm.te.create_prim_func(program(tvm.te)).with_attr("global_symbol", "f")
            target = {"kind": "llvm", "mcpu": minitvm.Target("llvm").mcpu}
            found["tvm"] = partial(tvm.compile(function, target=target)["f"], *arrays)
        if (numba := peers.peer("numba")) is not None:
            compiled = numba.njit(fastmath={"contract", "reassoc"})(loop)
            found["numba"] = partial(compiled, *arrays)
        if (jax := peers.peer("jax")) is not None:
            jitted = jax.jit(getattr(jax.numpy, expression))
            inputs = [jax.numpy.asarray(array) for array in arrays[:-1]]
            found["jax"] = lambda: jitted(*inputs).block_until_ready()
        return found

    return calls_of
