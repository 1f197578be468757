"""What rewrites reach: the shape and the strides of an allocation, too."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from minitvm import te, tir
from minitvm.runtime.errors import InternalError
from minitvm.tir.functor import (
    Mutator,
    children,
    contains,
    find,
    free_vars,
    replace_buffers,
    substitute,
    walk_once,
)
from minitvm.tir.stmt import Allocate, AssertStmt, BufferStore, For, ForKind, Stmt, While

i, j = te.var("i"), te.var("j")
sizes = tir.decl_buffer((4,), "int32", name="sizes")
rows = tir.decl_buffer((sizes[0] + i, 2), name="rows", strides=(i * 2, 1))


def filled() -> Stmt:
    """A workspace whose layout depends on a variable and on data, and a loop that fills it."""
    store = BufferStore(rows, te.const(0.0), (j, te.const(0)))
    return Allocate(rows, For(j, te.const(0), i, ForKind.SERIAL, store))


def test_the_layout_of_an_allocation_is_read() -> None:
    assert free_vars(Allocate(rows, tir.Evaluate(te.const(0)))) == [i]
    assert any(isinstance(node, tir.BufferLoad) for node in walk_once(filled()))


def test_a_substitution_reaches_the_layout_of_an_allocation() -> None:
    made = substitute(filled(), {i: 3})
    assert isinstance(made, Allocate)
    assert str(made.buffer.shape[0]) == "sizes[0] + 3"
    assert str(made.buffer.strides[0]) == "3 * 2"
    (store,) = (node for node in walk_once(made) if isinstance(node, BufferStore))
    assert store.buffer is made.buffer


def test_buffers_in_the_layout_of_an_allocation_are_replaced() -> None:
    others = tir.decl_buffer((8,), "int32", name="others")
    made = replace_buffers(filled(), {sizes: others})
    assert isinstance(made, Allocate)
    assert str(made.buffer.shape[0]) == "others[0] + i"
    (store,) = (node for node in walk_once(made) if isinstance(node, BufferStore))
    assert store.buffer is made.buffer


def test_what_stays_is_the_same_object() -> None:
    body = filled()
    assert substitute(body, {te.var("k"): 3}) is body


def test_trees_without_nodes_of_interest_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[str] = []
    descend = Mutator.descend

    def noted(self: Mutator, node: Any) -> Any:
        visited.append(type(node).__name__)
        return descend(self, node)

    monkeypatch.setattr(Mutator, "descend", noted)

    class Products(Mutator):
        def visit_Mul(self, node: tir.Mul) -> Any:
            return node.a

    class Every(Mutator):
        def expr(self, node: Any) -> Any:
            return super().expr(node)

    n = te.var("n")
    quotient = (n + 1) // 2
    assert Products().expr(quotient) is quotient
    assert not visited
    assert Every().expr(quotient) is quotient
    assert visited[:2] == ["FloorDiv", "Add"]
    assert str(Products().expr(quotient * n + n)) == "(n + 1) // 2 + n"


def test_what_a_statement_computes_comes_before_what_is_in_it() -> None:
    """The fields of an AssertStmt stand in another order."""
    condition, value, body = i < 1, i + 2, tir.Evaluate(te.const(0))
    assert children(AssertStmt(condition, "{}", body, (value,))) == (condition, value, body)
    assert children(Allocate(rows, body)) == (*rows.shape, *rows.strides, body)


def test_a_reducer_is_rebuilt_with_what_it_combines() -> None:
    k = te.reduce_axis((0, 4), name="k")
    scaled = te.comm_reducer(lambda x, y: x + y * i, lambda dtype: i * 0 + j, name="scaled")
    reduced = scaled(te.var("v"), axis=k)
    made = substitute(reduced, {i: 3, j: 5})
    assert isinstance(made, tir.Reduce) and made.combiner is not reduced.combiner
    assert [str(each) for each in (*made.combiner.result, *made.combiner.identity)] == [
        "x + y * 3",
        "5",
    ]
    assert made.combiner.lhs == reduced.combiner.lhs and made.axis == (k,)


@pytest.mark.parametrize(
    "kinds",
    [tir.BufferLoad, (tir.BufferLoad, tir.Var), (For, BufferStore, tir.Add), (tir.Call,), While],
)
def test_nodes_of_some_classes_are_found_in_order(kinds: Any) -> None:
    """As in a walk over all nodes; a shared node is found once."""
    shared = sizes[j] + i
    body = tir.SeqStmt((filled(), BufferStore(sizes, shared + shared, (j,)), filled()))
    expected = [node for node in walk_once(body, shared) if isinstance(node, kinds)]
    for _ in range(2):  # what was found first is kept in the nodes
        assert [*map(id, find(kinds, body, shared))] == [*map(id, expected)]
    assert contains(kinds, body, shared) == bool(expected)


def test_a_deep_tree_is_searched() -> None:
    deep: tir.PrimExpr = sizes[0]
    for _ in range(20_000):
        deep = tir.Add(deep, i)
    assert len([*find(tir.BufferLoad, deep)]) == 1
    assert not contains(tir.Call, deep)


def test_what_was_found_is_not_pickled() -> None:
    """Another process gives the classes other bits."""
    node = sizes[0] + i
    assert contains(tir.BufferLoad, node)
    assert not hasattr(pickle.loads(pickle.dumps(node)), "_kinds")


def test_classes_that_are_no_nodes_are_refused() -> None:
    with pytest.raises(InternalError, match="find: expected a class of nodes, got PrimExpr"):
        contains(tir.PrimExpr, sizes[0])
