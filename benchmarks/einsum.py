"""Contractions of two and three factors, as ``einsum`` has them: axes in orders drawn at random.

Each axis is a batch, a row, a column or a step. Peers are the ``einsum`` of torch, of numpy and of
JAX, each with the order of pairs that takes the fewest operations. All of them deliver the result
in the order that was asked for: those of numpy and torch may return a view of another order, which
is copied then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import contraction, peers
from benchmarks.contraction import Array, Call, Problem
from benchmarks.measure import Row, Settings
from benchmarks.speeds import LOST, Target

_SEEDS = (1, 20261126)  # tuned on; held out
_COUNT = 30  # of each seed and number of factors
_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 100,
          128, 200, 256, 300, 512, 768, 1000)  # fmt: skip
_FLOP = 1e5, 1.5e9
_ELEMENTS = 8e6  # of all tensors together
_STEPS = 1e10  # of the loops over all axes, at most: what is summed first decides

TARGETS = (
    Target("einsum, two factors", 1.15, lambda row: row.what == "einsum/two", LOST),
    Target("einsum, three factors", 1.15, lambda row: row.what == "einsum/three", LOST),
    Target("einsum, two of bfloat16", 1.1, lambda row: row.what == "einsum/bfloat16", LOST),
)


def rows(settings: Settings) -> Iterator[Row]:
    """Each contraction on as many threads as the settings say."""
    return contraction.rows(_problems(), settings)


def _problems() -> Iterator[Problem]:
    for held_out, seed in enumerate(_SEEDS):
        rng = random.Random(seed)
        for _ in range(_COUNT):
            yield _problem("einsum/two", *_of_two(rng), held_out=bool(held_out))
        for _ in range(_COUNT):
            yield _problem("einsum/three", *_of_three(rng), held_out=bool(held_out))
        for _ in range(_COUNT if peers.peer("torch") is not None else 0):
            yield _problem("einsum/bfloat16", *_of_two(rng), "bfloat16", held_out=bool(held_out))


def _of_two(rng: random.Random) -> tuple[str, Mapping[str, int]]:
    """A contraction of two factors, with up to two axes of each kind."""
    while True:
        letters = iter("abcdefgh")
        batch, rows, columns, steps = (
            [next(letters) for _ in range(rng.choice(counts))]
            for counts in ((0, 0, 1, 1, 2), (0, 1, 1, 2, 2), (0, 1, 1, 2, 2), (0, 1, 1, 1, 2))
        )
        tensors = [batch + rows + steps, batch + columns + steps, batch + rows + columns]
        for axes in tensors:
            rng.shuffle(axes)
        extents = {axis: rng.choice(_SIZES) for axis in batch + rows + columns + steps}
        x, y, z = map("".join, tensors)
        if all(tensors) and _fits([x, y], z, extents, 2 * math.prod(extents.values())):
            return f"{x},{y}->{z}", extents


def _of_three(rng: random.Random) -> tuple[str, Mapping[str, int]]:
    """A contraction of three factors, each with up to three of all axes."""
    while True:
        letters = "abcdef"[: rng.randint(3, 6)]
        extents = {axis: rng.choice(_SIZES[:-7]) for axis in letters}
        read = ["".join(rng.sample(letters, rng.randint(1, 3))) for _ in range(3)]
        z = "".join(rng.sample(letters, rng.randint(1, min(3, len(letters) - 1))))
        text = f"{','.join(read)}->{z}"
        if {*"".join(read)} == {*letters} and _fits(read, z, extents, _flop(text, extents)):
            return text, extents


def _fits(read: Sequence[str], z: str, extents: Mapping[str, int], flop: float) -> bool:
    sizes = [math.prod(extents[axis] for axis in axes) for axes in (*read, z)]
    is_worth = _FLOP[0] < flop < _FLOP[1] and math.prod(extents.values()) < _STEPS
    return is_worth and sum(sizes) < _ELEMENTS


def _flop(text: str, extents: Mapping[str, int]) -> int:
    """The operations of the best order of pairs, as numpy counts them."""
    _, said = np.einsum_path(text, *_empty(text, extents), optimize="optimal")
    line = next(each for each in said.splitlines() if "Optimized FLOP" in each)
    return round(float(line.split(":")[1]))


def _empty(text: str, extents: Mapping[str, int]) -> list[Array]:
    """Arrays of the factors' shapes, without memory of their own."""
    read = text.split("->")[0].split(",")
    return [np.broadcast_to(np.float32(0), [extents[a] for a in axes]) for axes in read]


