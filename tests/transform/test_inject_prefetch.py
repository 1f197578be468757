"""What a later iteration reads is asked for, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.error import TVMError
from minitvm.tir.expr import Call, PrimExpr, Range, Var, as_expr, const, const_int
from minitvm.tir.functor import substitute, walk
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    LetStmt,
    SeqStmt,
    Stmt,
    seq,
)
from minitvm.transform.inject_prefetch import SCOPE, SHARES, inject_prefetch
from tests.tir.programs import function_of, loop

n = te.var("n")
i, j, k = (Var(name) for name in "ijk")
A, B = tir.decl_buffer((n, 40), name="A"), tir.decl_buffer((n, 40), name="B")
I = tir.decl_buffer((n,), "int32", name="I")  # noqa: E741  # indices


func = function_of(A, B, I)


def ahead(body: Stmt, offset: PrimExpr | int = 2, kind: ForKind = ForKind.SERIAL) -> Stmt:
    return AttrStmt(A, SCOPE, as_expr(offset), loop(i, n, body, kind))


def copy(value: PrimExpr, kind: ForKind = ForKind.SERIAL) -> Stmt:
    return loop(j, 40, BufferStore(B, value, (i, j)), kind)


def requests(body: Stmt) -> int:
    made = inject_prefetch(func(body)).body
    return sum(isinstance(each, Call) and each.op == "prefetch" for each in walk(made))


def test_text(golden: Callable[[str], None]) -> None:
    golden(str(inject_prefetch(func(ahead(copy(A[i, j] + A[i, j] + A[j, i]))))))


def test_each_place_once() -> None:
    assert requests(ahead(copy(B[i, j]))) == 0
    assert requests(ahead(seq(copy(A[i, j]), copy(A[i, j] * 2.0)))) == 2  # each line, and the last
    assert requests(ahead(copy(A[I[i], j] + A[i, j]))) == 4
    assert requests(ahead(LetStmt(k, I[i], copy(A[k, j])))) == 0
    assert requests(ahead(copy(A[te.min(I[i], 3), j]))) == 2
    assert requests(ahead(loop(j, I[i], BufferStore(B, A[i, j], (i, j))))) == 0


def test_reads_along_lines_are_requested_only_if_all_are() -> None:
    """The processor foresees them, and each request would be for the line of the one before."""
    square = tir.decl_buffer((40, 40), name="S")
    func_of_square = function_of(square, B)

    def lines_of(value: PrimExpr) -> list[str]:
        body = loop(j, 40, BufferStore(B, value, (i, j)))
        made = inject_prefetch(func_of_square(AttrStmt(square, SCOPE, const(2), loop(i, 40, body))))
        return [line.strip() for line in str(made).splitlines() if "prefetch" in line]

    assert lines_of(square[3, i] * square[i, j])[0] == "prefetch(S[i + 2, j * 16])"
    assert not any("S[3" in line for line in lines_of(square[3, i] * square[i, j]))
    assert lines_of(square[3, i] * 2.0) == ["prefetch(S[3, i + 2])"]


def test_indices_are_read_inside_of_their_buffer() -> None:
    J = tir.decl_buffer((3, n), "int32", name="J")
    text = str(inject_prefetch(func(ahead(copy(A[J[2, i], j])))))
    place = "max(min(2 * n + int64(i + 2), 3 * n - 1), 0)"
    row = f"if_then_else(3 * n > 0, J[{place} // n, {place} % n], 0)"
    assert f"prefetch(A[{row}, j * 16])" in text.replace("int64(n)", "n")


@pytest.mark.parametrize("offset", [-9, 0, 1, 5, 1 << 20])
def test_rows_that_data_choose(offset: int) -> None:
    """The index after the last one is none; and the buffer of indices may be empty."""
    for rows in (7, 0):
        rest = copy(te.if_then_else(i < n - 1, A[I[i], j], 0.0))
        before = func(ahead(rest, offset))
        a = np.random.default_rng(0).random((rows, 40), np.float32)
        chosen = np.array([3, 0, 6, 6, 1, 2, 5][:rows], np.int32)
        interpreted, compiled = np.zeros_like(a), np.zeros_like(a)
        interpret(inject_prefetch(before), a, interpreted, chosen)
        tvm.build(before)(a, compiled, chosen)
        np.testing.assert_array_equal(compiled[:-1], a[chosen][:-1])
        np.testing.assert_array_equal(compiled, interpreted)


def test_lines_of_panels() -> None:
    """Indices are simplified before lines are told from elements; own memory begins at a line."""
    P = tir.decl_buffer((n, 32), name="P")
    place = i * 32 + j
    read = loop(j, 32, BufferStore(B, P[place // 32, place % 32], (i, j)))
    around = AttrStmt(P, SCOPE, const(1), loop(i, n, read))
    text = str(inject_prefetch(func(Allocate(P, around))))
    assert "for j in unrolled(2):" in text
    assert text.count("prefetch(") == 1
    whole = loop(j, 31, BufferStore(B, P[i, j], (i, j)))
    assert requests(Allocate(P, AttrStmt(P, SCOPE, const(1), loop(i, n, whole)))) == 2


def test_what_is_written_is_requested() -> None:
    written = AttrStmt(B, SCOPE, const(0), loop(i, n, copy(A[i, j])))
    assert requests(written) == 2
    assert "prefetch(B[i, 39])" in str(inject_prefetch(func(written)))


@pytest.mark.parametrize("offset", [-100, 0, 3, 1 << 20])
@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.UNROLLED])
def test_nothing_else_changes(offset: int, kind: ForKind) -> None:
    """Places far outside of the buffer included, in machine code and in the interpreter."""
    before = func(ahead(copy(A[i, j] + 1.0, kind), offset))
    a = np.random.default_rng(0).random((7, 40), np.float32)
    rows = np.arange(7, dtype=np.int32)
    interpreted, compiled = np.zeros_like(a), np.zeros_like(a)
    interpret(inject_prefetch(before), a, interpreted, rows)
    kernel = tvm.build(before)
    kernel(a, compiled, rows)
    np.testing.assert_array_equal(interpreted, a + np.float32(1.0))
    np.testing.assert_array_equal(compiled, interpreted)
    kernel(np.asfortranarray(a), compiled, rows)
    np.testing.assert_array_equal(compiled, interpreted)
    assert "llvm.prefetch" in kernel.get_source("ll")


def test_the_attribute_stands_around_a_loop() -> None:
    body = AttrStmt(A, SCOPE, const(1), BufferStore(B, A[0, 0], (const(0), const(0))))
    with pytest.raises(TVMError, match=r"prefetch of A: expected a loop, found BufferStore"):
        inject_prefetch(func(body))


# ---- Shares --------------------------------------------------------------------------------------


def shared(tiles: int, parts: int, rows: int) -> Stmt:
    """Blocks of `rows` rows of X by 32 columns, each of which all tiles read, in some parts."""
    outer, block, tile, part = (Var(name) for name in ("outer", "block", "tile", "part"))
    step, lane = Var("step"), Var("lane")
    size = rows // parts
    value = X[outer * rows + part * size + step, block * 32 + lane]
    read = loop(step, size, loop(lane, 32, BufferStore(Y, value, (tile, lane))))
    inside = AttrStmt(X, SHARES, block + 1, loop(part, parts, read))
    return loop(outer, 2, loop(block, 3, loop(tile, tiles, inside)))


def requested(node: Stmt, at: dict[Var, PrimExpr]) -> Iterator[tuple[tuple[int, ...], PrimExpr]]:
    """The values of all loops around each request, and its place, in order."""
    if isinstance(node, For):
        for value in range(const_int(substitute(node.extent, at)) or 0):
            yield from requested(node.body, {**at, node.loop_var: const(value)})
    elif isinstance(node, Evaluate):
        (load,) = node.value.args  # type: ignore[attr-defined]  # a call
        place = load.indices[0] * 96 + load.indices[1]
        yield (
            tuple(const_int(x) or 0 for x in at.values()),
            Analyzer().simplify(substitute(place, at)),
        )
    elif isinstance(node, SeqStmt):
        for each in node.seq:
            yield from requested(each, at)


X, Y = tir.decl_buffer((48, 96), name="X"), tir.decl_buffer((20, 32), name="Y")


@pytest.mark.parametrize(("tiles", "parts"), [(6, 4), (3, 2), (1, 1), (5, 3), (7, 24), (20, 12)])
def test_shares_are_the_next_block(tiles: int, parts: int) -> None:
    """Also behind the last block of columns, where the next rows begin. Shares that don't come out
    even overlap, and the last one may end later."""
    body = inject_prefetch(function_of(X, Y)(shared(tiles, parts, 24))).body
    found: dict[tuple[int, int], list[int]] = {}
    for around, place in requested(body, {}):
        found.setdefault((around[0], around[1]), []).append(const_int(place) or 0)
    for outer, block in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        after = divmod(outer * 3 + block + 1, 3)
        rows = range(after[0] * 24, after[0] * 24 + 24)
        lines = {row * 96 + after[1] * 32 + part for row in rows for part in (0, 16, 31)}
        assert lines <= {*found[outer, block]}
        assert len(found[outer, block]) <= 3 * max(tiles * parts, 24 + tiles * parts)


def test_shares_of_unknown_loops_are_none() -> None:
    body = AttrStmt(A, SHARES, i + 1, loop(j, n, copy(A[i, k])))
    assert requests(loop(i, 4, body)) == 0
    rows = loop(k, n, BufferStore(B, A[k, i], (k, i)))
    assert requests(loop(i, 4, AttrStmt(A, SHARES, i + 1, loop(j, 8, rows)))) == 0


def test_shares_are_inside_of_the_loop_that_they_name() -> None:
    body = AttrStmt(A, SHARES, k + 1, loop(j, 8, copy(A[i, j])))
    with pytest.raises(TVMError, match=r"prefetch of A: expected a loop inside of the loop in k"):
        inject_prefetch(func(loop(i, 4, body)))
    alone = AttrStmt(A, SHARES, i + 1, BufferStore(B, A[i, 0], (i, const(0))))
    with pytest.raises(TVMError, match=r"inside of the loop in i \+ 1, found BufferStore"):
        inject_prefetch(func(loop(i, 4, alone)))


def test_of_a_schedule() -> None:
    """A product whose panels are requested while the tiles of rows read the one before."""
    P, Q = te.placeholder((20, 30), name="P"), te.placeholder((30, 64), name="Q")
    r = te.reduce_axis((0, 30), name="r")
    R = te.compute((20, 64), lambda i, j: te.sum(P[i, r] * Q[r, j], axis=r), name="R")
    s = te.create_schedule(R.op)
    sums = s.cache_write(R, "local")
    row, column = R.op.axis
    panel, inner = s[R].split(column, factor=16)
    tile, row = s[R].split(row, factor=4)
    s[R].reorder(panel, tile, row, inner)
    s[sums].compute_at(s[R], tile)
    made = s[sums].op
    assert isinstance(made, te.ComputeOp)
    part, _ = s[sums].split(made.reduce_axis[0], factor=5)
    s[sums].reorder(part, *made.axis)
    s[sums].prefetch(Q, part, 1, of=panel)
    text = str(tvm.lower(s, [P, Q, R]))
    assert "prefetch(Q[" in text
    assert "panel" not in text
    f = tvm.build(te.replay(s.trace(), [R.op]), [P, Q, R], name="f")
    assert "llvm.prefetch" in f.get_source("ll")
    p, q = (np.random.default_rng(1).integers(-9, 9, x).astype("f4") for x in ((20, 30), (30, 64)))
    result = np.zeros((20, 64), "f4")
    f(p, q, result)
    np.testing.assert_array_equal(result, p @ q)
    s[sums].prefetch(P, part, 1, of=row)
    with pytest.raises(TVMError, match=r"expected a loop around \S+ of R\.local, found that"):
        tvm.lower(s, [P, Q, R])


@pytest.mark.parametrize("place", ["own", "around"])
def test_shares_in_the_loops_that_read(place: str) -> None:
    """Requests for a row stand inside of the loop along the row, with a loop of their own."""
    P, k = te.placeholder((6, 8, 40), name="P"), te.reduce_axis((0, 40), name="k")
    C = te.compute((6, 8), lambda i, j: te.sum(P[i, j, k], axis=k), name="C")
    D = te.compute((6, 8), lambda i, j: C[i, j] + 1.0, name="D")
    s = te.create_schedule(D.op)
    made, result = C.op, D.op
    assert isinstance(made, te.ComputeOp)
    assert isinstance(result, te.ComputeOp)
    if place == "around":
        s[C].compute_at(s[D], result.axis[0])
    s[C].prefetch(P, k, 1, of=made.axis[0] if place == "own" else result.axis[0])
    lowered = tvm.lower(s, [P, D], name="f")["f"]
    assert "prefetch(P[i + 1, j, k_1 * 16])" in str(lowered)
    p = np.random.default_rng(2).integers(-9, 9, (6, 8, 40)).astype("f4")
    for function in (tvm.build(s, [P, D]), partial(interpret, lowered)):
        sums = np.zeros((6, 8), "f4")
        function(p, sums)
        np.testing.assert_array_equal(sums, p.sum(2) + 1)


def test_shares_of_rows_that_begin_elsewhere_in_each_row() -> None:
    """The loops of the requests aren't those around the shares."""
    P, Q = te.placeholder((6, 32, 9), name="P"), te.placeholder((16,), name="Q")

    def rows(i: Var, j: Var) -> PrimExpr:
        k = te.reduce_axis(Range.from_min_extent(j * 4, 4), name="k")
        sums: PrimExpr = te.sum(P[i, k, 3], axis=k)
        return sums

    C = te.compute((6, 8), rows, name="C")
    E = te.compute((6, 16), lambda i, j: Q[j] * 2.0, name="E")
    D = te.compute((6, 8), lambda i, j: C[i, j] + E[i, j] * E[i, j + 8], name="D")
    s = te.create_schedule(D.op)
    result, other = D.op, E.op
    assert isinstance(result, te.ComputeOp)
    assert isinstance(other, te.ComputeOp)
    for stage in (C, E):
        s[stage].compute_at(s[D], result.axis[0])
    s[E].prefetch(P, other.axis[1], 1, of=result.axis[0])
    assert "prefetch(P[i + 1, j_1 * 2 + share, 3])" in str(tvm.lower(s, [P, Q, D]))


def test_shares_in_a_loop_that_is_not_inside() -> None:
    P, k = te.placeholder((6, 40), name="P"), te.reduce_axis((0, 40), name="k")
    C = te.compute((6,), lambda i: te.sum(P[i, k], axis=k), name="C")
    s = te.create_schedule(C.op)
    made = C.op
    assert isinstance(made, te.ComputeOp)
    s[C].prefetch(P, made.axis[0], 1, of=made.reduce_axis[0])
    with pytest.raises(
        TVMError, match=r"C: prefetch: expected a loop around i of C, found that k "
    ):
        tvm.lower(s, [P, C])
