"""Programs that are deep, shared or long: they build, or the answer says why not."""

from __future__ import annotations

import functools
import operator
import sys
import threading
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.tir import depth
from minitvm.tir.depth import deep_expressions


def test_a_sum_of_a_thousand_written_terms_builds() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: functools.reduce(operator.add, [a[i]] * 1000), name="B")
    total = tvm.build(b, [a, b], fp="strict")
    x, y = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    total(x, y)
    np.testing.assert_array_equal(y, x * 1000)


def test_too_deep_an_expression_is_the_users_error() -> None:
    a = te.placeholder((4,), name="A")

    def chain(i: Any) -> Any:
        value = a[i]
        for _ in range(depth._MAX_DEPTH + 1):
            value = value + a[i]
        return value

    b = te.compute((4,), chain, name="B")
    with pytest.raises(tvm.CompileError, match="expected expressions nested less deeply"):
        tvm.build(b, [a, b])


def test_a_shared_expression_is_lowered_once() -> None:
    """Its tree has 2**200 leaves."""
    a = te.placeholder((4,), "int64", name="A")

    def doubled(i: Any) -> Any:
        value = a[i]
        for _ in range(200):
            value = value + value
        return value

    b = te.compute((4,), doubled, name="B")
    kernel = tvm.build(b, [a, b])
    y = np.ones(4, np.int64)
    kernel(np.arange(4), y)
    np.testing.assert_array_equal(y, np.zeros(4))  # every term is a multiple of 2**200


def test_a_long_chain_of_stages_gives_back_all_its_memory() -> None:
    """With symbolic sizes each stage is on the heap, and a failed check leaves through all of
    their clean-ups."""
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    index = te.placeholder((n,), "int32", name="I")
    last = x
    for step in range(20):
        last = te.compute((n,), lambda i, last=last: last[i] + 1.0, name=f"T{step}")
    out = te.compute((n,), lambda i: last[index[i]], name="OUT")
    kernel = tvm.build(out, [x, index, out], name="gather")
    a, b = np.zeros(1000, np.float32), np.empty(1000, np.float32)
    good = np.arange(1000, dtype=np.int32)
    kernel(a, good, b)
    np.testing.assert_array_equal(b, np.full(1000, 20.0))
    with pytest.raises(
        IndexError, match=r"gather: T19\[I\[i\]\]: index 0 must stay in \[0, 1000\)"
    ):
        kernel(a, good + 1, b)
    kernel(a, good[::-1].copy(), b)


def test_memory_that_is_not_to_be_had_is_an_error() -> None:
    n = te.var("n", "int64")
    x = te.placeholder((n,), name="X")
    middle = te.compute((n, n), lambda i, j: x[i] + x[j], name="MIDDLE")
    one = te.compute(
        (1,), lambda i: te.if_then_else(n > 0, middle[0, 0] + middle[n - 1, 0], 0.0), name="ONE"
    )
    kernel = tvm.build(one, [x, one])
    huge = np.broadcast_to(np.float32(1.0), (1 << 40,))
    with pytest.raises(MemoryError, match="MIDDLE: expected 9223372036854775807 bytes of memory"):
        kernel(huge, np.zeros(1, np.float32))


@pytest.mark.parametrize("first", [0, 1])
def test_the_recursion_limit_is_put_back_by_the_last_thread(first: int) -> None:
    """Two threads lower side by side: whoever ends first, a recursion without end is an error
    afterwards, not the end of the process."""
    usual = sys.getrecursionlimit()
    leave = [threading.Event(), threading.Event()]
    entered = threading.Barrier(3)

    def run(position: int) -> None:
        with deep_expressions("f"), deep_expressions("an inner one changes nothing"):
            entered.wait()
            leave[position].wait()

    threads = [threading.Thread(target=run, args=(position,)) for position in range(2)]
    for each in threads:
        each.start()
    entered.wait()
    assert sys.getrecursionlimit() > usual
    leave[first].set()
    threads[first].join()
    assert sys.getrecursionlimit() > usual
    leave[1 - first].set()
    threads[1 - first].join()
    assert sys.getrecursionlimit() == usual