def _problem(
    family: str, text: str, extents: Mapping[str, int], dtype: str = "float32", *, held_out: bool
) -> Problem:
    """Of bfloat16, sums of float32, rounded at the end."""
    inputs, z = text.split("->")
    read = inputs.split(",")
    shapes = [[extents[axis] for axis in axes] for axes in (*read, z)]
    summed = [axis for axis in dict.fromkeys("".join(read)) if axis not in z]

    def program(te: Any) -> list[Any]:
        factors = [te.placeholder(s, dtype, name=n) for s, n in zip(shapes, "XYZ", strict=False)]
        factors = factors[: len(read)]
        steps = {axis: te.reduce_axis((0, extents[axis]), name=axis) for axis in summed}

        def element(*axes: Any) -> Any:
            at = {**dict(zip(z, axes, strict=True)), **steps}
            term, *others = (
                f(*(at[a] for a in axes)).astype("float32")
                for f, axes in zip(factors, read, strict=True)
            )
            for each in others:
                term = term * each
            return te.sum(term, axis=[*steps.values()]) if steps else term

        R = te.compute(shapes[-1], element, name="R")
        if dtype == "float32":
            return [*factors, R]
        return [*factors, te.compute(shapes[-1], lambda *axes: R(*axes).astype(dtype), name="S")]

    def arrays() -> list[Any]:
        made = [contraction.filled(shape, "float32", i) for i, shape in enumerate(shapes[:-1])]
        made = [*made, contraction.aligned(shapes[-1], "float32")]
        if dtype == "float32":
            return made
        torch = peers.peer("torch")
        return [torch.from_numpy(each).to(torch.bfloat16) for each in made]

    def exact(*doubles: Array) -> tuple[Array, Array]:
        einsum = partial(np.einsum, text, optimize="optimal")
        return einsum(*doubles), einsum(*map(np.abs, doubles))

    return Problem(
        family,
        f"{text} {' '.join(str(extents[axis]) for axis in sorted(extents))}",
        _flop(text, extents),
        program,
        arrays,
        exact,
        2 + math.prod(extents[axis] for axis in summed),
        partial(_libraries, text, dtype),
        rounding=2.0**-8 * 1.01 if dtype == "bfloat16" else 0.0,
        held_out=held_out,
    )


def _libraries(text: str, dtype: str, inputs: Sequence[Any]) -> dict[str, Call]:
    found: dict[str, Call] = {}
    if dtype == "float32":  # numpy has no bfloat16
        path, _ = np.einsum_path(text, *inputs, optimize="optimal")
        einsum = partial(np.einsum, text, *inputs, optimize=path)
        found["numpy"] = lambda: np.ascontiguousarray(einsum())
    if (torch := peers.peer("torch")) is not None:
        tensors = contraction.tensors(inputs)
        found["torch"] = lambda: torch.einsum(text, *tensors).contiguous()
    if (jax := peers.peer("jax")) is not None:
        jitted = jax.jit(partial(jax.numpy.einsum, text, optimize="optimal"))
        wide = [each if dtype == "float32" else each.float().numpy() for each in inputs]
        given = [jax.numpy.asarray(each, dtype) for each in wide]
        found["jax"] = lambda: jitted(*given).block_until_ready()
    return found
