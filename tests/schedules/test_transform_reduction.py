"""``transform_reduction``: reductions over other axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.auto_scheduler.loops import compute_of

VALUES = np.arange(2 * 6 * 4, dtype="int32").reshape(2, 6, 4) * 7 % 31


def total(reducer: Callable[..., Any] = te.sum, where: bool = False) -> tuple[te.Tensor, te.Tensor]:
    A = te.placeholder((2, 6, 4), "int32", name="A")
    k, m = te.reduce_axis((0, 6), "k"), te.reduce_axis((0, 4), "m")
    condition = {"where": k + m < 7} if where else {}
    C = te.compute((2,), lambda i: reducer(A[i, k, m], axis=[k, m], **condition), name="C")
    return A, C


MAPS: dict[str, Callable[..., Any]] = {
    "flattened": lambda k, m: [k * 4 + m],
    "the other way": lambda k, m: [m * 6 + k],
    "exchanged": lambda k, m: [m, k],
    "in blocks": lambda k, m: [k // 2, m, k % 2],
    "in blocks with a rest": lambda k, m: [k // 4, m, k % 4],
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize("mapping", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("reducer", [te.sum, te.max])
def test_all_steps_are_taken(
    reducer: Callable[..., Any], mapping: Callable[..., Any], where: bool
) -> None:
    A, C = total(reducer, where)
    s = te.create_schedule(C.op)
    axes = s[C].transform_reduction(mapping)
    assert axes == [*compute_of(s[C]).reduce_axis] == s[C].leaf_iter_vars[1:]
    again = te.create_schedule(C.op)
    exec(s.trace().partition("\n")[2], {"s": again, "C": C, "te": te})
    k, m = np.indices((6, 4))
    taken = VALUES[:, k + m < 7] if where else VALUES.reshape(2, -1)
    expected = taken.sum(1) if reducer is te.sum else taken.max(1)
    for schedule in (s, again):
        out = np.empty(2, "int32")
        tvm.build(schedule, [A, C])(VALUES, out)
        np.testing.assert_array_equal(out, expected)


def test_joined_steps_are_one_vector() -> None:
    A, C = total()
    s = te.create_schedule(C.op)
    (k,) = s[C].transform_reduction(lambda k, m: [k * 4 + m])
    _, lane = s[C].split(k, 8)
    rf = s.rfactor(C, lane, 1)
    s[rf].vectorize(compute_of(s[rf]).axis[-1])
    out = np.empty(2, "int32")
    tvm.build(s, [A, C])(VALUES, out)
    np.testing.assert_array_equal(out, VALUES.sum((1, 2)))


def test_errors() -> None:
    A, C = total()
    s = te.create_schedule(C.op)
    with pytest.raises(
        tvm.CompileError, match="C: transform_reduction: expected a map that can be"
    ):
        s[C].transform_reduction(lambda k, m: [k + m])
    s[C].split(compute_of(s[C]).reduce_axis[0], 2)
    with pytest.raises(tvm.CompileError, match="expected loops as they began, found C scheduled"):
        s[C].transform_reduction(lambda k, m: [m, k])
    B = te.compute((2,), lambda i: A[i, 0, 0], name="B")
    with pytest.raises(tvm.CompileError, match="B: transform_reduction: expected a reduction, got"):
        te.create_schedule(B.op)[B].transform_reduction(list)
    last = te.comm_reducer(lambda x, y: y, lambda t: tvm.tir.const(0, t), name="last")
    _, L = total(last)
    with pytest.raises(tvm.CompileError, match="expected a reduction whose operands may change"):
        te.create_schedule(L.op)[L].transform_reduction(lambda k, m: [m, k])
    k = te.reduce_axis((1, 6), "k")
    D = te.compute((2,), lambda i: te.sum(A[i, k, 0], axis=k), name="D")
    with pytest.raises(tvm.CompileError, match="expected axes that begin at 0"):
        te.create_schedule(D.op)[D].transform_reduction(lambda k: [k])
    E = te.compute(
        (2,), lambda i: te.sum(A[i, (r := te.reduce_axis((0, i + 1), "r")), 0], axis=r), name="E"
    )
    with pytest.raises(tvm.CompileError, match="of the same length for all elements, found r in"):
        te.create_schedule(E.op)[E].transform_reduction(lambda k: [k])
