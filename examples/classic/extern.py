"""Outside functions as stages: a BLAS, and a function of Python.

python examples/classic/extern.py
"""

from typing import Any

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te
from minitvm.contrib import cblas

assert tvm.get_global_func("tvm.contrib.cblas.matmul", allow_missing=True)

n, depth, m = 20, 12, 9
bias = te.var("bias", dtype="float32")
A = te.placeholder((n, depth), name="A")
B = te.placeholder((depth, m), name="B")
rng = np.random.default_rng(0)
a, b = rng.random((n, depth), dtype="float32"), rng.random((depth, m), dtype="float32")

# numpy's BLAS, called as a packed function; the bias is a scheduled stage behind it.
C = te.extern(
    (n, m),
    [A, B],
    lambda ins, outs: tvm.tir.call_packed(
        "tvm.contrib.cblas.matmul", ins[0], ins[1], outs[0], False, False
    ),
    name="C",
)
D = te.compute(C.shape, lambda i, j: C[i, j] + bias, name="D")
d = tvm.nd.array(np.zeros((n, m), "float32"), tvm.cpu(0))
tvm.build(te.create_schedule(D.op), [A, B, D, bias], "llvm")(a, b, d, 10.0)
tvm.testing.assert_allclose(d.numpy(), a @ b + 10, rtol=1e-5)

# The same by its wrapper, with a factor that lies transposed.
BT = te.placeholder((m, depth), name="BT")
wrapped = cblas.matmul(A, BT, transb=True)
tvm.build(te.create_schedule(wrapped.op), [A, BT, wrapped])(a, np.ascontiguousarray(b.T), d)
tvm.testing.assert_allclose(d.numpy(), a @ b, rtol=1e-5)


# A function of Python sees the tensors of its call as arrays, which are the memory itself.
@tvm.register_func("examples.sort_rows", override=True)
def sort_rows(x: Any, y: Any) -> None:
    """Writes the rows of `x`, each sorted, into `y`."""
    tvm.nd.array(np.sort(x.numpy(), axis=1)).copyto(y)


S = te.extern(
    A.shape, [A], lambda ins, outs: tvm.tir.call_packed("examples.sort_rows", *ins, *outs), name="S"
)
median = te.compute((n,), lambda i: (S[i, depth // 2 - 1] + S[i, depth // 2]) * 0.5, name="median")
middle = tvm.nd.empty((n,))
tvm.build(te.create_schedule(median.op), [A, median])(a, middle)
tvm.testing.assert_allclose(middle.numpy(), np.median(a, axis=1), rtol=1e-6)
print("a product and a median: equal to numpy's")
