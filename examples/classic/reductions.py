"""Reductions: sums whose axes are split, partial results, and a reducer of one's own.

python examples/classic/reductions.py
"""

# Classic programs are not typed: the operation of a stage may be any.
# mypy: disable-error-code="attr-defined"

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te

n, m = te.var("n"), te.var("m")
A = te.placeholder((n, m), name="A")
k = te.reduce_axis((0, m), "k")
B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
a = np.random.default_rng(0).random((5, 70), dtype="float32")


def sums_of(schedule: te.Schedule) -> np.ndarray:
    """The result of a schedule of B."""
    b = tvm.nd.empty((5,))
    tvm.build(schedule, [A, B], auto_schedule=False)(a, b)
    result: np.ndarray = b.numpy()
    return result


s = te.create_schedule(B.op)
ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
xo, xi = s[B].split(B.op.axis[0], factor=4)
print(tvm.lower(s, [A, B], simple_mode=True))
tvm.testing.assert_allclose(sums_of(s), a.sum(1), rtol=1e-5)

# rfactor makes 16 partial sums, which can be vectors, and a sum of these.
s = te.create_schedule(B.op)
ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
partial = s.rfactor(B, ki, factor_axis=1)
s[partial].compute_at(s[B], s[B].op.axis[0])
s[partial].reorder(s[partial].op.reduce_axis[0], s[partial].op.axis[1])
s[partial].vectorize(s[partial].op.axis[1])
print(tvm.lower(s, [A, B], simple_mode=True))
print(s[B].op.body)
tvm.testing.assert_allclose(sums_of(s), a.sum(1), rtol=1e-5)

# Any function that is associative and commutative, with the value that changes nothing.
product = te.comm_reducer(lambda x, y: x * y, lambda t: tvm.tir.const(1, dtype=t), name="product")
P = te.compute((n,), lambda i: product(A[i, k] + 0.5, axis=k), name="P")
p = tvm.nd.empty((5,))
tvm.build(te.create_schedule(P.op), [A, P])(a, p)
tvm.testing.assert_allclose(p.numpy(), np.prod(a + 0.5, axis=1), rtol=1e-4)

# A convolution is a reduction over two axes.
size = te.var("size")
image, kernel = te.placeholder((size, size), name="image"), te.placeholder((3, 3), name="kernel")
di, dj = te.reduce_axis((0, 3), "di"), te.reduce_axis((0, 3), "dj")
blurred = te.compute(
    (size - 2, size - 2),
    lambda i, j: te.sum(image[i + di, j + dj] * kernel[di, dj], axis=[di, dj]),
    name="blurred",
)
out = tvm.nd.empty((8, 8))
picture, weights = np.ones((10, 10), "float32"), np.full((3, 3), 0.5, "float32")
tvm.build(te.create_schedule(blurred.op), [image, kernel, blurred])(picture, weights, out)
tvm.testing.assert_allclose(out.numpy(), np.full((8, 8), 4.5), rtol=1e-6)
print("sums, a product and a convolution: equal to numpy's")
