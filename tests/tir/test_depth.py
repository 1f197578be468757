"""Expressions that are nested deeply or share their parts: computed in linear work, or refused."""

# Shared and nested programs are made by loops over Any.
# mypy: disable-error-code="arg-type,attr-defined,operator,no-untyped-call"

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.tir.depth import nesting
from minitvm.tir.functor import post_order_visit, substitute

LEVELS = 5000
v = te.var("v", "float32")
n = te.var("n")


def chained(value: Any, levels: int, from_the_left: bool = True) -> Any:
    made = value
    for _ in range(levels):
        made = made + value if from_the_left else value + made
    return made


def shared(value: Any, levels: int = 200) -> Any:
    """A graph of `levels` nodes, whose tree has 2**levels."""
    for _ in range(levels):
        value = value * value + 1
    return value


@pytest.mark.parametrize("from_the_left", [False, True])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("structural_equal", lambda e: tvm.ir.structural_equal(e, chained(v, LEVELS, e.b is v))),
        ("substitute", lambda e: substitute(e, {v: v * 2.0})),
        ("ir_transform", lambda e: tir.stmt_functor.ir_transform(e, None, lambda node: None)),
        ("Analyzer.simplify", lambda e: tvm.arith.Analyzer().simplify(e)),
    ],
)
def test_what_recurses_names_the_depth(
    name: str, function: Callable[[Any], Any], from_the_left: bool
) -> None:
    usual = sys.getrecursionlimit()
    expression = chained(v, LEVELS, from_the_left)
    with pytest.raises(tvm.CompileError, match=rf"^{name}: expected .* found one of 5001 levels"):
        function(expression)
    function(chained(v, 200, from_the_left))
    assert sys.getrecursionlimit() == usual


@pytest.mark.parametrize("name", ["const_int_bound", "modular_set", "int_set", "simplify"])
def test_integers_nested_deeply(name: str) -> None:
    function = getattr(tvm.arith.Analyzer(), name)
    with pytest.raises(tvm.CompileError, match=rf"^Analyzer.{name}: expected .* of 5001 levels"):
        function(chained(n, LEVELS))
    function(chained(n, 1000))  # beyond Python's usual limit


def test_gradients_of_bodies_nested_deeply() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: chained(a[i], LEVELS), name="B")
    with pytest.raises(tvm.CompileError, match=r"^gradient: expected expressions nested less deep"):
        te.gradient(b, [a])


@pytest.mark.parametrize("from_the_left", [False, True])
def test_what_does_not_recurse_has_no_limit(from_the_left: bool) -> None:
    expression = chained(n, LEVELS, from_the_left)
    assert nesting(expression) == LEVELS + 1
    visited: list[Any] = []
    post_order_visit(expression, visited.append)
    assert len(visited) == 2 * LEVELS + 1
    assert visited[-1] is expression
    assert str(expression).count("+") == LEVELS
    other = chained(te.var("m"), LEVELS, from_the_left)
    hashes = {tvm.ir.structural_hash(each, map_free_vars=True) for each in (expression, other)}
    assert len(hashes) == 1
    found = tvm.arith.detect_linear_equation(expression, [n])
    assert [int(each) for each in found] == [LEVELS + 1, 0]


@pytest.mark.parametrize("map_free_vars", [False, True])
def test_shared_subexpressions_are_read_once(map_free_vars: bool) -> None:
    first, second, other = shared(v), shared(v), shared(v, 199)
    assert tvm.ir.structural_equal(first, second, map_free_vars)
    assert not tvm.ir.structural_equal(first, other, map_free_vars)
    hashes = [tvm.ir.structural_hash(each, map_free_vars) for each in (first, second, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    tvm.arith.Analyzer().modular_set(shared(n))


@pytest.mark.parametrize("map_free_vars", [False, True])
def test_sharing_is_no_part_of_a_program(map_free_vars: bool) -> None:
    def made(share: bool, w: Any) -> Any:
        def part() -> Any:
            x = te.var("x", "float32")
            return tir.Let(x, v * w, x * x + v)

        first = part()
        inner = first * (first if share else part())
        return inner + (inner if share else part() * part())

    w = te.var("w", "float32")
    programs = [made(True, w), made(False, w)]
    assert tvm.ir.structural_equal(programs[0], programs[1], map_free_vars)
    a, b = (tvm.ir.structural_hash(each, map_free_vars) for each in programs)
    assert a == b
    assert tvm.ir.structural_hash(made(True, v), map_free_vars) != a


def test_a_variable_that_changes_its_meaning_is_read_again() -> None:
    """A shared expression of a variable that one loop binds outside and the other one inside."""
    i, j = te.var("i"), te.var("j")
    buffer = tir.decl_buffer((4, 4), "int32", name="X")
    store = tir.BufferStore(buffer, i * 2 + j, [i, j])

    def nest(outer: Any, inner: Any) -> Any:
        loop = tir.For(inner, 0, 4, tir.ForKind.SERIAL, store)
        return tir.For(outer, 0, 4, tir.ForKind.SERIAL, loop)

    one = tir.PrimFunc([buffer], tir.SeqStmt([nest(i, j), nest(i, j)]))
    two = tir.PrimFunc([buffer], tir.SeqStmt([nest(i, j), nest(j, i)]))
    assert not tvm.ir.structural_equal(one, two)
    assert not tvm.ir.structural_equal(two, one)
    assert tvm.ir.structural_hash(one) != tvm.ir.structural_hash(two)


def test_linear_forms_of_products_with_zero_and_of_any_node() -> None:
    x, y = te.var("x"), te.var("y")
    detect = tvm.arith.detect_linear_equation
    assert detect((x - x) * y, [x, y]) == []
    assert detect(te.max(x, 1) + y, [x]) == []
    assert [str(each) for each in detect(te.max(x, 1) + y, [y])] == ["1", "max(x, 1)"]
    assert [str(each) for each in detect(x * n - y * 2, [x, y])] == ["n", "-2", "0"]
    assert [str(each) for each in detect(x, [])] == ["x"]
