"""Each invariant of the loop IR, broken once."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm import te
from minitvm.runtime.dtype import BOOL, FLOAT32, FLOAT64, HANDLE, INT32, INT64
from minitvm.runtime.errors import InternalError
from minitvm.tir import expr as e
from minitvm.tir import op
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Call, PrimExpr, Var, const
from minitvm.tir.stmt import Stmt
from minitvm.tir.verify import verify
from tests.tir.programs import function, loop, matmul

N, AXIS = Var("n"), Var("i")
X = Var("x", FLOAT32)
P = Var("p", BOOL)
A = decl_buffer((N, 16), "float32", "A")
OTHER = decl_buffer((4,), "float32", "other")
RAMP = e.Ramp(const(0), const(1), 4)
VECTOR = e.Broadcast(X, 4)


def scope(body: Stmt | PrimExpr) -> s.PrimFunc:
    """`body` where A, x, p and, by A's shape, n are defined."""
    return function("f", A, X, P, body=body if isinstance(body, Stmt) else s.Evaluate(body))


def allocated(buffer: Buffer) -> Stmt:
    store = s.BufferStore(buffer, const(0, buffer.dtype), (const(0),))
    return s.Allocate(buffer, store)


@pytest.mark.parametrize(
    "func",
    [
        matmul(),
        scope(loop(AXIS, 4, s.BufferStore(A, A[AXIS, 0] + X, (AXIS, N - 1)))),
        scope(s.seq(*[loop(AXIS, 4, s.Evaluate(AXIS))] * 2)),
        scope(s.seq(allocated(OTHER), allocated(OTHER))),
        scope(e.Let(AXIS, N, AXIS) + e.Let(AXIS, N, AXIS)),
        scope(s.BufferStore(A, VECTOR, (N, RAMP))),
        scope(s.Evaluate(op.call_packed("f", A, A.access_ptr("r"), "text"))),
        scope(s.AssertStmt(P, "n is {}", s.seq(), (N,))),
        scope(op.ldexp(X, N)),
        scope(op.clz(N) + op.popcount(N)),
        scope(op.isnan(VECTOR)),
        scope(op.isnullptr(A.data)),
        scope(op.are_apart(A.data, A.data)),
    ],
    ids=str,
)
def test_valid(func: s.PrimFunc) -> None:
    """Nothing is found wrong, which would be raised."""
    verify(func)


def shuffle(a: PrimExpr, b: PrimExpr, *lanes: Any) -> Call:
    numbers = tuple(map(e.as_expr, lanes))
    return Call(a.dtype.with_lanes(len(lanes)), "vector_shuffle", (a, b, *numbers))


