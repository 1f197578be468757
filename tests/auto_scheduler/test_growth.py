"""Programs of many stages, outputs and arguments: the work of scheduling and lowering them grows
with their size, and no chain of stages is too long."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler import auto_schedule
from minitvm.auto_scheduler.inlining import MOST_LEVELS
from minitvm.te.tensor import Tensor

Tensors: TypeAlias = Sequence[Tensor]


def _sum(value: Callable[[Any], Any]) -> Any:
    k = te.reduce_axis((0, 8))
    return te.sum(value(k), axis=k)


def _chain(number: int) -> tuple[Tensors, Tensors]:
    """Elementwise stages, each of which reads the one before."""
    x = v = te.placeholder((8,), name="x")
    for n in range(number):
        v = te.compute((8,), lambda i, v=v, n=n: v[i] * 0.5 + float(n % 7), name=f"s{n}")
    return [v], [x, v]


def _products(number: int) -> tuple[Tensors, Tensors]:
    x, w = te.placeholder((8, 8), name="x"), te.placeholder((8, 8), name="w")
    v = x
    for _ in range(number):
        v = te.compute((8, 8), lambda i, j, v=v: _sum(lambda k: v[i, k] * w[k, j]))
    return [v], [x, w, v]


def _norms(number: int) -> tuple[Tensors, Tensors]:
    """Rows that are divided by their sums, again and again."""
    x = v = te.placeholder((8, 8), name="x")
    for _ in range(number):
        s = te.compute((8,), lambda i, v=v: _sum(lambda k: v[i, k]))
        v = te.compute((8, 8), lambda i, j, v=v, s=s: v[i, j] / s[i])
    return [v], [x, v]


def _outputs(number: int) -> tuple[Tensors, Tensors]:
    x = te.placeholder((8, 8), name="x")
    made = [te.compute((8, 8), lambda i, j, n=n: x[i, j] + float(n)) for n in range(number)]
    return made, [x, *made]


def _arguments(number: int) -> tuple[Tensors, Tensors]:
    given = [te.placeholder((8,), name=f"x{n}") for n in range(number)]
    y = te.compute((8,), lambda i: reduce(lambda a, b: a + b, (x[i] for x in given)))
    return [y], [*given, y]


def _calls(program: tuple[Tensors, Tensors]) -> dict[tuple[str, int, str], int]:
    """How often each function is called while a program is scheduled and lowered."""
    outputs, arguments = program
    profile = cProfile.Profile()
    with profile:
        tvm.lower(auto_schedule(outputs, "llvm -mcpu=haswell -num-cores=2"), arguments)
    return {each: found[1] for each, found in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", [_chain, _products, _norms, _outputs, _arguments])
def test_no_function_is_called_as_often_as_there_are_triples(
    program: Callable[[int], tuple[Tensors, Tensors]],
) -> None:
    _calls(program(2))  # fills caches
    few, many = _calls(program(5)), _calls(program(20))
    often = {x: (few[x], n) for x, n in many.items() if x in few and n > max(few[x], 20) * 4**2.3}
    assert not often
    assert sum(many.values()) < sum(few.values()) * 4**1.3


def test_rows_hold_a_number_of_stages() -> None:
    outputs, arguments = _norms(40)
    s = auto_schedule(outputs)
    inside = Counter(each.attach_stage for each in s.stages if each.attach_stage is not None)
    assert len(inside) > 1
    x = np.random.default_rng(0).uniform(0.5, 1, (8, 8)).astype("float32")
    wanted, y = x.astype("d"), np.empty_like(x)
    tvm.build(outputs, arguments)(x, y)
    for _ in range(40):
        wanted = wanted / wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(y, wanted, rtol=1e-4)


def test_a_long_chain_is_computed_in_pieces() -> None:
    number = MOST_LEVELS // 2 + 50
    outputs, arguments = _chain(number)
    s = auto_schedule(outputs)
    kept = [each for each in s.stages if each.op.input_tensors and not each.inlined]
    assert 1 < len(kept) < number // 50
    x = np.linspace(-1, 1, 8, dtype="float32")
    wanted, y = x, np.empty_like(x)
    tvm.build(outputs, arguments)(x, y)
    for n in range(number):
        wanted = wanted * np.float32(0.5) + np.float32(n % 7)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
