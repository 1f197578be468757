"""``tir.IndexMap``: maps are compared with the functions that they are made of, index by index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir

_MAPS: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
    (lambda i: [i // 4, i % 4], (16,)),
    (lambda i: [i // 4, i % 4], (14,)),
    (lambda i: [i // 6, i % 6 // 2, i % 2], (23,)),
    (lambda i: i * 2, (5,)),
    (lambda i, j: [j, i], (3, 5)),
    (lambda i, j: [i * 5 + j], (3, 5)),
    (lambda i, j: i * 8 + j, (3, 4)),
    (lambda i, j: i * 8 + j, (3, 5)),
    (lambda i, j, k: i * 30 + k * 10 + j * 2, (2, 4, 3)),
    (lambda i, j: [i // 2, j // 8, i % 2, j % 8], (1, 20)),
    (lambda n, c, h: [n, c // 4, h, c % 4], (2, 6, 3)),
    (lambda i: [i // 4 * 4 + i % 4], (12,)),
    (lambda i: [i], (0,)),
]


def points(shape: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(int(each)) for each in shape))


def values(found: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in found)


def called(function: Callable[..., Any], point: Sequence[int]) -> tuple[int, ...]:
    made = function(*point)
    return tuple(made) if isinstance(made, list) else (made,)


def holds(condition: Any, variables: Sequence[Any], point: Sequence[int]) -> bool:
    made = tir.stmt_functor.substitute(condition, dict(zip(variables, point, strict=True)))
    return bool(int(tvm.arith.Analyzer().simplify(made)))


@pytest.mark.parametrize(("function", "shape"), _MAPS)
def test_maps_and_their_inverses(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    index_map = tir.IndexMap.from_func(function)
    images = {point: called(function, point) for point in points(shape)}
    for point, image in images.items():
        assert values(index_map.map_indices(point)) == image
    new = index_map.map_shape(shape)
    sizes = tuple(max(each) + 1 for each in zip(*images.values(), strict=True))
    assert values(new) == (sizes or (0,))
    back, padding = index_map.non_surjective_inverse(shape)
    inside = {point for point in points(new) if not holds(padding, back.initial_indices, point)}
    assert inside == set(images.values())
    for point, image in images.items():
        assert values(back.map_indices(image)) == point
    if len(inside) == np.prod(values(new)):
        assert index_map.inverse(shape).is_equivalent_to(back)
    else:
        with pytest.raises(tvm.CompileError, match="expected a map that fills its new shape"):
            index_map.inverse(shape)


def test_sizes_that_are_variables() -> None:
    n = te.var("n")
    split = tir.IndexMap.from_func(lambda i, j: [j, i // 4, i % 4])
    tvm.testing.assert_prim_expr_equal(split.map_shape([n, 3])[1], (n + 3) // 4)
    back, padding = split.non_surjective_inverse([n, 3])
    tvm.testing.assert_prim_expr_equal(padding, back.map_indices(back.initial_indices)[0] >= n)
    again = tir.IndexMap.from_func(lambda i, j: [j, i]).inverse([n, 3])
    assert again.is_equivalent_to(tir.IndexMap.from_func(lambda a, b: [b, a]))
    shifted = tir.IndexMap.from_func(lambda i: i + 3).map_range([tvm.ir.Range(2, 6)])
    assert (int(shifted[0].min), int(shifted[0].extent)) == (5, 4)


def test_the_ways_to_make_one() -> None:
    last = tir.IndexMap.from_func(lambda *i, n: [*i, n // 4, n % 4], ndim=3)
    assert str(last) == "index_map(lambda i_0, i_1, n: (i_0, i_1, n // 4, n % 4))"
    i, j = te.var("i"), te.var("j")
    assert tir.IndexMap([i, j], [j, i]).is_equivalent_to(
        tir.IndexMap.from_func(lambda a, b: (b, a))
    )
    wide = tir.IndexMap.from_func(lambda i: i // 2, index_dtype="int64")
    assert wide.initial_indices[0].dtype == "int64"
    known = tir.IndexMap.from_func(lambda i: i ^ 1, inverse_index_map=lambda i: i ^ 1)
    assert known.inverse([8]) is known.inverse_index_map
    assert known.non_surjective_inverse([8])[1].value == 0
    double, same = (tir.IndexMap.from_func(f) for f in (lambda i: i * 2, lambda i: i + i))
    assert double.is_equivalent_to(same)
    assert not double.is_equivalent_to(tir.IndexMap.from_func(lambda i: i * 3))
    assert not double.is_equivalent_to(last)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: tir.IndexMap.from_func(lambda *i: i), "expected ndim, the number of indices"),
        (lambda: tir.IndexMap.from_func(lambda i, j: i, ndim=3), "a function of 3 indices"),
        (lambda: tir.IndexMap.from_func(lambda i: "x"), "expected the function to return indices"),
        (lambda: tir.IndexMap.from_func(3), "expected a function of indices"),
        (lambda: tir.IndexMap([te.var("x", "float32")], []), "expected integer variables"),
        (lambda: tir.IndexMap([te.var("x"), 3], []), "expected integer variables"),
        (lambda: tir.IndexMap.from_func(lambda i: i).map_indices([1, 2]), "expected 1 indices"),
        (lambda: tir.IndexMap.from_func(lambda i: i).map_shape(8), "expected a shape"),
        (lambda: tir.IndexMap.from_func(lambda i: i).map_shape([1.5]), "expected extents"),
        (lambda: tir.IndexMap.from_func(lambda i: i % 4).inverse([8]), "no way back"),
        (lambda: tir.IndexMap.from_func(lambda i: i).inverse([tvm.ir.Range(1, 3)]), "begin at 0"),
        (lambda: tir.IndexMap.from_func(lambda i: i).is_equivalent_to(3), "expected an IndexMap"),
        (
            lambda: tir.IndexMap.from_func(lambda i: i, inverse_index_map=lambda i, j: i),
            "expected a function of 1 indices",
        ),
        (lambda: tir.IndexMap([], [], 5), "expected an IndexMap as inverse"),
    ],
)
def test_what_is_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(tvm.CompileError, match=message):
        attempt()
