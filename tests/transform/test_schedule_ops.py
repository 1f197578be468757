"""From tensor expressions to loops, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minitvm as tvm
from minitvm import te, tir
from minitvm.arith.effects import written_parameters
from minitvm.variants.any_strides import accept_strides

Golden = Callable[[str], None]


def test_stages_and_reduction(golden: Golden) -> None:
    n = te.var("n")
    a = te.placeholder((n, 8), name="A")
    doubled = te.compute((n, 8), lambda i, j: a[i, j] * 2.0, name="D")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute(
        (n,), lambda i: te.sum(doubled[i, k], axis=k, where=doubled[i, k] > 0.0), name="S"
    )
    golden(str(tvm.lower(total, [a, total], name="stages", simple_mode=True)))


def test_tuple_reduction(golden: Golden) -> None:
    """Both results are computed before either is stored, and each source once."""

    def later(x: Any, y: Any) -> Any:
        first = x[1] >= y[1]
        return tir.Select(first, x[0], y[0]), tir.Select(first, x[1], y[1])

    argmax = te.comm_reducer(later, lambda t0, t1: (te.const(-1, t0), te.min_value(t1)))
    index = te.placeholder((4,), "int32", name="I")
    value = te.placeholder((4,), name="V")
    k = te.reduce_axis((0, 4), "k")
    found = te.compute((), lambda: argmax((index[k], value[k]), axis=k), name="M")
    golden(str(tvm.lower(list(found), [index, value, *found], name="argmax", simple_mode=True)))


def test_extern_takes_the_real_buffers(golden: Golden) -> None:
    a = te.placeholder((4,), name="A")
    b = te.extern((4,), [a], lambda ins, outs: tir.call_packed("copy", ins[0], outs[0]), name="B")
    golden(str(tvm.lower(b, [a, b], name="extern", simple_mode=True)))


def test_accept_strides(golden: Golden) -> None:
    a = te.placeholder((4, 5), name="A")
    b = te.compute((5, 4), lambda i, j: a[j, i], name="B")
    func = tvm.lower(b, [a, b], name="transpose", simple_mode=True)["transpose"]
    variant = accept_strides(func)
    assert written_parameters(variant) == {variant.buffer_map[variant.params[1]]}
    golden(str(variant))


def test_an_extern_may_not_store_to_its_input() -> None:
    a = te.placeholder((4,), name="A")
    b = te.extern((4,), [a], lambda ins, outs: ins[0].vstore(0, 1.0), name="B", dtype="float32")
    with pytest.raises(
        tvm.CompileError, match=r"^B: expected stores to the outputs only, found one to input A$"
    ):
        tvm.lower(b, [a, b])
