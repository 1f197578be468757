"""What rewrites reach: the shape and the strides of an allocation, too."""

from __future__ import annotations

from minitvm import te, tir
from minitvm.tir.functor import children, free_vars, replace_buffers, substitute, walk_once
from minitvm.tir.stmt import Allocate, AssertStmt, BufferStore, For, ForKind, Stmt

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
