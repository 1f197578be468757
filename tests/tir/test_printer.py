"""What programs look like."""

from __future__ import annotations

from typing import Any

import pytest

from minitvm import te
from minitvm.runtime.dtype import BOOL, FLOAT32, FLOAT64, DType
from minitvm.tir import expr as e
from minitvm.tir import ir_builder, op
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import PrimExpr, Var, const
from minitvm.tir.printer import expr_text, func_text, stmt_text
from minitvm.tir.stmt import ForKind
from tests.tir.programs import built, function, loop, matmul

N, M = Var("n"), Var("m")
X, Y = Var("x", FLOAT32), Var("y", FLOAT32)
P, Q, R = Var("p", BOOL), Var("q", BOOL), Var("r", BOOL)
A = decl_buffer((N, 16), "float32", "A")


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (N + M + N, "n + m + n"),
        (N + (M + N), "n + (m + n)"),
        (N - (M - N), "n - (m - n)"),
        (N * M + N, "n * m + n"),
        ((N + M) * N, "(n + m) * n"),
        (N * (M * N), "n * (m * n)"),
        (N // M * N % M, "n // m * n % m"),
        (N // (M // N), "n // (m // n)"),
        (X / (X * Y), "x / (x * y)"),
        (N * -1, "n * -1"),
        ((N + 1 < M) & P, "(n + 1 < m) & p"),
        (e.EQ(e.LT(N, M), P), "(n < m) == p"),
        (e.EQ(P, e.LT(N, M)), "p == (n < m)"),
        (e.Or(e.And(P, Q), R), "p and q or r"),
        (e.And(e.Or(P, Q), R), "(p or q) and r"),
        (e.And(P, e.And(Q, R)), "p and (q and r)"),
        (e.Not(e.LT(N, M)), "not n < m"),
        (e.And(e.Not(P), Q), "not p and q"),
        (e.Not(e.And(P, Q)), "not (p and q)"),
        (e.EQ(e.Not(P), Q), "(not p) == q"),
        ((N & M) | (N ^ M), "n & m | n ^ m"),
        ((N | M) & N, "(n | m) & n"),
        (N << M + 1, "n << m + 1"),
        ((N << M) + 1, "(n << m) + 1"),
        (~(N + 1), "~(n + 1)"),
        (~N, "~n"),
        (e.truncdiv(N, M) + e.truncmod(N, M), "truncdiv(n, m) + truncmod(n, m)"),
        (e.minimum(N + 1, M) - e.maximum(N, M), "min(n + 1, m) - max(n, m)"),
    ],
)
def test_precedence(node: PrimExpr, text: str) -> None:
    assert expr_text(node) == text


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (const(3), "3"),
        (const(3, "int64"), "3"),
        (const(-3), "-3"),
        (const(True), "True"),
        (const(0.0), "0.0"),
        (const(-0.0), "-0.0"),
        (const(0.1), "0.1"),
        (const(1e30), "1e+30"),
        (const(float("inf")), "inf"),
        (const(float("nan")), "nan"),
        (const(16777217.0), "16777216.0"),
        (const(0.1, "float64"), "float64(0.1)"),
        (const(0.1, "float16"), "float16(0.1)"),
        (const(0.1, "bfloat16"), "bfloat16(0.1)"),
        (const(65504.0, "float16"), "float16(65504.0)"),
        (const(3.4028234663852886e38), "3.4028235e+38"),
        (const(float("-inf"), "float64"), "float64(-inf)"),
        (const(3, "uint8"), "uint8(3)"),
        (const(-128, "int8"), "int8(-128)"),
        (const(1, "float32x4"), "broadcast(1.0, 4)"),
    ],
)
def test_constants(node: PrimExpr, text: str) -> None:
    assert expr_text(node) == text


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (e.Cast(FLOAT32, N), "float32(n)"),
        (e.Cast(DType.of("int8x4"), e.Broadcast(N, 4)), "int8x4(broadcast(n, 4))"),
        (e.Select(P, X, Y), "select(p, x, y)"),
        (e.Let(N, M + 1, N * N), "let n = m + 1 in n * n"),
        (e.Add(M, e.Let(N, M, N)), "m + (let n = m in n)"),
        (e.Ramp(N * 4, const(1), 4), "ramp(n * 4, 1, 4)"),
        (A[N, M], "A[n, m]"),
        (e.BufferLoad(A, (N, M), e.Or(P, Q)), "A[n, m, where=p or q]"),
        (
            e.Call(FLOAT32, "vector_extract", (e.Broadcast(X, 2), N)),
            "vector_extract(broadcast(x, 2), n)",
        ),
        (
            e.Call(FLOAT32, "vector_reduce_min", (Y, e.Broadcast(X, 2))),
            "vector_reduce_min(y, broadcast(x, 2))",
        ),
        (decl_buffer((), "float32", "S")[()], "S[()]"),
        (op.exp(X), "exp(x)"),
        (op.if_then_else(N < M, X, 0.0), "if_then_else(n < m, x, 0.0)"),
        (op.likely(N < M), "likely(n < m)"),
        (op.reinterpret("int32", X), 'reinterpret("int32", x)'),
        (op.call_packed("f", A, N), 'call_packed("f", A, n)'),
        (op.call_extern("float32", "sinf", X), 'call_extern("float32", "sinf", x)'),
        (e.StringImm('a "b"\n'), r'"a \"b\"\n"'),
        (A.data, "A"),
    ],
)
def test_other_expressions(node: PrimExpr, text: str) -> None:
    assert expr_text(node) == text


