"""Indices that are linear in parts of a loop: clamps, remainders, quotients and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import minitvm
from minitvm import te, tir
from minitvm.arith.piecewise import pieces_of
from minitvm.arith.prover import Prover
from minitvm.tir import expr as e
from minitvm.tir.expr import BufferLoad, PrimExpr, Var, const
from minitvm.tir.functor import walk
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore, For, ForKind, IfThenElse, PrimFunc
from minitvm.transform.partition_loops import partition_loops
from minitvm.transform.simplify import simplify
from tests.tir.programs import function_of, likely, loop

Golden = Callable[[str], None]

A, B = tir.decl_buffer((64,), name="A"), tir.decl_buffer((64,), name="B")
jo, ji = Var("jo"), Var("ji")
j = jo * 8 + ji
func = function_of(A, B)


def copied(index: PrimExpr, extent: int, kind: ForKind = ForKind.VECTORIZED) -> PrimFunc:
    """``B[j] = A[index]``, j split by 8."""
    body = IfThenElse(likely(j < extent), BufferStore(B, A[index], (j,)))
    return func(loop(jo, (extent + 7) // 8, loop(ji, 8, body, kind)))


def run(program: PrimFunc) -> np.ndarray:
    made = np.full(64, -1, "float32")
    interpret(program, np.arange(64, dtype="float32"), made)
    return made


_NUMBERS = st.integers(-70, 70)


def _one_more(inner: st.SearchStrategy[PrimExpr]) -> st.SearchStrategy[PrimExpr]:
    sizes = st.sampled_from([1, 3, 8, 16, 23, 40, 64])
    numbers = _NUMBERS.map(const)
    return st.one_of(
        st.builds(e.minimum, inner, st.one_of(numbers, inner)),
        st.builds(e.maximum, st.one_of(numbers, inner), inner),
        st.builds(e.floormod, inner, sizes),
        st.builds(e.floordiv, inner, sizes),
        st.builds(lambda a, b: a + b, inner, numbers),
        st.builds(lambda a, by: a * by, inner, st.sampled_from([-1, 2])),
        st.builds(te.abs, inner),
        st.builds(lambda a, at, b: te.if_then_else(a >= at, b, a), inner, _NUMBERS, inner),
        st.builds(lambda a, at, b: te.if_then_else(a < at, b, a), inner, _NUMBERS, inner),
    )


_LINEAR = st.builds(lambda by, more: j * by + more, st.sampled_from([1, 1, 1, -1, 2]), _NUMBERS)
_INDICES = st.recursive(_LINEAR, _one_more, max_leaves=4)


@settings(deadline=None, max_examples=150)
@given(_INDICES, st.integers(1, 64), st.sampled_from([ForKind.VECTORIZED, ForKind.SERIAL]))
def test_every_part_reads_the_same_elements(index: PrimExpr, extent: int, kind: ForKind) -> None:
    program = copied(e.floormod(index, 64), extent, kind)
    expected = run(program)
    np.testing.assert_array_equal(run(partition_loops(program)), expected)
    np.testing.assert_array_equal(run(simplify(partition_loops(program))), expected)


def test_a_remainder_in_two_parts(golden: Golden) -> None:
    golden(str(simplify(partition_loops(copied(e.floormod(j + 5, 64), 64)))))


def test_both_ends_of_a_clamp(golden: Golden) -> None:
    golden(str(simplify(partition_loops(copied(e.minimum(e.maximum(j - 9, 0), 40), 64)))))


def test_a_choice_that_holds_in_few_iterations_is_negated(golden: Golden) -> None:
    golden(str(simplify(partition_loops(copied(te.if_then_else(j < 9, 9 - j, j - 9), 64)))))


def test_quotients_of_many_values_stay() -> None:
    prover, i = Prover(), Var("i")
    prover.bind_interval(i, const(0), const(64))
    assert not pieces_of(prover, e.floordiv(i, 2), i, 1)
    assert not pieces_of(prover, e.floormod(i + Var("shift"), 64), i, 1)
    assert pieces_of(prover, e.floordiv(i, 32), i, 1)


def test_loops_without_iterations_have_none() -> None:
    prover, i = Prover(), Var("i")
    prover.bind_interval(i, const(0), const(0))
    assert not pieces_of(prover, e.floormod(i + 5, 100), i, 1)
    np.testing.assert_array_equal(
        run(partition_loops(copied(e.floormod(j + 5, 64), 0))),
        run(func(loop(jo, 0, BufferStore(B, const(0.0), (jo,))))),
    )


def test_shared_nodes_are_read_once() -> None:
    prover, i = Prover(), Var("i")
    prover.bind_interval(i, const(0), const(100))
    shared = e.maximum(i - 1, 0)
    for _ in range(60):
        shared = shared + shared
    (piece,) = pieces_of(prover, e.minimum(shared, 7), i, 1)[:1]
    assert len(piece.conditions) == 1


def test_quotients_that_lanes_share_stay() -> None:
    prover, i, o = Prover(), Var("i"), Var("o")
    prover.bind_interval(i, const(0), const(8))
    prover.bind_interval(o, const(0), const(8))
    assert not pieces_of(prover, e.floormod(o * 8 + i, 32), i, 8)
    assert pieces_of(prover, e.floormod(o * 8 + i + 1, 32), i, 8)


def _shifted(i: Any, n: Any) -> dict[str, tuple[Any, int]]:
    """Places that go around, and the quotient that most of them have."""
    return {
        "forwards": (i + 5, 0),
        "backwards": (i - 5, 0),
        "backwards, not below 0": (i - 5 + n, 1),
        "several times around": (i + 3 * n + 1, 3),
        "by a half": (i + n // 2, 0),
        "in reverse": (n - 1 - i, 0),
    }


def test_remainders_of_unknown_sizes() -> None:
    prover, i, n = Prover(), Var("i"), Var("n")
    prover.bind_size(n)
    prover.bind_loop(i, const(0), n)
    for name, (place, quotient) in _shifted(i, n).items():
        (piece,) = pieces_of(prover, e.floormod(place, n), i, 1)
        left = prover.affine(piece.value) - prover.affine(place) + prover.affine(n) * quotient
        assert not left.terms and left.constant == 0, name
    assert not pieces_of(prover, e.floormod(i * 3, n), i, 1)
    assert not pieces_of(prover, e.floormod(i, i + n), i, 1)
    assert not pieces_of(prover, e.floormod(i + 1000, n), i, 1)
    rows = Var("rows")
    prover.bind_size(rows)
    prover.bind_loop(fused := Var("fused"), const(0), rows * n)
    assert not pieces_of(prover, e.floormod(fused, n), fused, 1)


@pytest.mark.parametrize("name", _shifted(0, 8))
def test_arrays_of_unknown_sizes_go_around(name: str) -> None:
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    for axis in (0, 1):

        def element(i: Any, j: Any, axis: int = axis) -> Any:
            by_row, by_column = (_shifted(each, x)[name][0] for each, x in ((i, m), (j, n)))
            return X[i, by_column % n] if axis else X[by_row % m, j]

        Y = te.compute((m, n), element, name="Y")
        f = minitvm.build(te.create_schedule(Y.op), [X, Y], "llvm -mcpu=haswell")
        for shape in ((1, 1), (2, 3), (7, 5), (17, 64), (9, 130), (70, 7), (0, 4), (4, 0)):
            x, y = np.random.default_rng(0).random(shape, "float32"), np.zeros(shape, "float32")
            if 0 not in shape:
                f(x, y)
                place = _shifted(np.arange(shape[axis]), shape[axis])[name][0]
                np.testing.assert_array_equal(y, x.take(place % shape[axis], axis))


# -- From the language --


def clamp(x: Any, n: Any) -> Any:
    return te.min(te.max(x, 0), n - 1)


def reflect(x: Any, n: Any) -> Any:
    return te.if_then_else(x < 0, -x, te.if_then_else(x < n, x, 2 * n - 2 - x))


BORDERS: dict[str, tuple[Callable[..., Any], Any]] = {
    "wrap": (lambda x, n: x % n, "wrap"),
    "edge": (clamp, "edge"),
    "reflect": (reflect, "reflect"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("width", [3, 16, 45])
def test_borders(border: str, width: int) -> None:
    """As numpy pads, along both axes, at constant and at symbolic sizes."""
    of, mode = BORDERS[border]

    @minitvm.jit
    def padded(x: te.Tensor) -> Any:
        m, n = x.shape
        return te.compute((m + 4, n + 4), lambda i, j: x[of(i - 2, m), of(j - 2, n)])

    for size in (width, width + 1, width + 2):
        x = np.arange(5 * size, dtype="float32").reshape(5, size)
        np.testing.assert_array_equal(padded(x), np.pad(x, 2, mode=mode))


@pytest.mark.parametrize("border", ["wrap", "edge"])
def test_neighbours_are_read_as_vectors(border: str) -> None:
    """All but a few elements at the borders."""
    of, _ = BORDERS[border]
    x = te.placeholder((8, 200), name="x")
    y = te.compute((8, 200), lambda i, j: x[i, of(j + 1, 200)] + x[i, of(j - 1, 200)], name="y")
    s = te.create_schedule(y.op)
    _, inner = s[y].split(y.op.axis[1], factor=8)
    s[y].vectorize(inner)
    program = minitvm.lower(s, [x, y], name="f")["f"]

    def apart(node: Any) -> bool:
        return isinstance(node, BufferLoad) and any(
            isinstance(each, (e.FloorMod, e.Min, e.Max)) for each in walk(node)
        )

    loops = [each for each in walk(program.body) if isinstance(each, For)]
    innermost = [each for each in loops if not any(isinstance(x, For) for x in walk(each.body))]
    longest = max(innermost, key=lambda each: e.const_int(each.extent) or 0)
    assert not any(map(apart, walk(longest)))


@pytest.mark.parametrize("shift", [0, 1, 5, 44, 45, 46, 100, -1, -44])
def test_rolls(shift: int) -> None:
    @minitvm.jit
    def rolled(x: te.Tensor) -> Any:
        return te.compute(x.shape, lambda i, j: x[i, (j + shift) % x.shape[1]])

    for size in (45, 46, 47):
        x = np.arange(3 * size, dtype="float32").reshape(3, size)
        np.testing.assert_array_equal(rolled(x), np.roll(x, -shift, axis=1))


def test_three_tensors_side_by_side() -> None:
    @minitvm.jit
    def joined(x: te.Tensor, y: te.Tensor, z: te.Tensor) -> Any:
        a, b, c = x.shape[0], y.shape[0], z.shape[0]
        return te.compute(
            (a + b + c,),
            lambda i: te.if_then_else(
                i < a, x[i], te.if_then_else(i < a + b, y[i - a], z[i - a - b])
            ),
        )

    for sizes in ((40, 50, 60), (1, 100, 3), (41, 51, 61), (5, 1, 1)):
        parts = [np.arange(size, dtype="float32") for size in sizes]
        np.testing.assert_array_equal(joined(*parts), np.concatenate(parts))
