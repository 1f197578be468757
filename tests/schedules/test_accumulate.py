"""Results that go on from each other: accumulate, reduce_scan and reverse_compute_inline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.tir.interpreter import interpret


def running(shape: tuple[int, ...] = (3, 13), **named: Any) -> tuple[Any, Any, Any]:
    """Sums along the last axis."""
    x = te.placeholder(shape, "int32", name="X")
    k = te.reduce_axis((0, shape[-1]), "k")
    r = te.compute(
        shape, lambda *i: te.sum(x(*i[:-1], k), axis=k, where=k <= i[-1], **named), name="R"
    )
    return x, r, te.create_schedule(r.op)


def check(s: Any, args: list[Any], wanted: Callable[[Any], Any]) -> str:
    shape = [int(n) for n in args[0].shape]
    given: Any = np.arange(np.prod(shape), dtype="int32").reshape(shape) % 7
    for compute in (tvm.build(s, args), lambda *a: interpret(tvm.lower(s, args)["main"], *a)):
        found = np.full([int(n) for n in args[-1].shape], 99, "int32")
        compute(given, found)
        np.testing.assert_array_equal(found, wanted(given))
    again = te.replay(s.trace(), [args[-1]])
    text = str(tvm.lower(s, args, simple_mode=True))
    assert str(tvm.lower(again, args, simple_mode=True)) == text
    return text


def in_lanes(s: Any, r: Any) -> None:
    s[r].vectorize(s[r].split(r.op.axis[1], 4)[1])


def unrolled(s: Any, r: Any) -> None:
    s[r].unroll(s[r].split(r.op.axis[1], nparts=3)[1])


def outermost(s: Any, r: Any) -> None:
    """The totals of all rows are kept."""
    i, j = r.op.axis
    outer, inner = s[r].split(j, 5)
    s[r].reorder(outer, inner, i)
    s[r].vectorize(i)


def inside_of_parts(s: Any, r: Any) -> None:
    i, j = r.op.axis
    outer, inner = s[r].split(j, 4)
    s[r].reorder(outer, i, inner)
    s[r].vectorize(inner)


def fused_beside(s: Any, r: Any) -> None:
    """Loops along the axis are fused again, and may be vectorized with a remainder."""
    fused = s[r].fuse(*s[r].split(r.op.axis[1], 5))
    s[r].vectorize(s[r].split(fused, 8)[1])
    s[r].parallel(r.op.axis[0])


@pytest.mark.covering(1)
@pytest.mark.parametrize("loops", [in_lanes, unrolled, outermost, inside_of_parts, fused_beside])
@pytest.mark.parametrize("n", [13, 12, 1])
def test_loops(loops: Callable[[Any, Any], None], n: int) -> None:
    x, r, s = running((3, n))
    s[r].accumulate(r.op.axis[1])
    loops(s, r)
    text = check(s, [x, r], lambda a: a.cumsum(1))
    assert "for k" not in text


def test_totals_begin_from_init() -> None:
    x, r, s = running(init=te.const(5, "int32"))
    s[r].accumulate(r.op.axis[1])
    in_lanes(s, r)
    check(s, [x, r], lambda a: a.cumsum(1) + 5)


def test_several_reduction_axes() -> None:
    x = te.placeholder((7, 4), "int32", name="X")
    k, n = te.reduce_axis((0, 7), "k"), te.reduce_axis((0, 4), "n")
    r = te.compute((7,), lambda j: te.sum(x[k, n], axis=[n, k], where=k >= j), name="R")
    s = te.create_schedule(r.op)
    s[r].accumulate(r.op.axis[0])
    text = check(s, [x, r], lambda a: a.sum(1)[::-1].cumsum()[::-1])
    assert "R[6 - j] = R.total[0]" in text


def test_a_place_in_the_rows_of_a_reader() -> None:
    """A part of a row needs all sums before it; what the sums read is computed at their loops."""
    x = te.placeholder((3, 12), "int32", name="X")
    k = te.reduce_axis((0, 12), "k")
    twice = te.compute((3, 12), lambda i, j: x[i, j] * 2, name="twice")
    r = te.compute((3, 12), lambda i, j: te.sum(twice[i, k], axis=k, where=k <= j), name="R")
    out = te.compute((3, 12), lambda i, j: r[i, 11 - j] + 1, name="out")
    s: Any = te.create_schedule(out.op)
    outer, _ = s[out].split(out.op.axis[1], 4)
    s[r].compute_at(s[out], outer)
    s[r].accumulate(r.op.axis[1])
    part, inner = s[r].split(r.op.axis[1], 4)
    s[r].vectorize(inner)
    s[twice].compute_at(s[r], part)
    text = check(s, [x, out], lambda a: (2 * a).cumsum(1)[:, ::-1] + 1)
    assert "twice = allocate(int32[1, 4])" in text


def test_later_rewrites_begin_the_loops_anew() -> None:
    x, r, s = running()
    s[r].accumulate(r.op.axis[1])
    cache = s.cache_write(r, "local")
    s[cache].compute_at(s[r], r.op.axis[0])
    check(s, [x, r], lambda a: a.cumsum(1))
    s[cache].accumulate(cache.op.axis[1])
    assert "for k" not in check(s, [x, r], lambda a: a.cumsum(1))


def test_golden(golden: Any) -> None:
    x, r, s = running((2, 8))
    s[r].accumulate(r.op.axis[1])
    in_lanes(s, r)
    golden(str(tvm.lower(s, [x, r], simple_mode=True)))


ORDER = "^R: accumulate along i1: expected loops that go through i1 in order"
ALONE = "^R: accumulate along i1: expected loops along i1 alone, and none along k"
ANEW = "^R: accumulate along i0: expected a reduction over one step more for each element"
OWN = r"^R: accumulate: expected one of its data axes \(i0, i1\)"
PREDICATE = "^R: set_store_predicate: expected results that are computed one by one"
REFUSALS: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "axis": (lambda s, i, j: s.accumulate(s.op.reduce_axis[0]), OWN),
    "rows": (lambda s, i, j: s.accumulate(i), ANEW),
    "parallel": (lambda s, i, j: s.parallel(j), ORDER),
    "order": (lambda s, i, j: s.reorder(*s.split(j, 4)[::-1]), ORDER),
    "lanes": (lambda s, i, j: [s.vectorize(j), s.reorder(j, i)], ORDER),
    "fused": (lambda s, i, j: s.fuse(i, j), ALONE),
    "steps": (lambda s, i, j: s.split(s.op.reduce_axis[0], 4), ALONE),
    "predicate": (lambda s, i, j: s.set_store_predicate(j.var < 4), PREDICATE),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_accumulate_refuses(case: str) -> None:
    call, message = REFUSALS[case]
    x, r, s = running()
    s[r].accumulate(r.op.axis[1])
    with pytest.raises(tvm.CompileError, match=message):
        call(s[r], *r.op.axis)
        tvm.lower(s, [x, r])


# -- Scans as reductions, and where they are stored --


def scanned(combine: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    x = te.placeholder((4, 9), "int32", name="X")
    state = te.placeholder((9, 4), "int32", name="state")
    first = te.compute((1, 4), lambda t, i: x[i, t] + 1, name="first")
    step = te.compute((9, 4), lambda t, i: combine(state[t - 1, i], x[i, t]), name="step")
    result: Any = te.scan(first, step, state, name="R")
    return x, result, te.compute((4, 9), lambda i, t: result[t, i], name="out")


def test_a_scan_becomes_a_reduction_where_it_is_stored() -> None:
    x, r, out = scanned(lambda a, b: b + a)
    s: Any = te.create_schedule(out.op)
    s.reduce_scan(r)
    assert [stage.name for stage in s.stages] == ["X", "R", "out"]
    check(s, [x, out], lambda a: a.cumsum(1) + 1)
    s.reverse_compute_inline(out)
    assert [stage.name for stage in s.stages] == ["X", "out"]
    s[out].accumulate(out.op.axis[1])
    check(s, [x, out], lambda a: a.cumsum(1) + 1)
    with pytest.raises(tvm.CompileError, match="argument 1 R: expected a placeholder, or a tensor"):
        tvm.lower(s, [x, r, out])


@pytest.mark.parametrize("kind", ["minus", "twice", "two states before", "state in the term"])
def test_scans_that_are_no_reductions(kind: str) -> None:
    combine: Any = {
        "minus": lambda a, b: b - a,
        "twice": lambda a, b: a * 2 + b,
        "two states before": lambda a, b: a + b,
        "state in the term": lambda a, b: a + a * b,
    }[kind]
    x, r, _ = scanned(combine)
    if kind == "two states before":
        state = te.placeholder((9, 4), "int32", name="state")
        first = te.compute((2, 4), lambda t, i: x[i, t], name="first")
        step = te.compute((9, 4), lambda t, i: state[t - 2, i] + x[i, t], name="step")
        r = te.scan(first, step, state, name="R")
    s: Any = te.create_schedule(r.op)
    with pytest.raises(tvm.CompileError, match=r"^reduce_scan of R: expected an update that"):
        s.reduce_scan(r)


def test_what_reduce_scan_and_reverse_compute_inline_refuse() -> None:
    _, r, out = scanned(lambda a, b: a + b)
    s: Any = te.create_schedule(out.op)
    with pytest.raises(tvm.CompileError, match=r"^reduce_scan of out: expected a result of"):
        s.reduce_scan(out)
    with pytest.raises(tvm.CompileError, match=r"^reverse_compute_inline of out: expected a"):
        s.reverse_compute_inline(out)
    step = r.op.update[0]
    s[step].split(step.op.axis[1], 2)
    with pytest.raises(tvm.CompileError, match=r"loops as they began, found step scheduled"):
        s.reduce_scan(r)
    s = te.create_schedule([out.op, r.op])
    s.reduce_scan(r)
    with pytest.raises(tvm.CompileError, match=r"^reverse_compute_inline of out: expected a"):
        s.reverse_compute_inline(out)
