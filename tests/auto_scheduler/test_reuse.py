"""Reductions that use what they read several times run in register tiles, whatever they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from minitvm import auto_schedule, build, lower, te, tir
from minitvm.arith.work import estimated_work
from minitvm.runtime import Module
from minitvm.te.tensor import Tensor
from minitvm.tir.expr import const
from minitvm.tir.interpreter import interpret
from minitvm.tir.stmt import BufferStore, PrimFunc

TARGET = "llvm -mcpu=haswell -num-cores=2"
M, N, K = 37, 53, 41
Element = Callable[..., Any]


def _later(x: Any, y: Any) -> Any:
    first = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0]))
    return te.if_then_else(first, x[0], y[0]), te.if_then_else(first, x[1], y[1])


ARGMAX = te.comm_reducer(_later, lambda i, v: (te.const(-1, i), te.min_value(v)), name="argmax")

A = te.placeholder((M, K), name="A")
B = te.placeholder((K, N), name="B")
BT = te.placeholder((N, K), name="BT")
CK = te.placeholder((K, N), name="CK")
CI = te.placeholder((M, K), name="CI")
CIJ = te.placeholder((M, N), name="CIJ")
V = te.placeholder((K,), name="V")
INPUTS = (A, B, BT, CK, CI, CIJ, V)

# By name: the reducer, a term, and numpy's terms of shape (M, N, K).
TERMS: dict[str, tuple[Any, Element, Callable[..., Any]]] = {
    "product": (te.sum, lambda i, j, k: A[i, k] * B[k, j], lambda a, b, **_: a * b),
    "min plus": (te.min, lambda i, j, k: A[i, k] + B[k, j], lambda a, b, **_: a + b),
    "max times": (te.max, lambda i, j, k: A[i, k] * B[k, j], lambda a, b, **_: a * b),
    "squared distance": (
        te.sum,
        lambda i, j, k: (A[i, k] - BT[j, k]) * (A[i, k] - BT[j, k]),
        lambda a, bt, **_: (a - bt) ** 2,
    ),
    "distance": (te.sum, lambda i, j, k: abs(A[i, k] - B[k, j]), lambda a, b, **_: abs(a - b)),
    "two columns' factors": (
        te.sum,
        lambda i, j, k: A[i, k] * B[k, j] + CK[k, j],
        lambda a, b, ck, **_: a * b + ck,
    ),
    "two rows' factors": (
        te.sum,
        lambda i, j, k: A[i, k] * B[k, j] + CI[i, k],
        lambda a, b, ci, **_: a * b + ci,
    ),
    "scaled by step": (
        te.sum,
        lambda i, j, k: A[i, k] * V[k] * B[k, j],
        lambda a, b, v, **_: a * b * v,
    ),
    "scaled by result": (
        te.sum,
        lambda i, j, k: A[i, k] * B[k, j] * CIJ[i, j],
        lambda a, b, cij, **_: a * b * cij,
    ),
    "mask of data": (
        te.sum,
        lambda i, j, k: tir.Select(CK[k, j] > 0.0, A[i, k] * B[k, j], const(0.0)),
        lambda a, b, ck, **_: np.where(ck > 0, a * b, 0),
    ),
    "chosen by rows": (
        te.sum,
        lambda i, j, k: te.if_then_else(A[i, k] > 0.0, A[i, k] * B[k, j], 0.0),
        lambda a, b, **_: np.where(a > 0, a * b, 0),
    ),
    "chosen by both": (
        te.sum,
        lambda i, j, k: te.if_then_else(A[i, k] > B[k, j], A[i, k] * B[k, j], 0.0),
        lambda a, b, **_: np.where(a > b, a * b, 0),
    ),
    "one of both": (
        te.sum,
        lambda i, j, k: te.if_then_else(A[i, k] > B[k, j], A[i, k], B[k, j]),
        lambda a, b, **_: np.maximum(a, b),
    ),
    "mask of axes": (
        te.sum,
        lambda i, j, k: tir.Select(k <= i + j, A[i, k] * B[k, j], const(0.0)),
        lambda a, b, i, j, k, **_: np.where(k <= i + j, a * b, 0),
    ),
}


FOLDS: dict[Any, Any] = {te.sum: np.sum, te.min: np.min, te.max: np.max}


def program(reducer: Any, term: Element) -> Any:
    k = te.reduce_axis((0, K), name="k")
    return te.compute((M, N), lambda i, j: reducer(term(i, j, k), axis=k), name="C")


def tile_of(schedule: te.Schedule) -> tuple[int, int]:
    """The rows and columns of the first register tile."""
    figures = next(each.figures for each in schedule.choices if each.about == "tile")
    return cast(int, figures["rows"]), cast(int, figures["columns"])


def arrays() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        each.name: generator.standard_normal([int(n) for n in each.shape]).astype(np.float32)
        for each in INPUTS
    }


def terms_of(given: dict[str, Any], term: Callable[..., Any]) -> Any:
    """The terms in float64, of shape (M, N, K)."""
    wide = {name: each.astype(np.float64) for name, each in given.items()}
    i, j, k = np.ogrid[:M, :N, :K]
    return term(
        a=wide["A"][:, None, :], b=wide["B"].T[None], bt=wide["BT"][None], ck=wide["CK"].T[None],
        ci=wide["CI"][:, None, :], cij=wide["CIJ"][:, :, None], v=wide["V"], i=i, j=j, k=k,
    )  # fmt: skip


@pytest.mark.parametrize("name", TERMS)
def test_register_tiles(name: str) -> None:
    reducer, term, meaning = TERMS[name]
    C = program(reducer, term)
    schedule = auto_schedule(C, TARGET)
    rows, columns = tile_of(schedule)
    assert rows > 1 and columns >= 8
    given, out = arrays(), np.empty((M, N), np.float32)
    build(schedule, [*INPUTS, C], TARGET)(*(given[each.name] for each in INPUTS), out)
    fold = FOLDS[reducer]
    np.testing.assert_allclose(out, fold(terms_of(given, meaning), axis=2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["min plus", "max times"])
def test_nan_is_kept(name: str) -> None:
    reducer, term, meaning = TERMS[name]
    given, out = arrays(), np.empty((M, N), np.float32)
    given["A"][3, 5] = given["B"][40, 7] = np.nan
    C = program(reducer, term)
    build([C], [*INPUTS, C], TARGET)(*(given[each.name] for each in INPUTS), out)
    fold = FOLDS[reducer]
    np.testing.assert_allclose(out, fold(terms_of(given, meaning), axis=2), rtol=1e-5)


@pytest.mark.parametrize("name", ["chosen by rows", "chosen by both"])
def test_what_is_not_chosen_does_not_count(name: str) -> None:
    """Nor do its infinities, and no branch chooses."""
    reducer, term, meaning = TERMS[name]
    C = program(reducer, term)
    schedule = auto_schedule(C, TARGET)
    made = str(lower(schedule, [*INPUTS, C]))
    assert "select(" in made and "if_then_else" not in made and "vector_reduce_or" not in made
    given, out = arrays(), np.empty((M, N), np.float32)
    given["A"][::3] = -np.inf
    given["B"][0, ::2] = 0.0  # times the infinity is NaN
    build(schedule, [*INPUTS, C], TARGET)(*(given[each.name] for each in INPUTS), out)
    with np.errstate(invalid="ignore"):
        expected = terms_of(given, meaning).sum(axis=2)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_tuples() -> None:
    """The place of the greatest sum, and the sum: two results for each pair of rows."""
    k = te.reduce_axis((0, K), name="k")
    place, value = te.compute(
        (M, N), lambda i, j: ARGMAX((k.var, A[i, k] + BT[j, k]), axis=k), name="C"
    )
    schedule = auto_schedule([place, value], TARGET)
    assert tile_of(schedule)[0] > 1
    given = arrays()
    where, greatest = np.empty((M, N), np.int32), np.empty((M, N), np.float32)
    build(schedule, [A, BT, place, value], TARGET)(given["A"], given["BT"], where, greatest)
    terms = given["A"][:, None, :] + given["BT"][None]
    np.testing.assert_array_equal(where, terms.argmax(2))
    np.testing.assert_array_equal(greatest, terms.max(2))


SQUARE = te.placeholder((N, N), name="S")
WIDE = te.placeholder((2 * N, 2 * N), name="W")
ROWS = te.placeholder((N,), "int32", name="R")
READS: dict[str, tuple[Element, Callable[..., Any]]] = {
    "one matrix": (lambda i, j, k: SQUARE[i, k] * SQUARE[k, j], lambda s, w, r: s @ s),
    "its transpose": (lambda i, j, k: SQUARE[i, k] * SQUARE[j, k], lambda s, w, r: s @ s.T),
    "transposed first": (lambda i, j, k: SQUARE[k, i] * SQUARE[k, j], lambda s, w, r: s.T @ s),
    "backwards": (
        lambda i, j, k: SQUARE[i, N - 1 - k] * SQUARE[N - 1 - j, k],
        lambda s, w, r: s[:, ::-1] @ s[::-1].T,
    ),
    "every second column": (
        lambda i, j, k: SQUARE[i, k] * WIDE[k, j * 2],
        lambda s, w, r: s @ w[:N, ::2],
    ),
    "rows by index": (
        lambda i, j, k: SQUARE[i, k] * WIDE[ROWS[k], j],
        lambda s, w, r: s @ w[r, :N],
    ),
    "columns by index": (
        lambda i, j, k: SQUARE[i, k] * WIDE[k, ROWS[j]],
        lambda s, w, r: s @ w[:N][:, r],
    ),
}


@pytest.mark.parametrize("name", READS)
def test_factors_are_packed_however_they_are_read(name: str) -> None:
    term, meaning = READS[name]
    k = te.reduce_axis((0, N), name="k")
    C = te.compute((N, N), lambda i, j: te.sum(term(i, j, k), axis=k), name="C")
    small = (
        TARGET + " -l1d-cache-bytes=1024 -l2-cache-bytes=2048 -l3-cache-bytes=4096"
    )  # nothing is fast to read as it lies
    schedule = auto_schedule(C, small)
    assert any(stage.scope == "local" for stage in schedule.stages)  # sums in registers
    assert len(schedule.stages) > len(C.op.input_tensors) + 2  # and a copy
    generator = np.random.default_rng(3)
    s, w = (generator.standard_normal((n, n)).astype(np.float32) for n in (N, 2 * N))
    r, out = generator.integers(0, 2 * N, N, "int32"), np.empty((N, N), np.float32)
    for made, target in ((C, TARGET), (schedule, small)):
        build(made, [SQUARE, WIDE, ROWS, C], target)(s, w, r, out)
        expected = meaning(s.astype(np.float64), w.astype(np.float64), r)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_a_division_has_no_padding_for_a_divisor() -> None:
    """Panels are padded to whole tiles, and an integer divided by 0 would end the process."""
    a, b = te.placeholder((M, K), "int32", name="a"), te.placeholder((N, K), "int32", name="b")
    k = te.reduce_axis((0, K), name="k")
    C = te.compute((M, N), lambda i, j: te.sum(a[i, k] // b[j, k], axis=k), name="C")
    generator = np.random.default_rng(1)
    x = generator.integers(-99, 99, (M, K), "int32")
    y = generator.integers(1, 9, (N, K), "int32")
    out = np.empty((M, N), np.int32)
    build([C], [a, b, C], TARGET)(x, y, out)
    np.testing.assert_array_equal(out, (x[:, None, :] // y[None]).sum(2))


# -- What is left out -----------------------------------------------------------------------------

Masked = Callable[[Tensor, Tensor, Any], Element]


def ranged(begin: Element, end: Element) -> Masked:
    def made(a: Tensor, b: Tensor, n: Any) -> Element:
        def value(i: Any, j: Any) -> Any:
            k = te.reduce_axis((begin(i, j, n), end(i, j, n)), name="k")
            return te.sum(a[i, k] * b[k, j], axis=k)

        return value

    return made


def chosen(condition: Element, choose: Any) -> Masked:
    def made(a: Tensor, b: Tensor, n: Any) -> Element:
        k = te.reduce_axis((0, n), name="k")
        return lambda i, j: te.sum(choose(condition(i, j, k), a[i, k] * b[k, j], 0.0), axis=k)

    return made


def where(condition: Element) -> Masked:
    def made(a: Tensor, b: Tensor, n: Any) -> Element:
        k = te.reduce_axis((0, n), name="k")
        return lambda i, j: te.sum(a[i, k] * b[k, j], axis=k, where=condition(i, j, k))

    return made


def up_to_row(i: Any, j: Any, k: Any) -> Any:
    return k <= i


def from_row(i: Any, j: Any, k: Any) -> Any:
    return k >= i


def from_column(i: Any, j: Any, k: Any) -> Any:
    return k >= j


# The sum of a triangle is half of all, and a little for tiles on the diagonal.
LEFT_OUT: dict[str, tuple[Masked, Element, float]] = {
    "range up to the row": (ranged(lambda i, j, n: 0, lambda i, j, n: i + 1), up_to_row, 0.6),
    "range from the row": (ranged(lambda i, j, n: i, lambda i, j, n: n), from_row, 0.6),
    "select": (chosen(up_to_row, tir.Select), up_to_row, 0.6),
    "if_then_else": (chosen(from_row, te.if_then_else), from_row, 0.6),
    "rows": (where(up_to_row), up_to_row, 0.6),
    "columns": (where(from_column), from_column, 0.6),
}


def masked(kind: Masked, n: int) -> list[Tensor]:
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    return [a, b, te.compute((n, n), kind(a, b, n), name="c")]


def work(kind: Masked) -> float:
    """The operations of the scheduled loops, for 256 rows, columns and steps."""
    args = masked(kind, 256)
    lowered = lower(auto_schedule(args[-1], TARGET), args)["main"]
    total, counted = tir.decl_buffer((1,), "float64", name="total"), np.zeros(1)
    store = BufferStore(total, estimated_work(lowered.body), (const(0),))
    interpret(PrimFunc((total.data,), store, {total.data: total}, "work"), counted)
    return float(counted[0])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_takes_no_time(name: str) -> None:
    kind, condition, most = LEFT_OUT[name]
    assert work(kind) < most * work(where(lambda i, j, k: True))
    n = 53
    args, generator = masked(kind, n), np.random.default_rng(2)
    x, y = (generator.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    out = np.empty((n, n), np.float32)
    build([args[-1]], args, TARGET)(x, y, out)
    i, j, k = np.ogrid[:n, :n, :n]
    terms = np.where(condition(i, j, k), x.astype(np.float64)[:, None] * y.T[None], 0)
    np.testing.assert_allclose(out, terms.sum(2), rtol=1e-4, atol=1e-4)


RANGES: dict[str, tuple[Element, Element]] = {
    "after the row": (lambda i, j, n: i + 1, lambda i, j, n: n),
    "a window": (lambda i, j, n: te.max(j, 2) - 2, lambda i, j, n: te.max(j, 2) + 1),
    "a window that moves": (lambda i, j, n: j // 2, lambda i, j, n: j // 2 + 3),
    "between row and column": (lambda i, j, n: i, lambda i, j, n: j),
    "a wider one with each row": (lambda i, j, n: n - 1 - i, lambda i, j, n: n),
    "of the sum of both": (lambda i, j, n: 3, lambda i, j, n: te.min(i + j, n)),
}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("size", [1, 7, 53])
def test_ranges(name: str, size: int) -> None:
    """Of the largest size also where the size is known."""
    begin, end = RANGES[name]
    if size < 7 and "window" in name:
        return  # it would leave the tensors
    generator = np.random.default_rng(size)
    x, y = (generator.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    expected = np.zeros((size, size))
    for i, j in np.ndindex(size, size):
        low, high = (_number(each(i, j, size)) for each in (begin, end))
        if low < high:
            expected[i, j] = x[i, low:high].astype(np.float64) @ y[low:high, j]
    functions = [ranged_of_any_size(name)]
    if size == 53:
        args = masked(ranged(begin, end), size)
        functions.append(build(args[-1:], args, TARGET))
    for function in functions:
        out = np.empty((size, size), np.float32)
        function(x, y, out)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@cache
def ranged_of_any_size(name: str) -> Module:
    """The function of a range, of matrices of any size."""
    n = te.var("n")
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    c = te.compute((n, n), ranged(*RANGES[name])(a, b, n), name="c")
    return build([c], [a, b, c], TARGET)


NESTED: dict[str, tuple[Element, Element, Element, Element]] = {
    "up to a moved axis": (lambda i: i, lambda i: i + 3, lambda i, k: 0, lambda i, k: k),
    "both move": (lambda i: i, lambda i: i + 3, lambda i, k: k, lambda i, k: k + 3),
    "from a moved axis": (lambda i: i, lambda i: i + 3, lambda i, k: k, lambda i, k: i + 7),
    "a triangle's windows": (lambda i: 0, lambda i: i + 3, lambda i, k: k, lambda i, k: k + 4),
    "back and forth": (lambda i: i, lambda i: 2 * i + 3, lambda i, k: k - i, lambda i, k: k + 2),
}


@pytest.mark.parametrize("name", NESTED)
def test_ranges_of_axes_that_moved(name: str) -> None:
    rows, width = 5, 24
    begin, end, inner_begin, inner_end = NESTED[name]
    a = te.placeholder((rows, width), name="a")

    def total(i: Any) -> Any:
        k = te.reduce_axis((begin(i), end(i)), name="k")
        m = te.reduce_axis((inner_begin(i, k), inner_end(i, k)), name="m")
        return te.sum(a[i, k] * a[i, m] + a[i, m], axis=[k, m])

    c = te.compute((rows,), total, name="c")
    x = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    out, expected = np.empty(rows, np.float32), np.zeros(rows)
    build([c], [a, c], TARGET)(x, out)
    for i in range(rows):
        for k in range(begin(i), end(i)):
            terms = x[i, inner_begin(i, k) : inner_end(i, k)].astype(np.float64)
            expected[i] += (x[i, k] * terms + terms).sum()
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def test_a_narrow_band() -> None:
    """Of 64 steps, 5 are needed, and a tile's height more."""
    band = where(lambda i, j, k: te.all(k >= i - 2, k <= i + 2))
    assert work(band) < 0.25 * work(where(lambda i, j, k: True))


def test_two_factors_of_columns_share_a_cache() -> None:
    """Each of the two fits half of L2, and both together don't."""
    a, b, c = (te.placeholder((512, 512), name=name) for name in "ABC")
    k = te.reduce_axis((0, 512), name="k")
    d = te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j] + c[k, j], axis=k), name="D")
    trace = auto_schedule(d, "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids").trace()
    assert "s.cache_read(B" in trace and "s.cache_read(C" in trace
