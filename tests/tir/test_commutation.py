"""What is proved of reducers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te
from minitvm.tir.commutation import can_exchange_terms, is_choice, is_commutative
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


def means(share: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Combines counts and means of two parts; the share of the second part is of its count, and of
    that of both."""
    return lambda a, b: (a[0] + b[0], a[1] + (b[1] - a[1]) * share(b[0], a[0] + b[0]))


@pytest.mark.parametrize(
    ("combine", "exchanges"),
    [
        (means(lambda part, all_: part / te.max(all_, 1.0)), True),
        (means(lambda part, all_: te.if_then_else(all_ > 0.0, part / all_, 0.0)), True),
        (
            means(
                lambda part, all_: tvm.Select(all_ == 0.0, te.const(0.0), part / te.max(all_, 1.0))
            ),
            True,
        ),
        (means(lambda part, all_: part / all_), False),  # two lanes without terms are 0 / 0
        (means(lambda part, all_: te.exp(part) / all_), False),  # untried
        (lambda a, b: (a[0] + b[0], a[1]), False),
        (lambda a, b: (a[0] + b[0], a[1] * 0.5 + b[1]), False),
        (lambda a, b: (a[0] + b[0], te.if_then_else(a[1] != 0.0, a[1], b[1])), False),
        (lambda a, b: (a[0] + b[0], te.if_then_else(a[1] > 99.0, a[1], te.max(a[1], b[1]))), False),
        (lambda a, b: (a[0] + b[0], te.max(a[1], b[1]) + te.min(a[1], b[1])), True),
    ],
)
def test_terms_that_may_be_exchanged(combine: Callable[[Any, Any], Any], exchanges: bool) -> None:
    x, k = te.placeholder((4,), name="X"), te.reduce_axis((0, 4), "k")
    reducer = te.comm_reducer(combine, lambda s, t: (te.const(0, s), te.const(0, t)), name="r")
    assert can_exchange_terms(reducer((te.const(1.0), x[k]), axis=k)[0]) == exchanges
