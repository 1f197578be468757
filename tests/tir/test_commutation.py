"""What is proved of reducers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minitvm import te
from minitvm.tir.commutation import is_choice, is_commutative
from minitvm.tir.expr import CommReducer


def of_values(combine: Callable[[Any, Any], Any]) -> CommReducer:
    x, k = te.placeholder((4,), name="X"), te.reduce_axis((0, 4), "k")
    reducer = te.comm_reducer(combine, lambda dtype: te.const(0, dtype), name="r")
    found: CommReducer = reducer(x[k], axis=k).combiner
    return found


def of_pairs(combine: Callable[[Any, Any], Any]) -> CommReducer:
    x, k = te.placeholder((4,), name="X"), te.reduce_axis((0, 4), "k")
    reducer = te.comm_reducer(combine, lambda s, t: (te.const(0, s), te.const(0, t)), name="r")
    found: CommReducer = reducer((k.var, x[k]), axis=k)[0].combiner
    return found


def better(condition: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: tuple(te.if_then_else(condition(a, b), a[i], b[i]) for i in range(2))


@pytest.mark.parametrize(
    ("combine", "commutes", "chooses"),
    [
        (lambda a, b: a + b, True, False),
        (lambda a, b: te.max(b, a), True, True),
        (lambda a, b: te.if_then_else(a < b, a, b), True, True),
        (lambda a, b: a + b - a * b, True, False),
        (lambda a, b: te.sqrt(a * a + b * b), True, False),
        (lambda a, b: te.max(a, b) + te.log(te.exp(a - te.max(a, b)) + te.exp(b - te.max(a, b))),
         True, False),
        (lambda a, b: a - b, False, False),
        (lambda a, b: a * 2 + b, False, False),
        (lambda a, b: b, False, True),
        (lambda a, b: te.if_then_else(te.abs(a) > te.abs(b), a, b), False, False),
    ],
)  # fmt: skip
def test_reducers_of_values(
    combine: Callable[[Any, Any], Any], commutes: bool, chooses: bool
) -> None:
    combiner = of_values(combine)
    assert (is_commutative(combiner), is_choice(combiner)) == (commutes, chooses)


@pytest.mark.parametrize(
    ("combine", "commutes", "chooses"),
    [
        (lambda a, b: (a[0] + b[0], te.max(a[1], b[1])), True, False),
        (better(lambda a, b: a[1] >= b[1]), False, True),
        (better(lambda a, b: a[1] > b[1]), False, True),
        (better(lambda a, b: te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] < b[0]))), True, True),
        (better(lambda a, b: te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] <= b[0]))), True, True),
        (lambda a, b: (te.if_then_else(a[1] >= b[1], a[0], b[0]), te.max(a[1], b[1])), False, True),
        (lambda a, b: (te.if_then_else(a[1] >= b[1], a[0], b[0]), te.min(a[1], b[1])), False,
         False),
        (lambda a, b: (b[0], a[1]), False, False),
    ],
)  # fmt: skip
def test_reducers_of_pairs(
    combine: Callable[[Any, Any], Any], commutes: bool, chooses: bool
) -> None:
    combiner = of_pairs(combine)
    assert (is_commutative(combiner), is_choice(combiner)) == (commutes, chooses)
