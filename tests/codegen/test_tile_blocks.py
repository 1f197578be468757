"""Products by AMX in one function whose tiles have many shapes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from tests.processes import run_python

AMX = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids"


def two_products(m: int, n: int, k: int, rows: int) -> list[te.Tensor]:
    """``A @ B`` of m by k by n, and rows by its own rows: `rows` by n by m."""
    A, B, W = (
        te.placeholder(shape, "int8", name)
        for shape, name in (((m, k), "A"), ((k, n), "B"), ((rows, n), "W"))
    )
    r, q = te.reduce_axis((0, k), name="r"), te.reduce_axis((0, n), name="q")

    def first(i: Any, j: Any) -> Any:
        return te.sum(A[i, r].astype("int32") * B[r, j].astype("int32"), axis=r)

    C = te.compute((m, n), first, name="C")
    S = te.compute((m, n), lambda i, j: (C[i, j] >> 9).astype("int8"), name="S")

    def second(i: Any, j: Any) -> Any:
        return te.sum(W[i, q].astype("int32") * S[j, q].astype("int32"), axis=q)

    return [A, B, W, te.compute((rows, m), second, name="E")]


def functions_of(tensors: list[te.Tensor]) -> int:
    """The number of functions whose statements are one block."""
    text = tvm.build(tensors[-1], tensors, AMX).get_source("ll")
    return len(re.findall(r"^define internal .*@nest\.", text, re.MULTILINE))


def test_blocks_of_few_shapes_stay_where_they_are() -> None:
    """Their tiles take the same registers."""
    assert functions_of(two_products(64, 64, 64, 64)) == 0


def test_blocks_of_many_shapes_are_functions() -> None:
    """Tiles of 33 rows fill the registers of a function: those of 20 rows have their own."""
    assert functions_of(two_products(33, 48, 70, 20)) == 2


@pytest.mark.parametrize("sizes", [(31, 53, 47, 9), (33, 48, 70, 20), (25, 40, 64, 13)])
def test_two_products_of_any_shapes(sizes: tuple[int, int, int, int]) -> None:
    """In a process of its own, since LLVM ends it where the registers don't suffice."""
    code = f"import tests.codegen.test_tile_blocks as here; here.check_two_products(*{sizes})"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def check_two_products(m: int, n: int, k: int, rows: int) -> None:
    tensors = two_products(m, n, k, rows)
    assert "tdpbssd" in tvm.build(tensors[-1], tensors, AMX).get_source("asm")
    f = tvm.build(tensors[-1], tensors)
    random = np.random.default_rng(0)
    a, b, w = (
        random.integers(-128, 128, shape).astype("int8") for shape in ((m, k), (k, n), (rows, n))
    )
    found = np.full((rows, m), 77, "int32")
    f(a, b, w, found)
    s = ((a.astype("int32") @ b.astype("int32")) >> 9).astype("int8").astype("int32")
    np.testing.assert_array_equal(found, w.astype("int32") @ s.T)
