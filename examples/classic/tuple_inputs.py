"""Operations with several results: two tensors of one loop nest, and a reduction of pairs.

python examples/classic/tuple_inputs.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te

n, m = te.var("n"), te.var("m")
A = te.placeholder((n, m), name="A")
B = te.placeholder((n, m), name="B")

# One loop stores both results.
total, product = te.compute(
    (n, m), lambda i, j: (A[i, j] + B[i, j], A[i, j] * B[i, j]), name="both"
)
s = te.create_schedule(total.op)
print(tvm.lower(s, [A, B, total, product], simple_mode=True))
rng = np.random.default_rng(0)
a, b = (rng.random((4, 9), dtype="float32") for _ in range(2))
c, d = tvm.nd.empty(a.shape), tvm.nd.empty(a.shape)
tvm.build(s, [A, B, total, product])(a, b, c, d)
tvm.testing.assert_allclose(c.numpy(), a + b, rtol=1e-6)
tvm.testing.assert_allclose(d.numpy(), a * b, rtol=1e-6)


def least(lhs: Any, rhs: Any) -> Any:
    """Of two (place, value) the one of the lesser value."""
    keeps = lhs[1] <= rhs[1]
    return tvm.tir.Select(keeps, lhs[0], rhs[0]), tvm.tir.Select(keeps, lhs[1], rhs[1])


def nothing(place: str, value: str) -> Any:
    """The pair that every other one wins against."""
    return tvm.tir.const(-1, place), te.max_value(value)


argmin = te.comm_reducer(least, nothing, name="argmin")
k = te.reduce_axis((0, m), "k")
place, value = te.compute((n,), lambda i: argmin((k.var, A[i, k]), axis=k), name="least")
s = te.create_schedule(place.op)
where, what = tvm.nd.empty((4,), "int32"), tvm.nd.empty((4,))
tvm.build(s, [A, place, value])(a, where, what)
tvm.testing.assert_allclose(where.numpy(), a.argmin(1))
tvm.testing.assert_allclose(what.numpy(), a.min(1))

# The reduction of pairs is split like any other: partial results are pairs, too.
s = te.create_schedule(place.op)
outer, inner = s[place].split(place.op.reduce_axis[0], factor=3)
s.rfactor(place, inner)
print(tvm.lower(s, [A, place, value], simple_mode=True))
tvm.build(s, [A, place, value], auto_schedule=False)(a, where, what)
tvm.testing.assert_allclose(where.numpy(), a.argmin(1))
print("sums, products, argmin: equal to numpy's")
