"""The auto-scheduler: it changes nothing of what is computed, and what it writes can be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler.contraction import contraction_of
from minitvm.auto_scheduler.cost import Nest
from minitvm.auto_scheduler.tiles import best_tile, vectors
from minitvm.runtime import DType
from minitvm.target import Target
from minitvm.tir.interpreter import interpret
from tests.schedules.programs import PROGRAMS, Draw, Program, Sizes

QUICK = [Phase.explicit, Phase.reuse, Phase.generate]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]


def contraction(draw: Draw) -> Program:
    """A sum of products over random axes, each factor's axes in random order, with or without an
    elementwise stage behind."""
    size = Sizes(draw)
    axes = draw(st.permutations("bijkl"))[: draw(st.integers(1, 5))]
    high = (40, 40, 40, 12, 7)[len(axes) - 1]  # it is interpreted, too
    extents = {axis: size(axis, high=high) for axis in axes}
    reduced = set(draw(st.sets(st.sampled_from(axes), min_size=1, max_size=2)))
    kept = [axis for axis in axes if axis not in reduced]
    if not kept:
        kept, reduced = [axes[0]], set(axes[1:]) or {"m"}
        extents.setdefault("m", 3)
    readers = [
        draw(
            st.permutations(draw(st.lists(st.sampled_from([*kept, *sorted(reduced)]), unique=True)))
        )
        for _ in range(2)
    ]
    missing = [axis for axis in (*kept, *sorted(reduced)) if axis not in {*readers[0], *readers[1]}]
    readers[1] = [*readers[1], *missing]
    a, b = (
        te.placeholder([extents[axis] for axis in each] or [1], name=name)
        for name, each in zip("AB", readers, strict=True)
    )
    sums = {axis: te.reduce_axis((0, extents[axis]), name=axis) for axis in sorted(reduced)}

    def element(*indices: Any) -> Any:
        at = dict(zip(kept, indices, strict=True)) | sums
        read = [
            t(*([at[axis] for axis in each] or [0]))
            for t, each in zip((a, b), readers, strict=True)
        ]
        return te.sum(read[0] * read[1], axis=list(sums.values()))

    c = te.compute([extents[axis] for axis in kept], element, name="C")
    if not draw(st.booleans()):
        return Program([c.op], [a, b, c], size.values)
    d = te.compute(c.shape, lambda *i: c(*i) * 2.0 + 1.0, name="D")
    return Program([d.op], [a, b, d], size.values)


def check(make: Any, draw: Draw) -> None:
    program: Program = make(draw)
    plain = tvm.lower(te.create_schedule(program.outputs), program.args)["main"]
    expected = program.arrays(seed=0)
    interpret(plain, *expected)
    target = draw(st.sampled_from(TARGETS))
    s = tvm.auto_schedule(program.outputs, target)
    note(s.trace())
    note(str(program.sizes))
    lowered = tvm.lower(s, program.args)
    note(str(lowered))
    assert str(tvm.lower(te.replay(s.trace(), program.outputs), program.args)) == str(lowered)
    actual = program.arrays(seed=0)  # `s` itself is built in the other tests of this folder
    tvm.build(te.create_schedule(program.outputs), program.args, target, name="f")(*actual)
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("make", [contraction, *PROGRAMS])
@settings(max_examples=2, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_what_is_computed_stays(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)


@pytest.mark.wide
@pytest.mark.parametrize("make", [contraction, *PROGRAMS])
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW, phases=QUICK)
@given(data=st.data())
def test_what_is_computed_stays_of_many(make: Any, data: st.DataObject) -> None:
    check(make, data.draw)


# -- What is recognised ---------------------------------------------------------------------------


def product(a: str, b: str, c: str, n: Any = 64) -> Any:
    """``C[c] = sum A[a] * B[b]``, axes of extent `n`."""
    A = te.placeholder([n] * len(a), name="A")
    B = te.placeholder([n] * len(b), name="B")
    sums = {axis: te.reduce_axis((0, n), name=axis) for axis in sorted({*a, *b} - {*c})}

    def element(*indices: Any) -> Any:
        at = dict(zip(c, indices, strict=True)) | sums
        return te.sum(A(*(at[i] for i in a)) * B(*(at[i] for i in b)), axis=list(sums.values()))

    return te.compute([n] * len(c), element, name="C"), A, B


@pytest.mark.parametrize(
    ("a", "b", "c", "of_columns", "rows"),
    [
        ("ik", "kj", "ij", "B", ["i"]),
        ("ki", "jk", "ij", "B", ["i"]),
        ("ik", "kj", "ji", "A", ["j"]),
        ("bik", "bkj", "bij", "B", ["i"]),
        ("ik", "k", "i", "A", []),
        ("i", "k", "i", "A", []),
    ],
)
def test_contractions(a: str, b: str, c: str, of_columns: str, rows: list[str]) -> None:
    made, _, _ = product(a, b, c)
    found = contraction_of(made.op)
    assert found is not None
    assert found.b.tensor.name == of_columns
    names = dict(zip(made.op.axis, c, strict=True))
    assert [names[axis] for axis in found.rows] == rows


def test_what_is_no_contraction() -> None:
    A, i = te.placeholder((8, 8), name="A"), te.placeholder((8,), "int32", name="i")
    k = te.reduce_axis((0, 8), name="k")
    for element in (
        lambda j: te.sum(A[j, k], axis=k),
        lambda j: te.max(A[j, k] * A[k, j], axis=k),
        lambda j: te.sum(A[j, i[k]] * A[k, j], axis=k),
        lambda j: te.sum(A[j, k] + A[k, j], axis=k),
        lambda j: A[j, 0] * A[0, j],
    ):
        assert contraction_of(te.compute((8,), element, name="C").op) is None


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 7, 64, 97, None])
@pytest.mark.parametrize("columns", [1, 16, 97, 1000, None])
def test_tiles_fit_the_registers(target: str, rows: int | None, columns: int | None) -> None:
    made = Target(target)
    for dtype in ("float32", "float64"):
        kind = DType.of(dtype)
        nest = Nest(
            (rows,), columns, (100,), (), kind, 4, 400, 4, 4 * (columns or 1), vectors(kind, made)
        )
        for in_panels in (False, True):
            tile = best_tile(replace(nest, is_packed=in_panels), made)
            width = -(-tile.columns * DType.of(dtype).bits // made.vector_bits)
            assert tile.rows >= 1
            assert 1 <= tile.columns <= (columns or tile.columns)
            assert tile.rows * width + width < made.vector_registers


@pytest.mark.parametrize(
    ("m", "n", "depth", "parts"),
    [(1, 4096, 1024, 8), (1, 1000, 900, 6), (2, 4096, 1024, 8), (1, 4096, 100, 1)],
)  # fmt: skip
def test_streams_share_their_steps(m: int, n: int, depth: int, parts: int) -> None:
    """In as many parts for any number of cores, as long as their sums fit half of the L2 cache."""
    A, B = te.placeholder((m, depth), name="A"), te.placeholder((depth, n), name="B")
    k = te.reduce_axis((0, depth), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    for cores in (1, 2, 64):
        target = f"llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores={cores}"
        trace = tvm.auto_schedule(C, target).trace()
        assert "rfactor" in trace if parts > 1 else "rfactor" not in trace
        assert (f"nparts={parts})" in trace) == (parts > 1)


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "dtypes",
    [("float32",) * 2, ("float64",) * 2, ("int8", "int32"), ("float16", "float32")],
)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["plain", "batched"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_results_of_one_column(
    layout: str, batch: tuple[int, ...], dtypes: tuple[str, str]
) -> None:
    """Matrix-vector products that are written as matrices: vectors lie along the rows."""
    m, depth = 203, 70
    narrow, wide = dtypes
    A = te.placeholder((*batch, *((m, depth) if layout[0] == "N" else (depth, m))), narrow)
    B = te.placeholder((*batch, *((depth, 1) if layout[1] == "N" else (1, depth))), narrow)
    k = te.reduce_axis((0, depth), name="k")

    def element(*place: Any) -> Any:
        *b, i, j = place
        a = A(*b, *((i, k) if layout[0] == "N" else (k, i)))
        return te.sum(
            a.astype(wide) * B(*b, *((k, j) if layout[1] == "N" else (j, k))).astype(wide), axis=k
        )

    C = te.compute((*batch, m, 1), element, name="C")
    D = te.compute(C.shape, lambda *place: C(*place) * 2, name="D")
    random = np.random.default_rng(0)
    a, b = (
        random.integers(-9, 9, [int(str(n)) for n in each.shape]).astype(narrow) for each in (A, B)
    )
    x = a.astype(wide) if layout[0] == "N" else np.swapaxes(a, -1, -2).astype(wide)
    y = b.astype(wide) if layout[1] == "N" else np.swapaxes(b, -1, -2).astype(wide)
    for last, factor in ((C, 1), (D, 2)):
        found = np.zeros((*batch, m, 1), wide)
        tvm.build([last], [A, B, last])(a, b, found)
        np.testing.assert_array_equal(found, x @ y * factor)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("uint8", "int32")])
def test_contractions_of_nothing(sizes: tuple[int, int, int], dtypes: tuple[str, str]) -> None:
    """Constant sizes of 0: sums of nothing are 0, also where they are read by more."""
    m, n, depth = sizes
    A, B = te.placeholder((m, depth), dtypes[0]), te.placeholder((depth + 2, n), dtypes[0])
    k = te.reduce_axis((0, depth), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, k].astype(dtypes[1]) * B[k + 1, j], axis=k))
    D = te.compute((m, n), lambda i, j: C[i, j] + 3)
    found = np.full((m, n), 7, dtypes[1])
    made = [np.ones((m, depth), dtypes[0]), np.ones((depth + 2, n), dtypes[0])]
    tvm.build([D], [A, B, D])(*made, found)
    assert (found == depth + 3).all()


# -- What is written ------------------------------------------------------------------------------


def test_a_product_whose_columns_are_another_product() -> None:
    """What takes the sums of the first is not computed on the way into the second, too."""
    A, B = te.placeholder((40, 30), name="A"), te.placeholder((30, 600), name="B")
    W = te.placeholder((300, 40), name="W")
    k, r = te.reduce_axis((0, 30), name="k"), te.reduce_axis((0, 40), name="r")
    C = te.compute((40, 600), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((40, 600), lambda i, j: C[i, j] + 1.0, name="D")
    E = te.compute((300, 600), lambda i, j: te.sum(W[i, r] * D[r, j], axis=r), name="E")
    random = np.random.default_rng(0)
    a, b, w = (
        random.integers(-4, 4, shape).astype("float32")
        for shape in ((40, 30), (30, 600), (300, 40))
    )
    found = np.empty((300, 600), "float32")
    tvm.build([E], [A, B, W, E])(a, b, w, found)
    np.testing.assert_array_equal(found, w @ (a @ b + 1))


def test_touched_schedules_are_left_alone() -> None:
    C, A, B = product("ik", "kj", "ij")
    s = te.create_schedule(C.op)
    s[C].reorder(*reversed(C.op.axis))
    text = str(tvm.lower(s, [A, B, C]))
    assert tvm.build(s, [A, B, C], name="main").get_source("tir").count("for ") == text.count(
        "for "
    )


def test_build_without_auto_schedule_gives_plain_loops() -> None:
    C, A, B = product("ik", "kj", "ij")
    plain = tvm.build([C], [A, B, C], auto_schedule=False).get_source("tir")
    made = tvm.build([C], [A, B, C]).get_source("tir")
    assert "ramp" not in plain
    assert "ramp" in made


def test_arguments_are_not_done_away_with() -> None:
    A = te.placeholder((16, 16), name="A")
    B = te.compute((16, 16), lambda i, j: A[i, j] + 1.0, name="B")
    C, D = te.compute((16, 16), lambda i, j: B[i, j] * 2.0, name="C"), None
    k = te.reduce_axis((0, 16), name="k")
    P = te.compute((16, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="P")
    D = te.compute((16, 16), lambda i, j: P[i, j] + C[i, j], name="D")
    f = tvm.build(te.create_schedule(D.op), [A, B, P, D], name="f")
    a = np.random.default_rng(0).random((16, 16), dtype=np.float32)
    b, p, d = (np.zeros_like(a) for _ in range(3))
    f(a, b, p, d)
    np.testing.assert_allclose(b, a + 1, rtol=1e-6)
    np.testing.assert_allclose(p, a @ (a + 1), rtol=1e-5)
    np.testing.assert_allclose(d, a @ (a + 1) + 2 * (a + 1), rtol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("layout", ["ik,kj", "ik,jk", "ki,kj", "ki,jk"])
@pytest.mark.parametrize("sizes", [(1, 300, 700), (5, 33, 17), (97, 101, 103), (130, 260, 65)])
def test_products_within_the_error_bound_of_a_sum(layout: str, sizes: tuple[int, int, int]) -> None:
    """Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., (3.5): |error| <=
    gamma_k sum |a| |b|, for any order of the additions."""
    extent = dict(zip("ijk", sizes, strict=True))
    a_axes, b_axes = layout.split(",")
    A = te.placeholder([extent[x] for x in a_axes], name="A")
    B = te.placeholder([extent[x] for x in b_axes], name="B")
    k = te.reduce_axis((0, extent["k"]), name="k")

    def element(i: Any, j: Any) -> Any:
        at = {"i": i, "j": j, "k": k}
        return te.sum(A(*(at[x] for x in a_axes)) * B(*(at[x] for x in b_axes)), axis=k)

    C = te.compute((extent["i"], extent["j"]), element, name="C")
    f = tvm.build([C], [A, B, C])
    generator = np.random.default_rng(1)
    a, b = (
        generator.standard_normal([extent[x] for x in axes]).astype(np.float32)
        for axes in (a_axes, b_axes)
    )
    c = np.empty((extent["i"], extent["j"]), np.float32)
    f(a, b, c)
    wide = np.einsum(f"{layout}->ij", a.astype(np.float64), b.astype(np.float64))
    size = np.einsum(f"{layout}->ij", np.abs(a, dtype=np.float64), np.abs(b, dtype=np.float64))
    unit = extent["k"] * 2.0**-24
    assert (np.abs(c - wide) <= unit / (1 - unit) * size + 1e-30).all()
    again = np.empty_like(c)
    f(a, b, again)
    np.testing.assert_array_equal(c, again)
