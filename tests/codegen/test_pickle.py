"""Pickles and copies of compiled functions, and of all that a program is made of."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.driver import program as program_module
from minitvm.driver.program import CompiledProgram
from minitvm.runtime import Function, Module, PackedFunc
from minitvm.tir.functor import walk
from minitvm.tir.structural_equal import structural_equal

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
Copy = Callable[[Any], Any]


def _copy(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.fixture(params=["same machine", "another machine"])
def sent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Copy:
    """Pickles, and loads what that gives: from the object file, and from the loop IR."""

    def send(value: Any) -> Any:
        pickled = pickle.dumps(value)
        if request.param == "another machine":
            monkeypatch.setattr(program_module, "VERSION", "another")
        return pickle.loads(pickled)

    return send


def _square(name: str = "square", **options: Any) -> Module:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    y = te.compute((n,), lambda i: x[i] * x[i], name="Y")
    return tvm.build(te.create_schedule(y.op), [x, y], name=name, **options)


def _check_square(function: Any) -> None:
    x, y = np.arange(6, dtype="float32"), np.zeros(6, "float32")
    function(x, y)
    assert y.tolist() == [0, 1, 4, 9, 16, 25]
    function(x[::-2], Y=y[::2])  # by the variant for strides
    assert y[::2].tolist() == [25, 9, 1]


# ---- The round trip ------------------------------------------------------------------------------


def test_a_module(sent: Copy) -> None:
    square = _square()
    loaded = sent(square)
    assert loaded is not square
    _check_square(loaded)
    assert (loaded.name, loaded.entry_name, loaded.type_key) == ("square", "square", "llvm")
    assert loaded["square"].arg_names == ("X", "Y")
    for kind in ("ll", "asm", "tir"):
        assert loaded.get_source(kind) == square.get_source(kind)
    with pytest.raises(ValueError, match=r"square: argument 1 'Y': expected shape\[0\] == 3"):
        loaded(np.zeros(3, "float32"), np.zeros(4, "float32"))
    x = np.zeros(3, "float32")
    assert len(loaded.time_evaluator(number=2, repeat=3)(x, np.zeros(3, "float32")).results) == 3


def test_a_function_without_its_module(sent: Copy) -> None:
    loaded = sent(_square()["square"])
    assert type(loaded) is type(_square()["square"])
    assert isinstance(loaded, Function)
    _check_square(loaded)
    _check_square(_copy(loaded))


def test_what_is_shared_stays_shared(sent: Copy) -> None:
    square = _square()
    module, function, again = sent((square, square["square"], square))
    assert again is module
    assert module["square"] is function


def test_several_functions_and_imported_modules(sent: Copy) -> None:
    functions = {
        name: tvm.lower(*_two(factor), name=name).functions[name]
        for name, factor in (("twice", 2), ("thrice", 3))
    }
    both = tvm.build(tvm.IRModule(functions))
    both.imported_modules.append(_square())
    loaded = sent(both)
    y = np.zeros(2, "float32")
    for name, factor in (("twice", 2.0), ("thrice", 3.0)):
        loaded[name](np.ones(2, "float32"), y)
        assert y.tolist() == [factor] * 2
    loaded(np.ones(2, "float32"), y)
    assert y.tolist() == [2.0] * 2
    _check_square(loaded.get_function("square", query_imports=True))


def _two(factor: int) -> tuple[Any, list[Any]]:
    x = te.placeholder((2,), name="X")
    y = te.compute((2,), lambda i: x[i] * float(factor), name="Y")
    return te.create_schedule(y.op), [x, y]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol(protocol: int) -> None:
    _check_square(_copy(_square(), protocol))


def test_a_scheduled_reduction_with_workspaces(sent: Copy) -> None:
    size = 96
    a, b = (te.placeholder((size, size), name=name) for name in "AB")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    out = te.compute((size, size), lambda i, j: te.exp(c[i, j] * -1.0), name="OUT")
    s = te.create_schedule(out.op)
    i, j = out.op.axis
    outer, _, _, inner = s[out].tile(i, j, 32, 32)
    s[out].vectorize(inner)
    s[out].parallel(outer)
    kernel = tvm.build(s, [a, b, out], name="kernel")
    x, y = np.random.default_rng(0).random((2, size, size), dtype="float32")
    expected, found = np.zeros((2, size, size), "float32")
    kernel(x, y, expected)
    sent(kernel)(x, y, found)
    np.testing.assert_array_equal(found, expected)


def test_callbacks_go_by_name(sent: Copy) -> None:
    seen: list[int] = []

    @tvm.register_func("test.pickle")
    def report(i: int) -> None:
        seen.append(i)

    def body(ins: Any, outs: Any) -> Any:
        return tvm.call_packed("test.pickle", ins[0].shape[0])

    n = te.var("n")
    x = te.placeholder((n,), name="X")
    y = te.extern((n,), [x], body, name="Y")
    kernel = sent(tvm.build(y, [x, y], name="kernel"))
    try:
        kernel(np.zeros(3, "float32"), np.zeros(3, "float32"))
    finally:
        tvm.remove_global_func("test.pickle")
    assert seen == [3]


def test_linked_llvm_ir(sent: Copy) -> None:
    text = "define float @seven(float %x) { ret float 7.0 }"
    x = te.placeholder((4,), name="X")
    y = te.compute((4,), lambda i: tvm.call_extern("float32", "seven", x[i]), name="Y")
    s = te.create_schedule(y.op)
    s[y].pragma(y.op.axis[0], "import_llvm", text)
    kernel = sent(tvm.build(s, [x, y], name="kernel"))
    result = np.zeros(4, "float32")
    kernel(np.zeros(4, "float32"), result)
    assert result.tolist() == [7.0] * 4


@pytest.mark.parametrize("fp", ["fast", "strict"])
def test_floating_point_as_it_was_asked_for(sent: Copy, fp: str) -> None:
    loaded = sent(_square(fp=fp))
    assert ("contract" in loaded.get_source()) == (fp == "fast")


def test_a_foreign_target_refuses_still(sent: Copy) -> None:
    foreign = "aarch64" if tvm.Target("llvm").arch == "x86_64" else "x86_64"
    loaded = sent(_square(target=f"llvm -mtriple={foreign}-unknown-linux-gnu"))
    with pytest.raises(ValueError, match=r"square: built for .*, which this machine can't run"):
        loaded(np.zeros(3, "float32"), np.zeros(3, "float32"))
    assert foreign in loaded.get_source("ll")
    assert isinstance(_copy(loaded["square"]), PackedFunc)


def test_expressions_as_deep_as_build_takes_them(sent: Copy) -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: functools.reduce(operator.add, [a[i]] * 1000), name="B")
    total = sent(tvm.build(b, [a, b], fp="strict"))
    x, y = np.arange(8, dtype=np.float32), np.empty(4, np.float32)
    total(x[:4], y)
    np.testing.assert_array_equal(y, x[:4] * 1000)
    total(x[::2], y)  # whose variant is made outside of `build`
    np.testing.assert_array_equal(y, x[::2] * 1000)


def test_a_shared_expression_is_pickled_once() -> None:
    """Its tree has 2**200 leaves, and what is reached first lies deep below what comes later."""
    value: Any = te.var("x")
    for _ in range(200):
        value = value + value
    shared = tir.PrimFunc((), tir.SeqStmt((tir.Evaluate(value), tir.Evaluate(value + 1))), {}, "f")
    first, second = _copy(shared).body.seq
    assert second.value.a is first.value
    assert first.value.a is first.value.b


# ---- What decides which code is loaded -----------------------------------------------------------


def test_code_for_this_machine_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(_square())
    compile_again = Mock(wraps=program_module.module_text)
    monkeypatch.setattr(program_module, "module_text", compile_again)
    loaded = pickle.loads(pickled)
    compile_again.assert_not_called()
    _check_square(loaded)
    compile_again.assert_called_once()  # for the variant for strides
    monkeypatch.setattr(program_module, "VERSION", "another")
    pickle.loads(pickled)
    assert compile_again.call_count == 2


def test_damaged_code_is_refused() -> None:
    program = _square()["square"]._owner
    assert isinstance(program, CompiledProgram)
    load, (lowered, options, code, *rest) = program.__reduce__()
    with pytest.raises(pickle.UnpicklingError, match="square: expected the machine code as it was"):
        load(lowered, options, code[:-100], *rest)
    load(lowered, options, code, *rest)


def test_llvm_is_the_machine_that_loads() -> None:
    target = _copy(tvm.Target("llvm -mcpu=haswell"))
    assert target == tvm.Target("llvm -mcpu=haswell")
    assert b"avx" not in pickle.dumps(tvm.Target("llvm"))


# ---- Copies, and functions that build did not make -----------------------------------------------


def test_copies_are_the_thing_itself() -> None:
    module = _square()
    for value in (module, module["square"], PackedFunc(abs)):
        assert copy.copy(value) is value
        assert copy.deepcopy(value) is value
        assert copy.deepcopy({"f": value})["f"] is value


def test_a_python_callable_goes_by_itself() -> None:
    loaded = _copy(PackedFunc(operator.add, name="plus"))
    assert loaded(2, 3) == 5
    assert loaded.name == "plus"
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(PackedFunc(lambda: 0))


def test_an_address_has_no_pickle() -> None:
    function = PackedFunc(0x1000, name="foreign")
    with pytest.raises(TypeError, match="foreign: expected a Python callable or a function of bu"):
        pickle.dumps(function)


# ---- Programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_programs_and_schedules(protocol: int) -> None:
    n = te.var("n")
    a = te.placeholder((n, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    least = te.comm_reducer(lambda x, y: te.min(x, y), te.max_value, name="least")
    b = te.compute((n,), lambda i: least(te.if_then_else(k < i, a[i, k], 0.0), axis=k), name="B")
    s = te.create_schedule(b.op)
    s[b].split(b.op.axis[0], 4)
    schedule, arguments, lowered = _copy((s, [a, b], tvm.lower(s, [a, b])), protocol)
    assert structural_equal(tvm.lower(schedule, arguments), tvm.lower(s, [a, b]))
    assert structural_equal(lowered, tvm.lower(s, [a, b]))
    main = lowered["main"]
    used = {node for node in walk(main.body) if isinstance(node, tir.Var) and node.name == "n"}
    assert used == {main.buffer_map[main.params[0]].shape[0]}


def test_dtypes_devices_and_arrays() -> None:
    for dtype in ("bool", "int8x4", "bfloat16", "handle"):
        made = _copy(tvm.DataType.of(dtype))
        assert made == tvm.DataType.of(dtype)
        assert (made.code, made.bits, made.lanes) == (
            tvm.DataType.of(dtype).code,
            tvm.DataType.of(dtype).bits,
            tvm.DataType.of(dtype).lanes,
        )
    assert _copy(tvm.cpu(0)) == tvm.cpu(0)
    assert _copy(tvm.nd.array(np.arange(3))).numpy().tolist() == [0, 1, 2]


# ---- Other processes -----------------------------------------------------------------------------


def _apply(function: Any, x: Any) -> Any:
    y = np.empty_like(x)
    function(x, y)
    return y


def test_a_pool_of_spawned_processes() -> None:
    rows = [np.full(4, i, "float32") for i in range(4)]
    apply = functools.partial(_apply, _square())
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(apply, rows))
    np.testing.assert_array_equal(results, [row * row for row in rows])


_LOADS_AND_FORKS = """
import multiprocessing, pickle, sys

f = pickle.load(sys.stdin.buffer)  # which imports all that it needs

import numpy as np

def apply(x):
    y = np.empty_like(x)
    f(x, y)
    return y.tolist()

with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(apply, np.eye(2, dtype="float32")), apply(np.float32([3])))
"""


def test_a_process_of_its_own_and_its_forks() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _LOADS_AND_FORKS], input=pickle.dumps(_square()), capture_output=True
    )
    expected = b"[[1.0, 0.0], [0.0, 1.0]] [9.0]\n"
    assert (run.returncode, run.stdout, run.stderr) == (0, expected, b"")
