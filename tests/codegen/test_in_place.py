"""Calls in which an output is the same array as an input."""

from __future__ import annotations

import ctypes
import re
import threading
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.codegen.options import CodegenOptions
from minitvm.driver.program import compile_module
from minitvm.runtime.arrangement import (
    ASKS_FOR_VARIANT,
    NEEDS_VARIANT,
    Arrangement,
    Compiled,
    Variants,
)
from minitvm.runtime.module import Module
from minitvm.runtime.packed_func import _PACKED, Function
from minitvm.target import Target
from minitvm.tir.stmt import IRModule
from minitvm.variants.any_strides import accept_strides
from minitvm.variants.in_place import run_in_place
from tests.codegen.test_errors import Raw

Array = np.ndarray[Any, Any]
n, m = te.var("n"), te.var("m")
X, Z = te.placeholder((n, m), name="X"), te.placeholder((n, m), name="Z")


def build(output: Any, *args: Any) -> Module:
    return tvm.build(te.create_schedule(output.op), [*args, output], name="f")


def values(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def function(module: Module) -> Function:
    found = module.entry_func
    assert isinstance(found, Function)
    return found


def made(module: Module) -> list[Arrangement]:
    """For which arrangements there are variants."""
    variants = function(module).variants
    assert variants is not None
    return list(variants.made)


@pytest.fixture
def add() -> Module:
    return build(te.compute((n, m), lambda i, j: X[i, j] + Z[i, j] * 2.0, name="Y"), X, Z)


def test_either_input_or_both(add: Module) -> None:
    x, z = values(2, 5, 7)
    expected = x + z * 2
    first, second, both = x.copy(), z.copy(), x.copy()
    add(first, z, first)
    add(x, second, second)
    add(both, both, both)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)
    np.testing.assert_array_equal(both, x + x * 2)
    same = [{(2, 0)}, {(2, 1)}, {(2, 0), (2, 1)}]
    assert made(add) == [Arrangement(False, frozenset(pairs)) for pairs in ((), *same)]
    add(first, z, first)
    add(x, z, second)
    np.testing.assert_array_equal(first, expected + z * 2)
    assert len(made(add)) == 4


@pytest.mark.parametrize("where", np.s_[::2, :, None], ids=["rows", "all", "axis"])
def test_with_other_layouts(add: Module, where: Any) -> None:
    memory = values(9, 8)
    view = memory[::2, 3::-1] if where != np.s_[:] else memory.T
    z = np.broadcast_to(values(1, view.shape[1]), view.shape)
    expected = view + z * 2
    rest = memory.copy()
    add(view, z, view)
    np.testing.assert_array_equal(view, expected)
    assert Arrangement(True, frozenset({(2, 0)})) in made(add)
    view[...] = 0
    (rest[::2, 3::-1] if where != np.s_[:] else rest.T)[...] = 0
    np.testing.assert_array_equal(memory, rest)


def test_two_views_of_one_array(add: Module) -> None:
    """Not the object counts but the memory."""
    x, z = values(2, 4, 4)
    expected = x + z * 2
    add(x[:], z, x.reshape(16).reshape(4, 4))
    np.testing.assert_array_equal(x, expected)


def test_other_overlap_is_refused(add: Module) -> None:
    memory = values(8, 4)
    before = memory.copy()
    text = (
        "f: argument 2 'Y': expected an output that shares no memory with argument {}, got "
        "overlapping memory: pass a copy or another output"
    )
    apart = np.zeros((4, 4), "float32")
    for x, z, y, found in [
        (memory[:4], apart, memory[1:5], "0 'X'"),
        (memory[:4], apart, memory[3::-1], "0 'X'"),
        (memory[:4], apart, memory[:4].T, "0 'X'"),
        (apart, memory[:4].T, memory[:4], "1 'Z'"),
        (memory[:4], memory[:4].T, memory[:4], "1 'Z'"),
        (memory[::2], memory[1:5], memory[::2], "1 'Z'"),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(text.format(found))}$"):
            add(x, z, y)
    np.testing.assert_array_equal(memory, before)


