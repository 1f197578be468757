"""Indices become 64-bit, values keep their dtype."""

from __future__ import annotations

import numpy as np

import minitvm as tvm
from minitvm import te, tir
from minitvm.tir.expr import BufferLoad, Cast
from minitvm.tir.functor import walk_once
from minitvm.tir.stmt import BufferStore, For, ForKind, LetStmt, PrimFunc
from minitvm.tir.verify import verify
from minitvm.transform.widen_indices import widen_indices
from tests.tir.programs import function


def store_loop() -> PrimFunc:
    """``for i in range(n): B[i * 4 + 1] = A[B_index(i)] + float32(i)`` with a shared let."""
    n = te.var("n")
    a = tir.decl_buffer((n * 8 + 8,), name="A")
    b = tir.decl_buffer((n * 8 + 8,), name="B")
    i, twice = te.var("i"), te.var("twice")
    shared = tir.Let(twice, i * 2, twice + 1)
    value = a[shared] + te.cast("float32", shared) + te.cast("float32", i)
    body = BufferStore(b, value, (i * 4 + 1,))
    loop = For(i, te.const(0), n, ForKind.SERIAL, body)
    return function("f", n, a, b, body=loop)


def test_dtypes() -> None:
    """Loops and indices are of 64 bits; a value is still made of 32."""
    made = widen_indices(store_loop())
    for node in walk_once(made.body):
        if isinstance(node, For):
            assert node.loop_var.dtype == node.extent.dtype == "int64"
        if isinstance(node, BufferStore | BufferLoad):
            assert [index.dtype for index in node.indices] == ["int64"]
        if isinstance(node, Cast) and node.dtype == "float32":
            assert node.value.dtype == "int32"


def test_a_let_may_stand_in_an_index_and_in_a_value() -> None:
    a, b = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    tvm.build(store_loop())(3, a, b)
    expected = np.zeros(32, np.float32)
    for i in range(3):
        expected[i * 4 + 1] = a[i * 2 + 1] + (i * 2 + 1) + i
    np.testing.assert_array_equal(b, expected)


def test_indices_beyond_32_bits() -> None:
    """2**33 elements that share one place."""
    n = te.var("n", "int64")
    a = te.placeholder((n,), "int8", name="A")
    b = te.compute((2,), lambda i: a[i * 2147483647 + i], name="B")
    kernel = tvm.build(b, [a, b])
    huge = np.broadcast_to(np.int8(7), (1 << 33,))
    found = np.zeros(2, np.int8)
    kernel(huge, found)
    np.testing.assert_array_equal(found, [7, 7])


def test_predicates_stay() -> None:
    """Their comparisons of loop variables are widened as those of guards are."""
    a, i, n = tir.decl_buffer((8,), name="A"), te.var("i"), te.var("n")
    read = tir.BufferLoad(a, (i,), i < n)
    loop = For(i, te.const(0), te.const(8), ForKind.SERIAL, BufferStore(a, read, (i,), i < n))
    made = str(widen_indices(function("f", n, a, body=loop)))
    assert "A[i, where=i < int64(n)] = A[i, where=i < int64(n)]" in made


def test_loops_side_by_side_share_a_variable() -> None:
    a, i = tir.decl_buffer((8,), name="A"), te.var("i")
    store = BufferStore(a, a[i] + 1.0, (i,))
    loop = For(i, te.const(0), te.const(8), ForKind.SERIAL, store)
    twice = function("f", a, body=tir.SeqStmt((loop, loop)))
    found = np.zeros(8, np.float32)
    tvm.build(twice)(found)
    assert found.tolist() == [2] * 8


def test_a_loop_beside_it_has_bounds_of_its_own() -> None:
    """Copies of a loop share its variable and its expressions: in one of them they fit int32."""
    p = te.placeholder((1000,), "int32", name="P")
    c = te.compute(
        (1000,),
        lambda i: te.if_then_else(i < 104, p[i] * 2, 7) + (i * (1 << 22)) // 1000003,
        name="C",
    )
    s = te.create_schedule(c.op)
    s[c].split(c.op.axis[0], 8)
    assert str(tvm.lower(s, [p, c])).count("i.outer in range(") == 2
    given, found, x = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32), np.arange(1000)
    tvm.build(s, [p, c])(given, found)
    expected = np.where(x < 104, x * 2, 7) + x * (1 << 22) // 1000003
    np.testing.assert_array_equal(found, expected)


def test_a_name_beside_it_has_bounds_of_its_own() -> None:
    """As loops do: where 32 bits hold its value it stays of 32, though it was wide before."""
    a, i, name = tir.decl_buffer((8,), "int64", name="A"), te.var("i"), te.var("name")
    reads = BufferStore(a, te.cast("int64", name * 1024 // 3), (i,))

    def around(begin: int, end: int, factor: int) -> For:
        body = LetStmt(name, i * factor, reads)
        return For(i, te.const(begin), te.const(end - begin), ForKind.SERIAL, body)

    loops = tir.SeqStmt((around(0, 2, 1), around(2, 4, 1 << 30), around(4, 6, 2), around(6, 8, 4)))
    func = function("f", a, body=loops)
    verify(widen_indices(func))
    found = np.zeros(8, np.int64)
    tvm.build(func)(found)
    assert found.tolist() == [
        i * factor * 1024 // 3 for i, factor in enumerate([1, 1, 1 << 30, 1 << 30, 2, 2, 4, 4])
    ]


def test_offsets_of_pointers() -> None:
    """As an intrinsic takes them: 2**32 bytes from the begin of a buffer on."""
    a, i = tir.decl_buffer((1 << 17, 1 << 16), "int8", name="A"), te.var("i")
    pointer = a.access_ptr("r", offset=i * 65536 + 1)
    body = tir.Evaluate(tir.call_extern("int32", "function", pointer))
    loop = For(i, te.const(0), te.const(1 << 17), ForKind.SERIAL, body)
    made = str(widen_indices(function("f", a, body=loop)))
    assert "tvm_access_ptr(A, i * 65536 + 1, " in made
