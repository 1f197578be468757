"""The LLVM IR of loops, as far as LLVM's time depends on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import lower, te, tir
from minitvm.codegen.llvm_text import FunctionText, ModuleText, Value, i64
from minitvm.codegen.machine_code import emit_assembly
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import module_text
from minitvm.runtime.dtype import INT32

_TARGET = tvm.Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")


def text_of(program: Any, args: list[Any] | None = None) -> ModuleText:
    return module_text(lower(program, args, name="f"), CodegenOptions(_TARGET))


def indices_in(text: ModuleText) -> list[str]:
    """The additions and products of 64 bits in the body of a function."""
    body = str(text).split("define")[1]
    return re.findall(r"= (?:add|mul) .*i64 %.*", body)


def test_arithmetic_of_loop_variables_does_not_wrap() -> None:
    A = te.placeholder((8, 12), name="A")
    B = te.compute((7, 4), lambda i, j: A[i + 1, j * 3] * 2.0, name="B")
    found = indices_in(text_of([B], [A, B]))
    assert len(found) >= 5
    assert all("nuw nsw" in each for each in found), found


def test_arithmetic_of_variables_that_may_be_negative_does_not_say_so() -> None:
    A = te.placeholder((8,), name="A")
    B = te.compute((4,), lambda i: A[i + 1], name="B")
    s = te.create_schedule(B.op)
    func = lower(s, [A, B])["main"]
    loop = func.body
    assert isinstance(loop, tir.For)
    i = tir.Var("i", loop.loop_var.dtype)
    body = tir.functor.substitute(loop.body, {loop.loop_var: i + 3})
    moved = tir.For(i, tir.const(-3, i.dtype), loop.extent, loop.kind, body)
    text = text_of(tir.PrimFunc(func.params, moved, func.buffer_map, "f"))
    assert "nuw" not in str(text).split("define")[1]


def test_numbers_of_data_wrap() -> None:
    I = te.placeholder((5,), "int64", name="I")  # noqa: E741
    B = te.compute((5,), lambda i: I[i] * 3 + i.astype("int64"), name="B")
    numbers = np.array([2**62, -(2**62), 2**63 - 1, -(2**63), 7])
    found = np.empty(5, "int64")
    tvm.build([B], [I, B])(numbers, found)
    np.testing.assert_array_equal(found, numbers * 3 + np.arange(5))


def loops_of(text: FunctionText, extents: list[Value | int]) -> Iterator[Value]:
    """Opens loops, one inside the other, and closes them at the end."""
    with ExitStack() as open_loops:
        for extent in extents:
            runs, end = isinstance(extent, int), i64(extent) if isinstance(extent, int) else extent
            head, latch, done = text.blocks("loop", "next", "done")
            loop = text.rounds((head, latch, done), i64(0), end, i64(1), runs=runs)
            counter = open_loops.enter_context(loop)
            open_loops.callback(text.branch, latch)
            yield counter


def lines_of(text: FunctionText) -> list[str]:
    text.ret(i64(0))
    text.finish()
    return str(text.module).splitlines()


def test_invariants_are_computed_before_the_outermost_loop_that_does_not_change_them() -> None:
    text = FunctionText(ModuleText("m", "", ""), "f", "i64", ["i64 a", "i64 n"])
    a, n = text.params
    for i in loops_of(text, [3]):
        for j in loops_of(text, [5]):
            made = {
                "outside": text.binary("mul", a, n), "in i": text.binary("mul", a, i),
                "in j": text.binary("mul", i, j), "by 3": text.binary("sdiv", a, i64(3)),
                "by n": text.binary("sdiv", a, n), "again": text.binary("mul", n, a),
            }  # fmt: skip
            assert text.binary("mul", a, n) == made["outside"]
    assert text.binary("mul", a, n) == made["outside"]  # shared behind the loops, too
    lines = lines_of(text)
    heads = [n for n, line in enumerate(lines) if line.startswith("loop.")]
    where = {
        name: sum(head < n for head in heads)
        for name, value in made.items()
        for n, line in enumerate(lines)
        if line.startswith(f"  {value.text} =")
    }
    # A division by 0 would end the process, so it stays where the program has it.
    assert where == {"outside": 0, "in i": 1, "in j": 2, "by 3": 0, "by n": 2, "again": 0}
    assert text.needs_loop_passes  # for the division


def test_what_a_loop_that_may_not_run_needs_is_computed_if_it_runs() -> None:
    text = FunctionText(ModuleText("m", "", ""), "f", "i64", ["i64 a", "i64 n"])
    a, n = text.params
    for _ in loops_of(text, [n]):
        inside = text.binary("mul", a, n)
    assert text.binary("mul", a, n) != inside  # behind the loop it isn't known
    lines = lines_of(text)
    made = lines.index(f"  {inside.text} = mul i64 %a, %n")
    assert lines[made - 1].startswith("enter.")
    assert lines[made + 1].startswith("  br label %loop.")


def test_nothing_is_computed_before_the_condition_under_which_it_is_needed() -> None:
    text = FunctionText(ModuleText("m", "", ""), "f", "i64", ["i64 a", "i1 c"])
    a, c = text.params
    for _ in loops_of(text, [3]):
        with text.when(c, *text.blocks("holds", "behind")):
            for _ in loops_of(text, [5]):
                made = text.binary("mul", a, a)
    lines = lines_of(text)
    assert lines[lines.index(f"  {made.text} = mul i64 %a, %a") - 1].startswith("holds.")


def tile(s: te.Schedule, B: te.Tensor, in_registers: bool) -> te.Schedule:
    """Sums in a register tile, or in memory."""
    made = s.cache_write(B, "local") if in_registers else B
    if in_registers:
        i, j = s[B].leaf_iter_vars
        s[made].compute_at(s[B], i)
        s[B].vectorize(j)
    _, j, k = s[made].leaf_iter_vars
    s[made].reorder(k, j)
    s[made].vectorize(j)
    return s


@pytest.mark.parametrize("in_registers", [True, False])
def test_sums_in_memory_need_loop_passes(in_registers: bool) -> None:
    A = te.placeholder((8, 12), name="A")
    D = te.placeholder((12, 16), name="D")
    k = te.reduce_axis((0, 12), name="k")
    B = te.compute((8, 16), lambda i, j: te.sum(A[i, k] * D[k, j], axis=k), name="B")
    text = text_of(tile(te.create_schedule(B.op), B, in_registers), [A, D, B])
    assert text.with_loop_passes == (set() if in_registers else {"body.f"})
    a, d = np.random.default_rng(0).random((2, 16, 16), dtype="float32")
    a, d, b = a[:8, :12].copy(), d[:12].copy(), np.empty((8, 16), "float32")
    tvm.build(tile(te.create_schedule(B.op), B, in_registers), [A, D, B])(a, d, b)
    np.testing.assert_allclose(b, a @ d, rtol=1e-5)
    # Either way, LLVM keeps the sums in registers while it loops over k.
    body = emit_assembly(text, _TARGET).split("body.f:")[1].split(".Lfunc_end")[0]
    loop = re.findall(r"(\.LBB\d+_\d+):\n((?:[^.].*\n|\.p2.*\n)*?)\tj\w+\t\1\n", body)
    products = [each for _, each in loop if "vfmadd" in each]
    assert products and not any(re.search(r"vmovups\t%ymm", each) for each in products)


def prefetching(count: int) -> tir.PrimFunc:
    """A loop whose iterations request elements ahead of a loop that copies vectors."""
    ib = tir.ir_builder.create()
    X, Y = (tir.decl_buffer((80, 16), name=name) for name in "XY")
    x, y = ib.buffer_ptr(X), ib.buffer_ptr(Y)
    with ib.for_range(0, 64, "i") as i:
        with ib.for_range(0, count, "j") as j:
            ib.emit(tir.Call(INT32, "prefetch", (x[i + j, 0],)))
        with ib.for_range(0, 16, "k", kind="vectorize") as k:
            y[i, k] = x[i, k]
    return tir.PrimFunc((X.data, Y.data), ib.get(), {X.data: X, Y.data: Y}, "f")


def test_loops_without_stores_are_not_for_llvm_to_vectorise() -> None:
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] * 2.0, name="B")
    assert text_of([B], [A, B]).has_plain_loops
    assert not text_of(prefetching(6)).has_plain_loops


def test_few_copies_are_written_out() -> None:
    A = te.placeholder((9, 4), name="A")
    few = te.compute((9, 4), lambda i, j: A[8 - i, 3 - j], name="B")
    many = te.compute((9, 5), lambda i, j: A[8 - i, j % 4], name="B")
    assert str(text_of([few], [A, few])).count("phi") + 1 == str(text_of([many], [A, many])).count(
        "phi"
    )
    a, b = np.arange(36, dtype="float32").reshape(9, 4), np.empty((9, 4), "float32")
    tvm.build([few], [A, few], auto_schedule=False)(a, b)
    np.testing.assert_array_equal(b, a[::-1, ::-1])


def test_which_numbers_are_known_not_to_be_negative() -> None:
    text = FunctionText(ModuleText("m", "", ""), "f", "i64", ["i64 a", "i64 b", "i64 c"])
    a, b, c = (text.note_natural(each) if each.text != "%c" else each for each in text.params)
    natural = [
        text.binary("add", a, b, "nsw"), text.binary("mul", a, i64(3), "nsw"),
        text.binary("sdiv", a, b), text.binary("srem", a, b), text.intrinsic("smin", "i64", a, b),
        text.intrinsic("smax", "i64", c, a), i64(0),
    ]  # fmt: skip
    others = [
        text.binary("sub", a, b, "nsw"), text.binary("add", a, b), text.binary("add", a, c, "nsw"),
        text.binary("mul", a, i64(-3), "nsw"), text.binary("sdiv", c, b), i64(-1),
        text.intrinsic("smin", "i64", a, c), text.intrinsic("smax", "i64", c, c),
    ]  # fmt: skip
    assert all(map(text.is_natural, natural))
    assert not any(map(text.is_natural, others))
