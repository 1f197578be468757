"""Stages in shared loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.te.schedules.schedule import Schedule
from minitvm.te.tensor import Tensor
from minitvm.tir.interpreter import interpret

N, M = 13, 70


def _inputs(n: Any = N, m: Any = M) -> tuple[Tensor, Tensor]:
    return te.placeholder((n, m), name="X"), te.placeholder((n, m), name="Y")


def _row_sums(name: str, *factors: Tensor) -> Any:
    k = te.reduce_axis((0, factors[0].shape[1]), name="k")

    def element(i: Any) -> Any:
        value = factors[0][i, k]
        for each in factors[1:]:
            value = value * each[i, k]
        return te.sum(value, axis=k)

    return te.compute((factors[0].shape[0],), element, name=name)


def _column_sums(name: str, *factors: Tensor) -> Any:
    k = te.reduce_axis((0, factors[0].shape[0]), name="k")

    def element(j: Any) -> Any:
        value = factors[0][k, j]
        for each in factors[1:]:
            value = value * each[k, j]
        return te.sum(value, axis=k)

    return te.compute((factors[0].shape[1],), element, name=name)


def _check(s: Schedule, args: list[Tensor], *wanted: Any) -> str:
    """Compiled, interpreted, and from its trace; the loops as text."""
    x, y = np.random.default_rng(0).standard_normal((2, N, M)).astype("float32")
    lowered = tvm.lower(s, args)
    outputs = [op.output(0) for op in s.outputs]
    again = te.replay(s.trace(), [each.op for each in args[2:]])
    assert str(tvm.lower(again, args)) == str(lowered)
    assert len(outputs) == len(wanted)
    for run in (tvm.build(s, args), lambda *arrays: interpret(lowered["main"], *arrays)):
        found = [np.empty([int(str(n)) for n in each.shape], "float32") for each in args[2:]]
        run(x, y, *found)
        for one, make in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, make(x, y), rtol=1e-4, atol=1e-4)
    return str(lowered)


def test_reductions_at_the_loop_of_a_reader_share_their_loops() -> None:
    X, Y = _inputs()
    A, B = _row_sums("A", X), _row_sums("B", X, Y)
    C = te.compute((N, M), lambda i, j: X[i, j] * A[i] + B[i], name="C")
    s = te.create_schedule(C.op)
    for each in (A, B):
        s[each].compute_at(s[C], C.op.axis[0])
    s[B].compute_with(s[A], A.op.reduce_axis[0])
    text = _check(s, [X, Y, C], lambda x, y: x * x.sum(1)[:, None] + (x * y).sum(1)[:, None])
    assert text.count("for k") == 1


def test_outputs_share_split_loops_to_different_depths() -> None:
    X, Y = _inputs()
    D, E, F = _column_sums("D", X, Y), _column_sums("E", Y), _column_sums("F", X)
    s = te.create_schedule([D.op, E.op, F.op])
    for each in (D, E, F):
        outer, inner = s[each].split(each.op.axis[0], factor=8)
        s[each].reorder(each.op.reduce_axis[0], outer, inner)
        s[each].vectorize(inner)
    loops = s[D].leaf_iter_vars
    s[E].compute_with(s[D], loops[1])
    s[F].compute_with(s[D], loops[0])
    text = _check(
        s, [X, Y, D, E, F],
        lambda x, y: (x * y).sum(0), lambda x, y: y.sum(0), lambda x, y: x.sum(0),
    )  # fmt: skip
    assert text.count("for k in") == 1


def test_a_stage_that_waits_for_a_shared_one_comes_after_both() -> None:
    X, Y = _inputs()
    A = _row_sums("A", X)
    C = te.compute((N,), lambda i: A[i] + 1.0, name="C")
    B = _row_sums("B", X, Y)
    s = te.create_schedule([C.op, B.op])
    s[B].compute_with(s[A], A.op.reduce_axis[0])
    text = _check(s, [X, Y, C, B], lambda x, y: x.sum(1) + 1, lambda x, y: (x * y).sum(1))
    assert text.count("for k") == 1
    assert text.index("+ 1.0") > text.index("for k")


def test_symbolic_extents_of_the_same_size_share_loops() -> None:
    n, m = te.size_var("n"), te.size_var("m")
    X, Y = _inputs(n, m)
    A, B = _row_sums("A", X), _row_sums("B", X, Y)
    s = te.create_schedule([A.op, B.op])
    s[B].compute_with(s[A], A.op.reduce_axis[0])
    f = tvm.build(s, [X, Y, A, B])
    for shape in ((3, 5), (0, 4), (4, 0), (1, 1)):
        x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
        a, b = np.empty((2, shape[0]), "float32")
        f(x, y, a, b)
        np.testing.assert_allclose(a, x.sum(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(b, (x * y).sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["split", "extent", "kind", "place"])
def test_loops_that_differ_are_refused(change: str) -> None:
    X, Y = _inputs()
    A, B = _row_sums("A", X), _row_sums("B", X, Y)
    if change == "extent":
        B = _row_sums("B", te.placeholder((N, M - 1), name="Z"))
    C = te.compute((N,), lambda i: A[i] * 2.0, name="C")
    s = te.create_schedule([C.op, B.op])
    s[B].compute_with(s[A], A.op.reduce_axis[0])
    if change == "split":
        s[B].split(B.op.axis[0], nparts=2)
    elif change == "kind":
        s[B].unroll(B.op.reduce_axis[0])
    elif change == "place":
        s[A].compute_at(s[C], C.op.axis[0])
    wanted = {
        "split": "expected loops like its loops, found i.inner with 7 iterations and k with 70",
        "extent": "expected loops like its loops, found k with 69 iterations and k with 70",
        "kind": "expected loops like its loops, found k unrolled and k serial",
        "place": "expected a stage that is computed at the same place, in loops of its own, got A",
    }
    with pytest.raises(tvm.CompileError, match=f"B: compute_with.*{wanted[change]}"):
        tvm.lower(s, [*B.op.input_tensors, X, Y, C, B][-5 if change == "extent" else -4 :])


def test_a_stage_between_two_that_share_loops_is_refused() -> None:
    X, Y = _inputs()
    A, B, C, D = (_row_sums(name, X) for name in "ABCD")
    E = te.compute((N,), lambda i: A[i] + 1.0, name="E")
    k = te.reduce_axis((0, M), name="k")
    F = te.compute((N,), lambda i: te.sum(Y[i, k] * E[i], axis=k), name="F")
    s = te.create_schedule([B.op, C.op, D.op, F.op])
    with pytest.raises(tvm.CompileError, match="but F reads A, directly or through others"):
        s[F].compute_with(s[A], A.op.reduce_axis[0])
    s[B].compute_with(s[A], A.op.reduce_axis[0])
    with pytest.raises(
        tvm.CompileError, match="in loops of its own, got B, which is computed with A"
    ):
        s[C].compute_with(s[B], B.op.reduce_axis[0])


def test_a_stage_that_reads_a_third_in_these_loops_is_refused() -> None:
    """Its elements would be computed before the third stage's are complete."""
    A = te.placeholder((5, 4), name="A")
    k, m = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 4), "m")
    S = te.compute((5,), lambda i: te.sum(A[i, k], axis=k), name="S")
    T = te.compute((5,), lambda i: te.max(A[i, m], axis=m), name="T")
    E = te.compute((5, 4), lambda i, j: A[i, j] - S[i], name="E")
    for first, second in ((S, E), (E, S)):
        s = te.create_schedule([E.op, T.op])
        s[first].compute_with(s[T], T.op.axis[0])
        with pytest.raises(tvm.CompileError, match="E reads S, directly or through others"):
            s[second].compute_with(s[T], T.op.axis[0])


def test_loops_that_are_shared_are_not_simplified_away() -> None:
    A = te.placeholder((5, 1), name="A")
    k, m = te.reduce_axis((0, 1), "k"), te.reduce_axis((0, 1), "m")
    S = te.compute((5,), lambda i: te.sum(A[i, k], axis=k), name="S")
    T = te.compute((5,), lambda i: te.sum(A[i, m] * 2, axis=m), name="T")
    s = te.create_schedule([S.op, T.op])
    s[T].compute_with(s[S], k)
    with pytest.raises(tvm.CompileError, match="simplify of S: expected loops as they were"):
        s[S].simplify()


def test_a_shared_loop_that_was_taken_away_is_named() -> None:
    k = te.reduce_axis((0, 1), "k")
    S = te.compute((1, 1), lambda i, j: te.sum(te.const(1, "int32"), axis=k), name="S")
    T = te.compute((1, 1), lambda i, j: te.const(1, "int32"), name="T")
    s = te.create_schedule([S.op, T.op])
    s[T].compute_with(s[S], k)
    s.unstack(S, S.op.axis[0])
    with pytest.raises(tvm.CompileError, match="found k, which a later primitive took away"):
        tvm.lower(s, [S, T])
