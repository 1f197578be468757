"""The matrix multiplication of the TVM literature, word for word but for the import: on torch.

python examples/literature_matmul.py        # needs torch; without it, numpy alone
"""

import importlib.util

import numpy as np

import minitvm as tvm

n = tvm.convert(56)
X = tvm.placeholder((n, n), name="X")
Y = tvm.placeholder((n, n), name="Y")
k = tvm.reduce_axis((0, n), name="k")
Z = tvm.compute((n, n), lambda i, j: tvm.sum(X[i, k] * Y[k, j], axis=k))
s = tvm.create_schedule(Z.op)
fmm = tvm.build(s, [X, Y, Z], target_host="llvm", name="fmm")

rng = np.random.default_rng(0)
a, b = rng.random((2, 56, 56), dtype=np.float32)
c = np.empty((56, 56), dtype=np.float32)
fmm(a, b, c)
np.testing.assert_allclose(a @ b, c, rtol=1e-5)
print("numpy arrays: equal to a @ b")

nd = tvm.nd.empty((56, 56))
fmm(tvm.nd.array(a), tvm.nd.array(b), nd)
np.testing.assert_array_equal(nd.numpy(), c)
print("minitvm's own arrays: the same")

if importlib.util.find_spec("torch"):
    import torch

    x = torch.rand(56, 56)
    y = torch.rand(56, 56)
    z = x.mm(y)

    from minitvm.contrib.dlpack import to_pytorch_func

    fmm_pytorch = to_pytorch_func(fmm)
    z2 = torch.empty(56, 56)
    fmm_pytorch(x, y, z2)
    np.testing.assert_allclose(z.numpy(), z2.numpy(), rtol=1e-5)
    print("torch, by to_pytorch_func: equal to x.mm(y)")

    z3 = torch.empty(56, 56)
    fmm(x, y, z3)  # the wrapper isn't needed
    np.testing.assert_array_equal(z3.numpy(), z2.numpy())
    print("torch, directly: the same")

    z4 = np.empty((56, 56), dtype=np.float32)
    fmm(x, tvm.nd.array(y.numpy()), z4)
    np.testing.assert_array_equal(z4, z2.numpy())
    print("torch, NDArray and numpy in one call: the same")
else:
    print("torch: not installed, left out")
