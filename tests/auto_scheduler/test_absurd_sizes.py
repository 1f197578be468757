"""Sizes that no memory holds are errors, after which all is as before."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.errors import CompileError
from tests.forks import in_child

DTYPES = [
    ("float32", "float32", "float32"),
    ("float16", "float16", "float32"),
    ("uint8", "int8", "int32"),
]


def product(m: Any, n: Any, k: Any, dtypes: tuple[str, ...] = DTYPES[0]) -> Any:
    A, B = te.placeholder((m, k), dtypes[0], name="A"), te.placeholder((k, n), dtypes[1], name="B")
    r = te.reduce_axis((0, k), name="k")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(A[i, r].astype(dtypes[2]) * B[r, j].astype(dtypes[2]), axis=r),
        name="C",
    )
    return tvm.build(C, [A, B, C], name="product")


def sizes(dtype: str) -> tuple[Any, Any, Any]:
    return te.var("m", dtype), te.var("n", dtype), te.var("k", dtype)


def claimed(shape: tuple[int, ...], dtype: str) -> Any:
    """An array of one element, that says it is large."""
    return np.broadcast_to(np.ones((), dtype), shape)


def works(f: Any, depth: int, dtypes: tuple[str, str, str] = DTYPES[0]) -> bool:
    out = np.zeros((4, 4), dtypes[2])
    f(np.ones((4, depth), dtypes[0]), np.ones((depth, 4), dtypes[1]), out)
    return bool((out == depth).all())


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("bits", [37, 45, 54, 57, 60])
def test_arrays_that_claim_to_be_large(dtypes: tuple[str, str, str], bits: int) -> None:
    """What they are packed into would have more bytes than there are, or than 63 bits count."""
    f = product(*sizes("int64"), dtypes)
    bits = min(bits, 61 - np.dtype(dtypes[1]).itemsize.bit_length())  # as large as numpy lets it be
    out = np.full((4, 4), 7, dtypes[2])
    with pytest.raises(
        MemoryError, match=r"expected \d+ bytes of memory, found no block that larg"
    ):
        f(claimed((4, 1 << bits), dtypes[0]), claimed((1 << bits, 4), dtypes[1]), out)
    assert (out == 7).all()
    assert works(f, 100, dtypes)


def test_sizes_of_32_bits_are_not_cut_off() -> None:
    f = product(*sizes("int32"))
    out = np.zeros((4, 4), "float32")
    with pytest.raises(ValueError, match=r"expected shape\[1\] from 0 to the largest int32, got"):
        f(claimed((4, 1 << 40), "float32"), claimed((1 << 40, 4), "float32"), out)


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1 << 40, 64, 64), (64, 1 << 40, 64), (64, 64, 1 << 40), (1 << 40,) * 3, (1 << 62, 4, 4)],
)
def test_constant_sizes_can_be_built(m: int, n: int, k: int, dtypes: tuple[str, str, str]) -> None:
    """And called, if there is an array of that size."""
    f = product(m, n, k, dtypes)
    with pytest.raises(ValueError, match=rf"argument 0 'A': expected shape\[0\] == {m}, got 3"):
        f(np.zeros((3, 3), dtypes[0]), np.zeros((3, 3), dtypes[1]), np.zeros((3, 3), dtypes[2]))


def test_constants_beyond_64_bits_are_no_sizes() -> None:
    with pytest.raises(
        CompileError, match=r"expected a value from -\d+ to \d+, got 922337203685477"
    ):
        product(1 << 63, 4, 4)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("dtypes", DTYPES[:2], ids="-".join)
def test_memory_that_is_refused(dtypes: tuple[str, str, str]) -> None:
    """What was allocated until then is given back, and the next call goes well."""
    f = product(*sizes("int64"), dtypes)
    assert works(f, 100, dtypes)

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def check() -> bool:
        before, depth = mapped(), 1 << 21
        arrays = [np.ones((4, depth), dtypes[0]), np.ones((depth, 4), dtypes[1])]
        limit = mapped() + (100 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for _ in range(3):
            with pytest.raises(MemoryError, match=r"B.global: expected \d+ bytes of memory"):
                f(*arrays, np.zeros((4, 4), dtypes[2]))
        del arrays
        return works(f, 1000, dtypes) and mapped() < before + (100 << 20)

    in_child(check)
