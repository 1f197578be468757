"""Vectorized loops: what they become, which are refused, and that they compute the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minitvm import CompileError, build, lower, transform
from minitvm.runtime.dtype import BOOL, FLOAT32, HANDLE, INT32, DType
from minitvm.runtime.errors import KernelError
from minitvm.tir import expr as e
from minitvm.tir import scalars
from minitvm.tir import stmt as s
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.expr import Buffer, Call, PrimExpr, Var, const
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import ForKind, PrimFunc, Stmt, seq
from minitvm.tir.verify import verify
from minitvm.transform.vectorize_loops import MAX_LANES, vectorize_loops
from minitvm.transform.widen_indices import widen_indices
from tests.codegen.kernels import DTYPES, array_of, equal, telling_values, values_of
from tests.codegen.test_dtypes import TARGETS
from tests.tir.programs import function_of, likely, loop, store
from tests.transform.programs_in_lanes import ROWS, SIZE, NearProgram, Program

N, X = Var("n"), Var("x", FLOAT32)
i, j, k, v = (Var(name) for name in "ijkv")
A, B = decl_buffer((N,), name="A"), decl_buffer((N,), name="B")
C = decl_buffer((64,), name="C")
D = decl_buffer((64, 64), name="D")
P = decl_buffer((64,), "int32", name="P")
E = decl_buffer((4, N), name="E")
TENSORS = (A, B, C, D, P, E)


func = function_of(*TENSORS)


def vectorized(extent: Any, body: Stmt, var: Var = v) -> Stmt:
    return loop(var, extent, body, ForKind.VECTORIZED)


def text(body: Stmt) -> str:
    """The vector form, which must be valid, without the function's head."""
    made = vectorize_loops(func(body))
    verify(made)
    return str(made.body)


# -- What loops become ----------------------------------------------------------------------------


FLAGS = decl_buffer((64,), "bool", name="F")
FOLDED: dict[str, tuple[str, Callable[[Any, Any], PrimExpr], Buffer]] = {
    "sum": ("vector_reduce_add", e.add, P),
    "difference": ("vector_reduce_add", e.subtract, P),
    "product": ("vector_reduce_mul", e.multiply, P),
    "minimum": ("vector_reduce_min", e.minimum, P),
    "maximum": ("vector_reduce_max", e.maximum, P),
    "all": ("vector_reduce_and", e.logical_and, FLAGS),
    "any": ("vector_reduce_or", e.logical_or, FLAGS),
    "bitwise_and": ("vector_reduce_and", e.bitwise_and, P),
    "bitwise_or": ("vector_reduce_or", e.bitwise_or, P),
    "bitwise_xor": ("vector_reduce_xor", e.bitwise_xor, P),
}


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("name", FOLDED)
def test_what_is_folded(name: str, mirrored: bool) -> None:
    """Into one element, which is either operand; ``C[8] = value - C[8]`` is no fold."""
    fold, operator, buffer = FOLDED[name]
    operands = (buffer[8], buffer[v + 16])
    step = store(buffer, operator(*(operands[::-1] if mirrored else operands)), 8)
    params = {buffer.data: buffer}
    func = PrimFunc((buffer.data,), vectorized(4, step), params, "f")
    if name == "difference" and mirrored:
        with pytest.raises(CompileError):
            vectorize_loops(func)
        return
    made = vectorize_loops(func)
    assert f"= {fold}({buffer.name}[8]" in str(made.body)
    generator = np.random.default_rng(0)
    found = generator.integers(0, 2 if buffer is FLAGS else 99, 64).astype(str(buffer.dtype))
    expected = found.copy()
    interpret(func, expected)
    interpret(made, found)
    np.testing.assert_array_equal(found, expected)


