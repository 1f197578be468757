"""The cases of parametrised tests that an ordinary run has."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.covering import chosen


@pytest.mark.parametrize("counts", [(2, 2, 2), (4, 3, 2), (5, 2, 2, 3), (12, 4), (7,)])
@pytest.mark.parametrize("strength", [1, 2])
def test_what_meets_in_any_case_meets_in_a_chosen_one(
    counts: tuple[int, ...], strength: int
) -> None:
    cases = [
        [(f"parameter {place}", (value,)) for place, value in enumerate(values)]
        for values in product(*map(range, counts))
    ]
    kept = [cases[number] for number in chosen(cases, strength)]
    size = min(strength, len(counts))
    met, all_met = (
        {each for case in some for each in combinations(case, size)} for some in (kept, cases)
    )
    assert met == all_met
    assert len(kept) < len(cases) or size == len(counts)


def test_values_are_chosen_about_as_often() -> None:
    cases = [[("spec", (a,)), ("dtype", (b,))] for a in range(12) for b in range(4)]
    dtypes = [cases[number][1][1][0] for number in chosen(cases, 1)]
    assert sorted(dtypes) == sorted([*range(4)] * 3)
