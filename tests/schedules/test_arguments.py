"""What lies between stages and is an argument, too: it is computed whole, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.arith.analyzer import Analyzer
from minitvm.tir.expr import const_int
from minitvm.tir.functor import substitute
from minitvm.tir.interpreter import interpret

n, m = te.var("n"), te.var("m")
k6 = te.reduce_axis((0, 6), "k")
k3 = te.reduce_axis((0, 3), "k")
k2 = te.reduce_axis((2, 6), "k")

PART = "expected all elements of an argument to be computed, but that loop may need only some"


class Pair:
    """P = 2 A + 1, and C, which reads P."""

    def __init__(self, shape: Any, out: Any, read: Callable[..., Any]) -> None:
        self.A = te.placeholder(shape, "int32", name="A")
        self.P: Any = te.compute(shape, lambda *i: self.A(*i) * 2 + 1, name="P")
        self.C: Any = te.compute(out, lambda *i: read(self.P, *i), name="C")
        self.s: Any = te.create_schedule(self.C.op)

    def place(self, loop: int, tile: int | None, fuse: bool, kind: str | None = None) -> None:
        stage = self.s[self.C]
        if fuse:
            stage.fuse(*stage.leaf_iter_vars[:2])
        axis = stage.leaf_iter_vars[loop]
        if tile is not None:
            axis, _ = stage.split(axis, tile)
        if kind is not None:
            getattr(stage, kind)(axis)
        self.s[self.P].compute_at(stage, axis)

    def check(self, sizes: dict[Any, int] | None = None) -> None:
        """What the function computes of both is what the plain loops compute."""
        args = [self.A, self.P, self.C]
        plain = te.create_schedule(self.C.op)
        results = []
        for s in (plain, self.s):
            arrays = [_rubbish(arg.shape, sizes or {}) for arg in args]
            arrays[0][...] = np.arange(arrays[0].size).reshape(arrays[0].shape)
            interpret(tvm.lower(s, args)["main"], *arrays)
            results.append(arrays)
        for got, wanted in zip(*results, strict=True):
            np.testing.assert_array_equal(got, wanted)


def _rubbish(shape: Any, sizes: dict[Any, int]) -> np.ndarray[Any, Any]:
    dims = [const_int(Analyzer().simplify(substitute(dim, sizes))) for dim in shape]
    return np.full([int(dim or 0) for dim in dims], -77, "int32")


def window(P: Any, i: Any, j: Any) -> Any:
    total = P[i, j]
    for a, b in [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]:
        total = total + P[i + a, j + b]
    return total


# Name: the shapes of P and C, and what C reads.
COVERED: dict[str, tuple[Any, Any, Callable[..., Any]]] = {
    "same": ((8,), (8,), lambda P, i: P[i]),
    "reversed": ((8,), (8,), lambda P, i: P[7 - i]),
    "pairs": ((16,), (8,), lambda P, i: P[2 * i] + P[2 * i + 1]),
    "triples": ((24,), (8,), lambda P, i: P[3 * i + 2] + P[3 * i] + P[3 * i + 1]),
    "stencil": ((10,), (8,), lambda P, i: P[i] + P[i + 1] + P[i + 2]),
    "far_apart": ((12,), (8,), lambda P, i: P[i] + P[i + 4]),
    "clamped": ((8,), (8,), lambda P, i: P[te.max(i - 1, 0)] + P[te.min(i + 1, 7)]),
    "padded": ((8,), (10,), lambda P, i: te.if_then_else(te.all(i >= 1, i < 9), P[i - 1], 0)),
    "window": ((10, 10), (8, 8), window),
    "transposed": ((8, 6), (6, 8), lambda P, i, j: P[j, i]),
    "broadcast": ((8,), (8, 5), lambda P, i, j: P[i]),
    "reshaped": ((4, 6), (24,), lambda P, i: P[i // 6, i % 6]),
    "reshaped_thrice": ((2, 3, 4), (24,), lambda P, i: P[i // 12, i // 4 % 3, i % 4]),
    "flattened": ((24,), (4, 6), lambda P, i, j: P[i * 6 + j]),
    "upsampled": ((5,), (9,), lambda P, i: P[i // 2]),
    "repeated": ((5,), (13,), lambda P, i: P[i % 5]),
    "reduced": ((8, 6), (8,), lambda P, i: te.sum(P[i, k6], axis=k6)),
    "convolved": ((10,), (8,), lambda P, i: te.sum(P[i + k3], axis=k3)),
    "convolved_in_steps": ((17,), (8,), lambda P, i: te.sum(P[i * 2 + k3], axis=k3)),
    "by_value": ((4,), (8,), lambda P, i: P[te.min(P[i // 2], 3)]),
}
PARTIAL: dict[str, tuple[Any, Any, Callable[..., Any]]] = {
    "every_second": ((8,), (4,), lambda P, i: P[2 * i]),
    "all_but_one": ((9,), (8,), lambda P, i: P[i + 1]),
    "one": ((8,), (4,), lambda P, i: P[3]),
    "two_of_three": ((24,), (8,), lambda P, i: P[3 * i] + P[3 * i + 1]),
    "with_gaps": ((18,), (8,), lambda P, i: P[2 * i] + P[2 * i + 2]),
    "a_gap": ((12,), (4,), lambda P, i: P[i] + P[i + 5]),
    "diagonal": ((8, 8), (8,), lambda P, i: P[i, i]),
    "cross": ((10, 10), (8, 8), lambda P, i, j: P[i, j + 1] + P[i + 2, j + 1] + P[i + 1, j]),
    "remainders": ((6, 6), (6,), lambda P, i: P[i // 2, i % 2]),
    "clipped": ((8,), (8,), lambda P, i: P[te.min(i, 6)]),
    "reduced_from_2": ((8, 6), (8,), lambda P, i: te.sum(P[i, k2], axis=k2)),
    "convolved_in_steps": ((31,), (8,), lambda P, i: te.sum(P[i * 4 + k3], axis=k3)),
    "of_another_size": ((n,), (m,), lambda P, i: P[i]),
    "every_second_of_n": ((2 * n,), (n,), lambda P, i: P[2 * i]),
}
PLACES: dict[str, tuple[int, int | None, bool]] = {
    "outer": (0, None, False),
    "inner": (-1, None, False),
    "tile": (0, 3, False),
    "fused": (0, None, True),
    "fused_tile": (0, 4, True),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", COVERED)
def test_what_the_loops_need_all_of_is_computed_whole(name: str, place: str) -> None:
    pair = Pair(*COVERED[name])
    if PLACES[place][2] and pair.C.ndim < 2:
        return
    pair.place(*PLACES[place])
    pair.check()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", PARTIAL)
def test_an_argument_computed_in_part_is_refused(name: str, place: str) -> None:
    pair = Pair(*PARTIAL[name])
    if PLACES[place][2] and pair.C.ndim < 2:
        return
    pair.place(*PLACES[place])
    with pytest.raises(tvm.CompileError, match=rf"^P: computed at loop .* of C: {PART}"):
        tvm.lower(pair.s, [pair.A, pair.P, pair.C])
    if pair.P.shape[0] is not n:
        tvm.lower(pair.s, [pair.A, pair.C])  # nobody else sees P


@pytest.mark.parametrize(
    ("shape", "out", "read", "place"),
    [
        ((n,), (n,), lambda P, i: P[i], "tile"),
        ((n, m), (n, m), lambda P, i, j: P[i, j], "fused"),
        ((n, m), (n, m), lambda P, i, j: P[i, j], "fused_tile"),
        ((n, m), (m, n), lambda P, i, j: P[j, i], "tile"),
        ((n, m), (m, n), lambda P, i, j: P[n - 1 - j, i], "inner"),
        ((n,), (n, m), lambda P, i, j: P[i], "outer"),
        ((2 * n,), (n,), lambda P, i: P[2 * i] + P[2 * i + 1], "tile"),
        ((n * m,), (n, m), lambda P, i, j: P[i * m + j], "inner"),
    ],
)
def test_sizes_that_the_call_decides(shape: Any, out: Any, read: Any, place: str) -> None:
    for sizes in ({n: 5, m: 3}, {n: 17, m: 16}, {n: 0, m: 0}, {n: 4, m: 0}):
        pair = Pair(shape, out, read)
        pair.place(*PLACES[place])
        pair.check(sizes)


CONDITIONAL: dict[str, Callable[..., Any]] = {
    "element": lambda P, i, j: te.if_then_else(i > 2, P[i], te.const(0, "int32")),
    "padding": lambda P, i, j: te.if_then_else(i > 0, P[i - 1] + P[i], te.const(7, "int32")),
    "sum": lambda P, i, j: te.sum(P[i] * k3.var, axis=k3, where=i < 5),
}


@pytest.mark.parametrize("tile", [None, 3])
@pytest.mark.parametrize("name", CONDITIONAL)
def test_elements_that_conditions_do_not_read_are_computed(name: str, tile: int | None) -> None:
    """The condition of a reader says which elements it reads, not which elements there are."""
    for size in (8, n):
        pair = Pair((size,), (size, 3), CONDITIONAL[name])
        pair.place(0, tile, fuse=False)
        pair.check({n: 7})


@pytest.mark.parametrize("reads_all", [True, False])
def test_one_of_several_readers_has_a_condition(reads_all: bool) -> None:
    """A stage is computed whole if a reader without a condition needs all of it."""
    A = te.placeholder((4, 6), "int32", name="A")
    P = te.compute((4, 6), lambda i, j: A[i, j] * 2 + 1, name="P")
    T = te.compute((4, 6), lambda i, j: P[i, j] * 3, name="T")
    k = te.reduce_axis((0, 6), "k")
    R = te.compute((4,), lambda i: te.sum(T[i, k], axis=k, where=k > i), name="R")
    C = te.compute((4, 6), lambda i, j: (T[i, j] if reads_all else 1) + R[i], name="C")
    s = te.create_schedule(C.op)
    for stage in (R, T, P):
        s[stage].compute_at(s[C], C.op.axis[0])
    if not reads_all:
        with pytest.raises(tvm.CompileError, match=f"^P: computed at loop i of C: {PART}"):
            tvm.lower(s, [A, P, C])
        return
    a = np.arange(24, dtype="int32").reshape(4, 6)
    p, c = np.full_like(a, -77), np.full_like(a, -77)
    tvm.build(s, [A, P, C])(a, p, c)
    np.testing.assert_array_equal(p, a * 2 + 1)
    np.testing.assert_array_equal(c, 3 * (p + np.triu(p, 1).sum(1)[:, None]))


def test_a_reader_computed_in_part_computes_no_argument() -> None:
    """Q is computed where C reads it, and P with it."""
    A = te.placeholder((8,), "int32", name="A")
    P = te.compute((8,), lambda i: A[i] * 2, name="P")
    Q = te.compute((8,), lambda i: P[i] + 1, name="Q")
    C = te.compute((8,), lambda i: te.if_then_else(i > 2, Q[i], te.const(0, "int32")), name="C")
    s = te.create_schedule(C.op)
    s[Q].compute_at(s[C], C.op.axis[0])
    s[P].compute_at(s[C], C.op.axis[0])
    with pytest.raises(tvm.CompileError, match=PART):
        tvm.lower(s, [A, P, C])


@pytest.mark.parametrize("size", [7, te.size_var("n")])
def test_an_output_that_another_stage_reads_has_a_place(size: Any) -> None:
    X = te.placeholder((size, 5), name="X")
    k = te.reduce_axis((0, 5), "k")
    S = te.compute((size,), lambda i: te.sum(X[i, k], axis=k), name="S")
    Y = te.compute((size, 5), lambda i, j: te.if_then_else(i > 2, X[i, j] - S[i], 0.0), name="Y")
    s = te.create_schedule([S.op, Y.op])
    s[S].compute_at(s[Y], Y.op.axis[0])
    x = np.arange(35, dtype="float32").reshape(7, 5)
    sums, y = np.full(7, -77, "float32"), np.full((7, 5), -77, "float32")
    tvm.build(s, [X, S, Y], target="llvm -mcpu=haswell")(x, sums, y)
    np.testing.assert_array_equal(sums, x.sum(1))
    np.testing.assert_array_equal(y, np.where(np.arange(7)[:, None] > 2, x - x.sum(1)[:, None], 0))


def test_no_iterations_compute_no_argument() -> None:
    halo = Pair((n + 2,), (n,), lambda P, i: P[i] + P[i + 1] + P[i + 2])
    halo.place(*PLACES["tile"])
    halo.check({n: 7})
    with pytest.raises(ValueError, match=r"P: computed at loop i0.outer of C: expected n >= 1, si"):
        halo.check({n: 0})
    rows = Pair((n,), (n, m), lambda P, i, j: P[i])
    rows.place(*PLACES["inner"])
    rows.check({n: 0, m: 0})
    with pytest.raises(ValueError, match=r"loop i1 of C: expected m >= 1, since argument P isn't"):
        rows.check({n: 3, m: 0})


@pytest.mark.parametrize("kind", ["parallel", "vectorize"])
def test_threads_compute_different_elements_of_an_argument(kind: str) -> None:
    right = [("same", "outer"), ("reversed", "outer"), ("pairs", "outer"), ("reduced", "outer")]
    right += [("transposed", "fused"), ("flattened", "fused")]
    if kind == "parallel":
        right += [("same", "tile"), ("pairs", "tile"), ("transposed", "tile")]
    for name, place in right:
        pair = Pair(*COVERED[name])
        pair.place(*PLACES[place], kind=kind)
        pair.check()
    for name, place in [("stencil", "outer"), ("stencil", "tile"), ("upsampled", "outer")]:
        pair = Pair(*COVERED[name])
        pair.place(*PLACES[place], kind=kind)
        with pytest.raises(tvm.CompileError, match=r"loop i0.* of C to compute different elements"):
            tvm.lower(pair.s, [pair.A, pair.P, pair.C])
    wide = Pair((n, m), (n, m), lambda P, i, j: P[i, j])
    wide.place(*PLACES["fused"], kind="parallel")
    wide.check({n: 5, m: 3})


@pytest.mark.parametrize("shape", [(n, 4, m), (n, 3, 4, 5, m), (2, 3, 2, 3, 2, 3)], ids=str)
def test_threads_compute_different_elements_of_tensors_of_many_dimensions(shape: Any) -> None:
    pair = Pair(shape, shape, lambda P, *i: P(*i))
    pair.s[pair.C].fuse(*pair.C.op.axis)
    pair.place(0, None, False, "parallel")
    pair.check({n: 3, m: 2})


# -- Other primitives -----------------------------------------------------------------------------


def refused(pair: Pair, match: str) -> None:
    with pytest.raises(tvm.CompileError, match=match):
        tvm.lower(pair.s, [pair.A, pair.P, pair.C], name="f")


def test_what_is_inlined_is_no_argument() -> None:
    pair = Pair(*COVERED["same"])
    pair.s[pair.P].compute_inline()
    arguments = [pair.A, pair.P, pair.C]
    with pytest.raises(
        tvm.CompileError,
        match=r"^f: argument P: expected a stage that is computed, found it inlined into C: c",
    ):
        tvm.build(pair.s, arguments, name="f")
    shown = tvm.lower(pair.s, arguments, name="f")
    with pytest.raises(tvm.CompileError, match=r"^f: argument P: expected an output that the loop"):
        tvm.build(shown)


def test_what_is_double_buffered_is_no_argument() -> None:
    pair = Pair(*COVERED["same"])
    pair.place(*PLACES["outer"])
    pair.s[pair.P].double_buffer()
    refused(pair, r"^f: argument P: expected memory of the program's own to keep twice, found it d")


def test_what_is_computed_ahead_is_no_argument() -> None:
    pair = Pair(*COVERED["same"])
    pair.s[pair.P].compute_ahead()
    refused(
        pair, r"^f: argument 1 P: expected a tensor that the function computes, found it comput"
    )
    pair = Pair(*COVERED["same"])
    later = pair.s.cache_read(pair.P, "global", [pair.C])
    pair.s[later].compute_ahead()
    refused(pair, r"^f: argument 1 P: .* found it computed ahead for P.global: leave it out")


def test_caches() -> None:
    for name in ("stencil", "pairs", "transposed"):
        read = Pair(*COVERED[name])
        copy = read.s.cache_read(read.P, "local", [read.C])
        read.s[copy].compute_at(read.s[read.C], read.C.op.axis[0])
        read.s[read.P].compute_at(read.s[read.C], read.C.op.axis[0])
        read.check()
    read = Pair(*PARTIAL["every_second"])
    copy = read.s.cache_read(read.P, "local", [read.C])
    read.s[read.P].compute_at(read.s[copy], copy.op.axis[0])
    read.check()  # the copy is one of everything
    read.s[copy].compute_at(read.s[read.C], read.C.op.axis[0])
    refused(read, rf"^P: computed at loop ax0 of P.local: {PART}")
    written = Pair(*COVERED["pairs"])
    cache = written.s.cache_write(written.P, "local")
    written.place(*PLACES["outer"])
    written.s[cache].compute_at(written.s[written.P], written.s[written.P].op.axis[0])
    written.check()
    written = Pair(*PARTIAL["every_second"])
    written.s.cache_write(written.P, "local")
    written.place(*PLACES["outer"])
    refused(written, rf"^P: computed at loop i0 of C: {PART}")


@pytest.mark.parametrize("step", [1, 2])
def test_a_factored_reduction(step: int) -> None:
    a = te.placeholder((8, 10), "int32", name="A")
    k = te.reduce_axis((2, 10), "k")
    p = te.compute((8,), lambda i: te.sum(a[i, k], axis=k), name="P")
    c: Any = te.compute((8 // step,), lambda i: p[i * step] + 1, name="C")
    s: Any = te.create_schedule(c.op)
    _, inner = s[p].split(k, 3)
    s.rfactor(p, inner)
    s[p].compute_at(s[c], c.op.axis[0])
    if step == 2:
        with pytest.raises(tvm.CompileError, match=PART):
            tvm.lower(s, [a, p, c])
        return
    x = np.arange(80, dtype="int32").reshape(8, 10)
    sums, out = np.full(8, -77, "int32"), np.full(8, -77, "int32")
    tvm.build(s, [a, p, c])(x, sums, out)
    np.testing.assert_array_equal(sums, x[:, 2:].sum(axis=1))
    np.testing.assert_array_equal(out, sums + 1)


@pytest.mark.parametrize("step", [1, 2])
def test_one_of_several_results(step: int) -> None:
    a = te.placeholder((8,), "int32", name="A")
    p, q = te.compute((8,), lambda i: (a[i] * 2, a[i] * 3), name="P")
    c: Any = te.compute((8 // step,), lambda i: p[i * step] + 1, name="C")
    s: Any = te.create_schedule(c.op)
    s[p].compute_at(s[c], c.op.axis[0])
    if step == 2:
        with pytest.raises(tvm.CompileError, match=PART):
            tvm.lower(s, [a, q, c])
        return
    x, got, out = np.arange(8, dtype="int32"), np.full(8, -77, "int32"), np.full(8, -77, "int32")
    tvm.build(s, [a, q, c])(x, got, out)
    np.testing.assert_array_equal(got, x * 3)


def test_a_stage_of_loops_by_hand() -> None:
    """It reads all of what it reads, and computes all of what it computes."""
    a = te.placeholder((n,), "int32", name="A")
    p = te.compute((n,), lambda i: a[i] * 2, name="P")

    def body(ins: Any, outs: Any) -> Any:
        builder = tir.ir_builder.create()
        source, target = builder.buffer_ptr(ins[0]), builder.buffer_ptr(outs[0])
        with builder.for_range(0, n) as i:
            target[i] = source[n - 1 - i]
        return builder.get()

    q = te.extern((n,), [p], body, name="Q", dtype="int32")
    c: Any = te.compute((m,), lambda i: q[te.min(i, n - 1)], name="C")
    s: Any = te.create_schedule(c.op)
    for each in (p, q):
        s[each].compute_at(s[c], c.op.axis[0])
    function = tvm.build(s, [a, p, q, c])
    x = np.arange(5, dtype="int32")
    doubled, back, out = (np.full(size, -77, "int32") for size in (5, 5, 3))
    function(x, doubled, back, out)
    np.testing.assert_array_equal(doubled, x * 2)
    np.testing.assert_array_equal(back, doubled[::-1])
    with pytest.raises(
        ValueError, match=r"expected m >= 1, since argument [PQ] isn't computed oth"
    ):
        function(x, doubled, back, out[:0])


@pytest.mark.parametrize("inside", [True, False])
def test_what_a_scan_computes_at_its_steps_is_no_argument(inside: bool) -> None:
    x = te.placeholder((6, 4), "int32", name="x")
    state = te.placeholder((6, 4), "int32", name="state")
    first = te.compute((1, 4), lambda t, i: x[t, i], name="first")
    source = state if inside else x
    p = te.compute((6, 4), lambda t, i: source[t - 1 if inside else t, i] * 2, name="P")
    update = te.compute((6, 4), lambda t, i: p[t, i] + state[t - 1, i], name="update")
    result: Any = te.scan(first, update, state, inputs=[x], name="R")
    s: Any = te.create_schedule(result.op)
    s[p].compute_at(s[update], update.op.axis[1])
    with pytest.raises(tvm.CompileError, match=rf"^P: computed at loop i of update: {PART}"):
        tvm.lower(s, [x, p, result])


def test_a_predicate_says_itself_what_is_stored() -> None:
    pair = Pair(*COVERED["same"])
    pair.s[pair.P].set_store_predicate(pair.P.op.axis[0] < 3)
    out, got = np.full(8, -77, "int32"), np.full(8, -77, "int32")
    tvm.build(pair.s, [pair.A, pair.P, pair.C])(np.arange(8, dtype="int32"), got, out)
    np.testing.assert_array_equal(got, [1, 3, 5, *[-77] * 5])
