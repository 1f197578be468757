"""Functions of floats in cache, each with its largest error, against numpy, torch and JAX."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import accuracy, peers
from benchmarks.measure import OURS, Row, Settings, Timer, calls, interleaved, on_threads
from benchmarks.speeds import speed, undisturbed
from minitvm import build, te
from minitvm.tir.intrinsics import INTRINSICS

Array = np.ndarray[Any, Any]

_SIZE = 4096
_SAMPLE = 100_000  # of the error; mpmath's erf takes long
_SAMPLE_OF_ERF = 1000
_MEAN, _WORST = 1.2, 0.9


class Case(NamedTuple):
    """The arguments of a function, and what the peers call it, by the path of its name; they may
    take another argument `first`."""

    low: float
    high: float
    numpy: str = ""
    torch: str = ""
    jax: str = ""
    first: tuple[float, ...] = ()


def _same(low: float, high: float, name: str) -> Case:
    return Case(low, high, name, name, f"numpy.{name}")


def _arc(low: float, high: float, name: str) -> Case:
    return Case(low, high, f"arc{name}", f"a{name}", f"numpy.arc{name}")


CASES: dict[str, Case] = {
    "exp": _same(-20, 20, "exp"),
    "exp2": _same(-20, 20, "exp2"),
    "exp10": Case(-10, 10, "power", "pow", "numpy.power", (10.0,)),
    "expm1": _same(-5, 5, "expm1"),
    "log": _same(0.01, 100, "log"),
    "log2": _same(0.01, 100, "log2"),
    "log10": _same(0.01, 100, "log10"),
    "log1p": _same(-0.9, 10, "log1p"),
    "sqrt": _same(0, 100, "sqrt"),
    "rsqrt": Case(0.01, 100, "", "rsqrt", "lax.rsqrt"),
    "sin": _same(-20, 20, "sin"),
    "cos": _same(-20, 20, "cos"),
    "tan": _same(-20, 20, "tan"),
    "asin": _arc(-1, 1, "sin"),
    "acos": _arc(-1, 1, "cos"),
    "atan": _arc(-10, 10, "tan"),
    "atan2": _arc(-10, 10, "tan2"),
    "sinh": _same(-10, 10, "sinh"),
    "cosh": _same(-10, 10, "cosh"),
    "tanh": _same(-5, 5, "tanh"),
    "asinh": _arc(-10, 10, "sinh"),
    "acosh": _arc(1, 50, "cosh"),
    "atanh": _arc(-1, 1, "tanh"),
    "erf": Case(-4, 4, "", "erf", "scipy.special.erf"),
    "sigmoid": Case(-10, 10, "", "sigmoid", "nn.sigmoid"),
    "hypot": _same(-10, 10, "hypot"),
    "fmod": _same(-10, 10, "fmod"),
    "power": Case(0.1, 10, "power", "pow", "numpy.power"),
    "ldexp": _same(-10, 10, "ldexp"),
    "nextafter": _same(-10, 10, "nextafter"),
    "copysign": _same(-10, 10, "copysign"),
    "floor": _same(-10, 10, "floor"),
    "ceil": _same(-10, 10, "ceil"),
    "trunc": _same(-10, 10, "trunc"),
    "nearbyint": Case(-10, 10, "rint", "round", "numpy.rint"),
    "fabs": _same(-10, 10, "abs"),
}
_QUICK = ("exp", "tan", "atan2", "ldexp", "erf")


def rows(settings: Settings) -> Iterator[Row]:
    """Each function in float32 and float64; a few in a quick run."""
    for name in CASES if settings.least else _QUICK:
        for dtype in ("float32", "float64"):
            if settings.only in f"{name} {dtype}":
                yield _row(name, dtype, settings)


def _row(name: str, dtype: str, settings: Settings) -> Row:
    case, args = CASES[name], arguments(name, dtype, _SIZE)
    outputs = [np.empty(_SIZE, dtype) for _ in range(3)]
    function = _function(name, dtype, _SIZE)
    contenders = {
        OURS: on_threads(1, calls(function, *args, outputs[0])),
        **_peers(case, args, outputs[1:]),
    }
    return Row(
        f"{name} {dtype}",
        f"{_SIZE} numbers from {case.low:g} to {case.high:g}{_error(name, dtype)}",
        interleaved(contenders, settings),
        peers.missing(("torch", "jax")),
    )


def arguments(name: str, dtype: str, size: int) -> list[Array]:
    """Uniform ones; the integers of ldexp are small."""
    case, known = CASES[name], INTRINSICS[name]
    generator = np.random.default_rng(0)
    found = [generator.uniform(case.low, case.high, size).astype(dtype) for _ in range(known.arity)]
    return [*found[:1], found[1].astype("int32")] if known.second else found


def _function(name: str, dtype: str, size: int) -> Any:
    known = INTRINSICS[name]
    dtypes = [dtype, *[str(known.second or dtype)] * (known.arity - 1)]
    inputs = [te.placeholder((size,), each, name=f"x{i}") for i, each in enumerate(dtypes)]
    function = getattr(te, known.language_name)
    y = te.compute((size,), lambda i: function(*(x[i] for x in inputs)), name="y")
    return build(y, [*inputs, y], name="f")


def largest_error(name: str, dtype: str) -> float | None:
    """In ULP, over a dense sample; None where there is nothing to compare with."""
    if name not in accuracy.EXACT or accuracy.wide(dtype) is None:
        return None
    size = _SAMPLE_OF_ERF if name == "erf" else _SAMPLE
    args, found = arguments(name, dtype, size), np.empty(size, dtype)
    _function(name, dtype, size)(*args, found)
    return float(accuracy.errors(found, accuracy.exactly(name, *args)).max())


def _error(name: str, dtype: str) -> str:
    error = largest_error(name, dtype)
    return "" if error is None else f"; the largest error is {error:.2f} ULP"


def _peers(case: Case, args: Sequence[Array], outputs: Sequence[Array]) -> dict[str, Timer]:
    """numpy and torch write into an array; JAX returns a new one."""
    found: dict[str, Timer] = {}
    if case.numpy:
        found["numpy"] = _into(getattr(np, case.numpy), [*case.first, *args], outputs[0])
    torch = peers.peer("torch")
    if torch is not None:
        tensors = [torch.from_numpy(each) for each in args]
        function = getattr(torch, case.torch)
        found["torch"] = _into(function, [*case.first, *tensors], torch.from_numpy(outputs[1]))
    jax = peers.peer("jax")
    if jax is not None:
        *modules, name = case.jax.split(".")
        module = importlib.import_module(".".join(["jax", *modules]))
        compiled = jax.jit(partial(getattr(module, name), *case.first))
        arrays = [jax.numpy.asarray(each) for each in args]
        found["jax"] = calls(lambda: compiled(*arrays).block_until_ready())
    return found


def _into(function: Callable[..., Any], args: Sequence[Any], output: Any) -> Timer:
    return calls(partial(function, *args, out=output))


def summary(found: Sequence[Row]) -> str:
    """The geometric mean and the worst of the speeds in that of the best peer; and the same of the
    least times, which other processes disturb less."""
    measured = [row for row in found if row.ratio is not None]
    if not measured:
        return "no peer"
    (mean, worst, name), least = (_figures(measured, of) for of in (speed, undisturbed))
    met = "met" if mean >= _MEAN and worst >= _WORST else "MISSED"
    return (
        f"In the speed of the best peer: mean {mean:.2f}, worst {worst:.2f} ({name}); undisturbed "
        f"{least[0]:.2f}, {least[1]:.2f} ({least[2]}); target {_MEAN}, {_WORST}: {met}"
    )


def _figures(rows: Sequence[Row], of: Callable[[Row], float | None]) -> tuple[float, float, str]:
    """The mean, the worst, and its name."""
    speeds = {row.name: of(row) or math.inf for row in rows}
    worst = min(speeds, key=lambda name: speeds[name])
    mean = math.exp(statistics.fmean(map(math.log, speeds.values())))
    return mean, speeds[worst], worst
