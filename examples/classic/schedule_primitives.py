"""The loops that each primitive makes, on two small programs with a symbolic extent.

python examples/classic/schedule_primitives.py
"""

from collections.abc import Callable

import numpy as np

import minitvm as tvm
import minitvm.testing
from minitvm import te

m, n = te.var("m"), te.var("n")
A = te.placeholder((m, n), name="A")
B = te.compute((m, n), lambda i, j: A[i, j] + 1.0, name="B")
C = te.compute((m, n), lambda i, j: B[i, j] * 2.0, name="C")
a = np.random.default_rng(0).random((13, 7), dtype="float32")


def shown(title: str, decide: Callable[[te.Schedule], object]) -> None:
    """Applies primitives, prints the loops, and checks what they compute."""
    s = te.create_schedule(C.op)
    decide(s)
    print(f"# {title}\n{tvm.lower(s, [A, C], simple_mode=True)}\n")
    c = tvm.nd.empty(a.shape)
    tvm.build(s, [A, C], auto_schedule=False)(a, c)
    tvm.testing.assert_allclose(c.numpy(), (a + 1) * 2, rtol=1e-6)


def tiled(s: te.Schedule) -> list[tvm.tir.IterVar]:
    """Four loops over tiles of 4 x 2."""
    return list(s[C].tile(C.op.axis[0], C.op.axis[1], x_factor=4, y_factor=2))


def fused(s: te.Schedule) -> None:
    """The two inner loops of tiles as one."""
    *_, xi, yi = tiled(s)
    s[C].fuse(xi, yi)


def reordered(s: te.Schedule) -> None:
    """The loops of tiles in another order."""
    xo, yo, xi, yi = tiled(s)
    s[C].reorder(xi, yo, xo, yi)


shown("as it is", lambda s: None)
shown("split by a factor", lambda s: s[C].split(C.op.axis[0], factor=4))
shown("split into parts", lambda s: s[C].split(C.op.axis[0], nparts=4))
shown("tile", tiled)
shown("fuse", fused)
shown("reorder", reordered)
shown("compute_at", lambda s: s[B].compute_at(s[C], C.op.axis[0]))
shown("compute_inline", lambda s: s[B].compute_inline())
shown("AutoInlineInjective", te.schedule.AutoInlineInjective)

# The ranges that lowering infers: B is needed a row at a time.
s = te.create_schedule(C.op)
s[B].compute_at(s[C], C.op.axis[0])
bounds = te.schedule.InferBound(s)
print("rows of B in one iteration of i:", bounds[B.op.axis[0]].extent)
