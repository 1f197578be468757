"""build: its texts, its targets, its memory, and PassContext around it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from minitvm import IRModule, Target, build, create_schedule, lower, te, tir, transform
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import CompiledProgram, compile_module
from minitvm.runtime.errors import InternalError
from minitvm.runtime.object_code import LoadedCode, parse
from minitvm.runtime.packed_func import Function

n = te.var("n")
A = te.placeholder((n,), name="A")
B = te.compute((n,), lambda i: te.exp(A[i]) + 1.0, name="B")


def test_sources() -> None:
    f = build([B], [A, B], name="f", auto_schedule=False)
    text = f.get_source("ll")
    assert text == f.get_source()
    llvm.parse_assembly(text).verify()
    assert "i32 @packed.f(ptr" in text
    assert "@expf(" in build([B], [A, B], fp="strict", auto_schedule=False).get_source("ll")
    assert "packed.f:" in f.get_source("asm").split()
    assert "B[i] = exp(A[i]) + 1.0" in f.get_source("tir")
    with pytest.raises(ValueError, match="expected a kind of source among ll, asm, tir, got 'c'"):
        f.get_source("c")


CROSS = ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu", "arm64-apple-darwin"]


@pytest.mark.parametrize("triple", CROSS)
def test_assembly_of_other_machines(triple: str) -> None:
    H = te.placeholder((n,), dtype="float16", name="H")
    C = te.compute((n,), lambda i: te.sqrt(H[i]) + B[i].astype("float16"), name="C")
    f = build([C], [A, H, C], f"llvm -mtriple={triple}", name="f")
    assembly = f.get_source("asm").split()
    assert "ret" in assembly or "retq" in assembly
    is_arm = triple.startswith(("aarch64", "arm64"))
    assert (
        any(word.startswith("fcvt") for word in assembly) == is_arm
    )  # of float16, which SSE2 has no instruction for
    assert f'target triple = "{triple}"' in f.get_source("ll")


def test_strict_and_fast() -> None:
    k = te.reduce_axis((0, n), "k")
    S = te.compute((1,), lambda i: te.sum(A[k] * A[k], axis=k), name="S")
    fast = build([S], [A, S]).get_source("ll")
    strict = build([S], [A, S], fp="strict").get_source("ll")
    assert "reassoc" in fast
    assert "contract" in fast
    assert "reassoc" not in strict
    assert "contract" not in strict


def test_a_module_of_several_functions() -> None:
    first, second = (lower([B], [A, B], name=name).functions[name] for name in ("one", "two"))
    both = build(IRModule({"one": first, "two": second}))
    b = np.zeros(3, "float32")
    for name in ("one", "two"):
        both[name](np.zeros(3, "float32"), b)
        assert b.tolist() == [2.0] * 3
        b[:] = 0
    with pytest.raises(AttributeError, match="expected a function among one, two, got 'three'"):
        both["three"]


def test_a_function_with_a_name_of_its_own() -> None:
    func = lower([B], [A, B], name="f").functions["f"]
    assert build(func).name == "f"
    assert build(func, name="g").name == "g"
    assert build([B], [A, B]).name == "default_function"


def test_targets_around() -> None:
    with Target("llvm -mtriple=aarch64-unknown-linux-gnu"):
        assert "aarch64" in build([B], [A, B]).get_source("ll")
        assert "aarch64" not in build([B], [A, B], "llvm -mcpu=native").get_source("ll")[:300] or (
            "aarch64" in Target("llvm").triple
        )
    assert Target.current() is None


def test_code_goes_with_its_function() -> None:
    codes: list[weakref.ref[Any]] = []
    for _ in range(3):
        module = build([B], [A, B])
        function = module.entry_func
        assert isinstance(function, Function)
        owner = function._owner
        assert isinstance(owner, CompiledProgram)
        assert isinstance(owner.code, LoadedCode)
        codes.append(weakref.ref(owner.code))
        b = np.zeros(6, "float32")
        module(np.zeros(6, "float32"), b)
        module(np.zeros(6, "float32")[::2], b[::2])  # which makes the variant for strides
        module(b, b)  # and that for an output in the place of an input
        assert function.variants is not None
        variants = list(function.variants.made.values())
        assert variants[0].owner is owner.code
        for variant in variants[1:]:
            assert isinstance(variant.owner, LoadedCode)
            codes.append(weakref.ref(variant.owner))
        assert len(variants) == 3
        del module, function, owner, variant, variants
    gc.collect()
    assert [code for code in codes if code() is not None] == []


def test_a_function_outlives_its_module() -> None:
    function = build([B], [A, B]).entry_func
    gc.collect()
    b = np.zeros(3, "float32")
    function(np.zeros(3, "float32"), b)
    assert b.tolist() == [2.0] * 3


def test_pass_context(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = create_schedule(B.op)
    with transform.PassContext(print_after=["simplify"], verify_each=True) as context:
        build(schedule, [A, B], name="f")
    printed = capsys.readouterr().err
    assert printed.startswith("# after simplify\ndef f(A: float32[n], B: float32[n]):\n")
    assert printed.count("# after") == 1
    assert {"schedule_ops", "simplify", "widen_indices"} <= set(context.timings)
    assert all(seconds >= 0 for seconds in context.timings.values())
    with transform.PassContext(print_after=True):
        build(schedule, [A, B])
    assert capsys.readouterr().err.count("# after") >= 3
    build(schedule, [A, B])
    assert capsys.readouterr().err == ""


def test_verification_finds_what_is_broken() -> None:
    x = te.var("x")
    broken = tir.PrimFunc((x,), tir.Evaluate(te.var("y")), {}, "f")
    with pytest.raises(ValueError, match="variable y"), transform.PassContext(verify_each=True):
        build(broken)


def test_a_pass_left_out() -> None:
    with transform.PassContext(disabled_pass=["simplify"]) as context:
        f = build([B], [A, B])
    assert "simplify" not in context.timings
    b = np.zeros(3, "float32")
    f(np.zeros(3, "float32"), b)
    assert b.tolist() == [2.0] * 3
    text = r"expected a pass among .*simplify.*, got 'simplfy'"
    with (
        pytest.raises(ValueError, match=text),
        transform.PassContext(disabled_pass=["simplfy"]),
    ):
        build([B], [A, B])


def test_nothing_to_compile() -> None:
    with pytest.raises(ValueError, match="build: expected at least one function, got none"):
        compile_module(IRModule({}), CodegenOptions(Target("llvm"), strict=False))


def test_text_that_llvm_refuses_is_our_own_fault() -> None:
    with pytest.raises(InternalError, match="LLVM refuses the generated code"):
        parse("define i32 @f() { ret i64 0 }")


def test_axes_of_any_name() -> None:
    """Names go into block labels and symbols."""
    X = te.placeholder((4,), name="größe X")
    i = te.reduce_axis((0, 4), 'k "1"')
    S = te.compute((2,), lambda q: te.sum(X[i] + q.astype("float32"), axis=i), name="a,b\n")
    s = np.zeros(2, "float32")
    build([S], [X, S], name='naive\\ "%d')(np.ones(4, "float32"), s)
    assert s.tolist() == [4.0, 8.0]
