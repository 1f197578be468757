"""How Python threads that call one function at once get on, against one of them alone."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import minitvm
from benchmarks import elementwise, peers
from benchmarks.measure import Row, Settings, Timer, calls, interleaved

_CALLERS = 8
_LONG = 50_000  # elements, whose exponentials take some 200 us
_TOLERANCE = 1e-6

Numpy = np.ndarray[Any, Any]
Contenders = Mapping[str, Callable[[Numpy], Timer]]
"""For each what times its calls, the output given."""


def rows(settings: Settings) -> Iterator[Row]:
    """A short and a long function."""
    # Longer measurements, but fewer: Python lets a thread run for 5 ms before another's turn.
    patient = dataclasses.replace(
        settings, least=10 * settings.least, repeat=min(settings.repeat, 7)
    )
    x = _aligned(_LONG)
    x[:] = np.random.default_rng(0).random(_LONG)
    add = elementwise.compiled(elementwise.total(("x", "y", "z")), elementwise.add_loop, nogil=True)
    exp = elementwise.compiled(elementwise.exponential, elementwise.exponential_loop, nogil=True)
    few = x[:3]
    yield from _alone_and_together(
        "addition of 3 elements", _contenders(add, "add", few, few), few + few, patient
    )
    yield from _alone_and_together(
        f"exp of {_LONG:,} elements", _contenders(exp, "exp", x), np.exp(x), patient
    )


def _contenders(functions: Mapping[str, Any], name: str, *inputs: Numpy) -> Contenders:
    """The compiled functions and what numpy and torch have under a name."""
    contenders: dict[str, Callable[[Numpy], Timer]] = {
        compiler: partial(calls, function, *inputs) for compiler, function in functions.items()
    }
    contenders[f"np.{name}(out=)"] = partial(calls, getattr(np, name), *inputs)
    if (torch := peers.peer("torch")) is not None:
        tensors = [torch.from_numpy(array) for array in inputs]
        function = getattr(torch, name)
        contenders[f"torch.{name}(out=)"] = lambda out: calls(
            partial(function, out=torch.from_numpy(out)), *tensors
        )
    return contenders


def _aligned(size: int) -> Numpy:
    """Unspecified elements, aligned as TVM's code for AVX-512 takes for granted: on an address that
    64 doesn't divide it ends the process, and what numpy allocates has no more than 16."""
    return np.asarray(minitvm.nd.empty((size,)))


def _alone_and_together(
    name: str, contenders: Contenders, expected: Numpy, settings: Settings
) -> Iterator[Row]:
    for make in contenders.values():
        out = _aligned(expected.size)
        make(out)(1)
        np.testing.assert_allclose(out, expected, rtol=_TOLERANCE)
    alone = {key: _together([make(_aligned(expected.size))]) for key, make in contenders.items()}
    together = {
        f"{key} together": _together([make(_aligned(expected.size)) for _ in range(_CALLERS)])
        for key, make in contenders.items()
    }
    measured = interleaved({**alone, **together}, settings)
    one = {key: measured[key] for key in contenders}
    many = {key: measured[f"{key} together"] for key in contenders}
    missing = peers.missing(("numba", "tvm"))
    what = "seconds by calls, on numpy arrays and torch's own tensors; numba with nogil"
    yield Row(f"{name}, 1 caller", what, one, missing)
    gains = ", ".join(f"{key} {one[key].seconds / many[key].seconds:.2f}" for key in contenders)
    what += f"; calls of {_CALLERS} callers in the time that one makes one: {gains}"
    yield Row(f"{name}, {_CALLERS} callers", what, many, missing, threads=_CALLERS)


def _together(callers: Sequence[Timer]) -> Timer:
    """Times calls that are divided among callers, each a thread of Python."""
    pool = ThreadPoolExecutor(len(callers))

    def timer(number: int) -> float:
        each = -(-number // len(callers))
        start = time.perf_counter()
        list(pool.map(lambda caller: caller(each), callers))
        return (time.perf_counter() - start) * number / (each * len(callers))

    return timer