def test_tensor_expressions() -> None:
    tensor = te.placeholder((4, 8), name="T")
    k = te.reduce_axis((0, 8), name="k")
    found: Any = te.compute((4,), lambda i: te.sum(tensor[i, k], axis=k), name="found")
    assert expr_text(found.op.body[0]) == "sum(T[i, k], axis=[k])"
    where: Any = te.compute((4,), lambda i: te.max(tensor[i, k], axis=k, where=k > 2))
    assert expr_text(where.op.body[0]) == "max(T[i, k], axis=[k], where=k > 2)"


def test_reduction_of_tuples(golden: Any) -> None:
    k = te.reduce_axis((0, 8), name="k")
    (i, v), (j, w) = [(Var(f"i{n}"), Var(f"v{n}", FLOAT32)) for n in (0, 1)]
    combiner = e.CommReducer(
        (i, v),
        (j, w),
        (e.Select(v >= w, i, j), e.Select(v >= w, v, w)),
        (const(-1), const(float("-inf"))),
    )
    node = e.Reduce(combiner, (k.var, X), (k,), const(True), 1, (const(0), const(0.0)))
    golden(expr_text(node))


def test_matmul(golden: Any) -> None:
    golden(func_text(matmul()))


def test_equal_names_become_unique(golden: Any) -> None:
    inner, outer, size = Var("i"), Var("i"), Var("A")
    buffers = [decl_buffer((size,), "float32", "A") for _ in range(2)]
    store = s.BufferStore(buffers[1], buffers[0][outer] + buffers[1][inner], (inner,))
    body = loop(outer, 4, s.seq(loop(inner, 4, store), s.Evaluate(e.BufferRef(buffers[0]))))
    golden(func_text(function("twins", *buffers, size, body=body)))


def test_kinds_of_loops(golden: Any) -> None:
    i = Var("i")
    body = s.Evaluate(i)
    loops: list[s.Stmt] = [loop(i, 8, body, kind) for kind in ForKind]
    loops.append(s.For(i, N, M, ForKind.SERIAL, body))
    loops.append(s.For(i, const(2), const(3), ForKind.PARALLEL, body, {"grain": 4}))
    golden(stmt_text(s.seq(*loops)))


def test_statements(golden: Any) -> None:
    ib = ir_builder.create()
    shared = ib.allocate("float32", (N, 16), "T", scope="local")
    twice = ib.let("twice", N * 2)
    ib.scope_attr(None, "unroll", 4)
    ib.scope_attr(A, "align", 64)
    with ib.while_loop(twice < M):
        shared[0, 0] = 1.5
    with ib.if_scope(N < 1):
        ib.emit(op.call_packed("f", A))
    with ib.else_scope():
        with ib.if_scope(N < 2):
            pass
        with ib.else_scope():
            ib.emit(op.call_packed("g", A))
    golden(stmt_text(ib.get()))


def test_assertions(golden: Any) -> None:
    inner = s.AssertStmt(M > 0, "m is {}, n is {}", s.seq(), (M, N), "ValueError")
    golden(stmt_text(s.AssertStmt(N > 0, 'expected "n" > 0', inner)))


def test_layouts_and_long_headers(golden: Any) -> None:
    strides = (Var("s0"), Var("s1"))
    strided = decl_buffer((N, M), "float32", "X", strides=strides, elem_offset=Var("offset"))
    half, scalar = decl_buffer((N * 2,), "float16", "H"), decl_buffer((), "int64", "S")
    alpha = Var("alpha", FLOAT64)
    golden(func_text(function("strided", strided, half, scalar, alpha, N, M)))


def test_vectors(golden: Any) -> None:
    def double(ib: Any, x: Any) -> None:
        index = e.Ramp(const(0), const(1), 8)
        x[index] = x[index] * const(2.0, "float32x8")

    golden(func_text(built(double, decl_buffer((8,), "float32", "X"))))


def test_depth_is_no_limit() -> None:
    node: PrimExpr = N
    body: s.Stmt = s.Evaluate(N)
    for _ in range(5000):
        node, body = e.Add(M, node), s.LetStmt(Var("x"), N, body)
    assert len(expr_text(node)) == len("m + ()") * 5000 + 1 - 2
    assert len(stmt_text(body).splitlines()) == 5001


def test_a_shared_subexpression_of_a_long_text_has_a_name() -> None:
    """The text grows like the graph, not like the tree."""
    short: PrimExpr = N + 1
    assert expr_text(short * short) == "(n + 1) * (n + 1)"
    node = short
    for _ in range(100):
        node = e.Mul(node, node)
    text = expr_text(node)
    assert text.startswith("(v := (v_1 := ") and text.endswith(" * v")
    assert "(v_99 := n + 1) * v_99" in text and len(text) < 3000


def test_str_and_repr_are_the_text() -> None:
    assert str(N + 1) == repr(N + 1) == "n + 1"
    assert str(s.Evaluate(N)) == "n"
    assert str(s.IRModule({"f": function("f"), "g": function("g")})) == (
        "def f():\n    pass\n\ndef g():\n    pass"
    )
