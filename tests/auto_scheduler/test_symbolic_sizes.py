"""Contractions whose sizes the call decides: one function for any of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.runtime.dtype import DType
from tests.auto_scheduler.test_contractions import numpy_dtype, with_caches
from tests.whole_programs.running import strategies_that_failed

DTYPES = {
    "float32": ("float32", "float32", "float32"),
    "float64": ("float64", "float64", "float64"),
    "float16": ("float16", "float16", "float32"),
    "bfloat16": ("bfloat16", "bfloat16", "float32"),
    "int8": ("uint8", "int8", "int32"),
    "int32": ("int32", "int32", "int32"),
}
# What is symbolic: of a product of m by k and k by n, with a batch of b.
SUBSCRIPTS = ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "mk,kn->nm", "bmk,bkn->bmn",
              "bmk,kn->bmn", "mk,k->m", "k,kn->n", "m,n->mn", "bm,bm->b"]  # fmt: skip
CONSTANT = {"b": 3, "m": 37, "n": 50, "k": 29, "j": 6}
FEW = [0, 1, 2, 15, 33, 70]


@cache
def built(subscripts: str, dtypes: str, symbolic: str, epilogue: bool, small: bool) -> Any:
    a, b, c = subscripts.replace("->", ",").split(",")
    extent = {x: te.var(x) if x in symbolic else size for x, size in CONSTANT.items()}
    A, B = (
        te.placeholder([extent[x] for x in axes], dtype, name=name)
        for axes, dtype, name in zip((a, b), DTYPES[dtypes], "AB", strict=False)
    )
    sums = {x: te.reduce_axis((0, extent[x]), name=x) for x in sorted({*a, *b} - {*c})}
    dtype = DTYPES[dtypes][2]

    def element(*indices: Any) -> Any:
        at = {**dict(zip(c, indices, strict=True)), **sums}
        x, y = (t(*(at[i] for i in axes)).astype(dtype) for t, axes in ((A, a), (B, b)))
        return te.sum(x * y, axis=list(sums.values())) if sums else x * y

    C = te.compute([extent[x] for x in c], element, name="C")
    D = te.compute(C.shape, lambda *i: C(*i) * 2 + 1, name="D") if epilogue else C
    return tvm.build(D, [A, B, D], with_caches("llvm", small=small), name="f")


def check(
    sizes: dict[str, int], subscripts: str, dtypes: str, epilogue: bool, small: bool, symbolic: str
) -> None:
    f = built(subscripts, dtypes, symbolic, epilogue, small)
    sizes = {x: sizes[x] if x in symbolic else size for x, size in CONSTANT.items()}
    a, b = subscripts.split("->")[0].split(",")
    random = np.random.default_rng(0)
    x, y = (random.integers(0, 4, [sizes[i] for i in axes]) for axes in (a, b))
    wanted = np.einsum(subscripts, x, y) * (2 if epilogue else 1) + (1 if epilogue else 0)
    types = [numpy_dtype(DType.of(dtype)) for dtype in DTYPES[dtypes]]
    got = np.full(wanted.shape, 77, types[2])
    f(x.astype(types[0]), y.astype(types[1]), got)
    np.testing.assert_array_equal(got, wanted)


def few() -> Iterator[dict[str, int]]:
    yield from ({"b": b, "m": m, "n": n, "k": k} for m, n, k, b in zip(*4 * [FEW], strict=True))
    for x, size in product("bmnk", FEW):
        yield CONSTANT | {x: size}


@pytest.mark.parametrize(
    "subscripts",
    [
        pytest.param(each, marks=[] if number % 2 == 0 else pytest.mark.wide)
        for number, each in enumerate(SUBSCRIPTS)
    ],
)
def test_any_sizes(subscripts: str) -> None:
    for sizes in few():
        check(sizes, subscripts, "float32", False, False, "bmnk")


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtypes", ["float16", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize("symbolic", ["m", "mnk"])
def test_any_sizes_of_other_types(dtypes: str, symbolic: str) -> None:
    for sizes in few():
        check(sizes, "mk,kn->mn", dtypes, False, False, symbolic)


@pytest.mark.covering(1)
@pytest.mark.parametrize("symbolic", ["m", "n", "k", "mn"])
@pytest.mark.parametrize("small", [False, True])
def test_any_sizes_of_some(symbolic: str, small: bool) -> None:
    for sizes in few():
        check(sizes, "mk,kn->mn", "float32", True, small, symbolic)


@pytest.mark.covering(1)
@pytest.mark.parametrize("symbolic", ["j", "kj", "mnkj"])
@pytest.mark.parametrize("subscripts", ["mkj,kjn->mn", "mkj,kj->m", "mkbj,kbjn->mn"])
def test_steps_that_lie_in_another_order(subscripts: str, symbolic: str) -> None:
    """Sums over j and k, in this order: blocks of steps are those of a part of the outer axis."""
    for size, steps in ((0, 0), (1, 33), (37, 1), (33, 70)):
        sizes = dict(zip("mnkj", (size, 50, 7, steps), strict=True))
        check(sizes | {"b": 3}, subscripts, "float32", False, False, symbolic)


@pytest.mark.wide
@pytest.mark.parametrize("symbolic", ["m", "n", "k", "mn", "bmnk"])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
def test_all_sizes(subscripts: str, dtypes: str, other: bool, symbolic: str) -> None:
    """Each from 0 to 70, the others as they are or all alike; and some at random. `other`: with an
    epilogue, and small caches."""
    made = [CONSTANT | {x: size} for x in symbolic for size in range(71)]
    made += [dict.fromkeys("bmnk", size) for size in range(71)]
    random = np.random.default_rng(1)
    made += [dict(zip("bmnk", map(int, random.integers(0, 71, 4)), strict=True)) for _ in range(60)]
    for sizes in made:
        check(sizes, subscripts, dtypes, other, other, symbolic)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_sums_of_a_vector_that_fill_a_symbolic_tensor(reducer: str, rank: int) -> None:
    """Fused loops of several symbolic sizes: what each iteration computes has a constant size."""
    n = te.var("n")
    x = te.placeholder((n,), "int32", name="x")
    k = te.reduce_axis((0, 5), "k")
    shape = (n + 2,) * (rank - 1) + (n,)
    reduce = getattr(te, reducer)
    y = te.compute(shape, lambda *i: reduce(x[i[-1]] * (k + 1), axis=k), name="y")
    function = tvm.build(te.create_schedule(y.op), [x, y])
    for size in (0, 1, 3, 33):
        given = np.arange(size, dtype="int32") - 2
        got = np.full((size + 2,) * (rank - 1) + (size,), -77, "int32")
        function(given, got)
        row = given * 15 if reducer == "sum" else np.maximum(given, given * 5)
        np.testing.assert_array_equal(got, np.broadcast_to(row, got.shape))


BOUNDED = {
    "40 - n": lambda n: 40 - n,
    "min(n, 40)": lambda n: te.min(n, 40),
    "n % 40": lambda n: n % 40,
    "n // 4 % 5": lambda n: n // 4 % 5,
}


@pytest.mark.parametrize("text", BOUNDED)
def test_tiles_of_sizes_with_a_bound_are_whole(text: str) -> None:
    """A tile is larger than any such size: its registers hold a constant number of sums."""
    n = te.var("n")
    size = BOUNDED[text](n)
    A = te.placeholder((8, size), "int32", name="A")
    k = te.reduce_axis((0, 8), "k")
    B = te.compute((size,), lambda j: te.sum(A[k, j], axis=k), name="B")
    with strategies_that_failed() as failed:
        function = tvm.build(B, [A, B, n])
    assert not failed
    for value in (0, 1, 7, 39, 40):
        width = eval(text, {"n": value, "min": min})
        a = np.arange(8 * width, dtype="int32").reshape(8, width)
        b = np.full(width, -1, "int32")
        function(a, b, value)
        np.testing.assert_array_equal(b, a.sum(0))


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "emeraldrapids", "znver4"])
@pytest.mark.parametrize("subscripts", ["mk,kn->mn", "mk,nk->mn"])
def test_blocks_of_unknown_width_have_whole_panels(subscripts: str, cpu: str) -> None:
    """A tile that began within a panel would read parts of two."""
    m, n, k = te.var("m"), te.var("n"), te.var("k")
    A = te.placeholder((m, k), name="A")
    B = te.placeholder((n, k) if subscripts.endswith("nk->mn") else (k, n), name="B")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        return te.sum(A[i, r] * (B[j, r] if subscripts.endswith("nk->mn") else B[r, j]), axis=r)

    C = te.compute((m, n), element, name="C")
    choices = tvm.auto_schedule(C, f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}").choices
    widths: dict[str, Any] = {
        each.about: each.figures["columns"] for each in choices if "{columns} columns" in each.text
        or each.about == "tile"
    }  # fmt: skip
    assert widths["blocks"] % widths["tile"] == 0