def test_two_pairs() -> None:
    p, q = te.compute((n, m), lambda i, j: (X[i, j] + Z[i, j], X[i, j] - Z[i, j]), name="P")
    f = tvm.build(te.create_schedule(p.op), [X, Z, p, q], name="f")
    x, z = values(2, 3, 4)
    a, b = x.copy(), z.copy()
    f(a, b, b, a)
    np.testing.assert_array_equal(b, x + z)
    np.testing.assert_array_equal(a, x - z)
    with pytest.raises(ValueError, match=r"argument 2 'P.v0': .* no memory with argument 3 'P.v1'"):
        f(a, b, a, a)


def test_two_pairs_of_stages() -> None:
    p = te.compute((n, m), lambda i, j: X[i, j] * 2.0, name="P")
    q = te.compute((n, m), lambda i, j: Z[i, j] - 1.0, name="Q")
    f = tvm.build(te.create_schedule([p.op, q.op]), [X, Z, p, q], name="f")
    x, z = values(2, 3, 4)
    a, b = x.copy(), z.copy()
    f(a, b, a, b)
    np.testing.assert_array_equal(a, x * 2)
    np.testing.assert_array_equal(b, z - 1)
    with pytest.raises(ValueError, match=r"argument 2 'P': .* no memory with argument 1 'Z'"):
        f(a, b, b, a)  # Z is read after P has been stored


def residual() -> Module:
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m, n), name="B")
    c, k = te.placeholder((n, n), name="C"), te.reduce_axis((0, m), name="k")
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="T")
    y: Any = te.compute((n, n), lambda i, j: product[i, j] + c[i, j], name="Y")
    s = te.create_schedule(y.op)
    rows, columns, _, lanes = s[y].tile(y.op.axis[0], y.op.axis[1], 4, 16)
    s[product].compute_at(s[y], columns)
    s[y].vectorize(lanes)
    s[y].parallel(rows)
    return tvm.build(s, [a, b, c, y], name="f")


def test_residual() -> None:
    f = residual()
    a, b, c = values(130, 60), values(60, 130), values(130, 130)
    expected = a @ b + c
    f(a, b, c, c)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    square = values(60, 60)
    with pytest.raises(ValueError, match=r"argument 3 'Y': .* shares no memory with argument 0"):
        f(square, square.copy(), values(60, 60), square)


def test_the_vectors_stay() -> None:
    """The variant for one array is made of vectors as much as that for two."""
    v, s, b = te.placeholder((n,), name="V"), te.var("s", "float32"), te.var("b", "float32")
    y: Any = te.compute((n,), lambda i: v[i] * s + b, name="Y")
    func = tvm.lower(te.create_schedule(y.op), [v, s, b, y], name="f")["f"]
    options = CodegenOptions(Target("llvm"), strict=False)
    same = run_in_place(func, frozenset({(3, 0)}))
    sources = [
        compile_module(IRModule({"f": each}), options).get_source("ll")
        for each in (func, same, accept_strides(same))
    ]
    stores = [len(re.findall(r"store <\d+ x float>", source)) for source in sources]
    assert stores[0] > 0
    assert len(set(stores)) == 1


def test_time_evaluator_measures_the_variant(add: Module) -> None:
    x, z = values(2, 5, 7)
    function(add).time_evaluator(number=2)(x, z, x)
    np.testing.assert_allclose(x, values(2, 5, 7)[0] + 3 * (z * 2), rtol=1e-5)


def test_empty_arrays(add: Module) -> None:
    x = np.zeros((0, 4), "float32")
    add(x, x, x)
    assert made(add) == [Arrangement()]


