"""An operator for numpy and (where installed) torch: RMS normalisation, as a Python function.

python examples/rms_norm.py
"""

import importlib.util
from typing import Annotated, Any

import numpy as np

import minitvm
from minitvm import te


@minitvm.jit
def rms_norm(
    x: Annotated[te.Tensor, "m n"], w: Annotated[te.Tensor, "n"], eps: float = 1e-6
) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    s = te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k))
    return te.compute(x.shape, lambda i, j: x[i, j] * te.rsqrt(s[i] / x.shape[1] + eps) * w[j])


rng = np.random.default_rng(0)
w = rng.random(96, dtype=np.float32)
for m in (1, 5, 64, 100):
    x = rng.standard_normal((m, 96), dtype=np.float32)
    mean = np.square(x, dtype=np.float64).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(rms_norm(x, w), x / np.sqrt(mean + 1e-6) * w, rtol=1e-5)
print("numpy: equal to the formula in float64")
for build in rms_norm.specialisations:
    print("built for", dict(build.fixed), "and any", *sorted(map(str, build.symbolic)))

if importlib.util.find_spec("torch"):
    import torch

    x_torch, w_torch = torch.randn(64, 96), torch.rand(96)
    y = rms_norm(x_torch, w_torch)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x_torch, (96,), w_torch, 1e-6))
    print("torch: equal to torch.nn.functional.rms_norm")
else:
    print("torch: not installed, left out")