STORE = s.BufferStore(OTHER, const(0.0), (const(0),))
BAD: list[tuple[Stmt | PrimExpr, str]] = [
    (AXIS, "variable i: expected a use inside the scope that defines it, found .*, in\n    i"),
    (s.seq(loop(AXIS, 4, s.Evaluate(AXIS)), s.Evaluate(AXIS)), "variable i: .* found one outside"),
    (s.LetStmt(AXIS, AXIS + 1, s.seq()), "variable i: .* found one outside"),
    (e.Let(AXIS, N, AXIS) + AXIS, "variable i: .* found one outside"),
    (loop(N, 4, s.seq()), "n: expected one definition, found another inside"),
    (loop(AXIS, 4, loop(AXIS, 4, s.seq())), "i: expected one definition, found another inside"),
    (s.LetStmt(N, const(1), s.seq()), "n: expected one definition"),
    (s.Allocate(OTHER, allocated(OTHER)), "other: expected one definition"),
    (STORE, r"buffer other: expected a use inside .*, in\n    other\[0\] = 0.0"),
    (s.seq(allocated(OTHER), STORE), "buffer other: .* found one outside"),
    (OTHER[0], "buffer other: .* found one outside"),
    (e.BufferRef(OTHER), "buffer other: .* found one outside"),
    (allocated(decl_buffer((AXIS,), "float32")), "variable i: .* found one outside"),
    (s.AssertStmt(P, "{}", s.seq()), "assert: expected 1 values, got 0"),
    (s.AssertStmt(P, "{}", s.seq(), (X,)), "assert: value 0: expected an integer, got float32"),
    (s.AssertStmt(P, "", s.seq(), (), "OSError"), "assert: expected a kind among .*'OSError'"),
    (Call(FLOAT32, "vector_extract", (RAMP, N)), "vector_extract: expected int32, got float32"),
    (Call(INT32, "vector_extract", (RAMP, X)), "vector_extract: argument 1: expected an integer"),
    (Call(INT32, "vector_shuffle", (RAMP, RAMP, N)), "vector_shuffle: expected two vectors"),
    (shuffle(RAMP, VECTOR, 0, 1), "vector_shuffle: argument 1: expected int32x4, got float32x4"),
    (shuffle(N, N, 0, 1), "vector_shuffle: expected vectors, got int32"),
    (shuffle(RAMP, RAMP, 0, 8), "vector_shuffle: expected numbers of lanes below 8, got 8"),
    (shuffle(RAMP, RAMP, 0, N), "vector_shuffle: expected numbers of lanes below 8, got n"),
    (Call(RAMP.dtype, "vector_shuffle", shuffle(RAMP, RAMP, 0, 1).args),
     "vector_shuffle: expected int32x2, got int32x4"),
    (Call(INT32, "vector_reduce_add", (X, RAMP)), "vector_reduce_add: argument 0: expected int32"),
    (Call(FLOAT32, "vector_reduce_add", (N, RAMP)), "vector_reduce_add: expected int32, got float"),
    (Call(FLOAT32, "vector_reduce_or", (X, VECTOR)), "vector_reduce_or: expected integers"),
    (Call(BOOL, "vector_reduce_add", (P, e.Broadcast(P, 2))), "vector_reduce_add: expected"),
    (Call(FLOAT32, "expp", (X,)), "call: expected the name of an intrinsic, got 'expp'"),
    (Call(FLOAT32, "exp", (X, X)), "exp: expected 1 arguments, got 2"),
    (Call(FLOAT32, "power", (X,)), "power: expected 2 arguments, got 1"),
    (Call(FLOAT32, "power", (X, N)), "power: argument 1: expected float32, got int32"),
    (Call(FLOAT64, "exp", (X,)), "exp: expected float32, got float64"),
    (Call(FLOAT32, "isnan", (X,)), "isnan: expected bool, got float32"),
    (Call(FLOAT32, "if_then_else", (N, X, X)), "condition: expected bool, got int32"),
    (Call(FLOAT32, "if_then_else", (P, X, N)), "if_then_else: argument 2: expected float32"),
    (Call(INT32, "likely", (N,)), "likely: expected bool, got int32"),
    (Call(INT64, "reinterpret", (X,)), "reinterpret: expected types of one width, got float32"),
    (Call(BOOL, "isnullptr", (N,)), "isnullptr: argument 0: expected handle, got int32"),
    (Call(BOOL, "are_apart", (A.data, N)), "are_apart: argument 1: expected handle, got int32"),
    (Call(HANDLE, "tvm_stack_make_array", (N,)), "tvm_stack_make_array: expected a buffer first"),
    (Call(INT32, "call_packed", (N,)), "call_packed: expected the name of a function first"),
    (te.placeholder((4,), name="T")[N], "ProducerLoad: expected in tensor expressions only"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_invalid(body: Stmt | PrimExpr, message: str) -> None:
    with pytest.raises(InternalError, match=f"^f: {message}"):
        verify(scope(body))


def test_reduction_left_over() -> None:
    k = te.reduce_axis((0, 8), name="k")
    tensor: Any = te.compute((4,), lambda i: te.sum(k.var + i, axis=k))
    with pytest.raises(InternalError, match="Reduce: expected in tensor expressions only"):
        verify(scope(tensor.op.body[0]))


def test_parameters() -> None:
    with pytest.raises(InternalError, match="parameters: expected each once, found one twice"):
        verify(function("f", N, N))
    with pytest.raises(InternalError, match="buffer A: expected a parameter for it, found none"):
        verify(s.PrimFunc((), s.seq(), {N: A}, "f"))
    with pytest.raises(InternalError, match=r"variable i: .* found one outside"):
        verify(function("f", decl_buffer((AXIS * 2,), "float32", "B")))


def test_long_statements_are_cut() -> None:
    body = s.seq(*[s.Evaluate(N)] * 20)
    with pytest.raises(InternalError, match=r"in\n    for n in range\(4\):\n(.*\n){7}    \.\.\.$"):
        verify(scope(loop(N, 4, body)))


def test_sharing_costs_nothing() -> None:
    """Each node is looked at once: this ends, where 2 ** 100 looks would not."""
    node: PrimExpr = N
    for _ in range(100):
        node = e.Add(node, node)
    verify(scope(node))


def test_depth_is_no_limit() -> None:
    """No RecursionError, which a call for each node would end in."""
    node: PrimExpr = N
    for _ in range(5000):
        node = e.Add(N, node)
    verify(scope(node))