def test_saxpy(golden: Callable[[str], None]) -> None:
    at = i * 16 + v
    body = s.IfThenElse(likely(at < N), store(B, A[at] * X + B[at], at))
    nest = loop(i, (N + 15) // 16, vectorized(16, body))
    golden(str(lower(func(nest, X))["f"].body))


def tile(rows: int, columns: int, extent: Any) -> Stmt:
    """A tile of ``D += ...`` that is computed in a buffer of its own, columns guarded."""
    local = Buffer(Var("T", HANDLE), (const(rows), const(columns)), FLOAT32, "T", scope="local")

    def each(body: Stmt) -> Stmt:
        guarded = s.IfThenElse(likely(j * columns + v < extent), body)
        return loop(i, rows, vectorized(columns, guarded), ForKind.UNROLLED)

    step = local[i, v] + D[i, k] * D[k, j * columns + v]
    body = s.SeqStmt(
        (
            each(store(local, const(0.0), i, v)),
            loop(k, 8, each(store(local, step, i, v))),
            each(store(D, local[i, v], i, j * columns + v)),
        )
    )
    padded = s.Allocate(local, s.AttrStmt(local, "padded_buffer", const(1), body))
    return loop(j, (extent + columns - 1) // columns, padded)


def test_tile(golden: Callable[[str], None]) -> None:
    golden(text(tile(2, 8, 61)))


def test_conditions(golden: Callable[[str], None]) -> None:
    """A guard that is the same in all lanes stays one; others become masks."""
    inner = s.IfThenElse(P[v] > 0, store(C, C[v] + X, v), store(C, A[P[0]], v))
    body = s.IfThenElse(e.And(v < 5, i < 3), inner)
    lazy = Call(FLOAT32, "if_then_else", (v > 0, B[v - 1], const(0.0)))
    nest = loop(i, 4, vectorized(8, seq(body, store(D, lazy, i, v))))
    golden(str(vectorize_loops(func(nest, X)).body))


def test_guards_on_a_lane_that_is_on(golden: Callable[[str], None]) -> None:
    """``D[i, 0]`` is the same in all lanes, and read for none where no lane is on."""
    body = store(C, C[i * 8 + v] + D[i, 0], i * 8 + v)
    both = s.IfThenElse(likely(i * 8 + v < 30), s.IfThenElse(likely(v < 7), body))
    data = s.IfThenElse(likely(i * 8 + v < 30), s.IfThenElse(P[v] > 3, body))
    golden(text(loop(i, 4, seq(vectorized(8, both), vectorized(8, data)))))


def test_reduction(golden: Callable[[str], None]) -> None:
    body = s.IfThenElse(P[v] > 0, store(C, C[i] + D[i, v], i))
    golden(text(loop(i, 4, vectorized(8, body))))


def test_assertion(golden: Callable[[str], None]) -> None:
    body = s.AssertStmt(P[v] < 64, "{} at {}", store(C, D[0, P[v]], v), (P[v], v))
    golden(text(vectorized(8, body)))


FUSED = ((i * 8 + v) // N, (i * 8 + v) % N)
ROWS_OF_TEXT: dict[str, tuple[Stmt, str]] = {
    "one lane": (vectorized(1, store(C, 1.0, v)), "v = 0\nC[v] = 1.0"),
    "no lane": (vectorized(0, store(C, 1.0, v)), "pass"),
    "reversed": (
        vectorized(4, store(C, D[0, 9 - v], v)),
        "C[ramp(0, 1, 4)] = D[0, ramp(9, -1, 4)]",
    ),
    "strided": (
        vectorized(4, store(C, D[v, v * 3], v)),
        "C[ramp(0, 1, 4)] = D[ramp(0, 1, 4), ramp(0, 3, 4)]",
    ),
    "same element": (
        vectorized(4, store(C, D[0, 1], v)),
        "C[ramp(0, 1, 4)] = broadcast(D[0, 1], 4)",
    ),
    "gather": (
        vectorized(4, store(C, D[0, P[v]], v)),
        "C[ramp(0, 1, 4)] = D[0, P[ramp(0, 1, 4)]]",
    ),
    "one quotient": (
        loop(i, 4, vectorized(8, store(D, 1.0, (i * 8 + v) // 16, (i * 8 + v) % 16))),
        "for i in range(4):\n    D[i * 8 // 16, ramp(i * 8 % 16, 1, 8)] = broadcast(1.0, 8)",
    ),
    "the last lane remains": (
        vectorized(4, store(C, D[0, v], 7)),
        "C[broadcast(7, 4)] = D[0, ramp(0, 1, 4)]",
    ),
    "value of the lane": (
        vectorized(4, store(C, e.cast("float32", v), v)),
        "C[ramp(0, 1, 4)] = float32x4(ramp(0, 1, 4))",
    ),
    "all lanes on": (
        vectorized(4, s.IfThenElse(v < 4, store(C, 1.0, v))),
        "C[ramp(0, 1, 4)] = broadcast(1.0, 4)",
    ),
    "all lanes off": (vectorized(4, s.IfThenElse(v > 4, store(C, 1.0, v))), "pass"),
    "inner loop": (
        vectorized(4, loop(k, 3, store(D, C[v], k, v))),
        "for k in range(3):\n    D[k, ramp(0, 1, 4)] = C[ramp(0, 1, 4)]",
    ),
    "far enough apart": (
        vectorized(4, store(C, C[v] + 1.0, v + 4)),
        "C[ramp(4, 1, 4)] = C[ramp(0, 1, 4)] + broadcast(1.0, 4)",
    ),
    "read before it is written": (
        vectorized(4, store(C, C[v + 1], v)),
        "C[ramp(0, 1, 4)] = C[ramp(1, 1, 4)]",
    ),
    "bounds of each lane": (
        vectorized(4, loop(k, v, store(D, 1.0, v, k))),
        "for v in range(4):\n    for k in range(v):\n        D[v, k] = 1.0",
    ),
    "vectors in vectors": (
        vectorized(4, vectorized(4, store(D, 1.0, v, i), var=i)),
        "for v in range(4):\n    D[v, ramp(0, 1, 4)] = broadcast(1.0, 4)",
    ),
    "begins where data says": (
        s.For(v, P[0], const(4), ForKind.VECTORIZED, store(P, v, v)),
        "v_begin = P[0]\nP[ramp(v_begin, 1, 4)] = ramp(v_begin, 1, 4)",
    ),
    "wider indices": (
        loop(i, 4, vectorized(4, store(C, D[0, e.cast("int64", i * 4 + v) * 2], v))),
        "for i in range(4):\n    C[ramp(0, 1, 4)] = D[0, ramp(int64(i * 4) * 2, 2, 4)]",
    ),
    "a sum of integers": (
        vectorized(4, store(P, P[8] + v - 3, 8)),
        "P[8] = vector_reduce_add(P[8], ramp(-3, 1, 4))",
    ),
    "a fused axis": (
        loop(i, 4, vectorized(8, store(E, E[FUSED] + 1.0, *FUSED))),
        "for i in range(4):\n"
        "    E[ramp(i * 8, 1, 8) // broadcast(n, 8), ramp(i * 8, 1, 8) % broadcast(n, 8)] = "
        "E[ramp(i * 8, 1, 8) // broadcast(n, 8), ramp(i * 8, 1, 8) % broadcast(n, 8)] "
        "+ broadcast(1.0, 8)",
    ),
    "calls": (
        vectorized(2, s.Evaluate(Call(INT32, "call_packed", (e.StringImm("g"), v)))),
        'for v in range(2):\n    call_packed("g", v)',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS_OF_TEXT)
def test_becomes(name: str) -> None:
    body, expected = ROWS_OF_TEXT[name]
    assert text(body) == expected


@pytest.mark.parametrize(
    ("build_it", "padded"),
    [(True, False), (False, False), (False, True)],
    ids=["compiled", "interpreted", "padded"],
)
def test_the_last_lane_that_is_on_remains(build_it: bool, padded: bool) -> None:
    """Of an element that all lanes store to, also where the buffer is padded."""
    local = Buffer(Var("T", HANDLE), (const(4),), FLOAT32, "T", scope="local")
    inner: Stmt = s.IfThenElse(likely(v < N), store(local, D[0, v], 2))
    if padded:
        inner = s.AttrStmt(local, "padded_buffer", const(1), inner)
    keep = store(C, local[2], 0)
    body = s.Allocate(local, seq(store(local, -1.0, 2), vectorized(8, inner), keep))
    made = func(body)
    kernel: Any = build(made) if build_it else lambda *args: interpret(vectorize_loops(made), *args)
    d = np.arange(4096, dtype=np.float32).reshape(64, 64) + 1
    for size in range(10):
        c, row = np.zeros(64, np.float32), np.zeros(size, np.float32)
        kernel(*arrays(A=row, B=row.copy(), C=c, D=d))
        assert c[0] == (min(size, 8) or -1)


def test_many_lanes() -> None:
    wide = 2 * MAX_LANES + 3
    made = text(vectorized(wide, s.IfThenElse(B[v] > 0.0, store(A, B[v], v))))
    assert f"    A[ramp(v_strip * {MAX_LANES}, 1, 64), where=mask] = B[" in made
    assert f"where=mask_1] = B[ramp({2 * MAX_LANES}, 1, 3), where=mask_1]" in made


def test_without_vectorized_loops_nothing_changes() -> None:
    given_func = func(loop(v, 4, store(C, 1.0, v)))
    assert vectorize_loops(given_func) is given_func


def test_can_be_left_out() -> None:
    body = func(vectorized(8, store(C, C[v] + 1.0, v)))
    with transform.PassContext(disabled_pass=["vectorize_loops"]):
        assert "for v in vectorized(8):" in str(lower(body))
        kernel = build(body)
    c = np.arange(64, dtype=np.float32)
    kernel(*arrays(C=c))
    assert c.tolist() == [*range(1, 9), *range(8, 64)]


def arrays(**given_arrays: Any) -> list[Any]:
    made = {
        "A": np.zeros(3, np.float32), "B": np.zeros(3, np.float32), "C": np.zeros(64, np.float32),
        "D": np.zeros((64, 64), np.float32), "P": np.zeros(64, np.int32), **given_arrays,
        "E": np.zeros((4, len(given_arrays.get("A", range(3)))), np.float32),
    }  # fmt: skip
    return list(made.values())


# -- What is refused ------------------------------------------------------------------------------

LET = s.LetStmt(k, P[0], store(P, P[v] + k, k))
REFUSED: dict[str, tuple[Stmt, str]] = {
    "carried": (
        vectorized(8, store(C, C[v], v + 1)),
        r"^f: loop v \(vectorized\): expected iterations that can run side by side, found that one "
        r"writes C\[v \+ 1\] while another reads C\[v\], which may be the same element: leave the "
        r"loop serial or unroll it; if it reduces, rfactor it and vectorize the new axis$",
    ),
    "carried two far": (vectorized(8, store(C, C[v], v + 7)), r"writes C\[v \+ 7\] while"),
    "between statements": (
        vectorized(8, seq(store(C, D[0, v], v), store(D, C[v + 1], 1, v))),
        r"writes C\[v\] while another reads C\[v \+ 1\]",
    ),
    "written later": (
        vectorized(8, seq(store(D, C[v + 3], 1, v), store(C, 1.0, v + 7))),
        r"writes C\[v \+ 7\] while another reads C\[v \+ 3\]",
    ),
    "in an inner loop": (
        vectorized(8, loop(k, 4, store(C, D[k, v], v // 2))),
        r"writes C\[v // 2\] while another writes the same",
    ),
    "data": (
        vectorized(8, store(C, C[P[v]] + 1.0, P[v])),
        r"writes C\[P\[v\]\] while another reads C\[P\[v\]\]",
    ),
    "index of what is written": (vectorized(8, store(P, v, P[0])), r"writes P\[P\[0\]\] while"),
    "let": (vectorized(8, LET), r"while another (reads|writes)"),
    "condition": (
        vectorized(8, s.IfThenElse(C[0] > 0.0, store(C, 0.0, v))),
        r"writes C\[v\] while another reads C\[0\]",
    ),
    "argmax": (
        vectorized(
            8,
            s.LetStmt(
                k,
                e.Select(C[0] < D[0, v], v, P[0]),
                seq(store(C, e.Max(C[0], D[0, v]), 0), store(P, k, 0)),
            ),
        ),
        r"rfactor it",
    ),
    "subtraction": (vectorized(8, store(C, C[0] - D[0, v], 0)), "rfactor it"),
    "two sums": (
        vectorized(8, seq(store(C, C[0] + D[0, v], 0), store(C, C[0] + D[1, v], 0))),
        "rfactor it",
    ),
    "sum in another order": (
        vectorized(8, loop(k, 4, store(C, C[0] + D[k, v], 0))),
        r"expected the additions to C\[0\] to be in the order of the loop, found a loop inside "
        r"\(k\) that goes on with the same element: make the vectorized loop the innermost",
    ),
    "extent": (
        vectorized(N, store(A, 1.0, v)),
        "^f: loop v: expected a constant extent to vectorize, got n: split it by a constant and",
    ),
}


W = Var("w", FLOAT32)
# Where a value may stand that reads an element.
READ: dict[str, Callable[[PrimExpr], Stmt]] = {
    "operand": lambda value: store(C, value * 2.0, v + 1),
    "let": lambda value: store(C, e.Let(W, value, W * W), v + 1),
    "body of a let": lambda value: store(C, e.Let(W, X, value + W), v + 1),
    "let statement": lambda value: s.LetStmt(W, value, store(C, W, v + 1)),
    "condition": lambda value: s.IfThenElse(value > 0.0, store(C, 1.0, v + 1)),
    "choice": lambda value: store(C, e.Select(value > 0.0, X, X * X), v + 1),
    "lazy choice": lambda value: store(
        C, Call(FLOAT32, "if_then_else", (X > 0.0, value, X)), v + 1
    ),
}


@pytest.mark.parametrize("place", READ)
def test_what_another_iteration_writes_is_seen_wherever_it_is_read(place: str) -> None:
    with pytest.raises(CompileError, match=r"writes C\[v \+ 1\] while another reads C\[v\]"):
        vectorize_loops(func(vectorized(8, READ[place](C[v])), X))
    text_of_other = str(vectorize_loops(func(vectorized(8, READ[place](A[v])), X)).body)
    assert "for v" not in text_of_other


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, message = REFUSED[name]
    with pytest.raises(CompileError, match=message):
        vectorize_loops(func(body))


def test_one_memory_by_two_names() -> None:
    other = Buffer(C.data, (const(64),), FLOAT32, "other")
    body = vectorized(8, store(C, other[v], v))
    with pytest.raises(CompileError, match=r"writes C\[v\] while another reads other\[v\]"):
        vectorize_loops(func(body))


def test_a_guard_keeps_lanes_apart() -> None:
    body = s.IfThenElse(v < 4, store(C, C[v], v + 4))
    assert text(vectorized(8, body)) == "C[ramp(4, 1, 4)] = C[ramp(0, 1, 4)]"
    body = s.IfThenElse(e.And(v < 4, P[v] > 0), store(C, C[v], v + 4))
    assert "where=mask" in text(vectorized(8, body))


# -- That they compute the same -------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_tails(target: str) -> None:
    at = i * 16 + v
    body = s.IfThenElse(likely(at < N), store(B, A[at] * 2.0, at))
    kernel = build(func(loop(i, (N + 15) // 16, vectorized(16, body))), target=target)
    for size in (0, 1, 15, 16, 17, 40):
        a, b = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
        kernel(*arrays(A=a, B=b))
        np.testing.assert_array_equal(b, a * 2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build_it", [True, False], ids=["compiled", "interpreted"])
def test_assertions_name_the_first_lane(build_it: bool, target: str) -> None:
    inner = s.AssertStmt(P[v] < 9, "{} at {}", store(C, D[0, P[v]], v), (P[v], v))
    made = func(vectorized(8, s.IfThenElse(v < 6, inner)))
    kernel: Any = build(made, target=target) if build_it else None
    run = kernel if build_it else lambda *args: interpret(vectorize_loops(made), *args)
    p = np.zeros(64, np.int32)
    p[[3, 5, 7]] = 20, 30, 40
    with pytest.raises(KernelError, match="20 at 3"):
        run(*arrays(P=p))
    p[[3, 5]] = 1
    d, c = np.arange(4096, dtype=np.float32).reshape(64, 64), np.zeros(64, np.float32)
    run(*arrays(C=c, D=d, P=p))
    assert c[:8].tolist() == [0, 0, 0, 1, 0, 1, 0, 0]


def test_nothing_is_read_where_no_lane_is_on() -> None:
    """An element that all lanes share is read for none of them: A has no elements."""
    body = s.IfThenElse(P[v] > 0, store(C, A[0] + 1.0, v))
    lazy = store(D, Call(FLOAT32, "if_then_else", (P[v] > 0, A[0], const(7.0))), 0, v)
    made = func(vectorized(8, seq(body, lazy)))
    empty, c, d = np.zeros(0, np.float32), np.ones(64, np.float32), np.zeros((64, 64), np.float32)
    build(made)(*arrays(A=empty, B=empty, C=c, D=d))
    assert (c == 1).all()
    assert d[0, :8].tolist() == [7] * 8


def test_nan_in_extrema() -> None:
    """Of lanes and of a fold."""
    d, c = np.zeros((64, 64), np.float32), np.zeros(64, np.float32)
    d[0, 3], d[1, 4] = math.nan, math.nan
    build(func(vectorized(8, store(C, e.Min(D[0, v], D[1, v]), v))))(*arrays(C=c, D=d))
    assert np.isnan(c).nonzero()[0].tolist() == [3, 4]
    build(func(vectorized(8, store(C, e.Max(C[9], D[0, v]), 9))))(*arrays(C=c, D=d))
    assert np.isnan(c[9])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(2, 33), st.integers(1, 60), st.sampled_from(TARGETS))
def test_tiles(rows: int, columns: int, extent: int, target: str) -> None:
    """Accumulators are full vectors, whatever the guard leaves out; small integers add exactly."""
    made = func(tile(rows, columns, extent))
    vectors = vectorize_loops(made)
    assert "T[i, ramp" in str(vectors)
    d = np.random.default_rng(extent).integers(-3, 3, (64, 64)).astype(np.float32)
    runs: list[Callable[..., Any]] = [build(made, target=target)]
    runs += [lambda *args, form=form: interpret(form, *args) for form in (made, vectors)]
    compiled, interpreted, widened = (after(arrays(D=d), run)[3] for run in runs)
    np.testing.assert_array_equal(compiled, interpreted)
    np.testing.assert_array_equal(widened, interpreted)


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_equal_to_any_number_of_data(target: str) -> None:
    """Also to numbers that are far from all lanes, whose distance from a lane wraps."""
    ends = [-(2**31), -(2**31) + 3, -17, -1, 0, 7, 16, 39, 40, 2**31 - 40, 2**31 - 1]
    keys, found = decl_buffer((len(ends),), "int32", "K"), decl_buffer((len(ends), 40), "bool", "F")
    i, o, lane = Var("i"), Var("o"), Var("lane")
    place = o * 8 + lane
    body = loop(lane, 8, store(found, e.EQ(keys[i], place), i, place), ForKind.VECTORIZED)
    func = function_of(keys, found)(loop(i, len(ends), loop(o, 5, body)))
    assert "uint32" in str(vectorize_loops(func))
    expected = np.array(ends)[:, None] == np.arange(40)
    for run in (build(func, target=target), partial(interpret, vectorize_loops(func))):
        got = np.zeros((len(ends), 40), bool)
        run(np.array(ends, "int32"), got)
        np.testing.assert_array_equal(got, expected)


def test_data_is_compared_as_it_is() -> None:
    """The distance of two 64-bit values need not fit 64 bits."""
    data = decl_buffer((2,), "int64", name="data")
    out = decl_buffer((2, 8), "bool", name="out")
    lane = e.cast("int64", v)
    stores = [store(out, data[row] < lane + 1, row, v) for row in range(2)]
    made = PrimFunc(
        (data.data, out.data),
        vectorized(8, seq(*stores)),
        {data.data: data, out.data: out},
        "f",
    )
    found = np.zeros((2, 8), bool)
    build(made)(np.array([-(2**63), 2**63 - 1]), found)
    assert found.tolist() == [[True] * 8, [False] * 8]


few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
seen: Counter[str] = Counter()


def check_program(data: st.DataObject, target: str | None) -> None:
    """The vector form, interpreted and compiled, does what the loop does; or it is refused."""
    dtype = data.draw(st.sampled_from(DTYPES))
    program = Program(data.draw, dtype)
    try:
        forms = [vectorize_loops(widen_indices(program.func)), vectorize_loops(program.func)]
        kernel = None if target is None else build(program.func, target=target, fp="strict")
    except CompileError:
        seen["refused"] += 1
        return
    seen["vectors" if "ramp(" in str(forms[0]) else "serial"] += 1
    assert "vectorized(" not in str(forms[0])
    given_arrays = random_arrays(dtype, data.draw(st.integers(0, 2**32 - 1)))
    expected = after(given_arrays, lambda *args: interpret(program.func, *args))
    runs: list[Callable[..., Any]] = [
        lambda *args, form=form: interpret(form, *args) for form in forms
    ]
    if kernel is not None:
        runs.append(kernel)
    for run in runs:
        found = after(given_arrays, run)
        for x, y in zip(found[:3], expected[:3], strict=True):
            pairs = zip(values_of(dtype, x), values_of(dtype, y), strict=True)
            assert all(equal(a, b) for a, b in pairs), f"{program.func}\n{forms[0]}"


def after(given_arrays: list[Any], run: Callable[..., Any]) -> list[Any]:
    copies = [each.copy() for each in given_arrays]
    run(*copies)
    return copies


def random_arrays(dtype: DType, seed: int) -> list[Any]:
    """Telling values, or small ones, which don't end in NaN or saturation."""
    random = np.random.default_rng(seed)
    small = [scalars.cast(dtype, value) for value in range(-4, 5)]
    values = telling_values(dtype) if seed % 2 else small
    shapes = ((SIZE,), (SIZE,), (ROWS, SIZE))
    made = [
        array_of(dtype, [values[n] for n in random.integers(0, len(values), math.prod(shape))])
        for shape in shapes
    ]
    tensors = [each.reshape(shape) for each, shape in zip(made, shapes, strict=True)]
    return [*tensors, random.integers(0, ROWS, SIZE).astype(np.int32)]


@few
@given(st.data())
def test_programs_interpreted(data: st.DataObject) -> None:
    check_program(data, None)


@pytest.mark.parametrize("target", TARGETS)
@settings(few, max_examples=10)
@given(data=st.data())
def test_programs_compiled(target: str, data: st.DataObject) -> None:
    check_program(data, target)


def test_enough_programs_are_vectors() -> None:
    """The properties above say something only of programs that are not refused."""
    test_programs_interpreted()
    assert seen["vectors"] >= sum(seen.values()) // 4


@pytest.mark.wide
@pytest.mark.parametrize("target", TARGETS)
@many
@given(data=st.data())
def test_programs_widely(target: str, data: st.DataObject) -> None:
    check_program(data, target)


def check_near_lanes(first: int, count: int) -> int:
    """Programs whose lanes meet often do in vectors what they do in turn, or are refused; how many
    are vectors."""
    vectors = 0
    for seed in range(first, first + count):
        program = NearProgram(Random(seed))
        try:
            made = vectorize_loops(program.func)
        except CompileError:
            continue
        vectors += "ramp(" in str(made)
        expected, found = program.arguments(), program.arguments()
        interpret(program.func, *expected)
        interpret(made, *found)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y, f"{seed}: {program.func}\n{made}")
    return vectors


def test_lanes_that_meet() -> None:
    assert check_near_lanes(0, 300) > 30


@pytest.mark.wide
def test_lanes_that_meet_widely() -> None:
    check_near_lanes(1000, 60_000)


def test_lanes_that_a_guard_excludes_are_left_out() -> None:
    def guarded(below: int) -> str:
        return text(vectorized(32, s.IfThenElse(likely(v < below), store(A, B[v], v))))

    assert guarded(8).strip() == "A[ramp(0, 1, 8)] = B[ramp(0, 1, 8)]"
    assert "A[ramp(0, 1, 16), where=" in guarded(11)
    assert "A[ramp(0, 1, 32), where=" in guarded(17)


def test_lanes_that_are_no_power_of_two() -> None:
    for extent, strips, lanes in ((48, 3, 16), (40, 5, 8)):
        loop = vectorize_loops(func(vectorized(extent, store(A, B[v], v)))).body
        assert isinstance(loop, s.For) and isinstance(loop.body, s.BufferStore)
        assert loop.kind is ForKind.UNROLLED and e.const_int(loop.extent) == strips
        assert loop.body.value.dtype.lanes == lanes
    assert "A[ramp(0, 1, 7)]" in text(vectorized(7, store(A, B[v], v)))


def test_functions_of_an_odd_number_of_lanes_are_masked() -> None:
    """Where there are registers for masks: in memory with as many lanes and no more, too."""
    taken = decl_buffer((2, 12), "float32", "T")
    padded = s.AttrStmt(
        taken, "padded_buffer", const(1), store(taken, e.intrinsic("exp", FLOAT32, A[v]), 0, v)
    )
    made = function_of(A, taken)(vectorized(12, padded))
    wide = str(vectorize_loops(made, vector_bytes=64, mask_registers=True))
    assert "T[0, ramp(0, 1, 16), where=" in wide and "A[ramp(0, 1, 16), where=" in wide
    assert "where=" not in str(vectorize_loops(made, vector_bytes=64))
    assert "where=" not in str(vectorize_loops(made, vector_bytes=32, mask_registers=True))
    plain = function_of(A, taken)(vectorized(12, store(taken, A[v] + 1.0, 0, v)))
    assert "where=" not in str(vectorize_loops(plain, vector_bytes=64, mask_registers=True))
    local = decl_buffer((2, 12), "float32", "L", scope="local")
    added = store(local, local[1, v] + e.intrinsic("exp", FLOAT32, A[v]), 1, v)
    padded = s.AttrStmt(local, "padded_buffer", const(1), added)
    made = function_of(A)(s.Allocate(local, seq(vectorized(12, padded), store(A, local[1, 0], 0))))
    wide = str(vectorize_loops(made, vector_bytes=64, mask_registers=True))
    assert wide.count("L[1, ramp(0, 1, 16), where=") == 2


def test_widths_are_put_together() -> None:
    made = text(vectorized(50, store(C, C[v] * 2.0, v)))
    assert "ramp(0, 1, 32)" in made and "ramp(32, 1, 16)" in made and "ramp(48, 1, 2)" in made


def chosen(condition: PrimExpr, yes: PrimExpr, no: PrimExpr = C[v]) -> PrimExpr:
    return e.intrinsic("if_then_else", FLOAT32, condition, yes, no)


CHOICES: dict[str, tuple[PrimExpr, bool]] = {
    "elements that exist": (chosen(C[0] > 0.0, D[0, v]), True),
    "a loop decides": (chosen(i > 2, D[0, v]), False),
    "a read that may leave": (chosen(C[0] > 0.0, A[v]), False),
    "long to compute": (chosen(C[0] > 0.0, Call(FLOAT32, "exp", (C[v],))), False),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_by_data(name: str) -> None:
    """What data choose is computed in any case, if that is quick and harmless."""
    value, late = CHOICES[name]
    made = text(loop(i, 4, vectorized(8, store(D, value, i, v))))
    assert ("select(" in made) == late and ("if_then_else(" in made) != late


def test_a_name_of_a_condition_tells_what_exists() -> None:
    full, element = Var("full", BOOL), D[i * 20 + j, 0]
    greater = chosen(element > C[v], element)
    inner = s.IfThenElse(full, loop(j, 20, vectorized(8, store(C, greater, v))))
    made = text(loop(i, 4, s.LetStmt(full, i < 3, inner)))
    assert "vector_reduce_or" not in made


def test_elements_of_symbolic_buffers_that_exist_need_no_mask() -> None:
    """The choice differs between lanes; both of its values exist in all of them."""

    def choice(size: PrimExpr) -> str:
        value = chosen(C[v] > 0.0, A[i * 8 + v], A[i * 8 + 7 - v])
        return text(loop(i, size, vectorized(8, store(C, value, v))))

    assert "where=" not in choice(N // 8)
    assert "where=" in choice(N // 8 + 1)
