"""Functions by polynomials: in vectors without calls, and the same bits whatever the schedule.

How exact they are is in test_intrinsics.py.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from minitvm import build, te
from minitvm.runtime.host import host
from minitvm.runtime.module import Module
from tests.codegen.kernels import Array

FUNCTIONS = ("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf",
             "sin", "cos", "power")  # fmt: skip
EXTENT = 1024
HAS_FMA = {"fma", "neon"} & host().features
TARGETS = ["llvm", *(["llvm -mcpu=haswell"] if host().triple.startswith("x86_64") else [])]

pytestmark = pytest.mark.skipif(not HAS_FMA, reason="needs fused multiply-add")


def kernel(name: str, dtype: str, lanes: int, target: str = "llvm", fp: str = "fast") -> Module:
    """A function of each element, `lanes` of them at a time."""
    x = te.placeholder((EXTENT,), dtype, name="x")
    function = getattr(te, name)
    if name == "power":
        y = te.compute((EXTENT,), lambda i: function(x[i], x[EXTENT - 1 - i]), name="y")
    else:
        y = te.compute((EXTENT,), lambda i: function(x[i]), name="y")
    s = te.create_schedule(y.op)
    if lanes > 1:
        _, inner = s[y].split(y.op.axis[0], factor=lanes)
        s[y].vectorize(inner)
    return build(s, [x, y], target, fp=fp, auto_schedule=False)


def arguments(dtype: str) -> Array:
    generator = np.random.default_rng(0)
    made = generator.uniform(-20, 20, EXTENT)
    made[:512] = generator.uniform(0, 3, 512)
    made[-8:] = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e30, -1e10)
    return made.astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_schedule_does_not_change_results(name: str, dtype: str, target: str) -> None:
    with np.errstate(over="ignore"):
        x = arguments(dtype)
    results = []
    for lanes in (1, 4, 16):
        y = np.empty_like(x)
        kernel(name, dtype, lanes, target)(x, y)
        results.append(y.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("sin", "cos")])
def test_nothing_is_called(name: str, lanes: int) -> None:
    assembly = kernel(name, "float32", lanes).get_source("asm")
    symbol = {"exp10": "pow", "power": "pow"}.get(name, name)
    assert not re.search(rf"\b{symbol}f?\b", assembly)


def test_a_plain_loop_runs_in_vectors() -> None:
    text = kernel("exp", "float32", 1).get_source("ll")
    assert re.search(r"<\d+ x float> @llvm\.fma", text)


def test_strict_asks_the_c_library() -> None:
    assert "@expf(" in kernel("exp", "float32", 1, fp="strict").get_source("ll")


@pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="of x86-64")
def test_without_fused_multiply_add_the_c_library_is_asked() -> None:
    assert "@expf(" in kernel("exp", "float32", 4, "llvm -mcpu=x86-64").get_source("ll")


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_arguments_are_reduced_by_the_c_library(name: str, dtype: str) -> None:
    x = np.linspace(-1e8, 1e12, EXTENT).astype(dtype)
    x[::3] = np.linspace(-10, 10, len(x[::3]))
    x[256:512] = np.geomspace(1, 1e12, 256)  # on both sides of where the library is asked
    y = np.empty_like(x)
    kernel(name, dtype, 16)(x, y)
    expected = getattr(np, name)(x.astype("float64"))
    # Of |y| <= 1 an ULP is half of the machine epsilon or less.
    np.testing.assert_allclose(y, expected, rtol=0, atol=float(np.finfo(dtype).eps))
