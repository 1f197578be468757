"""Elements that data choose from small tables: by permutations of registers, on each target."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from minitvm import build, te
from minitvm.runtime.dtype import DType
from minitvm.target import Target
from tests.codegen.kernels import numpy_dtype
from tests.codegen.test_dtypes import TARGETS

COUNTS = (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 128, 255, 256)
DTYPES = ("bool", "int8", "uint8", "int16", "float16", "bfloat16", "int32", "float32", "float64")


def lookups(count: int, dtype: str, lanes: int, index: str = "uint8") -> tuple[list[Any], Any]:
    """The tensors of ``Y[i, j] = T[I[i, j]]``, in vectors of some lanes; and the schedule."""
    table = te.placeholder((count,), dtype, name="T")
    places = te.placeholder((23, lanes), index, name="I")
    found = te.compute(places.shape, lambda *at: table[places[at].astype("int32")], name="Y")
    s = te.create_schedule(found.op)
    s[found].vectorize(found.op.axis[1])
    return [table, places, found], s


def entries(count: int, dtype: str) -> Any:
    drawn = np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 100, count)
    return drawn.astype(numpy_dtype(DType.of(dtype)))


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_elements_of_tables(count: int, dtype: str, target: str) -> None:
    table = entries(count, dtype)
    for lanes in (3, 16, 96):
        tensors, s = lookups(count, dtype, lanes)
        kernel: Any = build(s, tensors, target)
        drawn = np.random.default_rng(lanes).integers(0, count, (23, lanes)).astype("uint8")
        found = np.zeros((23, lanes), table.dtype)
        kernel(table, drawn, found)
        np.testing.assert_array_equal(found, table[drawn])


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "float16"])
@pytest.mark.parametrize("count", [1000, 1002, 1003, 65536])
def test_narrow_elements_of_large_tables(count: int, dtype: str) -> None:
    table = entries(count, dtype)
    for lanes in (5, 32, 64):
        tensors, s = lookups(count, dtype, lanes, "uint16")
        drawn = np.random.default_rng(lanes).integers(0, count, (23, lanes)).astype("uint16")
        drawn[0, 0], drawn[-1, -1] = 0, count - 1
        found = np.zeros((23, lanes), table.dtype)
        build(s, tensors)(table, drawn, found)
        np.testing.assert_array_equal(found, table[drawn])


@pytest.mark.parametrize(("count", "word"), [(1000, "i32"), (1002, "i8")])
def test_words_are_gathered_where_a_table_consists_of_them(count: int, word: str) -> None:
    tensors, s = lookups(count, "uint8", 64, "uint16")
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
    text = build(s, tensors, target).get_source("ll")
    assert re.search(rf"call <64 x {word}> @llvm.masked.gather", text)


def test_narrow_elements_under_conditions() -> None:
    table, places = te.placeholder((1000,), "int8", name="T"), te.placeholder((90,), "int32")
    zero = te.const(0, "int8")
    chosen = te.compute(
        (90,),
        lambda i: te.if_then_else(
            te.all(places[i] >= 0, places[i] < 1000), table[te.max(te.min(places[i], 999), 0)], zero
        ),
    )
    t = entries(1000, "int8")
    drawn = np.random.default_rng(1).integers(-500, 1500, 90).astype("int32")
    found = np.ones(90, "int8")
    build([chosen], [table, places, chosen])(t, drawn, found)
    is_within = (drawn >= 0) & (drawn < 1000)
    np.testing.assert_array_equal(found, np.where(is_within, t[np.clip(drawn, 0, 999)], 0))


def test_short_rows() -> None:
    """Each row is a table; one whose existence depends on the lane isn't read as a whole."""
    rows = te.placeholder((50, 40), "int16", name="X")
    order = te.placeholder((40,), "int32", name="Z")
    moved = te.compute(rows.shape, lambda i, j: rows[i, order[j]], name="Y")
    zero = te.const(0, "int16")
    shifted = te.compute(
        rows.shape, lambda i, j: te.if_then_else(j < i, rows[i - 1, order[j]], zero), name="S"
    )
    kernel: Any = build(te.create_schedule([moved.op, shifted.op]), [rows, order, moved, shifted])
    drawn = np.random.default_rng(0)
    x, z = drawn.integers(-99, 99, (50, 40)).astype("int16"), drawn.permutation(40).astype("int32")
    y, s = (np.zeros((50, 40), "int16") for _ in range(2))
    kernel(x, z, y, s)
    np.testing.assert_array_equal(y, x[:, z])
    i, j = np.indices(y.shape)
    np.testing.assert_array_equal(s, np.where(j < i, np.roll(x, 1, 0)[:, z], 0))


@pytest.mark.parametrize(
    "cpu, dtype, count, name, times",
    [
        ("icelake-server", "uint8", 64, "avx512.permvar.qi.512", 1),
        ("icelake-server", "uint8", 256, "avx512.permvar.qi.512", 4),
        ("skylake-avx512", "uint8", 64, "avx512.pshuf.b.512", 4),
        ("skylake-avx512", "float16", 40, "avx512.permvar.hi.512", 4),
        ("skylake-avx512", "float32", 16, "avx512.permvar.si.512", 4),
        ("haswell", "int8", 16, "avx2.pshuf.b", 2),
        ("haswell", "float32", 16, "avx2.permd", 16),
        ("haswell", "float32", 33, "avx2.permd", 0),  # a gather takes less
        ("haswell", "uint8", 256, "avx2.pshuf.b", 0),
        ("nehalem", "uint8", 16, "ssse3.pshuf.b.128", 4),
        ("x86-64", "uint8", 16, "pshuf", 0),
    ],
)
def test_instructions(cpu: str, dtype: str, count: int, name: str, times: int) -> None:
    tensors, s = lookups(count, dtype, 64)
    target = Target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}")
    text = build(s, tensors, target).get_source("ll")
    assert len(re.findall(rf"call <.*@llvm\.x86\.{name}\(", text)) == times
    assert ("masked.gather" in text) == (times == 0)
