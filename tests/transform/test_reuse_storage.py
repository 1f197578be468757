"""Buffers that share memory, and allocations that leave loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitvm import tir
from minitvm.runtime.dtype import FLOAT32, HANDLE, INT32
from minitvm.tir.expr import Buffer, BufferRef, Call, PrimExpr, StringImm, Var, const
from minitvm.tir.functor import walk
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    Allocate,
    BufferStore,
    Evaluate,
    ForKind,
    IfThenElse,
    Stmt,
    seq,
)
from minitvm.transform.reuse_storage import reuse_storage
from tests.tir.programs import function_of, loop

i, j, k, n = (Var(name) for name in "ijkn")
A, B = tir.decl_buffer((n,), name="A"), tir.decl_buffer((n,), name="B")


func = function_of(A, B)


def temporary(name: str, *shape: Any, dtype: str = "float32", scope: str = "") -> Buffer:
    return tir.decl_buffer(shape or (n,), dtype, name, scope=scope)


def stage(target: Buffer, value: PrimExpr) -> Stmt:
    return loop(i, n, BufferStore(target, value, (i,)))


def allocated(body: Stmt, *buffers: Buffer) -> Stmt:
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body


def names(body: Stmt) -> list[str]:
    """What is allocated in the result, in the order of the text."""
    made = reuse_storage(func(body)).body
    return [node.buffer.name for node in walk(made) if isinstance(node, Allocate)]


STRIDES = [(), (), [const(2)]]
T, U, V = (temporary(name) for name in "TUV")
LAST = n - 1 - i


def test_lifetimes_that_end_make_room(golden: Callable[[str], None]) -> None:
    body = seq(stage(T, A[i]), stage(U, T[LAST]), stage(V, U[LAST]), stage(B, V[i]))
    golden(str(reuse_storage(func(allocated(body, T, U, V)))))


def test_a_buffer_of_another_rank_is_left_alone() -> None:
    one, matrix = temporary("S", 1), temporary("M", 1, n)
    zero = const(0)
    rows = loop(i, n, BufferStore(matrix, A[i] + one[zero], (zero, i)))
    body = seq(BufferStore(one, const(2.0), (zero,)), rows, stage(B, matrix[zero, i]))
    assert names(allocated(body, one, matrix)) == ["S", "M"]


def test_nested_allocations_are_one_level() -> None:
    inner = Allocate(V, seq(stage(V, U[LAST]), stage(B, V[i])))
    body = Allocate(T, seq(stage(T, A[i]), Allocate(U, seq(stage(U, T[LAST]), inner))))
    assert names(body) == ["T", "U"]


def test_in_place() -> None:
    body = seq(stage(T, A[i]), stage(U, T[i] * 2.0 + T[i]), stage(B, U[i]))
    assert names(allocated(body, T, U)) == ["T"]


def test_only_the_same_index_is_in_place() -> None:
    body = seq(stage(T, A[i]), stage(U, T[LAST]), stage(B, U[i]))
    assert names(allocated(body, T, U)) == ["T", "U"]
    twice = loop(k, 2, stage(U, T[i] * 2.0))
    body = seq(stage(T, A[i]), twice, stage(B, U[i]))
    assert names(allocated(body, T, U)) == ["T", "U"]
    elsewhere = tir.call_extern("float32", "read", T.data, i)
    body = seq(stage(T, A[i]), stage(U, T[i] + elsewhere), stage(B, U[i]))
    assert names(allocated(body, T, U)) == ["T", "U"]


def test_a_buffer_of_fewer_dimensions_is_not_in_place() -> None:
    """The sums of rows, read while the rows are made."""
    square = temporary("S", n, n)
    made = loop(i, n, loop(j, n, BufferStore(square, T[i], (i, j))))
    body = seq(stage(T, A[i]), made, stage(B, square[i, i]))
    assert names(allocated(body, T, square)) == ["T", "S"]


@pytest.mark.parametrize(
    "other",
    [
        temporary("V", n, dtype="int32"),
        temporary("V", n, scope="local"),
        Buffer(Var("V", HANDLE), (n,), FLOAT32, "V", data_alignment=128),
        Buffer(Var("V", HANDLE), (n,), FLOAT32, "V", elem_offset=const(0)),
        Buffer(Var("V", HANDLE), (n,), FLOAT32, "V", (const(2),)),
        temporary("V", n + 1),
        temporary("V", n, 1),
    ],
    ids=["dtype", "scope", "alignment", "offset", "strides", "size", "shape"],
)
def test_what_does_not_fit_has_its_own(other: Buffer) -> None:
    place = (i, const(0)) if other.ndim == 2 else (i,)
    use = loop(i, n, BufferStore(other, const(1, other.dtype), place))
    last = loop(i, n, BufferStore(B, other[place].astype("float32"), (i,)))
    body = seq(stage(T, A[i]), stage(B, T[i]), use, last)
    assert names(allocated(body, T, other)) == ["T", "V"]


def test_what_is_aligned_for_less_fits() -> None:
    aligned = Buffer(Var("W", HANDLE), (n,), FLOAT32, "W", data_alignment=128)
    body = seq(stage(aligned, A[i]), stage(U, aligned[LAST]), stage(V, U[LAST]), stage(B, V[i]))
    assert names(allocated(body, aligned, U, V)) == ["W", "U"]


def test_an_array_that_a_call_sees_keeps_its_own() -> None:
    """The callee sees its shape, so that a larger buffer doesn't stand for it."""
    for call in ("call_packed", "call_extern"):
        seen = Evaluate(Call(INT32, call, (StringImm("g"), BufferRef(V))))
        body = seq(stage(T, A[i]), stage(B, T[i]), seen, stage(B, V[i]))
        assert names(allocated(body, T, V)) == ["T", "V"]


