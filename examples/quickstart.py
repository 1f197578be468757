"""Matrix multiplication from a tensor expression, on numpy arrays and (where installed) torch's.

python examples/quickstart.py
"""

import importlib.util

import numpy as np

import minitvm as tvm

n = tvm.convert(56)
X = tvm.placeholder((n, n), name="X")
Y = tvm.placeholder((n, n), name="Y")
k = tvm.reduce_axis((0, n), name="k")
Z = tvm.compute((n, n), lambda i, j: tvm.sum(X[i, k] * Y[k, j], axis=k), name="Z")
s = tvm.create_schedule(Z.op)
print(tvm.lower(s, [X, Y, Z], name="fmm", simple_mode=True))

fmm = tvm.build(s, [X, Y, Z], target_host="llvm", name="fmm")

rng = np.random.default_rng(0)
x = rng.random((56, 56), dtype=np.float32)
y = rng.random((56, 56), dtype=np.float32)
z = np.empty((56, 56), dtype=np.float32)
fmm(x, y, z)
np.testing.assert_allclose(z, x @ y, rtol=1e-5)
print("numpy: equal to x @ y")

z3 = tvm.nd.empty((56, 56))
fmm(tvm.nd.array(x), y, z3)
np.testing.assert_array_equal(z3.numpy(), z)
print("NDArray, mixed with numpy: the same")

if importlib.util.find_spec("torch"):
    import torch

    from minitvm.contrib.dlpack import to_pytorch_func

    fmm_pytorch = to_pytorch_func(fmm)
    z2 = torch.empty(56, 56)
    fmm_pytorch(torch.from_numpy(x), torch.from_numpy(y), z2)
    np.testing.assert_allclose((torch.from_numpy(x).mm(torch.from_numpy(y))).numpy(), z2, rtol=1e-5)
    print("torch: equal to x.mm(y)")
else:
    print("torch: not installed, left out")

print(fmm.time_evaluator(number=100, repeat=5)(x, y, z))
