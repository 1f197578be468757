"""Coverage: a proof that reads reach every element, against all elements written out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, event, given, note, settings
from hypothesis import strategies as st

from minitvm.arith.analyzer import Analyzer
from minitvm.arith.coverage import Coverage, Read
from minitvm.arith.prover import Prover
from minitvm.tir.expr import (
    PrimExpr,
    Range,
    Var,
    const,
    const_int,
    floordiv,
    floormod,
    maximum,
    minimum,
    multiply,
    subtract,
)
from minitvm.tir.functor import free_vars, substitute

Draw = Callable[[st.SearchStrategy[Any]], Any]
i, j, n, m = Var("i", axis=True), Var("j", axis=True), Var("n"), Var("m")


def index(draw: Draw, depth: int = 2) -> PrimExpr:
    """An index in terms of i and j."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        chosen: PrimExpr = draw(st.sampled_from([i, j, i, j, const(draw(st.integers(0, 3)))]))
        return chosen
    a = index(draw, depth - 1)
    c = draw(st.integers(1, 4))
    match draw(st.integers(0, 7)):
        case 0 | 1:
            return multiply(a, draw(st.sampled_from([-1, 2, 3, 4])))
        case 2 | 3:
            return a + index(draw, depth - 1)
        case 4:
            return floordiv(a, const(c))
        case 5:
            return floormod(a, const(c))
        case 6:
            return minimum(a, const(c)) if draw(st.booleans()) else maximum(a, const(c))
    return subtract(a, c)


def counted(values: Range) -> range:
    begin, extent = const_int(values.min), const_int(values.extent)
    assert begin is not None
    assert extent is not None
    return range(begin, begin + extent)


def evaluate(expr: PrimExpr, values: dict[Var, int]) -> int:
    made = const_int(Analyzer().simplify(substitute(expr, values)))
    assert made is not None
    return int(made)


@settings(max_examples=200, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_what_is_proved_is_so(data: st.DataObject) -> None:
    draw = data.draw
    extents = [draw(st.integers(0, 5)) for _ in range(draw(st.integers(1, 2)))]
    begins = [draw(st.sampled_from([0, 0, 1, 2])) for _ in "ij"]
    counts = [draw(st.integers(0, 6)) for _ in "ij"]
    ranges = {
        var: Range.from_min_extent(begin, count)
        for var, begin, count in zip((i, j), begins, counts, strict=True)
    }
    reads = [
        Read(tuple(index(draw) for _ in extents), ranges) for _ in range(draw(st.integers(1, 4)))
    ]
    covered = Coverage(Prover()).reach_all([Range(0, each) for each in extents], reads)
    event(f"covered: {covered}")
    note(f"{extents} {begins} {counts} {[[str(x) for x in r.indices] for r in reads]}")
    reached = np.zeros(extents, bool)
    for read in reads:  # an axis that no index uses need not run
        used = [
            var for var in (i, j) if any(x is var for each in read.indices for x in free_vars(each))
        ]
        for values in product(*(counted(ranges[var]) for var in used)):
            at = [evaluate(each, dict(zip(used, values, strict=True))) for each in read.indices]
            if all(0 <= a < extent for a, extent in zip(at, extents, strict=True)):
                reached[tuple(at)] = True
    assert not covered or reached.all()


@pytest.mark.parametrize(
    ("shape", "reads", "extents"),
    [
        ((5,), [(i,)], (5, 0)),
        ((12,), [(i * 4 + j,)], (3, 4)),
        ((12,), [(11 - i - j * 3,)], (3, 4)),
        ((9,), [(i * 2 + j,)], (4, 3)),
        ((8,), [(i * 2,), (i * 2 + 1,)], (4, 1)),
        ((3, 4), [(floordiv(i, const(4)), floormod(i, const(4)))], (12, 1)),
        (
            (2, 3, 4),
            [
                (
                    floordiv(i, const(12)),
                    floormod(floordiv(i, const(4)), const(3)),
                    floormod(i, const(4)),
                )
            ],
            (24, 1),
        ),
        ((4, 4), [(i + a, j + b) for a in range(2) for b in range(2)], (3, 3)),
        ((n,), [(i,)], (n, 1)),
        ((n * m,), [(i * m + j,)], (n, m)),
        ((n + 2,), [(i,), (i + 2,), (i + 1,)], (n, 1)),
        ((n * 2,), [(i * 2 + 1,), (i * 2,)], (n, 1)),
        ((n, m), [(j, i)], (m, n)),
    ],
)
def test_what_is_found(shape: Any, reads: Any, extents: Any) -> None:
    prover = Prover()
    for size in (n, m):
        prover.bind_size(size)
    for dim in shape:
        prover.bind(Var("element"), Range(0, dim))
    ranges = {
        var: Range.from_min_extent(0, each) for var, each in zip((i, j), extents, strict=True)
    }
    coverage = Coverage(prover)
    assert coverage.reach_all([Range(0, dim) for dim in shape], [Read(r, ranges) for r in reads])
    assert [str(each) for each in coverage.wanted] == (["n"] if str(shape[0]) == "n + 2" else [])
