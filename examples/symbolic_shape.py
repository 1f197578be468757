"""One function for every size: dimensions that are variables, bound and checked at the call.

python examples/symbolic_shape.py
"""

import numpy as np

import minitvm as tvm
from minitvm import te

m, n, k_size = te.var("m"), te.var("n"), te.var("k")
A = te.placeholder((m, k_size), name="A")
B = te.placeholder((k_size, n), name="B")
scale = te.var("scale", "float32")  # a scalar parameter is a variable among the arguments
k = te.reduce_axis((0, k_size), name="k")
product = te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="product")
C = te.compute((m, n), lambda i, j: product[i, j] * scale, name="C")
f = tvm.build(te.create_schedule(C.op), [A, B, scale, C], name="scaled_matmul")

rng = np.random.default_rng(0)
for rows, inner, columns in ((1, 1, 1), (3, 17, 5), (64, 32, 8), (2, 0, 3)):
    a = rng.random((rows, inner), dtype=np.float32)
    b = rng.random((inner, columns), dtype=np.float32)
    c = np.empty((rows, columns), dtype=np.float32)
    f(a, b, 0.5, c)
    np.testing.assert_allclose(c, a @ b * np.float32(0.5), rtol=1e-5)
    print(f"({rows}, {inner}) @ ({inner}, {columns}): equal to a @ b / 2")

# A slice or a transposed array is taken as it is; a variant for strides is compiled once.
a, b = rng.random((17, 6), dtype=np.float32), rng.random((17, 5), dtype=np.float32)
c = np.empty((3, 5), dtype=np.float32)
f(a.T[::2], b, 0.5, c)
np.testing.assert_allclose(c, a.T[::2] @ b * np.float32(0.5), rtol=1e-5)
print("a transposed, sliced array: the same")

try:
    f(a.T[::2], b[:16], 0.5, c)
except ValueError as error:
    message = str(error)
else:
    raise AssertionError("expected an error: the inner sizes differ")
assert message.startswith("scaled_matmul: argument 1 'B': expected shape[0] == 17"), message
print(f"ValueError: {message}")
