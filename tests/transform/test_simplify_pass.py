"""What the pass does to statements; expressions are tested in tests/arith."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm.runtime.dtype import BOOL, FLOAT32, HANDLE, INT32, DType
from minitvm.tir import expr as e
from minitvm.tir.expr import Buffer, BufferLoad, Call, PrimExpr, StringImm, Var, as_expr, const
from minitvm.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)  # fmt: skip
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.simplify import simplify
from tests.tir.programs import function_of, loop

i, j, k, n = (Var(name) for name in "ijkn")
flag = Var("flag", BOOL)


def buffer(name: str, *shape: Any, dtype: DType = FLOAT32) -> Buffer:
    return Buffer(Var(name, HANDLE), tuple(map(as_expr, shape)), dtype, name)


A, B = buffer("A", n), buffer("B", n)
COUNT = buffer("C", 1, dtype=INT32)
TENSORS = (A, B, COUNT)
NOTHING = SeqStmt(())
CALL = Call(INT32, "call_packed", (StringImm("f"),))


func = function_of(*TENSORS, flag)


def set_b(index: Any, value: PrimExpr) -> Stmt:
    return BufferStore(B, value, (as_expr(index),))


def copy(index: Any) -> Stmt:
    return set_b(index, A[index])


ROWS: dict[str, tuple[Stmt, Stmt]] = {
    "docstring": (
        loop(i, 4, loop(j, 1, IfThenElse(i * 4 + j < 16, copy((i * 4 + j) // 4)))),
        loop(i, 4, copy(i)),
    ),
    "loop that runs once": (loop(i, 1, copy(i), begin=n - 1), copy(n - 1)),
    "vector of one": (loop(i, 1, copy(i), kind=ForKind.VECTORIZED), copy(0)),
    "loop that never runs": (loop(i, 0, copy(i)), NOTHING),
    "negative extent": (loop(i, -3, copy(i)), NOTHING),
    "loop over nothing": (loop(i, n, SeqStmt((NOTHING, NOTHING))), NOTHING),
    "range": (loop(i, n, IfThenElse(i >= 0, copy(i))), loop(i, n, copy(i))),
    "size": (loop(i, n, IfThenElse(n > 0, copy(i))), loop(i, n, copy(i))),
    "constant if": (IfThenElse(const(False), copy(0)), NOTHING),
    "constant if, else": (IfThenElse(const(False), copy(0), copy(1)), copy(1)),
    "path": (
        loop(i, n, IfThenElse(i < 4, IfThenElse(i < 9, copy(i), copy(0)), set_b(i, A[i // 4]))),
        loop(i, n, IfThenElse(i < 4, copy(i), set_b(i, A[i // 4]))),
    ),
    "path of else": (
        loop(i, n, IfThenElse(i < 4, copy(i), IfThenElse(i < 4, copy(0)))),
        loop(i, n, IfThenElse(i < 4, copy(i))),
    ),
    "empty then": (
        IfThenElse(flag, NOTHING, copy(0)), IfThenElse(e.Not(flag), copy(0)),
    ),
    "both empty": (IfThenElse(flag, NOTHING, NOTHING), NOTHING),
    "assertion": (
        AssertStmt(n >= 4, "small", IfThenElse(n > 2, copy(0)), (n + 0 * n,)),
        AssertStmt(n >= 4, "small", copy(0), (n,)),
    ),
    "predicates that are known": (
        SeqStmt((
            BufferStore(B, const(1.0), (i,), const(False)),
            BufferStore(B, BufferLoad(A, (const(0),), n >= 0), (const(1),), n >= 0),
            BufferStore(B, BufferLoad(A, (const(0),), n < 0), (const(2),), flag),
        )),
        SeqStmt((set_b(1, A[0]), BufferStore(B, const(0.0), (const(2),), flag))),
    ),
    "known assertion": (AssertStmt(n >= 0, "negative", copy(0)), copy(0)),
    "trivial let": (LetStmt(k, const(3), copy(k)), copy(3)),
    "let of a name": (loop(i, n, LetStmt(k, i + 0, copy(k))), loop(i, n, copy(i))),
    "let of nothing": (LetStmt(k, n * 2, NOTHING), NOTHING),
    "value of a let": (
        loop(i, n, LetStmt(k, i * 2, IfThenElse(k >= 0, copy(k)))),
        loop(i, n, LetStmt(k, i * 2, copy(k))),
    ),
    "sequence": (SeqStmt((NOTHING, SeqStmt((copy(0), copy(1))))), SeqStmt((copy(0), copy(1)))),
    "evaluation of a number": (Evaluate(const(0)), NOTHING),
    "lazy choice": (
        loop(i, n, set_b(i, Call(FLOAT32, "if_then_else", (i < n, A[i], const(0.0))))),
        loop(i, n, copy(i)),
    ),
    "allocation of nothing": (Allocate(buffer("T", 4), NOTHING), NOTHING),
    "attribute of nothing": (AttrStmt(None, "pragma", const(1), NOTHING), NOTHING),
    "while false": (While(const(False), copy(0)), NOTHING),
    "loaded begin": (  # the loop's begin was read once, before its body
        loop(i, 1, BufferStore(COUNT, i + 1, (const(0),)), begin=COUNT[0]),
        LetStmt(i, COUNT[0], BufferStore(COUNT, i + 1, (const(0),))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_before_and_after(name: str) -> None:
    before, after = ROWS[name]
    made = simplify(func(before))
    assert structural_equal(made.body, after)
    assert simplify(made) is made


KEPT: dict[str, Stmt] = {
    "copy": loop(i, n, copy(i)),
    "stale condition": IfThenElse(
        COUNT[0] > 0,
        SeqStmt((BufferStore(COUNT, const(0), (const(0),)), IfThenElse(COUNT[0] > 0, copy(0)))),
    ),
    "call in between": IfThenElse(
        COUNT[0] > 0, SeqStmt((Evaluate(CALL), IfThenElse(COUNT[0] > 0, copy(0))))
    ),
    "effect": loop(i, n, Evaluate(CALL)),
    "let of an effect": LetStmt(k, CALL, NOTHING),
    "thread": loop(i, 1, copy(i), kind=ForKind.THREAD_BINDING),
    "annotation": For(i, const(0), const(1), ForKind.SERIAL, copy(i), {"pragma": 1}),
    "while": While(flag, copy(0)),
    "allocation": Allocate(buffer("T", 4), copy(0)),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_as_it_is(name: str) -> None:
    made = func(KEPT[name])
    assert simplify(made) is made


def test_a_condition_on_data_holds_until_it_is_written() -> None:
    body = IfThenElse(COUNT[0] > 0, IfThenElse(COUNT[0] > 0, copy(0)))
    assert structural_equal(simplify(func(body)).body, IfThenElse(COUNT[0] > 0, copy(0)))


def test_what_is_known_in_one_scope_is_not_known_in_the_next() -> None:
    """A shared expression, simplified under a condition, then without it."""
    shared = e.Select(i < 4, const(1.0), const(2.0))
    body = loop(i, n, SeqStmt((IfThenElse(i < 4, set_b(i, shared)), set_b(i, shared))))
    expected = loop(i, n, SeqStmt((IfThenElse(i < 4, set_b(i, const(1.0))), set_b(i, shared))))
    assert structural_equal(simplify(func(body)).body, expected)


def test_a_choice_that_evaluates_both_sides_keeps_their_indices_inside() -> None:
    """``A[max(i - 1, 0)]`` is read for i = 0, too, although what it gives is not chosen."""
    body = loop(i, n, set_b(i, e.Select(i > 0, A[e.maximum(i - 1, 0)], const(0.0))))
    assert structural_equal(simplify(func(body)).body, body)
