"""The entry of a function for machine code that makes all checks itself."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np

import minitvm
from minitvm import tir
from minitvm.te.operation import var
from minitvm.tir.buffer import decl_buffer
from minitvm.tir.ir_builder import create
from minitvm.tir.stmt import FuncAttrs, PrimFunc

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def shifted(*, plain: bool = True, asserts: bool = False) -> Any:
    """y[i, j] = x[i] + j, of two symbolic sizes of different types."""
    m, n = var("m", "int64"), var("n", "int32")
    x, y = decl_buffer((m,), "float64", "x"), decl_buffer((m, n), "float64", "y")
    program = create()
    source, target = program.buffer_ptr(x), program.buffer_ptr(y)
    if asserts:
        program.emit(tir.AssertStmt(n > 0, "rows of no elements", tir.Evaluate(tir.const(0))))
    with program.for_range(0, m) as i, program.for_range(0, n) as j:
        target[i, j] = source[i] + j.astype("float64")
    given: Any = (x, y)
    func = PrimFunc(given, program.get(), name="shifted")
    func = replace(func, attrs=replace(func.attrs, has_plain_entry=plain))
    return minitvm.build(func, name="shifted").entry_func


def test_it_takes_addresses_and_sizes() -> None:
    function = shifted()
    x, y = np.arange(3.0), np.zeros((3, 5))
    addresses = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
    sizes = (ctypes.c_int64 * 2)(3, 5)
    entry = _ENTRY(function.program.plain_entry("shifted"))
    assert entry(ctypes.addressof(addresses), ctypes.addressof(sizes)) == 0
    np.testing.assert_array_equal(y, x[:, None] + np.arange(5))
    function(x, y)  # the packed entry is there as well
    np.testing.assert_array_equal(y, x[:, None] + np.arange(5))


def test_where_there_is_none() -> None:
    assert shifted(plain=False).program.plain_entry("shifted") == 0
    assert shifted(asserts=True).program.plain_entry("shifted") == 0
    assert FuncAttrs().has_plain_entry is False
