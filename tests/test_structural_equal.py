"""Equality up to the names of bound variables."""

from __future__ import annotations

import pytest

from minitvm import lower, te
from minitvm.runtime.dtype import FLOAT32, HANDLE, INT64
from minitvm.tir import structural_equal as structural_equality
from minitvm.tir.expr import (
    Add,
    Buffer,
    BufferLoad,
    FloatImm,
    Let,
    Min,
    PrimExpr,
    Var,
    const,
)
from minitvm.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    FuncAttrs,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
)
from minitvm.tir.structural_equal import structural_equal

i, j = Var("i"), Var("j")


def buffer(name: str, size: PrimExpr) -> Buffer:
    return Buffer(Var(name, HANDLE), (size,), FLOAT32, name)


def fill(name: str, variable: str, value: float, kind: ForKind = ForKind.SERIAL) -> PrimFunc:
    param, index, size = Var(name + "_handle", HANDLE), Var(variable), Var("n")
    made = buffer(name, size)
    body = For(index, const(0), size, kind, BufferStore(made, const(value), (index,)))
    return PrimFunc((param,), body, {param: made}, name)


def test_free_variables_are_themselves() -> None:
    assert structural_equal(i + 1, i + 1)
    assert not structural_equal(i + 1, j + 1)


def test_free_variables_may_be_mapped_consistently() -> None:
    assert structural_equal(i + j, j + i, map_free_vars=True)
    assert not structural_equal(i + j, i + i, map_free_vars=True)
    assert not structural_equal(i + i, i + j, map_free_vars=True)
    assert not structural_equal(i, Var("i", INT64), map_free_vars=True)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (i + 1, i + 2),
        (Add(i, j), Min(i, j)),
        (const(1), const(1, "int64")),
        (const(1), const(True)),
        (const(0.0), FloatImm(FLOAT32, -0.0)),
    ],
)
def test_different(a: PrimExpr, b: PrimExpr) -> None:
    assert structural_equal(a, a)
    assert not structural_equal(a, b)


def test_nan_equals_nan() -> None:
    assert structural_equal(const(float("nan")), const(float("nan")))


def test_bound_names_do_not_count() -> None:
    x, y = Var("x"), Var("y")
    assert structural_equal(Let(x, i, x + 1), Let(y, i, y + 1))
    assert not structural_equal(Let(x, i, x + 1), Let(y, i, i + 1))
    assert not structural_equal(Let(x, x, i), Let(y, y, i))  # the values are outside


def test_functions() -> None:
    assert structural_equal(fill("A", "i", 1.0), fill("B", "k", 1.0))
    assert not structural_equal(fill("A", "i", 1.0), fill("B", "k", 2.0))
    assert not structural_equal(fill("A", "i", 1.0), fill("B", "k", 1.0, ForKind.PARALLEL))


def test_free_buffers_and_allocated_ones() -> None:
    a, b = buffer("a", const(4)), buffer("b", const(4))

    def store(target: Buffer) -> Stmt:
        return BufferStore(target, BufferLoad(target, (const(0),)), (const(1),))

    assert not structural_equal(store(a), store(b))
    assert structural_equal(store(a), store(b), map_free_vars=True)
    assert structural_equal(Allocate(a, store(a)), Allocate(b, store(b)))
    assert not structural_equal(Allocate(a, store(a)), Allocate(b, store(a)))
    other = buffer("c", const(5))
    assert not structural_equal(Allocate(a, store(a)), Allocate(other, store(other)))


def test_statements() -> None:
    x, y = Var("x"), Var("y")
    a = buffer("a", const(4))
    first = LetStmt(x, i, BufferStore(a, const(0.0), (x,)))
    second = LetStmt(y, i, BufferStore(a, const(0.0), (y,)))
    assert structural_equal(first, second)
    assert not structural_equal(SeqStmt((first,)), SeqStmt((first, second)))


def test_predicates() -> None:
    a = buffer("a", const(4))

    def store(*predicates: bool | None) -> Stmt:
        first, second = (None if each is None else const(each) for each in predicates)
        return BufferStore(a, BufferLoad(a, (i,), first), (i,), second)

    assert structural_equal(store(True, None), store(True, None))
    assert not structural_equal(store(True, None), store(None, None))
    assert not structural_equal(store(None, True), store(None, False))


def test_functions_made_twice_of_one_schedule() -> None:
    n = Var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    first, second = (lower([b], [a, b])["main"] for _ in range(2))
    assert structural_equal(first, second)
    all_written = FuncAttrs(outputs=frozenset(second.buffer_map.values()))
    other = PrimFunc(second.params, second.body, second.buffer_map, second.name, all_written)
    assert not structural_equal(first, other)


def test_shared_expressions_are_compared_once() -> None:
    def nested(x: Var) -> PrimExpr:
        value: PrimExpr = x
        for _ in range(64):  # 2**64 paths
            value = value * value + 1
        return value

    x, y = Var("x"), Var("y")
    assert structural_equal(nested(x), nested(x))
    assert structural_equal(nested(x), nested(y), map_free_vars=True)
    assert not structural_equal(nested(x) * x, nested(y) * x, map_free_vars=True)


def test_one_node_and_nodes_of_other_classes_are_compared_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: object, map_free_vars: bool) -> None:
        raise AssertionError("compared")

    monkeypatch.setattr(structural_equality._Comparison, "__init__", refuse)
    value = (i + 1) * j
    assert structural_equal(value, value)
    assert not structural_equal(value, (i + 1) // j)
    assert not structural_equal(value, BufferStore(buffer("b", j), const(1.0), (i,)))


def test_a_name_that_is_bound_later_is_another_one() -> None:
    x, y = Var("x"), Var("y")
    free = x + 1
    assert structural_equal(free * Let(x, free, free), free * Let(x, free, free))
    assert not structural_equal(free * Let(x, free, free), free * Let(y, free, free))
