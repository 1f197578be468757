"""Vectorized loops become serial, and nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from minitvm import tir
from minitvm.tir.expr import Var, const
from minitvm.tir.stmt import BufferStore, ForKind, PrimFunc, Stmt
from minitvm.tir.structural_equal import structural_equal
from minitvm.transform.serialize_vectors import serialize_vectors
from tests.tir.programs import loop
from tests.transform.loop_nests import Nest, loop_nests, same_effect

i, j = Var("i"), Var("j")
B = tir.decl_buffer((64, 64), name="B")
FILL = BufferStore(B, const(1.0), (i, j))


def func(body: Stmt) -> PrimFunc:
    return PrimFunc((B.data,), body, {B.data: B}, "f")


@settings(deadline=None)
@given(loop_nests())
def test_random_programs_mean_the_same(nest: Nest) -> None:
    same_effect(nest, serialize_vectors(nest.func))


@pytest.mark.parametrize("extent", [0, 1, 8])
def test_vectors_inside_of_vectors(extent: int) -> None:
    vectors, serial = ForKind.VECTORIZED, ForKind.SERIAL
    made = serialize_vectors(func(loop(i, 8, loop(j, extent, FILL, vectors), vectors)))
    expected = func(loop(i, 8, loop(j, extent, FILL, serial), serial))
    assert structural_equal(made, expected)


@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.PARALLEL, ForKind.UNROLLED])
def test_loops_of_other_kinds_are_the_same_object(kind: ForKind) -> None:
    body = loop(i, 8, loop(j, 8, FILL, kind), kind)
    assert serialize_vectors(func(body)).body is body
