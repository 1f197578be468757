"""Nothing moves past what changes it: programs that write what they read, after each pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

import minitvm as tvm
from minitvm import te, tir
from minitvm.runtime.dtype import INT32
from minitvm.tir.expr import BufferRef, Call, StringImm, Var, const
from minitvm.tir.functor import walk
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from minitvm.tir.verify import verify
from minitvm.transform.check_bounds import check_bounds
from minitvm.transform.clip_loops import clip_loops
from minitvm.transform.compute_padding import compute_padding
from minitvm.transform.hoist_conditions import hoist_conditions
from minitvm.transform.inject_double_buffer import SCOPE, inject_double_buffer
from minitvm.transform.partition_loops import partition_loops
from minitvm.transform.reuse_storage import reuse_storage
from minitvm.transform.simplify import simplify
from minitvm.transform.unroll_loops import unroll_loops
from tests.tir.programs import function_of, likely, loop
from tests.transform.changing_nests import DOUBLE, ChangingNest, changing_nests, double

PASSES: tuple[Callable[[PrimFunc], PrimFunc], ...] = (
    check_bounds, clip_loops, compute_padding, partition_loops, simplify, hoist_conditions,
    unroll_loops, reuse_storage,
)  # fmt: skip


def check_passes(nest: ChangingNest) -> None:
    """Each pass by itself, and all of them one after the other."""
    expected = nest.run(nest.func)
    whole = nest.func
    for transform in PASSES:
        made, whole = transform(nest.func), transform(whole)
        if made is not nest.func:
            verify(made)
            for a, b in zip(nest.run(made), expected, strict=True):
                np.testing.assert_array_equal(a, b)
    for a, b in zip(nest.run(whole), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(deadline=None, max_examples=25)
@given(changing_nests())
def test_each_pass(nest: ChangingNest) -> None:
    check_passes(nest)


@pytest.mark.wide
@settings(deadline=None, max_examples=2_000)
@given(changing_nests())
def test_each_pass_at_length(nest: ChangingNest) -> None:
    check_passes(nest)


def check_compiled(nest: ChangingNest) -> None:
    tvm.register_func(DOUBLE, double, override=True)
    arguments = nest.arguments()
    tvm.build(nest.func, name="changing")(*arguments)
    for a, b in zip(arguments, nest.run(nest.func), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(deadline=None, max_examples=10)
@given(changing_nests())
def test_compiled(nest: ChangingNest) -> None:
    check_compiled(nest)


@pytest.mark.wide
@settings(deadline=None, max_examples=500)
@given(changing_nests())
def test_compiled_at_length(nest: ChangingNest) -> None:
    check_compiled(nest)


# -- One by one ------------------------------------------------------------------------------------

N = tir.decl_buffer((4,), "int32", name="N")
A = tir.decl_buffer((64, 32), "float32", name="A")
i, j, o = Var("i"), Var("j"), Var("o")


func = function_of(A, N)


def result(made: PrimFunc, start: int) -> list[float]:
    a, n = np.zeros((64, 32), "float32"), np.full(4, start, "int32")
    interpret(made, a, n, packed={DOUBLE: double})
    return [*a.reshape(-1).tolist(), *n.tolist()]


def test_a_guard_stays_in_a_loop_that_changes_what_it_reads() -> None:
    stores = seq(BufferStore(A, const(1.0), (i, j)), BufferStore(N, i + 2, (const(0),)))
    guarded = IfThenElse(likely(i < N[0]), stores)
    made = func(loop(o, 2, loop(i, 64, loop(j, 32, guarded))))
    assert result(clip_loops(made), 1) == result(made, 1)
    a, n = np.zeros((64, 32), "float32"), np.ones(4, "int32")
    tvm.build(made, name="f")(a, n)
    assert a.sum() == 64 * 32


def test_a_guard_that_reads_moves_where_nothing_changes_it() -> None:
    guarded = IfThenElse(likely(i < N[0]), BufferStore(A, const(1.0), (i, j)))
    made = func(loop(o, 2, loop(i, 64, loop(j, 32, guarded))))
    clipped = clip_loops(made)
    assert "in range(min(64, N[0]))" in str(clipped) and "likely" not in str(clipped)
    assert result(clipped, 5) == result(made, 5)


def test_what_a_guard_protects_is_read_behind_it_only() -> None:
    """``N[o]`` lies inside only where the outer guard holds, and in a loop that may not run."""
    inner = IfThenElse(likely(i < N[o]), BufferStore(A, const(1.0), (i, j)))
    behind = func(loop(o, 9, loop(i, 64, loop(j, 32, IfThenElse(likely(o < 4), inner)))))
    assert result(clip_loops(behind), 5) == result(behind, 5)
    nowhere = func(loop(o, 9, loop(i, 64, loop(Var("k"), e_max(4 - o), loop(j, 32, inner)))))
    assert result(clip_loops(nowhere), 5) == result(nowhere, 5)


@pytest.mark.parametrize("start", [0, 7, 2**30, 2**30 + 3, 2**31 - 1, -(2**31), -(2**31) + 9])
@pytest.mark.parametrize("transform", [clip_loops, partition_loops, simplify])
def test_data_in_guards_wrap_as_they_did(
    transform: Callable[[PrimFunc], PrimFunc], start: int
) -> None:
    """A name for data is not index arithmetic, nor is the end that a guard of data becomes."""
    x, store = Var("x"), BufferStore(A, const(1.0), (i, j))
    guard_of: list[tuple[tir.PrimExpr, tir.PrimExpr]] = [
        (x * 2 + i * 4 + j, const(20)), (o * 4 + i, x), (x, i * 4 + o), (x - o * 4, i + j),
        (x + i, const(2)), (o * 4 + i, N[0]), (N[0], i * 2 - o), (i * 8 - x, o + 20),
    ]  # fmt: skip
    for a, b in guard_of:
        nest = loop(i, 16, loop(j, 32, IfThenElse(likely(a < b), store)))
        made = func(loop(o, 4, LetStmt(x, N[0], nest)))
        assert result(transform(made), start) == result(made, start), f"{a} < {b}"


def e_max(value: tir.PrimExpr) -> tir.PrimExpr:
    """At least zero."""
    made: tir.PrimExpr = te.max(value, 0)
    return made


@pytest.mark.parametrize("changes", [True, False], ids=["changes", "stays"])
@pytest.mark.parametrize("named", [True, False], ids=["name", "bound"])
def test_padding_is_computed_only_where_it_is_known_to_be_there(named: bool, changes: bool) -> None:
    """A loop's bound and a name, of which nothing is known once they are written: `i` is less than
    8 where ``N[0]`` is, as long as the loop ends at ``N[0]``."""
    S = tir.decl_buffer((8,), "float32", name="S")
    body: Stmt = BufferStore(S, A[i, 0], (i,))
    for guard in (i < 8, N[0] < 8, N[0] >= 0):
        body = IfThenElse(likely(guard), body)
    body = AttrStmt(S, "padded_buffer", const(1), body)
    if changes:
        body = seq(BufferStore(N, const(1), (const(0),)), body)
    nest = LetStmt(i, N[0], body) if named else For(i, const(0), N[0], ForKind.SERIAL, body)
    made = PrimFunc(
        (A.data, N.data, S.data), nest, {A.data: A, N.data: N, S.data: S}, "f"
    )  # fmt: skip
    assert (compute_padding(made) is made) == changes
    a, n = np.ones((64, 32), "float32"), np.full(4, 9 if changes else 7, "int32")
    interpret(compute_padding(made), a, n, np.zeros(8, "float32"))


CALL = Call(INT32, "call_packed", (StringImm(DOUBLE), BufferRef(N)))


@pytest.mark.parametrize(
    "value",
    [CALL % 5 // 8, N[0] - (CALL + N[0]), te.min(N[0], CALL + N[0]) % 1,
     te.if_then_else(N[0] < 4, CALL + te.if_then_else(N[0] < 4, 1, 2), 0), (CALL * 8 + 3) % 4,
     tir.Let(j, N[0], CALL + N[0] - j), tir.Select((CALL * 2).equal(5), const(1), N[0]),
     CALL * 0, 0 * (CALL + 1), 0 // CALL, 0 % CALL, CALL % 1, CALL // 2**30, tir.truncmod(CALL, 1),
     CALL * 0 + N[0], N[0] * 0 * CALL, tir.Select(N[0] < 4, CALL * 0, const(0)),
     te.min(CALL * 0, 0),
     te.all(CALL < 9, False), te.all(False, CALL < 9), te.any(CALL < 9, True),
     te.any(True, CALL < 9),
     te.any(CALL * 0 < 1, N[0] < 4), tir.Select(const(True), N[0], CALL),
     (CALL * 0).astype("int64") * 0,
     te.const(0) * te.const(2) * CALL * N[0]],
)  # fmt: skip
def test_a_call_is_done_once_and_changes_what_follows(value: tir.PrimExpr) -> None:
    made = func(BufferStore(A, value.astype("float32"), (const(0), const(0))))
    simple = simplify(made)
    calls = (isinstance(each, Call) and each.op == "call_packed" for each in walk(simple.body))
    assert sum(calls) == 1
    for start in (1, 3, 5):
        assert result(simple, start) == result(made, start)


@pytest.mark.parametrize(
    "statement",
    [loop(i, CALL * 0, BufferStore(A, const(1.0), (i, i))),
     loop(i, te.min(CALL, 0), BufferStore(A, const(1.0), (i, i))),
     For(i, CALL, const(0), ForKind.SERIAL, BufferStore(A, const(1.0), (i, i))),
     For(i, CALL, const(1), ForKind.SERIAL, BufferStore(A, const(1.0), (i, i))),
     BufferStore(A, CALL.astype("float32"), (const(0), const(0)), const(False, "bool")),
     BufferStore(A, const(1.0), (CALL * 0, const(0))),
     IfThenElse(CALL * 0 > 0, BufferStore(A, const(1.0), (const(0), const(0)))),
     IfThenElse(te.any(CALL > 0, True), seq()),
     Evaluate(CALL * 0), LetStmt(i, CALL * 0, seq())],
)  # fmt: skip
def test_a_statement_that_does_nothing_calls_all_the_same(statement: Stmt) -> None:
    made = func(seq(statement, BufferStore(A, N[0].astype("float32"), (const(1), const(1)))))
    simple = simplify(made)
    calls = (isinstance(each, Call) and each.op == "call_packed" for each in walk(simple.body))
    assert sum(calls) == 1
    tvm.register_func(DOUBLE, double, override=True)
    kernel = tvm.build(made, name="f")
    for start in (1, 3, 5):
        expected = result(made, start)
        assert result(simple, start) == expected
        a, n = np.zeros((64, 32), "float32"), np.full(4, start, "int32")
        kernel(a, n)
        assert [*a.reshape(-1).tolist(), *n.tolist()] == expected
        assert n[0] == start * 2 % 7 + 1  # once


def test_a_condition_does_not_move_past_a_call() -> None:
    inner = IfThenElse(likely(o < 1), BufferStore(A, const(1.0), (i, j)))
    made = func(loop(o, 4, loop(i, 8, loop(j, 8, IfThenElse(likely(CALL < 5), inner)))))
    assert result(hoist_conditions(made), 2) == result(made, 2)


def test_a_guard_does_not_move_past_a_call() -> None:
    """The call is done in iterations too in which the guard behind it fails."""
    inner = IfThenElse(likely(i * 2 < o % 3), BufferStore(A, const(1.0), (i, j)))
    called = IfThenElse(likely(CALL < 5), inner)
    made = func(loop(o, 4, loop(i, 8, loop(j, 32, called))))
    assert result(clip_loops(made), 2) == result(made, 2)
    between = IfThenElse(likely(CALL < 5), loop(j, 32, inner))
    made = func(loop(o, 4, loop(i, 8, between)))
    assert result(clip_loops(made), 2) == result(made, 2)
    check_passes(ChangingNest(Random(190209)))


def test_a_buffer_filled_ahead_keeps_the_bounds_of_its_loop() -> None:
    """The extent is read once, also where filling the buffer ahead asks for it again."""
    T = tir.decl_buffer((4,), "float32", name="T")
    fill = AttrStmt(
        T, SCOPE, const(1), loop(j, 4, BufferStore(T, (i * 4 + j).astype("float32"), (j,)))
    )
    use = loop(j, 4, BufferStore(A, T[j], (i + 8, j)))
    change = BufferStore(N, const(1), (const(0),))
    nest = For(i, const(0), N[0], ForKind.SERIAL, Allocate(T, seq(fill, use, change)))
    made = func(nest)
    assert result(inject_double_buffer(made), 4) == result(made, 4)


def test_a_guard_that_calls_stays_around_padding() -> None:
    S = tir.decl_buffer((32,), "float32", name="S")
    guarded = IfThenElse(likely(CALL < 9), BufferStore(S, const(1.0), (j,)))
    body = AttrStmt(S, "padded_buffer", const(1), guarded)
    params = {S.data: S, N.data: N}
    made = PrimFunc(tuple(params), loop(j, 4, body), params, "f")
    assert compute_padding(made) is made
