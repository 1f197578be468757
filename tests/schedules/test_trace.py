"""Traces: the text of a schedule makes the same schedule again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
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


class Swap:
    def __call__(self, i: Any, j: Any) -> Any:
        return [j, i]


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
    "compute_view": lambda c: c.s[c.s.cache_read(c.A, "global", [c.B])].compute_view(),
    "vectorize": lambda c: c.s[c.C].vectorize(c.s[c.C].split(c.j, 4)[1]),
    "unroll_a_leaf": lambda c: (
        c.s[c.C].split(c.j, 4),
        c.s[c.C].unroll(c.s[c.C].leaf_iter_vars[2]),
    ),
    "parallel": lambda c: c.s[c.C].parallel(c.i),
    "bind": lambda c: c.s[c.C].bind(c.i, te.thread_axis((0, 8), "threadIdx.x")),
    "pragma": lambda c: c.s[c.C].pragma(c.i, "auto_unroll_max_step", 16),
    "bind_by_name": lambda c: c.s[c.C].bind(c.i, te.thread_axis("threadIdx.x", name="tx")),
    "split_by_numpy": lambda c: c.s[c.C].split(c.i, np.int64(3)),
    "pragma_of_a_constant": lambda c: c.s[c.C].pragma(
        c.i, "auto_unroll_max_step", tir.const(16, "int64")
    ),
    "layout_of_an_object": lambda c: c.s[c.C].transform_layout(Swap()),
    "odd_scope": lambda c: c.s[c.C].set_scope("local.a'b\"\n\\"),
    "prefetch": lambda c: c.s[c.C].prefetch(c.B, c.j, 1),
    "set_scope": lambda c: c.s[c.C].set_scope("local"),
    "set_store_predicate": lambda c: c.s[c.C].set_store_predicate(
        te.all(te.any(c.i < 3, c.j * 2 >= c.i), tir.Not(c.j.var.equal(2)))
    ),
    "predicate_that_reads": lambda c: c.s[c.C].set_store_predicate(c.A[c.i, 0] < 3.0),
    "predicate_with_a_float16": lambda c: c.s[c.C].set_store_predicate(
        c.A[c.i, 0].astype("float16") < tir.const(3.5, "float16")
    ),
    "predicate_with_infinity": lambda c: c.s[c.C].set_store_predicate(
        te.all(c.A[c.i, 0] < te.infinity("float32"), c.A[c.i, 0] > -te.infinity("float32"))
    ),
    "predicate_with_int8": lambda c: c.s[c.C].set_store_predicate(
        c.i.var.astype("int8") < tir.const(3, "int8")
    ),
    "predicate_with_functions": lambda c: c.s[c.C].set_store_predicate(
        te.if_then_else(c.i < 3, te.exp(c.A[c.i, 0]), 1.0) < te.sqrt(c.A[c.i, 1]) / 2.0
    ),
    "predicate_with_select": lambda c: c.s[c.C].set_store_predicate(
        tir.Select(c.i < 3, c.A[c.i, 0], tir.const(1.0, "float32")) < 2.0
    ),
    "predicate_of_bits": lambda c: c.s[c.C].set_store_predicate(
        ((c.i.var << 2) & 12 | ~c.j.var ^ (c.j.var >> 1)) != tir.truncmod(tir.truncdiv(c.j, 2), 3)
    ),
    "predicate_that_repeats": lambda c: c.s[c.C].set_store_predicate(c.i * 3 + c.i < c.i + c.j),
    "predicate_that_is_true": lambda c: c.s[c.C].set_store_predicate(True),
    "predicate_with_a_cast": lambda c: c.s[c.C].set_store_predicate(c.i.var.astype("int64") < 3),
    "storage_align": lambda c: c.s[c.C].storage_align(c.i, 16, 1),
    "double_buffer": lambda c: [at_next(c), c.s[c.C].double_buffer()],
    "layout": lambda c: c.s[c.C].transform_layout(lambda i, j: [j // 4, i, j % 4]),
    "layout_of_varargs": lambda c: c.s[c.C].transform_layout(
        lambda *i: [i[1] // 4, i[0], i[1] % 4]
    ),
    "layout_of_some_varargs": lambda c: c.s[c.C].transform_layout(lambda a, *i: [i[0], a]),
    "layout_of_last_indices": lambda c: c.s[c.C].transform_layout(
        lambda *i, n: [*i, n // 4, n % 4]
    ),
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
    ["x x x x", "lambda te s tir", "i.j 1 2.a ..", "² x² é ﬁ", "i_outer i i_1 None", "\" \t ' \n"],
)
def test_any_names(names: str) -> None:
    chain = Chain(names)
    outer, _ = chain.s[chain.B].split(chain.B.op.axis[0], 4)
    chain.s[chain.C].split(chain.i, 4)
    chain.s[chain.B].fuse(outer)
    chain.s[chain.C].compute_at(chain.s[chain.D], chain.D.op.axis[0])
    replays(chain.s, [chain.D], chain.args)


def test_names_count_from_one() -> None:
    c = Chain()
    c.s[c.C].unroll(c.i)
    c.s[c.D].unroll(c.D.op.axis[0])
    c.s[c.B].unroll(c.B.op.axis[0])
    lines = replays(c.s, [c.D], c.args).splitlines()
    assert [each.split(" = ")[0] for each in lines if ".op.axis[0]" in each] == ["i", "i_1", "i_2"]


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


def test_sizes_of_tensors_without_a_name() -> None:
    m, n = te.var("m"), te.var("n")
    A, B = te.placeholder((m,), name="A"), te.placeholder((n,), name="B")
    C = te.compute((m * n,), lambda i: A[i // n] * B[i % n], name="C")
    s = te.create_schedule(C.op)
    s[C].split(C.op.axis[0], n)
    assert "n = B.shape[0]" in replays(s, [C], [A, B, C])


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


def test_dtypes_and_intrinsics() -> None:
    a = te.placeholder((7, 5), "int8", name="A")
    b = te.placeholder((5, 16), "int8", name="B")
    k = te.reduce_axis((0, 5), "k")
    c: Any = te.compute(
        (7, 16),
        lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k),
        name="C",
    )
    for dtypes in (("uint8", None), (np.int16, np.dtype("int16")), (c.dtype, None)):
        s: Any = te.create_schedule(c.op)
        s.pad_einsum(s.cache_write(c, "local"), [4, 4, 4], dtypes)
        replays(s, [c], [a, b, c])

    x = te.placeholder((16,), name="x")
    y = te.compute((16,), lambda i: x[i] + 1.0, name="y")

    def body(ins: Any, outs: Any) -> Any:
        return tir.call_packed("test.add_one", ins[0], outs[0])

    intrin = te.decl_tensor_intrin(y.op, body, name="add one, twice")
    source = te.placeholder((4, 16), name="S")
    out: Any = te.compute((4, 16), lambda i, j: source[i, j] + 1.0, name="out")
    s = te.create_schedule(out.op)
    s[out].tensorize(out.op.axis[1], intrin)
    text = s.trace()
    assert text.endswith("s[out].tensorize(j, add_one__twice)")
    again = te.replay(text, out, {"add_one__twice": intrin})
    assert str(tvm.lower(again, [source, out])) == str(tvm.lower(s, [source, out]))


# -- Other texts ----------------------------------------------------------------------------------

HOSTILE = [
    "import os",
    "from os import system",
    "__import__('os').system('touch {0}')",
    "x = __import__('os')",
    "open('{0}', 'w')",
    "s = (lambda: open('{0}', 'w'))()",
    "exec('1')",
    "eval('1')",
    "print('x')",
    "s.__class__",
    "x = s.__class__",
    "x = ().__class__.__bases__[0].__subclasses__()",
    "x = D.op.__init__.__globals__['__builtins__']",
    "x = D.__call__.__globals__",
    "x = te.create_schedule.__globals__",
    "x = te.__builtins__",
    "x = tir.op",
    "x = s.stages",
    "s.calls.lines.clear()",
    "s._rewrite(D)",
    "s.normalize()",
    "s[D].restart(D.op)",
    "s[D].schedule.trace()",
    "x = D.op.body",
    "D.op.outputs",
    "x = [y for y in D.op.axis]",
    "x = [*D.op.axis]",
    "s[D].split(*D.op.axis)",
    "s[D].split(**D)",
    "x = 1 if D else 2",
    "x = D and D",
    "x = 9 ** 9 ** 9",
    "x = 1 << 10 ** 9",
    "x = 1 << 999999999999",
    "x = 'a' * 999999999999",
    "x = [0] * 999999999999",
    "x = 'a' + 'b'",
    "x = -'a'",
    "x = f'{{D}}'",
    "x = b'a'",
    "x = ...",
    "x = 1j",
    "x = {{}}",
    "x = {{1}}",
    "x = D.op.axis[:]",
    "x = D.op.axis[-1]",
    "x = D.op.axis[7]",
    "x = D.op.axis['0']",
    "x = D.op.axis[True]",
    "x = s[s]",
    "x = s[1, 2]",
    "x = D[0]",
    "x = D.op[0]",
    "x = 1\ny = x[0]",
    "x: int = 1",
    "x += 1",
    "x = y = 1",
    "(x := 1)",
    "x = (y := 1)",
    "x.y = 1",
    "s[D] = 1",
    "s[D].op = D.op",
    "del s",
    "a, *b = D.op.axis",
    "a, b, c = D.op.axis",
    "a, b = 1",
    "(a, (b, c)) = D.op.axis",
    "if True: x = 1",
    "while True: pass",
    "for x in D.op.axis: pass",
    "with s: pass",
    "def f(): pass",
    "class X: pass",
    "try: pass\nfinally: pass",
    "assert False",
    "raise ValueError",
    "global x",
    "pass",
    "return 1",
    "await s",
    "yield s",
    "lambda: 0",
    "D",
    "unknown",
    "x = unknown",
    "x = 1 < 2 < 3",
    "x = D in D",
    "x = D is D",
    "x = not D",
    "x = D @ D",
    "x = 1 / 0",
    "x = 1 // 0",
    "s[D].transform_layout(lambda i, j=open('{0}', 'w'): [j, i])",
    "s[D].transform_layout(lambda *i: i)",
    "s[D].transform_layout(lambda i, j: [j, i].clear())",
    "s[D].transform_layout(lambda i, j: open('{0}', 'w'))",
    "s[D].transform_layout(open)",
    "s[D].vectorize(var='x', nothing=1)",
    "s[D].vectorize()",
    "s[D].unknown(1)",
    "s[D].pragma(D.op.axis[0], 'import_llvm', 'define void @f() {{ ret void }}')",
    "s[D].pragma(D.op.axis[0], pragma_type='import_llvm', pragma_value='x')",
    "s[D].set_store_predicate(tir.call_intrin('int32', 'call_extern', 'system', 'ls') == 0)",
    "s[D].set_store_predicate(tir.call_intrin('int32', 'tir.call_extern', 'system', 'ls') == 0)",
    "s[D].set_store_predicate(tir.call_intrin('int32', 'call_packed', 'f') == 0)",
    "s[D].set_store_predicate(tir.call_intrin('int32', func_name='call_packed', x='f') == 0)",
    "s[D].set_store_predicate(tir.call_packed('f') == 0)",
    "s[D].set_store_predicate(tir.call_extern('int32', 'system', 'ls') == 0)",
    "s[D].tensorize(D.op.axis[0], te.decl_tensor_intrin(D.op, 1))",
    "x = te.extern((1,), [], 1)",
    "x = te.placeholder((1,))",
    "x = " + "-" * 100_000 + "1",
    "x = " + "(" * 500 + ")" * 500,
    "x = " + "1 + " * 100_000 + "1",
    "x = 1\0",
    "x = (",
    "  x = 1",
    "\ud800",
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_text_that_is_no_trace_is_refused(number: int, tmp_path: Any) -> None:
    chain = Chain()
    victim = tmp_path / "written"
    text = HOSTILE[number].replace("{0}", str(victim)).replace("{{", "{").replace("}}", "}")
    with pytest.raises(tvm.CompileError):
        te.replay(f"s = te.create_schedule([D.op])\n{text}", [chain.D])
    assert not victim.exists()


def test_a_refusal_says_where() -> None:
    chain = Chain()
    made = "s = te.create_schedule([D.op])\n"
    for text, match in [
        (f"{made}\nprint(s)", r"line 3: expected a name that the text gave"),
        (f"{made}te.sum(s)", r"line 2: expected a primitive, or a function"),
        ("s = te.create_schedule([E.op])", r"line 1: expected a name that the text gave, or that"),
        ("import os", r"line 1: expected a call of a primitive, or a name for its result, got imp"),
        ("x = (", r"line 1: expected Python as s.trace\(\) prints it: '\(' was never closed"),
    ]:
        with pytest.raises(tvm.CompileError, match=f"^replay: {match}"):
            te.replay(text, [chain.D])
