"""An operator from the expression to the call, as classic programs write it.

python examples/classic/get_started.py
"""

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te

target = tvm.target.Target(target="llvm", host="llvm")
dev = tvm.device(target.kind.name, 0)

n = te.var("n")
X = te.placeholder((n,), name="X")
Y = te.placeholder((n,), name="Y")
Z = te.compute(X.shape, lambda i: te.sqrt(X[i] * X[i] + Y[i] * Y[i]), name="Z")

SIZE = 20_000
rng = np.random.default_rng(0)
x, y = (tvm.nd.array(rng.random(SIZE, dtype="float32"), dev) for _ in range(2))
z = tvm.nd.array(np.zeros(SIZE, "float32"), dev)


def measured(title: str, schedule: te.Schedule) -> None:
    """Builds a schedule, checks its result and prints the time of a call."""
    function = tvm.build(schedule, [X, Y, Z], target, name="length")
    function(x, y, z)
    tvm.testing.assert_allclose(z.numpy(), np.hypot(x.numpy(), y.numpy()), rtol=1e-6)
    seconds = function.time_evaluator(function.entry_name, dev, number=10)(x, y, z).mean
    print(f"{title:<34}{seconds * 1e6:9.1f} us")


# A schedule that nobody touched is made fast by `build`. Each primitive makes it the user's own:
# then it runs exactly as it says, and nothing is added.
measured("untouched", te.create_schedule(Z.op))

s = te.create_schedule(Z.op)
s[Z].parallel(Z.op.axis[0])
measured("parallel: a task for each element", s)

s = te.create_schedule(Z.op)
outer, inner = s[Z].split(Z.op.axis[0], factor=8)
s[Z].vectorize(inner)
measured("vectors of 8", s)
print(tvm.lower(s, [X, Y, Z], simple_mode=True))

# A module is written to a file with its machine code, and loaded without compiling.
temp = tvm.contrib.utils.tempdir()
tvm.build(s, [X, Y, Z], target, name="length").export_library(temp.relpath("length.so"))
again = tvm.runtime.load_module(temp.relpath("length.so"))
again(x, y, z)
tvm.testing.assert_allclose(z.numpy(), np.hypot(x.numpy(), y.numpy()), rtol=1e-6)
print(again.get_source("tir").splitlines()[0])
