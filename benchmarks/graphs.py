"""Whole graphs drawn at random (:mod:`benchmarks.drawn_graphs`) against torch, compiled too, and
JAX.

Half of the graphs are held out. A result is held to the one in float64; where rounding decides
between values, a few elements may differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

import minitvm
from benchmarks import contraction, peers
from benchmarks.contraction import Call, on
from benchmarks.drawn_graphs import DISCRETE, Graph, Node, draw, function, program
from benchmarks.measure import OURS, Contraction, Row, Settings, calls, paced
from benchmarks.speeds import LOST, Target

_SEEDS = (3, 20261127)  # tuned on; held out
_COUNT = 60  # of each seed
_BUDGET = 0.3  # seconds of measuring a graph
_ERROR = 2e-3  # of a result, and of the mean magnitude: float16 is in between; with bfloat16:
_COARSE = 2e-2
_FEW = 0.01  # of the elements

TARGETS = (Target("graphs", 1.7, lambda row: True, LOST),)


def rows(settings: Settings) -> Iterator[Row]:
    """A row for each graph, and each number of threads; in a quick run one graph of each seed."""
    torch = peers.peer("torch")
    for held_out, seed in enumerate(_SEEDS):
        rng = Random(seed)
        for number in range(_COUNT if settings.least else 1):
            graph = draw(rng)
            title = f"{number}: {graph.title}"
            if torch is not None and settings.only in title:
                yield from _measured(graph, title, settings, torch, held_out=bool(held_out))


def _measured(
    graph: Graph, title: str, settings: Settings, torch: Any, *, held_out: bool
) -> Iterator[Row]:
    inputs = [_filled(torch, graph.nodes[i], i) for i in graph.inputs]
    outputs = [
        torch.empty(node.shape, dtype=getattr(torch, node.dtype))
        for node in (graph.nodes[i] for i in graph.outputs)
    ]
    arguments = program(graph, minitvm.te)
    missing: dict[str, str] = {}
    contenders: dict[str, Call] = {}
    start = time.perf_counter()
    try:
        built = minitvm.build(arguments[len(inputs) :], arguments, name="f")
        built(*inputs, *outputs)
        contenders[OURS] = partial(built, *inputs, *outputs)
    except Exception as error:  # shown among the losses; the other graphs are measured
        missing[OURS] = f"FAILED: {type(error).__name__}: {error}".splitlines()[0]
    seconds = time.perf_counter() - start
    wide = [_wide(each) for each in inputs]
    exact = function(graph, torch, "float64")(*wide)
    shaken = function(graph, torch, "float64", partial(_shaken, torch))(*wide)
    if OURS in contenders and (wrong := _wrong(graph, outputs, exact, shaken)):
        missing[OURS] = wrong
        del contenders[OURS]
    contenders |= _peers(graph, torch, inputs, compiled=bool(settings.least))
    work = sum(int(np.prod(node.shape)) for node in graph.nodes)
    about = Contraction("graphs", work, held_out, seconds)
    for threads in settings.threads:
        timers = {name: on(threads, name, calls(call)) for name, call in contenders.items()}
        found = paced(timers, contraction.settings_of(settings, threads), _BUDGET)
        yield Row(title[:90], "graphs", found, missing, None, threads, about)


def _filled(torch: Any, node: Node, seed: int) -> Any:
    """Random elements: floats between -1 and 1, all numbers of uint8, places."""
    generator = torch.Generator().manual_seed(seed)
    if node.dtype in ("int64", "uint8"):
        (most,) = node.more or (256,)
        drawn = torch.randint(0, most, node.shape, generator=generator)
    else:
        drawn = torch.rand(node.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return drawn.to(getattr(torch, node.dtype))


def _wide(array: Any) -> Any:
    return array.double() if array.is_floating_point() else array


def _shaken(torch: Any, array: Any, dtype: str) -> Any:
    """Values that are off by up to two roundings of a dtype, at random."""
    if not array.is_floating_point():
        return array
    size = 2 * torch.finfo(getattr(torch, dtype)).eps
    return array * (1 + size * (torch.rand_like(array) * 2 - 1))


def _wrong(
    graph: Graph, outputs: Sequence[Any], exact: Sequence[Any], shaken: Sequence[Any]
) -> str:
    """What is wrong with our results, if anything is. Where large values cancel, results differ
    from the `exact` ones as `shaken` ones do, of which each value was rounded."""
    few = _FEW if any(node.op in DISCRETE for node in graph.nodes) else 0
    error = _COARSE if any(node.dtype == "bfloat16" for node in graph.nodes) else _ERROR
    for output, expected, other in zip(outputs, exact, shaken, strict=True):
        expected = expected.double()
        errors = (other - expected).abs().nan_to_num(0.0, 0.0).flatten().sort().values
        usual = errors[int((1 - few) * (len(errors) - 1))] if len(errors) else 0.0
        off = (output.double() - expected).abs()
        is_off = ~(off <= error * (expected.abs() + expected.abs().mean()) + 2 * usual)
        if is_off.sum() > max(few * output.numel(), few > 0):
            return f"WRONG: {is_off.sum()} of {output.numel()} elements, off by {off.max():.3g}"
    return ""


def _peers(graph: Graph, torch: Any, inputs: Sequence[Any], *, compiled: bool) -> dict[str, Call]:
    run = function(graph, torch)
    found: dict[str, Call] = {"torch": partial(run, *inputs)}
    if compiled:  # which takes seconds
        torch.compiler.reset()
        found["torch.compile"] = partial(torch.compile(run, dynamic=False), *inputs)
    if (jax := peers.peer("jax")) is not None:
        given = [_of_jax(jax.numpy, each) for each in inputs]
        jitted = jax.jit(function(graph, jax.numpy))
        found["jax"] = lambda: jax.block_until_ready(jitted(*given))
    return found


def _of_jax(np: Any, array: Any) -> Any:
    if str(array.dtype) == "torch.bfloat16":  # numpy has none
        return np.asarray(array.float().numpy()).astype(np.bfloat16)
    return np.asarray(array.numpy())
