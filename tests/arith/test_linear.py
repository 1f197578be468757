"""Affine constraints against enumeration of a small box."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm.arith import linear
from minitvm.arith.linear import (
    Affine,
    Atom,
    at_most,
    equal,
    find_witness,
    is_infeasible,
    less,
    project,
)
from minitvm.tir.expr import Var

X, Y, Z = (Affine.of_atom(Var(name)) for name in "xyz")
ATOMS = [next(iter(form.terms)) for form in (X, Y, Z)]
BOX = range(-4, 5)
IN_BOX = [row for form in (X, Y, Z) for row in (form + 4, -form + 4)]

coefficients = st.integers(-3, 3)
forms = st.builds(
    lambda a, b, c, d: X * a + Y * b + Z * c + d,
    coefficients, coefficients, coefficients, st.integers(-6, 6),
)  # fmt: skip
systems = st.lists(forms, max_size=4).map(lambda rows: [*rows, *IN_BOX])


def value(form: Affine, point: dict[Atom, int]) -> int:
    return form.constant + sum(c * point[a] for a, c in form.terms.items())


def solutions(rows: list[Affine]) -> list[dict[Atom, int]]:
    points = [dict(zip(ATOMS, each, strict=True)) for each in product(BOX, repeat=3)]
    return [p for p in points if all(value(row, p) >= 0 for row in rows)]


def test_forms_cancel() -> None:
    assert (X * 2 + Y - X - X - Y + 3).same_as(Affine({}, 3))
    assert not (X * 2).same_as(X)
    assert (X * 0).terms == {}


def test_no_integer_between_two_halves() -> None:
    assert is_infeasible(equal(X * 2, Y * 2 + 1))
    assert not is_infeasible(equal(X * 2, Y * 3 + 1))


def test_constraints_that_a_near_point_satisfies_need_no_elimination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(rows: object, column: int) -> None:
        raise AssertionError("eliminated")

    monkeypatch.setattr(linear, "_eliminate", refuse)
    tiles = [X * 16 - Y, Y - X * 16 + 15]  # X is (Y + 15) // 16
    assert not is_infeasible([*tiles, Y - 64, Z, X - Z - 1])
    assert not is_infeasible([*IN_BOX, X * -1 - 3, less(X, Y)])  # X is below zero
    assert is_infeasible([Affine({}, -1)])


def test_bounds_of_one_atom_that_contradict_each_other_need_no_elimination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(rows: object, column: int) -> None:
        raise AssertionError("eliminated")

    monkeypatch.setattr(linear, "_eliminate", refuse)
    others = [X - Y * 2, Y * 2 - X + 1, Y, Z - X]
    assert linear.conflict([*others, Z * 3 - 10, -Z * 2 + 7]) == [4, 5]  # 4 <= Z <= 3
    assert linear.conflict([Y * -1 - 1, *others]) == [0, 3]
    assert linear.conflict([*others, Z * 3 - 9, -Z * 2 + 7]) is None


def test_numbers_alone_are_decided() -> None:
    assert is_infeasible([less(X, X)])
    assert is_infeasible([Affine({}, -1), X])
    assert not is_infeasible([at_most(X, X)])
    assert find_witness([at_most(X, X)]) == {}


def test_strict_cycle_is_infeasible() -> None:
    assert is_infeasible([less(X, Y), less(Y, Z), at_most(Z, X)])
    assert not is_infeasible([at_most(X, Y), at_most(Y, Z), at_most(Z, X)])


def test_unbounded_witness_stays_near_zero() -> None:
    assert find_witness([X - 3, less(X, Y)]) == {ATOMS[0]: 3, ATOMS[1]: 4}
    assert find_witness([-X - 2]) == {ATOMS[0]: -2}
    assert find_witness([less(X, X)]) is None
    for sign in (1, -1):  # at the far end of a long range
        far = [*equal(X * sign, Y * 100 + 1), X * sign + 199, X * -sign - 100]
        assert find_witness(far) == {ATOMS[0]: -199 * sign, ATOMS[1]: -2}


def test_projection_keeps_what_is_left() -> None:
    made = project([X, less(X, Y), at_most(Z, X)], [ATOMS[1], ATOMS[2]])
    assert made is not None
    assert made.exact
    assert is_infeasible([*made.constraints, -Y])  # 0 <= x < y
    assert is_infeasible([*made.constraints, at_most(Y, Z)])


def test_projection_says_when_it_is_inexact() -> None:
    made = project([X * 2 - Y, Y - X * 2], [ATOMS[1]])  # y is even
    assert made is not None
    assert not made.exact


@given(systems)
@settings(max_examples=150, deadline=None)
def test_decisions_agree_with_enumeration(rows: list[Affine]) -> None:
    points = solutions(rows)
    if is_infeasible(rows):
        assert not points
    witness = find_witness(rows)
    if witness is not None:
        assert all(value(row, {**dict.fromkeys(ATOMS, 0), **witness}) >= 0 for row in rows)
    assert (witness is not None) == bool(points)


@given(systems)
@settings(max_examples=100, deadline=None)
def test_projections_agree_with_enumeration(rows: list[Affine]) -> None:
    kept = ATOMS[0]
    made = project(rows, [kept])
    assert made is not None
    shadow = {point[kept] for point in solutions(rows)}
    zeros = dict.fromkeys(ATOMS, 0)
    found = {x for x in BOX if all(value(r, {**zeros, kept: x}) >= 0 for r in made.constraints)}
    assert shadow <= found
    if made.exact:
        assert shadow == found


@given(st.tuples(*[st.one_of(st.none(), st.integers(-90, 90))] * 2))
def test_candidates(ends: tuple[int | None, int | None]) -> None:
    """Integers between both ends, each once, from the one nearest to zero on, the ends among
    them."""
    low, high = ends
    found = list(linear._candidates(low, high))
    assert len(set(found)) == len(found)
    assert all((low is None or low <= x) and (high is None or x <= high) for x in found)
    if low is not None and high is not None and low > high:
        assert not found
        return
    nearest = max(low or 0, 0) if high is None or high >= 0 else high
    if low is not None and low > 0:
        nearest = low
    assert found[0] == nearest
    assert {end for end in ends if end is not None} <= set(found)
