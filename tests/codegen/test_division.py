"""Divisions of vectors of integers, by divisors that aren't known or of 64 bits: exact, and without
a scalar division."""

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


WIDE_DIVISORS = (3, 5, 6, 7, 10, 641, 65537, 2**31 - 1, 2**32 - 1, 2**32 + 1, 2**62 + 1, 2**63 - 1)


def wide_numbers(dtype: str, divisor: int) -> list[int]:
    """Neighbours of powers of two and of multiples of a divisor; numbers of any size."""
    info = np.iinfo(dtype)
    centres = [0, *(1 << n for n in range(64)), *(divisor * (3**n) for n in range(40))]
    near = [sign * (each + by) for each in centres for by in (-1, 0, 1) for sign in (-1, 1)]
    some = np.random.default_rng(0).integers(info.min, info.max, 999, dtype, endpoint=True)
    return [each for each in near if info.min <= each <= info.max] + [*map(int, some)]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("divisor", [*WIDE_DIVISORS, 2**63 + 1, 2**64 - 59, -3])
def test_vectors_of_64_bits_by_a_number(divisor: int, dtype: str) -> None:
    if not np.iinfo(dtype).min <= divisor <= np.iinfo(dtype).max:
        return
    numbers, number = wide_numbers(dtype, divisor), te.const(divisor, dtype)
    a = np.array(numbers, dtype)
    X = te.placeholder(a.shape, dtype, name="X")

    def by(divide: Callable[..., Any]) -> Any:
        return te.compute(a.shape, lambda i: divide(X[i], number))

    results = [by(divide) for divide, _ in DIVISIONS.values()]
    found = [np.empty_like(a) for _ in results]
    minitvm.build(results, [X, *results])(a, *found)
    for (name, (_, meaning)), each in zip(DIVISIONS.items(), found, strict=True):
        wanted = [meaning(x, divisor) for x in numbers]
        np.testing.assert_array_equal(each, np.array(wanted, dtype), err_msg=name)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_vectors_of_64_bits_are_multiplied(dtype: str) -> None:
    X = te.placeholder((100,), dtype, name="X")
    Y = te.compute((100,), lambda i: te.truncmod(X[i], te.const(1000, dtype)), name="Y")
    text = minitvm.build([Y], [X, Y], "llvm -mcpu=x86-64-v3").get_source("ll")
    assert "mul <4 x i64>" in text
    assert "rem <4 x i64>" not in text
