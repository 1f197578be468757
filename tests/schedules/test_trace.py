"""Traces: the text of a schedule makes the same schedule again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te, tir


class Chain:
    """B = 2 A, C = B + 1, D = C - 3, with names and a schedule."""

    def __init__(self, names: str = "A B C D", shape: Any = (8, 12)) -> None:
        first, second, third, fourth = names.split(" ")
        self.A = te.placeholder(shape, name=first)
        self.B: Any = te.compute(shape, lambda i, j: self.A[i, j] * 2.0, name=second)
        self.C: Any = te.compute(shape, lambda i, j: self.B[i, j] + 1.0, name=third)
        self.D: Any = te.compute(shape, lambda i, j: self.C[i, j] - 3.0, name=fourth)
        self.s = te.create_schedule(self.D.op)
        self.i, self.j = self.C.op.axis

    @property
    def args(self) -> list[Any]:
        return [self.A, self.D]


def replays(s: te.Schedule, outputs: list[Any], args: list[Any]) -> str:
    """The trace, which makes the same loops and the same trace again."""
    text = s.trace()
    again = te.replay(text, outputs)
    assert str(tvm.lower(again, args)) == str(tvm.lower(s, args))
    assert again.trace() == text
    return text


def at_next(c: Chain) -> object:
    return c.s[c.C].compute_at(c.s[c.D], c.s[c.D].split(c.D.op.axis[0], nparts=3)[0])


def read_changed(c: Chain) -> Any:
    """What C became, by way of D."""
    c.s.cache_read(c.A, "local", [c.B])
    return c.s[c.D].op.input_tensors[0]


PRIMITIVES: dict[str, Callable[[Chain], object]] = {
    "split": lambda c: c.s[c.C].split(c.i, factor=3),
    "split_nparts": lambda c: c.s[c.C].split(c.i, nparts=3),
    "fuse": lambda c: c.s[c.C].fuse(c.i, c.j),
    "fuse_list": lambda c: c.s[c.C].fuse([c.i, c.j]),
    "fuse_nothing": lambda c: c.s[c.C].fuse(),
    "reorder": lambda c: c.s[c.C].reorder(c.j, c.i),
    "tile": lambda c: c.s[c.C].tile(c.i, c.j, 3, 4),
    "compute_at": at_next,
    "compute_inline": lambda c: c.s[c.C].compute_inline(),
    "compute_root": lambda c: (c.s[c.C].compute_inline(), c.s[c.C].compute_root()),
    "compute_ahead": lambda c: c.s[c.C].compute_ahead(),
    "vectorize": lambda c: c.s[c.C].vectorize(c.s[c.C].split(c.j, 4)[1]),
    "unroll_a_leaf": lambda c: (
        c.s[c.C].split(c.j, 4),
        c.s[c.C].unroll(c.s[c.C].leaf_iter_vars[2]),
    ),
    "parallel": lambda c: c.s[c.C].parallel(c.i),
    "bind": lambda c: c.s[c.C].bind(c.i, te.thread_axis((0, 8), "threadIdx.x")),
    "pragma": lambda c: c.s[c.C].pragma(c.i, "auto_unroll_max_step", 16),
    "prefetch": lambda c: c.s[c.C].prefetch(c.B, c.j, 1),
    "set_scope": lambda c: c.s[c.C].set_scope("local"),
    "set_store_predicate": lambda c: c.s[c.C].set_store_predicate(
        te.all(te.any(c.i < 3, c.j * 2 >= c.i), tir.Not(c.j.var.equal(2)))
    ),
    "predicate_that_reads": lambda c: c.s[c.C].set_store_predicate(c.A[c.i, 0] < 3.0),
    "predicate_with_a_cast": lambda c: c.s[c.C].set_store_predicate(c.i.var.astype("int64") < 3),
    "storage_align": lambda c: c.s[c.C].storage_align(c.i, 16, 1),
    "double_buffer": lambda c: [at_next(c), c.s[c.C].double_buffer()],
    "layout": lambda c: c.s[c.C].transform_layout(lambda i, j: [j // 4, i, j % 4]),
    "layout_of_varargs": lambda c: c.s[c.C].transform_layout(
        lambda *i: [i[1] // 4, i[0], i[1] % 4]
    ),
    "layout_of_some_varargs": lambda c: c.s[c.C].transform_layout(lambda a, *i: [i[0], a]),
    "layout_with_a_default": lambda c: c.s[c.C].transform_layout(
        lambda i, j, b=4: [j // b, i, j % b]
    ),
    "layout_of_a_partial": lambda c: c.s[c.C].transform_layout(
        partial(lambda b, i, j: [j // b, i, j % b], 4)
    ),
    "layout_of_one_index": lambda c: c.s[c.C].transform_layout(lambda i, j: i * 12 + j),
    "cache_read": lambda c: c.s.cache_read(c.B, "local", [c.C]),
    "cache_access": lambda c: c.s.cache_access(c.B, "global", c.C),
    "cache_write": lambda c: c.s.cache_write(c.D, "local"),
    "cache_write_in_layout": lambda c: (c.s[c.C].reorder(c.j, c.i), c.s.cache_write(c.C, "local")),
    "group": lambda c: c.s.create_group(c.C, [c.A]).compute_at(c.s[c.D], c.D.op.axis[0]),
    "changed_written": lambda c: c.s.cache_write(read_changed(c), "local"),
    "changed_placed": lambda c: c.s[read_changed(c)].compute_at(c.s[c.D], c.D.op.axis[0]),
    "changed_reader": lambda c: c.s.cache_read(c.B, "local", [read_changed(c).op]),
    "changed_prefetched": lambda c: c.s[c.D].prefetch(read_changed(c), c.D.op.axis[0], 1),
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_trace_replays(name: str) -> None:
    chain = Chain()
    plain = chain.s.trace()
    PRIMITIVES[name](chain)
    assert replays(chain.s, [chain.D], chain.args).startswith(plain + "\n")


@pytest.mark.parametrize(
    "names",
    ["x x x x", "lambda te s tir", "i.j 1 2.a ..", "² x² é ﬁ", "i_outer i i_1 None", " \0 ' \n"],
)
def test_any_names(names: str) -> None:
    chain = Chain(names)
    outer, _ = chain.s[chain.B].split(chain.B.op.axis[0], 4)
    chain.s[chain.C].split(chain.i, 4)
    chain.s[chain.B].fuse(outer)
    chain.s[chain.C].compute_at(chain.s[chain.D], chain.D.op.axis[0])
    replays(chain.s, [chain.D], chain.args)


def test_sizes() -> None:
    n = te.size_var("n")
    for factor in (n, (n + 3) // 4):
        chain = Chain(shape=(n, 5))
        chain.s[chain.C].split(chain.i, factor)
        text = chain.s.trace()
        assert "n = D.shape[0]" in text
    chain = Chain(shape=(n, 5))
    chain.s[chain.C].split(chain.i, te.max(n, 3))
    replays(chain.s, [chain.D], chain.args)


def test_operations_of_several_tensors() -> None:
    a = te.placeholder((7,), "int32", name="A")
    k = te.reduce_axis((0, 7), "k")
    both = te.comm_reducer(lambda x, y: (x[0] + y[0], x[1] * y[1]), lambda s, t: (0, 1))
    total: Any
    product: Any
    total, product = te.compute((1,), lambda i: both((a[k], a[k]), axis=k), name="M")
    out = te.compute((1,), lambda i: total[i] + product[i], name="out")
    s: Any = te.create_schedule(out.op)
    s.cache_read(product, "local", out)
    _, inner = s[product].split(k, 2)
    partial_total, partial_product = s.rfactor(product, inner, 1)
    s[partial_product].compute_at(s[total], s[total].op.reduce_axis[0])
    cache = s.cache_write([partial_total, partial_product], "local")
    s[cache[1]].unroll(s[cache[0]].op.axis[1])
    with pytest.raises(tvm.CompileError, match=r"^cache_write of M: expected all outputs"):
        s.cache_write(total, "local")
    s[partial_product].compute_root()
    text = replays(s, [out], [a, out])
    assert "M_rf_v0, M_rf_v1 = s.rfactor(" in text


def test_several_outputs() -> None:
    chain = Chain()
    s = te.create_schedule([chain.D.op, chain.B.op])
    s[chain.C].compute_at(s[chain.D], chain.D.op.axis[0])
    text = replays(s, [chain.D, chain.B], [chain.A, chain.B, chain.D])
    assert text.startswith("s = te.create_schedule([D.op, B.op])\n")


def test_scans() -> None:
    state = te.placeholder((6, 4), name="state")
    first = te.compute((1, 4), lambda _, i: 1.0, name="first")
    step = te.compute((6, 4), lambda t, i: state[t - 1, i] * 2.0, name="step")
    r = te.scan(first, step, state, name="R")
    s = te.create_schedule(r.op)
    s[r].unroll(r.op.scan_axis)
    s[step].vectorize(step.op.axis[1])
    replays(s, [r], [r])


def test_a_failed_call_leaves_no_line() -> None:
    chain = Chain()
    chain.s[chain.C].split(chain.i, 3)
    before = chain.s.trace()
    with pytest.raises(tvm.CompileError, match=r"^C: split: expected one of the loops"):
        chain.s[chain.C].split(chain.i, 3)
    with pytest.raises(tvm.CompileError, match=r"^C: tile: expected two loops"):
        chain.s[chain.C].tile(chain.j, chain.j, 2, 2)
    with pytest.raises(ZeroDivisionError):
        chain.s[chain.B].transform_layout(lambda i, j: 1 // 0)
    with pytest.raises(tvm.CompileError, match=r"transform_layout: expected a function of 2 ind"):
        chain.s[chain.B].transform_layout(int)
    assert chain.s.trace() == before
    replays(chain.s, [chain.D], chain.args)


def test_a_copy_goes_on_by_itself() -> None:
    chain = Chain()
    group = chain.s.create_group(chain.C, chain.A)
    before = chain.s.trace()
    copy = chain.s.normalize()
    copy.groups[0].compute_at(copy[chain.D], chain.D.op.axis[0])
    assert copy.trace() == before + "\ni = D.op.axis[0]\ngroup_B_C.compute_at(s[D], i)"
    assert chain.s.trace() == before
    assert group.attach_stage is None
    replays(copy, [chain.D], chain.args)
