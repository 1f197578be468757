"""Conditions move out of loops, and only where that makes no difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from minitvm import tir
from minitvm.tir.expr import Var, const
from minitvm.tir.stmt import AttrStmt, BufferStore, ForKind, IfThenElse, PrimFunc, Stmt, seq
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.hoist_conditions import hoist_conditions
from tests.tir.programs import function_of, likely, loop
from tests.transform.loop_nests import Nest, loop_nests, same_effect

i, j, k, n = (Var(name) for name in "ijkn")
B = tir.decl_buffer((64, 64), name="B")
COUNT = tir.decl_buffer((64,), "int32", name="N")


func = function_of(n, k, B, COUNT)


def fill(value: float = 0.0) -> Stmt:
    return BufferStore(B, const(value), (i, j))


@settings(deadline=None)
@given(loop_nests())
def test_nothing_changes_but_the_place(nest: Nest) -> None:
    same_effect(nest, hoist_conditions(nest.func))


def test_each_of_nested_guards_moves_by_itself(golden: Callable[[str], None]) -> None:
    body = IfThenElse(likely(j < k), IfThenElse(likely(i < k), fill()))
    tile = loop(i, 4, loop(j, 8, body, ForKind.VECTORIZED), ForKind.UNROLLED)
    again = loop(i, 4, loop(j, 8, IfThenElse(likely(n > 0), fill(1.0))))
    golden(str(hoist_conditions(func(seq(tile, again)))))


def test_conditions_move_out_of_padding_and_its_guards_stay() -> None:
    def padded(body: Stmt) -> Stmt:
        return AttrStmt(B, "padded_buffer", const(1), body)

    guard = likely(j < k)
    before = loop(i, n, loop(j, 8, padded(IfThenElse(guard, IfThenElse(i < k, fill())))))
    after = loop(i, n, IfThenElse(i < k, loop(j, 8, padded(IfThenElse(guard, fill())))))
    assert structural_equal(hoist_conditions(func(before)).body, after)


def test_neighbours_under_one_condition_are_joined() -> None:
    row = loop(j, 8, fill()), loop(j, 8, fill(1.0))
    guarded = (loop(j, 8, IfThenElse(i < k, fill())), loop(j, 8, IfThenElse(i < k, fill(1.0))))
    made = hoist_conditions(func(loop(i, n, seq(*guarded)))).body
    assert structural_equal(made, loop(i, n, IfThenElse(i < k, seq(*row))))


def test_both_cases() -> None:
    body = loop(j, 8, IfThenElse(n > k, fill(), fill(1.0)))
    expected = IfThenElse(n > k, loop(j, 8, fill()), loop(j, 8, fill(1.0)))
    assert structural_equal(hoist_conditions(func(body)).body, expected)


COUNTED = IfThenElse(COUNT[i] > 0, fill())
STEP = BufferStore(COUNT, const(0), (i,))


def test_a_condition_that_reads_moves_out_of_a_loop_that_runs() -> None:
    made = hoist_conditions(func(loop(j, 8, COUNTED))).body
    assert structural_equal(made, IfThenElse(COUNT[i] > 0, loop(j, 8, fill())))


@pytest.mark.parametrize(
    "body",
    [
        loop(j, n, COUNTED),  # it may be that there is no row i at all
        loop(j, 8, IfThenElse(COUNT[i] > 0, seq(fill(), STEP))),
        loop(j, 8, IfThenElse(j < k, IfThenElse(COUNT[i] > 0, fill()))),
        loop(j, 8, seq(fill(), IfThenElse(n > k, fill(1.0)))),
        loop(j, n, IfThenElse(j > k, fill(), fill(1.0))),
        seq(IfThenElse(COUNT[i] > 0, STEP), IfThenElse(COUNT[i] > 0, fill())),
    ],
    ids=["zero trips", "written", "guarded read", "not all", "own variable", "written between"],
)
def test_kept_as_it_is(body: Stmt) -> None:
    before = PrimFunc((n, k, i, j, B.data, COUNT.data), body, func(body).buffer_map, "f")
    assert hoist_conditions(before) is before
