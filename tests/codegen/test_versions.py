"""Loops in versions: what is chosen once, which loops have versions, and the values of copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.codegen.row_copies import LONG, bytes_of_copy
from minitvm.codegen.versions import versions_of
from minitvm.te.tensor import Tensor
from minitvm.tir.functor import mentions, walk_once
from minitvm.tir.op import are_apart
from minitvm.tir.stmt import AttrStmt, For, IfThenElse, Stmt
from minitvm.transform.stream_stores import ALIGNMENT

m, n = te.var("m"), te.var("n")


def row_loop(*tensors: Tensor) -> For:
    """The loop over rows of a program that is scheduled here."""
    func = tvm.lower(tvm.auto_schedule(tensors[-1], "llvm -mcpu=haswell"), list(tensors))
    loops = [each for each in walk_once(func["main"].body) if isinstance(each, For)]
    return loops[0]


def choices(node: Stmt) -> list[Stmt]:
    return [
        each
        for each in walk_once(node)
        if (isinstance(each, IfThenElse) and each.else_case is not None)
        or (isinstance(each, AttrStmt) and each.attr_key in ALIGNMENT)
    ]


def test_a_row_has_no_choices_in_the_last_version() -> None:
    X, b, c = te.placeholder((m, n), name="X"), te.placeholder((n,), name="b"), te.placeholder((m,))
    loop = row_loop(X, b, c, te.compute((m, n), lambda i, j: X[i, j] + b[j] * c[i], name="Y"))
    past = versions_of(loop)
    assert past is not None and isinstance(past.choice, AttrStmt)
    assert not any(isinstance(each, AttrStmt) for each in choices(past.fails))
    ends = versions_of(past.fails)
    assert (
        ends is not None and "n > 7" in str(ends.choice) and are_apart.__name__ in str(ends.choice)
    )
    assert not choices(ends.holds) and not choices(ends.fails)
    assert versions_of(ends.holds) is None


def test_a_choice_that_differs_from_row_to_row_stays() -> None:
    X = te.placeholder((m, n), name="X")

    def element(i: Any, j: Any) -> Any:
        return te.if_then_else(j < i, X[i, j], 0.0)

    loop: For | None = row_loop(X, te.compute((m, n), element, name="Y"))
    seen = 0
    while loop is not None and (found := versions_of(loop)) is not None:
        condition = found.choice.value if isinstance(found.choice, AttrStmt) else found.choice
        assert not mentions(loop.loop_var, condition)
        loop, seen = found.fails, seen + 1
    assert seen


def test_which_rows_are_one_copy() -> None:
    def sizes(*shape: Any) -> set[int]:
        X = te.placeholder(shape, name="X")
        loop = row_loop(X, te.compute(shape, lambda i, j: X[shape[0] - 1 - i, j], name="Y"))
        found = (bytes_of_copy(each) for each in walk_once(loop) if isinstance(each, For))
        return {each for each in found if each is not None}

    assert sizes(m, n) == {32}
    assert sizes(m, LONG // 4) == {32}
    assert sizes(m, LONG // 8) == set()


@pytest.mark.parametrize("columns", [1, 15, 16, 100, LONG // 4 - 1, LONG // 4, LONG // 4 + 1, 9000])
def test_rows_of_an_array_that_is_both_input_and_output(columns: int) -> None:
    X = te.placeholder((m, n), name="X")
    Y = te.compute((m, n), lambda i, j: X[i, j], name="Y")
    f = tvm.build(Y, [X, Y])
    x = np.random.default_rng(0).random((3, columns), dtype="float32")
    y, before = np.empty_like(x), x.copy()
    f(x, y)
    f(x, x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, before)
