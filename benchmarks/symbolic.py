"""Programs whose extents are variables, beside the same programs with constant extents.

Each form of :mod:`benchmarks.symbolic_forms` is built twice, called with the same arrays, and must
have the same results. Of each there are two rows: a call, and the build.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import minitvm
from benchmarks import contraction
from benchmarks.measure import OURS, Measured, Row, Settings, calls, on_threads, paced
from benchmarks.report import seconds
from benchmarks.symbolic_forms import Form, forms
from minitvm import te
from minitvm.te.tensor import PlaceholderOp, Tensor
from minitvm.tir.expr import const_int

CONSTANT = "constant extents"
SLOWER, SLOWER_BUILD = 1.2, 2.0  # times the constant one: a loss
_BUILD = "build "  # begins the name of a row about a build
_BUDGET = 0.2  # seconds of measuring a row
_QUICK = 2  # forms of a quick run
_NEAR = 1e-4  # relative, of sums in another order

Built = tuple[float, Callable[..., None]]


def rows(settings: Settings) -> Iterator[Row]:
    """Rows of the forms whose name contains ``settings.only``, on the first number of threads of
    the settings; a few in a quick run."""
    chosen = [form for form in forms() if settings.only in form.name]
    if chosen:
        _built(chosen[0], is_symbolic=False)  # the first build of a process takes longer
    for form in chosen if settings.least else chosen[:_QUICK]:
        yield from _measured(form, settings)


def _measured(form: Form, settings: Settings) -> Iterator[Row]:
    threads = settings.threads[0]
    builds = {OURS: _built(form, is_symbolic=True), CONSTANT: _built(form, is_symbolic=False)}
    tensors = form.program(*form.extents)
    inputs = [tensor for tensor in tensors if isinstance(tensor.op, PlaceholderOp)]
    arrays = [_array(each, place, form) for place, each in enumerate(inputs)]
    results, timers = {}, {}
    for name, (_, function) in builds.items():
        results[name] = [_empty(each) for each in tensors[len(inputs) :]]
        args = [*arrays, *results[name]]
        function(*args)
        timers[name] = on_threads(threads, calls(function, *args))
    for one, other in zip(*results.values(), strict=True):
        if not np.allclose(one, other, _NEAR, _NEAR):
            raise AssertionError(f"{form.name}: the results differ by {np.abs(one - other).max()}")
    more = dataclasses.replace(settings, least=settings.least / 10, repeat=3 * settings.repeat)
    listed = ", ".join(map(str, form.extents))
    what = f"extents that are variables; called with {listed}"
    yield Row(form.name, what, paced(timers, more, _BUDGET), threads=threads)
    spent = {
        name: Measured(found, least=found, processor=found) for name, (found, _) in builds.items()
    }
    yield Row(_BUILD + form.name, "scheduled and built", spent)


def _built(form: Form, *, is_symbolic: bool) -> Built:
    """The seconds to schedule and build a form, its expression there already; its function."""
    names = [f"n{place}" for place, _ in enumerate(form.extents)]
    tensors = form.program(*(map(te.var, names) if is_symbolic else form.extents))
    start = time.perf_counter()
    outputs = [each for each in tensors if not isinstance(each.op, PlaceholderOp)]
    function = minitvm.build(outputs, tensors, name="f")
    return time.perf_counter() - start, function


def _shape(tensor: Tensor) -> list[int]:
    return [const_int(extent) or 0 for extent in tensor.shape]


def _empty(tensor: Tensor) -> Any:
    return contraction.aligned(_shape(tensor), str(tensor.dtype))


def _array(tensor: Tensor, seed: int, form: Form) -> Any:
    """Random elements; int32 are indices below every extent."""
    shape, dtype = _shape(tensor), str(tensor.dtype)
    if dtype == "int32":
        return np.random.default_rng(seed).integers(0, min(form.extents), shape, dtype)
    if dtype == "bfloat16":  # which numpy may not know
        return minitvm.nd.array(contraction.filled(shape, "float32", seed), dtype=dtype)
    return contraction.filled(shape, dtype, seed)


# -- What is shown --

HEAD = f"{'':48} minitvm  in the time with constant extents (undisturbed)"


def line(row: Row) -> str:
    """A row in one line; above 1, symbolic extents are slower."""
    verdict = f"{row.ratio:.2f} ({_ratio(row):.2f}){' SLOWER' if _is_slower(row) else ''}"
    return f"{row.name:47} {seconds(row.ours):>8}  {verdict}"


def _ratio(row: Row) -> float:
    """The least time in that with constant extents, which other processes disturb less."""
    ours, constant = row.measured[OURS], row.measured[CONSTANT]
    return (ours.least or ours.seconds) / (constant.least or constant.seconds)


def _is_slower(row: Row) -> bool:
    return _ratio(row) > (SLOWER_BUILD if _is_build(row) else SLOWER)


def _is_build(row: Row) -> bool:
    return row.name.startswith(_BUILD)


def summary(found: Sequence[Row]) -> str:
    """The geometric means of the calls and of the builds, and the losses, the worst first."""
    lines: list[str] = []
    for what, is_build, allowed in (("calls", False, SLOWER), ("builds", True, SLOWER_BUILD)):
        part = [row for row in found if _is_build(row) == is_build]
        if not part:
            continue
        mean = math.exp(statistics.fmean(math.log(_ratio(row)) for row in part))
        lost = sorted((row for row in part if _is_slower(row)), key=_ratio, reverse=True)
        lines.append(
            f"{what} in the least time with constant extents: mean {mean:.2f}, above {allowed}: "
            f"{len(lost)} of {len(part)}"
        )
        lines += map(line, lost)
    return "\n".join(lines)
