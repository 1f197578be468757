"""Sizes that no memory holds are errors, after which all is as before."""

from __future__ import annotations

import resource
from functools import cache
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.errors import CompileError
from tests.forks import assert_in_child
from tests.memory.mapped import mapped, needs_statm

DTYPES = [
    ("float32", "float32", "float32"),
    ("float16", "float16", "float32"),
    ("uint8", "int8", "int32"),
]


def product(size: tuple[Any, Any, Any], dtypes: tuple[str, ...] = DTYPES[0]) -> Any:
    m, n, k = size
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


@cache
def layers(dtypes: tuple[str, ...]) -> Any:
    """Two products: of (4, 4) and (4, n), and of that and (n, 4)."""
    n = te.var("n", "int64")
    A, B = te.placeholder((4, 4), dtypes[0], name="A"), te.placeholder((4, n), dtypes[1], name="B")
    W = te.placeholder((n, 4), dtypes[2], name="W")
    k, r = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, n), name="r")
    H = te.compute(
        (4, n),
        lambda i, j: te.sum(A[i, k].astype(dtypes[2]) * B[k, j].astype(dtypes[2]), axis=k),
        name="H",
    )
    D = te.compute((4, 4), lambda i, j: te.sum(H[i, r] * W[r, j], axis=r), name="D")
    return tvm.build(D, [A, B, W, D], name="layers")


def works(f: Any, hidden: int, dtypes: tuple[str, ...]) -> bool:
    out = np.zeros((4, 4), dtypes[2])
    shapes = zip(((4, 4), (4, hidden), (hidden, 4)), dtypes, strict=True)
    f(*(np.ones(shape, dtype) for shape, dtype in shapes), out)
    return bool((out == 4 * hidden).all())


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("bits", [37, 58])
def test_arrays_that_claim_to_be_large(dtypes: tuple[str, str, str], bits: int) -> None:
    """What is between would have more bytes than there are, or indices that 62 bits don't hold."""
    f, hidden = layers(dtypes), 1 << bits
    out = np.full((4, 4), 7, dtypes[2])
    arrays = (claimed((4, hidden), dtypes[1]), claimed((hidden, 4), dtypes[2]))
    with pytest.raises(
        (MemoryError, ValueError),
        match=r": expected \d+ bytes of memory, found no block that l|indices stay below 2\*\*62",
    ):
        f(claimed((4, 4), dtypes[0]), *arrays, out)
    assert (out == 7).all()
    assert works(f, 100, dtypes)


def test_sizes_of_32_bits_are_not_cut_off() -> None:
    f = product(sizes("int32"))
    out = np.zeros((4, 4), "float32")
    with pytest.raises(ValueError, match=r"expected shape\[1\] from 0 to the largest int32, got"):
        f(claimed((4, 1 << 40), "float32"), claimed((1 << 40, 4), "float32"), out)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1 << 40, 64, 64), (64, 1 << 40, 64), (64, 64, 1 << 40), (1 << 40,) * 3, (1 << 62, 4, 4)],
)
def test_constant_sizes_can_be_built(m: int, n: int, k: int, dtypes: tuple[str, str, str]) -> None:
    """And called, if there is an array of that size."""
    f = product((m, n, k), dtypes)
    with pytest.raises(ValueError, match=rf"argument 0 'A': expected shape\[0\] == {m}, got 3"):
        f(np.zeros((3, 3), dtypes[0]), np.zeros((3, 3), dtypes[1]), np.zeros((3, 3), dtypes[2]))


def test_constants_beyond_64_bits_are_no_sizes() -> None:
    with pytest.raises(
        CompileError, match=r"expected a value from -\d+ to \d+, got 922337203685477"
    ):
        product((1 << 63, 4, 4))


def limit_memory(more: int) -> None:
    """Lets this process have so many bytes more than it has."""
    limit = mapped() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@needs_statm
@pytest.mark.parametrize("dtypes", DTYPES[:2], ids="-".join)
def test_memory_that_is_refused(dtypes: tuple[str, str, str]) -> None:
    """What was allocated until then is given back, and the next call goes well."""
    f = layers(dtypes)
    assert works(f, 100, dtypes)

    def call(hidden: int) -> None:
        arrays = (claimed((4, hidden), dtypes[1]), claimed((hidden, 4), dtypes[2]))
        f(claimed((4, 4), dtypes[0]), *arrays, np.zeros((4, 4), dtypes[2]))

    call(1)  # compiles the variant for strides

    def check() -> bool:
        limit_memory(200 << 20)
        after = []
        for _ in range(20):
            with pytest.raises(MemoryError, match=r": expected \d+ bytes of memory"):
                call(1 << 24)
            after.append(mapped())
        return works(f, 1000, dtypes) and after[-1] < after[0] + (1 << 20)

    assert_in_child(check)


@needs_statm
@pytest.mark.covering(1)
@pytest.mark.parametrize("dtypes", DTYPES[:2], ids="-".join)
@pytest.mark.parametrize("symbolic", [False, True])
def test_no_copy_of_a_large_factor_is_made(dtypes: tuple[str, str, str], symbolic: bool) -> None:
    """Of 64 MiB in float32: what is packed at a time fits the caches."""
    m, n, depth = 60, 4096, 4096
    f = product(sizes("int32") if symbolic else (m, n, depth), dtypes)
    arrays = [np.ones((m, depth), dtypes[0]), np.ones((depth, n), dtypes[1])]
    out = np.zeros((m, n), dtypes[2])

    def check() -> bool:
        limit_memory(24 << 20)
        with tvm.num_threads(1):
            f(*arrays, out)
        return bool((out == depth).all())

    assert_in_child(check)
