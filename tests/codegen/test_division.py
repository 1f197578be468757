"""Divisions of vectors of integers by divisors that aren't known: exact, and without a scalar
division."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import te

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
DIVISIONS: dict[str, tuple[Callable[..., Any], Callable[[int, int], int]]] = {
    "floordiv": (te.floordiv, lambda a, b: a // b),
    "floormod": (te.floormod, lambda a, b: a % b),
    "truncdiv": (te.truncdiv, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "truncmod": (te.truncmod, lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1)),
}


def program(divide: Callable[..., Any], dtype: str) -> list[Any]:
    n = te.var("n")
    a, b = te.placeholder((n,), dtype, name="a"), te.placeholder((n,), dtype, name="b")
    return [a, b, te.compute((n,), lambda i: divide(a[i], b[i]), name="c")]


def operands(dtype: str) -> tuple[Any, Any]:
    """All pairs of extreme numbers; numbers of any size; and multiples, with their neighbours."""
    info, random = np.iinfo(dtype), np.random.default_rng(0)
    edges = [info.min, info.min + 1, 0, 1, 2, 3, 7, info.max // 2, info.max - 1, info.max]
    a, b = (each.ravel() for each in np.meshgrid(*[np.array(edges, dtype)] * 2))
    some = random.integers(info.min, info.max, (2, 1000), dtype, endpoint=True)
    root = int(info.max**0.5)
    factors = random.integers(1, root, (2, 1000)).astype(dtype)
    whole = factors[0] * factors[1]
    return (
        np.concatenate([a, some[0], whole, whole - 1]),
        np.concatenate([b, some[1], factors[0], factors[0]]),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DIVISIONS)
def test_quotients_and_remainders_are_exact(name: str, dtype: str) -> None:
    divide, meaning = DIVISIONS[name]
    tensors = program(divide, dtype)
    a, b = operands(dtype)
    found = np.empty_like(a)
    minitvm.build(tensors[-1:], tensors, name="f")(a, b, found)
    wanted = [meaning(x, y) if y else 0 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, "int64").astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_divided_as_floats(dtype: str) -> None:
    tensors = program(te.floordiv, dtype)
    f = minitvm.build(tensors[-1:], tensors, "llvm -mcpu=x86-64-v3", name="f")
    floats = "float" if dtype.endswith(("8", "16")) else "double"
    text = f.get_source("ll")
    assert f"fdiv <{256 // np.dtype(dtype).itemsize // 8} x {floats}>" in text