def test_a_single_element_has_any_strides(add: Module) -> None:
    memory = values(4, 4)
    before = memory.copy()
    x, y = memory[1:2, 2:3], np.lib.stride_tricks.as_strided(memory[1:, 2:], (1, 1), (400, 8))
    add(x, np.ones((1, 1), "float32"), y)
    before[1, 2] += 2
    np.testing.assert_array_equal(memory, before)


def test_threads_make_the_variants_side_by_side() -> None:
    module = build(te.compute((n, m), lambda i, j: X[i, j] + 1.0, name="Y"), X)
    arrays = [np.zeros((6, 6), "float32") for _ in range(6)]

    def call(x: Array) -> None:
        for _ in range(3):
            module(x, x)
            module(x[::2], x[::2])

    threads = [threading.Thread(target=call, args=(x,)) for x in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.full((6, 6), 3, "float32")
    expected[::2] += 3
    for x in arrays:
        np.testing.assert_array_equal(x, expected)
    assert len(made(module)) == 3


# -- The table of variants -------------------------------------------------------------------------


def table(variants: Variants) -> list[int]:
    """The addresses that a native caller sees, up to the NULL."""
    found: list[int] = []
    for slot in range(100):
        address = ctypes.c_void_p.from_address(variants.table + 8 * slot).value
        if address is None:
            return found
        found.append(address)
    raise AssertionError("no NULL at the end")


def test_the_table_lists_what_was_made(add: Module) -> None:
    variants = function(add).variants
    assert variants is not None
    before = variants.table
    x, z = values(2, 5, 7)
    add(x, z, x)
    add(x[::2], z[::2], x[::2])
    assert table(variants) == [each.address for each in variants.made.values()]
    assert len(table(variants)) == 3
    assert variants.table == before


def test_the_table_ends_and_the_variants_go_on() -> None:
    addresses = iter(range(101, 200))
    variants = Variants(
        Compiled(100, None),
        {0},
        range(12),
        lambda wanted: wanted,
        lambda _: Compiled(next(addresses), None),
    )
    wanted = [Arrangement(False, frozenset({(0, i)})) for i in range(1, 12)]
    found = [variants._add(each).address for each in wanted]
    assert found == list(range(101, 112))
    assert table(variants) == list(range(100, 107))


def test_who_asks_is_told(add: Module) -> None:
    """With ASKS_FOR_VARIANT, a function that isn't for these arrays says so and does nothing."""
    x, z = values(2, 5, 7)
    add(x.copy(), z, np.empty_like(x))
    variants = function(add).variants
    assert variants is not None
    add(x[::2].copy(), z[::2], np.empty_like(x[::2]))
    add(w := x.copy(), z, w)

    def ask(position: int, *arrays: Any) -> int:
        raws = [Raw(array) for array in arrays]
        handles = (ctypes.c_void_p * 3)(*[raw.address for raw in raws])
        codes, result = (ctypes.c_int * 3)(7, 7, 7), ctypes.c_int64()
        code = ctypes.c_int(ASKS_FOR_VARIANT)
        at = [ctypes.addressof(each) for each in (handles, codes, result, code)]
        return int(_PACKED(table(variants)[position])(at[0], at[1], 3, at[2], at[3], None))

    before, y = x.copy(), np.zeros_like(x)
    base, strided, in_place = range(3)
    assert ask(base, x, z, y) == 0
    assert ask(base, x, z, x) == NEEDS_VARIANT
    assert ask(base, x[::2], z[::2], y[::2]) == NEEDS_VARIANT
    assert ask(strided, x[::2], z[::2], y[::2]) == 0
    assert ask(strided, x[::2], z[::2], x[::2]) == NEEDS_VARIANT
    assert ask(in_place, x, z, y) == NEEDS_VARIANT
    assert ask(in_place, x[::2], z[::2], x[::2]) == NEEDS_VARIANT
    np.testing.assert_array_equal(x, before)
    assert ask(in_place, x, z, x) == 0
    np.testing.assert_array_equal(x, before + z * 2)
