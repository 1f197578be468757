"""Whole graphs drawn at random, elementwise stages, reductions, broadcasts, moved elements, against
numpy; and what is decided for some of their kinds."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from benchmarks.drawn_graphs import DISCRETE, draw, function, program
from minitvm import te
from tests.whole_programs.running import strategies_that_failed

TARGETS = ("llvm", "llvm -mcpu=haswell -num-cores=2", "llvm -mcpu=haswell -l2-cache-bytes=16384")
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 20, 33, 40, 65, 100, 300)
ERROR = 1e-3  # of a result, and of the mean magnitude; with bfloat16, which isn't rounded to:
COARSE = 2e-2
FEW = 0.02  # of the elements, where rounding before a jump decides


def check(seed: int, target: str) -> None:
    """Draws a graph, computes it, and compares all outputs."""
    graph = draw(Random(seed), EXTENTS, 50, 20_000, ("float16", "uint8"))
    rng = np.random.default_rng(seed)
    inputs: list[Any] = []
    for node in (graph.nodes[i] for i in graph.inputs):
        if node.dtype in ("int64", "uint8"):
            most = node.more[0] if node.more else 256
            inputs.append(rng.integers(0, most, node.shape).astype(node.dtype))
        else:
            inputs.append((rng.random(node.shape) * 2 - 1).astype(node.dtype))
    nodes = [graph.nodes[i] for i in graph.outputs]
    outputs = [np.full(node.shape, 77, node.dtype) for node in nodes]
    arguments = program(graph, te)
    with strategies_that_failed() as failed:
        f = tvm.build(arguments[len(inputs) :], arguments, target, name="f")
    assert not failed, f"{graph}\n{failed}"
    f(*inputs, *outputs)
    wide = [each.astype("float64") if each.dtype.kind == "f" else each for each in inputs]
    error = COARSE if any(node.op == "bfloat16" for node in graph.nodes) else ERROR
    few = FEW if any(node.op in DISCRETE for node in graph.nodes) else 0
    few *= 1 if error == ERROR else 2
    for output, expected in zip(outputs, function(graph, np, "float64")(*wide), strict=True):
        allowed = error * (np.abs(expected) + np.abs(expected).mean())
        off = np.count_nonzero(~(np.abs(output.astype("float64") - expected) <= allowed))
        assert off <= max(few * output.size, 2 * (few > 0)), f"{off} of {output.size} in\n{graph}"


@pytest.mark.parametrize("seed", range(12))
def test_drawn_graphs(seed: int) -> None:
    check(seed, TARGETS[seed % len(TARGETS)])


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(12, 224))
def test_more_drawn_graphs(seed: int, target: str) -> None:
    check(seed, target)


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("kind", ["joined", "rows", "product"])
def test_an_output_in_another_shape_shares_its_memory(kind: str, is_symbolic: bool) -> None:
    """What is only copied into it, in order, is computed there; not if callers get both."""
    m, n = 37, 24
    rows = te.var("m") if is_symbolic else m
    A, B = te.placeholder((rows, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    T = {
        "joined": te.compute(
            (rows + n, n),
            lambda i, j: te.if_then_else(i < rows, A[i, j] * A[i, j], B[i - rows, j]),
            name="T",
        ),
        "rows": te.compute((rows, n), lambda i, j: te.exp(A[i, n - 1 - j]), name="T"),
        "product": te.compute((rows, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="T"),
    }[kind]
    F = te.compute((T.shape[0] * n,), lambda i: T[i // n, i % n], name="F")
    assert "s[F].compute_view()" in tvm.auto_schedule(F).trace()
    a, b = (np.random.default_rng(0).random(shape, "float32") for shape in ((m, n), (n, n)))
    expected = {
        "joined": np.concatenate([a * a, b]),
        "rows": np.exp(a[:, ::-1]),
        "product": a @ b,
    }[kind]
    both, alone = (tvm.build(outputs, [A, B, *outputs]) for outputs in ([T, F], [F]))
    wide = np.full(2 * expected.size, 7, "float32")
    for flat in (np.empty(expected.size, "float32"), wide[::2]):
        alone(a, b, flat)
        np.testing.assert_allclose(flat, expected.ravel(), rtol=1e-5)
        square = np.empty(expected.shape, "float32")
        both(a, b, square, flat)
        np.testing.assert_array_equal(flat, square.ravel())
        np.testing.assert_allclose(square, expected, rtol=1e-5)
    assert (wide[1::2] == 7).all()
