"""Main parts without guards, heads and tails with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import minitvm
from minitvm import lower, te, tir
from minitvm.arith.work import code_size
from minitvm.tir import expr as e
from minitvm.tir.expr import Var, const
from minitvm.tir.functor import walk
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import (
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from minitvm.transform.partition_loops import HINT, LoopPartitionOptions, partition_loops
from minitvm.transform.simplify import simplify
from tests.tir.programs import function_of, likely, loop
from tests.transform.loop_nests import Nest, loop_nests, same_effect

Golden = Callable[[str], None]

SERIAL = ForKind.SERIAL
n = te.var("n")
A, B = tir.decl_buffer((n,), name="A"), tir.decl_buffer((n,), name="B")
io, ii, i = (Var(name) for name in ("io", "ii", "i"))


func = function_of(A, B)


def copy(place: Any, value: Any = None) -> Stmt:
    return BufferStore(B, A[place] if value is None else value, (place,))


def split(kind: ForKind = ForKind.SERIAL, inner: ForKind = ForKind.SERIAL) -> PrimFunc:
    """``B[i] = A[i]``, i split by 16."""
    place = io * 16 + ii
    body = loop(ii, 16, IfThenElse(likely(place < n), copy(place)), inner)
    return func(loop(io, (n + 15) // 16, body, kind))


@settings(deadline=None)
@given(loop_nests())
def test_nothing_changes_but_the_guards(nest: Nest) -> None:
    same_effect(nest, partition_loops(nest.func))


@settings(deadline=None, max_examples=10)
@given(loop_nests())
def test_simplified_afterwards(nest: Nest) -> None:
    same_effect(nest, simplify(partition_loops(nest.func)))


def test_split(golden: Golden) -> None:
    golden(str(partition_loops(split())))


def test_vectors_keep_their_mask_in_the_tail(golden: Golden) -> None:
    golden(str(partition_loops(split(inner=ForKind.VECTORIZED))))


def test_masks_of_a_few_iterations_are_constants(golden: Golden) -> None:
    """Beyond a diagonal: the iterations in which only some lanes are added are written out."""
    added = A[io * 8 + ii] + B[i]
    step = loop(
        ii, 8, IfThenElse(likely(io * 8 + ii <= i), copy(io * 8 + ii, added)), ForKind.VECTORIZED
    )
    made = simplify(partition_loops(func(loop(io, 4, For(i, io * 8, 40 - io * 8, SERIAL, step)))))
    golden(str(made))


def test_two_iterations_with_other_masks_stand_apart(golden: Golden) -> None:
    """A row of 13 elements without its first one: no iteration is without a mask."""
    place = io * 8 + ii
    inside = IfThenElse(likely(place >= 1), IfThenElse(likely(place < 13), copy(place)))
    nest = func(loop(io, 2, loop(ii, 8, inside, ForKind.VECTORIZED)))
    made = partition_loops(nest)
    golden(str(simplify(made)))


def test_the_range_of_a_main_part_is_known_inside(golden: Golden) -> None:
    """In the first two of three blocks, 7 iterations with masks end before 20."""
    place = io * 8 + ii
    step = IfThenElse(likely(te.all(place <= i, place < 20)), copy(place, A[place] + B[i]))
    lanes = loop(ii, 8, step, ForKind.VECTORIZED)
    blocks = loop(io, 3, For(i, io * 8, 20 - io * 8, SERIAL, lanes))
    golden(str(simplify(partition_loops(func(blocks)))))


def test_a_parallel_loop_stays_one_region(golden: Golden) -> None:
    golden(str(partition_loops(split(kind=ForKind.PARALLEL))))


jo, ji, C = Var("jo"), Var("ji"), tir.decl_buffer((20, 12), name="C")


def tile_of_c() -> Stmt:
    """Sets what there is of the 16 x 8 elements of C at tile (io, jo)."""
    x, y = io * 16 + ii, jo * 8 + ji
    store = IfThenElse(likely(y < 12), BufferStore(C, const(0.0), (x, y)))
    return loop(ii, 16, loop(ji, 8, IfThenElse(likely(x < 20), store)))


def test_the_rest_of_a_parallel_loop_is_its_last_iteration(golden: Golden) -> None:
    """Where that is known, and so is partitioned as any other: its vectors are narrow ones."""
    tiles = loop(io, 2, loop(jo, 2, tile_of_c()), ForKind.PARALLEL)
    golden(str(simplify(partition_loops(func(tiles, C)))))


def test_blocks_of_which_many_are_not_full(golden: Golden) -> None:
    """The loop over tiles inside is split: only the last tile of the last block is not full."""
    tile = Var("tile")
    place = io * 64 + tile * 16 + ii
    body = loop(ii, 16, IfThenElse(likely(place < 120), copy(place, const(0.0))))
    golden(str(simplify(partition_loops(func(loop(io, 2, loop(tile, 4, body)))))))


def test_an_iteration_that_is_left_over_is_partitioned_again(golden: Golden) -> None:
    """So the last columns have rows without guards, too."""
    tiles = loop(jo, 2, loop(io, 2, tile_of_c()))
    golden(str(simplify(partition_loops(func(tiles, C)))))


def test_a_guard_of_little_work_goes_with_the_others(golden: Golden) -> None:
    """One that does not pay a second loop by itself, but holds wherever the other does."""
    k = Var("k")
    guard = likely(io * 16 + ii < n)
    work = loop(ii, 16, loop(k, 100, IfThenElse(guard, copy(io * 16 + ii))))
    little = loop(ii, 16, IfThenElse(guard, copy(io * 16 + ii)))
    loops = loop(io, (n + 15) // 16, seq(work, little), ForKind.PARALLEL)
    golden(str(simplify(partition_loops(func(loops)))))


def test_border(golden: Golden) -> None:
    """Zero padding, of which classic TVM makes no main part unless told to."""
    inside = te.all(i >= 1, i < n + 1)
    padded = tir.decl_buffer((n + 2,), name="P")
    store = BufferStore(padded, te.if_then_else(inside, A[i - 1], 0.0), (i,))
    golden(str(simplify(partition_loops(func(loop(i, n + 2, store), padded)))))


def test_the_choices_of_the_last_vector_divide_no_rows() -> None:
    """Each row of a triangle has vectors on both sides of the diagonal."""
    m = te.var("m")
    X = te.placeholder((m, n), name="X")
    Y = te.compute((m, n), lambda i, j: te.if_then_else(j <= i, X[i, j], 0.0), name="Y")
    text = str(minitvm.lower(minitvm.auto_schedule(Y, "llvm -mcpu=haswell"), [X, Y]))
    assert "full" not in text and "min(i // 8 + 1, int64(n) // 8)" in text


def test_two_axes_make_three_copies(golden: Golden) -> None:
    m = te.var("m")
    c = tir.decl_buffer((n, m), name="C")
    jo, ji = Var("jo"), Var("ji")
    x, y = io * 4 + ii, jo * 8 + ji
    body: Stmt = BufferStore(c, const(0.0), (x, y))
    body = IfThenElse(likely(x < n), IfThenElse(likely(y < m), body))
    body = loop(ii, 4, loop(ji, 8, body, ForKind.VECTORIZED), ForKind.UNROLLED)
    body = loop(io, (n + 3) // 4, loop(jo, (m + 7) // 8, body))
    golden(str(simplify(partition_loops(func(body, c)))))


def test_a_fused_loop_chooses_in_each_iteration(golden: Golden) -> None:
    x = io // 3 * 4 + ii
    body = loop(ii, 4, IfThenElse(likely(x < 10), copy(x, const(0.0))))
    golden(str(partition_loops(func(loop(io, 9, body)))))


def guards(node: Stmt) -> int:
    return sum(isinstance(each, IfThenElse) for each in walk(node))


def test_the_main_part_compares_nothing() -> None:
    """Constant sizes: the main part comes first, and the tail is as short as what is left."""
    place = io * 16 + ii
    body = loop(ii, 16, IfThenElse(likely(place < 100), copy(place, const(1.0))))
    made = simplify(partition_loops(func(loop(io, 7, body)))).body
    main, tail = made.seq  # type: ignore[attr-defined]  # a SeqStmt
    assert (e.const_int(main.extent), e.const_int(tail.extent)) == (6, 4)
    assert guards(made) == 0


def test_with_the_hint_plain_conditions_are_partitioned() -> None:
    plain = loop(i, n, IfThenElse(i < 5, copy(i, const(0.0)), copy(i, const(1.0))))
    assert partition_loops(func(plain)).body is plain
    hinted = AttrStmt(i, HINT, const(1), plain)
    made = partition_loops(func(hinted)).body
    main, rest = made.seq  # type: ignore[attr-defined]  # a SeqStmt
    assert (guards(main), guards(rest)) == (0, 1)


def test_a_hinted_loop_without_main_part_is_unrolled_on_request() -> None:
    hinted = AttrStmt(i, HINT, const(1), loop(i, 3, copy(i, const(0.0))))
    options = LoopPartitionOptions(unroll_loop_with_partition_hint_no_interval=True)
    made = partition_loops(func(hinted), options).body
    assert isinstance(made, For)
    assert made.kind is ForKind.UNROLLED


COUNT = tir.decl_buffer((1,), "int32", name="N")
k = Var("k")
CHANGE = BufferStore(COUNT, i, (const(0),))


@pytest.mark.parametrize(
    "body",
    [
        loop(i, n, LetStmt(k, COUNT[0], IfThenElse(likely(i < k), copy(i)))),
        loop(i, n, seq(IfThenElse(likely(i < COUNT[0]), copy(i)), CHANGE)),
        loop(i, n, IfThenElse(likely(i < COUNT[0]), seq(copy(i), CHANGE))),
        loop(i, n, IfThenElse(likely(e.EQ(i % 3, const(0))), copy(i))),
        loop(i, n, IfThenElse(i < 5, copy(i), CHANGE)),
        loop(i, 16, IfThenElse(likely(i < n), copy(i)), ForKind.VECTORIZED),
        loop(i, 16, IfThenElse(likely(i < n), copy(i)), ForKind.UNROLLED),
        loop(i, n, seq(IfThenElse(likely(COUNT[0] > 0), copy(i)), copy(i))),
    ],
    ids=[
        "let", "not all", "changed", "equality", "two cases", "vector", "unrolled, symbolic",
        "invariant",
    ],
)  # fmt: skip
def test_kept_as_it_is(body: Stmt) -> None:
    before = func(body, COUNT)
    assert partition_loops(before) is before


def test_a_loop_ends_where_data_say_that_stay_as_they_are() -> None:
    guarded = IfThenElse(likely(i < COUNT[0]), copy(i))
    made = partition_loops(func(loop(i, 16, guarded), COUNT)).body
    assert guards(made) == 0 and "in range(min(16, N[0]))" in str(made)
    named = LetStmt(k, COUNT[0], loop(i, n, IfThenElse(likely(i < k), copy(i))))
    made = partition_loops(func(named, COUNT)).body
    assert guards(made) == 0 and "in range(min(n, k))" in str(made)


def test_data_are_read_ahead_of_a_loop_only_where_it_has_an_iteration() -> None:
    m = te.var("m")
    counts = tir.decl_buffer((m,), "int32", name="counts")
    guarded = IfThenElse(likely(i < counts[0]), copy(i, const(1.0)))
    before = func(loop(i, n, guarded), counts, m)
    assert guards(partition_loops(before).body) == 1
    nothing = np.empty(0, "float32"), np.empty(0, "float32"), np.empty(0, "int32")
    interpret(partition_loops(before), *nothing, 0)  # would read counts[0]


def test_growth_is_bounded() -> None:
    """A body of a thousand unrolled statements is not copied."""

    def unrolled(steps: int) -> PrimFunc:
        x = io * 16 + ii
        body = loop(k, steps, IfThenElse(likely(x < n), copy(x)), ForKind.UNROLLED)
        return func(loop(io, (n + 15) // 16, loop(ii, 16, body, ForKind.VECTORIZED)))

    assert guards(partition_loops(unrolled(128)).body) == 1
    large = unrolled(1128)
    assert partition_loops(large) is large


@pytest.mark.parametrize(("mask_registers", "parts"), [(False, 2), (True, 1)])
def test_stores_under_masks_are_dear_without_mask_registers(
    mask_registers: bool, parts: int
) -> None:
    """A store beside 64 others is little work, but not if it runs lane by lane."""
    k = Var("k")
    work = loop(k, 64, loop(i, 16, BufferStore(B, const(0.0), (i,))))
    store = loop(
        ii, 16, IfThenElse(likely(io * 16 + ii < 40), copy(io * 16 + ii)), ForKind.VECTORIZED
    )
    before = func(loop(io, 3, seq(work, store)))
    after = partition_loops(before, mask_registers=mask_registers)
    stored = [each for each in walk(after.body) if isinstance(each, BufferStore)]
    assert len(stored) == 2 * parts


def test_a_choice_that_divides_a_symbolic_loop_has_two_main_parts() -> None:
    """As the joined rows of two tensors: a vector of each lies in a loop without the other."""
    C = tir.decl_buffer((2 * n,), name="C")
    place = io * 16 + ii
    value = tir.if_then_else(place < n, A[place], B[place - n])
    store = IfThenElse(likely(place < 2 * n), BufferStore(C, value, (place,)))
    body = loop(io, (2 * n + 15) // 16, loop(ii, 16, store, ForKind.VECTORIZED))
    made = simplify(partition_loops(function_of(A, B, C)(body)))
    parts = [str(each) for each in walk(made.body) if isinstance(each, For) and each.loop_var is io]
    plain = [each for each in parts if "if_then_else" not in each and "likely" not in each]
    assert ["A[" in each for each in plain] == [True, False]
    assert ["B[" in each for each in plain] == [False, True]
    given = [np.arange(37, dtype="float32"), -np.arange(37, dtype="float32")]
    got = np.zeros(74, "float32")
    interpret(made, *given, got)
    np.testing.assert_array_equal(got, np.concatenate(given))


def test_the_end_of_a_tail_is_that_of_its_guards() -> None:
    """A block of 4096 whose guard ends at n: vectors that are masked altogether are left out."""
    place = io * 16 + ii
    store = IfThenElse(likely(place < n), copy(place))
    body = loop(io, 256, loop(ii, 16, store, ForKind.VECTORIZED))
    made = str(simplify(partition_loops(func(body))))
    assert made.count("for io in") == 2 and ", 256):" not in made


def test_names_are_looked_through() -> None:
    """A guard of a name belongs to the loops whose variables are in the name's value; a loop whose
    end is named is partitioned as any other."""
    begin, size = Var("begin"), Var("size")
    store = IfThenElse(likely(begin + ii < n), copy(begin + ii))
    body = loop(ii, 16, store, ForKind.VECTORIZED)
    body = loop(io, size, LetStmt(begin, io * 16, body))
    made = simplify(partition_loops(func(LetStmt(size, (n + 15) // 16, body))))
    assert str(made).count("likely") == 1
    assert str(made).count("for io in") == 2
    x, got = np.arange(37, dtype="float32"), np.zeros(37, "float32")
    interpret(made, x, got)
    np.testing.assert_array_equal(got, x)


def test_an_edge_that_is_the_whole_loop_is_not_partitioned_again() -> None:
    """The head of k, of as many iterations as fail, had itself as a head until the budget ended."""
    n, k = te.var("n"), te.reduce_axis((0, 4), "k")
    A, B = te.placeholder((n,), name="A"), te.placeholder((4, 4), name="B")

    def mirrored(at: Any) -> Any:
        return te.max(te.min(te.min(te.abs(at), te.max(2 * (n - 1) - te.abs(at), 0)), n - 1), 0)

    C = te.compute(
        (n // 2 + 1, 4), lambda i, f: te.sum(A[mirrored(i * 2 + k - 2)] * B[f, k], axis=k)
    )
    lowered = lower(te.create_schedule(C.op), [A, B, C])
    assert code_size(lowered["main"].body) < 60


def test_each_of_several_choices_in_turn_has_a_main_part() -> None:
    """As in the concatenation of three rows of symbolic length."""
    a, b, c = (Var(name) for name in "abc")
    parts = [tir.decl_buffer((size,), name=name) for size, name in ((a, "X"), (b, "Y"), (c, "Z"))]
    X, Y, Z = parts
    end = a + b + c
    C = tir.decl_buffer((end,), name="C")
    place = io * 8 + ii

    def element(place: Any) -> Any:
        rest = te.if_then_else(place < a + b, Y[place - a], Z[place - a - b])
        return te.if_then_else(place < a, X[place], rest)

    store = IfThenElse(likely(place < end), BufferStore(C, element(place), (place,)))
    nest = loop(io, (end + 7) // 8, loop(ii, 8, store, ForKind.VECTORIZED))
    made = partition_loops(function_of(*parts, C)(nest))
    stores = [str(each.value) for each in walk(made.body) if isinstance(each, BufferStore)]
    for name in "XYZ":  # a part that reads this one alone
        assert any(value.startswith(f"{name}[") for value in stores), name
    for sizes in ((8, 16, 24), (3, 5, 7), (20, 0, 3), (0, 9, 17), (1, 1, 30), (17, 33, 65)):
        given_parts = [np.random.default_rng(0).random(n).astype("float32") for n in sizes]
        found = np.empty(sum(sizes), "float32")
        interpret(made, *given_parts, found)
        np.testing.assert_array_equal(found, np.concatenate(given_parts))


def test_a_check_beside_a_choice_has_its_main_parts() -> None:
    """The second value is checked where it is read, since ``j % 0`` is read in a row of one
    element. A loop over the first value has neither a choice nor a check."""
    m = te.var("m")
    x, half = te.placeholder((3, m), name="X"), m // 2

    def element(i: Any, j: Any) -> Any:
        return te.if_then_else(j < half, x[i, j % half * 2], x[i, j % half * 2 + 1])

    y = te.compute((3, m), element, name="Y")
    s = te.create_schedule(y.op)
    s[y].vectorize(s[y].split(y.op.axis[1], factor=8)[1])
    plain = "Y[i, j.outer * 8 + j.inner] = X[i, j.outer * 16 + j.inner * 2]"
    lines = str(lower(s, [x, y], simple_mode=True)).splitlines()
    place = next(i for i, line in enumerate(lines) if "in range(m // 16):" in line)
    assert lines[place + 2].strip() == plain
    f = minitvm.build(s, [x, y], name="f")
    for size in (0, 2, 4, 16, 22, 130):
        a = np.arange(3 * size, dtype="float32").reshape(3, size)
        found = np.empty_like(a)
        f(a, found)
        np.testing.assert_array_equal(found, np.concatenate([a[:, ::2], a[:, 1::2]], 1))
    with pytest.raises(IndexError, match="index 1 must stay in"):
        f(np.zeros((3, 1), "float32"), np.zeros((3, 1), "float32"))


@pytest.mark.parametrize("lanes", [4, 16])
def test_both_cases_of_a_parallel_choice_are_known(lanes: int) -> None:
    """The choice ends between two vectors: where it doesn't hold for the first lane of a vector, it
    holds for none."""
    half = 64
    X, Y = te.placeholder((2 * half,), name="X"), te.placeholder((2 * half,), name="Y")

    def element(i: Any) -> Any:
        place = 2 * (i % half)
        return te.if_then_else(i < half, X[place] + Y[place], X[place] - Y[place])

    Z = te.compute((2 * half,), element, name="Z")
    s = te.create_schedule(Z.op)
    outer, inner = s[Z].split(Z.op.axis[0], factor=lanes)
    s[Z].vectorize(inner)
    s[Z].parallel(outer)
    text = str(lower(s, [X, Y, Z], simple_mode=True))
    assert "full" in text and "if_then_else" not in text
    x, y = np.random.default_rng(1).random((2, 2 * half), dtype="float32")
    z = np.empty_like(x)
    minitvm.build(s, [X, Y, Z], name="f")(x, y, z)
    np.testing.assert_array_equal(z, np.concatenate([x[::2] + y[::2], x[::2] - y[::2]]))


def test_a_parallel_choice_inside_of_a_vector_stays() -> None:
    X = te.placeholder((64,), name="X")
    Z = te.compute((64,), lambda i: te.if_then_else(i < 36, X[i], -X[i]), name="Z")
    s = te.create_schedule(Z.op)
    outer, inner = s[Z].split(Z.op.axis[0], factor=8)
    s[Z].vectorize(inner)
    s[Z].parallel(outer)
    x = np.random.default_rng(1).random(64, dtype="float32")
    z = np.empty_like(x)
    minitvm.build(s, [X, Z], name="f")(x, z)
    np.testing.assert_array_equal(z, np.where(np.arange(64) < 36, x, -x))
