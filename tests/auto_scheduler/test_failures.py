"""Failures inside of scheduled contractions: one error, whoever meets it, and no damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te


class Row(Exception):
    pass


failing: list[int] = []


@tvm.register_func("tests.auto_scheduler.fail")
def fail(row: int) -> int:
    if row in failing:
        raise Row(row)
    return row


def program(m: int, n: int, depth: int, kind: str) -> list[te.Tensor]:
    A, B = te.placeholder((m, depth), name="A"), te.placeholder((depth, n), name="B")
    index, table = te.placeholder((n,), "int32", name="I"), te.placeholder((10,), name="T")
    k = te.reduce_axis((0, depth), name="k")
    factor: Any = B
    if kind == "before":
        factor = te.compute((depth, n), lambda i, j: B[i, j] * table[index[j]], name="P")

    def element(i: Any, j: Any) -> Any:
        value = A[i, k] * factor[k, j]
        return te.sum(value * table[index[j]] if kind == "inside" else value, axis=k)

    C = te.compute((m, n), element, name="C")

    def behind(i: Any, j: Any) -> Any:
        if kind == "behind":
            return C[i, j] + table[index[j]]
        if kind == "callback":
            return C[i, j] + tvm.call_packed("tests.auto_scheduler.fail", i).astype("float32")
        return C[i, j] + 1.0

    return [A, B, index, table, te.compute((m, n), behind, name="D")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", [(70, 200, 300), (2, 700, 300)], ids=str)
@pytest.mark.parametrize("kind", ["before", "inside", "behind", "callback"])
def test_an_error_comes_out_and_the_next_call_goes_well(
    kind: str, sizes: tuple[int, int, int]
) -> None:
    m, n, depth = sizes
    tensors = program(m, n, depth, kind)
    f = tvm.build(tensors[-1], tensors)
    good = np.arange(n, dtype="int32") % 10
    bad = good.copy()
    bad[[n // 2, n - 1]] = 99
    a, b = np.ones((m, depth), "float32"), np.ones((depth, n), "float32")
    table, out = np.arange(10, dtype="float32"), np.zeros((m, n), "float32")
    wanted = {
        "before": depth * table[good] + 1,
        "inside": depth * table[good] + 1,
        "behind": depth + table[good],
        "callback": depth + np.arange(m)[:, None],
    }[kind]
    for threads in (1, 2, 5):
        with tvm.num_threads(threads):
            failing[:] = [m // 2, m - 1] if kind == "callback" else []
            for _ in range(3):
                with pytest.raises(Row if kind == "callback" else IndexError) as caught:
                    f(a, b, good if kind == "callback" else bad, table, out)
                text = str(m // 2) if kind == "callback" else "index 0 must stay in [0, 10), got 99"
                assert str(caught.value).endswith(text)
            failing.clear()
            f(a, b, good, table, out)
            np.testing.assert_array_equal(out, np.broadcast_to(wanted, out.shape))