CALLED = Call(FLOAT32, "call_packed", (StringImm("g"), T[i]))


@pytest.mark.parametrize(
    "made",
    [
        stage(U, T[i] + CALLED),  # which may run another kernel over the same memory
        loop(i, n, BufferStore(U, T[i], (i,), T[LAST] > 0.0)),
        loop(i, T[LAST].astype("int32"), BufferStore(U, T[i], (i,))),
        stage(U, T[i] + U[LAST]),
        loop(i, n, BufferStore(U, T[i], (LAST,))),
        loop(i, n, IfThenElse(T[LAST] > 0.0, BufferStore(U, T[i], (i,)))),
        loop(i, n, seq(BufferStore(U, T[i], (i,)), BufferStore(B, T[i], (i,)))),
    ],
    ids=["call", "predicate", "extent", "born", "elsewhere", "condition", "two"],
)
def test_what_is_not_in_place(made: Stmt) -> None:
    body = seq(stage(T, A[i]), made, stage(B, U[i]))
    assert names(allocated(body, T, U)) == ["T", "U"]


def test_what_is_not_used_or_is_passed_to_a_call_has_its_own() -> None:
    body = seq(stage(T, A[i]), stage(B, T[i]), stage(U, A[i]), stage(B, U[i]))
    assert names(allocated(body, V, T, U)) == ["V", "T"]
    seen = Evaluate(tir.call_packed("see", BufferRef(U)))
    assert names(allocated(seq(body, seen), T, U)) == ["T", "U"]


def test_a_smaller_constant_one_fits() -> None:
    large, small = temporary("L", 8, 4), temporary("S", 6, 4)
    body = seq(
        loop(i, 8, BufferStore(large, const(1.0), (i, const(0)))),
        stage(B, large[0, 0]),
        loop(i, 6, BufferStore(small, const(1.0), (i, const(0)))),
        stage(B, small[0, 0]),
    )
    assert names(allocated(body, large, small)) == ["L"]
    assert names(allocated(seq(*reversed(body.seq)), small, large)) == ["S", "L"]  # type: ignore[attr-defined]  # a SeqStmt


def test_iterations_of_a_parallel_loop_keep_their_own() -> None:
    row = temporary("R", 8192)
    inside = Allocate(row, loop(j, n, BufferStore(row, A[j], (j,))))
    assert isinstance(reuse_storage(func(loop(i, n, inside, ForKind.PARALLEL))).body.body, Allocate)  # type: ignore[attr-defined]  # a For
    nested = loop(i, n, loop(k, n, inside), ForKind.PARALLEL)
    assert isinstance(reuse_storage(func(nested)).body.body, Allocate)  # type: ignore[attr-defined]  # a For


def test_a_large_buffer_is_allocated_once_around_serial_loops() -> None:
    row, small = temporary("R", 8192), temporary("S", 16)

    def use(buffer: Buffer) -> Stmt:
        fill = loop(j, 16, BufferStore(buffer, const(1.0), (j,)))
        return Allocate(buffer, seq(fill, BufferStore(B, buffer[0], (i,))))

    both = IfThenElse(i < 4, use(row), use(row))  # as the copies of a partitioned loop
    made = reuse_storage(func(loop(i, n, loop(k, 2, both)))).body
    assert isinstance(made, Allocate)
    assert sum(isinstance(node, Allocate) for node in walk(made)) == 1
    kept = func(loop(i, n, use(small)))
    assert reuse_storage(kept) is kept


def end_of(values: Any, place: int) -> int:
    return int(values[len(values) - 1 - place])


@settings(deadline=None)
@given(st.data())
def test_chains_of_stages(data: st.DataObject) -> None:
    """Each stage reads some earlier ones, straight or backwards, or through a call that gets the
    whole; in their own loops or several in one, in buffers that lie closely or apart."""
    stages = [
        tir.decl_buffer((n,), "float32", f"T{place}", strides=data.draw(st.sampled_from(STRIDES)))
        for place in range(data.draw(st.integers(1, 6)))
    ]
    known, members = [A], []
    for buffer in (*stages, B):
        sources = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        value: PrimExpr = const(1.0)
        for source in sources:
            index = data.draw(st.sampled_from([i, i, LAST, LAST, None]))
            if index is None:
                read = tir.call_packed("end_of", BufferRef(source), i).astype("float32")
            else:
                read = source[index]
            value = value + read
        members.append(stage(buffer, value))
        if data.draw(st.integers(0, 3)) == 0:
            members[-1] = loop(k, 2, members[-1])
        known.append(buffer)
    before = func(allocated(seq(*members), *stages))
    a = np.arange(5, dtype=np.float32)
    expected, found = np.empty_like(a), np.empty_like(a)
    interpret(before, a, expected, packed={"end_of": end_of})
    interpret(reuse_storage(before), a, found, packed={"end_of": end_of})
    np.testing.assert_array_equal(found, expected)
