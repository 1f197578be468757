"""Loops whose one iteration data name become that iteration, and only where that is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from minitvm import tir
from minitvm.interpreter import interpret
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var, const
from minitvm.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.enter_once import enter_once
from tests.tir.programs import function_of, likely, loop
from tests.transform.loop_nests import Nest, loop_nests, same_effect

i, j, n = (Var(name) for name in "ijn")
KEY = tir.decl_buffer((9,), "int32", name="K")
B = tir.decl_buffer((4,), "int32", name="B")
func = function_of(n, KEY, B)


def counting(condition: PrimExpr, buffer: tir.Buffer = B) -> Stmt:
    return IfThenElse(condition, BufferStore(buffer, buffer[j] + 1, (j,)))


def counts(made: PrimFunc, keys: list[int]) -> list[int]:
    found = np.zeros(4, "int32")
    interpret(made, 9, np.array(keys, "int32"), found)
    return [int(each) for each in found]


@settings(deadline=None)
@given(loop_nests())
def test_nothing_changes(nest: Nest) -> None:
    same_effect(nest, enter_once(nest.func))


@pytest.mark.parametrize(
    "condition",
    [
        e.EQ(KEY[i], j),
        e.EQ(j, KEY[i]),
        e.EQ(e.cast("int64", KEY[i]), e.cast("int64", j)),
        e.EQ(e.cast("int8", j), e.cast("int8", KEY[i])),
        likely(e.EQ(KEY[i], j)),
        e.logical_and(e.EQ(KEY[i], j), KEY[i] >= 0),
    ],
    ids=str,
)
def test_a_key_names_its_iteration(condition: PrimExpr) -> None:
    before = func(loop(i, 9, loop(j, 4, counting(condition))))
    made = enter_once(before)
    assert isinstance(made.body, For)
    assert isinstance(made.body.body, LetStmt)
    keys = [0, 3, 1, -1, 4, 3, 2_000_000_000, -(2**31), 3]  # some name no iteration
    if "int8" not in str(condition):
        assert counts(made, keys) == [1, 1, 0, 3]
    assert counts(made, keys) == counts(before, keys)


def test_a_condition_behind_the_first_stays() -> None:
    both = e.logical_and(e.EQ(KEY[i], j), j < n - 7)
    before = func(loop(i, 9, loop(j, 4, counting(both))))
    assert counts(enter_once(before), [0, 1, 2, 3, 1, 1, 1, 1, 1]) == [1, 6, 0, 0]


@pytest.mark.parametrize(
    "body",
    [
        loop(j, n, counting(e.EQ(KEY[i], j))),  # it may not run
        loop(j, 0, counting(e.EQ(KEY[i], j))),
        loop(j, 4, counting(e.EQ(KEY[i], j)), ForKind.PARALLEL),
        loop(j, 4, counting(e.EQ(KEY[j], j))),  # another value in each iteration
        loop(j, 4, counting(e.EQ(KEY[i], j), KEY)),  # which the loop changes
        loop(j, 4, counting(e.logical_and(j > 1, e.EQ(KEY[i], j)))),  # read under a condition
        loop(j, 4, counting(e.NE(KEY[i], j))),
        loop(j, 4, counting(e.EQ(i, j))),  # no data
        loop(j, 200, counting(e.EQ(e.cast("int8", KEY[i]), e.cast("int8", j)))),  # ambiguous
        loop(j, 4, IfThenElse(e.EQ(KEY[i], j), BufferStore(B, const(1), (j,)),
                              BufferStore(B, const(2), (j,)))),
    ],
)  # fmt: skip
def test_other_loops_stay(body: Stmt) -> None:
    before = func(loop(i, 4, body))
    assert structural_equal(enter_once(before), before)


def test_nested_loops_are_entered_once_each() -> None:
    other = tir.decl_buffer((9,), "int32", name="L")
    pairs = tir.decl_buffer((3, 4), "int32", name="P")
    c = Var("c")
    both = e.logical_and(e.EQ(KEY[i], c), e.EQ(j, other[i]))
    store = IfThenElse(both, BufferStore(pairs, pairs[c, j] + 1, (c, j)))
    before = function_of(KEY, other, pairs)(loop(i, 9, loop(c, 3, loop(j, 4, store))))
    made = enter_once(before)
    assert str(made).count("for ") == 1
    keys = [np.array(each, "int32") for each in ([0, 2, 2, 3, -1, 2, 1, 0, 2], [*range(-2, 7)])]
    results = []
    for each in (before, made):
        results.append(np.zeros((3, 4), "int32"))
        interpret(each, *keys, results[-1])
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].sum() == 2


def test_a_value_that_the_loop_changes_is_not_tested_first() -> None:
    both = e.logical_and(e.EQ(B[0], const(0)), e.EQ(KEY[i], j))
    before = func(loop(i, 9, loop(j, 4, counting(both))))
    assert structural_equal(enter_once(before), before)
