"""Module: functions by name, sources, timing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minitvm.runtime import Module, PackedFunc, cpu, device


@pytest.fixture
def module(compiled: Any) -> Module:
    other = Module({"helper": PackedFunc(lambda: "helped")})
    return Module(
        {"inc": compiled.function("increment", ("X",), (0,)), "two": PackedFunc(lambda: 2)},
        sources={"ll": lambda: "define ...", "asm": lambda: "ret"},
        imported_modules=[other],
    )


def test_functions(module: Module) -> None:
    x = np.zeros(1, np.int64)
    module(x)
    module(X=x)
    assert x[0] == 2
    assert module.entry_name == "inc"
    assert module.entry_func is module["inc"]
    assert module["two"]() == 2
    assert module.implements_function("two")
    assert not module.implements_function("helper")
    assert module.implements_function("helper", query_imports=True)
    assert module.get_function("helper", query_imports=True)() == "helped"
    assert len(module.imported_modules) == 1
    assert module.type_key == "llvm"
    assert repr(module) == "<Module llvm: inc, two>"
    with pytest.raises(AttributeError, match="expected a function among inc, two, got 'helper'"):
        module["helper"]
    with pytest.raises(ValueError, match="expected at least one function, got none"):
        Module({})


def test_sources(module: Module) -> None:
    assert module.get_source() == module.get_source("") == "define ..."
    assert module.get_source("asm") == "ret"
    with pytest.raises(ValueError, match="expected a kind of source among ll, asm, got 'obj'"):
        module.get_source("obj")
    with pytest.raises(ValueError, match="among nothing, got 'll'"):
        module.imported_modules[0].get_source()


def test_classic_time_evaluator(module: Module) -> None:
    x = np.zeros(1, np.int64)
    evaluate = module.time_evaluator(module.entry_name, cpu(0), number=10, repeat=3)
    assert len(evaluate(x).results) == 3
    assert x[0] == 31
    with pytest.raises(ValueError, match=r"expected a device of cpu, got cuda\(0\)"):
        module.time_evaluator("inc", device("cuda"))
    with pytest.raises(TypeError, match="two: expected a compiled Function, got PackedFunc"):
        module.time_evaluator("two")
    with pytest.raises(AttributeError, match="got 'three'"):
        module.time_evaluator("three")


def test_a_module_crosses_as_itself(module: Module, compiled: Any) -> None:
    assert compiled.packed("forward")(lambda m: m, module) is module
    assert compiled.packed("forward")(lambda: module) is module
